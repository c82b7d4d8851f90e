// SPDX-License-Identifier: Apache-2.0
//
// An answer as Anthropic's content blocks: thoughts, texts and uses of tools, in the order in which
// the model wrote them, whole or as events.
#include "api/anthropic/messages_answer.h"

#include <inttypes.h>
#include <string.h>

#include "api/openai/chat_answer.h"
#include "api/json.h"

int msgl__messages_put_error(const msgl_api_error *e, msgl_strbuf *out)
{
    const char *type = e->status == 401   ? "authentication_error"
                       : e->status == 403 ? "permission_error"
                       : e->status == 404 ? "not_found_error"
                       : e->status == 413 ? "request_too_large"
                       : e->status == 429 ? "rate_limit_error"
                       : e->status == 503 ? "overloaded_error"
                       : e->status < 500  ? "invalid_request_error"
                                          : "api_error";
    int rc =
        msgl__strbuf_addf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    if (rc == 0) rc = msgl__json_put_str(out, e->message, strlen(e->message));
    return rc == 0 ? msgl__strbuf_adds(out, "}}") : rc;
}

// {"id":...,"content":[
static int put_head(const msgl_reply *r, msgl_strbuf *out)
{
    int rc = msgl__strbuf_addf(
        out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", r->id);
    if (rc == 0) rc = msgl__json_put_str(out, r->model, strlen(r->model));
    return rc == 0 ? msgl__strbuf_adds(out, ",\"content\":[") : rc;
}

// "stop_reason":...,"stop_sequence":... s NULL: it goes on.
static int put_stop(const msgl_sequence *s, msgl_strbuf *out)
{
    const char *finish = s == NULL ? NULL : s->finish;
    if (finish == NULL)
        return msgl__strbuf_adds(out, "\"stop_reason\":null,\"stop_sequence\":null");
    if (strcmp(finish, "stop") == 0 && s->answer.stopped) {
        const char *stop = s->req->stops[s->answer.stop.which];
        int rc = msgl__strbuf_adds(out, "\"stop_reason\":\"stop_sequence\",\"stop_sequence\":");
        return rc == 0 ? msgl__json_put_str(out, stop, strlen(stop)) : rc;
    }
    return msgl__strbuf_addf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":null",
                             strcmp(finish, "tool_calls") == 0 ? "tool_use"
                             : strcmp(finish, "stop") == 0     ? "end_turn"
                                                               : "max_tokens"); // cut
}

static int put_usage(int64_t prompt, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    return msgl__strbuf_addf(out,
                             "\"usage\":{\"input_tokens\":%" PRId64 ",\"output_tokens\":%" PRId64
                             ",\"cache_read_input_tokens\":%" PRId64
                             ",\"cache_creation_input_tokens\":0}",
                             prompt - cached, completion, cached);
}

// --- whole ---

int msgl__messages_put_begin(const msgl_reply *r, msgl_strbuf *out)
{
    return put_head(r, out);
}

