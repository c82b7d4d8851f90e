// SPDX-License-Identifier: Apache-2.0
//
// Patterns by recursive descent, as deep as groups are nested, which is bounded. Characters of
// classes are code points; \d, \w and \s are the ASCII ones, as in ECMA 262 without its u flag
// (\s has the Unicode spaces there; a model that writes JSON does without them).
#include "grammar/regex.h"

#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "grammar/compiled.h"
#include "grammar/json_text.h"
#include "core/hex.h"
#include "utils/utf8.h"

enum { MAX_GROUPS = 100, MAX_COUNT = 100000 };

typedef struct ranges {
    uint32_t *at; // pairs
    int32_t n, cap;
} ranges;

typedef struct parser {
    msgl_gx_builder *b;
    const char *text;
    size_t n, at;
    int depth;
    const msgl_regex_opts *o;
} parser;

static int32_t bad(parser *p, int code, const char *what)
{
    return msgl__gx_fail(p->b, code, "%s: %s at character %zu of the pattern", p->o->where, what,
                         msgl__utf8_count(p->text, p->at) + 1);
}

static bool more(const parser *p)
{
    return p->b->rc == 0 && p->at < p->n;
}

static int peek(const parser *p)
{
    return p->at < p->n ? (unsigned char)p->text[p->at] : -1;
}

static bool take(parser *p, const char *word)
{
    const size_t n = strlen(word);
    if (p->n - p->at < n || memcmp(p->text + p->at, word, n) != 0) return false;
    p->at += n;
    return true;
}

static void add(parser *p, ranges *r, uint32_t first, uint32_t last)
{
    if (msgl__gx_room(p->b, (void **)&r->at, &r->cap, (int64_t)r->n * 2 + 2, sizeof *r->at) != 0) {
        return;
    }
    r->at[2 * r->n] = first;
    r->at[2 * r->n + 1] = last;
    r->n++;
}

static void drop(parser *p, ranges *r)
{
    msgl__free(r->at);
    msgl__gx_give_back(p->b, (size_t)r->cap * sizeof *r->at);
}

// A class that the text has: expression of the set as it is, or as JSON writes it.
static int32_t class_expr(parser *p, ranges *r, bool negate)
{
    if (p->o->ignore_case) {
        const int32_t n = r->n;
        for (int32_t i = 0; i < n && p->b->rc == 0; i++) {
            for (uint32_t c = 'A'; c <= 'Z'; c++) {
                const uint32_t a = r->at[2 * i], z = r->at[2 * i + 1];
                if (c >= a && c <= z) add(p, r, c | 0x20, c | 0x20);
                if ((c | 0x20) >= a && (c | 0x20) <= z) add(p, r, c, c);
            }
        }
    }
    const int32_t id = msgl__gx_class(p->b, r->at, r->n, negate);
    if (id < 0 || !p->o->json || p->b->ex[id].kind != MSGL_GX_CLASS) return id;
    const msgl_gx e = p->b->ex[id];
    uint32_t *copy = msgl__reallocarray(NULL, (size_t)e.n, 2 * sizeof *copy);
    if (copy == NULL) return msgl__gx_fail(p->b, MSGL_ENOMEM, "out of memory for a grammar");
    memcpy(copy, p->b->ranges + e.at, (size_t)e.n * 2 * sizeof *copy);
    const int32_t json = msgl__json_class(p->b, copy, e.n);
    msgl__free(copy);
    return json;
}

static void add_named(parser *p, ranges *r, char name)
{
    static const uint32_t DIGIT[] = {'0', '9'}, WORD[] = {'0', '9', 'A', 'Z', '_', '_', 'a', 'z'},
                          SPACE[] = {'\t', '\r', ' ', ' '};
    const uint32_t *set = SPACE;
    int n = 2;
    const char kind = (char)(name | 0x20);
    if (kind == 'd') set = DIGIT, n = 1;
    if (kind == 'w') set = WORD, n = 4;
    uint32_t next = 0;
    for (int i = 0; i < n; i++) {
        if (kind == name) {
            add(p, r, set[2 * i], set[2 * i + 1]);
        } else if (set[2 * i] > next) {
            add(p, r, next, set[2 * i] - 1);
        }
        next = set[2 * i + 1] + 1;
    }
    if (kind != name) add(p, r, next, 0x10ffff);
}

typedef struct class_of {
    parser *p;
    ranges *r;
} class_of;

static void add_to(void *to, uint32_t first, uint32_t last)
{
    const class_of *c = to;
    add(c->p, c->r, first, last);
}

