// SPDX-License-Identifier: Apache-2.0
//
// Searching a row of logits without sorting it. A cluster of blocks shares the row (one block where
// there are no clusters); a search that needs several passes keeps the row in shared memory, as far
// as it fits.
//
// Tokens are ordered by descending logit, then by ascending id: ascending by a 56-bit key made of
// the two. Which tokens top-k and top-p keep is a prefix of this order. Sums of probabilities are
// integers in fixed point: no result depends on how the row is split, on its alignment or on the
// order of atomics.
#ifndef MSGL_CUDA_OPS_ROW_SEARCH_CUH
#define MSGL_CUDA_OPS_ROW_SEARCH_CUH

#include <math_constants.h>
#include <stdint.h>

#include "cuda/ops/ordered.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/shared.cuh"

#define ROW_BATCH 5         // groups of four logits that a thread loads before it uses them
#define ROW_MAX_CLUSTER 8   // of searches; row_largest takes any
#define ROW_MIN_THREADS 512 // per block
#define ROW_BINS 2048
#define ROW_BINS_PER_THREAD (ROW_BINS / ROW_MIN_THREADS)
#define ROW_LIST 1024 // tokens that are sorted at once
#define ROW_LIST_PER_THREAD (ROW_LIST / ROW_MIN_THREADS)
#define ROW_ID_BITS 24 // MSGL_MAX_VOCAB
#define ROW_KEY_BITS (32 + ROW_ID_BITS)
#define ROW_ONE 0x1p39f        // a weight of 1 in fixed point
#define ROW_ALL (~(uint64_t)0) // as a limit of keys: none

struct row_pair {
    uint64_t a, b;
};

struct row_found { // the bin in which the wanted prefix ends, and counts
    uint32_t bin, before, in;
};

struct row_shared {
    uint32_t bins[ROW_BINS];
    uint64_t list[ROW_LIST]; // keys, in block 0
    uint32_t listed;
    uint32_t best;    // score of a draw, as ordered()
    uint64_t arrived; // mbarrier of block 0: row_largest's keys
    row_found found;
    row_pair warps[32];
    row_pair blocks[2][ROW_MAX_CLUSTER]; // by parity of row_search.round
};

struct row_search {
    const float *logits;
    int vocab;
    int whole;         // groups of four logits that may be read as float4
    int rank, size;    // of the block in its cluster
    int first, stride; // this thread's groups: first, first + stride, ...
    int steps;         // how many of them; the same for all threads
    int kept;          // so many are in `slice` now
    float4 *slice;     // shared memory
    int round;         // of exchanges
    row_shared *shared;
};

static __device__ __forceinline__ int cluster_rank()
{
#if __CUDA_ARCH__ >= 900
    return (int)msgl__cluster_rank();
#else
    return 0;
#endif
}

static __device__ __forceinline__ int cluster_size()
{
#if __CUDA_ARCH__ >= 900
    return (int)msgl__cluster_size();
#else
    return 1;
#endif
}

// Barrier of all the cluster's threads; shared memory written before is visible after.
static __device__ __forceinline__ void cluster_sync(int size)
{
#if __CUDA_ARCH__ >= 900
    if (size > 1) {
        msgl__cluster_sync();
        return;
    }
#endif
    (void)size;
    __syncthreads();
}

// The same variable in the shared memory of block `rank` of the cluster.
template <typename T> static __device__ __forceinline__ T *cluster_at(T *p, int rank)
{
#if __CUDA_ARCH__ >= 900
    return msgl__cluster_pointer(p, rank);
#else
    (void)rank;
    return p;
#endif
}

static __device__ __forceinline__ uint64_t row_key(float v, int id)
{
    return (uint64_t)~ordered(v) << ROW_ID_BITS | (uint32_t)id;
}

// exp((v - max) / temperature), with scale = log2(e) / temperature.
static __device__ __forceinline__ float row_weight(float v, float max, float scale)
{
    return msgl__exp2((v - max) * scale);
}

