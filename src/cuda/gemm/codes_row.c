// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/codes_row.h"

#include "core/round.h"
#include "quant/stored.h"

enum {
    PART = 32,   // columns of the smallest block
    SECTOR = 32, // bytes that memory is read by
};

static const msgl_codes INT8 = {.bits = 8,
                                .group = PART,
                                .zero = 128,
                                .split = msgl__code_part_split,
                                .span = MSGL_INT8_GROUP,
                                .number = MSGL_NUMBER_F32};
const msgl_blocks msgl__int8_blocks = {"int8", PART, sizeof(msgl_code_part), &INT8, NULL};

static uint32_t fill_up(uint32_t bytes)
{
    return (bytes + SECTOR - 1) / SECTOR * SECTOR;
}

bool msgl__codes_row_of(const msgl_blocks *b, int k, msgl_codes_row *out)
{
    const msgl_codes *c = b->codes;
    if (c == NULL || b->elements < PART || k < 1 || k > INT32_MAX / 16 || k % b->elements != 0) {
        return false;
    }
    const bool one = c->scaling == MSGL_SCALING_ONE;
    const uint32_t columns = (uint32_t)k;
    msgl_codes_row l = {.k = k,
                        .bits = c->bits,
                        .group = c->group,
                        .zero = c->zero,
                        .span = one && c->span > 0 ? c->span : k,
                        .scaling = c->scaling,
                        .offset = c->offset,
                        .number = c->number,
                        .factor = c->factor,
                        .divided = c->divided,
                        .factor_last = c->factor_last,
                        .e4m3 = c->floats && c->bits == 8,
                        .looked_up = c->values != NULL || (c->floats && c->bits != 8)};
    const uint32_t size = one ? msgl__codes_row_size(c->number) : 2;
    const uint32_t numbers = (uint32_t)msgl__ceil_div(k, one ? l.span : MSGL_MAX_BLOCK);
    const uint32_t groups = columns / (uint32_t)c->group;
    for (int i = 0; i < 16; i++) l.book[i] = c->values != NULL ? c->values[i] : c->book[i];
    l.upper = columns / 8 * (c->bits == 8 ? 8 : c->bits >= 4 ? 4 : 2);
    l.codes = fill_up(columns / 8 * (uint32_t)c->bits);
    l.dmin = numbers * size;
    l.c = l.dmin;
    if (c->offset != MSGL_OFFSET_NONE) {
        l.c += numbers * (c->offset == MSGL_OFFSET_ZERO ? 1 : size);
    }
    l.e = l.c + (one ? 0 : groups);
    l.scales = l.e + (c->scaling == MSGL_SCALING_U8 ? groups : 0);
    l.bytes = fill_up(l.codes + l.scales);
    *out = l;
    return true;
}

bool msgl__codes_row_is_e2m1(const msgl_codes_row *l)
{
    static const float doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    if (l->bits != 4 || !l->looked_up) return false;
    for (int i = 0; i < 16; i++) {
        if (l->book[i] != doubled[i]) return false;
    }
    return true;
}

float msgl__codes_row_factor(const msgl_codes_row *l)
{
    float factor = l->factor == 0 ? 1 : l->divided ? 1 / l->factor : l->factor;
    if (msgl__codes_row_is_e2m1(l)) factor *= 2;
    if (l->number == MSGL_NUMBER_E8M0_HALF) factor /= 2;
    return factor;
}

// Four bytes, each with a byte of zeros above it.
static uint64_t spread(uint32_t bytes)
{
    uint64_t v = bytes;
    v = (v | v << 16) & 0x0000ffff0000ffff;
    return (v | v << 8) & 0x00ff00ff00ff00ff;
}

// Byte j of a and of b next to each other, for all 8 (little-endian).
static void interleave(uint8_t to[16], uint64_t a, uint64_t b)
{
    const uint64_t both[2] = {spread((uint32_t)a) | spread((uint32_t)b) << 8,
                              spread((uint32_t)(a >> 32)) | spread((uint32_t)(b >> 32)) << 8};
    memcpy(to, both, sizeof both);
}

