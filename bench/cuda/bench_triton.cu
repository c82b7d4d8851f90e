// SPDX-License-Identifier: Apache-2.0
//
// Speed of triton's kernels beside fa's general ones, on shuffled pages of 1: answers in TB/s of K
// and V read, chunks in TFLOP/s (half of the square counted), in a captured graph over several sets
// of pages, so that L2 holds none of them. The step's lists apart.
#include "bench/cuda/median.cuh"
#include "bench/cuda/noise.cuh"
#include "tests/cuda/attn_world.cuh"

#include "attention/triton/splits.h"
#include "cuda/attn/decode.h"
#include "cuda/attn/prefill_sm80.h"
#include "cuda/attn/triton.h"

enum { DIM = 128, KV_HEADS = 8, SLOTS = 64 * 4096 * 4, LAUNCHES = 8 };

typedef struct shape {
    int batch, len, q_heads; // of chunks len new tokens, of answers one
    bool chunk;
} shape;

static const shape SHAPES[] = {
    {1, 8192, 32, false}, {16, 4096, 32, false}, {64, 4096, 32, false}, {64, 1024, 16, false},
    {16, 4096, 8, false}, {16, 1024, 16, true},  {1, 8192, 32, true},
};

typedef struct pool {
    void *k, *v, *q, *out, *workspace;
    float *logits, *lse;
} pool;

static void run(const pool *p, const int32_t *perm, const shape *s)
{
    const size_t need = (size_t)s->batch * s->len;
    const int sets = (int)std::min<size_t>(LAUNCHES, SLOTS / need), queries = s->chunk ? s->len : 1;
    int32_t lens[64], rows[64], cu[65] = {0};
    for (int i = 0; i < s->batch; i++) {
        lens[i] = s->len, rows[i] = i, cu[i + 1] = (i + 1) * queries;
    }
    msgl_triton_call c = {};
    msgl_cuda_attn_call *a = &c.attn;
    a->dtype = MSGL_BF16;
    a->num_q_heads = s->q_heads, a->num_kv_heads = KV_HEADS, a->head_dim = DIM;
    a->q = p->q, a->out = p->out, a->ld_q = a->ld_out = (size_t)s->q_heads * DIM;
    a->k = p->k, a->v = p->v, a->num_slots = SLOTS;
    a->scale = 0.088f, a->out_scale = 1, a->window = -1, a->batch = s->batch;
    a->cu_seqlens_q = (int32_t *)device_copy(cu, (s->batch + 1) * 4);
    a->seqlens_k = (int32_t *)device_copy(lens, s->batch * 4);
    a->table_rows = (int32_t *)device_copy(rows, s->batch * 4);
    a->table_stride = s->len, a->page_size = 1, a->paging = msgl__paging_of(1);
    a->total_q = s->batch * queries, a->max_seqlen_q = queries, a->max_seqlen_k = s->len;
    a->workspace = p->workspace;
    c.attn_logits = p->logits, c.attn_lse = p->lse;
    msgl_triton_lists_call l = {};
    l.batch = s->batch, l.num_q_heads = s->q_heads, l.num_kv_heads = KV_HEADS;
    l.seqlens_k = a->seqlens_k, l.table_rows = a->table_rows, l.table_stride = s->len,
    l.paging = a->paging;
    l.max_seqlen_k = s->len, l.num_windows = s->chunk ? 0 : 1, l.windows[0] = -1;
    msgl_triton_lists lists[LAUNCHES];
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    for (int i = 0; i < sets; i++) {
        lists[i].kv_indptr = (int32_t *)device_copy(NULL, (s->batch + 1) * 4);
        lists[i].kv_indices = (int32_t *)device_copy(NULL, need * 4);
        lists[i].num_kv_splits = (int32_t *)device_copy(NULL, s->batch * 4);
        lists[i].splits_stride = s->batch;
        l.lists = lists[i], l.table = perm + (size_t)i * need;
        CUDA_OK(msgl__cuda_triton_lists(&l, stream));
    }
    const double plan = graph_us(stream, LAUNCHES, [&](int i) {
        l.lists = lists[i % sets], l.table = perm + (size_t)(i % sets) * need;
        CUDA_OK(msgl__cuda_triton_lists(&l, stream));
    });
    const double own = graph_us(stream, LAUNCHES, [&](int i) {
        c.kv_indptr = lists[i % sets].kv_indptr, c.kv_indices = lists[i % sets].kv_indices;
        c.num_kv_splits = lists[i % sets].num_kv_splits;
        CUDA_OK(s->chunk ? msgl__cuda_triton_extend(&c, stream)
                         : msgl__cuda_triton_decode(&c, stream));
    });
    const double fa = graph_us(stream, LAUNCHES, [&](int i) {
        a->table = perm + (size_t)(i % sets) * need;
        CUDA_OK(s->chunk ? msgl__cuda_fa_prefill_sm80(a, stream) : msgl__cuda_fa_decode(a, stream));
    });
    const double bytes = need * KV_HEADS * DIM * 4., pairs = (double)need * (s->len + 1) / 2;
    const double work = s->chunk ? pairs * s->q_heads * DIM * 4 : bytes;
    const char *unit = s->chunk ? "TFLOP/s" : "TB/s";
    printf("%s %2dx%d %2d/%d  lists %5.1f us | triton %8.1f us %7.2f %s | fa %8.1f us %7.2f %s\n",
           s->chunk ? "chunks " : "answers", s->batch, s->len, s->q_heads, KV_HEADS, plan, own,
           work / own * 1e-6, unit, fa, work / fa * 1e-6, unit);
    fflush(stdout);
    for (int i = 0; i < sets; i++) {
        cudaFree(lists[i].kv_indptr), cudaFree(lists[i].kv_indices);
        cudaFree(lists[i].num_kv_splits);
    }
    cudaFree((void *)a->cu_seqlens_q), cudaFree((void *)a->seqlens_k);
    cudaFree((void *)a->table_rows);
    CUDA_OK(cudaStreamDestroy(stream));
}

