// SPDX-License-Identifier: Apache-2.0
//
// Family gemm at level AVX-512-VNNI: int8 weights by vpdpbusd; dtypes as at AVX-512.
#include "kernel/gemm_kept.h"
#include "kernel/vec.h"
#include "kernel/x86/gemm.h"
#include "kernel/x86/init.h"
#include "kernel/x86/ops.h"

#include <assert.h>

typedef __m512 acc;
typedef __m512i isum, wvec, xval;

MSGL_INLINE wvec load_int8(const char *line, int sub)
{
    (void)sub;
    return _mm512_loadu_si512(line);
}
MSGL_INLINE xval broadcast(const char *a, int sub)
{
    (void)sub;
    int32_t four;
    memcpy(&four, a, sizeof four);
    return _mm512_set1_epi32(four);
}
MSGL_INLINE isum madd(isum sum, wvec w, xval x)
{
    return _mm512_dpbusd_epi32(sum, w, x);
}
#define MSGL_T_SUBS 1
#define MSGL_T_A 4
#include "kernel/x86/gemm_int8_avx512.inc"

void msgl__int8_prepare_avx512vnni(const float *in, size_t ld_in, int rows, int k, char *a,
                                   size_t row_bytes)
{
    msgl__int8_prepare(in, ld_in, rows, k, a, row_bytes, false);
}

void msgl__int8_block_avx512vnni(const msgl_gemm_block *b)
{
    int8_block(b);
}

#define ROW_OPS msgl__row_ops_avx512
#include "kernel/gemm_level.inc"

static void prepare_bf16(const float *in, size_t ld_in, int rows, int k, char *a, size_t row_bytes)
{
    msgl__gemm_prepare_rounded(in, ld_in, rows, k, a, row_bytes);
}

static void kept_block(const msgl_gemm_block *b)
{
    msgl__kept_block(b, msgl__gemm_block_f32_avx512);
}

static const msgl_gemm_micro MICRO[MSGL_WFORMATS] = {
    [MSGL_W_F32] = {msgl__gemm_row_bytes_f32, 40, 512, prepare_f32, msgl__gemm_block_f32_avx512,
                    true, 7},
    [MSGL_W_F16] = {msgl__gemm_row_bytes_f32, 40, 512, prepare_f32, msgl__gemm_block_f16_avx512,
                    true, 7},
    [MSGL_W_BF16] = {msgl__gemm_row_bytes_f32, 40, 512, prepare_bf16, msgl__gemm_block_bf16_avx512,
                     true, 7},
    [MSGL_W_INT8] = MSGL_INT8_MICRO_VNNI,
    [MSGL_W_CODES] = MSGL_CODES_MICRO_VNNI,
    [MSGL_W_BLOCKS] = {msgl__gemm_row_bytes_f32, 20, 512, prepare_f32, kept_block, true, 0},
};

void msgl__gemm_init_avx512vnni(msgl_gemm_kernels *k)
{
    k->linear = linear;
    k->grouped = grouped;
    k->heads = heads;
    k->lora = lora;
}
