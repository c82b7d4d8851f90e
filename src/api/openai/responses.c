// SPDX-License-Identifier: Apache-2.0
//
// POST /v1/responses, OpenAI's Responses API: the body is rewritten as one of /v1/chat/completions,
// whose parser reads it from there on; and what of the request the answer repeats.
#include <stdio.h>
#include <string.h>

#include "api/openai/endpoints.h"
#include "api/fields.h"
#include "api/foreign.h"
#include "api/openai/responses_answer.h"
#include "api/openai/responses_input.h"
#include "api/openai/responses_kept.h"

static void own_free(void *own)
{
    msgl_responses_own *o = own;
    msgl__strbuf_free(&o->namespaces);
    msgl__strbuf_free(&o->repeated);
}

static size_t own_bytes(const void *own)
{
    const msgl_responses_own *o = own;
    return o->namespaces.cap + o->repeated.cap;
}

static const msgl_own_fields own_fields = {
    .size = sizeof(msgl_responses_own), .free = own_free, .bytes = own_bytes};

enum { REPEATED_MAX = 256 * 1024 }; // bytes of one field in the answer

static const msgl_field_row rows[] = {
    MSGL_ROW_MODEL,
    {"input", MSGL_FIELD_ANY, .required = true,
     .help = "a string, or an array of items: messages, calls, their results, reasoning"},
    {"instructions", MSGL_FIELD_STRING, .help = "the system's message"},
    {"max_output_tokens", MSGL_FIELD_INT, .min = 1, .max = INT32_MAX, .unlimited = true,
     .preset = "what the context leaves", .help = "of the answer; -1: as if it were not given"},
    MSGL_ROW_STREAM,
    {"tools", MSGL_FIELD_ARRAY, .help = "of type function, or namespace; others are left out"},
    {"tool_choice", MSGL_FIELD_ANY, .preset = "\"auto\"",
     .help =
         "`\"auto\"`, `\"none\"`, `\"required\"`, `{\"type\": \"function\", \"name\": ...}`, or "
         "`{\"type\": \"allowed_tools\", ...}`"},
    {"parallel_tool_calls", MSGL_FIELD_BOOL, .preset = "true",
     .help = "an answer may have several calls"},
    {"text", MSGL_FIELD_OBJECT, .help = "the form of the answer"},
    {"reasoning", MSGL_FIELD_OBJECT, .help = "how much is thought"},
    {"metadata", MSGL_FIELD_OBJECT, .help = "strings, which the answer repeats"},
    {"truncation", MSGL_FIELD_STRING, .preset = "\"disabled\"",
     .help = "`\"auto\"`: of a prompt that the context has no room for, its end is read"},
    {"include", MSGL_FIELD_STRINGS,
     .help = "read over, but for `message.output_text.logprobs`, which is refused"},
    {"chat_template_kwargs", MSGL_FIELD_OBJECT, .help = "further variables of the chat template"},
    MSGL_ROW_CHAT_TEMPLATE,
    {"max_tool_calls", MSGL_FIELD_ANY,
     .help = "changes nothing: of tools that OpenAI's servers run"},
    {"store", MSGL_FIELD_BOOL, .preset = "true",
     .help = "the response is kept for a while ([responses.md](responses.md#what-is-stored))"},
    {"previous_response_id", MSGL_FIELD_STRING,
     .help = "of a stored response, whose conversation goes on with `input`"},
    {"conversation", MSGL_FIELD_ANY,
     .only = "null, with 'previous_response_id' or the whole conversation in 'input'"},
    {"prompt", MSGL_FIELD_ANY,
     .only = "null, with its text in 'instructions' and 'input': no prompts are stored"},
    {"background", MSGL_FIELD_ANY,
     .only = "false: an answer comes with its request, whole or as a stream"},
    {"context_management", MSGL_FIELD_ANY, .only = "null"},
    {"top_logprobs", MSGL_FIELD_ANY, .only = "0; /v1/chat/completions has log-probabilities"},
    {"moderation", MSGL_FIELD_ANY, .only = "null"},
    {"image", MSGL_FIELD_ANY, .only = "null: this model reads text only"},
    {"response_format", MSGL_FIELD_ANY, .only = "null: it is called 'text.format' here"},
    MSGL_ROW_CACHE_SALT,
    {0},
};
// Fields of OpenAI's service, on which nothing here depends.
#define UNUSED(name) MSGL_ROW_UNUSED(name, "of OpenAI's service")
static const msgl_field_row service_rows[] = {
    UNUSED("user"),
    UNUSED("safety_identifier"),
    UNUSED("prompt_cache_key"),
    UNUSED("prompt_cache_retention"),
    UNUSED("prompt_cache_options"),
    UNUSED("service_tier"),
    UNUSED("stream_options"),
    UNUSED("access_programs"),
    UNUSED("background_options"),
    {0},
};
#undef UNUSED
static const msgl_field_row text_rows[] = {
    {"format", MSGL_FIELD_OBJECT, .preset = "{\"type\": \"text\"}",
     .help = "of type text, json_object or json_schema, with a schema"},
    {"verbosity", MSGL_FIELD_ANY, .help = "changes nothing"},
    {0},
};
static const msgl_field_row reasoning_rows[] = {
    {"effort", MSGL_FIELD_STRING, .help = "a variable of the chat template"},
    {"summary", MSGL_FIELD_ANY, .help = "changes nothing: thoughts are shown whole"},
    {"generate_summary", MSGL_FIELD_ANY, .help = "changes nothing"},
    {0},
};
static const msgl_fields passed = {.read = service_rows, .also = &msgl__sampling_fields};
static const msgl_fields fields = {.read = rows, .also = &passed};
static const msgl_fields text_fields = {.member = "text", .read = text_rows};
static const msgl_fields reasoning_fields = {.member = "reasoning", .read = reasoning_rows};
static const msgl_fields *const objects[] = {&fields, &text_fields, &reasoning_fields, NULL};

