// SPDX-License-Identifier: Apache-2.0
//
// How many drafts a draft model shall make: as many as bring the most tokens for the time that it
// and the step that verifies them take, by how often drafts were right so far and by what passes
// and steps took. Requests whose drafts are no use are left out, and tried again ever more seldom.
#ifndef MSGL_DRAFTS_DEPTH_H
#define MSGL_DRAFTS_DEPTH_H

#include <stdint.h>

#include "core/batch.h"
#include "drafts/costs.h"

enum { MSGL_PASS_SIZES = 12 }; // of requests that a pass is for: 1, 2, up to 4, 8, ... 1,024, more

// Of all requests. Zero: nothing is known.
typedef struct msgl_depths {
    // Of drafts at a place of their row, where those before are right.
    float rate[MSGL_MAX_PROPOSALS];
    float seen[MSGL_MAX_PROPOSALS]; // how many that is of, up to a bound
    float pass_ns[MSGL_PASS_SIZES]; // of a draft for each request; 0: unknown
    int32_t since_try;              // steps
} msgl_depths;

// Of a request. Zero: nothing is known.
typedef struct msgl_depth {
    // Of its drafts so far, each where those before are right: those that are, and how many would
    // be if they were as those of all requests; older ones count less.
    float right, expected;
    int32_t try_at; // tokens that it has when its drafts are tried again; 0: they are of use
    int32_t gap;    // tokens between the last two tries
} msgl_depth;

// A request that could get drafts.
typedef struct msgl_depth_ask {
    msgl_depth *of;
    int32_t tokens;      // that it has
    int32_t most;        // drafts one behind the other; > 0
    int32_t width, rows; // of a tree: drafts of a pass, and in all at most; 0: a chain
    int32_t depth;       // out: passes that it shall get
} msgl_depth_ask;

// The probability that a draft at this place is right, where those before it are.
float msgl__depth_rate(const msgl_depths *d, const msgl_depth *of, int32_t place);
// A step verified `num` drafts, one behind the other, of a request with so many tokens, of which
// `accepted` were right; of a tree those of the accepted path and, if it could have gone on, one.
void msgl__depth_verified(msgl_depths *d, msgl_depth *of, int32_t tokens, int32_t num,
                          int32_t accepted);
// `passes` drafts each for so many requests took so long.
void msgl__depth_proposed(msgl_depths *d, int32_t requests, int32_t passes, uint64_t ns);
// Sets the depth of asks[0, num), which are of `answers` answers of the step.
void msgl__depth_choose(msgl_depths *d, const msgl_step_costs *c, int32_t answers,
                        msgl_depth_ask *asks, int32_t num);

#endif
