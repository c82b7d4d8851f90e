// SPDX-License-Identifier: Apache-2.0
//
// Adapters' slots: what is read while steps go on, who waits for it and who does not, that nobody
// waits for ever, and what becomes of requests whose adapter is taken away or cannot be read. The
// fake engine checks that every row of a step has the adapter of its request.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "harness.h"
#include "utils/random.h"

enum { ROWS = 4 };

static void open_scheduler(harness *h, int32_t adapters, int32_t step_adapters, bool overlap)
{
    harness_init(h, (harness_options){.max_running = ROWS,
                                      .max_seq_len = 256,
                                      .max_prefill_tokens = 64,
                                      .num_pages = 2000,
                                      .page_size = 1,
                                      .vocab_size = 16,
                                      .cache_type = MSGL_CACHE_RADIX,
                                      .overlap = overlap,
                                      .prefill_first = true,
                                      .adapters = adapters,
                                      .step_adapters = step_adapters});
}

static void add(harness *h, uint64_t adapter, uint64_t uid, int32_t answer)
{
    h->adapter = adapter;
    harness_add_simple(h, uid, 6, answer, uid + 1);
}

static void steps(harness *h, int n)
{
    while (n-- > 0) harness_step(h);
}

static void expect_error(const harness *h, uint64_t uid, int status, const char *text)
{
    assert_int_equal(h->records[uid].ends, 1);
    assert_int_equal(h->records[uid].finish, MSGL_FINISH_ERROR);
    assert_int_equal(h->records[uid].status, status);
    assert_non_null(strstr(h->records[uid].text, text));
}

// While an adapter is read, requests that have one and requests that have none go on, and younger
// ones begin; the one that waits for it begins when it is there.
static void test_steps_go_on(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        harness h;
        open_scheduler(&h, 2, 2, overlap);
        add(&h, 1, 1, 60);
        steps(&h, 5);
        assert_true(h.records[1].num_tokens > 0);
        h.fake.adapter_polls = 20;
        add(&h, 2, 2, 5);
        add(&h, 0, 3, 5);
        add(&h, 1, 4, 5);
        const int32_t before = h.records[1].num_tokens;
        steps(&h, 15);
        assert_int_equal(h.fake.num_loads, 2);
        assert_int_equal(h.records[2].num_tokens, 0);
        assert_int_equal(h.records[1].num_tokens, before + 15);
        harness_expect(&h, 3);
        harness_expect(&h, 4);
        harness_run(&h, 200);
        harness_expect(&h, 1);
        harness_expect(&h, 2);
        harness_free(&h);
    }
}

// With more adapters than a step may have, or than there are slots, those wait for which there is
// no room, and nobody else.
static void test_no_room(void **state)
{
    (void)state;
    for (int32_t adapters = 1; adapters <= 2; adapters++) {
        harness h;
        open_scheduler(&h, adapters, 1, true);
        add(&h, 1, 1, 40);
        steps(&h, 5);
        add(&h, 2, 2, 5);
        add(&h, 0, 3, 5);
        add(&h, 1, 4, 5);
        steps(&h, 15);
        assert_int_equal(h.records[2].num_tokens, 0);
        harness_expect(&h, 3);
        harness_expect(&h, 4);
        harness_run(&h, 200);
        for (uint64_t i = 1; i <= 4; i++) harness_expect(&h, i);
        harness_free(&h);
    }
}

// Of a stream of requests with one adapter, which would never leave the only slot, ROWS pass one
// that has another; then it is its turn, also where each of them is another client's, who has no
// row yet and so is before its own, who has one.
static void test_nobody_starves(void **state)
{
    (void)state;
    for (int clients = 0; clients < 2; clients++) {
        harness h;
        open_scheduler(&h, 2, 1, true);
        if (clients) add(&h, 0, 0, 200);
        h.client = clients ? 1000 : 0;
        add(&h, 1, 1, 12);
        steps(&h, 3);
        h.client = 0;
        add(&h, 2, 2, 3);
        uint64_t uid = 3;
        for (int i = 0; h.records[2].ends == 0; i++) {
            assert_true(i < 100 && uid < 60);
            h.client = clients ? uid : 0;
            if (i % 3 == 0) add(&h, 1, uid++, 12); // before the last one has ended
            harness_step(&h);
        }
        harness_run(&h, 1000);
        for (uint64_t i = 1; i < uid; i++) harness_expect(&h, i);
        harness_free(&h);
    }
}

