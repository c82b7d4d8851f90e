// SPDX-License-Identifier: Apache-2.0
//
// What mid_sm90.cu and tall_sm90.cu share: which calls they can do, and both ends of the
// fused norm: who leaves msgl_norm_stats and who takes them.
#ifndef MSGL_CUDA_GEMM_FUSED_NORM_CUH
#define MSGL_CUDA_GEMM_FUSED_NORM_CUH

#include "cuda/device.cuh"
#include "kernel/calls.h"
#include "kernel/exec.h"

enum { MSGL_FUSED_NORM_ROWS = 256 }; // most of a call

// Whether the norm_stats are those of the call's input, by value or coded (fp8_rows.h).
static inline bool msgl__has_norm_stats(const msgl_linear_call *c, bool coded = false)
{
    const msgl_norm_stats *f = c->norm_stats;
    return f != NULL && f->num_tiles > 0 && f->coded == coded && f->x == c->in &&
           f->weight == c->norm && f->m == c->m && c->ld_in == (size_t)c->w->k;
}

// Of what the kernels take for granted.
static inline bool msgl__fused_can_do(const msgl_exec *x, const msgl_linear_call *c)
{
    const msgl_weight *w = c->w;
    const uintptr_t bits = (uintptr_t)c->in | (uintptr_t)c->out | (uintptr_t)w->data |
                           (uintptr_t)c->bias | (uintptr_t)c->next_norm;
    return x->device->capability == 90 && w->format->dtype == MSGL_BF16 && !c->f32_out &&
           c->m >= 1 && c->m <= MSGL_FUSED_NORM_ROWS && bits % 16 == 0 && w->k % 8 == 0 &&
           w->n % (c->gated ? 16 : 8) == 0 && c->ld_in % 8 == 0 && c->ld_out % 8 == 0 &&
           (c->norm == NULL || msgl__has_norm_stats(c));
}

// Whether the call leaves something for the norm behind.
static inline bool msgl__leaves_norm_stats(const msgl_linear_call *c)
{
    return c->norm_stats != NULL && c->next_norm != NULL;
}

// What becomes of the sums: stored by the threads that have them, gated before, or collected in
// shared memory, added up over the splits of k and to what is there, and norm_stats left for the
// norm behind.
typedef enum msgl_fused_epilogue {
    MSGL_FUSED_PLAIN,
    MSGL_FUSED_GATED,
    MSGL_FUSED_COLLECT
} msgl_fused_epilogue;

static inline msgl_fused_epilogue msgl__fused_epilogue_of(const msgl_linear_call *c, int splits)
{
    return c->gated                                                       ? MSGL_FUSED_GATED
           : splits == 1 && !c->accumulate && !msgl__leaves_norm_stats(c) ? MSGL_FUSED_PLAIN
                                                                          : MSGL_FUSED_COLLECT;
}

// Notes whose values a kernel has left in norm_stats.
static inline void msgl__note_norm_stats(const msgl_linear_call *c, int num_tiles,
                                         bool coded = false)
{
    c->norm_stats->num_tiles = num_tiles;
    c->norm_stats->coded = coded;
    c->norm_stats->x = c->out;
    c->norm_stats->weight = c->next_norm;
    c->norm_stats->m = c->m;
}

#endif
