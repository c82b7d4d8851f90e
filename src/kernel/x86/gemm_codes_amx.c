// SPDX-License-Identifier: Apache-2.0
//
// Codes at level AMX: weights become bf16 on their way from memory, scales multiplied in, so that a
// sum over k stays in its tile as it does with bf16 weights; activations are rounded to bf16.
//
// Some blocks of two panels, a stretch, are expanded to B tiles while the rows pass the stretch
// before it: a step of the rows' products (2 x 2 tiles) takes the matrix unit 64 cycles, in which
// the vector units have little else to do. With few rows expanding takes longest, and runs beside
// reading W; stretches are short then, so that both stay in the L1 cache.
//
// A value is made in f16, 32 at a time: q * scale + min, with scales multiplied by the power of two
// that brings a feature's largest value in the chunk to 2^14 and above. Behind its rounding to
// bf16's 8 digits an exponent is added. Example: a largest value of 0.3 = 1.2 * 2^-2 is 1.2 * 2^14,
// which f16 writes with the exponent 29 and bf16 with 125, so 96 is added. What is 2^30 times
// smaller than the largest, 0 too, becomes as small as that.
//
// Of four columns the first and third are one pair of a tile, the second and fourth the next: a
// shift of a line of codes brings two of them to the lower bits of 16-bit words. Rows are prepared
// in the same order, as A tiles: blocks of 16 rows (the last one fewer), each block
// [k / 32][rows][32] in bf16.
#include <math.h>
#include <stdlib.h>

#include "kernel/gemm_codes.h"
#include "kernel/x86/amx.h"

enum {
    SQUARES = 16, // blocks of 32 rows whose sums wait while others pass a stretch: 64 KB
    LONG = 8,     // blocks of a stretch, which divide a chunk's: with rows for several squares
    TILE_BYTES = 1024,
    E4M3 = 7, // stands for codes of 8 bits that are e4m3, as none have 7
};

// B tiles of a stretch of two panels.
typedef char stretch_tiles[2][LONG][TILE_BYTES];

// What makes bf16 of a chunk of one panel, for all 16 features: f16 twice, or exponents twice.
typedef struct chunk_scales {
    __m512i scale[MSGL_CODES_GROUPS], min[MSGL_CODES_GROUPS];
    __m512i exponent;
} chunk_scales;

// Of the codes' numbers.
typedef struct values {
    __m512i f16;  // of codes below 32
    __m512h zero; // of codes of 6 bits: what 1024 + code is more than q
    __m512 most;  // the largest |q|, ...
    int bits;     // ... which is below 2^bits
    __m512 unit;  // what scales are multiplied by first: of e4m3 the f16 is q / 256
} values;

typedef void (*expand_fn)(const char *lines, size_t ahead, const values *v, const chunk_scales *s,
                          int first, int second, char *to);

// The panels on their way to tiles: stretch after stretch, block after block.
typedef struct stream {
    const msgl_gemm_block *b;
    values values;
    expand_fn expand;
    size_t block_bytes;
    int per_block; // groups
    int stretch;
    size_t fetched; // bytes of a panel from what is expanded to what is fetched meanwhile
    // The chunk: where its pair of panels begins (a last panel alone is taken twice), ...
    const char *panels[2];
    int col;
    int passes;          // ... how many times that is still to be expanded, ...
    int first, end;      // ... the chunk's blocks, of the panel's, ...
    size_t at;           // ... its place in the panel, ...
    size_t scales_bytes; // ... how long its scales are, ...
    size_t ahead;        // ... and `fetched`, or more behind the first panel's end.
    // The stretch: its blocks; none behind the last one.
    int begin, blocks;
    // The next block: its place in the stretch, first group, codes and tile.
    int panel, block, group;
    const char *lines;
    chunk_scales scales[2];
    stretch_tiles *to;
    __mmask16 none[2]; // features of the pair that have a scale that is no number
    int due, steps;    // see expand_due()
} stream;

