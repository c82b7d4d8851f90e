// SPDX-License-Identifier: Apache-2.0
//
// Plans of backends for GPUs: a model whose layers have different windows and soft caps gets one
// for each in every step, eager and captured, within the memory that was taken for them. What a
// layer's kernel finds at the address that it was given must be the plan for that layer: for a
// captured graph, that of the replay.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/fake_gpu.h"
#include "core/attributes.h"
#include "core/seqs.h"
#include "cuda/attn/prefill_sm90.h"
#include "cuda/backends/local.h"
#include "cuda/backends/plan_prefill.h"

enum { ALL = -1 };

typedef struct model {
    const char *name;
    msgl_attn_variants variants;
} model;

static const model MODELS[] = {
    {"plain", {1, {{ALL, 0, false, NULL, 0, false}}}},
    {"mistral", {1, {{4095, 0, false, NULL, 0, false}}}},
    {"qwen", {2, {{ALL, 0, false, NULL, 0, false}, {4095, 0, false, NULL, 0, false}}}},
    {"window first", {2, {{1023, 0, false, NULL, 0, false}, {ALL, 0, false, NULL, 0, false}}}},
    {"gemma", {2, {{ALL, 50, false, NULL, 0, false}, {4095, 50, false, NULL, 0, false}}}},
    {"cap in some",
     {3,
      {{ALL, 0, false, NULL, 0, false},
       {ALL, 30, false, NULL, 0, false},
       {100, 30, false, NULL, 0, false}}}},
    {"eight",
     {8,
      {{1, 0, false, NULL, 0, false},
       {2, 0, false, NULL, 0, false},
       {3, 0, false, NULL, 0, false},
       {ALL, 0, false, NULL, 0, false},
       {5, 0, false, NULL, 0, false},
       {6, 0, false, NULL, 0, false},
       {7, 0, false, NULL, 0, false},
       {8, 0, false, NULL, 0, false}}}},
};

static const struct gpu {
    int32_t capability, head_dim, group;
    msgl_dtype dtype;
    bool deterministic;
} GPUS[] = {
    {80, 128, 4, MSGL_BF16, false}, {89, 64, 7, MSGL_F16, false},    {90, 128, 4, MSGL_BF16, false},
    {90, 128, 4, MSGL_F16, false},  {90, 256, 4, MSGL_BF16, false},  {90, 64, 1, MSGL_BF16, false},
    {90, 128, 4, MSGL_BF16, true},  {100, 128, 8, MSGL_BF16, false}, {120, 128, 2, MSGL_BF16, true},
};

typedef struct run { // of one model on one GPU
    const model *m;
    fake_world w;
    msgl_attn_backend *b;
    stub_fi *fi;
    msgl_attn attn;
    msgl_batch_req reqs[FAKE_RUNNING];
    char *lengths; // of the sequences in each slot
    int32_t step_slot;
} run;

static void open_run(run *r, const char *backend, const model *m, const struct gpu *g)
{
    *r = (run){.m = m, .fi = fake_fi()};
    fake_gpu_reset(g->capability);
    msgl_attn_needs n = fake_needs(g->capability, g->group, g->head_dim, g->dtype);
    n.deterministic = g->deterministic;
    n.variants = m->variants;
    const msgl_attn_desc *d = msgl__attn_find(&msgl__attn_cuda, backend);
    if (d->page_override != 0) n.page_size = d->page_override;
    msgl_err err = {0};
    assert_int_equal(msgl__attn_supports(d, &n, &err), 0);
    fake_world_open(&r->w, &n);
    if (d->create(d, &r->w.cfg, &r->b, &err) != 0) fail_msg("%s", err.text);
    r->attn = (msgl_attn){.prefill = r->b, .decode = r->b};
    r->lengths = malloc(FAKE_STEP_SLOTS * msgl__seqs_bytes(FAKE_RUNNING));
}

static void close_run(run *r)
{
    msgl__attn_destroy(&r->attn);
    free(r->lengths);
    fake_world_close(&r->w);
    fake_gpu_check();
}

// Prepared and not yet copied; graph_size > 0: for a captured graph of so many requests.
static msgl_seqs prepared(run *r, msgl_phase phase, int32_t size, int32_t len, int32_t graph_size)
{
    for (int32_t i = 0; i < size; i++) {
        r->reqs[i] = (msgl_batch_req){
            .table_idx = i, .device_len = len, .cached_len = phase == MSGL_DECODE ? len - 1 : 0};
    }
    r->step_slot = (r->step_slot + 1) % FAKE_STEP_SLOTS;
    const msgl_batch batch = {.size = size,
                              .num_decode = phase == MSGL_DECODE ? size : 0,
                              .reqs = r->reqs,
                              .step_slot = r->step_slot};
    char *block = r->lengths + (size_t)r->step_slot * msgl__seqs_bytes(FAKE_RUNNING);
    msgl_seqs seqs;
    msgl__seqs_fill(&batch, 0, size, graph_size, FAKE_RUNNING, FAKE_RUNNING, block, block, &seqs);
    if (graph_size > 0) seqs.max_seqlen_k = FAKE_SEQ_LEN;
    seqs.graph = graph_size > 0;
    assert_int_equal(msgl__attn_prepare(&r->attn, &seqs), 0);
    return seqs;
}

