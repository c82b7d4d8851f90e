// SPDX-License-Identifier: Apache-2.0
//
// Integers of 2 to 8 bits, packed into little-endian words of 32 bits, with a scale and a zero
// point for each group of a row's columns. The forms differ in where a row's codes are, and where a
// group's scale and zero point.
#include <string.h>

#include "core/attributes.h"
#include "quant/internal.h"
#include "quant/stored.h"

// Codes 0, 1, 2, ... in words that are `stride` words apart. Code i is behind the first i * bits
// bits of them, or, with so many codes per_word, in word i / per_word. Example: of 3 bits, code 10
// has bits 30 and 31 of word 0 and bit 0 of word 1; with 10 codes per word it is the lowest of
// word 1.
typedef struct stream {
    const uint8_t *words;
    size_t stride;
    uint32_t bits, per_word, shift; // shift: of the first code of a word
} stream;

static inline uint32_t code_at(const stream *s, size_t i)
{
    size_t word = i;
    uint32_t shift = s->shift;
    if (s->per_word == 0) {
        word = i * s->bits / 32;
        shift = (uint32_t)(i * s->bits % 32);
    } else if (s->per_word > 1) {
        word = i / s->per_word;
        shift += (uint32_t)(i % s->per_word) * s->bits;
    }
    const uint8_t *at = s->words + word * s->stride * 4;
    uint64_t two = msgl__block_u32(at);
    if (shift + s->bits > 32) two |= (uint64_t)msgl__block_u32(at + s->stride * 4) << 32;
    return (uint32_t)(two >> shift) & ((1u << s->bits) - 1);
}

// Words of n codes next to each other.
static size_t words_of(const msgl_packing *how, size_t n)
{
    const size_t per_word = (size_t)how->per_word, bits = (size_t)how->bits;
    return per_word > 0 ? (n + per_word - 1) / per_word : (n * bits + 31) / 32;
}

static size_t groups_of(const msgl_packed *p)
{
    return (p->cols + p->how->group - 1) / p->how->group;
}

typedef struct grouped {
    size_t at; // of its scale
    uint32_t zero;
} grouped;

typedef grouped (*group_fn)(const msgl_packed *p, size_t row, size_t group);

// value: (code - zero) * scale, of the column's group: the one that ORDER says, or that which it is
// in.
static void expand(const msgl_packed *p, const stream *s, size_t row, size_t from, size_t n,
                   group_fn of_group, float *values)
{
    const uint8_t *order = p->how->sides[MSGL_ORDER].data;
    const size_t end = from + n;
    for (size_t col = from; col < end;) {
        size_t group, stop;
        if (order != NULL) {
            group = msgl__block_u32(order + 4 * col);
            stop = col + 1;
        } else {
            group = col / p->how->group;
            stop = (group + 1) * p->how->group;
        }
        const grouped g = of_group(p, row, group);
        const float scale = msgl__side_at(p, MSGL_SCALES, g.at), zero = (float)g.zero;
        for (; col < stop && col < end; col++) {
            values[col - from] = ((float)code_at(s, col) - zero) * scale;
        }
    }
}

// Codes of 7 bits are kept in 8, with the same zero point in their middle.
static uint32_t up_of(const msgl_packing *how)
{
    return how->bits == 7 ? 64 : 0;
}

// What the forms above and below have in common.
static bool codes(const msgl_packed *p, msgl_codes *out)
{
    const msgl_packing *how = p->how;
    const bool zeros = how->sides[MSGL_ZEROS].data != NULL;
    *out = (msgl_codes){.bits = how->bits == 7 ? 8 : how->bits,
                        .group = 32,
                        .offset = zeros ? MSGL_OFFSET_ZERO : MSGL_OFFSET_NONE,
                        .number = how->sides[MSGL_SCALES].type};
    out->zero = 1 << (out->bits - 1);
    return zeros || out->zero == how->zero + (int32_t)up_of(how);
}

