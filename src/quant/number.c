// SPDX-License-Identifier: Apache-2.0
#include "quant/number.h"

#include <math.h>

#include "quant/internal.h"

size_t msgl__number_size(msgl_number type)
{
    static const uint8_t sizes[MSGL_NUMBERS] = {4, 2, 2, 1, 1, 1, 1, 1, 4, 8};
    return sizes[type];
}

int64_t msgl__integer_at(const uint8_t *data, msgl_number type, size_t i)
{
    const uint8_t *at = data + i * msgl__number_size(type);
    const uint64_t low = msgl__block_u32(at);
    if (type == MSGL_NUMBER_I32) return (int32_t)low;
    return (int64_t)(low | (uint64_t)msgl__block_u32(at + 4) << 32);
}

float msgl__number_at(const uint8_t *data, msgl_number type, size_t i)
{
    const uint8_t *at = data + i * msgl__number_size(type);
    switch (type) {
    case MSGL_NUMBER_F16: return msgl__block_f16(at);
    case MSGL_NUMBER_BF16: return msgl__bf16_to_f32((uint16_t)msgl__block_u16(at));
    case MSGL_NUMBER_E4M3: return msgl__e4m3_to_f32(*at);
    case MSGL_NUMBER_E8M0: return *at == 255 ? NAN : ldexpf(1, *at - 127);
    case MSGL_NUMBER_E8M0_HALF: return ldexpf(1, *at - 128);
    case MSGL_NUMBER_I8: return (int8_t)*at;
    case MSGL_NUMBER_U8: return *at;
    case MSGL_NUMBER_I32:
    case MSGL_NUMBER_I64: return (float)msgl__integer_at(data, type, i);
    case MSGL_NUMBER_F32:
    case MSGL_NUMBERS: break;
    }
    float f;
    memcpy(&f, at, sizeof f);
    return f;
}
