// SPDX-License-Identifier: Apache-2.0
//
// Qwen3: q and k are normed per head before the rotation; head_dim is independent of hidden_size.
// Qwen3-VL's language half is one, beside eyes.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->qk_norm = MSGL_QK_NORM_HEAD;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    msgl__decoder_read_windows(r, c);
}

const msgl_arch msgl__arch_qwen3 = {
    .name = "Qwen3ForCausalLM",
    .family = &msgl__decoder_family,
    .default_head_dim = 128,
    .configure = configure,
};

// Positions of text are the same in all three sections of mrope.
static void configure_vl(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.prefix = "model.language_model.";
    d->qk_norm = MSGL_QK_NORM_HEAD;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
}

const msgl_arch msgl__arch_qwen3_vl = {
    .name = "Qwen3VLForConditionalGeneration",
    .family = &msgl__decoder_family,
    .default_head_dim = 128,
    .default_theta = 5e5,
    .text_section = "text_config",
    .text_defaults = "{\"vocab_size\": 151936, \"hidden_size\": 4096, \"intermediate_size\": 22016,"
                     " \"num_hidden_layers\": 32, \"num_attention_heads\": 32,"
                     " \"num_key_value_heads\": 32, \"max_position_embeddings\": 128000}",
    .ignored = {"model.visual."},
    .configure = configure_vl,
};
