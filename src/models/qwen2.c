// SPDX-License-Identifier: Apache-2.0
//
// Qwen2 and Qwen2.5: Llama with biases on q, k and v; some layers may have a sliding window.
#include "models/arch.h"
#include "models/archs.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    c->qkv_bias = true;
    msgl__config_read_windows(r, c, true);
}

const msgl_arch msgl__arch_qwen2 = {
    .name = "Qwen2ForCausalLM",
    .configure = configure,
    .declare = msgl__decoder_declare,
    .workspace = msgl__decoder_workspace,
    .forward = msgl__decoder_forward,
};
