// SPDX-License-Identifier: Apache-2.0
#include "grammar/expr.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

void msgl__gx_init(msgl_gx_builder *b, const msgl_grammar_limits *limits, msgl_err *err)
{
    *b = (msgl_gx_builder){.err = err};
    b->limits = *limits;
}

void msgl__gx_free(msgl_gx_builder *b)
{
    msgl__free(b->ex);
    msgl__free(b->kids);
    msgl__free(b->text);
    msgl__free(b->ranges);
    msgl__free(b->rules);
    *b = (msgl_gx_builder){.rc = MSGL_EINVAL};
}

int32_t msgl__gx_fail(msgl_gx_builder *b, int code, const char *fmt, ...)
{
    if (b->rc != 0) return -1;
    b->rc = code;
    char line[MSGL_ERR_TEXT_SIZE];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    // What a client wrote may be in the line; it stays one line.
    for (char *p = line; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    }
    memcpy(b->why, line, sizeof b->why);
    msgl__err_set(b->err, code, "%s", line);
    return -1;
}

static int too_many_bytes(msgl_gx_builder *b)
{
    return msgl__gx_fail(b, MSGL_ELIMIT,
                         "grammar: compiling takes more than %zu bytes (limit: memory)",
                         b->limits.compile_bytes);
}

int msgl__gx_spend(msgl_gx_builder *b, size_t steps, size_t bytes)
{
    if (b->rc != 0) return -1;
    if (steps > b->limits.compile_steps || b->work > b->limits.compile_steps - steps) {
        return msgl__gx_fail(b, MSGL_ELIMIT,
                             "grammar: compiling takes more than %llu steps (limit: work)",
                             (unsigned long long)b->limits.compile_steps);
    }
    b->work += steps;
    if (bytes > b->limits.compile_bytes || b->bytes > b->limits.compile_bytes - bytes) {
        return too_many_bytes(b);
    }
    b->bytes += bytes;
    return 0;
}

void msgl__gx_give_back(msgl_gx_builder *b, size_t bytes)
{
    b->bytes -= bytes;
}

bool msgl__gx_forgive(msgl_gx_builder *b)
{
    return b->limits.lenient && msgl__gx_forgive_strict(b);
}

bool msgl__gx_forgive_strict(msgl_gx_builder *b)
{
    if (b->rc != MSGL_EUNSUPPORTED) return false;
    const size_t n = strlen(b->notes), more = strlen(b->why);
    if (n + more + 3 <= sizeof b->notes && strstr(b->notes, b->why) == NULL) {
        (void)snprintf(b->notes + n, sizeof b->notes - n, "%s%s", n > 0 ? "; " : "", b->why);
    }
    b->rc = 0;
    return true;
}

int msgl__gx_room(msgl_gx_builder *b, void **p, int32_t *cap, int64_t need, size_t size)
{
    if (b->rc != 0) return -1;
    if (need <= *cap) return 0;
    int64_t grown = *cap < 16 ? 16 : (int64_t)*cap * 2;
    if (grown < need) grown = need;
    const size_t more = (size_t)(grown - *cap) * size;
    if (grown > INT32_MAX / 2) return too_many_bytes(b);
    if (msgl__gx_spend(b, 0, more) != 0) return -1;
    void *q = msgl__reallocarray(*p, (size_t)grown, size);
    if (q == NULL) return msgl__gx_fail(b, MSGL_ENOMEM, "out of memory for a grammar");
    *p = q;
    *cap = (int32_t)grown;
    return 0;
}

static int32_t push(msgl_gx_builder *b, msgl_gx e)
{
    if (e.height > b->limits.expr_depth) {
        return msgl__gx_fail(b, MSGL_ELIMIT, "grammar: nested deeper than %d (limit: depth)",
                             b->limits.expr_depth);
    }
    if (msgl__gx_spend(b, 1, 0) != 0 ||
        msgl__gx_room(b, (void **)&b->ex, &b->cap_ex, (int64_t)b->num_ex + 1, sizeof *b->ex) != 0) {
        return -1;
    }
    b->ex[b->num_ex] = e;
    return b->num_ex++;
}

int32_t msgl__gx_never(msgl_gx_builder *b)
{
    return push(b, (msgl_gx){.kind = MSGL_GX_NEVER, .simple = true, .height = 1});
}

static int32_t add_text(msgl_gx_builder *b, const char *bytes, size_t n)
{
    if (n > INT32_MAX / 4 || msgl__gx_spend(b, n / 16, 0) != 0 ||
        msgl__gx_room(b, (void **)&b->text, &b->cap_text, (int64_t)b->len_text + (int64_t)n + 1,
                      1) != 0) {
        return msgl__gx_fail(b, MSGL_ELIMIT, "grammar: a text is too long");
    }
    const int32_t at = b->len_text;
    if (n > 0) memcpy(b->text + at, bytes, n);
    b->text[at + (int32_t)n] = '\0';
    b->len_text += (int32_t)n + 1;
    return at;
}

