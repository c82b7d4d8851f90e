// SPDX-License-Identifier: Apache-2.0
//
// Qwen3-MoE: Qwen3 with a mixture of experts in some or all layers.
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
