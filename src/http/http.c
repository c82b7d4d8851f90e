// SPDX-License-Identifier: Apache-2.0
#include "http/http.h"

#include <errno.h>
#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/mem.h"
#include "http/tls.h"
#include "utils/clock.h"

enum {
    PIPELINE_MAX = 256 * 1024, // unread bytes while a request is open
    WATCH_MS = 10,             // between looks at a connection that is not read from, at first
    WATCH_MAX_MS = 250,        // and at most, doubling
    PROBE_EVERY = 8,           // looks: where the end may be stuck behind what was sent ahead
    LINGER_MS = 2000,          // reading on after a refusal, so that the client gets to see it
    LINGER_MAX = 64 << 20,     // bytes read over in that time
    READ_STEP = 64 * 1024,
    RESERVE = 16, // connections beyond the limit
};

typedef enum conn_state {
    CONN_READ,   // between requests, or a request is coming in
    CONN_OPEN,   // a request is being answered
    CONN_FLUSH,  // the last answer is on its way out; then the connection closes
    CONN_LINGER, // all is sent; input is read over until the client closes
    CONN_DEAD,   // to be freed
} conn_state;

struct msgl_http_conn {
    msgl_http_server *server;
    msgl_http_conn *prev, *next;
    struct bufferevent *bev;
    struct event *timer;
    msgl_http_parser parser;
    conn_state state;
    void *user;
    // Of the open request:
    int label;
    uint64_t opened_ns;
    int status; // its answer's; 0: there is none yet
    char id[MSGL_HTTP_ID_MAX + 1];
    char client[INET6_ADDRSTRLEN + 16]; // address and port
    msgl_http_source source;
    msgl_source_count *counted;            // NULL: not counted
    msgl_http_conn *more_idle, *less_idle; // neighbours in the list of idle ones
    bool idle; // it lingers, or no request is open and the next one's head is not complete
    bool reserve;
    bool cors_origin, cors_any;
    size_t lingered;
    msgl_claim buffers; // counts the bytes in bev's two buffers
    int watch_ms;     // time to the next look, if a CONN_OPEN is not read from; 0: it is read from
    bool half_closed; // the client will send nothing more
    bool probed;      // it was sent an interim answer since, to find out whether it is there
    int looks;        // that were taken while it is not read from
    bool cut; // the client is too far behind, or memory for a piece of the answer was missing
    bool head_only, keep_alive, chunked, streaming;
    bool processing; // inside conn_process: an answer given there must not start another
    bool head_deadline, body_deadline;
    bool head_seen; // on_head has been called for the request that is coming in
    bool inner;     // made by the server itself
};

struct msgl_http_server {
    struct event_base *base;
    struct event *accept_event, *accept_retry;
    int listen_fd;
    msgl_http_config cfg;
    msgl_http_handlers handlers;
    msgl_http_conn *conns;
    int count;
    msgl_http_conn *most_idle, *least_idle;
    msgl_sources sources;
    bool draining;
    uint64_t id_base, last_id; // of requests that bring no id
};

msgl_http_config msgl__http_config_default(void)
{
    return (msgl_http_config){.limits = msgl__http_limits_default(),
                              .max_connections = 4096,
                              .header_timeout_ms = 15000,
                              .body_timeout_ms = 60000,
                              .idle_timeout_ms = 75000,
                              .write_timeout_ms = 60000,
                              .max_output = (size_t)16 << 20};
}

const char *msgl__http_status_text(int status)
{
    static const struct {
        int status;
        const char *text;
    } all[] = {{200, "OK"},
               {204, "No Content"},
               {304, "Not Modified"},
               {400, "Bad Request"},
               {401, "Unauthorized"},
               {403, "Forbidden"},
               {404, "Not Found"},
               {405, "Method Not Allowed"},
               {408, "Request Timeout"},
               {413, "Content Too Large"},
               {414, "URI Too Long"},
               {415, "Unsupported Media Type"},
               {417, "Expectation Failed"},
               {429, "Too Many Requests"},
               {431, "Request Header Fields Too Large"},
               {500, "Internal Server Error"},
               {501, "Not Implemented"},
               {503, "Service Unavailable"},
               {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].status == status) return all[i].text;
    }
    return "Unknown";
}

// --- the list of idle connections ---

// From the one that has been idle longest to the one that became so last: if A, B and C became idle
// in this order, most_idle is A, least_idle is C, and B has more_idle A and less_idle C.

