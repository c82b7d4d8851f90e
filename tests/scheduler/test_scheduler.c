// SPDX-License-Identifier: Apache-2.0
//
// The scheduler's behaviour, one property a test, over the fake runner: tokens that only come out
// right if every step read and wrote the right slots.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "harness.h"
#include "scheduler/pace.h"
#include "utils/random.h"

static harness_options defaults(void)
{
    return (harness_options){.max_running = 8,
                             .max_seq_len = 256,
                             .max_prefill_tokens = 64,
                             .num_pages = 256,
                             .page_size = 4,
                             .vocab_size = 16,
                             .cache_type = MSGL_CACHE_RADIX,
                             .overlap = true};
}

static void test_one_request(void **state)
{
    (void)state;
    harness h;
    harness_init(&h, defaults());
    harness_add_simple(&h, 1, 100, 20, 5);
    harness_run(&h, 60);
    harness_expect(&h, 1);
    const msgl_msg_stats st = harness_stats(&h);
    assert_int_equal(st.used_pages, 0);
    assert_int_equal(st.cached_pages, 119 / 4); // prompt + 20 tokens, the last has no K and V
    assert_int_equal(st.requests_done, 1);
    assert_int_equal(st.prompt_tokens, 100);
    assert_int_equal(st.generated_tokens, 20);
    msgl__scheduler_flush(h.s);
    assert_int_equal(harness_stats(&h).free_pages, 256);
    harness_free(&h);
}

// A prompt of n tokens: the first `shared` depend on seed only, the rest on uid too.
static void add_shared(harness *h, uint64_t uid, int32_t shared, int32_t n, int32_t max_tokens)
{
    int32_t ids[HARNESS_LEN];
    uint64_t a = 77, b = 1000 + uid;
    for (int32_t i = 0; i < n; i++) {
        ids[i] = (int32_t)msgl__random_below(i < shared ? &a : &b, (uint64_t)h->cfg.vocab_size);
    }
    msgl_sampling_params p = msgl__sampling_params_default();
    p.max_tokens = max_tokens;
    p.ignore_eos = true;
    harness_add(h, uid, ids, n, &p);
}

static void expect_refused(harness *h, const int32_t *ids, int32_t n, msgl_sampling_params p,
                           int status, const char *text)
{
    harness_add(h, 9, ids, n, &p);
    assert_int_equal(h->records[9].ends, 1);
    assert_int_equal(h->records[9].finish, MSGL_FINISH_ERROR);
    assert_int_equal(h->records[9].status, status);
    assert_string_equal(h->records[9].text, text);
    assert_int_equal(harness_stats(h).waiting, 0);
}

static void test_refused(void **state)
{
    (void)state;
    harness_options o = defaults();
    o.num_pages = 16;
    harness h;
    harness_init(&h, o);
    int32_t ids[300] = {0};
    msgl_sampling_params p = msgl__sampling_params_default();
    expect_refused(&h, ids, 0, p, MSGL_EINVAL, "prompt has 0 tokens; allowed: at least 1");
    expect_refused(&h, ids, 256, p, MSGL_ELIMIT,
                   "prompt has 256 tokens and max_tokens 16; the limit is 256 tokens");
    p.max_tokens = 2;
    expect_refused(&h, ids, 64, p, MSGL_ELIMIT,
                   "prompt has 64 tokens and max_tokens 2; the KV cache holds 64 tokens");
    p.max_tokens = 0;
    expect_refused(&h, ids, 4, p, MSGL_EINVAL, "max_tokens is 0; allowed: 1 or more");
    p.max_tokens = 1;
    ids[3] = 16;
    expect_refused(&h, ids, 5, p, MSGL_EINVAL, "prompt token 3 is 16; allowed: 0 to 15");
    ids[3] = -1;
    expect_refused(&h, ids, 5, p, MSGL_EINVAL, "prompt token 3 is -1; allowed: 0 to 15");
    ids[3] = 0;
    harness_add(&h, 9, ids, 64, &p); // fills the pool to its last slot
    msgl__scheduler_add(h.s,
                        &(msgl_msg_request){.uid = 9, .num_ids = 1, .ids = ids, .sampling = p});
    assert_string_equal(h.records[9].text, "request id 9 is in use");
    h.records[9].ends = 0;
    harness_run(&h, 10);
    harness_expect(&h, 9);
    harness_free(&h);
}

static void test_no_memory_for_a_request(void **state)
{
    (void)state;
    harness h;
    harness_init(&h, defaults());
    msgl__mem_fail_from(1);
    harness_add_simple(&h, 1, 10, 5, 1);
    msgl__mem_fail_from(0);
    assert_int_equal(h.records[1].status, MSGL_ENOMEM);
    harness_add_simple(&h, 1, 10, 5, 1);
    harness_run(&h, 20);
    harness_expect(&h, 1);
    harness_free(&h);
}

