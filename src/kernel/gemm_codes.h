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
// Activations are rounded by blocks of 32 columns as int8 weights are (MSGL_WFORMAT_INT8), at level
// AMX to bf16 (x86/gemm_codes_amx.c). The product of a group is a sum of integers, exact; with the
// weights' scale it becomes a float, two groups of 16 are added, the activations' scale multiplies,
// and that is added to the sum over k. A minimum is multiplied by the sum of the rounded
// activations instead.
#ifndef MSGL_KERNEL_GEMM_CODES_H
#define MSGL_KERNEL_GEMM_CODES_H

#include "kernel/gemm_int8.h"
#include "quant/blocks.h"

enum {
    MSGL_CODES_BLOCK = 32,
    MSGL_CODES_CHUNK = 8,   // blocks
    MSGL_CODES_GROUPS = 16, // of a chunk, at most
};

// Of a block of a prepared row; all of them are in front of the row's integers.
typedef struct msgl_codes_head {
    float scale;
    float sum, sum16[2]; // of the rounded activations: of all 32, and of each half
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
static inline size_t msgl__codes_number_bytes(const msgl_codes *c)
{
    return c->number == MSGL_NUMBER_F32                                    ? 4
           : c->number == MSGL_NUMBER_F16 || c->number == MSGL_NUMBER_BF16 ? 2
                                                                           : 1;
}

// Bytes of scales that so many spans have, with their offsets.
static inline size_t msgl__codes_spans_bytes(const msgl_codes *c, int spans)
{
    const size_t d = msgl__codes_number_bytes(c), lanes = MSGL_GEMM_LANES;
    const size_t more = c->offset == MSGL_OFFSET_ZERO ? 1 : c->offset == MSGL_OFFSET_MIN ? d : 0;
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

static inline size_t msgl__codes_heads_bytes(int k)
{
    return msgl__round_up((size_t)msgl__codes_blocks(k) * sizeof(msgl_codes_head), 64);
}

// msgl_gemm_micro.row_bytes, of rows with integers of `size` bytes.
static inline size_t msgl__codes_row_bytes(int k, size_t size)
{
    return msgl__codes_heads_bytes(k) +
           ((size_t)msgl__codes_blocks(k) * MSGL_CODES_BLOCK + 64) * size;
}

MSGL_INLINE void msgl__codes_f16_lanes(const char *f16, float *out)
{
#if defined(__F16C__)
    for (int i = 0; i < MSGL_GEMM_LANES; i += 8) {
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(f16 + 2 * i))));
    }
#else
    uint16_t bits[MSGL_GEMM_LANES];
    memcpy(bits, f16, sizeof bits);
    for (int i = 0; i < MSGL_GEMM_LANES; i++) out[i] = msgl__f16_to_f32(bits[i]);
#endif
}

