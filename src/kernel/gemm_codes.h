// SPDX-License-Identifier: Apache-2.0
//
// Weights that keep the numbers of a file's blocks, inside of kernel family gemm: small integers
// with scales (quant/codes.h), multiplied as such (MSGL_W_CODES) or as the f32 numbers that they
// stand for (MSGL_W_BLOCKS, which holds all other blocks too).
//
// A panel of codes is a row of chunks of eight blocks of 32 columns, the last one maybe fewer. A
// chunk is its scales, filled up to whole lines of 64 bytes, then 2 * bits * 32 bytes a block. With
// 4 bits and one f16 a group that is 256 + 8 * 256 bytes: 4.5 bits a weight, as in the file. Scales
// of whole rows (span 0) are in front of all chunks instead, filled up likewise.
//
//   scales   two levels: f16 d of the 16 features (and dmin); then by group c of the 16 features,
//            and behind all c all e. One level: by span 16 times d, and behind them all dmin or e.
//            c and e of U4 share a byte, c in its lower half.
//   codes    in eight steps of four columns. A plane of 4, 2 or 1 bits is lines of 16 words of 32
//            bits, a word for each feature, a byte for each of a step's columns; a step's bits are
//            next to each other, the first step's lowest. 6 bits: four lines of 4 bits for two
//            steps each, then two of 2 bits for four steps each. Step 5 (columns 20 to 23) has bits
//            4-7 of line 2, and of the second plane bits 2-3 of line 1. 8 bits: a line a step, the
//            integers themselves, signed.
//
// Activations are rounded to bf16 at level AMX (x86/gemm_codes_amx.c), else to integers by groups
// of 16 columns: x = scale * n, of which a byte holds q, n less a whole number that the group
// shares, so that the 254 numbers are where the group's activations lie, and 0 is one of them.
// Example: with -0.2 to 1 the scale is 1.2 / 253, n goes from -42 to 211, q = n - 85 from -127 to
// 126, and `low` is 85 times the scale. The product of 16 columns is a sum of integers, exact; as a
// float it is multiplied by both scales and added to the sum over k, as is `low` times the sum of
// the weights. A minimum is multiplied by the sum of the rounded activations instead.
#ifndef MSGL_KERNEL_GEMM_CODES_H
#define MSGL_KERNEL_GEMM_CODES_H

#include <math.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernel/gemm_int8.h"
#include "quant/blocks.h"

enum {
    MSGL_CODES_BLOCK = 32,
    MSGL_CODES_CHUNK = 8,   // blocks
    MSGL_CODES_GROUPS = 16, // of a chunk, at most
};

// Of a block of a prepared row. Rows are prepared 16 at a time (the last ones fewer), so that
// kernels, which go over all rows with a block of weights, read one line after the other: the
// integers of all rows by block, [k / 32][rows][32], and behind them the heads, [k / 32][rows].
typedef struct msgl_codes_head {
    float scale[2], low[2]; // of each half: an activation is scale * q + low
    float sum, sum16[2];    // of the rounded activations: of all 32, and of each half
} msgl_codes_head;

// Scales of a chunk: value = scale * q + min, by group and feature. min: only of codes that have an
// offset.
typedef struct msgl_codes_scales {
    float scale[MSGL_CODES_GROUPS][MSGL_GEMM_LANES] MSGL_ALIGNED(64);
    float min[MSGL_CODES_GROUPS][MSGL_GEMM_LANES] MSGL_ALIGNED(64);
} msgl_codes_scales;

static inline int msgl__codes_blocks(int k)
{
    return msgl__ceil_div(k, MSGL_CODES_BLOCK);
}

// Whether value = scale * q + min.
static inline bool msgl__codes_have_min(const msgl_codes *c)
{
    return c->offset != MSGL_OFFSET_NONE;
}

// Bytes of d, of one level.
static inline size_t msgl__codes_number_bytes(msgl_number type)
{
    if (type == MSGL_NUMBER_F32) return 4;
    return type == MSGL_NUMBER_F16 || type == MSGL_NUMBER_BF16 ? 2 : 1;
}

