// SPDX-License-Identifier: Apache-2.0
//
// Mixtral: Mistral with a mixture of experts in every layer, under names of its own.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.router = "block_sparse_moe.gate";
    d->names.all_router = "mlp.gate";
    d->names.experts = "block_sparse_moe.experts";
    d->names.gate = "w1";
    d->names.up = "w3";
    d->names.down = "w2";
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    d->sliding_window = msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, 0);
    msgl__decoder_slide(c, 0);
    msgl__decoder_read_experts(r, c, "intermediate_size");
    d->router.norm_topk = true;
}

const msgl_arch msgl__arch_mixtral = {
    .name = "MixtralForCausalLM",
    .family = &msgl__decoder_family,
    .default_theta = 1e6,
    .configure = configure,
};
