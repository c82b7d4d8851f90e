// SPDX-License-Identifier: Apache-2.0
//
// Attention to lists of windows' keys (attention/chosen.h) on a device with memory of its own
// against the CPU's: lists, choices and triton's kernels are emulated, and the device's memory is
// the host's, with a page table of another stride.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/chosen.h"
#include "core/mem.h"
#include "cuda/attn/prefill.h"
#include "cuda/backends/triton.h"
#include "cuda/host.h"
#include "cuda/ops/ops.h"
#include "kernel/device.h"
#include "kernel/kernel.h"
#include "utils/threadpool.h"

enum {
    HEADS = 20,
    DIM = 64,
    WINDOW = 16,
    EVERY = 4,
    TOP_K = 9,
    INDEX_HEADS = 4,
    INDEX_DIM = 32,
    PAGE = 8,
    PAGES = 100,
    MOST = 320, // tokens of a request
    REQUESTS = 5,
    TOKENS = 132,
    LAYERS = 3,
    WIDTH = HEADS * DIM,
};

// --- a device -----------------------------------------------------------------------------------

static void *take(msgl_device *d, size_t bytes)
{
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    (void)d;
    assert_non_null(p);
    memset(p, 0xff, bytes);
    return p;
}

static void *take_zeros(msgl_device *d, size_t bytes)
{
    return memset(take(d, bytes), 0, bytes);
}

static void give_back(msgl_device *d, void *p, size_t bytes)
{
    (void)d, (void)bytes;
    free(p);
}

static void copy(msgl_device *d, void *to, const void *from, size_t bytes)
{
    (void)d;
    memcpy(to, from, bytes);
}

// What the backend names and these calls do not reach.
const msgl_attn_desc msgl__attn_fa_cuda = {.name = "fa"};
int msgl__cuda_attn_tree(const msgl_cuda_attn_call *c, const uint64_t *tree, void *stream)
{
    (void)c, (void)tree, (void)stream;
    return 1;
}
void *msgl__cuda_device_stream(msgl_device *d)
{
    (void)d;
    return NULL;
}

// --- numbers ------------------------------------------------------------------------------------

static float uniform(uint64_t *state) // [-1, 1)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) * 0x1p-31f;
}

// The same numbers, which bf16 has, for both.
typedef struct pair {
    float *f32;
    void *bf16;
} pair;

static pair pair_new(size_t n, bool whole, uint64_t *seed)
{
    pair p = {take(NULL, n * sizeof(float)), take(NULL, n * 2)};
    for (size_t i = 0; i < n; i++) {
        const float v = uniform(seed);
        msgl__store_f32(p.bf16, MSGL_BF16, i, whole ? truncf(3 * v) : v);
        p.f32[i] = msgl__load_f32(p.bf16, MSGL_BF16, i);
    }
    return p;
}

static void pair_free(pair *p)
{
    free(p->f32), free(p->bf16);
}

// --- both sides ---------------------------------------------------------------------------------

// Requests whose new tokens are the last of their keys, in pages in any order.
typedef struct world {
    int32_t cu[REQUESTS + 1], lens[REQUESTS], rows[REQUESTS];
    msgl_page_table table;
    int32_t *device_table;
    size_t device_stride; // pages
    msgl_seqs seqs;
} world;

