// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_TESTS_EMULATOR_CUDA_FP16_H
#define MSGL_TESTS_EMULATOR_CUDA_FP16_H

#include "emulator.h"

struct __half {
    uint16_t bits;
    __half() = default;
    explicit __half(float f) : bits(msgl__f32_to_f16(f))
    {
    }
    operator float() const
    {
        return msgl__f16_to_f32(bits);
    }
};
static inline float __half2float(__half v)
{
    return v;
}
static inline __half __float2half_rn(float f)
{
    return __half(f);
}
struct alignas(4) __half2 {
    __half x, y;
};
static inline __half2 __floats2half2_rn(float a, float b)
{
    return {__half(a), __half(b)};
}

#endif
