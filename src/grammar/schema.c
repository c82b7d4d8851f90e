// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema.h"

#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "grammar/compiled.h"
#include "utils/json.h"

// Keywords that constrain and are understood, and those that only describe.
static const char *const KNOWN[] = {
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "$defs",
    "definitions",
    "patternProperties",
    "minProperties",
    "maxProperties",
    "multipleOf",
    "propertyNames",
    "additionalItems",
};
static const char *const NOTES[] = {
    "title",
    "description",
    "default",
    "examples",
    "$schema",
    "$id",
    "id",
    "$comment",
    "deprecated",
    "readOnly",
    "writeOnly",
    "example",
    "$anchor",
    "contentMediaType",
    "contentEncoding",
    "discriminator",
    "$vocabulary",
    "nullable",
    "strict",
    "name",
    "markdownDescription",
    "enumDescriptions",
};

int32_t msgl__schema_fail(msgl_schema *s, int code, const char *keyword, const char *what)
{
    return msgl__gx_fail(s->b, code, "json_schema: \"%.40s\" at \"%s\": %s", keyword, s->place,
                         what);
}

size_t msgl__schema_enter(msgl_schema *s, const char *key, int index)
{
    const size_t before = strlen(s->place);
    char part[64];
    if (key != NULL) {
        snprintf(part, sizeof part, "/%.60s", key);
    } else if (index >= 0) {
        snprintf(part, sizeof part, "/%d", index);
    } else {
        part[0] = '\0';
    }
    const size_t n = strlen(part);
    if (before + n < sizeof s->place) memcpy(s->place + before, part, n + 1);
    return before;
}

static bool in_list(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(key, list[i]) == 0) return true;
    }
    return false;
}

static int check_keywords(msgl_schema *s, json_t *schema)
{
    const char *key;
    json_t *value;
    json_object_foreach(schema, key, value)
    {
        if (in_list(key, KNOWN, MSGL_COUNT(KNOWN)) || in_list(key, NOTES, MSGL_COUNT(NOTES)) ||
            strncmp(key, "x-", 2) == 0) {
            continue;
        }
        // Keywords that forbid nothing as they stand.
        if (strcmp(key, "uniqueItems") == 0 && json_is_false(value)) continue;
        if (strcmp(key, "unevaluatedProperties") == 0 && json_is_true(value)) continue;
        return msgl__schema_fail(s, MSGL_EUNSUPPORTED, key, "this keyword is not supported");
    }
    return 0;
}

int32_t msgl__schema_count(msgl_schema *s, const json_t *schema, const char *keyword, int32_t none)
{
    const json_t *v = json_object_get(schema, keyword);
    if (v == NULL) return none;
    const double d = json_number_value(v);
    if (!json_is_number(v) || d < 0 || d != (double)(int64_t)d) {
        return msgl__schema_fail(s, MSGL_EFORMAT, keyword, "has to be an integer of 0 or more");
    }
    if (d > 1000000) {
        return msgl__schema_fail(s, MSGL_ELIMIT, keyword, "is more than 1000000 (limit: count)");
    }
    return (int32_t)d;
}

// ---- $ref ----

// The schema that a pointer in a fragment leads to; NULL: none.
static json_t *follow_pointer(msgl_schema *s, const char *p)
{
    json_t *at = s->root;
    char token[256];
    while (*p != '\0' && at != NULL) {
        if (*p++ != '/') return NULL;
        size_t n = 0;
        for (; *p != '\0' && *p != '/'; p++) {
            char c = *p;
            if (c == '~' && (p[1] == '0' || p[1] == '1')) c = *++p == '0' ? '~' : '/';
            unsigned hex = 0;
            if (c == '%' && sscanf(p + 1, "%2x", &hex) == 1 && hex > 0 && p[1] != '\0' &&
                p[2] != '\0') {
                c = (char)hex;
                p += 2;
            }
            if (n + 1 >= sizeof token) return NULL;
            token[n++] = c;
        }
        token[n] = '\0';
        if (json_is_array(at)) {
            unsigned index = 0;
            char end;
            if (sscanf(token, "%u%c", &index, &end) != 1) return NULL;
            at = json_array_get(at, index);
        } else {
            at = json_object_get(at, token);
        }
    }
    return at;
}

