// SPDX-License-Identifier: Apache-2.0
//
// What admins' calls do to requests: steps that stop and go on, requests that are sent back, and
// prefixes that other weights computed.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "harness.h"

enum { PROMPT = 40, ANSWER = 30 };

// An engine that notes what it is asked for, and when.
typedef struct engine {
    harness h;
    int calls;
    msgl_admin last;
    int code;       // of the next call
    bool in_flight; // at a call some step was
} engine;

static int on_admin(void *ctx, const msgl_admin *a, msgl_err *err)
{
    engine *e = ctx;
    e->calls++;
    e->last = *a;
    e->in_flight = e->in_flight || e->h.fake.steps[0].in_flight || e->h.fake.steps[1].in_flight;
    return e->code == 0 ? 0 : msgl__err_set(err, e->code, "no such file");
}

static void open_engine(engine *e, bool overlap)
{
    memset(e, 0, sizeof *e);
    harness_init(&e->h, (harness_options){.max_running = 4,
                                          .max_seq_len = 128,
                                          .max_prefill_tokens = 64,
                                          .num_pages = 200,
                                          .page_size = 4,
                                          .vocab_size = 64,
                                          .overlap = overlap});
}

// Requests 1 to n begin; the last ones may still wait.
static void begin(engine *e, int n)
{
    for (int i = 1; i <= n; i++) harness_add_simple(&e->h, (uint64_t)i, PROMPT, ANSWER, 5);
    for (int i = 0; i < 8; i++) harness_step(&e->h);
    assert_true(harness_stats(&e->h).running > 0);
}

static void expect_all(engine *e, int n)
{
    harness_run(&e->h, 1000);
    for (int i = 1; i <= n; i++) harness_expect(&e->h, (uint64_t)i);
}

static void test_pause(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        for (msgl_pause_mode mode = MSGL_PAUSE_RETRACT; mode <= MSGL_PAUSE_IN_PLACE; mode++) {
            engine e;
            open_engine(&e, overlap);
            begin(&e, 6);
            const msgl_msg_stats before = harness_stats(&e.h);
            assert_int_equal(msgl__scheduler_pause(e.h.s, mode), 0);
            harness_check(&e.h);
            assert_false(e.h.fake.steps[0].in_flight || e.h.fake.steps[1].in_flight);
            assert_false(msgl__scheduler_has_work(e.h.s));
            const msgl_msg_stats s = harness_stats(&e.h);
            assert_int_equal(s.running + s.waiting, before.running + before.waiting);
            if (mode == MSGL_PAUSE_RETRACT) assert_int_equal(s.running, 0);
            if (mode == MSGL_PAUSE_IN_PLACE) assert_int_equal(s.running, before.running);
            msgl__scheduler_continue(e.h.s);
            assert_true(msgl__scheduler_has_work(e.h.s));
            expect_all(&e, 6); // with the tokens that they would have had
            harness_free(&e.h);
        }
    }
}

static void test_abort(void **state)
{
    (void)state;
    engine e;
    open_engine(&e, true);
    begin(&e, 6);
    assert_int_equal(msgl__scheduler_pause(e.h.s, MSGL_PAUSE_ABORT), 0);
    harness_check(&e.h);
    for (int i = 1; i <= 6; i++) assert_int_equal(e.h.records[i].finish, MSGL_FINISH_ABORT);
    const msgl_msg_stats s = harness_stats(&e.h);
    assert_int_equal(s.running + s.waiting + s.used_pages, 0);
    msgl__scheduler_continue(e.h.s);
    harness_free(&e.h);
}

// What was computed up to then is nobody's prefix, and what runs on leaves none behind.
static void test_forget(void **state)
{
    (void)state;
    engine e;
    open_engine(&e, true);
    harness_add_simple(&e.h, 1, PROMPT, ANSWER, 5);
    harness_run(&e.h, 1000);
    harness_add_simple(&e.h, 2, PROMPT, ANSWER, 5);
    harness_run(&e.h, 1000);
    assert_true(e.h.records[2].cached > 0);
    begin(&e, 1); // finds the prefix, too, and holds it
    msgl__scheduler_forget(e.h.s);
    harness_add_simple(&e.h, 3, PROMPT, ANSWER, 5);
    harness_run(&e.h, 1000);
    assert_int_equal(e.h.records[3].cached, 0);
    harness_expect(&e.h, 1);
    harness_expect(&e.h, 3);
    harness_add_simple(&e.h, 4, PROMPT, ANSWER, 5);
    harness_run(&e.h, 1000);
    assert_true(e.h.records[4].cached > 0); // of 3
    harness_free(&e.h);
}

static int call(engine *e, msgl_admin a, msgl_err *err)
{
    const msgl_admin_calls calls = {.ctx = e, .admin = on_admin};
    return msgl__scheduler_admin(e->h.s, &calls, &a, err);
}

static void test_updates(void **state)
{
    (void)state;
    engine e;
    msgl_err err;
    open_engine(&e, true);
    harness_add_simple(&e.h, 9, PROMPT, ANSWER, 5);
    harness_run(&e.h, 1000);
    begin(&e, 3);
    assert_true(harness_stats(&e.h).cached_pages > 0);
    e.code = MSGL_ENOENT;
    const msgl_admin disk = {.kind = MSGL_ADMIN_DISK, .path = "/x", .flush = true};
    assert_int_equal(call(&e, disk, &err), MSGL_ENOENT);
    assert_string_equal(err.text, "no such file");
    assert_int_equal(e.calls, 1);
    assert_false(e.in_flight); // steps have ended before it
    e.code = 0;
    msgl_admin keep = disk;
    keep.flush = false;
    assert_int_equal(call(&e, keep, &err), 0);
    harness_add_simple(&e.h, 4, PROMPT, 1, 5);
    harness_run(&e.h, 1000);
    assert_true(e.h.records[4].cached > 0); // neither has dropped anything
    assert_int_equal(call(&e, disk, &err), 0);
    harness_add_simple(&e.h, 5, PROMPT, 1, 5);
    harness_run(&e.h, 1000);
    assert_int_equal(e.h.records[5].cached, 0);
    harness_free(&e.h);
}

// Memory of the cache goes when nothing is in it.
static void test_release(void **state)
{
    (void)state;
    engine e;
    msgl_err err;
    open_engine(&e, true);
    begin(&e, 2);
    const msgl_admin release = {.kind = MSGL_ADMIN_RELEASE, .tags = MSGL_MEMORY_ALL};
    assert_int_equal(call(&e, release, &err), MSGL_EINVAL);
    assert_non_null(strstr(err.text, "2 requests"));
    assert_int_equal(e.calls, 0);
    const msgl_admin weights = {.kind = MSGL_ADMIN_RELEASE, .tags = MSGL_MEMORY_WEIGHTS};
    assert_int_equal(call(&e, weights, &err), 0); // these may
    assert_int_equal(msgl__scheduler_pause(e.h.s, MSGL_PAUSE_RETRACT), 0);
    assert_int_equal(call(&e, release, &err), 0);
    const msgl_msg_stats s = harness_stats(&e.h);
    assert_int_equal(s.free_pages, s.total_pages);
    msgl__scheduler_continue(e.h.s);
    expect_all(&e, 2);
    const msgl_admin_calls none = {0};
    assert_int_equal(msgl__scheduler_admin(e.h.s, &none, &weights, &err), MSGL_EUNSUPPORTED);
    harness_free(&e.h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pause),   cmocka_unit_test(test_abort),
        cmocka_unit_test(test_forget),  cmocka_unit_test(test_updates),
        cmocka_unit_test(test_release),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
