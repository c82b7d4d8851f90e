// SPDX-License-Identifier: Apache-2.0
//
// Rows of codes as a GPU holds them: what its kernels take from a row, run on the host, is the
// value that the file's blocks stand for, to the bit, of every form and every column; a row is
// written in full and nothing beside it. tests/cuda has the kernels themselves.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "cuda/gemm/codes_row.h"
#include "quant/stored.h"
#include "utils/code_forms.h"

enum { GUARD = 16 };

// A row takes the file's bytes, filled up; scales of 6 bits have 8 here.
static void check_size(const msgl_codes_row *l, const msgl_blocks *b)
{
    const size_t file = (size_t)(l->k / b->elements) * (size_t)b->bytes;
    assert_int_equal(l->bytes % 32, 0);
    if (b->codes->split == NULL) return; // whose codes have a byte each
    if (l->bytes < file + (size_t)l->k / 32 + 64) return;
    fail_msg("%s: %u bytes, not %zu", b->name, l->bytes, file);
}

static void check_row(const msgl_blocks *b, int k, uint64_t *seed)
{
    msgl_codes_row l;
    if (!msgl__codes_row_of(b, k, &l)) fail_msg("%s: not a row of %d", b->name, k);
    check_size(&l, b);
    uint8_t *src = malloc((size_t)(k / b->elements) * (size_t)b->bytes);
    float *values = malloc((size_t)k * sizeof *values);
    uint8_t *memory = aligned_alloc(16, l.bytes + 2 * GUARD), *row = memory + GUARD;
    assert_true(src != NULL && values != NULL && memory != NULL);
    memset(memory, 0xa5, l.bytes + 2 * GUARD);
    code_row_draw(seed, b, k, src, values);
    msgl__codes_row_put(&l, b, src, row);
    for (int i = 0; i < GUARD; i++) {
        assert_int_equal(memory[i], 0xa5);
        assert_int_equal(row[l.bytes + (uint32_t)i], 0xa5);
    }
    for (uint32_t eight = 0; eight < (uint32_t)k / 8; eight++) {
        float got[8];
        msgl__codes_row_eight(&l, l.book, l.bits, row, row + l.codes, 1, 0, eight, got);
        if (memcmp(got, values + 8 * eight, sizeof got) == 0) continue;
        fail_msg("%s: columns from %u of %d: %g, not %g", b->name, 8 * eight, k, (double)got[0],
                 (double)values[8 * eight]);
    }
    // What is there does not depend on what was there.
    uint8_t *again = malloc(l.bytes);
    assert_non_null(again);
    memset(again, 0x5a, l.bytes);
    msgl__codes_row_put(&l, b, src, again);
    assert_memory_equal(again, row, l.bytes);
    free(again);
    free(src);
    free(values);
    free(memory);
}

// A weight of rows: each byte of scales has a place of its own, and values are the rows'.
static void check_weight(const msgl_blocks *b, int k, uint64_t *seed)
{
    enum { N = 5 };
    msgl_codes_row l;
    assert_true(msgl__codes_row_of(b, k, &l));
    uint8_t *src = malloc((size_t)(k / b->elements) * (size_t)b->bytes);
    float *values = malloc((size_t)N * (size_t)k * sizeof *values);
    uint8_t *row = aligned_alloc(32, l.bytes), *all = aligned_alloc(32, (size_t)N * l.bytes);
    uint8_t *scales = all + N * l.codes, *taken = calloc(N, l.scales);
    assert_true(src != NULL && values != NULL && row != NULL && all != NULL && taken != NULL);
    for (uint32_t r = 0; r < N; r++) {
        code_row_draw(seed, b, k, src, values + r * (uint32_t)k);
        msgl__codes_row_put(&l, b, src, row);
        memcpy(all + r * l.codes, row, l.codes);
        for (uint32_t i = 0; i < l.scales; i++) {
            const size_t at = msgl__codes_row_place(&l, N, r, i);
            assert_true(at < (size_t)N * l.scales);
            assert_int_equal(taken[at]++, 0);
            scales[at] = row[l.codes + i];
        }
    }
    for (uint32_t i = 0; i < N * (uint32_t)k / 8; i++) {
        const uint32_t r = i / ((uint32_t)k / 8), eight = i % ((uint32_t)k / 8);
        float got[8];
        msgl__codes_row_eight(&l, l.book, l.bits, all + r * l.codes, scales, N, r, eight, got);
        if (memcmp(got, values + 8 * i, sizeof got) != 0) fail_msg("%s: row %u", b->name, r);
    }
    free(src);
    free(values);
    free(row);
    free(all);
    free(taken);
}

// Columns that are whole spans, and less.
static void check_form(const msgl_blocks *b)
{
    static const int BLOCKS[] = {1, 2, 3, 8, 9, 21, 64};
    uint64_t seed = 7;
    for (size_t i = 0; i < MSGL_COUNT(BLOCKS); i++) {
        check_row(b, BLOCKS[i] * b->elements, &seed);
        check_weight(b, BLOCKS[i] * b->elements, &seed);
    }
}

