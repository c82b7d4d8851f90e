// SPDX-License-Identifier: Apache-2.0
//
// Items of /v1/responses as messages of a chat. What the model wrote in one turn, thoughts, text
// and calls, is several items, and one message of a chat. Every item is looked at once.
#include "api/openai/responses_input.h"

#include <stdio.h>
#include <string.h>

#include "api/fields.h"
#include "api/foreign.h"
#include "api/json.h"
#include "utils/json.h"

static const char unread[] = "[image or file] This model reads text only: it is left out.";

typedef struct history {
    json_t *out;          // the chat's messages; borrowed
    json_t *turn;         // the model's message that is not complete yet, or NULL; owned
    bool has_said;        // the turn has content
    bool noted;           // and all of it is text of items that are no messages (add_note)
    msgl_strbuf said;     // the content
    msgl_strbuf thoughts; // the thoughts of the turn's items, one behind the other
    char param[64];       // where the item is, such as "input[3]"
} history;

// 400: part i of the item's `field` has none of the types that are read there.
static int bad_part(const history *h, const char *field, size_t i, const json_t *part,
                    const char *allowed, msgl_api_error *e)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    char param[64];
    (void)snprintf(param, sizeof param, "%.24s.%.10s[%zu]", h->param, field, i);
    if (type == NULL || strcmp(type, allowed) == 0) {
        return msgl__api_fail(e, 400, param, "invalid_value",
                              "'%s' must be {\"type\": \"%s\", \"text\": string}.", param, allowed);
    }
    return msgl__api_fail(e, 400, param, "invalid_value",
                          "'%s' is of type \"%.40s\"; allowed: \"%s\": this model reads text only.",
                          param, type, allowed);
}

// The text of a part of one of the two types, or of a refusal; NULL: the part is none of these.
static const json_t *text_in(const json_t *part, const char *allowed, const char *other)
{
    const json_t *text = json_object_get(part, "text");
    if (msgl__field_is_type(part, "refusal")) text = json_object_get(part, "refusal");
    const bool fits = msgl__field_is_type(part, allowed) || msgl__field_is_type(part, other) ||
                      msgl__field_is_type(part, "refusal");
    return fits && json_is_string(text) ? text : NULL;
}

static bool is_picture(const json_t *part)
{
    return msgl__field_is_type(part, "input_image") || msgl__field_is_type(part, "input_file") ||
           msgl__field_is_type(part, "computer_screenshot");
}

// Appends the texts of parts to *out, with line breaks between them. Pictures and files in a tool's
// output are only mentioned: a history that has one stays usable.
static int join(const history *h, const char *field, const json_t *parts, const char *allowed,
                const char *other, msgl_strbuf *out, msgl_api_error *e)
{
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = text_in(part, allowed, other);
        const bool left_out = is_picture(part) && strcmp(field, "output") == 0;
        if (text == NULL && !left_out) return bad_part(h, field, i, part, allowed, e);
        int rc = i == 0 && out->len == 0 ? 0 : msgl__strbuf_addc(out, '\n');
        if (rc == 0 && left_out) rc = msgl__strbuf_adds(out, unread);
        if (rc == 0 && text != NULL)
            rc = msgl__strbuf_add(out, json_string_value(text), json_string_length(text));
        if (rc != 0) return msgl__api_oom(e);
    }
    return 0;
}

// Sets *out to a new reference to a string, or to parts of text as one string.
static int text_of(const history *h, const char *field, const json_t *v, const char *allowed,
                   const char *other, json_t **out, msgl_api_error *e)
{
    if (json_is_string(v)) {
        *out = json_incref((json_t *)v);
        return 0;
    }
    if (!json_is_array(v)) {
        char param[64];
        (void)snprintf(param, sizeof param, "%.24s.%.10s", h->param, field);
        return msgl__field_bad(e, param, "must be a string or an array of parts");
    }
    msgl_strbuf all;
    msgl__strbuf_init(&all, SIZE_MAX / 2);
    int rc = join(h, field, v, allowed, other, &all, e);
    if (rc == 0) {
        *out = json_stringn(msgl__strbuf_str(&all), all.len);
        if (*out == NULL) rc = msgl__api_oom(e);
    }
    msgl__strbuf_free(&all);
    return rc;
}

