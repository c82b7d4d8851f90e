// SPDX-License-Identifier: Apache-2.0
#include "models/embeds.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "core/attributes.h"
#include "models/config.h"
#include "models/json_read.h"
#include "utils/file.h"
#include "utils/json.h"

enum { MAX_BYTES = 1 << 20, PATH_BYTES = 4096 };
#define MODULES "modules.json"

// "Pooling" of "sentence_transformers.models.Pooling"; releases differ in what is in front.
static const char *class_of(const json_t *module)
{
    const char *type = json_string_value(json_object_get(module, "type"));
    const char *dot = type == NULL ? NULL : strrchr(type, '.');
    return dot == NULL ? "" : dot + 1;
}

// Names of msgl_pool_mode, behind "pooling_mode_" in one spelling and by themselves in the other.
static const char *const MODES[][2] = {[MSGL_POOL_LAST] = {"lasttoken", "lasttoken"},
                                       [MSGL_POOL_FIRST] = {"cls_token", "cls"},
                                       [MSGL_POOL_MEAN] = {"mean_tokens", "mean"}};

// The one mode that is on, of either spelling, or "none"; of several the first that is none of
// those known, or "several".
static const char *mode_of(const json_t *config, int *spelling)
{
    static const char PREFIX[] = "pooling_mode_";
    const char *mode = json_string_value(json_object_get(config, "pooling_mode")), *key;
    *spelling = mode != NULL;
    if (mode != NULL) return mode;
    const char *found = "none";
    int num = 0;
    json_t *v;
    json_object_foreach((json_t *)config, key, v)
    {
        if (strncmp(key, PREFIX, sizeof PREFIX - 1) != 0 || !json_is_true(v)) continue;
        found = key + sizeof PREFIX - 1;
        num++;
    }
    return num > 1 ? "several" : found;
}

// The config.json of a module's own folder; *file [PATH_BYTES] is its path.
static int load_config(const char *dir, const json_t *module, char *file, json_t **out,
                       msgl_err *err)
{
    char folder[PATH_BYTES], shown[64];
    const char *sub = json_string_value(json_object_get(module, "path"));
    if (sub == NULL || sub[0] == '\0' || sub[0] == '.' || strchr(sub, '/') != NULL ||
        strlen(sub) >= MSGL_MODULE_NAME) {
        return msgl__err_set(
            err, MSGL_EFORMAT,
            MODULES ": path of %s: found \"%s\", allowed: the name of a folder, of up to "
                    "%d bytes",
            class_of(module), msgl__printable(sub == NULL ? "" : sub, shown, sizeof shown),
            MSGL_MODULE_NAME - 1);
    }
    int code = msgl__path_join(dir, sub, folder, sizeof folder, err);
    if (code == 0) code = msgl__path_join(folder, "config.json", file, PATH_BYTES, err);
    return code == 0 ? msgl__json_load(file, MAX_BYTES, 0, out, err) : code;
}

// A model that generates sees a whole text in its last token alone.
static int read_pooling(const char *dir, const json_t *module, bool encodes,
                        msgl_model_pooling *out, msgl_err *err)
{
    char file[PATH_BYTES], shown[64];
    json_t *config;
    int spelling, code = load_config(dir, module, file, &config, err);
    if (code != 0) return code;
    const char *mode = mode_of(config, &spelling);
    size_t i = 0, known = encodes ? MSGL_COUNT(MODES) : 1;
    while (i < known && strcmp(mode, MODES[i][spelling]) != 0) i++;
    if (i < known) {
        out->mode = (msgl_pool_mode)i;
        // The last token is the same one either way.
        out->text_form.without_prompt =
            out->mode != MSGL_POOL_LAST && json_is_false(json_object_get(config, "include_prompt"));
    } else {
        code = msgl__err_set(err, MSGL_EUNSUPPORTED, "%s: pooling mode: found %s, allowed: %s",
                             msgl__path_shown(file), msgl__printable(mode, shown, sizeof shown),
                             encodes ? "one of lasttoken, cls, mean" : "lasttoken");
    }
    json_decref(config);
    return code;
}

// Names of torch.nn's activations, and of no other modules.
static int read_activation(msgl_json_reader *r, msgl_projection_act *out)
{
    static const char *const names[] = {[MSGL_PROJECTION_IDENTITY] = "Identity",
                                        [MSGL_PROJECTION_TANH] = "Tanh",
                                        [MSGL_PROJECTION_GELU] = "GELU",
                                        [MSGL_PROJECTION_SILU] = "SiLU"};
    static const char key[] = "activation_function", torch[] = "torch.nn.modules.";
    const char *name = msgl__json_str_or(r, key, "torch.nn.modules.activation.Tanh");
    const char *last = strrchr(name, '.');
    for (size_t i = 0; i < MSGL_COUNT(names) && last != NULL; i++) {
        if (strncmp(name, torch, sizeof torch - 1) != 0 || strcmp(last + 1, names[i]) != 0)
            continue;
        *out = (msgl_projection_act)i;
        return 0;
    }
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key),
                      "torch.nn.modules' Identity, Tanh, GELU, SiLU");
    return r->status;
}