// A weight in fixed point: 2^24 of them fit a sum.
static __device__ __forceinline__ uint64_t row_fixed(float weight)
{
    return (uint64_t)__float2ull_rn(weight * ROW_ONE);
}

static __device__ __forceinline__ void row_begin(row_search *r, row_shared *shared, float4 *slice,
                                                 const float *logits, int vocab)
{
    r->logits = logits;
    r->vocab = vocab;
    r->whole = ((uintptr_t)logits & 15) == 0 ? vocab / 4 : 0;
    r->rank = cluster_rank();
    r->size = cluster_size();
    r->first = r->rank * (int)blockDim.x + (int)threadIdx.x;
    r->stride = r->size * (int)blockDim.x;
    r->steps = ((vocab + 3) / 4 + r->stride - 1) / r->stride;
    r->kept = 0;
    r->slice = slice;
    r->round = 0;
    r->shared = shared;
    if (threadIdx.x == 0) {
        shared->best = shared->listed = 0;
#if __CUDA_ARCH__ >= 900
        const uint32_t warps = blockDim.x / 32;
        const uint32_t barrier = msgl__shared_address(&shared->arrived);
        msgl__mbarrier_init(barrier, warps + 1);
        msgl__mbarrier_init_done();
        msgl__mbarrier_expect(barrier,
                              (uint32_t)(r->size - 1) * warps * (uint32_t)sizeof(uint64_t));
#endif
    }
    cluster_sync(r->size); // all blocks run: from here on their shared memory may be written
}

static __device__ __forceinline__ int row_group(const row_search &r, int step)
{
    return r.first + step * r.stride;
}

// Where the slice has this thread's group: touched by no other thread.
static __device__ __forceinline__ int row_place(int step)
{
    return step * (int)blockDim.x + (int)threadIdx.x;
}

static __device__ __forceinline__ void put4(float v[4], float4 f)
{
    v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
}

// Logits of the thread's groups step, step + 1, ...; -inf beyond the row's end.
static __device__ __forceinline__ void row_load(const row_search &r, int step,
                                                float v[ROW_BATCH][4])
{
    const int last = step + ROW_BATCH - 1;
    if (last < r.kept) {
#pragma unroll
        for (int u = 0; u < ROW_BATCH; u++) put4(v[u], r.slice[row_place(step + u)]);
        return;
    }
    if (step >= r.kept && row_group(r, last) < r.whole) {
#pragma unroll
        for (int u = 0; u < ROW_BATCH; u++) {
            put4(v[u], ((const float4 *)r.logits)[row_group(r, step + u)]);
        }
        return;
    }
#pragma unroll
    for (int u = 0; u < ROW_BATCH; u++) {
        const int g = row_group(r, step + u);
        if (step + u < r.kept) {
            put4(v[u], r.slice[row_place(step + u)]);
        } else if (g < r.whole) {
            put4(v[u], ((const float4 *)r.logits)[g]);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                v[u][j] = g * 4 + j < r.vocab ? r.logits[g * 4 + j] : -CUDART_INF_F;
            }
        }
    }
}

// Puts what row_load has given into the slice.
static __device__ __forceinline__ void row_keep(const row_search &r, int step, int limit,
                                                const float v[ROW_BATCH][4])
{
#pragma unroll
    for (int u = 0; u < ROW_BATCH; u++) {
        if (step + u >= limit) break;
        r.slice[row_place(step + u)] = make_float4(v[u][0], v[u][1], v[u][2], v[u][3]);
    }
}

// Gives every block the values of all blocks, in r->shared->blocks[parity]; returns the parity.
// All threads call it with the same values.
static __device__ __forceinline__ int row_exchange(row_search *r, row_pair mine)
{
    const int parity = r->round++ & 1; // two sets: the next exchange may begin while this is read
    if ((int)threadIdx.x < r->size) {
        *cluster_at(&r->shared->blocks[parity][r->rank], (int)threadIdx.x) = mine;
    }
    cluster_sync(r->size);
    return parity;
}

static __device__ __forceinline__ row_pair pair_add(row_pair x, row_pair y)
{
    return row_pair{x.a + y.a, x.b + y.b};
}