static int least(int a, int b)
{
    return a < b ? a : b;
}

size_t msgl__codes_row_bytes_amx(int kpad)
{
    return (size_t)kpad * sizeof(uint16_t);
}

void msgl__codes_prepare_amx(const float *in, size_t ld_in, int rows, int k, char *a,
                             size_t row_bytes)
{
    (void)row_bytes; // rows * row_bytes is the block's size, but rows are interleaved in it
    static const uint16_t ORDER[32] = {0,  2,  1,  3,  4,  6,  5,  7,  8,  10, 9,
                                       11, 12, 14, 13, 15, 16, 18, 17, 19, 20, 22,
                                       21, 23, 24, 26, 25, 27, 28, 30, 29, 31};
    const __m512i order = _mm512_loadu_si512(ORDER);
    for (int i = 0; i < k; i += 32) {
        const uint32_t mask = k - i < 32 ? (1u << (k - i)) - 1 : 0xffffffffu;
        for (int r = 0; r < rows; r++, a += 64) {
            const float *from = in + (size_t)r * ld_in + i;
            const __m512 lo = _mm512_maskz_loadu_ps((__mmask16)mask, from);
            const __m512 hi = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), from + 16);
            const __m512i words = (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
            _mm512_storeu_si512(a, _mm512_permutexvar_epi16(order, words));
        }
    }
}

// ---- values ----

static values values_of(const msgl_codes *c)
{
    const int codes = 1 << c->bits;
    const float unit = c->floats && c->bits == 8 ? 256 : 1;
    uint16_t words[32];
    float most = 0;
    for (int i = 0; i < codes; i++) {
        const float q = fabsf(msgl__code_number(c, (uint8_t)i));
        most = q > most ? q : most; // e4m3's NaN is not
    }
    for (int i = 0; i < 32; i++) { // what lies above the code's bits does not matter
        words[i] = msgl__f32_to_f16(msgl__code_number(c, (uint8_t)(i % codes)));
    }
    return (values){.f16 = _mm512_loadu_si512(words),
                    .zero = _mm512_set1_ph((_Float16)(1024 + c->zero)),
                    .most = _mm512_set1_ps(most / unit),
                    .bits = (int)log2f(most) + 1,
                    .unit = _mm512_set1_ps(unit)};
}

// ---- scales ----

// 16 numbers, which f16 holds, as f16, each of them twice.
MSGL_INLINE __m512i f16_pairs(__m512 v)
{
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    return _mm512_or_si512(low, _mm512_slli_epi32(low, 16));
}

MSGL_INLINE __m512i positive(__m512 v)
{
    return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
}

// By f32, of any scales. Numbers that are not negative are ordered as their bits are, with what is
// no number behind all of them.
static void take_any(stream *s, const char *panel, const char *at)
{
    chunk_scales *const to = &s->scales[s->panel];
    const msgl_codes *c = s->b->format->blocks->codes;
    const int groups = (s->end - s->first) * s->per_block;
    const bool min = msgl__codes_have_min(c);
    msgl_codes_scales f;
    msgl__codes_scales_of(c, panel, at, s->end - s->first, true, &f);
    __m512i most = _mm512_setzero_si512();
    for (int g = 0; g < groups; g++) {
        const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(f.scale[g]), s->values.unit);
        const __m512 scale = _mm512_castsi512_ps(positive(scaled));
        const __m512 less =
            min ? _mm512_castsi512_ps(positive(_mm512_load_ps(f.min[g]))) : _mm512_setzero_ps();
        most = _mm512_max_epi32(most, positive(_mm512_fmadd_ps(scale, s->values.most, less)));
    }
    const __m512i lowest = _mm512_set1_epi32(29);
    __m512i e = _mm512_srli_epi32(most, 23);
    s->none[s->panel] |= _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255));
    e = _mm512_max_epi32(e, lowest);
    const __m512 factor = _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(14 + 127 + 127), e), 23));
    const __m512 by = _mm512_mul_ps(factor, s->values.unit);
    for (int g = 0; g < groups; g++) {
        to->scale[g] = f16_pairs(_mm512_mul_ps(_mm512_load_ps(f.scale[g]), by));
        if (min) to->min[g] = f16_pairs(_mm512_mul_ps(_mm512_load_ps(f.min[g]), factor));
    }
    const __m512i exponent = _mm512_slli_epi32(_mm512_sub_epi32(e, lowest), 7);
    to->exponent = _mm512_or_si512(exponent, _mm512_slli_epi32(exponent, 16));
}

