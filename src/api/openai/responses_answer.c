// SPDX-License-Identifier: Apache-2.0
//
// An answer as items of OpenAI's Responses API: reasoning, messages and function calls, in the
// order in which the model wrote them, whole or as events. An item is a block of the sequence;
// blocks_shown has the items of a stream as JSON, the open one up to its text.
#include "api/openai/responses_answer.h"

#include <inttypes.h>
#include <string.h>

#include "api/openai/chat_answer.h"
#include "api/json.h"

// --- items ---

static int put_item_id(const msgl_reply *r, msgl_part_kind kind, int number, msgl_strbuf *out)
{
    const char *own = strchr(r->id, '-');
    return msgl__strbuf_addf(out, "\"%s_%s_%d\"",
                             kind == MSGL_PART_TEXT        ? "msg"
                             : kind == MSGL_PART_REASONING ? "rs"
                                                           : "fc",
                             own == NULL ? r->id : own + 1, number);
}

// A function's name, and its namespace if the client's tools have it in one: the model calls it
// SPACE__NAME, and the answer has the two names as they were.
static int put_call_name(const msgl_reply *r, const char *name, size_t len, msgl_strbuf *out)
{
    const msgl_strbuf *all = &msgl__responses_own(r->req)->namespaces;
    for (size_t at = 0; at < all->len;) {
        const char *space = all->data + at, *inner = space + strlen(space) + 1;
        const size_t n = strlen(space), m = strlen(inner);
        at += n + m + 2;
        // SPACE__NAME, where the underscores may be the namespace's own.
        if (len < n + m || memcmp(name, space, n) != 0 || memcmp(name + len - m, inner, m) != 0)
            continue;
        const size_t between = len - n - m;
        if (between != 0 && (between != 2 || memcmp(name + n, "__", 2) != 0)) continue;
        int rc = msgl__json_put_str(out, inner, m);
        if (rc == 0) rc = msgl__strbuf_adds(out, ",\"namespace\":");
        return rc == 0 ? msgl__json_put_str(out, space, n) : rc;
    }
    return msgl__chat_put_call_name(name, len, out);
}

// The next item up to its text. name[0, len): the bytes of a call's part; others have none.
static int put_item_head(const msgl_reply *r, int index, msgl_sequence *s, msgl_part_kind kind,
                         const char *name, size_t len, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, s->blocks > 0 ? ",{\"id\":" : "{\"id\":");
    if (rc == 0) rc = put_item_id(r, kind, s->blocks, out);
    if (rc != 0) return rc;
    if (kind == MSGL_PART_TEXT) {
        return msgl__strbuf_adds(out, ",\"type\":\"message\",\"role\":\"assistant\"");
    }
    if (kind == MSGL_PART_REASONING) {
        return msgl__strbuf_adds(out, ",\"type\":\"reasoning\",\"summary\":[]");
    }
    rc = msgl__strbuf_adds(out, ",\"type\":\"function_call\",\"call_id\":");
    if (rc == 0) rc = msgl__chat_put_call_id(r, index, s->calls_shown++, name, len, out);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"name\":");
    return rc == 0 ? put_call_name(r, name, len, out) : rc;
}

