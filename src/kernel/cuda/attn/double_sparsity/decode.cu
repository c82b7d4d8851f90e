// SPDX-License-Identifier: Apache-2.0
//
// Sparse answers, four launches for every round of requests: scores by label, the choice of tokens,
// attention to these in splits, and the merge of the splits (triton's stages). Blocks of requests
// that are not sparse end at once.
#include "kernel/cuda/attn/double_sparsity.h"
#include "kernel/cuda/attn/triton/stages.cuh"
#include "kernel/cuda/launch.cuh"

enum {
    SCORE_THREADS = 256,
    SCORE_WAVES = 16,  // blocks for a multiprocessor, about
    SCORE_HEADS = 4,   // query heads at a time
    SPLIT_TOKENS = 64, // of a split, where 8 splits are enough
    DIGIT = 11,        // bits of a score that one pass of the choice looks at
};

// The round's first request.
typedef struct sparse_round {
    int32_t first;
} sparse_round;

static __device__ __forceinline__ bool is_sparse(const msgl_sparse_call &c, int32_t req)
{
    return c.dense.attn.seqlens_k[req] >= c.least;
}

// Channels that scores are made of, with zeros behind the label's.
static __host__ __device__ __forceinline__ int32_t padded(int32_t channels)
{
    return (channels + 31) / 32 * 32;
}

// A number whose order is the score's, -0 and 0 being equal.
static __device__ __forceinline__ uint32_t order_of(float score)
{
    const uint32_t bits = __float_as_uint(score + 0.f);
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The sums of a key's products over four lanes, for four keys: lane i % 4 gets key i % 4's.
static __device__ __forceinline__ float sum_keys(const float s[4], int32_t lane)
{
    const bool odd = (lane & 1) != 0, high = (lane & 2) != 0;
    const float x = (odd ? s[1] : s[0]) + __shfl_xor_sync(~0u, odd ? s[0] : s[1], 1);
    const float y = (odd ? s[3] : s[2]) + __shfl_xor_sync(~0u, odd ? s[2] : s[3], 1);
    return (high ? y : x) + __shfl_xor_sync(~0u, high ? x : y, 2);
}

// Block (i, KV head, request of the round): every gridDim.x-th run of keys, 32 a warp. Four lanes
// have four keys: each 8 of their labels' channels, of 32 at a time, so that labels are read in the
// order of memory; they meet the group's queries, SCORE_HEADS of them at a time.
template <typename T>
static __global__
__launch_bounds__(SCORE_THREADS) void sparse_scores(const __grid_constant__ msgl_sparse_call c,
                                                    sparse_round round)
{
    extern __shared__ __align__(16) float q[]; // [group, n], zeros from heavy_channels on
    const msgl_cuda_attn_call &a = c.dense.attn;
    const int32_t channels = c.heavy_channels, n = padded(channels);
    const int32_t group = a.num_q_heads / a.num_kv_heads, lane = threadIdx.x % 32;
    const int32_t kv_head = blockIdx.y, req = round.first + blockIdx.z;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const int32_t len = a.seqlens_k[req];
    if (!is_sparse(c, req) || (int32_t)blockIdx.x * SCORE_THREADS >= len) return;
    const T *q_row = (const T *)a.q + req * a.ld_q + (size_t)kv_head * group * a.head_dim;
    for (int32_t i = threadIdx.x; i < group * n; i += SCORE_THREADS) {
        const int32_t ch = i % n;
        q[i] = ch < channels
                   ? (float)q_row[i / n * a.head_dim + c.channels[kv_head * channels + ch]]
                   : 0.f;
    }
    __syncthreads();
    const int32_t *slots = c.dense.kv_indices + c.dense.kv_indptr[req];
    const size_t stride = (size_t)a.num_kv_heads * channels;
    const T *labels = (const T *)c.labels + (size_t)kv_head * channels;
    uint32_t *rows =
        c.scores + ((size_t)blockIdx.z * a.num_q_heads + kv_head * group) * c.score_stride;
    for (int32_t key = blockIdx.x * SCORE_THREADS + threadIdx.x; key - lane < len;
         key += gridDim.x * SCORE_THREADS) {
        const int32_t slot = key < len ? slots[key] : -1;
        for (int32_t h0 = 0; h0 < group; h0 += SCORE_HEADS) {
            float s[SCORE_HEADS][4] = {};
            for (int32_t i = lane % 4 * 8; i < n; i += 32) {
                float x[4][8];
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const int32_t from = __shfl_sync(~0u, slot, lane / 4 * 4 + k);
                    const bool there = from >= 0 && i < channels;
                    const uint4 zero = make_uint4(0, 0, 0, 0);
                    const T *label = labels + (there ? from * stride + i : 0);
                    msgl_unpack8<T>(there ? *(const uint4 *)label : zero, x[k]);
                }
#pragma unroll
                for (int h = 0; h < SCORE_HEADS; h++) {
                    if (h0 + h >= group) break;
                    const float4 *y = (const float4 *)(q + (h0 + h) * n + i);
                    const float4 u = y[0], v = y[1];
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        s[h][k] += x[k][0] * u.x + x[k][1] * u.y + x[k][2] * u.z + x[k][3] * u.w +
                                   x[k][4] * v.x + x[k][5] * v.y + x[k][6] * v.z + x[k][7] * v.w;
                    }
                }
            }
#pragma unroll
            for (int h = 0; h < SCORE_HEADS; h++) {
                if (h0 + h >= group) break;
                const float sum = sum_keys(s[h], lane);
                if (key < len) rows[(h0 + h) * c.score_stride + key] = order_of(sum);
            }
        }
    }
}

