// SPDX-License-Identifier: Apache-2.0
//
// The three processes, with an engine that repeats itself: start, stop, restart, failure, signals,
// and that nothing is left behind. The test is the subreaper of the server, so that a process that
// the server forgot would show up here.
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/fixture.h"
#include "launch/launch.h"
#include "utils/clock.h"
#include "http/tcp_socket.h"
#include "program/endpoints.h"

typedef enum behaviour {
    ANSWERS,
    NEVER_READY,
    FAILS,
    FAILS_LATER, // the second engine and all after it do
    ONE_FAILS,   // of two replicas the second, but for its first engine
    ENDS_EARLY,  // says that it is ready, and ends
    BEATS,       // ANSWERS, and a thread beats as the watch of several ranks does
} behaviour;

// What the server's processes report to the test.
typedef struct report {
    char kind; // 'E': an engine began, 'P': ready, 'H': it has a request to hang, 'X': msgl__serve
               // returned
    int value; // pid, port, status
    char text[256];
} report;

typedef struct plan {
    behaviour how;
    int out;            // reports go here
    atomic_int *starts; // of engines; shared by all processes
} plan;

static void tell(int fd, char kind, int value, const char *text)
{
    report r = {.kind = kind, .value = value};
    (void)snprintf(r.text, sizeof r.text, "%s", text);
    if (write(fd, &r, sizeof r) != (ssize_t)sizeof r) _exit(9);
}

static void answer(msgl_channel *ch, const msgl_msg_request *q)
{
    for (int32_t i = 0; i < q->sampling.max_tokens; i++) {
        const msgl_token_event e = {.uid = q->uid,
                                    .tokens = (const int32_t[]){'a'},
                                    .num_tokens = 1,
                                    .finish = i + 1 == q->sampling.max_tokens ? MSGL_FINISH_LENGTH
                                                                              : MSGL_FINISH_NONE};
        const msgl_msg m = {.type = MSGL_MSG_TOKENS, .u.tokens = {1, &e}};
        (void)msgl__channel_send(ch, &m);
    }
}

// How long "long" takes: longer than the 2 s of silence and the second of the watchdog that tests
// allow.
enum { LONG_MS = 2600 };

// As a long prompt on a slow machine: signs of life for some seconds, and not a word.
static void take_long(msgl_heartbeat *heartbeat)
{
    for (int i = 0; i < LONG_MS / 50; i++) {
        msgl__beat(heartbeat, MSGL_BEAT_COMPUTE);
        usleep(50000);
    }
}

// A step that never ends; steps of its kind have taken 10 ms.
static void hang(msgl_heartbeat *heartbeat)
{
    msgl__heartbeat_begin(heartbeat, 10000000);
    for (;;) {
        msgl__beat(heartbeat, MSGL_BEAT_COMPUTE);
        usleep(10000);
    }
}

static void *beat(void *arg)
{
    msgl_heartbeat *heartbeat = arg;
    for (;;) {
        atomic_fetch_add(&heartbeat->alive, 1);
        usleep(100000);
    }
    return NULL;
}

static void say_ready(msgl_channel *ch)
{
    const msgl_msg m = ready_message(256, 1000);
    (void)msgl__channel_send(ch, &m);
}

// As msgl__channel_recv for some milliseconds, over the end of a front.
static int receive(msgl_channel *ch, msgl_msg *m)
{
    int rc = msgl__channel_recv(ch, 100, m);
    if (rc != MSGL_ECLOSED) return rc;
    rc = msgl__channel_renew(ch, 100);
    if (rc == 1) say_ready(ch);
    return rc < 0 ? rc : 0;
}

static int engine_main(msgl_channel *ch, msgl_heartbeat *heartbeat, int replica, void *ctx)
{
    const plan *p = ctx;
    pthread_t thread;
    if (p->how == BEATS && pthread_create(&thread, NULL, beat, heartbeat) != 0) _exit(9);
    tell(p->out, 'E', (int)getpid(), replica == 0 ? "0" : "1");
    if (p->how == NEVER_READY) pause();
    const int before = atomic_fetch_add(p->starts, 1);
    if (p->how == FAILS || (p->how == FAILS_LATER && before > 0) ||
        (p->how == ONE_FAILS && before > 1 && replica == 1)) {
        const msgl_msg m = {.type = MSGL_MSG_FATAL, .u.fatal = "weights: too heavy"};
        (void)msgl__channel_send(ch, &m);
        return MSGL_EFORMAT;
    }
    say_ready(ch);
    if (p->how == ENDS_EARLY) return MSGL_EINTERNAL;
    int rc;
    msgl_msg m;
    while ((rc = receive(ch, &m)) >= 0 && (rc == 0 || m.type != MSGL_MSG_EXIT)) {
        msgl__beat(heartbeat, MSGL_BEAT_SCHEDULER);
        if (rc == 0 || m.type != MSGL_MSG_REQUEST) continue;
        if (m.u.request.ids[0] == 'l') take_long(heartbeat);
        if (m.u.request.ids[0] == 's') hang(heartbeat);
        if (m.u.request.ids[0] == 'h') {
            tell(p->out, 'H', replica, "");
        } else {
            answer(ch, &m.u.request);
        }
    }
    return 0;
}