static void test_create_fails(void **state)
{
    (void)state;
    harness h;
    harness_init(&h, defaults());
    msgl_scheduler *s;
    msgl_err err;
    for (uint64_t nth = 1;; nth++) {
        msgl__mem_fail_from(nth);
        const int rc =
            msgl__scheduler_create(&h.options, &h.cfg, &h.fake.runner, NULL, NULL, &s, &err);
        msgl__mem_fail_from(0);
        if (rc == 0) break;
        assert_int_equal(rc, MSGL_ENOMEM);
        assert_null(s);
    }
    msgl__scheduler_destroy(s);
    msgl_options more = h.options;
    more.max_running = 9; // the table has 8 rows
    const msgl_runner *runner = &h.fake.runner;
    assert_int_equal(msgl__scheduler_create(&more, &h.cfg, runner, NULL, NULL, &s, &err),
                     MSGL_EINVAL);
    msgl_scheduler_config bad = h.cfg;
    bad.cache.spans[0].num_units = 0;
    assert_int_equal(msgl__scheduler_create(&h.options, &bad, runner, NULL, NULL, &s, &err),
                     MSGL_EINVAL);
    harness_free(&h);
}

static void test_length_limits(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        harness_options o = defaults();
        o.overlap = overlap;
        harness h;
        harness_init(&h, o);
        harness_add_simple(&h, 1, 250, 1000, 1); // cut to the 6 tokens that are left
        harness_add_simple(&h, 2, 255, 1, 2);
        harness_add_simple(&h, 3, 1, 1, 3);
        harness_run(&h, 100);
        assert_int_equal(h.records[1].num_tokens, 6);
        for (uint64_t uid = 1; uid <= 3; uid++) harness_expect(&h, uid);
        harness_free(&h);
    }
}

// The last page of a row may be longer than what is left of the row.
static void test_page_longer_than_row(void **state)
{
    (void)state;
    harness_options o = defaults();
    o.page_size = 64;
    o.max_seq_len = 70;
    o.num_pages = 20;
    harness h;
    harness_init(&h, o);
    for (uint64_t uid = 0; uid < 9; uid++) harness_add_simple(&h, uid, 60, 10, uid);
    harness_run(&h, 100);
    for (uint64_t uid = 0; uid < 9; uid++) harness_expect(&h, uid);
    harness_free(&h);
}

static void test_stop_ids(void **state)
{
    (void)state;
    int32_t cached[30]; // pages: a surplus step of overlap must not change what is kept
    for (int overlap = 0; overlap < 2; overlap++) {
        harness_options o = defaults();
        o.page_size = 1;
        o.max_seq_len = 150;
        o.num_pages = 1000;
        o.overlap = overlap;
        harness h;
        harness_init(&h, o);
        const int32_t ids[] = {1, 2, 3, 4, 5};
        msgl_sampling_params p = msgl__sampling_params_default();
        p.max_tokens = 200;
        int stops = 0;
        for (uint64_t uid = 0; uid < 30; uid++) {
            p.ignore_eos = uid % 3 == 0;
            p.num_stop_ids = (int32_t)(uid % 2);
            p.stop_ids[0] = 5;
            harness_add(&h, uid, ids, 1 + (int32_t)(uid % 5), &p);
            harness_run(&h, 300);
            harness_expect(&h, uid);
            stops += h.records[uid].finish == MSGL_FINISH_STOP;
            const int32_t pages = harness_stats(&h).cached_pages;
            if (overlap) assert_int_equal(pages, cached[uid]);
            cached[uid] = pages;
        }
        assert_true(stops > 10);
        harness_free(&h);
    }
}

// At least one token of the prompt is computed, and what counts as cached is what was shared.
static void test_prefix_reuse(void **state)
{
    (void)state;
    const int32_t sizes[] = {1, 4, 16, 64};
    for (size_t i = 0; i < 4; i++) {
        harness_options o = defaults();
        o.page_size = sizes[i];
        harness h;
        harness_init(&h, o);
        harness_add_simple(&h, 1, 129, 8, 1);
        harness_run(&h, 60);
        assert_int_equal(h.records[1].cached, 0);
        harness_add_simple(&h, 2, 129, 8, 1);
        harness_run(&h, 60);
        assert_int_equal(h.records[2].cached, 128);
        harness_add_simple(&h, 3, 128, 8, 1); // the last page would leave nothing to compute
        harness_run(&h, 60);
        assert_int_equal(h.records[3].cached, 127 / sizes[i] * sizes[i]);
        // The next turn of the first conversation finds prompt and answer.
        int32_t ids[HARNESS_LEN];
        memcpy(ids, h.records[1].prompt, 129 * sizeof *ids);
        memcpy(ids + 129, h.records[1].tokens, 8 * sizeof *ids);
        ids[137] = ids[138] = 3;
        harness_add(&h, 4, ids, 139, &h.records[1].sampling);
        harness_run(&h, 60);
        assert_int_equal(h.records[4].cached, 136 / sizes[i] * sizes[i]);
        for (uint64_t uid = 1; uid <= 4; uid++) harness_expect(&h, uid);
        harness_free(&h);
    }
}

