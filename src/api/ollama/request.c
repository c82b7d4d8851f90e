// SPDX-License-Identifier: Apache-2.0
#include "api/ollama/request.h"

#include <string.h>

// Options of how Ollama runs a model, on which nothing here depends.
#define UNUSED(name) MSGL_ROW_UNUSED(name, "of how Ollama runs a model")
static const msgl_field_row option_rows[] = {
    {"num_predict", MSGL_FIELD_INT, .min = -2, .max = INT32_MAX,
     .preset = "what the context leaves", .help = "tokens of the answer; 0 and less: no limit"},
    UNUSED("num_ctx"),
    UNUSED("num_batch"),
    UNUSED("num_gpu"),
    UNUSED("main_gpu"),
    UNUSED("num_thread"),
    UNUSED("num_keep"),
    UNUSED("numa"),
    UNUSED("low_vram"),
    UNUSED("f16_kv"),
    UNUSED("logits_all"),
    UNUSED("vocab_only"),
    UNUSED("use_mmap"),
    UNUSED("use_mlock"),
    UNUSED("embedding_only"),
    UNUSED("penalize_newline"),
    {"repeat_last_n", MSGL_FIELD_ANY,
     .help = "changes nothing: `repeat_penalty` is of the whole prompt and answer"},
    {0},
};
static const msgl_refused_field option_refused[] = {{"tfs_z", MSGL_NEUTRAL_ONE},
                                                    {NULL, MSGL_NEUTRAL_NULL}};
const msgl_fields msgl__ollama_options = {.member = "options",
                                          .read = option_rows,
                                          .refused = option_refused,
                                          .also = &msgl__sampling_fields};

static const msgl_field_row common_rows[] = {
    MSGL_ROW_MODEL,
    {"stream", MSGL_FIELD_BOOL, .preset = "true", .help = "the answer comes as lines of JSON"},
    {"options", MSGL_FIELD_OBJECT, .help = "what is asked of the answer"},
    {"format", MSGL_FIELD_ANY, .help = "`\"json\"`, or a JSON schema: the form of the answer"},
    {"think", MSGL_FIELD_ANY,
     .help = "true or false: the template's `enable_thinking` and `thinking`; a string: true, and "
             "its `reasoning_effort`"},
    {"logprobs", MSGL_FIELD_BOOL, .preset = "false",
     .help = "the answer has its tokens' log-probabilities"},
    {"top_logprobs", MSGL_FIELD_INT, .min = 0, .max = MSGL_MAX_LOGPROBS, .preset = "0",
     .help = "with `logprobs`: and those of so many that were likelier"},
    MSGL_ROW_CACHE_SALT,
    UNUSED("keep_alive"),
    UNUSED("truncate"),
    UNUSED("shift"),
    {0},
};
#undef UNUSED
const msgl_fields msgl__ollama_common = {.read = common_rows};

static int put_options(const json_t *o, json_t *chat, const msgl_api_config *cfg,
                       msgl_gen_request *out, msgl_api_error *e)
{
    const json_t *in = msgl__field(o, "options");
    int64_t most = 0;
    if (in == NULL) return 0;
    if (!json_is_object(in)) return msgl__field_bad(e, "options", "must be an object");
    int rc =
        msgl__check_fields(in, &msgl__ollama_options, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = msgl__field_int_of(in, &msgl__ollama_options, "num_predict", &most, e);
    if (rc < 0) return rc;
    int bad = 0;
    for (const msgl_field_row *row = msgl__sampling_fields.read; row->name != NULL; row++) {
        json_t *v = msgl__field(in, row->name);
        // Ollama's clients write -1 for a random seed.
        if (strcmp(row->name, "seed") == 0 && json_integer_value(v) == -1) continue;
        if (v != NULL) bad |= json_object_set(chat, row->name, v);
    }
    if (most > 0) bad |= json_object_set_new(chat, "max_tokens", json_integer(most));
    return bad == 0 ? 0 : msgl__api_oom(e);
}

static int put_format(const json_t *o, json_t *chat, msgl_api_error *e)
{
    json_t *in = msgl__field(o, "format"), *as = NULL;
    const char *word = json_string_value(in);
    if (in == NULL || (word != NULL && word[0] == '\0')) return 0;
    if (word != NULL && strcmp(word, "json") == 0) {
        as = json_pack("{s:s}", "type", "json_object");
    } else if (json_is_object(in)) {
        as = json_pack("{s:s,s:{s:s,s:O}}", "type", "json_schema", "json_schema", "name", "answer",
                       "schema", in);
    } else {
        return msgl__field_bad(e, "format", "must be \"json\" or a JSON schema, an object");
    }
    return json_object_set_new(chat, "response_format", as) == 0 ? 0 : msgl__api_oom(e);
}

// Sets the variable that says whether there are thoughts, under both names that templates have for
// it.
static int put_thinking(const json_t *o, json_t *chat, msgl_api_error *e)
{
    json_t *in = msgl__field(o, "think");
    if (in == NULL) return 0;
    if (!json_is_boolean(in) && !json_is_string(in)) {
        return msgl__field_bad(e, "think", "must be true, false or a string, such as \"high\"");
    }
    const int on = !json_is_false(in);
    json_t *vars = json_pack("{s:b,s:b}", "enable_thinking", on, "thinking", on);
    if (json_object_set_new(chat, "chat_template_kwargs", vars) != 0) return msgl__api_oom(e);
    if (!json_is_string(in) || json_object_set(chat, "reasoning_effort", in) == 0) return 0;
    return msgl__api_oom(e);
}

int msgl__ollama_convert(const json_t *o, json_t *chat, const msgl_api_config *cfg,
                         msgl_gen_request *out, msgl_api_error *e)
{
    out->stream = true; // unless "stream" is false
    int rc = put_options(o, chat, cfg, out, e);
    if (rc == 0) rc = put_format(o, chat, e);
    if (rc == 0) rc = put_thinking(o, chat, e);
    json_t *stream = msgl__field(o, "stream");
    if (rc == 0 && stream != NULL && json_object_set(chat, "stream", stream) != 0) {
        rc = msgl__api_oom(e);
    }
    return rc;
}

void msgl__ollama_rename(const json_t *o, msgl_api_error *e)
{
    const json_t *options = msgl__field(o, "options");
    if (msgl__field(o, "format") != NULL) msgl__field_rename(e, "response_format", "format");
    if (msgl__field(options, "num_predict") != NULL) {
        msgl__field_rename(e, "max_tokens", "num_predict");
    }
}

int msgl__ollama_check(const json_t *o, const json_t *chat, const msgl_api_config *cfg,
                       msgl_gen_request *out, msgl_api_error *e)
{
    const int rc = msgl__parse_sampling(chat, cfg, out, e);
    if (rc != 0) msgl__ollama_rename(o, e);
    return rc == 0 ? msgl__ollama_finish(o, out, e) : rc;
}

int msgl__ollama_finish(const json_t *o, msgl_gen_request *out, msgl_api_error *e)
{
    bool want = false;
    int64_t top = 0;
    int rc = msgl__field_bool(o, "logprobs", &want, e);
    if (rc >= 0) rc = msgl__field_int_of(o, &msgl__ollama_common, "top_logprobs", &top, e);
    if (rc < 0) return rc;
    if (want) out->sampling.logprobs = (int32_t)top;
    return out->n == 1 ? 0 : msgl__field_bad(e, "n", "must be 1 here");
}
