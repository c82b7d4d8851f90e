// SPDX-License-Identifier: Apache-2.0
//
// The choice of blocks of keys (ops/index_blocks.cu) at MiniMax-M3's sizes, on one rank (4 KV
// heads) and on each of four (one): scores and lists of answers, and of 256 tokens of a chunk.
// Beside the time what its two limits make of it: bytes of index keys read once, of H200's 4.8
// TB/s, and operations, (token, head) pairs with each of their keys.
#include <vector>

#include "bench/cuda/median.cuh"
#include "bench/cuda/noise.cuh"
#include "tests/cuda/ops_check.cuh"

enum { DIM = 128, SIZE = 128, TOP_K = 16, PAGE = 64, MOST = 131072, TOKENS = 256 };

struct bench {
    bench_exec e;
    __nv_bfloat16 *q, *keys;
    int32_t *pages, *lists, *counts, *rows, *cu, *lens;
    float *scores;
};

// `requests` with keys of their own, of `keys` each, `tokens` of which are new.
static void measure(bench *b, int heads, int requests, int tokens, int keys)
{
    std::vector<int32_t> cu, lens, rows;
    for (int i = 0; i <= requests; i++) cu.push_back(i * tokens);
    for (int i = 0; i < requests; i++) lens.push_back(keys), rows.push_back(i);
    CUDA_OK(cudaMemcpy(b->cu, cu.data(), cu.size() * 4, cudaMemcpyHostToDevice));
    CUDA_OK(cudaMemcpy(b->lens, lens.data(), lens.size() * 4, cudaMemcpyHostToDevice));
    CUDA_OK(cudaMemcpy(b->rows, rows.data(), rows.size() * 4, cudaMemcpyHostToDevice));
    msgl_seqs s = {};
    s.size = requests, s.num_tokens = requests * tokens;
    s.max_seqlen_q = tokens, s.max_seqlen_k = keys;
    s.dev_cu_seqlens_q = b->cu, s.dev_seqlens_k = b->lens, s.dev_table_rows = b->rows;
    msgl_index_blocks_call c = {};
    c.seqs = &s;
    c.tokens = s.num_tokens;
    c.heads = heads, c.dim = DIM, c.size = SIZE, c.top_k = TOP_K, c.local = 1;
    c.q = b->q, c.ld_q = (size_t)(heads + 1) * DIM;
    c.dtype = MSGL_BF16, c.pool = b->keys;
    c.pages = b->pages, c.page_stride = (size_t)keys / PAGE, c.page_size = PAGE;
    c.scores = b->scores, c.max_blocks = MOST / SIZE;
    c.keys = b->lists, c.counts = b->counts;
    const double us =
        graph_us(b->e.device.stream, 20, [&](int) { msgl__cuda_index_choose_blocks(&b->e.x, &c); });
    exec_sync(&b->e);
    const double bytes = 2.0 * DIM * keys * requests;
    const double pairs = (double)requests * tokens * (keys - tokens / 2.0) * heads;
    printf("heads %d, %2d x %3d tokens at %6d keys: %8.1f us, %5.2f TB/s (%.1f us at 4.8), "
           "%6.1f TFLOP/s\n",
           heads, requests, tokens, keys, us, bytes / us * 1e-6, bytes / 4.8e6,
           2 * DIM * pairs / us * 1e-6);
}

static int32_t *ints(size_t n)
{
    int32_t *p;
    CUDA_OK(cudaMalloc((void **)&p, n * sizeof *p));
    return p;
}

int main(void)
{
    static bench b;
    exec_open(&b.e, 1 << 20);
    b.e.x.act = MSGL_BF16;
    enum { HEADS = 4, REQUESTS = 64, ALL_KEYS = 2 * 1024 * 1024 };
    const size_t q = (size_t)TOKENS * (HEADS + 1) * DIM, keys = (size_t)ALL_KEYS * DIM;
    CUDA_OK(cudaMalloc((void **)&b.q, q * sizeof *b.q));
    CUDA_OK(cudaMalloc((void **)&b.keys, keys * sizeof *b.keys));
    CUDA_OK(cudaMalloc((void **)&b.scores, (size_t)TOKENS * HEADS * (MOST / SIZE) * 4));
    b.pages = ints(ALL_KEYS / PAGE);
    b.lists = ints((size_t)TOKENS * HEADS * TOP_K * SIZE);
    b.counts = ints((size_t)TOKENS * HEADS);
    b.rows = ints(REQUESTS), b.cu = ints(REQUESTS + 1), b.lens = ints(REQUESTS);
    std::vector<int32_t> pages(ALL_KEYS / PAGE); // in an order that no cache line follows
    for (size_t i = 0; i < pages.size(); i++) pages[i] = (int32_t)(i * 7919 % pages.size());
    CUDA_OK(cudaMemcpy(b.pages, pages.data(), pages.size() * 4, cudaMemcpyHostToDevice));
    noise<<<1024, 512, 0, b.e.device.stream>>>(b.q, q, 1);
    noise<<<1024, 512, 0, b.e.device.stream>>>(b.keys, keys, 1);
    for (int heads : {(int)HEADS, 1}) {
        for (int len : {4096, 32768, (int)MOST}) {
            for (int requests : {1, 8, (int)REQUESTS}) {
                if (requests * len <= ALL_KEYS) measure(&b, heads, requests, 1, len);
            }
            measure(&b, heads, 1, TOKENS, len);
        }
    }
    return 0;
}
