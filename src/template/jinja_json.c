// SPDX-License-Identifier: Apache-2.0
//
// JSON both ways: the client's variables to values, and the tojson filter, which prints as Python's
// json.dumps does.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "template/jinja_builtins.h"
#include "template/jinja_string.h"
#include "utils/json.h"
#include "utils/json_write.h"

// --- from JSON ---
// A role that every chat API knows. Templates glue it into control tokens ("<|" + role + "|>"), so
// these few words count as the template's own; any other role stays client text.
static bool is_known_role(const char *key, const char *s, size_t len)
{
    static const char *const known[] = {"system", "user",      "assistant",
                                        "tool",   "developer", "function"};
    if (strcmp(key, "role") != 0) return false;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strlen(known[i]) == len && memcmp(known[i], s, len) == 0) return true;
    }
    return false;
}

static int array_from_json(msgl_jctx *c, json_t *j, msgl_jfrom untrusted, msgl_jval *out)
{
    msgl_jlist *l;
    MSGL_JTRY(msgl__jlist_new(c, json_array_size(j), &l));
    l->untrusted = untrusted;
    for (size_t i = 0; i < l->len; i++) {
        MSGL_JTRY(msgl__jfrom_json(c, json_array_get(j, i), untrusted, &l->items[i]));
    }
    *out = (msgl_jval){.type = MSGL_J_LIST, .as.l = l};
    return 0;
}

static int object_from_json(msgl_jctx *c, json_t *j, msgl_jfrom untrusted, msgl_jval *out)
{
    msgl_jdict *d;
    MSGL_JTRY(msgl__jdict_new(c, json_object_size(j), &d));
    d->untrusted = untrusted;
    for (void *it = json_object_iter(j); it != NULL; it = json_object_iter_next(j, it)) {
        const char *key = json_object_iter_key(it);
        json_t *val = json_object_iter_value(it);
        msgl_jstr *k;
        msgl_jval v;
        MSGL_JTRY(msgl__jstr_ref(c, key, strlen(key), untrusted, &k));
        const bool role = json_is_string(val) &&
                          is_known_role(key, json_string_value(val), json_string_length(val));
        MSGL_JTRY(msgl__jfrom_json(c, val, role ? MSGL_JFROM_TEMPLATE : untrusted, &v));
        MSGL_JTRY(msgl__jdict_set(c, d, msgl__jstrval(k), v));
    }
    *out = (msgl_jval){.type = MSGL_J_DICT, .as.d = d};
    return 0;
}

int msgl__jfrom_json(msgl_jctx *c, json_t *j, msgl_jfrom untrusted, msgl_jval *out)
{
    MSGL_JTRY(msgl__jctx_steps(c, 1));
    msgl_jstr *s;
    const char *digits = msgl__json_digits(j);
    int rc = 0;
    switch (json_typeof(j)) {
    case JSON_NULL: *out = msgl__jnone(); return 0;
    case JSON_TRUE:
    case JSON_FALSE: *out = msgl__jbool(json_is_true(j)); return 0;
    case JSON_INTEGER: *out = msgl__jint(json_integer_value(j)); return 0;
    case JSON_REAL:
        *out = msgl__jfloat(json_real_value(j));
        if (digits == NULL) return 0;
        out->type = MSGL_J_BIG;
        return msgl__jstr_ref(c, digits, strlen(digits), untrusted, &out->as.s);
    case JSON_STRING:
        MSGL_JTRY(msgl__jstr_ref(c, json_string_value(j), json_string_length(j), untrusted, &s));
        *out = msgl__jstrval(s);
        return 0;
    case JSON_ARRAY:
    case JSON_OBJECT:
        MSGL_JTRY(msgl__jctx_enter(c));
        rc = json_is_array(j) ? array_from_json(c, j, untrusted, out)
                              : object_from_json(c, j, untrusted, out);
        c->depth--;
    }
    return rc;
}

// --- tojson ---
typedef struct dumper {
    msgl_jctx *c;
    msgl_jbuf *b;
    bool ascii, sort, pretty;
    msgl_jstr *indent; // one level; only when pretty
    msgl_jstr *item_sep, *key_sep;
} dumper;

static int dump_value(dumper *d, const msgl_jval *v, msgl_jfrom untrusted, size_t level);

static int dump_escape(dumper *d, int32_t cp, msgl_jfrom untrusted)
{
    char escape[12];
    return msgl__jbuf_add(d->b, escape, msgl__json_escape((uint32_t)cp, d->ascii, escape),
                          untrusted);
}

