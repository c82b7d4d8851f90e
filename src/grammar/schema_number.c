// SPDX-License-Identifier: Apache-2.0
//
// Numbers of a schema: between bounds, and multiples of a number.
#include "grammar/schema_number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"

enum {
    MAX_DIVISOR = 1000, // remainders that an automaton keeps
    MAX_VALUES = 2000,  // multiples between two bounds that are written out one by one
};

// ---- decimals ----

void msgl__schema_real(double v, char *out, size_t size)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, size, "%.*g", digits, v);
        if (strtod(out, NULL) == v) break;
    }
    if (strcspn(out, ".eE") == strlen(out) && strlen(out) + 3 < size) {
        memcpy(out + strlen(out), ".0", 3);
    }
}

// A JSON number's text as digits around the point.
static void parse(const char *text, size_t n, msgl_dec *out)
{
    *out = (msgl_dec){.neg = n > 0 && text[0] == '-'};
    size_t i = out->neg, digits = i;
    while (digits < n && strchr("0123456789.", text[digits]) != NULL) digits++;
    const char *point = memchr(text + i, '.', digits - i);
    const size_t before = (size_t)(point != NULL ? point - (text + i) : (long)(digits - i));
    long shift = digits < n ? strtol(text + digits + 1, NULL, 10) : 0;
    if (shift > 100000) shift = 100000;
    if (shift < -100000) shift = -100000;
    // Digit k of the text, counted without the point, stands `place` digits before it.
    long place = (long)before + shift;
    size_t whole = 0, frac = 0;
    for (; i < digits; i++) {
        if (text[i] == '.') continue;
        const char c = text[i];
        if (place > 0 && (whole > 0 || c != '0')) {
            if (whole <= MSGL_DEC_WHOLE) out->whole[whole] = c;
            whole++;
        } else if (place <= 0) {
            while (frac < (size_t)-place && frac <= MSGL_DEC_FRAC) out->frac[frac++] = '0';
            if (c != '0' && frac >= MSGL_DEC_FRAC) out->fine = true;
            if (frac < MSGL_DEC_FRAC) out->frac[frac++] = c;
        }
        place--;
    }
    for (; place > 0 && whole > 0; place--) {
        if (whole <= MSGL_DEC_WHOLE) out->whole[whole] = '0';
        whole++;
    }
    out->huge = whole > MSGL_DEC_WHOLE;
    if (whole == 0) out->whole[whole++] = '0';
    if (out->huge) memset(out->whole, '9', MSGL_DEC_WHOLE);
    out->whole[out->huge ? MSGL_DEC_WHOLE : whole] = '\0';
    if (frac > MSGL_DEC_FRAC) frac = MSGL_DEC_FRAC;
    while (frac > 0 && out->frac[frac - 1] == '0') frac--;
    out->frac[frac] = '\0';
    if (out->whole[0] == '0' && frac == 0 && !out->fine) out->neg = false;
}

void msgl__dec_of(const msgl_schema *s, const json_t *v, msgl_dec *out)
{
    char text[64];
    const msgl_schema_large *large = msgl__schema_large_of(s, v);
    size_t n = large != NULL ? large->n : 0, steps = n / 4;
    if (json_is_integer(v)) {
        n = (size_t)snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
        steps = 4;
    } else if (large == NULL) {
        msgl__schema_real(json_real_value(v), text, sizeof text);
        n = strlen(text);
        steps = n * 8; // the real was printed and read again once for each of its digits
    }
    parse(large != NULL ? large->text : text, n, out);
    (void)msgl__gx_spend(s->b, steps, 0);
}

// Without the signs.
static int compare_size(const msgl_dec *a, const msgl_dec *b)
{
    if (a->huge != b->huge) return a->huge ? 1 : -1;
    const size_t n = strlen(a->whole), m = strlen(b->whole);
    if (n != m) return n > m ? 1 : -1;
    const int c = strcmp(a->whole, b->whole);
    return c != 0 ? c : strcmp(a->frac, b->frac);
}

