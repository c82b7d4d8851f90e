// SPDX-License-Identifier: Apache-2.0
//
// Time of a layer of the gated delta rule (16 k heads, 32 v heads of 128) between its products, per
// call in a captured graph whose calls have states and rows of their own: microseconds, and for
// answers the bytes of the states, read and written, against what the memory gives (4.2 TB/s), for
// chunks the products of the recurrence against what the tensor cores give (790 TFLOP/s).
#include "bench/cuda/median.cuh"
#include "cuda/device_api.h"
#include "tests/cuda/delta_case.cuh"

enum { K_HEADS = 16, V_HEADS = 32, CALLS = 16, REPEATS = 15 };

static const double MEMORY_TB = 4.2, TENSOR_TFLOP = 790;

// Products of a chunk of 64 and a v head, two operations each: k k^T, q k^T, T beta(V - K S), K S,
// Q S, P U and K^T U.
static const double CHUNK_FLOP = 2.0 * 64 * 128 * (64 + 64 + 64 + 128 + 128 + 64 + 128);

struct bench_rows {
    char *in, *ab, *out;
};

static delta_layer layer_new(bench_exec *e, int num_states)
{
    uint64_t seed = 1;
    delta_layer l = delta_layer_new(K_HEADS, V_HEADS, 1, 0, &seed);
    CUDA_OK(cudaFree(l.states));
    l.num_states = num_states;
    CUDA_OK(cudaMalloc((void **)&l.states, l.stride * (size_t)num_states));
    msgl__cuda_fill_normal(e->device.stream, l.states, MSGL_F32, l.stride * (size_t)num_states / 4,
                           3, 0.1f);
    for (int i = 0; i < num_states; i++) { // the convolution's inputs are bf16
        msgl__cuda_fill_normal(e->device.stream, l.states + (size_t)i * l.stride + l.matrix() * 4,
                               MSGL_BF16, (size_t)l.channels() * 4, 5 + i, 1);
    }
    exec_sync(e);
    return l;
}

static bench_rows rows_new(bench_exec *e, const delta_layer &l, size_t rows)
{
    bench_rows r;
    const size_t wide = (size_t)l.v_heads * DELTA_DIM, in = (size_t)l.channels() + wide;
    CUDA_OK(cudaMalloc((void **)&r.in, rows * in * 2));
    CUDA_OK(cudaMalloc((void **)&r.ab, rows * (size_t)l.v_heads * 4));
    CUDA_OK(cudaMalloc((void **)&r.out, rows * wide * 2));
    msgl__cuda_fill_normal(e->device.stream, r.in, MSGL_BF16, rows * in, 7, 1);
    msgl__cuda_fill_normal(e->device.stream, r.ab, MSGL_BF16, rows * (size_t)l.v_heads * 2, 8, 1);
    exec_sync(e);
    return r;
}

static void rows_free(bench_rows *r)
{
    CUDA_OK(cudaFree(r->in));
    CUDA_OK(cudaFree(r->ab));
    CUDA_OK(cudaFree(r->out));
}

static void set_rows(msgl_delta_call *c, const delta_layer &l, const bench_rows &r)
{
    const size_t wide = (size_t)l.v_heads * DELTA_DIM, channels = (size_t)l.channels();
    c->qkv = r.in, c->z = r.in + channels * 2, c->ld_qkv = c->ld_z = channels + wide;
    c->a = r.ab, c->b = r.ab + V_HEADS * 2, c->ld_a = c->ld_b = 2 * V_HEADS;
    c->out = r.out, c->ld_out = wide;
}

static void bench_decode(bench_exec *e, int requests, int sets)
{
    delta_layer l = layer_new(e, requests * sets);
    bench_rows rows = rows_new(e, l, (size_t)requests);
    std::vector<delta_step> steps((size_t)sets);
    for (int s = 0; s < sets; s++) {
        delta_step &step = steps[(size_t)s];
        std::vector<delta_piece> pieces;
        for (int r = 0; r < requests; r++) {
            const int state = s * requests + (r * 37 + 11) % requests;
            pieces.push_back({1000 + r, 1001 + r, state, state, {}});
        }
        CUDA_OK(cudaMalloc((void **)&step.dev, 65536));
        delta_step_fill(&step, l, pieces, MSGL_DECODE);
        delta_step_upload(&step);
        set_rows(&step.call, l, rows);
        step.call.io.at.saves = step.call.io.at.dev_saves = NULL;
    }
    printf("decode %4d x %2d sets:", requests, sets);
    const double bytes = 2.0 * requests * (double)l.matrix() * 4;
    for (int slices = 0; slices <= 2; slices++) {
        const cudaGraphExec_t g = cuda_capture(e->device.stream, [&] {
            for (int i = 0; i < CALLS; i++)
                msgl__cuda_delta_decode(&e->x, &steps[(size_t)(i % sets)].call, slices);
        });
        const float us = median_graph_ms(e->device.stream, g, 3, REPEATS) * 1e3f / CALLS;
        CUDA_OK(cudaGraphExecDestroy(g));
        exec_sync(e);
        printf("  [%d] %7.2f us %.2f TB/s %3.0f%%", slices, us, bytes / us * 1e-6,
               bytes / us * 1e-4 / MEMORY_TB);
    }
    printf("\n");
    for (delta_step &s : steps) CUDA_OK(cudaFree(s.dev));
    rows_free(&rows);
    delta_layer_free(&l);
}

static void bench_prefill(bench_exec *e, int requests, int tokens)
{
    delta_layer l = layer_new(e, requests);
    bench_rows rows = rows_new(e, l, (size_t)requests * tokens);
    std::vector<delta_piece> pieces;
    for (int r = 0; r < requests; r++) pieces.push_back({0, tokens, -1, r, {}});
    delta_step step;
    CUDA_OK(cudaMalloc((void **)&step.dev, 65536));
    delta_step_fill(&step, l, pieces, MSGL_PREFILL);
    delta_step_upload(&step);
    set_rows(&step.call, l, rows);
    printf("prefill %2d x %5d:", requests, tokens);
    const double flop = (double)requests * (tokens / 64) * V_HEADS * CHUNK_FLOP;
    for (int warps = 0; warps <= 8; warps += 4) {
        const cudaGraphExec_t g = cuda_capture(
            e->device.stream, [&] { msgl__cuda_delta_prefill(&e->x, &step.call, warps); });
        const float us = median_graph_ms(e->device.stream, g, 3, REPEATS) * 1e3f;
        CUDA_OK(cudaGraphExecDestroy(g));
        exec_sync(e);
        printf("  [%d] %7.1f us %5.1f TFLOP/s %4.1f%%", warps, us, flop / us * 1e-6,
               flop / us * 1e-4 / TENSOR_TFLOP);
    }
    printf("\n");
    CUDA_OK(cudaFree(step.dev));
    rows_free(&rows);
    delta_layer_free(&l);
}

// In brackets: blocks that share a v head, or warps of a block; 0 is what is chosen.
int main(void)
{
    static bench_exec e;
    exec_open(&e, (size_t)1 << 30);
    e.x.act = MSGL_BF16;
    const int requests[] = {1, 2, 4, 8, 16, 64, 256};
    for (int n : requests) bench_decode(&e, n, n < 64 ? CALLS : 4);
    bench_decode(&e, 1, 1); // a state that the L2 holds
    bench_prefill(&e, 1, 4096);
    bench_prefill(&e, 1, 16384);
    bench_prefill(&e, 16, 1024);
    bench_prefill(&e, 64, 256);
    bench_prefill(&e, 1, 512);
    return 0;
}
