// SPDX-License-Identifier: Apache-2.0
//
// E4M3 (core/dtype.h) to bf16 and from f32, sixteen at a time, as vectors of vec.h.
#ifndef MSGL_KERNEL_E4M3_H
#define MSGL_KERNEL_E4M3_H

#include "core/dtype.h"
#include "kernel/vec.h"

typedef uint8_t msgl_v16u8 __attribute__((vector_size(16)));
typedef uint16_t msgl_v16u16 __attribute__((vector_size(32)));

// A normal number's bits move to where f32 has them, its exponent by the difference of the biases;
// a subnormal one is its mantissa in units of 2^-9. Every value is exact in bf16.
MSGL_INLINE void msgl__e4m3_expand_16(const uint8_t *from, uint16_t *to)
{
    msgl_v16u8 code;
    memcpy(&code, from, sizeof code);
    // In two steps, since gcc takes bytes one by one if it is to make words of them at once.
    const msgl_v16u16 wide = __builtin_convertvector(code, msgl_v16u16);
    const msgl_vi u = __builtin_convertvector(wide, msgl_vi), size = u & msgl__vi_set(0x7f);
    const msgl_vi normal = (size << 20) + msgl__vi_set(120 << 23);
    const msgl_vf small = __builtin_convertvector(size, msgl_vf) * msgl__vf_set(0x1p-9f);
    msgl_vf x = msgl__vf_select(size < msgl__vi_set(8), small, (msgl_vf)normal);
    x = msgl__vf_select(size == msgl__vi_set(0x7f), msgl__vf_set(__builtin_nanf("")), x);
    const msgl_vi bits = (msgl_vi)x | (u & msgl__vi_set(0x80)) << 24;
    const msgl_v16u16 half = __builtin_convertvector(bits >> 16, msgl_v16u16);
    memcpy(to, &half, sizeof half);
}

// The first n of 16. Below 2^-6 an addition rounds to units of 2^-9, above the integers of the bits
// round.
MSGL_INLINE void msgl__e4m3_from_16(msgl_vf x, uint8_t *to, size_t n)
{
    const msgl_vi sign = ((msgl_vi)x >> 24) & msgl__vi_set(0x80);
    msgl_vf a = (msgl_vf)((msgl_vi)x & msgl__vi_set(0x7fffffff));
    const msgl_vi nan = a != a;
    a = msgl__vf_min(a, msgl__vf_set(448));
    const msgl_vf unit = msgl__vf_set(0x1p14f); // its last place is 2^-9
    const msgl_vi small = (msgl_vi)(a + unit) - (msgl_vi)unit, u = (msgl_vi)a;
    const msgl_vi up = u + msgl__vi_set(0x7ffff) + ((u >> 20) & msgl__vi_set(1));
    const msgl_vi normal = (up - msgl__vi_set(120 << 23)) >> 20;
    const msgl_vi is_small = a < msgl__vf_set(0x1p-6f);
    const msgl_vi code = sign | (is_small & small) | (~is_small & normal);
    const msgl_v16u8 all =
        __builtin_convertvector((nan & msgl__vi_set(0x7f)) | (~nan & code), msgl_v16u8);
    memcpy(to, &all, n);
}

#endif
