// SPDX-License-Identifier: Apache-2.0
//
// Forms that tag each argument. GLM-4.5:
// <tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>
// ...\n</tool_call>; Qwen3-Coder: <tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>
// ...\n</function>\n</tool_call>. Values have no types: the tool's schema says what is a string. An
// argument is handed on when it is complete. Qwen3-Coder's models leave <tool_call> out at times:
// <function= and a tool's name begin a call, too.
#include <string.h>

#include "parsers/internal.h"

enum { BEFORE_NAME = MSGL_FORM_TEXT + 1, NAME, BETWEEN, KEY, BEFORE_VALUE, VALUE };

// Each list is what may come in a state, a NULL behind it.
typedef struct tags {
    const char *before_name[2]; // [0] NULL: the name comes at once
    const char *name[4];        // what ends a name ...
    int state[3];               // ... and where it leads
    const char *between[6];     // as the enum below has them
    const char *key[2];
    const char *before_value[2]; // [0] NULL: the value comes at once
    const char *value[2];
    const char *ends[3]; // of a call: what an answer that lacks the tag before may end in
    bool lines; // a line break behind a value's tag and before the closing one are the form's
} tags;

// Of `between`: the next argument; the call's end; what begins another call though this one was not
// closed, with the tag around it and without; what is read over.
enum { NEXT_ARGUMENT, CALL_END, CALL_OPEN, FUNCTION_OPEN, NOTHING };

// NAME's last one ends the call.
static const tags FORMS[] = {
    {.before_name = {NULL},
     .name = {"\n", "<arg_key>", "</tool_call>", NULL},
     .state = {BETWEEN, KEY, MSGL_FORM_TEXT},
     .between = {"<arg_key>", "</tool_call>", "<tool_call>", NULL},
     .key = {"</arg_key>", NULL},
     .before_value = {"<arg_value>", NULL},
     .value = {"</arg_value>", NULL},
     .ends = {"</tool_call>", NULL}},
    {.before_name = {"<function=", NULL},
     .name = {">", NULL},
     .state = {BETWEEN},
     .between = {"<parameter=", "</tool_call>", "<tool_call>", "<function=", "</function>", NULL},
     .key = {">", NULL},
     .before_value = {NULL},
     .value = {"</parameter>", NULL},
     .ends = {"</tool_call>", "</function>", NULL},
     .lines = true},
};

static const char *const OPEN[][3] = {{"<tool_call>", NULL}, {"<tool_call>", "<function=", NULL}};

static const tags *tags_of(const msgl_parser *p)
{
    return &FORMS[p->form->variant];
}

static void open_name(msgl_parser *p)
{
    p->state = NAME;
    msgl__strbuf_clear(&p->name);
}

// A call's first tag came, with what is around it or without: index 1 of OPEN.
static int open_call(msgl_parser *p, int mark)
{
    const char *const *open = OPEN[p->form->variant];
    msgl__strbuf_clear(&p->pending);
    p->state = BEFORE_NAME;
    p->marked = mark == 0;
    if (mark == 1 || tags_of(p)->before_name[0] == NULL) open_name(p);
    msgl__strbuf_clear(&p->name);
    return msgl__strbuf_adds(&p->pending, open[mark]);
}

// Before the call begins: the name, and the tag before it.
static int before_call(msgl_parser *p, char c)
{
    const tags *t = tags_of(p);
    const bool in_name = p->state == NAME;
    const bool space = msgl__is_space(c) && p->match.len == 0 && p->name.len == 0;
    if (space && (!in_name || t->before_name[0] == NULL)) return msgl__buffer(p, c);
    char plain[MSGL_MARK_MAX];
    int n;
    const int mark = msgl__match_add(&p->match, in_name ? t->name : t->before_name, c, plain, &n);
    for (int i = 0; i < n; i++) {
        const bool fits = in_name && msgl__is_name_char(plain[i]);
        if (!fits || p->name.len >= MSGL_TOOL_NAME_MAX) return msgl__give_back(p);
        const int rc = msgl__strbuf_addc(&p->name, plain[i]);
        if (rc != 0) return rc;
    }
    if (mark >= 0 && in_name) {
        const bool known = msgl__tool_set_has(p->cfg.known, p->name.data, p->name.len);
        if (p->name.len == 0 || !(p->marked || known)) return msgl__give_back(p);
    }
    int rc = msgl__buffer(p, c);
    if (mark < 0 || rc != 0) return rc;
    if (!in_name) {
        open_name(p);
        return 0;
    }
    p->state = t->state[mark];
    p->depth = 0;
    msgl__strbuf_clear(&p->key);
    rc = msgl__call_begin(p);
    if (rc == 0 && p->state == MSGL_FORM_TEXT) rc = msgl__call_done(p);
    return rc;
}

