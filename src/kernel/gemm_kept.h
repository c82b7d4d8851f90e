// SPDX-License-Identifier: Apache-2.0
//
// Products of weights that keep blocks by way of the numbers that they stand for (MSGL_W_BLOCKS):
// a panel's 256 columns become f32, all rows are multiplied by them, and so on. Compiled in each
// level's file, with its vectors.
#ifndef MSGL_KERNEL_GEMM_KEPT_H
#define MSGL_KERNEL_GEMM_KEPT_H

#include "kernel/gemm_codes.h"

enum { MSGL_KEPT_TILE = MSGL_CODES_CHUNK * MSGL_CODES_BLOCK }; // columns: whole blocks of all forms
typedef float msgl_kept_tile[MSGL_KEPT_TILE][MSGL_GEMM_LANES];

// Columns [at, at + columns) of a panel of blocks that have no codes.
void msgl__kept_raw_tile(const msgl_blocks *form, int k, const char *panel, int at, int columns,
                         msgl_kept_tile tile);

// book[code] of each lane, codes below 16.
MSGL_INLINE msgl_codes_vf msgl__codes_look_up(const float book[16], msgl_codes_vi codes)
{
#if defined(__AVX512F__)
    return (msgl_codes_vf)_mm512_permutexvar_ps((__m512i)codes, _mm512_loadu_ps(book));
#elif defined(__AVX2__)
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(book), (__m256i)codes);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(book + 8), (__m256i)codes);
    return (msgl_codes_vf)_mm256_blendv_ps(low, high, (__m256)(codes << 28));
#else
    msgl_codes_vf v;
    for (int i = 0; i < MSGL_CODES_LANES; i++) v[i] = book[codes[i]];
    return v;
#endif
}

MSGL_INLINE msgl_codes_vi msgl__codes_words(const char *at)
{
    msgl_codes_vi v;
    memcpy(&v, at, sizeof v);
    return v;
}

// The codes of a step's four columns, one a byte, of the lanes from `lane` on.
MSGL_INLINE msgl_codes_vi msgl__codes_step(const int bits, const char *block, int step, int lane)
{
    const int low = bits == 8 ? 8 : bits >= 4 ? 4 : 2, high = bits - low, per_line = 8 / low;
    const char *const first = block + step / per_line * 64 + lane * 4;
    const int32_t mask = (int32_t)(0x01010101u * ((1u << low) - 1));
    const msgl_codes_vi v = msgl__codes_words(first) >> step % per_line * low & mask;
    if (high == 0) return v;
    const char *const second = block + low * 64 + step / (8 / high) * 64 + lane * 4;
    const int32_t bits_high = (int32_t)(0x01010101u * ((1u << high) - 1));
    return v | (msgl__codes_words(second) >> step % (8 / high) * high & bits_high) << low;
}

// q of codes. book: of those that are looked up.
MSGL_INLINE msgl_codes_vf msgl__codes_numbers_of(const msgl_codes *c, const float book[16],
                                                 msgl_codes_vi codes)
{
    if (c->floats && c->bits == 8) return msgl__codes_e4m3(codes);
    if (c->floats || c->values != NULL) return msgl__codes_look_up(book, codes);
    return msgl__codes_floats(c->bits == 8 ? (codes ^ 0x80) - 0x80 : codes - c->zero);
}

// msgl__codes_value of lanes.
MSGL_INLINE msgl_codes_vf msgl__codes_values_of(const msgl_codes *c, msgl_codes_vf scale,
                                                msgl_codes_vf offset, msgl_codes_vf q)
{
    if (c->offset == MSGL_OFFSET_ZERO) return scale * (q - offset);
    if (c->offset == MSGL_OFFSET_MIN) return scale * (q + (float)c->zero) + offset;
    if (c->offset == MSGL_OFFSET_FLOAT) return scale * (q + (float)c->zero - offset);
    return c->factor_last ? scale * q * c->factor : scale * q;
}

// A chunk of a panel; scales have the offsets as the file has them.
MSGL_INLINE void msgl__kept_chunk(const msgl_codes *c, const char *panel, const char *at,
                                  int blocks, msgl_kept_tile tile)
{
    float book[16];
    msgl_codes_scales s;
    for (int i = 0; i < 16; i++) book[i] = c->values != NULL ? c->values[i] : c->book[i];
    msgl__codes_scales_of(c, panel, at, blocks, false, &s);
    at += msgl__codes_scales_bytes(c, blocks);
    for (int step = 0; step < 8 * blocks; step++) {
        const char *block = at + (size_t)(step / 8) * msgl__codes_block_bytes(c);
        const int g = step * 4 / c->group;
        for (int lane = 0; lane < MSGL_GEMM_LANES; lane += MSGL_CODES_LANES) {
            const msgl_codes_vi codes = msgl__codes_step(c->bits, block, step % 8, lane);
            msgl_codes_vf scale, offset;
            memcpy(&scale, s.scale[g] + lane, sizeof scale);
            memcpy(&offset, msgl__codes_have_min(c) ? s.min[g] + lane : s.scale[g], sizeof offset);
            for (int i = 0; i < 4; i++) {
                const msgl_codes_vf q = msgl__codes_numbers_of(c, book, codes >> 8 * i & 0xff);
                msgl__codes_put_lanes(tile[4 * step + i] + lane,
                                      msgl__codes_values_of(c, scale, offset, q));
            }
        }
    }
}

// By a level's product of f32 weights, which has to take `add`. Sums over k are cut at the same
// columns for any number of rows.
MSGL_INLINE void msgl__kept_block(const msgl_gemm_block *b, void (*f32)(const msgl_gemm_block *b))
{
    const msgl_codes *c = b->format->blocks->codes;
    const size_t chunk_bytes = c == NULL ? 0 : msgl__codes_chunk_bytes(c, MSGL_CODES_CHUNK);
    msgl_kept_tile tile MSGL_ALIGNED(64);
    for (int col = 0; col < b->cols; col += MSGL_GEMM_LANES) {
        const char *panel = b->w + (size_t)(col / MSGL_GEMM_LANES) * b->panel_bytes;
        const int left = b->cols - col;
        const char *chunk = c == NULL ? panel : panel + msgl__codes_front_bytes(c);
        for (int at = 0; at < b->k; at += MSGL_KEPT_TILE, chunk += chunk_bytes) {
            const int columns = b->k - at < MSGL_KEPT_TILE ? b->k - at : MSGL_KEPT_TILE;
            const int kpad = msgl__gemm_kpad(columns);
            if (c != NULL) {
                msgl__kept_chunk(c, panel, chunk, kpad / MSGL_CODES_BLOCK, tile);
            } else {
                msgl__kept_raw_tile(b->format->blocks, b->k, panel, at, columns, tile);
            }
            memset(tile[columns], 0, (size_t)(kpad - columns) * sizeof tile[0]);
            f32(&(msgl_gemm_block){
                .w = (const char *)tile,
                .kpad = kpad,
                .a = b->a + (size_t)at * sizeof(float),
                .a_row_bytes = b->a_row_bytes,
                .rows = b->rows,
                .cols = left < MSGL_GEMM_LANES ? left : MSGL_GEMM_LANES,
                .bias = b->bias == NULL || at > 0 ? NULL : b->bias + col,
                .out = b->out + col,
                .ld_out = b->ld_out,
                .add = b->add || at > 0,
            });
        }
    }
}

#endif
