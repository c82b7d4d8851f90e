// SPDX-License-Identifier: Apache-2.0
//
// Whether a value that a schema has in an enum, a const or a default is valid for other keywords.
// Objects are open here, as the standard has it.
#include <string.h>

#include "core/mem.h"
#include "grammar/schema.h"
#include "grammar/schema_number.h"
#include "utils/utf8.h"

// Whether two values are equal: numbers by their value, all else as jansson compares it.
static bool same(const msgl_schema *s, const json_t *a, const json_t *b)
{
    if (!json_is_number(a) || !json_is_number(b)) return json_equal(a, b) != 0;
    msgl_dec x, y;
    msgl__dec_of(s, a, &x);
    msgl__dec_of(s, b, &y);
    return msgl__dec_compare(&x, &y) == 0;
}

static bool in_list(msgl_schema *s, const json_t *list, const json_t *v)
{
    size_t i;
    const json_t *x;
    json_array_foreach(list, i, x)
    {
        if (msgl__gx_spend(s->b, 2, 0) != 0) return false;
        if (same(s, x, v)) return true;
    }
    return false;
}

static int check_string(msgl_schema *s, json_t *schema, const json_t *v)
{
    const char *text = json_string_value(v);
    const int64_t n = (int64_t)msgl__utf8_count(text, json_string_length(v));
    const int32_t max = msgl__schema_count(s, schema, "maxLength", MSGL_GX_INF);
    if (n < msgl__schema_count(s, schema, "minLength", 0)) return 0;
    if (max != MSGL_GX_INF && n > max) return 0;
    const char *pattern = json_string_value(json_object_get(schema, "pattern"));
    const char *format = msgl__schema_format(s, schema);
    int rc = s->b->rc != 0 ? -1 : 1;
    if (rc > 0 && pattern != NULL) rc = msgl__schema_matches(s, pattern, false, &text, 1);
    if (rc > 0 && format != NULL) rc = msgl__schema_matches(s, format, true, &text, 1);
    return rc;
}

static int check_number(msgl_schema *s, json_t *schema, const json_t *v)
{
    const json_t *multiple = json_object_get(schema, "multipleOf");
    const msgl_bounds r = msgl__schema_bounds(s, schema);
    msgl_dec d, m;
    msgl__dec_of(s, v, &d);
    if (s->b->rc != 0) return -1;
    if (!msgl__bounds_have(&r, &d)) return 0;
    if (!json_is_number(multiple)) return 1;
    msgl__dec_of(s, multiple, &m);
    const int rc = msgl__dec_divides(&m, &d);
    return rc >= 0 ? rc
                   : msgl__schema_fail(s, MSGL_EUNSUPPORTED, "multipleOf",
                                       "more than 18 digits are not supported");
}

static int check_array(msgl_schema *s, json_t *schema, const json_t *v)
{
    const int64_t n = (int64_t)json_array_size(v);
    const int32_t max = msgl__schema_count(s, schema, "maxItems", MSGL_GX_INF);
    if (n < msgl__schema_count(s, schema, "minItems", 0)) return 0;
    if (max != MSGL_GX_INF && n > max) return 0;
    json_t *list = json_object_get(schema, "prefixItems"),
           *items = json_object_get(schema, "items");
    if (json_is_array(items)) {
        list = items;
        items = json_object_get(schema, "additionalItems");
    }
    const bool unique = json_is_true(json_object_get(schema, "uniqueItems"));
    int rc = s->b->rc != 0 ? -1 : 1;
    for (size_t i = 0; rc > 0 && i < (size_t)n; i++) {
        const json_t *x = json_array_get(v, i);
        json_t *own = i < json_array_size(list) ? json_array_get(list, i) : items;
        if (own != NULL) rc = msgl__schema_allows(s, own, x);
        for (size_t k = 0; unique && k < i && rc > 0; k++) {
            if (msgl__gx_spend(s->b, 4, 0) != 0) return -1;
            rc = !same(s, json_array_get(v, k), x);
        }
    }
    return rc;
}

