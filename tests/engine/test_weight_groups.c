// SPDX-License-Identifier: Apache-2.0
//
// Joining a trainer's group and receiving what it broadcasts, against a store that speaks as torch
// 2.15's TCPStore does, and a plug-in that has no NCCL: whose id is used, by which rank, what
// arrives where, and what becomes of groups that nobody serves, that fail, or that are left.
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/dtype.h"
#include "engine/weight_groups.h"

// --- a store ---

typedef struct store {
    int listener, port;
    const char *key; // the one that it has
    int not_yet;     // CHECKs of it that it denies
    char id[MSGL_GROUP_ID_BYTES];
    int id_bytes;
    pthread_t thread;
    bool introduced;
} store;

static bool take(int fd, void *to, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t got = recv(fd, (char *)to + at, n - at, 0);
        if (got <= 0) return false;
        at += (size_t)got;
    }
    return true;
}

static bool take_text(int fd, char out[512])
{
    uint64_t n;
    if (!take(fd, &n, sizeof n) || n >= 512 || !take(fd, out, n)) return false;
    out[n] = '\0';
    return true;
}

static void give(int fd, const void *p, size_t n)
{
    assert_int_equal(send(fd, p, n, MSG_NOSIGNAL), n);
}

// What the first client asks, until it leaves.
static void *serve(void *arg)
{
    store *s = arg;
    char key[512];
    uint8_t what;
    const int fd = accept(s->listener, NULL, NULL);
    while (take(fd, &what, 1)) {
        if (what == 0) { // VALIDATE
            uint32_t magic;
            if (!take(fd, &magic, sizeof magic) || magic != 0x3C85F7CE) break;
        } else if (what == 4) { // ADD
            int64_t by, now = 2;
            if (!take_text(fd, key) || !take(fd, &by, sizeof by)) break;
            s->introduced = strcmp(key, "init/") == 0 && by == 1;
            give(fd, &now, sizeof now);
        } else if (what == 5) { // CHECK
            uint64_t keys;
            if (!take(fd, &keys, sizeof keys) || keys != 1 || !take_text(fd, key)) break;
            const bool has = strcmp(key, s->key) == 0 && s->not_yet-- <= 0;
            const uint8_t answer = has ? 0 : 1;
            give(fd, &answer, 1);
        } else if (what == 3) { // GET
            const uint64_t n = (uint64_t)s->id_bytes;
            if (!take_text(fd, key) || strcmp(key, s->key) != 0) break;
            give(fd, &n, sizeof n);
            give(fd, s->id, (size_t)n);
        } else {
            break;
        }
    }
    close(fd);
    return NULL;
}

static void store_open(store *s, const char *key)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    *s = (store){.key = key, .not_yet = 3, .id_bytes = MSGL_GROUP_ID_BYTES};
    for (int i = 0; i < MSGL_GROUP_ID_BYTES; i++) s->id[i] = (char)(i * 7);
    s->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(s->listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s->listener, 1), 0);
    assert_int_equal(getsockname(s->listener, (struct sockaddr *)&a, &len), 0);
    s->port = ntohs(a.sin_port);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void store_close(store *s)
{
    pthread_join(s->thread, NULL);
    close(s->listener);
}

// --- a plug-in ---

static struct {
    char id[MSGL_GROUP_ID_BYTES];
    int ordinal, rank, size;
    bool takes_signals; // the thread that joins
    atomic_int joined, left;
    int received, fails_at; // broadcasts; -1: none
} plug;

static int join(int ordinal, const char id[MSGL_GROUP_ID_BYTES], int rank, int size,
                const char *nccl, void **out, msgl_err *err)
{
    sigset_t blocked;
    (void)err;
    assert_string_equal(nccl, "auto");
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    plug.takes_signals = sigismember(&blocked, SIGTERM) != 1;
    memcpy(plug.id, id, sizeof plug.id);
    plug.ordinal = ordinal;
    plug.rank = rank;
    plug.size = size;
    atomic_fetch_add(&plug.joined, 1);
    *out = &plug;
    return 0;
}

// The n-th broadcast of a group is of bytes n.
static int receive(void *group, msgl_dtype dtype, size_t count, void *host, msgl_err *err)
{
    (void)group;
    if (plug.received == plug.fails_at) return msgl__err_set(err, MSGL_EDEVICE, "the link broke");
    memset(host, ++plug.received, count * msgl__dtype_size(dtype));
    return 0;
}

static void leave(void *group)
{
    (void)group;
    atomic_fetch_add(&plug.left, 1);
}

static const msgl_group_ops OPS = {.join = join, .receive = receive, .leave = leave};

