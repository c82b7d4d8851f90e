// SPDX-License-Identifier: Apache-2.0
//
// MiniMax-M2: q and K are normed whole, a part of each head rotates, and every layer has experts
// chosen by corrected sigmoids, in Mixtral's names.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.router = "block_sparse_moe.gate";
    d->names.all_router = "mlp.gate";
    d->names.correction = "block_sparse_moe.e_score_correction_bias";
    d->names.all_correction = "mlp.e_score_correction_bias";
    d->names.experts = "block_sparse_moe.experts";
    d->names.gate = "w1";
    d->names.up = "w3";
    d->names.down = "w2";
    d->qk_norm = MSGL_QK_NORM_ALL;
    msgl__decoder_read_rotary_dim(r, c);
    msgl__decoder_read_experts(r, c, "intermediate_size");
    d->router.scoring = MSGL_SCORE_SIGMOID;
    d->router.norm_topk = true;
}

const msgl_arch msgl__arch_minimax_m2 = {
    .name = "MiniMaxM2ForCausalLM",
    .family = &msgl__decoder_family,
    .default_head_dim = 128,
    .default_theta = 5e6,
    .rotary_factor = 1,
    .only_experts = true,
    .ignores_layers_behind = true,
    // Fields of hubs, beside which transformers knows no other form.
    .fixed = {{"use_qk_norm", 1}, {"use_routing_bias", 1}, {"shared_intermediate_size", 0}},
    .configure = configure,
};
