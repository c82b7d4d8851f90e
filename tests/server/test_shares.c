// SPDX-License-Identifier: Apache-2.0
//
// What one client may take from the others: of the memory that requests hold in the front, of the
// queue, and of the engine.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/mem.h"
#include "server/fixture.h"

enum { MIB = 1 << 20 };

// A number of /get_server_info.
static size_t counted(server_fixture *s, const char *field)
{
    const int fd = client_open(s);
    client_send(fd, "GET /get_server_info HTTP/1.1\r\nHost: localhost\r\n"
                    "Authorization: Bearer 1\r\n\r\n");
    (void)engine_expect(s, MSGL_MSG_GET_STATS);
    const msgl_msg stats = {.type = MSGL_MSG_STATS};
    assert_int_equal(msgl__channel_send(s->engine, &stats), 0);
    response r = client_read(fd);
    const char *at = strstr(r.body, field);
    assert_non_null(at);
    const size_t n = strtoul(at + strlen(field), NULL, 10);
    response_free(&r);
    close(fd);
    return n;
}

// Bytes that requests hold, as the server counts them.
static size_t held(server_fixture *s)
{
    return counted(s, "\"request_memory\":");
}

static void wait_for_queue(server_fixture *s, size_t n)
{
    for (int i = 0; counted(s, "\"requests_waiting\":") != n; i++) {
        assert_true(i < 2000);
        usleep(5000);
    }
}

// head, then `item` n times with commas between, then tail.
static char *repeat(const char *head, const char *item, int n, const char *tail)
{
    msgl_strbuf b;
    msgl__strbuf_init(&b, 64 * MIB);
    msgl__strbuf_adds(&b, head);
    for (int i = 0; i < n; i++) msgl__strbuf_addf(&b, "%s%s", i > 0 ? "," : "", item);
    assert_int_equal(msgl__strbuf_adds(&b, tail), 0);
    return msgl__strbuf_take(&b);
}

