// SPDX-License-Identifier: Apache-2.0
//
// The front with a scripted engine: clients that leave or send ahead, engines that fail, are not
// ready or full, and the end; one's misfortune stays its own.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/mem.h"
#include "server/fixture.h"

// A client that leaves: in the engine's queue, while streaming, while waiting for a whole answer;
// by closing, by a reset, by closing its half first.
static void test_disconnect(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    for (int phase = 0; phase < 3; phase++) {
        for (int how = 0; how < 3; how++) {
            const int fd = client_open(&s);
            client_post(fd, "/v1/completions",
                        phase == 1 ? "{\"prompt\":\"x\",\"n\":2,\"stream\":true}"
                                   : "{\"prompt\":\"x\",\"n\":2}");
            const msgl_msg m1 = engine_expect(&s, MSGL_MSG_REQUEST);
            const uint64_t u1 = m1.u.request.uid;
            const msgl_msg m2 = engine_expect(&s, MSGL_MSG_REQUEST);
            const uint64_t u2 = m2.u.request.uid;
            if (phase > 0) engine_token(&s, u1, 'a', MSGL_FINISH_NONE);
            if (phase == 1) {
                msgl_strbuf seen;
                msgl__strbuf_init(&seen, 1 << 16);
                client_read_until(fd, &seen, "\"text\":\"a\"");
                msgl__strbuf_free(&seen);
            }
            if (how == 1) {
                const struct linger hard = {1, 0};
                setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
            }
            if (how == 2) {
                shutdown(fd, SHUT_WR);
                engine_expect_nothing(&s); // it may still read
            }
            close(fd);
            // Whoever streams finds out with the next thing that it sends.
            if (phase == 1 && how == 2) engine_text(&s, u1, "ab");
            uint64_t got = engine_expect(&s, MSGL_MSG_ABORT).u.abort_uid;
            assert_true(got == u1 || got == u2);
            got ^= engine_expect(&s, MSGL_MSG_ABORT).u.abort_uid;
            assert_true(got == (u1 ^ u2));
            engine_token(&s, u1, 'b', MSGL_FINISH_ABORT); // the engine's echo of it is ignored
        }
    }
    expect_status(client_request(&s, "GET", "/health", NULL), 200);
    server_close(&s);
}

