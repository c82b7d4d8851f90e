// SPDX-License-Identifier: Apache-2.0
//
// Llama 2 and 3.x: the plain decoder, with optional biases.
#include "models/arch.h"
#include "models/archs.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    c->qkv_bias = c->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    c->mlp_bias = msgl__json_bool_or(r, "mlp_bias", false);
}

const msgl_arch msgl__arch_llama = {
    .name = "LlamaForCausalLM",
    .configure = configure,
    .declare = msgl__decoder_declare,
    .workspace = msgl__decoder_workspace,
    .forward = msgl__decoder_forward,
};
