// SPDX-License-Identifier: Apache-2.0
//
// Products of many rows with what stands behind them: one kernel (wide_sm90.cu) against the
// library's product and a kernel behind it, at the shapes of Qwen3-0.6B and 14B. Both take turns.
// "short": median of single runs with pauses; "hot": mean of half a second without, where the power
// limit holds the clock down as in a long prefill.
#include <cuda_bf16.h>
#include <time.h>

#include "bench/cuda/noise.cuh"
#include "cuda/device_api.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/lt.cuh"
#include "cuda/gemm/wide_sm90.h"
#include "tests/cuda/ops_check.cuh"

enum { RUNS = 9, TURNS = 2, KV_HEADS = 8, DIM = 128 };

typedef struct shape {
    const char *name;
    int n, k, q_heads; // q_heads > 0: the projection to q, K and V
    bool gated;
} shape;

static const shape SHAPES[2][2] = {
    {{"qkv+rope", 4096, 1024, 16, false}, {"gate_up+silu", 6144, 1024, 0, true}},
    {{"qkv+rope", 7168, 5120, 40, false}, {"gate_up+silu", 34816, 5120, 0, true}},
};

typedef struct bench {
    msgl_device *device;
    msgl_exec x;
    msgl_arena scratch, activations; // activations: of tune
    cudaStream_t stream;
    cudaEvent_t begin, end;
    char *w, *in, *out, *product, *k_pool, *v_pool;
    float *cos_sin, *weights;
    int32_t *slots;
    msgl_weight weight;
    msgl_linear_call call;
    msgl_rope_call rope;
} bench;

static __global__ void count_up(int32_t *p, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i] = i;
}

static void prepare(bench *b, const shape *s, int m)
{
    const size_t columns = (size_t)(s->gated ? s->n / 2 : s->n);
    b->weight = {&msgl__cuda_formats[MSGL_W_BF16], s->n, s->k, b->w};
    b->call = {};
    b->call.w = &b->weight;
    b->call.in = b->in;
    b->call.ld_in = (size_t)s->k;
    b->call.m = m;
    b->call.gated = s->gated;
    b->call.out = b->out;
    b->call.ld_out = columns;
    b->rope = {};
    b->rope.qkv = b->out;
    b->rope.ld = columns;
    b->rope.tokens = m;
    b->rope.num_q_heads = s->q_heads;
    b->rope.num_kv_heads = KV_HEADS;
    b->rope.head_dim = DIM;
    b->rope.half = DIM / 2;
    b->rope.q_weight = b->rope.k_weight = b->weights;
    b->rope.eps = 1e-6f;
    b->rope.cos_sin = b->cos_sin;
    b->rope.kv_dtype = MSGL_BF16;
    b->rope.k_pool = b->k_pool;
    b->rope.v_pool = b->v_pool;
    b->rope.slots = b->slots;
}

static void issue(bench *b, const shape *s, bool wide)
{
    if (wide) {
        const msgl_rope_call *rope = s->q_heads > 0 ? &b->rope : NULL;
        if (!msgl__cuda_wide_sm90(&b->x, &b->call, rope)) b->x.status = -1;
        return;
    }
    msgl_gemm_product p = {};
    p.w = &b->weight;
    p.in = b->in;
    p.ld_in = b->call.ld_in;
    p.out = s->gated ? b->product : b->out;
    p.ld_out = (size_t)s->n;
    p.m = b->call.m;
    p.out_type = MSGL_BF16;
    msgl__cuda_gemm_run(&b->x, &p);
    if (s->gated) msgl__cuda_gate(&b->x, MSGL_SILU, b->product, b->out, b->call.m, s->n / 2);
    if (s->q_heads > 0) msgl__cuda_qk_norm_rope_store(&b->x, &b->rope);
}

static float run_us(bench *b, const shape *s, bool wide, int calls)
{
    float ms;
    CUDA_OK(cudaEventRecord(b->begin, b->stream));
    for (int i = 0; i < calls; i++) issue(b, s, wide);
    CUDA_OK(cudaEventRecord(b->end, b->stream));
    CUDA_OK(cudaEventSynchronize(b->end));
    CUDA_OK(cudaEventElapsedTime(&ms, b->begin, b->end));
    if (b->x.status != 0) {
        fprintf(stderr, "bench_wide: %s: %s\n", s->name, b->device->fault.text);
        exit(1);
    }
    return 1000 * ms / (float)calls;
}

static float short_us(bench *b, const shape *s, bool wide)
{
    float us[RUNS];
    for (int i = 0; i < RUNS; i++) {
        const struct timespec pause = {0, 8000000};
        (void)nanosleep(&pause, NULL);
        us[i] = run_us(b, s, wide, 4);
        for (int j = i; j > 0 && us[j] < us[j - 1]; j--) {
            const float swap = us[j];
            us[j] = us[j - 1];
            us[j - 1] = swap;
        }
    }
    return us[RUNS / 2];
}

