// SPDX-License-Identifier: Apache-2.0
//
// Statements: output, branches, loops, assignments, macros and the blocks around them.

#include "template/jinja_eval.h"

static int exec(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n);

int msgl__jexec_body(msgl_jctx *c, msgl_jscope *s, const msgl_jbody *body)
{
    for (size_t i = 0; i < body->nown; i++) {
        MSGL_JTRY(msgl__jscope_own(c, s, body->own[i]));
    }
    for (size_t i = 0; i < body->len; i++) MSGL_JTRY(exec(c, s, body->stmts[i]));
    return 0;
}

// Runs the body in scope s and gives what it printed.
static int capture_in(msgl_jctx *c, msgl_jscope *s, const msgl_jbody *body, msgl_jval *out)
{
    msgl_jbuf *outer = c->out, *buf;
    MSGL_JTRY(msgl__jbuf_new(c, 0, &buf));
    c->out = buf;
    const int rc = msgl__jexec_body(c, s, body);
    c->out = outer; // also when a break or continue leaves the body
    if (rc != 0) return rc;
    msgl_jstr *text;
    MSGL_JTRY(msgl__jbuf_finish(buf, &text));
    *out = msgl__jstrval(text);
    return 0;
}

// --- assignment ---
static int assign_ns(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *target, msgl_jval v)
{
    msgl_jval ns;
    MSGL_JTRY(msgl__jlookup(c, s, target->sym, &ns));
    if (ns.type != MSGL_J_NAMESPACE) {
        return msgl__jctx_fail(c, "cannot assign attribute on non-namespace object");
    }
    if (target->attr->data[0] == '_') {
        return msgl__jctx_fail(c, "namespace attributes cannot start with '_', got '%.*s'",
                               (int)(target->attr->len < 60 ? target->attr->len : 60),
                               target->attr->data);
    }
    return msgl__jdict_set(c, ns.as.d, msgl__jstrval((msgl_jstr *)target->attr), v);
}

static int assign(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *target, msgl_jval v)
{
    if (target->kind == MSGL_JX_NAME) return msgl__jscope_set(c, s, target->sym, v);
    if (target->kind == MSGL_JX_NSREF) return assign_ns(c, s, target, v);
    if (!msgl__jiterable(&v)) {
        return msgl__jctx_fail(c, "cannot unpack non-iterable %s object", msgl__jtype_name(&v));
    }
    msgl_jval *items;
    size_t n;
    MSGL_JTRY(msgl__jto_array(c, &v, &items, &n));
    if (n > target->nlist) {
        return msgl__jctx_fail(c, "too many values to unpack (expected %zu)", target->nlist);
    }
    if (n < target->nlist) {
        return msgl__jctx_fail(c, "not enough values to unpack (expected %zu, got %zu)",
                               target->nlist, n);
    }
    for (size_t i = 0; i < n; i++) MSGL_JTRY(assign(c, s, target->list[i], items[i]));
    return 0;
}

// --- filters over captured text ---
// The innermost filter of a filter block has no input node: it gets `text`.
static int apply_filters(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *f, const msgl_jval *text,
                         msgl_jval *out)
{
    msgl_jval self = *text;
    msgl_jcall call;
    MSGL_JTRY(msgl__jctx_enter(c));
    if (f->a != NULL) MSGL_JTRY(apply_filters(c, s, f->a, text, &self));
    MSGL_JTRY(msgl__jeval_args(c, s, f->args, 0, &call));
    MSGL_JTRY(msgl__japply(c, f, &self, &call, out));
    c->depth--;
    return 0;
}

static int exec_set_block(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n)
{
    msgl_jscope *inner;
    msgl_jval text;
    MSGL_JTRY(msgl__jscope_new(c, s, &inner));
    MSGL_JTRY(capture_in(c, inner, &n->bodies[0], &text));
    if (n->b != NULL) MSGL_JTRY(apply_filters(c, inner, n->b, &text, &text));
    return assign(c, s, n->a, text);
}

static int exec_filter_block(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n)
{
    msgl_jscope *inner;
    msgl_jval text;
    MSGL_JTRY(msgl__jscope_new(c, s, &inner));
    MSGL_JTRY(capture_in(c, inner, &n->bodies[0], &text));
    MSGL_JTRY(apply_filters(c, inner, n->b, &text, &text));
    if (text.type != MSGL_J_STR) {
        return msgl__jctx_fail(c, "a filter block must give a string, not %s",
                               msgl__jtype_name(&text));
    }
    return msgl__jbuf_add_str_of(c->out, &text);
}

