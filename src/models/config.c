// SPDX-License-Identifier: Apache-2.0
#include "models/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "models/arch.h"
#include "models/json_read.h"
#include "utils/file.h"
#include "utils/json.h"

enum { CONFIG_MAX_BYTES = 16 << 20, PATH_BYTES = 4096 };

static int join(const char *dir, const char *file, char path[PATH_BYTES], msgl_err *err)
{
    const int n = snprintf(path, PATH_BYTES, "%s/%s", dir, file);
    if (n < 0 || n >= PATH_BYTES) {
        return msgl__err_set(err, MSGL_EINVAL, "model folder: the path is too long");
    }
    return 0;
}

static void find_arch(msgl_json_reader *r, msgl_model_config *c)
{
    const json_t *list = msgl__json_get(r, "architectures");
    const json_t *first = json_array_get(list, 0);
    char known[160];
    msgl__arch_names(known, sizeof known);
    if (!json_is_array(list) || !json_is_string(first)) {
        msgl__json_reject(r, MSGL_EFORMAT, "architectures", list, "a list with one name");
        return;
    }
    c->arch = msgl__arch_find(json_string_value(first));
    if (c->arch == NULL) msgl__json_reject(r, MSGL_EUNSUPPORTED, "architectures", first, known);
}

static void read_dtype(msgl_json_reader *r, msgl_model_config *c)
{
    const char *key = msgl__json_get(r, "dtype") != NULL ? "dtype" : "torch_dtype";
    const char *name = msgl__json_str_or(r, key, "bfloat16");
    if (msgl__dtype_parse(name, &c->dtype) != 0) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key),
                          "float32, float16, bfloat16");
    }
}

static void read_heads(msgl_json_reader *r, msgl_model_config *c)
{
    c->num_heads = msgl__json_int(r, "num_attention_heads", 1, MSGL_MAX_HEADS);
    c->num_kv_heads = msgl__json_int_or(r, "num_key_value_heads", 1, MSGL_MAX_HEADS, c->num_heads);
    if (r->status == 0 && c->num_heads % c->num_kv_heads != 0) {
        char allowed[64];
        snprintf(allowed, sizeof allowed, "a divisor of num_attention_heads %d", c->num_heads);
        msgl__json_reject(r, MSGL_EFORMAT, "num_key_value_heads",
                          msgl__json_get(r, "num_key_value_heads"), allowed);
    }
    const bool given = msgl__json_get(r, "head_dim") != NULL;
    if (given || c->arch->default_head_dim != 0) {
        c->head_dim =
            msgl__json_int_or(r, "head_dim", 2, MSGL_MAX_HEAD_DIM, c->arch->default_head_dim);
    } else if (c->hidden_size % c->num_heads == 0 &&
               c->hidden_size / c->num_heads <= MSGL_MAX_HEAD_DIM) {
        c->head_dim = c->hidden_size / c->num_heads;
    } else {
        msgl__json_reject(r, MSGL_EFORMAT, "head_dim", NULL,
                          "a number, as hidden_size / num_attention_heads is not one");
    }
    if (r->status == 0 && c->head_dim % 2 != 0) {
        msgl__json_reject(r, MSGL_EFORMAT, "head_dim", msgl__json_get(r, "head_dim"),
                          "an even number");
    }
}

static msgl_rope_type rope_type(msgl_json_reader *r)
{
    const char *key = msgl__json_get(r, "rope_type") != NULL ? "rope_type" : "type";
    const char *name = msgl__json_str_or(r, key, "default");
    for (int t = 0; t < MSGL_ROPE_TYPES; t++) {
        if (strcmp(name, msgl__rope_type_name((msgl_rope_type)t)) == 0) return (msgl_rope_type)t;
    }
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key),
                      "default, linear, dynamic, yarn, llama3");
    return MSGL_ROPE_DEFAULT;
}

static const double MAX_FACTOR = 1e6, MAX_THETA = 1e18;

