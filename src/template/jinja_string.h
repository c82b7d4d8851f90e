// SPDX-License-Identifier: Apache-2.0
//
// Strings of a render: immutable UTF-8 with provenance, and the buffers that build them. A buffer
// stays behind its string, so that the usual `text = text + more` in a loop appends in place
// instead of copying what grew so far.
#ifndef MSGL_TEMPLATE_JINJA_STRING_H
#define MSGL_TEMPLATE_JINJA_STRING_H

#include "template/jinja_value.h"
#include "utils/utf8.h"

typedef struct msgl_jbuf {
    msgl_jctx *c;
    char *data;
    uint8_t *mask; // NULL while all bytes have the same provenance
    size_t len, cap;
    msgl_jfrom untrusted; // of all bytes, while mask is NULL
} msgl_jbuf;

// Lives in the arena. MSGL_ELIMIT once a string would pass the render's largest size.
int msgl__jbuf_new(msgl_jctx *c, size_t cap, msgl_jbuf **out);
int msgl__jbuf_add(msgl_jbuf *b, const char *data, size_t len, msgl_jfrom untrusted);
int msgl__jbuf_adds(msgl_jbuf *b, const char *text); // trusted
int msgl__jbuf_add_jstr(msgl_jbuf *b, const msgl_jstr *s);
int msgl__jbuf_add_sub(msgl_jbuf *b, const msgl_jstr *s, size_t off, size_t len); // bytes
// The same text `n` times.
int msgl__jbuf_add_repeat(msgl_jbuf *b, const msgl_jstr *s, size_t n);
int msgl__jbuf_add_cp(msgl_jbuf *b, int32_t cp, msgl_jfrom untrusted); // one code point
int msgl__jbuf_finish(msgl_jbuf *b, msgl_jstr **out);

int msgl__jstr_copy(msgl_jctx *c, const char *data, size_t len, msgl_jfrom untrusted,
                    msgl_jstr **out);
// Bytes that outlive the render.
int msgl__jstr_ref(msgl_jctx *c, const char *data, size_t len, msgl_jfrom untrusted,
                   msgl_jstr **out);
int msgl__jstr_sub(msgl_jctx *c, const msgl_jstr *s, size_t off, size_t len, msgl_jstr **out);
int msgl__jstr_concat(msgl_jctx *c, const msgl_jstr *a, const msgl_jstr *b, msgl_jstr **out);
int msgl__jstr_escape(msgl_jctx *c, const msgl_jstr *s, msgl_jstr **out); // HTML, as markupsafe
bool msgl__jstr_eq(const msgl_jstr *a, const msgl_jstr *b);
bool msgl__jstr_is(const msgl_jstr *s, const char *text);
msgl_jfrom msgl__jstr_any_untrusted(const msgl_jstr *s);
static inline msgl_jfrom msgl__jstr_untrusted_at(const msgl_jstr *s, size_t i)
{
    return s->mask != NULL ? s->mask[i] : s->untrusted;
}
size_t msgl__jstr_chars(msgl_jstr *s);                // code points
size_t msgl__jstr_offset(msgl_jstr *s, size_t chars); // byte offset of a code point
size_t msgl__jstr_char_at(msgl_jstr *s, size_t off);  // code points before a byte offset
// First occurrence at or after `from`, or SIZE_MAX; bytes.
size_t msgl__jstr_find(const msgl_jstr *s, const msgl_jstr *needle, size_t from);

// UTF-8 and Unicode as Python's str sees it. The text is valid UTF-8.
size_t msgl__jutf8_get(const char *p, const char *end, int32_t *cp); // bytes taken
bool msgl__jis_space(int32_t cp);    // str.isspace, and \s of regular expressions
bool msgl__jis_line_end(int32_t cp); // what str.splitlines splits at
bool msgl__jis_printable(int32_t cp);
bool msgl__jis_alpha(int32_t cp);
bool msgl__jis_alnum(int32_t cp);
bool msgl__jis_digit(int32_t cp);
bool msgl__jis_upper(int32_t cp);
bool msgl__jis_lower(int32_t cp);
bool msgl__jis_cased(int32_t cp);
// Full case mappings: up to 3 code points; the number is returned.
int msgl__jto_upper(int32_t cp, int32_t out[3]);
int msgl__jto_lower(int32_t cp, int32_t out[3]);
int msgl__jto_title(int32_t cp, int32_t out[3]);

#endif
