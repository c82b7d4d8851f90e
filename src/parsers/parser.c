// SPDX-License-Identifier: Apache-2.0
#include "parsers/parser.h"

#include <string.h>

#include "core/mem.h"
#include "parsers/internal.h"
#include "utils/json.h"
#include "utils/json_write.h"

enum { PENDING_MAX = 1 << 28 };

// Of what splits reasoning off.
enum { THINK_BEFORE, THINK_IN, THINK_BEHIND };

// Of what leaves out the marks around the answer: none are looked for, the opening one, the
// closing.
enum { ANSWER_PLAIN, ANSWER_BEFORE, ANSWER_IN };

// --- life ---

// What ends thoughts: their own marks, and those of calls that may not stand in them.
static void set_think_ends(msgl_parser *p)
{
    const msgl_tool_form *tools = p->cfg.tools;
    int n = 0;
    for (; n < MSGL_THINK_ENDS && p->cfg.reasoning->closes[n] != NULL; n++) {
        p->think_ends[n] = p->cfg.reasoning->closes[n];
    }
    p->num_own_ends = n;
    if (tools == NULL || !tools->ends_thoughts) return;
    for (int i = 0; n < MSGL_THINK_ENDS && tools->marks[i] != NULL; i++) {
        p->think_ends[n++] = tools->marks[i];
    }
}

int msgl__parser_create(const msgl_parser_config *cfg, msgl_parser **out)
{
    msgl_parser *p = msgl__calloc(1, sizeof *p);
    *out = p;
    if (p == NULL) return MSGL_ENOMEM;
    p->cfg = *cfg;
    p->form = cfg->tools;
    if (cfg->reasoning != NULL && cfg->reasoning->close == NULL) {
        // Thoughts and calls are told apart by the same reader.
        p->form = msgl__tool_form(cfg->reasoning->name, NULL);
    }
    const bool splits = cfg->reasoning != NULL && cfg->reasoning->close != NULL;
    p->think = splits ? THINK_BEFORE : THINK_BEHIND;
    if (splits) set_think_ends(p);
    const bool around = splits && cfg->reasoning->answer_opens != NULL && !cfg->keep_reasoning;
    p->answer = around ? ANSWER_BEFORE : ANSWER_PLAIN;
    p->state = p->form == NULL ? MSGL_FORM_TEXT : p->form->start;
    msgl_strbuf *const all[] = {&p->think_space, &p->space, &p->pending, &p->name,
                                &p->id,          &p->key,   &p->value};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) msgl__strbuf_init(all[i], PENDING_MAX);
    return 0;
}

void msgl__parser_free(msgl_parser *p)
{
    if (p == NULL) return;
    msgl__strbuf_free(&p->think_space);
    msgl__strbuf_free(&p->space);
    msgl__strbuf_free(&p->pending);
    msgl__strbuf_free(&p->name);
    msgl__strbuf_free(&p->id);
    msgl__strbuf_free(&p->key);
    msgl__strbuf_free(&p->value);
    msgl__free(p);
}

int msgl__parser_calls(const msgl_parser *p)
{
    return p->calls;
}

bool msgl__parser_thinking(const msgl_parser *p)
{
    return p->thinking;
}

size_t msgl__parser_bytes(const msgl_parser *p)
{
    return sizeof *p + p->think_space.cap + p->space.cap + p->pending.cap + p->name.cap +
           p->id.cap + p->key.cap + p->value.cap;
}

// --- what steps say ---

int msgl__put_text(msgl_parser *p, const char *data, size_t len)
{
    int rc = 0;
    for (size_t i = 0; i < len && rc == 0; i++) rc = msgl__put_text_char(p, data[i]);
    return rc;
}

int msgl__put_text_char(msgl_parser *p, char c)
{
    if (msgl__is_space(c)) return p->trim ? 0 : msgl__strbuf_addc(&p->space, c);
    p->trim = p->thinking = false;
    int rc = msgl__parts_add(p->out, MSGL_PART_TEXT, p->space.data, p->space.len);
    msgl__strbuf_clear(&p->space);
    if (rc == 0) rc = msgl__parts_add(p->out, MSGL_PART_TEXT, &c, 1);
    return rc;
}

