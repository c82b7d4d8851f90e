// SPDX-License-Identifier: Apache-2.0
#include "api/tool_choice.h"

#include <string.h>

#include "api/fields.h"

static int wrong(msgl_api_error *e)
{
    return msgl__api_fail(e, 400, "tool_choice", "invalid_value",
                          "'tool_choice' must be \"auto\", \"none\", \"required\", {\"type\": "
                          "\"function\", \"function\": {\"name\": string}} or {\"type\": "
                          "\"allowed_tools\", \"allowed_tools\": {\"mode\": \"auto\" or "
                          "\"required\", \"tools\": [...]}}.");
}

// A function's name, as chats have it or, without an object around it, as /v1/responses.
static const char *name_of(const json_t *tool)
{
    const json_t *inside = json_object_get(json_object_get(tool, "function"), "name");
    return json_string_value(inside != NULL ? inside : json_object_get(tool, "name"));
}

// A word, or NULL for another one. "any" is Mistral's and Anthropic's "required".
static int by_word(const char *word, msgl_tool_choice *out, msgl_api_error *e)
{
    out->none = strcmp(word, "none") == 0;
    out->force = strcmp(word, "required") == 0 || strcmp(word, "any") == 0;
    return out->none || out->force || strcmp(word, "auto") == 0 ? 0 : wrong(e);
}

static const json_t *tool_named(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const char *own = name_of(json_array_get(tools, i));
        if (own != NULL && strcmp(own, name) == 0) return json_array_get(tools, i);
    }
    return NULL;
}

static int by_list(json_t *o, const json_t *tools, const json_t *allowed, msgl_tool_choice *out,
                   msgl_api_error *e)
{
    const char *mode = json_string_value(json_object_get(allowed, "mode"));
    const json_t *list = json_object_get(allowed, "tools");
    if (!json_is_array(list) || (mode != NULL && by_word(mode, out, e) != 0)) return wrong(e);
    json_t *left = json_array();
    int bad = left == NULL;
    for (size_t i = 0; i < json_array_size(list) && bad == 0; i++) {
        const json_t *one = json_array_get(list, i);
        if (!msgl__field_is_type(one, "function")) continue; // of a kind that is not run here
        const char *name = name_of(one);
        const json_t *tool = name == NULL ? NULL : tool_named(tools, name);
        if (tool == NULL) {
            json_decref(left);
            if (name == NULL) return wrong(e);
            return msgl__api_fail(e, 400, "tool_choice", "invalid_value",
                                  "'tool_choice' allows '%.100s', which is none of the 'tools'.",
                                  name);
        }
        if (tool_named(left, name) == NULL) bad |= json_array_append(left, (json_t *)tool);
    }
    bad |= json_object_set_new(o, "tools", left);
    if (bad != 0) return msgl__api_oom(e);
    out->none |= json_array_size(left) == 0 && !out->force;
    return 0;
}

int msgl__tool_choice_parse(json_t *o, const json_t *tools, msgl_tool_choice *out,
                            msgl_api_error *e)
{
    const json_t *choice = msgl__field(o, "tool_choice");
    *out = (msgl_tool_choice){0};
    if (choice == NULL) return 0;
    const char *word = json_string_value(choice);
    if (word != NULL) return by_word(word, out, e);
    if (msgl__field_is_type(choice, "allowed_tools")) {
        const json_t *inside = json_object_get(choice, "allowed_tools");
        return by_list(o, tools, inside != NULL ? inside : choice, out, e);
    }
    out->name = name_of(choice);
    out->force = msgl__field_is_type(choice, "function") && out->name != NULL;
    return out->force ? 0 : wrong(e);
}
