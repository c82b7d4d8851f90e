// SPDX-License-Identifier: Apache-2.0
//
// The sub-commands of `minisgl bench`; each prints rows and returns an exit code.
#ifndef MSGL_APPS_BENCH_BENCH_H
#define MSGL_APPS_BENCH_BENCH_H

#include "cli/common.h"
#include "engine/engine.h"

int msgl__bench_step(const msgl_args *a);
int msgl__bench_grid(const msgl_args *a); // of bench step
int msgl__bench_decode(const msgl_args *a);
int msgl__bench_prefill(const msgl_args *a);
int msgl__bench_offline(const msgl_args *a);
int msgl__bench_speculation(const msgl_args *a);
int msgl__bench_serve_cmd(const msgl_args *a);
int msgl__bench_attn_cmd(const msgl_args *a);
int msgl__bench_startup(const msgl_args *a);
int msgl__bench_limits(const msgl_args *a);

// ---- bench_step.c ----

enum { MSGL_BENCH_WARM_STEPS = 4 };

// An engine alone, and requests that are all alike.
typedef struct msgl_step_bench {
    msgl_engine *engine;
    const msgl_runner *runner;
    const msgl_engine_info *info;
    msgl_batch_req *reqs[2]; // per slot, [max_running]
    int prompt_len, steps;
    int chunk;                // tokens of another prompt in each step of answers
    int drafts;               // of each answer, in steps with drafts; 0: there are none
    int depth, topk;          // of them one behind the other; topk > 1: they are a tree
    bool proposes;            // a draft model makes as many
    int num_loras;            // adapters that are there
    int loras;                // that the requests have in turn: of 2 request 5 has the second
    msgl_expert_hits hits[2]; // by phase
} msgl_step_bench;

// Gives `batch` requests pages for their prompt, --steps tokens and a step's drafts, and writes
// their prompts; MSGL_ELIMIT.
int msgl__step_bench_place(msgl_step_bench *b, int batch, msgl_err *err);
// Computes all prompts; *seconds for the whole batch.
int msgl__step_bench_prefill(msgl_step_bench *b, int batch, double *seconds);
// Adds the request of this row to the step, without drafts.
void msgl__step_bench_add(const msgl_step_bench *b, msgl_batch *batch, int row, int cached,
                          int device);
// Steps of answers alone, two in flight, after a few that are not timed; *seconds of all --steps.
int msgl__step_bench_decode(msgl_step_bench *b, int batch, double *seconds);

// ---- bench_accept.c ----

// What --accept says: probabilities with which each draft is accepted, if all before it were.
typedef struct msgl_accept_list {
    double rates[32];
    int count;
} msgl_accept_list;

// Reads "0.0,0.5,0.9". MSGL_EINVAL.
int msgl__accept_list_parse(const char *text, msgl_accept_list *out, msgl_err *err);
// How many of so many drafts are accepted, by the random numbers of *rng.
int msgl__accept_draw(uint64_t *rng, double rate, int drafts);
// Rows for one number of requests, at each of the rates: steps of one row each and steps with
// drafts, in turns.
int msgl__bench_accept(msgl_step_bench *b, const msgl_accept_list *list, int batch, int repeat,
                       msgl_rows *rows, msgl_err *err);

// ---- bench_job.c ----

enum { MSGL_BENCH_PROMPT_STEP = 16384 }; // tokens of prompts in a step, unless given

typedef struct msgl_bench_job {
    const int *prompt, *output; // [count] tokens of each request
    int count;
    double limit_s;    // what is not done by then is aborted; 0: none
    const char *label; // of the bar on a terminal; NULL: none
    // NULL, or gets the seconds of a step in which all answer: from the last one's second token to
    // the first one's end. 0: there was none.
    double *step_s;
} msgl_bench_job;

// Submits all requests, with fresh random prompts from *rng, and computes to the end; *seconds from
// the first submission. Leaves the prefix cache empty. *generated (may be NULL): tokens that came.
// An interrupt ends it early, without an error.
int msgl__bench_job_run(msgl_llm *l, const msgl_bench_job *job, uint64_t *rng, double *seconds,
                        int64_t *generated, msgl_err *err);
// Opens the model for batch jobs: prompts first, in steps of MSGL_BENCH_PROMPT_STEP, and, unless
// the flags say otherwise, this length and pool (in tokens; 0: as always).
int msgl__bench_open(const msgl_args *a, int max_seq_len, int num_pages, msgl_llm **out,
                     msgl_err *err);
// Bytes of weights that a step of a model reads: all but the embedding's, of which it looks up a
// row for each token, and those of experts that no token goes to.
double msgl__bench_weights(const msgl_engine_info *info, const msgl_expert_hits *hits);
// The column of models with experts: how many of a layer's the step's tokens go to, in the mean.
msgl_cell msgl__cell_hits(const msgl_expert_hits *hits);
// Closes; the exit code.
int msgl__bench_end(msgl_llm *l, int rc, const msgl_err *err);

#endif