// Nothing is kept where that is asked for, nor where requests must not share.
static void test_nothing_shared(void **state)
{
    (void)state;
    for (int must_not = 0; must_not < 2; must_not++) {
        harness_options o = defaults();
        o.cache_type = must_not ? MSGL_CACHE_RADIX : MSGL_CACHE_NAIVE;
        o.no_prefix_sharing = must_not;
        harness h;
        harness_init(&h, o);
        for (uint64_t uid = 1; uid < 3; uid++) {
            add_shared(&h, uid, 100, 128, 8);
            harness_run(&h, 60);
            harness_expect(&h, uid); // cached 0
            assert_int_equal(harness_stats(&h).cached_pages, 0);
        }
        harness_free(&h);
    }
}

// Requests that arrive together compute what they share once.
static void test_shared_while_computed(void **state)
{
    (void)state;
    harness_options o = defaults();
    o.max_prefill_tokens = 512;
    harness h;
    harness_init(&h, o);
    for (uint64_t uid = 0; uid < 6; uid++) add_shared(&h, uid, 160, 170, 4);
    harness_run(&h, 100);
    for (uint64_t uid = 0; uid < 6; uid++) harness_expect(&h, uid);
    assert_int_equal(h.fake.prefill_tokens, 170 + 5 * 10);
    harness_free(&h);
}

static void test_prompt_logprobs(void **state)
{
    (void)state;
    harness h;
    harness_init(&h, defaults());
    int32_t ids[150];
    for (int i = 0; i < 150; i++) ids[i] = i % 7;
    msgl_sampling_params p = msgl__sampling_params_default();
    p.logprobs = 0;
    harness_add(&h, 1, ids, 150, &p);
    harness_run(&h, 60);
    p.prompt_logprobs = 5;
    harness_add(&h, 2, ids, 150, &p); // 150 tokens in chunks of 64, nothing from the cache
    harness_run(&h, 60);
    harness_add(&h, 3, ids, 1, &p); // no prompt token to report
    harness_run(&h, 60);
    p.logprobs = -1;
    harness_add(&h, 4, ids, 65, &p);
    harness_run(&h, 60);
    for (uint64_t uid = 1; uid <= 4; uid++) harness_expect(&h, uid);
    harness_free(&h);
}

// Aborted after `steps` steps: ends at once, holds nothing one step later, and its neighbours'
// tokens do not change.
static void test_abort_in_every_phase(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        for (int steps = 0; steps < 14; steps++) {
            harness_options o = defaults();
            o.overlap = overlap;
            o.cache_type = steps % 2 ? MSGL_CACHE_NAIVE : MSGL_CACHE_RADIX;
            harness h;
            harness_init(&h, o);
            harness_add_simple(&h, 1, 30, 40, 1);
            harness_add_simple(&h, 2, 200, 20, 2); // chunks, then decodes
            for (int i = 0; i < steps; i++) harness_step(&h);
            const msgl_msg_stats before = harness_stats(&h);
            assert_int_equal(before.running + before.waiting, 2);
            msgl__scheduler_abort(h.s, 2);
            msgl__scheduler_abort(h.s, 2);   // again: unknown
            msgl__scheduler_abort(h.s, 999); // unknown
            harness_check(&h);
            assert_int_equal(h.records[2].ends, 1);
            assert_int_equal(h.records[2].finish, MSGL_FINISH_ABORT);
            const int32_t tokens = h.records[2].num_tokens;
            harness_step(&h);
            assert_int_equal(harness_stats(&h).running, 1);
            assert_int_equal(harness_stats(&h).requests_aborted, 1);
            harness_add_simple(&h, 3, 50, 10, 3);
            harness_run(&h, 200);
            harness_expect(&h, 1);
            harness_expect(&h, 3);
            assert_int_equal(h.records[2].num_tokens, tokens);
            msgl__scheduler_flush(h.s);
            assert_int_equal(harness_stats(&h).free_pages, o.num_pages);
            harness_free(&h);
        }
    }
}

static void test_uid_again_after_abort(void **state)
{
    (void)state;
    harness h;
    harness_init(&h, defaults());
    harness_add_simple(&h, 1, 100, 20, 1);
    for (int i = 0; i < 4; i++) harness_step(&h);
    msgl__scheduler_abort(h.s, 1); // a step with it is in flight
    harness_add_simple(&h, 1, 90, 10, 2);
    harness_run(&h, 100);
    harness_expect(&h, 1);
    harness_free(&h);
}

static void test_abort_in_callback(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        harness_options o = defaults();
        o.overlap = overlap;
        harness h;
        harness_init(&h, o);
        harness_add_simple(&h, 1, 20, 30, 1);
        harness_add_simple(&h, 2, 20, 30, 2);
        h.abort_in_callback = 1;
        harness_run(&h, 100);
        assert_int_equal(h.records[1].finish, MSGL_FINISH_ABORT);
        assert_int_equal(h.records[1].num_tokens, 1);
        harness_expect(&h, 2);
        harness_free(&h);
    }
}