static void on_ready(void *ctx, const char *host, int port, const msgl_msg_ready *ready)
{
    const plan *p = ctx;
    tell(p->out, 'P', port, ready->attention);
    (void)host;
}

typedef struct running {
    char dir[64];
    pid_t pid;
    int reports;
    server_fixture client; // only its port is used
} running;

static report next_report(running *r)
{
    report rep = {0};
    alarm(60); // a hang ends the test program
    if (read(r->reports, &rep, sizeof rep) != (ssize_t)sizeof rep) fail_msg("no report");
    alarm(0);
    return rep;
}

static int expect_report(running *r, char kind)
{
    const report rep = next_report(r);
    if (rep.kind != kind) fail_msg("report %c (%s) instead of %c", rep.kind, rep.text, kind);
    return rep.value;
}

static rlim_t file_limit; // of the server; 0: ours
static pid_t left_behind; // the server of a test that has not finished it; 0: none

// A server of a test that failed would keep the next one waiting for its end.
static void end_left_behind(void)
{
    if (left_behind == 0) return;
    kill(left_behind, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0) {
    }
    left_behind = 0;
}

static void start_with(running *r, behaviour how, const msgl_serve_config *with)
{
    *r = (running){0};
    (void)snprintf(r->dir, sizeof r->dir, "/tmp/msgl-test-XXXXXX");
    text_write_dir(r->dir);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    end_left_behind();
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    r->pid = fork();
    assert_true(r->pid >= 0);
    if (r->pid == 0) {
        close(fd[0]);
        plan p = {.how = how, .out = fd[1]};
        p.starts =
            mmap(NULL, sizeof *p.starts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (p.starts == MAP_FAILED) _exit(9);
        const struct rlimit files = {file_limit, file_limit};
        if (file_limit != 0 && setrlimit(RLIMIT_NOFILE, &files) != 0) _exit(9);
        msgl_serve_config cfg = *with;
        if (cfg.model_dir == NULL) cfg.model_dir = r->dir;
        cfg.front.model_name = "m";
        cfg.front.model_path = "/m";
        cfg.engine_main = engine_main;
        cfg.on_ready = on_ready;
        cfg.ctx = &p;
        msgl_err err = {0};
        const int rc = msgl__serve(&cfg, &err);
        tell(fd[1], 'X', rc, err.text);
        _exit(rc == 0 ? 0 : 1);
    }
    left_behind = r->pid;
    close(fd[1]);
    r->reports = fd[0];
}

static msgl_serve_config config(void)
{
    msgl_serve_config cfg = msgl__serve_config_default();
    cfg.front.endpoints = msgl__endpoints;
    cfg.port = 0;
    cfg.restart_delay_ms = 10;
    cfg.front.stop_timeout_ms = 2000;
    return cfg;
}

static void start(running *r, behaviour how, const char *dir, int port, int stop_timeout_ms)
{
    msgl_serve_config cfg = config();
    cfg.port = port;
    cfg.model_dir = dir;
    cfg.front.stop_timeout_ms = stop_timeout_ms;
    start_with(r, how, &cfg);
}

// The server's first process has ended; so has every other, reaped or as our child now.
static void finish(running *r, bool orphans_allowed)
{
    int status;
    assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
    const pid_t other = orphans_allowed ? 0 : waitpid(-1, &status, 0);
    if (!orphans_allowed) {
        assert_int_equal(other, -1);
        assert_int_equal(errno, ECHILD);
    } else {
        alarm(20);
        while (waitpid(-1, &status, 0) > 0) { // they die by themselves, or the alarm rings
        }
        alarm(0);
    }
    left_behind = 0;
    close(r->reports);
    text_remove_dir(r->dir);
}

static void expect_answer(running *r)
{
    response a = client_request(&r->client, "POST", "/v1/completions",
                                "{\"prompt\":\"x\",\"max_tokens\":3}");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "\"text\":\"aaa\""));
    response_free(&a);
}

