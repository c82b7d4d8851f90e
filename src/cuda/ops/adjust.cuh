// SPDX-License-Identifier: Apache-2.0
//
// A row's logits under its request's bias and penalties (kernel/calls.h has the formula), and back:
// kernel/ref/adjust.h with the threads of a cluster, which says how it works. Tokens are read
// from the token pool, so nothing has to be kept in step with it, and a captured graph needs no
// input for it. Between two passes of which one reads what the other writes stands a barrier of the
// cluster. Within a pass several threads may write a token's logit, but all the same value.
//
// Only rows that ask for it come here; the branch is the same for all threads of a row.
#ifndef MSGL_CUDA_OPS_ADJUST_CUH
#define MSGL_CUDA_OPS_ADJUST_CUH

#include "cuda/ops/adjust_values.cuh"
#include "cuda/ops/row_search.cuh"
#include "kernel/calls.h"

struct sample_args { // of sample_kernel
    float *logits;
    size_t ld;
    int vocab;
    const msgl_sample_row *rows;
    const msgl_sample_replay *replay;
    int32_t *tokens, *status, *pool;
    const int32_t *pool_index;
    const msgl_bias *bias;
    float *saved, *bias_saved;
    int keep;       // steps of a row that a block's shared memory takes
    int first;      // token of the first column
    uint64_t *keys; // NULL: all of each row is here
};

// The row of this block's cluster. Everything is found anew, so that the kernel itself, which
// hardly ever comes here, has nothing to keep in registers for it.
struct row_adjust {
    msgl_sample_row p;
    float *logits;
    const int32_t *ids; // prompt and answer so far
    const msgl_bias *bias;
    float *saved, *bias_saved;
    int thread, threads, size; // of the cluster; blocks in it
};

static __device__ __forceinline__ row_adjust adjust_of(const sample_args *a)
{
    const int size = cluster_size(), row = (int)blockIdx.x / size;
    const msgl_sample_row p = a->rows[row];
    return row_adjust{p,
                      a->logits + (size_t)row * a->ld,
                      a->pool + p.tokens,
                      a->bias + p.bias,
                      a->saved + p.tokens,
                      a->bias_saved + p.bias,
                      cluster_rank() * (int)blockDim.x + (int)threadIdx.x,
                      size * (int)blockDim.x,
                      size};
}

// Loads go past the L1: other SMs of the cluster write.
static __device__ __forceinline__ float adjust_load(const float *at)
{
    return __ldcg(at);
}

// After it, all of the row's logits are what the token is chosen from.
static __device__ __noinline__ void adjust_row(const sample_args *args)
{
    const row_adjust a = adjust_of(args);
    const adjust_range at = adjust_places(a.p);
    for (int i = a.thread; i < a.p.num_bias; i += a.threads) {
        float *const l = &a.logits[a.bias[i].token];
        const float raw = adjust_load(l);
        a.bias_saved[i] = raw;
        *l = __fadd_rn(raw, a.bias[i].value);
    }
    if (a.p.num_bias > 0) cluster_sync(a.size);
    if (at.first == at.end) return;
#pragma unroll 4
    for (int i = at.first + a.thread; i < at.end; i += a.threads) {
        a.saved[i] = adjust_load(&a.logits[a.ids[i]]);
    }
    cluster_sync(a.size);
    if (at.first < at.answer) {
#pragma unroll 4
        for (int i = at.first + a.thread; i < at.answer; i += a.threads) {
            a.logits[a.ids[i]] = adjust_repeated(a.p, a.saved[i]);
        }
        cluster_sync(a.size);
    }
    if (a.p.frequency == 0) {
#pragma unroll 4
        for (int i = at.answer + a.thread; i < at.end; i += a.threads) {
            a.logits[a.ids[i]] = adjust_answered(a.p, a.saved[i], 0);
        }
        cluster_sync(a.size);
        return;
    }
#pragma unroll 4
    for (int i = at.answer + a.thread; i < at.end; i += a.threads) {
        a.logits[a.ids[i]] = __uint_as_float(COUNTER_BITS);
    }
    cluster_sync(a.size);
#pragma unroll 4
    for (int i = at.answer + a.thread; i < at.end; i += a.threads) {
        atomicAdd((uint32_t *)&a.logits[a.ids[i]], 1);
    }
    cluster_sync(a.size);
#pragma unroll 4
    for (int i = at.answer + a.thread; i < at.end; i += a.threads) {
        float *const l = &a.logits[a.ids[i]];
        const float counter = adjust_load(l); // or its final value already
        if (isnan(counter)) {
            *l = adjust_answered(a.p, a.saved[i], __float_as_uint(counter) - COUNTER_BITS);
        }
    }
    cluster_sync(a.size);
}

// Puts the logits back, when no thread of the row reads them any more.
static __device__ __noinline__ void restore_row(const sample_args *args)
{
    const row_adjust a = adjust_of(args);
    const adjust_range at = adjust_places(a.p);
    cluster_sync(a.size);
#pragma unroll 4
    for (int i = at.first + a.thread; i < at.end; i += a.threads) {
        a.logits[a.ids[i]] = a.saved[i];
    }
    if (a.p.num_bias == 0) return;
    cluster_sync(a.size);
    for (int i = a.thread; i < a.p.num_bias; i += a.threads) {
        a.logits[a.bias[i].token] = a.bias_saved[i];
    }
}

#endif
