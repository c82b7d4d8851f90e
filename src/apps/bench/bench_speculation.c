// SPDX-License-Identifier: Apache-2.0
//
// `minisgl bench speculation`: what drafts bring on prompts, one request at a time. Each prompt is
// answered with drafts and without, in turns, by one engine: a request without takes the same steps
// as in an engine without --speculative-algorithm. Times are those of decoding, from an answer's
// first token to its last.
//
// Every request has a salt of its own, so that none finds the answer of another: SUFFIX looks into
// recent answers, and would else find the very answer that it guesses at.
#include <stdio.h>
#include <string.h>

#include "apps/bench/bench.h"
#include "cli/run_line.h"
#include "core/err.h"
#include "core/mem.h"
#include "llm/llm.h"
#include "utils/clock.h"
#include "utils/file.h"
#include "utils/json_write.h"
#include "utils/random.h"
#include "utils/stats.h"

enum { MAX_REPEAT = 1000, CLASS_SIZE = 32, SEED = 1, MAX_FILE = 1 << 30 };

// The share of drafts that were right from which a prompt counts as one that repeats.
static const double MANY = 0.7;

// An answer, as it came once.
typedef struct answer {
    uint64_t first_ns, last_ns; // of its tokens
    uint64_t hash;              // of them
    int64_t tokens, drafted, accepted;
    int status;
    char error[160];
} answer;

typedef struct prompt {
    msgl_run_line *line;
    char class[CLASS_SIZE];
    double ratios[MAX_REPEAT]; // of decode times, without drafts to with
    answer sum[2];             // without, with: tokens and drafts of all repeats
    double seconds[2];
    bool alike; // the same tokens, always
} prompt;

typedef struct spec_bench {
    const msgl_args *args;
    msgl_llm *llm;
    msgl_run_common common;
    prompt **prompts; // [count]
    int count, repeat;
    uint64_t salt;
} spec_bench;

// ---- the file ----

static int bad_line(const spec_bench *b, int64_t number, const char *why, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EFORMAT, "%.80s: line %lld: %.150s", b->args->dataset,
                         (long long)number, why);
}

// Takes "class" out of a line, which is then one of `minisgl run --input`.
static int take_class(json_t *o, char class[CLASS_SIZE])
{
    const json_t *v = json_object_get(o, "class");
    const char *text = v == NULL ? "prompts" : json_string_value(v);
    if (text == NULL || *text == '\0' || strlen(text) >= CLASS_SIZE) return MSGL_EFORMAT;
    (void)snprintf(class, CLASS_SIZE, "%s", text);
    json_object_del(o, "class");
    return 0;
}

