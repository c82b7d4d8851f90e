// SPDX-License-Identifier: Apache-2.0
//
// A step's metadata: where each request's slots begin, the slots, and how many splits its keys are
// cut into. Every block finds out for itself what it needs to know of the other requests, so that
// one launch does it all.
#include "attention/triton/splits.h"
#include "cuda/attn/page_row.cuh"
#include "cuda/attn/triton.h"
#include "cuda/launch.cuh"

enum { THREADS = 256, SLOTS_PER_BLOCK = 2048, MAX_BLOCKS = 64 };

struct batch_facts {
    int32_t before; // keys of the requests before this one
    int32_t min, max;
};

static __device__ batch_facts survey(const int32_t *seqlens, int32_t batch, int32_t req)
{
    __shared__ batch_facts warps[THREADS / 32];
    batch_facts f = {0, INT32_MAX, 0};
    for (int32_t i = threadIdx.x; i < batch; i += THREADS) {
        const int32_t len = seqlens[i];
        if (i < req) f.before += len;
        f.min = min(f.min, len);
        f.max = max(f.max, len);
    }
    f.before = __reduce_add_sync(~0u, f.before);
    f.min = __reduce_min_sync(~0u, f.min);
    f.max = __reduce_max_sync(~0u, f.max);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = f;
    __syncthreads();
    f = warps[0];
    for (int i = 1; i < THREADS / 32; i++) {
        f.before += warps[i].before;
        f.min = min(f.min, warps[i].min);
        f.max = max(f.max, warps[i].max);
    }
    return f;
}

// Block (i, req): every gridDim.x-th run of request req's slots.
static __global__
__launch_bounds__(THREADS) void triton_lists(const __grid_constant__ msgl_triton_lists_call c,
                                             int32_t cores)
{
    const int32_t req = blockIdx.y;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const batch_facts f = survey(c.seqlens_k, c.batch, req);
    const int32_t len = c.seqlens_k[req];
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        if (req == 0) c.lists.kv_indptr[0] = 0;
        c.lists.kv_indptr[req + 1] = f.before + len;
    }
    if (blockIdx.x == 0 && threadIdx.x < c.num_windows) {
        const int32_t window = c.windows[threadIdx.x], seen = msgl__triton_seen(len, window);
        const msgl_triton_chunks chunks = msgl__triton_chunks(
            c.batch, msgl__triton_seen(f.min, window), msgl__triton_seen(f.max, window),
            c.num_q_heads, c.num_q_heads / c.num_kv_heads, cores);
        c.lists.num_kv_splits[threadIdx.x * c.lists.splits_stride + req] =
            c.deterministic ? msgl__triton_fixed_splits(seen)
                            : msgl__triton_num_splits(chunks, seen);
    }
    const msgl_page_row table = msgl__page_row(c, c.table_rows[req]);
    for (int32_t i = blockIdx.x * THREADS + threadIdx.x; i < len; i += gridDim.x * THREADS) {
        c.lists.kv_indices[f.before + i] = table[i];
    }
}

extern "C" int msgl__cuda_triton_lists(const msgl_triton_lists_call *c, void *stream)
{
    if (c->batch == 0) return cudaSuccess;
    msgl_gpu gpu;
    const cudaError_t e = msgl__current_gpu(&gpu);
    if (e != cudaSuccess) return e;
    const int32_t blocks = msgl__triton_div(c->max_seqlen_k, SLOTS_PER_BLOCK);
    const dim3 grid((unsigned)msgl__triton_min(blocks, MAX_BLOCKS), (unsigned)c->batch);
    return msgl__launch(triton_lists, grid, THREADS, 0, (cudaStream_t)stream, *c, gpu.sms);
}
