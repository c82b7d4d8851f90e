// SPDX-License-Identifier: Apache-2.0
//
// The driver of paged attention, the same at every ISA level: hands (work item, KV head) tasks to
// the pool, walks an item's keys tile by tile, folds tiles into the item's state or writes them as
// partials, and lets the last writer of a group fold its partials. K and V are only touched to
// expand tiles of E4M3.
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/attributes.h"
#include "core/paging.h"
#include "core/round.h"
#include "kernel/attn_internal.h"

// Per thread, on a 64-byte border as O in it is; the ISA level's own area follows, on one too.
typedef struct item_scratch {
    float M[MSGL_ATTN_MAX_ROWS], L[MSGL_ATTN_MAX_ROWS];
    // Each row sees keys [from, to): positions of its request, of which first_new is that of the
    // first new token; in a tree positions along the row's path.
    int from[MSGL_ATTN_MAX_ROWS], to[MSGL_ATTN_MAX_ROWS];
    int first_new;
    int lo[MSGL_ATTN_MAX_ROWS], hi[MSGL_ATTN_MAX_ROWS]; // the same in a tile
    int slots[MSGL_ATTN_TILE], next_slots[MSGL_ATTN_TILE];
    MSGL_ALIGNED(64) float O[]; // [MSGL_ATTN_MAX_ROWS, padded dim]
} item_scratch;

// Behind the ISA level's area, if the pool is of E4M3: a tile of one KV head as bf16.
typedef struct expanded_tile {
    int slots[MSGL_ATTN_TILE];        // key i is in row i
    MSGL_ALIGNED(64) uint16_t rows[]; // [MSGL_ATTN_TILE, head_dim] K, then V, [.., v_dim]
} expanded_tile;

typedef struct paged_args {
    const msgl_attn_call *call;
    const msgl__attn_ops *ops;
    void (*expand)(const uint8_t *from, uint16_t *to, int n); // NULL: the pool is taken as it is
    size_t expanded_at; // of an expanded_tile in a thread's scratch
} paged_args;

static size_t own_size(int v_dim)
{
    const size_t n = sizeof(item_scratch) +
                     sizeof(float) * MSGL_ATTN_MAX_ROWS * (size_t)msgl__attn_padded_dim(v_dim);
    return msgl__round_up(n, 64);
}

static const msgl__attn_ops *ops_for(const msgl_attn_kernels *k, msgl_dtype dtype, bool latent)
{
    return latent ? k->latent_ops[dtype] : k->ops[dtype];
}

// V is never wider than K.
static size_t expanded_at(const msgl__attn_ops *ops, int head_dim)
{
    return own_size(head_dim) + msgl__round_up(ops->scratch(head_dim), 64);
}

size_t msgl__attn_scratch_size(const msgl_attn_kernels *k, msgl_dtype dtype, int head_dim,
                               bool latent)
{
    const size_t rows = sizeof(uint16_t) * 2 * MSGL_ATTN_TILE * (size_t)head_dim;
    const size_t expanded =
        dtype == MSGL_E4M3 ? msgl__round_up(sizeof(expanded_tile) + rows, 64) : 0;
    return expanded_at(ops_for(k, dtype, latent), head_dim) + expanded;
}

static const int32_t *pages_of(const msgl_attn_call *c, int req)
{
    return c->pages +
           (c->page_indptr != NULL ? (size_t)c->page_indptr[req] : (size_t)req * c->page_stride);
}

// Slots of positions [tile * MSGL_ATTN_TILE + begin, ... + end), at their offsets in the tile.
static void find_slots(const msgl_attn_call *c, int req, int tile, int begin, int end, int *slots)
{
    msgl__paging_slots(c->page_size, pages_of(c, req), tile * MSGL_ATTN_TILE + begin, end - begin,
                       slots + begin);
}

// The same along a path of new tokens, all of them behind first_new: of the path 0, 2, 5 (bits of
// the word) position first_new + 2 has the slot of first_new + 5.
static void find_path_slots(const msgl_attn_call *c, int req, int first_new, uint64_t path,
                            int tile, int begin, int end, int *slots)
{
    const int32_t *pages = pages_of(c, req);
    for (int at = first_new; at < tile * MSGL_ATTN_TILE + begin; at++) path &= path - 1;
    for (int i = begin; i < end; i++, path &= path - 1) {
        msgl__paging_slots(c->page_size, pages, first_new + MSGL_CTZ64(path), 1, slots + i);
    }
}

