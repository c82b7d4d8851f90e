// SPDX-License-Identifier: Apache-2.0
//
// `minisgl serve` as a user starts it, with the model that ships: what clients see whole and
// streamed; that clients who vanish in any phase leave nothing behind in the KV pool; that hostile
// requests neither stop it nor change a neighbour's greedy answer by a byte; that it survives its
// engine, or one of several; that it ends with status 0. argv: the program, the model folder.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/mem.h"
#include "apps/bench/serve_load.h"
#include "server/fixture.h"
#include "http/tcp_socket.h"
#include "utils/clock.h"
#include "utils/file.h"

static const char *program, *model;

typedef struct server {
    pid_t pid;
    int out;
    server_fixture at; // only its port is used
} server;

// With this model, and these options (NULL ends them) behind those of all tests.
static void start_with(server *s, const char *path, const char *const *more)
{
    enum { MAX_ARGS = 32 };
    const char *argv[MAX_ARGS] = {program,
                                  "serve",
                                  "--model",
                                  path,
                                  "--port",
                                  "0",
                                  "--num-pages",
                                  "6000",
                                  "--max-running-requests",
                                  "4",
                                  "--max-prefill-length",
                                  "256"};
    int n = 12;
    for (; *more != NULL; more++) {
        assert_true(n < MAX_ARGS - 1);
        argv[n++] = *more;
    }
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); // the server must not outlive a test that fails
        dup2(fd[1], STDOUT_FILENO);
        close(fd[0]);
        close(fd[1]);
        execv(program, (char *const *)argv);
        _exit(127);
    }
    close(fd[1]);
    s->out = fd[0];
    msgl_strbuf line;
    msgl__strbuf_init(&line, 4096);
    char c;
    alarm(120);
    while (read(s->out, &c, 1) == 1 && c != '\n') msgl__strbuf_addc(&line, c);
    alarm(0);
    const char *url = strstr(msgl__strbuf_str(&line), "http://127.0.0.1:");
    if (url == NULL) fail_msg("no address in '%s'", msgl__strbuf_str(&line));
    s->at.port = atoi(url + strlen("http://127.0.0.1:"));
    msgl__strbuf_free(&line);
}

static void start(server *s, const char *const *more)
{
    start_with(s, model, more);
}

