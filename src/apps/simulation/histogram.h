// SPDX-License-Identifier: Apache-2.0
//
// Times of any number of events in fixed memory: counts in bins of 1/1024 of their value, so that
// every time of one bin is the same within 0.1 %.
#ifndef MSGL_APPS_SIMULATION_HISTOGRAM_H
#define MSGL_APPS_SIMULATION_HISTOGRAM_H

#include <stdint.h>

enum { MSGL_HISTOGRAM_BINS = 55 * 1024 };

typedef struct msgl_histogram { // zero-initialised: empty
    uint64_t counts[MSGL_HISTOGRAM_BINS];
    uint64_t count, max;
} msgl_histogram;

void msgl__histogram_add(msgl_histogram *h, uint64_t value);
// The largest value of the bin in which the nearest-rank percentile q of [0, 1] lies, and no more
// than the largest that was added; 0 of an empty histogram.
uint64_t msgl__histogram_percentile(const msgl_histogram *h, double q);

#endif
