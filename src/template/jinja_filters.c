// SPDX-License-Identifier: Apache-2.0
//
// Filters over one value: text, numbers, JSON. Those over sequences are in jinja_filters_seq.c.
#include <math.h>
#include <string.h>

#include "template/jinja_eval.h"

static int give(msgl_jstr *s, msgl_jval *out)
{
    *out = msgl__jstrval(s);
    return 0;
}

// Runs a method of str on str(self).
static int as_method(msgl_jctx *c, const char *name, const msgl_jval *self, const msgl_jval *arg,
                     size_t nargs, msgl_jval *out)
{
    msgl_jstr *s;
    MSGL_JTRY(msgl__jto_str(c, self, &s));
    const msgl_jval text = msgl__jstrval(s);
    const msgl_jcall call = {.pos = (msgl_jval *)arg, .npos = nargs};
    return msgl__jbuiltin_call(c, msgl__jstr_method_find(name, strlen(name)), &text, &call, out);
}

MSGL_JBUILTIN(f_tojson)
{
    return msgl__jtojson(c, self, arg, out);
}

// json.loads. Not one of transformers' filters, but templates written for other servers use it on a
// call's arguments, under both names. Ours are decoded before a template sees them, so a value that
// is no string is what such a template wants already.
MSGL_JBUILTIN(f_from_json)
{
    if (self->type == MSGL_J_UNDEF) return msgl__jundef_fail(c, self->as.u);
    *out = *self;
    return self->type == MSGL_J_STR ? msgl__jloads(c, self->as.s, out) : 0;
}

MSGL_JBUILTIN(f_upper)
{
    return as_method(c, "upper", self, NULL, 0, out);
}
MSGL_JBUILTIN(f_lower)
{
    return as_method(c, "lower", self, NULL, 0, out);
}
MSGL_JBUILTIN(f_capitalize)
{
    return as_method(c, "capitalize", self, NULL, 0, out);
}
MSGL_JBUILTIN(f_trim)
{
    return as_method(c, "strip", self, arg, arg[0].type != MSGL_J_UNSET, out);
}

MSGL_JBUILTIN(f_center)
{
    msgl_jval width = arg[0].type == MSGL_J_UNSET ? msgl__jint(80) : arg[0];
    return as_method(c, "center", self, &width, 1, out);
}

// First letter of every word up, the rest down; words begin after blanks and - ( { [ <.
MSGL_JBUILTIN(f_title)
{
    msgl_jstr *s;
    msgl_jbuf *b;
    MSGL_JTRY(msgl__jto_str(c, self, &s));
    MSGL_JTRY(msgl__jctx_chars(c, s->len));
    MSGL_JTRY(msgl__jbuf_new(c, s->len, &b));
    bool begin = true;
    for (size_t i = 0; i < s->len;) {
        int32_t cp, to[3];
        const size_t n = msgl__jutf8_get(s->data + i, s->data + s->len, &cp);
        const bool sep = msgl__jis_space(cp) || (cp != 0 && cp < 0x80 && strchr("-({[<", cp));
        const int k = begin ? msgl__jto_upper(cp, to) : msgl__jto_lower(cp, to);
        for (int j = 0; j < k; j++) {
            MSGL_JTRY(msgl__jbuf_add_cp(b, to[j], msgl__jstr_untrusted_at(s, i)));
        }
        begin = sep;
        i += n;
    }
    MSGL_JTRY(msgl__jbuf_finish(b, &s));
    return give(s, out);
}

MSGL_JBUILTIN(f_replace)
{
    msgl_jstr *s, *old, *with;
    int64_t count = -1;
    MSGL_JTRY(msgl__jto_str(c, self, &s));
    MSGL_JTRY(msgl__jto_str(c, &arg[0], &old));
    MSGL_JTRY(msgl__jto_str(c, &arg[1], &with));
    if (arg[2].type != MSGL_J_NONE) MSGL_JTRY(msgl__jarg_int(c, &arg[2], -1, &count));
    return msgl__jstr_replace(c, s, old, with, count, out);
}

MSGL_JBUILTIN(f_string)
{
    msgl_jstr *s;
    MSGL_JTRY(msgl__jto_str(c, self, &s));
    return give(s, out);
}

MSGL_JBUILTIN(f_safe)
{
    msgl_jstr *s, *marked;
    MSGL_JTRY(msgl__jto_str(c, self, &s));
    MSGL_JTRY(msgl__jstr_sub(c, s, 0, s->len, &marked));
    marked->markup = true;
    return give(marked, out);
}

