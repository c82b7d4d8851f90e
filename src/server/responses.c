// SPDX-License-Identifier: Apache-2.0
//
// POST /v1/responses, OpenAI's Responses API without its storage: the body as one of
// /v1/chat/completions, which is what reads it from there on, and what the answer repeats of it.
#include <stdio.h>
#include <string.h>

#include "server/endpoint.h"
#include "server/fields.h"
#include "server/responses_answer.h"
#include "server/responses_input.h"

enum { REPEATED_MAX = 256 * 1024 }; // bytes of one field in the answer

static const char *const names[] = {"model",
                                    "input",
                                    "instructions",
                                    "max_output_tokens",
                                    "stream",
                                    "tools",
                                    "tool_choice",
                                    "parallel_tool_calls",
                                    "text",
                                    "reasoning",
                                    "metadata",
                                    "truncation",
                                    "include",
                                    "chat_template_kwargs",
                                    "previous_response_id",
                                    "conversation",
                                    "prompt",
                                    "background",
                                    "context_management",
                                    "top_logprobs",
                                    "moderation",
                                    "image",
                                    "response_format",
                                    "max_tool_calls",
                                    NULL};
// Of OpenAI's service: nothing here depends on them.
static const char *const service_names[] = {"store",
                                            "user",
                                            "safety_identifier",
                                            "prompt_cache_key",
                                            "prompt_cache_retention",
                                            "prompt_cache_options",
                                            "service_tier",
                                            "stream_options",
                                            "access_programs",
                                            "background_options",
                                            NULL};
static const char *const text_names[] = {"format", "verbosity", NULL};
static const char *const reasoning_names[] = {"effort", "summary", "generate_summary", NULL};
static const msgl_fields passed = {.read = service_names, .also = &msgl__sampling_fields};
static const msgl_fields fields = {.read = names, .also = &passed};
static const msgl_fields text_fields = {.read = text_names};
static const msgl_fields reasoning_fields = {.read = reasoning_names};
static const msgl_fields *const objects[] = {&fields, &text_fields, &reasoning_fields, NULL};

// What would change the answer, and what there is in its place.
static const struct {
    const char *name, *allowed;
} unsupported[] = {
    {"previous_response_id", "null, with the whole conversation in 'input': nothing is stored"},
    {"conversation", "null, with the whole conversation in 'input': nothing is stored"},
    {"prompt", "null, with its text in 'instructions' and 'input': nothing is stored"},
    {"background", "false: an answer comes with its request, whole or as a stream"},
    {"context_management", "null"},
    {"top_logprobs", "0; /v1/chat/completions has log-probabilities"},
    {"moderation", "null"},
    {"image", "null: this model reads text only"},
    {"response_format", "null: it is called 'text.format' here"},
};

// As if it were not there.
static bool is_off(const json_t *v)
{
    switch (v == NULL ? JSON_NULL : json_typeof(v)) {
    case JSON_NULL:
    case JSON_FALSE: return true;
    case JSON_INTEGER: return json_integer_value(v) == 0;
    case JSON_STRING: return json_string_length(v) == 0;
    case JSON_ARRAY: return json_array_size(v) == 0;
    case JSON_OBJECT: return json_object_size(v) == 0;
    default: return false;
    }
}

static int check_supported(const json_t *o, msgl_api_error *e)
{
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++) {
        const char *name = unsupported[i].name;
        if (is_off(json_object_get(o, name))) continue;
        return msgl__api_fail(e, 400, name, "unsupported_parameter",
                              "'%s' is not supported by this server; allowed: %s.", name,
                              unsupported[i].allowed);
    }
    const json_t *truncation = msgl__field(o, "truncation"), *include = msgl__field(o, "include");
    const char *word = json_string_value(truncation);
    if (truncation != NULL && (word == NULL || strcmp(word, "disabled") != 0)) {
        return msgl__api_fail(e, 400, "truncation", "unsupported_parameter",
                              "'truncation' must be \"disabled\": no item is left out here.");
    }
    if (include != NULL && !json_is_array(include)) {
        return msgl__field_bad(e, "include", "must be an array of strings");
    }
    for (size_t i = 0; i < json_array_size(include); i++) {
        const char *what = json_string_value(json_array_get(include, i));
        if (what == NULL) return msgl__field_bad(e, "include", "must be an array of strings");
        if (strcmp(what, "message.output_text.logprobs") != 0) continue;
        return msgl__api_fail(e, 400, "include", "unsupported_parameter",
                              "'include' asks for \"%s\", which only /v1/chat/completions has.",
                              what);
    }
    return 0;
}

