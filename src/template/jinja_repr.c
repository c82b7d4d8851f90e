// SPDX-License-Identifier: Apache-2.0
//
// Python's str() and repr() of every value.
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "template/jinja_ast.h"
#include "template/jinja_string.h"

// Digits and decimal exponent of the shortest text that reads back as f (f finite, not 0):
// value = 0.d1d2d3... * 10^exp10.
static int shortest_digits(double f, char digits[24], int *exp10)
{
    char buf[40];
    // What fewer than 15 digits say, 15 say with zeros behind it; but not of a subnormal number,
    // which has fewer bits.
    for (int prec = fabs(f) < DBL_MIN ? 0 : 14; prec < 17; prec++) {
        snprintf(buf, sizeof buf, "%.*e", prec, fabs(f));
        if (prec == 16 || strtod(buf, NULL) == fabs(f)) break;
    }
    const char *e = strchr(buf, 'e');
    int n = 0;
    for (const char *p = buf; p < e; p++) {
        if (*p >= '0' && *p <= '9') digits[n++] = *p;
    }
    while (n > 1 && digits[n - 1] == '0') n--;
    *exp10 = (int)strtol(e + 1, NULL, 10) + 1;
    return n;
}

size_t msgl__jfloat_repr(double f, char buf[MSGL_JFLOAT_MAX])
{
    char *p = buf;
    if (isnan(f)) return (size_t)snprintf(buf, MSGL_JFLOAT_MAX, "nan");
    if (signbit(f)) *p++ = '-';
    if (isinf(f)) return (size_t)(p - buf) + (size_t)snprintf(p, 8, "inf");
    char d[24] = "0";
    int e = 1, n = 1;
    if (f != 0) n = shortest_digits(f, d, &e);
    if (e > -4 && e <= 0) { // 0.000ddd
        *p++ = '0';
        *p++ = '.';
        for (int i = e; i < 0; i++) *p++ = '0';
        memcpy(p, d, (size_t)n);
        p += n;
    } else if (e > 0 && e <= 16) {
        for (int i = 0; i < e; i++) *p++ = (char)(i < n ? d[i] : '0');
        *p++ = '.';
        if (n <= e) *p++ = '0';
        for (int i = e; i < n; i++) *p++ = d[i];
    } else {
        *p++ = d[0];
        if (n > 1) *p++ = '.';
        for (int i = 1; i < n; i++) *p++ = d[i];
        p += snprintf(p, 8, "e%c%02d", e - 1 < 0 ? '-' : '+', abs(e - 1));
    }
    return (size_t)(p - buf);
}

static int add_repr(msgl_jbuf *b, const msgl_jval *v, msgl_jfrom untrusted);

static int add_str_repr(msgl_jbuf *b, const msgl_jstr *s)
{
    if (s->markup) MSGL_JTRY(msgl__jbuf_adds(b, "Markup("));
    const bool single = s->len > 0 && memchr(s->data, '\'', s->len) != NULL;
    const bool dbl = s->len > 0 && memchr(s->data, '"', s->len) != NULL;
    const char quote = single && !dbl ? '"' : '\'';
    const msgl_jfrom u = msgl__jstr_any_untrusted(s);
    MSGL_JTRY(msgl__jctx_chars(b->c, s->len));
    MSGL_JTRY(msgl__jbuf_add(b, &quote, 1, u));
    for (size_t i = 0; i < s->len;) {
        int32_t cp;
        const size_t n = msgl__jutf8_get(s->data + i, s->data + s->len, &cp);
        char esc[16];
        int en = 0;
        if (cp == quote || cp == '\\') {
            en = snprintf(esc, sizeof esc, "\\%c", (char)cp);
        } else if (cp == '\n' || cp == '\r' || cp == '\t') {
            en = snprintf(esc, sizeof esc, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        } else if (!msgl__jis_printable(cp)) {
            en = snprintf(esc, sizeof esc,
                          cp < 0x100     ? "\\x%02x"
                          : cp < 0x10000 ? "\\u%04x"
                                         : "\\U%08x",
                          (unsigned)cp);
        }
        if (en > 0) MSGL_JTRY(msgl__jctx_steps(b->c, 2));
        MSGL_JTRY(en > 0 ? msgl__jbuf_add(b, esc, (size_t)en, msgl__jstr_untrusted_at(s, i))
                         : msgl__jbuf_add_sub(b, s, i, n));
        i += n;
    }
    MSGL_JTRY(msgl__jbuf_add(b, &quote, 1, u));
    return s->markup ? msgl__jbuf_adds(b, ")") : 0;
}

static int add_items_repr(msgl_jbuf *b, const msgl_jlist *l, const char *open, const char *close)
{
    MSGL_JTRY(msgl__jbuf_add(b, open, strlen(open), l->untrusted));
    for (size_t i = 0; i < l->len; i++) {
        if (i > 0) MSGL_JTRY(msgl__jbuf_add(b, ", ", 2, l->untrusted));
        MSGL_JTRY(add_repr(b, &l->items[i], l->untrusted));
    }
    if (close[0] == ')' && l->len == 1) MSGL_JTRY(msgl__jbuf_add(b, ",", 1, l->untrusted));
    return msgl__jbuf_add(b, close, strlen(close), l->untrusted);
}

static int add_dict_repr(msgl_jbuf *b, const msgl_jdict *d)
{
    const msgl_jfrom u = d->untrusted;
    MSGL_JTRY(msgl__jbuf_add(b, "{", 1, u));
    for (size_t i = 0; i < d->len; i++) {
        if (i > 0) MSGL_JTRY(msgl__jbuf_add(b, ", ", 2, u));
        MSGL_JTRY(add_repr(b, &d->keys[i], u));
        MSGL_JTRY(msgl__jbuf_add(b, ": ", 2, u));
        MSGL_JTRY(add_repr(b, &d->vals[i], u));
    }
    return msgl__jbuf_add(b, "}", 1, u);
}

static int add_view_repr(msgl_jbuf *b, const msgl_jval *v)
{
    MSGL_JTRY(msgl__jbuf_adds(b, msgl__jtype_name(v)));
    msgl_jlist l = {0};
    MSGL_JTRY(msgl__jto_array(b->c, v, &l.items, &l.len));
    l.untrusted = v->as.v->dict->untrusted;
    return add_items_repr(b, &l, "([", "])");
}

static int add_range_repr(msgl_jbuf *b, const msgl_jrange *r)
{
    char text[80];
    if (r->step == 1) {
        snprintf(text, sizeof text, "range(%lld, %lld)", (long long)r->start, (long long)r->stop);
    } else {
        snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)r->start,
                 (long long)r->stop, (long long)r->step);
    }
    return msgl__jbuf_adds(b, text);
}

