// SPDX-License-Identifier: Apache-2.0
//
// A step's two attention calls, answers and a chunk, which may overlap: queued behind a kernel that
// writes their queries late, and in front of one that copies what they have made. Both results
// are compared with those of the same kernels one after the other, to the bit, and with exact
// attention.
#include "tests/cuda/attn_world.cuh"

extern "C" {
#include "cuda/attn/prefill.h"
#include "cuda/backends/plan_prefill.h"
}
#include "cuda/attn/decode.h"
#include "cuda/launch.cuh"

enum { CALLS = 2, TURNS = 12 };

typedef struct pair_case {
    msgl_dtype dtype;
    int q_heads, kv_heads, dim, page, answers, keys, chunks, tokens;
    bool deterministic;
} pair_case;

typedef struct copies {
    const uint4 *from[CALLS];
    uint4 *to[CALLS];
    size_t num[CALLS]; // of 16 bytes
    int microseconds;  // before anything is copied
} copies;

static __global__ void copy_late(const copies c)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const long long start = clock64();
    while (clock64() - start < 1500ll * c.microseconds) {
    }
    for (int i = 0; i < CALLS; i++) {
        for (size_t at = blockIdx.x * blockDim.x + threadIdx.x; at < c.num[i];
             at += (size_t)gridDim.x * blockDim.x) {
            c.to[i][at] = __ldcg(c.from[i] + at);
        }
    }
}

static void copy(const copies &c)
{
    CUDA_OK(msgl__launch(copy_late, dim3(32), dim3(256), 0, (cudaStream_t)NULL, c));
}

static void *make_plan(const attn_world *w)
{
    const msgl_cuda_attn_call *c = &w->call;
    const size_t size =
        msgl__fa_plan_prefill_size(c->num_q_heads, c->num_kv_heads, c->batch, c->total_q);
    void *host = calloc(1, size);
    const msgl_fa_prefill_batch b = {c->num_q_heads, c->num_kv_heads, c->head_dim, 2,
                                     c->window,      50u << 20,       c->batch,    w->cu_q,
                                     w->k_lens,      w->rows};
    void *plan = device_copy(host, msgl__fa_plan_prefill(&b, host));
    free(host);
    return plan;
}

static void attend(attn_world w[CALLS], bool together)
{
    w[0].call.first = w[1].call.second = together;
    CUDA_OK((cudaError_t)msgl__cuda_fa_decode(&w[0].call, NULL));
    if (!together) CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK((cudaError_t)msgl__cuda_fa_prefill(&w[1].call, NULL));
}

static void make(const pair_case *t, attn_rng *rng, attn_world w[CALLS])
{
    const int num[CALLS] = {t->answers, t->chunks};
    for (int i = 0; i < CALLS; i++) {
        int32_t q[512], k[512];
        for (int r = 0; r < num[i]; r++) {
            q[r] = i == 0 ? 1 : t->tokens - attn_range(rng, 0, t->tokens / 2);
            k[r] = q[r] + attn_range(rng, t->keys / 2, t->keys);
        }
        attn_world_make(&w[i], rng, t->dtype, num[i], q, k, t->q_heads, t->kv_heads, t->dim,
                        t->page);
        w[i].call.deterministic = t->deterministic;
    }
    const size_t bytes =
        msgl__fa_decode_workspace(t->q_heads, t->kv_heads, t->dim, t->answers, t->deterministic);
    w[0].call.workspace = device_copy(NULL, bytes);
    CUDA_OK(cudaMemset(w[0].call.workspace, 0, bytes));
    w[1].call.plan = make_plan(&w[1]);
}

// Returns the failures.
static int check(const pair_case *t, attn_rng *rng)
{
    attn_world w[CALLS];
    make(t, rng, w);
    copies in = {}, out = {};
    void *want[CALLS], *got[CALLS];
    for (int i = 0; i < CALLS; i++) {
        in.from[i] = (const uint4 *)device_copy(w[i].q, w[i].q_bytes);
        in.to[i] = (uint4 *)w[i].q_dev;
        in.num[i] = w[i].q_bytes / 16;
        out.from[i] = (const uint4 *)w[i].out_dev;
        out.to[i] = (uint4 *)device_copy(NULL, w[i].out_bytes);
        out.num[i] = w[i].out_bytes / 16;
        want[i] = malloc(w[i].out_bytes), got[i] = malloc(w[i].out_bytes);
        attn_poison(&w[i]);
    }
    in.microseconds = 20;
    attend(w, false);
    CUDA_OK(cudaDeviceSynchronize());
    int failures = 0;
    for (int i = 0; i < CALLS; i++) {
        double worst, lse;
        attn_compare(&w[i], w[i].k_lens, 97, &worst, &lse);
        failures += !(worst < 0.02) || !(lse < 1e-3);
        CUDA_OK(cudaMemcpy(want[i], w[i].out_dev, w[i].out_bytes, cudaMemcpyDeviceToHost));
    }
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < CALLS; i++) {
            attn_poison(&w[i]);
            CUDA_OK(cudaMemset(w[i].q_dev, 0xff, w[i].q_bytes));
            CUDA_OK(cudaMemset(out.to[i], 0xff, w[i].out_bytes));
        }
        copy(in);
        attend(w, true);
        copy(out);
        CUDA_OK(cudaDeviceSynchronize());
        for (int i = 0; i < CALLS; i++) {
            CUDA_OK(cudaMemcpy(got[i], out.to[i], w[i].out_bytes, cudaMemcpyDeviceToHost));
            failures += memcmp(got[i], want[i], w[i].out_bytes) != 0;
        }
    }
    if (failures > 0) {
        printf("FAIL heads %d/%d dim %d page %d: %d answers, %d chunks: %d\n", t->q_heads,
               t->kv_heads, t->dim, t->page, t->answers, t->chunks, failures);
    }
    CUDA_OK(cudaFree(w[0].call.workspace));
    CUDA_OK(cudaFree((void *)w[1].call.plan));
    for (int i = 0; i < CALLS; i++) {
        CUDA_OK(cudaFree((void *)in.from[i]));
        CUDA_OK(cudaFree(out.to[i]));
        free(want[i]), free(got[i]);
        attn_world_free(&w[i]);
    }
    return failures;
}

int main(int argc, char **argv)
{
    bool quick = false;
    attn_rng rng = {1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) quick = true;
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            rng.state = strtoull(argv[i + 1], NULL, 0);
    }
    const pair_case cases[] = {
        {MSGL_BF16, 16, 8, 128, 16, 3, 200, 1, 90, false},   // the kernel for few answers
        {MSGL_BF16, 40, 8, 128, 1, 64, 500, 1, 128, false},  // two CTAs an SM
        {MSGL_BF16, 40, 8, 128, 16, 64, 500, 3, 300, false}, // many tiles
        {MSGL_F16, 32, 4, 128, 64, 20, 300, 2, 40, true},    // deterministic
        {MSGL_F16, 8, 8, 64, 1, 40, 300, 2, 200, false},
        {MSGL_BF16, 16, 4, 256, 16, 30, 300, 1, 128, false},
    };
    int failures = 0, n = 0;
    for (const pair_case &c : cases) {
        if (quick && n > 0) break;
        failures += check(&c, &rng);
        n++;
    }
    printf("attn pair    %s: %d cases, %d failures\n", failures ? "FAILED" : "ok", n, failures);
    return failures != 0;
}
