// SPDX-License-Identifier: Apache-2.0
//
// The four products of a layer of Qwen3-0.6B in a decode step of 17 to 256 requests: all layers in
// a captured graph, each with its own weights (0.4 GB in all), a small kernel in place of rotation
// and attention. Prints the time of a layer by the library's way and by the engine's.
//
//   bench_layer [--search] [ROWS...]
//
// --search: times plans of tall_sm90 for each product too, the others as the engine does them.
#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#include <cuda_bf16.h>

#include "bench/cuda/noise.cuh"
#include "cuda/device.cuh"
#include "cuda/device_api.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/table.cuh"
#include "cuda/gemm/tall_sm90.h"
#include "cuda/launch.cuh"
#include "tests/cuda/cuda_check.cuh"

enum { LAYERS = 14, PRODUCTS = 4, REPLAYS = 7, MOST_ROWS = 256 };

static const char *const NAMES[PRODUCTS] = {"qkv", "o", "gate_up", "down"};
static int N[PRODUCTS] = {4096, 1024, 6144, 1024}, K[PRODUCTS] = {1024, 2048, 1024, 3072};

typedef struct bench {
    msgl_device *device;
    msgl_cuda_device *d;
    msgl_exec x;
    msgl_arena scratch;
    cudaEvent_t begin, end;
    char *weights[LAYERS][PRODUCTS];
    void *residual, *qkv, *attn, *mid;
    float *norm;
    msgl_norm_stats norm_stats;
    int m;
    bool plain; // without the kernels of our own
} bench;

// In place of rotation and attention: reads all of q, depends on it, takes next to no time.
__global__ void stand_in(const uint4 *qkv, int ld, uint4 *attn, int columns, int rows)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * columns;
         i += gridDim.x * blockDim.x) {
        attn[i] = qkv[(size_t)(i / columns) * ld + i % columns];
    }
}

static void *alloc(bench *b, size_t bytes, float scale)
{
    void *p;
    CUDA_OK(cudaMalloc(&p, bytes));
    noise<<<1024, 512, 0, b->d->stream>>>((__nv_bfloat16 *)p, bytes / 2, scale);
    return p;
}

static msgl_linear_call call_of(bench *b, int product, msgl_weight *w, int layer)
{
    *w = {&msgl__cuda_formats[MSGL_W_BF16], N[product], K[product], b->weights[layer][product]};
    msgl_linear_call c = {};
    c.w = w;
    c.m = b->m;
    c.norm_eps = 1e-6f;
    c.norm = product % 2 == 0 ? b->norm : NULL;
    c.gated = product == 2;
    c.accumulate = product % 2 == 1;
    c.norm_stats = &b->norm_stats;
    c.next_norm = c.accumulate ? b->norm : NULL;
    const void *const in[PRODUCTS] = {b->residual, b->attn, b->residual, b->mid};
    void *const out[PRODUCTS] = {b->qkv, b->residual, b->mid, b->residual};
    c.in = in[product];
    c.out = out[product];
    c.ld_in = (size_t)K[product];
    c.ld_out = (size_t)(c.gated ? N[product] / 2 : N[product]);
    return c;
}

// plan NULL: as the engine does it, or, without norm_stats, by norm, library and silu.
static bool product(bench *b, int product, int layer, const msgl_tall_plan *plan)
{
    msgl_weight w;
    msgl_linear_call c = call_of(b, product, &w, layer);
    if (plan == NULL) {
        if (b->plain) c.norm_stats = NULL, c.next_norm = NULL;
        if (b->plain)
            msgl__cuda_linear_library(&b->x, &c);
        else
            msgl__cuda_linear(&b->x, &c);
        msgl__arena_reset(b->x.scratch);
        return true;
    }
    return msgl__cuda_tall_sm90(&b->x, &c, plan);
}

// Microseconds of a layer; 0: a plan cannot do its product. which: bits of the products to run;
// bit 4 the stand-in.
static float time_layer(bench *b, const msgl_tall_plan *const plans[PRODUCTS], int which)
{
    bool done = true;
    b->device->ops->graph_begin(b->device);
    // Of the first norm; each product before another one leaves its own.
    b->norm_stats.num_tiles = 32, b->norm_stats.x = b->residual, b->norm_stats.weight = b->norm,
    b->norm_stats.m = b->m;
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 0; i < PRODUCTS; i++) {
            if (which >> i & 1) done = product(b, i, l, plans[i]) && done;
            if (i == 0 && which >> 4 & 1) {
                const int columns = K[1] / 8;
                CUDA_OK(msgl__launch(stand_in, dim3((unsigned)b->d->sm_count), dim3(256), 0,
                                     b->d->stream, (const uint4 *)b->qkv, N[0] / 8,
                                     (uint4 *)b->attn, columns, b->m));
            }
        }
    }
    msgl_err err;
    msgl_graph *g = b->device->ops->graph_end(b->device, &err);
    if (g == NULL || b->x.status != 0) {
        fprintf(stderr, "bench_layer: %s %s\n", err.text, b->device->fault.text);
        exit(1);
    }
    float us[REPLAYS] = {};
    b->device->ops->graph_launch(b->device, g);
    for (int r = 0; r < REPLAYS && done; r++) {
        CUDA_OK(cudaEventRecord(b->begin, b->d->stream));
        b->device->ops->graph_launch(b->device, g);
        CUDA_OK(cudaEventRecord(b->end, b->d->stream));
        CUDA_OK(cudaEventSynchronize(b->end));
        CUDA_OK(cudaEventElapsedTime(&us[r], b->begin, b->end));
    }
    CUDA_OK(cudaDeviceSynchronize());
    std::sort(us, us + REPLAYS);
    b->device->ops->graph_destroy(b->device, g);
    return us[REPLAYS / 2] * 1000 / LAYERS;
}

