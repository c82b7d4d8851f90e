// SPDX-License-Identifier: Apache-2.0
//
// Byte-pair encoding of one pre-token. The rule: of all adjacent pairs that have a merge, apply the
// one of lowest rank, leftmost first, until none is left. Short pieces do just that over a small
// array; long ones keep the pairs in a heap, so that a megabyte of one letter stays n log n.
//
// Most pieces of real text are one token or were seen before; both are answered without merging.
#include "tokenizer/bpe.h"

#include <string.h>

#include "tokenizer/workspace.h"

#define SHORT 48  // symbols that the array version takes
#define GONE (-2) // id of a symbol that was merged into its left neighbour
#define NO_RANK UINT32_MAX

// ---- first symbols ----

// Collects the first symbols of a piece; unknown characters wait in `unk` so that they can be
// fused.
typedef struct symbols {
    const msgl_bpe *bpe;
    msgl_tok_ws *ws;
    int32_t *small; // [SHORT]; NULL once the workspace's array is in use
    size_t n;
    int unk; // an unknown symbol is pending
} symbols;

static int add_symbol(symbols *s, int32_t id)
{
    if (s->small != NULL && s->n < SHORT) {
        s->small[s->n++] = id;
        return 0;
    }
    const size_t cap = s->ws->cap_symbols;
    if (s->n >= cap && msgl__tok_grow((void **)&s->ws->symbols, &s->ws->cap_symbols, s->n + 1,
                                      sizeof(msgl_symbol)) != 0) {
        return MSGL_ENOMEM;
    }
    if (s->small != NULL) {
        for (size_t i = 0; i < s->n; i++) s->ws->symbols[i].id = s->small[i];
        s->small = NULL;
    }
    s->ws->symbols[s->n++].id = id;
    return 0;
}

static int flush_unknown(symbols *s)
{
    const int pending = s->unk;
    s->unk = 0;
    return pending ? add_symbol(s, s->bpe->unk) : 0;
}

// A character that is no token: its bytes as <0xNN> if all of them are tokens, else the unknown
// token, else nothing. A pending unknown stays pending behind the bytes, as in `tokenizers`.
static int add_unknown(symbols *s, const char *p, size_t n)
{
    int all = s->bpe->byte_fallback;
    for (size_t i = 0; i < n && all; i++) all = s->bpe->fallback[(unsigned char)p[i]] >= 0;
    int rc = 0;
    if (all) {
        for (size_t i = 0; i < n && rc == 0; i++) {
            rc = add_symbol(s, s->bpe->fallback[(unsigned char)p[i]]);
        }
        return rc;
    }
    if (s->bpe->unk < 0) return 0;
    if (s->unk && !s->bpe->fuse_unk) rc = flush_unknown(s);
    s->unk = 1;
    return rc;
}

static int add_bytes(symbols *s, const char *p, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const int32_t id = s->bpe->symbol[(unsigned char)p[i]];
        if (id >= 0) {
            if (s->unk) rc = flush_unknown(s);
            if (rc == 0) rc = add_symbol(s, id);
        } else {
            char mapped[4];
            const size_t len = msgl__utf8_put(msgl__byte_char((unsigned char)p[i]), mapped);
            rc = add_unknown(s, mapped, len);
        }
    }
    return rc;
}

static int add_chars(symbols *s, const char *p, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0;) {
        const unsigned char c = (unsigned char)p[i];
        const size_t len = msgl__utf8_len(c);
        const int32_t id =
            len == 1 ? s->bpe->symbol[c] : msgl__strset_get(&s->bpe->vocab, p + i, len);
        if (id >= 0) {
            if (s->unk) rc = flush_unknown(s);
            if (rc == 0) rc = add_symbol(s, id);
        } else {
            rc = add_unknown(s, p + i, len);
        }
        i += len;
    }
    return rc;
}

// ---- merging ----

