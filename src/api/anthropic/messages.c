// SPDX-License-Identifier: Apache-2.0
//
// POST /v1/messages and /v1/messages/count_tokens, Anthropic's API: their bodies are rewritten as
// bodies of /v1/chat/completions, whose parser reads them from there on.
#include <stdio.h>
#include <string.h>

#include "api/anthropic/endpoints.h"
#include "api/fields.h"
#include "api/final_message.h"
#include "api/foreign.h"
#include "api/json.h"
#include "api/anthropic/messages_answer.h"
#include "utils/json.h"

static const msgl_field_row rows[] = {
    MSGL_ROW_MODEL,
    {"max_tokens", MSGL_FIELD_INT, .min = 1, .max = INT32_MAX, .unlimited = true,
     .help = "of the answer; /v1/messages must have it"},
    {"messages", MSGL_FIELD_ARRAY, .required = true, .max_items = MSGL_API_MAX_MESSAGES,
     .help = "objects with `role` (user, assistant, system) and `content`, a string or an array of "
             "blocks"},
    {"system", MSGL_FIELD_ANY, .help = "a string, or an array of text blocks"},
    MSGL_ROW_STREAM,
    {"stop_sequences", MSGL_FIELD_STRINGS, .max_items = MSGL_MAX_STOPS,
     .max_bytes = MSGL_MAX_STOP_BYTES, .help = "any of them ends the answer"},
    {"tools", MSGL_FIELD_ARRAY, .help = "the client's own tools"},
    {"tool_choice", MSGL_FIELD_OBJECT, .preset = "{\"type\": \"auto\"}",
     .help = "of type auto, any, tool or none; `disable_parallel_tool_use` (boolean)"},
    {"thinking", MSGL_FIELD_OBJECT,
     .help = "of type enabled, adaptive or disabled; `budget_tokens`: thoughts end after so many"},
    {"output_config", MSGL_FIELD_OBJECT,
     .help = "`format`: of type json_schema, with a schema; `effort`: a variable of the template"},
    MSGL_ROW_CHAT_TEMPLATE,
    MSGL_ROW_CACHE_SALT,
    {0},
};
// Fields of Anthropic's service, on which nothing here depends.
#define UNUSED(name) MSGL_ROW_UNUSED(name, "of Anthropic's service")
static const msgl_field_row service_rows[] = {
    UNUSED("metadata"),        UNUSED("cache_control"), UNUSED("service_tier"),
    UNUSED("inference_geo"),   UNUSED("speed"),         UNUSED("diagnostics"),
    UNUSED("user_profile_id"), UNUSED("workspace_id"),  {0},
};
#undef UNUSED
static const msgl_refused_field refused[] = {{"container", MSGL_NEUTRAL_NULL},
                                             {"mcp_servers", MSGL_NEUTRAL_EMPTY},
                                             {NULL, MSGL_NEUTRAL_NULL}};
static const msgl_fields passed = {.read = service_rows, .also = &msgl__sampling_fields};
static const msgl_fields fields = {.read = rows, .refused = refused, .also = &passed};
static const msgl_fields *const objects[] = {&fields, NULL};

// --- texts ---

static int add_line(const json_t *text, msgl_strbuf *out)
{
    const int rc = out->len == 0 ? 0 : msgl__strbuf_addc(out, '\n');
    if (rc != 0) return rc;
    return msgl__strbuf_add(out, json_string_value(text), json_string_length(text));
}

// Appends a document's text, with its title and context before it. MSGL_EINVAL: it has no text, as
// a PDF or a file of Anthropic's servers.
static int add_document(const json_t *block, msgl_strbuf *out)
{
    static const char *const names[] = {"title", "context"};
    const json_t *source = json_object_get(block, "source");
    const json_t *data = json_object_get(source, "data");
    const json_t *content = json_object_get(source, "content");
    int rc = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const json_t *text = json_object_get(block, names[i]);
        if (rc == 0 && json_is_string(text)) rc = add_line(text, out);
    }
    if (rc != 0) return rc;
    if (msgl__field_is_type(source, "text") && json_is_string(data)) return add_line(data, out);
    if (!msgl__field_is_type(source, "content")) return MSGL_EINVAL;
    if (json_is_string(content)) return add_line(content, out);
    for (size_t i = 0; i < json_array_size(content) && rc == 0; i++) {
        const json_t *text = json_object_get(json_array_get(content, i), "text");
        rc = json_is_string(text) ? add_line(text, out) : MSGL_EINVAL;
    }
    return rc;
}

