// SPDX-License-Identifier: Apache-2.0
//
// Captured decode steps: which sizes are captured, which graph a step takes, and that a step of
// fewer requests than its graph holds chooses the tokens that it chooses without one. The CPU has
// no graphs, so its device gets stand-ins: what was captured is computed again when it is launched,
// from where it read and wrote at the time.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "engine/harness.h"

#define MODEL MSGL_SOURCE_DIR "/tests/vectors/models/qwen3"
#define WINDOWS MSGL_SOURCE_DIR "/tests/vectors/models/gemma2" // two groups of layers

enum { SHORT = 8192, LONG = 40960 };

static const msgl_decode_graph GRAPHS[] = {
    {.size = 1, .max_seq_len = SHORT}, {.size = 1, .max_seq_len = LONG},
    {.size = 2, .max_seq_len = SHORT}, {.size = 2, .max_seq_len = LONG},
    {.size = 4, .max_seq_len = SHORT}, {.size = 4, .max_seq_len = LONG},
    {.size = 8, .max_seq_len = LONG},  {.size = 16, .max_seq_len = LONG},
};

static void expect_graph(msgl_engine *e, int32_t size, int32_t seq_len, int32_t want_size,
                         int32_t want_len)
{
    const msgl_decode_graph *g = msgl__graphs_find(e, false, size, seq_len);
    assert_non_null(g);
    assert_int_equal(g->size, want_size);
    assert_int_equal(g->max_seq_len, want_len);
}

static void test_find(void **state)
{
    (void)state;
    msgl_engine *e = msgl__calloc(1, sizeof *e);
    assert_non_null(e);
    for (size_t i = 0; i < MSGL_COUNT(GRAPHS); i++) e->graphs[i] = GRAPHS[i];
    e->num_graphs = (int32_t)MSGL_COUNT(GRAPHS);
    expect_graph(e, 1, 1, 1, SHORT);
    expect_graph(e, 1, SHORT, 1, SHORT);
    expect_graph(e, 1, SHORT + 1, 1, LONG);
    expect_graph(e, 3, 100, 4, SHORT);
    expect_graph(e, 3, LONG, 4, LONG);
    expect_graph(e, 5, 100, 8, LONG);
    expect_graph(e, 16, LONG, 16, LONG);
    assert_null(msgl__graphs_find(e, false, 17, 1));
    assert_null(msgl__graphs_find(e, false, 1, LONG + 1));
    e->num_graphs = 0;
    assert_null(msgl__graphs_find(e, false, 1, 1));
    msgl__free(e);
}

// What stands in for a GPU. One engine at a time, so that the device's functions find it.
static struct {
    msgl_engine *e;
    msgl_device_ops ops;
    msgl_attn_desc desc;
    const msgl_device_ops *real_ops;
    const msgl_attn_desc *real_desc;
    void (*sample)(msgl_exec *x, const msgl_sample_call *c);
    int32_t sizes[MSGL_MAX_GRAPHS], num_captured, fail_at, short_len, num_launched;
    int32_t num_chosen; // tokens by the graphs themselves
    bool capturing;
} gpu;

struct msgl_graph {
    msgl_engine_step step; // as it was captured
    const float *logits;
};

static void begin(msgl_device *d)
{
    (void)d;
    gpu.capturing = true;
}

static msgl_graph *end(msgl_device *d, msgl_err *err)
{
    (void)d;
    const msgl_engine_step *s = &gpu.e->steps[0];
    assert_true(gpu.capturing);
    gpu.capturing = false;
    gpu.sizes[gpu.num_captured++] = s->batch.size;
    if (gpu.num_captured == gpu.fail_at) {
        msgl__err_set(err, MSGL_EDEVICE, "no more graphs");
        return NULL;
    }
    msgl_graph *g = calloc(1, sizeof *g);
    assert_non_null(g);
    g->step = *s;
    return g;
}