// Requests of two adapters that came in turn stand side by side in a step.
static void test_side_by_side(void **state)
{
    (void)state;
    harness h;
    open_scheduler(&h, 2, 2, false);
    for (uint64_t i = 0; i < ROWS; i++) add(&h, 1 + i % 2, i, 30);
    steps(&h, 12);
    const fake_step *s = &h.fake.steps[(h.fake.num_steps - 1) % FAKE_STEP_SLOTS];
    assert_int_equal(s->batch.num_decode, ROWS);
    assert_int_equal(s->reqs[0].adapter, s->reqs[1].adapter);
    assert_int_equal(s->reqs[2].adapter, s->reqs[3].adapter);
    assert_int_not_equal(s->reqs[0].adapter, s->reqs[2].adapter);
    harness_run(&h, 200);
    harness_free(&h);
}

// An adapter that is taken away stays with the requests that have come with it, those that wait and
// those that were sent back included, and is not read again.
static void test_taken_away(void **state)
{
    (void)state;
    harness h;
    open_scheduler(&h, 1, 1, true);
    for (uint64_t i = 0; i < 2 * ROWS; i++) add(&h, 1, i, 20);
    steps(&h, 6);
    msgl__scheduler_drop_adapter(h.s, 1);
    assert_int_equal(msgl__scheduler_pause(h.s, MSGL_PAUSE_RETRACT), 0);
    msgl__scheduler_continue(h.s);
    add(&h, 2, 20, 3); // for which there is no room until they have ended
    add(&h, 1, 21, 3); // too late, but as long as it is there it can have it
    harness_run(&h, 1000);
    for (uint64_t i = 0; i < 2 * ROWS; i++) harness_expect(&h, i);
    harness_expect(&h, 20);
    harness_expect(&h, 21);
    assert_int_equal(h.fake.num_loads, 2);
    add(&h, 1, 22, 3);
    harness_run(&h, 100);
    expect_error(&h, 22, MSGL_ENOENT, "unloaded");
    assert_int_equal(h.fake.num_loads, 2);
    msgl__scheduler_drop_adapter(h.s, 2); // that nobody has: at once
    assert_int_equal(h.fake.adapters[0], 0);
    harness_free(&h);
}

// It had given way to others when it was taken away: who waits for it is told.
static void test_taken_away_from_disk(void **state)
{
    (void)state;
    harness h;
    open_scheduler(&h, 1, 1, true);
    add(&h, 1, 1, 4);
    harness_run(&h, 100);
    add(&h, 2, 2, 30);
    steps(&h, 5);
    add(&h, 1, 3, 4);
    steps(&h, 3);
    msgl__scheduler_drop_adapter(h.s, 1);
    harness_run(&h, 100);
    harness_expect(&h, 1);
    harness_expect(&h, 2);
    expect_error(&h, 3, MSGL_ENOENT, "unloaded");
    assert_int_equal(h.fake.num_loads, 2);
    harness_free(&h);
}

// What an adapter's requests have left in the prefix cache those share that come when it has given
// way to another one and is read again, unless its folder has changed in between.
static void test_changed_folder(void **state)
{
    (void)state;
    enum { PROMPT = 40 };
    static const struct {
        uint64_t digest;
        int32_t cached;
    } READINGS[] = {{1, 0}, {1, PROMPT - 1}, {2, 0}, {2, PROMPT - 1}, {1, PROMPT - 1}};
    harness h;
    uint64_t uid = 0;
    open_scheduler(&h, 1, 1, true);
    for (size_t i = 0; i < MSGL_COUNT(READINGS); i++) {
        h.fake.adapter_digest = READINGS[i].digest;
        h.adapter = 1;
        harness_add_simple(&h, uid, PROMPT, 3, 77);
        harness_run(&h, 100);
        harness_expect(&h, uid);
        assert_int_equal(h.records[uid++].cached, READINGS[i].cached);
        add(&h, 2, uid, 3);
        harness_run(&h, 100);
        harness_expect(&h, uid++);
        assert_int_equal(h.fake.num_loads, 2 * (int)(i + 1));
    }
    harness_free(&h);
}

// All that wait with an adapter that cannot be read end with its error, and nobody else does; what
// was in the slot can be had again.
static void test_unreadable(void **state)
{
    (void)state;
    harness h;
    open_scheduler(&h, 1, 1, true);
    add(&h, 1, 1, 4);
    harness_run(&h, 100);
    h.fake.adapter_polls = 3;
    for (uint64_t i = 2; i < 5; i++) add(&h, HARNESS_BAD_ADAPTER, i, 4);
    add(&h, 0, 5, 4);
    add(&h, 1, 6, 4);
    harness_run(&h, 100);
    for (uint64_t i = 2; i < 5; i++) expect_error(&h, i, MSGL_ENOENT, "no such folder");
    harness_expect(&h, 5);
    harness_expect(&h, 6);
    assert_int_equal(h.fake.num_loads, 2);
    harness_free(&h);
}

