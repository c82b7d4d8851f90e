// SPDX-License-Identifier: Apache-2.0
//
// Searching a row of logits without sorting it. A cluster of blocks shares the row (one block where
// there are no clusters); a search that needs several passes keeps the row in shared memory, as far
// as it fits.
//
// Tokens are ordered by descending logit, then by ascending id: ascending by a 56-bit key made of
// the two. Which tokens top-k and top-p keep is a prefix of this order. Its last key is found in a
// histogram over equal steps of the logit, then by sorting the few tokens of the bin in which the
// prefix ends; or, where they are not few, by radix selection. A bin holds a count or a sum of
// probabilities in fixed point, so every sum is one of integers: the result does not depend on how
// the row is split, on its alignment or on the order of the atomics.
#ifndef MSGL_KERNEL_CUDA_OPS_ROW_SEARCH_CUH
#define MSGL_KERNEL_CUDA_OPS_ROW_SEARCH_CUH

#include <math_constants.h>
#include <stdint.h>

#include "kernel/cuda/ops/ordered.cuh"

#define ROW_BATCH 4 // groups of four logits that a thread loads before it uses them
#ifndef ROW_MAX_CLUSTER
#define ROW_MAX_CLUSTER 8
#endif
#define ROW_BINS 2048
#define ROW_LIST_PER_THREAD 2 // at least 512 threads in a block
#define ROW_BINS_PER_THREAD 4 // at least ROW_BINS / 4 threads in a block
#define ROW_LIST 1024
#define ROW_ID_BITS 24 // MSGL_MAX_VOCAB
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
    union {
        uint32_t mass[3][ROW_BINS];
        uint64_t list[ROW_LIST]; // keys of one bin, in block 0, after the histogram has been used
    };
    uint32_t listed;
    uint32_t best; // of a draw: ordered()
    row_bin warps[32];
    row_bin blocks[2][ROW_MAX_CLUSTER]; // by parity of row_search.round
    row_found found;
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
    const int id_bits = 32 - __clz(vocab - 1);
    r->digit = id_bits < 18 ? 14 : 32 - id_bits;
    r->shared = shared;
    if (threadIdx.x == 0) shared->best = 0;
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

