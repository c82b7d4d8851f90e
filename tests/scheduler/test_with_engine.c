// SPDX-License-Identifier: Apache-2.0
//
// Scheduler and engine together: a request's tokens and log-probabilities are the same to the last
// bit whether it runs alone or among others, with overlap or without, after a cache hit or not,
// with any page size and any chunk size.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "core/req_extra.h"
#include "core/settings.h"
#include "engine/engine.h"
#include "scheduler/scheduler.h"
#include "drafts/depth.h"
#include "drafts/drafter.h"
#include "utils/random.h"

enum { REQUESTS = 32, MAX_LEN = 128, MAX_ROWS = 2 * MAX_LEN };

#define MODELS MSGL_SOURCE_DIR "/tests/vectors/models/"

typedef struct answer {
    int32_t tokens[MAX_LEN], num_tokens;
    msgl_token_logprobs rows[MAX_ROWS];
    int32_t num_rows;
    msgl_finish finish;
    int32_t cached;
} answer;

typedef struct setting {
    const char *model; // NULL: qwen3
    // Whose drafts it takes, `drafts` or fewer; NULL: guesses. head: the algorithm of a head, whose
    // draft is NULL where it is in the model's own files.
    const char *draft, *head;
    const char *attention;
    int32_t page_size, max_prefill, max_running, num_pages;
    int32_t interval, checkpoints; // of states, at most the engine's; 0: those
    msgl_cache_type cache;
    bool overlap, one_by_one, no_penalties;
    bool long_answers; // longer than answers were before
    int32_t drafts;    // guesses at answers, of which a part is right, up to so many
    int32_t ranks;     // that share the model; 0: one
    int32_t topk;      // of trees; 0: there are none
    bool limited;      // requests say themselves how many drafts a step has of them at most
} setting;

static msgl_req_extra *g_bias, *g_breakers, *g_banned;

static int make_bias(void **state)
{
    (void)state;
    const msgl_bias bias[] = {{17, 3}, {5, -100}, {200, 2.5f}, {41, 2}};
    const int32_t breakers[] = {7, 100, 130, 200};
    const msgl_req_extra_parts parts = {.breakers = breakers, .num_breakers = 4};
    int rc = msgl__req_extra_create_with(&parts, 250, &g_breakers, NULL);
    // Every token is followed by fewer than half of the others.
    static int32_t banned[250 * 12 * 3];
    for (int32_t i = 0; i < 250 * 12; i++) {
        memcpy(banned + 3 * i, (int32_t[]){2, i / 12, (i * 37 + i / 12) % 250}, 3 * sizeof *banned);
    }
    const msgl_req_extra_parts pairs = {.banned = banned, .num_banned = 2700 * 3};
    if (rc == 0) rc = msgl__req_extra_create_with(&pairs, 250, &g_banned, NULL);
    return rc != 0 ? rc : msgl__req_extra_create(bias, MSGL_COUNT(bias), 250, &g_bias, NULL);
}

static int check_bias(void **state)
{
    (void)state;
    const int refs =
        g_bias->refs + g_breakers->refs + g_banned->refs; // every request has let go of them
    msgl__req_extra_unref(g_bias);
    msgl__req_extra_unref(g_breakers);
    msgl__req_extra_unref(g_banned);
    return refs == 3 ? 0 : -1;
}

static bool has_penalties(int i)
{
    return i % 4 == 1 || i % 4 == 2 || i % 8 == 3;
}

static void add_penalties(int i, msgl_msg_request *r)
{
    if (!has_penalties(i)) return;
    msgl_sampling_params *p = &r->sampling;
    p->repetition_penalty = i % 4 == 1 ? 1.4f : i % 4 == 3 ? 0.8f : 1;
    p->frequency_penalty = i % 4 == 3 ? 1.2f : 0;
    p->presence_penalty = i % 4 == 2 ? 0.7f : 0;
    r->extra = i % 4 == 1 ? NULL : g_bias;
}

// Further samplers, of which one keeps a state and one reads the history: by themselves, beside
// penalties, and with tokens that end a repeat. Of the requests that may be sent back all that are
// drawn have the one with a state.
static void add_chain(int i, bool long_answers, msgl_msg_request *r)
{
    msgl_sampling_params *p = &r->sampling;
    if (i % 8 == 1 || i % 8 == 3 || long_answers) {
        p->mirostat = 2;
        p->mirostat_tau = 3;
        p->mirostat_eta = 0.7f;
        return;
    }
    if (i % 8 == 5) {
        p->typical_p = 0.8f;
        p->dynatemp_range = 0.5f;
        p->xtc_probability = 0.5f;
        p->xtc_threshold = 0.02f;
    }
    if (i % 8 == 7 || i % 16 == 4) { // the latter's tokens are the most likely ones
        p->dry_multiplier = 1.5f;
        p->dry_allowed_length = 1;
        p->top_n_sigma = 2.5f;
        r->extra = g_breakers;
    }
}

