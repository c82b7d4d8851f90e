// SPDX-License-Identifier: Apache-2.0
//
// `minisgl bench offline`: Mini-SGLang's offline benchmark: a batch job through scheduler and
// engine, by default of that benchmark's 256 prompt and output lengths; or from a CSV, or uniform.
#include <string.h>

#include "apps/bench/bench.h"
#include "core/attributes.h"
#include "core/err.h"
#include "core/mem.h"
#include "utils/stats.h"

struct lengths {
    int *prompt, *output;
    int count;
    int64_t prompt_sum, output_sum;
    int longest;
};

static int add(struct lengths *l, int prompt, int output)
{
    int *p = msgl__reallocarray(l->prompt, (size_t)l->count + 1, sizeof *p);
    if (p != NULL) l->prompt = p;
    int *o = msgl__reallocarray(l->output, (size_t)l->count + 1, sizeof *o);
    if (o != NULL) l->output = o;
    if (p == NULL || o == NULL) return MSGL_ENOMEM;
    l->prompt[l->count] = prompt;
    l->output[l->count++] = output;
    l->prompt_sum += prompt;
    l->output_sum += output;
    if (prompt + output > l->longest) l->longest = prompt + output;
    return 0;
}

// Lengths of Mini-SGLang's benchmark/offline/bench.py; from bench/lengths.csv at build time.
static const int PUBLIC[][2] = {
#include "bench_lengths.inc"
};

static int own_lengths(const msgl_args *a, struct lengths *l, msgl_err *err)
{
    const bool uniform = a->requests > 0 || a->prompt_len > 0 || a->max_tokens > 0;
    const int64_t count = a->requests > 0 ? a->requests : uniform ? 16 : (int)MSGL_COUNT(PUBLIC);
    for (int64_t i = 0; i < count; i++) {
        const int prompt = !uniform ? PUBLIC[i][0] : a->prompt_len > 0 ? a->prompt_len : 512;
        const int output = !uniform ? PUBLIC[i][1] : a->max_tokens > 0 ? a->max_tokens : 64;
        if (add(l, prompt, output) != 0) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    }
    return 0;
}

static int read_lengths(const msgl_args *a, struct lengths *l, msgl_err *err)
{
    if (a->lengths == NULL) return own_lengths(a, l, err);
    FILE *f = fopen(a->lengths, "r");
    if (f == NULL) return msgl__err_set(err, MSGL_EIO, "--lengths %.180s: %m", a->lengths);
    char line[256];
    int rc = 0;
    for (int number = 1; rc == 0 && fgets(line, sizeof line, f) != NULL; number++) {
        int prompt, output;
        if (line[0] == '#' || strncmp(line, "prompt", 6) == 0) continue;
        if (sscanf(line, "%d,%d", &prompt, &output) != 2 || prompt < 1 || output < 1 ||
            prompt > 1 << 24 || output > 1 << 24) {
            rc = msgl__err_set(err, MSGL_EFORMAT, "%.150s line %d: expected PROMPT,OUTPUT lengths",
                               a->lengths, number);
        } else if (add(l, prompt, output) != 0) {
            rc = msgl__err_set(err, MSGL_ENOMEM, "out of memory");
        }
    }
    fclose(f);
    return rc;
}

// Every decode batch size once, as requests end one after the other, and a full prefill step: what
// is made when first needed is then made. On a slow machine it ends after WARM_SECONDS.
static int warm_up(msgl_llm *l, uint64_t *rng, msgl_err *err)
{
    enum { MAX = 4096, STAGGER = 128 };
    static const double WARM_SECONDS = 3;
    static int prompt[MAX], output[MAX];
    msgl_info info;
    msgl_get_info(l, &info);
    const int n = info.max_running < MAX ? info.max_running : MAX;
    double seconds;
    for (int i = 0; i < n; i++) {
        prompt[i] = 1;
        output[i] = 2 + (int)((int64_t)i * STAGGER / n);
    }
    msgl_bench_job job = {.prompt = prompt,
                          .output = output,
                          .count = n,
                          .limit_s = WARM_SECONDS,
                          .label = "warm-up"};
    int rc = msgl__bench_job_run(l, &job, rng, &seconds, NULL, err);
    job.count = n < 32 ? n : 32;
    for (int i = 0; i < job.count; i++) {
        prompt[i] = 512;
        output[i] = 1;
    }
    if (rc == 0) rc = msgl__bench_job_run(l, &job, rng, &seconds, NULL, err);
    return rc;
}

static void print(const msgl_args *a, const struct lengths *n, double *seconds, int runs)
{
    const double median = msgl__median(seconds, (size_t)runs);
    msgl_rows rows = {.format = a->format};
    const msgl_cell cells[] = {
        msgl__cell_int("requests", n->count),
        msgl__cell_int("prompt_tokens", n->prompt_sum),
        msgl__cell_int("output_tokens", n->output_sum),
        msgl__cell_int("runs", runs),
        msgl__cell_real("seconds", median, 3),
        msgl__cell_real("best_s", seconds[0], 3),
        msgl__cell_real("output_tok_per_s", (double)n->output_sum / median, 1),
        msgl__cell_real("total_tok_per_s", (double)(n->output_sum + n->prompt_sum) / median, 1)};
    msgl__cli_row(&rows, cells, (int)MSGL_COUNT(cells));
}

int msgl__bench_offline(const msgl_args *a)
{
    enum { MAX_REPEAT = 1000 };
    static double seconds[MAX_REPEAT];
    msgl_err err;
    struct lengths n = {0};
    msgl_llm *l = NULL;
    uint64_t rng = 1;
    const int runs = a->repeat > 0 ? a->repeat : 1;
    int rc = read_lengths(a, &n, &err);
    if (rc == 0) rc = msgl__bench_open(a, n.longest > 4096 ? n.longest : 4096, 0, &l, &err);
    if (rc == 0) rc = warm_up(l, &rng, &err);
    const msgl_bench_job job = {
        .prompt = n.prompt, .output = n.output, .count = n.count, .label = "tokens"};
    for (int i = 0; rc == 0 && i < runs && !msgl__cli_interrupted; i++) {
        int64_t generated;
        rc = msgl__bench_job_run(l, &job, &rng, &seconds[i], &generated, &err);
        if (rc == 0 && !msgl__cli_interrupted && generated != n.output_sum) {
            rc = msgl__err_set(&err, MSGL_EINTERNAL, "%lld tokens came, %lld were asked for",
                               (long long)generated, (long long)n.output_sum);
        }
    }
    if (rc == 0 && !msgl__cli_interrupted) print(a, &n, seconds, runs);
    msgl__free(n.prompt);
    msgl__free(n.output);
    return msgl__bench_end(l, rc, &err);
}
