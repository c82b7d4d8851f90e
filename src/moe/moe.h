// SPDX-License-Identifier: Apache-2.0
//
// The computation of a mixture-of-experts layer: norm, the router's logits, the choice of experts
// per token, their products, and the combination. Implementations are descriptors in registry.c,
// chosen by --moe-backend.
#ifndef MSGL_MOE_MOE_H
#define MSGL_MOE_MOE_H

#include "kernel/kernel.h"

typedef struct msgl_moe_experts {
    int32_t num_experts; // that tokens are sent to
    int32_t first, own;  // of them those that are computed here; other ranks have the others
    msgl_router router;
    // [own] of [2 intermediate, hidden]; plain: of [intermediate, hidden], up alone
    const msgl_weight *gate_up;
    const msgl_weight *down; // [own] of [hidden, intermediate]; hidden is that of what they read
    msgl_activation activation;
    bool plain;               // no gate: what is between the products is pointwise of the first
    msgl_pointwise pointwise; // where plain
    float *gate_up_bias, *down_bias; // [own, rows of the weights], or NULL
    float *choice_scale;             // [num_experts] of an expert's weight in a choice, or NULL: 1
    // An expert's weight multiplies what goes into it and not its result (Llama 4); then top_k
    // is 1.
    bool weighs_input;
} msgl_moe_experts;

// The expert of all tokens, where nothing gates it.
typedef struct msgl_moe_shared {
    const msgl_weight *gate_up, *down; // [2 its intermediate, hidden], [hidden, its intermediate]
    void *act;                         // [rows, its intermediate], for what is between
    void (*begin)(void *ctx); // computes from call.in what is to be added, wherever it is kept
    void *ctx;
} msgl_moe_shared;

// Told where tokens go: offsets as msgl_moe_kernels.sort leaves them, on the device.
typedef struct msgl_moe_watch {
    void (*chosen)(void *ctx, const msgl_moe_experts *e, const int32_t *offsets);
    void *ctx;
} msgl_moe_watch;

// One of the two products of sorted assignments, as it has been computed; all arrays are the
// device's.
typedef struct msgl_moe_product {
    bool second;            // by `down`
    const int32_t *offsets; // [own + 1] of the experts that are computed here, and ...
    const int32_t *source;  // [assignments], as msgl_moe_kernels.sort leaves them
    const int32_t *ids;     // [rows, top_k] the experts
    int32_t assignments;
    // [assignments, k] by sorted place, or, by_token, [rows, k] of the tokens; and [assignments, n]
    // by sorted place, or, by_choice, as ids are.
    const void *in;
    void *out;
    bool by_token, by_choice;
} msgl_moe_product;

// What adapters add to the products of some rows.
typedef struct msgl_moe_adapters {
    void (*add)(void *ctx, const msgl_moe_product *p); // between a product and what follows it
    // The gate of the first product's rows that it was added to, to act [assignments, n / 2], whose
    // other rows stay. Where msgl_moe_kernels.gate_in_product.
    void (*gate)(void *ctx, const msgl_moe_product *p, void *act);
    void *ctx;
} msgl_moe_adapters;

typedef struct msgl_moe_call {
    const msgl_moe_experts *experts;
    // [hidden] weight of the norm before the block; NULL: `in` is normed, and may be overwritten.
    const float *norm;
    const float *router_norm;  // of the norm before the router, or NULL: the same
    float norm_eps;            // of both
    const msgl_weight *router; // [num_experts, hidden]
    const float *router_bias;  // [num_experts], or NULL
    const void *in;            // [rows, hidden], dense
    const void *router_in; // [rows, router->k], normed, or NULL: what the experts read; norm NULL
    const int32_t *tokens; // [rows] ids of the tokens, of a router with a table; device memory
    int32_t rows;
    bool accumulate;               // out += instead of out =
    void *out;                     // [rows, hidden]; may be in
    int32_t *ids;                  // NULL, or [rows, top_k] becomes the experts; device memory
    const msgl_moe_shared *shared; // NULL: none, or not the backend's matter
    const msgl_moe_watch *watch;   // of the choice, when it is queued; NULL: nobody
    // NULL: no row has one. Else, with a gate, the arena has room for [rows * top_k, n of gate_up]
    // more than workspace says.
    const msgl_moe_adapters *adapters;
} msgl_moe_call;

typedef struct msgl_moe_desc {
    const char *name;
    const char *summary; // one line for --help
    // Step arena bytes for `rows` rows with activations of act.
    size_t (*workspace)(const msgl_moe_experts *e, msgl_dtype act, int32_t rows);
    // A row's result depends on that row only. Failures go to x->status. True: what c->shared says
    // is added too; else its begin, if there is one, has been called while `in` was as it was
    // given.
    bool (*forward)(msgl_exec *x, const msgl_kernels *k, msgl_arena *arena, const msgl_moe_call *c);
} msgl_moe_desc;

// registry.c: by name, or "auto" (the first). MSGL_EINVAL lists the names.
int msgl__moe_select(const char *name, const msgl_moe_desc **out, msgl_err *err);

#endif
