// SPDX-License-Identifier: Apache-2.0
//
// `minisgl bench step`: the engine alone, driven like the scheduler drives it (two steps in
// flight), on prompts of token 0.. with sampled continuations. No scheduler, no text. With --chunk
// also steps in which a chunk of another prompt rides along with the answers; with --accept instead
// steps with drafts.

#include <string.h>

#include "apps/bench/bench.h"
#include "core/attributes.h"
#include "core/err.h"
#include "core/mem.h"
#include "core/round.h"
#include "engine/engine.h"
#include "llm/llm.h"
#include "utils/clock.h"
#include "utils/stats.h"

// Row `request` of `batch` gets consecutive pages of every span, enough for `length` tokens; of a
// window that has less for each, its share again and again.
static void place_request(msgl_step_bench *b, int request, int batch, int length)
{
    const msgl_cache_layout *c = &b->info->cache;
    for (int32_t s = 0; s < c->num_spans && c->spans[s].kind != MSGL_SPAN_STATE; s++) {
        const int32_t all = msgl__ceil_div(length, c->page_size),
                      most = c->spans[s].num_units / batch;
        const int32_t share = all < most ? all : most;
        int32_t *row = msgl__page_table_row(&msgl__engine_page_tables(b->engine)[s], request);
        for (int32_t i = 0; i < all; i++) row[i] = request * share + i % share;
    }
}

// Of answers that end with --steps tokens the last step may have drafts beyond.
static int request_length(const msgl_step_bench *b)
{
    const int drawn = b->proposes ? msgl__propose_rows(b->depth, b->topk, b->drafts) : 0;
    return b->prompt_len + b->steps + MSGL_BENCH_WARM_STEPS + 1 + b->drafts + drawn;
}

