// SPDX-License-Identifier: Apache-2.0
//
// POST /v1/chat/completions: the conversation becomes variables of the chat template, in the form
// in which transformers passes them: the arguments of a tool call are an object, where they parse.
#include <stdio.h>
#include <string.h>

#include "api/openai/chat_answer.h"
#include "api/openai/endpoints.h"
#include "api/fields.h"
#include "api/final_message.h"
#include "api/foreign.h"
#include "api/json.h"
#include "api/tool_choice.h"
#include "api/tool_grammar.h"
#include "utils/json.h"

static const msgl_field_row conversation_rows[] = {
    {"messages", MSGL_FIELD_ARRAY, .required = true, .max_items = MSGL_API_MAX_MESSAGES,
     .help = "objects with `role` (system, developer, user, assistant, tool, function) and "
             "`content`, a string or an array of text parts; `tool_calls` of the assistant"},
    {"tools", MSGL_FIELD_ARRAY,
     .help = "functions that the model may call ([tools.md](tools.md)); tools of other types "
             "are left out"},
    {"chat_template_kwargs", MSGL_FIELD_OBJECT,
     .help = "further variables of the chat template, such as `enable_thinking`"},
    MSGL_ROW_CHAT_TEMPLATE,
    {"add_generation_prompt", MSGL_FIELD_BOOL, .preset = "true",
     .help = "the prompt ends where the assistant begins"},
    {"continue_final_message", MSGL_FIELD_BOOL, .preset = "false",
     .help = "the answer goes on in the last message, which is the assistant's"},
    {"reasoning_effort", MSGL_FIELD_STRING, .help = "a variable of the chat template"},
    {"enable_thinking", MSGL_FIELD_BOOL,
     .help = "the same; `false`: there are no thoughts, whatever the template does"},
    {0},
};
const msgl_fields msgl__conversation_fields = {.title = "Fields of a conversation",
                                               .read = conversation_rows};
static const msgl_field_row rows[] = {
    {"max_completion_tokens", MSGL_FIELD_INT, .min = 1, .max = INT32_MAX, .unlimited = true,
     .help = "the newer name of `max_tokens`, which wins; -1: as if it were not given"},
    {"logprobs", MSGL_FIELD_BOOL, .preset = "false",
     .help = "the answer has its tokens' log-probabilities"},
    {"top_logprobs", MSGL_FIELD_INT, .min = 0, .max = MSGL_MAX_LOGPROBS, .preset = "0",
     .help = "only with `logprobs`: and those of so many that were likelier"},
    {"tool_choice", MSGL_FIELD_ANY, .preset = "\"auto\"",
     .help = "`\"auto\"`, `\"none\"`, `\"required\"` (also `\"any\"`), `{\"type\": \"function\", "
             "\"function\": {\"name\": ...}}`, or `{\"type\": \"allowed_tools\", ...}`"},
    {"parallel_tool_calls", MSGL_FIELD_BOOL, .preset = "true",
     .help = "an answer may have several calls"},
    {"thinking_token_budget", MSGL_FIELD_INT, .min = 0, .max = INT32_MAX,
     .help = "vLLM's: thoughts are ended after so many tokens, and the answer goes on"},
    {"reasoning_budget", MSGL_FIELD_INT, .min = -1, .max = INT32_MAX,
     .help = "llama-server's name of that; -1: no limit"},
    {"separate_reasoning", MSGL_FIELD_BOOL, .preset = "true",
     .help = "SGLang's: thoughts are in `reasoning_content`, not in `content`"},
    MSGL_ROW_PROMPT_LOGPROBS,
    MSGL_ROW_RETURN_TOKEN_IDS,
    {0},
};
static const msgl_fields asked = {.read = rows, .also = &msgl__request_fields};
static const msgl_fields fields = {.read = conversation_rows, .also = &asked};
static const msgl_fields *const objects[] = {&fields, NULL};

static int message_fail(msgl_api_error *e, size_t i, const char *field, const char *text)
{
    char param[64];
    (void)snprintf(param, sizeof param, "messages[%zu]%s%s", i, field[0] == '\0' ? "" : ".", field);
    return msgl__api_fail(e, 400, param, "invalid_value", "'%s' %s.", param, text);
}