static void compare(bench *b, const char *model, const shape *s, int m, bool hot)
{
    prepare(b, s, m);
    float times[2][2] = {{0}};
    (void)run_us(b, s, false, 1);
    const float once = run_us(b, s, true, 2);
    for (int turn = 0; turn < TURNS; turn++) {
        for (int wide = 0; wide < 2; wide++) {
            times[0][wide] += short_us(b, s, wide) / TURNS;
            if (!hot) continue;
            (void)run_us(b, s, wide, (int)(2e5f / once) + 1); // warms up
            times[1][wide] += run_us(b, s, wide, (int)(3e5f / once) + 1) / TURNS;
        }
    }
    const double flops = 2.0 * m * s->n * s->k;
    printf("%-5s %-13s m %5d  short: library %7.1f wide %7.1f us (%.3f, %3.0f TFLOP/s)", model,
           s->name, m, (double)times[0][0], (double)times[0][1],
           (double)(times[0][1] / times[0][0]), flops / (double)times[0][1] * 1e-6);
    if (hot) {
        printf("  hot: %7.1f %7.1f (%.3f, %3.0f)", (double)times[1][0], (double)times[1][1],
               (double)(times[1][1] / times[1][0]), flops / (double)times[1][1] * 1e-6);
    }
    printf("\n");
}

static void tune(bench *b, const shape *s, const int32_t *ms, int num)
{
    prepare(b, s, ms[0]);
    b->call.gated = false;
    msgl_tune_product product = {};
    product.calls = &b->call;
    product.num_calls = 1;
    msgl__cuda_gemm_tune(&b->x, &b->activations, &product, ms, num);
}

int main(int argc, char **argv)
{
    static bench b;
    int32_t rows[] = {1024, 2048, 4096, 8192, 16384}, num = sizeof rows / sizeof rows[0];
    enum { MAX_ROWS = 16384, MAX_N = 34816, MAX_K = 5120, SCRATCH = 64 << 20, TUNE = 1900 << 20 };
    bool hot = false, only[2] = {true, true};
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        hot |= strcmp(argv[i], "--hot") == 0;
        if (strcmp(argv[i], "--rows") == 0 && i + 1 < argc) {
            rows[0] = atoi(argv[++i]);
            if (rows[0] < 1 || rows[0] > MAX_ROWS) return 1;
            num = 1;
        }
        if (strcmp(argv[i], "--small") == 0) only[1] = false;
        if (strcmp(argv[i], "--large") == 0) only[0] = false;
    }
    msgl_err err;
    if (msgl__cuda_device_open(0, false, NULL, &b.device, NULL, &err) != 0) {
        fprintf(stderr, "bench_wide: %s\n", err.text);
        return 1;
    }
    b.x.device = b.device;
    b.x.act = MSGL_BF16;
    b.x.scratch = &b.scratch;
    b.stream = msgl__cuda_stream(&b.x);
    const size_t w = (size_t)MAX_N * 5120 * 2, in = (size_t)MAX_ROWS * MAX_K * 2;
    const size_t product = (size_t)MAX_ROWS * MAX_N * 2,
                 pool = (size_t)MAX_ROWS * KV_HEADS * DIM * 2;
    void *scratch, *activations;
    CUDA_OK(cudaMalloc(&scratch, SCRATCH));
    CUDA_OK(cudaMalloc(&activations, TUNE));
    msgl__arena_init(&b.scratch, scratch, SCRATCH);
    msgl__arena_init(&b.activations, activations, TUNE);
    CUDA_OK(cudaMalloc((void **)&b.w, w));
    CUDA_OK(cudaMalloc((void **)&b.in, in));
    CUDA_OK(cudaMalloc((void **)&b.out, product / 2));
    CUDA_OK(cudaMalloc((void **)&b.product, product));
    CUDA_OK(cudaMalloc((void **)&b.k_pool, pool));
    CUDA_OK(cudaMalloc((void **)&b.v_pool, pool));
    CUDA_OK(cudaMalloc((void **)&b.cos_sin, (size_t)MAX_ROWS * DIM * 4));
    CUDA_OK(cudaMalloc((void **)&b.weights, DIM * 4));
    CUDA_OK(cudaMalloc((void **)&b.slots, MAX_ROWS * 4));
    CUDA_OK(cudaEventCreate(&b.begin));
    CUDA_OK(cudaEventCreate(&b.end));
    CUDA_OK(cudaMemset(b.cos_sin, 0, (size_t)MAX_ROWS * DIM * 4));
    CUDA_OK(cudaMemset(b.weights, 0, DIM * 4));
    noise<<<1024, 512, 0, b.stream>>>((__nv_bfloat16 *)b.w, w / 2, 0.05f);
    noise<<<1024, 512, 0, b.stream>>>((__nv_bfloat16 *)b.in, in / 2, 1);
    count_up<<<MAX_ROWS / 256, 256, 0, b.stream>>>(b.slots, MAX_ROWS);
    for (int model = 0; model < 2; model++) {
        for (int i = 0; i < 2 && only[model]; i++) {
            const shape *s = &SHAPES[model][i];
            tune(&b, s, rows, num);
            for (int j = 0; j < num; j++) {
                compare(&b, model == 0 ? "0.6B" : "14B", s, rows[j], hot && rows[j] >= 8192);
            }
        }
    }
    b.device->ops->destroy(b.device);
    return 0;
}
