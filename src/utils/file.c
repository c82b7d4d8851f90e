// SPDX-License-Identifier: Apache-2.0
#include "utils/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/mem.h"
#include "utils/utf8.h"

int msgl__file_open(const char *path, int *fd, size_t *size, msgl_err *err)
{
    // What it is can only be asked once it is open without a race, so the open itself must not
    // wait (FIFO) and must not take a terminal. Reading a regular file ignores O_NONBLOCK.
    const int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (f < 0) {
        const int code = errno == ENOENT || errno == ENOTDIR ? MSGL_ENOENT : MSGL_EIO;
        return msgl__err_set(err, code, "%s: %s", msgl__path_shown(path), strerror(errno));
    }
    struct stat st;
    if (fstat(f, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(f);
        return msgl__err_set(err, MSGL_EIO, "%s: not a regular file", msgl__path_shown(path));
    }
    *fd = f;
    *size = (size_t)st.st_size;
    return 0;
}

// What stands in a clone in the place of a large file that Git LFS has not fetched.
static int check_pointer(const char *path, const char *data, size_t n, msgl_err *err)
{
    static const char begin[] = "version https://git-lfs.github.com/spec/";
    const size_t len = sizeof begin - 1;
    if (n < len || n > 1024 || memcmp(data, begin, len) != 0) return 0;
    return msgl__err_set(err, MSGL_EFORMAT,
                         "%s: is a Git LFS pointer, not the file itself; `git lfs pull` in its "
                         "folder fetches it",
                         msgl__path_shown(path));
}

// Exactly n bytes; a file that got shorter meanwhile is an error.
static int read_all(int fd, const char *path, char *data, size_t n, msgl_err *err)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = read(fd, data + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            return msgl__err_set(err, MSGL_EIO, "%s: %s", msgl__path_shown(path),
                                 got < 0 ? strerror(errno) : "became shorter while it was read");
        }
        done += (size_t)got;
    }
    return 0;
}

int msgl__file_read(const char *path, size_t max_bytes, char **data, size_t *len, msgl_err *err)
{
    int fd;
    size_t size;
    int rc = msgl__file_open(path, &fd, &size, err);
    if (rc != 0) return rc;
    char *bytes = NULL;
    if (size > max_bytes) {
        rc = msgl__err_set(err, MSGL_ELIMIT, "%s: found %zu bytes, allowed %zu",
                           msgl__path_shown(path), size, max_bytes);
    } else if ((bytes = msgl__malloc(size + 1)) == NULL) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", msgl__path_shown(path));
    } else {
        rc = read_all(fd, path, bytes, size, err);
        if (rc == 0) rc = check_pointer(path, bytes, size, err);
    }
    close(fd);
    if (rc != 0) {
        msgl__free(bytes);
        return rc;
    }
    bytes[size] = '\0';
    *data = bytes;
    *len = size;
    return 0;
}

int msgl__file_map(const char *path, void **map, size_t *size, msgl_err *err)
{
    int fd;
    int code = msgl__file_open(path, &fd, size, err);
    if (code != 0) return code;
    if (*size == 0) {
        close(fd);
        return msgl__err_set(err, MSGL_EFORMAT, "%s: empty", msgl__path_shown(path));
    }
    *map = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
    const int why = errno;
    close(fd);
    if (*map == MAP_FAILED) {
        return msgl__err_set(err, MSGL_EIO, "%s: %s", msgl__path_shown(path), strerror(why));
    }
    code = check_pointer(path, *map, *size, err);
    if (code != 0) munmap(*map, *size);
    return code;
}

int msgl__write_all(int fd, const void *data, size_t len)
{
    for (size_t at = 0; at < len;) {
        const ssize_t n = write(fd, (const char *)data + at, len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return MSGL_EIO;
        at += (size_t)n;
    }
    return 0;
}

static int fail(const char *path, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EIO, "%s: %s", msgl__path_shown(path), strerror(errno));
}

