// SPDX-License-Identifier: Apache-2.0
//
// Speed of the Hopper prefill kernel: causal TFLOP/s (half of the square counted) by event timing
// of one launch, launch cost included, and inside a captured graph. Pages are a shuffle of the
// pool's; those of one token also in order, as a new prompt's are. A pause before each case lets
// the card's power limiter forget the one before: without it a case's clock depends on what ran
// earlier. `NAME SHAPE` instead soaks one shape for some seconds. The name e4m3: K and V are.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>

extern "C" {
#include "cuda/attn/prefill_sm90.h"
#include "cuda/backends/plan_prefill.h"
}
#include "bench/cuda/median.cuh"

enum { DIM = 128, REPEATS = 15, GRAPH_LAUNCHES = 4, MAX_BATCH = 64, MAX_TOKENS = 16384 };

typedef struct {
    int batch, q_len, k_len, hq, hkv;
    double ask[2]; // TFLOP/s at page 16 and 128
} shape;

static const shape SHAPES[] = {
    {1, 4096, 4096, 32, 8, {540, 580}}, {1, 16384, 16384, 32, 8, {600, 640}},
    {4, 4096, 4096, 16, 8, {500, 530}}, {16, 1024, 1024, 16, 8, {350, 370}},
    {64, 256, 256, 16, 8, {180, 190}},  {1, 1024, 16384, 32, 8, {610, 655}},
};

__global__ static void fill(__nv_bfloat16 *p, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 0x9e3779b1u + seed;
        float sum = 0;
        for (int k = 0; k < 4; k++) { // nearly normal, variance 1
            h ^= h >> 15;
            h *= 0x2c1b3c6du;
            h ^= h >> 12;
            h *= 0x297a2d39u;
            h ^= h >> 15;
            sum += (float)(h >> 8) / 8388608.f - 1.f;
        }
        p[i] = __float2bfloat16(sum * 0.866f);
    }
}

__global__ static void quantise(const __nv_bfloat16 *from, __nv_fp8_e4m3 *to, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        to[i] = __nv_fp8_e4m3(from[i]);
}

typedef struct {
    __nv_bfloat16 *q, *k, *v, *out;
    __nv_fp8_e4m3 *k_codes, *v_codes; // or NULL
    size_t slots;
} pool;