MSGL_JBUILTIN(f_escape)
{
    msgl_jstr *s;
    MSGL_JTRY(msgl__jto_str(c, self, &s));
    MSGL_JTRY(msgl__jstr_escape(c, s, &s));
    return give(s, out);
}

MSGL_JBUILTIN(f_forceescape)
{
    msgl_jstr *s, *plain;
    MSGL_JTRY(msgl__jto_str(c, self, &s));
    MSGL_JTRY(msgl__jstr_sub(c, s, 0, s->len, &plain));
    plain->markup = false;
    MSGL_JTRY(msgl__jstr_escape(c, plain, &s));
    return give(s, out);
}

MSGL_JBUILTIN(f_default)
{
    const bool use =
        self->type == MSGL_J_UNDEF || (msgl__jarg_true(&arg[1]) && !msgl__jtruth(self));
    *out = use ? arg[0] : *self;
    if (out->type == MSGL_J_UNSET) {
        msgl_jstr *empty;
        MSGL_JTRY(msgl__jstr_ref(c, "", 0, false, &empty));
        *out = msgl__jstrval(empty);
    }
    return 0;
}

MSGL_JBUILTIN(f_length)
{
    size_t n;
    MSGL_JTRY(msgl__jlength(c, self, &n));
    *out = msgl__jint((int64_t)n);
    return 0;
}

MSGL_JBUILTIN(f_wordcount)
{
    msgl_jstr *s;
    MSGL_JTRY(msgl__jto_str(c, self, &s));
    MSGL_JTRY(msgl__jctx_chars(c, s->len));
    int64_t n = 0;
    bool in_word = false;
    for (size_t i = 0; i < s->len;) {
        int32_t cp;
        i += msgl__jutf8_get(s->data + i, s->data + s->len, &cp);
        const bool w = cp == '_' || msgl__jis_alnum(cp);
        n += w && !in_word;
        in_word = w;
    }
    *out = msgl__jint(n);
    return 0;
}

// indent(width=4, first=False, blank=False)
MSGL_JBUILTIN(f_indent)
{
    if (self->type != MSGL_J_STR) {
        return msgl__jctx_fail(c, "indent: expected a string, got '%s'", msgl__jtype_name(self));
    }
    msgl_jbuf *b;
    msgl_jstr *pad, *text;
    MSGL_JTRY(msgl__jbuf_new(c, 0, &b));
    if (arg[0].type == MSGL_J_STR) {
        pad = arg[0].as.s;
    } else {
        int64_t width;
        msgl_jstr *blank;
        MSGL_JTRY(msgl__jarg_int(c, &arg[0], 4, &width));
        MSGL_JTRY(msgl__jstr_ref(c, " ", 1, false, &blank));
        MSGL_JTRY(msgl__jbuf_add_repeat(b, blank, width > 0 ? (size_t)width : 0));
        MSGL_JTRY(msgl__jbuf_finish(b, &pad));
    }
    // jinja splits the text with one newline added, so a final line end opens an empty line.
    const msgl_jstr newline = {.data = "\n", .len = 1, .chars = 1};
    msgl_jval lines;
    MSGL_JTRY(msgl__jstr_concat(c, self->as.s, &newline, &text));
    MSGL_JTRY(msgl__jstr_splitlines(c, text, false, &lines));
    MSGL_JTRY(msgl__jbuf_new(c, text->len, &b));
    const bool blank = msgl__jarg_true(&arg[2]), first = msgl__jarg_true(&arg[1]);
    for (size_t i = 0; i < lines.as.l->len; i++) {
        const msgl_jstr *line = lines.as.l->items[i].as.s;
        if (i > 0) MSGL_JTRY(msgl__jbuf_adds(b, "\n"));
        if (i == 0 ? first : blank || line->len > 0) MSGL_JTRY(msgl__jbuf_add_jstr(b, pad));
        MSGL_JTRY(msgl__jbuf_add_jstr(b, line));
    }
    MSGL_JTRY(msgl__jbuf_finish(b, &text));
    return give(text, out);
}