int msgl__step_bench_place(msgl_step_bench *b, int batch, msgl_err *err)
{
    const int page = b->info->page_size, length = request_length(b);
    const int64_t pages = msgl__ceil_div(length, page);
    if (length > b->info->max_seq_len || pages * batch > b->info->num_pages ||
        batch > b->info->max_running) {
        return msgl__err_set(
            err, MSGL_ELIMIT,
            "batch %d x %d tokens does not fit: %d requests, %d tokens each, %d pages "
            "of %d; see --max-running-requests, --num-pages",
            batch, length, b->info->max_running, b->info->max_seq_len, b->info->num_pages, page);
    }
    for (int32_t s = 0; s < b->info->cache.num_spans; s++) {
        const msgl_cache_span *span = &b->info->cache.spans[s];
        if (span->kind == MSGL_SPAN_STATE || span->num_units >= batch) continue;
        return msgl__err_set(err, MSGL_ELIMIT, "batch %d has no page each of the %d for windows",
                             batch, span->num_units);
    }
    int32_t *ids = msgl__malloc((size_t)b->prompt_len * sizeof *ids);
    if (ids == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    int rc = 0;
    for (int r = 0; rc == 0 && r < batch; r++) {
        place_request(b, r, batch, length);
        for (int c = 0; c < b->prompt_len; c++) {
            ids[c] = (int32_t)(((int64_t)c * 7919 + r * 104729) % b->info->vocab_size);
        }
        rc = b->runner->write_tokens(b->runner->ctx, r, 0, ids, b->prompt_len);
    }
    msgl__free(ids);
    return rc == 0 ? 0 : msgl__err_set(err, rc, "the engine refused the prompt");
}

void msgl__step_bench_add(const msgl_step_bench *b, msgl_batch *batch, int row, int cached,
                          int device)
{
    batch->reqs[batch->size++] = (msgl_batch_req){
        .uid = (uint64_t)row,
        .table_idx = row,
        .cached_len = cached,
        .device_len = device,
        .prompt_len = b->prompt_len,
        .logits_from = device < b->prompt_len ? device - cached : device - cached - 1,
        .load_state = -1,
        .adapter = b->loras > 0 ? 1 + row % b->loras : 0,
        .sample = device >= b->prompt_len,
        .sampling = msgl__sampling_params_default()};
    batch->num_tokens += device - cached;
}

// Rows [first, first + count), all alike, and of answers the chunk of the row behind them.
static int submit(msgl_step_bench *b, int slot, msgl_phase phase, int first, int count, int cached,
                  int device)
{
    msgl_batch batch = {
        .num_decode = phase == MSGL_DECODE ? count : 0, .reqs = b->reqs[slot], .step_slot = slot};
    for (int i = 0; i < count; i++) msgl__step_bench_add(b, &batch, first + i, cached, device);
    if (phase == MSGL_DECODE && b->chunk > 0)
        msgl__step_bench_add(b, &batch, first + count, 0, b->chunk);
    return b->runner->submit(b->runner->ctx, &batch);
}

static int finish(msgl_step_bench *b, int slot)
{
    msgl_step_result result;
    return b->runner->wait(b->runner->ctx, slot, &result);
}

int msgl__step_bench_prefill(msgl_step_bench *b, int batch, double *seconds)
{
    const int budget = b->info->max_prefill_tokens;
    const uint64_t start = msgl__now_ns();
    int rc = 0;
    if (b->prompt_len <= budget) {
        const int at_once = budget / b->prompt_len;
        for (int r = 0; rc == 0 && r < batch; r += at_once) {
            const int n = batch - r < at_once ? batch - r : at_once;
            rc = submit(b, 0, MSGL_PREFILL, r, n, 0, b->prompt_len);
            if (rc == 0) rc = finish(b, 0);
        }
    } else {
        for (int r = 0; rc == 0 && r < batch; r++) {
            for (int at = 0; rc == 0 && at < b->prompt_len; at += budget) {
                const int end = at + budget < b->prompt_len ? at + budget : b->prompt_len;
                rc = submit(b, 0, MSGL_PREFILL, r, 1, at, end);
                if (rc == 0) rc = finish(b, 0);
            }
        }
    }
    *seconds = (double)(msgl__now_ns() - start) / 1e9;
    return rc;
}

int msgl__step_bench_decode(msgl_step_bench *b, int batch, double *seconds)
{
    uint64_t start = 0;
    const int total = MSGL_BENCH_WARM_STEPS + b->steps;
    for (int s = 0; s <= total; s++) {
        int rc = 0;
        if (s < total) {
            const int cached = b->prompt_len + s;
            rc = submit(b, s % 2, MSGL_DECODE, 0, batch, cached, cached + 1);
        }
        if (rc == 0 && s > 0) rc = finish(b, (s - 1) % 2);
        if (rc != 0) return rc;
        if (s == MSGL_BENCH_WARM_STEPS) start = msgl__now_ns();
    }
    *seconds = (double)(msgl__now_ns() - start) / 1e9;
    return 0;
}

static void print_row(const msgl_step_bench *b, msgl_rows *rows, const char *phase, int batch,
                      double ms, double tokens, double bytes, const msgl_expert_hits *hits)
{
    msgl_cell cells[9] = {msgl__cell_text("phase", phase),
                          msgl__cell_int("batch", batch),
                          msgl__cell_int("prompt_len", b->prompt_len),
                          msgl__cell_int("chunk", b->chunk),
                          msgl__cell_real("ms_per_step", ms, 3),
                          msgl__cell_real("tok_per_s", tokens / ms * 1e3, 1),
                          msgl__cell_real("gb_per_s", bytes / ms / 1e6, 1)};
    int n = 7;
    if (b->num_loras > 0) cells[n++] = msgl__cell_int("adapters", b->loras);
    if (b->info->num_experts > 0) cells[n++] = msgl__cell_hits(hits);
    msgl__cli_row(rows, cells, n);
}

// Which experts are hit, in steps that are not timed: of prompts, and of answers with their chunk.
static int count_experts(msgl_step_bench *b, int batch, msgl_expert_hits *prompts,
                         msgl_expert_hits *answers)
{
    msgl_err err;
    double seconds;
    if (b->info->num_experts == 0) return 0;
    memset(b->hits, 0, sizeof b->hits);
    int rc = msgl__engine_count_experts(b->engine, b->hits, &err);
    if (rc == 0) rc = msgl__step_bench_prefill(b, batch, &seconds);
    *prompts = b->hits[MSGL_PREFILL];
    b->hits[MSGL_PREFILL] = (msgl_expert_hits){0};
    if (rc == 0) rc = msgl__step_bench_decode(b, batch, &seconds);
    *answers = b->hits[b->chunk > 0 ? MSGL_PREFILL : MSGL_DECODE];
    return rc == 0 ? msgl__engine_count_experts(b->engine, NULL, &err) : rc;
}

// Bytes of K and V, and of states, that a token behind `context` others reads.
static double kv_read(const msgl_engine_info *info, double context)
{
    double sum = 0;
    for (int32_t s = 0; s < info->cache.num_spans; s++) {
        const msgl_cache_span *span = &info->cache.spans[s];
        const double bytes = (double)info->span_bytes[s];
        const bool whole = span->window < 0 || context <= span->window;
        const double tokens = whole ? context : span->window + 1.0;
        sum += span->kind == MSGL_SPAN_STATE ? bytes : bytes / info->page_size * tokens;
    }
    return sum;
}

enum { MAX_REPEAT = 1000 };

// Milliseconds of prompts and of a step of answers.
typedef struct step_times {
    double prefill[MAX_REPEAT], decode[MAX_REPEAT];
} step_times;

static int measure_once(msgl_step_bench *b, int batch, step_times *t, int i)
{
    double seconds;
    int rc = msgl__step_bench_prefill(b, batch, &seconds);
    t->prefill[i] = seconds * 1e3;
    if (rc == 0) rc = msgl__step_bench_decode(b, batch, &seconds);
    t->decode[i] = seconds * 1e3 / b->steps;
    return rc;
}

static int print_measured(msgl_step_bench *b, int repeat, int batch, step_times *t, msgl_rows *rows)
{
    msgl_expert_hits prompts = {0}, answers = {0};
    const int rc = count_experts(b, batch, &prompts, &answers);
    if (rc != 0) return rc;
    // What a decode step has to read: weights once, and each request's K and V.
    const double kv = kv_read(b->info, b->prompt_len + MSGL_BENCH_WARM_STEPS + b->steps / 2.0);
    const double ms = msgl__median(t->prefill, (size_t)repeat);
    if (b->chunk == 0) {
        print_row(b, rows, "prefill", batch, ms, (double)batch * b->prompt_len,
                  msgl__bench_weights(b->info, &prompts), &prompts);
    }
    print_row(b, rows, b->chunk > 0 ? "mixed" : "decode", batch,
              msgl__median(t->decode, (size_t)repeat), batch,
              msgl__bench_weights(b->info, &answers) + batch * kv, &answers);
    return 0;
}

// With adapters in turns without any and with all of them.
static int measure(msgl_step_bench *b, int repeat, int batch, msgl_rows *rows, msgl_err *err)
{
    static step_times times[2];
    const int modes = b->num_loras > 0 ? 2 : 1;
    int rc = msgl__step_bench_place(b, batch + (b->chunk > 0), err);
    if (rc != 0) return rc;
    for (int i = 0; i < repeat && rc == 0; i++) {
        for (int m = 0; m < modes && rc == 0; m++) {
            b->loras = m * b->num_loras;
            rc = measure_once(b, batch, &times[m], i);
        }
    }
    for (int m = 0; m < modes && rc == 0; m++) {
        b->loras = m * b->num_loras;
        rc = print_measured(b, repeat, batch, &times[m], rows);
    }
    return rc == 0 ? 0 : msgl__err_set(err, rc, "the engine failed: %s", msgl_status_text(rc));
}

// What of the command line decides what is measured.
typedef struct step_lists {
    int batches[64], chunks[64]; // chunks: none, then those of --chunk
    int num_batches, num_chunks, largest;
    msgl_accept_list accept; // count 0: steps without drafts
} step_lists;

static int read_lists(const msgl_args *a, msgl_step_bench *b, step_lists *l, msgl_err *err)
{
    *l = (step_lists){.num_chunks = 1, .largest = 1};
    l->num_batches = msgl__cli_int_list("--batch", a->batch, 4096, l->batches, 64, err);
    if (l->num_batches < 0) return l->num_batches;
    for (int i = 0; i < l->num_batches; i++) {
        if (l->batches[i] > l->largest) l->largest = l->batches[i];
    }
    if (a->chunk != NULL) { // of a prompt of this length
        const int n =
            msgl__cli_int_list("--chunk", a->chunk, b->prompt_len, l->chunks + 1, 63, err);
        if (n < 0) return n;
        l->num_chunks += n;
    }
    if (a->accept == NULL) {
        if (!msgl__args_given(a, &a->drafts)) return 0;
        return msgl__err_set(err, MSGL_EINVAL, "--drafts: only with --accept");
    }
    if (a->chunk != NULL || a->grid) {
        return msgl__err_set(err, MSGL_EINVAL, "--accept: not with --%s",
                             a->grid ? "grid" : "chunk");
    }
    b->drafts = a->drafts;
    return msgl__accept_list_parse(a->accept, &l->accept, err);
}

// Engines take drafts where something makes some: here nothing does, or a draft model.
static int choose_drafts(msgl_step_bench *b, msgl_options *o, msgl_err *err)
{
    static const char *const models[] = {"STANDALONE", "EAGLE3", "NEXTN"};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        b->proposes = b->proposes || strcmp(o->speculative_algorithm, models[i]) == 0;
    }
    if (!b->proposes) o->speculative_algorithm = "SUFFIX";
    b->topk = o->speculative_eagle_topk;
    b->depth = b->topk > 1 && o->speculative_num_steps > 0 ? o->speculative_num_steps : b->drafts;
    const int most = b->topk > 1 ? msgl__propose_depth(b->topk) : MSGL_MAX_PROPOSALS;
    if (b->depth <= b->drafts && (!b->proposes || b->depth <= most)) return 0;
    return msgl__err_set(err, MSGL_ELIMIT,
                         "%d drafts one behind the other of %d in all; allowed: up to %d, and as "
                         "many as --drafts (--speculative-num-steps)",
                         b->depth, b->drafts, most);
}

