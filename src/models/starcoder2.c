// SPDX-License-Identifier: Apache-2.0
//
// StarCoder2: LayerNorms with biases, biases everywhere, feed-forward blocks without a gate, and a
// window in every layer.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.mlp_up = "c_fc";
    d->names.mlp_down = "c_proj";
    d->layer_norm = d->norm_bias = true;
    d->rms_eps = (float)msgl__json_num_or(r, "norm_epsilon", 0, 1, 1e-5);
    d->qkv_bias = d->o_bias = d->mlp_bias = msgl__json_bool_or(r, "use_bias", true);
    d->sliding_window = msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, 0);
    msgl__decoder_slide(c, 0);
}

const msgl_arch msgl__arch_starcoder2 = {
    .name = "Starcoder2ForCausalLM",
    .family = &msgl__decoder_family,
    .plain_mlp = true,
    .default_activation = "gelu_pytorch_tanh",
    .ties_by_default = true,
    .configure = configure,
};
