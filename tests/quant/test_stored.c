// SPDX-License-Identifier: Apache-2.0
//
// Values of packed forms against those that the packages which write them have given: words and
// values were made with compressed-tensors 0.20.0 and 0.12.2, GPTQModel 7.7.0, AutoAWQ 0.2.9 and
// bitsandbytes 0.50.2, not by what is tested.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "quant/stored.h"

static msgl_side side(const void *data, size_t bytes, msgl_number type)
{
    return (msgl_side){data, bytes, type};
}

// Row `row` is these values, whole, and from each column on.
static void check(const msgl_packed *p, size_t row, const float *want)
{
    float got[64];
    assert_true(p->cols <= MSGL_COUNT(got));
    for (size_t from = 0; from < p->cols; from++) {
        p->how->form->expand(p, row, from, p->cols - from, got);
        for (size_t i = from; i < p->cols; i++) {
            if (memcmp(&got[i - from], &want[i], sizeof *want) == 0) continue;
            fail_msg("%s: row %zu from %zu: element %zu: %g, not %g", p->how->form->name, row, from,
                     i, (double)got[i - from], (double)want[i]);
        }
    }
}

static const float ONE = 1, TWO = 2;

// Codes -8 to 7 twice are 76543210 fedcba98.
static void test_packed_4(void **state)
{
    (void)state;
    static const uint32_t words[2] = {0x76543210, 0xfedcba98};
    const msgl_packing how = {.form = &msgl__stored_rows,
                              .bits = 4,
                              .zero = 8,
                              .group_rows = 1,
                              .group = 16,
                              .sides[MSGL_SCALES] = side(&TWO, 4, MSGL_NUMBER_F32)};
    const msgl_packed p = {&how, (const uint8_t *)words, 1, 16};
    float want[16];
    for (int i = 0; i < 16; i++) want[i] = (float)(2 * (i - 8));
    check(&p, 0, want);
}

// Zero points -8 -6 -4 -2 0 2 4 6 of eight rows are eca86420.
static void test_packed_zeros(void **state)
{
    (void)state;
    static const uint32_t zeros = 0xeca86420, words[8] = {8, 8, 8, 8, 8, 8, 8, 8}; // codes 0
    static const float scales[8] = {1, 1, 1, 1, 1, 1, 1, 0.5f};
    static const float first[8] = {8, 6, 4, 2, 0, -2, -4, -3};
    const msgl_packing how = {.form = &msgl__stored_rows,
                              .bits = 4,
                              .zero = 8,
                              .group_rows = 1,
                              .group = 1,
                              .sides[MSGL_SCALES] = side(scales, sizeof scales, MSGL_NUMBER_F32),
                              .sides[MSGL_ZEROS] = side(&zeros, 4, MSGL_NUMBER_I32)};
    const msgl_packed p = {&how, (const uint8_t *)words, 8, 1};
    for (size_t r = 0; r < 8; r++) check(&p, r, &first[r]);
}

// 3 bits, codes 0 1 2 ... 7 0 1 ...: the first word is 88fac688 as a stream and 08fac688 in whole
// codes.
static void test_packed_3(void **state)
{
    (void)state;
    float want[12];
    for (int i = 0; i < 12; i++) want[i] = (float)(i % 8 - 4);
    for (int by_word = 0; by_word < 2; by_word++) {
        // Element 10 is 2, element 11 is 3: bits 30 to 35 are 0 1 0 1 1 0.
        const uint32_t dense[2] = {0x88fac688, 0x6}, whole[2] = {0x08fac688, 3 << 3 | 2};
        const msgl_packing how = {.form = &msgl__stored_rows,
                                  .bits = 3,
                                  .per_word = by_word ? 10 : 0,
                                  .zero = 4,
                                  .group_rows = 1,
                                  .group = 12,
                                  .sides[MSGL_SCALES] = side(&ONE, 4, MSGL_NUMBER_F32)};
        const msgl_packed p = {&how, (const uint8_t *)(by_word ? whole : dense), 1, 12};
        check(&p, 0, want);
    }
}

