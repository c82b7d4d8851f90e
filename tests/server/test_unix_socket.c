// SPDX-License-Identifier: Apache-2.0
//
// The socket of --uds: who may connect, what it replaces and what it leaves alone.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cmocka.h>

#include "http/unix_socket.h"

static char folder[] = "/tmp/msgl-uds-XXXXXX", path[64];

static int setup(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL) return -1;
    (void)snprintf(path, sizeof path, "%s/s", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return rmdir(folder); // nothing is left in it
}

static void expect_refused(const char *at, int rc, const char *text)
{
    msgl_unix_socket s = {0};
    msgl_err err = {0};
    int fd;
    assert_int_equal(msgl__unix_listen(at, &s, &fd, &err), rc);
    assert_int_equal(fd, -1);
    if (strstr(err.text, text) == NULL) fail_msg("%s", err.text);
    assert_null(s.path);
}

static void test_life(void **state)
{
    (void)state;
    msgl_unix_socket first, second;
    msgl_err err = {0};
    struct stat st;
    int a, b;
    const mode_t before = umask(0);
    assert_int_equal(msgl__unix_listen(path, &first, &a, &err), 0);
    assert_int_equal(umask(before), 0); // as it was
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISSOCK(st.st_mode));
    assert_int_equal(st.st_mode & 0777, 0600);
    expect_refused(path, MSGL_EIO, "a server listens there");
    close(a); // it dies: its file stays, and is replaced
    assert_int_equal(msgl__unix_listen(path, &second, &b, &err), 0);
    msgl__unix_remove(&first); // no longer its file, unless the system gave the same number again
    if (first.ino != second.ino) assert_int_equal(stat(path, &st), 0);
    msgl__unix_remove(&second);
    assert_int_equal(stat(path, &st), -1);
    msgl__unix_remove(&second);
    close(b);
}

static void test_refused(void **state)
{
    (void)state;
    char text[128], longest[200];
    const int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "mine", 4), 4);
    close(fd);
    expect_refused(path, MSGL_EIO, "it exists, and is no socket");
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 4);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("elsewhere", path), 0);
    expect_refused(path, MSGL_EIO, "it exists, and is no socket");
    assert_int_equal(unlink(path), 0);
    (void)snprintf(text, sizeof text, "%s/none/s", folder);
    expect_refused(text, MSGL_EIO, "No such file or directory");
    memset(longest, 'x', sizeof longest);
    longest[108] = '\0';
    expect_refused(longest, MSGL_EINVAL, "the socket's path has 108 bytes; allowed: 1 to 107");
    expect_refused("", MSGL_EINVAL, "allowed: 1 to 107");
    const int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(lock, LOCK_EX), 0);
    expect_refused(path, MSGL_EIO, "another server starts in this folder");
    close(lock);
}

// A socket that another server has put in the place of ours stays, though it is in the same file
// system. The link keeps the number of ours from being given again.
static void test_anothers(void **state)
{
    (void)state;
    msgl_unix_socket first, second;
    msgl_err err = {0};
    struct stat st;
    char kept[80];
    int a, b;
    (void)snprintf(kept, sizeof kept, "%s/kept", folder);
    assert_int_equal(msgl__unix_listen(path, &first, &a, &err), 0);
    assert_int_equal(link(path, kept), 0);
    close(a);
    assert_int_equal(msgl__unix_listen(path, &second, &b, &err), 0);
    assert_true(first.dev == second.dev && first.ino != second.ino);
    msgl__unix_remove(&first);
    assert_int_equal(stat(path, &st), 0);
    msgl__unix_remove(&second);
    assert_int_equal(stat(path, &st), -1);
    assert_int_equal(unlink(kept), 0);
    close(b);
}

// A server whose queue of connections is full is there.
static void test_full_queue(void **state)
{
    (void)state;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    (void)snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    const int busy = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(busy, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(busy, 0), 0);
    int client[8], n = 0;
    bool full = false;
    for (; n < 8 && !full; n++) {
        client[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        full = connect(client[n], (const struct sockaddr *)&at, sizeof at) != 0;
        assert_true(!full || errno == EAGAIN);
    }
    assert_true(full);
    expect_refused(path, MSGL_EIO, "a server listens there");
    while (n > 0) close(client[--n]);
    close(busy);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_anothers),
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
