// SPDX-License-Identifier: Apache-2.0
#include "utils/packet.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "core/err.h"

typedef union one_fd {
    struct cmsghdr align;
    char buf[CMSG_SPACE(sizeof(int))];
} one_fd;

int msgl__packet_send(int fd, const void *data, size_t len, int pass_fd)
{
    struct iovec iov = {(void *)(uintptr_t)data, len};
    one_fd control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (pass_fd >= 0) {
        msg.msg_control = control.buf;
        msg.msg_controllen = sizeof control.buf;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &pass_fd, sizeof(int));
    }
    ssize_t n;
    do {
        n = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? MSGL_EIO : 0;
}

ssize_t msgl__packet_recv(int fd, void *data, size_t cap, int *passed_fd)
{
    struct iovec iov = {data, cap};
    one_fd control = {0};
    // The padding of CMSG_SPACE would have room for a second descriptor, which nobody would close.
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.buf,
                         .msg_controllen = CMSG_LEN(sizeof(int))};
    *passed_fd = -1;
    ssize_t n;
    do {
        n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
    if (n == 0) return -1;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        memcpy(passed_fd, CMSG_DATA(c), sizeof(int));
    }
    return n;
}
