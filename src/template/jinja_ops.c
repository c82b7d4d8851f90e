// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic, comparison and slicing with Python's rules. Integers are 64 bits wide; what does not
// fit is an error, never a wrong number.
#include <math.h>
#include <string.h>

#include "template/jinja_eval.h"

static const char *op_text(msgl_jop op)
{
    static const char *const text[] = {"+",  "-", "*",  "/", "//", "%",  "** or pow()", "==",
                                       "!=", "<", "<=", ">", ">=", "in", "not in"};
    return text[op];
}

static int too_large(msgl_jctx *c)
{
    return msgl__jctx_fail(c, "an integer does not fit into 64 bits");
}

static int no_operator(msgl_jctx *c, msgl_jop op, const msgl_jval *a, const msgl_jval *b)
{
    return msgl__jctx_fail(c, "unsupported operand type(s) for %s: '%s' and '%s'", op_text(op),
                           msgl__jtype_name(a), msgl__jtype_name(b));
}

static int int_pow(msgl_jctx *c, int64_t base, int64_t exp, msgl_jval *out)
{
    if (exp < 0) {
        if (base == 0) return msgl__jctx_fail(c, "0.0 cannot be raised to a negative power");
        *out = msgl__jfloat(pow((double)base, (double)exp));
        return 0;
    }
    int64_t r = 1;
    if (base == 0 || base == 1 || base == -1) {
        *out = msgl__jint(exp == 0 ? 1 : base == -1 && exp % 2 == 0 ? 1 : base);
        return 0;
    }
    for (; exp > 0; exp--) {
        if (__builtin_mul_overflow(r, base, &r)) return too_large(c);
    }
    *out = msgl__jint(r);
    return 0;
}

static int int_divide(msgl_jctx *c, msgl_jop op, int64_t a, int64_t b, msgl_jval *out)
{
    if (b == 0) {
        return msgl__jctx_fail(c, op == MSGL_JOP_DIV ? "division by zero"
                                                     : "integer division or modulo by zero");
    }
    if (op == MSGL_JOP_DIV) {
        *out = msgl__jfloat((double)a / (double)b);
        return 0;
    }
    if (b == -1) { // INT64_MIN / -1 traps
        int64_t q;
        if (op == MSGL_JOP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &q)) {
            return too_large(c);
        }
        *out = msgl__jint(op == MSGL_JOP_FLOORDIV ? q : 0);
        return 0;
    }
    int64_t q = a / b, r = a % b;
    if (r != 0 && (r < 0) != (b < 0)) {
        q--;
        r += b;
    }
    *out = msgl__jint(op == MSGL_JOP_FLOORDIV ? q : r);
    return 0;
}

static int int_op(msgl_jctx *c, msgl_jop op, int64_t a, int64_t b, msgl_jval *out)
{
    int64_t r;
    bool over;
    switch (op) {
    case MSGL_JOP_ADD: over = __builtin_add_overflow(a, b, &r); break;
    case MSGL_JOP_SUB: over = __builtin_sub_overflow(a, b, &r); break;
    case MSGL_JOP_MUL: over = __builtin_mul_overflow(a, b, &r); break;
    case MSGL_JOP_POW: return int_pow(c, a, b, out);
    default: return int_divide(c, op, a, b, out);
    }
    if (over) return too_large(c);
    *out = msgl__jint(r);
    return 0;
}