// Whether a block is of Anthropic's own tools and services, which may be in a history.
static bool is_foreign(const json_t *block)
{
    static const char *const types[] = {"server_tool_use",  "mcp_tool_use",     "tool_reference",
                                        "container_upload", "mcp_tool_listing", "tool_addition",
                                        "tool_removal",     "fallback",         "browser_state",
                                        "search_result",    "compaction"};
    static const char result[] = "_tool_result";
    const char *type = json_string_value(json_object_get(block, "type"));
    const size_t n = type == NULL ? 0 : strlen(type), m = sizeof result - 1;
    if (n > m && strcmp(type + n - m, result) == 0) return true;
    for (size_t i = 0; i < sizeof types / sizeof types[0] && type != NULL; i++) {
        if (strcmp(type, types[i]) == 0) return true;
    }
    return false;
}

// Appends what a block says, on a line of its own. MSGL_EINVAL: it has no text.
static int add_block_text(const json_t *block, msgl_strbuf *out)
{
    const json_t *text = json_object_get(block, "text");
    if (msgl__field_is_type(block, "text")) {
        return json_is_string(text) ? add_line(text, out) : MSGL_EINVAL;
    }
    if (msgl__field_is_type(block, "document")) return add_document(block, out);
    return is_foreign(block) ? msgl__foreign_text(block, out) : MSGL_EINVAL;
}

// Whether a block is Claude Code's line with a number that differs in each request. It is left out:
// it says nothing to a model, and with it no request would find the prefix of another one cached.
static bool is_billing(const json_t *block)
{
    static const char line[] = "x-anthropic-billing-header:";
    const char *text = json_string_value(json_object_get(block, "text"));
    return text != NULL && strncmp(text, line, sizeof line - 1) == 0;
}

// Appends a string, or what blocks say, each on a line of its own. results: they are a tool's,
// whose pictures are only mentioned: a history that has one stays usable.
static int add_texts(const json_t *v, const char *param, bool results, msgl_strbuf *out,
                     msgl_api_error *e)
{
    static const char picture[] = "[image] This model reads text only: the picture is left out.";
    if (!json_is_string(v) && !json_is_array(v)) {
        return msgl__field_bad(e, param, "must be a string or an array of blocks");
    }
    int rc = json_is_string(v) ? add_line(v, out) : 0;
    for (size_t i = 0; i < json_array_size(v) && rc == 0; i++) {
        const json_t *block = json_array_get(v, i);
        if (is_billing(block)) continue;
        if (results && msgl__field_is_type(block, "image")) {
            rc = out->len == 0 ? 0 : msgl__strbuf_addc(out, '\n');
            if (rc == 0) rc = msgl__strbuf_adds(out, picture);
        } else {
            rc = add_block_text(block, out);
        }
    }
    if (rc == MSGL_EINVAL) {
        return msgl__field_bad(e, param, "has a block that is no text: this model reads text only");
    }
    return rc == 0 ? 0 : msgl__api_oom(e);
}

// --- messages ---

// One of Anthropic's messages as messages of a chat: one for each result of a tool, and behind
// these the one with its texts and calls.
typedef struct turn {
    json_t *out;          // the chat's messages; borrowed
    json_t *turn;         // the message with texts and calls; owned
    msgl_strbuf thoughts; // the thoughts of its blocks, one behind the other
    const char *role;
    char param[64];
} turn;

static int append_text(turn *t, const json_t *block, msgl_api_error *e)
{
    if (json_object_get(t->turn, "content") == NULL &&
        json_object_set_new(t->turn, "content", json_array()) != 0) {
        return msgl__api_oom(e);
    }
    json_t *content = json_object_get(t->turn, "content");
    return json_array_append(content, (json_t *)block) == 0 ? 0 : msgl__api_oom(e);
}