static size_t merge_short(const msgl_bpe *bpe, int32_t *id, size_t n)
{
    uint32_t rank[SHORT];
    int32_t merged[SHORT];
    for (size_t i = 0; i + 1 < n; i++) {
        const msgl_merge *m = msgl__merge_find(bpe, id[i], id[i + 1]);
        rank[i] = m != NULL ? m->rank : NO_RANK;
        merged[i] = m != NULL ? m->id : -1;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (rank[i] < rank[best]) best = i;
        }
        if (rank[best] == NO_RANK) break;
        id[best] = merged[best];
        const size_t tail = n - best - 2; // symbols behind the merged pair
        memmove(id + best + 1, id + best + 2, tail * sizeof(*id));
        if (tail > 0) {
            memmove(rank + best, rank + best + 1, tail * sizeof(*rank));
            memmove(merged + best, merged + best + 1, tail * sizeof(*merged));
        }
        n--;
        for (size_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const msgl_merge *m = msgl__merge_find(bpe, id[i], id[i + 1]);
            rank[i] = m != NULL ? m->rank : NO_RANK;
            merged[i] = m != NULL ? m->id : -1;
        }
    }
    return n;
}

static void sift_down(msgl_heap_item *h, size_t n, size_t i)
{
    const msgl_heap_item v = h[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && h[child + 1].key < h[child].key) child++;
        if (h[child].key >= v.key) break;
        h[i] = h[child];
    }
    h[i] = v;
}

static int heap_add(const msgl_bpe *bpe, msgl_tok_ws *ws, size_t left, size_t right, int sift)
{
    const msgl_merge *m = msgl__merge_find(bpe, ws->symbols[left].id, ws->symbols[right].id);
    if (m == NULL) return 0;
    if (ws->num_heap == ws->cap_heap && msgl__tok_grow((void **)&ws->heap, &ws->cap_heap,
                                                       ws->num_heap + 1, sizeof(*ws->heap)) != 0) {
        return MSGL_ENOMEM;
    }
    const msgl_heap_item v = {(uint64_t)m->rank << 32 | left, m->id};
    size_t i = ws->num_heap++;
    for (; sift && i > 0 && ws->heap[(i - 1) / 2].key > v.key; i = (i - 1) / 2) {
        ws->heap[i] = ws->heap[(i - 1) / 2];
    }
    ws->heap[i] = v;
    return 0;
}