static void stop(server *s)
{
    int status;
    kill(s->pid, SIGTERM);
    alarm(60);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    alarm(0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    close(s->out);
}

static int setup(void **state)
{
    static server s;
    start(&s, (const char *const[]){NULL});
    *state = &s;
    return 0;
}

static int teardown(void **state)
{
    stop(*state);
    return 0;
}

static json_t *post(server *s, const char *path, const char *body, int status)
{
    response r = client_request(&s->at, "POST", path, body);
    if (r.status != status) fail_msg("%d instead of %d: %.300s", r.status, status, r.body);
    json_t *j = json_loadb(r.body, r.len, 0, NULL);
    assert_non_null(j);
    response_free(&r);
    return j;
}

static const char greedy[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 2 + 3?\"}],"
                             "\"temperature\":0,\"max_tokens\":40}";

// The greedy answer to a fixed question, into buf.
static void ask(server *s, char buf[1024])
{
    json_t *j = post(s, "/v1/chat/completions", greedy, 200);
    const json_t *c = json_array_get(json_object_get(j, "choices"), 0);
    const char *text = json_string_value(json_object_get(json_object_get(c, "message"), "content"));
    assert_non_null(text);
    (void)snprintf(buf, 1024, "%s", text);
    json_decref(j);
}

// Nothing runs, nothing waits, and every page is free or cached.
static void expect_idle(server *s)
{
    for (int i = 0;; i++) {
        response r = client_request(&s->at, "GET", "/get_server_info", NULL);
        assert_int_equal(r.status, 200);
        json_t *j = json_loadb(r.body, r.len, 0, NULL);
        const json_t *t = json_object_get(j, "stats");
        const bool idle = json_integer_value(json_object_get(t, "running")) == 0 &&
                          json_integer_value(json_object_get(t, "waiting")) == 0 &&
                          json_integer_value(json_object_get(t, "used_pages")) == 0 &&
                          json_integer_value(json_object_get(j, "requests_open")) == 0;
        const json_int_t pages = json_integer_value(json_object_get(t, "free_pages")) +
                                 json_integer_value(json_object_get(t, "cached_pages")) +
                                 json_integer_value(json_object_get(t, "used_pages"));
        assert_int_equal(pages, 6000);
        json_decref(j);
        if (!idle && i == 500) fail_msg("not idle: %s", r.body);
        response_free(&r);
        if (idle) return;
        usleep(10000);
    }
}

static json_int_t stat_of(server *s, const char *name)
{
    response r = client_request(&s->at, "GET", "/get_server_info", NULL);
    json_t *j = json_loadb(r.body, r.len, 0, NULL);
    const json_t *v = json_object_get(json_object_get(j, "stats"), name);
    assert_true(json_is_integer(v));
    const json_int_t value = json_integer_value(v);
    json_decref(j);
    response_free(&r);
    return value;
}

static void test_answers(void **state)
{
    server *s = *state;
    char whole[1024];
    ask(s, whole);
    assert_true(whole[0] != '\0');
    // The same, streamed, by a client that reads the pieces.
    const int fd = client_open(&s->at);
    client_post(fd, "/v1/chat/completions",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 2 + 3?\"}],"
                "\"temperature\":0,\"max_tokens\":40,\"stream\":true}");
    response r = client_read(fd);
    char pieces[1024] = "";
    for (const char *p = r.body; (p = strstr(p, "data: {")) != NULL; p++) {
        json_t *j = json_loadb(p + 6, strcspn(p, "\n") - 6, 0, NULL);
        const json_t *c = json_array_get(json_object_get(j, "choices"), 0);
        const char *t = json_string_value(json_object_get(json_object_get(c, "delta"), "content"));
        const size_t n = strlen(pieces);
        (void)snprintf(pieces + n, sizeof pieces - n, "%s", t == NULL ? "" : t);
        json_decref(j);
    }
    assert_string_equal(pieces, whole);
    assert_non_null(strstr(r.body, "data: [DONE]"));
    response_free(&r);
    close(fd);
    // The second time, all of the prompt but its last token comes from the cache.
    json_t *j = post(s, "/v1/chat/completions", greedy, 200);
    const json_t *u = json_object_get(j, "usage");
    const json_int_t prompt = json_integer_value(json_object_get(u, "prompt_tokens"));
    const json_int_t cached = json_integer_value(
        json_object_get(json_object_get(u, "prompt_tokens_details"), "cached_tokens"));
    assert_true(prompt > 5);
    assert_int_equal(cached, prompt - 1);
    json_decref(j);
    expect_idle(s);
}

// Fields that change the choice do over HTTP what they say: a bias of 100 wins every choice, a ban
// makes another answer, and penalties end a repetition that the bias alone does not.
static void test_penalties(void **state)
{
    server *s = *state;
    static const struct {
        const char *fields;
        int forced; // of the 8 tokens, those that are the favoured one: 'a' as a word
    } cases[] = {
        {"\"logit_bias\":{\"%d\":100}", 8},
        {"\"logit_bias\":[[%d,100]]", 8},
        {"\"logit_bias\":{\"%d\":100},\"repetition_penalty\":50", 1},
        {"\"logit_bias\":{\"%d\":-100}", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum { FAVOURED = 270 };
        char fields[256], body[512];
        (void)snprintf(fields, sizeof fields, cases[i].fields, FAVOURED);
        (void)snprintf(body, sizeof body,
                       "{\"prompt\":[300,301,302],\"max_tokens\":8,\"temperature\":0,"
                       "\"ignore_eos\":true,\"logprobs\":0,%s}",
                       fields);
        json_t *j = post(s, "/v1/completions", body, 200);
        const json_t *c = json_array_get(json_object_get(j, "choices"), 0);
        const json_t *tokens = json_object_get(json_object_get(c, "logprobs"), "tokens");
        assert_int_equal(json_array_size(tokens), 8);
        static char favoured[64];
        if (i == 0) {
            (void)snprintf(favoured, sizeof favoured, "%s",
                           json_string_value(json_array_get(tokens, 0)));
        }
        int forced = 0;
        for (size_t k = 0; k < 8; k++) {
            forced += strcmp(json_string_value(json_array_get(tokens, k)), favoured) == 0;
        }
        assert_int_equal(forced, cases[i].forced);
        json_decref(j);
    }
    expect_idle(s);
}

// The text of a completion with these fields; *whole: it was not cut.
static void completion(server *s, const char *fields, char text[1024], bool *whole)
{
    char body[1024];
    (void)snprintf(body, sizeof body, "{\"prompt\":\"x\",%s}", fields);
    json_t *j = post(s, "/v1/completions", body, 200);
    const json_t *choice = json_array_get(json_object_get(j, "choices"), 0);
    (void)snprintf(text, 1024, "%s", json_string_value(json_object_get(choice, "text")));
    *whole = strcmp(json_string_value(json_object_get(choice, "finish_reason")), "stop") == 0;
    json_decref(j);
}

// What an answer has to be, greedy and drawn.
static const char *const constrained[] = {
    "\"guided_regex\":\"[ab]{3}c\"",
    "\"guided_choice\":[\"yes\",\"no\"]",
    "\"grammar\":\"root ::= [0-9] root2\\nroot2 ::= \\\"z\\\"\"",
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":"
    "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"p\",7]},\"b\":{\"type\":\"boolean\"}},"
    "\"required\":[\"a\",\"b\"],\"additionalProperties\":false}}}",
};
enum { CONSTRAINED = sizeof constrained / sizeof constrained[0] };

static void ask_constrained(server *s, char texts[2 * CONSTRAINED][1024])
{
    for (int i = 0; i < 2 * CONSTRAINED; i++) {
        char fields[768];
        bool whole;
        (void)snprintf(fields, sizeof fields,
                       "%s,\"temperature\":%d,\"seed\":%d,\"max_tokens\":100,\"ignore_eos\":true",
                       constrained[i / 2], i % 2, i);
        completion(s, fields, texts[i], &whole);
        assert_true(whole);
    }
}

static void check_constrained(char texts[2 * CONSTRAINED][1024])
{
    for (int i = 0; i < 2; i++) {
        const char *t = texts[i];
        assert_int_equal(strlen(t), 4);
        assert_int_equal(strspn(t, "ab"), 3);
        assert_int_equal(t[3], 'c');
        t = texts[2 + i];
        assert_true(strcmp(t, "yes") == 0 || strcmp(t, "no") == 0);
        assert_int_equal(strspn(texts[4 + i], "0123456789"), 1);
        assert_string_equal(texts[4 + i] + 1, "z");
        json_t *j = json_loads(texts[6 + i], 0, NULL);
        const json_t *a = json_object_get(j, "a");
        assert_int_equal(json_object_size(j), 2);
        assert_true(json_is_boolean(json_object_get(j, "b")));
        assert_true(json_integer_value(a) == 7 || strcmp(json_string_value(a), "p") == 0);
        json_decref(j);
    }
}

// Two ranks sum in another order, so that tokens of nearly the same probability may change places:
// their answers are held to the forms, not to one rank's bytes.
static void test_constrained(void **state)
{
    static char texts[2 * CONSTRAINED][1024];
    ask_constrained(*state, texts);
    check_constrained(texts);
    server s;
    start(&s, (const char *const[]){"--tp-size", "2", "--threads", "1", NULL});
    ask_constrained(&s, texts);
    check_constrained(texts);
    stop(&s);
}

static void leave(int fd, bool reset)
{
    if (reset) {
        const struct linger hard = {1, 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    }
    close(fd);
}

// {"prompt":[k, k+1, ...], "max_tokens":200, "ignore_eos":true <rest>}
static char *long_body(int k, int n, const char *rest)
{
    msgl_strbuf b;
    msgl__strbuf_init(&b, 1 << 20);
    msgl__strbuf_adds(&b, "{\"prompt\":[");
    for (int i = 0; i < n; i++) msgl__strbuf_addf(&b, "%s%d", i ? "," : "", 10 + (i * 7 + k) % 900);
    msgl__strbuf_addf(&b, "],\"max_tokens\":200,\"ignore_eos\":true%s}", rest);
    return msgl__strbuf_take(&b);
}

static void test_disconnects(void **state)
{
    server *s = *state;
    for (int reset = 0; reset < 2; reset++) {
        // Before a request is complete.
        static const char *const parts[] = {
            "", "POST /v1/comp", "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le",
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{\"prom"};
        for (size_t i = 0; i < 4; i++) {
            const int fd = client_open(&s->at);
            client_send(fd, parts[i]);
            leave(fd, reset);
        }
        // At growing delays after it: with the tokenizer, queued (4 run at a time), in a prefill
        // of several chunks, decoding; whole answers and streams, one and more choices.
        for (int delay_us = 0; delay_us <= 300000; delay_us = delay_us * 3 + 1000) {
            int fd[10];
            for (int i = 0; i < 10; i++) {
                fd[i] = client_open(&s->at);
                char *body = long_body(100 * i + delay_us % 97, 500,
                                       i % 3 == 0   ? ",\"stream\":true"
                                       : i % 3 == 1 ? ",\"n\":2"
                                                    : "");
                client_post(fd[i], "/v1/completions", body);
                msgl__free(body);
            }
            usleep((useconds_t)delay_us);
            for (int i = 0; i < 10; i++) leave(fd[i], reset);
            expect_idle(s);
        }
        // In the middle of a stream that has begun.
        const int fd = client_open(&s->at);
        char *body = long_body(3, 20, ",\"stream\":true");
        client_post(fd, "/v1/completions", body);
        msgl__free(body);
        msgl_strbuf seen;
        msgl__strbuf_init(&seen, 1 << 20);
        client_read_until(fd, &seen, "\"text\":");
        msgl__strbuf_free(&seen);
        leave(fd, reset);
        expect_idle(s);
    }
}

// Hostile bodies, one after the other, while a greedy request runs beside them.
static void test_hostile_requests(void **state)
{
    static const struct {
        const char *path, *body;
        int status;
    } bad[] = {
        {"/v1/completions", "{\"prompt\":\"\"}", 400},
        {"/v1/completions", "{\"prompt\":[]}", 400},
        {"/v1/completions", "{\"prompt\":[-1]}", 400},
        {"/v1/completions", "{\"prompt\":[2147483647]}", 400},
        {"/v1/completions", "{\"prompt\":[6143,6144]}", 400},
        {"/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":-2}", 400},
        {"/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":0}", 400},
        {"/v1/completions", "{\"prompt\":\"x\",\"n\":1000000}", 400},
        {"/v1/completions", "{\"prompt\":\"x\",\"best_of\":1000000000}", 400},
        {"/v1/completions", "{\"prompt\":\"x\",\"logprobs\":1000000}", 400},
        {"/v1/completions", "{\"prompt\":\"x\",\"logit_bias\":{\"6144\":100}}", 400},
        {"/v1/completions", "{\"prompt\":\"x\",\"logit_bias\":{\"6143\":101}}", 400},
        {"/v1/completions", "{\"prompt\":\"x\",\"logit_bias\":{\"abc\":1}}", 400},
        {"/v1/completions", "{\"prompt\":\"x\",\"presence_penalty\":3}", 400},
        {"/v1/completions", "{\"prompt\":\"x\",\"repetition_penalty\":0}", 400},
        {"/v1/completions", "{\"prompt\":\"x\",\"min_tokens\":1000000000}", 400},
        {"/v1/completions", "{\"prompt\":\"x\",\"temperature\":1e300}", 400},
        {"/v1/completions", "{\"prompt\":\"x\",\"top_p\":0}", 400},
        {"/v1/completions", "{\"prompt\":\"x\",\"guided_regex\":\"(?=a)b\"}", 400},
        {"/v1/completions", "{\"prompt\":\"\\ud800\"}", 400},
        {"/v1/completions", "{\"prompt\":\"x\",\"model\":\"../x\"}", 404},
        {"/v1/chat/completions", "{\"messages\":[]}", 400},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":{}}]}", 400},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"top_logprobs\":1000000,"
         "\"logprobs\":true}",
         400},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template\":\"{% for i in "
         "range(10**9) %}{% endfor %}\"}",
         400},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":"
         "{\"url\":\"file:///etc/passwd\"}}]}]}",
         400},
        {"/generate", "{\"prompt\":5}", 400},
    };
    server *s = *state;
    char alone[1024], beside[1024];
    ask(s, alone);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const int fd = client_open(&s->at);
        client_post(fd, "/v1/chat/completions", greedy);
        json_decref(post(s, bad[i].path, bad[i].body, bad[i].status));
        response r = client_read(fd);
        json_t *j = json_loadb(r.body, r.len, 0, NULL);
        const json_t *c = json_array_get(json_object_get(j, "choices"), 0);
        const char *text =
            json_string_value(json_object_get(json_object_get(c, "message"), "content"));
        assert_non_null(text);
        assert_string_equal(text, alone);
        json_decref(j);
        response_free(&r);
        close(fd);
    }
    // Extreme but valid: these are answered.
    static const char *const odd[] = {
        "{\"prompt\":\"x\",\"temperature\":1e-300,\"max_tokens\":2}",
        "{\"prompt\":\"x\",\"temperature\":100,\"top_k\":2147483647,\"max_tokens\":2}",
        "{\"prompt\":\"x\",\"top_p\":1e-30,\"min_p\":1,\"max_tokens\":2}",
        "{\"prompt\":\"x\",\"seed\":-9223372036854775808,\"max_tokens\":2}",
        "{\"prompt\":[6143],\"max_tokens\":2147483647,\"stop_token_ids\":[0,6143],\"n\":2}",
        "{\"prompt\":\"<|im_start|><|im_end|><|endoftext|>\",\"max_tokens\":2,\"logprobs\":20}",
    };
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        json_decref(post(s, "/v1/completions", odd[i], 200));
    }
    ask(s, beside);
    assert_string_equal(alone, beside);
    expect_idle(s);
}

