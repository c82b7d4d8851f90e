// SPDX-License-Identifier: Apache-2.0
//
// Where the last tokens of a text stood before: an index over its grams of `order` tokens, in which
// those of one hash form a chain from the latest to the first (as LZ77's match finders have it).
// Adding a token costs the same however long the text is, and so does a look, which follows a chain
// for a bounded number of links.
#ifndef MSGL_DRAFTS_REPEATS_H
#define MSGL_DRAFTS_REPEATS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct msgl_repeats {
    int32_t order;    // tokens of a gram, 1 to MSGL_MAX_GRAM
    int32_t capacity; // tokens that the text may have
    int32_t used;     // of the text, those that are in the index
    int bits;
    int32_t *heads; // [2^bits] end of the latest gram with this hash, -1: none
    int32_t *links; // [capacity] of the end of a gram: the end of the one before it
} msgl_repeats;

enum { MSGL_MAX_GRAM = 3 };

// Where a text goes on as now: next[0, room) came behind its last `match` tokens before, of which
// match + 1 do not agree, or would be more than were compared.
typedef struct msgl_repeat {
    const int32_t *next;
    int32_t room, match;
} msgl_repeat;

// False: MSGL_ENOMEM. destroy takes one that was never created, {0}, too.
bool msgl__repeats_create(int32_t order, int32_t capacity, msgl_repeats *out);
void msgl__repeats_destroy(msgl_repeats *r);
void msgl__repeats_clear(msgl_repeats *r);
// The text is ids[0, len) now: what the index has of it, and tokens behind that. Grams with a
// negative token in them are none.
void msgl__repeats_extend(msgl_repeats *r, const int32_t *ids, int32_t len);

// Where text[0, len), whose index r is, has the last tokens of ids[0, n), the latest first; up to
// `most` of them into out[], comparing up to max_match tokens. ids may be text itself: then n ==
// len. How many.
int32_t msgl__repeats_find(const msgl_repeats *r, const int32_t *text, const int32_t *ids,
                           int32_t n, int32_t max_match, msgl_repeat *out, int32_t most);

#endif
