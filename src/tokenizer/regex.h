// SPDX-License-Identifier: Apache-2.0
//
// Regular expressions of tokenizer.json. They are written for Oniguruma (Ruby syntax, Unicode 16);
// PCRE2 runs them, after a translation that spells out what the two read differently: \s, \w, \h,
// properties of characters, anchors. What has no safe translation is refused, not guessed.
#ifndef MSGL_TOKENIZER_REGEX_H
#define MSGL_TOKENIZER_REGEX_H

#include <stddef.h>

#include "core/err.h"
#include "tokenizer/unicode.h"

typedef struct msgl_regex msgl_regex;       // compiled; read-only, any number of threads
typedef struct msgl_regex_ws msgl_regex_ws; // what one thread needs to match

// MSGL_EFORMAT (not a regular expression), MSGL_EUNSUPPORTED (names the construct), MSGL_ENOMEM.
int msgl__regex_compile(const msgl_unicode *u, const char *pattern, size_t len, msgl_regex **out,
                        msgl_err *err);
void msgl__regex_free(msgl_regex *re);
msgl_regex_ws *msgl__regex_ws_create(void); // NULL: out of memory
void msgl__regex_ws_free(msgl_regex_ws *ws);

// Iteration over the matches in one text, leftmost first; zero-initialised is before the first. An
// empty match right behind the previous match is passed over.
typedef struct msgl_regex_iter {
    size_t pos, last_end;
    int matched;
} msgl_regex_iter;

// 1: *start and *end are the next match in text[0, len) (valid UTF-8); 0: no more. MSGL_ELIMIT: the
// match limit ran out; MSGL_ENOMEM.
int msgl__regex_next(const msgl_regex *re, msgl_regex_ws *ws, const char *text, size_t len,
                     msgl_regex_iter *it, size_t *start, size_t *end);

#endif
