// SPDX-License-Identifier: Apache-2.0
#include "cli/speculative.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "core/attributes.h"
#include "core/err.h"
#include "core/settings.h"
#include "utils/json.h"

static const char FLAG[] = "--speculative-config";

static const struct {
    const char *method, *algorithm;
} METHODS[] = {{"ngram", "NGRAM"},
               {"suffix", "SUFFIX"},
               {"draft_model", "STANDALONE"},
               {"eagle3", "EAGLE3"},
               {"mtp", "NEXTN"}};

// Numbers; `more`: what the option of that field counts more.
static const struct {
    const char *name, *field;
    int more;
} NUMBERS[] = {
    {"num_speculative_tokens", "speculative_num_draft_tokens", 1},
    {"prompt_lookup_min", "speculative_ngram_min", 0},
    {"prompt_lookup_max", "speculative_ngram_max", 0},
};

static const msgl_setting *setting_of(const char *field)
{
    const msgl_setting *s = msgl__engine_settings.rows;
    while (strcmp(s->field, field) != 0) s++;
    return s;
}

static int take_method(const json_t *v, msgl_options *o, msgl_err *err)
{
    const char *name = json_is_string(v) ? json_string_value(v) : NULL;
    for (size_t i = 0; name != NULL && i < MSGL_COUNT(METHODS); i++) {
        if (strcmp(name, METHODS[i].method) != 0) continue;
        o->speculative_algorithm = METHODS[i].algorithm;
        return 0;
    }
    return msgl__err_set(
        err, MSGL_EINVAL,
        "%s: \"method\" is %s%.40s%s; allowed: \"ngram\", \"suffix\", \"draft_model\", "
        "\"eagle3\", \"mtp\"",
        FLAG, name != NULL ? "\"" : "", name != NULL ? name : "no string",
        name != NULL ? "\"" : "");
}

// The text is kept as long as the program runs.
static int take_model(const json_t *v, msgl_options *o, msgl_err *err)
{
    static char model[1200];
    if (!json_is_string(v) || json_string_length(v) >= sizeof model) {
        return msgl__err_set(err, MSGL_EINVAL, "%s: \"model\" must be a folder, a file or a name",
                             FLAG);
    }
    snprintf(model, sizeof model, "%s", json_string_value(v));
    o->speculative_draft_model_path = model;
    return 0;
}

static int take_member(const char *name, const json_t *v, msgl_options *o, msgl_err *err)
{
    if (strcmp(name, "method") == 0) return take_method(v, o, err);
    if (strcmp(name, "model") == 0) return take_model(v, o, err);
    for (size_t i = 0; i < MSGL_COUNT(NUMBERS); i++) {
        if (strcmp(name, NUMBERS[i].name) != 0) continue;
        const msgl_setting *option = setting_of(NUMBERS[i].field);
        const int most = (int)option->max - NUMBERS[i].more;
        const json_int_t n = json_integer_value(v);
        if (!json_is_integer(v) || n < 1 || n > most) {
            return msgl__err_set(err, MSGL_EINVAL, "%s: \"%s\" must be a whole number from 1 to %d",
                                 FLAG, name, most);
        }
        msgl__setting_put(option, (double)(n + NUMBERS[i].more), o);
        return 0;
    }
    return msgl__err_set(err, MSGL_EINVAL,
                         "%s has \"%.40s\"; allowed: method, model, num_speculative_tokens, "
                         "prompt_lookup_min, prompt_lookup_max",
                         FLAG, name);
}

int msgl__speculative_config(const char *text, msgl_options *o, msgl_err *err)
{
    msgl_options now = *o;
    json_t *all = NULL;
    const char *name;
    json_t *v;
    int rc = msgl__json_parse(FLAG, text, strlen(text), JSON_REJECT_DUPLICATES, &all, NULL);
    if (rc == MSGL_ENOMEM) return msgl__err_set(err, rc, "%s: out of memory", FLAG);
    rc = 0;
    if (!json_is_object(all) || json_object_get(all, "method") == NULL) {
        rc = msgl__err_set(err, MSGL_EINVAL,
                           "%s is \"%.60s\"; allowed: an object with a \"method\", such as "
                           "{\"method\": \"ngram\", \"num_speculative_tokens\": 5}",
                           FLAG, text);
    } else {
        json_object_foreach(all, name, v)
        {
            if (rc == 0) rc = take_member(name, v, &now, err);
        }
    }
    json_decref(all);
    if (rc == 0) *o = now;
    return rc;
}
