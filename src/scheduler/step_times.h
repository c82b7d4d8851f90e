// SPDX-License-Identifier: Apache-2.0
//
// How long a step should take, by those before it. No scheduling decision depends on it: it is what
// the launcher's watchdog measures a step under way by (server/watchdog.h).
//
// Of a step with n new tokens that attend to m pairs of token and key the time is about
// a + b n + c m, none of them negative. So one that took t bounds another one with n' and m':
// t max(1, n' / n, m' / m). Of each size the last step is remembered; the least bound is expected.
#ifndef MSGL_SCHEDULER_STEP_TIMES_H
#define MSGL_SCHEDULER_STEP_TIMES_H

#include "core/batch.h"

enum { MSGL_STEP_SIZES = 24 };

typedef struct msgl_step_times { // zero: no step was seen
    struct {
        double tokens, pairs, ns; // 0: none of this size
    } seen[MSGL_STEP_SIZES];      // the last step of [2^i, 2^(i + 1)) tokens
} msgl_step_times;

void msgl__step_observe(msgl_step_times *t, const msgl_batch *b, uint64_t compute_ns);
// Nanoseconds; 0: no step was seen yet.
uint64_t msgl__step_expect(const msgl_step_times *t, const msgl_batch *b);

#endif
