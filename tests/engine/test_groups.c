// SPDX-License-Identifier: Apache-2.0
//
// Models whose layers keep different things: pages behind a window are used again, by the same
// request and by others, and what they then hold cannot be seen in any result.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/fa/fa.h"
#include "attention/fi/fi.h"
#include "core/attributes.h"
#include "engine/harness.h"

enum { TOKENS = 64, REQS = 3, MAX_PAGES = 256, PATH = 512 };

#define MODEL(name) MSGL_SOURCE_DIR "/tests/vectors/models/" name

// --- pages of a window, given out and taken back as a scheduler does -----------------------------

typedef struct span_pages {
    int32_t span, window;
    int32_t free[MAX_PAGES], num_free;
    int32_t pages[REQS][TOKENS];    // of each request, by place in its sequence
    int32_t first[REQS], end[REQS]; // those that it has
    int32_t taken[MAX_PAGES];       // how often a page was given out
} span_pages;

// All elements of a page's K and V in the layers of the span become NaN.
static void poison(harness *h, int32_t span, int32_t page)
{
    for (int32_t g = 0; g < h->e->specs.count; g++) {
        const msgl_kv_pool *p = &h->e->groups[g].pool;
        const size_t tokens = (size_t)p->page_size * (size_t)p->spec.num_heads;
        const size_t heads = tokens * msgl__dtype_size(p->spec.dtype);
        const size_t k = heads * (size_t)p->spec.k_dim, v = heads * (size_t)p->spec.v_dim;
        if (h->e->groups[g].span != span) continue;
        for (int32_t l = 0; l < p->spec.num_layers; l++) {
            memset((char *)msgl__kv_k(p, l) + (size_t)page * k, 0xff, k);
            memset((char *)msgl__kv_v(p, l) + (size_t)page * v, 0xff, v);
        }
    }
}

// `num_pages` are all that there are; the rest of the span is never used.
static void open_span(harness *h, int32_t span, int32_t num_pages, span_pages *s)
{
    const msgl_cache_span *c = &h->info->cache.spans[span];
    *s = (span_pages){.span = span, .window = c->window};
    assert_true(num_pages <= MAX_PAGES && num_pages <= c->num_units);
    for (int32_t i = 0; i < num_pages; i++) {
        poison(h, span, i);
        s->free[s->num_free++] = i;
    }
    poison(h, span, c->num_units); // the dummy page, where rows behind the window may point too
}

static void point_to(harness *h, span_pages *s, int32_t req, int32_t place, int32_t page)
{
    const int32_t size = h->info->page_size;
    int32_t *row = msgl__page_table_row(&msgl__engine_page_tables(h->e)[s->span], req);
    if (place * size <= TOKENS) row[place] = page;
}

// The request is about to compute [cached, device): pages behind the window of its first token go
// back, and are the first ones to be given out.
static void move_on(harness *h, span_pages *s, int32_t req, int32_t cached, int32_t device)
{
    const int32_t size = h->info->page_size;
    for (; (s->first[req] + 1) * size <= cached - s->window; s->first[req]++) {
        const int32_t place = s->first[req], page = s->pages[req][place];
        poison(h, s->span, page);
        s->free[s->num_free++] = page;
        // Every other entry points to the dummy page from now on, the rest to what is others'.
        if (place % 2 == 0) point_to(h, s, req, place, h->info->cache.spans[s->span].num_units);
    }
    for (; s->end[req] * size < device; s->end[req]++) {
        if (s->num_free == 0) fail_msg("no page for request %d at %d", req, cached);
        const int32_t page = s->free[--s->num_free];
        s->pages[req][s->end[req]] = page;
        s->taken[page]++;
        point_to(h, s, req, s->end[req], page);
    }
}

// --- the same steps with and without -------------------------------------------------------------

typedef struct run {
    harness h;
    int32_t ids[TOKENS];
    float *rows[REQS]; // [TOKENS, vocab] of log-probabilities
} run;

static void open_run(run *r, const char *dir, const harness_target *target)
{
    char prompt[PATH];
    const msgl_options cfg = harness_config_for(dir, "auto", target);
    harness_open(&r->h, &cfg);
    snprintf(prompt, sizeof prompt, "%s/prompt.json", dir);
    assert_int_equal(load_ids(prompt, "ids", r->ids, TOKENS), TOKENS);
    for (int32_t i = 0; i < REQS; i++) {
        int32_t turned[TOKENS];
        for (int32_t t = 0; t < TOKENS; t++) turned[t] = r->ids[(t + 11 * i) % TOKENS];
        harness_pages(&r->h, i, TOKENS);
        harness_tokens(&r->h, i, turned, TOKENS);
        r->rows[i] = calloc((size_t)TOKENS * (size_t)r->h.info->vocab_size, sizeof(float));
        assert_non_null(r->rows[i]);
    }
}

