// SPDX-License-Identifier: Apache-2.0
//
// The benchmark's client against the front: what it counts is what the engine made; and its HTTP
// and SSE readers on answers cut at every byte.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/mem.h"
#include "apps/bench/serve_load.h"
#include "http/client.h"
#include "server/fixture.h"

typedef struct engine_thread {
    server_fixture *s;
    atomic_bool stop;
    int refuse_every; // the n-th request ends with an error; 0: none
    int gather;       // answers nobody before it has this many requests
    int32_t letter;   // what it answers with; 0 is a zero byte
    bool endless;     // answers until it is told to stop, two tokens an event
    int seen, num_held;
    uint64_t held[64];
    int aborted;        // endless: requests it was told to stop
    int32_t max_tokens; // endless: of the last request
} engine_thread;

static void answer(engine_thread *t, uint64_t uid, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        engine_token(t->s, uid, t->letter, i + 1 == n ? MSGL_FINISH_LENGTH : MSGL_FINISH_NONE);
    }
}

// One more event, of two tokens, for each request that was not aborted.
static void endless_step(engine_thread *t, const msgl_msg *m)
{
    if (m != NULL && m->type == MSGL_MSG_REQUEST) {
        t->max_tokens = m->u.request.sampling.max_tokens;
        t->held[t->num_held++] = m->u.request.uid;
    }
    for (int i = 0; m != NULL && m->type == MSGL_MSG_ABORT && i < t->num_held; i++) {
        if (t->held[i] != m->u.abort_uid) continue;
        t->held[i] = t->held[--t->num_held];
        t->aborted++;
    }
    for (int i = 0; m == NULL && i < t->num_held; i++) {
        const msgl_token_event e = {.uid = t->held[i],
                                    .tokens = (const int32_t[]){'a', 'b'},
                                    .num_tokens = 2,
                                    .cached_tokens = 2};
        engine_send_event(t->s, &e);
    }
}

static void *endless_engine(void *arg)
{
    engine_thread *t = arg;
    msgl_msg m;
    while (!atomic_load(&t->stop) || t->num_held > 0) {
        const int rc = msgl__channel_recv(t->s->engine, 1, &m);
        if (rc < 0) break;
        endless_step(t, rc == 1 ? &m : NULL);
    }
    return NULL;
}

// Answers every request with max_tokens letters.
static void *engine(void *arg)
{
    engine_thread *t = arg;
    msgl_msg m;
    while (!atomic_load(&t->stop)) {
        if (msgl__channel_recv(t->s->engine, 10, &m) != 1 || m.type != MSGL_MSG_REQUEST) continue;
        const uint64_t uid = m.u.request.uid;
        const int32_t n = m.u.request.sampling.max_tokens;
        if (t->refuse_every > 0 && ++t->seen % t->refuse_every == 0) {
            const msgl_token_event e = {.uid = uid,
                                        .finish = MSGL_FINISH_ERROR,
                                        .status = MSGL_EINVAL,
                                        .text = "not this one"};
            engine_send_event(t->s, &e);
            continue;
        }
        if (t->num_held < t->gather) {
            t->held[t->num_held++] = uid;
            for (int i = 0; t->num_held == t->gather && i < t->gather; i++) {
                answer(t, t->held[i], n);
            }
            continue;
        }
        answer(t, uid, n);
    }
    return NULL;
}

static int run_bench(engine_thread *t, msgl_bench_serve_config *cfg, msgl_bench_serve_result *out,
                     msgl_err *err)
{
    server_fixture s;
    server_open(&s, NULL, true);
    t->s = &s;
    if (t->letter == 0) t->letter = 'a';
    if (t->letter < 0) t->letter = 0;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, t->endless ? endless_engine : engine, t), 0);
    char url[64];
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%d%s", s.port,
                   cfg->requests % 2 == 0 ? "/v1/" : "");
    cfg->url = url;
    cfg->vocab_size = 256;
    const int rc = msgl__bench_serve(cfg, out, err);
    atomic_store(&t->stop, true);
    pthread_join(thread, NULL);
    server_close(&s);
    return rc;
}