// Its inputs are where the captured step has them on the device; only the lengths, which the CPU's
// kernels read from the host, are those of the step that runs.
static void launch(msgl_device *d, msgl_graph *g)
{
    (void)d;
    gpu.num_launched++;
    msgl_engine_step s = g->step;
    for (int i = 0; i < MSGL_ENGINE_STEP_SLOTS; i++) {
        const msgl_engine_step *now = &gpu.e->steps[i];
        if (!now->in_flight || now->graph == NULL || now->graph->graph != g) continue;
        memcpy(s.seqs, now->seqs, sizeof s.seqs);
        s.num_seqs = now->num_seqs;
        const msgl_seqs *seqs = &s.seqs[0];
        assert_int_equal(s.num_seqs, 1);
        assert_true(seqs->graph);
        assert_int_equal(seqs->size, now->graph->size);
        assert_int_equal(seqs->max_seqlen_k, now->graph->max_seq_len);
        for (int32_t k = 0; k < seqs->size; k++) {
            assert_true(seqs->seqlens_k[k] <= now->graph->max_seq_len);
        }
        msgl_logits l;
        assert_true(msgl__step_forward(gpu.e, &s, &l));
        assert_ptr_equal(l.whole, now->graph->logits.whole);
        return;
    }
    fail_msg("a graph of no step was launched");
}

static void drop(msgl_device *d, msgl_graph *g)
{
    (void)d;
    free(g);
}

static void inputs_begin(msgl_device *d)
{
    (void)d;
}

static int32_t short_seq_len(const msgl_attn_backend *b, int32_t size)
{
    (void)b;
    return size <= 4 ? gpu.short_len : 0;
}

// What a graph samples is known when it is launched, and its kernel knows no filters. The CPU's
// sampler gets it as it gets what is sampled behind a graph.
static void sample(msgl_exec *x, const msgl_sample_call *c)
{
    msgl_sample_call call = *c;
    if (c->replay != NULL) {
        call.num_rows = c->replay->num_rows;
        call.tokens = c->replay->tokens;
        call.status = c->replay->status;
        call.replay = NULL;
        assert_false(c->any_filter);
        gpu.num_chosen += call.num_rows;
    }
    if (call.num_rows > 0) gpu.sample(x, &call);
}

static void pretend(harness *h)
{
    msgl_engine *e = h->e;
    memset(&gpu, 0, sizeof gpu);
    gpu.e = e;
    gpu.real_ops = e->device->ops;
    gpu.ops = *gpu.real_ops;
    gpu.ops.graph_begin = begin;
    gpu.ops.graph_end = end;
    gpu.ops.graph_launch = launch;
    gpu.ops.graph_destroy = drop;
    gpu.ops.inputs_begin = inputs_begin;
    e->device->ops = &gpu.ops;
    gpu.real_desc = e->groups[0].attn.decode->desc; // of all groups
    gpu.desc = *gpu.real_desc;
    gpu.desc.graph = true;
    gpu.desc.short_seq_len = short_seq_len;
    for (int32_t g = 0; g < e->specs.count; g++) e->groups[g].attn.decode->desc = &gpu.desc;
    gpu.sample = e->kernels.sample.sample;
    e->kernels.sample.sample = sample;
}

static void close_pretended(harness *h)
{
    msgl__graphs_destroy(h->e);
    memset(h->e->graphs, 0, sizeof h->e->graphs);
    h->e->device->ops = gpu.real_ops;
    for (int32_t g = 0; g < h->e->specs.count; g++) {
        h->e->groups[g].attn.decode->desc = gpu.real_desc;
    }
    harness_close(h);
}

static void open_model(harness *h, const char *model, int32_t max_running)
{
    msgl_options cfg = harness_config(model, "auto");
    cfg.max_running = max_running;
    harness_open(h, &cfg);
}

static void open_engine(harness *h, int32_t max_running)
{
    open_model(h, MODEL, max_running);
}

typedef struct capture_call {
    msgl_engine *e;
    int32_t max_size;
    int code;
    msgl_err err;
} capture_call;