static int float_op(msgl_jctx *c, msgl_jop op, double a, double b, msgl_jval *out)
{
    double r;
    switch (op) {
    case MSGL_JOP_ADD: r = a + b; break;
    case MSGL_JOP_SUB: r = a - b; break;
    case MSGL_JOP_MUL: r = a * b; break;
    case MSGL_JOP_POW:
        if (a == 0 && b < 0) return msgl__jctx_fail(c, "0.0 cannot be raised to a negative power");
        r = pow(a, b);
        if (isnan(r) && !isnan(a) && !isnan(b)) {
            return msgl__jctx_fail(c, "complex numbers are not supported");
        }
        if (isinf(r) && !isinf(a) && !isinf(b)) return msgl__jctx_fail(c, "Result too large");
        break;
    default:
        if (b == 0) return msgl__jctx_fail(c, "float division by zero");
        if (op == MSGL_JOP_DIV) {
            r = a / b;
            break;
        }
        r = fmod(a, b);
        if (r != 0 && (r < 0) != (b < 0)) r += b;
        if (op == MSGL_JOP_FLOORDIV) r = round((a - r) / b);
        if (r == 0) r = copysign(0.0, op == MSGL_JOP_MOD ? b : a / b);
    }
    *out = msgl__jfloat(r);
    return 0;
}

static int repeat_list(msgl_jctx *c, const msgl_jval *seq, int64_t n, msgl_jval *out)
{
    const msgl_jlist *src = seq->as.l;
    const size_t times = n > 0 ? (size_t)n : 0;
    if (src->len > 0 && times > c->max_string / src->len) {
        return msgl__jctx_limit(c, "a list of more than %zu elements", c->max_string);
    }
    msgl_jlist *l;
    MSGL_JTRY(msgl__jctx_steps(c, src->len * times));
    MSGL_JTRY(msgl__jlist_new(c, src->len * times, &l));
    for (size_t i = 0; i < l->len; i++) l->items[i] = src->items[i % src->len];
    *out = (msgl_jval){.type = seq->type, .as.l = l};
    return 0;
}

static int repeat(msgl_jctx *c, const msgl_jval *seq, int64_t n, msgl_jval *out)
{
    if (seq->type != MSGL_J_STR) return repeat_list(c, seq, n, out);
    msgl_jbuf *b;
    msgl_jstr *s;
    MSGL_JTRY(msgl__jbuf_new(c, 0, &b));
    MSGL_JTRY(msgl__jbuf_add_repeat(b, seq->as.s, n > 0 ? (size_t)n : 0));
    MSGL_JTRY(msgl__jbuf_finish(b, &s));
    s->markup = seq->as.s->markup;
    *out = msgl__jstrval(s);
    return 0;
}

static int add_strings(msgl_jctx *c, msgl_jstr *a, msgl_jstr *b, msgl_jval *out)
{
    msgl_jstr *s;
    if (a->markup != b->markup) {
        MSGL_JTRY(msgl__jstr_escape(c, a, &a));
        MSGL_JTRY(msgl__jstr_escape(c, b, &b));
    }
    MSGL_JTRY(msgl__jstr_concat(c, a, b, &s));
    *out = msgl__jstrval(s);
    return 0;
}

static int add_lists(msgl_jctx *c, const msgl_jval *a, const msgl_jval *b, msgl_jval *out)
{
    const size_t n = a->as.l->len, m = b->as.l->len;
    msgl_jlist *l;
    MSGL_JTRY(msgl__jctx_steps(c, (n + m) / 8));
    MSGL_JTRY(msgl__jlist_new(c, n + m, &l));
    if (n > 0) memcpy(l->items, a->as.l->items, n * sizeof *l->items);
    if (m > 0) memcpy(l->items + n, b->as.l->items, m * sizeof *l->items);
    l->untrusted = a->as.l->untrusted | b->as.l->untrusted;
    *out = (msgl_jval){.type = a->type, .as.l = l};
    return 0;
}

static bool is_seq(const msgl_jval *v)
{
    return v->type == MSGL_J_STR || v->type == MSGL_J_LIST || v->type == MSGL_J_TUPLE;
}

