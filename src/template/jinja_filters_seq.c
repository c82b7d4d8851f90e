// SPDX-License-Identifier: Apache-2.0
//
// Filters over sequences and mappings. Those that Python writes as generators give one-shot
// iterators here too, so that a second loop over them is as empty as in jinja.
#include <string.h>

#include "template/jinja_eval.h"

// --- attribute paths: "a.b.0", or a bare number ---
static int get_path(msgl_jctx *c, const msgl_jval *item, const msgl_jval *path,
                    const msgl_jval *dflt, msgl_jval *out)
{
    *out = *item;
    if (path->type == MSGL_J_UNSET || path->type == MSGL_J_NONE) return 0;
    if (path->type != MSGL_J_STR) {
        const msgl_jval v = *out;
        MSGL_JTRY(msgl__jgetitem(c, &v, path, out));
        if (dflt != NULL && dflt->type > MSGL_J_NONE && out->type == MSGL_J_UNDEF) *out = *dflt;
        return 0;
    }
    msgl_jstr *s = path->as.s;
    for (size_t from = 0; from <= s->len;) {
        const char *dot = from < s->len ? memchr(s->data + from, '.', s->len - from) : NULL;
        const size_t to = dot != NULL ? (size_t)(dot - s->data) : s->len;
        msgl_jstr *part;
        MSGL_JTRY(msgl__jstr_sub(c, s, from, to - from, &part));
        msgl_jval key = msgl__jstrval(part);
        bool digits = part->len > 0 && part->len < 10;
        int64_t n = 0;
        for (size_t i = 0; i < part->len && digits; i++) {
            digits = part->data[i] >= '0' && part->data[i] <= '9';
            n = n * 10 + (part->data[i] - '0');
        }
        if (digits) key = msgl__jint(n);
        const msgl_jval v = *out;
        MSGL_JTRY(msgl__jgetitem(c, &v, &key, out));
        if (dflt != NULL && dflt->type > MSGL_J_NONE && out->type == MSGL_J_UNDEF) *out = *dflt;
        from = to + 1;
    }
    return 0;
}

static int fold_case(msgl_jctx *c, bool case_sensitive, msgl_jval *v)
{
    if (case_sensitive || v->type != MSGL_J_STR) return 0;
    const msgl_jcall none = {0};
    const msgl_jval s = *v;
    return msgl__jbuiltin_call(c, msgl__jstr_method_find("lower", 5), &s, &none, v);
}

static int new_list(msgl_jctx *c, const msgl_jval *items, size_t n, msgl_jval *out)
{
    msgl_jlist *l;
    MSGL_JTRY(msgl__jlist_new(c, n, &l));
    if (n > 0) memcpy(l->items, items, n * sizeof *items);
    *out = (msgl_jval){.type = MSGL_J_LIST, .as.l = l};
    return 0;
}

// --- sorting: stable, bottom-up merge over (key, item) pairs ---
typedef struct pair {
    msgl_jval key, item;
} pair;

static int before(msgl_jctx *c, const pair *a, const pair *b, bool reverse, bool *out)
{
    int order;
    MSGL_JTRY(msgl__jcompare(c, &a->key, &b->key, "<", &order));
    *out = reverse ? order == 1 : order == -1;
    return 0;
}

static int sort_pairs(msgl_jctx *c, pair *a, size_t n, bool reverse, pair **out)
{
    pair *b = msgl__jctx_alloc(c, n * sizeof *b);
    if (b == NULL) return msgl__jctx_nomem(c, n * sizeof *b);
    for (size_t w = 1; w < n; w *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * w) {
            const size_t mid = lo + w < n ? lo + w : n, hi = mid + w < n ? mid + w : n;
            size_t i = lo, j = mid;
            for (size_t k = lo; k < hi; k++) {
                bool right = i >= mid;
                if (!right && j < hi) MSGL_JTRY(before(c, &a[j], &a[i], reverse, &right));
                b[k] = right ? a[j++] : a[i++];
            }
        }
        pair *t = a;
        a = b;
        b = t;
    }
    *out = a;
    return 0;
}

