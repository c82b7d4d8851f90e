// SPDX-License-Identifier: Apache-2.0
//
// Qwen2 and Qwen3, with and without experts, and the language halves of Qwen3-VL. Windows are not
// in the files, nor whether the weights of a token's experts are divided by their sum: Qwen3's are.
#include "models/gguf/arch.h"

static const msgl_gguf_name SHARED_NAMES[] = {
    {"ffn_gate_shexp.", "mlp.shared_expert.gate_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up_shexp.", "mlp.shared_expert.up_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down_shexp.", "mlp.shared_expert.down_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_inp_shexp.", "mlp.shared_expert_gate.", MSGL_GGUF_ONE_ROW},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field QWEN2_MOE_FIELDS[] = {
    MSGL_GGUF_EXPERTS("num_experts", "moe_intermediate_size"),
    {MSGL_GGUF_CONFIG, "shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static const msgl_gguf_field QWEN3_MOE_FIELDS[] = {
    MSGL_GGUF_EXPERTS("num_experts", "moe_intermediate_size"),
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

// Of text all positions of mrope are the same.
static const msgl_gguf_field QWEN3_VL_FIELDS[] = {
    {MSGL_GGUF_DERIVED, NULL, "rope.dimension_sections"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static const msgl_gguf_field QWEN3_VL_MOE_FIELDS[] = {
    MSGL_GGUF_EXPERTS("num_experts", "moe_intermediate_size"),
    {MSGL_GGUF_DERIVED, NULL, "rope.dimension_sections"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static void derive_qwen2_moe(msgl_gguf_model *m)
{
    msgl__gguf_dense_layers(m);
    msgl__gguf_set(m, m->config, "qkv_bias",
                   json_boolean(msgl__gguf_block_has(m, 0, "attn_q.bias")));
}

static void derive_qwen3_moe(msgl_gguf_model *m)
{
    msgl__gguf_dense_layers(m);
    msgl__gguf_set(m, m->config, "norm_topk_prob", json_true());
}

// Linear attention as llama.cpp names state space models' parts. Older files have ssm_in in place
// of attn_qkv and attn_gate.
static const msgl_gguf_name NEXT_NAMES[] = {
    {"ssm_alpha.", "linear_attn.in_proj_a.",
     MSGL_GGUF_AS_IT_IS}, // of Qwen3.5, where they are apart
    {"ssm_beta.", "linear_attn.in_proj_b.", MSGL_GGUF_AS_IT_IS},
    {"post_attention_norm.", "post_attention_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"attn_qkv.", "linear_attn.in_proj_qkv.", MSGL_GGUF_AS_IT_IS},
    {"attn_gate.", "linear_attn.in_proj_z.", MSGL_GGUF_AS_IT_IS},
    {"ssm_in.", "linear_attn.in_proj_qkvz.", MSGL_GGUF_AS_IT_IS},
    {"ssm_ba.", "linear_attn.in_proj_ba.", MSGL_GGUF_AS_IT_IS},
    {"ssm_conv1d.", "linear_attn.conv1d.", MSGL_GGUF_TAPS},
    {"ssm_dt.bias", "linear_attn.dt_bias", MSGL_GGUF_AS_IT_IS},
    {"ssm_a", "linear_attn.A_log", MSGL_GGUF_AS_IT_IS},
    {"ssm_norm.", "linear_attn.norm.", MSGL_GGUF_AS_IT_IS},
    {"ssm_out.", "linear_attn.out_proj.", MSGL_GGUF_AS_IT_IS},
    {"nextn.", "nextn.", MSGL_GGUF_AS_IT_IS}, // of blocks that are left
    {"ffn_gate_shexp.", "mlp.shared_expert.gate_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up_shexp.", "mlp.shared_expert.up_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down_shexp.", "mlp.shared_expert.down_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_inp_shexp.", "mlp.shared_expert_gate.", MSGL_GGUF_ONE_ROW},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field NEXT_FIELDS[] = {
    MSGL_GGUF_EXPERTS("num_experts", "moe_intermediate_size"),
    {MSGL_GGUF_CONFIG, "shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
    {MSGL_GGUF_CONFIG, "linear_num_key_heads", "ssm.group_count"},
    {MSGL_GGUF_CONFIG, "linear_num_value_heads", "ssm.time_step_rank"},
    {MSGL_GGUF_CONFIG, "linear_key_head_dim", "ssm.state_size"},
    {MSGL_GGUF_CONFIG, "linear_conv_kernel_dim", "ssm.conv_kernel"},
    {MSGL_GGUF_CONFIG, "full_attention_interval", "full_attention_interval"},
    {MSGL_GGUF_DERIVED, NULL, "rope.dimension_count"},
    {MSGL_GGUF_DERIVED, NULL, "nextn_predict_layers"},
    {MSGL_GGUF_DERIVED, NULL, "rope.dimension_sections"}, // of text all are the same positions
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

// The last blocks predict further tokens, and are left. attention.recurrent_layers has a truth
// value for each block.
static void derive_next(msgl_gguf_model *m)
{
    const int64_t layers = msgl__gguf_blocks(m) - msgl__gguf_int(m, "nextn_predict_layers", 0);
    const int64_t v_heads = msgl__gguf_int(m, "ssm.time_step_rank", 0);
    const json_t *recurrent = msgl__gguf_field(m, "attention.recurrent_layers");
    derive_qwen3_moe(m);
    msgl__gguf_partial_rotation(m);
    msgl__gguf_set(m, m->config, "num_hidden_layers", json_integer(layers));
    if (v_heads > 0) {
        msgl__gguf_set(m, m->config, "linear_value_head_dim",
                       json_integer(msgl__gguf_int(m, "ssm.inner_size", 0) / v_heads));
    }
    if (!json_is_array(recurrent)) return;
    json_t *types = json_array();
    for (int64_t l = 0; l < layers; l++) {
        const json_t *v = json_array_get(recurrent, (size_t)l);
        const bool linear = json_is_true(v) || json_integer_value(v) != 0;
        m->bad |= json_array_append_new(
            types, json_string(linear ? "linear_attention" : "full_attention"));
    }
    msgl__gguf_set(m, m->config, "layer_types", types);
}

const msgl_gguf_arch msgl__gguf_qwen[] = {
    {.name = "qwen2", .hf = "Qwen2ForCausalLM"},
    {.name = "qwen2moe",
     .hf = "Qwen2MoeForCausalLM",
     .names = SHARED_NAMES,
     .fields = QWEN2_MOE_FIELDS,
     .derive = derive_qwen2_moe},
    {.name = "qwen3", .hf = "Qwen3ForCausalLM"},
    {.name = "qwen3moe",
     .hf = "Qwen3MoeForCausalLM",
     .fields = QWEN3_MOE_FIELDS,
     .derive = derive_qwen3_moe},
    {.name = "qwen3vl", .hf = "Qwen3ForCausalLM", .fields = QWEN3_VL_FIELDS},
    {.name = "qwen3vlmoe",
     .hf = "Qwen3MoeForCausalLM",
     .fields = QWEN3_VL_MOE_FIELDS,
     .derive = derive_qwen3_moe},
    {.name = "qwen3next",
     .hf = "Qwen3NextForCausalLM",
     .norms_whole = true,
     .names = NEXT_NAMES,
     .fields = NEXT_FIELDS,
     .derive = derive_next},
    {.name = "qwen35",
     .hf = "Qwen3_5ForCausalLM",
     .norms_whole = true,
     .names = NEXT_NAMES,
     .fields = NEXT_FIELDS,
     .derive = derive_next},
    {.name = "qwen35moe",
     .hf = "Qwen3_5MoeForCausalLM",
     .norms_whole = true,
     .names = NEXT_NAMES,
     .fields = NEXT_FIELDS,
     .derive = derive_next},
    {.name = NULL},
};
