// SPDX-License-Identifier: Apache-2.0
//
// GET / and GET /radix_tree, to the header and the byte; tests/e2e/page.py has the page in a
// browser.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/fixture.h"
#include "apps/page/page.h"

static response ask(const server_fixture *s, const char *method, const char *path,
                    const char *headers)
{
    char text[1024];
    const int fd = client_open(s);
    (void)snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", method, path,
                   headers);
    client_send(fd, text);
    response r = client_read(fd);
    close(fd);
    return r;
}

static void expect_page_headers(const response *r)
{
    char buf[1024];
    assert_string_equal(header_of(r, "X-Content-Type-Options", buf), "nosniff");
    assert_string_equal(header_of(r, "X-Frame-Options", buf), "DENY");
    assert_string_equal(header_of(r, "Referrer-Policy", buf), "no-referrer");
    assert_string_equal(header_of(r, "Cache-Control", buf), "no-cache");
    assert_string_equal(header_of(r, "ETag", buf), msgl__page_etag);
    static const char *const policy[] = {
        "Content-Security-Policy: default-src 'none'; ",
        "script-src 'sha256-",
        "style-src 'sha256-",
        "connect-src 'self'; ",
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; ",
        "require-trusted-types-for 'script'"};
    for (size_t i = 0; i < sizeof policy / sizeof policy[0]; i++) {
        if (strstr(r->head, policy[i]) == NULL) fail_msg("no %s", policy[i]);
    }
    assert_null(strstr(r->head, "unsafe"));
}

static void test_page(void **state)
{
    (void)state;
    char buf[256], headers[128];
    server_fixture s;
    server_open(&s, NULL, true);
    response r = ask(&s, "GET", "/", "");
    assert_int_equal(r.status, 200);
    assert_string_equal(header_of(&r, "Content-Type", buf), "text/html; charset=utf-8");
    expect_page_headers(&r);
    assert_int_equal(r.len, msgl__page_len);
    assert_memory_equal(r.body, msgl__page_text, r.len);
    // All of it was joined, and it loads nothing.
    assert_null(strstr(r.body, "@SCRIPT@"));
    assert_null(strstr(r.body, "@STYLE@"));
    assert_non_null(strstr(r.body, "function renderMarkdown("));
    assert_null(strstr(r.body, " src="));
    assert_null(strstr(r.body, "innerHTML"));
    response_free(&r);

    (void)snprintf(headers, sizeof headers, "If-None-Match: \"other\", W/%s\r\n", msgl__page_etag);
    r = ask(&s, "GET", "/", headers);
    assert_int_equal(r.status, 304);
    expect_page_headers(&r);
    assert_int_equal(r.len, 0);
    assert_null(header_of(&r, "Content-Length", buf));
    response_free(&r);
    r = ask(&s, "GET", "/", "If-None-Match: \"other\"\r\n");
    assert_int_equal(r.status, 200);
    response_free(&r);
    const int fd = client_open(&s);
    msgl_strbuf seen;
    msgl__strbuf_init(&seen, 1 << 16);
    client_send(fd, "HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    client_read_until(fd, &seen, "\r\n\r\n");
    assert_non_null(strstr(msgl__strbuf_str(&seen), "Content-Security-Policy: "));
    (void)snprintf(headers, sizeof headers, "Content-Length: %zu\r\n", msgl__page_len);
    assert_non_null(strstr(msgl__strbuf_str(&seen), headers));
    char more;
    assert_int_equal(recv(fd, &more, 1, 0), 0); // and no body
    msgl__strbuf_free(&seen);
    close(fd);
    (void)snprintf(headers, sizeof headers, "If-None-Match: %s\r\n", msgl__page_etag);
    expect_status(ask(&s, "POST", "/", "Content-Length: 0\r\n"), 405);
    // Nothing else has its headers, nor is anything served below it.
    r = ask(&s, "GET", "/health", headers);
    assert_int_equal(r.status, 200);
    assert_null(strstr(r.head, "Content-Security-Policy"));
    response_free(&r);
    expect_status(ask(&s, "GET", "/page.js", ""), 404);
    expect_status(ask(&s, "GET", "//", ""), 404);
    server_close(&s);
}

// The page itself needs no key; what it asks for does.
static void test_key(void **state)
{
    (void)state;
    msgl_front_config cfg = msgl__front_config_default();
    msgl_err err;
    assert_int_equal(msgl__keys_add(&cfg.guard.keys, "sk-test", 7, &err), 0);
    server_fixture s;
    server_open(&s, &cfg, true);
    response r = ask(&s, "GET", "/", "");
    assert_int_equal(r.status, 200);
    expect_page_headers(&r);
    assert_null(strstr(r.body, "sk-test"));
    response_free(&r);
    static const char *const paths[] = {"/radix_tree", "/metrics", "/v1/models", "/page", "//"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        expect_status(ask(&s, "GET", paths[i], ""), 401);
    }
    expect_status(ask(&s, "GET", "/v1/models", "Authorization: Bearer sk-test\r\n"), 200);
    server_close(&s);
    msgl__keys_free(&cfg.guard.keys);
}

static void test_radix_tree(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    const int fd = client_open(&s);
    static const msgl_tree_run runs[] = {{-1, 32, 1, 7}, {0, 16, 0, 0}, {0, 48, 2, 3}};
    const msgl_msg tree = {.type = MSGL_MSG_TREE, .u.tree = {false, 1600, 3, runs}};
    client_send(fd, "GET /radix_tree HTTP/1.1\r\nHost: x\r\n\r\n");
    (void)engine_expect(&s, MSGL_MSG_GET_TREE);
    assert_int_equal(msgl__channel_send(s.engine, &tree), 0);
    response r = client_read(fd);
    assert_int_equal(r.status, 200);
    assert_string_equal(
        r.body, "{\"replicas\":[{\"replica\":0,\"tokens\":1600,\"complete\":false,\"nodes\":["
                "{\"parent\":-1,\"tokens\":32,\"refs\":1,\"hits\":7},"
                "{\"parent\":0,\"tokens\":16,\"refs\":0,\"hits\":0},"
                "{\"parent\":0,\"tokens\":48,\"refs\":2,\"hits\":3}]}]}");
    response_free(&r);
    // Two that wait get their answers in the order of asking; an empty tree is one.
    const msgl_msg empty = {.type = MSGL_MSG_TREE, .u.tree = {.all = true}};
    const msgl_msg stats = {.type = MSGL_MSG_STATS};
    const int other = client_open(&s);
    client_send(fd, "GET /get_load HTTP/1.1\r\nHost: x\r\n\r\n");
    (void)engine_expect(&s, MSGL_MSG_GET_STATS);
    client_send(other, "GET /radix_tree HTTP/1.1\r\nHost: x\r\n\r\n");
    (void)engine_expect(&s, MSGL_MSG_GET_TREE);
    assert_int_equal(msgl__channel_send(s.engine, &stats), 0);
    assert_int_equal(msgl__channel_send(s.engine, &empty), 0);
    r = client_read(fd);
    assert_non_null(strstr(r.body, "num_waiting_reqs"));
    response_free(&r);
    r = client_read(other);
    assert_string_equal(
        r.body, "{\"replicas\":[{\"replica\":0,\"tokens\":0,\"complete\":true,\"nodes\":[]}]}");
    response_free(&r);
    close(fd);
    close(other);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_radix_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
