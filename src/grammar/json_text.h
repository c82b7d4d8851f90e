// SPDX-License-Identifier: Apache-2.0
//
// How JSON writes characters, and the rules that JSON grammars share.
#ifndef MSGL_GRAMMAR_JSON_TEXT_H
#define MSGL_GRAMMAR_JSON_TEXT_H

#include "grammar/expr.h"

// The escapes of two bytes that are the only way to write their character here; "\/" and "\u" for
// what needs none are accepted in free strings only.
typedef struct msgl_json_escape {
    uint32_t cp;
    char text[3];
} msgl_json_escape;
#define MSGL_JSON_SHORT_ESCAPES 7
extern const msgl_json_escape msgl__json_short_escapes[MSGL_JSON_SHORT_ESCAPES];
int msgl__json_short_escape(uint32_t cp); // index, or -1

// The text of a character inside a JSON string to out; returns its length, at most 6.
size_t msgl__json_put_char(uint32_t cp, char out[8]);

typedef enum msgl_json_rule {
    MSGL_JSON_STRING,
    MSGL_JSON_KEY, // any key with its quotes
    MSGL_JSON_NUMBER,
    MSGL_JSON_INTEGER,
    MSGL_JSON_VALUE,
    MSGL_JSON_OBJECT,
    MSGL_JSON_ARRAY,
    MSGL_JSON_RULES
} msgl_json_rule;

typedef struct msgl_json_rules {
    int32_t space;                  // expression: what may stand between tokens
    int32_t rules[MSGL_JSON_RULES]; // -1: not made yet
} msgl_json_rules;
void msgl__json_rules_init(msgl_json_rules *r);
int32_t msgl__json_space(msgl_gx_builder *b, msgl_json_rules *r); // expressions
int32_t msgl__json_char(msgl_gx_builder *b);                      // one character of a string
// A reference to the rule, which is made when first asked for.
int32_t msgl__json_rule(msgl_gx_builder *b, msgl_json_rules *r, msgl_json_rule which);
// A class of characters as a JSON string writes them: themselves, or their shortest escape.
int32_t msgl__json_class(msgl_gx_builder *b, const uint32_t *pairs, int32_t n);
// A literal with quotes and escapes.
int32_t msgl__json_quoted(msgl_gx_builder *b, const char *text, size_t n);

#endif