// truncate(length=255, killwords=False, end="...", leeway=5)
MSGL_JBUILTIN(f_truncate)
{
    int64_t length, leeway = 5;
    msgl_jstr *s, *end, *head;
    MSGL_JTRY(msgl__jarg_int(c, &arg[0], 255, &length));
    MSGL_JTRY(msgl__jstr_ref(c, "...", 3, false, &end));
    if (arg[2].type != MSGL_J_UNSET) MSGL_JTRY(msgl__jarg_str(c, &arg[2], "truncate", &end));
    if (arg[3].type != MSGL_J_NONE) MSGL_JTRY(msgl__jarg_int(c, &arg[3], 5, &leeway));
    const int64_t end_len = (int64_t)msgl__jstr_chars(end);
    if (length < end_len || leeway < 0) {
        return msgl__jctx_fail(c, "truncate: expected length >= %lld and leeway >= 0",
                               (long long)end_len);
    }
    size_t have;
    MSGL_JTRY(msgl__jlength(c, self, &have));
    if (leeway > INT64_MAX - length || (int64_t)have <= length + leeway) {
        *out = *self;
        return 0;
    }
    MSGL_JTRY(msgl__jarg_str(c, self, "truncate", &s));
    size_t keep = msgl__jstr_offset(s, (size_t)(length - end_len));
    if (!msgl__jarg_true(&arg[1])) {
        for (size_t i = keep; i > 0; i--) {
            if (s->data[i - 1] != ' ') continue;
            keep = i - 1;
            break;
        }
    }
    MSGL_JTRY(msgl__jstr_sub(c, s, 0, keep, &head));
    MSGL_JTRY(msgl__jstr_concat(c, head, end, &s));
    return give(s, out);
}

MSGL_JBUILTIN(f_format)
{
    msgl_jstr *s;
    msgl_jval values;
    MSGL_JTRY(msgl__jto_str(c, self, &s));
    if (call->npos > 0 && call->nkw > 0) {
        return msgl__jctx_fail(c, "can't handle positional and keyword arguments at the same time");
    }
    if (call->nkw > 0) {
        msgl_jdict *d;
        MSGL_JTRY(msgl__jdict_from(c, call, &d));
        values = (msgl_jval){.type = MSGL_J_DICT, .as.d = d};
    } else {
        msgl_jlist *l;
        MSGL_JTRY(msgl__jlist_new(c, call->npos, &l));
        for (size_t i = 0; i < l->len; i++) l->items[i] = call->pos[i];
        values = (msgl_jval){.type = MSGL_J_TUPLE, .as.l = l};
    }
    return msgl__jformat_percent(c, s, &values, out);
}

// --- numbers ---
static int float_to_int(msgl_jctx *c, double f, msgl_jval *out)
{
    if (fabs(f) >= 9.2e18) return msgl__jctx_fail(c, "an integer does not fit into 64 bits");
    *out = msgl__jint((int64_t)f);
    return 0;
}

// int(default=0, base=10)
MSGL_JBUILTIN(f_int)
{
    int64_t base, i;
    double f;
    MSGL_JTRY(msgl__jarg_int(c, &arg[1], 10, &base));
    *out = arg[0].type == MSGL_J_UNSET ? msgl__jint(0) : arg[0];
    if (self->type == MSGL_J_UNDEF) return msgl__jundef_fail(c, self->as.u);
    if (msgl__jas_int(self, &i)) {
        *out = msgl__jint(i);
        return 0;
    }
    if (self->type == MSGL_J_FLOAT) {
        if (isinf(self->as.f)) {
            return msgl__jctx_fail(c, "cannot convert float infinity to integer");
        }
        return isnan(self->as.f) ? 0 : float_to_int(c, self->as.f, out);
    }
    if (self->type == MSGL_J_BIG) *out = *self;
    if (self->type != MSGL_J_STR) return 0;
    bool ok;
    MSGL_JTRY(msgl__jctx_chars(c, self->as.s->len));
    MSGL_JTRY(msgl__jparse_int(c, self->as.s, base < 0 || base > 36 ? 1 : (int)base, &ok, &i));
    if (ok) {
        *out = msgl__jint(i);
    } else if (msgl__jparse_float(self->as.s, &f) && isfinite(f)) {
        return float_to_int(c, f, out);
    }
    return 0;
}

MSGL_JBUILTIN(f_float)
{
    double f;
    *out = arg[0].type == MSGL_J_UNSET ? msgl__jfloat(0) : arg[0];
    if (self->type == MSGL_J_UNDEF) return msgl__jundef_fail(c, self->as.u);
    const bool text = self->type == MSGL_J_STR || self->type == MSGL_J_BIG;
    if (text) MSGL_JTRY(msgl__jctx_chars(c, self->as.s->len));
    if (msgl__jis_number(self)) {
        *out = msgl__jfloat(msgl__jas_double(self));
    } else if (text && msgl__jparse_float(self->as.s, &f)) {
        *out = msgl__jfloat(f);
    }
    return 0;
}

