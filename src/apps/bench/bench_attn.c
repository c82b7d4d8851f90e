// SPDX-License-Identifier: Apache-2.0
//
// `minisgl bench attn`: every backend that runs here on the same shapes, one layer at a time,
// beside what the machine's memory and arithmetic allow; linear attention has rows of its own, as
// backend `delta`. On a GPU the shapes are those of the public comparison with FlashInfer and
// FlashAttention, timed by events, launch included; decode also inside a captured graph, as it runs
// in the engine.
#include <time.h>

#include "apps/bench/bench.h"
#include "apps/bench/bench_attn.h"
#include "attention/bench.h"
#include "attention/bench_delta.h"
#include "core/attributes.h"
#include "core/err.h"
#include "device/devices.h"
#include "kernel/limits.h"

// Batch x cached + new tokens, query heads / KV heads (head_dim 128; no KV heads: latent attention
// over vectors of 576 whose first 512 are V), page sizes to measure (0-terminated; none: 1).
struct shape {
    const char *name;
    msgl_phase phase;
    int batch, cached, extend, q, kv;
    int pages[2];
};

static const struct shape CPU_SHAPES[] = {
    {"1x512 16/8", MSGL_DECODE, 1, 511, 1, 16, 8, {0}},
    {"1x2048 16/8", MSGL_DECODE, 1, 2047, 1, 16, 8, {0}},
    {"1x8192 32/8", MSGL_DECODE, 1, 8191, 1, 32, 8, {0}},
    {"16x1024 16/8", MSGL_DECODE, 16, 1023, 1, 16, 8, {0}},
    {"16x1024 32/4", MSGL_DECODE, 16, 1023, 1, 32, 4, {0}},
    {"1x512 16/8", MSGL_PREFILL, 1, 0, 512, 16, 8, {0}},
    {"1x2048 16/8", MSGL_PREFILL, 1, 0, 2048, 16, 8, {0}},
    {"8x128 16/8", MSGL_PREFILL, 8, 0, 128, 16, 8, {0}},
    {"1x256 after 1792 16/8", MSGL_PREFILL, 1, 1792, 256, 16, 8, {0}},
    {"1x8192 16 latent", MSGL_DECODE, 1, 8191, 1, 16, 0, {0}},
    {"16x1024 16 latent", MSGL_DECODE, 16, 1023, 1, 16, 0, {0}},
    {"1x512 16 latent", MSGL_PREFILL, 1, 0, 512, 16, 0, {0}},
};

// Drafts of one request: the same context with ever more new rows, the first shape of one.
static const struct shape CPU_DRAFTS[] = {
    {"1x1 after 8191 16/8", MSGL_PREFILL, 1, 8191, 1, 16, 8, {0}},
    {"1x2 after 8190 16/8", MSGL_PREFILL, 1, 8190, 2, 16, 8, {0}},
    {"1x4 after 8188 16/8", MSGL_PREFILL, 1, 8188, 4, 16, 8, {0}},
    {"1x8 after 8184 16/8", MSGL_PREFILL, 1, 8184, 8, 16, 8, {0}},
    {"1x16 after 8176 16/8", MSGL_PREFILL, 1, 8176, 16, 16, 8, {0}},
};

