// SPDX-License-Identifier: Apache-2.0
#include "models/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "core/settings.h"
#include "models/arch.h"
#include "models/checkpoint.h"
#include "models/json_read.h"
#include "models/quantization.h"
#include "utils/file.h"
#include "utils/json.h"

enum { CONFIG_MAX_BYTES = 16 << 20, PATH_BYTES = 4096 };

// Folders of vLLM's speculators say what they are by a field of their own; the class that is named
// beside it depends on their version.
static void find_speculators(msgl_json_reader *r, const json_t *kind, msgl_model_config *c)
{
    if (json_is_string(kind) && strcmp(json_string_value(kind), "eagle3") == 0) {
        c->arch = msgl__arch_find("Eagle3Speculator");
        return;
    }
    msgl__json_reject(r, MSGL_EUNSUPPORTED, "speculators_model_type", kind, "eagle3");
}

// The decoder that transformers calls by another name with another head or none: with the suffix
// "ForSequenceClassification" Qwen3ForSequenceClassification is Qwen3ForCausalLM. NULL: it is none.
static const msgl_arch *find_decoder(const char *name, const char *suffix)
{
    static const char text[] = "Text";
    char base[128];
    const size_t n = strlen(name), end = strlen(suffix);
    if (n <= end || n >= sizeof base || strcmp(name + n - end, suffix) != 0) return NULL;
    size_t stem = n - end;
    for (int i = 0; i < 2; i++) { // Gemma3TextForSequenceClassification is Gemma3ForCausalLM
        (void)snprintf(base, sizeof base, "%.*sForCausalLM", (int)stem, name);
        const msgl_arch *arch = msgl__arch_find(base);
        if (arch != NULL) return arch->family->encodes || arch->text_section != NULL ? NULL : arch;
        if (stem <= sizeof text - 1 ||
            strncmp(name + stem - (sizeof text - 1), text, sizeof text - 1) != 0) {
            return NULL;
        }
        stem -= sizeof text - 1;
    }
    return NULL;
}

void msgl__config_read_labels(msgl_json_reader *r, msgl_model_config *c)
{
    const json_t *names = msgl__json_get(r, "id2label");
    const size_t n = json_is_object(names) ? json_object_size(names) : 2;
    const int32_t usual = n >= 1 && n <= MSGL_MAX_LABELS ? (int32_t)n : 0;
    c->num_labels = msgl__json_int_or(r, "num_labels", 1, MSGL_MAX_LABELS, usual);
    if (r->status == 0 && c->num_labels == 0) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "id2label", names, "1 to 4096 labels");
    }
}

// The head of a decoder that classifies: it reads the last token's row.
static void read_score_head(msgl_json_reader *r, msgl_model_config *c)
{
    msgl__config_read_labels(r, c);
    c->projections[0] =
        (msgl_projection){.tensor = "score.", .in = c->hidden_size, .out = c->num_labels};
    c->num_projections = 1;
}

static void find_arch(msgl_json_reader *r, msgl_model_config *c, bool *classifies)
{
    const json_t *kind = msgl__json_get(r, "speculators_model_type");
    if (kind != NULL) {
        find_speculators(r, kind, c);
        return;
    }
    const json_t *list = msgl__json_get(r, "architectures");
    const json_t *first = json_array_get(list, 0);
    char known[4096];
    msgl__arch_names(known, sizeof known);
    if (!json_is_array(list) || !json_is_string(first)) {
        msgl__json_reject(r, MSGL_EFORMAT, "architectures", list, "a list with one name");
        return;
    }
    c->arch = msgl__arch_find(json_string_value(first));
    if (c->arch != NULL) return;
    c->arch = find_decoder(json_string_value(first), "ForSequenceClassification");
    *classifies = c->arch != NULL;
    // What sentence-transformers saves of a decoder that embeds.
    if (c->arch == NULL) c->arch = find_decoder(json_string_value(first), "Model");
    if (c->arch != NULL) return;
    msgl__json_reject(r, MSGL_EUNSUPPORTED, "architectures", first, known);
}

