// SPDX-License-Identifier: Apache-2.0
#include "server/reply.h"

#include <inttypes.h>
#include <string.h>

#include "server/json.h"

static const char done_event[] = "data: [DONE]\n\n";

int msgl__sse_put(msgl_strbuf *out, const char *text, size_t len)
{
    int rc = 0;
    size_t start = 0;
    for (size_t i = 0; i <= len && rc == 0; i++) {
        if (i < len && text[i] != '\n' && text[i] != '\r') continue;
        rc = msgl__strbuf_adds(out, "data: ");
        if (rc == 0) rc = msgl__strbuf_add(out, text + start, i - start);
        if (rc == 0) rc = msgl__strbuf_addc(out, '\n');
        if (i + 1 < len && text[i] == '\r' && text[i + 1] == '\n') i++; // one line break
        start = i + 1;
    }
    return rc == 0 ? msgl__strbuf_addc(out, '\n') : rc;
}

static int put_usage(int64_t prompt, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    return msgl__strbuf_addf(out,
                             "\"usage\":{\"prompt_tokens\":%" PRId64
                             ",\"completion_tokens\":%" PRId64 ",\"total_tokens\":%" PRId64
                             ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRId64 "}}",
                             prompt, completion, prompt + completion, cached);
}

// Of an event that is not the stream's last: null, or what its choice has taken so far.
static int put_event_usage(const msgl_reply *r, const msgl_sequence *s, msgl_strbuf *out)
{
    if (!r->req->include_usage) return 0;
    if (!r->req->continuous_usage) return msgl__strbuf_adds(out, ",\"usage\":null");
    const int rc = msgl__strbuf_addc(out, ',');
    return rc == 0 ? put_usage((int64_t)s->prompt->len, s->cached_tokens, s->completion_tokens, out)
                   : rc;
}

// {"id":...,"object":...,"created":...,"model":...,
static int put_head(const msgl_reply *r, const char *object, msgl_strbuf *out)
{
    int rc = msgl__strbuf_addf(
        out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", r->id, object,
        r->created);
    if (rc == 0) rc = msgl__json_put_str(out, r->model, strlen(r->model));
    return rc == 0 ? msgl__strbuf_addc(out, ',') : rc;
}

static int put_finish(const char *finish, msgl_strbuf *out)
{
    return finish == NULL ? msgl__strbuf_adds(out, ",\"finish_reason\":null")
                          : msgl__strbuf_addf(out, ",\"finish_reason\":\"%s\"", finish);
}

static int put_logprobs(msgl_sequence *s, msgl_strbuf *out)
{
    const int rc = msgl__strbuf_adds(out, ",\"logprobs\":");
    if (rc != 0) return rc;
    return s->want_logprobs ? msgl__logprobs_put(&s->logprobs, out)
                            : msgl__strbuf_adds(out, "null");
}

static const char *chunk_object(const msgl_reply *r)
{
    return r->req->kind == MSGL_API_CHAT ? "chat.completion.chunk" : "text_completion";
}

typedef enum delta { DELTA_ROLE, DELTA_CONTENT, DELTA_EMPTY } delta;

static int chat_chunk(const msgl_reply *r, int index, msgl_sequence *s, delta what,
                      msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "data: ");
    if (rc == 0) rc = put_head(r, chunk_object(r), out);
    if (rc == 0) rc = msgl__strbuf_addf(out, "\"choices\":[{\"index\":%d,\"delta\":", index);
    if (rc == 0) {
        rc = msgl__strbuf_adds(out, what == DELTA_ROLE ? "{\"role\":\"assistant\",\"content\":\"\"}"
                                    : what == DELTA_EMPTY ? "{}"
                                                          : "{\"content\":");
    }
    if (rc == 0 && what == DELTA_CONTENT) {
        rc = msgl__json_put_str(out, msgl__strbuf_str(&s->text), s->text.len);
        if (rc == 0) rc = msgl__strbuf_addc(out, '}');
    }
    if (rc == 0) {
        rc = what == DELTA_CONTENT ? put_logprobs(s, out)
                                   : msgl__strbuf_adds(out, ",\"logprobs\":null");
    }
    if (rc == 0) rc = put_finish(what == DELTA_EMPTY ? s->finish : NULL, out);
    if (rc == 0) rc = msgl__strbuf_adds(out, "}]");
    if (rc == 0) rc = put_event_usage(r, s, out);
    return rc == 0 ? msgl__strbuf_adds(out, "}\n\n") : rc;
}

