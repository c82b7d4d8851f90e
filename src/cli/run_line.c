// SPDX-License-Identifier: Apache-2.0
#include "cli/run_line.h"

#include <string.h>

#include "cli/common.h"
#include "core/attributes.h"
#include "core/err.h"
#include "core/mem.h"

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
    json_decref(r->input);
    json_decref(r->logprobs);
    msgl__free(r->chat);
    msgl__free(r->error);
    msgl__ids_free(&r->ids);
    msgl__ids_free(&r->tokens);
    msgl__strbuf_free(&r->answer);
    msgl__free(r);
}

static int read_number(const json_t *line, const char *name, double min, double max, double *out,
                       msgl_err *err)
{
    const json_t *v = json_object_get(line, name);
    if (v == NULL || json_is_null(v)) return 0;
    if (!json_is_number(v) || !(json_number_value(v) >= min && json_number_value(v) <= max)) {
        return msgl__err_set(err, MSGL_EINVAL, "\"%s\" must be a number from %g to %g", name, min,
                             max);
    }
    *out = json_number_value(v);
    return 0;
}

static int read_integer(const json_t *line, const char *name, json_int_t min, json_int_t max,
                        int *out, msgl_err *err)
{
    const json_t *v = json_object_get(line, name);
    if (v == NULL || json_is_null(v)) return 0;
    if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max) {
        return msgl__err_set(err, MSGL_EINVAL, "\"%s\" must be a whole number from %lld to %lld",
                             name, (long long)min, (long long)max);
    }
    *out = (int)json_integer_value(v);
    return 0;
}

static int read_stops(msgl_run_line *r, msgl_err *err)
{
    const json_t *stop = json_object_get(r->input, "stop");
    if (stop != NULL && !json_is_null(stop)) {
        const size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
        for (size_t i = 0; i < n; i++) {
            const json_t *s = json_is_array(stop) ? json_array_get(stop, i) : stop;
            if (!json_is_string(s) || i >= MSGL_MAX_STOPS) {
                return msgl__err_set(err, MSGL_EINVAL,
                                     "\"stop\" must be a string or an array of at most %d strings",
                                     MSGL_MAX_STOPS);
            }
            r->stop[i] = json_string_value(s);
        }
        r->params.stop = r->stop;
        r->params.num_stop = (int)n;
    }
    const json_t *ids = json_object_get(r->input, "stop_token_ids");
    if (ids == NULL || json_is_null(ids)) return 0;
    if (!json_is_array(ids) || json_array_size(ids) > MSGL_COUNT(r->stop_ids)) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "\"stop_token_ids\" must be an array of at most %zu ids",
                             MSGL_COUNT(r->stop_ids));
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *v = json_array_get(ids, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX) {
            return msgl__err_set(err, MSGL_EINVAL, "\"stop_token_ids\" entry %zu is not a token id",
                                 i);
        }
        r->stop_ids[i] = (int32_t)json_integer_value(v);
    }
    r->params.stop_token_ids = r->stop_ids;
    r->params.num_stop_token_ids = (int)json_array_size(ids);
    return 0;
}

static int read_params(msgl_run_line *r, msgl_err *err)
{
    msgl_params *p = &r->params;
    double temperature = (double)p->temperature, top_p = (double)p->top_p, min_p = (double)p->min_p;
    int rc = read_number(r->input, "temperature", 0, 1e6, &temperature, err);
    if (rc == 0) rc = read_number(r->input, "top_p", 1e-9, 1, &top_p, err);
    if (rc == 0) rc = read_number(r->input, "min_p", 0, 1, &min_p, err);
    if (rc == 0) rc = read_integer(r->input, "top_k", 0, INT32_MAX, &p->top_k, err);
    if (rc == 0) rc = read_integer(r->input, "max_tokens", 1, INT32_MAX, &p->max_tokens, err);
    if (rc == 0) rc = read_integer(r->input, "logprobs", 0, 20, &p->logprobs, err);
    if (rc != 0) return rc;
    p->temperature = (float)temperature;
    p->top_p = (float)top_p;
    p->min_p = (float)min_p;
    const json_t *seed = json_object_get(r->input, "seed");
    if (seed != NULL && !json_is_null(seed)) {
        if (!json_is_integer(seed)) {
            return msgl__err_set(err, MSGL_EINVAL, "\"seed\" must be a whole number");
        }
        p->seed = (uint64_t)json_integer_value(seed);
        p->has_seed = 1;
    }
    const json_t *ignore = json_object_get(r->input, "ignore_eos");
    if (ignore != NULL) {
        if (!json_is_boolean(ignore)) {
            return msgl__err_set(err, MSGL_EINVAL, "\"ignore_eos\" must be true or false");
        }
        p->ignore_eos = json_is_true(ignore);
    }
    return read_stops(r, err);
}

