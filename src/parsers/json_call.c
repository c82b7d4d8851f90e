// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "parsers/internal.h"
#include "utils/json.h"

enum {
    OBJECT,   // before its {
    FIRST,    // before its first key
    KEY,      // before another
    IN_KEY,   //
    COLON,    //
    VALUE,    //
    NAME,     //
    ARGS,     // an object, handed on
    WAITING,  // an object before the name
    ARGS_STR, // a string that contains the object
    SKIP,     // of other keys
    NEXT,     // behind a value
    ALONE,    // arguments without an object around them: before them
    IN_ALONE, //
};

msgl_span_step msgl__json_span_add(msgl_json_span *s, char c)
{
    if (s->in_string) {
        const bool ends = !s->escaped && c == '"';
        s->escaped = !s->escaped && c == '\\';
        s->in_string = !ends;
        return ends && s->depth == 0 ? MSGL_SPAN_LAST : MSGL_SPAN_MORE;
    }
    if (s->scalar) {
        const bool on = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '.' || c == '+' ||
                        c == '-' || c == 'E';
        return on ? MSGL_SPAN_MORE : MSGL_SPAN_BEHIND;
    }
    switch (c) {
    case '"': s->in_string = true; return MSGL_SPAN_MORE;
    case '{':
    case '[': s->depth++; return MSGL_SPAN_MORE;
    case '}':
    case ']':
        if (s->depth == 0) return MSGL_SPAN_BAD;
        return --s->depth == 0 ? MSGL_SPAN_LAST : MSGL_SPAN_MORE;
    default: break;
    }
    if (s->depth > 0) return MSGL_SPAN_MORE;
    s->scalar = (c >= '0' && c <= '9') || c == '-' || (c >= 'a' && c <= 'z');
    return s->scalar ? MSGL_SPAN_MORE : MSGL_SPAN_BAD;
}

static void start(msgl_parser *p, int state)
{
    p->json = (msgl_json_call){.state = state};
    msgl__strbuf_clear(&p->key);
    msgl__strbuf_clear(&p->value);
}

void msgl__json_call_start(msgl_parser *p)
{
    start(p, OBJECT);
    msgl__strbuf_clear(&p->name);
}

void msgl__json_arguments_start(msgl_parser *p)
{
    start(p, ALONE);
}

// The string literal in *b, quotes and all, as what it means. 0, MSGL_EFORMAT, a buffer's failure.
static int unquote(msgl_strbuf *b)
{
    const char *s = msgl__strbuf_str(b);
    size_t to = 0;
    for (size_t at = 1; at + 1 < b->len;) {
        if (s[at] != '\\') {
            b->data[to++] = b->data[at++];
            continue;
        }
        char out[4];
        size_t used;
        const size_t n = msgl__json_unescape(s + at + 1, b->len - 1 - (at + 1), out, &used);
        if (n == 0) return MSGL_EFORMAT;
        memcpy(b->data + to, out, n); // an escape is never shorter than what it means
        to += n;
        at += 1 + used;
    }
    b->len = to;
    b->data[to] = '\0';
    return 0;
}

static bool is_key(const msgl_parser *p, const char *name)
{
    return strcmp(msgl__strbuf_str(&p->key), name) == 0;
}

// The call begins. *fail: its name is none.
static int commit(msgl_parser *p, bool *fail)
{
    *fail = p->name.len == 0 || p->name.len > MSGL_TOOL_NAME_MAX ||
            memchr(p->name.data, '\0', p->name.len) != NULL ||
            (!p->marked && !msgl__tool_set_has(p->cfg.known, p->name.data, p->name.len));
    return *fail ? 0 : msgl__call_begin(p);
}

// Arguments of a call that begins only now, in p->value.
static int commit_whole(msgl_parser *p, bool *fail)
{
    int rc = commit(p, fail);
    if (rc == 0 && !*fail) {
        rc = msgl__call_arguments(p, msgl__strbuf_str(&p->value), p->value.len);
    }
    return rc;
}

// Apertus: the object's only key is the tool's name, its value the arguments.
static int keyed_begin(msgl_parser *p, char c, bool *fail)
{
    *fail = c != '{';
    if (*fail) return 0;
    msgl__strbuf_clear(&p->name);
    int rc = msgl__strbuf_addf(&p->name, "\"%s\"", msgl__strbuf_str(&p->key));
    if (rc == 0) rc = unquote(&p->name);
    *fail = rc == MSGL_EFORMAT;
    if (*fail || rc != 0) return *fail ? 0 : rc;
    p->json.has_name = true;
    p->json.state = ARGS;
    rc = commit(p, fail);
    return rc == 0 && !*fail ? msgl__call_arguments(p, &c, 1) : rc;
}

static bool is_name_key(const msgl_parser *p)
{
    return is_key(p, "name") || (p->form->name_key != NULL && is_key(p, p->form->name_key));
}

// The first byte of a value.
static int value_begin(msgl_parser *p, char c, bool *fail)
{
    msgl_json_call *j = &p->json;
    j->span = (msgl_json_span){0};
    *fail = msgl__json_span_add(&j->span, c) == MSGL_SPAN_BAD;
    if (*fail) return 0;
    if (p->form->keyed && !j->has_name) return keyed_begin(p, c, fail);
    if (is_name_key(p) && !j->has_name) {
        *fail = c != '"';
        j->state = NAME;
        return msgl__strbuf_addc(&p->name, c);
    }
    const bool arguments = is_key(p, "arguments") || is_key(p, "parameters");
    if (!arguments || j->has_arguments || c == 'n') { // null: none
        j->state = SKIP;
        return 0;
    }
    if (c == '"') {
        j->state = ARGS_STR;
        return msgl__strbuf_addc(&p->value, c);
    }
    *fail = c != '{';
    if (*fail) return 0;
    if (!j->has_name) {
        j->state = WAITING;
        return msgl__strbuf_addc(&p->value, c);
    }
    j->state = ARGS;
    const int rc = commit(p, fail);
    return rc == 0 && !*fail ? msgl__call_arguments(p, &c, 1) : rc;
}

