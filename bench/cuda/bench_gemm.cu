// SPDX-License-Identifier: Apache-2.0
//
// Times of the products of Qwen3-0.6B, Qwen3-14B (linear) and Qwen3-30B-A3B (grouped) against
// max(bytes / 4.2 TB/s, operations / 700 TFLOP/s). Every run of a captured graph uses other weights
// than the runs before it, so that the L2 does not hold them.
#include <cuda_bf16.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/cuda/noise.cuh"
#include "cuda/device_api.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/narrow_sm90.h"
#include "cuda/gemm/table.cuh"
#include "cuda/gemm/wide_sm90.h"

typedef struct shape {
    const char *name;
    int n, k;
    bool norm, gated, accumulate, f32_out, fused;
    int max_m;
} shape;

static const shape SMALL[] = {
    {"qkv", 4096, 1024, false, false, false, false, false, 16384},
    {"o", 1024, 2048, false, false, true, false, false, 16384},
    {"gate_up", 6144, 1024, false, false, false, false, false, 16384},
    {"down", 1024, 3072, false, false, true, false, false, 16384},
    {"lm_head", 151936, 1024, false, false, false, true, false, 256},
    {"gate_up+silu", 6144, 1024, false, true, false, false, false, 16384},
    {"  one kernel", 6144, 1024, false, true, false, false, true, 16384},
    {"norm+qkv", 4096, 1024, true, false, false, false, false, 16384},
    {"norm+gate_up+silu", 6144, 1024, true, true, false, false, false, 16384},
};
static const shape LARGE[] = {
    {"qkv", 7168, 5120, false, false, false, false, false, 16384},
    {"o", 5120, 5120, false, false, true, false, false, 16384},
    {"gate_up", 34816, 5120, false, false, false, false, false, 16384},
    {"down", 5120, 17408, false, false, true, false, false, 16384},
    {"lm_head", 151936, 5120, false, false, false, true, false, 256},
    {"gate_up+silu", 34816, 5120, false, true, false, false, false, 16384},
    {"  one kernel", 34816, 5120, false, true, false, false, true, 16384},
    {"norm+qkv", 7168, 5120, true, false, false, false, false, 16384},
    {"norm+gate_up+silu", 34816, 5120, true, true, false, false, false, 16384},
};
static const int32_t MS[] = {1, 8, 16, 32, 64, 128, 256, 1024, 4096, 16384};
enum { NUM_MS = sizeof MS / sizeof MS[0], MAX_SETS = 64, REPLAYS = 7 };

typedef struct bench {
    msgl_device *device;
    msgl_cuda_device *d;
    msgl_exec x;
    msgl_arena scratch, activations; // activations: of tune
    cudaEvent_t begin, end;
    char *pool; // weights, inputs, outputs
    size_t pool_bytes;
} bench;

static void check(const bench *b, const char *what)
{
    const cudaError_t code = cudaDeviceSynchronize();
    if (code == cudaSuccess && b->x.status == 0 && b->device->fault.code == 0) return;
    fprintf(stderr, "bench_gemm: %s: %s %s\n", what, cudaGetErrorString(code),
            b->device->fault.text);
    exit(1);
}

// Median time in microseconds of one of `num` calls, each made by issue(b, arg, i).
static float time_us(bench *b, void (*issue)(bench *, void *, int), void *arg, int num)
{
    issue(b, arg, 0); // loads kernels
    check(b, "first run");
    msgl_err err;
    b->device->ops->graph_begin(b->device);
    for (int i = 0; i < num; i++) issue(b, arg, i);
    msgl_graph *g = b->device->ops->graph_end(b->device, &err);
    if (g == NULL) {
        fprintf(stderr, "bench_gemm: %s\n", err.text);
        exit(1);
    }
    float us[REPLAYS];
    b->device->ops->graph_launch(b->device, g);
    for (int r = 0; r < REPLAYS; r++) {
        (void)cudaEventRecord(b->begin, b->d->stream);
        b->device->ops->graph_launch(b->device, g);
        (void)cudaEventRecord(b->end, b->d->stream);
        check(b, "replay");
        (void)cudaEventElapsedTime(&us[r], b->begin, b->end);
        us[r] *= 1000.0f / num;
        for (int i = r; i > 0 && us[i] < us[i - 1]; i--) {
            const float swap = us[i];
            us[i] = us[i - 1];
            us[i - 1] = swap;
        }
    }
    b->device->ops->graph_destroy(b->device, g);
    return us[REPLAYS / 2];
}

