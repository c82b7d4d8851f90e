// SPDX-License-Identifier: Apache-2.0
//
// Statements, and what both halves of the parser share.
#include "template/jinja_parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "template/jinja_string.h"
#include "utils/hash.h"

// --- shared helpers ---
int msgl__jp_fail(msgl_jparser *p, int line, const char *fmt, ...)
{
    char text[MSGL_ERR_TEXT_SIZE];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return msgl__err_set(p->err, MSGL_EFORMAT, "chat template line %d: %s", line, text);
}

int msgl__jp_unexpected(msgl_jparser *p, const char *expected)
{
    char buf[64];
    const msgl_jtok *t = msgl__jp_cur(p);
    return msgl__jp_fail(p, t->line, "expected %s, got %s", expected, msgl__jtok_describe(t, buf));
}

int msgl__jp_nomem(msgl_jparser *p, size_t size)
{
    return msgl__err_set(p->err, msgl__jarena_why(p->arena, size), "chat template is too large");
}

static bool text_is(const msgl_jtok *t, const char *text)
{
    return t->len == strlen(text) && memcmp(t->text, text, t->len) == 0;
}

bool msgl__jp_is_op(const msgl_jtok *t, const char *op)
{
    return t->kind == MSGL_JT_OP && text_is(t, op);
}

bool msgl__jp_is_name(const msgl_jtok *t, const char *name)
{
    return t->kind == MSGL_JT_NAME && text_is(t, name);
}

bool msgl__jp_skip_op(msgl_jparser *p, const char *op)
{
    const bool yes = msgl__jp_is_op(msgl__jp_cur(p), op);
    p->pos += yes;
    return yes;
}

bool msgl__jp_skip_name(msgl_jparser *p, const char *name)
{
    const bool yes = msgl__jp_is_name(msgl__jp_cur(p), name);
    p->pos += yes;
    return yes;
}

int msgl__jp_expect_op(msgl_jparser *p, const char *op)
{
    char what[16];
    snprintf(what, sizeof what, "'%s'", op);
    return msgl__jp_skip_op(p, op) ? 0 : msgl__jp_unexpected(p, what);
}

static int expect_name(msgl_jparser *p, const char *name)
{
    char what[32];
    snprintf(what, sizeof what, "'%s'", name);
    return msgl__jp_skip_name(p, name) ? 0 : msgl__jp_unexpected(p, what);
}

static int expect_kind(msgl_jparser *p, msgl_jtok_kind kind)
{
    const msgl_jtok want = {.kind = kind, .text = ""};
    char buf[64];
    if (msgl__jp_cur(p)->kind != kind)
        return msgl__jp_unexpected(p, msgl__jtok_describe(&want, buf));
    p->pos++;
    return 0;
}

int msgl__jp_enter(msgl_jparser *p)
{
    if (++p->depth > MSGL_JPARSE_DEPTH) {
        return msgl__err_set(p->err, MSGL_ELIMIT,
                             "chat template line %d: nested more than %d levels deep",
                             msgl__jp_cur(p)->line, MSGL_JPARSE_DEPTH);
    }
    return 0;
}

int msgl__jp_intern(msgl_jparser *p, const char *text, size_t len, const msgl_jstr **out)
{
    msgl_jname **slot = &p->names[msgl__hash(MSGL_HASH_START, text, len) % MSGL_JNAMES_HASH];
    for (msgl_jname *n = *slot; n != NULL; n = n->next) {
        if (n->str.len == len && memcmp(n->str.data, text, len) == 0) {
            *out = &n->str;
            return 0;
        }
    }
    msgl_jname *n = msgl__jarena_zalloc(p->arena, sizeof *n);
    char *copy = msgl__jarena_alloc(p->arena, len + 1);
    if (n == NULL || copy == NULL) return msgl__jp_nomem(p, sizeof *n + len);
    memcpy(copy, text, len);
    copy[len] = '\0';
    n->str = (msgl_jstr){.data = copy, .len = len, .chars = msgl__utf8_count(copy, len)};
    n->next = *slot;
    *slot = n;
    *out = &n->str;
    return 0;
}