static void on_events(void *ctx, const msgl_msg_tokens *m)
{
    answer *all = ctx;
    for (int32_t i = 0; i < m->num_events; i++) {
        const msgl_token_event *e = &m->events[i];
        answer *a = &all[e->uid];
        if (e->finish == MSGL_FINISH_ERROR) fail_msg("%s", e->text);
        for (int32_t k = 0; k < e->num_tokens; k++) a->tokens[a->num_tokens++] = e->tokens[k];
        for (int32_t k = 0; k < e->num_logprobs; k++) {
            assert_true(a->num_rows < MAX_ROWS);
            a->rows[a->num_rows] = e->logprobs[k];
            a->rows[a->num_rows++].req = 0;
        }
        a->finish = e->finish;
        a->cached = e->cached_tokens;
    }
}

// Request i: prompts share prefixes; greedy and sampled, with and without log-probabilities, with
// and without bias and penalties.
static void make_request(int i, int32_t *ids, msgl_msg_request *r)
{
    const int32_t n = 3 + (i * 37) % 90;
    for (int32_t k = 0; k < n; k++) ids[k] = k < 40 ? (k * 7 + i % 3) % 250 : (k * 11 + i) % 250;
    *r = (msgl_msg_request){
        .uid = (uint64_t)i, .num_ids = n, .ids = ids, .sampling = msgl__sampling_params_default()};
    r->sampling.max_tokens = 5 + i % 20;
    r->sampling.temperature = i % 2 ? 0.9f : 0.0f;
    r->sampling.top_p = i % 4 == 3 ? 0.8f : 1.0f;
    r->sampling.seed = (uint64_t)(1000 + i);
    r->sampling.logprobs = i % 5 == 4 ? -1 : 3;
    r->sampling.prompt_logprobs = i % 7 == 6 ? 2 : -1;
    add_penalties(i, r);
    add_chain(i, false, r);
    if (i % 8 == 0) r->sampling.min_tokens = 4;
    if (i % 8 == 0 && r->extra == NULL) r->extra = g_banned;
}

static void work(msgl_scheduler *s)
{
    msgl_err err;
    for (int steps = 0; msgl__scheduler_has_work(s); steps++) {
        assert_true(steps < 100000);
        assert_int_equal(msgl__scheduler_step(s), 0);
        if (msgl__scheduler_check(s, &err) != 0) fail_msg("%s", err.text);
    }
}

typedef struct server {
    msgl_engine *e;
    msgl_scheduler *s;
    msgl_runner runner;
} server;

static int (*g_wait)(void *ctx, int32_t step_slot, msgl_step_result *out);

// Measured times decide how many prompt tokens ride with answers, and so which requests leave when
// a pool is tight, and how many drafts pay: where those are counted, every step takes as long.
static int wait_as_long(void *ctx, int32_t step_slot, msgl_step_result *out)
{
    const int rc = g_wait(ctx, step_slot, out);
    out->compute_ns = 1000000;
    return rc;
}

// How many drafts a step has of request uid, where requests say it: none, two, or as many as pay.
static int32_t limit_of(uint64_t uid)
{
    return uid % 3 == 0 ? 0 : uid % 3 == 1 ? 2 : -1;
}

static int (*g_submit)(void *ctx, msgl_batch *b);
static int32_t g_verified[3], g_proposed[3]; // most in a step, of requests with each of the limits

static int submit_seen(void *ctx, msgl_batch *b)
{
    for (int32_t i = 0; i < b->size; i++) {
        const msgl_batch_req *r = &b->reqs[i];
        const uint64_t kind = r->uid % 3;
        if (r->num_drafts > g_verified[kind]) g_verified[kind] = r->num_drafts;
        if (r->propose > g_proposed[kind]) g_proposed[kind] = r->propose;
    }
    return g_submit(ctx, b);
}

static const answer *answers_alone(const setting *v);

typedef struct guesser {
    const answer *answers; // of requests that run alone
    uint64_t random;
    uint64_t computed, right; // drafts
} guesser;

static guesser g_guesser;

// In place of looks for repeats, whatever is asked for: what comes behind ids[0, len) of a request,
// up to some token, and then something else.
void __wrap_msgl__draft_make(msgl_drafter *d, msgl_draft_state *s, uint64_t salt,
                             const int32_t *ids, int32_t len, int32_t max_len, int32_t most,
                             msgl_draft *out);