// 16 words, each of them twice.
MSGL_INLINE __m512i word_pairs(const char *at)
{
    static const uint16_t ORDER[32] = {0, 0, 1, 1, 2,  2,  3,  3,  4,  4,  5,  5,  6,  6,  7,  7,
                                       8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15};
    const __m256i words = _mm256_loadu_si256((const __m256i *)at);
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(ORDER), _mm512_castsi256_si512(words));
}

MSGL_INLINE __m512i magnitudes(__m512i f16)
{
    return _mm512_and_si512(f16, _mm512_set1_epi16(0x7fff));
}

// *out: what f16 scales and minimums are multiplied by, a power of two, where the largest are
// `scale` and `min`, and scales are multiplied by less than 2^scale_bits, minimums by at most
// 2^min_bits. With the exponents' fields e and f, values are below 2^(n - 13) for n = max(e +
// scale_bits, f + min_bits), so 2^(28 - n) brings them below 2^15. false: f16 has no such power.
static bool factor_of(stream *s, __m512i scale, __m512i min, int scale_bits, int min_bits,
                      __m512h *out)
{
    chunk_scales *const to = &s->scales[s->panel];
    const __m512i e = _mm512_srli_epi16(scale, 10), f = _mm512_srli_epi16(min, 10);
    const __m512i infinite = _mm512_set1_epi16(31); // in both words of a feature
    s->none[s->panel] |= _mm512_cmpeq_epi32_mask(_mm512_max_epi16(e, f), infinite);
    const __m512i n = _mm512_max_epi16(_mm512_add_epi16(e, _mm512_set1_epi16((short)scale_bits)),
                                       _mm512_add_epi16(f, _mm512_set1_epi16((short)min_bits)));
    const __m512i k =
        _mm512_min_epi16(_mm512_sub_epi16(_mm512_set1_epi16(28), n), _mm512_set1_epi16(15));
    to->exponent = _mm512_slli_epi16(_mm512_sub_epi16(_mm512_set1_epi16(112), k), 7);
    *out = (__m512h)_mm512_slli_epi16(_mm512_add_epi16(k, _mm512_set1_epi16(15)), 10);
    return _mm512_cmplt_epi16_mask(k, _mm512_set1_epi16(-14)) == 0;
}

// f16 for each group, as they are in the panel. Their values are below 2^24, so there is a factor.
static void take_f16(stream *s, const char *at)
{
    chunk_scales *const to = &s->scales[s->panel];
    const int groups = (s->end - s->first) * s->per_block;
    const bool min = msgl__codes_have_min(s->b->format->blocks->codes);
    const char *const mins = at + 32 * groups;
    __m512i scale = _mm512_setzero_si512(), less = scale;
    for (int g = 0; g < groups; g++) {
        to->scale[g] = word_pairs(at + 32 * g);
        scale = _mm512_max_epi16(scale, magnitudes(to->scale[g]));
        if (!min) continue;
        to->min[g] = word_pairs(mins + 32 * g);
        less = _mm512_max_epi16(less, magnitudes(to->min[g]));
    }
    __m512h factor;
    factor_of(s, scale, less, s->values.bits, 0, &factor);
    for (int g = 0; g < groups; g++) {
        to->scale[g] = (__m512i)_mm512_mul_ph((__m512h)to->scale[g], factor);
        if (min) to->min[g] = (__m512i)_mm512_mul_ph((__m512h)to->min[g], factor);
    }
}