static int new_pairs(msgl_jctx *c, size_t n, pair **out)
{
    if (n > SIZE_MAX / sizeof **out) return msgl__jctx_nomem(c, n);
    *out = msgl__jctx_alloc(c, n * sizeof **out);
    return *out == NULL ? msgl__jctx_nomem(c, n * sizeof **out) : 0;
}

static int items_of_pairs(msgl_jctx *c, const pair *p, size_t n, msgl_jval *out)
{
    msgl_jlist *l;
    MSGL_JTRY(msgl__jlist_new(c, n, &l));
    for (size_t i = 0; i < n; i++) l->items[i] = p[i].item;
    *out = (msgl_jval){.type = MSGL_J_LIST, .as.l = l};
    return 0;
}

// The key of sort: a list of the values at `attribute`, which may name several with commas. A list
// even for one value: equal values then need no order, as in jinja.
static int sort_key(msgl_jctx *c, const msgl_jval *item, const msgl_jval *attr, bool sensitive,
                    msgl_jval *out)
{
    const msgl_jstr comma = {.data = ",", .len = 1, .chars = 1};
    const msgl_jval sep = msgl__jstrval((msgl_jstr *)&comma);
    const msgl_jcall call = {.pos = (msgl_jval *)&sep, .npos = 1};
    msgl_jval parts, keys;
    if (attr->type == MSGL_J_STR) {
        MSGL_JTRY(msgl__jbuiltin_call(c, msgl__jstr_method_find("split", 5), attr, &call, &parts));
    } else {
        MSGL_JTRY(new_list(c, attr, 1, &parts));
    }
    MSGL_JTRY(new_list(c, parts.as.l->items, parts.as.l->len, &keys));
    for (size_t i = 0; i < keys.as.l->len; i++) {
        MSGL_JTRY(get_path(c, item, &parts.as.l->items[i], NULL, &keys.as.l->items[i]));
        MSGL_JTRY(fold_case(c, sensitive, &keys.as.l->items[i]));
    }
    *out = keys;
    return 0;
}

// sort(reverse=False, case_sensitive=False, attribute=None)
MSGL_JBUILTIN(f_sort)
{
    msgl_jval *items;
    size_t n;
    pair *p;
    MSGL_JTRY(msgl__jto_array(c, self, &items, &n));
    MSGL_JTRY(new_pairs(c, n, &p));
    for (size_t i = 0; i < n; i++) {
        p[i].item = items[i];
        MSGL_JTRY(sort_key(c, &items[i], &arg[2], msgl__jarg_true(&arg[1]), &p[i].key));
    }
    MSGL_JTRY(sort_pairs(c, p, n, msgl__jarg_true(&arg[0]), &p));
    return items_of_pairs(c, p, n, out);
}

// dictsort(case_sensitive=False, by="key", reverse=False)
MSGL_JBUILTIN(f_dictsort)
{
    msgl_jstr *by = NULL;
    if (self->type == MSGL_J_UNDEF) return msgl__jundef_fail(c, self->as.u);
    if (self->type != MSGL_J_DICT) {
        return msgl__jctx_fail(c, "'%s' object has no attribute 'items'", msgl__jtype_name(self));
    }
    if (arg[1].type != MSGL_J_UNSET) MSGL_JTRY(msgl__jarg_str(c, &arg[1], "dictsort", &by));
    const bool by_value = by != NULL && msgl__jstr_is(by, "value");
    if (by != NULL && !by_value && !msgl__jstr_is(by, "key")) {
        return msgl__jctx_fail(c, "You can only sort by either \"key\" or \"value\"");
    }
    const msgl_jdict *d = self->as.d;
    pair *p;
    MSGL_JTRY(new_pairs(c, d->len, &p));
    for (size_t i = 0; i < d->len; i++) {
        p[i].key = by_value ? d->vals[i] : d->keys[i];
        MSGL_JTRY(fold_case(c, msgl__jarg_true(&arg[0]), &p[i].key));
        MSGL_JTRY(msgl__jpair(c, d->keys[i], d->vals[i], &p[i].item));
    }
    MSGL_JTRY(sort_pairs(c, p, d->len, msgl__jarg_true(&arg[2]), &p));
    return items_of_pairs(c, p, d->len, out);
}