// Bodies count while they arrive: what one request may not hold is refused by its length or when it
// gets there, what does not fit now when it comes; small requests are served meanwhile.
static void test_arriving_bodies(void **state)
{
    (void)state;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.max_request_memory = 8 * MIB;
    server_fixture s;
    server_open(&s, &cfg, true);
    int fd = client_open(&s);
    client_send(fd, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2100000\r\n\r\n");
    response r = client_read(fd);
    expect_error(&r, 413, "request_too_large");
    close(fd);
    enum { N = 8 };
    char *part = repeat("", "aaaaaaaa", 100000, ""); // 900 KB
    int slow[N], open = 0;
    for (int i = 0; i < N; i++) {
        slow[i] = client_open(&s);
        client_send(slow[i],
                    "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 950000\r\n\r\n");
        client_send(slow[i], part);
        usleep(20000);
        const size_t now = held(&s);
        assert_true(now <= (size_t)4 * MIB + 100000);
        if (now > (size_t)(open + 1) * 900000) open++;
    }
    assert_true(open >= 2 && open < N);
    r = client_read(slow[N - 1]);
    expect_error(&r, 429, "queue_full");
    expect_alive(&s);
    for (int i = 0; i < N; i++) close(slow[i]);
    usleep(50000);
    assert_true(held(&s) < 10000);
    // Without a length it is refused when it gets there.
    fd = client_open(&s);
    client_send(fd, "POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 3; i++) {
        client_send(fd, "dbb9f\r\n"); // 899,999
        client_send(fd, part);
        client_send(fd, "\r\n");
    }
    r = client_read(fd);
    expect_error(&r, 413, "request_too_large");
    close(fd);
    msgl__free(part);
    expect_alive(&s);
    server_close(&s);
}

// What a connection has not sent, and what it has read ahead, counts until it is gone.
static void test_buffers(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    int fd = client_ask(&s, "{\"prompt\":\"x\"}", NULL);
    char *ahead = repeat("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n",
                         "aaaaaaaa", 22000, "");
    client_send(fd, ahead);
    msgl__free(ahead);
    usleep(100000);
    assert_true(held(&s) > 190000);
    close(fd);
    (void)engine_expect(&s, MSGL_MSG_ABORT);
    assert_true(held(&s) < 10000);
    uint64_t uid;
    fd = client_ask(&s, "{\"prompt\":\"x\",\"max_tokens\":4000,\"stream\":true,\"logprobs\":20}",
                    &uid);
    msgl_token_logprobs row = {.token = 'a', .logprob = -1, .num_top = 20};
    for (int i = 0; i < 20; i++) row.top_ids[i] = 128 + i;
    const int32_t token = 'a';
    bool seen = false;
    for (int i = 0; i < 20000 && !seen; i++) { // more than the sockets take
        row.position = 1 + i;
        const msgl_token_event e = {
            .uid = uid, .tokens = &token, .num_tokens = 1, .num_logprobs = 1, .logprobs = &row};
        engine_send_event(&s, &e);
        if (i % 1000 == 999) seen = held(&s) > MIB;
    }
    assert_true(seen);
    close(fd);
    (void)engine_expect(&s, MSGL_MSG_ABORT);
    assert_true(held(&s) < 10000);
    server_close(&s);
}

// A tree that nobody reads is gone before the engine hears of the request.
static void test_trees(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    char *body = repeat("{\"prompt\":\"Hi\",\"stream\":true,\"stop\":\"zz\",\"metadata\":[", "{}",
                        300000, "]}");
    enum { N = 5 };
    int fd[N];
    for (int i = 0; i < N; i++) {
        fd[i] = client_ask(&s, body, NULL);
        const size_t now = held(&s);
        if (now > (size_t)(i + 1) * 20000) fail_msg("%d requests hold %zu bytes", i + 1, now);
    }
    for (int i = 0; i < N; i++) close(fd[i]);
    for (int i = 0; i < N; i++) (void)engine_expect(&s, MSGL_MSG_ABORT);
    assert_true(held(&s) < 10000);
    msgl__free(body);
    // Where its tree is too much: 413 by itself.
    server_close(&s);
    msgl_front_config cfg = msgl__front_config_default();
    cfg.max_request_memory = 64 * MIB;
    server_open(&s, &cfg, true);
    body = repeat("{\"prompt\":\"Hi\",\"metadata\":[", "{}", 300000, "]}");
    response r = client_request(&s, "POST", "/v1/completions", body);
    expect_error(&r, 413, "request_too_large");
    msgl__free(body);
    body = repeat("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[",
                  "{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[{},{},{},{},{}]}\"}}",
                  20000, "]}]}");
    r = client_request(&s, "POST", "/v1/chat/completions", body);
    expect_error(&r, 413, "request_too_large");
    msgl__free(body);
    assert_true(held(&s) < 10000);
    expect_alive(&s);
    server_close(&s);
}

// An answer that grows beyond what one request may hold ends; the engine is told.
static void test_growing_answer(void **state)
{
    (void)state;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.max_request_memory = 1 * MIB;
    server_fixture s;
    server_open(&s, &cfg, true);
    msgl_token_logprobs row = {.position = 1, .token = 'a', .logprob = -1, .num_top = 20};
    for (int i = 0; i < 20; i++) row.top_ids[i] = 'A' + i;
    msgl_token_event e = {
        .tokens = (const int32_t[]){'a'}, .num_tokens = 1, .num_logprobs = 1, .logprobs = &row};
    const int fd = client_ask(&s, "{\"prompt\":\"x\",\"max_tokens\":4000,\"logprobs\":20}", &e.uid);
    engine_send_until_abort(&s, &e, &row);
    response r = client_read(fd);
    expect_error(&r, 413, "request_too_large");
    close(fd);
    assert_true(held(&s) < 10000);
    expect_alive(&s);
    server_close(&s);
}

// One piece of a stream that alone is more than may be unsent ends with an error that the client
// gets to read; so does nothing that is smaller.
static void test_large_piece(void **state)
{
    (void)state;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.http.max_output = 20000;
    server_fixture s;
    server_open(&s, &cfg, true);
    uint64_t uid;
    const int fd = client_ask(&s,
                              "{\"prompt\":\"abcdefgh\",\"max_tokens\":9,\"logprobs\":20,"
                              "\"echo\":true,\"stream\":true,\"n\":1}",
                              &uid);
    msgl_token_logprobs rows[64];
    for (int k = 0; k < 64; k++) {
        rows[k] = (msgl_token_logprobs){
            .position = 8 + k, .token = 'b' + k % 8, .logprob = -1, .num_top = 20};
        for (int i = 0; i < 20; i++) rows[k].top_ids[i] = 128 + i;
    }
    for (int k = 0; k < 7; k++) rows[k].position = 1 + k;
    msgl_token_event e = {.uid = uid, .num_logprobs = 7, .logprobs = rows};
    engine_send_event(&s, &e);
    msgl_strbuf seen;
    msgl__strbuf_init(&seen, 1 << 20);
    client_read_until(fd, &seen, "\"finish_reason\":null");
    // 60 tokens whose entries come at once.
    msgl_token_event many[60];
    static const int32_t letter = 'a';
    for (int k = 0; k < 60; k++) {
        rows[k].position = 8 + k;
        many[k] = (msgl_token_event){.uid = uid,
                                     .tokens = &letter,
                                     .num_tokens = 1,
                                     .num_logprobs = 1,
                                     .logprobs = &rows[k]};
    }
    const msgl_msg m = {.type = MSGL_MSG_TOKENS, .u.tokens = {60, many}};
    assert_int_equal(msgl__channel_send(s.engine, &m), 0);
    assert_true(engine_expect(&s, MSGL_MSG_ABORT).u.abort_uid == uid);
    client_read_until(fd, &seen, "\"code\":\"request_too_large\"");
    client_read_until(fd, &seen, "[DONE]");
    msgl__strbuf_free(&seen);
    close(fd);
    expect_alive(&s);
    server_close(&s);
}

// The queue counts requests by their choices, once they are known.
static void test_queue(void **state)
{
    (void)state;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.max_waiting = 5;
    server_fixture s;
    server_open(&s, &cfg, true);
    const int a = client_ask(&s, "{\"prompt\":\"x\",\"n\":3}", NULL);
    for (int i = 1; i < 3; i++) (void)engine_expect(&s, MSGL_MSG_REQUEST);
    response r = client_request(&s, "POST", "/v1/completions", "{\"prompt\":\"x\",\"n\":2}");
    expect_error(&r, 429, "queue_full");
    const int b = client_ask(&s, "{\"prompt\":\"x\"}", NULL);
    // Full: refused before the body is looked at.
    r = client_request(&s, "POST", "/v1/completions", "{\"pro");
    expect_error(&r, 429, "queue_full");
    close(a);
    for (int i = 0; i < 3; i++) (void)engine_expect(&s, MSGL_MSG_ABORT);
    close(b);
    (void)engine_expect(&s, MSGL_MSG_ABORT);
    // Alone, a request may have more choices than the queue has places.
    const int c = client_ask(&s, "{\"prompt\":\"x\",\"n\":6}", NULL);
    for (int i = 1; i < 6; i++) (void)engine_expect(&s, MSGL_MSG_REQUEST);
    close(c);
    for (int i = 0; i < 6; i++) (void)engine_expect(&s, MSGL_MSG_ABORT);
    expect_alive(&s);
    server_close(&s);
}

static int requests_of(server_fixture *s, uint64_t *uids, int most)
{
    int n = 0;
    msgl_msg m;
    while (msgl__channel_recv(s->engine, n == 0 ? 5000 : 300, &m) == 1) {
        assert_int_equal(m.type, MSGL_MSG_REQUEST);
        assert_true(n < most);
        uids[n++] = m.u.request.uid;
    }
    return n;
}

// A request of a thousand choices leaves room for others, at once and as they come; when the others
// are done it gets the room back; all of its choices are served.
static void test_turns(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true); // 256 at a time
    const int a = client_open(&s);
    char *body =
        repeat("{\"n\":128,\"max_tokens\":4,\"ignore_eos\":true,\"prompt\":[", "\"x\"", 8, "]}");
    client_post(a, "/v1/completions", body);
    msgl__free(body);
    static uint64_t first[1024];
    const int got = requests_of(&s, first, 1024);
    assert_int_equal(got, 224); // seven eighths
    expect_alive(&s);
    // Another such request gets its share of what is left, and another client still finds room.
    const int b = client_open(&s);
    body = repeat("{\"n\":128,\"max_tokens\":4,\"ignore_eos\":true,\"prompt\":[", "\"y\"", 8, "]}");
    client_post(b, "/v1/completions", body);
    msgl__free(body);
    static uint64_t second[1024];
    const int more = requests_of(&s, second, 1024);
    assert_true(more >= 24 && more <= 30);
    expect_alive(&s);
    // What the first gives back goes to the one that has less.
    for (int i = 0; i < 64; i++) engine_token(&s, first[i], 'a', MSGL_FINISH_LENGTH);
    assert_true(requests_of(&s, second + more, 1024 - more) >= 36);
    expect_alive(&s);
    close(b);
    msgl_msg m;
    while (msgl__channel_recv(s.engine, 100, &m) == 1) {
        if (m.type != MSGL_MSG_REQUEST) assert_int_equal(m.type, MSGL_MSG_ABORT);
    }
    close(a);
    while (msgl__channel_recv(s.engine, 100, &m) == 1) assert_int_equal(m.type, MSGL_MSG_ABORT);
    expect_alive(&s);
    server_close(&s);
}