// 16 bytes, each of them in the upper half of two words.
MSGL_INLINE __m512i byte_pairs(const char *at)
{
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)at));
    const __m512i order =
        _mm512_set_epi32((int)0x0f800f80, (int)0x0e800e80, (int)0x0d800d80, (int)0x0c800c80,
                         (int)0x0b800b80, (int)0x0a800a80, (int)0x09800980, (int)0x08800880,
                         (int)0x07800780, (int)0x06800680, (int)0x05800580, (int)0x04800480,
                         (int)0x03800380, (int)0x02800280, (int)0x01800180, (int)0x00800080);
    return _mm512_shuffle_epi8(bytes, order);
}

// Of two levels. false: they are too large for f16.
static bool take_two_levels(stream *s, const char *at)
{
    chunk_scales *const to = &s->scales[s->panel];
    const msgl_codes *c = s->b->format->blocks->codes;
    const int groups = (s->end - s->first) * s->per_block;
    const bool min = msgl__codes_have_min(c), u4 = c->scaling == MSGL_SCALING_U4;
    const int bits = u4 ? 4 : 8;
    const __m512i d = word_pairs(at), less = min ? word_pairs(at + 32) : _mm512_setzero_si512();
    __m512h factor;
    if (!factor_of(s, magnitudes(d), magnitudes(less), s->values.bits + bits, bits, &factor)) {
        return false;
    }
    const __m512h by = _mm512_mul_ph((__m512h)d, factor);
    const __m512h by_min =
        _mm512_mul_ph((__m512h)_mm512_xor_si512(less, _mm512_set1_epi16((short)0x8000)), factor);
    const char *cs = at + (min ? 64 : 32), *const es = cs + 16 * groups;
    for (int g = 0; g < groups; g++, cs += 16) {
        const __m512i both = byte_pairs(cs);
        if (!min) {
            const __m512h scale = _mm512_cvtepi16_ph(_mm512_srai_epi16(both, 8));
            to->scale[g] = (__m512i)_mm512_mul_ph(scale, by);
            continue;
        }
        const __m512i low = _mm512_srli_epi16(u4 ? _mm512_slli_epi16(both, 4) : both, u4 ? 12 : 8);
        const __m512i high = _mm512_srli_epi16(u4 ? both : byte_pairs(es + 16 * g), u4 ? 12 : 8);
        to->scale[g] = (__m512i)_mm512_mul_ph(_mm512_cvtepu16_ph(low), by);
        to->min[g] = (__m512i)_mm512_mul_ph(_mm512_cvtepu16_ph(high), by_min);
    }
    return true;
}

// The scales of the chunk in the panel that is next.
static void take_scales(stream *s)
{
    const msgl_codes *c = s->b->format->blocks->codes;
    const char *panel = s->panels[s->panel], *at = panel + s->at;
    const bool own = c->offset == MSGL_OFFSET_NONE ||
                     (c->offset == MSGL_OFFSET_MIN && c->zero == 0); // no sum of scale and minimum
    if (c->scaling != MSGL_SCALING_ONE) {
        if (!take_two_levels(s, at)) take_any(s, panel, at);
    } else if (c->number == MSGL_NUMBER_F16 && c->span == c->group && c->factor == 0 && own &&
               !c->floats) {
        take_f16(s, at);
    } else {
        take_any(s, panel, at);
    }
}

// v shifted so that bit `from` of its words comes to bit `to`.
MSGL_INLINE __m512i move(__m512i v, const int from, const int to)
{
    return from == to  ? v
           : from > to ? _mm512_srli_epi16(v, (unsigned)(from - to))
                       : _mm512_slli_epi16(v, (unsigned)(to - from));
}

