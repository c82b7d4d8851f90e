// SPDX-License-Identifier: Apache-2.0
//
// A small blocking HTTP/1.1 client for benchmarks and tools: one connection, POST or GET, the body
// handed out as it arrives; and a reader that cuts a body into SSE events.
#ifndef MSGL_SERVER_CLIENT_H
#define MSGL_SERVER_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "utils/strbuf.h"

typedef struct msgl_url {
    char host[256], port[8], path[256]; // path without a slash at its end: "" or "/v1"
} msgl_url;
// "http://host[:port][/path]". MSGL_EINVAL; MSGL_EUNSUPPORTED for https.
int msgl__url_parse(const char *url, msgl_url *out, msgl_err *err);

typedef struct msgl_client {
    const msgl_url *url; // borrowed
    int timeout_ms;      // of connecting, and without any byte
    int fd;              // -1: not connected
    char *buf;
    size_t len, off; // received and not yet read: buf[off, len)
} msgl_client;

int msgl__client_init(msgl_client *c, const msgl_url *url, int timeout_ms, msgl_err *err);
void msgl__client_close(msgl_client *c); // zero-initialised allowed

// Called with pieces of the body; a non-zero result ends the transfer with it.
typedef int (*msgl_client_data_fn)(void *ctx, const char *data, size_t len);

// Sends a request (body NULL: GET, else POST of JSON) to url's path followed by `path`, and reads
// the answer. The connection is kept for the next one where the server allows, and opened again
// where it was closed in between. Any HTTP status is success; *status has it.
int msgl__client_request(msgl_client *c, const char *path, const char *body, size_t body_len,
                         msgl_client_data_fn on_data, void *ctx, int *status, msgl_err *err);

// Cuts a stream into the data of its events ("data:" lines joined by line breaks).
typedef struct msgl_sse_reader {
    msgl_strbuf line, data;
    bool has_data, after_cr;
    int (*on_event)(void *ctx, const char *data, size_t len);
    void *ctx;
} msgl_sse_reader;
void msgl__sse_reader_init(msgl_sse_reader *r, int (*on_event)(void *, const char *, size_t),
                           void *ctx);
void msgl__sse_reader_free(msgl_sse_reader *r);
int msgl__sse_reader_feed(msgl_sse_reader *r, const char *data, size_t len);

#endif
