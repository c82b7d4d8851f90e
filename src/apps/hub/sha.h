// SPDX-License-Identifier: Apache-2.0
//
// SHA-1 and SHA-256 of bytes that come in pieces, as hubs give them for their files. SHA-1 is git's
// name of a small file, and does not protect against somebody who makes two files with one name.
#ifndef MSGL_APPS_HUB_SHA_H
#define MSGL_APPS_HUB_SHA_H

#include <stdbool.h>
#include <stddef.h>

typedef enum msgl_sha_kind { MSGL_SHA1, MSGL_SHA256 } msgl_sha_kind;

typedef struct msgl_sha { // {0}: not begun
    struct evp_md_ctx_st *ctx;
    bool failed; // without memory; the digest is then empty
} msgl_sha;

// Begins, or begins again.
void msgl__sha_start(msgl_sha *s, msgl_sha_kind kind);
void msgl__sha_add(msgl_sha *s, const void *data, size_t n);
// The digest in lower-case hexadecimal: 40 or 64 digits and a NUL.
void msgl__sha_end(msgl_sha *s, char out[65]);
void msgl__sha_free(msgl_sha *s);

#endif
