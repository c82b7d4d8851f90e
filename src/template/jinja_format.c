// SPDX-License-Identifier: Apache-2.0
//
// Numbers and text by format: the % operator, str.format with its format specifications, and
// reading numbers back.
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "template/jinja_eval.h"

enum { MAX_WIDTH = 10000, MAX_PRECISION = 300, NUMBER_TEXT = 768 };

// One format specification, of either kind.
typedef struct spec {
    int32_t fill; // code point
    char align;   // '<', '>', '^', '=' or 0
    char sign;    // '-', '+' or ' '
    bool alt, zero, grouping, grouping_underscore;
    int64_t width, precision; // precision -1: none
    char type;                // 0: none
} spec;

static int pad_and_add(msgl_jbuf *b, msgl_jstr *body, const spec *sp, char dflt_align)
{
    msgl_jctx *c = b->c;
    const char align = sp->align ? sp->align : dflt_align;
    char utf8[4];
    msgl_jstr *fill;
    const size_t n = msgl__utf8_put((uint32_t)sp->fill, utf8);
    MSGL_JTRY(msgl__jstr_copy(c, utf8, n, false, &fill));
    if (align == '=' && sp->width > 0) {
        const bool sign = body->len > 0 && strchr("+- ", body->data[0]) != NULL;
        msgl_jstr *rest;
        MSGL_JTRY(msgl__jbuf_add_sub(b, body, 0, sign));
        MSGL_JTRY(msgl__jstr_sub(c, body, sign, body->len - sign, &rest));
        msgl_jval padded;
        MSGL_JTRY(msgl__jstr_pad(c, rest, sp->width - sign, fill, '>', &padded));
        return msgl__jbuf_add_jstr(b, padded.as.s);
    }
    const int64_t len = (int64_t)msgl__jstr_chars(body);
    const size_t pad = sp->width > len ? (size_t)(sp->width - len) : 0;
    const size_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    MSGL_JTRY(msgl__jbuf_add_repeat(b, fill, left));
    MSGL_JTRY(msgl__jbuf_add_jstr(b, body));
    return msgl__jbuf_add_repeat(b, fill, pad - left);
}

// Thousands separators into the integer digits of text.
static void group_digits(char *text, char sep, int every)
{
    char out[NUMBER_TEXT];
    const size_t sign = text[0] == '-' || text[0] == '+' || text[0] == ' ';
    const size_t digits = strspn(text + sign, "0123456789abcdefABCDEF");
    size_t n = 0;
    memcpy(out, text, sign);
    n = sign;
    for (size_t i = 0; i < digits && n + 2 < sizeof out; i++) {
        if (i > 0 && (digits - i) % (size_t)every == 0) out[n++] = sep;
        out[n++] = text[sign + i];
    }
    snprintf(out + n, sizeof out - n, "%s", text + sign + digits);
    memcpy(text, out, sizeof out);
}

static int bad_type(msgl_jctx *c, char type, const msgl_jval *v)
{
    return msgl__jctx_fail(c, "Unknown format code '%c' for object of type '%s'", type,
                           msgl__jtype_name(v));
}

static void int_digits(char *out, size_t size, uint64_t mag, char type, bool alt)
{
    if (type == 'x' || type == 'X') {
        snprintf(out, size, type == 'x' ? "%s%llx" : "%s%llX",
                 alt ? (type == 'x' ? "0x" : "0X") : "", (unsigned long long)mag);
    } else if (type == 'o') {
        snprintf(out, size, "%s%llo", alt ? "0o" : "", (unsigned long long)mag);
    } else if (type == 'b') {
        char bits[65];
        size_t n = 0;
        do bits[n++] = (char)('0' + (mag & 1));
        while ((mag >>= 1) != 0);
        size_t at = 0;
        if (alt) at = (size_t)snprintf(out, size, "0b");
        while (n > 0) out[at++] = bits[--n];
        out[at] = '\0';
    } else {
        snprintf(out, size, "%llu", (unsigned long long)mag);
    }
}

