// SPDX-License-Identifier: Apache-2.0
//
// Strings and numbers of a schema. Formats are patterns of what RFC 3339, 4122, 5321, 4291 and 3986
// allow, a little narrower where the whole would be a page (documented in internals/grammar.md).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "grammar/regex.h"
#include "grammar/schema.h"

#define DATE                                                                                       \
    "\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|"   \
    "02-(?:0[1-9]|1\\d|2[0-8]))"
#define TIME                                                                                       \
    "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define H16 "[0-9a-fA-F]{1,4}"
#define URI "[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#@!$&'()*+,;=-]+"

static const struct {
    const char *name, *pattern; // pattern NULL: known, not supported
} FORMATS[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration",
     "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:T(?:\\d+H(?:\\d+M"
     "(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S))?|T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?"
     "|\\d+S))"},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"email",
     "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,60}(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,60}){0,3}@" LABEL
     "(?:\\." LABEL "){1,4}"},
    {"hostname", LABEL "(?:\\." LABEL "){0,3}"},
    {"ipv4", OCTET "(?:\\." OCTET "){3}"},
    {"ipv6",
     "(?:" H16 ":){7}" H16 "|(?:" H16 ":){1,7}:|(?:" H16 ":){1,6}:" H16 "|(?:" H16 ":){1,5}(?::" H16
     "){1,2}|(?:" H16 ":){1,4}(?::" H16 "){1,3}|(?:" H16 ":){1,3}(?::" H16 "){1,4}|(?:" H16
     ":){1,2}(?::" H16 "){1,5}|" H16 ":(?::" H16 "){1,6}|:(?::" H16 "){1,7}|::"},
    {"uri", URI},
    {"uri-reference", "[A-Za-z0-9._~:/?#@!$&'()*+,;=-]*"},
    {"json-pointer", "(?:/(?:[^~/\\x00-\\x1f]|~[01])*)*"},
    {"iri", NULL},
    {"iri-reference", NULL},
    {"idn-email", NULL},
    {"idn-hostname", NULL},
    {"uri-template", NULL},
    {"relative-json-pointer", NULL},
    {"regex", NULL},
};

static int32_t quoted(msgl_schema *s, int32_t inside)
{
    const int32_t quote = msgl__gx_str(s->b, "\"");
    const int32_t all[3] = {quote, inside, quote};
    return msgl__gx_seq(s->b, all, 3);
}

// The pattern of the format, NULL: there is none to keep to.
static const char *format_of(msgl_schema *s, const json_t *schema)
{
    const json_t *format = json_object_get(schema, "format");
    if (format == NULL) return NULL;
    if (!json_is_string(format)) {
        msgl__schema_fail(s, MSGL_EFORMAT, "format", "has to be a string");
        return NULL;
    }
    for (size_t i = 0; i < MSGL_COUNT(FORMATS); i++) {
        if (strcmp(json_string_value(format), FORMATS[i].name) != 0) continue;
        if (FORMATS[i].pattern == NULL) {
            msgl__schema_fail(s, MSGL_EUNSUPPORTED, "format", "this format is not supported");
        }
        return FORMATS[i].pattern;
    }
    return NULL; // a format that the standard does not know is a note
}

int32_t msgl__schema_string(msgl_schema *s, const json_t *schema)
{
    const int32_t min = msgl__schema_count(s, schema, "minLength", 0);
    const int32_t max = msgl__schema_count(s, schema, "maxLength", MSGL_GX_INF);
    const char *format = format_of(s, schema);
    const json_t *pattern = json_object_get(schema, "pattern");
    if (s->b->rc != 0) return -1;
    if (pattern != NULL && !json_is_string(pattern)) {
        return msgl__schema_fail(s, MSGL_EFORMAT, "pattern", "has to be a string");
    }
    if (pattern != NULL && format != NULL) {
        return msgl__schema_fail(s, MSGL_EUNSUPPORTED, "pattern",
                                 "beside a format it is not supported");
    }
    if (pattern == NULL && format == NULL) {
        if (min == 0 && max == MSGL_GX_INF)
            return msgl__json_rule(s->b, &s->json, MSGL_JSON_STRING);
        return quoted(s, msgl__gx_rep(s->b, msgl__json_char(s->b), min, max));
    }
    char where[MSGL_SCHEMA_PLACE + 64];
    snprintf(where, sizeof where, "json_schema: \"pattern\" at \"%s\"", s->place);
    const msgl_regex_opts o = {.where = where, .search = pattern != NULL, .json = true};
    const char *text = pattern != NULL ? json_string_value(pattern) : format;
    const size_t n = pattern != NULL ? json_string_length(pattern) : strlen(format);
    return quoted(s, msgl__gx_len(s->b, msgl__regex(s->b, text, n, &o), min, max));
}