static void idle_join(msgl_http_conn *c)
{
    msgl_http_server *s = c->server;
    if (c->idle || c->inner) return;
    c->idle = true;
    c->more_idle = s->least_idle;
    c->less_idle = NULL;
    if (c->more_idle != NULL) c->more_idle->less_idle = c;
    s->least_idle = c;
    if (s->most_idle == NULL) s->most_idle = c;
}

static void idle_leave(msgl_http_conn *c)
{
    msgl_http_server *s = c->server;
    if (!c->idle) return;
    c->idle = false;
    if (c->more_idle != NULL) c->more_idle->less_idle = c->less_idle;
    if (c->less_idle != NULL) c->less_idle->more_idle = c->more_idle;
    if (s->most_idle == c) s->most_idle = c->less_idle;
    if (s->least_idle == c) s->least_idle = c->more_idle;
}

// --- life of a connection ---

static void on_buffered(struct evbuffer *b, const struct evbuffer_cb_info *i, void *arg);

static void conn_free(msgl_http_conn *c)
{
    msgl_http_server *s = c->server;
    idle_leave(c);
    msgl__sources_leave(&s->sources, c->counted);
    if (c->prev != NULL) c->prev->next = c->next;
    if (c->next != NULL) c->next->prev = c->prev;
    if (s->conns == c) s->conns = c->next;
    s->count--;
    if (c->timer != NULL) event_free(c->timer);
    if (c->bev != NULL) {
        // TLS's bufferevent uses its buffers after this when it reports an end from within a write.
        (void)evbuffer_remove_cb(bufferevent_get_input(c->bev), on_buffered, c);
        (void)evbuffer_remove_cb(bufferevent_get_output(c->bev), on_buffered, c);
        bufferevent_free(c->bev);
    }
    msgl__claim_free(&c->buffers);
    msgl__http_parser_free(&c->parser);
    msgl__free(c);
}

static void conn_timer(msgl_http_conn *c, int ms)
{
    const struct timeval tv = {ms / 1000, (ms % 1000) * 1000};
    event_add(c->timer, &tv);
}

// Reports that the open request is over.
static void conn_done(msgl_http_conn *c, bool whole)
{
    const msgl_http_handlers *h = &c->server->handlers;
    if (h->on_done == NULL) return;
    static const struct {
        msgl_http_method method;
        const char *name;
    } names[] = {{0, "-"},
                 {MSGL_HTTP_GET, "GET"},
                 {MSGL_HTTP_HEAD, "HEAD"},
                 {MSGL_HTTP_POST, "POST"},
                 {MSGL_HTTP_OPTIONS, "OPTIONS"},
                 {MSGL_HTTP_DELETE, "DELETE"}};
    msgl_http_done d = {.method = "OTHER",
                        .path = msgl__strbuf_str(&c->parser.path),
                        .status = c->status == 0 ? MSGL_HTTP_GONE : c->status,
                        .whole = whole,
                        .ns = msgl__now_ns() - c->opened_ns,
                        .id = c->id,
                        .client = c->client};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (c->parser.method == names[i].method) d.method = names[i].name;
    }
    h->on_done(h->ctx, &d);
}

// Frees the connection of a client that is gone, and says so to whoever answers its open request.
static void conn_gone(msgl_http_conn *c)
{
    if (c->state == CONN_OPEN) {
        conn_done(c, false);
        c->state = CONN_DEAD;
        c->server->handlers.on_gone(c->server->handlers.ctx, c);
    }
    conn_free(c);
}

static size_t unread(const msgl_http_conn *c)
{
    return evbuffer_get_length(bufferevent_get_input(c->bev));
}

