// SPDX-License-Identifier: Apache-2.0
//
// Searching a row of logits without sorting it. A cluster of blocks shares the row (one block where
// there are no clusters); each pass reads it again, which after the first time is out of the L2.
//
// Tokens are ordered by descending logit, then by ascending id: ascending by a 56-bit key made of
// the two. Which tokens top-k and top-p keep is a prefix of this order, found as its last key by
// radix selection, up to eleven bits at a time. A bin holds a count and a sum of probabilities in
// fixed point, so every sum is one of integers: the result does not depend on how the row is split,
// on its alignment or on the order of the atomics.
#ifndef MSGL_KERNEL_CUDA_OPS_ROW_SEARCH_CUH
#define MSGL_KERNEL_CUDA_OPS_ROW_SEARCH_CUH

#include <math_constants.h>
#include <stdint.h>

#include "kernel/cuda/ops/ordered.cuh"

#define ROW_BATCH 4 // groups of four logits that a thread loads before it uses them
#define ROW_MAX_CLUSTER 8
#define ROW_BINS 2048
#define ROW_BINS_PER_THREAD 4 // at least ROW_BINS / 4 threads in a block
#define ROW_ID_BITS 24        // MSGL_MAX_VOCAB
#define ROW_KEY_BITS (32 + ROW_ID_BITS)
#define ROW_ALL (~(uint64_t)0) // as a last key: keeps everything
struct row_bin {
    uint64_t count, mass;
};

struct row_found { // the bin in which the wanted prefix ends
    uint32_t bin;
    row_bin before, in;
};

struct row_shared {
    uint32_t count[ROW_BINS];
    uint32_t mass[3][ROW_BINS];
    row_bin warps[32];
    row_bin blocks[2][ROW_MAX_CLUSTER]; // by parity of row_search.round
    row_found found;
};

struct row_search {
    const float *logits;
    int vocab, groups; // groups of four logits
    bool aligned;      // groups may be read as float4
    int rank, size;    // of the block in its cluster
    int first, stride; // this thread's groups
    int round;         // of exchanges
    // Probabilities (relative to the largest) are counted in units of 2^(1 - 3 digit), in three
    // digits of so many bits that are summed apart in 32 bits each: 14 for up to 2^18 tokens.
    int digit;
    row_shared *shared;
};

static __device__ __forceinline__ int cluster_rank()
{
#if __CUDA_ARCH__ >= 900
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return (int)r;
#else
    return 0;
#endif
}

static __device__ __forceinline__ int cluster_size()
{
#if __CUDA_ARCH__ >= 900
    uint32_t r;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(r));
    return (int)r;
#else
    return 1;
#endif
}

// Barrier of all the cluster's threads; shared memory written before is visible after.
static __device__ __forceinline__ void cluster_sync(int size)
{
#if __CUDA_ARCH__ >= 900
    if (size > 1) {
        asm volatile("barrier.cluster.arrive.release.aligned;\n"
                     "barrier.cluster.wait.acquire.aligned;" ::
                         : "memory");
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
    uint64_t at;
    asm("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"(p), "r"(rank));
    return (T *)at;
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
    float p;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(p) : "f"((v - max) * scale));
    return p;
}

// A weight in units of 2^(1 - 3 digit).
static __device__ __forceinline__ uint64_t row_fixed(const row_search &r, float weight)
{
    return (uint64_t)__float2ull_rn(weight * (float)((uint64_t)1 << (3 * r.digit - 1)));
}

static __device__ __forceinline__ void row_begin(row_search *r, row_shared *shared,
                                                 const float *logits, int vocab)
{
    r->logits = logits;
    r->vocab = vocab;
    r->groups = (vocab + 3) / 4;
    r->aligned = ((uintptr_t)logits & 15) == 0;
    r->rank = cluster_rank();
    r->size = cluster_size();
    r->first = r->rank * (int)blockDim.x + (int)threadIdx.x;
    r->stride = r->size * (int)blockDim.x;
    r->round = 0;
    const int id_bits = 32 - __clz(vocab - 1);
    r->digit = id_bits < 18 ? 14 : 32 - id_bits;
    r->shared = shared;
    cluster_sync(r->size); // all blocks run: from here on their shared memory may be written
}