// groupby(attribute, default=None, case_sensitive=False): list of (key, items)
MSGL_JBUILTIN(f_groupby)
{
    msgl_jval *items;
    size_t n, groups = 0;
    pair *p;
    MSGL_JTRY(msgl__jto_array(c, self, &items, &n));
    MSGL_JTRY(new_pairs(c, n, &p));
    for (size_t i = 0; i < n; i++) {
        p[i].item = items[i];
        MSGL_JTRY(get_path(c, &items[i], &arg[0], &arg[1], &p[i].key));
        MSGL_JTRY(fold_case(c, msgl__jarg_true(&arg[2]), &p[i].key));
    }
    MSGL_JTRY(sort_pairs(c, p, n, false, &p));
    msgl_jlist *l;
    MSGL_JTRY(msgl__jlist_new(c, n, &l));
    for (size_t i = 0; i < n;) {
        size_t end = i;
        bool same = true;
        msgl_jval key, list;
        while (end < n && same) {
            if (++end < n) MSGL_JTRY(msgl__jequal(c, &p[i].key, &p[end].key, &same));
        }
        MSGL_JTRY(get_path(c, &p[i].item, &arg[0], &arg[1], &key));
        MSGL_JTRY(items_of_pairs(c, p + i, end - i, &list));
        MSGL_JTRY(msgl__jpair(c, key, list, &l->items[groups++]));
        i = end;
    }
    l->len = groups;
    *out = (msgl_jval){.type = MSGL_J_LIST, .as.l = l};
    return 0;
}

static int extreme(msgl_jctx *c, const msgl_jval *self, const msgl_jval *arg, bool max,
                   msgl_jval *out)
{
    msgl_jval *items, best = {0};
    size_t n, at = 0;
    MSGL_JTRY(msgl__jto_array(c, self, &items, &n));
    if (n == 0) {
        return msgl__jundef_new(c, "No aggregated item, sequence was empty.", msgl__jnone(), NULL,
                                out);
    }
    for (size_t i = 0; i < n; i++) {
        msgl_jval key;
        int order = max ? 1 : -1;
        MSGL_JTRY(get_path(c, &items[i], &arg[1], NULL, &key));
        MSGL_JTRY(fold_case(c, msgl__jarg_true(&arg[0]), &key));
        if (i > 0) MSGL_JTRY(msgl__jcompare(c, &key, &best, max ? ">" : "<", &order));
        if (order == (max ? 1 : -1)) {
            best = key;
            at = i;
        }
    }
    *out = items[at];
    return 0;
}

MSGL_JBUILTIN(f_min)
{
    return extreme(c, self, arg, false, out);
}
MSGL_JBUILTIN(f_max)
{
    return extreme(c, self, arg, true, out);
}

// unique(case_sensitive=False, attribute=None)
MSGL_JBUILTIN(f_unique)
{
    msgl_jval *items;
    size_t n;
    msgl_jdict *seen;
    MSGL_JTRY(msgl__jto_array(c, self, &items, &n));
    MSGL_JTRY(msgl__jdict_new(c, 0, &seen));
    for (size_t i = 0; i < n; i++) {
        msgl_jval key, *old;
        MSGL_JTRY(get_path(c, &items[i], &arg[1], NULL, &key));
        MSGL_JTRY(fold_case(c, msgl__jarg_true(&arg[0]), &key));
        MSGL_JTRY(msgl__jdict_get(c, seen, &key, &old));
        if (old == NULL) MSGL_JTRY(msgl__jdict_set(c, seen, key, items[i]));
    }
    return msgl__jgen_new(c, seen->vals, seen->len, out);
}

// sum(attribute=None, start=0)
MSGL_JBUILTIN(f_sum)
{
    msgl_jval *items;
    size_t n;
    MSGL_JTRY(msgl__jto_array(c, self, &items, &n));
    *out = arg[1].type == MSGL_J_UNSET ? msgl__jint(0) : arg[1];
    if (out->type == MSGL_J_STR) {
        return msgl__jctx_fail(c, "sum() can't sum strings [use ''.join(seq) instead]");
    }
    for (size_t i = 0; i < n; i++) {
        msgl_jval v;
        const msgl_jval total = *out;
        MSGL_JTRY(msgl__jctx_steps(c, 1));
        MSGL_JTRY(get_path(c, &items[i], &arg[0], NULL, &v));
        MSGL_JTRY(msgl__jbinary(c, MSGL_JOP_ADD, &total, &v, out));
    }
    return 0;
}