// --- loops ---
// The items that pass the filter of `for x in xs if test`.
static int filter_items(msgl_jctx *c, msgl_jscope *parent, const msgl_jnode *n, msgl_jval *src)
{
    msgl_jval *items;
    size_t len, kept = 0;
    msgl_jscope *s;
    msgl_jlist *l;
    MSGL_JTRY(msgl__jto_array(c, src, &items, &len));
    MSGL_JTRY(msgl__jlist_new(c, len, &l));
    MSGL_JTRY(msgl__jscope_new(c, parent, &s));
    for (size_t i = 0; i < len; i++) {
        msgl_jval test;
        s->len = 0;
        MSGL_JTRY(assign(c, s, n->a, items[i]));
        MSGL_JTRY(msgl__jeval(c, s, n->c, &test));
        if (msgl__jtruth(&test)) l->items[kept++] = items[i];
    }
    l->len = kept;
    *src = (msgl_jval){.type = MSGL_J_LIST, .as.l = l};
    return 0;
}

static size_t items_left(const msgl_jval *v)
{
    if (v->type == MSGL_J_GEN) return v->as.g->len - v->as.g->pos;
    size_t n = 0;
    return msgl__jlength(NULL, v, &n) == 0 ? n : 0;
}

static int run_for(msgl_jctx *c, msgl_jscope *parent, const msgl_jnode *n, const msgl_jval *over,
                   int depth0)
{
    msgl_jval src = *over;
    msgl_jiter it;
    MSGL_JTRY(msgl__jiter_init(c, &src, &it)); // names what cannot be iterated
    if (n->c != NULL) {
        MSGL_JTRY(filter_items(c, parent, n, &src));
        MSGL_JTRY(msgl__jiter_init(c, &src, &it));
    }
    msgl_jloop *loop = msgl__jarena_zalloc(&c->arena, sizeof *loop);
    msgl_jscope *s;
    if (loop == NULL) return msgl__jctx_nomem(c, sizeof *loop);
    MSGL_JTRY(msgl__jscope_new(c, parent, &s));
    loop->iter = it;
    loop->len = items_left(&src);
    loop->recurse = n->recursive ? n : NULL;
    loop->outer = parent;
    loop->depth0 = depth0;
    MSGL_JTRY(msgl__jiter_next(c, &loop->iter, &loop->next));
    // jinja runs the else branch unless an iteration reached its end (so also after a break in the
    // first one).
    bool run_else = true;
    for (; loop->next.type != MSGL_J_UNSET; loop->index0++) {
        loop->prev = loop->cur;
        loop->cur = loop->next;
        MSGL_JTRY(msgl__jiter_next(c, &loop->iter, &loop->next));
        s->len = 0;
        MSGL_JTRY(msgl__jscope_set(c, s, c->tmpl->sym_loop,
                                   (msgl_jval){.type = MSGL_J_LOOP, .as.loop = loop}));
        MSGL_JTRY(assign(c, s, n->a, loop->cur));
        const int rc = msgl__jexec_body(c, s, &n->bodies[0]);
        if (rc < 0) return rc;
        if (rc == MSGL_J_BREAK) break;
        if (rc == 0) run_else = false;
    }
    if (!run_else || n->bodies[1].len == 0) return 0;
    MSGL_JTRY(msgl__jscope_new(c, parent, &s));
    return msgl__jexec_body(c, s, &n->bodies[1]);
}

int msgl__jloop_recurse(msgl_jctx *c, msgl_jloop *loop, const msgl_jval *items, msgl_jval *out)
{
    if (loop->recurse == NULL) {
        return msgl__jctx_fail(c, "The loop must have the 'recursive' marker to be called "
                                  "recursively.");
    }
    msgl_jbuf *outer = c->out, *buf;
    MSGL_JTRY(msgl__jctx_enter(c));
    MSGL_JTRY(msgl__jbuf_new(c, 0, &buf));
    c->out = buf;
    MSGL_JTRY(run_for(c, loop->outer, loop->recurse, items, loop->depth0 + 1));
    c->out = outer;
    c->depth--;
    msgl_jstr *text;
    MSGL_JTRY(msgl__jbuf_finish(buf, &text));
    *out = msgl__jstrval(text);
    return 0;
}

static int exec_for(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n)
{
    msgl_jval over;
    MSGL_JTRY(msgl__jeval(c, s, n->b, &over));
    c->line = n->line;
    return run_for(c, s, n, &over, 0);
}

static int exec_if(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n)
{
    for (size_t i = 0; i < n->nlist; i++) {
        msgl_jval test = msgl__jbool(true);
        if (n->list[i] != NULL) MSGL_JTRY(msgl__jeval(c, s, n->list[i], &test));
        if (msgl__jtruth(&test)) return msgl__jexec_body(c, s, &n->bodies[i]);
    }
    return 0;
}

