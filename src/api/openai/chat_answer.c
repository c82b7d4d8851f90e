// SPDX-License-Identifier: Apache-2.0
//
// A chat's answers: content, reasoning and calls of tools, whole or as deltas. Where the text is
// split into parts both are made of the same ones, so that the deltas add up to the whole.
#include "api/openai/chat_answer.h"

#include <string.h>

#include "api/json.h"
#include "utils/hash.h"

static const char chunk_object[] = "chat.completion.chunk";

int msgl__chat_put_begin(const msgl_reply *r, msgl_strbuf *out)
{
    int rc = msgl__reply_head(r, "chat.completion", out);
    if (rc == 0) rc = msgl__reply_prompt_logprobs(r->first_choice, out);
    return rc == 0 ? msgl__strbuf_adds(out, ",\"choices\":[") : rc;
}

// The length of the name in the bytes of a call's part, which are the name, or, with an id that the
// model gave, the name, a NUL and the id: 3 for "add\0call_7".
static size_t name_len(const char *call, size_t len)
{
    const char *end = len == 0 ? NULL : memchr(call, '\0', len);
    return end == NULL ? len : (size_t)(end - call);
}

int msgl__chat_put_call_name(const char *call, size_t len, msgl_strbuf *out)
{
    return msgl__json_put_str(out, call, name_len(call, len));
}

static int put_made_id(const msgl_reply *r, int index, int n, msgl_strbuf *out)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const int len = msgl__tool_form_id_len(r->req->chat.split.tools), which[2] = {index, n};
    uint64_t h = msgl__hash(MSGL_HASH_START, r->id, strlen(r->id));
    int rc = msgl__strbuf_adds(out, len == 9 ? "\"" : "\"call_");
    for (int i = 0; i < len && rc == 0; i++) {
        if (i % 8 == 0) h = msgl__hash(msgl__hash(h, which, sizeof which), &i, sizeof i);
        rc = msgl__strbuf_addc(out, digits[h % 62]);
        h = h / 62;
        if (i % 8 == 7) h = msgl__hash(h, r->id, strlen(r->id));
    }
    return rc == 0 ? msgl__strbuf_addc(out, '"') : rc;
}

int msgl__chat_put_call_id(const msgl_reply *r, int index, int n, const char *call, size_t len,
                           msgl_strbuf *out)
{
    const size_t name = name_len(call, len);
    if (name < len) return msgl__json_put_str(out, call + name + 1, len - name - 1);
    return put_made_id(r, index, n, out);
}

// {"id":...,"type":"function","function":{"name":...,"arguments": up to its value
static int put_call_head(const msgl_reply *r, int index, int n, const char *call, size_t len,
                         msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "\"id\":");
    if (rc == 0) rc = msgl__chat_put_call_id(r, index, n, call, len, out);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"type\":\"function\",\"function\":{\"name\":");
    if (rc == 0) rc = msgl__chat_put_call_name(call, len, out);
    return rc == 0 ? msgl__strbuf_adds(out, ",\"arguments\":") : rc;
}

// --- whole ---

// Appends the text of all parts of a kind, as one string. *any: it is not empty; where it is,
// nothing is appended.
static int put_joined(const msgl_parts *parts, msgl_part_kind kind, bool *any, msgl_strbuf *out)
{
    msgl_strbuf all;
    msgl__strbuf_init(&all, SIZE_MAX / 2);
    int rc = msgl__reply_join(parts, kind, &all);
    *any = all.len > 0;
    if (rc == 0 && *any) rc = msgl__json_put_str(out, msgl__strbuf_str(&all), all.len);
    msgl__strbuf_free(&all);
    return rc;
}

static int put_calls(const msgl_reply *r, int index, const msgl_parts *parts, msgl_strbuf *out)
{
    const char *at = msgl__strbuf_str(&parts->bytes);
    int calls = 0, rc = 0;
    for (size_t i = 0; i < parts->count && rc == 0; i++) {
        const msgl_part *p = &parts->items[i];
        if (p->kind == MSGL_PART_CALL) {
            rc = msgl__strbuf_adds(out, calls == 0 ? ",\"tool_calls\":[{" : ",{");
            if (rc == 0) rc = put_call_head(r, index, calls++, at, p->len, out);
        } else if (p->kind == MSGL_PART_ARGUMENTS) {
            rc = msgl__json_put_str(out, at, p->len);
        } else if (p->kind == MSGL_PART_CALL_END) {
            rc = msgl__strbuf_adds(out, "}}");
        }
        at += p->len;
    }
    return rc == 0 && calls > 0 ? msgl__strbuf_addc(out, ']') : rc;
}

// The members of a message from the value of "content" on: content, refusal, reasoning and calls.
static int put_parts(const msgl_reply *r, int index, const msgl_sequence *s, msgl_strbuf *out)
{
    bool any;
    int rc = put_joined(&s->parts, MSGL_PART_TEXT, &any, out);
    if (rc == 0 && !any) {
        rc = msgl__strbuf_adds(out, msgl__parser_calls(s->parser) > 0 ? "null" : "\"\"");
    }
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"refusal\":null");
    const size_t before = out->len;
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"reasoning_content\":");
    if (rc == 0) rc = put_joined(&s->parts, MSGL_PART_REASONING, &any, out);
    if (rc == 0 && !any) {
        out->len = before;
        out->data[before] = '\0';
    }
    return rc == 0 ? put_calls(r, index, &s->parts, out) : rc;
}

