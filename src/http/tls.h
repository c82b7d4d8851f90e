// SPDX-License-Identifier: Apache-2.0
//
// TLS of the server's own, by OpenSSL through libevent's bufferevents: TLS 1.2 with forward secrecy
// and TLS 1.3, no renegotiation, no compression, no client certificates.
#ifndef MSGL_HTTP_TLS_H
#define MSGL_HTTP_TLS_H

#include <stdbool.h>

#include "core/err.h"

struct bufferevent;
struct event_base;
typedef struct msgl_tls msgl_tls;

// Reads a PEM file with the certificate and those between it and its root, and the PEM file of its
// key; keyfile NULL: the key is in certfile, too. The error names the file that is refused: one
// that cannot be read or is no PEM, a key that other users may read, that has a passphrase or that
// is another certificate's, a certificate that is not valid now.
int msgl__tls_create(const char *certfile, const char *keyfile, msgl_tls **out, msgl_err *err);
void msgl__tls_free(msgl_tls *t); // and forgets the key

// The server's end of a connection, which closes fd when it is freed. BEV_EVENT_CONNECTED comes
// when the handshake is done. NULL: out of memory, fd stays open.
struct bufferevent *msgl__tls_accept(msgl_tls *t, struct event_base *base, int fd);
// Tells the client that nothing more comes, so that it does not take what it has for cut off. Does
// nothing on a connection without TLS.
void msgl__tls_bye(struct bufferevent *bev);

#endif
