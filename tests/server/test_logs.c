// SPDX-License-Identifier: Apache-2.0
//
// What the log says of requests and of engines, with a scripted engine, and /ready. Requests carry
// the word "secret" wherever a log has no business: no line may have it.
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "server/fixture.h"

typedef struct logged {
    server_fixture s;
    msgl_log log;
    int fd[2];
    char text[65536]; // read and not taken
    size_t len;
    char line[4097];
} logged;

static void logged_open(logged *l, msgl_front_config cfg, bool json, bool ready)
{
    assert_int_equal(pipe2(l->fd, O_NONBLOCK | O_CLOEXEC), 0);
    l->log = (msgl_log){.level = MSGL_LOG_INFO, .fd = l->fd[1], .json = json};
    l->len = 0;
    cfg.log = &l->log;
    server_open(&l->s, &cfg, ready);
}

static void logged_close(logged *l)
{
    server_close(&l->s);
    close(l->fd[0]);
    close(l->fd[1]);
}

// The next line that has `text`; NULL: none within `ms`. Lines before it are dropped.
static const char *next_line(logged *l, const char *text, int ms)
{
    for (int waited = 0; waited <= ms;) {
        char *end = memchr(l->text, '\n', l->len);
        if (end == NULL) {
            const ssize_t n = read(l->fd[0], l->text + l->len, sizeof l->text - l->len);
            if (n > 0) {
                l->len += (size_t)n;
            } else {
                usleep(5000);
                waited += 5;
            }
            continue;
        }
        const size_t n = (size_t)(end - l->text);
        assert_true(n < sizeof l->line);
        memcpy(l->line, l->text, n);
        l->line[n] = '\0';
        l->len -= n + 1;
        memmove(l->text, end + 1, l->len);
        if (strstr(l->line, "secret") != NULL) fail_msg("%s", l->line);
        if (strstr(l->line, text) != NULL) return l->line;
    }
    return NULL;
}

static json_t *next_object(logged *l, const char *message)
{
    char want[64];
    (void)snprintf(want, sizeof want, "\"message\":\"%s\"", message);
    const char *s = next_line(l, want, 10000);
    if (s == NULL) fail_msg("no line of %s", message);
    json_error_t e;
    json_t *o = json_loads(s, 0, &e);
    if (o == NULL) fail_msg("%s: %s", e.text, s);
    return o;
}

static double number_of(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    if (!json_is_number(v)) fail_msg("no number %s", name);
    return json_number_value(v);
}

// The next request's line.
static void expect_request(logged *l, const char *method, const char *path, int status,
                           const char *id, bool aborted)
{
    json_t *o = next_object(l, "request");
    assert_string_equal(json_string_value(json_object_get(o, "method")), method);
    assert_string_equal(json_string_value(json_object_get(o, "path")), path);
    assert_int_equal((int)number_of(o, "status"), status);
    assert_true(number_of(o, "ms") >= 0 && number_of(o, "ms") < 60000);
    const char *got = json_string_value(json_object_get(o, "id"));
    const char *client = json_string_value(json_object_get(o, "client"));
    assert_true(id == NULL ? strlen(got) == 24 : strcmp(got, id) == 0);
    assert_int_equal(strncmp(client, "127.0.0.1:", 10), 0);
    assert_true(atoi(client + 10) > 0);
    assert_int_equal(json_object_get(o, "aborted") != NULL, aborted);
    json_decref(o);
}

static void say(const server_fixture *s, const char *head, int status)
{
    const int fd = client_open(s);
    client_send(fd, head);
    expect_status(client_read(fd), status);
    close(fd);
}

#define HOST "Host: localhost\r\n"

