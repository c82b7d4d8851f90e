// SPDX-License-Identifier: Apache-2.0
//
// A small HTTP/1.1 client for benchmarks and tools: a reader of answers that takes bytes as they
// come from whatever received them, a reader that cuts a body into SSE events, and a blocking GET.
#ifndef MSGL_HTTP_CLIENT_H
#define MSGL_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "core/err.h"
#include "utils/strbuf.h"

typedef struct msgl_url {
    char host[256], port[8], path[256]; // path without a slash at its end: "" or "/v1"
} msgl_url;
// "http://host[:port][/path]". MSGL_EINVAL; MSGL_EUNSUPPORTED for https.
int msgl__url_parse(const char *url, msgl_url *out, msgl_err *err);

// Called with pieces of the body; a negative result ends the transfer with it.
typedef int (*msgl_client_data_fn)(void *ctx, const char *data, size_t len);

typedef enum msgl_answer_state {
    MSGL_ANSWER_STATUS, // which line or bytes come next
    MSGL_ANSWER_FIELDS,
    MSGL_ANSWER_BODY,
    MSGL_ANSWER_BODY_TO_END, // of the connection
    MSGL_ANSWER_CHUNK_SIZE,
    MSGL_ANSWER_CHUNK,
    MSGL_ANSWER_CHUNK_END,
    MSGL_ANSWER_TRAILER,
    MSGL_ANSWER_DONE,
} msgl_answer_state;

// Reader of one answer.
typedef struct msgl_answer {
    msgl_client_data_fn on_data;
    void *ctx;
    msgl_answer_state state;
    int status; // valid behind the head
    bool keep;  // the connection may be used for another request
    bool chunked, has_length;
    unsigned long long left; // bytes of the body or chunk
    msgl_strbuf line;        // begun and not ended
} msgl_answer;
void msgl__answer_init(msgl_answer *a, msgl_client_data_fn on_data, void *ctx);
void msgl__answer_free(msgl_answer *a);
void msgl__answer_begin(msgl_answer *a); // before each answer
// Takes received bytes, as many as belong to this answer: *used. Ready when a->state is
// MSGL_ANSWER_DONE. MSGL_EFORMAT, or what on_data gave.
int msgl__answer_feed(msgl_answer *a, const char *data, size_t len, size_t *used, msgl_err *err);
// The connection ended: 0 when that ends the answer, too.
int msgl__answer_end(msgl_answer *a, msgl_err *err);

// Writes the request line and the header fields of a request for url's path followed by `path`: a
// POST of JSON if it has a body, else a GET.
int msgl__client_head(const msgl_url *url, const char *path, bool has_body, size_t body_len,
                      msgl_strbuf *out);

typedef struct msgl_address {
    struct sockaddr_storage addr;
    socklen_t len;
} msgl_address;
// Does one GET on a connection of its own; any HTTP status is success. timeout_ms is how long
// connecting may take, and how long no byte may come. *address is that of the host's addresses
// which took the connection.
int msgl__client_get(const msgl_url *url, const char *path, int timeout_ms, msgl_strbuf *body,
                     int *status, msgl_address *address, msgl_err *err);

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
void msgl__sse_reader_clear(msgl_sse_reader *r); // before each stream
int msgl__sse_reader_feed(msgl_sse_reader *r, const char *data, size_t len);

#endif