static const struct shape GPU_SHAPES[] = {
    {"1x4096 32/8", MSGL_PREFILL, 1, 0, 4096, 32, 8, {16, 128}},
    {"1x16384 32/8", MSGL_PREFILL, 1, 0, 16384, 32, 8, {16, 128}},
    {"4x4096 16/8", MSGL_PREFILL, 4, 0, 4096, 16, 8, {16, 128}},
    {"16x1024 16/8", MSGL_PREFILL, 16, 0, 1024, 16, 8, {16, 128}},
    {"64x256 16/8", MSGL_PREFILL, 64, 0, 256, 16, 8, {16, 128}},
    {"1x1024 after 15360 32/8", MSGL_PREFILL, 1, 15360, 1024, 32, 8, {16, 128}},
    {"1x8192 32/8", MSGL_DECODE, 1, 8191, 1, 32, 8, {16}},
    {"16x1024 32/8", MSGL_DECODE, 16, 1023, 1, 32, 8, {16}},
    {"64x1024 16/8", MSGL_DECODE, 64, 1023, 1, 16, 8, {16}},
    {"256x1024 16/8", MSGL_DECODE, 256, 1023, 1, 16, 8, {16}},
    {"256x1024 40/8", MSGL_DECODE, 256, 1023, 1, 40, 8, {16}},
    {"64x8192 32/8", MSGL_DECODE, 64, 8191, 1, 32, 8, {16}},
    {"1x8192 128 latent", MSGL_DECODE, 1, 8191, 1, 128, 0, {64}},
    {"16x4096 128 latent", MSGL_DECODE, 16, 4095, 1, 128, 0, {64}},
    {"64x4096 128 latent", MSGL_DECODE, 64, 4095, 1, 128, 0, {64}},
    {"128x8192 128 latent", MSGL_DECODE, 128, 8191, 1, 128, 0, {64}},
    {"1x8192 16 latent", MSGL_DECODE, 1, 8191, 1, 16, 0, {64}},
    {"16x4096 16 latent", MSGL_DECODE, 16, 4095, 1, 16, 0, {64}},
    {"64x4096 16 latent", MSGL_DECODE, 64, 4095, 1, 16, 0, {64}},
    {"256x1024 16 latent", MSGL_DECODE, 256, 1023, 1, 16, 0, {64}},
    {"128x8192 16 latent", MSGL_DECODE, 128, 8191, 1, 16, 0, {64}},
    {"16x1024 16 latent", MSGL_PREFILL, 16, 0, 1024, 16, 0, {64}},
};

// The same with a cache of E4M3 instead of bf16.
static const struct shape GPU_FP8_SHAPES[] = {
    {"64x8192 32/8 fp8", MSGL_DECODE, 64, 8191, 1, 32, 8, {16}},
    {"64x4096 16 latent fp8", MSGL_DECODE, 64, 4095, 1, 16, 0, {64}},
    {"128x8192 16 latent fp8", MSGL_DECODE, 128, 8191, 1, 16, 0, {64}},
    {"64x4096 128 latent fp8", MSGL_DECODE, 64, 4095, 1, 128, 0, {64}},
};

// Linear attention with the heads of Qwen3-Next, or by its name of Kimi Linear, and Mamba-2 with
// those of Granite 4 H Small: batch x new tokens of prompts, batch of answers.
struct delta_shape {
    const char *name;
    msgl_phase phase;
    int batch, tokens;
    msgl_delta_bench_rule rule;
};

static const struct delta_shape CPU_DELTA[] = {
    {"1", MSGL_DECODE, 1, 1, MSGL_BENCH_GATED_DELTA},
    {"16", MSGL_DECODE, 16, 1, MSGL_BENCH_GATED_DELTA},
    {"1x512", MSGL_PREFILL, 1, 512, MSGL_BENCH_GATED_DELTA},
    {"16 kimi", MSGL_DECODE, 16, 1, MSGL_BENCH_KIMI_DELTA},
    {"1x512 kimi", MSGL_PREFILL, 1, 512, MSGL_BENCH_KIMI_DELTA},
    {"16 mamba", MSGL_DECODE, 16, 1, MSGL_BENCH_MAMBA},
    {"1x512 mamba", MSGL_PREFILL, 1, 512, MSGL_BENCH_MAMBA},
};

static const struct delta_shape GPU_DELTA[] = {
    {"1x4096", MSGL_PREFILL, 1, 4096, MSGL_BENCH_GATED_DELTA},
    {"1x16384", MSGL_PREFILL, 1, 16384, MSGL_BENCH_GATED_DELTA},
    {"16x1024", MSGL_PREFILL, 16, 1024, MSGL_BENCH_GATED_DELTA},
    {"64x256", MSGL_PREFILL, 64, 256, MSGL_BENCH_GATED_DELTA},
    {"1", MSGL_DECODE, 1, 1, MSGL_BENCH_GATED_DELTA},
    {"16", MSGL_DECODE, 16, 1, MSGL_BENCH_GATED_DELTA},
    {"64", MSGL_DECODE, 64, 1, MSGL_BENCH_GATED_DELTA},
    {"256", MSGL_DECODE, 256, 1, MSGL_BENCH_GATED_DELTA},
    {"1x4096 kimi", MSGL_PREFILL, 1, 4096, MSGL_BENCH_KIMI_DELTA},
    {"16x1024 kimi", MSGL_PREFILL, 16, 1024, MSGL_BENCH_KIMI_DELTA},
    {"1 kimi", MSGL_DECODE, 1, 1, MSGL_BENCH_KIMI_DELTA},
    {"64 kimi", MSGL_DECODE, 64, 1, MSGL_BENCH_KIMI_DELTA},
    {"1x4096 mamba", MSGL_PREFILL, 1, 4096, MSGL_BENCH_MAMBA},
    {"16x1024 mamba", MSGL_PREFILL, 16, 1024, MSGL_BENCH_MAMBA},
    {"1 mamba", MSGL_DECODE, 1, 1, MSGL_BENCH_MAMBA},
    {"64 mamba", MSGL_DECODE, 64, 1, MSGL_BENCH_MAMBA},
};