static void run(const pool *p, const shape *s, int page, bool in_order, double *event_s,
                double *graph_s)
{
    const int need = s->batch * s->k_len, pages = (int)(p->slots / page);
    int *order = (int *)malloc(sizeof(int) * pages); // place x is in page order[x / page]
    uint32_t state = 12345;
    for (int i = 0; i < pages; i++) order[i] = i;
    for (int i = pages - 1; i > 0 && !in_order; i--) {
        state = state * 1664525u + 1013904223u;
        std::swap(order[i], order[(uint64_t)state * (uint32_t)(i + 1) >> 32]);
    }
    int cu[MAX_BATCH + 1] = {0}, lens[MAX_BATCH], rows[MAX_BATCH];
    for (int i = 0; i < s->batch; i++) {
        cu[i + 1] = cu[i] + s->q_len;
        lens[i] = s->k_len;
        rows[i] = i;
    }
    msgl_cuda_attn_call c = {};
    c.dtype = MSGL_BF16;
    c.num_q_heads = s->hq;
    c.num_kv_heads = s->hkv;
    c.head_dim = DIM;
    c.q = p->q;
    c.out = p->out;
    c.ld_q = c.ld_out = (size_t)s->hq * DIM;
    c.e4m3 = p->k_codes != NULL;
    c.k = c.e4m3 ? (void *)p->k_codes : p->k;
    c.v = c.e4m3 ? (void *)p->v_codes : p->v;
    c.num_slots = (int64_t)p->slots;
    c.scale = 0.08838835f;
    c.out_scale = 1;
    c.window = -1;
    c.batch = s->batch;
    c.total_q = cu[s->batch];
    c.max_seqlen_q = s->q_len;
    c.max_seqlen_k = s->k_len;
    c.page_size = page;
    c.paging = msgl__paging_of(page);
    c.table_stride = s->k_len;
    c.cu_seqlens_q = (int32_t *)device_copy(cu, sizeof(int) * (s->batch + 1));
    c.seqlens_k = (int32_t *)device_copy(lens, sizeof(int) * s->batch);
    c.table_rows = (int32_t *)device_copy(rows, sizeof(int) * s->batch);
    c.table = (int32_t *)device_copy(order, sizeof(int) * pages);
    void *plan = malloc(msgl__fa_plan_prefill_size(s->hq, s->hkv, s->batch, c.total_q));
    const msgl_fa_prefill_batch b = {s->hq,     s->hkv,   DIM, c.e4m3 ? 1 : 2, -1,
                                     50u << 20, s->batch, cu,  lens,           rows};
    const size_t used = msgl__fa_plan_prefill(&b, plan);
    c.plan = device_copy(plan, used);
    free(plan);
    free(order);

    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    const auto prefill = [&] { CUDA_OK(msgl__cuda_fa_prefill_sm90(&c, stream)); };
    *event_s = median_ms(stream, 3, REPEATS, prefill) * 1e-3;
    const cudaGraphExec_t exec = cuda_capture(stream, [&] {
        for (int i = 0; i < GRAPH_LAUNCHES; i++) prefill();
    });
    *graph_s = median_graph_ms(stream, exec, 1, 5) * 1e-3 / GRAPH_LAUNCHES;
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaStreamDestroy(stream));
    const void *all[] = {c.cu_seqlens_q, c.seqlens_k, c.table_rows, c.table, c.plan};
    for (const void *x : all) CUDA_OK(cudaFree((void *)x));
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    const int soak = argc > 2 ? atoi(argv[2]) : -1; // only this shape, for a second, to read clocks
    const int last = (int)(sizeof SHAPES / sizeof SHAPES[0]);
    pool p = {};
    p.slots = 32768;
    CUDA_OK(cudaMalloc((void **)&p.k, p.slots * 8 * DIM * 2));
    CUDA_OK(cudaMalloc((void **)&p.v, p.slots * 8 * DIM * 2));
    CUDA_OK(cudaMalloc((void **)&p.q, (size_t)MAX_TOKENS * 32 * DIM * 2));
    CUDA_OK(cudaMalloc((void **)&p.out, (size_t)MAX_TOKENS * 32 * DIM * 2));
    fill<<<1024, 256>>>(p.k, p.slots * 8 * DIM, 1);
    fill<<<1024, 256>>>(p.v, p.slots * 8 * DIM, 2);
    fill<<<1024, 256>>>(p.q, (size_t)MAX_TOKENS * 32 * DIM, 3);
    if (strcmp(name, "e4m3") == 0) {
        CUDA_OK(cudaMalloc((void **)&p.k_codes, p.slots * 8 * DIM));
        CUDA_OK(cudaMalloc((void **)&p.v_codes, p.slots * 8 * DIM));
        quantise<<<1024, 256>>>(p.k, p.k_codes, p.slots * 8 * DIM);
        quantise<<<1024, 256>>>(p.v, p.v_codes, p.slots * 8 * DIM);
    }
    CUDA_OK(cudaDeviceSynchronize());
    printf("%-12s %-20s |%32s |%32s | asked\n", name, "page 1/in order/16/128",
           "TFLOP/s of one launch", "in a graph");
    for (int i = 0; i < last; i++) {
        const shape *s = &SHAPES[i];
        if (soak >= 0 && i != soak) continue;
        for (int j = 0; soak >= 0 && j < 20; j++) {
            double a, b;
            run(&p, s, 128, false, &a, &b);
        }
        const double pairs = (double)s->q_len * (s->k_len - s->q_len) + .5 * s->q_len * s->q_len;
        const double flop = 4. * DIM * s->hq * s->batch * pairs;
        double event_s[4], graph_s[4];
        static const int pages[] = {1, 1, 16, 128};
        for (int j = 0; j < 4; j++) {
            const struct timespec pause = {0, 300 * 1000 * 1000};
            if (soak < 0) nanosleep(&pause, NULL);
            run(&p, s, pages[j], j == 1, &event_s[j], &graph_s[j]);
        }
        char what[40];
        snprintf(what, sizeof what, "%dx%d/%d %d/%d", s->batch, s->q_len, s->k_len, s->hq, s->hkv);
        printf("%-12s %-20s |", name, what);
        for (int j = 0; j < 4; j++) printf(" %7.0f", flop / event_s[j] * 1e-12);
        printf(" |");
        for (int j = 0; j < 4; j++) printf(" %7.0f", flop / graph_s[j] * 1e-12);
        printf(" | %.0f/%.0f\n", s->ask[0], s->ask[1]);
        fflush(stdout);
    }
    return 0;
}
