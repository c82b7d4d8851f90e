// SPDX-License-Identifier: Apache-2.0
//
// Expressions, scopes, attribute and subscript access.
#include "template/jinja_eval.h"

#include <string.h>

// --- scopes ---
int msgl__jscope_new(msgl_jctx *c, msgl_jscope *parent, msgl_jscope **out)
{
    msgl_jscope *s = msgl__jarena_zalloc(&c->arena, sizeof *s);
    if (s == NULL) return msgl__jctx_nomem(c, sizeof *s);
    s->parent = parent;
    *out = s;
    return 0;
}

// Blocks with hundreds of names: what looking through them takes.
static int pay_scope(msgl_jctx *c, size_t names)
{
    return msgl__jctx_steps(c, names >> 5);
}

static msgl_jval *scope_find(msgl_jscope *s, const msgl_jstr *name)
{
    for (size_t i = 0; i < s->len; i++) {
        if (s->names[i] == name) return &s->vals[i];
    }
    return NULL;
}

int msgl__jscope_set(msgl_jctx *c, msgl_jscope *s, const msgl_jstr *name, msgl_jval v)
{
    MSGL_JTRY(pay_scope(c, s->len));
    msgl_jval *old = scope_find(s, name);
    if (old != NULL) {
        *old = v;
        return 0;
    }
    if (s->len == s->cap) {
        const size_t cap = s->cap ? s->cap * 2 : 4;
        const msgl_jstr **names = msgl__jctx_alloc(c, cap * sizeof *names);
        msgl_jval *vals = msgl__jctx_alloc(c, cap * sizeof *vals);
        if (names == NULL || vals == NULL) return msgl__jctx_nomem(c, cap * sizeof *vals);
        if (s->len > 0) {
            memcpy(names, s->names, s->len * sizeof *names);
            memcpy(vals, s->vals, s->len * sizeof *vals);
        }
        s->names = names;
        s->vals = vals;
        s->cap = cap;
    }
    s->names[s->len] = name;
    s->vals[s->len++] = v;
    return 0;
}

int msgl__jscope_own(msgl_jctx *c, msgl_jscope *s, const msgl_jstr *name)
{
    MSGL_JTRY(pay_scope(c, s->len));
    if (scope_find(s, name) != NULL) return 0;
    return msgl__jscope_set(c, s, name, (msgl_jval){.type = MSGL_J_UNSET});
}

int msgl__jlookup(msgl_jctx *c, msgl_jscope *s, const msgl_jstr *name, msgl_jval *out)
{
    size_t names = 0;
    for (const msgl_jscope *p = s; p != NULL; p = p->parent) names += p->len + 1;
    MSGL_JTRY(pay_scope(c, names));
    MSGL_JTRY(msgl__jctx_work(c, name->len)); // hashed and compared
    for (; s != NULL; s = s->parent) {
        const msgl_jval *v = scope_find(s, name);
        if (v == NULL) continue;
        *out = *v;
        // Known here, but without a value yet.
        if (v->type != MSGL_J_UNSET) return 0;
        break;
    }
    const msgl_jval *v = msgl__jdict_gets(c->vars, name->data, name->len);
    if (v == NULL && c->trusted != NULL) v = msgl__jdict_gets(c->trusted, name->data, name->len);
    if (v != NULL && s == NULL) {
        *out = *v;
        return 0;
    }
    const msgl_jbuiltin *fn = s == NULL ? msgl__jglobal_find(name->data, name->len) : NULL;
    if (fn != NULL) {
        *out = (msgl_jval){.type = MSGL_J_FUNC, .as.fn = fn};
        return 0;
    }
    return msgl__jundef_new(c, NULL, msgl__jstrval((msgl_jstr *)name), NULL, out);
}

// --- attributes and subscripts ---
static int bound_method(msgl_jctx *c, const msgl_jval *obj, const msgl_jbuiltin *fn, msgl_jval *out)
{
    msgl_jmethod *m = msgl__jctx_alloc(c, sizeof *m);
    if (m == NULL) return msgl__jctx_nomem(c, sizeof *m);
    *m = (msgl_jmethod){fn, *obj};
    *out = (msgl_jval){.type = MSGL_J_METHOD, .as.method = m};
    return 0;
}

