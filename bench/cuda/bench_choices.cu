// SPDX-License-Identifier: Apache-2.0
//
// Tunes the products of a Qwen3 model as an engine's first start does, and prints what it measured:
// microseconds of a call by each kernel of the table that can do it; * the one that is taken.
// Behind them the one that is taken without a measurement, where that is another one. "stats":
// norm_stats of the input are there, "R": with the rope kernel behind it, "+": with the product
// behind it, which norm_stats are for.
//
//   bench_choices [--cache DIR] [0.6B] [4B] [14B] [14B/2]
//
// --cache: reads and writes the engine's file there; what it holds is not measured again.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/cuda/noise.cuh"
#include "cuda/device_api.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/table.cuh"
#include "tests/cuda/cuda_check.cuh"

enum { LAYERS = 8, HEAD_DIM = 128, KV_HEADS = 8, VOCAB = 151936, PRODUCTS = 5, BLOCK_ROWS = 8192 };

typedef struct model {
    const char *name;
    int hidden, heads, inter;
} model;

// The last one: what each of two ranks has of 14B, but for K and V.
static const model MODELS[] = {{"0.6B", 1024, 16, 3072},
                               {"4B", 2560, 32, 9728},
                               {"14B", 5120, 40, 17408},
                               {"14B/2", 5120, 20, 8704}};
enum { NUM_MODELS = sizeof MODELS / sizeof MODELS[0] };
static const int32_t ROWS[] = {1,   4,   8,    16,   32,   48,   64,   96,   128,
                               160, 192, 224,  256,  320,  384,  448,  512,  640,
                               768, 896, 1024, 1280, 1536, 1792, 2048, 4096, 8192};
enum { NUM_ROWS = sizeof ROWS / sizeof ROWS[0] };

typedef struct bench {
    msgl_device *device;
    msgl_exec x;
    msgl_arena scratch, activations, weights;
    float *norm;
    const char *product; // that is being tuned
    msgl_weight w[PRODUCTS][LAYERS];
    msgl_linear_call calls[PRODUCTS][LAYERS];
} bench;

static void *take(msgl_arena *a, size_t bytes)
{
    void *p = msgl__arena_alloc(a, bytes);
    if (p != NULL) return p;
    fprintf(stderr, "bench_choices: an arena is too small\n");
    exit(1);
}

static void print_head(const char *what)
{
    printf("%s\n%-8s %-5s %5s", what, "product", "", "m");
    for (int i = 0; i < MSGL_PRODUCT_KERNELS; i++) {
        printf(" %17s", msgl__cuda_product_kernels[i].name);
    }
    printf("\n");
}

static void print_result(void *ctx, const msgl_tune_result *r)
{
    const bench *b = (const bench *)ctx;
    const bool stats = (r->key.call & MSGL_CALL_NORM_STATS) != 0,
               rope = (r->key.call & MSGL_CALL_ROPE) != 0;
    const char *state = r->pair ? "+" : rope ? stats ? "R stats" : "R" : stats ? "stats" : "";
    printf("%-8s %-5s %5d", b->product, state, r->m);
    for (int i = 0; i < MSGL_PRODUCT_KERNELS; i++) {
        if (r->us[i] > 0) {
            printf(" %16.2f%c", (double)r->us[i], i == r->best ? '*' : ' ');
        } else {
            printf(" %17s", "");
        }
    }
    if (r->first != r->best) printf(" not %s", msgl__cuda_product_kernels[r->first].name);
    printf("\n");
}

static void place(bench *b, const model *m)
{
    const int q = m->heads * HEAD_DIM, kv = KV_HEADS * HEAD_DIM;
    const int n[PRODUCTS] = {VOCAB, q + 2 * kv, 2 * m->inter, m->hidden, m->hidden};
    const int k[PRODUCTS] = {m->hidden, m->hidden, m->hidden, q, m->inter};
    msgl__arena_reset(&b->weights);
    for (int p = 0; p < PRODUCTS; p++) {
        for (int l = 0; l < (p == 0 ? 1 : LAYERS); l++) {
            b->w[p][l] = {&msgl__cuda_formats[MSGL_W_BF16], n[p], k[p],
                          take(&b->weights, (size_t)n[p] * k[p] * 2)};
            msgl_linear_call c = {};
            c.w = &b->w[p][l];
            c.norm = p < 3 ? b->norm : NULL;
            c.norm_eps = 1e-6f;
            c.f32_out = p == 0;
            c.gated = p == 2;
            c.accumulate = p >= 3;
            c.next_norm = p >= 3 ? b->norm : NULL;
            b->calls[p][l] = c;
        }
    }
}