static int completion_chunk(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "data: ");
    if (rc == 0) rc = put_head(r, chunk_object(r), out);
    if (rc == 0) rc = msgl__strbuf_addf(out, "\"choices\":[{\"index\":%d,\"text\":", index);
    if (rc == 0) rc = msgl__json_put_str(out, msgl__strbuf_str(&s->text), s->text.len);
    if (rc == 0) rc = put_logprobs(s, out);
    if (rc == 0) rc = put_finish(s->finish, out);
    if (rc == 0) rc = msgl__strbuf_adds(out, "}]");
    if (rc == 0) rc = put_event_usage(r, s, out);
    return rc == 0 ? msgl__strbuf_adds(out, "}\n\n") : rc;
}

// SGLang's object of one choice: all of its text so far, in a stream, too.
static int sglang_object(const msgl_reply *r, int index, const msgl_sequence *s, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "{\"text\":");
    if (rc == 0) rc = msgl__json_put_str(out, msgl__strbuf_str(&s->text), s->text.len);
    if (rc == 0) {
        rc = msgl__strbuf_addf(out,
                               ",\"meta_info\":{\"id\":\"%s\",\"prompt_tokens\":%zu,"
                               "\"completion_tokens\":%d,\"cached_tokens\":%d,\"finish_reason\":",
                               r->id, s->prompt->len, s->completion_tokens, s->cached_tokens);
    }
    if (rc == 0 && s->finish == NULL) rc = msgl__strbuf_adds(out, "null");
    if (rc == 0 && s->finish != NULL) {
        rc = strcmp(s->finish, "length") == 0
                 ? msgl__strbuf_addf(out, "{\"type\":\"length\",\"length\":%d}",
                                     s->completion_tokens)
                 : msgl__strbuf_addf(out, "{\"type\":\"%s\"}", s->finish);
    }
    return rc == 0 ? msgl__strbuf_addf(out, "},\"index\":%d}", index) : rc;
}

int msgl__reply_chunks(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    int rc = 0;
    const bool text = s->text.len > 0 || s->logprobs.count > 0;
    // A token may complete no character, or begin what could become a stop string. Its event comes
    // all the same, as from vLLM: who counts or times tokens sees each, and none is taken for a
    // stall.
    const bool silent = s->finish == NULL && s->completion_tokens > s->tokens_shown;
    s->tokens_shown = s->completion_tokens;
    switch (r->req->kind) {
    case MSGL_API_CHAT:
        if (!s->first_shown) rc = chat_chunk(r, index, s, DELTA_ROLE, out);
        if (rc == 0 && (text || (silent && s->first_shown))) {
            rc = chat_chunk(r, index, s, DELTA_CONTENT, out);
        }
        if (rc == 0 && s->finish != NULL) rc = chat_chunk(r, index, s, DELTA_EMPTY, out);
        break;
    case MSGL_API_COMPLETION:
        if (text || silent || s->finish != NULL) rc = completion_chunk(r, index, s, out);
        break;
    case MSGL_API_GENERATE:
        if (r->req->sglang) { // whose text stays
            if (s->first_shown && !silent && s->finish == NULL) return 0;
            s->first_shown = true;
            rc = msgl__strbuf_adds(out, "data: ");
            if (rc == 0) rc = sglang_object(r, index, s, out);
            return rc == 0 ? msgl__strbuf_adds(out, "\n\n") : rc;
        }
        if (s->text.len > 0) rc = msgl__sse_put(out, msgl__strbuf_str(&s->text), s->text.len);
        break;
    }
    s->first_shown = true;
    msgl__strbuf_clear(&s->text);
    return rc;
}

