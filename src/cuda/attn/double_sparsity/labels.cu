// SPDX-License-Identifier: Apache-2.0
//
// What is written for later: labels of new tokens, and which requests triton leaves out.
#include "attention/triton/splits.h"
#include "cuda/attn/double_sparsity.h"
#include "cuda/attn/page_row.cuh"
#include "cuda/launch.cuh"

enum { THREADS = 128, TOKENS = 8, MAX_BLOCKS = 1024 };

static __global__
__launch_bounds__(THREADS) void sparse_begin(const __grid_constant__ msgl_sparse_call c)
{
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const int32_t req = blockIdx.x * THREADS + threadIdx.x;
    if (req < c.dense.attn.batch && c.dense.attn.seqlens_k[req] >= c.least) {
        c.num_kv_splits[req] = 0;
    }
}

// Block (i, request): every gridDim.x-th run of TOKENS new tokens, an element a thread. Elements
// are 16 bits, whatever they mean.
static __global__
__launch_bounds__(THREADS) void sparse_labels(const __grid_constant__ msgl_sparse_call c)
{
    const msgl_cuda_attn_call &a = c.dense.attn;
    const int32_t req = blockIdx.y, width = a.num_kv_heads * c.heavy_channels;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const int32_t news = a.cu_seqlens_q[req + 1] - a.cu_seqlens_q[req];
    const int32_t first = a.seqlens_k[req] - news; // position of the first new token
    const msgl_page_row slots = msgl__page_row(a, a.table_rows[req]);
    const uint16_t *k = (const uint16_t *)a.k;
    uint16_t *labels = (uint16_t *)c.labels;
    for (int32_t from = blockIdx.x * TOKENS; from < news; from += gridDim.x * TOKENS) {
        const int32_t count = min(news - from, (int32_t)TOKENS) * width;
        for (int32_t i = threadIdx.x; i < count; i += THREADS) {
            const int32_t at = i % width, head = at / c.heavy_channels;
            const size_t slot = slots[first + from + i / width];
            labels[slot * width + at] =
                k[(slot * a.num_kv_heads + head) * a.head_dim + c.channels[at]];
        }
    }
}

extern "C" int msgl__cuda_sparse_begin(const msgl_sparse_call *c, void *stream)
{
    const int32_t batch = c->dense.attn.batch;
    if (batch == 0) return cudaSuccess;
    const dim3 grid((unsigned)msgl__triton_div(batch, THREADS));
    return msgl__launch(sparse_begin, grid, THREADS, 0, (cudaStream_t)stream, *c);
}

extern "C" int msgl__cuda_sparse_labels(const msgl_sparse_call *c, void *stream)
{
    const msgl_cuda_attn_call *a = &c->dense.attn;
    if (a->batch == 0) return cudaSuccess;
    const int32_t blocks = msgl__triton_div(a->max_seqlen_q, TOKENS);
    const dim3 grid((unsigned)msgl__triton_min(blocks, MAX_BLOCKS), (unsigned)a->batch);
    return msgl__launch(sparse_labels, grid, THREADS, 0, (cudaStream_t)stream, *c);
}
