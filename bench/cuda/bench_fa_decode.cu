// SPDX-License-Identifier: Apache-2.0
//
// Speed of fa's decode kernel: TB/s of K and V read, by event timing of one launch (launch cost
// included), inside a captured graph, and per layer of one ("chained": behind a kernel that its
// input depends on, whose own time is taken off; "rope apart": with the rope kernel between;
// "inside": rotating and storing itself). Several sets of pages, so that L2 holds none of them.
#include <algorithm>

#include "bench/cuda/median.cuh"
#include "bench/cuda/noise.cuh"
#include "tests/cuda/attn_world.cuh"
#include "tests/cuda/ops_check.cuh"

#include "cuda/attn/decode.h"
#include "cuda/launch.cuh"

enum { DIM = 128, KV_HEADS = 8, MAX_SETS = 16, REPEATS = 21, GRAPH_LAUNCHES = 24 };
static const double LIMIT = 4.2e12; // bytes/s

typedef struct shape {
    int batch, len, q_heads;
} shape;

static const shape SHAPES[] = {
    {1, 288, 16},   {8, 288, 16},   {64, 288, 16},   {256, 288, 16},  {1, 288, 40},
    {8, 288, 40},   {64, 288, 40},  {256, 288, 40},  {1, 1024, 16},   {1, 8192, 32},
    {16, 1024, 32}, {64, 1024, 16}, {256, 1024, 16}, {256, 1024, 40}, {64, 8192, 32},
};

typedef struct pool {
    size_t slots;
    void *k, *v, *q, *out, *workspace; // q: rows of the projection
    float *floats;                     // norm weights and angles
    size_t workspace_bytes;
} pool;

// What comes before and after attention in a step: the products for q, K and V and of the output,
// each a block per SM with shared memory of its own, so that there is not always room for the next
// kernel.
enum { QKV_SHARED = 68 << 10, O_SHARED = 114 << 10, PRODUCT_CYCLES = 4000 };

__global__ void product(uint32_t *q)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const long long from = clock64();
    while (clock64() - from < PRODUCT_CYCLES) continue;
    if (blockIdx.x < 64) q[blockIdx.x * blockDim.x + threadIdx.x] ^= 1u;
}

static void launch_product(const void *q, int shared, cudaStream_t stream)
{
    CUDA_OK(cudaFuncSetAttribute(product, cudaFuncAttributeMaxDynamicSharedMemorySize, O_SHARED));
    CUDA_OK(cudaFuncSetAttribute(product, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared));
    CUDA_OK(msgl__launch(product, 132, 128, shared, stream, (uint32_t *)q));
}

// What a round of the graph has.
typedef enum chain { ALONE, PRODUCTS, CHAINED, ROPE_APART, ROPE_INSIDE, CHAINS } chain;

typedef struct rope_sets {
    msgl_rope_call call;
    const int32_t *slots; // [sets, batch]
    bench_exec exec;
} rope_sets;

// Milliseconds per round of a captured graph.
static double time_graph(const pool *p, msgl_cuda_attn_call *c, const int32_t *tables, size_t need,
                         int sets, const msgl_fa_decode_tune *fixed, cudaStream_t stream,
                         chain what, rope_sets *rope)
{
    const cudaGraphExec_t exec = cuda_capture(stream, [&] {
        for (int i = 0; i < GRAPH_LAUNCHES; i++) {
            c->table = tables + (size_t)(i % sets) * need / c->page_size;
            rope->call.slots = rope->slots + (size_t)(i % sets) * c->batch;
            if (what != ALONE) launch_product(p->q, QKV_SHARED, stream);
            if (what == ROPE_APART) msgl__cuda_qk_norm_rope_store(&rope->exec.x, &rope->call);
            c->rope = what == ROPE_INSIDE ? &rope->call : NULL;
            if (what != PRODUCTS) {
                CUDA_OK(fixed ? msgl__cuda_fa_decode_tuned(c, fixed, stream)
                              : msgl__cuda_fa_decode(c, stream));
            }
            if (what != ALONE) launch_product(p->out, O_SHARED, stream);
        }
    });
    const double ms = median_graph_ms(stream, exec, 1, 5);
    CUDA_OK(cudaGraphExecDestroy(exec));
    return ms / GRAPH_LAUNCHES;
}

