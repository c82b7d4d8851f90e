// SPDX-License-Identifier: Apache-2.0
//
// Sixteen f32 lanes as a compiler vector. The same source is compiled once per ISA level; every
// operation is a plain IEEE multiply or add (contraction is off), and reductions have one fixed
// tree, so all levels give the same bits.
#ifndef MSGL_KERNEL_VEC_H
#define MSGL_KERNEL_VEC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/attributes.h"

#define MSGL_LANES 16

typedef float msgl_vf __attribute__((vector_size(64)));
typedef int32_t msgl_vi __attribute__((vector_size(64)));

MSGL_INLINE msgl_vf msgl__vf_set(float a)
{
    return (msgl_vf){a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a};
}
MSGL_INLINE msgl_vi msgl__vi_set(int32_t a)
{
    return (msgl_vi){a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a};
}
MSGL_INLINE msgl_vf msgl__vf_load(const float *p)
{
    msgl_vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
MSGL_INLINE void msgl__vf_store(float *p, msgl_vf v)
{
    memcpy(p, &v, sizeof v);
}
// n < 16 elements, the other lanes are `fill`.
MSGL_INLINE msgl_vf msgl__vf_load_partial(const float *p, size_t n, float fill)
{
    msgl_vf v = msgl__vf_set(fill);
    memcpy(&v, p, n * sizeof *p);
    return v;
}
MSGL_INLINE void msgl__vf_store_partial(float *p, msgl_vf v, size_t n)
{
    memcpy(p, &v, n * sizeof *p);
}
MSGL_INLINE msgl_vf msgl__vf_select(msgl_vi mask, msgl_vf a, msgl_vf b) // mask lane -1: a, 0: b
{
    return (msgl_vf)((mask & (msgl_vi)a) | (~mask & (msgl_vi)b));
}
MSGL_INLINE msgl_vf msgl__vf_max(msgl_vf a, msgl_vf b)
{
    return msgl__vf_select(a > b, a, b);
}
MSGL_INLINE msgl_vf msgl__vf_min(msgl_vf a, msgl_vf b)
{
    return msgl__vf_select(a < b, a, b);
}
// Sum in the tree 8, 4, 2, 1 apart.
MSGL_INLINE float msgl__vf_sum(msgl_vf v)
{
    float a[MSGL_LANES];
    memcpy(a, &v, sizeof a);
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) a[i] += a[i + half];
    }
    return a[0];
}
MSGL_INLINE float msgl__vf_hmax(msgl_vf v)
{
    float a[MSGL_LANES];
    memcpy(a, &v, sizeof a);
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) a[i] = a[i] > a[i + half] ? a[i] : a[i + half];
    }
    return a[0];
}