// The fields of the scaling variants; `r` reads rope_scaling or rope_parameters, `top` the file.
static void read_rope_scaling(msgl_json_reader *r, msgl_json_reader *top, msgl_model_config *c)
{
    msgl_rope_config *p = &c->rope;
    p->type = rope_type(r);
    if (p->type == MSGL_ROPE_DEFAULT || r->status != 0) return;

    const int32_t in_section =
        msgl__json_int_or(r, "original_max_position_embeddings", 1, INT32_MAX, c->max_position);
    p->original_max =
        msgl__json_int_or(top, "original_max_position_embeddings", 1, INT32_MAX, in_section);
    if (p->type == MSGL_ROPE_YARN && msgl__json_get(r, "factor") == NULL) {
        p->factor = (double)c->max_position / p->original_max;
    } else if (msgl__json_get(r, "factor") == NULL) {
        msgl__json_reject(r, MSGL_EFORMAT, "factor", NULL, "a number of 1 or more");
    } else {
        p->factor = msgl__json_num_or(r, "factor", 1, MAX_FACTOR, 1);
    }
    if (p->type == MSGL_ROPE_LLAMA3) {
        p->low_freq_factor = msgl__json_num_or(r, "low_freq_factor", 1e-6, MAX_FACTOR, 1);
        p->high_freq_factor = msgl__json_num_or(r, "high_freq_factor", 1e-6, MAX_FACTOR, 4);
        if (!(p->high_freq_factor > p->low_freq_factor)) {
            msgl__json_reject(r, MSGL_EFORMAT, "high_freq_factor",
                              msgl__json_get(r, "high_freq_factor"),
                              "a number above low_freq_factor");
        }
    }
    if (p->type == MSGL_ROPE_YARN) {
        p->beta_fast = msgl__json_num_or(r, "beta_fast", 1e-6, MAX_FACTOR, 32);
        p->beta_slow = msgl__json_num_or(r, "beta_slow", 1e-6, MAX_FACTOR, 1);
        p->attention_factor = msgl__json_num_or(r, "attention_factor", 1e-6, MAX_FACTOR, 0);
        p->mscale = msgl__json_num_or(r, "mscale", 0, MAX_FACTOR, 0);
        p->mscale_all_dim = msgl__json_num_or(r, "mscale_all_dim", 0, MAX_FACTOR, 0);
        p->truncate = msgl__json_bool_or(r, "truncate", true);
    }
    if (p->type == MSGL_ROPE_DYNAMIC && p->dim < 4) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "rope_type", NULL, "head_dim of 4 or more");
    }
}

// rope_theta stands beside rope_scaling in the older spelling and inside rope_parameters in the
// newer one.
static void read_rope(msgl_json_reader *r, msgl_model_config *c)
{
    c->rope = (msgl_rope_config){.dim = c->head_dim,
                                 .factor = 1,
                                 .max_position = c->max_position,
                                 .original_max = c->max_position};
    const char *section =
        msgl__json_get(r, "rope_parameters") != NULL ? "rope_parameters" : "rope_scaling";
    const json_t *obj = msgl__json_get(r, section);
    if (obj != NULL && !json_is_object(obj)) {
        msgl__json_reject(r, MSGL_EFORMAT, section, obj, "an object or null");
        return;
    }
    double theta = msgl__json_num_or(r, "rope_theta", 1, MAX_THETA, 10000);
    msgl_json_reader sub = *r;
    if (obj != NULL) {
        sub.section = section;
        sub.obj = obj;
        if (json_is_object(json_object_get(obj, "full_attention")) ||
            json_is_object(json_object_get(obj, "sliding_attention"))) {
            msgl__json_reject(&sub, MSGL_EUNSUPPORTED, "full_attention", obj,
                              "one set of parameters for all layers");
        }
        theta = msgl__json_num_or(&sub, "rope_theta", 1, MAX_THETA, theta);
        read_rope_scaling(&sub, r, c);
        msgl__json_num_or(&sub, "partial_rotary_factor", 1, 1, 1);
    }
    if (r->status == 0) r->status = sub.status;
    msgl__json_num_or(r, "partial_rotary_factor", 1, 1, 1);
    c->rope.theta = theta;
    if (c->rope.type == MSGL_ROPE_YARN && theta <= 1) {
        msgl__json_reject(r, MSGL_EFORMAT, "rope_theta", msgl__json_get(r, "rope_theta"),
                          "a number above 1 for yarn");
    }
}

void msgl__config_read_windows(msgl_json_reader *r, msgl_model_config *c, bool by_layer)
{
    if (!msgl__json_bool_or(r, "use_sliding_window", false)) return;
    c->sliding_window = msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, 0);
    if (c->sliding_window == 0) return;
    const json_t *types = by_layer ? msgl__json_get(r, "layer_types") : NULL;
    if (types == NULL) {
        const int32_t first =
            by_layer ? msgl__json_int_or(r, "max_window_layers", 0, INT32_MAX, 28) : 0;
        for (int32_t l = first; l < c->num_layers; l++) c->layer_flags[l] |= MSGL_LAYER_SLIDING;
        return;
    }
    if (!json_is_array(types) || json_array_size(types) != (size_t)c->num_layers) {
        msgl__json_reject(r, MSGL_EFORMAT, "layer_types", types, "a list of num_hidden_layers");
        return;
    }
    for (int32_t l = 0; l < c->num_layers; l++) {
        const json_t *v = json_array_get(types, (size_t)l);
        const char *name = json_is_string(v) ? json_string_value(v) : "";
        if (strcmp(name, "sliding_attention") == 0) {
            c->layer_flags[l] |= MSGL_LAYER_SLIDING;
        } else if (strcmp(name, "full_attention") != 0) {
            msgl__json_reject(r, MSGL_EUNSUPPORTED, "layer_types", v,
                              "full_attention, sliding_attention");
            return;
        }
    }
}

