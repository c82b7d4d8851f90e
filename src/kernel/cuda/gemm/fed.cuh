// SPDX-License-Identifier: Apache-2.0
//
// What mid_sm90.cu and tall_sm90.cu share: which calls they can do, and both ends of the norm's
// feed (msgl_norm_feed).
#ifndef MSGL_KERNEL_CUDA_GEMM_FED_CUH
#define MSGL_KERNEL_CUDA_GEMM_FED_CUH

#include "kernel/calls.h"
#include "kernel/cuda/device.cuh"
#include "kernel/cuda/ptx/mma.cuh"
#include "kernel/cuda/ptx/shared.cuh"
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
    return x->device->capability == 90 && w->format->dtype == MSGL_BF16 && !c->f32_out &&
           c->m >= 1 && c->m <= MSGL_FED_ROWS && bits % 16 == 0 && w->k % 8 == 0 &&
           w->n % (c->gated ? 16 : 8) == 0 && c->ld_in % 8 == 0 && c->ld_out % 8 == 0 &&
           (c->norm == NULL || msgl__is_fed(c));
}

// Whether the call leaves something for the norm behind.
static inline bool msgl__feeds(const msgl_linear_call *c)
{
    return c->feed != NULL && c->next_norm != NULL;
}

// What becomes of the sums: stored by the threads that have them, gated before, or collected in
// shared memory, added up over the parts of k and to what is there, and fed to the norm behind.
typedef enum msgl_fed_end { MSGL_FED_PLAIN, MSGL_FED_GATED, MSGL_FED_COLLECT } msgl_fed_end;

static inline msgl_fed_end msgl__fed_end_of(const msgl_linear_call *c, int splits)
{
    return c->gated                                           ? MSGL_FED_GATED
           : splits == 1 && !c->accumulate && !msgl__feeds(c) ? MSGL_FED_PLAIN
                                                              : MSGL_FED_COLLECT;
}

// The call's part of either kernel's arguments. Returns what takes the place of its input.
template <typename ARGS>
static inline const void *msgl__fed_args(const msgl_linear_call *c, ARGS *g)
{
    g->m = c->m;
    g->n = c->gated ? c->w->n / 2 : c->w->n;
    g->k = c->w->k;
    g->bias = c->bias;
    g->eps = c->norm_eps;
    g->accumulate = c->accumulate;
    g->out = (__nv_bfloat16 *)c->out;
    g->ld_out = c->ld_out;
    if (msgl__feeds(c)) {
        g->next = c->next_norm;
        g->scaled = (__nv_bfloat16 *)c->feed->scaled;
        g->squares = c->feed->sums;
    }
    if (c->norm == NULL) return c->in;
    g->sums = c->feed->sums;
    g->parts = c->feed->parts;
    return c->feed->scaled;
}

// Notes whose values a kernel has left in the feed.
static inline void msgl__note_feed(const msgl_linear_call *c, int parts)
{
    c->feed->parts = parts;
    c->feed->x = c->out;
    c->feed->weight = c->next_norm;
    c->feed->m = c->m;
}

// The factor of a row, in shared memory; 1 without a norm.
static __device__ __forceinline__ float msgl__load_scale(bool normed, uint32_t scales, int row)
{
    return normed ? msgl__read_shared<float>(scales + (uint32_t)row * 4) : 1.0f;
}

static __device__ __forceinline__ uint2 msgl__pack_four(const float v[4])
{
    return make_uint2(msgl__pack_two(v[0], v[1], __nv_bfloat16()),
                      msgl__pack_two(v[2], v[3], __nv_bfloat16()));
}

static __device__ __forceinline__ void msgl__unpack_four(uint2 p, float v[4])
{
    const float2 a = msgl__unpack_two(p.x, __nv_bfloat16());
    const float2 b = msgl__unpack_two(p.y, __nv_bfloat16());
    v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y;
}

#endif