static void run(const pool *p, const shape *s, int page, const msgl_fa_decode_tune *fixed,
                bool deterministic, const char *name)
{
    const size_t need = (size_t)s->batch * s->len;
    const size_t kv = need * KV_HEADS * DIM * 4;
    int sets = (int)std::min((size_t)MAX_SETS, p->slots / need);
    if ((size_t)sets * kv > ((size_t)2 << 30)) sets = std::max(2, (int)(((size_t)2 << 30) / kv));
    // Pages of all sets are a shuffle of the pool's.
    const size_t pages = p->slots / page;
    int32_t *perm = (int32_t *)malloc(pages * 4); // place x is in page perm[x / page]
    attn_rng rng = {7};
    for (size_t i = 0; i < pages; i++) perm[i] = (int32_t)i;
    for (size_t i = pages - 1; i > 0; i--) std::swap(perm[i], perm[attn_next(&rng) % (i + 1)]);
    int32_t *lens = (int32_t *)malloc(s->batch * 4), *rows = (int32_t *)malloc(s->batch * 4);
    for (int i = 0; i < s->batch; i++) lens[i] = s->len, rows[i] = i;
    int32_t *lens_dev = (int32_t *)device_copy(lens, s->batch * 4);
    int32_t *rows_dev = (int32_t *)device_copy(rows, s->batch * 4);
    int32_t *table_dev = (int32_t *)device_copy(perm, pages * 4);

    // A slot for each set's newest tokens, and what rotates them.
    int32_t *slots = (int32_t *)malloc(sets * s->batch * 4);
    for (int i = 0; i < sets * s->batch; i++) {
        const size_t x = (size_t)(i + 1) * s->len - 1;
        slots[i] = perm[x / page] * page + (int32_t)(x % page);
    }
    int32_t *slots_dev = (int32_t *)device_copy(slots, sets * s->batch * 4);
    rope_sets rope = {};
    rope.slots = slots_dev;
    rope.call.qkv = p->q, rope.call.ld = (size_t)(s->q_heads + 2 * KV_HEADS) * DIM;
    rope.call.tokens = s->batch, rope.call.num_q_heads = s->q_heads;
    rope.call.num_kv_heads = KV_HEADS, rope.call.head_dim = DIM, rope.call.half = DIM / 2;
    rope.call.q_weight = rope.call.k_weight = p->floats, rope.call.cos_sin = p->floats;
    rope.call.eps = 1e-6f, rope.call.kv_dtype = MSGL_BF16;
    rope.call.k_pool = p->k, rope.call.v_pool = p->v;

    msgl_cuda_attn_call c = {};
    c.dtype = MSGL_BF16;
    c.num_q_heads = s->q_heads, c.num_kv_heads = KV_HEADS, c.head_dim = DIM;
    c.q = p->q, c.ld_q = rope.call.ld, c.out = p->out, c.ld_out = (size_t)s->q_heads * DIM;
    c.k = p->k, c.v = p->v, c.num_slots = (int64_t)p->slots;
    c.scale = 0.088f, c.out_scale = 1, c.window = -1, c.batch = s->batch;
    c.seqlens_k = lens_dev, c.table_stride = s->len, c.table_rows = rows_dev, c.page_size = page;
    c.paging = msgl__paging_of(page);
    c.total_q = s->batch, c.max_seqlen_q = 1, c.max_seqlen_k = s->len;
    c.workspace = p->workspace, c.deterministic = deterministic;
    if (msgl__fa_decode_workspace(s->q_heads, KV_HEADS, DIM, s->batch, deterministic) >
        p->workspace_bytes) {
        exit(3);
    }
    CUDA_OK(cudaMemset(p->workspace, 0, p->workspace_bytes));

    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    int turn = 0;
    const double ms = median_ms(stream, 3, REPEATS, [&] {
        c.table = table_dev + (size_t)(turn++ % sets) * need / page;
        CUDA_OK(fixed ? msgl__cuda_fa_decode_tuned(&c, fixed, stream)
                      : msgl__cuda_fa_decode(&c, stream));
    });
    exec_open(&rope.exec, 1 << 10);
    rope.exec.x.act = MSGL_BF16;
    rope.exec.device.stream = stream;
    double graph_ms[CHAINS];
    for (int i = 0; i < CHAINS; i++) {
        graph_ms[i] = time_graph(p, &c, table_dev, need, sets, fixed, stream, (chain)i, &rope);
    }
    const double t = ms * 1e-3, g = graph_ms[0] * 1e-3;
    printf("fa %dx%d %d/%d page=%d %-13s %7.1f us %5.2f TB/s %3.0f%% | graph %7.1f us %5.2f TB/s | "
           "chained %7.1f us, rope apart %7.1f, inside %7.1f\n",
           s->batch, s->len, s->q_heads, KV_HEADS, page, name, t * 1e6, kv / t * 1e-12,
           kv / t / LIMIT * 100, g * 1e6, kv / g * 1e-12,
           (graph_ms[CHAINED] - graph_ms[PRODUCTS]) * 1e3,
           (graph_ms[ROPE_APART] - graph_ms[PRODUCTS]) * 1e3,
           (graph_ms[ROPE_INSIDE] - graph_ms[PRODUCTS]) * 1e3);
    fflush(stdout);
    cudaStreamDestroy(stream);
    cudaFree(lens_dev), cudaFree(rows_dev), cudaFree(table_dev);
    cudaFree(slots_dev), cudaFree(rope.exec.scratch.base), free(slots);
    free(perm), free(lens), free(rows);
}