static void copy_in(run *r, const msgl_seqs *seqs)
{
    msgl__attn_copy_in(&r->attn, &r->w.exec, seqs);
    assert_int_equal(FAKE_GPU.bad_copies, 0);
}

static msgl_seqs seqs_of(run *r, msgl_phase phase, int32_t size, int32_t len, int32_t graph_size)
{
    const msgl_seqs seqs = prepared(r, phase, size, len, graph_size);
    copy_in(r, &seqs);
    return seqs;
}

static int32_t num_layers(const run *r)
{
    return 2 * r->m->variants.count; // each variant comes again
}

static int32_t window_of(const run *r, int32_t layer)
{
    return r->m->variants.all[layer % r->m->variants.count].window;
}

// All layers of a step; what they were told to run is in fi->runs or FAKE_GPU.calls.
static void layers(run *r, const msgl_seqs *seqs)
{
    const msgl_attn_input in = {0};
    r->fi->num_runs = FAKE_GPU.num_calls = 0;
    for (int32_t l = 0; l < num_layers(r); l++) {
        const msgl_attn_variant *v = &r->m->variants.all[l % r->m->variants.count];
        const msgl_attn_layer layer = {
            .layer = l, .scale = 1, .softcap = v->softcap, .window = v->window, .chunk = v->chunk};
        msgl__attn_forward(&r->attn, &r->w.exec, &layer, seqs, &in, NULL);
    }
    if (r->w.exec.status != 0) fail_msg("%s: status %d", r->m->name, r->w.exec.status);
    assert_int_equal(FAKE_GPU.bad_copies, 0);
}

static void forward(run *r, const msgl_seqs *seqs)
{
    msgl__attn_begin(&r->attn, &r->w.exec, seqs);
    layers(r, seqs);
}

// What each layer's kernel finds now. size: of the batch that is in flight.
static void check_plans(const run *r, const msgl_fi_run_call *runs, int32_t size, bool one_window)
{
    for (int32_t l = 0; l < num_layers(r); l++) {
        assert_true(fake_gpu_contains(runs[l].plan_arrays, STUB_PLAN_BYTES));
        stub_plan p;
        memcpy(&p, runs[l].plan_arrays, sizeof p);
        assert_int_equal(p.batch, size);
        const bool any = one_window || p.kernel != MSGL_FI_TENSOR_CORES; // reads it when it runs
        assert_int_equal(p.window, any ? ALL : window_of(r, l));
        const char *at = runs[l].plan_arrays;
        for (size_t i = sizeof p; i < STUB_PLAN_BYTES; i++) assert_int_equal(at[i], p.number);
    }
}

static void graphs(run *r, bool one_window)
{
    static const int32_t sizes[] = {FAKE_RUNNING, 2, 1};
    static msgl_fi_run_call captured[MSGL_COUNT(sizes)][STUB_MAX_RUNS];
    for (size_t i = 0; i < MSGL_COUNT(sizes); i++) {
        const msgl_seqs seqs = seqs_of(r, MSGL_DECODE, 0, 1, sizes[i]);
        forward(r, &seqs);
        check_plans(r, r->fi->runs, sizes[i], one_window);
        memcpy(captured[i], r->fi->runs, sizeof captured[i]);
    }
    for (size_t i = 0; i < MSGL_COUNT(sizes); i++) {
        for (int32_t size = 1; size <= sizes[i]; size++) { // padded up to sizes[i]
            (void)seqs_of(r, MSGL_DECODE, size, 100 * size, sizes[i]);
            check_plans(r, captured[i], sizes[i], one_window);
        }
    }
}

static void test_fi(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(GPUS) * MSGL_COUNT(MODELS); i++) {
        const struct gpu *g = &GPUS[i % MSGL_COUNT(GPUS)];
        const bool fixed = g->deterministic;
        run r;
        open_run(&r, "fi", &MODELS[i / MSGL_COUNT(GPUS)], g);
        graphs(&r, fixed);
        for (int32_t step = 0; step < 3; step++) {
            msgl_seqs seqs = seqs_of(&r, MSGL_DECODE, 1 + step, 500, 0);
            forward(&r, &seqs);
            check_plans(&r, r.fi->runs, 1 + step, fixed);
            // From 512 new tokens on, layers without window and cap have the Hopper kernel.
            seqs = seqs_of(&r, MSGL_PREFILL, 1 + step, step == 0 ? 600 : 100, 0);
            forward(&r, &seqs);
            check_plans(&r, r.fi->runs, 1 + step, fixed);
        }
        close_run(&r);
    }
}

// While a step is in flight the next one is prepared: what it runs with stays.
static void test_fi_in_flight(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(GPUS); i++) {
        run r;
        open_run(&r, "fi", &MODELS[2], &GPUS[i]);
        for (int phase = 0; phase < 2; phase++) {
            msgl_seqs now = prepared(&r, (msgl_phase)phase, 1, 600, 0);
            for (int32_t step = 0; step < 5; step++) {
                const int32_t size = 1 + step % 2, other = 3 - size;
                // On Hopper prompts of 600 tokens have another kernel than those of 100.
                const msgl_seqs next =
                    prepared(&r, (msgl_phase)phase, other, other == 1 ? 600 : 100, 0);
                copy_in(&r, &now);
                forward(&r, &now);
                check_plans(&r, r.fi->runs, size, GPUS[i].deterministic);
                now = next;
            }
        }
        close_run(&r);
    }
}