int msgl__file_make_parents(const char *path, mode_t mode, msgl_err *err)
{
    char part[PATH_MAX];
    struct stat st;
    if ((size_t)snprintf(part, sizeof part, "%s", path) >= sizeof part) {
        return msgl__err_set(err, MSGL_EINVAL, "%s: the path is too long", msgl__path_shown(path));
    }
    for (char *p = part + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        // Of a folder that may not be written one hears that, though it has what is wanted.
        if (mkdir(part, mode) != 0 && errno != EEXIST && stat(part, &st) != 0) {
            return fail(part, err);
        }
        *p = '/';
    }
    return 0;
}

int msgl__file_replace(const char *path, mode_t mode, const void *data, size_t len, msgl_err *err)
{
    char tmp[PATH_MAX];
    if ((size_t)snprintf(tmp, sizeof tmp, "%s.%ld.tmp", path, (long)getpid()) >= sizeof tmp) {
        return msgl__err_set(err, MSGL_EINVAL, "%s: the path is too long", msgl__path_shown(path));
    }
    (void)unlink(tmp);
    const int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0) return fail(tmp, err);
    int rc = msgl__write_all(fd, data, len);
    if (rc == 0 && fsync(fd) != 0) rc = MSGL_EIO;
    if (rc != 0) (void)fail(path, err);
    if (close(fd) != 0 && rc == 0) rc = fail(path, err);
    if (rc == 0 && rename(tmp, path) != 0) rc = fail(path, err);
    if (rc != 0) (void)unlink(tmp);
    return rc;
}

int msgl__file_check_private(const char *path, const char *what, msgl_err *err)
{
    struct stat st;
    if (stat(path, &st) != 0 || (st.st_mode & S_IRWXO) == 0) return 0;
    return msgl__err_set(err, MSGL_EINVAL,
                         "%s has %s that every user of this machine may use (mode %03o); allowed: "
                         "owner and group (chmod o= FILE)",
                         msgl__path_tail(path), what, (unsigned)(st.st_mode & 0777));
}

int msgl__path_join(const char *dir, const char *file, char *out, size_t size, msgl_err *err)
{
    const int n = snprintf(out, size, "%s/%s", dir, file);
    if (n >= 0 && (size_t)n < size) return 0;
    return msgl__err_set(err, MSGL_EINVAL, "%s: the path is too long", msgl__path_shown(dir));
}

const char *msgl__path_tail(const char *path)
{
    const size_t n = strlen(path), most = 80;
    if (n <= most) return path;
    const char *tail = path + n - most, *slash = strchr(tail, '/');
    return slash != NULL ? slash + 1 : tail;
}

const char *msgl__path_short(const char *path, char buf[MSGL_PATH_SHOWN])
{
    enum { BEGIN = 30, END = 60 };
    const size_t n = strlen(path);
    if (n < BEGIN + END + 6) return path;
    size_t begin = BEGIN, end = n - END;
    while (begin > 0 && (path[begin] & 0xc0) == 0x80) begin--; // no half characters
    while ((path[end] & 0xc0) == 0x80) end++;
    const char *slash = strchr(path + end, '/');
    if (slash != NULL) end = (size_t)(slash - path);
    (void)snprintf(buf, MSGL_PATH_SHOWN, "%.*s...%s", (int)begin, path, path + end);
    return buf;
}

const char *msgl__printable(const char *s, char *buf, size_t size)
{
    size_t n = 0;
    for (size_t left = strlen(s); left > 0;) {
        const size_t len = msgl__utf8_char(s, left), step = len > 0 ? len : 1;
        const bool shown = len > 0 && !msgl__utf8_is_control(s);
        if (n + (shown ? len : 1) >= size) break;
        memcpy(buf + n, shown ? s : "?", shown ? len : 1);
        n += shown ? len : 1;
        s += step;
        left -= step;
    }
    buf[n] = '\0';
    return buf;
}