// --- tools ---

static int put_tools(const json_t *o, json_t *chat, msgl_api_error *e)
{
    const json_t *in = msgl__field(o, "tools");
    if (in == NULL) return 0;
    if (!json_is_array(in)) return msgl__field_bad(e, "tools", "must be an array");
    json_t *out = json_array();
    if (json_object_set_new(chat, "tools", out) != 0) return msgl__api_oom(e);
    for (size_t i = 0; i < json_array_size(in); i++) {
        const json_t *tool = json_array_get(in, i), *name = json_object_get(tool, "name");
        json_t *about = msgl__field(tool, "description"), *schema = msgl__field(tool, "parameters"),
               *strict = msgl__field(tool, "strict");
        const char *type = json_string_value(json_object_get(tool, "type"));
        char param[64];
        (void)snprintf(param, sizeof param, "tools[%zu]", i);
        if (type != NULL && strcmp(type, "function") != 0) {
            return msgl__api_fail(e, 400, param, "unsupported_parameter",
                                  "'%s' is of type \"%.40s\", which this server does not run; "
                                  "allowed: \"function\".",
                                  param, type);
        }
        if (type == NULL || !json_is_string(name) || (schema != NULL && !json_is_object(schema))) {
            return msgl__field_bad(
                e, param,
                "must be {\"type\": \"function\", \"name\": string, \"parameters\": "
                "object, ...}");
        }
        json_t *function = json_pack("{s:O}", "name", name);
        int bad = function == NULL;
        if (about != NULL) bad |= json_object_set(function, "description", about);
        if (schema != NULL) bad |= json_object_set(function, "parameters", schema);
        if (strict != NULL) bad |= json_object_set(function, "strict", strict);
        json_t *f = json_pack("{s:s,s:o}", "type", "function", "function", function);
        if (json_array_append_new(out, f) != 0 || bad != 0) return msgl__api_oom(e);
    }
    return 0;
}

static int put_tool_choice(const json_t *o, json_t *chat, msgl_api_error *e)
{
    static const char *const words[] = {"auto", "none", "required"};
    json_t *in = msgl__field(o, "tool_choice"), *name = json_object_get(in, "name");
    const char *word = json_string_value(in);
    if (in == NULL) return 0;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (word == NULL || strcmp(word, words[i]) != 0) continue;
        return json_object_set(chat, "tool_choice", in) == 0 ? 0 : msgl__api_oom(e);
    }
    if (!msgl__field_is_type(in, "function") || !json_is_string(name)) {
        return msgl__field_bad(
            e, "tool_choice",
            "must be \"auto\", \"none\", \"required\" or {\"type\": \"function\", "
            "\"name\": string}");
    }
    json_t *out = json_pack("{s:s,s:{s:O}}", "type", "function", "function", "name", name);
    return json_object_set_new(chat, "tool_choice", out) == 0 ? 0 : msgl__api_oom(e);
}

// --- text, reasoning ---

static int put_text(const json_t *o, json_t *chat, msgl_gen_request *out, bool refuse,
                    msgl_api_error *e)
{
    const json_t *in = msgl__field(o, "text");
    json_t *format = msgl__field(in, "format"), *schema = msgl__field(format, "schema");
    if (in == NULL) return 0;
    if (!json_is_object(in)) return msgl__field_bad(e, "text", "must be an object");
    const int rc = msgl__check_fields(in, &text_fields, refuse, &out->unknown, e);
    if (rc != 0 || format == NULL || msgl__field_is_type(format, "text")) return rc;
    json_t *as = NULL;
    if (msgl__field_is_type(format, "json_object")) {
        as = json_pack("{s:s}", "type", "json_object");
    } else if (!msgl__field_is_type(format, "json_schema")) {
        return msgl__field_bad(e, "text.format",
                               "must be an object of type text, json_object or json_schema");
    } else if (!json_is_object(schema)) {
        return msgl__field_bad(e, "text.format.schema", "must be an object");
    } else {
        as = json_pack("{s:s,s:{s:s,s:O}}", "type", "json_schema", "json_schema", "name", "answer",
                       "schema", schema);
    }
    return json_object_set_new(chat, "response_format", as) == 0 ? 0 : msgl__api_oom(e);
}