// The same of KV tokens, counted by what answers are likely to need and by what they did: of 1,600,
// a request of long prompts leaves some for others.
static void test_tokens(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, false);
    const msgl_msg ready = ready_message(256, 100);
    assert_int_equal(msgl__channel_send(s.engine, &ready), 0);
    usleep(50000);
    // 100 and 100 each: 7 of them are seven times what is left.
    char *ids = repeat("{\"n\":16,\"max_tokens\":100,\"prompt\":[", "7", 100, "]}");
    static uint64_t uid[1024];
    const int a = client_open(&s);
    client_post(a, "/v1/completions", ids);
    assert_int_equal(requests_of(&s, uid, 16), 7);
    expect_alive(&s);
    close(a);
    for (int i = 0; i < 7; i++) (void)engine_expect(&s, MSGL_MSG_ABORT);
    msgl__free(ids);
    // Without max_tokens each counts as 256 and its prompt, not as the context: 5 fit.
    const int b = client_open(&s);
    client_post(b, "/v1/chat/completions",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":16}");
    assert_int_equal(requests_of(&s, uid, 16), 5);
    // They grow beyond that: when one ends, its room is theirs.
    for (int k = 0; k < 300; k++) {
        for (int i = 0; i < 5; i++) engine_token(&s, uid[i], 'a', MSGL_FINISH_NONE);
    }
    engine_token(&s, uid[0], 'a', MSGL_FINISH_LENGTH);
    engine_expect_nothing(&s);
    expect_alive(&s);
    close(b);
    for (int i = 0; i < 4; i++) (void)engine_expect(&s, MSGL_MSG_ABORT);
    server_close(&s);
}