// Adds a text block, which a chat's content may have, too, as it is; another block as a text block
// with what it says.
static int add_text(turn *t, const json_t *block, msgl_api_error *e)
{
    json_t *made = NULL;
    if (!msgl__field_is_type(block, "text")) {
        msgl_strbuf all;
        msgl__strbuf_init(&all, SIZE_MAX / 2);
        const int rc = add_block_text(block, &all);
        if (rc == 0)
            made = json_pack("{s:s,s:s%}", "type", "text", "text", msgl__strbuf_str(&all), all.len);
        msgl__strbuf_free(&all);
        if (rc == MSGL_EINVAL) {
            return msgl__field_bad(e, t->param, "has no text: this model reads text only");
        }
        if (made == NULL) return msgl__api_oom(e);
        block = made;
    } else if (!json_is_string(json_object_get(block, "text"))) {
        return msgl__field_bad(e, t->param, "has no text");
    }
    const int rc = append_text(t, block, e);
    json_decref(made);
    return rc;
}

static int add_thought(turn *t, const json_t *block, msgl_api_error *e)
{
    const json_t *text = json_object_get(block, "thinking");
    if (!json_is_string(text)) return msgl__field_bad(e, t->param, "has no thinking");
    int rc = t->thoughts.len == 0 ? 0 : msgl__strbuf_addc(&t->thoughts, '\n');
    if (rc == 0) {
        rc = msgl__strbuf_add(&t->thoughts, json_string_value(text), json_string_length(text));
    }
    return rc == 0 ? 0 : msgl__api_oom(e);
}

static int add_call(turn *t, const json_t *block, msgl_api_error *e)
{
    const json_t *name = json_object_get(block, "name"), *input = json_object_get(block, "input");
    const json_t *id = json_object_get(block, "id");
    if (!json_is_string(name) || !json_is_object(input) || !json_is_string(id)) {
        return msgl__field_bad(e, t->param,
                               "must have the strings id and name and the object input");
    }
    json_t *calls = json_object_get(t->turn, "tool_calls");
    if (calls == NULL && json_object_set_new(t->turn, "tool_calls", json_array()) != 0) {
        return msgl__api_oom(e);
    }
    calls = json_object_get(t->turn, "tool_calls");
    json_t *call = json_pack("{s:O,s:s,s:{s:O,s:O}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", input);
    return json_array_append_new(calls, call) == 0 ? 0 : msgl__api_oom(e);
}

static int add_result(turn *t, const json_t *block, msgl_api_error *e)
{
    const json_t *id = json_object_get(block, "tool_use_id");
    const json_t *content = msgl__field(block, "content");
    if (!json_is_string(id))
        return msgl__field_bad(e, t->param, "must have the string tool_use_id");
    msgl_strbuf all;
    msgl__strbuf_init(&all, SIZE_MAX / 2);
    const int rc = content == NULL ? 0 : add_texts(content, t->param, true, &all, e);
    json_t *m = rc != 0 ? NULL
                        : json_pack("{s:s,s:O,s:s%}", "role", "tool", "tool_call_id", id, "content",
                                    msgl__strbuf_str(&all), all.len);
    msgl__strbuf_free(&all);
    if (rc != 0) return rc;
    return json_array_append_new(t->out, m) == 0 ? 0 : msgl__api_oom(e);
}

static int add_block(turn *t, const json_t *block, msgl_api_error *e)
{
    const bool theirs = strcmp(t->role, "assistant") == 0; // the model's
    if (msgl__field_is_type(block, "text")) return add_text(t, block, e);
    if (theirs && msgl__field_is_type(block, "tool_use")) return add_call(t, block, e);
    if (theirs && msgl__field_is_type(block, "thinking")) return add_thought(t, block, e);
    if (theirs && msgl__field_is_type(block, "redacted_thinking")) return 0; // nobody can read it
    if (!theirs && msgl__field_is_type(block, "tool_result")) return add_result(t, block, e);
    if (msgl__field_is_type(block, "document") || is_foreign(block)) return add_text(t, block, e);
    return msgl__field_bad(
        e, t->param,
        theirs ? "must be a block of type text, thinking or tool_use"
               : "must be a block of type text or tool_result: this model reads text "
                 "only");
}

