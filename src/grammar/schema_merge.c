// SPDX-License-Identifier: Apache-2.0
//
// Two schemas that both hold, as one: how allOf, and keywords beside anyOf and $ref, are compiled.
// What cannot be said in one schema is refused by name. Parts are shared with the originals.
#include <string.h>

#include "core/attributes.h"
#include "grammar/schema.h"
#include "utils/json.h"

enum { MAX_PRODUCT = 400 };

static json_t *both(json_t *a, json_t *b)
{
    json_t *all = json_pack("{s:[O,O]}", "allOf", a, b);
    return all;
}

static int set(msgl_schema *s, json_t *to, const char *key, json_t *value)
{
    if (json_object_set_new(to, key, value) == 0) return 0;
    return msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
}

// v, or NULL if something of it could not be made.
static json_t *unless(bool bad, json_t *v)
{
    if (!bad) return v;
    json_decref(v);
    return NULL;
}

// The list of types of "type" as given: a string stands for a list of one.
static bool names_type(const json_t *type, const char *name)
{
    if (json_is_string(type)) return strcmp(json_string_value(type), name) == 0;
    size_t i;
    const json_t *t;
    json_array_foreach(type, i, t)
    {
        if (json_is_string(t) && strcmp(json_string_value(t), name) == 0) return true;
    }
    return false;
}

static int merge_type(msgl_schema *s, json_t *to, const json_t *a, const json_t *b)
{
    static const char *const NAMES[] = {"null",   "boolean", "number", "integer",
                                        "string", "array",   "object"};
    json_t *list = json_array();
    bool number = false, bad = list == NULL;
    for (size_t i = 0; i < MSGL_COUNT(NAMES); i++) {
        const char *n = NAMES[i];
        bool in_a = names_type(a, n), in_b = names_type(b, n);
        if (strcmp(n, "number") == 0) number = in_a && in_b;
        if (strcmp(n, "integer") == 0) { // which is a number too
            in_a |= names_type(a, "number");
            in_b |= names_type(b, "number");
            if (number) continue;
        }
        if (in_a && in_b) bad |= json_array_append_new(list, json_string(n)) != 0;
    }
    // No type in common: "never" is said by an empty anyOf's stand-in.
    if (!bad && json_array_size(list) == 0) {
        json_decref(list);
        return set(s, to, "anyOf", json_pack("[b]", 0));
    }
    return set(s, to, "type", unless(bad, list));
}

static int merge_enum(msgl_schema *s, json_t *to, const json_t *a, const json_t *b)
{
    json_t *list = json_array();
    bool bad = list == NULL;
    size_t i, k;
    json_t *x, *y;
    json_array_foreach(a, i, x)
    {
        json_array_foreach(b, k, y)
        {
            if (!json_equal(x, y)) continue;
            bad |= json_array_append(list, x) != 0;
            break;
        }
    }
    if (!bad && json_array_size(list) == 0) {
        json_decref(list);
        json_object_del(to, "enum");
        return set(s, to, "anyOf", json_pack("[b]", 0));
    }
    return set(s, to, "enum", unless(bad, list));
}

// What a schema says of a property that it does not name; NULL: nothing.
static json_t *said_of_others(const json_t *schema)
{
    json_t *more = json_object_get(schema, "additionalProperties");
    return more == NULL || json_is_true(more) ? NULL : more;
}

static int merge_properties(msgl_schema *s, json_t *to, const json_t *a, const json_t *b)
{
    json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties");
    json_t *sum = json_object();
    bool bad = false;
    const char *key;
    json_t *v;
    json_object_foreach(pa, key, v)
    {
        json_t *other = json_object_get(pb, key);
        if (other == NULL) other = said_of_others(b);
        other = other != NULL ? both(v, other) : json_incref(v);
        bad |= json_object_set_new(sum, key, other) != 0;
    }
    json_object_foreach(pb, key, v)
    {
        if (json_object_get(pa, key) != NULL) continue;
        json_t *other = said_of_others(a);
        other = other != NULL ? both(v, other) : json_incref(v);
        bad |= json_object_set_new(sum, key, other) != 0;
    }
    json_t *xa = said_of_others(a), *xb = said_of_others(b);
    int rc = set(s, to, "properties", unless(bad, sum));
    if (rc == 0 && xa != NULL && xb != NULL) {
        rc = set(s, to, "additionalProperties", both(xa, xb));
        if (json_is_false(xa) || json_is_false(xb)) {
            rc = set(s, to, "additionalProperties", json_false());
        }
    } else if (rc == 0 && (xa != NULL || xb != NULL)) {
        rc = set(s, to, "additionalProperties", json_incref(xa != NULL ? xa : xb));
    }
    return rc;
}

static int merge_required(msgl_schema *s, json_t *to, const json_t *a, const json_t *b)
{
    json_t *sum = json_array();
    bool bad = false;
    for (int side = 0; side < 2; side++) {
        size_t i, k;
        json_t *x, *y;
        json_array_foreach(side == 0 ? a : b, i, x)
        {
            bool there = false;
            json_array_foreach(sum, k, y)
            {
                there |= json_equal(x, y);
            }
            if (!there) bad |= json_array_append(sum, x) != 0;
        }
    }
    return set(s, to, "required", unless(bad, sum));
}

