// SPDX-License-Identifier: Apache-2.0
//
// InternLM3: Llama with biases of q, K and V apart from all others.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->qkv_bias = msgl__json_bool_or(r, "qkv_bias", false);
    d->o_bias = d->mlp_bias = msgl__json_bool_or(r, "bias", false);
}

const msgl_arch msgl__arch_internlm3 = {
    .name = "InternLM3ForCausalLM",
    .family = &msgl__decoder_family,
    .configure = configure,
};
