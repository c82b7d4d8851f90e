// SPDX-License-Identifier: Apache-2.0
//
// HTTP connections on a libevent loop: reading requests under limits and deadlines, answering whole
// or streamed, keep-alive and pipelining, noticing at once that a client went away. evhttp is not
// used because it does not report a client that closes while its request is being answered, and
// answers refusals with pages of its own.
//
// One request per connection is open at a time: from on_request until msgl__http_reply or
// msgl__http_stream_end, or until on_gone. Everything runs on the loop's thread.
//
// A new connection never waits for clients that keep one open without asking anything: at the limit
// it takes the place of the one that has been idle longest. If all have an open request it becomes
// one of a small reserve, so that checks of the server's health are still answered: on_request and
// on_head look at msgl__http_conn_is_reserve, and refuse all other requests.
//
// A client that closes its sending half still gets its answer. TCP does not tell it from one that
// has gone: only what the server sends does, because a closed socket answers with a reset. So an
// answer that has not begun is preceded by an interim "100 Continue" then, which clients have to
// read over (RFC 9110 section 15.2), and a reset is looked for on a timer. The same now and then
// for a client that is not read from because it sent much ahead: its end may be stuck behind that.
#ifndef MSGL_HTTP_HTTP_H
#define MSGL_HTTP_HTTP_H

#include <event2/event.h>

#include "core/err.h"
#include "http/http_parse.h"
#include "http/http_source.h"

struct evbuffer;
struct msgl_tls;
typedef struct msgl_http_server msgl_http_server;
typedef struct msgl_http_conn msgl_http_conn;

typedef struct msgl_http_config {
    msgl_http_limits limits;
    int max_connections; // beyond them the one that is idle longest is closed; see above
    int max_per_source;  // connections of one msgl_http_source: further ones are answered 429, with
                         // TLS closed; 0: no limit
    int header_timeout_ms; // from a request's first byte to the end of its headers: 408; a
                           // connection's first byte, after TLS's handshake, has as long: closed
    int body_timeout_ms;   // then to the end of its body: 408
    int idle_timeout_ms;   // between requests: closed
    int write_timeout_ms;  // a client that takes nothing for this long is gone
    size_t max_output;     // unsent bytes of a stream; a client that is further behind is gone
    struct msgl_tls *tls;  // for all connections but the server's own; NULL: no TLS
} msgl_http_config;

msgl_http_config msgl__http_config_default(void);

// A request that is over; the texts are the connection's, for the call.
typedef struct msgl_http_done {
    const char *method; // "OTHER": none that is served; "-": it was refused before it was known
    const char *path;   // percent-decoded, without query, any bytes; empty: not known
    int status;         // of the answer; MSGL_HTTP_GONE: there was none
    bool whole;         // the answer was complete when the client left, or it did not leave
    uint64_t ns;        // from the request's last byte to the answer's, or to the client's end
    const char *id;     // X-Request-Id of the answer
    const char *client; // address and port
} msgl_http_done;

enum { MSGL_HTTP_GONE = 499 }; // as nginx logs a client that left without an answer

typedef struct msgl_http_handlers {
    void *ctx;
    // p has the request; it is valid during the call (take p->body by swapping it out).
    void (*on_request)(void *ctx, msgl_http_conn *c, msgl_http_parser *p);
    // A request's head, when its body has still to come: NULL, or a sentence that says why it is
    // refused (*status) without reading the body. NULL allowed.
    const char *(*on_head)(void *ctx, msgl_http_conn *c, const msgl_http_parser *p, int *status);
    // The client left before its answer was complete. c must not be used any more.
    void (*on_gone)(void *ctx, msgl_http_conn *c);
    // An answer with this status begins. Each request has one, also if it is refused. NULL allowed.
    void (*on_answer)(void *ctx, msgl_http_conn *c, int status);
    // A request has its whole answer, or its client has left. It comes after on_answer and before
    // on_gone, and not for requests that are open when the server is destroyed. NULL allowed.
    void (*on_done)(void *ctx, const msgl_http_done *d);
    // The body of an error answer that the connection layer gives itself (400, 408, 413, ...).
    void (*write_error)(void *ctx, int status, const char *reason, msgl_strbuf *out);
} msgl_http_handlers;

// Takes over the listening socket fd.
int msgl__http_server_create(struct event_base *base, int listen_fd, const msgl_http_config *cfg,
                             const msgl_http_handlers *handlers, msgl_http_server **out,
                             msgl_err *err);
// Closes everything at once; no handler is called.
void msgl__http_server_destroy(msgl_http_server *s);
// Ends the server's work: a connection is closed after the request that is open or coming in, one
// that has had a request and has none now is closed at once, and a new one may ask once.
void msgl__http_server_drain(msgl_http_server *s);
int msgl__http_server_connections(const msgl_http_server *s);
// Accepts no new connections for so long, or until it is called with 0: they wait in the listener's
// queue.
void msgl__http_server_pause_accepting(msgl_http_server *s, int ms);
// Serves a connection that the server itself has made, beyond max_connections. Takes fd over.
void msgl__http_server_adopt(msgl_http_server *s, int fd);
bool msgl__http_conn_is_inner(const msgl_http_conn *c);   // the server itself has made it
bool msgl__http_conn_is_reserve(const msgl_http_conn *c); // it is beyond the limit, for one request
#define MSGL_HTTP_FULL "There are too many connections."

msgl_http_source msgl__http_conn_source(const msgl_http_conn *c); // inner: zero

void msgl__http_conn_set_user(msgl_http_conn *c, void *user);
void *msgl__http_conn_user(const msgl_http_conn *c);
// Makes the answer to the open request one that web pages may read (CORS): those of its Origin, or
// any.
void msgl__http_conn_allow_origin(msgl_http_conn *c, bool any);
// A number for the open request, which on_answer may ask for; 0 until it is set.
void msgl__http_conn_set_label(msgl_http_conn *c, int label);
int msgl__http_conn_label(const msgl_http_conn *c);
const char *msgl__http_conn_id(const msgl_http_conn *c); // X-Request-Id of its answer

// Every answer has a header X-Request-Id: the request's own if that has 1 to MSGL_HTTP_ID_MAX
// letters, digits, '.', '_', ':' and '-', else one made up here that no other answer has.
enum { MSGL_HTTP_ID_MAX = 128 };

// Sends a whole answer; 429 and 503 get Retry-After, 401 gets WWW-Authenticate. headers: further
// lines, each ending in CR LF, or NULL.
void msgl__http_reply(msgl_http_conn *c, int status, const char *type, const char *headers,
                      const void *body, size_t len);
// The same, moving the body out of `body`.
void msgl__http_reply_buffer(msgl_http_conn *c, int status, const char *type,
                             struct evbuffer *body);
// An answer as a stream of a type, NULL: text/event-stream: begin (status 200), any number of
// writes, end. A write that alone is more than max_output does nothing and is MSGL_ELIMIT; any
// other is 0, also when the client is so far behind that it counts as gone from now on.
void msgl__http_stream_begin(msgl_http_conn *c, const char *type);
int msgl__http_stream_write(msgl_http_conn *c, const void *data, size_t len);
void msgl__http_stream_end(msgl_http_conn *c);

const char *msgl__http_status_text(int status);

#endif
