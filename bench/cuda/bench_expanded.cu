// SPDX-License-Identifier: Apache-2.0
//
// Speed of expanded latent attention: microseconds of gather, of attention in TFLOP/s of what is
// causal, and of a merge, each in a captured graph of launches. What lies between gather and
// attention is a usual product; absorbed attention of the same prompts: bench_mla --only prompts.
#include <stdlib.h>

#include "bench/cuda/median.cuh"
#include "bench/cuda/noise.cuh"
#include "tests/cuda/attn_world.cuh"

extern "C" {
#include "cuda/backends/plan_prefill.h"
}
#include "cuda/attn/expanded.h"

enum { LAUNCHES = 12, RANK = 512, HEAD = MSGL_EXPANDED_NOPE + MSGL_EXPANDED_ROTARY };
static const double PEAK_FLOPS = 990e12; // per second, nominal

typedef struct prompts {
    int batch, len, before, heads; // each of `len` tokens behind `before`
} prompts;

static const prompts PROMPTS[] = {
    {16, 1024, 0, 16},    {1, 4096, 0, 16},  {1, 16384, 0, 16}, {64, 256, 0, 16},
    {1, 1024, 15360, 16}, {2, 1024, 0, 128}, {1, 128, 0, 16},
};

static void *values(size_t n)
{
    void *p = device_copy(NULL, n * 2);
    noise<<<1024, 256>>>((__nv_bfloat16 *)p, n, 1.f);
    return p;
}

// The list of a pass of all keys.
static void *plan_of(const prompts *s)
{
    int32_t cu[65], lens[64], rows[64];
    const int all = s->len + s->before;
    for (int i = 0; i <= s->batch; i++) cu[i] = i * s->len;
    for (int i = 0; i < s->batch; i++) lens[i] = all, rows[i] = i * all;
    msgl_fa_prefill_batch b = {};
    b.num_q_heads = b.num_kv_heads = s->heads;
    b.head_dim = MSGL_EXPANDED_V;
    b.elem_size = 2;
    b.window = -1;
    b.l2_bytes = 50 << 20;
    b.batch = s->batch;
    b.cu_seqlens_q = cu, b.seqlens_k = lens, b.table_rows = rows;
    const size_t most = msgl__fa_plan_prefill_size(s->heads, s->heads, s->batch, s->batch * s->len);
    void *host = malloc(most);
    const size_t bytes = msgl__fa_plan_prefill(&b, host);
    void *plan = device_copy(host, bytes);
    free(host);
    return plan;
}

static void run(const prompts *s, cudaStream_t stream)
{
    const int all = s->len + s->before, tokens = s->batch * s->len, keys = s->batch * all;
    const size_t row = RANK + MSGL_EXPANDED_ROTARY, heads = (size_t)s->heads;
    int32_t *table = (int32_t *)malloc((size_t)keys * 4);
    msgl_expand_req reqs[64];
    for (int i = 0; i < keys; i++) table[i] = i;
    for (int i = 0; i < s->batch; i++)
        reqs[i] = {i * all, 0, all, i, i * s->len, s->len, s->before};
    msgl_gather_call g = {};
    g.reqs = (const msgl_expand_req *)device_copy(reqs, s->batch * sizeof *reqs);
    g.num_reqs = s->batch, g.keys = keys;
    g.rank = RANK, g.rotary = MSGL_EXPANDED_ROTARY;
    g.dtype = MSGL_BF16, g.scale = 1;
    g.pool = values((size_t)keys * row);
    g.table = (const int32_t *)device_copy(table, (size_t)keys * 4);
    g.table_stride = (size_t)all, g.paging = msgl__paging_of(1);
    g.latent = device_copy(NULL, (size_t)keys * RANK * 2);
    g.rotary_keys = device_copy(NULL, (size_t)keys * MSGL_EXPANDED_ROTARY * 2);
    msgl_expanded_call c = {};
    c.reqs = g.reqs, c.num_reqs = s->batch, c.keys = keys;
    c.heads = s->heads;
    c.nope = MSGL_EXPANDED_NOPE, c.rotary = MSGL_EXPANDED_ROTARY, c.v_dim = MSGL_EXPANDED_V;
    c.scale = 0.0722f;
    c.q = values((size_t)tokens * heads * HEAD), c.ld_q = heads * HEAD, c.tokens = tokens;
    c.kv = values((size_t)keys * heads * (MSGL_EXPANDED_NOPE + MSGL_EXPANDED_V));
    c.rotary_keys = g.rotary_keys;
    c.out = device_copy(NULL, (size_t)tokens * heads * MSGL_EXPANDED_V * 2);
    c.partial_out = device_copy(NULL, (size_t)tokens * heads * MSGL_EXPANDED_V * 2);
    c.lse = (float *)device_copy(NULL, (size_t)tokens * heads * 4);
    c.partial_lse = (float *)device_copy(NULL, (size_t)tokens * heads * 4);
    c.plan = plan_of(s);
    CUDA_OK(cudaDeviceSynchronize());
    const double gather =
        graph_us(stream, LAUNCHES, [&](int) { CUDA_OK(msgl__cuda_gather(&g, stream)); });
    const double attend =
        graph_us(stream, LAUNCHES, [&](int) { CUDA_OK(msgl__cuda_expanded(&c, stream)); });
    const double merge =
        graph_us(stream, LAUNCHES, [&](int) { CUDA_OK(msgl__cuda_expanded_merge(&c, stream)); });
    const double pairs = (double)tokens * (s->before + (s->len + 1) / 2.);
    const double flops = 2. * (HEAD + MSGL_EXPANDED_V) * s->heads * pairs;
    printf("%2dx%-5d after %-5d %3d heads: gather %6.1f us, attention %8.1f us %6.1f TFLOP/s "
           "%3.0f%%, merge of one request %5.1f us\n",
           s->batch, s->len, s->before, s->heads, gather, attend, flops / attend * 1e-6,
           flops / attend * 1e8 / PEAK_FLOPS, merge);
    fflush(stdout);
    const void *device[] = {g.reqs, g.pool, g.table,       g.latent, g.rotary_keys, c.q,
                            c.kv,   c.out,  c.partial_out, c.lse,    c.partial_lse, c.plan};
    for (const void *d : device) CUDA_OK(cudaFree((void *)d));
    free(table);
}

int main(void)
{
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    for (const prompts &s : PROMPTS) run(&s, stream);
    CUDA_OK(cudaStreamDestroy(stream));
    return 0;
}
