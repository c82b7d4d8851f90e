// SPDX-License-Identifier: Apache-2.0
//
// Random requests, aborts, flushes and steps against a naive model: the tokens of each request are
// a pure function of its prompt (fake_generate), whatever page size, chunk size, pool, cache,
// overlap, clients and company it had. All invariants are checked after every operation.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "harness.h"
#include "scheduler/internal.h"
#include "utils/random.h"

enum { LIVE = 24, PAST = 64 };

// What has been computed since the last flush, as plain token lists.
typedef struct past {
    int32_t ids[2 * HARNESS_LEN], len;
} past;

typedef struct model {
    harness h;
    uint64_t random;
    bool live[LIVE]; // uid in flight
    int32_t age[LIVE];
    past past[PAST];
    int num_past, next_past;
    bool forgot; // more was computed than `past` holds
    int finished, aborted, hits;
    uint64_t clients;
    bool long_answers; // among many short ones, which make the scheduler expect short ones
} model;

static int32_t rnd(model *m, int32_t n)
{
    return (int32_t)msgl__random_below(&m->random, (uint64_t)n);
}

// Prompts are paths in a small tree: they share prefixes of all lengths.
static int32_t random_prompt(model *m, int32_t *ids)
{
    const int32_t limit = m->h.cfg.max_seq_len;
    const int32_t n = rnd(m, 20) == 0 ? limit - 1 + rnd(m, 4) : 1 + rnd(m, limit * 3 / 4);
    uint64_t trunk = (uint64_t)rnd(m, 3);
    const int32_t branch = rnd(m, n + 1);
    for (int32_t i = 0; i < n; i++) {
        if (i == branch) trunk += 10 + (uint64_t)rnd(m, 2);
        ids[i] = (int32_t)msgl__random_below(&trunk, (uint64_t)m->h.cfg.vocab_size);
    }
    if (m->num_past > 0 && rnd(m, 4) == 0) { // the next turn of a conversation
        const past *p = &m->past[rnd(m, m->num_past)];
        const int32_t len = p->len < n ? p->len : n;
        memcpy(ids, p->ids, (size_t)len * sizeof *ids);
    }
    return n;
}

static void add(model *m, uint64_t uid)
{
    int32_t ids[HARNESS_LEN + 8];
    const int32_t n = random_prompt(m, ids);
    msgl_sampling_params p = msgl__sampling_params_default();
    p.max_tokens = 1 + rnd(m, rnd(m, 8) == 0 ? m->h.cfg.max_seq_len : 12);
    if (m->long_answers) p.max_tokens = rnd(m, 3) == 0 ? m->h.cfg.max_seq_len : 1 + rnd(m, 4);
    p.ignore_eos = m->long_answers || rnd(m, 2);
    p.logprobs = rnd(m, 4) == 0 ? rnd(m, 20) : -1;
    p.prompt_logprobs = rnd(m, 12) == 0 ? rnd(m, 20) : -1;
    p.num_stop_ids = rnd(m, 3);
    for (int32_t i = 0; i < p.num_stop_ids; i++) p.stop_ids[i] = rnd(m, m->h.cfg.vocab_size);
    m->h.client = uid % m->clients;
    harness_add(&m->h, uid, ids, n, &p);
    const int32_t room = m->h.cfg.max_seq_len - n;
    const int32_t len = n + (p.max_tokens < room ? p.max_tokens : room);
    const int32_t slots = m->h.cfg.cache.spans[0].num_units * m->h.cfg.cache.page_size;
    if (room < 1 || len - 1 > slots) {
        assert_int_equal(m->h.records[uid].status, MSGL_ELIMIT);
    } else {
        assert_int_equal(m->h.records[uid].ends, 0);
        m->live[uid] = true;
        m->age[uid] = 0;
    }
}

