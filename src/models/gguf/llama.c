// SPDX-License-Identifier: Apache-2.0
//
// Llama and what the converters make of its class: rows of q and k are permuted, so that what
// rotates together is side by side. Mistral's files say llama, and their window is not in them;
// Mixtral is a llama with experts, Ministral 3 a mistral3 with a scale of its queries. OLMo 2 and 3
// have one name and are not permuted. A llama with biases of q, k and v and without one of
// attention's result, or the other way round, is an InternLM3.
#include "models/gguf/arch.h"

static const msgl_gguf_name MIXTRAL_NAMES[] = {
    {"ffn_gate_inp.", "block_sparse_moe.gate.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field MIXTRAL_FIELDS[] = {
    {MSGL_GGUF_CONFIG, "num_local_experts", "expert_count"},
    {MSGL_GGUF_CONFIG, "num_experts_per_tok", "expert_used_count"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static bool biases_apart(const msgl_gguf_model *m)
{
    return msgl__gguf_block_has(m, 0, "attn_q.bias") !=
           msgl__gguf_block_has(m, 0, "attn_output.bias");
}

static void derive_internlm(msgl_gguf_model *m)
{
    msgl__gguf_set_bool(m, "qkv_bias", msgl__gguf_block_has(m, 0, "attn_q.bias"));
    msgl__gguf_set_bool(m, "bias", msgl__gguf_block_has(m, 0, "attn_output.bias"));
}

static const msgl_gguf_field GRANITE_FIELDS[] = {
    {MSGL_GGUF_CONFIG, "attention_multiplier", "attention.scale"},
    {MSGL_GGUF_CONFIG, "embedding_multiplier", "embedding_scale"},
    {MSGL_GGUF_CONFIG, "residual_multiplier", "residual_scale"},
    {MSGL_GGUF_CONFIG, "logits_scaling", "logit_scale"}, // logits are divided by it
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static const msgl_gguf_name OLMO2_NAMES[] = {
    {"post_attention_norm.", "post_attention_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"post_ffw_norm.", "post_feedforward_layernorm.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field MINISTRAL_FIELDS[] = {
    {MSGL_GGUF_ROPE, "llama_4_scaling_beta", "attention.temperature_scale"},
    {MSGL_GGUF_ROPE, "mscale_all_dim", "rope.scaling.yarn_log_multiplier"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static bool scales_queries(const msgl_gguf_model *m)
{
    return msgl__gguf_num(m, "attention.temperature_scale", 0) > 0;
}

// mscale, which is not in the file, is the same.
static void derive_ministral(msgl_gguf_model *m)
{
    const double mscale = msgl__gguf_num(m, "rope.scaling.yarn_log_multiplier", 0);
    if (mscale > 0) msgl__gguf_set(m, m->rope, "mscale", json_real(mscale));
}

static const msgl_gguf_field OLMO3_FIELDS[] = {
    {MSGL_GGUF_CONFIG, "sliding_window", "attention.sliding_window"},
    {MSGL_GGUF_DERIVED, NULL, "attention.sliding_window_pattern"},
    {MSGL_GGUF_CONFIG, "rope_local_base_freq", "rope.freq_base_swa"},
    {MSGL_GGUF_ROPE, "attention_factor", "rope.scaling.yarn_attn_factor"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static bool has_window(const msgl_gguf_model *m)
{
    return msgl__gguf_num(m, "attention.sliding_window", 0) > 0;
}

const msgl_gguf_arch msgl__gguf_llama[] = {
    {.name = "llama",
     .hf = "MixtralForCausalLM",
     .takes = msgl__gguf_has_experts,
     .pairs = true,
     .names = MIXTRAL_NAMES,
     .fields = MIXTRAL_FIELDS},
    {.name = "llama",
     .hf = "InternLM3ForCausalLM",
     .takes = biases_apart,
     .pairs = true,
     .derive = derive_internlm},
    {.name = "llama", .hf = "LlamaForCausalLM", .pairs = true},
    {.name = "mistral3",
     .hf = "Ministral3ForCausalLM",
     .takes = scales_queries,
     .pairs = true,
     .fields = MINISTRAL_FIELDS,
     .derive = derive_ministral},
    // Mistral Small 3.1 and 3.2, which are Mistrals without a window.
    {.name = "mistral3", .hf = "LlamaForCausalLM", .pairs = true},
    {.name = "granite", .hf = "GraniteForCausalLM", .pairs = true, .fields = GRANITE_FIELDS},
    {.name = "smollm3", .hf = "SmolLM3ForCausalLM", .pairs = true},
    {.name = "olmo2",
     .hf = "Olmo3ForCausalLM",
     .takes = has_window,
     .names = OLMO2_NAMES,
     .fields = OLMO3_FIELDS,
     .derive = msgl__gguf_sliding_layers},
    {.name = "olmo2", .hf = "Olmo2ForCausalLM", .names = OLMO2_NAMES},
    {.name = NULL},
};
