// SPDX-License-Identifier: Apache-2.0
//
// Panels of codes to bf16, for level AMX: what makes B tiles of a block of them.
//
// A value is made in f16, 32 at a time: q * scale + min, with scales multiplied by the power of two
// that brings a feature's largest value in the chunk to 2^14 and above. Behind its rounding to
// bf16's 8 digits an exponent is added. Example: a largest value of 0.3 = 1.2 * 2^-2 is 1.2 * 2^14,
// which f16 writes with the exponent 29 and bf16 with 125, so 96 is added. What is 2^30 times
// smaller than the largest, 0 too, becomes as small as that.
//
// Of four columns the first and third are one pair of a tile, the second and fourth the next: a
// shift of a line of codes brings two of them to the lower bits of 16-bit words. Rows are prepared
// in the same order (msgl__codes_prepare_amx).
#ifndef MSGL_KERNEL_X86_CODES_BF16_H
#define MSGL_KERNEL_X86_CODES_BF16_H

#include <immintrin.h>
#include <math.h>

#include "kernel/gemm_codes.h"

enum {
    MSGL_BF16_TILE = 1024, // bytes
    MSGL_CODES_E4M3 = 7,   // stands for codes of 8 bits that are e4m3, as none have 7
};

// What makes bf16 of a chunk of one panel, for all 16 features: f16 twice, or exponents twice.
typedef struct msgl_bf16_scales {
    __m512i scale[MSGL_CODES_GROUPS], min[MSGL_CODES_GROUPS];
    __m512i exponent;
    __mmask16 none; // features of which a scale is no number
} msgl_bf16_scales;

// Of the codes' numbers.
typedef struct msgl_bf16_values {
    const msgl_codes *codes;
    __m512i f16;  // of codes below 32
    __m512h zero; // of codes of 6 bits: what 1024 + code is more than q
    __m512 most;  // the largest |q|, ...
    int bits;     // ... which is below 2^bits
    __m512 unit;  // what scales are multiplied by first: of e4m3 the f16 is q / 256
} msgl_bf16_values;

// Numbers of 32 codes in two vectors; what lies above the code's bits does not matter.
MSGL_INLINE void msgl__bf16_numbers(const msgl_codes *c, __m512 q[2])
{
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (int i = 0; i < 2; i++) {
        const __m512i code = _mm512_and_si512(_mm512_add_epi32(lanes, _mm512_set1_epi32(16 * i)),
                                              _mm512_set1_epi32((1 << c->bits) - 1));
        q[i] = _mm512_cvtepi32_ps(_mm512_sub_epi32(code, _mm512_set1_epi32(c->zero)));
    }
    if (c->bits != 4) return;
    if (c->floats) q[0] = q[1] = _mm512_loadu_ps(c->book);
    if (c->values == NULL) return;
    const __m128i bytes = _mm_loadu_si128((const __m128i *)c->values);
    q[0] = q[1] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

// Short enough for every task of a product.
MSGL_INLINE msgl_bf16_values msgl__bf16_values(const msgl_codes *c)
{
    const bool e4m3 = c->floats && c->bits == 8;
    const float unit = e4m3 ? 256 : 1;
    const int last = (1 << c->bits) - 1 - c->zero; // of integers
    __m512 q[2];
    msgl__bf16_numbers(c, q);
    float most = (float)(last > c->zero ? last : c->zero);
    if (e4m3) {
        most = 448;
    } else if (c->floats || c->values != NULL) {
        most = _mm512_reduce_max_ps(_mm512_abs_ps(q[0]));
    }
    const __m256i low = _mm512_cvtps_ph(q[0], _MM_FROUND_TO_NEAREST_INT);
    const __m256i high = _mm512_cvtps_ph(q[1], _MM_FROUND_TO_NEAREST_INT);
    int bits;
    (void)frexpf(most, &bits);
    return (msgl_bf16_values){.codes = c,
                              .f16 = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1),
                              .zero = _mm512_set1_ph((_Float16)(1024 + c->zero)),
                              .most = _mm512_set1_ps(most / unit),
                              .bits = bits,
                              .unit = _mm512_set1_ps(unit)};
}

