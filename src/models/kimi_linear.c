// SPDX-License-Identifier: Apache-2.0
//
// Kimi Linear: Kimi Delta Attention in three of four layers, latent attention without rotation in
// the others, and DeepSeek-V3's experts.
#include <math.h>

#include "core/attributes.h"
#include "models/archs.h"
#include "models/decoder_experts.h"

static void read_heads(msgl_json_reader *r, msgl_model_config *c, const char *heads,
                       const char *dim, const char *taps)
{
    msgl_kda_config *l = &c->decoder.kda;
    l->heads = msgl__json_int_or(r, heads, 1, MSGL_MAX_HEADS, 32);
    l->dim = msgl__json_int_or(r, dim, 1, MSGL_DELTA_MAX_DIM, 128);
    if (r->status == 0 && l->dim % 16 != 0) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, dim, msgl__json_get(r, dim),
                          "a multiple of 16 up to 256");
    }
    if (msgl__json_int_or(r, taps, 1, INT32_MAX, MSGL_DELTA_TAPS) != MSGL_DELTA_TAPS) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, taps, msgl__json_get(r, taps), "4");
    }
}

// Heads, and the layers that have them: those with latent attention count from 1 in the files.
static void read_linear(msgl_json_reader *r, msgl_model_config *c)
{
    static const msgl_layer_kind KINDS[] = {{"linear_attention", MSGL_LAYER_RECURRENT},
                                            {"full_attention", 0}};
    msgl_json_reader sub = msgl__json_section(r, "linear_attn_config");
    bool known = false;
    if (sub.obj != NULL) {
        read_heads(&sub, c, "num_heads", "head_dim", "short_conv_kernel_size");
        if (msgl__json_get(&sub, "full_attn_layers") != NULL) {
            msgl__decoder_set_layers(c, 0, MSGL_LAYER_RECURRENT);
            known =
                msgl__decoder_read_numbers(&sub, c, "full_attn_layers", 1, MSGL_LAYER_RECURRENT);
        }
        if (r->status == 0) r->status = sub.status;
    } else {
        read_heads(r, c, "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim");
    }
    if (r->status != 0 || known) return;
    if (msgl__decoder_read_kinds(r, c, "layer_types", KINDS, MSGL_COUNT(KINDS))) return;
    for (int32_t l = 0; l < c->num_layers; l++) {
        if (l == 0 || l % 4 != 0) c->decoder.layer_flags[l] |= MSGL_LAYER_RECURRENT;
    }
}

static void read_experts(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->num_experts = msgl__json_int_or(r, "num_experts", 1, MSGL_MAX_EXPERTS, 256);
    d->router = (msgl_router){
        .scoring = MSGL_SCORE_SIGMOID,
        .group_pairs = true,
        .top_k = msgl__json_int_or(r, "num_experts_per_token", 1, msgl__max_top_k(d), 8),
        .norm_topk = msgl__json_bool_or(r, "moe_renormalize", true),
        .scale = (float)msgl__json_num_or(r, "routed_scaling_factor", 1e-6, 1e6, 2.446)};
    d->moe_intermediate_size =
        msgl__json_int_or(r, "moe_intermediate_size", 1, MSGL_MAX_INTERMEDIATE, 1024);
    msgl__decoder_read_shared_experts(r, c, "num_shared_experts", 1, d->moe_intermediate_size);
    msgl__decoder_read_groups(r, c, "num_expert_group");
    if (msgl__decoder_read_mlp_layer_types(r, c)) return;
    msgl__decoder_set_layers(
        c, msgl__json_int_or(r, "first_k_dense_replace", 0, MSGL_MAX_LAYERS, 1), MSGL_LAYER_SPARSE);
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    msgl_decoder_names *n = &d->names;
    n->router = "block_sparse_moe.gate";
    n->correction = "block_sparse_moe.gate.e_score_correction_bias";
    n->experts = "block_sparse_moe.experts";
    n->gate = "w1";
    n->up = "w3";
    n->down = "w2";
    n->all_gate_up = "block_sparse_moe.experts.gate_up_proj";
    n->all_down = "block_sparse_moe.experts.down_proj";
    n->shared = "block_sparse_moe.shared_experts";
    n->shared_gate = NULL;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    c->ropes[0].type = MSGL_ROPE_NONE;
    msgl__decoder_read_latent(r, c);
    d->attn_scale = 1 / sqrtf((float)(d->latent.nope + d->latent.rotary));
    if (r->status == 0) read_linear(r, c);
    if (r->status == 0) read_experts(r, c);
}

// As published files spell them, and transformers.
static const msgl_json_alias ALIASES[] = {{"max_position_embeddings", "model_max_length"},
                                          {"num_expert_group", "n_group"},
                                          {"num_experts", "num_local_experts"},
                                          {"num_experts_per_token", "num_experts_per_tok"},
                                          {"num_shared_experts", "n_shared_experts"},
                                          {"moe_renormalize", "norm_topk_prob"},
                                          {NULL, NULL}};

const msgl_arch msgl__arch_kimi_linear = {
    .name = "KimiLinearForCausalLM",
    .family = &msgl__decoder_family,
    .head_dim_key = "qk_rope_head_dim",
    .aliases = ALIASES,
    // transformers 5.24 saves the one dense layer by this name; the published files by the first.
    .renamed = {{"model.layers.0.mlp.", "model.layers.0.block_sparse_moe."}},
    .fixed = {{"moe_layer_freq", 1}, {"mla_use_nope", 1}},
    .configure = configure,
};