// join(d="", attribute=None)
MSGL_JBUILTIN(f_join)
{
    msgl_jval *items;
    size_t n;
    msgl_jbuf *b;
    msgl_jstr *sep = NULL, *s;
    MSGL_JTRY(msgl__jto_array(c, self, &items, &n));
    MSGL_JTRY(msgl__jbuf_new(c, 0, &b));
    if (arg[0].type != MSGL_J_UNSET) MSGL_JTRY(msgl__jto_str(c, &arg[0], &sep));
    for (size_t i = 0; i < n; i++) {
        msgl_jval v;
        MSGL_JTRY(msgl__jctx_steps(c, 1));
        MSGL_JTRY(get_path(c, &items[i], &arg[1], NULL, &v));
        if (i > 0 && sep != NULL) MSGL_JTRY(msgl__jbuf_add_jstr(b, sep));
        MSGL_JTRY(msgl__jbuf_add_str_of(b, &v));
    }
    MSGL_JTRY(msgl__jbuf_finish(b, &s));
    *out = msgl__jstrval(s);
    return 0;
}

MSGL_JBUILTIN(f_first)
{
    msgl_jiter it;
    MSGL_JTRY(msgl__jiter_init(c, self, &it));
    MSGL_JTRY(msgl__jiter_next(c, &it, out));
    if (out->type != MSGL_J_UNSET) return 0;
    return msgl__jundef_new(c, "No first item, sequence was empty.", msgl__jnone(), NULL, out);
}

MSGL_JBUILTIN(f_last)
{
    msgl_jval *items;
    size_t n;
    if (self->type == MSGL_J_GEN) {
        return msgl__jctx_fail(c, "'generator' object is not reversible");
    }
    MSGL_JTRY(msgl__jto_array(c, self, &items, &n));
    if (n == 0) {
        return msgl__jundef_new(c, "No last item, sequence was empty.", msgl__jnone(), NULL, out);
    }
    *out = items[n - 1];
    return 0;
}

MSGL_JBUILTIN(f_list)
{
    msgl_jval *items;
    size_t n;
    MSGL_JTRY(msgl__jto_array(c, self, &items, &n));
    MSGL_JTRY(new_list(c, items, n, out));
    if (self->type == MSGL_J_LIST || self->type == MSGL_J_TUPLE) {
        out->as.l->untrusted = self->as.l->untrusted;
    }
    return 0;
}

MSGL_JBUILTIN(f_reverse)
{
    if (self->type == MSGL_J_STR) {
        const msgl_jval none = msgl__jnone(), back = msgl__jint(-1);
        return msgl__jslice(c, self, &none, &none, &back, out);
    }
    msgl_jval *items, list;
    size_t n;
    MSGL_JTRY(msgl__jto_array(c, self, &items, &n));
    MSGL_JTRY(new_list(c, items, n, &list));
    for (size_t i = 0; i < n; i++) list.as.l->items[i] = items[n - 1 - i];
    // reversed() of a sequence is one-shot; of a generator jinja makes a list.
    if (self->type == MSGL_J_GEN) {
        *out = list;
        return 0;
    }
    return msgl__jgen_new(c, list.as.l->items, n, out);
}

MSGL_JBUILTIN(f_items)
{
    if (self->type == MSGL_J_UNDEF) return msgl__jgen_new(c, NULL, 0, out);
    if (self->type != MSGL_J_DICT) {
        return msgl__jctx_fail(c, "Can only get item pairs from a mapping.");
    }
    msgl_jview v = {MSGL_JVIEW_ITEMS, self->as.d};
    const msgl_jval view = {.type = MSGL_J_VIEW, .as.v = &v};
    msgl_jval *items;
    size_t n;
    MSGL_JTRY(msgl__jto_array(c, &view, &items, &n));
    return msgl__jgen_new(c, items, n, out);
}