// ---- scales ----

// 16 numbers, which f16 holds, as f16, each of them twice.
MSGL_INLINE __m512i msgl__bf16_f16_pairs(__m512 v)
{
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    return _mm512_or_si512(low, _mm512_slli_epi32(low, 16));
}

MSGL_INLINE __m512i msgl__bf16_positive(__m512 v)
{
    return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
}

// By f32, of any scales. Numbers that are not negative are ordered as their bits are, with what is
// no number behind all of them.
static void msgl__bf16_take_any(const msgl_bf16_values *v, const char *panel, const char *at,
                                int blocks, msgl_bf16_scales *to)
{
    const msgl_codes *c = v->codes;
    const int groups = blocks * MSGL_CODES_BLOCK / c->group;
    const bool min = msgl__codes_have_min(c), spans = c->scaling == MSGL_SCALING_ONE;
    const int alike = !spans ? 1 : c->span == 0 ? groups : c->span / c->group; // groups of a span
    msgl_codes_scales f;
    msgl__codes_scales_of(c, panel, at, blocks, true, &f);
    __m512i most = _mm512_setzero_si512();
    for (int g = 0; g < groups; g += alike) {
        const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(f.scale[g]), v->unit);
        const __m512 scale = _mm512_castsi512_ps(msgl__bf16_positive(scaled));
        const __m512 less = min ? _mm512_castsi512_ps(msgl__bf16_positive(_mm512_load_ps(f.min[g])))
                                : _mm512_setzero_ps();
        most = _mm512_max_epi32(most, msgl__bf16_positive(_mm512_fmadd_ps(scale, v->most, less)));
    }
    const __m512i lowest = _mm512_set1_epi32(29);
    __m512i e = _mm512_srli_epi32(most, 23);
    to->none = _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255));
    e = _mm512_max_epi32(e, lowest);
    const __m512 factor = _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(14 + 127 + 127), e), 23));
    const __m512 by = _mm512_mul_ps(factor, v->unit);
    for (int g = 0; g < groups; g += alike) {
        const int end = groups - g < alike ? groups : g + alike;
        const __m512 less = min ? _mm512_load_ps(f.min[g]) : _mm512_setzero_ps();
        const __m512i mins = msgl__bf16_f16_pairs(_mm512_mul_ps(less, factor));
        const __m512i scale = msgl__bf16_f16_pairs(_mm512_mul_ps(_mm512_load_ps(f.scale[g]), by));
        for (int i = g; i < end; i++) {
            to->scale[i] = scale;
            to->min[i] = mins;
        }
    }
    const __m512i exponent = _mm512_slli_epi32(_mm512_sub_epi32(e, lowest), 7);
    to->exponent = _mm512_or_si512(exponent, _mm512_slli_epi32(exponent, 16));
}

// Of 16 words, each of them twice.
MSGL_INLINE __m512i msgl__bf16_pair_order(void)
{
    static const uint16_t ORDER[32] = {0, 0, 1, 1, 2,  2,  3,  3,  4,  4,  5,  5,  6,  6,  7,  7,
                                       8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15};
    return _mm512_loadu_si512(ORDER);
}

MSGL_INLINE __m512i msgl__bf16_word_pairs(const char *at)
{
    const __m256i words = _mm256_loadu_si256((const __m256i *)at);
    return _mm512_permutexvar_epi16(msgl__bf16_pair_order(), _mm512_castsi256_si512(words));
}

MSGL_INLINE __m512i msgl__bf16_magnitudes(__m512i f16)
{
    return _mm512_and_si512(f16, _mm512_set1_epi16(0x7fff));
}

