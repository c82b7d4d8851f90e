// SPDX-License-Identifier: Apache-2.0
//
// States of requests: kept anywhere in a chunk or behind an answer's token, and gone on from by
// others, with the bits of a request that computes everything itself; and what a batch may not ask.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "engine/harness.h"

enum { TOKENS = 64 };

#define MODEL(name) MSGL_SOURCE_DIR "/tests/vectors/models/" name

typedef struct fixture {
    harness h;
    int32_t ids[TOKENS];
    float *want; // [TOKENS, vocab], one prefill alone
    size_t row;  // bytes
} fixture;

static void open_model(fixture *f, const char *dir)
{
    char prompt[512];
    const msgl_options cfg = harness_config(dir, "auto");
    harness_open(&f->h, &cfg);
    snprintf(prompt, sizeof prompt, "%s/prompt.json", dir);
    assert_int_equal(load_ids(prompt, "ids", f->ids, TOKENS), TOKENS);
    f->row = (size_t)f->h.info->vocab_size * sizeof(float);
    f->want = malloc(TOKENS * f->row);
    assert_non_null(f->want);
    harness_pages(&f->h, 0, TOKENS + 1);
    harness_tokens(&f->h, 0, f->ids, TOKENS);
    msgl_batch_req r = harness_req(0, 0, TOKENS);
    harness_step(&f->h, MSGL_PREFILL, &r, 1);
    memcpy(f->want, harness_row(&f->h, 0), TOKENS * f->row);
}

static void close_model(fixture *f)
{
    free(f->want);
    harness_close(&f->h);
}

// Row `row` has the K and V of row 0's first tokens, and room of its own behind them.
static void share(fixture *f, int32_t row, int32_t len)
{
    msgl_page_table *table = &msgl__engine_page_tables(f->h.e)[0];
    harness_pages(&f->h, row, TOKENS + 1);
    harness_tokens(&f->h, row, f->ids, TOKENS);
    memcpy(msgl__page_table_row(table, row), msgl__page_table_row(table, 0),
           (size_t)msgl__ceil_div(len, table->paging.size) * sizeof(int32_t));
}

// Rows of the last step from its token `token` on are those of positions [from, to).
static void expect(const fixture *f, int32_t token, int32_t from, int32_t to)
{
    const char *want = (const char *)f->want + (size_t)from * f->row;
    if (memcmp(harness_row(&f->h, token), want, (size_t)(to - from) * f->row) != 0) {
        fail_msg("%s: other bits in [%d, %d)", f->h.info->architecture, from, to);
    }
}

// Rows 0 to 4 and checkpoints 1, 2 and 4 are all that anything was left in.
static void check_used(const msgl_kv_pool *pool)
{
    if (pool->spec.kind != MSGL_CACHE_STATE) return;
    for (int32_t i = 5; i < pool->max_running + 1 + pool->num_checkpoints; i++) {
        const int32_t c = i - pool->max_running - 1;
        const char *state = msgl__state_of_row(pool, i, 0);
        const size_t bytes = pool->spec.state_bytes * (size_t)pool->spec.num_layers;
        bool any = false;
        for (size_t k = 0; k < bytes; k++) any |= state[k] != 0;
        assert_int_equal(any, c == 1 || c == 2 || c == 4);
    }
}

static void check_saves(const char *dir)
{
    static const msgl_state_save saves[] = {{1, 6}, {7, 3}, {16, 0}, {33, 5}, {63, 1}};
    fixture f;
    msgl_batch_req reqs[MSGL_COUNT(saves)];
    open_model(&f, dir);
    assert_true(f.h.info->cache.spans[1].num_units > 6);
    share(&f, 0, 0);
    reqs[0] = harness_req(0, 0, 40); // saves of one request in two chunks
    reqs[0].saves = saves;
    reqs[0].num_saves = 4;
    harness_step(&f.h, MSGL_PREFILL, reqs, 1);
    expect(&f, 0, 0, 40);
    harness_tokens(&f.h, 0, f.ids, TOKENS);
    reqs[0] = harness_req(0, 40, TOKENS);
    reqs[0].saves = &saves[4];
    reqs[0].num_saves = 1;
    harness_step(&f.h, MSGL_PREFILL, reqs, 1);
    expect(&f, 0, 40, TOKENS);

    int32_t token = 0; // all of them at once, in chunks of other lengths
    for (int32_t i = 0; i < (int32_t)MSGL_COUNT(saves); i++) {
        share(&f, i + 1, saves[i].len);
        reqs[i] = harness_req(i + 1, saves[i].len, TOKENS);
        reqs[i].load_state = saves[i].checkpoint;
    }
    harness_step(&f.h, MSGL_PREFILL, reqs, MSGL_COUNT(saves));
    for (size_t i = 0; i < MSGL_COUNT(saves); i++) {
        expect(&f, token, saves[i].len, TOKENS);
        token += TOKENS - saves[i].len;
    }
    close_model(&f);
}

