// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "models/config.h"
#include "models/gguf/arch.h"

static const msgl_gguf_arch *const FAMILIES[] = {
    msgl__gguf_llama,  msgl__gguf_qwen,    msgl__gguf_gemma,    msgl__gguf_phi,
    msgl__gguf_glm,    msgl__gguf_gpt_oss, msgl__gguf_deepseek, msgl__gguf_llama4,
    msgl__gguf_single, msgl__gguf_parts,   msgl__gguf_gemma4,   msgl__gguf_lfm2,
    msgl__gguf_mamba,  msgl__gguf_mimo,    msgl__gguf_bailing,  msgl__gguf_kimi,
};

const msgl_gguf_arch *msgl__gguf_arch_find(const msgl_gguf_model *m)
{
    const json_t *v = json_object_get(m->meta, "general.architecture");
    for (size_t i = 0; i < MSGL_COUNT(FAMILIES) && json_is_string(v); i++) {
        for (const msgl_gguf_arch *a = FAMILIES[i]; a->name != NULL; a++) {
            if (strcmp(json_string_value(v), a->name) != 0) continue;
            const msgl_gguf_model with = {.g = m->g, .arch = a, .meta = m->meta};
            if (a->takes == NULL || a->takes(&with)) return a;
        }
    }
    return NULL;
}

void msgl__gguf_arch_names(char *buf, size_t size)
{
    enum { MORE = 16 }; // bytes of " and 99 more"
    const char *before = "";
    size_t n = 0;
    int more = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < MSGL_COUNT(FAMILIES); i++) {
        for (const msgl_gguf_arch *a = FAMILIES[i]; a->name != NULL; a++) {
            if (strcmp(a->name, before) == 0) continue; // rows of one name follow each other
            before = a->name;
            if (more > 0 || n + strlen(a->name) + 2 + MORE >= size) {
                more++;
            } else {
                n += (size_t)snprintf(buf + n, size - n, "%s%s", n > 0 ? ", " : "", a->name);
            }
        }
    }
    if (more > 0) snprintf(buf + n, size - n, " and %d more", more);
}

// ---- names ----

