// SPDX-License-Identifier: Apache-2.0
//
// What benchmarks say of their samples.
#ifndef MSGL_UTILS_STATS_H
#define MSGL_UTILS_STATS_H

#include <stddef.h>

void msgl__sort(double *values, size_t n); // ascending; no NaN among them

// Median of n > 0 values, which it sorts: of an even number the mean of the middle two.
double msgl__median(double *values, size_t n);

// The smallest of n > 0 sorted values that at least the share q of them does not exceed
// (nearest-rank percentile; 0 <= q <= 1).
double msgl__percentile(const double *sorted, size_t n, double q);

#endif
