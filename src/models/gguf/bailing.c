// SPDX-License-Identifier: Apache-2.0
//
// Ling and Ring (Bailing). Of the first generation q, k and v are apart, the rows of q and k
// permuted as Llama's, and the head's product has its norm in it; of the second they are in one
// tensor, and the last blocks predict further tokens, and are left.
#include <stdio.h>

#include "models/gguf/arch.h"

#define BAILING                                                                                    \
    {"attn_output.", "attention.dense.", MSGL_GGUF_AS_IT_IS},                                      \
        {"ffn_gate_shexp.", "mlp.shared_experts.gate_proj.", MSGL_GGUF_AS_IT_IS},                  \
        {"ffn_up_shexp.", "mlp.shared_experts.up_proj.", MSGL_GGUF_AS_IT_IS},                      \
    {                                                                                              \
        "ffn_down_shexp.", "mlp.shared_experts.down_proj.", MSGL_GGUF_AS_IT_IS                     \
    }

static const msgl_gguf_name NAMES[] = {
    BAILING,
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_name NAMES_2[] = {
    BAILING,
    {"attn_qkv.", "attention.query_key_value.", MSGL_GGUF_AS_IT_IS},
    {"attn_q_norm.", "attention.query_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"attn_k_norm.", "attention.key_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"exp_probs_b.bias", "mlp.gate.expert_bias", MSGL_GGUF_AS_IT_IS},
    {"nextn.", "nextn.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

#define FIELDS_OF_BOTH                                                                             \
    MSGL_GGUF_EXPERTS("num_experts", "moe_intermediate_size"),                                     \
        {MSGL_GGUF_CONFIG, "num_shared_experts", "expert_shared_count"},                           \
        {MSGL_GGUF_CONFIG, "first_k_dense_replace", "leading_dense_block_count"},                  \
    {                                                                                              \
        MSGL_GGUF_CONFIG, "norm_topk_prob", "expert_weights_norm"                                  \
    }

static const msgl_gguf_field FIELDS[] = {
    FIELDS_OF_BOTH,
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static const msgl_gguf_field FIELDS_2[] = {
    FIELDS_OF_BOTH,
    {MSGL_GGUF_CONFIG, "routed_scaling_factor", "expert_weights_scale"},
    {MSGL_GGUF_CONFIG, "n_group", "expert_group_count"},
    {MSGL_GGUF_CONFIG, "topk_group", "expert_group_used_count"},
    {MSGL_GGUF_DERIVED, NULL, "rope.dimension_count"},
    {MSGL_GGUF_DERIVED, NULL, "nextn_predict_layers"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static void derive(msgl_gguf_model *m)
{
    msgl__gguf_set_bool(m, "use_qkv_bias",
                        msgl__gguf_some_block_has(m, "attn_q.bias") ||
                            msgl__gguf_some_block_has(m, "attn_qkv.bias"));
    msgl__gguf_set_bool(m, "use_bias", msgl__gguf_some_block_has(m, "attn_output.bias"));
}

// expert_shared_feed_forward_length is of one shared expert or of all of them, as a folder's config
// had it; the tensors have that of all.
static void set_shared_width(msgl_gguf_model *m)
{
    const int64_t experts = msgl__gguf_int(m, "expert_shared_count", 0);
    char name[64];
    snprintf(name, sizeof name, "blk.%lld.ffn_up_shexp.weight",
             (long long)msgl__gguf_layers(m) - 1);
    const msgl_gguf_tensor *t = msgl__gguf_tensor_named(m->g, name);
    if (t == NULL || t->ndim != 2 || experts <= 0) return;
    msgl__gguf_set_int(m, "moe_shared_expert_intermediate_size", t->dims[1] / experts);
}

static void derive_2(msgl_gguf_model *m)
{
    derive(m);
    set_shared_width(m);
    msgl__gguf_partial_rotation(m);
    msgl__gguf_set_int(m, "num_hidden_layers", msgl__gguf_layers(m));
    msgl__gguf_set_bool(m, "use_qk_norm", msgl__gguf_some_block_has(m, "attn_q_norm.weight"));
}

const msgl_gguf_arch msgl__gguf_bailing[] = {
    {.name = "bailingmoe",
     .hf = "BailingMoeForCausalLM",
     .pairs = true,
     .names = NAMES,
     .fields = FIELDS,
     .derive = derive},
    {.name = "bailingmoe2",
     .hf = "BailingMoeV2ForCausalLM",
     .names = NAMES_2,
     .fields = FIELDS_2,
     .derive = derive_2},
    {.name = NULL},
};
