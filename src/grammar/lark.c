// SPDX-License-Identifier: Apache-2.0
//
// The common part of Lark's grammars: rules and terminals, "text"i, /pattern/flags, "a".."z",
// groups, [optional], | * + ? ~ n..m, -> alias, priorities, %ignore, %import of common terminals;
// and llguidance's %json {...}, a schema, where a rule has a name.
// What %ignore names may stand behind every terminal of a rule and before the first one: the
// grammar works on characters, there is no lexer whose tokens could be told apart otherwise.
// Templates, %declare, %override and imports from files are refused.
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "grammar/compiled.h"
#include "grammar/ebnf.h"
#include "grammar/regex.h"
#include "grammar/schema.h"
#include "utils/utf8.h"

typedef struct lark {
    msgl_ebnf e;
    bool in_rule;    // not in a terminal
    int32_t ignored; // rule of what may be between terminals; -1: nothing
    msgl_gx_list ignores;
    msgl_json_rules json;
    char rule[40]; // being defined, for messages
} lark;

// Lark's common terminals as patterns.
static const struct {
    const char *name, *pattern;
} COMMON[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
};

// Blanks and comments; lines too where `lines`.
static void blanks(msgl_ebnf *e, bool lines)
{
    for (; e->at < e->n; e->at++) {
        const char c = e->text[e->at];
        if (c == '#' || (c == '/' && e->at + 1 < e->n && e->text[e->at + 1] == '/')) {
            while (e->at < e->n && e->text[e->at] != '\n') e->at++;
            if (e->at >= e->n) return;
            e->at--;
        } else if (c == '\n' ? !lines : c != ' ' && c != '\t' && c != '\r') {
            return;
        }
    }
}

// On to the next thing that belongs to this rule: a line that begins with | goes on with it, and
// inside groups all lines do.
static void forward(msgl_ebnf *e)
{
    blanks(e, e->depth > 0);
    const size_t at = e->at;
    if (msgl__ebnf_peek(e) != '\n') return;
    blanks(e, true);
    if (msgl__ebnf_peek(e) != '|') e->at = at;
}

static int32_t pattern(lark *l)
{
    msgl_ebnf *e = &l->e;
    const size_t start = e->at;
    while (e->at < e->n && e->text[e->at] != '/' && e->text[e->at] != '\n') {
        e->at += e->text[e->at] == '\\' && e->at + 1 < e->n ? 2 : 1;
    }
    const size_t end = e->at;
    if (!msgl__ebnf_take(e, "/"))
        return msgl__ebnf_fail(e, MSGL_EFORMAT, "a pattern without its end");
    msgl_regex_opts o = {.where = "lark: a pattern"};
    for (int c = msgl__ebnf_peek(e); c >= 'a' && c <= 'z'; c = msgl__ebnf_peek(e)) {
        if (c == 'i') o.ignore_case = true;
        if (c == 's') o.dot_all = true;
        if (strchr("isu", c) == NULL) {
            return msgl__ebnf_fail(e, MSGL_EUNSUPPORTED, "a flag other than i, s and u");
        }
        e->at++;
    }
    return msgl__regex(e->b, e->text + start, end - start, &o);
}

static int32_t text(lark *l)
{
    msgl_ebnf *e = &l->e;
    const size_t start = e->at;
    int32_t x = msgl__ebnf_string(e, '"', false);
    const size_t end = e->at;
    if (e->b->rc == 0 && msgl__ebnf_peek(e) == 'i' && msgl__ebnf_name(e, e->at, '_') == 1) {
        e->at = start;
        x = msgl__ebnf_string(e, '"', true);
        e->at = end + 1;
    } else if (e->b->rc == 0 && msgl__ebnf_take(e, "..\"")) {
        const msgl_gx first = e->b->ex[x];
        const int32_t y = msgl__ebnf_string(e, '"', false);
        if (y < 0) return -1;
        const msgl_gx last = e->b->ex[y];
        size_t i = 0, k = 0;
        if (first.n == 0 || last.n == 0)
            return msgl__ebnf_fail(e, MSGL_EFORMAT, "an empty end of a range");
        const uint32_t pair[2] = {msgl__utf8_next(e->b->text + first.at, &i),
                                  msgl__utf8_next(e->b->text + last.at, &k)};
        if (i != (size_t)first.n || k != (size_t)last.n || pair[1] < pair[0]) {
            return msgl__ebnf_fail(e, MSGL_EFORMAT, "a malformed range of characters");
        }
        x = msgl__gx_class(e->b, pair, 1, false);
    }
    return x;
}