// Codes [from, from + 32) of a row. A start takes as long as this does, so whole words of 8 codes
// of 4 bits, or 4 of 8, have loops of their own.
static inline void split_codes(const stream *s, size_t from, uint32_t up, uint8_t codes[32])
{
    const bool whole = s->shift == 0 && (s->per_word == 0 || s->per_word * s->bits == 32);
    const size_t step = s->stride * 4;
    const uint8_t *at = s->words + from / 32 * s->bits * step;
    if (s->bits == 4 && whole) {
        for (size_t i = 0; i < 32; i += 8, at += step) {
            const uint64_t eight = msgl__block_nibbles(msgl__block_u32(at));
            memcpy(codes + i, &eight, sizeof eight); // little-endian, as files are
        }
    } else if (s->bits == 8 && whole) {
        for (size_t i = 0; i < 32; i += 4, at += step) memcpy(codes + i, at, 4);
    } else {
        for (size_t i = 0; i < 32; i++) codes[i] = (uint8_t)(code_at(s, from + i) + up);
    }
}

// What a part of a group has besides its codes.
typedef struct scales {
    uint32_t d, dmin;
    uint8_t e;
} scales;

static scales scales_at(const msgl_packing *how, grouped g)
{
    const msgl_side *side = &how->sides[MSGL_SCALES];
    return (scales){.d = msgl__number_bits(side->data, side->type, g.at),
                    .e = (uint8_t)(g.zero - (1u << (how->bits - 1)))};
}

static inline void put_scales(scales s, msgl_code_part *out)
{
    out->d = s.d;
    out->dmin = s.dmin;
    out->c[0] = out->c[1] = 0;
    out->e[0] = s.e;
    out->e[1] = 0;
}

typedef stream (*stream_fn)(const msgl_packed *p, size_t row);
typedef scales (*scales_fn)(const msgl_packed *p, size_t row, size_t group);

// Groups begin where parts do, so that their scales are fetched once. Nothing that was just written
// is read here: a part that is put together elsewhere, and copied, waits for its bytes.
MSGL_INLINE void split_rows_of(const msgl_packed *p, const msgl_part_tile *t, stream_fn of_row,
                               scales_fn of_group, uint32_t up, msgl_code_part *out, size_t ld)
{
    const size_t group = p->how->group, end = t->col + t->cols;
    for (size_t r = 0; r < t->rows; r++, out += ld) {
        const stream s = of_row(p, t->row + r);
        msgl_code_part *to = out;
        scales of = {0};
        size_t next = t->col; // group's first column
        for (size_t col = t->col; col < end; col += 32, to++) {
            if (col >= next) {
                of = of_group(p, t->row + r, col / group);
                next = (col / group + 1) * group;
            }
            split_codes(&s, col, up, to->codes);
            put_scales(of, to);
        }
    }
}

static void pick(const msgl_packed *p, const stream *s, size_t row, size_t first_col,
                 const int32_t columns[32], group_fn of_group, msgl_code_part *out)
{
    const size_t first = first_col + (size_t)columns[0];
    const size_t group = msgl__block_u32(p->how->sides[MSGL_ORDER].data + 4 * first);
    for (size_t i = 0; i < 32 && columns[i] >= 0; i++) {
        const uint32_t code = code_at(s, first_col + (size_t)columns[i]);
        out->codes[i] = (uint8_t)(code + up_of(p->how));
    }
    put_scales(scales_at(p->how, of_group(p, row, group)), out);
}

// ---- codes along rows, as compressed-tensors packs them ----

// ZEROS are packed along the rows of their [rows, groups]: those of a group are one stream, whose
// words are `groups` apart. Their offset is that of the codes, so it does not matter.
static grouped group_of_rows(const msgl_packed *p, size_t row, size_t group)
{
    const msgl_packing *how = p->how;
    const size_t groups = groups_of(p);
    grouped g = {.at = row / how->group_rows * groups + group, .zero = (uint32_t)how->zero};
    if (how->sides[MSGL_ZEROS].data != NULL) {
        const stream zeros = {how->sides[MSGL_ZEROS].data + 4 * group, groups, (uint32_t)how->bits,
                              (uint32_t)how->per_word, 0};
        g.zero = code_at(&zeros, row);
    }
    return g;
}

