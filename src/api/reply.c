// SPDX-License-Identifier: Apache-2.0
#include "api/reply.h"

#include <inttypes.h>
#include <string.h>

#include "api/json.h"

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

int msgl__reply_join(const msgl_parts *parts, msgl_part_kind kind, msgl_strbuf *all)
{
    const char *at = msgl__strbuf_str(&parts->bytes);
    int rc = 0;
    for (size_t i = 0; i < parts->count && rc == 0; i++) {
        if (parts->items[i].kind == kind) rc = msgl__strbuf_add(all, at, parts->items[i].len);
        at += parts->items[i].len;
    }
    return rc;
}

int msgl__reply_done(msgl_strbuf *out)
{
    return msgl__strbuf_adds(out, "data: [DONE]\n\n");
}

// What of the completion's tokens is told apart, if anything is.
static int put_details(const msgl_usage *u, msgl_strbuf *out)
{
    if (u->reasoning < 0 && u->drafted == 0) return 0;
    int rc = msgl__strbuf_adds(out, ",\"completion_tokens_details\":{");
    if (rc == 0 && u->reasoning >= 0) {
        rc = msgl__strbuf_addf(out, "\"reasoning_tokens\":%" PRId64 "%s", u->reasoning,
                               u->drafted > 0 ? "," : "");
    }
    if (rc == 0 && u->drafted > 0) {
        rc = msgl__strbuf_addf(out,
                               "\"accepted_prediction_tokens\":%" PRId64
                               ",\"rejected_prediction_tokens\":%" PRId64,
                               u->accepted, u->drafted - u->accepted);
    }
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

int msgl__reply_usage(const msgl_usage *u, msgl_strbuf *out)
{
    int rc = msgl__strbuf_addf(out,
                               "\"usage\":{\"prompt_tokens\":%" PRId64
                               ",\"completion_tokens\":%" PRId64 ",\"total_tokens\":%" PRId64
                               ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRId64 "}",
                               u->prompt, u->completion, u->prompt + u->completion, u->cached);
    if (rc == 0) rc = put_details(u, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

int msgl__reply_finish(const char *finish, msgl_strbuf *out)
{
    return finish == NULL ? msgl__strbuf_adds(out, ",\"finish_reason\":null")
                          : msgl__strbuf_addf(out, ",\"finish_reason\":\"%s\"", finish);
}

int msgl__reply_logprobs(msgl_sequence *s, msgl_strbuf *out)
{
    const int rc = msgl__strbuf_adds(out, ",\"logprobs\":");
    if (rc != 0) return rc;
    return s->want_logprobs ? msgl__logprobs_put(&s->logprobs, out)
                            : msgl__strbuf_adds(out, "null");
}

int msgl__reply_put_ids(const char *name, const msgl_ids *ids, msgl_strbuf *out)
{
    int rc = msgl__strbuf_addf(out, ",\"%s\":[", name);
    for (size_t i = 0; i < ids->len && rc == 0; i++) {
        rc = msgl__strbuf_addf(out, "%s%d", i == 0 ? "" : ",", (int)ids->data[i]);
    }
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

int msgl__reply_ids(const msgl_reply *r, msgl_sequence *s, msgl_strbuf *out)
{
    if (!r->req->return_ids) return 0;
    const int rc = msgl__reply_put_ids("token_ids", &s->ids, out);
    s->ids.len = 0;
    return rc;
}

int msgl__reply_prompt_ids(const msgl_reply *r, msgl_sequence *s, msgl_strbuf *out)
{
    if (!r->req->return_ids || s->prompt_ids_shown) return 0;
    s->prompt_ids_shown = true;
    return msgl__reply_put_ids("prompt_token_ids", s->prompt, out);
}

int msgl__reply_prompt_logprobs(const msgl_sequence *s, msgl_strbuf *out)
{
    if (!s->req->with_prompt_logprobs) return 0;
    const msgl_strbuf *list = &s->prompt_logprobs.parts[0];
    int rc = msgl__strbuf_adds(out, ",\"prompt_logprobs\":[");
    if (rc == 0) rc = msgl__strbuf_add(out, msgl__strbuf_str(list), list->len);
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

int msgl__reply_arguments(const char *data, size_t len, msgl_strbuf *out)
{
    msgl_json_room room = {0};
    msgl_err err;
    json_t *object = msgl__json_parse_object(data, len, &room, &err);
    if (object != NULL) {
        json_decref(object);
        return msgl__strbuf_add(out, data, len);
    }
    if (len == 0) return msgl__strbuf_adds(out, "{}");
    int rc = msgl__strbuf_adds(out, "{\"arguments\":");
    if (rc == 0) rc = msgl__json_put_str(out, data, len);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

int msgl__reply_head(const msgl_reply *r, const char *object, msgl_strbuf *out)
{
    int rc = msgl__strbuf_addf(
        out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", r->id, object,
        r->created);
    return rc == 0 ? msgl__json_put_str(out, r->model, strlen(r->model)) : rc;
}

int msgl__reply_begin(const msgl_reply *r, const char *object, msgl_strbuf *out)
{
    const int rc = msgl__reply_head(r, object, out);
    return rc == 0 ? msgl__strbuf_adds(out, ",\"choices\":[") : rc;
}

int msgl__reply_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    const msgl_usage usage = {.prompt = r->prompt_tokens,
                              .cached = cached,
                              .completion = completion,
                              .reasoning = r->reasoning_tokens,
                              .drafted = r->drafted,
                              .accepted = r->accepted};
    int rc = msgl__strbuf_adds(out, "],");
    if (rc == 0) rc = msgl__reply_usage(&usage, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

int msgl__reply_chunk_begin(const msgl_reply *r, const char *object, int index, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "data: ");
    if (rc == 0) rc = msgl__reply_begin(r, object, out);
    return rc == 0 ? msgl__strbuf_addf(out, "{\"index\":%d", index) : rc;
}

// Usage in an event that is not the stream's last: null, or what its choice has taken so far.
int msgl__reply_chunk_end(const msgl_reply *r, msgl_sequence *s, msgl_strbuf *out)
{
    int rc = msgl__reply_ids(r, s, out);
    if (rc == 0) rc = msgl__strbuf_adds(out, "}]");
    if (rc == 0) rc = msgl__reply_prompt_ids(r, s, out);
    if (rc == 0 && r->req->include_usage && !r->req->continuous_usage) {
        rc = msgl__strbuf_adds(out, ",\"usage\":null");
    } else if (rc == 0 && r->req->include_usage) {
        rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) {
            const msgl_usage usage = {.prompt = (int64_t)s->prompt->len,
                                      .cached = s->cached_tokens,
                                      .completion = s->completion_tokens,
                                      .reasoning =
                                          r->reasoning_tokens < 0 ? -1 : s->reasoning_tokens,
                                      .drafted = s->drafted,
                                      .accepted = s->accepted};
            rc = msgl__reply_usage(&usage, out);
        }
    }
    return rc == 0 ? msgl__strbuf_adds(out, "}\n\n") : rc;
}

bool msgl__reply_counts(const msgl_reply *r)
{
    return r->req->return_ids || (r->req->include_usage && r->req->continuous_usage);
}

int msgl__reply_silent(msgl_strbuf *out)
{
    return msgl__strbuf_adds(out, ": \n\n");
}

int msgl__reply_stream_end(const msgl_reply *r, const char *object, int64_t cached,
                           int64_t completion, msgl_strbuf *out)
{
    int rc = 0;
    if (r->req->include_usage) {
        rc = msgl__strbuf_adds(out, "data: ");
        if (rc == 0) rc = msgl__reply_begin(r, object, out);
        if (rc == 0) rc = msgl__reply_end(r, cached, completion, out);
        if (rc == 0) rc = msgl__strbuf_adds(out, "\n\n");
    }
    return rc == 0 ? msgl__reply_done(out) : rc;
}

int msgl__reply_stream_error(const msgl_reply *r, const msgl_api_error *e, msgl_strbuf *out)
{
    (void)r;
    int rc = msgl__strbuf_adds(out, "data: ");
    if (rc == 0) rc = msgl__api_error_put(e, out);
    if (rc == 0) rc = msgl__strbuf_adds(out, "\n\n");
    return rc == 0 ? msgl__reply_done(out) : rc;
}
