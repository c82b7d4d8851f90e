// SPDX-License-Identifier: Apache-2.0
//
// A piece of a sparse prompt takes five kernels: the queries of the rows that choose are rotated;
// their scores of all keys give each row's maximum and sum; the same scores again give what every
// key and distance has of their probabilities, as whole numbers, so that the order of additions
// does not matter; the largest become bits; and blocks of 64 rows attend to the keys that their
// bits say.
#include "cuda/attn/dual_sparse.h"

#include "cuda/attn/rows16.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/shared.cuh"
#include "kernel/dual_chunk.h"

enum {
    ROWS = 64,
    WARPS = 4,
    THREADS = WARPS * 32,
    KEYS = 64,       // of a tile of scores
    SPLIT = 2048,    // keys that one block scores
    WINDOW = 4096,   // keys among which a block looks for those that it sees, at a time
    CHOOSERS = 1024, // threads that choose of a head
    DIGIT = 11,      // bits that one pass of the choice looks at
    BINS = 1 << DIGIT,
};

// One probability. A sum of MSGL_SPARSE_LAST of them is below 2^31.
static const float ONE = 16777216.f;

// What a piece's kernels leave for each other.
struct room {
    void *queries;  // [2, heads, MSGL_SPARSE_LAST, head_dim]
    float2 *rows;   // [heads, splits, MSGL_SPARSE_LAST] maximum, and sum of exp2(s - maximum)
    uint32_t *sums; // [heads, 2, keys] of columns and of distances
    uint32_t *bits; // [heads, 2, keys / 32]
    int32_t keys;   // of the piece, a multiple of 32
};

static int32_t splits_of(int32_t keys)
{
    return (keys + SPLIT - 1) / SPLIT;
}

static size_t cut(int32_t heads, int32_t head_dim, int32_t keys, void *base, room *r)
{
    char *at = (char *)base;
    const auto take = [&](size_t bytes) {
        char *p = at;
        at += (bytes + 255) & ~(size_t)255;
        return p;
    };
    r->keys = (keys + 31) & ~31;
    r->bits = (uint32_t *)take((size_t)heads * 2 * r->keys / 8);
    r->queries = take((size_t)2 * heads * MSGL_SPARSE_LAST * head_dim * 2);
    r->rows = (float2 *)take((size_t)heads * splits_of(keys) * MSGL_SPARSE_LAST * sizeof(float2));
    r->sums = (uint32_t *)take((size_t)heads * 2 * r->keys * 4);
    return (size_t)(at - (char *)base);
}

// A piece as its kernels see it.
struct piece {
    msgl_cuda_attn_call c;
    msgl_sparse_piece p;
    room r;
    int32_t choosing; // rows that choose
};

struct range { // of keys, with the query for them
    int32_t from, to;
};

static __device__ __forceinline__ range range_of(const piece &a, int32_t query)
{
    const int32_t own = a.p.begin / a.p.dual_len * a.p.dual_len;
    const int32_t before = max(own - a.p.dual_len, 0);
    return query == 2 ? range{0, before} : query == 1 ? range{before, own} : range{own, a.p.end};
}

// Row `row` of the step, its query for the keys of a range.
template <typename T>
static __device__ __forceinline__ const T *query_of(const piece &a, int32_t row, int32_t query,
                                                    int32_t head)
{
    return (const T *)a.c.q + (size_t)row * a.c.ld_q +
           (size_t)(query * a.c.num_q_heads + head) * a.c.head_dim;
}

// Row i of those that choose.
template <typename T>
static __device__ __forceinline__ const T *choosing_query(const piece &a, int32_t i, int32_t query,
                                                          int32_t head)
{
    if (query == 0) {
        return query_of<T>(a, a.p.row + (a.p.end - a.p.begin) - a.choosing + i, 0, head);
    }
    const size_t at = (size_t)((query - 1) * a.c.num_q_heads + head) * MSGL_SPARSE_LAST + i;
    return (const T *)a.r.queries + at * a.c.head_dim;
}