static stream stream_of_row(const msgl_packed *p, size_t row)
{
    return (stream){p->data + row * words_of(p->how, p->cols) * 4, 1, (uint32_t)p->how->bits,
                    (uint32_t)p->how->per_word, 0};
}

static void expand_rows(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    const stream s = stream_of_row(p, row);
    expand(p, &s, row, from, n, group_of_rows, values);
}

static scales scales_of_rows(const msgl_packed *p, size_t row, size_t group)
{
    return scales_at(p->how, group_of_rows(p, row, group));
}

static void split_rows_tile(const msgl_packed *p, const msgl_part_tile *t, msgl_code_part *out,
                            size_t ld)
{
    split_rows_of(p, t, stream_of_row, scales_of_rows, up_of(p->how), out, ld);
}

static void split_rows(const msgl_packed *p, size_t row, size_t from, msgl_code_part *out)
{
    const msgl_part_tile t = {row, 1, from, 32};
    split_rows_tile(p, &t, out, 1);
}

static void pick_rows(const msgl_packed *p, size_t row, size_t first_col, const int32_t columns[32],
                      msgl_code_part *out)
{
    const stream s = stream_of_row(p, row);
    pick(p, &s, row, first_col, columns, group_of_rows, out);
}

static void span_rows(const msgl_packed *p, size_t begin, size_t end, size_t *from, size_t *bytes)
{
    const size_t row = words_of(p->how, p->cols) * 4;
    const size_t first = begin / p->cols, past = (end + p->cols - 1) / p->cols;
    *from = first * row;
    *bytes = (past - first) * row;
}

const msgl_stored msgl__stored_rows = {"packed rows", expand_rows,     span_rows, codes,
                                       split_rows,    split_rows_tile, pick_rows};

// MLX. value: code * SCALES + BIASES of the group, which is the same as by a zero point but for
// what is rounded; scales may be negative.
static void expand_affine(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    const stream s = stream_of_row(p, row);
    const size_t group = p->how->group, first = row * groups_of(p), end = from + n;
    for (size_t col = from; col < end;) {
        const size_t at = first + col / group, stop = (col / group + 1) * group;
        const float scale = msgl__side_at(p, MSGL_SCALES, at);
        const float bias = msgl__side_at(p, MSGL_BIASES, at);
        for (; col < stop && col < end; col++) {
            values[col - from] = (float)code_at(&s, col) * scale + bias;
        }
    }
}

// Codes of 7 bits are kept in 8 as they are: biases are what code 0 stands for. Of 8 bits q is code
// - 128, as products want it.
static bool codes_affine(const msgl_packed *p, msgl_codes *out)
{
    const msgl_packing *how = p->how;
    *out = (msgl_codes){.bits = how->bits == 7 ? 8 : how->bits,
                        .group = 32,
                        .zero = how->bits >= 7 ? 128 : 0,
                        .offset = MSGL_OFFSET_MIN,
                        .number = how->sides[MSGL_SCALES].type};
    return how->sides[MSGL_BIASES].type == out->number;
}

static scales scales_of_affine(const msgl_packed *p, size_t row, size_t group)
{
    const msgl_side *scale = &p->how->sides[MSGL_SCALES], *biases = &p->how->sides[MSGL_BIASES];
    const size_t at = row * groups_of(p) + group;
    return (scales){.d = msgl__number_bits(scale->data, scale->type, at),
                    .dmin = msgl__number_bits(biases->data, biases->type, at)};
}

static void split_affine_tile(const msgl_packed *p, const msgl_part_tile *t, msgl_code_part *out,
                              size_t ld)
{
    split_rows_of(p, t, stream_of_row, scales_of_affine, 0, out, ld);
}

static void split_affine(const msgl_packed *p, size_t row, size_t from, msgl_code_part *out)
{
    const msgl_part_tile t = {row, 1, from, 32};
    split_affine_tile(p, &t, out, 1);
}