// Zero points 0 5 8 8 0 0 9 15 of eight rows, as version 1 stores them and as version 2 does.
static void test_gptq(void **state)
{
    (void)state;
    static const uint32_t v1 = 0xe7ef773f, v2 = 0xf9008850;
    static const float zeros[8] = {0, 5, 8, 8, 0, 0, 9, 15};
    static const uint16_t scales[8] = {0x3c00, 0x3c00, 0x3c00, 0x3c00,
                                       0x3c00, 0x3c00, 0x3c00, 0x3800};
    uint32_t words[8]; // row r: codes 0 1 2 ... 7 plus r, mod 16
    for (uint32_t r = 0; r < 8; r++) {
        words[r] = 0;
        for (uint32_t c = 0; c < 8; c++) words[r] |= (c + r) % 16 << 4 * c;
    }
    msgl_packing how = {.form = &msgl__stored_gptq,
                        .bits = 4,
                        .zeros_plus = 0x11111111,
                        .group_rows = 1,
                        .group = 8,
                        .sides[MSGL_SCALES] = side(scales, sizeof scales, MSGL_NUMBER_F16),
                        .sides[MSGL_ZEROS] = side(&v1, 4, MSGL_NUMBER_I32)};
    const msgl_packed p = {&how, (const uint8_t *)words, 8, 8};
    for (int version = 1; version <= 2; version++) {
        for (size_t r = 0; r < 8; r++) {
            float want[8];
            for (size_t c = 0; c < 8; c++) {
                want[c] = ((float)(c + r) - zeros[r]) * (r == 7 ? 0.5f : 1);
            }
            check(&p, r, want);
        }
        how.zeros_plus = 0;
        how.sides[MSGL_ZEROS] = side(&v2, 4, MSGL_NUMBER_I32);
    }
}

// AutoRound adds 1 to what the bits of a zero point say: 15 and 255 become 16 and 256, of which the
// latter is too far from the codes' middle for a signed byte.
static void test_gptq_zero_plus(void **state)
{
    (void)state;
    static const uint32_t zeros = 0xffff00f7, words[32] = {[1] = 0x76543210, [7] = 0x03020100};
    static const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    float want[32] = {0};
    msgl_packing how = {.form = &msgl__stored_gptq,
                        .bits = 4,
                        .zero_plus = 1,
                        .group_rows = 1,
                        .group = 8,
                        .sides[MSGL_SCALES] = side(ones, sizeof ones, MSGL_NUMBER_F32),
                        .sides[MSGL_ZEROS] = side(&zeros, 4, MSGL_NUMBER_I32)};
    const msgl_packed p = {&how, (const uint8_t *)words, 8, 8};
    for (int c = 0; c < 8; c++) want[c] = (float)(c - 16);
    check(&p, 1, want);
    how.bits = 8;
    how.group = 32;
    const msgl_packed wide = {&how, (const uint8_t *)words, 4, 32};
    for (int c = 0; c < 32; c++)
        want[c] = (float)((c == 5 ? 1 : c == 6 ? 2 : c == 7 ? 3 : 0) - 256);
    check(&wide, 3, want);
    msgl_codes codes;
    assert_false(msgl__stored_codes(&wide, 0, 32, NULL, &codes));
}

// 3 bits: 32 codes in 3 words, of which number 10 and 21 cross words; and a column's group is what
// ORDER says.
static void test_gptq_3(void **state)
{
    (void)state;
    static const uint32_t words[3] = {0x88fac688, 0xc688fac6, 0xfac688fa};
    static const float scales[2] = {1, 2};
    int32_t order[32];
    float want[32];
    for (int c = 0; c < 32; c++) {
        order[c] = c % 3 == 0;
        want[c] = (float)(c % 8 - 4) * scales[order[c]];
    }
    const msgl_packing how = {.form = &msgl__stored_gptq,
                              .bits = 3,
                              .zero = 4,
                              .group_rows = 1,
                              .group = 16,
                              .sides[MSGL_SCALES] = side(scales, sizeof scales, MSGL_NUMBER_F32),
                              .sides[MSGL_ORDER] = side(order, sizeof order, MSGL_NUMBER_I32)};
    const msgl_packed p = {&how, (const uint8_t *)words, 1, 32};
    check(&p, 0, want);
}