// eos_token_id: absent, an id, or a list of ids.
static void read_eos(msgl_json_reader *r, msgl_model_config *c)
{
    const json_t *v = msgl__json_get(r, "eos_token_id");
    if (v == NULL) return;
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;
    char allowed[80];
    snprintf(allowed, sizeof allowed, "an id in 0..%d or a list of up to %d", c->vocab_size - 1,
             MSGL_MAX_EOS);
    if (n > MSGL_MAX_EOS) {
        msgl__json_reject(r, MSGL_EFORMAT, "eos_token_id", v, allowed);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= c->vocab_size) {
            msgl__json_reject(r, MSGL_EFORMAT, "eos_token_id", id, allowed);
            return;
        }
        c->eos_ids[i] = (int32_t)json_integer_value(id);
    }
    c->num_eos = (int32_t)n;
}

static void read_config(msgl_json_reader *r, msgl_model_config *c)
{
    find_arch(r, c);
    if (r->status != 0) return;
    const json_t *quant = msgl__json_get(r, "quantization_config");
    if (quant != NULL) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "quantization_config", quant,
                          "none: weights of float32, float16 or bfloat16");
    }
    read_dtype(r, c);
    c->vocab_size = msgl__json_int(r, "vocab_size", 1, MSGL_MAX_VOCAB);
    c->hidden_size = msgl__json_int(r, "hidden_size", 1, MSGL_MAX_HIDDEN);
    c->num_layers = msgl__json_int(r, "num_hidden_layers", 1, MSGL_MAX_LAYERS);
    c->intermediate_size = msgl__json_int(r, "intermediate_size", 1, MSGL_MAX_INTERMEDIATE);
    c->max_position = msgl__json_int(r, "max_position_embeddings", 1, INT32_MAX / 2);
    c->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-6);
    c->tie_embeddings = msgl__json_bool_or(r, "tie_word_embeddings", false);
    const char *act = msgl__json_str_or(r, "hidden_act", "silu");
    if (strcmp(act, "silu") != 0) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "hidden_act", msgl__json_get(r, "hidden_act"),
                          "\"silu\"");
    }
    if (r->status == 0) read_heads(r, c);
    if (r->status == 0) read_rope(r, c);
    if (r->status == 0) c->arch->configure(r, c);
    if (r->status == 0) read_eos(r, c);
}

static void read_generation_config(msgl_json_reader *r, msgl_model_config *c)
{
    read_eos(r, c);
    msgl_sampling_params *p = &c->sampling;
    p->temperature = (float)msgl__json_num_or(r, "temperature", 0, 1e6, (double)p->temperature);
    p->top_p = (float)msgl__json_num_or(r, "top_p", 0, 1, (double)p->top_p);
    p->min_p = (float)msgl__json_num_or(r, "min_p", 0, 1, (double)p->min_p);
    const int32_t top_k = msgl__json_int_or(r, "top_k", -1, INT32_MAX, p->top_k);
    p->top_k = top_k < 0 ? 0 : top_k;
    // Logits are divided by it, so it must not be 0.
    p->repetition_penalty =
        (float)msgl__json_num_or(r, "repetition_penalty", (double)MSGL_MIN_REPETITION,
                                 (double)MSGL_MAX_REPETITION, (double)p->repetition_penalty);
}

int msgl__model_config_load(const char *dir, msgl_model_config *out, msgl_err *err)
{
    char path[PATH_BYTES];
    json_t *root;
    int code = join(dir, "config.json", path, err);
    if (code == 0) code = msgl__json_load(path, CONFIG_MAX_BYTES, 0, &root, err);
    if (code != 0) return code;
    memset(out, 0, sizeof *out);
    out->sampling = msgl__sampling_params_default();
    out->sampling.temperature = 1;
    msgl_json_reader r = {.file = msgl__path_tail(path), .section = "", .obj = root, .err = err};
    read_config(&r, out);
    json_decref(root);
    if (r.status != 0) return r.status;

    code = join(dir, "generation_config.json", path, err);
    if (code == 0) code = msgl__json_load(path, CONFIG_MAX_BYTES, 0, &root, err);
    if (code != 0) return code == MSGL_ENOENT ? 0 : code;
    r = (msgl_json_reader){.file = msgl__path_tail(path), .section = "", .obj = root, .err = err};
    read_generation_config(&r, out);
    json_decref(root);
    return r.status;
}

int32_t msgl__model_config_context(const msgl_model_config *c)
{
    double context = c->max_position;
    if (c->rope.type == MSGL_ROPE_LINEAR || c->rope.type == MSGL_ROPE_DYNAMIC) {
        context = c->max_position * c->rope.factor;
    } else if (c->rope.type == MSGL_ROPE_YARN) {
        context = fmax(context, c->rope.original_max * c->rope.factor);
    }
    return context < INT32_MAX / 2 ? (int32_t)context : INT32_MAX / 2;
}
