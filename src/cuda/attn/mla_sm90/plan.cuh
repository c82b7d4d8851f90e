// SPDX-License-Identifier: Apache-2.0
//
// Making units of a step's requests, and sharing out their keys: units lie end to end on a line,
// each as long as its tiles and a fixed overhead, and the line is cut into equal ranges. One block,
// once a step.
#ifndef MSGL_CUDA_ATTN_MLA_SM90_PLAN_CUH
#define MSGL_CUDA_ATTN_MLA_SM90_PLAN_CUH

#include "cuda/attn/mla_sm90/config.cuh"

enum { MSGL_MLA_PLAN_THREADS = 512 };

struct msgl_mla_plan_args {
    msgl_mla_plan *plan;
    msgl_mla_unit *units;
    int32_t *sums;   // [units + 1]: place on the line where each unit begins
    int32_t *starts; // [batch + 1]: first unit of each request; only if ragged
    const int32_t *lens, *table_rows, *cu_seqlens_q;
    int32_t batch, heads, q_len, unit_rows, ranges;
    msgl_mla_tune tune;
};

static __device__ __forceinline__ int32_t msgl__mla_tiles(int32_t len)
{
    return len > 0 ? (len + MSGL_MLA_TILE - 1) / MSGL_MLA_TILE : 0;
}

// sums[i] = of(0) + ... + of(i - 1) for i up to count, by all threads of the block; returns the
// last one.
template <typename F>
static __device__ __forceinline__ int32_t msgl__mla_plan_sums(int32_t count, int32_t *sums, F of)
{
    __shared__ int32_t warps[MSGL_MLA_PLAN_THREADS / 32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int32_t before = 0;
    for (int base = 0; base < count; base += MSGL_MLA_PLAN_THREADS) {
        const int i = base + (int)threadIdx.x;
        const int32_t own = i < count ? of(i) : 0;
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
        if (i < count) sums[i] = before + sum - own;
        before += all;
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[count] = before;
    __syncthreads();
    return before;
}

// The last of `count` ascending sums that is not above x, which is not below the first one.
static __device__ __forceinline__ int32_t msgl__mla_plan_find(const int32_t *sums, int32_t count,
                                                              int32_t x)
{
    int32_t lo = 0, hi = count - 1;
    while (lo < hi) {
        const int32_t mid = (lo + hi + 1) / 2;
        if (sums[mid] <= x)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

// Unit i without its ranges.
static __device__ __forceinline__ msgl_mla_unit msgl__mla_plan_unit(const msgl_mla_plan_args &a,
                                                                    int32_t i)
{
    int32_t request = i, first = 0, q_len = a.q_len, from = i * a.q_len;
    if (a.cu_seqlens_q != NULL) {
        request = msgl__mla_plan_find(a.starts, a.batch, i);
        first = (i - a.starts[request]) * a.unit_rows; // of the request's rows
        from = a.cu_seqlens_q[request];
        q_len = a.cu_seqlens_q[request + 1] - from;
    }
    msgl_mla_unit u;
    u.rows = min(q_len * a.heads - first, a.unit_rows);
    u.first_row = from * a.heads + first;
    u.old = a.lens[request] - q_len;
    u.seen = u.old + 1 + first / a.heads;
    u.len = max(u.old + 1 + (first + u.rows - 1) / a.heads, 0);
    u.table_row = a.table_rows[request];
    u.first_slot = u.last_range = 0;
    return u;
}

// What is at place x of the line, which has `units`.
static __device__ __forceinline__ msgl_mla_bound msgl__mla_plan_at(const msgl_mla_plan_args &a,
                                                                   int32_t units, int32_t x)
{
    if (x == 0) return {0, 0};
    if (x >= a.sums[units]) return {units, 0};
    const int32_t i = msgl__mla_plan_find(a.sums, units, x);
    const int32_t tile = x - a.sums[i] - a.tune.overhead;
    const int32_t tiles = msgl__mla_tiles(a.units[i].len);
    const int32_t snap = tiles <= a.tune.whole ? (tiles + 1) / 2 : a.tune.snap;
    if (tile <= 0 || tile < snap) return {i, 0};
    if (tiles - tile < snap || tiles <= a.tune.whole) return {i + 1, 0};
    return {i, tile};
}

// The range that has a tile of a unit: the last one that begins there or before.
static __device__ __forceinline__ int32_t msgl__mla_plan_range(const msgl_mla_bound *bounds,
                                                               int32_t ranges, int32_t unit,
                                                               int32_t tile)
{
    int32_t lo = 0, hi = ranges - 1;
    while (lo < hi) {
        const int32_t mid = (lo + hi + 1) / 2;
        const msgl_mla_bound b = bounds[mid];
        if (b.unit < unit || (b.unit == unit && b.tile <= tile))
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
    int32_t units = a.batch;
    if (a.cu_seqlens_q != NULL) {
        units = msgl__mla_plan_sums(a.batch, a.starts, [&](int i) {
            const int32_t rows = (a.cu_seqlens_q[i + 1] - a.cu_seqlens_q[i]) * a.heads;
            return (rows + a.unit_rows - 1) / a.unit_rows;
        });
    }
    const int32_t total = msgl__mla_plan_sums(units, a.sums, [&](int i) {
        const msgl_mla_unit u = msgl__mla_plan_unit(a, i);
        a.units[i] = u;
        return msgl__mla_tiles(u.len) + a.tune.overhead;
    });
    const int32_t per_range = max(max((total + a.ranges - 1) / a.ranges, a.tune.min_tiles), 1);
    for (int i = threadIdx.x; i <= a.ranges; i += MSGL_MLA_PLAN_THREADS)
        bounds[i] =
            i < a.ranges ? msgl__mla_plan_at(a, units, i * per_range) : msgl_mla_bound{units, 0};
    __syncthreads();
    for (int i = threadIdx.x; i < units; i += MSGL_MLA_PLAN_THREADS) {
        msgl_mla_unit &u = a.units[i];
        const int32_t first = msgl__mla_plan_range(bounds, a.ranges, i, 0);
        u.first_slot = 2 * first + (bounds[first].unit != i);
        u.last_range =
            msgl__mla_plan_range(bounds, a.ranges, i, max(msgl__mla_tiles(u.len) - 1, 0));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < a.ranges; i += MSGL_MLA_PLAN_THREADS) {
        const int32_t first = min(bounds[i].unit, units - 1);
        a.plan->ranges[i] = {bounds[i], bounds[i + 1], a.units[first]};
    }
    __threadfence();
}

#endif