// The template's variables. Effort "none" is what most templates call enable_thinking.
static int put_reasoning(const json_t *o, json_t *chat, msgl_gen_request *out, bool refuse,
                         msgl_api_error *e)
{
    const json_t *in = msgl__field(o, "reasoning"), *given = msgl__field(o, "chat_template_kwargs");
    json_t *effort = msgl__field(in, "effort");
    const char *word = json_string_value(effort);
    if (in == NULL) return 0;
    if (!json_is_object(in)) return msgl__field_bad(e, "reasoning", "must be an object");
    const int rc = msgl__check_fields(in, &reasoning_fields, refuse, &out->unknown, e);
    if (rc != 0 || effort == NULL) return rc;
    if (word == NULL) return msgl__field_bad(e, "reasoning.effort", "must be a string");
    if (strcmp(word, "none") != 0) {
        return json_object_set(chat, "reasoning_effort", effort) == 0 ? 0 : msgl__api_oom(e);
    }
    if (given != NULL && !json_is_object(given)) return 0; // which the chat refuses
    json_t *vars = json_pack("{s:b}", "enable_thinking", 0);
    if (json_object_set_new(chat, "chat_template_kwargs", vars) != 0) return msgl__api_oom(e);
    return given == NULL || json_object_update(vars, (json_t *)given) == 0 ? 0 : msgl__api_oom(e);
}

// --- what the answer repeats ---

static int put_bytes(const char *data, size_t len, void *out)
{
    return msgl__strbuf_add(out, data, len) == 0 ? 0 : -1;
}

// ,"name":v, or `otherwise` in its place: v is NULL, or so long that the client, which has it, does
// not need it three times in a stream.
static int put_member(const char *name, const json_t *v, const char *otherwise, msgl_strbuf *out)
{
    const size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15);
    int rc = msgl__strbuf_addf(out, "%s\"%s\":", out->data[out->len - 1] == '{' ? "" : ",", name);
    if (rc != 0) return rc;
    if (v == NULL || json_dumpb(v, NULL, 0, flags) > REPEATED_MAX) {
        return msgl__strbuf_adds(out, otherwise);
    }
    return json_dump_callback(v, put_bytes, out, flags) == 0 ? 0 : MSGL_ENOMEM;
}

