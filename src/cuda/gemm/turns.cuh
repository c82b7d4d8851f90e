// SPDX-License-Identifier: Apache-2.0
//
// How much of a multiprocessor's shared memory products of few rows take, which start early
// (launch.cuh) and have a block for each multiprocessor. The block of a product stands beside one
// of the product in front, so that its first weights are on their way before that one ends; but
// never may two blocks of one product share a multiprocessor, since another one would then have
// none, and everything behind would inherit that. Products that add to the residual stream (o,
// down) therefore take more than half, and those between them (qkv, gate_up) at most what is left.
//
// What is more than half is also too much to stand beside a block of decode attention (106 KiB with
// heads of 128): that kernel has fewer blocks than there are multiprocessors, and a product that
// began on the free ones only would pile up there. Example: 64 blocks of attention leave 68
// multiprocessors, on which 132 blocks of o with 94 KiB each stood in twos; steps of Qwen3-14B by
// the kernels for weights of 4 bits that docs/decisions/051 tells of took 4.27 ms that way on an
// H200, and 3.12 by turns.
#ifndef MSGL_CUDA_GEMM_TURNS_CUH
#define MSGL_CUDA_GEMM_TURNS_CUH

#include <stddef.h>

enum {
    MSGL_TURN_SMALL = 105 << 10,
    MSGL_TURN_LARGE = 121 << 10,
};
// A multiprocessor has 228 KiB, and each block takes one more than it is launched with.
static_assert(MSGL_TURN_SMALL + MSGL_TURN_LARGE + (2 << 10) <= 228 << 10, "one of each");
static_assert(MSGL_TURN_LARGE + (106 << 10) + (2 << 10) > 228 << 10, "none beside attention");

// What a block is launched with that needs `bytes`, at most MSGL_TURN_SMALL.
static inline size_t msgl__turn_bytes(size_t bytes, bool accumulates)
{
    return accumulates ? (size_t)MSGL_TURN_LARGE : bytes;
}

#endif
