// SPDX-License-Identifier: Apache-2.0
//
// The metadata of a GGUF file as a config: its values are put under the names that config.json and
// generation_config.json have for them, and read by the same code. Errors name the file's own keys.
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "models/gguf.h"
#include "models/gguf/arch.h"
#include "models/json_read.h"

// A file that goes with a model, by its architecture, or NULL.
static const char *beside_a_model(const json_t *arch)
{
    static const struct {
        const char *arch, *what;
    } OTHERS[] = {
        {"clip",
         "the part of a model that sees or hears (mmproj), which goes with a language model"},
        {"imatrix", "an importance matrix, which goes with a language model"},
    };
    for (size_t i = 0; i < MSGL_COUNT(OTHERS) && json_is_string(arch); i++) {
        if (strcmp(json_string_value(arch), OTHERS[i].arch) == 0) return OTHERS[i].what;
    }
    return NULL;
}

// m->meta is the caller's, also after a failure.
static int describe(const msgl_gguf *g, msgl_gguf_model *m, msgl_err *err)
{
    *m = (msgl_gguf_model){.g = g};
    const int code = msgl__gguf_metadata(g, &m->meta, err);
    if (code != 0) return code;
    m->arch = msgl__gguf_arch_find(m);
    if (m->arch != NULL) return 0;
    const json_t *v = json_object_get(m->meta, "general.architecture");
    const char *other = beside_a_model(v);
    if (other != NULL) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "%s: general.architecture: found \"%s\", %s",
                             g->file, json_string_value(v), other);
    }
    char found[64], known[MSGL_GGUF_NAMES_SHOWN];
    msgl__gguf_arch_names(known, sizeof known);
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "%s: general.architecture: found %s, allowed %s",
                         g->file, msgl__json_show(v, found, sizeof found), known);
}

// ---- fields ----

// Of every architecture.
static const msgl_gguf_field FIELDS[] = {
    {MSGL_GGUF_CONFIG, "architectures", "general.architecture"},
    {MSGL_GGUF_CONFIG, "vocab_size", "vocab_size"},
    {MSGL_GGUF_CONFIG, "max_position_embeddings", "context_length"},
    {MSGL_GGUF_CONFIG, "hidden_size", "embedding_length"},
    {MSGL_GGUF_CONFIG, "num_hidden_layers", "block_count"},
    {MSGL_GGUF_CONFIG, "intermediate_size", "feed_forward_length"},
    {MSGL_GGUF_CONFIG, "num_attention_heads", "attention.head_count"},
    {MSGL_GGUF_CONFIG, "num_key_value_heads", "attention.head_count_kv"},
    {MSGL_GGUF_CONFIG, "head_dim", "attention.key_length"},
    {MSGL_GGUF_CONFIG, "rms_norm_eps", "attention.layer_norm_rms_epsilon"},
    {MSGL_GGUF_CONFIG, "rope_theta", "rope.freq_base"},
    {MSGL_GGUF_CONFIG, "eos_token_id", "tokenizer.ggml.eos_token_id"},
    {MSGL_GGUF_ROPE, "rope_type", "rope.scaling.type"},
    {MSGL_GGUF_ROPE, "factor", "rope.scaling.factor"},
    {MSGL_GGUF_ROPE, "original_max_position_embeddings", "rope.scaling.original_context_length"},
    {MSGL_GGUF_ROPE, "beta_fast", "rope.scaling.yarn_beta_fast"},
    {MSGL_GGUF_ROPE, "beta_slow", "rope.scaling.yarn_beta_slow"},
    {MSGL_GGUF_ROPE, "short_factor", "rope_freqs.weight"}, // a tensor
    {MSGL_GGUF_GENERATION, "temperature", "general.sampling.temp"},
    {MSGL_GGUF_GENERATION, "top_k", "general.sampling.top_k"},
    {MSGL_GGUF_GENERATION, "top_p", "general.sampling.top_p"},
    {MSGL_GGUF_GENERATION, "min_p", "general.sampling.min_p"},
    {MSGL_GGUF_GENERATION, "repetition_penalty", "general.sampling.penalty_repeat"},
};

