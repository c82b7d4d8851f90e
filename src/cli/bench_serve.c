// SPDX-License-Identifier: Apache-2.0
//
// `minisgl bench serve`: the load client's command line.
#include "server/bench_serve.h"

#include "cli/bench.h"
#include "core/attributes.h"
#include "core/err.h"

// Prompts are random ids below this: valid in every vocabulary, so nothing has to be asked.
#define PROMPT_VOCAB 1000

static void on_progress(void *ctx, int done, int total)
{
    (void)ctx;
    char note[32];
    snprintf(note, sizeof note, "%d / %d", done, total);
    msgl__cli_bar("requests", (uint64_t)done, (uint64_t)total, note);
}

int msgl__bench_serve_cmd(const msgl_args *a)
{
    msgl_err err;
    msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
    msgl_bench_serve_result r;
    cfg.url = a->url;
    cfg.concurrency = (int)a->concurrency;
    cfg.requests = a->requests > 0 ? (int)a->requests : 16;
    cfg.prompt_tokens = a->prompt_len > 0 ? (int)a->prompt_len : 127;
    cfg.vocab_size = PROMPT_VOCAB;
    cfg.max_tokens = a->max_tokens > 0 ? (int)a->max_tokens : 64;
    cfg.temperature = 0;
    cfg.ignore_eos = true;
    cfg.progress = on_progress;
    int rc = msgl__bench_serve(&cfg, &r, &err);
    msgl__cli_bar_clear();
    if (rc == 0 && r.failed > 0) {
        rc = msgl__err_set(&err, MSGL_EIO, "%d of %d requests failed, the first with: %.180s",
                           r.failed, r.failed + r.completed, r.first_error);
    }
    if (rc != 0) return msgl__cli_fail(MSGL_EXIT_FAILED, &err);
    msgl_rows rows = {.format = a->format};
    const msgl_cell cells[] = {msgl__cell_int("requests", r.completed),
                               msgl__cell_int("concurrency", cfg.concurrency),
                               msgl__cell_int("prompt_tokens", r.prompt_tokens),
                               msgl__cell_int("cached_tokens", r.cached_tokens),
                               msgl__cell_int("output_tokens", r.output_tokens),
                               msgl__cell_real("wall_s", r.wall_s, 3),
                               msgl__cell_real("output_tok_per_s", r.output_tok_per_s, 1),
                               msgl__cell_real("total_tok_per_s", r.total_tok_per_s, 1),
                               msgl__cell_real("ttft_p50_ms", r.ttft.p50, 1),
                               msgl__cell_real("ttft_p95_ms", r.ttft.p95, 1),
                               msgl__cell_real("itl_p50_ms", r.gap.p50, 2),
                               msgl__cell_real("itl_p95_ms", r.gap.p95, 2),
                               msgl__cell_real("itl_max_ms", r.gap.max, 2),
                               msgl__cell_real("e2e_p50_ms", r.e2e.p50, 1)};
    msgl__cli_row(&rows, cells, (int)MSGL_COUNT(cells));
    return MSGL_EXIT_OK;
}
