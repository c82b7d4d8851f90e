// SPDX-License-Identifier: Apache-2.0
//
// Numbers of eight bits, one by one, with a factor for each group_rows x group of them: FP8 and
// INT8 with scales by tensor, row, group or block.
#include <math.h>
#include <string.h>

#include "quant/stored.h"

enum { BLOCK_ROWS = 128 }; // of blocks that a product makes use of

// The magnitudes of e4m3, eight with each exponent. They are a table because converting subnormals
// by arithmetic is slow.
#define STEPS(power)                                                                               \
    (power), 1.125f * (power), 1.25f * (power), 1.375f * (power), 1.5f * (power),                  \
        1.625f * (power), 1.75f * (power), 1.875f * (power)
static const float E4M3[128] = {
    0,
    0x1p-9f,
    0x2p-9f,
    0x3p-9f,
    0x4p-9f,
    0x5p-9f,
    0x6p-9f,
    0x7p-9f,
    STEPS(0x1p-6f),
    STEPS(0x1p-5f),
    STEPS(0x1p-4f),
    STEPS(0x1p-3f),
    STEPS(0x1p-2f),
    STEPS(0x1p-1f),
    STEPS(0x1p0f),
    STEPS(0x1p1f),
    STEPS(0x1p2f),
    STEPS(0x1p3f),
    STEPS(0x1p4f),
    STEPS(0x1p5f),
    STEPS(0x1p6f),
    STEPS(0x1p7f),
    0x1p8f,
    0x1.2p8f,
    0x1.4p8f,
    0x1.6p8f,
    0x1.8p8f,
    0x1.ap8f,
    0x1.cp8f,
    NAN,
};

static inline float e4m3(uint8_t code)
{
    return code & 0x80 ? -E4M3[code & 0x7f] : E4M3[code & 0x7f];
}

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
            const float number = floats ? e4m3(code) : (float)(int8_t)code;
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

// I8: the code is the number + 128.
static bool codes(const msgl_packed *p, msgl_codes *out)
{
    const msgl_packing *how = p->how;
    const msgl_side *zeros = &how->sides[MSGL_ZEROS];
    *out = (msgl_codes){.bits = 8,
                        .group = 32,
                        .rows = how->group_rows == BLOCK_ROWS ? BLOCK_ROWS : 0,
                        .number = how->sides[MSGL_SCALES].type,
                        .factor = how->factor,
                        .factor_last = how->factor != 0};
    if (how->number == MSGL_NUMBER_E4M3) {
        out->floats = true;
        return zeros->data == NULL;
    }
    out->zero = 128;
    out->offset = zeros->data != NULL ? MSGL_OFFSET_ZERO : MSGL_OFFSET_NONE;
    return zeros->data == NULL || (zeros->type == MSGL_NUMBER_I8 && how->factor == 0);
}

static void split_tile(const msgl_packed *p, const msgl_part_tile *t, msgl_code_part *out,
                       size_t ld)
{
    const msgl_packing *how = p->how;
    const msgl_side *scales = &how->sides[MSGL_SCALES], *zeros = &how->sides[MSGL_ZEROS];
    const size_t groups = (p->cols + how->group - 1) / how->group, end = t->col + t->cols;
    const uint64_t flip = how->number == MSGL_NUMBER_I8 ? 0x8080808080808080 : 0;
    for (size_t row = t->row; row < t->row + t->rows; row++, out += ld) {
        const size_t first = row / how->group_rows * groups;
        const uint8_t *at = p->data + row * p->cols + t->col;
        msgl_code_part *to = out;
        size_t next = t->col; // group's first column
        uint32_t d = 0;
        uint8_t zero = 0;
        for (size_t col = t->col; col < end; col += 32, at += 32, to++) {
            if (col >= next) {
                const size_t group = first + col / how->group;
                d = msgl__number_bits(scales->data, scales->type, group);
                zero = zeros->data != NULL ? zeros->data[group] : 0;
                next = (col / how->group + 1) * how->group;
            }
            uint64_t eight[4];
            memcpy(eight, at, sizeof eight);
            for (size_t i = 0; i < 4; i++) eight[i] ^= flip;
            memcpy(to->codes, eight, sizeof eight);
            to->d = d;
            to->dmin = 0;
            to->c[0] = (uint8_t)d, to->c[1] = 0;
            to->e[0] = zero, to->e[1] = 0;
        }
    }
}

static void split(const msgl_packed *p, size_t row, size_t from, msgl_code_part *out)
{
    const msgl_part_tile t = {row, 1, from, 32};
    split_tile(p, &t, out, 1);
}

const msgl_stored msgl__stored_numbers = {"numbers", expand, span, codes, split, split_tile, NULL};
