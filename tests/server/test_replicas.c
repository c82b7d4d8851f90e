// SPDX-License-Identifier: Apache-2.0
//
// A front with several engines, played by the test: where requests go, what is left of them when an
// engine dies or hangs, and what the engines' counters add up to.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "server/fixture.h"

enum { REPLICAS = 3 };

typedef struct fleet {
    server_fixture s;
    server_fixture at[REPLICAS]; // speak for one each
} fleet;

static void say_ready(server_fixture *at, int max_running)
{
    const msgl_msg m = ready_message(max_running, 1000);
    assert_int_equal(msgl__channel_send(at->engine, &m), 0);
}

// The number in /health's field; -1: it is not there.
static int health(const fleet *f, const char *field)
{
    response r = client_request(&f->s, "GET", "/health", NULL);
    json_t *j = json_loadb(r.body, r.len, 0, NULL);
    assert_non_null(j);
    const json_t *v = json_object_get(j, field);
    const int n = v == NULL ? -1 : (int)json_integer_value(v);
    const bool serves = json_integer_value(json_object_get(j, "serving")) > 0;
    assert_int_equal(r.status, serves ? 200 : 503);
    json_decref(j);
    response_free(&r);
    return n;
}

static void await_serving(const fleet *f, int n)
{
    for (int i = 0; health(f, "serving") != n; i++) {
        if (i == 1000) fail_msg("%d engines serve instead of %d", health(f, "serving"), n);
        usleep(10000);
    }
}

static void open_fleet(fleet *f, msgl_front_config cfg, int max_running)
{
    cfg.num_replicas = REPLICAS;
    cfg.stop_timeout_ms = 2000;
    server_open(&f->s, &cfg, false);
    assert_int_equal(health(f, "serving"), 0);
    assert_int_equal(health(f, "replicas"), REPLICAS);
    for (int i = 0; i < REPLICAS; i++) {
        f->at[i] = f->s;
        if (i > 0) f->at[i].engine = f->s.others[i - 1];
        say_ready(&f->at[i], max_running);
    }
    await_serving(f, REPLICAS);
}

static void kill_engine(fleet *f, int i)
{
    msgl__channel_destroy(f->at[i].engine);
    f->at[i].engine = NULL;
    if (i == 0) f->s.engine = NULL;
    if (i > 0) f->s.others[i - 1] = NULL;
}

// 40 tokens of this letter, and `more` behind them.
static void body_of(char letter, const char *more, char body[256])
{
    char text[41];
    memset(text, letter, 40);
    text[40] = '\0';
    (void)snprintf(body, 256, "{\"prompt\":\"%s%s\",\"max_tokens\":2}", text, more);
}

// Who is asked, and its request's uid.
static int find_request(fleet *f, uint64_t *uid)
{
    for (int turn = 0; turn < 2000; turn++) {
        for (int i = 0; i < REPLICAS; i++) {
            msgl_msg m;
            if (f->at[i].engine == NULL) continue;
            if (msgl__channel_recv(f->at[i].engine, 0, &m) != 1) continue;
            assert_int_equal(m.type, MSGL_MSG_REQUEST);
            *uid = m.u.request.uid;
            return i;
        }
        usleep(5000);
    }
    fail_msg("nobody is asked");
    return -1;
}

// The replica that answers this prompt.
static int serve(fleet *f, char letter, const char *more)
{
    char body[256];
    uint64_t uid;
    body_of(letter, more, body);
    const int fd = client_open(&f->s);
    client_post(fd, "/v1/completions", body);
    const int i = find_request(f, &uid);
    engine_token(&f->at[i], uid, 'x', MSGL_FINISH_LENGTH);
    expect_status(client_read(fd), 200);
    close(fd);
    return i;
}