// What it found in the cache must have been computed by somebody.
static void check_cached(model *m, const record *r)
{
    int32_t best = 0;
    for (int i = 0; i < m->num_past; i++) {
        int32_t n = 0;
        while (n < r->prompt_len && n < m->past[i].len && m->past[i].ids[n] == r->prompt[n]) n++;
        if (n > best) best = n;
    }
    for (int i = 0; i < LIVE; i++) { // or by one that still runs
        const record *o = &m->h.records[i];
        if (!m->live[i] || o == r) continue;
        int32_t n = 0;
        while (n < r->prompt_len && n < o->prompt_len && o->prompt[n] == r->prompt[n]) n++;
        if (n > best) best = n;
    }
    if (!m->forgot) assert_true(r->cached <= best);
    assert_int_equal(r->cached % m->h.cfg.cache.page_size, 0);
    m->hits += r->cached > 0;
}

static void remember(model *m, const record *r)
{
    past *p = &m->past[m->next_past];
    memcpy(p->ids, r->prompt, (size_t)r->prompt_len * sizeof *p->ids);
    memcpy(p->ids + r->prompt_len, r->tokens, (size_t)r->num_tokens * sizeof *p->ids);
    p->len = r->prompt_len + r->num_tokens;
    m->next_past = (m->next_past + 1) % PAST;
    if (m->num_past < PAST) {
        m->num_past++;
    } else {
        m->forgot = true;
    }
}

static void step(model *m)
{
    harness_step(&m->h);
    for (int i = 0; i < LIVE; i++) {
        if (!m->live[i]) continue;
        record *r = &m->h.records[i];
        if (r->ends > 0) {
            harness_expect(&m->h, (uint64_t)i);
            check_cached(m, r);
            m->finished++;
        } else {
            // Bounded waiting: everything ahead of it, one token a step, and prompts in between.
            assert_true(++m->age[i] < 60000);
        }
    }
    for (int i = 0; i < LIVE; i++) {
        if (!m->live[i] || m->h.records[i].ends == 0) continue;
        remember(m, &m->h.records[i]);
        m->live[i] = false;
    }
}

static void abort_one(model *m, int uid)
{
    msgl__scheduler_abort(m->h.s, (uint64_t)uid);
    harness_check(&m->h);
    record *r = &m->h.records[uid];
    if (!m->live[uid]) return;
    assert_int_equal(r->ends, 1);
    assert_int_equal(r->finish, MSGL_FINISH_ABORT);
    int32_t expected[HARNESS_LEN];
    msgl_finish finish;
    const int32_t n = fake_generate(r->prompt, r->prompt_len, &r->sampling, m->h.cfg.max_seq_len,
                                    m->h.cfg.vocab_size, HARNESS_EOS, expected, &finish);
    assert_true(r->num_tokens < n);
    assert_memory_equal(r->tokens, expected, (size_t)r->num_tokens * sizeof *expected);
    remember(m, r);
    m->live[uid] = false;
    m->aborted++;
}

static uint64_t g_drafts, g_accepted, g_moved; // of all runs

// How many requests were sent back to the queue.
static uint64_t run(harness_options o, uint64_t seed, int operations, bool long_answers, int *hits)
{
    model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->random = seed;
    m->long_answers = long_answers;
    m->clients = 1 + seed % 4;
    harness_init(&m->h, o);
    m->h.fake.noise = seed + 1;
    // Times for which the pace gives chunks between its least and its most.
    m->h.fake.prefill_token_ns = 1 + (uint64_t)rnd(m, o.trees ? 20 : 400); // trees are many rows
    m->h.fake.decode_ns = 1 + (uint64_t)rnd(m, 10000);
    for (int i = 0; i < operations; i++) {
        int uid = rnd(m, LIVE);
        const int dice = rnd(m, 100);
        if (dice < (o.trees ? 5 : 20) && !m->live[uid]) { // there are none beside prompts
            add(m, (uint64_t)uid);
            harness_check(&m->h);
        } else if (dice < 24) {
            for (int k = 0; k < LIVE && !m->live[uid]; k++) uid = (uid + 1) % LIVE;
            abort_one(m, uid);
        } else if (dice == 24 && rnd(m, 10) == 0) {
            msgl__scheduler_flush(m->h.s);
            harness_check(&m->h);
        } else {
            step(m);
        }
    }
    while (msgl__scheduler_has_work(m->h.s)) step(m);
    const msgl_msg_stats st = harness_stats(&m->h);
    g_drafts += st.drafted_tokens;
    g_accepted += st.accepted_tokens;
    g_moved += m->h.fake.moved;
    assert_int_equal(st.drafted_tokens, m->h.fake.drafts);
    assert_int_equal(st.used_pages, 0);
    assert_int_equal(st.requests_done, m->finished);
    assert_int_equal(st.requests_aborted, m->aborted);
    assert_true(m->finished > operations / 200 && m->aborted > 0);
    msgl__scheduler_flush(m->h.s);
    assert_int_equal(harness_stats(&m->h).free_pages, o.num_pages);
    for (int32_t s = 0; s < m->h.cfg.cache.num_spans; s++) { // and nothing is lost
        const msgl_cache_counts n = msgl__cache_count(m->h.s->cache, s);
        assert_int_equal(n.free, n.total);
    }
    if (hits != NULL) *hits += m->hits;
    harness_free(&m->h);
    free(m);
    return st.requests_retracted;
}