// blockIdx: head, rotation. Clears the sums of distances besides.
template <typename T>
static __global__ __launch_bounds__(THREADS) void sparse_rotate(const __grid_constant__ piece a)
{
    const int32_t head = blockIdx.x, rotation = blockIdx.y, half = a.p.half, dim = a.c.head_dim;
    const float *cosines = a.p.rotations + rotation * 2 * half, *sines = cosines + half;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    uint32_t *distances = a.r.sums + ((size_t)head * 2 + 1) * a.r.keys;
    for (int32_t i = rotation * THREADS + threadIdx.x; i < a.r.keys; i += 2 * THREADS)
        distances[i] = 0;
    for (int32_t i = threadIdx.x; i < a.choosing * dim; i += THREADS) {
        const int32_t row = i / dim, d = i % dim, pair = d % half;
        const T *q = choosing_query<T>(a, row, 0, head);
        float x = (float)q[d];
        if (d < 2 * half) {
            const float other = (float)q[d < half ? d + half : d - half];
            x = x * cosines[pair] + (d < half ? -other : other) * sines[pair];
        }
        ((T *)choosing_query<T>(a, row, rotation + 1, head))[d] = (T)x;
    }
}

// K of keys [key0, key0 + KEYS), zeros from `to` on.
template <typename T, int HD>
static __device__ __forceinline__ void load_k(const msgl_rows16_keys<msgl_page_row> &keys,
                                              int32_t key0, int32_t to, uint32_t tile)
{
    const int PITCH = msgl_rows16_pitch<T, HD>::BYTES, CHUNKS = HD * 2 / 16;
#pragma unroll
    for (int i = 0; i < KEYS * CHUNKS / THREADS; i++) {
        const int32_t at = i * THREADS + threadIdx.x, row = at / CHUNKS, chunk = at % CHUNKS;
        const bool inside = key0 + row < to && chunk * 8 < keys.head_dim;
        const size_t src =
            inside ? (size_t)keys.slots[key0 + row] * keys.slot_bytes + chunk * 16 : 0;
        msgl__copy_async_16(tile + row * PITCH + chunk * 16, keys.k + src, inside);
    }
}

// Calls fn(key0, to, s) for the scores, times log2(e), of each tile of the block's split, -inf
// where a row of the lane does not see a key; s as in msgl_score.
template <typename T, int HD, typename FN>
static __device__ __forceinline__ void each_tile(const piece &a, int32_t head, uint32_t ring,
                                                 const FN &fn)
{
    const int TILE = KEYS * msgl_rows16_pitch<T, HD>::BYTES, NB = KEYS / 8;
    const int32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    const int32_t split = blockIdx.y * SPLIT;
    const auto keys = msgl_rows16_keys_of<T>(a.c, head / (a.c.num_q_heads / a.c.num_kv_heads),
                                             msgl__page_row(a.c, a.c.table_rows[a.p.req]));
    const float scale = a.c.scale * 1.4426950408889634f;
#pragma unroll 1
    for (int32_t query = MSGL_DUAL_QUERIES - 1; query >= 0; query--) {
        const range whole = range_of(a, query);
        const int32_t from = max(whole.from, split), to = min(whole.to, split + SPLIT);
        if (from >= to) continue;
        msgl_rows16<HD> w;
        const T *q[2];
        int32_t last[2]; // key that each of the lane's rows sees; -1: there is no such row
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool there = row + r * 8 < a.choosing;
            q[r] = there ? choosing_query<T>(a, row + r * 8, query, head) : NULL;
            last[r] = there ? a.p.end - a.choosing + row + r * 8 : -1;
        }
        msgl_rows16_query<T>(q, a.c.head_dim, lane, &w);
        load_k<T, HD>(keys, from, to, ring);
        msgl__copy_async_commit();
        for (int32_t key0 = from, at = 0; key0 < to; key0 += KEYS, at ^= 1) {
            if (key0 + KEYS < to) load_k<T, HD>(keys, key0 + KEYS, to, ring + (at ^ 1) * TILE);
            msgl__copy_async_commit();
            msgl__copy_async_wait<1>();
            __syncthreads();
            float s[NB][4];
            msgl_rows16_scores<T, HD, NB>(ring + at * TILE, lane, w, s);
#pragma unroll
            for (int i = 0; i < NB * 4; i++) {
                const int32_t key = key0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
                const bool sees = key < to && key <= last[i % 4 / 2];
                s[i / 4][i % 4] = sees ? s[i / 4][i % 4] * scale : -INFINITY;
            }
            fn(key0, to, s);
            __syncthreads();
        }
    }
}

