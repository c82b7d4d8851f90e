// SPDX-License-Identifier: Apache-2.0
//
// What a front tells of its requests' ways, with a scripted engine: read from the socket that an
// exporter would read.
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/fixture.h"
#include "utils/packet.h"

typedef struct traced {
    server_fixture s;
    msgl_front_config cfg;
    msgl_traces traces;
    int fd; // the exporter's end
} traced;

static void traced_open(traced *t)
{
    int fd[2];
    msgl_err err;
    assert_int_equal(msgl__traces_open(fd, &t->traces.counts, &err), 0);
    t->traces.fd = fd[0];
    t->fd = fd[1];
    t->cfg = msgl__front_config_default();
    t->cfg.stop_timeout_ms = 2000;
    t->cfg.max_waiting = 1;
    t->cfg.traces = &t->traces;
    server_open(&t->s, &t->cfg, true);
}

static void traced_close(traced *t)
{
    server_close(&t->s);
    assert_int_equal(t->traces.counts->dropped, 0);
    close(t->fd);
    close(t->traces.fd);
    msgl__traces_counts_free(t->traces.counts);
}

static bool comes(const traced *t, int ms)
{
    struct pollfd p = {.fd = t->fd, .events = POLLIN};
    return poll(&p, 1, ms) == 1;
}

// The next request's, which has this path and status.
static msgl_span next_span(const traced *t, const char *path, int status)
{
    msgl_span s;
    int passed;
    if (!comes(t, 10000)) fail_msg("no span of %s", path);
    assert_int_equal(msgl__packet_recv(t->fd, &s, sizeof s, &passed), sizeof s);
    assert_string_equal(s.path, path);
    assert_int_equal(s.status, status);
    assert_true(s.end_ns > 0 && s.sent_ns <= s.end_ns && s.first_ns <= s.end_ns);
    return s;
}

static void expect_response(int fd, int status)
{
    expect_status(client_read(fd), status);
    close(fd);
}

static void test_answers(void **state)
{
    (void)state;
    traced t;
    uint64_t uid;
    traced_open(&t);
    int fd = client_ask(&t.s, "{\"prompt\":\"abc\",\"max_tokens\":9,\"temperature\":0.5}", &uid);
    engine_text(&t.s, uid, "de");
    engine_token(&t.s, uid, ID_EOS, MSGL_FINISH_STOP);
    expect_response(fd, 200);
    msgl_span s = next_span(&t, "/v1/completions", 200);
    assert_true(!s.has_parent && s.read && s.sampled && !s.stream && !s.client_gone);
    assert_true(0 < s.sent_ns && s.sent_ns <= s.first_ns);
    assert_string_equal(s.operation, "text_completion");
    assert_memory_equal(s.response_id, "cmpl-", 5);
    assert_true(s.input_tokens == 3 && s.output_tokens == 3 && s.cached_tokens == 2);
    assert_true(s.max_tokens == 9 && s.temperature == 0.5f && s.choices == 1);
    assert_true(s.num_finishes == 1 && s.finishes[0] == MSGL_SPAN_STOP && s.error[0] == '\0');
    const msgl_span first = s;
    fd = client_ask(&t.s, "{\"prompt\":\"abc\",\"stream\":true}", &uid);
    engine_text(&t.s, uid, "d");
    engine_token(&t.s, uid, 'e', MSGL_FINISH_LENGTH);
    expect_response(fd, 200);
    s = next_span(&t, "/v1/completions", 200);
    assert_true(s.stream && s.output_tokens == 2 && s.finishes[0] == MSGL_SPAN_LENGTH);
    assert_memory_not_equal(s.trace_id, first.trace_id, 16);
    assert_memory_not_equal(s.span_id, first.span_id, 8);
    expect_status(client_request(&t.s, "POST", "/tokenize", "{\"prompt\":\"abc\"}"), 200);
    s = next_span(&t, "/tokenize", 200);
    assert_true(!s.read && s.sent_ns == 0 && s.operation[0] == '\0');
    expect_status(client_request(&t.s, "GET", "/v1/models", NULL), 200);
    assert_false(comes(&t, 50));
    traced_close(&t);
}

