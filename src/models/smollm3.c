// SPDX-License-Identifier: Apache-2.0
//
// SmolLM3: Llama in which every fourth layer, or those of a list, has no positions.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->mlp_bias = msgl__json_bool_or(r, "mlp_bias", false);
    msgl__decoder_read_no_rope(r, c);
    if (!msgl__json_bool_or(r, "use_sliding_window", false)) return;
    d->sliding_window = msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, 0);
    if (d->sliding_window == 0 || msgl__decoder_read_layer_types(r, c)) return;
    for (int32_t l = 0; l < c->num_layers; l++) {
        if ((d->layer_flags[l] & MSGL_LAYER_SECOND_ROPE) != 0) {
            d->layer_flags[l] |= MSGL_LAYER_SLIDING;
        }
    }
}

const msgl_arch msgl__arch_smollm3 = {
    .name = "SmolLM3ForCausalLM",
    .family = &msgl__decoder_family,
    .default_theta = 2e6,
    .ties_by_default = true,
    .configure = configure,
};
