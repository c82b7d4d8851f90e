// SPDX-License-Identifier: Apache-2.0
//
// The gates of feed-forward blocks (msgl_activation).
#ifndef MSGL_CUDA_OPS_GATE_CUH
#define MSGL_CUDA_OPS_GATE_CUH

#include <math.h>

#include "kernel/calls.h"

static __device__ __forceinline__ float sigmoid_of(float g, float by)
{
    return __fdividef(g, 1.0f + __expf(-by)); // -by above 88: division by infinity, which gives 0
}

// gelu by tanh: x / 2 (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). A
// clamped value that is NaN stays one.
template <int F> static __device__ __forceinline__ float gated(float g, float u)
{
    const float root = 0.7978845608f, limit = F == MSGL_SILU_CLAMPED ? 10 : 7;
    if (F == MSGL_SILU) return sigmoid_of(g, g) * u;
    if (F == MSGL_GELU_ERF) return 0.5f * g * erfcf(-0.70710678f * g) * u;
    if (F == MSGL_GELU_TANH) return sigmoid_of(g, 2 * root * (g + 0.044715f * g * g * g)) * u;
    g = g > limit ? limit : g;
    u = u > limit ? limit : u < -limit ? -limit : u;
    if (F == MSGL_SILU_CLAMPED) return sigmoid_of(g, g) * u;
    return sigmoid_of(g, 1.702f * g) * (u + 1);
}

// Of experts in products that apply it themselves, as numbers: those but a GELU. A limit that is
// infinite clamps nothing.
struct expert_gate {
    float limit, steep, shift;
};

static inline expert_gate expert_gate_of(msgl_activation f)
{
    return f == MSGL_SILU           ? expert_gate{INFINITY, 1, 0}
           : f == MSGL_SILU_CLAMPED ? expert_gate{10, 1, 0}
                                    : expert_gate{7, 1.702f, 1};
}

static __device__ __forceinline__ float gated_expert(const expert_gate &f, float g, float u)
{
    g = g > f.limit ? f.limit : g;
    u = u > f.limit ? f.limit : u < -f.limit ? -f.limit : u;
    return sigmoid_of(g, f.steep * g) * (u + f.shift);
}

#endif
