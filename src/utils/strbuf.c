// SPDX-License-Identifier: Apache-2.0
#include "utils/strbuf.h"

#include <stdio.h>
#include <string.h>

#include "core/err.h"
#include "core/mem.h"

void msgl__strbuf_init(msgl_strbuf *b, size_t max)
{
    *b = (msgl_strbuf){.max = max};
}

void msgl__strbuf_free(msgl_strbuf *b)
{
    msgl__free(b->data);
    msgl__strbuf_init(b, b->max);
}

static int grow(msgl_strbuf *b, size_t extra, size_t least)
{
    if (extra > b->max - b->len) return MSGL_ELIMIT;
    const size_t need = b->len + extra + 1;
    if (need <= b->cap) return 0;
    const size_t cap = need < least ? least : need;
    char *p = msgl__realloc(b->data, cap);
    if (p == NULL) return MSGL_ENOMEM;
    if (b->data == NULL) p[0] = '\0';
    b->data = p;
    b->cap = cap;
    return 0;
}

int msgl__strbuf_reserve(msgl_strbuf *b, size_t extra)
{
    return grow(b, extra, b->cap < 64 ? 64 : b->cap * 2);
}

int msgl__strbuf_reserve_exact(msgl_strbuf *b, size_t extra)
{
    return grow(b, extra, 0);
}

int msgl__strbuf_add(msgl_strbuf *b, const void *data, size_t len)
{
    const int rc = msgl__strbuf_reserve(b, len);
    if (rc != 0) return rc;
    if (len > 0) memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
    return 0;
}

int msgl__strbuf_addc(msgl_strbuf *b, char c)
{
    return msgl__strbuf_add(b, &c, 1);
}

int msgl__strbuf_adds(msgl_strbuf *b, const char *s)
{
    return msgl__strbuf_add(b, s, strlen(s));
}

int msgl__strbuf_addf(msgl_strbuf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) return MSGL_EINTERNAL;
    const int rc = msgl__strbuf_reserve(b, (size_t)n);
    if (rc != 0) return rc;
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return 0;
}

const char *msgl__strbuf_str(const msgl_strbuf *b)
{
    return b->data == NULL ? "" : b->data;
}

char *msgl__strbuf_take(msgl_strbuf *b)
{
    char *p = b->data != NULL ? b->data : msgl__strdup("");
    msgl__strbuf_init(b, b->max);
    return p;
}

bool msgl__ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}