int msgl__jp_node(msgl_jparser *p, msgl_jkind kind, int line, msgl_jnode **out)
{
    msgl_jnode *n = msgl__jarena_zalloc(p->arena, sizeof *n);
    if (n == NULL) return msgl__jp_nomem(p, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = line;
    n->depth = 1;
    *out = n;
    return 0;
}

int msgl__jp_push(msgl_jparser *p, msgl_jnodes *v, msgl_jnode *n)
{
    if (v->len == v->cap) {
        const size_t cap = v->cap ? v->cap * 2 : 4;
        msgl_jnode **grown = msgl__jarena_alloc(p->arena, cap * sizeof *grown);
        if (grown == NULL) return msgl__jp_nomem(p, cap * sizeof *grown);
        if (v->len > 0) memcpy(grown, v->items, v->len * sizeof *grown);
        v->items = grown;
        v->cap = cap;
    }
    v->items[v->len++] = n;
    return 0;
}

static int deeper(int depth, const msgl_jnode *child)
{
    return child != NULL && child->depth > depth ? child->depth : depth;
}

int msgl__jp_close(msgl_jparser *p, msgl_jnode *n)
{
    int d = deeper(deeper(deeper(0, n->a), n->b), n->c);
    for (size_t i = 0; i < n->nlist; i++) d = deeper(d, n->list[i]);
    if (n->args != NULL) {
        for (size_t i = 0; i < n->args->npos; i++) d = deeper(d, n->args->pos[i]);
        for (size_t i = 0; i < n->args->nkw; i++) d = deeper(d, n->args->kw[i]);
        d = deeper(deeper(d, n->args->star), n->args->dstar);
    }
    if (n->sig != NULL) {
        for (size_t i = 0; i < n->sig->ndefaults; i++) d = deeper(d, n->sig->defaults[i]);
    }
    n->depth = d + 1;
    if (n->depth > MSGL_JTREE_DEPTH) {
        return msgl__err_set(p->err, MSGL_ELIMIT,
                             "chat template line %d: an expression is more than %d levels deep",
                             n->line, MSGL_JTREE_DEPTH);
    }
    return 0;
}

// --- statements ---
static int parse_body(msgl_jparser *p, const char *const *ends, size_t nends, msgl_jbody *out);

// A body up to {% end %}, the end consumed (but not the "%}" behind its name).
static int parse_block(msgl_jparser *p, const char *end, msgl_jbody *out)
{
    MSGL_JTRY(parse_body(p, &end, 1, out));
    p->pos++;
    return 0;
}

// The same, with names of its own.
static int parse_own_block(msgl_jparser *p, const char *end, msgl_jbody *out)
{
    MSGL_JTRY(msgl__jp_frame_open(p));
    MSGL_JTRY(parse_block(p, end, out));
    msgl__jp_frame_close(p, out);
    return 0;
}

static int alloc_bodies(msgl_jparser *p, msgl_jnode *n, size_t count)
{
    n->bodies = msgl__jarena_zalloc(p->arena, count * sizeof *n->bodies);
    return n->bodies == NULL ? msgl__jp_nomem(p, count * sizeof *n->bodies) : 0;
}

// Names, tuples of targets and (with_ns) namespace attributes can be assigned to.
static int check_target(msgl_jparser *p, const msgl_jnode *t)
{
    switch (t->kind) {
    case MSGL_JX_NAME:
        if (t->sym == p->tmpl->sym_loop && p->loops > 0) {
            return msgl__jp_fail(p, t->line, "can't assign to the special loop variable");
        }
        return 0;
    case MSGL_JX_NSREF: return 0;
    case MSGL_JX_TUPLE:
        for (size_t i = 0; i < t->nlist; i++) MSGL_JTRY(check_target(p, t->list[i]));
        return 0;
    case MSGL_JX_LIST: return msgl__jp_fail(p, t->line, "can't assign to 'list'");
    case MSGL_JX_DICT: return msgl__jp_fail(p, t->line, "can't assign to 'dict'");
    default: return msgl__jp_fail(p, t->line, "can't assign to a value");
    }
}

static int parse_target(msgl_jparser *p, const char *end_name, bool with_ns, msgl_jnode **out)
{
    p->in_target = true;
    MSGL_JTRY(msgl__jp_tuple(p, true, true, false, end_name, with_ns, out));
    p->in_target = false;
    return check_target(p, *out);
}

static int parse_set(msgl_jparser *p, int line, msgl_jnode **out)
{
    msgl_jnode *target;
    MSGL_JTRY(parse_target(p, NULL, true, &target));
    if (msgl__jp_skip_op(p, "=")) {
        MSGL_JTRY(msgl__jp_node(p, MSGL_JS_SET, line, out));
        (*out)->a = target;
        MSGL_JTRY(msgl__jp_tuple(p, false, true, false, NULL, false, &(*out)->b));
        return msgl__jp_note_target(p, target, false);
    }
    MSGL_JTRY(msgl__jp_node(p, MSGL_JS_SET_BLOCK, line, out));
    (*out)->a = target;
    MSGL_JTRY(alloc_bodies(p, *out, 1));
    MSGL_JTRY(msgl__jp_note_target(p, target, false));
    MSGL_JTRY(msgl__jp_filter(p, NULL, false, &(*out)->b));
    return parse_own_block(p, "endset", &(*out)->bodies[0]);
}

static int parse_for(msgl_jparser *p, int line, msgl_jnode **out)
{
    static const char *const ends[] = {"endfor", "else"};
    MSGL_JTRY(msgl__jp_node(p, MSGL_JS_FOR, line, out));
    msgl_jnode *n = *out;
    MSGL_JTRY(alloc_bodies(p, n, 2));
    MSGL_JTRY(parse_target(p, "in", false, &n->a));
    MSGL_JTRY(expect_name(p, "in"));
    MSGL_JTRY(msgl__jp_tuple(p, false, false, false, "recursive", false, &n->b));
    if (msgl__jp_skip_name(p, "if")) {
        MSGL_JTRY(msgl__jp_frame_open(p));
        MSGL_JTRY(msgl__jp_note_target(p, n->a, true));
        MSGL_JTRY(msgl__jp_expr(p, true, &n->c));
        msgl__jp_frame_close(p, NULL);
    }
    n->recursive = msgl__jp_skip_name(p, "recursive");
    MSGL_JTRY(msgl__jp_frame_open(p));
    MSGL_JTRY(msgl__jp_note_target(p, n->a, true));
    p->loops++;
    MSGL_JTRY(parse_body(p, ends, 2, &n->bodies[0]));
    p->loops--;
    msgl__jp_frame_close(p, &n->bodies[0]);
    const bool has_else = msgl__jp_is_name(msgl__jp_cur(p), "else");
    p->pos++;
    return has_else ? parse_own_block(p, "endfor", &n->bodies[1]) : 0;
}

static int parse_if(msgl_jparser *p, int line, msgl_jnode **out)
{
    static const char *const ends[] = {"elif", "else", "endif"};
    MSGL_JTRY(msgl__jp_node(p, MSGL_JS_IF, line, out));
    msgl_jnode *n = *out;
    msgl_jnodes conds = {0};
    size_t cap = 0;
    bool more = true, is_else = false;
    while (more) {
        msgl_jnode *cond = NULL;
        if (!is_else) MSGL_JTRY(msgl__jp_tuple(p, false, false, false, NULL, false, &cond));
        MSGL_JTRY(msgl__jp_push(p, &conds, cond));
        if (conds.len > cap) {
            const msgl_jbody *old = n->bodies;
            const size_t old_len = cap;
            cap = cap ? cap * 2 : 2;
            MSGL_JTRY(alloc_bodies(p, n, cap));
            if (old_len > 0) memcpy(n->bodies, old, old_len * sizeof *old);
        }
        msgl_jbody body;
        p->frame->branches++;
        MSGL_JTRY(is_else ? parse_body(p, &ends[2], 1, &body) : parse_body(p, ends, 3, &body));
        p->frame->branches--;
        n->bodies[conds.len - 1] = body;
        more = !msgl__jp_is_name(msgl__jp_cur(p), "endif");
        is_else = msgl__jp_is_name(msgl__jp_cur(p), "else");
        p->pos++;
    }
    n->list = conds.items;
    n->nlist = conds.len;
    return 0;
}

// "(a, b=1)" of a macro or call block.
static int parse_signature(msgl_jparser *p, msgl_jsignature *sig)
{
    size_t cap = 0;
    msgl_jnodes defaults = {0};
    MSGL_JTRY(msgl__jp_expect_op(p, "("));
    while (!msgl__jp_is_op(msgl__jp_cur(p), ")")) {
        if (sig->len > 0) MSGL_JTRY(msgl__jp_expect_op(p, ","));
        const msgl_jtok *t = msgl__jp_cur(p);
        if (t->kind != MSGL_JT_NAME) return msgl__jp_unexpected(p, "name");
        if (sig->len == cap) {
            const size_t cap2 = cap ? cap * 2 : 8;
            const msgl_jstr **grown = msgl__jarena_alloc(p->arena, cap2 * sizeof *grown);
            if (grown == NULL) return msgl__jp_nomem(p, cap2 * sizeof *grown);
            if (cap > 0) memcpy(grown, sig->names, cap * sizeof *grown);
            sig->names = grown;
            cap = cap2;
        }
        MSGL_JTRY(msgl__jp_intern(p, t->text, t->len, &sig->names[sig->len]));
        const msgl_jnode param = {.kind = MSGL_JX_NAME, .sym = sig->names[sig->len]};
        MSGL_JTRY(msgl__jp_note_target(p, &param, true));
        sig->has_caller_param |= param.sym == p->tmpl->sym_caller;
        sig->len++;
        p->pos++;
        msgl_jnode *dflt;
        if (msgl__jp_skip_op(p, "=")) {
            MSGL_JTRY(msgl__jp_expr(p, true, &dflt));
            MSGL_JTRY(msgl__jp_push(p, &defaults, dflt));
        } else if (defaults.len > 0) {
            return msgl__jp_fail(p, t->line, "non-default argument follows default argument");
        }
    }
    sig->defaults = defaults.items;
    sig->ndefaults = defaults.len;
    return msgl__jp_expect_op(p, ")");
}

static bool has_param(const msgl_jsignature *sig, const msgl_jstr *name)
{
    for (size_t i = 0; i < sig->len; i++) {
        if (sig->names[i] == name) return true;
    }
    return false;
}

// The body of a macro or call block: loop control and the special names start afresh.
static int parse_macro_body(msgl_jparser *p, msgl_jnode *n, const char *end)
{
    if (p->nmacros == MSGL_JPARSE_MACROS) {
        return msgl__err_set(p->err, MSGL_ELIMIT,
                             "chat template line %d: more than %d nested macros", n->line,
                             MSGL_JPARSE_MACROS);
    }
    MSGL_JTRY(alloc_bodies(p, n, 1));
    const int loops = p->loops;
    p->loops = 0;
    p->macros[p->nmacros++] = n->sig;
    MSGL_JTRY(parse_block(p, end, &n->bodies[0]));
    p->nmacros--;
    p->loops = loops;
    msgl__jp_frame_close(p, &n->bodies[0]);
    n->sig->uses_caller &= !n->sig->has_caller_param;
    n->sig->uses_varargs &= !has_param(n->sig, p->tmpl->sym_varargs);
    n->sig->uses_kwargs &= !has_param(n->sig, p->tmpl->sym_kwargs);
    return 0;
}

static int new_signature(msgl_jparser *p, msgl_jnode *n)
{
    n->sig = msgl__jarena_zalloc(p->arena, sizeof *n->sig);
    return n->sig == NULL ? msgl__jp_nomem(p, sizeof *n->sig) : 0;
}

static int parse_macro(msgl_jparser *p, int line, msgl_jnode **out)
{
    MSGL_JTRY(msgl__jp_node(p, MSGL_JS_MACRO, line, out));
    MSGL_JTRY(new_signature(p, *out));
    const msgl_jtok *t = msgl__jp_cur(p);
    if (t->kind != MSGL_JT_NAME) return msgl__jp_unexpected(p, "name");
    MSGL_JTRY(msgl__jp_intern(p, t->text, t->len, &(*out)->sym));
    p->pos++;
    MSGL_JTRY(msgl__jp_note_store(p, (*out)->sym));
    MSGL_JTRY(msgl__jp_frame_open(p));
    MSGL_JTRY(parse_signature(p, (*out)->sig));
    return parse_macro_body(p, *out, "endmacro");
}

static int parse_call_block(msgl_jparser *p, int line, msgl_jnode **out)
{
    MSGL_JTRY(msgl__jp_node(p, MSGL_JS_CALL_BLOCK, line, out));
    MSGL_JTRY(new_signature(p, *out));
    MSGL_JTRY(msgl__jp_frame_open(p));
    msgl_jframe *inner = p->frame;
    if (msgl__jp_is_op(msgl__jp_cur(p), "(")) MSGL_JTRY(parse_signature(p, (*out)->sig));
    p->frame = inner->parent; // the call itself belongs to the block around
    MSGL_JTRY(msgl__jp_expr(p, true, &(*out)->a));
    p->frame = inner;
    if ((*out)->a->kind != MSGL_JX_CALL) return msgl__jp_fail(p, line, "expected call");
    return parse_macro_body(p, *out, "endcall");
}

static int parse_filter_block(msgl_jparser *p, int line, msgl_jnode **out)
{
    MSGL_JTRY(msgl__jp_node(p, MSGL_JS_FILTER_BLOCK, line, out));
    MSGL_JTRY(alloc_bodies(p, *out, 1));
    MSGL_JTRY(msgl__jp_filter(p, NULL, true, &(*out)->b));
    return parse_own_block(p, "endfilter", &(*out)->bodies[0]);
}

static int parse_with(msgl_jparser *p, int line, msgl_jnode **out)
{
    MSGL_JTRY(msgl__jp_node(p, MSGL_JS_WITH, line, out));
    MSGL_JTRY(alloc_bodies(p, *out, 1));
    msgl_jnodes items = {0};
    while (msgl__jp_cur(p)->kind != MSGL_JT_BLOCK_END) {
        msgl_jnode *n;
        if (items.len > 0) MSGL_JTRY(msgl__jp_expect_op(p, ","));
        MSGL_JTRY(parse_target(p, NULL, false, &n));
        MSGL_JTRY(msgl__jp_push(p, &items, n));
        MSGL_JTRY(msgl__jp_expect_op(p, "="));
        MSGL_JTRY(msgl__jp_expr(p, true, &n));
        MSGL_JTRY(msgl__jp_push(p, &items, n));
    }
    (*out)->list = items.items;
    (*out)->nlist = items.len;
    MSGL_JTRY(msgl__jp_frame_open(p));
    for (size_t i = 0; i < items.len; i += 2) {
        MSGL_JTRY(msgl__jp_note_target(p, items.items[i], true));
    }
    MSGL_JTRY(parse_block(p, "endwith", &(*out)->bodies[0]));
    msgl__jp_frame_close(p, &(*out)->bodies[0]);
    return 0;
}

// {% generation %} marks what a training mask covers; the text passes through.
static int parse_generation(msgl_jparser *p, int line, msgl_jnode **out)
{
    MSGL_JTRY(msgl__jp_node(p, MSGL_JS_SCOPE, line, out));
    MSGL_JTRY(alloc_bodies(p, *out, 1));
    const int loops = p->loops;
    p->loops = 0;
    MSGL_JTRY(parse_own_block(p, "endgeneration", &(*out)->bodies[0]));
    p->loops = loops;
    return 0;
}

static int parse_loop_control(msgl_jparser *p, int line, bool is_break, msgl_jnode **out)
{
    if (p->loops == 0) {
        return msgl__jp_fail(p, line, "'%s' outside loop", is_break ? "break" : "continue");
    }
    return msgl__jp_node(p, is_break ? MSGL_JS_BREAK : MSGL_JS_CONTINUE, line, out);
}

static int parse_statement(msgl_jparser *p, msgl_jnode **out)
{
    const msgl_jtok *t = msgl__jp_cur(p);
    if (t->kind != MSGL_JT_NAME) return msgl__jp_unexpected(p, "a tag name");
    const int line = t->line;
    p->pos++;
    if (text_is(t, "if")) return parse_if(p, line, out);
    if (text_is(t, "for")) return parse_for(p, line, out);
    if (text_is(t, "set")) return parse_set(p, line, out);
    if (text_is(t, "macro")) return parse_macro(p, line, out);
    if (text_is(t, "call")) return parse_call_block(p, line, out);
    if (text_is(t, "filter")) return parse_filter_block(p, line, out);
    if (text_is(t, "with")) return parse_with(p, line, out);
    if (text_is(t, "generation")) return parse_generation(p, line, out);
    if (text_is(t, "break") || text_is(t, "continue")) {
        return parse_loop_control(p, line, text_is(t, "break"), out);
    }
    static const char *const never[] = {"block", "extends", "include",   "import",
                                        "from",  "print",   "autoescape"};
    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++) {
        if (text_is(t, never[i])) {
            return msgl__err_set(p->err, MSGL_EUNSUPPORTED,
                                 "chat template line %d: the tag '%s' is not supported", line,
                                 never[i]);
        }
    }
    return msgl__jp_fail(p, line, "unknown tag '%.*s'", (int)(t->len < 64 ? t->len : 64), t->text);
}

