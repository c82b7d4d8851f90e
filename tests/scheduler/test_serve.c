// SPDX-License-Identifier: Apache-2.0
//
// The scheduler behind a channel, on a thread of its own with the engine on a third: what the front
// sees, and that the loop ends when it should.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_runner.h"
#include "scheduler/scheduler.h"
#include "utils/heartbeat.h"
#include "utils/packet.h"

enum { WAIT_MS = 60000 };

typedef struct served {
    fake_runner fake;
    msgl_options options;
    msgl_scheduler_config cfg;
    msgl_channel *front, *back;
    pthread_t thread;
    int rc;
    msgl_err err;
    double cpu_s; // of the serving thread
} served;

static const msgl_msg_ready READY = {.max_seq_len = 256,
                                     .max_running = 4,
                                     .num_pages = 128,
                                     .page_size = 4,
                                     .vocab_size = 16,
                                     .attention = "fa",
                                     .device = "test",
                                     .embed_size = 64};

static void *serve(void *arg)
{
    served *v = arg;
    v->rc = msgl__scheduler_serve(&v->options, &v->cfg, &v->fake.runner, &READY, v->back, &v->err);
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    v->cpu_s = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    msgl__channel_destroy(v->back);
    return NULL;
}

// Tests have a static one each: what fails leaves its threads running.
static void start(served *v, bool socket)
{
    memset(v, 0, sizeof *v);
    const msgl_cache_layout layout = fake_layout(128, 4);
    fake_init(&v->fake, 4, 256, &layout, 16, true);
    v->options = (msgl_options){
        .cache_type = "radix", .max_running = 4, .max_prefill_tokens = 64, .overlap = 1};
    v->cfg = (msgl_scheduler_config){
        .max_seq_len = 256, .cache = layout, .vocab_size = 16, .tables = v->fake.tables};
    msgl_err err;
    if (socket) {
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
        assert_int_equal(msgl__channel_from_fd(fds[0], &v->front, &err), 0);
        assert_int_equal(msgl__channel_from_fd(fds[1], &v->back, &err), 0);
    } else {
        assert_int_equal(msgl__channel_pair_local(&v->front, &v->back, &err), 0);
    }
}

static void finish(served *v)
{
    pthread_join(v->thread, NULL);
    if (v->front != NULL) msgl__channel_destroy(v->front);
    assert_false(v->fake.steps[0].in_flight || v->fake.steps[1].in_flight);
    assert_string_equal(v->fake.fault, "");
    fake_free(&v->fake);
}

static void post(served *v, msgl_msg m)
{
    assert_int_equal(msgl__channel_send(v->front, &m), 0);
}

static void send_request(served *v, uint64_t uid, int32_t n, int32_t max_tokens)
{
    int32_t ids[256];
    for (int32_t i = 0; i < n; i++) ids[i] = (int32_t)((uid * 7 + (uint64_t)i * 3) % 16);
    msgl_sampling_params p = msgl__sampling_params_default();
    p.max_tokens = max_tokens;
    post(v, (msgl_msg){.type = MSGL_MSG_REQUEST,
                       .u.request = {.uid = uid, .num_ids = n, .ids = ids, .sampling = p}});
}

static msgl_msg receive_any(served *v)
{
    msgl_msg m;
    assert_int_equal(msgl__channel_recv(v->front, WAIT_MS, &m), 1);
    return m;
}

// What it says of its own accord, once a second, may stand between any two answers.
static msgl_msg receive(served *v)
{
    msgl_msg m = receive_any(v);
    while (m.type == MSGL_MSG_REPORT) m = receive_any(v);
    return m;
}

// Starts it; the first thing it says is that it is ready.
static void go(served *v)
{
    assert_int_equal(pthread_create(&v->thread, NULL, serve, v), 0);
    const msgl_msg m = receive(v);
    assert_int_equal(m.type, MSGL_MSG_READY);
    assert_int_equal(m.u.ready.num_pages, 128);
}

