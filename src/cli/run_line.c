// SPDX-License-Identifier: Apache-2.0
#include "cli/run_line.h"

#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "cli/common.h"
#include "core/attributes.h"
#include "core/err.h"
#include "core/mem.h"
#include "llm/llm.h"
#include "api/fields.h"
#include "api/openai/endpoints.h"
#include "utils/json.h"
#include "utils/json_write.h"
#include "utils/utf8.h"

enum { BAD_REQUEST = 400 };

// Gives o if all of it could be made; else frees it and gives NULL.
static json_t *whole(json_t *o, bool bad)
{
    if (!bad) return o;
    json_decref(o);
    return NULL;
}

void msgl__run_common_init(msgl_run_common *c, const msgl_params *params, const char *model_name,
                           const char *model_path, int vocab_size)
{
    *c = (msgl_run_common){.params = *params,
                           .api = {.model_name = model_name,
                                   .model_path = model_path,
                                   .defaults = msgl__sampling_params_default(),
                                   .vocab_size = vocab_size,
                                   .unknown_fields = MSGL_UNKNOWN_REFUSE}};
    msgl__params_to_sampling(params, &c->api.defaults);
}

static msgl_run_line *line_new(const msgl_params *params)
{
    msgl_run_line *r = msgl__calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    r->params = *params;
    msgl__strbuf_init(&r->answer, (size_t)1 << 30);
    return r;
}

void msgl__run_line_free(msgl_run_line *r)
{
    if (r == NULL) return;
    msgl__gen_request_free(&r->request);
    json_decref(r->custom_id);
    json_decref(r->logprobs);
    msgl__free(r->chat);
    msgl__free(r->bad_words);
    msgl__free(r->breakers);
    msgl__ids_free(&r->ids);
    msgl__ids_free(&r->tokens);
    msgl__strbuf_free(&r->answer);
    msgl__free(r);
}

static int refuse(msgl_run_line *r, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// Notes what is wrong with a line, unless something was wrong before. Always MSGL_EINVAL.
static int refuse(msgl_run_line *r, int status, const char *fmt, ...)
{
    if (r->error_status != 0) return MSGL_EINVAL;
    r->error_status = status;
    int n = 0;
    if (r->number > 0) {
        n = snprintf(r->error, sizeof r->error, "line %lld: ", (long long)r->number);
    }
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->error + n, sizeof r->error - (size_t)n, fmt, args);
    va_end(args);
    // A name that was cut may end inside a character, which JSON cannot hold.
    const size_t len = strlen(r->error);
    for (size_t at; (at = msgl__utf8_valid(r->error, len)) < len;) r->error[at] = '?';
    return MSGL_EINVAL;
}

// ---- parsing ----

// Puts this request's values in the place of the command line's.
static void take_params(msgl_run_line *r)
{
    const msgl_gen_request *q = &r->request;
    const msgl_sampling_params *s = &q->sampling;
    msgl_params *p = &r->params;
    msgl__params_from_sampling(s, p);
    p->lora_path = q->adapter_path;
    if (q->extra != NULL) {
        p->logit_bias = q->extra->bias;
        p->num_logit_bias = q->extra->num_bias;
        p->grammar = q->extra->grammar;
        p->grammar_kind = q->extra->grammar_kind;
        p->allowed_token_ids = q->extra->allowed;
        p->num_allowed_token_ids = q->extra->num_allowed;
    }
    if (json_is_integer(json_object_get(q->root, "seed"))) {
        p->seed = s->seed;
        p->has_seed = 1;
    }
    const bool given = json_is_integer(json_object_get(q->root, "max_tokens")) ||
                       json_is_integer(json_object_get(q->root, "max_completion_tokens"));
    if (given || (r->batch && p->max_tokens == 0 && q->max_tokens > 0)) {
        p->max_tokens = q->max_tokens;
    }
    if (s->logprobs >= 0) p->logprobs = s->logprobs;
    if (q->num_stops > 0) {
        p->stop = q->stops;
        p->num_stop = q->num_stops;
    }
    if (s->num_stop_ids > 0) {
        p->stop_token_ids = s->stop_ids;
        p->num_stop_token_ids = s->num_stop_ids;
    }
}

