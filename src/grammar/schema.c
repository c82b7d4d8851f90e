// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "grammar/compiled.h"
#include "grammar/schema_number.h"
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
    "uniqueItems",
    "unevaluatedProperties",
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
    "contentSchema",
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
    if (s->b->rc == 0) (void)snprintf(s->refused, sizeof s->refused, "%s", keyword);
    return msgl__gx_fail(s->b, code, "json_schema: \"%.40s\" at \"%s\": %s", keyword, s->place,
                         what);
}

int msgl__schema_leave_out(msgl_schema *s, const char *keyword, const char *what)
{
    msgl__schema_fail(s, MSGL_EUNSUPPORTED, keyword, what);
    return msgl__gx_forgive(s->b) ? 0 : -1;
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

bool msgl__schema_is_note(const char *keyword)
{
    return in_list(keyword, NOTES, MSGL_COUNT(NOTES)) || strncmp(keyword, "x-", 2) == 0 ||
           strcmp(keyword, "$defs") == 0 || strcmp(keyword, "definitions") == 0;
}

int msgl__schema_check_keywords(msgl_schema *s, json_t *schema)
{
    const char *key;
    json_t *value;
    json_object_foreach(schema, key, value)
    {
        if (msgl__gx_spend(s->b, 4, 0) != 0) return -1;
        if (in_list(key, KNOWN, MSGL_COUNT(KNOWN)) || msgl__schema_is_note(key)) {
            continue;
        }
        return msgl__schema_fail(s, MSGL_EUNSUPPORTED, key, "this keyword is not supported");
    }
    return 0;
}

int32_t msgl__schema_count(msgl_schema *s, const json_t *schema, const char *keyword, int32_t none)
{
    const json_t *v = json_object_get(schema, keyword);
    if (v == NULL) return none;
    const double d = json_number_value(v);
    if (!json_is_number(v) || d < 0 || d != floor(d)) {
        return msgl__schema_fail(s, MSGL_EFORMAT, keyword, "has to be an integer of 0 or more");
    }
    // Nobody waits for an answer that comes to such a maximum.
    if (d > 1000000 && none == MSGL_GX_INF) return none;
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

static json_t *find_anchor(msgl_schema *s, json_t *at, const char *name, int depth)
{
    if (depth > MSGL_SCHEMA_DEPTH) return NULL;
    if (msgl__gx_spend(s->b, 2 + json_object_size(at) / 4, 0) != 0) return NULL;
    const char *key;
    json_t *value;
    const json_t *own = json_object_get(at, "$anchor");
    if (own != NULL && json_is_string(own) && strcmp(json_string_value(own), name) == 0) return at;
    json_object_foreach(at, key, value)
    {
        json_t *hit = json_is_object(value) ? find_anchor(s, value, name, depth + 1) : NULL;
        if (hit != NULL) return hit;
    }
    return NULL;
}

json_t *msgl__schema_ref_target(msgl_schema *s, const json_t *ref)
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
        const int rc =
            msgl__schema_leave_out(s, "$ref", "only references inside the schema (#...)");
        return rc == 0 ? json_true() : NULL;
    }
    to = uri[1] == '\0' || uri[1] == '/' ? follow_pointer(s, uri + 1)
                                         : find_anchor(s, s->root, uri + 1, 0);
    if (to == NULL) msgl__schema_fail(s, MSGL_EFORMAT, "$ref", "leads nowhere");
    return to;
}

static bool only_notes_beside(const json_t *schema, const char *keyword)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        if (strcmp(key, keyword) != 0 && !msgl__schema_is_note(key)) return false;
    }
    return true;
}

bool msgl__schema_only_links(const json_t *schema)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        if (strcmp(key, "$ref") != 0 && strcmp(key, "allOf") != 0 && !msgl__schema_is_note(key)) {
            return false;
        }
    }
    return true;
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
        const msgl_schema_large *large = msgl__schema_large_of(s, value);
        if (large != NULL) return msgl__gx_lit(s->b, large->text, large->n);
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