static void test_nan_ends_one_request(void **state)
{
    (void)state;
    for (int32_t from = 1; from < 110; from += 27) {
        harness h;
        harness_init(&h, defaults());
        h.fake.nan_uid = 2;
        h.fake.nan_from = from;
        for (uint64_t uid = 1; uid <= 3; uid++) harness_add_simple(&h, uid, 100, 20, uid);
        harness_run(&h, 100);
        harness_expect(&h, 1);
        harness_expect(&h, 3);
        assert_int_equal(h.records[2].ends, 1);
        assert_int_equal(h.records[2].status, MSGL_ENUMERIC);
        assert_string_equal(h.records[2].text, "logits are NaN");
        assert_int_equal(h.records[2].num_tokens, from <= 100 ? 0 : from - 100);
        assert_int_equal(harness_stats(&h).used_pages, 0);
        // Nobody knows which K and V are wrong: the same prompt finds none of them.
        harness_add_simple(&h, 4, 100, 20, 2);
        harness_add_simple(&h, 5, 100, 20, 3); // that of a request that ended well is found
        harness_run(&h, 100);
        assert_int_equal(h.records[4].cached, 0);
        assert_int_equal(h.records[5].cached, 99 / 4 * 4);
        harness_expect(&h, 4);
        harness_expect(&h, 5);
        harness_free(&h);
    }
}

static void test_engine_failure(void **state)
{
    (void)state;
    for (int what = 0; what < 3; what++) {
        for (int at = 1; at < (what == 2 ? 3 : 9); at++) {
            for (int overlap = 0; overlap < 2; overlap++) {
                harness_options o = defaults();
                o.overlap = overlap;
                o.max_running = 2;
                harness h;
                harness_init(&h, o);
                *(what == 0   ? &h.fake.fail_submit_at
                  : what == 1 ? &h.fake.fail_wait_at
                              : &h.fake.fail_write_at) = at;
                const int code = what == 2 ? MSGL_EIO : MSGL_EINTERNAL;
                for (uint64_t uid = 0; uid < 4; uid++) harness_add_simple(&h, uid, 100, 20, uid);
                if (at == 4) msgl__scheduler_abort(h.s, 1);
                int rc = 0;
                for (int i = 0; i < 20 && rc == 0; i++) {
                    rc = msgl__scheduler_step(h.s);
                    harness_check(&h);
                }
                assert_int_equal(rc, code);
                for (uint64_t uid = 0; uid < 4; uid++) {
                    assert_int_equal(h.records[uid].ends, 1);
                    if (at == 4 && uid == 1) continue;
                    assert_int_equal(h.records[uid].finish, MSGL_FINISH_ERROR);
                    assert_int_equal(h.records[uid].status, code);
                }
                assert_false(msgl__scheduler_has_work(h.s));
                assert_int_equal(msgl__scheduler_step(h.s), code);
                harness_add_simple(&h, 7, 10, 2, 7);
                assert_int_equal(h.records[7].status, code);
                harness_free(&h);
            }
        }
    }
}

// A request that needs the whole pool waits for it behind small ones, holds up the small ones
// behind it, and all of them end; one page more is refused (test_refused).
static void test_big_head_is_not_starved(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        harness_options o = defaults();
        o.num_pages = 60;
        o.overlap = overlap;
        harness h;
        harness_init(&h, o);
        uint64_t uid = 0;
        for (; uid < 20; uid++) harness_add_simple(&h, uid, 20, 30, uid);
        const uint64_t big = uid++;
        harness_add_simple(&h, big, 230, 11, 99);
        int32_t steps = 0;
        while (h.records[big].ends == 0) {
            if (uid < 400) { // small ones keep coming
                harness_add_simple(&h, uid, 20, 30, uid);
                uid++;
            }
            harness_step(&h);
            assert_true(++steps < 1000);
        }
        for (uint64_t i = 0; i < big; i++) assert_int_equal(h.records[i].ends, 1);
        harness_run(&h, 10000);
        for (uint64_t i = 0; i < uid; i++) harness_expect(&h, i);
        harness_free(&h);
    }
}

static void test_aborted_head_makes_way(void **state)
{
    (void)state;
    harness_options o = defaults();
    o.num_pages = 60;
    harness h;
    harness_init(&h, o);
    harness_add_simple(&h, 1, 100, 100, 1);
    for (int i = 0; i < 3; i++) harness_step(&h);
    harness_add_simple(&h, 2, 200, 40, 2); // has to wait for 1
    harness_add_simple(&h, 3, 10, 4, 3);
    for (int i = 0; i < 3; i++) harness_step(&h);
    assert_int_equal(harness_stats(&h).waiting, 2);
    msgl__scheduler_abort(h.s, 2);
    for (int i = 0; i < 9; i++) harness_step(&h);
    harness_expect(&h, 3);
    harness_run(&h, 200);
    harness_expect(&h, 1);
    harness_free(&h);
}

static void test_no_heap_per_decode_step(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        harness_options o = defaults();
        o.num_pages = 300;
        o.overlap = overlap;
        harness h;
        harness_init(&h, o);
        for (uint64_t uid = 0; uid < 8; uid++) harness_add_simple(&h, uid, 20, 120, uid);
        for (int i = 0; i < 16; i++) harness_step(&h);
        const uint64_t before = msgl__mem_allocs();
        for (int i = 0; i < 100; i++) harness_step(&h);
        assert_int_equal(msgl__mem_allocs(), before);
        assert_int_equal(harness_stats(&h).running, 8);
        harness_run(&h, 100);
        harness_free(&h);
    }
}

