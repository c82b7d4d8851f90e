// SPDX-License-Identifier: Apache-2.0
//
// What the kernels that choose experts share (moe.cu, choose.cu): the choice for one row, and a
// block's sums over its threads.
#ifndef MSGL_CUDA_OPS_ROUTE_CUH
#define MSGL_CUDA_OPS_ROUTE_CUH

#include "cuda/ops/ordered.cuh"
#include "cuda/ops/vec8.cuh"
#include "kernel/calls.h"

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

// An expert's score of its own logit, by any scoring but a softmax.
static __device__ __forceinline__ float own_score(const msgl_router &how, float logit)
{
    if (how.scoring == MSGL_SCORE_SIGMOID) return 1.0f / (1.0f + expf(-logit));
    return sqrtf(logit > 20 ? logit : log1pf(expf(logit)));
}

// Scores of a row's experts from its keys, as route_row has them.
template <int PER>
static __device__ __forceinline__ void score_row(const msgl_router &how,
                                                 const uint32_t (&keys)[PER], float (&scores)[PER])
{
    float max = 0, total = 1;
    if (how.scoring == MSGL_SCORE_SOFTMAX) {
        max = from_ordered(__reduce_max_sync(MSGL_FULL_MASK, largest_key(keys)));
        total = 0;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (keys[i] != 0) total += expf(from_ordered(keys[i]) - max);
        }
        total = group_sum(total, 32);
    }
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const float logit = from_ordered(keys[i]);
        scores[i] =
            how.scoring == MSGL_SCORE_SOFTMAX ? expf(logit - max) / total : own_score(how, logit);
    }
}

// ordered(score) of experts [begin, begin + size), of which this lane has those from `first` on.
template <int PER>
static __device__ __forceinline__ uint32_t group_key(const uint32_t (&keys)[PER], int first,
                                                     int begin, int size, bool pairs)
{
    uint32_t best = 0, second = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const uint32_t k = (unsigned)(first + i - begin) < (unsigned)size ? keys[i] : 0;
        second = k > best ? best : k > second ? k : second;
        best = k > best ? k : best;
    }
    const uint32_t key = __reduce_max_sync(MSGL_FULL_MASK, best);
    if (!pairs) return key;
    const bool mine =
        (int)threadIdx.x % 32 == __ffs((int)__ballot_sync(MSGL_FULL_MASK, best == key)) - 1;
    const uint32_t next = __reduce_max_sync(MSGL_FULL_MASK, mine ? second : best);
    return ordered(from_ordered(key) + from_ordered(next));
}

// Sets the keys of experts to 0 whose group is not one of the best. A lane keeps a group's score.
template <int PER>
static __device__ __forceinline__ void keep_best_groups(const msgl_router &how, int experts,
                                                        uint32_t (&keys)[PER])
{
    const int lane = (int)threadIdx.x % 32, first = lane * PER, size = experts / how.num_groups;
    uint32_t mine = 0;
    int rank = lane < how.num_groups ? 0 : 32; // groups before this lane's
#pragma unroll 4
    for (int g = 0; g < how.num_groups; g++) {
        const uint32_t key = group_key(keys, first, g * size, size, how.group_pairs);
        if (lane == g) mine = key;
    }
#pragma unroll 4
    for (int g = 0; g < how.num_groups; g++) {
        const uint32_t key = __shfl_sync(MSGL_FULL_MASK, mine, g);
        rank += key > mine || (key == mine && g < lane);
    }
    const uint32_t kept = __ballot_sync(MSGL_FULL_MASK, rank < how.top_groups);
    int g = first / size, at = first % size;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        if (keys[i] != 0 && (kept >> g & 1) == 0) keys[i] = 0;
        if (++at == size) at = 0, g++;
    }
}

// Whether the logits say all: the softmax's order is theirs.
static inline bool is_plain(const msgl_router *how)
{
    return how->scoring == MSGL_SCORE_SOFTMAX && how->correction == NULL && how->num_groups < 2 &&
           how->least_sum <= 0;
}

// What is added to the scores of this lane's experts; does not depend on earlier kernels.
template <int PER>
static __device__ __forceinline__ void load_corrections(const msgl_router &how, int experts,
                                                        float (&added)[PER])
{
    const int first = (int)threadIdx.x % 32 * PER;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        added[i] = how.correction != NULL && first + i < experts ? how.correction[first + i] : 0;
    }
}

// The choice for one row by a warp; PLAIN: as is_plain says. Lane l holds experts [PER l, PER l +
// PER) as ordered(logit), 0 where there is none; added: load_corrections, unless PLAIN. ids and
// weights get top_k experts, the one chosen first in front; weights are still to be divided by what
// is returned, and scaled. A choice costs one maximum over the warp and one vote: everything else
// is beside that chain.
template <int PER, bool PLAIN>
static __device__ __forceinline__ float route_row(const msgl_router &how, int experts,
                                                  const float (&added)[PER], uint32_t (&keys)[PER],
                                                  int32_t *ids, float *weights)
{
    const int lane = (int)threadIdx.x % 32;
    float scores[PER];
    if constexpr (!PLAIN) {
        score_row(how, keys, scores);
        // Without sums of scores their order is that of the logits.
        const bool pairs = how.num_groups > 1 && how.group_pairs;
#pragma unroll
        for (int i = 0; i < PER && (how.correction != NULL || pairs); i++) {
            if (keys[i] != 0) keys[i] = ordered(scores[i] + added[i]);
        }
        if (how.num_groups > 1) keep_best_groups(how, experts, keys);
    }
    uint32_t most = largest_key(keys), key = __reduce_max_sync(MSGL_FULL_MASK, most);
    const float max = from_ordered(key);
    float total = 0;
    if (PLAIN && !how.norm_topk) {
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (keys[i] != 0) total += expf(from_ordered(keys[i]) - max);
        }
        total = group_sum(total, 32);
    }
#pragma unroll 1
    for (int c = 0; c < how.top_k; c++) {
        const unsigned holders = __ballot_sync(MSGL_FULL_MASK, most == key);
        const bool mine = most == key && (holders & ((1u << lane) - 1)) == 0;
        int at = 0; // lowest expert of this lane with this key
#pragma unroll
        for (int i = PER - 1; i >= 0; i--) at = keys[i] == key ? i : at;
        float score = 0;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if constexpr (!PLAIN) score = i == at ? scores[i] : score;
            keys[i] = mine && i == at ? 0 : keys[i];
        }
        most = largest_key(keys);
        const uint32_t next = __reduce_max_sync(MSGL_FULL_MASK, most);
        const float weight = PLAIN ? expf(from_ordered(key) - max)
                                   : __shfl_sync(MSGL_FULL_MASK, score, __ffs((int)holders) - 1);
        if (how.norm_topk) total += weight;
        if (mine) {
            ids[c] = lane * PER + at;
            weights[c] = weight;
        }
        key = next;
    }
    __syncwarp();
    // As ref/moe.c has it.
    if constexpr (!PLAIN) total = how.norm_topk ? fmaxf(total + 1e-20f, how.least_sum) : 1.0f;
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