// --- turns of the model ---

static int end_turn(history *h, msgl_api_error *e)
{
    if (h->turn == NULL) return 0;
    int bad = 0;
    if (h->thoughts.len > 0) {
        json_t *text = json_stringn(msgl__strbuf_str(&h->thoughts), h->thoughts.len);
        bad |= json_object_set_new(h->turn, "reasoning_content", text);
        msgl__strbuf_clear(&h->thoughts);
    }
    bad |= json_object_set_new(h->turn, "content",
                               json_stringn(msgl__strbuf_str(&h->said), h->said.len));
    msgl__strbuf_clear(&h->said);
    h->has_said = false;
    bad |= json_array_append_new(h->out, h->turn);
    h->turn = NULL;
    h->noted = false;
    return bad == 0 ? 0 : msgl__api_oom(e);
}

static int open_turn(history *h, msgl_api_error *e)
{
    if (h->turn == NULL) h->turn = json_pack("{s:s}", "role", "assistant");
    return h->turn != NULL ? 0 : msgl__api_oom(e);
}

static bool turn_has(const history *h, const char *field)
{
    return json_object_get(h->turn, field) != NULL;
}

// --- items ---

// Appends a text to the turn's content, on a line of its own.
static int say(history *h, const char *text, size_t len, msgl_api_error *e)
{
    int rc = h->has_said && h->said.len > 0 ? msgl__strbuf_addc(&h->said, '\n') : 0;
    if (rc == 0) rc = msgl__strbuf_add(&h->said, text, len);
    h->has_said = true;
    h->noted = false;
    return rc == 0 ? 0 : msgl__api_oom(e);
}

static int add_message(history *h, const json_t *item, msgl_api_error *e)
{
    const char *role = json_string_value(json_object_get(item, "role"));
    const bool own = role != NULL && strcmp(role, "assistant") == 0;
    if (!own && (role == NULL || (strcmp(role, "user") != 0 && strcmp(role, "system") != 0 &&
                                  strcmp(role, "developer") != 0))) {
        char param[64];
        (void)snprintf(param, sizeof param, "%.24s.role", h->param);
        return msgl__field_bad(e, param, "must be user, assistant, system or developer");
    }
    json_t *text = NULL;
    int rc =
        text_of(h, "content", json_object_get(item, "content"), own ? "output_text" : "input_text",
                own ? "input_text" : "output_text", &text, e);
    if (rc == 0 && (!own || (h->has_said && !h->noted))) rc = end_turn(h, e);
    if (rc == 0 && own) rc = open_turn(h, e);
    if (rc != 0) {
        json_decref(text);
        return rc;
    }
    if (own) {
        rc = say(h, json_string_value(text), json_string_length(text), e);
        json_decref(text);
        return rc;
    }
    json_t *m = json_pack("{s:s,s:o}", "role", role, "content", text);
    return json_array_append_new(h->out, m) == 0 ? 0 : msgl__api_oom(e);
}

// Adds the thoughts of an item to the turn: the thoughts themselves, or else their summary.
// Thoughts that are encrypted cannot be read here.
static int add_reasoning(history *h, const json_t *item, msgl_api_error *e)
{
    const json_t *content = msgl__field(item, "content"), *summary = msgl__field(item, "summary");
    if ((content != NULL && !json_is_array(content)) ||
        (summary != NULL && !json_is_array(summary))) {
        return msgl__field_bad(e, h->param, "must have the arrays summary and content");
    }
    int rc = h->has_said || turn_has(h, "tool_calls") ? end_turn(h, e) : 0;
    if (rc == 0) rc = open_turn(h, e);
    if (rc != 0) return rc;
    return json_array_size(content) > 0
               ? join(h, "content", content, "reasoning_text", "text", &h->thoughts, e)
               : join(h, "summary", summary, "summary_text", "text", &h->thoughts, e);
}