static int put_text_member(const json_t *text, msgl_strbuf *out)
{
    const json_t *format = msgl__field(text, "format"), *verbosity = msgl__field(text, "verbosity");
    int rc = msgl__strbuf_adds(out, ",\"text\":{");
    if (rc == 0) {
        rc = put_member("format", format,
                        format == NULL
                            ? "{\"type\":\"text\"}"
                            : "{\"type\":\"json_schema\",\"name\":\"answer\",\"schema\":{}}",
                        out);
    }
    if (rc == 0 && verbosity != NULL) rc = put_member("verbosity", verbosity, "null", out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static int put_repeated(const json_t *o, const msgl_gen_request *req, msgl_strbuf *out)
{
    static const char *const members[][2] = {
        {"instructions", "null"},
        {"metadata", "{}"},
        {"tools", "[]"},
        {"tool_choice", "\"auto\""},
        {"parallel_tool_calls", "true"},
        {"max_output_tokens", "null"},
        {"reasoning", "{\"effort\":null,\"summary\":null}"},
        {"user", "null"},
        {"safety_identifier", "null"},
        {"prompt_cache_key", "null"},
    };
    int rc = msgl__strbuf_adds(out, ",\"truncation\":\"disabled\"");
    for (size_t i = 0; i < sizeof members / sizeof members[0] && rc == 0; i++) {
        rc = put_member(members[i][0], msgl__field(o, members[i][0]), members[i][1], out);
    }
    if (rc == 0) rc = put_text_member(msgl__field(o, "text"), out);
    if (rc != 0) return rc;
    return msgl__strbuf_addf(out,
                             ",\"temperature\":%.7g,\"top_p\":%.7g,"
                             "\"previous_response_id\":null,\"store\":false,\"background\":false",
                             (double)req->sampling.temperature, (double)req->sampling.top_p);
}

// Of a request that was read: its fields have the right types.
static int repeat(const json_t *o, msgl_gen_request *req, msgl_api_error *e)
{
    msgl__strbuf_init(&req->repeated, SIZE_MAX / 2);
    int rc = put_repeated(o, req, &req->repeated);
    if (rc != 0) return msgl__api_oom(e);
    if (req->room.claim == NULL) return 0;
    rc = msgl__claim_add(req->room.claim, MSGL_BUDGET_PROMPT, req->repeated.cap);
    return rc == 0 ? 0 : msgl__api_fail_memory(e, rc);
}

// --- all of it ---

static int check_metadata(const json_t *o, msgl_api_error *e)
{
    const json_t *in = msgl__field(o, "metadata");
    const char *key;
    json_t *value;
    if (in != NULL && !json_is_object(in))
        return msgl__field_bad(e, "metadata", "must be an object");
    json_object_foreach((json_t *)in, key, value)
    {
        if (!json_is_string(value)) return msgl__field_bad(e, "metadata", "must have strings only");
    }
    return 0;
}

// The body as a chat's. Fields that the chat has and this API does not have are not passed on.
static int convert(const json_t *o, json_t *chat, msgl_gen_request *out, bool refuse,
                   msgl_api_error *e)
{
    static const char *const same[] = {"stream", "parallel_tool_calls", "chat_template_kwargs",
                                       NULL};
    const char *const *const lists[] = {same, msgl__sampling_fields.read};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        for (const char *const *name = lists[i]; *name != NULL; name++) {
            json_t *v = msgl__field(o, *name);
            if (v != NULL && json_object_set(chat, *name, v) != 0) return msgl__api_oom(e);
        }
    }
    int rc = check_metadata(o, e);
    if (rc == 0) rc = msgl__responses_put_input(o, chat, e);
    if (rc == 0) rc = put_tools(o, chat, e);
    if (rc == 0) rc = put_tool_choice(o, chat, e);
    if (rc == 0) rc = put_text(o, chat, out, refuse, e);
    return rc == 0 ? put_reasoning(o, chat, out, refuse, e) : rc;
}

// An error of the chat about a field that the client has called something else.
static int rename_error(msgl_api_error *e)
{
    static const char chat[] = "'response_format", own[] = "text.format";
    const bool named = strncmp(e->param, chat + 1, sizeof chat - 2) == 0;
    if (strncmp(e->message, chat, sizeof chat - 1) != 0) return MSGL_EINVAL;
    char message[sizeof e->message], param[sizeof e->param];
    const char *rest = strchr(e->message + 1, '\'');
    (void)snprintf(message, sizeof message, "'%s%s", own, rest == NULL ? "'" : rest);
    (void)snprintf(param, sizeof param, "%s", named ? own : e->param);
    return msgl__api_fail(e, e->status, param, e->code, "%s", message);
}

static int parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                 msgl_api_error *e)
{
    int64_t most = 0;
    int rc = check_supported(o, e);
    if (rc == 0) rc = msgl__check_fields(o, &fields, cfg->refuse_unknown, &out->unknown, e);
    if (rc == 0) rc = msgl__field_int(o, "max_output_tokens", 1, INT32_MAX, &most, e);
    if (rc < 0) return rc;
    json_t *chat = json_object();
    if (chat == NULL) return msgl__api_oom(e);
    rc = convert(o, chat, out, cfg->refuse_unknown, e);
    if (rc == 0 && (rc = msgl__chat_parse(chat, cfg, out, e)) != 0) rc = rename_error(e);
    if (rc == 0 && out->n != 1) rc = msgl__field_bad(e, "n", "must be 1: a response is one answer");
    if (rc == 0 && most > 0) out->max_tokens = (int32_t)most;
    if (rc == 0) rc = repeat(o, out, e);
    // The request's tree owns the chat's: its texts are the same ones.
    if (json_object_set_new(out->root, "chat", chat) != 0 && rc == 0) rc = msgl__api_oom(e);
    return rc;
}

const msgl_endpoint msgl__endpoint_responses = {
    .path = "/v1/responses",
    .method = MSGL_HTTP_POST,
    .parse = parse,
    .objects = objects,
    .prompt = MSGL_PROMPT_CHAT,
    .prompt_field = "input",
    .id_prefix = "resp",
    .put_begin = msgl__responses_put_begin,
    .put_choice = msgl__responses_put_choice,
    .put_end = msgl__responses_put_end,
    .put_chunk = msgl__responses_put_chunk,
    .put_stream_end = msgl__responses_put_stream_end,
    .put_stream_error = msgl__responses_put_stream_error,
};
