// SPDX-License-Identifier: Apache-2.0
//
// The convolution's last inputs into the states that a step's tokens leave.
#ifndef MSGL_CUDA_DELTA_INPUTS_CUH
#define MSGL_CUDA_DELTA_INPUTS_CUH

#include "cuda/delta/chunks.cuh"

// The last ones before position `len` of a request, into a state.
static __device__ __forceinline__ void delta_keep_inputs(const msgl_delta_args &p, int r, int len,
                                                         int to)
{
    const int first_position = delta_first_position(p.cu_seqlens_q, p.seqlens_k, r);
    const int from = p.from[r], vectors = p.channels / 8, row0 = p.cu_seqlens_q[r];
    for (int i = (int)threadIdx.x; i < 3 * vectors; i += (int)blockDim.x) {
        const int position = len - 1 - i / vectors, channel = i % vectors * 8;
        const int token = position - first_position;
        if (position < 0 || (token < 0 && from == to)) continue;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (token >= 0)
            v = *(const uint4 *)(p.qkv + (size_t)(row0 + token) * p.ld_qkv + channel);
        else if (from >= 0)
            v = *(const uint4 *)(p.ring(from, position) + channel);
        *(uint4 *)(p.ring(to, position) + channel) = v;
    }
}

// How many targets a call has.
static inline int msgl__delta_targets(const msgl_delta_call *c)
{
    const int size = c->io.seqs->size;
    return size + (c->io.at.saves != NULL ? c->io.at.save_start[size] - c->io.at.save_start[0] : 0);
}

// Target i < size: the state that request i leaves; behind them: save i - size. A save that needs
// inputs from before the step goes ahead of the request's own state, where they may be, and in its
// block.
static __device__ __forceinline__ void delta_keep_target(const msgl_delta_args &p, int target)
{
    int r = target;
    if (target >= p.size) {
        const int save = p.save_start[0] + target - p.size;
        if (save >= p.save_start[p.size]) return;
        for (r = 0; p.save_start[r + 1] <= save;) r++;
        const int len = p.saves[save].len;
        const bool new_only = len - 3 >= delta_first_position(p.cu_seqlens_q, p.seqlens_k, r);
        if (p.to[r] >= 0 && new_only) delta_keep_inputs(p, r, len, p.saves[save].state);
        return;
    }
    if (p.to[r] < 0) return;
    const int first_position = delta_first_position(p.cu_seqlens_q, p.seqlens_k, r);
    const int save_end = p.saves != NULL ? p.save_start[r + 1] : 0;
    for (int i = p.saves != NULL ? p.save_start[r] : 0; i < save_end; i++) {
        if (p.saves[i].len - 3 >= first_position) break;
        delta_keep_inputs(p, r, p.saves[i].len, p.saves[i].state);
    }
    __syncthreads();
    delta_keep_inputs(p, r, p.seqlens_k[r], p.to[r]);
}

#endif