static int format_int(msgl_jctx *c, int64_t i, const spec *sp, char text[NUMBER_TEXT])
{
    size_t n = 0;
    if (i < 0 || sp->sign != '-') text[n++] = (char)(i < 0 ? '-' : sp->sign);
    const uint64_t mag = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    int_digits(text + n, NUMBER_TEXT - n, mag, sp->type, sp->alt);
    if (sp->precision >= 0) return msgl__jctx_fail(c, "Precision not allowed in integer format");
    if (sp->grouping) group_digits(text, sp->grouping_underscore ? '_' : ',', 3);
    return 0;
}

enum { DOUBLE_STEPS = 128 }; // what many decimals of it take

static void format_double(double f, const spec *sp, char text[NUMBER_TEXT])
{
    const char type = sp->type == 'F' ? 'f' : sp->type;
    size_t n = 0;
    const bool neg = signbit(f) && !isnan(f);
    if (neg || sp->sign != '-') text[n++] = (char)(neg ? '-' : sp->sign);
    const double mag = fabs(f) * (type == '%' ? 100 : 1);
    if (isnan(mag) || isinf(mag)) {
        n += (size_t)snprintf(text + n, NUMBER_TEXT - n, isnan(mag) ? "nan" : "inf");
    } else if (type == 0 && sp->precision < 0) {
        char repr[MSGL_JFLOAT_MAX];
        const size_t len = msgl__jfloat_repr(mag, repr);
        memcpy(text + n, repr, len);
        n += len;
    } else {
        const char conv = type == '%' ? 'f' : type == 0 || type == 'n' ? 'g' : type;
        char fmt[12];
        snprintf(fmt, sizeof fmt, sp->alt ? "%%#.*%c" : "%%.*%c", conv);
        const int prec = sp->precision < 0 ? 6 : (int)sp->precision;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        n += (size_t)snprintf(text + n, NUMBER_TEXT - n, fmt, prec, mag);
#pragma GCC diagnostic pop
        // Without a type Python shows at least one decimal.
        if (type == 0 && strpbrk(text, ".e") == NULL) {
            n += (size_t)snprintf(text + n, NUMBER_TEXT - n, ".0");
        }
    }
    text[n] = '\0';
    if (type == '%') snprintf(text + n, NUMBER_TEXT - n, "%%");
    if (sp->grouping) group_digits(text, sp->grouping_underscore ? '_' : ',', 3);
}

static int add_number(msgl_jbuf *b, const char *text, const spec *sp)
{
    msgl_jstr *body;
    MSGL_JTRY(msgl__jstr_copy(b->c, text, strlen(text), false, &body));
    return pad_and_add(b, body, sp, '>');
}

// --- % ---
typedef struct percent {
    msgl_jctx *c;
    msgl_jbuf *b;
    const msgl_jval *args, *map; // positional values; the mapping of %(name)s
    size_t nargs, used;
} percent;

static int next_arg(percent *p, msgl_jval *out)
{
    if (p->used >= p->nargs) return msgl__jctx_fail(p->c, "not enough arguments for format string");
    *out = p->args[p->used++];
    return 0;
}

static int read_count(percent *p, const msgl_jstr *f, size_t *i, int64_t max, int64_t *out)
{
    *out = 0;
    if (*i < f->len && f->data[*i] == '*') {
        msgl_jval v;
        (*i)++;
        MSGL_JTRY(next_arg(p, &v));
        MSGL_JTRY(msgl__jarg_int(p->c, &v, 0, out));
    } else {
        for (; *i < f->len && f->data[*i] >= '0' && f->data[*i] <= '9'; (*i)++) {
            if (*out <= max) *out = *out * 10 + (f->data[*i] - '0');
        }
    }
    if (*out > max || *out < -max) {
        return msgl__jctx_limit(p->c, "a width or precision over %lld", (long long)max);
    }
    return 0;
}