static void set_empty(item_scratch *s, int rows, size_t padded_dim)
{
    for (int i = 0; i < rows; i++) {
        s->M[i] = -INFINITY;
        s->L[i] = 0;
    }
    memset(s->O, 0, (size_t)rows * padded_dim * sizeof *s->O);
}

static float *partial_at(const msgl_attn_call *c, int partial, int kv_head)
{
    return c->partials + ((size_t)partial * (size_t)c->num_kv_heads + (size_t)kv_head) *
                             msgl__attn_partial_floats(c->partial_rows, c->v_dim);
}

static size_t padded(const msgl_attn_call *c)
{
    return (size_t)msgl__attn_padded_dim(c->v_dim);
}

// out rows = O / L * out_scale, from row `from` of the state. A row without any visible key has
// L = 0 and gets zeros. Every row passes here once, with all its keys, so a sink joins L here:
// where it is far above M the sum is infinite, and the row zero as it should be.
static void write_out(const paged_args *a, int req, int row, int rows, int kv_head,
                      const item_scratch *state, int from)
{
    const msgl_attn_call *c = a->call;
    const int group = c->num_q_heads / c->num_kv_heads;
    const size_t first = (size_t)c->cu_seqlens_q[req];
    const float *M = state->M + from, *L = state->L + from;
    const float *O = state->O + (size_t)from * padded(c);
    for (int i = 0; i < rows; i++) {
        const size_t token = first + (size_t)((row + i) / group);
        const size_t head = (size_t)kv_head * (size_t)group + (size_t)((row + i) % group);
        const float sink = c->sinks != NULL ? exp2f(c->sinks[head] * (float)M_LOG2E - M[i]) : 0;
        const float f = L[i] == 0 ? 0 : c->out_scale / (L[i] + sink);
        a->ops->write(c->v_dim, O + (size_t)i * padded(c), f,
                      c->out + token * c->ld_out + head * (size_t)c->v_dim);
    }
}

static void write_lse_partial(const msgl_attn_call *c, const msgl_attn_work *w, int kv_head,
                              const item_scratch *state, int from)
{
    const size_t dim = padded(c);
    const float *M = state->M + from, *L = state->L + from;
    const float *O = state->O + (size_t)from * dim;
    float *partial = partial_at(c, w->partial, kv_head);
    for (int i = 0; i < w->rows; i++) {
        const float f = L[i] == 0 ? 0 : 1 / L[i];
        float *o = partial + 2 * c->partial_rows + (size_t)i * dim;
        partial[i] = L[i] == 0 ? -INFINITY : M[i] + log2f(L[i]);
        partial[c->partial_rows + i] = 1;
        for (size_t d = 0; d < dim; d++) o[d] = O[(size_t)i * dim + d] * f;
    }
}

// Results of head `head` of a block, whose first row is row `row` of the partial.
static void write_tile_partial(const msgl_attn_call *c, int partial, int kv_head,
                               const msgl__attn_block *b, int row, int head)
{
    const size_t dim = padded(c), from = (size_t)head * (size_t)b->stride;
    float *p = partial_at(c, partial, kv_head + head);
    memcpy(p + row, b->m + from, (size_t)b->n * sizeof *p);
    memcpy(p + c->partial_rows + row, b->l + from, (size_t)b->n * sizeof *p);
    memcpy(p + 2 * c->partial_rows + (size_t)row * dim, b->o + from * dim,
           (size_t)b->n * dim * sizeof *p);
}

static void write_empty_partial(const msgl_attn_call *c, int partial, int rows, int kv_head)
{
    float *p = partial_at(c, partial, kv_head);
    for (int i = 0; i < rows; i++) p[i] = -INFINITY;
    memset(p + c->partial_rows, 0, (size_t)rows * sizeof *p);
    memset(p + 2 * c->partial_rows, 0, (size_t)rows * padded(c) * sizeof *p);
}

// Both kinds of partials fold by the same rule: an LSE partial is (m = lse, l = 1, o).
static void fold_group(const paged_args *a, const msgl_attn_group *g, int kv_head, item_scratch *s)
{
    const msgl_attn_call *c = a->call;
    const size_t dim = padded(c);
    set_empty(s, g->rows, dim);
    for (int i = 0; i < g->num_partials; i++) {
        const float *p = partial_at(c, g->partial + i, kv_head);
        a->ops->fold(g->rows, (int)dim, s->M, s->L, s->O, p, p + c->partial_rows,
                     p + 2 * c->partial_rows);
    }
    write_out(a, g->req, g->row, g->rows, kv_head, s, 0);
}

