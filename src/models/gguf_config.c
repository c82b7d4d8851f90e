// SPDX-License-Identifier: Apache-2.0
//
// The metadata of a GGUF file as a config: its values are put under the names that config.json and
// generation_config.json have for them, and read by the same code. Errors name the file's own keys.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "models/gguf.h"
#include "models/json_read.h"

typedef struct arch_row {
    const char *name;    // general.architecture, and the prefix of its keys
    const char *hf_name; // the architecture in config.json
    // The converter has put the rows of q and k that rotate together side by side.
    bool interleaved;
} arch_row;

typedef struct gguf_model {
    const msgl_gguf *g;
    const arch_row *arch;
    json_t *meta; // msgl__gguf_metadata
} gguf_model;

// One line per architecture. Mistral's files say llama too.
static const arch_row ARCHS[] = {
    {"llama", "LlamaForCausalLM", true},
    {"qwen2", "Qwen2ForCausalLM", false},
    {"qwen3", "Qwen3ForCausalLM", false},
};

// m->meta is the caller's, also after a failure.
static int describe(const msgl_gguf *g, gguf_model *m, msgl_err *err)
{
    *m = (gguf_model){.g = g};
    const int code = msgl__gguf_metadata(g, &m->meta, err);
    if (code != 0) return code;
    const json_t *v = json_object_get(m->meta, "general.architecture");
    for (size_t i = 0; i < MSGL_COUNT(ARCHS) && json_is_string(v); i++) {
        if (strcmp(json_string_value(v), ARCHS[i].name) == 0) m->arch = &ARCHS[i];
    }
    if (m->arch != NULL) return 0;
    char found[64], known[96] = "";
    for (size_t i = 0, n = 0; i < MSGL_COUNT(ARCHS) && n < sizeof known; i++) {
        n +=
            (size_t)snprintf(known + n, sizeof known - n, "%s%s", i > 0 ? ", " : "", ARCHS[i].name);
    }
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "%s: general.architecture: found %s, allowed %s",
                         g->file, msgl__json_show(v, found, sizeof found), known);
}

static void full_key(const gguf_model *m, const char *key, char out[64])
{
    static const char *const WHOLE[] = {"general.", "tokenizer.", "rope_freqs."};
    bool whole = false;
    for (size_t i = 0; i < MSGL_COUNT(WHOLE); i++) {
        whole = whole || strncmp(key, WHOLE[i], strlen(WHOLE[i])) == 0;
    }
    snprintf(out, 64, "%s%s%s", whole ? "" : m->arch->name, whole ? "" : ".", key);
}

// NULL: there is none.
static const json_t *field_of(const gguf_model *m, const char *key)
{
    char full[64];
    full_key(m, key, full);
    return json_object_get(m->meta, full);
}

// Dimension of a head; 0: nothing says it.
static int64_t head_dim_of(const gguf_model *m)
{
    const json_t *given = field_of(m, "attention.key_length");
    if (json_is_integer(given)) return json_integer_value(given);
    const json_int_t heads = json_integer_value(field_of(m, "attention.head_count"));
    const json_int_t hidden = json_integer_value(field_of(m, "embedding_length"));
    return heads > 0 && hidden % heads == 0 ? hidden / heads : 0;
}

// ---- fields ----

typedef enum place { CONFIG, ROPE, GENERATION, PLACES } place; // ROPE: rope_scaling in CONFIG

typedef struct field {
    place in;
    const char *hf, *key;
} field;

static const field FIELDS[] = {
    {CONFIG, "architectures", "general.architecture"},
    {CONFIG, "vocab_size", "vocab_size"},
    {CONFIG, "max_position_embeddings", "context_length"},
    {CONFIG, "hidden_size", "embedding_length"},
    {CONFIG, "num_hidden_layers", "block_count"},
    {CONFIG, "intermediate_size", "feed_forward_length"},
    {CONFIG, "num_attention_heads", "attention.head_count"},
    {CONFIG, "num_key_value_heads", "attention.head_count_kv"},
    {CONFIG, "head_dim", "attention.key_length"},
    {CONFIG, "rms_norm_eps", "attention.layer_norm_rms_epsilon"},
    {CONFIG, "rope_theta", "rope.freq_base"},
    {CONFIG, "eos_token_id", "tokenizer.ggml.eos_token_id"},
    {ROPE, "rope_type", "rope.scaling.type"},
    {ROPE, "factor", "rope.scaling.factor"},
    {ROPE, "original_max_position_embeddings", "rope.scaling.original_context_length"},
    {ROPE, "beta_fast", "rope.scaling.yarn_beta_fast"},
    {ROPE, "beta_slow", "rope.scaling.yarn_beta_slow"},
    {ROPE, "short_factor", "rope_freqs.weight"}, // a tensor
    {GENERATION, "temperature", "general.sampling.temp"},
    {GENERATION, "top_k", "general.sampling.top_k"},
    {GENERATION, "top_p", "general.sampling.top_p"},
    {GENERATION, "min_p", "general.sampling.min_p"},
    {GENERATION, "repetition_penalty", "general.sampling.penalty_repeat"},
};

