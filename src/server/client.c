// SPDX-License-Identifier: Apache-2.0
#include "server/client.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/mem.h"

enum { BUF_SIZE = 64 * 1024, HEAD_MAX = 32 * 1024, EVENT_MAX = 64 << 20 };

int msgl__url_parse(const char *url, msgl_url *out, msgl_err *err)
{
    if (strncasecmp(url, "https://", 8) == 0) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "%s: https is not supported; use http", url);
    }
    if (strncasecmp(url, "http://", 7) != 0) {
        return msgl__err_set(err, MSGL_EINVAL, "%s: must be http://HOST[:PORT][/PATH]", url);
    }
    const char *host = url + 7;
    size_t host_len = strcspn(host, "/?#");
    const char *path = host + host_len;
    const char *port = "80";
    size_t port_len = 2;
    const char *bracket = host[0] == '[' ? memchr(host, ']', host_len) : NULL;
    const char *name_end = bracket != NULL ? bracket : host;
    const char *colon = memchr(name_end, ':', (size_t)(path - name_end));
    if (colon != NULL) {
        port = colon + 1;
        port_len = (size_t)(path - port);
        host_len = (size_t)(colon - host);
    }
    if (bracket != NULL) {
        host++;
        host_len -= 2;
    }
    size_t path_len = strcspn(path, "?#");
    while (path_len > 0 && path[path_len - 1] == '/') path_len--;
    if (host_len == 0 || host_len >= sizeof out->host || port_len == 0 ||
        port_len >= sizeof out->port || path_len >= sizeof out->path) {
        return msgl__err_set(err, MSGL_EINVAL, "%s: must be http://HOST[:PORT][/PATH]", url);
    }
    (void)snprintf(out->host, sizeof out->host, "%.*s", (int)host_len, host);
    (void)snprintf(out->port, sizeof out->port, "%.*s", (int)port_len, port);
    (void)snprintf(out->path, sizeof out->path, "%.*s", (int)path_len, path);
    return 0;
}

int msgl__client_init(msgl_client *c, const msgl_url *url, int timeout_ms, msgl_err *err)
{
    *c = (msgl_client){.url = url, .timeout_ms = timeout_ms, .fd = -1};
    c->buf = msgl__malloc(BUF_SIZE);
    return c->buf != NULL ? 0 : msgl__err_set(err, MSGL_ENOMEM, "client: out of memory");
}

static void disconnect(msgl_client *c)
{
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->len = c->off = 0;
}

void msgl__client_close(msgl_client *c)
{
    if (c->buf == NULL) return;
    disconnect(c);
    msgl__free(c->buf);
    c->buf = NULL;
}

static int client_connect(msgl_client *c, msgl_err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    const int gai = getaddrinfo(c->url->host, c->url->port, &hints, &list);
    if (gai != 0) {
        return msgl__err_set(err, MSGL_EIO, "host %s: %s", c->url->host, gai_strerror(gai));
    }
    const struct timeval tv = {c->timeout_ms / 1000, (c->timeout_ms % 1000) * 1000};
    const int one = 1;
    int saved = 0;
    for (const struct addrinfo *a = list; a != NULL && c->fd < 0; a = a->ai_next) {
        const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) continue;
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
            c->fd = fd;
        } else {
            saved = errno;
            close(fd);
        }
    }
    freeaddrinfo(list);
    if (c->fd >= 0) return 0;
    return msgl__err_set(err, MSGL_EIO, "cannot connect to %s port %s: %s", c->url->host,
                         c->url->port, strerror(saved));
}

