// SPDX-License-Identifier: Apache-2.0
//
// Sparse answers in two launches for every round of requests. Pick: a block scores a split of a
// request's keys by their labels, and keeps each query head's largest scores; those of all splits
// are candidates, among which the head's largest ones are. Attend: a block finds these, takes its
// split of them, and attends to it; who ends last of a head merges the splits. Blocks of requests
// that are not sparse end at once, but for the new token's label.
#include "cuda/attn/double_sparsity.h"
#include "cuda/attn/double_sparsity/cut.h"
#include "cuda/attn/double_sparsity/largest.cuh"
#include "cuda/attn/page_row.cuh"
#include "cuda/attn/triton/stages.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/ordered.cuh"
#include "cuda/ptx/global.cuh"

enum {
    PICK_THREADS = 512,
    PICK_WARPS = PICK_THREADS / 32,
    CHANNELS = 32,      // of a label that are read together: four lanes have 8 each
    MAX_CHANNELS = 256, // a head's
    ATTEND_THREADS = 256,
    ATTEND_WARPS = ATTEND_THREADS / 32,
    SPLIT_TOKENS = 64,  // of a split, where so many splits are of use
    MOST_TOKENS = 8192, // of a split, by its shared memory
};

static_assert(MSGL_COUNTS * 4 == MSGL_SPARSE_COUNT_BYTES, "");

// What one round's launches are told.
typedef struct sparse_round {
    int32_t first;        // request
    int32_t splits;       // of each request's keys, at most
    int32_t split_tokens; // tokens of a split; the last one has the rest
} sparse_round;

static __device__ __forceinline__ bool is_sparse(const msgl_sparse_call &c, int32_t len)
{
    return len >= c.least;
}

// What a pick block keeps of the queries, and of the new token's label. In dynamic shared memory it
// has counts for the choice of each of its heads, and behind them each head's scores.
typedef struct pick_room {
    uint4 q[MAX_CHANNELS / CHANNELS][32]; // of lane / 4's head, the channels of lane % 4
    uint4 newest[MAX_CHANNELS / 8];
    uint16_t channels[MAX_CHANNELS];
    int2 tallies[PICK_WARPS];
} pick_room;

// A block's heads and keys.
typedef struct pick_block {
    int32_t req, kv_head, head, rows; // query heads [head, head + rows)
    bool leads;                       // of the KV head's blocks the first
    int32_t len, begin, count;        // keys [begin, begin + count) of the request's len
    int32_t kept;                     // candidates of a split that others follow
    msgl_page_row slots;              // [len]
} pick_block;

static __device__ __forceinline__ pick_block block_of(const msgl_sparse_call &c,
                                                      const sparse_round &round)
{
    const msgl_cuda_attn_call &a = c.dense.attn;
    const int32_t group = a.num_q_heads / a.num_kv_heads;
    const int32_t blocks = msgl__triton_div(group, MSGL_SPARSE_HEADS);
    const int32_t first = blockIdx.x % blocks * MSGL_SPARSE_HEADS;
    pick_block b;
    b.req = round.first + blockIdx.z;
    b.kv_head = blockIdx.x / blocks;
    b.head = b.kv_head * group + first;
    b.rows = msgl__sparse_rows(group - first);
    b.leads = first == 0;
    b.len = a.seqlens_k[b.req];
    const msgl_sparse_cut cut = msgl__sparse_cut(b.len, round.splits, c.heavy_tokens);
    b.begin = min((int32_t)blockIdx.y * cut.each, b.len);
    b.count = min(cut.each, b.len - b.begin);
    b.kept = cut.kept;
    b.slots = msgl__page_row(a, a.table_rows[b.req]);
    return b;
}

static __device__ __forceinline__ int32_t padded(int32_t channels)
{
    return msgl__triton_div(channels, CHANNELS) * CHANNELS;
}

