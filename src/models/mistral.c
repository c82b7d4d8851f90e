// SPDX-License-Identifier: Apache-2.0
//
// Mistral: Llama without biases; every layer attends to a sliding window when there is one.
#include "models/arch.h"
#include "models/archs.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    // An explicit null turns the window off; a config without the field means 4,096.
    const bool absent = json_object_get(r->obj, "sliding_window") == NULL;
    c->sliding_window = msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, absent ? 4096 : 0);
    for (int32_t l = 0; l < c->num_layers && c->sliding_window > 0; l++) {
        c->layer_flags[l] |= MSGL_LAYER_SLIDING;
    }
}

const msgl_arch msgl__arch_mistral = {
    .name = "MistralForCausalLM",
    .configure = configure,
    .declare = msgl__decoder_declare,
    .workspace = msgl__decoder_workspace,
    .forward = msgl__decoder_forward,
};
