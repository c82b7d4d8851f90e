// SPDX-License-Identifier: Apache-2.0
//
// POST /v1/completions.
#include <string.h>

#include "core/mem.h"
#include "api/openai/endpoints.h"
#include "api/fields.h"
#include "api/json.h"

static const msgl_field_row rows[] = {
    {"prompt", MSGL_FIELD_ANY, .required = true, .max_items = MSGL_API_MAX_PROMPTS,
     .help = "a string, an array of token ids, or an array of either"},
    {"best_of", MSGL_FIELD_INT, .min = 1, .max = MSGL_API_MAX_N, .preset = "`n`",
     .help = "at most `n`: all answers are shown"},
    {"echo", MSGL_FIELD_BOOL, .preset = "false",
     .help = "the prompt is shown in front of the answer; `max_tokens` may then be 0, and "
             "`logprobs` are the prompt's, too"},
    {"logprobs", MSGL_FIELD_INT, .min = 0, .max = MSGL_MAX_LOGPROBS,
     .help = "log-probabilities of the tokens, and of so many that were likelier"},
    MSGL_ROW_PROMPT_LOGPROBS,
    MSGL_ROW_RETURN_TOKEN_IDS,
    {0},
};
static const msgl_fields fields = {.read = rows, .also = &msgl__request_fields};
static const msgl_fields *const objects[] = {&fields, NULL};

static int add_text(const json_t *v, const char *name, msgl_gen_request *out, msgl_api_error *e)
{
    if (json_string_length(v) == 0) {
        return msgl__api_fail(e, 400, name, "invalid_value",
                              "'%s' is empty; it must have at least one token.", name);
    }
    out->prompts[out->num_prompts++] =
        (msgl_prompt){.text = json_string_value(v), .len = json_string_length(v)};
    return 0;
}

static int add_ids(const json_t *v, const char *name, const msgl_api_config *cfg,
                   msgl_gen_request *out, msgl_api_error *e)
{
    if (json_array_size(v) == 0) {
        return msgl__api_fail(e, 400, name, "invalid_value",
                              "'%s' is empty; it must have at least one token.", name);
    }
    msgl_prompt *p = &out->prompts[out->num_prompts++];
    return msgl__field_ids(v, name, cfg->vocab_size, &p->ids, &p->num_ids, e);
}

int msgl__parse_prompts(const json_t *prompt, const char *name, const msgl_api_config *cfg,
                        msgl_gen_request *out, msgl_api_error *e)
{
    if (prompt == NULL || json_is_null(prompt)) {
        return msgl__field_missing(e, name);
    }
    const json_t *first = json_is_array(prompt) ? json_array_get(prompt, 0) : NULL;
    const bool list = first != NULL && (json_is_string(first) || json_is_array(first));
    const size_t n = list ? json_array_size(prompt) : 1;
    if (n > MSGL_API_MAX_PROMPTS) {
        return msgl__api_fail(e, 400, name, "invalid_value",
                              "'%s' has %zu prompts; allowed: at most %d.", name, n,
                              MSGL_API_MAX_PROMPTS);
    }
    out->prompts = msgl__calloc(n, sizeof *out->prompts);
    if (out->prompts == NULL) return msgl__api_oom(e);
    if (json_is_string(prompt)) return add_text(prompt, name, out, e);
    if (json_is_array(prompt) && !list) return add_ids(prompt, name, cfg, out, e);
    int rc = list ? 0 : -1;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const json_t *v = json_array_get(prompt, i);
        if (json_typeof(v) != json_typeof(first)) {
            rc = -1;
            break;
        }
        rc = json_is_string(v) ? add_text(v, name, out, e) : add_ids(v, name, cfg, out, e);
        if (rc != 0) return rc;
    }
    if (rc == 0) return 0;
    return msgl__api_fail(e, 400, name, "invalid_type",
                          "'%s' must be a string, an array of token ids, or an array of either.",
                          name);
}

int msgl__check_choices(const msgl_gen_request *out, msgl_api_error *e)
{
    if (out->n * out->num_prompts <= MSGL_API_MAX_CHOICES) return 0;
    return msgl__api_fail(e, 400, "n", "invalid_value",
                          "'n' times the number of prompts is %d; allowed: at most %d.",
                          out->n * out->num_prompts, MSGL_API_MAX_CHOICES);
}