static int percent_text(percent *p, const msgl_jval *v, const spec *sp)
{
    msgl_jstr *s;
    if (sp->type == 'c' && v->type != MSGL_J_STR) {
        int64_t cp;
        char utf8[4];
        MSGL_JTRY(msgl__jarg_int(p->c, v, 0, &cp));
        if (cp < 0 || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) {
            return msgl__jctx_fail(p->c, "%%c arg not in range(0x110000)");
        }
        MSGL_JTRY(msgl__jstr_copy(p->c, utf8, msgl__utf8_put((uint32_t)cp, utf8), false, &s));
    } else if (sp->type == 's' || sp->type == 'c') {
        MSGL_JTRY(msgl__jto_str(p->c, v, &s));
        if (sp->type == 'c' && msgl__jstr_chars(s) != 1) {
            return msgl__jctx_fail(p->c, "%%c requires int or char");
        }
    } else {
        msgl_jbuf *b;
        MSGL_JTRY(msgl__jbuf_new(p->c, 0, &b));
        MSGL_JTRY(msgl__jbuf_add_repr(b, v));
        MSGL_JTRY(msgl__jbuf_finish(b, &s));
    }
    if (sp->precision >= 0) {
        MSGL_JTRY(msgl__jstr_sub(p->c, s, 0, msgl__jstr_offset(s, (size_t)sp->precision), &s));
    }
    return pad_and_add(p->b, s, sp, '>');
}

static int percent_number(percent *p, const msgl_jval *v, spec *sp)
{
    char text[NUMBER_TEXT];
    int64_t i;
    if (strchr("eEfFgG", sp->type) != NULL) {
        if (!msgl__jis_number(v)) {
            return msgl__jctx_fail(p->c, "must be real number, not %s", msgl__jtype_name(v));
        }
        if (sp->precision < 0) sp->precision = 6;
        MSGL_JTRY(msgl__jctx_steps(p->c, DOUBLE_STEPS));
        format_double(msgl__jas_double(v), sp, text);
    } else {
        if (v->type == MSGL_J_FLOAT && strchr("diu", sp->type) != NULL && fabs(v->as.f) < 9e18) {
            i = (int64_t)v->as.f;
        } else if (!msgl__jas_int(v, &i)) {
            return msgl__jctx_fail(p->c, "%%%c format: a real number is required, not %s", sp->type,
                                   msgl__jtype_name(v));
        }
        sp->precision = -1;
        MSGL_JTRY(format_int(p->c, i, sp, text));
    }
    return add_number(p->b, text, sp);
}

// One conversion; f->data[i] is behind the "%".
static int percent_one(percent *p, const msgl_jstr *f, size_t *i)
{
    spec sp = {.fill = ' ', .sign = '-', .precision = -1};
    msgl_jval v = {0};
    bool named = false;
    if (*i < f->len && f->data[*i] == '(') {
        const char *close = memchr(f->data + *i, ')', f->len - *i);
        if (close == NULL) return msgl__jctx_fail(p->c, "incomplete format key");
        if (p->map == NULL) return msgl__jctx_fail(p->c, "format requires a mapping");
        const size_t from = *i + 1, len = (size_t)(close - f->data) - from;
        const msgl_jval *found = msgl__jdict_gets(p->map->as.d, f->data + from, len);
        if (found == NULL) {
            return msgl__jctx_fail(p->c, "'%.*s'", (int)(len < 60 ? len : 60), f->data + from);
        }
        v = *found;
        named = true;
        p->used = p->nargs;
        *i = from + len + 1;
    }
    for (; *i < f->len && strchr("-+ #0", f->data[*i]) != NULL && f->data[*i] != 0; (*i)++) {
        switch (f->data[*i]) {
        case '-': sp.align = '<'; break;
        case '+': sp.sign = '+'; break;
        case ' ': sp.sign = sp.sign == '+' ? '+' : ' '; break;
        case '#': sp.alt = true; break;
        default: sp.zero = true; break;
        }
    }
    MSGL_JTRY(read_count(p, f, i, MAX_WIDTH, &sp.width));
    if (sp.width < 0) {
        sp.align = '<';
        sp.width = -sp.width;
    }
    if (*i < f->len && f->data[*i] == '.') {
        (*i)++;
        MSGL_JTRY(read_count(p, f, i, MAX_PRECISION, &sp.precision));
        if (sp.precision < 0) sp.precision = 0;
    }
    while (*i < f->len && (f->data[*i] == 'l' || f->data[*i] == 'h' || f->data[*i] == 'L')) (*i)++;
    if (*i >= f->len) return msgl__jctx_fail(p->c, "incomplete format");
    sp.type = f->data[(*i)++];
    if (sp.type == '%') return msgl__jbuf_add(p->b, "%", 1, false);
    if (strchr("srcadiuxXoeEfFgG", sp.type) == NULL || sp.type == '\0') {
        return msgl__jctx_fail(p->c, "unsupported format character '%c'", sp.type);
    }
    if (!named) MSGL_JTRY(next_arg(p, &v));
    if (strchr("srca", sp.type) != NULL) return percent_text(p, &v, &sp);
    if (sp.zero && sp.align == 0) {
        sp.fill = '0';
        sp.align = '=';
    }
    return percent_number(p, &v, &sp);
}

