// SPDX-License-Identifier: Apache-2.0
//
// The four products of a layer of Qwen3-0.6B in a decode step of 17 to 256 requests: all layers in
// a captured graph, each with its own weights (0.4 GB in all), a small kernel in place of rotation
// and attention. Prints the time of a layer by the library's way, and the fastest plans of
// mid_sm90 for each product, found one product after the other.
#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#include <cuda_bf16.h>

#include "bench/cuda/noise.cuh"
#include "kernel/cuda/device_api.h"
#include "kernel/cuda/device.cuh"
#include "kernel/cuda/gemm/gemm.h"
#include "kernel/cuda/gemm/lt.cuh"
#include "kernel/cuda/gemm/mid_sm90.h"
#include "kernel/cuda/launch.cuh"
#include "tests/cuda/cuda_check.cuh"

enum { LAYERS = 14, PRODUCTS = 4, REPLAYS = 5, SHOWN = 6 };

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
    msgl_norm_feed feed;
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
    *w = {MSGL_BF16, N[product], K[product], b->weights[layer][product]};
    msgl_linear_call c = {};
    c.w = w;
    c.m = b->m;
    c.norm_eps = 1e-6f;
    c.norm = product % 2 == 0 ? b->norm : NULL;
    c.gated = product == 2;
    c.accumulate = product % 2 == 1;
    c.feed = &b->feed;
    c.next_norm = c.accumulate ? b->norm : NULL;
    const void *const in[PRODUCTS] = {b->residual, b->attn, b->residual, b->mid};
    void *const out[PRODUCTS] = {b->qkv, b->residual, b->mid, b->residual};
    c.in = in[product];
    c.out = out[product];
    c.ld_in = (size_t)K[product];
    c.ld_out = (size_t)(c.gated ? N[product] / 2 : N[product]);
    return c;
}

// plan NULL: as the engine does it, or, without a feed, by norm, library and silu.
static bool product(bench *b, int product, int layer, const msgl_mid_plan *plan)
{
    msgl_weight w;
    msgl_linear_call c = call_of(b, product, &w, layer);
    if (plan == NULL) {
        if (b->plain) c.feed = NULL, c.next_norm = NULL;
        if (b->plain)
            msgl__cuda_linear_library(&b->x, &c);
        else
            msgl__cuda_linear(&b->x, &c);
        msgl__arena_reset(b->x.scratch);
        return true;
    }
    return msgl__cuda_mid_sm90(&b->x, &c, plan);
}

