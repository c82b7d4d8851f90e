// SPDX-License-Identifier: Apache-2.0
//
// The division of memory, to the byte: what it adds up to, that one page more would not fit, and
// what it says when something does not.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/req_extra.h"
#include "engine/plan.h"

static const size_t MIB = 1 << 20;

// 4 heads of 64 in bfloat16: 1 KiB of K and V a token and layer.
static msgl_cache_spec kv_group(int32_t num_layers, int32_t window)
{
    return (msgl_cache_spec){.kind = MSGL_CACHE_KV,
                             .num_layers = num_layers,
                             .window = window,
                             .num_heads = 4,
                             .k_dim = 64,
                             .v_dim = 64,
                             .dtype = MSGL_BF16};
}

// Of one group that keeps all tokens.
static msgl_memory_plan wanted(void)
{
    return (msgl_memory_plan){.available = 1000 * MIB,
                              .weight_bytes = 300 * MIB,
                              .step_bytes = 50 * MIB,
                              .staging_bytes = 7 * MIB,
                              .specs = {.count = 1, .all = {kv_group(6, -1)}},
                              .cache = {.page_size = 16, .num_spans = 1},
                              .weight_format = "bfloat16",
                              .max_running = 99,
                              .max_step_tokens = 512,
                              .max_prefill_tokens = 413,
                              .max_seq_len = 1000000,
                              .memory_ratio = 0.5};
}

static int plan(msgl_memory_plan *p, msgl_err *err)
{
    const int32_t pages = p->cache.spans[0].num_units;
    msgl__cache_layout_of(&p->specs, p->max_seq_len, p->cache.page_size, &p->cache, p->span_of);
    p->cache.spans[0].num_units = pages;
    return msgl__memory_plan(p, err);
}

static int32_t pages_of(const msgl_memory_plan *p, int32_t span)
{
    return p->cache.spans[span].num_units;
}

static size_t pool_of(const msgl_memory_plan *p, int32_t pages)
{
    msgl_kv_pool kv = msgl__memory_plan_pool(p, 0);
    kv.num_pages = pages;
    return msgl__kv_pool_bytes(&kv);
}

static void test_adds_up(void **state)
{
    (void)state;
    const int32_t given[] = {0, 1, 700};
    for (int i = 0; i < 3; i++) {
        msgl_memory_plan p = wanted();
        p.cache.spans[0].num_units = given[i];
        p.max_seq_len = 2000;
        msgl_err err;
        if (plan(&p, &err) != 0) fail_msg("%s", err.text);
        assert_int_equal(p.kv_bytes, pool_of(&p, pages_of(&p, 0))); // with the dummy page
        // Token pool and the logits before penalties: a row for each request and the dummy one, of
        // max_seq_len (as wanted) and one more, in steps of 32; the page table has their pages. For
        // each bias a token id, its value and the logit that it changes.
        const size_t row =
            (2 * 2016 + 2016 / 16) * sizeof(int32_t) + (size_t)MSGL_MAX_LOGIT_BIAS * 12;
        assert_int_equal(p.table_bytes, (99 + 1) * row);
        assert_int_equal(p.weight_bytes + p.step_bytes + p.staging_bytes + p.table_bytes +
                             p.kv_bytes + p.left,
                         p.available);
        if (given[i] > 0) assert_int_equal(pages_of(&p, 0), given[i]);
        const int32_t tokens = pages_of(&p, 0) * p.cache.page_size;
        assert_int_equal(p.max_seq_len, tokens < 2000 ? tokens : 2000);
    }
}

