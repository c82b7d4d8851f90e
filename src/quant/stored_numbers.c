// SPDX-License-Identifier: Apache-2.0
//
// Numbers of eight bits, one by one, with a factor for each group_rows x group of them: FP8 and
// INT8 with scales by tensor, row, group or block.
#include "quant/stored.h"

// value: number * SCALES[row / group_rows][col / group]. Example: of 131 x 200 elements in groups
// of 128 x 128, element (130, 150) has scale 1 * 2 + 1 = 3.
static void expand(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    const size_t group = p->how->group, groups = (p->cols + group - 1) / group;
    const size_t first = row / p->how->group_rows * groups;
    for (size_t at = from; at < from + n;) {
        const size_t end = at / group * group + group, stop = end < from + n ? end : from + n;
        const float scale = msgl__side_at(p, MSGL_SCALES, first + at / group);
        for (; at < stop; at++) {
            values[at - from] =
                msgl__number_at(p->data, p->how->number, row * p->cols + at) * scale;
        }
    }
}

static void span(const msgl_packed *p, size_t begin, size_t end, size_t *from, size_t *bytes)
{
    const size_t size = msgl__number_size(p->how->number);
    *from = begin * size;
    *bytes = (end - begin) * size;
}

const msgl_stored msgl__stored_numbers = {"numbers", expand, span};