static int parse_text(msgl_jparser *p, msgl_jnode **out)
{
    const msgl_jtok *t = msgl__jp_cur(p);
    p->pos++;
    MSGL_JTRY(msgl__jp_node(p, MSGL_JS_TEXT, t->line, out));
    msgl_jstr *s = msgl__jarena_zalloc(p->arena, sizeof *s);
    if (s == NULL) return msgl__jp_nomem(p, sizeof *s);
    *s = (msgl_jstr){.data = t->text, .len = t->len, .chars = msgl__utf8_count(t->text, t->len)};
    (*out)->val = msgl__jstrval(s);
    return 0;
}

static bool is_end(const msgl_jtok *t, const char *const *ends, size_t nends)
{
    for (size_t i = 0; i < nends; i++) {
        if (msgl__jp_is_name(t, ends[i])) return true;
    }
    return false;
}

static int no_end(msgl_jparser *p, const char *const *ends, size_t nends)
{
    char list[96] = "";
    size_t n = 0;
    for (size_t i = 0; i < nends && n < sizeof list; i++) {
        n += (size_t)snprintf(list + n, sizeof list - n, "%s'%s'", i > 0 ? " or " : "", ends[i]);
    }
    return msgl__jp_fail(p, msgl__jp_cur(p)->line, "unexpected end of template, expected %s", list);
}