// A page is 96 KiB. Eight times 10 MiB are 853.3 of them, of which one is nobody's.
static void test_proportion(void **state)
{
    (void)state;
    msgl_err err;
    msgl_memory_plan p = wanted();
    p.weight_bytes = 10 * MIB;
    p.weights_ratio = 8;
    p.max_seq_len = 2000;
    assert_int_equal(plan(&p, &err), 0);
    assert_int_equal(pages_of(&p, 0), 852);
    // Four contexts of 1,000 pages need more, and get it; so does the only one of one request.
    p = wanted();
    p.weight_bytes = 10 * MIB;
    p.weights_ratio = 8;
    p.max_seq_len = 16000;
    assert_int_equal(plan(&p, &err), 0);
    assert_int_equal(pages_of(&p, 0), 4000);
    p.max_running = 1;
    p.cache.spans[0].num_units = 0;
    assert_int_equal(plan(&p, &err), 0);
    assert_int_equal(pages_of(&p, 0), 1000);
    // Never more than memory_ratio gives.
    p = wanted();
    p.max_seq_len = 2000;
    p.weights_ratio = 8;
    assert_int_equal(plan(&p, &err), 0);
    const int32_t by_ratio = pages_of(&p, 0);
    p = wanted();
    p.max_seq_len = 2000;
    assert_int_equal(plan(&p, &err), 0);
    assert_int_equal(pages_of(&p, 0), by_ratio);
}

// The pool is what the ratio allows: not a page more, dummy page included, and not a page less.
static void test_ratio(void **state)
{
    (void)state;
    for (int percent = 10; percent <= 100; percent += 15) {
        msgl_memory_plan p = wanted();
        p.memory_ratio = percent / 100.0;
        p.max_running = 1;
        assert_int_equal(plan(&p, NULL), 0);
        const size_t fixed = p.weight_bytes + p.step_bytes + p.staging_bytes + p.table_bytes;
        const double budget = p.memory_ratio * (double)(p.available - fixed);
        assert_true((double)p.kv_bytes <= budget);
        assert_true((double)pool_of(&p, pages_of(&p, 0) + 1) > budget);
    }
    msgl_memory_plan p = wanted(); // but no more than all requests can fill
    p.max_running = 3;
    p.max_seq_len = 33;
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(pages_of(&p, 0), 3 * 3); // of 16 tokens
}

static void expect_refused(msgl_memory_plan p, int code, const char *words)
{
    msgl_err err;
    assert_int_equal(plan(&p, &err), code);
    if (strstr(err.text, words) == NULL) fail_msg("no \"%s\" in \"%s\"", words, err.text);
}

// Shares of all memory, as vLLM and SGLang count: with the workspace, and without it; and never
// more than is free.
static void test_mem_fractions(void **state)
{
    (void)state;
    static const struct {
        double mem_fraction;
        bool with_workspace;
        int64_t budget; // MiB for the pools, but for the tables; 900: of what is free
    } cases[] = {{0.5, true, 643}, {0.5, false, 700}, {0.25, true, 143}, {1, true, 900}};
    for (int i = 0; i < 4; i++) {
        msgl_memory_plan p = wanted();
        p.whole = 2000 * MIB;
        p.mem_fraction = cases[i].mem_fraction;
        p.with_workspace = cases[i].with_workspace;
        p.memory_ratio = 0.9; // does not count
        p.available = 1257 * MIB;
        p.max_running = 1;
        assert_int_equal(plan(&p, NULL), 0);
        size_t budget = (size_t)cases[i].budget * MIB;
        if (cases[i].with_workspace || cases[i].budget == 900) budget -= p.table_bytes;
        const size_t page = pool_of(&p, 2) - pool_of(&p, 1);
        assert_true(p.kv_bytes <= budget && p.kv_bytes + page > budget);
    }
    msgl_memory_plan p = wanted();
    p.whole = 2000 * MIB;
    p.mem_fraction = 0.15;
    p.max_seq_len = 100;
    expect_refused(p, MSGL_ENOMEM, "a larger --mem-fraction-static may help");
    p.with_workspace = true;
    expect_refused(p, MSGL_ENOMEM, "a larger --gpu-memory-utilization may help");
    assert_true(msgl__memory_whole() >= msgl__memory_available());
}