void __wrap_msgl__draft_make(msgl_drafter *d, msgl_draft_state *s, uint64_t salt,
                             const int32_t *ids, int32_t len, int32_t max_len, int32_t most,
                             msgl_draft *out)
{
    guesser *g = &g_guesser;
    (void)salt, (void)max_len;
    out->num = out->match = 0;
    s->guess_at = -1;
    if (most > d->cfg.most) most = d->cfg.most;
    for (int i = 0; i < REQUESTS && most > 0; i++) {
        int32_t own[MAX_LEN];
        msgl_msg_request r;
        make_request(i, own, &r);
        if (len < r.num_ids || memcmp(ids, own, (size_t)r.num_ids * sizeof *ids) != 0) continue;
        const answer *a = &g->answers[i];
        const int32_t at = len - r.num_ids, left = a->num_tokens - at;
        if (left < 1 || memcmp(ids + r.num_ids, a->tokens, (size_t)at * sizeof *ids) != 0) continue;
        const int32_t right = (int32_t)msgl__random_below(&g->random, (uint64_t)most + 1);
        for (int32_t k = 0; k < most; k++) {
            out->accepted[k] = 1.0f / (float)(k + 2);
            out->tokens[k] = k < right && k < left ? a->tokens[at + k]
                                                   : (int32_t)msgl__random_below(&g->random, 250);
        }
        out->num = most;
        return;
    }
}

// And whatever became of drafts so far.
float __wrap_msgl__depth_rate(const msgl_depths *d, const msgl_depth *of, int32_t place);
float __wrap_msgl__depth_rate(const msgl_depths *d, const msgl_depth *of, int32_t place)
{
    (void)d, (void)of, (void)place;
    return 0.9f;
}

// In place of what pays: any depth.
void __wrap_msgl__depth_choose(msgl_depths *d, const msgl_step_costs *c, int32_t answers,
                               msgl_depth_ask *asks, int32_t num);
void __wrap_msgl__depth_choose(msgl_depths *d, const msgl_step_costs *c, int32_t answers,
                               msgl_depth_ask *asks, int32_t num)
{
    (void)d, (void)c, (void)answers;
    for (int32_t i = 0; i < num; i++) {
        const uint64_t depth =
            msgl__random_below(&g_guesser.random, 3 * (uint64_t)asks[i].most / 2 + 1);
        asks[i].depth = depth < (uint64_t)asks[i].most ? (int32_t)depth : asks[i].most;
    }
}

