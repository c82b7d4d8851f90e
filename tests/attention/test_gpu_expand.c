// SPDX-License-Identifier: Apache-2.0
//
// The host's part of expanded latent attention on a GPU: where it is offered, and that the kernel
// finds, in memory that was taken and copied, lists by which every query meets every key that it
// sees once, in tiles that end where the kernel needs no mask of its own.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/expand.h"
#include "attention/fake_gpu.h"
#include "core/attributes.h"
#include "cuda/attn/prefill_sm90.h"
#include "cuda/backends/expand.h"

enum { TILE = 128, HEADS = 16 };

static const msgl_attn_expanded DEEPSEEK = {
    .prompts = MSGL_PROMPTS_EXPANDED, .nope = 128, .v_dim = 128};

typedef struct step {
    int32_t size, tokens[FAKE_RUNNING], keys[FAKE_RUNNING];
} step;

typedef struct walk { // through a step's passes
    const step *s;
    msgl_expand *e;
    fake_world w;
    int32_t cu[FAKE_RUNNING + 1], rows[FAKE_RUNNING];
    msgl_seqs seqs;
    int64_t *met; // [tokens, heads] keys so far
} walk;

static int32_t request_of(const walk *w, int32_t row)
{
    int32_t i = 0;
    while (row >= w->cu[i + 1]) i++;
    return i;
}

// A tile of the list: its keys follow those that its queries have met.
static void meet(const walk *w, const msgl_fa_prefill_tile *t, int32_t head,
                 const msgl_expand_req *reqs, int32_t num_reqs)
{
    const int32_t req = request_of(w, t->row0);
    const msgl_expand_req *r = reqs;
    while (r < reqs + num_reqs && r->table_row != w->rows[req]) r++;
    assert_true(r < reqs + num_reqs);
    assert_int_equal(t->table_row, r->row0);
    assert_int_equal(t->key_lo, 0);
    assert_int_equal(t->klen, r->keys);
    assert_true(t->tokens >= 1 && t->tokens <= MSGL_FA_PREFILL_ROWS);
    assert_true(t->key_hi >= 1 && t->key_hi <= t->klen);
    const bool last = r->first + r->keys == w->s->keys[req];
    assert_true(last || r->keys % TILE == 0);
    for (int32_t i = 0; i < t->tokens; i++) {
        const int32_t row = t->row0 + i;
        assert_true(row < w->cu[req + 1]);
        const int32_t pos = w->s->keys[req] - w->s->tokens[req] + row - w->cu[req];
        assert_int_equal(t->pos0 + i, pos - r->first);
        assert_true(t->pos0 + i >= 0);
        const int32_t seen = t->pos0 + i + 1 < t->key_hi ? t->pos0 + i + 1 : t->key_hi;
        int64_t *met = &w->met[(int64_t)row * HEADS + head];
        assert_int_equal(*met, r->first);
        *met += seen;
    }
}

static void walk_plan(const walk *w, const msgl_expanded_call *c)
{
    assert_true(fake_gpu_contains(c->plan, sizeof(msgl_fa_prefill_plan)));
    assert_true(fake_gpu_contains(c->reqs, (size_t)c->num_reqs * sizeof *c->reqs));
    const msgl_fa_prefill_plan *p = c->plan;
    const msgl_fa_prefill_section *s = (const msgl_fa_prefill_section *)(p + 1);
    const msgl_fa_prefill_tile *tiles =
        (const msgl_fa_prefill_tile *)(s + MSGL_FA_PREFILL_MAX_SECTIONS + 1);
    assert_true(fake_gpu_contains(tiles, (size_t)p->num_tiles * sizeof *tiles));
    assert_int_equal(p->next | p->done, 0);
    for (int32_t i = 0; i < p->num_sections; i++) {
        for (int32_t at = 0; at < s[i + 1].work0 - s[i].work0; at++) {
            meet(w, &tiles[s[i].tile0 + at / s[i].heads], s[i].head0 + at % s[i].heads, c->reqs,
                 c->num_reqs);
        }
    }
}

// Rows of the pass's arrays: requests one behind the other.
static void check_rows(const msgl_gather_call *g)
{
    int32_t row = 0;
    for (int32_t i = 0; i < g->num_reqs; i++) {
        assert_int_equal(g->reqs[i].row0, row);
        row += g->reqs[i].keys;
    }
    assert_int_equal(row, g->keys);
    assert_true(row <= FAKE_STEP_TOKENS);
}