// --- macros ---
static int new_macro(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n, msgl_jval *out)
{
    msgl_jmacro *m = msgl__jctx_alloc(c, sizeof *m);
    if (m == NULL) return msgl__jctx_nomem(c, sizeof *m);
    *m = (msgl_jmacro){n, s};
    *out = (msgl_jval){.type = MSGL_J_MACRO, .as.m = m};
    return 0;
}

static const msgl_jval *keyword(const msgl_jcall *call, const msgl_jstr *name, size_t *at)
{
    for (size_t i = 0; i < call->nkw; i++) {
        if (!msgl__jstr_eq(call->kw_names[i], name)) continue;
        *at = i;
        return &call->kw[i];
    }
    return NULL;
}

// Keyword arguments that no parameter took: kwargs when the body reads it, else an error.
static int leftover_keywords(msgl_jctx *c, msgl_jscope *s, const msgl_jmacro *m,
                             const msgl_jcall *call, const bool *used)
{
    const msgl_jsignature *sig = m->node->sig;
    msgl_jdict *rest;
    MSGL_JTRY(msgl__jdict_new(c, 0, &rest));
    for (size_t i = 0; i < call->nkw; i++) {
        if (used[i]) continue;
        const msgl_jstr *name = call->kw_names[i];
        if (!sig->uses_kwargs) {
            return msgl__jctx_fail(c, "macro '%.*s' takes no keyword argument '%.*s'",
                                   m->node->sym ? (int)m->node->sym->len : 0,
                                   m->node->sym ? m->node->sym->data : "",
                                   (int)(name->len < 60 ? name->len : 60), name->data);
        }
        MSGL_JTRY(msgl__jdict_set(c, rest, msgl__jstrval((msgl_jstr *)name), call->kw[i]));
    }
    if (!sig->uses_kwargs) return 0;
    return msgl__jscope_set(c, s, c->tmpl->sym_kwargs,
                            (msgl_jval){.type = MSGL_J_DICT, .as.d = rest});
}

static int leftover_positions(msgl_jctx *c, msgl_jscope *s, const msgl_jmacro *m,
                              const msgl_jcall *call)
{
    const msgl_jsignature *sig = m->node->sig;
    const size_t extra = call->npos > sig->len ? call->npos - sig->len : 0;
    if (!sig->uses_varargs) {
        if (extra == 0) return 0;
        return msgl__jctx_fail(c, "macro '%.*s' takes not more than %zu argument(s)",
                               m->node->sym ? (int)m->node->sym->len : 0,
                               m->node->sym ? m->node->sym->data : "", sig->len);
    }
    msgl_jlist *l;
    MSGL_JTRY(msgl__jlist_new(c, extra, &l));
    for (size_t i = 0; i < extra; i++) l->items[i] = call->pos[sig->len + i];
    return msgl__jscope_set(c, s, c->tmpl->sym_varargs,
                            (msgl_jval){.type = MSGL_J_TUPLE, .as.l = l});
}

// A parameter that was not given: its default, evaluated among the other parameters.
static int default_param(msgl_jctx *c, msgl_jscope *s, const msgl_jsignature *sig, size_t i,
                         msgl_jval *out)
{
    const size_t first = sig->len - sig->ndefaults;
    if (i >= first) return msgl__jeval(c, s, sig->defaults[i - first], out);
    msgl_jbuf *b;
    MSGL_JTRY(msgl__jbuf_new(c, 64, &b));
    MSGL_JTRY(msgl__jbuf_adds(b, "parameter '"));
    MSGL_JTRY(msgl__jbuf_add(b, sig->names[i]->data, sig->names[i]->len, false));
    MSGL_JTRY(msgl__jbuf_add(b, "' was not provided", sizeof "' was not provided", false));
    return msgl__jundef_new(c, b->data, msgl__jnone(), NULL, out);
}