static void run_capture(void *ctx, int64_t arg)
{
    (void)arg;
    capture_call *c = ctx;
    c->code = msgl__graphs_capture(c->e, c->max_size, &c->err);
    c->e->device->ops->record(c->e->device, MSGL_DEVICE_MAX_EVENTS - 1);
}

// On the device's thread, which is where the CPU computes.
static capture_call capture(harness *h, int32_t max_size)
{
    capture_call c = {.e = h->e, .max_size = max_size};
    const msgl_device_ops *ops = h->e->device->ops;
    ops->arm(h->e->device, MSGL_DEVICE_MAX_EVENTS - 1);
    ops->submit(h->e->device, run_capture, &c, 0);
    assert_int_equal(ops->wait(h->e->device, MSGL_DEVICE_MAX_EVENTS - 1), 0);
    return c;
}

static void test_ladder(void **state)
{
    (void)state;
    const struct {
        int32_t max_size, short_len, want[MSGL_MAX_GRAPHS];
    } cases[] = {
        {1, 0, {1}},
        {8, 0, {1, 2, 4, 8}},
        {21, 0, {1, 2, 4, 8, 16, 21}},
        {1000, 0, {1, 2, 4, 8, 16, 24, 32, 40}}, // no more than may run
        {9, 64, {1, 1, 2, 2, 4, 4, 8, 9}},       // short ones of up to 4 have their own
        {9, 128, {1, 2, 4, 8, 9}},               // all are that short
    };
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        harness h;
        open_engine(&h, 40);
        pretend(&h);
        gpu.short_len = cases[i].short_len;
        assert_int_equal(capture(&h, cases[i].max_size).code, 0);
        int32_t n = 0;
        for (; cases[i].want[n] != 0; n++) {
            const msgl_decode_graph *g = &h.e->graphs[n];
            assert_int_equal(g->size, cases[i].want[n]);
            const bool is_short = cases[i].want[n] == cases[i].want[n + 1];
            assert_int_equal(g->max_seq_len, is_short ? cases[i].short_len : 128);
        }
        assert_int_equal(h.e->num_graphs, n);
        assert_int_equal(gpu.num_captured, n);
        for (int32_t k = 0; k < n; k++) { // the largest first, so that it finds memory
            assert_int_equal(gpu.sizes[k], cases[i].want[n - 1 - k]);
        }
        close_pretended(&h);
    }
}

static void test_not_captured(void **state)
{
    (void)state;
    harness h;
    open_engine(&h, 8);
    pretend(&h);
    assert_int_equal(capture(&h, 0).code, 0);
    gpu.desc.graph = false;
    assert_int_equal(capture(&h, 8).code, 0);
    assert_int_equal(gpu.num_captured, 0);
    gpu.desc.graph = true;
    gpu.fail_at = 3;
    const capture_call c = capture(&h, 8);
    assert_int_equal(c.code, MSGL_EDEVICE);
    assert_string_equal(c.err.text, "no more graphs");
    assert_int_equal(h.e->num_graphs, 0); // none is used
    close_pretended(&h);
}

enum { STEPS = 3, MOST = 21 };
typedef enum ask { GREEDY, RANDOM, PENALTIES, FILTERS, NUM_ASKS } ask;

static void set_sampling(msgl_sampling_params *p, ask what, int32_t i)
{
    p->temperature = what == GREEDY ? 0 : 1;
    p->seed = (uint64_t)(100 + i);
    if (what == PENALTIES && i % 2 == 0) p->repetition_penalty = 3, p->presence_penalty = 1;
    if (what == FILTERS && i % 2 == 0) p->top_k = 2;
}

// Prompts of n requests, whose last rows alone get logits, as many as a decode step has.
static void prompts(harness *h, int32_t n, ask what, msgl_batch_req *reqs)
{
    static int32_t ids[64];
    for (int32_t i = 0; i < 64; i++) ids[i] = (i * 37 + 5) % h->info->vocab_size;
    h->next_page = 0;
    for (int32_t i = 0; i < n; i++) {
        harness_pages(h, i, 30 + STEPS);
        harness_tokens(h, i, ids + i % 30, 5 + i % 20);
        reqs[i] = harness_req(i, 0, 5 + i % 20);
        reqs[i].logits_from = msgl__extend_len(&reqs[i]) - 1;
        set_sampling(&reqs[i].sampling, what, i);
    }
    harness_step(h, MSGL_PREFILL, reqs, n);
}

