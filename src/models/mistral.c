// SPDX-License-Identifier: Apache-2.0
//
// Mistral: Llama without biases; every layer attends to a sliding window when there is one.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    // An explicit null turns the window off; a config without the field means 4,096.
    const bool absent = json_object_get(r->obj, "sliding_window") == NULL;
    d->sliding_window = msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, absent ? 4096 : 0);
    msgl__decoder_slide(c, 0);
}

const msgl_arch msgl__arch_mistral = {
    .name = "MistralForCausalLM",
    .family = &msgl__decoder_family,
    .configure = configure,
};
