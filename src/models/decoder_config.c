// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "models/decoder.h"

static const msgl_decoder_names LLAMA_NAMES = {
    .prefix = "model.",
    .head = "lm_head",
    .attn_norm = "input_layernorm",
    .ffn_norm = "post_attention_layernorm",
    .sinks = "self_attn.sinks",
    .embed = "embed_tokens",
    .norm = "norm",
    .mamba = "mamba",
    .attn = "self_attn",
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
    .router = "mlp.gate",
    .experts = "mlp.experts",
    .all_gate_up = "mlp.experts.gate_up_proj",
    .all_down = "mlp.experts.down_proj",
    .mlp = "mlp",
    .mlp_gate = "gate_proj",
    .mlp_up = "up_proj",
    .mlp_down = "down_proj",
    .out = "self_attn.o_proj",
    .gate = "gate_proj",
    .up = "up_proj",
    .down = "down_proj",
    .layer_embed = "embed_tokens_per_layer",
    .layer_projection = "per_layer_model_projection",
    .layer_projection_norm = "per_layer_projection_norm",
    .layer_gate = "per_layer_input_gate",
    .layer_out = "per_layer_projection",
    .layer_out_norm = "post_per_layer_input_norm",
    .shared = "mlp.shared_expert",
    .shared_gate = "mlp.shared_expert_gate",
};

// Of blocks without a gate, by the names of transformers.
static void read_pointwise(msgl_json_reader *r, msgl_model_config *c, const char *key,
                           const char *usual)
{
    static const struct {
        const char *name;
        msgl_pointwise f;
    } NAMES[] = {
        {"relu2", MSGL_POINTWISE_RELU2},        {"gelu", MSGL_POINTWISE_GELU},
        {"gelu_new", MSGL_POINTWISE_GELU_TANH}, {"gelu_pytorch_tanh", MSGL_POINTWISE_GELU_TANH},
        {"silu", MSGL_POINTWISE_SILU},          {"xielu", MSGL_POINTWISE_XIELU},
    };
    const char *name = msgl__json_str_or(r, key, usual);
    for (size_t i = 0; i < MSGL_COUNT(NAMES); i++) {
        if (strcmp(name, NAMES[i].name) != 0) continue;
        c->decoder.pointwise = NAMES[i].f;
        return;
    }
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key),
                      "relu2, gelu, gelu_new, gelu_pytorch_tanh, silu, xielu");
}

static void read_activation(msgl_json_reader *r, msgl_model_config *c)
{
    const msgl_arch *arch = c->arch;
    const char *key = arch->activation_key != NULL ? arch->activation_key : "hidden_act";
    const char *usual = arch->default_activation != NULL ? arch->default_activation : "silu";
    static const char *const NAMES[] = {
        [MSGL_SILU] = "silu", [MSGL_GELU_TANH] = "gelu_pytorch_tanh"};
    if (arch->clamps_swiglu) {
        c->decoder.activation = MSGL_SWIGLU_CLAMPED;
        return;
    }
    if (arch->plain_mlp) {
        read_pointwise(r, c, key, usual);
        return;
    }
    const char *name = msgl__json_str_or(r, key, usual);
    if (arch->gelu_is_erf) {
        c->decoder.activation = MSGL_GELU_ERF;
        if (strcmp(name, "gelu") == 0) return;
        msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key), "gelu");
        return;
    }
    if (arch->gelu_is_tanh && strcmp(name, "gelu") == 0) name = NAMES[MSGL_GELU_TANH];
    for (size_t a = 0; a < MSGL_COUNT(NAMES); a++) {
        if (strcmp(name, NAMES[a]) != 0) continue;
        c->decoder.activation = (msgl_activation)a;
        return;
    }
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key), "silu, gelu_pytorch_tanh");
}

void msgl__decoder_configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names = LLAMA_NAMES;
    if (!c->arch->only_experts && !c->arch->own_width) {
        d->intermediate_size = msgl__json_int(r, "intermediate_size", 1, MSGL_MAX_INTERMEDIATE);
    }
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-6);
    read_activation(r, c);
    d->attn_scale = 1.0f / sqrtf((float)c->head_dim);
    d->embed_scale = d->residual_scale = d->value_scale = 1;
    d->attn_out_scale = d->ffn_out_scale = d->ffn_norm_scale = 1;
}

// The list `key` with something for each layer, NULL if it is missing or rejected; whether there is
// such a field.
static bool layer_list(msgl_json_reader *r, const msgl_model_config *c, const char *key,
                       const json_t **list)
{
    const json_t *v = msgl__json_get(r, key);
    *list = json_array_size(v) == (size_t)c->num_layers ? v : NULL; // 0 of what is no array
    if (v != NULL && *list == NULL) {
        msgl__json_reject(r, MSGL_EFORMAT, key, v, "a list of num_hidden_layers");
    }
    return v != NULL;
}

