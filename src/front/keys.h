// SPDX-License-Identifier: Apache-2.0
//
// API keys: who has one may use the server. They come from options and from a file, and are never
// shown or logged.
#ifndef MSGL_FRONT_KEYS_H
#define MSGL_FRONT_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"

enum { MSGL_KEYS_MAX = 1024, MSGL_KEY_MAX_LEN = 512 };

typedef struct msgl_keys { // zero: there are none, and nobody needs one
    char **all;
    int count;
} msgl_keys;

void msgl__keys_free(msgl_keys *k);
// One more; printable ASCII without blanks, at most MSGL_KEY_MAX_LEN. MSGL_EINVAL, MSGL_ELIMIT.
int msgl__keys_add(msgl_keys *k, const char *key, size_t len, msgl_err *err);
// One a line, of a file that no other user may read; blanks around it, empty lines and those that
// begin with # do not count. A file without any is MSGL_EINVAL: it would leave the server open.
int msgl__keys_read(msgl_keys *k, const char *path, msgl_err *err);

// Which of them the key is, from 1, or 0; the value of an Authorization header, "Bearer KEY" with
// one of them. NULL: 0. How long that takes depends on the value's length, and the number of keys
// and their lengths, not on what they are.
int msgl__keys_find(const msgl_keys *k, const char *given, size_t len);
int msgl__keys_find_bearer(const msgl_keys *k, const char *authorization, size_t len);

#endif
