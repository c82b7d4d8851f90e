// SPDX-License-Identifier: Apache-2.0
//
// A listening socket with a path (--uds): nobody but the server's own user may connect, the file
// that a dead server left is replaced, one that somebody listens at is not.
#ifndef MSGL_HTTP_UNIX_SOCKET_H
#define MSGL_HTTP_UNIX_SOCKET_H

#include <sys/types.h>

#include "core/err.h"

typedef struct msgl_unix_socket {
    const char *path; // borrowed; NULL: there is none
    dev_t dev;        // of its file
    ino_t ino;
} msgl_unix_socket;

// Makes a listening socket whose file has mode 0600. It changes the process's umask for a moment,
// so that there must be no other thread. MSGL_EINVAL: no socket can have this path; MSGL_EIO:
// something else is there, a server listens there, or the system refuses. The error names the path.
int msgl__unix_listen(const char *path, msgl_unix_socket *out, int *fd, msgl_err *err);
// Removes the file, if it still is this socket's.
void msgl__unix_remove(const msgl_unix_socket *s);

#endif