int msgl__dec_compare(const msgl_dec *a, const msgl_dec *b)
{
    if (a->neg != b->neg) return a->neg ? -1 : 1;
    return a->neg ? compare_size(b, a) : compare_size(a, b);
}

bool msgl__dec_is_integer(const msgl_dec *a)
{
    return a->frac[0] == '\0' && !a->fine;
}

void msgl__dec_text(const msgl_dec *a, char out[MSGL_DEC_WHOLE + MSGL_DEC_FRAC + 8])
{
    snprintf(out, MSGL_DEC_WHOLE + MSGL_DEC_FRAC + 8, "%s%s%s%s", a->neg ? "-" : "", a->whole,
             a->frac[0] != '\0' ? "." : "", a->frac);
}

// m as unit * 10^-decimals. False: it has more than 18 digits.
static bool split_unit(const msgl_dec *m, int64_t *unit, int *decimals)
{
    char text[MSGL_DEC_WHOLE + MSGL_DEC_FRAC + 8];
    snprintf(text, sizeof text, "%s%s", m->whole, m->frac);
    const char *p = text + strspn(text, "0");
    if (strlen(p) > 18 || m->huge || m->fine) return false;
    *unit = strtoll(p, NULL, 10);
    *decimals = (int)strlen(m->frac);
    return *unit > 0;
}

int msgl__dec_divides(const msgl_dec *m, const msgl_dec *v)
{
    int64_t unit, rest = 0;
    int decimals;
    if (!split_unit(m, &unit, &decimals) || v->huge || v->fine || unit > INT64_MAX / 10 - 9) {
        return -1;
    }
    if (strlen(v->frac) > (size_t)decimals) return 0;
    for (const char *p = v->whole; *p != '\0'; p++) rest = (rest * 10 + (*p - '0')) % unit;
    const char *f = v->frac;
    for (int i = 0; i < decimals; i++) {
        rest = (rest * 10 + (*f != '\0' ? *f - '0' : 0)) % unit;
        if (*f != '\0') f++;
    }
    return rest == 0;
}

// The integer in `whole` plus one, or less one (it is above 0), in place; there is room for a
// digit.
static void add_one(char *whole)
{
    size_t n = strlen(whole), i = n;
    while (i > 0 && whole[i - 1] == '9') whole[--i] = '0';
    if (i > 0) {
        whole[i - 1]++;
        return;
    }
    memmove(whole + 1, whole, n + 1);
    whole[0] = '1';
}

static void less_one(char *whole)
{
    size_t i = strlen(whole);
    while (i > 0 && whole[i - 1] == '0') whole[--i] = '9';
    if (i > 0) whole[i - 1]--;
    if (whole[0] == '0' && whole[1] != '\0') memmove(whole, whole + 1, strlen(whole));
}

// ---- digits ----

static int32_t digit_class(msgl_gx_builder *b, int first, int last)
{
    const uint32_t pair[2] = {(uint32_t)('0' + first), (uint32_t)('0' + last)};
    return msgl__gx_class(b, pair, 1, false);
}

static int32_t any_digits(msgl_gx_builder *b, int32_t min, int32_t max)
{
    return msgl__gx_rep(b, digit_class(b, 0, 9), min, max);
}

static bool all_are(const char *p, char c)
{
    return strspn(p, (const char[2]){c, '\0'}) == strlen(p);
}