// Reads events until all of `n` requests have ended; counts their tokens by uid.
static void collect(served *v, int n, int32_t *tokens, msgl_finish *ends)
{
    while (n > 0) {
        const msgl_msg m = receive(v);
        assert_int_equal(m.type, MSGL_MSG_TOKENS);
        for (int32_t i = 0; i < m.u.tokens.num_events; i++) {
            const msgl_token_event *e = &m.u.tokens.events[i];
            tokens[e->uid] += e->num_tokens;
            if (e->finish == MSGL_FINISH_NONE) continue;
            ends[e->uid] = e->finish;
            n--;
        }
    }
}

static void test_requests(void **state)
{
    (void)state;
    for (int socket = 0; socket < 2; socket++) {
        static served v;
        start(&v, socket);
        go(&v);
        int32_t tokens[20] = {0};
        msgl_finish ends[20] = {0};
        for (uint64_t uid = 0; uid < 10; uid++) send_request(&v, uid, 40 + (int32_t)uid, 9);
        send_request(&v, 10, 256, 1); // refused
        collect(&v, 11, tokens, ends);
        for (int i = 0; i < 10; i++) {
            assert_int_equal(tokens[i], 9);
            assert_int_equal(ends[i], MSGL_FINISH_LENGTH);
        }
        assert_int_equal(ends[10], MSGL_FINISH_ERROR);
        post(&v, (msgl_msg){.type = MSGL_MSG_GET_STATS});
        msgl_msg m = receive(&v);
        assert_int_equal(m.type, MSGL_MSG_STATS);
        assert_int_equal(m.u.stats.requests_done, 10);
        assert_true(m.u.stats.cached_pages > 0);
        const int32_t cached = m.u.stats.cached_pages, size = READY.page_size;
        post(&v, (msgl_msg){.type = MSGL_MSG_GET_TREE});
        m = receive(&v);
        assert_int_equal(m.type, MSGL_MSG_TREE);
        assert_true(m.u.tree.all && m.u.tree.num_runs > 0);
        int64_t in_runs = 0;
        for (int i = 0; i < m.u.tree.num_runs; i++) in_runs += m.u.tree.runs[i].tokens;
        assert_true(in_runs == m.u.tree.tokens && in_runs == (int64_t)cached * size);
        post(&v, (msgl_msg){.type = MSGL_MSG_FLUSH});
        m = receive(&v);
        assert_int_equal(m.type, MSGL_MSG_STATS);
        assert_int_equal(m.u.stats.free_pages, 128);
        post(&v, (msgl_msg){.type = MSGL_MSG_EXIT});
        finish(&v);
        assert_int_equal(v.rc, 0);
    }
}

// Reports come without being asked for, with what the steps so far have counted.
static void test_report(void **state)
{
    (void)state;
    static served v;
    start(&v, true);
    go(&v);
    int32_t tokens[20] = {0};
    msgl_finish ends[20] = {0};
    send_request(&v, 1, 40, 9);
    collect(&v, 1, tokens, ends);
    msgl_msg m = receive_any(&v);
    while (m.type == MSGL_MSG_REPORT && m.u.report.stats.requests_done == 0) m = receive_any(&v);
    assert_int_equal(m.type, MSGL_MSG_REPORT);
    const msgl_msg_report *r = &m.u.report;
    uint64_t steps = 0;
    for (int i = 0; i <= MSGL_DURATION_BOUNDS; i++) steps += r->steps.counts[i];
    assert_int_equal(r->stats.requests_done, 1);
    assert_int_equal(r->stats.generated_tokens, 9);
    assert_true(steps == r->stats.step && steps >= 9);
    assert_int_equal(r->num_groups, 1);
    assert_int_equal(r->groups[0].total, 128);
    assert_int_equal(r->groups[0].cached, r->stats.cached_pages);
    assert_true(r->process.memory > 0 && r->process.cpu_us > 0);
    post(&v, (msgl_msg){.type = MSGL_MSG_EXIT});
    finish(&v);
}

