// SPDX-License-Identifier: Apache-2.0
//
// gpt-oss writes messages: <|start|>assistant<|channel|>analysis<|message|>...<|end|>, and a call
// is one on the commentary channel to=functions.f, which <|call|> ends. The prompt has the first
// <|start|>assistant. What is analysis is reasoning, the rest content.
#include <string.h>

#include "parsers/internal.h"

enum { HEAD = MSGL_FORM_TEXT + 1, BODY, CALL, AFTER };
enum { HEAD_MAX = 1024 };
enum { BODY_TEXT, BODY_THOUGHT };

static const char *const MARKS[] = {"<|start|>",     "<|channel|>", "<|message|>", "<|end|>",
                                    "<|constrain|>", "<|call|>",    "<|return|>",  NULL};
enum { M_START, M_CHANNEL, M_MESSAGE, M_END, M_CONSTRAIN, M_CALL, M_RETURN };

// A word of the head: behind what begins it, up to white space.
static size_t word_at(const msgl_strbuf *head, size_t from)
{
    size_t n = 0;
    while (from + n < head->len && !msgl__is_space(head->data[from + n])) n++;
    return n;
}

// The name of the function that the head addresses, or nothing. Without "functions." it is a
// function's only if a tool has this name: others are the model's own, such as python.
static size_t recipient(const msgl_parser *p, const char **name)
{
    static const char to[] = "to=", functions[] = "functions.";
    const msgl_strbuf *head = &p->key;
    const char *s = msgl__strbuf_str(head), *found = strstr(s, to);
    while (found != NULL && found > s && !msgl__is_space(found[-1])) found = strstr(found + 1, to);
    if (found == NULL) return 0;
    found += strlen(to);
    const bool marked = strncmp(found, functions, strlen(functions)) == 0;
    *name = marked ? found + strlen(functions) : found;
    const size_t n = word_at(head, (size_t)(*name - s));
    if (memchr(*name, '\0', n) != NULL) return 0;
    return marked || msgl__tool_set_has(p->cfg.known, *name, n) ? n : 0;
}

static bool is_analysis(const msgl_parser *p)
{
    static const char analysis[] = "analysis";
    const size_t n = word_at(&p->key, p->mark_at);
    return n == strlen(analysis) && memcmp(p->key.data + p->mark_at, analysis, n) == 0;
}

// The head is complete: what follows?
static int begin_body(msgl_parser *p)
{
    const char *name;
    const size_t n = p->cfg.tools == NULL ? 0 : recipient(p, &name);
    msgl__strbuf_clear(&p->pending);
    if (n > 0 && n <= MSGL_TOOL_NAME_MAX) {
        p->state = CALL;
        p->marked = true;
        msgl__strbuf_clear(&p->name);
        msgl__json_arguments_start(p);
        // The head is in p->key, which arguments alone do not need.
        return msgl__strbuf_add(&p->name, name, n);
    }
    p->state = BODY;
    p->body = is_analysis(p) ? BODY_THOUGHT : BODY_TEXT;
    if (p->body == BODY_THOUGHT && p->thought) return msgl__put_reasoning(p, "\n", 1);
    if (p->body == BODY_TEXT && p->thought && p->cfg.keep_reasoning) {
        return msgl__put_reasoning(p, "\n", 1);
    }
    return 0;
}

static void begin_head(msgl_parser *p)
{
    p->state = HEAD;
    p->mark_at = 0;
    msgl__strbuf_clear(&p->key);
    msgl__strbuf_clear(&p->pending);
}

// A mark ends what was before it.
static int leave(msgl_parser *p, int mark)
{
    int rc = 0;
    if (p->in_call) {
        rc = msgl__call_end(p);
    } else if (p->state == CALL) { // no object came: what did come is content
        rc = msgl__put_text(p, p->pending.data, p->pending.len);
    }
    msgl__strbuf_clear(&p->pending);
    p->marked = false;
    p->state = AFTER;
    if (mark == M_START || mark == M_CHANNEL) begin_head(p);
    if (mark == M_MESSAGE) {
        p->state = BODY;
        p->body = BODY_TEXT;
    }
    return rc;
}

static int put_body(msgl_parser *p, const char *data, size_t len)
{
    return p->body == BODY_THOUGHT ? msgl__put_reasoning(p, data, len)
                                   : msgl__put_text(p, data, len);
}

// Bytes that are no mark.
static int plain_bytes(msgl_parser *p, const char *data, size_t len)
{
    int rc = 0;
    switch (p->state) {
    case HEAD: return p->key.len + len > HEAD_MAX ? 0 : msgl__strbuf_add(&p->key, data, len);
    case BODY: return put_body(p, data, len);
    case CALL: break;
    case AFTER: return 0; // between messages there is nothing
    default: return msgl__put_text(p, data, len);
    }
    for (size_t i = 0; i < len && rc == 0; i++) {
        msgl_json_call_step step;
        rc = msgl__json_call_add(p, data[i], &step);
        if (rc != 0 || step == MSGL_JSON_CALL_MORE) continue;
        if (step == MSGL_JSON_CALL_DONE) {
            rc = msgl__call_end(p);
            p->state = AFTER;
            return rc;
        }
        p->state = BODY; // no object: content
        p->body = BODY_TEXT;
        p->marked = false;
        rc = msgl__put_text(p, p->pending.data, p->pending.len);
        msgl__strbuf_clear(&p->pending);
        return rc == 0 ? put_body(p, data + i, len - i) : rc;
    }
    return rc;
}

static int in_head(msgl_parser *p, int mark)
{
    switch (mark) {
    case M_MESSAGE: return begin_body(p);
    case M_CHANNEL:
    case M_CONSTRAIN: {
        const int rc = msgl__strbuf_addc(&p->key, ' ');
        if (mark == M_CHANNEL) p->mark_at = p->key.len;
        return rc;
    }
    default: return leave(p, mark);
    }
}

int msgl__harmony_step(msgl_parser *p, char c)
{
    char plain[MSGL_MARK_MAX];
    int n;
    const int mark = msgl__match_add(&p->match, MARKS, c, plain, &n);
    const int rc = n > 0 ? plain_bytes(p, plain, (size_t)n) : 0;
    if (mark < 0 || rc != 0) return rc;
    return p->state == HEAD ? in_head(p, mark) : leave(p, mark);
}

int msgl__harmony_finish(msgl_parser *p)
{
    const int n = p->match.len;
    p->match.len = 0;
    const int rc = plain_bytes(p, p->match.buf, (size_t)n);
    return rc == 0 ? leave(p, M_END) : rc;
}
