// SPDX-License-Identifier: Apache-2.0
//
// Gemma 4: <|tool_call>call:f{a:<|"|>x<|"|>,n:3,o:{k:[true]}}<tool_call|>, and FunctionGemma with
// other marks. Keys have no quotes, strings have marks for them and no escapes: it becomes JSON as
// it comes, strings byte by byte, other values when they are complete.
#include <string.h>

#include "parsers/internal.h"

enum { OPENED = MSGL_FORM_TEXT + 1, NAME, KEY, VALUE, STRING, BARE, NEXT, CLOSE };

// An object or a list that is open, in p->value; a capital letter once it has a member.
enum { OBJECT = 'o', LIST = 'l', FILLED = 'a' - 'A' };

typedef struct gemma_marks {
    const char *in_call[3]; // what is around a string, and what closes a call
    const char *closing[3]; // behind a call: what closes it, and what opens another one
} gemma_marks;

static const gemma_marks FORMS[] = {
    [MSGL_GEMMA_4] = {{"<|\"|>", "<tool_call|>"}, {"<tool_call|>", "<|tool_call>"}},
    [MSGL_GEMMA_FUNCTION] = {{"<escape>", "<end_function_call>"},
                             {"<end_function_call>", "<start_function_call>"}},
};
static const char *const PREFIX[] = {"call:", NULL};

static const gemma_marks *marks_of(const msgl_parser *p)
{
    return &FORMS[p->form->variant];
}

static int put(msgl_parser *p, const char *text)
{
    return msgl__call_arguments(p, text, strlen(text));
}

static char top(const msgl_parser *p)
{
    return p->value.data[p->value.len - 1];
}

static bool in_object(const msgl_parser *p)
{
    return top(p) == OBJECT || top(p) == OBJECT - FILLED;
}

// A value begins: what stands before it.
static int begin_value(msgl_parser *p)
{
    char *t = &p->value.data[p->value.len - 1];
    const bool first = *t >= 'a';
    int rc = first ? 0 : put(p, ", ");
    if (first) *t -= FILLED;
    if (rc != 0 || !in_object(p)) return rc;
    msgl_strbuf *out = &p->pending; // empty here
    rc = msgl__put_json_string(out, msgl__strbuf_str(&p->key), p->key.len);
    if (rc == 0) rc = msgl__strbuf_adds(out, ": ");
    if (rc == 0) rc = msgl__call_arguments(p, out->data, out->len);
    msgl__strbuf_clear(out);
    return rc;
}

static int open_bracket(msgl_parser *p, char c)
{
    const int rc = msgl__strbuf_addc(&p->value, c == '{' ? OBJECT : LIST);
    p->state = c == '{' ? KEY : VALUE;
    p->quote = 0;
    msgl__strbuf_clear(&p->key);
    return rc == 0 ? msgl__call_arguments(p, &c, 1) : rc;
}

// A bracket closes, whichever it is: the one that is open.
static int close_bracket(msgl_parser *p)
{
    const int rc = put(p, in_object(p) ? "}" : "]");
    p->value.len--;
    p->state = p->value.len == 0 ? CLOSE : NEXT;
    return rc == 0 && p->value.len == 0 ? msgl__call_end(p) : rc;
}

static void next_member(msgl_parser *p)
{
    p->state = in_object(p) ? KEY : VALUE;
    p->quote = 0;
    msgl__strbuf_clear(&p->key);
}

// A value without marks around it is complete, in p->pending.
static int end_bare(msgl_parser *p)
{
    msgl_strbuf out;
    size_t len = p->pending.len;
    while (len > 0 && msgl__is_space(p->pending.data[len - 1])) len--;
    msgl__strbuf_init(&out, p->pending.max);
    const msgl_param_type type = p->value.len > 1
                                     ? MSGL_PARAM_UNKNOWN
                                     : msgl__tool_set_type(p->cfg.known, msgl__strbuf_str(&p->name),
                                                           msgl__strbuf_str(&p->key));
    int rc = msgl__put_untyped(&out, msgl__strbuf_str(&p->pending), len, type);
    msgl__strbuf_clear(&p->pending);
    if (rc == 0) rc = begin_value(p);
    if (rc == 0) rc = msgl__call_arguments(p, out.data, out.len);
    msgl__strbuf_free(&out);
    p->state = NEXT;
    return rc;
}

static int value(msgl_parser *p, char c)
{
    if (msgl__is_space(c)) return 0;
    if (c == '{' || c == '[') {
        const int rc = begin_value(p);
        return rc == 0 ? open_bracket(p, c) : rc;
    }
    if (c == ']' || c == '}') return close_bracket(p);
    if (c == ',') {
        next_member(p);
        return 0;
    }
    p->state = BARE;
    return msgl__strbuf_addc(&p->pending, c);
}