// blockIdx: head, split.
template <typename T, int HD>
static __global__ __launch_bounds__(THREADS) void sparse_rows(const __grid_constant__ piece a)
{
    extern __shared__ __align__(128) char smem[];
    const int32_t head = blockIdx.x, lane = threadIdx.x % 32;
    const int32_t row = threadIdx.x / 32 * 16 + lane / 4;
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {0.f, 0.f};
    msgl__pdl_wait();
    msgl__pdl_trigger();
    each_tile<T, HD>(a, head, msgl__shared_address(smem), [&](int32_t, int32_t, auto &s) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = m[r];
#pragma unroll
            for (int i = 0; i < KEYS / 8 * 2; i++) top = fmaxf(top, s[i / 2][2 * r + i % 2]);
            if (top == -INFINITY) continue;
            l[r] *= msgl__exp2(m[r] - top);
            m[r] = top;
#pragma unroll
            for (int i = 0; i < KEYS / 8 * 2; i++)
                l[r] += msgl__exp2(s[i / 2][2 * r + i % 2] - top);
        }
    });
#pragma unroll
    for (int r = 0; r < 2; r++) { // over the four lanes of a row
        float top = fmaxf(m[r], __shfl_xor_sync(~0u, m[r], 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        float sum = top == -INFINITY ? 0.f : l[r] * msgl__exp2(m[r] - top);
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const size_t at = ((size_t)head * gridDim.y + blockIdx.y) * MSGL_SPARSE_LAST + row + r * 8;
        if (lane % 4 == 0) a.r.rows[at] = make_float2(top, sum);
    }
}

// blockIdx: head, split.
template <typename T, int HD>
static __global__ __launch_bounds__(THREADS) void sparse_sums(const __grid_constant__ piece a)
{
    extern __shared__ __align__(128) char smem[];
    __shared__ uint32_t columns[WARPS][KEYS], distances[KEYS + ROWS];
    const int32_t head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t row = warp * 16 + lane / 4;
    uint32_t *key_sums = a.r.sums + (size_t)head * 2 * a.r.keys;
    uint32_t *distance_sums = key_sums + a.r.keys;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    float m[2], unit[2]; // of the lane's rows: the maximum, and ONE over the sum
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float2 *part = a.r.rows + (size_t)head * gridDim.y * MSGL_SPARSE_LAST + row + r * 8;
        float sum = 0.f;
        m[r] = -INFINITY;
        for (int32_t i = 0; i < gridDim.y; i++) m[r] = fmaxf(m[r], part[i * MSGL_SPARSE_LAST].x);
        for (int32_t i = 0; i < gridDim.y && m[r] > -INFINITY; i++) {
            sum += part[i * MSGL_SPARSE_LAST].y * msgl__exp2(part[i * MSGL_SPARSE_LAST].x - m[r]);
        }
        unit[r] = m[r] > -INFINITY ? ONE / sum : 0.f;
        if (m[r] == -INFINITY) m[r] = 0.f; // there is no such row
    }
    for (int32_t i = threadIdx.x; i < KEYS + ROWS; i += THREADS) distances[i] = 0;
    each_tile<T, HD>(a, head, msgl__shared_address(smem), [&](int32_t key0, int32_t to, auto &s) {
#pragma unroll
        for (int i = 0; i < KEYS / 8 * 2; i++) {
            const int32_t key = i / 2 * 8 + lane % 4 * 2 + i % 2;
            uint32_t sum = 0;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float x = msgl__exp2(s[i / 2][2 * r + i % 2] - m[r]) * unit[r];
                const uint32_t prob = __float2uint_rn(x);
                sum += prob;
                // Diagonals of the tile, from its last key and first row on.
                if (prob > 0) atomicAdd(&distances[row + r * 8 + KEYS - 1 - key], prob);
            }
            sum += __shfl_xor_sync(~0u, sum, 4);
            sum += __shfl_xor_sync(~0u, sum, 8);
            sum += __shfl_xor_sync(~0u, sum, 16);
            if (lane < 4) columns[warp][key] = sum;
        }
        __syncthreads();
        const int32_t i = threadIdx.x; // THREADS == KEYS + ROWS
        if (i < KEYS && key0 + i < to) {
            key_sums[key0 + i] = columns[0][i] + columns[1][i] + columns[2][i] + columns[3][i];
        }
        const int32_t distance = a.p.end - a.choosing + i - (KEYS - 1) - key0;
        if (distances[i] > 0) atomicAdd(&distance_sums[distance], distances[i]);
        distances[i] = 0;
    });
}