static void test_abort(void **state)
{
    (void)state;
    static served v;
    start(&v, true);
    go(&v);
    int32_t tokens[4] = {0};
    msgl_finish ends[4] = {0};
    pthread_mutex_lock(&v.fake.mutex); // the engine does nothing until all is on its way
    send_request(&v, 1, 200, 50);
    send_request(&v, 2, 100, 5);
    post(&v, (msgl_msg){.type = MSGL_MSG_ABORT, .u.abort_uid = 1});
    pthread_mutex_unlock(&v.fake.mutex);
    collect(&v, 2, tokens, ends);
    assert_int_equal(ends[1], MSGL_FINISH_ABORT);
    assert_int_equal(ends[2], MSGL_FINISH_LENGTH);
    assert_int_equal(tokens[2], 5);
    post(&v, (msgl_msg){.type = MSGL_MSG_EXIT});
    finish(&v);
    assert_int_equal(v.rc, 0);
}

// The front dies with work in flight: the loop ends, and has waited for the engine.
static void test_front_dies(void **state)
{
    (void)state;
    for (int socket = 0; socket < 2; socket++) {
        static served v;
        start(&v, socket);
        go(&v);
        for (uint64_t uid = 0; uid < 8; uid++) send_request(&v, uid, 100, 150);
        receive(&v);
        msgl__channel_destroy(v.front);
        v.front = NULL;
        finish(&v);
        assert_int_equal(v.rc, 0);
    }
}

// Another front follows one that died with work in flight: the next thing that it hears is READY,
// nothing of the requests of the last one, whose uids it uses again, and their pages are free.
static void test_next_front(void **state)
{
    (void)state;
    static served v;
    int line[2];
    msgl_err err;
    msgl_heartbeat *life;
    const struct timespec pause = {.tv_nsec = 1000000};
    start(&v, true);
    assert_int_equal(msgl__heartbeat_create(&life, NULL), 0);
    v.cfg.heartbeat = life;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, line), 0);
    msgl__channel_set_line(v.back, line[1]);
    go(&v);
    uint64_t aborted = 0;
    for (int round = 0; round < 3; round++) {
        // The engine stands still while its front dies: some run, others wait, none is done.
        while (atomic_load(&life->ended) != atomic_load(&life->begun)) nanosleep(&pause, NULL);
        pthread_mutex_lock(&v.fake.mutex);
        const uint64_t before = atomic_load(&life->begun);
        for (uint64_t uid = 0; uid < 8; uid++) send_request(&v, uid, 100, 150);
        while (atomic_load(&life->begun) == before) nanosleep(&pause, NULL);
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
        msgl__channel_destroy(v.front);
        pthread_mutex_unlock(&v.fake.mutex);
        assert_int_equal(msgl__packet_send(line[0], "C", 1, fds[1]), 0);
        close(fds[1]);
        assert_int_equal(msgl__channel_from_fd(fds[0], &v.front, &err), 0);
        assert_int_equal(receive_any(&v).type, MSGL_MSG_READY);
        int32_t tokens[1] = {0};
        msgl_finish ends[1] = {0};
        send_request(&v, 0, 10, 5);
        collect(&v, 1, tokens, ends);
        assert_int_equal(tokens[0], 5);
        assert_int_equal(ends[0], MSGL_FINISH_LENGTH);
        post(&v, (msgl_msg){.type = MSGL_MSG_GET_STATS});
        const msgl_msg m = receive(&v);
        assert_int_equal(m.type, MSGL_MSG_STATS);
        assert_int_equal(m.u.stats.used_pages, 0);
        assert_int_equal(m.u.stats.requests_done, round + 1);
        assert_true(m.u.stats.requests_aborted > aborted);
        aborted = m.u.stats.requests_aborted;
    }
    msgl__channel_destroy(v.front);
    v.front = NULL;
    close(line[0]); // none follows
    finish(&v);
    assert_int_equal(v.rc, 0);
    msgl__heartbeat_destroy(life);
}

