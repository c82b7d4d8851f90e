// SPDX-License-Identifier: Apache-2.0
//
// `minisgl bench step --accept`: steps with drafts. Which drafts are accepted is drawn, since
// random weights agree with none: each with the given probability, as long as all before it were.
// An answer goes on by those and one more token, as the scheduler takes it on (core/batch.h), and
// as there a step with drafts is waited for before the next begins, while those without overlap.
#include <errno.h>
#include <stdlib.h>

#include "apps/bench/bench.h"
#include "core/attributes.h"
#include "core/err.h"
#include "core/mem.h"
#include "utils/clock.h"
#include "utils/random.h"
#include "utils/stats.h"

enum { MAX_REPEAT = 1000, SEED = 1 };

int msgl__accept_list_parse(const char *text, msgl_accept_list *out, msgl_err *err)
{
    const int most = (int)MSGL_COUNT(out->rates);
    out->count = 0;
    for (const char *p = text;; p++) {
        char *end;
        errno = 0;
        const double rate = strtod(p, &end);
        // Of no number, and of NaN, no comparison holds.
        if (end == p || errno != 0 || !(rate >= 0 && rate <= 1) || out->count == most ||
            (*end != ',' && *end != '\0')) {
            return msgl__err_set(
                err, MSGL_EINVAL,
                "--accept is \"%.100s\"; allowed: up to %d numbers from 0 to 1, as in 0,0.5,0.9",
                text, most);
        }
        out->rates[out->count++] = rate;
        if (*end == '\0') return 0;
        p = end;
    }
}

int msgl__accept_draw(uint64_t *rng, double rate, int drafts)
{
    int accepted = 0;
    while (accepted < drafts && (double)msgl__random_unit(rng) < rate) accepted++;
    return accepted;
}

typedef struct contest {
    msgl_step_bench *b;
    int batch;
    int *cached;      // [batch] tokens of each answer that have K and V
    int32_t *drafts;  // [drafts] of every answer the same
    int16_t *parents; // [drafts] of a tree: the first `depth` behind each other, others beside them
    // Of a model that keeps states: [batch, drafts] where a step leaves those behind its rows, and
    // [batch] the one that an answer goes on from, -1: its row's.
    msgl_state_save *saves;
    int32_t *load;
    uint64_t rng;
} contest;

// What one contender did in one turn.
typedef struct turn {
    double ms;     // of a step
    double tokens; // of all answers, of a step
} turn;

static const msgl_cache_span *state_span(const msgl_step_bench *b)
{
    return msgl__cache_state_span(&b->info->cache);
}

// The states behind the rows of answer r, whose drafts have places of their own.
static void place_states(contest *c, msgl_batch_req *q, int r)
{
    const msgl_cache_span *span = state_span(c->b);
    const int drafts = c->b->drafts;
    q->load_state = c->load[r];
    if (span == NULL) return;
    msgl_state_save *saves = c->saves + (size_t)r * (size_t)drafts;
    for (int i = 0; i < drafts; i++) {
        saves[i] = (msgl_state_save){.len = q->cached_len + 1 + i,
                                     .checkpoint = span->num_units + r * drafts + i};
    }
    q->saves = saves;
    q->num_saves = drafts;
}

// One step of all answers; how many tokens they go on by. One that has its --steps tokens begins
// again behind its prompt, so that contexts stay as long as those of steps without drafts.
static int step(contest *c, double rate, int64_t *tokens)
{
    msgl_step_bench *b = c->b;
    msgl_batch batch = {.reqs = b->reqs[0]};
    for (int r = 0; r < c->batch; r++) {
        const int cached = c->cached[r];
        msgl__step_bench_add(b, &batch, r, cached, cached + 1 + b->drafts);
        msgl_batch_req *q = &batch.reqs[r];
        q->logits_from = 0;
        q->num_drafts = b->drafts;
        q->drafts = c->drafts;
        if (b->topk > 1) q->draft_parents = c->parents;
        if (b->proposes) q->propose = b->depth;
        if (b->proposes && b->topk > 1) q->propose_nodes = b->drafts;
        place_states(c, q, r);
    }
    msgl_step_result result;
    int rc = b->runner->submit(b->runner->ctx, &batch);
    if (rc == 0) rc = b->runner->wait(b->runner->ctx, 0, &result);
    for (int r = 0; rc == 0 && r < c->batch; r++) {
        const int more = 1 + msgl__accept_draw(&c->rng, rate, b->depth);
        *tokens += more;
        c->cached[r] += more;
        c->load[r] = state_span(b) != NULL && more <= b->drafts
                         ? c->saves[r * b->drafts + more - 1].checkpoint
                         : -1;
        if (c->cached[r] >= b->prompt_len + b->steps) c->cached[r] = b->prompt_len;
    }
    return rc;
}

// Steps until the answers have got --steps tokens each, in the mean.
static int run(contest *c, double rate, turn *out)
{
    const int64_t enough = (int64_t)c->batch * c->b->steps;
    int64_t tokens = 0;
    for (int r = 0; r < c->batch; r++) {
        c->cached[r] = c->b->prompt_len;
        c->load[r] = -1;
    }
    int rc = 0;
    for (int i = 0; rc == 0 && i < MSGL_BENCH_WARM_STEPS; i++) rc = step(c, rate, &tokens);
    tokens = 0;
    int steps = 0;
    const uint64_t start = msgl__now_ns();
    while (rc == 0 && tokens < enough) {
        rc = step(c, rate, &tokens);
        steps++;
    }
    *out = (turn){.ms = (double)(msgl__now_ns() - start) / 1e6 / steps,
                  .tokens = (double)tokens / steps};
    return rc;
}