// Where the count of numbers from the largest on reaches `left`: bin and what is left within it.
// counts: of BINS bins. By one warp.
static __device__ __forceinline__ int32_t find_bin(const uint32_t *counts, int32_t lane,
                                                   int32_t *left)
{
    const int LANE_BINS = BINS / 32;
    const int32_t top = BINS - 1 - lane * LANE_BINS; // the lane's bins, downwards
    uint32_t sum = 0;
    for (int i = 0; i < LANE_BINS; i++) sum += counts[top - i];
    uint32_t upto = sum;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, upto, d);
        if (lane >= d) upto += other;
    }
    const int32_t who = __ffs((int)__ballot_sync(~0u, upto >= (uint32_t)*left)) - 1;
    int32_t bin = 0, rest = *left - (int32_t)(upto - sum);
    if (lane == who) {
        for (bin = top; counts[bin] < (uint32_t)rest; bin--) rest -= (int32_t)counts[bin];
    }
    *left = __shfl_sync(~0u, rest, who);
    return __shfl_sync(~0u, bin, who);
}

// blockIdx: head, columns or distances. The largest sums of them become bits, of equal ones the
// first, `kept` first ones before all others. A digit a pass, the highest first.
static __global__ __launch_bounds__(CHOOSERS) void sparse_choose(const __grid_constant__ piece a)
{
    __shared__ uint32_t counts[BINS], ties[2][CHOOSERS / 32];
    __shared__ uint32_t chosen_bin;
    __shared__ int32_t left_shared;
    const int32_t which = blockIdx.x * 2 + blockIdx.y, end = a.p.end, warp = threadIdx.x / 32;
    const int32_t kept = blockIdx.y == 0 ? MSGL_SPARSE_FIRST_KEYS : MSGL_SPARSE_NEAR_KEYS;
    const bool all = a.choosing == a.p.end - a.p.begin;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const uint32_t *sums = a.r.sums + (size_t)which * a.r.keys;
    uint32_t *bits = a.r.bits + (size_t)which * a.r.keys / 32;
    const int32_t wanted = all ? (blockIdx.y == 0 ? end : 0) : a.p.counts[which];
    if (wanted >= end || wanted == 0) {
        for (int32_t i = threadIdx.x; i < a.r.keys / 32; i += CHOOSERS) bits[i] = wanted ? ~0u : 0u;
        return;
    }
    const auto value = [&](int32_t i) { return i < kept ? ~0u : sums[i]; };
    uint32_t prefix = 0, known = 0;
    int32_t left = wanted;
    for (int32_t shift = 32 - DIGIT; known != ~0u; shift = max(shift - DIGIT, 0)) {
        const uint32_t mask = (BINS - 1u) << shift & ~known;
        for (int32_t i = threadIdx.x; i < BINS; i += CHOOSERS) counts[i] = 0;
        __syncthreads();
        for (int32_t i = threadIdx.x; i < end; i += CHOOSERS) {
            const uint32_t v = value(i);
            if ((v & known) == prefix) atomicAdd(&counts[(v & mask) >> shift], 1u);
        }
        __syncthreads();
        if (warp == 0) {
            const int32_t bin = find_bin(counts, threadIdx.x, &left);
            if (threadIdx.x == 0) {
                chosen_bin = (uint32_t)bin;
                left_shared = left;
            }
        }
        __syncthreads();
        prefix |= chosen_bin << shift;
        known |= mask;
        left = left_shared;
    }
    // Of those that have what the last one taken has, the first `left`.
    int32_t taken = 0;
    for (int32_t base = 0, buffer = 0; base < a.r.keys; base += CHOOSERS, buffer ^= 1) {
        const int32_t i = base + (int32_t)threadIdx.x;
        const uint32_t v = i < end ? value(i) : 0;
        const bool tie = i < end && v == prefix;
        const uint32_t tied = __ballot_sync(~0u, tie);
        if (threadIdx.x % 32 == 0) ties[buffer][warp] = (uint32_t)__popc(tied);
        __syncthreads();
        int32_t before = taken;
        for (int32_t w = 0; w < CHOOSERS / 32; w++) {
            before += w < warp ? (int32_t)ties[buffer][w] : 0;
            taken += (int32_t)ties[buffer][w];
        }
        before += __popc(tied & ((1u << threadIdx.x % 32) - 1u));
        const bool take = i < end && (v > prefix || (tie && before < left));
        const uint32_t word = __ballot_sync(~0u, take);
        if (threadIdx.x % 32 == 0 && i < a.r.keys) bits[i / 32] = word;
    }
}