// batch(linecount, fill_with=None): rows of that many items
MSGL_JBUILTIN(f_batch)
{
    msgl_jval *items;
    size_t n;
    int64_t size;
    MSGL_JTRY(msgl__jto_array(c, self, &items, &n));
    MSGL_JTRY(msgl__jarg_int(c, &arg[0], 0, &size));
    const size_t row = size < 1 ? n : (size_t)size; // never equal to a row's length in jinja
    const bool fill = arg[1].type != MSGL_J_UNSET && arg[1].type != MSGL_J_NONE;
    msgl_jlist *rows;
    MSGL_JTRY(msgl__jlist_new(c, n == 0 ? 0 : (n - 1) / row + 1, &rows));
    for (size_t r = 0; r < rows->len; r++) {
        const size_t from = r * row, have = n - from < row ? n - from : row;
        msgl_jlist *l;
        if (row > c->max_string) return msgl__jctx_limit(c, "a row of %zu elements", row);
        MSGL_JTRY(msgl__jctx_steps(c, fill ? row : have));
        MSGL_JTRY(msgl__jlist_new(c, fill ? row : have, &l));
        for (size_t i = 0; i < l->len; i++) l->items[i] = i < have ? items[from + i] : arg[1];
        rows->items[r] = (msgl_jval){.type = MSGL_J_LIST, .as.l = l};
    }
    return msgl__jgen_new(c, rows->items, rows->len, out);
}

// slice(slices, fill_with=None): that many columns
MSGL_JBUILTIN(f_slice)
{
    msgl_jval *items;
    size_t n, at = 0;
    int64_t want;
    MSGL_JTRY(msgl__jto_array(c, self, &items, &n));
    MSGL_JTRY(msgl__jarg_int(c, &arg[0], 0, &want));
    if (want == 0) return msgl__jctx_fail(c, "integer division or modulo by zero");
    const size_t k = want > 0 ? (size_t)want : 0;
    const bool fill = arg[1].type != MSGL_J_UNSET && arg[1].type != MSGL_J_NONE;
    msgl_jlist *cols;
    MSGL_JTRY(msgl__jctx_steps(c, k));
    MSGL_JTRY(msgl__jlist_new(c, k, &cols));
    for (size_t i = 0; i < k; i++) {
        const bool extra = i < n % k;
        const size_t have = n / k + extra;
        msgl_jlist *l;
        MSGL_JTRY(msgl__jlist_new(c, have + (fill && !extra), &l));
        if (have > 0) memcpy(l->items, items + at, have * sizeof *items);
        if (fill && !extra) l->items[have] = arg[1];
        at += have;
        cols->items[i] = (msgl_jval){.type = MSGL_J_LIST, .as.l = l};
    }
    return msgl__jgen_new(c, cols->items, k, out);
}

MSGL_JBUILTIN(f_attr)
{
    msgl_jstr *name;
    MSGL_JTRY(msgl__jarg_str(c, &arg[0], "attr", &name));
    if (self->type == MSGL_J_DICT && msgl__jmethod_find(self, name->data, name->len) == NULL) {
        // Only attributes, never keys.
        return msgl__jundef_new(c, NULL, arg[0], msgl__jobject_name(self), out);
    }
    return msgl__jgetattr(c, self, name, out);
}

// --- map, select, reject and their attr forms ---
static int named(msgl_jctx *c, const msgl_jval *name, bool filter, const msgl_jbuiltin **out)
{
    msgl_jstr *s;
    MSGL_JTRY(msgl__jarg_str(c, name, filter ? "filter name" : "test name", &s));
    *out = filter ? msgl__jfilter_find(s->data, s->len) : msgl__jtest_find(s->data, s->len);
    if (*out != NULL) return 0;
    return msgl__jctx_fail(c, "No %s named '%.*s'.", filter ? "filter" : "test",
                           (int)(s->len < 60 ? s->len : 60), s->data);
}