static const char DELTA[] = "delta"; // the name that --backends has for it

// What the machine allows, in GB/s and GFLOP/s.
struct ceiling {
    double gb_s, gflop_s;
};

// Seconds of samples. A GPU under matrix products is limited by its power and clocks lower the
// longer it works, so each case there is a short run of a card that rested, of 20 samples like the
// peers' figures or a hundredth of a second: it then does not depend on the case before.
static const double CPU_SECONDS = 0.3, GPU_SECONDS = 0.01;

// Seconds to measure for, after that rest.
static double ready(const msgl_attn_bench_env *env)
{
    const struct timespec pause = {.tv_nsec = 300 * 1000 * 1000};
    if (env->device == NULL) return CPU_SECONDS;
    nanosleep(&pause, NULL);
    return GPU_SECONDS;
}

// page: 0 where there are none; one_row_ms: what the same takes with one row, 0 if that says
// nothing.
static void print_row(const char *backend, msgl_phase phase, const char *shape, int page,
                      const msgl_attn_bench_result *r, double one_row_ms,
                      const struct ceiling *limit, msgl_rows *rows)
{
    const double graph = r->graph_ms > 0 ? 1 / r->graph_ms : 0; // 0: not measured
    const double gb = r->bytes / r->forward_ms / 1e6, gflop = r->flops / r->forward_ms / 1e6;
    const msgl_cell cells[] = {
        msgl__cell_text("backend", backend),
        msgl__cell_text("phase", phase == MSGL_DECODE ? "decode" : "prefill"),
        msgl__cell_text("shape", shape),
        msgl__cell_int("page_size", page),
        msgl__cell_real("plan_ms", r->prepare_ms, 4),
        msgl__cell_real("layer_ms", r->forward_ms, 4),
        msgl__cell_real("graph_ms", r->graph_ms, 5),
        msgl__cell_real("gb_per_s", gb, 1),
        msgl__cell_real("graph_gb_per_s", r->bytes * graph / 1e6, 1),
        msgl__cell_real("tflop_per_s", gflop / 1e3, 3),
        msgl__cell_real("graph_tflop_per_s", r->flops * graph / 1e9, 3),
        msgl__cell_real("share_of_memory", gb / limit->gb_s, 2),
        msgl__cell_real("share_of_compute", gflop / limit->gflop_s, 2),
        msgl__cell_real("to_one_row", one_row_ms > 0 ? r->forward_ms / one_row_ms : 0, 2)};
    msgl__cli_row(rows, cells, (int)MSGL_COUNT(cells));
}

// *one_row_ms, if not NULL, is what print_row takes; 0 before its first shape, which sets it.
static int measure(const msgl_attn_bench_env *env, const msgl_attn_desc *d, const struct shape *s,
                   msgl_dtype kv, int page, const struct ceiling *limit, double *one_row_ms,
                   msgl_rows *rows, msgl_err *err)
{
    if (d->page_rule == MSGL_PAGE_SET) {
        char warning[256];
        const msgl_attn_choice choice = {d, d};
        const int32_t taken = msgl__attn_page_size(&choice, page, warning);
        if (taken != page && env->device != NULL) return 0; // another shape's
        page = taken;
    }
    const bool latent = s->kv == 0;
    const msgl_attn_bench_shape shape = {.phase = s->phase,
                                         .batch = s->batch,
                                         .cached_len = s->cached,
                                         .extend_len = s->extend,
                                         .num_q_heads = s->q,
                                         .num_kv_heads = latent ? 1 : s->kv,
                                         .head_dim = latent ? 576 : 128,
                                         .v_dim = latent ? 512 : 0,
                                         .page_size = page,
                                         .kv_dtype = kv,
                                         .window = -1,
                                         .shuffled = true};
    msgl_attn_bench_result r;
    const int rc = msgl__attn_bench(d, &shape, env, ready(env), &r, err);
    if (rc != 0) return rc;
    if (one_row_ms != NULL && *one_row_ms <= 0) *one_row_ms = r.forward_ms;
    print_row(d->name, s->phase, s->name, page, &r, one_row_ms != NULL ? *one_row_ms : 0, limit,
              rows);
    return 0;
}