static void open_walk(walk *w, const step *s)
{
    *w = (walk){.s = s};
    const msgl_attn_needs needs = fake_latent_needs(90, HEADS, 512, 64, MSGL_BF16);
    fake_world_open(&w->w, &needs);
    w->w.cfg.expanded = DEEPSEEK;
    msgl_err err = {0};
    assert_int_equal(msgl__expand_create(&msgl__expand_cuda, &w->w.cfg, &w->e, &err), 0);
    assert_non_null(w->e);
    for (int32_t i = 0; i < s->size; i++) {
        w->cu[i + 1] = w->cu[i] + s->tokens[i];
        w->rows[i] = s->size - 1 - i;
    }
    w->seqs = (msgl_seqs){.phase = MSGL_PREFILL,
                          .size = s->size,
                          .num_tokens = w->cu[s->size],
                          .cu_seqlens_q = w->cu,
                          .seqlens_k = s->keys,
                          .table_rows = w->rows,
                          .step_slot = FAKE_STEP_SLOTS - 1};
    w->met = calloc((size_t)w->seqs.num_tokens * HEADS, sizeof *w->met);
    assert_non_null(w->met);
}

static void check_step(const step *s, int32_t passes)
{
    walk w;
    fake_gpu_reset(90);
    open_walk(&w, s);
    const msgl_attn_layer layer = {.scale = 0.1f, .window = -1};
    const msgl_expand_io io = {.q = &w, .ld_q = HEADS * 192};
    assert_int_equal(msgl__expand_prepare(w.e, &w.seqs), passes);
    if (passes > 0) msgl__expand_copy_in(w.e, &w.seqs);
    for (int32_t i = 0; i < passes; i++) {
        msgl__expand_gather(w.e, &w.w.exec, &layer, &w.seqs, i, NULL, NULL);
        check_rows(&FAKE_GPU.gather);
        msgl__expand_attend(w.e, &w.w.exec, &layer, &w.seqs, i, &io);
        assert_int_equal(FAKE_GPU.expanded.merges, FAKE_GPU.expanded.reqs[0].first > 0);
        walk_plan(&w, &FAKE_GPU.expanded);
    }
    for (int32_t row = 0; row < w.seqs.num_tokens && passes > 0; row++) {
        const int32_t req = request_of(&w, row);
        const int32_t seen = s->keys[req] - w.cu[req + 1] + row + 1;
        for (int32_t h = 0; h < HEADS; h++) assert_int_equal(w.met[row * HEADS + h], seen);
    }
    free(w.met);
    msgl__expand_destroy(w.e);
    fake_world_close(&w.w);
    fake_gpu_check();
}

// A pass has 2,048 keys at most.
static void test_lists(void **state)
{
    (void)state;
    static const struct {
        step s;
        int32_t passes;
    } cases[] = {
        {{1, {1}, {1}}, 1},
        {{4, {512, 512, 512, 512}, {512, 512, 512, 512}}, 1},
        {{3, {100, 129, 300}, {500, 129, 1400}}, 1},
        {{4, {127, 128, 1, 700}, {2048, 2049, 1, 2047}}, 4},
        {{1, {2048}, {2049}}, 2},
        {{1, {2000}, {4000}}, 2},
        {{2, {1000, 1000}, {50000, 1001}}, 26},
        {{1, {2048}, {64 * 2048}}, 64},
        {{1, {2048}, {64 * 2048 + 1}}, 0},
        {{2, {1, 2047}, {1, 64 * 2048}}, 0},
    };
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) check_step(&cases[i].s, cases[i].passes);
}

static void test_offered(void **state)
{
    (void)state;
    const msgl_attn_needs hopper = fake_latent_needs(90, HEADS, 512, 64, MSGL_BF16);
    assert_true(msgl__expand_cuda.supports(&hopper, &DEEPSEEK));
    const msgl_attn_expanded narrow = {.nope = 64, .v_dim = 128},
                             wide = {.nope = 128, .v_dim = 256};
    assert_false(msgl__expand_cuda.supports(&hopper, &narrow));
    assert_false(msgl__expand_cuda.supports(&hopper, &wide));
    const msgl_attn_needs others[] = {
        fake_latent_needs(80, HEADS, 512, 64, MSGL_BF16),
        fake_latent_needs(100, HEADS, 512, 64, MSGL_BF16),
        fake_latent_needs(90, HEADS, 512, 64, MSGL_F16),
        fake_latent_needs(90, HEADS, 512, 32, MSGL_BF16),
    };
    for (size_t i = 0; i < MSGL_COUNT(others); i++) {
        assert_false(msgl__expand_cuda.supports(&others[i], &DEEPSEEK));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_offered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
