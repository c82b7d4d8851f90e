// SPDX-License-Identifier: Apache-2.0
//
// Rotary scaling: closed forms at points where they are known, and how a batch is cut into pieces
// that share frequencies. The full formulas are checked against transformers by the parity test.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "layers/rotary.h"

static const msgl_rope_config BASE = {.dim = 64,
                                      .theta = 10000,
                                      .factor = 4,
                                      .max_position = 32,
                                      .original_max = 32,
                                      .low_freq_factor = 1,
                                      .high_freq_factor = 4,
                                      .beta_fast = 32,
                                      .beta_slow = 1,
                                      .truncate = true};

static void expect_near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-6 * fabs(want))) fail_msg("%.9g, expected %.9g", got, want);
}

static void test_formulas(void **state)
{
    (void)state;
    msgl_rope_config c = BASE;
    float plain[32], f[32];
    c.type = MSGL_ROPE_DEFAULT;
    assert_true(msgl__rope_inv_freq(&c, 0, plain) == 1.0f);
    for (int i = 0; i < 32; i++) expect_near(plain[i], pow(10000, -2.0 * i / 64));
    c.type = MSGL_ROPE_LINEAR;
    msgl__rope_inv_freq(&c, 0, f);
    for (int i = 0; i < 32; i++) expect_near(f[i], plain[i] / 4.0);
    // Llama 3 keeps what turns more than high_freq_factor times in the original context and
    // stretches what turns less than low_freq_factor times.
    c.type = MSGL_ROPE_LLAMA3;
    msgl__rope_inv_freq(&c, 0, f);
    for (int i = 0; i < 32; i++) {
        const double turns = 32 * (double)plain[i] / (2 * M_PI);
        if (turns > 4) expect_near(f[i], plain[i]);
        if (turns < 1) expect_near(f[i], plain[i] / 4.0);
        assert_true(f[i] <= plain[i] && f[i] >= plain[i] / 4.001);
    }
    // YaRN: the fastest pair kept, the slowest stretched, cos and sin scaled by 0.1 ln 4 + 1.
    c.type = MSGL_ROPE_YARN;
    expect_near(msgl__rope_inv_freq(&c, 0, f), 0.1 * log(4) + 1);
    expect_near(f[0], plain[0]);
    expect_near(f[31], plain[31] / 4.0);
    c.attention_factor = 0.5;
    assert_true(msgl__rope_inv_freq(&c, 0, f) == 0.5f);
    // Proportional: the frequencies of a whole head, of the first pairs alone.
    c.type = MSGL_ROPE_PROPORTIONAL;
    c.share = 0.27; // 8.64 of 32 pairs
    assert_true(msgl__rope_inv_freq(&c, 0, f) == 1.0f);
    for (int i = 0; i < 32; i++) expect_near(f[i], i < 8 ? plain[i] / 4.0 : 0);
    // Dynamic: nothing up to the trained length; at n the base grows by (4 n / 32 - 3)^(64 / 62).
    c.type = MSGL_ROPE_DYNAMIC;
    msgl__rope_inv_freq(&c, 32, f);
    assert_memory_equal(f, plain, sizeof f);
    msgl__rope_inv_freq(&c, 64, f);
    const double base = 10000 * pow(4 * 64 / 32.0 - 3, 64.0 / 62);
    for (int i = 0; i < 32; i++) expect_near(f[i], pow(base, -2.0 * i / 64));
}

// The end of YaRN's ramp may be behind the last of dim / 2 pairs, which then are not stretched
// whole: dim * ln(N / 2 pi) / (2 ln theta) is 34.6 for N = 131072, theta = 10000 and dim 64,
// and 65.9, where the bound dim - 1 holds, for 2^30.
static void test_yarn_end(void **state)
{
    (void)state;
    float plain[32], f[32];
    msgl_rope_config c = BASE;
    c.type = MSGL_ROPE_DEFAULT;
    msgl__rope_inv_freq(&c, 0, plain);
    c.type = MSGL_ROPE_YARN;
    c.original_max = 131072;
    msgl__rope_inv_freq(&c, 0, f); // from floor(22.5) to ceil(34.6)
    for (int i = 0; i < 32; i++) {
        const double ramp = i < 22 ? 0 : (i - 22) / 13.0;
        expect_near(f[i], plain[i] * (1 - 0.75 * ramp));
    }
    expect_near(f[31], plain[31] * 0.48076923);
    c.original_max = 1 << 30;
    c.beta_fast = 1e6;
    msgl__rope_inv_freq(&c, 0, f); // from floor(17.9) to 63
    expect_near(f[17], plain[17]);
    expect_near(f[31], plain[31] * (1 - 0.75 * 14 / 46));
}

static void test_segments(void **state)
{
    (void)state;
    const int32_t prompts[] = {10, 32, 100, 100, 20, 33};
    msgl_batch_req reqs[6];
    memset(reqs, 0, sizeof reqs);
    for (int i = 0; i < 6; i++) {
        reqs[i].prompt_len = prompts[i];
        reqs[i].device_len = i + 1;
    }
    const msgl_batch batch = {.size = 6, .num_tokens = 21, .reqs = reqs};
    msgl_rope_config c = BASE;
    float freq[6 * 32], scale = 0;
    msgl_rope_segment s[6];
    assert_int_equal(msgl__rope_max_rows(&c, 6), 1);
    assert_int_equal(msgl__rope_prepare(&c, &batch, freq, s, &scale), 1);
    assert_true(s[0].first == 0 && s[0].count == 21 && s[0].row == 0);
    c.type = MSGL_ROPE_DYNAMIC;
    assert_int_equal(msgl__rope_max_rows(&c, 6), 6);
    assert_int_equal(msgl__rope_prepare(&c, &batch, freq, s, &scale), 4);
    const int32_t want[4][2] = {{0, 3}, {3, 7}, {10, 5}, {15, 6}}; // first token, tokens
    for (int i = 0; i < 4; i++) {
        assert_int_equal(s[i].first, want[i][0]);
        assert_int_equal(s[i].count, want[i][1]);
        float f[32];
        msgl__rope_inv_freq(&c, i == 1 ? 100 : i == 3 ? 33 : 32, f);
        assert_memory_equal(f, freq + s[i].row * 32, sizeof f);
    }
}

// Dual chunk attention scales scores by a prompt's length beyond the original one.
static void test_by_length(void **state)
{
    (void)state;
    msgl_rope_config c = BASE;
    assert_false(msgl__rope_by_length(&c, 1 << 20));
    c.dual = (msgl_dual_chunk){.len = 24, .size = 32, .original = 100};
    assert_false(msgl__rope_by_length(&c, 100));
    assert_true(msgl__rope_by_length(&c, 101));
    c.dual.original = 0;
    assert_false(msgl__rope_by_length(&c, 101));
    c.type = MSGL_ROPE_DYNAMIC;
    assert_true(msgl__rope_by_length(&c, 16));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_yarn_end),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_by_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
