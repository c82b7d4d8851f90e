// SPDX-License-Identifier: Apache-2.0
//
// Drafts without a model: an answer goes on as it, its prompt or a recent answer did where the same
// tokens stood before (Saxena 2023, prompt lookup decoding; Oliaro et al. 2024, SuffixDecoding).
// Of the places where most of the last tokens agree, each says what comes next, and a draft is what
// most of them say. How likely one is accepted is known from what became of those before it: of
// every request by how many tokens agreed, also of drafts that were not computed.
#ifndef MSGL_DRAFTS_DRAFTER_H
#define MSGL_DRAFTS_DRAFTER_H

#include "core/batch.h"
#include "core/err.h"
#include "drafts/recent.h"

enum { MSGL_MATCH_SIZES = 6 }; // of matches: 1, 2, up to 4, 8, 16, more tokens

typedef struct msgl_draft_config {
    bool recent;                  // looks into recent answers, too
    int32_t min_match, max_match; // tokens that have to agree; that are compared
    int32_t most;                 // drafts of an answer and step
} msgl_draft_config;

// How often drafts behind a match of some length were accepted.
typedef struct msgl_draft_hits {
    float rate[MSGL_MATCH_SIZES];
    int32_t seen[MSGL_MATCH_SIZES];
} msgl_draft_hits;

typedef struct msgl_drafter {
    msgl_draft_config cfg;
    msgl_recent recent;
    msgl_draft_hits hits; // of all requests
} msgl_drafter;

// What drafts of a request there are at the moment.
typedef struct msgl_draft {
    int32_t num;   // of them
    int32_t match; // tokens that agreed
    int32_t tokens[MSGL_MAX_DRAFTS];
    float accepted[MSGL_MAX_DRAFTS];  // the probability that it and all that it follows are
    bool tree;                        // else each follows the one before it
    int16_t parents[MSGL_MAX_DRAFTS]; // of a tree, as in msgl_batch_req
} msgl_draft;

// A request's part.
typedef struct msgl_draft_state {
    msgl_repeats repeats; // of its prompt and answer; capacity 0: there was no look yet
    msgl_draft_hits hits;
    int32_t guess, guess_at, guess_match; // what comes at a position, unless a step computes it
} msgl_draft_state;

int msgl__drafter_create(const msgl_draft_config *cfg, msgl_drafter **out, msgl_err *err);
void msgl__drafter_destroy(msgl_drafter *d); // NULL is allowed

void msgl__draft_open(const msgl_drafter *d, msgl_draft_state *s);
void msgl__draft_close(msgl_draft_state *s); // one that was never opened, {0}, too
// Drafts of what comes behind ids[0, len) of a request of up to max_len tokens, `most` of them at
// most; without memory for the index there are none.
void msgl__draft_make(msgl_drafter *d, msgl_draft_state *s, uint64_t salt, const int32_t *ids,
                      int32_t len, int32_t max_len, int32_t most, msgl_draft *out);
// ids[0, len) is known now, where a step without drafts computed the last of them.
void msgl__draft_seen(msgl_drafter *d, msgl_draft_state *s, const int32_t *ids, int32_t len);
// A step computed `num` drafts behind a match of so many tokens, and `accepted` of them were right.
void msgl__draft_verified(msgl_drafter *d, msgl_draft_state *s, int32_t match, int32_t num,
                          int32_t accepted);
// An answer has ended.
void msgl__draft_remember(msgl_drafter *d, uint64_t salt, const int32_t *ids, int32_t n);

#endif
