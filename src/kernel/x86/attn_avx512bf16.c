// SPDX-License-Identifier: Apache-2.0
//
// Family attn at level AVX-512-BF16, for a bf16 pool: q and probabilities are rounded to bf16 and
// multiplied in pairs by vdpbf16ps. V's keys 2 i and 2 i + 1 are unpacked into pairs within 128-bit
// lanes, so of 32 columns the first vector gets 0-3, 8-11, 16-19, 24-27 and the second the rest;
// bf16_write puts them right.
#include "kernel/x86/attn_avx512_rows.h"

#define NAME(x) bf16_##x

static void bf16_load_q(const msgl__attn_query *q, void *scratch)
{
    rows_scratch *s = scratch;
    const int dim = q->call->head_dim, padded = msgl__attn_padded_dim(dim);
    for (int i = 0; i < q->work->rows; i++) {
        const float *from = msgl__attn_q_row(q, 0, i);
        uint16_t *to = (uint16_t *)s->q + (size_t)i * (size_t)padded;
        for (int d = 0; d < padded; d += 32) {
            const int left = dim - d;
            const uint32_t mask = left >= 32 ? 0xffffffffu : (1u << left) - 1;
            const __m512 a = _mm512_maskz_loadu_ps((__mmask16)mask, from + d);
            const __m512 b = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), from + d + 16);
            _mm512_storeu_si512(to + d, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        }
    }
}

MSGL_INLINE void bf16_score_block(rows_scratch *s, const uint16_t *q, int padded, int dim, int row,
                                  const int rows, int key)
{
    const int keys = 16 / rows;
    __m512 a[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = _mm512_setzero_ps();
    for (int d = 0; d < dim; d += 32) {
        const __mmask32 mask = dim - d < 32 ? (1u << (dim - d)) - 1 : 0xffffffffu;
        __m512i vq[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            vq[r] = _mm512_loadu_si512(q + (size_t)r * (size_t)padded + d);
        }
#pragma GCC unroll 16
        for (int k = 0; k < keys; k++) {
            const __m512i vk = _mm512_maskz_loadu_epi16(mask, s->k[key + k] + d * 2);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                a[SLOT(r * keys + k)] =
                    _mm512_dpbf16_ps(a[SLOT(r * keys + k)], (__m512bh)vq[r], (__m512bh)vk);
            }
        }
    }
    store_scores(s, row, rows, key, reduce_16(a));
}

MSGL_INLINE void bf16_scores(rows_scratch *s, const msgl__attn_keys *keys, int item_row, int row,
                             const int rows, int from, int to)
{
    const int padded = msgl__attn_padded_dim(keys->head_dim), step = 16 / rows;
    const uint16_t *q = (const uint16_t *)s->q + (size_t)(item_row + row) * (size_t)padded;
    for (int key = from; key < to; key += step) {
        if (row == 0) rows_prefetch(s->k + key + AHEAD, step, keys->head_dim * 2);
        bf16_score_block(s, q, padded, keys->head_dim, row, rows, key);
    }
}

// Probabilities of keys key and key + 1 as a pair in every lane.
MSGL_INLINE __m512i pair_of(const float *p)
{
    const __m128i two = _mm_castpd_si128(_mm_load_sd((const double *)(const void *)p));
    return _mm512_broadcastd_epi32((__m128i)_mm_cvtneps_pbh(_mm_castsi128_ps(two)));
}

// Columns [d, d + 32 nv) of the output of `rows` rows; the last 32 under a mask.
MSGL_INLINE void bf16_value_block(rows_scratch *s, int padded, int row, const int rows, int d,
                                  const int nv, __mmask32 last, int from, int to, bool prefetch)
{
    __m512 a[4][8];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int i = 0; i < 2 * nv; i++) a[r][i] = _mm512_setzero_ps();
    }
    for (int key = from; key < to; key += 2) {
        if (prefetch) rows_prefetch(s->v + key + AHEAD, 2, padded * 2);
        __m512i p[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) p[r] = pair_of(&s->s[row + r][key]);
#pragma GCC unroll 4
        for (int i = 0; i < nv; i++) {
            const __mmask32 k = i == nv - 1 ? last : 0xffffffffu;
            const __m512i x = _mm512_maskz_loadu_epi16(k, s->v[key] + (d + i * 32) * 2);
            const __m512i y = _mm512_maskz_loadu_epi16(k, s->v[key + 1] + (d + i * 32) * 2);
            const __m512i v0 = _mm512_unpacklo_epi16(x, y), v1 = _mm512_unpackhi_epi16(x, y);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                a[r][2 * i] = _mm512_dpbf16_ps(a[r][2 * i], (__m512bh)p[r], (__m512bh)v0);
                a[r][2 * i + 1] = _mm512_dpbf16_ps(a[r][2 * i + 1], (__m512bh)p[r], (__m512bh)v1);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int i = 0; i < 2 * nv; i++) {
            _mm512_storeu_ps(s->o + (size_t)(row + r) * (size_t)padded + d + i * 16, a[r][i]);
        }
    }
}

MSGL_INLINE void bf16_values(rows_scratch *s, const msgl__attn_keys *keys, int row, const int rows,
                             int from, int to)
{
    const int dim = keys->head_dim, padded = msgl__attn_padded_dim(dim);
    const int wide = rows == 4 ? 2 : 4; // of 32 columns: 16 or fewer accumulators
    int d = 0;
    for (; d + wide * 32 <= dim; d += wide * 32) {
        bf16_value_block(s, padded, row, rows, d, wide, 0xffffffffu, from, to, row == 0 && d == 0);
    }
    for (; d < dim; d += 32) {
        const int left = dim - d;
        const __mmask32 k = left >= 32 ? 0xffffffffu : (1u << left) - 1;
        bf16_value_block(s, padded, row, rows, d, 1, k, from, to, row == 0 && d == 0);
    }
}

#include "kernel/x86/attn_rows_tile.inc"

static void bf16_fold(int n, int padded_dim, float *M, float *L, float *O, const float *m,
                      const float *l, const float *o)
{
    msgl__fold_avx512(n, padded_dim, M, L, O, m, l, o);
}

static void bf16_write(int head_dim, const float *o, float f, float *out)
{
    msgl__write_unpacked_avx512(head_dim, o, f, out);
}

static const msgl__attn_ops BF16_OPS = {.block = BLOCK,
                                        .scratch = rows_scratch_size,
                                        .load_q = bf16_load_q,
                                        .load_keys = rows_load_keys,
                                        .tile = bf16_tile,
                                        .fold = bf16_fold,
                                        .write = bf16_write};

void msgl__attn_init_avx512bf16(msgl_attn_kernels *k)
{
    k->name = "avx512bf16";
    k->ops[MSGL_BF16] = &BF16_OPS;
}
