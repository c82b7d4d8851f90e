// SPDX-License-Identifier: Apache-2.0
#include "api/fields.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "utils/json.h"

const char *msgl__json_type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL:
        return msgl__json_digits(v) != NULL ? "an integer of more than 64 bits"
                                            : "a number with a fraction";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "unknown";
}

json_t *msgl__field(const json_t *o, const char *name)
{
    json_t *v = json_object_get(o, name);
    return v == NULL || json_is_null(v) ? NULL : v;
}

static int wrong_type(const char *name, const json_t *v, const char *want, msgl_api_error *e)
{
    return msgl__api_fail(e, 400, name, "invalid_type", "'%s' is %s; it must be %s.", name,
                          msgl__json_type_name(v), want);
}

int msgl__field_bool(const json_t *o, const char *name, bool *out, msgl_api_error *e)
{
    const json_t *v = msgl__field(o, name);
    if (v == NULL) return 0;
    if (!json_is_boolean(v)) return wrong_type(name, v, "a boolean", e);
    *out = json_is_true(v);
    return 1;
}

int msgl__field_int(const json_t *o, const char *name, int64_t lo, int64_t hi, int64_t *out,
                    msgl_api_error *e)
{
    const json_t *v = msgl__field(o, name);
    if (v == NULL) return 0;
    if (!json_is_integer(v)) return wrong_type(name, v, "an integer", e);
    const int64_t n = json_integer_value(v);
    if (n < lo || n > hi) {
        return msgl__api_fail(e, 400, name, "invalid_value",
                              "'%s' is %" PRId64 "; allowed: %" PRId64 " to %" PRId64 ".", name, n,
                              lo, hi);
    }
    *out = n;
    return 1;
}

const msgl_field_row *msgl__field_row(const msgl_fields *f, const char *name)
{
    for (; f != NULL; f = f->also) {
        for (const msgl_field_row *row = f->read; row->name != NULL; row++) {
            if (strcmp(row->name, name) == 0) return row;
        }
    }
    return NULL;
}

const msgl_setting *msgl__field_setting(const msgl_field_row *row)
{
    const char *field = row->setting != NULL ? row->setting : row->name;
    for (int i = 0; row->type == MSGL_FIELD_SETTING && i < msgl__sampling_settings.count; i++) {
        const msgl_setting *s = &msgl__sampling_settings.rows[i];
        if (strcmp(s->field, field) == 0) return s;
    }
    return NULL;
}

int msgl__field_int_of(const json_t *o, const msgl_fields *f, const char *name, int64_t *out,
                       msgl_api_error *e)
{
    const msgl_field_row *row = msgl__field_row(f, name);
    const bool any = row == NULL || (row->min == 0 && row->max == 0);
    const json_t *v = json_object_get(o, name);
    if (row != NULL && row->unlimited && json_is_integer(v) && json_integer_value(v) == -1)
        return 0;
    return msgl__field_int(o, name, any ? INT64_MIN : row->min, any ? INT64_MAX : row->max, out, e);
}

int msgl__field_real(const json_t *o, const char *name, double lo, double hi, double *out,
                     msgl_api_error *e)
{
    const json_t *v = msgl__field(o, name);
    if (v == NULL) return 0;
    if (!json_is_number(v)) return wrong_type(name, v, "a number", e);
    const double n = json_number_value(v);
    if (!(n >= lo && n <= hi)) {
        return msgl__api_fail(e, 400, name, "invalid_value", "'%s' is %g; allowed: %g to %g.", name,
                              n, lo, hi);
    }
    *out = n;
    return 1;
}

int msgl__field_str(const json_t *o, const char *name, const char **out, msgl_api_error *e)
{
    const json_t *v = msgl__field(o, name);
    if (v == NULL) return 0;
    if (!json_is_string(v)) return wrong_type(name, v, "a string", e);
    *out = json_string_value(v);
    return 1;
}

int msgl__field_name(const json_t *o, const char *name, size_t most, const char **out,
                     msgl_api_error *e)
{
    const int rc = msgl__field_str(o, name, out, e);
    const size_t n = rc > 0 ? json_string_length(msgl__field(o, name)) : 1;
    if (n >= 1 && n <= most) return rc;
    return msgl__api_fail(e, 400, name, "invalid_value", "'%s' has %zu bytes; allowed: 1 to %zu.",
                          name, n, most);
}

int msgl__field_bad(msgl_api_error *e, const char *param, const char *what)
{
    return msgl__api_fail(e, 400, param, "invalid_value", "'%s' %s.", param, what);
}

int msgl__field_missing(msgl_api_error *e, const char *param)
{
    return msgl__api_fail(e, 400, param, "missing_required_parameter", "'%s' is missing.", param);
}

void msgl__field_rename(msgl_api_error *e, const char *from, const char *to)
{
    const size_t n = strlen(from);
    const char *is = e->message[0] == '\'' ? e->message + 1 : "";
    const bool named = strncmp(e->param, from, n) == 0 && strchr(".[", e->param[n]) != NULL;
    if (strncmp(is, from, n) != 0 || strchr("'.[", is[n]) == NULL) return;
    char message[sizeof e->message], param[sizeof e->param];
    const char *rest = strchr(is, '\'');
    (void)snprintf(message, sizeof message, "'%s%s", to, rest == NULL ? "'" : rest);
    (void)snprintf(param, sizeof param, "%s", named ? to : e->param);
    (void)msgl__api_fail(e, e->status, param, e->code, "%s", message);
}

bool msgl__field_is_type(const json_t *o, const char *type)
{
    const char *is = json_string_value(json_object_get(o, "type"));
    return is != NULL && strcmp(is, type) == 0;
}

int msgl__field_ids(const json_t *array, const char *name, int32_t vocab_size, int32_t **ids,
                    int32_t *count, msgl_api_error *e)
{
    const size_t n = json_array_size(array);
    *count = 0;
    *ids = msgl__reallocarray(NULL, n, sizeof **ids);
    if (*ids == NULL) return msgl__api_oom(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        const int64_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (!json_is_integer(v)) {
            return msgl__api_fail(e, 400, name, "invalid_type",
                                  "'%s[%zu]' is %s; it must be a token id.", name, i,
                                  msgl__json_type_name(v));
        }
        if (id < 0 || id >= vocab_size) {
            return msgl__api_fail(e, 400, name, "invalid_value",
                                  "'%s[%zu]' is %" PRId64 "; token ids are 0 to %d.", name, i, id,
                                  vocab_size - 1);
        }
        (*ids)[(*count)++] = (int32_t)id;
    }
    return 0;
}

int msgl__request_keep(msgl_gen_request *out, const char *name, json_t *tree, int rc,
                       msgl_api_error *e)
{
    const int bad = json_object_set_new(out->root, name, tree);
    return bad != 0 && rc == 0 ? msgl__api_oom(e) : rc;
}

void msgl__request_pools(msgl_gen_request *out)
{
    out->sampling = msgl__sampling_params_default();
    out->max_tokens = 1;
}