static __device__ __forceinline__ row_pair pair_max(row_pair x, row_pair y)
{
    return row_pair{x.a > y.a ? x.a : y.a, x.b > y.b ? x.b : y.b};
}

static __device__ __forceinline__ uint64_t warp_largest(uint64_t key)
{
    const uint32_t high = __reduce_max_sync(0xffffffffu, (uint32_t)(key >> 32));
    const uint32_t low = (uint32_t)(key >> 32) == high ? (uint32_t)key : 0;
    return (uint64_t)high << 32 | __reduce_max_sync(0xffffffffu, low);
}

// Both members' sum or largest over the block's threads, in every thread.
template <bool MAX>
static __device__ __forceinline__ row_pair block_reduce(row_shared *shared, row_pair v)
{
    const int lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    for (int pass = 0;; pass++) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const row_pair other = {__shfl_xor_sync(0xffffffffu, v.a, step),
                                    __shfl_xor_sync(0xffffffffu, v.b, step)};
            v = MAX ? pair_max(v, other) : pair_add(v, other);
        }
        if (pass == 1) return v;
        if (lane == 0) shared->warps[threadIdx.x / 32] = v;
        __syncthreads();
        v = lane < warps ? shared->warps[lane] : row_pair{0, 0};
    }
}

// The same over the cluster's threads.
template <bool MAX> static __device__ __forceinline__ row_pair row_reduce(row_search *r, row_pair v)
{
    const int parity = row_exchange(r, block_reduce<MAX>(r->shared, v));
    row_pair all = {0, 0};
#pragma unroll
    for (int b = 0; b < ROW_MAX_CLUSTER; b++) {
        if (b >= r->size) break;
        const row_pair other = r->shared->blocks[parity][b];
        all = MAX ? pair_max(all, other) : pair_add(all, other);
    }
    return all;
}

// Warps' keys on their way to block 0. In a cluster they are stored asynchronously and counted by
// an mbarrier there: a barrier of the cluster would have to wait for memory on both sides.
static __device__ __forceinline__ void row_send_key(row_search *r, uint64_t key)
{
    const int warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;
    uint64_t *const place = &r->shared->list[r->rank * warps + warp];
#if __CUDA_ARCH__ >= 900
    if (r->size > 1 && threadIdx.x % 32 == 0) {
        const uint32_t at = msgl__shared_address(place);
        const uint32_t barrier = msgl__shared_address(&r->shared->arrived);
        if (r->rank == 0) {
            *place = key;
            msgl__mbarrier_arrive(barrier);
        } else {
            msgl__cluster_store(msgl__cluster_address(at, 0), key,
                                msgl__cluster_address(barrier, 0));
        }
    }
    if (r->size > 1) return;
#endif
    if (threadIdx.x % 32 == 0) *place = key;
    __syncthreads();
}

// Until all of them are there; by block 0.
static __device__ __forceinline__ void row_wait_keys(row_search *r)
{
#if __CUDA_ARCH__ >= 900
    const uint32_t barrier = msgl__shared_address(&r->shared->arrived);
    bool done = r->size == 1;
    while (!done) done = msgl__mbarrier_try_wait(barrier, 0);
#endif
}

// The largest key over the cluster's threads, in warp 0 of block 0 alone: the last thing that a
// kernel does, once.
static __device__ __forceinline__ uint64_t row_largest(row_search *r, uint64_t key)
{
    row_send_key(r, warp_largest(key));
    if (r->rank != 0 || threadIdx.x >= 32) return 0;
    row_wait_keys(r);
    const int keys = (int)blockDim.x / 32 * r->size;
    key = 0;
#pragma unroll 8
    for (int i = (int)threadIdx.x; i < keys; i += 32) key = max(key, r->shared->list[i]);
    return warp_largest(key);
}