static int read_prompt(msgl_run_line *r, msgl_err *err)
{
    const json_t *prompt = json_object_get(r->input, "prompt");
    const json_t *messages = json_object_get(r->input, "messages");
    if ((prompt == NULL) == (messages == NULL)) {
        return msgl__err_set(err, MSGL_EINVAL, "give either \"prompt\" or \"messages\"");
    }
    if (messages != NULL) {
        json_t *vars = json_object();
        json_object_set(vars, "messages", json_object_get(r->input, "messages"));
        if (json_object_get(r->input, "tools") != NULL) {
            json_object_set(vars, "tools", json_object_get(r->input, "tools"));
        }
        char *text = json_dumps(vars, JSON_COMPACT);
        json_decref(vars);
        if (text == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
        r->chat = text;
        return 0;
    }
    if (json_is_string(prompt)) {
        r->text = json_string_value(prompt);
        return 0;
    }
    if (!json_is_array(prompt)) {
        return msgl__err_set(err, MSGL_EINVAL, "\"prompt\" must be text or an array of token ids");
    }
    for (size_t i = 0; i < json_array_size(prompt); i++) {
        const json_t *v = json_array_get(prompt, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX) {
            return msgl__err_set(err, MSGL_EINVAL, "\"prompt\" entry %zu is not a token id", i);
        }
        if (msgl__ids_push(&r->ids, (int32_t)json_integer_value(v)) != 0) {
            return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
        }
    }
    return 0;
}

msgl_run_line *msgl__run_line_parse(const char *json, size_t len, int64_t number,
                                    const msgl_params *defaults)
{
    msgl_run_line *r = line_new(defaults);
    if (r == NULL) return NULL;
    json_error_t where;
    msgl_err err;
    r->input = json_loadb(json, len, JSON_REJECT_DUPLICATES, &where);
    int rc = 0;
    if (!json_is_object(r->input)) {
        rc = msgl__err_set(&err, MSGL_EFORMAT, "not a JSON object: %s", where.text);
    }
    if (rc == 0) rc = read_prompt(r, &err);
    if (rc == 0) rc = read_params(r, &err);
    if (rc != 0) {
        msgl__err_prefix(&err, rc, "line %lld", (long long)number);
        r->error = msgl__strdup(err.text);
    }
    return r;
}

msgl_run_line *msgl__run_line_prompt(const char *prompt, bool chat, const char *system,
                                     const msgl_params *params)
{
    msgl_run_line *r = line_new(params);
    if (r == NULL || !chat) {
        if (r != NULL) r->text = prompt;
        return r;
    }
    json_t *messages = json_array(), *vars = json_object();
    if (system != NULL) {
        json_array_append_new(messages,
                              json_pack("{s:s,s:s}", "role", "system", "content", system));
    }
    json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", prompt));
    json_object_set_new(vars, "messages", messages);
    r->chat = json_dumps(vars, JSON_COMPACT);
    json_decref(vars);
    return r;
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
    if (msgl__run_line_submit_to(r, l, fn, r, &err) != 0) r->error = msgl__strdup(err.text);
}

static void add_logprobs(msgl_run_line *r, const msgl_piece *p)
{
    if (r->logprobs == NULL) r->logprobs = json_array();
    for (int i = 0; i < p->num_logprobs; i++) {
        const msgl_logprob *lp = &p->logprobs[i];
        json_t *top = json_array();
        for (int k = 0; k < lp->num_top; k++) {
            json_array_append_new(
                top, json_pack("[i,f]", lp->top_tokens[k], (double)lp->top_logprobs[k]));
        }
        json_array_append_new(r->logprobs, json_pack("{s:i,s:f,s:o}", "token", lp->token, "logprob",
                                                     (double)lp->logprob, "top", top));
    }
}

void msgl__run_line_piece(msgl_run_line *r, const msgl_piece *p)
{
    bool ok = msgl__strbuf_add(&r->answer, p->text, p->text_len) == 0;
    if (p->token >= 0) ok = ok && msgl__ids_push(&r->tokens, p->token) == 0;
    if (p->num_logprobs > 0) add_logprobs(r, p);
    r->prompt_tokens = p->prompt_tokens;
    r->cached_tokens = p->cached_tokens;
    r->finish = p->finish;
    r->done = p->finish != MSGL_NOT_FINISHED;
    if ((p->error != NULL || !ok) && r->error == NULL) {
        r->error = msgl__strdup(p->error != NULL ? p->error : "out of memory for the answer");
    }
}

void msgl__run_line_write(const msgl_run_line *r, FILE *out)
{
    json_t *o = json_object();
    if (r->error != NULL) {
        json_object_set_new(o, "error", json_string(r->error));
    } else {
        json_t *ids = json_array();
        for (size_t i = 0; i < r->tokens.len; i++) {
            json_array_append_new(ids, json_integer(r->tokens.data[i]));
        }
        json_object_set_new(o, "text", json_stringn(msgl__strbuf_str(&r->answer), r->answer.len));
        json_object_set_new(o, "token_ids", ids);
        json_object_set_new(o, "finish_reason", json_string(msgl__cli_finish_name(r->finish)));
        json_object_set_new(o, "prompt_tokens", json_integer(r->prompt_tokens));
        json_object_set_new(o, "cached_tokens", json_integer(r->cached_tokens));
        if (r->logprobs != NULL) json_object_set(o, "logprobs", r->logprobs);
    }
    json_dumpf(o, out, JSON_COMPACT | JSON_REAL_PRECISION(9));
    fputc('\n', out);
    json_decref(o);
}