// map(attribute=..., default=...) or map("filter", args...)
MSGL_JBUILTIN(f_map)
{
    msgl_jval *items, attr = {0}, dflt = {0};
    size_t n;
    if (!msgl__jtruth(self)) return msgl__jgen_new(c, NULL, 0, out);
    const msgl_jbuiltin *fn = NULL;
    msgl_jcall rest = *call;
    if (call->npos > 0) {
        MSGL_JTRY(named(c, &call->pos[0], true, &fn));
        rest.pos++;
        rest.npos--;
    } else {
        for (size_t i = 0; i < call->nkw; i++) {
            const bool is_attr = msgl__jstr_is(call->kw_names[i], "attribute");
            if (!is_attr && !msgl__jstr_is(call->kw_names[i], "default")) {
                return msgl__jctx_fail(c, "map: unexpected keyword argument");
            }
            *(is_attr ? &attr : &dflt) = call->kw[i];
        }
        if (attr.type == MSGL_J_UNSET) return msgl__jctx_fail(c, "map requires a filter argument");
    }
    MSGL_JTRY(msgl__jto_array(c, self, &items, &n));
    msgl_jval list;
    MSGL_JTRY(new_list(c, items, n, &list));
    for (size_t i = 0; i < n; i++) {
        msgl_jval *to = &list.as.l->items[i];
        MSGL_JTRY(fn != NULL ? msgl__jbuiltin_call(c, fn, &items[i], &rest, to)
                             : get_path(c, &items[i], &attr, &dflt, to));
    }
    return msgl__jgen_new(c, list.as.l->items, n, out);
}

static int select_items(msgl_jctx *c, const msgl_jval *self, const msgl_jcall *call, bool by_attr,
                        bool keep, msgl_jval *out)
{
    msgl_jval *items;
    size_t n, kept = 0;
    if (!msgl__jtruth(self)) return msgl__jgen_new(c, NULL, 0, out);
    msgl_jval attr = {0};
    msgl_jcall rest = *call;
    if (by_attr) {
        if (rest.npos == 0) return msgl__jctx_fail(c, "Missing parameter for attribute name");
        attr = *rest.pos++;
        rest.npos--;
    }
    const msgl_jbuiltin *test = NULL;
    if (rest.npos > 0) {
        MSGL_JTRY(named(c, &rest.pos[0], false, &test));
        rest.pos++;
        rest.npos--;
    }
    MSGL_JTRY(msgl__jto_array(c, self, &items, &n));
    msgl_jval list;
    MSGL_JTRY(new_list(c, NULL, 0, &list));
    MSGL_JTRY(msgl__jlist_new(c, n, &list.as.l));
    for (size_t i = 0; i < n; i++) {
        msgl_jval v, yes;
        MSGL_JTRY(msgl__jctx_steps(c, 1));
        MSGL_JTRY(get_path(c, &items[i], &attr, NULL, &v));
        yes = v;
        if (test != NULL) MSGL_JTRY(msgl__jbuiltin_call(c, test, &v, &rest, &yes));
        if (msgl__jtruth(&yes) == keep) list.as.l->items[kept++] = items[i];
    }
    return msgl__jgen_new(c, list.as.l->items, kept, out);
}

MSGL_JBUILTIN(f_select)
{
    return select_items(c, self, call, false, true, out);
}
MSGL_JBUILTIN(f_reject)
{
    return select_items(c, self, call, false, false, out);
}
MSGL_JBUILTIN(f_selectattr)
{
    return select_items(c, self, call, true, true, out);
}
MSGL_JBUILTIN(f_rejectattr)
{
    return select_items(c, self, call, true, false, out);
}

const msgl_jbuiltin msgl__jfilters_seq[] = {
    {"join", "?d ?attribute", f_join},
    {"first", "", f_first},
    {"last", "", f_last},
    {"list", "", f_list},
    {"reverse", "", f_reverse},
    {"items", "", f_items},
    {"map", "*", f_map},
    {"select", "*", f_select},
    {"reject", "*", f_reject},
    {"selectattr", "*", f_selectattr},
    {"rejectattr", "*", f_rejectattr},
    {"sort", "?reverse ?case_sensitive ?attribute", f_sort},
    {"dictsort", "?case_sensitive ?by ?reverse", f_dictsort},
    {"groupby", "attribute ?default ?case_sensitive", f_groupby},
    {"unique", "?case_sensitive ?attribute", f_unique},
    {"min", "?case_sensitive ?attribute", f_min},
    {"max", "?case_sensitive ?attribute", f_max},
    {"sum", "?attribute ?start", f_sum},
    {"batch", "linecount ?fill_with", f_batch},
    {"slice", "slices ?fill_with", f_slice},
    {"attr", "name", f_attr},
};
const size_t msgl__jfilters_seq_len = MSGL_COUNT(msgl__jfilters_seq);