// A connection whose request an engine has, which does not answer it. *engine: which replica's.
static int ask_to_hang(running *r, int *engine)
{
    const int fd = client_open(&r->client);
    client_post(fd, "/v1/completions", "{\"prompt\":\"hang\"}");
    const int replica = expect_report(r, 'H');
    if (engine != NULL) *engine = replica;
    return fd;
}

static void test_start_and_stop(void **state)
{
    (void)state;
    const int signals[] = {SIGTERM, SIGINT};
    for (int i = 0; i < 2; i++) {
        running r;
        start(&r, ANSWERS, NULL, 0, 2000);
        (void)expect_report(&r, 'E');
        r.client.port = expect_report(&r, 'P');
        expect_answer(&r);
        kill(r.pid, signals[i]);
        assert_int_equal(expect_report(&r, 'X'), 0);
        finish(&r, false);
    }
}

// On a loopback address web pages of other machines are kept out (guard.h).
static void test_foreign_pages(void **state)
{
    (void)state;
    running r;
    start(&r, ANSWERS, NULL, 0, 2000);
    (void)expect_report(&r, 'E');
    r.client.port = expect_report(&r, 'P');
    static const struct {
        const char *headers;
        int status;
    } cases[] = {
        {"Host: localhost\r\n", 200},
        {"Host: attacker.example\r\n", 403},
        {"Host: localhost\r\nOrigin: https://attacker.example\r\n", 403},
        {"Host: localhost\r\nOrigin: http://localhost:3000\r\n", 415},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        (void)snprintf(text, sizeof text,
                       "POST /v1/completions HTTP/1.1\r\n%sContent-Type: text/plain\r\n"
                       "Content-Length: 29\r\n\r\n{\"prompt\":\"x\",\"max_tokens\":3}",
                       cases[i].headers);
        const int fd = client_open(&r.client);
        client_send(fd, text);
        response a = client_read(fd);
        assert_int_equal(a.status, cases[i].status);
        response_free(&a);
        close(fd);
    }
    kill(r.pid, SIGTERM);
    assert_int_equal(expect_report(&r, 'X'), 0);
    finish(&r, false);
}

static void test_engine_killed(void **state)
{
    (void)state;
    running r;
    start(&r, ANSWERS, NULL, 0, 2000);
    int engine = expect_report(&r, 'E');
    r.client.port = expect_report(&r, 'P');
    for (int round = 0; round < 3; round++) {
        const int fd = ask_to_hang(&r, NULL);
        kill(engine, SIGKILL);
        response a = client_read(fd);
        assert_int_equal(a.status, 500);
        assert_non_null(strstr(a.body, "engine_stopped"));
        response_free(&a);
        close(fd);
        engine = expect_report(&r, 'E'); // the next one
        int status = 503;
        for (int i = 0; i < 500 && status == 503; i++) {
            a = client_request(&r.client, "GET", "/health", NULL);
            status = a.status;
            response_free(&a);
            usleep(10000);
        }
        assert_int_equal(status, 200);
        expect_answer(&r);
    }
    kill(r.pid, SIGTERM);
    assert_int_equal(expect_report(&r, 'X'), 0);
    finish(&r, false);
}

// One that cannot be started again: who waits gets an error, new requests none of their own, and
// the server ends and says why. Signals meanwhile, of what ends the job, change nothing.
static void test_engine_once(void **state)
{
    (void)state;
    for (int signals = 0; signals < 2; signals++) {
        running r;
        msgl_serve_config cfg = config();
        cfg.engine_once = true;
        start_with(&r, ANSWERS, &cfg);
        const int engine = expect_report(&r, 'E');
        r.client.port = expect_report(&r, 'P');
        expect_answer(&r);
        const int fd = ask_to_hang(&r, NULL);
        kill(engine, SIGKILL);
        if (signals) kill(r.pid, SIGTERM);
        response a = client_read(fd);
        assert_int_equal(a.status, 500);
        assert_non_null(strstr(a.body, "engine_stopped"));
        response_free(&a);
        close(fd);
        const report rep = next_report(&r);
        assert_int_equal(rep.kind, 'X'); // and no second engine
        assert_int_equal(rep.value, MSGL_EINTERNAL);
        assert_string_equal(rep.text, "the engine ended (killed by signal 9)");
        finish(&r, false);
    }
}

