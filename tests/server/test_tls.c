// SPDX-License-Identifier: Apache-2.0
//
// TLS: certificates and keys that are refused, and what is said of them; answers, streams and
// clients that leave as without it; handshakes that do not end or are none.
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <event2/event.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include "server/fixture.h"
#include "http/tls.h"

static char folder[] = "/tmp/msgl-tls-XXXXXX";

static const char *at(const char *name, char buf[128])
{
    (void)snprintf(buf, 128, "%s/%s", folder, name);
    return buf;
}

static FILE *create(const char *name, mode_t mode)
{
    char path[128];
    FILE *f = fopen(at(name, path), "w");
    assert_non_null(f);
    assert_int_equal(fchmod(fileno(f), mode), 0);
    return f;
}

// A certificate of key that is valid from..to, in seconds from now.
static void put_certificate(FILE *f, EVP_PKEY *key, long from, long to)
{
    X509 *x = X509_new();
    assert_non_null(x);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), from);
    X509_gmtime_adj(X509_getm_notAfter(x), to);
    X509_NAME *name = X509_get_subject_name(x);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"localhost", -1, -1,
                               0);
    X509_set_issuer_name(x, name);
    assert_int_equal(X509_set_pubkey(x, key), 1);
    assert_true(X509_sign(x, key, EVP_sha256()) > 0);
    assert_int_equal(PEM_write_X509(f, x), 1);
    X509_free(x);
}

static void write_certificate(const char *name, EVP_PKEY *key, long from, long to)
{
    FILE *f = create(name, 0644);
    put_certificate(f, key, from, to);
    (void)fclose(f);
}

static void write_key(const char *name, EVP_PKEY *key, mode_t mode, const char *passphrase)
{
    FILE *f = create(name, mode);
    const int len = passphrase == NULL ? 0 : (int)strlen(passphrase);
    assert_int_equal(PEM_write_PrivateKey(f, key, len > 0 ? EVP_aes_128_cbc() : NULL,
                                          (const unsigned char *)passphrase, len, NULL, NULL),
                     1);
    (void)fclose(f);
}

static int setup(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    EVP_PKEY *key = EVP_EC_gen("P-256"), *other = EVP_EC_gen("P-256");
    EVP_PKEY *rsa = EVP_RSA_gen(1024);
    write_certificate("cert", key, -60, 3600);
    write_certificate("expired", key, -7200, -3600);
    write_certificate("future", key, 3600, 7200);
    write_certificate("weak", rsa, -60, 3600);
    write_key("key", key, 0600, NULL);
    write_key("group", key, 0640, NULL);
    write_key("others", key, 0604, NULL);
    write_key("other", other, 0600, NULL);
    write_key("rsa", rsa, 0600, NULL);
    write_key("encrypted", key, 0600, "secret");
    FILE *f = create("both", 0600);
    put_certificate(f, key, -60, 3600);
    assert_int_equal(PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL), 1);
    (void)fclose(f);
    f = create("text", 0600);
    (void)fputs("no PEM\n", f);
    (void)fclose(f);
    EVP_PKEY_free(key);
    EVP_PKEY_free(other);
    EVP_PKEY_free(rsa);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    static const char *const names[] = {"cert",   "expired", "future",    "weak", "key", "group",
                                        "others", "other",   "encrypted", "both", "rsa", "text"};
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) (void)unlink(at(names[i], path));
    return rmdir(folder);
}

