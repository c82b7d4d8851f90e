// SPDX-License-Identifier: Apache-2.0
//
// How options are spelled elsewhere: by Mini-SGLang, SGLang, vLLM, llama-server and their
// benchmarks. A row says what such a flag is here: another name of an option, an option with a
// value of its own, nothing that needs to be asked for, or what to do instead.
#ifndef MSGL_CLI_SPELLINGS_H
#define MSGL_CLI_SPELLINGS_H

#include <stdbool.h>

#include "core/settings.h"

typedef struct msgl_spelled_value {
    const char *theirs, *ours; // ours NULL: as if the option were not given
} msgl_spelled_value;

typedef struct msgl_spelling {
    const char *flag;   // "--ctx-size"; of a hint it may end in "*": all that begin so
    const char *of;     // whose it is; NULL: a short form of minisgl's own
    const char *option; // ours; NULL: there is none
    const char *value;  // ours that the flag stands for, where it has none itself: "naive"
    const msgl_spelled_value *values; // that are others; theirs NULL behind the last. NULL: none
    const char *only;                 // there are no values but those, called so; NULL: there are
    bool counts;      // numbers may end in k, m, g (1000s) or K, M, G (1024s), as vLLM has them
    bool guesses;     // counts guesses alone, where the option counts the token before them as well
    bool all_slots;   // shared out among the requests that run at once, as llama-server's context
    bool ignored;     // of no option: it is taken, and `help` says why it changes nothing
    const char *help; // what is different; of no option: what to do instead
} msgl_spelling;

// Row i, from 0; NULL behind the last.
const msgl_spelling *msgl__spelling(int i);
// The row of a flag as it was typed, which a row that ends in "*" may be by its beginning; NULL:
// none.
const msgl_spelling *msgl__spelling_find(const char *flag);
// Whether it is another name for an option and takes the option's own values, a few of which may
// have another spelling.
bool msgl__spelling_is_alias(const msgl_spelling *s);
// What `value` is in the option's own terms: as it is, a text of the row's, or a number written to
// buf; NULL: as if the option were not given. MSGL_EINVAL names the flag and what is allowed.
int msgl__spelling_value(const msgl_spelling *s, const char *value, char buf[64], const char **out,
                         msgl_err *err);

#endif