// A part of an item's content.
static int put_content(msgl_part_kind kind, const char *text, size_t len, msgl_strbuf *out)
{
    const bool message = kind == MSGL_PART_TEXT;
    int rc = msgl__strbuf_adds(out, message ? "{\"type\":\"output_text\",\"annotations\":[],"
                                              "\"logprobs\":[],\"text\":"
                                            : "{\"type\":\"reasoning_text\",\"text\":");
    if (rc == 0) rc = msgl__json_put_str(out, text, len);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

// An item from behind its head to its end.
static int put_item_rest(msgl_part_kind kind, const char *text, size_t len, const char *status,
                         msgl_strbuf *out)
{
    const bool call = kind == MSGL_PART_CALL;
    int rc = msgl__strbuf_adds(out, call ? ",\"arguments\":" : ",\"content\":[");
    if (rc == 0) {
        rc = call ? msgl__json_put_str(out, text, len) : put_content(kind, text, len, out);
    }
    return rc == 0 ? msgl__strbuf_addf(out, "%s,\"status\":\"%s\"}", call ? "" : "]", status) : rc;
}

// Whether the answer ended by a limit, or was aborted.
static bool was_cut(const msgl_sequence *s)
{
    return s->finish != NULL &&
           (strcmp(s->finish, "length") == 0 || strcmp(s->finish, "abort") == 0);
}

// The status of an item that ends here. last: there is nothing behind it in the answer. A call may
// be whole although the answer was cut behind it.
static const char *status_of(const msgl_sequence *s, msgl_part_kind kind, bool last,
                             const char *text, size_t len)
{
    if (!last || !was_cut(s)) return "completed";
    if (kind != MSGL_PART_CALL) return "incomplete";
    msgl_json_room room = {0};
    msgl_err err;
    json_t *object = msgl__json_parse_object(text, len, &room, &err);
    json_decref(object);
    return object != NULL ? "completed" : "incomplete";
}

// --- the response ---

// The response up to its items.
static int put_head(const msgl_reply *r, msgl_strbuf *out)
{
    int rc = msgl__strbuf_addf(
        out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%" PRId64 ",\"model\":", r->id,
        r->created);
    const msgl_strbuf *repeated = &msgl__responses_own(r->req)->repeated;
    if (rc == 0) rc = msgl__json_put_str(out, r->model, strlen(r->model));
    if (rc == 0) rc = msgl__strbuf_add(out, msgl__strbuf_str(repeated), repeated->len);
    return rc == 0 ? msgl__strbuf_adds(out, ",\"output\":[") : rc;
}

static int put_error(const msgl_api_error *e, msgl_strbuf *out)
{
    if (e == NULL) return msgl__strbuf_adds(out, ",\"error\":null");
    int rc = msgl__strbuf_addf(out, ",\"error\":{\"code\":\"%s\",\"message\":",
                               e->status == 429  ? "rate_limit_exceeded"
                               : e->status < 500 ? "invalid_prompt"
                                                 : "server_error");
    if (rc == 0) rc = msgl__json_put_str(out, e->message, strlen(e->message));
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static int put_usage(const msgl_reply *r, const msgl_sequence *s, msgl_strbuf *out)
{
    return msgl__strbuf_addf(
        out,
        ",\"usage\":{\"input_tokens\":%" PRId64
        ",\"input_tokens_details\":{\"cached_tokens\":%d,\"cache_write_tokens\":0}"
        ",\"output_tokens\":%d,\"output_tokens_details\":{\"reasoning_tokens\":%d}"
        ",\"total_tokens\":%" PRId64 "}",
        r->prompt_tokens, s->cached_tokens, s->completion_tokens, s->reasoning_tokens,
        r->prompt_tokens + s->completion_tokens);
}

// The response from behind its items. s: the answer if it is complete, or NULL. e: why it failed,
// or NULL.
static int put_tail(const msgl_reply *r, const msgl_sequence *s, const msgl_api_error *e,
                    msgl_strbuf *out)
{
    const bool cut = s != NULL && was_cut(s);
    int rc = msgl__strbuf_addf(out, "],\"status\":\"%s\",\"incomplete_details\":%s",
                               e != NULL   ? "failed"
                               : s == NULL ? "in_progress"
                               : cut       ? "incomplete"
                                           : "completed",
                               cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    if (rc == 0) rc = put_error(e, out);
    if (rc == 0) rc = s == NULL ? msgl__strbuf_adds(out, ",\"usage\":null") : put_usage(r, s, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

// --- whole ---

int msgl__responses_put_begin(const msgl_reply *r, msgl_strbuf *out)
{
    return put_head(r, out);
}

// The item that part i is; a call with the arguments behind it, if there are any.
static int put_whole_item(const msgl_reply *r, int index, msgl_sequence *s, size_t i,
                          const char *data, msgl_strbuf *out)
{
    const msgl_part *p = &s->parts.items[i];
    const bool call = p->kind == MSGL_PART_CALL;
    const char *text = data;
    size_t len = p->len, last = i;
    if (call) {
        const bool has = i + 1 < s->parts.count && p[1].kind == MSGL_PART_ARGUMENTS;
        text = data + p->len;
        len = has ? p[1].len : 0;
        last += has ? 2 : 1;
    }
    const char *status = status_of(s, p->kind, last + 1 >= s->parts.count, text, len);
    int rc = put_item_head(r, index, s, p->kind, data, p->len, out);
    if (rc == 0) rc = put_item_rest(p->kind, text, len, status, out);
    s->blocks++;
    return rc;
}

int msgl__responses_put_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    int rc = 0;
    if (s->parser == NULL && s->text.len > 0) {
        const char *text = msgl__strbuf_str(&s->text);
        rc = put_item_head(r, index, s, MSGL_PART_TEXT, NULL, 0, out);
        if (rc == 0) {
            rc = put_item_rest(MSGL_PART_TEXT, text, s->text.len,
                               status_of(s, MSGL_PART_TEXT, true, NULL, 0), out);
        }
    }
    const char *at = msgl__strbuf_str(&s->parts.bytes);
    for (size_t i = 0; s->parser != NULL && i < s->parts.count && rc == 0; i++) {
        const msgl_part *p = &s->parts.items[i];
        if (p->kind != MSGL_PART_ARGUMENTS && p->kind != MSGL_PART_CALL_END) {
            rc = put_whole_item(r, index, s, i, at, out);
        }
        at += p->len;
    }
    return rc == 0 ? put_tail(r, s, NULL, out) : rc;
}

int msgl__responses_put_end(const msgl_reply *r, int64_t cached, int64_t completion,
                            msgl_strbuf *out)
{
    (void)r, (void)cached, (void)completion, (void)out; // the choice had all of it
    return 0;
}

// --- events ---

static int put_event(const char *type, int number, msgl_strbuf *out) // up to its fields
{
    return msgl__strbuf_addf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d", type,
                             type, number);
}

static int end_event(msgl_strbuf *out)
{
    return msgl__strbuf_adds(out, "}\n\n");
}

// An event of the open item's text.
static int put_text_event(const msgl_reply *r, msgl_sequence *s, const char *type, msgl_strbuf *out)
{
    int rc = put_event(type, s->events_shown++, out);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"item_id\":");
    if (rc == 0) rc = put_item_id(r, s->block_kind, s->blocks, out);
    if (rc == 0) rc = msgl__strbuf_addf(out, ",\"output_index\":%d", s->blocks);
    if (rc == 0 && s->block_kind != MSGL_PART_CALL) {
        rc = msgl__strbuf_adds(out, ",\"content_index\":0");
    }
    return rc;
}

static int put_part_event(const msgl_reply *r, msgl_sequence *s, const char *type, const char *text,
                          size_t len, msgl_strbuf *out)
{
    if (s->block_kind == MSGL_PART_CALL) return 0; // which has no parts
    int rc = put_text_event(r, s, type, out);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"part\":");
    if (rc == 0) rc = put_content(s->block_kind, text, len, out);
    return rc == 0 ? end_event(out) : rc;
}

// The event of a piece of the open item's text or arguments, or (delta false) of all of it.
static int put_string_event(const msgl_reply *r, msgl_sequence *s, bool delta, const char *text,
                            size_t len, msgl_strbuf *out)
{
    static const char *const types[][2] = {
        {"response.output_text.done", "response.output_text.delta"},
        {"response.reasoning_text.done", "response.reasoning_text.delta"},
        {"response.function_call_arguments.done", "response.function_call_arguments.delta"}};
    const int kind = s->block_kind == MSGL_PART_TEXT ? 0 : s->block_kind == MSGL_PART_CALL ? 2 : 1;
    int rc = put_text_event(r, s, types[kind][delta], out);
    if (rc == 0 && kind == 0) rc = msgl__strbuf_adds(out, ",\"logprobs\":[]");
    if (rc == 0) {
        rc = msgl__strbuf_addf(out, ",\"%s\":", delta ? "delta" : kind == 2 ? "arguments" : "text");
    }
    if (rc == 0) rc = msgl__json_put_str(out, text, len);
    return rc == 0 ? end_event(out) : rc;
}

static int put_item_event(msgl_sequence *s, const char *type, msgl_strbuf *out) // up to its item
{
    const int rc = put_event(type, s->events_shown++, out);
    return rc == 0 ? msgl__strbuf_addf(out, ",\"output_index\":%d,\"item\":", s->blocks) : rc;
}

// The open item as far as it is in blocks_shown, without the comma before it.
static int put_shown_item(const msgl_sequence *s, msgl_strbuf *out)
{
    const size_t at = s->block_at + (s->blocks > 0);
    return msgl__strbuf_add(out, msgl__strbuf_str(&s->blocks_shown) + at, s->blocks_shown.len - at);
}

// Ends the open item, if there is one. last: nothing follows it in the answer.
static int close_item(const msgl_reply *r, msgl_sequence *s, bool last, msgl_strbuf *out)
{
    if (!s->block_open) return 0;
    const char *text = msgl__strbuf_str(&s->block_text);
    const size_t len = s->block_text.len;
    const char *status = status_of(s, s->block_kind, last, text, len);
    int rc = put_string_event(r, s, false, text, len, out);
    if (rc == 0) rc = put_part_event(r, s, "response.content_part.done", text, len, out);
    if (rc == 0) rc = put_item_rest(s->block_kind, text, len, status, &s->blocks_shown);
    if (rc == 0) rc = put_item_event(s, "response.output_item.done", out);
    if (rc == 0) rc = put_shown_item(s, out);
    msgl__strbuf_clear(&s->block_text);
    s->block_open = false;
    s->blocks++;
    return rc == 0 ? end_event(out) : rc;
}

// Begins an item, behind the open one. name[0, len): the bytes of a call's part; others have none.
static int open_item(const msgl_reply *r, int index, msgl_sequence *s, msgl_part_kind kind,
                     const char *name, size_t len, msgl_strbuf *out)
{
    int rc = close_item(r, s, false, out);
    s->block_at = s->blocks_shown.len;
    s->block_open = true;
    s->block_kind = kind;
    if (rc == 0) rc = put_item_head(r, index, s, kind, name, len, &s->blocks_shown);
    if (rc == 0) rc = put_item_event(s, "response.output_item.added", out);
    if (rc == 0) rc = put_shown_item(s, out);
    if (rc == 0) {
        rc = msgl__strbuf_addf(out, ",%s,\"status\":\"in_progress\"}",
                               kind == MSGL_PART_CALL ? "\"arguments\":\"\"" : "\"content\":[]");
    }
    if (rc == 0) rc = end_event(out);
    return rc == 0 ? put_part_event(r, s, "response.content_part.added", "", 0, out) : rc;
}

// The events of a part; last: it is the last one of those that there are now.
static int put_part_events(const msgl_reply *r, int index, msgl_sequence *s, const msgl_part *p,
                           const char *data, bool last, msgl_strbuf *out)
{
    if (p->kind == MSGL_PART_CALL_END) return close_item(r, s, last, out);
    if (p->kind == MSGL_PART_CALL) return open_item(r, index, s, p->kind, data, p->len, out);
    int rc = 0;
    if (p->kind != MSGL_PART_ARGUMENTS && (!s->block_open || s->block_kind != p->kind)) {
        rc = open_item(r, index, s, p->kind, NULL, 0, out);
    }
    if (rc == 0) rc = msgl__strbuf_add(&s->block_text, data, p->len);
    return rc == 0 ? put_string_event(r, s, true, data, p->len, out) : rc;
}

static int put_start(const msgl_reply *r, msgl_sequence *s, msgl_strbuf *out)
{
    static const char *const types[] = {"response.created", "response.in_progress"};
    int rc = 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0] && rc == 0; i++) {
        rc = put_event(types[i], s->events_shown++, out);
        if (rc == 0) rc = msgl__strbuf_adds(out, ",\"response\":");
        if (rc == 0) rc = put_head(r, out);
        if (rc == 0) rc = put_tail(r, NULL, NULL, out);
        if (rc == 0) rc = end_event(out);
    }
    return rc;
}

