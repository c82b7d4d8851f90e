// SPDX-License-Identifier: Apache-2.0
#include "http/tls.h"

#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <time.h>

#include "core/mem.h"
#include "utils/file.h"

enum { PEM_MAX = 1 << 20 };

// The cipher suites of TLS 1.2 that have forward secrecy and authenticated encryption. All of
// TLS 1.3's have both.
static const char CIPHERS[] = "ECDHE+AESGCM:ECDHE+CHACHA20";

struct msgl_tls {
    SSL_CTX *ctx;
};

// Why OpenSSL's last call failed. Its queue of errors is empty then, as libevent takes what is in
// it for the connection that it works on.
static const char *reason(void)
{
    const unsigned long e = ERR_peek_last_error();
    const char *text = e == 0 ? NULL : ERR_reason_error_string(e);
    ERR_clear_error();
    return text == NULL ? "OpenSSL does not say why" : text;
}

// OpenSSL calls this for a key that has a passphrase. There is nobody to ask for it, but the error
// says so.
static int on_passphrase(char *buf, int size, int writing, void *asked)
{
    (void)buf, (void)size, (void)writing;
    *(bool *)asked = true;
    return -1;
}

// Reads a private key from a PEM file that no other user can read.
static int read_key(const char *path, EVP_PKEY **key, msgl_err *err)
{
    char *text;
    size_t len;
    int rc = msgl__file_check_private(path, "a private key", err);
    if (rc == 0) rc = msgl__file_read(path, PEM_MAX, &text, &len, err);
    if (rc != 0) return rc;
    bool encrypted = false;
    BIO *bio = BIO_new_mem_buf(text, (int)len);
    *key = bio == NULL ? NULL : PEM_read_bio_PrivateKey(bio, NULL, on_passphrase, &encrypted);
    BIO_free(bio);
    OPENSSL_cleanse(text, len);
    msgl__free(text);
    if (*key != NULL) return 0;
    const char *why = reason();
    if (encrypted) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "%s: the private key has a passphrase, which the server does not ask "
                             "for; openssl pkey -in FILE -out NEW writes it without",
                             msgl__path_shown(path));
    }
    return msgl__err_set(err, MSGL_EFORMAT, "%s: no private key in PEM format (%s)",
                         msgl__path_shown(path), why);
}

// A time as "2026-11-26 16:00:00 UTC".
static const char *date(const ASN1_TIME *t, char buf[64])
{
    struct tm tm;
    if (ASN1_TIME_to_tm(t, &tm) != 1 || strftime(buf, 64, "%F %T UTC", &tm) == 0) return "?";
    return buf;
}

// Reads the certificate chain into ctx, and refuses one that is not valid now.
static int use_certificate(SSL_CTX *ctx, const char *path, msgl_err *err)
{
    char *text;
    size_t len;
    int rc = msgl__file_read(path, PEM_MAX, &text, &len, err); // says what cannot be read
    if (rc != 0) return rc;
    msgl__free(text);
    if (SSL_CTX_use_certificate_chain_file(ctx, path) != 1) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s: no certificate in PEM format that can be used "
                             "(%s)",
                             msgl__path_shown(path), reason());
    }
    const X509 *cert = SSL_CTX_get0_certificate(ctx);
    const ASN1_TIME *from = X509_get0_notBefore(cert), *to = X509_get0_notAfter(cert);
    char buf[64];
    if (X509_cmp_current_time(to) <= 0) {
        rc = msgl__err_set(err, MSGL_EINVAL, "%s: the certificate has expired on %s",
                           msgl__path_shown(path), date(to, buf));
    } else if (X509_cmp_current_time(from) >= 0) {
        rc = msgl__err_set(err, MSGL_EINVAL, "%s: the certificate is not valid before %s",
                           msgl__path_shown(path), date(from, buf));
    }
    return rc;
}

static int use_key(SSL_CTX *ctx, const char *certfile, const char *keyfile, msgl_err *err)
{
    EVP_PKEY *key;
    const int rc = read_key(keyfile, &key, err);
    if (rc != 0) return rc;
    const bool fits = X509_check_private_key(SSL_CTX_get0_certificate(ctx), key) == 1;
    const bool used = fits && SSL_CTX_use_PrivateKey(ctx, key) == 1;
    EVP_PKEY_free(key);
    if (used) return 0;
    const char *why = reason();
    if (fits) return msgl__err_set(err, MSGL_EFORMAT, "%s: %s", msgl__path_shown(keyfile), why);
    return msgl__err_set(err, MSGL_EINVAL, "%s is not the private key of the certificate in %s",
                         msgl__path_shown(keyfile), msgl__path_shown(certfile));
}

static int set_up(SSL_CTX *ctx, const char *certfile, const char *keyfile, msgl_err *err)
{
    if (SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_cipher_list(ctx, CIPHERS) != 1) {
        return msgl__err_set(err, MSGL_EINTERNAL, "TLS: %s", reason());
    }
    // A client that closes without TLS's close_notify is one that has gone, as it is without TLS.
    // Nobody can cut a request short so, because HTTP says where it ends.
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);         // of connections that are idle
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF); // tickets do that without memory
    const int rc = use_certificate(ctx, certfile, err);
    return rc == 0 ? use_key(ctx, certfile, keyfile == NULL ? certfile : keyfile, err) : rc;
}

int msgl__tls_create(const char *certfile, const char *keyfile, msgl_tls **out, msgl_err *err)
{
    msgl_tls *t = msgl__calloc(1, sizeof *t);
    if (t != NULL) t->ctx = SSL_CTX_new(TLS_server_method());
    if (t == NULL || t->ctx == NULL) {
        msgl__free(t);
        return msgl__err_set(err, MSGL_ENOMEM, "TLS: out of memory");
    }
    const int rc = set_up(t->ctx, certfile, keyfile, err);
    if (rc != 0) {
        msgl__tls_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

void msgl__tls_free(msgl_tls *t)
{
    if (t == NULL) return;
    SSL_CTX_free(t->ctx);
    msgl__free(t);
}

struct bufferevent *msgl__tls_accept(msgl_tls *t, struct event_base *base, int fd)
{
    SSL *ssl = SSL_new(t->ctx);
    if (ssl == NULL) {
        ERR_clear_error();
        return NULL;
    }
    // With this option libevent (2.1.12) frees ssl also where it fails.
    return bufferevent_openssl_socket_new(base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                          BEV_OPT_CLOSE_ON_FREE);
}

void msgl__tls_bye(struct bufferevent *bev)
{
    SSL *ssl = bufferevent_openssl_get_ssl(bev);
    if (ssl == NULL) return;
    (void)SSL_shutdown(ssl); // if the socket is full, the client is not told
    ERR_clear_error();
}