static void test_refusals(void **state)
{
    (void)state;
    msgl_memory_plan p = wanted();
    p.weight_bytes = 1000 * MIB;
    expect_refused(p, MSGL_ENOMEM, "the model is too large for this machine");
    p = wanted();
    p.step_bytes = 900 * MIB;
    expect_refused(p, MSGL_ENOMEM, "a smaller --max-prefill-length or --max-running-requests");
    p = wanted();
    p.max_seq_len = 100;
    p.memory_ratio = 1e-6;
    expect_refused(p, MSGL_ENOMEM, "a larger --memory-ratio may help");
    p = wanted();
    p.max_seq_len = 100;
    p.cache.spans[0].num_units = 1 << 20;
    expect_refused(p, MSGL_ENOMEM, "a smaller --num-pages helps");
    p = wanted();
    p.max_seq_len = 100;
    p.cache.spans[0].num_units = p.cache.page_size = 1; // nothing could ever be answered
    expect_refused(p, MSGL_EINVAL, "--num-pages 1 holds 1 token (--page-size 1)");
    p = wanted();
    p.max_seq_len = 100;
    p.cache.spans[0].num_units = 1; // of 16 tokens
    assert_int_equal(plan(&p, NULL), 0);
}

// 4 layers of all tokens, 20 of the last 1,024: 4 and 20 KiB a token, 64 and 320 a page.
static msgl_memory_plan wanted_windows(void)
{
    msgl_memory_plan p = wanted();
    p.specs = (msgl_cache_specs){.count = 2, .all = {kv_group(4, -1), kv_group(20, 1023)}};
    p.max_seq_len = 100000;
    return p;
}

static size_t all_pools(const msgl_memory_plan *p)
{
    size_t sum = 0;
    for (int32_t g = 0; g < p->specs.count; g++) sum += msgl__memory_plan_pool(p, g).bytes;
    return sum;
}

static size_t budget_of(const msgl_memory_plan *p)
{
    const size_t fixed = p->weight_bytes + p->step_bytes + p->staging_bytes + p->table_bytes;
    return (size_t)(p->memory_ratio * (double)(p->available - fixed));
}

// Two spans share the budget as requests of usual length do: of 4,096 tokens, which are 256 pages
// of all tokens and 66 of the last 1,024.
static void test_windows(void **state)
{
    (void)state;
    msgl_memory_plan p = wanted_windows();
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(p.cache.num_spans, 2);
    assert_int_equal(p.cache.spans[1].window, 1023);
    const int32_t n = pages_of(&p, 0);
    assert_int_equal(pages_of(&p, 1), (n * 66 + 255) / 256);
    assert_int_equal(p.kv_bytes, all_pools(&p));
    assert_true(p.kv_bytes <= budget_of(&p));
    const size_t next = (n + 2) * (size_t)65536 + (((n + 1) * 66 + 255) / 256 + 1) * (size_t)327680;
    assert_true(next > budget_of(&p)); // a page more of span 0, with what goes with it
    assert_int_equal(p.weight_bytes + p.step_bytes + p.staging_bytes + p.table_bytes + p.kv_bytes +
                         p.left,
                     p.available);
    assert_int_equal(p.table_bytes,
                     (99 + 1) * ((size_t)(2 * 100032 + 2 * 100032 / 16) * sizeof(int32_t) +
                                 (size_t)MSGL_MAX_LOGIT_BIAS * 12)); // two tables
    assert_int_equal(p.max_seq_len, n * 16);
    p = wanted_windows();
    p.cache.spans[0].num_units = 1000; // as given, the others by the same rule
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(pages_of(&p, 0), 1000);
    assert_int_equal(pages_of(&p, 1), (1000 * 66 + 255) / 256);
    // A long window makes usual requests longer: 4 * 3,000 tokens, 750 pages, of which 190.
    p = wanted_windows();
    p.specs.all[1].window = 3000;
    p.cache.spans[0].num_units = 750;
    assert_int_equal(plan(&p, NULL), 0);
    // But one request alone has its 413 new tokens, and there is a quarter of them more.
    assert_int_equal(pages_of(&p, 1), 188 + 27 + 26 / 4);
    p.max_prefill_tokens = 1;
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(pages_of(&p, 1), 190);
}