static int measure_delta(const msgl_attn_bench_env *env, const struct delta_shape *s,
                         const struct ceiling *limit, msgl_rows *rows, msgl_err *err)
{
    const bool mamba = s->rule == MSGL_BENCH_MAMBA, kimi = s->rule == MSGL_BENCH_KIMI_DELTA;
    const msgl_delta_bench_shape shape = {.phase = s->phase,
                                          .batch = s->batch,
                                          .tokens = s->tokens,
                                          .k_heads = mamba  ? 1
                                                     : kimi ? 32
                                                            : 16,
                                          .v_heads = mamba ? 128 : 32,
                                          .k_dim = 128,
                                          .v_dim = mamba ? 64 : 128,
                                          .rule = s->rule};
    msgl_attn_bench_result r;
    const int rc = msgl__delta_bench(&shape, env, ready(env), &r, err);
    if (rc == 0) print_row(DELTA, s->phase, s->name, 0, &r, 0, limit, rows);
    return rc;
}

bool msgl__bench_wanted(const char *list, const char *name)
{
    return list == NULL || msgl__cli_lists(list, name);
}

// Linear attention; nothing without --backends wanting it or a kernel for it.
static int compare_delta(const msgl_args *a, const msgl_attn_bench_env *env,
                         const struct ceiling *limit, msgl_rows *rows, int *known, msgl_err *err)
{
    const bool gpu = env->device != NULL;
    const struct delta_shape *shapes = gpu ? GPU_DELTA : CPU_DELTA;
    const size_t num = gpu ? MSGL_COUNT(GPU_DELTA) : MSGL_COUNT(CPU_DELTA);
    int rc = 0;
    if (!msgl__bench_wanted(a->backends, DELTA)) return 0;
    ++*known;
    for (size_t i = 0; rc == 0 && i < num; i++) {
        rc = measure_delta(env, &shapes[i], limit, rows, err);
        if (rc == MSGL_EUNSUPPORTED) rc = 0;
    }
    return rc;
}

// What compare goes through: shapes with one type of cache.
struct shapes {
    const struct shape *all;
    size_t num;
    msgl_dtype kv;
};

// Shape i / 2 with its page size i % 2 on the backends of the device that --backends wants.
static int compare_shape(const msgl_args *a, const msgl_attn_bench_env *env,
                         const struct ceiling *limit, const struct shapes *of, size_t i,
                         msgl_rows *rows, int *known, msgl_err *err)
{
    const struct shape *s = &of->all[i / 2];
    const bool given = msgl__args_given(a, &a->engine.page_size);
    const int page = given ? a->engine.page_size : s->pages[i % 2];
    int rc = 0;
    if (i % 2 == 1 && (given || page == 0)) return 0;
    for (const msgl_attn_desc *const *d = env->backends->all; rc == 0 && *d != NULL; d++) {
        if (!msgl__bench_wanted(a->backends, (*d)->name)) continue;
        ++*known;
        rc = measure(env, *d, s, of->kv, page > 0 ? page : 1, limit, NULL, rows, err);
        if (rc == MSGL_EUNSUPPORTED) rc = 0; // if all are: the last one's reason is the error
    }
    return rc;
}

// Drafts, backend by backend of the CPU.
static int compare_drafts(const msgl_args *a, const msgl_attn_bench_env *env,
                          const struct ceiling *limit, msgl_rows *rows, msgl_err *err)
{
    const int page = msgl__args_given(a, &a->engine.page_size) ? a->engine.page_size : 1;
    int rc = 0;
    for (const msgl_attn_desc *const *d = env->backends->all; rc == 0 && *d != NULL; d++) {
        double one_row_ms = 0;
        if (!msgl__bench_wanted(a->backends, (*d)->name)) continue;
        for (size_t i = 0; rc == 0 && i < MSGL_COUNT(CPU_DRAFTS); i++) {
            rc = measure(env, *d, &CPU_DRAFTS[i], MSGL_BF16, page, limit, &one_row_ms, rows, err);
            if (rc == MSGL_EUNSUPPORTED) rc = 0;
        }
    }
    return rc;
}

