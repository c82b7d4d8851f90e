// SPDX-License-Identifier: Apache-2.0
//
// What a step of so many rows takes, as measured, and how many drafts pay by it.
#ifndef MSGL_DRAFTS_COSTS_H
#define MSGL_DRAFTS_COSTS_H

#include <stdint.h>

enum { MSGL_COST_SIZES = 96 };

// By the number of rows: one each up to 32, then in steps of 8. Zero: nothing is known.
typedef struct msgl_step_costs {
    float ns[MSGL_COST_SIZES]; // smoothed; 0: no step of this size was seen
} msgl_step_costs;

// A step of answers alone, in `rows` rows, took so long.
void msgl__costs_observe(msgl_step_costs *c, int32_t rows, uint64_t ns);
// Expected of one; 0: no step was seen yet. Between sizes that were seen on a line; beyond the
// largest as if a row cost 2 %, so that what might pay is tried.
float msgl__costs_of(const msgl_step_costs *c, int32_t rows);
// Of `num` drafts, descending by the probability that they are accepted, beside as many answers:
// with how many of them the step brings the most tokens for its time. None, unless that is 2 % more
// than without.
int32_t msgl__costs_choose(const msgl_step_costs *c, int32_t answers, const float *accepted,
                           int32_t num);

#endif