int msgl__jformat_percent(msgl_jctx *c, msgl_jstr *fmt, const msgl_jval *args, msgl_jval *out)
{
    percent p = {.c = c, .args = args, .nargs = 1};
    if (args->type == MSGL_J_TUPLE) {
        p.args = args->as.l->items;
        p.nargs = args->as.l->len;
    }
    if (args->type == MSGL_J_DICT) p.map = args;
    MSGL_JTRY(msgl__jbuf_new(c, fmt->len, &p.b));
    for (size_t i = 0; i < fmt->len;) {
        if (fmt->data[i] == '%') {
            i++;
            MSGL_JTRY(msgl__jctx_steps(c, 1));
            MSGL_JTRY(percent_one(&p, fmt, &i));
            continue;
        }
        const char *next = memchr(fmt->data + i, '%', fmt->len - i);
        const size_t n = next != NULL ? (size_t)(next - fmt->data) - i : fmt->len - i;
        MSGL_JTRY(msgl__jbuf_add_sub(p.b, fmt, i, n));
        i += n;
    }
    const bool subscriptable = args->type == MSGL_J_DICT || args->type == MSGL_J_LIST ||
                               args->type == MSGL_J_RANGE || args->type == MSGL_J_UNDEF;
    if (p.used < p.nargs && !subscriptable) {
        return msgl__jctx_fail(c, "not all arguments converted during string formatting");
    }
    msgl_jstr *s;
    MSGL_JTRY(msgl__jbuf_finish(p.b, &s));
    *out = msgl__jstrval(s);
    return 0;
}

// --- str.format ---
static int parse_spec(msgl_jctx *c, const msgl_jstr *t, spec *sp)
{
    static const char aligns[] = "<>=^";
    const char *p = t->data, *end = t->data + t->len;
    *sp = (spec){.fill = ' ', .sign = '-', .precision = -1};
    if (t->len > 0) {
        int32_t cp;
        const size_t n = msgl__jutf8_get(p, end, &cp);
        if (p + n < end && p[n] != 0 && strchr(aligns, p[n]) != NULL) {
            sp->fill = cp;
            sp->align = p[n];
            p += n + 1;
        } else if (*p != 0 && strchr(aligns, *p) != NULL) {
            sp->align = *p++;
        }
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' ')) sp->sign = *p++;
    if (p < end && *p == '#') sp->alt = *p++ == '#';
    if (p < end && *p == '0') {
        p++;
        if (sp->align == 0) {
            sp->fill = '0';
            sp->align = '=';
        }
    }
    for (; p < end && *p >= '0' && *p <= '9' && sp->width <= MAX_WIDTH; p++) {
        sp->width = sp->width * 10 + (*p - '0');
    }
    if (p < end && (*p == ',' || *p == '_')) {
        sp->grouping = true;
        sp->grouping_underscore = *p++ == '_';
    }
    if (p + 1 < end && *p == '.' && p[1] >= '0' && p[1] <= '9') {
        sp->precision = 0;
        for (p++; p < end && *p >= '0' && *p <= '9' && sp->precision <= MAX_PRECISION; p++) {
            sp->precision = sp->precision * 10 + (*p - '0');
        }
    }
    if (sp->width > MAX_WIDTH || sp->precision > MAX_PRECISION) {
        return msgl__jctx_limit(c, "a width over %d or a precision over %d", (int)MAX_WIDTH,
                                (int)MAX_PRECISION);
    }
    if (p < end) sp->type = *p++;
    if (p < end) return msgl__jctx_fail(c, "Invalid format specifier");
    return 0;
}

