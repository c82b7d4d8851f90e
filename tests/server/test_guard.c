// SPDX-License-Identifier: Apache-2.0
//
// Which requests look like a foreign web page's, from their bytes to the refusal.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "front/guard.h"
#include "http/http_source.h"
#include "http/tcp_socket.h"

// The status of a request with these header lines, 0 when it passes.
static int status_of(const msgl_guard *g, const char *method, const char *headers)
{
    char text[1024];
    msgl_http_limits limits = msgl__http_limits_default();
    msgl_http_parser p;
    msgl_api_error e = {0};
    size_t used;
    const int n =
        snprintf(text, sizeof text, "%s /v1/completions HTTP/1.1\r\n%s\r\n", method, headers);
    msgl__http_parser_init(&p, &limits);
    if (msgl__http_parse(&p, text, (size_t)n, &used) != MSGL_HTTP_DONE) fail_msg("%s", headers);
    const int rc = msgl__guard_check(g, &p, &e);
    assert_int_equal(rc != 0, e.status != 0);
    msgl__http_parser_free(&p);
    return e.status;
}

#define JSON "Content-Type: application/json\r\n"

static void test_local(void **state)
{
    (void)state;
    const msgl_guard g = {.local = true, .host = "box", .allowed = "ai.lan, app://x"};
    static const struct {
        const char *headers;
        int status;
    } cases[] = {
        {"Host: localhost\r\n", 0},
        {"Host: LOCALHOST:1919\r\n", 0},
        {"Host: 127.0.0.1:1919\r\n", 0},
        {"Host: [::1]:1919\r\n", 0},
        {"Host: [::1]\r\n", 0},
        {"Host: box:80\r\n", 0},
        {"Host: ai.lan:1919\r\n", 0},
        {"Host: attacker.example\r\n", 403},
        {"Host: attacker.example:1919\r\n", 403},
        {"Host: localhost.attacker.example\r\n", 403},
        {"Host: xlocalhost\r\n", 403},
        {"Host: 127.0.0.1.attacker.example\r\n", 403},
        {"Host: ai.lan.attacker.example\r\n", 403},
        {"Host: \r\n", 403},
        {"Host: [::1\r\n", 403},
        // A program says what it likes about the body, as long as it is none of a web page's.
        {"Host: localhost\r\nContent-Type: text/plain\r\n", 0},
        {"Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n", 0},
        {"Host: localhost\r\nOrigin: http://localhost:3000\r\n" JSON, 0},
        {"Host: localhost\r\nOrigin: https://127.0.0.1\r\n" JSON, 0},
        {"Host: localhost\r\nOrigin: http://[::1]:3000\r\n" JSON, 0},
        {"Host: localhost\r\nOrigin: tauri://localhost\r\n" JSON, 0},
        {"Host: localhost\r\nOrigin: https://ai.lan\r\n" JSON, 0},
        {"Host: localhost\r\nOrigin: app://x\r\n" JSON, 0},
        {"Host: localhost\r\nOrigin: https://attacker.example\r\n" JSON, 403},
        {"Host: localhost\r\nOrigin: https://localhost.attacker.example\r\n" JSON, 403},
        {"Host: localhost\r\nOrigin: https://attacker.example:80://localhost\r\n" JSON, 403},
        {"Host: localhost\r\nOrigin: null\r\n" JSON, 403},
        {"Host: localhost\r\nOrigin: \r\n" JSON, 403},
        {"Host: localhost\r\nOrigin: http://localhost:3000\r\n", 415},
        {"Host: localhost\r\nOrigin: http://localhost:3000\r\nContent-Type: text/plain\r\n", 415},
        {"Host: localhost\r\nOrigin: http://localhost:3000\r\n"
         "Content-Type: Application/JSON ; charset=utf-8\r\n",
         0},
        {"Host: localhost\r\nOrigin: http://localhost\r\nContent-Type: application/jsonx\r\n", 415},
        {"Host: localhost\r\nOrigin: http://localhost\r\nContent-Type: text/plain; "
         "application/json\r\n",
         415},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int status = status_of(&g, "POST", cases[i].headers);
        if (status != cases[i].status) fail_msg("%d for %s", status, cases[i].headers);
    }
    // Reading has no body to declare, but is refused to others, too.
    assert_int_equal(status_of(&g, "GET", "Host: localhost\r\nOrigin: http://localhost\r\n"), 0);
    assert_int_equal(status_of(&g, "GET", "Host: attacker.example\r\n"), 403);
    assert_int_equal(status_of(&g, "OPTIONS", "Host: localhost\r\nOrigin: http://a.example\r\n"),
                     403);
}

static void test_reachable(void **state)
{
    (void)state;
    const msgl_guard open = {.host = "0.0.0.0"};
    assert_int_equal(status_of(&open, "POST", "Host: any.example\r\n"), 0);
    assert_int_equal(status_of(&open, "POST", "Host: a\r\nOrigin: http://b.example\r\n" JSON), 0);
    assert_int_equal(status_of(&open, "POST", "Host: a\r\nOrigin: http://b.example\r\n"), 415);
    const msgl_guard named = {.host = "0.0.0.0", .allowed = "ai.lan"};
    assert_int_equal(status_of(&named, "POST", "Host: ai.lan\r\n"), 0);
    assert_int_equal(status_of(&named, "POST", "Host: any.example\r\n"), 403);
    assert_int_equal(status_of(&named, "POST", "Host: ai.lan\r\nOrigin: http://b.example\r\n" JSON),
                     403);
    const msgl_guard any = {.local = true, .allowed = "*"};
    assert_int_equal(status_of(&any, "POST", "Host: a\r\nOrigin: http://b.example\r\n" JSON), 0);
}