// Alternatives of both: every pair of them.
static int merge_product(msgl_schema *s, json_t *to, const char *key, const json_t *a,
                         const json_t *b)
{
    if (json_array_size(a) * json_array_size(b) > MAX_PRODUCT) {
        return msgl__schema_fail(s, MSGL_ELIMIT, key, "too many combinations (limit: 400)");
    }
    json_t *sum = json_array();
    bool bad = false;
    size_t i, k;
    json_t *x, *y;
    json_array_foreach(a, i, x)
    {
        json_array_foreach(b, k, y)
        {
            bad |= json_array_append_new(sum, both(x, y)) != 0;
        }
    }
    return set(s, to, key, unless(bad, sum));
}

static int merge_bound(msgl_schema *s, json_t *to, const char *key, json_t *a, json_t *b,
                       bool larger)
{
    const bool take_b = larger ? json_number_value(b) > json_number_value(a)
                               : json_number_value(b) < json_number_value(a);
    return set(s, to, key, json_incref(take_b ? b : a));
}

static int merge_key(msgl_schema *s, json_t *to, const char *key, json_t *a, json_t *b)
{
    static const char *const LARGER[] = {"minimum", "exclusiveMinimum", "minLength", "minItems",
                                         "minProperties"};
    static const char *const SMALLER[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems",
                                          "maxProperties"};
    static const char *const NOTES[] = {
        "title", "description", "default",  "examples",  "$schema", "$id", "$comment", "deprecated",
        "$defs", "definitions", "readOnly", "writeOnly", "$anchor", "id",  "example"};
    for (size_t i = 0; i < MSGL_COUNT(LARGER); i++) {
        if (strcmp(key, LARGER[i]) == 0) return merge_bound(s, to, key, a, b, true);
        if (strcmp(key, SMALLER[i]) == 0) return merge_bound(s, to, key, a, b, false);
    }
    for (size_t i = 0; i < MSGL_COUNT(NOTES); i++) {
        if (strcmp(key, NOTES[i]) == 0) return 0;
    }
    if (strcmp(key, "type") == 0) return merge_type(s, to, a, b);
    if (strcmp(key, "enum") == 0) return merge_enum(s, to, a, b);
    if (strcmp(key, "required") == 0) return merge_required(s, to, a, b);
    if (strcmp(key, "items") == 0) return set(s, to, key, both(a, b));
    if (strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0) {
        return merge_product(s, to, key, a, b);
    }
    if (strcmp(key, "allOf") == 0) {
        json_t *sum = msgl__json_copy(a);
        return set(s, to, key, unless(json_array_extend(sum, b) != 0, sum));
    }
    if (json_equal(a, b)) return 0;
    if (strcmp(key, "const") == 0) return set(s, to, "anyOf", json_pack("[b]", 0));
    return msgl__schema_fail(s, MSGL_EUNSUPPORTED, key,
                             "two different ones that both have to hold are not supported");
}

json_t *msgl__schema_merge(msgl_schema *s, json_t *a, json_t *b)
{
    if (s->b->rc != 0 || msgl__gx_late(s->b)) return NULL;
    if (++s->depth > MSGL_SCHEMA_DEPTH) {
        msgl__schema_fail(s, MSGL_ELIMIT, "allOf", "nested too deep (limit: depth)");
        return NULL;
    }
    a = msgl__schema_resolve(s, a);
    b = msgl__schema_resolve(s, b);
    s->depth--;
    if (a == NULL || b == NULL) {
        if (s->b->rc == 0)
            msgl__schema_fail(s, MSGL_EFORMAT, "allOf", "has something that is none");
        return NULL;
    }
    if (json_is_false(a) || json_is_true(b)) return a;
    if (json_is_false(b) || json_is_true(a)) return b;
    if (!json_is_object(a) || !json_is_object(b)) {
        msgl__schema_fail(s, MSGL_EFORMAT, "allOf", "has to be a list of schemas");
        return NULL;
    }
    json_t *sum = msgl__schema_keep(s, msgl__json_copy(a));
    if (sum == NULL) return NULL;
    const char *key;
    json_t *v;
    json_object_foreach(b, key, v)
    {
        if (strcmp(key, "properties") == 0 || strcmp(key, "additionalProperties") == 0) continue;
        json_t *own = json_object_get(a, key);
        // "never" of an earlier keyword stands.
        if (own == NULL && json_object_get(sum, key) == NULL &&
            set(s, sum, key, json_incref(v)) != 0) {
            return NULL;
        }
        if (own != NULL && merge_key(s, sum, key, own, v) != 0) return NULL;
    }
    const bool objects = json_object_get(a, "properties") != NULL ||
                         json_object_get(b, "properties") != NULL || said_of_others(a) != NULL ||
                         said_of_others(b) != NULL;
    if (objects && merge_properties(s, sum, a, b) != 0) return NULL;
    return sum;
}