// The pages and lengths that a kernel finds.
static void check_pages(const msgl_fi_run_call *c, const msgl_seqs *seqs, int32_t page)
{
    assert_int_equal(c->batch, seqs->size);
    assert_int_equal(c->total_q, seqs->num_tokens);
    assert_ptr_equal(c->qo_indptr, seqs->dev_cu_seqlens_q);
    int32_t at = 0;
    for (int32_t i = 0; i < seqs->size; i++) {
        const int32_t n = (seqs->seqlens_k[i] + page - 1) / page;
        assert_int_equal(c->page_indptr[i], at);
        assert_int_equal(c->last_page_len[i], seqs->seqlens_k[i] - (n - 1) * page);
        assert_true(fake_gpu_contains(c->pages + at, (size_t)n * sizeof *c->pages));
        for (int32_t j = 0; j < n; j++) {
            assert_int_equal(c->pages[at + j], seqs->table_rows[i] * (FAKE_SEQ_LEN / page) + j);
        }
        at += n;
    }
    assert_int_equal(c->page_indptr[seqs->size], at);
}

// Answers and chunks of one step have lists and plans of their own, which are there at once, even
// when all requests are as long as can be.
static void test_fi_mixed(void **state)
{
    (void)state;
    enum { ANSWERS = FAKE_RUNNING - 2 };
    for (size_t i = 0; i < MSGL_COUNT(GPUS); i++) {
        run r;
        open_run(&r, "fi", &MODELS[2], &GPUS[i]);
        for (int32_t k = 0; k < FAKE_RUNNING; k++) {
            int32_t *row = msgl__page_table_row(&r.w.table, k);
            for (int32_t p = 0; p < r.w.table.stride; p++) row[p] = k * r.w.table.stride + p;
            r.reqs[k] = (msgl_batch_req){.table_idx = k,
                                         .device_len = FAKE_SEQ_LEN,
                                         .cached_len = FAKE_SEQ_LEN - (k < ANSWERS ? 1 : 700 + k)};
        }
        const msgl_batch b = {.size = FAKE_RUNNING, .num_decode = ANSWERS, .reqs = r.reqs};
        char *chunks = r.lengths + msgl__seqs_bytes(FAKE_RUNNING);
        msgl_seqs seqs[2];
        msgl__seqs_fill(&b, 0, ANSWERS, 0, FAKE_RUNNING, FAKE_RUNNING, r.lengths, r.lengths,
                        &seqs[0]);
        msgl__seqs_fill(&b, ANSWERS, FAKE_RUNNING, 0, FAKE_RUNNING, FAKE_RUNNING, chunks, chunks,
                        &seqs[1]);
        for (int k = 0; k < 2; k++) assert_int_equal(msgl__attn_prepare(&r.attn, &seqs[k]), 0);
        for (int k = 0; k < 2; k++) copy_in(&r, &seqs[k]);
        for (int k = 0; k < 2; k++) msgl__attn_begin(&r.attn, &r.w.exec, &seqs[k]);
        for (int k = 0; k < 2; k++) {
            layers(&r, &seqs[k]);
            check_plans(&r, r.fi->runs, seqs[k].size, GPUS[i].deterministic);
            for (int32_t l = 0; l < num_layers(&r); l++) {
                check_pages(&r.fi->runs[l], &seqs[k], r.w.needs.page_size);
            }
        }
        close_run(&r);
    }
}

// fa plans its prefill by window; layers with the same one share the plan.
static void test_fa(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(MODELS); i++) {
        run r;
        open_run(&r, "fa", &MODELS[i], &GPUS[2]);
        for (int32_t step = 0; step < 3; step++) {
            const msgl_seqs seqs = seqs_of(&r, MSGL_PREFILL, 2, 300, 0);
            forward(&r, &seqs);
            for (int32_t a = 0; a < num_layers(&r); a++) {
                assert_true(fake_gpu_contains(FAKE_GPU.calls[a].plan, 1));
                for (int32_t b = 0; b < num_layers(&r); b++) {
                    assert_int_equal(FAKE_GPU.calls[a].plan == FAKE_GPU.calls[b].plan,
                                     window_of(&r, a) == window_of(&r, b));
                }
            }
        }
        close_run(&r);
    }
}

// The plan that a layer of fa finds, for the caller to free.
static char *fa_plan(const model *m, int32_t layer, size_t bytes)
{
    run r;
    open_run(&r, "fa", m, &GPUS[2]);
    const msgl_seqs seqs = seqs_of(&r, MSGL_PREFILL, 1, 2000, 0);
    forward(&r, &seqs);
    const void *plan = FAKE_GPU.calls[layer].plan;
    assert_true(fake_gpu_contains(plan, bytes));
    char *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, plan, bytes);
    close_run(&r);
    return copy;
}

