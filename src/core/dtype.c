// SPDX-License-Identifier: Apache-2.0
#include "core/dtype.h"

#include <math.h>

#include "core/err.h"

static const char *const NAMES[MSGL_DTYPE_COUNT] = {[MSGL_F32] = "float32",
                                                    [MSGL_F16] = "float16",
                                                    [MSGL_BF16] = "bfloat16",
                                                    [MSGL_E4M3] = "fp8_e4m3"};
static const char *const SHORT_NAMES[MSGL_DTYPE_COUNT] = {
    [MSGL_F32] = "F32", [MSGL_F16] = "F16", [MSGL_BF16] = "BF16", [MSGL_E4M3] = "fp8"};

const char *msgl__dtype_name(msgl_dtype t)
{
    return NAMES[t];
}

int msgl__dtype_parse(const char *name, msgl_dtype *out)
{
    if (strncmp(name, "torch.", 6) == 0) name += 6;
    for (int t = 0; t < MSGL_DTYPE_COUNT; t++) {
        if (strcmp(name, NAMES[t]) == 0 || strcmp(name, SHORT_NAMES[t]) == 0) {
            *out = (msgl_dtype)t;
            return 0;
        }
    }
    return MSGL_EUNSUPPORTED;
}

uint16_t msgl__f32_to_f16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    const uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return sign | 0x7e00u;
    if (u >= 0x477ff000u) return sign | 0x7c00u; // 65520 and above round to infinity
    if (u < 0x38800000u) {                       // subnormal result: the FPU rounds for us
        float a;
        memcpy(&a, &u, 4);
        return sign | (uint16_t)lrintf(ldexpf(a, 24));
    }
    const uint32_t rounded = u + 0xfffu + ((u >> 13) & 1u);
    return sign | (uint16_t)((rounded - 0x38000000u) >> 13);
}

uint8_t msgl__f32_to_e4m3(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    const uint8_t sign = (uint8_t)((u >> 24) & 0x80u);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return 0x7f;
    if (u >= 0x43e00000u) return sign | 0x7eu; // 448
    if (u < 0x3c800000u) {                     // below 2^-6: the FPU rounds for us
        float a;
        memcpy(&a, &u, 4);
        return sign | (uint8_t)lrintf(ldexpf(a, 9));
    }
    return sign | (uint8_t)((u + 0x7ffffu + ((u >> 20) & 1u) - 0x3c000000u) >> 20);
}

float msgl__load_f32(const void *p, msgl_dtype t, size_t i)
{
    switch (t) {
    case MSGL_F16: return msgl__f16_to_f32(((const uint16_t *)p)[i]);
    case MSGL_BF16: return msgl__bf16_to_f32(((const uint16_t *)p)[i]);
    case MSGL_E4M3: return msgl__e4m3_to_f32(((const uint8_t *)p)[i]);
    default: return ((const float *)p)[i];
    }
}

void msgl__store_f32(void *p, msgl_dtype t, size_t i, float v)
{
    switch (t) {
    case MSGL_F16: ((uint16_t *)p)[i] = msgl__f32_to_f16(v); break;
    case MSGL_BF16: ((uint16_t *)p)[i] = msgl__f32_to_bf16(v); break;
    case MSGL_E4M3: ((uint8_t *)p)[i] = msgl__f32_to_e4m3(v); break;
    default: ((float *)p)[i] = v;
    }
}
