// SPDX-License-Identifier: Apache-2.0
//
// Items of /v1/responses as messages of a chat. What the model made in one turn are several items,
// thoughts, text and calls, and one message. Every item is looked at once.
#include "api/openai/responses_input.h"

#include <stdio.h>
#include <string.h>

#include "api/fields.h"
#include "api/json.h"

typedef struct history {
    json_t *out;          // the chat's messages; borrowed
    json_t *turn;         // the model's that is not complete yet, or NULL; owned
    msgl_strbuf thoughts; // of the turn's items, one behind the other
    char param[64];       // the item
} history;

// Part i of the item's `field` is of none of these types.
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

// Types of a part, the other one's only where it is not `allowed` anyway.
static bool is_text(const json_t *part, const char *allowed, const char *other)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type != NULL && (strcmp(type, allowed) == 0 || strcmp(type, other) == 0) &&
           json_is_string(json_object_get(part, "text"));
}

// Texts of the parts behind what *out has, by line breaks apart.
static int join(const history *h, const char *field, const json_t *parts, const char *allowed,
                const char *other, msgl_strbuf *out, msgl_api_error *e)
{
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
        if (!is_text(part, allowed, other)) return bad_part(h, field, i, part, allowed, e);
        int rc = i == 0 && out->len == 0 ? 0 : msgl__strbuf_addc(out, '\n');
        if (rc == 0) rc = msgl__strbuf_add(out, json_string_value(text), json_string_length(text));
        if (rc != 0) return msgl__api_oom(e);
    }
    return 0;
}

// A string, or parts of text as one, into *out.
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
    if (json_object_get(h->turn, "content") == NULL) {
        bad |= json_object_set_new(h->turn, "content", json_string(""));
    }
    bad |= json_array_append_new(h->out, h->turn);
    h->turn = NULL;
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
    if (rc == 0 && (!own || turn_has(h, "content"))) rc = end_turn(h, e);
    if (rc == 0 && own) rc = open_turn(h, e);
    if (rc != 0) {
        json_decref(text);
        return rc;
    }
    if (own) return json_object_set_new(h->turn, "content", text) == 0 ? 0 : msgl__api_oom(e);
    json_t *m = json_pack("{s:s,s:o}", "role", role, "content", text);
    return json_array_append_new(h->out, m) == 0 ? 0 : msgl__api_oom(e);
}

// The thoughts themselves, else what was made of them; what is encrypted nobody can read here.
static int add_reasoning(history *h, const json_t *item, msgl_api_error *e)
{
    const json_t *content = msgl__field(item, "content"), *summary = msgl__field(item, "summary");
    if ((content != NULL && !json_is_array(content)) ||
        (summary != NULL && !json_is_array(summary))) {
        return msgl__field_bad(e, h->param, "must have the arrays summary and content");
    }
    int rc = turn_has(h, "content") || turn_has(h, "tool_calls") ? end_turn(h, e) : 0;
    if (rc == 0) rc = open_turn(h, e);
    if (rc != 0) return rc;
    return json_array_size(content) > 0
               ? join(h, "content", content, "reasoning_text", "text", &h->thoughts, e)
               : join(h, "summary", summary, "summary_text", "text", &h->thoughts, e);
}

static int add_call(history *h, const json_t *item, msgl_api_error *e)
{
    const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name");
    const json_t *arguments = json_object_get(item, "arguments");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments)) {
        return msgl__field_bad(e, h->param, "must have the strings call_id, name and arguments");
    }
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

static int add_output(history *h, const json_t *item, msgl_api_error *e)
{
    const json_t *id = json_object_get(item, "call_id");
    if (!json_is_string(id)) return msgl__field_bad(e, h->param, "must have the string call_id");
    json_t *text = NULL;
    int rc = text_of(h, "output", json_object_get(item, "output"), "input_text", "output_text",
                     &text, e);
    if (rc == 0 && (rc = end_turn(h, e)) != 0) json_decref(text);
    if (rc != 0) return rc;
    json_t *m = json_pack("{s:s,s:O,s:o}", "role", "tool", "tool_call_id", id, "content", text);
    return json_array_append_new(h->out, m) == 0 ? 0 : msgl__api_oom(e);
}

static int add_item(history *h, const json_t *item, msgl_api_error *e)
{
    static const struct {
        const char *type;
        int (*add)(history *h, const json_t *item, msgl_api_error *e);
    } kinds[] = {{"message", add_message},
                 {"reasoning", add_reasoning},
                 {"function_call", add_call},
                 {"function_call_output", add_output}};
    if (!json_is_object(item)) return msgl__field_bad(e, h->param, "must be an object");
    const json_t *type = msgl__field(item, "type");
    if (type == NULL) return add_message(h, item, e);
    const char *word = json_is_string(type) ? json_string_value(type) : "";
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(word, kinds[i].type) == 0) return kinds[i].add(h, item, e);
    }
    return msgl__api_fail(e, 400, h->param, "invalid_value",
                          "'%s' is of type \"%.40s\"; allowed: \"message\", \"reasoning\", "
                          "\"function_call\", \"function_call_output\".",
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
    if (json_array_size(h->out) <= MSGL_API_MAX_MESSAGES) return 0;
    return msgl__api_fail(e, 400, "input", "invalid_value",
                          "'input' is a conversation of %zu messages; allowed: at most %d.",
                          json_array_size(h->out), MSGL_API_MAX_MESSAGES);
}

// A message of one text; v is a string.
static int add_text(history *h, const char *role, const json_t *v, msgl_api_error *e)
{
    json_t *m = json_pack("{s:s,s:O}", "role", role, "content", v);
    return json_array_append_new(h->out, m) == 0 ? 0 : msgl__api_oom(e);
}

int msgl__responses_put_input(const json_t *o, json_t *chat, msgl_api_error *e)
{
    const json_t *in = msgl__field(o, "input"), *instructions = msgl__field(o, "instructions");
    if (in == NULL) {
        return msgl__api_fail(e, 400, "input", "missing_required_parameter", "'input' is missing.");
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
    int rc = instructions == NULL ? 0 : add_text(&h, "system", instructions, e);
    if (rc == 0) rc = json_is_string(in) ? add_text(&h, "user", in, e) : add_items(&h, in, e);
    json_decref(h.turn);
    msgl__strbuf_free(&h.thoughts);
    return rc;
}