static int key(msgl_parser *p, char c)
{
    if (p->quote == 0 && c == ':') {
        p->state = VALUE;
        return 0;
    }
    if (p->quote == 0 && c == '}') return close_bracket(p);
    const bool skip = p->quote == 0 && p->key.len == 0 && (msgl__is_space(c) || c == ',');
    return skip ? 0 : msgl__strbuf_addc(&p->key, c);
}

// A byte of a call's arguments that belongs to no mark.
static int plain_byte(msgl_parser *p, char c)
{
    int rc = 0;
    switch (p->state) {
    case KEY: return key(p, c);
    case VALUE: return value(p, c);
    case STRING:
        rc = msgl__put_json_byte(&p->pending, c);
        if (rc == 0) rc = msgl__call_arguments(p, p->pending.data, p->pending.len);
        msgl__strbuf_clear(&p->pending);
        return rc;
    case BARE:
        if (c != ',' && c != '}' && c != ']') return msgl__strbuf_addc(&p->pending, c);
        rc = end_bare(p);
        break;
    default: break; // NEXT
    }
    if (rc == 0 && c == ',') next_member(p);
    return rc == 0 && (c == '}' || c == ']') ? close_bracket(p) : rc;
}

// The mark around strings.
static int quote(msgl_parser *p)
{
    int rc = 0;
    switch (p->state) {
    case KEY: p->quote = p->quote == 0 ? '"' : 0; break;
    case VALUE:
        rc = begin_value(p);
        p->state = STRING;
        return rc == 0 ? put(p, "\"") : rc;
    case STRING: p->state = NEXT; return put(p, "\"");
    default: break; // one that means nothing
    }
    return rc;
}

static int arguments(msgl_parser *p, char c)
{
    const char *const string[] = {marks_of(p)->in_call[0], NULL};
    char plain[MSGL_MARK_MAX];
    int n, rc = 0;
    const bool in_string = p->state == STRING;
    const int mark =
        msgl__match_add(&p->match, in_string ? string : marks_of(p)->in_call, c, plain, &n);
    // Of these only the last, c, can open, close or part something: marks have none of these.
    for (int i = 0; i < n && rc == 0; i++) rc = plain_byte(p, plain[i]);
    if (rc != 0 || mark < 0) return rc;
    if (mark == 0) return quote(p);
    return msgl__call_done(p); // brackets that are missing stay so
}

static void open_call(msgl_parser *p)
{
    p->state = OPENED;
    p->marked = true;
    msgl__strbuf_clear(&p->name);
}

// Up to the name's end.
static int head(msgl_parser *p, char c)
{
    char plain[MSGL_MARK_MAX];
    int n;
    if (p->state == OPENED) {
        if (p->match.len == 0 && msgl__is_space(c)) return msgl__buffer(p, c);
        const int mark = msgl__match_add(&p->match, PREFIX, c, plain, &n);
        if (n > 0) return msgl__give_back(p);
        if (mark >= 0) p->state = NAME;
        return msgl__buffer(p, c);
    }
    if (c == '{' && p->name.len > 0) {
        const int rc = msgl__call_begin(p);
        msgl__strbuf_clear(&p->value);
        return rc == 0 ? open_bracket(p, c) : rc;
    }
    if (!msgl__is_name_char(c) || p->name.len >= MSGL_TOOL_NAME_MAX) return msgl__give_back(p);
    const int rc = msgl__strbuf_addc(&p->name, c);
    return rc == 0 ? msgl__buffer(p, c) : rc;
}

// Behind a call: brackets too many, its mark, another call, or content.
static int closing(msgl_parser *p, char c)
{
    if (p->match.len == 0 && (msgl__is_space(c) || c == '}')) return 0;
    char plain[MSGL_MARK_MAX];
    int n;
    const int mark = msgl__match_add(&p->match, marks_of(p)->closing, c, plain, &n);
    if (mark < 0 && n == 0) return 0;
    int rc = msgl__call_done(p);
    if (rc == 0) rc = msgl__put_text(p, plain, (size_t)n);
    if (mark != 1 || rc != 0) return rc;
    open_call(p);
    return msgl__strbuf_adds(&p->pending, marks_of(p)->closing[1]);
}

int msgl__gemma_step(msgl_parser *p, char c)
{
    int rc = 0;
    switch (p->state) {
    case OPENED:
    case NAME: return head(p, c);
    case CLOSE: return closing(p, c);
    case MSGL_FORM_TEXT:
        if (msgl__text_until(p, marks_of(p)->closing + 1, c, &rc) >= 0) open_call(p);
        return rc;
    default: return arguments(p, c);
    }
}

// A value that the end has cut is left out, unless it is a string: what is open stays so.
int msgl__gemma_finish(msgl_parser *p)
{
    if (!p->in_call && p->state != CLOSE) return msgl__give_back(p);
    p->match.len = 0;
    return msgl__call_done(p);
}