int32_t msgl__gx_lit(msgl_gx_builder *b, const char *bytes, size_t n)
{
    const int32_t at = add_text(b, bytes, n);
    if (at < 0) return -1;
    return push(
        b, (msgl_gx){.kind = MSGL_GX_LIT, .simple = true, .height = 1, .at = at, .n = (int32_t)n});
}

int32_t msgl__gx_str(msgl_gx_builder *b, const char *s)
{
    return msgl__gx_lit(b, s, strlen(s));
}

static int by_first(const void *a, const void *b)
{
    const uint32_t p = *(const uint32_t *)a, q = *(const uint32_t *)b;
    return (p > q) - (p < q);
}

// Appends [first, last] without the surrogates.
static void put_range(msgl_gx_builder *b, uint32_t first, uint32_t last)
{
    if (last > 0x10ffff) last = 0x10ffff;
    if (first > last) return;
    if (first < 0xd800 && last >= 0xd800) {
        put_range(b, first, 0xd7ff);
        first = 0xd800;
    }
    if (first >= 0xd800 && first <= 0xdfff) first = 0xe000;
    if (first > last) return;
    if (msgl__gx_room(b, (void **)&b->ranges, &b->cap_ranges, (int64_t)b->num_ranges + 2,
                      sizeof *b->ranges) != 0) {
        return;
    }
    b->ranges[b->num_ranges++] = first;
    b->ranges[b->num_ranges++] = last;
}

int32_t msgl__gx_class(msgl_gx_builder *b, const uint32_t *pairs, int32_t n, bool negate)
{
    if (msgl__gx_spend(b, (size_t)n, 0) != 0) return -1;
    uint32_t *sorted = msgl__reallocarray(NULL, (size_t)n * 2 + 1, sizeof *sorted);
    if (sorted == NULL) return msgl__gx_fail(b, MSGL_ENOMEM, "out of memory for a grammar");
    if (n > 0) memcpy(sorted, pairs, (size_t)n * 2 * sizeof *sorted);
    qsort(sorted, (size_t)n, 2 * sizeof *sorted, by_first);
    const int32_t at = b->num_ranges;
    uint32_t next = 0; // of a negated set: the first code point not yet decided
    for (int32_t i = 0; i < n;) {
        uint32_t first = sorted[2 * i], last = sorted[2 * i + 1];
        for (i++; i < n && sorted[2 * i] <= last + 1; i++) {
            if (sorted[2 * i + 1] > last) last = sorted[2 * i + 1];
        }
        if (!negate) put_range(b, first, last);
        if (negate && first > next) put_range(b, next, first - 1);
        if (last + 1 > next) next = last + 1;
    }
    if (negate) put_range(b, next, 0x10ffff);
    msgl__free(sorted);
    if (b->rc != 0) return -1;
    if (b->num_ranges == at) return msgl__gx_never(b);
    return push(b, (msgl_gx){.kind = MSGL_GX_CLASS,
                             .simple = true,
                             .height = 1,
                             .at = at,
                             .n = (b->num_ranges - at) / 2});
}

static int32_t with_kids(msgl_gx_builder *b, msgl_gx e, const int32_t *kids, int32_t n)
{
    if (msgl__gx_spend(b, (size_t)n / 4, 0) != 0 ||
        msgl__gx_room(b, (void **)&b->kids, &b->cap_kids, (int64_t)b->num_kids + n,
                      sizeof *b->kids) != 0) {
        return -1;
    }
    e.at = b->num_kids;
    e.n = n;
    e.simple = true;
    for (int32_t i = 0; i < n; i++) {
        if (kids[i] < 0) return -1;
        const msgl_gx *k = &b->ex[kids[i]];
        if (k->height > e.height) e.height = k->height;
        e.simple &= k->simple;
        b->kids[b->num_kids++] = kids[i];
    }
    e.height++;
    return push(b, e);
}

// Literals that stand side by side, [0, n) of kids, as one.
static int32_t joined(msgl_gx_builder *b, const int32_t *kids, int32_t n)
{
    int64_t len = 0;
    for (int32_t i = 0; i < n; i++) len += b->ex[kids[i]].n;
    if (len > INT32_MAX / 4 ||
        msgl__gx_room(b, (void **)&b->text, &b->cap_text, (int64_t)b->len_text + len + 1, 1) != 0) {
        return msgl__gx_fail(b, MSGL_ELIMIT, "grammar: a text is too long");
    }
    const int32_t at = b->len_text;
    for (int32_t i = 0; i < n; i++) {
        const msgl_gx *e = &b->ex[kids[i]];
        if (e->n > 0) memcpy(b->text + b->len_text, b->text + e->at, (size_t)e->n);
        b->len_text += e->n;
    }
    b->text[b->len_text++] = '\0';
    return push(
        b,
        (msgl_gx){.kind = MSGL_GX_LIT, .simple = true, .height = 1, .at = at, .n = (int32_t)len});
}

