// SPDX-License-Identifier: Apache-2.0
//
// AVX-512 scores and values with f32 products for one dtype of the pool; included by attn_avx512.c
// once per dtype with NAME(x), BYTES (of an element) and LOAD(p, d, k): 16 elements from d on as
// f32, under mask k.

MSGL_INLINE void NAME(score_block)(rows_scratch *s, const float *q, int padded, int dim, int row,
                                   const int rows, int key)
{
    const int keys = 16 / rows;
    __m512 a[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = _mm512_setzero_ps();
    for (int d = 0; d < dim; d += 16) {
        const __mmask16 mask = dim - d < 16 ? (__mmask16)((1u << (dim - d)) - 1) : 0xffff;
        __m512 vq[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) vq[r] = _mm512_loadu_ps(q + (size_t)r * (size_t)padded + d);
#pragma GCC unroll 16
        for (int k = 0; k < keys; k++) {
            const __m512 vk = LOAD(s->k[key + k], d, mask);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                a[SLOT(r * keys + k)] = _mm512_fmadd_ps(vq[r], vk, a[SLOT(r * keys + k)]);
            }
        }
    }
    store_scores(s, row, rows, key, reduce_16(a));
}

MSGL_INLINE void NAME(scores)(rows_scratch *s, const msgl__attn_keys *keys, int item_row, int row,
                              const int rows, int from, int to)
{
    const int padded = msgl__attn_padded_dim(keys->head_dim), step = 16 / rows;
    const float *q = s->q + (size_t)(item_row + row) * (size_t)padded;
    for (int key = from; key < to; key += step) {
        if (row == 0) rows_prefetch(s->k + key + AHEAD, step, keys->head_dim * BYTES);
        NAME(score_block)(s, q, padded, keys->head_dim, row, rows, key);
    }
}

// Columns [d, d + 16 nv) of the output of `rows` rows; the last 16 under a mask.
MSGL_INLINE void NAME(value_block)(rows_scratch *s, int padded, int row, const int rows, int d,
                                   const int nv, __mmask16 last, int from, int to, bool prefetch)
{
    __m512 a[4][8];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int i = 0; i < nv; i++) a[r][i] = _mm512_setzero_ps();
    }
    for (int key = from; key < to; key++) {
        const char *v = s->v[key];
        if (prefetch) rows_prefetch(s->v + key + AHEAD, 1, padded * BYTES);
        __m512 p[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) p[r] = _mm512_set1_ps(s->s[row + r][key]);
#pragma GCC unroll 8
        for (int i = 0; i < nv; i++) {
            const __m512 x = LOAD(v, d + i * 16, i == nv - 1 ? last : (__mmask16)0xffff);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) a[r][i] = _mm512_fmadd_ps(p[r], x, a[r][i]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int i = 0; i < nv; i++) {
            _mm512_storeu_ps(s->o + (size_t)(row + r) * (size_t)padded + d + i * 16, a[r][i]);
        }
    }
}

MSGL_INLINE void NAME(values)(rows_scratch *s, const msgl__attn_keys *keys, int row, const int rows,
                              int from, int to)
{
    const int dim = keys->head_dim, padded = msgl__attn_padded_dim(dim);
    const int wide = rows == 4 ? 4 : 8; // vectors: 16 or fewer accumulators
    int d = 0;
    for (; d + wide * 16 <= dim; d += wide * 16) {
        NAME(value_block)(s, padded, row, rows, d, wide, 0xffff, from, to, row == 0 && d == 0);
    }
    for (; d < padded; d += 16) {
        const int left = dim - d;
        const __mmask16 k = left >= 16 ? 0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : 0;
        NAME(value_block)(s, padded, row, rows, d, 1, k, from, to, row == 0 && d == 0);
    }
}

#include "kernel/x86/attn_rows_tile.h"

static void NAME(store)(const float *from, void *to, int n)
{
    for (int i = 0; i < n; i += 16) {
        const __mmask16 k = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : 0xffff;
        SAVE(to, i, k, _mm512_maskz_loadu_ps(k, from + i));
    }
}

static const msgl__attn_ops NAME(ops) = {.block = BLOCK,
                                         .scratch = rows_scratch_size,
                                         .load_q = rows_load_q,
                                         .load_keys = rows_load_keys,
                                         .tile = NAME(tile),
                                         .fold = fold,
                                         .write = write_row,
                                         .store = NAME(store)};