static void close_run(run *r)
{
    for (int32_t i = 0; i < REQS; i++) free(r->rows[i]);
    harness_close(&r->h);
}

// Requests begin one after the other, each with chunks of its own length for its first 40 tokens,
// then token by token, so that steps have answers, chunks and both. s: gives out the pages of the
// window; NULL: all tokens keep theirs.
static void run_steps(run *r, span_pages *s)
{
    const int32_t chunks[REQS] = {9, 17, 4};
    const size_t vocab = (size_t)r->h.info->vocab_size;
    int32_t len[REQS] = {0};
    for (int32_t step = 0; len[0] + len[1] + len[2] < REQS * TOKENS; step++) {
        msgl_batch_req reqs[REQS];
        int32_t n = 0, num_decode = 0;
        for (int pass = 0; pass < 2; pass++) { // answers first
            for (int32_t i = 0; i < REQS; i++) {
                const bool answer = len[i] >= 40;
                if (step < 4 * i || len[i] == TOKENS || answer != (pass == 0)) continue;
                const int32_t end = answer ? len[i] + 1 : len[i] + chunks[i];
                if (s != NULL) move_on(&r->h, s, i, len[i], end);
                reqs[n] = harness_req(i, len[i], end);
                reqs[n++].sample = false;
                num_decode += answer;
            }
        }
        harness_mixed(&r->h, num_decode, reqs, n);
        int32_t row = 0;
        for (int32_t i = 0; i < n; i++) {
            const int32_t q = reqs[i].table_idx;
            for (int32_t t = reqs[i].cached_len; t < reqs[i].device_len; t++) {
                memcpy(r->rows[q] + (size_t)t * vocab, harness_row(&r->h, row++),
                       vocab * sizeof(float));
            }
            len[q] = reqs[i].device_len;
        }
    }
}

typedef struct windowed {
    const char *dir;
    int32_t num_spans, window;
    bool chunks; // of which the window is what they may reach
} windowed;

static void check_reuse(const windowed *m, const harness_target *target)
{
    run all, few;
    span_pages pages;
    open_run(&all, m->dir, target);
    run_steps(&all, NULL);
    open_run(&few, m->dir, target);
    const msgl_cache_layout *c = &few.h.info->cache;
    assert_int_equal(c->num_spans, m->num_spans);
    const int32_t span = m->num_spans - 1, window = c->spans[span].window, size = c->page_size;
    assert_int_equal(window, m->window);
    const int32_t num_pages = msgl__window_pages_most(window, 9, size) +
                              msgl__window_pages_most(window, 17, size) +
                              msgl__window_pages_most(window, 4, size);
    assert_true(num_pages * size < REQS * TOKENS);
    open_span(&few.h, span, num_pages, &pages);
    run_steps(&few, &pages);
    for (int32_t i = 0; i < num_pages; i++) pages.taken[0] += i == 0 ? 0 : pages.taken[i];
    assert_true(pages.taken[0] == REQS * TOKENS / size); // of every token, on far fewer pages
    for (int32_t i = 0; i < REQS; i++) {
        const size_t bytes = (size_t)TOKENS * (size_t)few.h.info->vocab_size * sizeof(float);
        assert_memory_equal(few.rows[i], all.rows[i], bytes);
    }
    close_run(&few);
    close_run(&all);
}

static void test_reuse(void **state)
{
    (void)state;
    const windowed models[] = {
        {MODEL("gemma2"), 2, 15, false},      {MODEL("gemma3"), 2, 15, false},
        {MODEL("mistral_swa"), 2, 15, false}, {MODEL("gemma4_conditional"), 2, 15, false},
        {MODEL("mimo_v2"), 2, 16, false},     {MODEL("olmo3"), 2, 15, false},
        {MODEL("llama4"), 2, 23, true}};
    const char *const backends[] = {"fa", "fi", "torch_native", "fa,fi"};
    const int32_t sizes[] = {1, 4};
    for (size_t m = 0; m < MSGL_COUNT(models); m++) {
        for (size_t b = 0; b < MSGL_COUNT(backends); b++) {
            for (size_t p = 0; p < MSGL_COUNT(sizes); p++) {
                const harness_target t = {.attention = backends[b], .page_size = sizes[p]};
                if (models[m].chunks && strstr(t.attention, "fi") != NULL) continue;
                check_reuse(&models[m], &t);
            }
        }
    }
}