static void await_health(running *r, const char *text)
{
    for (int i = 0;; i++) {
        response a = client_request(&r->client, "GET", "/health", NULL);
        const bool same = strstr(a.body, text) != NULL;
        if (i == 1000) fail_msg("%s instead of %s", a.body, text);
        response_free(&a);
        if (same) return;
        usleep(10000);
    }
}

static pid_t front_of(const running *r, pid_t engine)
{
    const pid_t front = first_child(r->pid, engine);
    assert_true(front > 0);
    return front;
}

// The front dies: its clients see the end, others are not refused and get the answers of the next
// one, which has the same engine.
static void test_front_killed(void **state)
{
    (void)state;
    running r;
    msgl_serve_config cfg = config();
    cfg.min_life_ms = 0; // every front has lived
    start_with(&r, ANSWERS, &cfg);
    int engine = expect_report(&r, 'E');
    r.client.port = expect_report(&r, 'P');
    pid_t last = 0;
    for (int round = 0; round < 4; round++) {
        const int fd = ask_to_hang(&r, NULL);
        expect_answer(&r);
        const pid_t front = front_of(&r, engine);
        assert_int_not_equal(front, last);
        last = front;
        kill(front, SIGKILL);
        expect_answer(&r);
        assert_true(client_closed(fd));
        close(fd);
    }
    // Both of them, whichever comes first.
    kill(engine, SIGKILL);
    kill(front_of(&r, engine), SIGKILL);
    engine = expect_report(&r, 'E'); // the first new report: none of the rounds had one
    await_health(&r, "\"ok\"");
    expect_answer(&r);
    kill(front_of(&r, engine), SIGKILL);
    kill(engine, SIGKILL);
    (void)expect_report(&r, 'E');
    await_health(&r, "\"ok\"");
    expect_answer(&r);
    kill(r.pid, SIGTERM);
    assert_int_equal(expect_report(&r, 'X'), 0);
    finish(&r, false);
}

// One that dies again and again ends the server; a stop while there is none does not wait for it.
static void test_front_dies_often(void **state)
{
    (void)state;
    running r;
    msgl_serve_config cfg = config();
    cfg.max_failed_starts = 3;
    start_with(&r, ANSWERS, &cfg);
    const int engine = expect_report(&r, 'E');
    r.client.port = expect_report(&r, 'P');
    for (int i = 0; i < 3; i++) {
        expect_answer(&r); // nobody is refused while a new front meets the engine
        kill(front_of(&r, engine), SIGKILL);
    }
    report rep = next_report(&r);
    assert_int_equal(rep.kind, 'X');
    assert_int_equal(rep.value, MSGL_EINTERNAL);
    assert_string_equal(
        rep.text, "the front ended 3 times in a row soon after its start (killed by signal 9)");
    finish(&r, false);

    cfg.restart_delay_ms = 50000;
    start_with(&r, ANSWERS, &cfg);
    const pid_t other = expect_report(&r, 'E');
    r.client.port = expect_report(&r, 'P');
    const pid_t front = front_of(&r, other);
    kill(front, SIGKILL);
    while (first_child(r.pid, other) == front) usleep(1000);
    kill(r.pid, SIGTERM);
    assert_int_equal(expect_report(&r, 'X'), 0);
    finish(&r, false);
}

static int descriptors_of(pid_t pid)
{
    char path[64];
    int n = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    while (readdir(d) != NULL) n++;
    closedir(d);
    return n;
}

// Engines that start and die while there is no front leave no descriptor behind in the supervisor.
static void test_engines_without_a_front(void **state)
{
    (void)state;
    running r;
    msgl_serve_config cfg = config();
    cfg.restart_delay_ms = 100; // the front's third pause is 400 ms, the engine's first two 300 ms
    start_with(&r, ANSWERS, &cfg);
    pid_t engine = expect_report(&r, 'E');
    r.client.port = expect_report(&r, 'P');
    await_health(&r, "\"ok\"");
    const int before = descriptors_of(r.pid);
    for (int i = 0; i < 3; i++) {
        await_health(&r, "\"ok\"");
        kill(front_of(&r, engine), SIGKILL);
    }
    for (int i = 0; i < 2; i++) {
        kill(engine, SIGKILL);
        engine = expect_report(&r, 'E');
    }
    await_health(&r, "\"ok\"");
    assert_int_equal(descriptors_of(r.pid), before);
    kill(r.pid, SIGTERM);
    assert_int_equal(expect_report(&r, 'X'), 0);
    finish(&r, false);
}