// The first key that a query at position pos may see.
static int first_key(const msgl_attn_call *c, int pos)
{
    const int from = c->window >= 0 && pos > c->window ? pos - c->window : 0;
    const int chunk = c->chunk > 0 ? pos / c->chunk * c->chunk : 0;
    return from > chunk ? from : chunk;
}

// The path of new token `token` of a request: itself and its ancestors among the new tokens.
static uint64_t path_of(const msgl_attn_call *c, int req, int token)
{
    return c->tree[c->cu_seqlens_q[req] + token];
}

// The keys that row i, new token `token` of its request, sees. In a tree its position is that of
// its path's end.
static void see_causal(const msgl_attn_call *c, int req, int token, int i, item_scratch *s)
{
    const int before = c->tree != NULL ? MSGL_POPCOUNT64(path_of(c, req, token)) - 1 : token;
    const int pos = s->first_new + before;
    s->from[i] = first_key(c, pos);
    s->to[i] = pos + 1;
}

// The same of a token that sees those behind it.
static void see_both_ways(const msgl_attn_call *c, int req, int token, int i, item_scratch *s)
{
    const int pos = s->first_new + token, len = c->seqlens_k[req];
    s->from[i] = first_key(c, pos);
    s->to[i] = c->window >= 0 && c->window < len - 1 - pos ? pos + c->window + 1 : len;
}

// The offsets of a tile that some row of [first, last) sees.
static void seen_by(const item_scratch *s, int first, int last, int *begin, int *end)
{
    *begin = MSGL_ATTN_TILE;
    *end = 0;
    for (int i = first; i < last; i++) {
        if (s->lo[i] < s->hi[i] && s->lo[i] < *begin) *begin = s->lo[i];
        if (s->hi[i] > *end) *end = s->hi[i];
    }
    if (*end == 0) *begin = 0;
}

// The offsets of a tile that row i of the item may see, [lo, hi).
static void visible(const msgl_attn_work *w, int tile, item_scratch *s)
{
    const int base = tile * MSGL_ATTN_TILE;
    for (int i = 0; i < w->rows; i++) {
        int from = s->from[i] > w->kv_begin ? s->from[i] : w->kv_begin;
        int to = s->to[i] < w->kv_end ? s->to[i] : w->kv_end;
        from = from > base ? from - base : 0;
        to = to - base < MSGL_ATTN_TILE ? to - base : MSGL_ATTN_TILE;
        if (from >= to) from = to = 0;
        s->lo[i] = from;
        s->hi[i] = to;
    }
}

static expanded_tile *expanded_of(const paged_args *a, item_scratch *s)
{
    return (expanded_tile *)(void *)((char *)s + a->expanded_at);
}

// The visible keys of a tile of E4M3, one KV head of them, as a tile of bf16 in `to`. Those to come
// in the pool are fetched a few rows ahead.
static void expand_tile(const paged_args *a, const msgl__attn_keys *keys, expanded_tile *to,
                        msgl__attn_keys *out)
{
    enum { AHEAD = 12 };
    const msgl_attn_call *c = a->call;
    const int dim = c->head_dim, v_dim = c->v_dim;
    uint16_t *v = c->latent ? to->rows : to->rows + MSGL_ATTN_TILE * (size_t)dim;
    for (int i = keys->begin; i < keys->end; i++) {
        const size_t slot = (size_t)keys->slots[i];
        if (i + AHEAD < keys->end) {
            const size_t next = (size_t)keys->slots[i + AHEAD];
            const char *k = keys->k + next * keys->slot_bytes;
            for (int d = 0; d < dim; d += 64) __builtin_prefetch(k + d);
            for (int d = 0; d < v_dim && !c->latent; d += 64) {
                __builtin_prefetch(keys->v + next * keys->v_slot_bytes + d);
            }
        }
        to->slots[i] = i;
        a->expand((const uint8_t *)keys->k + slot * keys->slot_bytes, to->rows + (size_t)(i * dim),
                  dim);
        if (c->latent) continue;
        a->expand((const uint8_t *)keys->v + slot * keys->v_slot_bytes, v + (size_t)(i * v_dim),
                  v_dim);
    }
    *out = *keys;
    out->k = (const char *)to->rows;
    out->v = (const char *)v;
    out->slot_bytes = (size_t)dim * sizeof *v;
    out->v_slot_bytes = c->latent ? out->slot_bytes : (size_t)v_dim * sizeof *v;
    out->slots = to->slots;
    out->held = true;
    out->prefetched = MSGL_ATTN_TILE;
}

