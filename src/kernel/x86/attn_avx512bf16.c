// SPDX-License-Identifier: Apache-2.0
//
// Family attn at level AVX-512-BF16, for a bf16 pool: q and probabilities are rounded to bf16 and
// multiplied in pairs by vdpbf16ps. V's keys 2 i and 2 i + 1 are unpacked into pairs within 128-bit
// lanes, so of 32 columns the first vector gets 0-3, 8-11, 16-19, 24-27 and the second the rest;
// msgl__write_unpacked_avx512 puts them right.
//
// Items of few rows (answers, drafts) read K and V where they are. For more rows a tile is first
// copied: the pool's rows are a power of two apart, so that they share few sets of the caches, and
// V need be unpacked only once. Both ways are the same products and sums in the same order.
#include "core/round.h"
#include "kernel/x86/attn_avx512_rows.h"
#include "kernel/x86/init.h"

#define NAME(x) bf16_##x
#define Q uint16_t
#define VECTOR 32
#define VALUE_ROWS 8
#define FINISH round_probabilities

// Probabilities are in the place of scores, each row at the beginning of its floats.
typedef struct bf16_scratch {
    rows_scratch rows; // first: what works on rows only gets this
    // Copied tile: K as [key][padded dim], then V as [32 columns][pair of keys][2][16 columns][2].
    uint16_t *values; // the latter
    bool copied;
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
    const int n = q->work->rows;
    for (int i = 0; i < n * q->heads; i++) {
        const float *from = msgl__attn_q_row(q, i / n, i % n);
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

MSGL_INLINE __mmask32 columns_from(int d, int dim)
{
    return dim - d >= 32 ? 0xffffffffu : (1u << (dim - d)) - 1;
}

static void copy_tile(bf16_scratch *s, int dim, int v_dim, int from, int to)
{
    const int padded = msgl__attn_padded_dim(dim);
    const char *const *k = s->rows.k, *const *v = s->rows.v;
    s->values = s->kv + (size_t)padded * TILE;
    for (int key = from; key < to; key += 2) {
        for (int d = 0; d < dim; d += 32) {
            const __mmask32 m = columns_from(d, dim);
            uint16_t *at = s->kv + (size_t)key * (size_t)padded + d;
            _mm512_storeu_si512(at, _mm512_maskz_loadu_epi16(m, k[key] + d * 2));
            _mm512_storeu_si512(at + padded, _mm512_maskz_loadu_epi16(m, k[key + 1] + d * 2));
        }
        for (int d = 0; d < v_dim; d += 32) {
            const __mmask32 m = columns_from(d, v_dim);
            const __m512i x = _mm512_maskz_loadu_epi16(m, v[key] + d * 2);
            const __m512i y = _mm512_maskz_loadu_epi16(m, v[key + 1] + d * 2);
            uint16_t *pair = s->values + (size_t)d * TILE + key * 32;
            _mm512_store_si512(pair, _mm512_unpacklo_epi16(x, y));
            _mm512_store_si512(pair + 32, _mm512_unpackhi_epi16(x, y));
        }
    }
    for (int key = from; key < to; key++) {
        s->rows.k[key] = (const char *)(s->kv + (size_t)key * (size_t)padded);
    }
}

static void bf16_load_keys(const msgl__attn_keys *keys, int rows, void *scratch)
{
    bf16_scratch *s = scratch;
    rows_load_keys(keys, rows, &s->rows);
    s->copied = rows > MSGL_ATTN_FEW_ROWS;
    if (!s->copied) return;
    copy_tile(s, keys->head_dim, keys->v_dim, keys->begin & ~15, (keys->end + 15) & ~15);
    s->rows.held = true;
}

// Columns [d, d + 32) of `rows` rows of q times those of 16 / rows keys, under a mask.
MSGL_INLINE void score_step(const char *const *k, const uint16_t *q, int padded, int d,
                            __mmask32 mask, size_t at, const int rows, __m512 a[16])
{
    const int keys = 16 / rows;
    __m512i vq[4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        vq[r] = _mm512_loadu_si512(q + (size_t)r * (size_t)padded + d);
    }
#pragma GCC unroll 16
    for (int i = 0; i < keys; i++) {
        const __m512i vk = _mm512_maskz_loadu_epi16(mask, k[i] + at + d * 2);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            a[SLOT(r * keys + i)] =
                _mm512_dpbf16_ps(a[SLOT(r * keys + i)], (__m512bh)vq[r], (__m512bh)vk);
        }
    }
}

// Rows [row, row + rows) of q against 16 keys, whose K starts `at` bytes into their rows.
MSGL_INLINE void bf16_scores(rows_scratch *s, int dim, const uint16_t *q, int row, const int rows,
                             int key, size_t at)
{
    const int keys = 16 / rows, padded = msgl__attn_padded_dim(dim);
    q += (size_t)row * (size_t)padded;
    for (const int end = key + 16; key < end; key += keys) {
        __m512 a[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) a[i] = _mm512_setzero_ps();
        int d = 0;
        for (; d + 32 <= dim; d += 32)
            score_step(s->k + key, q, padded, d, 0xffffffffu, at, rows, a);
        if (d < dim) score_step(s->k + key, q, padded, d, columns_from(d, dim), at, rows, a);
        store_scores(s, row, rows, key, reduce_16(a));
    }
}

// Reads of a row stay ahead of what is written over it.
static void round_probabilities(float *p, int from, int to)
{
    for (int key = from & ~31; key < to; key += 32) {
        const __m512 a = _mm512_load_ps(p + key), b = _mm512_load_ps(p + key + 16);
        _mm512_store_si512((uint16_t *)p + key, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
}

enum { PAIRS = 2 * TILE }; // halves from row to row of probabilities

static const uint16_t *probabilities_of(const rows_scratch *s, int row, int key)
{
    return (const uint16_t *)s->s[row] + key;
}

// Probabilities of two keys as a pair in every lane.
MSGL_INLINE __m512i pair_of(const uint16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}

// Columns [d, d + 32 nv) of the output of rows [row, row + rows); the last 32 under a mask.
MSGL_INLINE void bf16_value_block(rows_scratch *s, int padded, int row, const int rows, int d,
                                  const int nv, __mmask32 last, int from, int to, size_t at,
                                  rows_fetch *next)
{
    __m512 a[8][8];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int i = 0; i < 2 * nv; i++) a[r][i] = _mm512_setzero_ps();
    }
    at += (size_t)d * 2;
    for (int first = from; first < to; first += 16) {
        rows_fetch_some(next, rows * nv);
        const uint16_t *pairs = probabilities_of(s, row, first);
        const char *const *v = s->v + first;
        for (int key = 0; key < 16; key += 2, pairs += 2, v += 2) {
            const char *v0 = v[0] + at, *v1 = v[1] + at;
            __m512i p[8];
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) p[r] = pair_of(pairs + r * PAIRS);
#pragma GCC unroll 4
            for (int i = 0; i < nv; i++) {
                const __mmask32 k = i == nv - 1 ? last : 0xffffffffu;
                const __m512i x = _mm512_maskz_loadu_epi16(k, v0 + i * 64);
                const __m512i y = _mm512_maskz_loadu_epi16(k, v1 + i * 64);
                const __m512i lo = _mm512_unpacklo_epi16(x, y), hi = _mm512_unpackhi_epi16(x, y);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++) {
                    a[r][2 * i] = _mm512_dpbf16_ps(a[r][2 * i], (__m512bh)p[r], (__m512bh)lo);
                    a[r][2 * i + 1] =
                        _mm512_dpbf16_ps(a[r][2 * i + 1], (__m512bh)p[r], (__m512bh)hi);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int i = 0; i < 2 * nv; i++) {
            _mm512_storeu_ps(s->o + (size_t)(row + r) * (size_t)padded + d + i * 16, a[r][i]);
        }
    }
}

MSGL_INLINE void bf16_values(rows_scratch *s, int dim, int row, const int rows, int from, int to,
                             size_t at, rows_fetch *next)
{
    const int padded = msgl__attn_padded_dim(dim);
    const int wide = rows == 8 ? 1 : rows == 4 ? 2 : 4; // of 32 columns: 16 or fewer accumulators
    int d = 0;
    for (; d + wide * 32 <= dim; d += wide * 32) {
        bf16_value_block(s, padded, row, rows, d, wide, 0xffffffffu, from, to, at, next);
    }
    for (; d < dim; d += 32) {
        bf16_value_block(s, padded, row, rows, d, 1, columns_from(d, dim), from, to, at, next);
    }
}

#include "kernel/x86/attn_rows_tile.inc"

// 32 columns of VALUE_ROWS rows against the copied tile.
static void copied_value_block(bf16_scratch *s, int padded, int row, int d, int from, int to,
                               rows_fetch *next)
{
    const uint16_t *v = s->values + (size_t)d * TILE;
    __m512 lo[VALUE_ROWS], hi[VALUE_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < VALUE_ROWS; r++) lo[r] = hi[r] = _mm512_setzero_ps();
    for (int key = from; key < to; key += 2) {
        if (key % 16 == 0) rows_fetch_some(next, 1);
        const __m512i v0 = _mm512_load_si512(v + key * 32);
        const __m512i v1 = _mm512_load_si512(v + key * 32 + 32);
#pragma GCC unroll 8
        for (int r = 0; r < VALUE_ROWS; r++) {
            const __m512i p = pair_of(probabilities_of(&s->rows, row + r, key));
            lo[r] = _mm512_dpbf16_ps(lo[r], (__m512bh)p, (__m512bh)v0);
            hi[r] = _mm512_dpbf16_ps(hi[r], (__m512bh)p, (__m512bh)v1);
        }
    }
    float *o = s->rows.o + (size_t)row * (size_t)padded + d;
#pragma GCC unroll 8
    for (int r = 0; r < VALUE_ROWS; r++, o += padded) {
        _mm512_storeu_ps(o, lo[r]);
        _mm512_storeu_ps(o + 16, hi[r]);
    }
}

static void all_copied_values(bf16_scratch *s, const msgl__attn_keys *keys,
                              const msgl__attn_block *b, int from, int to)
{
    const int padded = msgl__attn_padded_dim(keys->v_dim);
    const int blocks = msgl__ceil_div(b->n, VALUE_ROWS);
    rows_fetch next =
        rows_fetch_beside(&s->rows, keys, b, 0, false, padded / 32 * blocks * (to - from) / 16);
    for (int d = 0; d < padded; d += 32) {
        for (int row = 0; row < b->n; row += VALUE_ROWS) {
            copied_value_block(s, padded, row, d, from, to, &next);
        }
    }
}

static void few_or_copied_tile(const msgl__attn_keys *keys, msgl__attn_block *b, void *scratch)
{
    bf16_scratch *s = scratch;
    int from, to;
    if (!s->copied) {
        bf16_tile(keys, b, scratch);
        return;
    }
    rows_range(b, &from, &to);
    bf16_probabilities(&s->rows, keys, b, 0, from, to);
    all_copied_values(s, keys, b, from, to);
    rows_results(&s->rows, b);
}

static const msgl__attn_ops BF16_OPS = {.block = BLOCK,
                                        .many_heads = true,
                                        .scratch = bf16_scratch_size,
                                        .load_q = bf16_load_q,
                                        .load_keys = bf16_load_keys,
                                        .tile = few_or_copied_tile,
                                        .fold = msgl__fold_avx512,
                                        .write = msgl__write_unpacked_avx512};

void msgl__attn_init_avx512bf16(msgl_attn_kernels *k)
{
    k->ops[MSGL_BF16] = &BF16_OPS;
}
