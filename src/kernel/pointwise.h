// SPDX-License-Identifier: Apache-2.0
//
// Parameters of activations that have some. Both C and CUDA C++.
#ifndef MSGL_KERNEL_POINTWISE_H
#define MSGL_KERNEL_POINTWISE_H

#include <math.h>

#ifdef __CUDACC__
#define POINTWISE_FN static __device__ __forceinline__
#else
#define POINTWISE_FN static inline
#endif

// xIELU (Huang 2025): positive x^2 + linear x for x > 0, else negative (e^min(x, eps) - 1 - x) +
// linear x.
typedef struct msgl_xielu {
    float positive, negative, linear, eps;
} msgl_xielu;

// params: alpha_p, alpha_n, beta and eps as checkpoints have them, where softplus keeps both
// curvatures positive: positive = softplus(alpha_p), negative = beta + softplus(alpha_n).
enum { MSGL_XIELU_PARAMS = 4 };

POINTWISE_FN float msgl__softplus(float a)
{
    return a > 20 ? a : log1pf(expf(a)); // what is left out above 20 is less than half an ulp
}

POINTWISE_FN msgl_xielu msgl__xielu_of(const float *params)
{
    msgl_xielu x;
    x.positive = msgl__softplus(params[0]);
    x.negative = params[2] + msgl__softplus(params[1]);
    x.linear = params[2];
    x.eps = params[3];
    return x;
}

#endif