MSGL_JBUILTIN(f_abs)
{
    int64_t i;
    if (self->type == MSGL_J_FLOAT) {
        *out = msgl__jfloat(fabs(self->as.f));
        return 0;
    }
    if (self->type == MSGL_J_UNDEF) return msgl__jundef_fail(c, self->as.u);
    if (!msgl__jas_int(self, &i)) {
        return msgl__jctx_fail(c, "bad operand type for abs(): '%s'", msgl__jtype_name(self));
    }
    if (i == INT64_MIN) return msgl__jctx_fail(c, "an integer does not fit into 64 bits");
    *out = msgl__jint(i < 0 ? -i : i);
    return 0;
}

// Integers: to the nearest 10^n, half to even.
static int round_int(msgl_jctx *c, int64_t v, int64_t digits, msgl_jval *out)
{
    *out = msgl__jint(v);
    if (digits >= 0) return 0;
    if (digits < -18) {
        *out = msgl__jint(0);
        return 0;
    }
    int64_t scale = 1;
    for (; digits < 0; digits++) scale *= 10;
    int64_t q = v / scale, r = v % scale;
    if (r < 0) {
        r += scale;
        q--;
    }
    if (r > scale - r || (r == scale - r && q % 2 != 0)) q++;
    if (__builtin_mul_overflow(q, scale, &q)) {
        return msgl__jctx_fail(c, "an integer does not fit into 64 bits");
    }
    *out = msgl__jint(q);
    return 0;
}

// round(precision=0, method="common")
MSGL_JBUILTIN(f_round)
{
    int64_t digits, i;
    msgl_jstr *method = NULL;
    MSGL_JTRY(msgl__jarg_int(c, &arg[0], 0, &digits));
    if (arg[1].type != MSGL_J_UNSET) MSGL_JTRY(msgl__jarg_str(c, &arg[1], "round", &method));
    const bool up = method != NULL && msgl__jstr_is(method, "ceil");
    const bool down = method != NULL && msgl__jstr_is(method, "floor");
    if (method != NULL && !up && !down && !msgl__jstr_is(method, "common")) {
        return msgl__jctx_fail(c, "method must be common, ceil or floor");
    }
    if (self->type == MSGL_J_UNDEF) return msgl__jundef_fail(c, self->as.u);
    if (!msgl__jis_number(self)) {
        return msgl__jctx_fail(c, "type %s doesn't define __round__ method",
                               msgl__jtype_name(self));
    }
    if (!up && !down) {
        if (msgl__jas_int(self, &i)) return round_int(c, i, digits, out);
        MSGL_JTRY(msgl__jctx_steps(c, 128)); // by way of all its decimals
        const int n = digits > 1000 ? 1000 : digits < -1000 ? -1000 : (int)digits;
        *out = msgl__jfloat(msgl__jround_half_even(self->as.f, n));
        return 0;
    }
    const double scale = pow(10, (double)digits), scaled = msgl__jas_double(self) * scale;
    const double r = (up ? ceil(scaled) : floor(scaled)) / scale;
    *out = msgl__jfloat(r == 0 ? 0.0 : r);
    return 0;
}

const msgl_jbuiltin msgl__jfilters_text[] = {
    {"tojson", "?ensure_ascii ?indent ?separators ?sort_keys", f_tojson},
    {"from_json", "", f_from_json},
    {"fromjson", "", f_from_json},
    {"trim", "?chars", f_trim},
    {"length", "", f_length},
    {"count", "", f_length},
    {"default", "?default_value ?boolean", f_default},
    {"d", "?default_value ?boolean", f_default},
    {"string", "", f_string},
    {"safe", "", f_safe},
    {"upper", "", f_upper},
    {"lower", "", f_lower},
    {"capitalize", "", f_capitalize},
    {"title", "", f_title},
    {"replace", "old new ?count", f_replace},
    {"indent", "?width ?first ?blank", f_indent},
    {"truncate", "?length ?killwords ?end ?leeway", f_truncate},
    {"center", "?width", f_center},
    {"format", "*", f_format},
    {"wordcount", "", f_wordcount},
    {"escape", "", f_escape},
    {"e", "", f_escape},
    {"forceescape", "", f_forceescape},
    {"int", "?default ?base", f_int},
    {"float", "?default", f_float},
    {"abs", "", f_abs},
    {"round", "?precision ?method", f_round},
};
const size_t msgl__jfilters_text_len = MSGL_COUNT(msgl__jfilters_text);
