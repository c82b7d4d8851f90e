// SPDX-License-Identifier: Apache-2.0
//
// Scheduler and engine of a model that embeds or ranks: the last token's hidden state is that of
// transformers (tests/vectors/embeddings), as are the logits behind it, and on one rank the same to
// the last bit, however its prompt was cut, shared and batched.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/attributes.h"
#include "core/settings.h"
#include "engine/engine.h"
#include "scheduler/scheduler.h"

#define VECTORS MSGL_SOURCE_DIR "/tests/vectors/"

enum { LONGEST = 64, DIM = 32, REQUESTS = 4, VOCAB = 260, YES = 121, NO = 110 };
static const int32_t LENGTHS[REQUESTS] = {1, 7, 40, 64};

typedef struct result {
    float values[DIM];
    int32_t events, cached, status;
    msgl_finish finish;
    char text[128];
} result;

typedef struct setting {
    int32_t max_prefill, ranks;
    const char *cache;
    bool overlap, one_by_one, scores;
} setting;

typedef struct server {
    msgl_engine *e;
    msgl_scheduler *s;
    int32_t size; // of a request's values
    result results[REQUESTS];
} server;

static int32_t g_ids[LONGEST + 1];
static float g_want[REQUESTS][DIM];
static float g_logprobs[LONGEST][VOCAB];

static int read_vectors(void **state)
{
    (void)state;
    json_t *prompt = json_load_file(VECTORS "models/qwen3_f32/prompt.json", 0, NULL);
    const json_t *ids = json_object_get(prompt, "ids");
    FILE *f = fopen(VECTORS "embeddings/qwen3_f32.bin", "rb");
    if (json_array_size(ids) < LONGEST || f == NULL) return -1;
    for (size_t i = 0; i < LONGEST; i++) {
        g_ids[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    }
    json_decref(prompt);
    const bool whole = fread(g_want, sizeof g_want, 1, f) == 1;
    if (fclose(f) != 0 || !whole) return -1;
    f = fopen(VECTORS "models/qwen3_f32/expected_f32.bin", "rb");
    if (f == NULL) return -1;
    const bool all = fread(g_logprobs, sizeof g_logprobs, 1, f) == 1;
    return fclose(f) == 0 && all ? 0 : -1;
}

static void on_events(void *ctx, const msgl_msg_tokens *m)
{
    server *o = ctx;
    for (int32_t i = 0; i < m->num_events; i++) {
        const msgl_token_event *e = &m->events[i];
        result *r = &o->results[e->uid];
        r->events++;
        r->finish = e->finish;
        r->status = e->status;
        r->cached = e->cached_tokens;
        snprintf(r->text, sizeof r->text, "%s", e->text == NULL ? "" : e->text);
        assert_int_equal(e->num_tokens, 0);
        assert_int_equal(e->num_values, e->finish == MSGL_FINISH_STOP ? o->size : 0);
        if (e->num_values > 0) memcpy(r->values, e->values, (size_t)o->size * sizeof(float));
    }
}

static void open_server(server *o, const setting *v)
{
    msgl_err err;
    msgl_options c = {0};
    msgl__settings_default(&msgl__engine_settings, &c);
    c.model_dir = VECTORS "models/qwen3_f32";
    c.device = "cpu";
    c.threads = 1;
    c.is_embedding = !v->scores;
    c.is_reranker = v->scores;
    c.score_token_ids[0] = YES;
    c.score_token_ids[1] = NO;
    c.max_running = 3; // of four requests
    c.max_seq_len = LONGEST;
    c.max_prefill_tokens = v->max_prefill;
    c.num_pages = 256;
    c.tp_size = v->ranks;
    c.overlap = v->overlap;
    c.cache_type = v->cache;
    *o = (server){.size = v->scores ? 2 : DIM};
    if (msgl__engine_create(&c, NULL, &o->e, &err) != 0) fail_msg("%s", err.text);
    const msgl_engine_info *info = msgl__engine_info(o->e);
    assert_int_equal(info->pooling, v->scores ? MSGL_POOL_SCORE : MSGL_POOL_EMBED);
    assert_int_equal(info->pooled_size, o->size);
    const msgl_scheduler_config cfg = {.max_seq_len = info->max_seq_len,
                                       .cache = info->cache,
                                       .vocab_size = info->vocab_size,
                                       .pooled_size = info->pooled_size,
                                       .tables = msgl__engine_page_tables(o->e)};
    if (msgl__scheduler_create(&c, &cfg, msgl__engine_runner(o->e), on_events, o, &o->s, &err) !=
        0) {
        fail_msg("%s", err.text);
    }
}

static void close_server(server *o)
{
    msgl__scheduler_destroy(o->s);
    msgl__engine_destroy(o->e);
}

static void work(msgl_scheduler *s)
{
    msgl_err err;
    for (int steps = 0; msgl__scheduler_has_work(s); steps++) {
        assert_true(steps < 10000);
        assert_int_equal(msgl__scheduler_step(s), 0);
        if (msgl__scheduler_check(s, &err) != 0) fail_msg("%s", err.text);
    }
}

static msgl_msg_request request(uint64_t uid, int32_t len)
{
    return (msgl_msg_request){
        .uid = uid, .num_ids = len, .ids = g_ids, .sampling = msgl__sampling_params_default()};
}

static void run(server *o, const setting *v)
{
    open_server(o, v);
    for (int i = 0; i < REQUESTS; i++) {
        const msgl_msg_request r = request((uint64_t)i, LENGTHS[i]);
        msgl__scheduler_add(o->s, &r);
        if (v->one_by_one) work(o->s);
    }
    work(o->s);
    msgl_msg_stats st;
    msgl__scheduler_stats(o->s, &st);
    assert_int_equal(st.requests_done, REQUESTS);
    assert_int_equal(st.generated_tokens, 0);
    close_server(o);
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(o->results[i].events, 1);
        assert_int_equal(o->results[i].finish, MSGL_FINISH_STOP);
        for (int d = 0; d < DIM && !v->scores; d++) {
            const float got = o->results[i].values[d];
            if (!(fabsf(got - g_want[i][d]) < 1e-4f)) {
                fail_msg("request %d: value %d is %g, not %g", i, d, (double)got,
                         (double)g_want[i][d]);
            }
        }
    }
}