static int parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                 msgl_api_error *e)
{
    int64_t num;
    int rc = msgl__check_fields(o, &fields, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = msgl__field_bool(o, "echo", &out->echo, e);
    if (rc >= 0) rc = msgl__parse_sampling(o, cfg, out, e);
    if (rc < 0) return rc;
    if (out->max_tokens < 0) out->max_tokens = MSGL_USUAL_MAX_TOKENS;
    rc = msgl__field_int_of(o, &fields, "logprobs", &num, e);
    if (rc > 0) {
        out->sampling.logprobs = (int32_t)num;
        if (out->echo) out->sampling.prompt_logprobs = (int32_t)num;
    }
    if (rc >= 0) rc = msgl__parse_prompt_logprobs(o, &fields, out, e);
    if (rc >= 0) rc = msgl__field_bool(o, "return_token_ids", &out->return_ids, e);
    if (rc >= 0) rc = msgl__field_int(o, "best_of", 1, out->n, &num, e);
    if (rc >= 0) rc = msgl__parse_prompts(json_object_get(o, "prompt"), "prompt", cfg, out, e);
    return rc < 0 ? rc : msgl__check_choices(out, e);
}

// --- answers ---

static const char object[] = "text_completion";

static int put_begin(const msgl_reply *r, msgl_strbuf *out)
{
    return msgl__reply_begin(r, object, out);
}

// ,"text":... of a choice, of the answer or of a stream.
static int put_text(const msgl_reply *r, msgl_sequence *s, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, ",\"text\":");
    if (rc == 0) rc = msgl__json_put_str(out, msgl__strbuf_str(&s->text), s->text.len);
    if (rc == 0) rc = msgl__reply_logprobs(s, out);
    if (rc == 0) rc = msgl__reply_prompt_ids(r, s, out);
    return rc == 0 ? msgl__reply_finish(s->finish, out) : rc;
}

static int put_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    int rc = msgl__strbuf_addf(out, "%s{\"index\":%d", index == 0 ? "" : ",", index);
    if (rc == 0) rc = put_text(r, s, out);
    if (rc == 0) rc = msgl__reply_ids(r, s, out);
    if (rc == 0) rc = msgl__reply_prompt_logprobs(s, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static int put_chunk(const msgl_reply *r, int index, msgl_sequence *s, bool silent,
                     msgl_strbuf *out)
{
    if (s->text.len == 0 && s->logprobs.count == 0 && s->finish == NULL &&
        !(silent && msgl__reply_counts(r))) {
        return silent ? msgl__reply_silent(out) : 0;
    }
    int rc = msgl__reply_chunk_begin(r, object, index, out);
    if (rc == 0) rc = put_text(r, s, out);
    msgl__strbuf_clear(&s->text);
    return rc == 0 ? msgl__reply_chunk_end(r, s, out) : rc;
}

static int put_stream_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    return msgl__reply_stream_end(r, object, cached, completion, out);
}

static const msgl_example examples[] = {
    {"A completion", MSGL_HTTP_POST, .body = "{\"prompt\": \"Count: 1, 2,\", \"max_tokens\": 8}",
     .has = "id object created model choices usage"},
    {"A stream", MSGL_HTTP_POST,
     .body = "{\"prompt\": \"Count: 1, 2,\", \"max_tokens\": 8, \"stream\": true}",
     .type = "text/event-stream", .has = "id object created model choices", .end = "data: [DONE]"},
    {"Log-probabilities of a text", MSGL_HTTP_POST,
     .body = "{\"prompt\": \"One, two\", \"max_tokens\": 0, \"echo\": true, \"logprobs\": 1}",
     .has = "choices usage"},
    {0},
};

const msgl_endpoint msgl__endpoint_completion = {
    .path = "/v1/completions",
    .help = "OpenAI's completions: goes on where a prompt, or each of several, ends. `max_tokens` "
            "left out is 16.",
    .examples = examples,
    .method = MSGL_HTTP_POST,
    .parse = parse,
    .objects = objects,
    .prompt = MSGL_PROMPT_TEXT,
    .prompt_field = "prompt",
    .id_prefix = "cmpl",
    .logprobs = &msgl__logprobs_arrays,
    .put_begin = put_begin,
    .put_choice = put_choice,
    .put_end = msgl__reply_end,
    .put_chunk = put_chunk,
    .put_stream_end = put_stream_end,
    .put_stream_error = msgl__reply_stream_error,
};