// One request alone always fits, the pages of its window and of a chunk, with a quarter of a chunk
// for others.
static void test_window_floor(void **state)
{
    (void)state;
    msgl_memory_plan p = wanted_windows();
    p.cache.spans[0].num_units = 200;
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(pages_of(&p, 1), 64 + 26 + 1 + 26 / 4); // 1,023 and 413 tokens, begun ones
    p.cache.spans[0].num_units = 70;                         // a request is no longer than span 0
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(pages_of(&p, 1), 70);
    p = wanted_windows(); // and by a budget, which decides how long requests can be
    p.memory_ratio = 0.06;
    p.max_running = 1;
    assert_int_equal(plan(&p, NULL), 0);
    assert_in_range(pages_of(&p, 0), 92, 256);
    assert_int_equal(pages_of(&p, 1), 91 + 26 / 4);
    assert_true(p.kv_bytes <= budget_of(&p) && p.kv_bytes + 65536 > budget_of(&p));
}

// A prompt of whole chunks begins beside those that answer, however small their windows are: with 9
// pages each they have room behind the 8,200 of such a chunk, which are more than their share.
static void test_chunk_beside_answers(void **state)
{
    (void)state;
    enum { WINDOW = 8, CHUNK = 8192, ANSWERS = 200 };
    msgl_memory_plan p = wanted_windows();
    p.available = 1000 * 1000 * MIB;
    p.specs.all[1].window = WINDOW;
    p.cache.page_size = 1;
    p.cache.spans[0].num_units = 1 << 18;
    p.max_prefill_tokens = CHUNK;
    p.max_step_tokens = CHUNK + 256;
    p.max_running = 256;
    assert_int_equal(plan(&p, NULL), 0);
    assert_true(pages_of(&p, 1) >= CHUNK + WINDOW + ANSWERS * (WINDOW + 1));
}

// What windows cannot use goes to span 0.
static void test_window_ceiling(void **state)
{
    (void)state;
    msgl_memory_plan p = wanted_windows();
    p.max_running = 3;
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(pages_of(&p, 1), 3 * (64 + 2) + 512 / 16);
    assert_true(pages_of(&p, 0) > 3 * 256);
    assert_true(p.kv_bytes <= budget_of(&p) && p.kv_bytes + 65536 > budget_of(&p));
    p.max_seq_len = 1040; // 65 pages, and the window counts
    p.cache.spans[0].num_units = 0;
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(pages_of(&p, 0), 3 * 65);
    assert_int_equal(pages_of(&p, 1), 3 * 65);
    p.max_seq_len = 1024; // it reaches over everything: two groups of all tokens
    p.cache.spans[0].num_units = 0;
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(p.cache.num_spans, 1);
    assert_int_equal(pages_of(&p, 0), 3 * 64);
    assert_int_equal(p.kv_bytes, all_pools(&p));
}

// Where no layer keeps all tokens, pages of span 0 take no memory but the prefix tree's.
static void test_windows_only(void **state)
{
    (void)state;
    msgl_memory_plan p = wanted_windows();
    p.specs = (msgl_cache_specs){.count = 1, .all = {kv_group(20, 1023)}};
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(p.kv_bytes, (pages_of(&p, 1) + 1) * (size_t)327680);
    assert_true(p.kv_bytes <= budget_of(&p) && p.kv_bytes + 327680 > budget_of(&p));
    assert_int_equal(pages_of(&p, 0), budget_of(&p) / 16 / (40 + 4 * 16));
    assert_int_equal(p.max_seq_len, 100000);
    p = wanted_windows();
    p.specs = (msgl_cache_specs){.count = 1, .all = {kv_group(20, 1023)}};
    p.max_running = 2;
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(pages_of(&p, 0), 2 * 6250); // 100,000 tokens each
    assert_int_equal(pages_of(&p, 1), 2 * 66 + 32);
    p = wanted_windows(); // when not even one window fits, requests are shorter
    p.specs = (msgl_cache_specs){.count = 1, .all = {kv_group(20, 1023)}};
    p.memory_ratio = 0.02;
    p.max_running = 1;
    assert_int_equal(plan(&p, NULL), 0);
    assert_in_range(pages_of(&p, 1), 30, 50);
    assert_int_equal(pages_of(&p, 0), pages_of(&p, 1));
    assert_int_equal(p.max_seq_len, 16 * pages_of(&p, 0));
    p = wanted_windows();
    p.specs = (msgl_cache_specs){.count = 1, .all = {kv_group(20, 1023)}};
    p.cache.spans[0].num_units = 512;
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(pages_of(&p, 0), 512);
    assert_int_equal(pages_of(&p, 1), 132);
}