typedef struct linear_sets {
    msgl_linear_call calls[MAX_SETS];
    msgl_weight weights[MAX_SETS];
} linear_sets;

static void issue_linear(bench *b, void *arg, int i)
{
    msgl__cuda_linear(&b->x, &((linear_sets *)arg)->calls[i]);
}

static void issue_fused(bench *b, void *arg, int i)
{
    if (!msgl__cuda_wide_sm90(&b->x, &((linear_sets *)arg)->calls[i], NULL)) b->x.status = -1;
}

static size_t pad(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

// Sets of weights side by side in the pool. All read the same input and write the same output: in a
// step the kernel in front has just made the one, and the residual is never far.
static int place_linear(bench *b, const shape *s, int m, linear_sets *sets, float *norm)
{
    const size_t w = pad((size_t)s->n * s->k * 2), in = pad((size_t)m * s->k * 2);
    const size_t out = pad((size_t)m * s->n * 4);
    int num = (int)(((size_t)400 << 20) / w) + 2;
    if (num > MAX_SETS) num = MAX_SETS;
    if ((double)m * s->n * s->k > 1e11 && num > 2) num = 2;
    for (int i = 0; i < num; i++) {
        char *at = b->pool + in + out + (size_t)i * w;
        msgl_linear_call *c = &sets->calls[i];
        memset(c, 0, sizeof *c);
        sets->weights[i] = {&msgl__cuda_formats[MSGL_W_BF16], s->n, s->k, at};
        c->w = &sets->weights[i];
        c->in = b->pool;
        c->ld_in = (size_t)s->k;
        c->m = m;
        c->norm = s->norm ? norm : NULL;
        c->norm_eps = 1e-6f;
        c->gated = s->gated;
        c->accumulate = s->accumulate;
        c->f32_out = s->f32_out;
        c->out = b->pool + in;
        c->ld_out = (size_t)(s->gated ? s->n / 2 : s->n);
    }
    return num;
}

static double limit_us(const shape *s, int m)
{
    const double out = (double)m * (s->gated ? s->n / 2 : s->n);
    const double bytes = 2.0 * s->n * s->k + 2.0 * m * s->k +
                         out * (s->f32_out      ? 4
                                : s->accumulate ? 4
                                                : 2);
    const double flops = 2.0 * m * s->n * s->k;
    const double by_bytes = bytes / 4.2e6, by_flops = flops / 700e6;
    return by_bytes > by_flops ? by_bytes : by_flops;
}

static void bench_model(bench *b, const char *name, const shape *shapes, int num, float *norm,
                        bool quick)
{
    printf("%s: us (share of limit)\n%-18s", name, "m");
    for (int i = 0; i < NUM_MS; i++) printf(" %14d", MS[i]);
    printf("\n");
    static linear_sets sets;
    for (int j = 0; j < num; j++) {
        const shape *s = &shapes[j];
        printf("%-18s", s->name);
        for (int i = 0; i < NUM_MS; i++) {
            if (MS[i] > s->max_m || (quick && MS[i] > 256)) continue;
            const int calls = place_linear(b, s, MS[i], &sets, norm);
            const float us = time_us(b, s->fused ? issue_fused : issue_linear, &sets, calls);
            printf(" %8.1f (%3.0f%%)", (double)us, 100 * limit_us(s, MS[i]) / (double)us);
            fflush(stdout);
        }
        printf("\n");
    }
}

static void tune_model(bench *b, const char *name, const shape *shapes, int num, float *norm)
{
    static linear_sets sets;
    struct timespec t0, t1;
    (void)clock_gettime(CLOCK_MONOTONIC, &t0);
    for (int j = 0; j < num; j++) {
        const shape *s = &shapes[j];
        if (s->fused) continue;
        int32_t ms[64];
        int32_t count = 0;
        for (int32_t m = 1; m <= s->max_m; m = m < 16 ? 2 * m : m < 64 ? m + 16 : 2 * m) {
            ms[count++] = m;
        }
        msgl_tune_product p = {};
        p.num_calls = place_linear(b, s, 1, &sets, norm);
        p.calls = sets.calls;
        msgl__cuda_gemm_tune(&b->x, &b->activations, &p, ms, count);
        msgl__arena_reset(b->x.scratch);
    }
    check(b, "tuning");
    (void)clock_gettime(CLOCK_MONOTONIC, &t1);
    printf("tuning %s: %.2f s\n", name,
           (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec));
}

// --- narrow: which plan --------------------------------------------------------------------------

static const msgl_narrow_plan *plan; // of issue_narrow; NULL: its own

static void issue_narrow(bench *b, void *arg, int i)
{
    if (!msgl__cuda_narrow_sm90(&b->x, &((linear_sets *)arg)->calls[i], plan)) b->x.status = -1;
}

static void issue_library(bench *b, void *arg, int i)
{
    msgl__cuda_linear_library(&b->x, &((linear_sets *)arg)->calls[i]);
    msgl__arena_reset(b->x.scratch);
}

static void bench_narrow(bench *b, const char *model, const shape *s, float *norm)
{
    static const int ROWS[] = {8, 16, 32, 64};
    static linear_sets sets;
    for (size_t j = 0; j < sizeof ROWS / sizeof ROWS[0]; j++) {
        const int num = place_linear(b, s, ROWS[j], &sets, norm);
        printf("%-5s %-18s m %3d  linear %6.1f  library %6.1f  groups x splits:", model, s->name,
               ROWS[j], (double)time_us(b, issue_linear, &sets, num),
               (double)time_us(b, issue_library, &sets, num));
        for (int groups = 1; groups <= (s->norm ? 2 : 1); groups++) {
            for (int splits = 1; splits <= 8; splits++) {
                const msgl_narrow_plan p = {groups, splits};
                const int blocks = s->n / (64 * groups) * splits;
                if (blocks < 60 || blocks > 280 || splits == 5 || splits == 7) continue;
                plan = &p;
                printf(" %dx%d %.1f", groups, splits, (double)time_us(b, issue_narrow, &sets, num));
            }
        }
        printf("\n");
    }
}

// --- grouped: Qwen3-30B-A3B, 128 experts, 8 of them per token ------------------------------------

enum { EXPERTS = 128, TOP_K = 8 };

typedef struct grouped_sets {
    msgl_grouped_call calls[2];
    msgl_weight experts[2][EXPERTS];
} grouped_sets;

static void issue_grouped(bench *b, void *arg, int i)
{
    msgl__cuda_grouped(&b->x, &((grouped_sets *)arg)->calls[i]);
}

// Every token draws TOP_K different experts.
static int draw_offsets(int tokens, int32_t *offsets)
{
    static uint32_t state = 1;
    int counts[EXPERTS] = {0}, used = 0;
    for (int i = 0; i < tokens; i++) {
        bool taken[EXPERTS] = {false};
        for (int c = 0; c < TOP_K;) {
            state = state * 1664525u + 1013904223u;
            const int e = (int)(state >> 8) % EXPERTS;
            if (taken[e]) continue;
            taken[e] = true;
            counts[e]++;
            c++;
        }
    }
    offsets[0] = 0;
    for (int e = 0; e < EXPERTS; e++) {
        offsets[e + 1] = offsets[e] + counts[e];
        used += counts[e] > 0;
    }
    return used;
}

static void bench_grouped(bench *b, const char *name, int n, int k, bool gated)
{
    static const int TOKENS[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 8192};
    static grouped_sets sets;
    printf("%-18s", name);
    for (size_t j = 0; j < sizeof TOKENS / sizeof TOKENS[0]; j++) {
        const int rows = TOKENS[j] * TOP_K;
        const size_t w = pad((size_t)n * k * 2), in = pad((size_t)rows * k * 2);
        const size_t out = pad((size_t)rows * n * 2), set = w * EXPERTS + in + out + 1024;
        int used = 0;
        for (int i = 0; i < 2; i++) {
            int32_t offsets[EXPERTS + 1];
            char *at = b->pool + (size_t)i * set;
            used = draw_offsets(TOKENS[j], offsets);
            (void)cudaMemcpy(at, offsets, sizeof offsets, cudaMemcpyHostToDevice);
            msgl_grouped_call *c = &sets.calls[i];
            memset(c, 0, sizeof *c);
            for (int e = 0; e < EXPERTS; e++) {
                sets.experts[i][e] = {&msgl__cuda_formats[MSGL_W_BF16], n, k,
                                      at + 1024 + (size_t)e * w};
            }
            c->experts = sets.experts[i];
            c->num_experts = EXPERTS;
            c->offsets = (const int32_t *)at;
            c->rows = rows;
            c->in = at + 1024 + w * EXPERTS;
            c->ld_in = (size_t)k;
            c->gated = gated;
            c->out = at + 1024 + w * EXPERTS + in;
            c->ld_out = (size_t)(gated ? n / 2 : n);
        }
        const float us = time_us(b, issue_grouped, &sets, 2);
        const double bytes = 2.0 * used * n * k + 2.0 * rows * (k + (gated ? n / 2 : n));
        const double flops = 2.0 * rows * n * k;
        const double limit = bytes / 4.2e6 > flops / 700e6 ? bytes / 4.2e6 : flops / 700e6;
        printf(" %8.1f (%3.0f%%)", (double)us, 100 * limit / (double)us);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    static bench b;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    bool quick = false, tune = true, proposals = false, grouped = false;
    const char *cache = NULL;
    char **one = NULL;
    for (int i = 1; i < argc; i++) {
        quick |= strcmp(argv[i], "--quick") == 0;
        grouped |= strcmp(argv[i], "--grouped") == 0;     // nothing else
        proposals |= strcmp(argv[i], "--proposals") == 0; // the library's, before tuning
        tune &= strcmp(argv[i], "--no-tune") != 0;
        if (strcmp(argv[i], "--one") == 0 && i + 5 < argc) one = argv + i + 1;
        if (strcmp(argv[i], "--cache") == 0 && i + 1 < argc) cache = argv[++i];
    }
    msgl_err err;
    if (msgl__cuda_device_open(0, false, cache, &b.device, NULL, &err) != 0) {
        fprintf(stderr, "bench_gemm: %s\n", err.text);
        return 1;
    }
    b.d = (msgl_cuda_device *)b.device;
    b.pool_bytes = (size_t)12 << 30;
    const size_t scratch_bytes = (size_t)3 << 30, activations = (size_t)3 << 30;
    void *scratch = b.device->ops->alloc(b.device, scratch_bytes);
    void *memory = b.device->ops->alloc(b.device, activations);
    b.pool = (char *)b.device->ops->alloc(b.device, b.pool_bytes);
    float *norm = (float *)b.device->ops->alloc(b.device, 1 << 20);
    if (scratch == NULL || memory == NULL || b.pool == NULL || norm == NULL) {
        fprintf(stderr, "bench_gemm: needs 19 GB of device memory\n");
        return 1;
    }
    msgl__arena_init(&b.scratch, scratch, scratch_bytes);
    msgl__arena_init(&b.activations, memory, activations);
    b.x.device = b.device;
    b.x.act = MSGL_BF16;
    b.x.scratch = &b.scratch;
    (void)cudaEventCreate(&b.begin);
    (void)cudaEventCreate(&b.end);
    noise<<<1024, 512, 0, b.d->stream>>>((__nv_bfloat16 *)b.pool, b.pool_bytes / 2, 0.05f);
    check(&b, "inputs");
    printf("cuBLASLt %zu\n", cublasLtGetVersion());
    if (one != NULL) { // for a profiler: MODEL SHAPE M GROUPS SPLITS
        const shape *s = &(atoi(one[0]) == 0 ? SMALL : LARGE)[atoi(one[1])];
        const msgl_narrow_plan p = {atoi(one[3]), atoi(one[4])};
        static linear_sets sets;
        const int num = place_linear(&b, s, atoi(one[2]), &sets, norm);
        plan = &p;
        for (int i = 0; i < 8; i++) issue_narrow(&b, &sets, i % num);
        check(&b, "one");
        return 0;
    }
    for (int round = proposals ? 0 : 1; round < 2 && !grouped; round++) {
        if (round == 1 && tune) {
            tune_model(&b, "0.6B", SMALL, 9, norm);
            tune_model(&b, "14B", LARGE, 9, norm);
            noise<<<1024, 512, 0, b.d->stream>>>((__nv_bfloat16 *)b.pool, b.pool_bytes / 2, 0.05f);
        }
        printf(round == 0 ? "-- the library's first proposals\n" : "-- as chosen\n");
        bench_model(&b, "0.6B", SMALL, 9, norm, quick || round == 0);
        bench_model(&b, "14B", LARGE, 9, norm, quick || round == 0);
    }
    for (int i = 0; i < 2 && !grouped; i++) {
        const shape *shapes = i == 0 ? SMALL : LARGE;
        for (int j = 0; j < 9; j++) {
            const shape *s = &shapes[j];
            const bool used = s->norm || s->accumulate;
            if (used && (size_t)s->n * s->k < 20000000)
                bench_narrow(&b, i == 0 ? "0.6B" : "14B", s, norm);
        }
    }
    printf(
        "30B-A3B grouped: us (share of limit) at 1 8 16 32 64 128 256 512 1024 4096 8192 tokens\n");
    bench_grouped(&b, "gate_up+silu", 1536, 2048, true);
    bench_grouped(&b, "down", 2048, 768, false);
    b.device->ops->destroy(b.device);
    return 0;
}
