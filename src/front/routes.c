// SPDX-License-Identifier: Apache-2.0
//
// From a path to its endpoint, and the bodies of errors.
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "front/front_impl.h"
#include "front/paths.h"

enum { MAX_ASKED = 1024 }; // bytes of header names that a browser asks for

static const char json_mime[] = "application/json";

enum { ALWAYS_GIVEN = 256 * 1024 }; // bytes of an answer made on the event loop

static void reply_error(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                        const char *headers, const msgl_api_error *e)
{
    const bool own = ep != NULL && ep->put_error != NULL;
    msgl__metrics_error(&f->metrics, e);
    msgl__strbuf_clear(&f->out);
    if ((own ? ep->put_error : msgl__api_error_put)(e, &f->out) != 0) msgl__strbuf_clear(&f->out);
    msgl__http_reply(c, e->status, json_mime, headers, msgl__strbuf_str(&f->out), f->out.len);
}

void msgl__front_reply_error(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                             const msgl_api_error *e)
{
    reply_error(f, ep, c, NULL, e);
}

void msgl__front_reply(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c, int status,
                       int rc)
{
    // What waits to be sent is memory, too: who asks again and again and does not read gets no more
    // of it. Small answers are always given, so that /health and /metrics are.
    if (rc == 0 && f->out.len > ALWAYS_GIVEN) {
        rc = msgl__budget_fits(&f->budget, MSGL_BUDGET_PROMPT, f->out.len);
    }
    if (rc == 0) {
        msgl__http_reply(c, status, msgl__endpoint_type(ep), ep->headers, msgl__strbuf_str(&f->out),
                         f->out.len);
        return;
    }
    msgl_api_error e;
    if (rc == MSGL_ELIMIT || rc == MSGL_EBUSY) {
        (void)msgl__api_fail_memory(&e, rc);
    } else {
        (void)msgl__api_oom(&e);
    }
    msgl__front_reply_error(f, ep, c, &e);
}

void msgl__route_write_error(void *front, int status, const char *reason, msgl_strbuf *out)
{
    msgl_front *f = front;
    msgl_api_error e;
    const char *code = status == 401   ? MSGL_GUARD_KEY_CODE
                       : status == 413 ? "request_too_large"
                       : status == 429 ? "queue_full"
                       : f->stopping   ? "server_stopping"
                                       : NULL;
    (void)msgl__api_fail(&e, status, NULL, code, "%s", reason);
    msgl__metrics_error(&f->metrics, &e);
    (void)msgl__api_error_put(&e, out);
}

// Whether the client's copy is the one that it would get.
static bool has_copy(const msgl_endpoint *ep, const msgl_http_parser *p)
{
    const msgl_http_value *v = &p->if_none_match;
    return ep->etag != NULL && v->at != NULL &&
           memmem(v->at, v->len, ep->etag, strlen(ep->etag)) != NULL;
}

// Whether the client may ask for what all others notice. Where no key says who administers, it is
// who has all clients' key, or where they need none who sits at the machine.
static bool may_administer(const msgl_front *f, const msgl_http_conn *c, const msgl_http_parser *p)
{
    const msgl_guard *g = &f->cfg.guard;
    if (g->admin.count > 0) return msgl__guard_is_admin(g, p);
    if (g->keys.count > 0) return g->keys.count == 1;
    const msgl_http_source from = msgl__http_conn_source(c);
    return msgl__http_source_is_local(&from);
}

static void answer(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c, msgl_http_parser *p)
{
    msgl_api_error e;
    if (ep->admin && !may_administer(f, c, p)) {
        (void)msgl__api_fail(&e, 403, NULL, "admin_key_needed",
                             "'%s' concerns all clients: it needs the key of --admin-api-key.",
                             ep->path);
        msgl__front_reply_error(f, ep, c, &e);
    } else if (ep->take != NULL) {
        ep->take(f, ep, c, p);
    } else if (ep->parse != NULL) {
        msgl__gen_open(f, ep, c, p);
    } else if (ep->put_stats != NULL) {
        msgl__stats_open(f, ep, c);
    } else if (has_copy(ep, p)) {
        msgl__http_reply(c, 304, NULL, ep->headers, NULL, 0);
    } else {
        int status = 200;
        msgl__strbuf_clear(&f->out);
        char other[MSGL_PATH_MAX];
        const char *rest = msgl__strbuf_str(&p->path);
        if (msgl__path_place(f->cfg.endpoints, rest, p->path.len) < 0) {
            (void)msgl__path_other(f->cfg.endpoints, rest, p->path.len, other);
            rest = other;
        }
        rest += strlen(ep->path);
        const int rc = ep->put_now(f, rest, &status, &f->out);
        msgl__front_reply(f, ep, c, status, rc);
    }
}