static int check_member(msgl_schema *s, json_t *schema, const char *key, const json_t *x)
{
    json_t *own = json_object_get(json_object_get(schema, "properties"), key);
    json_t *patterns = json_object_get(schema, "patternProperties");
    json_t *only = json_object_get(schema, "propertyNames");
    bool known = own != NULL;
    int rc = own != NULL ? msgl__schema_allows(s, own, x) : 1;
    const char *pattern;
    json_t *v;
    json_object_foreach(patterns, pattern, v)
    {
        const int found = rc > 0 ? msgl__schema_matches(s, pattern, false, &key, 1) : 0;
        if (found < 0) return -1;
        known |= found > 0;
        if (found > 0) rc = msgl__schema_allows(s, v, x);
    }
    if (rc > 0 && only != NULL) {
        json_t *name = json_string(key);
        if (name == NULL) return msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
        rc = msgl__schema_allows(s, only, name);
        json_decref(name);
    }
    json_t *more = json_object_get(schema, "additionalProperties");
    if (more == NULL) more = json_object_get(schema, "unevaluatedProperties");
    if (rc > 0 && !known && more != NULL) rc = msgl__schema_allows(s, more, x);
    return rc;
}

static int check_object(msgl_schema *s, json_t *schema, const json_t *v)
{
    const int64_t n = (int64_t)json_object_size(v);
    const int32_t max = msgl__schema_count(s, schema, "maxProperties", MSGL_GX_INF);
    if (n < msgl__schema_count(s, schema, "minProperties", 0)) return 0;
    if (max != MSGL_GX_INF && n > max) return 0;
    size_t i;
    json_t *x;
    const char *key;
    json_array_foreach(json_object_get(schema, "required"), i, x)
    {
        if (json_is_string(x) && json_object_get(v, json_string_value(x)) == NULL) return 0;
    }
    int rc = s->b->rc != 0 ? -1 : 1;
    json_object_foreach((json_t *)(uintptr_t)v, key, x)
    {
        if (rc > 0) rc = check_member(s, schema, key, x);
    }
    return rc;
}

// Whether v is valid for at least one schema of anyOf, and for exactly one of oneOf.
static int check_lists(msgl_schema *s, json_t *schema, const json_t *v)
{
    static const char *const KEYS[] = {"anyOf", "oneOf"};
    for (int k = 0; k < 2; k++) {
        const json_t *list = json_object_get(schema, KEYS[k]);
        if (list == NULL) continue;
        size_t i;
        json_t *x;
        int holds = 0;
        json_array_foreach(list, i, x)
        {
            const int rc = msgl__schema_allows(s, x, v);
            if (rc < 0) return -1;
            holds += rc;
        }
        if (holds == 0 || (k == 1 && holds > 1)) return 0;
    }
    return 1;
}

int msgl__schema_allows(msgl_schema *s, json_t *schema, const json_t *v)
{
    schema = msgl__schema_flat(s, schema);
    if (schema == NULL || msgl__gx_spend(s->b, 16, 0) != 0) return -1;
    if (json_is_boolean(schema)) return json_is_true(schema);
    if (msgl__schema_check_keywords(s, schema) != 0) return -1;
    const json_t *list = json_object_get(schema, "enum"), *only = json_object_get(schema, "const");
    if (json_object_get(schema, "type") != NULL &&
        !msgl__schema_has_type(s, v, msgl__schema_types(s, schema))) {
        return s->b->rc != 0 ? -1 : 0;
    }
    if (only != NULL && !same(s, only, v)) return 0;
    if (list != NULL && !in_list(s, list, v)) return s->b->rc != 0 ? -1 : 0;
    if (s->depth >= MSGL_SCHEMA_DEPTH) {
        return msgl__schema_fail(s, MSGL_ELIMIT, "enum", "nested too deep (limit: depth)");
    }
    s->depth++;
    int rc = check_lists(s, schema, v);
    if (rc > 0 && json_is_string(v)) rc = check_string(s, schema, v);
    if (rc > 0 && json_is_number(v)) rc = check_number(s, schema, v);
    if (rc > 0 && json_is_array(v)) rc = check_array(s, schema, v);
    if (rc > 0 && json_is_object(v)) rc = check_object(s, schema, v);
    s->depth--;
    return rc;
}
