// SPDX-License-Identifier: Apache-2.0
//
// Family gemm at level AVX-512: bf16 weights widened to f32 by shifts, f16 by conversion, f32 as
// they are; and packing by 16x16 transposition, which all levels above use too.
#include "kernel/gemm_kept.h"
#include "kernel/vec.h"
#include "kernel/x86/gemm.h"
#include "kernel/x86/init.h"
#include "kernel/x86/ops.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

typedef __m512 acc, wvec, xval;

// 24 sums, the weights of a line and one activation fit into 32 registers.
#define MSGL_T_ROWS_1 12
#define MSGL_T_ROWS_2 12
#define MSGL_T_ROWS_4 6
// clang-format off
#define MSGL_T_SHAPES(X)                                                                           \
    X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1)                                                \
    X(7, 1) X(8, 1) X(9, 1) X(10, 1) X(11, 1) X(12, 1)                                             \
    X(1, 2) X(2, 2) X(3, 2) X(4, 2) X(5, 2) X(6, 2)                                                \
    X(7, 2) X(8, 2) X(9, 2) X(10, 2) X(11, 2) X(12, 2)                                             \
    X(1, 4) X(2, 4) X(3, 4) X(4, 4) X(5, 4) X(6, 4)
// clang-format on

MSGL_INLINE acc zero(void)
{
    return _mm512_setzero_ps();
}
MSGL_INLINE xval broadcast(const char *a, int sub)
{
    float f;
    memcpy(&f, a + 4 * sub, sizeof f);
    return _mm512_set1_ps(f);
}
MSGL_INLINE acc madd(acc sum, wvec w, xval x)
{
    return _mm512_fmadd_ps(w, x, sum);
}
MSGL_INLINE void store(float *out, acc sum)
{
    _mm512_storeu_ps(out, sum);
}
MSGL_INLINE void add(float *out, acc sum)
{
    _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), sum));
}
MSGL_INLINE void gate(float *out, acc g, acc u)
{
    msgl__vf_store(out, msgl__vf_silu_mul((msgl_vf)g, (msgl_vf)u));
}

MSGL_INLINE wvec load_f32(const char *line, int sub)
{
    (void)sub;
    return _mm512_loadu_ps((const float *)line);
}
#define MSGL_T(name) f32_##name
#define MSGL_T_LOAD_W load_f32
#define MSGL_T_SUBS 1
#define MSGL_T_LINE 64
#define MSGL_T_K 1
#define MSGL_T_A 4
#define MSGL_T_GATED 1
#define MSGL_T_GROUP 0
#include "kernel/x86/gemm_avx.inc"

MSGL_INLINE wvec load_f16(const char *line, int sub)
{
    (void)sub;
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)line));
}
#define MSGL_T(name) f16_##name
#define MSGL_T_LOAD_W load_f16
#define MSGL_T_SUBS 1
#define MSGL_T_LINE 32
#define MSGL_T_K 1
#define MSGL_T_A 4
#define MSGL_T_GATED 1
#define MSGL_T_GROUP 0
#include "kernel/x86/gemm_avx.inc"

// Even k (sub 0) are the lower halves of the 32-bit lanes, odd k the upper ones.
MSGL_INLINE wvec load_bf16(const char *line, int sub)
{
    const __m512i pairs = _mm512_loadu_si512(line);
    return _mm512_castsi512_ps(sub == 0
                                   ? _mm512_slli_epi32(pairs, 16)
                                   : _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}
#define MSGL_T(name) bf16_##name
#define MSGL_T_LOAD_W load_bf16
#define MSGL_T_SUBS 2
#define MSGL_T_LINE 64
#define MSGL_T_K 2
#define MSGL_T_A 8
#define MSGL_T_GATED 1
#define MSGL_T_GROUP 0
#include "kernel/x86/gemm_avx.inc"

void msgl__gemm_block_f32_avx512(const msgl_gemm_block *b)
{
    f32_block(b);
}

void msgl__gemm_block_f16_avx512(const msgl_gemm_block *b)
{
    f16_block(b);
}

void msgl__gemm_block_bf16_avx512(const msgl_gemm_block *b)
{
    bf16_block(b);
}

#define ROW_OPS msgl__row_ops_avx512
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
    [MSGL_W_F32] = {msgl__gemm_row_bytes_f32, 40, 512, prepare_f32, f32_block, true, 7},
    [MSGL_W_F16] = {msgl__gemm_row_bytes_f32, 40, 512, prepare_f32, f16_block, true, 7},
    [MSGL_W_BF16] = {msgl__gemm_row_bytes_f32, 40, 512, prepare_bf16, bf16_block, true, 7},
    [MSGL_W_INT8] = {msgl__int8_row_bytes_16, 40, 512, msgl__int8_prepare_avx512,
                     msgl__int8_block_avx512, true, 7},
    [MSGL_W_CODES] = {msgl__codes_row_bytes_16, 60, 512, msgl__codes_prepare_avx512,
                      msgl__codes_block_avx512, true, 0},
    [MSGL_W_BLOCKS] = {msgl__gemm_row_bytes_f32, 20, 512, prepare_f32, kept_block, true, 0},
};

static void pack_avx512(msgl_exec *x, msgl_weight *w, int row, int rows, const void *src,
                        msgl_dtype src_dtype, size_t ld_src)
{
    msgl__gemm_pack(msgl__gemm_pack_panel_avx512, x, w, row, rows, src,
                    ld_src * msgl__dtype_size(src_dtype), src_dtype, ld_src);
}

static const msgl_wformat FORMATS[MSGL_WFORMATS] = MSGL_GEMM_FORMATS(pack_avx512);

void msgl__gemm_init_avx512(msgl_gemm_kernels *k)
{
    k->formats = FORMATS;
    k->linear = linear;
    k->grouped = grouped;
    k->heads = heads;
    k->lora = lora;
}