// The architecture's own fields first: what it has there counts.
static const msgl_gguf_field *field_at(const msgl_gguf_model *m, size_t i)
{
    const msgl_gguf_field *own = m->arch->fields;
    for (; own != NULL && own->key != NULL; own++) {
        if (i-- == 0) return own;
    }
    return i < MSGL_COUNT(FIELDS) ? &FIELDS[i] : NULL;
}

// Whether the architecture has a meaning for the key.
static bool reads(const msgl_gguf_model *m, const char *key)
{
    const msgl_gguf_field *f = m->arch->fields;
    for (; f != NULL && f->key != NULL; f++) {
        if (strcmp(f->key, key) == 0) return true;
    }
    return false;
}

// What would change the model's numbers: only this value passes where the architecture has no
// meaning for the key.
static const struct {
    const char *key;
    double allowed;
} ONLY[] = {
    {"expert_count", 0},
    {"attention.sliding_window", 0},
    {"attention.scale", 0},
    {"attention.temperature_scale", 0},
    {"attention.clamp_kqv", 0},
    {"attention.value_scale", 1},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"embedding_scale", 1},
    {"residual_scale", 1},
    {"logit_scale", 1},
    {"nextn_predict_layers", 0},
    {"rope.dimension_sections", 0},
    {"rope.scale_linear", 1},
    {"rope.scaling.attn_factor", 1},
    {"rope.scaling.yarn_attn_factor", 1},
    {"rope.scaling.yarn_ext_factor", 1},
    {"rope.scaling.yarn_log_multiplier", 0},
};

static int check_only(const msgl_gguf_model *m, const char *key, double allowed, msgl_err *err)
{
    const json_t *v = msgl__gguf_field(m, key);
    if (v == NULL || reads(m, key)) return 0;
    if (json_is_number(v) && json_number_value(v) == allowed) return 0;
    char full[64], found[64];
    msgl__gguf_key(m, key, full);
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "%s: %s: found %s, allowed %g", m->g->file, full,
                         msgl__json_show(v, found, sizeof found), allowed);
}

// The tensor of factors is all of the scaling, or there is none.
static int check_scaling(const msgl_gguf_model *m, msgl_err *err)
{
    const json_t *type = msgl__gguf_field(m, "rope.scaling.type");
    if (!msgl__gguf_has(m, "rope_freqs.weight")) return 0;
    if (type == NULL) return check_only(m, "rope.scaling.factor", 1, err);
    if (json_is_string(type) && strcmp(json_string_value(type), "none") == 0) return 0;
    char key[64], found[64];
    msgl__gguf_key(m, "rope.scaling.type", key);
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "%s: %s: found %s, allowed none beside the tensor rope_freqs.weight",
                         m->g->file, key, msgl__json_show(type, found, sizeof found));
}

static int check_all(const msgl_gguf_model *m, msgl_err *err)
{
    int code = 0;
    for (size_t i = 0; i < MSGL_COUNT(ONLY) && code == 0; i++) {
        code = check_only(m, ONLY[i].key, ONLY[i].allowed, err);
    }
    if (code == 0) code = check_scaling(m, err);
    const double head_dim = (double)msgl__gguf_head_dim(m);
    if (head_dim == 0) return code;
    if (code == 0) code = check_only(m, "attention.value_length", head_dim, err);
    if (code == 0) code = check_only(m, "rope.dimension_count", head_dim, err);
    // Of layers with a window.
    const double sliding = msgl__gguf_num(m, "attention.key_length_swa", head_dim);
    if (code == 0) code = check_only(m, "attention.value_length_swa", sliding, err);
    return code == 0 ? check_only(m, "rope.dimension_count_swa", sliding, err) : code;
}

