// SPDX-License-Identifier: Apache-2.0
//
// minisgl's public C interface, the only installed header.
//
// Load a Hugging Face model folder, submit requests, receive tokens through a callback, abort. Every
// object is opaque and owned by the library unless a comment says otherwise. No function exits,
// prints or aborts; each returns a status (0 or a negative MSGL_E code) and the cold ones fill a
// caller-owned msgl_err with one line of text.
#ifndef MINISGL_MINISGL_H
#define MINISGL_MINISGL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MSGL_API __attribute__((visibility("default")))
#else
#define MSGL_API
#endif

// Status codes: name, value, text. Values never change meaning once released.
#define MSGL_STATUS_MAP(X)                                                                         \
    X(OK, 0, "success")                                                                            \
    X(EINVAL, -1, "invalid argument")                                                              \
    X(ENOMEM, -2, "out of memory")                                                                 \
    X(EIO, -3, "input or output failed")                                                           \
    X(ENOENT, -4, "not found")                                                                     \
    X(EFORMAT, -5, "malformed data")                                                               \
    X(EUNSUPPORTED, -6, "not supported")                                                           \
    X(ELIMIT, -7, "limit exceeded")                                                                \
    X(EBUSY, -8, "busy")                                                                           \
    X(ECLOSED, -9, "closed")                                                                       \
    X(EABORTED, -10, "aborted")                                                                    \
    X(ENUMERIC, -11, "numerical failure")                                                          \
    X(EINTERNAL, -12, "internal error")

enum {
#define MSGL_STATUS_ENUM(name, value, text) MSGL_##name = (value),
    MSGL_STATUS_MAP(MSGL_STATUS_ENUM)
#undef MSGL_STATUS_ENUM
};

#define MSGL_ERR_TEXT_SIZE 256

// Filled on failure: the code that was returned and one line of text without a newline.
typedef struct msgl_err {
    int code;
    char text[MSGL_ERR_TEXT_SIZE];
} msgl_err;

#ifdef __cplusplus
}
#endif
#endif