static int loop_undefined(msgl_jctx *c, const char *hint, msgl_jval *out)
{
    return msgl__jundef_new(c, hint, msgl__jnone(), NULL, out);
}

// Data attributes of a loop; *found false when there is none of that name.
static int loop_attr(msgl_jctx *c, const msgl_jloop *l, const msgl_jstr *name, bool *found,
                     msgl_jval *out)
{
    const int64_t i0 = (int64_t)l->index0, n = (int64_t)l->len;
    *found = true;
    if (msgl__jstr_is(name, "index")) {
        *out = msgl__jint(i0 + 1);
    } else if (msgl__jstr_is(name, "index0")) {
        *out = msgl__jint(i0);
    } else if (msgl__jstr_is(name, "revindex")) {
        *out = msgl__jint(n - i0);
    } else if (msgl__jstr_is(name, "revindex0")) {
        *out = msgl__jint(n - i0 - 1);
    } else if (msgl__jstr_is(name, "first")) {
        *out = msgl__jbool(i0 == 0);
    } else if (msgl__jstr_is(name, "last")) {
        *out = msgl__jbool(l->next.type == MSGL_J_UNSET);
    } else if (msgl__jstr_is(name, "length")) {
        *out = msgl__jint(n);
    } else if (msgl__jstr_is(name, "depth")) {
        *out = msgl__jint(l->depth0 + 1);
    } else if (msgl__jstr_is(name, "depth0")) {
        *out = msgl__jint(l->depth0);
    } else if (msgl__jstr_is(name, "previtem")) {
        if (i0 == 0) return loop_undefined(c, "there is no previous item", out);
        *out = l->prev;
    } else if (msgl__jstr_is(name, "nextitem")) {
        if (l->next.type == MSGL_J_UNSET) return loop_undefined(c, "there is no next item", out);
        *out = l->next;
    } else {
        *found = false;
    }
    return 0;
}

// Python attributes that are no methods: of loops, namespaces, macros, cyclers and numbers.
static int data_attr(msgl_jctx *c, const msgl_jval *obj, const msgl_jstr *name, bool *found,
                     msgl_jval *out)
{
    *found = false;
    const msgl_jval *v;
    switch (obj->type) {
    case MSGL_J_LOOP: return loop_attr(c, obj->as.loop, name, found, out);
    case MSGL_J_NAMESPACE:
        v = msgl__jdict_gets(obj->as.d, name->data, name->len);
        *found = v != NULL;
        if (v != NULL) *out = *v;
        return 0;
    case MSGL_J_MACRO:
        *found = msgl__jstr_is(name, "name") && obj->as.m->node->sym != NULL;
        if (*found) *out = msgl__jstrval((msgl_jstr *)obj->as.m->node->sym);
        return 0;
    case MSGL_J_CYCLER:
        *found = msgl__jstr_is(name, "current");
        if (*found) *out = obj->as.cycler->items.items[obj->as.cycler->pos];
        return 0;
    case MSGL_J_INT:
    case MSGL_J_BOOL:
    case MSGL_J_FLOAT:
        *found = msgl__jstr_is(name, "real") || msgl__jstr_is(name, "imag");
        if (!*found) return 0;
        *out = *obj;
        if (msgl__jstr_is(name, "imag")) *out = msgl__jint(0);
        if (obj->type == MSGL_J_FLOAT && out->type == MSGL_J_INT) *out = msgl__jfloat(0);
        return 0;
    default: return 0;
    }
}

