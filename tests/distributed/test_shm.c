// SPDX-License-Identifier: Apache-2.0
//
// The communicators over shared memory and over TCP, their ranks as threads: every call's result on
// every rank, bit for bit, for sizes around the slot's and the algorithms' limits; calls that
// differ; failures.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/mem.h"
#include "distributed/communicator.h"
#include "distributed/internal.h"
#include "kernel/exec.h"
#include "utils/random.h"

enum { MAX_RANKS = 4, PIECE = MSGL_GROUP_SLOT_BYTES / sizeof(float), MOST = 3 * PIECE + 77 };

static bool over_tcp;

typedef struct rank {
    msgl_group *group;
    int index, size;
    msgl_group_member *member;
    msgl_comm *comm;
    msgl_exec x;
    int fds[MAX_RANKS]; // of msgl__comm_tcp_create
    float *buf, *want;  // [MOST]; [MAX_RANKS, MOST]
    size_t n;
    int bad; // what went wrong: line of the test
    void (*body)(struct rank *);
    pthread_t thread;
} rank;

// Threads have no assertions of cmocka's: the first breach is kept.
#define EXPECT(r, cond)                                                                            \
    do {                                                                                           \
        if (!(cond) && (r)->bad == 0) (r)->bad = __LINE__;                                         \
    } while (0)

// What rank `index` has at i in call `call`; of any magnitude, so that the order of sums shows.
static float value(int index, size_t call, size_t i)
{
    const uint64_t z = msgl__mix_bits((uint64_t)index << 56 ^ (uint64_t)call << 40 ^ i);
    const float unit = (float)(int32_t)(z >> 32) * 0x1p-31f;
    return unit * (float)(1u << (z & 15));
}

static void *thread_main(void *arg)
{
    rank *r = arg;
    EXPECT(r, msgl__group_join(r->group, r->index, &r->member, NULL) == 0);
    EXPECT(r, (over_tcp ? msgl__comm_tcp_create(r->member, r->fds, &r->comm, NULL)
                        : msgl__comm_shm_create(r->member, &r->comm, NULL)) == 0);
    EXPECT(r, r->comm->rank == r->index && r->comm->size == r->size);
    r->body(r);
    r->comm->ops->destroy(r->comm);
    msgl__group_leave(r->member);
    return NULL;
}

static void connect_ranks(rank *ranks, int size)
{
    for (int i = 1; i < size; i++) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        ranks[0].fds[i] = pair[0];
        ranks[i].fds[0] = pair[1];
    }
}

static void disconnect_ranks(const rank *ranks, int size)
{
    for (int i = 1; i < size; i++) {
        close(ranks[0].fds[i]);
        close(ranks[i].fds[0]);
    }
}

// body(rank) on `size` threads; returns the rank to blame at the end.
static int with_ranks(int size, void (*body)(rank *))
{
    rank ranks[MAX_RANKS];
    msgl_group *g;
    assert_int_equal(msgl__group_create(size, &g, NULL), 0);
    for (int i = 0; i < size; i++) {
        rank *r = &ranks[i];
        *r = (rank){.group = g, .index = i, .size = size, .body = body};
        r->buf = msgl__malloc(MOST * sizeof(float));
        r->want = msgl__malloc((size_t)MAX_RANKS * MOST * sizeof(float));
        assert_non_null(r->buf);
        assert_non_null(r->want);
    }
    connect_ranks(ranks, size);
    for (int i = 0; i < size; i++) {
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, thread_main, &ranks[i]), 0);
    }
    for (int i = 0; i < size; i++) pthread_join(ranks[i].thread, NULL);
    disconnect_ranks(ranks, size);
    for (int i = 0; i < size; i++) {
        assert_int_equal(ranks[i].bad, 0); // else: a line of this file
        msgl__free(ranks[i].buf);
        msgl__free(ranks[i].want);
    }
    const int blamed = msgl__group_blamed(g);
    msgl__group_destroy(g);
    return blamed;
}

static const size_t COUNTS[] = {
    0,         1,     2,         3,         17,        255,      1001,  4095,
    4096,      4097,  8191,      8192,      8193,      12345,    16385, 32769,
    PIECE - 1, PIECE, PIECE + 1, PIECE + 5, 2 * PIECE, MOST - 1, MOST,
};