// 8 layers of one vector of 576 a token, and 24 with a state of 256 KiB, 6 MiB together.
static msgl_memory_plan wanted_states(void)
{
    msgl_memory_plan p = wanted();
    p.specs = (msgl_cache_specs){
        .count = 2,
        .all = {
            {.kind = MSGL_CACHE_LATENT,
             .num_layers = 8,
             .window = -1,
             .num_heads = 1,
             .k_dim = 576,
             .dtype = MSGL_BF16},
            {.kind = MSGL_CACHE_STATE, .num_layers = 24, .window = -1, .state_bytes = MIB / 4}}};
    p.max_running = 9;
    p.max_seq_len = 10000;
    return p;
}

static void test_states(void **state)
{
    (void)state;
    msgl_memory_plan p = wanted_states();
    const size_t one = 6 * MIB, live = (9 + 1) * one;
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(p.cache.num_spans, 2);
    assert_int_equal(p.cache.spans[1].kind, MSGL_SPAN_STATE);
    assert_int_equal(p.kv_bytes, all_pools(&p));
    assert_int_equal(msgl__memory_plan_pool(&p, 1).bytes, live + pages_of(&p, 1) * one);
    // Live states come first; an eighth of the rest is for checkpoints, and latent pages have what
    // is left.
    const size_t fixed = p.weight_bytes + p.step_bytes + p.staging_bytes + p.table_bytes + live;
    const size_t budget = (p.available - fixed) / 2, page = (size_t)8 * 16 * 576 * 2;
    assert_int_equal(pages_of(&p, 1), budget / 8 / one);
    assert_int_equal(pages_of(&p, 0), (budget - pages_of(&p, 1) * one) / page - 1);
    assert_int_equal(fixed - live + p.kv_bytes + p.left, p.available);
    assert_int_equal(p.table_bytes, (9 + 1) * ((size_t)(2 * 10016 + 10016 / 16) * sizeof(int32_t) +
                                               (size_t)MSGL_MAX_LOGIT_BIAS * 12));
    p = wanted_states(); // but no more than all requests can have
    p.max_running = 1;
    p.max_seq_len = 1025;
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(pages_of(&p, 1), 3);
    p = wanted_states(); // none at all is fine too
    p.memory_ratio = 0.05;
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(pages_of(&p, 1), 0);
    p = wanted_states();
    p.max_running = 200; // live states alone are more than there is
    expect_refused(p, MSGL_ENOMEM, "a smaller --max-prefill-length or --max-running-requests");
    p = wanted_states(); // and of nothing but states
    p.specs.all[0] = p.specs.all[1];
    p.specs.count = 1;
    assert_int_equal(plan(&p, NULL), 0);
    assert_int_equal(pages_of(&p, 0), 9 * 625);
    p = wanted_states();
    p.specs.all[1].state_bytes = SIZE_MAX / 8;
    expect_refused(p, MSGL_ELIMIT, "the model's sizes overflow");
}

