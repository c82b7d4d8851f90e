// SPDX-License-Identifier: Apache-2.0
//
// Between fp8_sm90.cu, which plans a product, and the files of kernels.
#ifndef MSGL_CUDA_GEMM_FP8_SM90_CALL_CUH
#define MSGL_CUDA_GEMM_FP8_SM90_CALL_CUH

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/gemm/fp8_rows.h"
#include "cuda/gemm/line.cuh"
#include "kernel/exec.h"
#include "quant/number.h"

enum {
    FP8_SLAB = 64,  // rows of W of a product of the tensor cores
    FP8_STEP = 128, // columns of a stage, which share a scale
    FP8_GROUPS = 2, // warpgroups that multiply
};

// What a product leaves beside its output, or in its place, for the product behind it.
typedef enum fp8_leaves {
    FP8_VALUES,
    FP8_NORM_STATS, // values, and of these times a norm's weight the coded rows and squares
    FP8_ROWS,       // coded rows alone
} fp8_leaves;

typedef struct fp8_args {
    // With sums [segments][2][tokens][rows of W of a tile] and flags [tiles][2] of its own.
    gemm_line line;
    int32_t m, n, k; // n: rows of W
    int32_t columns; // of out: n, or n / 2 when gated
    // The scales of W: one for each 128 columns, which stages bring, or for a row.
    msgl_number number;
    const uint8_t *row_scales; // [n], or NULL: by group
    uint32_t stage_bytes;      // that a stage's copies bring
    const float *bias;         // [n] or NULL
    const float *in_squares;   // [in_tiles, m] of msgl_norm_stats of in, or NULL
    int32_t in_tiles;
    float eps;
    bool gated, accumulate;
    bool f32_out, half_out; // else bf16
    void *out;
    size_t ld_out;
    fp8_leaves leaves;
    const float *next; // [columns] weight of the norm behind
    uint8_t *codes;    // [m, columns]
    float *scales;     // [columns / 128, pitch]
    int32_t pitch;
    float *squares; // [columns / 128, m]
} fp8_args;

typedef struct fp8_tensors {
    CUtensorMap in, in_scales, w, w_scales;
} fp8_tensors;

typedef struct fp8_launch_args {
    fp8_args g;
    fp8_tensors maps;
    int32_t tokens; // of a tile: 8, 16, 32 or 64
    int32_t slabs;  // of a warpgroup: 1 or 2
} fp8_launch_args;

// Cuts the line into a segment for each block. Returns how many, or 0 where there is no room for
// their sums.
int msgl__fp8_sm90_cut(const msgl_exec *x, fp8_launch_args *a);

bool msgl__fp8_sm90_few(msgl_exec *x, const fp8_launch_args *a);  // up to 32 tokens
bool msgl__fp8_sm90_many(msgl_exec *x, const fp8_launch_args *a); // 64

#endif