// A token that the bias makes certain ends the answer as soon as it may, and not before.
static void test_min_tokens(void **state)
{
    server *s = *state;
    static const int least[] = {0, 1, 5};
    for (int i = 0; i < 3; i++) {
        char body[200];
        (void)snprintf(body, sizeof body,
                       "{\"prompt\":[1,2,3],\"max_tokens\":8,\"min_tokens\":%d,\"temperature\":0,"
                       "\"stop_token_ids\":[7],\"logit_bias\":{\"7\":100}}",
                       least[i]);
        json_t *j = post(s, "/v1/completions", body, 200);
        const json_t *n = json_object_get(json_object_get(j, "usage"), "completion_tokens");
        assert_int_equal(json_integer_value(n), least[i] + 1);
        json_decref(j);
    }
    expect_idle(s);
}

// What can never fit is refused at once, and does not hold up those behind it.
static void test_too_long(void **state)
{
    server *s = *state;
    char *body = long_body(1, 5000, "");
    json_t *j = post(s, "/v1/completions", body, 400);
    assert_string_equal(json_string_value(json_object_get(json_object_get(j, "error"), "code")),
                        "context_length_exceeded");
    json_decref(j);
    msgl__free(body);
    char text[1024];
    ask(s, text);
    expect_idle(s);
}