// The word 76543210 has 0 4 1 5 2 6 3 7 for columns 0 to 7 (rows of the matrix here).
static void test_awq(void **state)
{
    (void)state;
    static const uint32_t words[1] = {0x76543210}, zeros[1] = {0x11111111};
    static const float codes[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    static const float scales[8] = {1, 1, 1, 1, 1, 1, 1, 3};
    const msgl_packing how = {.form = &msgl__stored_awq,
                              .bits = 4,
                              .group_rows = 1,
                              .group = 1,
                              .sides[MSGL_SCALES] = side(scales, sizeof scales, MSGL_NUMBER_F32),
                              .sides[MSGL_ZEROS] = side(zeros, 4, MSGL_NUMBER_I32)};
    const msgl_packed p = {&how, (const uint8_t *)words, 8, 1};
    for (size_t r = 0; r < 8; r++) {
        const float want = (codes[r] - 1) * scales[r];
        check(&p, r, &want);
    }
}

// MLX: a negative scale, and 3 bits as one stream.
static void test_affine(void **state)
{
    (void)state;
    static const uint32_t words[3] = {0x88fac688, 0xc688fac6, 0xfac688fa};
    static const float scales[2] = {-0.5f, 2}, biases[2] = {1, -3};
    float want[32];
    for (int c = 0; c < 32; c++) want[c] = (float)(c % 8) * scales[c / 16] + biases[c / 16];
    const msgl_packing how = {.form = &msgl__stored_affine,
                              .bits = 3,
                              .group_rows = 1,
                              .group = 16,
                              .sides[MSGL_SCALES] = side(scales, sizeof scales, MSGL_NUMBER_F32),
                              .sides[MSGL_BIASES] = side(biases, sizeof biases, MSGL_NUMBER_F32)};
    const msgl_packed p = {&how, (const uint8_t *)words, 1, 32};
    check(&p, 0, want);
}

// torchao's Int4Tensor: numbers -8 to 7 in two's complement, the first of two in the lower half;
// scales and zero points [groups, rows]. Number 0 is the zero point.
static void test_int4(void **state)
{
    (void)state;
    static const uint8_t codes[8] = {0x98, 0xba, 0xdc, 0xfe, 0x10, 0x32, 0x54, 0x76};
    static const float scales[4] = {1, 3, 0.5f, 2}, zeros[4] = {0.25f, 10, -1, 0};
    const msgl_packing how = {.form = &msgl__stored_int4,
                              .bits = 4,
                              .group_rows = 1,
                              .group = 4,
                              .sides[MSGL_SCALES] = side(scales, sizeof scales, MSGL_NUMBER_F32),
                              .sides[MSGL_ZEROS] = side(zeros, sizeof zeros, MSGL_NUMBER_F32)};
    const msgl_packed p = {&how, codes, 2, 8};
    for (int r = 0; r < 2; r++) {
        float want[8];
        for (int c = 0; c < 8; c++) {
            const int at = c / 4 * 2 + r;
            want[c] = (float)(r * 8 + c - 8) * scales[at] + zeros[at];
        }
        check(&p, (size_t)r, want);
    }
}

// HQQ, 4 bits: band 0 of the rows [4, 4] is in the upper halves; a matrix of 2 x 8 has two groups
// in a row, or with `strided` a scale for every fourth element.
static void test_bands(void **state)
{
    (void)state;
    static const uint8_t codes[8] = {0x08, 0x19, 0x2a, 0x3b, 0x4c, 0x5d, 0x6e, 0x7f};
    static const float scales[4] = {1, 2, -0.5f, 0.25f}, zeros[4] = {0, 7.5f, 0.1f, -3};
    msgl_packing how = {.form = &msgl__stored_bands,
                        .bits = 4,
                        .group = 4,
                        .sides[MSGL_SCALES] = side(scales, sizeof scales, MSGL_NUMBER_F32),
                        .sides[MSGL_ZEROS] = side(zeros, sizeof zeros, MSGL_NUMBER_F32)};
    const msgl_packed p = {&how, codes, 2, 8};
    for (int strided = 0; strided < 2; strided++) {
        how.strided = strided;
        for (int r = 0; r < 2; r++) {
            float want[8];
            for (int c = 0; c < 8; c++) {
                const int e = r * 8 + c, s = strided ? e % 4 : e / 4;
                want[c] = ((float)e - zeros[s]) * scales[s];
            }
            check(&p, (size_t)r, want);
        }
    }
}

// NVFP4: 0 .5 1 1.5 2 3 4 6 are 10 32 54 76; a scale of 2 and a global one of 8 give code 1 0.125.
static void test_nvfp4(void **state)
{
    (void)state;
    static const uint8_t codes[8] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};
    static const uint8_t two = 0x40; // e4m3
    static const float eight = 8, magnitudes[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    msgl_packing how = {.form = &msgl__stored_fp4,
                        .group_rows = 1,
                        .group = 16,
                        .divided = true,
                        .sides[MSGL_SCALES] = side(&two, 1, MSGL_NUMBER_E4M3),
                        .sides[MSGL_GLOBAL] = side(&eight, 4, MSGL_NUMBER_F32)};
    const msgl_packed p = {&how, codes, 1, 16};
    float want[16];
    for (int i = 0; i < 16; i++) want[i] = (i < 8 ? 0.25f : -0.25f) * magnitudes[i % 8];
    assert_true(want[1] == 0.125f && signbit(want[8]));
    check(&p, 0, want);
    how.divided = false; // ModelOpt
    for (int i = 0; i < 16; i++) want[i] *= 64;
    check(&p, 0, want);
}

// bitsandbytes' own FP4, whose codes are 0 1/192 2/3 1 1/3 1/2 1/6 1/4 and negatives: a block of 8
// goes on from row 0 into row 1 of 2 x 5; the upper half of a byte is first.
static void test_codebook(void **state)
{
    (void)state;
    static const float book[16] = {
        0, 1 / 192.0f,  2 / 3.0f,  1,  1 / 3.0f,  1 / 2.0f,  1 / 6.0f,  1 / 4.0f,
        0, -1 / 192.0f, -2 / 3.0f, -1, -1 / 3.0f, -1 / 2.0f, -1 / 6.0f, -1 / 4.0f};
    static const uint8_t codes[5] = {0x01, 0x23, 0x45, 0x67, 0xba};
    static const float absmax[2] = {2, 10};
    msgl_packing how = {.form = &msgl__stored_codebook,
                        .group = 8,
                        .sides[MSGL_VALUES] = side(book, sizeof book, MSGL_NUMBER_F32),
                        .sides[MSGL_SCALES] = side(absmax, sizeof absmax, MSGL_NUMBER_F32)};
    const msgl_packed p = {&how, codes, 2, 5};
    const float rows[2][5] = {{0, 2 / 192.0f, 4 / 3.0f, 2, 2 / 3.0f},
                              {1, 2 / 6.0f, 0.5f, -10, 10 * (-2 / 3.0f)}};
    check(&p, 0, rows[0]);
    check(&p, 1, rows[1]);
    // Nested: code 3 of the scales' values 0, 0.25, 0.5 ... times 4, plus 0.5.
    static const uint8_t nested[2] = {3, 1};
    static const float outer = 4;
    float inner[256];
    for (int i = 0; i < 256; i++) inner[i] = 0.25f * (float)i;
    how.sides[MSGL_SCALES] = side(nested, 2, MSGL_NUMBER_U8);
    how.sides[MSGL_NESTED] = side(&outer, 4, MSGL_NUMBER_F32);
    how.sides[MSGL_NESTED_VALUES] = side(inner, sizeof inner, MSGL_NUMBER_F32);
    how.nested_plus = 0.5f;
    const float again[5] = {0.5f * 3.5f, 1 / 6.0f * 3.5f, 0.25f * 3.5f, -1.5f, -2 / 3.0f * 1.5f};
    check(&p, 1, again);
}

// Numbers: e4m3 0x7e is 448, 0x01 2^-9, 0x80 -0, 0xff NaN; e8m0 0 is 2^-127, 255 NaN.
static void test_numbers(void **state)
{
    (void)state;
    static const uint8_t codes[4] = {0x7e, 0x01, 0x80, 0x38}, exponents[3] = {0, 127, 255};
    static const int64_t wide[2] = {-3, 1};
    const msgl_packing how = {.form = &msgl__stored_numbers,
                              .number = MSGL_NUMBER_E4M3,
                              .group_rows = 4,
                              .group = 64,
                              .sides[MSGL_SCALES] = side(&TWO, 4, MSGL_NUMBER_F32)};
    const msgl_packed p = {&how, codes, 1, 4};
    check(&p, 0, (const float[]){896, 0x1p-8f, -0.0f, 2});
    uint8_t all[256];
    float values[256];
    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;
    const msgl_packed every = {&how, all, 4, 64};
    for (size_t r = 0; r < 4; r++) every.how->form->expand(&every, r, 0, 64, values + 64 * r);
    for (int i = 0; i < 256; i++) {
        const float want = 2 * msgl__number_at(all, MSGL_NUMBER_E4M3, (size_t)i);
        assert_true(isnan(want) ? isnan(values[i]) : memcmp(&want, &values[i], sizeof want) == 0);
    }
    assert_true(msgl__number_at(exponents, MSGL_NUMBER_E8M0, 0) == 0x1p-127f);
    assert_true(msgl__number_at(exponents, MSGL_NUMBER_E8M0, 1) == 1);
    assert_true(isnan(msgl__number_at(exponents, MSGL_NUMBER_E8M0, 2)));
    assert_true(msgl__number_at((const uint8_t *)wide, MSGL_NUMBER_I64, 0) == -3);
    assert_int_equal(msgl__integer_at((const uint8_t *)wide, MSGL_NUMBER_I64, 1), 1);
    assert_int_equal(msgl__integer_at((const uint8_t *)wide, MSGL_NUMBER_I32, 1), -1);
}

// Columns from first_col on by way of their codes, which have scales by so many columns.
static void check_codes(const msgl_packed *p, size_t first_col, int32_t span)
{
    msgl_codes codes;
    assert_true(msgl__stored_codes(p, first_col, p->cols - first_col, NULL, &codes));
    assert_int_equal(codes.span, span);
    const msgl_blocks b = {"", 32, sizeof(msgl_code_part), &codes, NULL};
    for (size_t at = 0; at < p->rows * (p->cols - first_col); at += 32) {
        const size_t row = at / (p->cols - first_col);
        const size_t col = first_col + at % (p->cols - first_col);
        float want[32], got[32];
        msgl_code_part part = {0};
        p->how->form->expand(p, row, col, 32, want);
        p->how->form->split(p, row, col, &part);
        msgl__blocks_expand(&b, (const uint8_t *)&part, got);
        for (int i = 0; i < 32; i++) {
            if (got[i] == want[i] || (isnan(got[i]) && isnan(want[i]))) continue;
            fail_msg("%s: row %zu from %zu: element %d: %g, not %g", p->how->form->name, row, col,
                     i, (double)got[i], (double)want[i]);
        }
    }
}

// Bytes that are no numbers' in particular.
static void scatter(uint8_t *to, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] = (uint8_t)((i * i * 40503u + i * 151) >> 3);
}