// Behind \p or \P: {name}, {^name}, or one letter.
static void add_category(parser *p, ranges *r, bool negate)
{
    const size_t start = p->at;
    size_t n = 1;
    const char *name = p->text + start;
    if (peek(p) == '{') {
        const char *end = memchr(name, '}', p->n - start);
        if (end == NULL) {
            bad(p, MSGL_EFORMAT, "a malformed \\p{...}");
            return;
        }
        name++;
        n = (size_t)(end - name);
        p->at = (size_t)(end - p->text) + 1;
        if (n > 0 && name[0] == '^') {
            negate = !negate;
            name++;
            n--;
        }
    } else if (p->at < p->n) {
        p->at++;
    }
    class_of to = {p, r};
    if (p->b->rc == 0 && (start >= p->n || !msgl__regex_category(name, n, negate, add_to, &to))) {
        p->at = start;
        bad(p, MSGL_EUNSUPPORTED,
            "\\p of this name is not supported; allowed: general categories such as L, Lu, Nd");
    }
}

static uint32_t hex_number(parser *p, int min, int max)
{
    uint32_t v = 0;
    int n = 0;
    while (n < max && msgl__hex_digit(peek(p)) >= 0) {
        v = v * 16 + (uint32_t)msgl__hex_digit(peek(p));
        p->at++;
        n++;
    }
    if (n < min || v > 0x10ffff) bad(p, MSGL_EFORMAT, "a malformed code point");
    return v;
}

static uint32_t code_point(parser *p, char kind)
{
    if (kind == 'x' && peek(p) != '{') return hex_number(p, 2, 2);
    if (take(p, "{")) {
        const uint32_t v = hex_number(p, 1, 6);
        if (!take(p, "}")) bad(p, MSGL_EFORMAT, "a malformed code point");
        return v;
    }
    const uint32_t v = hex_number(p, 4, kind == 'U' ? 8 : 4);
    if (v >= 0xd800 && v <= 0xdbff && take(p, "\\u")) {
        const uint32_t low = hex_number(p, 4, 4);
        if (low < 0xdc00 || low > 0xdfff) bad(p, MSGL_EFORMAT, "half of a surrogate pair");
        return 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
    }
    return v;
}

// What stands behind a backslash: true and *cp, or false and the class in *r.
static bool escape(parser *p, ranges *r, bool in_class, uint32_t *cp)
{
    *cp = 0;
    if (p->at >= p->n) {
        bad(p, MSGL_EFORMAT, "a backslash at the end");
        return true;
    }
    if ((unsigned char)p->text[p->at] >= 0x80) {
        *cp = msgl__utf8_next(p->text, &p->at);
        return true;
    }
    const char c = p->text[p->at++];
    static const char FROM[] = "tnrfv0ae", TO[] = "\t\n\r\f\v\0\a\x1b";
    const char *known = c != '\0' ? strchr(FROM, c) : NULL;
    if (known != NULL) {
        *cp = (unsigned char)TO[known - FROM];
        if (c == '0' && peek(p) >= '0' && peek(p) <= '9') {
            bad(p, MSGL_EUNSUPPORTED, "an octal escape is not supported");
        }
        return true;
    }
    switch (c) {
    case 'd':
    case 'D':
    case 'w':
    case 'W':
    case 's':
    case 'S': add_named(p, r, c); return false;
    case 'p':
    case 'P': add_category(p, r, c == 'P'); return p->b->rc != 0;
    case 'x':
    case 'u':
    case 'U': *cp = code_point(p, c); return true;
    case 'b':
        *cp = '\b';
        if (in_class) return true;
        break;
    default:
        // Anything but letters and digits stands for itself.
        *cp = (unsigned char)c;
        if (!((c | 0x20) >= 'a' && (c | 0x20) <= 'z') && !(c >= '0' && c <= '9')) return true;
    }
    char what[64] = "\\? is not supported";
    what[1] = c;
    p->at -= 2;
    bad(p, MSGL_EUNSUPPORTED, what);
    return true;
}

// One end of a range in a class; false: it was a class of its own.
static bool class_item(parser *p, ranges *r, uint32_t *cp)
{
    if (take(p, "\\")) return escape(p, r, true, cp);
    *cp = msgl__utf8_next(p->text, &p->at);
    return true;
}

static int32_t bracket(parser *p)
{
    const bool negate = take(p, "^");
    ranges r = {0};
    bool first = true, closed = false;
    while (more(p)) {
        if (peek(p) == ']' && !first) {
            closed = true;
            p->at++;
            break;
        }
        // "[]" matches nothing in ECMA 262 and "]" elsewhere: neither is meant by a client.
        if (peek(p) == ']') break;
        if (take(p, "[:") || take(p, "&&")) {
            bad(p, MSGL_EUNSUPPORTED, "a named class or set operation is not supported");
            break;
        }
        first = false;
        uint32_t a, z;
        if (!class_item(p, &r, &a)) continue;
        z = a;
        if (peek(p) == '-' && p->at + 1 < p->n && p->text[p->at + 1] != ']') {
            p->at++;
            if (!class_item(p, &r, &z)) { // [a-\d]: a, -, digits
                add(p, &r, '-', '-');
                z = a;
            } else if (z < a) {
                bad(p, MSGL_EFORMAT, "a range that ends before it begins");
            }
        }
        add(p, &r, a, z);
    }
    int32_t e = -1;
    if (!closed) bad(p, MSGL_EFORMAT, "a class that is empty or has no end");
    if (p->b->rc == 0) e = class_expr(p, &r, negate);
    drop(p, &r);
    return e;
}

