// SPDX-License-Identifier: Apache-2.0
#define PCRE2_CODE_UNIT_WIDTH 8
#include "models/lora_config.h"

#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "models/json_read.h"
#include "utils/file.h"
#include "utils/json.h"

enum {
    MAX_BYTES = 16 << 20,
    MAX_PATTERNS = 65536, // PEFT may write one for each module
    MAX_PATTERN = 512,
    MAX_TOKENS = 65536, // of a module
    MAX_TOKEN_MODULES = 16,
    MATCH_LIMIT = 100000, // steps of one match
};

typedef struct pattern {
    pcre2_code *code;
    double alpha;
} pattern;

// Of one module.
typedef struct tokens {
    char *module; // the end of its name, behind a dot; NULL: the embedding
    int32_t *ids; // [num]
    int32_t num;
} tokens;

struct msgl_lora_config {
    char file[MSGL_PATH_SHOWN + 32];
    double alpha;
    bool rslora;
    pattern *patterns; // alpha_pattern, in the file's order
    size_t num_patterns;
    tokens *tokens;
    size_t num_tokens;
    pcre2_match_data *match;
    pcre2_match_context *limits;
};

// Fields that say how an adapter was trained or found, and nothing of what it computes. Ranks and
// modules are what the tensors say.
static const char *const HARMLESS[] = {
    "task_type",
    "auto_mapping",
    "peft_version",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "r",
    "target_modules",
    "lora_dropout",
    "exclude_modules",
    "init_lora_weights",
    "layers_to_transform",
    "layers_pattern",
    "rank_pattern",
    "megatron_core",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "runtime_config",
    "target_parameters",
    "modules_to_save", // the tensors say which
    "trainable_token_indices",
    "qalora_group_size",
    "ensure_weight_tying",
    "peft_type",
    "lora_alpha",
    "use_rslora",
    "alpha_pattern",
};

// What has to be missing, null, false or empty, and what is refused by it.
static const struct {
    const char *key, *what;
} REFUSED[] = {
    {"use_dora", "DoRA"},
    {"use_qalora", "QALoRA"},
    {"lora_bias", "a bias of B"},
    {"fan_in_fan_out", "transposed weights"},
    {"layer_replication", "repeated layers"},
    {"alora_invocation_tokens", "activated LoRA"},
    {"megatron_config", "Megatron's layers"},
};

static bool is_nothing(const json_t *v)
{
    return v == NULL || json_is_null(v) || json_is_false(v) ||
           (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static bool is_harmless(const char *key)
{
    for (size_t i = 0; i < MSGL_COUNT(HARMLESS); i++) {
        if (strcmp(key, HARMLESS[i]) == 0) return true;
    }
    return false;
}

static void refuse(msgl_json_reader *r)
{
    char allowed[96];
    for (size_t i = 0; i < MSGL_COUNT(REFUSED); i++) {
        const json_t *v = json_object_get(r->obj, REFUSED[i].key);
        if (is_nothing(v)) continue;
        snprintf(allowed, sizeof allowed, "none: %s is not computed here", REFUSED[i].what);
        msgl__json_reject(r, MSGL_EUNSUPPORTED, REFUSED[i].key, v, allowed);
        return;
    }
    msgl__json_only(r, "bias", "none");
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)r->obj, key, v)
    {
        bool known = is_harmless(key) || strcmp(key, "bias") == 0 || is_nothing(v);
        for (size_t i = 0; i < MSGL_COUNT(REFUSED) && !known; i++) {
            known = strcmp(key, REFUSED[i].key) == 0;
        }
        if (known || r->status != 0) continue;
        char shown[64];
        msgl__json_reject(r, MSGL_EUNSUPPORTED, msgl__printable(key, shown, sizeof shown), v,
                          "fields of PEFT's LoraConfig that are known here");
    }
}

// As PEFT's get_pattern_key: re.match(r"(.*\.)?({key})$", name).
static pcre2_code *compile(const char *key)
{
    char text[MAX_PATTERN + 32];
    int error;
    PCRE2_SIZE at;
    if (strlen(key) > MAX_PATTERN) return NULL;
    const int n = snprintf(text, sizeof text, "\\A(?:.*\\.)?(?:%s)\\z", key);
    return pcre2_compile((PCRE2_SPTR)text, (PCRE2_SIZE)n, 0, &error, &at, NULL);
}