// A front that starts when the engine is dead, and is slow, does not take the next engine for it.
static void test_engine_dead_before_the_front(void **state)
{
    (void)state;
    running r;
    msgl_serve_config cfg = config();
    cfg.restart_delay_ms = 100;
    start_with(&r, ANSWERS, &cfg);
    pid_t engine = expect_report(&r, 'E'), front = 0;
    r.client.port = expect_report(&r, 'P');
    for (int i = 0; i < 3; i++) { // the front's third pause is 400 ms
        await_health(&r, "\"ok\"");
        kill(front_of(&r, engine), SIGKILL);
    }
    for (int i = 0; i < 2;
         i++) { // the engine's are 100, 200, 400 ms: two starts before the front's
        kill(engine, SIGKILL);
        engine = expect_report(&r, 'E');
    }
    kill(engine, SIGKILL);
    while ((front = first_child(r.pid, engine)) <= 0) usleep(500);
    kill(front, SIGSTOP);
    engine = expect_report(&r, 'E');
    kill(front, SIGCONT);
    await_health(&r, "\"ok\"");
    struct pollfd p = {.fd = r.reports, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 3500),
                     0); // as long as an engine without a front may live, and longer
    expect_answer(&r);
    kill(r.pid, SIGTERM);
    assert_int_equal(expect_report(&r, 'X'), 0);
    finish(&r, false);
}

// The processes of two replicas' engines, in the order of replicas.
static void expect_engines(running *r, int pid[2])
{
    for (int i = 0; i < 2; i++) {
        const report rep = next_report(r);
        assert_int_equal(rep.kind, 'E');
        pid[rep.text[0] - '0'] = rep.value;
    }
}

// Two replicas: each dies and comes back by itself, with the requests that it had.
static void test_replicas(void **state)
{
    (void)state;
    running r;
    msgl_serve_config cfg = config();
    cfg.front.num_replicas = 2;
    cfg.front.routing = MSGL_ROUTING_ROUND_ROBIN;
    start_with(&r, ANSWERS, &cfg);
    int pid[2];
    expect_engines(&r, pid);
    r.client.port = expect_report(&r, 'P');
    for (int round = 0; round < 4; round++) {
        const int victim = round % 2;
        int fd[2], hangs[2]; // both engines hang on one
        for (int i = 0; i < 2; i++) fd[i] = ask_to_hang(&r, &hangs[i]);
        assert_int_not_equal(hangs[0], hangs[1]);
        kill(pid[victim], SIGKILL);
        const report rep = next_report(&r);
        assert_int_equal(rep.kind, 'E');
        assert_int_equal(rep.text[0] - '0', victim);
        assert_int_not_equal(rep.value, pid[victim]);
        pid[victim] = rep.value;
        await_health(&r, "\"serving\":2");
        // The victim's request has failed, the other one still waits.
        const int failed = hangs[0] == victim ? 0 : 1;
        response a = client_read(fd[failed]);
        assert_int_equal(a.status, 500);
        assert_non_null(strstr(a.body, "engine_stopped"));
        response_free(&a);
        char c;
        assert_int_equal(recv(fd[1 - failed], &c, 1, MSG_PEEK | MSG_DONTWAIT), -1);
        assert_int_equal(errno, EAGAIN);
        for (int i = 0; i < 2; i++) close(fd[i]);
        for (int i = 0; i < 2; i++) expect_answer(&r);
    }
    kill(r.pid, SIGTERM);
    assert_int_equal(expect_report(&r, 'X'), 0);
    finish(&r, false);
}

// A replica that does not come back is tried again and again while another one serves; one that
// never was ready ends the server.
static void test_replica_fails(void **state)
{
    (void)state;
    running r;
    msgl_serve_config cfg = config();
    cfg.front.num_replicas = 2;
    cfg.max_failed_starts = 2;
    start_with(&r, ONE_FAILS, &cfg);
    int pid[2];
    expect_engines(&r, pid);
    r.client.port = expect_report(&r, 'P');
    kill(pid[1], SIGKILL);
    for (int i = 0; i < 4; i++) {
        const report rep = next_report(&r);
        assert_int_equal(rep.kind, 'E');
        assert_int_equal(rep.text[0], '1');
        expect_answer(&r);
    }
    kill(r.pid, SIGTERM);
    report rep;
    do {
        rep = next_report(&r);
    } while (rep.kind == 'E');
    assert_int_equal(rep.kind, 'X');
    assert_int_equal(rep.value, 0);
    finish(&r, false);
    start_with(&r, FAILS_LATER, &cfg);
    do {
        rep = next_report(&r);
    } while (rep.kind == 'E');
    assert_int_equal(rep.value, MSGL_EINTERNAL);
    assert_non_null(strstr(rep.text, "weights: too heavy"));
    finish(&r, false);
}