static bool is_role(const json_t *m, const char *role)
{
    const char *is = json_string_value(json_object_get(m, "role"));
    return is != NULL && strcmp(is, role) == 0;
}

// Appends the thoughts of a part {"type": "thinking", "thinking": ...}, which are a string, or
// parts of text.
static int add_thoughts(const json_t *thinking, msgl_strbuf *out)
{
    int rc = out->len == 0 ? 0 : msgl__strbuf_addc(out, '\n');
    if (rc == 0 && json_is_string(thinking)) {
        rc = msgl__strbuf_add(out, json_string_value(thinking), json_string_length(thinking));
    }
    for (size_t i = 0; i < json_array_size(thinking) && rc == 0; i++) {
        const char *text = json_string_value(json_object_get(json_array_get(thinking, i), "text"));
        if (text != NULL) rc = msgl__strbuf_adds(out, text);
    }
    return rc;
}

// Appends a part of a content to *out as {"type": "text", "text": ...}: the same object if the part
// is one. The part's type may be one of the Responses API, and the part a string. In an assistant's
// message it may be a refusal, or thoughts, which are no content and are appended to *thoughts.
// MSGL_EINVAL: it is none of these; MSGL_ENOMEM.
static int add_part(const json_t *m, json_t *part, json_t *out, msgl_strbuf *thoughts)
{
    static const char *const kinds[][2] = {
        {"text", "text"}, {"input_text", "text"}, {"output_text", "text"}, {"refusal", "refusal"}};
    const json_t *thinking = json_object_get(part, "thinking");
    const bool own = is_role(m, "assistant");
    json_t *text = json_is_string(part) ? part : NULL;
    if (own && msgl__field_is_type(part, "thinking") &&
        (json_is_string(thinking) || json_is_array(thinking))) {
        return add_thoughts(thinking, thoughts);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && text == NULL; i++) {
        if (!msgl__field_is_type(part, kinds[i][0]) || (i == 3 && !own)) continue;
        text = json_object_get(part, kinds[i][1]);
        if (!json_is_string(text)) return MSGL_EINVAL;
        if (i == 0) return json_array_append(out, part) == 0 ? 0 : MSGL_ENOMEM;
    }
    if (text == NULL) return MSGL_EINVAL;
    json_t *made = json_pack("{s:s,s:O}", "type", "text", "text", text);
    return json_array_append_new(out, made) == 0 ? 0 : MSGL_ENOMEM;
}

// Makes the parts of a content canonical. Whether the template gets the parts or one text of them
// is decided when the template is known (conversation.h).
static int parse_parts(json_t *m, size_t i, const json_t *parts, msgl_api_error *e)
{
    msgl_strbuf thoughts;
    msgl__strbuf_init(&thoughts, SIZE_MAX / 2);
    json_t *out = json_array();
    int rc = out == NULL ? MSGL_ENOMEM : 0;
    size_t j = 0;
    for (; j < json_array_size(parts) && rc == 0; j++) {
        rc = add_part(m, json_array_get(parts, j), out, &thoughts);
    }
    if (rc == 0 && thoughts.len > 0 && msgl__field(m, "reasoning_content") == NULL) {
        json_t *text = json_stringn(thoughts.data, thoughts.len);
        if (json_object_set_new(m, "reasoning_content", text) != 0) rc = MSGL_ENOMEM;
    }
    msgl__strbuf_free(&thoughts);
    if (rc == MSGL_EINVAL) {
        char field[32];
        (void)snprintf(field, sizeof field, "content[%zu]", j - 1);
        json_decref(out);
        return message_fail(e, i, field,
                            "must be {\"type\": \"text\", \"text\": string}: this model reads "
                            "text only");
    }
    if (rc != 0) {
        json_decref(out);
        return msgl__api_oom(e);
    }
    return json_object_set_new(m, "content", out) == 0 ? 0 : msgl__api_oom(e);
}

