// SPDX-License-Identifier: Apache-2.0
//
// Packets between the supervisor and its children: what becomes of descriptors that come with them.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "launch/control.h"
#include "utils/packet.h"

// A descriptor that comes with a packet is whose it is for, or closed.
static void test_passed_descriptors(void **state)
{
    (void)state;
    static const struct {
        bool wanted, whole; // a caller asks for it; the packet is one
        int kind;
    } cases[] = {
        {true, true, MSGL_CONTROL_CHANNEL}, {false, true, MSGL_CONTROL_CHANNEL}, {true, false, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int line[2], end[2], replica = 0, passed = -1;
        char text[MSGL_CONTROL_TEXT + 1], c;
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, line), 0);
        assert_int_equal(pipe(end), 0);
        const int rc = cases[i].whole
                           ? msgl__control_send(line[0], MSGL_CONTROL_CHANNEL, 3, "x", end[1])
                           : msgl__packet_send(line[0], "x", 1, end[1]);
        assert_int_equal(rc, 0);
        close(end[1]);
        const int kind =
            msgl__control_recv(line[1], &replica, text, cases[i].wanted ? &passed : NULL);
        assert_int_equal(kind, cases[i].kind);
        assert_int_equal(replica, cases[i].whole ? 3 : 0);
        assert_int_equal(passed >= 0, cases[i].wanted && cases[i].whole);
        if (passed >= 0) close(passed);
        assert_int_equal(read(end[0], &c, 1), 0); // nobody has it any more
        close(end[0]);
        close(line[0]);
        close(line[1]);
    }
}

// Of two descriptors in one packet, which nobody here sends, the second is not taken.
static void test_two_descriptors(void **state)
{
    (void)state;
    int line[2], end[2], passed;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, line), 0);
    assert_int_equal(pipe(end), 0);
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof end)];
    } control = {0};
    char c = 'x';
    struct iovec iov = {&c, 1};
    const struct msghdr msg = {.msg_iov = &iov,
                               .msg_iovlen = 1,
                               .msg_control = control.buf,
                               .msg_controllen = sizeof control.buf};
    struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof end);
    memcpy(CMSG_DATA(head), end, sizeof end);
    assert_int_equal(sendmsg(line[0], &msg, 0), 1);
    close(end[1]);
    assert_int_equal(msgl__packet_recv(line[1], &c, 1, &passed), 1);
    assert_true(passed >= 0);
    close(passed); // the pipe's end to read from
    assert_int_equal(read(end[0], &c, 1), 0);
    close(end[0]);
    close(line[0]);
    close(line[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passed_descriptors),
        cmocka_unit_test(test_two_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