// ---- numbers ----

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
    char low[32], high[32];
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

enum { NO_BOUND = -1 };

// Integers from lo >= 0 to hi; hi NO_BOUND: no end.
static int32_t natural(msgl_gx_builder *b, int64_t lo, int64_t hi)
{
    if (hi != NO_BOUND && hi < lo) return msgl__gx_never(b);
    msgl_gx_list l = {0};
    char a[32], z[32];
    const int first = snprintf(a, sizeof a, "%lld", (long long)lo);
    const int last = hi == NO_BOUND ? first : snprintf(z, sizeof z, "%lld", (long long)hi);
    for (int n = first; n <= last; n++) {
        if (n > first) snprintf(a, sizeof a, "1%0*d", n - 1, 0);
        if (hi == NO_BOUND || n < last) {
            memset(z, '9', (size_t)n);
            z[n] = '\0';
        } else {
            snprintf(z, sizeof z, "%lld", (long long)hi);
        }
        msgl__gx_list_add(b, &l, same_length(b, a, z));
    }
    if (hi == NO_BOUND) {
        const int32_t more[2] = {digit_class(b, 1, 9), any_digits(b, first, MSGL_GX_INF)};
        msgl__gx_list_add(b, &l, msgl__gx_seq(b, more, 2));
    }
    const int32_t e = b->rc == 0 ? msgl__gx_alt(b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

typedef struct bounds {
    bool has_lo, has_hi, open_lo, open_hi; // open: the bound itself is not allowed
    double lo, hi;
} bounds;

static void narrow(bounds *r, double v, bool low, bool open)
{
    if (low && (!r->has_lo || v > r->lo || (v == r->lo && open))) {
        r->has_lo = true;
        r->lo = v;
        r->open_lo = open;
    }
    if (!low && (!r->has_hi || v < r->hi || (v == r->hi && open))) {
        r->has_hi = true;
        r->hi = v;
        r->open_hi = open;
    }
}

static bounds bounds_of(msgl_schema *s, const json_t *schema)
{
    static const struct {
        const char *name;
        bool low, open;
    } KEYS[] = {{"minimum", true, false},
                {"exclusiveMinimum", true, true},
                {"maximum", false, false},
                {"exclusiveMaximum", false, true}};
    bounds r = {0};
    for (size_t i = 0; i < MSGL_COUNT(KEYS); i++) {
        const json_t *v = json_object_get(schema, KEYS[i].name);
        if (json_is_number(v)) {
            narrow(&r, json_number_value(v), KEYS[i].low, KEYS[i].open);
        } else if (json_is_true(v) && KEYS[i].open) { // draft 4: the bound beside it is open
            if (KEYS[i].low) r.open_lo = true;
            if (!KEYS[i].low) r.open_hi = true;
        } else if (v != NULL && !json_is_false(v)) {
            msgl__schema_fail(s, MSGL_EFORMAT, KEYS[i].name, "has to be a number");
        }
    }
    return r;
}

static int32_t with_minus(msgl_gx_builder *b, int32_t e)
{
    const int32_t all[2] = {msgl__gx_str(b, "-"), e};
    return msgl__gx_seq(b, all, 2);
}

static int32_t integer_in(msgl_schema *s, const bounds *r)
{
    msgl_gx_builder *b = s->b;
    const double most = 9e15; // integers of a double are exact up to here
    if ((r->has_lo && fabs(r->lo) > most) || (r->has_hi && fabs(r->hi) > most)) {
        // A bound that no integer of 15 digits reaches is none; the other way it leaves nothing.
        bounds near = *r;
        if (r->has_lo && r->lo < -most) near.has_lo = false;
        if (r->has_hi && r->hi > most) near.has_hi = false;
        if ((near.has_lo && near.lo > most) || (near.has_hi && near.hi < -most)) {
            return msgl__schema_fail(s, MSGL_ELIMIT, "minimum", "beyond 9e15 (limit: bounds)");
        }
        return near.has_lo || near.has_hi ? integer_in(s, &near)
                                          : msgl__json_rule(b, &s->json, MSGL_JSON_INTEGER);
    }
    int64_t lo = (int64_t)ceil(r->lo), hi = (int64_t)floor(r->hi);
    if (r->open_lo && (double)lo == r->lo) lo++;
    if (r->open_hi && (double)hi == r->hi) hi--;
    msgl_gx_list l = {0};
    if (!r->has_hi || hi >= 0) {
        msgl__gx_list_add(b, &l,
                          natural(b, r->has_lo && lo > 0 ? lo : 0, r->has_hi ? hi : NO_BOUND));
    }
    if (!r->has_lo || lo < 0) {
        const int64_t near = r->has_hi && hi < 0 ? -hi : 1;
        msgl__gx_list_add(b, &l, with_minus(b, natural(b, near, r->has_lo ? -lo : NO_BOUND)));
    }
    const int32_t e = b->rc == 0 ? msgl__gx_alt(b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

// The digits behind a point, between those of two bounds; NULL: no bound.
typedef struct fraction {
    msgl_gx_builder *b;
    const char *lo, *hi;
    bool open_lo, open_hi;
} fraction;

// From digit p on, where all before are those of lo (tight_lo) or hi; may_end: nothing more may
// come. As deep as the bounds have digits.
static int32_t digits_from(const fraction *f, int p, bool tight_lo, bool tight_hi, bool may_end)
{
    msgl_gx_builder *b = f->b;
    const bool past_lo = !tight_lo || (size_t)p >= strlen(f->lo);
    const bool past_hi = !tight_hi || (size_t)p >= strlen(f->hi);
    if (!tight_lo && !tight_hi) return any_digits(b, may_end ? 0 : 1, MSGL_GX_INF);
    if (past_lo && past_hi) {
        const int32_t zeros = msgl__gx_rep(b, msgl__gx_str(b, "0"), may_end ? 0 : 1, MSGL_GX_INF);
        if (tight_hi) return (tight_lo && f->open_lo) || f->open_hi ? msgl__gx_never(b) : zeros;
        if (!f->open_lo) return any_digits(b, may_end ? 0 : 1, MSGL_GX_INF);
        const int32_t above[3] = {msgl__gx_rep(b, msgl__gx_str(b, "0"), 0, MSGL_GX_INF),
                                  digit_class(b, 1, 9), any_digits(b, 0, MSGL_GX_INF)};
        return msgl__gx_seq(b, above, 3);
    }
    msgl_gx_list l = {0};
    const int dl = past_lo ? 0 : f->lo[p] - '0';
    const int dh = !tight_hi ? 9 : past_hi ? 0 : f->hi[p] - '0';
    // Ending here is the bound's beginning with zeros behind: below lo unless lo ends here too, and
    // below hi, which has more digits (the last one is not 0).
    const bool end_lo = !tight_lo || (past_lo && !f->open_lo);
    if (may_end && end_lo) msgl__gx_list_add(b, &l, msgl__gx_str(b, ""));
    for (int d = dl; d <= dh && b->rc == 0; d++) {
        const int32_t next[2] = {digit_class(b, d, d), digits_from(f, p + 1, tight_lo && d == dl,
                                                                   tight_hi && d == dh, true)};
        msgl__gx_list_add(b, &l, msgl__gx_seq(b, next, 2));
    }
    const int32_t e = b->rc == 0 ? msgl__gx_alt(b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

// A fraction, or none where that is in the bounds.
static int32_t fraction_in(msgl_gx_builder *b, const char *lo, bool open_lo, const char *hi,
                           bool open_hi)
{
    const fraction f = {b, lo, hi, open_lo, open_hi};
    const int32_t part[2] = {msgl__gx_str(b, "."),
                             digits_from(&f, 0, lo != NULL, hi != NULL, false)};
    const bool none =
        (lo == NULL || (lo[0] == '\0' && !open_lo)) && (hi == NULL || hi[0] != '\0' || !open_hi);
    const int32_t ways[2] = {msgl__gx_seq(b, part, 2), msgl__gx_str(b, "")};
    return msgl__gx_alt(b, ways, none ? 2 : 1);
}

// v >= 0 as an integer and its digits behind the point, without zeros at their end. False: too
// long, or too large.
static bool split(double v, int64_t *whole, char *digits, size_t size)
{
    char text[64];
    if (!(v < 9e15)) return false;
    for (int n = 0; n <= 17; n++) {
        snprintf(text, sizeof text, "%.*f", n, v);
        if (strtod(text, NULL) != v) continue;
        const char *point = strchr(text, '.');
        *whole = strtoll(text, NULL, 10);
        snprintf(digits, size, "%s", point != NULL ? point + 1 : "");
        for (size_t k = strlen(digits); k > 0 && digits[k - 1] == '0'; k--) digits[k - 1] = '\0';
        return true;
    }
    return false;
}

// Numbers from lo >= 0 to hi, without exponents.
static int32_t magnitude(msgl_schema *s, const bounds *r)
{
    msgl_gx_builder *b = s->b;
    int64_t a = 0, z = 0;
    char fa[32] = "", fz[32] = "";
    if (!split(r->has_lo ? r->lo : 0, &a, fa, sizeof fa) ||
        (r->has_hi && !split(r->hi, &z, fz, sizeof fz))) {
        return msgl__schema_fail(
            s, MSGL_ELIMIT, "minimum",
            "a bound beyond 9e15 or with more than 17 decimals (limit: bounds)");
    }
    const char *lo = r->has_lo ? fa : NULL, *hi = r->has_hi ? fz : NULL;
    if (r->has_hi && a == z) {
        const int32_t one[2] = {natural(b, a, a), fraction_in(b, lo, r->open_lo, hi, r->open_hi)};
        return msgl__gx_seq(b, one, 2);
    }
    if (r->has_hi && a > z) return msgl__gx_never(b);
    const int32_t first[2] = {natural(b, a, a), fraction_in(b, lo, r->open_lo, NULL, false)};
    const int32_t middle[2] = {natural(b, a + 1, r->has_hi ? z - 1 : NO_BOUND),
                               fraction_in(b, NULL, false, NULL, false)};
    int32_t ways[3] = {msgl__gx_seq(b, first, 2)};
    int32_t n = 1;
    if (!r->has_hi || z > a + 1) ways[n++] = msgl__gx_seq(b, middle, 2);
    if (r->has_hi) {
        const int32_t last[2] = {natural(b, z, z), fraction_in(b, NULL, false, hi, r->open_hi)};
        ways[n++] = msgl__gx_seq(b, last, 2);
    }
    return msgl__gx_alt(b, ways, n);
}

static int32_t number_in(msgl_schema *s, const bounds *r)
{
    msgl_gx_list l = {0};
    if (!r->has_hi || r->hi > 0 || (r->hi == 0 && !r->open_hi)) {
        bounds up = *r;
        if (!up.has_lo || up.lo < 0) {
            up.has_lo = false;
            up.open_lo = false;
        }
        msgl__gx_list_add(s->b, &l, magnitude(s, &up));
    }
    if (!r->has_lo || r->lo < 0) {
        bounds down = {.has_lo = r->has_hi && r->hi < 0, .has_hi = r->has_lo};
        if (down.has_lo) down.lo = -r->hi;
        if (down.has_lo) down.open_lo = r->open_hi;
        if (down.has_hi) down.hi = -r->lo;
        if (down.has_hi) down.open_hi = r->open_lo;
        // -0 is 0, which a bound at or above it has to allow.
        if (r->has_hi && r->hi == 0 && r->open_hi) {
            down.has_lo = true;
            down.lo = 0;
            down.open_lo = true;
        }
        msgl__gx_list_add(s->b, &l, with_minus(s->b, magnitude(s, &down)));
    }
    const int32_t e = s->b->rc == 0 ? msgl__gx_alt(s->b, l.at, l.n) : -1;
    msgl__gx_list_free(&l);
    return e;
}

// Integers that n divides: a rule per remainder of what was read.
static int32_t divisible(msgl_gx_builder *b, int n)
{
    int32_t rules[101];
    for (int r = 0; r < n; r++) rules[r] = msgl__gx_rule_new(b, NULL, 0);
    int32_t first[9];
    for (int r = 0; r < n && b->rc == 0; r++) {
        int32_t ways[11];
        int k = 0;
        for (int d = 0; d < 10; d++) {
            const int32_t one[2] = {digit_class(b, d, d), msgl__gx_ref(b, rules[(r * 10 + d) % n])};
            ways[k++] = msgl__gx_seq(b, one, 2);
        }
        if (r == 0) ways[k++] = msgl__gx_str(b, "");
        msgl__gx_rule_set(b, rules[r], msgl__gx_alt(b, ways, k));
    }
    for (int d = 1; d < 10; d++) {
        const int32_t one[2] = {digit_class(b, d, d), msgl__gx_ref(b, rules[d % n])};
        first[d - 1] = msgl__gx_seq(b, one, 2);
    }
    const int32_t signed_one[2] = {msgl__gx_rep(b, msgl__gx_str(b, "-"), 0, 1),
                                   msgl__gx_alt(b, first, 9)};
    const int32_t ways[2] = {msgl__gx_str(b, "0"), msgl__gx_seq(b, signed_one, 2)};
    return msgl__gx_alt(b, ways, 2);
}

// -1 with no failure: nothing to keep to.
static int32_t multiple_of(msgl_schema *s, const json_t *schema, const bounds *r, bool integer)
{
    const json_t *v = json_object_get(schema, "multipleOf");
    if (v == NULL) return -1;
    const double m = json_number_value(v);
    if (!json_is_number(v) || !(m > 0)) {
        return msgl__schema_fail(s, MSGL_EFORMAT, "multipleOf", "has to be a number above 0");
    }
    if (integer && m == 1) return -1;
    if (r->has_lo || r->has_hi) {
        return msgl__schema_fail(s, MSGL_EUNSUPPORTED, "multipleOf",
                                 "beside bounds it is not supported");
    }
    if (m == 1) return msgl__json_rule(s->b, &s->json, MSGL_JSON_INTEGER);
    if (m == floor(m) && m <= 100) return divisible(s->b, (int)m);
    static const double TENTHS[] = {1, 0.1, 0.01, 0.001, 0.0001, 0.00001, 0.000001};
    for (int k = 1; k <= 6 && !integer; k++) {
        if (m != TENTHS[k]) continue;
        const int32_t part[2] = {msgl__gx_str(s->b, "."), any_digits(s->b, 1, k)};
        const int32_t all[2] = {msgl__json_rule(s->b, &s->json, MSGL_JSON_INTEGER),
                                msgl__gx_rep(s->b, msgl__gx_seq(s->b, part, 2), 0, 1)};
        return msgl__gx_seq(s->b, all, 2);
    }
    return msgl__schema_fail(s, MSGL_EUNSUPPORTED, "multipleOf",
                             "supported: integers up to 100, and 0.1 to 0.000001");
}

int32_t msgl__schema_number(msgl_schema *s, const json_t *schema, bool integer)
{
    const bounds r = bounds_of(s, schema);
    const int32_t multiple = multiple_of(s, schema, &r, integer);
    if (s->b->rc != 0) return -1;
    if (multiple >= 0) return multiple;
    if (r.has_lo && r.has_hi && (r.lo > r.hi || (r.lo == r.hi && (r.open_lo || r.open_hi)))) {
        return msgl__gx_never(s->b);
    }
    if (!r.has_lo && !r.has_hi) {
        return integer ? msgl__json_rule(s->b, &s->json, MSGL_JSON_INTEGER)
                       : msgl__json_rule(s->b, &s->json, MSGL_JSON_NUMBER);
    }
    return integer ? integer_in(s, &r) : number_in(s, &r);
}
