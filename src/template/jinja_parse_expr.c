// SPDX-License-Identifier: Apache-2.0
//
// Expressions, in jinja's order of binding: if-else, or, and, not, comparisons, + -, ~, * / // %,
// **, unary sign, then postfix (attribute, subscript, call), filters and tests.
#include <string.h>

#include "template/jinja_parse.h"
#include "template/jinja_string.h"

static int parse_or(msgl_jparser *p, msgl_jnode **out);
static int parse_unary(msgl_jparser *p, bool with_filter, msgl_jnode **out);
static int parse_postfix(msgl_jparser *p, msgl_jnode **io);

static int new_node(msgl_jparser *p, msgl_jkind kind, int line, msgl_jnode *a, msgl_jnode *b,
                    msgl_jnode **out)
{
    MSGL_JTRY(msgl__jp_node(p, kind, line, out));
    (*out)->a = a;
    (*out)->b = b;
    return msgl__jp_close(p, *out);
}

static int line_of(const msgl_jparser *p)
{
    return msgl__jp_cur(p)->line;
}

int msgl__jp_expr(msgl_jparser *p, bool with_cond, msgl_jnode **out)
{
    MSGL_JTRY(msgl__jp_enter(p));
    const int line = line_of(p);
    MSGL_JTRY(parse_or(p, out));
    while (with_cond && msgl__jp_skip_name(p, "if")) {
        msgl_jnode *n;
        MSGL_JTRY(msgl__jp_node(p, MSGL_JX_COND, line, &n));
        n->b = *out;
        MSGL_JTRY(parse_or(p, &n->a));
        if (msgl__jp_skip_name(p, "else")) MSGL_JTRY(msgl__jp_expr(p, true, &n->c));
        MSGL_JTRY(msgl__jp_close(p, n));
        *out = n;
    }
    p->depth--;
    return 0;
}

static int parse_compare(msgl_jparser *p, msgl_jnode **out);

static int parse_not(msgl_jparser *p, msgl_jnode **out)
{
    const int line = line_of(p);
    if (!msgl__jp_skip_name(p, "not")) return parse_compare(p, out);
    MSGL_JTRY(msgl__jp_enter(p));
    msgl_jnode *a;
    MSGL_JTRY(parse_not(p, &a));
    p->depth--;
    return new_node(p, MSGL_JX_NOT, line, a, NULL, out);
}

static int parse_and(msgl_jparser *p, msgl_jnode **out)
{
    const int line = line_of(p);
    MSGL_JTRY(parse_not(p, out));
    while (msgl__jp_skip_name(p, "and")) {
        msgl_jnode *right;
        MSGL_JTRY(parse_not(p, &right));
        MSGL_JTRY(new_node(p, MSGL_JX_AND, line, *out, right, out));
    }
    return 0;
}

static int parse_or(msgl_jparser *p, msgl_jnode **out)
{
    const int line = line_of(p);
    MSGL_JTRY(parse_and(p, out));
    while (msgl__jp_skip_name(p, "or")) {
        msgl_jnode *right;
        MSGL_JTRY(parse_and(p, &right));
        MSGL_JTRY(new_node(p, MSGL_JX_OR, line, *out, right, out));
    }
    return 0;
}

typedef struct opname {
    const char *text;
    msgl_jop op;
} opname;

// Left-associative binary operators of one level.
static int binary_level(msgl_jparser *p, const opname *ops, size_t nops,
                        int (*next)(msgl_jparser *, msgl_jnode **), msgl_jnode **out)
{
    const int line = line_of(p);
    MSGL_JTRY(next(p, out));
    for (;;) {
        const opname *found = NULL;
        for (size_t i = 0; i < nops && found == NULL; i++) {
            if (msgl__jp_skip_op(p, ops[i].text)) found = &ops[i];
        }
        if (found == NULL) return 0;
        msgl_jnode *right;
        MSGL_JTRY(next(p, &right));
        MSGL_JTRY(new_node(p, MSGL_JX_BINARY, line, *out, right, out));
        (*out)->op = (uint8_t)found->op;
    }
}

static int parse_operand(msgl_jparser *p, msgl_jnode **out)
{
    return parse_unary(p, true, out);
}

