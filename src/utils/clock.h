// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_UTILS_CLOCK_H
#define MSGL_UTILS_CLOCK_H

#include <stdint.h>
#include <time.h>

// Monotonic nanoseconds.
static inline uint64_t msgl__now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