// The benchmark's clients that ask for all that the context leaves and hang up: more requests than
// may run at a time (4), each until its tokens have come; none fails, and the engine is told to
// stop each.
static void test_bench_open_ended(void **state)
{
    enum { REQUESTS = 12, TOKENS = 20 };
    server *s = *state;
    const json_int_t before = stat_of(s, "requests_aborted");
    char url[64];
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%d", s->at.port);
    msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
    cfg.url = url;
    cfg.concurrency = 6;
    cfg.requests = REQUESTS;
    cfg.max_tokens = TOKENS;
    cfg.prompt_tokens = 30;
    cfg.open_ended = true;
    cfg.temperature = 1;
    cfg.sampling_seed = 3;
    msgl_bench_serve_result r;
    msgl_err err = {0};
    if (msgl__bench_serve(&cfg, &r, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(r.completed, REQUESTS);
    assert_int_equal(r.failed, 0);
    assert_int_equal(r.output_tokens, REQUESTS * TOKENS);
    assert_int_equal(r.prompt_tokens, REQUESTS * 30);
    // A read may bring several tokens, so that most gaps may be 0.
    assert_true(r.ttft.p50 > 0 && r.gap.max > 0 && r.e2e.p50 >= r.ttft.p50);
    expect_idle(s);
    assert_int_equal(stat_of(s, "requests_aborted") - before, REQUESTS);
}

// One request that would keep the engine busy for long leaves room for another client's; a body
// whose tree nobody reads is gone when its request runs.
static void test_large_requests(void **state)
{
    server *s = *state;
    char alone[1024], beside[1024];
    ask(s, alone);
    msgl_strbuf b;
    msgl__strbuf_init(&b, 4 << 20);
    msgl__strbuf_adds(&b, "{\"prompt\":[");
    for (int i = 0; i < 8; i++) msgl__strbuf_addf(&b, "%s\"x %d\"", i ? "," : "", i);
    msgl__strbuf_adds(&b, "],\"n\":128,\"max_tokens\":1900,\"ignore_eos\":true,\"metadata\":[0");
    for (int i = 0; i < 100000; i++) msgl__strbuf_adds(&b, ",{}");
    assert_int_equal(msgl__strbuf_adds(&b, "]}"), 0);
    const int fd = client_open(&s->at);
    client_post(fd, "/v1/completions", b.data);
    msgl__strbuf_free(&b);
    json_int_t waiting = 0, memory = 0, running = 0;
    for (int i = 0; i < 500 && running == 0; i++) {
        usleep(20000);
        response r = client_request(&s->at, "GET", "/get_server_info", NULL);
        json_t *j = json_loadb(r.body, r.len, 0, NULL);
        running = json_integer_value(json_object_get(json_object_get(j, "stats"), "running"));
        waiting = json_integer_value(json_object_get(j, "requests_waiting"));
        memory = json_integer_value(json_object_get(j, "request_memory"));
        json_decref(j);
        response_free(&r);
    }
    assert_true(running > 0 && running <= 3); // of 4
    assert_true(waiting > 1000);
    assert_true(memory > 0 && memory < 2000000); // the tree had 30 MB
    for (int i = 0; i < 3; i++) {
        ask(s, beside);
        assert_string_equal(beside, alone);
    }
    leave(fd, false);
    expect_idle(s);
}

static void await_health(server *s)
{
    int status = 503;
    for (int i = 0; i < 1000 && status == 503; i++) {
        usleep(20000);
        response r = client_request(&s->at, "GET", "/health", NULL);
        status = r.status;
        response_free(&r);
    }
    assert_int_equal(status, 200);
}

// A process of the engine gets a signal while an answer streams, whose client hears of it within
// `limit_ms`; then the server is healthy again.
static void fail_and_return(server *s, pid_t who, int signal, int limit_ms)
{
    const int fd = client_open(&s->at);
    client_post(fd, "/v1/completions", // for seconds
                "{\"prompt\":[1,2,3],\"max_tokens\":2000,\"ignore_eos\":true,\"stream\":true}");
    msgl_strbuf seen;
    msgl__strbuf_init(&seen, 1 << 20);
    client_read_until(fd, &seen, "data: ");
    const uint64_t begin = msgl__now_ns();
    kill(who, signal);
    client_read_until(fd, &seen, "engine"); // of the error
    const int ms = (int)((msgl__now_ns() - begin) / 1000000);
    if (ms > limit_ms) fail_msg("the client heard of signal %d after %d ms", signal, ms);
    msgl__strbuf_free(&seen);
    close(fd);
    await_health(s);
}

static void test_engine_killed(void **state)
{
    server *s = *state;
    char before[1024], after[1024];
    ask(s, before);
    const pid_t engine = first_child(s->pid, 0);
    assert_true(engine > 0);
    fail_and_return(s, engine, SIGKILL, 2000);
    ask(s, after);
    assert_string_equal(before, after);
    expect_idle(s);
}

// Nothing of this process has a name in /dev/shm, which its end would leave behind.
static void expect_no_names(pid_t pid)
{
    char path[64], line[512];
    (void)snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) assert_null(strstr(line, "/dev/shm"));
    assert_int_equal(fclose(f), 0);
}

// With two ranks: each of them ends or stops while an answer streams. None outlives the set.
static void test_ranks_killed(void **state)
{
    (void)state;
    server s;
    char before[1024], after[1024];
    static const struct {
        int rank, signal;
    } cases[] = {{1, SIGKILL}, {0, SIGKILL}, {1, SIGSTOP}, {0, SIGSTOP}};
    enum { CASES = sizeof cases / sizeof cases[0] };
    pid_t old[2 * CASES + 1];
    start(&s, (const char *const[]){"--tp-size", "2", "--threads", "1", NULL});
    ask(&s, before);
    const pid_t engine = first_child(s.pid, 0), front = first_child(s.pid, engine);
    for (int i = 0; i < CASES; i++) {
        const pid_t ranks[2] = {first_child(s.pid, front),
                                first_child(first_child(s.pid, front), 0)};
        assert_true(ranks[0] > 0 && ranks[1] > 0);
        for (int r = 0; r < 2; r++) expect_no_names(old[2 * i + r] = ranks[r]);
        fail_and_return(&s, ranks[cases[i].rank], cases[i].signal, 2000);
        // All of them are new; the first may take a moment to end, and a second to be replaced.
        for (int k = 0; k < 500 && first_child(s.pid, front) == ranks[0]; k++) usleep(20000);
        assert_int_not_equal(first_child(s.pid, front), ranks[0]);
        await_health(&s);
        ask(&s, after);
        assert_string_equal(before, after);
    }
    expect_idle(&s);
    old[2 * CASES] = first_child(first_child(s.pid, front), 0);
    stop(&s);
    for (int i = 0; i <= 2 * CASES; i++) assert_int_equal(kill(old[i], 0), -1);
    int fd, port;
    msgl_err err;
    assert_int_equal(msgl__tcp_listen("127.0.0.1", s.at.port, &fd, &port, &err), 0);
    close(fd);
}

// --- several engines ---

// Of one engine: a counter of it, or -1 while it does not serve.
static json_int_t counter_of(server *s, size_t replica, const char *name)
{
    response r = client_request(&s->at, "GET", "/get_server_info", NULL);
    json_t *j = json_loadb(r.body, r.len, 0, NULL);
    const json_t *one = json_array_get(json_object_get(j, "replicas"), replica);
    const json_t *v = json_object_get(json_object_get(one, "stats"), name);
    const json_int_t value = json_is_integer(v) ? json_integer_value(v) : -1;
    json_decref(j);
    response_free(&r);
    return value;
}

static void await_counter(server *s, size_t replica, const char *name, json_int_t value)
{
    for (int i = 0; counter_of(s, replica, name) != value; i++) {
        if (i == 1500) {
            fail_msg("engine %zu: %s is %lld", replica, name,
                     (long long)counter_of(s, replica, name));
        }
        usleep(20000);
    }
}

// The prompt's cached tokens.
static json_int_t cached_by(server *s, int k, int n)
{
    char *body = long_body(k, n, ",\"temperature\":0");
    json_t *j = post(s, "/v1/completions", body, 200);
    const json_t *u = json_object_get(json_object_get(j, "usage"), "prompt_tokens_details");
    const json_int_t cached = json_integer_value(json_object_get(u, "cached_tokens"));
    msgl__free(body);
    json_decref(j);
    return cached;
}

// Four conversations on two engines, each growing by 100 tokens a turn: what was there the turn
// before is cached where the next one goes.
static void test_replicas_cache(void **state)
{
    (void)state;
    enum { TALKS = 4, TURNS = 3, MORE = 100 };
    server s;
    start(&s, (const char *const[]){"--dp-size", "2", "--threads", "1", NULL});
    for (int turn = 1; turn <= TURNS; turn++) {
        for (int talk = 0; talk < TALKS; talk++) {
            const json_int_t cached = cached_by(&s, 1 + 31 * talk, turn * MORE);
            assert_in_range(cached, (turn - 1) * MORE, turn * MORE - 1);
        }
    }
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(counter_of(&s, i, "requests_done"), TALKS / 2 * TURNS);
    }
    stop(&s);
}

