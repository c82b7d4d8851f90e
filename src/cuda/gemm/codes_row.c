// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/codes_row.h"

#include "core/attributes.h"
#include "core/bytes.h"
#include "core/round.h"

enum {
    PART = 32,   // columns of the smallest block
    SECTOR = 32, // bytes that memory is read by
};

static const msgl_codes INT8 = {
    .bits = 8, .group = PART, .zero = 128, .span = MSGL_INT8_GROUP, .number = MSGL_NUMBER_F32};
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

// Planes of 32 codes, in the order that codes_row.h says: with c = 2 t + odd of piece t, columns
// c, c + 8, c + 16 and c + 24 are next to each other, and of 4 bits two of them are a byte.

MSGL_INLINE void put_eight(uint8_t *to, const uint8_t codes[PART])
{
    const msgl_bytes a = msgl__bytes_load(codes), b = msgl__bytes_load(codes + 16);
    const msgl_bytes low = msgl__bytes_zip_low(a, msgl__bytes_zip_halves_high(a, a));
    const msgl_bytes high = msgl__bytes_zip_low(b, msgl__bytes_zip_halves_high(b, b));
    msgl__bytes_store(to, msgl__bytes_zip_words_low(low, high));
    msgl__bytes_store(to + 16, msgl__bytes_zip_words_high(low, high));
}

// Of codes that may have more bits.
MSGL_INLINE void put_four(uint8_t *to, const uint8_t codes[PART])
{
    const msgl_bytes a = msgl__bytes_low_bits(msgl__bytes_load(codes));
    const msgl_bytes b = msgl__bytes_low_bits(msgl__bytes_load(codes + 16));
    const msgl_bytes even = msgl__bytes_zip_halves_low(a, b); // columns 0 to 7 and 16 to 23
    const msgl_bytes odd = msgl__bytes_zip_halves_high(a, b);
    const msgl_bytes both = even | (msgl_bytes)((msgl_bytes_u16)odd << 4);
    msgl__bytes_store(to, msgl__bytes_zip_low(both, msgl__bytes_zip_halves_high(both, both)));
}

// 2 bits from bit `from` on: a byte is a column of all q.
MSGL_INLINE void put_two(uint8_t *to, const uint8_t codes[PART], const int from)
{
    uint64_t eight[4], all = 0;
    memcpy(eight, codes, sizeof eight);
    for (int q = 0; q < 4; q++) {
        all |= (eight[q] >> from & UINT64_C(0x0303030303030303)) << 2 * q;
    }
    memcpy(to, &all, sizeof all);
}

// Bit `from`: a byte is two columns.
MSGL_INLINE void put_one(uint8_t *to, const uint8_t codes[PART], const int from)
{
    uint64_t eight[4], all = 0;
    memcpy(eight, codes, sizeof eight);
    for (int q = 0; q < 4; q++) {
        all |= (eight[q] >> from & UINT64_C(0x0101010101010101)) << q;
    }
    for (int t = 0; t < 4; t++, all >>= 16) to[t] = (uint8_t)((all & 15) | (all >> 4 & 0xf0));
}

// 32 columns from this one on: the lower bits of all codes, and the upper ones.
MSGL_INLINE void put_codes(uint8_t *row, uint8_t *upper, uint32_t column, const uint8_t *codes,
                           const int bits)
{
    const uint32_t eight = column / 8;
    switch (bits) {
    case 2: put_two(row + eight * 2, codes, 0); return;
    case 3:
        put_two(row + eight * 2, codes, 0);
        put_one(upper + eight, codes, 2);
        return;
    case 4: put_four(row + eight * 4, codes); return;
    case 5:
        put_four(row + eight * 4, codes);
        put_one(upper + eight, codes, 4);
        return;
    case 6:
        put_four(row + eight * 4, codes);
        put_two(upper + eight * 2, codes, 4);
        return;
    default: put_eight(row + eight * 8, codes);
    }
}

