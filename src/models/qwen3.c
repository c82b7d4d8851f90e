// SPDX-License-Identifier: Apache-2.0
//
// Qwen3: q and k are normed per head before the rotation; head_dim is independent of hidden_size.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->qk_norm = MSGL_QK_NORM_HEAD;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    msgl__decoder_read_windows(r, c);
}

const msgl_arch msgl__arch_qwen3 = {
    .name = "Qwen3ForCausalLM",
    .family = &msgl__decoder_family,
    .default_head_dim = 128,
    .configure = configure,
};