static void next_token(msgl_batch_req *r)
{
    r->cached_len = r->device_len++;
    r->logits_from = 0;
}

// Answers of n requests, STEPS tokens each.
static void answers(harness *h, int32_t n, ask what, int32_t *tokens)
{
    msgl_batch_req reqs[MOST];
    prompts(h, n, what, reqs);
    for (int32_t t = 0; t < STEPS; t++) {
        for (int32_t i = 0; i < n; i++) next_token(&reqs[i]);
        harness_step(h, MSGL_DECODE, reqs, n);
        memcpy(tokens + t * n, h->result.tokens, (size_t)n * sizeof *tokens);
    }
}

static void check_replay(const char *model, int32_t step)
{
    for (int32_t n = 1; n <= MOST; n += step) {
        harness h;
        int32_t eager[NUM_ASKS][STEPS * MOST], replayed[STEPS * MOST];
        const size_t bytes = (size_t)(n * STEPS) * sizeof *replayed;
        open_model(&h, model, 40);
        for (int what = 0; what < NUM_ASKS; what++) answers(&h, n, (ask)what, eager[what]);
        pretend(&h);
        gpu.short_len = 8; // the fourth request becomes longer
        assert_int_equal(capture(&h, MOST).code, 0);
        answers(&h, n, GREEDY, replayed);
        assert_memory_equal(replayed, eager[GREEDY], bytes);
        assert_int_equal(gpu.num_launched, STEPS);
        assert_int_equal(gpu.num_chosen, 0);
        assert_int_equal(msgl__engine_observe_logits(h.e, NULL, NULL), 0);
        for (int what = 0; what < NUM_ASKS; what++) {
            gpu.num_launched = gpu.num_chosen = 0;
            answers(&h, n, (ask)what, replayed);
            assert_memory_equal(replayed, eager[what], bytes);
            assert_int_equal(gpu.num_launched, STEPS);
            assert_int_equal(gpu.num_chosen, what == FILTERS ? 0 : n * STEPS);
        }
        close_pretended(&h);
    }
}

// The tokens are those without graphs, whether the graph chooses them or, since somebody looks at
// the logits first or a request has filters, the engine does behind it.
static void test_replay(void **state)
{
    (void)state;
    check_replay(MODEL, 1);
    check_replay(WINDOWS, 5);
}

// Steps that no graph is for: a chunk rides along; an answer whose logits nobody wants.
static void test_not_replayed(void **state)
{
    (void)state;
    harness h;
    msgl_batch_req reqs[3];
    open_engine(&h, 40);
    pretend(&h);
    assert_int_equal(capture(&h, 8).code, 0);
    prompts(&h, 3, GREEDY, reqs);
    next_token(&reqs[0]);
    reqs[1].cached_len = 3;
    reqs[1].logits_from = msgl__extend_len(&reqs[1]) - 1;
    assert_true(msgl__extend_len(&reqs[1]) > 1);
    harness_mixed(&h, 1, reqs, 2);
    for (int32_t i = 0; i < 3; i++) next_token(&reqs[i]);
    reqs[2].logits_from = 1;
    reqs[2].sample = false;
    harness_step(&h, MSGL_DECODE, reqs, 3);
    assert_int_equal(h.result.cu_tokens[3], 2);
    assert_int_equal(gpu.num_launched, 0);
    harness_step(&h, MSGL_DECODE, reqs, 2);
    assert_int_equal(gpu.num_launched, 1);
    close_pretended(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),         cmocka_unit_test(test_ladder),
        cmocka_unit_test(test_not_captured), cmocka_unit_test(test_replay),
        cmocka_unit_test(test_not_replayed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
