// SPDX-License-Identifier: Apache-2.0
//
// Family gemm at level AVX2 (+ FMA, F16C): a panel of 16 features is two registers; bf16 weights
// are widened to f32 by shifts, f16 by conversion. Packing transposes 8 x 8 squares.
#include "kernel/gemm_kept.h"
#include "kernel/x86/gemm.h"
#include "kernel/x86/init.h"
#include "kernel/x86/ops.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

typedef struct pair {
    __m256 lo, hi; // features 0-7, 8-15
} pair;
typedef pair acc, wvec;
typedef __m256 xval;

// Twelve registers of sums, two of weights, one activation and a mask make sixteen.
#define MSGL_T_ROWS_1 6
#define MSGL_T_ROWS_2 2
#define MSGL_T_ROWS_4 1
#define MSGL_T_SHAPES(X) X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1) X(1, 2) X(2, 2) X(1, 4)

MSGL_INLINE acc zero(void)
{
    return (pair){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
MSGL_INLINE xval broadcast(const char *a, int sub)
{
    float f;
    memcpy(&f, a + 4 * sub, sizeof f);
    return _mm256_set1_ps(f);
}
MSGL_INLINE acc madd(acc sum, wvec w, xval x)
{
    return (pair){_mm256_fmadd_ps(w.lo, x, sum.lo), _mm256_fmadd_ps(w.hi, x, sum.hi)};
}
MSGL_INLINE void store(float *out, acc sum)
{
    _mm256_storeu_ps(out, sum.lo);
    _mm256_storeu_ps(out + 8, sum.hi);
}
MSGL_INLINE void add(float *out, acc sum)
{
    _mm256_storeu_ps(out, _mm256_add_ps(_mm256_loadu_ps(out), sum.lo));
    _mm256_storeu_ps(out + 8, _mm256_add_ps(_mm256_loadu_ps(out + 8), sum.hi));
}

MSGL_INLINE wvec load_f32(const char *line, int sub)
{
    (void)sub;
    return (pair){_mm256_loadu_ps((const float *)line), _mm256_loadu_ps((const float *)line + 8)};
}
#define MSGL_T(name) f32_##name
#define MSGL_T_LOAD_W load_f32
#define MSGL_T_SUBS 1
#define MSGL_T_LINE 64
#define MSGL_T_K 1
#define MSGL_T_A 4
#define MSGL_T_GATED 0
#define MSGL_T_GROUP 0
#include "kernel/x86/gemm_avx.inc"

MSGL_INLINE wvec load_f16(const char *line, int sub)
{
    (void)sub;
    return (pair){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)line)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)line + 1))};
}
#define MSGL_T(name) f16_##name
#define MSGL_T_LOAD_W load_f16
#define MSGL_T_SUBS 1
#define MSGL_T_LINE 32
#define MSGL_T_K 1
#define MSGL_T_A 4
#define MSGL_T_GATED 0
#define MSGL_T_GROUP 0
#include "kernel/x86/gemm_avx.inc"

// Even k (sub 0) are the lower halves of the 32-bit lanes, odd k the upper ones.
MSGL_INLINE __m256 half(const char *p, int sub)
{
    const __m256i pairs = _mm256_loadu_si256((const __m256i *)p);
    return _mm256_castsi256_ps(sub == 0
                                   ? _mm256_slli_epi32(pairs, 16)
                                   : _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)));
}
MSGL_INLINE wvec load_bf16(const char *line, int sub)
{
    return (pair){half(line, sub), half(line + 32, sub)};
}
#define MSGL_T(name) bf16_##name
#define MSGL_T_LOAD_W load_bf16
#define MSGL_T_SUBS 2
#define MSGL_T_LINE 64
#define MSGL_T_K 2
#define MSGL_T_A 8
#define MSGL_T_GATED 0
#define MSGL_T_GROUP 0
#include "kernel/x86/gemm_avx.inc"

#define ROW_OPS msgl__row_ops_avx2
#include "kernel/gemm_level.inc"

static void prepare_bf16(const float *in, size_t ld_in, int rows, int k, char *a, size_t row_bytes)
{
    msgl__gemm_prepare_rounded(in, ld_in, rows, k, a, row_bytes);
}

static void kept_block(const msgl_gemm_block *b)
{
    msgl__kept_block(b, f32_block);
}

static const msgl_gemm_micro MICRO[MSGL_WFORMATS] = {
    [MSGL_W_F32] = {msgl__gemm_row_bytes_f32, 20, 256, prepare_f32, f32_block, true, 0},
    [MSGL_W_F16] = {msgl__gemm_row_bytes_f32, 20, 256, prepare_f32, f16_block, true, 0},
    [MSGL_W_BF16] = {msgl__gemm_row_bytes_f32, 20, 256, prepare_bf16, bf16_block, true, 0},
    [MSGL_W_INT8] = {msgl__int8_row_bytes_16, 20, 256, msgl__int8_prepare_avx2,
                     msgl__int8_block_avx2, true, 0},
    [MSGL_W_CODES] = {msgl__codes_row_bytes_8, 40, 256, msgl__codes_prepare_avx2,
                      msgl__codes_block_avx2, true, 0},
    [MSGL_W_BLOCKS] = {msgl__gemm_row_bytes_f32, 10, 256, prepare_f32, kept_block, true, 0},
};

// 8 rows x 32 bytes to the first or second half of 8 lines of 64 bytes.
static void transpose8(char *dst, const char *src, size_t row)
{
    __m256 r[8], t[8];
    for (size_t i = 0; i < 8; i++) r[i] = _mm256_loadu_ps((const float *)(src + i * row));
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps((float *)(dst + 64 * i), _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps((float *)(dst + 64 * (i + 4)),
                         _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

// Whole panels of a dtype with 32-bit units (a bf16 pair, an f32) from the same dtype; the rest in
// plain C.
static void pack_panel(char *panel, const msgl_wformat *f, int k, int lane, int rows,
                       const char *src, msgl_dtype src_dtype, size_t ld_src)
{
    const msgl_dtype dtype = f->dtype;
    if (f->id == MSGL_W_INT8) {
        msgl__int8_pack_panel(panel, k, lane, rows, src, src_dtype, ld_src);
        return;
    }
    const size_t size = msgl__dtype_size(dtype), row = ld_src * size;
    const int unit = (int)(32 / size);
    if (rows < MSGL_GEMM_LANES || dtype != src_dtype || dtype == MSGL_F16 || k % unit != 0) {
        msgl__gemm_pack_panel_ref(panel, f, k, lane, rows, src, src_dtype, ld_src);
        return;
    }
    for (size_t i = 0; i < (size_t)k * size; i += 32) {
        transpose8(panel + 16 * i, src + i, row);
        transpose8(panel + 16 * i + 32, src + 8 * row + i, row);
    }
}

static void pack(msgl_exec *x, msgl_weight *w, int row, int rows, const void *src,
                 msgl_dtype src_dtype, size_t ld_src)
{
    msgl__gemm_pack(pack_panel, x, w, row, rows, src, ld_src * msgl__dtype_size(src_dtype),
                    src_dtype, ld_src);
}

static const msgl_wformat FORMATS[MSGL_WFORMATS] = MSGL_GEMM_FORMATS(pack);

void msgl__gemm_init_avx2(msgl_gemm_kernels *k)
{
    k->formats = FORMATS;
    k->linear = linear;
    k->grouped = grouped;
    k->heads = heads;
    k->lora = lora;
}
