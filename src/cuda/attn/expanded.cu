// SPDX-License-Identifier: Apache-2.0
//
// What surrounds expanded latent attention: a warp gathers a key's latent vector and rotary key, a
// group of lanes merges a head's result of a token.
#include <cuda_bf16.h>
#include <math.h>

#include "cuda/attn/expanded.h"
#include "cuda/attn/page_row.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/vec8.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, GROUP = MSGL_EXPANDED_V / 8, GROUPS = THREADS / GROUP };

// The last request whose keys begin at or before row `key`.
static __device__ __forceinline__ int request_of(const msgl_gather_call &c, int key)
{
    int lo = 0, hi = c.num_reqs - 1;
    while (lo < hi) {
        const int middle = (lo + hi + 1) / 2;
        if (c.reqs[middle].row0 <= key) {
            lo = middle;
        } else {
            hi = middle - 1;
        }
    }
    return lo;
}

static __global__ void __launch_bounds__(THREADS) gather(const msgl_gather_call c)
{
    msgl__pdl_trigger();
    const int key = (int)(blockIdx.x * WARPS + threadIdx.x / 32), lane = (int)threadIdx.x % 32;
    msgl__pdl_wait();
    if (key >= c.keys) return;
    const msgl_expand_req &r = c.reqs[request_of(c, key)];
    const int32_t pos = r.first + key - r.row0;
    const size_t slot = (size_t)msgl__page_row(c, r.table_row)[pos];
    const int latent = c.rank / 8, rotary = c.rotary / 8; // pieces of 16 bytes
    const uint4 *from = (const uint4 *)c.pool + slot * (size_t)(latent + rotary);
    uint4 *to = (uint4 *)c.latent + (size_t)key * latent;
    uint4 *to_rotary = (uint4 *)c.rotary_keys + (size_t)key * rotary;
    for (int i = lane; i < latent; i += 32) to[i] = from[i];
    for (int i = lane; i < rotary; i += 32) to_rotary[i] = from[latent + i];
}

extern "C" int msgl__cuda_gather(const msgl_gather_call *c, void *stream)
{
    if (c->dtype != MSGL_BF16 || c->rank % 8 || c->rotary % 8) return cudaErrorNotSupported;
    const uintptr_t all = (uintptr_t)c->pool | (uintptr_t)c->latent | (uintptr_t)c->rotary_keys;
    if (all % 16) return cudaErrorInvalidValue;
    if (c->keys <= 0) return cudaSuccess;
    const dim3 grid((unsigned)((c->keys + WARPS - 1) / WARPS));
    return msgl__launch(gather, grid, dim3(THREADS), 0, (cudaStream_t)stream, *c);
}

// GROUP lanes have a head of a token.
static __global__ void __launch_bounds__(THREADS) merge(const msgl_expanded_call c)
{
    msgl__pdl_trigger();
    const int64_t item = (int64_t)blockIdx.x * GROUPS + threadIdx.x / GROUP;
    const int lane = (int)threadIdx.x % GROUP;
    msgl__pdl_wait();
    const int64_t heads = c.heads, items = c.reqs[0].tokens * heads;
    const int64_t at = c.reqs[0].q_row * heads + (item < items ? item : items - 1);
    const float a = c.lse[at], b = c.partial_lse[at], top = fmaxf(a, b);
    const float base = top == -INFINITY ? 0 : top;
    const float wa = expf(a - base), wb = expf(b - base), sum = wa + wb;
    const float inverse = sum > 0 ? 1 / sum : 0;
    __syncwarp(); // all of the group have read
    if (item >= items) return;
    __nv_bfloat16 *out = (__nv_bfloat16 *)c.out + at * MSGL_EXPANDED_V + lane * 8;
    float x[8], y[8];
    load8(out, x);
    load8((const __nv_bfloat16 *)c.partial_out + at * MSGL_EXPANDED_V + lane * 8, y);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = (wa * x[i] + wb * y[i]) * inverse;
    store8(out, x);
    if (lane == 0) c.lse[at] = sum > 0 ? base + logf(sum) : -INFINITY;
}

extern "C" int msgl__cuda_expanded_merge(const msgl_expanded_call *c, void *stream)
{
    const int64_t items = (int64_t)c->tokens * c->heads;
    if (items == 0) return cudaSuccess;
    const dim3 grid((unsigned)((items + GROUPS - 1) / GROUPS));
    return msgl__launch(merge, grid, dim3(THREADS), 0, (cudaStream_t)stream, *c);
}