const msgl_stored msgl__stored_affine = {"affine rows", expand_affine,     span_rows, codes_affine,
                                         split_affine,  split_affine_tile, NULL};

// torchao's Int4Tensor: [rows, cols / 2] bytes, the first of two columns in the lower half, as
// numbers from -8 to 7. SCALES and ZEROS [groups, rows]; the zero point is the value of number 0.
// value: (number + 8) * scale + (zero point - 8 * scale), in torchao's own steps
// (_int4_row_dequantize_zp, 0.18.0), so codes keep the latter, in f32.
static float least_of(const msgl_packed *p, size_t at, float scale)
{
    return msgl__side_at(p, MSGL_ZEROS, at) - scale * 8;
}

static uint8_t int4_at(const msgl_packed *p, size_t row, size_t col)
{
    return (p->data[row * (p->cols / 2) + col / 2] >> (col % 2 * 4) & 15) ^ 8;
}

static void expand_int4(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    const size_t group = p->how->group, end = from + n;
    for (size_t col = from; col < end;) {
        const size_t at = col / group * p->rows + row, stop = (col / group + 1) * group;
        const float scale = msgl__side_at(p, MSGL_SCALES, at), least = least_of(p, at, scale);
        for (; col < stop && col < end; col++) {
            values[col - from] = (float)int4_at(p, row, col) * scale + least;
        }
    }
}

static void span_int4(const msgl_packed *p, size_t begin, size_t end, size_t *from, size_t *bytes)
{
    (void)p; // rows are whole bytes
    *from = begin / 2;
    *bytes = (end + 1) / 2 - begin / 2;
}

static bool codes_int4(const msgl_packed *p, msgl_codes *out)
{
    (void)p;
    *out =
        (msgl_codes){.bits = 4, .group = 32, .offset = MSGL_OFFSET_MIN, .number = MSGL_NUMBER_F32};
    return true;
}

static void split_int4(const msgl_packed *p, size_t row, size_t from, msgl_code_part *out)
{
    const size_t at = from / p->how->group * p->rows + row;
    const float scale = msgl__side_at(p, MSGL_SCALES, at), least = least_of(p, at, scale);
    const uint8_t *codes = p->data + (row * p->cols + from) / 2;
    for (size_t i = 0; i < 32; i += 8, codes += 4) {
        const uint64_t eight = msgl__block_nibbles(msgl__block_u32(codes)) ^ 0x0808080808080808;
        memcpy(out->codes + i, &eight, sizeof eight); // little-endian
    }
    memcpy(&out->d, &scale, sizeof out->d);
    memcpy(&out->dmin, &least, sizeof out->dmin);
}

const msgl_stored msgl__stored_int4 = {"Int4Tensor", expand_int4, span_int4, codes_int4,
                                       split_int4,   NULL,        NULL};

// ---- GPTQ: codes down the rows of [cols, rows] ----

// ZEROS are along the rows of [groups, rows]. Files of the first version have each zero point less
// 1, which was taken from whole words: zeros_plus is added to those, and a zero point of 0 borrows
// from its neighbour (GPTQModel, utils/model.py). Example: a word of zero points 0 5 8 8 0 0 9 15
// is stored with 15 3 7 7 15 14 7 14; 0xe7ef773f + 0x11111111 has the former again. AutoRound adds
// zero_plus, 1, to what a zero point's bits say instead: 15 is 16 (0.16.1, qlinear_torch_zp.py).
static grouped group_of_gptq(const msgl_packed *p, size_t row, size_t group)
{
    const msgl_packing *how = p->how;
    grouped g = {.at = group * p->rows + row, .zero = (uint32_t)how->zero};
    const uint8_t *zeros = how->sides[MSGL_ZEROS].data;
    if (zeros == NULL) return g;
    const stream s = {zeros + group * words_of(how, p->rows) * 4, 1, (uint32_t)how->bits, 0, 0};
    if (how->zeros_plus == 0) {
        g.zero = code_at(&s, row) + how->zero_plus;
        return g;
    }
    const size_t bit = row * s.bits; // 32 is a multiple of bits
    const uint32_t word = msgl__block_u32(s.words + bit / 32 * 4) + how->zeros_plus;
    g.zero = word >> bit % 32 & ((1u << s.bits) - 1);
    return g;
}

