// SPDX-License-Identifier: Apache-2.0
//
// A batch job as the benchmarks run it: random prompts of given lengths, temperature 0.6,
// ignore_eos, as Mini-SGLang's offline benchmark does it, timed from the first submission to the
// last token.

#include "apps/bench/bench.h"
#include "core/err.h"
#include "core/mem.h"
#include "core/round.h"
#include "llm/llm.h"
#include "utils/clock.h"
#include "utils/random.h"

struct running;

struct asked {
    struct running *r;
    int tokens; // of its answer, so far
};

struct running {
    const msgl_bench_job *job;
    uint64_t *ids;       // of the requests
    struct asked *asked; // [count]
    int64_t generated, done, failed, expected;
    int answering;              // that have two tokens or more
    int64_t settled, unsettled; // generated when all of them had, and when the first ended
    uint64_t start_ns, settled_ns, unsettled_ns;
    char error[256];
};

static int on_piece(void *ctx, const msgl_piece *p)
{
    struct asked *a = ctx;
    struct running *r = a->r;
    if (p->token >= 0) {
        r->generated++;
        r->answering += ++a->tokens == 2;
        if (a->tokens == 2 && r->answering == r->job->count && r->done == 0) {
            r->settled_ns = msgl__now_ns();
            r->settled = r->generated;
        }
    }
    if (p->finish == MSGL_NOT_FINISHED) return msgl__cli_interrupted;
    if (r->done++ == 0) {
        r->unsettled_ns = msgl__now_ns();
        r->unsettled = r->generated;
    }
    if (p->finish == MSGL_FAILED) {
        r->failed++;
        snprintf(r->error, sizeof r->error, "%s", p->error);
    }
    return 0;
}

static int submit_all(msgl_llm *l, struct running *r, const int32_t *tokens, msgl_err *err)
{
    const msgl_bench_job *job = r->job;
    const msgl_sampling_params none = msgl__sampling_params_default(); // not the model's own
    int rc = 0;
    for (int i = 0; rc == 0 && i < job->count; i++) {
        msgl_params p;
        msgl_params_init(l, &p);
        msgl__params_from_sampling(&none, &p);
        p.temperature = 0.6f;
        p.ignore_eos = 1;
        p.max_tokens = job->output[i];
        p.seed = (uint64_t)i;
        p.has_seed = 1;
        r->asked[i].r = r;
        rc = msgl_submit_ids(l, tokens, (size_t)job->prompt[i], &p, on_piece, &r->asked[i],
                             &r->ids[i], err);
        tokens += job->prompt[i];
    }
    return rc;
}

static void show(const struct running *r)
{
    if (r->job->label == NULL) return;
    char note[64];
    const double seconds = (double)(msgl__now_ns() - r->start_ns) / 1e9;
    snprintf(note, sizeof note, "%.0f tok/s", (double)r->generated / seconds);
    msgl__cli_bar(r->job->label, (uint64_t)r->generated, (uint64_t)r->expected, note);
}

static int run(msgl_llm *l, struct running *r, double *seconds, msgl_err *err)
{
    const msgl_bench_job *job = r->job;
    int more = 1;
    bool ended = false;
    while (more > 0) {
        more = msgl_step(l, err);
        show(r);
        const double so_far = (double)(msgl__now_ns() - r->start_ns) / 1e9;
        const bool late = job->limit_s > 0 && so_far > job->limit_s;
        if (more > 0 && !ended && (late || msgl__cli_interrupted)) {
            for (int i = 0; i < job->count; i++) msgl_abort(l, r->ids[i]);
            ended = true;
        }
    }
    const uint64_t end_ns = msgl__now_ns();
    *seconds = (double)(end_ns - r->start_ns) / 1e9;
    const int64_t between = r->unsettled - r->settled;
    if (job->step_s != NULL && r->settled > 0 && between > 0) {
        *job->step_s = (double)(r->unsettled_ns - r->settled_ns) / 1e9 * job->count / between;
    }
    msgl__cli_bar_clear();
    if (more < 0) return more;
    return r->failed > 0 ? msgl__err_set(err, MSGL_EINTERNAL, "%.200s", r->error) : 0;
}

int msgl__bench_job_run(msgl_llm *l, const msgl_bench_job *job, uint64_t *rng, double *seconds,
                        int64_t *generated, msgl_err *err)
{
    msgl_info info;
    msgl_get_info(l, &info);
    struct running r = {.job = job};
    size_t total = 0;
    for (int i = 0; i < job->count; i++) {
        total += (size_t)job->prompt[i];
        r.expected += job->output[i];
    }
    int32_t *tokens = msgl__reallocarray(NULL, total, sizeof *tokens);
    r.ids = msgl__calloc((size_t)job->count, sizeof *r.ids);
    r.asked = msgl__calloc((size_t)job->count, sizeof *r.asked);
    if (job->step_s != NULL) *job->step_s = 0;
    int rc = 0;
    if (tokens == NULL || r.ids == NULL || r.asked == NULL)
        rc = msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    for (size_t i = 0; rc == 0 && i < total; i++) {
        tokens[i] = (int32_t)msgl__random_below(rng, (uint64_t)info.vocab_size);
    }
    r.start_ns = msgl__now_ns();
    if (rc == 0) rc = submit_all(l, &r, tokens, err);
    if (rc == 0) rc = run(l, &r, seconds, err);
    msgl_flush_cache(l); // the next job finds an empty cache, as the first did
    if (generated != NULL) *generated = r.generated;
    msgl__free(r.ids);
    msgl__free(r.asked);
    msgl__free(tokens);
    return rc;
}

int msgl__bench_open(const msgl_args *a, int max_seq_len, int num_pages, msgl_llm **out,
                     msgl_err *err)
{
    msgl_options o;
    char *dir = NULL, attention[128];
    int rc = msgl__cli_options(a, &o, &dir, attention, err);
    if (rc == 0) {
        o.prefill_first = 1;
        if (!msgl__args_given(a, &a->engine.max_prefill_tokens))
            o.max_prefill_tokens = MSGL_BENCH_PROMPT_STEP;
        if (o.max_seq_len == 0) o.max_seq_len = max_seq_len;
        if (o.num_pages == 0 && num_pages > 0) {
            o.num_pages = msgl__ceil_div(num_pages, o.page_size);
        }
        rc = msgl_open(&o, out, err);
    }
    msgl_free(dir);
    if (rc == 0) msgl__cli_catch_interrupt();
    return rc;
}

double msgl__bench_weights(const msgl_engine_info *info, const msgl_expert_hits *hits)
{
    const double steps = hits->steps > 0 ? (double)hits->steps : 1;
    return (double)(info->weight_bytes - info->embed_bytes) - hits->unread_bytes / steps;
}

msgl_cell msgl__cell_hits(const msgl_expert_hits *hits)
{
    const double layers = hits->layers > 0 ? (double)hits->layers : 1;
    return msgl__cell_real("experts_hit", (double)hits->experts / layers, 2);
}

int msgl__bench_end(msgl_llm *l, int rc, const msgl_err *err)
{
    msgl_close(l);
    if (msgl__cli_interrupted) return MSGL_EXIT_INTERRUPTED;
    return rc == 0 ? MSGL_EXIT_OK : msgl__cli_fail(MSGL_EXIT_FAILED, err);
}