static void expect_failure(running *r, int rc, const char *text)
{
    report rep = next_report(r);
    if (rep.kind == 'E') rep = next_report(r);
    assert_int_equal(rep.kind, 'X');
    assert_int_equal(rep.value, rc);
    if (strstr(rep.text, text) == NULL) fail_msg("'%s' is not in '%s'", text, rep.text);
    finish(r, false);
}

static void test_failed_starts(void **state)
{
    (void)state;
    running r;
    start(&r, FAILS, NULL, 0, 2000);
    expect_failure(&r, MSGL_EINTERNAL, "weights: too heavy");
    start(&r, ANSWERS, "/nonexistent", 0, 2000);
    expect_failure(&r, MSGL_EINTERNAL, "/nonexistent");
    int fd, port;
    msgl_err err;
    assert_int_equal(msgl__tcp_listen("127.0.0.1", 0, &fd, &port, &err), 0);
    start(&r, ANSWERS, NULL, port, 2000);
    expect_failure(&r, MSGL_EIO, "cannot listen on 127.0.0.1");
    close(fd);
    // Fewer files than the server can do anything with.
    msgl_serve_config cfg = config();
    file_limit = 31;
    start_with(&r, ANSWERS, &cfg);
    expect_failure(&r, MSGL_ELIMIT, "may have 31 open files here, and the server needs 32");
    cfg.front.num_replicas = 3;
    cfg.front.batch_dir = "/nonexistent/x";
    file_limit = 83;
    start_with(&r, ANSWERS, &cfg);
    expect_failure(&r, MSGL_ELIMIT, "may have 83 open files here, and the server needs 84");
    file_limit = 0;
}

static double now_ms(void)
{
    return (double)msgl__now_ns() / 1e6;
}

// An engine that fails again and again is started ever more rarely, and then no more. An engine
// that ends right after it said that it was ready has failed, too.
static void test_gives_up(void **state)
{
    (void)state;
    static const behaviour how[] = {FAILS_LATER, ENDS_EARLY};
    for (int i = 0; i < 2; i++) {
        running r;
        msgl_serve_config cfg = config();
        cfg.restart_delay_ms = 40;
        cfg.max_failed_starts = 5;
        start_with(&r, how[i], &cfg);
        const int engine = expect_report(&r, 'E');
        (void)expect_report(&r, 'P');
        if (how[i] == FAILS_LATER) kill(engine, SIGKILL); // the first of five
        double before = now_ms();
        for (int start = 1; start < 5; start++) {
            (void)expect_report(&r, 'E');
            const double after = now_ms();
            const double least = 40 << (start - 1);
            // The clock of the first pause may have started before ours.
            if (start > 1 && after - before < least - 5) {
                fail_msg("start %d after %.0f ms instead of %.0f", start, after - before, least);
            }
            before = after;
        }
        const report rep = next_report(&r);
        assert_int_equal(rep.kind, 'X');
        assert_int_equal(rep.value, MSGL_EINTERNAL);
        assert_non_null(strstr(rep.text, "the engine ended 5 times in a row"));
        if (how[i] == FAILS_LATER) assert_non_null(strstr(rep.text, "weights: too heavy"));
        finish(&r, false);
    }
}

// One that lived for a while is started again at once, however often, and those that did not count
// from there.
static void test_a_life_resets_the_count(void **state)
{
    (void)state;
    running r;
    msgl_serve_config cfg = config();
    cfg.restart_delay_ms = 20;
    cfg.min_life_ms = 30;
    cfg.max_failed_starts = 2;
    start_with(&r, ANSWERS, &cfg);
    int engine = expect_report(&r, 'E');
    r.client.port = expect_report(&r, 'P');
    for (int round = 0; round < 4; round++) {
        for (int status = 0; status != 200; usleep(5000)) {
            response a = client_request(&r.client, "GET", "/health", NULL);
            status = a.status;
            response_free(&a);
        }
        usleep(60000);
        kill(engine, SIGKILL);
        engine = expect_report(&r, 'E');
        kill(engine, SIGKILL); // the first of two
        engine = expect_report(&r, 'E');
    }
    kill(r.pid, SIGTERM);
    assert_int_equal(expect_report(&r, 'X'), 0);
    finish(&r, false);
}

