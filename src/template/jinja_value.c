// SPDX-License-Identifier: Apache-2.0
//
// Budgets and errors of a render, and what Python defines for all values: truth, equality, order.
#include "template/jinja_value.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "template/jinja_string.h"

// Steps between two looks at `cancelled`, as a power of two: some 0.2 ms.
enum { POLL_BITS = 12 };

void *msgl__jctx_alloc(msgl_jctx *c, size_t size)
{
    return msgl__jarena_alloc(&c->arena, size);
}

int msgl__jctx_nomem(msgl_jctx *c, size_t size)
{
    if (msgl__jarena_why(&c->arena, size) == MSGL_ENOMEM) {
        return msgl__err_set(c->err, MSGL_ENOMEM,
                             "out of memory while rendering the chat template");
    }
    return msgl__jctx_limit(c, "the render needs more than %zu bytes of memory", c->arena.max);
}

static int fail_v(msgl_jctx *c, int code, const char *fmt, va_list ap)
{
    char text[MSGL_ERR_TEXT_SIZE];
    vsnprintf(text, sizeof text, fmt, ap);
    return msgl__err_set(c->err, code, "chat template line %d: %s", c->line, text);
}

int msgl__jctx_fail(msgl_jctx *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const int rc = fail_v(c, MSGL_EINVAL, fmt, ap);
    va_end(ap);
    return rc;
}

int msgl__jctx_limit(msgl_jctx *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const int rc = fail_v(c, MSGL_ELIMIT, fmt, ap);
    va_end(ap);
    return rc;
}

int msgl__jctx_steps(msgl_jctx *c, size_t n)
{
    if (n > c->max_steps - c->steps) {
        c->steps = c->max_steps;
        return msgl__jctx_limit(c, "more than %zu steps", c->max_steps);
    }
    const size_t before = c->steps >> POLL_BITS;
    c->steps += n;
    if (c->cancelled != NULL && c->steps >> POLL_BITS != before &&
        atomic_load_explicit(c->cancelled, memory_order_relaxed)) {
        return msgl__err_set(c->err, MSGL_EABORTED, "the render was cancelled");
    }
    return 0;
}

int msgl__jctx_work(msgl_jctx *c, size_t bytes)
{
    return msgl__jctx_steps(c, bytes >> 6);
}

int msgl__jctx_chars(msgl_jctx *c, size_t n)
{
    return msgl__jctx_steps(c, n >> 2);
}

// memmem with a needle that nearly matches everywhere takes 5 to 10 ns a byte.
int msgl__jctx_search(msgl_jctx *c, size_t bytes, size_t needle)
{
    return needle > 1 ? msgl__jctx_steps(c, bytes >> 3) : msgl__jctx_work(c, bytes);
}

int msgl__jctx_number(msgl_jctx *c, const msgl_jval *v)
{
    return v->type == MSGL_J_FLOAT ? msgl__jctx_steps(c, 32)
           : v->type == MSGL_J_INT ? msgl__jctx_steps(c, 1)
           : v->type == MSGL_J_BIG ? msgl__jctx_work(c, v->as.s->len)
                                   : 0;
}

int msgl__jctx_enter(msgl_jctx *c)
{
    if (c->depth >= c->max_depth) {
        return msgl__jctx_limit(c, "nested more than %d levels deep", c->max_depth);
    }
    c->depth++;
    return 0;
}

int msgl__jundef_new(msgl_jctx *c, const char *hint, msgl_jval name, const char *obj_type,
                     msgl_jval *out)
{
    msgl_jundef *u = msgl__jctx_alloc(c, sizeof *u);
    if (u == NULL) return msgl__jctx_nomem(c, sizeof *u);
    *u = (msgl_jundef){hint, name, obj_type};
    *out = (msgl_jval){.type = MSGL_J_UNDEF, .as.u = u};
    return 0;
}

int msgl__jundef_fail(msgl_jctx *c, const msgl_jundef *u)
{
    if (u->hint != NULL) return msgl__jctx_fail(c, "%s", u->hint);
    const bool is_str = u->name.type == MSGL_J_STR;
    msgl_jbuf *b;
    MSGL_JTRY(msgl__jbuf_new(c, 32, &b));
    MSGL_JTRY(msgl__jbuf_add_repr(b, &u->name));
    const int n = (int)(b->len < 100 ? b->len : 100);
    if (u->obj_type == NULL) return msgl__jctx_fail(c, "%.*s is undefined", n, b->data);
    if (!is_str) return msgl__jctx_fail(c, "%s has no element %.*s", u->obj_type, n, b->data);
    return msgl__jctx_fail(c, "'%s' has no attribute %.*s", u->obj_type, n, b->data);
}

