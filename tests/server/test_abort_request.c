// SPDX-License-Identifier: Apache-2.0
//
// POST /abort_request: the answers of requests that are in an engine, wait for it, or are still
// read; names; and what is refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "server/fixture.h"

static void open_server(server_fixture *s, int max_waiting)
{
    msgl_front_config cfg = msgl__front_config_default();
    cfg.stop_timeout_ms = 2000;
    cfg.num_workers = 1;
    if (max_waiting > 0) cfg.max_waiting = max_waiting;
    server_open(s, &cfg, true);
}

static void abort_it(const server_fixture *s, const char *body, int aborted)
{
    char want[64];
    response r = client_request(s, "POST", "/abort_request", body);
    (void)snprintf(want, sizeof want, "{\"aborted\":%d}", aborted);
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, want);
    response_free(&r);
}

static void expect_has(response *r, const char *a, const char *b)
{
    assert_int_equal(r->status, 200);
    if (strstr(r->body, a) == NULL || strstr(r->body, b) == NULL) {
        fail_msg("without %s or %s: %s", a, b, r->body);
    }
    response_free(r);
}

// What an answer has so far stays in it; the engine is told; the next request is served.
static void test_whole(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body, *text, *finish;
    } cases[] = {
        {"/generate", "{\"text\":\"p\",\"rid\":\"a/b\",\"sampling_params\":{}}", "\"text\":\"xy\"",
         "\"id\":\"a/b\",\"prompt_tokens\":1,\"completion_tokens\":2,\"cached_tokens\":2,"
         "\"finish_reason\":{\"type\":\"abort\",\"message\":\"Aborted\"}"},
        {"/v1/completions", "{\"prompt\":\"p\",\"rid\":\"a/b\"}", "\"text\":\"xy\"",
         "\"finish_reason\":\"abort\""},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"rid\":\"a/b\"}",
         "\"content\":\"xy\"", "\"finish_reason\":\"abort\""},
    };
    server_fixture s;
    open_server(&s, 0);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        const int fd = client_open(&s), other = client_ask(&s, "{\"prompt\":\"q\"}", NULL);
        client_post(fd, cases[i].path, cases[i].body);
        const msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
        engine_text(&s, m.u.request.uid, "xy");
        // What the engine has said is there when this is answered.
        msgl_strbuf seen;
        msgl__strbuf_init(&seen, 1 << 20);
        const int stream = client_open(&s);
        client_post(stream, "/v1/completions", "{\"prompt\":\"r\",\"stream\":true}");
        const msgl_msg n = engine_expect(&s, MSGL_MSG_REQUEST);
        engine_text(&s, n.u.request.uid, "z");
        client_read_until(stream, &seen, "\"z\"");
        abort_it(&s, "{\"rid\":\"a/b\"}", 1);
        assert_int_equal(engine_expect(&s, MSGL_MSG_ABORT).u.abort_uid, m.u.request.uid);
        response r = client_read(fd);
        expect_has(&r, cases[i].text, cases[i].finish);
        abort_it(&s, "{\"rid\":\"a/b\"}", 0);
        abort_it(&s, "{\"abort_all\":true}", 2);
        (void)engine_expect(&s, MSGL_MSG_ABORT);
        (void)engine_expect(&s, MSGL_MSG_ABORT);
        client_read_until(stream, &seen, "\"finish_reason\":\"abort\"");
        client_read_until(stream, &seen, "[DONE]");
        r = client_read(other);
        expect_has(&r, "\"text\":\"\"", "\"finish_reason\":\"abort\"");
        msgl__strbuf_free(&seen);
        close(fd);
        close(other);
        close(stream);
        expect_alive(&s);
    }
    server_close(&s);
}