// What a Dense does is in its folder; a residual connection and other inputs are not there here.
static int read_dense(const char *dir, const json_t *module, msgl_model_pooling *out, msgl_err *err)
{
    static const char sentence[] = "sentence_embedding";
    char file[PATH_BYTES];
    json_t *config;
    if (out->num_dense == MSGL_MAX_PROJECTIONS) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             MODULES ": found more modules Dense than %d, allowed: so many",
                             MSGL_MAX_PROJECTIONS);
    }
    msgl_projection *p = &out->dense[out->num_dense++];
    int code = load_config(dir, module, file, &config, err);
    if (code != 0) return code;
    msgl_json_reader r = {.file = msgl__path_shown(file), .section = "", .obj = config, .err = err};
    *p = (msgl_projection){.tensor = "linear.",
                           .in = msgl__json_int(&r, "in_features", 1, MSGL_MAX_HIDDEN),
                           .out = msgl__json_int(&r, "out_features", 1, MSGL_MAX_HIDDEN),
                           .bias = msgl__json_bool_or(&r, "bias", true)};
    const char *folder = json_string_value(json_object_get(module, "path"));
    (void)snprintf(p->file, sizeof p->file, "%s/model.safetensors", folder);
    (void)snprintf(p->prefix, sizeof p->prefix, "%s.", folder);
    const char *const names[] = {"module_input_name", "module_output_name"};
    for (size_t i = 0; i < MSGL_COUNT(names); i++) {
        if (strcmp(msgl__json_str_or(&r, names[i], sentence), sentence) == 0) continue;
        msgl__json_reject(&r, MSGL_EUNSUPPORTED, names[i], msgl__json_get(&r, names[i]), sentence);
    }
    if (msgl__json_bool_or(&r, "use_residual", false)) {
        msgl__json_reject(&r, MSGL_EUNSUPPORTED, "use_residual", msgl__json_get(&r, "use_residual"),
                          "false");
    }
    if (r.status == 0) read_activation(&r, &p->act);
    json_decref(config);
    return r.status;
}

int msgl__model_take_dense(const msgl_model_pooling *p, int32_t hidden,
                           msgl_projection *projections, int32_t *num, msgl_err *err)
{
    int32_t columns = hidden;
    for (int32_t i = 0; i < p->num_dense; i++) {
        if (p->dense[i].in != columns) {
            return msgl__err_set(err, MSGL_EFORMAT,
                                 "config.json of %s: in_features: found %d, allowed %d, which are "
                                 "before it",
                                 p->dense[i].file, (int)p->dense[i].in, (int)columns);
        }
        columns = p->dense[i].out;
        projections[i] = p->dense[i];
    }
    *num = p->num_dense;
    return 0;
}

// The tokens that a LogitScore compares, or one whose logit is the score.
static int read_score(const char *dir, const json_t *module, int ids[2], msgl_err *err)
{
    static const char *const names[] = {"true_token_id", "false_token_id"};
    char file[PATH_BYTES];
    json_t *config;
    int code = load_config(dir, module, file, &config, err);
    if (code != 0) return code;
    for (int i = 0; i < 2 && code == 0; i++) {
        const json_t *id = json_object_get(config, names[i]);
        const json_int_t value = json_integer_value(id);
        if (i == 1 && (id == NULL || json_is_null(id))) {
            ids[i] = -1;
            break;
        }
        if (!json_is_integer(id) || value < 0 || value > INT32_MAX) {
            code = msgl__err_set(err, MSGL_EUNSUPPORTED, "%s: %s: allowed: a token's id",
                                 msgl__path_shown(file), names[i]);
        }
        ids[i] = (int)value;
    }
    json_decref(config);
    return code;
}

// A Dense reads what was pooled, and is not behind a Normalize.
static bool dense_may_follow(const char *before)
{
    return strcmp(before, "Pooling") == 0 || strcmp(before, "Dense") == 0;
}

// The object `key` of the object `outer`, which `name` names for messages.
static msgl_json_reader inside(msgl_json_reader *config, const char *outer, const char *key,
                               const char *name)
{
    msgl_json_reader all = msgl__json_section(config, outer);
    msgl_json_reader r = msgl__json_section(&all, key);
    r.section = name;
    return r;
}

// Fails r unless the string `key` is `only`.
static void expect(msgl_json_reader *r, const char *key, const char *only)
{
    const char *found = msgl__json_str_or(r, key, NULL);
    if (r->status != 0 || (found != NULL && strcmp(found, only) == 0)) return;
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key), only);
}