// The sum of x over the threads before this one, and of all in *all.
template <int THREADS>
static __device__ __forceinline__ int32_t sum_before(int32_t x, int32_t *warps, int32_t *all)
{
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int32_t sum = x;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int32_t y = __shfl_up_sync(~0u, sum, d);
        if (lane >= d) sum += y;
    }
    __syncthreads(); // warps may still be read
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    int32_t before = 0, total = 0;
    for (int i = 0; i < THREADS / 32; i++) {
        if (i < warp) before += warps[i];
        total += warps[i];
    }
    *all = total;
    return before + sum - x;
}

// The smallest order that is among the n largest, and how many equal to it are.
typedef struct choice {
    uint32_t least;
    int32_t equal;
} choice;

// By radix, the highest digit first: the scores that have the digits found so far are counted by
// the next one, and the n-th largest's is where the count from above reaches n.
template <int THREADS>
static __device__ choice find_least(const uint32_t *scores, int32_t len, int32_t n, int32_t *counts,
                                    int32_t *warps)
{
    __shared__ choice found;
    choice c = {0, n};
    uint32_t known = 0;
#pragma unroll
    for (int shift = 32 - DIGIT; shift > -DIGIT; shift -= DIGIT) {
        const int s = shift > 0 ? shift : 0;
        const uint32_t mask = (1u << (shift > 0 ? DIGIT : DIGIT + shift)) - 1;
        for (int i = threadIdx.x; i < 1 << DIGIT; i += THREADS) counts[i] = 0;
        __syncthreads();
        for (int32_t i = threadIdx.x * 4; i < len; i += THREADS * 4) {
            const uint4 four = *(const uint4 *)(scores + i);
            const uint32_t o[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (i + j < len && (o[j] & known) == c.least) {
                    atomicAdd(&counts[o[j] >> s & mask], 1);
                }
            }
        }
        __syncthreads();
        // Thread t has the t-th run of EACH digits from above.
        const int EACH = (1 << DIGIT) / THREADS;
        const int high = (1 << DIGIT) - 1 - EACH * threadIdx.x;
        int32_t sum = 0, all;
#pragma unroll
        for (int i = 0; i < EACH; i++) sum += counts[high - i];
        int32_t above = sum_before<THREADS>(sum, warps, &all);
        if (above < c.equal && above + sum >= c.equal) {
            int digit = high;
            while (above + counts[digit] < c.equal) above += counts[digit--];
            found.least = c.least | (uint32_t)digit << s;
            found.equal = c.equal - above;
        }
        __syncthreads();
        c = found;
        known |= mask << s;
    }
    return c;
}