// Forms that have no word for it say that the answer was cut.
static void test_converters(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body, *says;
    } cases[] = {
        {"/v1/messages", "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"p\"}]}",
         "\"stop_reason\":\"max_tokens\""},
        {"/v1/responses", "{\"input\":\"p\"}", "\"status\":\"incomplete\""},
    };
    server_fixture s;
    open_server(&s, 0);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        const int fd = client_open(&s);
        client_post(fd, cases[i].path, cases[i].body);
        (void)engine_expect(&s, MSGL_MSG_REQUEST);
        abort_it(&s, "{\"abort_all\":true}", 1);
        (void)engine_expect(&s, MSGL_MSG_ABORT);
        response r = client_read(fd);
        expect_has(&r, cases[i].says, "");
        close(fd);
    }
    server_close(&s);
}

// A request is found by its header's name, too, and by its answer's id. All its choices end, those
// that wait for others of it as well.
static void test_names(void **state)
{
    (void)state;
    server_fixture s;
    open_server(&s, 0);
    const int fd = client_open(&s);
    client_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: r-1\r\n"
                    "Content-Length: 45\r\n\r\n"
                    "{\"prompt\":\"p\",\"n\":3,\"echo\":true,\"logprobs\":0}");
    (void)engine_expect(&s, MSGL_MSG_REQUEST); // the first brings the prompt's log-probabilities
    abort_it(&s, "{\"rid\":\"r-1\"}", 1);
    (void)engine_expect(&s, MSGL_MSG_ABORT);
    response r = client_read(fd);
    json_t *j = json_loadb(r.body, r.len, 0, NULL);
    const json_t *choices = json_object_get(j, "choices");
    assert_int_equal(json_array_size(choices), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *c = json_array_get(choices, i);
        assert_string_equal(json_string_value(json_object_get(c, "text")), "p");
        assert_string_equal(json_string_value(json_object_get(c, "finish_reason")), "abort");
    }
    json_decref(j);
    response_free(&r);
    close(fd);

    const int stream = client_open(&s);
    msgl_strbuf seen;
    msgl__strbuf_init(&seen, 1 << 20);
    client_post(stream, "/v1/completions", "{\"prompt\":\"p\",\"stream\":true}");
    const msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
    engine_text(&s, m.u.request.uid, "z");
    client_read_until(stream, &seen, "\"z\"");
    char body[128];
    const char *id = strstr(msgl__strbuf_str(&seen), "\"cmpl-");
    assert_non_null(id);
    (void)snprintf(body, sizeof body, "{\"rid\":%.*s}", (int)(strchr(id + 1, '"') + 1 - id), id);
    abort_it(&s, body, 1);
    (void)engine_expect(&s, MSGL_MSG_ABORT);
    client_read_until(stream, &seen, "\"finish_reason\":\"abort\"");
    msgl__strbuf_free(&seen);
    close(stream);
    server_close(&s);
}

// POST on a connection of its own with a header line ("": none) from 127.0.0.LAST.
static response call(const server_fixture *s, int last, const char *key, const char *path,
                     const char *body)
{
    char text[512];
    const int fd = client_open_from(s, last);
    (void)snprintf(text, sizeof text,
                   "POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n%s", path,
                   key, strlen(body), body);
    client_send(fd, text);
    response r = client_read(fd);
    close(fd);
    return r;
}