// A Python attribute: data, a method, or one that the sandbox hides.
static int python_attr(msgl_jctx *c, const msgl_jval *obj, const msgl_jstr *name, bool *found,
                       msgl_jval *out)
{
    MSGL_JTRY(data_attr(c, obj, name, found, out));
    if (*found) return 0;
    const msgl_jbuiltin *fn = msgl__jmethod_find(obj, name->data, name->len);
    if (fn != NULL) {
        *found = true;
        return bound_method(c, obj, fn, out);
    }
    if (!msgl__junsafe_attribute(obj, name->data, name->len)) return 0;
    *found = true;
    msgl_jbuf *b;
    MSGL_JTRY(msgl__jbuf_new(c, 96, &b));
    MSGL_JTRY(msgl__jbuf_adds(b, "access to attribute '"));
    MSGL_JTRY(msgl__jbuf_add(b, name->data, name->len < 60 ? name->len : 60, false));
    MSGL_JTRY(msgl__jbuf_adds(b, "' of '"));
    MSGL_JTRY(msgl__jbuf_adds(b, msgl__jtype_name(obj)));
    MSGL_JTRY(msgl__jbuf_add(b, "' object is unsafe.", sizeof "' object is unsafe.", false));
    return msgl__jundef_new(c, b->data, msgl__jnone(), NULL, out);
}

static int missing(msgl_jctx *c, const msgl_jval *obj, msgl_jval name, msgl_jval *out)
{
    return msgl__jundef_new(c, NULL, name, msgl__jobject_name(obj), out);
}

int msgl__jgetattr(msgl_jctx *c, const msgl_jval *obj, const msgl_jstr *name, msgl_jval *out)
{
    if (obj->type == MSGL_J_UNDEF) return msgl__jundef_fail(c, obj->as.u);
    bool found;
    MSGL_JTRY(python_attr(c, obj, name, &found, out));
    if (found) return 0;
    if (obj->type == MSGL_J_DICT) {
        const msgl_jval *v = msgl__jdict_gets(obj->as.d, name->data, name->len);
        if (v != NULL) {
            *out = *v;
            return 0;
        }
    }
    return missing(c, obj, msgl__jstrval((msgl_jstr *)name), out);
}

// obj[key] in Python's sense; *found false for what jinja then looks up as an attribute.
static int subscript(msgl_jctx *c, const msgl_jval *obj, const msgl_jval *key, bool *found,
                     msgl_jval *out)
{
    int64_t i;
    *found = false;
    if (obj->type == MSGL_J_DICT) {
        bool hashable; // a key that is not is in no dict
        msgl_jval *v;
        MSGL_JTRY(msgl__jdict_find(c, obj->as.d, key, &hashable, &v));
        *found = v != NULL;
        if (v != NULL) *out = *v;
        return 0;
    }
    const bool seq = obj->type == MSGL_J_STR || obj->type == MSGL_J_LIST ||
                     obj->type == MSGL_J_TUPLE || obj->type == MSGL_J_RANGE;
    if (!seq || !msgl__jas_int(key, &i)) return 0;
    size_t len;
    MSGL_JTRY(msgl__jlength(c, obj, &len));
    if (i < 0) i += (int64_t)len;
    if (i < 0 || (size_t)i >= len) return 0;
    *found = true;
    if (obj->type == MSGL_J_RANGE) {
        *out = msgl__jint(obj->as.r->start + i * obj->as.r->step);
    } else if (obj->type == MSGL_J_STR) {
        const size_t off = msgl__jstr_offset(obj->as.s, (size_t)i);
        msgl_jstr *ch;
        const size_t n = msgl__utf8_len((unsigned char)obj->as.s->data[off]);
        if (obj->as.s->chars != obj->as.s->len) MSGL_JTRY(msgl__jctx_chars(c, off));
        MSGL_JTRY(msgl__jstr_sub(c, obj->as.s, off, n, &ch));
        *out = msgl__jstrval(ch);
    } else {
        *out = obj->as.l->items[i];
    }
    return 0;
}

int msgl__jgetitem(msgl_jctx *c, const msgl_jval *obj, const msgl_jval *key, msgl_jval *out)
{
    if (obj->type == MSGL_J_UNDEF) return msgl__jundef_fail(c, obj->as.u);
    bool found;
    MSGL_JTRY(subscript(c, obj, key, &found, out));
    if (found) return 0;
    if (key->type == MSGL_J_STR) {
        MSGL_JTRY(python_attr(c, obj, key->as.s, &found, out));
        if (found) return 0;
    }
    return missing(c, obj, *key, out);
}

