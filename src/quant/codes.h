// SPDX-License-Identifier: Apache-2.0
//
// Elements that are codes of a few bits with scales by groups: mostly small integers, which integer
// products are made of, or floats of as few bits; and the exact value of each element. A form in
// which files hold such elements says here what its numbers are, and how some of them are taken
// apart; memory of a device holds the same numbers in an order of its own (kernel/gemm_codes.h).
#ifndef MSGL_QUANT_CODES_H
#define MSGL_QUANT_CODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quant/number.h"

#define MSGL_MAX_BLOCK 256      // elements
#define MSGL_MAX_CODE_GROUPS 16 // of a block

// What an element's q, its integer, is scaled by. With two levels, d and dmin are of the block and
// f16, c and e of the element's group; with one, a block is a group or two.
typedef enum msgl_scaling {
    MSGL_SCALING_ONE, // d, a `number`; c where that is one byte
    MSGL_SCALING_I8,  // d * c; c is a signed byte
    MSGL_SCALING_U8,  // d * c, and dmin * e is subtracted; c and e are unsigned bytes
    MSGL_SCALING_U4,  // the same, c and e below 16
    MSGL_SCALINGS,
} msgl_scaling;

// What else the value is made of.
typedef enum msgl_offset {
    MSGL_OFFSET_NONE,  // scale * q
    MSGL_OFFSET_ZERO,  // scale * (q - e); e is a signed byte. Of one level
    MSGL_OFFSET_MIN,   // scale * code + dmin, of two levels - dmin * e; dmin is a number as d is
    MSGL_OFFSET_FLOAT, // scale * (code - dmin): a zero point that is no integer. Of one level
} msgl_offset;

// A block taken apart.
typedef struct msgl_code_block {
    uint8_t codes[MSGL_MAX_BLOCK];                            // of `bits` bits
    uint32_t d, dmin;                                         // the bits of numbers
    uint8_t c[MSGL_MAX_CODE_GROUPS], e[MSGL_MAX_CODE_GROUPS]; // of groups
} msgl_code_block;

typedef struct msgl_codes {
    int32_t bits;         // of a code: 2, 3, 4, 5, 6 or 8
    int32_t group;        // elements that share c and e: 16 or 32
    int32_t zero;         // q = code - zero, ...
    const int8_t *values; // ... or q = values[code], [16], or: see floats
    msgl_scaling scaling;
    msgl_offset offset;
    // What msgl__codes_split does; NULL: a block is a msgl_code_part (quant/stored.h).
    void (*split)(const uint8_t *block, msgl_code_block *out);
    // Of one level. span: columns of a row that share scale and offset, all their groups having the
    // same: a multiple of the group that divides 256, or 0, all columns. Example: 128 with groups
    // of 32; columns 128 to 255 are groups 4 to 7.
    int32_t span;
    // Rows that share scale and offset too: each `rows` from a matrix's first one on. 0: nothing is
    // known of rows. Example: 128 of blocks of 128 x 128.
    int32_t rows;
    msgl_number number; // F32, F16, BF16, E4M3, E8M0 or E8M0_HALF
    float factor;       // that the scale is multiplied by, 0: nothing; ...
    bool divided;       // ... or divided by, ...
    bool factor_last;   // ... or that scale * q is multiplied by
    bool floats;        // q is no integer: of 8 bits e4m3, of 4 bits book[code]
    float book[16];
} msgl_codes;

// The columns of a matrix put together by the scale that they share. Example: columns 0, 2 and 3
// have group 0, columns 1, 4 and 5 group 1; places are 0 2 3, 29 times none, 1 4 5, 29 times none.
typedef struct msgl_column_order {
    int32_t num; // places, a multiple of 32; the columns of 32 places have one group
    // [num] which column has this place: each has one. -1: none, which are behind the columns of 32
    // places; what a weight has there is finite if the group's scale is, and multiplied by 0.
    int32_t columns[];
} msgl_column_order;

// Of codes that are integers.

static inline int msgl__code_value(const msgl_codes *c, uint8_t code)
{
    return c->values != NULL ? c->values[code] : (int)code - c->zero;
}

// Whether, of one level, there is a dmin.
static inline bool msgl__codes_have_dmin(const msgl_codes *c)
{
    return c->offset == MSGL_OFFSET_MIN || c->offset == MSGL_OFFSET_FLOAT;
}

// q, of all codes.
float msgl__code_number(const msgl_codes *c, uint8_t code);

// A block of them, `block`, taken apart.
void msgl__codes_split(const msgl_codes *c, const uint8_t *block, msgl_code_block *out);

// Scale and offset of the elements of a group. Exact but for the rounding of d * c, and of what
// `factor` does to the scale.
void msgl__codes_scale(const msgl_codes *c, const msgl_code_block *b, int32_t group, float *scale,
                       float *offset);

// An element's value, in the steps in which those who write such files compute it.
static inline float msgl__codes_value(const msgl_codes *c, float scale, float offset, float q)
{
    switch (c->offset) {
    case MSGL_OFFSET_ZERO: return scale * (q - offset);
    case MSGL_OFFSET_MIN: return scale * (q + (float)c->zero) + offset;
    case MSGL_OFFSET_FLOAT: return scale * (q + (float)c->zero - offset);
    case MSGL_OFFSET_NONE: break;
    }
    const float value = scale * q; // -0 stays where nothing is added
    return c->factor_last ? value * c->factor : value;
}

#endif