// The queries' channels, zeros where there are none. Elements are 16 bits, whatever they mean.
static __device__ __forceinline__ void fill_queries(const msgl_sparse_call &c, const pick_block &b,
                                                    pick_room *room)
{
    const msgl_cuda_attn_call &a = c.dense.attn;
    const uint16_t *q = (const uint16_t *)a.q + b.req * a.ld_q + (size_t)b.head * a.head_dim;
    const int32_t all = padded(c.heavy_channels) * MSGL_SPARSE_HEADS;
    for (int32_t i = threadIdx.x; i < all; i += PICK_THREADS) {
        const int32_t row = i / CHANNELS % MSGL_SPARSE_HEADS;
        const int32_t at = i / CHANNELS / MSGL_SPARSE_HEADS * CHANNELS + i % CHANNELS;
        const bool has = row < b.rows && at < c.heavy_channels;
        ((uint16_t *)room->q)[i] = has ? q[row * a.head_dim + room->channels[at]] : 0;
    }
}

// The new token's label, of which this step's K are the source: it need not be in the pool yet.
static __device__ __forceinline__ void fill_newest(const msgl_sparse_call &c, const pick_block &b,
                                                   pick_room *room)
{
    const msgl_cuda_attn_call &a = c.dense.attn;
    const int32_t channels = c.heavy_channels;
    const size_t at = (size_t)b.slots[b.len - 1] * a.num_kv_heads + b.kv_head;
    const uint16_t *k = (const uint16_t *)a.k + at * a.head_dim;
    uint16_t *label = (uint16_t *)c.labels + at * channels;
    // From the last thread on: the first ones are busy with queries.
    for (int32_t i = PICK_THREADS - 1 - threadIdx.x; i < padded(channels); i += PICK_THREADS) {
        const uint16_t x = i < channels ? k[room->channels[i]] : 0;
        ((uint16_t *)room->newest)[i] = x;
        if (b.leads && i < channels) label[i] = x;
    }
}

// Scores of all of the block's keys, 32 of a warp at a time: the rows of two products whose columns
// are the heads. The order of channels in a product is of no meaning; a lane's are those that lie
// together in a label. newest: the last key is the new token. There is a barrier inside, behind
// which the room is used.
template <typename T>
static __device__ __forceinline__ void score_keys(const msgl_sparse_call &c, const pick_block &b,
                                                  int32_t slot, bool newest, int32_t pitch,
                                                  const pick_room *room, uint32_t *orders)
{
    const int32_t lane = threadIdx.x % 32, first = threadIdx.x - lane;
    const int32_t runs = padded(c.heavy_channels) / CHANNELS;
    const int32_t last = newest ? b.count - 1 : -1;
    const size_t stride = (size_t)c.dense.attn.num_kv_heads * c.heavy_channels;
    const T *labels = (const T *)c.labels + (size_t)b.kv_head * c.heavy_channels;
    const auto slot_of = [&](int32_t key) { return key < b.count ? b.slots[b.begin + key] : -1; };
    uint4 x[4]; // of keys lane / 4 + 8 i
    const auto load = [&](int32_t run) {
        const int32_t channel = run * CHANNELS + lane % 4 * 8;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t from = __shfl_sync(~0u, slot, lane / 4 + 8 * i);
            const bool there = from >= 0 && channel < c.heavy_channels;
            const T *label = labels + (there ? from * stride + channel : 0);
            x[i] = there ? msgl__read_once(label) : make_uint4(0, 0, 0, 0);
        }
    };
    load(0);
    int32_t next = slot_of(first + PICK_THREADS + lane);
    __syncthreads();
    for (int32_t key0 = first; key0 < b.count; key0 += PICK_THREADS) {
        float s[2][4] = {};
        for (int32_t run = 0; run < runs; run++) {
            if (run > 0) load(run);
            const uint4 q = room->q[run][lane];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (key0 + lane / 4 + 8 * i == last) x[i] = room->newest[run * 4 + lane % 4];
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint4 u = x[2 * i], v = x[2 * i + 1];
                const uint32_t low[4] = {u.x, v.x, u.y, v.y}, high[4] = {u.z, v.z, u.w, v.w};
                msgl__mma(s[i], low, q.x, q.y, T());
                msgl__mma(s[i], high, q.z, q.w, T());
            }
        }
        slot = next;
        next = slot_of(key0 + 2 * PICK_THREADS + lane);
        load(0);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int32_t row = lane % 4 * 2 + i % 2, key = key0 + lane / 4 + i / 2 * 8;
            if (row < b.rows) orders[row * pitch + key] = ordered(s[i / 4][i % 4]);
        }
    }
}