static void run_page_size(int32_t page_size, bool threaded, int operations)
{
    static const int32_t chunks[] = {1, 7, 64, 4096};
    for (int k = 0; k < 16; k++) {
        harness_options o = {.max_running = 1 + (k * 5) % 9,
                             .max_seq_len = 40 + (k % 4) * 20 + 3 * page_size,
                             .max_prefill_tokens = chunks[(k / 2 + k) % 4],
                             .page_size = page_size,
                             .vocab_size = 13,
                             .cache_type = k % 8 < 6 ? MSGL_CACHE_RADIX : MSGL_CACHE_NAIVE,
                             .overlap = k % 2,
                             .threaded = threaded};
        // From a pool that holds one long request to one that holds them all.
        const int32_t slots = o.max_seq_len * (1 + k % 3 * 2) + page_size;
        o.num_pages = k == 7 ? 1 + 30 / page_size : slots / page_size;
        (void)run(o, (uint64_t)(page_size * 100 + k), operations, false, NULL);
    }
}

static void test_page_1(void **state)
{
    (void)state;
    run_page_size(1, false, 8000);
}

static void test_page_4(void **state)
{
    (void)state;
    run_page_size(4, false, 8000);
}

static void test_page_16(void **state)
{
    (void)state;
    run_page_size(16, false, 4000);
}

static void test_page_64(void **state)
{
    (void)state;
    run_page_size(64, false, 2000);
}

// Answers far longer than expected in a pool that holds a few of them: the youngest leave and come
// back, and nobody's tokens, log-probabilities or prompt log-probabilities change.
static void test_sent_back(void **state)
{
    (void)state;
    static const int32_t sizes[] = {1, 4, 16};
    uint64_t total = 0;
    for (int k = 0; k < 18; k++) {
        const int32_t page_size = sizes[k % 3];
        const harness_options o = {.max_running = 4 + k % 6,
                                   .max_seq_len = 150,
                                   .max_prefill_tokens = k % 4 == 0 ? 7 : 64,
                                   .num_pages = (150 + 40 * (k % 5)) / page_size + 1,
                                   .page_size = page_size,
                                   .vocab_size = 13,
                                   .cache_type = k % 6 < 5 ? MSGL_CACHE_RADIX : MSGL_CACHE_NAIVE,
                                   .overlap = k % 2,
                                   .threaded = k == 17};
        total += run(o, 7000 + (uint64_t)k, k == 17 ? 1000 : 20000, true, NULL);
    }
    assert_true(total > 100);
}