// Tiles of every height and offset, over the ends of what a form reads at a time, are their parts,
// which check_codes compares with the values; and what is between a tile's rows stays.
enum { TILE_ROWS = 40, TILE_PARTS = 19, TILE_COLS = 32 * TILE_PARTS };
static void check_tiles(const msgl_packed *p)
{
    enum { LD = TILE_PARTS + 2 };
    static const size_t counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, TILE_ROWS};
    static const size_t firsts[] = {0, 1, 2, 15, 16, TILE_PARTS - 1};
    static msgl_code_part out[TILE_ROWS * LD], want[TILE_ROWS][TILE_PARTS], gap[LD];
    const size_t all = p->cols / 32; // parts of a row
    assert_true(p->rows <= TILE_ROWS && all <= TILE_PARTS);
    memset(want, 0, sizeof want);
    memset(gap, 0xa5, sizeof gap);
    for (size_t i = 0; i < p->rows * all; i++) {
        p->how->form->split(p, i / all, i % all * 32, &want[i / all][i % all]);
    }
    for (size_t i = 0; i < MSGL_COUNT(counts) * TILE_ROWS * MSGL_COUNT(firsts); i++) {
        const size_t first = firsts[i / MSGL_COUNT(counts) / TILE_ROWS];
        const msgl_part_tile t = {.row = i / MSGL_COUNT(counts) % TILE_ROWS,
                                  .rows = counts[i % MSGL_COUNT(counts)],
                                  .col = 32 * first,
                                  .cols = i % 2 == 0 && all > first ? 32 * (all - first) : 32};
        const size_t parts = t.cols / 32;
        if (t.row + t.rows > p->rows || first + parts > all) continue;
        memset(out, 0xa5, sizeof out);
        msgl__stored_split(p, &t, out, LD);
        for (size_t r = 0; r < TILE_ROWS; r++) {
            const msgl_code_part *const got = out + r * LD;
            const size_t own = r < t.rows ? parts : 0;
            if ((own == 0 || memcmp(got, &want[t.row + r][first], own * sizeof *got) == 0) &&
                memcmp(got + own, gap, (LD - own) * sizeof *got) == 0) {
                continue;
            }
            fail_msg("%s of %d: %zu rows from %zu, %zu columns from %zu: row %zu",
                     p->how->form->name, p->how->bits, t.rows, t.row, t.cols, t.col, r);
        }
    }
}