static int add_object_repr(msgl_jbuf *b, const msgl_jval *v)
{
    char text[160];
    const msgl_jstr *name;
    switch (v->type) {
    case MSGL_J_NAMESPACE:
        MSGL_JTRY(msgl__jbuf_adds(b, "<Namespace "));
        MSGL_JTRY(add_dict_repr(b, v->as.d));
        return msgl__jbuf_adds(b, ">");
    case MSGL_J_MACRO:
        name = v->as.m->node->sym;
        if (name == NULL) return msgl__jbuf_adds(b, "<Macro anonymous>");
        snprintf(text, sizeof text, "<Macro '%.*s'>", (int)(name->len < 100 ? name->len : 100),
                 name->data);
        return msgl__jbuf_adds(b, text);
    case MSGL_J_LOOP:
        snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v->as.loop->index0 + 1,
                 v->as.loop->len);
        return msgl__jbuf_adds(b, text);
    default:
        snprintf(text, sizeof text, "<%s object>", msgl__jtype_name(v));
        return msgl__jbuf_adds(b, text);
    }
}

static int add_scalar_repr(msgl_jbuf *b, const msgl_jval *v, msgl_jfrom untrusted)
{
    char text[MSGL_JFLOAT_MAX];
    const char *word = text;
    MSGL_JTRY(msgl__jctx_number(b->c, v));
    switch (v->type) {
    case MSGL_J_UNSET:
    case MSGL_J_UNDEF: word = "Undefined"; break;
    case MSGL_J_NONE: word = "None"; break;
    case MSGL_J_BOOL: word = v->as.b ? "True" : "False"; break;
    case MSGL_J_INT: snprintf(text, sizeof text, "%lld", (long long)v->as.i); break;
    default: text[msgl__jfloat_repr(v->as.f, text)] = '\0'; break;
    }
    return msgl__jbuf_add(b, word, strlen(word), untrusted);
}

// `untrusted`: of the digits and words that carry no provenance of their own.
static int add_repr(msgl_jbuf *b, const msgl_jval *v, msgl_jfrom untrusted)
{
    msgl_jctx *c = b->c;
    MSGL_JTRY(msgl__jctx_steps(c, 1));
    if (v->type == MSGL_J_BIG) MSGL_JTRY(msgl__jctx_number(c, v));
    if (v->type == MSGL_J_BIG) return msgl__jbuf_add(b, v->as.s->data, v->as.s->len, untrusted);
    if (v->type <= MSGL_J_FLOAT) return add_scalar_repr(b, v, untrusted);
    if (v->type == MSGL_J_STR) return add_str_repr(b, v->as.s);
    MSGL_JTRY(msgl__jctx_enter(c));
    int rc;
    switch (v->type) {
    case MSGL_J_LIST: rc = add_items_repr(b, v->as.l, "[", "]"); break;
    case MSGL_J_TUPLE: rc = add_items_repr(b, v->as.l, "(", ")"); break;
    case MSGL_J_DICT: rc = add_dict_repr(b, v->as.d); break;
    case MSGL_J_VIEW: rc = add_view_repr(b, v); break;
    case MSGL_J_RANGE: rc = add_range_repr(b, v->as.r); break;
    default: rc = add_object_repr(b, v); break;
    }
    c->depth--;
    return rc;
}

int msgl__jbuf_add_repr(msgl_jbuf *b, const msgl_jval *v)
{
    return add_repr(b, v, false);
}

int msgl__jbuf_add_str_of(msgl_jbuf *b, const msgl_jval *v)
{
    if (v->type == MSGL_J_STR) return msgl__jbuf_add_jstr(b, v->as.s);
    if (v->type == MSGL_J_UNDEF) return 0;
    return msgl__jbuf_add_repr(b, v);
}

int msgl__jto_str(msgl_jctx *c, const msgl_jval *v, msgl_jstr **out)
{
    if (v->type == MSGL_J_STR) {
        *out = v->as.s;
        return 0;
    }
    msgl_jbuf *b;
    MSGL_JTRY(msgl__jbuf_new(c, 0, &b));
    MSGL_JTRY(msgl__jbuf_add_str_of(b, v));
    return msgl__jbuf_finish(b, out);
}