// A part, behind the part before. A call is three parts: its name, all of its arguments, which are
// at least {}, and its end.
static int put_part(const msgl_reply *r, int index, int *calls, const msgl_part *p,
                    const char *data, msgl_strbuf *out)
{
    const char *comma = out->data[out->len - 1] == '[' ? "" : ",";
    int rc = 0;
    switch (p->kind) {
    case MSGL_PART_TEXT:
        rc = msgl__strbuf_addf(out, "%s{\"type\":\"text\",\"text\":", comma);
        if (rc == 0) rc = msgl__json_put_str(out, data, p->len);
        return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
    case MSGL_PART_REASONING:
        rc = msgl__strbuf_addf(out,
                               "%s{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":", comma);
        if (rc == 0) rc = msgl__json_put_str(out, data, p->len);
        return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
    case MSGL_PART_CALL:
        rc = msgl__strbuf_addf(out, "%s{\"type\":\"tool_use\",\"id\":", comma);
        if (rc == 0) rc = msgl__chat_put_call_id(r, index, (*calls)++, data, p->len, out);
        if (rc == 0) rc = msgl__strbuf_adds(out, ",\"name\":");
        if (rc == 0) rc = msgl__chat_put_call_name(data, p->len, out);
        return rc == 0 ? msgl__strbuf_adds(out, ",\"input\":") : rc;
    case MSGL_PART_ARGUMENTS: return msgl__reply_arguments(data, p->len, out);
    case MSGL_PART_CALL_END: return msgl__strbuf_addc(out, '}');
    }
    return rc;
}

int msgl__messages_put_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    int calls = 0, rc = 0;
    if (s->parser == NULL && s->text.len > 0) {
        const msgl_part text = {MSGL_PART_TEXT, s->text.len};
        rc = put_part(r, index, &calls, &text, msgl__strbuf_str(&s->text), out);
    }
    const char *at = msgl__strbuf_str(&s->parts.bytes);
    for (size_t i = 0; s->parser != NULL && i < s->parts.count && rc == 0; i++) {
        rc = put_part(r, index, &calls, &s->parts.items[i], at, out);
        at += s->parts.items[i].len;
    }
    if (rc == 0) rc = msgl__strbuf_adds(out, "],");
    return rc == 0 ? put_stop(s, out) : rc;
}