int msgl__schema_types(msgl_schema *s, const json_t *schema)
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
bool msgl__schema_has_type(const msgl_schema *s, const json_t *v, int types)
{
    switch (json_typeof(v)) {
    case JSON_NULL: return types & MSGL_T_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return types & MSGL_T_BOOL;
    case JSON_INTEGER: return types & MSGL_T_INTEGER;
    case JSON_REAL: {
        msgl_dec d;
        if ((types & (MSGL_T_NUMBER | MSGL_T_INTEGER)) != MSGL_T_INTEGER) {
            return types & MSGL_T_NUMBER; // whether it is an integer does not matter
        }
        msgl__dec_of(s, v, &d);
        return msgl__dec_is_integer(&d);
    }
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

// Whether only enum, const and type speak of the values.
static bool only_lists(const json_t *schema)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        if (strcmp(key, "enum") != 0 && strcmp(key, "const") != 0 && strcmp(key, "type") != 0 &&
            strcmp(key, "nullable") != 0 && !msgl__schema_is_note(key)) {
            return false;
        }
    }
    return true;
}

// The values that all other keywords allow.
static int32_t enumerated(msgl_schema *s, json_t *schema, json_t *list, json_t *only)
{
    msgl_gx_list l = {0};
    const bool plain = only_lists(schema);
    const int types =
        json_object_get(schema, "type") != NULL ? msgl__schema_types(s, schema) : MSGL_T_ALL;
    if (list != NULL && (!json_is_array(list) || json_array_size(list) == 0)) {
        return msgl__schema_fail(s, MSGL_EFORMAT, "enum", "has to be a list that is not empty");
    }
    const size_t n = list != NULL ? json_array_size(list) : 1;
    for (size_t i = 0; i < n && s->b->rc == 0; i++) {
        json_t *v = list != NULL ? json_array_get(list, i) : only;
        if (!msgl__schema_has_type(s, v, types)) continue;
        if ((!plain || (list != NULL && only != NULL)) && msgl__schema_allows(s, schema, v) <= 0) {
            continue;
        }
        msgl__gx_list_add(s->b, &l, msgl__schema_const(s, v));
    }
    const int32_t e = s->b->rc == 0 ? msgl__gx_alt(s->b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

// The schema without a keyword, kept. NULL: failed.
static json_t *without(msgl_schema *s, json_t *schema, const char *keyword)
{
    json_t *rest = msgl__schema_keep(s, msgl__json_copy(schema));
    if (rest != NULL) (void)json_object_del(rest, keyword);
    return rest;
}

// Sets at[] to the alternatives of a keyword, each merged with the keywords beside it. Returns how
// many there are, -1 after a failure.
static int32_t flat_list(msgl_schema *s, json_t *schema, const char *keyword, json_t **at)
{
    json_t *rest = only_notes_beside(schema, keyword) ? NULL : without(s, schema, keyword);
    size_t i;
    json_t *v;
    int32_t n = 0;
    json_array_foreach(json_object_get(schema, keyword), i, v)
    {
        if (rest != NULL) {
            v = msgl__schema_both(s, rest, v);
            if (v == NULL || json_array_append_new(s->made, v) != 0) break;
        }
        at[n] = msgl__schema_flat(s, v);
        if (at[n++] == NULL) break;
    }
    if (s->b->rc == 0 && n < (int32_t)json_array_size(json_object_get(schema, keyword))) {
        msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
    }
    return s->b->rc == 0 ? n : -1;
}

static int32_t any_of(msgl_schema *s, json_t **list, int32_t n)
{
    msgl_gx_list l = {0};
    for (int32_t i = 0; i < n && s->b->rc == 0; i++) {
        msgl__gx_list_add(s->b, &l, msgl__schema_at(s, list[i], NULL, i));
    }
    const int32_t e = s->b->rc == 0 ? msgl__gx_alt(s->b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

static int32_t alternatives(msgl_schema *s, json_t *schema, const char *keyword)
{
    const json_t *given = json_object_get(schema, keyword);
    const size_t n = json_array_size(given);
    if (n == 0) {
        return msgl__schema_fail(s, MSGL_EFORMAT, keyword, "has to be a list that is not empty");
    }
    if (msgl__gx_spend(s->b, n, n * sizeof(json_t *)) != 0) return -1;
    json_t **list = msgl__calloc(n, sizeof *list);
    if (list == NULL) return msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
    const size_t before = msgl__schema_enter(s, keyword, -1);
    const int32_t num = flat_list(s, schema, keyword, list);
    int32_t e = -1;
    if (num >= 0) {
        const bool one = strcmp(keyword, "oneOf") == 0;
        e = one ? msgl__schema_one_of(s, list, num) : any_of(s, list, num);
        // Where values that are valid for two cannot be left out, oneOf is compiled as anyOf.
        if (one && e < 0 && msgl__gx_forgive(s->b)) e = any_of(s, list, num);
    }
    s->place[before] = '\0';
    msgl__free(list);
    return e;
}

static int32_t body_once(msgl_schema *s, json_t *schema)
{
    if (msgl__schema_check_keywords(s, schema) != 0) return -1;
    if (json_object_get(schema, "anyOf") != NULL) return alternatives(s, schema, "anyOf");
    if (json_object_get(schema, "oneOf") != NULL) return alternatives(s, schema, "oneOf");
    json_t *list = json_object_get(schema, "enum"), *only = json_object_get(schema, "const");
    if (list != NULL || only != NULL) return enumerated(s, schema, list, only);
    const int types = msgl__schema_types(s, schema);
    if (types == 0) return -1;
    if (types == MSGL_T_ALL && json_object_get(schema, "type") == NULL) {
        return msgl__json_rule(s->b, &s->json, MSGL_JSON_VALUE);
    }
    return by_types(s, schema, types);
}

// The expression of a flat schema. Keywords that are not supported are left out one by one, where
// that is allowed.
static int32_t body(msgl_schema *s, json_t *schema)
{
    if (json_is_true(schema)) return msgl__json_rule(s->b, &s->json, MSGL_JSON_VALUE);
    if (json_is_false(schema)) return msgl__gx_never(s->b);
    for (;;) {
        const int32_t e = body_once(s, schema);
        if (s->b->rc != MSGL_EUNSUPPORTED || json_object_get(schema, s->refused) == NULL ||
            !msgl__gx_forgive(s->b)) {
            return e;
        }
        schema = without(s, schema, s->refused);
        if (schema == NULL) return -1;
    }
}

// ---- rules by schema ----

static msgl_schema_rule *find_rule(msgl_schema *s, const json_t *schema)
{
    uint32_t k = msgl__schema_slot(schema, s->cap_rules);
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
    const int32_t cap = before == 0 ? 64 : before * 2;
    if (msgl__gx_spend(s->b, (size_t)cap, (size_t)cap * sizeof *old) != 0) return -1;
    s->cap_rules = cap;
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

// The reference to a flat schema's rule.
static int32_t rule_of(msgl_schema *s, json_t *schema)
{
    if (json_is_true(schema)) return msgl__json_rule(s->b, &s->json, MSGL_JSON_VALUE);
    if (json_is_false(schema)) return msgl__gx_never(s->b);
    msgl_schema_rule *r = find_rule(s, schema);
    if (r->schema != NULL) return msgl__gx_ref(s->b, r->rule);
    if (s->depth >= MSGL_SCHEMA_DEPTH) {
        return msgl__gx_fail(s->b, MSGL_ELIMIT,
                             "json_schema: schemas nested deeper than %d (limit: depth)",
                             MSGL_SCHEMA_DEPTH);
    }
    const int32_t rule = msgl__gx_rule_new(s->b, s->place, strlen(s->place));
    *r = (msgl_schema_rule){schema, rule};
    s->num_rules++;
    s->depth++;
    msgl__gx_rule_set(s->b, rule, body(s, schema));
    s->depth--;
    return msgl__gx_ref(s->b, rule);
}

int32_t msgl__schema_at(msgl_schema *s, json_t *schema, const char *key, int index)
{
    if (s->b->rc != 0 || schema == NULL || grow_rules(s) != 0 || msgl__gx_spend(s->b, 16, 0) != 0) {
        return -1;
    }
    const size_t before = msgl__schema_enter(s, key, index);
    schema = msgl__schema_flat(s, schema);
    const int32_t e = schema != NULL ? rule_of(s, schema) : -1;
    s->place[before] = '\0';
    return e;
}

const msgl_schema_large *msgl__schema_large_of(const msgl_schema *s, const json_t *v)
{
    if (!json_is_real(v) || s->num_large == 0) return NULL;
    // put_large numbers them: the quotient by the first one is the number, 3e201 / 1e201 the third.
    const double i = json_real_value(v) / s->large[0].value - 1;
    if (!(i > -0.5 && i < s->num_large - 0.5)) return NULL;
    const msgl_schema_large *large = &s->large[(int32_t)(i + 0.5)];
    return large->value == json_real_value(v) ? large : NULL;
}

// Writes a real that the text does not have in the place of an integer beyond 64 bits, in the copy:
// with the power 201 the first such integer becomes 1e201, the second one 2e201.
static int put_large(msgl_schema *s, const char *text, char *copy, size_t n, int power)
{
    int32_t i = 0;
    while (i < s->num_large && (s->large[i].n != n || memcmp(s->large[i].text, text, n) != 0)) i++;
    if (msgl__gx_spend(s->b, (size_t)i / 4 + 1, 0) != 0) return -1;
    char real[20];
    const int len = snprintf(real, sizeof real, "%de%d", i + 1, power);
    memset(copy, ' ', n);
    memcpy(copy, real, (size_t)len);
    if (i < s->num_large) return 0;
    if (msgl__gx_room(s->b, (void **)&s->large, &s->cap_large, (int64_t)i + 1, sizeof *s->large)) {
        return -1;
    }
    s->large[s->num_large++] = (msgl_schema_large){strtod(real, NULL), text, n};
    return 0;
}

// Spends what the values of a JSON text will take at most, and replaces its integers beyond 64 bits
// in the copy.
static int survey(msgl_schema *s, const char *text, char *copy, size_t n)
{
    size_t objects = 0, arrays = 0, values = 1;
    int power = 200;
    char e[8];
    do { // an exponent that no number has here
        snprintf(e, sizeof e, "e%d", ++power);
    } while (power < 290 && strstr(copy, e) != NULL);
    for (size_t i = 0; i < n && s->b->rc == 0; i++) {
        const char c = text[i];
        objects += c == '{';
        arrays += c == '[';
        values += c == ',' || c == ':';
        if (c == '"') {
            for (i++; i < n && text[i] != '"'; i++) i += text[i] == '\\';
        } else if (c >= '0' && c <= '9') {
            const size_t from = i > 0 && text[i - 1] == '-' ? i - 1 : i;
            bool integer = true;
            while (i + 1 < n && memchr("0123456789.eE+-", text[i + 1], 15) != NULL) {
                integer &= memchr(".eE", text[++i], 3) == NULL;
            }
            const size_t digits = i + 1 - from;
            if (digits < 19 || !integer) continue;
            (void)put_large(s, text + from, copy + from, digits, power);
        }
    }
    return msgl__gx_spend(s->b, n / 16 + values, n + objects * 256 + arrays * 160 + values * 112);
}

static void read_text(msgl_schema *s, const char *text, size_t n)
{
    msgl_err parse = {0};
    char *copy = msgl__gx_spend(s->b, 0, n) == 0 ? msgl__malloc(n + 1) : NULL;
    if (copy == NULL) {
        msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
        return;
    }
    memcpy(copy, text, n);
    copy[n] = '\0';
    if (survey(s, text, copy, n) == 0) {
        const int rc = msgl__json_parse("json_schema", copy, n, JSON_DECODE_ANY, &s->root, &parse);
        if (rc != 0) msgl__gx_fail(s->b, rc, "%s", parse.text);
    }
    msgl__free(copy);
}

int32_t msgl__schema_expr(msgl_gx_builder *b, msgl_json_rules *rules, const char *place,
                          const char *text, size_t n, bool open)
{
    msgl_schema s = {.b = b, .json = *rules, .open = open, .character = -1};
    (void)snprintf(s.place, sizeof s.place, "%s", place);
    read_text(&s, text, n);
    s.made = json_array();
    if (s.made == NULL) msgl__gx_fail(b, MSGL_ENOMEM, "out of memory for a grammar");
    const int32_t e = msgl__schema_at(&s, s.root, NULL, -1);
    *rules = s.json;
    for (int32_t i = 0; i < s.num_merges; i++) msgl__free(s.merges[i].subschemas);
    json_decref(s.made);
    json_decref(s.root);
    msgl__free(s.rules);
    msgl__free(s.seen);
    msgl__free(s.merges);
    msgl__free(s.large);
    return e;
}

static int compile(const char *text, size_t n, const msgl_grammar_limits *limits, bool open,
                   msgl_grammar **out, msgl_err *err)
{
    msgl_gx_builder b;
    int32_t root = -1;
    if (msgl__grammar_begin(&b, n, limits, err) == 0) {
        msgl_json_rules rules;
        msgl__json_rules_init(&rules);
        root = msgl__gx_rule_new(&b, "json_schema", 11);
        msgl__gx_rule_set(&b, root, msgl__schema_expr(&b, &rules, "", text, n, open));
    }
    return msgl__grammar_finish(&b, root, out);
}

int msgl__grammar_json_schema(const char *text, size_t n, const msgl_grammar_limits *limits,
                              msgl_grammar **out, msgl_err *err)
{
    return compile(text, n, limits, false, out, err);
}

int msgl__grammar_json_schema_open(const char *text, size_t n, const msgl_grammar_limits *limits,
                                   msgl_grammar **out, msgl_err *err)
{
    return compile(text, n, limits, true, out, err);
}
