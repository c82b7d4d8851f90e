// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek-V2 and V3 and models of their form. The file says what llama.cpp's attention over the
// latent vectors has: one head of K and V, as long as these. kv_b_proj is in two tensors,
// attn_k_b, transposed head by head, and attn_v_b; in files from before 2025 it is whole. Of V3.2
// and GLM-5 there are tensors of the index, too, and blocks at the end that predict further tokens,
// and are left.
#include <string.h>

#include "models/gguf/arch.h"

static const msgl_gguf_name NAMES[] = {
    {"indexer.k_norm.", "self_attn.indexer.k_norm.", MSGL_GGUF_AS_IT_IS},
    {"indexer.proj.", "self_attn.indexer.weights_proj.", MSGL_GGUF_AS_IT_IS},
    {"indexer.attn_k.", "self_attn.indexer.wk.", MSGL_GGUF_AS_IT_IS},
    {"indexer.attn_q_b.", "self_attn.indexer.wq_b.", MSGL_GGUF_AS_IT_IS},
    {"nextn.", "nextn.", MSGL_GGUF_AS_IT_IS},
    {"attn_q_a.", "self_attn.q_a_proj.", MSGL_GGUF_AS_IT_IS},
    {"attn_q_b.", "self_attn.q_b_proj.", MSGL_GGUF_AS_IT_IS},
    {"attn_q_a_norm.", "self_attn.q_a_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"attn_kv_a_mqa.", "self_attn.kv_a_proj_with_mqa.", MSGL_GGUF_AS_IT_IS},
    {"attn_kv_a_norm.", "self_attn.kv_a_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"attn_kv_b.", "self_attn.kv_b_proj.", MSGL_GGUF_AS_IT_IS},
    {"attn_k_b.", "self_attn.k_b_proj.", MSGL_GGUF_FLAT},
    {"attn_v_b.", "self_attn.v_b_proj.", MSGL_GGUF_FLAT},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_shexp.", "mlp.shared_experts.gate_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up_shexp.", "mlp.shared_experts.up_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down_shexp.", "mlp.shared_experts.down_proj.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

#define LATENT                                                                                     \
    MSGL_GGUF_EXPERTS("n_routed_experts", "moe_intermediate_size"),                                \
        {MSGL_GGUF_CONFIG, "n_shared_experts", "expert_shared_count"},                             \
        {MSGL_GGUF_CONFIG, "routed_scaling_factor", "expert_weights_scale"},                       \
        {MSGL_GGUF_CONFIG, "n_group", "expert_group_count"},                                       \
        {MSGL_GGUF_CONFIG, "topk_group", "expert_group_used_count"},                               \
        {MSGL_GGUF_CONFIG, "first_k_dense_replace", "leading_dense_block_count"},                  \
        {MSGL_GGUF_CONFIG, "kv_lora_rank", "attention.kv_lora_rank"},                              \
        {MSGL_GGUF_CONFIG, "q_lora_rank", "attention.q_lora_rank"},                                \
        {MSGL_GGUF_CONFIG, "qk_rope_head_dim", "rope.dimension_count"},                            \
        {MSGL_GGUF_CONFIG, "num_key_value_heads", "attention.head_count"},                         \
        {MSGL_GGUF_DERIVED, NULL, "attention.value_length"},                                       \
    {                                                                                              \
        MSGL_GGUF_DERIVED, NULL, "rope.scaling.yarn_log_multiplier"                                \
    }

static const msgl_gguf_field FIELDS[] = {
    LATENT,
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static const msgl_gguf_field SPARSE_FIELDS[] = {
    LATENT,
    {MSGL_GGUF_CONFIG, "index_n_heads", "attention.indexer.head_count"},
    {MSGL_GGUF_CONFIG, "index_head_dim", "attention.indexer.key_length"},
    {MSGL_GGUF_CONFIG, "index_topk", "attention.indexer.top_k"},
    {MSGL_GGUF_DERIVED, NULL, "nextn_predict_layers"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

// Scores of experts by sigmoid (2) or softmax, which is what files before V3 do not say.
static bool scores_by_sigmoid(const msgl_gguf_model *m)
{
    return msgl__gguf_int(m, "expert_gating_func", 1) == 2;
}

static void derive(msgl_gguf_model *m)
{
    const int64_t rotary = msgl__gguf_int(m, "rope.dimension_count", 0);
    const int64_t latent = msgl__gguf_int(m, "attention.key_length", 0); // of a head in old files
    const int64_t v = msgl__gguf_int(m, "attention.value_length", 0);
    const json_t *norms = msgl__gguf_field(m, "expert_weights_norm");
    const bool groups = msgl__gguf_int(m, "expert_group_count", 1) > 1;
    msgl__gguf_set(m, m->config, "qk_nope_head_dim",
                   json_integer(msgl__gguf_int(m, "attention.key_length_mla", latent) - rotary));
    msgl__gguf_set(m, m->config, "v_head_dim",
                   json_integer(msgl__gguf_int(m, "attention.value_length_mla", v)));
    msgl__gguf_set(m, m->config, "norm_topk_prob", json_boolean(json_is_true(norms)));
    if (strcmp(m->arch->hf, "DeepseekV2ForCausalLM") == 0) {
        msgl__gguf_set(m, m->config, "topk_method",
                       json_string(groups ? "group_limited_greedy" : "greedy"));
    }
    // The converter has multiplied by 0.1 (of mistral3, where it stands for the same, it has not).
    const double mscale = msgl__gguf_num(m, "rope.scaling.yarn_log_multiplier", 0) / 0.1;
    if (mscale == 0) return;
    msgl__gguf_set(m, m->rope, "mscale_all_dim", json_real(mscale));
    msgl__gguf_set(m, m->rope, "mscale", json_real(mscale));
}

static void derive_sparse(msgl_gguf_model *m)
{
    derive(m);
    msgl__gguf_set_int(m, "num_hidden_layers", msgl__gguf_layers(m));
}

// Which of GLM-5's layers have an index; where the file does not say, those that have its tensors.
static void derive_glm(msgl_gguf_model *m)
{
    const json_t *own = msgl__gguf_field(m, "attention.indexer.types");
    derive_sparse(m);
    if (!json_is_array(own)) {
        msgl__gguf_kinds(m, "indexer_types", "indexer.attn_k.weight", "full", "shared");
        return;
    }
    json_t *types = json_array();
    for (int64_t l = 0; l < msgl__gguf_layers(m); l++) {
        const json_t *v = json_array_get(own, (size_t)l);
        const bool full = json_is_true(v) || json_integer_value(v) != 0;
        m->bad |= json_array_append_new(types, json_string(full ? "full" : "shared"));
    }
    msgl__gguf_set(m, m->config, "indexer_types", types);
}

#define DEEPSEEK                                                                                   \
    .name = "deepseek2", .pairs = true, .names = NAMES, .fields = FIELDS, .derive = derive

const msgl_gguf_arch msgl__gguf_deepseek[] = {
    {DEEPSEEK, .hf = "DeepseekV3ForCausalLM", .takes = scores_by_sigmoid},
    {DEEPSEEK, .hf = "DeepseekV2ForCausalLM"},
    {.name = "deepseek32",
     .hf = "DeepseekV32ForCausalLM",
     .pairs = true,
     .names = NAMES,
     .fields = SPARSE_FIELDS,
     .derive = derive_sparse},
    {.name = "glm-dsa",
     .hf = "GlmMoeDsaForCausalLM",
     .pairs = true,
     .names = NAMES,
     .fields = SPARSE_FIELDS,
     .derive = derive_glm},
    {.name = NULL},
};
