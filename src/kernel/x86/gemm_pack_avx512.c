// SPDX-License-Identifier: Apache-2.0
//
// Packing of whole panels by transposing 16 rows of 64 bytes at a time. A 32-bit unit is a pair of
// 16-bit elements or one f32, so one transposition serves all dtypes. It reads each source line
// once, in order, and writes whole lines; other dtypes of the source are converted first, in
// pieces that stay in the L1 cache.
#include "kernel/x86/gemm.h"

#include <immintrin.h>
#include <string.h>

#include "core/round.h"

enum { PIECE = 256 }; // elements per row that are converted at a time

#define PAIR(f, a, b, lo, hi)                                                                      \
    const __m512i lo = _mm512_unpacklo_##f(a, b), hi = _mm512_unpackhi_##f(a, b);

// Four rows: in each 128-bit quarter q, column i of the 4x4 squares. o[i] holds, in quarter q,
// units 4q + i of the four rows.
MSGL_INLINE void transpose4(const char *src, size_t row, __m512i *o0, __m512i *o1, __m512i *o2,
                            __m512i *o3)
{
    const __m512i a = _mm512_loadu_si512(src), b = _mm512_loadu_si512(src + row);
    const __m512i c = _mm512_loadu_si512(src + 2 * row), d = _mm512_loadu_si512(src + 3 * row);
    PAIR(epi32, a, b, ab_lo, ab_hi)
    PAIR(epi32, c, d, cd_lo, cd_hi)
    *o0 = _mm512_unpacklo_epi64(ab_lo, cd_lo);
    *o1 = _mm512_unpackhi_epi64(ab_lo, cd_lo);
    *o2 = _mm512_unpacklo_epi64(ab_hi, cd_hi);
    *o3 = _mm512_unpackhi_epi64(ab_hi, cd_hi);
}

// One line of the result: 32-bit unit `unit` of the 16 rows.
MSGL_INLINE void put(char *dst, int unit, __m512i v, const int halves)
{
    if (halves) { // f16: [k][16], so the two halves of each pair go to lines of their own
        char *line = dst + (size_t)unit * 64;
        _mm256_storeu_si256((__m256i *)line, _mm512_cvtepi32_epi16(v));
        _mm256_storeu_si256((__m256i *)(line + 32),
                            _mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16)));
    } else {
        _mm512_store_si512(dst + (size_t)unit * 64, v);
    }
}

// Quarters q of w, x, y, z (rows 0-3, 4-7, 8-11, 12-15 of units 4q + i) to units i, 4 + i, 8 + i,
// 12 + i.
MSGL_INLINE void put4(char *dst, int i, __m512i w, __m512i x, __m512i y, __m512i z,
                      const int halves)
{
    const __m512i wx_lo = _mm512_shuffle_i32x4(w, x, 0x44),
                  wx_hi = _mm512_shuffle_i32x4(w, x, 0xee);
    const __m512i yz_lo = _mm512_shuffle_i32x4(y, z, 0x44),
                  yz_hi = _mm512_shuffle_i32x4(y, z, 0xee);
    put(dst, i, _mm512_shuffle_i32x4(wx_lo, yz_lo, 0x88), halves);
    put(dst, 4 + i, _mm512_shuffle_i32x4(wx_lo, yz_lo, 0xdd), halves);
    put(dst, 8 + i, _mm512_shuffle_i32x4(wx_hi, yz_hi, 0x88), halves);
    put(dst, 12 + i, _mm512_shuffle_i32x4(wx_hi, yz_hi, 0xdd), halves);
}

// 16 rows x 64 bytes to 16 lines.
MSGL_INLINE void transpose(char *dst, const char *src, size_t row, const int halves)
{
    __m512i a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3;
    transpose4(src, row, &a0, &a1, &a2, &a3);
    transpose4(src + 4 * row, row, &b0, &b1, &b2, &b3);
    transpose4(src + 8 * row, row, &c0, &c1, &c2, &c3);
    transpose4(src + 12 * row, row, &d0, &d1, &d2, &d3);
    put4(dst, 0, a0, b0, c0, d0, halves);
    put4(dst, 1, a1, b1, c1, d1, halves);
    put4(dst, 2, a2, b2, c2, d2, halves);
    put4(dst, 3, a3, b3, c3, d3, halves);
}