static void open_server(server *o, const setting *v, answer *answers)
{
    msgl_options ec = {0};
    msgl__settings_default(&msgl__engine_settings, &ec);
    char folder[256], draft[256];
    snprintf(folder, sizeof folder, MODELS "%s", v->model != NULL ? v->model : "qwen3");
    snprintf(draft, sizeof draft, MODELS "%s", v->draft != NULL ? v->draft : "");
    ec.model_dir = folder;
    ec.device = "cpu";
    ec.attention = v->attention;
    ec.threads = v->ranks > 0 ? 1 : 2;
    if (v->ranks > 0) ec.tp_size = v->ranks;
    ec.max_running = v->max_running;
    ec.max_prefill_tokens = v->max_prefill;
    ec.page_size = v->page_size;
    ec.num_pages = v->num_pages;
    ec.overlap = v->overlap;
    ec.cache_type = v->cache == MSGL_CACHE_NAIVE ? "naive" : "radix";
    if (v->drafts > 0) ec.speculative_algorithm = v->draft != NULL ? "STANDALONE" : "SUFFIX";
    if (v->drafts > 0 && v->head != NULL) ec.speculative_algorithm = v->head;
    if (v->draft != NULL) ec.speculative_draft_model_path = draft;
    ec.speculative_num_draft_tokens = v->drafts > 0 ? v->drafts + 1 : 0;
    if (v->drafts > 0 && v->topk > 0) ec.speculative_eagle_topk = v->topk;
    msgl_err err;
    if (msgl__engine_create(&ec, NULL, &o->e, &err) != 0) fail_msg("%s", err.text);
    const msgl_engine_info *info = msgl__engine_info(o->e);
    msgl_scheduler_config sc = {.max_seq_len = info->max_seq_len,
                                .cache = info->cache,
                                .vocab_size = info->vocab_size,
                                .no_prefix_sharing = info->no_prefix_sharing,
                                .num_eos = info->num_eos,
                                .tables = msgl__engine_page_tables(o->e)};
    msgl_cache_span *last = &sc.cache.spans[sc.cache.num_spans - 1];
    if (v->interval > 0) last->interval = v->interval;
    if (v->checkpoints > 0) last->num_units = v->checkpoints;
    memcpy(sc.eos_ids, info->eos_ids, sizeof sc.eos_ids);
    memset(answers, 0, REQUESTS * sizeof *answers);
    o->runner = *msgl__engine_runner(o->e);
    g_wait = o->runner.wait;
    if (v->long_answers || v->drafts > 0) o->runner.wait = wait_as_long;
    g_submit = o->runner.submit;
    if (v->limited) o->runner.submit = submit_seen;
    if (msgl__scheduler_create(&ec, &sc, &o->runner, on_events, answers, &o->s, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

static void close_server(server *o)
{
    msgl__scheduler_destroy(o->s);
    msgl__engine_destroy(o->e);
}

// Answers of one token each, so that the scheduler expects no longer ones.
static void expect_short_answers(server *o, answer *answers)
{
    const int32_t id = 3;
    for (int i = 0; i < 80; i++) {
        msgl_msg_request r = {.uid = 0, .num_ids = 1, .ids = &id};
        r.sampling = msgl__sampling_params_default();
        r.sampling.max_tokens = 1;
        msgl__scheduler_add(o->s, &r);
        work(o->s);
        memset(&answers[0], 0, sizeof answers[0]);
    }
}

// How many requests were sent back to the queue.
static uint64_t run(const setting *v, answer *answers)
{
    server o;
    open_server(&o, v, answers);
    if (v->long_answers) expect_short_answers(&o, answers);
    for (int i = 0; i < REQUESTS; i++) {
        int32_t ids[MAX_LEN];
        msgl_msg_request r;
        make_request(i, ids, &r);
        if (v->long_answers) {
            add_chain(i, i % 2 == 1, &r);
            r.sampling.max_tokens = 60;
            r.sampling.ignore_eos = true;
        }
        if (v->no_penalties) {
            if (r.extra == g_bias) r.extra = NULL;
            r.sampling.repetition_penalty = 1;
            r.sampling.frequency_penalty = r.sampling.presence_penalty = 0;
        }
        if (v->limited) r.sampling.speculative = limit_of(r.uid);
        msgl__scheduler_add(o.s, &r);
        if (v->one_by_one) work(o.s);
    }
    work(o.s);
    msgl_msg_stats st;
    msgl__scheduler_stats(o.s, &st);
    close_server(&o);
    if (v->drafts > 0) {
        g_guesser.computed += st.drafted_tokens;
        g_guesser.right += st.accepted_tokens;
    }
    return st.requests_retracted;
}

static const setting alone = {.attention = "fa",
                              .page_size = 1,
                              .max_prefill = 4096,
                              .max_running = 1,
                              .num_pages = 128,
                              .cache = MSGL_CACHE_NAIVE,
                              .one_by_one = true};

// Requests that are all there from the start.
static setting together(msgl_cache_type cache, int32_t max_running, int32_t page_size,
                        int32_t num_pages)
{
    setting v = alone;
    v.one_by_one = false;
    v.cache = cache;
    v.max_running = max_running;
    v.page_size = page_size;
    v.num_pages = num_pages;
    return v;
}

static bool same_row(const msgl_token_logprobs *a, const msgl_token_logprobs *b)
{
    const size_t n = a->num_top > 0 ? (size_t)a->num_top : 0;
    return a->position == b->position && a->token == b->token && a->num_top == b->num_top &&
           memcmp(&a->logprob, &b->logprob, sizeof a->logprob) == 0 &&
           memcmp(a->top_ids, b->top_ids, n * sizeof a->top_ids[0]) == 0 &&
           memcmp(a->top_logprobs, b->top_logprobs, n * sizeof a->top_logprobs[0]) == 0;
}

// The answers of a setting's model to requests that run alone; kept until another's are asked for.
static const answer *answers_alone(const setting *v)
{
    static answer kept[REQUESTS];
    static char of[64];
    char key[64];
    setting one = alone;
    one.model = v->model;
    one.long_answers = v->long_answers;
    one.ranks = v->ranks;
    snprintf(key, sizeof key, "%s %d %d", v->model != NULL ? v->model : "", v->long_answers,
             (int)v->ranks);
    if (strcmp(key, of) != 0) (void)run(&one, kept);
    memcpy(of, key, sizeof of);
    return kept;
}

static uint64_t compare(const setting *v)
{
    answer *got = calloc(REQUESTS, sizeof *got);
    assert_non_null(got);
    const answer *expected = answers_alone(v);
    g_guesser = (guesser){.answers = expected, .random = 1};
    const uint64_t sent_back = run(v, got);
    int hits = 0;
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(got[i].num_tokens, expected[i].num_tokens);
        assert_memory_equal(got[i].tokens, expected[i].tokens, sizeof got[i].tokens);
        assert_int_equal(got[i].num_rows, expected[i].num_rows);
        for (int32_t k = 0; k < got[i].num_rows; k++) {
            assert_true(same_row(&got[i].rows[k], &expected[i].rows[k]));
        }
        assert_int_equal(got[i].finish, expected[i].finish);
        hits += got[i].cached > 0;
    }
    assert_int_equal(hits > 0, v->cache == MSGL_CACHE_RADIX);
    free(got);
    return sent_back;
}

static void test_batch_of_32(void **state)
{
    (void)state;
    const setting v = together(MSGL_CACHE_NAIVE, 32, 1, 4096);
    compare(&v);
}

static void test_overlap_and_prefix_hits(void **state)
{
    (void)state;
    setting v = together(MSGL_CACHE_RADIX, 8, 4, 4096);
    v.overlap = true;
    compare(&v);
    v.max_running = 1;
    v.one_by_one = true; // hits from requests that have ended
    compare(&v);
}

static void test_small_chunks_and_a_tight_pool(void **state)
{
    (void)state;
    setting v = together(MSGL_CACHE_RADIX, 6, 16, 20); // evicts all the time
    v.overlap = true;
    v.max_prefill = 7;
    compare(&v);
    v.overlap = false;
    v.max_prefill = 33;
    compare(&v);
}

// Models whose layers have windows of 16 tokens or chunks of 24, or none: pages behind the window
// are another request's while a request runs, prefixes are shared, and requests leave and come
// back.
static void test_windows(void **state)
{
    (void)state;
    static const char *const models[] = {"gemma2", "gemma3", "llama4", "exaone4", "hunyuan"};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        setting v = together(MSGL_CACHE_RADIX, 8, 4, 4096);
        v.model = models[i];
        v.overlap = true;
        compare(&v);
        v.max_running = 1;
        v.one_by_one = true;
        compare(&v);
        v = together(MSGL_CACHE_RADIX, 6, 16, 20);
        v.model = models[i];
        v.overlap = i == 0;
        v.max_prefill = 7;
        compare(&v);
        v = together(MSGL_CACHE_RADIX, 6, 1, 220);
        v.model = models[i];
        v.long_answers = true;
        v.overlap = i == 1;
        assert_true(compare(&v) > 2);
    }
}

// Compressed keys, and the raw rows that they are made of, behind prefixes and in requests that
// leave and come back.
static void test_compressed(void **state)
{
    (void)state;
    static const char *const models[] = {"deepseek_v4", "deepseek_v4_tf5"};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        setting v = together(MSGL_CACHE_RADIX, 8, 4, 4096);
        v.model = models[i];
        v.overlap = true;
        compare(&v);
        v.max_running = 1;
        v.one_by_one = true;
        compare(&v);
        v = together(MSGL_CACHE_NAIVE, 6, 16, 20);
        v.model = models[i];
        v.max_prefill = 7;
        compare(&v);
        v = together(MSGL_CACHE_RADIX, 6, 1, 220);
        v.model = models[i];
        v.long_answers = true;
        v.overlap = i == 1;
        assert_true(compare(&v) > 2);
        v = together(MSGL_CACHE_RADIX, 6, 4, 4096);
        v.model = models[i];
        v.drafts = 5;
        v.overlap = i == 0;
        compare(&v);
    }
}