static int merge_long(const msgl_bpe *bpe, msgl_tok_ws *ws, size_t n)
{
    msgl_symbol *s = ws->symbols;
    int rc = 0;
    ws->num_heap = 0;
    for (size_t i = 0; i < n; i++) {
        s[i].prev = (int32_t)i - 1;
        s[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
        if (i + 1 < n && (rc = heap_add(bpe, ws, i, i + 1, 0)) != 0) return rc;
    }
    for (size_t i = ws->num_heap / 2; i-- > 0;) sift_down(ws->heap, ws->num_heap, i);
    while (ws->num_heap > 0 && rc == 0) {
        const msgl_heap_item top = ws->heap[0];
        ws->heap[0] = ws->heap[--ws->num_heap];
        if (ws->num_heap > 0) sift_down(ws->heap, ws->num_heap, 0);
        const int32_t at = (int32_t)(top.key & UINT32_MAX), next = s[at].next;
        if (s[at].id == GONE || next < 0) continue;
        const msgl_merge *m = msgl__merge_find(bpe, s[at].id, s[next].id);
        if (m == NULL || m->id != top.id) continue; // one of the two has changed since
        s[at].id = top.id;
        s[at].next = s[next].next;
        s[next].id = GONE;
        if (s[at].next >= 0) s[s[at].next].prev = at;
        if (s[at].prev >= 0) rc = heap_add(bpe, ws, (size_t)s[at].prev, (size_t)at, 1);
        if (rc == 0 && s[at].next >= 0) rc = heap_add(bpe, ws, (size_t)at, (size_t)s[at].next, 1);
    }
    return rc;
}

// First symbols, merges, ids. `small` is the array of short pieces.
static int merge_piece(const msgl_bpe *bpe, msgl_tok_ws *ws, const char *p, size_t n, msgl_ids *out)
{
    int32_t small[SHORT];
    symbols s = {.bpe = bpe, .ws = ws, .small = small};
    int rc = bpe->byte_mode ? add_bytes(&s, p, n) : add_chars(&s, p, n);
    if (rc == 0) rc = flush_unknown(&s);
    if (rc != 0) return rc;
    if (s.small != NULL) {
        const size_t m = merge_short(bpe, small, s.n);
        for (size_t i = 0; i < m && rc == 0; i++) rc = msgl__ws_push(ws, out, small[i]);
        return rc;
    }
    rc = merge_long(bpe, ws, s.n);
    for (size_t i = 0; i < s.n && rc == 0; i++) {
        if (ws->symbols[i].id != GONE) rc = msgl__ws_push(ws, out, ws->symbols[i].id);
    }
    return rc;
}

// ---- shortcuts ----

// Whether merging the text of token `id` gives that token alone.
static int is_whole(const msgl_bpe *bpe, msgl_tok_ws *ws, const char *p, size_t n, int32_t id)
{
    const unsigned char known = atomic_load_explicit(&bpe->whole[id], memory_order_relaxed);
    if (known != 0) return known == 1;
    int32_t space[2];
    msgl_ids ids = {.data = space, .cap = 2};
    const size_t limit = ws->id_limit;
    ws->id_limit = 2; // two ids are enough to know; the array never grows
    const int rc = merge_piece(bpe, ws, p, n, &ids);
    ws->id_limit = limit;
    if (rc != 0 && rc != MSGL_ELIMIT) return 0;
    const int whole = rc == 0 && ids.len == 1 && ids.data[0] == id;
    atomic_store_explicit(&bpe->whole[id], whole ? 1 : 2, memory_order_relaxed);
    return whole;
}

static int encode_piece(const msgl_bpe *bpe, msgl_tok_ws *ws, const char *p, size_t n,
                        int ignore_merges, msgl_ids *out)
{
    const uint64_t head = msgl__str_head(p, n), hash = msgl__str_hash(head, p, n);
    const msgl_strset *set = bpe->byte_mode ? &bpe->bytes : &bpe->vocab;
    const int32_t id = msgl__strset_find(set, p, n, head, hash);
    if (id >= 0) {
        if (ignore_merges && !(ws->guard != NULL && ws->guard[id]))
            return msgl__ws_push(ws, out, id);
        if (is_whole(bpe, ws, p, n, id)) return msgl__ws_push(ws, out, id);
    }
    if (n > MSGL_CACHE_KEY) return merge_piece(bpe, ws, p, n, out);
    msgl_cache_entry *e = &ws->cache[hash >> (64 - MSGL_CACHE_BITS)];
    int rc = 0;
    if (e->klen == n && memcmp(e->key, p, n) == 0) {
        for (size_t i = 0; i < e->n && rc == 0; i++) rc = msgl__ws_push(ws, out, e->ids[i]);
        return rc;
    }
    const size_t start = out->len;
    rc = merge_piece(bpe, ws, p, n, out);
    const size_t made = out->len - start;
    if (rc == 0 && made <= MSGL_CACHE_IDS) {
        e->klen = (unsigned char)n;
        e->n = (unsigned char)made;
        memcpy(e->key, p, n);
        if (made > 0) memcpy(e->ids, out->data + start, made * sizeof(*e->ids));
    }
    return rc;
}

static const char mark[3] = {(char)0xe2, (char)0x96, (char)0x81}; // U+2581, SentencePiece's space

// End of the word that starts at p[i]: the first mark behind something that is none.
static size_t word_end(const char *p, size_t n, size_t i)
{
    while (n - i >= 3 && memcmp(p + i, mark, 3) == 0) i += 3;
    const char *hit = memmem(p + i, n - i, mark, 3);
    return hit == NULL ? n : (size_t)(hit - p);
}

int msgl__bpe_encode(const msgl_bpe *bpe, msgl_tok_ws *ws, const char *p, size_t n, msgl_ids *out)
{
    if (!bpe->word_split) return encode_piece(bpe, ws, p, n, bpe->ignore_merges, out);
    if (bpe->ignore_merges) {
        const int32_t id = msgl__strset_get(&bpe->vocab, p, n);
        if (id >= 0 && !(ws->guard != NULL && ws->guard[id])) return msgl__ws_push(ws, out, id);
    }
    int rc = 0;
    for (size_t i = 0, end; i < n && rc == 0; i = end) {
        end = word_end(p, n, i);
        rc = encode_piece(bpe, ws, p + i, end - i, 0, out);
    }
    return rc;
}