bool msgl__decoder_read_kinds(msgl_json_reader *r, msgl_model_config *c, const char *key,
                              const msgl_layer_kind *kinds, size_t num)
{
    const json_t *list;
    const bool there = layer_list(r, c, key, &list);
    for (int32_t l = 0; l < c->num_layers && list != NULL; l++) {
        const json_t *v = json_array_get(list, (size_t)l);
        const char *name = json_is_string(v) ? json_string_value(v) : "";
        size_t k = 0;
        while (k < num && strcmp(name, kinds[k].name) != 0) k++;
        if (k < num) {
            c->decoder.layer_flags[l] |= kinds[k].flags;
            continue;
        }
        char allowed[128];
        size_t at = 0;
        for (k = 0; k < num && at < sizeof allowed; k++) {
            at += (size_t)snprintf(allowed + at, sizeof allowed - at, "%s%s", k > 0 ? ", " : "",
                                   kinds[k].name);
        }
        msgl__json_reject(r, MSGL_EUNSUPPORTED, key, v, allowed);
        return true;
    }
    return there;
}

bool msgl__decoder_read_layer_types(msgl_json_reader *r, msgl_model_config *c)
{
    const bool delta = c->decoder.delta.v_heads > 0;
    const char *const other = delta                ? "linear_attention"
                              : c->decoder.chunked ? "chunked_attention"
                                                   : "sliding_attention";
    const msgl_layer_kind kinds[] = {{"full_attention", 0},
                                     {other, delta ? MSGL_LAYER_RECURRENT : MSGL_LAYER_SLIDING}};
    return msgl__decoder_read_kinds(r, c, "layer_types", kinds, MSGL_COUNT(kinds));
}

bool msgl__decoder_read_numbers(msgl_json_reader *r, msgl_model_config *c, const char *key,
                                int32_t first, int clear)
{
    const json_t *list = msgl__json_get(r, key);
    if (list == NULL) return false;
    char allowed[64];
    snprintf(allowed, sizeof allowed, "a list of layer numbers in %d..%d", (int)first,
             (int)(first + c->num_layers - 1));
    if (!json_is_array(list)) msgl__json_reject(r, MSGL_EFORMAT, key, list, allowed);
    for (size_t i = 0; i < json_array_size(list) && r->status == 0; i++) {
        const json_t *v = json_array_get(list, i);
        const json_int_t layer = json_is_integer(v) ? json_integer_value(v) - first : -1;
        if (layer < 0 || layer >= c->num_layers) {
            msgl__json_reject(r, MSGL_EFORMAT, key, v, allowed);
        } else {
            c->decoder.layer_flags[layer] &= (uint16_t)~clear;
        }
    }
    return true;
}

bool msgl__decoder_read_bits(msgl_json_reader *r, msgl_model_config *c, const char *key, int value,
                             int flags)
{
    const json_t *list;
    const bool there = layer_list(r, c, key, &list);
    for (int32_t l = 0; l < c->num_layers && list != NULL; l++) {
        const json_t *v = json_array_get(list, (size_t)l);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1) {
            msgl__json_reject(r, MSGL_EFORMAT, key, v, "0 or 1 for every layer");
            return true;
        }
        if (json_integer_value(v) == value) c->decoder.layer_flags[l] |= (uint16_t)flags;
    }
    return there;
}

void msgl__decoder_clear_layers(msgl_model_config *c, int flags)
{
    for (int32_t l = 0; l < c->num_layers; l++) c->decoder.layer_flags[l] &= (uint16_t)~flags;
}

bool msgl__decoder_read_mlp_layer_types(msgl_json_reader *r, msgl_model_config *c)
{
    static const msgl_layer_kind KINDS[] = {{"dense", 0}, {"sparse", MSGL_LAYER_SPARSE}};
    const char *const key = "mlp_layer_types";
    if (msgl__json_get(r, key) == NULL) return false;
    msgl__decoder_clear_layers(c, MSGL_LAYER_SPARSE);
    return msgl__decoder_read_kinds(r, c, key, KINDS, MSGL_COUNT(KINDS));
}

void msgl__decoder_read_sparse_layers(msgl_json_reader *r, msgl_model_config *c, int32_t first)
{
    if (msgl__decoder_read_mlp_layer_types(r, c)) return;
    msgl__decoder_clear_layers(c, MSGL_LAYER_SPARSE);
    if (msgl__decoder_read_bits(r, c, "moe_layer_freq", 1, MSGL_LAYER_SPARSE)) return;
    msgl__decoder_set_layers(c, first, MSGL_LAYER_SPARSE);
}

