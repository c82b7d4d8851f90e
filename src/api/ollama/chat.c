// SPDX-License-Identifier: Apache-2.0
//
// POST /api/chat: the body is rewritten as one of /v1/chat/completions, whose parser reads it from
// there on.
#include <stdio.h>
#include <string.h>

#include "api/final_message.h"
#include "api/ollama/answer.h"
#include "api/ollama/endpoints.h"
#include "api/ollama/request.h"

static const msgl_field_row rows[] = {
    {"messages", MSGL_FIELD_ARRAY, .max_items = MSGL_API_MAX_MESSAGES,
     .help =
         "objects with `role` (system, user, assistant, tool) and `content`, a string; "
         "`thinking`, `tool_calls`, `tool_name`; none: the answer says that the model is there"},
    {"tools", MSGL_FIELD_ARRAY, .help = "functions that the model may call ([tools.md](tools.md))"},
    {0},
};
static const msgl_fields fields = {.read = rows, .also = &msgl__ollama_common};
static const msgl_fields *const objects[] = {&fields, &msgl__ollama_options, NULL};

static int bad_message(size_t i, const char *field, const char *what, msgl_api_error *e)
{
    char param[64];
    (void)snprintf(param, sizeof param, "messages[%zu]%s", i, field);
    return msgl__field_bad(e, param, what);
}

// Adds the calls of a message, with the type and the id that a chat's calls have.
static int put_calls(const json_t *in, size_t i, json_t *out, msgl_api_error *e)
{
    if (in == NULL) return 0;
    if (!json_is_array(in)) return bad_message(i, ".tool_calls", "must be an array", e);
    json_t *calls = json_array();
    if (json_object_set_new(out, "tool_calls", calls) != 0) return msgl__api_oom(e);
    for (size_t k = 0; k < json_array_size(in); k++) {
        const json_t *call = json_array_get(in, k), *function = json_object_get(call, "function");
        json_t *id = msgl__field(call, "id");
        if (!json_is_string(json_object_get(function, "name")) ||
            (id != NULL && !json_is_string(id))) {
            return bad_message(i, ".tool_calls",
                               "must be objects {\"function\": {\"name\": string, ...}}", e);
        }
        char own[48]; // an id by the call's place, such as call_2_0: Ollama's calls have none
        (void)snprintf(own, sizeof own, "call_%zu_%zu", i, k);
        json_t *as = json_pack("{s:s,s:s,s:O}", "type", "function", "id",
                               id == NULL ? own : json_string_value(id), "function", function);
        if (json_array_append_new(calls, as) != 0) return msgl__api_oom(e);
    }
    return 0;
}

// Adds a message with its fields under a chat's names. The chat's parser checks role and content.
static int put_message(const json_t *in, size_t i, json_t *messages, msgl_api_error *e)
{
    static const char *const names[][2] = {
        {"role", "role"},      {"content", "content"}, {"thinking", "reasoning_content"},
        {"tool_name", "name"}, {"name", "name"},       {"tool_call_id", "tool_call_id"}};
    if (!json_is_object(in)) return bad_message(i, "", "must be an object", e);
    if (json_array_size(msgl__field(in, "images")) > 0) {
        return bad_message(i, ".images", "must be empty: this model reads text only", e);
    }
    json_t *out = json_object();
    if (json_array_append_new(messages, out) != 0) return msgl__api_oom(e);
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        json_t *v = msgl__field(in, names[k][0]);
        if (v == NULL) continue;
        if (!json_is_string(v)) {
            char field[24];
            (void)snprintf(field, sizeof field, ".%s", names[k][0]);
            return bad_message(i, field, "must be a string", e);
        }
        if (json_object_set(out, names[k][1], v) != 0) return msgl__api_oom(e);
    }
    return put_calls(msgl__field(in, "tool_calls"), i, out, e);
}

static int put_messages(const json_t *in, json_t *chat, msgl_api_error *e)
{
    json_t *out = json_array();
    if (json_object_set_new(chat, "messages", out) != 0) return msgl__api_oom(e);
    int rc = 0;
    for (size_t i = 0; i < json_array_size(in) && rc == 0; i++) {
        rc = put_message(json_array_get(in, i), i, out, e);
    }
    // A last message of the assistant is the beginning of the answer, which goes on there.
    if (rc == 0 && msgl__final_message_open(out) &&
        json_object_set_new(chat, "continue_final_message", json_true()) != 0) {
        rc = msgl__api_oom(e);
    }
    return rc;
}

static int read_chat(const json_t *o, json_t *chat, const msgl_api_config *cfg,
                     msgl_gen_request *out, msgl_api_error *e)
{
    json_t *tools = msgl__field(o, "tools");
    int rc = msgl__ollama_convert(o, chat, cfg, out, e);
    if (rc == 0) rc = put_messages(msgl__field(o, "messages"), chat, e);
    if (rc == 0 && tools != NULL && json_object_set(chat, "tools", tools) != 0) {
        rc = msgl__api_oom(e);
    }
    if (rc == 0 && json_array_size(json_object_get(chat, "messages")) == 0) {
        return msgl__ollama_check(o, chat, cfg, out, e);
    }
    if (rc == 0 && (rc = msgl__chat_parse(chat, cfg, out, e)) != 0) msgl__ollama_rename(o, e);
    return rc == 0 ? msgl__ollama_finish(o, out, e) : rc;
}

static int parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                 msgl_api_error *e)
{
    int rc = msgl__check_fields(o, &fields, cfg, cfg->unknown_fields, &out->unknown, e);
    const json_t *messages = msgl__field(o, "messages");
    if (rc != 0) return rc;
    if (messages != NULL && !json_is_array(messages)) {
        return msgl__field_bad(e, "messages", "must be an array");
    }
    json_t *chat = json_object();
    if (chat == NULL) return msgl__api_oom(e);
    rc = read_chat(o, chat, cfg, out, e);
    return msgl__request_keep(out, "chat", chat, rc, e);
}

static const msgl_example examples[] = {
    {"An answer", MSGL_HTTP_POST,
     .body = "{\"stream\": false, \"options\": {\"num_predict\": 40}, "
             "\"messages\": [{\"role\": \"user\", \"content\": \"What is 27 + 58?\"}]}",
     .has =
         "model created_at message done done_reason total_duration prompt_eval_count eval_count"},
    {"A stream", MSGL_HTTP_POST,
     .body = "{\"options\": {\"num_predict\": 40}, "
             "\"messages\": [{\"role\": \"user\", \"content\": \"What is 27 + 58?\"}]}",
     .type = "application/x-ndjson", .has = "model created_at message done",
     .end = "\"done\":true"},
    {0},
};

const msgl_endpoint msgl__endpoint_ollama_chat = {
    .path = "/api/chat",
    .help = "Ollama's chat ([ollama.md](ollama.md)). Errors have Ollama's form.",
    .examples = examples,
    .method = MSGL_HTTP_POST,
    .stream_type = "application/x-ndjson",
    .put_error = msgl__ollama_put_error,
    .parse = parse,
    .objects = objects,
    .prompt = MSGL_PROMPT_CHAT,
    .prompt_field = "messages",
    .put_job = msgl__ollama_chat_put_job,
    .id_prefix = "chat",
    .logprobs = &msgl__logprobs_list,
    .put_begin = msgl__ollama_chat_put_begin,
    .put_choice = msgl__ollama_chat_put_choice,
    .put_end = msgl__ollama_put_end,
    .put_chunk = msgl__ollama_chat_put_chunk,
    .put_stream_end = msgl__ollama_put_stream_end,
    .put_stream_error = msgl__ollama_put_stream_error,
};
