// SPDX-License-Identifier: Apache-2.0
//
// Qwen2 and Qwen3, with and without experts. Windows are not in the files, nor whether the weights
// of a token's experts are divided by their sum: Qwen3's are.
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
    {.name = NULL},
};