// A conversation stays where its beginning is; others go elsewhere.
static void test_prefix(void **state)
{
    (void)state;
    fleet f;
    open_fleet(&f, msgl__front_config_default(), 16);
    const int a = serve(&f, 'a', "");
    const int b = serve(&f, 'b', "");
    const int c = serve(&f, 'c', "");
    assert_true(a != b && b != c && c != a);
    assert_int_equal(serve(&f, 'b', "more"), b);
    assert_int_equal(serve(&f, 'a', "more"), a);
    assert_int_equal(serve(&f, 'a', "more and more"), a);
    // Its cache is empty: what it had is worth nothing, and it is not its turn.
    const int fd = client_open(&f.s);
    client_post(fd, "/flush_cache", "");
    for (int i = 0; i < REPLICAS; i++) {
        (void)engine_expect(&f.at[i], MSGL_MSG_FLUSH);
        const msgl_msg m = {.type = MSGL_MSG_STATS, .u.stats = {.step = 1}};
        assert_int_equal(msgl__channel_send(f.at[i].engine, &m), 0);
    }
    expect_status(client_read(fd), 200);
    close(fd);
    assert_int_equal(serve(&f, 'a', "more and more"), c);
    server_close(&f.s);
}

static void test_round_robin(void **state)
{
    (void)state;
    fleet f;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.routing = MSGL_ROUTING_ROUND_ROBIN;
    open_fleet(&f, cfg, 16);
    for (int i = 0; i < 7; i++) assert_int_equal(serve(&f, 'a', ""), i % REPLICAS);
    server_close(&f.s);
}

// Prompts and choices of one request are spread; its answer is one, in their order. Log-
// probabilities of a prompt are asked for once.
static void test_batch(void **state)
{
    (void)state;
    fleet f;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.routing = MSGL_ROUTING_ROUND_ROBIN;
    open_fleet(&f, cfg, 16);
    const int fd = client_open(&f.s);
    client_post(fd, "/v1/completions", "{\"prompt\":[\"k\",\"l\",\"m\",\"n\"],\"max_tokens\":1}");
    uint64_t uid[REPLICAS];
    for (int i = 0; i < REPLICAS; i++) {
        const msgl_msg m = engine_expect(&f.at[i], MSGL_MSG_REQUEST);
        assert_int_equal(m.u.request.ids[0], 'k' + i);
        uid[i] = m.u.request.uid;
    }
    const msgl_msg fourth = engine_expect(&f.at[0], MSGL_MSG_REQUEST);
    engine_token(&f.at[0], fourth.u.request.uid, 'N', MSGL_FINISH_LENGTH);
    for (int i = REPLICAS; i-- > 0;) engine_token(&f.at[i], uid[i], 'K' + i, MSGL_FINISH_LENGTH);
    response r = client_read(fd);
    assert_int_equal(r.status, 200);
    json_t *j = json_loadb(r.body, r.len, 0, NULL);
    for (size_t i = 0; i < 4; i++) {
        const json_t *c = json_array_get(json_object_get(j, "choices"), i);
        const char text[2] = {(char)('K' + i), '\0'};
        assert_string_equal(json_string_value(json_object_get(c, "text")), text);
    }
    json_decref(j);
    response_free(&r);
    client_post(fd, "/v1/completions",
                "{\"prompt\":\"p\",\"n\":2,\"max_tokens\":1,\"echo\":true,\"logprobs\":0}");
    const msgl_msg first = engine_expect(&f.at[1], MSGL_MSG_REQUEST);
    assert_int_equal(first.u.request.sampling.prompt_logprobs, 0);
    engine_expect_nothing(&f.at[2]); // it waits for the first one's, on another engine
    close(fd);
    (void)engine_expect(&f.at[1], MSGL_MSG_ABORT);
    server_close(&f.s);
}

// A client that leaves is aborted where its request is.
static void test_abort(void **state)
{
    (void)state;
    fleet f;
    open_fleet(&f, msgl__front_config_default(), 16);
    char body[256];
    uint64_t uid[2];
    int fd[2], at[2];
    for (int i = 0; i < 2; i++) {
        body_of((char)('a' + i), "", body);
        fd[i] = client_open(&f.s);
        client_post(fd[i], "/v1/completions", body);
        at[i] = find_request(&f, &uid[i]);
    }
    assert_int_not_equal(at[0], at[1]);
    close(fd[1]);
    assert_true(engine_expect(&f.at[at[1]], MSGL_MSG_ABORT).u.abort_uid == uid[1]);
    engine_expect_nothing(&f.at[at[0]]);
    engine_token(&f.at[at[0]], uid[0], 'x', MSGL_FINISH_LENGTH);
    expect_status(client_read(fd[0]), 200);
    close(fd[0]);
    server_close(&f.s);
}

