// SPDX-License-Identifier: Apache-2.0
#include "grammar/json_text.h"

#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "grammar/nfa_build.h"
#include "utils/json_write.h"
#include "utils/strbuf.h"
#include "utils/utf8.h"

const msgl_json_escape msgl__json_short_escapes[MSGL_JSON_SHORT_ESCAPES] = {
    {'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"}, {'\f', "\\f"},
    {'\n', "\\n"}, {'\r', "\\r"},  {'\t', "\\t"},
};

int msgl__json_short_escape(uint32_t cp)
{
    for (int i = 0; i < MSGL_JSON_SHORT_ESCAPES; i++) {
        if (msgl__json_short_escapes[i].cp == cp) return i;
    }
    return -1;
}

size_t msgl__json_put_char(uint32_t cp, char out[8])
{
    char escape[12];
    const size_t n = msgl__json_escape(cp, false, escape); // at most \u001f
    if (n == 0) return msgl__utf8_put(cp, out);
    memcpy(out, escape, n);
    return n;
}

void msgl__json_rules_init(msgl_json_rules *r)
{
    r->space = -1;
    for (int i = 0; i < MSGL_JSON_RULES; i++) r->rules[i] = -1;
}

// Nothing, a space, or a line break and indentation: what JSON writers put between tokens, and not
// as much white space as a model that has lost its way may like.
int32_t msgl__json_space(msgl_gx_builder *b, msgl_json_rules *r)
{
    if (r->space >= 0) return r->space;
    const uint32_t blank[4] = {' ', ' ', '\t', '\t'};
    const int32_t line[3] = {msgl__gx_rep(b, msgl__gx_str(b, "\r"), 0, 1), msgl__gx_str(b, "\n"),
                             msgl__gx_rep(b, msgl__gx_class(b, blank, 2, false), 0, 64)};
    const int32_t ways[3] = {msgl__gx_str(b, ""), msgl__gx_str(b, " "), msgl__gx_seq(b, line, 3)};
    return r->space = msgl__gx_alt(b, ways, 3);
}

static int32_t hex(msgl_gx_builder *b, const char *spans, int32_t n)
{
    uint32_t pairs[8];
    for (int32_t i = 0; i < n; i++) pairs[i] = (unsigned char)spans[i];
    return msgl__gx_class(b, pairs, n / 2, false);
}

// \uXXXX, where halves of surrogate pairs come as pairs only.
static int32_t unicode_escape(msgl_gx_builder *b)
{
    const int32_t any = hex(b, "09AFaf", 6), d = hex(b, "DDdd", 4);
    const int32_t ends[2] = {hex(b, "09ACac", 6), hex(b, "EFef", 4)};
    const int32_t plain[2] = {msgl__gx_alt(b, ends, 2), msgl__gx_rep(b, any, 3, 3)};
    const int32_t before[3] = {d, hex(b, "07", 2), msgl__gx_rep(b, any, 2, 2)};
    const int32_t pair[7] = {
        d, hex(b, "89ABab", 6), msgl__gx_rep(b, any, 2, 2), msgl__gx_str(b, "\\u"),
        d, hex(b, "CFcf", 4),   msgl__gx_rep(b, any, 2, 2)};
    const int32_t ways[3] = {msgl__gx_seq(b, plain, 2), msgl__gx_seq(b, before, 3),
                             msgl__gx_seq(b, pair, 7)};
    const int32_t whole[2] = {msgl__gx_str(b, "\\u"), msgl__gx_alt(b, ways, 3)};
    return msgl__gx_seq(b, whole, 2);
}

int32_t msgl__json_char(msgl_gx_builder *b)
{
    const uint32_t short_ones[] = {'"', '"', '/', '/', '\\', '\\', 'b', 'b',
                                   'f', 'f', 'n', 'n', 'r',  'r',  't', 't'};
    const int32_t escaped[2] = {msgl__gx_str(b, "\\"), msgl__gx_class(b, short_ones, 8, false)};
    const int32_t ways[3] = {msgl__gx_class(b, msgl__plain_pairs, MSGL_PLAIN_PAIRS, false),
                             msgl__gx_one(b, msgl__gx_seq(b, escaped, 2)),
                             msgl__gx_one(b, unicode_escape(b))};
    return msgl__gx_alt(b, ways, 3);
}

static int32_t string_body(msgl_gx_builder *b, msgl_json_rules *r)
{
    (void)r;
    const int32_t all[3] = {msgl__gx_str(b, "\""),
                            msgl__gx_rep(b, msgl__json_char(b), 0, MSGL_GX_INF),
                            msgl__gx_str(b, "\"")};
    return msgl__gx_seq(b, all, 3);
}

static int32_t key_body(msgl_gx_builder *b, msgl_json_rules *r)
{
    (void)r;
    const int32_t all[2] = {msgl__gx_str(b, "\""), msgl__gx_except(b, NULL, 0)};
    return msgl__gx_seq(b, all, 2);
}

static int32_t digits(msgl_gx_builder *b, char first, int32_t min, int32_t max)
{
    const uint32_t pair[2] = {(unsigned char)first, '9'};
    return msgl__gx_rep(b, msgl__gx_class(b, pair, 1, false), min, max);
}

static int32_t integer_body(msgl_gx_builder *b, msgl_json_rules *r)
{
    (void)r;
    const int32_t more[2] = {digits(b, '1', 1, 1), digits(b, '0', 0, MSGL_GX_INF)};
    const int32_t ways[2] = {msgl__gx_str(b, "0"), msgl__gx_seq(b, more, 2)};
    const int32_t all[2] = {msgl__gx_rep(b, msgl__gx_str(b, "-"), 0, 1), msgl__gx_alt(b, ways, 2)};
    return msgl__gx_seq(b, all, 2);
}

static int32_t number_body(msgl_gx_builder *b, msgl_json_rules *r)
{
    const uint32_t e[4] = {'E', 'E', 'e', 'e'}, sign[4] = {'+', '+', '-', '-'};
    const int32_t part[2] = {msgl__gx_str(b, "."), digits(b, '0', 1, MSGL_GX_INF)};
    // Exponents of two digits: what is larger a reader may take for infinite.
    const int32_t power[3] = {msgl__gx_class(b, e, 2, false),
                              msgl__gx_rep(b, msgl__gx_class(b, sign, 2, false), 0, 1),
                              digits(b, '0', 1, 2)};
    const int32_t all[3] = {integer_body(b, r), msgl__gx_rep(b, msgl__gx_seq(b, part, 2), 0, 1),
                            msgl__gx_rep(b, msgl__gx_seq(b, power, 3), 0, 1)};
    return msgl__gx_seq(b, all, 3);
}

// `open` (item ("," item)*)? `close`
static int32_t listed(msgl_gx_builder *b, msgl_json_rules *r, const char *open, int32_t item,
                      const char *close)
{
    const int32_t space = msgl__json_space(b, r);
    const int32_t next[3] = {msgl__gx_str(b, ","), space, item};
    const int32_t items[2] = {item, msgl__gx_rep(b, msgl__gx_seq(b, next, 3), 0, MSGL_GX_INF)};
    const int32_t full[4] = {space, msgl__gx_seq(b, items, 2), space, msgl__gx_str(b, close)};
    const int32_t empty[2] = {space, msgl__gx_str(b, close)};
    const int32_t ways[2] = {msgl__gx_seq(b, full, 4), msgl__gx_seq(b, empty, 2)};
    const int32_t all[2] = {msgl__gx_str(b, open), msgl__gx_alt(b, ways, 2)};
    return msgl__gx_seq(b, all, 2);
}

static int32_t object_body(msgl_gx_builder *b, msgl_json_rules *r)
{
    const int32_t member[4] = {msgl__json_rule(b, r, MSGL_JSON_KEY), msgl__gx_str(b, ":"),
                               msgl__json_space(b, r), msgl__json_rule(b, r, MSGL_JSON_VALUE)};
    return listed(b, r, "{", msgl__gx_seq(b, member, 4), "}");
}

static int32_t array_body(msgl_gx_builder *b, msgl_json_rules *r)
{
    return listed(b, r, "[", msgl__json_rule(b, r, MSGL_JSON_VALUE), "]");
}

static int32_t value_body(msgl_gx_builder *b, msgl_json_rules *r)
{
    const int32_t ways[7] = {msgl__json_rule(b, r, MSGL_JSON_OBJECT),
                             msgl__json_rule(b, r, MSGL_JSON_ARRAY),
                             msgl__json_rule(b, r, MSGL_JSON_STRING),
                             msgl__json_rule(b, r, MSGL_JSON_NUMBER),
                             msgl__gx_str(b, "true"),
                             msgl__gx_str(b, "false"),
                             msgl__gx_str(b, "null")};
    return msgl__gx_alt(b, ways, 7);
}

// The rules, by msgl_json_rule.
static const struct {
    const char *name;
    int32_t (*body)(msgl_gx_builder *b, msgl_json_rules *r);
} RULES[MSGL_JSON_RULES] = {
    [MSGL_JSON_STRING] = {"string", string_body}, [MSGL_JSON_KEY] = {"key", key_body},
    [MSGL_JSON_NUMBER] = {"number", number_body}, [MSGL_JSON_INTEGER] = {"integer", integer_body},
    [MSGL_JSON_VALUE] = {"value", value_body},    [MSGL_JSON_OBJECT] = {"object", object_body},
    [MSGL_JSON_ARRAY] = {"array", array_body},
};

int32_t msgl__json_rule(msgl_gx_builder *b, msgl_json_rules *r, msgl_json_rule which)
{
    if (b->rc != 0) return -1; // rules refer to each other: after a failure none begins another
    int32_t *const rule = &r->rules[which];
    if (*rule < 0) {
        *rule = msgl__gx_rule_new(b, RULES[which].name, strlen(RULES[which].name));
        msgl__gx_rule_set(b, *rule, RULES[which].body(b, r));
    }
    return msgl__gx_ref(b, *rule);
}

// What of the ranges is plain, as one class.
static int32_t plain_part(msgl_gx_builder *b, const uint32_t *pairs, int32_t n)
{
    uint32_t *plain = msgl__reallocarray(NULL, (size_t)n + 1, 2 * MSGL_PLAIN_PAIRS * sizeof *plain);
    if (plain == NULL) return msgl__gx_fail(b, MSGL_ENOMEM, "out of memory for a grammar");
    int32_t num = 0;
    for (int32_t i = 0; i < n; i++) {
        for (int k = 0; k < MSGL_PLAIN_PAIRS; k++) {
            const uint32_t first = msgl__plain_pairs[2 * k], last = msgl__plain_pairs[2 * k + 1];
            if (pairs[2 * i] > last || pairs[2 * i + 1] < first) continue;
            plain[2 * num] = pairs[2 * i] > first ? pairs[2 * i] : first;
            plain[2 * num + 1] = pairs[2 * i + 1] < last ? pairs[2 * i + 1] : last;
            num++;
        }
    }
    const int32_t e = num > 0 ? msgl__gx_class(b, plain, num, false) : msgl__gx_never(b);
    msgl__free(plain);
    return e;
}

int32_t msgl__json_class(msgl_gx_builder *b, const uint32_t *pairs, int32_t n)
{
    msgl_gx_list ways = {0};
    msgl__gx_list_add(b, &ways, plain_part(b, pairs, n));
    for (int32_t i = 0; i < n && b->rc == 0; i++) {
        for (uint32_t c = pairs[2 * i]; c <= pairs[2 * i + 1] && c <= '\\'; c++) {
            char text[8];
            if (c >= 0x20 && c != '"' && c != '\\') continue;
            const int32_t lit = msgl__gx_lit(b, text, msgl__json_put_char(c, text));
            msgl__gx_list_add(b, &ways, msgl__gx_one(b, lit));
        }
    }
    const int32_t e = b->rc == 0 ? msgl__gx_alt(b, ways.at, ways.n) : -1;
    msgl__gx_list_free(&ways);
    return e;
}

int32_t msgl__json_quoted(msgl_gx_builder *b, const char *text, size_t n)
{
    msgl_strbuf out;
    msgl__strbuf_init(&out, b->limits.input_bytes * 6 + 16);
    int rc = msgl__strbuf_addc(&out, '"');
    for (size_t i = 0; i < n && rc == 0;) {
        char one[8];
        const uint32_t cp = msgl__utf8_next(text, &i);
        rc = msgl__strbuf_add(&out, one, msgl__json_put_char(cp, one));
    }
    if (rc == 0) rc = msgl__strbuf_addc(&out, '"');
    const int32_t e = rc == 0 ? msgl__gx_lit(b, out.data, out.len)
                              : msgl__gx_fail(b, rc, "grammar: a text: %s", msgl__status_text(rc));
    msgl__strbuf_free(&out);
    return e;
}
