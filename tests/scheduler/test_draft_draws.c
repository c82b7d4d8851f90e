// SPDX-License-Identifier: Apache-2.0
//
// Sampled answers whose steps verify drafts have the model's distribution, whoever makes the
// drafts. Each request has a seed of its own, as those have that name none. Answers are made of a
// few allowed tokens, so that there are few of them, whose probabilities are known: those of the
// logits that the engine computes for every prompt. Compared by chi-square.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/req_extra.h"
#include "core/settings.h"
#include "drafts/drafter.h"
#include "engine/harness.h"
#include "scheduler/scheduler.h"
#include "utils/random.h"

enum {
    PROMPT = 3,
    ALLOWED = 4,
    PLACES = 6,      // tokens of an answer, all of them in two steps if its drafts are right
    ROWS = 5,        // of a step: the known token and four drafts
    LEAVES = 1024,   // 4^5
    CONTEXTS = 1365, // 1 + 4 + 16 + 64 + 256 + 1024: what can stand before a token
    TOGETHER = 10,   // requests at once
    ANSWERS = 25000, // with each drafter
};

static const int32_t prompt[PROMPT] = {40, 7, 111}, allowed[ALLOWED] = {235, 4, 107, 231};

// Answers' tokens by their place in `allowed`. Contexts are numbered by how many tokens they have,
// from here on.
static int32_t first_context(int32_t tokens)
{
    int32_t first = 0;
    for (int32_t i = 0, size = 1; i < tokens; i++, size *= ALLOWED) first += size;
    return first;
}

// Those before a token, [2, 0, 3], are context 1 + 4 + 16 + (2 * 16 + 0 * 4 + 3).
static int32_t context_of(const int32_t *before, int32_t n)
{
    int32_t at = 0;
    for (int32_t i = 0; i < n; i++) at = at * ALLOWED + before[i];
    return first_context(n) + at;
}

static const float TEMPERATURE = 3; // a small random model's choices are too clear by themselves

// The probabilities of the next token behind each context.
static double model[CONTEXTS][ALLOWED];

static const char dir[] = MSGL_SOURCE_DIR "/tests/vectors/models/qwen3";

static int read_model(void **state)
{
    (void)state;
    harness h;
    const msgl_options o = harness_config(dir, "float32");
    harness_open(&h, &o);
    for (int32_t leaf = 0; leaf < LEAVES; leaf++) {
        int32_t ids[PROMPT + PLACES - 1], before[PLACES - 1];
        memcpy(ids, prompt, sizeof prompt);
        for (int32_t i = 0; i < PLACES - 1; i++) {
            before[i] = leaf >> 2 * (PLACES - 2 - i) & (ALLOWED - 1);
            ids[PROMPT + i] = allowed[before[i]];
        }
        float *rows = harness_prompt_of(&h, ids, PROMPT + PLACES - 1);
        for (int32_t i = 0; i < PLACES; i++) {
            const float *row = rows + (size_t)(PROMPT - 1 + i) * (size_t)h.info->vocab_size;
            double *p = model[context_of(before, i)], sum = 0;
            for (int32_t a = 0; a < ALLOWED; a++) {
                p[a] = exp((double)row[allowed[a]] / TEMPERATURE);
                sum += p[a];
            }
            for (int32_t a = 0; a < ALLOWED; a++) p[a] /= sum;
        }
        free(rows);
    }
    harness_close(&h);
    return 0;
}

static int32_t likeliest(const double *p)
{
    int32_t best = 0;
    for (int32_t a = 1; a < ALLOWED; a++) best = p[a] > p[best] ? a : best;
    return best;
}

// --- drafts ---

typedef enum drafter {
    ANY,      // each of the tokens as often
    LIKELIEST // what the model most likely says
} drafter;

static drafter g_drafter;
static uint64_t g_random;

static int32_t place_of(int32_t token)
{
    int32_t a = 0;
    while (a < ALLOWED && allowed[a] != token) a++;
    assert_true(a < ALLOWED);
    return a;
}

// In place of looks for repeats.
void __wrap_msgl__draft_make(msgl_drafter *d, msgl_draft_state *s, uint64_t salt,
                             const int32_t *ids, int32_t len, int32_t max_len, int32_t most,
                             msgl_draft *out);
void __wrap_msgl__draft_make(msgl_drafter *d, msgl_draft_state *s, uint64_t salt,
                             const int32_t *ids, int32_t len, int32_t max_len, int32_t most,
                             msgl_draft *out)
{
    int32_t before[PLACES];
    (void)d, (void)salt, (void)max_len;
    s->guess_at = -1;
    out->num = out->match = 0;
    for (int32_t i = PROMPT; i < len; i++) before[i - PROMPT] = place_of(ids[i]);
    for (int32_t n = len - PROMPT; n < PLACES && out->num < most; n++) {
        const double *p = model[context_of(before, n)];
        const int32_t any = (int32_t)msgl__random_below(&g_random, ALLOWED);
        const int32_t a = g_drafter == ANY ? any : likeliest(p);
        before[n] = a;
        out->accepted[out->num] = 0.5F;
        out->tokens[out->num++] = allowed[a];
    }
}