static void sums(rank *r)
{
    for (size_t k = 0; k < MSGL_COUNT(COUNTS); k++) {
        const size_t n = COUNTS[k];
        for (size_t i = 0; i < n; i++) {
            float sum = value(0, k, i);
            for (int s = 1; s < r->size; s++) sum += value(s, k, i);
            r->want[i] = sum;
            r->buf[i] = value(r->index, k, i);
        }
        if (n < MOST) r->buf[n] = 7;
        r->comm->ops->all_reduce(r->comm, &r->x, MSGL_F32, r->buf, n);
        EXPECT(r, memcmp(r->buf, r->want, n * sizeof(float)) == 0);
        EXPECT(r, n == MOST || r->buf[n] == 7);
    }
    EXPECT(r, r->x.status == 0);
}

static void test_sums(void **state)
{
    (void)state;
    for (int size = 2; size <= MAX_RANKS; size++) assert_int_equal(with_ranks(size, sums), -1);
}

// Many calls of changing size one after another, some ranks later than others: what a slot that is
// written too early would spoil.
static void many_sums(rank *r)
{
    uint64_t random = 3; // the same in all ranks
    for (size_t k = 0; k < 400; k++) {
        const uint64_t draw = msgl__random(&random);
        const size_t n = draw % 11 == 0 ? PIECE + draw % 5000 : draw % 6000;
        if ((draw >> 20) % 50 == (uint64_t)r->index) {
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        }
        for (size_t i = 0; i < n; i++) r->buf[i] = (float)((size_t)r->index + i % 64 + k);
        r->comm->ops->all_reduce(r->comm, &r->x, MSGL_F32, r->buf, n);
        const size_t size = (size_t)r->size;
        size_t wrong = 0;
        for (size_t i = 0; i < n; i++) {
            wrong += r->buf[i] != (float)(size * (size - 1) / 2 + size * (i % 64 + k));
        }
        EXPECT(r, wrong == 0);
    }
    EXPECT(r, r->x.status == 0);
}

static void test_many_sums(void **state)
{
    (void)state;
    for (int size = 2; size <= MAX_RANKS; size++) assert_int_equal(with_ranks(size, many_sums), -1);
}

static void gathers(rank *r)
{
    static const size_t counts[] = {0, 1, 33, 4097, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 9};
    for (size_t k = 0; k < 2 * MSGL_COUNT(counts); k++) {
        const size_t n = counts[k / 2];
        float *out = r->want, *own = out + (size_t)r->index * n;
        float *in = k % 2 == 0 ? r->buf : own; // may be its own row of out
        memset(out, 0xff, (size_t)r->size * n * sizeof *out);
        for (size_t i = 0; i < n; i++) in[i] = value(r->index, k, i);
        r->comm->ops->all_gather(r->comm, &r->x, in, n, out);
        size_t wrong = 0;
        for (int s = 0; s < r->size; s++) {
            for (size_t i = 0; i < n; i++) wrong += out[(size_t)s * n + i] != value(s, k, i);
        }
        EXPECT(r, wrong == 0);
    }
    EXPECT(r, r->x.status == 0);
}

// Elements from rank `from` to rank `to` of call k: none, all to one rank, as many to each, any.
static size_t exchanged(int size, size_t k, int from, int to)
{
    static const size_t even[] = {1, 33, PIECE / 3, PIECE / 3 + 1, PIECE / 2 + 9};
    switch (k) {
    case 0: return 0;
    case 1: return to == 0 ? (size_t)(from + 1) * 1000 : 0;
    case 2: return from == size - 1 ? PIECE / 2 : 0;
    case 3: return from == to ? 77 : 0;
    default: break;
    }
    if (k < 4 + MSGL_COUNT(even)) return even[k - 4];
    const uint64_t z = msgl__mix_bits((uint64_t)k << 32 | (uint64_t)from << 16 | (uint64_t)to);
    return z % 3 == 0 ? 0 : z % 3 == 1 ? z >> 8 & 255 : (z >> 8) % (MOST / MAX_RANKS);
}

