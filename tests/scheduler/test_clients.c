// SPDX-License-Identifier: Apache-2.0
//
// What one client may take of rows, pages and steps while another one waits, and that it may take
// all of them while nobody does.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "harness.h"

enum { ROWS = 8, CHUNK = 32 };

static void open_scheduler(harness *h, int32_t pages, bool overlap)
{
    harness_init(h, (harness_options){.max_running = ROWS,
                                      .max_seq_len = 512,
                                      .max_prefill_tokens = CHUNK,
                                      .num_pages = pages,
                                      .page_size = 1,
                                      .vocab_size = 16,
                                      .cache_type = MSGL_CACHE_RADIX,
                                      .overlap = overlap,
                                      .prefill_first = true});
}

static void add(harness *h, uint64_t client, uint64_t uid, int32_t prompt, int32_t answer)
{
    h->client = client;
    harness_add_simple(h, uid, prompt, answer, uid + 1);
}

static void steps(harness *h, int n)
{
    while (n-- > 0) harness_step(h);
}

static int steps_until_token(harness *h, uint64_t uid)
{
    int n = 0;
    for (; h->records[uid].num_tokens == 0; n++) {
        assert_true(n < 1000);
        harness_step(h);
    }
    return n;
}

// Of uids [from, to): how many have not ended and have got a token within the last few steps.
static int running(harness *h, uint64_t from, uint64_t to)
{
    int32_t before[HARNESS_REQUESTS];
    for (uint64_t i = from; i < to; i++) before[i] = h->records[i].num_tokens;
    steps(h, 3);
    int n = 0;
    for (uint64_t i = from; i < to; i++) n += h->records[i].num_tokens > before[i];
    return n;
}

static void end(harness *h, uint64_t from, uint64_t to)
{
    harness_run(h, 20000);
    for (uint64_t i = from; i < to; i++) harness_expect(h, i);
    harness_free(h);
}

// All rows are one client's, and a long queue: another one's first token comes within the steps in
// flight, the one that makes room and its own. What gave way goes on where it was.
static void test_newcomer(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        harness h;
        open_scheduler(&h, 4000, overlap);
        for (uint64_t i = 0; i < 40; i++) add(&h, 1, i, 4, 100);
        steps(&h, 10);
        assert_int_equal(running(&h, 0, 40), ROWS); // alone it has all of them
        assert_int_equal(harness_stats(&h).requests_retracted, 0);
        add(&h, 2, 100, 4, 1);
        assert_true(steps_until_token(&h, 100) <= 5);
        assert_int_equal(harness_stats(&h).requests_retracted, 1);
        add(&h, 1, 101, 4, 1); // the first one's waits behind its own
        assert_true(steps_until_token(&h, 101) > 90);
        end(&h, 0, 40);
    }
}

// Two who want everything have half each, whoever came first, and keep it.
static void test_halves(void **state)
{
    (void)state;
    harness h;
    open_scheduler(&h, 4000, true);
    for (uint64_t i = 0; i < 40; i++) add(&h, 1, i, 4, 100);
    steps(&h, 10);
    for (uint64_t i = 40; i < 80; i++) add(&h, 2, i, 4, 100);
    steps(&h, 20);
    assert_int_equal(running(&h, 0, 40), ROWS / 2);
    assert_int_equal(running(&h, 40, 80), ROWS / 2);
    steps(&h, 1000);
    assert_true(harness_stats(&h).requests_retracted <= ROWS / 2);
    end(&h, 0, 80);
}

// More clients than rows: nobody has more than one, so nobody gives way.
static void test_many(void **state)
{
    (void)state;
    harness h;
    open_scheduler(&h, 4000, true);
    for (uint64_t i = 0; i < 3 * ROWS; i++) add(&h, i, i, 4, 30);
    harness_run(&h, 20000);
    assert_int_equal(harness_stats(&h).requests_retracted, 0);
    end(&h, 0, 3 * ROWS);
}

// Rows are free, but no pages.
static void test_pages(void **state)
{
    (void)state;
    harness h;
    open_scheduler(&h, 600, true);
    for (uint64_t i = 0; i < 20; i++) add(&h, 1, i, 30, 400);
    steps(&h, 100);
    const int before = running(&h, 0, 20);
    assert_true(before >= 2 && before < ROWS);
    add(&h, 2, 100, 40, 2);
    assert_true(steps_until_token(&h, 100) <= 20);
    // One that wants more than the other would keep waits its time.
    add(&h, 2, 101, 500, 2);
    assert_true(steps_until_token(&h, 101) > 20);
    end(&h, 0, 20);
}

// A prompt of many steps lets another client's prompt pass, and is not kept from its own end by
// very many of them.
static void test_chunks(void **state)
{
    (void)state;
    harness h;
    open_scheduler(&h, 4000, true);
    add(&h, 1, 0, 12 * CHUNK, 1);
    steps(&h, 2);
    add(&h, 2, 1, CHUNK / 2, 1);
    assert_true(steps_until_token(&h, 1) <= 3);
    assert_int_equal(h.records[0].num_tokens, 0);
    for (uint64_t i = 2; i < 60; i++) add(&h, 2, i, CHUNK, 1);
    assert_true(steps_until_token(&h, 0) <= 30); // every second step is its
    // Two long ones go on in turns.
    add(&h, 1, 60, 8 * CHUNK, 1);
    steps(&h, 1);
    add(&h, 3, 61, 8 * CHUNK, 1);
    harness_run(&h, 20000);
    end(&h, 0, 62);
}

// The head of the queue waits for pages; a new client's request, for which there are enough, does
// not wait with it. Pages of one token: client 1's first request is promised 100 + 32 - 1 of the
// 200, its second lacks as many, and the newcomer needs 4.
static void test_newcomer_beside_stuck_head(void **state)
{
    (void)state;
    harness h;
    open_scheduler(&h, 200, false);
    add(&h, 1, 0, 100, 90);
    add(&h, 1, 1, 100, 90);
    steps(&h, 10);
    assert_int_equal(harness_stats(&h).waiting, 1);
    add(&h, 2, 2, 4, 1);
    assert_true(steps_until_token(&h, 2) <= 2);
    assert_int_equal(h.records[0].ends, 0);
    assert_int_equal(harness_stats(&h).requests_retracted, 0);
    end(&h, 0, 3);
}

// When pages run out, a client with several requests gives way, not the one whose only request has
// most pages. Each is promised its prompt and an answer of 128 or less, so that all three begin in
// 420 pages: 150 + 127, 20 + 32 - 1 twice. In the end they would need 349, 219 and 219.
static void test_only_request_stays(void **state)
{
    (void)state;
    harness h;
    open_scheduler(&h, 420, false);
    for (uint64_t i = 0; i < 100; i++) { // so that little is promised
        add(&h, 1, 10, 2, 1);
        harness_run(&h, 20);
    }
    add(&h, 1, 0, 150, 200);
    add(&h, 2, 1, 20, 200);
    add(&h, 2, 2, 20, 200);
    (void)steps_until_token(&h, 0);
    steps(&h, 5);
    assert_int_equal(harness_stats(&h).running, 3);
    int still = 0;
    while (h.records[0].ends == 0) {
        const int32_t before = h.records[0].num_tokens;
        harness_step(&h);
        still = h.records[0].num_tokens > before ? 0 : still + 1;
        assert_true(still <= 10); // prompts of the others come first
    }
    assert_true(harness_stats(&h).requests_retracted > 0);
    end(&h, 0, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_request_stays),
        cmocka_unit_test(test_newcomer_beside_stuck_head),
        cmocka_unit_test(test_newcomer),
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
