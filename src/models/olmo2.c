// SPDX-License-Identifier: Apache-2.0
//
// OLMo 2: no norm before a block, one of its result; q and K are normed whole.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.attn_norm = d->names.ffn_norm = NULL;
    d->names.attn_post_norm = "post_attention_layernorm";
    d->names.ffn_post_norm = "post_feedforward_layernorm";
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    d->qk_norm = MSGL_QK_NORM_ALL;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
}

const msgl_arch msgl__arch_olmo2 = {
    .name = "Olmo2ForCausalLM",
    .family = &msgl__decoder_family,
    .configure = configure,
};