// *out: what f16 scales and minimums are multiplied by, a power of two, where the largest are
// `scale` and `min`, and scales are multiplied by less than 2^scale_bits, minimums by at most
// 2^min_bits. With the exponents' fields e and f, values are below 2^(n - 13) for n = max(e +
// scale_bits, f + min_bits), so 2^(28 - n) brings them below 2^15. false: f16 has no such power.
static bool msgl__bf16_factor_of(__m512i scale, __m512i min, int scale_bits, int min_bits,
                                 msgl_bf16_scales *to, __m512h *out)
{
    const __m512i e = _mm512_srli_epi16(scale, 10), f = _mm512_srli_epi16(min, 10);
    const __m512i infinite = _mm512_set1_epi16(31); // in both words of a feature
    to->none = _mm512_cmpeq_epi32_mask(_mm512_max_epi16(e, f), infinite);
    const __m512i n = _mm512_max_epi16(_mm512_add_epi16(e, _mm512_set1_epi16((short)scale_bits)),
                                       _mm512_add_epi16(f, _mm512_set1_epi16((short)min_bits)));
    const __m512i k =
        _mm512_min_epi16(_mm512_sub_epi16(_mm512_set1_epi16(28), n), _mm512_set1_epi16(15));
    to->exponent = _mm512_slli_epi16(_mm512_sub_epi16(_mm512_set1_epi16(112), k), 7);
    *out = (__m512h)_mm512_slli_epi16(_mm512_add_epi16(k, _mm512_set1_epi16(15)), 10);
    return _mm512_cmplt_epi16_mask(k, _mm512_set1_epi16(-14)) == 0;
}

// The words of two groups, or of the last one.
MSGL_INLINE __m512i msgl__bf16_two_groups(const char *at, int groups)
{
    return _mm512_maskz_loadu_epi16(groups > 1 ? 0xffffffffu : 0xffffu, at);
}

MSGL_INLINE __m512i msgl__bf16_largest(const char *at, int groups)
{
    __m512i most = _mm512_setzero_si512();
    for (int g = 0; g < groups; g += 2, at += 64) {
        const __m512i words = msgl__bf16_two_groups(at, groups - g);
        most = _mm512_max_epi16(most, msgl__bf16_magnitudes(words));
    }
    return _mm512_max_epi16(most, _mm512_shuffle_i64x2(most, most, 0x4e));
}

// Numbers of two groups, times a number of each feature, which is there twice, as pairs.
MSGL_INLINE void msgl__bf16_put_two(__m512h numbers, __m512h by, __m512i to[2])
{
    const __m512i order = msgl__bf16_pair_order();
    const __m512i scaled = (__m512i)_mm512_mul_ph(numbers, by);
    to[0] = _mm512_permutexvar_epi16(order, scaled);
    to[1] = _mm512_permutexvar_epi16(_mm512_add_epi16(order, _mm512_set1_epi16(16)), scaled);
}

MSGL_INLINE void msgl__bf16_scaled(const char *at, int groups, __m512h factor, __m512i *to)
{
    for (int g = 0; g < groups; g += 2, at += 64) {
        msgl__bf16_put_two((__m512h)msgl__bf16_two_groups(at, groups - g), factor, to + g);
    }
}

// Of pairs, each feature's number, twice.
MSGL_INLINE __m512h msgl__bf16_features_of(__m512h pairs)
{
    return (__m512h)_mm512_broadcast_i64x4(_mm512_cvtepi32_epi16((__m512i)pairs));
}

// f16 for each group, as they are in the panel. Their values are below 2^24, so there is a factor.
static void msgl__bf16_take_f16(const msgl_bf16_values *v, const char *at, int blocks,
                                msgl_bf16_scales *to)
{
    const int groups = blocks * MSGL_CODES_BLOCK / v->codes->group;
    const bool min = msgl__codes_have_min(v->codes);
    const char *const mins = at + 32 * groups;
    const __m512i scale = msgl__bf16_largest(at, groups);
    const __m512i less = min ? msgl__bf16_largest(mins, groups) : _mm512_setzero_si512();
    const __m512i pairs = msgl__bf16_pair_order();
    __m512h factor;
    msgl__bf16_factor_of(_mm512_permutexvar_epi16(pairs, scale),
                         _mm512_permutexvar_epi16(pairs, less), v->bits, 0, to, &factor);
    factor = msgl__bf16_features_of(factor);
    msgl__bf16_scaled(at, groups, factor, to->scale);
    if (min) msgl__bf16_scaled(mins, groups, factor, to->min);
}

