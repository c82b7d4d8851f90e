// SPDX-License-Identifier: Apache-2.0
#include "models/json_read.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "utils/file.h"
#include "utils/json.h"

const char *msgl__json_show(const json_t *v, char *buf, size_t size)
{
    char text[48];
    switch (v == NULL ? JSON_NULL : json_typeof(v)) {
    case JSON_INTEGER: snprintf(buf, size, "%lld", (long long)json_integer_value(v)); break;
    case JSON_REAL:
        if (fabs(json_real_value(v)) == MSGL_JSON_BEYOND) {
            snprintf(buf, size, "NaN or a number beyond 1e308");
        } else {
            snprintf(buf, size, "%.10g", json_real_value(v));
        }
        break;
    case JSON_STRING:
        snprintf(buf, size, "\"%s\"", msgl__printable(json_string_value(v), text, sizeof text));
        break;
    case JSON_TRUE: snprintf(buf, size, "true"); break;
    case JSON_FALSE: snprintf(buf, size, "false"); break;
    case JSON_ARRAY: snprintf(buf, size, "a list of %zu", json_array_size(v)); break;
    case JSON_OBJECT: snprintf(buf, size, "an object"); break;
    case JSON_NULL:
    default: snprintf(buf, size, "nothing"); break;
    }
    return buf;
}

// The key, or where the object does not have it an alias that it has.
static const char *name_there(const msgl_json_reader *r, const char *key)
{
    if (r->aliases == NULL || json_object_get(r->obj, key) != NULL) return key;
    for (const msgl_json_alias *a = r->aliases; a->key != NULL; a++) {
        if (strcmp(key, a->key) == 0 && json_object_get(r->obj, a->other) != NULL) return a->other;
    }
    return key;
}

void msgl__json_reject(msgl_json_reader *r, int code, const char *key, const json_t *v,
                       const char *allowed)
{
    if (r->status != 0) return;
    char found[64];
    const char *section = r->section;
    key = name_there(r, key);
    for (int i = 0; i < r->num_names; i++) {
        if (strcmp(key, r->names[i].key) != 0) continue;
        key = r->names[i].shown;
        section = "";
        break;
    }
    r->status = msgl__err_set(r->err, code, "%s: %s%s%s: found %s, allowed %s", r->file, section,
                              section[0] != '\0' ? "." : "", key,
                              msgl__json_show(v, found, sizeof found), allowed);
}

const json_t *msgl__json_get(const msgl_json_reader *r, const char *key)
{
    const json_t *v = json_object_get(r->obj, name_there(r, key));
    return json_is_null(v) ? NULL : v;
}

static int32_t check_int(msgl_json_reader *r, const char *key, const json_t *v, int32_t lo,
                         int32_t hi, int32_t fallback)
{
    if (json_is_integer(v) && json_integer_value(v) >= lo && json_integer_value(v) <= hi) {
        return (int32_t)json_integer_value(v);
    }
    char allowed[64];
    snprintf(allowed, sizeof allowed, "an integer in %d..%d", lo, hi);
    msgl__json_reject(r, MSGL_EFORMAT, key, v, allowed);
    return fallback;
}

int32_t msgl__json_int(msgl_json_reader *r, const char *key, int32_t lo, int32_t hi)
{
    return check_int(r, key, msgl__json_get(r, key), lo, hi, lo);
}

int32_t msgl__json_int_or(msgl_json_reader *r, const char *key, int32_t lo, int32_t hi,
                          int32_t fallback)
{
    const json_t *v = msgl__json_get(r, key);
    return v == NULL ? fallback : check_int(r, key, v, lo, hi, fallback);
}

double msgl__json_num_or(msgl_json_reader *r, const char *key, double lo, double hi,
                         double fallback)
{
    const json_t *v = msgl__json_get(r, key);
    if (v == NULL) return fallback;
    const double d = json_number_value(v);
    if (json_is_number(v) && d >= lo && d <= hi) return d;
    char allowed[64];
    snprintf(allowed, sizeof allowed, "a number in %g..%g", lo, hi);
    msgl__json_reject(r, MSGL_EFORMAT, key, v, allowed);
    return fallback;
}

bool msgl__json_bool_or(msgl_json_reader *r, const char *key, bool fallback)
{
    const json_t *v = msgl__json_get(r, key);
    if (v == NULL) return fallback;
    if (json_is_boolean(v)) return json_is_true(v);
    msgl__json_reject(r, MSGL_EFORMAT, key, v, "true or false");
    return fallback;
}

const char *msgl__json_str_or(msgl_json_reader *r, const char *key, const char *fallback)
{
    const json_t *v = msgl__json_get(r, key);
    if (v == NULL) return fallback;
    if (json_is_string(v)) return json_string_value(v);
    msgl__json_reject(r, MSGL_EFORMAT, key, v, "a string");
    return fallback;
}

msgl_json_reader msgl__json_section(msgl_json_reader *r, const char *key)
{
    msgl_json_reader s = *r;
    s.section = key;
    s.obj = msgl__json_get(r, key);
    if (s.obj == NULL || json_is_object(s.obj)) return s;
    msgl__json_reject(r, MSGL_EFORMAT, key, s.obj, "an object or null");
    s.obj = NULL;
    s.status = r->status;
    return s;
}

void msgl__json_only(msgl_json_reader *r, const char *key, const char *only)
{
    if (strcmp(msgl__json_str_or(r, key, only), only) == 0) return;
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key), only);
}
