// SPDX-License-Identifier: Apache-2.0
//
// Calls as a JSON list [{"name": "f", "arguments": {...}}, ...]. Granite 3 writes it behind
// <|tool_call|> or <tool_call>, or as the whole answer, which is one of calls only if it names a
// tool that there is; Phi-4-mini between <|tool_call|> and <|/tool_call|>, or behind "functools";
// Hunyuan-A13B and Jamba in <tool_calls>; Nemotron Nano 2 in <TOOLCALL>; Cohere in <|START_ACTION|>
// with other keys; Apertus in
// <|tools_prefix|>, of {"f": {...}}; xLAM as the whole answer, in a block of code, or behind other
// models' marks.
#include "parsers/internal.h"

enum { START = MSGL_LIST_STATES, OPENED };

typedef struct list_marks {
    const char *marks[6];
    int ends;    // the marks from this one on close a list, or mean nothing
    int bracket; // this mark has the list's bracket; 0: none (the first one never has)
    int code;    // this mark begins a block of code, which need not be a call; 0: none
} list_marks;

static const list_marks FORMS[] = {
    [MSGL_LIST_GRANITE] = {.marks = {"<|tool_call|>", "<tool_call>", "</tool_call>",
                                     "<|/tool_call|>"},
                           .ends = 2},
    [MSGL_LIST_PHI] = {.marks = {"<|tool_call|>", "functools[", "<|/tool_call|>"},
                       .ends = 2,
                       .bracket = 1},
    [MSGL_LIST_HUNYUAN] = {.marks = {"<tool_calls>", "</tool_calls>"}, .ends = 1},
    [MSGL_LIST_NEMOTRON] = {.marks = {"<TOOLCALL>", "</TOOLCALL>"}, .ends = 1},
    [MSGL_LIST_COHERE] = {.marks = {"<|START_ACTION|>", "<|END_ACTION|>"}, .ends = 1},
    [MSGL_LIST_APERTUS] = {.marks = {"<|tools_prefix|>", "<|tools_suffix|>"}, .ends = 1},
    [MSGL_LIST_XLAM] = {.marks = {"<tool_call>", "[TOOL_CALLS]", "```json\n", "</tool_call>"},
                        .ends = 3,
                        .code = 2},
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
    const list_marks *f = &FORMS[p->form->variant];
    const bool behind_call = p->trim;
    const bool code_end = behind_call && f->code > 0 && c == '`' && p->match.len == 0;
    if (code_end) return 0;
    int rc;
    const int mark = msgl__text_until(p, f->marks, c, &rc);
    if (mark < 0 || rc != 0) return rc;
    if (mark >= f->ends) {
        if (!behind_call) rc = msgl__put_text(p, p->pending.data, p->pending.len);
        msgl__strbuf_clear(&p->pending);
        return rc;
    }
    p->marked = f->code == 0 || mark != f->code;
    p->state = f->bracket > 0 && mark == f->bracket ? MSGL_LIST : OPENED;
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
