// SPDX-License-Identifier: Apache-2.0
//
// `minisgl bench decode` and `minisgl bench prefill`: the time of a step as users get it, through
// scheduler, engine and callbacks, of batches whose requests are all alike. `minisgl bench step`
// measures the engine alone.
#include <string.h>

#include "apps/bench/bench.h"
#include "core/err.h"
#include "core/mem.h"
#include "core/round.h"
#include "llm/llm.h"
#include "utils/stats.h"

enum { MAX_BATCHES = 64, MAX_BATCH = 4096, MAX_REPEAT = 1000 };

struct alike {
    msgl_llm *llm;
    int prompt[MAX_BATCH], output[MAX_BATCH];
    uint64_t rng;
    int prompt_step;          // tokens of prompts in a step, at most
    msgl_expert_hits hits[2]; // by phase
};

// Steps that `batch` prompts take.
static int prompt_steps(const struct alike *b, int batch, int prompt_len)
{
    const int64_t tokens = (int64_t)batch * prompt_len;
    return (int)((tokens + b->prompt_step - 1) / b->prompt_step);
}

// Seconds of `batch` requests with prompt_len tokens each and `output` tokens to generate; and of a
// step in which all answer (bench.h).
static int run(struct alike *b, int batch, int prompt_len, int output, double *seconds,
               double *step_s, msgl_err *err)
{
    for (int i = 0; i < batch; i++) {
        b->prompt[i] = prompt_len;
        b->output[i] = output;
    }
    const msgl_bench_job job = {
        .prompt = b->prompt, .output = b->output, .count = batch, .step_s = step_s};
    const int rc = msgl__bench_job_run(b->llm, &job, &b->rng, seconds, NULL, err);
    if (rc == 0 && msgl__cli_interrupted) return msgl__err_set(err, MSGL_EABORTED, "interrupted");
    return rc;
}

// Of a model with experts: which ones are hit in steps of `phase`, by a run of its own that
// generates `output` tokens.
static int count_hits(struct alike *b, int batch, int prompt_len, int output, msgl_phase phase,
                      msgl_expert_hits *hits, msgl_err *err)
{
    msgl_engine *e = msgl__llm_engine(b->llm);
    double seconds;
    *hits = (msgl_expert_hits){0};
    if (msgl__engine_info(e)->num_experts == 0) return 0;
    memset(b->hits, 0, sizeof b->hits);
    int rc = msgl__engine_count_experts(e, b->hits, err);
    if (rc == 0) rc = run(b, batch, prompt_len, output, &seconds, NULL, err);
    if (rc == 0) rc = msgl__engine_count_experts(e, NULL, err);
    *hits = b->hits[phase];
    return rc;
}

static void print_row(const msgl_expert_hits *hits, msgl_cell *cells, int n, msgl_rows *rows)
{
    if (hits->layers > 0) cells[n++] = msgl__cell_hits(hits);
    msgl__cli_row(rows, cells, n);
}

// While all of them answer: prompts are over, and the first step, which waits for them. Where they
// take several steps the first ones have answered for as many by then, so answers are longer. (It
// was the difference of two runs, with the jitter of a prompt each: of one answer of 14B on two
// GPUs, one or two repetitions, 2.7 and 3.7 ms where others said 4.1.)
static int decode(struct alike *b, const msgl_args *a, int batch, int prompt_len, int steps,
                  msgl_rows *rows, msgl_err *err)
{
    static double ms[MAX_REPEAT];
    const int repeat = a->repeat > 0 ? a->repeat : 3;
    const int before = prompt_steps(b, batch, prompt_len);
    double seconds, step_s;
    int rc = run(b, batch, prompt_len, 16, &seconds, NULL, err); // warms up
    for (int i = 0; rc == 0 && i < repeat; i++) {
        rc = run(b, batch, prompt_len, before + steps + 1, &seconds, &step_s, err);
        ms[i] = step_s * 1e3;
        if (rc == 0 && step_s == 0) {
            rc =
                msgl__err_set(err, MSGL_ELIMIT,
                              "%d requests of %d tokens never answer at the same time: there is no "
                              "room for them all (--num-pages), or --steps is too small",
                              batch, prompt_len + before + steps + 1);
        }
    }
    msgl_expert_hits hits;
    if (rc == 0) rc = count_hits(b, batch, prompt_len, 3, MSGL_DECODE, &hits, err);
    if (rc != 0) return rc;
    msgl_info info;
    msgl_get_info(b->llm, &info);
    const double median = msgl__median(ms, (size_t)repeat);
    const double slots = ((double)info.num_pages + 1) * info.page_size;
    const double bytes = msgl__bench_weights(msgl__engine_info(msgl__llm_engine(b->llm)), &hits) +
                         batch * (prompt_len + steps / 2.0) * (double)info.kv_bytes / slots;
    msgl_cell cells[9] = {msgl__cell_text("phase", "decode"),
                          msgl__cell_int("batch", batch),
                          msgl__cell_int("context_from", prompt_len),
                          msgl__cell_int("context_to", prompt_len + steps),
                          msgl__cell_real("ms_per_step", median, 4),
                          msgl__cell_real("best_ms", ms[0], 4),
                          msgl__cell_real("tok_per_s", batch / median * 1e3, 1),
                          msgl__cell_real("gb_per_s", bytes / median / 1e6, 1)};
    print_row(&hits, cells, 8, rows);
    return 0;
}

