// SPDX-License-Identifier: Apache-2.0
#include "kernel/limits.h"

#include <unistd.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "kernel/ladder.h"
#include "utils/clock.h"

enum { CHUNK = 1 << 20, AHEAD = 512 };            // bytes per task; bytes fetched ahead
static const size_t READ_BYTES = (size_t)1 << 30; // more than last-level caches hold

typedef struct reading {
    const char *base;
    uint64_t *sums; // one cache line per worker
    size_t streams;
} reading;

static void fill_task(void *arg, int task, int worker)
{
    (void)worker;
    uint64_t *p = (uint64_t *)((char *)arg + (size_t)task * CHUNK);
    for (size_t i = 0; i < CHUNK / sizeof *p; i++) p[i] = i;
}

// Sums one chunk as some sequential streams; the additions are far cheaper than the reads.
static void read_task(void *arg, int task, int worker)
{
    const reading *r = arg;
    const char *p = r->base + (size_t)task * CHUNK;
    const size_t each = CHUNK / r->streams;
    uint64_t s[8] = {0};
    for (size_t at = 0; at < each; at += 64) {
        for (size_t j = 0; j < r->streams; j++) {
            const uint64_t *line = (const uint64_t *)(p + j * each + at);
            __builtin_prefetch((const char *)line + AHEAD);
            for (int i = 0; i < 8; i++) s[i] += line[i];
        }
    }
    for (int i = 0; i < 8; i++) r->sums[worker * 8] += s[i];
}

static int measure_read(msgl_pool *pool, struct msgl_limits *out, double seconds)
{
    // At most an eighth of the machine's memory, so that asking for the limits is harmless.
    const size_t eighth = (size_t)sysconf(_SC_PHYS_PAGES) / 8 * (size_t)sysconf(_SC_PAGESIZE);
    const size_t size = (READ_BYTES < eighth ? READ_BYTES : eighth) / CHUNK * CHUNK;
    const int tasks = (int)(size / CHUNK);
    char *base = msgl__pages_alloc(size);
    const size_t line = 64;
    uint64_t *sums = msgl__calloc((size_t)msgl__pool_threads(pool), line);
    int rc = 0;
    if (base == NULL || sums == NULL) {
        rc = MSGL_ENOMEM;
    } else {
        msgl__pool_run(pool, tasks, fill_task, base);
        reading r = {base, sums, 1};
        const uint64_t start = msgl__now_ns();
        do {
            const uint64_t t = msgl__now_ns();
            msgl__pool_run(pool, tasks, read_task, &r);
            const double rate = (double)size / (double)(msgl__now_ns() - t);
            if (rate > out->read_gb_s) out->read_gb_s = rate;
            r.streams = r.streams == 1 ? 4 : 1; // which is faster depends on the machine
        } while ((double)(msgl__now_ns() - start) < seconds * 1e9);
    }
    msgl__free(sums);
    msgl__pages_free(base, size);
    return rc;
}

typedef struct computing {
    msgl_limits_fn fn;
    double *best; // per worker, operations per ns, one cache line each
} computing;

// Each worker's best of many short runs: another process may hold a core for a while.
static void compute_task(void *arg, int task, int worker)
{
    (void)task;
    const computing *c = arg;
    const long loops = 5000;
    const uint64_t t = msgl__now_ns();
    const double rate = c->fn(loops) * (double)loops / (double)(msgl__now_ns() - t);
    if (rate > c->best[worker * 8]) c->best[worker * 8] = rate;
}

// Sum of the workers' best rates, in GFLOP/s.
static double measure_compute(msgl_pool *pool, msgl_limits_fn fn, double *best, double seconds)
{
    const int threads = msgl__pool_threads(pool);
    computing c = {fn, best};
    double sum = 0;
    for (int i = 0; i < threads; i++) best[i * 8] = 0;
    const uint64_t start = msgl__now_ns();
    do {
        msgl__pool_run(pool, threads * 8, compute_task, &c);
    } while ((double)(msgl__now_ns() - start) < seconds * 1e9);
    for (int i = 0; i < threads; i++) sum += best[i * 8];
    return sum;
}

// The fields of the levels from 1 to `level`.
static int measure_levels(msgl_pool *pool, msgl_cpu_level level, struct msgl_limits *out,
                          double seconds)
{
    const double each = seconds / (3 * msgl__cpu_ladder.count);
    double *best = msgl__calloc((size_t)msgl__pool_threads(pool), 64);
    if (best == NULL) return MSGL_ENOMEM;
    for (int l = 1; l <= level; l++) {
        const msgl_limits_fn f32 = msgl__cpu_ladder.levels[l].limits.f32;
        const msgl_limits_fn bf16 = msgl__cpu_ladder.levels[l].limits.bf16;
        const msgl_limits_fn int8 = msgl__cpu_ladder.levels[l].limits.int8;
        out->f32_gflop_s[l] =
            f32 != NULL ? measure_compute(pool, f32, best, each) : out->f32_gflop_s[l - 1];
        out->bf16_gflop_s[l] = bf16 != NULL  ? measure_compute(pool, bf16, best, each)
                               : f32 != NULL ? out->f32_gflop_s[l]
                                             : out->bf16_gflop_s[l - 1];
        out->int8_gop_s[l] =
            int8 != NULL ? measure_compute(pool, int8, best, each) : out->int8_gop_s[l - 1];
    }
    msgl__free(best);
    return 0;
}

int msgl__measure_limits(msgl_pool *pool, msgl_cpu_level level, struct msgl_limits *out,
                         double seconds)
{
    *out = (struct msgl_limits){0};
    const int rc = measure_levels(pool, level, out, seconds);
    return rc != 0 ? rc : measure_read(pool, out, seconds / 2);
}
