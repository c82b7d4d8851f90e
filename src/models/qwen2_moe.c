// SPDX-License-Identifier: Apache-2.0
//
// Qwen2-MoE: Qwen2 with a mixture of experts, and one expert that all tokens have, in some or all
// layers.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->qkv_bias = msgl__json_bool_or(r, "qkv_bias", true);
    msgl__decoder_read_experts(r, c, "moe_intermediate_size");
    d->shared_intermediate_size =
        msgl__json_int(r, "shared_expert_intermediate_size", 1, MSGL_MAX_INTERMEDIATE);
    if (!msgl__json_bool_or(r, "use_sliding_window", false)) return;
    d->sliding_window = msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, 4096);
    if (msgl__decoder_read_layer_types(r, c)) return;
    // Here every other one of the first max_window_layers.
    const int32_t end = msgl__json_int_or(r, "max_window_layers", 0, INT32_MAX, 28);
    for (int32_t l = 0; l < c->num_layers && l < end; l += 2) {
        d->layer_flags[l] |= MSGL_LAYER_SLIDING;
    }
}

const msgl_arch msgl__arch_qwen2_moe = {
    .name = "Qwen2MoeForCausalLM",
    .family = &msgl__decoder_family,
    .configure = configure,
};