static int (*g_wait)(void *ctx, int32_t step_slot, msgl_step_result *out);

// Every step takes as long, so that all drafts pay.
static int wait_as_long(void *ctx, int32_t step_slot, msgl_step_result *out)
{
    const int rc = g_wait(ctx, step_slot, out);
    out->compute_ns = 1000000;
    return rc;
}

// --- answers ---

typedef struct answer {
    int32_t tokens[PLACES], rows[PLACES]; // rows: of its step; those behind 0 are behind drafts
    int32_t num;
} answer;

typedef struct draws {
    int32_t by_place[PLACES][ALLOWED];
    int32_t by_context[CONTEXTS][ALLOWED], by_row[ROWS][CONTEXTS][ALLOWED];
    uint64_t drafted, accepted;
} draws;

static void on_events(void *ctx, const msgl_msg_tokens *m)
{
    answer *all = ctx;
    for (int32_t i = 0; i < m->num_events; i++) {
        const msgl_token_event *e = &m->events[i];
        answer *a = &all[e->uid % TOGETHER];
        if (e->finish == MSGL_FINISH_ERROR) fail_msg("%s", e->text);
        for (int32_t k = 0; k < e->num_tokens; k++) {
            assert_true(a->num < PLACES);
            a->rows[a->num] = k;
            a->tokens[a->num++] = place_of(e->tokens[k]);
        }
    }
}

static void count(const answer *a, draws *out)
{
    assert_int_equal(a->num, PLACES);
    for (int32_t i = 0; i < PLACES; i++) {
        out->by_place[i][a->tokens[i]]++;
        out->by_context[context_of(a->tokens, i)][a->tokens[i]]++;
        out->by_row[a->rows[i]][context_of(a->tokens, i)][a->tokens[i]]++;
    }
}

static void draw(drafter of, draws *out)
{
    static answer answers[TOGETHER];
    msgl_options o = harness_config(dir, "float32");
    o.max_running = TOGETHER;
    o.speculative_algorithm = "SUFFIX";
    g_drafter = of;
    g_random = 7;
    harness h;
    harness_open(&h, &o);
    assert_int_equal(msgl__engine_observe_logits(h.e, NULL, NULL), 0);
    msgl_runner runner = *h.r;
    g_wait = runner.wait;
    runner.wait = wait_as_long;
    const msgl_scheduler_config cfg = {.max_seq_len = h.info->max_seq_len,
                                       .cache = h.info->cache,
                                       .vocab_size = h.info->vocab_size,
                                       .tables = msgl__engine_page_tables(h.e)};
    msgl_scheduler *s;
    msgl_err err;
    const int rc = msgl__scheduler_create(&o, &cfg, &runner, on_events, answers, &s, &err);
    if (rc != 0) fail_msg("%s", err.text);
    msgl_req_extra *extra;
    const msgl_req_extra_parts parts = {.allowed = allowed, .num_allowed = ALLOWED};
    assert_int_equal(msgl__req_extra_create_with(&parts, cfg.vocab_size, &extra, NULL), 0);
    uint64_t seeds = 1 + (uint64_t)of;
    for (uint64_t n = 0; n < ANSWERS; n += TOGETHER) {
        memset(answers, 0, sizeof answers);
        for (uint64_t i = 0; i < TOGETHER; i++) {
            msgl_msg_request r = {.uid = n + i, .num_ids = PROMPT, .ids = prompt, .extra = extra};
            r.sampling = msgl__sampling_params_default();
            r.sampling.temperature = TEMPERATURE;
            r.sampling.max_tokens = PLACES;
            r.sampling.seed = msgl__random(&seeds);
            msgl__scheduler_add(s, &r);
        }
        while (msgl__scheduler_has_work(s)) assert_int_equal(msgl__scheduler_step(s), 0);
        for (int32_t i = 0; i < TOGETHER; i++) count(&answers[i], out);
    }
    msgl_msg_stats stats;
    msgl__scheduler_stats(s, &stats);
    out->drafted = stats.drafted_tokens;
    out->accepted = stats.accepted_tokens;
    msgl__scheduler_destroy(s);
    msgl__req_extra_unref(extra);
    harness_close(&h);
}

// --- chi-square ---

typedef struct chi {
    double sum;
    int32_t freedom;
} chi;

// Adds what `n` draws with these probabilities are off by, where each cell can expect five.
static void add(chi *c, const int32_t *seen, const double *p)
{
    int32_t n = 0;
    for (int32_t a = 0; a < ALLOWED; a++) n += seen[a];
    for (int32_t a = 0; a < ALLOWED; a++) {
        if (n * p[a] < 5) return;
    }
    for (int32_t a = 0; a < ALLOWED; a++) {
        const double off = seen[a] - n * p[a];
        c->sum += off * off / (n * p[a]);
    }
    c->freedom += ALLOWED - 1;
}