// Logits of groups g, g + stride, ...; -inf beyond the row's end.
static __device__ __forceinline__ void row_load(const row_search &r, int g, float v[ROW_BATCH][4])
{
#pragma unroll
    for (int u = 0; u < ROW_BATCH; u++) {
        const int at = (g + u * r.stride) * 4;
        if (r.aligned && at + 4 <= r.vocab) {
            const float4 f = *(const float4 *)(r.logits + at);
            v[u][0] = f.x, v[u][1] = f.y, v[u][2] = f.z, v[u][3] = f.w;
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                v[u][j] = at + j < r.vocab ? r.logits[at + j] : -CUDART_INF_F;
            }
        }
    }
}

// Gives every block the values of all blocks, in r.shared->blocks[parity]; returns the parity.
// All threads call it with the same values.
static __device__ __forceinline__ int row_exchange(row_search *r, row_bin mine)
{
    const int parity = r->round++ & 1; // two sets: the next exchange may begin while this is read
    if ((int)threadIdx.x < r->size) {
        *cluster_at(&r->shared->blocks[parity][r->rank], (int)threadIdx.x) = mine;
    }
    cluster_sync(r->size);
    return parity;
}

// Largest v of all threads of the cluster, in every thread.
static __device__ __forceinline__ uint64_t row_max64(row_search *r, uint64_t v)
{
    const int lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    for (int pass = 0;; pass++) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const uint64_t other = __shfl_xor_sync(0xffffffffu, v, step);
            v = other > v ? other : v;
        }
        if (pass == 1) break;
        if (lane == 0) r->shared->warps[threadIdx.x / 32].count = v;
        __syncthreads();
        v = lane < warps ? r->shared->warps[lane].count : 0;
    }
    const int parity = row_exchange(r, row_bin{v, 0});
    for (int b = 0; b < r->size; b++) {
        const uint64_t other = r->shared->blocks[parity][b].count;
        v = other > v ? other : v;
    }
    return v;
}

static __device__ __forceinline__ row_bin bin_add(row_bin a, row_bin b)
{
    return row_bin{a.count + b.count, a.mass + b.mass};
}

static __device__ __forceinline__ row_bin bin_shuffle_up(row_bin a, int step)
{
    return row_bin{__shfl_up_sync(0xffffffffu, a.count, step),
                   __shfl_up_sync(0xffffffffu, a.mass, step)};
}

// Sums of v over the threads before this one and, in *total, over all threads of the cluster.
static __device__ row_bin row_scan(row_search *r, row_bin v, row_bin *total)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    row_bin sum = v;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const row_bin other = bin_shuffle_up(sum, step);
        if (lane >= step) sum = bin_add(sum, other);
    }
    if (lane == 31) r->shared->warps[warp] = sum;
    __syncthreads();
    row_bin base = {0, 0}, block = {0, 0};
    for (int w = 0; w < (int)blockDim.x / 32; w++) {
        if (w == warp) base = block;
        block = bin_add(block, r->shared->warps[w]);
    }
    const int parity = row_exchange(r, block);
    *total = row_bin{0, 0};
    for (int b = 0; b < r->size; b++) {
        if (b == r->rank) base = bin_add(base, *total);
        *total = bin_add(*total, r->shared->blocks[parity][b]);
    }
    return row_bin{base.count + sum.count - v.count, base.mass + sum.mass - v.mass};
}

// What a selection is after: the shortest prefix of `count` tokens, or with at least `fraction` of
// the mass of all tokens up to key `limit`.
struct row_goal {
    bool by_mass;
    uint64_t count;
    double fraction;
    uint64_t limit;
    float max, scale; // of the weights
};