// Copies the pointers to an array's strings into new memory, which is not NULL for an empty one
// either.
static int take_texts(msgl_run_line *r, const json_t *array, const char ***out)
{
    const size_t n = json_array_size(array);
    *out = msgl__malloc((n + 1) * sizeof **out);
    if (*out == NULL) return refuse(r, 500, "out of memory");
    for (size_t i = 0; i < n; i++) (*out)[i] = json_string_value(json_array_get(array, i));
    return 0;
}

static int take_lists(msgl_run_line *r)
{
    const msgl_gen_request *q = &r->request;
    int rc = 0;
    if (q->bad_words != NULL) {
        rc = take_texts(r, q->bad_words, &r->bad_words);
        r->params.bad_words = r->bad_words;
        r->params.num_bad_words = (int)json_array_size(q->bad_words);
    }
    if (rc == 0 && q->dry_breakers != NULL) {
        rc = take_texts(r, q->dry_breakers, &r->breakers);
        r->params.dry_sequence_breakers = r->breakers;
        r->params.num_dry_sequence_breakers = (int)json_array_size(q->dry_breakers);
    }
    return rc;
}

// The chat template's input where a text is a user message; NULL: it is not UTF-8, or memory is
// out.
static char *chat_of(const msgl_run_common *common, const char *text)
{
    json_t *messages = json_array();
    bool bad = false;
    if (common->system != NULL) {
        json_t *first = json_pack("{s:s,s:s}", "role", "system", "content", common->system);
        bad |= json_array_append_new(messages, first) != 0;
    }
    json_t *last = json_pack("{s:s,s:s}", "role", "user", "content", text);
    bad |= json_array_append_new(messages, last) != 0;
    json_t *vars = json_pack("{s:o}", "messages", whole(messages, bad));
    char *out = msgl__json_text(vars, JSON_COMPACT);
    json_decref(vars);
    return out;
}

static int take_prompt(msgl_run_line *r)
{
    msgl_gen_request *q = &r->request;
    if (q->ep == &msgl__endpoint_chat) {
        r->chat = msgl__json_text(q->chat.vars, JSON_COMPACT);
        return r->chat != NULL ? 0 : refuse(r, 500, "out of memory");
    }
    if (q->num_prompts != 1) {
        return refuse(r, BAD_REQUEST, "'prompt' has %d prompts; each needs a line of its own",
                      q->num_prompts);
    }
    if (q->prompts[0].text != NULL && r->common->chat && !r->batch) {
        r->chat = chat_of(r->common, q->prompts[0].text);
        return r->chat != NULL ? 0 : refuse(r, 500, "out of memory");
    }
    if (q->prompts[0].text != NULL) {
        r->text = q->prompts[0].text;
        return 0;
    }
    for (int32_t i = 0; i < q->prompts[0].num_ids; i++) {
        if (msgl__ids_push(&r->ids, q->prompts[0].ids[i]) != 0) {
            return refuse(r, 500, "out of memory");
        }
    }
    return 0;
}

// Refuses what the server can do and a line cannot.
static int check_request(msgl_run_line *r)
{
    const msgl_gen_request *q = &r->request;
    if (q->n != 1) {
        return refuse(r, BAD_REQUEST, "'n' is %d; allowed: 1 (repeat the line)", q->n);
    }
    if (q->stream) return refuse(r, BAD_REQUEST, "'stream' is true; allowed: false");
    if (q->echo) return refuse(r, BAD_REQUEST, "'echo' is true; allowed: false");
    if (!q->skip_special) {
        return refuse(r, BAD_REQUEST, "'skip_special_tokens' is false; allowed: true");
    }
    if (q->chat.thinking_budget >= 0) {
        return refuse(r, BAD_REQUEST,
                      "'thinking_token_budget' is not supported in a line; the server has it");
    }
    if (r->batch && q->sampling.logprobs >= 0) {
        return refuse(r, BAD_REQUEST,
                      "'logprobs' is not supported in the batch form; a plain line "
                      "has it");
    }
    return 0;
}

// Takes "logprobs" out of a chat's body: in a plain line it is a number for both kinds of prompt,
// and over HTTP it is a boolean for chats.
static int chat_logprobs(msgl_run_line *r, json_t *body)
{
    const json_t *v = json_object_get(body, "logprobs");
    if (r->batch || !json_is_integer(v)) return 0;
    if (json_integer_value(v) < 0 || json_integer_value(v) > MSGL_MAX_LOGPROBS) {
        return refuse(r, BAD_REQUEST, "'logprobs' is %lld; allowed: 0 to %d",
                      (long long)json_integer_value(v), MSGL_MAX_LOGPROBS);
    }
    r->params.logprobs = (int)json_integer_value(v);
    json_object_del(body, "logprobs");
    return 0;
}