// Of a queue of so many tokens, of prompts of 600, whose answers are so long that prompts keep up
// anyway.
static int32_t pace_budget(const msgl_pace *p, int32_t num_answers, int64_t tokens, int32_t first,
                           int32_t tile, int32_t max_tokens)
{
    const msgl_pace_queue queue = {.tokens = tokens,
                                   .prompts = (int32_t)(tokens / 600) + 1,
                                   .first = first,
                                   .answer_len = 1 << 20};
    return msgl__pace_budget(p, num_answers, &queue, tile, max_tokens);
}

enum { MANY = 1 << 20 };

static void test_pace(void **state)
{
    (void)state;
    msgl_pace p = {0};
    assert_int_equal(pace_budget(&p, 0, MANY, 600, 0, 8192), 512); // nothing known
    assert_int_equal(pace_budget(&p, 0, MANY, 600, 0, 100), 100);
    assert_int_equal(pace_budget(&p, 3, MANY, 600, 0, 8192), 0);
    msgl__pace_observe(&p, 0, 1, 0, 25000000); // a prefix hit says nothing about long ones
    assert_int_equal(pace_budget(&p, 0, MANY, 600, 0, 8192), 512);
    msgl__pace_observe(&p, 3, 0, 0, 40000000);
    assert_int_equal(pace_budget(&p, 3, MANY, 600, 0, 8192), 32); // nothing known of prompts
    for (int i = 0; i < 20; i++) msgl__pace_observe(&p, 0, 100, 0, 100000000);
    assert_int_equal(pace_budget(&p, 0, MANY, 600, 0, 8192), 496); // half a second, in eights
    assert_int_equal(pace_budget(&p, 0, MANY, 99, 0, 8192), 104);  // the first prompt
    assert_int_equal(pace_budget(&p, 0, MANY, 9, 0, 8192), 32);    // 40 ms
    // Answers take 40 ms; within 1.8 of that 31 are left for tokens of just over 1 ms each, and 32,
    // which show what they cost, fit into 2.75.
    assert_int_equal(pace_budget(&p, 3, MANY, 600, 0, 8192), 32);
    assert_int_equal(pace_budget(&p, 3, MANY, 600, 0, 20), 20);
    // What rides along costs less than what goes alone.
    for (int i = 0; i < 20; i++) msgl__pace_observe(&p, 3, 64, 0, 56000000);
    assert_int_equal(pace_budget(&p, 3, MANY, 600, 0, 8192), 0); // measure the answers again
    msgl__pace_observe(&p, 3, 0, 0, 40000000);
    assert_int_equal(pace_budget(&p, 3, MANY, 600, 0, 8192), 120);
    // Whole tiles of the step's tokens, if that does not halve the chunk.
    assert_int_equal(pace_budget(&p, 3, MANY, 600, 100, 8192), 97);
    assert_int_equal(pace_budget(&p, 3, MANY, 600, 128, 8192), 125);
    assert_int_equal(pace_budget(&p, 60, MANY, 600, 100, 8192), 120); // 40 are too few
    // A short queue is spread over two steps, but not thinner than pays.
    assert_int_equal(pace_budget(&p, 3, 2 * 96, 600, 0, 8192), 96);
    assert_int_equal(pace_budget(&p, 3, 100, 600, 0, 8192), 72);
    // One stalled step makes the chunks small, and small chunks find the way back.
    msgl__pace_observe(&p, 3, 64, 0, 3000000000);
    assert_true(pace_budget(&p, 3, MANY, 600, 0, 8192) <= 8);
    for (int i = 0; i < 40; i++) {
        const int32_t n = pace_budget(&p, 3, MANY, 600, 0, 8192);
        msgl__pace_observe(&p, 3, n, 0, 40000000 + (uint64_t)n * 250000);
    }
    msgl__pace_observe(&p, 3, 0, 0, 40000000);
    assert_int_equal(pace_budget(&p, 3, MANY, 600, 0, 8192), 120);
    // A few tokens ride for nothing, but many do not: 0.25 ms each is what is known of them.
    for (int i = 0; i < 20; i++) msgl__pace_observe(&p, 3, 8, 0, 40000000);
    msgl__pace_observe(&p, 3, 0, 0, 40000000);
    assert_int_equal(pace_budget(&p, 3, MANY, 600, 0, 8192), 120);
    // Numbers that no engine should report.
    msgl__pace_observe(&p, 0, 100, 0, UINT64_MAX);
    msgl__pace_observe(&p, 1, 100, 0, UINT64_MAX);
    msgl__pace_observe(&p, 1, 0, 0, UINT64_MAX);
    assert_in_range(pace_budget(&p, 1, MANY, 600, 0, 8192), 1, 8192);
    for (int i = 0; i < 100; i++) msgl__pace_observe(&p, 1, 100, 0, 0);
    for (int i = 0; i < 100; i++) msgl__pace_observe(&p, 1, 0, 0, 1000);
    assert_int_equal(pace_budget(&p, 1, MANY, 600, 0, 8192), 8192);
}

