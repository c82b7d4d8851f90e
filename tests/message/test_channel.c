// SPDX-License-Identifier: Apache-2.0
//
// Channels, each property over a socketpair and in process: order, sizes beyond the socket's
// buffer, both ends sending at once, closing, timeouts, readiness of the poll descriptor, garbage.
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/mem.h"
#include "message/codec.h"
#include "utils/packet.h"

typedef struct ends {
    msgl_channel *a, *b;
} ends;

static ends open_ends(bool local)
{
    ends e = {0};
    msgl_err err;
    if (local) {
        assert_int_equal(msgl__channel_pair_local(&e.a, &e.b, &err), 0);
    } else {
        int fd[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
        assert_int_equal(msgl__channel_from_fd(fd[0], &e.a, &err), 0);
        assert_int_equal(msgl__channel_from_fd(fd[1], &e.b, &err), 0);
    }
    return e;
}

static void close_ends(ends e)
{
    msgl__channel_destroy(e.a);
    msgl__channel_destroy(e.b);
}

static int readable(const msgl_channel *c)
{
    struct pollfd p = {.fd = msgl__channel_poll_fd(c), .events = POLLIN};
    return poll(&p, 1, 0);
}

static msgl_msg abort_msg(uint64_t uid)
{
    return (msgl_msg){.type = MSGL_MSG_ABORT, .u.abort_uid = uid};
}

static void test_order_and_readiness(void **state)
{
    for (int local = 0; local < 2; local++) {
        (void)state;
        ends e = open_ends(local);
        msgl_msg m;
        assert_int_equal(msgl__channel_recv(e.b, 0, &m), 0);
        assert_int_equal(readable(e.b), 0);
        for (uint64_t i = 0; i < 100; i++) {
            const msgl_msg s = abort_msg(i);
            assert_int_equal(msgl__channel_send(e.a, &s), 0);
        }
        // Readable before every one of them, though the first receive reads many from the socket.
        for (uint64_t i = 0; i < 100; i++) {
            assert_int_equal(readable(e.b), 1);
            assert_int_equal(msgl__channel_recv(e.b, 0, &m), 1);
            assert_int_equal(m.type, MSGL_MSG_ABORT);
            assert_true(m.u.abort_uid == i);
        }
        assert_int_equal(msgl__channel_recv(e.b, 1, &m), 0);
        assert_int_equal(readable(e.b), 0);
        close_ends(e);
    }
}

static void test_close(void **state)
{
    for (int local = 0; local < 2; local++) {
        (void)state;
        ends e = open_ends(local);
        const msgl_msg s = abort_msg(5);
        assert_int_equal(msgl__channel_send(e.a, &s), 0);
        msgl__channel_destroy(e.a);
        msgl_msg m;
        assert_int_equal(readable(e.b), 1);
        assert_int_equal(msgl__channel_recv(e.b, -1, &m), 1); // what was sent still arrives
        assert_int_equal(readable(e.b), 1);
        assert_int_equal(msgl__channel_recv(e.b, -1, &m), MSGL_ECLOSED);
        assert_int_equal(msgl__channel_recv(e.b, -1, &m), MSGL_ECLOSED);
        assert_int_equal(msgl__channel_send(e.b, &s), MSGL_ECLOSED);
        msgl__channel_destroy(e.b);
    }
}

// Each side sends `count` requests of `n` ids, more than any socket buffer takes, and one of them
// is not received from until its own sender is done: this hangs unless senders keep reading.
typedef struct blaster {
    msgl_channel *c;
    const int32_t *ids;
    int32_t n;
    int count;
} blaster;

static void *blast(void *arg)
{
    const blaster *b = arg;
    for (int i = 0; i < b->count; i++) {
        msgl_msg m = {.type = MSGL_MSG_REQUEST};
        m.u.request = (msgl_msg_request){.uid = (uint64_t)i, .num_ids = b->n, .ids = b->ids};
        if (msgl__channel_send(b->c, &m) != 0) return (void *)1;
    }
    return NULL;
}

static void test_both_send_large(void **state)
{
    (void)state;
    enum { N = 200000 };
    int32_t *ids = msgl__malloc(N * sizeof *ids);
    for (int32_t i = 0; i < N; i++) ids[i] = i * 7;
    for (int local = 0; local < 2; local++) {
        ends e = open_ends(local);
        blaster ba = {e.a, ids, N, 5}, bb = {e.b, ids, N, 5};
        pthread_t ta, tb;
        assert_int_equal(pthread_create(&ta, NULL, blast, &ba), 0);
        assert_int_equal(pthread_create(&tb, NULL, blast, &bb), 0);
        msgl_channel *c[2] = {e.b, e.a};
        msgl_msg m;
        // One side's receiver runs beside its sender, as allowed.
        for (int i = 0; i < 5; i++) {
            assert_int_equal(msgl__channel_recv(c[0], -1, &m), 1);
            assert_true(m.u.request.uid == (uint64_t)i);
            assert_int_equal(m.u.request.num_ids, N);
            assert_memory_equal(m.u.request.ids, ids, N * sizeof *ids);
        }
        void *rc;
        pthread_join(ta, &rc);
        assert_null(rc);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(msgl__channel_recv(c[1], -1, &m), 1);
            assert_true(m.u.request.uid == (uint64_t)i);
        }
        pthread_join(tb, &rc);
        assert_null(rc);
        assert_int_equal(msgl__channel_recv(c[1], 0, &m), 0);
        close_ends(e);
    }
    msgl__free(ids);
}