// Windows and states, alone and together, in pools from those that only just hold one request alone
// to roomy ones. A page or checkpoint given back too early is another's by then, which the fake
// engine sees; one given back too late ends the run in check or above.
static void test_spans(void **state)
{
    (void)state;
    static const int32_t sizes[] = {1, 4, 16};
    int hits = 0;
    uint64_t retracted = 0;
    for (int k = 0; k < 48; k++) {
        const int32_t page_size = sizes[k % 3], len = 150;
        harness_options o = {.max_running = 1 + (k * 5) % 9,
                             .max_seq_len = len,
                             .max_prefill_tokens = k % 4 == 0   ? 7
                                                   : k % 4 == 1 ? 4096
                                                                : 40,
                             .num_pages = (len + 40 * (k % 7)) / page_size + 1,
                             .page_size = page_size,
                             .vocab_size = 13,
                             .cache_type = k % 12 < 11 ? MSGL_CACHE_RADIX : MSGL_CACHE_NAIVE,
                             .overlap = k % 2,
                             .threaded = k == 17};
        const int kinds = 1 + k % 7; // bits: a window, another, states
        const int32_t pages = (len + page_size - 1) / page_size;
        if (kinds & 1) o.window = k % 5 == 0 ? 3 : 11;
        // Answers that outgrow what was expected of them in a window that is wide, too.
        if (kinds & 2) o.second_window = k % 8 < 5 ? 37 : 110;
        if (kinds & 4) o.state_interval = 16;
        if (kinds & 4 && k % 3 > 0) o.cut = k % 3 == 1 ? 8 : 16;
        for (int i = 0; i < 2; i++) {
            int32_t *const to = i == 0 ? &o.window_pages : &o.second_pages;
            const int32_t window = i == 0 ? o.window : o.second_window;
            const int32_t least = msgl__window_pages_most(window, o.max_prefill_tokens, page_size);
            *to = (least < pages ? least : pages) + (k % 3) * 20 / page_size;
        }
        o.num_checkpoints = k % 4 == 0 ? k / 12 : 30;
        retracted += run(o, 9000 + (uint64_t)k, k == 17 ? 1000 : 8000, k % 2, &hits);
    }
    assert_true(hits > 3000 && retracted > 20);
}

// With drafts that are right, wrong and partly right; and with those that repeats in answers of few
// different tokens bring. Nothing that a client sees changes, and the prefix cache has none of
// them.
static void test_drafts(void **state)
{
    (void)state;
    static const int32_t sizes[] = {1, 4, 16};
    int hits = 0;
    for (int k = 0; k < 36; k++) {
        const int32_t page_size = sizes[k % 3], len = 150;
        harness_options o = {.max_running = 1 + (k * 5) % 9,
                             .max_seq_len = len,
                             .max_prefill_tokens = k % 4 == 0 ? 7 : 64,
                             .num_pages = (len + 40 * (k % 7)) / page_size + 1,
                             .page_size = page_size,
                             .vocab_size = k % 6 == 5 ? 2 : 13,
                             .cache_type = k % 12 < 11 ? MSGL_CACHE_RADIX : MSGL_CACHE_NAIVE,
                             .overlap = k % 2,
                             .threaded = k == 17,
                             .speculative = k % 6 == 4 ? "NGRAM" : "SUFFIX",
                             .guesses = k % 6 < 4,
                             .most_drafts = 1 + k % 5 * 4};
        if (k % 5 == 1) o.window = 11;
        if (k % 2 == 1) {
            o.state_interval = 16;
            o.num_checkpoints = k % 4 == 1 ? 30 : k / 12;
            o.draft_states = 1 + k % 3 * 8;
        }
        (void)run(o, 12000 + (uint64_t)k, k == 17 ? 1000 : 6000, k % 2, &hits);
    }
    assert_true(hits > 1000);
    assert_true(g_accepted > 20000 && g_drafts > g_accepted + 20000);
}

