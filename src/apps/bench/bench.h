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
int msgl__bench_serve_cmd(const msgl_args *a);
int msgl__bench_attn_cmd(const msgl_args *a);
int msgl__bench_startup(const msgl_args *a);
int msgl__bench_limits(const msgl_args *a);

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
