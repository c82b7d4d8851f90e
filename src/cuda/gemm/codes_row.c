// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/codes_row.h"

#include "core/round.h"

enum {
    PART = 32,   // columns of the smallest block
    SECTOR = 32, // bytes that memory is read by
};

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

// Of 32 codes `bits` bits from bit `from` on, as four pieces of as many bytes.
static void put_plane(uint8_t *to, const uint8_t codes[PART], int bits, int from)
{
    const uint8_t mask = (uint8_t)((1 << bits) - 1);
    for (int t = 0; t < 4; t++, to += bits) {
        uint64_t piece = 0;
        for (int q = 0; q < 4; q++) {
            const int at = bits == 8 ? q / 2 * 32 + q % 2 * 8 : bits * q;
            const uint8_t *pair = codes + 8 * q + 2 * t;
            piece |= (uint64_t)(pair[0] >> from & mask) << at;
            piece |= (uint64_t)(pair[1] >> from & mask) << (at + (bits == 8 ? 16 : 4 * bits));
        }
        memcpy(to, &piece, (size_t)bits); // little-endian
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
