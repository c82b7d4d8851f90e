// SPDX-License-Identifier: Apache-2.0
//
// Family attn at level AVX-512-BF16, for a bf16 pool: q and probabilities are rounded to bf16 and
// multiplied in pairs by vdpbf16ps. V's keys 2 i and 2 i + 1 are unpacked into pairs within 128-bit
// lanes, so of 32 columns the first vector gets 0-3, 8-11, 16-19, 24-27 and the second the rest;
// msgl__write_unpacked_avx512 puts them right.
//
// Items of few rows (decode) read K and V where they are; when several heads follow each other,
// they fetch V into the L2 cache while they read K, and the next head's K while they read V. For
// more rows a tile is first copied: the pool's rows are a power of two apart, so that they share
// few sets of the caches, and V need be unpacked only once. Both ways are the same products and
// sums in the same order.
#include "kernel/x86/attn_avx512_rows.h"
#include "kernel/x86/init.h"

enum { VALUE_ROWS = 8 }; // of a block that are multiplied with copied V at a time

typedef struct bf16_scratch {
    rows_scratch rows; // first: what works on rows only gets this
    bool copied;
    MSGL_ALIGNED(64) uint16_t p[BLOCK][TILE]; // probabilities
    // Copied tile: K as [key][padded dim], then V as [32 columns][pair of keys][2][16 columns][2].
    MSGL_ALIGNED(64) uint16_t kv[];
} bf16_scratch;

static size_t bf16_scratch_size(int head_dim)
{
    return sizeof(bf16_scratch) + (size_t)msgl__attn_padded_dim(head_dim) * TILE * 2 * 2;
}

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
    // Rows that fill up the last four.
    const size_t rows = (size_t)q->work->rows;
    memset((uint16_t *)s->q + rows * (size_t)padded, 0, (-rows & 3) * (size_t)padded * 2);
}

MSGL_INLINE __mmask32 columns_from(int d, int dim)
{
    return dim - d >= 32 ? 0xffffffffu : (1u << (dim - d)) - 1;
}

static uint16_t *copied_values(bf16_scratch *s, int padded)
{
    return s->kv + (size_t)padded * TILE;
}

static void copy_tile(bf16_scratch *s, int dim, int from, int to)
{
    const int padded = msgl__attn_padded_dim(dim);
    const char *const *k = s->rows.k, *const *v = s->rows.v;
    uint16_t *values = copied_values(s, padded);
    for (int key = from; key < to; key += 2) {
        rows_prefetch(k + key + AHEAD, 2, dim * 2);
        rows_prefetch(v + key + AHEAD, 2, dim * 2);
        for (int d = 0; d < dim; d += 32) {
            const __mmask32 m = columns_from(d, dim);
            uint16_t *at = s->kv + (size_t)key * (size_t)padded + d;
            _mm512_storeu_si512(at, _mm512_maskz_loadu_epi16(m, k[key] + d * 2));
            _mm512_storeu_si512(at + padded, _mm512_maskz_loadu_epi16(m, k[key + 1] + d * 2));
            const __m512i x = _mm512_maskz_loadu_epi16(m, v[key] + d * 2);
            const __m512i y = _mm512_maskz_loadu_epi16(m, v[key + 1] + d * 2);
            uint16_t *pair = values + (size_t)d * TILE + key * 32;
            _mm512_store_si512(pair, _mm512_unpacklo_epi16(x, y));
            _mm512_store_si512(pair + 32, _mm512_unpackhi_epi16(x, y));
        }
    }
}

static void bf16_load_keys(const msgl__attn_keys *keys, int rows, void *scratch)
{
    bf16_scratch *s = scratch;
    rows_load_keys(keys, rows, &s->rows);
    s->copied = rows > MSGL_ATTN_FEW_ROWS;
    if (s->copied) copy_tile(s, keys->head_dim, keys->begin & ~15, (keys->end + 15) & ~15);
}

