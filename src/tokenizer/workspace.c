// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/workspace.h"

#include <string.h>

#define KEEP_BYTES ((size_t)4 << 20) // what a resting workspace may hold in each buffer

int msgl__tok_grow(void **p, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap) return 0;
    size_t n = *cap < 32 ? 32 : *cap * 2;
    if (n < need) n = need;
    void *q = msgl__reallocarray(*p, n, size);
    if (q == NULL) return MSGL_ENOMEM;
    *p = q;
    *cap = n;
    return 0;
}

msgl_tok_ws *msgl__ws_create(void)
{
    msgl_tok_ws *ws = msgl__calloc(1, sizeof(*ws));
    if (ws == NULL) return NULL;
    ws->cache = msgl__calloc((size_t)1 << MSGL_CACHE_BITS, sizeof(*ws->cache));
    ws->regex = msgl__regex_ws_create();
    if (ws->cache == NULL || ws->regex == NULL) {
        msgl__ws_free(ws);
        return NULL;
    }
    return ws;
}

static void buf_free(msgl_tok_buf *b)
{
    msgl__free(b->data);
    msgl__free(b->tags);
    *b = (msgl_tok_buf){0};
}

void msgl__ws_free(msgl_tok_ws *ws)
{
    if (ws == NULL) return;
    for (int i = 0; i < 3; i++) buf_free(&ws->buf[i]);
    for (int i = 0; i < 2; i++) msgl__free(ws->pieces[i]);
    msgl__free(ws->spans);
    msgl__free(ws->symbols);
    msgl__free(ws->heap);
    msgl__free(ws->lattice);
    msgl__free(ws->cache);
    msgl__regex_ws_free(ws->regex);
    msgl__free(ws);
}

msgl_tok_ws *msgl__ws_take(const msgl_tokenizer *t)
{
    msgl_tokenizer *mt = (msgl_tokenizer *)t; // the list of workspaces is behind its lock
    pthread_mutex_lock(&mt->lock);
    msgl_tok_ws *ws = mt->free;
    if (ws != NULL) mt->free = ws->next;
    pthread_mutex_unlock(&mt->lock);
    return ws != NULL ? ws : msgl__ws_create();
}

#define RELEASE(p, cap, size)                                                                      \
    do {                                                                                           \
        if ((cap) * (size) > KEEP_BYTES) {                                                         \
            msgl__free(p);                                                                         \
            (p) = NULL;                                                                            \
            (cap) = 0;                                                                             \
        }                                                                                          \
    } while (0)

// One long text must not pin its buffers for ever.
void msgl__ws_give(const msgl_tokenizer *t, msgl_tok_ws *ws)
{
    for (int i = 0; i < 3; i++) {
        if (ws->buf[i].cap > KEEP_BYTES) buf_free(&ws->buf[i]);
    }
    for (int i = 0; i < 2; i++) {
        RELEASE(ws->pieces[i], ws->cap_pieces[i], sizeof(**ws->pieces));
    }
    RELEASE(ws->spans, ws->cap_spans, sizeof(*ws->spans));
    RELEASE(ws->symbols, ws->cap_symbols, sizeof(*ws->symbols));
    RELEASE(ws->heap, ws->cap_heap, sizeof(*ws->heap));
    RELEASE(ws->lattice, ws->cap_lattice, sizeof(*ws->lattice));
    msgl_tokenizer *mt = (msgl_tokenizer *)t;
    pthread_mutex_lock(&mt->lock);
    ws->next = mt->free;
    mt->free = ws;
    pthread_mutex_unlock(&mt->lock);
}

static int holds(const msgl_tok_buf *b, const char *p)
{
    const uintptr_t data = (uintptr_t)b->data, at = (uintptr_t)p;
    return b->data != NULL && at >= data && at <= data + b->cap;
}

msgl_tok_buf *msgl__ws_other(msgl_tok_ws *ws, const msgl_text *in)
{
    msgl_tok_buf *b = &ws->buf[0];
    while (b == ws->in_use || holds(b, in->p)) b++; // of three, at most two are in use
    b->len = 0;
    return b;
}