static int read_body(msgl_run_line *r, const msgl_endpoint *ep, json_t *body)
{
    int rc = ep == &msgl__endpoint_chat ? chat_logprobs(r, body) : 0;
    if (rc != 0) return rc;
    char *text = msgl__json_text(body, JSON_COMPACT);
    if (text == NULL) return refuse(r, 500, "out of memory");
    msgl_api_error e;
    rc = msgl__api_parse(ep, text, strlen(text), &r->common->api, NULL, &r->request, &e);
    msgl__free(text);
    if (rc != 0) {
        r->error_code = e.code;
        memcpy(r->error_param, e.param, sizeof r->error_param);
        const bool unknown = e.code != NULL && strcmp(e.code, "unknown_parameter") == 0;
        return refuse(r, e.status, "%s%s", e.message,
                      unknown ? " docs/batch.md lists the fields." : "");
    }
    rc = check_request(r);
    if (rc == 0) rc = take_prompt(r);
    if (rc == 0) rc = take_lists(r);
    if (rc == 0) take_params(r);
    return rc;
}

static int read_batch(msgl_run_line *r, json_t *line)
{
    static const char *const fields[] = {"method", "url", "body"};
    const char *name;
    json_t *value;
    json_object_foreach(line, name, value)
    {
        bool known = false;
        for (size_t i = 0; i < MSGL_COUNT(fields); i++) known |= strcmp(name, fields[i]) == 0;
        if (known) continue;
        return refuse(r, BAD_REQUEST,
                      "unknown field \"%.100s\" beside \"body\"; allowed: custom_id, method, url, "
                      "body",
                      name);
    }
    const json_t *method = json_object_get(line, "method");
    if (method != NULL &&
        (!json_is_string(method) || strcmp(json_string_value(method), "POST") != 0)) {
        return refuse(r, BAD_REQUEST, "\"method\" must be \"POST\"");
    }
    json_t *body = json_object_get(line, "body");
    if (!json_is_object(body)) return refuse(r, BAD_REQUEST, "\"body\" must be an object");
    const char *url = json_string_value(json_object_get(line, "url"));
    if (url != NULL && strcmp(url, "/v1/chat/completions") == 0) {
        return read_body(r, &msgl__endpoint_chat, body);
    }
    if (url != NULL && strcmp(url, "/v1/completions") == 0) {
        return read_body(r, &msgl__endpoint_completion, body);
    }
    return refuse(r, BAD_REQUEST,
                  "\"url\" must be \"/v1/chat/completions\" or \"/v1/completions\"");
}

bool msgl__run_line_is_batch(const json_t *line)
{
    return json_object_get(line, "body") != NULL || json_object_get(line, "url") != NULL ||
           json_object_get(line, "method") != NULL;
}

static int read_line(msgl_run_line *r, json_t *line)
{
    json_t *id = json_object_get(line, "custom_id");
    r->batch = msgl__run_line_is_batch(line);
    if (id != NULL && !json_is_string(id)) {
        return refuse(r, BAD_REQUEST, "\"custom_id\" must be a string");
    }
    r->custom_id = json_incref(id);
    json_object_del(line, "custom_id"); // what is left of a plain line is a request's body
    if (r->batch) return read_batch(r, line);
    const json_t *prompt = json_object_get(line, "prompt");
    const json_t *messages = json_object_get(line, "messages");
    if ((prompt == NULL) == (messages == NULL)) {
        return refuse(r, BAD_REQUEST,
                      "give either \"prompt\" or \"messages\", or OpenAI's batch "
                      "form with \"url\" and \"body\"");
    }
    return read_body(r, messages != NULL ? &msgl__endpoint_chat : &msgl__endpoint_completion, line);
}

json_t *msgl__run_line_json(const char *json, size_t len, json_error_t *where)
{
    return msgl__json_loadb(json, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, where, NULL);
}

