// SPDX-License-Identifier: Apache-2.0
//
// What admission promises: pages for the prompt and an answer of usual length, which answers that
// end and answers that grow teach it; never for max_tokens.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "harness.h"

enum { PROMPT = 10, LONG = 200, ROWS = 64 };

// Pages of one token, so that a request that ends with n tokens needs n - 1 of them.
static void open_scheduler(harness *h, int32_t pages)
{
    harness_init(h, (harness_options){.max_running = ROWS,
                                      .max_seq_len = 256,
                                      .max_prefill_tokens = 4096,
                                      .num_pages = pages,
                                      .page_size = 1,
                                      .vocab_size = 16,
                                      .cache_type = MSGL_CACHE_NAIVE,
                                      .prefill_first = true});
}

// Requests with max_tokens LONG that are running after one step, of as many as there are rows.
static int32_t admitted(harness *h)
{
    for (uint64_t i = 0; i < ROWS; i++) harness_add_simple(h, 200 + i, PROMPT, LONG, i);
    harness_step(h);
    return harness_stats(h).running;
}

static void test_answers_that_ended(void **state)
{
    (void)state;
    enum { PAGES = 640 };
    static const int32_t lengths[] = {1, 60, 120, 180};
    for (int i = 0; i < 4; i++) {
        harness h;
        open_scheduler(&h, PAGES);
        for (uint64_t uid = 0; uid < 100; uid++) {
            harness_add_simple(&h, uid, PROMPT, lengths[i], uid);
            harness_run(&h, 200);
        }
        // At least 32 tokens; the average is 99.8 % there, and rounded down.
        const int32_t least = lengths[i] < 32 ? 32 : lengths[i] - 2;
        const int32_t most = lengths[i] < 32 ? 32 : lengths[i];
        assert_in_range(admitted(&h), PAGES / (PROMPT + most - 1), PAGES / (PROMPT + least - 1));
        harness_free(&h);
    }
}

// Long answers under way raise what is promised to the next request before any of them has ended.
static void test_answers_that_grow(void **state)
{
    (void)state;
    harness h;
    open_scheduler(&h, 5000);
    for (uint64_t uid = 0; uid < 100; uid++) {
        harness_add_simple(&h, uid, PROMPT, 1, uid);
        harness_run(&h, 200);
    }
    const int32_t growing = 30;
    for (uint64_t i = 0; i < (uint64_t)growing; i++)
        harness_add_simple(&h, 100 + i, PROMPT, LONG, i);
    for (int i = 0; i < LONG / 2; i++) harness_step(&h);
    assert_int_equal(harness_stats(&h).running, growing);
    assert_int_equal(harness_stats(&h).requests_done, 100);
    // Some 900 pages are left: 9 of PROMPT + 90, where PROMPT + 32 would be 21.
    assert_in_range(admitted(&h) - growing, 5, 12);
    harness_free(&h);
}

static void open_windows(harness *h, int32_t window, int32_t pages)
{
    harness_init(h, (harness_options){.max_running = ROWS,
                                      .max_seq_len = 256,
                                      .max_prefill_tokens = 128,
                                      .num_pages = 5000,
                                      .page_size = 1,
                                      .window = window,
                                      .window_pages = pages,
                                      .vocab_size = 16,
                                      .cache_type = MSGL_CACHE_NAIVE,
                                      .prefill_first = true});
}

// The most requests that run at once until all have ended, of which none is sent back.
static int32_t most_running(harness *h, int32_t requests)
{
    int32_t most = 0;
    while (msgl__scheduler_has_work(h->s)) {
        harness_step(h);
        if (harness_stats(h).running > most) most = harness_stats(h).running;
    }
    assert_int_equal(harness_stats(h).requests_retracted, 0);
    assert_int_equal(harness_stats(h).requests_done, requests);
    return most;
}

// A window of 40 tokens in a pool of 200: a prompt of 100 needs room for all of it, an answer
// for 42. Two prompts have room at first; the third request gets in as soon as the others' prompts
// are computed, since 42 + 42 + 100 is 184. A fourth would need 226.
static void test_windows(void **state)
{
    (void)state;
    harness h;
    open_windows(&h, 40, 200);
    for (uint64_t i = 0; i < 10; i++) harness_add_simple(&h, i, 100, 30, i);
    harness_step(&h);
    assert_int_equal(harness_stats(&h).running, 2);
    assert_int_equal(most_running(&h, 10), 3);
    harness_free(&h);
}

