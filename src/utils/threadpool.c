// SPDX-License-Identifier: Apache-2.0
//
// One run is published as a ticket, a 64-bit word of (run number, tasks left). A worker claims a
// task by a compare-and-swap that takes one from it, so a worker that wakes late can only claim
// from the run that is current then, and nobody has to wait for workers that are not running. The
// job's fields are read after a claim only: the run cannot end, and so they cannot change, before
// the claimed task is done.
//
// Threads are not pinned: when another process takes a core, the scheduler may move a worker, and
// the tasks that it would have done are claimed by the others meanwhile.
#include "utils/threadpool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "utils/clock.h"
#include "utils/heartbeat.h"

enum { MAX_THREADS = 1024, SPIN_NS = 20000, SPINS_PER_CLOCK = 16 };

typedef struct worker {
    msgl_pool *pool;
    pthread_t thread;
    int index;
} worker;

struct msgl_pool {
    // Written by the caller before the ticket is published.
    msgl_task_fn fn;
    void *arg;
    int num_tasks;
    MSGL_ALIGNED(64) _Atomic uint64_t ticket; // run number << 32 | tasks not yet claimed
    MSGL_ALIGNED(64) atomic_uint run;         // futex of idle workers: changes with every run
    atomic_int sleepers;                      // workers that are, or are about to be, in the futex
    atomic_bool stop;
    MSGL_ALIGNED(64) atomic_uint pending; // futex of the caller: tasks not yet done
    atomic_bool caller_sleeps;
    MSGL_ALIGNED(64) int num_threads;
    msgl_heartbeat *heartbeat; // the caller's, NULL: none
    worker workers[];          // num_threads - 1
};

static void futex_wait(atomic_uint *word, unsigned expected)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

// Spins until *word differs from `value` or SPIN_NS are over.
static void spin_while(const atomic_uint *word, unsigned value)
{
    const uint64_t end = msgl__now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            if (atomic_load_explicit(word, memory_order_relaxed) != value) return;
            MSGL_CPU_RELAX();
        }
    } while (msgl__now_ns() < end);
}

// Takes tasks of whatever run is current until none is left.
static void work(msgl_pool *p, int index)
{
    uint64_t t = atomic_load_explicit(&p->ticket, memory_order_relaxed);
    while ((uint32_t)t != 0) {
        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &t, t - 1, memory_order_acquire,
                                                   memory_order_relaxed)) {
            continue;
        }
        if (index == 0) msgl__beat(p->heartbeat, MSGL_BEAT_COMPUTE);
        p->fn(p->arg, p->num_tasks - (int)(uint32_t)t, index);
        // Sequentially consistent with caller_sleeps: either we see the flag, or the caller's futex
        // call sees the new count.
        if (atomic_fetch_sub(&p->pending, 1) == 1 && atomic_load(&p->caller_sleeps)) {
            futex_wake(&p->pending, 1);
        }
        t = atomic_load_explicit(&p->ticket, memory_order_relaxed);
    }
}

static void *worker_main(void *arg)
{
    const worker *w = arg;
    msgl_pool *p = w->pool;
    pthread_setname_np(pthread_self(), "msgl-worker"); // any other's is a file to write
    for (;;) {
        // Read before looking for work: a run published after this changes it, and ends the wait.
        const unsigned seen = atomic_load_explicit(&p->run, memory_order_acquire);
        if (atomic_load_explicit(&p->stop, memory_order_relaxed)) return NULL;
        work(p, w->index);
        spin_while(&p->run, seen);
        if (atomic_load_explicit(&p->run, memory_order_relaxed) != seen) continue;
        atomic_fetch_add(&p->sleepers, 1);
        futex_wait(&p->run, seen); // returns at once when the run number has changed
        atomic_fetch_sub(&p->sleepers, 1);
    }
}

static void stop_workers(msgl_pool *p, int started)
{
    atomic_store_explicit(&p->stop, true, memory_order_relaxed);
    atomic_fetch_add(&p->run, 1);
    futex_wake(&p->run, started);
    for (int i = 0; i < started; i++) pthread_join(p->workers[i].thread, NULL);
}

int msgl__pool_create(int num_threads, msgl_pool **out, msgl_err *err)
{
    *out = NULL;
    if (num_threads < 1 || num_threads > MAX_THREADS) {
        return msgl__err_set(err, MSGL_EINVAL, "thread count is %d; allowed: 1 to %d", num_threads,
                             MAX_THREADS);
    }
    const size_t bytes = sizeof(msgl_pool) + (size_t)(num_threads - 1) * sizeof(worker);
    msgl_pool *p = msgl__aligned_alloc(64, bytes);
    if (p == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory for the thread pool");
    memset(p, 0, bytes);
    p->num_threads = num_threads;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); // signals belong to the program's own threads
    int rc = 0, started = 0;
    for (; started < num_threads - 1 && rc == 0; started += rc == 0) {
        worker *w = &p->workers[started];
        *w = (worker){.pool = p, .index = started + 1};
        rc = pthread_create(&w->thread, NULL, worker_main, w);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        stop_workers(p, started);
        msgl__free(p);
        return msgl__err_set(err, MSGL_EINTERNAL, "cannot start thread %d of %d: %s", started + 2,
                             num_threads, strerror(rc));
    }
    *out = p;
    return 0;
}