msgl_run_line *msgl__run_line_parse(const char *json, size_t len, int64_t number, bool batch,
                                    const msgl_run_common *common)
{
    msgl_run_line *r = line_new(&common->params);
    if (r == NULL) return NULL;
    json_error_t where;
    r->common = common;
    r->number = number;
    r->bytes = len;
    r->batch = batch;
    json_t *line = msgl__run_line_json(json, len, &where);
    if (line == NULL) {
        (void)refuse(r, BAD_REQUEST, "not a JSON object: %s", where.text);
    } else if (!json_is_object(line)) {
        (void)refuse(r, BAD_REQUEST, "not a JSON object, but %s", msgl__json_type_name(line));
    } else {
        (void)read_line(r, line);
    }
    json_decref(line);
    return r;
}

msgl_run_line *msgl__run_line_prompt(const char *prompt, const msgl_run_common *common)
{
    msgl_run_line *r = line_new(&common->params);
    if (r == NULL) return NULL;
    r->common = common;
    if (!common->chat) {
        r->text = prompt;
        return r;
    }
    r->chat = chat_of(common, prompt);
    if (r->chat != NULL) return r;
    msgl__run_line_free(r);
    return NULL;
}

int msgl__run_line_submit_to(msgl_run_line *r, msgl_llm *l, msgl_piece_fn fn, void *ctx,
                             msgl_err *err)
{
    if (r->text != NULL) {
        return msgl_submit_text(l, r->text, strlen(r->text), &r->params, fn, ctx, NULL, err);
    }
    if (r->ids.len > 0) {
        return msgl_submit_ids(l, r->ids.data, r->ids.len, &r->params, fn, ctx, NULL, err);
    }
    if (r->chat == NULL) return msgl__err_set(err, MSGL_EINVAL, "the prompt is empty or not UTF-8");
    return msgl_submit_chat(l, r->chat, &r->params, fn, ctx, NULL, err);
}

void msgl__run_line_submit(msgl_run_line *r, msgl_llm *l, msgl_piece_fn fn)
{
    msgl_err err;
    const int rc = msgl__run_line_submit_to(r, l, fn, r, &err);
    if (rc == 0) return;
    (void)refuse(r, rc == MSGL_EINVAL || rc == MSGL_ELIMIT ? BAD_REQUEST : 500, "%s", err.text);
}

// ---- answers ----

static bool add_logprobs(msgl_run_line *r, const msgl_piece *p)
{
    bool bad = false;
    if (r->logprobs == NULL) r->logprobs = json_array();
    for (int i = 0; i < p->num_logprobs; i++) {
        const msgl_logprob *lp = &p->logprobs[i];
        json_t *top = json_array();
        for (int k = 0; k < lp->num_top; k++) {
            json_t *one = json_pack("[i,f]", lp->top_tokens[k], (double)lp->top_logprobs[k]);
            bad |= json_array_append_new(top, one) != 0;
        }
        json_t *one = json_pack("{s:i,s:f,s:o}", "token", lp->token, "logprob", (double)lp->logprob,
                                "top", top);
        bad |= json_array_append_new(r->logprobs, one) != 0;
    }
    return !bad;
}

void msgl__run_line_piece(msgl_run_line *r, const msgl_piece *p)
{
    bool ok = msgl__strbuf_add(&r->answer, p->text, p->text_len) == 0;
    if (p->token >= 0) ok = ok && msgl__ids_push(&r->tokens, p->token) == 0;
    if (p->num_logprobs > 0) ok = add_logprobs(r, p) && ok;
    r->prompt_tokens = p->prompt_tokens;
    r->cached_tokens = p->cached_tokens;
    r->finish = p->finish;
    r->done = p->finish != MSGL_NOT_FINISHED;
    if (p->error != NULL) {
        const bool theirs = p->status == MSGL_EINVAL || p->status == MSGL_ELIMIT;
        (void)refuse(r, theirs ? BAD_REQUEST : 500, "%s", p->error);
    } else if (!ok) {
        (void)refuse(r, 500, "out of memory for the answer");
    }
}

static json_t *usage_of(const msgl_run_line *r)
{
    const int n = (int)r->tokens.len;
    return json_pack("{s:i,s:i,s:i,s:{s:i}}", "prompt_tokens", r->prompt_tokens,
                     "completion_tokens", n, "total_tokens", r->prompt_tokens + n,
                     "prompt_tokens_details", "cached_tokens", r->cached_tokens);
}

