// SPDX-License-Identifier: Apache-2.0
//
// core: conversions against all 65,536 half patterns, checked arithmetic, failing allocations,
// errors.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/dtype.h"
#include "core/err.h"
#include "core/mem.h"
#include "core/round.h"
#include "core/req_extra.h"
#include "core/sampling_params.h"
#include "core/seqs.h"

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

// Sign, five bits of exponent, ten of mantissa; the same steps of 2^-24 below and above 2^-14.
static void test_f16(void **state)
{
    (void)state;
    for (int h = 0; h < 65536; h++) {
        const float got = msgl__f16_to_f32((uint16_t)h);
        assert_int_equal(signbit(got) != 0, h >= 0x8000);
        const int steps = h % 0x8000, exponent = steps / 1024;
        if (exponent == 31) {
            assert_true(steps % 1024 == 0 ? isinf(got) : isnan(got));
            continue;
        }
        const double want =
            exponent == 0 ? steps * 0x1p-24 : pow(2, exponent - 15) * (1 + steps % 1024 / 1024.0);
        assert_true(fabs((double)got) == want);
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

// Sign, four bits of exponent, three of mantissa; the same steps of 2^-9 below and above 2^-6.
static void test_e4m3(void **state)
{
    (void)state;
    for (int b = 0; b < 256; b++) {
        const float got = msgl__e4m3_to_f32((uint8_t)b);
        assert_int_equal(signbit(got) != 0, b >= 128);
        if (b % 128 == 127) {
            assert_true(isnan(got));
            continue;
        }
        const int steps = b % 128, exponent = steps / 8;
        const double want =
            exponent == 0 ? steps / 512.0 : pow(2, exponent - 7) * (1 + steps % 8 / 8.0);
        assert_true(fabs((double)got) == want);
    }
    assert_true(msgl__e4m3_to_f32(0x7e) == 448 && msgl__e4m3_to_f32(0x81) == -0x1p-9f);
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
    // What is quoted makes no second line.
    assert_int_equal(msgl__err_set(&err, MSGL_EFORMAT, "\"%s\"", "a\n\033[2J\x7f"), MSGL_EFORMAT);
    assert_string_equal(err.text, "\"a  [2J \"");
    assert_int_equal(msgl__err_prefix(&err, MSGL_EFORMAT, "%s", "b\r"), MSGL_EFORMAT);
    assert_string_equal(err.text, "b : \"a  [2J \"");
    assert_string_equal(msgl__status_text(MSGL_ENOMEM), "out of memory");
    assert_string_equal(msgl__status_text(17), "unknown status");
}

static void expect_bias(const msgl_bias *bias, int64_t n, const char *text)
{
    msgl_err err;
    msgl_req_extra *x;
    const uint64_t allocs = msgl__mem_allocs();
    assert_int_equal(msgl__req_extra_create(bias, n, 100, &x, &err), MSGL_EINVAL);
    assert_string_equal(err.text, text);
    assert_null(x);
    assert_int_equal(msgl__mem_allocs() - allocs, bias != NULL); // a block for its pairs, if any
}

static void test_req_extra(void **state)
{
    (void)state;
    const msgl_bias good[] = {{99, -100}, {0, 100}, {7, -0.0f}};
    msgl_req_extra *x;
    assert_int_equal(msgl__req_extra_create(good, 0, 100, &x, NULL), 0);
    assert_null(x);
    msgl__req_extra_unref(x);
    assert_null(msgl__req_extra_ref(x));
    assert_int_equal(msgl__req_extra_bytes(x), 0);
    assert_int_equal(msgl__req_extra_check(x, 1, NULL), 0);
    assert_int_equal(msgl__req_extra_create(good, 3, 100, &x, NULL), 0);
    assert_int_equal(x->num_bias, 3);
    assert_true(x->bias[0].token == 0 && x->bias[1].token == 7 && x->bias[2].token == 99);
    assert_true(x->bias[0].value == 100 && x->bias[2].value == -100);
    assert_true(msgl__req_extra_bytes(x) >= sizeof good);
    assert_int_equal(msgl__req_extra_check(x, 100, NULL), 0);
    msgl_err err;
    assert_int_equal(msgl__req_extra_check(x, 99, &err), MSGL_EINVAL);
    assert_string_equal(err.text, "logit_bias names token 99; allowed: 0 to 98");
    assert_ptr_equal(msgl__req_extra_ref(x), x);
    msgl__req_extra_unref(x);
    assert_int_equal(x->num_bias, 3); // one reference is left
    msgl__req_extra_unref(x);

    expect_bias(&(msgl_bias){-1, 1}, 1, "logit_bias names token -1; allowed: 0 to 99");
    expect_bias(&(msgl_bias){100, 1}, 1, "logit_bias names token 100; allowed: 0 to 99");
    expect_bias(&(msgl_bias){5, 100.5f}, 1, "logit_bias of token 5 is 100.5; allowed: -100 to 100");
    expect_bias(&(msgl_bias){5, NAN}, 1, "logit_bias of token 5 is nan; allowed: -100 to 100");
    expect_bias(&(msgl_bias){5, -INFINITY}, 1,
                "logit_bias of token 5 is -inf; allowed: -100 to 100");
    expect_bias((const msgl_bias[]){{5, 1}, {6, 1}, {5, 2}}, 3,
                "logit_bias names token 5 twice; allowed: once");
    // A count that is too large is not believed: nothing is read or taken for it.
    expect_bias(NULL, MSGL_MAX_LOGIT_BIAS + 1,
                "logit_bias has 1025 entries; allowed: at most 1024");
    expect_bias(NULL, INT64_MAX,
                "logit_bias has 9223372036854775807 entries; allowed: at most 1024");
    expect_bias(NULL, -1, "logit_bias has -1 entries; allowed: at most 1024");
    msgl__mem_fail_from(1);
    assert_int_equal(msgl__req_extra_create(good, 3, 100, &x, &err), MSGL_ENOMEM);
    msgl__mem_fail_from(0);
}

static void test_penalty_ranges(void **state)
{
    (void)state;
    const struct {
        float repetition, frequency, presence;
        const char *text; // NULL: allowed
    } cases[] = {
        {1, 0, 0, NULL},
        {0.01f, -2, -2, NULL},
        {100, 2, 2, NULL},
        {0, 0, 0, "repetition_penalty is \"0\"; allowed: a number from 0.01 to 100"},
        {-1, 0, 0, "repetition_penalty is \"-1\"; allowed: a number from 0.01 to 100"},
        {NAN, 0, 0, "repetition_penalty is \"nan\"; allowed: a number from 0.01 to 100"},
        {INFINITY, 0, 0, "repetition_penalty is \"inf\"; allowed: a number from 0.01 to 100"},
        {1, 2.5f, 0, "frequency_penalty is \"2.5\"; allowed: a number from -2 to 2"},
        {1, NAN, 0, "frequency_penalty is \"nan\"; allowed: a number from -2 to 2"},
        {1, 0, -2.5f, "presence_penalty is \"-2.5\"; allowed: a number from -2 to 2"},
        {1, 0, NAN, "presence_penalty is \"nan\"; allowed: a number from -2 to 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        msgl_sampling_params p = msgl__sampling_params_default();
        p.repetition_penalty = cases[i].repetition;
        p.frequency_penalty = cases[i].frequency;
        p.presence_penalty = cases[i].presence;
        msgl_err err;
        const int rc = msgl__sampling_params_check(&p, 100, &err);
        assert_int_equal(rc, cases[i].text == NULL ? 0 : MSGL_EINVAL);
        if (rc != 0) assert_string_equal(err.text, cases[i].text);
    }
}

// lens: new tokens, keys and table row of each request.
static void expect_seqs(const msgl_seqs *s, msgl_phase phase, const int32_t *lens, int32_t size)
{
    int32_t row = 0, max_q = 1, max_k = 1;
    assert_int_equal(s->phase, phase);
    assert_int_equal(s->size, size);
    for (int32_t i = 0; i < size; i++) {
        const int32_t *want = &lens[3 * i];
        assert_int_equal(s->cu_seqlens_q[i], row);
        assert_int_equal(s->seqlens_k[i], want[1]);
        assert_int_equal(s->table_rows[i], want[2]);
        row += want[0];
        if (want[0] > max_q) max_q = want[0];
        if (want[1] > max_k) max_k = want[1];
    }
    assert_int_equal(s->cu_seqlens_q[size], row);
    assert_int_equal(s->num_tokens, row);
    assert_int_equal(s->max_seqlen_q, max_q);
    assert_int_equal(s->max_seqlen_k, max_k);
    assert_int_equal(s->step_slot, 1);
    assert_false(s->graph);
}

static void test_seqs(void **state)
{
    (void)state;
    msgl_batch_req reqs[] = {{.table_idx = 4, .cached_len = 20, .device_len = 21},
                             {.table_idx = 9, .cached_len = 0, .device_len = 10},
                             {.table_idx = 2, .cached_len = 30, .device_len = 37}};
    const msgl_batch b = {
        .size = 3, .num_decode = 1, .num_tokens = 18, .reqs = reqs, .step_slot = 1};
    const int32_t all[] = {1, 21, 4, 10, 10, 9, 7, 37, 2};
    const int32_t padded[] = {1, 21, 4, 1, 1, 77, 1, 1, 77};
    int32_t block[48], device[48];
    msgl_seqs s;
    assert_true(msgl__seqs_bytes(3) <= sizeof block);
    msgl__seqs_fill(&b, 0, 3, 0, 77, 3, block, device, &s);
    expect_seqs(&s, MSGL_PREFILL, all, 3);
    assert_int_equal(s.first_token, 0);
    // The copy has the layout of the host's.
    memcpy(device, block, sizeof block);
    assert_memory_equal(s.dev_cu_seqlens_q, s.cu_seqlens_q, 4 * sizeof(int32_t));
    assert_memory_equal(s.dev_seqlens_k, s.seqlens_k, 3 * sizeof(int32_t));
    assert_memory_equal(s.dev_table_rows, s.table_rows, 3 * sizeof(int32_t));
    msgl__seqs_fill(&b, 1, 3, 0, 77, 3, block, block, &s);
    expect_seqs(&s, MSGL_PREFILL, all + 3, 2);
    assert_int_equal(s.first_token, 1);
    msgl__seqs_fill(&b, 0, 1, 3, 77, 3, block, block, &s);
    expect_seqs(&s, MSGL_DECODE, padded, 3);
}

// Every size fits its block, in which the arrays do not overlap.
static void test_seqs_sizes(void **state)
{
    (void)state;
    enum { MOST = 100 };
    static msgl_batch_req reqs[MOST];
    for (int32_t i = 0; i < MOST; i++) {
        reqs[i] = (msgl_batch_req){.table_idx = 1000 + i, .device_len = 2000 + i};
        reqs[i].cached_len = reqs[i].device_len - 1;
    }
    for (int32_t n = 1; n <= MOST; n++) {
        const msgl_batch b = {.size = n, .num_decode = n, .num_tokens = n, .reqs = reqs};
        const size_t bytes = msgl__seqs_bytes(n);
        assert_int_equal(bytes % 64, 0);
        char *block = malloc(bytes + 1);
        assert_non_null(block);
        block[bytes] = 42;
        msgl_seqs s;
        msgl__seqs_fill(&b, 0, n, 0, 0, n, block, block, &s);
        assert_int_equal(block[bytes], 42);
        for (int32_t i = 0; i < n; i++) {
            assert_int_equal(s.cu_seqlens_q[i], i);
            assert_int_equal(s.seqlens_k[i], 2000 + i);
            assert_int_equal(s.table_rows[i], 1000 + i);
        }
        assert_int_equal(s.cu_seqlens_q[n], n);
        free(block);
    }
}

static void test_rounding(void **state)
{
    (void)state;
    for (size_t n = 0; n < 300; n++) {
        for (size_t to = 1; to <= 64; to *= 2) {
            const size_t up = msgl__round_up(n, to);
            assert_true(up >= n && up < n + to && up % to == 0);
        }
        for (int32_t b = 1; b < 40; b++) {
            const int32_t q = msgl__ceil_div((int32_t)n, b);
            assert_true(q * b >= (int32_t)n && (q - 1) * b < (int32_t)n);
        }
    }
    assert_int_equal(msgl__ceil_div(INT32_MAX, 2), 1 << 30);
    assert_int_equal(msgl__ceil_div(INT32_MAX, INT32_MAX), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_half_round_trip), cmocka_unit_test(test_f16),
        cmocka_unit_test(test_half_rounding),   cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_dtype_names),     cmocka_unit_test(test_sizes_and_failing),
        cmocka_unit_test(test_errors),          cmocka_unit_test(test_req_extra),
        cmocka_unit_test(test_penalty_ranges),  cmocka_unit_test(test_seqs),
        cmocka_unit_test(test_seqs_sizes),      cmocka_unit_test(test_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