// post never blocks; flush hands the rest over as the reader makes room.
static void test_post(void **state)
{
    (void)state;
    enum { N = 1000000 };
    int32_t *ids = msgl__calloc(N, sizeof *ids);
    ends e = open_ends(false);
    msgl_msg m = {.type = MSGL_MSG_REQUEST}, got;
    m.u.request = (msgl_msg_request){.uid = 1, .num_ids = N, .ids = ids};
    assert_int_equal(msgl__channel_post(e.a, &m), 0);
    assert_int_equal(msgl__channel_post(e.a, &m), 0);
    assert_int_equal(msgl__channel_flush(e.a), 1);
    int received = 0, left = 1;
    while (received < 2) {
        if (left == 1) left = msgl__channel_flush(e.a);
        const int rc = msgl__channel_recv(e.b, 0, &got);
        assert_true(rc >= 0);
        received += rc;
    }
    assert_int_equal(left, 0);
    close_ends(e);
    msgl__free(ids);
}

// A message that aborts request 7, as it is sent: 8 bytes of body, the kind, the request.
static const char ABORT_7[16] = {8, 0, 0, 0, MSGL_MSG_ABORT, 0, 0, 0, 7};

static void test_garbage(void **state)
{
    (void)state;
    // Too long a body; none of the kinds; a kind that wants another body; another protocol.
    static const char *const bad[] = {
        "\xff\xff\xff\xff\x01\x00\x00\x00", "\x00\x00\x00\x00\x00\x00\x00\x00",
        "\x01\x00\x00\x00\x02\x00\x00\x00\xc1", "GET / HTTP/1.1\r\n\r\n"};
    static const size_t len[] = {8, 8, 9, 18};
    for (size_t i = 0; i < 4; i++) {
        int fd[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
        msgl_channel *c;
        assert_int_equal(msgl__channel_from_fd(fd[1], &c, NULL), 0);
        assert_int_equal(write(fd[0], bad[i], len[i]), (ssize_t)len[i]);
        msgl_msg m;
        assert_int_equal(msgl__channel_recv(c, -1, &m), MSGL_EFORMAT);
        assert_int_equal(msgl__channel_recv(c, -1, &m), MSGL_EFORMAT);
        close(fd[0]);
        msgl__channel_destroy(c);
    }
}

// A frame that arrives byte by byte, and one that never ends.
static void test_dribble(void **state)
{
    (void)state;
    int fd[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    msgl_channel *c;
    assert_int_equal(msgl__channel_from_fd(fd[1], &c, NULL), 0);
    char frame[sizeof ABORT_7 + 3];
    memcpy(frame, ABORT_7, sizeof ABORT_7);
    memcpy(frame + sizeof ABORT_7, ABORT_7, 3);
    msgl_msg m;
    for (size_t i = 0; i < sizeof frame; i++) {
        assert_int_equal(write(fd[0], frame + i, 1), 1);
        assert_int_equal(msgl__channel_recv(c, 0, &m), i == sizeof ABORT_7 - 1);
    }
    close(fd[0]);
    assert_int_equal(msgl__channel_recv(c, -1, &m), MSGL_ECLOSED);
    msgl__channel_destroy(c);
}

// A channel goes on with the next socket of its line, without a byte of the last one.
static void test_renew(void **state)
{
    (void)state;
    int fd[2], line[2], none;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, line), 0);
    msgl_channel *c;
    msgl_msg m;
    assert_int_equal(msgl__channel_from_fd(fd[1], &c, NULL), 0);
    assert_int_equal(msgl__channel_renew(c, 0), MSGL_ECLOSED); // it has no line
    msgl__channel_set_line(c, line[1]);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(write(fd[0], ABORT_7, 5), 5); // of a frame
        assert_int_equal(msgl__channel_recv(c, 0, &m), 0);
        close(fd[0]);
        assert_int_equal(msgl__channel_recv(c, -1, &m), MSGL_ECLOSED);
        const msgl_msg late = abort_msg(9);
        (void)msgl__channel_post(c, &late);
        assert_int_equal(msgl__channel_renew(c, 0), 0);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
        assert_int_equal(msgl__packet_send(line[0], "C", 1, fd[1]), 0);
        close(fd[1]);
        assert_int_equal(msgl__channel_renew(c, -1), 1);
        assert_int_equal(readable(c), 0);
        assert_int_equal(write(fd[0], ABORT_7, sizeof ABORT_7), sizeof ABORT_7);
        assert_int_equal(msgl__channel_recv(c, -1, &m), 1);
        assert_int_equal(m.u.abort_uid, 7);
        const msgl_msg reply = abort_msg(1);
        char got[64];
        assert_int_equal(msgl__channel_send(c, &reply), 0);
        assert_int_equal(read(fd[0], got, sizeof got), sizeof ABORT_7);
        assert_int_equal(got[8], 1);
    }
    close(fd[0]);
    close(line[0]);
    assert_int_equal(msgl__channel_recv(c, -1, &m), MSGL_ECLOSED);
    assert_int_equal(msgl__channel_renew(c, -1), MSGL_ECLOSED);
    msgl__channel_destroy(c);
    // A packet without a descriptor is none.
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, line), 0);
    assert_int_equal(msgl__packet_recv(line[1], &none, sizeof none, fd), 0);
    assert_int_equal(msgl__packet_send(line[0], "C", 1, -1), 0);
    assert_int_equal(msgl__packet_recv(line[1], &none, sizeof none, fd), 1);
    assert_int_equal(fd[0], -1);
    close(line[1]);
    assert_int_equal(msgl__packet_send(line[0], "C", 1, -1), MSGL_EIO);
    close(line[0]);
}

