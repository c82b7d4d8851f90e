// SPDX-License-Identifier: Apache-2.0
//
// core: conversions against all 65,536 half patterns, checked arithmetic, failing allocations,
// errors.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/dtype.h"
#include "core/err.h"
#include "core/mem.h"

// Every half that is a number converts to f32 and back to itself; NaN stays NaN.
static void test_half_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const float f16 = msgl__f16_to_f32((uint16_t)h);
        const float bf16 = msgl__bf16_to_f32((uint16_t)h);
        if (isnan(f16)) {
            assert_true(isnan(msgl__f16_to_f32(msgl__f32_to_f16(f16))));
        } else {
            assert_int_equal(msgl__f32_to_f16(f16), h);
        }
        if (isnan(bf16)) {
            assert_true(isnan(msgl__bf16_to_f32(msgl__f32_to_bf16(bf16))));
        } else {
            assert_int_equal(msgl__f32_to_bf16(bf16), h);
        }
    }
}

// Between two neighbouring halves, f32 rounds to the nearer one and, at the middle, to the even
// one.
static void test_half_rounding(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        const float a = msgl__f16_to_f32((uint16_t)h), b = msgl__f16_to_f32((uint16_t)(h + 1));
        const float mid = a + (b - a) / 2;
        assert_int_equal(msgl__f32_to_f16(mid), h & 1 ? h + 1 : h);
        assert_int_equal(msgl__f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
        assert_int_equal(msgl__f32_to_f16(nextafterf(mid, -INFINITY)), h);
    }
    for (uint32_t h = 0; h < 0x7f7f; h++) {
        const float a = msgl__bf16_to_f32((uint16_t)h), b = msgl__bf16_to_f32((uint16_t)(h + 1));
        const float mid = a + (b - a) / 2;
        assert_int_equal(msgl__f32_to_bf16(mid), h & 1 ? h + 1 : h);
    }
    assert_int_equal(msgl__f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(msgl__f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(msgl__f32_to_bf16(INFINITY), 0x7f80);
}

static void test_dtype_names(void **state)
{
    (void)state;
    msgl_dtype t;
    assert_int_equal(msgl__dtype_parse("torch.bfloat16", &t), 0);
    assert_int_equal(t, MSGL_BF16);
    assert_int_equal(msgl__dtype_parse("F16", &t), 0);
    assert_int_equal(t, MSGL_F16);
    assert_int_equal(msgl__dtype_parse("int8", &t), MSGL_EUNSUPPORTED);
}

static void test_sizes_and_failing(void **state)
{
    (void)state;
    size_t n;
    assert_int_equal(msgl__size_mul(SIZE_MAX / 2, 3, &n), MSGL_ELIMIT);
    assert_int_equal(msgl__size_add(SIZE_MAX, 1, &n), MSGL_ELIMIT);
    assert_null(msgl__reallocarray(NULL, SIZE_MAX, 2));
    assert_null(msgl__pages_alloc(SIZE_MAX));

    msgl__mem_fail_from(2);
    void *p = msgl__malloc(1);
    assert_non_null(p);
    assert_null(msgl__malloc(1));
    assert_null(msgl__calloc(1, 1));
    msgl__mem_fail_from(0);
    msgl__free(p);

    char *big = msgl__pages_alloc(5 << 20);
    assert_non_null(big);
    assert_int_equal((uintptr_t)big % (2 << 20), 0);
    assert_int_equal(big[(6 << 20) - 1], 0);
    msgl__pages_free(big, 5 << 20);
}

static void test_errors(void **state)
{
    (void)state;
    msgl_err err;
    assert_int_equal(msgl__err_set(&err, MSGL_EFORMAT, "bad %d", 7), MSGL_EFORMAT);
    assert_int_equal(msgl__err_prefix(&err, MSGL_EFORMAT, "file %s", "x.json"), MSGL_EFORMAT);
    assert_string_equal(err.text, "file x.json: bad 7");
    assert_int_equal(msgl__err_set(NULL, MSGL_EIO, "x"), MSGL_EIO);
    assert_string_equal(msgl__status_text(MSGL_ENOMEM), "out of memory");
    assert_string_equal(msgl__status_text(17), "unknown status");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_half_round_trip), cmocka_unit_test(test_half_rounding),
        cmocka_unit_test(test_dtype_names),     cmocka_unit_test(test_sizes_and_failing),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
