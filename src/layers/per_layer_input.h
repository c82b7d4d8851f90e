// SPDX-License-Identifier: Apache-2.0
//
// Per-layer embeddings (Gemma 3n and 4): beside the stream a token has a small vector for each
// layer, of its id and of its embedding, which gates what the layer adds behind its other blocks.
#ifndef MSGL_LAYERS_PER_LAYER_INPUT_H
#define MSGL_LAYERS_PER_LAYER_INPUT_H

#include "layers/linear.h"

// What the vectors of all layers are made of. dim 0: the model has none.
typedef struct msgl_per_layer_table {
    msgl_weight embed;      // [vocabulary, layers * dim]; several ranks share its rows
    msgl_linear projection; // [layers * dim, hidden], of the token's embedding
    msgl_norm norm;         // [dim] of each layer's part of that
    int32_t layers, dim;
    float scale; // of what `embed` has
} msgl_per_layer_table;

// What a layer does with its own.
typedef struct msgl_per_layer_input {
    msgl_linear gate;       // [dim, hidden]
    msgl_linear projection; // [hidden, dim]
    msgl_norm norm;         // [hidden] of the result
    msgl_join join;         // with that norm
    msgl_activation activation;
    int32_t at; // of the layer's part in a token's row
} msgl_per_layer_input;

// Columns of a token's row.
static inline size_t msgl__per_layer_width(const msgl_per_layer_table *t)
{
    return (size_t)t->layers * (size_t)t->dim;
}

// Step arena bytes of msgl__per_layer_inputs with activations of act, the result included.
static inline size_t msgl__per_layer_bytes(const msgl_per_layer_table *t, msgl_dtype act,
                                           int32_t max_tokens)
{
    return 2 * msgl__activation_bytes((size_t)max_tokens, msgl__per_layer_width(t), act);
}

// embedded [num_tokens, hidden], as msgl__embed leaves it -> [num_tokens, layers * dim] in the step
// arena, of a token (norm(projection(embedded)) + scale * embed[id]) / sqrt(2). NULL on failure.
void *msgl__per_layer_inputs(msgl_forward *f, const msgl_per_layer_table *t, const void *embedded);

// residual [rows, hidden] += norm(projection(activation(gate(residual)) * inputs)); inputs [rows,
// ld], of the same tokens.
void msgl__per_layer_add(msgl_forward *f, const msgl_per_layer_input *p, const void *inputs,
                         size_t ld, void *residual, int32_t rows);
// Step arena bytes of it, without what msgl__linear_add takes.
static inline size_t msgl__per_layer_workspace(const msgl_per_layer_input *p, msgl_dtype act,
                                               int32_t max_rows)
{
    return msgl__activation_bytes((size_t)max_rows, (size_t)p->gate.w.n, act);
}

#endif
