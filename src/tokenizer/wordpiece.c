// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/wordpiece.h"

#include <string.h>

#include "tokenizer/workspace.h"

static bool goes_on(const char *p, size_t n, const msgl_tok_str *prefix)
{
    return n > prefix->n && memcmp(p, prefix->p, prefix->n) == 0;
}

int msgl__wordpiece_build(msgl_tokenizer *t, const msgl_tok_str *prefix, msgl_err *err)
{
    msgl_wordpiece *w = &t->wordpiece;
    const msgl_strset *v = &t->bpe.vocab;
    int rc = msgl__strset_init(&w->tails, v->num_ids, v->num_ids, v->pool_len + 1);
    for (size_t id = 0; id < v->num_ids && rc == 0; id++) {
        size_t n;
        const char *p = msgl__strset_at(v, (int32_t)id, &n);
        if (p == NULL) continue;
        if (n > w->longest) w->longest = n;
        if (!goes_on(p, n, prefix)) continue;
        rc = msgl__strset_add(&w->tails, p + prefix->n, n - prefix->n, (int32_t)id);
    }
    return rc == 0 ? 0 : msgl__err_set(err, rc, "model.vocab: %s", msgl__status_text(rc));
}

void msgl__wordpiece_free(msgl_wordpiece *w)
{
    msgl__strset_free(&w->tails);
}

// The longest token that p[0, n) begins with; *len its length. -1: none.
static int32_t longest(const msgl_wordpiece *w, const msgl_strset *set, const msgl_tok_ws *ws,
                       const char *p, size_t n, size_t *len)
{
    size_t end = n < w->longest ? n : w->longest;
    while (end > 0 && end < n && ((unsigned char)p[end] & 0xc0) == 0x80) end--; // whole characters
    while (end > 0) {
        const int32_t id = msgl__strset_get(set, p, end);
        if (id >= 0 && !(ws->guard != NULL && ws->guard[id])) {
            *len = end;
            return id;
        }
        end = msgl__utf8_prev(p, end);
    }
    return -1;
}

static bool too_long(const msgl_wordpiece *w, const char *p, size_t n)
{
    size_t chars = 0;
    if (n <= w->max_chars) return false;
    for (size_t i = 0; i < n; i += msgl__utf8_len((unsigned char)p[i])) chars++;
    return chars > w->max_chars;
}

int msgl__wordpiece_encode(const msgl_tokenizer *t, msgl_tok_ws *ws, const char *p, size_t n,
                           msgl_ids *out)
{
    const msgl_wordpiece *w = &t->wordpiece;
    const size_t start = out->len;
    int rc = 0;
    if (too_long(w, p, n)) return msgl__ws_push(ws, out, w->unk);
    for (size_t i = 0, len = 0; i < n && rc == 0; i += len) {
        const int32_t id = longest(w, i == 0 ? &t->bpe.vocab : &w->tails, ws, p + i, n - i, &len);
        if (id < 0) {
            out->len = start;
            return msgl__ws_push(ws, out, w->unk);
        }
        rc = msgl__ws_push(ws, out, id);
    }
    return rc;
}
