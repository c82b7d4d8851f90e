// SPDX-License-Identifier: Apache-2.0
//
// Qwen2 and Qwen2.5: Llama with biases on q, k and v; some layers may have a sliding window.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->qkv_bias = true;
    msgl__decoder_read_windows(r, c);
}

const msgl_arch msgl__arch_qwen2 = {
    .name = "Qwen2ForCausalLM",
    .family = &msgl__decoder_family,
    .configure = configure,
};
