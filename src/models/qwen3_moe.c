// SPDX-License-Identifier: Apache-2.0
//
// Qwen3-MoE: Qwen3 with a mixture of experts in some or all layers. Qwen3-VL-MoE's language half is
// one, beside eyes.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->qk_norm = MSGL_QK_NORM_HEAD;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    if (msgl__json_bool_or(r, "use_sliding_window", false)) {
        d->sliding_window = msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, 0);
        msgl__decoder_slide(c, 0);
    }
    msgl__decoder_read_experts(r, c, "moe_intermediate_size");
}

const msgl_arch msgl__arch_qwen3_moe = {
    .name = "Qwen3MoeForCausalLM",
    .family = &msgl__decoder_family,
    .configure = configure,
};

// Experts are stacked, columns first.
static void configure_vl(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.prefix = "model.language_model.";
    d->names.all_by_columns = true;
    d->qk_norm = MSGL_QK_NORM_HEAD;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    msgl__decoder_read_experts(r, c, "moe_intermediate_size");
    d->router.norm_topk = true;
}

const msgl_arch msgl__arch_qwen3_vl_moe = {
    .name = "Qwen3VLMoeForConditionalGeneration",
    .family = &msgl__decoder_family,
    .default_theta = 5e5,
    .text_section = "text_config",
    .text_defaults = "{\"vocab_size\": 151936, \"hidden_size\": 2048, \"intermediate_size\": 5632,"
                     " \"num_hidden_layers\": 24, \"num_attention_heads\": 16,"
                     " \"num_key_value_heads\": 16, \"max_position_embeddings\": 128000,"
                     " \"moe_intermediate_size\": 1408, \"num_experts_per_tok\": 4,"
                     " \"num_experts\": 60}",
    .ignored = {"model.visual."},
    .configure = configure_vl,
};