// One engine of two ends while both stream: its clients hear of it, the others get what they would
// have got, and it comes back.
static void test_replica_killed(void **state)
{
    (void)state;
    enum { CLIENTS = 6 };
    server s;
    start(&s, (const char *const[]){"--dp-size", "2", "--threads", "1", NULL});
    char before[1024], after[1024];
    ask(&s, before);
    const pid_t first = first_child(s.pid, 0);
    assert_true(first > 0);
    int fd[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        fd[i] = client_open(&s.at);
        char *body = long_body(1 + 31 * i, 300, ",\"stream\":true");
        client_post(fd[i], "/v1/completions", body);
        msgl__free(body);
    }
    for (size_t i = 0; i < 2; i++) await_counter(&s, i, "running", CLIENTS / 2);
    kill(first, SIGKILL);
    int whole = 0, cut = 0;
    for (int i = 0; i < CLIENTS; i++) {
        response r = client_read(fd[i]);
        const bool failed = strstr(r.body, "engine_stopped") != NULL;
        cut += failed;
        whole += strstr(r.body, "\"finish_reason\":\"length\"") != NULL;
        // An answer of which nothing had been sent is an error as a whole.
        assert_true(r.status == 200 || (failed && r.status == 500));
        assert_int_equal(strstr(r.body, "data: [DONE]") != NULL, r.status == 200);
        response_free(&r);
        close(fd[i]);
    }
    assert_int_equal(cut, CLIENTS / 2);
    assert_int_equal(whole, CLIENTS / 2);
    await_counter(&s, 0, "requests_done", 0); // it is a new one
    ask(&s, after);
    assert_string_equal(before, after);
    // An answer that its client has may still hold its pages for a step.
    for (size_t i = 0; i < 2; i++) await_counter(&s, i, "used_pages", 0);
    expect_status(client_request(&s.at, "POST", "/flush_cache", ""), 200);
    for (size_t i = 0; i < 2; i++) await_counter(&s, i, "cached_pages", 0);
    stop(&s);
}