// Behind a terminal of a rule.
static int32_t terminal(lark *l, int32_t x)
{
    if (!l->in_rule || l->ignored < 0 || x < 0) return x;
    const int32_t all[2] = {x, msgl__gx_ref(l->e.b, l->ignored)};
    return msgl__gx_seq(l->e.b, all, 2);
}

static int32_t alternatives(lark *l);

static int32_t group(lark *l, const char *close)
{
    msgl_ebnf *e = &l->e;
    if (++e->depth > MSGL_EBNF_GROUPS) {
        return msgl__ebnf_fail(e, MSGL_ELIMIT, "groups nested deeper than 100 (limit: depth)");
    }
    const int32_t x = alternatives(l);
    e->depth--;
    if (e->b->rc == 0 && !msgl__ebnf_take(e, close)) {
        return msgl__ebnf_fail(e, MSGL_EFORMAT, "a group without its end");
    }
    return x;
}

// The schema behind %json, up to the brace that ends it.
static int32_t schema(lark *l)
{
    msgl_ebnf *e = &l->e;
    blanks(e, true);
    const size_t start = e->at;
    int depth = 0;
    bool quoted = false;
    while (e->at < e->n) {
        const char c = e->text[e->at++];
        if (c == '\\' && quoted && e->at < e->n) {
            e->at++;
        } else if (c == '"') {
            quoted = !quoted;
        } else if (!quoted) {
            depth += (c == '{') - (c == '}');
        }
        if (depth == 0) break;
    }
    if (depth != 0 || e->at == start || e->text[start] != '{') {
        return msgl__ebnf_fail(e, MSGL_EFORMAT, "%json without a schema: {...}");
    }
    return msgl__schema_expr(e->b, &l->json, l->rule, e->text + start, e->at - start, false);
}

static int32_t atom(lark *l)
{
    msgl_ebnf *e = &l->e;
    if (msgl__ebnf_take(e, "%json")) return terminal(l, schema(l));
    if (msgl__ebnf_take(e, "\"")) return terminal(l, text(l));
    if (msgl__ebnf_take(e, "/")) return terminal(l, pattern(l));
    if (msgl__ebnf_take(e, "(")) return group(l, ")");
    if (msgl__ebnf_take(e, "[")) return msgl__gx_rep(e->b, group(l, "]"), 0, 1);
    const size_t n = msgl__ebnf_name(e, e->at, '_');
    if (n == 0)
        return msgl__ebnf_fail(e, MSGL_EFORMAT, "neither a name, a text, a pattern nor a group");
    const char *name = e->text + e->at;
    const int32_t rule = msgl__ebnf_rule(e, name, n);
    e->at += n;
    if (msgl__ebnf_peek(e) == '{') {
        return msgl__ebnf_fail(e, MSGL_EUNSUPPORTED, "a template is not supported");
    }
    const char first = name[0] == '_' && n > 1 ? name[1] : name[0];
    const int32_t x = msgl__gx_ref(e->b, rule);
    return first >= 'A' && first <= 'Z' ? terminal(l, x) : x;
}

static int32_t repeated(lark *l, int32_t x)
{
    msgl_ebnf *e = &l->e;
    if (msgl__ebnf_take(e, "*")) return msgl__gx_rep(e->b, x, 0, MSGL_GX_INF);
    if (msgl__ebnf_take(e, "+")) return msgl__gx_rep(e->b, x, 1, MSGL_GX_INF);
    if (msgl__ebnf_take(e, "?")) return msgl__gx_rep(e->b, x, 0, 1);
    blanks(e, false);
    if (!msgl__ebnf_take(e, "~")) return x;
    blanks(e, false);
    const int32_t min = msgl__ebnf_number(e);
    int32_t max = min;
    if (msgl__ebnf_take(e, "..")) max = msgl__ebnf_number(e);
    if (e->b->rc != 0) return -1;
    if (min < 0 || max < min) return msgl__ebnf_fail(e, MSGL_EFORMAT, "a malformed repetition");
    return msgl__gx_rep(e->b, x, min, max);
}

