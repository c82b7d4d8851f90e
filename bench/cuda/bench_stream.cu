// SPDX-License-Identifier: Apache-2.0
//
// The gated product of decode steps of many requests at Qwen3-14B's shape: one kernel
// (stream_sm90.cu) against the library's product and a kernel behind it. Graphs of calls with other
// weights each (more than 400 MB in all) take turns. "cold": medians with pauses; "hot": means of a
// sixth of a second without, behind as long a run, where the power limit holds the clock down.
#include <cuda_bf16.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/cuda/noise.cuh"
#include "cuda/device_api.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/lt.cuh"
#include "cuda/gemm/stream_sm90.h"
#include "cuda/ops/ops.h"
#include "tests/cuda/cuda_check.cuh"

enum { SETS = 3, RUNS = 7, MAX_ROWS = 256, N = 34816, K = 5120 };

typedef struct bench {
    msgl_device *device;
    msgl_exec x;
    msgl_arena scratch;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    char *w, *in, *out, *product;
    msgl_weight weights[SETS];
    msgl_linear_call calls[SETS];
} bench;

static void check(const bench *b, const char *what)
{
    const cudaError_t code = cudaDeviceSynchronize();
    if (code == cudaSuccess && b->x.status == 0 && b->device->fault.code == 0) return;
    fprintf(stderr, "bench_stream: %s: %s %s\n", what, cudaGetErrorString(code),
            b->device->fault.text);
    exit(1);
}

static void prepare(bench *b, int m)
{
    for (int i = 0; i < SETS; i++) {
        b->weights[i] = {&msgl__cuda_formats[MSGL_W_BF16], N, K, b->w + (size_t)i * N * K * 2};
        msgl_linear_call c = {};
        c.w = &b->weights[i];
        c.in = b->in;
        c.ld_in = K;
        c.m = m;
        c.gated = true;
        c.out = b->out;
        c.ld_out = N / 2;
        b->calls[i] = c;
    }
}

static void issue(bench *b, const msgl_linear_call *c, bool own)
{
    if (own) {
        if (!msgl__cuda_stream_sm90(&b->x, c)) b->x.status = -1;
        return;
    }
    msgl_gemm_product p = {};
    p.w = c->w;
    p.in = c->in;
    p.ld_in = c->ld_in;
    p.out = b->product;
    p.ld_out = N;
    p.m = c->m;
    p.out_type = MSGL_BF16;
    msgl__cuda_gemm_run(&b->x, &p);
    msgl__cuda_gate(&b->x, MSGL_SILU, b->product, c->out, c->m, N / 2);
}

static msgl_graph *capture(bench *b, bool own)
{
    msgl_err err;
    issue(b, &b->calls[0], own); // loads kernels
    check(b, "first run");
    b->device->ops->graph_begin(b->device);
    for (int i = 0; i < SETS; i++) issue(b, &b->calls[i], own);
    msgl_graph *g = b->device->ops->graph_end(b->device, &err);
    if (g == NULL) {
        fprintf(stderr, "bench_stream: %s\n", err.text);
        exit(1);
    }
    return g;
}

// Of a call.
static float run_us(bench *b, msgl_graph *g, int times)
{
    float ms;
    CUDA_OK(cudaEventRecord(b->begin, b->stream));
    for (int i = 0; i < times; i++) b->device->ops->graph_launch(b->device, g);
    CUDA_OK(cudaEventRecord(b->end, b->stream));
    check(b, "run");
    CUDA_OK(cudaEventElapsedTime(&ms, b->begin, b->end));
    return 1000 * ms / (float)(times * SETS);
}

// Share by which the two differ at most, of a size of 1 and the result: a rounding of the library's
// product more or less.
static float worst_difference(bench *b, int m)
{
    const size_t n = (size_t)m * (N / 2);
    __nv_bfloat16 *host[2];
    for (int own = 0; own < 2; own++) {
        host[own] = (__nv_bfloat16 *)malloc(n * 2);
        CUDA_OK(cudaMemsetAsync(b->out, 0xff, n * 2, b->stream));
        issue(b, &b->calls[0], own);
        check(b, "comparison");
        CUDA_OK(cudaMemcpy(host[own], b->out, n * 2, cudaMemcpyDeviceToHost));
    }
    float worst = 0;
    for (size_t i = 0; i < n; i++) {
        const float want = __bfloat162float(host[0][i]), got = __bfloat162float(host[1][i]);
        const float share = fabsf(got - want) / (fabsf(want) + 1.0f);
        if (!(share <= worst)) worst = share;
    }
    free(host[0]);
    free(host[1]);
    return worst;
}

