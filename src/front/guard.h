// SPDX-License-Identifier: Apache-2.0
//
// Which web pages may use the server. A browser sends a page's requests to whatever address the
// page names, this machine's own included, and a page whose name resolves to 127.0.0.1 may even
// read the answers (DNS rebinding). Such requests give themselves away: by a Host that is not this
// server's name, by an Origin that is another's, or by a body that is not declared as JSON, which
// is what a page can send without the browser asking the server first.
//
// Programs send no Origin and the Host that they were given, so nothing changes for them.
#ifndef MSGL_FRONT_GUARD_H
#define MSGL_FRONT_GUARD_H

#include "api/api.h"
#include "http/http_parse.h"
#include "front/keys.h"

typedef struct msgl_guard {
    bool local;          // only this machine can connect: Host and Origin must be local
    const char *host;    // that the server was told to listen on, also a name of it; NULL: none
    const char *allowed; // more names, or whole origins, separated by commas; "*": any; NULL: none
    // Origins, such as https://app.example, whose pages may use the server and read its answers;
    // "*": any page's.
    const char *const *cors;
    int num_cors;
    msgl_keys keys;  // borrowed; with any, a request has to bring one, or one of `admin`
    msgl_keys admin; // borrowed; who has one of them may do what concerns everybody
} msgl_guard;

// 0, or MSGL_EINVAL with *e: 403 for a foreign Host or Origin, 415 for a page's body that is not
// JSON. Where others can connect, Host and Origin are checked only when `allowed` is given.
int msgl__guard_check(const msgl_guard *g, const msgl_http_parser *p, msgl_api_error *e);

// Whether a request's Origin is one of `cors`; *any: every one is.
bool msgl__guard_shares(const msgl_guard *g, const msgl_http_parser *p, bool *any);

// NULL, or why there is a 401: there are keys, and the request has none of them.
const char *msgl__guard_key(const msgl_guard *g, const msgl_http_parser *p);
// Whose request it is: the number of its key, from 1, those of `admin` last; 0 without one that
// is known.
int msgl__guard_whose(const msgl_guard *g, const msgl_http_parser *p);
#define MSGL_GUARD_KEY_CODE "invalid_api_key"
// Whether it has an admin's key.
bool msgl__guard_is_admin(const msgl_guard *g, const msgl_http_parser *p);

// Whether a listening socket is one that browsers of this machine alone can reach, by an address.
bool msgl__guard_is_local(int listen_fd);

#endif