// `bytes` per row, a multiple of 64.
static void transpose_rows(char *dst, msgl_dtype dtype, const char *src, size_t row, size_t bytes)
{
    if (dtype == MSGL_F16) {
        for (size_t i = 0; i < bytes; i += 64) transpose(dst + 16 * i, src + i, row, 1);
    } else {
        for (size_t i = 0; i < bytes; i += 64) transpose(dst + 16 * i, src + i, row, 0);
    }
}

// msgl__f32_to_bf16 of 16 values.
MSGL_INLINE __m256i to_bf16(__m512 v)
{
    const __m512i u = _mm512_castps_si512(v), high = _mm512_srli_epi32(u, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, half), 16);
    const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet));
}

// n elements of one row, zeros up to the next multiple of 64 bytes.
static void convert(char *dst, msgl_dtype dtype, const char *src, msgl_dtype src_dtype, int n)
{
    const int unit = dtype == MSGL_F32 ? 16 : 32;
    const size_t size = msgl__dtype_size(dtype);
    memset(dst + (size_t)n * size, 0, (size_t)(msgl__ceil_div(n, unit) * unit - n) * size);
    if (dtype == src_dtype) {
        memcpy(dst, src, (size_t)n * size);
        return;
    }
    for (int i = 0; i < n; i += 16) {
        const __mmask16 m = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : 0xffff;
        const uint16_t *half = (const uint16_t *)src + i;
        __m512 v;
        if (src_dtype == MSGL_F32) {
            v = _mm512_maskz_loadu_ps(m, (const float *)src + i);
        } else if (src_dtype == MSGL_F16) {
            v = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, half));
        } else {
            v = _mm512_castsi512_ps(
                _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, half)), 16));
        }
        if (dtype == MSGL_F32) {
            _mm512_mask_storeu_ps((float *)dst + i, m, v);
        } else if (dtype == MSGL_F16) {
            _mm256_mask_storeu_epi16((uint16_t *)dst + i, m,
                                     _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
        } else {
            _mm256_mask_storeu_epi16((uint16_t *)dst + i, m, to_bf16(v));
        }
    }
}

void msgl__gemm_pack_panel_avx512(char *panel, const msgl_wformat *f, int k, int lane, int rows,
                                  const char *src, msgl_dtype src_dtype, size_t ld_src)
{
    const msgl_dtype dtype = f->dtype;
    if (f->id == MSGL_W_INT8) {
        msgl__int8_pack_panel(panel, k, lane, rows, src, src_dtype, ld_src);
        return;
    }
    if (rows < MSGL_GEMM_LANES) {
        msgl__gemm_pack_panel_ref(panel, f, k, lane, rows, src, src_dtype, ld_src);
        return;
    }
    const size_t size = msgl__dtype_size(dtype), src_size = msgl__dtype_size(src_dtype);
    const int unit = (int)(64 / size);
    const int direct = dtype == src_dtype ? k / unit * unit : 0;
    transpose_rows(panel, dtype, src, ld_src * src_size, (size_t)direct * size);
    for (int at = direct; at < k; at += PIECE) {
        const int n = k - at < PIECE ? k - at : PIECE;
        const size_t row = PIECE * sizeof(float);
        char piece[MSGL_GEMM_LANES * PIECE * sizeof(float)];
        for (int r = 0; r < MSGL_GEMM_LANES; r++) {
            convert(piece + (size_t)r * row, dtype,
                    src + ((size_t)r * ld_src + (size_t)at) * src_size, src_dtype, n);
        }
        transpose_rows(panel + (size_t)at * MSGL_GEMM_LANES * size, dtype, piece, row,
                       (size_t)(msgl__ceil_div(n, unit) * unit) * size);
    }
}
