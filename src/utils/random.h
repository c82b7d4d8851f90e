// SPDX-License-Identifier: Apache-2.0
//
// Random numbers for benchmarks, made-up weights, sampling and tests: splitmix64 (Steele, Lea and
// Flood 2014). The sequence of a seed is the same everywhere; nothing secret may depend on it.
#ifndef MSGL_UTILS_RANDOM_H
#define MSGL_UTILS_RANDOM_H

#include <stdint.h>

#define MSGL_RANDOM_STEP UINT64_C(0x9e3779b97f4a7c15) // between the states of a sequence

// The next of the sequence that *state began with; any state is a good one.
static inline uint64_t msgl__random(uint64_t *state)
{
    uint64_t z = *state += MSGL_RANDOM_STEP;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

// In [0, n), n > 0; the bias of the remainder is below n / 2^64.
static inline uint64_t msgl__random_below(uint64_t *state, uint64_t n)
{
    return msgl__random(state) % n;
}

// Uniform in [0, 1), a multiple of 2^-24.
static inline float msgl__random_unit(uint64_t *state)
{
    return (float)(msgl__random(state) >> 40) * 0x1p-24f;
}

// A bijection of 64-bit numbers in which every bit of the result depends on every bit of x.
static inline uint64_t msgl__mix_bits(uint64_t x)
{
    return msgl__random(&x);
}

#endif