static int32_t sequence(lark *l)
{
    msgl_ebnf *e = &l->e;
    msgl_gx_list list = {0};
    for (forward(e); e->b->rc == 0 && e->at < e->n; forward(e)) {
        const int c = msgl__ebnf_peek(e);
        if (c == '|' || c == ')' || c == ']' || c == '\n') break;
        if (msgl__ebnf_take(e, "->")) {
            blanks(e, false);
            e->at += msgl__ebnf_name(e, e->at, '_');
            continue;
        }
        const int32_t x = atom(l);
        msgl__gx_list_add(e->b, &list, repeated(l, x));
    }
    const int32_t x = e->b->rc == 0 ? msgl__gx_seq(e->b, list.at, list.n) : -1;
    msgl__gx_list_free(&list);
    return x;
}

static int32_t alternatives(lark *l)
{
    msgl_gx_list list = {0};
    do {
        msgl__gx_list_add(l->e.b, &list, sequence(l));
    } while (l->e.b->rc == 0 && msgl__ebnf_take(&l->e, "|"));
    const int32_t x = l->e.b->rc == 0 ? msgl__gx_alt(l->e.b, list.at, list.n) : -1;
    msgl__gx_list_free(&list);
    return x;
}

static void import_one(lark *l, const char *name, size_t n, const char *as, size_t n_as)
{
    msgl_ebnf *e = &l->e;
    for (size_t i = 0; i < MSGL_COUNT(COMMON); i++) {
        if (strlen(COMMON[i].name) != n || memcmp(COMMON[i].name, name, n) != 0) continue;
        const msgl_regex_opts o = {.where = "lark: a common terminal"};
        const int32_t rule = msgl__ebnf_rule(e, as, n_as);
        const char *p = COMMON[i].pattern;
        msgl__ebnf_define(e, rule, msgl__regex(e->b, p, strlen(p), &o));
        return;
    }
    msgl__ebnf_fail(e, MSGL_EUNSUPPORTED, "an import of something that is not a common terminal");
}

// %import common.NAME, common.NAME -> OTHER, common (A, B)
static void import(lark *l)
{
    msgl_ebnf *e = &l->e;
    blanks(e, false);
    if (!msgl__ebnf_take(e, "common")) {
        msgl__ebnf_fail(e, MSGL_EUNSUPPORTED, "an import from elsewhere than common");
        return;
    }
    blanks(e, false);
    if (msgl__ebnf_take(e, ".")) {
        const char *name = e->text + e->at, *as = name;
        const size_t n = msgl__ebnf_name(e, e->at, '_');
        size_t n_as = n;
        e->at += n;
        blanks(e, false);
        if (msgl__ebnf_take(e, "->")) {
            blanks(e, false);
            as = e->text + e->at;
            n_as = msgl__ebnf_name(e, e->at, '_');
            e->at += n_as;
        }
        import_one(l, name, n, as, n_as);
        return;
    }
    bool open = msgl__ebnf_take(e, "(");
    while (open && e->b->rc == 0) {
        blanks(e, true);
        const size_t n = msgl__ebnf_name(e, e->at, '_');
        const char *name = e->text + e->at;
        e->at += n;
        import_one(l, name, n, name, n);
        blanks(e, true);
        if (!msgl__ebnf_take(e, ",")) break;
    }
    if (e->b->rc == 0 && (!open || !msgl__ebnf_take(e, ")"))) {
        msgl__ebnf_fail(e, MSGL_EFORMAT, "a malformed import");
    }
}