static void test_failures(void **state)
{
    (void)state;
    traced t;
    uint64_t uid;
    traced_open(&t);
    expect_status(client_request(&t.s, "POST", "/v1/completions", "{"), 400);
    msgl_span s = next_span(&t, "/v1/completions", 400);
    assert_true(s.error[0] != '\0' && !s.read && s.sent_ns == 0);
    // One that waits leaves no place for another.
    const int waits = client_ask(&t.s, "{\"prompt\":\"x\"}", &uid);
    expect_status(client_request(&t.s, "POST", "/v1/completions", "{\"prompt\":\"x\"}"), 429);
    s = next_span(&t, "/v1/completions", 429);
    assert_string_equal(s.error, "queue_full");
    close(waits);
    assert_int_equal(engine_expect(&t.s, MSGL_MSG_ABORT).u.abort_uid, uid);
    s = next_span(&t, "/v1/completions", 0);
    assert_true(s.client_gone && s.read && s.sent_ns > 0 && s.first_ns == 0);
    assert_true(s.num_finishes == 1 && s.finishes[0] == MSGL_SPAN_ABORT);
    // The engine fails behind what was streamed.
    int fd = client_ask(&t.s, "{\"prompt\":\"x\",\"stream\":true}", &uid);
    engine_text(&t.s, uid, "a");
    msgl_strbuf seen;
    msgl__strbuf_init(&seen, 1 << 20);
    client_read_until(fd, &seen, "\"a\"");
    msgl__strbuf_free(&seen);
    const msgl_token_event e = {.uid = uid, .finish = MSGL_FINISH_ERROR, .status = MSGL_EINTERNAL};
    engine_send_event(&t.s, &e);
    s = next_span(&t, "/v1/completions", 200);
    assert_string_equal(s.error, "server_error");
    assert_true(s.output_tokens == 1 && !s.client_gone);
    close(fd);
    // And before.
    fd = client_ask(&t.s, "{\"prompt\":\"x\"}", &uid);
    const msgl_token_event early = {
        .uid = uid, .finish = MSGL_FINISH_ERROR, .status = MSGL_EINTERNAL};
    engine_send_event(&t.s, &early);
    expect_response(fd, 500);
    s = next_span(&t, "/v1/completions", 500);
    assert_string_equal(s.error, "server_error");
    traced_close(&t);
}

#define TRACE "0af7651916cd43dd8448eb211c80319c"

static void ask_with(const traced *t, const char *headers)
{
    char text[512];
    const int fd = client_open(&t->s);
    (void)snprintf(text, sizeof text,
                   "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 14\r\n\r\n"
                   "{\"prompt\":\"x\"}",
                   headers);
    client_send(fd, text);
    expect_response(fd, 200);
}

static void test_parents(void **state)
{
    (void)state;
    traced t;
    traced_open(&t);
    ask_with(&t, "TraceParent: 00-" TRACE "-b7ad6b7169203331-01\r\nX-Request-Id: one\r\n");
    msgl_span s = next_span(&t, "/tokenize", 200);
    assert_true(s.has_parent && s.trace_id[0] == 0x0a && s.parent_id[0] == 0xb7);
    assert_string_equal(s.request_id, "one");
    // Of two none is right, and it does not stay for the next request.
    ask_with(&t, "traceparent: 00-" TRACE "-b7ad6b7169203331-01\r\n"
                 "traceparent: 00-" TRACE "-b7ad6b7169203332-01\r\n");
    assert_false(next_span(&t, "/tokenize", 200).has_parent);
    ask_with(&t, "");
    assert_false(next_span(&t, "/tokenize", 200).has_parent);
    ask_with(&t, "traceparent: 00-" TRACE "-b7ad6b7169203331-00\r\n"); // not sampled
    assert_false(comes(&t, 50));
    traced_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers),
                                       cmocka_unit_test(test_failures),
                                       cmocka_unit_test(test_parents)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
