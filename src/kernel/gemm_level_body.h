// SPDX-License-Identifier: Apache-2.0
//
// What every level's file needs to enter the shared driver, compiled with that level's flags.
// Include before the definition of MICRO, the level's kernels by weight dtype, with ROW_OPS defined
// as the elementwise functions to use.
#include "kernel/gemm_impl.h"

static const msgl_gemm_micro MICRO[MSGL_DTYPE_COUNT];
static const msgl_gemm_level LEVEL = {MICRO, &ROW_OPS};

static void prepare_f32(const float *in, size_t ld_in, int rows, int k, char *a, size_t row_bytes)
{
    msgl__gemm_prepare_f32(in, ld_in, rows, k, a, row_bytes);
}

static void linear(msgl_exec *x, const msgl_linear_call *c)
{
    msgl__gemm_linear(&LEVEL, x, c);
}

static void grouped(msgl_exec *x, const msgl_grouped_call *c)
{
    msgl__gemm_grouped(&LEVEL, x, c);
}