// The plan of a window is the one that a model with this window alone has.
static void test_fa_windows(void **state)
{
    (void)state;
    static const model two = {"two",
                              {2,
                               {{ALL, 0, false, NULL, 0, false}, {99, 0, false, NULL, 0, false}}}},
                       all = {"all", {1, {{ALL, 0, false, NULL, 0, false}}}},
                       near = {"near", {1, {{99, 0, false, NULL, 0, false}}}};
    const size_t bytes =
        msgl__fa_plan_prefill_size(2 * GPUS[2].group, 2, FAKE_RUNNING, FAKE_STEP_TOKENS);
    char *plans[] = {fa_plan(&two, 0, bytes), fa_plan(&two, 1, bytes), fa_plan(&all, 0, bytes),
                     fa_plan(&near, 0, bytes)};
    assert_memory_equal(plans[0], plans[2], bytes);
    assert_memory_equal(plans[1], plans[3], bytes);
    assert_memory_not_equal(plans[0], plans[1], bytes);
    for (int i = 0; i < 4; i++) free(plans[i]);
}

static void expect_ints(const int32_t *got, const int32_t *want, int32_t n)
{
    assert_true(fake_gpu_contains(got, (size_t)n * sizeof *got));
    assert_memory_equal(got, want, (size_t)n * sizeof *got);
}

// Layers of fa with local chunks have requests of their own, and a plan of these; the others keep
// theirs. Answers stay one request each, in graphs too.
static void test_fa_local(void **state)
{
    (void)state;
    static const model both = {
        "both", {2, {{ALL, 0, false, NULL, 0, false}, {ALL, 0, false, NULL, 200, false}}}};
    run r;
    open_run(&r, "fa", &both, &GPUS[2]);
    const int32_t row = (int32_t)r.w.cfg.device_table_stride;
    for (int32_t step = 0; step < 3; step++) {
        msgl_seqs seqs = seqs_of(&r, MSGL_PREFILL, 2, 450, 0);
        forward(&r, &seqs);
        const msgl_cuda_attn_call *all = &FAKE_GPU.calls[0], *near = &FAKE_GPU.calls[1];
        assert_int_equal(all->batch, 2);
        assert_int_equal(all->page_size, 16);
        assert_int_equal(near->batch, 6);
        assert_int_equal(near->table_stride, 1);
        assert_int_equal(near->page_size, 8); // of both 16 and 200
        assert_int_equal(near->max_seqlen_q, 200);
        assert_int_equal(near->max_seqlen_k, 200);
        expect_ints(near->cu_seqlens_q, (int32_t[]){0, 200, 400, 450, 650, 850, 900}, 7);
        expect_ints(near->seqlens_k, (int32_t[]){200, 200, 50, 200, 200, 50}, 6);
        expect_ints(near->table_rows, (int32_t[]){0, 200, 400, row, row + 200, row + 400}, 6);
        assert_true(all->plan != near->plan && fake_gpu_contains(near->plan, 1));
        seqs = seqs_of(&r, MSGL_DECODE, 2, 601 - step, step == 2 ? 4 : 0);
        forward(&r, &seqs);
        assert_int_equal(near->batch, step == 2 ? 4 : 2);
        assert_int_equal(near->max_seqlen_k, 200);
        const int32_t first = step == 0 ? 600 : 400, len = 601 - step - first;
        expect_ints(near->seqlens_k, (int32_t[]){len, len, 1, 1}, near->batch);
        expect_ints(near->table_rows, (int32_t[]){first, row + first}, 2);
        expect_ints(near->cu_seqlens_q, (int32_t[]){0, 1, 2}, 3);
    }
    close_run(&r);
}

// A plan in memory of its own.
typedef struct prefill_plan {
    struct msgl_fa_prefill_plan *head;
    const struct msgl_fa_prefill_section *sections;
    const struct msgl_fa_prefill_tile *tiles;
} prefill_plan;

static prefill_plan plan_prefill(const msgl_fa_prefill_batch *b)
{
    const int total = b->cu_seqlens_q[b->batch];
    const int ends = b->dual_len > 0 ? total / b->dual_len + b->batch : 0;
    const size_t size =
        msgl__fa_plan_prefill_size(b->num_q_heads, b->num_kv_heads, b->batch + ends, total);
    prefill_plan p = {.head = malloc(size)}; // exactly, so that a sanitizer sees a write behind it
    assert_non_null(p.head);
    assert_in_range(msgl__fa_plan_prefill(b, p.head), 1, size);
    p.sections = (const struct msgl_fa_prefill_section *)(p.head + 1);
    p.tiles = (const struct msgl_fa_prefill_tile *)(p.sections + MSGL_FA_PREFILL_MAX_SECTIONS + 1);
    return p;
}