// Of 32 codes `bits` bits from bit `from` on, as four pieces of as many bytes (little-endian). With
// eight[q] columns 8 q to 8 q + 7, a byte each, piece t has of each bytes 2 t and 2 t + 1. Where a
// byte has room for several codes those of the same bytes lie above each other, so that piece t's
// bytes are next to each other; of 4 bits, for example, it is 0 and 1, then 2 and 3 of eight[].
static void put_plane(uint8_t *to, const uint8_t codes[PART], int bits, int from)
{
    const uint64_t mask = UINT64_C(0x0101010101010101) * ((1u << bits) - 1);
    uint64_t eight[4];
    memcpy(eight, codes, PART);
    for (int q = 0; q < 4; q++) eight[q] = eight[q] >> from & mask;
    if (bits == 8) {
        uint8_t halves[2][16]; // columns 0 to 15 of 32, and the others
        interleave(halves[0], eight[0], eight[1]);
        interleave(halves[1], eight[2], eight[3]);
        for (int t = 0; t < 4; t++) {
            memcpy(to + 8 * t, halves[0] + 4 * t, 4);
            memcpy(to + 8 * t + 4, halves[1] + 4 * t, 4);
        }
    } else if (bits == 4) {
        interleave(to, eight[0] | eight[1] << 4, eight[2] | eight[3] << 4);
    } else {
        uint64_t all = 0; // codes of a byte's columns: bits 0 to 4 bits - 1 of it
        for (int q = 0; q < 4; q++) all |= eight[q] << q * bits;
        if (bits == 2) {
            memcpy(to, &all, 8);
        } else { // of a bit each: two bytes' make one
            for (int t = 0; t < 4; t++, all >>= 16)
                to[t] = (uint8_t)(all & 15) | (uint8_t)(all >> 4 & 0xf0);
        }
    }
}

static void put_codes(const msgl_codes_row *l, uint8_t *row, uint32_t column, const uint8_t *codes)
{
    const int low = l->bits == 8 ? 8 : l->bits >= 4 ? 4 : 2, high = l->bits - low;
    put_plane(row + column / 8 * (uint32_t)low, codes, low, 0);
    if (high > 0) put_plane(row + l->upper + column / 8 * (uint32_t)high, codes, high, low);
}

// The scales of group `group` of a block, which begins at this column, if they are new there.
static void put_scales(const msgl_codes_row *l, uint8_t *scales, uint32_t column,
                       const msgl_code_block *b, int group)
{
    if (l->scaling == MSGL_SCALING_ONE) {
        const uint32_t size = msgl__codes_row_size(l->number), i = column / (uint32_t)l->span;
        if (column % (uint32_t)l->span != 0) return;
        memcpy(scales + i * size, size == 1 ? &b->c[group] : (const uint8_t *)&b->d, size);
        if (l->offset == MSGL_OFFSET_ZERO) scales[l->dmin + i] = b->e[group];
        if (l->offset == MSGL_OFFSET_MIN || l->offset == MSGL_OFFSET_FLOAT) {
            memcpy(scales + l->dmin + i * size, &b->dmin, size);
        }
        return;
    }
    const uint32_t block = column / MSGL_MAX_BLOCK, g = column / (uint32_t)l->group;
    const bool u4 = l->scaling == MSGL_SCALING_U4;
    if (column % MSGL_MAX_BLOCK == 0) {
        memcpy(scales + 2 * block, &b->d, 2);
        if (l->offset == MSGL_OFFSET_MIN) memcpy(scales + l->dmin + 2 * block, &b->dmin, 2);
    }
    scales[l->c + g] = (uint8_t)(u4 ? b->c[group] | b->e[group] << 4 : b->c[group]);
    if (l->scaling == MSGL_SCALING_U8) scales[l->e + g] = b->e[group];
}

void msgl__codes_row_put(const msgl_codes_row *l, const msgl_blocks *b, const uint8_t *src,
                         uint8_t *row)
{
    const uint32_t elements = (uint32_t)b->elements, group = (uint32_t)l->group;
    const uint32_t codes = (uint32_t)l->k / 8 * (uint32_t)l->bits;
    msgl_code_block split = {0};
    for (uint32_t column = 0; column < (uint32_t)l->k; column += elements, src += b->bytes) {
        b->codes->split(src, &split);
        for (uint32_t i = 0; i < elements; i += PART) {
            put_codes(l, row, column + i, split.codes + i);
        }
        for (uint32_t i = 0; i < elements; i += group) {
            put_scales(l, row + l->codes, column + i, &split, (int)(i / group));
        }
    }
    memset(row + codes, 0, l->codes - codes);
    memset(row + l->codes + l->scales, 0, l->bytes - l->codes - l->scales);
}
