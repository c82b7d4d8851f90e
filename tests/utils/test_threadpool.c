// SPDX-License-Identifier: Apache-2.0
//
// Every task exactly once, for every team size and task count; workers that slept wake again;
// start and stop leave nothing behind.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "core/mem.h"
#include "utils/heartbeat.h"
#include "utils/threadpool.h"

enum { MAX_TASKS = 300 };

typedef struct counts {
    atomic_int runs[MAX_TASKS]; // how often each task ran
    int plain[MAX_TASKS];       // written without atomics: a task belongs to one thread
    atomic_int bad_worker;
    int num_threads;
} counts;

static void count_task(void *arg, int task, int worker)
{
    counts *c = arg;
    atomic_fetch_add_explicit(&c->runs[task], 1, memory_order_relaxed);
    c->plain[task] += task + 1;
    if (worker < 0 || worker >= c->num_threads) atomic_store(&c->bad_worker, 1);
}

static void check_counts(counts *c, int num_tasks, int times)
{
    for (int t = 0; t < MAX_TASKS; t++) {
        const int want = t < num_tasks ? times : 0;
        assert_int_equal(atomic_load(&c->runs[t]), want);
        assert_int_equal(c->plain[t], want * (t + 1));
    }
    assert_int_equal(atomic_load(&c->bad_worker), 0);
}

static void each_task_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 6; threads++) {
        msgl_pool *p;
        assert_int_equal(msgl__pool_create(threads, &p, NULL), 0);
        assert_int_equal(msgl__pool_threads(p), threads);
        for (int tasks = 0; tasks <= MAX_TASKS; tasks += tasks < 9 ? 1 : 97) {
            counts c = {.num_threads = threads};
            for (int i = 0; i < 20; i++) msgl__pool_run(p, tasks, count_task, &c);
            check_counts(&c, tasks, 20);
        }
        msgl__pool_destroy(p);
    }
}

// Many short runs, some of them back to back and some after a pause in which workers go to sleep:
// the places where a wakeup could be lost or a late worker could meet the next run.
static void many_runs(void **state)
{
    (void)state;
    msgl_pool *p;
    assert_int_equal(msgl__pool_create(4, &p, NULL), 0);
    for (int i = 0; i < 20000; i++) {
        counts c = {.num_threads = 4};
        const int tasks = 2 + i % 7;
        msgl__pool_run(p, tasks, count_task, &c);
        check_counts(&c, tasks, 1);
        if (i % 50 == 0) {
            nanosleep(&(struct timespec){.tv_nsec = 20000 + (i % 11) * 5000}, NULL);
        }
    }
    msgl__pool_destroy(p);
}

static void slow_task(void *arg, int task, int worker)
{
    (void)worker;
    // The caller takes the first task, so a worker holds a late one while the caller waits asleep.
    if (task % 2 == 1) nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void caller_sleeps_for_slow_tasks(void **state)
{
    (void)state;
    msgl_pool *p;
    assert_int_equal(msgl__pool_create(3, &p, NULL), 0);
    for (int i = 0; i < 100; i++) {
        atomic_int done = 0;
        msgl__pool_run(p, 4, slow_task, &done);
        assert_int_equal(atomic_load(&done), 4);
    }
    msgl__pool_destroy(p);
}

static void no_heap_after_create(void **state)
{
    (void)state;
    msgl_pool *p;
    assert_int_equal(msgl__pool_create(3, &p, NULL), 0);
    const uint64_t before = msgl__mem_allocs();
    counts c = {.num_threads = 3};
    for (int i = 0; i < 100; i++) msgl__pool_run(p, 50, count_task, &c);
    assert_int_equal(msgl__mem_allocs(), before);
    msgl__pool_destroy(p);
}

static void create_and_destroy(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        msgl_pool *p;
        assert_int_equal(msgl__pool_create(1 + i % 5, &p, NULL), 0);
        msgl__pool_destroy(p);
    }
    msgl__pool_destroy(NULL);
}

static void refuses_bad_counts(void **state)
{
    (void)state;
    msgl_pool *p = (msgl_pool *)state; // any value: a failure has to clear it
    msgl_err err;
    assert_int_equal(msgl__pool_create(0, &p, &err), MSGL_EINVAL);
    assert_null(p);
    assert_non_null(strstr(err.text, "allowed: 1 to"));
    assert_int_equal(msgl__pool_create(-3, &p, &err), MSGL_EINVAL);
    assert_int_equal(msgl__pool_create(1 << 30, &p, &err), MSGL_EINVAL);
    msgl__mem_fail_from(1);
    assert_int_equal(msgl__pool_create(2, &p, &err), MSGL_ENOMEM);
    msgl__mem_fail_from(0);
}

static void cores_within_affinity(void **state)
{
    (void)state;
    cpu_set_t old, one;
    assert_int_equal(sched_getaffinity(0, sizeof old, &old), 0);
    const int cores = msgl__physical_cores();
    assert_in_range(cores, 1, CPU_COUNT(&old));
    CPU_ZERO(&one);
    for (int c = 0; c < CPU_SETSIZE && CPU_COUNT(&one) == 0; c++) {
        if (CPU_ISSET(c, &old)) CPU_SET(c, &one);
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(msgl__physical_cores(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof old, &old), 0);
}

static void nothing(void *arg, int task, int worker)
{
    (void)arg, (void)task, (void)worker;
}

// The caller beats with each of its tasks: alone that is all of them.
static void caller_beats(void **state)
{
    (void)state;
    msgl_heartbeat *life;
    assert_int_equal(msgl__heartbeat_create(&life, NULL), 0);
    for (int threads = 1; threads <= 2; threads++) {
        msgl_pool *p;
        assert_int_equal(msgl__pool_create(threads, &p, NULL), 0);
        msgl__pool_run(p, 100, nothing, NULL); // into no heart
        msgl__pool_set_heartbeat(p, life);
        uint64_t before = msgl__beats(life);
        msgl__pool_run(p, 1, nothing, NULL);
        assert_int_equal(msgl__beats(life) - before, 1);
        before = msgl__beats(life);
        // A run that the other thread takes alone is possible, hundreds in a row are not.
        for (int i = 0; i < 300; i++) msgl__pool_run(p, 100, nothing, NULL);
        const uint64_t beats = msgl__beats(life) - before;
        assert_true(threads == 1 ? beats == 30000 : beats > 0 && beats <= 30000);
        msgl__pool_destroy(p);
    }
    msgl__heartbeat_destroy(life);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(caller_beats),
        cmocka_unit_test(each_task_once),
        cmocka_unit_test(many_runs),
        cmocka_unit_test(caller_sleeps_for_slow_tasks),
        cmocka_unit_test(no_heap_after_create),
        cmocka_unit_test(create_and_destroy),
        cmocka_unit_test(refuses_bad_counts),
        cmocka_unit_test(cores_within_affinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
