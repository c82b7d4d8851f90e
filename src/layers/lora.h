// SPDX-License-Identifier: Apache-2.0
//
// Low-rank adapters (Hu et al. 2021, LoRA) beside the weights: a row of a step belongs to a request
// that has one of them or none, and the products of layers/linear.h add to rows that have one what
// theirs says, in front of whatever follows the product (rope, a gate, a norm). Rows that have none
// are computed as if there were no adapters (docs/decisions/064-adapters.md).
#ifndef MSGL_LAYERS_LORA_H
#define MSGL_LAYERS_LORA_H

#include "kernel/expanded.h"
#include "layers/linear.h"
#include "moe/moe.h"

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

// Of one expert's first product (gate and up) or its second.
typedef struct msgl_lora_expert {
    msgl_weight a; // [ranks of all parts, k]; n 0: the adapter has none
    int num_parts;
    msgl_weight b[2]; // gate and up, where they are two modules
    msgl_lora_part parts[2];
} msgl_lora_expert;

// Of a layer's experts.
typedef struct msgl_lora_experts {
    const msgl_moe_experts *of;
    msgl_lora_expert *first, *second; // [of->own]
    void *members; // by tiles: msgl_lora_member [2 of->own], first and then second ones; device
} msgl_lora_experts;

// Rows that an adapter has in the place of a weight's rows [first, first + w.n).
typedef struct msgl_lora_replaced {
    msgl_weight w;
    float *bias; // [w.n], in the place of theirs; NULL: it has none
    int first;
} msgl_lora_replaced;

typedef struct msgl_lora_saved {
    const msgl_linear *of;        // NULL: the embedding, whose rows are those of all ranks
    const msgl_lora_replaced *at; // [num]
    int num;
} msgl_lora_saved;

// Of a latent attention layer's kv_b_proj, W + B A. Its parts for K and V of head h absorbed as
// layers/latent_attention.h says: W_UK_h^T + A^T B_K_h^T and W_UV_h + B_V_h A.
typedef struct msgl_lora_latent {
    const msgl_weight *of;            // the layer's k_up
    const msgl_weight *k_down, *v_up; // [heads] of B_K_h^T [rank, nope], B_V_h [v_dim, rank]
    msgl_weight k_up, v_down;         // A^T [latent, rank], A [rank, latent]
    msgl_weight kv_up; // B [heads * (nope + v_dim), rank], of chunks that are expanded
    void *members; // by tiles: msgl_lora_member [2 heads], of the first and second products; device
} msgl_lora_latent;

typedef struct msgl_lora {
    const msgl_lora_linear *linears; // [num], ascending by `of`
    int num;
    const msgl_lora_saved *saved; // [num_saved], likewise
    int num_saved;
    const msgl_lora_latent *latents; // [num_latents], by layer
    int num_latents;
    const msgl_lora_experts *experts; // [num_experts], ascending by `of`
    int num_experts;
    msgl_lora_embed embed;
} msgl_lora;

// On a device that computes adapters by tiles: what the adapters in its slots have of each linear
// layer that adapters can change.
typedef struct msgl_lora_table {
    const msgl_linear *const *linears; // [num], ascending
    const int32_t *parts;              // [num] most modules of each
    int num;
    int32_t rank;                   // most that a part of an adapter has had
    const msgl_lora_entry *entries; // [slots, num], device
    // Layers whose products are many: a msgl_moe_experts, or a latent attention's k_up. [num_many]
    const void *const *many;
    int num_many;
    const msgl_lora_member *const *sets; // [slots, num_many] of each, device
} msgl_lora_table;

// Which rows have which adapter, on such a device (kernel/lora_tiles.h).
typedef struct msgl_lora_tiles {
    const msgl_lora_tile *tiles; // [num_tiles], device
    int32_t num_tiles, tile_rows;
    const int32_t *order; // [rows], device
    const int32_t *slots; // [rows] that each row has, -1: none; device
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
    msgl_lora_run *runs;   // room for as many as the step has requests, ...
    msgl_lora_part *parts; // ... and for a part of each
    // NULL: adapters are computed by runs. Else by tiles, of tokens and of rows with logits, and
    // adapters [num_adapters] are those that the rows have.
    const msgl_lora_table *table;
    msgl_lora_tiles by_token, by_logits;
    const msgl_lora *const *adapters;
    int32_t num_adapters;
    // NULL, or, of a step that is captured for any adapters: [table->num + table->num_many] whether
    // it is to add to this layer.
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
// The place in a table's `many`; -1: there is none.
int msgl__lora_table_find_many(const msgl_lora_table *t, const void *of);
// What a slot with this adapter has in a table: out [t->num], sets [t->num_many]. NULL: of one that
// is empty.
void msgl__lora_entries(const msgl_lora_table *t, const msgl_lora *a, msgl_lora_entry *out,
                        const msgl_lora_member **sets);
// The rows that the products work on are those of these runs, [*num], and tiles.
const msgl_lora_rows *msgl__lora_current(const msgl_lora_step *s, int32_t *num);
// Of a step by tiles: whether it is to add to the products of `of`, a layer of the table's `many`.
// *call then has what is the same for all of them.
bool msgl__lora_members(const msgl_forward *f, const void *of, msgl_lora_members_call *call);
// In what c, the call of l's product, leaves in c->out, columns that the adapters of its rows have
// rows of their own for are computed with these, and to it is added what the adapters say of l and
// of its input. Nothing where f->lora is NULL.
void msgl__lora_add(msgl_forward *f, const msgl_linear *l, const msgl_linear_call *c);
// The same of the two products of a latent attention's heads, of the step's first f->num_tokens
// tokens: c is the call of the first head's tokens, m all of them; second: of v_up.
void msgl__lora_heads(msgl_forward *f, const msgl_weight *k_up, bool second,
                      const msgl_heads_call *c);
// And of kv_up, c, of `keys` rows of which some requests have a stretch each: reqs [num], those of
// the sequences that begin with the step's token `first`.
void msgl__lora_expanded(msgl_forward *f, const msgl_weight *k_up, int32_t first,
                         const msgl_expand_req *reqs, int32_t num, const msgl_linear_call *c);

enum { MSGL_LORA_EXPANDED_ROWS = 4096 }; // that are worked on at once, where there are no runs

// What a block's experts need of the rows that it works on; see msgl__lora_moe.
typedef struct msgl_lora_moe {
    msgl_forward *f;
    const msgl_moe_experts *experts;
    // Where adapters are computed by runs.
    const msgl_lora_experts **of_row; // [rows], NULL: its adapter has none of these experts
    msgl_lora_run *runs;              // room for one for each assignment
    msgl_lora_members_call members;   // by tiles
    msgl_moe_adapters calls;
} msgl_lora_moe;

// Bytes of the step's arena of what follows and of the experts' products, for blocks of `rows`
// rows.
size_t msgl__lora_moe_bytes(const msgl_moe_experts *e, msgl_dtype act, size_t rows);
// For msgl_moe_call.adapters, from the step's arena, of a block of so many rows; *own has to stay.
// NULL: no row has an adapter of these experts.
const msgl_moe_adapters *msgl__lora_moe(msgl_forward *f, const msgl_moe_experts *e, int32_t rows,
                                        msgl_lora_moe *own);
// The same of the embedding of f->ids: out [f->num_tokens, hidden].
void msgl__lora_embed(msgl_forward *f, void *out);

#endif
