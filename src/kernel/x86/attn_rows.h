// SPDX-License-Identifier: Apache-2.0
//
// Paged attention with scores as rows of keys, for levels without AMX. A file that includes this
// and attn_rows_tile.inc has defined, for its level and dtype, static inline functions
//     NAME(scores)(s, dim, q, row, rows, key, at)    s->s[row ..] of 16 keys, 4, 2 or 1 rows
//     rows_softmax(s, keys, row, lo, hi, from, to)   s->s[row] to probabilities, m and l
//     NAME(values)(s, dim, row, rows, from, to, at, next)  s->o of 8, 4, 2 or 1 rows
// in which an element's sum runs over head_dim or keys in one order, however many rows are taken at
// a time. from, to and key are multiples of 16; `at` is where the head starts in rows of K and V.
//
// K and V are read once from memory: 16 keys stay in the L1 cache while all rows meet them, and
// what comes next is on its way into L2 all the time that rows are multiplied. Several heads of few
// rows go side by side, first all scores, then all values: rows of one head are a power of two
// apart and share an eighth of the L2 cache, which has no room for K, V and what is fetched of one
// head, but what is fetched for the next head lies in other sets.
#ifndef MSGL_KERNEL_X86_ATTN_ROWS_H
#define MSGL_KERNEL_X86_ATTN_ROWS_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/attributes.h"
#include "kernel/attn_internal.h"

enum {
    TILE = MSGL_ATTN_TILE,
    BLOCK = 16,
    MAX_ROWS = MSGL_ATTN_FEW_ROWS * MSGL_ATTN_FEW_HEADS, // of one tile()
};

static const MSGL_ALIGNED(64) char ZEROS[MSGL_ATTN_FEW_COLUMNS * sizeof(float)];

// Row i of head h is row h * n + i of m, l, s and o.
typedef struct rows_scratch {
    const char *k[TILE], *v[TILE]; // rows of the tile; zeros for what must not be read
    int item_rows;
    bool held; // the tile is in the caches
    float m[MAX_ROWS], l[MAX_ROWS];
    MSGL_ALIGNED(64) float s[MAX_ROWS][TILE]; // scores, then probabilities
    MSGL_ALIGNED(64) float o[MSGL_ATTN_FEW_ROWS * MSGL_ATTN_FEW_COLUMNS];
    MSGL_ALIGNED(64) float q[MSGL_ATTN_MAX_ROWS * MSGL_ATTN_MAX_LATENT]; // or bf16; [row][padded]
} rows_scratch;
_Static_assert(MSGL_ATTN_FEW_COLUMNS >= MSGL_ATTN_MAX_LATENT, "o has no room for a block");

static size_t MSGL_UNUSED rows_scratch_size(int head_dim)
{
    (void)head_dim;
    return sizeof(rows_scratch);
}

static void rows_load_keys(const msgl__attn_keys *keys, int rows, void *scratch)
{
    rows_scratch *s = scratch;
    s->item_rows = rows;
    s->held = keys->held;
    const int first = keys->begin & ~15, last = (keys->end + 15) & ~15;
    for (int i = first; i < last; i++) {
        const bool in = i >= keys->begin && i < keys->end;
        const size_t slot = in ? (size_t)keys->slots[i] : 0;
        s->k[i] = in ? keys->k + slot * keys->slot_bytes : ZEROS;
        s->v[i] = in ? keys->v + slot * keys->v_slot_bytes : ZEROS;
    }
}

static void MSGL_UNUSED rows_load_q(const msgl__attn_query *q, void *scratch)
{
    rows_scratch *s = scratch;
    const size_t dim = (size_t)q->call->head_dim, padded = (size_t)msgl__attn_padded_dim((int)dim);
    const int n = q->work->rows;
    for (int i = 0; i < n * q->heads; i++) {
        float *to = s->q + (size_t)i * padded;
        memcpy(to, msgl__attn_q_row(q, i / n, i % n), dim * sizeof *to);
        memset(to + dim, 0, (padded - dim) * sizeof *to);
    }
}