static size_t unsent(const msgl_http_conn *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

// libevent calls this when one of the buffers has grown or shrunk.
static void on_buffered(struct evbuffer *b, const struct evbuffer_cb_info *i, void *arg)
{
    (void)b, (void)i;
    msgl_http_conn *c = arg;
    msgl__claim_count(&c->buffers, unread(c) + unsent(c));
}

// Stops reading from a connection with an open request, so that its end has to be looked for.
static void conn_watch(msgl_http_conn *c)
{
    bufferevent_disable(c->bev, EV_READ);
    c->watch_ms = WATCH_MS;
    conn_timer(c, c->watch_ms);
}

static void conn_look(msgl_http_conn *c)
{
    struct pollfd p = {.fd = bufferevent_getfd(c->bev), .events = POLLRDHUP};
    const int n = poll(&p, 1, 0);
    if (n > 0 && (p.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
        conn_gone(c);
        return;
    }
    if (n > 0 && (p.revents & POLLRDHUP) != 0) c->half_closed = true;
    // HTTP/1.0 has no interim answers, and what a stream sends finds out as much.
    const bool probe = c->half_closed ? !c->probed : ++c->looks % PROBE_EVERY == 0;
    if (probe && !c->streaming && !c->parser.http10) {
        bufferevent_write(c->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    }
    c->probed = c->half_closed;
    c->watch_ms = 2 * c->watch_ms < WATCH_MAX_MS ? 2 * c->watch_ms : WATCH_MAX_MS;
    conn_timer(c, c->watch_ms);
}

static void conn_linger(msgl_http_conn *c)
{
    msgl__tls_bye(c->bev);
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    c->state = CONN_LINGER;
    idle_join(c);
    evbuffer_drain(bufferevent_get_input(c->bev), unread(c));
    bufferevent_setwatermark(c->bev, EV_READ, 0, 0);
    bufferevent_enable(c->bev, EV_READ);
    conn_timer(c, LINGER_MS);
}

// Follows the last answer, once it is complete: waits until all of it is sent, then lingers.
static void conn_finish(msgl_http_conn *c)
{
    c->state = CONN_FLUSH;
    idle_leave(c);
    if (unsent(c) == 0) {
        conn_linger(c);
    } else {
        conn_timer(c, c->server->cfg.write_timeout_ms);
    }
}

// --- answering ---

// Whether a client's id may stand in a header and in a log as it is.
static bool is_request_id(const msgl_http_value *v)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";
    if (v->at == NULL || v->len < 1 || v->len > MSGL_HTTP_ID_MAX) return false;
    for (size_t i = 0; i < v->len; i++) {
        if (memchr(allowed, v->at[i], sizeof allowed - 1) == NULL) return false;
    }
    return true;
}

// Sets the answer's X-Request-Id: the request's own, or a new one.
static void choose_id(msgl_http_conn *c)
{
    msgl_http_server *s = c->server;
    const msgl_http_value *v = &c->parser.request_id;
    if (is_request_id(v)) {
        (void)snprintf(c->id, sizeof c->id, "%.*s", (int)v->len, v->at);
    } else {
        (void)snprintf(c->id, sizeof c->id, "%016" PRIx64 "%08" PRIx64, s->id_base, ++s->last_id);
    }
}

// Closes the connection soon: on_gone must not be called from under the caller, so the timer does.
static void cut_off(msgl_http_conn *c)
{
    c->cut = true;
    bufferevent_disable(c->bev, EV_READ | EV_WRITE);
    event_active(c->timer, EV_TIMEOUT, 1);
}

// Adds bytes to what is sent. If there is no memory for them the connection ends, because an answer
// with a hole must not pass for a whole one.
static void put(msgl_http_conn *c, const void *data, size_t len)
{
    if (!c->cut && len > 0 && bufferevent_write(c->bev, data, len) != 0) cut_off(c);
}

__attribute__((format(printf, 2, 3))) static void putf(msgl_http_conn *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!c->cut && evbuffer_add_vprintf(bufferevent_get_output(c->bev), format, args) < 0) {
        cut_off(c);
    }
    va_end(args);
}

static void put_cors(msgl_http_conn *c)
{
    const msgl_http_value *origin = &c->parser.origin;
    putf(c, "Access-Control-Expose-Headers: X-Request-Id, Retry-After\r\n");
    if (c->cors_any) {
        putf(c, "Access-Control-Allow-Origin: *\r\n");
    } else {
        putf(c, "Access-Control-Allow-Origin: %.*s\r\nVary: Origin\r\n", (int)origin->len,
             origin->at);
    }
}

static void put_head(msgl_http_conn *c, int status, const char *type, const char *headers,
                     const char *framing)
{
    const msgl_http_handlers *h = &c->server->handlers;
    c->status = status;
    if (h->on_answer != NULL) h->on_answer(h->ctx, c, status);
    putf(c, "HTTP/1.1 %d %s\r\n", status, msgl__http_status_text(status));
    putf(c, "X-Request-Id: %s\r\n", c->id);
    if (c->cors_origin || c->cors_any) put_cors(c);
    if (type != NULL) putf(c, "Content-Type: %s\r\n", type);
    if (status == 401) putf(c, "WWW-Authenticate: Bearer\r\n");
    if (status == 429 || status == 503) putf(c, "Retry-After: 1\r\n");
    putf(c, "%s%sConnection: %s\r\n\r\n", headers == NULL ? "" : headers, framing,
         c->keep_alive ? "keep-alive" : "close");
}

static void conn_process(msgl_http_conn *c);

// The open request has its whole answer.
static void answered(msgl_http_conn *c)
{
    conn_done(c, !c->cut);
    c->user = NULL;
    c->label = c->status = 0;
    c->cors_origin = c->cors_any = false;
    c->streaming = c->probed = false;
    if (c->state == CONN_DEAD) return;
    if (c->cut) {
        c->state = CONN_FLUSH; // until the timer closes it
        return;
    }
    if (c->watch_ms > 0) event_del(c->timer);
    c->watch_ms = 0;
    // libevent may have had no memory for what tells it of new output, and does not say so.
    if (unsent(c) > 0) bufferevent_enable(c->bev, EV_WRITE);
    if (!c->keep_alive) {
        conn_finish(c);
        return;
    }
    c->state = CONN_READ;
    idle_join(c);
    msgl__http_parser_reset(&c->parser);
    bufferevent_enable(c->bev, EV_READ);
    if (!c->processing) conn_process(c);
}

// The head of an answer whose body has `len` bytes.
static void put_whole_head(msgl_http_conn *c, int status, const char *type, const char *headers,
                           size_t len)
{
    char framing[64];
    (void)snprintf(framing, sizeof framing, "Content-Length: %zu\r\n", len);
    put_head(c, status, type, headers, status == 204 || status == 304 ? "" : framing);
}

void msgl__http_reply(msgl_http_conn *c, int status, const char *type, const char *headers,
                      const void *body, size_t len)
{
    if (c->state == CONN_DEAD) return;
    put_whole_head(c, status, type, headers, len);
    if (!c->head_only) put(c, body, len);
    answered(c);
}

void msgl__http_reply_buffer(msgl_http_conn *c, int status, const char *type, struct evbuffer *body)
{
    if (c->state == CONN_DEAD) return;
    put_whole_head(c, status, type, NULL, evbuffer_get_length(body));
    if (!c->head_only && bufferevent_write_buffer(c->bev, body) != 0) cut_off(c);
    answered(c);
}

void msgl__http_stream_begin(msgl_http_conn *c, const char *type)
{
    if (c->state == CONN_DEAD) return;
    c->streaming = true;
    c->chunked = !c->parser.http10;
    if (!c->chunked) c->keep_alive = false;
    put_head(c, 200, type == NULL ? "text/event-stream" : type,
             "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n",
             c->chunked ? "Transfer-Encoding: chunked\r\n" : "");
}

int msgl__http_stream_write(msgl_http_conn *c, const void *data, size_t len)
{
    if (c->state == CONN_DEAD || len == 0 || c->head_only || c->cut) return 0;
    const msgl_http_config *cfg = &c->server->cfg;
    if (len > cfg->max_output) return MSGL_ELIMIT;
    const bool full =
        unsent(c) > cfg->max_output - len ||
        (unsent(c) > 0 && msgl__budget_fits(cfg->limits.budget, MSGL_BUDGET_ANSWER, len) != 0);
    if (full) {
        cut_off(c);
        return 0;
    }
    if (c->chunked) putf(c, "%zx\r\n", len);
    put(c, data, len);
    if (c->chunked) put(c, "\r\n", 2);
    return 0;
}

void msgl__http_stream_end(msgl_http_conn *c)
{
    if (c->state == CONN_DEAD) return;
    if (c->chunked) put(c, "0\r\n\r\n", 5);
    answered(c);
}

void msgl__http_conn_set_user(msgl_http_conn *c, void *user)
{
    c->user = user;
}

void *msgl__http_conn_user(const msgl_http_conn *c)
{
    return c->user;
}

void msgl__http_conn_allow_origin(msgl_http_conn *c, bool any)
{
    c->cors_origin = c->parser.origin.at != NULL;
    c->cors_any = any;
}

void msgl__http_conn_set_label(msgl_http_conn *c, int label)
{
    c->label = label;
}

int msgl__http_conn_label(const msgl_http_conn *c)
{
    return c->label;
}

const char *msgl__http_conn_id(const msgl_http_conn *c)
{
    return c->id;
}

// --- reading ---

// From here on there is a request to be answered, and its time counts.
static void begin(msgl_http_conn *c)
{
    choose_id(c);
    c->opened_ns = msgl__now_ns();
}

static void conn_refuse(msgl_http_conn *c, int status, const char *reason)
{
    begin(c);
    idle_leave(c);
    msgl_strbuf body;
    msgl__strbuf_init(&body, 4096);
    c->server->handlers.write_error(c->server->handlers.ctx, status, reason, &body);
    c->state = CONN_OPEN;
    c->keep_alive = false;
    c->head_only = false;
    msgl__http_reply(c, status, "application/json", NULL, msgl__strbuf_str(&body), body.len);
    msgl__strbuf_free(&body);
}

// Deadlines run from a request's first byte and from the end of its headers, not from its latest
// byte: a client that sends one byte a second does not keep its connection longer.
static void conn_deadlines(msgl_http_conn *c)
{
    const msgl_http_config *cfg = &c->server->cfg;
    if (!msgl__http_parser_started(&c->parser)) {
        c->head_deadline = c->body_deadline = false;
        conn_timer(c, cfg->idle_timeout_ms);
    } else if (!msgl__http_parser_in_body(&c->parser)) {
        if (!c->head_deadline) conn_timer(c, cfg->header_timeout_ms);
        c->head_deadline = true;
    } else {
        if (!c->body_deadline) conn_timer(c, cfg->body_timeout_ms);
        c->body_deadline = true;
    }
}

static void conn_open_request(msgl_http_conn *c)
{
    msgl_http_server *s = c->server;
    event_del(c->timer);
    c->head_deadline = c->body_deadline = c->head_seen = false;
    c->state = CONN_OPEN;
    begin(c);
    idle_leave(c);
    c->head_only = c->parser.method == MSGL_HTTP_HEAD;
    c->keep_alive = c->parser.keep_alive && !s->draining && !c->reserve;
    s->handlers.on_request(s->handlers.ctx, c, &c->parser);
}

// Refuses a request for its head, if on_head says so, before its body has come. Whether it was.
static bool refuse_head(msgl_http_conn *c)
{
    const msgl_http_handlers *h = &c->server->handlers;
    int status = 400;
    if (c->head_seen || h->on_head == NULL || !msgl__http_parser_in_body(&c->parser)) return false;
    c->head_seen = true;
    idle_leave(c);
    const char *reason = h->on_head(h->ctx, c, &c->parser, &status);
    if (reason != NULL) conn_refuse(c, status, reason);
    return reason != NULL;
}

// Parses the bytes that have come, one request after the other, until one stays open.
static void conn_process(msgl_http_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    c->processing = true;
    while (c->state == CONN_READ && unread(c) > 0) {
        size_t n = evbuffer_get_contiguous_space(in);
        if (n > READ_STEP) n = READ_STEP;
        const char *data = (const char *)evbuffer_pullup(in, (ev_ssize_t)n);
        size_t used = 0;
        const msgl_http_event e = msgl__http_parse(&c->parser, data, n, &used);
        evbuffer_drain(in, used);
        if (e == MSGL_HTTP_BAD) {
            conn_refuse(c, c->parser.status, c->parser.reason);
        } else if (e != MSGL_HTTP_DONE && refuse_head(c)) {
            break;
        } else if (e == MSGL_HTTP_CONTINUE) {
            bufferevent_write(c->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25);
        } else if (e == MSGL_HTTP_DONE) {
            conn_open_request(c);
        }
    }
    c->processing = false;
    if (c->state == CONN_READ) {
        if (c->server->draining && !msgl__http_parser_started(&c->parser)) {
            conn_finish(c);
        } else {
            conn_deadlines(c);
        }
    }
}

static void on_read(struct bufferevent *bev, void *arg)
{
    msgl_http_conn *c = arg;
    if (c->state == CONN_READ) {
        conn_process(c);
    } else if (c->state == CONN_OPEN) {
        // The next request waits; a client that sends very much ahead is no longer read from.
        if (unread(c) > PIPELINE_MAX) conn_watch(c);
    } else {
        c->lingered += unread(c);
        evbuffer_drain(bufferevent_get_input(bev), unread(c));
        if (c->lingered > LINGER_MAX) conn_free(c);
    }
}

static void on_write(struct bufferevent *bev, void *arg)
{
    msgl_http_conn *c = arg;
    (void)bev;
    if (c->state == CONN_FLUSH && unsent(c) == 0) conn_linger(c);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    msgl_http_conn *c = arg;
    if (what == BEV_EVENT_CONNECTED) return; // TLS; the first request is still to come
    if ((what & BEV_EVENT_EOF) != 0) {
        bufferevent_enable(bev, EV_WRITE); // TLS stops that, too; the other end may be half open
        if (c->state == CONN_OPEN) {
            c->half_closed = true;
            conn_watch(c);
            conn_look(c);
            return;
        }
        if (unsent(c) > 0 && (c->state == CONN_FLUSH || c->state == CONN_READ)) {
            conn_finish(c); // it closed its half after the last request; the answers still go out
            return;
        }
    }
    conn_gone(c);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    msgl_http_conn *c = arg;
    if (c->state == CONN_OPEN && !c->cut) {
        conn_look(c);
    } else if (c->state == CONN_READ && msgl__http_parser_started(&c->parser)) {
        conn_refuse(c, 408, "The request did not arrive in time.");
    } else if (c->state == CONN_READ && c->server->draining) {
        conn_finish(c);
    } else {
        if (c->state == CONN_READ) msgl__tls_bye(c->bev);
        conn_gone(c);
    }
}

// --- the listener ---

typedef union peer {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage whatever;
} peer;

// "192.0.2.1:40000", "[2001:db8::1]:40000".
static void put_peer(const peer *p, char *out, size_t size)
{
    char at[INET6_ADDRSTRLEN] = "";
    const bool v6 = p->any.sa_family == AF_INET6;
    const void *addr = v6 ? (const void *)&p->v6.sin6_addr : &p->v4.sin_addr;
    if (p->any.sa_family == AF_UNIX) (void)snprintf(out, size, "unix");
    if (!v6 && p->any.sa_family != AF_INET) return;
    (void)inet_ntop(p->any.sa_family, addr, at, sizeof at);
    (void)snprintf(out, size, v6 ? "[%s]:%d" : "%s:%d", at,
                   ntohs(v6 ? p->v6.sin6_port : p->v4.sin_port));
}

// Ends a connection that is one too many. With TLS it gets no answer, as that takes a handshake,
// which costs more than the answer.
static void conn_turn_away(msgl_http_conn *c, int status, const char *why)
{
    if (c->server->cfg.tls != NULL) {
        conn_free(c);
    } else {
        conn_refuse(c, status, why);
    }
}

// Whether a new connection is within the limits; else it has been turned away.
static bool conn_may_stay(msgl_http_conn *c)
{
    msgl_http_server *s = c->server;
    const int most = s->cfg.max_per_source;
    if (most > 0) c->counted = msgl__sources_join(&s->sources, &c->source);
    if (c->counted != NULL && c->counted->count > most) {
        conn_turn_away(c, 429, "There are too many connections from this address.");
        return false;
    }
    if (s->count > s->cfg.max_connections && s->most_idle != NULL) conn_free(s->most_idle);
    c->reserve = s->count > s->cfg.max_connections;
    if (s->count <= s->cfg.max_connections + RESERVE) return true;
    conn_turn_away(c, 503, MSGL_HTTP_FULL);
    return false;
}

// Takes a connection in. p NULL: it is the server's own.
static void conn_add(msgl_http_server *s, evutil_socket_t fd, const peer *p)
{
    msgl_http_conn *c = msgl__calloc(1, sizeof *c);
    if (c == NULL) {
        close(fd);
        return;
    }
    c->server = s;
    c->inner = p == NULL;
    if (c->inner) {
        (void)snprintf(c->client, sizeof c->client, "batch");
    } else {
        c->source = msgl__http_source_of(&p->any);
        if (s->handlers.on_done != NULL) put_peer(p, c->client, sizeof c->client);
    }
    msgl__http_parser_init(&c->parser, &s->cfg.limits);
    c->next = s->conns;
    if (c->next != NULL) c->next->prev = c;
    s->conns = c;
    s->count++;
    const bool tls = s->cfg.tls != NULL && !c->inner;
    c->bev = tls ? msgl__tls_accept(s->cfg.tls, s->base, fd)
                 : bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
    c->timer = event_new(s->base, -1, 0, on_timer, c);
    if (c->bev == NULL || c->timer == NULL) {
        if (c->bev == NULL) close(fd);
        conn_free(c);
        return;
    }
    c->buffers.budget = s->cfg.limits.budget;
    if (evbuffer_add_cb(bufferevent_get_input(c->bev), on_buffered, c) == NULL ||
        evbuffer_add_cb(bufferevent_get_output(c->bev), on_buffered, c) == NULL) {
        conn_free(c);
        return;
    }
    const int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    const struct timeval wt = {s->cfg.write_timeout_ms / 1000,
                               (s->cfg.write_timeout_ms % 1000) * 1000};
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
    bufferevent_set_timeouts(c->bev, NULL, &wt);
    if (!c->inner && !conn_may_stay(c)) return;
    idle_join(c);
    conn_timer(c, s->cfg.header_timeout_ms); // a new connection has to say something soon
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
}

void msgl__http_server_adopt(msgl_http_server *s, int fd)
{
    if (s->draining) {
        close(fd);
    } else {
        conn_add(s, fd, NULL);
    }
}

bool msgl__http_conn_is_inner(const msgl_http_conn *c)
{
    return c->inner;
}

bool msgl__http_conn_is_reserve(const msgl_http_conn *c)
{
    return c->reserve;
}

msgl_http_source msgl__http_conn_source(const msgl_http_conn *c)
{
    return c->source;
}

static void on_accept_retry(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    msgl_http_server *s = arg;
    event_add(s->accept_event, NULL);
}

void msgl__http_server_pause_accepting(msgl_http_server *s, int ms)
{
    const struct timeval tv = {ms / 1000, ms % 1000 * 1000};
    event_del(s->accept_event);
    event_add(s->accept_retry, &tv);
}

static void on_accept(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    msgl_http_server *s = arg;
    for (int i = 0; i < 64; i++) {
        peer p = {0};
        socklen_t len = sizeof p;
        const int conn = accept4((int)fd, &p.any, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (conn >= 0) {
            conn_add(s, conn, &p);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            // The listener stays readable while there is no descriptor: the loop would spin.
            msgl__http_server_pause_accepting(s, 200);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

int msgl__http_server_create(struct event_base *base, int listen_fd, const msgl_http_config *cfg,
                             const msgl_http_handlers *handlers, msgl_http_server **out,
                             msgl_err *err)
{
    msgl_http_server *s = msgl__calloc(1, sizeof *s);
    if (s == NULL) return msgl__err_set(err, MSGL_ENOMEM, "http server: out of memory");
    s->base = base;
    s->cfg = *cfg;
    s->handlers = *handlers;
    s->listen_fd = listen_fd;
    if (getrandom(&s->id_base, sizeof s->id_base, 0) < 0) s->id_base = msgl__now_ns();
    evutil_make_socket_nonblocking(listen_fd);
    s->accept_event = event_new(base, listen_fd, EV_READ | EV_PERSIST, on_accept, s);
    s->accept_retry = event_new(base, -1, 0, on_accept_retry, s);
    if (s->accept_event == NULL || s->accept_retry == NULL ||
        event_add(s->accept_event, NULL) != 0) {
        s->listen_fd = -1; // stays the caller's
        msgl__http_server_destroy(s);
        return msgl__err_set(err, MSGL_ENOMEM, "http server: cannot watch the socket");
    }
    *out = s;
    return 0;
}

void msgl__http_server_destroy(msgl_http_server *s)
{
    if (s == NULL) return;
    while (s->conns != NULL) conn_free(s->conns);
    if (s->accept_event != NULL) event_free(s->accept_event);
    if (s->accept_retry != NULL) event_free(s->accept_retry);
    if (s->listen_fd >= 0) close(s->listen_fd);
    msgl__free(s);
}

void msgl__http_server_drain(msgl_http_server *s)
{
    s->draining = true;
    for (msgl_http_conn *c = s->conns, *next; c != NULL; c = next) {
        next = c->next;
        if (c->state == CONN_OPEN) c->keep_alive = c->streaming && c->keep_alive;
        // A connection that has not asked anything yet may do so once, as new ones may.
        const bool idle = c->state == CONN_READ && !msgl__http_parser_started(&c->parser);
        if (idle && c->opened_ns != 0) conn_finish(c);
    }
}

int msgl__http_server_connections(const msgl_http_server *s)
{
    return s->count;
}