// Adds the turn when all of its blocks are in it. Where the blocks were results alone there is
// none.
static int end_turn(turn *t, bool empty, msgl_api_error *e)
{
    int rc = 0;
    if (t->thoughts.len > 0) {
        json_t *text = json_stringn(msgl__strbuf_str(&t->thoughts), t->thoughts.len);
        rc = json_object_set_new(t->turn, "reasoning_content", text);
    }
    if (rc == 0 && !empty && json_object_size(t->turn) == 1) return 0; // it has its role alone
    if (rc == 0 && json_object_get(t->turn, "content") == NULL) {
        rc = json_object_set_new(t->turn, "content", json_string(""));
    }
    if (rc == 0) rc = json_array_append(t->out, t->turn);
    return rc == 0 ? 0 : msgl__api_oom(e);
}

static bool is_system(const json_t *m)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    return role != NULL && strcmp(role, "system") == 0;
}

static int add_message(json_t *out, const json_t *m, size_t i, msgl_api_error *e)
{
    turn t = {.out = out, .role = json_string_value(json_object_get(m, "role"))};
    (void)snprintf(t.param, sizeof t.param, "messages[%zu].role", i);
    if (is_system(m)) return 0; // put_system has added it
    if (t.role == NULL || (strcmp(t.role, "user") != 0 && strcmp(t.role, "assistant") != 0)) {
        return msgl__field_bad(e, t.param, "must be user, assistant or system");
    }
    json_t *content = json_object_get(m, "content");
    (void)snprintf(t.param, sizeof t.param, "messages[%zu].content", i);
    if (!json_is_string(content) && !json_is_array(content)) {
        return msgl__field_bad(e, t.param, "must be a string or an array of blocks");
    }
    t.turn = json_pack("{s:s}", "role", t.role);
    if (t.turn == NULL) return msgl__api_oom(e);
    msgl__strbuf_init(&t.thoughts, SIZE_MAX / 2);
    int rc = 0;
    if (json_is_string(content) && json_object_set(t.turn, "content", content) != 0)
        rc = msgl__api_oom(e);
    for (size_t k = 0; k < json_array_size(content) && rc == 0; k++) {
        (void)snprintf(t.param, sizeof t.param, "messages[%zu].content[%zu]", i, k);
        rc = add_block(&t, json_array_get(content, k), e);
    }
    if (rc == 0) rc = end_turn(&t, json_array_size(content) == 0, e);
    msgl__strbuf_free(&t.thoughts);
    json_decref(t.turn);
    return rc;
}

// Puts `system` and all messages of this role into one message, the first. Claude Code sends some
// of these behind the user's messages, where models take them for the end of the task (vllm#48874).
static int put_system(const json_t *system, const json_t *messages, json_t *out, msgl_api_error *e)
{
    msgl_strbuf all;
    msgl__strbuf_init(&all, SIZE_MAX / 2);
    bool any = system != NULL;
    int rc = any ? add_texts(system, "system", false, &all, e) : 0;
    for (size_t i = 0; i < json_array_size(messages) && rc == 0; i++) {
        const json_t *m = json_array_get(messages, i);
        char param[64];
        if (!is_system(m)) continue;
        any = true;
        (void)snprintf(param, sizeof param, "messages[%zu].content", i);
        // A blank line: this break, and the one of the line that follows.
        if (all.len > 0 && msgl__strbuf_addc(&all, '\n') != 0) rc = msgl__api_oom(e);
        if (rc == 0) rc = add_texts(json_object_get(m, "content"), param, false, &all, e);
    }
    if (rc == 0 && any) {
        json_t *m =
            json_pack("{s:s,s:s%}", "role", "system", "content", msgl__strbuf_str(&all), all.len);
        if (json_array_append_new(out, m) != 0) rc = msgl__api_oom(e);
    }
    msgl__strbuf_free(&all);
    return rc;
}

