// SPDX-License-Identifier: Apache-2.0
//
// What the kernels that choose experts share (moe.cu, choose.cu): the choice for one row, and a
// block's sums over its threads.
#ifndef MSGL_KERNEL_CUDA_OPS_ROUTE_CUH
#define MSGL_KERNEL_CUDA_OPS_ROUTE_CUH

#include "kernel/cuda/ops/ordered.cuh"
#include "kernel/cuda/ops/vec8.cuh"

#define SORT_WARPS 8
#define SORT_THREADS (SORT_WARPS * 32)

template <int PER>
static __device__ __forceinline__ uint32_t largest_key(const uint32_t (&keys)[PER])
{
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) most = keys[i] > most ? keys[i] : most;
    return most;
}

// The choice for one row by a warp. Lane l holds experts [PER l, PER l + PER) as ordered(logit), 0
// where there is none. ids and weights get top_k experts by falling logit, of equal ones the lowest
// first; weights are still to be divided by what is returned. A choice costs one maximum over the
// warp and one vote: everything else is beside that chain.
template <int PER>
static __device__ __forceinline__ float route_row(uint32_t (&keys)[PER], int top_k, int norm_topk,
                                                  int32_t *ids, float *weights)
{
    const int lane = (int)threadIdx.x % 32;
    uint32_t most = largest_key(keys), key = __reduce_max_sync(MSGL_FULL_MASK, most);
    const float max = from_ordered(key);
    float total = 0;
    if (!norm_topk) {
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (keys[i] != 0) total += expf(from_ordered(keys[i]) - max);
        }
        total = group_sum(total, 32);
    }
#pragma unroll 1
    for (int c = 0; c < top_k; c++) {
        const unsigned holders = __ballot_sync(MSGL_FULL_MASK, most == key);
        const bool mine = most == key && (holders & ((1u << lane) - 1)) == 0;
        int at = 0; // lowest expert of this lane with this logit
#pragma unroll
        for (int i = PER - 1; i >= 0; i--) at = keys[i] == key ? i : at;
#pragma unroll
        for (int i = 0; i < PER; i++) keys[i] = mine && i == at ? 0 : keys[i];
        most = largest_key(keys);
        const uint32_t next = __reduce_max_sync(MSGL_FULL_MASK, most);
        const float weight = expf(from_ordered(key) - max);
        if (norm_topk) total += weight;
        if (mine) {
            ids[c] = lane * PER + at;
            weights[c] = weight;
        }
        key = next;
    }
    __syncwarp();
    return total;
}

// Sums of v over the threads before this one, of SORT_THREADS.
static __device__ __forceinline__ int scan_before(int v)
{
    __shared__ int warps[SORT_WARPS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int sum = v;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(MSGL_FULL_MASK, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    int base = 0;
#pragma unroll 1
    for (int w = 0; w < warp; w++) base += warps[w];
    return base + sum - v;
}

#endif
