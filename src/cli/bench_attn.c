// SPDX-License-Identifier: Apache-2.0
//
// `minisgl bench attn`: every backend that runs here on the same shapes, one layer at a time,
// beside what the machine's memory and arithmetic allow.
#include <string.h>

#include "attention/bench.h"
#include "cli/bench.h"
#include "core/attributes.h"
#include "core/err.h"
#include "kernel/limits.h"

// Batch x cached + new tokens, query heads / KV heads (head_dim 128, bf16).
static const struct {
    const char *name;
    msgl_phase phase;
    int batch, cached, extend, q, kv;
} SHAPES[] = {
    {"decode 1x512 16/8", MSGL_DECODE, 1, 511, 1, 16, 8},
    {"decode 1x2048 16/8", MSGL_DECODE, 1, 2047, 1, 16, 8},
    {"decode 1x8192 32/8", MSGL_DECODE, 1, 8191, 1, 32, 8},
    {"decode 16x1024 16/8", MSGL_DECODE, 16, 1023, 1, 16, 8},
    {"decode 16x1024 32/4", MSGL_DECODE, 16, 1023, 1, 32, 4},
    {"prefill 1x512 16/8", MSGL_PREFILL, 1, 0, 512, 16, 8},
    {"prefill 1x2048 16/8", MSGL_PREFILL, 1, 0, 2048, 16, 8},
    {"prefill 8x128 16/8", MSGL_PREFILL, 8, 0, 128, 16, 8},
    {"prefill 1x256 after 1792 16/8", MSGL_PREFILL, 1, 1792, 256, 16, 8},
};

static int measure(const msgl_args *a, const msgl_attn_desc *d, size_t shape, const msgl_kernels *k,
                   msgl_pool *pool, const struct msgl_limits *limits, msgl_rows *rows,
                   msgl_err *err)
{
    int page = (int)a->page_size;
    if (d->page_rule == MSGL_PAGE_SET) {
        char warning[256];
        const msgl_attn_choice choice = {d, d};
        page = msgl__attn_page_size(&choice, page, warning);
    }
    const msgl_attn_bench_shape s = {.phase = SHAPES[shape].phase,
                                     .batch = SHAPES[shape].batch,
                                     .cached_len = SHAPES[shape].cached,
                                     .extend_len = SHAPES[shape].extend,
                                     .num_q_heads = SHAPES[shape].q,
                                     .num_kv_heads = SHAPES[shape].kv,
                                     .head_dim = 128,
                                     .page_size = page,
                                     .kv_dtype = MSGL_BF16,
                                     .window = -1,
                                     .shuffled = true};
    msgl_attn_bench_result r;
    const int rc = msgl__attn_bench(d, &s, k, pool, 0.3, &r, err);
    if (rc != 0) return rc;
    const double gb = r.bytes / r.forward_ms / 1e6, gflop = r.flops / r.forward_ms / 1e6;
    const double by_memory = gb / limits->read_gb_s;
    const double by_compute = gflop / limits->bf16_gflop_s[k->level];
    const msgl_cell cells[] = {
        msgl__cell_text("backend", d->name),
        msgl__cell_text("shape", SHAPES[shape].name),
        msgl__cell_int("page_size", page),
        msgl__cell_real("plan_ms", r.prepare_ms, 4),
        msgl__cell_real("layer_ms", r.forward_ms, 4),
        msgl__cell_real("gb_per_s", gb, 1),
        msgl__cell_real("gflop_per_s", gflop, 0),
        msgl__cell_real("share_of_limit", by_memory > by_compute ? by_memory : by_compute, 2)};
    msgl__cli_row(rows, cells, (int)MSGL_COUNT(cells));
    return 0;
}

// Whether `name` stands in the comma-separated list (NULL: all).
static bool wanted(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = list; p != NULL; p = strchr(p, ',')) {
        if (*p == ',') p++;
        if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == '\0')) return true;
    }
    return list == NULL;
}

int msgl__bench_attn_cmd(const msgl_args *a)
{
    msgl_err err;
    msgl_cpu_level level;
    msgl_kernels kernels;
    msgl_pool *pool = NULL;
    const int threads = a->threads > 0 ? (int)a->threads : msgl__physical_cores();
    int rc = msgl__cpu_level_select(msgl__cli_cpu_level(), &level, &err);
    if (rc == 0) rc = msgl__pool_create(threads, &pool, &err);
    if (rc != 0) return msgl__cli_fail(MSGL_EXIT_FAILED, &err);
    msgl__kernels_init_cpu(&kernels, level);
    struct msgl_limits limits = {0};
    msgl__measure_limits(pool, level, &limits, 2);
    msgl_rows rows = {.format = a->format};
    int count, used = 0;
    const msgl_attn_desc *const *all = msgl__attn_backends(&count);
    for (size_t s = 0; rc == 0 && s < MSGL_COUNT(SHAPES); s++) {
        for (int i = 0; rc == 0 && i < count; i++) {
            if (!wanted(a->backends, all[i]->name) || !(all[i]->devices & 1u << MSGL_DEVICE_CPU))
                continue;
            used++;
            rc = measure(a, all[i], s, &kernels, pool, &limits, &rows, &err);
        }
    }
    if (rc == 0 && used == 0) {
        rc = msgl__err_set(&err, MSGL_EINVAL,
                           "--backends %s: none of these; `minisgl info` lists them", a->backends);
    }
    msgl__pool_destroy(pool);
    return rc == 0 ? MSGL_EXIT_OK : msgl__cli_fail(MSGL_EXIT_FAILED, &err);
}