// Bytes of scales that so many spans have, with their offsets.
static inline size_t msgl__codes_spans_bytes(const msgl_codes *c, int spans)
{
    const size_t d = msgl__codes_number_bytes(c->number), lanes = MSGL_GEMM_LANES;
    const size_t more = c->offset == MSGL_OFFSET_ZERO ? 1 : msgl__codes_have_dmin(c) ? d : 0;
    return msgl__round_up((size_t)spans * lanes * (d + more), 64);
}

// Spans that have their scales in a chunk of `blocks` blocks.
static inline int msgl__codes_chunk_spans(const msgl_codes *c, int blocks)
{
    return c->span == 0 ? 0 : msgl__ceil_div(blocks * MSGL_CODES_BLOCK, c->span);
}

// Bytes in front of a panel's chunks.
static inline size_t msgl__codes_front_bytes(const msgl_codes *c)
{
    return c->scaling != MSGL_SCALING_ONE || c->span != 0 ? 0 : msgl__codes_spans_bytes(c, 1);
}

// Bytes of the scales of `blocks` blocks that are in their chunk.
static inline size_t msgl__codes_scales_bytes(const msgl_codes *c, int blocks)
{
    const size_t groups = (size_t)(blocks * MSGL_CODES_BLOCK / c->group);
    const size_t d = c->offset == MSGL_OFFSET_NONE ? 2 : 4; // and dmin
    const size_t each = c->scaling == MSGL_SCALING_U8 ? 2 : 1;
    if (c->scaling == MSGL_SCALING_ONE) {
        return msgl__codes_spans_bytes(c, msgl__codes_chunk_spans(c, blocks));
    }
    return msgl__round_up(MSGL_GEMM_LANES * (d + groups * each), 64);
}

static inline size_t msgl__codes_block_bytes(const msgl_codes *c)
{
    return (size_t)c->bits * MSGL_CODES_BLOCK * MSGL_GEMM_LANES / 8;
}

static inline size_t msgl__codes_chunk_bytes(const msgl_codes *c, int blocks)
{
    return msgl__codes_scales_bytes(c, blocks) + (size_t)blocks * msgl__codes_block_bytes(c);
}

// msgl_gemm_micro.row_bytes, of rows with integers of `size` bytes.
static inline size_t msgl__codes_row_bytes(int k, size_t size)
{
    return (size_t)msgl__codes_blocks(k) * (MSGL_CODES_BLOCK * size + sizeof(msgl_codes_head));
}

// Where the first of `rows` <= 16 rows, which were prepared together at `a`, has its integers and
// its head of a block. The others' are behind it.
typedef struct msgl_codes_rows_at {
    const char *x;
    const msgl_codes_head *heads;
} msgl_codes_rows_at;
static inline msgl_codes_rows_at msgl__codes_rows(const char *a, int rows, int blocks, int block,
                                                  size_t size)
{
    const size_t x_bytes = (size_t)rows * MSGL_CODES_BLOCK * size;
    const char *heads = a + (size_t)blocks * x_bytes;
    return (msgl_codes_rows_at){a + (size_t)block * x_bytes,
                                (const msgl_codes_head *)heads + (size_t)block * (size_t)rows};
}

// Lanes that the level has in a vector, and how they come from memory: numbers of 8 and 16 bits as
// integers of 32, and f16 as floats.
#if defined(__AVX512F__)
enum { MSGL_CODES_LANES = 16 };
#elif defined(__AVX2__)
enum { MSGL_CODES_LANES = 8 };
#else
enum { MSGL_CODES_LANES = 4 };
#endif
typedef float msgl_codes_vf __attribute__((vector_size(4 * MSGL_CODES_LANES)));
typedef int32_t msgl_codes_vi __attribute__((vector_size(4 * MSGL_CODES_LANES)));