// Block (query head, request of the round): the slots of the heavy_tokens largest scores, in order
// of the tokens; of equal ones the first. A warp lists an unbroken run of tokens.
template <int THREADS>
static __global__ __launch_bounds__(THREADS, 2048 / THREADS) void sparse_choose(
    const __grid_constant__ msgl_sparse_call c, sparse_round round)
{
    __shared__ int32_t counts[1 << DIGIT], warps[THREADS / 32];
    const int32_t req = round.first + blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    if (!is_sparse(c, req)) return;
    const int32_t len = c.dense.attn.seqlens_k[req];
    const size_t row = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    const uint32_t *scores = c.scores + row * c.score_stride;
    const choice least = find_least<THREADS>(scores, len, c.heavy_tokens, counts, warps);
    const int32_t run = msgl__triton_div(len, THREADS) * 32;
    const int32_t begin = warp * run, end = min(begin + run, len);
    int32_t larger = 0, equal = 0; // of the lane's tokens
#pragma unroll 4
    for (int32_t i = begin + lane; i < end; i += 32) {
        larger += scores[i] > least.least;
        equal += scores[i] == least.least;
    }
    // Of the warps before this one; lanes are of no meaning here.
    int32_t all;
    const int32_t larger_before = __shfl_sync(~0u, sum_before<THREADS>(larger, warps, &all), 0);
    const int32_t equal_before = __shfl_sync(~0u, sum_before<THREADS>(equal, warps, &all), 0);
    const int32_t *slots = c.dense.kv_indices + c.dense.kv_indptr[req];
    int32_t *chosen = c.chosen + row * c.heavy_tokens;
    const uint32_t before = (1u << lane) - 1;
    int32_t l = larger_before, e = equal_before;
    for (int32_t i0 = begin; i0 < end; i0 += 32) {
        const uint32_t o = i0 + lane < end ? scores[i0 + lane] : 0;
        const bool is_larger = i0 + lane < end && o > least.least;
        const bool is_equal = i0 + lane < end && o == least.least;
        const uint32_t larger_lanes = __ballot_sync(~0u, is_larger);
        const uint32_t equal_lanes = __ballot_sync(~0u, is_equal);
        const int32_t e_here = e + __popc(equal_lanes & before);
        if (is_larger || (is_equal && e_here < least.equal)) {
            const int32_t at = l + __popc(larger_lanes & before) + min(e_here, least.equal);
            chosen[at] = slots[i0 + lane];
        }
        l += __popc(larger_lanes);
        e += __popc(equal_lanes);
    }
}

// Splits of a head's chosen tokens.
static __host__ __device__ __forceinline__ int32_t splits_of(const msgl_sparse_call &c)
{
    return msgl__triton_min(msgl__triton_div(c.heavy_tokens, SPLIT_TOKENS), MSGL_TRITON_MAX_SPLITS);
}

static __device__ __forceinline__ msgl_triton_range split_of(const msgl_sparse_call &c,
                                                             int32_t split)
{
    return msgl__triton_range(c.heavy_tokens, c.heavy_tokens, splits_of(c), split);
}

// Block (query head, split, request of the round).
template <typename T, int HD>
static __global__ __launch_bounds__(msgl_dots<HD>::THREADS) void sparse_attend(
    const __grid_constant__ msgl_sparse_call c, sparse_round round)
{
    __shared__ msgl_dots_room<HD> room;
    const int32_t heads = c.dense.attn.num_q_heads, head = blockIdx.x;
    const int32_t kv_head = head / (heads / c.dense.attn.num_kv_heads);
    const int32_t req = round.first + blockIdx.z;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const msgl_triton_range keys = split_of(c, blockIdx.y);
    if (!is_sparse(c, req) || keys.begin == keys.end) return;
    const int32_t *chosen = c.chosen + ((size_t)blockIdx.z * heads + head) * c.heavy_tokens;
    msgl_dots_attend<T, HD>(c.dense, req, head, kv_head, chosen, keys, blockIdx.y, &room);
}

