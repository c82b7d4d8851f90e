// SPDX-License-Identifier: Apache-2.0
//
// A captured step's inputs, from the device's side (copies.cu has the host's). They cross the bus
// into one of a few buffers, and the graph's first kernel moves them to their places. Which buffer
// it is, it finds itself: `next` counts the graphs that were launched with inputs.
#ifndef MSGL_CUDA_COPIES_CUH
#define MSGL_CUDA_COPIES_CUH

#include <stdint.h>

struct msgl_cuda_device;

enum {
    MSGL_INPUT_BUFFERS = 4,
    MSGL_INPUT_MOVES = 8,         // of a buffer: the lanes of a warp read those of all buffers
    MSGL_INPUT_BYTES = 256 << 10, // of a buffer: enough for a decode step
    MSGL_INPUT_BLOCKS = 2 * MSGL_INPUT_MOVES, // that move
};

// A buffer begins with its moves. Those without vectors are none.
struct msgl_input_move {
    char *to;
    uint32_t at;      // byte of the buffer
    uint32_t vectors; // of 16 bytes
};

struct msgl_inputs {
    const char *memory; // the buffers; NULL: everything is in its place
    // Number of the step in the upper half, in the lower one the blocks that have seen it.
    unsigned long long *next;
};

// For a kernel that is launched now, the first of its capture: it moves. Nothing elsewhere.
msgl_inputs msgl__cuda_copies_take(msgl_cuda_device *d);

// One buffer as a warp sees it.
struct msgl_input_view {
    const char *buffer;
    msgl_input_move move; // lane i of those that are this buffer's has its move i % 8
    int first;            // of these lanes
};

// All threads of all blocks of the graph's first kernel call it, once. step: shared memory.
static __device__ __forceinline__ msgl_input_view msgl__inputs_open(const msgl_inputs &in,
                                                                    uint32_t *step)
{
    const int lane = (int)threadIdx.x % 32, mine = lane / MSGL_INPUT_MOVES;
    msgl_input_view v = {};
    const uint4 m =
        ((const uint4 *)(in.memory + (size_t)mine * MSGL_INPUT_BYTES))[lane % MSGL_INPUT_MOVES];
    if (threadIdx.x == 0) {
        const unsigned long long seen = atomicAdd(in.next, 1ull);
        *step = (uint32_t)(seen >> 32);
        // The last one to see it turns the page.
        if ((uint32_t)seen == gridDim.x - 1) *in.next = ((seen >> 32) + 1) << 32;
    }
    __syncthreads();
    const int buffer = (int)(*step % MSGL_INPUT_BUFFERS);
    v.buffer = in.memory + (size_t)buffer * MSGL_INPUT_BYTES;
    v.first = buffer * MSGL_INPUT_MOVES;
    if (mine == buffer) {
        v.move.to = (char *)((uint64_t)m.y << 32 | m.x);
        v.move.at = m.z;
        v.move.vectors = m.w;
    }
    return v;
}

// Where the bytes that will be at p can be read before they are there. All lanes of a warp call it
// with the same p.
template <typename T>
static __device__ __forceinline__ const T *msgl__inputs_find(const msgl_input_view &v, const T *p)
{
    const size_t from = (size_t)((const char *)p - v.move.to);
    const uint32_t lanes = __ballot_sync(0xffffffffu, from < (size_t)v.move.vectors * 16);
    const uint32_t at = __shfl_sync(0xffffffffu, v.move.at + (uint32_t)from, __ffs((int)lanes) - 1);
    return lanes == 0 ? p : (const T *)(v.buffer + at);
}

// Moves; by `block` of MSGL_INPUT_BLOCKS.
static __device__ __forceinline__ void msgl__inputs_move(const msgl_input_view &v, int block)
{
    const int lane = v.first + block % MSGL_INPUT_MOVES;
    uint4 *const to = (uint4 *)__shfl_sync(0xffffffffu, (unsigned long long)v.move.to, lane);
    const uint32_t at = __shfl_sync(0xffffffffu, v.move.at, lane);
    const uint32_t n = __shfl_sync(0xffffffffu, v.move.vectors, lane);
    const uint4 *const from = (const uint4 *)(v.buffer + at);
    const uint32_t step = blockDim.x * (MSGL_INPUT_BLOCKS / MSGL_INPUT_MOVES);
#pragma unroll 4
    for (uint32_t i = (uint32_t)(block / MSGL_INPUT_MOVES) * blockDim.x + threadIdx.x; i < n;
         i += step) {
        to[i] = from[i];
    }
}

#endif
