// SPDX-License-Identifier: Apache-2.0
//
// Sixteen bytes as a compiler's vector, and what puts those of two next to each other: one
// instruction each in the baseline of x86-64 and AArch64. Loops over bytes say the same, but which
// of them a compiler recognises changes with what is around them.
#ifndef MSGL_CORE_BYTES_H
#define MSGL_CORE_BYTES_H

#include <stdint.h>
#include <string.h>

#include "core/attributes.h"

typedef uint8_t msgl_bytes __attribute__((vector_size(16)));
typedef uint16_t msgl_bytes_u16 __attribute__((vector_size(16)));
typedef uint32_t msgl_bytes_u32 __attribute__((vector_size(16)));
typedef uint64_t msgl_bytes_u64 __attribute__((vector_size(16)));

#if defined(__clang__) || __GNUC__ >= 12
#define MSGL_SHUFFLE(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MSGL_SHUFFLE(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#endif

MSGL_INLINE msgl_bytes msgl__bytes_load(const uint8_t *p)
{
    msgl_bytes v;
    memcpy(&v, p, sizeof v);
    return v;
}

// n of 4 or 8 bytes, zeros behind them.
MSGL_INLINE msgl_bytes msgl__bytes_load_few(const uint8_t *p, const size_t n)
{
    uint64_t few = 0;
    memcpy(&few, p, n);
    return (msgl_bytes)(msgl_bytes_u64){few, 0};
}

MSGL_INLINE void msgl__bytes_store(uint8_t *p, msgl_bytes v)
{
    memcpy(p, &v, sizeof v);
}

// a[0] b[0] a[1] b[1] ... a[7] b[7].
MSGL_INLINE msgl_bytes msgl__bytes_zip_low(msgl_bytes a, msgl_bytes b)
{
    return MSGL_SHUFFLE(msgl_bytes, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

// a[8] b[8] a[9] b[9] ... a[15] b[15].
MSGL_INLINE msgl_bytes msgl__bytes_zip_high(msgl_bytes a, msgl_bytes b)
{
    return MSGL_SHUFFLE(msgl_bytes, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                        31);
}

// The same of words of 32 bits: a[0] b[0] a[1] b[1], and a[2] b[2] a[3] b[3].
MSGL_INLINE msgl_bytes msgl__bytes_zip_words_low(msgl_bytes a, msgl_bytes b)
{
    return (msgl_bytes)MSGL_SHUFFLE(msgl_bytes_u32, (msgl_bytes_u32)a, (msgl_bytes_u32)b, 0, 4, 1,
                                    5);
}
MSGL_INLINE msgl_bytes msgl__bytes_zip_words_high(msgl_bytes a, msgl_bytes b)
{
    return (msgl_bytes)MSGL_SHUFFLE(msgl_bytes_u32, (msgl_bytes_u32)a, (msgl_bytes_u32)b, 2, 6, 3,
                                    7);
}

// Of halves of 64 bits: a[0] b[0], and a[1] b[1].
MSGL_INLINE msgl_bytes msgl__bytes_zip_halves_low(msgl_bytes a, msgl_bytes b)
{
    return (msgl_bytes)MSGL_SHUFFLE(msgl_bytes_u64, (msgl_bytes_u64)a, (msgl_bytes_u64)b, 0, 2);
}
MSGL_INLINE msgl_bytes msgl__bytes_zip_halves_high(msgl_bytes a, msgl_bytes b)
{
    return (msgl_bytes)MSGL_SHUFFLE(msgl_bytes_u64, (msgl_bytes_u64)a, (msgl_bytes_u64)b, 1, 3);
}

// Bits 0 to 3 of each byte, and bits 4 to 7.
MSGL_INLINE msgl_bytes msgl__bytes_low_bits(msgl_bytes v)
{
    return v & 15;
}
MSGL_INLINE msgl_bytes msgl__bytes_high_bits(msgl_bytes v)
{
    return (msgl_bytes)((msgl_bytes_u16)v >> 4) & 15;
}

#endif
