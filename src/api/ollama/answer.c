// SPDX-License-Identifier: Apache-2.0
//
// An answer as Ollama's objects: whole, or a line of JSON for each piece and one more with the
// counts. A call of a tool is shown when it is complete, because its arguments are an object.
#include "api/ollama/answer.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "api/json.h"
#include "api/openai/chat_answer.h"

int msgl__ollama_put_error(const msgl_api_error *e, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "{\"error\":");
    if (rc == 0) rc = msgl__json_put_str(out, e->message, strlen(e->message));
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

int msgl__ollama_put_stream_error(const msgl_reply *r, const msgl_api_error *e, msgl_strbuf *out)
{
    (void)r;
    const int rc = msgl__ollama_put_error(e, out);
    return rc == 0 ? msgl__strbuf_addc(out, '\n') : rc;
}

int msgl__ollama_put_name(const char *name, msgl_strbuf *out)
{
    const char *slash = strrchr(name, '/'), *base = slash == NULL ? name : slash;
    int rc = msgl__json_put_str(out, name, strlen(name));
    if (rc != 0 || strchr(base, ':') != NULL) return rc;
    out->len--; // its quote
    return msgl__strbuf_adds(out, ":latest\"");
}

int msgl__ollama_put_time(int64_t seconds, msgl_strbuf *out)
{
    const time_t t = (time_t)seconds;
    struct tm tm;
    char text[32];
    if (gmtime_r(&t, &tm) == NULL || strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0) {
        text[0] = '\0';
    }
    return msgl__strbuf_addf(out, "\"%s\"", text);
}

int msgl__ollama_put_details(const char *path, msgl_strbuf *out)
{
    const size_t n = strlen(path);
    const bool gguf = n > 5 && strcmp(path + n - 5, ".gguf") == 0;
    return msgl__strbuf_addf(out,
                             "\"details\":{\"parent_model\":\"\",\"format\":\"%s\",\"family\":\"\","
                             "\"families\":[],\"parameter_size\":\"\",\"quantization_level\":\"\"}",
                             gguf ? "gguf" : "safetensors");
}

// {"model":...,"created_at":...
static int put_head(const char *model, int64_t created, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "{\"model\":");
    if (rc == 0) rc = msgl__json_put_str(out, model, strlen(model));
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"created_at\":");
    return rc == 0 ? msgl__ollama_put_time(created, out) : rc;
}

// The end of an answer's last object, but for its brace.
static int put_done(const msgl_reply *r, const msgl_sequence *s, msgl_strbuf *out)
{
    const char *why = strcmp(s->finish, "tool_calls") == 0 ? "stop" : s->finish;
    return msgl__strbuf_addf(out,
                             ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%" PRId64
                             ",\"load_duration\":0,\"prompt_eval_count\":%" PRId64
                             ",\"prompt_eval_duration\":%" PRId64
                             ",\"eval_count\":%d,\"eval_duration\":%" PRId64,
                             why, r->total_ns, r->prompt_tokens, r->first_ns, s->completion_tokens,
                             r->total_ns - r->first_ns);
}

static int put_logprobs(msgl_sequence *s, msgl_strbuf *out)
{
    if (s->logprobs.count == 0) return 0;
    const int rc = msgl__strbuf_adds(out, ",\"logprobs\":");
    return rc == 0 ? msgl__logprobs_put(&s->logprobs, out) : rc;
}

// --- a model that is asked for nothing ---

static int put_loaded(const msgl_job *j, const char *member, msgl_strbuf *out)
{
    int rc = put_head(j->config.model_name, (int64_t)time(NULL), out);
    if (rc == 0) rc = msgl__strbuf_adds(out, member);
    return rc == 0 ? msgl__strbuf_adds(out, ",\"done\":true,\"done_reason\":\"load\"}") : rc;
}

int msgl__ollama_chat_put_job(const msgl_job *j, const msgl_tokenizer *t, msgl_strbuf *out)
{
    (void)t;
    return put_loaded(j, ",\"message\":{\"role\":\"assistant\",\"content\":\"\"}", out);
}

int msgl__ollama_generate_put_job(const msgl_job *j, const msgl_tokenizer *t, msgl_strbuf *out)
{
    (void)t;
    return put_loaded(j, ",\"response\":\"\"", out);
}

// --- parts ---

// ,"NAME":TEXT of all parts of a kind. Without text the member is left out, but not where `always`.
static int put_joined(const msgl_sequence *s, msgl_part_kind kind, const char *name, bool always,
                      msgl_strbuf *out)
{
    msgl_strbuf all;
    msgl__strbuf_init(&all, SIZE_MAX / 2);
    int rc = kind == MSGL_PART_TEXT ? msgl__strbuf_add(&all, s->text.data, s->text.len) : 0;
    if (rc == 0) rc = msgl__reply_join(&s->parts, kind, &all);
    if (rc == 0 && (always || all.len > 0)) {
        rc = msgl__strbuf_addf(out, ",\"%s\":", name);
        if (rc == 0) rc = msgl__json_put_str(out, msgl__strbuf_str(&all), all.len);
    }
    msgl__strbuf_free(&all);
    return rc;
}

