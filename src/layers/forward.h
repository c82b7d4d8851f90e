// SPDX-License-Identifier: Apache-2.0
//
// What a layer needs while a step runs: where to compute, with which kernels, for which batch, and
// memory for activations. Passed down as an argument; layers hold only weights and geometry.
//
// Activations are [rows, dim] of exec->act, row-major, in the step arena. Kernel temporaries come
// from exec->scratch and live for one call: work is ordered on the stream, so the next call may
// reuse them.
#ifndef MSGL_LAYERS_FORWARD_H
#define MSGL_LAYERS_FORWARD_H

#include "attention/attention.h"
#include "core/round.h"
#include "distributed/communicator.h"
#include "kernel/kernel.h"
#include "layers/rotary.h"

typedef struct msgl_forward {
    msgl_exec *x;
    const msgl_kernels *k;
    msgl_comm *comm;
    const msgl_attn *attn;
    int32_t num_tokens;       // of the step, padding included
    const msgl_seqs *seqs;    // [num_seqs] they cover the step's tokens in order
    int32_t num_seqs;         //
    const msgl_kv_pool *pool; // where K and V go
    msgl_arena *arena;        // step arena
    // Token t is token_pool[id_index[t]]; its slot goes to the same place of page_table (NULL: the
    // CPU). All of these are device memory.
    const int32_t *token_pool, *id_index;
    int32_t *page_table;
    int32_t *ids;                         // [num_tokens], room for the ids
    const int32_t *positions;             // [num_tokens]
    const int32_t *out_loc;               // [num_tokens] slots in the pool
    msgl_step_rope ropes[MSGL_MAX_ROPES]; // of this step
    int32_t num_ropes;
    // Between the product that finishes the residual stream and the next one. Empty when scaled is
    // NULL: this step has too many rows, or this device no use for it.
    msgl_norm_feed feed;
} msgl_forward;

// Bytes that rows of dim elements take in the step arena.
static inline size_t msgl__activation_bytes(size_t rows, size_t dim, msgl_dtype dtype)
{
    return msgl__round_up(rows * dim * msgl__dtype_size(dtype), 64);
}

// [rows, dim] of any dtype from the step arena. NULL sets exec->status: the arena's size is
// computed from the limits, so that is our bug.
static inline void *msgl__take_rows(msgl_forward *f, size_t rows, size_t dim, msgl_dtype dtype)
{
    void *p = msgl__arena_alloc(f->arena, rows * dim * msgl__dtype_size(dtype));
    if (p == NULL) f->x->status = MSGL_EINTERNAL;
    return p;
}

static inline void *msgl__activation(msgl_forward *f, size_t rows, size_t dim)
{
    return msgl__take_rows(f, rows, dim, f->x->act);
}

// Row `row` of an activation of `dim` columns.
static inline void *msgl__row(const msgl_forward *f, const void *p, int32_t row, size_t dim)
{
    return (char *)p + (size_t)row * dim * msgl__dtype_size(f->x->act);
}

#endif