static void test_values(void **state)
{
    (void)state;
    const msgl_blocks *all[MAX_CODE_BLOCKS];
    const int num = code_blocks_all(all);
    assert_true(num >= 13);
    for (int i = 0; i < num; i++) check_form(all[i]);
    for (int i = 0; i < code_forms_count(); i++) {
        code_form form;
        code_forms_get(i, &form);
        check_form(&form.blocks);
    }
}

// Rows of parts, [ROWS, parts], that tasks ask for.
typedef struct parts_of {
    const msgl_code_part *parts;
    size_t parts_per_row;
} parts_of;

static void read_parts(const void *rows, const msgl_part_tile *t, msgl_code_part *out, size_t ld)
{
    const parts_of *p = rows;
    for (size_t r = 0; r < t->rows; r++) {
        memcpy(out + r * ld, p->parts + (t->row + r) * p->parts_per_row + t->col / 32,
               t->cols / 32 * sizeof *out);
    }
}

// What tasks lay out, the last one first, is the rows laid out one by one, and nothing beside it.
static void check_tasks(const msgl_blocks *b, int k, uint64_t *seed)
{
    enum { ROWS = 150, FIRST = 5 };
    static const size_t counts[] = {1, 16, 128, 129, ROWS - FIRST};
    msgl_codes_row l;
    assert_true(msgl__codes_row_of(b, k, &l));
    const size_t per_row = (size_t)k / 32;
    msgl_code_part *parts = malloc(ROWS * per_row * sizeof *parts);
    float *values = malloc((size_t)k * sizeof *values);
    uint8_t *row = malloc(l.bytes), *memory = malloc((ROWS - FIRST) * l.bytes + 2 * GUARD);
    assert_true(parts != NULL && values != NULL && row != NULL && memory != NULL);
    for (size_t r = 0; r < ROWS; r++) {
        code_row_draw(seed, b, k, (uint8_t *)(parts + r * per_row), values);
    }
    const parts_of file = {parts, per_row};
    const msgl_part_rows src = {read_parts, &file};
    for (size_t i = 0; i < MSGL_COUNT(counts); i++) {
        const size_t bytes = counts[i] * l.bytes;
        memset(memory, 0xa5, bytes + 2 * GUARD);
        for (int task = msgl__stored_tasks(counts[i], (size_t)k); task-- > 0;) {
            msgl__codes_rows_put(&l, &src, FIRST, counts[i], task, memory + GUARD);
        }
        for (size_t r = 0; r < counts[i]; r++) {
            msgl__codes_row_put(&l, b, (const uint8_t *)(parts + (FIRST + r) * per_row), row);
            assert_memory_equal(memory + GUARD + r * l.bytes, row, l.bytes);
        }
        for (size_t g = 0; g < GUARD; g++) {
            assert_int_equal(memory[g], 0xa5);
            assert_int_equal(memory[GUARD + bytes + g], 0xa5);
        }
    }
    free(parts);
    free(values);
    free(row);
    free(memory);
}

static void test_tasks(void **state)
{
    (void)state;
    static const int columns[] = {256, 512, 544, 1280, 1312};
    uint64_t seed = 11;
    for (int i = 0; i < code_forms_count() * (int)MSGL_COUNT(columns); i++) {
        code_form form;
        code_forms_get(i / (int)MSGL_COUNT(columns), &form);
        check_tasks(&form.blocks, columns[i % (int)MSGL_COUNT(columns)], &seed);
    }
}

// Every number that a scale of a byte can be, and every e4m3 value.
static void test_bytes(void **state)
{
    (void)state;
    static const msgl_number types[] = {MSGL_NUMBER_E4M3, MSGL_NUMBER_E8M0, MSGL_NUMBER_E8M0_HALF};
    for (uint32_t i = 0; i < 3 * 256; i++) {
        const uint8_t bytes[4] = {(uint8_t)i};
        const float want = msgl__number_at(bytes, types[i / 256], 0);
        const float got = msgl__codes_row_number(types[i / 256], bytes, 0);
        assert_memory_equal(&got, &want, sizeof got);
    }
}

static void test_refused(void **state)
{
    (void)state;
    msgl_codes_row l;
    const msgl_blocks *q4_k = msgl__blocks_of_ggml("Q4_K"), *iq1 = msgl__blocks_of_ggml("IQ1_S");
    assert_false(msgl__codes_row_of(q4_k, 128, &l));
    assert_false(msgl__codes_row_of(q4_k, 0, &l));
    assert_false(msgl__codes_row_of(iq1, 256, &l));
    assert_true(msgl__codes_row_of(q4_k, 4096, &l));
    assert_int_equal(l.bytes, 4096 / 256 * 148);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_tasks),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
