// SPDX-License-Identifier: Apache-2.0
//
// Mistral, behind content: [TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...], and of newer
// models [TOOL_CALLS]f[CALL_ID]123456789[ARGS]{...}, where what is between name and object may be
// missing and each call has its marker.
#include "parsers/internal.h"

enum { OPENED = MSGL_LIST_STATES, NAME, ID, ARGS };

static const char *const OPEN[] = {"[TOOL_CALLS]", NULL};
static const char *const BEHIND_NAME[] = {"[ARGS]", "[CALL_ID]", NULL};
static const char *const BEHIND_ID[] = {"[ARGS]", NULL};

// Behind the marker.
static int opened(msgl_parser *p, char c)
{
    if (msgl__is_space(c)) return msgl__buffer(p, c);
    if (c == '[') {
        p->state = MSGL_LIST;
        return msgl__buffer(p, c);
    }
    if (c == '{') {
        msgl__list_object(p);
    } else {
        p->again = true;
        p->state = NAME;
        msgl__strbuf_clear(&p->name);
    }
    return 0;
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
    const int rc = msgl__buffer(p, c);
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
    case MSGL_LIST:
    case MSGL_LIST_CALL:
    case MSGL_LIST_NEXT: return msgl__in_list(p, c);
    case NAME:
    case ID: return name(p, c);
    case ARGS: return arguments(p, c);
    default: return msgl__text_or_call(p, OPEN, c, OPENED);
    }
}

int msgl__mistral_finish(msgl_parser *p)
{
    return p->in_call || p->state == MSGL_LIST_NEXT ? msgl__call_done(p) : msgl__give_back(p);
}
