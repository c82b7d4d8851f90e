// SPDX-License-Identifier: Apache-2.0
//
// Kimi Linear: latent attention as DeepSeek's, and Kimi Delta Attention in layers that have 0 heads
// of K and V, and as many heads as the others. A is stored as -exp(A_log), convolutions as
// [1, n, 1, taps].
#include "models/gguf/arch.h"

static const msgl_gguf_name NAMES[] = {
    {"attn_q_a.", "self_attn.q_a_proj.", MSGL_GGUF_AS_IT_IS},
    {"attn_q_b.", "self_attn.q_b_proj.", MSGL_GGUF_AS_IT_IS},
    {"attn_q_a_norm.", "self_attn.q_a_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"attn_kv_a_mqa.", "self_attn.kv_a_proj_with_mqa.", MSGL_GGUF_AS_IT_IS},
    {"attn_kv_a_norm.", "self_attn.kv_a_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"attn_kv_b.", "self_attn.kv_b_proj.", MSGL_GGUF_AS_IT_IS},
    {"attn_k_b.", "self_attn.k_b_proj.", MSGL_GGUF_FLAT},
    {"attn_v_b.", "self_attn.v_b_proj.", MSGL_GGUF_FLAT},
    {"ssm_conv1d_q.", "self_attn.q_conv1d.", MSGL_GGUF_TAPS},
    {"ssm_conv1d_k.", "self_attn.k_conv1d.", MSGL_GGUF_TAPS},
    {"ssm_conv1d_v.", "self_attn.v_conv1d.", MSGL_GGUF_TAPS},
    {"ssm_f_a.", "self_attn.f_a_proj.", MSGL_GGUF_AS_IT_IS},
    {"ssm_f_b.", "self_attn.f_b_proj.", MSGL_GGUF_AS_IT_IS},
    {"ssm_g_a.", "self_attn.g_a_proj.", MSGL_GGUF_AS_IT_IS},
    {"ssm_g_b.", "self_attn.g_b_proj.", MSGL_GGUF_AS_IT_IS},
    {"ssm_beta.", "self_attn.b_proj.", MSGL_GGUF_AS_IT_IS},
    {"ssm_dt.bias", "self_attn.dt_bias", MSGL_GGUF_AS_IT_IS},
    {"ssm_a", "self_attn.A_log", MSGL_GGUF_AS_IT_IS},
    {"ssm_norm.", "self_attn.o_norm.", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_inp.", "block_sparse_moe.gate.", MSGL_GGUF_AS_IT_IS},
    {"exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_shexp.", "block_sparse_moe.shared_experts.gate_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up_shexp.", "block_sparse_moe.shared_experts.up_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down_shexp.", "block_sparse_moe.shared_experts.down_proj.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field FIELDS[] = {
    {MSGL_GGUF_CONFIG, "num_experts", "expert_count"},
    {MSGL_GGUF_CONFIG, "num_experts_per_token", "expert_used_count"},
    {MSGL_GGUF_CONFIG, "moe_intermediate_size", "expert_feed_forward_length"},
    {MSGL_GGUF_CONFIG, "num_shared_experts", "expert_shared_count"},
    {MSGL_GGUF_CONFIG, "routed_scaling_factor", "expert_weights_scale"},
    {MSGL_GGUF_CONFIG, "moe_renormalize", "expert_weights_norm"},
    {MSGL_GGUF_CONFIG, "num_expert_group", "expert_group_count"},
    {MSGL_GGUF_CONFIG, "topk_group", "expert_group_used_count"},
    {MSGL_GGUF_CONFIG, "first_k_dense_replace", "leading_dense_block_count"},
    {MSGL_GGUF_CONFIG, "kv_lora_rank", "attention.kv_lora_rank"},
    {MSGL_GGUF_CONFIG, "q_lora_rank", "attention.q_lora_rank"},
    {MSGL_GGUF_CONFIG, "qk_rope_head_dim", "rope.dimension_count"},
    {MSGL_GGUF_CONFIG, "v_head_dim", "attention.value_length_mla"},
    {MSGL_GGUF_CONFIG, "num_key_value_heads", "attention.head_count"},
    {MSGL_GGUF_CONFIG, "linear_num_heads", "attention.head_count"},
    {MSGL_GGUF_CONFIG, "linear_head_dim", "kda.head_dim"},
    {MSGL_GGUF_CONFIG, "linear_conv_kernel_dim", "ssm.conv_kernel"},
    {MSGL_GGUF_DERIVED, NULL, "attention.value_length"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static void derive(msgl_gguf_model *m)
{
    const int64_t rotary = msgl__gguf_int(m, "rope.dimension_count", 0);
    msgl__gguf_set_int(m, "qk_nope_head_dim",
                       msgl__gguf_int(m, "attention.key_length_mla", 0) - rotary);
    msgl__gguf_kinds(m, "layer_types", "ssm_a", "linear_attention", "full_attention");
}

const msgl_gguf_arch msgl__gguf_kimi[] = {
    {.name = "kimi-linear",
     .hf = "KimiLinearForCausalLM",
     .names = NAMES,
     .fields = FIELDS,
     .derive = derive},
    {.name = NULL},
};