// Groups of 96 columns, with 7 bits, which become 8, and scales of any value, infinity and NaN too.
static void test_codes_of_rows(void **state)
{
    (void)state;
    enum { ROWS = 4, COLS = 288, GROUPS = 3, BITS = 7, WORDS = COLS * BITS / 32 };
    static uint8_t words[ROWS * WORDS * 4], zeros[GROUPS * 4], scales[ROWS * GROUPS * 4];
    scatter(words, sizeof words);
    scatter(zeros, sizeof zeros);
    scatter(scales, sizeof scales);
    memcpy(scales, "\0\0\x80\x7f\0\0\xc0\x7f\1\0\0\0", 12);
    msgl_packing how = {.form = &msgl__stored_rows,
                        .bits = BITS,
                        .zero = 64,
                        .group_rows = 1,
                        .group = 96,
                        .sides[MSGL_SCALES] = side(scales, sizeof scales, MSGL_NUMBER_F32),
                        .sides[MSGL_ZEROS] = side(zeros, sizeof zeros, MSGL_NUMBER_I32)};
    const msgl_packed p = {&how, words, ROWS, COLS};
    check_codes(&p, 0, 32);
    check_codes(&p, 96, 32);
    how.group = 128; // the last one has 32
    check_codes(&p, 0, 128);
    check_codes(&p, 64, 64);
    check_codes(&p, 128, 128);
    how.group = COLS;
    check_codes(&p, 32, 0);
    how.sides[MSGL_ZEROS].data = NULL;
    check_codes(&p, 0, 0);
    msgl_codes codes;
    assert_false(msgl__stored_codes(&p, 16, COLS - 16, NULL, &codes));
    assert_false(msgl__stored_codes(&p, 0, COLS - 16, NULL, &codes));
    how.group = 48;
    assert_false(msgl__stored_codes(&p, 0, COLS, NULL, &codes));
}