// The same of a draft model, which is asked for them when the step before is built.
static void run_draft_model(bool trees, uint64_t seed, int *hits)
{
    g_drafts = g_accepted = 0;
    for (int k = 0; k < 24; k++) {
        const int32_t page_size = 1 << k % 3 * 2, len = 150;
        harness_options o = {.max_running = 1 + (k * 5) % 9,
                             .max_seq_len = len,
                             .max_prefill_tokens = k % 4 == 0 ? 7 : 64,
                             .num_pages = (len + 40 * (k % 7)) / page_size + 1,
                             .page_size = page_size,
                             .vocab_size = k % 6 == 5 ? 2 : 13,
                             .cache_type = k % 12 < 11 ? MSGL_CACHE_RADIX : MSGL_CACHE_NAIVE,
                             .overlap = k % 2,
                             .threaded = k == 17,
                             .speculative = "STANDALONE",
                             .trees = trees,
                             .most_drafts = 1 + k % 5 * 3};
        if (k % 5 == 1) o.window = 11;
        const int operations = k == 17 ? 1000 : trees ? 20000 : 6000;
        (void)run(o, seed + (uint64_t)k, operations, k % 2, hits);
    }
}

static void test_draft_model(void **state)
{
    (void)state;
    int hits = 0;
    run_draft_model(false, 15000, &hits);
    assert_true(hits > 1000);
    assert_true(g_accepted > 8000 && g_drafts > g_accepted + 5000);
}

static void test_trees(void **state)
{
    (void)state;
    int hits = 0;
    g_moved = 0;
    run_draft_model(true, 16000, &hits);
    assert_true(hits > 1000 && g_moved > 500);
    assert_true(g_accepted > 2000 && g_drafts > g_accepted + 3000);
}

// Conversations, each turn the one before and its answer: what the turns find in the cache.
static int32_t run_turns(bool drafts, int32_t cached[LIVE])
{
    harness h;
    harness_init(&h, (harness_options){.max_running = 4,
                                       .max_seq_len = HARNESS_LEN,
                                       .max_prefill_tokens = 64,
                                       .num_pages = 4096,
                                       .page_size = 4,
                                       .vocab_size = 13,
                                       .state_interval = 32,
                                       .num_checkpoints = 60,
                                       .draft_states = 9,
                                       .speculative = drafts ? "SUFFIX" : NULL,
                                       .guesses = true,
                                       .most_drafts = 7});
    int32_t ids[HARNESS_LEN], accepted;
    for (int32_t i = 0; i < LIVE; i++) {
        int32_t n = 0;
        if (i % 4 == 0) {
            for (; n < 5 + i * 3; n++) ids[n] = (i + n * n) % 13;
        } else {
            const record *last = &h.records[i - 1];
            n = last->prompt_len;
            memcpy(ids, last->prompt, (size_t)n * sizeof *ids);
            memcpy(ids + n, last->tokens, (size_t)last->num_tokens * sizeof *ids);
            n += last->num_tokens;
        }
        msgl_sampling_params p = msgl__sampling_params_default();
        p.max_tokens = 30 + 7 * i;
        if (p.max_tokens > 100) p.max_tokens -= 70;
        p.ignore_eos = true;
        harness_add(&h, (uint64_t)i, ids, n, &p);
        harness_run(&h, 10000);
        harness_expect(&h, (uint64_t)i);
        cached[i] = h.records[i].cached;
    }
    accepted = (int32_t)harness_stats(&h).accepted_tokens;
    harness_free(&h);
    return accepted;
}

// States behind drafts never get into the cache, and all checkpoints of answers do.
static void test_turns(void **state)
{
    (void)state;
    int32_t with[LIVE], without[LIVE], hits = 0;
    assert_true(run_turns(true, with) > 300);
    assert_int_equal(run_turns(false, without), 0);
    for (int i = 0; i < LIVE; i++) {
        assert_int_equal(with[i], without[i]);
        hits += with[i] > 0;
    }
    assert_true(hits > LIVE / 2);
}

static void test_threaded(void **state)
{
    (void)state;
    run_page_size(4, true, 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_1),    cmocka_unit_test(test_page_4),
        cmocka_unit_test(test_page_16),   cmocka_unit_test(test_page_64),
        cmocka_unit_test(test_sent_back), cmocka_unit_test(test_spans),
        cmocka_unit_test(test_drafts),    cmocka_unit_test(test_draft_model),
        cmocka_unit_test(test_trees),     cmocka_unit_test(test_turns),
        cmocka_unit_test(test_threaded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
