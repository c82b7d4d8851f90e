// SPDX-License-Identifier: Apache-2.0
//
// Finding added tokens in a text.
#ifndef MSGL_TOKENIZER_ADDED_H
#define MSGL_TOKENIZER_ADDED_H

#include "tokenizer/workspace.h"

// Fills *m with the tokens whose `normalized` flag is `normalized`; those with equal text keep only
// the lowest id. MSGL_ENOMEM.
int msgl__matcher_build(msgl_matcher *m, const msgl_added *added, size_t n, int normalized);
void msgl__matcher_free(msgl_matcher *m);

// Which bytes a token may not lie on, [0] a special one, [1] any other: spans of the original text
// (when the text is still the original, at base), or tags, whose bits 0 and 1 say the same.
typedef struct msgl_trust {
    const msgl_text_span *spans[2]; // sorted, disjoint
    size_t n[2];
    size_t base; // original offset of text[0]
} msgl_trust;

// One stretch of a text: an added token's, or text between them (id -1).
typedef struct msgl_stretch {
    size_t start, end;
    int32_t id;
} msgl_stretch;

typedef struct msgl_match_iter {
    size_t pos;      // where the search goes on
    size_t start;    // end of the last stretch that was handed out
    int has_pending; // the token behind the text that was handed out last
    msgl_stretch pending;
    size_t run_start, run_end; // the last run of white space that a token took on its right
} msgl_match_iter;

// Hands out the stretches of *text in order, as AddedVocabulary::find_matches cuts it;
// zero-initialised *it is the start. 1, or 0 at the end. Stretches may be empty.
int msgl__matcher_next(const msgl_matcher *m, const msgl_unicode *u, const msgl_text *text,
                       const msgl_trust *trust, msgl_match_iter *it, msgl_stretch *out);

#endif
