// SPDX-License-Identifier: Apache-2.0
//
// Durations counted by size: how many there were up to each of a fixed list of bounds, the same for
// all, so that counts of several processes can be added. Observing costs a walk over the bounds.
#ifndef MSGL_UTILS_DURATIONS_H
#define MSGL_UTILS_DURATIONS_H

#include <stdint.h>

enum { MSGL_DURATION_BOUNDS = 19 };

// Microseconds, ascending: 100 us to 100 s in steps of 1, 2 and 5.
static const uint32_t msgl__duration_bounds[MSGL_DURATION_BOUNDS] = {
    100,    200,    500,     1000,    2000,    5000,     10000,    20000,    50000,    100000,
    200000, 500000, 1000000, 2000000, 5000000, 10000000, 20000000, 50000000, 100000000};

typedef struct msgl_durations { // zero: empty
    // Those above the bound before and up to this one; the last: above all bounds.
    uint64_t counts[MSGL_DURATION_BOUNDS + 1];
    uint64_t sum_ns;
} msgl_durations;

static inline void msgl__durations_observe(msgl_durations *h, uint64_t ns)
{
    int i = 0;
    while (i < MSGL_DURATION_BOUNDS && ns > (uint64_t)msgl__duration_bounds[i] * 1000u) i++;
    h->counts[i]++;
    h->sum_ns += ns;
}

#endif