// Adds a call with its id, name and arguments to the turn.
static int put_call(history *h, const json_t *item, msgl_api_error *e)
{
    json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name");
    json_t *arguments = json_object_get(item, "arguments");
    const int rc = open_turn(h, e);
    if (rc != 0) return rc;
    if (!turn_has(h, "tool_calls") &&
        json_object_set_new(h->turn, "tool_calls", json_array()) != 0) {
        return msgl__api_oom(e);
    }
    json_t *call = json_pack("{s:O,s:s,s:{s:O,s:O}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", arguments);
    return json_array_append_new(json_object_get(h->turn, "tool_calls"), call) == 0
               ? 0
               : msgl__api_oom(e);
}

// Adds a call of a function. One of a namespace has both names in one, as chats have no namespaces.
static int add_call(history *h, const json_t *item, msgl_api_error *e)
{
    const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name");
    const json_t *arguments = json_object_get(item, "arguments");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments)) {
        return msgl__field_bad(e, h->param, "must have the strings call_id, name and arguments");
    }
    const json_t *space = msgl__field(item, "namespace");
    if (!json_is_string(space)) return put_call(h, item, e);
    json_t *flat = msgl__responses_flat_name(space, name), *as = msgl__json_copy(item);
    int rc = json_object_set_new(as, "name", flat) == 0 ? 0 : msgl__api_oom(e);
    if (rc == 0) rc = put_call(h, as, e);
    json_decref(as);
    return rc;
}

// Ends the turn and adds the result of the call `id`. Takes the reference of text.
static int put_output(history *h, const json_t *id, json_t *text, msgl_api_error *e)
{
    const int rc = text == NULL ? msgl__api_oom(e) : end_turn(h, e);
    if (rc != 0) {
        json_decref(text);
        return rc;
    }
    json_t *m = json_pack("{s:s,s:O,s:o}", "role", "tool", "tool_call_id", id, "content", text);
    return json_array_append_new(h->out, m) == 0 ? 0 : msgl__api_oom(e);
}

static int add_output(history *h, const json_t *item, msgl_api_error *e)
{
    const json_t *id = json_object_get(item, "call_id");
    if (!json_is_string(id)) return msgl__field_bad(e, h->param, "must have the string call_id");
    json_t *text = NULL;
    const int rc = text_of(h, "output", json_object_get(item, "output"), "input_text",
                           "output_text", &text, e);
    return rc == 0 ? put_output(h, id, text, e) : rc;
}

// --- items of tools that are no functions ---

// The id that a call's item and its output's have in common; NULL: the item has none.
static const json_t *call_id_of(const json_t *item)
{
    const json_t *id = json_object_get(item, "call_id");
    if (!json_is_string(id)) id = json_object_get(item, "id");
    return json_is_string(id) ? id : NULL;
}

// Adds what an item says as text of the model's turn.
static int add_note(history *h, const json_t *item, msgl_api_error *e)
{
    msgl_strbuf text;
    int rc = h->has_said && !h->noted ? end_turn(h, e) : 0;
    if (rc == 0) rc = open_turn(h, e);
    if (rc != 0) return rc;
    msgl__strbuf_init(&text, SIZE_MAX / 2);
    rc = msgl__foreign_text(item, &text);
    rc = rc == 0 ? say(h, msgl__strbuf_str(&text), text.len, e) : msgl__api_oom(e);
    msgl__strbuf_free(&text);
    h->noted = true;
    return rc;
}

// Leaves out an item that names what OpenAI's servers store, or is for them alone.
static int skip(history *h, const json_t *item, msgl_api_error *e)
{
    (void)h, (void)item, (void)e;
    return 0;
}