// Prompts of one request wait here while others of it are not started, so that a prompt of another
// client is never behind all of them.
static void test_prompts(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    const int a = client_open(&s);
    char *ids = repeat("[", "7", 1500, "]");
    char *body = repeat("{\"max_tokens\":2,\"prompt\":[", ids, 6, "]}");
    client_post(a, "/v1/completions", body);
    msgl__free(body);
    msgl__free(ids);
    uint64_t uid = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
    engine_expect_nothing(&s);
    expect_alive(&s);
    // Each that starts makes room for the next, and for more than one when they start soon.
    engine_token(&s, uid, 'a', MSGL_FINISH_NONE);
    int sent = 1;
    uint64_t uids[6];
    for (int last = 1; sent < 6;) {
        const int got = requests_of(&s, uids, 6 - sent);
        assert_true(got >= last && got > 0);
        for (int i = 0; i < got; i++) engine_token(&s, uids[i], 'a', MSGL_FINISH_NONE);
        sent += got;
        last = sent < 4 ? got : 1;
    }
    close(a);
    for (int i = 0; i < 6; i++) (void)engine_expect(&s, MSGL_MSG_ABORT);
    server_close(&s);
}

// Turns go around: requests that have nothing in the engine come one after the other, however many
// choices each has.
static void test_round(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, false);
    const msgl_msg ready = ready_message(1, 1000); // one at a time
    assert_int_equal(msgl__channel_send(s.engine, &ready), 0);
    usleep(50000);
    int fd[4];
    uint64_t uid[4];
    // The first two go out: one runs, one is at hand.
    for (int i = 0; i < 4; i++) {
        fd[i] = client_open(&s);
        char body[100];
        (void)snprintf(body, sizeof body, "{\"prompt\":\"%c\",\"n\":3}", 'a' + i);
        client_post(fd[i], "/v1/completions", body);
        if (i < 2) uid[i] = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
        if (i >= 2) engine_expect_nothing(&s);
    }
    char order[16] = "";
    uint64_t oldest = uid[0], next = uid[1];
    for (int i = 0; i < 10; i++) {
        engine_token(&s, oldest, 'z', MSGL_FINISH_LENGTH);
        const msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
        order[i] = (char)m.u.request.ids[0];
        oldest = next;
        next = m.u.request.uid;
    }
    assert_string_equal(order, "abcdabcdcd");
    engine_token(&s, oldest, 'z', MSGL_FINISH_LENGTH);
    engine_token(&s, next, 'z', MSGL_FINISH_LENGTH);
    for (int i = 0; i < 4; i++) {
        expect_status(client_read(fd[i]), 200);
        close(fd[i]);
    }
    server_close(&s);
}