// Models that keep states: requests go on from checkpoints, of which there are few, leave and come
// back. A chunk passes one multiple of the interval at most, more than the engine has room for
// otherwise.
static void test_states(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen3_next", "qwen3_5", "lfm2", "granite_hybrid",
                                         "zamba2"};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        setting v = together(MSGL_CACHE_RADIX, 8, 4, 4096);
        v.model = models[i];
        v.interval = 16;
        v.max_prefill = 15;
        v.overlap = true;
        compare(&v);
        v.one_by_one = true;
        compare(&v);
        v = together(MSGL_CACHE_RADIX, 6, 16, 20);
        v.model = models[i];
        v.interval = 16;
        v.checkpoints = 3;
        v.max_prefill = 7;
        v.overlap = i == 0;
        compare(&v);
        v = together(MSGL_CACHE_RADIX, 6, 1, 220);
        v.model = models[i];
        v.interval = 8;
        v.max_prefill = 7;
        v.long_answers = true;
        v.overlap = i == 1;
        assert_true(compare(&v) > 2);
    }
}

// Models that keep latent vectors, or keys of an index beside K and V.
static void test_latent(void **state)
{
    (void)state;
    static const char *const models[] = {"deepseek_v3", "minimax_m3"};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        setting v = together(MSGL_CACHE_RADIX, 6, 16, 20);
        v.model = models[i];
        v.overlap = true;
        v.max_prefill = 7;
        compare(&v);
        v = together(MSGL_CACHE_RADIX, 6, 1, 220);
        v.model = models[i];
        v.long_answers = true;
        assert_true(compare(&v) > 2);
    }
}

