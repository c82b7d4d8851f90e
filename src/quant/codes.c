// SPDX-License-Identifier: Apache-2.0
#include "quant/codes.h"

#include "core/dtype.h"

// The number whose bits these are.
static float number_of(msgl_number type, uint32_t bits)
{
    const uint8_t bytes[4] = {(uint8_t)bits, (uint8_t)(bits >> 8), (uint8_t)(bits >> 16),
                              (uint8_t)(bits >> 24)};
    return msgl__number_at(bytes, type, 0);
}

float msgl__code_number(const msgl_codes *c, uint8_t code)
{
    if (!c->floats) return (float)msgl__code_value(c, code);
    return c->bits == 8 ? msgl__e4m3_to_f32(code) : c->book[code];
}

static void one_level(const msgl_codes *c, const msgl_code_block *b, int32_t group, float *scale,
                      float *offset)
{
    const bool byte = msgl__number_size(c->number) == 1;
    *scale = number_of(c->number, byte ? b->c[group] : b->d);
    if (c->factor != 0 && !c->factor_last) {
        *scale = c->divided ? *scale / c->factor : *scale * c->factor;
    }
    if (c->offset == MSGL_OFFSET_ZERO) *offset = (float)(int8_t)b->e[group];
    if (msgl__codes_have_dmin(c)) *offset = number_of(c->number, b->dmin);
}

void msgl__codes_scale(const msgl_codes *c, const msgl_code_block *b, int32_t group, float *scale,
                       float *offset)
{
    *offset = 0;
    if (c->scaling == MSGL_SCALING_ONE) {
        one_level(c, b, group, scale, offset);
        return;
    }
    const float d = msgl__f16_to_f32((uint16_t)b->d);
    if (c->scaling == MSGL_SCALING_I8) {
        *scale = d * (float)(int8_t)b->c[group];
    } else {
        *scale = d * (float)b->c[group];
        *offset = -(msgl__f16_to_f32((uint16_t)b->dmin) * (float)b->e[group]);
    }
}
