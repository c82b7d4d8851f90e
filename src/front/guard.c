// SPDX-License-Identifier: Apache-2.0
#include "front/guard.h"

#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

static bool same(const char *name, size_t len, const char *other)
{
    return strlen(other) == len && strncasecmp(name, other, len) == 0;
}

static bool listed(const char *list, const char *name, size_t len)
{
    while (list != NULL) {
        list += strspn(list, " ");
        const size_t n = strcspn(list, ", ");
        if ((n == 1 && *list == '*') || (n == len && strncasecmp(list, name, n) == 0)) return true;
        list = strchr(list, ',');
        if (list != NULL) list++;
    }
    return false;
}

// Without ":port"; an address in brackets keeps them.
static size_t without_port(const char *s, size_t len)
{
    const char *bracket = len > 0 && s[0] == '[' ? memchr(s, ']', len) : NULL;
    const size_t from = bracket == NULL ? 0 : (size_t)(bracket - s);
    const char *colon = memchr(s + from, ':', len - from);
    return colon == NULL ? len : (size_t)(colon - s);
}

// "localhost", "127.0.0.1:1919", "[::1]": whether it names this server.
static bool is_ours(const msgl_guard *g, const char *s, size_t len)
{
    if (listed(g->allowed, s, len)) return true;
    len = without_port(s, len);
    if (same(s, len, "localhost") || same(s, len, "127.0.0.1") || same(s, len, "[::1]"))
        return true;
    if (g->host != NULL && same(s, len, g->host)) return true;
    // --host ::1 stands in brackets in a URL.
    if (g->host != NULL && len > 2 && s[0] == '[' && same(s + 1, len - 2, g->host)) return true;
    return listed(g->allowed, s, len);
}

// An origin is "scheme://host[:port]", or "null".
static bool origin_is_ours(const msgl_guard *g, const char *s, size_t len)
{
    if (listed(g->allowed, s, len)) return true;
    const char *slashes = memmem(s, len, "://", 3);
    if (slashes == NULL) return false;
    const char *host = slashes + 3;
    return is_ours(g, host, len - (size_t)(host - s));
}

static bool is_json(const msgl_http_value *type)
{
    if (type->at == NULL) return false;
    const char *semicolon = memchr(type->at, ';', type->len);
    size_t n = semicolon == NULL ? type->len : (size_t)(semicolon - type->at);
    while (n > 0 && (type->at[n - 1] == ' ' || type->at[n - 1] == '\t')) n--;
    return same(type->at, n, "application/json");
}

bool msgl__guard_shares(const msgl_guard *g, const msgl_http_parser *p, bool *any)
{
    const msgl_http_value *o = &p->origin;
    bool found = false;
    *any = false;
    if (o->at == NULL) return false;
    for (int i = 0; i < g->num_cors; i++) {
        if (strcmp(g->cors[i], "*") == 0) *any = true;
        found = found || same(o->at, o->len, g->cors[i]);
    }
    return found || *any;
}

int msgl__guard_check(const msgl_guard *g, const msgl_http_parser *p, msgl_api_error *e)
{
    const msgl_http_value *host = &p->host, *origin = &p->origin;
    const bool checked = g->local || g->allowed != NULL;
    if (checked && host->at != NULL && !is_ours(g, host->at, host->len)) {
        return msgl__api_fail(e, 403, NULL, "foreign_host",
                              "The Host '%.*s' is not a name of this server; allowed: localhost, "
                              "127.0.0.1, [::1], --host and --allowed-hosts.",
                              (int)(host->len < 100 ? host->len : 100), host->at);
    }
    if (origin->at == NULL) return 0;
    bool any;
    if (checked && !msgl__guard_shares(g, p, &any) && !origin_is_ours(g, origin->at, origin->len)) {
        return msgl__api_fail(e, 403, NULL, "foreign_origin",
                              "The Origin '%.*s' may not use this server; allowed: pages of this "
                              "machine, of --allowed-hosts and --cors-origin.",
                              (int)(origin->len < 100 ? origin->len : 100), origin->at);
    }
    if (p->method == MSGL_HTTP_POST && !is_json(&p->content_type)) {
        return msgl__api_fail(e, 415, NULL, "not_json",
                              "A request with an Origin must have the Content-Type "
                              "application/json.");
    }
    return 0;
}

// Which of these keys it has, from 1, or 0.
static int find_key(const msgl_keys *keys, const msgl_http_parser *p)
{
    const msgl_http_value *a = &p->authorization, *key = &p->api_key;
    const int bearer = msgl__keys_find_bearer(keys, a->at, a->len);
    return bearer > 0 ? bearer : msgl__keys_find(keys, key->at, key->len);
}

int msgl__guard_whose(const msgl_guard *g, const msgl_http_parser *p)
{
    const int own = find_key(&g->keys, p), admin = find_key(&g->admin, p);
    return own > 0 ? own : admin > 0 ? g->keys.count + admin : 0;
}

bool msgl__guard_is_admin(const msgl_guard *g, const msgl_http_parser *p)
{
    return find_key(&g->admin, p) > 0;
}

const char *msgl__guard_key(const msgl_guard *g, const msgl_http_parser *p)
{
    const msgl_http_value *a = &p->authorization, *key = &p->api_key;
    if (g->keys.count == 0 || msgl__guard_whose(g, p) > 0) return NULL;
    return a->at == NULL && key->at == NULL
               ? "An API key is needed: 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'."
               : "The API key is not valid; it is sent as 'Authorization: Bearer KEY' or "
                 "'X-Api-Key: KEY'.";
}

bool msgl__guard_is_local(int listen_fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } a;
    socklen_t len = sizeof a;
    if (getsockname(listen_fd, &a.any, &len) != 0) return false;
    if (a.any.sa_family == AF_INET) return ntohl(a.v4.sin_addr.s_addr) >> 24 == 127;
    return a.any.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&a.v6.sin6_addr);
}