// One that is aborted by name ends on every engine, and what waits for one ends unseen.
static void test_abort_request(void **state)
{
    (void)state;
    fleet f;
    open_fleet(&f, msgl__front_config_default(), 1);
    const int fd = client_open(&f.s);
    client_post(fd, "/v1/completions",
                "{\"prompt\":[\"k\",\"l\",\"m\"],\"n\":5,\"rid\":\"r\",\"temperature\":1}");
    uint64_t uid;
    int count[REPLICAS] = {0}, sent = 0;
    for (; sent < REPLICAS; sent++) count[find_request(&f, &uid)]++;
    expect_status(client_request(&f.s, "POST", "/abort_request", "{\"rid\":\"r\"}"), 200);
    response r = client_read(fd);
    json_t *j = json_loadb(r.body, r.len, 0, NULL);
    const json_t *choices = json_object_get(j, "choices");
    assert_int_equal(json_array_size(choices), 15);
    for (size_t i = 0; i < 15; i++) {
        const json_t *why = json_object_get(json_array_get(choices, i), "finish_reason");
        assert_string_equal(json_string_value(why), "abort");
    }
    json_decref(j);
    response_free(&r);
    // Each engine drops what it was given, and gets no more of it.
    for (int i = 0; i < REPLICAS; i++) {
        for (msgl_msg m; msgl__channel_recv(f.at[i].engine, 200, &m) == 1;) {
            count[i] += m.type == MSGL_MSG_REQUEST ? 1 : m.type == MSGL_MSG_ABORT ? -1 : 100;
        }
        assert_int_equal(count[i], 0);
    }
    close(fd);
    server_close(&f.s);
}

// An engine ends: so do the requests that it had. Those that waited for it are computed by another
// one, and nobody else notices.
static void test_death(void **state)
{
    (void)state;
    enum { CLIENTS = 12 };
    fleet f;
    // Each engine has one row, and one request at hand.
    open_fleet(&f, msgl__front_config_default(), 1);
    int fd[CLIENTS], lost = 0, answered = 0;
    for (int i = 0; i < CLIENTS; i++) {
        char body[256];
        body_of((char)('a' + i), "", body);
        fd[i] = client_open(&f.s);
        client_post(fd[i], "/v1/completions", body);
    }
    uint64_t uid[REPLICAS][2];
    for (int i = 0; i < REPLICAS; i++) {
        for (int k = 0; k < 2; k++) {
            uid[i][k] = engine_expect(&f.at[i], MSGL_MSG_REQUEST).u.request.uid;
        }
        engine_expect_nothing(&f.at[i]);
    }
    kill_engine(&f, 1);
    await_serving(&f, REPLICAS - 1);
    // The others answer what they have and what comes.
    int served = 0;
    while (served < CLIENTS - 2) {
        for (int i = 0; i < REPLICAS; i += 2) {
            msgl_msg m;
            for (int k = 0; k < 2; k++) {
                if (uid[i][k] == 0) continue;
                engine_token(&f.at[i], uid[i][k], 'x', MSGL_FINISH_LENGTH);
                served++;
                uid[i][k] = 0;
            }
            for (int k = 0; k < 2 && served < CLIENTS - 2; k++) {
                if (msgl__channel_recv(f.at[i].engine, 500, &m) != 1) continue;
                assert_int_equal(m.type, MSGL_MSG_REQUEST);
                uid[i][k] = m.u.request.uid;
            }
        }
    }
    for (int i = 0; i < CLIENTS; i++) {
        response r = client_read(fd[i]);
        if (r.status == 500) {
            assert_non_null(strstr(r.body, "engine_stopped"));
            lost++;
        } else {
            assert_int_equal(r.status, 200);
            answered++;
        }
        response_free(&r);
        close(fd[i]);
    }
    assert_int_equal(lost, 2);
    assert_int_equal(answered, CLIENTS - 2);
    kill_engine(&f, 0);
    kill_engine(&f, 2);
    await_serving(&f, 0);
    response r = client_request(&f.s, "POST", "/v1/completions", "{\"prompt\":\"x\"}");
    expect_error(&r, 503, "engine_not_ready");
    server_close(&f.s);
}

