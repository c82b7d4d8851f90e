// SPDX-License-Identifier: Apache-2.0
//
// Error reporting off the hot path: a caller-owned msgl_err carries the code and one line of text.
#ifndef MSGL_CORE_ERR_H
#define MSGL_CORE_ERR_H

#include <minisgl/minisgl.h>

// Sets *err (which may be NULL) to `code` and the formatted line, cut to fit; returns `code`, so
// that `return msgl__err_set(err, MSGL_EFORMAT, "%s: ...", path);` reads as one step.
int msgl__err_set(msgl_err *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// Puts `prefix: ` before the text of *err (NULL allowed) and returns its code; for adding the file
// or field that the callee did not know. Returns `code` when err is NULL.
int msgl__err_prefix(msgl_err *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// The fixed text of a status code; "unknown status" for any other number.
const char *msgl__status_text(int code);

#endif
