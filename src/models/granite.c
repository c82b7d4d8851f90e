// SPDX-License-Identifier: Apache-2.0
//
// Granite: Llama with multipliers of the embedding, of what blocks add, of scores and of logits.
#include "models/archs.h"
#include "models/decoder.h"

static float multiplier(msgl_json_reader *r, const char *key)
{
    return (float)msgl__json_num_or(r, key, 1e-6, 1e6, 1);
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->mlp_bias = msgl__json_bool_or(r, "mlp_bias", false);
    d->embed_scale = multiplier(r, "embedding_multiplier");
    d->residual_scale = multiplier(r, "residual_multiplier");
    d->attn_scale = multiplier(r, "attention_multiplier"); // not of 1 / sqrt(head_dim): instead
    c->logit_scale = 1 / multiplier(r, "logits_scaling");
}

const msgl_arch msgl__arch_granite = {
    .name = "GraniteForCausalLM",
    .family = &msgl__decoder_family,
    .configure = configure,
};