// One that gives no sign of life gets no requests, and those that waited for it go to others; when
// it works again it takes part.
static void test_hang(void **state)
{
    (void)state;
    fleet f;
    msgl_heartbeat *beats[REPLICAS];
    msgl_err err;
    for (int i = 0; i < REPLICAS; i++) assert_int_equal(msgl__heartbeat_create(&beats[i], &err), 0);
    msgl_front_config cfg = msgl__front_config_default();
    cfg.heartbeats = beats;
    cfg.max_silence_s = 2;
    cfg.routing = MSGL_ROUTING_ROUND_ROBIN;
    open_fleet(&f, cfg, 1);
    enum { CLIENTS = 9 };
    int fd[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        fd[i] = client_open(&f.s);
        client_post(fd[i], "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":2}");
    }
    int answered = 0;
    bool all = true;
    for (int turn = 0; turn < 1500 && (answered < CLIENTS - 2 || all); turn++) {
        for (int i = 1; i < REPLICAS; i++) {
            msgl_msg m;
            msgl__beat(beats[i], MSGL_BEAT_SCHEDULER);
            if (msgl__channel_recv(f.at[i].engine, 0, &m) != 1) continue;
            assert_int_equal(m.type, MSGL_MSG_REQUEST);
            engine_token(&f.at[i], m.u.request.uid, 'x', MSGL_FINISH_LENGTH);
            answered++;
        }
        if (turn % 20 == 0) all = health(&f, "serving") == REPLICAS;
        usleep(10000);
    }
    // Replica 0 has the two that were sent to it.
    assert_false(all);
    assert_int_equal(answered, CLIENTS - 2);
    uint64_t uid[2];
    for (int k = 0; k < 2; k++) {
        uid[k] = engine_expect(&f.at[0], MSGL_MSG_REQUEST).u.request.uid;
    }
    engine_expect_nothing(&f.at[0]);
    for (int k = 0; k < 2; k++) engine_token(&f.at[0], uid[k], 'x', MSGL_FINISH_LENGTH);
    for (int i = 0; i < CLIENTS; i++) {
        expect_status(client_read(fd[i]), 200);
        close(fd[i]);
    }
    for (int i = 0; i < 1000 && health(&f, "serving") < REPLICAS; i++) {
        for (int k = 0; k < REPLICAS; k++) msgl__beat(beats[k], MSGL_BEAT_COMPUTE);
        usleep(10000);
    }
    assert_int_equal(serve(&f, 'a', "") + serve(&f, 'a', "") + serve(&f, 'a', ""), 0 + 1 + 2);
    server_close(&f.s);
    for (int i = 0; i < REPLICAS; i++) msgl__heartbeat_destroy(beats[i]);
}

// Until the front has had no sign of life of this one for two seconds; all others beat.
static void await_silence(fleet *f, msgl_heartbeat *const *beats, int silent, int serving)
{
    for (int i = 0; i < 1500; i++) {
        for (int k = 0; k < REPLICAS; k++) {
            if (k != silent) msgl__beat(beats[k], MSGL_BEAT_SCHEDULER);
        }
        if (i % 20 == 0 && health(f, "serving") == serving) return;
        usleep(10000);
    }
    fail_msg("engine %d is not missed", silent);
}

static int post(const fleet *f, char letter)
{
    char body[256];
    body_of(letter, "", body);
    const int fd = client_open(&f->s);
    client_post(fd, "/v1/completions", body);
    return fd;
}