static int send_all(msgl_client *c, const char *data, size_t len, msgl_err *err)
{
    while (len > 0) {
        const ssize_t n = send(c->fd, data, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return msgl__err_set(err, MSGL_EIO, "sending: %s", strerror(errno));
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

// More bytes into the (empty) buffer: 1, 0 at the end, negative.
static int fill(msgl_client *c, msgl_err *err)
{
    c->len = c->off = 0;
    for (;;) {
        const ssize_t n = recv(c->fd, c->buf, BUF_SIZE, 0);
        if (n > 0) {
            c->len = (size_t)n;
            return 1;
        }
        if (n == 0) return 0;
        if (errno == EINTR) continue;
        return msgl__err_set(err, MSGL_EIO, "receiving: %s",
                             errno == EAGAIN ? "nothing came in time" : strerror(errno));
    }
}

// One line without its end. 1, 0 at the end of the stream before any byte, negative.
static int read_line(msgl_client *c, msgl_strbuf *line, msgl_err *err)
{
    msgl__strbuf_clear(line);
    for (;;) {
        if (c->off == c->len) {
            const int rc = fill(c, err);
            if (rc < 0 || (rc == 0 && line->len == 0)) return rc;
            if (rc == 0) return msgl__err_set(err, MSGL_EFORMAT, "the answer ended early");
        }
        const char *nl = memchr(c->buf + c->off, '\n', c->len - c->off);
        const size_t n = nl == NULL ? c->len - c->off : (size_t)(nl - (c->buf + c->off)) + 1;
        if (msgl__strbuf_add(line, c->buf + c->off, n) != 0) {
            return msgl__err_set(err, MSGL_EFORMAT, "a line of the answer is too long");
        }
        c->off += n;
        if (nl == NULL) continue;
        while (line->len > 0 &&
               (line->data[line->len - 1] == '\n' || line->data[line->len - 1] == '\r')) {
            line->data[--line->len] = '\0';
        }
        return 1;
    }
}

typedef struct answer {
    int status;
    bool chunked, keep, has_length;
    unsigned long long length;
} answer;

static int read_head(msgl_client *c, answer *a, msgl_err *err)
{
    msgl_strbuf line;
    msgl__strbuf_init(&line, HEAD_MAX);
    int rc;
    do { // interim answers (100) are skipped
        *a = (answer){.keep = true};
        rc = read_line(c, &line, err);
        if (rc == 0) rc = msgl__err_set(err, MSGL_ECLOSED, "the server closed the connection");
        int minor = 0;
        if (rc > 0 && sscanf(line.data, "HTTP/1.%d %d", &minor, &a->status) != 2) {
            rc = msgl__err_set(err, MSGL_EFORMAT, "this is no HTTP answer: '%.60s'", line.data);
        }
        if (minor == 0) a->keep = false;
        while (rc > 0 && (rc = read_line(c, &line, err)) > 0 && line.len > 0) {
            const char *v = strchr(line.data, ':');
            if (v == NULL) continue;
            v += 1 + strspn(v + 1, " \t");
            if (strncasecmp(line.data, "content-length:", 15) == 0) {
                a->has_length = true;
                a->length = strtoull(v, NULL, 10);
            } else if (strncasecmp(line.data, "transfer-encoding:", 18) == 0) {
                a->chunked = strcasestr(v, "chunked") != NULL;
            } else if (strncasecmp(line.data, "connection:", 11) == 0) {
                a->keep = strcasestr(v, "close") == NULL;
            }
        }
    } while (rc > 0 && a->status >= 100 && a->status < 200);
    msgl__strbuf_free(&line);
    return rc > 0 ? 0 : rc == 0 ? msgl__err_set(err, MSGL_EFORMAT, "the answer ended early") : rc;
}

// Hands out the next `left` bytes (or all until the end of the stream).
static int read_body(msgl_client *c, unsigned long long left, bool to_end,
                     msgl_client_data_fn on_data, void *ctx, msgl_err *err)
{
    while (left > 0 || to_end) {
        if (c->off == c->len) {
            const int rc = fill(c, err);
            if (rc < 0) return rc;
            if (rc == 0) {
                return to_end ? 0 : msgl__err_set(err, MSGL_EFORMAT, "the answer ended early");
            }
        }
        size_t n = c->len - c->off;
        if (!to_end && n > left) n = (size_t)left;
        const int rc = on_data(ctx, c->buf + c->off, n);
        if (rc != 0) return rc;
        c->off += n;
        left -= to_end ? 0 : n;
    }
    return 0;
}

static int read_chunks(msgl_client *c, msgl_client_data_fn on_data, void *ctx, msgl_err *err)
{
    msgl_strbuf line;
    msgl__strbuf_init(&line, HEAD_MAX);
    int rc = 0;
    for (bool last = false; rc == 0 && !last;) {
        rc = read_line(c, &line, err) > 0 ? 0 : MSGL_EFORMAT;
        if (rc != 0) break;
        char *end;
        const unsigned long long n = strtoull(line.data, &end, 16);
        if (end == line.data) rc = msgl__err_set(err, MSGL_EFORMAT, "a chunk size is malformed");
        last = n == 0;
        if (rc == 0) rc = read_body(c, n, false, on_data, ctx, err);
        // The line break after the chunk; after the last one the trailer up to its empty line.
        do {
            if (rc == 0) rc = read_line(c, &line, err) > 0 ? 0 : MSGL_EFORMAT;
        } while (rc == 0 && last && line.len > 0);
    }
    msgl__strbuf_free(&line);
    return rc;
}

static int request_once(msgl_client *c, const msgl_strbuf *head, const char *body, size_t body_len,
                        msgl_client_data_fn on_data, void *ctx, int *status, msgl_err *err)
{
    answer a;
    int rc = send_all(c, head->data, head->len, err);
    if (rc == 0 && body != NULL) rc = send_all(c, body, body_len, err);
    if (rc == 0) rc = read_head(c, &a, err);
    if (rc != 0) return rc == MSGL_EIO ? MSGL_ECLOSED : rc;
    *status = a.status;
    if (a.chunked) {
        rc = read_chunks(c, on_data, ctx, err);
    } else if (a.status != 204) {
        rc = read_body(c, a.length, !a.has_length, on_data, ctx, err);
    }
    if (rc != 0 || !a.keep || (!a.chunked && !a.has_length)) disconnect(c);
    return rc;
}

int msgl__client_request(msgl_client *c, const char *path, const char *body, size_t body_len,
                         msgl_client_data_fn on_data, void *ctx, int *status, msgl_err *err)
{
    msgl_strbuf head;
    msgl__strbuf_init(&head, 4096);
    int rc = msgl__strbuf_addf(&head, "%s %s%s HTTP/1.1\r\nHost: %s:%s\r\n",
                               body == NULL ? "GET" : "POST", c->url->path, path, c->url->host,
                               c->url->port);
    if (rc == 0 && body != NULL) {
        rc = msgl__strbuf_addf(&head, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                               body_len);
    }
    if (rc == 0) rc = msgl__strbuf_adds(&head, "\r\n");
    if (rc != 0) rc = msgl__err_set(err, rc, "client: the path is too long");
    // A kept connection may have been closed by the server meanwhile: one more try on a new one.
    bool kept = c->fd >= 0;
    while (rc == 0) {
        if (c->fd < 0) rc = client_connect(c, err);
        if (rc != 0) break;
        rc = request_once(c, &head, body, body_len, on_data, ctx, status, err);
        if (rc == 0) break;
        disconnect(c);
        if (rc != MSGL_ECLOSED || !kept) break;
        kept = false;
        rc = 0;
    }
    msgl__strbuf_free(&head);
    return rc;
}

// --- SSE ---

void msgl__sse_reader_init(msgl_sse_reader *r, int (*on_event)(void *, const char *, size_t),
                           void *ctx)
{
    *r = (msgl_sse_reader){.on_event = on_event, .ctx = ctx};
    msgl__strbuf_init(&r->line, EVENT_MAX);
    msgl__strbuf_init(&r->data, EVENT_MAX);
}

void msgl__sse_reader_free(msgl_sse_reader *r)
{
    msgl__strbuf_free(&r->line);
    msgl__strbuf_free(&r->data);
}

static int sse_line(msgl_sse_reader *r)
{
    const char *s = msgl__strbuf_str(&r->line);
    int rc = 0;
    if (r->line.len == 0) {
        if (r->has_data) rc = r->on_event(r->ctx, msgl__strbuf_str(&r->data), r->data.len);
        r->has_data = false;
        msgl__strbuf_clear(&r->data);
    } else if (strncmp(s, "data:", 5) == 0) {
        const size_t skip = s[5] == ' ' ? 6 : 5;
        if (r->has_data) rc = msgl__strbuf_addc(&r->data, '\n');
        if (rc == 0) rc = msgl__strbuf_add(&r->data, s + skip, r->line.len - skip);
        r->has_data = true;
    }
    msgl__strbuf_clear(&r->line);
    return rc;
}

int msgl__sse_reader_feed(msgl_sse_reader *r, const char *data, size_t len)
{
    int rc = 0;
    size_t start = 0;
    for (size_t i = 0; i < len && rc == 0; i++) {
        if (data[i] != '\n' && data[i] != '\r') {
            r->after_cr = false;
            continue;
        }
        rc = msgl__strbuf_add(&r->line, data + start, i - start);
        const bool second_half = data[i] == '\n' && r->after_cr; // of CR LF
        if (rc == 0 && !second_half) rc = sse_line(r);
        r->after_cr = data[i] == '\r';
        start = i + 1;
    }
    return rc == 0 ? msgl__strbuf_add(&r->line, data + start, len - start) : rc;
}
