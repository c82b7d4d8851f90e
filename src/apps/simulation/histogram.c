// SPDX-License-Identifier: Apache-2.0
#include "apps/simulation/histogram.h"

#include <math.h>

// Below 2048 a bin is one value; from there on each doubling has 1024 bins.
enum { BITS = 10, PER_DOUBLING = 1 << BITS };

void msgl__histogram_add(msgl_histogram *h, uint64_t value)
{
    const int top = value < PER_DOUBLING ? BITS : 63 - __builtin_clzll(value);
    const int shift = top - BITS;
    h->counts[(uint64_t)shift * PER_DOUBLING + (value >> shift)]++;
    h->count++;
    if (value > h->max) h->max = value;
}

static uint64_t last_of_bin(int bin)
{
    if (bin < 2 * PER_DOUBLING) return (uint64_t)bin;
    const int shift = bin / PER_DOUBLING - 1;
    const uint64_t first = (uint64_t)(bin - shift * PER_DOUBLING) << shift;
    return first + (((uint64_t)1 << shift) - 1);
}

uint64_t msgl__histogram_percentile(const msgl_histogram *h, double q)
{
    const double rank = ceil(q * (double)h->count - 1e-6); // 0.07 * 100 is more than 7
    double seen = 0;
    for (int bin = 0; bin < MSGL_HISTOGRAM_BINS; bin++) {
        seen += (double)h->counts[bin];
        if (h->counts[bin] == 0 || seen < rank) continue;
        const uint64_t last = last_of_bin(bin);
        return last < h->max ? last : h->max;
    }
    return 0;
}