// An engine that hung between two steps has begun nothing of what it was sent since: that goes to
// another engine when it ends, but only once. What it had begun, or had in a step, is lost.
static void test_hang_and_end(void **state)
{
    (void)state;
    fleet f;
    msgl_heartbeat *beats[REPLICAS];
    msgl_err err;
    for (int i = 0; i < REPLICAS; i++) assert_int_equal(msgl__heartbeat_create(&beats[i], &err), 0);
    msgl_front_config cfg = msgl__front_config_default();
    cfg.heartbeats = beats;
    cfg.max_silence_s = 2;
    cfg.routing = MSGL_ROUTING_ROUND_ROBIN;
    open_fleet(&f, cfg, 16);
    uint64_t uid, begun_uid, again;
    const int fd = post(&f, 'a');
    const int first = find_request(&f, &uid);
    for (int i = 1; i < REPLICAS; i++) (void)serve(&f, 'b', "");
    const int begun = post(&f, 'c');
    assert_int_equal(find_request(&f, &begun_uid), first);
    engine_token(&f.at[first], begun_uid, 'x', MSGL_FINISH_NONE);
    await_silence(&f, beats, first, REPLICAS - 1);
    kill_engine(&f, first);
    response r = client_read(begun);
    expect_error(&r, 500, "engine_stopped");
    close(begun);
    const int second = find_request(&f, &again);
    assert_int_not_equal(second, first);
    assert_true(again != uid);
    await_silence(&f, beats, second, REPLICAS - 2);
    kill_engine(&f, second);
    r = client_read(fd);
    expect_error(&r, 500, "engine_stopped");
    close(fd);
    const int in_step = post(&f, 'b');
    const int third = find_request(&f, &uid);
    msgl__heartbeat_begin(beats[third], 0);
    await_silence(&f, beats, third, 0);
    kill_engine(&f, third);
    r = client_read(in_step);
    expect_error(&r, 500, "engine_stopped");
    close(in_step);
    server_close(&f.s);
    for (int i = 0; i < REPLICAS; i++) msgl__heartbeat_destroy(beats[i]);
}

static json_int_t number(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    assert_true(json_is_integer(v));
    return json_integer_value(v);
}

// Counters are added up and said of each engine; one that ends while it is asked is left out.
static void test_stats(void **state)
{
    (void)state;
    fleet f;
    open_fleet(&f, msgl__front_config_default(), 16);
    for (int round = 0; round < 2; round++) {
        const int fd = client_open(&f.s);
        client_send(fd, "GET /get_server_info HTTP/1.1\r\nHost: x\r\n\r\n");
        for (int i = 0; i < REPLICAS - round; i++) {
            (void)engine_expect(&f.at[i], MSGL_MSG_GET_STATS);
        }
        for (int i = REPLICAS - round; i-- > 0;) {
            const msgl_msg_stats s = {.step = 1u << i, .running = 1 + i, .total_pages = 100};
            const msgl_msg m = {.type = MSGL_MSG_STATS, .u.stats = s};
            if (i == 1 && round == 1) {
                kill_engine(&f, 1);
            } else {
                assert_int_equal(msgl__channel_send(f.at[i].engine, &m), 0);
            }
            if (i == 2) kill_engine(&f, 2); // it has answered
        }
        response r = client_read(fd);
        assert_int_equal(r.status, 200);
        json_t *j = json_loadb(r.body, r.len, 0, NULL);
        const json_t *sum = json_object_get(j, "stats"), *each = json_object_get(j, "replicas");
        assert_int_equal(number(sum, "step"), round == 0 ? 7 : 1);
        assert_int_equal(number(sum, "running"), round == 0 ? 6 : 1);
        assert_int_equal(number(sum, "total_pages"), round == 0 ? 300 : 100);
        assert_int_equal(json_array_size(each), REPLICAS);
        for (size_t i = 0; i < REPLICAS; i++) {
            const json_t *one = json_array_get(each, i), *stats = json_object_get(one, "stats");
            assert_int_equal(number(one, "load"), 0);
            if (round == 1 && i > 0) {
                assert_null(stats);
                assert_true(json_is_false(json_object_get(one, "serving")));
            } else {
                assert_int_equal(number(stats, "running"), 1 + i);
            }
        }
        json_decref(j);
        response_free(&r);
        close(fd);
        await_serving(&f, REPLICAS - 1 - round);
    }
    server_close(&f.s);
}