static stream stream_of_gptq(const msgl_packed *p, size_t row)
{
    return (stream){p->data + 4 * row, p->rows, (uint32_t)p->how->bits, 0, 0};
}

static void expand_gptq(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    const stream s = stream_of_gptq(p, row);
    expand(p, &s, row, from, n, group_of_gptq, values);
}

static scales scales_of_gptq(const msgl_packed *p, size_t row, size_t group)
{
    return scales_at(p->how, group_of_gptq(p, row, group));
}

static void split_gptq_tile(const msgl_packed *p, const msgl_part_tile *t, msgl_code_part *out,
                            size_t ld)
{
    split_rows_of(p, t, stream_of_gptq, scales_of_gptq, up_of(p->how), out, ld);
}

static void split_gptq(const msgl_packed *p, size_t row, size_t from, msgl_code_part *out)
{
    const msgl_part_tile t = {row, 1, from, 32};
    split_gptq_tile(p, &t, out, 1);
}

static void pick_gptq(const msgl_packed *p, size_t row, size_t first_col, const int32_t columns[32],
                      msgl_code_part *out)
{
    const stream s = stream_of_gptq(p, row);
    pick(p, &s, row, first_col, columns, group_of_gptq, out);
}

// Whether words of zero points say that all are in the codes' middle. Planning waits for this, so
// that it looks at words and not at the zero points in them.
static bool zeros_in_middle(const msgl_packed *p)
{
    const msgl_packing *how = p->how;
    const uint32_t bits = (uint32_t)how->bits, middle = 1u << (bits - 1);
    const size_t words = words_of(how, p->rows);
    const uint8_t *at = how->sides[MSGL_ZEROS].data;
    uint32_t expected = 0, others = 0;
    for (uint32_t i = 0; i < 32; i += bits) expected |= (middle - how->zero_plus) << i;
    expected -= how->zeros_plus;
    for (size_t i = 0; i < groups_of(p) && others == 0; i++, at += 4 * words) {
        for (size_t w = 0; w < words; w++) others |= msgl__block_u32(at + 4 * w) ^ expected;
    }
    return others == 0;
}

// Symmetric files have zero points too, which are all in the codes' middle. One that is not within
// a signed byte of it, as 256 of 8 bits with zero_plus, is none of codes.
static bool codes_gptq(const msgl_packed *p, msgl_codes *out)
{
    if (!codes(p, out)) return false;
    if (out->offset == MSGL_OFFSET_NONE) return true;
    const uint32_t middle = 1u << (p->how->bits - 1);
    const bool may_be_far = p->how->bits == 8 && p->how->zero_plus > 0;
    bool same = true;
    if (32 % p->how->bits == 0 && zeros_in_middle(p)) {
        out->offset = MSGL_OFFSET_NONE;
        return true;
    }
    for (size_t i = 0; i < groups_of(p) && (same || may_be_far); i++) {
        for (size_t r = 0; r < p->rows && (same || may_be_far); r++) {
            const uint32_t zero = group_of_gptq(p, r, i).zero;
            if (zero > middle + 127) return false;
            same = same && zero == middle;
        }
    }
    if (same) out->offset = MSGL_OFFSET_NONE;
    return true;
}

const msgl_stored msgl__stored_gptq = {"GPTQ",     expand_gptq,     NULL,     codes_gptq,
                                       split_gptq, split_gptq_tile, pick_gptq};

// ---- AWQ, 4 bits ----