static int health(running *r, char body[128])
{
    response a = client_request(&r->client, "GET", "/health", NULL);
    const int status = a.status;
    (void)snprintf(body, 128, "%s", a.body);
    response_free(&a);
    return status;
}

// An engine that hangs is no healthy server; one that computes for long is.
static void test_hung_engine(void **state)
{
    (void)state;
    running r;
    char body[128];
    msgl_serve_config cfg = config();
    cfg.front.max_silence_s = 2;
    start_with(&r, ANSWERS, &cfg);
    const int engine = expect_report(&r, 'E');
    r.client.port = expect_report(&r, 'P');
    const int fd = client_open(&r.client);
    client_post(fd, "/v1/completions", "{\"prompt\":\"long\",\"max_tokens\":1}");
    for (const double end = now_ms() + LONG_MS - 200; now_ms() < end; usleep(50000)) {
        if (health(&r, body) != 200) fail_msg("while it computes: %s", body);
    }
    response a = client_read(fd);
    assert_int_equal(a.status, 200);
    response_free(&a);
    close(fd);
    kill(engine, SIGSTOP);
    const double stopped = now_ms();
    while (health(&r, body) == 200 && now_ms() - stopped < 30000) usleep(50000);
    assert_non_null(strstr(body, "\"status\":\"engine does not respond\""));
    assert_true(now_ms() - stopped >= 1000); // not at the first beat that is late
    a = client_request(&r.client, "GET", "/get_server_info", NULL);
    assert_int_equal(a.status, 503); // and does not wait for it
    response_free(&a);
    kill(engine, SIGCONT);
    while (health(&r, body) != 200 && now_ms() - stopped < 60000) usleep(50000);
    assert_string_equal(body, "{\"status\":\"ok\"}");
    expect_answer(&r);
    kill(r.pid, SIGTERM);
    assert_int_equal(expect_report(&r, 'X'), 0);
    finish(&r, false);
}

// An engine whose step does not end, and one that stands still though several ranks need it, are
// ended in time: the client hears of it, and another engine serves.
static void test_watchdog(void **state)
{
    (void)state;
    static const behaviour how[] = {ANSWERS, BEATS};
    for (int i = 0; i < 2; i++) {
        running r;
        char body[128];
        msgl_serve_config cfg = config();
        cfg.watchdog_timeout_s = 1;
        start_with(&r, how[i], &cfg);
        const int engine = expect_report(&r, 'E');
        r.client.port = expect_report(&r, 'P');
        const int fd = client_open(&r.client);
        client_post(fd, "/v1/completions", "{\"prompt\":\"long\",\"max_tokens\":1}");
        response a = client_read(fd); // LONG_MS, no step begun: nobody minds
        assert_int_equal(a.status, 200);
        response_free(&a);
        const double before = now_ms();
        client_post(fd, "/v1/completions",
                    how[i] == BEATS ? "{\"prompt\":\"hang\"}" : "{\"prompt\":\"step\"}");
        if (how[i] == BEATS) {
            (void)expect_report(&r, 'H');
            kill(engine, SIGSTOP);
        }
        a = client_read(fd);
        const double ms = now_ms() - before;
        assert_int_equal(a.status, 500);
        assert_non_null(strstr(a.body, "engine_stopped"));
        assert_true(ms >= (how[i] == BEATS ? 1400 : 1000));
        if (ms > 2000) print_message("the client heard after %.0f ms\n", ms);
        response_free(&a);
        close(fd);
        assert_int_not_equal(expect_report(&r, 'E'), engine);
        while (health(&r, body) != 200) usleep(20000);
        expect_answer(&r);
        kill(r.pid, SIGTERM);
        assert_int_equal(expect_report(&r, 'X'), 0);
        finish(&r, false);
    }
}