// A client that closes its sending half gets its answer: whole, streamed, also when it was still
// queued, and those of requests that it sent ahead.
static void test_half_close(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    for (int phase = 0; phase < 3; phase++) {
        const int fd = client_open(&s);
        client_post(fd, "/v1/completions",
                    phase == 0 ? "{\"prompt\":\"x\"}" : "{\"prompt\":\"x\",\"stream\":true}");
        client_send(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
        const uint64_t uid = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
        if (phase == 2) engine_text(&s, uid, "a");
        msgl_strbuf seen;
        msgl__strbuf_init(&seen, 1 << 16);
        if (phase == 2) client_read_until(fd, &seen, "\"text\":\"a\"");
        shutdown(fd, SHUT_WR);
        engine_expect_nothing(&s);
        engine_text(&s, uid, "b");
        usleep(30000);
        engine_token(&s, uid, 'c', MSGL_FINISH_LENGTH);
        client_read_until(fd, &seen, phase == 0 ? "\"text\":\"bc\"" : "\"text\":\"c\"");
        client_read_until(fd, &seen, "{\"status\":\"ok\"}");
        // An interim answer comes before one that has not begun, and nowhere else.
        const bool interim = strncmp(seen.data, "HTTP/1.1 100 ", 13) == 0;
        assert_int_equal(interim, phase < 2);
        const char *second = strstr(seen.data + 5, "HTTP/1.1 100 ");
        assert_null(second);
        msgl__strbuf_free(&seen);
        assert_true(client_closed(fd));
        close(fd);
    }
    // HTTP/1.0 has no interim answers.
    const int fd = client_open(&s);
    client_send(fd,
                "POST /v1/completions HTTP/1.0\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}");
    shutdown(fd, SHUT_WR);
    const uint64_t uid = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
    engine_expect_nothing(&s);
    engine_token(&s, uid, 'c', MSGL_FINISH_LENGTH);
    expect_status(client_read(fd), 200);
    close(fd);
    server_close(&s);
}

// A client that has sent so much ahead that it is not read from, and leaves: seen all the same.
static void test_leave_behind_pipeline(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    enum { BLOCK = 1 << 20, JUST_TOO_MUCH = 300000 };
    char *block = msgl__malloc(BLOCK);
    memset(block, 'a', BLOCK);
    for (int how = 0; how < 2; how++) {
        uint64_t uid;
        const int fd = client_ask(&s, "{\"prompt\":\"x\"}", &uid);
        client_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                        "Content-Length: 20000000\r\n\r\n");
        // A reset comes through whatever is on its way; a plain end comes behind it, so that all
        // of it has to fit into the socket's buffers.
        size_t sent = 0;
        for (int idle = 0; idle < 20;) {
            const size_t want = how == 0 ? BLOCK : JUST_TOO_MUCH - sent;
            const ssize_t n = send(fd, block, want, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (n > 0) sent += (size_t)n;
            idle = n > 0 ? 0 : idle + 1;
            usleep(5000);
        }
        assert_true(sent >= JUST_TOO_MUCH);
        if (how == 0) {
            const struct linger hard = {1, 0};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        }
        close(fd);
        assert_true(engine_expect(&s, MSGL_MSG_ABORT).u.abort_uid == uid);
    }
    msgl__free(block);
    server_close(&s);
}

static void test_pipelining(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    const int fd = client_open(&s);
    client_post(fd, "/v1/completions", "{\"prompt\":\"x\"}");
    client_send(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    client_post(fd, "/v1/completions", "{\"prompt\":\"y\",\"stream\":true}");
    client_send(fd, "GET /nope HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
    engine_expect_nothing(&s); // one at a time
    engine_token(&s, m.u.request.uid, 'a', MSGL_FINISH_LENGTH);
    m = engine_expect(&s, MSGL_MSG_REQUEST);
    engine_token(&s, m.u.request.uid, 'b', MSGL_FINISH_LENGTH);
    response r = client_read(fd);
    assert_non_null(strstr(r.body, "\"text\":\"a\""));
    response_free(&r);
    r = client_read(fd);
    assert_string_equal(r.body, "{\"status\":\"ok\"}");
    response_free(&r);
    r = client_read(fd);
    assert_non_null(strstr(r.body, "\"text\":\"b\""));
    response_free(&r);
    r = client_read(fd);
    expect_error(&r, 404, NULL);
    assert_true(client_closed(fd));
    close(fd);
    server_close(&s);
}

// What the engine refuses, before and after the answer has begun.
static void test_engine_errors(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    int fd = client_open(&s);
    client_post(fd, "/v1/completions", "{\"prompt\":\"x\",\"stream\":true,\"n\":2}");
    msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
    const uint64_t first = m.u.request.uid;
    m = engine_expect(&s, MSGL_MSG_REQUEST);
    const uint64_t second = m.u.request.uid;
    msgl_token_event e = {.uid = first,
                          .finish = MSGL_FINISH_ERROR,
                          .status = MSGL_ELIMIT,
                          .text = "too long for the pool"};
    engine_send_event(&s, &e);
    assert_true(engine_expect(&s, MSGL_MSG_ABORT).u.abort_uid == second); // its sibling goes, too
    response r = client_read(fd);
    assert_non_null(strstr(r.body, "too long for the pool"));
    expect_error(&r, 400, "context_length_exceeded");

    client_post(fd, "/v1/completions", "{\"prompt\":\"x\",\"stream\":true}");
    m = engine_expect(&s, MSGL_MSG_REQUEST);
    const uint64_t uid = m.u.request.uid;
    engine_text(&s, uid, "a");
    e = (msgl_token_event){.uid = uid,
                           .finish = MSGL_FINISH_ERROR,
                           .status = MSGL_ENUMERIC,
                           .text = "the logits were NaN"};
    engine_send_event(&s, &e);
    r = client_read(fd);
    assert_int_equal(r.status, 200);
    const char *error = strstr(r.body, "data: {\"error\":{\"message\":\"the logits were NaN\"");
    assert_non_null(error);
    assert_non_null(strstr(error, "data: [DONE]\n\n"));
    response_free(&r);
    close(fd);
    server_close(&s);
}

// The engine dies: requests end with an error, 503 until the next one is ready, then all is well.
static void test_engine_death(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    const int whole = client_open(&s), stream = client_open(&s), info = client_open(&s);
    client_post(whole, "/v1/completions", "{\"prompt\":\"x\"}");
    (void)engine_expect(&s, MSGL_MSG_REQUEST);
    client_post(stream, "/v1/completions", "{\"prompt\":\"x\",\"stream\":true}");
    const msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
    const uint64_t uid = m.u.request.uid;
    client_send(info, "GET /get_server_info HTTP/1.1\r\nHost: x\r\n\r\n");
    (void)engine_expect(&s, MSGL_MSG_GET_STATS);
    msgl_strbuf seen;
    msgl__strbuf_init(&seen, 1 << 20);
    engine_text(&s, uid, "a");
    client_read_until(stream, &seen, "\"text\":\"a\"");
    msgl__channel_destroy(s.engine);
    s.engine = NULL;
    response r = client_read(whole);
    expect_error(&r, 500, "engine_stopped");
    client_read_until(stream, &seen, "\"code\":\"engine_stopped\"");
    client_read_until(stream, &seen, "[DONE]");
    r = client_read(info);
    expect_error(&r, 503, NULL);
    close(whole);
    close(stream);
    close(info);
    expect_status(client_request(&s, "GET", "/health", NULL), 503);
    r = client_request(&s, "POST", "/v1/completions", "{\"prompt\":\"x\"}");
    expect_error(&r, 503, "engine_not_ready");
    msgl__strbuf_free(&seen);
    server_close(&s);
}

static void test_not_ready(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, false);
    response r = client_request(&s, "GET", "/health", NULL);
    assert_int_equal(r.status, 503);
    response_free(&r);
    r = client_request(&s, "POST", "/v1/chat/completions",
                       "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    expect_error(&r, 503, "engine_not_ready");
    expect_status(client_request(&s, "GET", "/v1/models", NULL), 200);
    engine_say_ready(&s);
    server_close(&s);
}

// More waiting requests than allowed: 429 with Retry-After, and room again when some are done.
static void test_queue_limit(void **state)
{
    (void)state;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.max_waiting = 3; // one of them is for others
    server_fixture s;
    server_open(&s, &cfg, true);
    uint64_t uid;
    const int a = client_ask(&s, "{\"prompt\":\"x\"}", &uid);
    const int b = client_ask(&s, "{\"prompt\":\"x\"}", NULL);
    response r = client_request(&s, "POST", "/v1/completions", "{\"prompt\":\"x\"}");
    expect_error(&r, 429, "queue_full");
    engine_text(&s, uid, "a"); // runs now: no longer waiting
    const int c = client_open(&s);
    for (int i = 0; i < 100; i++) {
        client_post(c, "/v1/completions", "{\"prompt\":\"x\"}");
        msgl_msg next;
        if (msgl__channel_recv(s.engine, 50, &next) == 1) break;
        r = client_read(c);
        expect_error(&r, 429, "queue_full");
        assert_true(i < 99);
    }
    close(a);
    close(b);
    close(c);
    for (int i = 0; i < 3; i++) (void)engine_expect(&s, MSGL_MSG_ABORT);
    server_close(&s);
}

// A request at fd, which is closed; the server closes behind the answer.
static void expect_stopping_at(int fd, const char *request, const char *text)
{
    char value[256];
    client_send(fd, request);
    response r = client_read(fd);
    assert_int_equal(r.status, 503);
    if (strstr(r.body, text) == NULL) fail_msg("%s", r.body);
    assert_string_equal(header_of(&r, "Connection", value), "close");
    assert_string_equal(header_of(&r, "Retry-After", value), "1");
    response_free(&r);
    assert_true(client_closed(fd));
    close(fd);
}

static void expect_stopping(const server_fixture *s, const char *request, const char *text)
{
    expect_stopping_at(client_open(s), request, text);
}

// Stopping lets what runs finish, and refuses the rest; who asks whether the server is ready is
// told that it is not until the last answer has ended.
static void test_graceful_stop(void **state)
{
    (void)state;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.stop_timeout_ms = 3000;
    server_fixture s;
    server_open(&s, &cfg, true);
    uint64_t uid;
    const int ends = client_ask(&s, "{\"prompt\":\"x\"}", &uid);
    const int hangs = client_ask(&s, "{\"prompt\":\"x\"}", NULL);
    // One that has asked nothing yet, and one that waits behind an answer.
    const int fresh = client_open(&s), idle = client_open(&s);
    client_send(idle, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    expect_status(client_read(idle), 200);
    msgl__front_stop(s.front);
    assert_true(client_closed(idle));
    expect_stopping_at(fresh, "GET /ready HTTP/1.1\r\nHost: x\r\n\r\n",
                       "{\"status\":\"stopping\"}");
    static const char refused[] = "\"code\":\"server_stopping\"";
    expect_stopping(&s, "GET /ready HTTP/1.1\r\nHost: x\r\n\r\n", "{\"status\":\"stopping\"}");
    expect_stopping(&s, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n", "{\"status\":\"stopping\"}");
    expect_stopping(&s, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", refused);
    expect_stopping(&s, "GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", refused);
    expect_stopping(&s,
                    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n"
                    "{\"prompt\":\"x\"}",
                    refused);
    // Without waiting for its body.
    expect_stopping(&s, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n",
                    refused);
    engine_token(&s, uid, 'a', MSGL_FINISH_LENGTH);
    response r = client_read(ends);
    assert_int_equal(r.status, 200);
    response_free(&r);
    r = client_read(hangs);
    expect_error(&r, 503, "server_stopping");
    (void)engine_expect(&s, MSGL_MSG_ABORT);
    close(ends);
    close(hangs);
    close(idle);
    server_close(&s);
}

// Clients that keep within their shares fill the queue all the same, and the next one hears that
// it is full: each has one request where three in all may wait.
static void test_full_queue(void **state)
{
    (void)state;
    enum { MOST = 3 };
    msgl_front_config cfg = msgl__front_config_default();
    cfg.max_waiting = MOST;
    server_fixture s;
    server_open(&s, &cfg, true);
    int fd[MOST + 1];
    for (int i = 0; i < MOST; i++) {
        fd[i] = client_open_from(&s, 1 + i);
        client_post(fd[i], "/v1/completions", "{\"prompt\":\"x\"}");
        (void)engine_expect(&s, MSGL_MSG_REQUEST);
    }
    fd[MOST] = client_open_from(&s, 1 + MOST);
    client_post(fd[MOST], "/v1/completions", "{\"prompt\":\"x\"}");
    response r = client_read(fd[MOST]);
    assert_non_null(strstr(r.body, "The server has 3 requests waiting"));
    expect_error(&r, 429, "queue_full");
    for (int i = 0; i <= MOST; i++) close(fd[i]);
    for (int i = 0; i < MOST; i++) (void)engine_expect(&s, MSGL_MSG_ABORT);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_queue),   cmocka_unit_test(test_disconnect),
        cmocka_unit_test(test_half_close),   cmocka_unit_test(test_leave_behind_pipeline),
        cmocka_unit_test(test_pipelining),   cmocka_unit_test(test_engine_errors),
        cmocka_unit_test(test_engine_death), cmocka_unit_test(test_not_ready),
        cmocka_unit_test(test_queue_limit),  cmocka_unit_test(test_graceful_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
