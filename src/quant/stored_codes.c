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

// Whether words are full of codes of 4 or 8 bits. A start takes as long as taking such words apart
// does, so that these are read by vectors of 16 bytes.
static inline bool words_are_full(const msgl_packing *how)
{
    return (how->bits == 4 || how->bits == 8) &&
           (how->per_word == 0 || how->per_word * how->bits == 32);
}

// Codes [from, from + 32) of a row, of which words are next to each other.
static inline void split_codes(const stream *s, size_t from, bool full, uint32_t up,
                               uint8_t codes[32])
{
    const uint8_t *at = s->words + from / 8 * s->bits;
    if (full && s->bits == 4) {
        msgl__block_halves(msgl__bytes_load(at), codes);
    } else if (full) {
        memcpy(codes, at, 32);
    } else {
        for (size_t i = 0; i < 32; i++) codes[i] = (uint8_t)(code_at(s, from + i) + up);
    }
}

// What a part of a group has besides its codes, as a part's bytes: d and dmin, c and e. A part
// takes them by two loads of what was stored by two: what more stores wrote, a CPU would wait for.
typedef struct scales {
    uint64_t numbers;
    uint32_t bytes;
} scales;

static inline scales scales_of(uint32_t d, uint32_t dmin, uint8_t e)
{
    return (scales){d | (uint64_t)dmin << 32, (uint32_t)e << 16};
}

static inline scales scales_at(const msgl_packing *how, grouped g)
{
    const msgl_side *side = &how->sides[MSGL_SCALES];
    return scales_of(msgl__number_bits(side->data, side->type, g.at), 0,
                     (uint8_t)(g.zero - (1u << (how->bits - 1))));
}

static inline void put_scales(uint64_t numbers, uint32_t bytes, msgl_code_part *out)
{
    memcpy(&out->d, &numbers, sizeof numbers); // little-endian, as codes are
    memcpy(out->c, &bytes, sizeof bytes);
}

typedef stream (*stream_fn)(const msgl_packed *p, size_t row);
typedef scales (*scales_fn)(const msgl_packed *p, size_t row, size_t group);

// Groups begin where parts do. Those of GROUPS groups are fetched before any of their parts is
// written: misses of a cache are then waited for together, and what is the same for all groups is
// computed once, as no store is in between that might change it. Nothing that was just written is
// read here: a part that is put together elsewhere, and copied, waits for its bytes.
enum { GROUPS = 16 };

// Of how many columns from `col` on the groups are fetched at a time.
static inline size_t run_of(const msgl_packed *p, size_t col, size_t end)
{
    const size_t stop = (col / p->how->group + GROUPS) * p->how->group;
    return (stop < end ? stop : end) - col;
}

MSGL_INLINE void split_rows_of(const msgl_packed *p, const msgl_part_tile *t, stream_fn of_row,
                               scales_fn of_group, uint32_t up, msgl_code_part *out, size_t ld)
{
    const size_t group = p->how->group, end = t->col + t->cols;
    const bool full = words_are_full(p->how);
    for (size_t r = 0; r < t->rows; r++, out += ld) {
        const stream s = of_row(p, t->row + r);
        msgl_code_part *to = out;
        for (size_t col = t->col, n; col < end; col += n) {
            n = run_of(p, col, end);
            const size_t first = col / group, num = (col + n - 1) / group + 1 - first;
            uint64_t numbers[GROUPS];
            uint32_t bytes[GROUPS];
            for (size_t g = 0; g < num; g++) {
                const scales of = of_group(p, t->row + r, first + g);
                numbers[g] = of.numbers;
                bytes[g] = of.bytes;
            }
            size_t g = 0, next = (first + 1) * group; // the next group's first column
            for (size_t i = col; i < col + n; i += 32, to++) {
                if (i >= next) g++, next += group;
                split_codes(&s, i, full, up, to->codes);
                put_scales(numbers[g], bytes[g], to);
            }
        }
    }
}

// Asks for lines that are read AHEAD parts later, each of which is in a page of its own, so that a
// CPU does not look for it by itself. lines: those of 32 columns, `step` bytes apart.
enum { AHEAD = 4 };
static inline void prefetch_columns(const msgl_packed *p, const uint8_t *at, size_t step,
                                    size_t lines, size_t col)
{
    if (col + (AHEAD + 1) * 32 > p->cols) return;
    for (size_t i = 0; i < lines; i++) __builtin_prefetch(at + (AHEAD * lines + i) * step);
}

