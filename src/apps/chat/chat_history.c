// SPDX-License-Identifier: Apache-2.0
//
// The file of what was entered: an entry a line, in which \n is the end of a line and \\ a
// backslash. Entries are appended as they are made, so that several shells can share the file and
// nothing is lost when one is killed.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/chat/chat.h"
#include "core/err.h"
#include "core/mem.h"
#include "utils/file.h"

enum { MAX_BYTES = 16 << 20, MAX_ENTRY = 64 << 10 };

int msgl__chat_history_path(char *out, size_t size, msgl_err *err)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (state != NULL && state[0] == '/') { // as the specification has it, a relative one is none
        n = snprintf(out, size, "%s/minisgl/chat_history", state);
    } else if (home != NULL && home[0] == '/') {
        n = snprintf(out, size, "%s/.local/state/minisgl/chat_history", home);
    }
    if (n < 0) return msgl__err_set(err, MSGL_ENOENT, "neither XDG_STATE_HOME nor HOME is a path");
    if ((size_t)n < size) return 0;
    return msgl__err_set(err, MSGL_EINVAL, "the path of the history is too long");
}

static int fail(const char *path, int code, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EIO, "%s: %s", msgl__path_shown(path), strerror(code));
}

// Never waits, whatever is at `path`.
static int open_file(const char *path, int flags, int *fd, msgl_err *err)
{
    struct stat st;
    *fd = open(path, flags | O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
    if (*fd < 0) return fail(path, errno, err);
    if (fstat(*fd, &st) == 0 && S_ISREG(st.st_mode)) return 0;
    close(*fd);
    return msgl__err_set(err, MSGL_EIO, "%s: not a file", msgl__path_shown(path));
}

int msgl__chat_history_add(const char *path, const char *entry, msgl_err *err)
{
    msgl_strbuf line;
    msgl__strbuf_init(&line, (size_t)2 * MAX_ENTRY + 2);
    int rc = 0;
    for (const char *p = entry; rc == 0 && *p != '\0'; p++) {
        if (*p == '\n') {
            rc = msgl__strbuf_adds(&line, "\\n");
        } else if (*p == '\\') {
            rc = msgl__strbuf_adds(&line, "\\\\");
        } else {
            rc = msgl__strbuf_addc(&line, *p);
        }
    }
    if (rc == 0) rc = msgl__strbuf_addc(&line, '\n');
    if (rc != 0) { // longer than anyone would look for again
        msgl__strbuf_free(&line);
        return rc == MSGL_ELIMIT ? 0 : msgl__err_set(err, rc, "out of memory");
    }
    int fd;
    rc = msgl__file_make_parents(path, 0700, err);
    if (rc == 0) rc = open_file(path, O_APPEND, &fd, err);
    if (rc == 0) {
        if (msgl__write_all(fd, line.data, line.len) != 0) rc = fail(path, errno, err);
        close(fd);
    }
    msgl__strbuf_free(&line);
    return rc;
}

// The entry of a line, in its place.
static void decode(char *line)
{
    char *to = line;
    for (const char *p = line; *p != '\0'; p++) {
        if (*p == '\\' && (p[1] == 'n' || p[1] == '\\')) {
            *to++ = *++p == 'n' ? '\n' : '\\';
        } else {
            *to++ = *p;
        }
    }
    *to = '\0';
}

// Where the last `n` lines of a text begin.
static char *last_lines(char *data, size_t len, int n)
{
    char *p = data + len;
    if (p > data) p--; // the end of the last one
    while (p > data) {
        if (p[-1] == '\n' && --n == 0) break;
        p--;
    }
    return p;
}

int msgl__chat_history_read(const char *path, void (*fn)(void *ctx, const char *entry), void *ctx,
                            msgl_err *err)
{
    char *data = NULL;
    size_t len = 0;
    int rc = msgl__file_read(path, MAX_BYTES, &data, &len, err);
    if (rc == MSGL_ENOENT) return 0;
    if (rc != 0) return rc;
    char *first = last_lines(data, len, MSGL_CHAT_HISTORY_MAX);
    // Not at every start, and only when it is much too long: others may append to it meanwhile.
    int lines = 0;
    for (const char *p = data; p < first; p++) lines += *p == '\n';
    if (lines > MSGL_CHAT_HISTORY_MAX / 2 || len > MAX_BYTES / 2) {
        rc = msgl__file_replace(path, 0600, first, (size_t)(data + len - first), err);
    }
    for (char *line = first, *end; line < data + len; line = end + 1) {
        end = line + strcspn(line, "\n");
        *end = '\0'; // a NUL follows the bytes
        decode(line);
        if (*line != '\0') fn(ctx, line);
    }
    msgl__free(data);
    return rc;
}
