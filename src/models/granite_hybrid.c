// SPDX-License-Identifier: Apache-2.0
//
// Granite 4: Granite's four multipliers, Mamba-2 in most layers and attention, mostly without
// rotation, in the others; behind both a feed-forward block, beside which there may be experts. And
// Bamba, whose attention rotates half of each head.
#include <string.h>

#include "core/attributes.h"
#include "models/archs.h"
#include "models/decoder.h"
#include "models/mamba_config.h"

static float multiplier(msgl_json_reader *r, const char *key)
{
    return (float)msgl__json_num_or(r, key, 1e-6, 1e6, 1);
}

static const msgl_mamba_keys KEYS = MSGL_MAMBA_KEYS;

// As hubs have them and as transformers 5 writes them, under either name.
static void read_layers(msgl_json_reader *r, msgl_model_config *c)
{
    static const msgl_layer_kind KINDS[] = {{"mamba", MSGL_LAYER_RECURRENT},
                                            {"linear_attention", MSGL_LAYER_RECURRENT},
                                            {"attention", 0},
                                            {"full_attention", 0}};
    if (msgl__decoder_read_kinds(r, c, "layer_types", KINDS, MSGL_COUNT(KINDS))) return;
    if (msgl__decoder_read_kinds(r, c, "layers_block_type", KINDS, MSGL_COUNT(KINDS))) return;
    msgl__decoder_set_layers(c, 0, MSGL_LAYER_RECURRENT);
    msgl__decoder_read_numbers(r, c, "attn_layer_indices", 0, MSGL_LAYER_RECURRENT);
}

// Of the stacked tensors: gates first.
static void name_granite(msgl_decoder_names *n)
{
    n->mlp = n->shared = "shared_mlp";
    n->gate_up = "shared_mlp.input_linear";
    n->mlp_down = "output_linear";
    n->router = "block_sparse_moe.router.layer";
    n->experts = n->shared_gate = NULL;
    n->all_gate_up = "block_sparse_moe.input_linear.weight";
    n->all_down = "block_sparse_moe.output_linear.weight";
}

static void configure_granite(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    name_granite(&d->names);
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->embed_scale = multiplier(r, "embedding_multiplier");
    d->residual_scale = multiplier(r, "residual_multiplier");
    d->attn_scale = multiplier(r, "attention_multiplier"); // not of 1 / sqrt(head_dim): instead
    c->logit_scale = 1 / multiplier(r, "logits_scaling");
    const char *position = msgl__json_str_or(r, "position_embedding_type", "nope");
    if (strcmp(position, "rope") != 0) c->ropes[0].type = MSGL_ROPE_NONE;
    const int32_t width =
        msgl__json_int_or(r, "shared_intermediate_size", 1, MSGL_MAX_INTERMEDIATE, 1024);
    msgl__mamba_read(r, c, &KEYS);
    if (r->status == 0) read_layers(r, c);
    if (r->status != 0) return;
    if (msgl__json_int_or(r, "num_local_experts", 0, MSGL_MAX_EXPERTS, 8) == 0) {
        d->intermediate_size = width;
        return;
    }
    d->shared_intermediate_size = width;
    msgl__decoder_read_experts(r, c, "intermediate_size");
    d->router.norm_topk = true; // the softmax of those that are chosen
}

static void configure_bamba(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.mlp = "feed_forward";
    d->names.norm = "final_layernorm";
    d->names.ffn_norm = "pre_ff_layernorm";
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->mlp_bias = msgl__json_bool_or(r, "mlp_bias", false);
    msgl__mamba_read(r, c, &KEYS);
    if (r->status == 0) read_layers(r, c);
}

const msgl_arch msgl__arch_granite_hybrid = {
    .name = "GraniteMoeHybridForCausalLM",
    .family = &msgl__decoder_family,
    .own_width = true,
    .configure = configure_granite,
};

const msgl_arch msgl__arch_bamba = {
    .name = "BambaForCausalLM",
    .family = &msgl__decoder_family,
    .rotary_factor = 0.5,
    .configure = configure_bamba,
};