// Sets bits [from, to) of words in shared memory.
static __device__ __forceinline__ void set_bits(uint32_t *words, int32_t from, int32_t to)
{
    for (int32_t w = from / 32; w <= (to - 1) / 32; w++) {
        const uint32_t low = w == from / 32 ? ~0u << from % 32 : ~0u;
        const uint32_t high = w == (to - 1) / 32 ? ~0u >> (31 - (to - 1) % 32) : ~0u;
        atomicOr(&words[w], low & high);
    }
}

// Which of the keys before `to` the rows from position `begin` on see, as bits.
static __device__ __forceinline__ void see_keys(const piece &a, int32_t head, int32_t begin,
                                                int32_t to, uint32_t *seen)
{
    const uint32_t *columns = a.r.bits + (size_t)head * 2 * a.r.keys / 32;
    const uint32_t *distances = columns + a.r.keys / 32;
    for (int32_t i = threadIdx.x; i < (to + 31) / 32; i += THREADS) seen[i] = columns[i];
    __syncthreads();
    for (int32_t i = threadIdx.x; i < (a.p.end + 31) / 32; i += THREADS) {
        for (uint32_t left = distances[i]; left != 0; left &= left - 1) {
            const int32_t distance = i * 32 + __ffs((int)left) - 1;
            // No row has a key at this distance beyond the range of the last row's.
            const int32_t last = a.p.end - 1 - distance, from = max(begin - distance, 0);
            if (last < 0) break; // a bit that stands for all, behind the end
            int32_t query = 0;
            while (range_of(a, query).from > last) query++;
            const int32_t end = min(min(begin - distance + ROWS, to), range_of(a, query).to);
            if (from < end) set_bits(seen, from, end);
        }
    }
    __syncthreads();
}

// The keys among `seen` in [from, to), at most WINDOW apart, to list[count...]; returns their new
// number. By all threads of the block.
static __device__ __forceinline__ int32_t list_keys(const uint32_t *seen, int32_t from, int32_t to,
                                                    int32_t *list, int32_t count,
                                                    int32_t *warp_counts)
{
    const int WORDS = WINDOW / 32 / THREADS + 1; // a window need not begin with a word
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t words[WORDS];
    int32_t mine = 0;
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        const int32_t w = from / 32 + (int32_t)threadIdx.x * WORDS + i;
        uint32_t word = w * 32 < to ? seen[w] : 0u;
        if (w == from / 32) word &= ~0u << from % 32;
        if (w == to / 32) word &= (1u << to % 32) - 1u;
        words[i] = word;
        mine += __popc(word);
    }
    int32_t upto = mine;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int32_t other = __shfl_up_sync(~0u, upto, d);
        if (lane >= d) upto += other;
    }
    if (lane == 31) warp_counts[warp] = upto;
    __syncthreads();
    int32_t at = count + upto - mine;
    for (int32_t w = 0; w < WARPS; w++) {
        at += w < warp ? warp_counts[w] : 0;
        count += warp_counts[w];
    }
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        const int32_t w = from / 32 + (int32_t)threadIdx.x * WORDS + i;
        for (uint32_t left = words[i]; left != 0; left &= left - 1) {
            list[at++] = w * 32 + __ffs((int)left) - 1;
        }
    }
    __syncthreads();
    return count;
}

template <typename T, int HD> struct shape {
    static const int KEYS = HD > 128 ? 32 : 64; // of a tile
    static const int RING = 2 * 2 * KEYS * msgl_rows16_pitch<T, HD>::BYTES;
    static const int LIST = (WINDOW + KEYS) * 4;
};