static void test_files(void **state)
{
    (void)state;
    static const struct {
        const char *cert, *key, *says; // says NULL: it is taken
    } all[] = {
        {"cert", "key", NULL},
        {"cert", "group", NULL},
        {"both", NULL, NULL},
        {"cert", NULL, "/cert has a private key that every user of this machine may use"},
        {"cert", "others", "/others has a private key that every user of this machine may use"},
        {"cert", "other", "/other is not the private key of the certificate in "},
        {"cert", "rsa", "/rsa is not the private key of the certificate in "},
        {"cert", "encrypted", "/encrypted: the private key has a passphrase"},
        {"cert", "text", "/text: no private key in PEM format"},
        {"cert", "none", "/none: No such file"},
        {"expired", "key", "/expired: the certificate has expired on 2"},
        {"future", "key", "/future: the certificate is not valid before 2"},
        {"weak", "rsa", "too small"},
        {"text", "key", "/text: no certificate in PEM format"},
        {"key", "key", "/key: no certificate in PEM format"},
        {"none", "key", "/none: No such file"},
        {".", "key", "not a regular file"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        char cert[128], key[128];
        msgl_tls *t = NULL;
        msgl_err err = {0};
        const int rc = msgl__tls_create(at(all[i].cert, cert),
                                        all[i].key == NULL ? NULL : at(all[i].key, key), &t, &err);
        if ((rc == 0) != (all[i].says == NULL) ||
            (rc != 0 && strstr(err.text, all[i].says) == NULL)) {
            fail_msg("%s, %s: %d, %s", cert, all[i].key, rc, err.text);
        }
        if (rc == 0) msgl__tls_free(t);
    }
}

// --- connections ---

typedef struct client {
    SSL_CTX *ctx;
    SSL *ssl;
    int fd;
} client;

// A connection after its handshake; version: the highest offered.
static client tls_open(const server_fixture *s, int version)
{
    client c = {.ctx = SSL_CTX_new(TLS_client_method()), .fd = client_open(s)};
    SSL_CTX_set_security_level(c.ctx, 0);
    SSL_CTX_set_min_proto_version(c.ctx, TLS1_VERSION);
    SSL_CTX_set_max_proto_version(c.ctx, version);
    c.ssl = SSL_new(c.ctx);
    SSL_set_fd(c.ssl, c.fd);
    if (SSL_connect(c.ssl) != 1) {
        SSL_free(c.ssl);
        c.ssl = NULL;
    }
    return c;
}

static void tls_close(client *c)
{
    SSL_free(c->ssl);
    SSL_CTX_free(c->ctx);
    close(c->fd);
}

static void tls_send(client *c, const char *text)
{
    assert_int_equal(SSL_write(c->ssl, text, (int)strlen(text)), (int)strlen(text));
}

// Reads until `text` has come; NULL: until the server says that nothing more comes.
static void tls_read_until(client *c, const char *text, char *seen, size_t size)
{
    size_t n = 0;
    seen[0] = '\0';
    while (text == NULL || strstr(seen, text) == NULL) {
        assert_true(n + 1 < size);
        const int got = SSL_read(c->ssl, seen + n, (int)(size - 1 - n));
        if (got <= 0 && text == NULL) {
            assert_int_equal(SSL_get_error(c->ssl, got), SSL_ERROR_ZERO_RETURN);
            return;
        }
        if (got <= 0) fail_msg("ended after '%s'", seen);
        n += (size_t)got;
        seen[n] = '\0';
    }
}

typedef struct tls_server {
    server_fixture s;
    msgl_tls *tls;
} tls_server;

static void open_tls(tls_server *t, int header_timeout_ms, int max_connections)
{
    char cert[128], key[128];
    msgl_front_config cfg = msgl__front_config_default();
    assert_int_equal(msgl__tls_create(at("cert", cert), at("key", key), &t->tls, NULL), 0);
    cfg.http.tls = t->tls;
    cfg.http.header_timeout_ms = header_timeout_ms;
    cfg.http.max_connections = max_connections;
    cfg.stop_timeout_ms = 2000;
    server_open(&t->s, &cfg, false);
    const msgl_msg m = {.type = MSGL_MSG_READY,
                        .u.ready = {CONTEXT, 256, 1000, 16, VOCAB, "fa", "test"}};
    assert_int_equal(msgl__channel_send(t->s.engine, &m), 0);
}

static void close_tls(tls_server *t)
{
    server_close(&t->s);
    msgl__tls_free(t->tls);
}

static void expect_served(const server_fixture *s)
{
    char seen[4096];
    client c = tls_open(s, TLS1_3_VERSION);
    assert_non_null(c.ssl);
    tls_send(&c, "GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    tls_read_until(&c, NULL, seen, sizeof seen);
    assert_non_null(strstr(seen, " 200 OK\r\n"));
    tls_close(&c);
}

static void test_versions(void **state)
{
    (void)state;
    tls_server t;
    open_tls(&t, 15000, 16);
    client c = tls_open(&t.s, TLS1_1_VERSION);
    assert_null(c.ssl);
    tls_close(&c);
    c = tls_open(&t.s, TLS1_2_VERSION);
    assert_non_null(c.ssl);
    assert_int_equal(SSL_version(c.ssl), TLS1_2_VERSION);
    assert_int_equal(SSL_renegotiate(c.ssl), 1); // one that is not granted
    assert_true(SSL_do_handshake(c.ssl) <= 0 || SSL_renegotiate_pending(c.ssl));
    tls_close(&c);
    expect_served(&t.s);
    close_tls(&t);
}

// Once a connection has had an answer, with keep-alive; until a client leaves its stream: how is
// a bit each for close_notify and for unsent bytes at its end.
static void leave_stream(tls_server *t, unsigned how)
{
    static const char body[] = "{\"prompt\":\"ab\",\"stream\":true,\"max_tokens\":100}";
    char seen[8192], head[128];
    client c = tls_open(&t->s, TLS1_3_VERSION);
    assert_non_null(c.ssl);
    tls_send(&c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    tls_read_until(&c, "\r\n\r\n", seen, sizeof seen);
    (void)snprintf(head, sizeof head,
                   "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n",
                   strlen(body));
    tls_send(&c, head);
    tls_send(&c, body);
    const msgl_msg q = engine_expect(&t->s, MSGL_MSG_REQUEST);
    const uint64_t uid = q.u.request.uid;
    engine_text(&t->s, uid, "xyz");
    tls_read_until(&c, "\"z\"", seen, sizeof seen);
    if ((how & 1) != 0) (void)SSL_shutdown(c.ssl);
    if ((how & 2) != 0) tls_send(&c, "GET / HT");
    tls_close(&c);
    const int32_t token = 'w';
    const msgl_token_event e = {.uid = uid, .tokens = &token, .num_tokens = 1};
    engine_send_until_abort(&t->s, &e, NULL);
}

static void test_streams_left(void **state)
{
    (void)state;
    tls_server t;
    open_tls(&t, 15000, 16);
    for (unsigned how = 0; how < 3; how++) leave_stream(&t, how);
    expect_served(&t.s);
    close_tls(&t);
}

static void test_handshakes(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "\x16",
                                      "\x16\x03\x01\x02",
                                      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                      "\x16\x03\x01\x00\x05\x01\x01\x01\x01\x01",
                                      "\xff\xff\xff\xff\xff\xff\xff\xff"};
    tls_server t;
    open_tls(&t, 300, 16);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const int fd = client_open(&t.s);
        client_send(fd, bad[i]);
        if (!client_closed(fd)) assert_int_equal(errno, ECONNRESET); // it had not read all
        close(fd);
    }
    client c = tls_open(&t.s, TLS1_3_VERSION); // and then nothing
    assert_non_null(c.ssl);
    char seen[64];
    tls_read_until(&c, NULL, seen, sizeof seen);
    assert_string_equal(seen, "");
    tls_close(&c);
    expect_served(&t.s);
    close_tls(&t);
}

// Connections that have not begun their handshake count: one beyond the limit is served at once in
// place of the one that is idle longest, and in place of no other. The header timeout is longer
// than a test's read waits, so that it closes none of them.
static void test_too_many(void **state)
{
    (void)state;
    enum { MOST = 4 };
    int fds[MOST];
    char byte;
    tls_server t;
    open_tls(&t, 60000, MOST);
    expect_served(&t.s); // the engine is seen before the connections are taken
    for (int i = 0; i < MOST; i++) fds[i] = client_open(&t.s);
    expect_served(&t.s);
    assert_true(client_closed(fds[0]));
    assert_int_equal(recv(fds[MOST - 1], &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(errno, EAGAIN);
    for (int i = 0; i < MOST; i++) close(fds[i]);
    close_tls(&t);
}

// Where every connection has a request, one more is told so, unless it asks for /health.
static void test_too_many_requests(void **state)
{
    (void)state;
    enum { MOST = 2 };
    static const char *const asks[] = {
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}",
        "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"};
    client c[MOST];
    char seen[4096];
    tls_server t;
    open_tls(&t, 60000, MOST);
    expect_served(&t.s);
    for (int i = 0; i < MOST; i++) {
        c[i] = tls_open(&t.s, TLS1_3_VERSION);
        assert_non_null(c[i].ssl);
        tls_send(&c[i], asks[0]);
        (void)engine_expect(&t.s, MSGL_MSG_REQUEST);
    }
    for (int i = 1; i < 3; i++) {
        client more = tls_open(&t.s, TLS1_3_VERSION);
        assert_non_null(more.ssl);
        tls_send(&more, asks[i]);
        tls_read_until(&more, NULL, seen, sizeof seen);
        assert_non_null(strstr(seen, i == 1 ? " 503 " : " 200 "));
        assert_non_null(strstr(seen, "Connection: close\r\n"));
        tls_close(&more);
    }
    for (int i = 0; i < MOST; i++) tls_close(&c[i]);
    for (int i = 0; i < MOST; i++) (void)engine_expect(&t.s, MSGL_MSG_ABORT);
    close_tls(&t);
}

static bool no_memory; // libevent gets none

static void *allocate(size_t size)
{
    return no_memory ? NULL : malloc(size);
}

// A connection that there is no memory for: its TLS is freed once, and its descriptor stays open.
static void test_no_memory(void **state)
{
    (void)state;
    char cert[128], key[128];
    msgl_tls *t = NULL;
    int fd[2];
    assert_int_equal(msgl__tls_create(at("cert", cert), at("key", key), &t, NULL), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    struct event_base *base = event_base_new();
    assert_non_null(base);
    no_memory = true;
    assert_null(msgl__tls_accept(t, base, fd[0]));
    no_memory = false;
    assert_int_equal(close(fd[0]), 0);
    close(fd[1]);
    event_base_free(base);
    msgl__tls_free(t);
}

int main(void)
{
    event_set_mem_functions(allocate, realloc, free); // before libevent has any
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_memory),         cmocka_unit_test(test_files),
        cmocka_unit_test(test_versions),          cmocka_unit_test(test_streams_left),
        cmocka_unit_test(test_handshakes),        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_too_many_requests),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
