// SPDX-License-Identifier: Apache-2.0
//
// dots.llm1: Qwen3's attention, with windows in some layers, and DeepSeek-V3's experts.
#include "models/archs.h"
#include "models/decoder_experts.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->qk_norm = MSGL_QK_NORM_HEAD;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    msgl__decoder_read_routed_experts(r, c);
    msgl__decoder_read_sigmoids(r, c, false);
    msgl__decoder_read_dense_layers(r, c, 0);
    msgl__decoder_read_window(r, c, 4096);
    if (d->sliding_window == 0 || msgl__decoder_read_layer_types(r, c)) return;
    msgl__decoder_slide(c, msgl__json_int_or(r, "max_window_layers", 0, INT32_MAX, 62));
}

const msgl_arch msgl__arch_dots1 = {
    .name = "Dots1ForCausalLM",
    .family = &msgl__decoder_family,
    .configure = configure,
};
