// SPDX-License-Identifier: Apache-2.0
#include "quant/codes.h"

#include <math.h>

#include "core/dtype.h"

void msgl__codes_scale(const msgl_codes *c, const msgl_code_block *b, int32_t group, float *scale,
                       float *min)
{
    *min = 0;
    if (c->scaling == MSGL_SCALING_E8M0) {
        *scale = ldexpf(1, (int)b->d - 128);
        return;
    }
    const float d = msgl__f16_to_f32(b->d), dmin = msgl__f16_to_f32(b->dmin);
    *scale = d;
    if (c->scaling == MSGL_SCALING_F16_MIN) *min = dmin;
    if (c->scaling == MSGL_SCALING_I8) *scale = d * (float)(int8_t)b->c[group];
    if (c->scaling == MSGL_SCALING_U8_MIN || c->scaling == MSGL_SCALING_U4_MIN) {
        *scale = d * (float)b->c[group];
        *min = -(dmin * (float)b->e[group]);
    }
}
