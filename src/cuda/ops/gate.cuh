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

// Whether products of experts leave this gate to a kernel behind them: all others are an
// expert_gate.
static __host__ __device__ constexpr bool is_gelu(msgl_activation f)
{
    return f == MSGL_GELU_TANH || f == MSGL_GELU_ERF;
}

// min(g, limit) sigmoid(steep min(g, limit)) times up in [-limit, limit] + shift. A limit that is
// infinite clamps nothing, and a shift of -0 leaves a 0 its sign.
struct expert_gate {
    float limit, steep, shift;
};

// Of a GELU, which is none, what makes results that nobody takes for right.
static __host__ __device__ constexpr expert_gate expert_gate_of(msgl_activation f)
{
    return is_gelu(f)               ? expert_gate{NAN, NAN, NAN}
           : f == MSGL_SILU         ? expert_gate{INFINITY, 1, -0.0f}
           : f == MSGL_SILU_CLAMPED ? expert_gate{10, 1, -0.0f}
                                    : expert_gate{7, 1.702f, 1};
}

// The same numbers where they are constants of the code.
template <int F> struct fixed_gate {
    static constexpr float limit = expert_gate_of((msgl_activation)F).limit;
    static constexpr float steep = expert_gate_of((msgl_activation)F).steep;
    static constexpr float shift = expert_gate_of((msgl_activation)F).shift;
};

// GATE: expert_gate or a fixed_gate. A clamped value that is NaN stays one.
template <typename GATE>
static __device__ __forceinline__ float gated_expert(const GATE &f, float g, float u)
{
    g = g > f.limit ? f.limit : g;
    u = u > f.limit ? f.limit : u < -f.limit ? -f.limit : u;
    return sigmoid_of(g, f.steep * g) * (u + f.shift);
}

// gelu by tanh: x / 2 (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
template <int F> static __device__ __forceinline__ float gated(float g, float u)
{
    const float root = 0.7978845608f;
    if constexpr (F == MSGL_GELU_ERF) {
        return 0.5f * g * erfcf(-0.70710678f * g) * u;
    } else if constexpr (F == MSGL_GELU_TANH) {
        return sigmoid_of(g, 2 * root * (g + 0.044715f * g * g * g)) * u;
    } else {
        return gated_expert(fixed_gate<F>(), g, u);
    }
}

#define MSGL__BY_GATE(f, of, ...)                                                                  \
    ((f) == MSGL_SILU           ? of(MSGL_SILU, __VA_ARGS__)                                       \
     : (f) == MSGL_GELU_TANH    ? of(MSGL_GELU_TANH, __VA_ARGS__)                                  \
     : (f) == MSGL_GELU_ERF     ? of(MSGL_GELU_ERF, __VA_ARGS__)                                   \
     : (f) == MSGL_SILU_CLAMPED ? of(MSGL_SILU_CLAMPED, __VA_ARGS__)                               \
                                : of(MSGL_SWIGLU_CLAMPED, __VA_ARGS__))
#define MSGL__OF_GATE(F, fn, ...) fn<F, __VA_ARGS__>
#define MSGL__GATED(F, g, u) gated<F>(g, u)

// fn<F, ...> for the gate F that f is: a kernel.
#define MSGL_OF_GATE(f, fn, ...) MSGL__BY_GATE(f, MSGL__OF_GATE, fn, __VA_ARGS__)

// The same where a kernel is one for all.
static __device__ __forceinline__ float gated_by(msgl_activation f, float g, float u)
{
    return MSGL__BY_GATE(f, MSGL__GATED, g, u);
}

#endif