static int format_value(msgl_jbuf *b, const msgl_jval *v, const msgl_jstr *t)
{
    msgl_jctx *c = b->c;
    spec sp;
    char text[NUMBER_TEXT];
    int64_t i = 0;
    if (t->len == 0) return msgl__jbuf_add_str_of(b, v);
    MSGL_JTRY(parse_spec(c, t, &sp));
    if (v->type == MSGL_J_STR) {
        msgl_jstr *s = v->as.s;
        if (sp.type != 0 && sp.type != 's') return bad_type(c, sp.type, v);
        if (sp.sign != '-' || sp.alt || sp.grouping) {
            return msgl__jctx_fail(c, "Sign, '#' and ',' not allowed in string format specifier");
        }
        if (sp.align == '=' && sp.fill != '0') {
            return msgl__jctx_fail(c, "'=' alignment not allowed in string format specifier");
        }
        if (sp.align == '=') sp.align = '<';
        if (sp.precision >= 0) {
            MSGL_JTRY(msgl__jstr_sub(c, s, 0, msgl__jstr_offset(s, (size_t)sp.precision), &s));
        }
        return pad_and_add(b, s, &sp, '<');
    }
    if (!msgl__jis_number(v)) {
        return msgl__jctx_fail(c, "unsupported format string passed to %s.__format__",
                               msgl__jtype_name(v));
    }
    const bool as_float = sp.type != 0 && strchr("eEfFgG%", sp.type) != NULL;
    if (v->type == MSGL_J_FLOAT || as_float) {
        if (sp.type != 0 && !as_float && sp.type != 'n') return bad_type(c, sp.type, v);
        MSGL_JTRY(msgl__jctx_steps(c, DOUBLE_STEPS));
        format_double(msgl__jas_double(v), &sp, text);
        return add_number(b, text, &sp);
    }
    msgl__jas_int(v, &i);
    if (sp.type == 'c') {
        char utf8[5] = "";
        if (i < 0 || i > 0x10ffff || (i >= 0xd800 && i < 0xe000)) {
            return msgl__jctx_fail(c, "%%c arg not in range(0x110000)");
        }
        utf8[msgl__utf8_put((uint32_t)i, utf8)] = '\0';
        return add_number(b, utf8, &sp);
    }
    if (sp.type != 0 && strchr("bdoxXn", sp.type) == NULL) return bad_type(c, sp.type, v);
    MSGL_JTRY(format_int(c, i, &sp, text));
    return add_number(b, text, &sp);
}

typedef struct braces {
    msgl_jctx *c;
    const msgl_jcall *call;
    int64_t next; // of automatic numbering
    bool manual;  // a field had a number
} braces;

static bool all_digits(const char *p, size_t n)
{
    return n > 0 && n < 10 && strspn(p, "0123456789") >= n;
}

static int field_root(braces *f, const char *p, size_t n, msgl_jval *out)
{
    msgl_jctx *c = f->c;
    if (n == 0 || all_digits(p, n)) {
        const int64_t i = n == 0 ? f->next++ : strtol(p, NULL, 10);
        f->manual |= n > 0;
        if (f->manual && f->next > 0) {
            return msgl__jctx_fail(c, "cannot mix automatic and manual field numbering");
        }
        if ((size_t)i >= f->call->npos) {
            return msgl__jctx_fail(c,
                                   "Replacement index %lld out of range for positional args "
                                   "tuple",
                                   (long long)i);
        }
        *out = f->call->pos[i];
        return 0;
    }
    for (size_t k = 0; k < f->call->nkw; k++) {
        const msgl_jstr *name = f->call->kw_names[k];
        if (name->len == n && memcmp(name->data, p, n) == 0) {
            *out = f->call->kw[k];
            return 0;
        }
    }
    return msgl__jctx_fail(c, "'%.*s'", (int)(n < 60 ? n : 60), p);
}

