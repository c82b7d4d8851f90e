// SPDX-License-Identifier: Apache-2.0
//
// Ranks that meet over TCP, and who is not let in; and watches that see each other over the
// connections alone, each with memory of its own: ranks that end, stop or leave.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "distributed/group.h"
#include "distributed/hosts.h"
#include "distributed/internal.h"
#include "utils/clock.h"

enum { MAX_RANKS = 4, WAIT_MS = 10000, LIMIT_MS = 2000 };

static const msgl_hosts_job JOB = {.size = 3, .token = 77, .build = 5};

static double ms_since(uint64_t begin)
{
    return (double)(msgl__now_ns() - begin) * 1e-6;
}

// A process of the test's; 0 in it. It does not outlive the test.
static pid_t branch(void)
{
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static int exit_of(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_addresses(void **state)
{
    (void)state;
    static const char *const bad[] = {"",        "localhost", "localhost:", ":80",      "::1:80",
                                      "[::1]80", "host:8o",   "host:-1",    "h:123456", "[]:80"};
    char bound[MSGL_HOSTS_ADDRESS], want[200];
    msgl_hosts_link link;
    msgl_err err;
    int fd;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(msgl__hosts_listen(bad[i], &fd, bound, &err), MSGL_EINVAL);
        snprintf(want, sizeof want, "address \"%s\"; allowed: HOST:PORT, [HOST]:PORT", bad[i]);
        assert_string_equal(err.text, want);
        assert_int_equal(msgl__hosts_connect(bad[i], &JOB, 100, &link, &err), MSGL_EINVAL);
        assert_string_equal(err.text, want);
    }
    assert_int_equal(msgl__hosts_listen("127.0.0.1:0", &fd, bound, &err), 0);
    assert_int_equal(strncmp(bound, "127.0.0.1:", 10), 0);
    assert_true(strtol(bound + 10, NULL, 10) > 0);
    int second;
    assert_int_equal(msgl__hosts_listen(bound, &second, bound, &err), MSGL_EIO);
    assert_non_null(strstr(err.text, "Address already in use"));
    close(fd);
}

static int comes(const char *address, msgl_hosts_job job, int32_t rank, int timeout_ms,
                 msgl_hosts_link *out, msgl_err *err)
{
    job.rank = rank;
    return msgl__hosts_connect(address, &job, timeout_ms, out, err);
}

// A rank that sends its number on both connections; its exit says whether it met rank 0.
static pid_t start_rank(const char *address, int32_t rank)
{
    const pid_t pid = branch();
    if (pid > 0) return pid;
    msgl_hosts_link link;
    const unsigned char number = (unsigned char)rank;
    if (comes(address, JOB, rank, WAIT_MS, &link, NULL) != 0) _exit(1);
    if (write(link.way, &number, 1) != 1 || write(link.beats, &number, 1) != 1) _exit(2);
    msgl__hosts_close(&link);
    _exit(0);
}

static void check_met(msgl_hosts_link *links, const pid_t *pids)
{
    for (int r = 1; r < JOB.size; r++) {
        unsigned char number;
        assert_int_equal(read(links[r].way, &number, 1), 1);
        assert_int_equal(number, r);
        assert_int_equal(read(links[r].beats, &number, 1), 1);
        assert_int_equal(number, r);
        assert_int_equal(exit_of(pids[r]), 0);
        msgl__hosts_close(&links[r]);
    }
}

// Ranks may be started before rank 0 listens.
static void test_meeting(void **state)
{
    (void)state;
    char bound[MSGL_HOSTS_ADDRESS];
    msgl_hosts_link links[MAX_RANKS];
    pid_t pids[MAX_RANKS];
    msgl_err err = {0};
    int fd;
    assert_int_equal(msgl__hosts_listen("127.0.0.1:0", &fd, bound, &err), 0);
    close(fd);
    for (int r = 1; r < JOB.size; r++) pids[r] = start_rank(bound, r);
    usleep(300000);
    assert_int_equal(msgl__hosts_listen(bound, &fd, bound, &err), 0);
    assert_int_equal(msgl__hosts_accept(fd, &JOB, WAIT_MS, links, &err), 0);
    close(fd);
    check_met(links, pids);
}

static int stranger(const char *address, const void *says, size_t bytes)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    a.sin_port = htons((uint16_t)strtol(strchr(address, ':') + 1, NULL, 10));
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(write(fd, says, bytes), bytes);
    return fd;
}