static void read_patterns(msgl_json_reader *r, msgl_lora_config *c)
{
    const json_t *all = msgl__json_get(r, "alpha_pattern");
    const char *key;
    json_t *v;
    if (all == NULL || r->status != 0) return;
    const size_t n = json_object_size(all);
    if (!json_is_object(all) || n > MAX_PATTERNS) {
        msgl__json_reject(r, MSGL_EFORMAT, "alpha_pattern", all, "an object of up to 65536");
        return;
    }
    c->patterns = msgl__calloc(n + 1, sizeof *c->patterns);
    if (c->patterns == NULL) {
        r->status = msgl__err_set(r->err, MSGL_ENOMEM, "%s: out of memory", r->file);
        return;
    }
    json_object_foreach((json_t *)all, key, v)
    {
        const double alpha = json_is_number(v) ? json_number_value(v) : NAN;
        if (!isfinite(alpha)) {
            msgl__json_reject(r, MSGL_EFORMAT, "alpha_pattern", v, "numbers");
            return;
        }
        pcre2_code *code = compile(key);
        if (code == NULL) {
            char shown[64];
            r->status =
                msgl__err_set(r->err, MSGL_EFORMAT,
                              "%s: alpha_pattern: found \"%s\", allowed a regular "
                              "expression of up to %d bytes",
                              r->file, msgl__printable(key, shown, sizeof shown), MAX_PATTERN);
            return;
        }
        c->patterns[c->num_patterns++] = (pattern){.code = code, .alpha = alpha};
    }
}

static int take_tokens(msgl_json_reader *r, tokens *t, const char *module, const json_t *list)
{
    const size_t n = json_array_size(list);
    bool ok = json_is_array(list) && n > 0 && n <= MAX_TOKENS;
    t->ids = ok ? msgl__reallocarray(NULL, n, sizeof *t->ids) : NULL;
    t->module = module != NULL ? msgl__strdup(module) : NULL;
    if (ok && (t->ids == NULL || (module != NULL && t->module == NULL))) {
        return msgl__err_set(r->err, MSGL_ENOMEM, "%s: out of memory", r->file);
    }
    for (size_t i = 0; ok && i < n; i++) {
        const json_t *v = json_array_get(list, i);
        const json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        ok = id >= 0 && id <= INT32_MAX;
        t->ids[t->num++] = (int32_t)id;
    }
    if (!ok) {
        msgl__json_reject(r, MSGL_EFORMAT, "trainable_token_indices", list,
                          "ids of tokens, up to 65536 of a module");
    }
    return r->status;
}

static void read_tokens(msgl_json_reader *r, msgl_lora_config *c)
{
    const json_t *all = json_object_get(r->obj, "trainable_token_indices");
    const char *key;
    json_t *v;
    if (is_nothing(all) || r->status != 0) return;
    const size_t n = json_is_object(all) ? json_object_size(all) : 1;
    if (n > MAX_TOKEN_MODULES) {
        r->status = msgl__err_set(r->err, MSGL_ELIMIT,
                                  "%s: trainable_token_indices: found %zu modules, allowed %d",
                                  r->file, n, MAX_TOKEN_MODULES);
        return;
    }
    c->tokens = msgl__calloc(n, sizeof *c->tokens);
    if (c->tokens == NULL) {
        r->status = msgl__err_set(r->err, MSGL_ENOMEM, "%s: out of memory", r->file);
        return;
    }
    if (!json_is_object(all)) {
        r->status = take_tokens(r, &c->tokens[c->num_tokens++], NULL, all);
        return;
    }
    json_object_foreach((json_t *)all, key, v)
    {
        if (r->status == 0) r->status = take_tokens(r, &c->tokens[c->num_tokens++], key, v);
    }
}

