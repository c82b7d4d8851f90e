// SPDX-License-Identifier: Apache-2.0
#include "http/client.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_MAX = 32 * 1024, EVENT_MAX = 64 << 20 };

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

// --- an answer ---

void msgl__answer_init(msgl_answer *a, msgl_client_data_fn on_data, void *ctx)
{
    *a = (msgl_answer){.on_data = on_data, .ctx = ctx};
    msgl__strbuf_init(&a->line, HEAD_MAX);
}

void msgl__answer_free(msgl_answer *a)
{
    msgl__strbuf_free(&a->line);
}

void msgl__answer_begin(msgl_answer *a)
{
    a->state = MSGL_ANSWER_STATUS;
    a->status = 0;
    a->keep = a->chunked = a->has_length = false;
    a->left = 0;
    msgl__strbuf_clear(&a->line);
}

static void answer_field(msgl_answer *a, const char *line)
{
    const char *v = strchr(line, ':');
    if (v == NULL) return;
    v += 1 + strspn(v + 1, " \t");
    if (strncasecmp(line, "content-length:", 15) == 0) {
        a->has_length = true;
        a->left = strtoull(v, NULL, 10);
    } else if (strncasecmp(line, "transfer-encoding:", 18) == 0) {
        a->chunked = strcasestr(v, "chunked") != NULL;
    } else if (strncasecmp(line, "connection:", 11) == 0) {
        a->keep = strcasestr(v, "close") == NULL;
    }
}

static void answer_head_done(msgl_answer *a)
{
    if (a->status < 200) { // interim answers (100) are skipped
        msgl__answer_begin(a);
    } else if (a->chunked) {
        a->state = MSGL_ANSWER_CHUNK_SIZE;
    } else if (a->status == 204 || (a->has_length && a->left == 0)) {
        a->state = MSGL_ANSWER_DONE;
    } else {
        a->state = a->has_length ? MSGL_ANSWER_BODY : MSGL_ANSWER_BODY_TO_END;
        a->keep = a->keep && a->has_length;
    }
}

static int answer_line(msgl_answer *a, const char *line, msgl_err *err)
{
    int minor = 0;
    char *end;
    switch (a->state) {
    case MSGL_ANSWER_STATUS:
        if (sscanf(line, "HTTP/1.%d %d", &minor, &a->status) != 2) {
            return msgl__err_set(err, MSGL_EFORMAT, "this is no HTTP answer: '%.60s'", line);
        }
        a->keep = minor > 0;
        a->state = MSGL_ANSWER_FIELDS;
        return 0;
    case MSGL_ANSWER_FIELDS:
        if (*line != '\0') {
            answer_field(a, line);
        } else {
            answer_head_done(a);
        }
        return 0;
    case MSGL_ANSWER_CHUNK_SIZE:
        a->left = strtoull(line, &end, 16);
        if (end == line) return msgl__err_set(err, MSGL_EFORMAT, "a chunk size is malformed");
        a->state = a->left == 0 ? MSGL_ANSWER_TRAILER : MSGL_ANSWER_CHUNK;
        return 0;
    case MSGL_ANSWER_CHUNK_END: a->state = MSGL_ANSWER_CHUNK_SIZE; return 0;
    default: // of the trailer
        if (*line == '\0') a->state = MSGL_ANSWER_DONE;
        return 0;
    }
}

// Takes bytes up to the end of a line, and reads the line. If its end has not come yet, the bytes
// are kept in a->line until it does.
static int answer_take_line(msgl_answer *a, const char *data, size_t len, size_t *used,
                            msgl_err *err)
{
    const char *nl = memchr(data, '\n', len);
    *used = nl == NULL ? len : (size_t)(nl - data) + 1;
    if (msgl__strbuf_add(&a->line, data, nl == NULL ? len : *used - 1) != 0) {
        return msgl__err_set(err, MSGL_EFORMAT, "a line of the answer is too long");
    }
    if (nl == NULL) return 0;
    if (a->line.len > 0 && a->line.data[a->line.len - 1] == '\r') {
        a->line.data[--a->line.len] = '\0';
    }
    const int rc = answer_line(a, msgl__strbuf_str(&a->line), err);
    msgl__strbuf_clear(&a->line);
    return rc;
}

static int answer_take_body(msgl_answer *a, const char *data, size_t len, size_t *used,
                            msgl_err *err)
{
    const bool to_end = a->state == MSGL_ANSWER_BODY_TO_END;
    *used = !to_end && len > a->left ? (size_t)a->left : len;
    const int rc = a->on_data(a->ctx, data, *used);
    if (rc != 0) {
        return msgl__err_set(err, rc, "the answer cannot be taken: %s", msgl__status_text(rc));
    }
    if (to_end) return 0;
    a->left -= *used;
    if (a->left == 0) {
        a->state = a->state == MSGL_ANSWER_CHUNK ? MSGL_ANSWER_CHUNK_END : MSGL_ANSWER_DONE;
    }
    return 0;
}