// A tile whose rows are next to each other in memory, and their columns far apart: STRIP of its
// rows at a time, 32 columns of all of them before the next ones, by split_strip.
enum { STRIP = 16 };
typedef void (*strip_fn)(const msgl_packed *p, size_t row, size_t rows, size_t col,
                         msgl_code_part *out, size_t ld);

MSGL_INLINE void split_columns_of(const msgl_packed *p, const msgl_part_tile *t,
                                  strip_fn split_strip, scales_fn of_group, msgl_code_part *out,
                                  size_t ld)
{
    const size_t group = p->how->group, end = t->row + t->rows, end_col = t->col + t->cols;
    for (size_t row = t->row, rows; row < end; row += rows, out += rows * ld) {
        rows = STRIP - row % STRIP < end - row ? STRIP - row % STRIP : end - row;
        msgl_code_part *to = out;
        for (size_t col = t->col, n; col < end_col; col += n) {
            n = run_of(p, col, end_col);
            const size_t first = col / group, num = (col + n - 1) / group + 1 - first;
            uint64_t numbers[GROUPS][STRIP];
            uint32_t bytes[GROUPS][STRIP];
            for (size_t g = 0; g < num; g++) {
                for (size_t r = 0; r < rows; r++) {
                    const scales of = of_group(p, row + r, first + g);
                    numbers[g][r] = of.numbers;
                    bytes[g][r] = of.bytes;
                }
            }
            size_t g = 0, next = (first + 1) * group;
            for (size_t i = col; i < col + n; i += 32, to++) {
                if (i >= next) g++, next += group;
                split_strip(p, row, rows, i, to, ld);
                for (size_t r = 0; r < rows; r++) {
                    put_scales(numbers[g][r], bytes[g][r], to + r * ld);
                }
            }
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
    const scales of = scales_at(p->how, of_group(p, row, group));
    put_scales(of.numbers, of.bytes, out);
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
    return scales_of(msgl__number_bits(scale->data, scale->type, at),
                     msgl__number_bits(biases->data, biases->type, at), 0);
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
    const msgl_bytes both = msgl__bytes_load(p->data + (row * p->cols + from) / 2);
    msgl__block_halves(both ^ 0x88, out->codes);
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

// Words of a column's neighbours are `rows` words apart. Those of four rows change places, as rows
// and columns of a matrix do, so that each row's are a vector.
static inline void rows_of_words(const uint8_t *at, size_t step, size_t rows, msgl_bytes out[4])
{
    if (rows < 4) {
        for (size_t r = 0; r < rows; r++) {
            uint8_t words[16];
            for (size_t i = 0; i < 4; i++) memcpy(words + 4 * i, at + i * step + 4 * r, 4);
            out[r] = msgl__bytes_load(words);
        }
        return;
    }
    const msgl_bytes a = msgl__bytes_load(at), b = msgl__bytes_load(at + step);
    const msgl_bytes c = msgl__bytes_load(at + 2 * step), d = msgl__bytes_load(at + 3 * step);
    const msgl_bytes low = msgl__bytes_zip_words_low(a, b), high = msgl__bytes_zip_words_high(a, b);
    const msgl_bytes low2 = msgl__bytes_zip_words_low(c, d);
    const msgl_bytes high2 = msgl__bytes_zip_words_high(c, d);
    out[0] = msgl__bytes_zip_halves_low(low, low2);
    out[1] = msgl__bytes_zip_halves_high(low, low2);
    out[2] = msgl__bytes_zip_halves_low(high, high2);
    out[3] = msgl__bytes_zip_halves_high(high, high2);
}

static inline void split_gptq_strip(const msgl_packed *p, size_t row, size_t rows, size_t col,
                                    msgl_code_part *out, size_t ld)
{
    const size_t step = 4 * p->rows, lines = (size_t)p->how->bits; // of 32 columns
    const bool four = p->how->bits == 4;
    const uint8_t *at = p->data + col / 32 * lines * step + 4 * row;
    if (row % MSGL_TASK_ROWS == 0) prefetch_columns(p, at, step, lines, col);
    if (row + STRIP < p->rows) { // the next strip's, in the same pages
        for (size_t i = 0; i < lines; i++) __builtin_prefetch(at + 4 * STRIP + i * step);
    }
    msgl_bytes words[2][4];
    for (size_t left = rows, n; left > 0; left -= n, at += 4 * n, out += n * ld) {
        n = left < 4 ? left : 4;
        rows_of_words(at, step, n, words[0]);
        if (!four) rows_of_words(at + 4 * step, step, n, words[1]);
        for (size_t r = 0; r < n; r++) {
            uint8_t *const codes = out[r * ld].codes;
            if (four) {
                msgl__block_halves(words[0][r], codes);
            } else {
                msgl__bytes_store(codes, words[0][r]);
                msgl__bytes_store(codes + 16, words[1][r]);
            }
        }
    }
}

static void split_gptq_tile(const msgl_packed *p, const msgl_part_tile *t, msgl_code_part *out,
                            size_t ld)
{
    if (words_are_full(p->how)) {
        split_columns_of(p, t, split_gptq_strip, scales_of_gptq, out, ld);
    } else {
        split_rows_of(p, t, stream_of_gptq, scales_of_gptq, up_of(p->how), out, ld);
    }
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

// 16 columns of 8 bytes each, `stride` apart: byte b of all columns is vector b of out. Each of
// four steps puts the bytes of a half next to those of the other, which makes the highest bit of a
// byte's number the lowest one: c3 c2 c1 c0 b2 b1 b0 becomes b2 b1 b0 c3 c2 c1 c0. Or columns of 4
// bytes.
static inline void columns_of_bytes(const uint8_t *at, size_t stride, size_t bytes,
                                    msgl_bytes out[8])
{
    msgl_bytes now[8], next[8];
    for (size_t i = 0; i < 8; i++, at += stride) {
        const uint8_t *const other = at + 8 * stride;
        now[i] =
            bytes == 8
                ? msgl__bytes_zip_low(msgl__bytes_load_few(at, 8), msgl__bytes_load_few(other, 8))
                : msgl__bytes_zip_low(msgl__bytes_load_few(at, 4), msgl__bytes_load_few(other, 4));
    }
    for (int step = 0; step < 3; step++) {
        for (size_t i = 0; i < 4; i++) {
            next[2 * i] = msgl__bytes_zip_low(now[i], now[4 + i]);
            next[2 * i + 1] = msgl__bytes_zip_high(now[i], now[4 + i]);
        }
        memcpy(now, next, sizeof now);
    }
    memcpy(out, now, sizeof now);
}

// Half of a part's codes, of a row that may not be among the tile's.
static inline void put_half(msgl_bytes codes, size_t r, size_t rows, size_t half,
                            msgl_code_part *out, size_t ld)
{
    if (r < rows) msgl__bytes_store(out[r * ld].codes + 16 * half, codes);
}

// A word has the codes of eight rows: it is read once. A strip is of two words, or of one where
// it, or the matrix, ends there. Byte 1 of a word has rows 4 and 6, byte 2 rows 1 and 3.
static inline void split_awq_strip(const msgl_packed *p, size_t row, size_t rows, size_t col,
                                   msgl_code_part *out, size_t ld)
{
    const size_t stride = p->rows / 8 * 4, first = row / 8, skip = row % 8;
    const size_t width = (row + rows - 1) / 8 > first ? 8 : 4;
    const uint8_t *at = p->data + col * stride + 4 * first;
    prefetch_columns(p, at, stride, 32, col);
    for (size_t half = 0; half < 2; half++, at += 16 * stride) {
        msgl_bytes bytes[8];
        columns_of_bytes(at, stride, width, bytes);
        for (size_t b = 0; b < 8; b++) {
            const size_t r = b / 4 * 8 + b % 2 * 4 + b % 4 / 2 - skip; // of those in front: huge
            put_half(msgl__bytes_low_bits(bytes[b]), r, rows, half, out, ld);
            put_half(msgl__bytes_high_bits(bytes[b]), r + 2, rows, half, out, ld);
        }
    }
}

static scales scales_of_awq(const msgl_packed *p, size_t row, size_t group)
{
    return scales_at(p->how, group_of_awq(p, row, group));
}

static void split_awq_tile(const msgl_packed *p, const msgl_part_tile *t, msgl_code_part *out,
                           size_t ld)
{
    split_columns_of(p, t, split_awq_strip, scales_of_awq, out, ld);
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
