// SPDX-License-Identifier: Apache-2.0
//
// Architectures by themselves: MiniMax-M2, dots.llm1, ERNIE 4.5, Hunyuan, EXAONE 4, Seed-OSS and
// OLMoE. Rows of ERNIE that rotate together are neighbours in its folders too. What the files do
// not say is what the architectures have: how ERNIE, Hunyuan and MiniMax weigh a token's experts.
#include "models/gguf/arch.h"

static const msgl_gguf_name MINIMAX_NAMES[] = {
    {"ffn_gate_inp.", "block_sparse_moe.gate.", MSGL_GGUF_AS_IT_IS},
    {"exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field MINIMAX_FIELDS[] = {
    MSGL_GGUF_EXPERTS("num_local_experts", "intermediate_size"),
    {MSGL_GGUF_DERIVED, NULL, "rope.dimension_count"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

#define SHARED_EXPERTS(model)                                                                      \
    {"ffn_gate_shexp.", model ".gate_proj.", MSGL_GGUF_AS_IT_IS},                                  \
        {"ffn_up_shexp.", model ".up_proj.", MSGL_GGUF_AS_IT_IS},                                  \
    {                                                                                              \
        "ffn_down_shexp.", model ".down_proj.", MSGL_GGUF_AS_IT_IS                                 \
    }

static const msgl_gguf_name DOTS_NAMES[] = {
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias", MSGL_GGUF_AS_IT_IS},
    SHARED_EXPERTS("mlp.shared_experts"),
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field DOTS_FIELDS[] = {
    MSGL_GGUF_EXPERTS("n_routed_experts", "moe_intermediate_size"),
    {MSGL_GGUF_CONFIG, "n_shared_experts", "expert_shared_count"},
    {MSGL_GGUF_CONFIG, "routed_scaling_factor", "expert_weights_scale"},
    {MSGL_GGUF_CONFIG, "norm_topk_prob", "expert_weights_norm"},
    {MSGL_GGUF_CONFIG, "first_k_dense_replace", "leading_dense_block_count"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

// No window, which the files have not.
static void derive_dots(msgl_gguf_model *m)
{
    msgl__gguf_set(m, m->config, "sliding_window", json_null());
}

static const msgl_gguf_name ERNIE_MOE_NAMES[] = {
    {"exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias", MSGL_GGUF_ONE_ROW},
    SHARED_EXPERTS("mlp.shared_experts"),
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field ERNIE_MOE_FIELDS[] = {
    {MSGL_GGUF_CONFIG, "moe_num_experts", "expert_count"},
    {MSGL_GGUF_CONFIG, "moe_k", "expert_used_count"},
    {MSGL_GGUF_CONFIG, "moe_intermediate_size", "expert_feed_forward_length"},
    {MSGL_GGUF_CONFIG, "moe_num_shared_experts", "expert_shared_count"},
    {MSGL_GGUF_CONFIG, "moe_layer_interval", "interleave_moe_layer_step"},
    {MSGL_GGUF_CONFIG, "moe_layer_start_index", "leading_dense_block_count"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static void derive_ernie(msgl_gguf_model *m)
{
    msgl__gguf_set(m, m->config, "use_bias",
                   json_boolean(msgl__gguf_block_has(m, 0, "attn_q.bias")));
}

static const msgl_gguf_name HUNYUAN_NAMES[] = {
    {"attn_q_norm.", "self_attn.query_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"attn_k_norm.", "self_attn.key_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_inp.", "mlp.gate.wg.", MSGL_GGUF_AS_IT_IS},
    SHARED_EXPERTS("mlp.shared_mlp"),
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field HUNYUAN_MOE_FIELDS[] = {
    {MSGL_GGUF_CONFIG, "num_experts", "expert_count"},
    {MSGL_GGUF_CONFIG, "moe_topk", "expert_used_count"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static const msgl_gguf_name POST_NORM_NAMES[] = {
    {"post_attention_norm.", "post_attention_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"post_ffw_norm.", "post_feedforward_layernorm.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field EXAONE_FIELDS[] = {
    {MSGL_GGUF_CONFIG, "sliding_window", "attention.sliding_window"},
    {MSGL_GGUF_DERIVED, NULL, "attention.sliding_window_pattern"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static void derive_exaone(msgl_gguf_model *m)
{
    msgl__gguf_sliding_layers(m);
    if (msgl__gguf_num(m, "attention.sliding_window", 0) == 0) {
        msgl__gguf_set(m, m->config, "sliding_window", json_null());
    }
}

static void derive_seed(msgl_gguf_model *m)
{
    msgl__gguf_set(m, m->config, "attention_out_bias",
                   json_boolean(msgl__gguf_block_has(m, 0, "attn_output.bias")));
}

static const msgl_gguf_field OLMOE_FIELDS[] = {
    {MSGL_GGUF_CONFIG, "num_experts", "expert_count"},
    {MSGL_GGUF_CONFIG, "num_experts_per_tok", "expert_used_count"},
    {MSGL_GGUF_CONFIG, "clip_qkv", "attention.clamp_kqv"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

const msgl_gguf_arch msgl__gguf_single[] = {
    {.name = "minimax-m2",
     .hf = "MiniMaxM2ForCausalLM",
     .names = MINIMAX_NAMES,
     .fields = MINIMAX_FIELDS,
     .derive = msgl__gguf_partial_rotation},
    {.name = "dots1",
     .hf = "Dots1ForCausalLM",
     .names = DOTS_NAMES,
     .fields = DOTS_FIELDS,
     .derive = derive_dots},
    {.name = "ernie4_5", .hf = "Ernie4_5ForCausalLM", .pairs = true, .derive = derive_ernie},
    {.name = "ernie4_5-moe",
     .hf = "Ernie4_5_MoeForCausalLM",
     .pairs = true,
     .names = ERNIE_MOE_NAMES,
     .fields = ERNIE_MOE_FIELDS,
     .derive = derive_ernie},
    {.name = "hunyuan-dense", .hf = "HunYuanDenseV1ForCausalLM", .names = HUNYUAN_NAMES},
    {.name = "hunyuan-moe",
     .hf = "HunYuanMoEV1ForCausalLM",
     .names = HUNYUAN_NAMES,
     .fields = HUNYUAN_MOE_FIELDS},
    {.name = "exaone4",
     .hf = "Exaone4ForCausalLM",
     .names = POST_NORM_NAMES,
     .fields = EXAONE_FIELDS,
     .derive = derive_exaone},
    {.name = "seed_oss",
     .hf = "SeedOssForCausalLM",
     .names = POST_NORM_NAMES,
     .derive = derive_seed},
    {.name = "olmoe", .hf = "OlmoeForCausalLM", .fields = OLMOE_FIELDS},
    {.name = NULL},
};
