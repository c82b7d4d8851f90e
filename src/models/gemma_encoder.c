// SPDX-License-Identifier: Apache-2.0
//
// EmbeddingGemma: Gemma 3's layers (gemma.c) without the causal mask, of whose windows half is to
// each side of a token.
#include <math.h>

#include "models/archs.h"
#include "models/encoder.h"

// As checkpoint formats show them whose files have no "model." in front.
static const msgl_encoder_names NAMES = {
    .words = "model.embed_tokens",
    .layer = "model.layers",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
    .attn_out = "self_attn.o_proj",
    .attn_norm = "input_layernorm",
    .attn_post_norm = "post_attention_layernorm",
    .up = "mlp.up_proj",
    .gate = "mlp.gate_proj",
    .down = "mlp.down_proj",
    .ffn_norm = "pre_feedforward_layernorm",
    .ffn_post_norm = "post_feedforward_layernorm",
    .final_norm = "model.norm",
};

// Of every `pattern` layers the last has no window.
static void read_layers(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_encoder_config *e = &c->encoder;
    const int32_t pattern = msgl__json_int_or(r, "sliding_window_pattern", 1, INT32_MAX, 6);
    // transformers reads 512 as keys less than 512 / 2 + 1 away, and writes 512 again.
    e->window = msgl__json_int_or(r, "sliding_window", 2, INT32_MAX, 4096) / 2;
    if (msgl__encoder_read_layer_types(r, c)) return;
    for (int32_t l = 0; l < c->num_layers; l++) e->sliding[l] = (l + 1) % pattern != 0;
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_encoder_config *e = &c->encoder;
    e->names = NAMES;
    e->rms = e->norm_plus_one = e->pre_norm = true;
    e->norm_bias = e->ffn_bias = false;
    e->norm_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-6);
    e->attn_bias = msgl__json_bool_or(r, "attention_bias", false);
    e->embed_scale = sqrtf((float)c->hidden_size);
    e->attn_scale = 1 / sqrtf((float)msgl__json_num_or(r, "query_pre_attn_scalar", 1, 1e6, 256));
    msgl__encoder_read_gate(r, "hidden_activation", "gelu_pytorch_tanh", e);
    read_layers(r, c);
    if (!msgl__json_bool_or(r, "use_bidirectional_attention", false)) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "use_bidirectional_attention",
                          msgl__json_get(r, "use_bidirectional_attention"), "true");
    }
    const json_t *cap = msgl__json_get(r, "attn_logit_softcapping");
    if (cap != NULL) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "attn_logit_softcapping", cap, "null");
    }
}

const msgl_arch msgl__arch_gemma3_encoder = {
    .name = "Gemma3TextModel",
    .family = &msgl__encoder_family,
    .default_head_dim = 256,
    .default_dtype = "float32",
    .default_theta = 1e6,
    .local_rope = true,
    .local_theta = 10000,
    .configure = configure,
};