static void exchanges(rank *r)
{
    const int size = r->size;
    for (size_t k = 0; k < 40; k++) {
        size_t counts[MAX_RANKS * MAX_RANKS], n = 0, in = 0, wrong = 0;
        for (int i = 0; i < size * size; i++) counts[i] = exchanged(size, k, i / size, i % size);
        for (int to = 0; to < size; to++) {
            for (size_t i = 0; i < counts[r->index * size + to]; i++) {
                r->buf[in++] = value(r->index * MAX_RANKS + to, k, i);
            }
        }
        for (int from = 0; from < size; from++) n += counts[from * size + r->index];
        memset(r->want, 0xff, (n + 1) * sizeof(float));
        r->want[n] = 7;
        r->comm->ops->all_to_all(r->comm, &r->x, r->buf, counts, r->want);
        const float *out = r->want;
        for (int from = 0; from < size; from++) {
            for (size_t i = 0; i < counts[from * size + r->index]; i++) {
                wrong += *out++ != value(from * MAX_RANKS + r->index, k, i);
            }
        }
        EXPECT(r, wrong == 0 && *out == 7);
    }
    EXPECT(r, r->x.status == 0);
}

static void test_exchange(void **state)
{
    (void)state;
    for (int size = 2; size <= MAX_RANKS; size++) assert_int_equal(with_ranks(size, exchanges), -1);
}

static void broadcasts(rank *r)
{
    static const size_t sizes[] = {0,
                                   1,
                                   3,
                                   4096,
                                   MSGL_GROUP_SLOT_BYTES - 1,
                                   MSGL_GROUP_SLOT_BYTES,
                                   MSGL_GROUP_SLOT_BYTES + 1,
                                   3 * MSGL_GROUP_SLOT_BYTES + 2};
    unsigned char *bytes = (unsigned char *)r->buf;
    for (size_t k = 0; k < MSGL_COUNT(sizes); k++) {
        for (int root = 0; root < r->size; root++) {
            const size_t n = sizes[k];
            memset(bytes, 0xee, n + 1);
            for (size_t i = 0; i < n && r->index == root; i++) {
                bytes[i] = (unsigned char)(i * 7 + (size_t)root + (i >> 8));
            }
            r->comm->ops->broadcast(r->comm, &r->x, bytes, n, root);
            size_t wrong = 0;
            for (size_t i = 0; i < n; i++) {
                wrong += bytes[i] != (unsigned char)(i * 7 + (size_t)root + (i >> 8));
            }
            EXPECT(r, wrong == 0 && bytes[n] == 0xee);
        }
    }
    EXPECT(r, r->x.status == 0);
}

static void test_gather_and_broadcast(void **state)
{
    (void)state;
    for (int size = 2; size <= MAX_RANKS; size++) {
        assert_int_equal(with_ranks(size, gathers), -1);
        if (!over_tcp) assert_int_equal(with_ranks(size, broadcasts), -1);
    }
}

// Nobody is behind a sum of nothing before all were at it.
static atomic_int at_sum;

static void meetings(rank *r)
{
    for (int k = 1; k <= 300; k++) {
        if (k % 7 == r->index) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        atomic_fetch_add(&at_sum, 1);
        r->comm->ops->all_reduce(r->comm, &r->x, MSGL_F32, r->buf, 0);
        EXPECT(r, atomic_load(&at_sum) >= k * r->size);
    }
    EXPECT(r, r->x.status == 0);
}

static void test_meetings(void **state)
{
    (void)state;
    for (int size = 2; size <= MAX_RANKS; size++) {
        atomic_store(&at_sum, 0);
        assert_int_equal(with_ranks(size, meetings), -1);
    }
}

// A rank whose step has failed takes part, and keeps its status.
static void failed_before(rank *r)
{
    if (r->index == 1) r->x.status = MSGL_ENUMERIC;
    r->buf[0] = 2;
    r->comm->ops->all_reduce(r->comm, &r->x, MSGL_F32, r->buf, 1);
    EXPECT(r, r->buf[0] == 2 * (float)r->size);
    EXPECT(r, r->x.status == (r->index == 1 ? MSGL_ENUMERIC : 0));
}

static void test_failed_before(void **state)
{
    (void)state;
    assert_int_equal(with_ranks(3, failed_before), -1);
}

// The last rank's call differs from the others'.
static int how_different;

