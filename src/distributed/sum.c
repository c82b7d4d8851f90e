// SPDX-License-Identifier: Apache-2.0
#include "distributed/sum.h"

enum { BLOCK = 2048 }; // 8 KiB of out stay in the first-level cache while rows are added to it

static void sum_two(const float *restrict a, const float *restrict b, size_t n, float *restrict out)
{
    for (size_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

static void add(const float *restrict row, size_t n, float *restrict out)
{
    for (size_t i = 0; i < n; i++) out[i] = out[i] + row[i];
}

void msgl__sum_rows(const float *const *rows, int num_rows, size_t n, float *out)
{
    for (size_t from = 0; from < n; from += BLOCK) {
        const size_t m = n - from < BLOCK ? n - from : BLOCK;
        sum_two(rows[0] + from, rows[1] + from, m, out + from);
        for (int r = 2; r < num_rows; r++) add(rows[r] + from, m, out + from);
    }
}