// The partial of its own that a tile of the item has; -1: it goes into the item's state.
static int partial_of(const msgl_attn_call *c, const msgl_attn_work *w, int tile)
{
    const bool to_partials = w->partial >= 0 && c->partial_kind == MSGL_ATTN_PARTIAL_TILE;
    return to_partials ? w->partial + tile - w->kv_begin / MSGL_ATTN_TILE : -1;
}

// Of the item the `rows` rows from `first` on, which are those that load_q has brought, against a
// tile: into partial `partial` or, if it is -1, the item's state.
static void run_blocks(const paged_args *a, const msgl__attn_query *q, int partial, int first,
                       int rows, const msgl__attn_keys *keys, item_scratch *s, void *isa)
{
    const size_t dim = padded(a->call);
    a->ops->load_keys(keys, rows, isa);
    for (int row = 0; row < rows; row += a->ops->block) {
        const int at = first + row, n = rows - row < a->ops->block ? rows - row : a->ops->block;
        msgl__attn_block b = {.row = row, .n = n, .lo = s->lo + at, .hi = s->hi + at};
        a->ops->tile(keys, &b, isa);
        for (int h = 0; h < keys->heads; h++) {
            const size_t from = (size_t)h * (size_t)b.stride;
            const size_t to = (size_t)h * (size_t)q->work->rows + (size_t)at;
            if (partial >= 0) {
                write_tile_partial(a->call, partial, q->kv_head, &b, at, h);
            } else {
                a->ops->fold(n, (int)dim, s->M + to, s->L + to, s->O + to * dim, b.m + from,
                             b.l + from, b.o + from * dim);
            }
        }
    }
}

static void run_tile(const paged_args *a, const msgl__attn_query *q, int tile,
                     const msgl__attn_keys *keys, item_scratch *s, void *isa)
{
    const int partial = partial_of(a->call, q->work, tile);
    msgl__attn_keys bf16;
    if (keys->begin == keys->end) { // nobody sees it: neutral, but a partial has to say so
        for (int h = 0; h < keys->heads && partial >= 0; h++) {
            write_empty_partial(a->call, partial, q->work->rows, q->kv_head + h);
        }
        return;
    }
    if (a->expand != NULL) expand_tile(a, keys, expanded_of(a, s), &bf16);
    run_blocks(a, q, partial, 0, q->work->rows, a->expand != NULL ? &bf16 : keys, s, isa);
}

// How many rows of the item from `first` on are of tokens of which each is the child of the one
// before; *path: the last one's, of which each sees as much as it may.
static int chain_rows(const msgl_attn_call *c, const msgl_attn_work *w, int first, uint64_t *path)
{
    const int group = c->num_q_heads / c->num_kv_heads;
    int token = (w->row + first) / group;
    *path = path_of(c, w->req, token);
    for (;; token++) {
        const int end = (token + 1) * group - w->row;
        if (end >= w->rows) return w->rows - first;
        const uint64_t next = path_of(c, w->req, token + 1);
        if (next != (*path | (uint64_t)1 << (token + 1))) return end - first;
        *path = next;
    }
}

static msgl__attn_keys part_of(const msgl__attn_keys *keys, int begin, int end)
{
    msgl__attn_keys part = *keys;
    part.begin = begin;
    part.end = end;
    return part;
}

