// SPDX-License-Identifier: Apache-2.0
//
// Phi-3 and Phi-4: Llama with q, k and v in one tensor, gate and up in another; heads may rotate in
// part, and by LongRoPE.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    c->decoder.names.qkv = "self_attn.qkv_proj";
    c->decoder.names.gate_up = "mlp.gate_up_proj";
    c->decoder.rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    c->decoder.sliding_window = msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, 0);
    msgl__decoder_slide(c, 0);
}

const msgl_arch msgl__arch_phi3 = {
    .name = "Phi3ForCausalLM",
    .family = &msgl__decoder_family,
    .rotary_factor = 1,
    .configure = configure,
};
