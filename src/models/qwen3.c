// SPDX-License-Identifier: Apache-2.0
//
// Qwen3: q and k are normed per head before the rotation; head_dim is independent of hidden_size.
#include "models/arch.h"
#include "models/archs.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    c->qk_norm = true;
    c->qkv_bias = c->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    msgl__config_read_windows(r, c, true);
}

const msgl_arch msgl__arch_qwen3 = {
    .name = "Qwen3ForCausalLM",
    .default_head_dim = 128,
    .configure = configure,
    .declare = msgl__decoder_declare,
    .workspace = msgl__decoder_workspace,
    .forward = msgl__decoder_forward,
};