static int parse_pow(msgl_jparser *p, msgl_jnode **out)
{
    static const opname ops[] = {{"**", MSGL_JOP_POW}};
    return binary_level(p, ops, 1, parse_operand, out);
}

static int parse_product(msgl_jparser *p, msgl_jnode **out)
{
    static const opname ops[] = {
        {"*", MSGL_JOP_MUL}, {"/", MSGL_JOP_DIV}, {"//", MSGL_JOP_FLOORDIV}, {"%", MSGL_JOP_MOD}};
    return binary_level(p, ops, 4, parse_pow, out);
}

static int parse_concat(msgl_jparser *p, msgl_jnode **out)
{
    const int line = line_of(p);
    MSGL_JTRY(parse_product(p, out));
    if (!msgl__jp_is_op(msgl__jp_cur(p), "~")) return 0;
    msgl_jnodes parts = {0};
    MSGL_JTRY(msgl__jp_push(p, &parts, *out));
    while (msgl__jp_skip_op(p, "~")) {
        msgl_jnode *part;
        MSGL_JTRY(parse_product(p, &part));
        MSGL_JTRY(msgl__jp_push(p, &parts, part));
    }
    MSGL_JTRY(msgl__jp_node(p, MSGL_JX_CONCAT, line, out));
    (*out)->list = parts.items;
    (*out)->nlist = parts.len;
    return msgl__jp_close(p, *out);
}

static int parse_sum(msgl_jparser *p, msgl_jnode **out)
{
    static const opname ops[] = {{"+", MSGL_JOP_ADD}, {"-", MSGL_JOP_SUB}};
    return binary_level(p, ops, 2, parse_concat, out);
}

// The comparison operator at the current token, consumed; -1 when there is none.
static int compare_operator(msgl_jparser *p)
{
    static const opname ops[] = {{"==", MSGL_JOP_EQ}, {"!=", MSGL_JOP_NE}, {"<=", MSGL_JOP_LE},
                                 {"<", MSGL_JOP_LT},  {">=", MSGL_JOP_GE}, {">", MSGL_JOP_GT}};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (msgl__jp_skip_op(p, ops[i].text)) return (int)ops[i].op;
    }
    if (msgl__jp_skip_name(p, "in")) return MSGL_JOP_IN;
    if (msgl__jp_is_name(msgl__jp_cur(p), "not") && msgl__jp_is_name(msgl__jp_cur(p) + 1, "in")) {
        p->pos += 2;
        return MSGL_JOP_NOTIN;
    }
    return -1;
}

static int parse_compare(msgl_jparser *p, msgl_jnode **out)
{
    const int line = line_of(p);
    MSGL_JTRY(parse_sum(p, out));
    msgl_jnodes operands = {0};
    uint8_t ops[MSGL_JTREE_DEPTH];
    int op;
    while ((op = compare_operator(p)) >= 0) {
        if (operands.len == sizeof ops) {
            return msgl__err_set(p->err, MSGL_ELIMIT,
                                 "chat template line %d: more than %d chained comparisons", line,
                                 MSGL_JTREE_DEPTH);
        }
        ops[operands.len] = (uint8_t)op;
        msgl_jnode *right;
        MSGL_JTRY(parse_sum(p, &right));
        MSGL_JTRY(msgl__jp_push(p, &operands, right));
    }
    if (operands.len == 0) return 0;
    msgl_jnode *n;
    MSGL_JTRY(msgl__jp_node(p, MSGL_JX_COMPARE, line, &n));
    n->a = *out;
    n->list = operands.items;
    n->nlist = operands.len;
    n->ops = msgl__jarena_alloc(p->arena, operands.len);
    if (n->ops == NULL) return msgl__jp_nomem(p, operands.len);
    memcpy(n->ops, ops, operands.len);
    *out = n;
    return msgl__jp_close(p, n);
}

