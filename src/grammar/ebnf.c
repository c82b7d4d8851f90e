// SPDX-License-Identifier: Apache-2.0
#include "grammar/ebnf.h"

#include <string.h>

#include "core/mem.h"
#include "grammar/regex.h"
#include "utils/hash.h"
#include "utils/strbuf.h"
#include "core/hex.h"
#include "utils/utf8.h"

enum { MAX_COUNT = 100000 };

int32_t msgl__ebnf_fail(msgl_ebnf *e, int code, const char *what)
{
    size_t line = 1, start = 0;
    for (size_t i = 0; i < e->at && i < e->n; i++) {
        if (e->text[i] != '\n') continue;
        line++;
        start = i + 1;
    }
    return msgl__gx_fail(e->b, code, "%s: line %zu column %zu: %s", e->what, line,
                         e->at - start + 1, what);
}

bool msgl__ebnf_take(msgl_ebnf *e, const char *word)
{
    const size_t n = strlen(word);
    if (e->n - e->at < n || memcmp(e->text + e->at, word, n) != 0) return false;
    e->at += n;
    return true;
}

size_t msgl__ebnf_name(const msgl_ebnf *e, size_t at, char extra)
{
    size_t n = 0;
    for (; at + n < e->n; n++) {
        const char c = e->text[at + n], l = (char)(c | 0x20);
        const bool letter = l >= 'a' && l <= 'z';
        const bool digit = c >= '0' && c <= '9';
        if (!letter && !digit && c != '_' && c != extra) break;
    }
    return n;
}

static uint32_t start_slot(const msgl_ebnf *e, const char *name, size_t n)
{
    const uint64_t h = msgl__hash(MSGL_HASH_START, name, n);
    return (uint32_t)(h ^ h >> 32) & e->mask;
}

static uint32_t find_slot(const msgl_ebnf *e, const char *name, size_t n)
{
    uint32_t k = start_slot(e, name, n);
    for (; e->slot[k] != 0; k = (k + 1) & e->mask) {
        const char *have = msgl__gx_rule_name(e->b, e->slot[k] - 1);
        if (strlen(have) == n && memcmp(have, name, n) == 0) break;
    }
    return k;
}

static int grow_names(msgl_ebnf *e)
{
    if (e->slot != NULL && (uint32_t)e->num_names * 2 < e->mask) return 0;
    const uint32_t size = e->slot == NULL ? 128 : (e->mask + 1) * 2;
    int32_t *old = e->slot;
    const uint32_t old_mask = e->mask;
    e->slot = msgl__calloc(size, sizeof *e->slot);
    if (e->slot == NULL) {
        e->slot = old;
        return msgl__gx_fail(e->b, MSGL_ENOMEM, "out of memory for a grammar");
    }
    e->mask = size - 1;
    for (uint32_t i = 0; old != NULL && i <= old_mask; i++) {
        if (old[i] == 0) continue;
        const char *name = msgl__gx_rule_name(e->b, old[i] - 1);
        e->slot[find_slot(e, name, strlen(name))] = old[i];
    }
    msgl__free(old);
    return 0;
}

int32_t msgl__ebnf_find(const msgl_ebnf *e, const char *name, size_t n)
{
    return e->slot == NULL ? -1 : e->slot[find_slot(e, name, n)] - 1;
}

int32_t msgl__ebnf_rule(msgl_ebnf *e, const char *name, size_t n)
{
    if (e->b->rc != 0 || grow_names(e) != 0) return -1;
    const uint32_t k = find_slot(e, name, n);
    if (e->slot[k] != 0) return e->slot[k] - 1;
    const int32_t rule = msgl__gx_rule_new(e->b, name, n);
    if (rule < 0) return -1;
    e->slot[k] = rule + 1;
    e->num_names++;
    return rule;
}

// The sequence without its first element, if that is a reference to the rule; -1: it is not.
static int32_t behind_itself(msgl_ebnf *e, int32_t rule, int32_t id)
{
    const msgl_gx x = e->b->ex[id];
    if (x.kind != MSGL_GX_SEQ) return -1;
    const msgl_gx first = e->b->ex[e->b->kids[x.at]];
    if (first.kind != MSGL_GX_REF || first.at != rule) return -1;
    msgl_gx_list l = {0};
    for (int32_t i = 1; i < x.n; i++) msgl__gx_list_add(e->b, &l, e->b->kids[x.at + i]);
    const int32_t rest = e->b->rc == 0 ? msgl__gx_seq(e->b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return rest;
}

static int32_t without_left(msgl_ebnf *e, int32_t rule, int32_t expr)
{
    if (expr < 0 || e->b->ex[expr].kind != MSGL_GX_ALT) return expr;
    const msgl_gx x = e->b->ex[expr];
    msgl_gx_list first = {0}, more = {0};
    for (int32_t i = 0; i < x.n && e->b->rc == 0; i++) {
        const int32_t kid = e->b->kids[x.at + i];
        const int32_t rest = behind_itself(e, rule, kid);
        msgl__gx_list_add(e->b, rest >= 0 ? &more : &first, rest >= 0 ? rest : kid);
    }
    if (more.n > 0 && e->b->rc == 0) {
        const int32_t again = msgl__gx_alt(e->b, more.at, more.n);
        const int32_t all[2] = {msgl__gx_alt(e->b, first.at, first.n),
                                msgl__gx_rep(e->b, again, 0, MSGL_GX_INF)};
        expr = msgl__gx_seq(e->b, all, 2);
    }
    msgl__gx_list_free(&first);
    msgl__gx_list_free(&more);
    return expr;
}

void msgl__ebnf_define(msgl_ebnf *e, int32_t rule, int32_t expr)
{
    if (e->b->rc != 0 || rule < 0) return;
    if (e->b->rules[rule].expr >= 0) {
        msgl__ebnf_fail(e, MSGL_EFORMAT, "a rule that is defined already");
        return;
    }
    msgl__gx_rule_set(e->b, rule, without_left(e, rule, expr));
}

static uint32_t hex(msgl_ebnf *e, int n)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++) {
        const int d = msgl__hex_digit(msgl__ebnf_peek(e));
        if (d < 0) {
            msgl__ebnf_fail(e, MSGL_EFORMAT, "a malformed code point");
            return 0;
        }
        v = v << 4 | (uint32_t)d;
        e->at++;
    }
    if (v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff)) {
        msgl__ebnf_fail(e, MSGL_EFORMAT, "a code point that is no character");
        return 0;
    }
    return v;
}

