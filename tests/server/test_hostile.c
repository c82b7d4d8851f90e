// SPDX-License-Identifier: Apache-2.0
//
// Clients that mean no good, or are just slow: each gets its answer or is dropped, and a plain
// request of another client is served as if they were not there.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/mem.h"
#include "server/fixture.h"

static void expect_refusal(int fd, int status)
{
    response r = client_read(fd);
    assert_int_equal(r.status, status);
    assert_non_null(strstr(r.body, "{\"error\":{\"message\":"));
    char buf[256];
    assert_string_equal(header_of(&r, "Connection", buf), "close");
    response_free(&r);
    assert_true(client_closed(fd));
    close(fd);
}

static void test_refusals_close(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"hello\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505},
        {"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999999999999\r\n\r\n", 413},
        {"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400},
        {"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
         "ffffffffffffffff\r\n",
         413},
        {"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n"
         "\r\n0\r\n\r\n",
         400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int fd = client_open(&s);
        client_send(fd, cases[i].text);
        expect_refusal(fd, cases[i].status);
    }
    expect_alive(&s);
    server_close(&s);
}

// A header, and a body, that do not end: refused at their limits, and the client that goes on
// sending still gets to read why.
static void test_floods(void **state)
{
    (void)state;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.http.limits.max_body = 100000;
    server_fixture s;
    server_open(&s, &cfg, true);
    char block[4001];
    memset(block, 'a', 4000);
    block[4000] = '\0';
    int fd = client_open(&s);
    client_send(fd, "GET / HTTP/1.1\r\nHost: x\r\nX: ");
    for (int i = 0; i < 200; i++) client_send(fd, block);
    expect_refusal(fd, 431);
    fd = client_open(&s);
    for (int i = 0; i < 200; i++) client_send(fd, block);
    expect_refusal(fd, 414);
    fd = client_open(&s);
    client_send(fd, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 100001\r\n\r\n");
    for (int i = 0; i < 200; i++) client_send(fd, block);
    expect_refusal(fd, 413);
    fd = client_open(&s);
    client_send(fd, "POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 200; i++) {
        client_send(fd, "fa0\r\n");
        client_send(fd, block);
        client_send(fd, "\r\n");
    }
    expect_refusal(fd, 413);
    expect_alive(&s);
    server_close(&s);
}

// Clients that send slowly: the deadline runs from the first byte, whatever still trickles in.
static void test_slow_clients(void **state)
{
    (void)state;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.http.header_timeout_ms = 1500;
    cfg.http.body_timeout_ms = 1500;
    cfg.http.idle_timeout_ms = 2000;
    server_fixture s;
    server_open(&s, &cfg, true);
    enum { N = 100 };
    int fd[N];
    for (int i = 0; i < N; i++) {
        fd[i] = client_open(&s);
        client_send(fd[i], i % 2 == 0
                               ? "GET /health HT"
                               : "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
                                 "\r\nab");
    }
    const int silent = client_open(&s), idle = client_open(&s);
    client_send(idle, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    expect_status(client_read(idle), 200);
    for (int k = 0; k < 5; k++) {
        for (int i = 0; i < N; i++) client_send(fd[i], "c");
        expect_alive(&s);
        usleep(20000);
    }
    for (int i = 0; i < N; i++) expect_refusal(fd[i], 408);
    assert_true(client_closed(silent));
    assert_true(client_closed(idle));
    close(silent);
    close(idle);
    expect_alive(&s);
    server_close(&s);
}

// A client that reads nothing of its stream is cut off; its request is aborted.
static void test_slow_reader(void **state)
{
    (void)state;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.http.max_output = 100000;
    server_fixture s;
    server_open(&s, &cfg, true);
    msgl_token_event e = {.tokens = (const int32_t[]){'a'}, .num_tokens = 1};
    const int fd =
        client_ask(&s, "{\"prompt\":\"x\",\"stream\":true,\"max_tokens\":4000000}", &e.uid);
    engine_send_until_abort(&s, &e, NULL);
    close(fd);
    expect_alive(&s);
    server_close(&s);
}

// More connections than allowed: a new one takes the place of the one that is idle longest. When
// none is, it is served if it asks for /health, and refused if it asks for anything else.
static void test_connection_limit(void **state)
{
    (void)state;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.http.max_connections = 5;
    server_fixture s;
    server_open(&s, &cfg, true);
    usleep(50000);
    int fd[5];
    for (int i = 0; i < 5; i++) {
        fd[i] = client_open(&s);
        client_send(fd[i], "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
        expect_status(client_read(fd[i]), 200);
    }
    int extra = client_open(&s);
    client_send(extra, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
    expect_status(client_read(extra), 200);
    assert_true(client_closed(fd[0]));
    close(fd[0]);
    fd[0] = extra;
    for (int i = 0; i < 5; i++) {
        client_post(fd[i], "/v1/completions", "{\"prompt\":\"x\"}");
        (void)engine_expect(&s, MSGL_MSG_REQUEST);
    }
    enum { MORE = 40 }; // than the reserve, and each stays
    int more[MORE];
    for (int i = 0; i < MORE; i++) {
        more[i] = client_open(&s);
        client_send(more[i], i % 2 ? "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
                                   : "GET /ready HTTP/1.1\r\nHost: x\r\n\r\n");
        response r = client_read(more[i]);
        char value[256];
        assert_string_equal(header_of(&r, "Connection", value), "close");
        expect_status(r, 200);
    }
    extra = client_open(&s);
    client_send(extra, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
    expect_refusal(extra, 503);
    extra = client_open(&s); // before its body
    client_send(extra, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{");
    expect_refusal(extra, 503);
    for (int i = 0; i < MORE; i++) close(more[i]);
    for (int i = 0; i < 5; i++) close(fd[i]);
    for (int i = 0; i < 5; i++) (void)engine_expect(&s, MSGL_MSG_ABORT);
    expect_alive(&s);
    server_close(&s);
}

// So many connections from one address, and others are served meanwhile; what it gives back it may
// have again.
static void test_address_limit(void **state)
{
    (void)state;
    enum { MOST = 3 };
    msgl_front_config cfg = msgl__front_config_default();
    cfg.http.max_per_source = MOST;
    server_fixture s;
    server_open(&s, &cfg, false);
    int fd[MOST];
    for (int i = 0; i < MOST; i++) {
        fd[i] = client_open_from(&s, 2);
        client_send(fd[i], "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
        expect_status(client_read(fd[i]), 503); // no engine yet; the connection stays
    }
    expect_refusal(client_open_from(&s, 2), 429);
    const msgl_msg ready = {.type = MSGL_MSG_READY,
                            .u.ready = {CONTEXT, 256, 1000, 16, VOCAB, "fa", "test"}};
    assert_int_equal(msgl__channel_send(s.engine, &ready), 0);
    for (int i = 0, status = 0; status != 200; i++) { // asked by others
        assert_true(i < 2000);
        const int other = client_open_from(&s, 3);
        client_send(other, "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        response r = client_read(other);
        status = r.status;
        response_free(&r);
        assert_true(client_closed(other));
        close(other);
    }
    for (int i = 0; i < MOST; i++) close(fd[i]);
    for (int i = 0, status = 0; status != 200; i++) { // until the server has seen that
        assert_true(i < 2000);
        const int back = client_open_from(&s, 2);
        client_send(back, "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        response r = client_read(back);
        status = r.status;
        response_free(&r);
        close(back);
        if (status != 200) usleep(5000);
    }
    server_close(&s);
}

// A client that expects "100 Continue", chunked bodies in one-byte chunks, and a body cut into
// single bytes all arrive as the same request.
static void test_odd_but_valid(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    int fd = client_open(&s);
    static const char body[] = "{\"prompt\":\"abc\",\"max_tokens\":1}";
    char head[200];
    (void)snprintf(head, sizeof head,
                   "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                   "Content-Length: %zu\r\n\r\n",
                   sizeof body - 1);
    client_send(fd, head);
    response r = client_read(fd);
    assert_int_equal(r.status, 100);
    response_free(&r);
    for (size_t i = 0; i < sizeof body - 1; i++) {
        const char c[2] = {body[i], '\0'};
        client_send(fd, c);
    }
    msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
    assert_int_equal(m.u.request.num_ids, 3);
    engine_token(&s, m.u.request.uid, 'y', MSGL_FINISH_LENGTH);
    expect_status(client_read(fd), 200);
    client_send(fd,
                "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (size_t i = 0; i < sizeof body - 1; i++) {
        const char chunk[] = {'1', '\r', '\n', body[i], '\r', '\n', '\0'};
        client_send(fd, chunk);
    }
    client_send(fd, "0\r\n\r\n");
    m = engine_expect(&s, MSGL_MSG_REQUEST);
    assert_int_equal(m.u.request.num_ids, 3);
    engine_token(&s, m.u.request.uid, 'y', MSGL_FINISH_LENGTH);
    expect_status(client_read(fd), 200);
    close(fd);
    // HTTP/1.0: a stream without chunks, ended by closing.
    fd = client_open(&s);
    client_send(fd, "POST /generate HTTP/1.0\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}");
    m = engine_expect(&s, MSGL_MSG_REQUEST);
    engine_token(&s, m.u.request.uid, 'y', MSGL_FINISH_LENGTH);
    r = client_read(fd);
    assert_string_equal(r.body, "data: y\n\ndata: [DONE]\n\n");
    response_free(&r);
    close(fd);
    // A client that closes its half right after a short question still gets the answer.
    fd = client_open(&s);
    client_send(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    shutdown(fd, SHUT_WR);
    expect_status(client_read(fd), 200);
    close(fd);
    server_close(&s);
}

// Clients that leave while their body is with a tokenizer worker.
static void test_leave_while_tokenizing(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    const size_t n = 2000000;
    char *body = msgl__malloc(n + 100);
    memcpy(body, "{\"prompt\":\"", 11);
    memset(body + 11, 'a', n);
    memcpy(body + 11 + n, "\"}", 3);
    for (int i = 0; i < 10; i++) {
        const int fd = client_open(&s);
        client_post(fd, "/v1/completions", body);
        if (i % 2 == 0) {
            const struct linger hard = {1, 0};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        }
        close(fd);
    }
    msgl__free(body);
    expect_alive(&s);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals_close),   cmocka_unit_test(test_floods),
        cmocka_unit_test(test_slow_clients),     cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_connection_limit), cmocka_unit_test(test_address_limit),
        cmocka_unit_test(test_odd_but_valid),    cmocka_unit_test(test_leave_while_tokenizing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