// --- calls ---
static int push_kw(msgl_jparser *p, msgl_jnodes *kw, const msgl_jstr ***names, size_t *cap,
                   const msgl_jtok *key, msgl_jnode *value)
{
    if (kw->len == *cap) {
        const size_t cap2 = *cap ? *cap * 2 : 8;
        const msgl_jstr **grown = msgl__jarena_alloc(p->arena, cap2 * sizeof *grown);
        if (grown == NULL) return msgl__jp_nomem(p, cap2 * sizeof *grown);
        if (*cap > 0) memcpy(grown, *names, *cap * sizeof *grown);
        *names = grown;
        *cap = cap2;
    }
    const msgl_jstr *name;
    MSGL_JTRY(msgl__jp_intern(p, key->text, key->len, &name));
    for (size_t i = 0; i < kw->len; i++) {
        if ((*names)[i] == name) {
            return msgl__jp_fail(p, key->line, "keyword argument '%.*s' repeated",
                                 (int)(key->len < 64 ? key->len : 64), key->text);
        }
    }
    (*names)[kw->len] = name;
    return msgl__jp_push(p, kw, value);
}

static int parse_one_arg(msgl_jparser *p, msgl_jargs *args, msgl_jnodes *pos, msgl_jnodes *kw,
                         size_t *kw_cap)
{
    const msgl_jtok *t = msgl__jp_cur(p);
    const char *bad = "invalid syntax for function call expression";
    if (msgl__jp_skip_op(p, "*")) {
        if (args->star != NULL || args->dstar != NULL) return msgl__jp_fail(p, t->line, "%s", bad);
        return msgl__jp_expr(p, true, &args->star);
    }
    if (msgl__jp_skip_op(p, "**")) {
        if (args->dstar != NULL) return msgl__jp_fail(p, t->line, "%s", bad);
        return msgl__jp_expr(p, true, &args->dstar);
    }
    msgl_jnode *value;
    if (t->kind == MSGL_JT_NAME && msgl__jp_is_op(t + 1, "=")) {
        if (args->dstar != NULL) return msgl__jp_fail(p, t->line, "%s", bad);
        p->pos += 2;
        MSGL_JTRY(msgl__jp_expr(p, true, &value));
        return push_kw(p, kw, &args->kw_names, kw_cap, t, value);
    }
    if (args->star != NULL || args->dstar != NULL || kw->len > 0) {
        return msgl__jp_fail(p, t->line, "%s", bad);
    }
    MSGL_JTRY(msgl__jp_expr(p, true, &value));
    return msgl__jp_push(p, pos, value);
}

// From "(" to behind ")".
static int parse_args(msgl_jparser *p, msgl_jargs **out)
{
    msgl_jargs *args = msgl__jarena_zalloc(p->arena, sizeof *args);
    if (args == NULL) return msgl__jp_nomem(p, sizeof *args);
    MSGL_JTRY(msgl__jp_expect_op(p, "("));
    msgl_jnodes pos = {0}, kw = {0};
    size_t kw_cap = 0;
    bool first = true;
    while (!msgl__jp_is_op(msgl__jp_cur(p), ")")) {
        if (!first) {
            MSGL_JTRY(msgl__jp_expect_op(p, ","));
            if (msgl__jp_is_op(msgl__jp_cur(p), ")")) break;
        }
        first = false;
        MSGL_JTRY(parse_one_arg(p, args, &pos, &kw, &kw_cap));
    }
    MSGL_JTRY(msgl__jp_expect_op(p, ")"));
    args->pos = pos.items;
    args->npos = pos.len;
    args->kw = kw.items;
    args->nkw = kw.len;
    *out = args;
    return 0;
}

static int parse_call(msgl_jparser *p, msgl_jnode **io)
{
    msgl_jnode *n;
    MSGL_JTRY(msgl__jp_node(p, MSGL_JX_CALL, line_of(p), &n));
    n->a = *io;
    MSGL_JTRY(parse_args(p, &n->args));
    *io = n;
    return msgl__jp_close(p, n);
}

