// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek. Behind content comes a block of calls between CALLS and CALLS_END. Each is, of V3 and
// R1, CALL function SEP f\n```json\n{...}\n``` CALL_END, and of V3.1 (variant 1) CALL f SEP {...}
// CALL_END.
#include <string.h>

#include "parsers/internal.h"

enum { BLOCK = MSGL_FORM_TEXT + 1, HEAD, LINE, FENCE, ARGS, CLOSE };

static const char *const OPEN[] = {MSGL_DEEPSEEK_CALLS, MSGL_DEEPSEEK_CALL, NULL};
static const char *const IN_BLOCK[] = {MSGL_DEEPSEEK_CALLS_END, MSGL_DEEPSEEK_CALL, NULL};
static const char *const SEP[] = {MSGL_DEEPSEEK_SEP, NULL};
static const char *const ENDS[] = {MSGL_DEEPSEEK_CALL_END, MSGL_DEEPSEEK_CALLS_END, NULL};

static void open_call(msgl_parser *p)
{
    p->state = HEAD;
    msgl__strbuf_clear(&p->name);
}

// A block without a call is text. Calls clear what is held, with the marker that opened the block.
static int end_block(msgl_parser *p)
{
    int rc = 0;
    if (strncmp(msgl__strbuf_str(&p->held), OPEN[0], strlen(OPEN[0])) == 0) {
        rc = msgl__put_text(p, p->held.data, p->held.len);
    }
    return rc == 0 ? msgl__call_done(p) : rc;
}

// Before the first call of the block, and between two of them.
static int block(msgl_parser *p, char c)
{
    int rc = msgl__hold(p, c);
    if (rc != 0 || (p->match.len == 0 && msgl__is_space(c))) return rc;
    char plain[MSGL_MARK_MAX];
    int n;
    const int mark = msgl__match_add(&p->match, IN_BLOCK, c, plain, &n);
    if (mark == 0) return end_block(p);
    if (mark == 1) open_call(p);
    if (n == 0) return 0;
    p->held.len--; // c is asked for again
    return msgl__give_back(p);
}

// What the call is, up to the separator.
static int head(msgl_parser *p, char c)
{
    char plain[MSGL_MARK_MAX];
    int n;
    const int mark = msgl__match_add(&p->match, SEP, c, plain, &n);
    int rc = msgl__strbuf_add(&p->name, plain, (size_t)n);
    for (int i = 0; i < n; i++) {
        if (!msgl__is_name_char(plain[i])) return msgl__give_back(p);
    }
    if (p->name.len > MSGL_TOOL_NAME_MAX) return msgl__give_back(p);
    if (rc == 0) rc = msgl__hold(p, c);
    if (mark < 0 || rc != 0) return rc;
    const bool line = p->form->variant == 0 && strcmp(msgl__strbuf_str(&p->name), "function") == 0;
    if (line) msgl__strbuf_clear(&p->name);
    p->state = line ? LINE : FENCE;
    return 0;
}

// V3's name, up to the line's end.
static int line(msgl_parser *p, char c)
{
    if (c != '\n' && (!msgl__is_name_char(c) || p->name.len >= MSGL_TOOL_NAME_MAX)) {
        return msgl__give_back(p);
    }
    if (c == '\n') p->state = FENCE;
    const int rc = c == '\n' ? 0 : msgl__strbuf_addc(&p->name, c);
    return rc == 0 ? msgl__hold(p, c) : rc;
}

// What may stand before the arguments: "```json" and line breaks.
static int fence(msgl_parser *p, char c)
{
    if (msgl__is_space(c) || (c != '\0' && strchr("`json", c) != NULL)) return msgl__hold(p, c);
    p->state = ARGS;
    p->again = true;
    p->marked = true;
    msgl__json_arguments_start(p);
    return 0;
}

static int end_call(msgl_parser *p, int mark)
{
    const int rc = msgl__call_done(p);
    if (mark == 0) p->state = BLOCK;
    return rc;
}

static int args(msgl_parser *p, char c)
{
    msgl_json_call_step step;
    const int rc = msgl__json_call_until(p, ENDS, c, &step);
    if (rc != 0 || step == MSGL_JSON_CALL_MORE) return rc;
    if (step == MSGL_JSON_CALL_FAIL) return msgl__give_back(p);
    if (step == MSGL_JSON_CALL_MARK) return end_call(p, 0);
    p->state = CLOSE;
    return msgl__call_end(p);
}

static int closing(msgl_parser *p, char c)
{
    const bool skip = msgl__is_space(c) || c == '`' || c == '}';
    if (p->match.len == 0 && skip) return 0;
    char plain[MSGL_MARK_MAX];
    int n;
    const int mark = msgl__match_add(&p->match, ENDS, c, plain, &n);
    if (mark < 0 && n == 0) return 0;
    const int rc = end_call(p, mark);
    return rc == 0 ? msgl__put_text(p, plain, (size_t)n) : rc;
}

int msgl__deepseek_step(msgl_parser *p, char c)
{
    int rc = 0;
    switch (p->state) {
    case BLOCK: return block(p, c);
    case HEAD: return head(p, c);
    case LINE: return line(p, c);
    case FENCE: return fence(p, c);
    case ARGS: return args(p, c);
    case CLOSE: return closing(p, c);
    default: break;
    }
    const int mark = msgl__text_until(p, OPEN, c, &rc);
    if (mark == 0) p->state = BLOCK;
    if (mark == 1) open_call(p);
    return rc;
}

int msgl__deepseek_finish(msgl_parser *p)
{
    int rc = 0;
    const bool after_call = p->state == CLOSE || (p->state == BLOCK && p->calls > 0);
    if (!p->in_call && !after_call) return msgl__give_back(p);
    if (p->in_call) rc = msgl__call_arguments(p, p->match.buf, (size_t)p->match.len);
    p->match.len = 0; // or the beginning of a closing marker
    return rc == 0 ? msgl__call_done(p) : rc;
}
