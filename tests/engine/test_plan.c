// SPDX-License-Identifier: Apache-2.0
//
// The division of memory, to the byte: what it adds up to, that one page more would not fit, and
// what it says when something does not.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/req_extra.h"
#include "engine/plan.h"

static const size_t MIB = 1 << 20;

static msgl_memory_plan wanted(void)
{
    return (msgl_memory_plan){.available = 1000 * MIB,
                              .weight_bytes = 300 * MIB,
                              .step_bytes = 50 * MIB,
                              .staging_bytes = 7 * MIB,
                              .kv = {.spec = {.kind = MSGL_CACHE_KV,
                                              .num_layers = 6,
                                              .window = -1,
                                              .num_heads = 4,
                                              .k_dim = 64,
                                              .v_dim = 64,
                                              .dtype = MSGL_BF16},
                                     .page_size = 16},
                              .weight_format = "bfloat16",
                              .max_running = 99,
                              .max_step_tokens = 512,
                              .max_seq_len = 1000000,
                              .memory_ratio = 0.5};
}

static size_t pool_of(const msgl_memory_plan *p, int32_t pages)
{
    msgl_kv_pool kv = p->kv;
    kv.num_pages = pages;
    return msgl__kv_pool_bytes(&kv);
}

static void test_adds_up(void **state)
{
    (void)state;
    const int32_t given[] = {0, 1, 700};
    for (int i = 0; i < 3; i++) {
        msgl_memory_plan p = wanted();
        p.kv.num_pages = given[i];
        p.max_seq_len = 2000;
        msgl_err err;
        if (msgl__memory_plan(&p, &err) != 0) fail_msg("%s", err.text);
        assert_int_equal(p.kv_bytes, pool_of(&p, p.kv.num_pages)); // with the dummy page
        // Page table, token pool and the logits before penalties: a row for each request and the
        // dummy one, of max_seq_len (as wanted) and one more, in steps of 32. For each bias a token
        // id, its value and the logit that it changes.
        const size_t row = 3 * 2016 * sizeof(int32_t) + (size_t)MSGL_MAX_LOGIT_BIAS * 12;
        assert_int_equal(p.table_bytes, (99 + 1) * row);
        assert_int_equal(p.weight_bytes + p.step_bytes + p.staging_bytes + p.table_bytes +
                             p.kv_bytes + p.left,
                         p.available);
        if (given[i] > 0) assert_int_equal(p.kv.num_pages, given[i]);
        const int32_t tokens = p.kv.num_pages * p.kv.page_size;
        assert_int_equal(p.max_seq_len, tokens < 2000 ? tokens : 2000);
    }
}

// The pool is what the ratio allows: not a page more, dummy page included, and not a page less.
static void test_ratio(void **state)
{
    (void)state;
    for (int percent = 10; percent <= 100; percent += 15) {
        msgl_memory_plan p = wanted();
        p.memory_ratio = percent / 100.0;
        p.max_running = 1;
        assert_int_equal(msgl__memory_plan(&p, NULL), 0);
        const size_t fixed = p.weight_bytes + p.step_bytes + p.staging_bytes + p.table_bytes;
        const double budget = p.memory_ratio * (double)(p.available - fixed);
        assert_true((double)p.kv_bytes <= budget);
        assert_true((double)pool_of(&p, p.kv.num_pages + 1) > budget);
    }
    msgl_memory_plan p = wanted(); // but no more than all requests can fill
    p.max_running = 3;
    p.max_seq_len = 33;
    assert_int_equal(msgl__memory_plan(&p, NULL), 0);
    assert_int_equal(p.kv.num_pages, 3 * 3); // of 16 tokens
}

static void expect_refused(msgl_memory_plan p, int code, const char *words)
{
    msgl_err err;
    assert_int_equal(msgl__memory_plan(&p, &err), code);
    if (strstr(err.text, words) == NULL) fail_msg("no \"%s\" in \"%s\"", words, err.text);
}

static void test_refusals(void **state)
{
    (void)state;
    msgl_memory_plan p = wanted();
    p.weight_bytes = 1000 * MIB;
    expect_refused(p, MSGL_ENOMEM, "the model is too large for this machine");
    p = wanted();
    p.step_bytes = 900 * MIB;
    expect_refused(p, MSGL_ENOMEM, "a smaller --max-prefill-length or --max-running-requests");
    p = wanted();
    p.max_seq_len = 100;
    p.memory_ratio = 1e-6;
    expect_refused(p, MSGL_ENOMEM, "a larger --memory-ratio may help");
    p = wanted();
    p.max_seq_len = 100;
    p.kv.num_pages = 1 << 20;
    expect_refused(p, MSGL_ENOMEM, "a smaller --num-pages helps");
    p = wanted();
    p.max_seq_len = 100;
    p.kv.num_pages = p.kv.page_size = 1; // nothing could ever be answered
    expect_refused(p, MSGL_EINVAL, "--num-pages 1 holds 1 token (--page-size 1)");
    p = wanted();
    p.max_seq_len = 100;
    p.kv.num_pages = 1; // of 16 tokens
    assert_int_equal(msgl__memory_plan(&p, NULL), 0);
}

// A limit on address space (ulimit -v) is a limit on memory.
static void test_address_space(void **state)
{
    (void)state;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // they reserve terabytes
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct rlimit lim = {400 * MIB, 400 * MIB};
        if (setrlimit(RLIMIT_AS, &lim) != 0) _exit(1);
        const size_t room = msgl__memory_available();
        _exit(room > 0 && room < 400 * MIB ? 0 : 2);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adds_up),
        cmocka_unit_test(test_ratio),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_address_space),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