// A connection of the client with this key; of the one at 127.0.0.N, N its digit, without keys.
static int open_as(const server_fixture *s, const char *key)
{
    if (s->cfg.guard.keys.count > 0) return client_open(s);
    return client_open_from(s, key[0] - '0');
}

static int ask_as(const server_fixture *s, const char *key, const char *body)
{
    const int fd = open_as(s, key);
    char text[400];
    (void)snprintf(text, sizeof text,
                   "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
                   "%s\r\nContent-Length: %zu\r\n\r\n%s",
                   key, strlen(body), body);
    client_send(fd, text);
    return fd;
}

// Clients are keys, or addresses, however many connections they have: one alone has all rows of the
// engine and some at hand, and there is room for the others, who are told apart there.
static void test_parties(void **state)
{
    (void)state;
    enum { ROWS = 16, ALONE = 19, MANY = 60 };
    for (int keys = 0; keys < 2; keys++) {
        msgl_front_config cfg = msgl__front_config_default();
        for (int i = 1; i <= 4 && keys; i++) {
            const char key = (char)('0' + i);
            assert_int_equal(msgl__keys_add(&cfg.guard.keys, &key, 1, NULL), 0);
        }
        cfg.max_waiting = 80;
        server_fixture s;
        server_open(&s, &cfg, false);
        msgl_msg m = ready_message(ROWS, 1000);
        assert_int_equal(msgl__channel_send(s.engine, &m), 0);
        usleep(50000);
        int fd[MANY], others[3];
        uint64_t uid[ALONE];
        for (int i = 0; i < MANY; i++) fd[i] = ask_as(&s, "1", "{\"prompt\":\"x\"}");
        uint64_t first = 0;
        for (int i = 0; i < ALONE; i++) {
            m = engine_expect(&s, MSGL_MSG_REQUEST);
            uid[i] = m.u.request.uid;
            if (i > 0) assert_true(m.u.request.client == first);
            first = m.u.request.client;
        }
        wait_for_queue(&s, MANY);
        uint64_t client[3];
        for (int i = 0; i < 3; i++) {
            others[i] = ask_as(&s, i == 0 ? "2" : i == 1 ? "3" : "4", "{\"prompt\":\"y\"}");
            client[i] = engine_expect(&s, MSGL_MSG_REQUEST).u.request.client;
            for (int k = 0; k < i; k++) assert_true(client[k] != client[i]);
            assert_true(client[i] != first);
        }
        // The queue is the same: of 80 the first has at most 70, 59 wait or are in the engine now.
        int refused = ask_as(&s, "1", "{\"prompt\":\"x\",\"n\":16}");
        response r = client_read(refused);
        expect_error(&r, 429, "queue_full");
        close(refused);
        const int n = ask_as(&s, "2", "{\"prompt\":\"z\",\"n\":4}");
        wait_for_queue(&s, MANY + 3 + 4);
        // What the first gives back is for those who have less, but for what others then find.
        for (int i = 0; i < 4; i++) engine_token(&s, uid[i], 'a', MSGL_FINISH_LENGTH);
        for (int i = 0; i < 2; i++) {
            m = engine_expect(&s, MSGL_MSG_REQUEST);
            if (m.u.request.client == first) fail_msg("choice %d is the first client's", i);
        }
        for (int i = 0; i < MANY; i++) close(fd[i]);
        for (int i = 0; i < 3; i++) close(others[i]);
        close(n);
        while (msgl__channel_recv(s.engine, 200, &m) == 1) {
        }
        server_close(&s);
        msgl__keys_free(&cfg.guard.keys);
    }
}