int msgl__jbinary(msgl_jctx *c, msgl_jop op, const msgl_jval *a, const msgl_jval *b, msgl_jval *out)
{
    int64_t i, j;
    if (op == MSGL_JOP_MOD && a->type == MSGL_J_STR) {
        return msgl__jformat_percent(c, a->as.s, b, out);
    }
    if (a->type == MSGL_J_UNDEF) return msgl__jundef_fail(c, a->as.u);
    if (b->type == MSGL_J_UNDEF) return msgl__jundef_fail(c, b->as.u);
    if (msgl__jas_int(a, &i) && msgl__jas_int(b, &j)) return int_op(c, op, i, j, out);
    if (msgl__jis_number(a) && msgl__jis_number(b)) {
        return float_op(c, op, msgl__jas_double(a), msgl__jas_double(b), out);
    }
    if (op == MSGL_JOP_MUL && is_seq(a) && msgl__jas_int(b, &i)) return repeat(c, a, i, out);
    if (op == MSGL_JOP_MUL && is_seq(b) && msgl__jas_int(a, &i)) return repeat(c, b, i, out);
    if (op == MSGL_JOP_ADD && a->type == b->type && is_seq(a)) {
        return a->type == MSGL_J_STR ? add_strings(c, a->as.s, b->as.s, out)
                                     : add_lists(c, a, b, out);
    }
    if (op == MSGL_JOP_ADD && is_seq(a)) {
        return msgl__jctx_fail(c, "can only concatenate %s (not \"%s\") to %s", msgl__jtype_name(a),
                               msgl__jtype_name(b), msgl__jtype_name(a));
    }
    return no_operator(c, op, a, b);
}

int msgl__jcompare_op(msgl_jctx *c, msgl_jop op, const msgl_jval *a, const msgl_jval *b, bool *out)
{
    int order;
    switch (op) {
    case MSGL_JOP_EQ: return msgl__jequal(c, a, b, out);
    case MSGL_JOP_NE:
        MSGL_JTRY(msgl__jequal(c, a, b, out));
        *out = !*out;
        return 0;
    case MSGL_JOP_IN: return msgl__jcontains(c, a, b, out);
    case MSGL_JOP_NOTIN:
        MSGL_JTRY(msgl__jcontains(c, a, b, out));
        *out = !*out;
        return 0;
    default: break;
    }
    MSGL_JTRY(msgl__jcompare(c, a, b, op_text(op), &order));
    switch (op) {
    case MSGL_JOP_LT: *out = order == -1; break;
    case MSGL_JOP_LE: *out = order == -1 || order == 0; break;
    case MSGL_JOP_GT: *out = order == 1; break;
    default: *out = order == 1 || order == 0; break;
    }
    return 0;
}

// --- slices ---
// Python's PySlice_AdjustIndices.
static int bound(msgl_jctx *c, const msgl_jval *v, int64_t len, bool negative_step, int64_t dflt,
                 int64_t *out)
{
    if (v->type == MSGL_J_NONE) {
        *out = dflt;
        return 0;
    }
    if (!msgl__jas_int(v, out)) {
        return msgl__jctx_fail(c, "slice indices must be integers or None or have an __index__ "
                                  "method");
    }
    if (*out < 0) *out += len;
    if (*out < 0) *out = negative_step ? -1 : 0;
    if (*out >= len) *out = negative_step ? len - 1 : len;
    return 0;
}

static int slice_string(msgl_jctx *c, msgl_jstr *s, int64_t at, int64_t step, size_t n,
                        msgl_jval *out)
{
    msgl_jstr *r;
    const bool jump = step == 1 && msgl__jstr_chars(s) == s->len;
    MSGL_JTRY(jump ? msgl__jctx_work(c, s->len) : msgl__jctx_chars(c, s->len));
    if (step == 1) {
        const size_t from = msgl__jstr_offset(s, (size_t)at);
        size_t to = s->len;
        if ((size_t)at + n < msgl__jstr_chars(s)) {
            to = from;
            if (s->chars == s->len) {
                to += n;
            } else {
                for (size_t i = 0; i < n; i++) to += msgl__utf8_len((unsigned char)s->data[to]);
            }
        }
        MSGL_JTRY(msgl__jstr_sub(c, s, from, to - from, &r));
        *out = msgl__jstrval(r);
        return 0;
    }
    msgl_jbuf *b;
    MSGL_JTRY(msgl__jbuf_new(c, n, &b));
    size_t off = msgl__jstr_offset(s, (size_t)at);
    for (size_t i = 0; i < n; i++) {
        MSGL_JTRY(msgl__jbuf_add_sub(b, s, off, msgl__utf8_len((unsigned char)s->data[off])));
        if (i + 1 == n) break;
        for (int64_t k = 0; k < step; k++) off += msgl__utf8_len((unsigned char)s->data[off]);
        for (int64_t k = 0; k > step; k--) {
            do off--;
            while (((unsigned char)s->data[off] & 0xc0) == 0x80);
        }
    }
    MSGL_JTRY(msgl__jbuf_finish(b, &r));
    *out = msgl__jstrval(r);
    return 0;
}