// Those who say nothing, something else, or are of another job, hold nobody up.
static void test_strangers(void **state)
{
    (void)state;
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";
    char bound[MSGL_HOSTS_ADDRESS];
    msgl_hosts_link links[MAX_RANKS], none;
    pid_t pids[MAX_RANKS];
    int strangers[20], fd;
    msgl_err err = {0};
    assert_int_equal(msgl__hosts_listen("127.0.0.1:0", &fd, bound, &err), 0);
    for (int i = 0; i < 20; i++) strangers[i] = stranger(bound, http, i % 2 ? sizeof http : 0);
    const pid_t other = branch();
    if (other == 0) {
        msgl_hosts_job job = JOB;
        job.token++;
        const int code = comes(bound, job, 1, WAIT_MS, &none, &err);
        char want[400];
        snprintf(want, sizeof want, "rank 1 was refused at %s: it is not of this job", bound);
        _exit(code != MSGL_EPEER || strcmp(err.text, want) != 0);
    }
    const pid_t again = branch();
    if (again == 0) { // beside the rank 1 that there is, whichever comes first
        usleep(500000);
        const int code = comes(bound, JOB, 1, WAIT_MS, &none, &err);
        _exit(code != MSGL_EPEER || strstr(err.text, "there is a rank 1 already") == NULL);
    }
    pids[1] = start_rank(bound, 1);
    const pid_t late = branch();
    if (late == 0) {
        usleep(1000000);
        pids[2] = start_rank(bound, 2);
        _exit(exit_of(pids[2]));
    }
    assert_int_equal(msgl__hosts_accept(fd, &JOB, WAIT_MS, links, &err), 0);
    pids[2] = late;
    check_met(links, pids);
    assert_int_equal(exit_of(other), 0);
    assert_int_equal(exit_of(again), 0);
    for (int i = 0; i < 20; i++) close(strangers[i]);
    close(fd);
}

// A rank of the job that cannot be one ends the waiting, on both sides with the reason.
static void test_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        char bound[MSGL_HOSTS_ADDRESS];
        msgl_hosts_link links[MAX_RANKS], none;
        msgl_err err = {0};
        int fd;
        const char *why = i == 0 ? "it is another build: minisgl " MSGL_VERSION
                                   ", rank 0 is " MSGL_VERSION
                                 : "it is one of 4 ranks, rank 0 one of 3";
        assert_int_equal(msgl__hosts_listen("127.0.0.1:0", &fd, bound, &err), 0);
        const pid_t pid = branch();
        if (pid == 0) {
            msgl_hosts_job job = JOB;
            if (i == 0) job.build++;
            if (i == 1) job.size = 4;
            const int code = comes(bound, job, 2, WAIT_MS, &none, &err);
            _exit(code != MSGL_EPEER || strstr(err.text, why) == NULL);
        }
        const uint64_t begin = msgl__now_ns();
        assert_int_equal(msgl__hosts_accept(fd, &JOB, WAIT_MS, links, &err), MSGL_EPEER);
        assert_true(ms_since(begin) < WAIT_MS / 2);
        char want[300];
        snprintf(want, sizeof want, "rank 2 was refused: %s", why);
        assert_string_equal(err.text, want);
        assert_int_equal(exit_of(pid), 0);
        for (int r = 0; r < JOB.size; r++) msgl__hosts_close(&links[r]);
        close(fd);
    }
}

static void test_missing(void **state)
{
    (void)state;
    char bound[MSGL_HOSTS_ADDRESS], want[400];
    msgl_hosts_link links[MAX_RANKS], none;
    msgl_err err = {0};
    int fd;
    assert_int_equal(msgl__hosts_listen("127.0.0.1:0", &fd, bound, &err), 0);
    assert_int_equal(msgl__hosts_accept(fd, &JOB, 1000, links, &err), MSGL_EPEER);
    assert_string_equal(err.text, "not all ranks came within 1 s; missing of 3: 1, 2");
    close(fd);
    assert_int_equal(comes(bound, JOB, 1, 300, &none, &err), MSGL_EPEER);
    snprintf(want, sizeof want, "rank 1: rank 0 at %s cannot be reached: Connection refused",
             bound);
    assert_string_equal(err.text, want);
}

// --- watches -----------------------------------------------------------------------------------

typedef struct star {
    int size;
    int beats[MAX_RANKS][2], ways[MAX_RANKS][2]; // [r]: rank 0's end, r's
    pid_t pids[MAX_RANKS];
    int results[2]; // a pipe of `result`
} star;

typedef struct result {
    int rank, blamed; // blamed MEETS: it has seen the beats of those that it is linked to
    double ms;
    int way_closed; // whether a wait at a way ended
} result;

enum { MEETS = -2 };

static void tell(const star *s, result r)
{
    r.ms = (double)msgl__now_ns() * 1e-6;
    if (write(s->results[1], &r, sizeof r) != sizeof r) _exit(1);
}

// Until the beats of those that `rank` is linked to have come.
static void await_beats(const msgl_group *g, int rank)
{
    for (int r = 0; r < g->size; r++) {
        if (r == rank || (rank > 0 && r > 0)) continue;
        while (atomic_load(&g->ranks[r].state) == MSGL_RANK_NEW) usleep(1000);
    }
}

