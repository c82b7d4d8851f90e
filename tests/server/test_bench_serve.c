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
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/mem.h"
#include "server/bench_serve.h"
#include "server/client.h"
#include "server/fixture.h"

typedef struct engine_thread {
    server_fixture *s;
    atomic_bool stop;
    int refuse_every; // the n-th request ends with an error; 0: none
    int seen;
} engine_thread;

// Answers every request at once with max_tokens letters.
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
                                        .token = -1,
                                        .finish = MSGL_FINISH_ERROR,
                                        .status = MSGL_EINVAL,
                                        .text = "not this one"};
            engine_send_event(t->s, &e);
            continue;
        }
        for (int32_t i = 0; i < n; i++) {
            engine_token(t->s, uid, 'a', i + 1 == n ? MSGL_FINISH_LENGTH : MSGL_FINISH_NONE);
        }
    }
    return NULL;
}

static void run_bench(engine_thread *t, msgl_bench_serve_config *cfg, msgl_bench_serve_result *out)
{
    server_fixture s;
    server_open(&s, NULL, true);
    t->s = &s;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, engine, t), 0);
    char url[64];
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%d%s", s.port,
                   cfg->vocab_size > 0 ? "/v1/" : "");
    cfg->url = url;
    msgl_err err = {0};
    if (msgl__bench_serve(cfg, out, &err) != 0) fail_msg("%s", err.text);
    atomic_store(&t->stop, true);
    pthread_join(thread, NULL);
    server_close(&s);
}

static void test_counts(void **state)
{
    (void)state;
    for (int ids = 0; ids < 2; ids++) {
        engine_thread t = {0};
        msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
        cfg.concurrency = 4;
        cfg.requests = 20;
        cfg.max_tokens = 10;
        cfg.prompt_tokens = 50;
        cfg.vocab_size = ids ? 256 : 0;
        msgl_bench_serve_result r;
        run_bench(&t, &cfg, &r);
        assert_int_equal(r.completed, 20);
        assert_int_equal(r.failed, 0);
        assert_int_equal(r.output_tokens, 200);
        if (ids) assert_int_equal(r.prompt_tokens, 1000);
        assert_int_equal(r.cached_tokens, 40); // the scripted engine says 2 each
        assert_true(r.ttft.p50 > 0 && r.ttft.p50 <= r.ttft.p95 && r.ttft.p95 <= r.ttft.max);
        assert_true(r.e2e.p50 >= r.ttft.p50);
        assert_true(r.wall_s > 0 && r.output_tok_per_s > 0);
    }
}

static void test_failures_are_counted(void **state)
{
    (void)state;
    engine_thread t = {.refuse_every = 5};
    msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
    cfg.requests = 20;
    cfg.max_tokens = 3;
    msgl_bench_serve_result r;
    run_bench(&t, &cfg, &r);
    assert_int_equal(r.completed, 16);
    assert_int_equal(r.failed, 4);
    assert_non_null(strstr(r.first_error, "not this one"));
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
        cmocka_unit_test(test_counts),     cmocka_unit_test(test_failures_are_counted),
        cmocka_unit_test(test_no_server),  cmocka_unit_test(test_urls),
        cmocka_unit_test(test_sse_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
