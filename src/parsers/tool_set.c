// SPDX-License-Identifier: Apache-2.0
#include "parsers/tool_set.h"

#include <string.h>

#include "core/err.h"
#include "core/mem.h"

enum { VALUE_BYTES = 160 }; // of an object's member, about

// {name: {string parameter: true}}: jansson's objects are hash tables, so that a call costs the
// same with one tool and with a thousand.
struct msgl_tool_set {
    json_t *tools;
    size_t bytes;
};

static bool only_strings(const json_t *schema)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    if (type != NULL) return strcmp(type, "string") == 0;
    const json_t *values = json_object_get(schema, "enum");
    for (size_t i = 0; i < json_array_size(values); i++) {
        if (!json_is_string(json_array_get(values, i))) return false;
    }
    return json_array_size(values) > 0;
}

static int add_tool(msgl_tool_set *s, const json_t *function)
{
    const char *name = json_string_value(json_object_get(function, "name")), *param;
    if (name == NULL) return 0;
    json_t *strings = json_object(), *schema;
    int bad = strings == NULL;
    json_t *properties = json_object_get(json_object_get(function, "parameters"), "properties");
    json_object_foreach(properties, param, schema)
    {
        if (!only_strings(schema)) continue;
        bad |= json_object_set_new(strings, param, json_true());
        s->bytes += strlen(param) + VALUE_BYTES;
    }
    s->bytes += strlen(name) + 2 * VALUE_BYTES;
    bad |= json_object_set_new(s->tools, name, strings);
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

bool msgl__tool_set_is_string(const msgl_tool_set *s, const char *name, const char *param)
{
    return s != NULL && json_object_get(json_object_get(s->tools, name), param) != NULL;
}