// A key as it comes in, from a file as well; whatever is nearly one is none.
static void test_keys(void **state)
{
    (void)state;
    char path[] = "/tmp/msgl-keys-XXXXXX";
    const int fd = mkstemp(path);
    static const char text[] = "# ours\n\n  sk-file \r\nlast";
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    msgl_guard g = {0};
    msgl_err err;
    assert_int_equal(msgl__keys_add(&g.keys, "sk-1", 4, &err), 0);
    assert_int_equal(msgl__keys_read(&g.keys, path, &err), 0);
    assert_int_equal(g.keys.count, 3);
    static const struct {
        const char *value;
        bool accepted;
    } cases[] = {{"Bearer sk-1", true},   {"bearer  sk-1", true},     {"Bearer sk-file", true},
                 {"Bearer last", true},   {"Bearer sk-2", false},     {"Bearer sk-", false},
                 {"Bearer sk-11", false}, {"Bearer ", false},         {"Bearer", false},
                 {"sk-1", false},         {"Basic sk-1", false},      {"", false},
                 {"Bearer #", false},     {"Bearer sk-1,last", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool yes = msgl__keys_find_bearer(&g.keys, cases[i].value, strlen(cases[i].value));
        if (yes != cases[i].accepted) fail_msg("%s", cases[i].value);
    }
    // One as long as can be is accepted; what is longer is none, however it begins.
    char longest[8 + MSGL_KEY_MAX_LEN] = "Bearer ";
    memset(longest + 7, 'k', MSGL_KEY_MAX_LEN + 1);
    assert_int_equal(msgl__keys_add(&g.keys, longest + 7, MSGL_KEY_MAX_LEN, &err), 0);
    assert_true(msgl__keys_find_bearer(&g.keys, longest, sizeof longest - 1));
    assert_false(msgl__keys_find_bearer(&g.keys, longest, sizeof longest));
    assert_false(msgl__keys_find_bearer(&g.keys, NULL, 0));
    assert_false(msgl__keys_find_bearer(&g.keys, "Bearer sk-1\0", 12));
    // Not valid, and never shown.
    static const char *const bad[] = {"", "sk secret", "sk\tsecret", "sk-secret\xc3\xa9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(msgl__keys_add(&g.keys, bad[i], strlen(bad[i]), &err), MSGL_EINVAL);
        assert_null(strstr(err.text, "secret"));
    }
    assert_int_equal(ftruncate(fd, 7), 0);
    assert_int_equal(msgl__keys_read(&g.keys, path, &err), MSGL_EINVAL);
    assert_non_null(strstr(err.text, "has no API key"));
    assert_int_equal(fchmod(fd, 0644), 0); // as a private key, it is not for others' eyes
    assert_int_equal(msgl__keys_read(&g.keys, path, &err), MSGL_EINVAL);
    assert_non_null(strstr(err.text, "has API keys that every user of this machine may use (mode "
                                     "644); allowed: owner and group (chmod o= FILE)"));
    unlink(path);
    assert_int_equal(msgl__keys_read(&g.keys, path, &err), MSGL_ENOENT);
    close(fd);
    assert_int_equal(g.keys.count, 4);
    msgl__keys_free(&g.keys);
}

static void test_which_clients_are_local(void **state)
{
    (void)state;
    static const struct {
        const char *address;
        bool local;
    } cases[] = {
        {"127.0.0.1", true},          {"127.9.9.9", true},    {"128.0.0.1", false},
        {"10.0.0.127", false},        {"::1", true},          {"::ffff:127.0.0.1", true},
        {"::ffff:10.0.0.127", false}, {"2001:db8::1", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sockaddr_in v4 = {.sin_family = AF_INET};
        struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
        const bool is_v4 = inet_pton(AF_INET, cases[i].address, &v4.sin_addr) == 1;
        assert_true(is_v4 || inet_pton(AF_INET6, cases[i].address, &v6.sin6_addr) == 1);
        const msgl_http_source s = msgl__http_source_of(is_v4 ? (const struct sockaddr *)&v4
                                                              : (const struct sockaddr *)&v6);
        if (msgl__http_source_is_local(&s) != cases[i].local) fail_msg("%s", cases[i].address);
    }
    const struct sockaddr un = {.sa_family = AF_UNIX};
    const msgl_http_source s = msgl__http_source_of(&un);
    assert_true(msgl__http_source_is_local(&s));
}

static void test_which_sockets_are_local(void **state)
{
    (void)state;
    static const struct {
        const char *host;
        bool local;
    } cases[] = {
        {"127.0.0.1", true}, {"127.1.2.3", true}, {"0.0.0.0", false}, {"::1", true}, {"::", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int fd, port;
        msgl_err err;
        if (msgl__tcp_listen(cases[i].host, 0, &fd, &port, &err) != 0) {
            if (strchr(cases[i].host, ':') != NULL) continue; // a machine without IPv6
            fail_msg("%s", err.text);
        }
        if (msgl__guard_is_local(fd) != cases[i].local) fail_msg("%s", cases[i].host);
        close(fd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local),
        cmocka_unit_test(test_reachable),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_which_clients_are_local),
        cmocka_unit_test(test_which_sockets_are_local),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