// Whether a list of header names can be repeated in a header. Browsers send nothing else.
static bool are_names(const msgl_http_value *v)
{
    for (size_t i = 0; i < v->len; i++) {
        const unsigned char c = (unsigned char)v->at[i];
        if (!isalnum(c) && strchr("-_, ", c) == NULL) return false;
    }
    return v->len > 0 && v->len <= MAX_ASKED;
}

// What browsers ask in front of a page's request; without an Origin that is shared with, a plain
// answer. Clients' libraries send headers of their own (OpenAI's x-stainless-...), so the page may
// send those that it asks for.
static void reply_options(msgl_http_conn *c, const msgl_http_parser *p, const char *allow,
                          bool shares)
{
    static const char usual[] = "Authorization, Content-Type, X-Api-Key, X-Request-Id, "
                                "Anthropic-Version";
    char headers[MAX_ASKED + 320];
    const msgl_http_value *asked = &p->request_headers;
    const bool names = asked->at != NULL && are_names(asked);
    if (shares) {
        (void)snprintf(headers, sizeof headers,
                       "%sAccess-Control-Allow-Methods: GET, POST, DELETE\r\n"
                       "Access-Control-Allow-Headers: %.*s\r\nAccess-Control-Max-Age: 600\r\n",
                       allow, names ? (int)asked->len : (int)sizeof usual - 1,
                       names ? asked->at : usual);
    }
    msgl__http_reply(c, 204, NULL, shares ? headers : allow, NULL, 0);
}

// What an endpoint takes, by the words between its methods.
static void put_methods(const msgl_endpoint *ep, const char *between, char *out, size_t size)
{
    static const struct {
        msgl_http_method method;
        const char *name;
    } all[] = {{MSGL_HTTP_GET, "GET"}, {MSGL_HTTP_POST, "POST"}, {MSGL_HTTP_DELETE, "DELETE"}};
    size_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if ((ep->method & (int)all[i].method) == 0) continue;
        const int more = snprintf(out + n, size - n, "%s%s", n == 0 ? "" : between, all[i].name);
        n += (size_t)more;
    }
}

static void reply_not_allowed(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                              const char *allow)
{
    char methods[48];
    msgl_api_error e;
    put_methods(ep, " and ", methods, sizeof methods);
    (void)msgl__api_fail(&e, 405, NULL, NULL, "'%s' takes %s.", ep->path, methods);
    reply_error(f, ep, c, allow, &e);
}

// What there is at which path is told to none without a key; OPTIONS, which browsers send without
// one, tells of methods only. NULL: go on; else why not.
static const char *lacks_key(const msgl_front *f, const msgl_endpoint *ep, const msgl_http_conn *c,
                             const msgl_http_parser *p)
{
    if (msgl__http_conn_is_inner(c)) return NULL;
    if (p->method == MSGL_HTTP_OPTIONS || (ep != NULL && ep->open)) return NULL;
    return msgl__guard_key(&f->cfg.guard, p);
}

// NULL: go on; else the server stops, and says no more than that it does.
static const char *stops(const msgl_front *f, const msgl_endpoint *ep)
{
    return f->stopping && (ep == NULL || !ep->probe)
               ? "The server is stopping: it takes no new requests."
               : NULL;
}

