// SPDX-License-Identifier: Apache-2.0
//
// Files that others wrote: opened so that nothing but a regular file can be read; files of our own:
// written whole. Named in messages so that a message stays one short line.
#ifndef MSGL_UTILS_FILE_H
#define MSGL_UTILS_FILE_H

#include <stddef.h>
#include <sys/types.h>

#include "core/err.h"

// Opens a regular file for reading; *size is its length. Never waits, whatever is at `path`: a FIFO
// without a writer would block an open for good. MSGL_ENOENT when there is none, else MSGL_EIO.
int msgl__file_open(const char *path, int *fd, size_t *size, msgl_err *err);

// The whole file, to be freed with msgl__free; a NUL that *len does not count follows the bytes.
// As above, and MSGL_ELIMIT for more than max_bytes, MSGL_ENOMEM, MSGL_EFORMAT for what Git LFS
// puts in the place of a large file.
int msgl__file_read(const char *path, size_t max_bytes, char **data, size_t *len, msgl_err *err);

// Maps a regular file read-only; freed with munmap. As msgl__file_open, and MSGL_EFORMAT for an
// empty one, or a pointer of Git LFS.
int msgl__file_map(const char *path, void **map, size_t *size, msgl_err *err);

// All of data to fd. 0, or MSGL_EIO with errno; some of it may have been written then.
int msgl__write_all(int fd, const void *data, size_t len);
// The folders above a file, those that are not there with this mode. MSGL_EIO.
int msgl__file_make_parents(const char *path, mode_t mode, msgl_err *err);
// A file with these bytes, on the disk, in the place of what was there: who reads it finds one or
// the other, also after a crash, which may leave path.PID.tmp. MSGL_EINVAL: the path is too long;
// MSGL_EIO.
int msgl__file_replace(const char *path, mode_t mode, const void *data, size_t len, msgl_err *err);

// That none but a file's owner and group may read or write it. what: what it has, for the error,
// MSGL_EINVAL. A file that is not there passes: reading it says so.
int msgl__file_check_private(const char *path, const char *what, msgl_err *err);

// DIR/FILE to out. MSGL_EINVAL: it is too long.
int msgl__path_join(const char *dir, const char *file, char *out, size_t size, msgl_err *err);
// The end of a path, at most 80 bytes of it from the start of a component, so that a message still
// has room for what is wrong. For names that are kept as long as the path is.
const char *msgl__path_tail(const char *path);
enum { MSGL_PATH_SHOWN = 100 };
// A path for a message: with more than 96 bytes its beginning, "..." and its end, written to buf.
const char *msgl__path_short(const char *path, char buf[MSGL_PATH_SHOWN]);
// The same for a name that is used up to the end of the block that the call stands in.
#define msgl__path_shown(path) msgl__path_short(path, (char[MSGL_PATH_SHOWN]){""})
// Copies s into buf, cut to size, with what is no text (control characters, bytes that are not
// UTF-8) replaced, for messages on one line.
const char *msgl__printable(const char *s, char *buf, size_t size);

#endif