// Requests that go back to the queue continue with the counts and the bias that they had.
static void test_sent_back(void **state)
{
    (void)state;
    setting v = together(MSGL_CACHE_RADIX, 6, 1, 220);
    v.long_answers = true;
    for (int overlap = 0; overlap < 2; overlap++) {
        v.overlap = overlap;
        assert_true(compare(&v) > 2);
    }
}

// With drafts of which a random part is right: no answer, log-probability or end changes.
static void test_drafts(void **state)
{
    (void)state;
    static const char *const models[] = {NULL, "gemma2", "deepseek_v2_lite", "gpt_oss", "llama4"};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        setting v =
            together(i % 2 ? MSGL_CACHE_NAIVE : MSGL_CACHE_RADIX, 1 + (int32_t)i * 3, 4, 4096);
        v.model = models[i];
        v.drafts = i == 1 ? 1 : 7;
        v.overlap = i % 3 != 1;
        compare(&v);
        assert_true(g_guesser.right > 30 && g_guesser.computed > g_guesser.right);
    }
    setting v = together(MSGL_CACHE_RADIX, 12, 1, 300); // some leave and come back
    v.drafts = 5;
    v.long_answers = v.overlap = true;
    assert_true(compare(&v) > 0);
}

// The same with drafts of a model beside it: the same one, which is right; others, with windows and
// a latent cache, which are wrong.
static void test_draft_model(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {NULL, "qwen3"},         {NULL, "gemma2"},     {"gemma2", "gemma2"},
        {"gpt_oss", "llama"},    {"llama4", "llama4"}, {"deepseek_v2_lite", "deepseek_v2_lite"},
        {"llama", "deepseek_v2"}};
    for (size_t i = 0; i < MSGL_COUNT(pairs); i++) {
        setting v =
            together(i % 2 ? MSGL_CACHE_NAIVE : MSGL_CACHE_RADIX, 1 + (int32_t)i * 2, 4, 4096);
        v.model = pairs[i][0];
        v.draft = pairs[i][1];
        v.drafts = i == 1 ? 1 : 5;
        v.overlap = i % 3 != 1;
        g_guesser.computed = g_guesser.right = 0;
        compare(&v);
        // But for temperatures it is right.
        const bool same = i == 0 || (v.model != NULL && strcmp(v.draft, v.model) == 0);
        assert_true(g_guesser.computed > 30);
        assert_true(!same || g_guesser.right * 5 > g_guesser.computed);
    }
    setting v = together(MSGL_CACHE_RADIX, 12, 1, 300); // some leave and come back
    v.draft = "qwen3";
    v.drafts = 5;
    v.long_answers = v.overlap = true;
    assert_true(compare(&v) > 0);
}

// The same of models that keep states, among others, in a pool that is tight, and one after the
// other, where the prefix cache gives as many tokens as without drafts.
static void test_drafts_of_states(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen3_next", "qwen3_5"};
    static answer with[REQUESTS], without[REQUESTS];
    for (int i = 0; i < 2; i++) {
        setting v = together(MSGL_CACHE_RADIX, 8, 4, 4096);
        v.model = models[i];
        v.interval = 16;
        v.max_prefill = 15;
        v.overlap = i == 0;
        v.drafts = i == 0 ? 7 : 15;
        compare(&v);
        assert_true(g_guesser.right > 30 && g_guesser.computed > g_guesser.right);
        v.one_by_one = true;
        g_guesser = (guesser){.answers = answers_alone(&v), .random = 2};
        (void)run(&v, with);
        assert_true(g_guesser.right > 30);
        v.drafts = 0;
        (void)run(&v, without);
        int hits = 0;
        for (int k = 0; k < REQUESTS; k++) {
            assert_int_equal(with[k].cached, without[k].cached);
            assert_memory_equal(with[k].tokens, without[k].tokens, sizeof with[k].tokens);
            hits += with[k].cached > 0;
        }
        assert_true(hits > 10);
        v = together(MSGL_CACHE_RADIX, 6, 1, 220);
        v.model = models[i];
        v.interval = 8;
        v.max_prefill = 7;
        v.long_answers = true;
        v.overlap = i == 1;
        v.drafts = 5;
        assert_true(compare(&v) > 0);
    }
}

typedef struct {
    const char *target, *draft, *algorithm; // draft: NULL where the target brings its head
} head_case;

// together(), of a model and its head.
static setting with_head(const head_case *h, msgl_cache_type cache, int32_t max_running,
                         int32_t page_size, int32_t num_pages)
{
    setting v = together(cache, max_running, page_size, num_pages);
    v.model = h->target;
    v.draft = h->draft;
    v.head = h->algorithm;
    return v;
}

