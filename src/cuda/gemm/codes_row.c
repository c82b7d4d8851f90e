// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/codes_row.h"

#include "core/round.h"

enum { PART = 32 }; // columns of the smallest block

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
    l.d = columns / 8 * (uint32_t)c->bits;
    l.dmin = l.d + numbers * size;
    l.c = l.dmin;
    if (c->offset != MSGL_OFFSET_NONE) {
        l.c += numbers * (c->offset == MSGL_OFFSET_ZERO ? 1 : size);
    }
    l.e = l.c + (one ? 0 : groups);
    l.bytes = l.e + (c->scaling == MSGL_SCALING_U8 ? groups : 0);
    l.bytes = (l.bytes + 15) / 16 * 16;
    *out = l;
    return true;
}

// Eight codes, `bits` bits of each from bit `from` on, next to each other.
static void put_bits(uint8_t *to, const uint8_t codes[8], int bits, int from)
{
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) {
        word |= (uint64_t)(codes[i] >> from & ((1 << bits) - 1)) << bits * i;
    }
    memcpy(to, &word, (size_t)bits); // little-endian
}

static void put_codes(const msgl_codes_row *l, uint8_t *row, uint32_t column, const uint8_t *codes)
{
    const int low = l->bits == 8 ? 8 : l->bits >= 4 ? 4 : 2, high = l->bits - low;
    for (uint32_t i = 0; i < PART; i += 8) {
        const uint32_t eight = (column + i) / 8;
        put_bits(row + eight * (uint32_t)low, codes + i, low, 0);
        if (high > 0) put_bits(row + l->upper + eight * (uint32_t)high, codes + i, high, low);
    }
}

// The scales of group `group` of a block, which begins at this column, if they are new there.
static void put_scales(const msgl_codes_row *l, uint8_t *row, uint32_t column,
                       const msgl_code_block *b, int group)
{
    if (l->scaling == MSGL_SCALING_ONE) {
        const uint32_t size = msgl__codes_row_size(l->number), i = column / (uint32_t)l->span;
        if (column % (uint32_t)l->span != 0) return;
        memcpy(row + l->d + i * size, size == 1 ? &b->c[group] : (const uint8_t *)&b->d, size);
        if (l->offset == MSGL_OFFSET_ZERO) row[l->dmin + i] = b->e[group];
        if (l->offset == MSGL_OFFSET_MIN || l->offset == MSGL_OFFSET_FLOAT) {
            memcpy(row + l->dmin + i * size, &b->dmin, size);
        }
        return;
    }
    const uint32_t block = column / MSGL_MAX_BLOCK, g = column / (uint32_t)l->group;
    const bool u4 = l->scaling == MSGL_SCALING_U4;
    if (column % MSGL_MAX_BLOCK == 0) {
        memcpy(row + l->d + 2 * block, &b->d, 2);
        if (l->offset == MSGL_OFFSET_MIN) memcpy(row + l->dmin + 2 * block, &b->dmin, 2);
    }
    row[l->c + g] = (uint8_t)(u4 ? b->c[group] | b->e[group] << 4 : b->c[group]);
    if (l->scaling == MSGL_SCALING_U8) row[l->e + g] = b->e[group];
}

void msgl__codes_row_put(const msgl_codes_row *l, const msgl_blocks *b, const uint8_t *src,
                         uint8_t *row)
{
    const uint32_t elements = (uint32_t)b->elements, group = (uint32_t)l->group;
    const uint32_t used = l->e + (l->scaling == MSGL_SCALING_U8 ? (uint32_t)l->k / group : 0);
    msgl_code_block split = {0};
    for (uint32_t column = 0; column < (uint32_t)l->k; column += elements, src += b->bytes) {
        b->codes->split(src, &split);
        for (uint32_t i = 0; i < elements; i += PART) {
            put_codes(l, row, column + i, split.codes + i);
        }
        for (uint32_t i = 0; i < elements; i += group) {
            put_scales(l, row, column + i, &split, (int)(i / group));
        }
    }
    memset(row + used, 0, l->bytes - used);
}