static json_t *find_anchor(json_t *at, const char *name, int depth)
{
    if (depth > MSGL_SCHEMA_DEPTH) return NULL;
    const char *key;
    json_t *value;
    const json_t *own = json_object_get(at, "$anchor");
    if (own != NULL && json_is_string(own) && strcmp(json_string_value(own), name) == 0) return at;
    json_object_foreach(at, key, value)
    {
        json_t *hit = json_is_object(value) ? find_anchor(value, name, depth + 1) : NULL;
        if (hit != NULL) return hit;
    }
    return NULL;
}

static json_t *ref_target(msgl_schema *s, const json_t *ref)
{
    const char *uri = json_string_value(ref);
    if (uri == NULL) {
        msgl__schema_fail(s, MSGL_EFORMAT, "$ref", "has to be a string");
        return NULL;
    }
    const char *id = json_string_value(json_object_get(s->root, "$id"));
    // A reference by the schema's own name is one into it.
    if (id != NULL && strncmp(uri, id, strlen(id)) == 0 &&
        (uri[strlen(id)] == '#' || uri[strlen(id)] == '\0')) {
        uri += strlen(id);
        if (*uri == '\0') return s->root;
    }
    json_t *to = NULL;
    if (uri[0] != '#') {
        msgl__schema_fail(s, MSGL_EUNSUPPORTED, "$ref", "only references inside the schema (#...)");
        return NULL;
    }
    to = uri[1] == '\0' || uri[1] == '/' ? follow_pointer(s, uri + 1)
                                         : find_anchor(s->root, uri + 1, 0);
    if (to == NULL) msgl__schema_fail(s, MSGL_EFORMAT, "$ref", "leads nowhere");
    return to;
}

static bool only_notes_beside(json_t *schema, const char *keyword)
{
    const char *key;
    json_t *value;
    json_object_foreach(schema, key, value)
    {
        if (strcmp(key, keyword) == 0 || in_list(key, NOTES, MSGL_COUNT(NOTES)) ||
            strcmp(key, "$defs") == 0 || strcmp(key, "definitions") == 0) {
            continue;
        }
        return false;
    }
    return true;
}

json_t *msgl__schema_keep(msgl_schema *s, json_t *made)
{
    if (made != NULL && json_array_size(s->made) >= MSGL_SCHEMA_MADE) {
        json_decref(made);
        msgl__gx_fail(s->b, MSGL_ELIMIT,
                      "json_schema: allOf, anyOf and $ref combine to more than %d schemas "
                      "(limit: schemas)",
                      MSGL_SCHEMA_MADE);
        return NULL;
    }
    if (made == NULL || json_array_append_new(s->made, made) != 0) {
        msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
        return NULL;
    }
    return made;
}

json_t *msgl__schema_resolve(msgl_schema *s, json_t *schema)
{
    for (int hops = 0; json_is_object(schema); hops++) {
        const json_t *ref = json_object_get(schema, "$ref");
        if (ref == NULL) return schema;
        if (hops >= MSGL_SCHEMA_REFS) {
            msgl__schema_fail(s, MSGL_ELIMIT, "$ref", "leads on and on (limit: references)");
            return NULL;
        }
        json_t *to = ref_target(s, ref);
        if (to == NULL) return NULL;
        if (!only_notes_beside(schema, "$ref")) {
            json_t *rest = msgl__json_copy(schema);
            if (rest != NULL) json_object_del(rest, "$ref");
            rest = msgl__schema_keep(s, rest);
            if (rest == NULL) return NULL;
            to = msgl__schema_merge(s, rest, to);
            if (to == NULL) return NULL;
        }
        schema = to;
    }
    return schema;
}

// ---- values and types ----