// Each engine's tree is kept until the last has answered; one that ends meanwhile is left out, and
// what is still waited for when the server ends is freed.
static void test_trees(void **state)
{
    (void)state;
    fleet f;
    open_fleet(&f, msgl__front_config_default(), 16);
    static const msgl_tree_run runs[] = {{-1, 32, 0, 7}, {0, 16, 0, 1}};
    const msgl_msg m = {.type = MSGL_MSG_TREE, .u.tree = {true, 48, 2, runs}};
    const int fd = client_open(&f.s);
    client_send(fd, "GET /radix_tree HTTP/1.1\r\nHost: x\r\n\r\n");
    for (int i = 0; i < REPLICAS; i++) (void)engine_expect(&f.at[i], MSGL_MSG_GET_TREE);
    assert_int_equal(msgl__channel_send(f.at[2].engine, &m), 0);
    kill_engine(&f, 1);
    assert_int_equal(msgl__channel_send(f.at[0].engine, &m), 0);
    response r = client_read(fd);
    json_t *j = json_loadb(r.body, r.len, 0, NULL);
    const json_t *each = json_object_get(j, "replicas");
    assert_int_equal(json_array_size(each), REPLICAS - 1);
    for (size_t i = 0; i < REPLICAS - 1; i++) {
        const json_t *one = json_array_get(each, i);
        assert_int_equal(number(one, "replica"), 2 * i);
        assert_int_equal(json_array_size(json_object_get(one, "nodes")), 2);
    }
    json_decref(j);
    response_free(&r);
    client_send(fd, "GET /radix_tree HTTP/1.1\r\nHost: x\r\n\r\n");
    (void)engine_expect(&f.at[0], MSGL_MSG_GET_TREE);
    (void)engine_expect(&f.at[2], MSGL_MSG_GET_TREE);
    assert_int_equal(msgl__channel_send(f.at[2].engine, &m), 0);
    close(fd);
    server_close(&f.s);
}

// GET /get_load as routers read it: what each engine has, and what waits for it here.
static void test_load(void **state)
{
    (void)state;
    enum { CLIENTS = 9 };
    fleet f;
    open_fleet(&f, msgl__front_config_default(), 1);
    int fd[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        char body[256];
        body_of((char)('a' + i), "", body);
        fd[i] = client_open(&f.s);
        client_post(fd[i], "/v1/completions", body);
    }
    for (int i = 0; i < REPLICAS; i++) {
        for (int k = 0; k < 2; k++) (void)engine_expect(&f.at[i], MSGL_MSG_REQUEST);
        engine_expect_nothing(&f.at[i]); // so that all have arrived
    }
    const int asks = client_open(&f.s);
    client_send(asks, "GET /get_load HTTP/1.1\r\nHost: x\r\n\r\n");
    for (int i = 0; i < REPLICAS; i++) {
        (void)engine_expect(&f.at[i], MSGL_MSG_GET_STATS);
        const msgl_msg m = {.type = MSGL_MSG_STATS, .u.stats = {.running = 1, .waiting = 1}};
        if (i == 1) kill_engine(&f, 1);
        if (i != 1) assert_int_equal(msgl__channel_send(f.at[i].engine, &m), 0);
    }
    response r = client_read(asks);
    assert_int_equal(r.status, 200);
    json_t *j = json_loadb(r.body, r.len, 0, NULL);
    assert_int_equal(json_array_size(j), REPLICAS - 1);
    json_int_t requests = 0, tokens = 0;
    for (size_t i = 0; i < REPLICAS - 1; i++) {
        const json_t *one = json_array_get(j, i);
        assert_int_equal(number(one, "dp_rank"), 2 * i);
        requests += number(one, "num_reqs");
        tokens += number(one, "num_tokens");
        assert_int_equal(number(one, "num_waiting_reqs"), number(one, "num_reqs") - 1);
    }
    // All but the two that the lost engine had; each is 40 tokens, and 2 more where it was sent.
    assert_int_equal(requests, CLIENTS - 2);
    assert_int_equal(tokens, 40 * (CLIENTS - 2) + 2 * 4);
    json_decref(j);
    response_free(&r);
    close(asks);
    for (int i = 0; i < CLIENTS; i++) close(fd[i]);
    server_close(&f.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix),        cmocka_unit_test(test_round_robin),
        cmocka_unit_test(test_batch),         cmocka_unit_test(test_abort),
        cmocka_unit_test(test_abort_request), cmocka_unit_test(test_death),
        cmocka_unit_test(test_hang),          cmocka_unit_test(test_stats),
        cmocka_unit_test(test_trees),         cmocka_unit_test(test_load),
        cmocka_unit_test(test_hang_and_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
