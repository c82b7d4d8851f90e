// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are processes, and end badly: killed or stopped while all reduce in a loop. The others
// are free within two seconds, and know who it was.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "distributed/communicator.h"
#include "distributed/group.h"
#include "kernel/exec.h"
#include "utils/clock.h"

enum { MAX_RANKS = 4, MAX_COUNT = 100000, LIMIT_MS = 2000 };

// What ranks tell the test.
typedef struct report {
    _Atomic uint64_t calls, ended; // ended: when the loop did, monotonic ns
    int status, blamed;
    double cpu_s;
} report;

typedef struct host {
    msgl_group *group;
    report *reports; // shared, [MAX_RANKS]
    pid_t pids[MAX_RANKS];
    int size;
    uint64_t most_calls; // then it leaves on purpose
} host;

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static int rank_main(const host *h, int rank)
{
    static float buf[MAX_COUNT];
    report *r = &h->reports[rank];
    msgl_exec x = {.act = MSGL_F32};
    msgl_group_member *m;
    msgl_comm *c;
    if (msgl__group_join(h->group, rank, &m, NULL) != 0) return 1;
    if (msgl__comm_shm_create(m, &c, NULL) != 0) return 1;
    for (uint64_t k = 0; k < h->most_calls && x.status == 0; k++) {
        const size_t n = k % 5 == 0 ? MAX_COUNT : 1000;
        for (size_t i = 0; i < n; i++) buf[i] = 1;
        c->ops->all_reduce(c, &x, MSGL_F32, buf, n);
        if (x.status == 0 && buf[n - 1] != (float)h->size) return 2;
        atomic_fetch_add(&r->calls, 1);
    }
    r->status = x.status;
    r->blamed = msgl__group_blamed(h->group);
    atomic_store(&r->ended, msgl__now_ns());
    r->cpu_s = cpu_seconds();
    c->ops->destroy(c);
    msgl__group_leave(m);
    return 0;
}

static void start(host *h, int size, uint64_t most_calls)
{
    *h = (host){.size = size, .most_calls = most_calls};
    assert_int_equal(msgl__group_create(size, &h->group, NULL), 0);
    h->reports = mmap(NULL, sizeof(report[MAX_RANKS]), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(h->reports != MAP_FAILED);
    for (int i = 0; i < size; i++) {
        h->pids[i] = fork();
        assert_true(h->pids[i] >= 0);
        if (h->pids[i] > 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL); // a test that fails leaves nobody
        _exit(rank_main(h, i));
    }
}

static void wait_calls(const host *h, uint64_t calls)
{
    const uint64_t end = msgl__now_ns() + 20000000000u;
    for (int i = 0; i < h->size; i++) {
        while (atomic_load(&h->reports[i].calls) < calls) {
            assert_true(msgl__now_ns() < end);
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
    }
}

static void finish(host *h)
{
    msgl__group_destroy(h->group);
    munmap(h->reports, sizeof(report[MAX_RANKS]));
}

// The others' ends after `from`; blamed -1: they left on purpose.
static void check_others(const host *h, int victim, uint64_t from)
{
    for (int i = 0; i < h->size; i++) {
        if (i == victim) continue;
        int status;
        assert_int_equal(waitpid(h->pids[i], &status, 0), h->pids[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        const report *r = &h->reports[i];
        assert_int_equal(r->status, MSGL_EPEER);
        assert_int_equal(r->blamed, victim);
        const uint64_t ms = (atomic_load(&r->ended) - from) / 1000000;
        if (ms > LIMIT_MS) print_message("rank %d was free after %d ms\n", i, (int)ms);
        assert_true(ms <= LIMIT_MS);
    }
}

static void check_victim(const host *h, int victim, int signal_number)
{
    int status;
    // When a stopped rank goes on, it finds itself to blame, and nobody else.
    if (signal_number == SIGSTOP) assert_int_equal(kill(h->pids[victim], SIGCONT), 0);
    assert_int_equal(waitpid(h->pids[victim], &status, 0), h->pids[victim]);
    if (signal_number == SIGSTOP) {
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        assert_int_equal(h->reports[victim].status, MSGL_EPEER);
        assert_int_equal(h->reports[victim].blamed, victim);
    } else {
        assert_true(WIFSIGNALED(status));
    }
}

// As many groups as ranks, at the same time, each of which loses another one.
static void lose(int size, int signal_number)
{
    host h[MAX_RANKS];
    uint64_t from[MAX_RANKS];
    for (int v = 0; v < size; v++) start(&h[v], size, UINT64_MAX);
    for (int v = 0; v < size; v++) wait_calls(&h[v], 50);
    for (int v = 0; v < size; v++) {
        from[v] = msgl__now_ns();
        assert_int_equal(kill(h[v].pids[v], signal_number), 0);
    }
    for (int v = 0; v < size; v++) {
        check_others(&h[v], v, from[v]);
        check_victim(&h[v], v, signal_number);
        finish(&h[v]);
    }
}

static void test_killed(void **state)
{
    (void)state;
    for (int size = 2; size <= MAX_RANKS; size++) lose(size, SIGKILL);
}

static void test_stopped(void **state)
{
    (void)state;
    for (int size = 2; size <= MAX_RANKS; size++) lose(size, SIGSTOP);
}

// Who reaps a dead rank frees the others at once; they slept meanwhile.
static void test_reaped(void **state)
{
    (void)state;
    host h;
    start(&h, 3, UINT64_MAX);
    wait_calls(&h, 50);
    const uint64_t from = msgl__now_ns();
    assert_int_equal(kill(h.pids[1], SIGKILL), 0);
    int status;
    assert_int_equal(waitpid(h.pids[1], &status, 0), h.pids[1]);
    msgl__group_blame(h.group, 1);
    check_others(&h, 1, from);
    for (int i = 0; i < 3; i += 2) {
        assert_true(atomic_load(&h.reports[i].ended) - from < 700000000u);
    }
    finish(&h);
}

// Waiting costs no processor: ranks that wait for a stopped one sleep.
static void test_waiting_sleeps(void **state)
{
    (void)state;
    host h;
    start(&h, 4, 1);
    const pid_t late = h.pids[2]; // before or in its first call
    kill(late, SIGSTOP);
    nanosleep(&(struct timespec){.tv_nsec = 700000000}, NULL);
    kill(late, SIGCONT);
    for (int i = 0; i < h.size; i++) {
        int status;
        assert_int_equal(waitpid(h.pids[i], &status, 0), h.pids[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        assert_int_equal(h.reports[i].status, 0);
        assert_true(h.reports[i].cpu_s < 0.2);
    }
    finish(&h);
}

// Ranks that end together blame nobody, though some are gone earlier than others.
static void test_leaving(void **state)
{
    (void)state;
    for (int size = 2; size <= MAX_RANKS; size++) {
        host h;
        start(&h, size, 100);
        for (int i = 0; i < size; i++) {
            int status;
            assert_int_equal(waitpid(h.pids[i], &status, 0), h.pids[i]);
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
            assert_int_equal(h.reports[i].status, 0);
            assert_int_equal(h.reports[i].blamed, -1);
        }
        assert_int_equal(msgl__group_blamed(h.group), -1);
        finish(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leaving), cmocka_unit_test(test_waiting_sleeps),
        cmocka_unit_test(test_reaped),  cmocka_unit_test(test_killed),
        cmocka_unit_test(test_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