// Sum of v over the block's threads before this one and, in *total, over all of them.
static __device__ __forceinline__ uint64_t block_scan(row_shared *shared, uint64_t v,
                                                      uint64_t *total)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    uint64_t sum = v;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const uint64_t other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) shared->warps[warp].a = sum;
    __syncthreads();
    uint64_t base = 0, all = 0;
    for (int w = 0; w < (int)blockDim.x / 32; w++) {
        if (w == warp) base = all;
        all += shared->warps[w].a;
    }
    *total = all;
    return base + sum - v;
}

static __device__ __forceinline__ void row_clear(const row_search &r)
{
    for (int b = (int)threadIdx.x; b < ROW_BINS; b += (int)blockDim.x) r.shared->bins[b] = 0;
    __syncthreads();
}

// The bin of the cluster's histograms in which the first `want` end; there are as many.
static __device__ row_found row_locate(row_search *r, uint32_t want)
{
    const int share = ROW_BINS / r->size; // bins that this block sums over the cluster
    const int per = (share + (int)blockDim.x - 1) / (int)blockDim.x;
    const int mine = r->rank * share + (int)threadIdx.x * per;
    cluster_sync(r->size); // the histograms are complete
    uint32_t in[ROW_BINS_PER_THREAD] = {0}, sum = 0;
#pragma unroll
    for (int i = 0; i < ROW_BINS_PER_THREAD; i++) {
        if (i >= per || (int)threadIdx.x * per >= share) break;
#pragma unroll
        for (int b = 0; b < ROW_MAX_CLUSTER; b++) { // unrolled: the reads are under way together
            if (b < r->size) in[i] += cluster_at(r->shared, b)->bins[mine + i];
        }
        sum += in[i];
    }
    uint64_t block;
    uint32_t before = (uint32_t)block_scan(r->shared, sum, &block);
    const int parity = row_exchange(r, row_pair{block, 0});
    for (int b = 0; b < r->rank; b++) before += (uint32_t)r->shared->blocks[parity][b].a;
#pragma unroll
    for (int i = 0; i < ROW_BINS_PER_THREAD; i++) {
        if (before < want && want <= before + in[i]) {
            const row_found found = {(uint32_t)(mine + i), before, in[i]};
            for (int b = 0; b < r->size; b++) cluster_at(r->shared, b)->found = found;
        }
        before += in[i];
    }
    cluster_sync(r->size);
    return r->shared->found;
}

// Last key of the first `want` tokens, by radix selection. Takes a copy of the search, so that the
// caller's stays in registers: a barrier follows the last exchange, so the parity may be any.
static __device__ __noinline__ uint64_t row_radix(row_search r, uint32_t want)
{
    uint64_t prefix = 0;
    int shift = ROW_KEY_BITS;
    for (int level = 0; shift > 0; level++) {
        const int bits = level < 2 ? 11 : level == 2 ? 10 : 8; // the logit's 32, the id's 24
        shift -= bits;
        row_clear(r);
        for (int k = 0; k < r.steps; k += ROW_BATCH) {
            float v[ROW_BATCH][4];
            row_load(r, k, v);
#pragma unroll
            for (int i = 0; i < ROW_BATCH * 4; i++) {
                const int id = row_group(r, k + i / 4) * 4 + i % 4;
                const uint64_t key = row_key(v[i / 4][i % 4], id);
                if (id >= r.vocab || key >> (shift + bits) != prefix) continue;
                atomicAdd(&r.shared->bins[(uint32_t)(key >> shift) & ((1u << bits) - 1)], 1);
            }
        }
        const row_found found = row_locate(&r, want);
        prefix = prefix << bits | found.bin;
        want -= found.before;
        if (want == found.in) break; // the whole bin
    }
    return prefix << shift | (((uint64_t)1 << shift) - 1);
}