// What would change the model's numbers and has no counterpart: only this value passes.
static const struct {
    const char *key;
    double allowed;
} ONLY[] = {
    {"expert_count", 0},
    {"attention.sliding_window", 0},
    {"rope.scale_linear", 1},
    {"rope.scaling.attn_factor", 1},
    {"rope.scaling.yarn_attn_factor", 1},
    {"rope.scaling.yarn_ext_factor", 1},
    {"rope.scaling.yarn_log_multiplier", 0},
};

static int check_only(const gguf_model *m, const char *key, double allowed, msgl_err *err)
{
    const json_t *v = field_of(m, key);
    if (v == NULL || (json_is_number(v) && json_number_value(v) == allowed)) return 0;
    char full[64], found[64];
    full_key(m, key, full);
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "%s: %s: found %s, allowed %g", m->g->file, full,
                         msgl__json_show(v, found, sizeof found), allowed);
}

static bool has_tensor(const gguf_model *m, const char *name)
{
    return msgl__gguf_tensor_named(m->g, name) != NULL;
}

// The tensor of factors is all of the scaling, or there is none.
static int check_scaling(const gguf_model *m, msgl_err *err)
{
    const json_t *type = field_of(m, "rope.scaling.type");
    if (!has_tensor(m, "rope_freqs.weight")) return 0;
    if (type == NULL) return check_only(m, "rope.scaling.factor", 1, err);
    if (json_is_string(type) && strcmp(json_string_value(type), "none") == 0) return 0;
    char key[64], found[64];
    full_key(m, "rope.scaling.type", key);
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "%s: %s: found %s, allowed none beside the tensor rope_freqs.weight",
                         m->g->file, key, msgl__json_show(type, found, sizeof found));
}

static int check_all(const gguf_model *m, msgl_err *err)
{
    int code = 0;
    for (size_t i = 0; i < MSGL_COUNT(ONLY) && code == 0; i++) {
        code = check_only(m, ONLY[i].key, ONLY[i].allowed, err);
    }
    if (code == 0) code = check_scaling(m, err);
    const double head_dim = (double)head_dim_of(m);
    if (head_dim == 0) return code;
    if (code == 0) code = check_only(m, "attention.value_length", head_dim, err);
    return code == 0 ? check_only(m, "rope.dimension_count", head_dim, err) : code;
}

// The type that most of the weights have is that of the first projection. Blocks become bfloat16:
// the type of the models that are published in them, and of the fastest products.
static const char *dtype_of(const gguf_model *m)
{
    const msgl_gguf_tensor *t = msgl__gguf_tensor_named(m->g, "blk.0.attn_q.weight");
    if (t != NULL &&
        (strcmp(t->storage->name, "F32") == 0 || strcmp(t->storage->name, "F64") == 0)) {
        return "float32";
    }
    return t != NULL && strcmp(t->storage->name, "F16") == 0 ? "float16" : "bfloat16";
}