// Replaces the arguments of a message's calls, which are texts, by the objects that they are the
// JSON of: templates print them with tojson. A text that this parser refuses is tried again by the
// template's (load_arguments), and one that is no object there, which models do write, stays a
// text.
static int parse_tool_calls(json_t *message, size_t i, msgl_json_room *room, msgl_api_error *e)
{
    json_t *calls = json_object_get(message, "tool_calls");
    if (calls == NULL) return 0;
    if (!json_is_array(calls)) return message_fail(e, i, "tool_calls", "must be an array");
    for (size_t j = 0; j < json_array_size(calls); j++) {
        json_t *fn = json_object_get(json_array_get(calls, j), "function");
        if (!json_is_string(json_object_get(fn, "name"))) {
            return message_fail(e, i, "tool_calls", "must be objects with function.name");
        }
        json_t *args = json_object_get(fn, "arguments");
        if (!json_is_string(args)) continue;
        msgl_err err = {0};
        json_t *parsed =
            msgl__json_parse_object(json_string_value(args), json_string_length(args), room, &err);
        if (parsed == NULL && err.code != MSGL_EFORMAT) return msgl__json_fail(&err, e);
        if (parsed != NULL && json_object_set_new(fn, "arguments", parsed) != 0)
            return msgl__api_oom(e);
    }
    return 0;
}

// Removes members that are null, as transformers does: a template finds them not defined.
static void drop_nulls(json_t *m)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(m, next, key, value)
    {
        if (json_is_null(value)) (void)json_object_del(m, key);
    }
}

static int parse_content(json_t *m, size_t i, msgl_api_error *e)
{
    const json_t *content = json_object_get(m, "content");
    if (json_is_string(content)) return 0;
    if (json_is_array(content)) return parse_parts(m, i, content, e);
    if (content != NULL) {
        return message_fail(e, i, "content", "must be a string or an array of text parts");
    }
    if (is_role(m, "assistant")) return 0;
    if (!is_role(m, "tool") && !is_role(m, "function")) {
        return message_fail(e, i, "content", "is missing");
    }
    return json_object_set_new(m, "content", json_string("")) == 0 ? 0 : msgl__api_oom(e);
}

// Checks a message and makes it canonical, in place.
static int parse_message(json_t *m, size_t i, msgl_json_room *room, msgl_api_error *e)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    if (!json_is_object(m)) return message_fail(e, i, "", "must be an object");
    bool known = false;
    for (size_t r = 0; r < sizeof roles / sizeof roles[0]; r++) {
        known = known || is_role(m, roles[r]);
    }
    if (!known) {
        return message_fail(e, i, "role",
                            "must be one of system, developer, user, assistant, tool, function");
    }
    drop_nulls(m);
    const int rc = parse_tool_calls(m, i, room, e);
    return rc == 0 ? parse_content(m, i, e) : rc;
}

// Rewrites a message of the API before tools: a function_call becomes a call of a tool, with an id
// that is made here, and the next message of the role function becomes that tool's result.
static int modernize(const json_t *messages, size_t i, char id[32], msgl_api_error *e)
{
    json_t *m = json_array_get(messages, i);
    json_t *call = msgl__field(m, "function_call");
    if (is_role(m, "function") && id[0] != '\0') {
        int bad = json_object_set_new(m, "role", json_string("tool"));
        bad |= json_object_set_new(m, "tool_call_id", json_string(id));
        id[0] = '\0';
        return bad == 0 ? 0 : msgl__api_oom(e);
    }
    if (call == NULL || !is_role(m, "assistant") || msgl__field(m, "tool_calls") != NULL) return 0;
    if (!json_is_string(json_object_get(call, "name"))) {
        return message_fail(e, i, "function_call", "must be an object with the string name");
    }
    (void)snprintf(id, 32, "call_%zu", i);
    json_t *calls = json_pack("[{s:s,s:s,s:O}]", "id", id, "type", "function", "function", call);
    if (json_object_set_new(m, "tool_calls", calls) != 0) return msgl__api_oom(e);
    (void)json_object_del(m, "function_call");
    return 0;
}

