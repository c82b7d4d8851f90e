// SPDX-License-Identifier: Apache-2.0
//
// Llama 2 and 3.x: the plain decoder, with optional biases.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->mlp_bias = msgl__json_bool_or(r, "mlp_bias", false);
}

const msgl_arch msgl__arch_llama = {
    .name = "LlamaForCausalLM",
    .family = &msgl__decoder_family,
    .configure = configure,
};
