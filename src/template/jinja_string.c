// SPDX-License-Identifier: Apache-2.0
#include "template/jinja_string.h"

#include <string.h>

// --- buffers ---
int msgl__jbuf_new(msgl_jctx *c, size_t cap, msgl_jbuf **out)
{
    msgl_jbuf *b = msgl__jarena_zalloc(&c->arena, sizeof *b);
    if (b == NULL) return msgl__jctx_nomem(c, sizeof *b);
    b->c = c;
    b->data = (char *)b; // never NULL; nothing is written while cap is 0
    *out = b;
    if (cap == 0) return 0;
    b->data = msgl__jctx_alloc(c, cap);
    if (b->data == NULL) return msgl__jctx_nomem(c, cap);
    b->cap = cap;
    return 0;
}

static int reserve(msgl_jbuf *b, size_t extra)
{
    msgl_jctx *c = b->c;
    if (extra > c->max_string - b->len) {
        return msgl__jctx_limit(c, "a text of more than %zu bytes", c->max_string);
    }
    if (b->len + extra <= b->cap) return 0;
    size_t cap = b->cap ? b->cap : 32;
    while (cap < b->len + extra) cap += cap / 2 + 16;
    char *data = msgl__jctx_alloc(c, cap);
    if (data == NULL) return msgl__jctx_nomem(c, cap);
    if (b->len > 0) memcpy(data, b->data, b->len);
    if (b->mask != NULL) {
        uint8_t *mask = msgl__jctx_alloc(c, cap);
        if (mask == NULL) return msgl__jctx_nomem(c, cap);
        memcpy(mask, b->mask, b->len);
        b->mask = mask;
    }
    b->data = data;
    b->cap = cap;
    return 0;
}

// Room for len bytes of the given provenance, which the caller then writes and counts.
static int prepare(msgl_jbuf *b, size_t len, msgl_jfrom untrusted)
{
    MSGL_JTRY(reserve(b, len));
    if (b->mask == NULL && b->len > 0 && b->untrusted != untrusted) {
        b->mask = msgl__jctx_alloc(b->c, b->cap);
        if (b->mask == NULL) return msgl__jctx_nomem(b->c, b->cap);
        memset(b->mask, b->untrusted, b->len);
    }
    if (b->mask != NULL) {
        memset(b->mask + b->len, untrusted, len);
    } else {
        b->untrusted = untrusted;
    }
    return 0;
}

int msgl__jbuf_add(msgl_jbuf *b, const char *data, size_t len, msgl_jfrom untrusted)
{
    if (len == 0) return 0;
    MSGL_JTRY(prepare(b, len, untrusted));
    memcpy(b->data + b->len, data, len);
    b->len += len;
    return 0;
}

int msgl__jbuf_adds(msgl_jbuf *b, const char *text)
{
    return msgl__jbuf_add(b, text, strlen(text), false);
}

int msgl__jbuf_add_sub(msgl_jbuf *b, const msgl_jstr *s, size_t off, size_t len)
{
    if (len == 0) return 0;
    const msgl_jfrom first = msgl__jstr_untrusted_at(s, off);
    MSGL_JTRY(prepare(b, len, first));
    if (s->mask != NULL) {
        if (b->mask == NULL) {
            // Only allocated when the run really is mixed.
            if (memcmp(s->mask + off, s->mask + off + 1, len - 1) != 0) {
                b->mask = msgl__jctx_alloc(b->c, b->cap);
                if (b->mask == NULL) return msgl__jctx_nomem(b->c, b->cap);
                memset(b->mask, b->untrusted, b->len);
            }
        }
        if (b->mask != NULL) memcpy(b->mask + b->len, s->mask + off, len);
    }
    memcpy(b->data + b->len, s->data + off, len);
    b->len += len;
    return 0;
}

int msgl__jbuf_add_jstr(msgl_jbuf *b, const msgl_jstr *s)
{
    return msgl__jbuf_add_sub(b, s, 0, s->len);
}

int msgl__jbuf_add_repeat(msgl_jbuf *b, const msgl_jstr *s, size_t n)
{
    if (s->len == 0 || n == 0) return 0;
    if (n > (b->c->max_string - b->len) / s->len) {
        return msgl__jctx_limit(b->c, "a text of more than %zu bytes", b->c->max_string);
    }
    const size_t start = b->len, total = n * s->len;
    MSGL_JTRY(msgl__jctx_work(b->c, total));
    MSGL_JTRY(reserve(b, total));
    MSGL_JTRY(msgl__jbuf_add_jstr(b, s));
    // The rest is copied from what is there already, twice as much each time.
    for (size_t done = s->len; done < total;) {
        const size_t more = done < total - done ? done : total - done;
        memcpy(b->data + start + done, b->data + start, more);
        if (b->mask != NULL) memcpy(b->mask + start + done, b->mask + start, more);
        done += more;
    }
    b->len = start + total;
    return 0;
}

int msgl__jbuf_add_cp(msgl_jbuf *b, int32_t cp, msgl_jfrom untrusted)
{
    // Loops over all characters of a text come here: the usual one needs no more than a store.
    if (cp < 0x80 && b->len < b->cap && b->len < b->c->max_string &&
        (b->mask != NULL || b->untrusted == untrusted)) {
        if (b->mask != NULL) b->mask[b->len] = untrusted;
        b->data[b->len++] = (char)cp;
        return 0;
    }
    char utf8[4];
    return msgl__jbuf_add(b, utf8, msgl__utf8_put((uint32_t)cp, utf8), untrusted);
}