// K and V of the n keys in a list; zeros behind them.
template <typename T, int HD, int N>
static __device__ __forceinline__ void load_listed(const msgl_rows16_keys<msgl_page_row> &keys,
                                                   const int32_t *list, int32_t n, uint32_t tile)
{
    const int PITCH = msgl_rows16_pitch<T, HD>::BYTES, CHUNKS = HD * 2 / 16;
#pragma unroll
    for (int i = 0; i < N * CHUNKS / THREADS; i++) {
        const int32_t at = i * THREADS + threadIdx.x, row = at / CHUNKS, chunk = at % CHUNKS;
        const bool inside = row < n && chunk * 8 < keys.head_dim;
        const size_t src =
            inside ? (size_t)keys.slots[list[row]] * keys.slot_bytes + chunk * 16 : 0;
        const uint32_t dst = tile + row * PITCH + chunk * 16;
        msgl__copy_async_16(dst, keys.k + src, inside);
        msgl__copy_async_16(dst + N * PITCH, keys.v + src, inside);
    }
}

// Attends to the n keys of a list, of which last[r] is the last that row r of the lane sees.
template <typename T, int HD, int N>
static __device__ __forceinline__ void walk_list(const msgl_rows16_keys<msgl_page_row> &keys,
                                                 const int32_t *list, int32_t n,
                                                 const msgl_score &score, const int32_t last[2],
                                                 uint32_t ring, int32_t lane, msgl_rows16<HD> *w)
{
    const int TILE = 2 * N * msgl_rows16_pitch<T, HD>::BYTES;
    if (n == 0) return; // or its copies would meet the next list's
    load_listed<T, HD, N>(keys, list, n, ring);
    msgl__copy_async_commit();
    for (int32_t from = 0, at = 0; from < n; from += N, at ^= 1) {
        if (from + N < n) {
            load_listed<T, HD, N>(keys, list + from + N, n - from - N, ring + (at ^ 1) * TILE);
        }
        msgl__copy_async_commit();
        msgl__copy_async_wait<1>();
        __syncthreads();
        const auto sees = [&](int r, int32_t i) {
            return from + i < n && list[from + i] <= last[r];
        };
        msgl_rows16_attend<T, HD, N>(score, ring + at * TILE, lane, sees, w);
        __syncthreads();
    }
}

// blockIdx: head, block of rows, the last ones first.
template <typename T, int HD>
static __global__ __launch_bounds__(THREADS) void sparse_attend(const __grid_constant__ piece a)
{
    typedef shape<T, HD> S;
    extern __shared__ __align__(128) char smem[];
    __shared__ int32_t warp_counts[WARPS];
    int32_t *list = (int32_t *)(smem + S::RING);
    uint32_t *seen = (uint32_t *)(smem + S::RING + S::LIST);
    const int32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4; // and row + 8
    const int32_t head = blockIdx.x;
    const int32_t begin = a.p.begin + (int32_t)(gridDim.y - 1 - blockIdx.y) * ROWS;
    const int32_t rows = min(ROWS, a.p.end - begin), first = a.p.row + begin - a.p.begin;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const auto keys = msgl_rows16_keys_of<T>(a.c, head / (a.c.num_q_heads / a.c.num_kv_heads),
                                             msgl__page_row(a.c, a.c.table_rows[a.p.req]));
    const msgl_score score = {a.c.scale, 0.f};
    see_keys(a, head, begin, begin + rows, seen);
    msgl_rows16<HD> w;
    msgl_rows16_start(&w);
#pragma unroll 1
    for (int32_t query = MSGL_DUAL_QUERIES - 1; query >= 0; query--) {
        const range whole = range_of(a, query);
        const int32_t to = min(whole.to, begin + rows);
        if (whole.from >= to) continue;
        const T *q[2];
        int32_t last[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool there = row + r * 8 < rows;
            q[r] = there ? query_of<T>(a, first + row + r * 8, query, head) : NULL;
            last[r] = begin + row + r * 8;
        }
        msgl_rows16_query<T>(q, a.c.head_dim, lane, &w);
        // What does not fill a tile goes with the next window's keys.
        int32_t count = 0;
#pragma unroll 1
        for (int32_t from = whole.from; from < to; from += WINDOW) {
            const int32_t end = min(from + WINDOW, to);
            count = list_keys(seen, from, end, list, count, warp_counts);
            const int32_t full = end < to ? count / S::KEYS * S::KEYS : count;
            walk_list<T, HD, S::KEYS>(keys, list, full, score, last, msgl__shared_address(smem),
                                      lane, &w);
            const int32_t rest = count - full;
            const int32_t kept = (int32_t)threadIdx.x < rest ? list[full + threadIdx.x] : 0;
            __syncthreads();
            if ((int32_t)threadIdx.x < rest) list[threadIdx.x] = kept;
            count = rest;
        }
    }
    msgl_rows16_sum(&w);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + r * 8 >= rows) continue;
        T *out = (T *)a.c.out + (size_t)(first + row + r * 8) * a.c.ld_out;
        msgl_rows16_store<T>(w, r, a.c.out_scale / w.l[r], a.c.head_dim, lane,
                             out + (size_t)head * a.c.head_dim);
    }
}