// Adds what an item says without its picture, which is no text, and long.
static int add_picture(history *h, const json_t *item, msgl_api_error *e)
{
    json_t *rest = msgl__json_copy(item);
    if (rest == NULL) return msgl__api_oom(e);
    (void)json_object_del(rest, "result");
    const int rc = add_note(h, rest, e);
    json_decref(rest);
    return rc;
}

// Adds a call of a tool that the client runs, such as custom_tool_call or local_shell_call, as a
// call of a function with the client's id. Where its input is no object, as the text of a custom
// tool, the arguments are an object with that input.
static int add_other_call(history *h, const json_t *item, msgl_api_error *e)
{
    static const char *const inputs[] = {"input", "arguments", "action", "actions", "operation"};
    const json_t *id = call_id_of(item), *name = json_object_get(item, "name");
    const char *type = json_string_value(json_object_get(item, "type")), *member = NULL;
    json_t *input = NULL;
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0] && input == NULL; i++) {
        member = inputs[i];
        input = msgl__field(item, member);
    }
    if (id == NULL || input == NULL) return add_note(h, item, e);
    json_t *call =
        json_pack("{s:O,s:o,s:o}", "call_id", id, "name",
                  json_is_string(name) ? json_incref((json_t *)name)
                                       : json_stringn(type, strlen(type) - strlen("_call")),
                  "arguments",
                  json_is_object(input) ? json_incref(input) : json_pack("{s:O}", member, input));
    if (call == NULL) return msgl__api_oom(e);
    const int rc = put_call(h, call, e);
    json_decref(call);
    return rc;
}

// Adds the output of such a call: a text, parts, or any JSON value that the tool's kind has.
static int add_other_output(history *h, const json_t *item, msgl_api_error *e)
{
    const json_t *id = call_id_of(item), *output = msgl__field(item, "output");
    const char *type = json_string_value(json_object_get(json_array_get(output, 0), "type"));
    if (id == NULL) return add_note(h, item, e);
    if (json_is_string(output) || type != NULL) {
        json_t *text = NULL;
        if (type == NULL || strcmp(type, "input_text") == 0 || strcmp(type, "output_text") == 0 ||
            is_picture(json_array_get(output, 0))) {
            const int rc = text_of(h, "output", output, "input_text", "output_text", &text, e);
            return rc == 0 ? put_output(h, id, text, e) : rc;
        }
    }
    msgl_strbuf all;
    msgl__strbuf_init(&all, SIZE_MAX / 2);
    const json_t *shown = output != NULL && !is_picture(output) ? output : item;
    const int rc = is_picture(output) ? msgl__strbuf_adds(&all, unread)
                   : shown == item    ? msgl__foreign_text(item, &all)
                                      : msgl__json_put(&all, shown, JSON_COMPACT);
    json_t *text = rc == 0 ? json_stringn(msgl__strbuf_str(&all), all.len) : NULL;
    msgl__strbuf_free(&all);
    return put_output(h, id, text, e);
}

