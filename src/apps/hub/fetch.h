// SPDX-License-Identifier: Apache-2.0
//
// Downloads texts and files over HTTP. It follows redirects, shows the token to its own host alone,
// and tries again. A file goes on where an earlier attempt ended, and is checked against what the
// hub says of it.
#ifndef MSGL_APPS_HUB_FETCH_H
#define MSGL_APPS_HUB_FETCH_H

#include <signal.h>
#include <stdint.h>

#include "core/err.h"
#include "apps/hub/kind.h"
#include "utils/strbuf.h"

typedef struct msgl_fetch_config {
    const msgl_hub_kind *kind; // what it is of, for the cookie and messages
    const char *endpoint;      // "https://host[:port][/path]"
    const char *token;         // for the endpoint's scheme, host and port only; NULL: none
    const volatile sig_atomic_t *interrupted;
    void (*log)(void *ctx, const char *line);
    void (*progress)(void *ctx, uint64_t done); // bytes of the file that are here
    void *ctx;
} msgl_fetch_config;

typedef struct msgl_fetch msgl_fetch;

int msgl__fetch_open(const msgl_fetch_config *cfg, msgl_fetch **out, msgl_err *err);
void msgl__fetch_close(msgl_fetch *f); // NULL allowed

// Reads what is at `url`, at most out->max bytes. `what` is its name in messages.
int msgl__fetch_text(msgl_fetch *f, const char *url, const char *what, msgl_strbuf *out,
                     msgl_err *err);

typedef struct msgl_fetch_file {
    const char *url, *what;
    const char *partial; // path that grows; what is in it already is not asked for again
    uint64_t size;
    const char *checksum; // of SHA-256, or git's SHA-1 (by its length), in lower-case hexadecimal
} msgl_fetch_file;

// Downloads the rest of the file into `partial`, and checks all of it. A wrong one is removed
// (MSGL_EFORMAT); after any other error what is there stays for the next attempt.
int msgl__fetch_file(msgl_fetch *f, const msgl_fetch_file *file, msgl_err *err);

#endif