static void test_pace_of_gpu(void **state)
{
    (void)state;
    // Answers that take a millisecond leave prompts, at 2 us a token, 19 of the 20 that nobody
    // sees.
    msgl_pace p = {0};
    for (int i = 0; i < 20; i++) msgl__pace_observe(&p, 0, 4096, 128, 8192000);
    msgl__pace_observe(&p, 64, 0, 128, 1000000);
    assert_in_range(pace_budget(&p, 64, 100000, 600, 0, 1 << 20), 9480, 9500);
    // A crowd that waits for two seconds gets gaps of 60 ms, one of 1.2 s a thirtieth of that.
    assert_in_range(pace_budget(&p, 64, MANY, 600, 0, 1 << 20), 29480, 29500);
    assert_in_range(pace_budget(&p, 64, 600000, 600, 0, 1 << 20), 19480, 19500);
    // Two tiles are filled, however short the queue is.
    assert_int_equal(pace_budget(&p, 64, 400, 600, 256, 1 << 20), 448);
}

// 64 answers of 12 ms, tokens that cost 20 us as far as they fill two tiles of 128 and 40 us
// beyond: of the 9.6 ms within 1.8 times 12 ms the 192 that fill take 3.84, and 144 others fit in
// the rest, which makes 336, and 320 with whole tiles. One price for both would be 26 us here, and
// allow 369.
static void test_pace_has_two_prices(void **state)
{
    (void)state;
    msgl_pace p = {0};
    msgl__pace_observe(&p, 0, 1000, 128, 45000000);
    for (int i = 0; i < 40; i++) {
        const int32_t n = i % 2 == 0 ? 192 : 448;
        msgl__pace_observe(&p, 64, n, 128, 12000000 + 192 * 20000 + ((uint64_t)n - 192) * 40000);
        msgl__pace_observe(&p, 64, 0, 128, 12000000);
    }
    assert_in_range(p.filling_ps, 19900000, 20100000);
    assert_in_range(p.riding_ps, 39900000, 40100000);
    assert_int_equal(pace_budget(&p, 64, 3000, 600, 128, 8192), 320);
    // 256 answers fill two tiles: all of their 9.6 ms goes to tokens of 40 us.
    assert_int_equal(pace_budget(&p, 256, 3000, 600, 128, 8192), 128);
}

// 256 answers of 256 tokens end at one a step: prompts of 512 tokens keep up when a step has 512 of
// them, and catch up with two and a half times that, within 2.75 times what the answers take.
static void test_prompts_keep_up(void **state)
{
    (void)state;
    msgl_pace p = {0};
    msgl__pace_observe(&p, 0, 1000, 128, 40000000);
    msgl__pace_observe(&p, 256, 0, 128, 20000000);
    msgl_pace_queue queue = {.tokens = 5120, .prompts = 10, .first = 512, .answer_len = 256};
    assert_int_equal(msgl__pace_budget(&p, 256, &queue, 128, 8192), 768); // 35 ms are 875
    queue.answer_len = 512; // half as many: 640, 25.6 ms
    assert_int_equal(msgl__pace_budget(&p, 256, &queue, 128, 8192), 640);
    queue.answer_len = 4096; // 80: the 16 ms of 1.8 times, 400
    assert_int_equal(msgl__pace_budget(&p, 256, &queue, 128, 8192), 384);
    queue.tokens = 512; // of what waits, half
    queue.prompts = 1;
    queue.answer_len = 256;
    assert_int_equal(msgl__pace_budget(&p, 256, &queue, 128, 8192), 256);
}

// A short queue rides along in two parts, those that have no row yet included.
static void test_queue_is_spread(void **state)
{
    (void)state;
    harness_options o = defaults();
    o.cache_type = MSGL_CACHE_NAIVE;
    o.overlap = false;
    o.max_prefill_tokens = 512;
    harness h;
    harness_init(&h, o);
    h.fake.decode_ns = 32000000;
    h.fake.prefill_token_ns = 250000;
    for (uint64_t uid = 0; uid < 2; uid++) harness_add_simple(&h, uid, 64, 100, uid);
    for (int i = 0; i < 20; i++) harness_step(&h);
    for (uint64_t uid = 2; uid < 8; uid++) harness_add_simple(&h, uid, 32, 4, uid);
    harness_step(&h);
    assert_int_equal(h.fake.answers[h.fake.num_steps - 1], 2);
    assert_int_equal(h.fake.chunk_tokens[h.fake.num_steps - 1], 6 * 32 / 2);
    harness_run(&h, 200);
    harness_free(&h);
}

// While nobody waits for a token the first prompt is computed to its end, in steps of half a
// second.
static void test_first_prompt_comes_soon(void **state)
{
    (void)state;
    harness_options o = defaults();
    o.cache_type = MSGL_CACHE_NAIVE;
    o.overlap = false;
    o.max_prefill_tokens = 512;
    harness h;
    harness_init(&h, o);
    h.fake.prefill_token_ns = 4000000; // 125 tokens in half a second, 10 in 40 ms
    harness_add_simple(&h, 1, 64, 1, 1);
    harness_run(&h, 20);
    const uint64_t n = h.fake.num_steps;
    harness_add_simple(&h, 2, 200, 2, 2);
    harness_add_simple(&h, 3, 100, 2, 3);
    for (int i = 0; i < 2; i++) harness_step(&h);
    assert_int_equal(h.fake.chunk_tokens[n], 120);
    assert_int_equal(h.fake.chunk_tokens[n + 1], 80);
    assert_int_equal(h.fake.answers[n + 1], 0);
    harness_run(&h, 100);
    for (uint64_t uid = 1; uid <= 3; uid++) harness_expect(&h, uid);
    harness_free(&h);
}