// Of several ranks the first one decides; the others have its units, whatever theirs would be, or
// say what they lack.
static void test_units_given(void **state)
{
    (void)state;
    const msgl_memory_plan none[] = {wanted_states(), wanted_windows()};
    for (size_t i = 0; i < MSGL_COUNT(none); i++) {
        msgl_memory_plan first = none[i];
        assert_int_equal(plan(&first, NULL), 0);
        if (i == 0) first.cache.spans[1].draft_states = 7;
        msgl_memory_plan other = first;
        other.weight_bytes /= 2;
        other.weights_ratio = 1;
        other.units_given = true;
        msgl_err err;
        if (msgl__memory_plan(&other, &err) != 0) fail_msg("%s", err.text);
        assert_memory_equal(&other.cache, &first.cache, sizeof first.cache);
        assert_int_equal(other.kv_bytes, all_pools(&other));
        other.available = other.weight_bytes + other.kv_bytes;
        assert_int_equal(msgl__memory_plan(&other, &err), MSGL_ENOMEM);
        assert_non_null(strstr(err.text, "a smaller --num-pages helps"));
    }
}

// A sixteenth is for states behind drafts, as far as they are wanted, but four at least.
static void test_draft_states(void **state)
{
    (void)state;
    const size_t one = 6 * MIB;
    const msgl_memory_plan none = wanted_states();
    for (int32_t want = 1; want <= 100; want += 33) {
        msgl_memory_plan p = none;
        p.available *= 10;
        assert_int_equal(plan(&p, NULL), 0);
        const size_t live = (9 + 1) * one, checkpoints = (size_t)pages_of(&p, 1);
        const size_t fixed = p.weight_bytes + p.step_bytes + p.staging_bytes + p.table_bytes + live;
        const int32_t room = (int32_t)((p.available - fixed) / 2 / 16 / one);
        p.cache.spans[1].draft_states = want;
        p.cache.spans[0].num_units = 0;
        assert_int_equal(msgl__memory_plan(&p, NULL), 0);
        const int32_t got = p.cache.spans[1].draft_states;
        assert_in_range(room, 35, 67); // of 1, 34, 67 and 100 wanted there are two cut
        assert_int_equal(got, want < room ? want : room);
        assert_int_equal(pages_of(&p, 1), checkpoints);
        assert_int_equal(msgl__memory_plan_pool(&p, 1).bytes,
                         live + (checkpoints + (size_t)got) * one);
        assert_int_equal(p.kv_bytes, all_pools(&p));
    }
    msgl_memory_plan p = none;
    assert_int_equal(plan(&p, NULL), 0);
    p.memory_ratio = 0.05;
    p.cache.spans[1].draft_states = 60;
    p.cache.spans[0].num_units = 0;
    assert_int_equal(msgl__memory_plan(&p, NULL), 0);
    assert_int_equal(p.cache.spans[1].draft_states, 4);
    msgl_err err;
    p.memory_ratio = 0.01; // less than these
    p.cache.spans[1].draft_states = 60;
    p.cache.spans[0].num_units = 0;
    assert_int_equal(msgl__memory_plan(&p, &err), MSGL_ENOMEM);
}

static void keep_line(void *ctx, const char *line)
{
    char *text = ctx;
    const size_t n = strlen(text);
    snprintf(text + n, 1000 - n, "%s\n", line);
}

static void expect_lines(msgl_memory_plan p, const char *lines)
{
    char text[1000] = "";
    assert_int_equal(plan(&p, NULL), 0);
    msgl__memory_plan_print(&p, keep_line, text);
    if (strstr(text, lines) == NULL) fail_msg("no\n%sin\n%s", lines, text);
}