// Microseconds of a layer; 0: a plan cannot do its product. which: bits of the products to run;
// bit 4 the stand-in.
static float time_layer(bench *b, const msgl_mid_plan *const plans[PRODUCTS], int which)
{
    bool done = true;
    b->device->ops->graph_begin(b->device);
    // Of the first norm; each product before another one leaves its own.
    b->feed.parts = 32, b->feed.x = b->residual, b->feed.weight = b->norm, b->feed.m = b->m;
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

static void print_plan(const msgl_mid_plan *p)
{
    printf(" %dx%d s%d a%d d%d %d-%dK%s%s", 64 * p->groups, p->columns, p->splits, p->across,
           p->down, p->least >> 10, p->shared >> 10, p->late ? " late" : "",
           p->fetch ? " fetch" : "");
}

// What is tried for qkv, for o and down, and for gate_up, the first being what the others are tried
// with.
enum { PLANS = 6 };
typedef struct cut {
    int groups, columns, splits, across, down;
} cut;
static const cut FEW[][PLANS] = {
    {{1, 64, 2, 1, 1}, {1, 32, 1, 1, 1}, {1, 32, 1, 2, 1}, {1, 64, 2, 2, 1}, {1, 64, 1, 1, 1}},
    {{1, 64, 6, 1, 1}, {1, 32, 3, 1, 1}, {1, 64, 4, 1, 1}, {1, 32, 2, 1, 1}, {1, 128, 8, 1, 1}},
    {{1, 48, 1, 1, 1}, {1, 48, 1, 2, 1}, {1, 64, 1, 1, 1}, {1, 48, 1, 4, 1}},
};
static const cut MANY[][PLANS] = {
    {{2, 64, 1, 1, 1}, {2, 64, 1, 2, 1}, {2, 64, 1, 1, 2}, {2, 128, 2, 1, 1}, {2, 64, 1, 2, 2}},
    {{2, 64, 3, 1, 1},
     {1, 64, 2, 1, 1},
     {2, 128, 6, 1, 1},
     {2, 64, 2, 1, 1},
     {2, 32, 2, 1, 1},
     {2, 64, 3, 1, 2}},
    {{2, 96, 1, 1, 1}, {2, 96, 1, 2, 1}, {2, 96, 1, 1, 2}, {2, 64, 1, 1, 1}},
};

static const cut *cuts_of(int m, int product)
{
    const int row = product == 3 ? 1 : product;
    return m > 64 ? MANY[row] : FEW[row];
}

static msgl_mid_plan plan_of(int product, const cut *c)
{
    const bool first = product % 2 == 0;
    return {c->groups,
            c->columns,
            c->splits,
            c->across,
            c->down,
            (first ? 108 : 118) << 10,
            (first ? 0 : 116) << 10,
            false,
            true};
}

static void print_times(bench *b, const msgl_mid_plan *const plans[PRODUCTS], const char *what)
{
    printf("m %d, %s: %.2f, of it", b->m, what, (double)time_layer(b, plans, 31));
    for (int i = 0; i < PRODUCTS; i++) printf(" %.2f", (double)time_layer(b, plans, 1 << i));
    printf(", stand-in %.2f\n", (double)time_layer(b, plans, 16));
}

static void bench_rows(bench *b, int m, bool search)
{
    b->m = m;
    const msgl_mid_plan *library[PRODUCTS] = {}, *use[PRODUCTS];
    b->plain = true;
    print_times(b, library, "by the library");
    b->plain = false;
    print_times(b, library, "as chosen");
    if (!search) return;
    msgl_mid_plan base[PRODUCTS], best[PRODUCTS];
    for (int i = 0; i < PRODUCTS; i++) {
        base[i] = best[i] = plan_of(i, cuts_of(m, i));
        use[i] = &base[i];
    }
    print_times(b, use, "base");
    for (int i = 0; i < PRODUCTS; i++) {
        printf("%-8s", NAMES[i]);
        float least = 0;
        const cut *cuts = cuts_of(m, i);
        for (int j = 0; j < PLANS && cuts[j].groups > 0; j++) {
            const msgl_mid_plan p = plan_of(i, &cuts[j]);
            use[i] = &p;
            const float us = time_layer(b, use, 31), alone = time_layer(b, use, 1 << i);
            printf(" | %.2f %.2f", (double)us, (double)alone);
            print_plan(&p);
            if (least == 0 || us < least) {
                least = us;
                best[i] = p;
            }
            use[i] = &base[i];
        }
        printf("\n");
    }
    for (int i = 0; i < PRODUCTS; i++) use[i] = &best[i];
    print_times(b, use, "best of each");
    static const int CAPS[][4] = {{108, 0, 108, 0},
                                  {116, 116, 116, 116},
                                  {226, 116, 226, 116},
                                  {100, 0, 122, 116},
                                  {90, 0, 132, 116}};
    for (const int *caps : CAPS) {
        for (int flags = 0; flags < 4; flags++) {
            msgl_mid_plan p[PRODUCTS];
            const msgl_mid_plan *all[PRODUCTS];
            for (int i = 0; i < PRODUCTS; i++) {
                p[i] = best[i];
                p[i].shared = caps[i % 2 * 2] << 10;
                p[i].least = caps[i % 2 * 2 + 1] << 10;
                p[i].late = flags & 1;
                p[i].fetch = flags & 2;
                all[i] = &p[i];
            }
            printf("%s %d-%d / %d-%d%s%s %.2f", flags == 0 ? "" : ",", caps[1], caps[0], caps[3],
                   caps[2], flags & 1 ? " late" : "", flags & 2 ? " fetch" : "",
                   (double)time_layer(b, all, 31));
        }
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
    const size_t rows = 256, scratch = (size_t)64 << 20;
    b.residual = alloc(&b, rows * N[1] * 2, 1);
    b.qkv = alloc(&b, rows * N[0] * 2, 1);
    b.attn = alloc(&b, rows * K[1] * 2, 1);
    b.mid = alloc(&b, rows * K[3] * 2, 1);
    b.feed.scaled = alloc(&b, rows * N[1] * 2, 1);
    b.feed.sums = (float *)alloc(&b, rows * 32 * 4, 1);
    CUDA_OK(cudaMemset(b.feed.sums, 0, rows * 32 * 4));
    std::vector<float> ones(8192, 1.0f);
    b.norm = (float *)device_copy(ones.data(), ones.size() * 4);
    b.feed.weight = b.norm;
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
    for (int i = 1; i < argc; i++) search |= strcmp(argv[i], "--search") == 0;
    for (int m : {17, 32, 48, 64, 96, 128, 256}) bench_rows(&b, m, search && m >= 64);
    return 0;
}
