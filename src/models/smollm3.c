// SPDX-License-Identifier: Apache-2.0
//
// SmolLM3: Llama in which every fourth layer, or those of a list, has no positions.
#include "models/archs.h"
#include "models/decoder.h"

// 1: the layer rotates.
static void read_no_rope_layers(msgl_json_reader *r, msgl_model_config *c, const json_t *list)
{
    if (!json_is_array(list) || json_array_size(list) != (size_t)c->num_layers) {
        msgl__json_reject(r, MSGL_EFORMAT, "no_rope_layers", list, "a list of num_hidden_layers");
        return;
    }
    for (int32_t l = 0; l < c->num_layers; l++) {
        const json_t *v = json_array_get(list, (size_t)l);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1) {
            msgl__json_reject(r, MSGL_EFORMAT, "no_rope_layers", v, "0 or 1 for every layer");
            return;
        }
        if (json_integer_value(v) == 0) c->decoder.layer_flags[l] |= MSGL_LAYER_SECOND_ROPE;
    }
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->mlp_bias = msgl__json_bool_or(r, "mlp_bias", false);
    const json_t *list = msgl__json_get(r, "no_rope_layers");
    const int32_t every = msgl__json_int_or(r, "no_rope_layer_interval", 1, INT32_MAX, 4);
    if (list != NULL) {
        read_no_rope_layers(r, c, list);
    } else {
        for (int32_t l = every - 1; l < c->num_layers; l += every) {
            d->layer_flags[l] |= MSGL_LAYER_SECOND_ROPE;
        }
    }
    c->ropes[1] = (msgl_rope_config){.type = MSGL_ROPE_NONE, .dim = c->ropes[0].dim};
    c->num_ropes = 2;
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
