// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/bench.h"

#include <string.h>

#include "core/attributes.h"
#include "core/err.h"
#include "kernel/limits.h"

static const struct {
    const char *name;
    int (*run)(const msgl_args *a);
    bool opens_model; // in this process
} SUBS[] = {
    {"step", msgl__bench_step, true},        {"decode", msgl__bench_decode, true},
    {"prefill", msgl__bench_prefill, true},  {"offline", msgl__bench_offline, true},
    {"serve", msgl__bench_serve_cmd, false}, {"attn", msgl__bench_attn_cmd, false},
    {"startup", msgl__bench_startup, false}, {"speculation", msgl__bench_speculation, true},
    {"limits", msgl__bench_limits, false},
};

int msgl__bench_limits(const msgl_args *a)
{
    msgl_err err;
    msgl_pool *pool;
    const int threads = a->engine.threads > 0 ? a->engine.threads : msgl__physical_cores();
    if (msgl__pool_create(threads, &pool, &err) != 0) return msgl__cli_fail(MSGL_EXIT_FAILED, &err);
    struct msgl_limits limits = {0};
    const msgl_cpu_level level = msgl__cpu_level_detect();
    msgl__measure_limits(pool, level, &limits, 4);
    msgl__pool_destroy(pool);
    msgl_rows rows = {.format = a->format};
    for (int l = 0; l <= level; l++) {
        const msgl_cell cells[] = {msgl__cell_text("level", msgl__cpu_level_name(l)),
                                   msgl__cell_int("threads", threads),
                                   msgl__cell_real("read_gb_s", limits.read_gb_s, 1),
                                   msgl__cell_real("f32_gflop_s", limits.f32_gflop_s[l], 0),
                                   msgl__cell_real("bf16_gflop_s", limits.bf16_gflop_s[l], 0),
                                   msgl__cell_real("int8_gop_s", limits.int8_gop_s[l], 0)};
        msgl__cli_row(&rows, cells, (int)MSGL_COUNT(cells));
    }
    return MSGL_EXIT_OK;
}

bool msgl__bench_opens_model(const char *sub)
{
    for (size_t i = 0; sub != NULL && i < MSGL_COUNT(SUBS); i++) {
        if (strcmp(sub, SUBS[i].name) == 0) return SUBS[i].opens_model;
    }
    return false;
}

int msgl__cmd_bench(const msgl_args *a)
{
    for (size_t i = 0; a->sub != NULL && i < MSGL_COUNT(SUBS); i++) {
        if (strcmp(a->sub, SUBS[i].name) == 0) return SUBS[i].run(a);
    }
    msgl_err err;
    msgl__err_set(&err, MSGL_EINVAL,
                  "bench %s: allowed: step, decode, prefill, offline, serve, speculation, attn, "
                  "startup, limits",
                  a->sub != NULL ? a->sub : "what?");
    return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
}
