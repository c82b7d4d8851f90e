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

// On a device that computes adapters by tiles: what the adapters in its slots have of each linear
// layer that adapters can change.
typedef struct msgl_lora_table {
    const msgl_linear *const *linears; // [num], ascending
    const int32_t *parts;              // [num] most modules of each
    int num;
    int32_t rank;                   // most of a part
    const msgl_lora_entry *entries; // [slots, num], device
} msgl_lora_table;

// Which rows have which adapter, on such a device (kernel/lora_tiles.h).
typedef struct msgl_lora_tiles {
    const msgl_lora_tile *tiles; // [num_tiles], device
    int32_t num_tiles, tile_rows;
    const int32_t *order; // [rows], device
    int32_t rows;
} msgl_lora_tiles;

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
    // NULL: adapters are computed by runs. Else by tiles, of tokens and of rows with logits, and
    // adapters [num_adapters] are those that the rows have.
    const msgl_lora_table *table;
    msgl_lora_tiles by_token, by_logits;
    const msgl_lora *const *adapters;
    int32_t num_adapters;
    // NULL, or, of a step that is captured for any adapters: [table->num] whether it is to add to
    // this layer.
    const bool *changes;
    // Which of them the products' rows are, and the first of them: where a block of rows is worked
    // on, row 0 of a product is row `first`.
    bool of_logits;
    int32_t first;
} msgl_lora_step;

// Whether some row of the step has an adapter that changes this layer.
bool msgl__lora_changes(const msgl_forward *f, const msgl_linear *l);
// The same of the embedding.
bool msgl__lora_embeds(const msgl_forward *f);
// The row of a table that linear l has; -1: none.
int msgl__lora_table_find(const msgl_lora_table *t, const msgl_linear *l);
// What a slot with this adapter has in a table: out [t->num]. NULL: of one that is empty.
void msgl__lora_entries(const msgl_lora_table *t, const msgl_lora *a, msgl_lora_entry *out);
// To what c, the call of l's product, leaves in c->out is added what the adapters of its rows say
// of l and of its input. Nothing where f->lora is NULL.
void msgl__lora_add(msgl_forward *f, const msgl_linear *l, const msgl_linear_call *c);
// The same of the embedding of f->ids: out [f->num_tokens, hidden].
void msgl__lora_embed(msgl_forward *f, void *out);

#endif
