// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_TESTS_EMULATOR_CUDA_FP8_H
#define MSGL_TESTS_EMULATOR_CUDA_FP8_H

#include <cuda_fp16.h>

typedef uint16_t __nv_fp8x2_storage_t;
struct __half2_raw {
    uint16_t x, y;
};
enum { __NV_E4M3, __NV_SATFINITE };

struct __nv_fp8_e4m3 {
    uint8_t bits;
    __nv_fp8_e4m3() = default;
    explicit __nv_fp8_e4m3(float f) : bits(msgl__f32_to_e4m3(f))
    {
    }
    operator float() const
    {
        return msgl__e4m3_to_f32(bits);
    }
};

static inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t two, int)
{
    return {msgl__f32_to_f16(msgl__e4m3_to_f32((uint8_t)two)),
            msgl__f32_to_f16(msgl__e4m3_to_f32((uint8_t)(two >> 8)))};
}
static inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, int, int)
{
    return (__nv_fp8x2_storage_t)(msgl__f32_to_e4m3(v.x) | msgl__f32_to_e4m3(v.y) << 8);
}

#endif