const char *msgl__jtype_name(const msgl_jval *v)
{
    switch (v->type) {
    case MSGL_J_UNSET:
    case MSGL_J_UNDEF: return "Undefined";
    case MSGL_J_NONE: return "NoneType";
    case MSGL_J_BOOL: return "bool";
    case MSGL_J_BIG:
    case MSGL_J_INT: return "int";
    case MSGL_J_FLOAT: return "float";
    case MSGL_J_STR: return v->as.s->markup ? "Markup" : "str";
    case MSGL_J_LIST: return "list";
    case MSGL_J_TUPLE: return "tuple";
    case MSGL_J_DICT: return "dict";
    case MSGL_J_RANGE: return "range";
    case MSGL_J_VIEW:
        return v->as.v->kind == MSGL_JVIEW_KEYS     ? "dict_keys"
               : v->as.v->kind == MSGL_JVIEW_VALUES ? "dict_values"
                                                    : "dict_items";
    case MSGL_J_GEN: return "generator";
    case MSGL_J_NAMESPACE: return "Namespace";
    case MSGL_J_MACRO: return "Macro";
    case MSGL_J_LOOP: return "LoopContext";
    case MSGL_J_FUNC: return "function";
    case MSGL_J_METHOD: return "builtin_function_or_method";
    case MSGL_J_CYCLER: return "Cycler";
    case MSGL_J_JOINER: return "Joiner";
    }
    return "object";
}

const char *msgl__jobject_name(const msgl_jval *v)
{
    switch (v->type) {
    case MSGL_J_NONE: return "None";
    case MSGL_J_BOOL: return "bool object";
    case MSGL_J_BIG:
    case MSGL_J_INT: return "int object";
    case MSGL_J_FLOAT: return "float object";
    case MSGL_J_STR: return v->as.s->markup ? "markupsafe.Markup object" : "str object";
    case MSGL_J_LIST: return "list object";
    case MSGL_J_TUPLE: return "tuple object";
    case MSGL_J_DICT: return "dict object";
    case MSGL_J_RANGE: return "range object";
    case MSGL_J_GEN: return "generator object";
    case MSGL_J_NAMESPACE: return "namespace object";
    case MSGL_J_MACRO: return "jinja2.runtime.Macro object";
    case MSGL_J_LOOP: return "jinja2.runtime.LoopContext object";
    case MSGL_J_CYCLER: return "jinja2.utils.Cycler object";
    case MSGL_J_JOINER: return "jinja2.utils.Joiner object";
    default: return msgl__jtype_name(v);
    }
}

bool msgl__jis_number(const msgl_jval *v)
{
    return v->type == MSGL_J_BOOL || v->type == MSGL_J_INT || v->type == MSGL_J_FLOAT;
}

bool msgl__jas_int(const msgl_jval *v, int64_t *out)
{
    if (v->type == MSGL_J_INT) *out = v->as.i;
    if (v->type == MSGL_J_BOOL) *out = v->as.b;
    return v->type == MSGL_J_INT || v->type == MSGL_J_BOOL;
}

double msgl__jas_double(const msgl_jval *v)
{
    int64_t i;
    return msgl__jas_int(v, &i) ? (double)i : v->as.f;
}

bool msgl__jhas_length(const msgl_jval *v)
{
    switch (v->type) {
    case MSGL_J_UNDEF:
    case MSGL_J_STR:
    case MSGL_J_LIST:
    case MSGL_J_TUPLE:
    case MSGL_J_DICT:
    case MSGL_J_RANGE:
    case MSGL_J_VIEW:
    case MSGL_J_LOOP: return true;
    default: return false;
    }
}

static size_t length_of(const msgl_jval *v)
{
    switch (v->type) {
    case MSGL_J_STR: return msgl__jstr_chars(v->as.s);
    case MSGL_J_LIST:
    case MSGL_J_TUPLE: return v->as.l->len;
    case MSGL_J_DICT: return v->as.d->len;
    case MSGL_J_RANGE: return v->as.r->len;
    case MSGL_J_VIEW: return v->as.v->dict->len;
    case MSGL_J_LOOP: return v->as.loop->len;
    default: return 0;
    }
}