// One layer's object of per_layer_config.
static void read_shape(msgl_json_reader *r, const char *field, const json_t *v, msgl_attn_shape *s)
{
    msgl_json_reader sub = *r;
    sub.section = field;
    sub.obj = v;
    s->head_dim = msgl__json_int_or(&sub, "head_dim", 2, MSGL_MAX_HEAD_DIM, s->head_dim);
    s->num_kv_heads =
        msgl__json_int_or(&sub, "num_key_value_heads", 1, MSGL_MAX_HEADS, s->num_kv_heads);
    r->status = sub.status;
}

bool msgl__decoder_read_shapes(msgl_json_reader *r, msgl_model_config *c)
{
    const char *const field = "per_layer_config";
    const json_t *layers = msgl__json_get(r, field);
    msgl_attn_shape *shapes = c->decoder.shapes, usual[2] = {shapes[0], shapes[1]};
    bool given[2] = {false, false};
    const char *key;
    json_t *v;
    if (layers != NULL && !json_is_object(layers)) {
        msgl__json_reject(r, MSGL_EFORMAT, field, layers, "an object");
    }
    json_object_foreach((json_t *)layers, key, v)
    {
        char *end;
        const long layer = strtol(key, &end, 10);
        if (*end != '\0' || layer < 0 || layer >= c->num_layers || !json_is_object(v)) {
            msgl__json_reject(r, MSGL_EFORMAT, field, v, "an object for numbers of layers");
            return true;
        }
        const bool sliding = msgl__layer_has(&c->decoder, (int32_t)layer, MSGL_LAYER_SLIDING);
        msgl_attn_shape shape = usual[sliding];
        read_shape(r, field, v, &shape);
        if (r->status != 0) return true;
        if (given[sliding] && (shape.head_dim != shapes[sliding].head_dim ||
                               shape.num_kv_heads != shapes[sliding].num_kv_heads)) {
            msgl__json_reject(r, MSGL_EUNSUPPORTED, field, v,
                              "the same for all layers of a kind in layer_types");
            return true;
        }
        shapes[sliding] = shape;
        given[sliding] = true;
    }
    return layers != NULL;
}

void msgl__decoder_set_layers(msgl_model_config *c, int32_t first, int flags)
{
    for (int32_t l = first; l < c->num_layers; l++) c->decoder.layer_flags[l] |= (uint16_t)flags;
}

void msgl__decoder_set_all_but(msgl_model_config *c, int32_t every, int flags)
{
    for (int32_t l = 0; l < c->num_layers; l++) {
        if ((l + 1) % every != 0) c->decoder.layer_flags[l] |= (uint16_t)flags;
    }
}

void msgl__decoder_slide(msgl_model_config *c, int32_t first)
{
    if (c->decoder.sliding_window > 0) msgl__decoder_set_layers(c, first, MSGL_LAYER_SLIDING);
}

void msgl__decoder_read_windows(msgl_json_reader *r, msgl_model_config *c)
{
    if (!msgl__json_bool_or(r, "use_sliding_window", false)) return;
    c->decoder.sliding_window = msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, 0);
    if (c->decoder.sliding_window == 0 || msgl__decoder_read_layer_types(r, c)) return;
    msgl__decoder_slide(c, msgl__json_int_or(r, "max_window_layers", 0, INT32_MAX, 28));
}

void msgl__decoder_read_window(msgl_json_reader *r, msgl_model_config *c, int32_t usual)
{
    const bool absent = json_object_get(r->obj, "sliding_window") == NULL;
    c->decoder.sliding_window =
        msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, absent ? usual : 0);
}

void msgl__decoder_read_rotary_dim(msgl_json_reader *r, msgl_model_config *c)
{
    const int32_t dim = c->ropes[0].dim;
    if (dim < c->head_dim) return; // a share is given, which counts
    c->ropes[0].dim = msgl__json_int_or(r, "rotary_dim", 2, c->head_dim, dim);
    if (r->status == 0 && c->ropes[0].dim % 2 != 0) {
        msgl__json_reject(r, MSGL_EFORMAT, "rotary_dim", msgl__json_get(r, "rotary_dim"),
                          "an even number");
    }
}

void msgl__decoder_rope_of_windows(msgl_model_config *c)
{
    uint16_t *flags = c->decoder.layer_flags;
    for (int32_t l = 0; l < c->num_layers; l++) {
        if ((flags[l] & MSGL_LAYER_SLIDING) != 0) flags[l] |= MSGL_LAYER_SECOND_ROPE;
    }
}