// A tile in which new tokens of a tree may be. Each chain of the item's tokens gets the keys that
// it would have if its path were the sequence, at the same offsets, so that its bits are those of
// such steps. Keys before the new tokens, up to offset `old`, are found and expanded once.
static void run_paths(const paged_args *a, const msgl__attn_query *q, int tile,
                      const msgl__attn_keys *keys, item_scratch *s, void *isa)
{
    const msgl_attn_call *c = a->call;
    const msgl_attn_work *w = q->work;
    const int partial = partial_of(c, w, tile);
    int old = s->first_new - tile * MSGL_ATTN_TILE;
    old = old < keys->begin ? keys->begin : old < keys->end ? old : keys->end;
    for (int h = 0; h < keys->heads && partial >= 0; h++) {
        write_empty_partial(c, partial, w->rows, q->kv_head + h);
    }
    msgl__attn_keys seen = part_of(keys, keys->begin, old), bf16;
    if (a->expand != NULL) expand_tile(a, &seen, expanded_of(a, s), &bf16);
    for (int first = 0, rows; first < w->rows; first += rows) {
        uint64_t path;
        rows = chain_rows(c, w, first, &path);
        seen_by(s, first, first + rows, &seen.begin, &seen.end);
        if (seen.begin == seen.end) continue;
        const int from = seen.begin > old ? seen.begin : old;
        find_path_slots(c, w->req, s->first_new, path, tile, from, seen.end, s->slots);
        if (a->expand != NULL) {
            const msgl__attn_keys added = part_of(&seen, from, seen.end);
            expand_tile(a, &added, expanded_of(a, s), &bf16);
            bf16.begin = seen.begin;
        }
        const msgl_attn_work own = {.req = w->req, .row = w->row + first, .rows = rows};
        msgl__attn_query own_q = *q;
        own_q.work = &own;
        a->ops->load_q(&own_q, isa);
        run_blocks(a, q, partial, first, rows, a->expand != NULL ? &bf16 : &seen, s, isa);
        // The first one has had the tile, and what comes next, brought into the caches.
        seen.held = true;
        seen.prefetched = MSGL_ATTN_TILE;
        seen.next_k.end = seen.next_k.begin;
        seen.next_v.end = seen.next_v.begin;
    }
}

// Keys [begin, end) of the tile in s->next_slots: what comes next. more: of the heads behind these.
// Where V lies in K, it comes with it.
static void set_next(const paged_args *a, int begin, int end, bool more, const item_scratch *s,
                     msgl__attn_keys *keys)
{
    const msgl_attn_call *c = a->call;
    const size_t elem = msgl__dtype_size(c->dtype), heads = more ? (size_t)keys->heads : 0;
    const size_t k_bytes = (size_t)c->head_dim * elem, v_bytes = (size_t)c->v_dim * elem;
    keys->next_k = keys->next_v = (msgl__attn_soon){.base = keys->k + heads * k_bytes,
                                                    .slots = s->next_slots,
                                                    .slot_bytes = keys->slot_bytes,
                                                    .begin = begin,
                                                    .end = end,
                                                    .bytes = (int)k_bytes};
    keys->next_v.base = keys->v + heads * v_bytes;
    keys->next_v.slot_bytes = keys->v_slot_bytes;
    keys->next_v.bytes = (int)v_bytes;
    if (c->latent) keys->next_v.end = begin;
}

// The tiles of an item that may have visible keys, one by one. more: the next KV heads' follow.
static void run_tiles(const paged_args *a, const msgl__attn_query *q, bool more,
                      msgl__attn_keys *keys, item_scratch *s, void *isa)
{
    const msgl_attn_call *c = a->call;
    const msgl_attn_work *w = q->work;
    const bool skip =
        w->partial < 0 || c->partial_kind == MSGL_ATTN_PARTIAL_LSE2; // else empty tiles count
    int first = w->kv_end;
    for (int i = 0; i < w->rows; i++) first = s->from[i] < first ? s->from[i] : first;
    if (!skip || first < w->kv_begin) first = w->kv_begin;
    const int last = msgl__ceil_div(w->kv_end, MSGL_ATTN_TILE);
    keys->slots = s->slots;
    for (int tile = first / MSGL_ATTN_TILE; tile < last; tile++) {
        visible(w, tile, s);
        seen_by(s, 0, w->rows, &keys->begin, &keys->end);
        find_slots(c, w->req, tile, keys->begin, keys->end, s->slots);
        const bool wraps = tile + 1 == last && more;
        const int next = wraps ? first / MSGL_ATTN_TILE : tile + 1;
        const int begin = wraps ? first % MSGL_ATTN_TILE : 0;
        const int left = w->kv_end - next * MSGL_ATTN_TILE;
        const int end = left < begin ? begin : left < MSGL_ATTN_TILE ? left : MSGL_ATTN_TILE;
        find_slots(c, w->req, next, begin, end, s->next_slots);
        set_next(a, begin, end, wraps, s, keys);
        if (c->tree != NULL && (tile + 1) * MSGL_ATTN_TILE > s->first_new) {
            run_paths(a, q, tile, keys, s, isa);
        } else {
            run_tile(a, q, tile, keys, s, isa);
        }
        keys->prefetched = end;
    }
}

