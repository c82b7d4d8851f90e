// SPDX-License-Identifier: Apache-2.0
//
// ERNIE 4.5: Llama whose rotating pairs are neighbours; with experts, of which a token's are chosen
// by corrected probabilities, and some that every token has.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    d->qkv_bias = d->o_bias = d->mlp_bias = msgl__json_bool_or(r, "use_bias", false);
    d->interleaved = true;
}

// Every moe_layer_interval-th layer from moe_layer_start_index to moe_layer_end_index, where -1 is
// the last one.
static void read_sparse_layers(msgl_json_reader *r, msgl_model_config *c)
{
    const int32_t every = msgl__json_int_or(r, "moe_layer_interval", 1, INT32_MAX, 1);
    const int32_t first = msgl__json_int_or(r, "moe_layer_start_index", 0, INT32_MAX, 1);
    const int32_t given = msgl__json_int_or(r, "moe_layer_end_index", -1, INT32_MAX, -1);
    const int32_t last = given < 0 ? c->num_layers - 1 : given;
    for (int32_t l = 0; l < c->num_layers; l++) {
        if ((l + 1) % every == 0 && l >= first && l <= last) {
            c->decoder.layer_flags[l] |= MSGL_LAYER_SPARSE;
        }
    }
}

static void configure_moe(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    configure(r, c);
    d->names.correction = "mlp.moe_statics.e_score_correction_bias";
    d->names.all_correction = "mlp.gate.moe_statics.e_score_correction_bias";
    d->names.correction_row = true;
    d->names.shared = "mlp.shared_experts";
    d->names.shared_gate = NULL;
    d->num_experts = msgl__json_int_or(r, "moe_num_experts", 1, MSGL_MAX_EXPERTS, 64);
    d->router = (msgl_router){
        .top_k = msgl__json_int_or(r, "moe_k", 1, msgl__max_top_k(d), 6),
        .norm_topk = true,
        .least_sum = (float)msgl__json_num_or(r, "moe_norm_min", 0, 1, 1e-12),
        .scale = 1,
    };
    d->moe_intermediate_size =
        msgl__json_int_or(r, "moe_intermediate_size", 1, MSGL_MAX_INTERMEDIATE, 1536);
    msgl__decoder_read_shared_experts(r, c, "moe_num_shared_experts", 2, d->moe_intermediate_size);
    if (r->status == 0) read_sparse_layers(r, c);
}

#define ERNIE                                                                                      \
    .family = &msgl__decoder_family, .default_theta = 5e5, .ties_by_default = true,                \
    .ignored = {"model.mtp_"}

const msgl_arch msgl__arch_ernie4_5 = {
    ERNIE,
    .name = "Ernie4_5ForCausalLM",
    .default_head_dim = 128,
    .configure = configure,
};

const msgl_arch msgl__arch_ernie4_5_moe = {
    ERNIE,
    .name = "Ernie4_5_MoeForCausalLM",
    .fixed = {{"use_bias", 0}}, // with which transformers' head has one too
    .configure = configure_moe,
};