static void read_dtype(msgl_json_reader *r, msgl_model_config *c)
{
    const char *key = msgl__json_get(r, "dtype") != NULL ? "dtype" : "torch_dtype";
    const char *usual = c->arch->default_dtype;
    const char *name = msgl__json_str_or(r, key, usual != NULL ? usual : "bfloat16");
    if (msgl__dtype_parse(name, &c->dtype) != 0 || c->dtype == MSGL_E4M3) {
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
    const char *own = c->arch->head_dim_key, *key = own != NULL ? own : "head_dim";
    const bool given = msgl__json_get(r, key) != NULL;
    if (own != NULL) {
        c->head_dim = msgl__json_int(r, key, 2, MSGL_MAX_HEAD_DIM);
    } else if (given || c->arch->default_head_dim != 0) {
        c->head_dim = msgl__json_int_or(r, key, 2, MSGL_MAX_HEAD_DIM, c->arch->default_head_dim);
    } else if (c->hidden_size % c->num_heads == 0 &&
               c->hidden_size / c->num_heads <= MSGL_MAX_HEAD_DIM) {
        c->head_dim = c->hidden_size / c->num_heads;
    } else {
        msgl__json_reject(r, MSGL_EFORMAT, "head_dim", NULL,
                          "a number, as hidden_size / num_attention_heads is not one");
    }
    if (r->status == 0 && c->head_dim % 2 != 0) {
        msgl__json_reject(r, MSGL_EFORMAT, key, msgl__json_get(r, key), "an even number");
    }
}

static msgl_rope_type rope_type(msgl_json_reader *r)
{
    const char *key = msgl__json_get(r, "rope_type") != NULL ? "rope_type" : "type";
    const char *name = msgl__json_str_or(r, key, "default");
    if (strcmp(name, "su") == 0) return MSGL_ROPE_LONGROPE; // in Phi-3's first folders
    for (int t = 0; t < MSGL_ROPE_TYPES; t++) {
        if (strcmp(name, msgl__rope_type_name((msgl_rope_type)t)) == 0) return (msgl_rope_type)t;
    }
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key),
                      "default, linear, dynamic, yarn, llama3, longrope, proportional");
    return MSGL_ROPE_DEFAULT;
}

static const double MAX_FACTOR = 1e6, MAX_THETA = 1e18;

static void read_yarn(msgl_json_reader *r, msgl_rope_config *p)
{
    p->beta_fast = msgl__json_num_or(r, "beta_fast", 1e-6, MAX_FACTOR, 32);
    p->beta_slow = msgl__json_num_or(r, "beta_slow", 1e-6, MAX_FACTOR, 1);
    p->mscale = msgl__json_num_or(r, "mscale", 0, MAX_FACTOR, 0);
    p->mscale_all_dim = msgl__json_num_or(r, "mscale_all_dim", 0, MAX_FACTOR, 0);
    p->truncate = msgl__json_bool_or(r, "truncate", true);
    if (p->theta <= 1) {
        msgl__json_reject(r, MSGL_EFORMAT, "rope_theta", msgl__json_get(r, "rope_theta"),
                          "a number above 1 for yarn");
    }
}

static void read_factors(msgl_json_reader *r, const char *key, int32_t pairs, float *out)
{
    const json_t *list = msgl__json_get(r, key);
    char allowed[64];
    snprintf(allowed, sizeof allowed, "%d numbers above 0, up to %g", pairs, MAX_FACTOR);
    if (!json_is_array(list) || json_array_size(list) != (size_t)pairs) {
        msgl__json_reject(r, MSGL_EFORMAT, key, list, allowed);
        return;
    }
    for (int32_t i = 0; i < pairs; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        const double number = json_number_value(v); // 0 of what is none
        if (!(number >= 1 / MAX_FACTOR && number <= MAX_FACTOR)) {
            msgl__json_reject(r, MSGL_EFORMAT, key, v, allowed);
            return;
        }
        out[i] = (float)number;
    }
}

