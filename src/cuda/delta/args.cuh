// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of family delta are given, and the arithmetic that they share: head dimensions
// of 128, bf16 activations.
#ifndef MSGL_CUDA_DELTA_ARGS_CUH
#define MSGL_CUDA_DELTA_ARGS_CUH

#include "cuda/delta/delta.h"
#include "cuda/ops/vec8.cuh"
#include "cuda/ptx/math.cuh"

typedef __nv_bfloat16 msgl_delta_act;

enum { MSGL_DELTA_DIM = 128 }; // of a k head and of a v head

struct msgl_delta_args {
    const msgl_delta_act *qkv, *z, *a, *b;
    msgl_delta_act *out;
    size_t ld_qkv, ld_z, ld_ab, ld_out;
    const float *conv, *a_log, *dt_bias, *norm;
    float norm_eps;
    bool sigmoid_gate; // not silu
    int k_heads, v_heads;
    int group_size; // v heads of a k head: with 4, v head 9 uses k head 2
    int channels;
    int size; // requests
    const int32_t *cu_seqlens_q, *seqlens_k, *from, *to;
    const msgl_kept_state *saves; // NULL: none
    const int32_t *save_start;
    char *states;
    size_t state_stride, ring_at; // bytes; ring_at: of the convolution's inputs in a state

    __device__ __forceinline__ float *matrix(int state, int head) const
    {
        return (float *)(states + (size_t)state * state_stride) +
               (size_t)head * MSGL_DELTA_DIM * MSGL_DELTA_DIM;
    }
    // The input of position `pos`.
    __device__ __forceinline__ msgl_delta_act *ring(int state, int pos) const
    {
        return (msgl_delta_act *)(states + (size_t)state * state_stride + ring_at) +
               (size_t)(pos & (MSGL_DELTA_TAPS - 1)) * channels;
    }
};

static const float MSGL_LOG2E = 1.44269504f;
static const float MSGL_DELTA_SCALE = 0.08838834764831845f; // of queries: 128^-0.5

static __device__ __forceinline__ float delta_sigmoid(float x)
{
    return msgl__rcp(1.0f + msgl__exp2(-x * MSGL_LOG2E));
}

static __device__ __forceinline__ float delta_silu(float x)
{
    return x * delta_sigmoid(x);
}

// What a result is multiplied by.
static __device__ __forceinline__ float delta_gate(float z, bool sigmoid)
{
    return sigmoid ? delta_sigmoid(z) : delta_silu(z);
}

// g, the logarithm (of base 2) of a token's decay.
static __device__ __forceinline__ float delta_decay(float a, float a_log, float dt_bias)
{
    const float x = a + dt_bias;
    const float softplus = x > 20 ? x : log1pf(expf(x));
    return -expf(a_log) * softplus * MSGL_LOG2E;
}

// taps: a channel's weights; x: its inputs, oldest first.
static __device__ __forceinline__ float delta_conv(float4 taps, float x0, float x1, float x2,
                                                   float x3)
{
    return delta_silu(fmaf(taps.w, x3, fmaf(taps.z, x2, fmaf(taps.y, x1, taps.x * x0))));
}

// Whether a call is one for the kernels of 128 channels, on a GPU and with activations that have
// them.
static inline bool msgl__delta_fast_dims(const msgl_delta_call *c)
{
    return c->k_dim == MSGL_DELTA_DIM && c->v_dim == MSGL_DELTA_DIM && !c->by_channel;
}

// What the kernels want of a call; false, with x->status set, if that is not so.
bool msgl__delta_args(msgl_exec *x, const msgl_delta_call *c, msgl_delta_args *out);

#endif