// Passes on the block's largest scores of each head, by a power of two of warps a head.
static __device__ __forceinline__ void keep_largest(const msgl_sparse_call &c, const pick_block &b,
                                                    const uint32_t *orders, int32_t pitch,
                                                    int32_t *counts, pick_room *room)
{
    const int32_t warp = threadIdx.x / 32;
    const int32_t warps = PICK_WARPS / (b.rows > 4 ? 8 : b.rows > 2 ? 4 : b.rows);
    const int32_t row = min(warp / warps, b.rows - 1);
    const int32_t len = warp / warps < b.rows ? b.count : 0;
    const msgl_row r = {orders + row * pitch, len, warp % warps, warps};
    msgl_least least = {0, b.count}; // all
    if (b.count > c.heavy_tokens) {
        least = msgl_find_least(r, c.heavy_tokens, counts + row * MSGL_COUNTS);
    }
    const size_t rows = (size_t)blockIdx.z * c.dense.attn.num_q_heads + b.head + row;
    const size_t at = rows * c.room + (size_t)blockIdx.y * b.kept;
    msgl_list_largest(r, least, room->tallies + row * warps, [&](int32_t i, int32_t place) {
        c.orders[at + place] = r.orders[i];
        c.tokens[at + place] = b.begin + i;
    });
}

// Block (KV head and up to 8 of its query heads, split, request of the round).
template <typename T>
static __global__ __launch_bounds__(PICK_THREADS,
                                    2) void sparse_pick(const __grid_constant__ msgl_sparse_call c,
                                                        sparse_round round, int32_t pitch)
{
    extern __shared__ __align__(16) int32_t counts[];
    __shared__ pick_room room;
    const pick_block b = block_of(c, round);
    const bool sparse = is_sparse(c, b.len);
    const bool newest =
        sparse ? b.count > 0 && b.begin + b.count == b.len : b.leads && blockIdx.y == 0;
    const int32_t slot = (int32_t)threadIdx.x < b.count ? b.slots[b.begin + threadIdx.x] : -1;
    for (int32_t i = threadIdx.x; i < c.heavy_channels; i += PICK_THREADS) {
        room.channels[i] = c.channels[b.kv_head * c.heavy_channels + i];
    }
    msgl_clear_counts(counts, b.rows, PICK_THREADS);
    __syncthreads();
    msgl__pdl_wait();
    msgl__pdl_trigger();
    if (newest) fill_newest(c, b, &room);
    if (!sparse || b.count == 0) return;
    fill_queries(c, b, &room);
    uint32_t *orders = (uint32_t *)(counts + b.rows * MSGL_COUNTS);
    score_keys<T>(c, b, slot, newest, pitch, &room, orders);
    __syncthreads();
    keep_largest(c, b, orders, pitch, counts, &room);
}

// Whether this block is the last of the head's to come here, with what the others have written.
static __device__ bool is_last(int32_t *done, int32_t splits)
{
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        last = msgl__count(done) == splits - 1;
        if (last) msgl__store_relaxed(done, 0);
    }
    __syncthreads();
    return last;
}

// Block (query head, split, request of the round).
template <typename T, int HD>
static __global__
__launch_bounds__(ATTEND_THREADS) void sparse_attend(const __grid_constant__ msgl_sparse_call c,
                                                     sparse_round round)
{
    extern __shared__ int32_t slots[]; // of the split's tokens
    __shared__ __align__(16) int32_t counts[MSGL_COUNTS];
    __shared__ int2 tallies[ATTEND_WARPS];
    __shared__ msgl_dots_room<HD, ATTEND_THREADS> room;
    const msgl_cuda_attn_call &a = c.dense.attn;
    const int32_t head = blockIdx.x, split = blockIdx.y, req = round.first + blockIdx.z;
    const int32_t splits = gridDim.y, len = a.seqlens_k[req];
    const msgl_page_row table = msgl__page_row(a, a.table_rows[req]);
    msgl_clear_counts(counts, 1, ATTEND_THREADS);
    __syncthreads();
    msgl__pdl_wait();
    msgl__pdl_trigger();
    if (!is_sparse(c, len)) return;

    const size_t row = (size_t)blockIdx.z * a.num_q_heads + head;
    const msgl_sparse_cut cut = msgl__sparse_cut(len, round.splits, c.heavy_tokens);
    const int32_t warp = threadIdx.x / 32, candidates = msgl__sparse_candidates(cut, len);
    const msgl_row r = {c.orders + row * c.room, candidates, warp, ATTEND_WARPS};
    msgl_least least = {0, candidates}; // all
    if (candidates > c.heavy_tokens) least = msgl_find_least(r, c.heavy_tokens, counts);
    const int32_t first = split * round.split_tokens,
                  n = min(round.split_tokens, c.heavy_tokens - first);
    msgl_list_largest(r, least, tallies, [&](int32_t i, int32_t place) {
        if (place >= first && place < first + n) slots[place - first] = i;
    });
    __syncthreads();
    const int32_t *tokens = c.tokens + row * c.room;
    for (int32_t i = threadIdx.x; i < n; i += ATTEND_THREADS) slots[i] = table[tokens[slots[i]]];
    __syncthreads();
    const msgl_triton_range keys = {0, n};
    const int32_t kv_head = head / (a.num_q_heads / a.num_kv_heads);
    msgl_dots_attend<T, HD>(c.dense, req, head, kv_head, slots, keys, split, &room);
    if (!is_last(c.done + row, splits)) return;
    msgl_merge_splits<T>(c.dense, req, head, [&](int32_t s) { return s < splits; });
}