// The same of n times 32 codes that are `step` bytes apart. Each number of bits has a loop.
static void put_run(const msgl_codes_row *l, uint8_t *row, uint32_t column, const uint8_t *codes,
                    size_t step, uint32_t n)
{
#define RUN(bits)                                                                                  \
    case bits:                                                                                     \
        for (uint32_t i = 0; i < n; i++) {                                                         \
            put_codes(row, row + l->upper, column + PART * i, codes + i * step, bits);             \
        }                                                                                          \
        return
    switch (l->bits) {
        RUN(2);
        RUN(3);
        RUN(4);
        RUN(5);
        RUN(6);
        RUN(8);
    }
#undef RUN
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

// Scale and offset number i of one level. d and dmin: the bytes of their numbers.
static void put_one_level(const msgl_codes_row *l, uint8_t *scales, uint32_t i, const uint8_t *d,
                          const uint8_t *dmin, uint8_t e)
{
    const uint32_t size = msgl__codes_row_size(l->number);
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
        if (column % (uint32_t)l->span != 0) return;
        put_one_level(l, scales, column / (uint32_t)l->span,
                      byte ? &b->c[group] : (const uint8_t *)&b->d, (const uint8_t *)&b->dmin,
                      b->e[group]);
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
        msgl__codes_split(b->codes, src, &split);
        put_run(l, row, column, split.codes, PART, elements / PART);
        for (uint32_t i = 0; i < elements; i += group) {
            put_scales(l, row + l->codes, column + i, &split, (int)(i / group));
        }
    }
    put_end(l, row);
}

// n numbers of `size` bytes, `step` bytes apart.
MSGL_INLINE void put_each(uint8_t *to, const uint8_t *from, size_t step, uint32_t n,
                          const uint32_t size)
{
    for (uint32_t i = 0; i < n; i++) memcpy(to + i * size, from + i * step, size);
}

static void put_numbers(uint8_t *to, const void *from, size_t step, uint32_t n, uint32_t size)
{
    switch (size) {
    case 4: put_each(to, from, step, n, 4); return;
    case 2: put_each(to, from, step, n, 2); return;
    default: put_each(to, from, step, n, 1);
    }
}

// Scales and offsets of spans from number i on, n of them, each that of a part.
static void put_spans(const msgl_codes_row *l, uint8_t *scales, uint32_t i,
                      const msgl_code_part *parts, uint32_t n)
{
    const size_t step = (size_t)l->span / PART * sizeof *parts;
    const uint32_t size = msgl__codes_row_size(l->number);
    put_numbers(scales + i * size, size == 1 ? (const void *)parts->c : &parts->d, step, n, size);
    if (l->offset == MSGL_OFFSET_ZERO) put_numbers(scales + l->dmin + i, parts->e, step, n, 1);
    if (l->offset == MSGL_OFFSET_MIN || l->offset == MSGL_OFFSET_FLOAT) {
        put_numbers(scales + l->dmin + i * size, &parts->dmin, step, n, size);
    }
}

// Parts [first, first + num) of a row: their codes and scales, and with the last part what the row
// is filled up with. Scales are those of the spans that begin here.
static void put_parts(const msgl_codes_row *l, const msgl_code_part *parts, uint32_t first,
                      uint32_t num, uint8_t *row)
{
    const uint32_t span = (uint32_t)l->span, begin = first * PART, end = begin + num * PART;
    const uint32_t i = (begin + span - 1) / span, past = (end + span - 1) / span;
    uint8_t *const scales = row + l->codes;
    put_run(l, row, begin, parts->codes, sizeof *parts, num);
    if (span >= PART) {
        if (i < past) put_spans(l, scales, i, parts + (i * span - begin) / PART, past - i);
    } else { // two of a part
        for (uint32_t j = i; j < past; j++) {
            const msgl_code_part *const part = parts + (j - i) / 2;
            const bool byte = msgl__codes_row_size(l->number) == 1;
            put_one_level(l, scales, j, byte ? &part->c[j % 2] : (const uint8_t *)&part->d,
                          (const uint8_t *)&part->dmin, part->e[j % 2]);
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