// With those of heads, which read the model's hidden states.
static void test_draft_heads(void **state)
{
    (void)state;
    static const head_case heads[] = {
        {"../drafts/eagle3/target", "../drafts/eagle3/draft", "EAGLE3"},
        {"../drafts/eagle3_wide/target", "../drafts/eagle3_wide/draft", "EAGLE3"},
        {"../drafts/qwen3_mtp/target", "../drafts/qwen3_mtp/draft", "NEXTN"},
        {"../drafts/qwen3_next/target", NULL, "NEXTN"},
        {"../drafts/deepseek_v3/target", NULL, "NEXTN"},
        {"../drafts/glm4_moe_lite/target", NULL, "NEXTN"},
        {"../drafts/mimo_v2/target", NULL, "NEXTN"},
        {"../drafts/nemotron_h/target", NULL, "NEXTN"}};
    for (size_t i = 0; i < MSGL_COUNT(heads); i++) {
        setting v = with_head(&heads[i], i % 2 ? MSGL_CACHE_NAIVE : MSGL_CACHE_RADIX,
                              1 + (int32_t)i * 2, 4, 4096);
        v.drafts = i == 1 ? 1 : 4;
        v.overlap = i % 3 != 1;
        g_guesser.computed = g_guesser.right = 0;
        compare(&v);
        assert_true(g_guesser.computed > 30);
    }
    setting v = with_head(&heads[0], MSGL_CACHE_RADIX, 12, 1, 300); // some leave and come back
    v.drafts = 5;
    v.long_answers = v.overlap = true;
    (void)compare(&v);
}

// Trees of theirs.
static void test_trees_of_heads(void **state)
{
    (void)state;
    static const head_case heads[] = {
        {"../drafts/eagle3/target", "../drafts/eagle3/draft", "EAGLE3"},
        {"../drafts/eagle3_wide/target", "../drafts/eagle3_wide/draft", "EAGLE3"},
        {"../drafts/qwen3_mtp/target", "../drafts/qwen3_mtp/draft", "NEXTN"},
        {"../drafts/deepseek_v3/target", NULL, "NEXTN"},
        {"../drafts/mimo_v2/target", NULL, "NEXTN"},
        {"../../../models/demo", "../../../models/demo-eagle3", "EAGLE3"}};
    uint64_t computed = 0, right = 0;
    for (size_t i = 0; i < MSGL_COUNT(heads); i++) {
        setting v = with_head(&heads[i], i % 2 ? MSGL_CACHE_NAIVE : MSGL_CACHE_RADIX,
                              1 + (int32_t)i * 2, 4, 4096);
        v.drafts = i == 1 ? 60 : 15;
        v.topk = i == 1 ? 8 : 2 + (int32_t)i;
        v.overlap = i % 3 != 1;
        compare(&v);
        computed += g_guesser.computed;
        right += g_guesser.right;
    }
    setting v = with_head(&heads[0], MSGL_CACHE_RADIX, 12, 1, 300); // some leave and come back
    v.drafts = 15;
    v.topk = 4;
    v.long_answers = v.overlap = true;
    (void)compare(&v);
    assert_true(computed > 1000 && right > 5); // behind such prompts no head is often right
}

// The same where two ranks share the model, and the first has the head.
static void test_draft_heads_of_ranks(void **state)
{
    (void)state;
    static const head_case heads[] = {
        {"../drafts/eagle3/target", "../drafts/eagle3/draft", "EAGLE3"},
        {"../drafts/qwen3_mtp/target", "../drafts/qwen3_mtp/draft", "NEXTN"},
        {"../drafts/qwen3_next/target", NULL, "NEXTN"},
        {"../drafts/deepseek_v3/target", NULL, "NEXTN"},
        {"../drafts/mimo_v2/target", NULL, "NEXTN"},
        {"../drafts/nemotron_h/target", NULL, "NEXTN"}};
    for (size_t i = 0; i < MSGL_COUNT(heads); i++) {
        setting v = with_head(&heads[i], MSGL_CACHE_RADIX, 6, 4, 4096);
        v.drafts = 4;
        v.max_prefill = i % 2 ? 4096 : 15; // chunks of which no row is chosen from
        v.overlap = i % 2 == 0;
        v.interval = i == 2 || i == 5 ? 16 : 0; // of its states
        v.ranks = 2;
        g_guesser.computed = g_guesser.right = 0;
        compare(&v);
        assert_true(g_guesser.computed > 30);
    }
}

