// SPDX-License-Identifier: Apache-2.0
//
// The vocabulary and the merges of tokenizer.json, hundreds of thousands of short strings, are read
// where they stand: as a tree of JSON values they would cost most of a server's start and ten times
// their size in memory. The rest of the file, without these two, goes to the JSON library.
#ifndef MSGL_TOKENIZER_JSON_SCAN_H
#define MSGL_TOKENIZER_JSON_SCAN_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "utils/strbuf.h"

// A stretch of a JSON text; start == end: not there.
typedef struct msgl_jspan {
    const char *text;
    size_t start, end;
} msgl_jspan;

// Finds the values of model.vocab and model.merges and writes the text without them to *rest, with
// null and the same number of newlines in their place. Text that is not JSON is copied as it is,
// for the JSON library to refuse. MSGL_ENOMEM or MSGL_ELIMIT.
int msgl__jscan_split(const char *text, size_t len, msgl_jspan *vocab, msgl_jspan *merges,
                      msgl_strbuf *rest);

// How many elements the array has, as far as it is well-formed.
size_t msgl__jscan_count(const msgl_jspan *array);

// A reader inside one such value. Each call skips white space first.
typedef struct msgl_jscan {
    const char *text;
    size_t i, end;
} msgl_jscan;

static inline msgl_jscan msgl__jscan(const msgl_jspan *r)
{
    return (msgl_jscan){r->text, r->start, r->end};
}
// Takes the character `c` if it is next. 1 or 0.
int msgl__jscan_take(msgl_jscan *s, char c);
// The next character without taking it; 0 at the end.
char msgl__jscan_peek(msgl_jscan *s);
// Appends the decoded string to *out. 1; 0: no well-formed string is next; MSGL_ENOMEM,
// MSGL_ELIMIT.
int msgl__jscan_string(msgl_jscan *s, msgl_strbuf *out);
// Takes a string without decoding it; *raw is its length in the file, at least that of the text.
int msgl__jscan_skip_string(msgl_jscan *s, size_t *raw);
// Takes an integer that fits into 15 digits. 1 or 0.
int msgl__jscan_int(msgl_jscan *s, int64_t *out);

#endif