int main(void)
{
    pool p = {};
    const size_t kv = (size_t)SLOTS * KV_HEADS * DIM * 2, q = (size_t)16384 * 32 * DIM * 2;
    p.k = device_copy(NULL, kv);
    p.v = device_copy(NULL, kv);
    p.q = device_copy(NULL, q);
    p.out = device_copy(NULL, q);
    p.workspace = device_copy(NULL, (size_t)256 << 20);
    CUDA_OK(cudaMemset(p.workspace, 0, (size_t)256 << 20));
    const size_t parts = (size_t)64 * 32 * MSGL_TRITON_MAX_SPLITS;
    p.logits = (float *)device_copy(NULL, parts * DIM * 4);
    p.lse = (float *)device_copy(NULL, parts * 4);
    noise_pairs<<<1024, 256>>>((uint32_t *)p.k, kv / 4, NOISE_TO_ONE, 1);
    noise_pairs<<<1024, 256>>>((uint32_t *)p.v, kv / 4, NOISE_TO_ONE, 2);
    noise_pairs<<<1024, 256>>>((uint32_t *)p.q, q / 4, NOISE_TO_ONE, 3);
    int32_t *perm = (int32_t *)malloc((size_t)SLOTS * 4);
    attn_rng rng = {7};
    for (int32_t i = 0; i < SLOTS; i++) perm[i] = i;
    for (int32_t i = SLOTS - 1; i > 0; i--) std::swap(perm[i], perm[attn_next(&rng) % (i + 1)]);
    const int32_t *perm_dev = (const int32_t *)device_copy(perm, (size_t)SLOTS * 4);
    CUDA_OK(cudaDeviceSynchronize());
    for (const shape &s : SHAPES) run(&p, perm_dev, &s);
    free(perm);
    return 0;
}
