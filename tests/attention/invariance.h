// SPDX-License-Identifier: Apache-2.0
//
// That a row's bits do not depend on what else is in the batch, on how a prompt is cut into chunks,
// on the pages or their size.
#ifndef MSGL_TESTS_ATTENTION_INVARIANCE_H
#define MSGL_TESTS_ATTENTION_INVARIANCE_H

#include "attention/world.h"

typedef struct invariance {
    double tolerance; // of the yardstick, against exact attention
    bool phases;      // decode has the bits of prefill; otherwise decode is compared with decode
    int pages[4];     // other page sizes to try, 0-terminated
    int rounds;       // of random batches
} invariance;

// A request of len tokens in row 0 of a world like *spec, whose max_running is at least 33 and
// max_step_tokens at least 32 * 60 and len. Fails the test at the first other bit.
void check_invariance(const world_spec *spec, int len, const invariance *how);

#endif
