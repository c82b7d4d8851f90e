// SPDX-License-Identifier: Apache-2.0
#include "parsers/tool_set.h"

#include <string.h>

#include "core/err.h"
#include "core/mem.h"

enum {
    VALUE_BYTES = 160, // of an object's member, about
    MAX_SCHEMAS = 64,  // inside of a parameter's, whatever refers to what
};

// {name: {parameter: its msgl_param_type}}: jansson's objects are hash tables, so that a call costs
// the same with one tool and with a thousand.
struct msgl_tool_set {
    json_t *tools;
    size_t bytes;
};

// The types of a schema, as far as it says them.
typedef struct types {
    bool any, null, string; // some but null were seen; the first of those is string
    int left;               // schemas that may still be looked at
    const json_t *root;     // of the parameters, where definitions are
} types;

static void see(types *t, const char *type)
{
    if (strcmp(type, "null") == 0) {
        t->null = true;
    } else if (!t->any) {
        t->any = true;
        t->string = strcmp(type, "string") == 0;
    }
}

static void look(types *t, const json_t *schema);

static void look_all(types *t, const json_t *schemas)
{
    for (size_t i = 0; i < json_array_size(schemas); i++) look(t, json_array_get(schemas, i));
}

// "#/$defs/NAME" and "#/definitions/NAME".
static const json_t *definition(const types *t, const char *ref)
{
    static const char *const places[] = {"$defs", "definitions"};
    if (ref == NULL || strncmp(ref, "#/", 2) != 0) return NULL;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const size_t n = strlen(places[i]);
        if (strncmp(ref + 2, places[i], n) != 0 || ref[2 + n] != '/') continue;
        return json_object_get(json_object_get(t->root, places[i]), ref + 2 + n + 1);
    }
    return NULL;
}

static void look(types *t, const json_t *schema)
{
    if (t->left-- <= 0) return;
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
    if (json_is_string(type)) see(t, json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++) {
        const char *one = json_string_value(json_array_get(type, i));
        if (one != NULL) see(t, one);
    }
    if (type != NULL) return;
    if (json_object_get(schema, "const") != NULL) {
        const json_t *only = json_object_get(schema, "const");
        see(t, json_is_string(only) ? "string" : json_is_null(only) ? "null" : "other");
    }
    // Of different types: it depends on the value, which is then read as JSON.
    bool strings = json_array_size(values) > 0;
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *one = json_array_get(values, i);
        if (json_is_null(one)) t->null = true;
        strings = strings && (json_is_string(one) || json_is_null(one));
    }
    if (json_array_size(values) > 0) see(t, strings ? "string" : "other");
    look_all(t, json_object_get(schema, "anyOf"));
    look_all(t, json_object_get(schema, "oneOf"));
    look_all(t, json_object_get(schema, "allOf"));
    const json_t *meant = definition(t, json_string_value(json_object_get(schema, "$ref")));
    if (meant != NULL) look(t, meant);
}

static msgl_param_type type_of(const json_t *root, const json_t *schema)
{
    types t = {.left = MAX_SCHEMAS, .root = root};
    look(&t, schema);
    if (t.any && t.string) return t.null ? MSGL_PARAM_STRING_OR_NULL : MSGL_PARAM_STRING;
    return t.any || t.null ? MSGL_PARAM_OTHER : MSGL_PARAM_UNKNOWN;
}

static int add_tool(msgl_tool_set *s, const json_t *function)
{
    const char *name = json_string_value(json_object_get(function, "name")), *param;
    if (name == NULL) return 0;
    json_t *params = json_object(), *schema;
    int bad = params == NULL;
    const json_t *root = json_object_get(function, "parameters");
    json_object_foreach(json_object_get(root, "properties"), param, schema)
    {
        const msgl_param_type type = type_of(root, schema);
        if (type == MSGL_PARAM_UNKNOWN) continue;
        bad |= json_object_set_new(params, param, json_integer(type));
        s->bytes += strlen(param) + VALUE_BYTES;
    }
    s->bytes += strlen(name) + 2 * VALUE_BYTES;
    bad |= json_object_set_new(s->tools, name, params);
    return bad ? MSGL_ENOMEM : 0;
}

int msgl__tool_set_create(const json_t *tools, msgl_tool_set **out)
{
    msgl_tool_set *s = msgl__calloc(1, sizeof *s);
    *out = NULL;
    if (s == NULL) return MSGL_ENOMEM;
    s->tools = json_object();
    s->bytes = sizeof *s + VALUE_BYTES;
    int rc = s->tools == NULL ? MSGL_ENOMEM : 0;
    for (size_t i = 0; i < json_array_size(tools) && rc == 0; i++) {
        rc = add_tool(s, json_object_get(json_array_get(tools, i), "function"));
    }
    if (rc != 0) {
        msgl__tool_set_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void msgl__tool_set_free(msgl_tool_set *s)
{
    if (s == NULL) return;
    json_decref(s->tools);
    msgl__free(s);
}

size_t msgl__tool_set_bytes(const msgl_tool_set *s)
{
    return s == NULL ? 0 : s->bytes;
}

bool msgl__tool_set_has(const msgl_tool_set *s, const char *name, size_t len)
{
    return s != NULL && json_object_getn(s->tools, name, len) != NULL;
}

msgl_param_type msgl__tool_set_type(const msgl_tool_set *s, const char *name, const char *param)
{
    if (s == NULL) return MSGL_PARAM_UNKNOWN;
    // Of what is not there, jansson says 0.
    return (msgl_param_type)json_integer_value(
        json_object_get(json_object_get(s->tools, name), param));
}
