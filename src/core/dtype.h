// SPDX-License-Identifier: Apache-2.0
//
// Element types and exact scalar conversions between them.
#ifndef MSGL_CORE_DTYPE_H
#define MSGL_CORE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum msgl_dtype {
    MSGL_F32 = 0,
    MSGL_F16 = 1,
    MSGL_BF16 = 2,
    MSGL_E4M3 = 3, // only KV caches have it, and matrices in files
    MSGL_DTYPE_COUNT = 4,
} msgl_dtype;

static inline size_t msgl__dtype_size(msgl_dtype t)
{
    return t == MSGL_F32 ? 4 : t == MSGL_E4M3 ? 1 : 2;
}

// "float32", "float16", "bfloat16": the spelling of config.json and of --dtype; "fp8_e4m3": of
// --kv-cache-dtype.
const char *msgl__dtype_name(msgl_dtype t);
// Accepts the names above, "torch."-prefixed ones, safetensors' F32/F16/BF16, and fp8 for fp8_e4m3.
// Returns 0 or MSGL_EUNSUPPORTED.
int msgl__dtype_parse(const char *name, msgl_dtype *out);

static inline float msgl__bf16_to_f32(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

// Round to nearest even; NaN stays a (quiet) NaN.
static inline uint16_t msgl__f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// The f32 of a smaller format whose exponent and mantissa `bits` hold, in f32's places. The
// multiplication by 2 to the difference of the exponents' biases is exact and normalizes
// subnormals.
static inline float msgl__rebias(uint32_t bits, float scale, uint32_t sign)
{
    float f;
    memcpy(&f, &bits, 4);
    f *= scale;
    return sign ? -f : f;
}

// IEEE binary16, subnormals and specials included; f32 -> f16 rounds to nearest even.
static inline float msgl__f16_to_f32(uint16_t h)
{
    const uint32_t bits = (h & 0x7fffu) << 13, special = (h & 0x7c00u) == 0x7c00u;
    return special ? msgl__rebias(bits | 0x7f800000u, 1, h & 0x8000u)
                   : msgl__rebias(bits, 0x1p112f, h & 0x8000u);
}
uint16_t msgl__f32_to_f16(float f);

// E4M3 of the OCP 8-bit Floating Point Specification (2023): subnormals, no infinity, 0x7f and 0xff
// are NaN. f32 -> E4M3 rounds to nearest even and saturates at +-448, infinities too; NaN is 0x7f.
static inline float msgl__e4m3_to_f32(uint8_t b)
{
    const uint32_t bits = (b & 0x7fu) << 20, nan = (b & 0x7fu) == 0x7fu;
    return msgl__rebias(nan ? 0x7fc00000u : bits, nan ? 1 : 0x1p120f, b & 0x80u);
}
uint8_t msgl__f32_to_e4m3(float f);

// n elements of an array of F32, F16 or BF16 from element `at` on, as f32.
static inline void msgl__to_f32(const void *from, msgl_dtype dtype, size_t at, int n, float *to)
{
    switch (dtype) {
    case MSGL_BF16:
        for (int d = 0; d < n; d++) to[d] = msgl__bf16_to_f32(((const uint16_t *)from)[at + d]);
        break;
    case MSGL_F16:
        for (int d = 0; d < n; d++) to[d] = msgl__f16_to_f32(((const uint16_t *)from)[at + d]);
        break;
    default: memcpy(to, (const float *)from + at, (size_t)n * sizeof *to);
    }
}

// Element i of an array of type t, as f32, and the reverse (rounding to nearest even).
float msgl__load_f32(const void *p, msgl_dtype t, size_t i);
void msgl__store_f32(void *p, msgl_dtype t, size_t i, float v);

#endif