// The tokens that end an answer: of the sequence, of a turn, of a message.
static json_t *eos_list(const gguf_model *m)
{
    static const char *const KEYS[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    json_t *list = json_array();
    for (size_t i = 0; i < MSGL_COUNT(KEYS); i++) {
        json_t *id = json_object_get(m->meta, KEYS[i]);
        bool known = id == NULL;
        for (size_t k = 0; k < json_array_size(list) && !known; k++) {
            known = json_equal(id, json_array_get(list, k)) != 0;
        }
        if (!known) (void)json_array_append(list, id);
    }
    return list;
}

// Llama 3.1's scaling of frequencies is not in the metadata: its outcome, what each of them is
// divided by, is a tensor. That is LongRoPE with the same factors at every length.
static int set_factors(const gguf_model *m, json_t *rope)
{
    const msgl_gguf_tensor *t = msgl__gguf_tensor_named(m->g, "rope_freqs.weight");
    if (t == NULL) return 0;
    const bool readable =
        strcmp(t->storage->name, "F32") == 0 && t->bytes <= 4 * (size_t)MSGL_MAX_HEAD_DIM;
    json_t *list = json_array();
    int bad = 0;
    for (size_t i = 0; i < t->bytes / 4 && readable; i++) {
        float f;
        memcpy(&f, t->data + 4 * i, sizeof f);
        bad |= json_array_append_new(list, json_real(isfinite(f) ? (double)f : 0));
    }
    bad |= json_object_clear(rope);
    bad |= json_object_set_new(rope, "rope_type", json_string("longrope"));
    bad |= json_object_set_new(rope, "attention_factor", json_integer(1));
    bad |= json_object_set(rope, "long_factor", list);
    return bad | json_object_set_new(rope, "short_factor", list);
}

// What follows from more than one value, or from the tensors.
static int derive(const gguf_model *m, json_t *config, json_t *rope)
{
    const msgl_gguf_value *tokens = msgl__gguf_get(m->g, "tokenizer.ggml.tokens");
    const int64_t head_dim = head_dim_of(m);
    int bad = json_object_set_new(config, "architectures", json_pack("[s]", m->arch->hf_name));
    bad |= json_object_set_new(config, "torch_dtype", json_string(dtype_of(m)));
    bad |= json_object_set_new(config, "eos_token_id", eos_list(m));
    bad |= json_object_set_new(config, "tie_word_embeddings",
                               json_boolean(!has_tensor(m, "output.weight")));
    bad |= json_object_set_new(config, "attention_bias",
                               json_boolean(has_tensor(m, "blk.0.attn_q.bias")));
    bad |=
        json_object_set_new(config, "mlp_bias", json_boolean(has_tensor(m, "blk.0.ffn_up.bias")));
    if (tokens != NULL && tokens->array) {
        bad |= json_object_set_new(config, "vocab_size", json_integer((json_int_t)tokens->count));
    }
    if (json_object_get(config, "head_dim") == NULL && head_dim > 0) {
        bad |= json_object_set_new(config, "head_dim", json_integer(head_dim));
    }
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (type != NULL && strcmp(type, "none") == 0) {
        bad |= json_object_set_new(rope, "rope_type", json_string("default"));
    } else if (type == NULL && json_object_get(rope, "factor") != NULL) {
        bad |= json_object_set_new(rope, "rope_type", json_string("linear"));
    }
    return bad | set_factors(m, rope);
}

// The three objects that the readers get; *bad when memory is out.
static void fill(const gguf_model *m, json_t *objects[PLACES],
                 msgl_json_name names[MSGL_COUNT(FIELDS)], int *bad)
{
    for (int i = 0; i < PLACES; i++) objects[i] = json_object();
    for (size_t i = 0; i < MSGL_COUNT(FIELDS); i++) {
        names[i].key = FIELDS[i].hf;
        full_key(m, FIELDS[i].key, names[i].shown);
        json_t *v = json_object_get(m->meta, names[i].shown);
        if (v != NULL) *bad |= json_object_set(objects[FIELDS[i].in], FIELDS[i].hf, v);
    }
    *bad |= derive(m, objects[CONFIG], objects[ROPE]);
    *bad |= json_object_set(objects[CONFIG], "rope_scaling", objects[ROPE]);
}

int msgl__gguf_config(const msgl_gguf *g, msgl_model_config *out, msgl_err *err)
{
    gguf_model m;
    json_t *objects[PLACES] = {0};
    msgl_json_name names[MSGL_COUNT(FIELDS)];
    int bad = 0, code = describe(g, &m, err);
    if (code == 0) code = check_all(&m, err);
    if (code == 0) {
        fill(&m, objects, names, &bad);
        if (bad) code = msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", g->file);
    }
    msgl_json_reader r = {.file = g->file,
                          .section = "",
                          .obj = objects[CONFIG],
                          .err = err,
                          .names = names,
                          .num_names = MSGL_COUNT(FIELDS)};
    if (code == 0) code = msgl__config_read(&r, out);
    if (code == 0) out->decoder.interleaved = m.arch->interleaved;
    r.obj = objects[GENERATION];
    if (code == 0) code = msgl__config_read_generation(&r, out);
    for (int i = 0; i < PLACES; i++) json_decref(objects[i]);
    json_decref(m.meta);
    return code;
}