// --- subscripts ---
// One part between the brackets: an expression, or start:stop:step as a SLICE node without a.
static int parse_subscribed(msgl_jparser *p, msgl_jnode **out)
{
    const int line = line_of(p);
    msgl_jnode *part[3] = {NULL, NULL, NULL};
    if (!msgl__jp_is_op(msgl__jp_cur(p), ":")) {
        MSGL_JTRY(msgl__jp_expr(p, true, &part[0]));
        if (!msgl__jp_is_op(msgl__jp_cur(p), ":")) {
            *out = part[0];
            return 0;
        }
    }
    for (int i = 1; i < 3 && msgl__jp_skip_op(p, ":"); i++) {
        const msgl_jtok *t = msgl__jp_cur(p);
        if (!msgl__jp_is_op(t, ":") && !msgl__jp_is_op(t, "]") && !msgl__jp_is_op(t, ",")) {
            MSGL_JTRY(msgl__jp_expr(p, true, &part[i]));
        }
    }
    MSGL_JTRY(msgl__jp_node(p, MSGL_JX_SLICE, line, out));
    (*out)->list = msgl__jarena_alloc(p->arena, sizeof part);
    if ((*out)->list == NULL) return msgl__jp_nomem(p, sizeof part);
    memcpy((*out)->list, part, sizeof part);
    (*out)->nlist = 3;
    return msgl__jp_close(p, *out);
}

static int parse_brackets(msgl_jparser *p, msgl_jnode **io, int line)
{
    msgl_jnodes keys = {0};
    while (!msgl__jp_is_op(msgl__jp_cur(p), "]")) {
        if (keys.len > 0) MSGL_JTRY(msgl__jp_expect_op(p, ","));
        msgl_jnode *key;
        MSGL_JTRY(parse_subscribed(p, &key));
        MSGL_JTRY(msgl__jp_push(p, &keys, key));
    }
    MSGL_JTRY(msgl__jp_expect_op(p, "]"));
    for (size_t i = 0; i < keys.len && keys.len > 1; i++) {
        if (keys.items[i]->kind == MSGL_JX_SLICE) {
            return msgl__err_set(p->err, MSGL_EUNSUPPORTED,
                                 "chat template line %d: several slices in one subscript", line);
        }
    }
    if (keys.len == 1 && keys.items[0]->kind == MSGL_JX_SLICE) {
        keys.items[0]->a = *io;
        *io = keys.items[0];
        return msgl__jp_close(p, *io);
    }
    msgl_jnode *key;
    if (keys.len == 1) {
        key = keys.items[0];
    } else {
        MSGL_JTRY(msgl__jp_node(p, MSGL_JX_TUPLE, line, &key));
        key->list = keys.items;
        key->nlist = keys.len;
        MSGL_JTRY(msgl__jp_close(p, key));
    }
    return new_node(p, MSGL_JX_GETITEM, line, *io, key, io);
}

static int parse_dot(msgl_jparser *p, msgl_jnode **io, int line)
{
    const msgl_jtok *t = msgl__jp_cur(p);
    msgl_jnode *n;
    if (t->kind == MSGL_JT_NAME) {
        MSGL_JTRY(msgl__jp_node(p, MSGL_JX_GETATTR, line, &n));
        MSGL_JTRY(msgl__jp_intern(p, t->text, t->len, &n->sym));
    } else if (t->kind == MSGL_JT_INT) {
        MSGL_JTRY(msgl__jp_node(p, MSGL_JX_GETITEM, line, &n));
        MSGL_JTRY(msgl__jp_node(p, MSGL_JX_CONST, line, &n->b));
        n->b->val = msgl__jint(t->i);
        n->b->depth = 1;
    } else {
        return msgl__jp_unexpected(p, "name or number");
    }
    p->pos++;
    n->a = *io;
    *io = n;
    return msgl__jp_close(p, n);
}

static int parse_postfix(msgl_jparser *p, msgl_jnode **io)
{
    for (;;) {
        const int line = line_of(p);
        if (msgl__jp_skip_op(p, ".")) {
            MSGL_JTRY(parse_dot(p, io, line));
        } else if (msgl__jp_skip_op(p, "[")) {
            MSGL_JTRY(parse_brackets(p, io, line));
        } else if (msgl__jp_is_op(msgl__jp_cur(p), "(")) {
            MSGL_JTRY(parse_call(p, io));
        } else {
            return 0;
        }
    }
}

