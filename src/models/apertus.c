// SPDX-License-Identifier: Apache-2.0
//
// Apertus: norms of q and K heads, and feed-forward blocks without a gate whose activation, xIELU,
// has parameters in every layer.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.attn_norm = "attention_layernorm";
    d->names.ffn_norm = "feedforward_layernorm";
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->qk_norm = MSGL_QK_NORM_HEAD;
    if (msgl__json_get(r, "rope_parameters") != NULL || msgl__json_get(r, "rope_scaling") != NULL) {
        return;
    }
    msgl_rope_config *rope = &c->ropes[0]; // what transformers 5.24 takes where a file is silent
    rope->type = MSGL_ROPE_LLAMA3;
    rope->factor = 8;
    rope->original_max = 8192;
    rope->low_freq_factor = 1;
    rope->high_freq_factor = 4;
}

const msgl_arch msgl__arch_apertus = {
    .name = "ApertusForCausalLM",
    .family = &msgl__decoder_family,
    .plain_mlp = true,
    .default_theta = 12e6,
    .default_activation = "xielu",
    .configure = configure,
};