int msgl__jlength(msgl_jctx *c, const msgl_jval *v, size_t *out)
{
    if (!msgl__jhas_length(v)) {
        return msgl__jctx_fail(c, "object of type '%s' has no len()", msgl__jtype_name(v));
    }
    *out = length_of(v);
    return 0;
}

bool msgl__jtruth(const msgl_jval *v)
{
    switch (v->type) {
    case MSGL_J_UNSET:
    case MSGL_J_UNDEF:
    case MSGL_J_NONE: return false;
    case MSGL_J_BOOL: return v->as.b;
    case MSGL_J_INT: return v->as.i != 0;
    case MSGL_J_FLOAT: return v->as.f != 0;
    case MSGL_J_STR: return v->as.s->len > 0;
    default: return !msgl__jhas_length(v) || length_of(v) > 0;
    }
}

bool msgl__jsame(const msgl_jval *a, const msgl_jval *b)
{
    if (a->type != b->type) return false;
    switch (a->type) {
    case MSGL_J_NONE: return true;
    case MSGL_J_BOOL: return a->as.b == b->as.b;
    case MSGL_J_INT: return a->as.i == b->as.i;
    case MSGL_J_FLOAT: return false;
    case MSGL_J_BIG:
    case MSGL_J_STR: return a->as.s == b->as.s || msgl__jstr_eq(a->as.s, b->as.s);
    default: return a->as.l == b->as.l;
    }
}

static int numbers_compare(const msgl_jval *a, const msgl_jval *b, bool *unordered)
{
    int64_t x, y;
    *unordered = false;
    if (msgl__jas_int(a, &x) && msgl__jas_int(b, &y)) return x < y ? -1 : x > y;
    const double p = msgl__jas_double(a), q = msgl__jas_double(b);
    *unordered = isnan(p) || isnan(q);
    return p < q ? -1 : p > q;
}

static int arrays_equal(msgl_jctx *c, const msgl_jval *a, const msgl_jval *b, size_t n, bool *out)
{
    *out = true;
    for (size_t i = 0; i < n && *out; i++) MSGL_JTRY(msgl__jequal(c, &a[i], &b[i], out));
    return 0;
}

static int dicts_equal(msgl_jctx *c, const msgl_jdict *a, const msgl_jdict *b, bool *out)
{
    *out = a->len == b->len;
    for (size_t i = 0; i < a->len && *out; i++) {
        msgl_jval *other;
        MSGL_JTRY(msgl__jdict_get(c, b, &a->keys[i], &other));
        *out = other != NULL;
        if (other != NULL) MSGL_JTRY(msgl__jequal(c, &a->vals[i], other, out));
    }
    return 0;
}

static int equal_containers(msgl_jctx *c, const msgl_jval *a, const msgl_jval *b, bool *out)
{
    MSGL_JTRY(msgl__jctx_enter(c));
    int rc = msgl__jctx_steps(c, 1);
    if (rc == 0 && a->type == MSGL_J_DICT) {
        rc = dicts_equal(c, a->as.d, b->as.d, out);
    } else if (rc == 0) {
        *out = a->as.l->len == b->as.l->len;
        if (*out) rc = arrays_equal(c, a->as.l->items, b->as.l->items, a->as.l->len, out);
    }
    c->depth--;
    return rc;
}

int msgl__jequal(msgl_jctx *c, const msgl_jval *a, const msgl_jval *b, bool *out)
{
    MSGL_JTRY(msgl__jctx_steps(c, 1));
    *out = false;
    if (msgl__jis_number(a) && msgl__jis_number(b)) {
        bool unordered;
        *out = numbers_compare(a, b, &unordered) == 0 && !unordered;
        return 0;
    }
    if (a->type != b->type) return 0;
    switch (a->type) {
    case MSGL_J_UNDEF:
    case MSGL_J_NONE: *out = true; return 0;
    case MSGL_J_BIG:
    case MSGL_J_STR:
        if (a->as.s->len != b->as.s->len) return 0;
        MSGL_JTRY(msgl__jctx_work(c, a->as.s->len));
        *out = msgl__jstr_eq(a->as.s, b->as.s);
        return 0;
    case MSGL_J_LIST:
    case MSGL_J_TUPLE:
    case MSGL_J_DICT: return equal_containers(c, a, b, out);
    case MSGL_J_RANGE: {
        const msgl_jrange *x = a->as.r, *y = b->as.r;
        *out = x->len == y->len &&
               (x->len == 0 || (x->start == y->start && (x->len == 1 || x->step == y->step)));
        return 0;
    }
    case MSGL_J_METHOD:
        *out = a->as.method->fn == b->as.method->fn &&
               msgl__jsame(&a->as.method->self, &b->as.method->self);
        return 0;
    default: *out = a->as.l == b->as.l; return 0;
    }
}