int main(int argc, char **argv)
{
    pool p = {};
    p.slots = (size_t)3 << 19;
    const size_t bytes = p.slots * KV_HEADS * DIM * 2;
    p.workspace_bytes = (size_t)256 << 20;
    p.k = device_copy(NULL, bytes);
    p.v = device_copy(NULL, bytes);
    p.q = device_copy(NULL, 256 * 64 * DIM * 2);
    p.floats = (float *)device_copy(NULL, 256 * DIM * 4);
    p.out = device_copy(NULL, 256 * 64 * DIM * 2);
    p.workspace = device_copy(NULL, p.workspace_bytes);
    noise_pairs<<<1024, 256>>>((uint32_t *)p.k, bytes / 4, NOISE_TO_ONE, 1);
    noise_pairs<<<1024, 256>>>((uint32_t *)p.v, bytes / 4, NOISE_TO_ONE, 2);
    noise_pairs<<<64, 256>>>((uint32_t *)p.q, 256 * 64 * DIM / 2, NOISE_TO_ONE, 3);
    noise_pairs<<<64, 256>>>((uint32_t *)p.floats, 256 * DIM, NOISE_TO_ONE, 4);
    CUDA_OK(cudaDeviceSynchronize());
    bool sweep = false;
    const char *only = NULL; // BATCHxLEN
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--sweep") == 0) sweep = true;
        if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) only = argv[++i];
    }
    for (const shape &s : SHAPES) {
        char name[32];
        snprintf(name, sizeof name, "%dx%d", s.batch, s.len);
        if (only != NULL && strcmp(only, name) != 0) continue;
        for (int page = 1; page <= 16; page += 15) {
            run(&p, &s, page, NULL, false, "");
            if (page == 16) run(&p, &s, page, NULL, true, "deterministic");
            if (!sweep) continue;
            for (int32_t units : {16, 37}) {
                const msgl_fa_decode_tune t = {units, 132};
                char name[64];
                snprintf(name, sizeof name, "min %d", units);
                run(&p, &s, page, &t, false, name);
            }
        }
    }
    return 0;
}