static int32_t single(parser *p, uint32_t cp)
{
    if (!p->o->ignore_case || !((cp | 0x20) >= 'a' && (cp | 0x20) <= 'z')) {
        char text[8];
        const size_t n = p->o->json ? msgl__json_put_char(cp, text) : msgl__utf8_put(cp, text);
        // A surrogate matches nothing: no text has one.
        if (cp >= 0xd800 && cp <= 0xdfff) return msgl__gx_never(p->b);
        if (n == 1 || !p->o->json || cp >= 0x80) return msgl__gx_lit(p->b, text, n);
    }
    ranges r = {0};
    add(p, &r, cp, cp);
    const int32_t e = p->b->rc == 0 ? class_expr(p, &r, false) : -1;
    drop(p, &r);
    return e;
}

static int32_t alternatives(parser *p, bool at_start, bool at_end);

// Whether nothing but closing groups and alternatives follows up to the end of the pattern.
static bool rest_is_end(const parser *p)
{
    return p->at >= p->n || p->text[p->at] == '|' || p->text[p->at] == ')';
}

// Whether the group that begins here is followed by the alternative's end.
static bool group_is_last(const parser *p)
{
    int depth = 0;
    bool in_class = false;
    for (size_t i = p->at; i < p->n; i++) {
        const char c = p->text[i];
        if (c == '\\') {
            i++;
        } else if (in_class) {
            in_class = c != ']';
        } else if (c == '[') {
            in_class = true;
        } else if (c == '(') {
            depth++;
        } else if (c == ')' && --depth == 0) {
            return i + 1 == p->n || p->text[i + 1] == '|' || p->text[i + 1] == ')';
        }
    }
    return false;
}

static int32_t group(parser *p, bool at_start, bool at_end)
{
    if (take(p, "?")) {
        if (take(p, "P<") || (peek(p) == '<' && p->at + 1 < p->n && p->text[p->at + 1] != '=' &&
                              p->text[p->at + 1] != '!')) {
            while (more(p) && peek(p) != '>') p->at++;
            take(p, ">");
        } else if (!take(p, ":")) {
            return bad(p, MSGL_EUNSUPPORTED, "a look-around or flag group is not supported");
        }
    }
    if (++p->depth > MAX_GROUPS) {
        return msgl__gx_fail(p->b, MSGL_ELIMIT, "%s: groups nested deeper than %d (limit: depth)",
                             p->o->where, MAX_GROUPS);
    }
    const int32_t e = alternatives(p, at_start, at_end);
    p->depth--;
    if (p->b->rc == 0 && !take(p, ")")) bad(p, MSGL_EFORMAT, "a group without an end");
    return e;
}

static int32_t atom(parser *p, bool at_start, bool at_end)
{
    const int c = peek(p);
    uint32_t cp;
    ranges r = {0};
    switch (c) {
    case '(': p->at++; return group(p, at_start, at_end);
    case '[': p->at++; return bracket(p);
    case '.': {
        p->at++;
        if (!p->o->dot_all) {
            add(p, &r, '\n', '\n');
            add(p, &r, '\r', '\r');
        }
        const int32_t e = class_expr(p, &r, true);
        drop(p, &r);
        return e;
    }
    case '*':
    case '+':
    case '?':
    case '{': return bad(p, MSGL_EFORMAT, "a repetition of nothing");
    case '\\': {
        p->at++;
        const bool one = escape(p, &r, false, &cp);
        int32_t e = -1;
        if (p->b->rc == 0) e = one ? single(p, cp) : class_expr(p, &r, false);
        drop(p, &r);
        return e;
    }
    default: cp = msgl__utf8_next(p->text, &p->at); return single(p, cp);
    }
}

static int32_t number(parser *p)
{
    int64_t v = -1;
    while (peek(p) >= '0' && peek(p) <= '9') {
        v = (v < 0 ? 0 : v) * 10 + (peek(p) - '0');
        p->at++;
        if (v > MAX_COUNT) {
            return msgl__gx_fail(p->b, MSGL_ELIMIT,
                                 "%s: a repetition of more than %d (limit: count)", p->o->where,
                                 MAX_COUNT);
        }
    }
    return (int32_t)v;
}