int msgl__buf_reserve(const msgl_tok_ws *ws, msgl_tok_buf *b, size_t extra)
{
    // An empty text still needs an address that tells the buffers apart.
    if (b->cap > 0 && b->cap - b->len >= extra && (!ws->use_tags || b->tags != NULL)) return 0;
    if (extra > ws->buf_limit || b->len > ws->buf_limit - extra) return MSGL_ELIMIT;
    size_t cap = b->cap < 256 ? 256 : b->cap - b->len >= extra ? b->cap : b->cap * 2;
    if (cap < b->len + extra) cap = b->len + extra;
    char *data = msgl__realloc(b->data, cap);
    if (data == NULL) return MSGL_ENOMEM;
    b->data = data;
    b->cap = b->tags != NULL || ws->use_tags ? b->cap : cap;
    if (b->tags != NULL || ws->use_tags) {
        unsigned char *tags = msgl__realloc(b->tags, cap);
        if (tags == NULL) return MSGL_ENOMEM;
        b->tags = tags;
        b->cap = cap;
    }
    return 0;
}

int msgl__buf_put(const msgl_tok_ws *ws, msgl_tok_buf *b, const char *p, size_t n,
                  unsigned char tag)
{
    const int rc = msgl__buf_reserve(ws, b, n);
    if (rc != 0 || n == 0) return rc;
    memcpy(b->data + b->len, p, n);
    if (ws->use_tags) memset(b->tags + b->len, tag, n);
    b->len += n;
    return 0;
}

int msgl__buf_copy(const msgl_tok_ws *ws, msgl_tok_buf *b, const msgl_text *in, size_t start,
                   size_t end)
{
    const size_t n = end - start;
    const int rc = msgl__buf_reserve(ws, b, n);
    if (rc != 0 || n == 0) return rc;
    memcpy(b->data + b->len, in->p + start, n);
    if (ws->use_tags) memcpy(b->tags + b->len, in->tags + start, n);
    b->len += n;
    return 0;
}

unsigned char msgl__text_tag(const msgl_text *in, size_t start, size_t end)
{
    unsigned char tag = 0;
    for (size_t i = start; in->tags != NULL && i < end; i++) tag |= in->tags[i];
    return tag;
}

int msgl__ws_add_piece(msgl_tok_ws *ws, int list, size_t off, size_t len)
{
    if (len == 0) return 0;
    const size_t n = ws->num_pieces[list];
    if (n == ws->cap_pieces[list] &&
        msgl__tok_grow((void **)&ws->pieces[list], &ws->cap_pieces[list], n + 1,
                       sizeof(msgl_tok_piece)) != 0) {
        return MSGL_ENOMEM;
    }
    ws->pieces[list][n] = (msgl_tok_piece){off, len};
    ws->num_pieces[list] = n + 1;
    return 0;
}

int msgl__ws_add_span(msgl_tok_ws *ws, size_t off, size_t len, int match)
{
    const size_t n = ws->num_spans;
    if (n == ws->cap_spans &&
        msgl__tok_grow((void **)&ws->spans, &ws->cap_spans, n + 1, sizeof(*ws->spans)) != 0) {
        return MSGL_ENOMEM;
    }
    ws->spans[n] = (msgl_span){off, len, match};
    ws->num_spans = n + 1;
    return 0;
}

int msgl__ws_put_byte(msgl_tok_ws *ws, msgl_zero *z, const msgl_text *in, size_t i,
                      msgl_tok_buf *out)
{
    char bytes[4];
    const size_t n = msgl__utf8_put(msgl__byte_char((unsigned char)in->p[i]), bytes);
    msgl__zero_element(z, i + 1, out->len);
    return msgl__buf_put(ws, out, bytes, n, msgl__text_tag(in, i, i + 1));
}

int msgl__pattern_spans(const msgl_tokenizer *t, const msgl_tok_pattern *pattern, msgl_tok_ws *ws,
                        const char *text, size_t off, size_t len)
{
    ws->num_spans = 0;
    const char *p = text + off;
    size_t prev = 0;
    msgl_regex_iter it = {0};
    for (int rc;;) {
        size_t start, end;
        if (pattern->scan != MSGL_SCAN_NONE) {
            if (prev >= len) return 0;
            start = prev;
            end = msgl__scan_next(pattern->scan, t->uni, p, len, prev);
        } else if (pattern->regex != NULL) {
            rc = msgl__regex_next(pattern->regex, ws->regex, p, len, &it, &start, &end);
            if (rc < 0) return rc;
            if (rc == 0) break;
        } else {
            const char *hit = memmem(p + prev, len - prev, pattern->text.p, pattern->text.n);
            if (hit == NULL) break;
            start = (size_t)(hit - p);
            end = start + pattern->text.n;
        }
        rc = start > prev ? msgl__ws_add_span(ws, off + prev, start - prev, 0) : 0;
        if (rc == 0) rc = msgl__ws_add_span(ws, off + start, end - start, 1);
        if (rc != 0) return rc;
        prev = end;
    }
    return prev < len ? msgl__ws_add_span(ws, off + prev, len - prev, 0) : 0;
}