#if defined(__AVX512F__)
MSGL_INLINE msgl_codes_vi msgl__codes_u8(const char *at)
{
    return (msgl_codes_vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at));
}
MSGL_INLINE msgl_codes_vi msgl__codes_u16(const char *at)
{
    return (msgl_codes_vi)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)at));
}
MSGL_INLINE msgl_codes_vf msgl__codes_f16(const char *at)
{
    return (msgl_codes_vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
}
#elif defined(__AVX2__)
MSGL_INLINE msgl_codes_vi msgl__codes_u8(const char *at)
{
    return (msgl_codes_vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at));
}
MSGL_INLINE msgl_codes_vi msgl__codes_u16(const char *at)
{
    return (msgl_codes_vi)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at));
}
MSGL_INLINE msgl_codes_vf msgl__codes_f16(const char *at)
{
    return (msgl_codes_vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
}
#else
MSGL_INLINE msgl_codes_vi msgl__codes_u8(const char *at)
{
    const uint8_t *b = (const uint8_t *)at;
    return (msgl_codes_vi){b[0], b[1], b[2], b[3]};
}
MSGL_INLINE msgl_codes_vi msgl__codes_u16(const char *at)
{
    uint16_t w[4];
    memcpy(w, at, sizeof w);
    return (msgl_codes_vi){w[0], w[1], w[2], w[3]};
}
MSGL_INLINE msgl_codes_vf msgl__codes_f16(const char *at)
{
    uint16_t w[4];
    memcpy(w, at, sizeof w);
    return (msgl_codes_vf){msgl__f16_to_f32(w[0]), msgl__f16_to_f32(w[1]), msgl__f16_to_f32(w[2]),
                           msgl__f16_to_f32(w[3])};
}
#endif

MSGL_INLINE msgl_codes_vf msgl__codes_floats(msgl_codes_vi v)
{
    return __builtin_convertvector(v, msgl_codes_vf);
}

MSGL_INLINE msgl_codes_vf msgl__codes_signed(const char *at)
{
    return msgl__codes_floats((msgl__codes_u8(at) ^ 0x80) - 0x80);
}

// a where the mask's lane is -1, else b.
MSGL_INLINE msgl_codes_vi msgl__codes_select(msgl_codes_vi mask, msgl_codes_vi a, msgl_codes_vi b)
{
    return (mask & a) | (~mask & b);
}

// 2^(e - 128); e of 0 and 1 are subnormal numbers.
MSGL_INLINE msgl_codes_vf msgl__codes_e8m0_half(const char *at)
{
    const msgl_codes_vi e = msgl__codes_u8(at);
    return (msgl_codes_vf)msgl__codes_select(e < 2, 0x00200000 + 0x00200000 * e, (e - 1) << 23);
}

// 2^(e - 127); 0 is a subnormal number, 255 none.
MSGL_INLINE msgl_codes_vf msgl__codes_e8m0(const char *at)
{
    const msgl_codes_vi e = msgl__codes_u8(at);
    return (msgl_codes_vf)(e << 23 | (((e == 0) | (e == 255)) & 0x00400000));
}

// Exponent and mantissa have an f32's places, and the exponent 120 more. What is subnormal here is
// a multiple of 2^-9.
MSGL_INLINE msgl_codes_vf msgl__codes_e4m3(msgl_codes_vi b)
{
    const msgl_codes_vi m = b & 0x7f;
    const msgl_codes_vi small = (msgl_codes_vi)(msgl__codes_floats(m) * 0x1p-9f);
    const msgl_codes_vi bits = msgl__codes_select(m < 8, small, (m << 20) + (120 << 23));
    return (msgl_codes_vf)(bits | ((m == 0x7f) & 0x7fc00000) | (b & 0x80) << 24);
}

// A span's d or dmin.
MSGL_INLINE msgl_codes_vf msgl__codes_numbers(const msgl_number type, const char *at)
{
    msgl_codes_vf f32;
    switch (type) {
    case MSGL_NUMBER_F16: return msgl__codes_f16(at);
    case MSGL_NUMBER_BF16: return (msgl_codes_vf)(msgl__codes_u16(at) << 16);
    case MSGL_NUMBER_E4M3: return msgl__codes_e4m3(msgl__codes_u8(at));
    case MSGL_NUMBER_E8M0: return msgl__codes_e8m0(at);
    case MSGL_NUMBER_E8M0_HALF: return msgl__codes_e8m0_half(at);
    default: memcpy(&f32, at, sizeof f32); return f32;
    }
}

// A span's scales from its d. products: a last factor is one of the scale's, too.
MSGL_INLINE msgl_codes_vf msgl__codes_span_scales(const msgl_codes *c, const msgl_number type,
                                                  const char *at, const bool products)
{
    const msgl_codes_vf d = msgl__codes_numbers(type, at);
    if (c->factor == 0 || (c->factor_last && !products)) return d;
    return c->divided ? d / c->factor : d * c->factor;
}

// A span's offsets as the file has them, or with `as_min` the minimum beside the scales.
MSGL_INLINE msgl_codes_vf msgl__codes_span_offsets(const msgl_codes *c, const msgl_number type,
                                                   const char *at, msgl_codes_vf scale,
                                                   const bool as_min)
{
    if (c->offset == MSGL_OFFSET_ZERO) {
        const msgl_codes_vf e = msgl__codes_signed(at);
        return as_min ? scale * -e : e;
    }
    const msgl_codes_vf dmin = msgl__codes_numbers(type, at);
    if (c->offset == MSGL_OFFSET_FLOAT) return as_min ? scale * ((float)c->zero - dmin) : dmin;
    return as_min && c->zero != 0 ? dmin + scale * (float)c->zero : dmin;
}

MSGL_INLINE void msgl__codes_put_lanes(float *to, msgl_codes_vf v)
{
    memcpy(to, &v, sizeof v);
}

// Every group of a span in the chunk has the same.
MSGL_INLINE void msgl__codes_spans_scales(const msgl_codes *c, const msgl_number type,
                                          const char *at, int groups, const bool as_min,
                                          msgl_codes_scales *out)
{
    const int per_span = c->span == 0 ? groups : c->span / c->group;
    const size_t size = msgl__codes_number_bytes(type);
    const size_t offset_size = c->offset == MSGL_OFFSET_ZERO ? 1 : size;
    const char *offsets = at + (size_t)msgl__ceil_div(groups, per_span) * MSGL_GEMM_LANES * size;
    for (int first = 0; first < groups; first += per_span) {
        const int end = groups - first < per_span ? groups : first + per_span;
        for (int i = 0; i < MSGL_GEMM_LANES; i += MSGL_CODES_LANES) {
            const msgl_codes_vf scale = msgl__codes_span_scales(c, type, at, as_min);
            for (int g = first; g < end; g++) msgl__codes_put_lanes(out->scale[g] + i, scale);
            at += MSGL_CODES_LANES * size;
            if (!msgl__codes_have_min(c)) continue;
            const msgl_codes_vf less = msgl__codes_span_offsets(c, type, offsets, scale, as_min);
            for (int g = first; g < end; g++) msgl__codes_put_lanes(out->min[g] + i, less);
            offsets += MSGL_CODES_LANES * offset_size;
        }
    }
}

// The same of what most files have: f16 numbers for each group, as they are.
MSGL_INLINE void msgl__codes_f16_scales(const char *at, int groups, float (*out)[MSGL_GEMM_LANES])
{
    for (int g = 0; g < groups; g++) {
        for (int i = 0; i < MSGL_GEMM_LANES; i += MSGL_CODES_LANES, at += 2 * MSGL_CODES_LANES) {
            msgl__codes_put_lanes(out[g] + i, msgl__codes_f16(at));
        }
    }
}

// The type is chosen outside of the loops.
MSGL_INLINE void msgl__codes_one_level_scales(const msgl_codes *c, const char *at, int groups,
                                              const bool as_min, msgl_codes_scales *out)
{
#define MSGL_CODES_CASE(type)                                                                      \
    case type: msgl__codes_spans_scales(c, type, at, groups, as_min, out); break;
    const bool as_it_is =
        c->offset == MSGL_OFFSET_NONE || (c->offset == MSGL_OFFSET_MIN && c->zero == 0);
    if (c->number == MSGL_NUMBER_F16 && c->span == c->group && c->factor == 0 && as_it_is) {
        msgl__codes_f16_scales(at, groups, out->scale);
        if (!msgl__codes_have_min(c)) return;
        msgl__codes_f16_scales(at + (size_t)groups * 2 * MSGL_GEMM_LANES, groups, out->min);
        return;
    }
    switch (c->number) {
        MSGL_CODES_CASE(MSGL_NUMBER_F16)
        MSGL_CODES_CASE(MSGL_NUMBER_BF16)
        MSGL_CODES_CASE(MSGL_NUMBER_E4M3)
        MSGL_CODES_CASE(MSGL_NUMBER_E8M0)
        MSGL_CODES_CASE(MSGL_NUMBER_E8M0_HALF)
    default: msgl__codes_spans_scales(c, MSGL_NUMBER_F32, at, groups, as_min, out);
    }
#undef MSGL_CODES_CASE
}

MSGL_INLINE void msgl__codes_two_level_scales(const msgl_codes *c, const char *at, int groups,
                                              msgl_codes_scales *out)
{
    const bool min = msgl__codes_have_min(c), u4 = c->scaling == MSGL_SCALING_U4;
    const size_t d_bytes = 2 * MSGL_GEMM_LANES, c_bytes = (size_t)groups * MSGL_GEMM_LANES;
    for (int i = 0; i < MSGL_GEMM_LANES; i += MSGL_CODES_LANES) {
        const char *cs = at + (min ? 2 * d_bytes : d_bytes) + i;
        const msgl_codes_vf d = msgl__codes_f16(at + 2 * i);
        const msgl_codes_vf dmin = min ? msgl__codes_f16(at + d_bytes + 2 * i) : d;
        for (int g = 0; g < groups; g++, cs += MSGL_GEMM_LANES) {
            if (!min) {
                msgl__codes_put_lanes(out->scale[g] + i, d * msgl__codes_signed(cs));
                continue;
            }
            const msgl_codes_vi both = msgl__codes_u8(cs);
            const msgl_codes_vi scale = u4 ? both & 15 : both;
            const msgl_codes_vi less = u4 ? both >> 4 : msgl__codes_u8(cs + c_bytes);
            msgl__codes_put_lanes(out->scale[g] + i, d * msgl__codes_floats(scale));
            msgl__codes_put_lanes(out->min[g] + i, -(dmin * msgl__codes_floats(less)));
        }
    }
}

// The scales of a chunk of `blocks` blocks that begins at `at`, of a panel; offsets as the file has
// them, or with `as_min` as minimums.
MSGL_INLINE void msgl__codes_scales_of(const msgl_codes *c, const char *panel, const char *at,
                                       int blocks, const bool as_min, msgl_codes_scales *out)
{
    const int groups = blocks * MSGL_CODES_BLOCK / c->group;
    if (c->scaling == MSGL_SCALING_ONE) {
        msgl__codes_one_level_scales(c, c->span == 0 ? panel : at, groups, as_min, out);
    } else {
        msgl__codes_two_level_scales(c, at, groups, out);
    }
}

// How a prepared row holds its integers.
typedef enum msgl_codes_kind {
    MSGL_CODES_SIGNED,   // bytes
    MSGL_CODES_UNSIGNED, // bytes, + 128
    MSGL_CODES_WIDE,     // 16 bits: of every four the first and third, then the second and fourth
} msgl_codes_kind;

// The least and the largest of 16 finite numbers and 0.
MSGL_INLINE void msgl__codes_range(const float *v, float *low, float *high)
{
#if defined(__AVX512F__)
    const __m512 all = _mm512_loadu_ps(v), zero = _mm512_setzero_ps();
    *low = _mm512_reduce_min_ps(_mm512_min_ps(all, zero));
    *high = _mm512_reduce_max_ps(_mm512_max_ps(all, zero));
#elif defined(__AVX2__)
    const __m256 a = _mm256_loadu_ps(v), b = _mm256_loadu_ps(v + 8), zero = _mm256_setzero_ps();
    const __m256 least = _mm256_min_ps(_mm256_min_ps(a, b), zero);
    const __m256 most = _mm256_max_ps(_mm256_max_ps(a, b), zero);
    // Both in one vector, beside each other: the largest as the least of -v.
    const __m256 minus = _mm256_xor_ps(most, _mm256_set1_ps(-0.0f));
    const __m256 two = _mm256_min_ps(_mm256_unpacklo_ps(least, minus), //
                                     _mm256_unpackhi_ps(least, minus));
    __m128 m = _mm_min_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1));
    m = _mm_min_ps(m, _mm_movehl_ps(m, m));
    *low = _mm_cvtss_f32(m);
    *high = -_mm_cvtss_f32(_mm_shuffle_ps(m, m, 1));
