// SPDX-License-Identifier: Apache-2.0
//
// A listening socket at an address of this machine (--host, --port).
#ifndef MSGL_HTTP_TCP_SOCKET_H
#define MSGL_HTTP_TCP_SOCKET_H

#include "core/err.h"

// Listens at the first of the host's addresses that takes it; port 0 picks a free one, and
// *bound_port is the one that it is. The error names host, port and reason.
int msgl__tcp_listen(const char *host, int port, int *fd, int *bound_port, msgl_err *err);

#endif