static int slice_list(msgl_jctx *c, const msgl_jval *obj, int64_t at, int64_t step, size_t n,
                      msgl_jval *out)
{
    const msgl_jlist *src = obj->as.l;
    msgl_jlist *l;
    // Lists never change, so a contiguous slice shares the items.
    MSGL_JTRY(msgl__jlist_new(c, step == 1 ? 0 : n, &l));
    if (step == 1) {
        l->items = src->items + (n > 0 ? at : 0);
        l->len = n;
    } else {
        MSGL_JTRY(msgl__jctx_steps(c, n / 4));
        for (size_t i = 0; i < n; i++) l->items[i] = src->items[at + (int64_t)i * step];
    }
    l->untrusted = src->untrusted;
    *out = (msgl_jval){.type = obj->type, .as.l = l};
    return 0;
}

int msgl__jslice(msgl_jctx *c, const msgl_jval *obj, const msgl_jval *start, const msgl_jval *stop,
                 const msgl_jval *step, msgl_jval *out)
{
    if (obj->type == MSGL_J_UNDEF) return msgl__jundef_fail(c, obj->as.u);
    if (!is_seq(obj) && obj->type != MSGL_J_RANGE) {
        return msgl__jctx_fail(c,
                               obj->type == MSGL_J_DICT ? "unhashable type: 'slice'"
                                                        : "'%s' object is not subscriptable",
                               msgl__jtype_name(obj));
    }
    int64_t by = 1, from, to;
    if (step->type != MSGL_J_NONE && !msgl__jas_int(step, &by)) {
        return msgl__jctx_fail(c, "slice indices must be integers or None or have an __index__ "
                                  "method");
    }
    if (by == 0) return msgl__jctx_fail(c, "slice step cannot be zero");
    if (by < -INT64_MAX) by = -INT64_MAX;
    size_t ulen, n = 0;
    MSGL_JTRY(msgl__jlength(c, obj, &ulen));
    const int64_t len = (int64_t)ulen;
    MSGL_JTRY(bound(c, start, len, by < 0, by < 0 ? len - 1 : 0, &from));
    MSGL_JTRY(bound(c, stop, len, by < 0, by < 0 ? -1 : len, &to));
    if (by > 0 && from < to) n = (size_t)((to - from - 1) / by + 1);
    if (by < 0 && to < from) n = (size_t)((from - to - 1) / -by + 1);
    if (obj->type == MSGL_J_STR) return slice_string(c, obj->as.s, n > 0 ? from : 0, by, n, out);
    if (obj->type != MSGL_J_RANGE) return slice_list(c, obj, from, by, n, out);
    msgl_jrange *r = msgl__jctx_alloc(c, sizeof *r);
    if (r == NULL) return msgl__jctx_nomem(c, sizeof *r);
    int64_t new_step;
    if (__builtin_mul_overflow(obj->as.r->step, by, &new_step)) new_step = 1; // one element left
    const int64_t old_step = obj->as.r->step, first = obj->as.r->start;
    *r = (msgl_jrange){first + (n > 0 ? from : 0) * old_step,
                       (int64_t)((uint64_t)first + (uint64_t)to * (uint64_t)old_step), new_step, n};
    *out = (msgl_jval){.type = MSGL_J_RANGE, .as.r = r};
    return 0;
}
