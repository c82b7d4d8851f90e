// SPDX-License-Identifier: Apache-2.0
//
// Draft heads with folders of their own: EAGLE-3 as SpecForge writes it, and the kind of head that
// the demo model has; and heads that a model's own files have (MTP). What they compute is in
// docs/decisions/059-draft-heads.md.
#include <stdio.h>
#include <string.h>

#include "models/archs.h"
#include "models/decoder.h"

// Which layers' states an EAGLE-3 head reads. Ids that begin with 1 say behind which layers, others
// what enters a layer: [2, 3, 5] is behind layers 1, 2 and 4.
static void read_aux_layers(msgl_json_reader *r, msgl_head_config *h)
{
    static const char KEY[] = "eagle_aux_hidden_state_layer_ids";
    const json_t *inner = msgl__json_get(r, "eagle_config");
    const json_t *ids = json_is_object(inner) ? json_object_get(inner, KEY) : NULL;
    if (ids == NULL) ids = msgl__json_get(r, KEY);
    h->state_layers[0] = -1;
    if (ids == NULL) return;
    bool good = json_is_array(ids) && json_array_size(ids) == MSGL_MAX_AUX_STATES;
    const json_int_t first = good ? json_integer_value(json_array_get(ids, 0)) : 0;
    for (size_t i = 0; i < MSGL_MAX_AUX_STATES && good; i++) {
        const json_t *id = json_array_get(ids, i);
        const json_int_t layer = json_integer_value(id) - (first == 1 ? 0 : 1);
        good = json_is_integer(id) && layer < MSGL_MAX_LAYERS &&
               layer > (i == 0 ? -1 : h->state_layers[i - 1]);
        h->state_layers[i] = (int32_t)layer;
    }
    if (!good) msgl__json_reject(r, MSGL_EUNSUPPORTED, KEY, ids, "three layers, ascending");
}

static void refuse(msgl_json_reader *r, const char *key)
{
    const json_t *v = msgl__json_get(r, key);
    if (v != NULL && !json_is_false(v) && !json_is_null(v)) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, key, v, "false");
    }
}

static void configure_eagle3(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    msgl_head_config *h = &d->head;
    *h = (msgl_head_config){
        .kind = MSGL_HEAD_EAGLE3,
        .num_states = MSGL_MAX_AUX_STATES,
        .state_dim = msgl__json_int_or(r, "target_hidden_size", 1, MSGL_MAX_HIDDEN, c->hidden_size),
        .vocab = c->vocab_size,
        .embed_norm = "midlayer.input_layernorm",
        .state_norm = "midlayer.hidden_norm",
        .fc = "fc",
        .final_norm = "norm",
    };
    h->own_embed = h->state_dim != c->hidden_size; // else it is a copy of the target's
    read_aux_layers(r, h);
    refuse(r, "norm_before_residual");
    refuse(r, "fc_norm");
    refuse(r, "bias");
    if (!msgl__json_bool_or(r, "norm_output", true)) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "norm_output", msgl__json_get(r, "norm_output"),
                          "true");
    }
    const int32_t drafts = msgl__json_int_or(r, "draft_vocab_size", 1, c->vocab_size, 0);
    h->own_logits = drafts > 0;
    if (drafts > 0) c->vocab_size = drafts;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->names.prefix = "";
    d->names.attn_norm = NULL;
    c->tie_embeddings = false;
    if (r->status == 0 && c->num_layers != 1) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "num_hidden_layers",
                          msgl__json_get(r, "num_hidden_layers"), "1");
    }
    if (r->status == 0 && !h->own_logits && h->own_embed) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "draft_vocab_size", NULL,
                          "a number, where target_hidden_size is another");
    }
}

// One layer behind a product of embedding and state, in names that begin with `prefix`.
static void make_mtp(msgl_model_config *c, const char *prefix)
{
    msgl_head_config *h = &c->decoder.head;
    *h = (msgl_head_config){.kind = MSGL_HEAD_MTP,
                            .num_states = 1,
                            .state_dim = c->hidden_size,
                            .vocab = c->vocab_size};
    snprintf(h->embed_norm, sizeof h->embed_norm, "%spre_fc_norm_embedding", prefix);
    snprintf(h->state_norm, sizeof h->state_norm, "%spre_fc_norm_hidden", prefix);
    snprintf(h->fc, sizeof h->fc, "%sfc", prefix);
    snprintf(h->final_norm, sizeof h->final_norm, "%snorm", prefix);
    c->decoder.names.prefix = prefix;
    c->num_layers = 1;
    c->tie_embeddings = false;
}

static void configure_qwen3_mtp(msgl_json_reader *r, msgl_model_config *c)
{
    msgl__arch_qwen3.configure(r, c);
    if (r->status != 0) return;
    make_mtp(c, "mtp.");
    memset(c->decoder.layer_flags, 0, sizeof c->decoder.layer_flags);
}

void msgl__mtp_of_qwen(msgl_model_config *c)
{
    // As the layers of full attention, of which the last one is.
    const uint8_t flags = c->decoder.layer_flags[c->num_layers - 1] & MSGL_LAYER_SPARSE;
    make_mtp(c, "mtp.");
    memset(c->decoder.layer_flags, 0, sizeof c->decoder.layer_flags);
    c->decoder.layer_flags[0] = flags;
    c->decoder.head.in_target = true;
}

void msgl__mtp_of_deepseek(msgl_model_config *c)
{
    msgl_head_config *h = &c->decoder.head;
    const char *prefix = c->decoder.names.prefix;
    const int32_t layer = c->num_layers;
    const uint8_t flags = c->decoder.layer_flags[layer - 1];
    make_mtp(c, prefix);
    snprintf(h->embed_norm, sizeof h->embed_norm, "%slayers.%d.enorm", prefix, (int)layer);
    snprintf(h->state_norm, sizeof h->state_norm, "%slayers.%d.hnorm", prefix, (int)layer);
    snprintf(h->fc, sizeof h->fc, "%slayers.%d.eh_proj", prefix, (int)layer);
    snprintf(h->final_norm, sizeof h->final_norm, "%slayers.%d.shared_head.norm", prefix,
             (int)layer);
    memset(c->decoder.layer_flags, 0, sizeof c->decoder.layer_flags);
    c->decoder.layer_flags[0] = flags;
    h->first_layer = layer;
    h->in_target = true;
}

const msgl_arch msgl__arch_eagle3 = {
    .name = "LlamaForCausalLMEagle3",
    .family = &msgl__decoder_family,
    .ignored = {"d2t", "t2d", "embed_tokens.", "model.embed_tokens."},
    // Folders call the layer either; and where there is an embedding, names without "model." are
    // taken for those of a model's inner part (safetensors.c).
    .renamed = {{"layers.0.", "midlayer."},
                {"midlayer.", "layers.0."},
                {"layers.0.", "model.layers.0."},
                {"embed_tokens.", "model.embed_tokens."},
                {"norm.", "model.norm."}},
    .configure = configure_eagle3,
};

const msgl_arch msgl__arch_qwen3_mtp = {
    .name = "Qwen3ForCausalLMMTP",
    .family = &msgl__decoder_family,
    .default_head_dim = 128,
    .configure = configure_qwen3_mtp,
};
