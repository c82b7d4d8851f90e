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
#include "moe/moe.h"

// A group of layers that keep the same of a request (kvcache/layout.h): their memory, and who
// attends over it.
typedef struct msgl_cache_group {
    msgl_kv_pool pool;
    int32_t span;
    // The span's page table as kernels read it, of a device with memory of its own in that:
    // position p of table row r is in page pages[r * page_stride + p / page_size]. NULL: of states.
    const int32_t *pages;
    size_t page_stride;
    int32_t page_size;
    msgl_attn attn; // of a group that is attended over; else empty, or:
    // Of a LATENT group whose layers choose keys; or of a KV group, of whose layers some choose
    // blocks of them, beside attn; else NULL.
    struct msgl_attn_chosen *chosen;
} msgl_cache_group;

// Rows [first, first + count) of a step whose tokens have no row of the embedding: they enter the
// first layer as `rows`, [count, hidden] of activations in host memory.
typedef struct msgl_embed_run {
    int32_t first, count;
    const void *rows;
} msgl_embed_run;

typedef struct msgl_forward {
    msgl_exec *x;
    const msgl_kernels *k;
    msgl_comm *comm;
    // What a layer of group g keeps goes to groups[g].pool: K and V to the slots of its span, a
    // state to where `states` says.
    const msgl_cache_group *groups; // [num_groups]
    int32_t num_groups;
    int32_t num_tokens; // of the step, padding included
    // The same tokens: their ids and places, in device memory. Slots in a span are there once the
    // embedding has run.
    msgl_step_tokens tokens;
    const msgl_seqs *seqs; // [num_seqs] they cover the step's tokens in order
    int32_t num_seqs;
    // [num_seqs] of theirs, by number in the pool of a group that keeps states (the live ones by
    // row, then the checkpoints); not set where no group keeps any.
    const msgl_seq_states *states;
    msgl_arena *arena;        // step arena
    int32_t *ids;             // [num_tokens], room for the ids
    const int32_t *positions; // [num_tokens]
    // [num_tokens] length of the prompt of a token's request. NULL unless a rope's dual.original
    // wants it.
    const int32_t *prompt_lens;
    const msgl_embed_run *embeds; // [num_embeds]
    int32_t num_embeds;
    const int32_t *token_types; // [num_tokens] of encoders that tell texts apart, or NULL
    const int32_t *pool_from;   // [num_rows] of encoders: each text's first token that is pooled
    msgl_step_rope ropes[MSGL_MAX_ROPES]; // of this step
    int32_t num_ropes;
    // Between the product that finishes the residual stream and the next one. Empty when scaled is
    // NULL: this step has too many rows, or this device no use for it.
    msgl_norm_stats norm_stats;
    const msgl_moe_watch *watch; // of layers with experts; NULL: nobody
    struct msgl_lora_step *lora; // which rows have adapters (layers/lora.h); NULL: none has
    // Of an encoder, behind its `forward`: [num_tokens, hidden] the tokens' hidden states.
    const void *stream;
    // Of a draft head: [num_tokens, hidden or the target's] the state of each token.
    const void *hidden;
    // [2, num_tokens, hidden] of layers that read the embeddings beside the stream: room for a copy
    // of the stream, and the embeddings. NULL: none does.
    void *first_stream;
    // What the last layer that chose keys has left (kernel/index.h): [num_tokens, top_k] slots and
    // [num_tokens] how many. NULL: no layer chooses.
    int32_t *chosen_slots, *chosen_counts;
    // Which of the step's tokens are the rows that a feed-forward block is given, counted from its
    // block's first row on (msgl__moe): [rows] ids. Only where a router looks experts up.
    const int32_t *row_ids;
    // Where the residual behind some layers goes: that behind layers[i] to `to` at plane i, each of
    // `plane` elements. num 0: nobody wants any.
    struct {
        int32_t num;
        const int32_t *layers; // ascending, none is the last
        void *to;
        size_t plane;
    } capture;
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

// The states of layer `layer` of a group that keeps some, from byte `at` of each on; requests and
// which states are theirs is left to set (seqs[i] and states[i]).
static inline msgl_states msgl__states_of(const msgl_forward *f, int32_t group, int32_t layer,
                                          size_t at)
{
    const msgl_kv_pool *pool = &f->groups[group].pool;
    return (msgl_states){.base = (char *)msgl__state_of_row(pool, 0, layer) + at,
                         .stride = (size_t)pool->spec.num_layers * pool->spec.state_bytes};
}

// Row `row` of an activation of `dim` columns.
static inline void *msgl__row(const msgl_forward *f, const void *p, int32_t row, size_t dim)
{
    return (char *)p + (size_t)row * dim * msgl__dtype_size(f->x->act);
}

#endif
