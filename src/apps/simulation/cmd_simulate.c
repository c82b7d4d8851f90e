// SPDX-License-Identifier: Apache-2.0
//
// `minisgl simulate`: a trace on any number of replicas, in steps that were measured elsewhere.
#include <string.h>

#include "cli/common.h"
#include "core/attributes.h"
#include "core/err.h"
#include "apps/simulation/simulate.h"

enum { MAX_COUNTS = 32 };

static bool on_progress(void *ctx, int32_t done, int32_t total)
{
    char label[32], note[48];
    snprintf(label, sizeof label, "%d replicas", *(const int32_t *)ctx);
    snprintf(note, sizeof note, "%d / %d requests", done, total);
    msgl__cli_bar(label, (uint64_t)done, (uint64_t)total, note);
    return !msgl__cli_interrupted;
}

// What a million tokens cost on replicas that are paid for by the hour, busy or not.
static double cost_per_million(const msgl_args *a, const msgl_simulation_config *cfg,
                               const msgl_simulation_result *r, int64_t tokens)
{
    const double hours = r->wall_s / 3600 * cfg->num_replicas;
    return tokens > 0 ? a->price * hours / (double)tokens * 1e6 : 0;
}

static void print_result(const msgl_args *a, msgl_rows *rows, const msgl_simulation_config *cfg,
                         const msgl_simulation_result *r)
{
    const double wall = r->wall_s > 0 ? r->wall_s : 1e-9;
    const double prompt = r->prompt_tokens > 0 ? (double)r->prompt_tokens : 1;
    msgl_cell cells[32] = {
        msgl__cell_int("replicas", cfg->num_replicas),
        msgl__cell_text("routing", msgl__routing_name(cfg->policy)),
        msgl__cell_int("requests", r->completed),
        msgl__cell_int("failed", r->failed),
        msgl__cell_real("wall_s", r->wall_s, 3),
        msgl__cell_real("output_tok_per_s", (double)r->output_tokens / wall, 1),
        msgl__cell_real("prompt_tok_per_s", (double)r->prompt_tokens / wall, 1),
        msgl__cell_real("ttft_p50_ms", r->ttft.p50, 1),
        msgl__cell_real("ttft_p90_ms", r->ttft.p90, 1),
        msgl__cell_real("ttft_p99_ms", r->ttft.p99, 1),
        msgl__cell_real("gap_p50_ms", r->gap.p50, 2),
        msgl__cell_real("gap_p90_ms", r->gap.p90, 2),
        msgl__cell_real("gap_p99_ms", r->gap.p99, 2),
        msgl__cell_real("gap_max_ms", r->gap.max, 2),
        msgl__cell_real("e2e_p50_ms", r->e2e.p50, 1),
        msgl__cell_real("e2e_p99_ms", r->e2e.p99, 1),
        msgl__cell_int("prompt_tokens", r->prompt_tokens),
        msgl__cell_int("cached_tokens", r->cached_tokens),
        msgl__cell_int("output_tokens", r->output_tokens),
        msgl__cell_real("cache_hit_pct", 100 * (double)r->cached_tokens / prompt, 1),
        msgl__cell_real("busy_pct", 100 * r->busy, 1),
        msgl__cell_int("steps", r->steps),
        msgl__cell_int("retracted", r->retracted)};
    int n = 23;
    if (strcmp(a->engine.speculative_algorithm, "none") != 0) {
        cells[n++] = msgl__cell_int("drafted_tokens", r->drafted_tokens);
        cells[n++] = msgl__cell_int("accepted_tokens", r->accepted_tokens);
    }
    if (a->price > 0) {
        cells[n++] =
            msgl__cell_real("cost_per_m_tokens",
                            cost_per_million(a, cfg, r, r->prompt_tokens + r->output_tokens), 4);
        cells[n++] = msgl__cell_real("cost_per_m_output_tokens",
                                     cost_per_million(a, cfg, r, r->output_tokens), 4);
    }
    msgl__cli_row(rows, cells, n);
}

// What has to be said, checked before any file is read.
static int check(const msgl_args *a, msgl_err *err)
{
    if (a->step_table == NULL || a->trace == NULL) {
        return msgl__err_set(err, MSGL_EINVAL, "simulate: give --step-table FILE and --trace FILE");
    }
    if (strcmp(a->engine.speculative_algorithm, "STANDALONE") == 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--speculative-algorithm STANDALONE: what a draft model takes is not "
                             "simulated; allowed here: none, auto, NGRAM, SUFFIX");
    }
    if (a->engine.num_pages == 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "simulate: give --num-pages N, the KV pages of a replica (a server's "
                             "memory plan and its /get_server_info have them)");
    }
    return 0;
}

static int simulate(const msgl_args *a, const int *counts, int n, msgl_simulation_config *cfg,
                    msgl_err *err)
{
    msgl_rows rows = {.format = a->format};
    msgl_simulation_result r;
    int64_t failed = 0, all = 0;
    char first_error[sizeof r.first_error] = "";
    int rc = 0;
    for (int i = 0; rc == 0 && i < n; i++) {
        cfg->num_replicas = counts[i];
        rc = msgl__simulate(cfg, &r, err);
        msgl__cli_bar_clear();
        if (rc != 0) return rc;
        print_result(a, &rows, cfg, &r);
        if (failed == 0) memcpy(first_error, r.first_error, sizeof first_error);
        failed += r.failed;
        all += r.completed + r.failed;
    }
    if (failed == 0) return 0;
    return msgl__err_set(err, MSGL_ELIMIT, "%lld of %lld requests failed, the first with: %.160s",
                         (long long)failed, (long long)all, first_error);
}

int msgl__cmd_simulate(const msgl_args *a)
{
    msgl_err err;
    int counts[MAX_COUNTS];
    msgl_routing policy = MSGL_ROUTING_CACHE_AWARE;
    const int n = msgl__cli_int_list("--replicas", a->replicas, MSGL_SIMULATION_MAX_REPLICAS,
                                     counts, MAX_COUNTS, &err);
    if (n < 0 || check(a, &err) != 0) return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    (void)msgl__routing_of(a->routing_policy, &policy); // one of its row's choices
    msgl__cli_catch_interrupt();
    msgl_step_table *steps = NULL;
    msgl_trace trace = {0};
    int rc = msgl__step_table_load(a->step_table, &steps, &err);
    if (rc == 0) rc = msgl__trace_load(a->trace, a->trace_block, a->acceptance, &trace, &err);
    msgl_options o = a->engine;
    if (o.max_seq_len == 0) o.max_seq_len = trace.longest;
    msgl_simulation_config cfg = {.options = &o,
                                  .trace = &trace,
                                  .steps = steps,
                                  .policy = policy,
                                  .balance = a->balance,
                                  .clients = a->clients,
                                  .progress = on_progress};
    cfg.ctx = &cfg.num_replicas;
    if (rc == 0) rc = simulate(a, counts, n, &cfg, &err);
    msgl__trace_free(&trace);
    msgl__step_table_destroy(steps);
    if (rc == MSGL_EABORTED) return MSGL_EXIT_INTERRUPTED;
    return rc == 0 ? MSGL_EXIT_OK : msgl__cli_fail(MSGL_EXIT_FAILED, &err);
}