typedef struct fake_memory {
    int32_t released;
    bool lacks; // memory for the cache
} fake_memory;

static int on_admin(void *ctx, const msgl_admin *a, msgl_err *err)
{
    fake_memory *f = ctx;
    if (a->kind == MSGL_ADMIN_RELEASE) f->released |= a->tags;
    if (a->kind != MSGL_ADMIN_RESUME) return 0;
    f->released &= f->lacks ? MSGL_MEMORY_CACHE : ~a->tags;
    return f->lacks ? msgl__err_set(err, MSGL_ENOMEM, "none") : 0;
}

static void on_state(void *ctx, msgl_admin_state *out)
{
    const fake_memory *f = ctx;
    out->released = f->released;
    out->unusable = f->released != 0 ? "It sleeps." : NULL;
}

static msgl_msg_admin_done call(served *v, msgl_admin a)
{
    post(v, (msgl_msg){.type = MSGL_MSG_ADMIN, .u.admin = a});
    const msgl_msg m = receive(v);
    assert_int_equal(m.type, MSGL_MSG_ADMIN_DONE);
    return m.u.admin_done;
}

// What an admin hears of the engine is what it is, whatever has become of the call.
static void test_admin_state(void **state)
{
    (void)state;
    static served v;
    fake_memory memory = {.lacks = true};
    start(&v, true);
    v.cfg.admin = (msgl_admin_calls){.ctx = &memory, .admin = on_admin, .state = on_state};
    go(&v);
    msgl_admin a = {.kind = MSGL_ADMIN_RELEASE, .tags = MSGL_MEMORY_ALL};
    msgl_msg_admin_done done = call(&v, a);
    assert_int_equal(done.code, 0);
    assert_int_equal(done.state.released, MSGL_MEMORY_ALL);
    assert_string_equal(done.state.unusable, "It sleeps.");
    a.kind = MSGL_ADMIN_RESUME;
    done = call(&v, a); // the weights' memory comes again
    assert_int_equal(done.code, MSGL_ENOMEM);
    assert_string_equal(done.text, "none");
    assert_int_equal(done.state.released, MSGL_MEMORY_CACHE);
    memory.lacks = false;
    done = call(&v, a);
    assert_int_equal(done.code, 0);
    assert_int_equal(done.state.released, 0);
    assert_null(done.state.unusable);
    assert_true(call(&v, (msgl_admin){.kind = MSGL_ADMIN_PAUSE}).state.paused);
    assert_false(call(&v, (msgl_admin){.kind = MSGL_ADMIN_CONTINUE}).state.paused);
    post(&v, (msgl_msg){.type = MSGL_MSG_EXIT});
    finish(&v);
    assert_int_equal(v.rc, 0);
}

static void test_engine_failure(void **state)
{
    (void)state;
    static served v;
    start(&v, true);
    v.fake.fail_wait_at = 4;
    int32_t tokens[3] = {0};
    msgl_finish ends[3] = {0};
    send_request(&v, 1, 100, 50);
    send_request(&v, 2, 100, 50); // both before the engine runs, and fails
    go(&v);
    collect(&v, 2, tokens, ends);
    assert_int_equal(ends[1], MSGL_FINISH_ERROR);
    assert_int_equal(ends[2], MSGL_FINISH_ERROR);
    const msgl_msg m = receive(&v);
    assert_int_equal(m.type, MSGL_MSG_FATAL);
    assert_string_equal(m.u.fatal, "the engine has failed: internal error");
    finish(&v);
    assert_int_equal(v.rc, MSGL_EINTERNAL);
    assert_string_equal(v.err.text, "the engine has failed: internal error");
}

static void test_bad_config(void **state)
{
    (void)state;
    static served v;
    start(&v, true);
    v.cfg.vocab_size = 0;
    assert_int_equal(pthread_create(&v.thread, NULL, serve, &v), 0);
    assert_int_equal(receive(&v).type, MSGL_MSG_FATAL); // and no READY before it
    finish(&v);
    assert_int_equal(v.rc, MSGL_EINVAL);
}