uint32_t msgl__ebnf_escape(msgl_ebnf *e)
{
    if (e->at >= e->n) {
        msgl__ebnf_fail(e, MSGL_EFORMAT, "a backslash at the end");
        return 0;
    }
    const char c = e->text[e->at];
    if ((unsigned char)c >= 0x80) return msgl__utf8_next(e->text, &e->at);
    e->at++;
    switch (c) {
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case 'f': return '\f';
    case 'b': return '\b';
    case 'x': return hex(e, 2);
    case 'u': return hex(e, 4);
    case 'U': return hex(e, 8);
    default: break;
    }
    const char l = (char)(c | 0x20);
    if ((l >= 'a' && l <= 'z') || (c >= '0' && c <= '9')) {
        msgl__ebnf_fail(e, MSGL_EUNSUPPORTED, "this escape is not supported");
    }
    return (unsigned char)c;
}

// One ASCII letter in both cases.
static int32_t either_case(msgl_gx_builder *b, uint32_t cp)
{
    const uint32_t pairs[4] = {cp & ~0x20u, cp & ~0x20u, cp | 0x20, cp | 0x20};
    return msgl__gx_class(b, pairs, 2, false);
}

int32_t msgl__ebnf_string(msgl_ebnf *e, char quote, bool ignore_case)
{
    msgl_gx_list l = {0};
    msgl_strbuf part;
    msgl__strbuf_init(&part, e->b->limits.input_bytes + 16);
    bool closed = false;
    while (e->b->rc == 0 && e->at < e->n) {
        if (e->text[e->at] == quote) {
            e->at++;
            closed = true;
            break;
        }
        const uint32_t cp =
            msgl__ebnf_take(e, "\\") ? msgl__ebnf_escape(e) : msgl__utf8_next(e->text, &e->at);
        char one[4];
        const bool letter = (cp | 0x20) >= 'a' && (cp | 0x20) <= 'z';
        if (ignore_case && letter) {
            msgl__gx_list_add(e->b, &l, msgl__gx_lit(e->b, msgl__strbuf_str(&part), part.len));
            msgl__gx_list_add(e->b, &l, either_case(e->b, cp));
            msgl__strbuf_clear(&part);
        } else if (msgl__strbuf_add(&part, one, msgl__utf8_put(cp, one)) != 0) {
            msgl__gx_fail(e->b, MSGL_ENOMEM, "out of memory for a grammar");
        }
    }
    if (!closed) msgl__ebnf_fail(e, MSGL_EFORMAT, "a string without its end");
    if (l.n == 0 || part.len > 0) {
        msgl__gx_list_add(e->b, &l, msgl__gx_lit(e->b, msgl__strbuf_str(&part), part.len));
    }
    const int32_t x = e->b->rc == 0 ? msgl__gx_seq(e->b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    msgl__strbuf_free(&part);
    return x;
}

int32_t msgl__ebnf_number(msgl_ebnf *e)
{
    int64_t v = -1;
    while (msgl__ebnf_peek(e) >= '0' && msgl__ebnf_peek(e) <= '9') {
        v = (v < 0 ? 0 : v) * 10 + (msgl__ebnf_peek(e) - '0');
        e->at++;
        if (v > MAX_COUNT) {
            return msgl__ebnf_fail(e, MSGL_ELIMIT,
                                   "a repetition of more than 100000 (limit: count)");
        }
    }
    return (int32_t)v;
}

int32_t msgl__ebnf_braces(msgl_ebnf *e, int32_t expr)
{
    int32_t min = msgl__ebnf_number(e), max = min;
    if (msgl__ebnf_take(e, ",")) max = msgl__ebnf_number(e);
    if (e->b->rc != 0) return -1;
    if (min < 0 && max >= 0) min = 0; // {,n}
    if (min < 0 || !msgl__ebnf_take(e, "}")) {
        return msgl__ebnf_fail(e, MSGL_EFORMAT, "a malformed repetition");
    }
    if (max >= 0 && max < min) {
        return msgl__ebnf_fail(e, MSGL_EFORMAT, "a repetition {m,n} with n below m");
    }
    return msgl__gx_rep(e->b, expr, min, max);
}

void msgl__ebnf_free(msgl_ebnf *e)
{
    msgl__free(e->slot);
    e->slot = NULL;
}