// 8 query heads to 2 KV heads: rows of 4 heads, 32 tokens a tile. Of 70 queries behind 100 cached
// tokens the tiles begin at 100, 132 and 164, whose first queries see `window` keys in front of
// themselves.
static void test_fa_window_tiles(void **state)
{
    (void)state;
    static const struct {
        int32_t window, lo[3];
    } cases[] = {
        {-1, {0, 0, 0}},    {0, {100, 132, 164}}, {99, {1, 33, 65}},
        {100, {0, 32, 64}}, {101, {0, 31, 63}},   {131, {0, 1, 33}},
        {132, {0, 0, 32}},  {163, {0, 0, 1}},     {164, {0, 0, 0}},
    };
    static const int32_t cu[] = {0, 70}, lens[] = {170}, rows[] = {5};
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        const msgl_fa_prefill_batch b = {.num_q_heads = 8,
                                         .num_kv_heads = 2,
                                         .head_dim = 128,
                                         .elem_size = 2,
                                         .window = cases[i].window,
                                         .l2_bytes = 50 << 20,
                                         .batch = 1,
                                         .cu_seqlens_q = cu,
                                         .seqlens_k = lens,
                                         .table_rows = rows};
        const prefill_plan p = plan_prefill(&b);
        assert_int_equal(p.head->num_tiles, 3);
        assert_int_equal(p.head->num_work, 6); // of each KV head
        bool seen[3] = {false};
        for (int t = 0; t < 3; t++) {
            const struct msgl_fa_prefill_tile *tile = &p.tiles[t];
            assert_in_range(tile->row0, 0, 64);
            const int at = tile->row0 / 32;
            assert_false(seen[at]);
            seen[at] = true;
            assert_int_equal(tile->row0, 32 * at);
            assert_int_equal(tile->pos0, 100 + 32 * at);
            assert_int_equal(tile->tokens, at < 2 ? 32 : 6);
            assert_int_equal(tile->key_lo, cases[i].lo[at]);
            assert_int_equal(tile->key_hi, at < 2 ? 132 + 32 * at : 170);
            assert_int_equal(tile->klen, 170);
            assert_int_equal(tile->table_row, 5);
        }
        free(p.head);
    }
}

// The same heads in chunks of 50 tokens: tiles end where those do. Of a request's 70 queries behind
// 100 cached tokens one tile is cut short; another request is left out.
static void test_fa_dual_tiles(void **state)
{
    (void)state;
    static const int32_t cu[] = {0, 70, 130, 150}, lens[] = {170, 400, 20}, rows[] = {5, 6, 7};
    static const msgl_dual_sparse left_out = {59, 399};
    static const struct {
        int32_t row0, pos0, tokens, klen, table_row;
    } want[] = {
        {50, 150, 20, 170, 5}, {32, 132, 18, 170, 5}, {0, 100, 32, 170, 5}, {130, 0, 20, 20, 7}};
    const msgl_fa_prefill_batch b = {.num_q_heads = 8,
                                     .num_kv_heads = 2,
                                     .head_dim = 128,
                                     .elem_size = 2,
                                     .window = -1,
                                     .l2_bytes = 50 << 20,
                                     .batch = 3,
                                     .cu_seqlens_q = cu,
                                     .seqlens_k = lens,
                                     .table_rows = rows,
                                     .dual_len = 50,
                                     .left_out = &left_out};
    const prefill_plan p = plan_prefill(&b);
    assert_int_equal(p.head->num_tiles, MSGL_COUNT(want));
    for (size_t i = 0; i < MSGL_COUNT(want); i++) {
        const struct msgl_fa_prefill_tile *tile = &p.tiles[i];
        assert_int_equal(tile->row0, want[i].row0);
        assert_int_equal(tile->pos0, want[i].pos0);
        assert_int_equal(tile->tokens, want[i].tokens);
        assert_int_equal(tile->klen, want[i].klen);
        assert_int_equal(tile->table_row, want[i].table_row);
        assert_int_equal(tile->key_lo, 0);
        assert_int_equal(tile->key_hi, want[i].pos0 + want[i].tokens);
    }
    free(p.head);
}

// More requests than sections, each with more KV than the cache has room for: the last section has
// all that are left, and every tile is there for every head once.
static void test_fa_many_sections(void **state)
{
    (void)state;
    enum { MOST = 400 };
    static const int32_t batches[] = {1, 61, 62, 63, 64, 125, 126, 127, 128, 129, MOST};
    static int32_t cu[MOST + 1], lens[MOST], rows[MOST], heads_of[MOST];
    for (int32_t i = 0; i < MOST; i++) {
        cu[i + 1] = i + 1;
        lens[i] = 1000;
        rows[i] = i;
    }
    for (size_t i = 0; i < MSGL_COUNT(batches) * 2; i++) {
        const int32_t kv_heads = i % 2 == 0 ? 1 : 2, batch = batches[i / 2];
        const msgl_fa_prefill_batch b = {.num_q_heads = 4 * kv_heads,
                                         .num_kv_heads = kv_heads,
                                         .head_dim = 128,
                                         .elem_size = 2,
                                         .window = -1,
                                         .l2_bytes = 1000,
                                         .batch = batch,
                                         .cu_seqlens_q = cu,
                                         .seqlens_k = lens,
                                         .table_rows = rows};
        const prefill_plan p = plan_prefill(&b);
        memset(heads_of, 0, sizeof heads_of);
        assert_int_equal(p.head->num_tiles, batch);
        assert_int_equal(p.head->num_work, batch * kv_heads);
        assert_in_range(p.head->num_sections, 1, MSGL_FA_PREFILL_MAX_SECTIONS);
        assert_int_equal(p.sections[0].work0, 0);
        for (int32_t s = 0; s < p.head->num_sections; s++) {
            const struct msgl_fa_prefill_section *at = &p.sections[s];
            assert_in_range(at->heads, 1, kv_heads);
            const int32_t tiles = (at[1].work0 - at->work0) / at->heads;
            assert_in_range(at->head0 + at->heads, 1, kv_heads);
            assert_in_range(tiles, 1, batch - at->tile0);
            for (int32_t t = at->tile0; t < at->tile0 + tiles; t++) {
                heads_of[p.tiles[t].table_row] += at->heads;
            }
        }
        assert_int_equal(p.sections[p.head->num_sections].work0, p.head->num_work);
        for (int32_t r = 0; r < batch; r++) assert_int_equal(heads_of[r], kv_heads);
        free(p.head);
    }
}

