// SPDX-License-Identifier: Apache-2.0
//
// Strings of a schema. Formats are patterns of what RFC 3339, 4122, 5321, 4291 and 3986
// allow, a little narrower where the whole would be a page (documented in internals/grammar.md).
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "grammar/regex.h"
#include "grammar/schema.h"

// Years that 4 divides and 100 does not, or 400 does, have a 29 February.
#define LEAP_YEAR "(?:\\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|"                                    \
    "(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))|" LEAP_YEAR "-02-29)"
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

const char *msgl__schema_format(msgl_schema *s, const json_t *schema)
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

// Any characters, min to max of them: large schemas have the same few lengths in many places.
static int32_t of_length(msgl_schema *s, int32_t min, int32_t max)
{
    for (int32_t i = 0; i < s->num_strings; i++) {
        if (s->strings[i].min == min && s->strings[i].max == max) {
            return msgl__gx_ref(s->b, s->strings[i].rule);
        }
    }
    if (s->character < 0) s->character = msgl__json_char(s->b);
    const int32_t e = quoted(s, msgl__gx_rep(s->b, s->character, min, max));
    if (s->num_strings == MSGL_SCHEMA_STRINGS || s->b->rc != 0) return e;
    const int32_t rule = msgl__gx_rule_new(s->b, "string", 6);
    msgl__gx_rule_set(s->b, rule, e);
    s->strings[s->num_strings].min = min;
    s->strings[s->num_strings].max = max;
    s->strings[s->num_strings++].rule = rule;
    return msgl__gx_ref(s->b, rule);
}

int32_t msgl__schema_string(msgl_schema *s, const json_t *schema)
{
    const int32_t min = msgl__schema_count(s, schema, "minLength", 0);
    const int32_t max = msgl__schema_count(s, schema, "maxLength", MSGL_GX_INF);
    const char *format = msgl__schema_format(s, schema);
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
        return of_length(s, min, max);
    }
    char where[MSGL_SCHEMA_PLACE + 64];
    snprintf(where, sizeof where, "json_schema: \"pattern\" at \"%s\"", s->place);
    const msgl_regex_opts o = {.where = where, .search = pattern != NULL, .json = true};
    const char *text = pattern != NULL ? json_string_value(pattern) : format;
    const size_t n = pattern != NULL ? json_string_length(pattern) : strlen(format);
    const int32_t e = quoted(s, msgl__gx_len(s->b, msgl__regex(s->b, text, n, &o), min, max));
    if (s->b->rc == MSGL_EUNSUPPORTED) (void)snprintf(s->refused, sizeof s->refused, "pattern");
    return e;
}
