// SPDX-License-Identifier: Apache-2.0
//
// The n largest of a row of scores, of equal ones the first, in the order of the row: exactly, and
// without sorting. A block may have several rows, each for some of its warps. There are barriers
// inside: all of the block's warps call these functions together, those without a row with some
// other one's and no length.
#ifndef MSGL_CUDA_ATTN_DOUBLE_SPARSITY_LARGEST_CUH
#define MSGL_CUDA_ATTN_DOUBLE_SPARSITY_LARGEST_CUH

#include "attention/triton/splits.h"

enum {
    MSGL_DIGIT = 8,
    MSGL_DIGITS = 32 / MSGL_DIGIT,
    MSGL_BINS = 1 << MSGL_DIGIT,
    MSGL_COUNTS = MSGL_DIGITS * MSGL_BINS, // of a row
};

typedef struct msgl_row {
    const uint32_t *orders;   // of the scores (cuda/ops/ordered.cuh)
    int32_t len, warp, warps; // this warp's number, and how many the row has
} msgl_row;

// The smallest order that is among the n largest, and how many equal to it are.
typedef struct msgl_least {
    uint32_t order;
    int32_t equal;
} msgl_least;

// Of the orders that are known to be among the `left` largest, counted by their next digit, what
// the smallest one's is: that where the count from above reaches `left`, which then becomes how
// many of that digit there are to take. counts: shared memory. A lane has 8 of the digits.
static __device__ __forceinline__ uint32_t msgl_find_digit(const int32_t *counts, int32_t *left)
{
    const int32_t lane = threadIdx.x % 32, high = MSGL_BINS - 1 - 8 * lane;
    const int4 *at = (const int4 *)(counts + high - 7);
    const int4 a = at[1], b = at[0];
    const int32_t each[8] = {a.w, a.z, a.y, a.x, b.w, b.z, b.y, b.x};
    int32_t sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) sum += each[i];
    int32_t reached = sum;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int32_t before = __shfl_up_sync(~0u, reached, d);
        if (lane >= d) reached += before;
    }
    int32_t above = reached - sum, digit = high;
    const uint32_t here = __ballot_sync(~0u, above < *left && reached >= *left);
    bool higher = true;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        higher = higher && above + each[i] < *left;
        if (higher) above += each[i], digit--;
    }
    const int owner = (__ffs(here) - 1) & 31; // one lane's, but for rows without scores
    *left -= __shfl_sync(~0u, above, owner);
    return (uint32_t)__shfl_sync(~0u, digit, owner) & (MSGL_BINS - 1);
}

// Zeros for msgl_find_least, by a block of `threads`, which then waits for all of them.
static __device__ __forceinline__ void msgl_clear_counts(int32_t *counts, int32_t rows,
                                                         int32_t threads)
{
    for (int32_t i = threadIdx.x; i < rows * MSGL_COUNTS; i += threads) counts[i] = 0;
}

// By radix, the highest digit first. len >= n; counts: of the row, shared memory,
// [MSGL_DIGITS, MSGL_BINS], zeros.
static __device__ __forceinline__ msgl_least msgl_find_least(const msgl_row &row, int32_t n,
                                                             int32_t *counts)
{
    msgl_least least = {0, n};
    uint32_t known = 0;
#pragma unroll
    for (int shift = 32 - MSGL_DIGIT; shift >= 0; shift -= MSGL_DIGIT, counts += MSGL_BINS) {
        const int32_t stride = row.warps * 32;
#pragma unroll 4
        for (int32_t i = row.warp * 32 + threadIdx.x % 32; i < row.len; i += stride) {
            const uint32_t o = row.orders[i];
            if ((o & known) == least.order) atomicAdd(&counts[o >> shift & (MSGL_BINS - 1)], 1);
        }
        __syncthreads();
        least.order |= msgl_find_digit(counts, &least.equal) << shift;
        known |= (uint32_t)(MSGL_BINS - 1) << shift;
    }
    return least;
}

// Calls put(i, place) for each of those found, where place counts from 0 in the order of i. A warp
// has an unbroken run of the row. tallies: of the row, shared memory, [warps].
template <typename PUT>
static __device__ __forceinline__ void
msgl_list_largest(const msgl_row &row, const msgl_least &least, int2 *tallies, const PUT &put)
{
    const int32_t lane = threadIdx.x % 32;
    const int32_t run = msgl__triton_div(row.len, row.warps * 32) * 32;
    const int32_t begin = min(row.warp * run, row.len), end = min(begin + run, row.len);
    int32_t larger = 0, equal = 0;
#pragma unroll 4
    for (int32_t i = begin + lane; i < end; i += 32) {
        larger += row.orders[i] > least.order;
        equal += row.orders[i] == least.order;
    }
    larger = __reduce_add_sync(~0u, larger);
    equal = __reduce_add_sync(~0u, equal);
    if (lane == 0 && row.len > 0) tallies[row.warp] = make_int2(larger, equal);
    __syncthreads();
    larger = equal = 0; // before the warp's run, and then before i0
    for (int32_t i = 0; i < row.warp; i++) larger += tallies[i].x, equal += tallies[i].y;
    const uint32_t before = (1u << lane) - 1;
#pragma unroll 4
    for (int32_t i0 = begin; i0 < end; i0 += 32) {
        const bool there = i0 + lane < end;
        const uint32_t o = there ? row.orders[i0 + lane] : 0;
        const uint32_t larger_lanes = __ballot_sync(~0u, there && o > least.order);
        const uint32_t equal_lanes = __ballot_sync(~0u, there && o == least.order);
        const int32_t equal_here = equal + __popc(equal_lanes & before);
        const bool taken = o > least.order || (o == least.order && equal_here < least.equal);
        if (there && taken) {
            put(i0 + lane, larger + __popc(larger_lanes & before) + min(equal_here, least.equal));
        }
        larger += __popc(larger_lanes);
        equal += __popc(equal_lanes);
    }
}

#endif
