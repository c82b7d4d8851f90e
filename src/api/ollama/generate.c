// SPDX-License-Identifier: Apache-2.0
//
// POST /api/generate: a prompt as the user's message of a chat; with `raw` it goes to the model as
// it is, with `suffix` as what stands before the text to fill in.
#include <string.h>

#include "core/mem.h"
#include "api/ollama/answer.h"
#include "api/ollama/endpoints.h"
#include "api/ollama/request.h"

static const msgl_field_row rows[] = {
    {"prompt", MSGL_FIELD_STRING, .help = "none: the answer says that the model is there"},
    {"suffix", MSGL_FIELD_STRING,
     .help = "what follows the answer, of models that fill in ([llama-server.md]"
             "(llama-server.md#infill)); `system` is then not used"},
    {"system", MSGL_FIELD_STRING, .help = "the system's message"},
    {"raw", MSGL_FIELD_BOOL, .preset = "false", .help = "the prompt is no message: no template"},
    {"template", MSGL_FIELD_ANY, .only = "null: the model's own is used, or none with 'raw'"},
    {"context", MSGL_FIELD_ANY, .only = "null: /api/chat has a conversation in its messages"},
    {"images", MSGL_FIELD_ANY, .only = "null: this model reads text only"},
    {0},
};
static const msgl_fields fields = {.read = rows, .also = &msgl__ollama_common};
static const msgl_fields *const objects[] = {&fields, &msgl__ollama_options, NULL};

static bool is_empty(const json_t *v)
{
    return v == NULL || (json_is_string(v) && json_string_length(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0);
}

static int check_supported(const json_t *o, msgl_api_error *e)
{
    for (const msgl_field_row *row = rows; row->name != NULL; row++) {
        if (row->only == NULL || is_empty(msgl__field(o, row->name))) continue;
        return msgl__api_fail(e, 400, row->name, "unsupported_parameter",
                              "'%s' is not supported by this server; allowed: %s.", row->name,
                              row->only);
    }
    return 0;
}

static int put_messages(const char *system, const json_t *prompt, json_t *chat, msgl_api_error *e)
{
    json_t *messages = json_array();
    if (json_object_set_new(chat, "messages", messages) != 0) return msgl__api_oom(e);
    if (system[0] != '\0' &&
        json_array_append_new(messages,
                              json_pack("{s:s,s:s}", "role", "system", "content", system)) != 0) {
        return msgl__api_oom(e);
    }
    json_t *user = json_pack("{s:s,s:O}", "role", "user", "content", prompt);
    return json_array_append_new(messages, user) == 0 ? 0 : msgl__api_oom(e);
}

static int read_prompt(const json_t *o, json_t *chat, const msgl_api_config *cfg,
                       msgl_gen_request *out, msgl_api_error *e)
{
    const json_t *prompt = msgl__field(o, "prompt");
    const char *text = "", *system = "", *suffix = "";
    bool raw = false;
    int rc = msgl__ollama_convert(o, chat, cfg, out, e);
    if (rc == 0) rc = msgl__field_str(o, "prompt", &text, e);
    if (rc >= 0) rc = msgl__field_str(o, "system", &system, e);
    if (rc >= 0) rc = msgl__field_str(o, "suffix", &suffix, e);
    if (rc >= 0) rc = msgl__field_bool(o, "raw", &raw, e);
    if (rc < 0) return rc;
    if (suffix[0] != '\0') {
        rc = msgl__ollama_check(o, chat, cfg, out, e);
        return rc == 0 ? msgl__parse_fill(prompt, msgl__field(o, "suffix"), NULL, NULL, out, e)
                       : rc;
    }
    if (json_string_length(prompt) == 0) return msgl__ollama_check(o, chat, cfg, out, e);
    if (raw) {
        rc = msgl__ollama_check(o, chat, cfg, out, e);
        return rc == 0 ? msgl__parse_prompts(prompt, "prompt", cfg, out, e) : rc;
    }
    rc = put_messages(system, prompt, chat, e);
    if (rc == 0 && (rc = msgl__chat_parse(chat, cfg, out, e)) != 0) msgl__ollama_rename(o, e);
    return rc == 0 ? msgl__ollama_finish(o, out, e) : rc;
}

static int parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                 msgl_api_error *e)
{
    int rc = check_supported(o, e);
    if (rc == 0) rc = msgl__check_fields(o, &fields, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc != 0) return rc;
    json_t *chat = json_object();
    if (chat == NULL) return msgl__api_oom(e);
    rc = read_prompt(o, chat, cfg, out, e);
    return msgl__request_keep(out, "chat", chat, rc, e);
}

static const msgl_example examples[] = {
    {"An answer", MSGL_HTTP_POST,
     .body = "{\"prompt\": \"What is 27 + 58?\", \"stream\": false, "
             "\"options\": {\"num_predict\": 40}}",
     .has = "model created_at response done done_reason total_duration prompt_eval_count "
            "eval_count"},
    {"A stream", MSGL_HTTP_POST,
     .body = "{\"prompt\": \"What is 27 + 58?\", "
             "\"options\": {\"num_predict\": 40}}",
     .type = "application/x-ndjson", .has = "model created_at response done",
     .end = "\"done\":true"},
    {"Whether the model is there", MSGL_HTTP_POST, .body = "{}",
     .has = "model created_at response done done_reason"},
    {0},
};

const msgl_endpoint msgl__endpoint_ollama_generate = {
    .path = "/api/generate",
    .help = "Ollama's answer to a prompt ([ollama.md](ollama.md)). Errors have Ollama's form.",
    .examples = examples,
    .method = MSGL_HTTP_POST,
    .stream_type = "application/x-ndjson",
    .optional = true,
    .put_error = msgl__ollama_put_error,
    .parse = parse,
    .objects = objects,
    .prompt = MSGL_PROMPT_CHAT,
    .prompt_field = "prompt",
    .put_job = msgl__ollama_generate_put_job,
    .id_prefix = "gen",
    .logprobs = &msgl__logprobs_list,
    .put_begin = msgl__ollama_chat_put_begin,
    .put_choice = msgl__ollama_generate_put_choice,
    .put_end = msgl__ollama_put_end,
    .put_chunk = msgl__ollama_generate_put_chunk,
    .put_stream_end = msgl__ollama_put_stream_end,
    .put_stream_error = msgl__ollama_put_stream_error,
};