// The call is complete, as far as it came.
static int end(msgl_parser *p)
{
    const int rc = p->depth > 0 ? msgl__call_arguments(p, "}", 1) : 0;
    return rc == 0 ? msgl__call_done(p) : rc;
}

static int argument(msgl_parser *p)
{
    const char *s = msgl__strbuf_str(&p->value);
    size_t len = p->value.len;
    if (tags_of(p)->lines && len > 0 && s[len - 1] == '\n') len--;
    if (tags_of(p)->lines && len > 0 && s[0] == '\n') {
        s++;
        len--;
    }
    const msgl_param_type type =
        msgl__tool_set_type(p->cfg.known, msgl__strbuf_str(&p->name), msgl__strbuf_str(&p->key));
    msgl_strbuf *out = &p->pending; // empty in a call
    msgl__strbuf_clear(out);
    int rc = msgl__strbuf_adds(out, p->depth++ == 0 ? "{" : ", ");
    if (rc == 0) rc = msgl__put_json_string(out, msgl__strbuf_str(&p->key), p->key.len);
    if (rc == 0) rc = msgl__strbuf_adds(out, ": ");
    if (rc == 0) rc = msgl__put_untyped(out, s, len, type);
    if (rc == 0) rc = msgl__call_arguments(p, msgl__strbuf_str(out), out->len);
    msgl__strbuf_clear(out);
    return rc;
}

// A tag is complete.
static int tag(msgl_parser *p, int mark)
{
    const tags *t = tags_of(p);
    switch (p->state) {
    case BETWEEN:
        if (mark == NOTHING) return 0;
        if (mark != NEXT_ARGUMENT) {
            const int rc = end(p);
            if (rc != 0 || mark == CALL_END) return rc;
            return open_call(p, mark == FUNCTION_OPEN);
        }
        p->state = KEY;
        msgl__strbuf_clear(&p->key);
        return 0;
    case KEY: p->state = t->before_value[0] == NULL ? VALUE : BEFORE_VALUE; break;
    case BEFORE_VALUE: p->state = VALUE; break;
    default: p->state = BETWEEN; return argument(p);
    }
    msgl__strbuf_clear(&p->value);
    return 0;
}

static int in_call(msgl_parser *p, char c)
{
    const tags *t = tags_of(p);
    const bool in_key = p->state == KEY, in_value = p->state == VALUE;
    if (!in_key && !in_value && p->match.len == 0 && msgl__is_space(c)) return 0;
    const char *const *marks = in_key                ? t->key
                               : in_value            ? t->value
                               : p->state == BETWEEN ? t->between
                                                     : t->before_value;
    char plain[MSGL_MARK_MAX];
    int n;
    const int mark = msgl__match_add(&p->match, marks, c, plain, &n);
    int rc = 0;
    if (n > 0 && !in_key && !in_value) { // neither an argument nor the end
        rc = end(p);
        return rc == 0 ? msgl__put_text(p, plain, (size_t)n) : rc;
    }
    if (n > 0) rc = msgl__strbuf_add(in_key ? &p->key : &p->value, plain, (size_t)n);
    return rc == 0 && mark >= 0 ? tag(p, mark) : rc;
}

int msgl__tagged_step(msgl_parser *p, char c)
{
    int rc = 0;
    if (p->state == BEFORE_NAME || p->state == NAME) return before_call(p, c);
    if (p->state != MSGL_FORM_TEXT) return in_call(p, c);
    const int mark = msgl__text_until(p, OPEN[p->form->variant], c, &rc);
    return mark < 0 || rc != 0 ? rc : open_call(p, mark);
}

// Whether the value, whose own end did not come, ends in that of its call. That is cut off.
static bool ends_as_call(msgl_parser *p)
{
    const char *const *ends = tags_of(p)->ends;
    msgl_strbuf *v = &p->value;
    bool found = false;
    for (int i = 0; ends[i] != NULL; i++) {
        const size_t n = strlen(ends[i]);
        size_t len = v->len;
        while (len > 0 && msgl__is_space(v->data[len - 1])) len--;
        if (len < n || memcmp(v->data + len - n, ends[i], n) != 0) continue;
        v->len = len - n;
        v->data[v->len] = '\0';
        found = true;
    }
    return found;
}

// An argument that the end has cut is left out, and the object has no end then: it shows.
int msgl__tagged_finish(msgl_parser *p)
{
    if (!p->in_call) return msgl__give_back(p);
    p->match.len = 0;
    if (p->state == BETWEEN) return end(p);
    if (p->state == VALUE && ends_as_call(p)) {
        const int rc = argument(p);
        return rc == 0 ? end(p) : rc;
    }
    const int rc = p->depth == 0 ? msgl__call_arguments(p, "{", 1) : 0;
    return rc == 0 ? msgl__call_done(p) : rc;
}
