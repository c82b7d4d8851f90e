// SPDX-License-Identifier: Apache-2.0
//
// Llama 3: the whole answer is {"name": "f", "parameters": {...}}, or several of them with ; or
// white space between, or they stand behind <|python_tag|>. Without the tag an object is a call
// only if it names a tool that there is.
#include "parsers/internal.h"

enum { START = MSGL_FORM_TEXT + 1, CALL, AFTER };

static const char *const OPEN[] = {"<|python_tag|>", "<|python_start|>", NULL};
static const char *const TAGS[] = {"<|python_tag|>", "<|python_start|>", "<|python_end|>",
                                   "<|eom_id|>", NULL};

static void open_call(msgl_parser *p)
{
    p->state = CALL;
    p->again = true;
    msgl__json_call_start(p);
}

// Nothing but white space so far, or the tag: p->marked.
static int start(msgl_parser *p, char c)
{
    if (msgl__is_space(c)) return msgl__buffer(p, c);
    if (c == '{') {
        open_call(p);
        return 0;
    }
    return msgl__give_back(p);
}

static int call(msgl_parser *p, char c)
{
    msgl_json_call_step step;
    const int rc = msgl__json_call_add(p, c, &step);
    if (rc != 0 || step == MSGL_JSON_CALL_MORE) return rc;
    if (!p->in_call) return msgl__give_back(p);
    p->state = AFTER;
    p->again = step == MSGL_JSON_CALL_FAIL;
    return msgl__call_end(p);
}

// Behind a call: another one, or content.
static int after(msgl_parser *p, char c)
{
    const bool between = msgl__is_space(c) || c == ';' || c == ',' || c == '}';
    if (p->match.len == 0 && between) return msgl__buffer(p, c);
    if (p->match.len == 0 && c == '{') {
        open_call(p);
        return 0;
    }
    char plain[MSGL_MARK_MAX];
    int n;
    const int mark = msgl__match_add(&p->match, TAGS, c, plain, &n);
    if (mark >= 0) msgl__strbuf_clear(&p->pending);
    if (n == 0) return 0;
    const int rc = msgl__call_done(p);
    return rc == 0 ? msgl__put_text(p, plain, (size_t)n) : rc;
}

int msgl__llama_step(msgl_parser *p, char c)
{
    switch (p->state) {
    case START: return start(p, c);
    case CALL: return call(p, c);
    case AFTER: return after(p, c);
    default: return msgl__text_or_call(p, OPEN, c, START);
    }
}

int msgl__llama_finish(msgl_parser *p)
{
    if (p->state == AFTER) p->match.len = 0;
    return p->in_call || p->state == AFTER ? msgl__call_done(p) : msgl__give_back(p);
}