static int parse_messages(const json_t *o, msgl_json_room *room, msgl_api_error *e)
{
    const json_t *messages = json_object_get(o, "messages");
    if (messages == NULL || json_is_null(messages)) {
        return msgl__field_missing(e, "messages");
    }
    if (!json_is_array(messages)) {
        return msgl__api_fail(e, 400, "messages", "invalid_type",
                              "'messages' is %s; it must be an array.",
                              msgl__json_type_name(messages));
    }
    const size_t n = json_array_size(messages);
    if (n == 0 || n > MSGL_API_MAX_MESSAGES) {
        return msgl__api_fail(e, 400, "messages", "invalid_value",
                              "'messages' has %zu entries; allowed: 1 to %d.", n,
                              MSGL_API_MAX_MESSAGES);
    }
    char id[32] = "";
    for (size_t i = 0; i < n; i++) {
        int rc = modernize(messages, i, id, e);
        if (rc == 0) rc = parse_message(json_array_get(messages, i), i, room, e);
        if (rc != 0) return rc;
    }
    return 0;
}

// Checks that the i-th tool's parameters are a schema, and with "strict" one of an object.
static int check_schema(const json_t *function, size_t i, msgl_api_error *e)
{
    const json_t *schema = msgl__field(function, "parameters");
    const json_t *strict = msgl__field(function, "strict");
    if (schema != NULL && !json_is_object(schema)) {
        return msgl__api_fail(e, 400, "tools", "invalid_type",
                              "'tools[%zu].function.parameters' is %s; it must be an object.", i,
                              msgl__json_type_name(schema));
    }
    if (strict != NULL && !json_is_boolean(strict)) {
        return msgl__api_fail(e, 400, "tools", "invalid_type",
                              "'tools[%zu].function.strict' is %s; it must be a boolean.", i,
                              msgl__json_type_name(strict));
    }
    const char *type = json_string_value(json_object_get(schema, "type"));
    if (!json_is_true(strict) || json_object_size(schema) == 0 ||
        (type != NULL && strcmp(type, "object") == 0)) {
        return 0;
    }
    return msgl__api_fail(e, 400, "tools", "invalid_value",
                          "'tools[%zu].function.parameters' with \"strict\": true must have "
                          "\"type\": \"object\".",
                          i);
}

// Whether a tool is no function, such as {"type": "custom", ...} or a server's own search.
static bool is_foreign_tool(const json_t *tool)
{
    return json_is_string(json_object_get(tool, "type")) &&
           !msgl__field_is_type(tool, "function") && json_object_get(tool, "function") == NULL;
}

// Leaves such tools out of the body: the model could call them, and nobody would answer.
static int leave_out_tools(const json_t *o, msgl_gen_request *out, msgl_api_error *e)
{
    const json_t *in = json_object_get(o, "tools");
    json_t *rest = NULL;
    int bad = 0;
    for (size_t i = 0; i < json_array_size(in); i++) {
        json_t *tool = json_array_get(in, i);
        if (!is_foreign_tool(tool)) {
            if (rest != NULL) bad |= json_array_append(rest, tool);
            continue;
        }
        msgl__foreign_tool_note(json_string_value(json_object_get(tool, "type")), &out->notes);
        if (rest != NULL) continue;
        rest = json_array();
        bad |= rest == NULL;
        for (size_t k = 0; k < i; k++) bad |= json_array_append(rest, json_array_get(in, k));
    }
    if (rest != NULL) bad |= json_object_set_new((json_t *)o, "tools", rest);
    return bad == 0 ? 0 : msgl__api_oom(e);
}

// Checks that each tool is {"type": "function", "function": {"name": ...}}.
static int check_tools(const json_t *v, msgl_api_error *e)
{
    if (!json_is_array(v)) {
        return msgl__api_fail(e, 400, "tools", "invalid_type",
                              "'tools' is %s; it must be an array.", msgl__json_type_name(v));
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *tool = json_array_get(v, i);
        const char *type = json_string_value(json_object_get(tool, "type"));
        const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
        if (type == NULL || strcmp(type, "function") != 0 || !json_is_string(name)) {
            return msgl__api_fail(e, 400, "tools", "invalid_value",
                                  "'tools[%zu]' must be {\"type\": \"function\", \"function\": "
                                  "{\"name\": string, ...}}.",
                                  i);
        }
        const int rc = check_schema(json_object_get(tool, "function"), i, e);
        if (rc != 0) return rc;
    }
    return 0;
}