static void test_lines(void **state)
{
    (void)state;
    msgl_memory_plan p = wanted();
    p.max_seq_len = 1000;
    p.cache.spans[0].num_units = 100;
    expect_lines(p, "bfloat16\n"
                    "  KV pages          9.5  100 pages of 16 tokens, bfloat16, 6.0 KiB per token\n"
                    "  workspace ");
    p.lazy = true;
    expect_lines(p, "6.0 KiB per token; memory is taken as they fill\n  workspace ");
    p = wanted_windows();
    p.cache.spans[0].num_units = 1000;
    expect_lines(p, "  KV pages         62.6  4 layers, all tokens: 1000 pages of 16 tokens, "
                    "bfloat16, 4.0 KiB per token\n"
                    "  KV pages         80.9  20 layers, last 1024 tokens: 258 pages of 16 tokens, "
                    "bfloat16, 20.0 KiB per token\n"
                    "  workspace ");
    p = wanted_states();
    p.memory_ratio = 1;
    expect_lines(p, "  states          132.0  24 layers: 9 live, 12 checkpoints of 6.0 MiB\n"
                    "  workspace ");
}

// A limit on address space (ulimit -v) is a limit on memory.
static void test_address_space(void **state)
{
    (void)state;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // they reserve terabytes
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct rlimit lim = {400 * MIB, 400 * MIB};
        if (setrlimit(RLIMIT_AS, &lim) != 0) _exit(1);
        const size_t room = msgl__memory_available();
        _exit(room > 0 && room < 400 * MIB ? 0 : 2);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
#endif
}

static void put_file(const char *dir, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
    if (text == NULL) return;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

// A control group of made-up files: of what is used, cached pages of files give way.
static void test_cgroup(void **state)
{
    (void)state;
    static const char STAT[] = "anon 400\nfile 300\nactive_file 100\ninactive_file 200\n";
    static const struct {
        const char *max, *current, *stat;
        size_t room;
    } cases[] = {
        {"1000\n", "600\n", STAT, 600}, // 1000 - (600 - 200)
        {"1000\n", "600\n", "anon 400\n", 400},
        {"1000\n", "600\n", NULL, 400},
        {"1000\n", NULL, STAT, 1000},
        {"1000\n", "150\n", STAT, 850}, // more cached than used: numbers of two moments
        {"1000\n", "200\n", STAT, 1000},
        {"1000\n", "1200\n", STAT, 0},
        {"1000\n", "1199\n", STAT, 1},
        {"1000\n", "1300\n", STAT, 0},
        {"max\n", "600\n", STAT, SIZE_MAX},
        {NULL, "600\n", STAT, SIZE_MAX},
    };
    char dir[] = "/tmp/minisgl-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        put_file(dir, "memory.max", cases[i].max);
        put_file(dir, "memory.current", cases[i].current);
        put_file(dir, "memory.stat", cases[i].stat);
        assert_int_equal(msgl__cgroup_room(dir), cases[i].room);
    }
    put_file(dir, "memory.max", NULL);
    put_file(dir, "memory.current", NULL);
    put_file(dir, "memory.stat", NULL);
    assert_int_equal(rmdir(dir), 0);
}

// In a chroot without /proc it is no more than the machine has. Needs root.
static void test_without_proc(void **state)
{
    (void)state;
    char dir[] = "/tmp/minisgl-plan-XXXXXX";
    if (geteuid() != 0) skip();
    assert_non_null(mkdtemp(dir));
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct sysinfo info;
        if (sysinfo(&info) != 0 || chroot(dir) != 0) _exit(3);
        const size_t room = msgl__memory_available();
        _exit(room > 0 && room / info.mem_unit <= info.totalram ? 0 : 2);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(rmdir(dir), 0);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 3) skip(); // root of a container that may not
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adds_up),        cmocka_unit_test(test_ratio),
        cmocka_unit_test(test_proportion),     cmocka_unit_test(test_mem_fractions),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_windows),
        cmocka_unit_test(test_window_floor),   cmocka_unit_test(test_chunk_beside_answers),
        cmocka_unit_test(test_window_ceiling), cmocka_unit_test(test_windows_only),
        cmocka_unit_test(test_states),         cmocka_unit_test(test_draft_states),
        cmocka_unit_test(test_lines),          cmocka_unit_test(test_address_space),
        cmocka_unit_test(test_without_proc),   cmocka_unit_test(test_cgroup),
        cmocka_unit_test(test_units_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
