// SPDX-License-Identifier: Apache-2.0
//
// How much of a multiprocessor's shared memory products of few rows take, which start early
// (launch.cuh) and have a block for each multiprocessor. Blocks of a kernel that starts early go
// two on one multiprocessor where two fit, and leave another one empty, which everything behind
// inherits. So kernels that follow each other take turns: those that add to their output (o, down)
// have blocks of more than half of the shared memory, those between them (qkv, gate_up) fit once
// beside them, and both load their first weights before the one in front has ended.
//
// A block of decode attention has to fit beside o's as well: with fewer blocks than there are
// multiprocessors it leaves some free, on which o would stand in twos if it could. Example: 64
// blocks of attention leave 68 multiprocessors for 132 blocks of o of 94 KiB each; with the kernels
// of docs/decisions/051 that were taken back, all products behind stood in twos then.
#ifndef MSGL_CUDA_GEMM_TURNS_CUH
#define MSGL_CUDA_GEMM_TURNS_CUH

#include <stddef.h>

enum {
    MSGL_TURN_LARGE = 116 << 10, // at least: two do not fit
    MSGL_TURN_SMALL = 108 << 10, // at most
};

// Whether a multiprocessor of Hopper, which has 228 KiB and takes one more of each block, has room
// for blocks of a and b bytes at a time.
static constexpr bool msgl__stand_together(size_t a, size_t b)
{
    return a + b + (2 << 10) <= 228 << 10;
}
static_assert(msgl__stand_together(MSGL_TURN_LARGE, MSGL_TURN_SMALL), "neighbours");
static_assert(!msgl__stand_together(MSGL_TURN_LARGE, MSGL_TURN_LARGE), "one of a product");

#endif