// Whether this model can be made to call: its form says how a call begins.
static int check_forced(msgl_gen_request *out, const msgl_api_config *cfg, msgl_api_error *e)
{
    const char *name = out->chat.force_name;
    if (out->chat.tools == NULL) {
        return msgl__api_fail(e, 400, "tool_choice", "invalid_value",
                              "'tool_choice' asks for a call, but there are no 'tools'.");
    }
    if (name != NULL && (strlen(name) > MSGL_TOOL_NAME_MAX ||
                         !msgl__tool_set_has(out->chat.tools, name, strlen(name)))) {
        return msgl__api_fail(e, 400, "tool_choice", "invalid_value",
                              "'tool_choice' names '%.100s', which is none of the 'tools'.", name);
    }
    if (cfg->tool_form != NULL && (name == NULL || msgl__tool_form_can_open(cfg->tool_form))) {
        return 0;
    }
    return msgl__api_fail(e, 400, "tool_choice", "unsupported_parameter",
                          "'tool_choice' must be \"auto\" or \"none\" here: how this model begins "
                          "a call%s is not known (--tool-call-parser).",
                          name != NULL && cfg->tool_form != NULL ? " of a given function" : "");
}

static int replace_extra(msgl_gen_request *out, const msgl_req_extra_parts *p, msgl_api_error *e)
{
    msgl_req_extra *made = NULL;
    msgl_err err;
    if (msgl__req_extra_create_with(p, INT32_MAX, &made, &err) != 0) return msgl__api_oom(e);
    msgl__req_extra_unref(out->extra);
    out->extra = made;
    return 0;
}

// Makes the grammar of calls beside "response_format": a call may come in the place of a text of
// that form, and once it begins its grammar is that of a call that was forced.
static int calls_beside(const msgl_tool_use *use, const msgl_api_config *cfg, msgl_gen_request *out,
                        msgl_api_error *e)
{
    msgl_tool_use begun = *use;
    msgl_constraint_text c;
    begun.forced = true;
    out->chat.calls_beside = true;
    if (msgl__tool_form_marks(use->form) == NULL) return 0; // a name begins them
    const int rc = msgl__tool_grammar(&begun, cfg, out->room.claim, &out->left_out, &c, e);
    out->chat.call_grammar = c.text;
    return rc;
}

// Constrains calls to the schemas of their tools, unless another field constrains the answer.
static int constrain_calls(const json_t *o, const json_t *tools, const msgl_api_config *cfg,
                           msgl_gen_request *out, msgl_api_error *e)
{
    msgl_req_extra_parts p = msgl__req_extra_parts_of(out->extra);
    const msgl_tool_use use = {.tools = tools,
                               .form = cfg->tool_form,
                               .forced = out->chat.force_call,
                               .name = out->chat.force_name,
                               .several = out->chat.split.max_calls != 1};
    if (cfg->tool_form == NULL || out->bad_words != NULL || p.num_allowed > 0 ||
        out->sampling.min_tokens > 0) {
        return 0;
    }
    if (p.grammar_kind != MSGL_GRAMMAR_NONE) {
        // Other fields than "response_format" constrain the whole answer, calls included.
        return msgl__field(o, "response_format") != NULL ? calls_beside(&use, cfg, out, e) : 0;
    }
    msgl_constraint_text c;
    int rc = msgl__tool_grammar(&use, cfg, out->room.claim, &out->left_out, &c, e);
    if (rc != 0 || c.kind == MSGL_GRAMMAR_NONE) return rc;
    p.grammar_kind = c.kind;
    p.grammar = c.text;
    rc = replace_extra(out, &p, e);
    msgl__constraint_text_free(&c);
    out->chat.text_first = !out->chat.force_call;
    return rc;
}