static void test_counts(void **state)
{
    (void)state;
    for (int requests = 20; requests < 22; requests++) {
        engine_thread t = {0};
        msgl_err err = {0};
        msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
        cfg.concurrency = 4;
        cfg.requests = requests;
        cfg.max_tokens = 10;
        cfg.prompt_tokens = 50;
        msgl_bench_serve_result r;
        if (run_bench(&t, &cfg, &r, &err) != 0) fail_msg("%s", err.text);
        assert_int_equal(r.completed, requests);
        assert_int_equal(r.failed, 0);
        assert_int_equal(r.output_tokens, 10 * requests);
        assert_int_equal(r.prompt_tokens, 50 * requests);
        assert_int_equal(r.cached_tokens, 2 * requests); // the scripted engine says 2 each
        assert_true(r.ttft.p50 > 0 && r.ttft.p50 <= r.ttft.p99 && r.ttft.p99 <= r.ttft.max);
        assert_true(r.e2e.p50 >= r.ttft.p50);
        assert_true(r.wall_s > 0 && r.output_tok_per_s > 0);
        assert_true(r.client_core > 0 && r.client_core <= 1.1);
    }
}

// Clients that ask for all that the context leaves and hang up: what counts is tokens, and not
// events; every request is aborted.
static void test_open_ended(void **state)
{
    (void)state;
    engine_thread t = {.endless = true};
    msgl_err err = {0};
    msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
    cfg.concurrency = 3;
    cfg.requests = 20;
    cfg.max_tokens = 7;
    cfg.prompt_tokens = 50;
    cfg.open_ended = true;
    msgl_bench_serve_result r;
    if (run_bench(&t, &cfg, &r, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(r.completed, 20);
    assert_int_equal(r.failed, 0);
    assert_int_equal(r.output_tokens, 8 * 20); // the fourth event brings two
    assert_int_equal(r.prompt_tokens, 50 * 20);
    assert_int_equal(r.cached_tokens, 2 * 20);
    assert_true(r.ttft.p50 > 0 && r.gap.max > 0 && r.e2e.p50 >= r.ttft.p50);
    assert_int_equal(t.aborted, 20);
    assert_int_equal(t.num_held, 0);
    assert_int_equal(t.max_tokens, CONTEXT - 50);
}

static void test_all_clients_start_at_once(void **state)
{
    (void)state;
    engine_thread t = {.gather = 40};
    msgl_err err = {0};
    msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
    cfg.concurrency = 40;
    cfg.requests = 90;
    cfg.max_tokens = 2;
    msgl_bench_serve_result r;
    if (run_bench(&t, &cfg, &r, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(r.completed, 90);
}

// A token that is a zero byte comes as "\u0000", which is no error.
static void test_a_zero_byte_is_text(void **state)
{
    (void)state;
    engine_thread t = {.letter = -1};
    msgl_err err = {0};
    msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
    cfg.concurrency = 1;
    cfg.requests = 2;
    cfg.max_tokens = 3;
    msgl_bench_serve_result r;
    if (run_bench(&t, &cfg, &r, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(r.completed, 2);
    assert_int_equal(r.output_tokens, 6);
}

static void test_failures_are_counted(void **state)
{
    (void)state;
    engine_thread t = {.refuse_every = 5};
    msgl_err err = {0};
    msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
    cfg.requests = 20;
    cfg.max_tokens = 3;
    msgl_bench_serve_result r;
    if (run_bench(&t, &cfg, &r, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(r.completed, 16);
    assert_int_equal(r.failed, 4);
    assert_non_null(strstr(r.first_error, "not this one"));
}

static bool not_further(void *ctx, int done, int total)
{
    (void)ctx;
    (void)done;
    (void)total;
    return false;
}

static void test_can_be_interrupted(void **state)
{
    (void)state;
    engine_thread t = {.gather = 64}; // more than there are clients: nobody is answered
    msgl_err err = {0};
    msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
    cfg.progress = not_further;
    msgl_bench_serve_result r;
    assert_int_equal(run_bench(&t, &cfg, &r, &err), MSGL_EABORTED);
}

// --- a server that says what it is told to ---

typedef struct stub {
    int listen_fd, port;
    pthread_t thread;
    const char *pieces[8]; // of the answer to a POST
    int pause_ms;          // before each piece but the first
    bool hangs_up;         // after each answer, without a word about it
    bool no_context;       // its list of models does not name it
    int posts;             // requests seen; read after join
    char bodies[4][4096];  // their bodies
} stub;

// Reads one request; its body's length, or -1 at the end of the connection.
static int read_request(int fd, char *body, size_t size, bool *post)
{
    char buf[16384];
    size_t n = 0;
    for (;;) {
        const ssize_t got = recv(fd, buf + n, sizeof buf - 1 - n, 0);
        if (got <= 0) return -1;
        n += (size_t)got;
        buf[n] = '\0';
        const char *end = strstr(buf, "\r\n\r\n"), *length = strstr(buf, "Content-Length: ");
        if (end == NULL) continue;
        const size_t want = length == NULL ? 0 : (size_t)atoi(length + 16);
        *post = length != NULL;
        if (n < (size_t)(end + 4 - buf) + want) continue;
        (void)snprintf(body, size, "%s", end + 4);
        return (int)want;
    }
}

static void *run_stub(void *arg)
{
    stub *s = arg;
    const char *models = s->no_context ? "HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n"
                                         "{\"data\":[{\"id\":\"stub\"}]}"
                                       : "HTTP/1.1 200 OK\r\nContent-Length: 44\r\n\r\n"
                                         "{\"data\":[{\"id\":\"stub\",\"max_model_len\":100}]}";
    for (int fd; (fd = accept(s->listen_fd, NULL, NULL)) >= 0; close(fd)) {
        char body[4096];
        bool post;
        while (read_request(fd, body, sizeof body, &post) >= 0) {
            if (!post) {
                (void)send(fd, models, strlen(models), MSG_NOSIGNAL);
                continue;
            }
            if (s->posts < 4) memcpy(s->bodies[s->posts], body, sizeof body);
            s->posts++;
            for (int i = 0; s->pieces[i] != NULL; i++) {
                if (i > 0) usleep((useconds_t)s->pause_ms * 1000);
                (void)send(fd, s->pieces[i], strlen(s->pieces[i]), MSG_NOSIGNAL);
            }
            if (s->hangs_up) break;
        }
    }
    return NULL;
}

static int bench_stub(stub *s, msgl_bench_serve_config *cfg, msgl_bench_serve_result *r,
                      msgl_err *err)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    s->listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(s->listen_fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s->listen_fd, 8), 0);
    assert_int_equal(getsockname(s->listen_fd, (struct sockaddr *)&a, &len), 0);
    char url[64];
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%d", ntohs(a.sin_port));
    cfg->url = url;
    cfg->concurrency = 1;
    assert_int_equal(pthread_create(&s->thread, NULL, run_stub, s), 0);
    const int rc = msgl__bench_serve(cfg, r, err);
    (void)shutdown(s->listen_fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->listen_fd);
    return rc;
}

#define STREAM_HEAD "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"

// An event without text is a token that has none yet: it is timed like any other. The one with
// usage alone is not a token.
static void test_events_without_text_are_timed(void **state)
{
    (void)state;
    stub s = {.pieces = {STREAM_HEAD "\r\n", "data: {\"choices\":[{\"text\":\"\"}]}\n\n",
                         "data: {\"choices\":[{\"text\":\"a\"}]}\n\n",
                         "data: {\"choices\":[{\"text\":\"\"}]}\n\n",
                         "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7}}\n\n",
                         "data: [DONE]\n\n"},
              .pause_ms = 200,
              .hangs_up = true};
    msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
    msgl_bench_serve_result r;
    msgl_err err = {0};
    cfg.requests = 1;
    if (bench_stub(&s, &cfg, &r, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(r.output_tokens, 3); // no completion_tokens: the events
    assert_int_equal(r.prompt_tokens, 7);
    assert_true(r.ttft.p50 >= 199 && r.e2e.p50 >= 999);
    // A reader that was late for the event before sees a shorter gap: on a busy machine by more
    // than the 1 ms of 40 that there was room for once.
    assert_true(r.gap.p50 >= 39);
    assert_true(r.e2e.p50 >= r.ttft.p50 + 2 * 39 + 2 * 39);
}

// Servers may close a kept connection at any time: the request is sent again, and counted once.
static void test_a_closed_connection_is_opened_again(void **state)
{
    (void)state;
    stub s = {.pieces = {STREAM_HEAD "Content-Length: 48\r\n\r\n"
                                     "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: [DONE]\n\n"},
              .hangs_up = true};
    msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
    msgl_bench_serve_result r;
    msgl_err err = {0};
    cfg.requests = 3;
    cfg.prompt_tokens = 5;
    cfg.sampling_seed = 40;
    cfg.first_index = 2;
    if (bench_stub(&s, &cfg, &r, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(r.completed, 3);
    assert_int_equal(r.failed, 0);
    assert_int_equal(s.posts, 3);
    assert_non_null(strstr(s.bodies[0], "\"seed\":42,"));
    assert_non_null(strstr(s.bodies[2], "\"seed\":44,"));
    assert_non_null(strstr(s.bodies[0], "\"prompt\":["));
    assert_string_not_equal(strchr(s.bodies[0], '['), strchr(s.bodies[1], '['));
}

// Servers without usage in every event: events count. One that ends by itself is no failure, one
// that refuses is, with its own words.
static void test_open_ended_against_others(void **state)
{
    (void)state;
    static const struct {
        const char *answer, *error;
        int tokens;
    } cases[] = {
#define EVENT "data: {\"choices\":[{\"text\":\"a\"}]}\n\n"
        {STREAM_HEAD "\r\n" EVENT EVENT EVENT EVENT EVENT, NULL, 3},
        {STREAM_HEAD "\r\n" EVENT EVENT "data: [DONE]\n\n", NULL, 2},
        {STREAM_HEAD "\r\n" EVENT EVENT, "the stream ended early", 0},
        {"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nbusy", "HTTP 429: busy", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stub s = {.pieces = {cases[i].answer}, .hangs_up = true};
        msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
        msgl_bench_serve_result r;
        msgl_err err = {0};
        cfg.requests = 2;
        cfg.prompt_tokens = 5;
        cfg.max_tokens = 3;
        cfg.open_ended = true;
        const int rc = bench_stub(&s, &cfg, &r, &err);
        if (rc != (cases[i].error == NULL ? 0 : MSGL_EIO)) fail_msg("case %zu: %s", i, err.text);
        if (cases[i].error != NULL) assert_non_null(strstr(err.text, cases[i].error));
        assert_int_equal(r.failed, cases[i].error == NULL ? 0 : 2);
        assert_int_equal(r.output_tokens, 2 * cases[i].tokens);
        assert_int_equal(s.posts, 2);
        assert_non_null(strstr(s.bodies[0], "\"max_tokens\":95,"));
        assert_non_null(strstr(s.bodies[0], "\"continuous_usage_stats\":true"));
    }
}

static void test_open_ended_needs_room(void **state)
{
    (void)state;
    for (int no_context = 0; no_context < 2; no_context++) {
        stub s = {.pieces = {STREAM_HEAD "\r\n" EVENT}, .hangs_up = true};
        msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
        msgl_bench_serve_result r;
        msgl_err err = {0};
        s.no_context = no_context == 1;
        cfg.prompt_tokens = 60;
        cfg.max_tokens = 40;
        cfg.open_ended = true;
        assert_int_equal(bench_stub(&s, &cfg, &r, &err),
                         no_context ? MSGL_EUNSUPPORTED : MSGL_EINVAL);
        assert_non_null(strstr(err.text, no_context ? "max_model_len" : "fewer than 100 together"));
        assert_int_equal(s.posts, 0);
    }
}

static void test_wrong_answers(void **state)
{
    (void)state;
    static const struct {
        const char *answer, *error;
    } cases[] = {
        {"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone", "HTTP 404: gone"},
        {STREAM_HEAD "Content-Length: 10\r\n\r\ndata: {}\n\n", "the stream ended early"},
        {STREAM_HEAD "Content-Length: 9\r\n\r\ndata: x\n\n", "not JSON"},
        {STREAM_HEAD "Content-Length: 99\r\n\r\ndata: {}\n\n", "the answer ended early"},
        {"SSH-2.0\r\n\r\n", "no HTTP answer: 'SSH-2.0'"},
        {STREAM_HEAD "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "chunk size"},
        {"", "closed the connection"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stub s = {.pieces = {cases[i].answer}, .hangs_up = true};
        msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
        msgl_bench_serve_result r;
        msgl_err err = {0};
        cfg.requests = 2;
        assert_int_equal(bench_stub(&s, &cfg, &r, &err), MSGL_EIO);
        if (strstr(err.text, cases[i].error) == NULL) fail_msg("%s: %s", cases[i].error, err.text);
        assert_int_equal(r.failed, 2);
    }
}

static void test_a_silent_server(void **state)
{
    (void)state;
    stub s = {.pieces = {STREAM_HEAD "\r\n", "data: {\"choices\":[{\"text\":\"\"}]}\n\n"},
              .pause_ms = 1500};
    msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
    msgl_bench_serve_result r;
    msgl_err err = {0};
    cfg.requests = 1;
    cfg.timeout_ms = 200;
    assert_int_equal(bench_stub(&s, &cfg, &r, &err), MSGL_EIO);
    assert_non_null(strstr(err.text, "nothing came in 200 ms"));
    assert_true(r.wall_s < 1.4);
}

static void test_no_server(void **state)
{
    (void)state;
    msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
    msgl_bench_serve_result r;
    msgl_err err;
    cfg.url = "http://127.0.0.1:1";
    assert_int_equal(msgl__bench_serve(&cfg, &r, &err), MSGL_EIO);
    assert_non_null(strstr(err.text, "cannot connect"));
    cfg.url = "https://x";
    assert_int_equal(msgl__bench_serve(&cfg, &r, &err), MSGL_EUNSUPPORTED);
    cfg.concurrency = 0;
    assert_int_equal(msgl__bench_serve(&cfg, &r, &err), MSGL_EINVAL);
}

static void test_urls(void **state)
{
    (void)state;
    static const struct {
        const char *url, *host, *port, *path;
    } good[] = {
        {"http://h", "h", "80", ""},
        {"http://127.0.0.1:1919/", "127.0.0.1", "1919", ""},
        {"http://h:8000/v1/", "h", "8000", "/v1"},
        {"HTTP://h/a/b?q", "h", "80", "/a/b"},
        {"http://[::1]:99/v1", "::1", "99", "/v1"},
    };
    static const char *const bad[] = {"", "h:80", "http://", "http://:80", "http://h:", "ftp://h"};
    msgl_url u;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(msgl__url_parse(good[i].url, &u, NULL), 0);
        assert_string_equal(u.host, good[i].host);
        assert_string_equal(u.port, good[i].port);
        assert_string_equal(u.path, good[i].path);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(msgl__url_parse(bad[i], &u, NULL), MSGL_EINVAL);
    }
}

static int note_data(void *ctx, const char *data, size_t len)
{
    return msgl__strbuf_add(ctx, data, len);
}

// Three answers on one connection, cut at every byte: each is found whole, and ends where it ends.
static void test_answers_in_pieces(void **state)
{
    (void)state;
    static const char stream[] =
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        "5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nTrailer: t\r\n\r\n"
        "HTTP/1.1 404 Not Found\nContent-Length:  3\n\nabcHTTP/1.1 204 No Content\r\n\r\n"
        "HTTP/1.0 200 OK\r\n\r\nto the end";
    static const int statuses[] = {200, 404, 204, 200};
    static const char *const bodies[] = {"hello!", "abc", "", "to the end"};
    static const bool keep[] = {true, true, true, false};
    const size_t n = sizeof stream - 1;
    for (size_t step = 1; step <= n; step++) {
        msgl_strbuf body;
        msgl_answer a;
        size_t at = 0, used = 0;
        msgl__strbuf_init(&body, 1000);
        msgl__answer_init(&a, note_data, &body);
        for (int i = 0; i < 4; i++) {
            msgl__answer_begin(&a);
            msgl__strbuf_clear(&body);
            while (a.state != MSGL_ANSWER_DONE && at < n) {
                const size_t len = step < n - at ? step : n - at;
                assert_int_equal(msgl__answer_feed(&a, stream + at, len, &used, NULL), 0);
                at += used;
            }
            assert_int_equal(msgl__answer_end(&a, NULL), 0);
            assert_int_equal(a.status, statuses[i]);
            assert_string_equal(msgl__strbuf_str(&body), bodies[i]);
            assert_int_equal(a.keep, keep[i]);
        }
        msgl__answer_free(&a);
        msgl__strbuf_free(&body);
    }
}

static int note_event(void *ctx, const char *data, size_t len)
{
    int rc = msgl__strbuf_add(ctx, data, len);
    return rc == 0 ? msgl__strbuf_addc(ctx, '|') : rc;
}

static void test_sse_reader(void **state)
{
    (void)state;
    static const char stream[] = "data: a\n\n: comment\n\ndata:b\r\ndata: c\r\n\r\nevent: x\n"
                                 "data: \n\ndata:  d\r\rid: 1\n\ndata: not finished";
    const size_t n = sizeof stream - 1;
    for (size_t i = 0; i <= n; i++) {
        for (size_t j = i; j <= n; j += 7) {
            msgl_strbuf got;
            msgl__strbuf_init(&got, 1000);
            msgl_sse_reader r;
            msgl__sse_reader_init(&r, note_event, &got);
            assert_int_equal(msgl__sse_reader_feed(&r, stream, i), 0);
            assert_int_equal(msgl__sse_reader_feed(&r, stream + i, j - i), 0);
            assert_int_equal(msgl__sse_reader_feed(&r, stream + j, n - j), 0);
            assert_string_equal(msgl__strbuf_str(&got), "a|b\nc|| d|");
            msgl__sse_reader_free(&r);
            msgl__strbuf_free(&got);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_open_ended),
        cmocka_unit_test(test_open_ended_against_others),
        cmocka_unit_test(test_open_ended_needs_room),
        cmocka_unit_test(test_all_clients_start_at_once),
        cmocka_unit_test(test_a_zero_byte_is_text),
        cmocka_unit_test(test_failures_are_counted),
        cmocka_unit_test(test_can_be_interrupted),
        cmocka_unit_test(test_events_without_text_are_timed),
        cmocka_unit_test(test_a_closed_connection_is_opened_again),
        cmocka_unit_test(test_wrong_answers),
        cmocka_unit_test(test_a_silent_server),
        cmocka_unit_test(test_no_server),
        cmocka_unit_test(test_urls),
        cmocka_unit_test(test_answers_in_pieces),
        cmocka_unit_test(test_sse_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