// Tokens of a split. Splits fill the processors where there are few heads, but not where bits must
// not tell how many there are.
static int32_t split_tokens_of(const msgl_sparse_call &c, int32_t requests, int32_t sms)
{
    const msgl_cuda_attn_call &a = c.dense.attn;
    const bool few = a.deterministic || (int64_t)a.num_q_heads * requests < 2 * sms;
    const int32_t n = c.heavy_tokens, least = msgl__triton_div(n, MOST_TOKENS);
    const int32_t wanted = few ? msgl__triton_div(n, SPLIT_TOKENS) : 1;
    const int32_t splits =
        msgl__triton_min(wanted > least ? wanted : least, MSGL_TRITON_MAX_SPLITS);
    return msgl__triton_div(msgl__triton_div(n, splits), 32) * 32;
}

template <typename T, int HD>
static cudaError_t launch(const msgl_sparse_call &c, sparse_round round, cudaStream_t s)
{
    const msgl_cuda_attn_call &a = c.dense.attn;
    const int32_t requests = msgl__triton_min(a.batch - round.first, c.round);
    const int32_t group = a.num_q_heads / a.num_kv_heads, rows = msgl__sparse_rows(group);
    const int32_t blocks = a.num_kv_heads * msgl__triton_div(group, MSGL_SPARSE_HEADS);
    msgl_gpu gpu;
    cudaError_t e = msgl__current_gpu(&gpu);
    if (e != cudaSuccess) return e;
    round.splits = msgl__sparse_splits(group, a.max_seqlen_k, (int64_t)blocks * requests, gpu.sms);
    round.split_tokens = split_tokens_of(c, requests, gpu.sms);
    const int32_t pitch = msgl__sparse_pitch(msgl__sparse_most_each(a.max_seqlen_k, round.splits));
    const size_t bytes = (size_t)rows * (MSGL_SPARSE_COUNT_BYTES + (size_t)pitch * 4);
    const unsigned z = (unsigned)requests,
                   splits = (unsigned)msgl__triton_div(c.heavy_tokens, round.split_tokens);
    e = msgl__allow_shared<sparse_pick<T>>(bytes);
    if (e == cudaSuccess) {
        e = msgl__launch(sparse_pick<T>, dim3((unsigned)blocks, (unsigned)round.splits, z),
                         PICK_THREADS, bytes, s, c, round, pitch);
    }
    if (e != cudaSuccess) return e;
    return msgl__launch(sparse_attend<T, HD>, dim3((unsigned)a.num_q_heads, splits, z),
                        ATTEND_THREADS, (size_t)round.split_tokens * 4, s, c, round);
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
    const int32_t dim = c->dense.attn.head_dim, channels = c->heavy_channels;
    if (dim < 8 || dim > 256 || dim % 8 != 0) return cudaErrorNotSupported;
    if (channels > MAX_CHANNELS || channels % 8 != 0) return cudaErrorNotSupported;
    switch (c->dense.attn.dtype) {
    case MSGL_BF16: return launch_rounds<__nv_bfloat16>(*c, (cudaStream_t)stream);
    case MSGL_F16: return launch_rounds<__half>(*c, (cudaStream_t)stream);
    default: return cudaErrorNotSupported;
    }
}
