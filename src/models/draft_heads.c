// SPDX-License-Identifier: Apache-2.0
//
// Draft heads with folders of their own: EAGLE-3 as SpecForge and vLLM's speculators write it, and
// the kind of head that the demo model has; and heads that a model's own files have (MTP). What
// they compute is in docs/decisions/059-draft-heads.md.
#include <stdio.h>
#include <string.h>

#include "models/archs.h"
#include "models/decoder.h"

// A folder of vLLM's speculators, whose fields are others than SpecForge's, or mean something else.
static bool is_speculators(const msgl_model_config *c)
{
    return c->arch == &msgl__arch_eagle3_speculators;
}

// Which layers' states an EAGLE-3 head reads. Ids say what enters a layer: [2, 3, 5] is behind
// layers 1, 2 and 4. SpecForge's that begin with 1 say behind which layers.
static void read_aux_layers(msgl_json_reader *r, bool speculators, msgl_head_config *h)
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
        const json_int_t layer = json_integer_value(id) - (first == 1 && !speculators ? 0 : 1);
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

// What the norm at the end is of. SpecForge's norm_output says whether the logits are of what is
// normed, speculators' whether that is fed back as well.
static void check_norm_output(msgl_json_reader *r, bool usual)
{
    if (msgl__json_bool_or(r, "norm_output", usual) == usual) return;
    msgl__json_reject(r, MSGL_EUNSUPPORTED, "norm_output", msgl__json_get(r, "norm_output"),
                      usual ? "true" : "false");
}

static void configure_eagle3(msgl_json_reader *r, msgl_model_config *c)
{
    const bool speculators = is_speculators(c);
    msgl_decoder_config *d = &c->decoder;
    msgl_head_config *h = &d->head;
    *h = (msgl_head_config){
        .kind = MSGL_HEAD_EAGLE3,
        .num_states = MSGL_MAX_AUX_STATES,
        .state_dim = msgl__json_int_or(r, "target_hidden_size", 1, MSGL_MAX_HIDDEN, c->hidden_size),
        .vocab = c->vocab_size,
        .embed_norm = "layers.0.input_layernorm",
        .state_norm = "layers.0.hidden_norm",
        .fc = "fc",
        .final_norm = "norm",
    };
    // Else it is a copy of the target's.
    h->own_embed = h->state_dim != c->hidden_size ||
                   (speculators && msgl__json_bool_or(r, "embed_requires_grad", false));
    h->norm_before_residual = msgl__json_bool_or(r, "norm_before_residual", false);
    read_aux_layers(r, speculators, h);
    refuse(r, "fc_norm");
    refuse(r, "norm_before_fc");
    refuse(r, "bias");
    check_norm_output(r, !speculators);
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

static void configure_speculators(msgl_json_reader *r, msgl_model_config *c)
{
    msgl__json_only(r, "model_type", "llama");
    // Where it is missing, readers differ: vLLM takes it for true, speculators for false.
    const json_t *norm = msgl__json_get(r, "norm_before_residual");
    if (norm == NULL) {
        msgl__json_reject(r, MSGL_EFORMAT, "norm_before_residual", norm, "true or false");
    }
    const json_t *types = msgl__json_get(r, "layer_types"), *type = json_array_get(types, 0);
    if (types != NULL &&
        (!json_is_string(type) || strcmp(json_string_value(type), "full_attention") != 0)) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "layer_types", type, "full_attention");
    }
    if (r->status == 0) configure_eagle3(r, c);
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

void msgl__mtp_of_qwen(msgl_model_config *c, int32_t ahead)
{
    (void)ahead;
    // As the layers of full attention, of which the last one is.
    const uint16_t flags = c->decoder.layer_flags[c->num_layers - 1] & MSGL_LAYER_SPARSE;
    make_mtp(c, "mtp.");
    memset(c->decoder.layer_flags, 0, sizeof c->decoder.layer_flags);
    c->decoder.layer_flags[0] = flags;
    c->decoder.head.in_target = true;
}

