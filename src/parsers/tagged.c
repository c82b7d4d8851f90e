// SPDX-License-Identifier: Apache-2.0
//
// Forms that tag each argument. GLM-4.5:
// <tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>
// ...\n</tool_call>; Hunyuan 3 has <tool_sep> behind the name and <tool_calls> around all calls.
// Qwen3-Coder: <tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>
// ...\n</function>\n</tool_call>; Seed-OSS the same in <seed:tool_call>. MiniMax-M2:
// <minimax:tool_call>\n<invoke name="f">\n<parameter name="a">x</parameter>\n</invoke>\n ...
// </minimax:tool_call>, one block for all calls; Step 3 and DeepSeek-V3.2 and 4 have other names
// for these tags, and DeepSeek's parameters say whether they are strings: string="true". Elsewhere
// values have no types: the tool's schema says what is a string. An argument is handed on when it
// is complete. Models leave the outer tag out at times: the inner one and a tool's name begin a
// call, too.
#include <string.h>

#include "parsers/internal.h"

enum { BEFORE_NAME = MSGL_FORM_TEXT + 1, NAME, BETWEEN, KEY, BEFORE_VALUE, VALUE, OBJECT };

// Each list is what may come in a state, a NULL behind it.
typedef struct tags {
    const char *open[3];        // as the enum below has them
    const char *before_name[5]; // [0] NULL: the name comes at once; behind [0] what is read over
    const char *name[5];        // what ends a name ...
    int state[4];               // ... and where it leads
    const char *between[10];    // as the enum below has them
    const char *key[2];
    const char *before_value[2]; // [0] NULL: the value comes at once
    const char *value[2];
    const char *ends[3]; // of a call: what an answer that lacks the tag before may end in
    bool lines;      // a line break behind a value's tag and before the closing one are the form's
    bool block;      // the outer tag is around all calls: each of them is meant to be one
    bool inner;      // the inner tag says enough: it needs no tool's name
    bool attributes; // names and keys are what name= has: "f", and other attributes may follow
    bool objects;    // arguments may be an object of JSON, too, in place of the parameters
} tags;

// Of `open`: the tag around a call, or around all of them, and the one before a name.
enum { OUTER, INNER };
// Of `between`: the next argument; the call's end; what begins another call though this one was not
// closed, with the tag around it and without; what is read over, from NOTHING on.
enum { NEXT_ARGUMENT, CALL_END, CALL_OPEN, FUNCTION_OPEN, NOTHING };

#define DSML "｜DSML｜"
// `at`: what is before a tag's name, which is a blank in V4.1.
#define DSML_TAGS(at, calls)                                                                       \
    {                                                                                              \
        .open = {"<" DSML at calls ">", "<" DSML at "invoke name="},                               \
        .before_name = {"<" DSML at "invoke name="}, .name = {">"}, .state = {BETWEEN},            \
        .between = {"<" DSML at "parameter name=", "</" DSML at calls ">", "<" DSML at calls ">",  \
                    "<" DSML at "invoke name=", "</" DSML at "invoke>"},                           \
        .key = {">"}, .value = {"</" DSML at "parameter>"},                                        \
        .ends = {"</" DSML at calls ">", "</" DSML at "invoke>"}, .block = true,                   \
        .attributes = true, .objects = true                                                        \
    }