static int put_last(const msgl_reply *r, msgl_sequence *s, msgl_strbuf *out)
{
    int rc = close_item(r, s, true, out);
    if (rc == 0) {
        rc = put_event(was_cut(s) ? "response.incomplete" : "response.completed", s->events_shown++,
                       out);
    }
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"response\":");
    s->kept_at = out->len;
    if (rc == 0) rc = put_head(r, out);
    if (rc == 0) {
        rc = msgl__strbuf_add(out, msgl__strbuf_str(&s->blocks_shown), s->blocks_shown.len);
    }
    if (rc == 0) rc = put_tail(r, s, NULL, out);
    s->kept_len = out->len - s->kept_at;
    return rc == 0 ? end_event(out) : rc;
}

int msgl__responses_put_chunk(const msgl_reply *r, int index, msgl_sequence *s, bool silent,
                              msgl_strbuf *out)
{
    int rc = s->first_shown ? 0 : put_start(r, s, out);
    if (rc == 0 && s->text.len > 0) {
        const msgl_part text = {MSGL_PART_TEXT, s->text.len};
        rc = put_part_events(r, index, s, &text, msgl__strbuf_str(&s->text), true, out);
        msgl__strbuf_clear(&s->text);
    } else if (rc == 0 && s->parts.count > 0) {
        const char *at = msgl__strbuf_str(&s->parts.bytes);
        for (size_t i = 0; i < s->parts.count && rc == 0; i++) {
            const bool last = i + 1 == s->parts.count;
            rc = put_part_events(r, index, s, &s->parts.items[i], at, last, out);
            at += s->parts.items[i].len;
        }
        msgl__parts_clear(&s->parts);
    } else if (rc == 0 && silent && s->first_shown) {
        rc = msgl__reply_silent(out);
    }
    return rc == 0 && s->finish != NULL ? put_last(r, s, out) : rc;
}