// The type that most of the weights have is that of the first projection. Blocks become bfloat16:
// the type of the models that are published in them, and of the fastest products.
static const char *dtype_of(const msgl_gguf_model *m)
{
    static const char *const FIRST[] = {"blk.0.attn_q.weight", "blk.0.attn_qkv.weight",
                                        "blk.0.attn_q_a.weight", "blk.0.ssm_in.weight",
                                        "blk.0.shortconv.in_proj.weight"};
    const msgl_gguf_tensor *t = NULL;
    for (size_t i = 0; i < MSGL_COUNT(FIRST) && t == NULL; i++) {
        t = msgl__gguf_tensor_named(m->g, FIRST[i]);
    }
    if (t != NULL &&
        (strcmp(t->storage->name, "F32") == 0 || strcmp(t->storage->name, "F64") == 0)) {
        return "float32";
    }
    return t != NULL && strcmp(t->storage->name, "F16") == 0 ? "float16" : "bfloat16";
}

// The tokens that end an answer: of the sequence, of a turn, of a message.
static json_t *eos_list(msgl_gguf_model *m)
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
        if (!known) m->bad |= json_array_append(list, id);
    }
    return list;
}

// What follows from more than one value, or from the tensors.
static void derive(msgl_gguf_model *m)
{
    const msgl_gguf_value *tokens = msgl__gguf_get(m->g, "tokenizer.ggml.tokens");
    const int64_t head_dim = msgl__gguf_head_dim(m);
    msgl__gguf_set(m, m->config, "architectures", json_pack("[s]", m->arch->hf));
    msgl__gguf_set(m, m->config, "torch_dtype", json_string(dtype_of(m)));
    msgl__gguf_set(m, m->config, "eos_token_id", eos_list(m));
    msgl__gguf_set(m, m->config, "tie_word_embeddings",
                   json_boolean(!msgl__gguf_has(m, "output.weight")));
    msgl__gguf_set(m, m->config, "attention_bias",
                   json_boolean(msgl__gguf_has(m, "blk.0.attn_q.bias")));
    msgl__gguf_set(m, m->config, "mlp_bias", json_boolean(msgl__gguf_has(m, "blk.0.ffn_up.bias")));
    if (tokens != NULL && tokens->array) {
        msgl__gguf_set(m, m->config, "vocab_size", json_integer((json_int_t)tokens->count));
    }
    if (json_object_get(m->config, "head_dim") == NULL && head_dim > 0) {
        msgl__gguf_set(m, m->config, "head_dim", json_integer(head_dim));
    }
    const char *type = json_string_value(json_object_get(m->rope, "rope_type"));
    if (type != NULL && strcmp(type, "none") == 0) {
        msgl__gguf_set(m, m->rope, "rope_type", json_string("default"));
    } else if (type == NULL && json_object_get(m->rope, "factor") != NULL) {
        msgl__gguf_set(m, m->rope, "rope_type", json_string("linear"));
    }
    msgl__gguf_one_set_of_factors(m);
    if (m->arch->derive != NULL) m->arch->derive(m);
}

// The three objects that the readers get, and what errors call their fields; how many of these.
static int fill(msgl_gguf_model *m, json_t *objects[MSGL_GGUF_PLACES],
                msgl_json_name names[MSGL_GGUF_MAX_FIELDS])
{
    const msgl_gguf_field *f;
    int n = 0;
    for (int i = 0; i < MSGL_GGUF_PLACES; i++) objects[i] = json_object();
    m->config = objects[MSGL_GGUF_CONFIG];
    m->rope = objects[MSGL_GGUF_ROPE];
    for (size_t i = 0; (f = field_at(m, i)) != NULL && n < MSGL_GGUF_MAX_FIELDS; i++) {
        if (f->in == MSGL_GGUF_DERIVED) continue;
        names[n].key = f->hf;
        msgl__gguf_key(m, f->key, names[n].shown);
        json_t *v = json_object_get(m->meta, names[n].shown);
        n++;
        if (v == NULL || json_object_get(objects[f->in], f->hf) != NULL) continue;
        m->bad |= json_object_set(objects[f->in], f->hf, v);
    }
    m->bad |= json_object_set(m->config, "rope_scaling", m->rope);
    derive(m);
    return n;
}

