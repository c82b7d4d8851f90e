// SPDX-License-Identifier: Apache-2.0
//
// Models with LayerNorms, blocks beside each other or without a gate. Rows of Arcee are permuted as
// Llama's are, those of Cohere are neighbours in its folders too. What has biases is not said:
// their tensors are there. Apertus' parameters of xIELU are arrays among the file's values.
#include "models/gguf/arch.h"

static void set_biases(msgl_gguf_model *m, const char *attention, const char *mlp)
{
    msgl__gguf_set(m, m->config, attention,
                   json_boolean(msgl__gguf_block_has(m, 0, "attn_q.bias")));
    if (mlp == NULL) return;
    msgl__gguf_set(m, m->config, mlp, json_boolean(msgl__gguf_block_has(m, 0, "ffn_up.bias")));
}

static void derive_arcee(msgl_gguf_model *m)
{
    set_biases(m, "attention_bias", "mlp_bias");
}

static const msgl_gguf_name STARCODER_NAMES[] = {
    {"ffn_up.", "mlp.c_fc.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down.", "mlp.c_proj.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field STARCODER_FIELDS[] = {
    {MSGL_GGUF_CONFIG, "norm_epsilon", "attention.layer_norm_epsilon"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static void derive_starcoder(msgl_gguf_model *m)
{
    set_biases(m, "use_bias", NULL);
}

static const msgl_gguf_field COHERE_FIELDS[] = {
    {MSGL_GGUF_CONFIG, "layer_norm_eps", "attention.layer_norm_epsilon"},
    {MSGL_GGUF_CONFIG, "logit_scale", "logit_scale"},
    {MSGL_GGUF_CONFIG, "sliding_window", "attention.sliding_window"}, // of the second generation
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static void derive_cohere(msgl_gguf_model *m)
{
    set_biases(m, "attention_bias", NULL);
    msgl__gguf_set(m, m->config, "use_qk_norm",
                   json_boolean(msgl__gguf_block_has(m, 0, "attn_q_norm.weight")));
}

static const msgl_gguf_field STABLELM_FIELDS[] = {
    {MSGL_GGUF_CONFIG, "layer_norm_eps", "attention.layer_norm_epsilon"},
    {MSGL_GGUF_DERIVED, NULL, "rope.dimension_count"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

// use_parallel_residual is true in files of models whose config does not say it, and are not so:
// those that are lack a norm.
static void derive_stablelm(msgl_gguf_model *m)
{
    msgl__gguf_partial_rotation(m);
    set_biases(m, "use_qkv_bias", NULL);
    msgl__gguf_set_bool(m, "qk_layernorm", msgl__gguf_block_has(m, 0, "attn_q_norm.weight"));
    msgl__gguf_set_bool(m, "use_parallel_residual", !msgl__gguf_block_has(m, 0, "ffn_norm.weight"));
}

static const msgl_gguf_name APERTUS_NAMES[] = {
    {"attn_norm.", "attention_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"ffn_norm.", "feedforward_layernorm.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_array APERTUS_ARRAYS[] = {
    {"xielu.alpha_p", "mlp.act_fn.alpha_p"},
    {"xielu.alpha_n", "mlp.act_fn.alpha_n"},
    {"xielu.beta", "mlp.act_fn.beta"},
    {"xielu.eps", "mlp.act_fn.eps"},
    {NULL, NULL},
};

static void derive_apertus(msgl_gguf_model *m)
{
    set_biases(m, "attention_bias", NULL);
}

const msgl_gguf_arch msgl__gguf_parts[] = {
    {.name = "arcee", .hf = "ArceeForCausalLM", .pairs = true, .derive = derive_arcee},
    {.name = "starcoder2",
     .hf = "Starcoder2ForCausalLM",
     .names = STARCODER_NAMES,
     .fields = STARCODER_FIELDS,
     .derive = derive_starcoder},
    {.name = "command-r",
     .hf = "CohereForCausalLM",
     .pairs = true,
     .fields = COHERE_FIELDS,
     .derive = derive_cohere},
    {.name = "cohere2",
     .hf = "Cohere2ForCausalLM",
     .pairs = true,
     .fields = COHERE_FIELDS,
     .derive = derive_cohere},
    {.name = "stablelm",
     .hf = "StableLmForCausalLM",
     .fields = STABLELM_FIELDS,
     .derive = derive_stablelm},
    {.name = "apertus",
     .hf = "ApertusForCausalLM",
     .names = APERTUS_NAMES,
     .arrays = APERTUS_ARRAYS,
     .derive = derive_apertus},
    {.name = NULL},
};