int msgl__put_reasoning(msgl_parser *p, const char *data, size_t len)
{
    p->thought = p->thought || len > 0;
    p->thinking = p->thinking || len > 0;
    return msgl__parts_add(p->out, p->cfg.keep_reasoning ? MSGL_PART_TEXT : MSGL_PART_REASONING,
                           data, len);
}

int msgl__text_until(msgl_parser *p, const char *const *marks, char c, int *rc)
{
    char plain[MSGL_MARK_MAX];
    int n;
    const int mark = msgl__match_add(&p->match, marks, c, plain, &n);
    *rc = msgl__put_text(p, plain, (size_t)n);
    if (mark >= 0 && *rc == 0) *rc = msgl__strbuf_adds(&p->pending, marks[mark]);
    return mark;
}

int msgl__text_or_call(msgl_parser *p, const char *const *marks, char c, int opened)
{
    int rc;
    if (msgl__text_until(p, marks, c, &rc) >= 0) {
        p->state = opened;
        p->marked = true;
    }
    return rc;
}

int msgl__give_back(msgl_parser *p)
{
    p->state = MSGL_FORM_TEXT;
    p->again = true;
    p->marked = false;
    p->match.len = 0; // what began a marker is in p->pending, too
    const int rc = msgl__put_text(p, p->pending.data, p->pending.len);
    msgl__strbuf_clear(&p->pending);
    return rc;
}

int msgl__call_begin(msgl_parser *p)
{
    msgl__strbuf_clear(&p->pending);
    msgl__strbuf_clear(&p->space);
    p->in_call = true;
    p->thinking = p->has_args = false;
    p->mute = p->cfg.max_calls > 0 && p->calls >= p->cfg.max_calls;
    if (p->mute) return 0;
    p->calls++;
    int rc = 0;
    if (p->id.len > 0) rc = msgl__strbuf_addc(&p->name, '\0');
    if (p->id.len > 0 && rc == 0) rc = msgl__strbuf_add(&p->name, p->id.data, p->id.len);
    msgl__strbuf_clear(&p->id);
    if (rc == 0) rc = msgl__parts_add(p->out, MSGL_PART_CALL, p->name.data, p->name.len);
    return rc;
}

int msgl__call_arguments(msgl_parser *p, const char *data, size_t len)
{
    p->has_args = p->has_args || len > 0;
    return p->mute ? 0 : msgl__parts_add(p->out, MSGL_PART_ARGUMENTS, data, len);
}

int msgl__call_end(msgl_parser *p)
{
    int rc = p->has_args ? 0 : msgl__call_arguments(p, "{}", 2);
    if (rc == 0 && !p->mute) rc = msgl__parts_add(p->out, MSGL_PART_CALL_END, NULL, 0);
    p->in_call = p->mute = false;
    p->trim = true;
    return rc;
}

int msgl__call_done(msgl_parser *p)
{
    const int rc = p->in_call ? msgl__call_end(p) : 0;
    msgl__strbuf_clear(&p->pending);
    p->state = MSGL_FORM_TEXT;
    p->marked = false;
    return rc;
}

bool msgl__is_name_char(char c)
{
    return (unsigned char)c > ' ' && c != 0x7f && strchr("\"'`<>{}[]()", c) == NULL;
}

int msgl__put_json_byte(msgl_strbuf *out, char c)
{
    char escape[12];
    const size_t n = msgl__json_escape((unsigned char)c, false, escape); // those of ASCII alone
    return n > 0 ? msgl__strbuf_add(out, escape, n) : msgl__strbuf_addc(out, c);
}

int msgl__put_json_string(msgl_strbuf *out, const char *s, size_t len)
{
    int rc = msgl__strbuf_addc(out, '"');
    for (size_t i = 0; i < len && rc == 0; i++) rc = msgl__put_json_byte(out, s[i]);
    return rc == 0 ? msgl__strbuf_addc(out, '"') : rc;
}

