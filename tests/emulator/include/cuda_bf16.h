// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_TESTS_EMULATOR_CUDA_BF16_H
#define MSGL_TESTS_EMULATOR_CUDA_BF16_H

#include "emulator.h"

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float f) : bits(msgl__f32_to_bf16(f))
    {
    }
    operator float() const
    {
        return msgl__bf16_to_f32(bits);
    }
};
static inline float __bfloat162float(__nv_bfloat16 v)
{
    return v;
}
static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    return __nv_bfloat16(f);
}
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return {__nv_bfloat16(a), __nv_bfloat16(b)};
}

#endif
