// SPDX-License-Identifier: Apache-2.0
//
// The products of a model's step, declared by its architecture beside the weights: which linear
// layer, and what its calls look like. The scratch that a step needs and what is measured at start
// follow from this list, so that a new kind of layer has to say nothing else.
#ifndef MSGL_MODELS_PRODUCTS_H
#define MSGL_MODELS_PRODUCTS_H

#include "layers/attention.h"
#include "layers/delta.h"
#include "layers/moe.h"

// How many rows a call has at most.
typedef enum msgl_use_rows {
    MSGL_ROWS_STEP,   // a step's tokens
    MSGL_ROWS_BLOCK,  // msgl__ffn_rows of them
    MSGL_ROWS_LOGITS, // rows of one call of msgl__model_logits; what is tuned: a decode batch's
} msgl_use_rows;

// What a linear layer is used for: the function of layers/linear.h that is called, and its norms.
typedef struct msgl_linear_use {
    msgl_use_rows rows;
    const msgl_norm *norm; // of its input, or NULL
    bool gated;            // msgl__linear_gated
    msgl_activation activation;
    bool f32_out; // msgl__linear_f32
    bool adds;    // msgl__linear_add, straight to the residual stream
    bool sums;    // with adds: of ranks' parts; declared behind the same product without adds
    // With adds: the norm of the product that is declared next, or NULL.
    const msgl_norm *next;
    const msgl_attention *rotates; // msgl__linear_rope of this attention, or NULL
} msgl_linear_use;

typedef struct msgl_product {
    const msgl_linear *linear;
    msgl_linear_use use;
} msgl_product;

// Weights of a product a head.
typedef struct msgl_head_products {
    const msgl_weight *w; // [heads]
    int32_t heads;
} msgl_head_products;

// Pointers to layers, which stay where they are and whose weights are declared by the time the list
// is read.
typedef struct msgl_products {
    msgl_product *list;
    int32_t num, room;
    msgl_head_products *heads;
    int32_t num_heads, heads_room;
    const msgl_moe **experts; // blocks, each with a router and grouped products
    int32_t num_experts, experts_room;
    const msgl_delta *delta; // one of the layers of linear attention, which are alike, or NULL
    int status;              // 0 or MSGL_ENOMEM
} msgl_products;

void msgl__products_add(msgl_products *p, const msgl_linear *l, const msgl_linear_use *use);
// The products of the list that have a rope or a gate in them, without: as steps with adapters
// compute them. Behind all others. MSGL_ENOMEM.
int msgl__products_add_apart(msgl_products *p);
void msgl__products_add_heads(msgl_products *p, const msgl_weight *w, int32_t heads);
void msgl__products_add_experts(msgl_products *p, const msgl_moe *m);
void msgl__products_free(msgl_products *p);

// Largest scratch that one call of any of them takes with activations of act, with at most
// max_tokens tokens of max_requests requests in a step and max_rows rows that get logits at a time.
size_t msgl__products_scratch(const msgl_products *p, const msgl_kernels *k, msgl_dtype act,
                              int32_t max_tokens, int32_t max_requests, int32_t max_rows);

// Lets the device choose kernels for them: decode steps of up to max_batch requests and steps of up
// to max_tokens tokens, with a cache of kv. Weights must be loaded; `memory` is a step's arena;
// failures go to x->status.
void msgl__products_tune(const msgl_products *p, const msgl_kernels *k, msgl_exec *x,
                         msgl_arena *memory, msgl_dtype kv, int32_t max_batch, int32_t max_tokens);

#endif
