// SPDX-License-Identifier: Apache-2.0
//
// The norm and the rotation of one head, for every kernel that does them. The bits of a token's q
// and K must not depend on the kernel that made them (a token may be prefilled or decoded, rotated
// alone or with the attention that uses it), so the order of every sum and every fused operation is
// spelled out here; the compiler would choose them anew in each kernel.
//
// A head of C groups of eight elements is shared by LANES lanes, C / 2 rounded up to a power of
// two: lane j < half / 8 holds groups j and j + half / 8, which rotate into each other without
// leaving the lane; the lanes after them hold the groups that do not rotate, two each.
#ifndef MSGL_CUDA_OPS_ROPE_HEAD_CUH
#define MSGL_CUDA_OPS_ROPE_HEAD_CUH

#include "cuda/ops/vec8.cuh"

// Lanes that share a head of head_dim <= 256 elements.
#define MSGL_HEAD_LANES(head_dim) ((head_dim) <= 64 ? 4 : (head_dim) <= 128 ? 8 : 16)

// The groups of lane j; one at or above head_dim / 8 does not exist.
struct head_lane {
    int first, second;
    bool rotates;
};

static __device__ __forceinline__ head_lane find_head_lane(int j, int half)
{
    const int pairs = half / 8;
    head_lane l;
    l.rotates = j < pairs;
    l.first = l.rotates ? j : 2 * pairs + 2 * (j - pairs);
    l.second = l.rotates ? j + pairs : l.first + 1;
    return l;
}

// A lane's squares, p of its first group and q of its second (zeros where there is none). Four sums
// of columns 2t and 2t + 1, then those: the order of four lanes that hold two columns each.
static __device__ __forceinline__ float head_squares(const float p[8], const float q[8])
{
    float u[4];
#pragma unroll
    for (int t = 0; t < 4; t++) {
        u[t] = __fmaf_rn(p[2 * t + 1], p[2 * t + 1], __fmul_rn(p[2 * t], p[2 * t]));
        u[t] = __fmaf_rn(q[2 * t], q[2 * t], u[t]);
        u[t] = __fmaf_rn(q[2 * t + 1], q[2 * t + 1], u[t]);
    }
    return __fadd_rn(__fadd_rn(u[0], u[1]), __fadd_rn(u[2], u[3]));
}

// What the norm multiplies by, of group_sum(head_squares, LANES).
static __device__ __forceinline__ float head_scale(float sum, int head_dim, float eps)
{
    const float mean = __fdiv_rn(sum, (float)head_dim);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

static __device__ __forceinline__ void head_norm(float v[8], const float weight[8], float scale)
{
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], __fmul_rn(scale, weight[i]));
}

static __device__ __forceinline__ void head_rotate(float p[8], float q[8], const float c[8],
                                                   const float s[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float u = p[i], w = q[i];
        p[i] = __fmaf_rn(u, c[i], -__fmul_rn(w, s[i]));
        q[i] = __fmaf_rn(w, c[i], __fmul_rn(u, s[i]));
    }
}

#endif
