// SPDX-License-Identifier: Apache-2.0
//
// Numbers of eight bits, one by one, with a factor for each group_rows x group of them: FP8 and
// INT8 with scales by tensor, row, group or block.
#include "core/dtype.h"
#include "quant/stored.h"

// value: (number - ZEROS[row / group_rows][col / group]) * SCALES[...], times factor if there is
// one. Example: of 131 x 200 elements in groups of 128 x 128, element (130, 150) has scale 1 * 2 +
// 1 = 3.
static void expand(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    const msgl_packing *how = p->how;
    const size_t group = how->group, groups = (p->cols + group - 1) / group;
    const size_t first = row / how->group_rows * groups;
    const bool floats = how->number == MSGL_NUMBER_E4M3; // else I8
    const bool has_zeros = how->sides[MSGL_ZEROS].data != NULL;
    for (size_t at = from; at < from + n;) {
        const size_t end = at / group * group + group, stop = end < from + n ? end : from + n;
        const float scale = msgl__side_at(p, MSGL_SCALES, first + at / group);
        const float zero = has_zeros ? msgl__side_at(p, MSGL_ZEROS, first + at / group) : 0;
        for (; at < stop; at++) {
            const uint8_t code = p->data[row * p->cols + at];
            const float number = floats ? msgl__e4m3_to_f32(code) : (float)(int8_t)code;
            const float value = (has_zeros ? number - zero : number) * scale;
            values[at - from] = how->factor != 0 ? value * how->factor : value;
        }
    }
}

static void span(const msgl_packed *p, size_t begin, size_t end, size_t *from, size_t *bytes)
{
    (void)p;
    *from = begin;
    *bytes = end - begin;
}

const msgl_stored msgl__stored_numbers = {"numbers", expand, span};
