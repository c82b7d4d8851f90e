// SPDX-License-Identifier: Apache-2.0
//
// Qwen3-Next and the language models of Qwen3.5: linear attention by the gated delta rule in three
// of four layers, in the others attention whose results are gated head by head, norms that multiply
// by 1 + weight. Qwen3-Next has experts, one of which every token has; Qwen3.5 has them or not.
#include <stdio.h>

#include "models/archs.h"
#include "models/decoder.h"

// A dimension of the heads of linear attention, as the kernels take it.
static int32_t delta_dim(msgl_json_reader *r, const char *key)
{
    const int32_t n = msgl__json_int_or(r, key, 1, MSGL_DELTA_MAX_DIM, 128);
    if (n % 16 != 0) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key),
                          "a multiple of 16 up to 256");
    }
    return n;
}

void msgl__qwen_read_delta(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_delta_config *l = &c->decoder.delta;
    const char *const v_heads = "linear_num_value_heads", *const taps = "linear_conv_kernel_dim";
    l->k_heads = msgl__json_int_or(r, "linear_num_key_heads", 1, MSGL_MAX_HEADS, 16);
    l->v_heads = msgl__json_int_or(r, v_heads, 1, MSGL_MAX_HEADS, 32);
    l->k_dim = delta_dim(r, "linear_key_head_dim");
    l->v_dim = delta_dim(r, "linear_value_head_dim");
    if (r->status != 0) return;
    if (l->v_heads % l->k_heads != 0) {
        char allowed[64];
        snprintf(allowed, sizeof allowed, "a multiple of linear_num_key_heads %d", l->k_heads);
        msgl__json_reject(r, MSGL_EFORMAT, v_heads, msgl__json_get(r, v_heads), allowed);
    }
    if (msgl__json_int_or(r, taps, 1, INT32_MAX, MSGL_DELTA_TAPS) != MSGL_DELTA_TAPS) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, taps, msgl__json_get(r, taps), "4");
    }
    if (c->decoder.activation != MSGL_SILU) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "hidden_act", msgl__json_get(r, "hidden_act"),
                          "silu, for linear attention");
    }
}

// Of every full_attention_interval layers the last one is no linear attention.
static void read_layers(msgl_json_reader *r, msgl_model_config *c)
{
    const int32_t every = msgl__json_int_or(r, "full_attention_interval", 1, INT32_MAX, 4);
    if (msgl__decoder_read_layer_types(r, c)) return;
    msgl__decoder_set_all_but(c, every, MSGL_LAYER_RECURRENT);
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->norm_plus_one = d->gated_attn = true;
    d->qk_norm = MSGL_QK_NORM_HEAD;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    msgl__qwen_read_delta(r, c);
    if (r->status == 0) read_layers(r, c);
}

// Qwen3.5's configuration has no width for a layer without experts.
static void refuse_dense_layers(msgl_json_reader *r, const msgl_model_config *c)
{
    const char *const key = msgl__json_int_or(r, "decoder_sparse_step", 1, INT32_MAX, 1) > 1
                                ? "decoder_sparse_step"
                                : "mlp_only_layers";
    for (int32_t l = 0; l < c->num_layers && r->status == 0; l++) {
        if ((c->decoder.layer_flags[l] & MSGL_LAYER_SPARSE) != 0) continue;
        msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key),
                          "none, as all layers have experts");
    }
}

void msgl__qwen_read_experts(msgl_json_reader *r, msgl_model_config *c)
{
    msgl__decoder_read_experts(r, c, "moe_intermediate_size");
    if (c->arch->only_experts) refuse_dense_layers(r, c);
    c->decoder.router.norm_topk = msgl__json_bool_or(r, "norm_topk_prob", true);
    c->decoder.shared_intermediate_size =
        msgl__json_int(r, "shared_expert_intermediate_size", 1, MSGL_MAX_INTERMEDIATE);
}

static void configure_next(msgl_json_reader *r, msgl_model_config *c)
{
    configure(r, c);
    c->decoder.delta.by_k_head = true;
    if (r->status == 0) msgl__qwen_read_experts(r, c);
}

static void configure_5_moe(msgl_json_reader *r, msgl_model_config *c)
{
    configure(r, c);
    if (r->status == 0) msgl__qwen_read_experts(r, c);
}

// The language half of a model that also sees; its other tensors are left.
static void name_conditional(msgl_decoder_names *n)
{
    n->prefix = "model.language_model.";
}

static void configure_5_conditional(msgl_json_reader *r, msgl_model_config *c)
{
    configure(r, c);
    name_conditional(&c->decoder.names);
}

static void configure_5_moe_conditional(msgl_json_reader *r, msgl_model_config *c)
{
    configure_5_moe(r, c);
    name_conditional(&c->decoder.names);
}

#define QWEN                                                                                       \
    .family = &msgl__decoder_family, .default_head_dim = 256, .rotary_factor = 0.25,               \
    .ignored = {"mtp.", "model.visual."}, .ignores_layers_behind = true, .mtp = msgl__mtp_of_qwen

const msgl_arch msgl__arch_qwen3_next = {
    QWEN,
    .name = "Qwen3NextForCausalLM",
    .configure = configure_next,
};

const msgl_arch msgl__arch_qwen3_5 = {
    QWEN,
    .name = "Qwen3_5ForCausalLM",
    .configure = configure,
};

const msgl_arch msgl__arch_qwen3_5_moe = {
    QWEN,
    .name = "Qwen3_5MoeForCausalLM",
    .only_experts = true,
    .configure = configure_5_moe,
};

const msgl_arch msgl__arch_qwen3_5_conditional = {
    QWEN,
    .name = "Qwen3_5ForConditionalGeneration",
    .text_section = "text_config",
    .text_defaults = "{\"vocab_size\": 248320, \"hidden_size\": 4096, \"intermediate_size\": 12288,"
                     " \"num_hidden_layers\": 32, \"num_attention_heads\": 16,"
                     " \"num_key_value_heads\": 4, \"max_position_embeddings\": 32768}",
    .configure = configure_5_conditional,
};

const msgl_arch msgl__arch_qwen3_5_moe_conditional = {
    QWEN,
    .name = "Qwen3_5MoeForConditionalGeneration",
    .only_experts = true,
    .text_section = "text_config",
    .text_defaults = "{\"vocab_size\": 248320, \"hidden_size\": 2048, \"num_hidden_layers\": 40,"
                     " \"num_attention_heads\": 16, \"num_key_value_heads\": 2,"
                     " \"max_position_embeddings\": 32768, \"moe_intermediate_size\": 512,"
                     " \"shared_expert_intermediate_size\": 512, \"num_experts_per_tok\": 8,"
                     " \"num_experts\": 256}",
    .configure = configure_5_moe_conditional,
};
