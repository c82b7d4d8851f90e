// SPDX-License-Identifier: Apache-2.0
//
// Qwen4-Exp: Qwen3.5's linear attention and experts on several gated residual streams (hc_...,
// layers/gated_streams.h), embeddings of n-grams in some layers (ple_..., layers/ngrams.h), and in
// layers with attention an index over means of keys (indexer_..., layers/mean_index.h). By itself
// or as the language half of a model that also sees.
#include <string.h>

#include "core/attributes.h"
#include "models/archs.h"
#include "models/decoder.h"

enum { MAX_RANK = 1 << 16 };

// output_gate_type, which is hidden_act where it is missing.
static void read_gate(msgl_json_reader *r, msgl_model_config *c)
{
    const char *const key = "output_gate_type", *const name = msgl__json_str_or(r, key, "silu");
    c->decoder.delta.sigmoid_gate = strcmp(name, "sigmoid") == 0;
    if (!c->decoder.delta.sigmoid_gate && strcmp(name, "silu") != 0) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key), "silu, sigmoid");
    }
}

// Hubs' files call layers full_attention that transformers calls indexed_attention.
static void read_layers(msgl_json_reader *r, msgl_model_config *c)
{
    static const msgl_layer_kind KINDS[] = {{"full_attention", MSGL_LAYER_CHOOSES_BLOCKS},
                                            {"indexed_attention", MSGL_LAYER_CHOOSES_BLOCKS},
                                            {"linear_attention", MSGL_LAYER_RECURRENT}};
    const int32_t every = msgl__json_int_or(r, "full_attention_interval", 1, INT32_MAX, 4);
    if (msgl__decoder_read_kinds(r, c, "layer_types", KINDS, MSGL_COUNT(KINDS))) return;
    for (int32_t l = 0; l < c->num_layers; l++) {
        c->decoder.layer_flags[l] |=
            (l + 1) % every == 0 ? MSGL_LAYER_CHOOSES_BLOCKS : MSGL_LAYER_RECURRENT;
    }
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    // The streams have norms of their own.
    d->names.attn_norm = d->names.ffn_norm = d->names.norm = NULL;
    d->norm_plus_one = d->gated_attn = true;
    d->qk_norm = MSGL_QK_NORM_HEAD;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->streams.num = msgl__json_int_or(r, "hc_count", 2, MSGL_MAX_STREAMS, 4);
    d->streams.rank = msgl__json_int_or(r, "hc_lowrank", 1, MAX_RANK, 320);
    msgl__qwen_read_delta(r, c);
    read_gate(r, c);
    if (r->status == 0) read_layers(r, c);
    if (r->status == 0) msgl__qwen_read_experts(r, c);
    if (r->status == 0) msgl__decoder_read_mean_index(r, c);
    if (r->status == 0) msgl__decoder_read_ngrams(r, c);
}

static void configure_conditional(msgl_json_reader *r, msgl_model_config *c)
{
    configure(r, c);
    c->decoder.names.prefix = "model.language_model.";
}

#define OF_BOTH                                                                                    \
    .family = &msgl__decoder_family, .default_head_dim = 256, .rotary_factor = 1,                  \
    .only_experts = true, .ignored = {"mtp.", "model.visual."}, .ignores_layers_behind = true

const msgl_arch msgl__arch_qwen4_exp = {
    OF_BOTH,
    .name = "Qwen4ExpForCausalLM",
    .configure = configure,
};

const msgl_arch msgl__arch_qwen4_exp_conditional = {
    OF_BOTH,
    .name = "Qwen4ExpForConditionalGeneration",
    .text_section = "text_config",
    .text_defaults = "{\"vocab_size\": 248320, \"hidden_size\": 2048, \"num_hidden_layers\": 40,"
                     " \"num_attention_heads\": 16, \"num_key_value_heads\": 2,"
                     " \"max_position_embeddings\": 32768, \"moe_intermediate_size\": 512,"
                     " \"shared_expert_intermediate_size\": 512, \"num_experts_per_tok\": 10,"
                     " \"num_experts\": 512}",
    .configure = configure_conditional,
};