// The probability of as much or more: of one degree erfc, of two an exponential, and two more add a
// term each time.
static double chance(const chi *c)
{
    const double x = c->sum / 2;
    const bool odd = c->freedom % 2 != 0;
    double p = odd ? erfc(sqrt(x)) : exp(-x);
    for (double k = odd ? 0.5 : 1; k < c->freedom / 2.0; k++) {
        p += exp(k * log(x) - x - lgamma(k + 1));
    }
    return p;
}

static void test_chance(void **state)
{
    (void)state;
    static const struct {
        double sum;
        int32_t freedom;
        double p;
    } known[] = {// quantiles of tables
                 {3.841459, 1, 0.05},
                 {5.991465, 2, 0.05},
                 {7.814728, 3, 0.05},
                 {16.26624, 3, 0.001},
                 {124.342113, 100, 0.05}};
    for (size_t i = 0; i < MSGL_COUNT(known); i++) {
        const chi c = {known[i].sum, known[i].freedom};
        assert_true(fabs(chance(&c) - known[i].p) < 1e-6);
    }
}

// What an answer's token `place` is, whatever stands before it.
static void marginal(int32_t place, double *out)
{
    double before[CONTEXTS] = {1};
    memset(out, 0, ALLOWED * sizeof *out);
    for (int32_t c = 0; c < first_context(place + 1); c++) {
        for (int32_t a = 0; a < ALLOWED; a++) {
            if (c >= first_context(place)) {
                out[a] += before[c] * model[c][a];
            } else {
                before[ALLOWED * c + 1 + a] = before[c] * model[c][a]; // what a makes of c
            }
        }
    }
}

// Draws behind each of the contexts [from, to); bias: compared with what would be if the likeliest
// token were chosen a little too often, in such a share without a draw.
static chi behind_contexts(const int32_t (*seen)[ALLOWED], int32_t from, int32_t to, double bias)
{
    chi c = {0};
    for (int32_t i = from; i < to; i++) {
        double p[ALLOWED];
        for (int32_t a = 0; a < ALLOWED; a++) {
            p[a] = (1 - bias) * model[i][a] + bias * (a == likeliest(model[i]));
        }
        add(&c, seen[i], p);
    }
    return c;
}

// All draws from one row of steps. Each counts what it could expect behind its own context, so that
// the counts are spread no wider than those of alike draws.
static chi from_row(const int32_t (*seen)[ALLOWED])
{
    int32_t all[ALLOWED] = {0}, n = 0;
    double p[ALLOWED] = {0};
    chi c = {0};
    for (int32_t i = 0; i < CONTEXTS; i++) {
        int32_t here = 0;
        for (int32_t a = 0; a < ALLOWED; a++) here += seen[i][a];
        for (int32_t a = 0; a < ALLOWED; a++) p[a] += here * model[i][a];
        for (int32_t a = 0; a < ALLOWED; a++) all[a] += seen[i][a];
        n += here;
    }
    for (int32_t a = 0; a < ALLOWED; a++) p[a] /= n > 0 ? n : 1;
    add(&c, all, p);
    return c;
}

static void check(drafter of, const char *name)
{
    static draws d;
    memset(&d, 0, sizeof d);
    draw(of, &d);
    print_message("%s: %llu of %llu drafts accepted\n", name, (unsigned long long)d.accepted,
                  (unsigned long long)d.drafted);
    for (int32_t i = 0; i < PLACES; i++) {
        const int32_t from = first_context(i), to = first_context(i + 1);
        double p[ALLOWED];
        chi all = {0};
        marginal(i, p);
        add(&all, d.by_place[i], p);
        const chi behind = behind_contexts(d.by_context, from, to, 0),
                  biased = behind_contexts(d.by_context, from, to, 0.15);
        print_message("  token %d: p %.4f, behind %d degrees of what is before it %.4f, biased "
                      "%.1g\n",
                      (int)i, chance(&all), (int)behind.freedom, chance(&behind), chance(&biased));
        assert_true(all.freedom == ALLOWED - 1 && chance(&all) > 1e-4);
        assert_true(behind.freedom >= ALLOWED - 1 && chance(&behind) > 1e-4);
        assert_true(chance(&biased) < 1e-4); // so little would be seen
    }
    for (int32_t row = 0; row < ROWS; row++) {
        const chi c = from_row(d.by_row[row]);
        print_message("  row %d: p %.4f\n", (int)row, chance(&c));
        assert_true(c.freedom == ALLOWED - 1 && chance(&c) > 1e-4);
    }
}

static void test_draws(void **state)
{
    (void)state;
    check(ANY, "any");
    check(LIKELIEST, "the likeliest");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_chance), cmocka_unit_test(test_draws)};
    return cmocka_run_group_tests(tests, read_model, NULL);
}