// A rank until somebody is to blame, or, with `leaves`, until it has met the others.
static void rank_main(const star *s, int rank, int leaves)
{
    msgl_group *g;
    msgl_group_member *m;
    if (msgl__group_create(s->size, &g, NULL) != 0) _exit(1);
    if (msgl__group_join(g, rank, &m, NULL) != 0) _exit(1);
    for (int r = 1; r < s->size; r++) { // what is another rank's is not this one's
        for (int end = 0; end < 2; end++) {
            if (end == 0 ? rank == 0 : rank == r) continue;
            close(s->beats[r][end]);
            close(s->ways[r][end]);
        }
        if (rank == 0) msgl__group_link(m, r, s->beats[r][0], s->ways[r][0]);
        if (rank == r) msgl__group_link(m, 0, s->beats[r][1], s->ways[r][1]);
    }
    const int way = rank == 0 ? s->ways[1][0] : s->ways[rank][1];
    await_beats(g, rank);
    tell(s, (result){.rank = rank, .blamed = MEETS});
    struct pollfd p = {.fd = way, .events = POLLIN};
    if (!leaves) poll(&p, 1, WAIT_MS);
    for (int i = 0; i < LIMIT_MS / 10 && !leaves && msgl__group_blamed(g) < 0; i++) usleep(10000);
    if (leaves) msgl__group_leave(m);
    tell(s, (result){.rank = rank, .blamed = msgl__group_blamed(g), .way_closed = p.revents != 0});
    if (!leaves) usleep(500000); // others are told by a watch that goes on
    if (!leaves) msgl__group_leave(m);
    _exit(0);
}

static void start_star(star *s, int size, int leaves)
{
    *s = (star){.size = size};
    assert_int_equal(pipe(s->results), 0);
    for (int r = 1; r < size; r++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, s->beats[r]), 0);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, s->ways[r]), 0);
    }
    for (int r = 0; r < size; r++) {
        s->pids[r] = branch();
        if (s->pids[r] == 0) rank_main(s, r, leaves);
    }
    for (int r = 1; r < size; r++) {
        for (int end = 0; end < 2; end++) {
            close(s->beats[r][end]);
            close(s->ways[r][end]);
        }
    }
    close(s->results[1]);
}

static void await_meeting(const star *s)
{
    for (int i = 0; i < s->size; i++) {
        result r;
        assert_int_equal(read(s->results[0], &r, sizeof r), sizeof r);
        assert_int_equal(r.blamed, MEETS);
    }
}

static void check_lost(const star *s, int victim, double since)
{
    for (int i = 0; i < s->size - 1; i++) {
        result r;
        assert_int_equal(read(s->results[0], &r, sizeof r), sizeof r);
        assert_int_not_equal(r.rank, victim);
        assert_int_equal(r.blamed, victim);
        assert_int_equal(r.way_closed, 1);
        if (r.ms - since > LIMIT_MS) print_message("rank %d: %.0f ms\n", r.rank, r.ms - since);
        assert_true(r.ms - since <= LIMIT_MS);
    }
    kill(s->pids[victim], SIGKILL);
    for (int r = 0; r < s->size; r++) waitpid(s->pids[r], NULL, 0);
    close(s->results[0]);
}

// As many groups as ranks, at the same time, each of which loses another one.
static void lose(int size, int signal_number)
{
    star s[MAX_RANKS];
    double since[MAX_RANKS];
    for (int v = 0; v < size; v++) start_star(&s[v], size, 0);
    for (int v = 0; v < size; v++) await_meeting(&s[v]);
    for (int v = 0; v < size; v++) {
        since[v] = (double)msgl__now_ns() * 1e-6;
        assert_int_equal(kill(s[v].pids[v], signal_number), 0);
    }
    for (int v = 0; v < size; v++) check_lost(&s[v], v, since[v]);
}

static void test_lost(void **state)
{
    (void)state;
    for (int size = 2; size <= MAX_RANKS; size += 2) {
        lose(size, SIGKILL);
        lose(size, SIGSTOP);
    }
}

static void test_leaving(void **state)
{
    (void)state;
    star s;
    start_star(&s, 3, 1);
    for (int i = 0; i < 6; i++) { // some leave before others have met
        result r;
        assert_int_equal(read(s.results[0], &r, sizeof r), sizeof r);
        assert_true(r.blamed == MEETS || r.blamed == -1);
    }
    for (int r = 0; r < 3; r++) assert_int_equal(exit_of(s.pids[r]), 0);
    close(s.results[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses), cmocka_unit_test(test_meeting),
        cmocka_unit_test(test_strangers), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_missing),   cmocka_unit_test(test_lost),
        cmocka_unit_test(test_leaving),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