// A chunk of a prompt that begins within a local chunk, and one token beyond its end.
static void test_cut(void **state)
{
    (void)state;
    const int32_t cu[] = {0, 5, 6, 7}, lens[] = {13, 16, 17}, rows[] = {3, 0, 1};
    const msgl_seqs seqs = {.size = 3,
                            .cu_seqlens_q = cu,
                            .seqlens_k = lens,
                            .table_rows = rows,
                            .max_seqlen_q = 5,
                            .max_seqlen_k = 17};
    const int32_t most = msgl__fa_local_most(4, 3, 7);
    char *lists = malloc(msgl__fa_local_bytes(most));
    msgl_fa_local got;
    msgl__fa_local_place(lists, most, &got);
    msgl__fa_local_cut(&seqs, 4, 100, &got);
    assert_int_equal(got.size, 4); // positions 8 to 11 and 12, 15, 16
    assert_int_equal(got.max_seqlen_q, 4);
    assert_int_equal(got.max_seqlen_k, 4);
    const int32_t want_cu[] = {0, 4, 5, 6, 7}, want_k[] = {4, 1, 4, 1};
    const int32_t want_rows[] = {308, 312, 12, 116};
    assert_memory_equal(got.cu_seqlens_q, want_cu, sizeof want_cu);
    assert_memory_equal(got.seqlens_k, want_k, sizeof want_k);
    assert_memory_equal(got.table_rows, want_rows, sizeof want_rows);
    for (int32_t chunk = 1; chunk < 20; chunk++) {
        const int32_t room = msgl__fa_local_most(chunk, 3, 7);
        char *own = malloc(msgl__fa_local_bytes(room));
        msgl__fa_local_place(own, room, &got);
        msgl__fa_local_cut(&seqs, chunk, 100, &got);
        assert_true(got.size <= room);
        assert_int_equal(got.cu_seqlens_q[got.size], 7);
        free(own);
    }
    free(lists);
}

// Those that have fa's kernel and plans for chunks of a model whose layers have no functions, and
// kernels of their own for trees. (The fake GPU does not note these.)
static void test_chunks_by_fa(void **state)
{
    (void)state;
    static const char *const names[] = {"fa4", "flex_attention", "triton"};
    for (size_t i = 0; i < MSGL_COUNT(names); i++) {
        run r;
        open_run(&r, names[i], &MODELS[2], &GPUS[2]);
        msgl_seqs seqs = seqs_of(&r, MSGL_PREFILL, 2, 300, 0);
        forward(&r, &seqs);
        assert_int_equal(FAKE_GPU.num_calls, num_layers(&r));
        for (int32_t l = 0; l < num_layers(&r); l++) {
            assert_true(fake_gpu_contains(FAKE_GPU.calls[l].plan, 1));
        }
        const uint64_t tree[600] = {0};
        seqs.tree = seqs.dev_tree = tree;
        forward(&r, &seqs);
        assert_int_equal(FAKE_GPU.num_calls, 0);
        close_run(&r);
    }
}

static void test_fa_in_flight(void **state)
{
    (void)state;
    char alone[2][64], got[64];
    run r;
    open_run(&r, "fa", &MODELS[1], &GPUS[2]);
    for (int32_t size = 1; size <= 2; size++) {
        const msgl_seqs seqs = seqs_of(&r, MSGL_PREFILL, size, 300, 0);
        forward(&r, &seqs);
        memcpy(alone[size - 1], FAKE_GPU.calls[0].plan, sizeof alone[0]);
    }
    assert_memory_not_equal(alone[0], alone[1], sizeof alone[0]);
    msgl_seqs now = prepared(&r, MSGL_PREFILL, 1, 300, 0);
    for (int32_t step = 0; step < 5; step++) {
        const int32_t size = 1 + step % 2;
        const msgl_seqs next = prepared(&r, MSGL_PREFILL, 3 - size, 300, 0);
        copy_in(&r, &now);
        forward(&r, &now);
        memcpy(got, FAKE_GPU.calls[0].plan, sizeof got);
        assert_memory_equal(got, alone[size - 1], sizeof got);
        now = next;
    }
    close_run(&r);
}