int msgl__put_untyped(msgl_strbuf *out, const char *s, size_t len, msgl_param_type type)
{
    size_t from = 0, to = len;
    while (from < to && msgl__is_space(s[from])) from++;
    while (to > from && msgl__is_space(s[to - 1])) to--;
    const size_t n = to - from;
    const bool null = n == 4 && memcmp(s + from, "null", 4) == 0;
    if (type == MSGL_PARAM_STRING_OR_NULL && null) return msgl__strbuf_adds(out, "null");
    const bool is_string = type == MSGL_PARAM_STRING || type == MSGL_PARAM_STRING_OR_NULL;
    if (is_string || n == 0) return msgl__put_json_string(out, s, len);
    int rc;
    json_t *j = msgl__json_loadb(s + from, n, JSON_DECODE_ANY, NULL, &rc);
    if (j == NULL && rc == MSGL_ENOMEM) return rc;
    if (j == NULL) {
        rc = type == MSGL_PARAM_OTHER ? msgl__python_value(s + from, n, out) : MSGL_EFORMAT;
        return rc == MSGL_EFORMAT ? msgl__put_json_string(out, s, len) : rc;
    }
    json_decref(j);
    return msgl__strbuf_add(out, s + from, n);
}

// --- the text's way ---

// A byte behind the reasoning.
static int content(msgl_parser *p, char c)
{
    if (p->form == NULL) {
        if (p->trim && msgl__is_space(c)) return 0;
        p->trim = false;
        return msgl__parts_add(p->out, MSGL_PART_TEXT, &c, 1);
    }
    int rc;
    do {
        p->again = false;
        rc = p->form->step(p, c);
    } while (p->again && rc == 0);
    return rc;
}

// A byte of thoughts: those end in no white space, unless nothing comes behind it.
static int thought(msgl_parser *p, char c)
{
    if (p->cfg.keep_reasoning) return msgl__put_reasoning(p, &c, 1);
    if (msgl__is_space(c)) return p->thought ? msgl__strbuf_addc(&p->think_space, c) : 0;
    int rc = msgl__put_reasoning(p, p->think_space.data, p->think_space.len);
    msgl__strbuf_clear(&p->think_space);
    return rc == 0 ? msgl__put_reasoning(p, &c, 1) : rc;
}

static int byte(msgl_parser *p, char c);

// No opening marker: the prompt had it, or there are no thoughts. The bytes so far go their way.
static int think_decide(msgl_parser *p, const char *plain, int n)
{
    p->think = p->cfg.thinking ? THINK_IN : THINK_BEHIND;
    msgl_strbuf space = p->think_space;
    msgl__strbuf_init(&p->think_space, PENDING_MAX);
    int rc = 0;
    for (size_t i = 0; i < space.len && rc == 0; i++) rc = byte(p, space.data[i]);
    for (int i = 0; i < n && rc == 0; i++) rc = byte(p, plain[i]);
    msgl__strbuf_free(&space);
    return rc;
}

static int think_before(msgl_parser *p, char c)
{
    const char *const one[] = {p->cfg.reasoning->open, NULL};
    const char *const *marks = p->cfg.reasoning->opens == NULL ? one : p->cfg.reasoning->opens;
    char plain[MSGL_MARK_MAX];
    int n, rc = 0;
    if (p->think_match.len == 0 && msgl__is_space(c)) return msgl__strbuf_addc(&p->think_space, c);
    const int mark = msgl__match_add(&p->think_match, marks, c, plain, &n);
    if (mark >= 0) {
        p->think = THINK_IN;
        if (p->cfg.keep_reasoning) rc = msgl__put_reasoning(p, marks[mark], strlen(marks[mark]));
        msgl__strbuf_clear(&p->think_space);
        return rc;
    }
    if (n == 0) return 0;
    // What still begins a marker may begin another one, too.
    char rest[MSGL_MARK_MAX];
    const int more = p->think_match.len;
    memcpy(rest, p->think_match.buf, (size_t)more);
    p->think_match.len = 0;
    rc = think_decide(p, plain, n);
    for (int i = 0; i < more && rc == 0; i++) rc = byte(p, rest[i]);
    return rc;
}

static int think_in(msgl_parser *p, char c)
{
    char plain[MSGL_MARK_MAX];
    int n, rc = 0;
    const int mark = msgl__match_add(&p->think_match, p->think_ends, c, plain, &n);
    for (int i = 0; i < n && rc == 0; i++) rc = thought(p, plain[i]);
    if (mark < 0 || rc != 0) return rc;
    p->think = THINK_BEHIND;
    msgl__strbuf_clear(&p->think_space);
    const char *end = p->think_ends[mark];
    const bool own = mark < p->num_own_ends;
    if (own && p->cfg.keep_reasoning) rc = msgl__put_reasoning(p, end, strlen(end));
    p->thinking = false;
    p->trim = !p->cfg.keep_reasoning;
    for (; !own && *end != '\0' && rc == 0; end++) rc = byte(p, *end);
    return rc;
}

