// SPDX-License-Identifier: Apache-2.0
//
// What is left of values in the dtypes and in the formats that weights are quantised to while
// loading, by the rules of kernel/wformat.h: plain C, for tests of kernels on CPUs and GPUs.
#ifndef MSGL_TESTS_UTILS_ROUNDED_H
#define MSGL_TESTS_UTILS_ROUNDED_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/dtype.h"
#include "kernel/wformat.h"

static inline float rounded(float v, msgl_dtype dtype)
{
    uint32_t store = 0;
    msgl__store_f32(&store, dtype, 0, v);
    return msgl__load_f32(&store, dtype, 0);
}

// n values of a row, as MSGL_WFORMAT_INT8 says.
static inline void round_to_int8(float *v, int n)
{
    for (int at = 0; at < n; at += MSGL_INT8_GROUP) {
        const int end = at + MSGL_INT8_GROUP < n ? at + MSGL_INT8_GROUP : n;
        float largest = 0;
        bool finite = true;
        for (int i = at; i < end; i++) {
            finite = finite && isfinite(v[i]);
            largest = fmaxf(largest, fabsf(v[i]));
        }
        const float inverse = largest < 1e-30f ? 0 : 127 / largest, scale = largest / 127;
        for (int i = at; i < end; i++) v[i] = finite ? nearbyintf(v[i] * inverse) * scale : NAN;
    }
}

// The same, as MSGL_WFORMAT_Q4 says.
static inline void round_to_q4(float *v, int n)
{
    for (int at = 0; at < n; at += 32) {
        const int end = at + 32 < n ? at + 32 : n;
        float most = 0;
        bool finite = true;
        for (int i = at; i < end; i++) {
            finite = finite && isfinite(v[i]);
            if (fabsf(v[i]) > fabsf(most)) most = v[i];
        }
        const float exact = most / -8, d = msgl__f16_to_f32(msgl__f32_to_f16(exact));
        for (int i = at; i < end; i++) {
            const float q = d == 0 ? 8 : nearbyintf(v[i] / exact + 8);
            v[i] = finite ? d * (fminf(q, 15) - 8) : NAN;
        }
    }
}

#endif