// The body of OpenAI's answer.
static json_t *batch_body(const msgl_run_line *r)
{
    const bool chat = r->request.ep == &msgl__endpoint_chat;
    json_t *text = json_stringn(msgl__strbuf_str(&r->answer), r->answer.len);
    json_t *choice = json_pack("{s:i,s:s,s:n}", "index", 0, "finish_reason",
                               msgl__cli_finish_name(r->finish), "logprobs");
    if (chat) {
        text = json_pack("{s:s,s:o,s:n}", "role", "assistant", "content", text, "refusal");
    }
    choice = whole(choice, json_object_set_new(choice, chat ? "message" : "text", text) != 0);
    char id[48];
    snprintf(id, sizeof id, "%s-%lld", chat ? "chatcmpl" : "cmpl", (long long)r->number);
    return json_pack("{s:s,s:s,s:I,s:s,s:[o],s:o}", "id", id, "object",
                     chat ? "chat.completion" : "text_completion", "created",
                     (json_int_t)time(NULL), "model", r->common->api.model_name, "choices", choice,
                     "usage", usage_of(r));
}

static json_t *batch_error(const msgl_run_line *r)
{
    return json_pack("{s:{s:s,s:s,s:s?,s:s?}}", "error", "message", r->error, "type",
                     r->error_status < 500 ? "invalid_request_error" : "server_error", "param",
                     r->error_param[0] == '\0' ? NULL : r->error_param, "code", r->error_code);
}

// The error beside "response", for whoever looks at nothing else.
static json_t *line_error(const msgl_run_line *r)
{
    const char *code = r->error_code != NULL   ? r->error_code
                       : r->error_status < 500 ? "invalid_request"
                                               : "server_error";
    return json_pack("{s:s,s:s}", "code", code, "message", r->error);
}

static json_t *batch_answer(const msgl_run_line *r)
{
    const bool failed = r->error_status != 0;
    char id[48];
    snprintf(id, sizeof id, "batch_req_%lld", (long long)r->number);
    json_t *o = json_pack("{s:s,s:{s:i,s:s,s:o},s:o}", "id", id, "response", "status_code",
                          failed ? r->error_status : 200, "request_id", id, "body",
                          failed ? batch_error(r) : batch_body(r), "error",
                          failed ? line_error(r) : json_null());
    json_t *id_given = r->custom_id != NULL ? json_incref(r->custom_id) : json_null();
    return whole(o, json_object_set_new(o, "custom_id", id_given) != 0);
}

static json_t *plain_answer(const msgl_run_line *r)
{
    json_t *o = json_object();
    bool bad = false;
    if (r->error_status != 0) {
        bad |= json_object_set_new(o, "error", json_string(r->error)) != 0;
    } else {
        json_t *ids = json_array();
        for (size_t i = 0; i < r->tokens.len; i++) {
            bad |= json_array_append_new(ids, json_integer(r->tokens.data[i])) != 0;
        }
        bad |= json_object_set_new(o, "text",
                                   json_stringn(msgl__strbuf_str(&r->answer), r->answer.len)) != 0;
        bad |= json_object_set_new(o, "token_ids", ids) != 0;
        bad |= json_object_set_new(o, "finish_reason",
                                   json_string(msgl__cli_finish_name(r->finish))) != 0;
        bad |= json_object_set_new(o, "prompt_tokens", json_integer(r->prompt_tokens)) != 0;
        bad |= json_object_set_new(o, "cached_tokens", json_integer(r->cached_tokens)) != 0;
        if (r->logprobs != NULL) bad |= json_object_set(o, "logprobs", r->logprobs) != 0;
    }
    if (r->number > 0) bad |= json_object_set_new(o, "line", json_integer(r->number)) != 0;
    if (r->custom_id != NULL) bad |= json_object_set(o, "custom_id", r->custom_id) != 0;
    return whole(o, bad);
}

int msgl__run_line_write(const msgl_run_line *r, FILE *out)
{
    json_t *o = r->batch ? batch_answer(r) : plain_answer(r);
    char *text = msgl__json_text(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(o);
    if (text == NULL) return MSGL_ENOMEM;
    const bool bad = fprintf(out, "%s\n", text) < 0;
    msgl__free(text);
    return bad ? MSGL_EIO : 0;
}
