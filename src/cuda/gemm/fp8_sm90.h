// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_GEMM_FP8_SM90_H
#define MSGL_CUDA_GEMM_FP8_SM90_H

#include <stdbool.h>

#include "cuda/gemm/codes_row.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "cuda/gemm/fp8_rows.h"

// One matrix of FP8 with codes_row.h's layout l, whose first row is row `first` of the call's
// weight, times coded rows, scales by group, of up to MSGL_FP8_FEW_ROWS rows.
typedef struct msgl_fp8_product {
    const msgl_linear_call *call; // its in and norm apart
    const msgl_weight *w;
    const msgl_codes_row *l;
    int32_t first;
    msgl_fp8_rows in;
    // The norm that the rows still want: norm_stats' squares, or NULL. With the call's norm_eps.
    const float *squares;
    int32_t tiles;
    bool gated;              // the gate is part of the product
    void *out;               // row 0's first column of the call's weight
    size_t ld_out;           // elements
    const msgl_fp8_rows *to; // NULL, or where coded rows of the result go, instead of to out, ...
    bool leaves_stats;       // ... or, of result times next_norm, beside it, with norm_stats' sums
} msgl_fp8_product;

// False, and nothing queued, where it cannot be done. Takes the workspace of products.
bool msgl__cuda_fp8_sm90(msgl_exec *x, const msgl_fp8_product *p);

#ifdef __cplusplus
}
#endif

#endif
