// SPDX-License-Identifier: Apache-2.0
//
// `minisgl bench step --grid`: steps of all kinds, small and large, for `minisgl simulate` to
// interpolate between. Like bench step it drives the engine alone with two steps in flight; each
// step is computed again and again at the same place, since only its shape matters.
#include <string.h>

#include "apps/bench/bench.h"
#include "core/err.h"
#include "core/mem.h"
#include "core/round.h"
#include "engine/engine.h"
#include "utils/clock.h"
#include "utils/stats.h"

enum { MAX_LIST = 32, MAX_STEPS = 64, STEP_SLOTS = 2 };
static const double ENOUGH_MS = 200; // of one measurement

typedef struct grid {
    msgl_engine *engine;
    const msgl_runner *runner;
    const msgl_engine_info *info;
    msgl_batch_req *reqs[STEP_SLOTS]; // [max_running]
    int batches[MAX_LIST], chunks[MAX_LIST];
    int num_batches, num_chunks;
    int longest;  // context and prefix
    int32_t *ids; // [longest and the longest chunk]
    int repeat;
    msgl_rows rows;
} grid;

// A step of `answers` requests behind `context` tokens each, and of `chunk` tokens behind `prefix`.
typedef struct shape {
    int answers, context, chunk, prefix;
} shape;

static int length_of(const shape *s, int request)
{
    return request < s->answers ? s->context + 1 : s->prefix + s->chunk;
}

// Pages of each request's own, one after the other. False: the pool has too few.
static bool place(const grid *g, const shape *s)
{
    const msgl_cache_layout *c = &g->info->cache;
    for (int32_t span = 0; span < c->num_spans; span++) {
        if (c->spans[span].kind == MSGL_SPAN_STATE) continue;
        int64_t page = 0;
        for (int r = 0; r < s->answers + (s->chunk > 0); r++) {
            const int length = length_of(s, r);
            int32_t *row = msgl__page_table_row(&msgl__engine_page_tables(g->engine)[span], r);
            const int64_t pages = msgl__ceil_div(length, c->page_size);
            if (page + pages > c->spans[span].num_units) {
                if (span == 0) return false;
                page = 0; // of a window: those of others again
            }
            const int64_t most = c->spans[span].num_units;
            for (int64_t i = 0; i < pages; i++) row[i] = (int32_t)((page + i) % most);
            page += pages;
        }
    }
    return true;
}

// The requests' tokens, and with them where their pages are: a GPU has a page table of its own,
// and reads one place again and again where it has nothing. Any ids will do that are in the
// vocabulary.
static int write_requests(const grid *g, const shape *s)
{
    int rc = 0;
    for (int r = 0; rc == 0 && r < s->answers + (s->chunk > 0); r++) {
        const int length = length_of(s, r);
        for (int i = 0; i < length; i++) {
            g->ids[i] = (int32_t)(((int64_t)i * 7919 + r * 104729) % g->info->vocab_size);
        }
        rc = g->runner->write_tokens(g->runner->ctx, r, 0, g->ids, length);
    }
    return rc;
}

static int submit(const grid *g, const shape *s, int step_slot)
{
    const int size = s->answers + (s->chunk > 0);
    msgl_batch b = {.size = size,
                    .num_decode = s->answers,
                    .num_tokens = s->answers + s->chunk,
                    .reqs = g->reqs[step_slot],
                    .step_slot = step_slot};
    for (int i = 0; i < size; i++) {
        const bool answer = i < s->answers;
        const int cached = answer ? s->context : s->prefix, more = answer ? 1 : s->chunk;
        b.reqs[i] = (msgl_batch_req){.uid = (uint64_t)i,
                                     .table_idx = i,
                                     .cached_len = cached,
                                     .device_len = cached + more,
                                     .prompt_len = answer ? cached : cached + more,
                                     .logits_from = more - 1,
                                     .load_state = -1,
                                     .sample = true,
                                     .sampling = msgl__sampling_params_default()};
    }
    return g->runner->submit(g->runner->ctx, &b);
}

// `steps` of them; *ms each.
static int run(const grid *g, const shape *s, int steps, double *ms)
{
    const uint64_t start = msgl__now_ns();
    for (int i = 0; i <= steps; i++) {
        msgl_step_result result;
        int rc = i < steps ? submit(g, s, i % STEP_SLOTS) : 0;
        if (rc == 0 && i > 0) {
            rc = g->runner->wait(g->runner->ctx, (i - 1) % STEP_SLOTS, &result);
        }
        if (rc != 0) return rc;
    }
    *ms = (double)(msgl__now_ns() - start) / 1e6 / steps;
    return 0;
}