// name, name.attr, name[key]
static int field_value(braces *f, const char *p, size_t n, msgl_jval *out)
{
    size_t i = 0;
    while (i < n && p[i] != '.' && p[i] != '[') i++;
    MSGL_JTRY(field_root(f, p, i, out));
    while (i < n) {
        const bool attr = p[i++] == '.';
        const size_t from = i;
        while (i < n && (attr ? p[i] != '.' && p[i] != '[' : p[i] != ']')) i++;
        msgl_jstr *name;
        msgl_jval v = *out;
        if (i == from) return msgl__jctx_fail(f->c, "Empty attribute in format string");
        MSGL_JTRY(msgl__jstr_copy(f->c, p + from, i - from, false, &name));
        if (attr) {
            MSGL_JTRY(msgl__jgetattr(f->c, &v, name, out));
            continue;
        }
        if (i == n) return msgl__jctx_fail(f->c, "Missing ']' in format string");
        i++;
        msgl_jval key = msgl__jstrval(name);
        if (all_digits(name->data, name->len)) key = msgl__jint(strtol(p + from, NULL, 10));
        MSGL_JTRY(msgl__jgetitem(f->c, &v, &key, out));
    }
    return 0;
}

static int expand(braces *f, const msgl_jstr *t, int level, msgl_jbuf *b);

// "{field!conversion:spec}", without the braces.
static int replace_field(braces *f, const msgl_jstr *t, size_t from, size_t to, int level,
                         msgl_jbuf *b)
{
    const char *p = t->data + from;
    size_t n = to - from, name = 0;
    int bracket = 0;
    for (; name < n && (bracket > 0 || (p[name] != '!' && p[name] != ':')); name++) {
        bracket += (p[name] == '[') - (p[name] == ']');
    }
    msgl_jval v;
    MSGL_JTRY(field_value(f, p, name, &v));
    size_t at = name;
    if (at < n && p[at] == '!') {
        const char conv = at + 1 < n ? p[at + 1] : 0;
        if (conv != 's' && conv != 'r')
            return msgl__jctx_fail(f->c, "Unknown conversion specifier");
        msgl_jbuf *text;
        msgl_jstr *s;
        MSGL_JTRY(msgl__jbuf_new(f->c, 0, &text));
        MSGL_JTRY(conv == 's' ? msgl__jbuf_add_str_of(text, &v) : msgl__jbuf_add_repr(text, &v));
        MSGL_JTRY(msgl__jbuf_finish(text, &s));
        v = msgl__jstrval(s);
        at += 2;
    }
    if (at < n && p[at] != ':')
        return msgl__jctx_fail(f->c, "expected ':' after conversion specifier");
    msgl_jstr *raw, *done;
    msgl_jbuf *text;
    MSGL_JTRY(msgl__jstr_sub(f->c, t, from + at + (at < n), n - at - (at < n), &raw));
    MSGL_JTRY(msgl__jbuf_new(f->c, 0, &text));
    MSGL_JTRY(expand(f, raw, level + 1, text));
    MSGL_JTRY(msgl__jbuf_finish(text, &done));
    return format_value(b, &v, done);
}

static int expand(braces *f, const msgl_jstr *t, int level, msgl_jbuf *b)
{
    if (level > 2) return msgl__jctx_fail(f->c, "Max string recursion exceeded");
    for (size_t i = 0; i < t->len;) {
        const char ch = t->data[i];
        MSGL_JTRY(msgl__jctx_steps(f->c, 1));
        if (ch != '{' && ch != '}') {
            MSGL_JTRY(msgl__jbuf_add_sub(b, t, i++, 1));
            continue;
        }
        if (i + 1 < t->len && t->data[i + 1] == ch) {
            MSGL_JTRY(msgl__jbuf_add_sub(b, t, i, 1));
            i += 2;
            continue;
        }
        if (ch == '}') return msgl__jctx_fail(f->c, "Single '}' encountered in format string");
        size_t end = i + 1;
        int open = 1;
        for (; end < t->len && open > 0; end++) {
            open += (t->data[end] == '{') - (t->data[end] == '}');
        }
        if (open > 0) return msgl__jctx_fail(f->c, "expected '}' before end of string");
        MSGL_JTRY(replace_field(f, t, i + 1, end - 1, level, b));
        i = end;
    }
    return 0;
}

