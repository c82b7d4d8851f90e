// SPDX-License-Identifier: Apache-2.0
//
// Small packets between processes over a packet socket (SOCK_SEQPACKET), each with a descriptor or
// none.
#ifndef MSGL_UTILS_PACKET_H
#define MSGL_UTILS_PACKET_H

#include <stddef.h>
#include <sys/types.h>

// pass_fd: -1, or a descriptor of which the receiver gets a copy. Never blocks: 0, or MSGL_EIO when
// nobody reads any more or the socket is full.
int msgl__packet_send(int fd, const void *data, size_t len, int pass_fd);
// The packet's bytes, 0 when there is none now, -1 when there will be none. *passed_fd: the
// caller's, or -1. Never blocks.
ssize_t msgl__packet_recv(int fd, void *data, size_t cap, int *passed_fd);

#endif