// q of a step's columns 0 and 2, or with odd 1 and 3, of all features.
MSGL_INLINE __m512h values_at(const char *lines, const int bits, const int step, const int odd,
                              const values *t)
{
    if (bits == 8) {
        const __m512i v = _mm512_loadu_si512(lines + step * 64);
        return _mm512_cvtepi16_ph(_mm512_srai_epi16(odd ? v : _mm512_slli_epi16(v, 8), 8));
    }
    if (bits == E4M3) { // s eeee mmm becomes s 0eeee mmm0000000
        const __m512i v = _mm512_loadu_si512(lines + step * 64);
        const __m512i at = odd ? v : _mm512_slli_epi16(v, 8);
        const __m512i moved = _mm512_and_si512(_mm512_srli_epi16(at, 1), _mm512_set1_epi16(0x3f80));
        return (__m512h)_mm512_ternarylogic_epi32(_mm512_set1_epi16((short)0x8000), at, moved,
                                                  0xca);
    }
    const int low = bits >= 4 ? 4 : 2, per_line = 8 / low;
    const __m512i v = _mm512_loadu_si512(lines + step / per_line * 64);
    const char *const high = lines + low * 64;
    __m512i at = move(v, step % per_line * low + 8 * odd, 0);
    if (bits == 5 || bits == 3) {
        const __m512i h = move(_mm512_loadu_si512(high), step + 8 * odd, low);
        at = _mm512_ternarylogic_epi32(_mm512_set1_epi16((1 << low) - 1), at, h, 0xca);
    } else if (bits == 6) { // 0x6400 is 1024, and 0x6400 | code is 1024 + code
        const __m512i h = move(_mm512_loadu_si512(high + step / 4 * 64), step % 4 * 2 + 8 * odd, 4);
        at = _mm512_ternarylogic_epi32(_mm512_set1_epi16(15), at, h, 0xca);
        at = _mm512_ternarylogic_epi32(at, _mm512_set1_epi16(63), _mm512_set1_epi16(0x6400), 0xea);
        return _mm512_sub_ph((__m512h)at, t->zero);
    }
    return (__m512h)_mm512_permutexvar_epi16(at, t->f16);
}

// f16 to bf16: its exponent and digits move three places, by a multiplication by 2^12 / 2^15 that
// rounds, and the sign, which that repeats in the places that became free, stays in the first.
MSGL_INLINE __m512i rounded(__m512h v, __m512i exponent)
{
    const __m512i moved = _mm512_mulhrs_epi16((__m512i)v, _mm512_set1_epi16(1 << 12));
    return _mm512_add_epi16(_mm512_and_si512(moved, _mm512_set1_epi16((short)0x8fff)), exponent);
}

// A block of codes to a B tile. The first 16 columns have group `first`, the others `second`.
MSGL_INLINE void expand_block(const char *lines, size_t ahead, const int bits, const bool min,
                              const values *v, const chunk_scales *s, int first, int second,
                              char *restrict to)
{
    const int num_lines = bits == E4M3 ? 8 : bits;
    const values t = *v;
    const __m512i exponent = s->exponent;
    const __m512h scales[2] = {(__m512h)s->scale[first], (__m512h)s->scale[second]};
    const __m512h mins[2] = {(__m512h)s->min[first], (__m512h)s->min[second]};
#pragma GCC unroll 8
    for (int step = 0; step < 8; step++, to += 128) {
        const int line = step * num_lines / 8;
        if ((step + 1) * num_lines / 8 > line) _mm_prefetch(lines + ahead + line * 64, _MM_HINT_T1);
        for (int odd = 0; odd < 2; odd++) {
            const __m512h q = values_at(lines, bits, step, odd, &t), scale = scales[step / 4];
            const __m512h y =
                min ? _mm512_fmadd_ph(q, scale, mins[step / 4]) : _mm512_mul_ph(q, scale);
            _mm512_store_si512(to + 64 * odd, rounded(y, exponent));
        }
    }
}