static void test_no_heap_when_warm(void **state)
{
    (void)state;
    for (int local = 0; local < 2; local++) {
        ends e = open_ends(local);
        const msgl_msg s = abort_msg(5);
        msgl_msg m;
        uint64_t allocs = 0;
        for (int i = 0; i < 100; i++) {
            if (i == 4) allocs = msgl__mem_allocs();
            assert_int_equal(msgl__channel_send(e.a, &s), 0);
            assert_int_equal(msgl__channel_recv(e.b, -1, &m), 1);
        }
        assert_int_equal(msgl__mem_allocs(), allocs);
        close_ends(e);
    }
}

typedef struct late_reader {
    msgl_channel *c;
    int calls, received;
} late_reader;

// The peer reads nothing until the third call.
static void read_late(void *ctx)
{
    late_reader *r = ctx;
    msgl_msg m;
    if (++r->calls < 3) return;
    while (msgl__channel_recv(r->c, 0, &m) == 1) r->received++;
}

// Who waits for room is called again and again; nothing is lost.
static void test_wait(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    ends e = open_ends(false);
    late_reader r = {.c = e.b};
    msgl__channel_on_wait(e.a, read_late, &r);
    const msgl_msg m = abort_msg(1);
    int sent = 0;
    while (sent < MANY && r.calls == 0) {
        assert_int_equal(msgl__channel_send(e.a, &m), 0);
        sent++;
    }
    assert_true(r.calls >= 3); // it went on when there was room
    msgl_msg got;
    while (msgl__channel_recv(e.b, 0, &got) == 1) r.received++;
    assert_int_equal(r.received, sent);
    close_ends(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_readiness),
        cmocka_unit_test(test_close),
        cmocka_unit_test(test_wait),
        cmocka_unit_test(test_both_send_large),
        cmocka_unit_test(test_post),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_dribble),
        cmocka_unit_test(test_renew),
        cmocka_unit_test(test_no_heap_when_warm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