static int measure(grid *g, const shape *s, msgl_err *err)
{
    enum { MAX_REPEAT = 1000 };
    static double ms[MAX_REPEAT];
    if (s->answers + (s->chunk > 0) > g->info->max_running || !place(g, s)) return 0;
    double once = 1;
    int rc = write_requests(g, s);
    if (rc == 0) rc = run(g, s, STEP_SLOTS, &once); // warms up; says how many are worth measuring
    const double many = rc == 0 ? ENOUGH_MS / once + 1 : 1;
    const int steps = many < MAX_STEPS ? (int)many : MAX_STEPS;
    for (int i = 0; rc == 0 && i < g->repeat; i++) rc = run(g, s, steps, &ms[i]);
    if (rc != 0) return msgl__err_set(err, rc, "the engine failed: %s", msgl_status_text(rc));
    const msgl_cell cells[] = {
        msgl__cell_text("phase", s->chunk == 0     ? "decode"
                                 : s->answers == 0 ? "prefill"
                                                   : "mixed"),
        msgl__cell_int("batch", s->answers),
        msgl__cell_int("context", s->context),
        msgl__cell_int("chunk", s->chunk),
        msgl__cell_int("prefix", s->prefix),
        msgl__cell_int("tile", g->runner->tile),
        msgl__cell_real("ms_per_step", msgl__median(ms, (size_t)g->repeat), 4)};
    msgl__cli_row(&g->rows, cells, (int)(sizeof cells / sizeof cells[0]));
    return 0;
}

// What the scheduler would take of so many prompt tokens beside answers: whole tiles of both
// together (scheduler/pace.h), without the last one that a few rows more would need.
static int beside(const grid *g, int answers, int chunk)
{
    const int tile = g->runner->tile;
    const int whole = tile > 0 ? (answers + chunk) / tile * tile - answers : 0;
    return whole > 0 && whole >= chunk / 2 ? whole : chunk;
}

static int measure_all(grid *g, msgl_err *err)
{
    const int eighth = msgl__ceil_div(g->longest, 8), half = msgl__ceil_div(g->longest, 2);
    const int contexts[] = {eighth, half, g->longest};
    const int prefixes[] = {0, half, g->longest};
    int rc = 0;
    for (int i = 0; i < g->num_batches; i++) {
        for (int c = 0; rc == 0 && c < 3; c++) {
            rc = measure(g, &(shape){.answers = g->batches[i], .context = contexts[c]}, err);
        }
    }
    for (int i = 0; i < g->num_chunks; i++) {
        for (int p = 0; rc == 0 && p < 3; p++) {
            rc = measure(g, &(shape){.chunk = g->chunks[i], .prefix = prefixes[p]}, err);
        }
    }
    for (int i = 0; i < g->num_batches; i++) {
        for (int c = 0; rc == 0 && c < g->num_chunks; c++) {
            rc = measure(g,
                         &(shape){.answers = g->batches[i],
                                  .context = contexts[1],
                                  .chunk = beside(g, g->batches[i], g->chunks[c])},
                         err);
        }
    }
    return rc;
}

static int largest(const int *list, int n)
{
    int most = 0;
    for (int i = 0; i < n; i++) most = list[i] > most ? list[i] : most;
    return most;
}

static int open_engine(grid *g, const msgl_args *a, msgl_err *err)
{
    msgl_options o;
    char *dir = NULL, attention[128];
    const int length = g->longest + largest(g->chunks, g->num_chunks);
    int rc = msgl__cli_options(a, &o, &dir, attention, err);
    if (rc == 0 && o.max_seq_len == 0) o.max_seq_len = length;
    // The request of a chunk beside as many answers as run by default.
    if (rc == 0 && o.max_running == largest(g->batches, g->num_batches)) o.max_running++;
    if (rc == 0) rc = msgl__engine_create(&o, NULL, &g->engine, err);
    msgl_free(dir);
    if (rc != 0) return rc;
    g->runner = msgl__engine_runner(g->engine);
    g->info = msgl__engine_info(g->engine);
    if (length > g->info->max_seq_len) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "--prompt-len %d and chunks of %d tokens; the limit is %d tokens",
                             g->longest, length - g->longest, g->info->max_seq_len);
    }
    for (int i = 0; i < STEP_SLOTS; i++) {
        g->reqs[i] = msgl__calloc((size_t)g->info->max_running, sizeof *g->reqs[i]);
        if (g->reqs[i] == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    }
    g->ids = msgl__calloc((size_t)length, sizeof *g->ids);
    return g->ids != NULL ? 0 : msgl__err_set(err, MSGL_ENOMEM, "out of memory");
}

int msgl__bench_grid(const msgl_args *a)
{
    msgl_err err;
    grid g = {.longest = a->prompt_len > 0 ? a->prompt_len : 1024,
              .repeat = a->repeat > 0 ? a->repeat : 3,
              .rows = {.format = a->format}};
    const char *batches = msgl__args_given(a, &a->batch) ? a->batch : "1,2,4,8,16";
    g.num_batches = msgl__cli_int_list("--batch", batches, 4096, g.batches, MAX_LIST, &err);
    if (g.num_batches < 0) return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    g.num_chunks = msgl__cli_int_list("--chunk", a->chunk != NULL ? a->chunk : "1,16,64,256,1024",
                                      a->engine.max_prefill_tokens, g.chunks, MAX_LIST, &err);
    if (g.num_chunks < 0) return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    int rc = open_engine(&g, a, &err);
    if (rc == 0) rc = measure_all(&g, &err);
    if (g.engine != NULL) msgl__engine_destroy(g.engine);
    for (int i = 0; i < STEP_SLOTS; i++) msgl__free(g.reqs[i]);
    msgl__free(g.ids);
    return rc == 0 ? MSGL_EXIT_OK : msgl__cli_fail(MSGL_EXIT_FAILED, &err);
}
