// SPDX-License-Identifier: Apache-2.0
//
// GLM-4 (0414 and Z1): gate and up in one tensor; neighbours rotate together, in half of a head.
// GLM-4.5 to 4.7: halves do; the last blocks predict further tokens, and are left.
#include "models/gguf/arch.h"

static const msgl_gguf_name NAMES[] = {
    {"post_attention_norm.", "post_self_attn_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"post_ffw_norm.", "post_mlp_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up.", "mlp.gate_up_proj.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field FIELDS[] = {
    {MSGL_GGUF_DERIVED, NULL, "rope.dimension_count"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static const msgl_gguf_name MOE_NAMES[] = {
    {"post_attention_norm.", "post_attention_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_shexp.", "mlp.shared_experts.gate_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up_shexp.", "mlp.shared_experts.up_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down_shexp.", "mlp.shared_experts.down_proj.", MSGL_GGUF_AS_IT_IS},
    {"nextn.", "nextn.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field MOE_FIELDS[] = {
    MSGL_GGUF_EXPERTS("n_routed_experts", "moe_intermediate_size"),
    {MSGL_GGUF_CONFIG, "n_shared_experts", "expert_shared_count"},
    {MSGL_GGUF_CONFIG, "routed_scaling_factor", "expert_weights_scale"},
    {MSGL_GGUF_DERIVED, NULL, "nextn_predict_layers"},
    {MSGL_GGUF_DERIVED, NULL, "rope.dimension_count"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static void derive_moe(msgl_gguf_model *m)
{
    const json_t *norms = msgl__gguf_field(m, "expert_weights_norm");
    const int64_t ahead = msgl__gguf_int(m, "nextn_predict_layers", 0);
    msgl__gguf_partial_rotation(m);
    msgl__gguf_set(m, m->config, "num_hidden_layers", json_integer(msgl__gguf_blocks(m) - ahead));
    msgl__gguf_set(m, m->config, "norm_topk_prob", json_boolean(json_is_true(norms)));
    msgl__gguf_set(m, m->config, "first_k_dense_replace",
                   json_integer(msgl__gguf_int(m, "leading_dense_block_count", 0)));
    msgl__gguf_set(m, m->config, "use_qk_norm",
                   json_boolean(msgl__gguf_block_has(m, 0, "attn_q_norm.weight")));
}

const msgl_gguf_arch msgl__gguf_glm[] = {
    {.name = "glm4",
     .hf = "Glm4ForCausalLM",
     .pairs = true,
     .names = NAMES,
     .fields = FIELDS,
     .derive = msgl__gguf_partial_rotation},
    {.name = "glm4moe",
     .hf = "Glm4MoeForCausalLM",
     .names = MOE_NAMES,
     .fields = MOE_FIELDS,
     .derive = derive_moe},
    {.name = NULL},
};