// `bytes` of n rows, from `at` on, into the L2 cache.
MSGL_INLINE void rows_fetch(const char *const *row, int n, size_t at, int bytes)
{
    for (int i = 0; i < n; i++) {
        for (int d = 0; d < bytes; d += 64) _mm_prefetch(row[i] + at + d, _MM_HINT_T1);
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
        const __mmask32 mask = columns_from(d, dim);
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
        if (row == 0) {
            rows_prefetch(s->k + key + AHEAD, step, keys->head_dim * 2);
            if (keys->next_head) rows_fetch(s->v + key, step, 0, keys->head_dim * 2);
        }
        bf16_score_block(s, q, padded, keys->head_dim, row, rows, key);
    }
}

// The same of four rows and the copied tile; 16 keys stay in the L1 cache while all rows pass.
static void copied_scores(bf16_scratch *b, int padded, int item_row, int n, int from, int to)
{
    rows_scratch *s = &b->rows;
    for (int first = from; first < to; first += 16) {
        for (int row = 0; row < n; row += 4) {
            const uint16_t *q = (const uint16_t *)s->q + (size_t)(item_row + row) * (size_t)padded;
            for (int key = first; key < first + 16; key += 4) {
                const uint16_t *k = b->kv + (size_t)key * (size_t)padded;
                __m512 a[16];
#pragma GCC unroll 16
                for (int i = 0; i < 16; i++) a[i] = _mm512_setzero_ps();
                for (int d = 0; d < padded; d += 32) {
                    __m512i vq[4];
#pragma GCC unroll 4
                    for (int r = 0; r < 4; r++) vq[r] = _mm512_loadu_si512(q + r * padded + d);
#pragma GCC unroll 4
                    for (int i = 0; i < 4; i++) {
                        const __m512i vk = _mm512_loadu_si512(k + i * padded + d);
#pragma GCC unroll 4
                        for (int r = 0; r < 4; r++) {
                            a[SLOT(r * 4 + i)] =
                                _mm512_dpbf16_ps(a[SLOT(r * 4 + i)], (__m512bh)vq[r], (__m512bh)vk);
                        }
                    }
                }
                store_scores(s, row, 4, key, reduce_16(a));
            }
        }
    }
}