// Statements until one of the end tags, whose name is then the current token. With no ends, until
// the end of the template.
static int parse_statements(msgl_jparser *p, const char *const *ends, size_t nends,
                            msgl_jnodes *out)
{
    for (;;) {
        const msgl_jtok *t = msgl__jp_cur(p);
        msgl_jnode *n = NULL;
        switch (t->kind) {
        case MSGL_JT_EOF: return nends == 0 ? 0 : no_end(p, ends, nends);
        case MSGL_JT_DATA: MSGL_JTRY(parse_text(p, &n)); break;
        case MSGL_JT_VAR_BEGIN:
            MSGL_JTRY(msgl__jp_node(p, MSGL_JS_PRINT, t->line, &n));
            p->pos++;
            MSGL_JTRY(msgl__jp_tuple(p, false, true, false, NULL, false, &n->a));
            MSGL_JTRY(expect_kind(p, MSGL_JT_VAR_END));
            break;
        default:
            MSGL_JTRY(expect_kind(p, MSGL_JT_BLOCK_BEGIN));
            if (is_end(msgl__jp_cur(p), ends, nends)) return 0;
            MSGL_JTRY(parse_statement(p, &n));
            MSGL_JTRY(expect_kind(p, MSGL_JT_BLOCK_END));
        }
        MSGL_JTRY(msgl__jp_close(p, n));
        MSGL_JTRY(msgl__jp_push(p, out, n));
    }
}