// Appends the calls that end in these parts, as elements of a list, to s->blocks_shown, from which
// a stream takes them. The arguments of a call that has not ended are in s->block_text. *shown: how
// many calls ended.
static int collect_calls(msgl_sequence *s, int *shown)
{
    const char *at = msgl__strbuf_str(&s->parts.bytes);
    msgl_strbuf *list = &s->blocks_shown;
    int rc = 0;
    *shown = 0;
    for (size_t i = 0; i < s->parts.count && rc == 0; i++) {
        const msgl_part *p = &s->parts.items[i];
        if (p->kind == MSGL_PART_CALL) {
            rc = msgl__strbuf_addf(list, "%s{\"function\":{\"index\":%d,\"name\":",
                                   list->len == 0 ? "" : ",", s->calls_shown++);
            if (rc == 0) rc = msgl__chat_put_call_name(at, p->len, list);
            if (rc == 0) rc = msgl__strbuf_adds(list, ",\"arguments\":");
        } else if (p->kind == MSGL_PART_ARGUMENTS) {
            rc = msgl__strbuf_add(&s->block_text, at, p->len);
        } else if (p->kind == MSGL_PART_CALL_END) {
            rc = msgl__reply_arguments(msgl__strbuf_str(&s->block_text), s->block_text.len, list);
            if (rc == 0) rc = msgl__strbuf_adds(list, "}}");
            msgl__strbuf_clear(&s->block_text);
            s->block_at = list->len; // up to here calls are complete
            ++*shown;
        }
        at += p->len;
    }
    return rc;
}

// ,"tool_calls":[...] with the calls that are complete. One that has not ended stays in
// s->blocks_shown.
static int put_calls(msgl_sequence *s, msgl_strbuf *out)
{
    int shown;
    int rc = collect_calls(s, &shown);
    if (rc != 0 || shown == 0) return rc;
    msgl_strbuf *list = &s->blocks_shown;
    const char *text = msgl__strbuf_str(list);
    rc = msgl__strbuf_adds(out, ",\"tool_calls\":[");
    if (rc == 0) rc = msgl__strbuf_add(out, text, s->block_at);
    if (rc == 0) rc = msgl__strbuf_addc(out, ']');
    const size_t rest = list->len - s->block_at, comma = rest > 0;
    if (rest > 0) memmove(list->data, list->data + s->block_at + comma, rest - comma);
    list->len = rest - comma;
    list->data[list->len] = '\0';
    s->block_at = 0;
    return rc;
}

static int put_message(msgl_sequence *s, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, ",\"message\":{\"role\":\"assistant\"");
    if (rc == 0) rc = put_joined(s, MSGL_PART_TEXT, "content", true, out);
    if (rc == 0) rc = put_joined(s, MSGL_PART_REASONING, "thinking", false, out);
    if (rc == 0) rc = put_calls(s, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static int put_response(msgl_sequence *s, msgl_strbuf *out)
{
    const int rc = put_joined(s, MSGL_PART_TEXT, "response", true, out);
    return rc == 0 ? put_joined(s, MSGL_PART_REASONING, "thinking", false, out) : rc;
}

typedef int (*put_pieces)(msgl_sequence *s, msgl_strbuf *out);

// --- whole ---

int msgl__ollama_chat_put_begin(const msgl_reply *r, msgl_strbuf *out)
{
    return put_head(r->model, r->created, out);
}

static int put_whole(const msgl_reply *r, msgl_sequence *s, put_pieces put, msgl_strbuf *out)
{
    int rc = put(s, out);
    if (rc == 0) rc = put_logprobs(s, out);
    return rc == 0 ? put_done(r, s, out) : rc;
}

int msgl__ollama_chat_put_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    (void)index;
    return put_whole(r, s, put_message, out);
}

int msgl__ollama_generate_put_choice(const msgl_reply *r, int index, msgl_sequence *s,
                                     msgl_strbuf *out)
{
    (void)index;
    return put_whole(r, s, put_response, out);
}

int msgl__ollama_put_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    (void)r, (void)cached, (void)completion;
    return msgl__strbuf_addc(out, '}');
}

// --- lines ---

// A line with the pieces of the answer since the line before and, where the answer has ended, the
// last line, which has counts and no piece.
static int put_lines(const msgl_reply *r, msgl_sequence *s, bool silent, put_pieces put,
                     msgl_strbuf *out)
{
    int rc = 0;
    if (s->text.len > 0 || s->parts.count > 0 || s->logprobs.count > 0 || silent) {
        rc = put_head(r->model, r->created, out);
        if (rc == 0) rc = put(s, out);
        if (rc == 0) rc = put_logprobs(s, out);
        if (rc == 0) rc = msgl__strbuf_adds(out, ",\"done\":false}\n");
        msgl__strbuf_clear(&s->text);
        msgl__parts_clear(&s->parts);
    }
    if (rc != 0 || s->finish == NULL) return rc;
    rc = put_head(r->model, r->created, out);
    if (rc == 0) rc = put(s, out);
    if (rc == 0) rc = put_done(r, s, out);
    return rc == 0 ? msgl__strbuf_adds(out, "}\n") : rc;
}

int msgl__ollama_chat_put_chunk(const msgl_reply *r, int index, msgl_sequence *s, bool silent,
                                msgl_strbuf *out)
{
    (void)index;
    return put_lines(r, s, silent, put_message, out);
}

int msgl__ollama_generate_put_chunk(const msgl_reply *r, int index, msgl_sequence *s, bool silent,
                                    msgl_strbuf *out)
{
    (void)index;
    return put_lines(r, s, silent, put_response, out);
}

int msgl__ollama_put_stream_end(const msgl_reply *r, int64_t cached, int64_t completion,
                                msgl_strbuf *out)
{
    (void)r, (void)cached, (void)completion, (void)out; // the last line said so
    return 0;
}