static void test_requests(void **state)
{
    (void)state;
    logged l;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.access_log = true;
    logged_open(&l, cfg, true, false);
    server_fixture *s = &l.s;
    say(s, "GET /v1/models HTTP/1.1\r\nX-Request-Id: mine-1\r\nX-Other: secret\r\n" HOST "\r\n",
        200);
    expect_request(&l, "GET", "/v1/models", 200, "mine-1", false);
    say(s, "GET /no%22thing%0a?key=secret HTTP/1.1\r\nAuthorization: secret\r\n" HOST "\r\n", 404);
    expect_request(&l, "GET", "/no\"thing\n", 404, NULL, false);
    say(s, "PUT /v1/models HTTP/1.1\r\nX-Request-Id: {}\r\n" HOST "\r\n", 405);
    expect_request(&l, "OTHER", "/v1/models", 405, NULL, false);
    say(s, "secret\r\n\r\n", 400);
    expect_request(&l, "-", "", 400, NULL, false);
    say(s, "OPTIONS * HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400);
    expect_request(&l, "OPTIONS", "*", 400, NULL, false);
    // One connection, two requests.
    const int both = client_open(s);
    client_send(both, "GET /health HTTP/1.1\r\nX-Request-Id: a\r\n" HOST "\r\n"
                      "GET /v1 HTTP/1.1\r\n" HOST "\r\n");
    expect_status(client_read(both), 503);
    expect_status(client_read(both), 200);
    close(both);
    expect_request(&l, "GET", "/health", 503, "a", false);
    expect_request(&l, "GET", "/v1", 200, NULL, false);
    engine_say_ready(s);
    while (next_line(&l, "/health", 100) != NULL) { // which it asks
    }
    // A whole answer, a stream that ends, one that is left, and one that is left before it begins.
    uint64_t uid;
    int fd = client_ask(s, "{\"prompt\":\"secret\",\"user\":\"secret\"}", &uid);
    engine_text(s, uid, "secret");
    engine_token(s, uid, 'x', MSGL_FINISH_LENGTH);
    expect_status(client_read(fd), 200);
    close(fd);
    expect_request(&l, "POST", "/v1/completions", 200, NULL, false);
    fd = client_ask(s, "{\"prompt\":\"secret\",\"stream\":true}", &uid);
    engine_text(s, uid, "secret");
    engine_token(s, uid, 'x', MSGL_FINISH_LENGTH);
    expect_status(client_read(fd), 200);
    close(fd);
    expect_request(&l, "POST", "/v1/completions", 200, NULL, false);
    fd = client_ask(s, "{\"prompt\":\"secret\",\"stream\":true}", &uid);
    engine_text(s, uid, "abc");
    msgl_strbuf seen;
    msgl__strbuf_init(&seen, 1 << 20);
    client_read_until(fd, &seen, "\"c\"");
    msgl__strbuf_free(&seen);
    close(fd);
    engine_send_until_abort(
        s, &(msgl_token_event){.uid = uid, .num_tokens = 1, .tokens = (const int32_t[]){'y'}},
        NULL);
    expect_request(&l, "POST", "/v1/completions", 200, NULL, true);
    fd = client_ask(s, "{\"prompt\":\"secret\"}", &uid);
    close(fd);
    (void)engine_expect(s, MSGL_MSG_ABORT);
    expect_request(&l, "POST", "/v1/completions", 499, NULL, true);
    logged_close(&l);
}

// As text, and not at all.
static void test_access_text(void **state)
{
    (void)state;
    logged l;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.access_log = true;
    logged_open(&l, cfg, false, true);
    say(&l.s, "GET /a%20%0a HTTP/1.1\r\nX-Request-Id: mine\r\n" HOST "\r\n", 404);
    const char *line = next_line(&l, "/a", 10000);
    assert_non_null(line);
    static const char want[] = " info  request method=GET path=\"/a \\u000a\" status=404 ms=";
    assert_int_equal(strncmp(line + 24, want, sizeof want - 1), 0);
    assert_non_null(strstr(line, " id=mine client=127.0.0.1:"));
    logged_close(&l);
    cfg.access_log = false;
    logged_open(&l, cfg, false, true);
    say(&l.s, "GET /v1 HTTP/1.1\r\n" HOST "\r\n", 200);
    assert_null(next_line(&l, "request", 100));
    logged_close(&l);
}

// The fixture's template takes tools and does not show how a call is written.
static void test_no_form(void **state)
{
    (void)state;
    static const char says[] = "no form of calls was recognised";
    logged l;
    msgl_front_config cfg = msgl__front_config_default();
    logged_open(&l, cfg, false, false);
    assert_non_null(next_line(&l, says, 10000));
    assert_null(next_line(&l, says, 0));
    logged_close(&l);
    cfg.tool_parser = "none"; // as it was asked for
    logged_open(&l, cfg, false, false);
    assert_null(next_line(&l, says, 0));
    logged_close(&l);
}

static void report(logged *l, msgl_msg_stats stats)
{
    msgl_msg m = {.type = MSGL_MSG_REPORT, .u.report.stats = stats};
    assert_int_equal(msgl__channel_send(l->s.engine, &m), 0);
}

static void test_status(void **state)
{
    (void)state;
    logged l;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.log_stats_interval_s = 1;
    logged_open(&l, cfg, true, true);
    msgl_msg_stats st = {.running = 3,
                         .waiting = 2,
                         .used_pages = 40,
                         .total_pages = 1000,
                         .prompt_tokens = 100000,
                         .generated_tokens = 1000,
                         .cached_tokens = 25000};
    report(&l, st);
    json_t *o = next_object(&l, "engine");
    assert_int_equal((int)number_of(o, "running"), 3);
    assert_int_equal((int)number_of(o, "queued"), 2);
    assert_true(number_of(o, "pool_percent") == 4 && number_of(o, "cached_percent") == 25);
    // Of the same time both.
    const double prompt = number_of(o, "prompt_tokens_per_s"),
                 answer = number_of(o, "answer_tokens_per_s");
    assert_true(answer > 0 && prompt > 99 * answer && prompt < 101 * answer);
    json_decref(o);
    // Without a report there is nothing to tell; the next counts from the last one told.
    assert_null(next_line(&l, "running", 2500));
    st.prompt_tokens += 100;
    st.cached_tokens += 100;
    report(&l, st);
    o = next_object(&l, "engine");
    assert_true(number_of(o, "cached_percent") == 100);
    assert_true(number_of(o, "answer_tokens_per_s") == 0);
    // About 3 s have passed.
    assert_true(number_of(o, "prompt_tokens_per_s") > 1);
    assert_true(number_of(o, "prompt_tokens_per_s") < 100);
    json_decref(o);
    st.running = st.waiting = 0;
    report(&l, st);
    assert_null(next_line(&l, "running", 1500)); // idle
    logged_close(&l);
}

static void test_ready(void **state)
{
    (void)state;
    logged l;
    msgl_front_config cfg = msgl__front_config_default();
    msgl_keys keys = {0};
    msgl_err err;
    assert_int_equal(msgl__keys_add(&keys, "key", 3, &err), 0);
    cfg.guard.keys = keys; // it needs none
    logged_open(&l, cfg, false, false);
    expect_status(client_request(&l.s, "GET", "/ready", NULL), 503);
    engine_say_ready(&l.s);
    expect_status(client_request(&l.s, "GET", "/ready", NULL), 200);
    expect_status(client_request(&l.s, "GET", "/v1/models", NULL), 401);
    logged_close(&l);
    msgl__keys_free(&keys);
    cfg = msgl__front_config_default();
    cfg.max_waiting = 1;
    logged_open(&l, cfg, false, true);
    uint64_t uid;
    const int fd = client_ask(&l.s, "{\"prompt\":\"x\",\"max_tokens\":2}", &uid);
    response r = client_request(&l.s, "GET", "/ready", NULL);
    assert_string_equal(r.body, "{\"status\":\"queue full\"}");
    expect_status(r, 503);
    expect_status(client_request(&l.s, "GET", "/health", NULL), 200);
    engine_token(&l.s, uid, 'x', MSGL_FINISH_NONE);
    engine_token(&l.s, uid, 'x', MSGL_FINISH_LENGTH);
    expect_status(client_read(fd), 200);
    close(fd);
    expect_status(client_request(&l.s, "GET", "/ready", NULL), 200);
    logged_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests), cmocka_unit_test(test_access_text),
        cmocka_unit_test(test_status),   cmocka_unit_test(test_no_form),
        cmocka_unit_test(test_ready),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