// Reads --lora-paths, and says how long each took; or makes --dummy-loras.
static int load_adapters(msgl_step_bench *b, const msgl_args *a, msgl_err *err)
{
    msgl_lora_path all[MSGL_MAX_LIST];
    char *text = NULL;
    int rc = msgl__cli_loras(a, all, &text, err);
    for (int i = 0; i < a->loras.count && rc == 0; i++) {
        const uint64_t start = msgl__now_ns();
        rc = msgl__runner_load_adapter(b->runner, i, all[i].path, err);
        if (rc == 0) {
            fprintf(stderr, "adapter %s: read in %.1f ms\n", all[i].name,
                    (double)(msgl__now_ns() - start) / 1e6);
        }
    }
    const bool attention = strcmp(a->dummy_lora_modules, "attention") == 0;
    for (int i = 0; i < a->dummy_loras && rc == 0; i++) {
        rc = msgl__engine_dummy_adapter(b->engine, i, a->dummy_lora_rank, attention, err);
    }
    b->num_loras = a->dummy_loras > 0 ? a->dummy_loras : a->loras.count;
    msgl_free(text);
    return rc;
}

// Room for them, however few the flags leave: none waits here.
static int take_loras(const msgl_args *a, msgl_options *o, msgl_err *err)
{
    const int n = a->dummy_loras > 0 ? a->dummy_loras : a->loras.count;
    if (a->dummy_loras > 0 && a->loras.count > 0) {
        return msgl__err_set(err, MSGL_EINVAL, "--dummy-loras: not with --lora-paths");
    }
    if (n == 0) return 0;
    o->enable_lora = 1;
    if (o->max_loaded_loras < n) o->max_loaded_loras = n;
    if (o->max_loras_per_batch < n) o->max_loras_per_batch = n;
    return 0;
}