static void compare(bench *b, int m, bool hot)
{
    prepare(b, m);
    const float worst = worst_difference(b, m);
    msgl_graph *g[2];
    float cold[2][RUNS], warm[2] = {0, 0};
    for (int own = 0; own < 2; own++) g[own] = capture(b, own);
    for (int r = 0; r < RUNS; r++) {
        for (int own = 0; own < 2; own++) {
            const struct timespec pause = {0, 4000000};
            (void)nanosleep(&pause, NULL);
            const float us = run_us(b, g[own], 1);
            int i = r;
            for (; i > 0 && us < cold[own][i - 1]; i--) cold[own][i] = cold[own][i - 1];
            cold[own][i] = us;
        }
    }
    for (int turn = 0; hot && turn < 2; turn++) {
        for (int own = 0; own < 2; own++) {
            const int times = (int)(1.7e5f / (cold[own][RUNS / 2] * SETS)) + 1;
            (void)run_us(b, g[own], times); // warms up
            warm[own] += run_us(b, g[own], times) / 2;
        }
    }
    printf("m %3d limits %5.1f %5.1f  cold: library %6.1f own %6.1f (%.3f)", m, 2.0 * N * K / 4.2e6,
           2.0 * m * N * K / 650e6, (double)cold[0][RUNS / 2], (double)cold[1][RUNS / 2],
           (double)(cold[1][RUNS / 2] / cold[0][RUNS / 2]));
    if (hot) {
        printf("  hot: %6.1f %6.1f (%.3f)", (double)warm[0], (double)warm[1],
               (double)(warm[1] / warm[0]));
    }
    printf("  diff %.4f\n", (double)worst);
    for (int own = 0; own < 2; own++) b->device->ops->graph_destroy(b->device, g[own]);
}

int main(int argc, char **argv)
{
    static bench b;
    int rows[32], num = 0;
    bool hot = false;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--hot") == 0) {
            hot = true;
        } else if (num < 32) {
            rows[num] = atoi(argv[i]);
            if (rows[num] < 1 || rows[num] > MAX_ROWS) return 1;
            num++;
        }
    }
    if (num == 0) rows[num++] = MAX_ROWS;
    msgl_err err;
    if (msgl__cuda_device_open(0, false, NULL, &b.device, NULL, &err) != 0) {
        fprintf(stderr, "bench_stream: %s\n", err.text);
        return 1;
    }
    enum { SCRATCH = 64 << 20 };
    const size_t w = (size_t)SETS * N * K * 2, in = (size_t)MAX_ROWS * K * 2;
    void *scratch;
    b.x.device = b.device;
    b.x.act = MSGL_BF16;
    b.x.scratch = &b.scratch;
    b.stream = msgl__cuda_stream(&b.x);
    CUDA_OK(cudaMalloc(&scratch, SCRATCH));
    msgl__arena_init(&b.scratch, scratch, SCRATCH);
    CUDA_OK(cudaMalloc((void **)&b.w, w));
    CUDA_OK(cudaMalloc((void **)&b.in, in));
    CUDA_OK(cudaMalloc((void **)&b.out, (size_t)MAX_ROWS * N));
    CUDA_OK(cudaMalloc((void **)&b.product, (size_t)MAX_ROWS * N * 2));
    CUDA_OK(cudaEventCreate(&b.begin));
    CUDA_OK(cudaEventCreate(&b.end));
    noise<<<1024, 512, 0, b.stream>>>((__nv_bfloat16 *)b.w, w / 2, 0.02f);
    noise<<<1024, 512, 0, b.stream>>>((__nv_bfloat16 *)b.in, in / 2, 1);
    prepare(&b, rows[0]);
    msgl_linear_call c = b.calls[0];
    c.gated = false;
    int32_t ms[32];
    for (int i = 0; i < num; i++) ms[i] = rows[i];
    void *memory;
    CUDA_OK(cudaMalloc(&memory, SCRATCH));
    msgl_arena activations;
    msgl__arena_init(&activations, memory, SCRATCH);
    msgl_tune_product product = {};
    product.calls = &c;
    product.num_calls = 1;
    msgl__cuda_gemm_tune(&b.x, &activations, &product, ms, num);
    CUDA_OK(cudaFree(memory));
    for (int i = 0; i < num; i++) compare(&b, rows[i], hot);
    b.device->ops->destroy(b.device);
    return 0;
}
