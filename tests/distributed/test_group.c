// SPDX-License-Identifier: Apache-2.0
//
// The memory that ranks share and the watch over them: who is to blame and when, by a clock that
// the test sets, and with members that are threads of this process. (Ranks that are processes, and
// die: test_ranks.c.)
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/mem.h"
#include "distributed/internal.h"
#include "distributed/link.h"
#include "utils/heartbeat.h"

static const uint64_t MS = 1000000, START = 5000000000000u;

static msgl_group *make(int size)
{
    msgl_group *g;
    assert_int_equal(msgl__group_create(size, &g, NULL), 0);
    return g;
}

static void set_state(msgl_group *g, int rank, unsigned state)
{
    atomic_store(&g->ranks[rank].state, state);
}

static void beat(msgl_group *g, int rank)
{
    atomic_fetch_add(&g->ranks[rank].beats, 1);
}

static void test_sizes(void **state)
{
    (void)state;
    const int bad[] = {-1, 0, 1, 65};
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        msgl_group *g = (msgl_group *)bad;
        msgl_err err;
        assert_int_equal(msgl__group_create(bad[i], &g, &err), MSGL_EINVAL);
        assert_null(g);
        char want[32];
        snprintf(want, sizeof want, "group of %d ranks", bad[i]);
        assert_non_null(strstr(err.text, want));
    }
    for (int size = 2; size <= 64; size += 31) {
        msgl_group *g = make(size);
        assert_int_equal(msgl__group_size(g), size);
        assert_int_equal(msgl__group_blamed(g), -1);
        // The last byte of the last slot is there.
        char *last = msgl__group_slot(g, size - 1, MSGL_GROUP_SLOTS - 1);
        last[MSGL_GROUP_SLOT_BYTES - 1] = 1;
        assert_true(last + MSGL_GROUP_SLOT_BYTES <= (char *)g + g->bytes);
        msgl__group_destroy(g);
    }
    msgl__group_destroy(NULL);
}

// Nothing with a name, in /dev/shm or elsewhere.
static void test_memory_has_no_name(void **state)
{
    (void)state;
    msgl_group *g = make(3);
    FILE *f = fopen("/proc/self/maps", "re");
    assert_non_null(f);
    char line[512];
    int found = 0;
    while (fgets(line, sizeof line, f) != NULL) {
        assert_null(strstr(line, "/dev/shm"));
        unsigned long from, to;
        assert_int_equal(sscanf(line, "%lx-%lx", &from, &to), 2);
        if ((uintptr_t)g < from || (uintptr_t)g >= to) continue;
        found++;
        assert_non_null(strstr(line, "rw-s"));
        assert_non_null(strstr(line, "/dev/zero (deleted)")); // the kernel's word for anonymous
    }
    fclose(f);
    assert_int_equal(found, 1);
    msgl__group_destroy(g);
}

static void test_join(void **state)
{
    (void)state;
    msgl_group *g = make(2);
    msgl_group_member *m, *other;
    msgl_err err;
    assert_int_equal(msgl__group_join(g, -1, &m, &err), MSGL_EINVAL);
    assert_int_equal(msgl__group_join(g, 2, &m, &err), MSGL_EINVAL);
    assert_null(m);
    msgl__mem_fail_from(1);
    assert_int_equal(msgl__group_join(g, 1, &m, &err), MSGL_ENOMEM);
    msgl__mem_fail_from(0);
    assert_int_equal(msgl__group_join(g, 1, &m, &err), 0);
    assert_int_equal(msgl__group_rank(m), 1);
    assert_ptr_equal(msgl__group_of(m), g);
    assert_int_equal(msgl__group_join(g, 1, &other, &err), MSGL_EBUSY);
    assert_null(other);
    msgl__group_leave(m);
    assert_int_equal(msgl__group_join(g, 1, &other, &err), MSGL_EBUSY); // left for good
    msgl__group_leave(NULL);
    assert_int_equal(msgl__group_blamed(g), -1);
    msgl__group_destroy(g);
}

// A joined rank that stands still is to blame after 1.5 s, and not before.
static void test_standing_still(void **state)
{
    (void)state;
    msgl_group *g = make(3);
    msgl_watch w = {0};
    for (int r = 0; r < 3; r++) set_state(g, r, MSGL_RANK_JOINED);
    uint64_t now = START;
    for (int i = 0; i < 40; i++, now += 100 * MS) {
        beat(g, 1), beat(g, 2);
        msgl__watch_look(&w, g, 0, now);
    }
    assert_int_equal(msgl__group_blamed(g), -1);
    assert_int_equal(atomic_load(&g->ranks[0].beats), 40); // its own
    const uint64_t last = now - 100 * MS;                  // when rank 2's counter moved
    for (; now < last + 1500 * MS; now += 100 * MS) {
        beat(g, 1);
        msgl__watch_look(&w, g, 0, now);
        assert_int_equal(msgl__group_blamed(g), -1);
    }
    beat(g, 1);
    msgl__watch_look(&w, g, 0, now);
    assert_int_equal(msgl__group_blamed(g), 2);
    // The first blame stays.
    msgl__group_blame(g, 1);
    assert_int_equal(msgl__group_blamed(g), 2);
    for (int i = 0; i < 30; i++, now += 100 * MS) msgl__watch_look(&w, g, 0, now);
    assert_int_equal(msgl__group_blamed(g), 2);
    msgl__group_destroy(g);
}