static void second_rope_is_none(msgl_model_config *c)
{
    c->ropes[1] = (msgl_rope_config){.type = MSGL_ROPE_NONE, .dim = c->ropes[0].dim};
    c->num_ropes = 2;
}

void msgl__decoder_no_rope_without_window(msgl_model_config *c)
{
    uint16_t *flags = c->decoder.layer_flags;
    for (int32_t l = 0; l < c->num_layers; l++) {
        if ((flags[l] & MSGL_LAYER_SLIDING) == 0) flags[l] |= MSGL_LAYER_SECOND_ROPE;
    }
    second_rope_is_none(c);
}

void msgl__decoder_read_no_rope(msgl_json_reader *r, msgl_model_config *c)
{
    const char *const key = "no_rope_layers";
    const json_t *list = msgl__json_get(r, key);
    const int32_t every = msgl__json_int_or(r, "no_rope_layer_interval", 1, INT32_MAX, 4);
    if (list != NULL && !(json_is_array(list) && json_array_size(list) == 0)) {
        msgl__decoder_read_bits(r, c, key, 0, MSGL_LAYER_SECOND_ROPE);
    } else {
        for (int32_t l = every - 1; l < c->num_layers; l += every) {
            c->decoder.layer_flags[l] |= MSGL_LAYER_SECOND_ROPE;
        }
    }
    second_rope_is_none(c);
}

// Layer l is sparse when it is not in mlp_only_layers and decoder_sparse_step divides l + 1.
static void choose_sparse_layers(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    const int32_t step = msgl__json_int_or(r, "decoder_sparse_step", 1, INT32_MAX, 1);
    for (int32_t l = 0; l < c->num_layers; l++) {
        if ((l + 1) % step == 0) d->layer_flags[l] |= MSGL_LAYER_SPARSE;
    }
    const json_t *dense = msgl__json_get(r, "mlp_only_layers");
    if (dense != NULL && !json_is_array(dense)) {
        msgl__json_reject(r, MSGL_EFORMAT, "mlp_only_layers", dense, "a list of layer numbers");
        return;
    }
    for (size_t i = 0; i < json_array_size(dense); i++) {
        const json_t *v = json_array_get(dense, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0) {
            msgl__json_reject(r, MSGL_EFORMAT, "mlp_only_layers", v, "layer numbers");
            return;
        }
        if (json_integer_value(v) < c->num_layers) {
            d->layer_flags[json_integer_value(v)] &= (uint16_t)~MSGL_LAYER_SPARSE;
        }
    }
}

void msgl__decoder_read_experts(msgl_json_reader *r, msgl_model_config *c, const char *width)
{
    msgl_decoder_config *d = &c->decoder;
    static const char *const KEYS[] = {"num_local_experts", "n_routed_experts", "num_experts"};
    size_t key = 0;
    while (key + 1 < MSGL_COUNT(KEYS) && msgl__json_get(r, KEYS[key]) == NULL) key++;
    const char *experts = KEYS[key];
    d->num_experts = msgl__json_int(r, experts, 1, MSGL_MAX_EXPERTS);
    d->router.scale = 1;
    d->router.top_k = msgl__json_int(r, "num_experts_per_tok", 1, msgl__max_top_k(d));
    d->moe_intermediate_size = msgl__json_int(r, width, 1, MSGL_MAX_INTERMEDIATE);
    d->router.norm_topk = msgl__json_bool_or(r, "norm_topk_prob", false);
    choose_sparse_layers(r, c);
    if (r->status == 0 && d->activation != MSGL_SILU && d->activation != MSGL_SWIGLU_CLAMPED &&
        d->activation != MSGL_SILU_CLAMPED) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "hidden_act", msgl__json_get(r, "hidden_act"),
                          "silu, for experts");
    }
}

void msgl__decoder_read_shared_experts(msgl_json_reader *r, msgl_model_config *c, const char *key,
                                       int32_t usual, int32_t each)
{
    const int32_t num = msgl__json_int_or(r, key, 0, MSGL_MAX_EXPERTS, usual);
    if (r->status != 0) return;
    if (num > MSGL_MAX_INTERMEDIATE / each) {
        char allowed[96];
        snprintf(allowed, sizeof allowed, "up to %d, of %d columns each",
                 MSGL_MAX_INTERMEDIATE / (int)each, (int)each);
        msgl__json_reject(r, MSGL_EFORMAT, key, msgl__json_get(r, key), allowed);
        return;
    }
    c->decoder.shared_intermediate_size = num * each;
}