// Of two levels. false: they are too large for f16.
static bool msgl__bf16_take_two_levels(const msgl_bf16_values *v, const char *at, int blocks,
                                       msgl_bf16_scales *to)
{
    const msgl_codes *c = v->codes;
    const int groups = blocks * MSGL_CODES_BLOCK / c->group;
    const bool min = msgl__codes_have_min(c), u4 = c->scaling == MSGL_SCALING_U4;
    const int bits = u4 ? 4 : 8;
    const __m512i d = msgl__bf16_word_pairs(at),
                  less = min ? msgl__bf16_word_pairs(at + 32) : _mm512_setzero_si512();
    __m512h factor;
    if (!msgl__bf16_factor_of(msgl__bf16_magnitudes(d), msgl__bf16_magnitudes(less), v->bits + bits,
                              bits, to, &factor)) {
        return false;
    }
    const __m512h by = msgl__bf16_features_of(_mm512_mul_ph((__m512h)d, factor));
    const __m512i minus = _mm512_xor_si512(less, _mm512_set1_epi16((short)0x8000));
    const __m512h by_min = msgl__bf16_features_of(_mm512_mul_ph((__m512h)minus, factor));
    const char *cs = at + (min ? 64 : 32), *const es = cs + 16 * groups;
    for (int g = 0; g < groups; g += 2) { // behind the last group's bytes are others
        const __m256i bytes = _mm256_loadu_si256((const __m256i *)(cs + 16 * g));
        if (!min) {
            const __m512i c_words = _mm512_cvtepi8_epi16(bytes);
            msgl__bf16_put_two(_mm512_cvtepi16_ph(c_words), by, to->scale + g);
            continue;
        }
        __m512i low = _mm512_cvtepu8_epi16(bytes), high;
        if (u4) {
            high = _mm512_srli_epi16(low, 4);
            low = _mm512_and_si512(low, _mm512_set1_epi16(15));
        } else {
            high = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(es + 16 * g)));
        }
        msgl__bf16_put_two(_mm512_cvtepi16_ph(low), by, to->scale + g);
        msgl__bf16_put_two(_mm512_cvtepi16_ph(high), by_min, to->min + g);
    }
    return true;
}

// Scales of the chunk of `blocks` blocks that begins at `at`, of a panel.
static MSGL_NOINLINE void msgl__bf16_take_scales(const msgl_bf16_values *v, const char *panel,
                                                 const char *at, int blocks, msgl_bf16_scales *to)
{
    const msgl_codes *c = v->codes;
    const bool own = c->offset == MSGL_OFFSET_NONE ||
                     (c->offset == MSGL_OFFSET_MIN && c->zero == 0); // no sum of scale and minimum
    if (c->scaling != MSGL_SCALING_ONE) {
        if (!msgl__bf16_take_two_levels(v, at, blocks, to))
            msgl__bf16_take_any(v, panel, at, blocks, to);
    } else if (c->number == MSGL_NUMBER_F16 && c->span == c->group && c->factor == 0 && own &&
               !c->floats) {
        msgl__bf16_take_f16(v, at, blocks, to);
    } else {
        msgl__bf16_take_any(v, panel, at, blocks, to);
    }
}

// v shifted so that bit `from` of its words comes to bit `to`.
MSGL_INLINE __m512i msgl__bf16_move(__m512i v, const int from, const int to)
{
    return from == to  ? v
           : from > to ? _mm512_srli_epi16(v, (unsigned)(from - to))
                       : _mm512_slli_epi16(v, (unsigned)(to - from));
}