#else
    *low = *high = 0;
    for (int i = 0; i < MSGL_CODES_BLOCK / 2; i++) {
        *low = v[i] < *low ? v[i] : *low;
        *high = v[i] > *high ? v[i] : *high;
    }
#endif
}

// Rounds 32 activations to integers within [-127, 127], as is said above. What is infinite or no
// number makes a scale that is none.
MSGL_INLINE msgl_codes_head msgl__codes_round(const float *v, int8_t *q)
{
    enum { STEPS = 253, HALF = MSGL_CODES_BLOCK / 2 }; // both ends may be rounded outwards
    if (msgl__int8_largest(v, MSGL_CODES_BLOCK) >= 0x7f800000) {
        const float none = __builtin_nanf("");
        memset(q, 0, MSGL_CODES_BLOCK);
        return (msgl_codes_head){{none, none}, {none, none}, none, {none, none}};
    }
    msgl_codes_head head = {0};
    msgl_int8_rounding by = {0};
    for (int i = 0; i < 2; i++) {
        float low, high;
        msgl__codes_range(v + i * HALF, &low, &high);
        const float range = high - low;
        if (range < 1e-30f) continue; // zeros
        head.scale[i] = range / STEPS;
        by.inverse[i] = STEPS / range;
        by.shift[i] = -127 - (int32_t)rintf(low * by.inverse[i]);
        head.low[i] = head.scale[i] * (float)-by.shift[i];
    }
    msgl__int8_round(v, &by, q);
    for (int i = 0; i < 2; i++) {
        const int32_t n = msgl__int8_sum(q + i * HALF, HALF) - HALF * by.shift[i];
        head.sum16[i] = head.scale[i] * (float)n;
    }
    head.sum = head.sum16[0] + head.sum16[1];
    return head;
}