static int put_messages(const json_t *o, json_t *chat, msgl_api_error *e)
{
    const json_t *in = msgl__field(o, "messages"), *system = msgl__field(o, "system");
    if (in == NULL) {
        return msgl__field_missing(e, "messages");
    }
    const size_t n = json_array_size(in);
    if (n == 0 || n > MSGL_API_MAX_MESSAGES) {
        return msgl__api_fail(e, 400, "messages", "invalid_value",
                              "'messages' must be an array of 1 to %d messages.",
                              MSGL_API_MAX_MESSAGES);
    }
    json_t *out = json_array();
    if (json_object_set_new(chat, "messages", out) != 0) return msgl__api_oom(e);
    int rc = put_system(system, in, out, e);
    for (size_t i = 0; i < n && rc == 0; i++) rc = add_message(out, json_array_get(in, i), i, e);
    // A last message of the assistant is the beginning of the answer, which goes on there.
    if (rc == 0 && msgl__final_message_open(out) &&
        json_object_set_new(chat, "continue_final_message", json_true()) != 0) {
        rc = msgl__api_oom(e);
    }
    return rc;
}

// --- tools, thoughts ---

// Whether a tool is run by Anthropic's servers, or has no schema as Anthropic's models know it.
static bool is_foreign_tool(const json_t *tool)
{
    const json_t *type = json_object_get(tool, "type");
    return json_is_string(type) && !msgl__field_is_type(tool, "custom") &&
           json_object_get(tool, "input_schema") == NULL;
}

static int put_tools(const json_t *o, json_t *chat, msgl_gen_request *req, msgl_api_error *e)
{
    const json_t *in = msgl__field(o, "tools");
    if (in == NULL) return 0;
    if (!json_is_array(in)) return msgl__field_bad(e, "tools", "must be an array");
    json_t *out = json_array();
    if (json_object_set_new(chat, "tools", out) != 0) return msgl__api_oom(e);
    for (size_t i = 0; i < json_array_size(in); i++) {
        const json_t *tool = json_array_get(in, i), *name = json_object_get(tool, "name");
        json_t *schema = json_object_get(tool, "input_schema");
        json_t *about = msgl__field(tool, "description"), *strict = msgl__field(tool, "strict");
        char param[64];
        (void)snprintf(param, sizeof param, "tools[%zu]", i);
        if (is_foreign_tool(tool)) {
            msgl__foreign_tool_note(json_string_value(json_object_get(tool, "type")), &req->notes);
            continue;
        }
        const bool own = msgl__field(tool, "type") == NULL || msgl__field_is_type(tool, "custom");
        if (!own || !json_is_string(name) || !json_is_object(schema)) {
            return msgl__field_bad(
                e, param,
                "must have the string name and the object input_schema; allowed: "
                "tools of the client (type \"custom\")");
        }
        json_t *function = json_pack("{s:O,s:O}", "name", name, "parameters", schema);
        int bad = about == NULL ? 0 : json_object_set(function, "description", about);
        if (strict != NULL) bad |= json_object_set(function, "strict", strict);
        json_t *f = json_pack("{s:s,s:o}", "type", "function", "function", function);
        bad |= json_array_append_new(out, f);
        if (bad != 0) return msgl__api_oom(e);
    }
    return 0;
}

static int put_choice_of_tool(const json_t *o, json_t *chat, msgl_api_error *e)
{
    static const char *const words[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const json_t *in = msgl__field(o, "tool_choice");
    json_t *out = NULL;
    if (in == NULL) return 0;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (msgl__field_is_type(in, words[i][0])) out = json_string(words[i][1]);
    }
    const json_t *name = json_object_get(in, "name");
    if (msgl__field_is_type(in, "tool") && json_is_string(name)) {
        out = json_pack("{s:s,s:{s:O}}", "type", "function", "function", "name", name);
    }
    if (out == NULL) {
        return msgl__field_bad(e, "tool_choice",
                               "must be an object of type auto, any, none, or tool with a name");
    }
    bool one = false;
    int rc = json_object_set_new(chat, "tool_choice", out) == 0 ? 0 : msgl__api_oom(e);
    if (rc == 0) rc = msgl__field_bool(in, "disable_parallel_tool_use", &one, e);
    if (rc < 0) return rc;
    if (!one) return 0;
    return json_object_set_new(chat, "parallel_tool_calls", json_false()) == 0 ? 0
                                                                               : msgl__api_oom(e);
}

