// SPDX-License-Identifier: Apache-2.0
//
// Between codes_sm90.cu, which plans a product, and the files of kernels.
#ifndef MSGL_CUDA_GEMM_CODES_SM90_CALL_CUH
#define MSGL_CUDA_GEMM_CODES_SM90_CALL_CUH

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/gemm/codes_row.h"
#include "cuda/gemm/codes_sm90.h"
#include "cuda/gemm/line.cuh"
#include "kernel/exec.h"

enum {
    CODES_ROWS = 128, // of W in a tile
    CODES_STEP = 128, // columns that are multiplied at a time
    CODES_FEW = 16,   // rows of in that few.cuh multiplies, at most
};

// Steps that come at once, of a tile of so many rows of in and codes of so many bits: two where a
// stage of so many bytes leaves room for others, since starting a stage's copies costs as much
// whatever they bring.
static __host__ __device__ constexpr int codes_stage_steps(int tokens, int bits)
{
    return tokens <= CODES_FEW && bits < 8 ? 2 : 1;
}

typedef struct codes_args {
    int32_t m, n, k; // n: rows of W
    int32_t columns; // of out: n, or n / 2 when gated
    gemm_line line;
    int32_t column_tiles; // tiles of the rows of in, which are next to each other on the line
    float factor;         // of all scales
    // Of scales of one level: the number of step s is s >> shift, where one is of 128 columns or
    // more; whether there are zero points; and the elements of 16 bits that a number has.
    int32_t shift, wide;
    bool zeros;
    uint32_t stage_bytes;    // that a stage's copies bring
    const float *bias;       // [n] or NULL
    const float *in_squares; // [in_tiles, m] of msgl_norm_stats of in, or NULL
    int32_t in_tiles;
    float eps;
    bool gated, accumulate, f32_out;
    void *out;
    size_t ld_out;
    const float *next; // [columns] weight of the norm behind, or NULL
    void *scaled;      // [m, columns]
    float *squares;    // [columns / 64, m]
} codes_args;

typedef struct codes_tensors {
    CUtensorMap in, low, high; // activations; lower and upper bits
    CUtensorMap scales[4];     // arrays of scales, in the order of codes_row.h
} codes_tensors;

typedef struct codes_launch_args {
    codes_args g;
    msgl_codes_row l;
    codes_tensors maps;
    int32_t tokens; // of a tile: 8, 16, 64 or 128
} codes_launch_args;

// line_cut for blocks in clusters, `per_sm` of them on a multiprocessor; a tile is one of each
// block.
int msgl__codes_sm90_cut(const msgl_exec *x, codes_launch_args *a, int per_sm, int cluster,
                         int warps);

// False where there is no kernel of this form for so many tokens. Of codes of 4 bits, ...
bool msgl__codes_sm90_4(msgl_exec *x, const codes_launch_args *a);
bool msgl__codes_sm90_5(msgl_exec *x, const codes_launch_args *a);
bool msgl__codes_sm90_6(msgl_exec *x, const codes_launch_args *a);
bool msgl__codes_sm90_8(msgl_exec *x, const codes_launch_args *a);

#endif