int msgl__reply_stream_end(const msgl_reply *r, int64_t cached, int64_t completion,
                           msgl_strbuf *out)
{
    int rc = 0;
    if (r->req->include_usage && r->req->kind != MSGL_API_GENERATE) {
        rc = msgl__strbuf_adds(out, "data: ");
        if (rc == 0) rc = put_head(r, chunk_object(r), out);
        if (rc == 0) rc = msgl__strbuf_adds(out, "\"choices\":[],");
        if (rc == 0) rc = put_usage(r->prompt_tokens, cached, completion, out);
        if (rc == 0) rc = msgl__strbuf_adds(out, "}\n\n");
    }
    return rc == 0 ? msgl__strbuf_adds(out, done_event) : rc;
}

int msgl__reply_stream_error(const msgl_reply *r, const msgl_api_error *e, msgl_strbuf *out)
{
    // Plain text is /generate's data, so its errors have an event name of their own.
    const bool plain = r->req->kind == MSGL_API_GENERATE && !r->req->sglang;
    int rc = msgl__strbuf_adds(out, plain ? "event: error\ndata: " : "data: ");
    if (rc == 0) rc = msgl__api_error_put(e, out);
    if (rc == 0) rc = msgl__strbuf_adds(out, "\n\n");
    return rc == 0 ? msgl__strbuf_adds(out, done_event) : rc;
}

int msgl__reply_begin(const msgl_reply *r, msgl_strbuf *out)
{
    if (r->req->sglang) return r->num_choices > 1 ? msgl__strbuf_addc(out, '[') : 0;
    if (r->req->kind == MSGL_API_GENERATE) return msgl__strbuf_addc(out, '{');
    const int rc =
        put_head(r, r->req->kind == MSGL_API_CHAT ? "chat.completion" : "text_completion", out);
    return rc == 0 ? msgl__strbuf_adds(out, "\"choices\":[") : rc;
}

int msgl__reply_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    const char *text = msgl__strbuf_str(&s->text);
    int rc = 0;
    switch (r->req->kind) {
    case MSGL_API_CHAT:
        rc = msgl__strbuf_addf(out,
                               "%s{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":",
                               index == 0 ? "" : ",", index);
        if (rc == 0) rc = msgl__json_put_str(out, text, s->text.len);
        if (rc == 0) rc = msgl__strbuf_adds(out, ",\"refusal\":null}");
        break;
    case MSGL_API_COMPLETION:
        rc = msgl__strbuf_addf(out, "%s{\"index\":%d,\"text\":", index == 0 ? "" : ",", index);
        if (rc == 0) rc = msgl__json_put_str(out, text, s->text.len);
        break;
    case MSGL_API_GENERATE:
        if (r->req->sglang) {
            if (index > 0) rc = msgl__strbuf_addc(out, ',');
            return rc == 0 ? sglang_object(r, index, s, out) : rc;
        }
        rc = msgl__strbuf_adds(out, "\"text\":");
        if (rc == 0) rc = msgl__json_put_str(out, text, s->text.len);
        return rc == 0 ? put_finish(s->finish, out) : rc;
    }
    if (rc == 0) rc = put_logprobs(s, out);
    if (rc == 0) rc = put_finish(s->finish, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

int msgl__reply_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    if (r->req->sglang) return r->num_choices > 1 ? msgl__strbuf_addc(out, ']') : 0;
    int rc = msgl__strbuf_adds(out, r->req->kind == MSGL_API_GENERATE ? "," : "],");
    if (rc == 0) rc = put_usage(r->prompt_tokens, cached, completion, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}
