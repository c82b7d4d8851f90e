// SPDX-License-Identifier: Apache-2.0
//
// Mistral, behind content: [TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...], and of newer
// models [TOOL_CALLS]f[CALL_ID]123456789[ARGS]{...}, where what is between name and object may be
// missing and each call has its marker.
#include "parsers/internal.h"

enum { OPENED = MSGL_FORM_TEXT + 1, LIST, LIST_CALL, LIST_NEXT, NAME, ID, ARGS };

static const char *const OPEN[] = {"[TOOL_CALLS]", NULL};
static const char *const BEHIND_NAME[] = {"[ARGS]", "[CALL_ID]", NULL};
static const char *const BEHIND_ID[] = {"[ARGS]", NULL};

// Behind the marker.
static int opened(msgl_parser *p, char c)
{
    if (msgl__is_space(c)) return msgl__hold(p, c);
    if (c == '[') {
        p->state = LIST;
        return msgl__hold(p, c);
    }
    p->again = true;
    if (c == '{') {
        p->state = LIST_CALL;
        msgl__json_call_start(p);
    } else {
        p->state = NAME;
        msgl__strbuf_clear(&p->name);
    }
    return 0;
}

// Before an object of the list.
static int list(msgl_parser *p, char c)
{
    if (msgl__is_space(c)) return msgl__hold(p, c);
    if (c != '{') return msgl__give_back(p);
    p->state = LIST_CALL;
    p->again = true;
    msgl__json_call_start(p);
    return 0;
}

static int list_call(msgl_parser *p, char c)
{
    msgl_json_call_step step;
    const int rc = msgl__json_call_add(p, c, &step);
    if (rc != 0 || step == MSGL_JSON_CALL_MORE) return rc;
    if (!p->in_call) return msgl__give_back(p);
    p->state = LIST_NEXT;
    p->again = step == MSGL_JSON_CALL_FAIL;
    return msgl__call_end(p);
}

static int list_next(msgl_parser *p, char c)
{
    if (msgl__is_space(c) || c == '}') return 0;
    if (c == ',') {
        p->state = LIST;
        return msgl__hold(p, c);
    }
    p->again = c != ']';
    return msgl__call_done(p);
}

static void begin_arguments(msgl_parser *p, bool again)
{
    p->state = ARGS;
    p->again = again;
    p->match.len = 0;
    msgl__json_arguments_start(p);
}

// The name, and what may stand between it and the arguments.
static int name(msgl_parser *p, char c)
{
    const bool in_name = p->state == NAME;
    if (c == '{' && p->name.len > 0 && p->match.len == 0) {
        begin_arguments(p, true);
        return 0;
    }
    char plain[MSGL_MARK_MAX];
    int n;
    const int mark = msgl__match_add(&p->match, in_name ? BEHIND_NAME : BEHIND_ID, c, plain, &n);
    for (int i = 0; i < n; i++) {
        const bool fits = msgl__is_name_char(plain[i]) || (msgl__is_space(plain[i]) && !in_name);
        if (!fits || p->name.len >= MSGL_TOOL_NAME_MAX) return msgl__give_back(p);
        const int rc = in_name ? msgl__strbuf_addc(&p->name, plain[i]) : 0;
        if (rc != 0) return rc;
    }
    if (mark >= 0 && p->name.len == 0) return msgl__give_back(p);
    const int rc = msgl__hold(p, c);
    if (mark == 0) begin_arguments(p, false);
    if (mark == 1) p->state = ID;
    return rc;
}

static int arguments(msgl_parser *p, char c)
{
    msgl_json_call_step step;
    const int rc = msgl__json_call_add(p, c, &step);
    if (rc != 0 || step == MSGL_JSON_CALL_MORE) return rc;
    return step == MSGL_JSON_CALL_FAIL ? msgl__give_back(p) : msgl__call_done(p);
}

int msgl__mistral_step(msgl_parser *p, char c)
{
    switch (p->state) {
    case OPENED: return opened(p, c);
    case LIST: return list(p, c);
    case LIST_CALL: return list_call(p, c);
    case LIST_NEXT: return list_next(p, c);
    case NAME:
    case ID: return name(p, c);
    case ARGS: return arguments(p, c);
    default: return msgl__text_or_call(p, OPEN, c, OPENED);
    }
}

int msgl__mistral_finish(msgl_parser *p)
{
    return p->in_call || p->state == LIST_NEXT ? msgl__call_done(p) : msgl__give_back(p);
}
