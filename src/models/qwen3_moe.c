// SPDX-License-Identifier: Apache-2.0
//
// Qwen3-MoE: Qwen3 with a mixture of experts in some or all layers.
#include "models/arch.h"
#include "models/archs.h"

// Layer l is sparse when it is not in mlp_only_layers and decoder_sparse_step divides l + 1.
static void choose_layers(msgl_json_reader *r, msgl_model_config *c)
{
    const int32_t step = msgl__json_int_or(r, "decoder_sparse_step", 1, INT32_MAX, 1);
    for (int32_t l = 0; l < c->num_layers; l++) {
        if ((l + 1) % step == 0) c->layer_flags[l] |= MSGL_LAYER_SPARSE;
    }
    const json_t *dense = msgl__json_get(r, "mlp_only_layers");
    if (dense != NULL && !json_is_array(dense)) {
        msgl__json_reject(r, MSGL_EFORMAT, "mlp_only_layers", dense, "a list of layer numbers");
        return;
    }
    for (size_t i = 0; i < json_array_size(dense); i++) {
        const json_t *v = json_array_get(dense, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0) {
            msgl__json_reject(r, MSGL_EFORMAT, "mlp_only_layers", v, "layer numbers");
            return;
        }
        if (json_integer_value(v) < c->num_layers) {
            c->layer_flags[json_integer_value(v)] &= (uint8_t)~MSGL_LAYER_SPARSE;
        }
    }
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    c->qk_norm = true;
    c->qkv_bias = c->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    msgl__config_read_windows(r, c, false);
    const char *experts =
        msgl__json_get(r, "num_local_experts") != NULL ? "num_local_experts" : "num_experts";
    c->num_experts = msgl__json_int(r, experts, 1, MSGL_MAX_EXPERTS);
    const int32_t most = c->num_experts < MSGL_MAX_TOP_K ? c->num_experts : MSGL_MAX_TOP_K;
    c->top_k = msgl__json_int(r, "num_experts_per_tok", 1, most);
    c->moe_intermediate_size = msgl__json_int(r, "moe_intermediate_size", 1, MSGL_MAX_INTERMEDIATE);
    c->norm_topk = msgl__json_bool_or(r, "norm_topk_prob", false);
    choose_layers(r, c);
}

const msgl_arch msgl__arch_qwen3_moe = {
    .name = "Qwen3MoeForCausalLM",
    .configure = configure,
    .declare = msgl__decoder_declare,
    .workspace = msgl__decoder_workspace,
    .forward = msgl__decoder_forward,
};