// --- calls ---
int msgl__jeval_args(msgl_jctx *c, msgl_jscope *s, const msgl_jargs *args, size_t extra,
                     msgl_jcall *out)
{
    *out = (msgl_jcall){0};
    if (args == NULL) {
        if (extra == 0) return 0;
        static const msgl_jargs none;
        args = &none;
    }
    msgl_jval star = {0}, dstar = {0}, *more = NULL;
    size_t nmore = 0, nkw = args->nkw + extra;
    if (args->star != NULL) {
        MSGL_JTRY(msgl__jeval(c, s, args->star, &star));
        MSGL_JTRY(msgl__jto_array(c, &star, &more, &nmore));
    }
    const size_t npos = args->npos + nmore, size = npos * sizeof *out->pos;
    out->pos = msgl__jctx_alloc(c, size);
    if (out->pos == NULL) return msgl__jctx_nomem(c, size);
    for (; out->npos < args->npos; out->npos++) {
        MSGL_JTRY(msgl__jeval(c, s, args->pos[out->npos], &out->pos[out->npos]));
    }
    for (size_t i = 0; i < nmore; i++) out->pos[out->npos++] = more[i];
    if (args->dstar != NULL) {
        MSGL_JTRY(msgl__jeval(c, s, args->dstar, &dstar));
        if (dstar.type != MSGL_J_DICT) {
            return msgl__jctx_fail(c, "argument after ** must be a mapping, not %s",
                                   msgl__jtype_name(&dstar));
        }
        nkw += dstar.as.d->len;
    }
    if (nkw == 0) return 0;
    out->kw = msgl__jctx_alloc(c, nkw * sizeof *out->kw);
    out->kw_names = msgl__jctx_alloc(c, nkw * sizeof *out->kw_names);
    if (out->kw == NULL || out->kw_names == NULL) return msgl__jctx_nomem(c, nkw * 16);
    for (; out->nkw < args->nkw; out->nkw++) {
        out->kw_names[out->nkw] = args->kw_names[out->nkw];
        MSGL_JTRY(msgl__jeval(c, s, args->kw[out->nkw], &out->kw[out->nkw]));
    }
    for (size_t i = 0; dstar.type == MSGL_J_DICT && i < dstar.as.d->len; i++) {
        if (dstar.as.d->keys[i].type != MSGL_J_STR) {
            return msgl__jctx_fail(c, "keywords must be strings");
        }
        out->kw_names[out->nkw] = dstar.as.d->keys[i].as.s;
        out->kw[out->nkw++] = dstar.as.d->vals[i];
    }
    return 0;
}

static int eval_call(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n, msgl_jval *out)
{
    msgl_jval callee;
    msgl_jcall call;
    const msgl_jnode *f = n->a;
    if (f->kind == MSGL_JX_GETATTR) {
        // A method call needs no bound-method value in between.
        msgl_jval self;
        MSGL_JTRY(msgl__jeval(c, s, f->a, &self));
        const msgl_jbuiltin *m = msgl__jmethod_find(&self, f->sym->data, f->sym->len);
        if (m != NULL && self.type != MSGL_J_NAMESPACE) {
            MSGL_JTRY(msgl__jeval_args(c, s, n->args, 0, &call));
            c->line = n->line;
            return msgl__jbuiltin_call(c, m, &self, &call, out);
        }
        c->line = f->line;
        MSGL_JTRY(msgl__jgetattr(c, &self, f->sym, &callee));
    } else {
        MSGL_JTRY(msgl__jeval(c, s, f, &callee));
    }
    MSGL_JTRY(msgl__jeval_args(c, s, n->args, 0, &call));
    c->line = n->line;
    return msgl__jcall_value(c, &callee, &call, out);
}

// --- the rest ---
static int eval_list(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n, msgl_jval *out)
{
    msgl_jlist *l;
    MSGL_JTRY(msgl__jlist_new(c, n->nlist, &l));
    for (size_t i = 0; i < n->nlist; i++) MSGL_JTRY(msgl__jeval(c, s, n->list[i], &l->items[i]));
    *out = (msgl_jval){.type = n->kind == MSGL_JX_LIST ? MSGL_J_LIST : MSGL_J_TUPLE, .as.l = l};
    return 0;
}

