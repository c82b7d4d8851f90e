// SPDX-License-Identifier: Apache-2.0
#include "api/llama_server/answer.h"

#include <inttypes.h>
#include <string.h>

#include "api/json.h"

int msgl__llama_put_error(const msgl_api_error *e, msgl_strbuf *out)
{
    int rc = msgl__strbuf_addf(out, "{\"error\":{\"code\":%d,\"message\":", e->status);
    if (rc == 0) rc = msgl__json_put_str(out, e->message, strlen(e->message));
    return rc == 0 ? msgl__strbuf_addf(out, ",\"type\":\"%s\"}}", e->type) : rc;
}

int msgl__llama_put_stream_error(const msgl_reply *r, const msgl_api_error *e, msgl_strbuf *out)
{
    (void)r;
    int rc = msgl__strbuf_adds(out, "data: ");
    if (rc == 0) rc = msgl__llama_put_error(e, out);
    return rc == 0 ? msgl__strbuf_adds(out, "\n\n") : rc;
}

// The seed is signed, as a request may give it: JSON readers have no larger integers.
int msgl__llama_put_settings(const msgl_sampling_params *p, int32_t max_tokens, msgl_strbuf *out)
{
    return msgl__strbuf_addf(
        out,
        "{\"n_predict\":%d,\"max_tokens\":%d,\"seed\":%" PRId64
        ",\"temperature\":%.7g,\"top_k\":%d,\"top_p\":%.7g,\"min_p\":%.7g,\"repeat_penalty\":%.7g,"
        "\"presence_penalty\":%.7g,\"frequency_penalty\":%.7g,\"ignore_eos\":%s,\"n_probs\":%d}",
        max_tokens, max_tokens, (int64_t)p->seed, (double)p->temperature, p->top_k,
        (double)p->top_p, (double)p->min_p, (double)p->repetition_penalty,
        (double)p->presence_penalty, (double)p->frequency_penalty, p->ignore_eos ? "true" : "false",
        p->logprobs < 0 ? 0 : p->logprobs);
}

// Tokens in nanoseconds as a rate in seconds; 0 where nothing was measured.
static double rate(int64_t tokens, int64_t ns)
{
    return ns > 0 ? (double)tokens * 1e9 / (double)ns : 0;
}

static int put_speed(const char *what, int64_t n, int64_t ns, msgl_strbuf *out)
{
    const double ms = (double)ns / 1e6;
    return msgl__strbuf_addf(out,
                             ",\"%s_n\":%" PRId64 ",\"%s_ms\":%.3f,\"%s_per_token_ms\":%.4f,"
                             "\"%s_per_second\":%.4f",
                             what, n, what, ms, what, n > 0 ? ms / (double)n : 0, what,
                             rate(n, ns));
}

