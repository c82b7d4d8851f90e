// SPDX-License-Identifier: Apache-2.0
//
// Seed-OSS: Llama with biases on q, k and v, and another field for the one behind attention.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->qkv_bias = msgl__json_bool_or(r, "attention_bias", true);
    d->o_bias = msgl__json_bool_or(r, "attention_out_bias", false);
    d->mlp_bias = msgl__json_bool_or(r, "mlp_bias", false);
}

const msgl_arch msgl__arch_seed_oss = {
    .name = "SeedOssForCausalLM",
    .family = &msgl__decoder_family,
    .default_head_dim = 128,
    .configure = configure,
};