// STEP(row, rows) for rows [row, n), `row` a variable: four at a time, then two, then one, so that
// `rows` is a constant.
#define ROWS_IN_TURN(row, n, STEP)                                                                 \
    do {                                                                                           \
        for (; row + 4 <= (n); row += 4) STEP(row, 4);                                             \
        for (; row + 2 <= (n); row += 2) STEP(row, 2);                                             \
        for (; row < (n); row++) STEP(row, 1);                                                     \
    } while (0)

// The keys that some row of the block sees, rounded outward to multiples of 16; to == from: none.
MSGL_INLINE void rows_range(const msgl__attn_block *b, int *from, int *to)
{
    int begin = TILE, end = 0;
    for (int i = 0; i < b->n; i++) {
        if (b->lo[i] < b->hi[i] && b->lo[i] < begin) begin = b->lo[i];
        if (b->hi[i] > end) end = b->hi[i];
    }
    *from = begin & ~15;
    *to = end > begin ? (end + 15) & ~15 : *from;
}

// Rows of K or V on their way into the L2 cache beside `work` pieces of work, evenly.
typedef struct rows_fetch {
    msgl__attn_soon rows;
    int64_t work, each, due; // a row is worth `work`, a piece `each`
} rows_fetch;

MSGL_INLINE void rows_fetch_some(rows_fetch *f, int pieces)
{
    msgl__attn_soon *r = &f->rows;
    for (f->due += pieces * f->each; f->due >= f->work && r->begin < r->end; f->due -= f->work) {
        const char *row = r->base + (size_t)r->slots[r->begin++] * r->slot_bytes;
        for (int d = 0; d < r->bytes; d += 64) _mm_prefetch(row + d, _MM_HINT_T1);
    }
}

// What is fetched beside the scores of head h, or beside its values: K of the next head, behind the
// last one V of the first; V of the next head, behind the last one K of the next tile. If this tile
// is held, K and V of the next one. An item's other blocks fetch their shares of it.
static MSGL_UNUSED rows_fetch rows_fetch_beside(const rows_scratch *s, const msgl__attn_keys *keys,
                                                const msgl__attn_block *b, int h, bool scores,
                                                int work)
{
    const bool last = h + 1 == keys->heads;
    msgl__attn_soon r = scores || !s->held ? keys->next_k : keys->next_v;
    if (!s->held && (scores || !last)) {
        const bool of_k = scores && !last;
        r.bytes = of_k ? keys->next_k.bytes : keys->next_v.bytes;
        r.slot_bytes = of_k ? keys->slot_bytes : keys->v_slot_bytes;
        r.base = (of_k ? keys->k : keys->v) + (last ? 0 : (size_t)(h + 1) * (size_t)r.bytes);
        r.slots = keys->slots;
        r.begin = keys->begin;
        r.end = keys->end;
        if (keys->k == keys->v) r.end = r.begin; // V came with K
    }
    const int n = r.end - r.begin, first = r.begin;
    r.begin = first + n * b->row / s->item_rows;
    r.end = first + n * (b->row + b->n) / s->item_rows;
    return (rows_fetch){.rows = r, .work = work, .each = r.end - r.begin};
}

static void rows_results(rows_scratch *s, msgl__attn_block *b)
{
    b->m = s->m;
    b->l = s->l;
    b->o = s->o;
    b->stride = b->n;
}

#define ROWS_OPS(tile_fn, fold_fn, write_fn)                                                       \
    {                                                                                              \
        .block = BLOCK, .many_heads = true, .scratch = rows_scratch_size, .load_q = rows_load_q,   \
        .load_keys = rows_load_keys, .tile = tile_fn, .fold = fold_fn, .write = write_fn           \
    }

#endif
