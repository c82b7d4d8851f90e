// SPDX-License-Identifier: Apache-2.0
//
// MiniMax-M2: q and K are normed whole, a part of each head rotates, and every layer has experts
// chosen by corrected sigmoids, in Mixtral's names.
#include "models/archs.h"
#include "models/decoder.h"

// Hubs say how many dimensions of a head rotate where others say which share of them.
static void read_rotary_dim(msgl_json_reader *r, msgl_model_config *c)
{
    const int32_t dim = c->ropes[0].dim;
    if (dim < c->head_dim) return; // a share is given, which counts
    c->ropes[0].dim = msgl__json_int_or(r, "rotary_dim", 2, c->head_dim, dim);
    if (r->status == 0 && c->ropes[0].dim % 2 != 0) {
        msgl__json_reject(r, MSGL_EFORMAT, "rotary_dim", msgl__json_get(r, "rotary_dim"),
                          "an even number");
    }
}

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
    read_rotary_dim(r, c);
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
