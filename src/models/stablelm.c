// SPDX-License-Identifier: Apache-2.0
//
// StableLM: LayerNorms with biases, a quarter of each head rotates; q and K may have a LayerNorm a
// head, and attention and feed-forward block may stand beside each other.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->layer_norm = d->norm_bias = true;
    d->rms_eps = (float)msgl__json_num_or(r, "layer_norm_eps", 0, 1, 1e-5);
    d->qkv_bias = msgl__json_bool_or(r, "use_qkv_bias", false);
    if (msgl__json_bool_or(r, "qk_layernorm", false)) d->qk_norm = MSGL_QK_NORM_LAYER_APART;
    d->parallel = msgl__json_bool_or(r, "use_parallel_residual", false);
    if (d->parallel) d->names.ffn_norm = NULL;
}

const msgl_arch msgl__arch_stablelm = {
    .name = "StableLmForCausalLM",
    .family = &msgl__decoder_family,
    .rotary_factor = 0.25,
    .configure = configure,
};