static const tags FORMS[] = {
    [MSGL_TAGGED_GLM] = {.open = {"<tool_call>"},
                         .name = {"\n", "<arg_key>", "</tool_call>"},
                         .state = {BETWEEN, KEY, MSGL_FORM_TEXT},
                         .between = {"<arg_key>", "</tool_call>", "<tool_call>"},
                         .key = {"</arg_key>"},
                         .before_value = {"<arg_value>"},
                         .value = {"</arg_value>"},
                         .ends = {"</tool_call>"}},
    [MSGL_TAGGED_QWEN] = {.open = {"<tool_call>", "<function="},
                          .before_name = {"<function="},
                          .name = {">"},
                          .state = {BETWEEN},
                          .between = {"<parameter=", "</tool_call>", "<tool_call>",
                                      "<function=", "</function>"},
                          .key = {">"},
                          .value = {"</parameter>"},
                          .ends = {"</tool_call>", "</function>"},
                          .lines = true},
    [MSGL_TAGGED_SEED] = {.open = {"<seed:tool_call>", "<function="},
                          .before_name = {"<function="},
                          .name = {">"},
                          .state = {BETWEEN},
                          .between = {"<parameter=", "</seed:tool_call>", "<seed:tool_call>",
                                      "<function=", "</function>"},
                          .key = {">"},
                          .value = {"</parameter>"},
                          .ends = {"</seed:tool_call>", "</function>"},
                          .lines = true},
    [MSGL_TAGGED_HUNYUAN] = {.open = {"<tool_calls>", "<tool_call>"},
                             .before_name = {"<tool_call>"},
                             .name = {"<tool_sep>", "\n", "<arg_key>", "</tool_call>"},
                             .state = {BETWEEN, BETWEEN, KEY, BETWEEN},
                             .between = {"<arg_key>", "</tool_calls>", "<tool_calls>",
                                         "<tool_call>", "</tool_call>", "<tool_sep>"},
                             .key = {"</arg_key>"},
                             .before_value = {"<arg_value>"},
                             .value = {"</arg_value>"},
                             .ends = {"</tool_calls>", "</tool_call>"},
                             .block = true,
                             .inner = true},
    [MSGL_TAGGED_MINIMAX] = {.open = {"<minimax:tool_call>", "<invoke name="},
                             .before_name = {"<invoke name="},
                             .name = {">"},
                             .state = {BETWEEN},
                             .between = {"<parameter name=", "</minimax:tool_call>",
                                         "<minimax:tool_call>", "<invoke name=", "</invoke>"},
                             .key = {">"},
                             .value = {"</parameter>"},
                             .ends = {"</minimax:tool_call>", "</invoke>"},
                             .block = true,
                             .attributes = true},
    [MSGL_TAGGED_STEP3] = {.open = {"<｜tool_calls_begin｜>", "<steptml:invoke name="},
                           .before_name = {"<steptml:invoke name=", "<｜tool_call_begin｜>",
                                           "function", "<｜tool_sep｜>"},
                           .name = {">"},
                           .state = {BETWEEN},
                           .between = {"<steptml:parameter name=", "<｜tool_calls_end｜>",
                                       "<｜tool_calls_begin｜>", "<steptml:invoke name=",
                                       "</steptml:invoke>", "<｜tool_call_end｜>",
                                       "<｜tool_call_begin｜>", "function", "<｜tool_sep｜>"},
                           .key = {">"},
                           .value = {"</steptml:parameter>"},
                           .ends = {"<｜tool_calls_end｜>", "</steptml:invoke>"},
                           .block = true,
                           .attributes = true},
    [MSGL_TAGGED_DSML_32] = DSML_TAGS("", "function_calls"),
    [MSGL_TAGGED_DSML_4] = DSML_TAGS("", "tool_calls"),
    [MSGL_TAGGED_DSML_41] = DSML_TAGS(" ", "calls"),
};

static const tags *tags_of(const msgl_parser *p)
{
    return &FORMS[p->form->variant];
}

static void open_name(msgl_parser *p)
{
    p->state = NAME;
    msgl__strbuf_clear(&p->name);
}

// A call's first tag came: OUTER or INNER.
static int open_call(msgl_parser *p, int mark)
{
    const tags *t = tags_of(p);
    msgl__strbuf_clear(&p->pending);
    p->state = BEFORE_NAME;
    p->marked = mark == OUTER || t->inner;
    if (mark == INNER || t->before_name[0] == NULL) open_name(p);
    msgl__strbuf_clear(&p->name);
    return msgl__strbuf_adds(&p->pending, t->open[mark]);
}

// What follows name= in a tag, "f" or 'f' or f and perhaps other attributes, becomes the name.
// Returns where the other attributes are in *b, behind the name's end.
static const char *name_attribute(msgl_strbuf *b)
{
    if (b->len == 0) return "";
    const char quote = b->data[0];
    const bool quoted = quote == '"' || quote == '\'';
    const size_t from = quoted;
    size_t to = from;
    while (to < b->len && (quoted ? b->data[to] != quote : strchr(" \n\t/", b->data[to]) == NULL))
        to++;
    const bool more = to + 1 < b->len;
    memmove(b->data, b->data + from, to - from);
    b->len = to - from;
    b->data[b->len] = '\0';
    return more ? b->data + to + 1 : "";
}

static bool is_name(const msgl_strbuf *b)
{
    bool fits = b->len > 0;
    for (size_t i = 0; i < b->len; i++) fits = fits && msgl__is_name_char(b->data[i]);
    return fits;
}