static void print_times(bench *b, const msgl_tall_plan *const plans[PRODUCTS], const char *what)
{
    printf("m %d, %s: %.2f, of it", b->m, what, (double)time_layer(b, plans, 31));
    for (int i = 0; i < PRODUCTS; i++) printf(" %.2f", (double)time_layer(b, plans, 1 << i));
    printf(", stand-in %.2f\n", (double)time_layer(b, plans, 16));
}

// Plans that use most of the GPU at least, and do not go round it twice.
static std::vector<msgl_tall_plan> plans_of(const bench *b, int product)
{
    enum { SMALL = 100 << 10, HALF = 116 << 10, LARGE = 122 << 10, ALL = 226 << 10 };
    const bool collects = product % 2 == 1, gated = product == 2;
    const int tiles = N[product] / 64;
    std::vector<msgl_tall_plan> plans;
    for (int passes = 1; passes <= 4; passes++) {
        const int columns = ((b->m + passes - 1) / passes + 15) / 16 * 16;
        if (columns > 128) continue;
        if (columns < 48) break;
        for (int splits = 1; splits <= (gated ? 1 : 6); splits++) {
            const int blocks = tiles * passes * splits;
            if (blocks < b->d->sm_count / 2 || blocks > 2 * b->d->sm_count) continue;
            if (collects) {
                plans.push_back({columns, splits, LARGE, HALF});
            } else {
                plans.push_back({columns, splits, SMALL, 0});
                plans.push_back({columns, splits, ALL, 0});
            }
        }
    }
    return plans;
}

static void bench_rows(bench *b, int m, bool search)
{
    b->m = m;
    const msgl_tall_plan *plans[PRODUCTS] = {};
    b->plain = true;
    print_times(b, plans, "by the library");
    b->plain = false;
    print_times(b, plans, "as chosen");
    for (int i = 0; search && i < PRODUCTS; i++) {
        printf("%-8s", NAMES[i]);
        for (const msgl_tall_plan &p : plans_of(b, i)) {
            plans[i] = &p;
            const float us = time_layer(b, plans, 31), alone = time_layer(b, plans, 1 << i);
            printf(" | %.2f %.2f columns %d splits %d, %d-%dK", (double)us, (double)alone,
                   p.columns, p.splits, p.least >> 10, p.shared >> 10);
        }
        plans[i] = NULL;
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    static bench b;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    msgl_err err;
    if (msgl__cuda_device_open(0, false, NULL, &b.device, NULL, &err) != 0) {
        fprintf(stderr, "bench_layer: %s\n", err.text);
        return 1;
    }
    b.d = (msgl_cuda_device *)b.device;
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 0; i < PRODUCTS; i++) {
            b.weights[l][i] = (char *)alloc(&b, (size_t)N[i] * K[i] * 2, 0.05f);
        }
    }
    const size_t most = MOST_ROWS, scratch = (size_t)64 << 20;
    b.residual = alloc(&b, most * N[1] * 2, 1);
    b.qkv = alloc(&b, most * N[0] * 2, 1);
    b.attn = alloc(&b, most * K[1] * 2, 1);
    b.mid = alloc(&b, most * K[3] * 2, 1);
    b.norm_stats.scaled = alloc(&b, most * N[1] * 2, 1);
    b.norm_stats.sums = (float *)alloc(&b, most * 32 * 4, 1);
    CUDA_OK(cudaMemset(b.norm_stats.sums, 0, most * 32 * 4));
    std::vector<float> ones(8192, 1.0f);
    b.norm = (float *)device_copy(ones.data(), ones.size() * 4);
    b.norm_stats.weight = b.norm;
    void *memory;
    CUDA_OK(cudaMalloc(&memory, scratch));
    msgl__arena_init(&b.scratch, (char *)memory, scratch);
    b.x.device = b.device;
    b.x.act = MSGL_BF16;
    b.x.scratch = &b.scratch;
    CUDA_OK(cudaEventCreate(&b.begin));
    CUDA_OK(cudaEventCreate(&b.end));
    CUDA_OK(cudaFuncSetAttribute(stand_in, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared));
    bool search = false;
    std::vector<int> rows;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--search") == 0)
            search = true;
        else
            rows.push_back(std::min(std::max(atoi(argv[i]), 1), (int)MOST_ROWS));
    }
    if (rows.empty()) rows = {17, 32, 48, 64, 80, 96, 128, 160, 192, 224, 256};
    for (int m : rows) bench_rows(&b, m, search);
    return 0;
}