// While a worker is busy with something long, the name of what waits behind it is not known yet;
// its answer ends all the same, and a later request of that name is none of it, nor is another's.
static void test_unread(void **state)
{
    (void)state;
    enum { LONG = 4 << 20, SHORT = 100 * 1000 }; // both go to the thread for long ones
    server_fixture s;
    open_server(&s, 3);
    char *text = msgl__malloc(LONG + 100);
    assert_non_null(text);
    int n = snprintf(text, 100, "{\"prompt\":\"");
    memset(text + n, 'x', LONG);
    (void)snprintf(text + n + LONG, 50, "\"}");
    // Three clients: of a queue of three one alone would not find all places.
    const int slow = client_open(&s), fd = client_open_from(&s, 2), other = client_open_from(&s, 3);
    client_post(slow, "/tokenize", text);
    n = snprintf(text, 100, "{\"text\":\"p\",\"rid\":\"late\",\"sampling_params\":{}");
    memset(text + n, ' ', SHORT);
    (void)snprintf(text + n + SHORT, 50, "}");
    client_post(fd, "/generate", text);
    client_post(other, "/generate", text);
    msgl__free(text);
    for (int status = 200; status == 200;) { // until all are there
        response r = client_request(&s, "GET", "/ready", NULL);
        status = r.status;
        response_free(&r);
    }
    response r = call(&s, 2, "", "/abort_request", "{\"rid\":\"late\"}");
    expect_has(&r, "{\"aborted\":", ""); // 0, or 1 if the thread was quick
    r = client_read(fd);
    expect_has(&r, "\"id\":\"late\"", "\"type\":\"abort\"");
    r = client_read(slow);
    response_free(&r);
    // The other's request; before it, if the thread was quick, ours and its end.
    uint64_t uid = 0, gone = 0;
    msgl_msg m;
    while (msgl__channel_recv(s.engine, uid == gone ? 10000 : 0, &m) == 1) {
        *(m.type == MSGL_MSG_REQUEST ? &uid : &gone) =
            m.type == MSGL_MSG_REQUEST ? m.u.request.uid : m.u.abort_uid;
    }
    engine_token(&s, uid, 'o', MSGL_FINISH_LENGTH);
    r = client_read(other);
    expect_has(&r, "\"text\":\"o\"", "\"type\":\"length\"");
    close(other);
    client_post(fd, "/generate", "{\"text\":\"p\",\"rid\":\"late\",\"sampling_params\":{}}");
    m = engine_expect(&s, MSGL_MSG_REQUEST);
    engine_token(&s, m.u.request.uid, 'y', MSGL_FINISH_LENGTH);
    r = client_read(fd);
    expect_has(&r, "\"text\":\"y\"", "\"type\":\"length\"");
    close(fd);
    close(slow);
    server_close(&s);
}

// Choices that had not had their turn give their places in the queue back: those of a client that
// still has another request, too.
static void test_places(void **state)
{
    (void)state;
    enum { LONG = 2500, CHOICES = 3 }; // the prompt is so long that its later choices wait
    server_fixture s;
    open_server(&s, 8);
    msgl_strbuf body;
    msgl__strbuf_init(&body, 1 << 20);
    assert_int_equal(msgl__strbuf_addf(&body, "{\"rid\":\"x\",\"n\":%d,\"prompt\":[1", CHOICES), 0);
    for (int i = 1; i < LONG; i++) assert_int_equal(msgl__strbuf_adds(&body, ",1"), 0);
    assert_int_equal(msgl__strbuf_adds(&body, "]}"), 0);
    const int other = client_ask(&s, "{\"prompt\":\"r\"}", NULL), fd = client_open(&s);
    for (int i = 0; i < 25; i++) { // more than the places that a client can have
        client_post(fd, "/v1/completions", msgl__strbuf_str(&body));
        (void)engine_expect(&s, MSGL_MSG_REQUEST);
        abort_it(&s, "{\"rid\":\"x\"}", 1);
        (void)engine_expect(&s, MSGL_MSG_ABORT);
        response r = client_read(fd);
        expect_has(&r, "\"finish_reason\":\"abort\"", "\"index\":2");
    }
    abort_it(&s, "{\"abort_all\":true}", 1);
    (void)engine_expect(&s, MSGL_MSG_ABORT);
    response r = client_read(other);
    expect_has(&r, "\"finish_reason\":\"abort\"", "");
    msgl__strbuf_free(&body);
    close(fd);
    close(other);
    server_close(&s);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *body, *says;
    } cases[] = {
        {"{}", "'rid' and 'abort_all' are both missing; allowed: one of them."},
        {"{\"abort_all\":false}", "both missing"},
        {"{\"rid\":\"x\",\"abort_all\":true}", "both given"},
        {"{\"rid\":\"\"}", "'rid' has 0 bytes; allowed: 1 to 128."},
        {"{\"rid\":[\"x\"]}", "'rid' is an array"},
        {"{\"abort_all\":1}", "'abort_all' is an integer"},
        {"{\"rids\":\"x\"}", "'rids' is not a field"},
        {"x", ""},
    };
    server_fixture s;
    open_server(&s, 0);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        response r = client_request(&s, "POST", "/abort_request", cases[i].body);
        if (strstr(r.body, cases[i].says) == NULL) fail_msg("%s: %s", cases[i].body, r.body);
        expect_error(&r, 400, NULL);
    }
    char large[5000] = "{\"rid\":\"x\"";
    memset(large + strlen(large), ' ', 4500);
    strcat(large, "}");
    response r = client_request(&s, "POST", "/abort_request", large);
    expect_error(&r, 413, "request_too_large");
    expect_status(client_request(&s, "GET", "/abort_request", NULL), 405);
    server_close(&s);

    // As everything else, it needs the key where there is one.
    msgl_front_config cfg = msgl__front_config_default();
    msgl_err err;
    assert_int_equal(msgl__keys_add(&cfg.guard.keys, "sk-test", 7, &err), 0);
    server_open(&s, &cfg, true);
    r = client_request(&s, "POST", "/abort_request", "{\"abort_all\":true}");
    expect_error(&r, 401, "invalid_api_key");
    server_close(&s);
    msgl__keys_free(&cfg.guard.keys);
}