// What the open request is, and whether a web page may read its answer.
static const msgl_endpoint *find_endpoint(const msgl_front *f, msgl_http_conn *c,
                                          const msgl_http_parser *p, bool *shares)
{
    const char *path = msgl__strbuf_str(&p->path);
    char other[MSGL_PATH_MAX];
    int place = msgl__path_place(f->cfg.endpoints, path, p->path.len);
    if (place < 0) place = msgl__path_other(f->cfg.endpoints, path, p->path.len, other);
    const msgl_endpoint *ep = place < 0 ? NULL : f->cfg.endpoints[place];
    msgl__http_conn_set_label(c, place + 1);
    bool any;
    *shares = msgl__guard_shares(&f->cfg.guard, p, &any);
    if (*shares) msgl__http_conn_allow_origin(c, any);
    return ep;
}

// A connection of the reserve is for what is asked to see whether the server lives.
static bool lacks_room(const msgl_endpoint *ep, const msgl_http_conn *c)
{
    return msgl__http_conn_is_reserve(c) && (ep == NULL || !ep->open);
}

const char *msgl__route_head(void *front, msgl_http_conn *c, const msgl_http_parser *p, int *status)
{
    const msgl_front *f = front;
    bool shares;
    const msgl_endpoint *ep = find_endpoint(f, c, p, &shares);
    if (lacks_room(ep, c)) {
        *status = 503;
        return MSGL_HTTP_FULL;
    }
    const char *lacks = lacks_key(f, ep, c, p);
    *status = lacks != NULL ? 401 : 503;
    return lacks != NULL ? lacks : stops(f, ep);
}

void msgl__route(void *front, msgl_http_conn *c, msgl_http_parser *p)
{
    msgl_front *f = front;
    const msgl_http_method method = p->method == MSGL_HTTP_HEAD ? MSGL_HTTP_GET : p->method;
    msgl_api_error e;
    bool shares;
    const msgl_endpoint *ep = find_endpoint(f, c, p, &shares);
    const char *lacks, *why;
    const bool inner = msgl__http_conn_is_inner(c); // a batch's: who began it was let in
    if (lacks_room(ep, c)) {
        (void)msgl__api_fail(&e, 503, NULL, NULL, MSGL_HTTP_FULL);
        msgl__front_reply_error(f, ep, c, &e);
    } else if (!inner && msgl__guard_check(&f->cfg.guard, p, &e) != 0) {
        msgl__front_reply_error(f, ep, c, &e);
    } else if ((lacks = lacks_key(f, ep, c, p)) != NULL) {
        (void)msgl__api_fail(&e, 401, NULL, MSGL_GUARD_KEY_CODE, "%s", lacks);
        msgl__front_reply_error(f, ep, c, &e);
    } else if ((why = stops(f, ep)) != NULL) {
        (void)msgl__api_fail(&e, 503, NULL, "server_stopping", "%s", why);
        msgl__front_reply_error(f, ep, c, &e);
    } else if (ep == NULL) {
        const char *near = msgl__path_nearest(f->cfg.endpoints, msgl__strbuf_str(&p->path));
        (void)msgl__api_fail(&e, 404, NULL, NULL, "There is nothing at '%.200s'%s%s%s",
                             msgl__strbuf_str(&p->path), near == NULL ? "." : "; did you mean '",
                             near == NULL ? "" : near, near == NULL ? "" : "'?");
        msgl__front_reply_error(f, NULL, c, &e);
    } else if ((ep->method & (int)method) != 0) {
        answer(f, ep, c, p);
    } else {
        char allow[96], methods[48];
        put_methods(ep, ", ", methods, sizeof methods);
        const bool get = (ep->method & MSGL_HTTP_GET) != 0;
        (void)snprintf(allow, sizeof allow, "Allow: %s%s, OPTIONS\r\n", methods,
                       get ? ", HEAD" : "");
        if (method == MSGL_HTTP_OPTIONS) {
            reply_options(c, p, allow, shares);
            return;
        }
        reply_not_allowed(f, ep, c, allow);
    }
}

void msgl__route_gone(void *front, msgl_http_conn *c)
{
    client *cl = msgl__http_conn_user(c);
    if (cl == NULL) return;
    cl->conn = NULL;
    if (cl->kind == CLIENT_GEN) msgl__gen_gone(front, (gen *)cl);
}

void msgl__route_answer(void *front, msgl_http_conn *c, int status)
{
    msgl_front *f = front;
    msgl__metrics_answer(&f->metrics, msgl__http_conn_label(c), status);
}
