// SPDX-License-Identifier: Apache-2.0
//
// Choice of the ISA level by name and by detection.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "core/attributes.h"
#include "kernel/kernel.h"

static void empty_means_detected(void **state)
{
    (void)state;
    const msgl_cpu_level have = msgl__cpu_level_detect();
    msgl_cpu_level level = -1;
    assert_in_range(msgl__cpu_levels(), 1, MSGL_CPU_MAX_LEVELS);
    assert_in_range(have, MSGL_CPU_REF, msgl__cpu_levels() - 1);
    assert_int_equal(msgl__cpu_level_select(NULL, &level, NULL), 0);
    assert_int_equal(level, have);
    assert_int_equal(msgl__cpu_level_select("", &level, NULL), 0);
    assert_int_equal(level, have);
}

static void every_name_selects_or_says_what_is_there(void **state)
{
    (void)state;
    const msgl_cpu_level have = msgl__cpu_level_detect();
    for (int l = 0; l < msgl__cpu_levels(); l++) {
        msgl_cpu_level level = -1;
        msgl_err err;
        const int rc = msgl__cpu_level_select(msgl__cpu_level_name(l), &level, &err);
        if (l <= have) {
            assert_int_equal(rc, 0);
            assert_int_equal(level, l);
        } else {
            assert_int_equal(rc, MSGL_EUNSUPPORTED);
            assert_non_null(strstr(err.text, msgl__cpu_level_name(have)));
        }
    }
}

static void unknown_names_list_the_known(void **state)
{
    (void)state;
    static const char *const BAD[] = {"avx", "AVX2", "amx ", "sse2", "0"};
    for (size_t i = 0; i < MSGL_COUNT(BAD); i++) {
        msgl_cpu_level level;
        msgl_err err;
        assert_int_equal(msgl__cpu_level_select(BAD[i], &level, &err), MSGL_EINVAL);
        for (int l = 0; l < msgl__cpu_levels(); l++) {
            assert_non_null(strstr(err.text, msgl__cpu_level_name(l)));
        }
    }
}

// Every slot of a family that has nothing but functions, all of which a CPU has.
static void expect_full(const void *family, size_t bytes)
{
    typedef void (*function)(void);
    assert_int_equal(bytes % sizeof(function), 0);
    for (size_t at = 0; at < bytes; at += sizeof(function)) {
        function f;
        memcpy(&f, (const char *)family + at, sizeof f);
        if (f == NULL) fail_msg("slot %zu of %zu is empty", at / sizeof f, bytes / sizeof f);
    }
}

static void tables_are_complete_at_every_level(void **state)
{
    (void)state;
    for (int l = 0; l <= msgl__cpu_level_detect(); l++) {
        msgl_kernels k;
        memset(&k, 0, sizeof k); // what nobody sets is found
        msgl__kernels_init_cpu(&k, l);
        assert_int_equal(k.level, l);
        assert_string_equal(k.gemm.name, msgl__cpu_level_name(l));
        // gemm.h: embed, linear_rope and tune may be missing.
        for (int f = 0; f < MSGL_W_CODES; f++) {
            assert_int_equal(k.gemm.formats[f].id, f);
            assert_non_null(k.gemm.formats[f].name);
            assert_non_null(k.gemm.formats[f].packed_size);
            assert_non_null(k.gemm.formats[f].pack);
            assert_non_null(k.gemm.formats[f].gather);
        }
        assert_non_null(k.gemm.linear);
        assert_non_null(k.gemm.grouped);
        assert_non_null(k.gemm.heads);
        assert_non_null(k.gemm.linear_scratch);
        assert_non_null(k.gemm.grouped_scratch);
        assert_non_null(k.gemm.heads_scratch);
        assert_true(k.gemm.block_rows > 0);
        assert_string_equal(k.attn.name, msgl__cpu_level_name(l));
        for (int d = 0; d < MSGL_DTYPE_COUNT; d++) {
            assert_non_null(k.attn.ops[d]);
            assert_non_null(k.attn.latent_ops[d]);
        }
        assert_non_null(k.attn.paged);
        assert_non_null(k.attn.scratch_size);
        expect_full(&k.norm, sizeof k.norm);
        expect_full(&k.rope, sizeof k.rope);
        expect_full(&k.act, sizeof k.act);
        // ops.h: choose and experts may be missing.
        expect_full(&k.moe, offsetof(msgl_moe_kernels, choose));
        // ops.h: draw and pick may be missing.
        assert_non_null(k.sample.sample);
        assert_non_null(k.sample.logprobs);
        assert_non_null(k.sample.scratch_size);
        expect_full(&k.delta, sizeof k.delta);
        expect_full(&k.conv, sizeof k.conv);
        expect_full(&k.ssm, offsetof(msgl_ssm_kernels, max_state_dim)); // 0: no limit
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_means_detected),
        cmocka_unit_test(every_name_selects_or_says_what_is_there),
        cmocka_unit_test(unknown_names_list_the_known),
        cmocka_unit_test(tables_are_complete_at_every_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
