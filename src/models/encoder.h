// SPDX-License-Identifier: Apache-2.0
//
// The encoder family: layers of attention that see a whole text both ways, and a feed-forward
// block, with layer norms (Devlin et al. 2019, BERT). A step has whole texts, each of which becomes
// one vector, or with a head a logit for each label.
//
// K and V are of use within a layer only: all layers keep theirs in the pool of one.
#ifndef MSGL_MODELS_ENCODER_H
#define MSGL_MODELS_ENCODER_H

#include "layers/attention.h"
#include "layers/mlp.h"
#include "models/arch.h"

extern const msgl_family msgl__encoder_family;

// A norm that its architecture has not has dim 0.
typedef struct msgl_encoder_layer {
    msgl_attention attn;
    msgl_linear attn_out; // [hidden, num_heads * head_dim]
    msgl_norm attn_norm, ffn_norm, attn_post_norm, ffn_post_norm;
    msgl_join attn_join, ffn_join;
    msgl_mlp mlp;
} msgl_encoder_layer;

// What msgl_model.layers is for this family.
typedef struct msgl_encoder {
    msgl_weight positions, types; // [num_positions, hidden], [num_types, hidden]
    msgl_norm embed_norm, final_norm;
    msgl_encoder_layer *layers; // [num_layers]
    // Of a model that classifies: [hidden, hidden], [labels, hidden].
    msgl_linear head_dense, head_out;
    msgl_norm head_norm;
} msgl_encoder;

// encoder_tensors.c: msgl_family.declare.
void msgl__encoder_declare(msgl_model *m, msgl_weight_plan *p);

// For `configure` of several architectures: that blocks are gated, by the function that `key`
// names, or `usual`.
void msgl__encoder_read_gate(msgl_json_reader *r, const char *key, const char *usual,
                             msgl_encoder_config *e);
// layer_types: which layers have the window. False: there is no such field.
bool msgl__encoder_read_layer_types(msgl_json_reader *r, msgl_model_config *c);
// Of those that classify: msgl__config_read_labels; and the first token's row is the text's.
void msgl__encoder_read_labels(msgl_json_reader *r, msgl_model_config *c);

#endif
