// SPDX-License-Identifier: Apache-2.0
#include "quant/stored.h"

#include <string.h>

void msgl__code_part_split(const uint8_t *block, msgl_code_block *out)
{
    msgl_code_part part;
    memcpy(&part, block, sizeof part);
    memcpy(out->codes, part.codes, sizeof part.codes);
    memcpy(out->c, part.c, sizeof part.c);
    memcpy(out->e, part.e, sizeof part.e);
    out->d = part.d;
    out->dmin = part.dmin;
}

static size_t common_divisor(size_t a, size_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

// A group that is cut has its scale in several spans. Example: of groups of 96 columns, columns 288
// to 575 have spans of 32, each three of them with one group's scale.
bool msgl__stored_codes(const msgl_packed *p, size_t first_col, size_t cols, msgl_codes *out)
{
    const msgl_stored *form = p->how->form;
    *out = (msgl_codes){0};
    if (form->codes == NULL || first_col % 32 != 0 || cols % 32 != 0) return false;
    if (!form->codes(p, out)) return false;
    out->split = msgl__code_part_split;
    const size_t group = p->how->group;
    if (out->span == 0 && group < p->cols) {
        out->span = (int32_t)common_divisor(common_divisor(MSGL_MAX_BLOCK, group), first_col);
    }
    return out->span == 0 || out->span % out->group == 0;
}
