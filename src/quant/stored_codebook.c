// SPDX-License-Identifier: Apache-2.0
//
// Codes of 4 bits that stand for 16 values: NF4 and FP4 of bitsandbytes. Blocks go on from row to
// row.
#include <string.h>

#include "core/bytes.h"
#include "quant/stored.h"

// The scale of a block: a number, or the value of a code, times the NESTED scale of 256 blocks,
// plus the mean that was taken from all.
static float scale_of(const msgl_packed *p, size_t block)
{
    const msgl_packing *how = p->how;
    if (how->sides[MSGL_NESTED].data == NULL) return msgl__side_at(p, MSGL_SCALES, block);
    const uint8_t code = how->sides[MSGL_SCALES].data[block];
    const float value = msgl__side_at(p, MSGL_NESTED_VALUES, code);
    return value * msgl__side_at(p, MSGL_NESTED, block / 256) + how->nested_plus;
}

// value: VALUES[code] * scale of block e / group, e = row * cols + col being the element's place in
// all; it is in byte e / 2, the first of two in the upper half. Example: of 3 x 5 elements, (2, 1)
// is element 11, the lower half of byte 5.
static void expand(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    const size_t first = row * p->cols + from, end = first + n, group = p->how->group;
    float book[16];
    for (size_t i = 0; i < 16; i++) book[i] = msgl__side_at(p, MSGL_VALUES, i);
    for (size_t e = first; e < end;) {
        const size_t stop = (e / group + 1) * group;
        const float scale = scale_of(p, e / group);
        for (; e < stop && e < end; e++) {
            const uint32_t code = (uint32_t)p->data[e / 2] >> (e % 2 == 0 ? 4 : 0) & 15;
            values[e - first] = book[code] * scale;
        }
    }
}

static void span(const msgl_packed *p, size_t begin, size_t end, size_t *from, size_t *bytes)
{
    (void)p;
    *from = begin / 2;
    *bytes = (end + 1) / 2 - begin / 2;
}

// Of blocks that are parts of a row, or whole rows, the scale is the number that expand()
// multiplies by.
static bool codes(const msgl_packed *p, msgl_codes *out)
{
    *out = (msgl_codes){.bits = 4, .group = 32, .floats = true, .number = MSGL_NUMBER_F32};
    for (size_t i = 0; i < 16; i++) out->book[i] = msgl__side_at(p, MSGL_VALUES, i);
    return p->cols % p->how->group == 0 || p->how->group % p->cols == 0;
}

static void split(const msgl_packed *p, size_t row, size_t from, msgl_code_part *out)
{
    const size_t first = row * p->cols + from;
    const float scale = scale_of(p, first / p->how->group);
    const msgl_bytes both = msgl__bytes_load(p->data + first / 2);
    const msgl_bytes even = msgl__bytes_high_bits(both), odd = msgl__bytes_low_bits(both);
    msgl__bytes_store(out->codes, msgl__bytes_zip_low(even, odd));
    msgl__bytes_store(out->codes + 16, msgl__bytes_zip_high(even, odd));
    memcpy(&out->d, &scale, sizeof scale);
}

const msgl_stored msgl__stored_codebook = {"codebook", expand, span, codes, split, NULL, NULL};
