// SPDX-License-Identifier: Apache-2.0
//
// Packed matrices as packages save them have the values that those packages read back, to the bit,
// as values and by way of the codes that are kept (tools/make_package_vectors.py).
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "models/checkpoint.h"

#define DIR MSGL_SOURCE_DIR "/tests/vectors/packages/"

enum { ROWS = 32, COLS = 64 };

static const struct {
    const char *folder, *form;
    bool kept; // not: groups of 16 columns, or of elements that are apart
} CASES[] = {
    {"auto_round_gptq_4", "GPTQ", true},
    {"auto_round_gptq_3", "GPTQ", true},
    {"auto_round_gptq_5_sym", "GPTQ", false},
    {"auto_round_gptqmodel_4", "GPTQ", true},
    {"auto_round_2", "GPTQ", false},
    {"auto_round_8_among_4", "GPTQ", true},
    {"auto_round_awq", "AWQ", true},
    {"hqq_4", "HQQ", true},
    {"hqq_4_two_rows", "HQQ", true},
    {"hqq_4_axis_0", "HQQ", false},
    {"hqq_8", "HQQ", true},
    {"hqq_3", "HQQ", true},
    {"hqq_3_axis_0", "HQQ", false},
    {"hqq_2", "HQQ", true},
    {"hqq_1", "HQQ", true},
    {"hqq_6", "HQQ", true},
    {"hqq_1_58", "HQQ", true},
    {"torchao_int4", "Int4Tensor", true},
    {"torchao_int4_f32", "Int4Tensor", true},
    {"torchao_int8", "Int8Tensor", true},
    {"torchao_int8_tensor", "Int8Tensor", true},
    {"torchao_intx_4", "IntxUnpackedToInt8Tensor", true},
    {"torchao_intx_3", "IntxUnpackedToInt8Tensor", true},
    {"torchao_fp8", "Float8Tensor", true},
    {"torchao_fp8_tensor", "Float8Tensor", true},
};

static void read_values(const char *folder, float *values)
{
    char path[400];
    snprintf(path, sizeof path, DIR "%s/values.bin", folder);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(values, sizeof *values, ROWS * COLS, f), ROWS * COLS);
    fclose(f);
}

static void check(const char *folder, const char *how, size_t row, size_t col, const float *got,
                  const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&got[i], &want[i], sizeof *want) == 0) continue;
        fail_msg("%s, %s: row %zu, column %zu: %a, not %a", folder, how, row, col + i,
                 (double)got[i], (double)want[i]);
    }
}

static void check_matrix(const char *folder, const msgl_tensor *t, bool kept, const float *want)
{
    const msgl_packed p = {&t->packing, t->data, ROWS, COLS};
    msgl_codes codes;
    assert_int_equal(msgl__stored_codes(&p, 0, COLS, NULL, &codes), kept);
    const msgl_blocks b = {"", 32, sizeof(msgl_code_part), &codes, NULL};
    for (size_t r = 0; r < ROWS; r++, want += COLS) {
        float got[COLS];
        t->packing.form->expand(&p, r, 0, COLS, got);
        check(folder, "expanded", r, 0, got, want, COLS);
        for (size_t c = 0; c < COLS && kept; c += 32) {
            msgl_code_part part = {0};
            t->packing.form->split(&p, r, c, &part);
            msgl__blocks_expand(&b, (const uint8_t *)&part, got);
            check(folder, "by codes", r, c, got, want + c, 32);
        }
    }
}

static void test_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        static float want[ROWS * COLS];
        char path[400];
        msgl_checkpoint *c = NULL;
        msgl_err err = {0};
        snprintf(path, sizeof path, DIR "%s", CASES[i].folder);
        if (msgl__checkpoint_open(path, &c, &err) != 0) fail_msg("%s", err.text);
        const msgl_tensor *t = msgl__checkpoint_find(c, "m.weight");
        assert_non_null(t);
        assert_true(t->loadable && t->ndim == 2 && t->dims[0] == ROWS && t->dims[1] == COLS);
        assert_string_equal(t->packed, CASES[i].form);
        for (size_t k = 0; k < msgl__checkpoint_count(c); k++) {
            const msgl_tensor *s = msgl__checkpoint_at(c, k);
            assert_true(s == t || s->is_side);
        }
        read_values(CASES[i].folder, want);
        check_matrix(CASES[i].folder, t, CASES[i].kept, want);
        msgl__checkpoint_close(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
