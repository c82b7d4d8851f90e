// SPDX-License-Identifier: Apache-2.0
//
// What mid_sm90.cu and tall_sm90.cu share: which calls they can do, and both ends of the norm's
// feed (msgl_norm_feed).
#ifndef MSGL_KERNEL_CUDA_GEMM_FED_CUH
#define MSGL_KERNEL_CUDA_GEMM_FED_CUH

#include "kernel/calls.h"
#include "kernel/cuda/device.cuh"
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

// Notes whose values a kernel has left in the feed.
static inline void msgl__note_feed(const msgl_linear_call *c, int parts)
{
    c->feed->parts = parts;
    c->feed->x = c->out;
    c->feed->weight = c->next_norm;
    c->feed->m = c->m;
}

#endif