// As make_mtp, of the target's files: `num` layers with these flags, called `first` and so on, of
// which the first has by DeepSeek's names what is in front of them, and the last the norm behind.
static void make_mtp_layers(msgl_model_config *c, const char *prefix, int32_t first,
                            const uint16_t *flags, int32_t num, const char *final_norm)
{
    msgl_head_config *h = &c->decoder.head;
    const int last = (int)(first + num - 1);
    make_mtp(c, prefix);
    snprintf(h->embed_norm, sizeof h->embed_norm, "%slayers.%d.enorm", prefix, (int)first);
    snprintf(h->state_norm, sizeof h->state_norm, "%slayers.%d.hnorm", prefix, (int)first);
    snprintf(h->fc, sizeof h->fc, "%slayers.%d.eh_proj", prefix, (int)first);
    snprintf(h->final_norm, sizeof h->final_norm, "%slayers.%d.%s", prefix, last, final_norm);
    memset(c->decoder.layer_flags, 0, sizeof c->decoder.layer_flags);
    memcpy(c->decoder.layer_flags, flags, (size_t)num * sizeof *flags);
    c->num_layers = num;
    h->first_layer = first;
    h->in_target = true;
}

void msgl__mtp_of_deepseek(msgl_model_config *c, int32_t ahead)
{
    (void)ahead;
    const int32_t layer = c->num_layers;
    const uint16_t flags = c->decoder.layer_flags[layer - 1];
    make_mtp_layers(c, c->decoder.names.prefix, layer, &flags, 1, "shared_head.norm");
}

void msgl__mtp_of_mimo(msgl_model_config *c, int32_t ahead)
{
    // Dense, with the window, and rotating as the target's layers that have one.
    const uint16_t flags = MSGL_LAYER_SLIDING | MSGL_LAYER_SECOND_ROPE;
    c->decoder.names.ffn_norm = "pre_mlp_layernorm";
    make_mtp_layers(c, "model.mtp.", ahead, &flags, 1, "final_layernorm");
}

void msgl__mtp_of_nemotron(msgl_model_config *c, int32_t ahead)
{
    (void)ahead;
    // Attention alone, then a feed-forward block alone, of experts where the target has some.
    const uint16_t sparse = c->decoder.num_experts > 0 ? MSGL_LAYER_SPARSE : 0;
    const uint16_t flags[] = {MSGL_LAYER_NO_FFN, MSGL_LAYER_NO_MIXER | sparse};
    make_mtp_layers(c, "mtp.", 0, flags, 2, "final_layernorm");
}

// Folders call the layer either; and where there is an embedding, names without "model." are taken
// for those of a model's inner part (safetensors.c).
#define EAGLE3                                                                                     \
    .family = &msgl__decoder_family,                                                               \
    .ignored = {"d2t", "t2d", "embed_tokens.", "model.embed_tokens."},                             \
    .renamed = {{"layers.0.", "midlayer."},                                                        \
                {"layers.0.", "model.layers.0."},                                                  \
                {"embed_tokens.", "model.embed_tokens."},                                          \
                {"norm.", "model.norm."}}

const msgl_arch msgl__arch_eagle3 = {
    EAGLE3,
    .name = "LlamaForCausalLMEagle3",
    .configure = configure_eagle3,
};

const msgl_arch msgl__arch_eagle3_speculators = {
    EAGLE3,
    .name = "Eagle3Speculator",
    .text_section = "transformer_layer_config",
    .text_defaults = "{}",
    .text_beside = true,
    .configure = configure_speculators,
};

const msgl_arch msgl__arch_qwen3_mtp = {
    .name = "Qwen3ForCausalLMMTP",
    .family = &msgl__decoder_family,
    .default_head_dim = 128,
    .configure = configure_qwen3_mtp,
};
