// SPDX-License-Identifier: Apache-2.0
//
// What lies between the kernels of a prefill: the list of chunks, and what prepare makes of each. A
// chunk is at a multiple of 64 of its request's positions, and its row i is position % 64 = i:
// those that the step does not have are rows of zeros, which change nothing.
//
// Matrices are images of shared memory: 64 rows of 64 bf16, 128 bytes a row, whose eights of
// elements are swapped (image_at), so that bulk copies need no map and reads of eight rows by
// 16 bytes meet no bank twice. 128 columns are two images.
#ifndef MSGL_CUDA_DELTA_CHUNKS_CUH
#define MSGL_CUDA_DELTA_CHUNKS_CUH

#include "cuda/delta/args.cuh"

enum {
    DELTA_ROWS = MSGL_DELTA_CHUNK,
    DELTA_IMAGE = DELTA_ROWS * 128,      // bytes
    DELTA_HEAD_IMAGES = 2 * DELTA_IMAGE, // of 128 columns
    DELTA_GATES = 2 * DELTA_ROWS * 4,    // bytes of the two below
};

// Of a chunk and a v head, with G the sum of g up to a row, in this order.
struct delta_gates {
    float begin[DELTA_ROWS]; // e^G: decay since the chunk's beginning
    float end[DELTA_ROWS];   // e^(G of the last row - G): decay until the chunk's end
};

struct __align__(16) delta_chunk
{
    int position;    // of row 0
    int first, rows; // those that the step has
    int row0;        // row 0 in the step's rows, where it would be
    int token;       // and behind the request's first one of the step; not there: negative
    int from, to;    // states; to < 0: padding, or with no rows none at all
    int unused;
};

struct delta_scratch {
    delta_chunk *chunks;
    int *start;  // [size + 1] chunks ahead of a request's
    char *q, *k; // [chunks, k_heads, 2] images: of norm 128^-0.5 and 1
    char *v;     // [chunks, v_heads, 2] images
    char *t, *p; // [chunks, v_heads] images: (I + A)^-1 beta, and q k^T with decay
    char *gates; // [chunks, v_heads] delta_gates
};

// Byte of row `row`, columns [8 eight, 8 eight + 8) of an image.
static __device__ __forceinline__ int image_at(int row, int eight)
{
    return row * 128 + ((eight ^ (row & 7)) << 4);
}

static __host__ __device__ __forceinline__ int delta_first_position(const int32_t *cu,
                                                                    const int32_t *lens, int r)
{
    return lens[r] - (cu[r + 1] - cu[r]);
}

static __host__ __device__ __forceinline__ int delta_chunk_count(const int32_t *cu,
                                                                 const int32_t *lens, int r)
{
    return (lens[r] - 1) / DELTA_ROWS - delta_first_position(cu, lens, r) / DELTA_ROWS + 1;
}

// norm(o) norm gate(z) of eight columns; 16 neighbouring lanes have a head's row.
static __device__ __forceinline__ uint4 delta_gated(uint4 o8, uint4 z8, const float *norm,
                                                    float eps, bool sigmoid)
{
    float o[8], z[8], weight[8], sum = 0;
    unpack8(o8, o, msgl_delta_act());
    unpack8(z8, z, msgl_delta_act());
    load8(norm, weight);
#pragma unroll
    for (int j = 0; j < 8; j++) sum = fmaf(o[j], o[j], sum);
    const float by = rsqrtf(group_sum(sum, 16) / MSGL_DELTA_DIM + eps);
#pragma unroll
    for (int j = 0; j < 8; j++) o[j] *= by * weight[j] * delta_gate(z[j], sigmoid);
    return pack8(o, msgl_delta_act());
}

#endif
