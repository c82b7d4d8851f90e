// SPDX-License-Identifier: Apache-2.0
//
// What every level's file needs to enter the shared driver, compiled with that level's flags.
// Include before the definition of MICRO, the level's kernels by weight dtype.
#include "kernel/gemm_impl.h"

static const msgl_gemm_micro MICRO[MSGL_DTYPE_COUNT];

static void prepare_f32(const float *in, size_t ld_in, int rows, int k, char *a, size_t row_bytes)
{
    msgl__gemm_prepare_f32(in, ld_in, rows, k, a, row_bytes);
}

static void linear(msgl_exec *x, const msgl_weight *w, const float *bias, const float *in,
                   size_t ld_in, float *out, size_t ld_out, int m)
{
    msgl__gemm_linear(MICRO, x, w, bias, in, ld_in, out, ld_out, m);
}

static void grouped(msgl_exec *x, const msgl_weight *experts, int num_experts,
                    const int32_t *offsets, const float *in, size_t ld_in, float *out,
                    size_t ld_out)
{
    msgl__gemm_grouped(MICRO, x, experts, num_experts, offsets, in, ld_in, out, ld_out);
}