// Block (query head, request of the round).
template <typename T>
static __global__
__launch_bounds__(MSGL_MERGE_THREADS) void sparse_merge(const __grid_constant__ msgl_sparse_call c,
                                                        sparse_round round)
{
    const int32_t req = round.first + blockIdx.y;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    if (!is_sparse(c, req)) return;
    msgl_merge_splits<T>(c.dense, req, blockIdx.x, [&](int32_t split) {
        const msgl_triton_range keys = split_of(c, split);
        return keys.begin < keys.end;
    });
}

template <typename T, int HD>
static cudaError_t launch(const msgl_sparse_call &c, sparse_round round, cudaStream_t s)
{
    const msgl_cuda_attn_call &a = c.dense.attn;
    const unsigned heads = (unsigned)a.num_q_heads;
    const unsigned n = (unsigned)msgl__triton_min(a.batch - round.first, c.round);
    const int32_t group = a.num_q_heads / a.num_kv_heads;
    const size_t q = (size_t)group * padded(c.heavy_channels) * sizeof(float);
    msgl_gpu gpu;
    cudaError_t e = msgl__current_gpu(&gpu);
    if (e != cudaSuccess) return e;
    const int32_t most = msgl__triton_div(SCORE_WAVES * gpu.sms, a.num_kv_heads * (int32_t)n);
    const int32_t blocks = msgl__triton_min(msgl__triton_div(a.max_seqlen_k, SCORE_THREADS), most);
    const dim3 score_grid((unsigned)blocks, (unsigned)a.num_kv_heads, n);
    e = msgl__allow_shared<sparse_scores<T>>(q);
    if (e == cudaSuccess) {
        e = msgl__launch(sparse_scores<T>, score_grid, SCORE_THREADS, q, s, c, round);
    }
    if (e == cudaSuccess) {
        const bool few = (int64_t)heads * n <= gpu.sms; // blocks
        e = few ? msgl__launch(sparse_choose<1024>, dim3(heads, n), 1024, 0, s, c, round)
                : msgl__launch(sparse_choose<512>, dim3(heads, n), 512, 0, s, c, round);
    }
    if (e == cudaSuccess) {
        e = msgl__launch(sparse_attend<T, HD>, dim3(heads, (unsigned)splits_of(c), n),
                         msgl_dots<HD>::THREADS, 0, s, c, round);
    }
    if (e != cudaSuccess) return e;
    return msgl__launch(sparse_merge<T>, dim3(heads, n), MSGL_MERGE_THREADS, 0, s, c, round);
}

template <typename T> static cudaError_t launch_rounds(const msgl_sparse_call &c, cudaStream_t s)
{
    cudaError_t e = cudaSuccess;
    for (sparse_round r = {0}; r.first < c.dense.attn.batch && e == cudaSuccess;
         r.first += c.round) {
        const int32_t dim = c.dense.attn.head_dim;
        e = dim <= 64    ? launch<T, 64>(c, r, s)
            : dim <= 128 ? launch<T, 128>(c, r, s)
                         : launch<T, 256>(c, r, s);
    }
    return e;
}

extern "C" int msgl__cuda_sparse_decode(const msgl_sparse_call *c, void *stream)
{
    const int32_t dim = c->dense.attn.head_dim;
    if (dim < 8 || dim > 256 || dim % 8 != 0) return cudaErrorNotSupported;
    switch (c->dense.attn.dtype) {
    case MSGL_BF16: return launch_rounds<__nv_bfloat16>(*c, (cudaStream_t)stream);
    case MSGL_F16: return launch_rounds<__half>(*c, (cudaStream_t)stream);
    default: return cudaErrorNotSupported;
    }
}