static void world_make(world *w, uint64_t *seed)
{
    static const int32_t NEW[REQUESTS] = {1, 90, 1, 7, 33}, ALL[REQUESTS] = {1, 90, MOST, 57, 200};
    int32_t order[PAGES], next = 0;
    msgl_err err = {0};
    memset(w, 0, sizeof *w);
    assert_int_equal(msgl__page_table_create(REQUESTS + 1, MOST, PAGE, PAGES, &w->table, &err), 0);
    for (int32_t i = 0; i < PAGES; i++) order[i] = i;
    for (int32_t i = PAGES - 1; i > 0; i--) {
        const int32_t j = (int32_t)(fabsf(uniform(seed)) * (float)i), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    w->device_stride = (size_t)w->table.stride + 3;
    w->device_table = take_zeros(NULL, (REQUESTS + 2) * w->device_stride * sizeof(int32_t));
    for (int32_t i = 0; i < REQUESTS; i++) {
        w->cu[i + 1] = w->cu[i] + NEW[i];
        w->lens[i] = ALL[i];
        w->rows[i] = REQUESTS - i;
        int32_t *row = msgl__page_table_row(&w->table, w->rows[i]);
        for (int32_t p = 0; p * PAGE < ALL[i]; p++) row[p] = order[next++];
        memcpy(w->device_table + (size_t)w->rows[i] * w->device_stride, row,
               (size_t)w->table.stride * sizeof *row);
    }
    assert_int_equal(w->cu[REQUESTS], TOKENS);
    w->seqs = (msgl_seqs){.phase = MSGL_PREFILL,
                          .size = REQUESTS,
                          .num_tokens = TOKENS,
                          .max_seqlen_q = 90,
                          .max_seqlen_k = MOST,
                          .cu_seqlens_q = w->cu,
                          .seqlens_k = w->lens,
                          .table_rows = w->rows,
                          .dev_cu_seqlens_q = w->cu,
                          .dev_seqlens_k = w->lens,
                          .dev_table_rows = w->rows};
}

// A side: the CPU, or with `device` the emulated one.
typedef struct side {
    msgl_kernels k;
    msgl_exec x;
    msgl_kv_pool pool;
    msgl_attn_chosen *chosen;
    int32_t *slots, *counts; // [TOKENS, TOP_K], [TOKENS]
} side;

static void side_make(side *s, const world *w, msgl_device *device, void *keys, bool chosen,
                      bool deterministic)
{
    const msgl_attn_choosing what = {
        .top_k = chosen ? TOP_K : 0, .every = EVERY, .list_keys = WINDOW + MOST / EVERY};
    msgl_err err = {0};
    s->pool = (msgl_kv_pool){.spec = {.kind = MSGL_CACHE_LATENT,
                                      .num_layers = LAYERS,
                                      .window = WINDOW - 1,
                                      .num_heads = 1,
                                      .k_dim = DIM,
                                      .v_dim = DIM,
                                      .dtype = device != NULL ? MSGL_BF16 : MSGL_F32},
                             .num_pages = PAGES,
                             .page_size = PAGE,
                             .base = keys};
    msgl_attn_config cfg = {.num_q_heads = HEADS,
                            .num_kv_heads = 1,
                            .head_dim = DIM,
                            .page_size = PAGE,
                            .max_running = 8,
                            .max_seq_len = MOST,
                            .max_step_tokens = 256,
                            .max_in_flight = 2,
                            .deterministic = deterministic,
                            .kernels = &s->k,
                            .pool = &s->pool,
                            .page_table = &w->table,
                            .num_threads = 1,
                            .dev = device,
                            .device_table = w->device_table,
                            .device_table_stride = w->device_stride * PAGE};
    cfg.variants.count = 1; // as the engine has it of layers with a window
    cfg.variants.all[0] = (msgl_attn_variant){.window = WINDOW - 1, .sinks = true};
    if (device != NULL) {
        s->k.index.choose = msgl__cuda_index_choose;
        s->k.index.list = msgl__cuda_index_list;
        s->x = (msgl_exec){.device = device, .act = MSGL_BF16};
    } else {
        msgl__kernels_init_cpu(&s->k, MSGL_CPU_REF);
        s->x = (msgl_exec){.act = MSGL_F32};
        assert_int_equal(msgl__pool_create(1, &s->x.pool, &err), 0);
    }
    const msgl_attn_desc *desc = device != NULL ? &msgl__attn_triton_cuda : NULL;
    assert_int_equal(msgl__chosen_create(&cfg, desc, &what, &s->chosen, &err), 0);
    s->slots = take_zeros(NULL, TOKENS * TOP_K * sizeof(int32_t));
    s->counts = take_zeros(NULL, TOKENS * sizeof(int32_t));
}

static void side_free(side *s)
{
    msgl__chosen_destroy(s->chosen);
    if (s->x.pool != NULL) msgl__pool_destroy(s->x.pool);
    free(s->slots), free(s->counts);
}

typedef struct inputs {
    pair keys, index_keys, q, index_q;
    float weights[TOKENS * INDEX_HEADS], sinks[HEADS];
} inputs;

static void choose(side *s, const world *w, const inputs *in)
{
    const bool half = s->x.act == MSGL_BF16;
    const msgl_index_choose_call c = {.seqs = &w->seqs,
                                      .heads = INDEX_HEADS,
                                      .dim = INDEX_DIM,
                                      .every = EVERY,
                                      .q = half ? in->index_q.bf16 : in->index_q.f32,
                                      .ld_q = INDEX_HEADS * INDEX_DIM,
                                      .weights = in->weights,
                                      .dtype = s->x.act,
                                      .pool = half ? in->index_keys.bf16 : in->index_keys.f32,
                                      .slots = s->slots,
                                      .counts = s->counts};
    msgl__chosen_choose(s->chosen, &s->x, &c);
    assert_int_equal(s->x.status, 0);
}

// every 0: the window alone.
static void attend(side *s, const world *w, const inputs *in, int32_t every, bool chosen, void *out)
{
    const msgl_attn_layer layer = {
        .layer = 1, .scale = 0.3f, .window = -1, .k_scale = 1, .v_scale = 1, .sinks = in->sinks};
    const msgl_attn_listing what = {.window = WINDOW,
                                    .every = every,
                                    .shift = (PAGES + 1) * PAGE,
                                    .chosen = chosen ? s->slots : NULL,
                                    .counts = chosen ? s->counts : NULL};
    const void *q = s->x.act == MSGL_BF16 ? in->q.bf16 : in->q.f32;
    msgl__chosen_attend_window(s->chosen, &s->x, &layer, &w->seqs, &what, q, WIDTH, out);
    assert_int_equal(s->x.status, 0);
}

static void check(int32_t every, bool chosen, bool deterministic)
{
    static const msgl_device_ops OPS = {.alloc = take,
                                        .free = give_back,
                                        .host_alloc = take_zeros,
                                        .host_free = give_back,
                                        .copy_in = copy,
                                        .copy = copy};
    static char device[4096]; // has room for what kernels find behind a device
    static side cpu, gpu;
    static inputs in;
    static world w;
    const size_t slots = (size_t)(PAGES + 1) * PAGE;
    uint64_t seed = 7;
    memset(device, 0, sizeof device);
    *(msgl_device *)device = (msgl_device){.ops = &OPS, .capability = 80};
    memset(&cpu, 0, sizeof cpu), memset(&gpu, 0, sizeof gpu);
    world_make(&w, &seed);
    in.keys = pair_new(LAYERS * slots * DIM, false, &seed);
    in.index_keys = pair_new(slots * INDEX_DIM, true, &seed); // whose scores are exact
    in.q = pair_new((size_t)TOKENS * WIDTH, false, &seed);
    in.index_q = pair_new((size_t)TOKENS * INDEX_HEADS * INDEX_DIM, true, &seed);
    for (int i = 0; i < TOKENS * INDEX_HEADS; i++) in.weights[i] = truncf(3 * uniform(&seed));
    for (int i = 0; i < HEADS; i++) in.sinks[i] = uniform(&seed);
    side_make(&cpu, &w, NULL, in.keys.f32, chosen, deterministic);
    side_make(&gpu, &w, (msgl_device *)device, in.keys.bf16, chosen, deterministic);
    if (chosen) {
        choose(&cpu, &w, &in);
        choose(&gpu, &w, &in);
        assert_memory_equal(cpu.counts, gpu.counts, TOKENS * sizeof(int32_t));
        assert_memory_equal(cpu.slots, gpu.slots, TOKENS * TOP_K * sizeof(int32_t));
    }
    float *want = take(NULL, (size_t)TOKENS * WIDTH * sizeof *want);
    void *got = take(NULL, (size_t)TOKENS * WIDTH * 2);
    attend(&cpu, &w, &in, every, chosen, want);
    attend(&gpu, &w, &in, every, chosen, got);
    double worst = 0;
    for (size_t i = 0; i < (size_t)TOKENS * WIDTH; i++) {
        const double off = fabs((double)want[i] - (double)msgl__load_f32(got, MSGL_BF16, i));
        if (!(off <= worst)) worst = off; // a NaN, too
    }
    print_message("worst difference %.4f\n", worst);
    assert_true(worst < 6e-3); // values are below 1, and rounded twice
    free(want), free(got), free(w.device_table);
    msgl__page_table_destroy(&w.table);
    side_free(&cpu), side_free(&gpu);
    pair_free(&in.keys), pair_free(&in.index_keys), pair_free(&in.q), pair_free(&in.index_q);
}

static void test_window(void **state)
{
    (void)state;
    check(0, false, false);
}

static void test_all_windows(void **state)
{
    (void)state;
    check(EVERY, false, true);
}

static void test_chosen_windows(void **state)
{
    (void)state;
    check(EVERY, true, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_window),
                                       cmocka_unit_test(test_all_windows),
                                       cmocka_unit_test(test_chosen_windows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