// --- filters and tests ---
// A dotted name. No filter or test has one, so it only serves the error message that a template
// gets when it reaches one that nobody has.
static int parse_dotted(msgl_jparser *p, const char **name, size_t *len)
{
    const msgl_jtok *t = msgl__jp_cur(p);
    if (t->kind != MSGL_JT_NAME) return msgl__jp_unexpected(p, "name");
    *name = t->text;
    *len = t->len;
    p->pos++;
    while (msgl__jp_skip_op(p, ".")) {
        t = msgl__jp_cur(p);
        if (t->kind != MSGL_JT_NAME) return msgl__jp_unexpected(p, "name");
        *len = (size_t)(t->text + t->len - *name);
        p->pos++;
    }
    return 0;
}

int msgl__jp_filter(msgl_jparser *p, msgl_jnode *input, bool start_inline, msgl_jnode **out)
{
    *out = input;
    while (start_inline || msgl__jp_skip_op(p, "|")) {
        start_inline = false;
        const int line = line_of(p);
        const char *name;
        size_t len;
        MSGL_JTRY(parse_dotted(p, &name, &len));
        msgl_jnode *n;
        MSGL_JTRY(msgl__jp_node(p, MSGL_JX_FILTER, line, &n));
        n->a = *out;
        n->fn = msgl__jfilter_find(name, len);
        if (n->fn == NULL) MSGL_JTRY(msgl__jp_intern(p, name, len, &n->sym));
        if (msgl__jp_is_op(msgl__jp_cur(p), "(")) MSGL_JTRY(parse_args(p, &n->args));
        MSGL_JTRY(msgl__jp_close(p, n));
        *out = n;
    }
    return 0;
}

// The one argument that a test may have without parentheses: `x is divisibleby 3`.
static int parse_bare_test_arg(msgl_jparser *p, msgl_jargs **out)
{
    const msgl_jtok *t = msgl__jp_cur(p);
    const bool starts = t->kind == MSGL_JT_NAME || t->kind == MSGL_JT_STRING ||
                        t->kind == MSGL_JT_INT || t->kind == MSGL_JT_FLOAT ||
                        msgl__jp_is_op(t, "[") || msgl__jp_is_op(t, "{");
    if (!starts || msgl__jp_is_name(t, "else") || msgl__jp_is_name(t, "or") ||
        msgl__jp_is_name(t, "and")) {
        return 0;
    }
    if (msgl__jp_is_name(t, "is")) {
        return msgl__jp_fail(p, t->line, "tests cannot be chained with is");
    }
    msgl_jargs *args = msgl__jarena_zalloc(p->arena, sizeof *args + sizeof(msgl_jnode *));
    if (args == NULL) return msgl__jp_nomem(p, sizeof *args);
    args->pos = (msgl_jnode **)(args + 1);
    args->npos = 1;
    MSGL_JTRY(msgl__jp_primary(p, false, &args->pos[0]));
    MSGL_JTRY(parse_postfix(p, &args->pos[0]));
    *out = args;
    return 0;
}

static int parse_test(msgl_jparser *p, msgl_jnode **io)
{
    const int line = line_of(p);
    p->pos++; // "is"
    const bool negated = msgl__jp_skip_name(p, "not");
    const char *name;
    size_t len;
    MSGL_JTRY(parse_dotted(p, &name, &len));
    msgl_jnode *n;
    MSGL_JTRY(msgl__jp_node(p, MSGL_JX_TEST, line, &n));
    n->a = *io;
    n->fn = msgl__jtest_find(name, len);
    if (n->fn == NULL) MSGL_JTRY(msgl__jp_intern(p, name, len, &n->sym));
    if (msgl__jp_is_op(msgl__jp_cur(p), "(")) {
        MSGL_JTRY(parse_args(p, &n->args));
    } else {
        MSGL_JTRY(parse_bare_test_arg(p, &n->args));
    }
    MSGL_JTRY(msgl__jp_close(p, n));
    *io = n;
    return negated ? new_node(p, MSGL_JX_NOT, line, n, NULL, io) : 0;
}

