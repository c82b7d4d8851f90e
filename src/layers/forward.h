// SPDX-License-Identifier: Apache-2.0
//
// What a layer needs while a step runs: where to compute, with which kernels, for which batch, and
// memory for activations. Passed down as an argument; layers hold only weights and geometry.
//
// Activations are f32 [rows, dim], row-major, in the step arena. Kernel temporaries come from
// exec->scratch and live for one call: work is ordered on the stream, so the next call may reuse
// them.
#ifndef MSGL_LAYERS_FORWARD_H
#define MSGL_LAYERS_FORWARD_H

#include "attention/attention.h"
#include "distributed/communicator.h"
#include "kernel/kernel.h"
#include "layers/rotary.h"

typedef struct msgl_forward {
    msgl_exec *x;
    const msgl_kernels *k;
    msgl_comm *comm;
    msgl_attn_backend *attn;
    const msgl_batch *batch;
    msgl_arena *arena;        // step arena
    const int32_t *positions; // [num_tokens], device
    // Inverse frequencies of this step [rows, rope dim / 2] on the device, and which tokens use
    // which row.
    const float *inv_freq;
    const msgl_rope_segment *segments;
    int32_t num_segments;
    float rope_scale; // of cos and sin
} msgl_forward;

// Bytes that one activation of this shape takes in the step arena.
static inline size_t msgl__activation_bytes(size_t rows, size_t dim)
{
    return (rows * dim * sizeof(float) + 63) & ~(size_t)63;
}

// f32 [rows, dim] from the step arena. NULL sets exec->status: the arena's size is computed from
// the limits, so that is our bug.
static inline float *msgl__activation(msgl_forward *f, size_t rows, size_t dim)
{
    float *p = msgl__arena_alloc(f->arena, rows * dim * sizeof(float));
    if (p == NULL) f->x->status = MSGL_EINTERNAL;
    return p;
}

#endif
