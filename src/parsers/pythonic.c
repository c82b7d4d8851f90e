// SPDX-License-Identifier: Apache-2.0
//
// Python calls, of Llama 3.2 and 4 and others: the answer is [f(a="x", n=3), g()], or it stands
// behind a tag; of LFM2 between <|tool_call_start|> and <|tool_call_end|>, also as a list of JSON
// objects; of Olmo 3 in <function_calls>, a call a line without brackets. Python is not JSON: a
// call is read when it is complete, so its arguments come in one piece.
#include "parsers/internal.h"

enum { START = MSGL_LIST_STATES, LIST, NAME, ARGS, NEXT, AFTER };

typedef struct python_marks {
    const char *marks[5]; // what calls stand behind, then what closes them
    int ends;             // the first of the latter
    bool lines;           // a call a line: brackets and commas may be missing
} python_marks;

static const python_marks FORMS[] = {
    [MSGL_PYTHON_LLAMA] = {.marks = {"<|python_tag|>", "<|python_start|>", "<|python_end|>",
                                     "<|eom_id|>"},
                           .ends = 2},
    [MSGL_PYTHON_LFM2] = {.marks = {"<|tool_call_start|>", "<|tool_call_end|>"}, .ends = 1},
    [MSGL_PYTHON_OLMO] = {.marks = {"<function_calls>", "</function_calls>"},
                          .ends = 1,
                          .lines = true},
};

static const python_marks *marks_of(const msgl_parser *p)
{
    return &FORMS[p->form->variant];
}

static int start(msgl_parser *p, char c)
{
    if (msgl__is_space(c)) return msgl__buffer(p, c);
    const bool line = marks_of(p)->lines && c != '[';
    if (c != '[' && !line) return msgl__give_back(p);
    p->state = LIST;
    p->again = line;
    return line ? 0 : msgl__buffer(p, c);
}

static int name(msgl_parser *p, char c)
{
    if (p->state == LIST && msgl__is_space(c)) return msgl__buffer(p, c);
    if (p->state == LIST && c == '{' && p->marked && p->form->objects) {
        msgl__list_object(p);
        return 0;
    }
    if (p->state == LIST) {
        p->state = NAME;
        msgl__strbuf_clear(&p->name);
    }
    if (c == '(') {
        const bool known = msgl__tool_set_has(p->cfg.known, p->name.data, p->name.len);
        if (p->name.len == 0 || !(known || p->marked)) return msgl__give_back(p);
        p->state = ARGS;
        p->depth = 0;
        p->quote = 0;
        p->escaped = false;
        msgl__strbuf_clear(&p->value);
        return msgl__buffer(p, c);
    }
    const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '.' || c == '-';
    if (!fits || p->name.len >= MSGL_TOOL_NAME_MAX) return msgl__give_back(p);
    const int rc = msgl__strbuf_addc(&p->name, c);
    return rc == 0 ? msgl__buffer(p, c) : rc;
}

// The arguments are complete.
static int call(msgl_parser *p)
{
    msgl__strbuf_clear(&p->key);
    int rc = msgl__python_arguments(msgl__strbuf_str(&p->value), p->value.len, &p->key);
    if (rc == MSGL_EFORMAT) return msgl__give_back(p);
    if (rc == 0) rc = msgl__call_begin(p);
    if (rc == 0) rc = msgl__call_arguments(p, msgl__strbuf_str(&p->key), p->key.len);
    p->state = NEXT;
    return rc == 0 ? msgl__call_end(p) : rc;
}

static int arguments(msgl_parser *p, char c)
{
    if (p->quote != 0) {
        const bool ends = !p->escaped && c == p->quote;
        p->escaped = !p->escaped && c == '\\';
        if (ends) p->quote = 0;
    } else if (c == '"' || c == '\'') {
        p->quote = c;
    } else if (c == '(' || c == '[' || c == '{') {
        p->depth++;
    } else if (c == ')' && p->depth == 0) {
        return call(p);
    } else if (c == ')' || c == ']' || c == '}') {
        p->depth--;
    }
    if (p->depth < 0) return msgl__give_back(p);
    const int rc = msgl__strbuf_addc(&p->value, c);
    return rc == 0 ? msgl__buffer(p, c) : rc;
}

// Behind the list, or a line: a tag that closes, or content.
static int after(msgl_parser *p, char c)
{
    if (p->match.len == 0 && msgl__is_space(c)) return 0;
    char plain[MSGL_MARK_MAX];
    int n;
    const python_marks *f = marks_of(p);
    const int mark = msgl__match_add(&p->match, f->marks + f->ends, c, plain, &n);
    if (mark < 0 && n == 0) return 0;
    const int rc = msgl__call_done(p);
    return rc == 0 ? msgl__put_text(p, plain, (size_t)n) : rc;
}

// Behind a call.
static int next(msgl_parser *p, char c)
{
    if (msgl__is_space(c)) return 0;
    const bool lines = marks_of(p)->lines;
    if (c == ',' || (lines && p->marked && c != ']' && c != '<')) {
        p->state = LIST;
        p->again = c != ',';
        return c == ',' ? msgl__buffer(p, c) : 0;
    }
    if (c == ']' || (lines && c == '<')) {
        p->state = AFTER;
        p->again = c == '<';
        return 0;
    }
    p->again = true;
    return msgl__call_done(p);
}

static int text(msgl_parser *p, char c)
{
    const python_marks *f = marks_of(p);
    const bool behind_call = p->trim;
    int rc;
    const int mark = msgl__text_until(p, f->marks, c, &rc);
    if (mark < 0 || rc != 0) return rc;
    p->marked = mark < f->ends;
    if (p->marked) p->state = START;
    if (p->marked) return 0;
    if (!behind_call) rc = msgl__put_text(p, p->pending.data, p->pending.len);
    msgl__strbuf_clear(&p->pending);
    return rc;
}

int msgl__pythonic_step(msgl_parser *p, char c)
{
    switch (p->state) {
    case START: return start(p, c);
    case LIST:
    case NAME: return name(p, c);
    case ARGS: return arguments(p, c);
    case NEXT: return next(p, c);
    case AFTER: return after(p, c);
    case MSGL_LIST:
    case MSGL_LIST_CALL:
    case MSGL_LIST_NEXT: return msgl__in_list(p, c);
    default: return text(p, c);
    }
}

int msgl__pythonic_finish(msgl_parser *p)
{
    if (p->state == AFTER) p->match.len = 0;
    const bool behind_call = p->state == NEXT || p->state == AFTER || p->state == MSGL_LIST_NEXT;
    return p->in_call || behind_call ? msgl__call_done(p) : msgl__give_back(p);
}