// Sinks follow the kernel of their layers alone, by the LSE that it leaves in memory of the
// backend's.
static void test_fi_sinks(void **state)
{
    (void)state;
    static const model sinks = {"sinks", {2, {{.window = 7, .sinks = true}, {.window = ALL}}}};
    run r;
    open_run(&r, "fi", &sinks, &GPUS[2]);
    for (int phase = 0; phase < 2; phase++) {
        const msgl_seqs seqs = seqs_of(&r, (msgl_phase)phase, 2, 300, 0);
        const float z[64] = {0};
        const msgl_attn_input in = {0};
        char out[1];
        r.fi->num_runs = FAKE_GPU.num_sinks = 0;
        msgl_attn_layer layer = {.layer = 0, .scale = 1, .window = ALL};
        msgl__attn_forward(&r.attn, &r.w.exec, &layer, &seqs, &in, out);
        assert_null(r.fi->runs[0].lse);
        assert_int_equal(FAKE_GPU.num_sinks, 0);
        layer = (msgl_attn_layer){.layer = 1, .scale = 1, .window = 7, .sinks = z};
        msgl__attn_forward(&r.attn, &r.w.exec, &layer, &seqs, &in, out);
        assert_int_equal(r.w.exec.status, 0);
        assert_int_equal(FAKE_GPU.num_sinks, 1);
        const msgl_sink_call *s = &FAKE_GPU.sink;
        const size_t rows = (size_t)seqs.num_tokens * (size_t)s->num_q_heads;
        assert_ptr_equal(s->lse, r.fi->runs[1].lse);
        assert_true(fake_gpu_contains(s->lse, rows * sizeof *s->lse));
        assert_ptr_equal(s->out, out);
        assert_ptr_equal(s->sinks, z);
        assert_int_equal(s->tokens, seqs.num_tokens);
        assert_int_equal(s->num_q_heads, r.w.cfg.num_q_heads);
        assert_int_equal(s->head_dim, r.w.cfg.head_dim);
    }
    close_run(&r);
    open_run(&r, "fi", &MODELS[0], &GPUS[2]); // without sinks, so without that memory
    const msgl_seqs seqs = seqs_of(&r, MSGL_PREFILL, 2, 300, 0);
    const msgl_attn_layer layer = {
        .layer = 0, .scale = 1, .window = ALL, .sinks = (const float[64]){0}};
    const msgl_attn_input in = {0};
    msgl__attn_forward(&r.attn, &r.w.exec, &layer, &seqs, &in, NULL);
    assert_int_equal(r.w.exec.status, MSGL_EINVAL);
    close_run(&r);
}

// flashinfer: a chunk's new tokens from rows, the prefix from pages, merged, and then the sink;
// without a prefix the first alone; layers with a window as fi.
static void test_flashinfer(void **state)
{
    (void)state;
    static const model m = {"flashinfer", {2, {{.window = 7}, {.window = ALL, .sinks = true}}}};
    for (size_t i = 0; i < MSGL_COUNT(GPUS); i++) {
        run r;
        open_run(&r, "flashinfer", &m, &GPUS[i]);
        const bool wgmma =
            GPUS[i].capability == 90 && GPUS[i].dtype == MSGL_BF16 && GPUS[i].head_dim <= 128;
        const int32_t page = r.w.needs.page_size;
        for (int32_t with = 0; with < 3; with++) { // none has a prefix, one, all
            for (int32_t k = 0; k < 2; k++) {
                int32_t *row = msgl__page_table_row(&r.w.table, k);
                for (int32_t p = 0; p < r.w.table.stride; p++) row[p] = k * r.w.table.stride + p;
                r.reqs[k] = (msgl_batch_req){.table_idx = k,
                                             .device_len = 700 + 10 * k,
                                             .cached_len = k < with ? 50 + 100 * k : 0};
            }
            const msgl_batch batch = {
                .size = 2, .reqs = r.reqs, .step_slot = with % FAKE_STEP_SLOTS};
            msgl_seqs seqs;
            msgl__seqs_fill(&batch, 0, 2, 0, FAKE_RUNNING, FAKE_RUNNING, r.lengths, r.lengths,
                            &seqs);
            assert_int_equal(msgl__attn_prepare(&r.attn, &seqs), 0);
            copy_in(&r, &seqs);
            msgl__attn_begin(&r.attn, &r.w.exec, &seqs);
            stub_fi *fi = r.fi;
            fi->num_runs = fi->num_rows = fi->num_merges = FAKE_GPU.num_sinks = 0;
            const float z[64] = {0};
            char q[1], out[1];
            const msgl_attn_input in = {.q = q, .ld = 77};
            msgl_attn_layer layer = {.layer = 1, .scale = 0.5f, .window = 7};
            msgl__attn_forward(&r.attn, &r.w.exec, &layer, &seqs, &in, out);
            assert_int_equal(fi->num_runs, 1);
            assert_int_equal(fi->runs[0].plan->kernel, MSGL_FI_TENSOR_CORES);
            assert_int_equal(fi->num_rows, 0);
            layer = (msgl_attn_layer){.layer = 1, .scale = 0.5f, .window = ALL, .sinks = z};
            msgl__attn_forward(&r.attn, &r.w.exec, &layer, &seqs, &in, out);
            assert_int_equal(r.w.exec.status, 0);
            assert_int_equal(FAKE_GPU.num_sinks, 1);
            if (GPUS[i].deterministic) { // fi's one call
                assert_int_equal(fi->num_runs, 2);
                assert_int_equal(fi->num_rows + fi->num_merges, 0);
                continue;
            }
            assert_int_equal(fi->num_runs, with > 0 ? 3 : 2);
            const msgl_fi_run_call *fresh = &fi->runs[1], *prefix = &fi->runs[2];
            assert_int_equal(fresh->plan->kernel, wgmma ? MSGL_FI_RAGGED_HOPPER : MSGL_FI_RAGGED);
            assert_int_equal(fresh->shape.page_size, 1);
            assert_ptr_equal(fresh->out, out);
            assert_int_equal(fresh->ld_q, 77);
            const size_t bytes = (size_t)seqs.num_tokens * fi->rows.row_bytes;
            assert_ptr_equal(fresh->k, fi->rows.k_rows);
            assert_ptr_equal(fresh->v, fi->rows.v_rows);
            assert_true(fake_gpu_contains(fresh->k, bytes) && fake_gpu_contains(fresh->v, bytes));
            assert_ptr_equal(fi->rows.k, msgl__kv_k(r.w.cfg.pool, 1));
            assert_ptr_equal(fi->rows.v, msgl__kv_v(r.w.cfg.pool, 1));
            assert_ptr_equal(FAKE_GPU.sink.lse, fresh->lse);
            assert_ptr_equal(FAKE_GPU.sink.out, out);
            assert_int_equal(fi->num_merges, with > 0);
            if (with == 0) continue;
            assert_int_equal(prefix->plan->kernel, wgmma ? MSGL_FI_PREFIX_HOPPER : MSGL_FI_PREFIX);
            assert_int_equal(prefix->window, ALL);
            assert_true(prefix->out != out && prefix->lse != fresh->lse);
            assert_ptr_equal(fi->merge.out, out);
            assert_ptr_equal(fi->merge.lse, fresh->lse);
            assert_ptr_equal(fi->merge.other, prefix->out);
            assert_ptr_equal(fi->merge.other_lse, prefix->lse);
            const size_t rows = (size_t)fi->merge.rows;
            assert_int_equal(rows, seqs.num_tokens * r.w.cfg.num_q_heads);
            assert_true(fake_gpu_contains(prefix->out, rows * (size_t)r.w.cfg.head_dim * 2));
            assert_true(fake_gpu_contains(prefix->lse, rows * sizeof(float)));
            int32_t at = 0;
            for (int32_t k = 0; k < 2; k++) { // the prefix's pages alone
                const int32_t len = r.reqs[k].cached_len, n = (len + page - 1) / page;
                assert_int_equal(prefix->page_indptr[k], at);
                if (n > 0) assert_int_equal(prefix->last_page_len[k], len - (n - 1) * page);
                for (int32_t j = 0; j < n; j++) {
                    assert_int_equal(prefix->pages[at + j], k * (FAKE_SEQ_LEN / page) + j);
                }
                at += n;
            }
            assert_int_equal(prefix->page_indptr[2], at);
        }
        close_run(&r);
    }
}