// Whether a value means what leaving the field out means.
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
    for (const msgl_field_row *row = rows; row->name != NULL; row++) {
        if (row->only == NULL || is_off(json_object_get(o, row->name))) continue;
        return msgl__api_fail(e, 400, row->name, "unsupported_parameter",
                              "'%s' is not supported by this server; allowed: %s.", row->name,
                              row->only);
    }
    const json_t *truncation = msgl__field(o, "truncation"), *include = msgl__field(o, "include");
    const char *word = json_string_value(truncation);
    if (truncation != NULL &&
        (word == NULL || (strcmp(word, "disabled") != 0 && strcmp(word, "auto") != 0))) {
        return msgl__field_bad(e, "truncation", "must be \"auto\" or \"disabled\"");
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

// Appends a tool of type function to *out as a chat has it. space: the name of the namespace that
// it is in, or NULL.
static int put_function(const json_t *tool, json_t *space, const char *param, json_t *out,
                        msgl_gen_request *req, msgl_api_error *e)
{
    json_t *name = json_object_get(tool, "name");
    json_t *about = msgl__field(tool, "description"), *schema = msgl__field(tool, "parameters"),
           *strict = msgl__field(tool, "strict");
    if (!json_is_string(name) || (schema != NULL && !json_is_object(schema))) {
        return msgl__field_bad(e, param,
                               "must be {\"type\": \"function\", \"name\": string, "
                               "\"parameters\": object, ...}");
    }
    json_t *flat = space != NULL ? msgl__responses_flat_name(space, name) : json_incref(name);
    json_t *function = json_pack("{s:o}", "name", flat);
    int bad = function == NULL;
    if (space != NULL) { // the answer gives the names back as they were
        bad |= msgl__strbuf_add(&msgl__responses_own(req)->namespaces, json_string_value(space),
                                json_string_length(space) + 1);
        bad |= msgl__strbuf_add(&msgl__responses_own(req)->namespaces, json_string_value(name),
                                json_string_length(name) + 1);
    }
    if (about != NULL) bad |= json_object_set(function, "description", about);
    if (schema != NULL) bad |= json_object_set(function, "parameters", schema);
    if (strict != NULL) bad |= json_object_set(function, "strict", strict);
    json_t *f = json_pack("{s:s,s:o}", "type", "function", "function", function);
    return json_array_append_new(out, f) != 0 || bad != 0 ? msgl__api_oom(e) : 0;
}

// Appends the tools that are functions, those of namespaces among them. Other tools are run by
// OpenAI's servers and are left out: the model could call them, and nobody would answer.
static int put_tools_of(const json_t *in, json_t *space, const char *at, json_t *out,
                        msgl_gen_request *req, msgl_api_error *e)
{
    int rc = 0;
    for (size_t i = 0; i < json_array_size(in) && rc == 0; i++) {
        const json_t *tool = json_array_get(in, i);
        json_t *inner = json_object_get(tool, "name");
        const char *type = json_string_value(json_object_get(tool, "type"));
        char param[64];
        (void)snprintf(param, sizeof param, "%.30s[%zu]", at, i);
        if (type == NULL || strcmp(type, "function") == 0) {
            rc = type == NULL
                     ? msgl__field_bad(e, param, "must be an object with the string 'type'")
                     : put_function(tool, space, param, out, req, e);
        } else if (space == NULL && strcmp(type, "namespace") == 0 && json_is_string(inner)) {
            (void)snprintf(param, sizeof param, "%.20s[%zu].tools", at, i);
            rc = put_tools_of(json_object_get(tool, "tools"), inner, param, out, req, e);
        } else {
            msgl__foreign_tool_note(type, &req->notes);
        }
    }
    return rc;
}

static int put_tools(const json_t *o, json_t *chat, msgl_gen_request *req, msgl_api_error *e)
{
    const json_t *in = msgl__field(o, "tools");
    if (in == NULL) return 0;
    if (!json_is_array(in)) return msgl__field_bad(e, "tools", "must be an array");
    json_t *out = json_array();
    if (json_object_set_new(chat, "tools", out) != 0) return msgl__api_oom(e);
    msgl__strbuf_init(&msgl__responses_own(req)->namespaces, SIZE_MAX / 2);
    return put_tools_of(in, NULL, "tools", out, req, e);
}

// --- text, reasoning ---

static int put_text(const json_t *o, json_t *chat, msgl_gen_request *out,
                    const msgl_api_config *cfg, msgl_api_error *e)
{
    const json_t *in = msgl__field(o, "text");
    json_t *format = msgl__field(in, "format"), *schema = msgl__field(format, "schema");
    if (in == NULL) return 0;
    if (!json_is_object(in)) return msgl__field_bad(e, "text", "must be an object");
    const int rc = msgl__check_fields(in, &text_fields, cfg, cfg->unknown_fields, &out->unknown, e);
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
        json_t *inner = json_object_get(as, "json_schema");
        if (json_is_true(msgl__field(format, "strict")) &&
            json_object_set_new(inner, "strict", json_true()) != 0) {
            json_decref(as);
            return msgl__api_oom(e);
        }
    }
    return json_object_set_new(chat, "response_format", as) == 0 ? 0 : msgl__api_oom(e);
}

