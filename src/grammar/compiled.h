// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_GRAMMAR_COMPILED_H
#define MSGL_GRAMMAR_COMPILED_H

#include "grammar/local.h"
#include "grammar/nfa.h"

struct msgl_grammar {
    atomic_int refs;
    msgl_nfa nfa;
    msgl_grammar_limits limits;
    msgl_local_cache cache;
};

// From a builder whose front end is done (or failed, which is then the status). Frees the builder.
int msgl__grammar_finish(msgl_gx_builder *b, int32_t root, msgl_grammar **out);
// Begins a compilation of text of n bytes.
int msgl__grammar_begin(msgl_gx_builder *b, size_t n, const msgl_grammar_limits *limits,
                        msgl_err *err);

#endif
