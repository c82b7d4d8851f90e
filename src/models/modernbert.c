// SPDX-License-Identifier: Apache-2.0
//
// ModernBERT (Warner et al. 2024): norms before the blocks, rotation, gated blocks, no biases, and
// layers that see a window only; and NomicBERT (Nussbaum et al. 2024), which is BERT with rotation
// and gated blocks.
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

// As files on the hub have them, and transformers saves them.
static const msgl_encoder_names NOMIC_NAMES = {
    .words = "embeddings.word_embeddings",
    .types = "embeddings.token_type_embeddings",
    .embed_norm = "emb_ln",
    .layer = "encoder.layers",
    .qkv = "attn.Wqkv",
    .attn_out = "attn.out_proj",
    .attn_norm = "norm1",
    .up = "mlp.fc11",
    .gate = "mlp.fc12",
    .down = "mlp.fc2",
    .ffn_norm = "norm2",
};

static void read_activation(msgl_json_reader *r, const char *key, const char *usual,
                            msgl_encoder_config *e)
{
    static const char *const names[] = {
        [MSGL_SILU] = "silu", [MSGL_GELU_TANH] = "gelu_pytorch_tanh", [MSGL_GELU_ERF] = "gelu"};
    const char *name = msgl__json_str_or(r, key, usual);
    e->gated = true;
    for (size_t i = 0; i < MSGL_COUNT(names); i++) {
        if (names[i] == NULL || strcmp(name, names[i]) != 0) continue;
        e->activation = (msgl_activation)i;
        return;
    }
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key),
                      "silu, gelu_pytorch_tanh, gelu");
}

// layer_types, or every so many layers one that sees all.
static void read_layers(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_encoder_config *e = &c->encoder;
    const json_t *types = msgl__json_get(r, "layer_types");
    const int32_t every = msgl__json_int_or(r, "global_attn_every_n_layers", 1, MSGL_MAX_LAYERS, 3);
    e->window = msgl__json_int_or(r, "local_attention", 2, INT32_MAX / 2, 128) / 2;
    if (types != NULL && json_array_size(types) != (size_t)c->num_layers) {
        msgl__json_reject(r, MSGL_EFORMAT, "layer_types", types,
                          "a list with a kind for each layer");
        return;
    }
    for (int32_t l = 0; l < c->num_layers; l++) {
        const char *kind = json_string_value(json_array_get(types, (size_t)l));
        e->sliding[l] =
            types == NULL ? l % every != 0 : kind != NULL && strcmp(kind, "sliding_attention") == 0;
        if (types == NULL || e->sliding[l]) continue;
        if (kind == NULL || strcmp(kind, "full_attention") != 0) {
            msgl__json_reject(r, MSGL_EUNSUPPORTED, "layer_types", types,
                              "full_attention, sliding_attention");
        }
    }
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
    read_activation(r, "hidden_activation", "gelu", e);
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
    const char *activation = msgl__json_str_or(r, "classifier_activation", "gelu");
    e->pool = strcmp(pooling, "mean") == 0 ? MSGL_POOL_MEAN : MSGL_POOL_FIRST;
    if (e->pool == MSGL_POOL_FIRST && strcmp(pooling, "cls") != 0) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "classifier_pooling",
                          msgl__json_get(r, "classifier_pooling"), "cls, mean");
    }
    if (strcmp(activation, "gelu") != 0) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "classifier_activation",
                          msgl__json_get(r, "classifier_activation"), "gelu");
    }
}

static void configure_nomic(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_encoder_config *e = &c->encoder;
    e->names = NOMIC_NAMES;
    e->norm_eps = (float)msgl__json_num_or(r, "layer_norm_eps", 0, 1, 1e-12);
    e->attn_bias = e->ffn_bias = false;
    e->num_types = msgl__json_int_or(r, "type_vocab_size", 1, MSGL_MAX_TOKEN_TYPES, 2);
    read_activation(r, "hidden_act", "silu", e);
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

const msgl_arch msgl__arch_nomic_bert = {
    .name = "NomicBertModel",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .default_theta = 1000,
    .configure = configure_nomic,
};