#define EXPAND(bits, min)                                                                          \
    static MSGL_NOINLINE void expand_##bits##_##min(const char *lines, size_t ahead,               \
                                                    const values *v, const chunk_scales *s,        \
                                                    int first, int second, char *to)               \
    {                                                                                              \
        expand_block(lines, ahead, bits, min, v, s, first, second, to);                            \
    }
#define EACH_BITS(X, min) X(2, min) X(3, min) X(4, min) X(5, min) X(6, min) X(8, min)
EXPAND(E4M3, 0)
EACH_BITS(EXPAND, 0)
EACH_BITS(EXPAND, 1)
#define EXPAND_ENTRY(bits, min) [bits] = expand_##bits##_##min,
static const expand_fn EXPANDS[2][9] = {{EACH_BITS(EXPAND_ENTRY, 0) EXPAND_ENTRY(E4M3, 0)},
                                        {EACH_BITS(EXPAND_ENTRY, 1)}};

// ---- the stream ----

// The stretch at s->begin.
static void begin_stretch(stream *s)
{
    s->blocks = least(s->end - s->begin, s->stretch);
    s->panel = s->block = 0;
}

// The chunk at s->at, and its first stretch. What comes behind a panel is in the next pair.
static void begin_chunk(stream *s)
{
    const int blocks = least(msgl__codes_blocks(s->b->k) - s->first, MSGL_CODES_CHUNK);
    s->begin = s->first;
    s->end = s->first + blocks;
    s->scales_bytes = msgl__codes_scales_bytes(s->b->format->blocks->codes, blocks);
    s->ahead = s->fetched;
    if (s->at + s->fetched >= s->b->panel_bytes) s->ahead += s->b->panel_bytes;
    begin_stretch(s);
}

// Begins the pair of panels at s->col, or ends the stream.
static void begin_pair(stream *s)
{
    const msgl_gemm_block *b = s->b;
    s->first = s->blocks = 0;
    if (s->col >= b->cols) return;
    const char *panel = b->w + (size_t)(s->col / MSGL_GEMM_LANES) * b->panel_bytes;
    const bool alone = b->cols - s->col <= MSGL_GEMM_LANES;
    s->panels[0] = panel;
    s->panels[1] = alone ? panel : panel + b->panel_bytes;
    s->at = msgl__codes_front_bytes(b->format->blocks->codes);
    begin_chunk(s);
}

// The stretch is expanded: on to the next one, of the same pair or the next.
static void next_stretch(stream *s)
{
    s->begin += s->blocks;
    if (s->begin < s->end) {
        begin_stretch(s);
    } else if (s->end < msgl__codes_blocks(s->b->k)) {
        s->at += s->scales_bytes + (size_t)(s->end - s->first) * s->block_bytes;
        s->first = s->end;
        begin_chunk(s);
    } else {
        if (--s->passes == 0) {
            s->passes = msgl__ceil_div(s->b->rows, 32 * SQUARES);
            s->col += 2 * MSGL_GEMM_LANES;
        }
        begin_pair(s);
    }
}

static void begin_panel(stream *s)
{
    const char *chunk = s->panels[s->panel] + s->at;
    const int block = s->begin - s->first; // of the chunk's
    for (size_t i = 0; block == 0 && i < s->scales_bytes; i += 64) {
        _mm_prefetch(chunk + s->ahead + i, _MM_HINT_T1);
    }
    if (block == 0) take_scales(s);
    s->lines = chunk + s->scales_bytes + (size_t)block * s->block_bytes;
    s->group = block * s->per_block;
}