// The columns from first_col on by way of their codes in order, whose groups begin at multiples of
// `span`.
static void check_order(const msgl_packed *p, size_t first_col, size_t cols, int32_t span)
{
    msgl_column_order *order = msgl__stored_order(p, first_col, cols);
    assert_non_null(order);
    msgl_codes codes;
    assert_true(msgl__stored_codes(p, first_col, cols, order, &codes));
    assert_int_equal(codes.span, span);
    const msgl_blocks b = {"", 32, sizeof(msgl_code_part), &codes, NULL};
    size_t found = 0;
    for (size_t row = 0; row < p->rows; row++) {
        for (int32_t i = 0; i < order->num; i += 32) {
            msgl_code_part part = {0};
            float got[32];
            p->how->form->pick(p, row, first_col, order->columns + i, &part);
            msgl__blocks_expand(&b, (const uint8_t *)&part, got);
            for (int32_t j = 0; j < 32; j++) {
                const int32_t col = order->columns[i + j];
                float want;
                if (col < 0) continue;
                p->how->form->expand(p, row, first_col + (size_t)col, 1, &want);
                if (got[j] != want)
                    fail_msg("row %zu, column %d: %g, not %g", row, col, got[j], want);
                found++;
            }
        }
    }
    assert_int_equal(found, p->rows * cols);
    msgl__free(order);
}

// Column c has group c % 3. Of columns 2 to 42 group 0 has 3, 6, ... 42, group 1 4, ... 40, and
// group 2 2, ... 41.
static void test_order(void **state)
{
    (void)state;
    enum { ROWS = 32, COLS = 192, GROUPS = 3 };
    static uint8_t words[ROWS * COLS / 2], zeros[ROWS * GROUPS * 4];
    static float scales[ROWS * GROUPS];
    static int32_t groups[COLS];
    scatter(words, sizeof words);
    scatter(zeros, sizeof zeros);
    for (size_t i = 0; i < MSGL_COUNT(scales); i++) scales[i] = 1 + (float)i / 64;
    for (int32_t c = 0; c < COLS; c++) groups[c] = c % GROUPS;
    msgl_packing how = {.form = &msgl__stored_gptq,
                        .bits = 4,
                        .zeros_plus = 0x11111111,
                        .group_rows = 1,
                        .group = 64,
                        .sides[MSGL_SCALES] = side(scales, sizeof scales, MSGL_NUMBER_F32),
                        .sides[MSGL_ZEROS] = side(zeros, ROWS * GROUPS / 2, MSGL_NUMBER_I32),
                        .sides[MSGL_ORDER] = side(groups, sizeof groups, MSGL_NUMBER_I32)};
    const msgl_packed p = {&how, words, ROWS, COLS};
    msgl_column_order *order = msgl__stored_order(&p, 2, 41);
    assert_non_null(order);
    assert_int_equal(order->num, 96);
    for (int32_t i = 0; i < 96; i++) {
        static const int32_t first[GROUPS] = {1, 2, 0}, num[GROUPS] = {14, 13, 14};
        const int32_t group = i / 32, at = i % 32;
        assert_int_equal(order->columns[i], at < num[group] ? first[group] + 3 * at : -1);
    }
    msgl__free(order);
    check_order(&p, 2, 41, 32);
    check_order(&p, 0, COLS, 64);
    check_order(&p, 96, 96, 32);
    check_order(&p, 5, 1, 256); // one group
    how.form = &msgl__stored_rows;
    how.zero = 8;
    check_order(&p, 0, COLS, 64);
    check_order(&p, 64, 100, 64); // 33 or 34 of each
    how.sides[MSGL_ZEROS].data = NULL;
    check_order(&p, 0, COLS, 64);
    msgl_codes codes;
    how.zero = 7; // no middle
    assert_false(msgl__stored_codes(&p, 0, COLS, NULL, &codes));
}