// A process that stands still without a step is ended in time and another one started: an engine,
// whose successor answers the client that waits, and a front, which costs no engine.
static void test_silence(void **state)
{
    (void)state;
    running r;
    char body[128];
    msgl_serve_config cfg = config();
    cfg.engine_silence_ms = 3000; // the front looks once a second, and has to miss two beats
    cfg.front_silence_ms = 500;   // it beats ten times as often
    cfg.front.beat_ms = 50;
    start_with(&r, ANSWERS, &cfg);
    const int engine = expect_report(&r, 'E');
    r.client.port = expect_report(&r, 'P');
    kill(engine, SIGSTOP);
    const int fd = client_open(&r.client);
    client_post(fd, "/v1/completions", "{\"prompt\":\"abc\",\"max_tokens\":1}");
    response a = client_read(fd);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "\"text\":\"a\""));
    response_free(&a);
    close(fd);
    const int second = expect_report(&r, 'E');
    assert_int_not_equal(second, engine);
    assert_int_equal(health(&r, body), 200);
    expect_answer(&r);
    const pid_t front = first_child(r.pid, (pid_t)second);
    assert_true(front > 0);
    kill(front, SIGSTOP);
    expect_answer(&r); // of the next one, whose socket is the same
    assert_int_not_equal(first_child(r.pid, (pid_t)second), front);
    assert_int_equal(kill(second, 0), 0);
    kill(r.pid, SIGTERM);
    assert_int_equal(expect_report(&r, 'X'), 0);
    finish(&r, false);
}

// With few descriptors, clients that take all they can get leave the one that a new engine needs.
static void test_few_descriptors(void **state)
{
    (void)state;
    static const rlim_t limits[] = {40, 128, 256};
    for (int i = 0; i < 3; i++) {
        running r;
        msgl_serve_config cfg = config();
        cfg.restart_delay_ms = 300;
        file_limit = limits[i];
        start_with(&r, ANSWERS, &cfg);
        file_limit = 0;
        const int engine = expect_report(&r, 'E');
        r.client.port = expect_report(&r, 'P');
        int idle[600];
        for (int k = 0; k < 300; k++) idle[k] = client_open(&r.client);
        usleep(100000);
        kill(engine, SIGKILL);
        usleep(50000); // the old channel is closed: more clients want what it had
        for (int k = 300; k < 600; k++) idle[k] = client_open(&r.client);
        (void)expect_report(&r, 'E');
        usleep(50000);
        for (int k = 0; k < 600; k++) close(idle[k]);
        int status = 0;
        for (int k = 0; k < 500 && status != 200; k++) {
            usleep(10000);
            response a = client_request(&r.client, "GET", "/health", NULL);
            status = a.status;
            response_free(&a);
        }
        assert_int_equal(status, 200);
        expect_answer(&r);
        kill(r.pid, SIGTERM);
        assert_int_equal(expect_report(&r, 'X'), 0); // and no engine before it
        finish(&r, false);
    }
}

static void test_stop_while_loading(void **state)
{
    (void)state;
    running r;
    start(&r, NEVER_READY, NULL, 0, 30000);
    (void)expect_report(&r, 'E');
    kill(r.pid, SIGTERM);
    assert_int_equal(expect_report(&r, 'X'), 0);
    finish(&r, false);
}

static void test_second_signal(void **state)
{
    (void)state;
    running r;
    start(&r, ANSWERS, NULL, 0, 60000);
    (void)expect_report(&r, 'E');
    r.client.port = expect_report(&r, 'P');
    const int fd = ask_to_hang(&r, NULL);
    kill(r.pid, SIGINT);
    usleep(100000);
    kill(r.pid, SIGINT);
    assert_int_equal(expect_report(&r, 'X'), MSGL_EABORTED);
    close(fd);
    finish(&r, false);
}

// The supervisor itself is killed: the others do not outlive it.
static void test_supervisor_killed(void **state)
{
    (void)state;
    running r;
    start(&r, ANSWERS, NULL, 0, 2000);
    (void)expect_report(&r, 'E');
    r.client.port = expect_report(&r, 'P');
    kill(r.pid, SIGKILL);
    finish(&r, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start_and_stop),
        cmocka_unit_test(test_foreign_pages),
        cmocka_unit_test(test_engine_killed),
        cmocka_unit_test(test_engine_once),
        cmocka_unit_test(test_front_killed),
        cmocka_unit_test(test_front_dies_often),
        cmocka_unit_test(test_engines_without_a_front),
        cmocka_unit_test(test_engine_dead_before_the_front),
        cmocka_unit_test(test_failed_starts),
        cmocka_unit_test(test_gives_up),
        cmocka_unit_test(test_a_life_resets_the_count),
        cmocka_unit_test(test_hung_engine),
        cmocka_unit_test(test_watchdog),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_few_descriptors),
        cmocka_unit_test(test_stop_while_loading),
        cmocka_unit_test(test_second_signal),
        cmocka_unit_test(test_supervisor_killed),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_replica_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