static void expect_done(harness *h, uint64_t id, int status)
{
    msgl_msg_adapter_done done;
    assert_true(msgl__scheduler_adapter_done(h->s, &done));
    assert_int_equal(done.adapter, id);
    assert_int_equal(done.status, status);
    assert_int_equal(done.text != NULL, status != 0);
}

// Loads that nobody's request asks for: one after the other, also while steps are paused, and told
// when they have ended.
static void test_asked_for(void **state)
{
    (void)state;
    msgl_msg_adapter_done done;
    msgl_err err;
    harness h;
    open_scheduler(&h, 2, 2, true);
    h.fake.adapter_polls = 4;
    assert_int_equal(msgl__scheduler_load_adapter(h.s, 1, "1", &err), 0);
    assert_int_equal(msgl__scheduler_load_adapter(h.s, 1001, "nowhere", &err), 0);
    assert_int_equal(msgl__scheduler_load_adapter(h.s, 2, "2", &err), 0);
    assert_int_equal(msgl__scheduler_load_adapter(h.s, 1, "1", &err), 0);
    assert_false(msgl__scheduler_adapter_done(h.s, &done));
    assert_int_equal(msgl__scheduler_pause(h.s, MSGL_PAUSE_IN_PLACE), 0);
    add(&h, 0, 3, 4);
    harness_run(&h, 100);
    assert_int_equal(h.records[3].num_tokens, 0); // it is paused
    expect_done(&h, 1, 0);
    expect_done(&h, 1001, MSGL_ENOENT);
    expect_done(&h, 2, 0);
    expect_done(&h, 1, 0); // it was there
    assert_false(msgl__scheduler_adapter_done(h.s, &done));
    assert_int_equal(h.fake.num_loads, 3);
    msgl__scheduler_continue(h.s);
    add(&h, 1, 1, 30);
    add(&h, 2, 2, 30);
    steps(&h, 4);
    assert_int_equal(msgl__scheduler_load_adapter(h.s, 3, "3", &err), 0);
    steps(&h, 1);
    expect_done(&h, 3, MSGL_EBUSY);
    harness_run(&h, 100);
    for (uint64_t i = 1; i < 4; i++) harness_expect(&h, i);
    // Taken away while it is read.
    assert_int_equal(msgl__scheduler_load_adapter(h.s, 4, "4", &err), 0);
    steps(&h, 1);
    msgl__scheduler_drop_adapter(h.s, 4);
    harness_run(&h, 100);
    expect_done(&h, 4, 0);
    assert_true(h.fake.adapters[0] != 4 && h.fake.adapters[1] != 4);
    harness_free(&h);
}

// Whatever comes in which order: all end, with their own adapters.
static void test_any(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed < 40; seed++) {
        uint64_t dice = seed;
        harness h;
        const int32_t slots = 1 + (int32_t)msgl__random_below(&dice, FAKE_ADAPTERS);
        open_scheduler(&h, slots, 1 + (int32_t)msgl__random_below(&dice, (uint64_t)slots),
                       seed % 2 == 0);
        uint64_t uid = 0;
        while (uid < 60) {
            h.fake.adapter_polls = (int)msgl__random_below(&dice, 6);
            h.client = msgl__random_below(&dice, 3);
            if (msgl__random_below(&dice, 3) == 0) {
                add(&h, msgl__random_below(&dice, 6), uid++,
                    1 + (int32_t)msgl__random_below(&dice, 12));
            }
            if (uid > 0 && msgl__random_below(&dice, 20) == 0) {
                msgl__scheduler_abort(h.s, msgl__random_below(&dice, uid));
            }
            if (msgl__scheduler_has_work(h.s)) harness_step(&h);
        }
        harness_run(&h, 3000);
        for (uint64_t i = 0; i < uid; i++) {
            if (h.records[i].finish != MSGL_FINISH_ABORT) harness_expect(&h, i);
        }
        harness_free(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_go_on),    cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_nobody_starves), cmocka_unit_test(test_side_by_side),
        cmocka_unit_test(test_taken_away),     cmocka_unit_test(test_taken_away_from_disk),
        cmocka_unit_test(test_changed_folder), cmocka_unit_test(test_unreadable),
        cmocka_unit_test(test_asked_for),      cmocka_unit_test(test_any)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