static void test_codes_of_others(void **state)
{
    (void)state;
    enum { ROWS = 8, COLS = 128 };
    static uint8_t bytes[ROWS * COLS], scales[ROWS * 8 * 2], biases[ROWS * 2 * 2], zeros[ROWS * 2];
    static const float global = 29;
    scatter(bytes, sizeof bytes);
    scatter(scales, sizeof scales);
    scatter(biases, sizeof biases);
    scatter(zeros, sizeof zeros);
    msgl_packing how = {.form = &msgl__stored_affine,
                        .bits = 8,
                        .group_rows = 1,
                        .group = 64,
                        .sides[MSGL_SCALES] = side(scales, ROWS * 4, MSGL_NUMBER_F16),
                        .sides[MSGL_BIASES] = side(biases, ROWS * 4, MSGL_NUMBER_F16)};
    const msgl_packed p = {&how, bytes, ROWS, COLS};
    check_codes(&p, 0, 64);
    how.bits = 7;
    check_codes(&p, 64, 64);
    how = (msgl_packing){.form = &msgl__stored_numbers,
                         .number = MSGL_NUMBER_I8,
                         .group_rows = 1,
                         .group = 64,
                         .sides[MSGL_SCALES] = side(scales, ROWS * 4, MSGL_NUMBER_BF16),
                         .sides[MSGL_ZEROS] = side(zeros, ROWS * 2, MSGL_NUMBER_I8)};
    check_codes(&p, 0, 64);
    check_tiles(&p);
    how.group_rows = ROWS;
    how.group = COLS;
    check_codes(&p, 0, 0);
    how.number = MSGL_NUMBER_E4M3;
    msgl_codes codes;
    assert_false(msgl__stored_codes(&p, 0, COLS, NULL, &codes));
    scales[0] = 0, scales[1] = 255, scales[2] = 1;
    how = (msgl_packing){.form = &msgl__stored_blocks,
                         .blocks = &msgl__blocks_ocp_mxfp4,
                         .sides[MSGL_SCALES] = side(scales, ROWS * 4, MSGL_NUMBER_E8M0)};
    check_codes(&p, 0, 32);
    scales[0] = 0x7f;
    how = (msgl_packing){.form = &msgl__stored_fp4,
                         .group = 16,
                         .sides[MSGL_SCALES] = side(scales, ROWS * 8, MSGL_NUMBER_E4M3),
                         .sides[MSGL_GLOBAL] = side(&global, 4, MSGL_NUMBER_F32)};
    check_codes(&p, 0, 16);
    check_tiles(&p);
    how.divided = true;
    check_codes(&p, 32, 16);
}

// Forms in which neighbouring rows or columns share words, with groups of one part, of several and
// of whole rows.
static void test_tiles(void **state)
{
    (void)state;
    enum { ROWS = TILE_ROWS, COLS = TILE_COLS };
    static uint8_t bytes[ROWS * COLS], scales[ROWS * 25 * 4], zeros[ROWS * COLS / 16];
    static const msgl_stored *const forms[] = {
        &msgl__stored_awq,    &msgl__stored_awq_rows, &msgl__stored_gptq, &msgl__stored_rows,
        &msgl__stored_affine, &msgl__stored_int4,     &msgl__stored_bands};
    static const size_t groups[] = {32, 64, 96, 128, COLS};
    static const int32_t all_bits[] = {2, 3, 4, 7, 8};
    scatter(bytes, sizeof bytes);
    scatter(zeros, sizeof zeros);
    for (size_t i = 0; i < sizeof scales / 4; i++) {
        const float scale = (float)(i % 31 + 1) / 64;
        memcpy(scales + 4 * i, &scale, 4);
    }
    for (size_t i = 0; i < MSGL_COUNT(forms) * MSGL_COUNT(groups) * MSGL_COUNT(all_bits); i++) {
        const msgl_stored *form = forms[i / MSGL_COUNT(groups) / MSGL_COUNT(all_bits)];
        const int32_t bits = all_bits[i % MSGL_COUNT(all_bits)];
        const bool four = form == &msgl__stored_awq || form == &msgl__stored_awq_rows ||
                          form == &msgl__stored_int4;
        const size_t group = groups[i / MSGL_COUNT(all_bits) % MSGL_COUNT(groups)];
        if (bits != 4 && four) continue;
        if (form == &msgl__stored_bands && COLS % group != 0) continue;
        if (bits == 7 && form != &msgl__stored_rows && form != &msgl__stored_affine) continue;
        const msgl_number number = i % 2 == 0 ? MSGL_NUMBER_F32 : MSGL_NUMBER_BF16;
        msgl_packing how = {.form = form,
                            .bits = bits,
                            .per_word = form == &msgl__stored_awq_rows ? 8 : 0,
                            .group_rows = 1,
                            .group = group,
                            .sides[MSGL_SCALES] = side(scales, sizeof scales, number),
                            .sides[MSGL_BIASES] = side(scales + 4, sizeof scales - 4, number)};
        // Integers, but for two forms; AWQ by rows has whole words for a row's.
        const size_t words = ((COLS + group - 1) / group + 7) / 8;
        how.sides[MSGL_ZEROS] = form == &msgl__stored_bands || form == &msgl__stored_int4
                                    ? side(scales, sizeof scales, number)
                                    : side(zeros, ROWS * words * 4, MSGL_NUMBER_I32);
        const msgl_packed p = {&how, bytes, ROWS, COLS};
        check_codes(&p, 0, group == COLS ? 0 : group == 96 ? 32 : (int32_t)group);
        check_tiles(&p);
    }
}

