// SPDX-License-Identifier: Apache-2.0
//
// Family gemm at level AVX-512-BF16: bf16 weights by vdpbf16ps. The instruction takes subnormal
// inputs and results as zero and rounds to nearest even.
#include "kernel/gemm_kept.h"
#include "kernel/vec.h"
#include "kernel/x86/gemm.h"
#include "kernel/x86/init.h"
#include "kernel/x86/ops.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

// Prepared rows are bf16.
static void prepare_bf16(const float *in, size_t ld_in, int rows, int k, char *a, size_t row_bytes)
{
    for (int r = 0; r < rows; r++) {
        const float *from = in + (size_t)r * ld_in;
        char *to = a + (size_t)r * row_bytes;
        int i = 0;
        for (; i + 32 <= k; i += 32) {
            const __m512bh v =
                _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + i + 16), _mm512_loadu_ps(from + i));
            _mm512_storeu_si512(to + 2 * i, (__m512i)v);
        }
        if (i < k) {
            const uint32_t mask = (1u << (k - i)) - 1;
            const __m512 lo = _mm512_maskz_loadu_ps((__mmask16)mask, from + i);
            const __m512 hi = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), from + i + 16);
            _mm512_storeu_si512(to + 2 * i, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
        }
    }
}

typedef __m512 acc;
typedef __m512bh wvec, xval;

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
MSGL_INLINE wvec load_bf16(const char *line, int sub)
{
    (void)sub;
    return (__m512bh)_mm512_loadu_si512(line);
}
MSGL_INLINE xval broadcast(const char *a, int sub)
{
    (void)sub;
    int32_t pair;
    memcpy(&pair, a, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}
MSGL_INLINE acc madd(acc sum, wvec w, xval x)
{
    return _mm512_dpbf16_ps(sum, w, x);
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
#define MSGL_T(name) bf16_##name
#define MSGL_T_LOAD_W load_bf16
#define MSGL_T_SUBS 1
#define MSGL_T_LINE 64
#define MSGL_T_K 2
#define MSGL_T_A 4
#define MSGL_T_GATED 1
#define MSGL_T_GROUP 0
#include "kernel/x86/gemm_avx.inc"

#define ROW_OPS msgl__row_ops_avx512
#include "kernel/gemm_level.inc"

static size_t row_bytes_bf16(int kpad)
{
    return ((size_t)kpad + 32) * sizeof(uint16_t);
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
    [MSGL_W_BF16] = {row_bytes_bf16, 80, 512, prepare_bf16, bf16_block, true, 7},
    [MSGL_W_INT8] = MSGL_INT8_MICRO_VNNI,
    [MSGL_W_CODES] = MSGL_CODES_MICRO_VNNI,
    [MSGL_W_BLOCKS] = {msgl__gemm_row_bytes_f32, 20, 512, prepare_f32, kept_block, true, 0},
};

void msgl__gemm_init_avx512bf16(msgl_gemm_kernels *k)
{
    k->linear = linear;
    k->grouped = grouped;
    k->heads = heads;
    k->lora = lora;
}