static int read_line(spec_bench *b, const char *text, size_t len, int64_t number, msgl_err *err)
{
    json_error_t where;
    json_t *o = msgl__run_line_json(text, len, &where);
    if (!json_is_object(o)) {
        json_decref(o);
        return bad_line(b, number, "not a JSON object", err);
    }
    prompt *p = msgl__calloc(1, sizeof *p);
    prompt **all = msgl__reallocarray(b->prompts, (size_t)b->count + 1, sizeof *all);
    if (all != NULL) b->prompts = all;
    if (p == NULL || all == NULL) {
        msgl__free(p);
        json_decref(o);
        return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    }
    b->prompts[b->count++] = p;
    p->alike = true;
    int rc = take_class(o, p->class);
    if (rc != 0) (void)bad_line(b, number, "class: allowed: a text of 1 to 31 bytes", err);
    char *rest = rc == 0 ? msgl__json_text(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (rc != 0) return rc;
    if (rest != NULL) {
        p->line = msgl__run_line_parse(rest, strlen(rest), 0, false, &b->common);
    }
    msgl__free(rest);
    if (p->line == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    return p->line->error_status == 0 ? 0 : bad_line(b, number, p->line->error, err);
}

static int read_prompts(spec_bench *b, msgl_err *err)
{
    const char *path = b->args->dataset;
    char *text = NULL;
    size_t len = 0;
    int rc = msgl__file_read(path, MAX_FILE, &text, &len, err);
    int64_t number = 1;
    for (size_t at = 0; rc == 0 && at < len; number++) {
        const size_t n = strcspn(text + at, "\n"); // the file ends with a zero, and may have others
        if (strspn(text + at, " \t\r") < n) rc = read_line(b, text + at, n, number, err);
        at += n + 1;
    }
    msgl__free(text);
    if (rc == 0 && b->count == 0) {
        rc = msgl__err_set(err, MSGL_EFORMAT, "--dataset-path %.160s: no prompts", path);
    }
    return rc;
}

// ---- answers ----

static int on_piece(void *ctx, const msgl_piece *p)
{
    answer *a = ctx;
    if (p->token >= 0) {
        a->last_ns = msgl__now_ns();
        if (a->tokens++ == 0) a->first_ns = a->last_ns;
        a->hash = msgl__mix_bits(a->hash + (uint64_t)p->token);
    }
    if (p->finish == MSGL_FAILED) {
        a->status = p->status;
        (void)snprintf(a->error, sizeof a->error, "%s", p->error);
    }
    return msgl__cli_interrupted;
}

static int ask(spec_bench *b, prompt *p, bool with, answer *out, msgl_err *err)
{
    msgl_msg_stats before, after;
    *out = (answer){0};
    msgl__llm_set_salt(b->llm, ++b->salt);
    p->line->params.speculative = with ? -1 : 0;
    msgl__llm_stats(b->llm, &before);
    int rc = msgl__run_line_submit_to(p->line, b->llm, on_piece, out, err);
    if (rc == 0) rc = msgl_run(b->llm, err);
    if (rc == 0 && out->status != 0) rc = msgl__err_set(err, out->status, "%s", out->error);
    if (rc == 0 && msgl__cli_interrupted) rc = msgl__err_set(err, MSGL_EABORTED, "interrupted");
    msgl__llm_stats(b->llm, &after);
    out->drafted = (int64_t)(after.drafted_tokens - before.drafted_tokens);
    out->accepted = (int64_t)(after.accepted_tokens - before.accepted_tokens);
    return rc;
}

// Both contenders, in the order that `turn` says.
static int contest(spec_bench *b, prompt *p, int repeat, int turn, msgl_err *err)
{
    answer got[2];
    double per_token[2] = {0, 0};
    int rc = 0;
    for (int i = 0; rc == 0 && i < 2; i++) {
        const int with = (i + turn) % 2;
        answer *a = &got[with];
        rc = ask(b, p, with, a, err);
        if (rc != 0) return rc;
        p->sum[with].tokens += a->tokens;
        p->sum[with].drafted += a->drafted;
        p->sum[with].accepted += a->accepted;
        const double seconds = (double)(a->last_ns - a->first_ns) / 1e9;
        p->seconds[with] += seconds;
        per_token[with] = a->tokens > 1 ? seconds / (double)(a->tokens - 1) : 0;
    }
    p->ratios[repeat] = per_token[1] > 0 ? per_token[0] / per_token[1] : 1;
    p->alike = p->alike && got[0].hash == got[1].hash;
    return 0;
}

static int measure(spec_bench *b, msgl_err *err)
{
    answer warm;
    int rc = 0;
    for (int with = 0; rc == 0 && with < 2; with++) rc = ask(b, b->prompts[0], with, &warm, err);
    for (int r = 0; rc == 0 && r < b->repeat; r++) {
        for (int i = 0; rc == 0 && i < b->count; i++) {
            rc = contest(b, b->prompts[i], r, r + i, err);
            msgl__cli_bar("prompts", (uint64_t)(r * b->count + i), (uint64_t)(b->repeat * b->count),
                          b->prompts[i]->class);
        }
    }
    msgl__cli_bar_clear();
    return rc;
}

// ---- rows ----

static double share(int64_t part, int64_t all)
{
    return all > 0 ? (double)part / (double)all : 0;
}

static bool is_in(const prompt *p, const char *class, bool many)
{
    if (many) return share(p->sum[1].accepted, p->sum[1].drafted) > MANY;
    return class == NULL || strcmp(p->class, class) == 0;
}

// The prompts of a class; class NULL: all, or with `many` those of which drafts were right.
static int print_row(const spec_bench *b, msgl_rows *rows, const char *name, const char *class,
                     bool many, msgl_err *err)
{
    double *ratios = msgl__reallocarray(NULL, (size_t)b->count, sizeof *ratios);
    double *all = msgl__reallocarray(NULL, (size_t)b->repeat, sizeof *all);
    if (ratios == NULL || all == NULL) {
        msgl__free(ratios);
        msgl__free(all);
        return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    }
    int n = 0, alike = 0;
    int64_t tokens = 0, drafted = 0, accepted = 0, behind_first = 0, behind_without = 0;
    double seconds[2] = {0, 0};
    for (int i = 0; i < b->count; i++) {
        const prompt *p = b->prompts[i];
        if (!is_in(p, class, many)) continue;
        memcpy(all, p->ratios, (size_t)b->repeat * sizeof *all);
        ratios[n++] = msgl__median(all, (size_t)b->repeat);
        alike += p->alike;
        tokens += p->sum[1].tokens;
        behind_first += p->sum[1].tokens - b->repeat;
        behind_without += p->sum[0].tokens - b->repeat;
        drafted += p->sum[1].drafted;
        accepted += p->sum[1].accepted;
        for (int k = 0; k < 2; k++) seconds[k] += p->seconds[k];
    }
    const double median = n > 0 ? msgl__median(ratios, (size_t)n) : 0;
    const double without = seconds[0] > 0 ? (double)behind_without / seconds[0] : 0;
    const double with = seconds[1] > 0 ? (double)behind_first / seconds[1] : 0;
    const msgl_cell cells[] = {
        msgl__cell_text("class", name),
        msgl__cell_int("prompts", n),
        msgl__cell_real("tokens", share(tokens, (int64_t)n * b->repeat), 1),
        msgl__cell_real("drafts", share(drafted, (int64_t)n * b->repeat), 1),
        msgl__cell_real("accepted_pct", 100 * share(accepted, drafted), 1),
        msgl__cell_real("tokens_per_step", share(behind_first, behind_first - accepted), 3),
        msgl__cell_real("tok_per_s_without", without, 1),
        msgl__cell_real("tok_per_s", with, 1),
        msgl__cell_real("speedup", median, 3),
        msgl__cell_real("least", n > 0 ? ratios[0] : 0, 3),
        msgl__cell_real("most", n > 0 ? ratios[n - 1] : 0, 3),
        msgl__cell_int("same_answers", alike)};
    msgl__cli_row(rows, cells, (int)(sizeof cells / sizeof cells[0]));
    msgl__free(ratios);
    msgl__free(all);
    return 0;
}

static int print_all(const spec_bench *b, msgl_err *err)
{
    msgl_rows rows = {.format = b->args->format};
    int rc = 0;
    for (int i = 0; rc == 0 && i < b->count; i++) {
        const char *class = b->prompts[i]->class;
        int first = 0;
        while (!is_in(b->prompts[first], class, false)) first++;
        if (first == i) rc = print_row(b, &rows, class, class, false, err);
    }
    if (rc == 0) rc = print_row(b, &rows, "all", NULL, false, err);
    if (rc == 0) rc = print_row(b, &rows, "over 70 % accepted", NULL, true, err);
    return rc;
}

// ---- all of it ----

static int open_model(spec_bench *b, msgl_err *err)
{
    const msgl_args *a = b->args;
    msgl_options o;
    msgl_params params;
    msgl_info info;
    char *dir = NULL, attention[128];
    int rc = msgl__cli_options(a, &o, &dir, attention, err);
    if (rc == 0 && strcmp(o.speculative_algorithm, "none") == 0) o.speculative_algorithm = "SUFFIX";
    if (rc == 0) rc = msgl_open(&o, &b->llm, err);
    msgl_free(dir);
    if (rc != 0) return rc;
    msgl__cli_catch_interrupt();
    msgl_get_info(b->llm, &info);
    msgl__cli_params(a, b->llm, &params);
    if (!msgl__args_given(a, &a->sampling.temperature)) params.temperature = 0;
    if (!params.has_seed) { // contenders have to get the same answers
        params.seed = SEED;
        params.has_seed = 1;
    }
    msgl__run_common_init(&b->common, &params, "model", a->engine.model_dir, info.vocab_size);
    b->common.chat = msgl__llm_templates(b->llm) != NULL;
    return 0;
}

int msgl__bench_speculation(const msgl_args *a)
{
    msgl_err err;
    spec_bench b = {.args = a, .repeat = a->repeat > 0 ? a->repeat : 3};
    if (a->dataset == NULL) {
        msgl__err_set(&err, MSGL_EINVAL, "bench speculation: give --dataset-path FILE");
        return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    }
    int rc = open_model(&b, &err);
    if (rc == 0) rc = read_prompts(&b, &err);
    if (rc == 0) rc = measure(&b, &err);
    if (rc == 0) rc = print_all(&b, &err);
    for (int i = 0; i < b.count; i++) {
        msgl__run_line_free(b.prompts[i]->line);
        msgl__free(b.prompts[i]);
    }
    msgl__free(b.prompts);
    return msgl__bench_end(b.llm, rc, &err);
}
