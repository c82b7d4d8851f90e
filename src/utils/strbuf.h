// SPDX-License-Identifier: Apache-2.0
//
// A growing byte string with a stated maximum: every buffer that input can grow says how far.
// The bytes are always followed by a NUL that len does not count.
#ifndef MSGL_UTILS_STRBUF_H
#define MSGL_UTILS_STRBUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct msgl_strbuf {
    char *data; // NULL until the first append
    size_t len, cap, max;
} msgl_strbuf;

void msgl__strbuf_init(msgl_strbuf *b, size_t max);
void msgl__strbuf_free(msgl_strbuf *b); // leaves an empty, usable buffer
static inline void msgl__strbuf_clear(msgl_strbuf *b)
{
    b->len = 0;
    if (b->data != NULL) b->data[0] = '\0';
}
// Each returns 0, MSGL_ELIMIT (would pass max) or MSGL_ENOMEM; the buffer is unchanged on failure.
int msgl__strbuf_reserve(msgl_strbuf *b, size_t extra);
// The same without room for what comes later: cap becomes len + extra + 1 where it was less.
int msgl__strbuf_reserve_exact(msgl_strbuf *b, size_t extra);
int msgl__strbuf_add(msgl_strbuf *b, const void *data, size_t len);
int msgl__strbuf_addc(msgl_strbuf *b, char c);
int msgl__strbuf_adds(msgl_strbuf *b, const char *s);
int msgl__strbuf_addf(msgl_strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// The bytes as a C string ("" when empty); valid until the next append.
const char *msgl__strbuf_str(const msgl_strbuf *b);
// Hands the bytes over to the caller (freed with msgl__free); the buffer becomes empty. NULL only
// when memory for an empty string could not be had.
char *msgl__strbuf_take(msgl_strbuf *b);

// Whether the text ends with `end`, or is it.
bool msgl__ends_with(const char *text, const char *end);

// Bytes [start, end) of a text.
typedef struct msgl_text_span {
    size_t start, end;
} msgl_text_span;

#endif