static void round_probabilities(bf16_scratch *s, int row, int from, int to)
{
    const float *p = s->rows.s[row];
    for (int key = from & ~31; key < to; key += 32) {
        const __m512 a = _mm512_load_ps(p + key), b = _mm512_load_ps(p + key + 16);
        _mm512_store_si512(&s->p[row][key], (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
}

// Probabilities of two keys as a pair in every lane.
MSGL_INLINE __m512i pair_of(const uint16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}

// Columns [d, d + 32 nv) of the output of `rows` rows; the last 32 under a mask.
MSGL_INLINE void bf16_value_block(bf16_scratch *b, int padded, int row, const int rows, int d,
                                  const int nv, __mmask32 last, int from, int to, bool prefetch,
                                  bool next_head)
{
    rows_scratch *s = &b->rows;
    __m512 a[4][8];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int i = 0; i < 2 * nv; i++) a[r][i] = _mm512_setzero_ps();
    }
    for (int key = from; key < to; key += 2) {
        if (prefetch) rows_prefetch(s->v + key + AHEAD, 2, padded * 2);
        if (next_head) rows_fetch(s->k + key, 2, (size_t)padded * 2, padded * 2);
        __m512i p[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) p[r] = pair_of(&b->p[row + r][key]);
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

MSGL_INLINE void bf16_values(bf16_scratch *s, const msgl__attn_keys *keys, int row, const int rows,
                             int from, int to)
{
    const int dim = keys->head_dim, padded = msgl__attn_padded_dim(dim);
    const int wide = rows == 4 ? 2 : 4; // of 32 columns: 16 or fewer accumulators
    int d = 0;
    for (; d + wide * 32 <= dim; d += wide * 32) {
        const bool first = row == 0 && d == 0;
        bf16_value_block(s, padded, row, rows, d, wide, 0xffffffffu, from, to, first,
                         first && keys->next_head);
    }
    for (; d < dim; d += 32) {
        const bool first = row == 0 && d == 0;
        bf16_value_block(s, padded, row, rows, d, 1, columns_from(d, dim), from, to, first,
                         first && keys->next_head);
    }
}

// 32 columns of VALUE_ROWS rows against the copied tile.
static void copied_value_block(bf16_scratch *b, int padded, int row, int d, int from, int to)
{
    const uint16_t *v = copied_values(b, padded) + (size_t)d * TILE;
    __m512 lo[VALUE_ROWS], hi[VALUE_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < VALUE_ROWS; r++) lo[r] = hi[r] = _mm512_setzero_ps();
    for (int key = from; key < to; key += 2) {
        const __m512i v0 = _mm512_load_si512(v + key * 32);
        const __m512i v1 = _mm512_load_si512(v + key * 32 + 32);
#pragma GCC unroll 8
        for (int r = 0; r < VALUE_ROWS; r++) {
            const __m512i p = pair_of(&b->p[row + r][key]);
            lo[r] = _mm512_dpbf16_ps(lo[r], (__m512bh)p, (__m512bh)v0);
            hi[r] = _mm512_dpbf16_ps(hi[r], (__m512bh)p, (__m512bh)v1);
        }
    }
    float *o = b->rows.o + (size_t)row * (size_t)padded + d;
#pragma GCC unroll 8
    for (int r = 0; r < VALUE_ROWS; r++, o += padded) {
        _mm512_storeu_ps(o, lo[r]);
        _mm512_storeu_ps(o + 16, hi[r]);
    }
}

static void few_scores(rows_scratch *s, const msgl__attn_keys *keys, const msgl__attn_block *b,
                       int from, int to)
{
#define SCORES(row, rows) bf16_scores(s, keys, b->row, row, rows, from, to)
    ROWS_IN_TURN(b->n, SCORES);
#undef SCORES
}

static void few_values(bf16_scratch *s, const msgl__attn_keys *keys, const msgl__attn_block *b,
                       int from, int to)
{
#define VALUES(row, rows) bf16_values(s, keys, row, rows, from, to)
    ROWS_IN_TURN(b->n, VALUES);
#undef VALUES
}

static void bf16_tile(const msgl__attn_keys *keys, msgl__attn_block *b, void *scratch)
{
    bf16_scratch *s = scratch;
    const int padded = msgl__attn_padded_dim(keys->head_dim);
    int from, to;
    rows_range(b, &from, &to);
    if (s->copied) {
        copied_scores(s, padded, b->row, b->n, from, to);
    } else {
        few_scores(&s->rows, keys, b, from, to);
    }
    for (int i = 0; i < b->n; i++) {
        rows_softmax(&s->rows, keys, i, b->lo[i], b->hi[i], from, to);
        round_probabilities(s, i, from, to);
    }
    if (s->copied) {
        for (int d = 0; d < padded; d += 32) {
            for (int row = 0; row < b->n; row += VALUE_ROWS) {
                copied_value_block(s, padded, row, d, from, to);
            }
        }
    } else {
        few_values(s, keys, b, from, to);
    }
    b->m = s->rows.m;
    b->l = s->rows.l;
    b->o = s->rows.o;
}

static const msgl__attn_ops BF16_OPS = {.block = BLOCK,
                                        .scratch = bf16_scratch_size,
                                        .load_q = bf16_load_q,
                                        .load_keys = bf16_load_keys,
                                        .tile = bf16_tile,
                                        .fold = msgl__fold_avx512,
                                        .write = msgl__write_unpacked_avx512};

void msgl__attn_init_avx512bf16(msgl_attn_kernels *k)
{
    k->ops[MSGL_BF16] = &BF16_OPS;
}