// With nothing to do the thread sleeps: its CPU time (not the clock, so a slow machine cannot fail
// this) stays below the half second that passes.
static void test_idle_sleeps(void **state)
{
    (void)state;
    static served v;
    start(&v, true);
    go(&v);
    int32_t tokens[2] = {0};
    msgl_finish ends[2] = {0};
    send_request(&v, 1, 10, 3);
    collect(&v, 1, tokens, ends);
    const struct timespec pause = {.tv_nsec = 500000000};
    nanosleep(&pause, NULL);
    post(&v, (msgl_msg){.type = MSGL_MSG_EXIT});
    finish(&v);
    assert_true(v.cpu_s < 0.25);
}

// With nothing to do it still gives signs of life, so that one that hangs can be told from it.
static void test_idle_beats(void **state)
{
    (void)state;
    static served v;
    msgl_heartbeat *life;
    start(&v, true);
    assert_int_equal(msgl__heartbeat_create(&life, NULL), 0);
    v.cfg.heartbeat = life;
    go(&v);
    const struct timespec pause = {.tv_nsec = 50000000};
    for (int round = 0; round < 2; round++) {
        const uint64_t before = msgl__beats(life);
        int waited = 0; // about 10 s at most
        while (msgl__beats(life) == before && waited++ < 200) nanosleep(&pause, NULL);
        assert_true(msgl__beats(life) > before);
    }
    post(&v, (msgl_msg){.type = MSGL_MSG_EXIT});
    finish(&v);
    msgl__heartbeat_destroy(life);
}

// Whoever looks sees that a step is under way as long as it is, and what it is expected to take.
static void test_steps_are_told(void **state)
{
    (void)state;
    static served v;
    msgl_heartbeat *life;
    start(&v, true);
    assert_int_equal(msgl__heartbeat_create(&life, NULL), 0);
    v.cfg.heartbeat = life;
    v.fake.decode_ns = 3000000;
    go(&v);
    int32_t tokens[3] = {0};
    msgl_finish ends[3] = {0};
    const struct timespec pause = {.tv_nsec = 5000000};
    send_request(&v, 1, 10, 30);
    collect(&v, 1, tokens, ends);
    while (atomic_load(&life->ended) != atomic_load(&life->begun)) nanosleep(&pause, NULL);
    assert_true(atomic_load(&life->ended) >= 30);
    pthread_mutex_lock(&v.fake.mutex); // the engine hangs
    send_request(&v, 2, 1, 3);
    const uint64_t before = atomic_load(&life->ended);
    for (int i = 0; i < 2000 && atomic_load(&life->begun) == before; i++) nanosleep(&pause, NULL);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(atomic_load(&life->ended), before);
        assert_int_not_equal(atomic_load(&life->begun), before);
        nanosleep(&pause, NULL);
    }
    pthread_mutex_unlock(&v.fake.mutex);
    collect(&v, 1, tokens, ends);
    while (atomic_load(&life->ended) != atomic_load(&life->begun)) nanosleep(&pause, NULL);
    // The last turns had one or two answers in flight, which take 3 ms each.
    const uint64_t expected = atomic_load(&life->expected_ns);
    assert_in_range(expected, 1, 2 * 3000000 + 1);
    post(&v, (msgl_msg){.type = MSGL_MSG_EXIT});
    finish(&v);
    msgl__heartbeat_destroy(life);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),       cmocka_unit_test(test_report),
        cmocka_unit_test(test_abort),          cmocka_unit_test(test_front_dies),
        cmocka_unit_test(test_next_front),     cmocka_unit_test(test_admin_state),
        cmocka_unit_test(test_engine_failure), cmocka_unit_test(test_bad_config),
        cmocka_unit_test(test_idle_sleeps),    cmocka_unit_test(test_idle_beats),
        cmocka_unit_test(test_steps_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
