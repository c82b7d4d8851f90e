// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of answers that triton and double_sparsity share on the CPU: tiles of keys as f32,
// and the softmax that goes along with them, in a compiler's vectors that every CPU has.
#ifndef MSGL_ATTENTION_TRITON_SOFTMAX_H
#define MSGL_ATTENTION_TRITON_SOFTMAX_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "core/dtype.h"

enum { MSGL_TRITON_TILE = 32 }; // keys converted to f32 at a time

typedef float msgl_float4 __attribute__((vector_size(16)));

static inline msgl_float4 msgl__load4(const float *p)
{
    msgl_float4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

// n is a multiple of 8, here and below.
static inline float msgl__dot(const float *a, const float *b, int n)
{
    msgl_float4 s = {0}, t = {0};
    for (int d = 0; d < n; d += 8) {
        s += msgl__load4(a + d) * msgl__load4(b + d);
        t += msgl__load4(a + d + 4) * msgl__load4(b + d + 4);
    }
    s += t;
    return (s[0] + s[2]) + (s[1] + s[3]);
}

// to = f to + p v
static inline void msgl__scale_add(float *to, float f, float p, const float *v, int n)
{
    for (int d = 0; d < n; d += 4) {
        const msgl_float4 sum = f * msgl__load4(to + d) + p * msgl__load4(v + d);
        memcpy(to + d, &sum, sizeof sum);
    }
}

// A head's state while its keys go by: maximum m of the scores so far, sum l of their exp(s - m),
// and acc [v_dim], the sum of exp(s - m) v.
typedef struct msgl_softmax {
    int dim, v_dim;
    float scale, softcap; // as in msgl_attn_layer
    float m, l;
    float *acc;
} msgl_softmax;

// The online softmax over a tile of n <= MSGL_TRITON_TILE keys, K and V of which are dim elements
// apart (V may lie in K): when a larger score appears, what was summed before is scaled to it.
static inline void msgl__softmax_tile(msgl_softmax *h, const float *q, const float *k,
                                      const float *v, int n)
{
    const size_t stride = (size_t)h->dim;
    float s[MSGL_TRITON_TILE], m = h->m;
    for (int j = 0; j < n; j++) {
        s[j] = msgl__dot(q, k + (size_t)j * stride, h->dim) * h->scale;
        if (h->softcap > 0) s[j] = h->softcap * tanhf(s[j] / h->softcap);
        m = s[j] > m || isnan(s[j]) ? s[j] : m;
    }
    float rescale = expf(h->m - m);
    h->m = m;
    h->l *= rescale;
    for (int j = 0; j < n; j++) {
        const float p = expf(s[j] - m);
        h->l += p;
        msgl__scale_add(h->acc, rescale, p, v + (size_t)j * stride, h->v_dim);
        rescale = 1; // once
    }
}

#endif