// Drops "response_format" where a call is forced: the call is the answer, and the format is that of
// the one that follows the tool's result. Other fields that constrain the answer contradict the
// call.
static int drop_form(const json_t *o, msgl_gen_request *out, msgl_api_error *e)
{
    msgl_req_extra_parts p = msgl__req_extra_parts_of(out->extra);
    if (p.grammar_kind == MSGL_GRAMMAR_NONE) return 0;
    if (msgl__field(o, "response_format") == NULL) {
        return msgl__api_fail(e, 400, "tool_choice", "invalid_value",
                              "'tool_choice' asks for a call, and another field for an answer of "
                              "a given form; allowed: one of them.");
    }
    p.grammar_kind = MSGL_GRAMMAR_NONE;
    return replace_extra(out, &p, e);
}

// Reads "tools" and what may be asked of them. *tools is borrowed from o; NULL: there are none, or
// the answer may not call any.
static int parse_tools(const json_t *o, const msgl_api_config *cfg, json_t **tools,
                       msgl_gen_request *out, msgl_api_error *e)
{
    json_t *v = msgl__field(o, "tools");
    bool parallel = true;
    msgl_tool_choice choice;
    *tools = NULL;
    int rc = v == NULL ? 0 : check_tools(v, e);
    if (rc == 0) rc = msgl__field_bool(o, "parallel_tool_calls", &parallel, e);
    if (rc >= 0) rc = msgl__tool_choice_parse((json_t *)o, v, &choice, e);
    if (rc < 0) return rc;
    v = msgl__field(o, "tools");
    out->chat.force_call = choice.force;
    out->chat.force_name = choice.name;
    if (json_array_size(v) > 0 && !choice.none) {
        *tools = v;
        if (msgl__tool_set_create(v, &out->chat.tools) != 0) return msgl__api_oom(e);
    }
    if (out->chat.force_call && (rc = drop_form(o, out, e)) != 0) return rc;
    if (out->chat.force_call && (rc = check_forced(out, cfg, e)) != 0) return rc;
    // With one tool, any is this one.
    if (out->chat.force_call && json_array_size(v) == 1 &&
        msgl__tool_form_can_open(cfg->tool_form)) {
        const json_t *function = json_object_get(json_array_get(v, 0), "function");
        out->chat.force_name = json_string_value(json_object_get(function, "name"));
    }
    if (out->chat.tools == NULL) return 0;
    out->chat.split.tools = cfg->tool_form;
    out->chat.split.known = out->chat.tools;
    out->chat.split.max_calls = choice.name != NULL || !parallel ? 1 : 0;
    return constrain_calls(o, v, cfg, out, e);
}

// Reads how many tokens thoughts may have. Fields that constrain every token of the answer cannot
// be combined with it: the tokens that end the thoughts would have to be allowed by them.
static int parse_budget(const json_t *o, msgl_gen_request *out, msgl_api_error *e)
{
    int64_t budget = -1;
    const char *name = "thinking_token_budget";
    int rc = msgl__field_int_of(o, &fields, name, &budget, e);
    if (rc == 0) {
        name = "reasoning_budget";
        rc = msgl__field_int_of(o, &fields, name, &budget, e);
    }
    if (rc < 0) return rc;
    const bool fixed = msgl__req_extra_parts_of(out->extra).num_allowed > 0 ||
                       out->bad_words != NULL || out->sampling.min_tokens > 0;
    if (budget >= 0 && fixed) {
        return msgl__api_fail(e, 400, name, "invalid_value",
                              "'%s' is not allowed beside 'min_tokens', 'allowed_token_ids' or "
                              "'bad_words'.",
                              name);
    }
    // A budget that the answer cannot use up is none.
    const bool reached = out->max_tokens < 0 || budget < out->max_tokens;
    out->chat.thinking_budget = reached ? (int32_t)budget : -1;
    return 0;
}

// Reads whether thoughts are in "reasoning_content", or in the content, and how long they may be.
static int parse_reasoning(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                           msgl_api_error *e)
{
    bool apart = true;
    const int rc = msgl__field_bool(o, "separate_reasoning", &apart, e);
    if (rc < 0) return rc;
    out->chat.split.reasoning = cfg->reasoning_form;
    out->chat.split.keep_reasoning = !apart;
    return parse_budget(o, out, e);
}

