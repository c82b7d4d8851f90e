// SPDX-License-Identifier: Apache-2.0
#include "http/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "utils/file.h"

static int fail(const char *path, const char *what, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EIO, "cannot listen on %s: %s", msgl__path_shown(path), what);
}

// Locks the folder of a socket, because of two servers that start at the same path the second one
// could remove the first one's file. On a file system without locks it goes on without one.
static int lock_folder(const char *path, int *lock, msgl_err *err)
{
    char copy[sizeof((struct sockaddr_un *)0)->sun_path];
    (void)snprintf(copy, sizeof copy, "%s", path);
    *lock = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock < 0) return fail(path, strerror(errno), err);
    if (flock(*lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return 0;
    close(*lock);
    return fail(path, "another server starts in this folder", err);
}

// Makes room for a new socket: removes that of a server that is gone.
static int remove_stale(const struct sockaddr_un *at, msgl_err *err)
{
    struct stat st;
    if (lstat(at->sun_path, &st) != 0) {
        return errno == ENOENT ? 0 : fail(at->sun_path, strerror(errno), err);
    }
    if (!S_ISSOCK(st.st_mode)) return fail(at->sun_path, "it exists, and is no socket", err);
    const int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0) return fail(at->sun_path, strerror(errno), err);
    const int rc = connect(s, (const struct sockaddr *)at, sizeof *at);
    const int saved = errno;
    close(s);
    if (rc == 0 || saved == EAGAIN) return fail(at->sun_path, "a server listens there", err);
    if (saved != ECONNREFUSED || unlink(at->sun_path) != 0) {
        return fail(at->sun_path, strerror(saved != ECONNREFUSED ? saved : errno), err);
    }
    return 0;
}

static int bind_socket(const struct sockaddr_un *at, msgl_unix_socket *out, int *fd, msgl_err *err)
{
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const mode_t before = umask(0177);
    const int bound = *fd < 0 ? -1 : bind(*fd, (const struct sockaddr *)at, sizeof *at);
    const int saved = errno;
    (void)umask(before);
    errno = saved;
    struct stat st;
    if (bound == 0 && listen(*fd, 1024) == 0 && lstat(at->sun_path, &st) == 0) {
        out->dev = st.st_dev;
        out->ino = st.st_ino;
        return 0;
    }
    const int rc = fail(at->sun_path, strerror(errno), err);
    if (bound == 0) (void)unlink(at->sun_path);
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return rc;
}

int msgl__unix_listen(const char *path, msgl_unix_socket *out, int *fd, msgl_err *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const size_t n = strlen(path);
    *fd = -1;
    if (n == 0 || n >= sizeof at.sun_path) {
        return msgl__err_set(err, MSGL_EINVAL, "the socket's path has %zu bytes; allowed: 1 to %zu",
                             n, sizeof at.sun_path - 1);
    }
    memcpy(at.sun_path, path, n + 1);
    int lock;
    int rc = lock_folder(path, &lock, err);
    if (rc != 0) return rc;
    *out = (msgl_unix_socket){.path = path};
    rc = remove_stale(&at, err);
    if (rc == 0) rc = bind_socket(&at, out, fd, err);
    if (rc != 0) out->path = NULL;
    close(lock);
    return rc;
}

void msgl__unix_remove(const msgl_unix_socket *s)
{
    struct stat st;
    if (s->path == NULL || lstat(s->path, &st) != 0) return;
    if (st.st_dev == s->dev && st.st_ino == s->ino) (void)unlink(s->path);
}