MSGL_INLINE void msgl__codes_put(const int8_t q[MSGL_CODES_BLOCK], char *to,
                                 const msgl_codes_kind how)
{
    if (how == MSGL_CODES_WIDE) {
        for (int i = 0; i < MSGL_CODES_BLOCK; i += 4, to += 8) {
            const int16_t four[4] = {q[i], q[i + 2], q[i + 1], q[i + 3]};
            memcpy(to, four, sizeof four);
        }
        return;
    }
    const uint8_t flip = how == MSGL_CODES_UNSIGNED ? 0x80 : 0;
    for (int i = 0; i < MSGL_CODES_BLOCK; i++) to[i] = (char)((uint8_t)q[i] ^ flip);
}

// msgl_gemm_micro.prepare of codes.
MSGL_INLINE void msgl__codes_prepare(const float *in, size_t ld_in, int rows, int k, char *a,
                                     const msgl_codes_kind how)
{
    const size_t size = how == MSGL_CODES_WIDE ? 2 : 1, bytes = MSGL_CODES_BLOCK * size;
    const size_t n = (size_t)rows, blocks = (size_t)msgl__codes_blocks(k);
    msgl_codes_head *heads = (msgl_codes_head *)(a + n * blocks * bytes);
    for (size_t r = 0; r < n; r++, in += ld_in) {
        for (size_t i = 0; i < blocks; i++) {
            const float *v = in + i * MSGL_CODES_BLOCK;
            const int left = k - (int)i * MSGL_CODES_BLOCK;
            float last[MSGL_CODES_BLOCK] = {0};
            int8_t q[MSGL_CODES_BLOCK];
            if (left < MSGL_CODES_BLOCK) v = memcpy(last, v, (size_t)left * sizeof *v);
            heads[i * n + r] = msgl__codes_round(v, q);
            msgl__codes_put(q, a + (i * n + r) * bytes, how);
        }
    }
}

// The format that keeps blocks; see msgl_gemm_kernels. Of integers products are made of them, where
// kernels multiply codes as bf16 also of floats; of others by MSGL_W_BLOCKS.
bool msgl__gemm_keep(const msgl_blocks *b, int k, bool exact, msgl_wformat *out);
bool msgl__gemm_keep_by_bf16(const msgl_blocks *b, int k, bool exact, msgl_wformat *out);
// The feature in this lane of a panel as f32: out[0, k).
void msgl__kept_lane(const msgl_wformat *f, const char *panel, int lane, int k, float *out);
// The integers of a panel's block of codes.
void msgl__codes_values(const msgl_codes *c, const char *block,
                        int8_t q[MSGL_CODES_BLOCK][MSGL_GEMM_LANES]);

// msgl_gemm_micro.row_bytes, of rows with integers of 8 and of 16 bits.
size_t msgl__codes_row_bytes_8(int kpad);
size_t msgl__codes_row_bytes_16(int kpad);

#endif
