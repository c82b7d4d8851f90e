// SPDX-License-Identifier: Apache-2.0
//
// What mid_sm90.cu and tall_sm90.cu share: which calls they can do, and both ends of the norm's
// feed (msgl_norm_feed).
#ifndef MSGL_KERNEL_CUDA_GEMM_FED_CUH
#define MSGL_KERNEL_CUDA_GEMM_FED_CUH

#include "kernel/calls.h"
#include "kernel/cuda/device.cuh"
#include "kernel/cuda/gemm/mma.cuh"
#include "kernel/exec.h"

enum { MSGL_FED_ROWS = 256 }; // most of a call

// Whether the feed is that of the call's input.
static inline bool msgl__is_fed(const msgl_linear_call *c)
{
    const msgl_norm_feed *f = c->feed;
    return f != NULL && f->parts > 0 && f->x == c->in && f->weight == c->norm && f->m == c->m &&
           c->ld_in == (size_t)c->w->k;
}

// Of what the kernels take for granted.
static inline bool msgl__fed_can_do(const msgl_exec *x, const msgl_linear_call *c)
{
    const msgl_weight *w = c->w;
    const uintptr_t bits = (uintptr_t)c->in | (uintptr_t)c->out | (uintptr_t)w->data |
                           (uintptr_t)c->bias | (uintptr_t)c->next_norm;
    return x->device->capability == 90 && w->dtype == MSGL_BF16 && !c->f32_out && c->m >= 1 &&
           c->m <= MSGL_FED_ROWS && bits % 16 == 0 && w->k % 8 == 0 &&
           w->n % (c->gated ? 16 : 8) == 0 && c->ld_in % 8 == 0 && c->ld_out % 8 == 0 &&
           (c->norm == NULL || msgl__is_fed(c));
}

// Notes whose values a kernel has left in the feed.
static inline void msgl__note_feed(const msgl_linear_call *c, int parts)
{
    c->feed->parts = parts;
    c->feed->x = c->out;
    c->feed->weight = c->next_norm;
    c->feed->m = c->m;
}

static __device__ __forceinline__ int msgl__clamp_to(int v, int most)
{
    return v < 0 ? 0 : v < most ? v : most;
}

// The factor of a row, in shared memory; 1 without a norm.
static __device__ __forceinline__ float msgl__load_scale(bool normed, uint32_t scales, int row)
{
    float v = 1.0f;
    if (normed) {
        asm volatile("ld.shared.f32 %0, [%1];\n"
                     : "=f"(v)
                     : "r"(scales + (uint32_t)row * 4)
                     : "memory");
    }
    return v;
}

static __device__ __forceinline__ uint2 msgl__pack_four(const float v[4])
{
    return make_uint2(msgl__pack_two(v[0], v[1], __nv_bfloat16()),
                      msgl__pack_two(v[2], v[3], __nv_bfloat16()));
}

static __device__ __forceinline__ void msgl__unpack_four(uint2 p, float v[4])
{
    v[0] = __uint_as_float(p.x << 16);
    v[1] = __uint_as_float(p.x & 0xffff0000u);
    v[2] = __uint_as_float(p.y << 16);
    v[3] = __uint_as_float(p.y & 0xffff0000u);
}

#endif
