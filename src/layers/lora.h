// SPDX-License-Identifier: Apache-2.0
//
// Low-rank adapters (Hu et al. 2021, LoRA) beside the weights: a row of a step belongs to a request
// that has one of them or none, and the products of layers/linear.h add to rows that have one what
// theirs says, in front of whatever follows the product (rope, a gate, a norm). Rows that have none
// are computed as if there were no adapters (docs/decisions/064-adapters.md).
#ifndef MSGL_LAYERS_LORA_H
#define MSGL_LAYERS_LORA_H

#include "layers/linear.h"

// What one adapter has of one linear layer.
typedef struct msgl_lora_linear {
    const msgl_linear *of;
    msgl_weight a; // [ranks of all parts, of->w.k]
    int num_parts;
    msgl_weight b[MSGL_MAX_LORA_PARTS]; // [rows of of->w, rank]
    msgl_lora_part parts[MSGL_MAX_LORA_PARTS];
} msgl_lora_linear;

// Of the embedding: rows of token ids get B (A of the id).
typedef struct msgl_lora_embed {
    msgl_weight a; // [vocab, rank]; n 0: the adapter has none
    msgl_weight b; // [hidden, rank]
} msgl_lora_embed;

typedef struct msgl_lora {
    const msgl_lora_linear *linears; // [num], ascending by `of`
    int num;
    msgl_lora_embed embed;
} msgl_lora;

// Rows [row, row + rows) have this adapter.
typedef struct msgl_lora_rows {
    int32_t row, rows;
    const msgl_lora *adapter;
} msgl_lora_rows;

// Of a step in which some rows have one; rows ascending.
typedef struct msgl_lora_step {
    const msgl_lora_rows *tokens; // [num_tokens] of the step's tokens
    const msgl_lora_rows *logits; // [num_logits] of those that get logits, by their number there
    int32_t num_tokens, num_logits;
    msgl_lora_run *runs; // room for as many as the longer list has
    // Which of them the products' rows are, and the first of them: where a block of rows is worked
    // on, row 0 of a product is row `first`.
    bool of_logits;
    int32_t first;
} msgl_lora_step;

// Whether some row of the step has an adapter that changes this layer.
bool msgl__lora_changes(const msgl_forward *f, const msgl_linear *l);
// To what c, the call of l's product, leaves in c->out is added what the adapters of its rows say
// of l and of its input. Nothing where f->lora is NULL.
void msgl__lora_add(msgl_forward *f, const msgl_linear *l, const msgl_linear_call *c);
// The same of the embedding of f->ids: out [f->num_tokens, hidden].
void msgl__lora_embed(msgl_forward *f, void *out);

#endif
