// SPDX-License-Identifier: Apache-2.0
//
// AVX2 scores and values for one dtype of the pool; included by attn_avx2.c once per dtype with
// NAME(x), BYTES (of an element), LOAD(p, d) and SAVE(p, d, x): 8 elements from d on as f32.

MSGL_INLINE void NAME(score_block)(rows_scratch *s, const float *q, int padded, int dim, int row,
                                   const int rows, int key)
{
    const int keys = 8 / rows;
    __m256 a[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) a[i] = _mm256_setzero_ps();
    for (int d = 0; d < dim; d += 8) {
        __m256 vq[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) vq[r] = _mm256_loadu_ps(q + (size_t)r * (size_t)padded + d);
#pragma GCC unroll 8
        for (int k = 0; k < keys; k++) {
            const __m256 vk = LOAD(s->k[key + k], d);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                a[SLOT(r * keys + k)] = _mm256_fmadd_ps(vq[r], vk, a[SLOT(r * keys + k)]);
            }
        }
    }
    MSGL_ALIGNED(32) float x[8];
    _mm256_store_ps(x, reduce_8(a));
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int k = 0; k < keys; k++) s->s[row + r][key + k] = x[r * keys + k];
    }
}

MSGL_INLINE void NAME(scores)(rows_scratch *s, const msgl__attn_keys *keys, int item_row, int row,
                              const int rows, int from, int to)
{
    const int padded = msgl__attn_padded_dim(keys->head_dim), step = 8 / rows;
    const float *q = s->q + (size_t)(item_row + row) * (size_t)padded;
    for (int key = from; key < to; key += step) {
        if (row == 0) rows_prefetch(s->k + key + AHEAD, step, keys->head_dim * BYTES);
        NAME(score_block)(s, q, padded, keys->head_dim, row, rows, key);
    }
}

// Columns [d, d + 8 nv) of the output of `rows` rows.
MSGL_INLINE void NAME(value_block)(rows_scratch *s, int padded, int row, const int rows, int d,
                                   const int nv, int from, int to, bool prefetch)
{
    __m256 a[4][4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < nv; i++) a[r][i] = _mm256_setzero_ps();
    }
    for (int key = from; key < to; key++) {
        const char *v = s->v[key];
        if (prefetch) rows_prefetch(s->v + key + AHEAD, 1, padded * BYTES);
        __m256 x[4];
#pragma GCC unroll 4
        for (int i = 0; i < nv; i++) x[i] = LOAD(v, d + i * 8);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const __m256 p = _mm256_broadcast_ss(&s->s[row + r][key]);
#pragma GCC unroll 4
            for (int i = 0; i < nv; i++) a[r][i] = _mm256_fmadd_ps(p, x[i], a[r][i]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < nv; i++) {
            _mm256_storeu_ps(s->o + (size_t)(row + r) * (size_t)padded + d + i * 8, a[r][i]);
        }
    }
}

MSGL_INLINE void NAME(values)(rows_scratch *s, const msgl__attn_keys *keys, int row, const int rows,
                              int from, int to)
{
    const int dim = keys->head_dim, padded = msgl__attn_padded_dim(dim);
    const int wide = rows == 4 ? 2 : 4; // vectors: 8 or fewer accumulators
    int d = 0;
    for (; d + wide * 8 <= dim; d += wide * 8) {
        NAME(value_block)(s, padded, row, rows, d, wide, from, to, row == 0 && d == 0);
    }
    for (; d < dim; d += 8) {
        NAME(value_block)(s, padded, row, rows, d, 1, from, to, row == 0 && d == 0);
    }
    for (int r = row; r < row + rows; r++) {
        memset(s->o + (size_t)r * (size_t)padded + dim, 0, (size_t)(padded - dim) * sizeof(float));
    }
}

#include "kernel/x86/attn_rows_tile.h"

// n is a multiple of 8: head_dim is.
static void NAME(store)(const float *from, void *to, int n)
{
    for (int i = 0; i < n; i += 8) SAVE(to, i, _mm256_loadu_ps(from + i));
}

static const msgl__attn_ops NAME(ops) = {.block = BLOCK,
                                         .scratch = rows_scratch_size,
                                         .load_q = rows_load_q,
                                         .load_keys = rows_load_keys,
                                         .tile = NAME(tile),
                                         .fold = fold,
                                         .write = write_row,
                                         .store = NAME(store)};
