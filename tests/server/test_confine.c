// SPDX-License-Identifier: Apache-2.0
//
// What a process can do that has given up system calls, and what it cannot; each in a process of
// its own. That servers work with it is shown by tests/e2e.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "launch/confine.h"

static void *nothing(void *arg)
{
    return arg;
}

static bool can_thread(void)
{
    pthread_t t;
    return pthread_create(&t, NULL, nothing, NULL) == 0 && pthread_join(t, NULL) == 0;
}

static bool can_fork(void)
{
    const pid_t pid = fork();
    if (pid == 0) _exit(0);
    return pid > 0 && waitpid(pid, NULL, 0) == pid;
}

static bool can_read(void)
{
    char c;
    const int fd = open("/proc/self/statm", O_RDONLY);
    const bool yes = fd >= 0 && read(fd, &c, 1) == 1;
    close(fd);
    return yes;
}

static bool can_write(void)
{
    char path[] = "/tmp/msgl-confine-XXXXXX";
    const int fd = mkstemp(path);
    return fd >= 0 && write(fd, "x", 1) == 1 && close(fd) == 0 && unlink(path) == 0;
}

static bool can_open_to_write(void)
{
    return open("/dev/null", O_WRONLY) >= 0 || open("/dev/null", O_RDWR) >= 0;
}

static bool can_connect(void)
{
    return socket(AF_INET, SOCK_STREAM, 0) >= 0;
}

static bool can_run(void)
{
    char *const argv[] = {(char *)(uintptr_t) "/bin/true", NULL};
    (void)execv(argv[0], argv);
    return false; // or exit status 0
}

static bool can_own_users(void)
{
    return unshare(CLONE_NEWUSER) == 0 || syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0) >= 0;
}

static bool can_kill(void)
{
    return kill(getppid(), 0) == 0;
}

// Whether that is what a process of these parts can do; the same without (parts 0).
static bool is_able(unsigned parts, bool (*what)(void))
{
    int status;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (parts != 0 && msgl__confine(parts, NULL) != 0) _exit(2);
        errno = 0;
        const bool able = what();
        _exit(able ? 0 : errno == ENOSYS ? 1 : 3);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) > 1) fail_msg("status %#x", (unsigned)status);
    return WEXITSTATUS(status) == 0;
}

static void test_calls(void **state)
{
    (void)state;
    enum { F = MSGL_CONFINE_FRONT, E = MSGL_CONFINE_ENGINE, L = MSGL_CONFINE_LAUNCHER };
    static const struct {
        unsigned parts;
        bool thread, fork, read, write, connect, kill;
    } all[] = {
        {F, true, false, true, false, false, false},
        {E, true, false, true, false, false, false},
        {L, true, true, true, false, false, true},
        {F | MSGL_CONFINE_BATCHES, true, false, true, true, false, false},
        {E | MSGL_CONFINE_RANKS, true, true, true, false, false, true},
        {E | MSGL_CONFINE_HOSTS, true, false, true, false, true, false},
        {MSGL_CONFINE_TRACES, true, false, true, false, true, false},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const unsigned parts = all[i].parts;
        assert_int_equal(is_able(parts, can_thread), all[i].thread);
        assert_int_equal(is_able(parts, can_fork), all[i].fork);
        assert_int_equal(is_able(parts, can_read), all[i].read);
        assert_int_equal(is_able(parts, can_write), all[i].write);
        assert_int_equal(is_able(parts, can_open_to_write), all[i].write);
        assert_int_equal(is_able(parts, can_connect), all[i].connect);
        assert_int_equal(is_able(parts, can_kill), all[i].kill);
        assert_false(is_able(parts, can_run));
        assert_false(is_able(parts, can_own_users));
    }
    assert_true(is_able(0, can_write));
    assert_true(is_able(0, can_connect));
    assert_true(is_able(0, can_run));
}

static bool has_no_privileges(void)
{
    return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1;
}

// A part's calls are its own, whatever its launcher may do.
static bool inherits(void)
{
    return has_no_privileges() && msgl__confine(MSGL_CONFINE_FRONT, NULL) == 0 && !can_connect() &&
           !can_fork() && can_thread();
}

static void test_launcher(void **state)
{
    (void)state;
    assert_true(is_able(MSGL_CONFINE_LAUNCHER | MSGL_CONFINE_FRONT | MSGL_CONFINE_HOSTS, inherits));
}

int main(void)
{
    if (msgl__confine_unable() != NULL) {
        (void)printf("not checked: %s\n", msgl__confine_unable());
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls),
                                       cmocka_unit_test(test_launcher)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
