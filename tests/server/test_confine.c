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
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
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

// Datagrams, which can be sent to any socket in the file system.
static bool can_have_datagrams(void)
{
    int fd[2];
    return socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, fd) == 0;
}

static bool can_have_streams(void)
{
    static const int types[] = {SOCK_STREAM, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                                SOCK_SEQPACKET | SOCK_CLOEXEC};
    int fd[2];
    bool all = true;
    for (int i = 0; i < 3; i++) {
        all = all && socketpair(AF_UNIX, types[i], 0, fd) == 0 && send(fd[0], "x", 1, 0) == 1;
    }
    return all;
}

static bool can_send_to_others(void)
{
    const struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "/nonexistent"};
    int fd[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd) != 0) return false;
    errno = 0;
    const ssize_t n = sendto(fd[0], "x", 1, 0, (const struct sockaddr *)&a, sizeof a);
    return n == 1 || errno != ENOSYS; // else the socket says that it has its end
}

static bool can_signal_by_thread(void)
{
    return syscall(SYS_tgkill, getppid(), getppid(), 0) == 0;
}

static bool can_signal_itself(void)
{
    return syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), 0) == 0;
}

static bool can_limit_others(void)
{
    struct rlimit lim;
    const bool limits = syscall(SYS_prlimit64, getppid(), RLIMIT_NOFILE, NULL, &lim) == 0;
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof cpus, &cpus) != 0 ||
           sched_setaffinity(getppid(), sizeof cpus, &cpus) == 0 || limits;
}

static bool can_limit_itself(void)
{
    struct rlimit lim;
    cpu_set_t cpus;
    return getrlimit(RLIMIT_NOFILE, &lim) == 0 && setrlimit(RLIMIT_NOFILE, &lim) == 0 &&
           sched_getaffinity(0, sizeof cpus, &cpus) == 0 &&
           sched_setaffinity(0, sizeof cpus, &cpus) == 0;
}

// Whether a process with these permissions can do that; 0: one that is not confined.
static bool is_able(unsigned permissions, bool (*what)(void))
{
    int status;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (permissions != 0 && msgl__confine(permissions, NULL) != 0) _exit(2);
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
        unsigned permissions;
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
        const unsigned permissions = all[i].permissions;
        assert_int_equal(is_able(permissions, can_thread), all[i].thread);
        assert_int_equal(is_able(permissions, can_fork), all[i].fork);
        assert_int_equal(is_able(permissions, can_read), all[i].read);
        assert_int_equal(is_able(permissions, can_write), all[i].write);
        assert_int_equal(is_able(permissions, can_open_to_write), all[i].write);
        assert_int_equal(is_able(permissions, can_connect), all[i].connect);
        assert_int_equal(is_able(permissions, can_kill), all[i].kill);
        assert_false(is_able(permissions, can_run));
        assert_false(is_able(permissions, can_have_datagrams));
        assert_true(is_able(permissions, can_have_streams));
        assert_int_equal(is_able(permissions, can_send_to_others), all[i].connect);
        assert_int_equal(is_able(permissions, can_signal_by_thread), all[i].kill);
        assert_true(is_able(permissions, can_signal_itself));
        assert_false(is_able(permissions, can_limit_others));
        assert_true(is_able(permissions, can_limit_itself));
        assert_false(is_able(permissions, can_own_users));
    }
    assert_true(is_able(0, can_write));
    assert_true(is_able(0, can_connect));
    assert_true(is_able(0, can_run));
    assert_true(is_able(0, can_have_datagrams) && is_able(0, can_send_to_others));
    assert_true(is_able(0, can_signal_by_thread) && is_able(0, can_limit_others));
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

// --- files and other processes ---

static char folder[] = "/tmp/msgl-shut-in-XXXXXX";

// Makes, writes, cuts, renames and removes a file.
static bool can_keep_files(const char *dir)
{
    char path[128], other[128];
    (void)snprintf(path, sizeof path, "%s/a", dir);
    (void)snprintf(other, sizeof other, "%s/b", dir);
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    const bool yes = fd >= 0 && write(fd, "xy", 2) == 2 && ftruncate(fd, 1) == 0 &&
                     rename(path, other) == 0 && unlink(other) == 0;
    if (fd >= 0) close(fd);
    return yes;
}

// Its environment, too, but for root: the kernel lets that read it by another right.
static bool can_open_memory_of_parent(void)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/mem", (int)getppid());
    const int fd = open(path, O_RDONLY);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

// What has changed in a process that is shut in, as bits; 32: it cannot be.
static int shut_in(const char *writes)
{
    int status;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (writes != folder + 1 && msgl__shut_in(writes, NULL) != 0) _exit(32);
        _exit(can_keep_files(folder) | can_keep_files("/tmp") << 1 |
              can_open_memory_of_parent() << 2 | (kill(getppid(), 0) == 0) << 3 |
              (open("/proc/self/environ", O_RDONLY) >= 0) << 4);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_shut_in(void **state)
{
    (void)state;
    enum { OWN = 1, ANY = 2, MEMORY = 4, SIGNALS = 8, ITSELF = 16 };
    const int version = (int)syscall(SYS_landlock_create_ruleset, NULL, 0, 1u);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(shut_in(folder + 1), OWN | ANY | MEMORY | SIGNALS | ITSELF); // it is not
    if (version < 1) {
        print_message("not checked: this kernel has no Landlock\n");
    } else {
        const int signals = version >= 6 ? 0 : SIGNALS;
        assert_int_equal(shut_in(NULL), signals | ITSELF);
        assert_int_equal(shut_in(folder), OWN | signals | ITSELF);
        assert_int_equal(rmdir(folder), 0);
        assert_int_equal(shut_in(folder), OWN | signals | ITSELF); // which makes it
        msgl_err err;
        assert_int_equal(msgl__shut_in("/nonexistent/x", &err), MSGL_EIO);
        assert_string_equal(err.text, "--batch-dir /nonexistent/x: No such file or directory");
    }
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    if (msgl__confine_unable() != NULL) {
        (void)printf("not checked: %s\n", msgl__confine_unable());
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls),
                                       cmocka_unit_test(test_launcher),
                                       cmocka_unit_test(test_shut_in)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