// Sets enable_thinking, as most templates with thoughts call it, and how long the thoughts may be.
static int put_thinking(const json_t *o, json_t *chat, msgl_api_error *e)
{
    const json_t *in = msgl__field(o, "thinking");
    if (in == NULL) return 0;
    const bool on = msgl__field_is_type(in, "enabled") || msgl__field_is_type(in, "adaptive");
    if (!on && !msgl__field_is_type(in, "disabled")) {
        return msgl__field_bad(e, "thinking",
                               "must be an object of type enabled, adaptive or disabled");
    }
    const json_t *budget = on ? msgl__field(in, "budget_tokens") : NULL;
    const json_int_t most = json_integer_value(budget);
    if (budget != NULL && (!json_is_integer(budget) || most < 0)) {
        return msgl__field_bad(e, "thinking.budget_tokens", "must be an integer, at least 0");
    }
    json_t *vars = json_pack("{s:b}", "enable_thinking", on);
    int bad = json_object_set_new(chat, "chat_template_kwargs", vars);
    if (budget != NULL && most < INT32_MAX) {
        bad |= json_object_set_new(chat, "thinking_token_budget", json_integer(most));
    }
    return bad == 0 ? 0 : msgl__api_oom(e);
}

// {"effort": ..., "format": {"type": "json_schema", "schema": ...}}
static int put_output_config(const json_t *o, json_t *chat, msgl_api_error *e)
{
    const json_t *in = msgl__field(o, "output_config");
    json_t *format = msgl__field(in, "format"), *effort = msgl__field(in, "effort");
    if (in == NULL) return 0;
    json_t *schema = json_object_get(format, "schema");
    if (!json_is_object(in) || (format != NULL && (!msgl__field_is_type(format, "json_schema") ||
                                                   !json_is_object(schema)))) {
        return msgl__field_bad(
            e, "output_config",
            "must be an object with effort, or a format of type json_schema and its "
            "schema");
    }
    if (effort != NULL && json_object_set(chat, "reasoning_effort", effort) != 0)
        return msgl__api_oom(e);
    if (format == NULL) return 0;
    json_t *as = json_pack("{s:s,s:{s:s,s:O}}", "type", "json_schema", "json_schema", "name",
                           "answer", "schema", schema);
    return json_object_set_new(chat, "response_format", as) == 0 ? 0 : msgl__api_oom(e);
}

// The fields that this endpoint reads, as a new object; NULL: no memory. What a chat reads beyond
// them is not this API's.
static json_t *own_fields_of(const json_t *o)
{
    json_t *chat = json_object();
    int bad = chat == NULL;
    for (const msgl_fields *f = &fields; f != NULL; f = f->also) {
        for (const msgl_field_row *row = f->read; row->name != NULL; row++) {
            json_t *v = json_object_get(o, row->name);
            if (v != NULL) bad |= json_object_set(chat, row->name, v);
        }
    }
    if (bad == 0) return chat;
    json_decref(chat);
    return NULL;
}

// Rewrites in `chat` the fields that a chat has in another form.
static int convert(const json_t *o, json_t *chat, msgl_gen_request *req, msgl_api_error *e)
{
    static const char *const own[] = {"system",      "stop_sequences", "thinking",      "tools",
                                      "tool_choice", "messages",       "output_config", NULL};
    for (const char *const *name = own; *name != NULL; name++) (void)json_object_del(chat, *name);
    for (const msgl_field_row *row = service_rows; row->name != NULL; row++) {
        (void)json_object_del(chat, row->name);
    }
    json_t *stops = msgl__field(o, "stop_sequences");
    if (stops != NULL && !json_is_array(stops)) {
        return msgl__field_bad(e, "stop_sequences", "must be an array of strings");
    }
    if (stops != NULL && json_object_set(chat, "stop", stops) != 0) return msgl__api_oom(e);
    int rc = put_messages(o, chat, e);
    if (rc == 0) rc = put_tools(o, chat, req, e);
    if (rc == 0) rc = put_choice_of_tool(o, chat, e);
    if (rc == 0) rc = put_output_config(o, chat, e);
    return rc == 0 ? put_thinking(o, chat, e) : rc;
}