// The tag of the name is complete: `mark` of the name's ends came.
static int begin_call(msgl_parser *p, int mark)
{
    const tags *t = tags_of(p);
    p->state = t->state[mark];
    p->depth = 0;
    msgl__strbuf_clear(&p->key);
    const int rc = msgl__call_begin(p);
    return rc == 0 && p->state == MSGL_FORM_TEXT ? msgl__call_done(p) : rc;
}

// Before the call begins: the name, and the tag before it.
static int before_call(msgl_parser *p, char c)
{
    const tags *t = tags_of(p);
    const bool in_name = p->state == NAME;
    const bool space = msgl__is_space(c) && p->match.len == 0 && p->name.len == 0;
    if (space && (!in_name || t->name[0][0] != '>')) return msgl__buffer(p, c);
    char plain[MSGL_MARK_MAX];
    int n;
    const int mark = msgl__match_add(&p->match, in_name ? t->name : t->before_name, c, plain, &n);
    for (int i = 0; i < n; i++) {
        const bool fits = in_name && (t->attributes || msgl__is_name_char(plain[i]));
        if (!fits || p->name.len >= MSGL_TOOL_NAME_MAX) return msgl__give_back(p);
        const int rc = msgl__strbuf_addc(&p->name, plain[i]);
        if (rc != 0) return rc;
    }
    if (mark >= 0 && in_name) {
        if (t->attributes) (void)name_attribute(&p->name);
        const bool known = msgl__tool_set_has(p->cfg.known, p->name.data, p->name.len);
        if (!is_name(&p->name) || !(p->marked || known)) return msgl__give_back(p);
    }
    const int rc = msgl__buffer(p, c);
    if (mark < 0 || rc != 0) return rc;
    if (in_name) return begin_call(p, mark);
    if (mark == 0) open_name(p);
    return 0;
}

// The call is complete, as far as it came.
static int end(msgl_parser *p)
{
    const int rc = p->depth > 0 ? msgl__call_arguments(p, "}", 1) : 0;
    return rc == 0 ? msgl__call_done(p) : rc;
}

// Whether a parameter's tag says that its value is a string.
static msgl_param_type said_type(const char *attributes)
{
    if (strstr(attributes, "string=\"true\"") != NULL) return MSGL_PARAM_STRING;
    if (strstr(attributes, "string=\"false\"") != NULL) return MSGL_PARAM_OTHER;
    return MSGL_PARAM_UNKNOWN;
}

static int argument(msgl_parser *p)
{
    if (p->depth < 0) return 0; // an object had them all
    const char *more = tags_of(p)->attributes ? name_attribute(&p->key) : "";
    const char *s = msgl__strbuf_str(&p->value);
    size_t len = p->value.len;
    if (tags_of(p)->lines && len > 0 && s[len - 1] == '\n') len--;
    if (tags_of(p)->lines && len > 0 && s[0] == '\n') {
        s++;
        len--;
    }
    msgl_param_type type = said_type(more);
    if (type == MSGL_PARAM_UNKNOWN) {
        type = msgl__tool_set_type(p->cfg.known, msgl__strbuf_str(&p->name),
                                   msgl__strbuf_str(&p->key));
    }
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
        if (mark >= NOTHING) return 0;
        if (mark != NEXT_ARGUMENT) {
            int rc = end(p);
            if (rc != 0 || mark == CALL_END) return rc;
            rc = open_call(p, mark == FUNCTION_OPEN ? INNER : OUTER);
            p->marked = p->marked || t->block;
            return rc;
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

// A byte of arguments that are an object of JSON.
static int object(msgl_parser *p, char c)
{
    if (msgl__json_span_add(&p->json.span, c) == MSGL_SPAN_LAST) {
        p->state = BETWEEN;
        p->depth = -1;
    }
    return msgl__call_arguments(p, &c, 1);
}

static int in_call(msgl_parser *p, char c)
{
    const tags *t = tags_of(p);
    if (p->state == BETWEEN && t->objects && c == '{' && p->depth == 0 && p->match.len == 0) {
        p->state = OBJECT;
        p->json.span = (msgl_json_span){0};
    }
    if (p->state == OBJECT) return object(p, c);
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
    const int mark = msgl__text_until(p, tags_of(p)->open, c, &rc);
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
    if (p->state == OBJECT) return msgl__call_done(p);
    if (p->state == VALUE && ends_as_call(p)) {
        const int rc = argument(p);
        return rc == 0 ? end(p) : rc;
    }
    const int rc = p->depth == 0 ? msgl__call_arguments(p, "{", 1) : 0;
    return rc == 0 ? msgl__call_done(p) : rc;
}