// Sets variables of the template. The effort "none" is what most templates call enable_thinking
// false.
static int put_reasoning(const json_t *o, json_t *chat, msgl_gen_request *out,
                         const msgl_api_config *cfg, msgl_api_error *e)
{
    const json_t *in = msgl__field(o, "reasoning"), *given = msgl__field(o, "chat_template_kwargs");
    json_t *effort = msgl__field(in, "effort");
    const char *word = json_string_value(effort);
    if (in == NULL) return 0;
    if (!json_is_object(in)) return msgl__field_bad(e, "reasoning", "must be an object");
    const int rc =
        msgl__check_fields(in, &reasoning_fields, cfg, cfg->unknown_fields, &out->unknown, e);
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

// ,"name":v; or ,"name":otherwise, where v is NULL, or has more than REPEATED_MAX bytes: a stream
// would repeat them three times to the client that sent them.
static int put_member(const char *name, const json_t *v, const char *otherwise, msgl_strbuf *out)
{
    const bool first = out->len > 0 && out->data[out->len - 1] == '{';
    int rc = msgl__strbuf_addf(out, "%s\"%s\":", first ? "" : ",", name);
    if (rc != 0) return rc;
    msgl_strbuf text;
    msgl__strbuf_init(&text, REPEATED_MAX);
    if (v == NULL || (rc = msgl__json_put(&text, v, JSON_COMPACT)) == MSGL_ELIMIT) {
        rc = msgl__strbuf_adds(out, otherwise);
    } else if (rc == 0) {
        rc = msgl__strbuf_add(out, text.data, text.len);
    }
    msgl__strbuf_free(&text);
    return rc;
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
        {"truncation", "\"disabled\""},
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
    int rc = 0;
    for (size_t i = 0; i < sizeof members / sizeof members[0] && rc == 0; i++) {
        rc = put_member(members[i][0], msgl__field(o, members[i][0]), members[i][1], out);
    }
    if (rc == 0) rc = put_text_member(msgl__field(o, "text"), out);
    if (rc == 0) {
        rc = msgl__strbuf_addf(out, ",\"temperature\":%.7g,\"top_p\":%.7g",
                               (double)req->sampling.temperature, (double)req->sampling.top_p);
    }
    if (rc == 0) {
        rc =
            put_member("previous_response_id", msgl__field(o, "previous_response_id"), "null", out);
    }
    if (rc != 0) return rc;
    return msgl__strbuf_addf(out, ",\"store\":%s,\"background\":false",
                             req->kept.len > 0 ? "true" : "false");
}

// Writes the members of the answer that repeat the request, whose fields were checked before.
static int repeat(const json_t *o, msgl_gen_request *req, msgl_api_error *e)
{
    msgl_strbuf *repeated = &msgl__responses_own(req)->repeated;
    msgl__strbuf_init(repeated, SIZE_MAX / 2);
    int rc = put_repeated(o, req, repeated);
    if (rc != 0) return msgl__api_oom(e);
    if (req->room.claim == NULL) return 0;
    rc = msgl__claim_add(req->room.claim, MSGL_BUDGET_PROMPT, repeated->cap);
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

static int copy_field(const json_t *o, const char *name, json_t *chat)
{
    json_t *v = msgl__field(o, name);
    return v == NULL ? 0 : json_object_set(chat, name, v);
}

// Rewrites the body as a chat's. Fields that a chat has and this API does not have are not copied.
static int convert(const json_t *o, json_t *chat, msgl_gen_request *out, const msgl_api_config *cfg,
                   msgl_api_error *e)
{
    static const char *const same[] = {"stream", "parallel_tool_calls", "chat_template_kwargs",
                                       "chat_template", NULL};
    int bad = 0;
    for (const char *const *name = same; *name != NULL; name++) bad |= copy_field(o, *name, chat);
    const msgl_field_row *row = msgl__sampling_fields.read;
    for (; row->name != NULL; row++) bad |= copy_field(o, row->name, chat);
    if (bad != 0) return msgl__api_oom(e);
    int rc = check_metadata(o, e);
    const char *truncation = json_string_value(json_object_get(o, "truncation"));
    if (rc == 0 && truncation != NULL && strcmp(truncation, "auto") == 0 &&
        json_object_set_new(chat, "truncate_prompt_tokens", json_integer(-1)) != 0) {
        rc = msgl__api_oom(e);
    }
    if (rc == 0) rc = msgl__responses_put_input(o, chat, e);
    if (rc == 0) rc = put_tools(o, chat, out, e);
    if (rc == 0 && copy_field(o, "tool_choice", chat) != 0) rc = msgl__api_oom(e);
    if (rc == 0) rc = put_text(o, chat, out, cfg, e);
    return rc == 0 ? put_reasoning(o, chat, out, cfg, e) : rc;
}

static int parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                 msgl_api_error *e)
{
    int64_t most = 0;
    int rc = msgl__rename_fields((json_t *)o, &fields) == 0 ? 0 : msgl__api_oom(e);
    if (rc == 0) rc = check_supported(o, e);
    if (rc == 0) rc = msgl__check_fields(o, &fields, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = msgl__field_int_of(o, &fields, "max_output_tokens", &most, e);
    if (rc < 0) return rc;
    rc = msgl__responses_go_on((json_t *)o, cfg, out, e);
    if (rc == 0) rc = msgl__responses_keep(o, cfg, out, e);
    if (rc != 0) return rc;
    json_t *chat = json_object();
    if (chat == NULL) return msgl__api_oom(e);
    rc = convert(o, chat, out, cfg, e);
    if (rc == 0 && (rc = msgl__chat_parse(chat, cfg, out, e)) != 0) {
        msgl__field_rename(e, "response_format", "text.format");
    }
    if (rc == 0 && out->n != 1) rc = msgl__field_bad(e, "n", "must be 1: a response is one answer");
    if (rc == 0 && most > 0) out->max_tokens = (int32_t)most;
    if (rc == 0) rc = repeat(o, out, e);
    return msgl__request_keep(out, "chat", chat, rc, e);
}

static const msgl_example examples[] = {
    {"A response", MSGL_HTTP_POST,
     .body = "{\"input\": \"What is 27 + 58?\", \"max_output_tokens\": 40}",
     .has = "id object status model output usage"},
    {"A stream", MSGL_HTTP_POST,
     .body = "{\"input\": \"What is 27 + 58?\", \"max_output_tokens\": 40, \"stream\": true}",
     .type = "text/event-stream", .has = "type response", .end = "\"response.completed\""},
    {0},
};

const msgl_endpoint msgl__endpoint_responses = {
    .path = "/v1/responses",
    .own = &own_fields,
    .help = "OpenAI's Responses ([responses.md](responses.md)).",
    .examples = examples,
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

static int put_count(const msgl_job *j, const msgl_tokenizer *t, msgl_strbuf *out)
{
    (void)t;
    return msgl__strbuf_addf(out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}",
                             j->ids[0].len);
}

static const msgl_example count_examples[] = {
    {"The tokens of a question", MSGL_HTTP_POST, .body = "{\"input\": \"What is 27 + 58?\"}",
     .has = "object input_tokens"},
    {0},
};

const msgl_endpoint msgl__endpoint_input_tokens = {
    .path = "/v1/responses/input_tokens",
    .own = &own_fields,
    .help = "How many tokens the prompt of such a response has.",
    .examples = count_examples,
    .method = MSGL_HTTP_POST,
    .parse = parse,
    .objects = objects,
    .prompt = MSGL_PROMPT_CHAT,
    .prompt_field = "input",
    .put_job = put_count,
};