// The longest gap between two tokens of any request stays under three decode steps although prompts
// keep coming, and every step but the few that measure answers alone brings prompts forward.
static void test_gaps_under_load(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        harness_options o = defaults();
        o.max_prefill_tokens = 8192;
        o.max_seq_len = 512;
        o.num_pages = 4096;
        o.overlap = overlap;
        harness h;
        harness_init(&h, o);
        h.fake.prefill_ns = 5000000;       // a fixed part that short steps cannot hide
        h.fake.prefill_token_ns = 1400000; // a CPU: 1.4 ms per prompt token,
        h.fake.decode_ns = 35000000;       // 35 ms per decode step
        uint64_t uid = 0, done = 0;
        while (done < 60) {
            const msgl_msg_stats st = harness_stats(&h);
            done = st.requests_done;
            if (st.running + st.waiting < 8) {
                harness_add_simple(&h, uid, 127, 64, uid);
                uid++;
                continue;
            }
            harness_step(&h);
        }
        uint64_t worst = 0;
        for (uint64_t i = 0; i < uid; i++) {
            if (h.records[i].gap_ns > worst) worst = h.records[i].gap_ns;
        }
        assert_true(worst < 3 * h.fake.decode_ns);
        int32_t idle = 0, steps = (int32_t)h.fake.num_steps;
        for (int32_t n = 0; n < steps; n++) idle += h.fake.chunk_tokens[n] == 0;
        assert_in_range(idle, 1, steps / 2);
        harness_free(&h);
    }
}

// Nobody is waiting for a token: prompts are computed in large steps, back to back.
static void test_idle_prefill_is_not_throttled(void **state)
{
    (void)state;
    harness_options o = defaults();
    o.max_prefill_tokens = 400;
    o.max_seq_len = 512;
    harness h;
    harness_init(&h, o);
    h.fake.prefill_token_ns = 10000; // 400 tokens: 4 ms
    h.fake.decode_ns = 100000;
    for (uint64_t uid = 0; uid < 3; uid++) {
        harness_add_simple(&h, uid, 500, 2, uid);
        harness_run(&h, 20);
        const uint64_t n = h.fake.num_steps;
        assert_int_equal(h.fake.chunk_tokens[n - 3], 400);
        assert_int_equal(h.fake.chunk_tokens[n - 2], 100);
        assert_int_equal(h.fake.answers[n - 1], 1);
    }
    harness_free(&h);
}

// A batch job: prompts are computed at full speed while one is left that a row is free for, however
// slow they are, and answers ride along.
static void test_prefill_first(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        harness_options o = defaults();
        o.prefill_first = true;
        o.overlap = overlap;
        o.max_prefill_tokens = 100;
        harness h;
        harness_init(&h, o);
        h.fake.prefill_token_ns = 10000000; // a second a step, twice an idle server's limit,
        h.fake.decode_ns = 1000000;         // beside 1 ms
        for (uint64_t uid = 0; uid < 5; uid++) harness_add_simple(&h, uid, 100, 6, uid);
        harness_run(&h, 100);
        for (uint64_t n = 0; n < h.fake.num_steps; n++) {
            assert_int_equal(h.fake.chunk_tokens[n], n < 5 ? 100 : 0);
            if (n < 5) assert_int_equal(h.fake.answers[n], n);
        }
        assert_int_equal(h.fake.num_steps, 5 + 5);
        for (uint64_t uid = 0; uid < 5; uid++) harness_expect(&h, uid);
        harness_free(&h);
    }
}

// Schedulers that are fed the same calls and results decide the same, whatever the clock says.
static void test_decisions_are_reproducible(void **state)
{
    (void)state;
    static fake_runner seen[2];
    for (int k = 0; k < 2; k++) {
        harness h;
        harness_init(&h, defaults());
        h.fake.noise = 42;
        for (uint64_t uid = 0; uid < 200; uid++) {
            add_shared(&h, uid, (int32_t)(uid % 5) * 30, 20 + (int32_t)(uid % 7) * 25, 10);
            if (uid % 3 == 0) msgl__scheduler_abort(h.s, uid / 2);
            harness_step(&h);
            harness_step(&h);
        }
        harness_run(&h, 2000);
        memcpy(seen[k].answers, h.fake.answers, sizeof seen[k].answers);
        memcpy(seen[k].chunk_tokens, h.fake.chunk_tokens, sizeof seen[k].chunk_tokens);
        seen[k].num_steps = h.fake.num_steps;
        harness_free(&h);
    }
    assert_int_equal(seen[0].num_steps, seen[1].num_steps);
    assert_memory_equal(seen[0].answers, seen[1].answers, sizeof seen[0].answers);
    assert_memory_equal(seen[0].chunk_tokens, seen[1].chunk_tokens, sizeof seen[0].chunk_tokens);
}