static int status_for(server *s, const char *headers, const char *body)
{
    char request[1024];
    (void)snprintf(request, sizeof request,
                   "POST /v1/completions HTTP/1.1\r\n%sContent-Length: %zu\r\n\r\n%s", headers,
                   strlen(body), body);
    const int fd = client_open(&s->at);
    client_send(fd, request);
    response r = client_read(fd);
    const int status = r.status;
    response_free(&r);
    close(fd);
    return status;
}

// The options that the first server has at their defaults, each on the side where it refuses.
static void test_options(void **state)
{
    server *plain = *state, s;
    start(&s, (const char *const[]){"--unknown-fields", "refuse", "--allowed-hosts", "box.lan",
                                    "--max-request-memory", "16", "--watchdog-timeout", "1", NULL});
    const char *local = "Host: localhost\r\n", *box = "Host: box.lan\r\n";
    const char *known = "{\"prompt\":\"x\",\"max_tokens\":1}";
    const char *unknown = "{\"prompt\":\"x\",\"max_tokens\":1,\"top_a\":0.1}";
    assert_int_equal(status_for(plain, local, unknown), 200);
    assert_int_equal(status_for(plain, box, known), 403);
    assert_int_equal(status_for(&s, local, unknown), 400);
    assert_int_equal(status_for(&s, box, known), 200);
    msgl_strbuf b; // its tree takes more than a quarter of 16 MiB
    msgl__strbuf_init(&b, 1 << 20);
    msgl__strbuf_adds(&b, "{\"prompt\":\"x\",\"max_tokens\":1,\"metadata\":[0");
    for (int i = 0; i < 20000; i++) msgl__strbuf_adds(&b, ",{}");
    assert_int_equal(msgl__strbuf_adds(&b, "]}"), 0);
    json_decref(post(plain, "/v1/completions", b.data, 200));
    json_decref(post(&s, "/v1/completions", b.data, 413));
    msgl__strbuf_free(&b);
    fail_and_return(&s, first_child(s.pid, 0), SIGSTOP, 30000); // in a step
    stop(&s);
}