// q of a step's columns 0 and 2, or with odd 1 and 3, of all features.
MSGL_INLINE __m512h msgl__bf16_values_at(const char *lines, const int bits, const int step,
                                         const int odd, const msgl_bf16_values *t)
{
    if (bits == 8) {
        const __m512i v = _mm512_loadu_si512(lines + step * 64);
        return _mm512_cvtepi16_ph(_mm512_srai_epi16(odd ? v : _mm512_slli_epi16(v, 8), 8));
    }
    if (bits == MSGL_CODES_E4M3) { // s eeee mmm becomes s 0eeee mmm0000000
        const __m512i v = _mm512_loadu_si512(lines + step * 64);
        const __m512i at = odd ? v : _mm512_slli_epi16(v, 8);
        const __m512i moved = _mm512_and_si512(_mm512_srli_epi16(at, 1), _mm512_set1_epi16(0x3f80));
        return (__m512h)_mm512_ternarylogic_epi32(_mm512_set1_epi16((short)0x8000), at, moved,
                                                  0xca);
    }
    const int low = bits >= 4 ? 4 : 2, per_line = 8 / low;
    const __m512i v = _mm512_loadu_si512(lines + step / per_line * 64);
    const char *const high = lines + low * 64;
    __m512i at = msgl__bf16_move(v, step % per_line * low + 8 * odd, 0);
    if (bits == 5 || bits == 3) {
        const __m512i h = msgl__bf16_move(_mm512_loadu_si512(high), step + 8 * odd, low);
        at = _mm512_ternarylogic_epi32(_mm512_set1_epi16((1 << low) - 1), at, h, 0xca);
    } else if (bits == 6) { // 0x6400 is 1024, and 0x6400 | code is 1024 + code
        const __m512i h =
            msgl__bf16_move(_mm512_loadu_si512(high + step / 4 * 64), step % 4 * 2 + 8 * odd, 4);
        at = _mm512_ternarylogic_epi32(_mm512_set1_epi16(15), at, h, 0xca);
        at = _mm512_ternarylogic_epi32(at, _mm512_set1_epi16(63), _mm512_set1_epi16(0x6400), 0xea);
        return _mm512_sub_ph((__m512h)at, t->zero);
    }
    return (__m512h)_mm512_permutexvar_epi16(at, t->f16);
}

// f16 to bf16: its exponent and digits move three places, by a multiplication by 2^12 / 2^15 that
// rounds, and the sign, which that repeats in the places that became free, stays in the first.
MSGL_INLINE __m512i msgl__bf16_rounded(__m512h v, __m512i exponent)
{
    const __m512i moved = _mm512_mulhrs_epi16((__m512i)v, _mm512_set1_epi16(1 << 12));
    return _mm512_add_epi16(_mm512_and_si512(moved, _mm512_set1_epi16((short)0x8fff)), exponent);
}

// A block of codes to a B tile. The first 16 columns have group `first`, the others `second`.
MSGL_INLINE void msgl__bf16_expand_block(const char *lines, size_t ahead, const int bits,
                                         const bool min, const msgl_bf16_values *v,
                                         const msgl_bf16_scales *s, int first, int second,
                                         char *restrict to)
{
    const int num_lines = bits == MSGL_CODES_E4M3 ? 8 : bits;
    const msgl_bf16_values t = *v;
    const __m512i exponent = s->exponent;
    const __m512h scales[2] = {(__m512h)s->scale[first], (__m512h)s->scale[second]};
    const __m512h mins[2] = {(__m512h)s->min[first], (__m512h)s->min[second]};
#pragma GCC unroll 8
    for (int step = 0; step < 8; step++, to += 128) {
        const int line = step * num_lines / 8;
        if ((step + 1) * num_lines / 8 > line) _mm_prefetch(lines + ahead + line * 64, _MM_HINT_T1);
        for (int odd = 0; odd < 2; odd++) {
            const __m512h q = msgl__bf16_values_at(lines, bits, step, odd, &t),
                          scale = scales[step / 4];
            const __m512h y =
                min ? _mm512_fmadd_ph(q, scale, mins[step / 4]) : _mm512_mul_ph(q, scale);
            _mm512_store_si512(to + 64 * odd, msgl__bf16_rounded(y, exponent));
        }
    }
}

#endif