// A prompt's log-probabilities are asked for once; every choice has them in its answer.
static void test_shared_logprobs(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    for (int stream = 0; stream < 2; stream++) {
        const int fd = client_open(&s);
        char body[200];
        (void)snprintf(body, sizeof body,
                       "{\"prompt\":\"ab\",\"n\":3,\"echo\":true,\"logprobs\":1,\"max_tokens\":2,"
                       "\"stream\":%s}",
                       stream ? "true" : "false");
        client_post(fd, "/v1/completions", body);
        msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
        const uint64_t leader = m.u.request.uid;
        assert_int_equal(m.u.request.sampling.prompt_logprobs, 1);
        engine_expect_nothing(&s);
        msgl_token_logprobs row = {
            .position = 1, .token = 'b', .logprob = -0.5f, .num_top = 1, .top_ids = {'b'}};
        row.top_logprobs[0] = -0.5f;
        msgl_token_event e = {.uid = leader, .num_logprobs = 1, .logprobs = &row};
        engine_send_event(&s, &e);
        uint64_t uid[3] = {leader};
        for (int i = 1; i < 3; i++) {
            m = engine_expect(&s, MSGL_MSG_REQUEST);
            uid[i] = m.u.request.uid;
            assert_int_equal(m.u.request.sampling.prompt_logprobs, -1);
            assert_int_equal(m.u.request.sampling.logprobs, 1);
        }
        for (int i = 0; i < 3; i++) {
            row = (msgl_token_logprobs){.position = 2, .token = 'c', .logprob = -2};
            e = (msgl_token_event){.uid = uid[i],
                                   .tokens = (const int32_t[]){'c'},
                                   .num_tokens = 1,
                                   .finish = MSGL_FINISH_LENGTH,
                                   .num_logprobs = 1,
                                   .logprobs = &row};
            engine_send_event(&s, &e);
        }
        response r = client_read(fd);
        static const char want[] =
            "\"logprobs\":{\"tokens\":[\"a\",\"b\",\"c\"],\"token_logprobs\":"
            "[null,-0.5,-2],\"top_logprobs\":[null,{\"b\":-0.5},{\"c\":-2}],"
            "\"text_offset\":[0,1,2]}";
        // Streamed, the leader's entries come in two pieces.
        static const char prompt[] = "{\"tokens\":[\"a\",\"b\"],\"token_logprobs\":[null,-0.5]";
        int whole = 0;
        for (const char *p = r.body; (p = strstr(p, want)) != NULL; p++) whole++;
        assert_int_equal(whole, stream ? 2 : 3);
        assert_true((strstr(r.body, prompt) != NULL) == (stream == 1));
        response_free(&r);
        close(fd);
    }
    server_close(&s);
}

// When the heap is trimmed, by what was given back and the seconds that have passed.
static void test_trim(void **state)
{
    (void)state;
    msgl_budget b;
    msgl__budget_init(&b, (size_t)1 << 30);
    msgl_claim c = {.budget = &b};
    for (int i = 0; i < 100; i++) assert_false(msgl__budget_trim_second(&b));
    msgl__claim_count(&c, 33 << 20);
    assert_false(msgl__budget_trim_due(&b)); // it is held
    msgl__claim_free(&c);
    assert_true(msgl__budget_trim_due(&b));
    assert_false(msgl__budget_trim_due(&b));
    // Less than that within half a minute.
    msgl__claim_count(&c, 2 << 20);
    msgl__claim_free(&c);
    int trims = 0;
    for (int i = 0; i < 30; i++) trims += msgl__budget_trim_second(&b);
    assert_int_equal(trims, 1);
    for (int i = 0; i < 100; i++) assert_false(msgl__budget_trim_second(&b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        // of memory
        cmocka_unit_test(test_trim),
        cmocka_unit_test(test_arriving_bodies),
        cmocka_unit_test(test_buffers),
        cmocka_unit_test(test_trees),
        cmocka_unit_test(test_growing_answer),
        cmocka_unit_test(test_large_piece),
        // of the queue and the engine
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_round),
        cmocka_unit_test(test_parties),
        cmocka_unit_test(test_shared_logprobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