static MSGL_NOINLINE void expand_next(stream *s)
{
    if (s->block == 0) begin_panel(s);
    s->expand(s->lines, s->ahead, &s->values, &s->scales[s->panel], s->group,
              s->group + s->per_block - 1, (*s->to)[s->panel][s->block]);
    s->lines += s->block_bytes;
    s->group += s->per_block;
    if (++s->block < s->blocks) return;
    s->block = 0;
    s->panel++;
}

// Expands what is left of the stretch.
static void expand_rest(stream *s)
{
    while (s->blocks > 0 && s->panel < 2) expand_next(s);
    MSGL_AMX_BARRIER(s->to);
}

// One of s->steps steps that a stretch's expansion is spread over.
MSGL_INLINE void expand_due(stream *s)
{
    for (s->due += 2 * s->blocks; s->due >= s->steps; s->due -= s->steps) expand_next(s);
}

// ---- products ----

// Up to 32 rows: A tiles, which are rows0 * 64 and rows1 * 64 bytes apart over k, and sums
// [4][16][16]: of the first rows and first panel, the first rows and second panel, and so on.
typedef struct square {
    const char *a0, *a1;
    int rows0, rows1;
    float *sums;
    bool first, last; // sums begin here, and go to memory; else they stay in tiles
    bool reload;      // they are in memory
} square;

// A stretch of `blocks` blocks. Tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 weights.
MSGL_INLINE void multiply(stream *s, const square *q, stretch_tiles *w, int blocks, const bool two)
{
    const char *a0 = q->a0, *a1 = q->a1;
    if (q->first) {
        _tile_zero(0);
        _tile_zero(1);
        if (two) _tile_zero(2);
        if (two) _tile_zero(3);
    } else if (q->reload) {
        _tile_loadd(0, q->sums, 64);
        _tile_loadd(1, q->sums + 256, 64);
        if (two) _tile_loadd(2, q->sums + 512, 64);
        if (two) _tile_loadd(3, q->sums + 768, 64);
    }
    for (int i = 0; i < blocks; i++) {
        expand_due(s);
        _tile_loadd(4, a0, 64);
        _tile_loadd(6, (*w)[0][i], 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, (*w)[1][i], 64);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
            _tile_loadd(5, a1, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        a0 += q->rows0 * 64;
        a1 += q->rows1 * 64;
    }
    if (!q->last) return;
    _tile_stored(0, q->sums, 64);
    _tile_stored(1, q->sums + 256, 64);
    if (two) _tile_stored(2, q->sums + 512, 64);
    if (two) _tile_stored(3, q->sums + 768, 64);
    MSGL_AMX_BARRIER(q->sums);
}

static MSGL_NOINLINE void multiply_1(stream *s, const square *q, stretch_tiles *w, int blocks)
{
    multiply(s, q, w, blocks, false);
}
static MSGL_NOINLINE void multiply_2(stream *s, const square *q, stretch_tiles *w, int blocks)
{
    multiply(s, q, w, blocks, true);
}

static void configure(int configured[2], int rows0, int rows1)
{
    const uint8_t r0 = (uint8_t)rows0, r1 = (uint8_t)(rows1 > 0 ? rows1 : rows0);
    if (configured[0] == r0 && configured[1] == r1) return;
    msgl__amx_configure((const uint8_t[8]){r0, r0, r1, r1, r0, r1, 16, 16});
    configured[0] = r0;
    configured[1] = r1;
}

// Rows [row, row + rows) of b, times a stretch of `blocks` blocks from number `first` on; sums of
// 32 rows each. Those of one square stay in their tiles.
static void stretch_rows(stream *s, int row, int rows, int first, int blocks, stretch_tiles *w,
                         int configured[2], float (*sums)[1024])
{
    const msgl_gemm_block *b = s->b;
    const bool several = rows > 32;
    s->due = 0;
    s->steps = msgl__ceil_div(rows, 32) * blocks;
    for (int r = 0; r < rows; r += 32, sums++) {
        const int n = least(rows - r, 32), n0 = least(n, 16), n1 = n - n0;
        const char *a = b->a + (size_t)(row + r) * b->a_row_bytes;
        const square q = {.a0 = a + (size_t)(first * n0) * 64,
                          .a1 = a + (size_t)n0 * b->a_row_bytes + (size_t)(first * n1) * 64,
                          .rows0 = n0,
                          .rows1 = n1,
                          .sums = *sums,
                          .first = first == 0,
                          .last = several || first + blocks == msgl__codes_blocks(b->k),
                          .reload = several};
        configure(configured, n0, n1);
        (n1 > 0 ? multiply_2 : multiply_1)(s, &q, w, blocks);
    }
    expand_rest(s);
}

// Rows' sums of one panel of the pair at col to the result.
static void finish(const msgl_gemm_block *b, float (*sums)[1024], int row, int rows, int col,
                   int panel, __mmask16 none)
{
    col += panel * MSGL_GEMM_LANES;
    const int n = least(b->cols - col, MSGL_GEMM_LANES);
    const __mmask16 some = (__mmask16)((1u << n) - 1);
    const __m512 nan = _mm512_set1_ps(NAN);
    for (int r = 0; r < rows; r++) {
        float *out = b->out + (size_t)(row + r) * b->ld_out + col;
        __m512 y = _mm512_loadu_ps(&sums[r / 32][(r % 32 / 16 * 2 + panel) * 256 + r % 16 * 16]);
        y = _mm512_mask_mov_ps(y, none, nan);
        if (b->bias != NULL) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(some, b->bias + col));
        if (b->add) y = _mm512_add_ps(_mm512_maskz_loadu_ps(some, out), y);
        _mm512_mask_storeu_ps(out, some, y);
    }
}