static int new_str(msgl_jctx *c, const char *data, size_t len, msgl_jfrom untrusted,
                   msgl_jstr **out)
{
    msgl_jstr *s = msgl__jctx_alloc(c, sizeof *s);
    if (s == NULL) return msgl__jctx_nomem(c, sizeof *s);
    *s = (msgl_jstr){.data = data, .len = len, .chars = SIZE_MAX, .untrusted = untrusted};
    *out = s;
    return 0;
}

int msgl__jbuf_finish(msgl_jbuf *b, msgl_jstr **out)
{
    MSGL_JTRY(new_str(b->c, b->data, b->len, b->untrusted, out));
    (*out)->mask = b->mask;
    (*out)->store = b;
    return 0;
}

// --- strings ---
int msgl__jstr_copy(msgl_jctx *c, const char *data, size_t len, msgl_jfrom untrusted,
                    msgl_jstr **out)
{
    char *copy = msgl__jctx_alloc(c, len);
    if (copy == NULL) return msgl__jctx_nomem(c, len);
    if (len > 0) memcpy(copy, data, len);
    return new_str(c, copy, len, untrusted, out);
}

int msgl__jstr_ref(msgl_jctx *c, const char *data, size_t len, msgl_jfrom untrusted,
                   msgl_jstr **out)
{
    return new_str(c, data, len, untrusted, out);
}

int msgl__jstr_sub(msgl_jctx *c, const msgl_jstr *s, size_t off, size_t len, msgl_jstr **out)
{
    MSGL_JTRY(new_str(c, s->data + off, len, s->untrusted, out));
    (*out)->mask = s->mask != NULL ? s->mask + off : NULL;
    (*out)->markup = s->markup;
    return 0;
}

int msgl__jstr_concat(msgl_jctx *c, const msgl_jstr *a, const msgl_jstr *b, msgl_jstr **out)
{
    msgl_jbuf *buf = a->store;
    // Append in place when nothing else was appended behind a.
    if (buf == NULL || (uintptr_t)(a->data + a->len) != (uintptr_t)(buf->data + buf->len) ||
        a->len > buf->len) {
        MSGL_JTRY(msgl__jbuf_new(c, a->len + b->len + 16, &buf));
        MSGL_JTRY(msgl__jbuf_add_jstr(buf, a));
    }
    const size_t start = buf->len - a->len;
    MSGL_JTRY(msgl__jbuf_add_jstr(buf, b));
    MSGL_JTRY(msgl__jctx_work(c, b->len));
    MSGL_JTRY(new_str(c, buf->data + start, a->len + b->len, buf->untrusted, out));
    (*out)->mask = buf->mask != NULL ? buf->mask + start : NULL;
    (*out)->store = buf;
    (*out)->markup = a->markup || b->markup;
    return 0;
}

int msgl__jstr_escape(msgl_jctx *c, const msgl_jstr *s, msgl_jstr **out)
{
    msgl_jbuf *b;
    MSGL_JTRY(msgl__jctx_chars(c, s->len));
    MSGL_JTRY(msgl__jbuf_new(c, s->len + 16, &b));
    for (size_t i = 0; i < s->len; i++) {
        const char *e = NULL;
        switch (s->data[i]) {
        case '&': e = "&amp;"; break;
        case '<': e = "&lt;"; break;
        case '>': e = "&gt;"; break;
        case '\'': e = "&#39;"; break;
        case '"': e = "&#34;"; break;
        default: break;
        }
        if (e == NULL || s->markup) {
            MSGL_JTRY(msgl__jbuf_add_sub(b, s, i, 1));
        } else {
            MSGL_JTRY(msgl__jbuf_add(b, e, strlen(e), msgl__jstr_untrusted_at(s, i)));
        }
    }
    MSGL_JTRY(msgl__jbuf_finish(b, out));
    (*out)->markup = true;
    return 0;
}

bool msgl__jstr_eq(const msgl_jstr *a, const msgl_jstr *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

bool msgl__jstr_is(const msgl_jstr *s, const char *text)
{
    return s->len == strlen(text) && memcmp(s->data, text, s->len) == 0;
}

msgl_jfrom msgl__jstr_any_untrusted(const msgl_jstr *s)
{
    if (s->mask == NULL) return s->len > 0 ? s->untrusted : MSGL_JFROM_TEMPLATE;
    msgl_jfrom all = MSGL_JFROM_TEMPLATE;
    for (size_t i = 0; i < s->len; i++) all |= s->mask[i];
    return all;
}

size_t msgl__jstr_chars(msgl_jstr *s)
{
    if (s->chars == SIZE_MAX) s->chars = msgl__utf8_count(s->data, s->len);
    return s->chars;
}

size_t msgl__jstr_offset(msgl_jstr *s, size_t chars)
{
    if (msgl__jstr_chars(s) == s->len) return chars < s->len ? chars : s->len;
    size_t off = 0;
    while (chars-- > 0 && off < s->len) off += msgl__utf8_len((unsigned char)s->data[off]);
    return off;
}

size_t msgl__jstr_char_at(msgl_jstr *s, size_t off)
{
    return msgl__jstr_chars(s) == s->len ? off : msgl__utf8_count(s->data, off);
}

size_t msgl__jstr_find(const msgl_jstr *s, const msgl_jstr *needle, size_t from)
{
    if (from > s->len) return SIZE_MAX;
    if (needle->len == 0) return from;
    if (s->len - from < needle->len) return SIZE_MAX;
    const char *p = memmem(s->data + from, s->len - from, needle->data, needle->len);
    return p == NULL ? SIZE_MAX : (size_t)(p - s->data);
}