// Raw rows of windows' keys, and K where it is seen in a window alone: lists have the kernel of fa.
static void test_reuse_of_compressed(void **state)
{
    (void)state;
    const windowed models[] = {{MODEL("deepseek_v4"), 2, 7, false},
                               {MODEL("deepseek_v4_tf5"), 3, 9, false}};
    for (size_t m = 0; m < MSGL_COUNT(models); m++) {
        const harness_target one = {.page_size = 1}, four = {.page_size = 4};
        check_reuse(&models[m], &one);
        check_reuse(&models[m], &four);
    }
}

// --- what the engine says ------------------------------------------------------------------------

static void test_layout(void **state)
{
    (void)state;
    harness h;
    msgl_options cfg = harness_config(MODEL("gemma2"), "auto");
    cfg.num_pages = 1280;
    harness_open(&h, &cfg);
    const msgl_cache_layout *c = &h.info->cache;
    assert_int_equal(h.info->num_pages, 1280);
    assert_int_equal(c->num_spans, 2);
    assert_int_equal(c->spans[1].kind, MSGL_SPAN_WINDOW);
    assert_int_equal(c->spans[1].num_units, 170); // 17 pages of 128
    size_t bytes = 0;
    for (int32_t g = 0; g < 2; g++) {
        const msgl_kv_pool *p = &h.e->groups[g].pool;
        assert_int_equal(h.e->groups[g].span, g);
        assert_int_equal(p->num_pages, c->spans[g].num_units);
        assert_int_equal(p->bytes, msgl__kv_pool_bytes(p));
        bytes += p->bytes;
        assert_int_equal(h.info->span_bytes[g], msgl__cache_unit_bytes(&p->spec, c->page_size));
        // Padding goes to the dummy page of each span.
        const int32_t dummy = c->spans[g].num_units;
        assert_int_equal(msgl__page_table_row(&h.e->page_tables[g], h.e->max_running)[0], dummy);
        msgl__step_bind(h.e, &h.e->steps[0], 1);
        msgl__step_pad(h.e, &h.e->steps[0], 0, 1);
        assert_int_equal(h.e->steps[0].io.pages[g][0], dummy);
    }
    assert_int_equal(h.info->kv_bytes, bytes);
    harness_close(&h);
    cfg.max_seq_len = 16; // the window reaches over all of it
    harness_open(&h, &cfg);
    assert_int_equal(h.info->cache.num_spans, 1);
    assert_int_equal(h.e->groups[1].span, 0);
    assert_int_equal(h.e->groups[1].pool.num_pages, 1280);
    harness_close(&h);
}

static void expect_text(const harness *h, const char *text)
{
    char got[96];
    msgl__groups_describe(h->e, got, sizeof got);
    assert_string_equal(got, text);
}

static void test_describe(void **state)
{
    (void)state;
    harness h;
    msgl_options cfg = harness_config(MODEL("gemma2"), "auto");
    harness_open(&h, &cfg);
    assert_string_equal(h.info->attention, "fa");
    msgl_attn_choice *c = h.e->attn_choices;
    c[0].decode = c[1].decode = &msgl__attn_fi;
    expect_text(&h, "fa,fi");
    c[1].prefill = &msgl__attn_fi;
    expect_text(&h, "full fa,fi; window fi");
    c[0].decode = &msgl__attn_fa;
    expect_text(&h, "full fa; window fi");
    harness_close(&h);
}

typedef struct lines {
    int count; // that contain `text`
    const char *text;
} lines;

static void count_line(void *ctx, const char *line)
{
    lines *l = ctx;
    l->count += strstr(line, l->text) != NULL;
}

// One page size for all groups, and one warning.
static void test_page_size(void **state)
{
    (void)state;
    harness h;
    lines l = {.text = "needs a page size"};
    const harness_target t = {.attention = "trtllm", .page_size = 8};
    msgl_options cfg = harness_config_for(MODEL("gemma3"), "auto", &t);
    cfg.log = count_line;
    cfg.ctx = &l;
    harness_open(&h, &cfg);
    assert_int_equal(l.count, 1);
    assert_int_equal(h.info->page_size, 64);
    for (int32_t g = 0; g < 2; g++) assert_int_equal(h.e->groups[g].pool.page_size, 64);
    harness_close(&h);
}

// --- layers that no model has yet ----------------------------------------------------------------

static msgl_cache_spec made_up; // beside 2 layers of K and V

