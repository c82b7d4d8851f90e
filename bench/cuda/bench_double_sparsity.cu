// SPDX-License-Identifier: Apache-2.0
//
// Speed of double sparsity's answers beside the dense ones of triton and fa, on shuffled pages of
// 1, in a captured graph over several sets of pages, so that L2 holds none of them. What is
// measured is one layer: triton's launches (empty for sparse requests) and the sparse ones. The
// bytes are those of labels and of the chosen tokens' K and V, of each head its own.
#include "bench/cuda/median.cuh"
#include "bench/cuda/noise.cuh"
#include "tests/cuda/attn_world.cuh"

#include "attention/triton/splits.h"
#include "cuda/attn/decode.h"
#include "cuda/attn/double_sparsity.h"
#include "cuda/attn/double_sparsity/cut.h"

enum {
    DIM = 128,
    KV_HEADS = 8,
    Q_HEADS = 32,
    SLOTS = 4 << 20,
    MOST_SETS = 32,
    LEAST_LAUNCHES = 8,
    CHANNELS = 32,
    MAX_BATCH = 64,
    WORKSPACE = 256 << 20,
    CANDIDATE_BYTES = 64 << 20, // of a round, as the backend has
};

typedef struct shape {
    int batch, len;
} shape;

static const shape SHAPES[] = {{1, 8192},   {1, 32768}, {1, 65536},  {16, 8192}, {16, 32768},
                               {16, 65536}, {64, 8192}, {64, 32768}, {64, 65536}};
static const int TOKENS[] = {64, 256, 1024};

typedef struct pool {
    void *k, *v, *q, *out, *labels, *candidates, *workspace;
    uint16_t *channels;
    float *logits, *lse;
    int32_t *splits, *done;
} pool;

// As the backend does.
static void size_round(const pool *p, msgl_sparse_call *c, int batch, int len)
{
    c->room = msgl__sparse_room(Q_HEADS / KV_HEADS, len, c->heavy_tokens);
    const size_t each = Q_HEADS * c->room * 8;
    c->round = std::min<int>(batch, std::max<int>(1, CANDIDATE_BYTES / each));
    c->orders = (uint32_t *)p->candidates;
    c->tokens = (int32_t *)c->orders + c->round * Q_HEADS * c->room;
}

