// SPDX-License-Identifier: Apache-2.0
//
// LFM2: short convolutions between gates in most layers, attention with norms of q and K in the
// others. LFM2-MoE has experts behind the first layers, chosen by sigmoids and a bias.
#include <stdio.h>

#include "core/attributes.h"
#include "models/archs.h"
#include "models/decoder.h"

static void name_tensors(msgl_decoder_names *n)
{
    n->norm = "embedding_norm";
    n->attn_norm = "operator_norm";
    n->ffn_norm = "ffn_norm";
    n->out = "self_attn.out_proj";
    n->q_norm = "self_attn.q_layernorm";
    n->k_norm = "self_attn.k_layernorm";
    n->mlp = "feed_forward";
    n->gate = n->mlp_gate = "w1";
    n->up = n->mlp_up = "w3";
    n->down = n->mlp_down = "w2";
    n->router = "feed_forward.gate";
    n->experts = "feed_forward.experts";
    n->all_gate_up = "feed_forward.experts.gate_up_proj";
    n->all_down = "feed_forward.experts.down_proj";
}

// layer_types, or the numbers of the layers with attention; without either all have it.
static void read_layers(msgl_json_reader *r, msgl_model_config *c)
{
    static const msgl_layer_kind KINDS[] = {{"conv", MSGL_LAYER_RECURRENT}, {"full_attention", 0}};
    if (msgl__decoder_read_kinds(r, c, "layer_types", KINDS, MSGL_COUNT(KINDS))) return;
    if (msgl__json_get(r, "full_attn_idxs") == NULL) return;
    msgl__decoder_set_layers(c, 0, MSGL_LAYER_RECURRENT);
    msgl__decoder_read_numbers(r, c, "full_attn_idxs", 0, MSGL_LAYER_RECURRENT);
}

static void configure_layers(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    name_tensors(&d->names);
    d->rms_eps = (float)msgl__json_num_or(r, "norm_eps", 0, 1, 1e-5);
    d->qk_norm = MSGL_QK_NORM_HEAD;
    d->conv =
        (msgl_conv_config){.channels = c->hidden_size,
                           .taps = msgl__json_int_or(r, "conv_L_cache", 2, MSGL_CONV_MAX_TAPS, 3),
                           .bias = msgl__json_bool_or(r, "conv_bias", false)};
    c->tie_embeddings = msgl__json_bool_or(r, "tie_embedding", c->tie_embeddings);
    if (c->hidden_size % 16 != 0) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "hidden_size", msgl__json_get(r, "hidden_size"),
                          "a multiple of 16");
    }
    if (r->status == 0) read_layers(r, c);
}

// The width of the feed-forward block is made of the field, unless it is to be taken as it is.
static void adjust_width(msgl_json_reader *r, msgl_decoder_config *d)
{
    const char *const key =
        msgl__json_get(r, "block_ff_dim") != NULL ? "block_ff_dim" : "intermediate_size";
    d->intermediate_size = msgl__json_int(r, key, 1, MSGL_MAX_INTERMEDIATE);
    const double times = msgl__json_num_or(r, "block_ffn_dim_multiplier", 1e-3, 1e3, 1);
    const int32_t unit = msgl__json_int_or(r, "block_multiple_of", 1, 1 << 16, 256);
    if (r->status != 0 || !msgl__json_bool_or(r, "block_auto_adjust_ff_dim", true)) return;
    const double width = (double)(int32_t)(times * (double)(2 * d->intermediate_size / 3));
    if (width < 1 || width > MSGL_MAX_INTERMEDIATE) {
        msgl__json_reject(r, MSGL_EFORMAT, "block_ffn_dim_multiplier",
                          msgl__json_get(r, "block_ffn_dim_multiplier"), "a width of 1 to 1048576");
        return;
    }
    d->intermediate_size = msgl__ceil_div((int32_t)width, unit) * unit;
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    configure_layers(r, c);
    adjust_width(r, &c->decoder);
}

static void configure_moe(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    configure_layers(r, c);
    msgl__decoder_read_experts(r, c, "moe_intermediate_size");
    if (r->status != 0) return;
    d->router.scoring = MSGL_SCORE_SIGMOID;
    d->router.norm_topk = msgl__json_bool_or(r, "norm_topk_prob", true);
    d->router.scale = (float)msgl__json_num_or(r, "routed_scaling_factor", 1e-6, 1e6, 1);
    if (msgl__json_bool_or(r, "use_expert_bias", true)) {
        d->names.correction = "feed_forward.expert_bias";
    }
    const int32_t dense = msgl__json_int_or(r, "num_dense_layers", 0, c->num_layers, 2);
    for (int32_t l = 0; l < dense; l++) d->layer_flags[l] &= (uint16_t)~MSGL_LAYER_SPARSE;
}

const msgl_arch msgl__arch_lfm2 = {
    .name = "Lfm2ForCausalLM",
    .family = &msgl__decoder_family,
    .own_width = true,
    .default_theta = 1e6,
    .ties_by_default = true,
    .configure = configure,
};

const msgl_arch msgl__arch_lfm2_moe = {
    .name = "Lfm2MoeForCausalLM",
    .family = &msgl__decoder_family,
    .default_theta = 1e6,
    .ties_by_default = true,
    .configure = configure_moe,
};
