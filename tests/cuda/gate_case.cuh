// SPDX-License-Identifier: Apache-2.0
//
// The gates of feed-forward blocks in f64, for tests.
#ifndef MSGL_TESTS_CUDA_GATE_CASE_CUH
#define MSGL_TESTS_CUDA_GATE_CASE_CUH

#include <math.h>

#include "kernel/calls.h"

// For names of cases.
static const char *const GATES[MSGL_ACTIVATIONS] = {"", " gelu by tanh", " clamped", " gelu by erf",
                                                    " silu clamped"};

static inline double silu_of(double v)
{
    return v / (1 + exp(-v));
}

static inline double gate_of(msgl_activation f, double g, double u)
{
    switch (f) {
    case MSGL_SILU: return silu_of(g) * u;
    case MSGL_GELU_TANH: return g / 2 * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
    case MSGL_GELU_ERF: return g / 2 * erfc(-g / sqrt(2.0)) * u;
    case MSGL_SILU_CLAMPED: return silu_of(fmin(g, 10)) * fmin(fmax(u, -10), 10);
    default: break;
    }
    g = fmin(g, 7); // MSGL_SWIGLU_CLAMPED
    return g / (1 + exp(-1.702 * g)) * (fmin(fmax(u, -7), 7) + 1);
}

#endif
