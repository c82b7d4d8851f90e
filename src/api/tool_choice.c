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

// The tools by their names, of several with one name the first. A new object; NULL: no memory.
static json_t *by_name(const json_t *tools)
{
    json_t *all = json_object();
    int bad = all == NULL;
    for (size_t i = json_array_size(tools); i-- > 0 && bad == 0;) {
        json_t *tool = json_array_get(tools, i);
        const char *name = name_of(tool);
        if (name != NULL) bad |= json_object_set(all, name, tool);
    }
    if (bad == 0) return all;
    json_decref(all);
    return NULL;
}

// Appends the tools of `all` that a list names, each once, to *left. A tool that was taken is null
// in `all` from then on.
static int take_allowed(const json_t *list, json_t *all, json_t *left, msgl_api_error *e)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        if (!msgl__field_is_type(one, "function")) continue; // of a kind that is not run here
        const char *name = name_of(one);
        if (name == NULL) return wrong(e);
        json_t *tool = json_object_get(all, name);
        if (tool == NULL) {
            return msgl__api_fail(e, 400, "tool_choice", "invalid_value",
                                  "'tool_choice' allows '%.100s', which is none of the 'tools'.",
                                  name);
        }
        if (json_is_null(tool)) continue;
        if (json_array_append(left, tool) != 0 ||
            json_object_set_new(all, name, json_null()) != 0) {
            return msgl__api_oom(e);
        }
    }
    return 0;
}

static int by_list(json_t *o, const json_t *tools, const json_t *allowed, msgl_tool_choice *out,
                   msgl_api_error *e)
{
    const char *mode = json_string_value(json_object_get(allowed, "mode"));
    const json_t *list = json_object_get(allowed, "tools");
    if (!json_is_array(list) || (mode != NULL && by_word(mode, out, e) != 0)) return wrong(e);
    json_t *left = json_array(), *all = by_name(tools);
    int rc = left == NULL || all == NULL ? msgl__api_oom(e) : take_allowed(list, all, left, e);
    if (rc == 0 && json_object_set(o, "tools", left) != 0) rc = msgl__api_oom(e);
    if (rc == 0) out->none |= json_array_size(left) == 0 && !out->force;
    json_decref(left);
    json_decref(all);
    return rc;
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
