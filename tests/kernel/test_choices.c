// SPDX-License-Identifier: Apache-2.0
//
// The choices of products' kernels on GPUs: buckets of rows, the table, the file.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/gemm/choices.h"

static const char *name_of(int kernel)
{
    static const char *const NAMES[] = {"mid", "norm+library+gate", "gemv"};
    return NAMES[kernel];
}
static const msgl_kernel_names NAMES = {name_of, 3};

static msgl_gemm_choice call_choice(int32_t n, int32_t bucket, int32_t kernel)
{
    return (msgl_gemm_choice){
        .key = {.n = n, .k = 64, .bucket = bucket, .align_in = 16, .call = MSGL_CALL},
        .kernel = kernel,
        .us = 1.25f,
        .source = MSGL_GEMM_MEASURED};
}

static msgl_gemm_choice product_choice(int32_t n, int32_t bucket)
{
    msgl_gemm_choice c = call_choice(n, bucket, 0);
    c.key.call = 0;
    for (int i = 0; i < MSGL_ALGO_WORDS; i++) c.algo[i] = UINT64_C(0xfedcba9876543210) >> i;
    return c;
}

static void buckets_hold_their_rows_and_grow(void **state)
{
    (void)state;
    int32_t before = 0, num = 0;
    for (int32_t m = 1; m <= 100000; m++) {
        const int32_t b = msgl__gemm_bucket(m);
        assert_true(b >= m && b >= before);
        assert_int_equal(msgl__gemm_bucket(b), b);
        num += b != before;
        before = b;
    }
    assert_int_equal(msgl__gemm_bucket(3), 4);
    assert_int_equal(msgl__gemm_bucket(17), 24);
    assert_int_equal(msgl__gemm_bucket(257), 320);
    assert_int_equal(msgl__gemm_bucket(2049), 3072);
    assert_in_range(num, 40, 80); // few enough to keep, enough to tell tiles apart
    assert_true(msgl__gemm_bucket(1 << 30) >= 1 << 30);
}

static void a_table_keeps_what_was_put_as_it_grows(void **state)
{
    (void)state;
    enum { MANY = 3000 };
    msgl_gemm_choices t;
    assert_true(msgl__choices_create(&t));
    for (int32_t i = 0; i < MANY; i++) {
        const msgl_gemm_choice c = call_choice(i, 8, i % 3);
        assert_true(msgl__choices_put(&t, &c));
    }
    const msgl_gemm_choice again = call_choice(5, 8, 0);
    assert_true(msgl__choices_put(&t, &again)); // in place of the other
    assert_int_equal(t.count, MANY);
    for (int32_t i = 0; i < MANY; i++) {
        const msgl_gemm_choice c = call_choice(i, 8, i % 3);
        const msgl_gemm_choice *found = msgl__choices_find(&t, &c.key);
        assert_non_null(found);
        assert_int_equal(found->kernel, i == 5 ? 0 : i % 3);
    }
    const msgl_gemm_choice other = call_choice(5, 16, 0);
    assert_null(msgl__choices_find(&t, &other.key));
    msgl__choices_destroy(&t);
}

static int32_t nearest_bucket(const msgl_gemm_choices *t, int32_t m)
{
    const msgl_gemm_choice c = call_choice(7, msgl__gemm_bucket(m), 0);
    const msgl_gemm_choice *found = msgl__choices_nearest(t, &c.key);
    return found != NULL ? found->key.bucket : 0;
}

static void unmeasured_rows_take_the_next_larger_choice_else_the_next_smaller(void **state)
{
    (void)state;
    msgl_gemm_choices t;
    assert_true(msgl__choices_create(&t));
    static const int32_t BUCKETS[] = {4, 16, 96, 128, 512, 16384};
    for (int i = 0; i < 6; i++) {
        const msgl_gemm_choice c = call_choice(7, BUCKETS[i], 0);
        assert_true(msgl__choices_put(&t, &c));
    }
    msgl_gemm_choice proposed = call_choice(7, 32, 0);
    proposed.source = MSGL_GEMM_PROPOSED; // not measured: never taken for others, nor itself
    assert_true(msgl__choices_put(&t, &proposed));
    static const struct {
        int32_t m, bucket;
    } CASES[] = {{1, 0},         {2, 4},         {3, 4},    {5, 16},       {16, 16},
                 {17, 16},       {32, 16},       {33, 0},   {40, 0},       {41, 96},
                 {48, 96},       {96, 96},       {97, 128}, {129, 128},    {256, 512},
                 {600, 512},     {1024, 512},    {1025, 0}, {9000, 16384}, {16384, 16384},
                 {16385, 16384}, {32768, 16384}, {32769, 0}};
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        assert_int_equal(nearest_bucket(&t, CASES[i].m), CASES[i].bucket);
    }
    msgl__choices_destroy(&t);
}