// Logits of the thread's groups step, step + 1, ...; -inf beyond the row's end.
static __device__ __forceinline__ void row_load(const row_search &r, int step,
                                                float v[ROW_BATCH][4])
{
    const int last = step + ROW_BATCH - 1;
    if (step >= r.kept && row_group(r, last) < r.whole) {
#pragma unroll
        for (int u = 0; u < ROW_BATCH; u++) {
            const float4 f = ((const float4 *)r.logits)[row_group(r, step + u)];
            v[u][0] = f.x, v[u][1] = f.y, v[u][2] = f.z, v[u][3] = f.w;
        }
        return;
    }
#pragma unroll
    for (int u = 0; u < ROW_BATCH; u++) {
        const int g = row_group(r, step + u);
        if (step + u < r.kept || g < r.whole) {
            const float4 f =
                step + u < r.kept ? r.slice[row_place(step + u)] : ((const float4 *)r.logits)[g];
            v[u][0] = f.x, v[u][1] = f.y, v[u][2] = f.z, v[u][3] = f.w;
            continue;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[u][j] = g * 4 + j < r.vocab ? r.logits[g * 4 + j] : -CUDART_INF_F;
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

static __device__ __forceinline__ row_bin bin_max(row_bin a, row_bin b)
{
    return row_bin{a.count > b.count ? a.count : b.count, a.mass > b.mass ? a.mass : b.mass};
}

// The largest of both members over all threads of the cluster, in every thread.
static __device__ __forceinline__ row_bin row_max2(row_search *r, row_bin v)
{
    const int lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    for (int pass = 0;; pass++) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            v = bin_max(v, row_bin{__shfl_xor_sync(0xffffffffu, v.count, step),
                                   __shfl_xor_sync(0xffffffffu, v.mass, step)});
        }
        if (pass == 1) break;
        if (lane == 0) r->shared->warps[threadIdx.x / 32] = v;
        __syncthreads();
        v = lane < warps ? r->shared->warps[lane] : row_bin{0, 0};
    }
    const int parity = row_exchange(r, v);
    for (int b = 0; b < r->size; b++) v = bin_max(v, r->shared->blocks[parity][b]);
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
    float max, min, scale; // of the row's logits (min: the least finite one), of the weights
};

// Sets the histogram to zero.
static __device__ __forceinline__ void row_clear(const row_search &r)
{
    row_shared *s = r.shared;
    for (int b = (int)threadIdx.x; b < ROW_BINS; b += (int)blockDim.x) {
        s->count[b] = 0;
        s->mass[0][b] = s->mass[1][b] = s->mass[2][b] = 0;
    }
    if (threadIdx.x == 0) s->listed = 0;
    __syncthreads();
}

static __device__ __forceinline__ void row_add_mass(const row_search &r, uint32_t b, uint64_t m)
{
    if (m == 0) return;
    const uint32_t digit = (1u << r.digit) - 1;
    atomicAdd(&r.shared->mass[0][b], (uint32_t)m & digit);
    atomicAdd(&r.shared->mass[1][b], (uint32_t)(m >> r.digit) & digit);
    atomicAdd(&r.shared->mass[2][b], (uint32_t)(m >> 2 * r.digit));
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

static __device__ __forceinline__ void row_tell(const row_search &r, row_found found)
{
    for (int b = 0; b < r.size; b++) *cluster_at(&r.shared->found, b) = found;
}

// The bin of the cluster's histograms in which the prefix ends. *want: count or mass that the
// prefix must reach; 0: goal.fraction of all.
static __device__ row_found row_locate(row_search *r, const row_goal &goal, uint64_t *want)
{
    const int share = ROW_BINS / r->size; // bins that this block sums over the cluster
    const int per = (share + (int)blockDim.x - 1) / (int)blockDim.x;
    const int mine = r->rank * share + (int)threadIdx.x * per;
    const bool has = (int)threadIdx.x * per < share;
    cluster_sync(r->size); // the histograms are complete
    row_bin in[ROW_BINS_PER_THREAD], sum = {0, 0}, total;
#pragma unroll
    for (int i = 0; i < ROW_BINS_PER_THREAD; i++) {
        in[i] = row_bin{0, 0};
        if (has && i < per) in[i] = row_sum_bin(*r, mine + i, goal.by_mass);
        sum = bin_add(sum, in[i]);
    }
    row_bin before = row_scan(r, sum, &total);
    if (*want == 0) {
        *want = (uint64_t)ceil(goal.fraction * (double)total.mass);
        *want = *want < 1 ? 1 : *want;
    }
#pragma unroll
    for (int i = 0; i < ROW_BINS_PER_THREAD; i++) {
        const row_bin after = bin_add(before, in[i]);
        const uint64_t low = goal.by_mass ? before.mass : before.count;
        const uint64_t high = goal.by_mass ? after.mass : after.count;
        if (low < *want && *want <= high) {
            row_tell(*r, row_found{(uint32_t)(mine + i), before, in[i]});
        }
        before = after;
    }
    cluster_sync(r->size);
    return r->shared->found;
}

// Last key of the prefix by radix selection: for any row. Takes a copy of the search, so that the
// caller's stays in registers: exchanges may go on with any parity, as a barrier follows the last.
static __device__ __noinline__ uint64_t row_radix(row_search r, row_goal goal)
{
    uint64_t prefix = 0, want = goal.by_mass ? 0 : goal.count;
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
                const float l = v[i / 4][i % 4];
                const uint64_t key = row_key(l, id);
                if (id >= r.vocab || key >> (shift + bits) != prefix || key > goal.limit) continue;
                const uint32_t b = (uint32_t)(key >> shift) & ((1u << bits) - 1);
                atomicAdd(&r.shared->count[b], 1);
                if (!goal.by_mass) continue;
                row_add_mass(r, b, row_fixed(r, row_weight(l, goal.max, goal.scale)));
            }
        }
        const row_found found = row_locate(&r, goal, &want);
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

// Steps of the logit below the largest; the last bin takes all that is further down.
static __device__ __forceinline__ uint32_t linear_bin(float v, const row_goal &goal, float steps)
{
    const int b = __float2int_rd((goal.max - v) * steps);
    return (uint32_t)(b < ROW_BINS - 1 ? b : ROW_BINS - 1);
}

static __device__ __forceinline__ void linear_histogram(row_search *r, const row_goal &goal,
                                                        float steps)
{
    const uint32_t digit = (1u << r->digit) - 1;
    uint64_t rest_mass = 0; // the last bin may have most of the row: summed apart
    uint32_t rest_count = 0;
    row_clear(*r);
    for (int k = 0; k < r->steps; k += ROW_BATCH) {
        float v[ROW_BATCH][4];
        row_load(*r, k, v);
#pragma unroll
        for (int i = 0; i < ROW_BATCH * 4; i++) {
            const int id = row_group(*r, k + i / 4) * 4 + i % 4;
            const float l = v[i / 4][i % 4];
            if (id >= r->vocab || row_key(l, id) > goal.limit) continue;
            const uint32_t b = linear_bin(l, goal, steps);
            const bool last = b == ROW_BINS - 1;
            if (goal.by_mass) {
                const uint64_t m = row_fixed(*r, row_weight(l, goal.max, goal.scale));
                if (last) {
                    rest_mass += m;
                } else {
                    row_add_mass(*r, b, m);
                }
            } else if (last) {
                rest_count++;
            } else {
                atomicAdd(&r->shared->count[b], 1);
            }
        }
    }
    uint32_t parts[4] = {rest_count, (uint32_t)rest_mass & digit,
                         (uint32_t)(rest_mass >> r->digit) & digit,
                         (uint32_t)(rest_mass >> 2 * r->digit)};
    for (int i = 0; i < 4; i++) {
        parts[i] = __reduce_add_sync(0xffffffffu, parts[i]);
        uint32_t *const at = i == 0 ? r->shared->count : r->shared->mass[i - 1];
        if (threadIdx.x % 32 == 0) atomicAdd(at + ROW_BINS - 1, parts[i]);
    }
}

// Sorts block 0's list of n keys; its threads alone.
static __device__ __forceinline__ void sort_list(uint64_t *list, int n)
{
    int size = 2;
    while (size < n) size *= 2;
    for (int i = n + (int)threadIdx.x; i < size; i += (int)blockDim.x) list[i] = ROW_ALL;
    __syncthreads();
    for (int run = 2; run <= size; run *= 2) { // bitonic
        for (int step = run / 2; step > 0; step /= 2) {
            for (int t = (int)threadIdx.x; t < size / 2; t += (int)blockDim.x) {
                const int low = 2 * t - (t & (step - 1)), high = low + step;
                const uint64_t a = list[low], b = list[high];
                if ((a > b) == ((low & run) == 0)) list[low] = b, list[high] = a;
            }
            __syncthreads();
        }
    }
}

// Last key of the prefix when it ends in bin `bin` with few tokens, `want` of count or mass into
// it; 0 when they are more than the list takes.
static __device__ uint64_t row_finish(row_search *r, const row_goal &goal, float steps,
                                      uint32_t bin, uint64_t want)
{
    row_shared *const first = cluster_at(r->shared, 0);
    for (int k = 0; k < r->steps; k += ROW_BATCH) {
        float v[ROW_BATCH][4];
        row_load(*r, k, v);
#pragma unroll
        for (int i = 0; i < ROW_BATCH * 4; i++) {
            const int id = row_group(*r, k + i / 4) * 4 + i % 4;
            const float l = v[i / 4][i % 4];
            const uint64_t key = row_key(l, id);
            if (id >= r->vocab || key > goal.limit || linear_bin(l, goal, steps) != bin) continue;
            const uint32_t at = atomicAdd(&first->listed, 1);
            if (at < ROW_LIST) first->list[at] = key;
        }
    }
    cluster_sync(r->size);
    const int n = (int)first->listed;
    if (n > ROW_LIST) return 0;
    row_bin own[ROW_LIST_PER_THREAD], sum = {0, 0}, total;
    const uint64_t *const list = r->shared->list;
    if (r->rank == 0) sort_list(r->shared->list, n);
#pragma unroll
    for (int i = 0; i < ROW_LIST_PER_THREAD; i++) {
        const int at = (int)threadIdx.x * ROW_LIST_PER_THREAD + i;
        own[i] = row_bin{0, 0};
        if (r->rank == 0 && at < n) {
            const float l = from_ordered(~(uint32_t)(list[at] >> ROW_ID_BITS));
            own[i] = row_bin{1, row_fixed(*r, row_weight(l, goal.max, goal.scale))};
        }
        sum = bin_add(sum, own[i]);
    }
    row_bin before = row_scan(r, sum, &total);
#pragma unroll
    for (int i = 0; i < ROW_LIST_PER_THREAD; i++) {
        const row_bin after = bin_add(before, own[i]);
        const uint64_t low = goal.by_mass ? before.mass : before.count;
        const uint64_t high = goal.by_mass ? after.mass : after.count;
        if (low < want && want <= high) {
            const uint64_t key = list[(int)threadIdx.x * ROW_LIST_PER_THREAD + i];
            row_tell(*r, row_found{0, {key, 0}, {0, 0}});
        }
        before = after;
    }
    cluster_sync(r->size);
    return r->shared->found.before.count;
}

// Last key of the prefix that `goal` wants. All threads of the cluster call it and get it.
static __device__ uint64_t row_select(row_search *r, const row_goal &goal)
{
    // Probabilities below 2^-46 of the largest, logits 64 below it: in the last bin.
    const float range = fminf(goal.max - goal.min, goal.by_mass ? 46 / goal.scale : 64.0f);
    const float steps = (ROW_BINS - 1) / fmaxf(range, 1e-30f);
    uint64_t want = goal.by_mass ? 0 : goal.count;
    linear_histogram(r, goal, steps);
    const row_found found = row_locate(r, goal, &want);
    want -= goal.by_mass ? found.before.mass : found.before.count;
    // How many tokens the bin has, at most: its weights are hardly below its first one's.
    const float least = row_weight(-(float)(found.bin + 2) / steps, 0, goal.scale);
    const bool few =
        goal.by_mass ? found.bin < ROW_BINS - 1 && found.in.mass <= ROW_LIST * row_fixed(*r, least)
                     : found.in.count <= ROW_LIST;
    const uint64_t last = few ? row_finish(r, goal, steps, found.bin, want) : 0;
    return last != 0 ? last : row_radix(*r, goal);
}

#endif
