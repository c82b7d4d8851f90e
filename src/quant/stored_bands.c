// SPDX-License-Identifier: Apache-2.0
//
// HQQ: integers of 1 to 8 bits whose zero points are floats. A matrix's elements, counted from row
// to row, are a matrix of codes whose rows have C elements: neighbours in a group, or elements that
// are C apart. Codes are cut into bands of rows, and band 0 is in the highest bits.
#include "quant/internal.h"
#include "quant/stored.h"

// A matrix [steps, C] of words, which are bytes, and of 3 bits have 32 bits.
typedef struct bands {
    size_t cols, steps; // C; rows of a band
    uint32_t bits, top; // top: where band 0 is
    bool wide;
} bands;

// A word has 1, 2, 4 or 8 codes, and 10 of 3 bits: the last band may be short, and filled up.
static bands bands_of(const msgl_packed *p)
{
    const msgl_packing *how = p->how;
    const uint32_t bits = (uint32_t)how->bits, num = bits == 3 ? 10 : 8 / bits;
    const size_t rows = p->rows * p->cols / how->group;
    return (bands){how->group, (rows + num - 1) / num, bits, bits * (num - 1), bits == 3};
}

// Codes [from, from + n) of row j. Example: 4 bits, 6 rows: rows 0 to 2 are in the upper halves of
// bytes, row 4 in the lower ones of [1, C].
static void codes_at(const bands *b, const uint8_t *data, size_t j, size_t from, size_t n,
                     uint8_t *codes)
{
    const size_t first = j % b->steps * b->cols + from;
    const uint32_t shift = b->top - (uint32_t)(j / b->steps) * b->bits;
    const uint32_t mask = (1u << b->bits) - 1;
    for (size_t i = 0; i < n; i++) {
        const size_t at = first + i;
        const uint32_t word = b->wide ? msgl__block_u32(data + 4 * at) : data[at];
        codes[i] = (uint8_t)(word >> shift & mask);
    }
}

// value: (code - ZEROS[s]) * SCALES[s], s being the element's row of codes, or with `strided` its
// column. Example: 4 x 6 elements in rows of 8 codes: element (2, 1) is number 13, (1, 5); its
// scale is number 1, or strided number 5.
static void expand(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    enum { RUN = 64 };
    const bands b = bands_of(p);
    const bool strided = p->how->strided;
    const size_t first = row * p->cols + from, end = first + n;
    uint8_t codes[RUN];
    for (size_t e = first; e < end;) {
        const size_t j = e / b.cols, k = e % b.cols;
        size_t run = b.cols - k < end - e ? b.cols - k : end - e;
        run = run < RUN ? run : RUN;
        codes_at(&b, p->data, j, k, run, codes);
        float scale = 0, zero = 0;
        for (size_t i = 0; i < run; i++, e++) {
            if (strided || i == 0) {
                const size_t s = strided ? k + i : j;
                scale = msgl__side_at(p, MSGL_SCALES, s);
                zero = msgl__side_at(p, MSGL_ZEROS, s);
            }
            values[e - first] = ((float)codes[i] - zero) * scale;
        }
    }
}

// Codes of 1 bit are kept in 2. Groups are parts of a row, or whole rows.
static bool codes(const msgl_packed *p, msgl_codes *out)
{
    const msgl_packing *how = p->how;
    const int32_t bits = how->bits == 1 ? 2 : how->bits;
    *out = (msgl_codes){.bits = bits,
                        .group = 32,
                        .zero = 1 << (bits - 1),
                        .offset = MSGL_OFFSET_FLOAT,
                        .number = how->sides[MSGL_SCALES].type};
    const bool aligned = p->cols % how->group == 0 || how->group % p->cols == 0;
    return aligned && !how->strided && how->sides[MSGL_ZEROS].type == out->number;
}

static void split(const msgl_packed *p, size_t row, size_t from, msgl_code_part *out)
{
    const bands b = bands_of(p);
    const msgl_side *scales = &p->how->sides[MSGL_SCALES], *zeros = &p->how->sides[MSGL_ZEROS];
    const size_t e = row * p->cols + from, j = e / b.cols;
    codes_at(&b, p->data, j, e % b.cols, 32, out->codes);
    out->d = msgl__number_bits(scales->data, scales->type, j);
    out->dmin = msgl__number_bits(zeros->data, zeros->type, j);
}

const msgl_stored msgl__stored_bands = {"HQQ", expand, NULL, codes, split, NULL, NULL};