static void made_up_caches(const msgl_model_config *c, int32_t ranks, msgl_dtype dtype,
                           msgl_dtype act, msgl_cache_specs *out)
{
    (void)c, (void)ranks, (void)act;
    *out = (msgl_cache_specs){.count = 2,
                              .all = {{.kind = MSGL_CACHE_KV,
                                       .num_layers = 2,
                                       .window = -1,
                                       .num_heads = 2,
                                       .k_dim = 64,
                                       .v_dim = 64,
                                       .dtype = dtype},
                                      made_up}};
}

static msgl_attn_variants no_variants(const msgl_model_config *c, int32_t group)
{
    (void)c, (void)group;
    return (msgl_attn_variants){0};
}

static const msgl_family FAMILY = {.caches = made_up_caches, .variants = no_variants};
static const msgl_arch ARCH = {.name = "made up", .family = &FAMILY};

static msgl_engine *open_made_up(void)
{
    msgl_engine *e = calloc(1, sizeof *e);
    assert_non_null(e);
    assert_int_equal(msgl__device_cpu_create(&e->device, NULL), 0);
    e->plugin = &msgl__cpu_plugin;
    e->model.cfg.arch = &ARCH;
    e->model.cfg.num_heads = 4;
    e->kv_dtype = MSGL_BF16;
    e->max_running = 3;
    e->model.target.ranks = 1;
    return e;
}

static void close_made_up(msgl_engine *e)
{
    msgl__groups_destroy(e);
    for (int32_t i = 0; i < e->num_blocks; i++) {
        e->device->ops->free(e->device, e->blocks[i].p, e->blocks[i].bytes);
    }
    e->device->ops->destroy(e->device);
    free(e);
}

static void test_latent(void **state)
{
    (void)state;
    msgl_options o = harness_config(MODEL("qwen3"), "auto");
    msgl_engine *e = open_made_up();
    msgl_err err = {0};
    made_up = (msgl_cache_spec){.kind = MSGL_CACHE_LATENT,
                                .num_layers = 3,
                                .window = -1,
                                .num_heads = 1,
                                .k_dim = 576,
                                .v_dim = 512,
                                .dtype = MSGL_BF16};
    o.attention = "trtllm"; // has none for the second group
    assert_int_equal(msgl__groups_choose(e, &o, 128, &err), MSGL_EUNSUPPORTED);
    assert_string_equal(err.text,
                        "attention backend trtllm: no kernel for layers that keep a latent "
                        "vector a token; allowed: K and V of every token");
    o.attention = "flashmla"; // has none for the first
    assert_int_equal(msgl__groups_choose(e, &o, 128, &err), MSGL_EUNSUPPORTED);
    o.attention = "auto";
    assert_int_equal(msgl__groups_choose(e, &o, 128, &err), 0);
    assert_int_equal(e->info.cache.num_spans, 1); // which both share
    assert_string_equal(e->attn_choices[1].decode->name, "fa");
    close_made_up(e);
}

// States are nobody's to attend over: they have memory, and no page table.
static void test_states(void **state)
{
    (void)state;
    const msgl_options o = harness_config(MODEL("qwen3"), "auto");
    msgl_engine *e = open_made_up();
    msgl_err err = {0};
    made_up = (msgl_cache_spec){
        .kind = MSGL_CACHE_STATE, .num_layers = 3, .window = -1, .state_bytes = 4096};
    assert_int_equal(msgl__groups_choose(e, &o, 128, &err), 0);
    assert_int_equal(e->info.cache.num_spans, 2);
    assert_int_equal(e->info.cache.spans[1].kind, MSGL_SPAN_STATE);
    assert_int_equal(e->num_tables, 1);
    assert_int_equal(e->groups[1].span, 1);
    assert_null(e->attn_choices[1].prefill);
    char text[96];
    msgl__groups_describe(e, text, sizeof text);
    assert_string_equal(text, "fa");

    msgl_memory_plan p = {.available = 64 << 20,
                          .specs = e->specs,
                          .span_of = {0, 1},
                          .cache = e->info.cache,
                          .max_running = e->max_running,
                          .max_step_tokens = 64,
                          .max_prefill_tokens = 61,
                          .max_seq_len = 2000,
                          .memory_ratio = 0.5};
    assert_int_equal(msgl__memory_plan(&p, &err), 0);
    for (int32_t g = 0; g < 2; g++) e->groups[g].pool = msgl__memory_plan_pool(&p, g);
    e->info.cache = p.cache;
    e->info.max_seq_len = p.max_seq_len;
    e->token_stride = 2016;
    assert_int_equal(msgl__groups_create_memory(e, &err), 0);
    assert_null(e->page_tables[1].pages);
    const msgl_kv_pool *pool = &e->groups[1].pool;
    const int32_t last = p.cache.spans[1].num_units - 1;
    assert_int_equal(last, 3 * 4 - 1); // every 512 tokens of three requests
    // The last byte of the last checkpoint is the pool's, and everything begins as zeros.
    const char *end = (char *)msgl__state_checkpoint(pool, last, 2) + 4096;
    assert_ptr_equal(end, (char *)pool->base + pool->bytes);
    for (const char *c = pool->base; c < end; c++) assert_int_equal(*c, 0);
    close_made_up(e);
}