int msgl__responses_put_stream_end(const msgl_reply *r, int64_t cached, int64_t completion,
                                   msgl_strbuf *out)
{
    (void)r, (void)cached, (void)completion, (void)out; // the last event said so
    return 0;
}

// The items that are complete stay; the open one is left out.
int msgl__responses_put_stream_error(const msgl_reply *r, const msgl_api_error *e, msgl_strbuf *out)
{
    const msgl_sequence *s = r->first_choice;
    const int number = s == NULL ? 0 : s->events_shown;
    int rc = put_event("error", number, out);
    if (rc == 0) {
        rc = e->code == NULL ? msgl__strbuf_adds(out, ",\"code\":null,\"message\":")
                             : msgl__strbuf_addf(out, ",\"code\":\"%s\",\"message\":", e->code);
    }
    if (rc == 0) rc = msgl__json_put_str(out, e->message, strlen(e->message));
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"param\":null");
    if (rc == 0) rc = end_event(out);
    if (rc == 0) rc = put_event("response.failed", number + 1, out);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"response\":");
    if (rc == 0) rc = put_head(r, out);
    if (rc == 0 && s != NULL) {
        rc = msgl__strbuf_add(out, msgl__strbuf_str(&s->blocks_shown),
                              s->block_open ? s->block_at : s->blocks_shown.len);
    }
    if (rc == 0) rc = put_tail(r, NULL, e, out);
    return rc == 0 ? end_event(out) : rc;
}
