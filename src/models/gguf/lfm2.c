// SPDX-License-Identifier: Apache-2.0
//
// LFM2 and LFM2-MoE. Heads of K and V are an array with 0 for the layers that are convolutions; the
// width of the feed-forward blocks is what it is.
#include "models/gguf/arch.h"

static const msgl_gguf_name NAMES[] = {
    {"shortconv.conv.", "conv.conv.", MSGL_GGUF_TAPS},
    {"shortconv.in_proj.", "conv.in_proj.", MSGL_GGUF_AS_IT_IS},
    {"shortconv.out_proj.", "conv.out_proj.", MSGL_GGUF_AS_IT_IS},
    {"attn_norm.", "operator_norm.", MSGL_GGUF_AS_IT_IS},
    {"attn_output.", "self_attn.out_proj.", MSGL_GGUF_AS_IT_IS},
    {"attn_q_norm.", "self_attn.q_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"attn_k_norm.", "self_attn.k_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"ffn_norm.", "ffn_norm.", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate.", "feed_forward.w1.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up.", "feed_forward.w3.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down.", "feed_forward.w2.", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_inp.", "feed_forward.gate.", MSGL_GGUF_AS_IT_IS},
    {"exp_probs_b.bias", "feed_forward.expert_bias", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

#define LFM2                                                                                       \
    {MSGL_GGUF_CONFIG, "norm_eps", "attention.layer_norm_rms_epsilon"},                            \
    {                                                                                              \
        MSGL_GGUF_CONFIG, "conv_L_cache", "shortconv.l_cache"                                      \
    }

static const msgl_gguf_field FIELDS[] = {
    LFM2,
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static const msgl_gguf_field MOE_FIELDS[] = {
    LFM2,
    MSGL_GGUF_EXPERTS("num_experts", "moe_intermediate_size"),
    {MSGL_GGUF_CONFIG, "num_dense_layers", "leading_dense_block_count"},
    {MSGL_GGUF_CONFIG, "norm_topk_prob", "expert_weights_norm"},
    {MSGL_GGUF_CONFIG, "routed_scaling_factor", "expert_weights_scale"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static void derive(msgl_gguf_model *m)
{
    msgl__gguf_kinds(m, "layer_types", "shortconv.conv.weight", "conv", "full_attention");
    msgl__gguf_kv_heads(m);
    msgl__gguf_set_bool(m, "block_auto_adjust_ff_dim", false);
    msgl__gguf_set_bool(m, "conv_bias", msgl__gguf_some_block_has(m, "shortconv.conv.bias"));
    msgl__gguf_set_bool(m, "use_expert_bias", msgl__gguf_some_block_has(m, "exp_probs_b.bias"));
}

const msgl_gguf_arch msgl__gguf_lfm2[] = {
    {.name = "lfm2", .hf = "Lfm2ForCausalLM", .names = NAMES, .fields = FIELDS, .derive = derive},
    {.name = "lfm2moe",
     .hf = "Lfm2MoeForCausalLM",
     .names = NAMES,
     .fields = MOE_FIELDS,
     .derive = derive},
    {.name = NULL},
};
