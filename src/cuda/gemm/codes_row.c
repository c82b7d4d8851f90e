// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/codes_row.h"

#include "core/attributes.h"
#include "core/round.h"

enum {
    PART = 32,   // columns of the smallest block
    SECTOR = 32, // bytes that memory is read by
};

static const msgl_codes INT8 = {.bits = 8,
                                .group = PART,
                                .zero = 128,
                                .split = msgl__code_part_split,
                                .parts = true,
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

// Byte i of a and of b next to each other, for all 8.
MSGL_INLINE void interleave(uint8_t to[16], const uint8_t a[8], const uint8_t b[8])
{
    for (int i = 0; i < 8; i++) {
        to[2 * i] = a[i];
        to[2 * i + 1] = b[i];
    }
}

// Of 32 codes `bits` bits from bit `from` on, as four pieces of as many bytes (little-endian).
// Piece t has of each 8 columns, 8 q to 8 q + 7, those with numbers 2 t and 2 t + 1. Where a byte
// has room for several codes those of the same numbers lie above each other, so that piece t's
// bytes are next to each other; of 4 bits, for example, it is 0 and 1, then 2 and 3 of the q.
MSGL_INLINE void put_plane(uint8_t *to, const uint8_t codes[PART], const int bits, const int from)
{
    uint64_t eight[4];
    memcpy(eight, codes, PART);
    if (bits == 8) {
        const uint64_t even = UINT64_C(0x00ff00ff00ff00ff);
        for (int t = 0; t < 4; t++) {
            const uint64_t a = (eight[0] >> 16 * t & 0xffff) | (eight[2] >> 16 * t & 0xffff) << 32;
            const uint64_t b = (eight[1] >> 16 * t & 0xffff) | (eight[3] >> 16 * t & 0xffff) << 32;
            const uint64_t piece = ((a | a << 8) & even) | ((b | b << 8) & even) << 8;
            memcpy(to + 8 * t, &piece, sizeof piece);
        }
        return;
    }
    const uint64_t mask = UINT64_C(0x0101010101010101) * ((1u << bits) - 1);
    for (int q = 0; q < 4; q++) eight[q] = eight[q] >> from & mask;
    if (bits == 4) {
        uint64_t two[2] = {0, 0};
        uint8_t bytes[2][8];
        for (int q = 0; q < 4; q++) two[q / 2] |= eight[q] << q % 2 * 4;
        memcpy(bytes, two, sizeof two);
        interleave(to, bytes[0], bytes[1]);
        return;
    }
    uint64_t all = 0; // codes of a byte's columns: bits 0 to 4 bits - 1 of it
    for (int q = 0; q < 4; q++) all |= eight[q] << q * bits;
    if (bits == 2) {
        memcpy(to, &all, 8);
    } else { // of a bit each: two bytes' make one
        for (int t = 0; t < 4; t++, all >>= 16)
            to[t] = (uint8_t)(all & 15) | (uint8_t)(all >> 4 & 0xf0);
    }
}

// 32 columns from this one on: the lower bits of all codes, and the upper ones.
static void put_codes(const msgl_codes_row *l, uint8_t *row, uint32_t column, const uint8_t *codes)
{
    const uint32_t eight = column / 8;
    uint8_t *const upper = row + l->upper;
    switch (l->bits) {
    case 2: put_plane(row + eight * 2, codes, 2, 0); return;
    case 3:
        put_plane(row + eight * 2, codes, 2, 0);
        put_plane(upper + eight, codes, 1, 2);
        return;
    case 4: put_plane(row + eight * 4, codes, 4, 0); return;
    case 5:
        put_plane(row + eight * 4, codes, 4, 0);
        put_plane(upper + eight, codes, 1, 4);
        return;
    case 6:
        put_plane(row + eight * 4, codes, 4, 0);
        put_plane(upper + eight * 2, codes, 2, 4);
        return;
    default: put_plane(row + eight * 8, codes, 8, 0);
    }
}

// A number, or as many bytes as one has: a copy of a length that is known is one instruction.
static void put_number(uint8_t *to, const uint8_t *from, uint32_t size)
{
    if (size == 4) {
        memcpy(to, from, 4);
    } else if (size == 2) {
        memcpy(to, from, 2);
    } else {
        *to = *from;
    }
}

// Scale and offset of one level of columns from this one on, if they are new there. d and dmin:
// the bytes of their numbers.
static void put_one_level(const msgl_codes_row *l, uint8_t *scales, uint32_t column,
                          const uint8_t *d, const uint8_t *dmin, uint8_t e)
{
    const uint32_t size = msgl__codes_row_size(l->number), i = column / (uint32_t)l->span;
    if (column % (uint32_t)l->span != 0) return;
    put_number(scales + i * size, d, size);
    if (l->offset == MSGL_OFFSET_ZERO) scales[l->dmin + i] = e;
    if (l->offset == MSGL_OFFSET_MIN || l->offset == MSGL_OFFSET_FLOAT) {
        put_number(scales + l->dmin + i * size, dmin, size);
    }
}

// The scales of group `group` of a block, which begins at this column, if they are new there.
static void put_scales(const msgl_codes_row *l, uint8_t *scales, uint32_t column,
                       const msgl_code_block *b, int group)
{
    if (l->scaling == MSGL_SCALING_ONE) {
        const bool byte = msgl__codes_row_size(l->number) == 1;
        put_one_level(l, scales, column, byte ? &b->c[group] : (const uint8_t *)&b->d,
                      (const uint8_t *)&b->dmin, b->e[group]);
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

// What a row is filled up with.
static void put_end(const msgl_codes_row *l, uint8_t *row)
{
    const uint32_t codes = (uint32_t)l->k / 8 * (uint32_t)l->bits;
    memset(row + codes, 0, l->codes - codes);
    memset(row + l->codes + l->scales, 0, l->bytes - l->codes - l->scales);
}

void msgl__codes_row_put(const msgl_codes_row *l, const msgl_blocks *b, const uint8_t *src,
                         uint8_t *row)
{
    const uint32_t elements = (uint32_t)b->elements, group = (uint32_t)l->group;
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
    put_end(l, row);
}

// Parts [first, first + num) of a row: their codes and scales, and with the last part what the row
// is filled up with.
static void put_parts(const msgl_codes_row *l, const msgl_code_part *parts, uint32_t first,
                      uint32_t num, uint8_t *row)
{
    const uint32_t group = (uint32_t)l->group, end = (first + num) * PART;
    const bool byte = msgl__codes_row_size(l->number) == 1;
    for (uint32_t column = first * PART; column < end; column += PART, parts++) {
        put_codes(l, row, column, parts->codes);
        for (uint32_t i = 0; i < PART; i += group) {
            put_one_level(l, row + l->codes, column + i,
                          byte ? &parts->c[i / group] : (const uint8_t *)&parts->d,
                          (const uint8_t *)&parts->dmin, parts->e[i / group]);
        }
    }
    if (end == (uint32_t)l->k) put_end(l, row);
}

void msgl__codes_rows_put(const msgl_codes_row *l, const msgl_part_rows *src, size_t first,
                          size_t rows, int task, uint8_t *to)
{
    msgl_part_tile left = msgl__stored_task(rows, (size_t)l->k, task), t;
    msgl_code_part tile[MSGL_TILE_ROWS * MSGL_TASK_COLS / PART];
    while (msgl__stored_tile(&left, &t)) {
        const size_t parts = t.cols / PART, part = t.col / PART;
        uint8_t *row = to + t.row * l->bytes;
        t.row += first;
        src->read(src->rows, &t, tile, parts);
        for (size_t r = 0; r < t.rows; r++, row += l->bytes) {
            put_parts(l, tile + r * parts, (uint32_t)part, (uint32_t)parts, row);
        }
    }
}