void msgl__pool_destroy(msgl_pool *p)
{
    if (p == NULL) return;
    stop_workers(p, p->num_threads - 1);
    msgl__free(p);
}

int msgl__pool_threads(const msgl_pool *p)
{
    return p->num_threads;
}

void msgl__pool_set_heartbeat(msgl_pool *p, msgl_heartbeat *h)
{
    p->heartbeat = h;
}

// Waits until the tasks that workers still hold are done.
static void wait_done(msgl_pool *p)
{
    unsigned left = atomic_load_explicit(&p->pending, memory_order_acquire);
    const uint64_t end = msgl__now_ns() + SPIN_NS;
    while (left != 0 && msgl__now_ns() < end) {
        for (int i = 0; i < SPINS_PER_CLOCK && left != 0; i++) {
            MSGL_CPU_RELAX();
            left = atomic_load_explicit(&p->pending, memory_order_acquire);
        }
    }
    if (left == 0) return;
    // The holder may have lost its core: sleeping offers it ours.
    atomic_store(&p->caller_sleeps, true);
    while ((left = atomic_load(&p->pending)) != 0) futex_wait(&p->pending, left);
    atomic_store_explicit(&p->caller_sleeps, false, memory_order_relaxed);
}

void msgl__pool_run(msgl_pool *p, int num_tasks, msgl_task_fn fn, void *arg)
{
    if (num_tasks <= 1 || p->num_threads == 1) {
        for (int i = 0; i < num_tasks; i++) {
            msgl__beat(p->heartbeat, MSGL_BEAT_COMPUTE);
            fn(arg, i, 0);
        }
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->num_tasks = num_tasks;
    atomic_store_explicit(&p->pending, (unsigned)num_tasks, memory_order_relaxed);
    const uint64_t number = atomic_load_explicit(&p->run, memory_order_relaxed) + 1u;
    atomic_store_explicit(&p->ticket, number << 32 | (unsigned)num_tasks, memory_order_release);
    // Sequentially consistent with sleepers: either a worker's futex call sees the new number, or
    // we see the worker.
    atomic_fetch_add(&p->run, 1);
    if (atomic_load(&p->sleepers) > 0) {
        futex_wake(&p->run, num_tasks < p->num_threads ? num_tasks - 1 : p->num_threads - 1);
    }
    work(p, 0);
    wait_done(p);
}

// Upper bound on CPUs whose affinity is asked for.
enum { MAX_CPUS = 8192 };

// Lowest CPU number in a sysfs list such as "0,64" or "0-1" that is also in `set`; -1: none.
static int lowest_sibling(const char *list, const cpu_set_t *set, size_t set_size)
{
    const char *s = list;
    int first, last, used;
    while (sscanf(s, "%d%n", &first, &used) == 1) {
        s += used;
        last = first;
        if (*s == '-' && sscanf(s, "-%d%n", &last, &used) == 1) s += used;
        for (int c = first; c <= last && c < MAX_CPUS; c++) {
            if (c >= 0 && CPU_ISSET_S(c, set_size, set)) return c;
        }
        if (*s != ',') break;
        s++;
    }
    return -1;
}

// True when `cpu` is the first of its core's hyper-threads that we may use; true too when sysfs
// does not tell.
static int first_of_core(int cpu, const cpu_set_t *set, size_t set_size)
{
    char path[96], list[512];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "re");
    if (f == NULL) return 1;
    const int got = fgets(list, sizeof list, f) != NULL;
    fclose(f);
    const int lowest = got ? lowest_sibling(list, set, set_size) : -1;
    return lowest < 0 || lowest == cpu;
}

// CPU time limit of the control group (containers), in whole CPUs rounded up; `count` when none.
static int quota_cpus(int count)
{
    long long quota, period;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (f == NULL) return count;
    const int n = fscanf(f, "%lld %lld", &quota, &period); // "max 100000" when there is no limit
    fclose(f);
    if (n != 2 || quota < 1 || period < 1) return count;
    const long long cpus = quota / period + (quota % period != 0);
    return cpus < count ? (int)cpus : count;
}

int msgl__physical_cores(void)
{
    cpu_set_t set[MAX_CPUS / CPU_SETSIZE];
    if (sched_getaffinity(0, sizeof set, set) != 0) return 1;
    int count = 0;
    for (int c = 0; c < MAX_CPUS; c++) {
        if (CPU_ISSET_S(c, sizeof set, set)) count += first_of_core(c, set, sizeof set);
    }
    return quota_cpus(count > 0 ? count : 1);
}