// The place in a word of 8 neighbouring columns' codes: column 1 is in bits 16 to 19.
static const uint8_t AWQ_PLACE[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static stream stream_of_awq(const uint8_t *words, size_t rows, size_t row)
{
    return (stream){words + row / 8 * 4, rows / 8, 4, 1, 4u * AWQ_PLACE[row % 8]};
}

// ZEROS [groups, rows / 8] are packed as the codes are.
static grouped group_of_awq(const msgl_packed *p, size_t row, size_t group)
{
    const stream s = stream_of_awq(p->how->sides[MSGL_ZEROS].data, p->rows, row);
    return (grouped){.at = group * p->rows + row, .zero = code_at(&s, group)};
}

// "gemm": [cols, rows / 8], eight rows of the matrix in a word.
static void expand_awq(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    const stream s = stream_of_awq(p->data, p->rows, row);
    expand(p, &s, row, from, n, group_of_awq, values);
}

// A word has the codes of eight rows: it is read once.
static void split_awq_tile(const msgl_packed *p, const msgl_part_tile *t, msgl_code_part *out,
                           size_t ld)
{
    const size_t stride = p->rows / 8 * 4, group = p->how->group;
    const size_t end = t->row + t->rows, end_col = t->col + t->cols;
    for (size_t row = t->row, n; row < end; row += n, out += n * ld) {
        const size_t first = row % 8; // in its word
        n = end - row < 8 - first ? end - row : 8 - first;
        scales of[8] = {0};
        size_t next = t->col; // group's first column
        for (size_t col = t->col; col < end_col; col += 32) {
            for (size_t i = 0; i < n && col >= next; i++) {
                of[i] = scales_at(p->how, group_of_awq(p, row + i, col / group));
            }
            next = (col / group + 1) * group;
            const uint8_t *at = p->data + col * stride + row / 8 * 4;
            uint32_t words[32];
            for (size_t i = 0; i < 32; i++, at += stride) words[i] = msgl__block_u32(at);
            msgl_code_part *to = out + (col - t->col) / 32;
            for (size_t i = 0; i < n; i++, to += ld) {
                const uint32_t shift = 4u * AWQ_PLACE[first + i];
                for (size_t j = 0; j < 32; j++) to->codes[j] = (uint8_t)(words[j] >> shift & 15);
                put_scales(of[i], to);
            }
        }
    }
}

static void split_awq(const msgl_packed *p, size_t row, size_t from, msgl_code_part *out)
{
    const msgl_part_tile t = {row, 1, from, 32};
    split_awq_tile(p, &t, out, 1);
}

const msgl_stored msgl__stored_awq = {"AWQ",     expand_awq,     NULL, codes,
                                      split_awq, split_awq_tile, NULL};

// ZEROS [rows, W] and SCALES [rows, 8 W], W words being room for the groups' zero points or more.
static grouped group_of_awq_rows(const msgl_packed *p, size_t row, size_t group)
{
    const msgl_side *zeros = &p->how->sides[MSGL_ZEROS];
    const size_t words = zeros->bytes / 4 / p->rows;
    const stream s = {zeros->data + row * words * 4, 1, 4, 8, 0};
    return (grouped){.at = row * words * 8 + group, .zero = code_at(&s, group)};
}

// "gemv": [rows, cols / 8], in order.
static void expand_awq_rows(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    const stream s = stream_of_row(p, row);
    expand(p, &s, row, from, n, group_of_awq_rows, values);
}

static scales scales_of_awq_rows(const msgl_packed *p, size_t row, size_t group)
{
    return scales_at(p->how, group_of_awq_rows(p, row, group));
}

static void split_awq_rows_tile(const msgl_packed *p, const msgl_part_tile *t, msgl_code_part *out,
                                size_t ld)
{
    split_rows_of(p, t, stream_of_row, scales_of_awq_rows, 0, out, ld);
}

static void split_awq_rows(const msgl_packed *p, size_t row, size_t from, msgl_code_part *out)
{
    const msgl_part_tile t = {row, 1, from, 32};
    split_awq_rows_tile(p, &t, out, 1);
}

const msgl_stored msgl__stored_awq_rows = {"AWQ by rows",  expand_awq_rows,     span_rows, codes,
                                           split_awq_rows, split_awq_rows_tile, NULL};