static void set_name(const char **name, const char *own)
{
    if (strcmp(*name, own) != 0) *name = own;
}

// How the tensors are stored, which config.json has no fields for.
static void set_storage(const msgl_gguf_model *m, msgl_decoder_config *d)
{
    msgl_decoder_names *const n = &d->names;
    d->interleaved = m->arch->pairs;
    d->interleaved_all = m->arch->pairs_all;
    // Outside of blocks tensors have Llama's names, whatever the architecture (TOP in archs.c).
    set_name(&n->prefix, "model.");
    set_name(&n->embed, "embed_tokens");
    set_name(&n->norm, "norm");
    // What folders have in one tensor may be apart here.
    if (msgl__gguf_some_block_has(m, "attn_q.weight")) n->qkv = NULL;
    if (msgl__gguf_some_block_has(m, "ffn_gate.weight") ||
        msgl__gguf_some_block_has(m, "ffn_gate_shexp.weight")) {
        n->gate_up = NULL;
    }
    // And norms of heads, which folders may have apart, are in one tensor.
    if (d->qk_norm == MSGL_QK_NORM_LAYER_APART) d->qk_norm = MSGL_QK_NORM_LAYER;
    if (m->arch->norms_whole) d->norm_plus_one = false;
    if (d->num_experts > 0) {
        const bool fused = msgl__gguf_some_block_has(m, "ffn_gate_up_exps.weight");
        n->each_gate_up = fused ? "mlp.experts.each_gate_up" : NULL;
        n->each_gate = "mlp.experts.each_gate";
        n->each_up = "mlp.experts.each_up";
        n->each_down = "mlp.experts.each_down";
    }
    if (d->delta.v_heads > 0) {
        d->delta.v_heads_apart = !d->delta.by_k_head; // Qwen3.5's
        d->delta.only_ba_by_k_head =
            d->delta.by_k_head && !msgl__gguf_has(m, "blk.0.ssm_in.weight");
        d->delta.by_k_head = d->delta.by_k_head && !d->delta.only_ba_by_k_head;
        d->delta.a_is_minus_exp = true;
    }
    d->mamba.a_is_minus_exp = d->mamba.heads > 0;
    d->kda.a_is_minus_exp = d->kda.heads > 0;
    d->latent.apart = d->latent.rank > 0 && msgl__gguf_some_block_has(m, "attn_k_b.weight");
}

int msgl__gguf_config(const msgl_gguf *g, msgl_model_config *out, msgl_err *err)
{
    msgl_gguf_model m;
    json_t *objects[MSGL_GGUF_PLACES] = {0};
    msgl_json_name names[MSGL_GGUF_MAX_FIELDS];
    int num_names = 0, code = describe(g, &m, err);
    if (code == 0) code = check_all(&m, err);
    if (code == 0) {
        num_names = fill(&m, objects, names);
        if (m.bad) code = msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", g->file);
    }
    msgl_json_reader r = {.file = g->file,
                          .section = "",
                          .obj = objects[MSGL_GGUF_CONFIG],
                          .err = err,
                          .names = names,
                          .num_names = num_names};
    if (code == 0) code = msgl__config_read(&r, out);
    if (code == 0) set_storage(&m, &out->decoder);
    r.obj = objects[MSGL_GGUF_GENERATION];
    if (code == 0) code = msgl__config_read_generation(&r, out);
    for (int i = 0; i < MSGL_GGUF_PLACES; i++) json_decref(objects[i]);
    json_decref(m.meta);
    return code;
}