static int bind_params(msgl_jctx *c, msgl_jscope *s, const msgl_jmacro *m, const msgl_jcall *call)
{
    const msgl_jsignature *sig = m->node->sig;
    bool *used = msgl__jarena_zalloc(&c->arena, call->nkw + 1);
    if (used == NULL) return msgl__jctx_nomem(c, call->nkw + 1);
    size_t at = 0;
    for (size_t i = 0; i < sig->len; i++) {
        msgl_jval v = {.type = MSGL_J_UNSET};
        MSGL_JTRY(msgl__jctx_steps(c, call->nkw >> 3));
        const msgl_jval *kw = i < call->npos ? NULL : keyword(call, sig->names[i], &at);
        if (i < call->npos) v = call->pos[i];
        if (kw != NULL) {
            v = *kw;
            used[at] = true;
        }
        MSGL_JTRY(msgl__jscope_set(c, s, sig->names[i], v));
    }
    for (size_t i = 0; i < sig->len; i++) {
        // Slot i is parameter i, unless a name occurs twice.
        if (i < s->len && s->vals[i].type == MSGL_J_UNSET) {
            msgl_jval v;
            MSGL_JTRY(default_param(c, s, sig, i, &v));
            MSGL_JTRY(msgl__jscope_set(c, s, sig->names[i], v));
        }
    }
    if (sig->uses_caller && !sig->has_caller_param) {
        const msgl_jval *kw = keyword(call, c->tmpl->sym_caller, &at);
        msgl_jval v;
        if (kw != NULL) {
            v = *kw;
            used[at] = true;
        } else {
            MSGL_JTRY(msgl__jundef_new(c, "No caller defined", msgl__jnone(), NULL, &v));
        }
        MSGL_JTRY(msgl__jscope_set(c, s, c->tmpl->sym_caller, v));
    }
    MSGL_JTRY(leftover_keywords(c, s, m, call, used));
    return leftover_positions(c, s, m, call);
}

int msgl__jcall_macro(msgl_jctx *c, const msgl_jmacro *m, const msgl_jcall *call, msgl_jval *out)
{
    msgl_jscope *s;
    MSGL_JTRY(msgl__jctx_enter(c));
    MSGL_JTRY(msgl__jscope_new(c, m->closure, &s));
    MSGL_JTRY(bind_params(c, s, m, call));
    MSGL_JTRY(capture_in(c, s, &m->node->bodies[0], out));
    c->depth--;
    return 0;
}

static int exec_call_block(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n)
{
    msgl_jval callee, caller, text;
    msgl_jcall call;
    MSGL_JTRY(new_macro(c, s, n, &caller));
    MSGL_JTRY(msgl__jeval(c, s, n->a->a, &callee));
    MSGL_JTRY(msgl__jeval_args(c, s, n->a->args, 1, &call));
    call.kw_names[call.nkw] = c->tmpl->sym_caller;
    call.kw[call.nkw++] = caller;
    c->line = n->line;
    MSGL_JTRY(msgl__jcall_value(c, &callee, &call, &text));
    return msgl__jbuf_add_str_of(c->out, &text);
}

static int exec_with(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n)
{
    msgl_jscope *inner;
    MSGL_JTRY(msgl__jscope_new(c, s, &inner));
    for (size_t i = 0; i + 1 < n->nlist; i += 2) {
        msgl_jval v;
        MSGL_JTRY(msgl__jeval(c, s, n->list[i + 1], &v));
        MSGL_JTRY(assign(c, inner, n->list[i], v));
    }
    return msgl__jexec_body(c, inner, &n->bodies[0]);
}

static int exec_node(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n)
{
    msgl_jval v;
    msgl_jscope *inner;
    switch (n->kind) {
    case MSGL_JS_TEXT: return msgl__jbuf_add_jstr(c->out, n->val.as.s);
    case MSGL_JS_PRINT:
        MSGL_JTRY(msgl__jeval(c, s, n->a, &v));
        c->line = n->line;
        return msgl__jbuf_add_str_of(c->out, &v);
    case MSGL_JS_IF: return exec_if(c, s, n);
    case MSGL_JS_FOR: return exec_for(c, s, n);
    case MSGL_JS_SET:
        MSGL_JTRY(msgl__jeval(c, s, n->b, &v));
        c->line = n->line;
        return assign(c, s, n->a, v);
    case MSGL_JS_SET_BLOCK: return exec_set_block(c, s, n);
    case MSGL_JS_MACRO: MSGL_JTRY(new_macro(c, s, n, &v)); return msgl__jscope_set(c, s, n->sym, v);
    case MSGL_JS_CALL_BLOCK: return exec_call_block(c, s, n);
    case MSGL_JS_FILTER_BLOCK: return exec_filter_block(c, s, n);
    case MSGL_JS_WITH: return exec_with(c, s, n);
    case MSGL_JS_SCOPE:
        MSGL_JTRY(msgl__jscope_new(c, s, &inner));
        return msgl__jexec_body(c, inner, &n->bodies[0]);
    case MSGL_JS_BREAK: return MSGL_J_BREAK;
    case MSGL_JS_CONTINUE: return MSGL_J_CONTINUE;
    default: return msgl__err_set(c->err, MSGL_EINTERNAL, "unexpected node %d", n->kind);
    }
}

static int exec(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n)
{
    MSGL_JTRY(msgl__jctx_steps(c, 1));
    MSGL_JTRY(msgl__jctx_enter(c));
    c->line = n->line;
    const int rc = exec_node(c, s, n);
    c->depth--;
    return rc;
}
