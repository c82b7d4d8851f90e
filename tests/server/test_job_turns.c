// SPDX-License-Identifier: Apache-2.0
//
// The order in which jobs of several clients are taken, with the costs that the tests say.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "front/job_turns.h"

enum { SHORT = 1 << MSGL_LANE_SHORT, LONG = 1 << MSGL_LANE_LONG, FORMS = 1 << MSGL_LANE_FORMS };

static msgl_job_turns turns;
static uint64_t order;

static void push(uint64_t client, msgl_job_lane lane)
{
    msgl_job *j = msgl__calloc(1, sizeof *j);
    assert_non_null(j);
    j->client = client;
    j->order = order++;
    msgl__job_turns_push(&turns, j, lane);
}

static msgl_job *pop(unsigned lanes, uint64_t client)
{
    msgl_job *j = msgl__job_turns_pop(&turns, lanes);
    assert_non_null(j);
    assert_int_equal(j->client, client);
    return j;
}

static void done(msgl_job *j, uint64_t ns)
{
    msgl__job_turns_done(&turns, j, ns);
    msgl__job_free(j);
}

static int begin(void **state)
{
    (void)state;
    order = 0;
    msgl__job_turns_init(&turns);
    return 0;
}

static int end(void **state)
{
    (void)state;
    msgl__job_turns_free(&turns);
    return 0;
}

// One thread. A's jobs cost 30 and B's 10: after the first of each, B has three for one of A.
static void test_by_cost(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) push(1, MSGL_LANE_SHORT);
    for (int i = 0; i < 7; i++) push(2, MSGL_LANE_SHORT);
    // Clocks before each: A 0 B 0, A 30 B 0, 30 10, 30 20, 30 30 (A was served longer ago), 60 30,
    // 60 40, 60 50, 60 60, 90 60, 90 70.
    static const int whose[] = {1, 2, 2, 2, 1, 2, 2, 2, 1, 2, 1};
    for (size_t i = 0; i < sizeof whose / sizeof whose[0]; i++) {
        done(pop(SHORT, (uint64_t)whose[i]), whose[i] == 1 ? 30 : 10);
    }
    assert_null(msgl__job_turns_pop(&turns, SHORT));
}

// A thousand jobs of one client cost another, who comes later, one of them.
static void test_newcomer(void **state)
{
    (void)state;
    for (int i = 0; i < 1000; i++) push(1, MSGL_LANE_SHORT);
    for (int i = 0; i < 500; i++) done(pop(SHORT, 1), 7);
    msgl_job *running = pop(SHORT, 1);
    push(2, MSGL_LANE_SHORT);
    done(running, 7);
    done(pop(SHORT, 2), 1);
    // It began at 3,500, where A then was, not at 0: A is at 3,507 and is not made to wait for it
    // until 3,501 has passed that, and no longer.
    for (int i = 0; i < 8; i++) push(2, MSGL_LANE_SHORT);
    for (int i = 0; i < 6; i++) done(pop(SHORT, 2), 1);
    done(pop(SHORT, 1), 7);
    done(pop(SHORT, 2), 1);
}

// What a client has cost is known when it comes back, while others are served.
static void test_comes_back(void **state)
{
    (void)state;
    push(1, MSGL_LANE_SHORT);
    done(pop(SHORT, 1), 5); // nobody else is there: forgotten
    for (int i = 0; i < 3; i++) push(2, MSGL_LANE_SHORT);
    push(1, MSGL_LANE_SHORT);
    done(pop(SHORT, 2), 10);
    done(pop(SHORT, 1), 100);
    push(1, MSGL_LANE_SHORT); // at 100
    done(pop(SHORT, 2), 10);
    done(pop(SHORT, 2), 10);
    done(pop(SHORT, 1), 1);
}

// Two threads: nobody gets the second one while somebody without one waits, whatever the clocks
// say; alone, a client has both.
static void test_threads(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) push(1, MSGL_LANE_SHORT);
    msgl_job *a = pop(SHORT, 1), *b = pop(SHORT, 1);
    push(2, MSGL_LANE_SHORT);
    push(2, MSGL_LANE_SHORT);
    done(b, 1);
    msgl_job *c = pop(SHORT, 2);
    done(a, 1000);
    a = pop(SHORT, 1); // at 1,001, but 2 has a thread
    done(c, 1);
    done(pop(SHORT, 2), 1);
    msgl_job *d = pop(SHORT, 1);
    done(a, 1);
    done(d, 1);
}

// Threads of other lanes leave a job alone; costs of all lanes count.
static void test_lanes(void **state)
{
    (void)state;
    push(1, MSGL_LANE_FORMS);
    push(1, MSGL_LANE_LONG);
    push(1, MSGL_LANE_SHORT);
    push(2, MSGL_LANE_SHORT);
    assert_null(msgl__job_turns_pop(&turns, 0));
    msgl_job *form = pop(FORMS, 1);
    assert_null(msgl__job_turns_pop(&turns, FORMS));
    msgl_job *b = pop(SHORT | LONG, 2); // 1 has a thread
    msgl_job *l = pop(SHORT | LONG, 1); // the older one of its two
    assert_int_equal(l->order, 1);
    done(form, 50);
    done(l, 0);
    push(2, MSGL_LANE_SHORT);
    done(b, 10);
    push(2, MSGL_LANE_FORMS);
    push(1, MSGL_LANE_FORMS);
    done(pop(SHORT, 2), 10); // 10 is before 50
    form = pop(FORMS, 2);    // 20 is
    msgl__job_turns_done(&turns, form, 40);
    msgl__job_turns_push(&turns, form, MSGL_LANE_FORMS); // it has more to do, at 60
    done(pop(FORMS, 1), 1);
    done(pop(FORMS, 2), 1);
    done(pop(SHORT, 1), 1);
}

// Without memory for a client, its jobs are served as those of one more.
static void test_no_memory(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) push(1, MSGL_LANE_SHORT);
    for (uint64_t client = 2; client < 4; client++) {
        msgl_job *j = msgl__calloc(1, sizeof *j);
        assert_non_null(j);
        j->client = client;
        j->order = order++;
        msgl__mem_fail_from(1);
        msgl__job_turns_push(&turns, j, MSGL_LANE_SHORT);
        msgl__mem_fail_from(0);
    }
    done(pop(SHORT, 2), 10); // the head of the ring is looked at first
    done(pop(SHORT, 1), 5);
    done(pop(SHORT, 1), 5);
    done(pop(SHORT, 3), 10);
    done(pop(SHORT, 1), 5);
}

// Costs of so many clients are kept and no more.
static void test_many_clients(void **state)
{
    (void)state;
    push(1, MSGL_LANE_LONG);
    msgl_job *running = pop(LONG, 1);
    for (uint64_t client = 2; client < 2 + 3 * MSGL_TURN_IDLE; client++) {
        push(client, MSGL_LANE_SHORT);
        done(pop(SHORT, client), 1000);
        assert_true(turns.idle <= MSGL_TURN_IDLE);
    }
    push(2, MSGL_LANE_SHORT); // left in the queue
    done(running, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_by_cost, begin, end),
        cmocka_unit_test_setup_teardown(test_newcomer, begin, end),
        cmocka_unit_test_setup_teardown(test_comes_back, begin, end),
        cmocka_unit_test_setup_teardown(test_threads, begin, end),
        cmocka_unit_test_setup_teardown(test_lanes, begin, end),
        cmocka_unit_test_setup_teardown(test_no_memory, begin, end),
        cmocka_unit_test_setup_teardown(test_many_clients, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