// Puts the tokens with a logit of at least `least` and a key up to `last` into block 0's list,
// whose count is 0. Returns how many they are: more than ROW_LIST when not all are in it.
static __device__ int row_gather(const row_search &r, float least, uint64_t last)
{
    row_shared *const first = cluster_at(r.shared, 0);
    for (int k = 0; k < r.steps; k += ROW_BATCH) {
        float v[ROW_BATCH][4];
        row_load(r, k, v);
#pragma unroll
        for (int u = 0; u < ROW_BATCH; u++) {
            const float *const l = v[u];
            if (!(fmaxf(fmaxf(l[0], l[1]), fmaxf(l[2], l[3])) >= least)) continue;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int id = row_group(r, k + u) * 4 + j;
                const uint64_t key = row_key(l[j], id);
                if (id >= r.vocab || !(l[j] >= least) || key > last) continue;
                const uint32_t at = atomicAdd(&first->listed, 1);
                if (at < ROW_LIST) first->list[at] = key;
            }
        }
    }
    cluster_sync(r.size);
    const int n = (int)first->listed;
    cluster_sync(r.size); // block 0 may end, or begin another list
    return n;
}

// Sorts block 0's list of n keys; its threads alone.
static __device__ void sort_list(uint64_t *list, int n)
{
    int size = 2;
    while (size < n) size *= 2;
    for (int i = n + (int)threadIdx.x; i < size; i += (int)blockDim.x) list[i] = ROW_ALL;
    __syncthreads();
    for (int run = 2; run <= size; run *= 2) { // bitonic
        for (int step = run / 2; step > 0; step /= 2) {
            for (int t = (int)threadIdx.x; t < size / 2; t += (int)blockDim.x) {
                const int low = 2 * t - (t & (step - 1)), high = low + step;
                const uint64_t x = list[low], y = list[high];
                if ((x > y) == ((low & run) == 0)) list[low] = y, list[high] = x;
            }
            __syncthreads();
        }
    }
}

// A logit that at least `want` tokens reach, and hardly more if these are few: the bin of a
// histogram over equal steps in which the `want` largest of the maxima of groups of four end.
// -inf when it is not worth it: more than the list takes.
static __device__ float row_bound(row_search *r, uint32_t want, float max, float min)
{
    const float steps = (ROW_BINS - 1) / fmaxf(fminf(max - min, 64.0f), 1e-30f);
    const uint32_t groups = ((uint32_t)r->vocab + 3) / 4;
    if (groups < want) return -CUDART_INF_F;
    uint32_t rest = 0; // the last bin may have most of the row
    row_clear(*r);
    for (int k = 0; k < r->steps; k += ROW_BATCH) {
        float v[ROW_BATCH][4];
        row_load(*r, k, v);
#pragma unroll
        for (int u = 0; u < ROW_BATCH; u++) {
            if ((uint32_t)row_group(*r, k + u) >= groups) break;
            const float most = fmaxf(fmaxf(v[u][0], v[u][1]), fmaxf(v[u][2], v[u][3]));
            const int b = __float2int_rd((max - most) * steps);
            if (b < ROW_BINS - 1) {
                atomicAdd(&r->shared->bins[b], 1);
            } else {
                rest++;
            }
        }
    }
    rest = __reduce_add_sync(0xffffffffu, rest);
    if (threadIdx.x % 32 == 0) atomicAdd(&r->shared->bins[ROW_BINS - 1], rest);
    const row_found found = row_locate(r, want);
    if (found.bin == ROW_BINS - 1 || found.before + found.in > ROW_LIST) return -CUDART_INF_F;
    // A little below the bin's end, for the rounding.
    return max - ((float)found.bin + 1.01f) / steps - fabsf(max) * 0x1p-20f;
}

// Sorts the `want` first tokens, at most ROW_LIST, and maybe some more into block 0's list.
static __device__ void row_top(row_search *r, uint32_t want, float max, float min)
{
    const float bound = row_bound(r, want, max, min);
    int n = ROW_LIST + 1;
    if (bound > -CUDART_INF_F || r->vocab <= ROW_LIST) {
        n = row_gather(*r, bound, ROW_ALL);
    }
    if (n > ROW_LIST) {
        const uint64_t last = row_radix(*r, want);
        if (threadIdx.x == 0) r->shared->listed = 0;
        cluster_sync(r->size);
        n = row_gather(*r, -CUDART_INF_F, last);
    }
    if (r->rank == 0) sort_list(r->shared->list, n);
}

#endif