static int open_engine(msgl_step_bench *b, const msgl_args *a, const step_lists *l, msgl_err *err)
{
    msgl_options o;
    char *dir = NULL, attention[128];
    int rc = msgl__cli_options(a, &o, &dir, attention, err);
    if (rc == 0 && b->drafts > 0) rc = choose_drafts(b, &o, err);
    if (rc == 0) rc = take_loras(a, &o, err);
    const int beside = l->num_chunks > 1, length = request_length(b);
    if (rc == 0 && o.num_pages == 0) { // no more memory than the measurement needs
        o.num_pages = (l->largest + beside) * msgl__ceil_div(length, o.page_size);
    }
    if (rc == 0 && o.max_seq_len == 0) o.max_seq_len = length;
    // The request of a chunk beside as many answers as run by default.
    if (rc == 0 && o.max_running == l->largest) o.max_running += beside;
    if (rc == 0) rc = msgl__engine_create(&o, NULL, &b->engine, err);
    msgl_free(dir);
    if (rc != 0) return rc;
    b->runner = msgl__engine_runner(b->engine);
    if (b->proposes && b->depth > b->runner->max_propose) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "--drafts %d: allowed: up to %d, a head's draft each", b->depth,
                             (int)b->runner->max_propose);
    }
    b->info = msgl__engine_info(b->engine);
    for (int s = 0; s < 2; s++) {
        b->reqs[s] = msgl__calloc((size_t)b->info->max_running, sizeof *b->reqs[s]);
        if (b->reqs[s] == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    }
    return load_adapters(b, a, err);
}

int msgl__bench_step(const msgl_args *a)
{
    msgl_err err;
    step_lists l;
    msgl_step_bench b = {.prompt_len = a->prompt_len > 0 ? a->prompt_len : 512,
                         .steps = a->steps > 0 ? a->steps : 64};
    if (a->grid && a->accept == NULL) return msgl__bench_grid(a);
    if (read_lists(a, &b, &l, &err) != 0) return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    const int repeat = a->repeat > 0 ? a->repeat : 3;
    msgl_rows rows = {.format = a->format};
    int rc = open_engine(&b, a, &l, &err);
    if (rc == 0 && l.accept.count > 0) {
        fprintf(stderr, "minisgl: acceptance is set, by random numbers, and not measured\n");
    }
    for (int i = 0; rc == 0 && i < l.num_batches; i++) {
        if (l.accept.count > 0) {
            rc = msgl__bench_accept(&b, &l.accept, l.batches[i], repeat, &rows, &err);
            continue;
        }
        for (int c = 0; rc == 0 && c < l.num_chunks; c++) {
            b.chunk = l.chunks[c];
            rc = measure(&b, repeat, l.batches[i], &rows, &err);
        }
    }
    if (b.engine != NULL) msgl__engine_destroy(b.engine);
    for (int s = 0; s < 2; s++) msgl__free(b.reqs[s]);
    return rc == 0 ? MSGL_EXIT_OK : msgl__cli_fail(MSGL_EXIT_FAILED, &err);
}
