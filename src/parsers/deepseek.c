// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek and Kimi K2. Behind content comes a block of calls between CALLS and CALLS_END. Each is,
// of V3 and R1, CALL function SEP f\n```json\n{...}\n``` CALL_END, of V3.1 CALL f SEP {...}
// CALL_END, and of Kimi the same with functions.f:3 for f, which is also the call's id.
#include <string.h>

#include "parsers/internal.h"

enum { BLOCK = MSGL_FORM_TEXT + 1, HEAD, LINE, FENCE, ARGS, CLOSE };

enum { V3, V31, KIMI }; // a form's variant

// What begins a block or, at the index ONE, a call; what a block goes on with, its ends or, at ONE,
// another call; what ends a call, at CALL_ENDS, or its block, too.
typedef struct marks {
    const char *open[4], *in_block[4], *sep[2], *ends[4];
} marks;
enum { ONE = 1, CALL_ENDS = 0 };

static const marks DEEPSEEK = {
    .open = {MSGL_DEEPSEEK_CALLS, MSGL_DEEPSEEK_CALL},
    .in_block = {MSGL_DEEPSEEK_CALLS_END, MSGL_DEEPSEEK_CALL},
    .sep = {MSGL_DEEPSEEK_SEP},
    .ends = {MSGL_DEEPSEEK_CALL_END, MSGL_DEEPSEEK_CALLS_END},
};
// The model also writes the section's markers without their s.
static const marks KIMI_MARKS = {
    .open = {MSGL_KIMI_CALLS, MSGL_KIMI_CALL, "<|tool_call_section_begin|>"},
    .in_block = {MSGL_KIMI_CALLS_END, MSGL_KIMI_CALL, "<|tool_call_section_end|>"},
    .sep = {MSGL_KIMI_SEP},
    .ends = {MSGL_KIMI_CALL_END, MSGL_KIMI_CALLS_END, "<|tool_call_section_end|>"},
};

static const marks *marks_of(const msgl_parser *p)
{
    return p->form->variant == KIMI ? &KIMI_MARKS : &DEEPSEEK;
}

static void open_call(msgl_parser *p)
{
    p->state = HEAD;
    msgl__strbuf_clear(&p->name);
}

// A block without a call is text. Calls clear what is pending, with the marker that opened the
// block.
static int end_block(msgl_parser *p)
{
    const char *const *open = marks_of(p)->open;
    bool whole = false;
    for (int i = 0; open[i] != NULL; i++) {
        whole |= strncmp(msgl__strbuf_str(&p->pending), open[i], strlen(open[i])) == 0;
    }
    const int rc = whole ? msgl__put_text(p, p->pending.data, p->pending.len) : 0;
    return rc == 0 ? msgl__call_done(p) : rc;
}

// Before the first call of the block, and between two of them.
static int block(msgl_parser *p, char c)
{
    int rc = msgl__buffer(p, c);
    if (rc != 0 || (p->match.len == 0 && msgl__is_space(c))) return rc;
    char plain[MSGL_MARK_MAX];
    int n;
    const int mark = msgl__match_add(&p->match, marks_of(p)->in_block, c, plain, &n);
    if (mark == ONE) open_call(p);
    if (mark >= 0 && mark != ONE) return end_block(p);
    if (n == 0) return 0;
    p->pending.len--; // c is asked for again
    return msgl__give_back(p);
}

// Kimi: p->name is functions.f:3, the call's id; its name is f.
static int name_of_id(msgl_parser *p)
{
    static const char before[] = "functions.";
    const size_t skip = strlen(before);
    const char *s = msgl__strbuf_str(&p->name);
    size_t from = strncmp(s, before, skip) == 0 ? skip : 0, to = p->name.len;
    while (to > from && s[to - 1] >= '0' && s[to - 1] <= '9') to--;
    const bool numbered = to > from && to < p->name.len && s[to - 1] == ':';
    to = numbered ? to - 1 : p->name.len;
    msgl__strbuf_clear(&p->id);
    int rc;
    if (numbered) {
        rc = msgl__strbuf_add(&p->id, s, p->name.len);
    } else { // the template would not read another kind of id
        rc = msgl__strbuf_addf(&p->id, "%s%s:%d", before, s + from, p->calls);
    }
    if (rc != 0) return rc;
    memmove(p->name.data, s + from, to - from);
    p->name.len = to - from;
    p->name.data[p->name.len] = '\0';
    return 0;
}

// What the call is, up to the separator. Kimi may have white space around it.
static int head(msgl_parser *p, char c)
{
    const bool kimi = p->form->variant == KIMI;
    if (kimi && p->match.len == 0 && msgl__is_space(c)) return msgl__buffer(p, c);
    char plain[MSGL_MARK_MAX];
    int n;
    const int mark = msgl__match_add(&p->match, marks_of(p)->sep, c, plain, &n);
    int rc = msgl__strbuf_add(&p->name, plain, (size_t)n);
    for (int i = 0; i < n; i++) {
        if (!msgl__is_name_char(plain[i])) return msgl__give_back(p);
    }
    if (p->name.len > MSGL_TOOL_NAME_MAX) return msgl__give_back(p);
    if (rc == 0) rc = msgl__buffer(p, c);
    if (mark < 0 || rc != 0) return rc;
    if (kimi && p->name.len > 0) rc = name_of_id(p);
    const bool line = p->form->variant == V3 && strcmp(msgl__strbuf_str(&p->name), "function") == 0;
    if (line) msgl__strbuf_clear(&p->name);
    p->state = line ? LINE : FENCE;
    return rc;
}

// V3's name, up to the line's end.
static int line(msgl_parser *p, char c)
{
    if (c != '\n' && (!msgl__is_name_char(c) || p->name.len >= MSGL_TOOL_NAME_MAX)) {
        return msgl__give_back(p);
    }
    if (c == '\n') p->state = FENCE;
    const int rc = c == '\n' ? 0 : msgl__strbuf_addc(&p->name, c);
    return rc == 0 ? msgl__buffer(p, c) : rc;
}

// What may stand before the arguments: "```json" and line breaks.
static int fence(msgl_parser *p, char c)
{
    if (msgl__is_space(c) || (c != '\0' && strchr("`json", c) != NULL)) return msgl__buffer(p, c);
    p->state = ARGS;
    p->again = true;
    p->marked = true;
    msgl__json_arguments_start(p);
    return 0;
}

static int end_call(msgl_parser *p, int mark)
{
    const int rc = msgl__call_done(p);
    if (mark == CALL_ENDS) p->state = BLOCK;
    return rc;
}

static int args(msgl_parser *p, char c)
{
    msgl_json_call_step step;
    const int rc = msgl__json_call_until(p, marks_of(p)->ends, c, &step);
    if (rc != 0 || step == MSGL_JSON_CALL_MORE) return rc;
    if (step == MSGL_JSON_CALL_FAIL) return msgl__give_back(p);
    if (step == MSGL_JSON_CALL_MARK) return end_call(p, CALL_ENDS);
    p->state = CLOSE;
    return msgl__call_end(p);
}

static int closing(msgl_parser *p, char c)
{
    const bool skip = msgl__is_space(c) || c == '`' || c == '}';
    if (p->match.len == 0 && skip) return 0;
    char plain[MSGL_MARK_MAX];
    int n;
    const int mark = msgl__match_add(&p->match, marks_of(p)->ends, c, plain, &n);
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
    const int mark = msgl__text_until(p, marks_of(p)->open, c, &rc);
    if (mark >= 0) p->state = BLOCK;
    if (mark == ONE) open_call(p);
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