// The engine's flags, given or not, are told by name.
static void test_config(void **state)
{
    static const char expected[] =
        "{s:s,s:s,s:s,s:b,s:s,s:i,s:s,s:s,s:s,s:i,s:i,s:f,s:i,s:i,s:i,s:i,s:b,s:b,s:b}";
    server *s = *state;
    response r = client_request(&s->at, "GET", "/get_server_info", NULL);
    json_t *all = json_loadb(r.body, r.len, 0, NULL), *got = json_object_get(all, "config");
    const char *name = strrchr(model, '/') + 1; // of an absolute path
    json_t *want = json_pack(
        expected, "model", name, "model_path", name, "dtype", "auto", "dummy_weight", 0, "device",
        "auto", "threads", 0, "attention_backend", "auto", "moe_backend", "auto", "cache_type",
        "radix", "page_size", 1, "num_pages", 6000, "memory_ratio", 0.0, "max_running_requests", 4,
        "max_seq_len_override", 0, "max_prefill_length", 256, "cuda_graph_max_bs", -1,
        "deterministic", 0, "disable_overlap_scheduling", 0, "overlap_scheduling", 1);
    assert_non_null(want);
    json_t *value;
    json_object_foreach(want, name, value)
    {
        if (!json_equal(json_object_get(got, name), value)) fail_msg("%s: %s", name, r.body);
    }
    json_decref(want);
    json_decref(all);
    response_free(&r);
}

// Whether the tokens of this have the one of "<tool_call>", which the tokenizer does not call
// special.
static bool has_call(server *s, const char *body)
{
    json_t *one = post(s, "/tokenize", "{\"prompt\":\"<tool_call>\"}", 200);
    json_t *all = post(s, "/tokenize", body, 200), *id;
    assert_int_equal(json_array_size(json_object_get(one, "tokens")), 1);
    bool found = false;
    size_t i;
    json_array_foreach(json_object_get(all, "tokens"), i, id)
    {
        found = found || json_equal(id, json_array_get(json_object_get(one, "tokens"), 0));
    }
    json_decref(one);
    json_decref(all);
    return found;
}