static void lines_come_back_whole_or_not_at_all(void **state)
{
    (void)state;
    msgl_gemm_choice choices[2] = {call_choice(151936, 256, 1), product_choice(6144, 0)};
    choices[0].key.call |= MSGL_CALL_GATED | MSGL_CALL_NORM | MSGL_CALL_NORM_STATS | MSGL_CALL_ROPE;
    for (int i = 0; i < 2; i++) {
        char line[512], damaged[512];
        msgl_gemm_choice c;
        msgl__choice_write(&choices[i], NAMES, line, sizeof line);
        assert_true(msgl__choice_read(line, NAMES, &c));
        assert_memory_equal(&c.key, &choices[i].key, sizeof c.key);
        assert_int_equal(c.kernel, choices[i].kernel);
        assert_memory_equal(c.algo, choices[i].algo, sizeof c.algo);
        assert_true(c.us == choices[i].us && c.source == MSGL_GEMM_MEASURED);
        const size_t length = strlen(line);
        for (size_t at = 0; at + 1 < length; at++) {
            memcpy(damaged, line, length + 1);
            damaged[at] ^= 1;
            assert_false(msgl__choice_read(damaged, NAMES, &c));
            memcpy(damaged, line, length + 1);
            damaged[at] = '\0';
            assert_false(msgl__choice_read(damaged, NAMES, &c));
        }
    }
}

static void a_kernel_that_is_gone_is_no_choice(void **state)
{
    (void)state;
    char line[512];
    const msgl_gemm_choice c = call_choice(64, 8, 2);
    msgl_gemm_choice read;
    msgl__choice_write(&c, NAMES, line, sizeof line);
    const msgl_kernel_names fewer = {name_of, 2};
    assert_true(msgl__choice_read(line, NAMES, &read));
    assert_false(msgl__choice_read(line, fewer, &read));
    assert_false(msgl__choice_read("", NAMES, &read));
    assert_false(msgl__choice_read(" \n", NAMES, &read));
}

static size_t load_count(const char *path, const char *gpu, size_t version)
{
    msgl_gemm_choices t;
    assert_true(msgl__choices_create(&t));
    msgl__choices_load(&t, path, gpu, version, NAMES);
    const size_t count = t.count;
    msgl__choices_destroy(&t);
    return count;
}

static void a_file_keeps_what_was_measured_for_its_gpu_and_library(void **state)
{
    (void)state;
    char dir[] = "/tmp/minisgl-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/choices", dir);
    assert_int_equal(load_count(path, "gpu", 1), 0); // no file yet
    msgl_gemm_choices t;
    assert_true(msgl__choices_create(&t));
    for (int32_t i = 1; i <= 20; i++) {
        msgl_gemm_choice c = i % 2 == 0 ? call_choice(i, 8, 0) : product_choice(i, 8);
        if (i > 15) c.source = MSGL_GEMM_PROPOSED;
        assert_true(msgl__choices_put(&t, &c));
    }
    msgl__choices_save(&t, path, "gpu", 1, NAMES);
    msgl__choices_destroy(&t);
    assert_int_equal(load_count(path, "gpu", 1), 15);
    assert_int_equal(load_count(path, "other", 1), 0);
    assert_int_equal(load_count(path, "gpu", 2), 0);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, 100, SEEK_SET), 0);
    assert_true(fputs("#", f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(load_count(path, "gpu", 1), 14);
    assert_int_equal(truncate(path, 300), 0);
    assert_in_range(load_count(path, "gpu", 1), 0, 4);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_hold_their_rows_and_grow),
        cmocka_unit_test(a_table_keeps_what_was_put_as_it_grows),
        cmocka_unit_test(unmeasured_rows_take_the_next_larger_choice_else_the_next_smaller),
        cmocka_unit_test(lines_come_back_whole_or_not_at_all),
        cmocka_unit_test(a_kernel_that_is_gone_is_no_choice),
        cmocka_unit_test(a_file_keeps_what_was_measured_for_its_gpu_and_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
