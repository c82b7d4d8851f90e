// SPDX-License-Identifier: Apache-2.0
//
// Blocks whose elements are small integers (codes) with scales by groups: what integer products are
// made of, and the exact value of each element. A form in which files hold such blocks says here
// what its numbers are, and how a block is taken apart; memory of a device holds the same numbers
// in an order of its own (kernel/gemm_codes.h).
#ifndef MSGL_QUANT_CODES_H
#define MSGL_QUANT_CODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MSGL_MAX_BLOCK 256      // elements
#define MSGL_MAX_CODE_GROUPS 16 // of a block

// How an element's value follows from q, its integer. With two levels, d and dmin are of the block,
// c and e of the element's group; with one, a block is a group.
typedef enum msgl_scaling {
    MSGL_SCALING_F16,     // d * q; d is f16, as all d and dmin below
    MSGL_SCALING_F16_MIN, // d * q + dmin
    MSGL_SCALING_E8M0,    // 2^(d - 128) * q; d is a byte
    MSGL_SCALING_I8,      // (d * c) * q; c is a signed byte
    MSGL_SCALING_U8_MIN,  // (d * c) * q - dmin * e; c and e are unsigned bytes
    MSGL_SCALING_U4_MIN,  // the same, c and e below 16
    MSGL_SCALINGS,
} msgl_scaling;

// A block taken apart.
typedef struct msgl_code_block {
    uint8_t codes[MSGL_MAX_BLOCK]; // of `bits` bits
    uint16_t d, dmin;              // the bits of f16 numbers, or d a byte
    uint8_t c[MSGL_MAX_CODE_GROUPS], e[MSGL_MAX_CODE_GROUPS]; // of groups
} msgl_code_block;

typedef struct msgl_codes {
    int32_t bits;         // of a code: 2, 3, 4, 5, 6 or 8
    int32_t group;        // elements that share c and e: 16 or 32
    int32_t zero;         // q = code - zero, ...
    const int8_t *values; // ... or q = values[code], [16]
    msgl_scaling scaling;
    void (*split)(const uint8_t *block, msgl_code_block *out);
} msgl_codes;

static inline int msgl__code_value(const msgl_codes *c, uint8_t code)
{
    return c->values != NULL ? c->values[code] : (int)code - c->zero;
}

static inline bool msgl__codes_have_min(const msgl_codes *c)
{
    return c->scaling == MSGL_SCALING_F16_MIN || c->scaling == MSGL_SCALING_U8_MIN ||
           c->scaling == MSGL_SCALING_U4_MIN;
}

// value = *scale * q + *min of the elements of a group. Exact but for the rounding of d * c.
void msgl__codes_scale(const msgl_codes *c, const msgl_code_block *b, int32_t group, float *scale,
                       float *min);

#endif