// The white space that came before no mark.
static int answer_space(msgl_parser *p)
{
    int rc = 0;
    for (size_t i = 0; i < p->think_space.len && rc == 0; i++) {
        rc = content(p, p->think_space.data[i]);
    }
    msgl__strbuf_clear(&p->think_space);
    return rc;
}

// A byte of the answer that belongs to no mark around it; white space before such a mark is left
// out, too.
static int answer_byte(msgl_parser *p, char c)
{
    if (p->answer != ANSWER_PLAIN && msgl__is_space(c)) {
        return msgl__strbuf_addc(&p->think_space, c);
    }
    const int rc = answer_space(p);
    if (p->answer == ANSWER_BEFORE) p->answer = ANSWER_PLAIN;
    return rc == 0 ? content(p, c) : rc;
}

// What may be a mark is none: the answer has no marks any more, or it ends.
static int answer_rest(msgl_parser *p, msgl_match m)
{
    int rc = 0;
    for (int i = 0; i < m.len && rc == 0; i++) rc = answer_byte(p, m.buf[i]);
    return rc == 0 ? answer_space(p) : rc;
}

// A byte behind thoughts. Marks in a call are its own.
static int answer(msgl_parser *p, char c)
{
    if (p->answer == ANSWER_PLAIN) return content(p, c);
    const bool in_form = p->form != NULL && p->state != MSGL_FORM_TEXT && p->think_match.len == 0;
    if (p->answer == ANSWER_IN && in_form) return content(p, c);
    const msgl_reasoning_form *f = p->cfg.reasoning;
    const char *const *marks = p->answer == ANSWER_BEFORE ? f->answer_opens : f->answer_closes;
    char plain[MSGL_MARK_MAX];
    int n, rc = 0;
    const int mark = msgl__match_add(&p->think_match, marks, c, plain, &n);
    for (int i = 0; i < n && rc == 0; i++) rc = answer_byte(p, plain[i]);
    if (rc == 0 && p->answer == ANSWER_PLAIN) {
        const msgl_match m = p->think_match;
        p->think_match.len = 0;
        rc = answer_rest(p, m);
    }
    if (mark < 0 || rc != 0) return rc;
    p->answer = p->answer == ANSWER_BEFORE ? ANSWER_IN : ANSWER_PLAIN;
    msgl__strbuf_clear(&p->think_space);
    p->trim = true;
    return 0;
}

static int byte(msgl_parser *p, char c)
{
    switch (p->think) {
    case THINK_BEFORE: return think_before(p, c);
    case THINK_IN: return think_in(p, c);
    default: return answer(p, c);
    }
}

int msgl__parser_feed(msgl_parser *p, const char *text, size_t len, msgl_parts *out)
{
    p->out = out;
    int rc = 0;
    for (size_t i = 0; i < len && rc == 0; i++) rc = byte(p, text[i]);
    return rc;
}

static int think_finish(msgl_parser *p)
{
    int rc = 0;
    msgl_match m = p->think_match;
    p->think_match.len = 0;
    if (p->think == THINK_BEFORE) {
        rc = think_decide(p, m.buf, m.len);
        m = p->think_match; // the end of thoughts that the prompt had opened
        p->think_match.len = 0;
    }
    if (p->think == THINK_BEHIND && p->answer != ANSWER_PLAIN) return answer_rest(p, m);
    if (p->think != THINK_IN) return rc;
    for (int i = 0; i < m.len && rc == 0; i++) rc = thought(p, m.buf[i]);
    return rc == 0 ? msgl__put_reasoning(p, p->think_space.data, p->think_space.len) : rc;
}

int msgl__parser_finish(msgl_parser *p, msgl_parts *out)
{
    p->out = out;
    int rc = think_finish(p);
    if (rc != 0 || p->form == NULL) return rc;
    if (p->state != MSGL_FORM_TEXT) rc = p->form->finish(p);
    if (rc == 0) rc = msgl__put_text(p, p->match.buf, (size_t)p->match.len);
    p->match.len = 0;
    return rc == 0 ? msgl__parts_add(out, MSGL_PART_TEXT, p->space.data, p->space.len) : rc;
}