void msgl__codes_block_amx(const msgl_gemm_block *b)
{
    const msgl_codes *c = b->format->blocks->codes;
    const int blocks = msgl__codes_blocks(b->k), most = 32 * SQUARES;
    stretch_tiles tiles[2] MSGL_ALIGNED(64);
    float sums[SQUARES][1024] MSGL_ALIGNED(64);
    int configured[2] = {0, 0};
    // With few rows, as measured: 8 bits are bound by memory, fewer by expanding them.
    const int short_stretch = c->bits == 8 ? 2 : 4;
    stream s = {.b = b,
                .values = values_of(c),
                .expand =
                    EXPANDS[msgl__codes_have_min(c)][c->floats && c->bits == 8 ? E4M3 : c->bits],
                .block_bytes = msgl__codes_block_bytes(c),
                .per_block = MSGL_CODES_BLOCK / c->group,
                .stretch = b->rows > 32 ? LONG : short_stretch,
                .fetched = c->bits == 8 ? 2048 : 8192,
                .passes = msgl__ceil_div(b->rows, most),
                .to = &tiles[0]};
    MSGL_AMX_BARRIER(b->a);
    begin_pair(&s);
    expand_rest(&s);
    for (int col = 0; col < b->cols; col += 2 * MSGL_GEMM_LANES) {
        for (int row = 0; row < b->rows; row += most) {
            const int rows = least(b->rows - row, most);
            __mmask16 none[2] = {0, 0};
            for (int at = 0; at < blocks; at += s.stretch) {
                stretch_tiles *const now = s.to;
                for (int i = 0; i < 2; i++) {
                    none[i] |= s.none[i];
                    s.none[i] = 0;
                }
                s.to = now == &tiles[0] ? &tiles[1] : &tiles[0];
                next_stretch(&s);
                stretch_rows(&s, row, rows, at, least(blocks - at, s.stretch), now, configured,
                             sums);
            }
            finish(b, sums, row, rows, col, 0, none[0]);
            if (b->cols - col <= MSGL_GEMM_LANES) continue;
            finish(b, sums, row, rows, col, 1, none[1]);
        }
    }
    _tile_release(); // an idle tile file costs nothing at a context switch
}
