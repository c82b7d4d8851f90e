// SPDX-License-Identifier: Apache-2.0
//
// NomicBERT (Nussbaum et al. 2024): BERT with rotation and gated blocks, without biases.
#include <string.h>

#include "models/archs.h"
#include "models/encoder.h"

// As files on the hub have them, and transformers saves them.
static const msgl_encoder_names NAMES = {
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

// As nomic-ai's own files spell their fields, which are GPT-2's.
static const msgl_json_alias ALIASES[] = {
    {"hidden_size", "n_embd"},
    {"num_hidden_layers", "n_layer"},
    {"num_attention_heads", "n_head"},
    {"intermediate_size", "n_inner"},
    {"max_position_embeddings", "n_positions"},
    {"layer_norm_eps", "layer_norm_epsilon"},
    {"rope_theta", "rotary_emb_base"},
    {NULL, NULL},
};

// hidden_act is the gate's function; activation_function, in nomic-ai's files, the whole block's.
static void read_activation(msgl_json_reader *r, msgl_encoder_config *e)
{
    e->gated = true;
    const char *const key = "activation_function", *block = msgl__json_str_or(r, key, NULL);
    if (block == NULL) {
        msgl__encoder_read_gate(r, "hidden_act", "silu", e);
    } else if (strcmp(block, "swiglu") == 0) {
        e->activation = MSGL_SILU;
    } else if (strcmp(block, "geglu") == 0) {
        e->activation = MSGL_GELU_ERF;
    } else {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key), "swiglu, geglu");
    }
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_encoder_config *e = &c->encoder;
    e->names = NAMES;
    e->norm_eps = (float)msgl__json_num_or(r, "layer_norm_eps", 0, 1, 1e-12);
    e->attn_bias = e->ffn_bias = false;
    e->num_types = msgl__json_int_or(r, "type_vocab_size", 1, MSGL_MAX_TOKEN_TYPES, 2);
    read_activation(r, e);
    if (msgl__json_get(r, "rotary_scaling_factor") != NULL) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "rotary_scaling_factor",
                          msgl__json_get(r, "rotary_scaling_factor"), "null");
    }
}

const msgl_arch msgl__arch_nomic_bert = {
    .name = "NomicBertModel",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .default_theta = 1000,
    .aliases = ALIASES,
    .fixed = {{"rotary_emb_fraction", 1},
              {"rotary_emb_interleaved", 0},
              {"prenorm", 0},
              {"parallel_block", 0},
              {"qkv_proj_bias", 0},
              {"mlp_fc1_bias", 0},
              {"mlp_fc2_bias", 0},
              {"use_rms_norm", 0},
              {"causal", 0},
              {"scale_attn_weights", 1},
              {"scale_attn_by_inverse_layer_idx", 0}},
    .configure = configure,
};
