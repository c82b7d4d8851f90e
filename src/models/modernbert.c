// SPDX-License-Identifier: Apache-2.0
//
// ModernBERT (Warner et al. 2024): norms before the blocks, rotation, gated blocks, no biases, and
// layers that see a window only.
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "models/archs.h"
#include "models/encoder.h"

static const msgl_encoder_names NAMES = {
    .words = "embeddings.tok_embeddings",
    .embed_norm = "embeddings.norm",
    .layer = "layers",
    .qkv = "attn.Wqkv",
    .attn_out = "attn.Wo",
    .attn_norm = "attn_norm",
    .up = "mlp.Wi",
    .down = "mlp.Wo",
    .ffn_norm = "mlp_norm",
    .final_norm = "final_norm",
};

// layer_types, or every so many layers one that sees all.
static void read_layers(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_encoder_config *e = &c->encoder;
    const int32_t every = msgl__json_int_or(r, "global_attn_every_n_layers", 1, MSGL_MAX_LAYERS, 3);
    e->window = msgl__json_int_or(r, "local_attention", 2, INT32_MAX / 2, 128) / 2;
    if (msgl__encoder_read_layer_types(r, c)) return;
    for (int32_t l = 0; l < c->num_layers; l++) e->sliding[l] = l % every != 0;
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_encoder_config *e = &c->encoder;
    e->names = NAMES;
    e->norm_eps = (float)msgl__json_num_or(r, "norm_eps", 0, 1, 1e-5);
    e->pre_norm = e->first_norm_missing = true;
    e->norm_bias = msgl__json_bool_or(r, "norm_bias", false);
    e->attn_bias = msgl__json_bool_or(r, "attention_bias", false);
    e->ffn_bias = msgl__json_bool_or(r, "mlp_bias", false);
    // As files had it before rope_parameters.
    c->ropes[0].theta = msgl__json_num_or(r, "global_rope_theta", 1, 1e18, c->ropes[0].theta);
    c->ropes[1].theta = msgl__json_num_or(r, "local_rope_theta", 1, 1e18, c->ropes[1].theta);
    msgl__encoder_read_gate(r, "hidden_activation", "gelu", e);
    read_layers(r, c);
}

static void configure_classifier(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_encoder_config *e = &c->encoder;
    configure(r, c);
    msgl__encoder_read_labels(r, c);
    e->names.head_dense = "head.dense";
    e->names.head_norm = "head.norm";
    e->names.head_out = "classifier";
    e->head_gelu = true;
    e->head_bias = msgl__json_bool_or(r, "classifier_bias", false);
    const char *pooling = msgl__json_str_or(r, "classifier_pooling", "cls");
    e->pool = strcmp(pooling, "mean") == 0 ? MSGL_POOL_MEAN : MSGL_POOL_FIRST;
    if (e->pool == MSGL_POOL_FIRST && strcmp(pooling, "cls") != 0) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "classifier_pooling",
                          msgl__json_get(r, "classifier_pooling"), "cls, mean");
    }
    msgl__json_only(r, "classifier_activation", "gelu");
}

const msgl_arch msgl__arch_modernbert = {
    .name = "ModernBertModel",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .default_theta = 160000,
    .local_rope = true,
    .local_theta = 10000,
    .renamed = {{"embeddings.", "model.embeddings."},
                {"layers.", "model.layers."},
                {"final_norm.", "model.final_norm."}},
    .ignored = {"head.", "decoder."},
    .configure = configure,
};

const msgl_arch msgl__arch_modernbert_classifier = {
    .name = "ModernBertForSequenceClassification",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .default_theta = 160000,
    .local_rope = true,
    .local_theta = 10000,
    .renamed = {{"embeddings.", "model.embeddings."},
                {"layers.", "model.layers."},
                {"final_norm.", "model.final_norm."}},
    .configure = configure_classifier,
};
