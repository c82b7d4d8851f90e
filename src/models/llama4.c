// SPDX-License-Identifier: Apache-2.0
//
// Llama 4's text model: most layers attend by chunks and rotate adjacent pairs, the others see all
// tokens, do not rotate and temper their queries; one expert a token beside a shared one, in all or
// some layers.
#include "models/archs.h"
#include "models/decoder.h"

// Layers of the list, or else every interleave_moe_layer_step-th.
static void read_sparse_layers(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    const json_t *list = msgl__json_get(r, "moe_layers");
    const int32_t step = msgl__json_int_or(r, "interleave_moe_layer_step", 1, INT32_MAX, 1);
    for (int32_t l = 0; l < c->num_layers; l++) {
        d->layer_flags[l] &= (uint16_t)~MSGL_LAYER_SPARSE;
        if (list == NULL && (l + 1) % step == 0) d->layer_flags[l] |= MSGL_LAYER_SPARSE;
    }
    if (list != NULL && !json_is_array(list)) {
        msgl__json_reject(r, MSGL_EFORMAT, "moe_layers", list, "a list of layer numbers");
        return;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 ||
            json_integer_value(v) >= c->num_layers) {
            msgl__json_reject(r, MSGL_EFORMAT, "moe_layers", v, "numbers of layers");
            return;
        }
        d->layer_flags[json_integer_value(v)] |= MSGL_LAYER_SPARSE;
    }
}

static void read_experts(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    msgl__decoder_read_experts(r, c, "intermediate_size");
    read_sparse_layers(r, c);
    if (r->status == 0 && d->router.top_k != 1) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "num_experts_per_tok",
                          msgl__json_get(r, "num_experts_per_tok"), "1");
    }
    d->router.scoring = MSGL_SCORE_SIGMOID;
    d->router.norm_topk = false;
    d->weighs_input = true;
    d->shared_intermediate_size = d->moe_intermediate_size;
    d->intermediate_size = msgl__json_int(r, "intermediate_size_mlp", 1, MSGL_MAX_INTERMEDIATE);
}

// What layers that do not rotate do with their queries. Hubs have a number where transformers has a
// truth value; 0 is none.
static void read_temper(msgl_json_reader *r, msgl_model_config *c)
{
    const json_t *given = msgl__json_get(r, "attn_temperature_tuning");
    if (json_is_integer(given) ? json_integer_value(given) == 0
                               : !msgl__json_bool_or(r, "attn_temperature_tuning", true)) {
        return;
    }
    c->decoder.temper =
        (msgl_temper){.every = (float)msgl__json_num_or(r, "floor_scale", 1, 1e9, 8192),
                      .scale = (float)msgl__json_num_or(r, "attn_scale", 0, 1e6, 0.1),
                      .first = 1};
}

static void read_chunks(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->chunked = true;
    d->sliding_window = msgl__json_int_or(r, "attention_chunk_size", 1, INT32_MAX, 8192);
    if (msgl__decoder_read_layer_types(r, c)) return;
    for (int32_t l = 0; l < c->num_layers; l++) {
        if (!msgl__layer_has(d, l, MSGL_LAYER_SECOND_ROPE)) d->layer_flags[l] |= MSGL_LAYER_SLIDING;
    }
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.mlp = "feed_forward";
    d->names.router = "feed_forward.router";
    d->names.shared = "feed_forward.shared_expert";
    d->names.shared_gate = NULL;
    d->names.experts = NULL;
    d->names.all_gate_up = "feed_forward.experts.gate_up_proj";
    d->names.all_down = "feed_forward.experts.down_proj";
    d->names.all_by_columns = true;
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->interleaved = true;
    // Behind the rotation in transformers, which leaves a head's length as it is.
    if (msgl__json_bool_or(r, "use_qk_norm", true)) d->qk_norm = MSGL_QK_NORM_UNIT;
    // What is rotated is normed as if its length had not changed.
    const msgl_rope_config *rope = &c->ropes[0];
    if (rope->type == MSGL_ROPE_YARN ||
        (rope->type == MSGL_ROPE_LONGROPE && rope->attention_factor != 1)) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "rope_scaling", msgl__json_get(r, "rope_scaling"),
                          "a type that does not scale what it rotates: not yarn or longrope");
        return;
    }
    msgl__decoder_read_no_rope(r, c);
    read_chunks(r, c);
    read_temper(r, c);
    read_experts(r, c);
}

// The text half of a model that also sees; its other tensors are left.
static void configure_conditional(msgl_json_reader *r, msgl_model_config *c)
{
    configure(r, c);
    c->decoder.names.prefix = "language_model.model.";
    c->decoder.names.head = "language_model.lm_head";
}

#define LLAMA_4                                                                                    \
    .family = &msgl__decoder_family, .default_head_dim = 128, .default_theta = 500000,             \
    .only_experts = true

const msgl_arch msgl__arch_llama4 = {
    LLAMA_4,
    .name = "Llama4ForCausalLM",
    .configure = configure,
};

const msgl_arch msgl__arch_llama4_conditional = {
    LLAMA_4,
    .name = "Llama4ForConditionalGeneration",
    .text_section = "text_config",
    .text_defaults = "{\"vocab_size\": 202048, \"hidden_size\": 5120, \"intermediate_size\": 8192,"
                     " \"intermediate_size_mlp\": 16384, \"num_hidden_layers\": 48,"
                     " \"num_attention_heads\": 40, \"num_key_value_heads\": 8,"
                     " \"max_position_embeddings\": 131072, \"num_local_experts\": 16,"
                     " \"num_experts_per_tok\": 1}",
    .ignored = {"vision_model.", "multi_modal_projector."},
    .configure = configure_conditional,
};