// A layer that the config did not announce is an error of the step, not a write behind the buffers.
static void test_unknown_window(void **state)
{
    (void)state;
    static const char *const backends[] = {"fi", "flashinfer", "fa"};
    for (size_t i = 0; i < MSGL_COUNT(backends); i++) {
        run r;
        open_run(&r, backends[i], &MODELS[2], &GPUS[0]);
        const msgl_seqs seqs = seqs_of(&r, MSGL_PREFILL, 2, 300, 0);
        const msgl_attn_input in = {0};
        forward(&r, &seqs);
        const msgl_attn_layer other = {.layer = 0, .scale = 1, .window = 77};
        msgl__attn_forward(&r.attn, &r.w.exec, &other, &seqs, &in, NULL);
        assert_int_equal(r.w.exec.status, MSGL_EINVAL);
        close_run(&r);
    }
}

static void test_variants(void **state)
{
    (void)state;
    msgl_attn_variants v = {0};
    int32_t windows[MSGL_ATTN_MAX_VARIANTS];
    assert_int_equal(msgl__attn_windows(&v, windows), 1);
    assert_int_equal(windows[0], -1);
    for (int32_t i = 0; i < MSGL_ATTN_MAX_VARIANTS; i++) { // two of each window
        const msgl_attn_variant one = {
            .window = i / 2, .softcap = (float)(i % 2 * (i < 4)), .sinks = i % 2 == 1};
        assert_true(msgl__attn_variants_add(&v, one));
        assert_true(msgl__attn_variants_add(&v, (msgl_attn_variant){0})); // there already
        assert_int_equal(v.count, i + 1);
        assert_int_equal(msgl__attn_windows(&v, windows), 1 + i / 2);
        for (int32_t k = 0; k <= i / 2; k++) assert_int_equal(windows[k], k);
    }
    assert_false(msgl__attn_variants_add(&v, (msgl_attn_variant){.window = 77}));
    assert_false(msgl__attn_variants_add(&v, (msgl_attn_variant){.chunk = 77}));
    assert_false(msgl__attn_variants_add(&v, (msgl_attn_variant){.window = 1, .softcap = 1}));
    const msgl_attn_variant there = {.window = 1, .softcap = 1, .sinks = true};
    assert_true(msgl__attn_variants_add(&v, there));
    assert_int_equal(v.count, MSGL_ATTN_MAX_VARIANTS);
}

static int set_up(void **state)
{
    (void)state;
    fake_plugins(true, true);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fi),
        cmocka_unit_test(test_fi_in_flight),
        cmocka_unit_test(test_fi_mixed),
        cmocka_unit_test(test_fi_sinks),
        cmocka_unit_test(test_flashinfer),
        cmocka_unit_test(test_fa),
        cmocka_unit_test(test_fa_local),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_fa_window_tiles),
        cmocka_unit_test(test_fa_dual_tiles),
        cmocka_unit_test(test_fa_many_sections),
        cmocka_unit_test(test_fa_windows),
        cmocka_unit_test(test_chunks_by_fa),
        cmocka_unit_test(test_fa_in_flight),
        cmocka_unit_test(test_unknown_window),
        cmocka_unit_test(test_variants),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