static void expect_aborted(response r, int n)
{
    char want[64];
    (void)snprintf(want, sizeof want, "{\"aborted\":%d}", n);
    expect_has(&r, want, "");
}

// What who has asks: a header line, or an address.
typedef struct asker {
    const char *key;
    int last;
} asker;
#define KEY(K) "Authorization: Bearer " K "\r\n"

// Nobody ends another's request, whatever its name is; an admin does.
static void expect_apart(server_fixture *s, asker a, asker b, const asker *admin)
{
    static const char *const others[] = {"{\"abort_all\":true}", "{\"rid\":\"mine\"}"};
    char text[512];
    const int fd = client_open_from(s, a.last);
    (void)snprintf(text, sizeof text,
                   "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n%sX-Request-Id: mine\r\n"
                   "Content-Length: 14\r\n\r\n{\"prompt\":\"p\"}",
                   a.key);
    for (int i = 0; i < 2; i++) {
        client_send(fd, text);
        (void)engine_expect(s, MSGL_MSG_REQUEST);
        for (size_t k = 0; k < MSGL_COUNT(others); k++) { // b has no request, then one
            expect_aborted(call(s, b.last, b.key, "/abort_request", others[k]), 0);
        }
        if (i == 0) {
            expect_aborted(call(s, a.last, a.key, "/abort_request", others[1]), 1);
        } else {
            const int theirs = client_open_from(s, b.last);
            (void)snprintf(text, sizeof text,
                           "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n%s"
                           "X-Request-Id: mine\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"q\"}",
                           b.key);
            client_send(theirs, text);
            (void)engine_expect(s, MSGL_MSG_REQUEST);
            expect_aborted(call(s, b.last, b.key, "/abort_request", others[0]), 1);
            (void)engine_expect(s, MSGL_MSG_ABORT);
            response r = client_read(theirs);
            expect_has(&r, "\"finish_reason\":\"abort\"", "");
            close(theirs);
            const asker end = admin != NULL ? *admin : a;
            expect_aborted(call(s, end.last, end.key, "/abort_request", others[0]), 1);
        }
        (void)engine_expect(s, MSGL_MSG_ABORT);
        response r = client_read(fd);
        expect_has(&r, "\"finish_reason\":\"abort\"", "");
    }
    close(fd);
}