const int32_t *msgl__lora_config_tokens(const msgl_lora_config *c, const char *module, bool embeds,
                                        int32_t *num)
{
    for (size_t i = 0; i < c->num_tokens; i++) {
        const tokens *t = &c->tokens[i];
        const size_t n = strlen(module), len = t->module != NULL ? strlen(t->module) : 0;
        const bool ends = t->module == NULL
                              ? embeds
                              : n >= len && strcmp(module + n - len, t->module) == 0 &&
                                    (n == len || module[n - len - 1] == '.');
        if (!ends) continue;
        *num = t->num;
        return t->ids;
    }
    *num = 0;
    return NULL;
}

static void read_all(msgl_json_reader *r, msgl_lora_config *c)
{
    const char *type = msgl__json_str_or(r, "peft_type", NULL);
    if (r->status == 0 && (type == NULL || strcmp(type, "LORA") != 0)) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "peft_type", json_object_get(r->obj, "peft_type"),
                          "LORA");
    }
    if (r->status == 0) refuse(r);
    c->alpha = msgl__json_num_or(r, "lora_alpha", -1e6, 1e6, 8);
    c->rslora = msgl__json_bool_or(r, "use_rslora", false);
    read_patterns(r, c);
    read_tokens(r, c);
}

int msgl__lora_config_load(const char *dir, msgl_lora_config **out, msgl_err *err)
{
    char path[4096];
    json_t *root;
    int code = msgl__path_join(dir, "adapter_config.json", path, sizeof path, err);
    if (code == 0) code = msgl__json_load(path, MAX_BYTES, 0, &root, err);
    if (code != 0) return code;
    msgl_lora_config *c = msgl__calloc(1, sizeof *c);
    if (c != NULL) {
        c->match = pcre2_match_data_create(1, NULL);
        c->limits = pcre2_match_context_create(NULL);
    }
    if (c == NULL || c->match == NULL || c->limits == NULL) {
        code = msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", msgl__path_shown(path));
    } else {
        char shown[MSGL_PATH_SHOWN];
        snprintf(c->file, sizeof c->file, "%s", msgl__path_short(path, shown));
        pcre2_set_match_limit(c->limits, MATCH_LIMIT);
        msgl_json_reader r = {.file = c->file, .section = "", .obj = root, .err = err};
        read_all(&r, c);
        code = r.status;
    }
    json_decref(root);
    if (code != 0) {
        msgl__lora_config_free(c);
        return code;
    }
    *out = c;
    return 0;
}

int msgl__lora_config_of_alpha(double alpha, msgl_lora_config **out, msgl_err *err)
{
    msgl_lora_config *c = *out = msgl__calloc(1, sizeof *c);
    if (c == NULL) return msgl__err_set(err, MSGL_ENOMEM, "adapter: out of memory");
    c->alpha = alpha;
    return 0;
}

void msgl__lora_config_free(msgl_lora_config *c)
{
    if (c == NULL) return;
    for (size_t i = 0; i < c->num_patterns; i++) pcre2_code_free(c->patterns[i].code);
    msgl__free(c->patterns);
    for (size_t i = 0; i < c->num_tokens; i++) {
        msgl__free(c->tokens[i].module);
        msgl__free(c->tokens[i].ids);
    }
    msgl__free(c->tokens);
    pcre2_match_data_free(c->match);
    pcre2_match_context_free(c->limits);
    msgl__free(c);
}

int msgl__lora_config_scale(const msgl_lora_config *c, const char *module, int r, float *scale,
                            msgl_err *err)
{
    double alpha = c->alpha;
    for (size_t i = 0; i < c->num_patterns; i++) {
        const int rc = pcre2_match(c->patterns[i].code, (PCRE2_SPTR)module, strlen(module), 0, 0,
                                   c->match, c->limits);
        if (rc == PCRE2_ERROR_NOMATCH) continue;
        if (rc < 0) {
            return msgl__err_set(err, MSGL_ELIMIT, "%s: alpha_pattern: entry %zu takes too long",
                                 c->file, i);
        }
        alpha = c->patterns[i].alpha;
        break;
    }
    *scale = (float)(c->rslora ? alpha / sqrt((double)r) : alpha / (double)r);
    return 0;
}