static int eval_dict(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n, msgl_jval *out)
{
    msgl_jdict *d;
    MSGL_JTRY(msgl__jdict_new(c, n->nlist / 2, &d));
    for (size_t i = 0; i + 1 < n->nlist; i += 2) {
        msgl_jval k, v;
        MSGL_JTRY(msgl__jeval(c, s, n->list[i], &k));
        MSGL_JTRY(msgl__jeval(c, s, n->list[i + 1], &v));
        MSGL_JTRY(msgl__jdict_set(c, d, k, v));
    }
    *out = (msgl_jval){.type = MSGL_J_DICT, .as.d = d};
    return 0;
}

static int eval_slice(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n, msgl_jval *out)
{
    msgl_jval obj, part[3] = {msgl__jnone(), msgl__jnone(), msgl__jnone()};
    MSGL_JTRY(msgl__jeval(c, s, n->a, &obj));
    for (int i = 0; i < 3; i++) {
        if (n->list[i] != NULL) MSGL_JTRY(msgl__jeval(c, s, n->list[i], &part[i]));
    }
    c->line = n->line;
    return msgl__jslice(c, &obj, &part[0], &part[1], &part[2], out);
}

static int eval_concat(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n, msgl_jval *out)
{
    msgl_jstr *text = NULL;
    for (size_t i = 0; i < n->nlist; i++) {
        msgl_jval v;
        msgl_jstr *part;
        MSGL_JTRY(msgl__jeval(c, s, n->list[i], &v));
        MSGL_JTRY(msgl__jto_str(c, &v, &part));
        if (text == NULL) {
            text = part;
        } else {
            MSGL_JTRY(msgl__jstr_concat(c, text, part, &text));
        }
    }
    if (text->markup) {
        MSGL_JTRY(msgl__jstr_sub(c, text, 0, text->len, &text));
        text->markup = false;
    }
    *out = msgl__jstrval(text);
    return 0;
}

static int eval_compare(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n, msgl_jval *out)
{
    msgl_jval left;
    MSGL_JTRY(msgl__jeval(c, s, n->a, &left));
    bool yes = true;
    for (size_t i = 0; i < n->nlist && yes; i++) {
        msgl_jval right;
        MSGL_JTRY(msgl__jeval(c, s, n->list[i], &right));
        c->line = n->line;
        MSGL_JTRY(msgl__jcompare_op(c, (msgl_jop)n->ops[i], &left, &right, &yes));
        left = right;
    }
    *out = msgl__jbool(yes);
    return 0;
}

static int eval_cond(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n, msgl_jval *out)
{
    msgl_jval test;
    MSGL_JTRY(msgl__jeval(c, s, n->a, &test));
    if (msgl__jtruth(&test)) return msgl__jeval(c, s, n->b, out);
    if (n->c != NULL) return msgl__jeval(c, s, n->c, out);
    return msgl__jundef_new(
        c, "the inline if-expression evaluated to false and no else section was defined.",
        msgl__jnone(), NULL, out);
}

static int eval_sign(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n, msgl_jval *out)
{
    msgl_jval v;
    MSGL_JTRY(msgl__jeval(c, s, n->a, &v));
    c->line = n->line;
    const bool neg = n->kind == MSGL_JX_NEG;
    int64_t i;
    if (v.type == MSGL_J_UNDEF) return msgl__jundef_fail(c, v.as.u);
    if (v.type == MSGL_J_FLOAT) {
        *out = msgl__jfloat(neg ? -v.as.f : v.as.f);
        return 0;
    }
    if (!msgl__jas_int(&v, &i)) {
        return msgl__jctx_fail(c, "bad operand type for unary %c: '%s'", neg ? '-' : '+',
                               msgl__jtype_name(&v));
    }
    if (neg && __builtin_sub_overflow((int64_t)0, i, &i)) {
        return msgl__jctx_fail(c, "an integer does not fit into 64 bits");
    }
    *out = msgl__jint(i);
    return 0;
}