// e^x, relative error below 2e-7 for x in [-87, 88]; 0 below -87.3, e^88.7 (finite) above.
// x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite's two-part ln 2), e^r by its Taylor
// polynomial of degree 7 (remainder 5e-9), 2^n by adding n to the exponent.
MSGL_INLINE msgl_vf msgl__vf_exp(msgl_vf x)
{
    const msgl_vi underflow = x < msgl__vf_set(-87.3f);
    x = msgl__vf_min(msgl__vf_max(x, msgl__vf_set(-87.3f)), msgl__vf_set(88.7f));
    const msgl_vf magic = msgl__vf_set(12582912.0f); // 1.5 * 2^23: adding it rounds to an integer
    const msgl_vf shifted = x * msgl__vf_set(1.44269504f) + magic;
    const msgl_vf n = shifted - magic;
    const msgl_vf r = (x - n * msgl__vf_set(0.693359375f)) - n * msgl__vf_set(-2.12194440e-4f);
    msgl_vf p = msgl__vf_set(1.0f / 5040);
    p = p * r + msgl__vf_set(1.0f / 720);
    p = p * r + msgl__vf_set(1.0f / 120);
    p = p * r + msgl__vf_set(1.0f / 24);
    p = p * r + msgl__vf_set(1.0f / 6);
    p = p * r + msgl__vf_set(0.5f);
    p = p * r * r + r;
    p = p + msgl__vf_set(1.0f);
    const msgl_vi exponent = ((msgl_vi)shifted - (msgl_vi)magic) << 23;
    const msgl_vf y = (msgl_vf)((msgl_vi)p + exponent);
    return (msgl_vf)(~underflow & (msgl_vi)y);
}
// silu(gate) * up
MSGL_INLINE msgl_vf msgl__vf_silu_mul(msgl_vf gate, msgl_vf up)
{
    return gate / (msgl__vf_set(1) + msgl__vf_exp(-gate)) * up;
}
// gelu(gate) * up with gelu(x) = x / 2 (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x +
// 0.044715 x^3)
MSGL_INLINE msgl_vf msgl__vf_gelu_mul(msgl_vf gate, msgl_vf up)
{
    const msgl_vf cubic = msgl__vf_set(2 * 0.7978845608f * 0.044715f);
    const msgl_vf linear = msgl__vf_set(2 * 0.7978845608f);
    const msgl_vf twice = gate * (linear + cubic * gate * gate);
    return gate / (msgl__vf_set(1) + msgl__vf_exp(-twice)) * up;
}
// gate sigmoid(1.702 gate) (up + 1), gate at most 7 and up in [-7, 7]; NaN stays NaN.
MSGL_INLINE msgl_vf msgl__vf_swiglu_clamped(msgl_vf gate, msgl_vf up)
{
    const msgl_vf limit = msgl__vf_set(7);
    gate = msgl__vf_select(gate > limit, limit, gate);
    up = msgl__vf_select(up > limit, limit, msgl__vf_select(up < -limit, -limit, up));
    const msgl_vf steep = gate * msgl__vf_set(1.702f);
    return gate / (msgl__vf_set(1) + msgl__vf_exp(-steep)) * (up + msgl__vf_set(1));
}
// silu(gate) up, gate at most 10 and up in [-10, 10]; NaN stays NaN.
MSGL_INLINE msgl_vf msgl__vf_silu_clamped(msgl_vf gate, msgl_vf up)
{
    const msgl_vf limit = msgl__vf_set(10);
    gate = msgl__vf_select(gate > limit, limit, gate);
    up = msgl__vf_select(up > limit, limit, msgl__vf_select(up < -limit, -limit, up));
    return msgl__vf_silu_mul(gate, up);
}
// max(x, 0)^2; NaN stays NaN.
MSGL_INLINE msgl_vf msgl__vf_relu2(msgl_vf x)
{
    x = msgl__vf_select(x < msgl__vf_set(0), msgl__vf_set(0), x);
    return x * x;
}
// x Phi(x), the normal distribution by Abramowitz & Stegun 7.1.26, whose absolute error is 1.5e-7:
// with z = |x| / sqrt(2) and t = 1 / (1 + 0.3275911 z), Phi(-|x|) = t (a1 + t (a2 + ...)) e^(-z^2)
// / 2. A negative x keeps the tail, so nothing cancels there.
MSGL_INLINE msgl_vf msgl__vf_gelu(msgl_vf x)
{
    const msgl_vi negative = x < msgl__vf_set(0);
    const msgl_vf z = msgl__vf_select(negative, -x, x) * msgl__vf_set(0.70710678f);
    const msgl_vf t = msgl__vf_set(1) / (msgl__vf_set(1) + msgl__vf_set(0.3275911f) * z);
    msgl_vf p = msgl__vf_set(1.061405429f);
    p = p * t + msgl__vf_set(-1.453152027f);
    p = p * t + msgl__vf_set(1.421413741f);
    p = p * t + msgl__vf_set(-0.284496736f);
    p = p * t + msgl__vf_set(0.254829592f);
    const msgl_vf tail = msgl__vf_set(0.5f) * p * t * msgl__vf_exp(-(z * z));
    return x * msgl__vf_select(negative, tail, msgl__vf_set(1) - tail);
}
// e^x - 1 - x for x <= 0: by its Taylor polynomial of degree 10 above -1 (remainder 2e-8), where
// the difference would cancel.
MSGL_INLINE msgl_vf msgl__vf_exp_less_line(msgl_vf x)
{
    msgl_vf p = msgl__vf_set(1.0f / 3628800);
    p = p * x + msgl__vf_set(1.0f / 362880);
    p = p * x + msgl__vf_set(1.0f / 40320);
    p = p * x + msgl__vf_set(1.0f / 5040);
    p = p * x + msgl__vf_set(1.0f / 720);
    p = p * x + msgl__vf_set(1.0f / 120);
    p = p * x + msgl__vf_set(1.0f / 24);
    p = p * x + msgl__vf_set(1.0f / 6);
    p = p * x + msgl__vf_set(0.5f);
    const msgl_vf far = msgl__vf_exp(x) - msgl__vf_set(1) - x;
    return msgl__vf_select(x > msgl__vf_set(-1), p * x * x, far);
}
// positive x^2 + linear x for x > 0, else negative (e^min(x, eps) - 1 - x) + linear x (Huang 2025,
// xIELU); eps below 0 is where torch's expm1 stops short of 0.
MSGL_INLINE msgl_vf msgl__vf_xielu(msgl_vf x, float positive, float negative, float linear,
                                   float eps)
{
    const msgl_vf near = msgl__vf_min(x, msgl__vf_set(eps));
    const msgl_vf below = msgl__vf_exp_less_line(near) + (near - x);
    const msgl_vf bent = msgl__vf_select(x > msgl__vf_set(0), msgl__vf_set(positive) * x * x,
                                         msgl__vf_set(negative) * below);
    return bent + msgl__vf_set(linear) * x;
}
// tanh(x) = 1 - 2 / (1 + exp(2 x))
MSGL_INLINE msgl_vf msgl__vf_tanh(msgl_vf x)
{
    return msgl__vf_set(1) - msgl__vf_set(2) / (msgl__vf_set(1) + msgl__vf_exp(x + x));
}

#endif