static void directive(lark *l)
{
    msgl_ebnf *e = &l->e;
    if (msgl__ebnf_take(e, "%ignore")) {
        l->in_rule = false;
        msgl__gx_list_add(e->b, &l->ignores, alternatives(l));
    } else if (msgl__ebnf_take(e, "%import")) {
        import(l);
    } else {
        msgl__ebnf_fail(e, MSGL_EUNSUPPORTED, "a directive other than %ignore and %import");
    }
}

static void definition(lark *l)
{
    msgl_ebnf *e = &l->e;
    while (msgl__ebnf_take(e, "?") || msgl__ebnf_take(e, "!")) continue;
    const size_t n = msgl__ebnf_name(e, e->at, '_');
    const char *name = e->text + e->at;
    if (n == 0) {
        msgl__ebnf_fail(e, MSGL_EFORMAT, "expected a rule: name: ...");
        return;
    }
    const int32_t rule = msgl__ebnf_rule(e, name, n);
    e->at += n;
    if (msgl__ebnf_peek(e) == '{') {
        msgl__ebnf_fail(e, MSGL_EUNSUPPORTED, "a template is not supported");
        return;
    }
    if (msgl__ebnf_take(e, ".")) { // a priority: it chooses between parses, not between texts
        msgl__ebnf_take(e, "-");
        msgl__ebnf_number(e);
    }
    blanks(e, false);
    if (!msgl__ebnf_take(e, ":")) {
        msgl__ebnf_fail(e, MSGL_EFORMAT, "expected a rule: name: ...");
        return;
    }
    (void)snprintf(l->rule, sizeof l->rule, "%.*s", (int)(n < sizeof l->rule ? n : 30), name);
    const char first = name[0] == '_' && n > 1 ? name[1] : name[0];
    l->in_rule = !(first >= 'A' && first <= 'Z');
    msgl__ebnf_define(e, rule, alternatives(l));
}

static void statements(lark *l)
{
    msgl_ebnf *e = &l->e;
    for (blanks(e, true); e->b->rc == 0 && e->at < e->n; blanks(e, true)) {
        if (msgl__ebnf_peek(e) == '%') {
            directive(l);
        } else {
            definition(l);
        }
        blanks(e, false);
        if (e->b->rc == 0 && e->at < e->n && msgl__ebnf_peek(e) != '\n') {
            msgl__ebnf_fail(e, MSGL_EFORMAT, "something behind the end of a rule");
        }
    }
}

int msgl__grammar_lark(const char *source, size_t n, const msgl_grammar_limits *limits,
                       msgl_grammar **out, msgl_err *err)
{
    msgl_gx_builder b;
    lark l = {.e = {.b = &b, .what = "lark", .text = source, .n = n}, .ignored = -1};
    int32_t root = -1;
    if (msgl__grammar_begin(&b, n, limits, err) == 0) {
        msgl__json_rules_init(&l.json);
        if (msgl__utf8_valid(source, n) != n) msgl__gx_fail(&b, MSGL_EFORMAT, "lark: not UTF-8");
        if (memmem(source, n, "%ignore", 7) != NULL)
            l.ignored = msgl__gx_rule_new(&b, "%ignore", 7);
        statements(&l);
        const int32_t start = msgl__ebnf_find(&l.e, "start", 5);
        if (start < 0) msgl__gx_fail(&b, MSGL_EFORMAT, "lark: there is no rule named start");
        root = msgl__gx_rule_new(&b, "lark", 4);
        int32_t body = msgl__gx_ref(&b, start);
        if (b.rc == 0 && l.ignored >= 0) {
            const int32_t any = msgl__gx_alt(&b, l.ignores.at, l.ignores.n);
            msgl__gx_rule_set(&b, l.ignored, msgl__gx_rep(&b, any, 0, MSGL_GX_INF));
            const int32_t all[2] = {msgl__gx_ref(&b, l.ignored), body};
            body = msgl__gx_seq(&b, all, 2);
        }
        msgl__gx_rule_set(&b, root, body);
    }
    msgl__gx_list_free(&l.ignores);
    msgl__ebnf_free(&l.e);
    return msgl__grammar_finish(&b, root, out);
}