static int32_t repeated(parser *p, int32_t e)
{
    int32_t min, max = MSGL_GX_INF;
    if (take(p, "*")) {
        min = 0;
    } else if (take(p, "+")) {
        min = 1;
    } else if (take(p, "?")) {
        min = 0;
        max = 1;
    } else if (take(p, "{")) {
        min = number(p);
        max = min;
        if (take(p, ",")) max = number(p);
        if (p->b->rc == 0 && (min < 0 || !take(p, "}"))) {
            bad(p, MSGL_EFORMAT, "a malformed repetition");
        }
        if (p->b->rc == 0 && max >= 0 && max < min)
            bad(p, MSGL_EFORMAT, "a repetition {m,n}, n < m");
    } else {
        return e;
    }
    take(p, "?"); // lazy: the same texts
    if (peek(p) == '+' || peek(p) == '*') {
        return bad(p, MSGL_EUNSUPPORTED, "a possessive or double repetition is not supported");
    }
    if (peek(p) == '{' || peek(p) == '?') return bad(p, MSGL_EFORMAT, "a double repetition");
    return msgl__gx_rep(p->b, e, min, max);
}

// What stands before or behind a pattern that is searched for.
static int32_t anything(parser *p)
{
    const uint32_t all[2] = {0, 0x10ffff};
    const int32_t any = p->o->json ? msgl__json_char(p->b) : msgl__gx_class(p->b, all, 1, false);
    return msgl__gx_rep(p->b, any, 0, MSGL_GX_INF);
}

// A sequence up to | or ). at_start, at_end: it stands at an end of the whole pattern, where an
// anchor may be and where a search has anything else.
static int32_t sequence(parser *p, bool at_start, bool at_end)
{
    msgl_gx_list l = {0};
    bool open_start = at_start && p->o->search, open_end = at_end && p->o->search;
    bool anchored = false;
    while (p->b->rc == 0 && at_start && (take(p, "^") || take(p, "\\A"))) anchored = true;
    if (anchored) open_start = false;
    while (more(p) && peek(p) != '|' && peek(p) != ')') {
        if (peek(p) == '^') {
            bad(p, MSGL_EUNSUPPORTED, "^ inside the pattern is not supported");
            break;
        }
        if (take(p, "$") || take(p, "\\z") || take(p, "\\Z")) {
            if (!at_end || !rest_is_end(p)) {
                bad(p, MSGL_EUNSUPPORTED, "$ inside the pattern is not supported");
            }
            open_end = false;
            continue;
        }
        // Groups that are a whole alternative have its ends: ^ and $ may be in them.
        const bool whole = !anchored && l.n == 0 && peek(p) == '(' && group_is_last(p);
        int32_t e = atom(p, whole && at_start, whole && at_end);
        if (whole) {
            // What a search adds stands inside it already, where its own anchors are known.
            open_start = open_end = false;
        }
        e = repeated(p, e);
        msgl__gx_list_add(p->b, &l, e);
    }
    if (open_start) {
        msgl_gx_list with = {0};
        msgl__gx_list_add(p->b, &with, anything(p));
        for (int32_t i = 0; i < l.n; i++) msgl__gx_list_add(p->b, &with, l.at[i]);
        msgl__gx_list_free(&l);
        l = with;
    }
    if (open_end) msgl__gx_list_add(p->b, &l, anything(p));
    const int32_t e = p->b->rc == 0 ? msgl__gx_seq(p->b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

static int32_t alternatives(parser *p, bool at_start, bool at_end)
{
    msgl_gx_list l = {0};
    do {
        msgl__gx_list_add(p->b, &l, sequence(p, at_start, at_end));
    } while (p->b->rc == 0 && take(p, "|"));
    const int32_t e = p->b->rc == 0 ? msgl__gx_alt(p->b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

int32_t msgl__regex(msgl_gx_builder *b, const char *text, size_t n, const msgl_regex_opts *opts)
{
    if (b->rc != 0) return -1;
    if (msgl__utf8_valid(text, n) != n) {
        return msgl__gx_fail(b, MSGL_EFORMAT, "%s: the pattern is not UTF-8", opts->where);
    }
    parser p = {.b = b, .text = text, .n = n, .o = opts};
    const int32_t e = alternatives(&p, true, true);
    if (b->rc == 0 && p.at < n) return bad(&p, MSGL_EFORMAT, "a ) without its group");
    return e;
}

int msgl__grammar_regex(const char *text, size_t n, const msgl_grammar_limits *limits,
                        msgl_grammar **out, msgl_err *err)
{
    msgl_gx_builder b;
    msgl__grammar_begin(&b, n, limits, err);
    const msgl_regex_opts o = {.where = "regex"};
    const int32_t root = msgl__gx_rule_new(&b, "regex", 5);
    msgl__gx_rule_set(&b, root, msgl__regex(&b, text, n, &o));
    return msgl__grammar_finish(&b, root, out);
}
