// SPDX-License-Identifier: Apache-2.0
//
// NVFP4 as safetensors have it: e2m1, a scale for each 16 of a row, and one for all.
#include <math.h>

#include "quant/internal.h"
#include "quant/stored.h"

// value: e2m1 * (SCALES / GLOBAL), as compressed-tensors has it, or e2m1 * (SCALES * GLOBAL), as
// ModelOpt. Element 2j of a row is the lower half of its byte j, element 2j + 1 the upper half.
static void expand(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    static const float magnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const msgl_packing *how = p->how;
    const size_t groups = p->cols / how->group;
    const float global = msgl__side_at(p, MSGL_GLOBAL, 0);
    float scale = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t col = from + i;
        if (i == 0 || col % how->group == 0) {
            scale = msgl__side_at(p, MSGL_SCALES, row * groups + col / how->group);
            scale = how->divided ? scale / global : scale * global;
        }
        const uint32_t code = (uint32_t)p->data[(row * p->cols + col) / 2] >> (col % 2 * 4) & 15;
        values[i] = copysignf(magnitudes[code & 7], code & 8 ? -1.0f : 1.0f) * scale;
    }
}

static void span(const msgl_packed *p, size_t begin, size_t end, size_t *from, size_t *bytes)
{
    (void)p;
    *from = begin / 2;
    *bytes = (end + 1) / 2 - begin / 2;
}

// Code 8, which is -0, becomes 0 here.
static bool codes(const msgl_packed *p, msgl_codes *out)
{
    const float global = msgl__side_at(p, MSGL_GLOBAL, 0), factor = p->how->divided ? 2 : 0.5f;
    *out = (msgl_codes){.bits = 4,
                        .group = 16,
                        .values = msgl__fp4_doubled,
                        .span = 16,
                        .number = MSGL_NUMBER_E4M3,
                        .factor = factor * global,
                        .divided = p->how->divided};
    return p->how->group == 16 && isnormal(global) && isnormal(out->factor);
}

static void split(const msgl_packed *p, size_t row, size_t from, msgl_code_part *out)
{
    const size_t group = row * (p->cols / 16) + from / 16;
    msgl__block_halves(msgl__bytes_load(p->data + (row * p->cols + from) / 2), out->codes);
    for (size_t i = 0; i < 2; i++) out->c[i] = p->how->sides[MSGL_SCALES].data[group + i];
}

const msgl_stored msgl__stored_fp4 = {"NVFP4", expand, span, codes, split, NULL, NULL};
