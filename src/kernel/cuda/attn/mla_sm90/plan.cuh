// SPDX-License-Identifier: Apache-2.0
//
// Sharing out the keys: requests lie end to end on a line, each as long as its tiles and a fixed
// overhead, and the line is cut into equal shares. One block, once a step.
#ifndef MSGL_KERNEL_CUDA_ATTN_MLA_SM90_PLAN_CUH
#define MSGL_KERNEL_CUDA_ATTN_MLA_SM90_PLAN_CUH

#include "kernel/cuda/attn/mla_sm90/config.cuh"

enum { MSGL_MLA_PLAN_THREADS = 512 };

struct msgl_mla_plan_args {
    msgl_mla_plan *plan;
    msgl_mla_request *requests;
    int32_t *sums; // [batch + 1]: place on the line where each request begins
    const int32_t *lens, *table_rows;
    int32_t batch, shares;
    msgl_mla_tune tune;
};

static __device__ __forceinline__ int32_t msgl__mla_tiles(int32_t len)
{
    return len > 0 ? (len + MSGL_MLA_TILE - 1) / MSGL_MLA_TILE : 0;
}

// Sums of all earlier requests' costs, by all threads of the block.
static __device__ __forceinline__ void msgl__mla_plan_sums(const msgl_mla_plan_args &a)
{
    __shared__ int32_t warps[MSGL_MLA_PLAN_THREADS / 32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int32_t before = 0;
    for (int base = 0; base < a.batch; base += MSGL_MLA_PLAN_THREADS) {
        const int i = base + (int)threadIdx.x;
        const int32_t own = i < a.batch ? msgl__mla_tiles(a.lens[i]) + a.tune.overhead : 0;
        int32_t sum = own;
        for (int x = 1; x < 32; x *= 2) {
            const int32_t v = __shfl_up_sync(0xffffffff, sum, x);
            if (lane >= x) sum += v;
        }
        if (lane == 31) warps[warp] = sum;
        __syncthreads();
        int32_t all = 0;
        for (int w = 0; w < MSGL_MLA_PLAN_THREADS / 32; w++) {
            if (w == warp) sum += all;
            all += warps[w];
        }
        if (i < a.batch) a.sums[i] = before + sum - own;
        before += all;
        __syncthreads();
    }
    if (threadIdx.x == 0) a.sums[a.batch] = before;
    __syncthreads();
}

// What is at place x of the line.
static __device__ __forceinline__ msgl_mla_bound msgl__mla_plan_at(const msgl_mla_plan_args &a,
                                                                   int32_t x)
{
    if (x == 0) return {0, 0};
    if (x >= a.sums[a.batch]) return {a.batch, 0};
    int32_t lo = 0, hi = a.batch - 1;
    while (lo < hi) {
        const int32_t mid = (lo + hi + 1) / 2;
        if (a.sums[mid] <= x)
            lo = mid;
        else
            hi = mid - 1;
    }
    const int32_t tile = x - a.sums[lo] - a.tune.overhead;
    if (tile <= 0 || tile < a.tune.snap) return {lo, 0};
    if (msgl__mla_tiles(a.lens[lo]) - tile < a.tune.snap) return {lo + 1, 0};
    return {lo, tile};
}

// The share that has a tile of a request: the last one that begins there or before.
static __device__ __forceinline__ int32_t msgl__mla_plan_share(const msgl_mla_bound *bounds,
                                                               int32_t shares, int32_t request,
                                                               int32_t tile)
{
    int32_t lo = 0, hi = shares - 1;
    while (lo < hi) {
        const int32_t mid = (lo + hi + 1) / 2;
        const msgl_mla_bound b = bounds[mid];
        if (b.request < request || (b.request == request && b.tile <= tile))
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

// Neither starts early nor lets others: what it writes may be read before their wait.
static __global__ void __launch_bounds__(MSGL_MLA_PLAN_THREADS)
    msgl__mla_plan_kernel(const msgl_mla_plan_args a)
{
    __shared__ msgl_mla_bound bounds[MSGL_MLA_MAX_CTAS + 1];
    msgl__mla_plan_sums(a);
    const int32_t total = a.sums[a.batch];
    const int32_t per_share = max(max((total + a.shares - 1) / a.shares, a.tune.min_tiles), 1);
    for (int i = threadIdx.x; i <= a.shares; i += MSGL_MLA_PLAN_THREADS)
        bounds[i] = i < a.shares ? msgl__mla_plan_at(a, i * per_share) : msgl_mla_bound{a.batch, 0};
    __syncthreads();
    for (int i = threadIdx.x; i < a.batch; i += MSGL_MLA_PLAN_THREADS) {
        const int32_t len = max(a.lens[i], 0);
        const int32_t first = msgl__mla_plan_share(bounds, a.shares, i, 0);
        msgl_mla_request r;
        r.len = len;
        r.table_row = a.table_rows[i];
        r.first_slot = 2 * first + (bounds[first].request != i);
        r.last_share = msgl__mla_plan_share(bounds, a.shares, i, max(msgl__mla_tiles(len) - 1, 0));
        a.requests[i] = r;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < a.shares; i += MSGL_MLA_PLAN_THREADS) {
        const int32_t first = min(bounds[i].request, a.batch - 1);
        a.plan->shares[i] = {bounds[i], bounds[i + 1], a.requests[first]};
    }
    __threadfence();
}

#endif