static int parse_body(msgl_jparser *p, const char *const *ends, size_t nends, msgl_jbody *out)
{
    MSGL_JTRY(msgl__jp_enter(p));
    msgl__jp_skip_op(p, ":");
    MSGL_JTRY(expect_kind(p, MSGL_JT_BLOCK_END));
    msgl_jnodes stmts = {0};
    MSGL_JTRY(parse_statements(p, ends, nends, &stmts));
    p->depth--;
    *out = (msgl_jbody){.stmts = stmts.items, .len = stmts.len};
    return 0;
}

int msgl__jparse(struct msgl_chat_template *t, const char *source, size_t len, msgl_err *err)
{
    msgl_jtokens toks = {0};
    MSGL_JTRY(msgl__jlex(&t->arena, source, len, &toks, err));
    msgl_jparser p = {.tmpl = t, .arena = &t->arena, .err = err, .toks = toks.toks};
    MSGL_JTRY(msgl__jp_intern(&p, "loop", 4, &t->sym_loop));
    MSGL_JTRY(msgl__jp_intern(&p, "caller", 6, &t->sym_caller));
    MSGL_JTRY(msgl__jp_intern(&p, "varargs", 7, &t->sym_varargs));
    MSGL_JTRY(msgl__jp_intern(&p, "kwargs", 6, &t->sym_kwargs));
    msgl_jnodes stmts = {0};
    MSGL_JTRY(msgl__jp_frame_open(&p));
    MSGL_JTRY(parse_statements(&p, NULL, 0, &stmts));
    t->body = (msgl_jbody){.stmts = stmts.items, .len = stmts.len};
    msgl__jp_frame_close(&p, &t->body);
    return msgl__jp_resolve_frames(&p);
}