// The difference of two logits is that of transformers' log-probabilities.
static void check_scores(const server *o)
{
    for (int i = 0; i < REQUESTS; i++) {
        const float *values = o->results[i].values, *want = g_logprobs[LENGTHS[i] - 1];
        const float got = values[0] - values[1];
        if (!(fabsf(got - (want[YES] - want[NO])) < 1e-4f)) {
            fail_msg("request %d: %g, not %g", i, (double)got, (double)(want[YES] - want[NO]));
        }
    }
}

static void test_scores(void **state)
{
    (void)state;
    static const setting settings[] = {
        {4096, 1, "naive", true, false, true},
        {5, 1, "radix", true, true, true},
    };
    static server o;
    for (size_t i = 0; i < MSGL_COUNT(settings); i++) {
        run(&o, &settings[i]);
        check_scores(&o);
    }
}

static void test_values(void **state)
{
    (void)state;
    static const setting settings[] = {
        {4096, 1, "naive", false, true, false}, {4096, 1, "naive", true, false, false},
        {5, 1, "naive", true, false, false},    {5, 1, "radix", true, true, false},
        {4096, 1, "radix", false, true, false},
    };
    static server first, o;
    run(&first, &settings[0]);
    for (size_t i = 1; i < MSGL_COUNT(settings); i++) {
        run(&o, &settings[i]);
        for (int r = 0; r < REQUESTS; r++) {
            assert_memory_equal(o.results[r].values, first.results[r].values, sizeof(float) * DIM);
        }
        const bool shares = strcmp(settings[i].cache, "radix") == 0;
        for (int r = 1; r < REQUESTS && shares; r++) { // the prompt before it
            assert_int_equal(o.results[r].cached, LENGTHS[r - 1]);
        }
    }
}

static void test_ranks(void **state)
{
    (void)state;
    static server o;
    run(&o, &(setting){7, 2, "radix", true, false, false});
    run(&o, &(setting){7, 2, "radix", true, false, true});
    check_scores(&o);
}

// What is not for an engine that pools; a prompt may fill the whole context; one that is left is
// ended.
static void test_refused(void **state)
{
    (void)state;
    static server o;
    open_server(&o, &(setting){5, 1, "radix", true, false, false});
    msgl_msg_request r = request(0, LONGEST + 1);
    msgl__scheduler_add(o.s, &r);
    assert_int_equal(o.results[0].status, MSGL_ELIMIT);
    r = request(1, 7);
    r.sampling.logprobs = 1;
    msgl__scheduler_add(o.s, &r);
    assert_int_equal(o.results[1].status, MSGL_EINVAL);
    assert_string_equal(o.results[1].text, "a prompt to embed has fields of an answer");
    r = request(2, LONGEST);
    msgl__scheduler_add(o.s, &r);
    assert_int_equal(msgl__scheduler_step(o.s), 0);
    msgl__scheduler_abort(o.s, 2);
    assert_int_equal(o.results[2].finish, MSGL_FINISH_ABORT);
    work(o.s);
    assert_int_equal(o.results[2].events, 1);
    close_server(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks), // first: ranks are forked before there are threads
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, read_vectors, NULL);
}
