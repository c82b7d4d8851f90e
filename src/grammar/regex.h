// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_GRAMMAR_REGEX_H
#define MSGL_GRAMMAR_REGEX_H

#include "grammar/expr.h"

// How a pattern is read.
typedef struct msgl_regex_opts {
    const char *where; // for messages: "regex", or a place in a schema
    bool search;       // the text only has to contain a match, but for where ^ and $ are
    bool json;         // characters are written as in a JSON string
    bool ignore_case;  // of ASCII letters
    bool dot_all;      // . is any character
} msgl_regex_opts;

// The expression of a pattern: literals, ., classes with \d \w \s and negation, groups, |,
// * + ? {m,n} (a lazy form is the same language), ^ and $ at its ends, \xHH \uHHHH \u{H} \t \n ...
// MSGL_EFORMAT, MSGL_EUNSUPPORTED (look-around, back-references, \b, ...) name what and where.
int32_t msgl__regex(msgl_gx_builder *b, const char *text, size_t n, const msgl_regex_opts *opts);

// regex_unicode.c. The ranges of characters of \p{name}, or (negate) of all others, in ascending
// order to add. False: no such category, and nothing was added. From any thread.
bool msgl__regex_category(const char *name, size_t n, bool negate,
                          void (*add)(void *to, uint32_t first, uint32_t last), void *to);

#endif