static int compare_arrays(msgl_jctx *c, const msgl_jlist *a, const msgl_jlist *b, const char *op,
                          int *out)
{
    const size_t n = a->len < b->len ? a->len : b->len;
    for (size_t i = 0; i < n; i++) {
        bool eq;
        MSGL_JTRY(msgl__jequal(c, &a->items[i], &b->items[i], &eq));
        if (!eq) return msgl__jcompare(c, &a->items[i], &b->items[i], op, out);
    }
    *out = a->len < b->len ? -1 : a->len > b->len;
    return 0;
}

int msgl__jcompare(msgl_jctx *c, const msgl_jval *a, const msgl_jval *b, const char *op, int *out)
{
    MSGL_JTRY(msgl__jctx_steps(c, 1));
    if (a->type == MSGL_J_UNDEF) return msgl__jundef_fail(c, a->as.u);
    if (b->type == MSGL_J_UNDEF) return msgl__jundef_fail(c, b->as.u);
    if (msgl__jis_number(a) && msgl__jis_number(b)) {
        bool unordered;
        *out = numbers_compare(a, b, &unordered);
        if (unordered) *out = 2; // NaN: neither less, equal nor greater
        return 0;
    }
    if (a->type == MSGL_J_STR && b->type == MSGL_J_STR) {
        // UTF-8 sorts as its code points do.
        const msgl_jstr *x = a->as.s, *y = b->as.s;
        const size_t n = x->len < y->len ? x->len : y->len;
        MSGL_JTRY(msgl__jctx_work(c, n));
        const int d = n > 0 ? memcmp(x->data, y->data, n) : 0;
        *out = d != 0 ? (d < 0 ? -1 : 1) : x->len < y->len ? -1 : x->len > y->len;
        return 0;
    }
    if (a->type == b->type && (a->type == MSGL_J_LIST || a->type == MSGL_J_TUPLE)) {
        MSGL_JTRY(msgl__jctx_enter(c));
        const int rc = compare_arrays(c, a->as.l, b->as.l, op, out);
        c->depth--;
        return rc;
    }
    return msgl__jctx_fail(c, "'%s' not supported between instances of '%s' and '%s'", op,
                           msgl__jtype_name(a), msgl__jtype_name(b));
}

int msgl__jcontains(msgl_jctx *c, const msgl_jval *item, const msgl_jval *in, bool *out)
{
    *out = false;
    if (in->type == MSGL_J_STR) {
        if (item->type != MSGL_J_STR) {
            return msgl__jctx_fail(c, "'in <string>' requires string as left operand, not %s",
                                   msgl__jtype_name(item));
        }
        MSGL_JTRY(msgl__jctx_search(c, in->as.s->len, item->as.s->len));
        *out = msgl__jstr_find(in->as.s, item->as.s, 0) != SIZE_MAX;
        return 0;
    }
    const msgl_jdict *keys = in->type == MSGL_J_DICT ? in->as.d : NULL;
    if (in->type == MSGL_J_VIEW && in->as.v->kind == MSGL_JVIEW_KEYS) keys = in->as.v->dict;
    if (keys != NULL) {
        msgl_jval *found;
        MSGL_JTRY(msgl__jdict_get(c, keys, item, &found));
        *out = found != NULL;
        return 0;
    }
    if (!msgl__jiterable(in)) {
        return msgl__jctx_fail(c, "argument of type '%s' is not iterable", msgl__jtype_name(in));
    }
    msgl_jiter it;
    MSGL_JTRY(msgl__jiter_init(c, in, &it));
    for (;;) {
        msgl_jval v;
        MSGL_JTRY(msgl__jiter_next(c, &it, &v));
        if (v.type == MSGL_J_UNSET) return 0;
        MSGL_JTRY(msgl__jequal(c, &v, item, out));
        if (*out) return 0;
    }
}
