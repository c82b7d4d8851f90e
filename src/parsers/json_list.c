// SPDX-License-Identifier: Apache-2.0
//
// Calls as a JSON list [{"name": "f", "arguments": {...}}, ...]. Granite 3 writes it behind
// <|tool_call|> or <tool_call>, or as the whole answer, which is one of calls only if it names a
// tool that there is; Phi-4-mini between <|tool_call|> and <|/tool_call|>, or behind "functools".
#include "parsers/internal.h"

enum { START = MSGL_LIST_STATES, OPENED };
enum { GRANITE, PHI }; // a form's variant

// The markers from FIRST_END on close a list, or mean nothing.
enum { M_TOKEN, M_OTHER, FIRST_END };
static const char *const MARKS[][5] = {
    {"<|tool_call|>", "<tool_call>", "</tool_call>", "<|/tool_call|>", NULL},
    {"<|tool_call|>", "functools[", "<|/tool_call|>", NULL},
};

// Before an object of the list.
static int list(msgl_parser *p, char c)
{
    if (msgl__is_space(c)) return msgl__buffer(p, c);
    if (c != '{') return msgl__give_back(p);
    msgl__list_object(p);
    return 0;
}

void msgl__list_object(msgl_parser *p)
{
    p->state = MSGL_LIST_CALL;
    p->again = true;
    msgl__json_call_start(p);
}

static int list_call(msgl_parser *p, char c)
{
    msgl_json_call_step step;
    const int rc = msgl__json_call_add(p, c, &step);
    if (rc != 0 || step == MSGL_JSON_CALL_MORE) return rc;
    if (!p->in_call) return msgl__give_back(p);
    p->state = MSGL_LIST_NEXT;
    p->again = step == MSGL_JSON_CALL_FAIL;
    return msgl__call_end(p);
}

static int list_next(msgl_parser *p, char c)
{
    if (msgl__is_space(c) || c == '}') return 0;
    if (c == ',') {
        p->state = MSGL_LIST;
        return msgl__buffer(p, c);
    }
    p->again = c != ']';
    return msgl__call_done(p);
}

int msgl__in_list(msgl_parser *p, char c)
{
    switch (p->state) {
    case MSGL_LIST: return list(p, c);
    case MSGL_LIST_CALL: return list_call(p, c);
    default: return list_next(p, c);
    }
}

// Behind a marker (p->marked), or nothing but white space so far.
static int opened(msgl_parser *p, char c)
{
    if (msgl__is_space(c)) return msgl__buffer(p, c);
    if (c == '{' && p->marked) {
        msgl__list_object(p);
        return 0;
    }
    if (c != '[') return msgl__give_back(p);
    p->state = MSGL_LIST;
    return msgl__buffer(p, c);
}

static int text(msgl_parser *p, char c)
{
    const int variant = p->form->variant;
    const bool behind_call = p->trim;
    int rc;
    const int mark = msgl__text_until(p, MARKS[variant], c, &rc);
    if (mark < 0 || rc != 0) return rc;
    if (mark >= FIRST_END) {
        if (!behind_call) rc = msgl__put_text(p, p->pending.data, p->pending.len);
        msgl__strbuf_clear(&p->pending);
        return rc;
    }
    p->marked = true;
    p->state = variant == PHI && mark == M_OTHER ? MSGL_LIST : OPENED;
    return 0;
}

int msgl__list_step(msgl_parser *p, char c)
{
    switch (p->state) {
    case START:
    case OPENED: return opened(p, c);
    case MSGL_LIST:
    case MSGL_LIST_CALL:
    case MSGL_LIST_NEXT: return msgl__in_list(p, c);
    default: return text(p, c);
    }
}

int msgl__list_finish(msgl_parser *p)
{
    return p->in_call || p->state == MSGL_LIST_NEXT ? msgl__call_done(p) : msgl__give_back(p);
}