// `speculative` of a request bounds what a head makes for it, and what a step verifies.
static void test_limited_heads(void **state)
{
    (void)state;
    static const char *const models[] = {"../drafts/qwen3_next/target",
                                         "../drafts/deepseek_v3/target"};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        setting v = together(MSGL_CACHE_NAIVE, 6, 4, 4096);
        v.model = models[i];
        v.head = "NEXTN";
        v.drafts = 5;
        v.limited = true;
        v.overlap = i == 0;
        memset(g_verified, 0, sizeof g_verified);
        memset(g_proposed, 0, sizeof g_proposed);
        compare(&v);
        assert_true(g_proposed[0] == 0 && g_verified[0] == 0);
        assert_true(g_proposed[1] == 2 && g_verified[1] == 2);
        assert_true(g_proposed[2] == 5 && g_verified[2] == 5);
    }
}

static void test_page_64(void **state)
{
    (void)state;
    setting v = together(MSGL_CACHE_NAIVE, 8, 64, 64);
    v.overlap = true;
    compare(&v);
}

// What some requests of a batch ask for changes no bit of the others' answers; and where it
// changes the choice, log-probabilities are still those of the model: as long as an answer is the
// same as without, so are they.
static void test_penalties_of_others(void **state)
{
    (void)state;
    setting v = together(MSGL_CACHE_NAIVE, 32, 1, 4096);
    v.overlap = true;
    answer *with = calloc(REQUESTS, sizeof *with), *without = calloc(REQUESTS, sizeof *without);
    assert_non_null(with);
    assert_non_null(without);
    run(&v, with);
    v.no_penalties = true;
    run(&v, without);
    int changed = 0, rows = 0;
    for (int i = 0; i < REQUESTS; i++) {
        const answer *a = &with[i], *b = &without[i];
        if (!has_penalties(i)) {
            assert_int_equal(a->num_tokens, b->num_tokens);
            assert_int_equal(a->num_rows, b->num_rows);
            assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
            for (int32_t k = 0; k < a->num_rows; k++)
                assert_true(same_row(&a->rows[k], &b->rows[k]));
            continue;
        }
        int32_t same = 0;
        while (same < a->num_tokens && same < b->num_tokens && a->tokens[same] == b->tokens[same]) {
            same++;
        }
        changed += same < a->num_tokens;
        if (i % 7 == 6) continue; // rows of the prompt come first
        for (int32_t k = 0; k < same && k < a->num_rows; k++, rows++) {
            assert_true(same_row(&a->rows[k], &b->rows[k]));
        }
        // Of the first other token the most likely ones are still the same.
        if (same < a->num_rows && same < b->num_rows) {
            assert_memory_equal(a->rows[same].top_ids, b->rows[same].top_ids, 3 * sizeof(int32_t));
            assert_memory_equal(a->rows[same].top_logprobs, b->rows[same].top_logprobs,
                                3 * sizeof(float));
            rows++;
        }
    }
    assert_true(changed >= 10);
    assert_true(rows >= 10);
    free(with);
    free(without);
}

// 8 requests decode for 50 steps, all threads counted.
static void test_no_heap_per_decode_step(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        setting v = together(MSGL_CACHE_NAIVE, 8, 1, 1024);
        v.overlap = overlap;
        answer *answers = calloc(REQUESTS, sizeof *answers);
        assert_non_null(answers);
        server o;
        open_server(&o, &v, answers);
        for (int i = 0; i < 8; i++) {
            int32_t ids[MAX_LEN];
            msgl_msg_request r;
            make_request(i, ids, &r);
            r.num_ids = r.num_ids < 20 ? r.num_ids : 20;
            r.sampling.max_tokens = 100;
            r.sampling.ignore_eos = true;
            msgl__scheduler_add(o.s, &r);
        }
        for (int i = 0; i < 20; i++) assert_int_equal(msgl__scheduler_step(o.s), 0);
        const uint64_t before = msgl__mem_allocs();
        for (int i = 0; i < 50; i++) assert_int_equal(msgl__scheduler_step(o.s), 0);
        assert_int_equal(msgl__mem_allocs(), before);
        msgl_msg_stats st;
        msgl__scheduler_stats(o.s, &st);
        assert_int_equal(st.running, 8);
        close_server(&o);
        free(answers);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_of_32),
        cmocka_unit_test(test_overlap_and_prefix_hits),
        cmocka_unit_test(test_small_chunks_and_a_tight_pool),
        cmocka_unit_test(test_sent_back),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_compressed),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_latent),
        cmocka_unit_test(test_page_64),
        cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_draft_model),
        cmocka_unit_test(test_draft_heads),
        cmocka_unit_test(test_trees_of_heads),
        cmocka_unit_test(test_draft_heads_of_ranks),
        cmocka_unit_test(test_limited_heads),
        cmocka_unit_test(test_drafts_of_states),
        cmocka_unit_test(test_penalties_of_others),
        cmocka_unit_test(test_no_heap_per_decode_step),
    };
    return cmocka_run_group_tests(tests, make_bias, check_bias);
}