static int parse_filters_and_tests(msgl_jparser *p, msgl_jnode **io)
{
    for (;;) {
        const msgl_jtok *t = msgl__jp_cur(p);
        if (msgl__jp_is_op(t, "|")) {
            MSGL_JTRY(msgl__jp_filter(p, *io, false, io));
        } else if (msgl__jp_is_name(t, "is")) {
            MSGL_JTRY(parse_test(p, io));
        } else if (msgl__jp_is_op(t, "(")) {
            MSGL_JTRY(parse_call(p, io));
        } else {
            return 0;
        }
    }
}

static int parse_unary(msgl_jparser *p, bool with_filter, msgl_jnode **out)
{
    const int line = line_of(p);
    const bool neg = msgl__jp_skip_op(p, "-");
    if (neg || msgl__jp_skip_op(p, "+")) {
        MSGL_JTRY(msgl__jp_enter(p));
        msgl_jnode *a;
        MSGL_JTRY(parse_unary(p, false, &a));
        p->depth--;
        MSGL_JTRY(new_node(p, neg ? MSGL_JX_NEG : MSGL_JX_POS, line, a, NULL, out));
    } else {
        MSGL_JTRY(msgl__jp_primary(p, false, out));
    }
    MSGL_JTRY(parse_postfix(p, out));
    return with_filter ? parse_filters_and_tests(p, out) : 0;
}

// --- primaries ---
static int parse_name(msgl_jparser *p, bool with_ns, msgl_jnode **out)
{
    const msgl_jtok *t = msgl__jp_cur(p);
    p->pos++;
    MSGL_JTRY(msgl__jp_node(p, MSGL_JX_CONST, t->line, out));
    msgl_jnode *n = *out;
    n->depth = 1;
    if (msgl__jp_is_name(t, "true") || msgl__jp_is_name(t, "True")) {
        n->val = msgl__jbool(true);
        return 0;
    }
    if (msgl__jp_is_name(t, "false") || msgl__jp_is_name(t, "False")) {
        n->val = msgl__jbool(false);
        return 0;
    }
    if (msgl__jp_is_name(t, "none") || msgl__jp_is_name(t, "None")) {
        n->val = msgl__jnone();
        return 0;
    }
    n->kind = MSGL_JX_NAME;
    MSGL_JTRY(msgl__jp_intern(p, t->text, t->len, &n->sym));
    if (with_ns && msgl__jp_skip_op(p, ".")) {
        const msgl_jtok *attr = msgl__jp_cur(p);
        if (attr->kind != MSGL_JT_NAME) return msgl__jp_unexpected(p, "name");
        p->pos++;
        n->kind = MSGL_JX_NSREF;
        return msgl__jp_intern(p, attr->text, attr->len, &n->attr);
    }
    for (int i = 0; i < p->nmacros; i++) {
        msgl_jsignature *m = p->macros[i];
        m->uses_caller |= n->sym == p->tmpl->sym_caller;
        m->uses_varargs |= n->sym == p->tmpl->sym_varargs;
        m->uses_kwargs |= n->sym == p->tmpl->sym_kwargs;
    }
    return msgl__jp_note_load(p, n->sym);
}

// Adjacent string literals are one string.
static int parse_strings(msgl_jparser *p, msgl_jnode **out)
{
    const size_t first = p->pos;
    size_t len = 0;
    while (msgl__jp_cur(p)->kind == MSGL_JT_STRING) len += p->toks[p->pos++].len;
    MSGL_JTRY(msgl__jp_node(p, MSGL_JX_CONST, p->toks[first].line, out));
    msgl_jstr *s = msgl__jarena_zalloc(p->arena, sizeof *s);
    char *data = msgl__jarena_alloc(p->arena, len + 1);
    if (s == NULL || data == NULL) return msgl__jp_nomem(p, len + sizeof *s);
    size_t at = 0;
    for (size_t i = first; i < p->pos; i++) {
        memcpy(data + at, p->toks[i].text, p->toks[i].len);
        at += p->toks[i].len;
    }
    *s = (msgl_jstr){.data = data, .len = len, .chars = msgl__utf8_count(data, len)};
    (*out)->val = msgl__jstrval(s);
    (*out)->depth = 1;
    if (msgl__jstr_is(s, "developer")) p->tmpl->knows_developer = true;
    return 0;
}

