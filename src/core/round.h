// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CORE_ROUND_H
#define MSGL_CORE_ROUND_H

#include <stddef.h>
#include <stdint.h>

// n up to the next multiple of `to`, a power of two. Not near SIZE_MAX.
static inline size_t msgl__round_up(size_t n, size_t to)
{
    return (n + to - 1) & ~(to - 1);
}

// a / b, rounded up; 0 <= a, 0 < b.
static inline int32_t msgl__ceil_div(int32_t a, int32_t b)
{
    return a / b + (a % b != 0);
}

#endif