static bool is_lit(const msgl_gx_builder *b, int32_t kid)
{
    return kid >= 0 && b->ex[kid].kind == MSGL_GX_LIT;
}

int32_t msgl__gx_seq(msgl_gx_builder *b, const int32_t *kids, int32_t n)
{
    if (n == 1) return kids[0];
    if (n == 0) return msgl__gx_lit(b, "", 0);
    bool pairs = false;
    for (int32_t i = 1; i < n; i++) pairs |= is_lit(b, kids[i - 1]) && is_lit(b, kids[i]);
    if (!pairs) return with_kids(b, (msgl_gx){.kind = MSGL_GX_SEQ}, kids, n);
    msgl_gx_list l = {0};
    for (int32_t i = 0, end; i < n && b->rc == 0; i = end) {
        for (end = i + 1; end < n && is_lit(b, kids[i]) && is_lit(b, kids[end]);) end++;
        msgl__gx_list_add(b, &l, end > i + 1 ? joined(b, kids + i, end - i) : kids[i]);
    }
    int32_t e = -1;
    if (b->rc == 0)
        e = l.n == 1 ? l.at[0] : with_kids(b, (msgl_gx){.kind = MSGL_GX_SEQ}, l.at, l.n);
    msgl__gx_list_free(&l);
    return e;
}

int32_t msgl__gx_alt(msgl_gx_builder *b, const int32_t *kids, int32_t n)
{
    if (n == 1) return kids[0];
    if (n == 0) return msgl__gx_never(b);
    return with_kids(b, (msgl_gx){.kind = MSGL_GX_ALT}, kids, n);
}

int32_t msgl__gx_except(msgl_gx_builder *b, const int32_t *names, int32_t n)
{
    return with_kids(b, (msgl_gx){.kind = MSGL_GX_EXCEPT}, names, n);
}

static int32_t with_bounds(msgl_gx_builder *b, msgl_gx_kind kind, int32_t kid, int32_t min,
                           int32_t max)
{
    if (b->rc != 0 || kid < 0) return -1;
    if (max != MSGL_GX_INF && min > max) return msgl__gx_never(b);
    return push(b, (msgl_gx){.kind = (uint8_t)kind,
                             .simple = b->ex[kid].simple,
                             .height = b->ex[kid].height + 1,
                             .at = kid,
                             .n = 1,
                             .min = min,
                             .max = max});
}

int32_t msgl__gx_rep(msgl_gx_builder *b, int32_t kid, int32_t min, int32_t max)
{
    if (min == 1 && max == 1) return kid;
    if (max == 0 && min == 0) return msgl__gx_lit(b, "", 0);
    return with_bounds(b, MSGL_GX_REP, kid, min, max);
}

int32_t msgl__gx_len(msgl_gx_builder *b, int32_t kid, int32_t min, int32_t max)
{
    if (min <= 0 && max == MSGL_GX_INF) return kid;
    return with_bounds(b, MSGL_GX_LEN, kid, min, max);
}

int32_t msgl__gx_one(msgl_gx_builder *b, int32_t kid)
{
    return with_bounds(b, MSGL_GX_ONE, kid, 1, 1);
}

int32_t msgl__gx_ref(msgl_gx_builder *b, int32_t rule)
{
    if (rule < 0) return -1;
    return push(b, (msgl_gx){.kind = MSGL_GX_REF, .height = 1, .at = rule});
}

int32_t msgl__gx_rule_new(msgl_gx_builder *b, const char *name, size_t n)
{
    if (msgl__gx_room(b, (void **)&b->rules, &b->cap_rules, (int64_t)b->num_rules + 1,
                      sizeof *b->rules) != 0) {
        return -1;
    }
    const int32_t at = name != NULL ? add_text(b, name, n) : -1;
    if (b->rc != 0) return -1;
    b->rules[b->num_rules] = (msgl_gx_rule){.expr = -1, .name = at};
    return b->num_rules++;
}

void msgl__gx_rule_set(msgl_gx_builder *b, int32_t rule, int32_t expr)
{
    if (b->rc == 0 && rule >= 0 && expr >= 0) b->rules[rule].expr = expr;
}

const char *msgl__gx_rule_name(const msgl_gx_builder *b, int32_t rule)
{
    return rule >= 0 && b->rules[rule].name >= 0 ? b->text + b->rules[rule].name : "(unnamed)";
}

void msgl__gx_list_add(msgl_gx_builder *b, msgl_gx_list *l, int32_t expr)
{
    if (expr < 0) return; // the failure is the builder's
    l->b = b;
    if (msgl__gx_room(b, (void **)&l->at, &l->cap, (int64_t)l->n + 1, sizeof *l->at) == 0) {
        l->at[l->n++] = expr;
    }
}

void msgl__gx_list_free(msgl_gx_list *l)
{
    if (l->b != NULL) msgl__gx_give_back(l->b, (size_t)l->cap * sizeof *l->at);
    msgl__free(l->at);
    *l = (msgl_gx_list){0};
}
