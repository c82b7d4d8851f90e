// SPDX-License-Identifier: Apache-2.0
//
// The part of a model's config that is the encoder family's own (encoder.h): what its layers are
// made of. An architecture's `configure` sets what is not as in BERT.
#ifndef MSGL_MODELS_ENCODER_CONFIG_H
#define MSGL_MODELS_ENCODER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/batch.h"
#include "kernel/calls.h"
#include "models/decoder_config.h"

enum { MSGL_MAX_LABELS = 4096, MSGL_MAX_TOKEN_TYPES = 16 };

// Names of tensors without ".weight" and ".bias", those of a layer behind layer's %d and a dot.
// NULL: there is none.
typedef struct msgl_encoder_names {
    const char *words, *positions, *types, *embed_norm;
    const char *layer; // "encoder.layer": of "encoder.layer.3.output.dense"
    const char *qkv;   // q, k and v in one tensor, or
    const char *q, *k, *v;
    const char *q_norm, *k_norm; // of each head, before the rotation
    const char *attn_out, *attn_norm;
    const char *attn_post_norm, *ffn_post_norm; // of a block's result, before it is added
    const char *up, *gate; // gate: or NULL: none, or `up` has both, what is activated first
    const char *down, *ffn_norm;
    const char *final_norm;                        // of the last layer's result
    const char *head_dense, *head_norm, *head_out; // of a model that classifies
} msgl_encoder_names;

typedef struct msgl_encoder_config {
    msgl_encoder_names names;
    float norm_eps;
    bool rms;                // norms are RMS norms, else LayerNorms
    bool norm_plus_one;      // and multiply by 1 + weight
    bool pre_norm;           // x + f(norm(x)), with a norm of the last result; else norm(x + f(x))
    bool first_norm_missing; // that of the first layer's attention, with pre_norm
    bool attn_bias, ffn_bias, norm_bias; // of products, and of all norms
    float embed_scale;                   // of embeddings, rounded to the weights' dtype
    float attn_scale;                    // of scores
    int32_t intermediate_size;
    bool gated; // activation(gate) * up; else pointwise(up)
    msgl_activation activation;
    msgl_pointwise pointwise;
    int32_t num_positions,
        first_position; // rows of the table of positions, 0: none; that of token 0
    int32_t num_types;  // rows of the table of token types; 0: none
    int32_t window;     // of sliding layers: keys up to so many tokens away are seen
    bool sliding[MSGL_MAX_LAYERS];
    msgl_pool_mode pool; // of rows, before the head if there is one
    bool head_gelu;      // the head is out(norm(gelu(dense(x)))); else out(tanh(dense(x)))
    bool head_bias;      // of its dense
} msgl_encoder_config;

#endif