static void run(const pool *p, const int32_t *perm, const shape *s)
{
    const size_t need = (size_t)s->batch * s->len;
    const int sets = (int)std::min<size_t>(MOST_SETS, SLOTS / need);
    const int launches = std::max<int>(sets, LEAST_LAUNCHES);
    int32_t lens[MAX_BATCH], rows[MAX_BATCH], cu[MAX_BATCH + 1] = {0};
    for (int i = 0; i < s->batch; i++) lens[i] = s->len, rows[i] = i, cu[i + 1] = i + 1;
    msgl_sparse_call c = {};
    msgl_cuda_attn_call *a = &c.dense.attn;
    a->dtype = MSGL_BF16;
    a->num_q_heads = Q_HEADS, a->num_kv_heads = KV_HEADS, a->head_dim = a->v_dim = DIM;
    a->q = p->q, a->out = p->out, a->ld_q = a->ld_out = (size_t)Q_HEADS * DIM;
    a->k = p->k, a->v = p->v, a->num_slots = SLOTS;
    a->scale = 0.088f, a->out_scale = 1, a->window = -1, a->batch = s->batch;
    a->cu_seqlens_q = (int32_t *)device_copy(cu, (s->batch + 1) * 4);
    a->seqlens_k = (int32_t *)device_copy(lens, s->batch * 4);
    a->table_rows = (int32_t *)device_copy(rows, s->batch * 4);
    a->table_stride = s->len, a->page_size = 1, a->paging = msgl__paging_of(1);
    a->total_q = s->batch, a->max_seqlen_q = 1, a->max_seqlen_k = s->len;
    c.dense.attn_logits = p->logits, c.dense.attn_lse = p->lse;
    c.num_kv_splits = p->splits, c.labels = p->labels, c.channels = p->channels;
    c.heavy_channels = CHANNELS, c.done = p->done;
    a->workspace = p->workspace;
    msgl_triton_lists_call l = {};
    l.batch = s->batch, l.num_q_heads = Q_HEADS, l.num_kv_heads = KV_HEADS;
    l.seqlens_k = a->seqlens_k, l.table_rows = a->table_rows, l.table_stride = s->len,
    l.paging = a->paging;
    l.max_seqlen_k = s->len, l.num_windows = 1, l.windows[0] = -1;
    msgl_triton_lists lists[MOST_SETS];
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
    const auto use = [&](int i) {
        c.dense.kv_indptr = lists[i % sets].kv_indptr;
        c.dense.kv_indices = lists[i % sets].kv_indices;
        a->table = perm + (size_t)(i % sets) * need;
    };
    const double triton = graph_us(stream, launches, [&](int i) {
        use(i);
        c.dense.num_kv_splits = lists[i % sets].num_kv_splits;
        CUDA_OK(msgl__cuda_triton_decode(&c.dense, stream));
    });
    const double fa = graph_us(stream, launches, [&](int i) {
        use(i);
        CUDA_OK(msgl__cuda_fa_decode(a, stream));
    });
    const double dense = need * KV_HEADS * DIM * 4.;
    printf("%2d x %5d: triton %7.1f us %.2f TB/s, fa %7.1f us %.2f TB/s | tokens", s->batch, s->len,
           triton, dense / triton * 1e-6, fa, dense / fa * 1e-6);
    c.dense.num_kv_splits = p->splits;
    for (int tokens : TOKENS) {
        c.heavy_tokens = c.least = tokens;
        size_round(p, &c, s->batch, s->len);
        CUDA_OK(msgl__cuda_sparse_begin(&c, stream)); // all are sparse
        const double us = graph_us(stream, launches, [&](int i) {
            use(i);
            CUDA_OK(msgl__cuda_triton_decode(&c.dense, stream));
            CUDA_OK(msgl__cuda_sparse_decode(&c, stream));
        });
        const double bytes =
            need * KV_HEADS * CHANNELS * 2. + (double)s->batch * Q_HEADS * tokens * DIM * 4.;
        printf(" %d: %6.1f us %.2f TB/s (%.2fx)", tokens, us, bytes / us * 1e-6,
               std::min(triton, fa) / us);
    }
    c.least = INT32_MAX; // a graph's launches beside dense requests
    const double idle = graph_us(stream, launches, [&](int i) {
        use(i);
        CUDA_OK(msgl__cuda_sparse_decode(&c, stream));
    });
    printf(" | without work %.1f us\n", idle);
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
    const size_t kv = (size_t)SLOTS * KV_HEADS * DIM * 2, q = (size_t)MAX_BATCH * Q_HEADS * DIM * 2;
    const size_t labels = (size_t)SLOTS * KV_HEADS * CHANNELS * 2;
    p.k = device_copy(NULL, kv);
    p.v = device_copy(NULL, kv);
    p.q = device_copy(NULL, q);
    p.out = device_copy(NULL, q);
    p.labels = device_copy(NULL, labels);
    const size_t rows = (size_t)MAX_BATCH * Q_HEADS;
    p.logits = (float *)device_copy(NULL, rows * MSGL_TRITON_MAX_SPLITS * DIM * 4);
    p.lse = (float *)device_copy(NULL, rows * MSGL_TRITON_MAX_SPLITS * 4);
    p.candidates = device_copy(NULL, CANDIDATE_BYTES);
    p.done = (int32_t *)device_copy(NULL, rows * 4);
    CUDA_OK(cudaMemset(p.done, 0, rows * 4));
    p.workspace = device_copy(NULL, WORKSPACE);
    CUDA_OK(cudaMemset(p.workspace, 0, WORKSPACE));
    p.splits = (int32_t *)device_copy(NULL, MAX_BATCH * 4);
    uint16_t channels[KV_HEADS * CHANNELS];
    for (int i = 0; i < KV_HEADS * CHANNELS; i++) channels[i] = (uint16_t)(i * 37 % DIM);
    p.channels = (uint16_t *)device_copy(channels, sizeof channels);
    noise_pairs<<<1024, 256>>>((uint32_t *)p.k, kv / 4, NOISE_TO_TWO, 1);
    noise_pairs<<<1024, 256>>>((uint32_t *)p.v, kv / 4, NOISE_TO_TWO, 2);
    noise_pairs<<<1024, 256>>>((uint32_t *)p.q, q / 4, NOISE_TO_TWO, 3);
    noise_pairs<<<1024, 256>>>((uint32_t *)p.labels, labels / 4, NOISE_TO_TWO, 4);
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