// Answers begin with a checkpoint and keep one, beside a chunk that does so too.
static void check_answers(const char *dir)
{
    static const msgl_state_save prefix = {30, 2}, answer = {32, 4}, chunk = {35, 1};
    fixture f;
    msgl_batch_req reqs[2];
    open_model(&f, dir);
    share(&f, 0, 0);
    reqs[0] = harness_req(0, 0, TOKENS);
    reqs[0].saves = &prefix;
    reqs[0].num_saves = 1;
    harness_step(&f.h, MSGL_PREFILL, reqs, 1);
    for (int32_t row = 1; row < 3; row++) share(&f, row, 30);
    for (int32_t len = 30; len < 34; len++) {
        reqs[0] = harness_req(1, len, len + 1);
        reqs[1] = harness_req(2, 30 + 2 * (len - 30), 32 + 2 * (len - 30));
        for (int i = 0; i < 2; i++) {
            reqs[i].sample = false;
            if (len == 30) reqs[i].load_state = prefix.checkpoint;
        }
        if (len == 31) reqs[0].saves = &answer;
        if (len == 32) reqs[1].saves = &chunk;
        reqs[0].num_saves = len == 31;
        reqs[1].num_saves = len == 32;
        harness_mixed(&f.h, 1, reqs, 2);
        expect(&f, 0, len, len + 1);
        expect(&f, 1, 30 + 2 * (len - 30), 32 + 2 * (len - 30));
    }
    share(&f, 3, 32);
    share(&f, 4, 35);
    reqs[0] = harness_req(3, 32, TOKENS);
    reqs[0].load_state = answer.checkpoint;
    reqs[1] = harness_req(4, 35, 40);
    reqs[1].load_state = chunk.checkpoint;
    harness_step(&f.h, MSGL_PREFILL, reqs, 2);
    expect(&f, 0, 32, TOKENS);
    expect(&f, TOKENS - 32, 35, 40);
    for (int32_t g = 0; g < f.h.e->specs.count; g++) check_used(&f.h.e->groups[g].pool);
    close_model(&f);
}

static void test_saves(void **state)
{
    (void)state;
    check_saves(MODEL("qwen3_next"));
    check_saves(MODEL("qwen3_5"));
    check_saves(MODEL("granite_hybrid"));
    check_saves(MODEL("nemotron_h_moe"));
    check_saves(MODEL("zamba2"));
    check_saves(MODEL("zamba2_rope"));
    check_saves(MODEL("qwen4_exp"));
    check_saves(MODEL("qwen4_exp_ngrams"));
}

static void test_answers(void **state)
{
    (void)state;
    check_answers(MODEL("qwen3_next"));
    check_answers(MODEL("qwen3_next_hd128"));
    check_answers(MODEL("lfm2"));
    check_answers(MODEL("granite_hybrid"));
    check_answers(MODEL("nemotron_h_latent"));
    check_answers(MODEL("zamba2"));
    check_answers(MODEL("zamba2_rope"));
    check_answers(MODEL("qwen4_exp"));
    check_answers(MODEL("qwen4_exp_ngrams"));
}

static void expect_refused(harness *h, int32_t cached_len, int32_t load,
                           const msgl_state_save *saves, int32_t num_saves)
{
    msgl_batch_req r = harness_req(0, cached_len, 40);
    msgl_batch b = {.size = 1, .num_tokens = 40 - cached_len, .reqs = &r};
    r.load_state = load;
    r.saves = saves;
    r.num_saves = num_saves;
    assert_int_equal(h->r->submit(h->r->ctx, &b), MSGL_EINVAL);
}

static void test_refusals(void **state)
{
    (void)state;
    fixture f;
    open_model(&f, MODEL("qwen3_next"));
    const int32_t n = f.h.info->cache.spans[1].num_units;
    const msgl_state_save bad[] = {{20, 0}, {41, 0}, {30, -1}, {30, n}},
                          twice[] = {{30, 0}, {30, 1}};
    expect_refused(&f.h, 20, n, NULL, 0);
    expect_refused(&f.h, 0, 0, NULL, 0); // a request that begins has no state
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) expect_refused(&f.h, 20, -1, &bad[i], 1);
    expect_refused(&f.h, 20, -1, twice, 2);
    close_model(&f);
}

// The room for saves: one for each running request, and one for each interval that the tokens of a
// step can pass.
static void test_most_saves(void **state)
{
    (void)state;
    fixture f;
    open_model(&f, MODEL("qwen3_next"));
    const msgl_engine *e = f.h.e;
    const msgl_cache_span *span = &f.h.info->cache.spans[1];
    const int32_t most = e->max_running + e->max_step_tokens / span->interval;
    msgl_state_save *saves = malloc((size_t)(most + 1) * sizeof *saves);
    assert_non_null(saves);
    for (int32_t i = 0; i <= most; i++) saves[i] = (msgl_state_save){i + 1, i % span->num_units};
    msgl_batch_req reqs[2] = {harness_req(0, 0, most + 1), harness_req(1, 0, most + 1)};
    const msgl_batch b = {.size = 2, .num_tokens = 2 * (most + 1), .reqs = reqs};
    for (int32_t first = 0; first <= most; first += most) {
        reqs[0].saves = reqs[1].saves = saves;
        reqs[0].num_saves = first;
        reqs[1].num_saves = most - first;
        assert_true(msgl__states_valid(e, &b));
        reqs[1].num_saves++;
        assert_false(msgl__states_valid(e, &b));
    }
    free(saves);
    close_model(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_saves),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_most_saves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