static int add_item(history *h, const json_t *item, msgl_api_error *e)
{
    static const struct {
        const char *type;
        int (*add)(history *h, const json_t *item, msgl_api_error *e);
    } kinds[] = {
        {"message", add_message},
        {"reasoning", add_reasoning},
        {"function_call", add_call},
        {"function_call_output", add_output},
        {"custom_tool_call", add_other_call},
        {"custom_tool_call_output", add_other_output},
        {"local_shell_call", add_other_call},
        {"local_shell_call_output", add_other_output},
        {"shell_call", add_other_call},
        {"shell_call_output", add_other_output},
        {"apply_patch_call", add_other_call},
        {"apply_patch_call_output", add_other_output},
        {"computer_call", add_other_call},
        {"computer_call_output", add_other_output},
        {"tool_search_call", add_other_call},
        {"tool_search_output", add_other_output},
        {"web_search_call", add_note},
        {"file_search_call", add_note},
        {"code_interpreter_call", add_note},
        {"mcp_call", add_note},
        {"mcp_approval_request", add_note},
        {"mcp_approval_response", add_note},
        {"program", add_note},
        {"program_output", add_note},
        {"image_generation_call", add_picture},
        {"item_reference", skip},
        {"mcp_list_tools", skip},
        {"additional_tools", skip},
        {"configuration_update", skip},
        {"compaction", skip},
        {"compaction_trigger", skip},
        {"compaction_summary", skip},
        {"context_compaction", skip},
        {"ghost_snapshot", skip},
    };
    if (!json_is_object(item)) return msgl__field_bad(e, h->param, "must be an object");
    const json_t *type = msgl__field(item, "type");
    if (type == NULL) return add_message(h, item, e);
    const char *word = json_is_string(type) ? json_string_value(type) : "";
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(word, kinds[i].type) == 0) return kinds[i].add(h, item, e);
    }
    return msgl__api_fail(
        e, 400, h->param, "invalid_value",
        "'%s' is of type \"%.40s\"; allowed: \"message\", \"reasoning\", "
        "\"function_call\", \"function_call_output\" and the items of OpenAI's own "
        "tools.",
        h->param, word);
}

static int add_items(history *h, const json_t *in, msgl_api_error *e)
{
    int rc = 0;
    for (size_t i = 0; i < json_array_size(in) && rc == 0; i++) {
        (void)snprintf(h->param, sizeof h->param, "input[%zu]", i);
        rc = add_item(h, json_array_get(in, i), e);
    }
    if (rc == 0) rc = end_turn(h, e);
    if (rc != 0) return rc;
    if (json_array_size(h->out) == 0) {
        return msgl__field_bad(e, "input",
                               "must have a message: what its items name is not stored here");
    }
    if (json_array_size(h->out) <= MSGL_API_MAX_MESSAGES) return 0;
    return msgl__api_fail(e, 400, "input", "invalid_value",
                          "'input' is a conversation of %zu messages; allowed: at most %d.",
                          json_array_size(h->out), MSGL_API_MAX_MESSAGES);
}

// Adds a message of one text, the string v.
static int add_text(history *h, const char *role, const json_t *v, msgl_api_error *e)
{
    json_t *m = json_pack("{s:s,s:O}", "role", role, "content", v);
    return json_array_append_new(h->out, m) == 0 ? 0 : msgl__api_oom(e);
}

json_t *msgl__responses_flat_name(const json_t *space, const json_t *name)
{
    const char *in = json_string_value(space);
    const size_t n = json_string_length(space);
    const bool apart = n >= 2 && strcmp(in + n - 2, "__") == 0;
    return json_sprintf("%s%s%s", in, apart ? "" : "__", json_string_value(name));
}

int msgl__responses_put_input(const json_t *o, json_t *chat, msgl_api_error *e)
{
    const json_t *in = msgl__field(o, "input"), *instructions = msgl__field(o, "instructions");
    if (in == NULL) {
        return msgl__field_missing(e, "input");
    }
    if (!json_is_string(in) && json_array_size(in) == 0) {
        return msgl__field_bad(e, "input", "must be a string or an array of at least one item");
    }
    if (instructions != NULL && !json_is_string(instructions)) {
        return msgl__field_bad(e, "instructions", "must be a string");
    }
    history h = {.out = json_array()};
    if (json_object_set_new(chat, "messages", h.out) != 0) return msgl__api_oom(e);
    msgl__strbuf_init(&h.thoughts, SIZE_MAX / 2);
    msgl__strbuf_init(&h.said, SIZE_MAX / 2);
    int rc = instructions == NULL ? 0 : add_text(&h, "system", instructions, e);
    if (rc == 0) rc = json_is_string(in) ? add_text(&h, "user", in, e) : add_items(&h, in, e);
    json_decref(h.turn);
    msgl__strbuf_free(&h.thoughts);
    msgl__strbuf_free(&h.said);
    return rc;
}
