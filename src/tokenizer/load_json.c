// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "tokenizer/load.h"

static const char *type_name(const json_t *j)
{
    static const char *const names[] = {"an object",     "an array", "a string", "an integer",
                                        "a real number", "true",     "false",    "null"};
    return j == NULL ? "nothing" : names[json_typeof(j)];
}

int msgl__j_enomem(msgl_err *err)
{
    return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
}

json_t *msgl__j_get(const json_t *obj, const char *key)
{
    json_t *j = json_object_get(obj, key);
    return json_is_null(j) ? NULL : j;
}

static int wrong(const char *where, const char *key, const char *what, const json_t *found,
                 msgl_err *err)
{
    return msgl__err_set(err, MSGL_EFORMAT, "%s.%s: expected %s, found %s", where, key, what,
                         type_name(found));
}

int msgl__j_expect(const json_t *j, const char *where, json_type type, const char *what,
                   msgl_err *err)
{
    if (j != NULL && json_typeof(j) == type) return 0;
    return msgl__err_set(err, MSGL_EFORMAT, "%s: expected %s, found %s", where, what, type_name(j));
}

int msgl__j_bool(const json_t *obj, const char *where, const char *key, int64_t missing, int *out,
                 msgl_err *err)
{
    const json_t *j = msgl__j_get(obj, key);
    if (j == NULL && missing != MSGL_J_REQUIRED) {
        *out = (int)missing;
        return 0;
    }
    if (!json_is_boolean(j)) return wrong(where, key, "true or false", j, err);
    *out = json_is_true(j);
    return 0;
}

int msgl__j_int(const json_t *obj, const char *where, const char *key, int64_t lo, int64_t hi,
                int64_t missing, int64_t *out, msgl_err *err)
{
    const json_t *j = msgl__j_get(obj, key);
    if (j == NULL && missing != MSGL_J_REQUIRED) {
        *out = missing;
        return 0;
    }
    if (!json_is_integer(j)) {
        char what[64];
        snprintf(what, sizeof what, "an integer from %lld to %lld", (long long)lo, (long long)hi);
        return wrong(where, key, what, j, err);
    }
    *out = json_integer_value(j);
    if (*out >= lo && *out <= hi) return 0;
    return msgl__err_set(err, MSGL_EFORMAT, "%s.%s: %lld is outside %lld to %lld", where, key,
                         (long long)*out, (long long)lo, (long long)hi);
}

int msgl__j_string(const json_t *obj, const char *where, const char *key, int optional,
                   msgl_tok_str *out, msgl_err *err)
{
    const json_t *j = msgl__j_get(obj, key);
    *out = (msgl_tok_str){0};
    if (j == NULL && optional) return 0;
    if (!json_is_string(j)) return wrong(where, key, "a string", j, err);
    out->n = json_string_length(j);
    out->p = msgl__malloc(out->n + 1);
    if (out->p == NULL) return msgl__j_enomem(err);
    memcpy(out->p, json_string_value(j), out->n + 1);
    return 0;
}

int msgl__j_char(const json_t *obj, const char *where, const char *key, uint32_t *out,
                 msgl_err *err)
{
    const json_t *j = msgl__j_get(obj, key);
    if (!json_is_string(j)) return wrong(where, key, "a string of one character", j, err);
    const char *p = json_string_value(j);
    size_t i = 0;
    if (json_string_length(j) > 0) *out = msgl__utf8_next(p, &i);
    if (i > 0 && i == json_string_length(j)) return 0;
    return wrong(where, key, "a string of one character", j, err);
}

int msgl__j_type(const json_t *obj, const char *where, const char **type, msgl_err *err)
{
    const int rc = msgl__j_expect(obj, where, JSON_OBJECT, "an object", err);
    if (rc != 0) return rc;
    const json_t *j = msgl__j_get(obj, "type");
    if (!json_is_string(j)) return wrong(where, "type", "a string", j, err);
    *type = json_string_value(j);
    return 0;
}

#define MAX_DEPTH 8

static int load_steps(msgl_tokenizer *t, const json_t *j, const char *where, const char *list,
                      msgl_load_step *load, int depth, msgl_err *err)
{
    const char *type;
    int rc = msgl__j_type(j, where, &type, err);
    if (rc != 0) return rc;
    if (strcmp(type, "Sequence") != 0) return load(t, j, where, type, err);
    const json_t *steps = msgl__j_get(j, list);
    if (!json_is_array(steps)) return wrong(where, list, "an array", steps, err);
    if (depth >= MAX_DEPTH || json_array_size(steps) > MSGL_TOK_MAX_STEPS) {
        return msgl__err_set(
            err, MSGL_ELIMIT,
            "%s: at most %d steps in a Sequence, and %d Sequences inside each other", where,
            MSGL_TOK_MAX_STEPS, MAX_DEPTH);
    }
    for (size_t i = 0; i < json_array_size(steps) && rc == 0; i++) {
        char path[MSGL_WHERE_SIZE];
        snprintf(path, sizeof(path), "%s.%s[%zu]", where, list, i);
        rc = load_steps(t, json_array_get(steps, i), path, list, load, depth + 1, err);
    }
    return rc;
}

int msgl__load_steps(msgl_tokenizer *t, const json_t *j, const char *where, const char *list,
                     msgl_load_step *load, msgl_err *err)
{
    return j == NULL || json_is_null(j) ? 0 : load_steps(t, j, where, list, load, 0, err);
}

int msgl__load_pattern(const msgl_tokenizer *t, const json_t *obj, const char *where,
                       const char *key, msgl_tok_pattern *out, msgl_err *err)
{
    char path[MSGL_WHERE_SIZE];
    snprintf(path, sizeof(path), "%s.%s", where, key);
    const json_t *j = msgl__j_get(obj, key);
    int rc = msgl__j_expect(j, path, JSON_OBJECT, "{\"String\": ...} or {\"Regex\": ...}", err);
    if (rc != 0) return rc;
    const int regex = msgl__j_get(j, "Regex") != NULL;
    rc = msgl__j_string(j, path, regex ? "Regex" : "String", 0, &out->text, err);
    if (rc != 0) return rc;
    if (!regex && out->text.n == 0) {
        return msgl__err_set(err, MSGL_EFORMAT, "%s.String: empty, nothing to look for", path);
    }
    if (!regex) return 0;
    out->scan = msgl__scan_known(out->text.p, out->text.n);
    if (out->scan != MSGL_SCAN_NONE) return 0;
    rc = msgl__regex_compile(t->uni, out->text.p, out->text.n, &out->regex, err);
    return rc == 0 ? 0 : msgl__err_prefix(err, rc, "%s", path);
}
