// SPDX-License-Identifier: Apache-2.0
//
// GBNF, llama.cpp's grammars: name ::= alternatives of literals, classes, names, groups, and . with
// * + ? {m,n}. A rule ends where the next one begins, so alternatives may stand on lines of their
// own.
#include <string.h>

#include "core/mem.h"
#include "grammar/compiled.h"
#include "grammar/ebnf.h"
#include "utils/utf8.h"

static void blanks(msgl_ebnf *e)
{
    for (; e->at < e->n; e->at++) {
        const char c = e->text[e->at];
        if (c == '#') {
            while (e->at < e->n && e->text[e->at] != '\n') e->at++;
            if (e->at >= e->n) return;
        } else if (c != ' ' && c != '\t' && c != '\r' && c != '\n') {
            return;
        }
    }
}

// Whether a name and ::= stand here.
static bool at_rule(const msgl_ebnf *e)
{
    const size_t n = msgl__ebnf_name(e, e->at, '-');
    size_t i = e->at + n;
    while (i < e->n && (e->text[i] == ' ' || e->text[i] == '\t')) i++;
    return n > 0 && e->n - i >= 3 && memcmp(e->text + i, "::=", 3) == 0;
}

static int32_t bracket(msgl_ebnf *e)
{
    uint32_t *pairs = NULL;
    int32_t n = 0, cap = 0;
    const bool negate = msgl__ebnf_take(e, "^");
    bool closed = false;
    while (e->b->rc == 0 && e->at < e->n) {
        if (msgl__ebnf_take(e, "]")) {
            closed = true;
            break;
        }
        uint32_t ends[2];
        for (int k = 0; k < 2; k++) {
            if (k == 1 &&
                (msgl__ebnf_peek(e) != '-' || e->at + 1 >= e->n || e->text[e->at + 1] == ']')) {
                ends[1] = ends[0];
                break;
            }
            e->at += (size_t)k;
            ends[k] =
                msgl__ebnf_take(e, "\\") ? msgl__ebnf_escape(e) : msgl__utf8_next(e->text, &e->at);
        }
        if (ends[1] < ends[0])
            msgl__ebnf_fail(e, MSGL_EFORMAT, "a range that ends before it begins");
        if (msgl__gx_room(e->b, (void **)&pairs, &cap, 2 * (int64_t)n + 2, sizeof *pairs) != 0)
            break;
        pairs[2 * n] = ends[0];
        pairs[2 * n + 1] = ends[1];
        n++;
    }
    if (!closed) msgl__ebnf_fail(e, MSGL_EFORMAT, "a class without its end");
    const int32_t x = e->b->rc == 0 ? msgl__gx_class(e->b, pairs, n, negate) : -1;
    msgl__free(pairs);
    return x;
}

static int32_t alternatives(msgl_ebnf *e);

static int32_t atom(msgl_ebnf *e)
{
    if (msgl__ebnf_take(e, "\"")) return msgl__ebnf_string(e, '"', false);
    if (msgl__ebnf_take(e, "[")) return bracket(e);
    if (msgl__ebnf_take(e, ".")) return msgl__gx_class(e->b, NULL, 0, true);
    if (msgl__ebnf_take(e, "(")) {
        if (++e->depth > MSGL_EBNF_GROUPS) {
            return msgl__ebnf_fail(e, MSGL_ELIMIT, "groups nested deeper than 100 (limit: depth)");
        }
        const int32_t x = alternatives(e);
        e->depth--;
        if (e->b->rc == 0 && !msgl__ebnf_take(e, ")")) {
            return msgl__ebnf_fail(e, MSGL_EFORMAT, "a group without its end");
        }
        return x;
    }
    const size_t n = msgl__ebnf_name(e, e->at, '-');
    if (n == 0)
        return msgl__ebnf_fail(e, MSGL_EFORMAT, "neither a name, a text, a class nor a group");
    const int32_t rule = msgl__ebnf_rule(e, e->text + e->at, n);
    e->at += n;
    return msgl__gx_ref(e->b, rule);
}

static int32_t repeated(msgl_ebnf *e, int32_t x)
{
    for (;;) {
        if (e->b->rc != 0) return -1;
        if (msgl__ebnf_take(e, "*")) {
            x = msgl__gx_rep(e->b, x, 0, MSGL_GX_INF);
        } else if (msgl__ebnf_take(e, "+")) {
            x = msgl__gx_rep(e->b, x, 1, MSGL_GX_INF);
        } else if (msgl__ebnf_take(e, "?")) {
            x = msgl__gx_rep(e->b, x, 0, 1);
        } else if (msgl__ebnf_take(e, "{")) {
            x = msgl__ebnf_braces(e, x);
        } else {
            return x;
        }
    }
}

static int32_t sequence(msgl_ebnf *e)
{
    msgl_gx_list l = {0};
    for (blanks(e); e->b->rc == 0 && e->at < e->n; blanks(e)) {
        const int c = msgl__ebnf_peek(e);
        if (c == '|' || c == ')' || at_rule(e)) break;
        const int32_t x = atom(e);
        msgl__gx_list_add(e->b, &l, repeated(e, x));
    }
    const int32_t x = e->b->rc == 0 ? msgl__gx_seq(e->b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return x;
}

static int32_t alternatives(msgl_ebnf *e)
{
    msgl_gx_list l = {0};
    do {
        msgl__gx_list_add(e->b, &l, sequence(e));
    } while (e->b->rc == 0 && msgl__ebnf_take(e, "|"));
    const int32_t x = e->b->rc == 0 ? msgl__gx_alt(e->b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return x;
}

static void rules(msgl_ebnf *e)
{
    for (blanks(e); e->b->rc == 0 && e->at < e->n; blanks(e)) {
        if (!at_rule(e)) {
            msgl__ebnf_fail(e, MSGL_EFORMAT, "expected a rule: name ::= ...");
            return;
        }
        const size_t n = msgl__ebnf_name(e, e->at, '-');
        const int32_t rule = msgl__ebnf_rule(e, e->text + e->at, n);
        e->at += n;
        blanks(e);
        e->at += 3;
        const int32_t body = alternatives(e);
        if (e->b->rc == 0 && msgl__ebnf_peek(e) == ')') {
            msgl__ebnf_fail(e, MSGL_EFORMAT, "a ) without its group");
        }
        msgl__ebnf_define(e, rule, body);
    }
}

int msgl__grammar_gbnf(const char *text, size_t n, const msgl_grammar_limits *limits,
                       msgl_grammar **out, msgl_err *err)
{
    msgl_gx_builder b;
    msgl_ebnf e = {.b = &b, .what = "gbnf", .text = text, .n = n};
    int32_t root = -1;
    if (msgl__grammar_begin(&b, n, limits, err) == 0) {
        if (msgl__utf8_valid(text, n) != n) msgl__gx_fail(&b, MSGL_EFORMAT, "gbnf: not UTF-8");
        rules(&e);
        root = msgl__ebnf_find(&e, "root", 4);
        if (root < 0) msgl__gx_fail(&b, MSGL_EFORMAT, "gbnf: there is no rule named root");
    }
    msgl__ebnf_free(&e);
    return msgl__grammar_finish(&b, root, out);
}
