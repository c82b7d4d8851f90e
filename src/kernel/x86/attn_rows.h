// SPDX-License-Identifier: Apache-2.0
//
// Paged attention with scores as rows of keys, for levels without AMX. A file that includes this
// has defined, for its level and dtype, static inline functions
//     NAME(scores)(s, keys, item_row, row, rows, from, to)  s->s[row ..] for 4, 2 or 1 rows
//     rows_softmax(s, keys, row, lo, hi, from, to)          s->s[row] to probabilities, m and l
//     NAME(values)(s, keys, row, rows, from, to)            s->o of those rows
// in which an element's sum runs over head_dim or keys in one order, however many rows are taken at
// a time. from and to are multiples of 16.
#ifndef MSGL_KERNEL_X86_ATTN_ROWS_H
#define MSGL_KERNEL_X86_ATTN_ROWS_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/attributes.h"
#include "kernel/attn_internal.h"

enum { TILE = MSGL_ATTN_TILE, BLOCK = 16, AHEAD = 16 };

static const MSGL_ALIGNED(64) char ZEROS[MSGL_ATTN_MAX_LATENT * 4];

typedef struct rows_scratch {
    const char *k[TILE + AHEAD], *v[TILE + AHEAD]; // rows of the tile; zeros for what must not be
                                                   // read
    float m[BLOCK], l[BLOCK];
    MSGL_ALIGNED(64) float s[BLOCK][TILE]; // scores, then probabilities
    MSGL_ALIGNED(64) float o[BLOCK * MSGL_ATTN_MAX_LATENT];
    MSGL_ALIGNED(64) float q[MSGL_ATTN_MAX_ROWS * MSGL_ATTN_MAX_LATENT]; // or bf16; [row][padded]
} rows_scratch;

static size_t MSGL_UNUSED rows_scratch_size(int head_dim)
{
    (void)head_dim;
    return sizeof(rows_scratch);
}

static void rows_load_keys(const msgl__attn_keys *keys, int rows, void *scratch)
{
    rows_scratch *s = scratch;
    (void)rows;
    const int first = keys->begin & ~15, last = (keys->end + 15) & ~15;
    for (int i = first; i < last + AHEAD; i++) {
        const bool in = i >= keys->begin && i < keys->end;
        const size_t at = in ? (size_t)keys->slots[i] * keys->slot_bytes : 0;
        s->k[i] = in ? keys->k + at : ZEROS;
        s->v[i] = in ? keys->v + at : ZEROS;
    }
}

static void MSGL_UNUSED rows_load_q(const msgl__attn_query *q, void *scratch)
{
    rows_scratch *s = scratch;
    const size_t dim = (size_t)q->call->head_dim, padded = (size_t)msgl__attn_padded_dim((int)dim);
    for (int i = 0; i < q->work->rows; i++) {
        float *to = s->q + (size_t)i * padded;
        memcpy(to, msgl__attn_q_row(q, 0, i), dim * sizeof *to);
        memset(to + dim, 0, (padded - dim) * sizeof *to);
    }
}

// STEP(row, rows) for n rows: four at a time, then two, then one, so that `rows` is a constant.
#define ROWS_IN_TURN(n, STEP)                                                                      \
    do {                                                                                           \
        int row = 0;                                                                               \
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

// Rows [first, first + n) of a key array, some keys before they are read.
MSGL_INLINE void rows_prefetch(const char *const *row, int n, int bytes)
{
    for (int i = 0; i < n; i++) {
        for (int d = 0; d < bytes; d += 64) _mm_prefetch(row[i] + d, _MM_HINT_T0);
    }
}

#endif