static int dump_string(dumper *d, const msgl_jstr *s, msgl_jfrom untrusted)
{
    const msgl_jfrom u = untrusted | msgl__jstr_any_untrusted(s);
    MSGL_JTRY(msgl__jbuf_add(d->b, "\"", 1, u));
    size_t run = 0;
    for (size_t i = 0; i < s->len;) {
        int32_t cp;
        const size_t n = msgl__jutf8_get(s->data + i, s->data + s->len, &cp);
        if (cp < 0x20 || cp == '"' || cp == '\\' || (d->ascii && cp >= 0x7f)) {
            MSGL_JTRY(msgl__jbuf_add_sub(d->b, s, run, i - run));
            MSGL_JTRY(msgl__jctx_steps(d->c, 2));
            MSGL_JTRY(dump_escape(d, cp, msgl__jstr_untrusted_at(s, i)));
            run = i + n;
        }
        i += n;
    }
    MSGL_JTRY(msgl__jbuf_add_sub(d->b, s, run, s->len - run));
    MSGL_JTRY(msgl__jctx_chars(d->c, s->len));
    return msgl__jbuf_add(d->b, "\"", 1, u);
}

static int dump_newline(dumper *d, size_t level, msgl_jfrom untrusted)
{
    if (!d->pretty) return 0;
    MSGL_JTRY(msgl__jbuf_add(d->b, "\n", 1, untrusted));
    return msgl__jbuf_add_repeat(d->b, d->indent, level);
}

static int dump_separator(dumper *d, size_t i, size_t level, msgl_jfrom untrusted)
{
    if (i > 0) {
        MSGL_JTRY(msgl__jbuf_add(d->b, d->item_sep->data, d->item_sep->len, untrusted));
    }
    return dump_newline(d, level + 1, untrusted);
}

static int dump_list(dumper *d, const msgl_jlist *l, size_t level)
{
    const msgl_jfrom u = l->untrusted;
    MSGL_JTRY(msgl__jbuf_add(d->b, "[", 1, u));
    for (size_t i = 0; i < l->len; i++) {
        MSGL_JTRY(dump_separator(d, i, level, u));
        MSGL_JTRY(dump_value(d, &l->items[i], u, level + 1));
    }
    if (l->len > 0) MSGL_JTRY(dump_newline(d, level, u));
    return msgl__jbuf_add(d->b, "]", 1, u);
}

static int dump_number(dumper *d, const msgl_jval *v, msgl_jfrom untrusted)
{
    char text[MSGL_JFLOAT_MAX];
    size_t n;
    MSGL_JTRY(msgl__jctx_number(d->c, v));
    if (v->type == MSGL_J_BIG) {
        return msgl__jbuf_add(d->b, v->as.s->data, v->as.s->len, untrusted);
    }
    if (v->type == MSGL_J_INT) {
        n = (size_t)snprintf(text, sizeof text, "%lld", (long long)v->as.i);
    } else if (isnan(v->as.f)) {
        n = (size_t)snprintf(text, sizeof text, "NaN");
    } else if (isinf(v->as.f)) {
        n = (size_t)snprintf(text, sizeof text, v->as.f < 0 ? "-Infinity" : "Infinity");
    } else {
        n = msgl__jfloat_repr(v->as.f, text);
    }
    return msgl__jbuf_add(d->b, text, n, untrusted);
}

static int dump_key(dumper *d, const msgl_jval *k, msgl_jfrom untrusted)
{
    if (k->type == MSGL_J_STR) return dump_string(d, k->as.s, untrusted);
    if (k->type != MSGL_J_INT && k->type != MSGL_J_BIG && k->type != MSGL_J_FLOAT &&
        k->type != MSGL_J_BOOL && k->type != MSGL_J_NONE) {
        return msgl__jctx_fail(d->c, "keys must be str, int, float, bool or None, not %s",
                               msgl__jtype_name(k));
    }
    MSGL_JTRY(msgl__jbuf_add(d->b, "\"", 1, untrusted));
    MSGL_JTRY(dump_value(d, k, untrusted, 0));
    return msgl__jbuf_add(d->b, "\"", 1, untrusted);
}

// Insertion sort would be quadratic in the client's keys: bottom-up merge of entry numbers.
static int sorted_order(dumper *d, const msgl_jdict *dict, size_t **out)
{
    const size_t n = dict->len;
    size_t *a = msgl__jctx_alloc(d->c, n * sizeof *a), *b = msgl__jctx_alloc(d->c, n * sizeof *b);
    if (a == NULL || b == NULL) return msgl__jctx_nomem(d->c, n * sizeof *a);
    for (size_t i = 0; i < n; i++) a[i] = i;
    for (size_t w = 1; w < n; w *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * w) {
            size_t i = lo, mid = lo + w < n ? lo + w : n, j = mid, hi = mid + w < n ? mid + w : n;
            for (size_t k = lo; k < hi; k++) {
                int order = -1;
                if (i < mid && j < hi) {
                    MSGL_JTRY(
                        msgl__jcompare(d->c, &dict->keys[a[j]], &dict->keys[a[i]], "<", &order));
                    order = order == -1 ? 1 : -1;
                }
                b[k] = i < mid && (j >= hi || order <= 0) ? a[i++] : a[j++];
            }
        }
        size_t *t = a;
        a = b;
        b = t;
    }
    *out = a;
    return 0;
}