static void tune(bench *b, const model *m)
{
    static const char *const NAMES[PRODUCTS] = {"lm_head", "qkv", "gate_up", "o", "down"};
    static const int32_t MOST[PRODUCTS] = {256, INT32_MAX, BLOCK_ROWS, INT32_MAX, BLOCK_ROWS};
    msgl_rope_call rope = {};
    rope.num_q_heads = m->heads;
    rope.num_kv_heads = KV_HEADS;
    rope.head_dim = HEAD_DIM;
    rope.half = HEAD_DIM / 2;
    rope.q_weight = rope.k_weight = b->norm;
    rope.eps = 1e-6f;
    rope.kv_dtype = MSGL_BF16;
    msgl_tune_product products[PRODUCTS] = {};
    struct timespec t0, t1;
    place(b, m);
    print_head(m->name);
    (void)clock_gettime(CLOCK_MONOTONIC, &t0);
    for (int p = 0; p < PRODUCTS; p++) {
        products[p].calls = b->calls[p];
        products[p].num_calls = p == 0 ? 1 : LAYERS;
        products[p].rope = p == 1 ? &rope : NULL;
        products[p].behind = p == 3 ? &products[2] : p == 4 ? &products[1] : NULL;
        int32_t num = 0;
        while (num < NUM_ROWS && ROWS[num] <= MOST[p]) num++;
        b->product = NAMES[p];
        msgl__cuda_gemm_tune(&b->x, &b->activations, &products[p], ROWS, num);
        msgl__arena_reset(&b->scratch);
    }
    CUDA_OK(cudaDeviceSynchronize());
    (void)clock_gettime(CLOCK_MONOTONIC, &t1);
    if (b->x.status != 0) {
        fprintf(stderr, "bench_choices: %s\n", b->device->fault.text);
        exit(1);
    }
    printf("%s: tuned in %.2f s\n", m->name,
           (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec));
}

static msgl_arena arena(size_t bytes)
{
    msgl_arena a;
    void *p;
    CUDA_OK(cudaMalloc(&p, bytes));
    msgl__arena_init(&a, p, bytes);
    return a;
}

int main(int argc, char **argv)
{
    static bench b;
    const char *cache = NULL;
    bool wanted[NUM_MODELS] = {}, any = false;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--cache") == 0 && i + 1 < argc) cache = argv[++i];
        for (int m = 0; m < NUM_MODELS; m++) wanted[m] |= strcmp(argv[i], MODELS[m].name) == 0;
    }
    for (bool w : wanted) any |= w;
    msgl_err err;
    if (msgl__cuda_device_open(0, false, cache, &b.device, NULL, &err) != 0) {
        fprintf(stderr, "bench_choices: %s\n", err.text);
        return 1;
    }
    b.scratch = arena((size_t)1 << 30);
    b.activations = arena((size_t)1 << 30);
    b.weights = arena((size_t)8 << 30);
    b.x.device = b.device;
    b.x.act = MSGL_BF16;
    b.x.scratch = &b.scratch;
    CUDA_OK(cudaMalloc((void **)&b.norm, 1 << 16));
    const cudaStream_t stream = msgl__cuda_stream(&b.x);
    noise<<<1024, 512, 0, stream>>>((__nv_bfloat16 *)b.norm, 1 << 15, 1);
    noise<<<1024, 512, 0, stream>>>((__nv_bfloat16 *)b.weights.base, b.weights.size / 2, 0.05f);
    CUDA_OK(cudaDeviceSynchronize());
    ((msgl_cuda_device *)b.device)->blas->report = print_result;
    ((msgl_cuda_device *)b.device)->blas->report_ctx = &b;
    for (int m = 0; m < NUM_MODELS; m++) {
        if (wanted[m] || !any) tune(&b, &MODELS[m]);
    }
    b.device->ops->destroy(b.device);
    return 0;
}