// Symmetric files of GPTQ have all zero points in the middle, and codes without them.
static void test_symmetric(void **state)
{
    (void)state;
    enum { ROWS = 40, COLS = 64, GROUPS = 2 };
    static uint32_t words[ROWS * COLS / 4], zeros[GROUPS * ROWS / 4];
    static float scales[GROUPS * ROWS];
    static const int32_t all_bits[] = {2, 3, 4, 8};
    static const uint32_t ones[] = {0x55555555, 0, 0x11111111, 0x01010101}; // each code 1
    for (size_t i = 0; i < 3 * MSGL_COUNT(all_bits); i++) {
        const size_t b = i % MSGL_COUNT(all_bits), way = i / MSGL_COUNT(all_bits);
        const uint32_t bits = (uint32_t)all_bits[b], mask = (1u << bits) - 1;
        if (way == 1 && ones[b] == 0) continue;
        const msgl_packing how = {.form = &msgl__stored_gptq,
                                  .bits = all_bits[b],
                                  .zeros_plus = way == 1 ? ones[b] : 0,
                                  .zero_plus = way == 2,
                                  .group_rows = 1,
                                  .group = 32,
                                  .sides[MSGL_SCALES] =
                                      side(scales, sizeof scales, MSGL_NUMBER_F32),
                                  .sides[MSGL_ZEROS] = side(zeros, sizeof zeros, MSGL_NUMBER_I32)};
        const msgl_packed p = {&how, (const uint8_t *)words, ROWS, COLS};
        const size_t per_group = (ROWS * bits + 31) / 32;
        for (size_t other = 0; other <= GROUPS * ROWS; other++) { // which one is not; at last none
            memset(zeros, 0, sizeof zeros); // also behind the last one of a group
            for (size_t z = 0; z < GROUPS * ROWS; z++) {
                const uint32_t stored = (mask + 1) / 2 - (way > 0) + (z == other);
                const size_t bit = z / ROWS * per_group * 32 + z % ROWS * bits;
                const uint64_t at = (uint64_t)(stored & mask) << bit % 32;
                zeros[bit / 32] |= (uint32_t)at;
                if (at >> 32 != 0) zeros[bit / 32 + 1] |= (uint32_t)(at >> 32);
            }
            msgl_codes codes;
            assert_true(msgl__stored_codes(&p, 0, COLS, NULL, &codes));
            assert_int_equal(codes.offset,
                             other < GROUPS * ROWS ? MSGL_OFFSET_ZERO : MSGL_OFFSET_NONE);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles),          cmocka_unit_test(test_symmetric),
        cmocka_unit_test(test_packed_4),       cmocka_unit_test(test_packed_zeros),
        cmocka_unit_test(test_packed_3),       cmocka_unit_test(test_gptq),
        cmocka_unit_test(test_gptq_3),         cmocka_unit_test(test_awq),
        cmocka_unit_test(test_nvfp4),          cmocka_unit_test(test_codebook),
        cmocka_unit_test(test_numbers),        cmocka_unit_test(test_affine),
        cmocka_unit_test(test_codes_of_rows),  cmocka_unit_test(test_codes_of_others),
        cmocka_unit_test(test_gptq_zero_plus), cmocka_unit_test(test_order),
        cmocka_unit_test(test_bands),          cmocka_unit_test(test_int4),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
