// SPDX-License-Identifier: Apache-2.0
//
// Integers of 2 to 8 bits, packed into little-endian words of 32 bits, with a scale and a zero
// point for each group of a row's columns. The forms differ in where a row's codes are, and where a
// group's scale and zero point.
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
    float scale, zero;
} grouped;

// value: (code - zero) * scale, of the column's group: the one that ORDER says, or that which it is
// in.
static void expand(const msgl_packed *p, const stream *s, size_t row, size_t from, size_t n,
                   grouped (*of_group)(const msgl_packed *, size_t row, size_t group),
                   float *values)
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
        for (; col < stop && col < end; col++) {
            values[col - from] = ((float)code_at(s, col) - g.zero) * g.scale;
        }
    }
}

// ---- codes along rows, as compressed-tensors packs them ----

// ZEROS are packed along the rows of their [rows, groups]: those of a group are one stream, whose
// words are `groups` apart. Their offset is that of the codes, so it does not matter.
static grouped group_of_rows(const msgl_packed *p, size_t row, size_t group)
{
    const msgl_packing *how = p->how;
    const size_t groups = groups_of(p);
    grouped g = {.scale = msgl__side_at(p, MSGL_SCALES, row / how->group_rows * groups + group),
                 .zero = (float)how->zero};
    if (how->sides[MSGL_ZEROS].data != NULL) {
        const stream zeros = {how->sides[MSGL_ZEROS].data + 4 * group, groups, (uint32_t)how->bits,
                              (uint32_t)how->per_word, 0};
        g.zero = (float)code_at(&zeros, row);
    }
    return g;
}

static void expand_rows(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    const stream s = {p->data + row * words_of(p->how, p->cols) * 4, 1, (uint32_t)p->how->bits,
                      (uint32_t)p->how->per_word, 0};
    expand(p, &s, row, from, n, group_of_rows, values);
}

static void span_rows(const msgl_packed *p, size_t begin, size_t end, size_t *from, size_t *bytes)
{
    const size_t row = words_of(p->how, p->cols) * 4;
    const size_t first = begin / p->cols, past = (end + p->cols - 1) / p->cols;
    *from = first * row;
    *bytes = (past - first) * row;
}

const msgl_stored msgl__stored_rows = {"packed rows", expand_rows, span_rows};

// MLX. value: code * SCALES + BIASES of the group, which is the same as by a zero point but for
// what is rounded; scales may be negative.
static void expand_affine(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    const stream s = {p->data + row * words_of(p->how, p->cols) * 4, 1, (uint32_t)p->how->bits, 0,
                      0};
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

const msgl_stored msgl__stored_affine = {"affine rows", expand_affine, span_rows};

// ---- GPTQ: codes down the rows of [cols, rows] ----

// ZEROS are along the rows of [groups, rows]. Files of the first version have each zero point less
// 1, which was taken from whole words: zeros_plus is added to those, and a zero point of 0 borrows
// from its neighbour (GPTQModel, utils/model.py). Example: a word of zero points 0 5 8 8 0 0 9 15
// is stored with 15 3 7 7 15 14 7 14; 0xe7ef773f + 0x11111111 has the former again.
static grouped group_of_gptq(const msgl_packed *p, size_t row, size_t group)
{
    const msgl_packing *how = p->how;
    grouped g = {.scale = msgl__side_at(p, MSGL_SCALES, group * p->rows + row),
                 .zero = (float)how->zero};
    const uint8_t *zeros = how->sides[MSGL_ZEROS].data;
    if (zeros == NULL) return g;
    const stream s = {zeros + group * words_of(how, p->rows) * 4, 1, (uint32_t)how->bits, 0, 0};
    if (how->zeros_plus == 0) {
        g.zero = (float)code_at(&s, row);
        return g;
    }
    const size_t bit = row * s.bits; // 32 is a multiple of bits
    const uint32_t word = msgl__block_u32(s.words + bit / 32 * 4) + how->zeros_plus;
    g.zero = (float)(word >> bit % 32 & ((1u << s.bits) - 1));
    return g;
}

static void expand_gptq(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    const stream s = {p->data + 4 * row, p->rows, (uint32_t)p->how->bits, 0, 0};
    expand(p, &s, row, from, n, group_of_gptq, values);
}

const msgl_stored msgl__stored_gptq = {"GPTQ", expand_gptq, NULL};

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
    return (grouped){.scale = msgl__side_at(p, MSGL_SCALES, group * p->rows + row),
                     .zero = (float)code_at(&s, group)};
}

// "gemm": [cols, rows / 8], eight rows of the matrix in a word.
static void expand_awq(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    const stream s = stream_of_awq(p->data, p->rows, row);
    expand(p, &s, row, from, n, group_of_awq, values);
}

const msgl_stored msgl__stored_awq = {"AWQ", expand_awq, NULL};

// ZEROS [rows, W] and SCALES [rows, 8 W], W words being room for the groups' zero points or more.
static grouped group_of_awq_rows(const msgl_packed *p, size_t row, size_t group)
{
    const msgl_side *zeros = &p->how->sides[MSGL_ZEROS];
    const size_t words = zeros->bytes / 4 / p->rows;
    const stream s = {zeros->data + row * words * 4, 1, 4, 8, 0};
    return (grouped){.scale = msgl__side_at(p, MSGL_SCALES, row * words * 8 + group),
                     .zero = (float)code_at(&s, group)};
}

// "gemv": [rows, cols / 8], in order.
static void expand_awq_rows(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    const stream s = {p->data + row * (p->cols / 8) * 4, 1, 4, 8, 0};
    expand(p, &s, row, from, n, group_of_awq_rows, values);
}

const msgl_stored msgl__stored_awq_rows = {"AWQ by rows", expand_awq_rows, span_rows};