// Numbers of as many digits as a and z have, from a to z. As deep as there are digits.
static int32_t same_length(msgl_gx_builder *b, const char *a, const char *z)
{
    const int32_t left = (int32_t)strlen(a) - 1;
    if (left < 0) return msgl__gx_str(b, "");
    if (all_are(a + 1, '0') && all_are(z + 1, '9')) {
        const int32_t all[2] = {digit_class(b, a[0] - '0', z[0] - '0'), any_digits(b, left, left)};
        return msgl__gx_seq(b, all, 2);
    }
    if (a[0] == z[0]) {
        const int32_t all[2] = {msgl__gx_lit(b, a, 1), same_length(b, a + 1, z + 1)};
        return msgl__gx_seq(b, all, 2);
    }
    char low[MSGL_DEC_WHOLE + 2], high[MSGL_DEC_WHOLE + 2];
    memset(low, '0', (size_t)left);
    memset(high, '9', (size_t)left);
    low[left] = high[left] = '\0';
    const int32_t first[2] = {msgl__gx_lit(b, a, 1), same_length(b, a + 1, high)};
    const int32_t last[2] = {msgl__gx_lit(b, z, 1), same_length(b, low, z + 1)};
    int32_t ways[3] = {msgl__gx_seq(b, first, 2), msgl__gx_seq(b, last, 2)};
    int32_t n = 2;
    if (z[0] - a[0] > 1) {
        const int32_t middle[2] = {digit_class(b, a[0] + 1 - '0', z[0] - 1 - '0'),
                                   any_digits(b, left, left)};
        ways[n++] = msgl__gx_seq(b, middle, 2);
    }
    return msgl__gx_alt(b, ways, n);
}

static int compare_whole(const char *a, const char *z)
{
    const size_t n = strlen(a), m = strlen(z);
    return n != m ? (n > m) - (n < m) : strcmp(a, z);
}

// Integers from a to z; z NULL: no end.
static int32_t natural(msgl_gx_builder *b, const char *a, const char *z)
{
    if (z != NULL && compare_whole(a, z) > 0) return msgl__gx_never(b);
    const int32_t first = (int32_t)strlen(a), last = z != NULL ? (int32_t)strlen(z) : MSGL_GX_INF;
    char high[MSGL_DEC_WHOLE + 2], low[MSGL_DEC_WHOLE + 2];
    memset(high, '9', (size_t)first);
    high[first] = '\0';
    if (first == last) return same_length(b, a, z);
    int32_t ways[3] = {same_length(b, a, high)};
    int32_t n = 1;
    if (z == NULL || last > first + 1) { // every number of so many digits
        const int32_t more[2] = {digit_class(b, 1, 9),
                                 any_digits(b, first, z == NULL ? MSGL_GX_INF : last - 2)};
        ways[n++] = msgl__gx_seq(b, more, 2);
    }
    if (z != NULL) {
        memset(low, '0', (size_t)last);
        low[0] = '1';
        low[last] = '\0';
        ways[n++] = same_length(b, low, z);
    }
    return msgl__gx_alt(b, ways, n);
}

// ---- fractions ----

// The digits behind a point, between those of two bounds; NULL: no bound.
typedef struct fraction {
    msgl_gx_builder *b;
    const char *lo, *hi;
    bool open_lo, open_hi;
    int32_t most; // digits, MSGL_GX_INF: any number
} fraction;

static int32_t left_of(const fraction *f, int p)
{
    return f->most == MSGL_GX_INF ? MSGL_GX_INF : f->most - p;
}

