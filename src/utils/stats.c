// SPDX-License-Identifier: Apache-2.0
#include "utils/stats.h"

#include <math.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void msgl__sort(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_value);
}

double msgl__median(double *values, size_t n)
{
    msgl__sort(values, n);
    return n % 2 != 0 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double msgl__percentile(const double *sorted, size_t n, double q)
{
    const size_t rank = (size_t)ceil(q * (double)n - 1e-6); // 0.07 * 100 is more than 7
    return sorted[rank < 1 ? 0 : rank - 1];
}