// An item for KV heads [kv_head, kv_head + heads); more: the same for the next ones follows.
static void run_item(const paged_args *a, const msgl_attn_work *w, int kv_head, int heads,
                     bool more, item_scratch *s, void *isa)
{
    const msgl_attn_call *c = a->call;
    const size_t elem = msgl__dtype_size(c->dtype), dim = (size_t)c->head_dim;
    const size_t v_dim = c->latent ? dim : (size_t)c->v_dim; // between heads of V
    const int group = c->num_q_heads / c->num_kv_heads;
    const int q_first = c->cu_seqlens_q[w->req];
    msgl__attn_query q = {.call = c, .kv_head = kv_head, .heads = heads};
    const float *first_q = c->q + (size_t)q_first * c->ld_q + (size_t)kv_head * (size_t)group * dim;
    msgl__attn_keys keys = {.k = (const char *)c->k + (size_t)kv_head * dim * elem,
                            .v = (const char *)c->v + (size_t)kv_head * v_dim * elem,
                            .heads = heads,
                            .slot_bytes = (size_t)c->num_kv_heads * dim * elem,
                            .v_slot_bytes = (size_t)c->num_kv_heads * v_dim * elem,
                            .head_dim = c->head_dim,
                            .v_dim = c->v_dim,
                            .scale = c->scale,
                            .softcap = c->softcap};
    set_empty(s, w->rows * heads, padded(c));
    s->first_new = c->seqlens_k[w->req] - (c->cu_seqlens_q[w->req + 1] - q_first);
    for (int i = 0; i < w->rows; i++) {
        (c->bidirectional ? see_both_ways : see_causal)(c, w->req, (w->row + i) / group, i, s);
    }
    int32_t at[MSGL_ATTN_RANGES];
    msgl__attn_ranges(c->dual_len, s->first_new + w->row / group, at);
    for (int i = 0; i < MSGL_ATTN_RANGES; i++) {
        msgl_attn_work piece = *w;
        if (piece.kv_begin < at[i]) piece.kv_begin = at[i];
        if (i + 1 < MSGL_ATTN_RANGES && piece.kv_end > at[i + 1]) piece.kv_end = at[i + 1];
        if (piece.kv_begin >= piece.kv_end) continue;
        q.work = &piece;
        q.q = first_q + (size_t)(MSGL_ATTN_RANGES - 1 - i) * c->q_next;
        a->ops->load_q(&q, isa);
        const bool whole = piece.kv_begin == w->kv_begin && piece.kv_end == w->kv_end;
        run_tiles(a, &q, more && whole, &keys, s, isa);
    }
    for (int h = 0; h < heads; h++) {
        if (w->partial < 0) {
            write_out(a, w->req, w->row, w->rows, kv_head + h, s, h * w->rows);
        } else if (c->partial_kind == MSGL_ATTN_PARTIAL_LSE2) {
            write_lse_partial(c, w, kv_head + h, s, h * w->rows);
        }
    }
}

static void run_task(void *arg, int task, int worker)
{
    const paged_args *a = arg;
    const msgl_attn_call *c = a->call;
    const int ranges = c->num_kv_heads / c->heads_per_task;
    const msgl_attn_work *w = &c->works[task / ranges];
    const int kv_head = task % ranges * c->heads_per_task;
    if (w->rows == 0) return; // padding of a captured plan
    item_scratch *s = (item_scratch *)(void *)(c->scratch + (size_t)worker * c->scratch_stride);
    void *isa = (char *)s + own_size(c->v_dim);
    const int heads = a->ops->many_heads && a->expand == NULL ? c->heads_per_task : 1;
    for (int h = 0; h < c->heads_per_task; h += heads) {
        run_item(a, w, kv_head + h, heads, h + heads < c->heads_per_task, s, isa);
    }
    if (w->partial < 0) return;
    const msgl_attn_group *g = &c->groups[w->group];
    atomic_int *pending = &c->pending[(size_t)w->group * (size_t)c->num_kv_heads + (size_t)kv_head];
    if (atomic_fetch_add_explicit(pending, 1, memory_order_acq_rel) + 1 < g->num_works) return;
    atomic_store_explicit(pending, 0, memory_order_relaxed);
    for (int h = 0; h < c->heads_per_task; h++) fold_group(a, g, kv_head + h, s);
}

void msgl__attn_paged(const msgl_attn_kernels *k, msgl_exec *x, const msgl_attn_call *c)
{
    paged_args a = {.call = c, .ops = ops_for(k, c->dtype, c->latent)};
    if (c->dtype == MSGL_E4M3) {
        a.expand = k->expand;
        a.expanded_at = expanded_at(a.ops, c->head_dim);
    }
    msgl__pool_run(x->pool, c->num_works * (c->num_kv_heads / c->heads_per_task), run_task, &a);
}
