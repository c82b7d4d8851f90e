// SPDX-License-Identifier: Apache-2.0
//
// What a chunk's two sides need around FlashInfer's kernels: K and V of the new tokens in rows, and
// the merge of two results. Both are limited by bytes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/fi/rows.cuh"

enum { ROW_THREADS = 128, MERGE_THREADS = 256 };

static __global__ void __launch_bounds__(ROW_THREADS) fi_rows(const msgl_fi_rows_call c)
{
    const int32_t t = blockIdx.x;
    int32_t low = 0, high = c.batch - 1; // the last request that begins at t or before
    while (low < high) {
        const int32_t mid = (low + high + 1) / 2;
        if (c.qo_indptr[mid] <= t) {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    const int32_t position = c.kv_len[low] - (c.qo_indptr[low + 1] - t);
    const int32_t place = c.table_rows[low] * (int32_t)c.table_stride + position;
    const size_t slot = (size_t)msgl__paging_slot(c.paging, c.table, place);
    const size_t n = c.row_bytes / sizeof(uint4);
    const uint4 *k = (const uint4 *)c.k + slot * n, *v = (const uint4 *)c.v + slot * n;
    uint4 *to_k = (uint4 *)c.k_rows + (size_t)t * n, *to_v = (uint4 *)c.v_rows + (size_t)t * n;
    for (size_t i = threadIdx.x; i < n; i += ROW_THREADS) {
        to_k[i] = k[i];
        to_v[i] = v[i];
    }
}

extern "C" int msgl__fi_rows(const msgl_fi_rows_call *c, void *stream)
{
    if (c->row_bytes % sizeof(uint4) != 0) return cudaErrorNotSupported;
    if (c->total_q == 0) return cudaSuccess;
    fi_rows<<<c->total_q, ROW_THREADS, 0, (cudaStream_t)stream>>>(*c);
    return cudaGetLastError();
}

static __device__ float2 widen(__nv_bfloat162 x)
{
    return __bfloat1622float2(x);
}

static __device__ float2 widen(__half2 x)
{
    return __half22float2(x);
}

static __device__ void narrow(float2 x, __nv_bfloat162 *to)
{
    *to = __float22bfloat162_rn(x);
}

static __device__ void narrow(float2 x, __half2 *to)
{
    *to = __float22half2_rn(x);
}

// A warp a row; T: two elements.
template <typename T>
static __global__ void __launch_bounds__(MERGE_THREADS) fi_merge(const msgl_fi_merge_call c)
{
    const int64_t row = (blockIdx.x * (int64_t)MERGE_THREADS + threadIdx.x) / 32;
    if (row >= c.rows) return;
    const float a = c.lse[row], b = c.other_lse[row], most = fmaxf(a, b);
    const float wa = exp2f(a - most), wb = exp2f(b - most), sum = wa + wb; // at least 1
    const int32_t pairs = c.head_dim / 2;
    T *out = (T *)c.out + row * pairs;
    const T *other = (const T *)c.other + row * pairs;
    for (int32_t i = threadIdx.x % 32; i < pairs; i += 32) {
        const float2 x = widen(out[i]), y = widen(other[i]);
        narrow(make_float2((wa * x.x + wb * y.x) / sum, (wa * x.y + wb * y.y) / sum), &out[i]);
    }
    __syncwarp(); // all lanes have read it
    if (threadIdx.x % 32 == 0) c.lse[row] = most + log2f(sum);
}

extern "C" int msgl__fi_merge(const msgl_fi_merge_call *c, void *stream)
{
    const int64_t blocks = (c->rows * 32 + MERGE_THREADS - 1) / MERGE_THREADS;
    if (blocks == 0) return cudaSuccess;
    if (c->dtype == MSGL_BF16) {
        fi_merge<__nv_bfloat162><<<(unsigned)blocks, MERGE_THREADS, 0, (cudaStream_t)stream>>>(*c);
    } else if (c->dtype == MSGL_F16) {
        fi_merge<__half2><<<(unsigned)blocks, MERGE_THREADS, 0, (cudaStream_t)stream>>>(*c);
    } else {
        return cudaErrorNotSupported;
    }
    return cudaGetLastError();
}
