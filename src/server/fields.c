// SPDX-License-Identifier: Apache-2.0
#include "server/fields.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/mem.h"

const char *msgl__json_type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction";
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

int msgl__field_bad(msgl_api_error *e, const char *param, const char *what)
{
    return msgl__api_fail(e, 400, param, "invalid_value", "'%s' %s.", param, what);
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