// All shapes on all backends of the device that --backends wants.
static int compare(const msgl_args *a, const msgl_attn_bench_env *env, const struct ceiling *limit,
                   msgl_err *err)
{
    static const struct shapes CPU[] = {{CPU_SHAPES, MSGL_COUNT(CPU_SHAPES), MSGL_BF16}};
    static const struct shapes GPU[] = {{GPU_SHAPES, MSGL_COUNT(GPU_SHAPES), MSGL_BF16},
                                        {GPU_FP8_SHAPES, MSGL_COUNT(GPU_FP8_SHAPES), MSGL_E4M3}};
    const struct shapes *all = env->device != NULL ? GPU : CPU;
    const size_t num = env->device != NULL ? MSGL_COUNT(GPU) : MSGL_COUNT(CPU);
    msgl_rows rows = {.format = a->format};
    int known = 0, rc = 0;
    for (size_t t = 0; t < num; t++) {
        for (size_t i = 0; rc == 0 && i < all[t].num * 2; i++) {
            rc = compare_shape(a, env, limit, &all[t], i, &rows, &known, err);
        }
    }
    if (rc == 0 && env->device == NULL) rc = compare_drafts(a, env, limit, &rows, err);
    if (rc == 0) rc = compare_delta(a, env, limit, &rows, &known, err);
    if (rc == 0 && rows.count == 0 && known > 0) return MSGL_EUNSUPPORTED;
    if (rc == 0 && known == 0) {
        rc = msgl__err_set(err, MSGL_EINVAL,
                           "--backends %s: none of these; `minisgl info` lists them, and delta is "
                           "linear attention",
                           a->backends);
    }
    return rc;
}

static int on_cpu(const msgl_args *a, msgl_err *err)
{
    msgl_cpu_level level;
    msgl_kernels kernels;
    msgl_pool *pool = NULL;
    const int threads = a->engine.threads > 0 ? a->engine.threads : msgl__physical_cores();
    int rc = msgl__cpu_level_select(msgl__cli_cpu_level(), &level, err);
    if (rc == 0) rc = msgl__pool_create(threads, &pool, err);
    if (rc != 0) return rc;
    msgl__kernels_init_cpu(&kernels, level);
    struct msgl_limits limits = {0};
    msgl__measure_limits(pool, level, &limits, 2);
    const struct ceiling limit = {limits.read_gb_s, limits.bf16_gflop_s[level]};
    const msgl_attn_bench_env env = {
        .backends = &msgl__attn_cpu, .kernels = &kernels, .threads = pool};
    rc = compare(a, &env, &limit, err);
    msgl__pool_destroy(pool);
    return rc;
}

static int on_gpu(const msgl_args *a, const msgl_device_choice *choice, msgl_err *err)
{
    // Of an H200: what a large copy and a large product of random bf16 reach there.
    static const struct ceiling LIMIT = {4200, 700e3};
    msgl_kernels kernels = {0};
    const msgl_device_options options = {.ordinal = choice->ordinal};
    msgl_attn_bench_env env = {.backends = choice->plugin->backends, .kernels = &kernels};
    int rc = choice->plugin->kernels(&options, &kernels, err);
    if (rc == 0) rc = choice->plugin->open(&options, &env.device, NULL, err);
    if (rc != 0) return rc;
    if (a->write_table != NULL) {
        rc = msgl__bench_attn_table(a, &env, a->write_table, err);
    } else {
        rc = compare(a, &env, &LIMIT, err);
    }
    env.device->ops->destroy(env.device);
    return rc;
}

int msgl__bench_attn_cmd(const msgl_args *a)
{
    msgl_err err;
    msgl_device_choice choice;
    int rc = msgl__device_choose(a->engine.device, 0, 1, &choice, &err);
    if (rc == 0 && choice.plugin != &msgl__cpu_plugin) {
        rc = on_gpu(a, &choice, &err);
    } else if (rc == 0 && a->write_table != NULL) {
        rc = msgl__err_set(&err, MSGL_EUNSUPPORTED, "--write-table is for GPUs%s%s",
                           choice.note[0] != '\0' ? "; " : "", choice.note);
    } else if (rc == 0) {
        rc = on_cpu(a, &err);
    }
    return rc == 0 ? MSGL_EXIT_OK : msgl__cli_fail(MSGL_EXIT_FAILED, &err);
}