static int parse_any(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                     msgl_api_error *e)
{
    int rc = msgl__check_fields(o, &fields, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc != 0) return rc;
    json_t *chat = own_fields_of(o);
    if (chat == NULL) return msgl__api_oom(e);
    rc = convert(o, chat, out, e);
    if (rc == 0 && (rc = msgl__chat_parse(chat, cfg, out, e)) != 0) {
        const bool config = msgl__field(o, "output_config") != NULL;
        if (config) msgl__field_rename(e, "response_format", "output_config.format");
        if (msgl__field(o, "stop_sequences") != NULL)
            msgl__field_rename(e, "stop", "stop_sequences");
    }
    if (rc == 0 && out->n != 1) rc = msgl__field_bad(e, "n", "must be 1: a message is one answer");
    return msgl__request_keep(out, "chat", chat, rc, e);
}

static int parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                 msgl_api_error *e)
{
    if (msgl__rename_fields((json_t *)o, &fields) != 0) return msgl__api_oom(e);
    if (msgl__field(o, "max_tokens") == NULL) {
        return msgl__field_missing(e, "max_tokens");
    }
    return parse_any(o, cfg, out, e);
}

static const msgl_example examples[] = {
    {"A message", MSGL_HTTP_POST,
     .body = "{\"max_tokens\": 40, "
             "\"messages\": [{\"role\": \"user\", \"content\": \"What is 27 + 58?\"}]}",
     .has = "id type role model content stop_reason usage"},
    {"A stream", MSGL_HTTP_POST,
     .body = "{\"max_tokens\": 40, "
             "\"messages\": [{\"role\": \"user\", \"content\": \"What is 27 + 58?\"}], "
             "\"stream\": true}",
     .type = "text/event-stream", .has = "type message",
     .end = "data: {\"type\":\"message_stop\"}"},
    {0},
};

const msgl_endpoint msgl__endpoint_messages = {
    .path = "/v1/messages",
    .help = "Anthropic's Messages ([messages.md](messages.md)). Errors have Anthropic's form.",
    .examples = examples,
    .method = MSGL_HTTP_POST,
    .put_error = msgl__messages_put_error,
    .parse = parse,
    .objects = objects,
    .prompt = MSGL_PROMPT_CHAT,
    .prompt_field = "messages",
    .id_prefix = "msg",
    .put_begin = msgl__messages_put_begin,
    .put_choice = msgl__messages_put_choice,
    .put_end = msgl__messages_put_end,
    .put_chunk = msgl__messages_put_chunk,
    .put_stream_end = msgl__messages_put_stream_end,
    .put_stream_error = msgl__messages_put_stream_error,
};

static int put_count(const msgl_job *j, const msgl_tokenizer *t, msgl_strbuf *out)
{
    (void)t;
    return msgl__strbuf_addf(out, "{\"input_tokens\":%zu}", j->ids[0].len);
}

static const msgl_example count_examples[] = {
    {"The tokens of a question", MSGL_HTTP_POST,
     .body = "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 27 + 58?\"}]}",
     .has = "input_tokens"},
    {0},
};

const msgl_endpoint msgl__endpoint_count_tokens = {
    .path = "/v1/messages/count_tokens",
    .help = "How many tokens the prompt of such a message has.",
    .examples = count_examples,
    .method = MSGL_HTTP_POST,
    .put_error = msgl__messages_put_error,
    .parse = parse_any,
    .objects = objects,
    .prompt = MSGL_PROMPT_CHAT,
    .prompt_field = "messages",
    .put_job = put_count,
};