static void different(rank *r)
{
    const bool odd = r->index == r->size - 1;
    const size_t counts[MAX_RANKS * MAX_RANKS] = {odd ? 1 : 2, odd ? 2 : 1};
    msgl_comm *c = r->comm;
    memset(r->buf, 0, MOST * sizeof *r->buf);
    memset(r->want, 0, MOST * sizeof *r->want);
    c->ops->all_reduce(c, &r->x, MSGL_F32, r->buf, 100);
    EXPECT(r, r->x.status == 0);
    switch (how_different) {
    case 0: c->ops->all_reduce(c, &r->x, MSGL_F32, r->buf, odd ? 200 : 100); break;
    case 1:
        c->ops->all_reduce(c, &r->x, MSGL_F32, r->buf, odd ? 100 : MOST);
        break; // other barriers, too
    case 2: c->ops->broadcast(c, &r->x, r->buf, 8, odd ? 1 : 0); break;
    case 3: c->ops->all_gather(c, &r->x, r->buf, odd ? 5 : 4, r->want); break;
    case 4:
        if (odd)
            c->ops->all_gather(c, &r->x, r->buf, 100, r->want);
        else
            c->ops->all_reduce(c, &r->x, MSGL_F32, r->buf, 100);
        break;
    case 5: // as many in all
        c->ops->all_to_all(c, &r->x, r->buf, counts, r->want);
        break;
    default: // a call that the others do not make
        if (odd)
            c->ops->all_gather(c, &r->x, r->buf, 0, r->want);
        else
            c->ops->all_reduce(c, &r->x, MSGL_F32, r->buf, 0);
        break;
    }
    // Over TCP rank 0 sees it, and the others that somebody is to blame.
    const int want = over_tcp && r->index > 0 ? MSGL_EPEER : MSGL_EINTERNAL;
    EXPECT(r, r->x.status == want);
    r->x.status = 0; // every later call ends at once, in all ranks
    c->ops->all_reduce(c, &r->x, MSGL_F32, r->buf, 0);
    EXPECT(r, r->x.status == want);
}

static void test_different_calls(void **state)
{
    (void)state;
    for (how_different = 0; how_different < 7; how_different++) {
        if (over_tcp && (how_different == 2 || how_different == 5)) continue; // not there
        for (int size = 2; size <= MAX_RANKS; size++) {
            assert_int_equal(with_ranks(size, different), size - 1);
        }
    }
}

// A rank that leaves frees those that wait for it, and is not to blame.
static void leaves(rank *r)
{
    r->comm->ops->all_reduce(r->comm, &r->x, MSGL_F32, r->buf, 0);
    EXPECT(r, r->x.status == 0);
    if (r->index == 1) return;
    r->comm->ops->all_reduce(r->comm, &r->x, MSGL_F32, r->buf, 10);
    EXPECT(r, r->x.status == MSGL_EPEER);
    r->x.status = MSGL_ENUMERIC;
    r->comm->ops->all_reduce(r->comm, &r->x, MSGL_F32, r->buf, 10);
    EXPECT(r, r->x.status == MSGL_ENUMERIC);
}

static void test_one_leaves(void **state)
{
    (void)state;
    for (int size = 2; size <= MAX_RANKS; size++) assert_int_equal(with_ranks(size, leaves), -1);
}

// All wait for rank 1, which is blamed meanwhile, and does not leave before they are free.
static atomic_int freed;

static void blamed(rank *r)
{
    const struct timespec moment = {.tv_nsec = 30000000};
    if (r->index == 1) {
        nanosleep(&moment, NULL); // the others sleep by now
        msgl__group_blame(r->group, 1);
        for (int i = 0; i < 100 && atomic_load(&freed) < r->size - 1; i++) nanosleep(&moment, NULL);
        EXPECT(r, atomic_load(&freed) == r->size - 1);
    }
    r->comm->ops->all_reduce(r->comm, &r->x, MSGL_F32, r->buf, 10);
    EXPECT(r, r->x.status == MSGL_EPEER);
    atomic_fetch_add(&freed, 1);
}

static void test_blamed(void **state)
{
    (void)state;
    for (int size = 2; size <= MAX_RANKS; size++) {
        atomic_store(&freed, 0);
        assert_int_equal(with_ranks(size, blamed), 1);
    }
}

static int go_over_tcp(void **state)
{
    (void)state;
    over_tcp = true;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_many_sums),
        cmocka_unit_test(test_gather_and_broadcast),
        cmocka_unit_test(test_meetings),
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_failed_before),
        cmocka_unit_test(test_different_calls),
        cmocka_unit_test(test_one_leaves),
        cmocka_unit_test(test_blamed),
    };
    const struct CMUnitTest of_tcp[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_many_sums),
        cmocka_unit_test(test_gather_and_broadcast),
        cmocka_unit_test(test_meetings),
        cmocka_unit_test(test_failed_before),
        cmocka_unit_test(test_different_calls),
        cmocka_unit_test(test_one_leaves),
        cmocka_unit_test(test_blamed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) +
           cmocka_run_group_tests(of_tcp, go_over_tcp, NULL);
}