// A column over the repeats, of which the median is printed.
static double median_of(const turn *alone, const turn *with, int repeat,
                        double (*value)(const turn *alone, const turn *with))
{
    static double values[MAX_REPEAT];
    for (int i = 0; i < repeat; i++) values[i] = value(&alone[i], &with[i]);
    return msgl__median(values, (size_t)repeat);
}

static double tokens_per_step(const turn *alone, const turn *with)
{
    return with->tokens / alone->tokens; // of one answer: alone it has one a step
}

static double ms_per_step(const turn *alone, const turn *with)
{
    (void)alone;
    return with->ms;
}

static double ms_alone(const turn *alone, const turn *with)
{
    (void)with;
    return alone->ms;
}

static double step_ratio(const turn *alone, const turn *with)
{
    return with->ms / alone->ms;
}

static double tok_per_s(const turn *alone, const turn *with)
{
    (void)alone;
    return with->tokens / with->ms * 1e3;
}

static double tok_per_s_alone(const turn *alone, const turn *with)
{
    return tok_per_s(with, alone);
}

static double speedup(const turn *alone, const turn *with)
{
    return tok_per_s(alone, with) / tok_per_s_alone(alone, with);
}

static void print_row(const contest *c, msgl_rows *rows, double rate, const turn *alone,
                      const turn *with, int repeat)
{
    static const struct {
        const char *name;
        double (*value)(const turn *alone, const turn *with);
        int digits;
    } COLUMNS[] = {
        {"tokens_per_step", tokens_per_step, 3},
        {"ms_per_step", ms_per_step, 3},
        {"ms_without", ms_alone, 3},
        {"step_ratio", step_ratio, 3},
        {"tok_per_s", tok_per_s, 1},
        {"tok_per_s_without", tok_per_s_alone, 1},
        {"speedup", speedup, 3},
    };
    msgl_cell cells[5 + MSGL_COUNT(COLUMNS)] = {
        msgl__cell_text("phase", "drafts"), msgl__cell_int("batch", c->batch),
        msgl__cell_int("prompt_len", c->b->prompt_len), msgl__cell_int("drafts", c->b->drafts),
        msgl__cell_real("set_acceptance", rate, 3)};
    for (size_t i = 0; i < MSGL_COUNT(COLUMNS); i++) {
        const double value = median_of(alone, with, repeat, COLUMNS[i].value);
        cells[5 + i] = msgl__cell_real(COLUMNS[i].name, value, COLUMNS[i].digits);
    }
    msgl__cli_row(rows, cells, (int)MSGL_COUNT(cells));
}

static int check(const msgl_step_bench *b, int batch, msgl_err *err)
{
    const int64_t all = (int64_t)batch * b->drafts;
    const msgl_cache_span *span = state_span(b);
    int most = b->runner->max_drafts;
    if (span != NULL && span->draft_states < most) most = span->draft_states;
    if (all <= most) return 0;
    return msgl__err_set(err, MSGL_ELIMIT,
                         "--batch %d x --drafts %d is %lld drafts a step; allowed: up to %d", batch,
                         b->drafts, (long long)all, most);
}

// Every repeat has all contenders, one after the other.
static int run_all(contest *c, const msgl_accept_list *list, int repeat, turn *alone, turn *with)
{
    msgl_step_bench *b = c->b;
    int rc = 0;
    for (int i = 0; rc == 0 && i < repeat; i++) {
        double seconds;
        rc = msgl__step_bench_decode(b, c->batch, &seconds);
        alone[i] = (turn){.ms = seconds * 1e3 / b->steps, .tokens = c->batch};
        for (int k = 0; rc == 0 && k < list->count; k++) {
            rc = run(c, list->rates[k], &with[k * repeat + i]);
        }
    }
    return rc;
}

int msgl__bench_accept(msgl_step_bench *b, const msgl_accept_list *list, int batch, int repeat,
                       msgl_rows *rows, msgl_err *err)
{
    contest c = {.b = b, .batch = batch, .rng = SEED};
    int rc = check(b, batch, err);
    if (rc == 0) rc = msgl__step_bench_place(b, batch, err);
    if (rc != 0) return rc;
    const size_t turns = (size_t)repeat * (size_t)(1 + list->count);
    turn *all = msgl__reallocarray(NULL, turns, sizeof *all);
    c.cached = msgl__reallocarray(NULL, (size_t)batch, sizeof *c.cached);
    c.drafts = msgl__calloc((size_t)b->drafts, sizeof *c.drafts);
    c.parents = msgl__calloc((size_t)b->drafts, sizeof *c.parents);
    c.load = msgl__reallocarray(NULL, (size_t)batch, sizeof *c.load);
    c.saves = msgl__calloc((size_t)batch * (size_t)b->drafts, sizeof *c.saves);
    if (all == NULL || c.cached == NULL || c.drafts == NULL || c.load == NULL || c.saves == NULL ||
        c.parents == NULL) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    } else {
        for (int i = 0; i < b->drafts; i++) {
            c.drafts[i] = (int32_t)(i * 7919 % b->info->vocab_size);
            c.parents[i] = (int16_t)(i < b->depth ? i : (i - b->depth) % b->depth);
        }
        double seconds;
        rc = msgl__step_bench_prefill(b, batch, &seconds);
        if (rc == 0) rc = run_all(&c, list, repeat, all, all + repeat);
        if (rc != 0) msgl__err_set(err, rc, "the engine failed: %s", msgl_status_text(rc));
    }
    for (int k = 0; rc == 0 && k < list->count; k++) {
        print_row(&c, rows, list->rates[k], all, all + (size_t)(1 + k) * (size_t)repeat, repeat);
    }
    msgl__free(all);
    msgl__free(c.cached);
    msgl__free(c.drafts);
    msgl__free(c.parents);
    msgl__free(c.load);
    msgl__free(c.saves);
    return rc;
}