int msgl__messages_put_end(const msgl_reply *r, int64_t cached, int64_t completion,
                           msgl_strbuf *out)
{
    int rc = msgl__strbuf_addc(out, ',');
    if (rc == 0) rc = put_usage(r->prompt_tokens, cached, completion, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

// --- events ---
//
// s->blocks is the number of the block that is open or comes next; s->block_kind is the kind of the
// open one's part, if s->block_open.

static int put_event(const char *type, msgl_strbuf *out) // up to its fields
{
    return msgl__strbuf_addf(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static int end_event(msgl_strbuf *out)
{
    return msgl__strbuf_adds(out, "}\n\n");
}

static int put_start(const msgl_reply *r, const msgl_sequence *s, msgl_strbuf *out)
{
    int rc = put_event("message_start", out);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"message\":");
    if (rc == 0) rc = put_head(r, out);
    if (rc == 0) rc = msgl__strbuf_adds(out, "],");
    if (rc == 0) rc = put_stop(NULL, out);
    if (rc == 0) rc = msgl__strbuf_addc(out, ',');
    if (rc == 0) rc = put_usage(r->prompt_tokens, s->cached_tokens, 0, out);
    if (rc == 0) rc = msgl__strbuf_addc(out, '}');
    return rc == 0 ? end_event(out) : rc;
}

static int close_block(msgl_sequence *s, msgl_strbuf *out)
{
    if (!s->block_open) return 0;
    s->block_open = false;
    int rc = put_event("content_block_stop", out);
    if (rc == 0) rc = msgl__strbuf_addf(out, ",\"index\":%d", s->blocks++);
    return rc == 0 ? end_event(out) : rc;
}

// Begins a block, behind the open one. name[0, len): the bytes of a call's part.
static int open_block(const msgl_reply *r, int index, msgl_sequence *s, msgl_part_kind kind,
                      const char *name, size_t len, msgl_strbuf *out)
{
    int rc = close_block(s, out);
    if (rc == 0) rc = put_event("content_block_start", out);
    if (rc == 0) rc = msgl__strbuf_addf(out, ",\"index\":%d,\"content_block\":", s->blocks);
    if (rc == 0 && kind == MSGL_PART_CALL) {
        rc = msgl__strbuf_adds(out, "{\"type\":\"tool_use\",\"id\":");
        if (rc == 0) rc = msgl__chat_put_call_id(r, index, s->calls_shown++, name, len, out);
        if (rc == 0) rc = msgl__strbuf_adds(out, ",\"name\":");
        if (rc == 0) rc = msgl__chat_put_call_name(name, len, out);
        if (rc == 0) rc = msgl__strbuf_adds(out, ",\"input\":{}}");
    } else if (rc == 0) {
        rc = msgl__strbuf_adds(out,
                               kind == MSGL_PART_REASONING
                                   ? "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}"
                                   : "{\"type\":\"text\",\"text\":\"\"}");
    }
    s->block_open = true;
    s->block_kind = kind;
    return rc == 0 ? end_event(out) : rc;
}

static int put_delta(msgl_sequence *s, const char *type, const char *field, const char *data,
                     size_t len, msgl_strbuf *out)
{
    int rc = put_event("content_block_delta", out);
    if (rc == 0) {
        rc = msgl__strbuf_addf(out, ",\"index\":%d,\"delta\":{\"type\":\"%s\",\"%s\":", s->blocks,
                               type, field);
    }
    if (rc == 0) rc = msgl__json_put_str(out, data, len);
    if (rc == 0) rc = msgl__strbuf_addc(out, '}');
    return rc == 0 ? end_event(out) : rc;
}

static int put_part_events(const msgl_reply *r, int index, msgl_sequence *s, const msgl_part *p,
                           const char *data, msgl_strbuf *out)
{
    if (p->kind == MSGL_PART_CALL_END) return close_block(s, out);
    if (p->kind == MSGL_PART_ARGUMENTS) {
        return put_delta(s, "input_json_delta", "partial_json", data, p->len, out);
    }
    int rc = 0;
    if (p->kind == MSGL_PART_CALL || !s->block_open || s->block_kind != p->kind) {
        rc = open_block(r, index, s, p->kind, data, p->len, out);
    }
    if (rc != 0 || p->kind == MSGL_PART_CALL) return rc;
    return p->kind == MSGL_PART_REASONING
               ? put_delta(s, "thinking_delta", "thinking", data, p->len, out)
               : put_delta(s, "text_delta", "text", data, p->len, out);
}

static int put_last(msgl_sequence *s, msgl_strbuf *out)
{
    int rc = close_block(s, out);
    if (rc == 0) rc = put_event("message_delta", out);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"delta\":{");
    if (rc == 0) rc = put_stop(s, out);
    if (rc == 0) {
        rc = msgl__strbuf_addf(out, "},\"usage\":{\"output_tokens\":%d}", s->completion_tokens);
    }
    return rc == 0 ? end_event(out) : rc;
}

int msgl__messages_put_chunk(const msgl_reply *r, int index, msgl_sequence *s, bool silent,
                             msgl_strbuf *out)
{
    int rc = s->first_shown ? 0 : put_start(r, s, out);
    if (rc == 0 && s->text.len > 0) {
        const msgl_part text = {MSGL_PART_TEXT, s->text.len};
        rc = put_part_events(r, index, s, &text, msgl__strbuf_str(&s->text), out);
        msgl__strbuf_clear(&s->text);
    } else if (rc == 0 && s->parts.count > 0) {
        const char *at = msgl__strbuf_str(&s->parts.bytes);
        for (size_t i = 0; i < s->parts.count && rc == 0; i++) {
            rc = put_part_events(r, index, s, &s->parts.items[i], at, out);
            at += s->parts.items[i].len;
        }
        msgl__parts_clear(&s->parts);
    } else if (rc == 0 && silent && s->first_shown) {
        rc = put_event("ping", out);
        if (rc == 0) rc = end_event(out);
    }
    return rc == 0 && s->finish != NULL ? put_last(s, out) : rc;
}

int msgl__messages_put_stream_end(const msgl_reply *r, int64_t cached, int64_t completion,
                                  msgl_strbuf *out)
{
    (void)r, (void)cached, (void)completion;
    const int rc = put_event("message_stop", out);
    return rc == 0 ? end_event(out) : rc;
}

int msgl__messages_put_stream_error(const msgl_reply *r, const msgl_api_error *e, msgl_strbuf *out)
{
    (void)r;
    int rc = msgl__strbuf_adds(out, "event: error\ndata: ");
    if (rc == 0) rc = msgl__messages_put_error(e, out);
    return rc == 0 ? msgl__strbuf_adds(out, "\n\n") : rc;
}