// ,"timings":{...}
static int put_timings(const msgl_reply *r, const msgl_sequence *s, msgl_strbuf *out)
{
    const int64_t read = (int64_t)s->prompt->len - s->cached_tokens;
    int rc = msgl__strbuf_addf(out, ",\"timings\":{\"cache_n\":%d", s->cached_tokens);
    if (rc == 0) rc = put_speed("prompt", read, r->first_ns, out);
    if (rc == 0) {
        rc = put_speed("predicted", s->completion_tokens, r->total_ns - r->first_ns, out);
    }
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

// An object from "index" to "completion_probabilities", with the text, ids and log-probabilities
// that s has now. They are taken out of s: the next piece does not have them again.
static int put_piece(int index, msgl_sequence *s, bool stop, msgl_strbuf *out)
{
    int rc = msgl__strbuf_addf(out, "{\"index\":%d,\"content\":", index);
    if (rc == 0) rc = msgl__json_put_str(out, msgl__strbuf_str(&s->text), s->text.len);
    if (rc == 0) rc = msgl__reply_put_ids("tokens", &s->ids, out);
    if (rc == 0) {
        rc = msgl__strbuf_addf(out,
                               ",\"id_slot\":-1,\"stop\":%s,\"tokens_predicted\":%d,"
                               "\"tokens_evaluated\":%zu",
                               stop ? "true" : "false", s->completion_tokens, s->prompt->len);
    }
    if (rc == 0 && s->logprobs.count > 0) {
        rc = msgl__strbuf_adds(out, ",\"completion_probabilities\":");
        if (rc == 0) rc = msgl__logprobs_put(&s->logprobs, out);
    }
    msgl__strbuf_clear(&s->text);
    s->ids.len = 0;
    return rc;
}

static int put_stop(const msgl_sequence *s, msgl_strbuf *out)
{
    const bool stopped = strcmp(s->finish, "stop") == 0, word = stopped && s->answer.stopped;
    const char *which = word ? s->req->stops[s->answer.stop.which] : "";
    int rc = msgl__strbuf_addf(out, ",\"truncated\":false,\"stop_type\":\"%s\",\"stopping_word\":",
                               word                               ? "word"
                               : stopped                          ? "eos"
                               : strcmp(s->finish, "length") == 0 ? "limit"
                                                                  : "none");
    return rc == 0 ? msgl__json_put_str(out, which, strlen(which)) : rc;
}

// ,"prompt":... as the model got it.
static int put_prompt(const msgl_sequence *s, msgl_strbuf *out)
{
    msgl_strbuf text;
    msgl_err err;
    msgl__strbuf_init(&text, SIZE_MAX / 2);
    int rc = msgl__tokenizer_decode(s->tokenizer, s->prompt->data, s->prompt->len, 0, &text, &err);
    if (rc == MSGL_EINVAL) rc = 0; // ids that the tokenizer has not
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"prompt\":");
    if (rc == 0) rc = msgl__json_put_str(out, msgl__strbuf_str(&text), text.len);
    msgl__strbuf_free(&text);
    return rc;
}

// The rest of the last object, behind its piece.
static int put_last(const msgl_reply *r, const msgl_sequence *s, msgl_strbuf *out)
{
    const msgl_gen_request *req = r->req;
    int rc = msgl__strbuf_adds(out, ",\"model\":");
    if (rc == 0) rc = msgl__json_put_str(out, r->model, strlen(r->model));
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"generation_settings\":");
    if (rc == 0) {
        rc = msgl__llama_put_settings(&req->sampling, req->no_output ? 0 : req->max_tokens, out);
    }
    if (rc == 0) rc = put_prompt(s, out);
    if (rc == 0) rc = put_stop(s, out);
    if (rc == 0) rc = msgl__strbuf_addf(out, ",\"tokens_cached\":%d", s->cached_tokens);
    if (rc == 0) rc = put_timings(r, s, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

// --- whole: an object, of several answers an array of them ---

int msgl__llama_put_begin(const msgl_reply *r, msgl_strbuf *out)
{
    return r->num_choices > 1 ? msgl__strbuf_addc(out, '[') : 0;
}

int msgl__llama_put_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    int rc = index == 0 ? 0 : msgl__strbuf_addc(out, ',');
    if (rc == 0) rc = put_piece(index, s, true, out);
    return rc == 0 ? put_last(r, s, out) : rc;
}

int msgl__llama_put_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    (void)cached, (void)completion;
    return r->num_choices > 1 ? msgl__strbuf_addc(out, ']') : 0;
}

// --- events ---

int msgl__llama_put_chunk(const msgl_reply *r, int index, msgl_sequence *s, bool silent,
                          msgl_strbuf *out)
{
    int rc = 0;
    if (s->text.len > 0 || s->logprobs.count > 0 || silent) {
        rc = msgl__strbuf_adds(out, "data: ");
        if (rc == 0) rc = put_piece(index, s, false, out);
        if (rc == 0 && r->req->continuous_usage) rc = put_timings(r, s, out);
        if (rc == 0) rc = msgl__strbuf_adds(out, "}\n\n");
    }
    if (rc != 0 || s->finish == NULL) return rc;
    rc = msgl__strbuf_adds(out, "data: ");
    if (rc == 0) rc = put_piece(index, s, true, out);
    if (rc == 0) rc = put_last(r, s, out);
    return rc == 0 ? msgl__strbuf_adds(out, "\n\n") : rc;
}

int msgl__llama_put_stream_end(const msgl_reply *r, int64_t cached, int64_t completion,
                               msgl_strbuf *out)
{
    (void)r, (void)cached, (void)completion, (void)out; // the last event said so
    return 0;
}