template <typename T, int HD> static cudaError_t launch(const piece &a, cudaStream_t s)
{
    typedef shape<T, HD> S;
    const unsigned heads = (unsigned)a.c.num_q_heads;
    const size_t scores = 2 * (size_t)KEYS * msgl_rows16_pitch<T, HD>::BYTES;
    const size_t seen = ((size_t)a.p.end + 31) / 32 * 4, attend = S::RING + S::LIST + seen;
    constexpr auto rows = sparse_rows<T, HD>, sums = sparse_sums<T, HD>;
    constexpr auto blocks = sparse_attend<T, HD>;
    cudaError_t e = msgl__allow_shared<rows>(scores);
    if (e == cudaSuccess) e = msgl__allow_shared<sums>(scores);
    if (e == cudaSuccess) e = msgl__allow_shared<blocks>(attend);
    if (e != cudaSuccess) return e;
    if (a.choosing < a.p.end - a.p.begin) {
        const dim3 splits(heads, (unsigned)splits_of(a.p.end));
        e = msgl__launch(sparse_rotate<T>, dim3(heads, 2), THREADS, 0, s, a);
        if (e == cudaSuccess) e = msgl__launch(rows, splits, THREADS, scores, s, a);
        if (e == cudaSuccess) e = msgl__launch(sums, splits, THREADS, scores, s, a);
        if (e != cudaSuccess) return e;
    }
    e = msgl__launch(sparse_choose, dim3(heads, 2), CHOOSERS, 0, s, a);
    if (e != cudaSuccess) return e;
    const unsigned tiles = (unsigned)((a.p.end - a.p.begin + ROWS - 1) / ROWS);
    return msgl__launch(blocks, dim3(heads, tiles), THREADS, attend, s, a);
}

template <typename T> static cudaError_t launch_dim(const piece &a, cudaStream_t s)
{
    return a.c.head_dim <= 64    ? launch<T, 64>(a, s)
           : a.c.head_dim <= 128 ? launch<T, 128>(a, s)
                                 : launch<T, 256>(a, s);
}

extern "C" size_t msgl__cuda_dual_sparse_workspace(int32_t num_q_heads, int32_t head_dim,
                                                   int32_t max_seq_len)
{
    room unused;
    return cut(num_q_heads, head_dim, max_seq_len, NULL, &unused);
}

extern "C" int msgl__cuda_dual_sparse_prompt(const msgl_cuda_attn_call *c,
                                             const msgl_sparse_piece *p, void *stream)
{
    const bool fits = c->head_dim >= 8 && c->head_dim <= 256 && c->head_dim % 8 == 0;
    if (!fits || c->e4m3 || p->last > MSGL_SPARSE_LAST || p->end > MSGL_SPARSE_KEYS) {
        return cudaErrorNotSupported;
    }
    piece a = {*c, *p, {}, p->last < p->end - p->begin ? p->last : p->end - p->begin};
    cut(c->num_q_heads, c->head_dim, p->end, p->workspace, &a.r);
    switch (c->dtype) {
    case MSGL_BF16: return launch_dim<__nv_bfloat16>(a, (cudaStream_t)stream);
    case MSGL_F16: return launch_dim<__half>(a, (cudaStream_t)stream);
    default: return cudaErrorNotSupported;
    }
}
