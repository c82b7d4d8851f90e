// SPDX-License-Identifier: Apache-2.0
//
// Python calls, of Llama 3.2 and 4 and others: the answer is [f(a="x", n=3), g()], or it stands
// behind a tag. Python is not JSON: a call is read when it is complete, so its arguments come in
// one piece.
#include "parsers/internal.h"

enum { START = MSGL_FORM_TEXT + 1, LIST, NAME, ARGS, NEXT, AFTER };

static const char *const OPEN[] = {"<|python_tag|>", "<|python_start|>", NULL};
static const char *const TAGS[] = {"<|python_end|>", "<|eom_id|>", NULL};

static int start(msgl_parser *p, char c)
{
    if (msgl__is_space(c)) return msgl__buffer(p, c);
    if (c != '[') return msgl__give_back(p);
    p->state = LIST;
    return msgl__buffer(p, c);
}

static int name(msgl_parser *p, char c)
{
    if (p->state == LIST && msgl__is_space(c)) return msgl__buffer(p, c);
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

// Behind a call.
static int next(msgl_parser *p, char c)
{
    if (msgl__is_space(c)) return 0;
    if (c == ',') {
        p->state = LIST;
        return msgl__buffer(p, c);
    }
    if (c == ']') {
        p->state = AFTER;
        return 0;
    }
    p->again = true;
    return msgl__call_done(p);
}

// Behind the list: a tag that closes, or content.
static int after(msgl_parser *p, char c)
{
    if (p->match.len == 0 && msgl__is_space(c)) return 0;
    char plain[MSGL_MARK_MAX];
    int n;
    const int mark = msgl__match_add(&p->match, TAGS, c, plain, &n);
    if (mark < 0 && n == 0) return 0;
    const int rc = msgl__call_done(p);
    return rc == 0 ? msgl__put_text(p, plain, (size_t)n) : rc;
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
    default: return msgl__text_or_call(p, OPEN, c, START);
    }
}

int msgl__pythonic_finish(msgl_parser *p)
{
    if (p->state == AFTER) p->match.len = 0;
    return p->state == NEXT || p->state == AFTER ? msgl__call_done(p) : msgl__give_back(p);
}
