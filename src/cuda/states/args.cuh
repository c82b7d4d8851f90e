// SPDX-License-Identifier: Apache-2.0
//
// kernel/states.h for kernels: where requests of a call begin and leave their states.
#ifndef MSGL_CUDA_STATES_ARGS_CUH
#define MSGL_CUDA_STATES_ARGS_CUH

#include "cuda/ops/vec8.cuh"

extern "C" {
#include "kernel/states.h"
}

struct states_args {
    int size; // requests
    const int32_t *cu_seqlens_q, *seqlens_k, *from, *to;
    const msgl_kept_state *saves; // NULL: none
    const int32_t *save_start;
    char *base;
    size_t stride; // bytes

    template <typename T> __device__ __forceinline__ T *at(int state) const
    {
        return (T *)(base + (size_t)state * stride);
    }
};

static inline states_args states_args_of(const msgl_states *io)
{
    const msgl_seqs *s = io->seqs;
    states_args a = {};
    a.size = s->size;
    a.cu_seqlens_q = s->dev_cu_seqlens_q, a.seqlens_k = s->dev_seqlens_k;
    a.from = io->at.dev_from, a.to = io->at.dev_to;
    if (io->at.saves != NULL) a.saves = io->at.dev_saves, a.save_start = io->at.dev_save_start;
    a.base = (char *)io->base, a.stride = io->stride;
    return a;
}

// A request of a call.
struct states_request {
    int row, tokens; // of the call's rows: the first, and how many
    int first;       // position of the first
    int from, to;    // as msgl_seq_states has them
    int save, save_end;
};

static __device__ __forceinline__ states_request request_of(const states_args &a, int r)
{
    states_request q;
    q.row = a.cu_seqlens_q[r], q.tokens = a.cu_seqlens_q[r + 1] - q.row;
    q.first = a.seqlens_k[r] - q.tokens;
    q.to = a.to[r];
    q.from = q.to < 0 ? -1 : a.from[r];
    q.save = a.saves != NULL ? a.save_start[r] : 0;
    q.save_end = a.saves != NULL ? a.save_start[r + 1] : 0;
    return q;
}

// Calls keep(state) for each state to be kept behind the token at `pos`.
template <typename KEEP>
static __device__ __forceinline__ void keep_saves(const states_args &a, states_request &q, int pos,
                                                  const KEEP &keep)
{
    for (; q.save < q.save_end && a.saves[q.save].len == pos + 1; q.save++) {
        keep(a.saves[q.save].state);
    }
}

// expf, not a quicker form: what is summed up over a whole prompt should not lean one way.
static __device__ __forceinline__ float sigmoid_f32(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static __device__ __forceinline__ float silu_f32(float x)
{
    return x / (1.0f + expf(-x));
}

#endif