static void test_apart(void **state)
{
    (void)state;
    server_fixture s;
    open_server(&s, 0);
    expect_apart(&s, (asker){"", 1}, (asker){"", 2}, NULL);
    server_close(&s);

    msgl_front_config cfg = msgl__front_config_default();
    assert_int_equal(msgl__keys_add(&cfg.guard.keys, "AAAA", 4, NULL), 0);
    assert_int_equal(msgl__keys_add(&cfg.guard.keys, "BBBB", 4, NULL), 0);
    const asker a = {KEY("AAAA"), 1}, b = {KEY("BBBB"), 1}, admin = {KEY("ADMIN"), 1};
    server_open(&s, &cfg, true);
    expect_apart(&s, a, b, NULL);
    response r = call(&s, 1, a.key, "/flush_cache", ""); // it would be others' loss
    expect_error(&r, 403, "admin_key_needed");
    r = call(&s, 1, admin.key, "/abort_request", "{\"abort_all\":true}");
    expect_error(&r, 401, "invalid_api_key");
    server_close(&s);

    assert_int_equal(msgl__keys_add(&cfg.guard.admin, "ADMIN", 5, NULL), 0);
    server_open(&s, &cfg, true);
    expect_apart(&s, a, b, &admin);
    expect_status(call(&s, 1, admin.key, "/tokenize", "{\"prompt\":\"x\"}"), 200);
    server_close(&s);
    msgl__keys_free(&cfg.guard.keys);

    cfg.guard.keys = (msgl_keys){0}; // the admin's key alone: others need none
    server_open(&s, &cfg, true);
    expect_apart(&s, (asker){"", 1}, (asker){"", 2}, &admin);
    r = call(&s, 1, "", "/flush_cache", "");
    expect_error(&r, 403, "admin_key_needed");
    server_close(&s);
    msgl__keys_free(&cfg.guard.admin);
}

// The answer to POST /flush_cache is the engine's, or a refusal that the engine is not asked about.
static void expect_flush(server_fixture *s, int last, const char *key, bool allowed)
{
    char text[256];
    const int fd = client_open_from(s, last);
    (void)snprintf(text, sizeof text,
                   "POST /flush_cache HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 0\r\n\r\n",
                   key);
    client_send(fd, text);
    if (allowed) {
        (void)engine_expect(s, MSGL_MSG_FLUSH);
        const msgl_msg m = {.type = MSGL_MSG_STATS};
        assert_int_equal(msgl__channel_send(s->engine, &m), 0);
    }
    response r = client_read(fd);
    if (allowed) expect_has(&r, "{", "");
    if (!allowed) expect_error(&r, 403, "admin_key_needed");
    close(fd);
}

// Who may empty the caches of all.
static void test_flush(void **state)
{
    (void)state;
    msgl_front_config cfg = msgl__front_config_default();
    server_fixture s;
    open_server(&s, 0);
    expect_flush(&s, 2, "", true); // of this machine
    server_close(&s);
    assert_int_equal(msgl__keys_add(&cfg.guard.keys, "AAAA", 4, NULL), 0);
    server_open(&s, &cfg, true);
    expect_flush(&s, 1, KEY("AAAA"), true); // everybody's
    server_close(&s);
    assert_int_equal(msgl__keys_add(&cfg.guard.admin, "ADMIN", 5, NULL), 0);
    server_open(&s, &cfg, true);
    expect_flush(&s, 1, KEY("AAAA"), false);
    expect_flush(&s, 1, "X-Api-Key: ADMIN\r\n", true);
    server_close(&s);
    msgl__keys_free(&cfg.guard.keys);
    msgl__keys_free(&cfg.guard.admin);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),  cmocka_unit_test(test_converters),
        cmocka_unit_test(test_names),  cmocka_unit_test(test_unread),
        cmocka_unit_test(test_places), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_apart),  cmocka_unit_test(test_flush),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