// --- a GPU's page tables -------------------------------------------------------------------------

// The pages of tokens [from, to) are there, and no others.
static void expect_table(const harness *h, const int32_t *table, int32_t span, int32_t row,
                         int32_t from, int32_t to)
{
    const int32_t *pages = msgl__page_table_row(&h->e->page_tables[span], row);
    const int32_t size = h->info->page_size;
    for (int32_t i = 0; i * size < TOKENS; i++) {
        const int32_t got = table[row * (h->e->token_stride / size) + i];
        assert_int_equal(got, i >= from / size && i <= (to - 1) / size ? pages[i] : -7);
    }
}

// Each span's pages reach its own table: with written tokens, and with those of a step, of which
// the slots are made too. Here the CPU's device keeps the tables.
static void check_device_tables(int32_t page_size)
{
    harness h;
    const harness_target target = {.attention = "auto", .page_size = page_size};
    msgl_options cfg = harness_config_for(MODEL("gemma2"), "auto", &target);
    harness_open(&h, &cfg);
    assert_int_equal(h.info->page_size, page_size);
    assert_int_equal(h.e->token_stride % page_size, 0);
    const size_t places = ((size_t)h.e->max_running + 1) * (size_t)(h.e->token_stride / page_size);
    int32_t *tables[2], ids[TOKENS] = {0};
    for (int k = 0; k < 2; k++) {
        tables[k] = h.e->dev.page_tables[k] = calloc(places, sizeof *tables[k]);
        assert_non_null(tables[k]);
        for (size_t i = 0; i < places; i++) tables[k][i] = -7;
    }
    for (int32_t row = 0; row < 3; row++) harness_pages(&h, row, TOKENS);
    assert_memory_not_equal(msgl__page_table_row(&h.e->page_tables[0], 1),
                            msgl__page_table_row(&h.e->page_tables[1], 1), 4 * sizeof(int32_t));
    assert_int_equal(h.r->write_tokens(h.r->ctx, 1, 3, ids, 17), 0);
    const int32_t last = (int32_t)((h.e->next_write - 1) % MSGL_ENGINE_WRITES);
    assert_int_equal(h.e->device->ops->wait(h.e->device, MSGL_ENGINE_STEP_SLOTS + last), 0);
    for (int32_t k = 0; k < 2; k++) expect_table(&h, tables[k], k, 1, 3, 20);
    msgl_batch_req reqs[] = {harness_req(0, 16, 17), harness_req(1, 20, 41), harness_req(2, 0, 7)};
    harness_mixed(&h, 1, reqs, 3); // an answer, and chunks that begin and end within pages
    for (int32_t k = 0; k < 2; k++) {
        expect_table(&h, tables[k], k, 0, 16, 17);
        expect_table(&h, tables[k], k, 1, 3, 41);
        expect_table(&h, tables[k], k, 2, 0, 7);
        int32_t t = 0;
        for (int32_t i = 0; i < 3; i++) {
            for (int32_t p = reqs[i].cached_len; p < reqs[i].device_len; p++) {
                assert_int_equal(h.e->dev.slots[k][t++],
                                 msgl__page_table_slot(&h.e->page_tables[k], i, p));
            }
        }
    }
    for (int k = 0; k < 2; k++) {
        h.e->dev.page_tables[k] = NULL;
        free(tables[k]);
    }
    harness_close(&h);
}

static void test_device_tables(void **state)
{
    (void)state;
    const int32_t sizes[] = {1, 3, 16, 48};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) check_device_tables(sizes[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reuse),     cmocka_unit_test(test_reuse_of_compressed),
        cmocka_unit_test(test_layout),    cmocka_unit_test(test_describe),
        cmocka_unit_test(test_page_size), cmocka_unit_test(test_latent),
        cmocka_unit_test(test_states),    cmocka_unit_test(test_device_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
