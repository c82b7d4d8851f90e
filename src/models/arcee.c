// SPDX-License-Identifier: Apache-2.0
//
// Arcee (AFM): Llama whose feed-forward blocks have no gate: relu squared of one product.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->mlp_bias = msgl__json_bool_or(r, "mlp_bias", false);
}

const msgl_arch msgl__arch_arcee = {
    .name = "ArceeForCausalLM",
    .family = &msgl__decoder_family,
    .plain_mlp = true,
    .default_activation = "relu2",
    .configure = configure,
};