int msgl__answer_feed(msgl_answer *a, const char *data, size_t len, size_t *used, msgl_err *err)
{
    int rc = 0;
    for (*used = 0; *used < len && a->state != MSGL_ANSWER_DONE && rc == 0;) {
        size_t n = 0;
        const bool body = a->state == MSGL_ANSWER_BODY || a->state == MSGL_ANSWER_BODY_TO_END ||
                          a->state == MSGL_ANSWER_CHUNK;
        rc = body ? answer_take_body(a, data + *used, len - *used, &n, err)
                  : answer_take_line(a, data + *used, len - *used, &n, err);
        *used += n;
    }
    return rc;
}

int msgl__answer_end(msgl_answer *a, msgl_err *err)
{
    if (a->state == MSGL_ANSWER_BODY_TO_END) a->state = MSGL_ANSWER_DONE;
    if (a->state == MSGL_ANSWER_DONE) return 0;
    if (a->state == MSGL_ANSWER_STATUS && a->line.len == 0) {
        return msgl__err_set(err, MSGL_ECLOSED, "the server closed the connection");
    }
    return msgl__err_set(err, MSGL_EFORMAT, "the answer ended early");
}

// --- one blocking request ---

static int connect_to(const msgl_url *url, int timeout_ms, msgl_address *address, int *out,
                      msgl_err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    const int gai = getaddrinfo(url->host, url->port, &hints, &list);
    if (gai != 0) {
        return msgl__err_set(err, MSGL_EIO, "host %s: %s", url->host, gai_strerror(gai));
    }
    const struct timeval tv = {timeout_ms / 1000, (timeout_ms % 1000) * 1000};
    int saved = 0;
    *out = -1;
    for (const struct addrinfo *a = list; a != NULL && *out < 0; a = a->ai_next) {
        const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) continue;
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
            *out = fd;
            memcpy(&address->addr, a->ai_addr, a->ai_addrlen);
            address->len = a->ai_addrlen;
        } else {
            saved = errno;
            close(fd);
        }
    }
    freeaddrinfo(list);
    if (*out >= 0) return 0;
    return msgl__err_set(err, MSGL_EIO, "cannot connect to %s port %s: %s", url->host, url->port,
                         strerror(saved));
}

static int send_all(int fd, const char *data, size_t len, msgl_err *err)
{
    while (len > 0) {
        const ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return msgl__err_set(err, MSGL_EIO, "sending: %s", strerror(errno));
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

static int receive_answer(int fd, msgl_answer *a, msgl_err *err)
{
    char buf[4096];
    while (a->state != MSGL_ANSWER_DONE) {
        const ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            return msgl__err_set(err, MSGL_EIO, "receiving: %s",
                                 errno == EAGAIN ? "nothing came in time" : strerror(errno));
        }
        size_t used;
        const int rc =
            n == 0 ? msgl__answer_end(a, err) : msgl__answer_feed(a, buf, (size_t)n, &used, err);
        if (rc != 0) return rc;
    }
    return 0;
}

int msgl__client_head(const msgl_url *url, const char *path, bool has_body, size_t body_len,
                      msgl_strbuf *out)
{
    const bool v6 = strchr(url->host, ':') != NULL;
    int rc =
        msgl__strbuf_addf(out, "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\n", has_body ? "POST" : "GET",
                          url->path, path, v6 ? "[" : "", url->host, v6 ? "]" : "", url->port);
    if (rc == 0 && has_body) {
        rc = msgl__strbuf_addf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                               body_len);
    }
    return rc == 0 ? msgl__strbuf_adds(out, "\r\n") : rc;
}

static int keep(void *ctx, const char *data, size_t len)
{
    return msgl__strbuf_add(ctx, data, len);
}

int msgl__client_get(const msgl_url *url, const char *path, int timeout_ms, msgl_strbuf *body,
                     int *status, msgl_address *address, msgl_err *err)
{
    int fd;
    int rc = connect_to(url, timeout_ms, address, &fd, err);
    if (rc != 0) return rc;
    msgl_strbuf head;
    msgl_answer a;
    msgl__strbuf_init(&head, 4096);
    msgl__answer_init(&a, keep, body);
    msgl__strbuf_clear(body);
    rc = msgl__client_head(url, path, false, 0, &head);
    if (rc != 0) rc = msgl__err_set(err, rc, "client: the path is too long");
    if (rc == 0) rc = send_all(fd, head.data, head.len, err);
    if (rc == 0) rc = receive_answer(fd, &a, err);
    *status = a.status;
    msgl__answer_free(&a);
    msgl__strbuf_free(&head);
    close(fd);
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

void msgl__sse_reader_clear(msgl_sse_reader *r)
{
    msgl__strbuf_clear(&r->line);
    msgl__strbuf_clear(&r->data);
    r->has_data = r->after_cr = false;
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