int msgl__jformat_braces(msgl_jctx *c, msgl_jstr *fmt, const msgl_jcall *call, msgl_jval *out)
{
    braces f = {.c = c, .call = call};
    msgl_jbuf *b;
    msgl_jstr *s;
    MSGL_JTRY(msgl__jbuf_new(c, fmt->len, &b));
    MSGL_JTRY(expand(&f, fmt, 1, b));
    MSGL_JTRY(msgl__jbuf_finish(b, &s));
    *out = msgl__jstrval(s);
    return 0;
}

// --- reading numbers ---
// Text without surrounding blanks and without "_" between digits, NUL-terminated; false when it
// cannot be a number.
static bool plain_number(const msgl_jstr *s, char buf[NUMBER_TEXT])
{
    size_t from = 0, to = s->len, n = 0;
    while (from < to && msgl__jis_space((unsigned char)s->data[from])) from++;
    while (to > from && msgl__jis_space((unsigned char)s->data[to - 1])) to--;
    if (to == from || to - from >= NUMBER_TEXT) return false;
    for (size_t i = from; i < to; i++) {
        const char ch = s->data[i];
        if (ch == '_') {
            const bool between = i > from && i + 1 < to && s->data[i - 1] != '_' &&
                                 strchr("0123456789abcdefABCDEF", s->data[i - 1]) != NULL &&
                                 strchr("0123456789abcdefABCDEF", s->data[i + 1]) != NULL;
            if (!between) return false;
        } else if (ch == '\0' || msgl__jis_space((unsigned char)ch)) {
            return false;
        } else {
            buf[n++] = ch;
        }
    }
    buf[n] = '\0';
    return true;
}

bool msgl__jfits_int(const msgl_jstr *s, int64_t *out)
{
    char buf[24]; // -9223372036854775808 has 20
    if (s->len >= sizeof buf) return false;
    memcpy(buf, s->data, s->len);
    buf[s->len] = '\0';
    errno = 0;
    *out = strtoll(buf, NULL, 10);
    return errno == 0;
}

int msgl__jparse_int(msgl_jctx *c, const msgl_jstr *s, int base, bool *ok, int64_t *out)
{
    char buf[NUMBER_TEXT];
    *ok = false;
    if (base != 0 && (base < 2 || base > 36)) {
        return msgl__jctx_fail(c, "int() base must be >= 2 and <= 36, or 0");
    }
    if (!plain_number(s, buf)) return 0;
    char *digits = buf + (buf[0] == '-' || buf[0] == '+');
    const char mark = digits[0] == '0' ? (char)(digits[1] | 0x20) : 0;
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == 0 || base == marked)) {
        memmove(digits, digits + 2, strlen(digits + 2) + 1);
        base = marked;
    }
    if (digits[0] == '+' || digits[0] == '-' || digits[0] == '\0') return 0;
    char *end;
    errno = 0;
    *out = strtoll(buf, &end, base == 0 ? 10 : base);
    if (*end != '\0') return 0;
    if (errno == ERANGE) return msgl__jctx_fail(c, "an integer does not fit into 64 bits");
    *ok = true;
    return 0;
}

bool msgl__jparse_float(const msgl_jstr *s, double *out)
{
    char buf[NUMBER_TEXT];
    if (!plain_number(s, buf)) return false;
    // strtod also reads hexadecimal and "nan(...)", float() does not.
    if (strpbrk(buf, "xX(pP") != NULL) return false;
    char *end;
    *out = strtod(buf, &end);
    return *end == '\0';
}

double msgl__jround_half_even(double x, int digits)
{
    // Correct rounding of the exact binary value, through decimal text, as Python does it.
    char text[NUMBER_TEXT];
    if (!isfinite(x) || digits > 22) return x;
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", digits, x);
        return strtod(text, NULL);
    }
    if (digits < -308) return copysign(0.0, x);
    const double scale = pow(10, -digits);
    return nearbyint(x / scale) * scale;
}