// modality_config's "message", which sentence-transformers 6 writes where the tokenizer has a chat
// template. Without it texts stand by themselves.
static int read_message(msgl_json_reader *config, msgl_text_form *out)
{
    msgl_json_reader r = inside(config, "modality_config", "message", "modality_config.message");
    if (r.obj == NULL) return r.status;
    expect(&r, "method", "forward");
    expect(&r, "method_output_name", "last_hidden_state");
    const char *form = msgl__json_str_or(&r, "format", "");
    out->parts = strcmp(form, "structured") == 0;
    if (r.status == 0 && !out->parts && strcmp(form, "flat") != 0) {
        msgl__json_reject(&r, MSGL_EUNSUPPORTED, "format", msgl__json_get(&r, "format"),
                          "flat or structured");
    }
    out->turns = r.status == 0;
    return r.status;
}

// What the template is given beside messages. How texts are cut is not looked at, as they are not.
static int read_template_arguments(msgl_json_reader *config, msgl_text_form *out)
{
    msgl_json_reader r =
        inside(config, "processing_kwargs", "chat_template", "processing_kwargs.chat_template");
    const char *key;
    json_t *v;
    if (r.obj == NULL) return r.status;
    out->answer_begins = msgl__json_bool_or(&r, "add_generation_prompt", false);
    json_object_foreach((json_t *)r.obj, key, v)
    {
        static const char *const known[] = {"add_generation_prompt", "restore_suffix", "truncation",
                                            "max_length", "padding"};
        size_t i = 0;
        while (i < MSGL_COUNT(known) && strcmp(key, known[i]) != 0) i++;
        if (i == MSGL_COUNT(known))
            msgl__json_reject(&r, MSGL_EUNSUPPORTED, key, v, "add_generation_prompt alone");
    }
    return r.status;
}

// What a Transformer makes of a text before the model reads it.
static int read_transformer(const char *dir, msgl_text_form *out, msgl_err *err)
{
    char file[PATH_BYTES];
    json_t *config;
    int code = msgl__path_join(dir, "sentence_bert_config.json", file, sizeof file, err);
    if (code != 0 || access(file, F_OK) != 0) return code;
    code = msgl__json_load(file, MAX_BYTES, 0, &config, err);
    if (code != 0) return code;
    msgl_json_reader r = {.file = msgl__path_shown(file), .section = "", .obj = config, .err = err};
    code = read_message(&r, out);
    if (code == 0 && out->turns) code = read_template_arguments(&r, out);
    json_decref(config);
    return code;
}

// Beside the model, what pools and what is behind that, only what vectors get anyway.
static int check_modules(const char *dir, const json_t *modules, bool encodes,
                         msgl_model_pooling *out, msgl_err *err)
{
    const bool scores = out->kind == MSGL_POOL_SCORE;
    size_t i;
    json_t *m;
    const char *before = "";
    json_array_foreach((json_t *)modules, i, m)
    {
        char shown[64];
        const char *class = class_of(m);
        int code = 0;
        if (!scores && strcmp(class, "Pooling") == 0) {
            code = read_pooling(dir, m, encodes, out, err);
        } else if (!scores && strcmp(class, "Dense") == 0 && dense_may_follow(before)) {
            code = read_dense(dir, m, out, err);
        } else if (scores && strcmp(class, "LogitScore") == 0) {
            code = read_score(dir, m, out->score_ids, err);
        } else if (!scores && strcmp(class, "Transformer") == 0) {
            code = read_transformer(dir, &out->text_form, err);
        } else if (strcmp(class, "Transformer") != 0 &&
                   (scores || strcmp(class, "Normalize") != 0)) {
            return msgl__err_set(
                err, MSGL_EUNSUPPORTED, MODULES ": found a module %s, allowed: Transformer, %s",
                msgl__printable(class, shown, sizeof shown),
                scores ? "LogitScore" : "Pooling, Dense, Normalize, in this order");
        }
        if (code != 0) return code;
        before = class;
    }
    return 0;
}

int msgl__model_pooling(const char *path, bool encodes, msgl_model_pooling *out, msgl_err *err)
{
    char file[PATH_BYTES];
    size_t i;
    *out = (msgl_model_pooling){.kind = MSGL_POOL_NONE};
    int code = msgl__path_join(path, MODULES, file, sizeof file, err);
    if (code != 0 || access(file, F_OK) != 0) return code;
    json_t *modules, *m;
    code = msgl__json_load_array(file, MAX_BYTES, 0, &modules, err);
    if (code != 0) return code;
    json_array_foreach(modules, i, m)
    {
        if (strcmp(class_of(m), "Pooling") == 0) out->kind = MSGL_POOL_EMBED;
        if (strcmp(class_of(m), "LogitScore") == 0) out->kind = MSGL_POOL_SCORE;
    }
    if (out->kind != MSGL_POOL_NONE) code = check_modules(path, modules, encodes, out, err);
    json_decref(modules);
    return code;
}