// The last byte of a value has come.
static int value_end(msgl_parser *p, bool *fail)
{
    msgl_json_call *j = &p->json;
    const int was = j->state;
    int rc = 0;
    j->state = NEXT;
    if (was == NAME) {
        j->has_name = true;
        rc = unquote(&p->name);
    } else if (was == ARGS_STR) {
        rc = unquote(&p->value);
        const char *s = msgl__strbuf_str(&p->value);
        *fail = s[strspn(s, " \n\t\r")] != '{';
        if (rc == 0 && !*fail && j->has_name) rc = commit_whole(p, fail);
    }
    if (was == ARGS || was == WAITING || was == ARGS_STR) j->has_arguments = true;
    *fail = *fail || rc == MSGL_EFORMAT;
    return *fail ? 0 : rc;
}

// A byte of a value. *again: the value ended before it.
static int in_value(msgl_parser *p, char c, bool *fail, bool *again)
{
    msgl_json_call *j = &p->json;
    const msgl_span_step step = msgl__json_span_add(&j->span, c);
    int rc = 0;
    *again = step == MSGL_SPAN_BEHIND;
    if (!*again) {
        switch (j->state) {
        case NAME: rc = msgl__strbuf_addc(&p->name, c); break;
        case ARGS: rc = msgl__call_arguments(p, &c, 1); break;
        case WAITING:
        case ARGS_STR: rc = msgl__strbuf_addc(&p->value, c); break;
        default: break;
        }
    }
    return rc == 0 && step != MSGL_SPAN_MORE ? value_end(p, fail) : rc;
}

// The object's }.
static int object_end(msgl_parser *p, bool *fail)
{
    *fail = !p->json.has_name;
    return *fail || p->in_call ? 0 : commit_whole(p, fail);
}

static int alone(msgl_parser *p, char c, msgl_json_call_step *step)
{
    msgl_json_call *j = &p->json;
    if (j->state == ALONE) {
        if (msgl__is_space(c)) return msgl__buffer(p, c);
        bool fail = c != '{';
        const int rc = fail ? 0 : commit(p, &fail);
        if (fail) *step = MSGL_JSON_CALL_FAIL;
        if (fail || rc != 0) return rc;
        j->state = IN_ALONE;
    }
    if (msgl__json_span_add(&j->span, c) == MSGL_SPAN_LAST) *step = MSGL_JSON_CALL_DONE;
    return msgl__call_arguments(p, &c, 1);
}

// Between keys and values.
static int between(msgl_parser *p, char c, bool *fail, msgl_json_call_step *step)
{
    msgl_json_call *j = &p->json;
    if (msgl__is_space(c)) return 0;
    const bool ends = c == '}' && (j->state == FIRST || j->state == NEXT);
    if (ends) {
        *step = MSGL_JSON_CALL_DONE;
        return object_end(p, fail);
    }
    switch (j->state) {
    case OBJECT:
        *fail = c != '{';
        j->state = FIRST;
        return 0;
    case FIRST:
    case KEY:
        *fail = c != '"';
        j->state = IN_KEY;
        j->span = (msgl_json_span){.in_string = true};
        msgl__strbuf_clear(&p->key);
        return 0;
    case COLON:
        *fail = c != ':';
        j->state = VALUE;
        return 0;
    case VALUE: return value_begin(p, c, fail);
    default: // NEXT
        *fail = c != ',';
        j->state = KEY;
        return 0;
    }
}

int msgl__json_call_add(msgl_parser *p, char c, msgl_json_call_step *step)
{
    msgl_json_call *j = &p->json;
    *step = MSGL_JSON_CALL_MORE;
    if (j->state == ALONE || j->state == IN_ALONE) return alone(p, c, step);
    bool fail = false, again = false;
    int rc = 0;
    do {
        const bool was_again = again;
        again = false;
        if (j->state == IN_KEY) {
            const bool last = msgl__json_span_add(&j->span, c) == MSGL_SPAN_LAST;
            if (last) j->state = COLON;
            if (!last) rc = msgl__strbuf_addc(&p->key, c);
        } else if (j->state == OBJECT || j->state == FIRST || j->state == KEY ||
                   j->state == COLON || j->state == VALUE || j->state == NEXT) {
            rc = between(p, c, &fail, step);
        } else if (!was_again) {
            rc = in_value(p, c, &fail, &again);
        }
    } while (again && rc == 0 && !fail);
    if (fail) *step = MSGL_JSON_CALL_FAIL;
    return rc == 0 && !fail && !p->in_call ? msgl__buffer(p, c) : rc;
}

int msgl__json_call_until(msgl_parser *p, const char *const *ends, char c,
                          msgl_json_call_step *step)
{
    const msgl_json_call *j = &p->json;
    const bool ends_here =
        (j->state == ARGS || j->state == IN_ALONE) && !j->span.in_string && c == '<';
    if (p->match.len == 0 && !ends_here) return msgl__json_call_add(p, c, step);
    *step = MSGL_JSON_CALL_MORE;
    char plain[MSGL_MARK_MAX];
    int n, rc = 0;
    if (msgl__match_add(&p->match, ends, c, plain, &n) >= 0) *step = MSGL_JSON_CALL_MARK;
    // Only the last of them, c, can do more than prolong the arguments.
    for (int i = 0; i < n && rc == 0; i++) rc = msgl__json_call_add(p, plain[i], step);
    return rc;
}