// Reads "chat_template". With one, *cfg becomes *own, a copy with the forms of calls and of
// thoughts that this template has.
static int parse_template(const json_t *o, const msgl_api_config **cfg, msgl_api_config *own,
                          msgl_gen_request *out, msgl_api_error *e)
{
    const json_t *v = msgl__field(o, "chat_template");
    const char *text = NULL;
    if (v == NULL) return 0;
    if (!(*cfg)->trust_template) {
        return msgl__api_fail(e, 400, "chat_template", "unsupported_parameter",
                              "'chat_template' is refused: this server takes no templates from "
                              "requests (--trust-request-chat-template).");
    }
    const int rc = msgl__field_name(o, "chat_template", MSGL_REQUEST_TEMPLATE_MAX, &text, e);
    if (rc < 0) return rc;
    if (!msgl__chat_template_has_tags(text)) { // a file's name, or a template's
        return msgl__field_bad(e, "chat_template",
                               "must be the text of a template, which has {{ or {% in it");
    }
    out->chat.template = v;
    *own = **cfg;
    if (own->tool_form_auto) own->tool_form = msgl__tool_form("auto", text);
    if (own->reasoning_form_auto) own->reasoning_form = msgl__reasoning_form("auto", text);
    *cfg = own;
    return 0;
}

// Refuses variables that a client may not set: they have fields of their own, or are arguments of
// the function that renders templates in other servers, where setting them has done harm
// (CVE-2025-62426).
static int check_kwargs(const json_t *kwargs, msgl_api_error *e)
{
    static const char *const reserved[] = {"messages",
                                           "tools",
                                           "documents",
                                           "add_generation_prompt",
                                           "continue_final_message",
                                           "chat_template",
                                           "conversation",
                                           "tokenize",
                                           "return_dict",
                                           NULL};
    for (const char *const *name = reserved; *name != NULL; name++) {
        if (json_object_get(kwargs, *name) == NULL) continue;
        return msgl__api_fail(e, 400, "chat_template_kwargs", "invalid_value",
                              "'chat_template_kwargs' has '%s', which is not allowed there: it is "
                              "for variables that only the template knows.",
                              *name);
    }
    return 0;
}

static int make_vars(const json_t *o, json_t *tools, msgl_gen_request *out, msgl_api_error *e)
{
    const json_t *kwargs = json_object_get(o, "chat_template_kwargs");
    if (kwargs != NULL && !json_is_null(kwargs) && !json_is_object(kwargs)) {
        return msgl__api_fail(e, 400, "chat_template_kwargs", "invalid_type",
                              "'chat_template_kwargs' is %s; it must be an object.",
                              msgl__json_type_name(kwargs));
    }
    bool prompt = true, think = true;
    const char *effort = NULL;
    int rc = check_kwargs(kwargs, e);
    const int rc_think = rc < 0 ? rc : msgl__field_bool(o, "enable_thinking", &think, e);
    if (rc_think < 0) return rc_think;
    if (rc == 0) rc = msgl__field_str(o, "reasoning_effort", &effort, e);
    if (rc >= 0) rc = msgl__field_bool(o, "add_generation_prompt", &prompt, e);
    if (rc >= 0) rc = msgl__final_message_parse(o, &out->chat.continue_final, e);
    if (rc < 0) return rc;
    if (out->chat.continue_final) prompt = false;
    json_t *vars = json_is_object(kwargs) ? msgl__json_copy(kwargs) : json_object();
    out->chat.vars = vars;
    int bad = vars == NULL;
    bad |= json_object_set(vars, "messages", json_object_get(o, "messages"));
    bad |= tools != NULL ? json_object_set(vars, "tools", tools)
                         : json_object_set_new(vars, "tools", json_null());
    bad |= json_object_set_new(vars, "documents", json_null());
    bad |= json_object_set_new(vars, "add_generation_prompt", json_boolean(prompt));
    if (effort != NULL) {
        bad |= json_object_set_new(vars, "reasoning_effort", json_string(effort));
    }
    if (rc_think > 0) bad |= json_object_set_new(vars, "enable_thinking", json_boolean(think));
    // DeepSeek's templates call it thinking.
    out->chat.no_thinking = json_is_false(json_object_get(vars, "enable_thinking")) ||
                            json_is_false(json_object_get(vars, "thinking"));
    return bad != 0 ? msgl__api_oom(e) : 0;
}