static const msgl_gguf_name TOP[] = {
    {"token_embd.", "model.embed_tokens.", MSGL_GGUF_AS_IT_IS},
    {"output_norm.", "model.norm.", MSGL_GGUF_AS_IT_IS},
    {"output.", "lm_head.", MSGL_GGUF_AS_IT_IS},
    {"token_embd_norm.", "model.norm.", MSGL_GGUF_AS_IT_IS}, // of LFM2, where it is the last one
    {"per_layer_token_embd.", "model.embed_tokens_per_layer.", MSGL_GGUF_AS_IT_IS},
    {"per_layer_model_proj.", "model.per_layer_model_projection.", MSGL_GGUF_AS_IT_IS},
    {"per_layer_proj_norm.", "model.per_layer_projection_norm.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_name BLOCK[] = {
    {"attn_norm.", "input_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"attn_q.", "self_attn.q_proj.", MSGL_GGUF_AS_IT_IS},
    {"attn_k.", "self_attn.k_proj.", MSGL_GGUF_AS_IT_IS},
    {"attn_v.", "self_attn.v_proj.", MSGL_GGUF_AS_IT_IS},
    {"attn_output.", "self_attn.o_proj.", MSGL_GGUF_AS_IT_IS},
    {"attn_q_norm.", "self_attn.q_norm.", MSGL_GGUF_AS_IT_IS},
    {"attn_k_norm.", "self_attn.k_norm.", MSGL_GGUF_AS_IT_IS},
    {"ffn_norm.", "post_attention_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate.", "mlp.gate_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up.", "mlp.up_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down.", "mlp.down_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_inp.", "mlp.gate.", MSGL_GGUF_AS_IT_IS},
    // No other file has these, and so the names are those that msgl__gguf_config gives them.
    {"ffn_gate_exps.", "mlp.experts.each_gate.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up_exps.", "mlp.experts.each_up.", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_up_exps.", "mlp.experts.each_gate_up.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down_exps.", "mlp.experts.each_down.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_name *find_name(const msgl_gguf_name *list, const char *name)
{
    for (; list != NULL && list->gguf != NULL; list++) {
        if (strncmp(name, list->gguf, strlen(list->gguf)) == 0) return list;
    }
    return NULL;
}

const msgl_gguf_name *msgl__gguf_name_of(const msgl_gguf_arch *a, bool in_block, const char *name)
{
    if (!in_block) return find_name(TOP, name);
    const msgl_gguf_name *own = a != NULL ? find_name(a->names, name) : NULL;
    return own != NULL ? own : find_name(BLOCK, name);
}

// ---- values ----

void msgl__gguf_key(const msgl_gguf_model *m, const char *key, char out[64])
{
    static const char *const WHOLE[] = {"general.", "tokenizer.", "rope_freqs.", "rope_factors_",
                                        "xielu."};
    bool whole = false;
    for (size_t i = 0; i < MSGL_COUNT(WHOLE); i++) {
        whole = whole || strncmp(key, WHOLE[i], strlen(WHOLE[i])) == 0;
    }
    snprintf(out, 64, "%s%s%s", whole ? "" : m->arch->name, whole ? "" : ".", key);
}

const json_t *msgl__gguf_field(const msgl_gguf_model *m, const char *key)
{
    char full[64];
    msgl__gguf_key(m, key, full);
    return json_object_get(m->meta, full);
}

static int64_t cut(const json_t *v, int64_t missing)
{
    const int64_t most = (int64_t)1 << 40, n = json_integer_value(v);
    if (!json_is_integer(v)) return missing;
    return n < -most ? -most : n < most ? n : most;
}

int64_t msgl__gguf_int(const msgl_gguf_model *m, const char *key, int64_t missing)
{
    return cut(msgl__gguf_field(m, key), missing);
}

int64_t msgl__gguf_int_of(const msgl_gguf_model *m, const char *key, int64_t block)
{
    const json_t *v = msgl__gguf_field(m, key);
    return cut(json_is_array(v) ? json_array_get(v, (size_t)block) : v, 0);
}

double msgl__gguf_num(const msgl_gguf_model *m, const char *key, double missing)
{
    const json_t *v = msgl__gguf_field(m, key);
    return json_is_number(v) ? json_number_value(v) : missing;
}

bool msgl__gguf_has(const msgl_gguf_model *m, const char *tensor)
{
    return msgl__gguf_tensor_named(m->g, tensor) != NULL;
}

bool msgl__gguf_block_has(const msgl_gguf_model *m, int64_t block, const char *tensor)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%lld.%s", (long long)block, tensor);
    return msgl__gguf_has(m, name);
}

bool msgl__gguf_some_block_has(const msgl_gguf_model *m, const char *tensor)
{
    const size_t n = strlen(tensor);
    for (size_t i = 0; i < m->g->num_tensors; i++) {
        const msgl_gguf_str name = m->g->tensors[i].name;
        if (name.n < n + 6 || memcmp(name.p, "blk.", 4) != 0) continue; // "blk.0.", at least
        const char *const part = name.p + name.n - n;
        const char *digit = name.p + 4;
        while (digit < part && *digit >= '0' && *digit <= '9') digit++;
        if (digit + 1 == part && *digit == '.' && memcmp(part, tensor, n) == 0) return true;
    }
    return false;
}

int64_t msgl__gguf_layers(const msgl_gguf_model *m)
{
    const int64_t n = msgl__gguf_blocks(m), ahead = msgl__gguf_int(m, "nextn_predict_layers", 0);
    return ahead >= 0 && ahead < n ? n - ahead : n;
}

int64_t msgl__gguf_blocks(const msgl_gguf_model *m)
{
    const int64_t n = msgl__gguf_int(m, "block_count", 0);
    return n < 0 ? 0 : n < MSGL_MAX_LAYERS ? n : MSGL_MAX_LAYERS;
}

int64_t msgl__gguf_head_dim(const msgl_gguf_model *m)
{
    const int64_t given = msgl__gguf_int(m, "attention.key_length", 0);
    if (given > 0) return given;
    const int64_t heads = msgl__gguf_int(m, "attention.head_count", 0);
    const int64_t hidden = msgl__gguf_int(m, "embedding_length", 0);
    return heads > 0 && hidden > 0 && hidden % heads == 0 ? hidden / heads : 0;
}

void msgl__gguf_set(msgl_gguf_model *m, json_t *object, const char *hf, json_t *v)
{
    m->bad |= json_object_set_new(object, hf, v);
}

void msgl__gguf_set_bool(msgl_gguf_model *m, const char *hf, bool value)
{
    msgl__gguf_set(m, m->config, hf, json_boolean(value));
}

void msgl__gguf_set_int(msgl_gguf_model *m, const char *hf, int64_t value)
{
    msgl__gguf_set(m, m->config, hf, json_integer(value));
}

// ---- what several families have ----

bool msgl__gguf_has_experts(const msgl_gguf_model *m)
{
    return msgl__gguf_int(m, "expert_count", 0) > 0;
}

// Layers without a router have no experts; nothing else says it.
void msgl__gguf_dense_layers(msgl_gguf_model *m)
{
    json_t *list = json_array();
    for (int64_t l = 0; l < msgl__gguf_blocks(m); l++) {
        if (msgl__gguf_block_has(m, l, "ffn_gate_inp.weight")) continue;
        m->bad |= json_array_append_new(list, json_integer(l));
    }
    msgl__gguf_set(m, m->config, "mlp_only_layers", list);
}

// attention.head_count_kv is an array with 0 for layers without attention.
void msgl__gguf_kv_heads(msgl_gguf_model *m)
{
    const char *const key = "attention.head_count_kv";
    if (!json_is_array(msgl__gguf_field(m, key))) return;
    int64_t n = 0;
    for (int64_t l = 0; l < msgl__gguf_blocks(m) && n == 0; l++) n = msgl__gguf_int_of(m, key, l);
    msgl__gguf_set_int(m, "num_key_value_heads", n);
}

// A list of layers' kinds: what a layer is shows in whether its block has a tensor.
void msgl__gguf_kinds(msgl_gguf_model *m, const char *hf, const char *tensor, const char *with,
                      const char *without)
{
    json_t *list = json_array();
    for (int64_t l = 0; l < msgl__gguf_layers(m); l++) {
        const bool has = msgl__gguf_block_has(m, l, tensor);
        m->bad |= json_array_append_new(list, json_string(has ? with : without));
    }
    msgl__gguf_set(m, m->config, hf, list);
}

// rope.dimension_count of a head's dimensions rotate: a share of them in config.json, which is
// written a little too large, as the reader rounds down.
void msgl__gguf_partial_rotation(msgl_gguf_model *m)
{
    const int64_t head = msgl__gguf_head_dim(m);
    const int64_t dim = msgl__gguf_int(m, "rope.dimension_count", head);
    if (head <= 0 || dim <= 0) return;
    const double share =
        dim < head ? ((double)dim + 0.25) / (double)head : (double)dim / (double)head;
    msgl__gguf_set(m, m->config, "partial_rotary_factor", json_real(share));
}

bool msgl__gguf_slides(const msgl_gguf_model *m, int64_t layer)
{
    const json_t *pattern = msgl__gguf_field(m, "attention.sliding_window_pattern");
    const json_t *v = json_array_get(pattern, (size_t)layer);
    return json_is_true(v) || json_integer_value(v) != 0;
}

// Which layers have a window: attention.sliding_window_pattern is the length of the pattern, or has
// a truth value for each layer. Without a window no layer has one.
void msgl__gguf_sliding_layers(msgl_gguf_model *m)
{
    const json_t *pattern = msgl__gguf_field(m, "attention.sliding_window_pattern");
    const bool none = msgl__gguf_num(m, "attention.sliding_window", 0) == 0;
    if (none) (void)json_object_del(m->config, "sliding_window");
    if (json_is_integer(pattern) && !none) {
        msgl__gguf_set_int(m, "sliding_window_pattern", json_integer_value(pattern));
        return;
    }
    if (!none && !json_is_array(pattern)) return; // the architecture's own
    json_t *list = json_array();
    for (int64_t l = 0; l < msgl__gguf_layers(m); l++) {
        const bool slides = !none && msgl__gguf_slides(m, l);
        m->bad |= json_array_append_new(
            list, json_string(slides ? "sliding_attention" : "full_attention"));
    }
    msgl__gguf_set(m, m->config, "layer_types", list);
}

// A tensor of factors as a list; numbers that are none become 0, which the reader refuses.
static json_t *factors_of(msgl_gguf_model *m, const char *tensor)
{
    const msgl_gguf_tensor *t = msgl__gguf_tensor_named(m->g, tensor);
    json_t *list = json_array();
    if (t == NULL) return list;
    const bool readable =
        strcmp(t->storage->name, "F32") == 0 && t->bytes <= 4 * (size_t)MSGL_MAX_HEAD_DIM;
    for (size_t i = 0; i < t->bytes / 4 && readable; i++) {
        float f;
        memcpy(&f, t->data + 4 * i, sizeof f);
        m->bad |= json_array_append_new(list, json_real(isfinite(f) ? (double)f : 0));
    }
    return list;
}

// LongRoPE's factors, for short and for long prompts, are tensors.
void msgl__gguf_long_factors(msgl_gguf_model *m)
{
    if (!msgl__gguf_has(m, "rope_factors_long.weight")) return;
    msgl__gguf_set(m, m->rope, "rope_type", json_string("longrope"));
    msgl__gguf_set(m, m->rope, "short_factor", factors_of(m, "rope_factors_short.weight"));
    msgl__gguf_set(m, m->rope, "long_factor", factors_of(m, "rope_factors_long.weight"));
}

// Llama 3.1's scaling of frequencies is not in the metadata: its outcome, what each of them is
// divided by, is a tensor. That is LongRoPE with the same factors at every length.
void msgl__gguf_one_set_of_factors(msgl_gguf_model *m)
{
    if (!msgl__gguf_has(m, "rope_freqs.weight")) return;
    m->bad |= json_object_clear(m->rope);
    msgl__gguf_set(m, m->rope, "rope_type", json_string("longrope"));
    msgl__gguf_set(m, m->rope, "attention_factor", json_integer(1));
    msgl__gguf_set(m, m->rope, "long_factor", factors_of(m, "rope_freqs.weight"));
    msgl__gguf_set(m, m->rope, "short_factor", factors_of(m, "rope_freqs.weight"));
}