static void read_longrope(msgl_json_reader *r, msgl_rope_config *p)
{
    if (p->dim / 2 > MSGL_MAX_LONGROPE) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "rope_type", msgl__json_get(r, "rope_type"),
                          "longrope of up to 256 dimensions");
        return;
    }
    read_factors(r, "short_factor", p->dim / 2, p->short_factor);
    read_factors(r, "long_factor", p->dim / 2, p->long_factor);
    if (p->original_max < 2) { // its logarithm divides
        msgl__json_reject(r, MSGL_EFORMAT, "original_max_position_embeddings",
                          msgl__json_get(r, "original_max_position_embeddings"),
                          "a number of 2 or more");
    }
}

// The fields of the scaling variants; `r` reads rope_scaling or rope_parameters, `top` the file.
static void read_rope_scaling(msgl_json_reader *r, msgl_json_reader *top, msgl_rope_config *p)
{
    p->type = rope_type(r);
    if (p->type == MSGL_ROPE_DEFAULT || r->status != 0) return;
    if (p->type == MSGL_ROPE_PROPORTIONAL) {
        p->share = msgl__json_num_or(r, "partial_rotary_factor", 0, 1, 1);
        p->factor = msgl__json_num_or(r, "factor", 1, MAX_FACTOR, 1);
        return;
    }

    const int32_t in_section =
        msgl__json_int_or(r, "original_max_position_embeddings", 1, INT32_MAX, p->max_position);
    p->original_max =
        msgl__json_int_or(top, "original_max_position_embeddings", 1, INT32_MAX, in_section);
    const bool from_lengths = p->type == MSGL_ROPE_YARN || p->type == MSGL_ROPE_LONGROPE;
    if (from_lengths && msgl__json_get(r, "factor") == NULL) {
        p->factor = (double)p->max_position / p->original_max;
    } else if (msgl__json_get(r, "factor") == NULL) {
        msgl__json_reject(r, MSGL_EFORMAT, "factor", NULL, "a number of 1 or more");
    } else {
        p->factor = msgl__json_num_or(r, "factor", 1, MAX_FACTOR, 1);
    }
    if (p->type == MSGL_ROPE_LLAMA3) {
        p->low_freq_factor = msgl__json_num_or(r, "low_freq_factor", 1e-6, MAX_FACTOR, 1);
        p->high_freq_factor = msgl__json_num_or(r, "high_freq_factor", 1e-6, MAX_FACTOR, 4);
        if (!(p->high_freq_factor >= p->low_freq_factor)) {
            msgl__json_reject(r, MSGL_EFORMAT, "high_freq_factor",
                              msgl__json_get(r, "high_freq_factor"),
                              "a number of low_freq_factor or more");
        }
    }
    if (from_lengths) {
        p->attention_factor = msgl__json_num_or(r, "attention_factor", 1e-6, MAX_FACTOR, 0);
    }
    if (p->type == MSGL_ROPE_YARN) read_yarn(r, p);
    if (p->type == MSGL_ROPE_LONGROPE) read_longrope(r, p);
    if (p->type == MSGL_ROPE_DYNAMIC && p->dim < 4) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "rope_type", NULL, "head_dim of 4 or more");
    }
}

// How many dimensions of a head rotate: all, or what the architecture's field says.
static int32_t rotary_dim(msgl_json_reader *r, msgl_json_reader *top, const msgl_model_config *c)
{
    const double usual = c->arch->rotary_factor, whole = usual > 0 ? 0 : 1;
    double factor = usual > 0 ? usual : 1;
    factor = msgl__json_num_or(top, "partial_rotary_factor", whole, 1, factor);
    factor = msgl__json_num_or(r, "partial_rotary_factor", whole, 1, factor);
    const int32_t dim = (int32_t)(c->head_dim * factor);
    if (r->status == 0 && (dim < 2 || dim % 2 != 0)) {
        char allowed[80];
        snprintf(allowed, sizeof allowed, "a share of head_dim %d that is even, and not 0",
                 c->head_dim);
        msgl__json_reject(r, MSGL_EFORMAT, "partial_rotary_factor", NULL, allowed);
    }
    return dim;
}