static msgl_weight_groups *begin(void)
{
    memset(&plug, 0, sizeof plug);
    plug.fails_at = -1;
    msgl_weight_groups *g = msgl__weight_groups_create(&OPS, 3, "auto");
    assert_non_null(g);
    return g;
}

static void until_left(int n)
{
    for (int i = 0; i < 10000 && atomic_load(&plug.left) < n; i++) usleep(1000);
    assert_int_equal(atomic_load(&plug.left), n);
}

static msgl_admin joining(const char *name, const store *s)
{
    return (msgl_admin){.kind = MSGL_ADMIN_JOIN,
                        .group = name,
                        .host = "127.0.0.1",
                        .port = s->port,
                        .rank = 2,
                        .size = 5};
}

static const msgl_weight_part PARTS[] = {{MSGL_BF16, 3}, {MSGL_F32, 0}, {MSGL_F32, 2}};

// By the key that torch's ProcessGroupNCCL has, and by its successor's.
static void test_receive(void **state)
{
    static const char *const keys[] = {"/g/g//cuda//0", "/g/g//cuda//g/nccl_storekey_0"};
    (void)state;
    for (int k = 0; k < 2; k++) {
        msgl_weight_groups *g = begin();
        store s;
        msgl_err err = {0};
        char got[16];
        store_open(&s, keys[k]);
        const msgl_admin a = joining("g", &s);
        assert_int_equal(msgl__weight_groups_join(g, &a, 1, NULL, &err), 0);
        assert_true(s.introduced);
        for (int i = 1; i <= 2; i++) { // two updates by one communicator
            memset(got, 99, sizeof got);
            assert_int_equal(msgl__weight_groups_receive(g, "g", PARTS, 3, got, NULL, &err), 0);
            const char first = (char)(2 * i - 1), second = (char)(2 * i);
            for (int b = 0; b < 6; b++) assert_int_equal(got[b], first);
            for (int b = 6; b < 14; b++) assert_int_equal(got[b], second);
            assert_int_equal(got[14], 99);
        }
        assert_memory_equal(plug.id, s.id, sizeof plug.id);
        assert_true(plug.ordinal == 3 && plug.rank == 3 && plug.size == 5);
        assert_false(plug.takes_signals);
        assert_int_equal(msgl__weight_groups_join(g, &a, 1, NULL, &err), MSGL_EINVAL);
        assert_int_equal(msgl__weight_groups_leave(g, "other", &err), MSGL_EINVAL);
        assert_int_equal(msgl__weight_groups_leave(g, "g", &err), 0);
        until_left(1);
        assert_int_equal(msgl__weight_groups_receive(g, "g", PARTS, 3, got, NULL, &err),
                         MSGL_EINVAL);
        msgl__weight_groups_destroy(g);
        store_close(&s);
        assert_int_equal(atomic_load(&plug.joined), 1);
    }
}

static void test_failures(void **state)
{
    (void)state;
    msgl_weight_groups *g = begin();
    store s;
    msgl_err err = {0};
    char got[16];
    // A broadcast that fails: the group is left, and another of its name can be joined.
    plug.fails_at = 1;
    store_open(&s, "/g/g//cuda//0");
    msgl_admin a = joining("g", &s);
    assert_int_equal(msgl__weight_groups_join(g, &a, 0, NULL, &err), 0);
    assert_int_equal(msgl__weight_groups_receive(g, "g", PARTS, 3, got, NULL, &err), MSGL_EDEVICE);
    assert_string_equal(err.text, "the link broke");
    until_left(1);
    store_close(&s);
    // An id of another size is none of NCCL.
    plug.fails_at = -1;
    store_open(&s, "/g/g//cuda//0");
    s.id_bytes = 5;
    a = joining("g", &s);
    assert_int_equal(msgl__weight_groups_join(g, &a, 0, NULL, &err), 0);
    assert_int_equal(msgl__weight_groups_receive(g, "g", PARTS, 3, got, NULL, &err), MSGL_EFORMAT);
    store_close(&s);
    // One whose rank 0 never comes is left all the same.
    store_open(&s, "another");
    a = joining("g", &s);
    assert_int_equal(msgl__weight_groups_join(g, &a, 0, NULL, &err), 0);
    assert_int_equal(msgl__weight_groups_leave(g, "g", &err), 0);
    store_close(&s);
    a.host = "no.such.host.invalid";
    assert_int_equal(msgl__weight_groups_join(g, &a, 0, NULL, &err), MSGL_EINVAL);
    assert_non_null(strstr(err.text, "no.such.host.invalid"));
    a.host = "127.0.0.1";
    assert_int_equal(msgl__weight_groups_join(g, &a, 3, NULL, &err), MSGL_EINVAL); // rank 5 of 5
    assert_int_equal(atomic_load(&plug.joined), 1);
    msgl__weight_groups_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_receive),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