int msgl__chat_put_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    int rc =
        msgl__strbuf_addf(out, "%s{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":",
                          index == 0 ? "" : ",", index);
    if (rc == 0 && s->parser != NULL) {
        rc = put_parts(r, index, s, out);
    } else if (rc == 0) {
        rc = msgl__json_put_str(out, msgl__strbuf_str(&s->text), s->text.len);
        if (rc == 0) rc = msgl__strbuf_adds(out, ",\"refusal\":null");
    }
    if (rc == 0) rc = msgl__strbuf_addc(out, '}');
    if (rc == 0) rc = msgl__reply_logprobs(s, out);
    if (rc == 0) rc = msgl__reply_finish(s->finish, out);
    if (rc == 0) rc = msgl__reply_ids(r, s, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

int msgl__chat_put_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    int rc = msgl__reply_end(r, cached, completion, out);
    if (rc != 0 || !r->req->return_ids) return rc;
    out->len--; // its brace
    rc = msgl__reply_put_ids("prompt_token_ids", r->prompt_ids, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

// --- deltas ---

// An event without text.
static int put_delta(const msgl_reply *r, int index, msgl_sequence *s, const char *delta,
                     const char *finish, msgl_strbuf *out)
{
    int rc = msgl__reply_chunk_begin(r, chunk_object, index, out);
    if (rc == 0) rc = msgl__strbuf_addf(out, ",\"delta\":%s,\"logprobs\":null", delta);
    if (rc == 0) rc = msgl__reply_finish(finish, out);
    return rc == 0 ? msgl__reply_chunk_end(r, s, out) : rc;
}

// The members of a delta that say what a part says: "content", "reasoning_content" or "tool_calls".
static int put_part(const msgl_reply *r, int index, msgl_sequence *s, const msgl_part *p,
                    const char *data, msgl_strbuf *out)
{
    int rc;
    switch (p->kind) {
    case MSGL_PART_CALL:
        rc = msgl__strbuf_addf(out, "\"tool_calls\":[{\"index\":%d,", s->calls_shown);
        if (rc == 0) rc = put_call_head(r, index, s->calls_shown, data, p->len, out);
        s->calls_shown++;
        return rc == 0 ? msgl__strbuf_adds(out, "\"\"}}]") : rc;
    case MSGL_PART_ARGUMENTS:
        rc = msgl__strbuf_addf(
            out, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", s->calls_shown - 1);
        if (rc == 0) rc = msgl__json_put_str(out, data, p->len);
        return rc == 0 ? msgl__strbuf_adds(out, "}}]") : rc;
    case MSGL_PART_REASONING: rc = msgl__strbuf_adds(out, "\"reasoning_content\":"); break;
    default: rc = msgl__strbuf_adds(out, "\"content\":"); break;
    }
    return rc == 0 ? msgl__json_put_str(out, data, p->len) : rc;
}

// The event of a part. The first one has the log-probabilities of all tokens since the event
// before.
static int put_event(const msgl_reply *r, int index, msgl_sequence *s, const msgl_part *p,
                     const char *data, msgl_strbuf *out)
{
    int rc = msgl__reply_chunk_begin(r, chunk_object, index, out);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"delta\":{");
    if (rc == 0) rc = put_part(r, index, s, p, data, out);
    if (rc == 0) rc = msgl__strbuf_addc(out, '}');
    if (rc == 0 && s->logprobs.count > 0) {
        rc = msgl__reply_logprobs(s, out);
    } else if (rc == 0) {
        rc = msgl__strbuf_adds(out, ",\"logprobs\":null");
    }
    if (rc == 0) rc = msgl__reply_finish(NULL, out);
    return rc == 0 ? msgl__reply_chunk_end(r, s, out) : rc;
}

static int put_text_event(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    const msgl_part text = {MSGL_PART_TEXT, s->text.len};
    const int rc = put_event(r, index, s, &text, msgl__strbuf_str(&s->text), out);
    msgl__strbuf_clear(&s->text);
    return rc;
}

static int put_part_events(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    const char *at = msgl__strbuf_str(&s->parts.bytes);
    int rc = 0;
    for (size_t i = 0; i < s->parts.count && rc == 0; i++) {
        const msgl_part *p = &s->parts.items[i];
        if (p->kind != MSGL_PART_CALL_END) rc = put_event(r, index, s, p, at, out);
        at += p->len;
    }
    msgl__parts_clear(&s->parts);
    return rc;
}

// Whether there is a part with bytes: the end of a call has none, and no event.
static bool has_parts(const msgl_sequence *s)
{
    return s->parts.bytes.len > 0;
}

int msgl__chat_put_chunk(const msgl_reply *r, int index, msgl_sequence *s, bool silent,
                         msgl_strbuf *out)
{
    int rc = 0;
    if (!s->first_shown) {
        rc = put_delta(r, index, s, "{\"role\":\"assistant\",\"content\":\"\"}", NULL, out);
    }
    if (rc == 0 && has_parts(s)) {
        rc = put_part_events(r, index, s, out);
    } else if (rc == 0 && (s->text.len > 0 || s->logprobs.count > 0 ||
                           (silent && s->first_shown && msgl__reply_counts(r)))) {
        rc = put_text_event(r, index, s, out);
    } else if (rc == 0 && silent && s->first_shown) { // the role's event is one already
        rc = msgl__reply_silent(out);
    }
    if (rc == 0 && s->finish != NULL) rc = put_delta(r, index, s, "{}", s->finish, out);
    return rc;
}

int msgl__chat_put_stream_end(const msgl_reply *r, int64_t cached, int64_t completion,
                              msgl_strbuf *out)
{
    return msgl__reply_stream_end(r, chunk_object, cached, completion, out);
}
