// SPDX-License-Identifier: Apache-2.0
//
// Models on several ranks of this host: the log-probabilities that one rank gives, for every
// architecture, and what cannot be shared is refused.
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/dual_models.h"
#include "engine/parity.h"
#include "engine/rank_wire.h"
#include "utils/clock.h"

static void test_parity(void **state)
{
    (void)state;
    int shared = 0;
    for (size_t i = 0; parity_models[i] != NULL; i++) {
        for (int32_t ranks = 2; ranks <= 4; ranks++) {
            const harness_target t = {.ranks = ranks};
            shared += parity_f32(parity_models[i], &t);
        }
    }
    print_message("%d runs\n", shared);
    assert_true(shared >= 50); // most have two heads
}

// Long prompts of a model whose heads keep few distances: each rank knows its heads' pattern.
static void test_sparse_prompts(void **state)
{
    (void)state;
    const harness_target targets[] = {{.attention = "auto"}, {.attention = "auto", .ranks = 2}};
    harness h[2];
    folder f;
    dual_make_sparse(&f, 3);
    for (int i = 0; i < 2; i++) {
        assert_true(parity_prompt(&h[i], f.dir, "qwen2_dual_chunk", "float32", &targets[i]));
    }
    for (int32_t p = 0; p < 64; p++) {
        const float *a = harness_row(&h[0], p), *b = harness_row(&h[1], p);
        for (int32_t i = 0; i < h[0].info->vocab_size; i++) assert_true(fabsf(a[i] - b[i]) < 1e-3f);
    }
    for (int i = 0; i < 2; i++) harness_close(&h[i]);
    folder_remove(&f);
}

static int one_step(harness *h, int32_t from, int32_t to)
{
    msgl_batch_req req = harness_req(3, from, to);
    msgl_batch b = {.size = 1, .num_tokens = to - from, .reqs = &req, .num_decode = 0};
    const int code = h->r->submit(h->r->ctx, &b);
    return code == 0 ? h->r->wait(h->r->ctx, 0, &h->result) : code;
}

// A rank that is killed or stopped ends the step that needs it, with its name, and nobody is left.
static void test_failing_rank(void **state)
{
    (void)state;
    static const int signals[] = {SIGKILL, SIGSTOP};
    for (int i = 0; i < 4; i++) {
        const int32_t ranks = 2 + 2 * (i % 2), bad = ranks - 1;
        const harness_target t = {.ranks = ranks};
        harness h;
        char dir[512], want[64];
        int32_t ids[64];
        parity_path(dir, "deepseek_v2_lite", "prompt.json");
        assert_int_equal(load_ids(dir, "ids", ids, 64), 64);
        parity_path(dir, "deepseek_v2_lite", "");
        msgl_options o = harness_config_for(dir, "float32", &t);
        harness_open(&h, &o);
        harness_pages(&h, 3, 64);
        harness_tokens(&h, 3, ids, 64);
        assert_int_equal(one_step(&h, 0, 40), 0);
        assert_null(h.r->fault(h.r->ctx));
        const uint64_t begin = msgl__now_ns();
        kill(msgl__ranks_process(&h.e->place, bad), signals[i / 2]);
        int code = 0; // of a step or the one behind it: what was sent may not have been read
        for (int32_t at = 40; at < 44 && code == 0; at++) code = one_step(&h, at, at + 1);
        const double seconds = (double)(msgl__now_ns() - begin) * 1e-9;
        assert_int_equal(code, MSGL_EPEER);
        snprintf(want, sizeof want, "rank %d of %d failed", (int)bad, (int)ranks);
        assert_string_equal(h.r->fault(h.r->ctx), want);
        print_message("signal %d: %.2f s\n", signals[i / 2], seconds);
        harness_close(&h);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
        assert_int_equal(errno, ECHILD);
    }
}

// What the others cannot do is rank 0's error, with the rank's name; and nobody is left.
static void test_refused(void **state)
{
    (void)state;
    harness_target t = {.ranks = 2};
    harness h;
    char dir[512];
    parity_path(dir, "llama", "");
    msgl_options o = harness_config_for(dir, "float32", &t);
    msgl_err err = {0};
    o.tp_size = 3;
    assert_int_equal(harness_try_open(&h, &o, &err), MSGL_EUNSUPPORTED);
    assert_string_equal(err.text,
                        "--tp-size 3: num_attention_heads is 2; allowed: a divisor of it");
    o.tp_size = 0;
    assert_int_equal(harness_try_open(&h, &o, &err), MSGL_EINVAL);
    o.tp_size = 2;
    o.attention = "none";
    assert_int_equal(harness_try_open(&h, &o, &err), MSGL_EINVAL);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void *blame_later(void *group)
{
    usleep(200000);
    msgl__group_blame(group, 1);
    return NULL;
}

// Rank 0 does not wait for one that reads no more, and messages come whole.
static void test_wire(void **state)
{
    (void)state;
    enum { LONG = 8 << 20 };
    int pair[2];
    char *data = calloc(1, LONG);
    msgl_group *g;
    msgl_err err = {0};
    msgl_wire w = {0}, got = {0};
    pthread_t thread;
    assert_non_null(data);
    assert_int_equal(msgl__group_create(2, &g, &err), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    for (int i = 0; i < 3; i++) {
        int32_t number = i, back = -1;
        msgl__wire_begin(&w, MSGL_WIRE_EXTRA);
        msgl__wire_put(&w, data, (size_t)i * 1000);
        msgl__wire_put(&w, &number, sizeof number);
        assert_int_equal(msgl__wire_send(&w, pair[0], g), 0);
        assert_int_equal(msgl__wire_receive(&got, pair[1]), MSGL_WIRE_EXTRA);
        assert_true(msgl__wire_get(&got, data, (size_t)i * 1000));
        assert_true(msgl__wire_get(&got, &back, sizeof back));
        assert_int_equal(back, i);
        assert_false(msgl__wire_get(&got, &back, 1));
    }
    msgl__wire_begin(&w, MSGL_WIRE_EXTRA);
    msgl__wire_put(&w, data, LONG);
    assert_int_equal(pthread_create(&thread, NULL, blame_later, g), 0);
    assert_int_equal(msgl__wire_send(&w, pair[0], g), MSGL_EPEER);
    pthread_join(thread, NULL);
    close(pair[1]);
    assert_int_equal(msgl__wire_send(&w, pair[0], NULL), MSGL_EPEER);
    close(pair[0]);
    msgl__wire_free(&w);
    msgl__wire_free(&got);
    msgl__group_destroy(g);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parity),       cmocka_unit_test(test_sparse_prompts),
        cmocka_unit_test(test_failing_rank), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_wire),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