// Prompts as long as the window: 40 tokens have 40 pages, and 42 are enough for any answer. In a
// pool of 3 * 42 three run at once, where a chunk of 40 behind a whole window would have 81.
static void test_prompts_of_a_window(void **state)
{
    (void)state;
    harness h;
    open_windows(&h, 40, 3 * 42);
    for (uint64_t i = 0; i < 10; i++) harness_add_simple(&h, i, 40, 100, i);
    harness_step(&h);
    assert_int_equal(harness_stats(&h).running, 3);
    assert_int_equal(most_running(&h, 10), 3);
    harness_free(&h);
}

// Requests that fail say nothing of how long answers are: 200 of them behind answers of 60 tokens
// leave the promise as it was, where 200 answers of one token would bring it down to 32.
static void test_failures(void **state)
{
    (void)state;
    enum { PAGES = 640, USUAL = 60 };
    harness h;
    open_scheduler(&h, PAGES);
    for (uint64_t uid = 0; uid < 100; uid++) {
        harness_add_simple(&h, uid, PROMPT, USUAL, uid);
        harness_run(&h, 200);
    }
    h.fake.nan_uid = 150;
    for (uint64_t i = 0; i < 200; i++) {
        harness_add_simple(&h, 150, PROMPT, LONG, i);
        harness_run(&h, 200);
        assert_int_equal(h.records[150].status, MSGL_ENUMERIC);
    }
    h.fake.nan_uid = UINT64_MAX;
    // 640 / (10 + 60 - 1) is 9, and 640 / (10 + 32 - 1) would be 15.
    assert_int_equal(admitted(&h), PAGES / (PROMPT + USUAL - 1));
    harness_free(&h);
}

// What those that run will still need of a window counts. A window of 40 in a pool of 100: a prompt
// of 5 has 5 pages of it, and with the answer of 32 that it is promised it will have 36. Two fit;
// a third would lack 36 beside the 2 * 31 that they lack, where 90 are free.
static void test_windows_to_come(void **state)
{
    (void)state;
    harness h;
    open_windows(&h, 40, 100);
    for (uint64_t i = 0; i < 10; i++) harness_add_simple(&h, i, 5, 100, i);
    harness_step(&h);
    assert_int_equal(harness_stats(&h).running, 2);
    harness_run(&h, 2000);
    assert_int_equal(harness_stats(&h).requests_retracted, 0);
    assert_int_equal(harness_stats(&h).requests_done, 10);
    harness_free(&h);
}

// What the plan leaves a window beside one request alone (window_span of engine/plan.c) lets a
// prompt of whole chunks begin while others answer. A window of 8 and chunks of 128: with the pages
// of one alone it waits for the only answer, with a quarter of a chunk more for none of three.
static void test_chunk_beside_answers(void **state)
{
    (void)state;
    enum { CHUNK = 128, ANSWERS = 3 };
    const int32_t alone = msgl__window_pages_most(8, CHUNK, 1);
    for (int32_t more = 0; more <= CHUNK / 4; more += CHUNK / 4) {
        const uint64_t answers = more > 0 ? ANSWERS : 1;
        harness h;
        open_windows(&h, 8, alone + more);
        for (uint64_t i = 0; i < answers; i++) harness_add_simple(&h, i, 5, 100, i);
        for (int i = 0; i < 5; i++) harness_step(&h);
        assert_int_equal(harness_stats(&h).running, answers);
        harness_add_simple(&h, answers, 2 * CHUNK - 60, 10, answers);
        for (int i = 0; i < 5; i++) harness_step(&h);
        assert_int_equal(harness_stats(&h).running, answers + (more > 0));
        harness_run(&h, 2000);
        assert_int_equal(harness_stats(&h).requests_retracted, 0);
        assert_int_equal(harness_stats(&h).requests_done, answers + 1);
        harness_free(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows_to_come),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_answers_that_ended),
        cmocka_unit_test(test_answers_that_grow),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_prompts_of_a_window),
        cmocka_unit_test(test_chunk_beside_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