// One rope: of `obj` (NULL: there is none), an object of the file by the name `section`.
static void read_one_rope(msgl_json_reader *r, const msgl_model_config *c, const char *section,
                          const json_t *obj, double theta, msgl_rope_config *out)
{
    msgl_json_reader sub = *r;
    *out = (msgl_rope_config){
        .factor = 1, .max_position = c->max_position, .original_max = c->max_position};
    if (obj != NULL) {
        sub.section = section;
        sub.obj = obj;
    }
    const char *type = msgl__json_str_or(&sub, "rope_type", "default");
    const bool whole = strcmp(type, msgl__rope_type_name(MSGL_ROPE_PROPORTIONAL)) == 0;
    out->dim = whole ? c->head_dim : rotary_dim(&sub, r, c);
    out->theta = theta;
    if (obj != NULL) {
        out->theta = msgl__json_num_or(&sub, "rope_theta", 1, MAX_THETA, theta);
        if (sub.status == 0) read_rope_scaling(&sub, r, out);
    }
    if (r->status == 0) r->status = sub.status;
}

// The object of one kind of layers inside of a rope section, or NULL.
static const json_t *of_kind(const json_t *section, const char *kind)
{
    const json_t *v = json_object_get(section, kind);
    return json_is_object(v) ? v : NULL;
}

bool msgl__config_rope_section(const msgl_json_reader *r, msgl_json_reader *out)
{
    *out = *r;
    out->section =
        msgl__json_get(r, "rope_parameters") != NULL ? "rope_parameters" : "rope_scaling";
    out->obj = msgl__json_get(r, out->section);
    return json_is_object(out->obj);
}

// rope_theta stands beside rope_scaling in the older spelling and inside rope_parameters in the
// newer one, which has an object for each kind of layers where these differ.
static void read_ropes(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_json_reader sub;
    const bool there = msgl__config_rope_section(r, &sub);
    const char *const section = sub.section;
    const json_t *const obj = sub.obj;
    if (obj != NULL && !there) {
        msgl__json_reject(r, MSGL_EFORMAT, section, obj, "an object or null");
        return;
    }
    const char *const *named = c->arch->rope_kinds;
    const json_t *full = of_kind(obj, named[0] != NULL ? named[0] : "full_attention");
    const json_t *local = of_kind(obj, named[1] != NULL ? named[1] : "sliding_attention");
    if ((full != NULL || local != NULL) && !c->arch->local_rope) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, section, obj,
                          "one set of parameters for all layers");
        return;
    }
    const double usual = c->arch->default_theta > 0 ? c->arch->default_theta : 10000;
    const double theta = msgl__json_num_or(r, "rope_theta", 1, MAX_THETA, usual);
    read_one_rope(r, c, section, full != NULL ? full : obj, theta, &c->ropes[0]);
    c->num_ropes = 1;
    if (!c->arch->local_rope) return;
    const double near = msgl__json_num_or(r, "rope_local_base_freq", 1, MAX_THETA,
                                          c->arch->local_theta > 0 ? c->arch->local_theta : theta);
    read_one_rope(r, c, section, local, near, &c->ropes[1]);
    c->num_ropes = 2;
    if (r->status == 0 && msgl__rope_per_request(&c->ropes[1])) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "rope_type", NULL,
                          "a scaling that does not depend on the prompt, in sliding layers");
    }
}