// 2^(e - 128); e of 0 and 1 are subnormal numbers.
MSGL_INLINE void msgl__codes_e8m0_half_lanes(const uint8_t *e, float *out)
{
    for (int i = 0; i < MSGL_GEMM_LANES; i++) {
        const uint32_t bits = e[i] < 2 ? 0x00200000u << e[i] : (uint32_t)(e[i] - 1) << 23;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

// 2^(e - 127); 0 is a subnormal number, 255 none.
MSGL_INLINE void msgl__codes_e8m0_lanes(const uint8_t *e, float *out)
{
    for (int i = 0; i < MSGL_GEMM_LANES; i++) {
        const uint32_t bits = e[i] == 0     ? 0x00400000u
                              : e[i] == 255 ? 0x7fc00000u
                                            : (uint32_t)e[i] << 23;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

// By way of f16 with the same bits behind the sign, which is the number / 256.
MSGL_INLINE void msgl__codes_e4m3_lanes(const uint8_t *b, float *out)
{
    uint16_t f16[MSGL_GEMM_LANES];
    for (int i = 0; i < MSGL_GEMM_LANES; i++) {
        const uint32_t m = b[i] & 0x7fu;
        f16[i] = (uint16_t)((b[i] & 0x80u) << 8 | (m == 0x7f ? 0x7e00u : m << 7));
    }
    msgl__codes_f16_lanes((const char *)f16, out);
    for (int i = 0; i < MSGL_GEMM_LANES; i++) out[i] *= 256;
}

MSGL_INLINE void msgl__codes_bf16_lanes(const char *bf16, float *out)
{
    uint16_t bits[MSGL_GEMM_LANES];
    memcpy(bits, bf16, sizeof bits);
    for (int i = 0; i < MSGL_GEMM_LANES; i++) out[i] = msgl__bf16_to_f32(bits[i]);
}

// A span's d or dmin.
MSGL_INLINE void msgl__codes_number_lanes(const msgl_codes *c, const char *at, float *out)
{
    switch (c->number) {
    case MSGL_NUMBER_F16: msgl__codes_f16_lanes(at, out); break;
    case MSGL_NUMBER_BF16: msgl__codes_bf16_lanes(at, out); break;
    case MSGL_NUMBER_E4M3: msgl__codes_e4m3_lanes((const uint8_t *)at, out); break;
    case MSGL_NUMBER_E8M0: msgl__codes_e8m0_lanes((const uint8_t *)at, out); break;
    case MSGL_NUMBER_E8M0_HALF: msgl__codes_e8m0_half_lanes((const uint8_t *)at, out); break;
    default: memcpy(out, at, MSGL_GEMM_LANES * sizeof *out);
    }
}

// A span's scales from its d.
MSGL_INLINE void msgl__codes_span_scales(const msgl_codes *c, const char *at, float *out)
{
    msgl__codes_number_lanes(c, at, out);
    if (c->factor == 0) return;
    for (int i = 0; i < MSGL_GEMM_LANES; i++) {
        out[i] = c->divided ? out[i] / c->factor : out[i] * c->factor;
    }
}

// A span's offsets as the file has them, or with `as_min` the minimum beside `scale`.
MSGL_INLINE void msgl__codes_span_offsets(const msgl_codes *c, const char *at, const float *scale,
                                          const bool as_min, float *out)
{
    if (c->offset == MSGL_OFFSET_MIN) {
        msgl__codes_number_lanes(c, at, out);
        if (!as_min || c->zero == 0) return;
        for (int i = 0; i < MSGL_GEMM_LANES; i++) out[i] += scale[i] * (float)c->zero;
        return;
    }
    const int8_t *e = (const int8_t *)at;
    for (int i = 0; i < MSGL_GEMM_LANES; i++)
        out[i] = as_min ? scale[i] * -(float)e[i] : (float)e[i];
}

// of: one for each group of the span that is in this chunk.
MSGL_INLINE void msgl__codes_repeat(float (*of)[MSGL_GEMM_LANES], int groups)
{
    for (int g = 1; g < groups; g++) memcpy(of[g], of[0], sizeof of[0]);
}

MSGL_INLINE void msgl__codes_one_level_scales(const msgl_codes *c, const char *at, int groups,
                                              const bool as_min, msgl_codes_scales *out)
{
    const int per_span = c->span == 0 ? groups : c->span / c->group;
    const int spans = msgl__ceil_div(groups, per_span);
    const size_t d_bytes = MSGL_GEMM_LANES * msgl__codes_number_bytes(c);
    const size_t e_bytes = c->offset == MSGL_OFFSET_ZERO ? MSGL_GEMM_LANES : d_bytes;
    const char *offsets = at + (size_t)spans * d_bytes;
    for (int g = 0; g < groups; g += per_span, at += d_bytes, offsets += e_bytes) {
        const int some = groups - g < per_span ? groups - g : per_span;
        msgl__codes_span_scales(c, at, out->scale[g]);
        msgl__codes_repeat(&out->scale[g], some);
        if (!msgl__codes_have_min(c)) continue;
        msgl__codes_span_offsets(c, offsets, out->scale[g], as_min, out->min[g]);
        msgl__codes_repeat(&out->min[g], some);
    }
}

MSGL_INLINE void msgl__codes_two_level_scales(const msgl_codes *c, const char *at, int groups,
                                              msgl_codes_scales *out)
{
    const bool min = msgl__codes_have_min(c), u4 = c->scaling == MSGL_SCALING_U4;
    const size_t d_bytes = 2 * MSGL_GEMM_LANES, c_bytes = (size_t)groups * MSGL_GEMM_LANES;
    const uint8_t *cs = (const uint8_t *)at + (min ? 2 * d_bytes : d_bytes);
    const uint8_t *es = u4 ? cs : cs + c_bytes;
    float d[MSGL_GEMM_LANES], dmin[MSGL_GEMM_LANES] = {0};
    msgl__codes_f16_lanes(at, d);
    if (min) msgl__codes_f16_lanes(at + d_bytes, dmin);
    for (int g = 0; g < groups; g++, cs += MSGL_GEMM_LANES, es += MSGL_GEMM_LANES) {
        float *scale = out->scale[g], *less = out->min[g];
        if (!min) {
            for (int i = 0; i < MSGL_GEMM_LANES; i++) scale[i] = d[i] * (float)(int8_t)cs[i];
        } else if (u4) {
            for (int i = 0; i < MSGL_GEMM_LANES; i++) scale[i] = d[i] * (float)(cs[i] & 15);
            for (int i = 0; i < MSGL_GEMM_LANES; i++) less[i] = -(dmin[i] * (float)(es[i] >> 4));
        } else {
            for (int i = 0; i < MSGL_GEMM_LANES; i++) scale[i] = d[i] * (float)cs[i];
            for (int i = 0; i < MSGL_GEMM_LANES; i++) less[i] = -(dmin[i] * (float)es[i]);
        }
    }
}

// The scales of a chunk of `blocks` blocks that begins at `at`, of a panel.
MSGL_INLINE void msgl__codes_scales_of(const msgl_codes *c, const char *panel, const char *at,
                                       int blocks, msgl_codes_scales *out)
{
    const int groups = blocks * MSGL_CODES_BLOCK / c->group;
    if (c->scaling == MSGL_SCALING_ONE) {
        msgl__codes_one_level_scales(c, c->span == 0 ? panel : at, groups, true, out);
    } else {
        msgl__codes_two_level_scales(c, at, groups, out);
    }
}

// How a prepared row holds its integers.
typedef enum msgl_codes_rows {
    MSGL_CODES_SIGNED,   // bytes
    MSGL_CODES_UNSIGNED, // bytes, + 128
    MSGL_CODES_WIDE,     // 16 bits: of every four the first and third, then the second and fourth
} msgl_codes_rows;

// Rounds 32 activations as MSGL_WFORMAT_INT8 says.
MSGL_INLINE msgl_codes_head msgl__codes_round(const float *v, int8_t *q)
{
    const int half = MSGL_CODES_BLOCK / 2;
    const float scale = msgl__int8_quantize(v, q, MSGL_CODES_BLOCK);
    const int32_t first = msgl__int8_sum(q, half), second = msgl__int8_sum(q + half, half);
    return (msgl_codes_head){
        scale, scale * (float)(first + second), {scale * (float)first, scale * (float)second}};
}

MSGL_INLINE char *msgl__codes_put(const int8_t q[MSGL_CODES_BLOCK], char *to,
                                  const msgl_codes_rows how)
{
    if (how == MSGL_CODES_WIDE) {
        for (int i = 0; i < MSGL_CODES_BLOCK; i += 4, to += 8) {
            const int16_t four[4] = {q[i], q[i + 2], q[i + 1], q[i + 3]};
            memcpy(to, four, sizeof four);
        }
        return to;
    }
    const uint8_t flip = how == MSGL_CODES_UNSIGNED ? 0x80 : 0;
    for (int i = 0; i < MSGL_CODES_BLOCK; i++) to[i] = (char)((uint8_t)q[i] ^ flip);
    return to + MSGL_CODES_BLOCK;
}

// msgl_gemm_micro.prepare of codes.
MSGL_INLINE void msgl__codes_prepare(const float *in, size_t ld_in, int rows, int k, char *a,
                                     size_t row_bytes, const msgl_codes_rows how)
{
    for (int r = 0; r < rows; r++, a += row_bytes, in += ld_in) {
        char *to = a + msgl__codes_heads_bytes(k);
        msgl_codes_head *head = (msgl_codes_head *)a;
        for (int at = 0; at < k; at += MSGL_CODES_BLOCK, head++) {
            const float *v = in + at;
            float last[MSGL_CODES_BLOCK] = {0};
            int8_t q[MSGL_CODES_BLOCK];
            if (k - at < MSGL_CODES_BLOCK) v = memcpy(last, v, (size_t)(k - at) * sizeof *v);
            *head = msgl__codes_round(v, q);
            to = msgl__codes_put(q, to, how);
        }
    }
}

// The format that keeps blocks; see msgl_gemm_kernels.
bool msgl__gemm_keep(const msgl_blocks *b, int k, bool exact, msgl_wformat *out);
// The feature in this lane of a panel as f32: out[0, k).
void msgl__kept_lane(const msgl_wformat *f, const char *panel, int lane, int k, float *out);
// The integers of a panel's block of codes.
void msgl__codes_values(const msgl_codes *c, const char *block,
                        int8_t q[MSGL_CODES_BLOCK][MSGL_GEMM_LANES]);
// MSGL_W_BLOCKS by a level's product of f32 weights, which has to take `add`.
void msgl__kept_block(const msgl_gemm_block *b, void (*f32)(const msgl_gemm_block *b));

// Levels' kernels. AVX-512-BF16 has AVX-512-VNNI's.
size_t msgl__codes_row_bytes_8(int kpad);
size_t msgl__codes_row_bytes_16(int kpad);
void msgl__codes_prepare_avx2(const float *in, size_t ld_in, int rows, int k, char *a,
                              size_t row_bytes);
void msgl__codes_prepare_avx512(const float *in, size_t ld_in, int rows, int k, char *a,
                                size_t row_bytes);
void msgl__codes_prepare_avx512vnni(const float *in, size_t ld_in, int rows, int k, char *a,
                                    size_t row_bytes);
void msgl__codes_block_avx2(const msgl_gemm_block *b);
void msgl__codes_block_avx512(const msgl_gemm_block *b);
void msgl__codes_block_avx512vnni(const msgl_gemm_block *b);
size_t msgl__codes_row_bytes_amx(int kpad);
void msgl__codes_prepare_amx(const float *in, size_t ld_in, int rows, int k, char *a,
                             size_t row_bytes);
void msgl__codes_block_amx(const msgl_gemm_block *b);
#define MSGL_CODES_MICRO_VNNI                                                                      \
    {                                                                                              \
        msgl__codes_row_bytes_8, 150, 512, msgl__codes_prepare_avx512vnni,                         \
            msgl__codes_block_avx512vnni, true, 0                                                  \
    }

#endif