// One token each: from submission to the last request's first token.
static int prefill(struct alike *b, const msgl_args *a, int batch, int prompt_len, int steps,
                   msgl_rows *rows, msgl_err *err)
{
    static double ms[MAX_REPEAT];
    (void)steps;
    const int repeat = a->repeat > 0 ? a->repeat : 3;
    double seconds;
    int rc = 0;
    for (int i = 0; rc == 0 && i < 2; i++) {
        rc = run(b, batch, prompt_len, 1, &seconds, NULL, err);
    }
    for (int i = 0; rc == 0 && i < repeat; i++) {
        rc = run(b, batch, prompt_len, 1, &seconds, NULL, err);
        ms[i] = seconds * 1e3;
    }
    msgl_expert_hits hits;
    if (rc == 0) rc = count_hits(b, batch, prompt_len, 1, MSGL_PREFILL, &hits, err);
    if (rc != 0) return rc;
    const double median = msgl__median(ms, (size_t)repeat), tokens = (double)batch * prompt_len;
    msgl_cell cells[8] = {msgl__cell_text("phase", "prefill"),
                          msgl__cell_int("batch", batch),
                          msgl__cell_int("prompt_len", prompt_len),
                          msgl__cell_real("ms", median, 3),
                          msgl__cell_real("best_ms", ms[0], 3),
                          msgl__cell_real("tok_per_s", tokens / median * 1e3, 1),
                          msgl__cell_real("best_tok_per_s", tokens / ms[0] * 1e3, 1)};
    print_row(&hits, cells, 7, rows);
    return 0;
}

typedef int (*measure_fn)(struct alike *b, const msgl_args *a, int batch, int prompt_len, int steps,
                          msgl_rows *rows, msgl_err *err);

static int bench(const msgl_args *a, measure_fn measure, int default_prompt, int default_steps)
{
    msgl_err err;
    int batches[MAX_BATCHES];
    const int n = msgl__cli_int_list("--batch", a->batch, MAX_BATCH, batches, MAX_BATCHES, &err);
    if (n < 0) return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    struct alike *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) {
        msgl__err_set(&err, MSGL_ENOMEM, "out of memory");
        return msgl__cli_fail(MSGL_EXIT_FAILED, &err);
    }
    const int prompt_len = a->prompt_len > 0 ? a->prompt_len : default_prompt;
    const int steps = a->steps > 0 ? a->steps : default_steps;
    const int page = a->engine.page_size;
    int largest = 1;
    for (int i = 0; i < n; i++) largest = batches[i] > largest ? batches[i] : largest;
    b->prompt_step = msgl__args_given(a, &a->engine.max_prefill_tokens)
                         ? a->engine.max_prefill_tokens
                         : MSGL_BENCH_PROMPT_STEP;
    const int before = prompt_steps(b, largest, prompt_len);
    const int length = msgl__ceil_div(prompt_len + before + steps + 2, page) * page;
    const int64_t slots = (int64_t)largest * length;
    int rc = slots < 1 << 30
                 ? 0
                 : msgl__err_set(&err, MSGL_ELIMIT, "%d x %d tokens are too many", largest, length);
    // No more memory than the measurement needs.
    if (rc == 0) rc = msgl__bench_open(a, length, (int)slots, &b->llm, &err);
    msgl_rows rows = {.format = a->format};
    for (int i = 0; rc == 0 && i < n; i++) {
        rc = measure(b, a, batches[i], prompt_len, steps, &rows, &err);
    }
    const int code = msgl__bench_end(b->llm, rc, &err);
    msgl__free(b);
    return code;
}

int msgl__bench_decode(const msgl_args *a)
{
    return bench(a, decode, 128, 256);
}

int msgl__bench_prefill(const msgl_args *a)
{
    return bench(a, prefill, 1024, 1);
}