static int32_t const_list(msgl_schema *s, const json_t *value)
{
    msgl_gx_list l = {0};
    const int32_t space = msgl__json_space(s->b, &s->json);
    const bool object = json_is_object(value);
    msgl__gx_list_add(s->b, &l, msgl__gx_str(s->b, object ? "{" : "["));
    msgl__gx_list_add(s->b, &l, space);
    bool first = true;
    const char *key;
    json_t *v;
    size_t i;
    if (object) {
        json_object_foreach((json_t *)(uintptr_t)value, key, v)
        {
            if (!first) msgl__gx_list_add(s->b, &l, msgl__gx_str(s->b, ","));
            if (!first) msgl__gx_list_add(s->b, &l, space);
            first = false;
            msgl__gx_list_add(s->b, &l, msgl__json_quoted(s->b, key, strlen(key)));
            msgl__gx_list_add(s->b, &l, msgl__gx_str(s->b, ":"));
            msgl__gx_list_add(s->b, &l, space);
            msgl__gx_list_add(s->b, &l, msgl__schema_const(s, v));
        }
    } else {
        json_array_foreach(value, i, v)
        {
            if (!first) msgl__gx_list_add(s->b, &l, msgl__gx_str(s->b, ","));
            if (!first) msgl__gx_list_add(s->b, &l, space);
            first = false;
            msgl__gx_list_add(s->b, &l, msgl__schema_const(s, v));
        }
    }
    msgl__gx_list_add(s->b, &l, space);
    msgl__gx_list_add(s->b, &l, msgl__gx_str(s->b, object ? "}" : "]"));
    const int32_t e = s->b->rc == 0 ? msgl__gx_seq(s->b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

int32_t msgl__schema_const(msgl_schema *s, const json_t *value)
{
    if (s->b->rc != 0) return -1;
    if (json_is_string(value)) {
        return msgl__json_quoted(s->b, json_string_value(value), json_string_length(value));
    }
    if (json_is_object(value) || json_is_array(value)) {
        if (++s->depth > MSGL_SCHEMA_DEPTH) {
            return msgl__schema_fail(s, MSGL_ELIMIT, "const", "nested too deep (limit: depth)");
        }
        const int32_t e = const_list(s, value);
        s->depth--;
        return e;
    }
    if (json_is_real(value)) {
        char text[64];
        msgl__schema_real(json_real_value(value), text, sizeof text);
        // 1.0 and 1 are the same number, and a model may write either.
        const size_t n = strlen(text);
        const int32_t as_is = msgl__gx_lit(s->b, text, n);
        if (n < 3 || strcmp(text + n - 2, ".0") != 0) return as_is;
        const int32_t both[2] = {as_is, msgl__gx_lit(s->b, text, n - 2)};
        return msgl__gx_alt(s->b, both, 2);
    }
    if (json_is_integer(value)) {
        char text[32];
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
        return msgl__gx_str(s->b, text);
    }
    return msgl__gx_str(s->b, json_is_true(value)    ? "true"
                              : json_is_false(value) ? "false"
                                                     : "null");
}

static int type_bit(const char *name)
{
    static const struct {
        const char *name;
        int bit;
    } TYPES[] = {
        {"null", MSGL_T_NULL},       {"boolean", MSGL_T_BOOL},
        {"integer", MSGL_T_INTEGER}, {"number", MSGL_T_NUMBER | MSGL_T_INTEGER},
        {"string", MSGL_T_STRING},   {"array", MSGL_T_ARRAY},
        {"object", MSGL_T_OBJECT},
    };
    for (size_t i = 0; i < MSGL_COUNT(TYPES); i++) {
        if (strcmp(name, TYPES[i].name) == 0) return TYPES[i].bit;
    }
    return 0;
}

// Without "type", keywords of one type do not exclude the others (a number satisfies {"minLength":
// 1}); what a client means is the types that they are about.
static int implied_types(const json_t *schema)
{
    static const struct {
        const char *keyword;
        int types;
    } HINTS[] = {
        {"properties", MSGL_T_OBJECT},
        {"required", MSGL_T_OBJECT},
        {"additionalProperties", MSGL_T_OBJECT},
        {"patternProperties", MSGL_T_OBJECT},
        {"minProperties", MSGL_T_OBJECT},
        {"maxProperties", MSGL_T_OBJECT},
        {"propertyNames", MSGL_T_OBJECT},
        {"items", MSGL_T_ARRAY},
        {"prefixItems", MSGL_T_ARRAY},
        {"minItems", MSGL_T_ARRAY},
        {"maxItems", MSGL_T_ARRAY},
        {"minLength", MSGL_T_STRING},
        {"maxLength", MSGL_T_STRING},
        {"pattern", MSGL_T_STRING},
        {"format", MSGL_T_STRING},
        {"minimum", MSGL_T_NUMBER | MSGL_T_INTEGER},
        {"maximum", MSGL_T_NUMBER | MSGL_T_INTEGER},
        {"exclusiveMinimum", MSGL_T_NUMBER | MSGL_T_INTEGER},
        {"exclusiveMaximum", MSGL_T_NUMBER | MSGL_T_INTEGER},
        {"multipleOf", MSGL_T_NUMBER | MSGL_T_INTEGER},
    };
    int types = 0;
    for (size_t i = 0; i < MSGL_COUNT(HINTS); i++) {
        if (json_object_get(schema, HINTS[i].keyword) != NULL) types |= HINTS[i].types;
    }
    return types != 0 ? types : MSGL_T_ALL;
}

static int types_of(msgl_schema *s, const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    int types = 0;
    if (type == NULL) {
        types = implied_types(schema);
    } else if (json_is_string(type)) {
        types = type_bit(json_string_value(type));
    } else if (json_is_array(type) && json_array_size(type) > 0) {
        size_t i;
        const json_t *t;
        json_array_foreach(type, i, t)
        {
            const int bit = json_is_string(t) ? type_bit(json_string_value(t)) : 0;
            types |= bit;
            if (bit == 0) types = 1 << 20;
        }
    }
    if (types == 0 || types >= 1 << 20) {
        msgl__schema_fail(s, MSGL_EFORMAT, "type",
                          "allowed: null, boolean, integer, number, string, array, object, or a "
                          "list of them");
        return 0;
    }
    if (json_is_true(json_object_get(schema, "nullable"))) types |= MSGL_T_NULL;
    return types;
}

// Whether a value's type is among them.
static bool has_type(const json_t *v, int types)
{
    switch (json_typeof(v)) {
    case JSON_NULL: return types & MSGL_T_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return types & MSGL_T_BOOL;
    case JSON_INTEGER: return types & MSGL_T_INTEGER;
    case JSON_REAL:
        return types & MSGL_T_NUMBER || (types & MSGL_T_INTEGER &&
                                         json_real_value(v) == (double)(int64_t)json_real_value(v));
    case JSON_STRING: return types & MSGL_T_STRING;
    case JSON_ARRAY: return types & MSGL_T_ARRAY;
    default: return types & MSGL_T_OBJECT;
    }
}

static int32_t by_types(msgl_schema *s, json_t *schema, int types)
{
    msgl_gx_list l = {0};
    msgl_gx_builder *b = s->b;
    if (types & MSGL_T_OBJECT) msgl__gx_list_add(b, &l, msgl__schema_object(s, schema));
    if (types & MSGL_T_ARRAY) msgl__gx_list_add(b, &l, msgl__schema_array(s, schema));
    if (types & MSGL_T_STRING) msgl__gx_list_add(b, &l, msgl__schema_string(s, schema));
    if (types & (MSGL_T_NUMBER | MSGL_T_INTEGER)) {
        msgl__gx_list_add(b, &l, msgl__schema_number(s, schema, (types & MSGL_T_NUMBER) == 0));
    }
    if (types & MSGL_T_BOOL) {
        msgl__gx_list_add(b, &l, msgl__gx_str(b, "true"));
        msgl__gx_list_add(b, &l, msgl__gx_str(b, "false"));
    }
    if (types & MSGL_T_NULL) msgl__gx_list_add(b, &l, msgl__gx_str(b, "null"));
    const int32_t e = b->rc == 0 ? msgl__gx_alt(b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

// Keywords beside enum and const that would have to be checked on each value.
static int32_t enumerated(msgl_schema *s, const json_t *schema, const json_t *list,
                          const json_t *only)
{
    static const char *const HARD[] = {"pattern", "minLength",  "maxLength",
                                       "minimum", "maximum",    "properties",
                                       "items",   "multipleOf", "format"};
    msgl_gx_list l = {0};
    const int types = json_object_get(schema, "type") != NULL ? types_of(s, schema) : MSGL_T_ALL;
    for (size_t i = 0; i < MSGL_COUNT(HARD); i++) {
        if (json_object_get(schema, HARD[i]) == NULL) continue;
        return msgl__schema_fail(s, MSGL_EUNSUPPORTED, HARD[i],
                                 "beside enum or const it is not supported");
    }
    if (list != NULL && (!json_is_array(list) || json_array_size(list) == 0)) {
        return msgl__schema_fail(s, MSGL_EFORMAT, "enum", "has to be a list that is not empty");
    }
    size_t i;
    const json_t *v;
    if (list != NULL) {
        json_array_foreach(list, i, v)
        {
            if (only != NULL && !json_equal(only, v)) continue;
            if (has_type(v, types)) msgl__gx_list_add(s->b, &l, msgl__schema_const(s, v));
        }
    } else if (has_type(only, types)) {
        msgl__gx_list_add(s->b, &l, msgl__schema_const(s, only));
    }
    const int32_t e = s->b->rc == 0 ? msgl__gx_alt(s->b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

// anyOf, and oneOf as anyOf: of alternatives that overlap an answer may satisfy two. Keywords
// beside it go into each.
static int32_t any_of(msgl_schema *s, json_t *schema, const char *keyword)
{
    const json_t *list = json_object_get(schema, keyword);
    if (!json_is_array(list) || json_array_size(list) == 0) {
        return msgl__schema_fail(s, MSGL_EFORMAT, keyword, "has to be a list that is not empty");
    }
    json_t *rest = NULL;
    if (!only_notes_beside(schema, keyword)) {
        rest = msgl__json_copy(schema);
        if (rest != NULL) json_object_del(rest, keyword);
        rest = msgl__schema_keep(s, rest);
        if (rest == NULL) return -1;
    }
    msgl_gx_list l = {0};
    const size_t before = msgl__schema_enter(s, keyword, -1);
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        const size_t at = msgl__schema_enter(s, NULL, (int)i);
        json_t *one = rest != NULL ? msgl__schema_merge(s, rest, v) : v;
        if (one == NULL) break;
        msgl__gx_list_add(s->b, &l, msgl__schema_at(s, one, NULL, -1));
        s->place[at] = '\0';
    }
    s->place[before] = '\0';
    const int32_t e = s->b->rc == 0 ? msgl__gx_alt(s->b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

static json_t *all_of(msgl_schema *s, json_t *schema)
{
    const json_t *list = json_object_get(schema, "allOf");
    if (!json_is_array(list) || json_array_size(list) == 0) {
        msgl__schema_fail(s, MSGL_EFORMAT, "allOf", "has to be a list that is not empty");
        return NULL;
    }
    json_t *sum = msgl__json_copy(schema);
    if (sum != NULL) json_object_del(sum, "allOf");
    sum = msgl__schema_keep(s, sum);
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        if (sum == NULL) break;
        sum = msgl__schema_merge(s, sum, v);
    }
    return sum;
}

static int32_t body(msgl_schema *s, json_t *schema)
{
    if (json_is_true(schema)) return msgl__json_rule(s->b, &s->json, MSGL_JSON_VALUE);
    if (json_is_false(schema)) return msgl__gx_never(s->b);
    schema = msgl__schema_resolve(s, schema);
    if (schema == NULL) return -1;
    if (json_is_boolean(schema)) return body(s, schema);
    if (!json_is_object(schema)) {
        return msgl__schema_fail(s, MSGL_EFORMAT, "schema", "has to be an object or a boolean");
    }
    for (int i = 0; json_object_get(schema, "allOf") != NULL; i++) {
        schema = i < MSGL_SCHEMA_DEPTH ? all_of(s, schema) : NULL;
        if (schema == NULL) {
            return msgl__schema_fail(s, MSGL_ELIMIT, "allOf", "nested too deep (limit: depth)");
        }
        if (json_is_boolean(schema)) return body(s, schema);
    }
    if (check_keywords(s, schema) != 0) return -1;
    if (json_object_get(schema, "anyOf") != NULL) return any_of(s, schema, "anyOf");
    if (json_object_get(schema, "oneOf") != NULL) return any_of(s, schema, "oneOf");
    const json_t *list = json_object_get(schema, "enum"), *only = json_object_get(schema, "const");
    if (list != NULL || only != NULL) return enumerated(s, schema, list, only);
    const int types = types_of(s, schema);
    if (types == 0) return -1;
    if (types == MSGL_T_ALL && json_object_get(schema, "type") == NULL) {
        return msgl__json_rule(s->b, &s->json, MSGL_JSON_VALUE);
    }
    return by_types(s, schema, types);
}

// ---- rules by schema ----

static uint32_t slot_of(const msgl_schema *s, const json_t *schema)
{
    return (uint32_t)(((uintptr_t)schema >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 32) &
           (uint32_t)(s->cap_rules - 1);
}

static msgl_schema_rule *find_rule(msgl_schema *s, const json_t *schema)
{
    uint32_t k = slot_of(s, schema);
    while (s->rules[k].schema != NULL && s->rules[k].schema != schema) {
        k = (k + 1) & (uint32_t)(s->cap_rules - 1);
    }
    return &s->rules[k];
}

static int grow_rules(msgl_schema *s)
{
    if (s->num_rules * 2 < s->cap_rules) return 0;
    const int32_t before = s->cap_rules;
    msgl_schema_rule *old = s->rules;
    s->cap_rules = before == 0 ? 64 : before * 2;
    s->rules = msgl__calloc((size_t)s->cap_rules, sizeof *s->rules);
    if (s->rules == NULL) {
        s->rules = old;
        s->cap_rules = before;
        return msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
    }
    for (int32_t i = 0; i < before; i++) {
        if (old[i].schema != NULL) *find_rule(s, old[i].schema) = old[i];
    }
    msgl__free(old);
    return 0;
}

int32_t msgl__schema_at(msgl_schema *s, json_t *schema, const char *key, int index)
{
    if (s->b->rc != 0 || schema == NULL || grow_rules(s) != 0 || msgl__gx_late(s->b)) return -1;
    // A reference alone is the rule of what it refers to.
    if (json_is_object(schema) && only_notes_beside(schema, "$ref") &&
        json_object_get(schema, "$ref") != NULL) {
        schema = msgl__schema_resolve(s, schema);
        if (schema == NULL) return -1;
    }
    if (json_is_true(schema)) return msgl__json_rule(s->b, &s->json, MSGL_JSON_VALUE);
    if (json_is_false(schema)) return msgl__gx_never(s->b);
    msgl_schema_rule *r = find_rule(s, schema);
    if (r->schema != NULL) return msgl__gx_ref(s->b, r->rule);
    if (s->depth >= MSGL_SCHEMA_DEPTH) {
        return msgl__gx_fail(s->b, MSGL_ELIMIT,
                             "json_schema: schemas nested deeper than %d (limit: depth)",
                             MSGL_SCHEMA_DEPTH);
    }
    const size_t before = msgl__schema_enter(s, key, index);
    const int32_t rule = msgl__gx_rule_new(s->b, s->place, strlen(s->place));
    *r = (msgl_schema_rule){schema, rule};
    s->num_rules++;
    s->depth++;
    msgl__gx_rule_set(s->b, rule, body(s, schema));
    s->depth--;
    s->place[before] = '\0';
    return msgl__gx_ref(s->b, rule);
}

int32_t msgl__schema_expr(msgl_gx_builder *b, msgl_json_rules *rules, const char *place,
                          const char *text, size_t n)
{
    msgl_err parse = {0};
    msgl_schema s = {.b = b, .json = *rules};
    (void)snprintf(s.place, sizeof s.place, "%s", place);
    const int rc = msgl__json_parse("json_schema", text, n, JSON_DECODE_ANY, &s.root, &parse);
    if (rc != 0) msgl__gx_fail(b, rc, "%s", parse.text);
    s.made = json_array();
    if (s.made == NULL) msgl__gx_fail(b, MSGL_ENOMEM, "out of memory for a grammar");
    const int32_t e = msgl__schema_at(&s, s.root, NULL, -1);
    *rules = s.json;
    json_decref(s.made);
    json_decref(s.root);
    msgl__free(s.rules);
    return e;
}

int msgl__grammar_json_schema(const char *text, size_t n, const msgl_grammar_limits *limits,
                              msgl_grammar **out, msgl_err *err)
{
    msgl_gx_builder b;
    int32_t root = -1;
    if (msgl__grammar_begin(&b, n, limits, err) == 0) {
        msgl_json_rules rules;
        msgl__json_rules_init(&rules);
        root = msgl__gx_rule_new(&b, "json_schema", 11);
        msgl__gx_rule_set(&b, root, msgl__schema_expr(&b, &rules, "", text, n));
    }
    return msgl__grammar_finish(&b, root, out);
}