// Users and tools cannot write a token by its name; assistants and prompts of texts can, and with
// the option everybody.
static void test_added_tokens(void **state)
{
    static const struct {
        const char *body;
        bool always;
    } cases[] = {
        {"{\"prompt\":\"a<tool_call>\"}", true},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a<tool_call>\"}]}", false},
        {"{\"messages\":[{\"role\":\"system\",\"content\":\"<tool_call>\"}]}", false},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
         "{\"role\":\"assistant\",\"content\":\"<tool_call>\"}]}",
         true},
    };
    server *s = *state, own;
    start(&own, (const char *const[]){"--added-tokens-from-text", NULL});
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (has_call(s, cases[i].body) != cases[i].always) fail_msg("%s", cases[i].body);
        if (!has_call(&own, cases[i].body)) fail_msg("with the option: %s", cases[i].body);
    }
    stop(&own);
}

// What a server's /apply-template makes of these fields.
static void expect_rendered(server *s, const char *fields, const char *want)
{
    char body[512];
    (void)snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]%s}",
                   fields);
    json_t *j = post(s, "/apply-template", body, 200);
    assert_string_equal(json_string_value(json_object_get(j, "prompt")), want);
    json_decref(j);
}

// The operator's template in place of the model's, of a folder and of a GGUF file; a request's in
// place of both, where that is allowed.
static void test_templates(void **state)
{
    static const char own[] = "<{{ messages[0].content }}>";
    server *plain = *state, s;
    char path[] = "/tmp/msgl-e2e-XXXXXX", body[8192], texts[2][1024], *source;
    size_t len;
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, own, strlen(own)) == (ssize_t)strlen(own));
    close(fd);
    start_with(&s, MSGL_SOURCE_DIR "/tests/vectors/gguf/qwen3-f16.gguf",
               (const char *const[]){"--dtype", "float32", "--chat-template", path, NULL});
    unlink(path);
    expect_rendered(&s, "", "<hi>");
    json_decref(post(&s, "/apply-template",
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                     "\"chat_template\":\"{{ 1 }}\"}",
                     400));
    stop(&s);
    start(&s, (const char *const[]){"--chat-template", own, "--trust-request-chat-template", NULL});
    expect_rendered(&s, "", "<hi>");
    expect_rendered(&s, ",\"chat_template\":\"{{ messages[0].role }}\"", "user");
    // The model's own, brought by a request: the same answer.
    (void)snprintf(body, sizeof body, "%s/chat_template.jinja", model);
    assert_int_equal(msgl__file_read(body, 4096, &source, &len, NULL), 0);
    json_t *o = json_loads(greedy, 0, NULL);
    assert_int_equal(json_object_set_new(o, "chat_template", json_stringn(source, len)), 0);
    len = json_dumpb(o, body, sizeof body - 1, 0);
    assert_true(len < sizeof body);
    body[len] = '\0';
    json_t *j = post(&s, "/v1/chat/completions", body, 200);
    const json_t *c = json_array_get(json_object_get(j, "choices"), 0);
    (void)snprintf(texts[0], sizeof texts[0], "%s",
                   json_string_value(json_object_get(json_object_get(c, "message"), "content")));
    ask(plain, texts[1]);
    assert_string_equal(texts[0], texts[1]);
    json_decref(post(plain, "/v1/chat/completions", body, 400));
    json_decref(j);
    json_decref(o);
    msgl__free(source);
    stop(&s);
}

// A GGUF file is served as the folder that it was made from: template, tokens and weights.
static void test_gguf(void **state)
{
    (void)state;
    static const char *const paths[] = {MSGL_SOURCE_DIR "/tests/vectors/gguf/qwen3",
                                        MSGL_SOURCE_DIR "/tests/vectors/gguf/qwen3-f16.gguf"};
    char answers[2][1024];
    for (int i = 0; i < 2; i++) {
        server s;
        start_with(&s, paths[i], (const char *const[]){"--dtype", "float32", NULL});
        ask(&s, answers[i]);
        stop(&s);
    }
    assert_true(strlen(answers[0]) > 5);
    assert_string_equal(answers[0], answers[1]);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        (void)fprintf(stderr, "usage: %s MINISGL MODEL\n", argv[0]);
        return 2;
    }
    program = argv[1];
    model = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),          cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_constrained),      cmocka_unit_test(test_min_tokens),
        cmocka_unit_test(test_disconnects),      cmocka_unit_test(test_hostile_requests),
        cmocka_unit_test(test_too_long),         cmocka_unit_test(test_large_requests),
        cmocka_unit_test(test_bench_open_ended), cmocka_unit_test(test_engine_killed),
        cmocka_unit_test(test_ranks_killed),     cmocka_unit_test(test_options),
        cmocka_unit_test(test_config),           cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_added_tokens),     cmocka_unit_test(test_replicas_cache),
        cmocka_unit_test(test_replica_killed),   cmocka_unit_test(test_templates),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