// Who has not joined, or has left, is not judged; from its joining on it has its whole time.
static void test_not_judged(void **state)
{
    (void)state;
    msgl_group *g = make(3);
    msgl_watch w = {0};
    set_state(g, 0, MSGL_RANK_JOINED);
    set_state(g, 1, MSGL_RANK_LEFT);
    uint64_t now = START;
    for (int i = 0; i < 50; i++, now += 100 * MS) msgl__watch_look(&w, g, 0, now);
    assert_int_equal(msgl__group_blamed(g), -1);
    set_state(g, 2, MSGL_RANK_JOINED);              // and no beat yet
    for (int i = 1; i < 15; i++, now += 100 * MS) { // 1.4 s after the last look without it
        msgl__watch_look(&w, g, 0, now);
        assert_int_equal(msgl__group_blamed(g), -1);
    }
    msgl__watch_look(&w, g, 0, now);
    assert_int_equal(msgl__group_blamed(g), 2);
    msgl__group_destroy(g);
}

// A watch that was late itself begins anew: the others had no more time than it had.
static void test_late_watch(void **state)
{
    (void)state;
    msgl_group *g = make(2);
    msgl_watch w = {0};
    set_state(g, 0, MSGL_RANK_JOINED), set_state(g, 1, MSGL_RANK_JOINED);
    uint64_t now = START;
    for (int i = 0; i < 20; i++) {
        for (int k = 0; k < 10; k++, now += 100 * MS) msgl__watch_look(&w, g, 0, now);
        now += 500 * MS; // 600 ms since the last look
    }
    assert_int_equal(msgl__group_blamed(g), -1);
    msgl__watch_look(&w, g, 0, now);
    for (int i = 0; i < 3; i++) msgl__watch_look(&w, g, 0, now += 500 * MS); // not late
    assert_int_equal(msgl__group_blamed(g), 1);
    msgl__group_destroy(g);
}

static void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000},
              NULL);
}

// Members beat by themselves; whoever leaves is not to blame.
static void test_members(void **state)
{
    (void)state;
    msgl_group *g = make(3);
    msgl_group_member *a, *b;
    assert_int_equal(msgl__group_join(g, 0, &a, NULL), 0);
    assert_int_equal(msgl__group_join(g, 1, &b, NULL), 0);
    sleep_ms(500);
    assert_true(atomic_load(&g->ranks[0].beats) >= 2);
    assert_true(atomic_load(&g->ranks[1].beats) >= 2);
    msgl__group_leave(b);
    sleep_ms(1900); // rank 1 has left, rank 2 never came
    assert_int_equal(msgl__group_blamed(g), -1);
    msgl__group_blame(g, 1); // it has left: no
    assert_int_equal(msgl__group_blamed(g), -1);
    msgl__group_blame(g, 2); // who reaps the rank that never came
    assert_int_equal(msgl__group_blamed(g), 2);
    msgl__group_leave(a);
    assert_int_equal(msgl__group_blamed(g), 2);
    msgl__group_destroy(g);
}

// A process may be stopped between two looks of its watch: whoever is to judge it knows of it by
// then.
static void test_first_beats(void **state)
{
    (void)state;
    msgl_group *g = make(2);
    msgl_group_member *m;
    msgl_heartbeat *h = NULL;
    int beats[2], way[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, beats), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, way), 0);
    assert_int_equal(msgl__heartbeat_create(&h, NULL), 0);
    assert_int_equal(msgl__group_join(g, 0, &m, NULL), 0);
    sleep_ms(30); // its first look is over, and the next one 0.1 s behind that
    msgl__group_link(m, 1, beats[0], way[0]);
    msgl__group_beat(m, h);
    unsigned char byte = 0;
    assert_int_equal(recv(beats[1], &byte, 1, MSG_DONTWAIT), 1);
    assert_int_not_equal(atomic_load(&h->alive), 0);
    // What was sent is a beat: the other end of a link judges who sent it.
    msgl_group *other = make(2);
    msgl_links l = {0};
    assert_int_equal(send(beats[0], &byte, 1, MSG_NOSIGNAL), 1);
    msgl__links_add(&l, 0, beats[1], way[1]);
    msgl__links_look(&l, other);
    assert_int_equal(atomic_load(&other->ranks[0].state), MSGL_RANK_JOINED);
    msgl__group_leave(m);
    assert_int_equal(atomic_load(&h->alive), 0);
    for (int i = 0; i < 2; i++) {
        close(beats[i]);
        close(way[i]);
    }
    msgl__heartbeat_destroy(h);
    msgl__group_destroy(other);
    msgl__group_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),      cmocka_unit_test(test_memory_has_no_name),
        cmocka_unit_test(test_join),       cmocka_unit_test(test_standing_still),
        cmocka_unit_test(test_not_judged), cmocka_unit_test(test_late_watch),
        cmocka_unit_test(test_members),    cmocka_unit_test(test_first_beats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