static void test_destroy_in_flight(void **state)
{
    (void)state;
    harness h;
    harness_init(&h, defaults());
    for (uint64_t uid = 0; uid < 12; uid++) harness_add_simple(&h, uid, 50, 20, uid);
    for (int i = 0; i < 5; i++) harness_step(&h);
    assert_true(h.fake.steps[0].in_flight || h.fake.steps[1].in_flight);
    msgl__scheduler_destroy(h.s);
    assert_false(h.fake.steps[0].in_flight || h.fake.steps[1].in_flight);
    h.s = NULL;
    harness_free(&h);
}

// The variable part is the same block from the message to the steps, goes to the request's row, and
// is let go of wherever a request can end: waiting, running, finished, with the scheduler.
static void test_extra(void **state)
{
    (void)state;
    enum { REQUESTS = 24 };
    msgl_req_extra *extra[REQUESTS];
    msgl_err err;
    for (int overlap = 0; overlap < 2; overlap++) {
        harness_options o = defaults();
        o.max_running = 4;
        o.vocab_size = 100;
        o.overlap = overlap;
        harness h;
        harness_init(&h, o);
        const int32_t ids[] = {7, 8, 9};
        msgl_msg_request q = {.num_ids = 3, .ids = ids};
        q.sampling = msgl__sampling_params_default();
        q.sampling.ignore_eos = true;
        for (int i = 0; i < REQUESTS; i++) {
            const msgl_bias bias = {.token = 10 + i, .value = 1};
            assert_int_equal(msgl__req_extra_create(&bias, 1, 100, &extra[i], &err), 0);
            q.uid = (uint64_t)i;
            q.sampling.max_tokens = 2 + i % 5;
            q.extra = i % 3 == 2 ? NULL : extra[i];
            msgl__scheduler_add(h.s, &q);
            assert_int_equal(extra[i]->refs, i % 3 == 2 ? 1 : 2);
        }
        for (int i = 0; i < 3; i++) harness_step(&h);
        msgl__scheduler_abort(h.s, 1);            // runs
        msgl__scheduler_abort(h.s, REQUESTS - 2); // waits
        while (harness_stats(&h).requests_done < REQUESTS / 2) harness_step(&h);
        harness_free(&h); // with the rest
        for (int i = 0; i < REQUESTS; i++) {
            assert_int_equal(extra[i]->refs, 1);
            msgl__req_extra_unref(extra[i]);
        }
    }
}

// A bias that does not fit the vocabulary is refused here at the latest.
static void test_extra_refused(void **state)
{
    (void)state;
    harness_options o = defaults();
    o.vocab_size = 100;
    harness h;
    harness_init(&h, o);
    const msgl_bias bias[] = {{.token = 100, .value = 1}, {.token = 3, .value = 1}};
    const int32_t id = 7;
    msgl_msg_request q = {.uid = 5, .num_ids = 1, .ids = &id};
    q.sampling = msgl__sampling_params_default();
    assert_int_equal(msgl__req_extra_create(bias, 2, INT32_MAX, &q.extra, NULL), 0);
    msgl__scheduler_add(h.s, &q);
    assert_int_equal(h.records[5].status, MSGL_EINVAL);
    assert_string_equal(h.records[5].text, "logit_bias names token 100; allowed: 0 to 99");
    assert_int_equal(q.extra->refs, 1);
    msgl__req_extra_unref(q.extra);
    harness_free(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_memory_for_a_request),
        cmocka_unit_test(test_create_fails),
        cmocka_unit_test(test_length_limits),
        cmocka_unit_test(test_page_longer_than_row),
        cmocka_unit_test(test_stop_ids),
        cmocka_unit_test(test_prefix_reuse),
        cmocka_unit_test(test_nothing_shared),
        cmocka_unit_test(test_shared_while_computed),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_abort_in_every_phase),
        cmocka_unit_test(test_uid_again_after_abort),
        cmocka_unit_test(test_abort_in_callback),
        cmocka_unit_test(test_nan_ends_one_request),
        cmocka_unit_test(test_engine_failure),
        cmocka_unit_test(test_big_head_is_not_starved),
        cmocka_unit_test(test_aborted_head_makes_way),
        cmocka_unit_test(test_no_heap_per_decode_step),
        cmocka_unit_test(test_pace),
        cmocka_unit_test(test_pace_of_gpu),
        cmocka_unit_test(test_pace_has_two_prices),
        cmocka_unit_test(test_prompts_keep_up),
        cmocka_unit_test(test_queue_is_spread),
        cmocka_unit_test(test_first_prompt_comes_soon),
        cmocka_unit_test(test_gaps_under_load),
        cmocka_unit_test(test_idle_prefill_is_not_throttled),
        cmocka_unit_test(test_prefill_first),
        cmocka_unit_test(test_decisions_are_reproducible),
        cmocka_unit_test(test_destroy_in_flight),
        cmocka_unit_test(test_extra),
        cmocka_unit_test(test_extra_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