static int dump_dict(dumper *d, const msgl_jdict *dict, size_t level)
{
    const msgl_jfrom u = dict->untrusted;
    size_t *order = NULL;
    if (d->sort && dict->len > 1) MSGL_JTRY(sorted_order(d, dict, &order));
    MSGL_JTRY(msgl__jbuf_add(d->b, "{", 1, u));
    for (size_t i = 0; i < dict->len; i++) {
        const size_t e = order != NULL ? order[i] : i;
        MSGL_JTRY(dump_separator(d, i, level, u));
        MSGL_JTRY(dump_key(d, &dict->keys[e], u));
        MSGL_JTRY(msgl__jbuf_add(d->b, d->key_sep->data, d->key_sep->len, u));
        MSGL_JTRY(dump_value(d, &dict->vals[e], u, level + 1));
    }
    if (dict->len > 0) MSGL_JTRY(dump_newline(d, level, u));
    return msgl__jbuf_add(d->b, "}", 1, u);
}

static int dump_value(dumper *d, const msgl_jval *v, msgl_jfrom untrusted, size_t level)
{
    MSGL_JTRY(msgl__jctx_steps(d->c, 1));
    int rc;
    switch (v->type) {
    case MSGL_J_NONE: return msgl__jbuf_add(d->b, "null", 4, untrusted);
    case MSGL_J_BOOL:
        return msgl__jbuf_add(d->b, v->as.b ? "true" : "false", v->as.b ? 4 : 5, untrusted);
    case MSGL_J_INT:
    case MSGL_J_BIG:
    case MSGL_J_FLOAT: return dump_number(d, v, untrusted);
    case MSGL_J_STR: return dump_string(d, v->as.s, untrusted);
    case MSGL_J_LIST:
    case MSGL_J_TUPLE:
    case MSGL_J_DICT:
        MSGL_JTRY(msgl__jctx_enter(d->c));
        rc = v->type == MSGL_J_DICT ? dump_dict(d, v->as.d, level) : dump_list(d, v->as.l, level);
        d->c->depth--;
        return rc;
    default:
        return msgl__jctx_fail(d->c, "Object of type %s is not JSON serializable",
                               msgl__jtype_name(v));
    }
}

static int literal(msgl_jctx *c, const char *text, msgl_jstr **out)
{
    return msgl__jstr_ref(c, text, strlen(text), false, out);
}

static int read_indent(dumper *d, const msgl_jval *arg)
{
    int64_t n = 0;
    if (arg->type == MSGL_J_UNSET || arg->type == MSGL_J_NONE) return 0;
    d->pretty = true;
    if (arg->type == MSGL_J_STR) {
        d->indent = arg->as.s;
        return 0;
    }
    MSGL_JTRY(msgl__jarg_int(d->c, arg, 0, &n));
    msgl_jstr *blank;
    msgl_jbuf *b;
    MSGL_JTRY(literal(d->c, " ", &blank));
    MSGL_JTRY(msgl__jbuf_new(d->c, 0, &b));
    MSGL_JTRY(msgl__jbuf_add_repeat(b, blank, n > 0 ? (size_t)n : 0));
    return msgl__jbuf_finish(b, &d->indent);
}

static int read_separators(dumper *d, const msgl_jval *arg)
{
    MSGL_JTRY(literal(d->c, d->pretty ? "," : ", ", &d->item_sep));
    MSGL_JTRY(literal(d->c, ": ", &d->key_sep));
    if (arg->type == MSGL_J_UNSET || arg->type == MSGL_J_NONE) return 0;
    msgl_jval *items;
    size_t n;
    MSGL_JTRY(msgl__jto_array(d->c, arg, &items, &n));
    if (n != 2) return msgl__jctx_fail(d->c, "tojson: separators needs two strings, got %zu", n);
    MSGL_JTRY(msgl__jarg_str(d->c, &items[0], "tojson: separators", &d->item_sep));
    return msgl__jarg_str(d->c, &items[1], "tojson: separators", &d->key_sep);
}

// tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)
int msgl__jtojson(msgl_jctx *c, const msgl_jval *v, const msgl_jval *arg, msgl_jval *out)
{
    dumper d = {.c = c};
    d.ascii = msgl__jarg_true(&arg[0]);
    d.sort = msgl__jarg_true(&arg[3]);
    MSGL_JTRY(read_indent(&d, &arg[1]));
    MSGL_JTRY(read_separators(&d, &arg[2]));
    MSGL_JTRY(msgl__jbuf_new(c, 64, &d.b));
    MSGL_JTRY(dump_value(&d, v, false, 0));
    msgl_jstr *s;
    MSGL_JTRY(msgl__jbuf_finish(d.b, &s));
    *out = msgl__jstrval(s);
    return 0;
}