// eos_token_id: absent, an id, or a list of ids.
static void read_eos(msgl_json_reader *r, msgl_model_config *c)
{
    if (c->decoder.head.kind != MSGL_HEAD_NONE) return; // the target ends answers
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

static void check_fixed(msgl_json_reader *r, const msgl_arch *arch)
{
    for (int i = 0; i < MSGL_MAX_FIXED && arch->fixed[i].key != NULL; i++) {
        const msgl_fixed_field *f = &arch->fixed[i];
        const json_t *v = msgl__json_get(r, f->key);
        const double number = json_is_boolean(v) ? json_is_true(v) : json_number_value(v);
        const bool right = (json_is_number(v) || json_is_boolean(v)) && number == f->value;
        char allowed[32];
        if (v == NULL || right) continue;
        snprintf(allowed, sizeof allowed, "%.10g", f->value);
        msgl__json_reject(r, MSGL_EUNSUPPORTED, f->key, v, allowed);
    }
}

static int32_t count_layers(msgl_json_reader *r, const msgl_arch *arch)
{
    for (int i = 0; i < MSGL_MAX_LAYER_LISTS && arch->layer_lists[i] != NULL; i++) {
        const json_t *v = msgl__json_get(r, arch->layer_lists[i]);
        const size_t n = json_is_string(v) ? json_string_length(v) : json_array_size(v);
        char allowed[64];
        if (v == NULL) continue;
        if (n >= 1 && n <= MSGL_MAX_LAYERS) return (int32_t)n;
        snprintf(allowed, sizeof allowed, "1 to %d layers", MSGL_MAX_LAYERS);
        msgl__json_reject(r, MSGL_EFORMAT, arch->layer_lists[i], v, allowed);
        return 0;
    }
    return msgl__json_int(r, "num_hidden_layers", 1, MSGL_MAX_LAYERS);
}

// The fields of the language model.
static void read_text_config(msgl_json_reader *r, msgl_model_config *c)
{
    r->aliases = c->arch->aliases;
    c->vocab_size = msgl__json_int(r, "vocab_size", 1, MSGL_MAX_VOCAB);
    c->hidden_size = msgl__json_int(r, "hidden_size", 1, MSGL_MAX_HIDDEN);
    c->num_layers = count_layers(r, c->arch);
    c->max_position = msgl__json_int(r, "max_position_embeddings", 1, INT32_MAX / 2);
    c->logit_scale = 1;
    if (r->status == 0) read_heads(r, c);
    if (r->status == 0) read_ropes(r, c);
    if (r->status == 0) c->arch->family->configure(r, c);
    if (r->status == 0) c->arch->configure(r, c);
    check_fixed(r, c->arch);
}

// The object that these fields are in, with what it leaves out; a new reference.
static json_t *text_object(msgl_json_reader *r, const msgl_arch *arch)
{
    const json_t *given = msgl__json_get(r, arch->text_section);
    if (!json_is_object(given)) {
        msgl__json_reject(r, MSGL_EFORMAT, arch->text_section, given, "an object");
        return NULL;
    }
    json_t *usual =
               msgl__json_loadb(arch->text_defaults, strlen(arch->text_defaults), 0, NULL, NULL),
           *all = msgl__json_copy(usual); // what is given comes above it
    int rc = usual == NULL || all == NULL ? -1 : 0;
    if (rc == 0 && arch->text_beside) rc = json_object_update(all, (json_t *)r->obj);
    if (rc == 0) rc = json_object_update(all, (json_t *)given);
    if (rc != 0) {
        r->status = msgl__err_set(r->err, MSGL_ENOMEM, "%s: out of memory", r->file);
    }
    json_decref(usual);
    return all;
}

int msgl__config_read(msgl_json_reader *r, msgl_model_config *c)
{
    memset(c, 0, sizeof *c);
    c->sampling = msgl__sampling_params_plain();
    bool classifies = false;
    find_arch(r, c, &classifies);
    if (r->status != 0) return r->status;
    msgl_quantization q;
    msgl__quantization_read(r, &q); // to check it; safetensors.c reads it for its tensors
    read_dtype(r, c);
    c->tie_embeddings = msgl__json_bool_or(r, "tie_word_embeddings", c->arch->ties_by_default);
    if (c->arch->text_section == NULL) {
        read_text_config(r, c);
    } else {
        json_t *text = text_object(r, c->arch);
        msgl_json_reader inner = *r;
        inner.section = c->arch->text_section;
        inner.obj = text;
        if (r->status == 0) read_text_config(&inner, c);
        if (r->status == 0) r->status = inner.status;
        json_decref(text);
    }
    if (r->status == 0 && classifies) read_score_head(r, c);
    if (r->status == 0) read_eos(r, c);
    return r->status;
}

int msgl__config_read_generation(msgl_json_reader *r, msgl_model_config *c)
{
    read_eos(r, c);
    msgl_sampling_params *p = &c->sampling;
    for (int i = 0; i < MSGL_SAMPLING_OF_MODEL; i++) {
        const msgl_setting *s = &msgl__sampling_settings.rows[i];
        const double usual = msgl__setting_number(s, p);
        const double v =
            s->type == MSGL_SETTING_INT
                ? msgl__json_int_or(r, s->field, (int32_t)s->min, (int32_t)s->max, (int32_t)usual)
                : msgl__json_num_or(r, s->field, s->min, s->max, usual);
        msgl__setting_put(s, v, p);
    }
    // Then the others are for requests that name a temperature themselves.
    if (!msgl__json_bool_or(r, "do_sample", true)) p->temperature = 0;
    return r->status;
}

int msgl__config_load_folder(const char *dir, msgl_model_config *out, msgl_err *err)
{
    char path[PATH_BYTES];
    json_t *root;
    int code = msgl__path_join(dir, "config.json", path, sizeof path, err);
    if (code == 0) code = msgl__json_load(path, CONFIG_MAX_BYTES, 0, &root, err);
    if (code != 0) return code;
    msgl_json_reader r = {.file = msgl__path_shown(path), .section = "", .obj = root, .err = err};
    code = msgl__config_read(&r, out);
    json_decref(root);
    if (code != 0) return code;

    code = msgl__path_join(dir, "generation_config.json", path, sizeof path, err);
    if (code == 0) code = msgl__json_load(path, CONFIG_MAX_BYTES, 0, &root, err);
    if (code != 0) return code == MSGL_ENOENT ? 0 : code;
    r = (msgl_json_reader){.file = msgl__path_shown(path), .section = "", .obj = root, .err = err};
    code = msgl__config_read_generation(&r, out);
    json_decref(root);
    return code;
}

int msgl__model_config_load(const char *path, msgl_model_config *out, msgl_err *err)
{
    return msgl__checkpoint_format_of(path)->config(path, out, err);
}

int msgl__model_config_load_mtp(const char *path, int32_t ahead, msgl_model_config *out,
                                msgl_err *err)
{
    const int code = msgl__model_config_load(path, out, err);
    if (code != 0) return code;
    if (out->arch->mtp == NULL) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "%s: %s has no layers that predict tokens further ahead (NEXTN)",
                             msgl__path_shown(path), out->arch->name);
    }
    out->arch->mtp(out, ahead);
    return 0;
}

int32_t msgl__model_config_context(const msgl_model_config *c)
{
    const msgl_rope_config *rope = &c->ropes[0];
    double context = c->max_position;
    if (c->arch->local_rope) return c->max_position; // which has the stretch in it
    if (rope->type == MSGL_ROPE_LINEAR || rope->type == MSGL_ROPE_DYNAMIC) {
        context = c->max_position * rope->factor;
    } else if (rope->type == MSGL_ROPE_YARN) {
        context = fmax(context, rope->original_max * rope->factor);
    }
    return context < INT32_MAX / 2 ? (int32_t)context : INT32_MAX / 2;
}