int msgl__japply(msgl_jctx *c, const msgl_jnode *n, const msgl_jval *self, const msgl_jcall *call,
                 msgl_jval *out)
{
    c->line = n->line;
    if (n->fn == NULL) {
        return msgl__jctx_fail(c, "No %s named '%.*s' found.",
                               n->kind == MSGL_JX_FILTER ? "filter" : "test",
                               (int)(n->sym->len < 64 ? n->sym->len : 64), n->sym->data);
    }
    return msgl__jbuiltin_call(c, n->fn, self, call, out);
}

static int eval_filter_or_test(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n, msgl_jval *out)
{
    msgl_jval self;
    msgl_jcall call;
    MSGL_JTRY(msgl__jeval(c, s, n->a, &self));
    MSGL_JTRY(msgl__jeval_args(c, s, n->args, 0, &call));
    return msgl__japply(c, n, &self, &call, out);
}

static int eval_binary(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n, msgl_jval *out)
{
    msgl_jval a, b;
    MSGL_JTRY(msgl__jeval(c, s, n->a, &a));
    const bool logic = n->kind == MSGL_JX_AND || n->kind == MSGL_JX_OR;
    if (logic && msgl__jtruth(&a) == (n->kind == MSGL_JX_OR)) {
        *out = a;
        return 0;
    }
    if (logic) return msgl__jeval(c, s, n->b, out);
    MSGL_JTRY(msgl__jeval(c, s, n->b, &b));
    c->line = n->line;
    return msgl__jbinary(c, (msgl_jop)n->op, &a, &b, out);
}

static int eval_access(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n, msgl_jval *out)
{
    msgl_jval obj, key;
    MSGL_JTRY(msgl__jeval(c, s, n->a, &obj));
    if (n->kind == MSGL_JX_GETITEM) MSGL_JTRY(msgl__jeval(c, s, n->b, &key));
    c->line = n->line;
    return n->kind == MSGL_JX_GETATTR ? msgl__jgetattr(c, &obj, n->sym, out)
                                      : msgl__jgetitem(c, &obj, &key, out);
}

static int eval_node(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n, msgl_jval *out)
{
    msgl_jval v;
    switch (n->kind) {
    case MSGL_JX_TUPLE:
    case MSGL_JX_LIST: return eval_list(c, s, n, out);
    case MSGL_JX_DICT: return eval_dict(c, s, n, out);
    case MSGL_JX_GETATTR:
    case MSGL_JX_GETITEM: return eval_access(c, s, n, out);
    case MSGL_JX_SLICE: return eval_slice(c, s, n, out);
    case MSGL_JX_CALL: return eval_call(c, s, n, out);
    case MSGL_JX_FILTER:
    case MSGL_JX_TEST: return eval_filter_or_test(c, s, n, out);
    case MSGL_JX_NOT:
        MSGL_JTRY(msgl__jeval(c, s, n->a, &v));
        *out = msgl__jbool(!msgl__jtruth(&v));
        return 0;
    case MSGL_JX_NEG:
    case MSGL_JX_POS: return eval_sign(c, s, n, out);
    case MSGL_JX_AND:
    case MSGL_JX_OR:
    case MSGL_JX_BINARY: return eval_binary(c, s, n, out);
    case MSGL_JX_CONCAT: return eval_concat(c, s, n, out);
    case MSGL_JX_COMPARE: return eval_compare(c, s, n, out);
    case MSGL_JX_COND: return eval_cond(c, s, n, out);
    default: return msgl__err_set(c->err, MSGL_EINTERNAL, "unexpected node %d", n->kind);
    }
}

int msgl__jeval(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n, msgl_jval *out)
{
    MSGL_JTRY(msgl__jctx_steps(c, 1));
    if (n->kind == MSGL_JX_CONST) {
        *out = n->val;
        return 0;
    }
    c->line = n->line;
    if (n->kind == MSGL_JX_NAME) return msgl__jlookup(c, s, n->sym, out);
    MSGL_JTRY(msgl__jctx_enter(c));
    const int rc = eval_node(c, s, n, out);
    c->depth--;
    return rc;
}