// Adds the tokens with these upper key bits to the block's histogram of the next `bits` bits.
static __device__ __forceinline__ void row_histogram(const row_search &r, const row_goal &goal,
                                                     uint64_t prefix, int shift, int bits)
{
    row_shared *s = r.shared;
    for (int b = (int)threadIdx.x; b < ROW_BINS; b += (int)blockDim.x) {
        s->count[b] = 0;
        s->mass[0][b] = s->mass[1][b] = s->mass[2][b] = 0;
    }
    __syncthreads();
    const uint32_t digit = (1u << r.digit) - 1;
    for (int g = r.first; g < r.groups; g += ROW_BATCH * r.stride) {
        float v[ROW_BATCH][4];
        row_load(r, g, v);
#pragma unroll
        for (int i = 0; i < ROW_BATCH * 4; i++) {
            const int id = (g + i / 4 * r.stride) * 4 + i % 4;
            const uint64_t key = row_key(v[i / 4][i % 4], id);
            if (id >= r.vocab || key >> (shift + bits) != prefix || key > goal.limit) continue;
            const uint32_t b = (uint32_t)(key >> shift) & ((1u << bits) - 1);
            atomicAdd(&s->count[b], 1);
            if (!goal.by_mass) continue;
            const uint64_t m = row_fixed(r, row_weight(v[i / 4][i % 4], goal.max, goal.scale));
            if (m == 0) continue;
            atomicAdd(&s->mass[0][b], (uint32_t)m & digit);
            atomicAdd(&s->mass[1][b], (uint32_t)(m >> r.digit) & digit);
            atomicAdd(&s->mass[2][b], (uint32_t)(m >> 2 * r.digit));
        }
    }
    cluster_sync(r.size);
}

// Sum of bin b over the cluster's histograms.
static __device__ __forceinline__ row_bin row_sum_bin(const row_search &r, int b, bool by_mass)
{
    row_bin sum = {0, 0};
    for (int rank = 0; rank < r.size; rank++) {
        row_shared *s = cluster_at(r.shared, rank);
        sum.count += s->count[b];
        if (!by_mass) continue;
        sum.mass += s->mass[0][b] + ((uint64_t)s->mass[1][b] << r.digit) +
                    ((uint64_t)s->mass[2][b] << 2 * r.digit);
    }
    return sum;
}

// Last key of the prefix that `goal` wants. All threads of the cluster call it and get it.
static __device__ uint64_t row_select(row_search *r, row_goal goal)
{
    const int share = ROW_BINS / r->size; // bins that this block sums over the cluster
    const int per = (share + (int)blockDim.x - 1) / (int)blockDim.x;
    const int mine = r->rank * share + (int)threadIdx.x * per;
    const bool has = (int)threadIdx.x * per < share;
    uint64_t prefix = 0, want = goal.count;
    int shift = ROW_KEY_BITS;
    for (int level = 0; shift > 0; level++) {
        const int bits = level < 2 ? 11 : level == 2 ? 10 : 8; // the logit's 32, the id's 24
        shift -= bits;
        row_histogram(*r, goal, prefix, shift, bits);
        row_bin in[ROW_BINS_PER_THREAD], sum = {0, 0}, total;
#pragma unroll
        for (int i = 0; i < ROW_BINS_PER_THREAD; i++) {
            in[i] = row_bin{0, 0};
            if (has && i < per) in[i] = row_sum_bin(*r, mine + i, goal.by_mass);
            sum = bin_add(sum, in[i]);
        }
        row_bin before = row_scan(r, sum, &total);
        if (level == 0 && goal.by_mass) {
            want = (uint64_t)ceil(goal.fraction * (double)total.mass);
            want = want < 1 ? 1 : want;
        }
#pragma unroll
        for (int i = 0; i < ROW_BINS_PER_THREAD; i++) {
            const row_bin after = bin_add(before, in[i]);
            const uint64_t low = goal.by_mass ? before.mass : before.count;
            const uint64_t high = goal.by_mass ? after.mass : after.count;
            if (low < want && want <= high) {
                const row_found found = {(uint32_t)(mine + i), before, in[i]};
                for (int b = 0; b < r->size; b++) *cluster_at(&r->shared->found, b) = found;
            }
            before = after;
        }
        cluster_sync(r->size);
        const row_found found = r->shared->found;
        prefix = prefix << bits | found.bin;
        want -= goal.by_mass ? found.before.mass : found.before.count;
        if (goal.by_mass && level == 2) { // equal logits from here on: how many of them
            const uint64_t each = found.in.mass / found.in.count;
            want = (want + each - 1) / each;
            goal.by_mass = false;
        }
        if (!goal.by_mass && want == found.in.count) break; // the whole bin
    }
    return prefix << shift | (((uint64_t)1 << shift) - 1);
}

#endif