int msgl__parse_conversation(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                             msgl_api_error *e)
{
    msgl_api_config own;
    out->num_prompts = 1;
    int rc = parse_messages(o, &out->room, e);
    if (rc == 0) rc = leave_out_tools(o, out, e);
    json_t *tools = msgl__field(o, "tools");
    if (rc == 0) rc = parse_template(o, &cfg, &own, out, e);
    if (rc == 0 && tools != NULL) rc = check_tools(tools, e);
    return rc == 0 ? make_vars(o, json_array_size(tools) > 0 ? tools : NULL, out, e) : rc;
}

static int parse_logprobs(const json_t *o, msgl_gen_request *out, msgl_api_error *e)
{
    bool want = false;
    int64_t top = 0;
    int rc = msgl__field_bool(o, "logprobs", &want, e);
    if (rc >= 0) rc = msgl__field_int_of(o, &fields, "top_logprobs", &top, e);
    if (rc < 0) return rc;
    if (rc > 0 && top > 0 && !want) {
        return msgl__api_fail(e, 400, "top_logprobs", "invalid_value",
                              "'top_logprobs' is only allowed with 'logprobs': true.");
    }
    if (want) out->sampling.logprobs = (int32_t)top;
    return 0;
}

int msgl__chat_parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                     msgl_api_error *e)
{
    msgl_api_config own;
    out->num_prompts = 1;
    int rc = msgl__check_fields(o, &fields, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = parse_template(o, &cfg, &own, out, e);
    if (rc == 0) rc = parse_messages(o, &out->room, e);
    if (rc == 0) rc = leave_out_tools(o, out, e);
    if (rc == 0) rc = msgl__parse_sampling(o, cfg, out, e);
    if (rc < 0) return rc;
    // The newer name wins where both are given.
    int64_t num;
    rc = msgl__field_int_of(o, &fields, "max_completion_tokens", &num, e);
    if (rc < 0) return rc;
    if (rc > 0) out->max_tokens = (int32_t)num;
    json_t *tools = NULL;
    rc = msgl__field_bool(o, "return_token_ids", &out->return_ids, e);
    if (rc >= 0) rc = parse_tools(o, cfg, &tools, out, e);
    if (rc == 0) rc = parse_reasoning(o, cfg, out, e);
    if (rc == 0) rc = parse_logprobs(o, out, e);
    if (rc == 0) rc = msgl__parse_prompt_logprobs(o, &fields, out, e);
    return rc == 0 ? make_vars(o, tools, out, e) : rc;
}

static const msgl_example examples[] = {
    {"An answer", MSGL_HTTP_POST,
     .body = "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 27 + 58?\"}], "
             "\"max_tokens\": 40}",
     .has = "id object created model choices usage"},
    {"A stream", MSGL_HTTP_POST,
     .body = "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 27 + 58?\"}], "
             "\"max_tokens\": 40, \"stream\": true}",
     .type = "text/event-stream", .has = "id object created model choices", .end = "data: [DONE]"},
    {0},
};

const msgl_endpoint msgl__endpoint_chat = {
    .path = "/v1/chat/completions",
    .help =
        "OpenAI's chat completions: the assistant's next message. `max_tokens` left out is what "
        "the context leaves.",
    .examples = examples,
    .method = MSGL_HTTP_POST,
    .parse = msgl__chat_parse,
    .objects = objects,
    .prompt = MSGL_PROMPT_CHAT,
    .prompt_field = "messages",
    .id_prefix = "chatcmpl",
    .prompt_logprobs_once = true,
    .logprobs = &msgl__logprobs_content,
    .put_begin = msgl__chat_put_begin,
    .put_choice = msgl__chat_put_choice,
    .put_end = msgl__chat_put_end,
    .put_chunk = msgl__chat_put_chunk,
    .put_stream_end = msgl__chat_put_stream_end,
    .put_stream_error = msgl__reply_stream_error,
};