// [item, ...] or {key: item, ...}; `close` ends it.
static int parse_items(msgl_jparser *p, msgl_jkind kind, const char *close, msgl_jnode **out)
{
    MSGL_JTRY(msgl__jp_node(p, kind, line_of(p), out));
    p->pos++; // "[" or "{"
    msgl_jnodes items = {0};
    while (!msgl__jp_is_op(msgl__jp_cur(p), close)) {
        if (items.len > 0) MSGL_JTRY(msgl__jp_expect_op(p, ","));
        if (msgl__jp_is_op(msgl__jp_cur(p), close)) break;
        msgl_jnode *item;
        MSGL_JTRY(msgl__jp_expr(p, true, &item));
        MSGL_JTRY(msgl__jp_push(p, &items, item));
        if (kind != MSGL_JX_DICT) continue;
        MSGL_JTRY(msgl__jp_expect_op(p, ":"));
        MSGL_JTRY(msgl__jp_expr(p, true, &item));
        MSGL_JTRY(msgl__jp_push(p, &items, item));
    }
    MSGL_JTRY(msgl__jp_expect_op(p, close));
    (*out)->list = items.items;
    (*out)->nlist = items.len;
    return msgl__jp_close(p, *out);
}

int msgl__jp_primary(msgl_jparser *p, bool with_ns, msgl_jnode **out)
{
    const msgl_jtok *t = msgl__jp_cur(p);
    switch (t->kind) {
    case MSGL_JT_NAME: return parse_name(p, with_ns, out);
    case MSGL_JT_STRING: return parse_strings(p, out);
    case MSGL_JT_INT:
    case MSGL_JT_FLOAT:
        p->pos++;
        MSGL_JTRY(msgl__jp_node(p, MSGL_JX_CONST, t->line, out));
        (*out)->val = t->kind == MSGL_JT_INT ? msgl__jint(t->i) : msgl__jfloat(t->f);
        (*out)->depth = 1;
        return 0;
    default: break;
    }
    MSGL_JTRY(msgl__jp_enter(p));
    int rc;
    if (msgl__jp_skip_op(p, "(")) {
        rc = msgl__jp_tuple(p, false, true, true, NULL, false, out);
        if (rc == 0) rc = msgl__jp_expect_op(p, ")");
    } else if (msgl__jp_is_op(t, "[")) {
        rc = parse_items(p, MSGL_JX_LIST, "]", out);
    } else if (msgl__jp_is_op(t, "{")) {
        rc = parse_items(p, MSGL_JX_DICT, "}", out);
    } else {
        rc = msgl__jp_unexpected(p, "an expression");
    }
    p->depth--;
    return rc;
}

static bool is_tuple_end(msgl_jparser *p, const char *end_name)
{
    const msgl_jtok *t = msgl__jp_cur(p);
    return t->kind == MSGL_JT_VAR_END || t->kind == MSGL_JT_BLOCK_END || msgl__jp_is_op(t, ")") ||
           (end_name != NULL && msgl__jp_is_name(t, end_name));
}

int msgl__jp_tuple(msgl_jparser *p, bool targets, bool with_cond, bool in_parens,
                   const char *end_name, bool with_ns, msgl_jnode **out)
{
    const int line = line_of(p);
    msgl_jnodes items = {0};
    bool is_tuple = false;
    for (;;) {
        if (items.len > 0) MSGL_JTRY(msgl__jp_expect_op(p, ","));
        if (is_tuple_end(p, end_name)) break;
        msgl_jnode *item;
        MSGL_JTRY(targets ? msgl__jp_primary(p, with_ns, &item)
                          : msgl__jp_expr(p, with_cond, &item));
        MSGL_JTRY(msgl__jp_push(p, &items, item));
        if (!msgl__jp_is_op(msgl__jp_cur(p), ",")) break;
        is_tuple = true;
    }
    if (!is_tuple && items.len == 1) {
        *out = items.items[0];
        return 0;
    }
    if (!is_tuple && !in_parens) return msgl__jp_unexpected(p, "an expression");
    MSGL_JTRY(msgl__jp_node(p, MSGL_JX_TUPLE, line, out));
    (*out)->list = items.items;
    (*out)->nlist = items.len;
    return msgl__jp_close(p, *out);
}