// All bounds' digits are behind: what may follow is above lo, or not above hi, which ends here.
static int32_t past_bounds(const fraction *f, int p, bool tight_lo, bool tight_hi, bool may_end)
{
    msgl_gx_builder *b = f->b;
    const int32_t least = may_end ? 0 : 1, most = left_of(f, p);
    const bool above = tight_lo && f->open_lo;
    // Where lo ends here as well the bounds are the same, and then both are closed.
    if (tight_hi && f->open_hi) return msgl__gx_never(b);
    if (tight_hi) return msgl__gx_rep(b, msgl__gx_str(b, "0"), least, most);
    if (!above) return any_digits(b, least, most);
    // Some digit that is not 0.
    if (most == 0) return msgl__gx_never(b);
    if (most == MSGL_GX_INF) {
        const int32_t some[3] = {msgl__gx_rep(b, msgl__gx_str(b, "0"), 0, MSGL_GX_INF),
                                 digit_class(b, 1, 9), any_digits(b, 0, MSGL_GX_INF)};
        return msgl__gx_seq(b, some, 3);
    }
    msgl_gx_list l = {0};
    for (int32_t zeros = 0; zeros < most; zeros++) {
        const int32_t one[3] = {msgl__gx_rep(b, msgl__gx_str(b, "0"), zeros, zeros),
                                digit_class(b, 1, 9), any_digits(b, 0, most - zeros - 1)};
        msgl__gx_list_add(b, &l, msgl__gx_seq(b, one, 3));
    }
    const int32_t e = b->rc == 0 ? msgl__gx_alt(b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

// From digit p on, where all before are those of lo (tight_lo) or hi; may_end: nothing more may
// come. As deep as the bounds have digits.
static int32_t digits_from(const fraction *f, int p, bool tight_lo, bool tight_hi, bool may_end)
{
    msgl_gx_builder *b = f->b;
    const bool past_lo = !tight_lo || (size_t)p >= strlen(f->lo);
    const bool past_hi = !tight_hi || (size_t)p >= strlen(f->hi);
    if (past_lo && past_hi) return past_bounds(f, p, tight_lo, tight_hi, may_end);
    msgl_gx_list l = {0};
    const int dl = past_lo ? 0 : f->lo[p] - '0';
    const int dh = !tight_hi ? 9 : past_hi ? 0 : f->hi[p] - '0';
    // Ending here is the bound's beginning with zeros behind: below lo unless lo ends here too, and
    // below hi, which has more digits (the last one is not 0).
    const bool end_lo = !tight_lo || (past_lo && !f->open_lo);
    if (may_end && end_lo) msgl__gx_list_add(b, &l, msgl__gx_str(b, ""));
    for (int d = dl; d <= dh && b->rc == 0 && left_of(f, p) != 0; d++) {
        const int32_t next[2] = {digit_class(b, d, d), digits_from(f, p + 1, tight_lo && d == dl,
                                                                   tight_hi && d == dh, true)};
        msgl__gx_list_add(b, &l, msgl__gx_seq(b, next, 2));
    }
    const int32_t e = b->rc == 0 ? msgl__gx_alt(b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

// ---- numbers between bounds ----

typedef struct between {
    msgl_schema *s;
    msgl_number_kind kind;
    int32_t decimals; // most digits behind the point
} between;

// A fraction, or none where that is in the bounds.
static int32_t fraction_in(const between *w, const char *lo, bool open_lo, const char *hi,
                           bool open_hi)
{
    msgl_gx_builder *b = w->s->b;
    if (w->kind == MSGL_NUMBER_FRACTION && (lo == NULL || lo[0] == '\0')) {
        lo = "";
        open_lo = true;
    }
    const bool none =
        (lo == NULL || (lo[0] == '\0' && !open_lo)) && (hi == NULL || hi[0] != '\0' || !open_hi);
    const fraction f = {b, lo, hi, open_lo, open_hi, w->decimals};
    const int32_t part[2] = {msgl__gx_str(b, "."),
                             w->decimals == 0 ? msgl__gx_never(b)
                                              : digits_from(&f, 0, lo != NULL, hi != NULL, false)};
    const int32_t ways[2] = {msgl__gx_seq(b, part, 2), msgl__gx_str(b, "")};
    return msgl__gx_alt(b, ways, none ? 2 : 1);
}

static int32_t joined(msgl_gx_builder *b, int32_t x, int32_t y)
{
    const int32_t both[2] = {x, y};
    return msgl__gx_seq(b, both, 2);
}

// Numbers from lo >= 0 to hi, without sign and exponent.
static int32_t magnitude(const between *w, const msgl_bounds *r)
{
    msgl_gx_builder *b = w->s->b;
    const msgl_dec zero = {.whole = "0"};
    const msgl_dec *a = r->has_lo ? &r->lo : &zero, *z = &r->hi;
    const char *lo = r->has_lo ? a->frac : NULL, *hi = z->frac;
    const bool open_lo = r->has_lo && r->open_lo;
    const int order = r->has_hi ? compare_whole(a->whole, z->whole) : -1;
    if (order > 0) return msgl__gx_never(b);
    if (order == 0) {
        return joined(b, natural(b, a->whole, a->whole),
                      fraction_in(w, lo, open_lo, hi, r->open_hi));
    }
    char next[MSGL_DEC_WHOLE + 3], last[MSGL_DEC_WHOLE + 3];
    memcpy(next, a->whole, sizeof a->whole);
    add_one(next);
    int32_t ways[3] = {
        joined(b, natural(b, a->whole, a->whole), fraction_in(w, lo, open_lo, NULL, false))};
    int32_t n = 1;
    if (r->has_hi) {
        memcpy(last, z->whole, sizeof z->whole);
        less_one(last);
    }
    if (!r->has_hi || compare_whole(next, last) <= 0) {
        ways[n++] = joined(b, natural(b, next, r->has_hi ? last : NULL),
                           fraction_in(w, NULL, false, NULL, false));
    }
    if (r->has_hi) {
        ways[n++] =
            joined(b, natural(b, z->whole, z->whole), fraction_in(w, NULL, false, hi, r->open_hi));
    }
    return msgl__gx_alt(b, ways, n);
}

// Integers whose size is between that of the bounds, at least `least`.
static int32_t whole_magnitude(msgl_schema *s, const msgl_bounds *r, const char *least)
{
    char a[MSGL_DEC_WHOLE + 3], z[MSGL_DEC_WHOLE + 3] = "";
    snprintf(a, sizeof a, "%s", r->has_lo ? r->lo.whole : least);
    if (r->has_lo && (!msgl__dec_is_integer(&r->lo) || r->open_lo)) add_one(a);
    if (compare_whole(a, least) < 0) snprintf(a, sizeof a, "%s", least);
    if (r->has_hi) memcpy(z, r->hi.whole, sizeof r->hi.whole);
    if (r->has_hi && msgl__dec_is_integer(&r->hi) && r->open_hi) {
        if (strcmp(z, "0") == 0) return msgl__gx_never(s->b);
        less_one(z);
    }
    return natural(s->b, a, r->has_hi ? z : NULL);
}

// A number that is too large has the most digits there is room for: inside of the bound, if it is
// an upper one for its size.
static bool too_fine(const msgl_bounds *r)
{
    return (r->has_lo && r->lo.fine) || (r->has_hi && r->hi.fine);
}

static bool too_large(const msgl_bounds *r)
{
    return (r->has_lo && r->lo.huge && !r->lo.neg) || (r->has_hi && r->hi.huge && r->hi.neg);
}

static int32_t number_between(const between *w, const msgl_bounds *r)
{
    msgl_schema *s = w->s;
    const bool whole = w->kind == MSGL_NUMBER_INTEGER;
    if (too_large(r) || (too_fine(r) && !whole)) {
        return msgl__schema_fail(s, MSGL_ELIMIT, too_large(r) ? "minimum" : "maximum",
                                 "a bound of more than 60 digits, or with more than 40 decimals "
                                 "(limit: bounds)");
    }
    const msgl_dec zero = {.whole = "0"};
    msgl_gx_list l = {0};
    const int hi = r->has_hi ? msgl__dec_compare(&r->hi, &zero) : 1;
    const int lo = r->has_lo ? msgl__dec_compare(&r->lo, &zero) : -1;
    if (hi > 0 || (hi == 0 && !r->open_hi)) {
        msgl_bounds up = *r;
        if (lo < 0) up.has_lo = up.open_lo = false;
        msgl__gx_list_add(s->b, &l, whole ? whole_magnitude(s, &up, "0") : magnitude(w, &up));
    }
    if (lo < 0) {
        msgl_bounds down = {.has_lo = hi < 0, .has_hi = r->has_lo};
        if (down.has_lo) down.lo = r->hi;
        if (down.has_lo) down.open_lo = r->open_hi;
        if (down.has_hi) down.hi = r->lo;
        if (down.has_hi) down.open_hi = r->open_lo;
        // -0 is 0, which a bound at or above it has to allow; as an integer it is not written.
        if (hi == 0 && r->open_hi && !whole) {
            down.has_lo = down.open_lo = true;
            down.lo = zero;
        }
        msgl__gx_list_add(s->b, &l,
                          joined(s->b, msgl__gx_str(s->b, "-"),
                                 whole ? whole_magnitude(s, &down, "1") : magnitude(w, &down)));
    }
    const int32_t e = s->b->rc == 0 ? msgl__gx_alt(s->b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

int32_t msgl__number_between(msgl_schema *s, const msgl_bounds *r, msgl_number_kind kind)
{
    if (msgl__bounds_empty(r)) return msgl__gx_never(s->b);
    if (!r->has_lo && !r->has_hi && kind != MSGL_NUMBER_FRACTION) {
        return msgl__json_rule(s->b, &s->json,
                               kind == MSGL_NUMBER_INTEGER ? MSGL_JSON_INTEGER : MSGL_JSON_NUMBER);
    }
    const between w = {s, kind, MSGL_GX_INF};
    return number_between(&w, r);
}

bool msgl__bounds_empty(const msgl_bounds *r)
{
    const int c = r->has_lo && r->has_hi ? msgl__dec_compare(&r->lo, &r->hi) : -1;
    return c > 0 || (c == 0 && (r->open_lo || r->open_hi));
}

bool msgl__bounds_have(const msgl_bounds *r, const msgl_dec *v)
{
    const int lo = r->has_lo ? msgl__dec_compare(v, &r->lo) : 1;
    const int hi = r->has_hi ? msgl__dec_compare(v, &r->hi) : -1;
    return (lo > 0 || (lo == 0 && !r->open_lo)) && (hi < 0 || (hi == 0 && !r->open_hi));
}

static void narrow(msgl_bounds *r, const msgl_dec *v, bool low, bool open)
{
    bool *const has = low ? &r->has_lo : &r->has_hi, *const is_open =
                                                         low ? &r->open_lo : &r->open_hi;
    msgl_dec *const at = low ? &r->lo : &r->hi;
    const int c = *has ? msgl__dec_compare(v, at) * (low ? 1 : -1) : 1;
    if (c < 0 || (c == 0 && !open)) return;
    *has = true;
    *at = *v;
    *is_open = open;
}

msgl_bounds msgl__schema_bounds(msgl_schema *s, const json_t *schema)
{
    static const struct {
        const char *name;
        bool low, open;
    } KEYS[] = {{"minimum", true, false},
                {"exclusiveMinimum", true, true},
                {"maximum", false, false},
                {"exclusiveMaximum", false, true}};
    msgl_bounds r = {0};
    for (size_t i = 0; i < MSGL_COUNT(KEYS); i++) {
        const json_t *v = json_object_get(schema, KEYS[i].name);
        if (json_is_number(v)) {
            msgl_dec d;
            msgl__dec_of(s, v, &d);
            narrow(&r, &d, KEYS[i].low, KEYS[i].open);
        } else if (json_is_true(v) && KEYS[i].open) { // draft 4: the bound beside it is open
            if (KEYS[i].low) r.open_lo = true;
            if (!KEYS[i].low) r.open_hi = true;
        } else if (v != NULL && !json_is_false(v)) {
            msgl__schema_fail(s, MSGL_EFORMAT, KEYS[i].name, "has to be a number");
        }
    }
    return r;
}

// ---- multiples ----

// A number that `unit` divides when its point is moved `decimals` places: rules by the remainder of
// what was read and the digits behind the point so far. minus: negative ones, too.
static int32_t divisible(msgl_schema *s, int unit, int decimals, bool minus, bool zero)
{
    msgl_gx_builder *b = s->b;
    const int32_t n = unit * (decimals + 1);
    int32_t *rules = msgl__reallocarray(NULL, (size_t)n, sizeof *rules);
    if (rules == NULL) return msgl__gx_fail(b, MSGL_ENOMEM, "out of memory for a grammar");
    for (int32_t i = 0; i < n; i++) rules[i] = msgl__gx_rule_new(b, NULL, 0);
    // rules[p * unit + r]: p digits behind the point, remainder r.
    for (int p = 0; p <= decimals; p++) {
        for (int r = 0; r < unit && b->rc == 0; r++) {
            int32_t ways[32];
            int k = 0, rest = r;
            for (int i = p; i < decimals; i++) rest = rest * 10 % unit;
            for (int d = 0; d < 10; d++) {
                const int32_t row = p == 0 ? 0 : p < decimals ? p + 1 : -1;
                if (row < 0) continue;
                ways[k++] = joined(b, digit_class(b, d, d),
                                   msgl__gx_ref(b, rules[row * unit + (r * 10 + d) % unit]));
            }
            for (int d = 0; d < 10 && p == 0 && decimals > 0; d++) {
                const char text[3] = {'.', (char)('0' + d), '\0'};
                ways[k++] = joined(b, msgl__gx_str(b, text),
                                   msgl__gx_ref(b, rules[unit + (r * 10 + d) % unit]));
            }
            if (rest == 0) ways[k++] = msgl__gx_str(b, "");
            msgl__gx_rule_set(b, rules[p * unit + r], msgl__gx_alt(b, ways, k));
        }
    }
    msgl_gx_list l = {0};
    for (int d = 1; d < 10; d++) {
        msgl__gx_list_add(b, &l, joined(b, digit_class(b, d, d), msgl__gx_ref(b, rules[d % unit])));
    }
    // 0, alone or before a point.
    for (int d = 0; d < 10 && decimals > 0; d++) {
        const char text[4] = {'0', '.', (char)('0' + d), '\0'};
        msgl__gx_list_add(
            b, &l, joined(b, msgl__gx_str(b, text), msgl__gx_ref(b, rules[unit + d % unit])));
    }
    const int32_t sizes = b->rc == 0 ? msgl__gx_alt(b, l.at, l.n) : -1;
    const int32_t both[2] = {
        joined(b, msgl__gx_rep(b, msgl__gx_str(b, "-"), 0, minus ? 1 : 0), sizes),
        msgl__gx_str(b, "0")};
    msgl__gx_list_free(&l);
    msgl__free(rules);
    return msgl__gx_alt(b, both, zero ? 2 : 1);
}

// The multiples between two bounds one by one, in units of 10^-decimals.
static int32_t listed(msgl_schema *s, int64_t first, int64_t last, int64_t unit, int decimals)
{
    msgl_gx_list l = {0};
    int64_t tens = 1;
    for (int i = 0; i < decimals; i++) tens *= 10;
    for (int64_t v = first; v <= last && s->b->rc == 0; v += unit) {
        char text[64];
        const int64_t size = v < 0 ? -v : v;
        int n = snprintf(text, sizeof text, "%s%lld", v < 0 ? "-" : "", (long long)(size / tens));
        if (size % tens != 0) {
            n += snprintf(text + n, sizeof text - (size_t)n, ".%0*lld", decimals,
                          (long long)(size % tens));
            msgl__gx_list_add(s->b, &l, msgl__gx_lit(s->b, text, (size_t)n));
            if (text[n - 1] != '0') continue;
            while (text[n - 1] == '0') n--;
        }
        msgl__gx_list_add(s->b, &l, msgl__gx_lit(s->b, text, (size_t)n));
    }
    const int32_t e = s->b->rc == 0 ? msgl__gx_alt(s->b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

// v * 10^decimals, rounded towards minus infinity. False: more than 17 digits.
static bool scaled(const msgl_dec *v, int decimals, int64_t *out)
{
    char text[MSGL_DEC_WHOLE + MSGL_DEC_FRAC + 32];
    if (v->huge || strlen(v->whole) + (size_t)decimals > 17) return false;
    const int n = (int)strlen(v->frac);
    snprintf(text, sizeof text, "%s%.*s%.*s", v->whole, decimals, v->frac,
             n < decimals ? decimals - n : 0, "00000000000000000");
    const int64_t size = strtoll(text, NULL, 10);
    const bool exact = n <= decimals && !v->fine;
    *out = v->neg ? -size - !exact : size;
    return true;
}

// Multiples in bounds that both exist and leave few of them; -1 without a failure: they do not.
static int32_t few_multiples(msgl_schema *s, const msgl_bounds *r, int64_t unit, int decimals)
{
    int64_t lo, hi;
    if (!r->has_lo || !r->has_hi || decimals > 15 || !scaled(&r->lo, decimals, &lo) ||
        !scaled(&r->hi, decimals, &hi)) {
        return -1;
    }
    const bool exact_lo = strlen(r->lo.frac) <= (size_t)decimals && !r->lo.fine;
    const bool exact_hi = strlen(r->hi.frac) <= (size_t)decimals && !r->hi.fine;
    if (!exact_lo || r->open_lo) lo++;
    if (exact_hi && r->open_hi) hi--;
    const int64_t over = ((lo % unit) + unit) % unit;
    if (over != 0) lo += unit - over;
    if (lo > hi) return msgl__gx_never(s->b);
    return (hi - lo) / unit < MAX_VALUES ? listed(s, lo, hi, unit, decimals) : -1;
}

static int32_t multiples(msgl_schema *s, const msgl_dec *m, msgl_bounds *r, bool integer)
{
    int64_t unit;
    int decimals;
    if (split_unit(m, &unit, &decimals)) {
        // As integers: what 10^decimals and the unit have in common is no condition.
        for (; integer && decimals > 0; decimals--) {
            if (unit % 10 == 0) {
                unit /= 10;
            } else if (unit % 5 == 0) {
                unit /= 5;
            } else if (unit % 2 == 0) {
                unit /= 2;
            }
        }
        if (unit == 1 && decimals == 0) return msgl__number_between(s, r, MSGL_NUMBER_INTEGER);
        const int32_t few = few_multiples(s, r, unit, decimals);
        if (few >= 0 || s->b->rc != 0) return few;
        if (unit == 1) { // at most so many decimals
            const between w = {s, MSGL_NUMBER_ANY, decimals};
            return number_between(&w, r);
        }
        const msgl_dec zero = {.whole = "0"};
        const bool from_zero = r->has_lo && msgl__dec_compare(&r->lo, &zero) == 0;
        // 0.0 is 0: where that is not allowed, integers only.
        const bool zero_ok = !r->has_lo || !r->open_lo;
        if (!r->has_hi && (!r->has_lo || from_zero) && (zero_ok || decimals == 0) &&
            unit <= MAX_DIVISOR / (decimals + 1)) {
            return divisible(s, (int)unit, decimals, !r->has_lo, zero_ok);
        }
    }
    return msgl__schema_fail(s, MSGL_EUNSUPPORTED, "multipleOf",
                             "supported: powers of ten up to 1; others with bounds that leave at "
                             "most 2,000 values, or without bounds (or from 0 on) up to 1,000 "
                             "remainders");
}

int32_t msgl__schema_number(msgl_schema *s, const json_t *schema, bool integer)
{
    msgl_bounds r = msgl__schema_bounds(s, schema);
    const json_t *v = json_object_get(schema, "multipleOf");
    if (s->b->rc != 0) return -1;
    if (v != NULL) {
        const msgl_dec zero = {.whole = "0"};
        msgl_dec m;
        msgl__dec_of(s, v, &m);
        if (!json_is_number(v) || msgl__dec_compare(&m, &zero) <= 0) {
            return msgl__schema_fail(s, MSGL_EFORMAT, "multipleOf", "has to be a number above 0");
        }
        return msgl__bounds_empty(&r) ? msgl__gx_never(s->b) : multiples(s, &m, &r, integer);
    }
    return msgl__number_between(s, &r, integer ? MSGL_NUMBER_INTEGER : MSGL_NUMBER_ANY);
}
