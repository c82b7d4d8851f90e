// SPDX-License-Identifier: Apache-2.0
//
// Family sample: choosing tokens, and log-probabilities. No row is sorted and no softmax is formed.
//
// A token is drawn as the argmax of logit + temperature * G over the tokens that the filters keep,
// where the G are independent Gumbel variables (Gumbel 1954; Maddison, Tarlow and Minka 2014): this
// has the distribution of the softmax, and needs one pass. G is a function of (seed, position,
// token id), so a draw depends on nothing else in the batch. The draws are not those of the CPU
// kernels, which invert the cumulative sum with one number per row: the two devices sample from the
// same distribution, and only greedy tokens are the same.
//
// Temperature 0 makes it the argmax of the logits. A temperature so small that its noise is below
// the spacing of floats at the logits' size does so too, in effect.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/adjust.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/philox.cuh"
#include "cuda/ops/row_search.cuh"
#include "cuda/ops/vec8.cuh"
#include "cuda/peer_sum.cuh"

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
#define ROW_THREADS 1024
#define ROW_SLICE_BYTES (80 << 10) // of a row per block: two blocks fit an SM of sm_90
#define ROW_OTHER_BYTES (20 << 10) // row_shared and what else the kernels declare
#define HOTTEST 1e30f              // temperatures above: uniform, and still finite with the noise
#define GREEDY_BELOW 1e-6f         // temperatures whose inverse overflows soon

static __device__ __forceinline__ float log2_fast(float v)
{
    float l;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(l) : "f"(v));
    return l;
}

// Gumbel variable -ln(-ln(1 - v)) / ln(2) for uniform v = (word + 1/2) / 2^32. Large values come
// from small v, where floats are dense; 1 - v would round them away.
static __device__ __forceinline__ float gumbel2(uint32_t word)
{
    const float v = fminf(fmaf((float)word, 0x1p-32f, 0x1p-33f), 1.0f - 0x1p-24f);
    const float series = v * fmaf(v, fmaf(v, 1.0f / 3, 0.5f), 1.0f);
    return -log2_fast(v < 0x1p-8f ? series : -LN_2 * log2_fast(1.0f - v));
}

// A thread's part in the draw of one row.
struct draw {
    float noise; // temperature * ln(2), of the Gumbel variables in base 2; 0: greedy
    uint64_t seed;
    uint32_t position;
    float score; // of the best token so far
    int id;
    float low; // a token that cannot exceed this has lost: below the block's best score
    int first; // token of the row's first column
};

static __device__ __forceinline__ float noise_of(const msgl_sample_row &p)
{
    return p.temperature >= GREEDY_BELOW ? fminf(p.temperature, HOTTEST) * LN_2 : 0;
}

// A bound for `low` where `score` is the best so far.
static __device__ __forceinline__ float below(const draw &d, float score)
{
    return score - fabsf(score) * 0x1p-20f - d.noise * 1e-4f;
}

static __device__ __forceinline__ void take_best(draw *d, const float s[4], int id)
{
#pragma unroll
    for (int j = 0; j < 4; j++) { // ids only ever rise, so > keeps the lowest at ties
        if (s[j] > d->score) d->score = s[j], d->id = id + j;
    }
}

// Adds the noise to a group of four logits. As -ln(1 - v) >= v, a word bounds its Gumbel variable
// by 32 - log2(word): the exact one is formed only where that could win, by `low`, which leaves
// room for the rounding. All lanes of a warp call it together.
static __device__ __forceinline__ void draw_group(draw *d, const float v[4], int id, uint32_t *best)
{
    const uint4 w = philox(d->seed, (uint32_t)id / 4, d->position, 0, 0);
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
    float most = -CUDART_INF_F;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        most = fmaxf(most, fmaf(-d->noise, log2_fast((float)words[j]), v[j]));
    }
    const bool may_win = fmaf(d->noise, 32.0f, most) >= d->low;
    if (!__any_sync(MSGL_FULL_MASK, may_win)) return;
    if (may_win) {
        float s[4];
#pragma unroll
        for (int j = 0; j < 4; j++) s[j] = fmaf(d->noise, gumbel2(words[j]), v[j]);
        take_best(d, s, id);
    }
    const uint32_t mine = __reduce_max_sync(MSGL_FULL_MASK, ordered(d->score));
    if (threadIdx.x % 32 == 0) atomicMax(best, mine);
    d->low = fmaxf(d->low, below(*d, from_ordered(mine)));
}

#define ROW_BAD ROW_ALL // in a maximum over keys: a logit is NaN or +inf

struct row_range {
    bool bad;       // a logit is NaN or +inf, or all are -inf
    float max, min; // the largest, and the least finite one
};

// Reads the row, and keeps the first `keep` steps of each thread in shared memory.
static __device__ row_range read_row(row_search *r, int keep)
{
    float max = -CUDART_INF_F, min = CUDART_INF_F;
    bool bad = false;
    for (int k = 0; k < r->steps; k += ROW_BATCH) {
        float v[ROW_BATCH][4];
        row_load(*r, k, v);
        row_keep(*r, k, keep, v);
#pragma unroll
        for (int i = 0; i < ROW_BATCH * 4; i++) {
            const float l = v[i / 4][i % 4];
            bad |= !(l < CUDART_INF_F);
            max = fmaxf(max, l);
            min = l > -CUDART_INF_F ? fminf(min, l) : min;
        }
    }
    r->kept = keep < r->steps ? keep : r->steps;
    const row_pair all = row_reduce<true>(
        r, row_pair{bad ? ROW_BAD : (uint64_t)ordered(max), (uint64_t)~ordered(min)});
    return row_range{all.a == ROW_BAD || all.a <= ordered(-CUDART_INF_F),
                     from_ordered((uint32_t)all.a), from_ordered(~(uint32_t)all.b)};
}

// Where a row's token goes.
struct token_place {
    int32_t *token, *status, *pool;
};

static __device__ __forceinline__ token_place find_place(const sample_args &a, int row)
{
    int32_t *const tokens = a.replay != NULL ? a.replay->tokens : a.tokens;
    int32_t *const status = a.replay != NULL ? a.replay->status : a.status;
    return token_place{tokens + row, status + row,
                       a.pool != NULL ? a.pool + a.pool_index[row] : NULL};
}

// By one thread.
static __device__ void put_token(const token_place &at, uint64_t key)
{
    const bool bad = key == ROW_BAD || (uint32_t)(key >> 32) <= ordered(-CUDART_INF_F);
    const int32_t token = (int32_t) ~(uint32_t)key;
    if (at.pool != NULL) *at.pool = bad ? 0 : token;
    *at.token = bad ? -1 : token;
    *at.status = bad ? MSGL_ENUMERIC : 0;
}

// What of a row may be drawn: keys below `limit`, of at least `min_weight`.
struct row_filter {
    bool on;
    uint64_t limit;
    float least; // logits below this are out
    float max, scale, min_weight;
};

static __device__ __forceinline__ void set_limit(row_filter *f, uint64_t limit)
{
    f->on = true;
    f->limit = limit;
    f->least = fmaxf(f->least, from_ordered(~(uint32_t)(limit >> ROW_ID_BITS)));
}

// Sets the logits that the filter drops to -inf; returns whether any lane of the warp has one left.
static __device__ __forceinline__ bool filter_group(const row_filter &f, float v[4], int id)
{
    const float most = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
    if (!__any_sync(MSGL_FULL_MASK, most >= f.least)) return false;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float l = v[j];
        const bool in = l >= f.least && row_key(l, id + j) < f.limit &&
                        (l == f.max || row_weight(l, f.max, f.scale) >= f.min_weight);
        v[j] = in ? l : -CUDART_INF_F;
    }
    return true;
}

// One pass: the best score and its token as a key for put_token, and the largest logit; with
// FILTERS off only the key, and that in block 0's first warp alone. Without a filter it also looks
// for logits that are no numbers, and keeps the row when keep > 0.
template <bool FILTERS>
static __device__ __forceinline__ row_pair draw_pass(row_search *r, draw d, const row_filter &f,
                                                     bool random, int keep)
{
    bool bad = false;
    float max = -CUDART_INF_F;
    uint32_t *const best = &r->shared->best;
    for (int k = 0; k < r->steps; k += ROW_BATCH) {
        float v[ROW_BATCH][4];
        row_load(*r, k, v);
        if (FILTERS && keep > 0) row_keep(*r, k, keep, v);
        const float top = from_ordered(*(volatile uint32_t *)best);
        if (top > d.low) d.low = below(d, top);
#pragma unroll
        for (int u = 0; u < ROW_BATCH; u++) {
            if (k + u >= r->steps) break;
            const int id = d.first + row_group(*r, k + u) * 4;
            if (FILTERS && f.on) {
                if (!filter_group(f, v[u], id)) continue;
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    bad |= !(v[u][j] < CUDART_INF_F);
                    if (FILTERS) max = fmaxf(max, v[u][j]);
                }
            }
            if (random) {
                draw_group(&d, v[u], id, best);
            } else {
                take_best(&d, v[u], id);
            }
        }
    }
    uint64_t key = (uint64_t)ordered(d.score) << 32 | (uint32_t)~d.id;
    if (bad) key = ROW_BAD;
    if (!FILTERS) return row_pair{row_largest(r, key), 0};
    return row_reduce<true>(r, row_pair{key, ordered(max)});
}

// Sums of weights: of the keys below `key` (or, with COUNT, how many these are), and of those below
// `limit`.
template <bool COUNT>
static __device__ row_pair mass_pass(row_search *r, const row_filter &f, uint64_t key,
                                     uint64_t limit)
{
    row_pair sum = {0, 0};
    for (int k = 0; k < r->steps; k += ROW_BATCH) {
        float v[ROW_BATCH][4];
        row_load(*r, k, v);
#pragma unroll
        for (int i = 0; i < ROW_BATCH * 4; i++) {
            const float l = v[i / 4][i % 4];
            const uint64_t own = row_key(l, row_group(*r, k + i / 4) * 4 + i % 4);
            const uint64_t m = row_fixed(row_weight(l, f.max, f.scale));
            if (own < key) sum.a += COUNT ? 1 : m;
            if (own < limit) sum.b += m;
        }
    }
    return row_reduce<false>(r, sum);
}

// Mass that the shortest prefix must reach.
static __device__ __forceinline__ uint64_t nucleus(float top_p, uint64_t total)
{
    const uint64_t mass = (uint64_t)ceil((double)top_p * (double)total);
    return top_p >= 1 ? ROW_ALL : mass > 0 ? mass : 1;
}

// Draws among the first k tokens, which are sorted in block 0's list; block 0 alone.
static __device__ void draw_from_list(const row_search &r, const token_place &at_end,
                                      const msgl_sample_row &p, int k, float max)
{
    const float scale = LOG2_E / p.temperature;
    float logit[ROW_LIST_PER_THREAD], weight[ROW_LIST_PER_THREAD];
    uint64_t sum = 0, total;
#pragma unroll
    for (int i = 0; i < ROW_LIST_PER_THREAD; i++) {
        const int at = (int)threadIdx.x * ROW_LIST_PER_THREAD + i;
        logit[i] =
            at < k ? from_ordered(~(uint32_t)(r.shared->list[at] >> ROW_ID_BITS)) : -CUDART_INF_F;
        weight[i] = row_weight(logit[i], max, scale);
        sum += row_fixed(weight[i]);
    }
    uint64_t before = block_scan(r.shared, sum, &total), best = 0;
    const uint64_t want = nucleus(p.top_p, total);
#pragma unroll
    for (int i = 0; i < ROW_LIST_PER_THREAD; i++) {
        const int at = (int)threadIdx.x * ROW_LIST_PER_THREAD + i;
        if (at < k && before < want && (at == 0 || weight[i] >= p.min_p)) {
            const uint32_t id = (uint32_t)r.shared->list[at] & ((1u << ROW_ID_BITS) - 1);
            const uint4 w = philox(p.seed, id / 4, (uint32_t)p.position, 0, 0);
            const uint32_t word = id % 4 < 2 ? (id % 4 == 0 ? w.x : w.y) : id % 4 == 2 ? w.z : w.w;
            const float score = fmaf(noise_of(p), gumbel2(word), logit[i]);
            const uint64_t key = (uint64_t)ordered(score) << 32 | (uint32_t)~id;
            best = key > best ? key : best;
        }
        before += row_fixed(weight[i]);
    }
    __syncthreads(); // block_scan's memory is used again
    best = block_reduce<true>(r.shared, row_pair{best, 0}).a;
    if (threadIdx.x == 0) put_token(at_end, best);
}

static __device__ __forceinline__ uint64_t key_of(const row_search &r, uint64_t drawn)
{
    const int id = (int)~(uint32_t)drawn;
    return row_key(r.logits[id], id);
}

// Draws among all tokens below f->limit and looks whether the filters keep the drawn one. If not,
// they keep none behind it either: draws again among those before it. The noise stays the same, so
// that the outcome is the best score among the kept tokens, and no limit need be searched for.
static __device__ uint64_t draw_and_check(row_search *r, const msgl_sample_row &p, row_filter *f,
                                          const draw &d, bool random, int keep)
{
    const uint64_t all = f->limit;
    uint64_t want = 0;
    for (;;) {
        const bool first = !f->on;
        const row_pair best = draw_pass<true>(r, d, *f, random, first ? keep : 0);
        if (best.a == ROW_BAD || (uint32_t)(best.a >> 32) <= ordered(-CUDART_INF_F) || !random) {
            return best.a;
        }
        if (first) {
            f->max = from_ordered((uint32_t)best.b);
            r->kept = keep < r->steps ? keep : r->steps;
        }
        const uint64_t key = key_of(*r, best.a);
        const float logit = from_ordered(~(uint32_t)(key >> ROW_ID_BITS));
        bool in = logit == f->max || row_weight(logit, f->max, f->scale) >= p.min_p;
        if (in && p.top_p < 1) {
            const row_pair mass = mass_pass<false>(r, *f, key, all);
            if (want == 0) want = nucleus(p.top_p, mass.b);
            in = mass.a < want;
        }
        if (in) return best.a;
        set_limit(f, key);
        f->min_weight = p.min_p;
        if (threadIdx.x == 0) r->shared->best = 0;
        __syncthreads();
    }
}

template <bool FILTERS>
static __device__ __forceinline__ void choose(row_search *r, const sample_args &a,
                                              const msgl_sample_row &p, const token_place &at)
{
    const bool random = p.temperature >= GREEDY_BELOW && p.top_k != 1;
    const draw d = {noise_of(p),   p.seed, (uint32_t)p.position, -CUDART_INF_F, a.first,
                    -CUDART_INF_F, a.first};
    row_filter f = {false, ROW_ALL, -CUDART_INF_F, 0, LOG2_E / p.temperature, 0};
    uint64_t key;
    if (FILTERS) {
        if (random && p.top_k > 0 && p.top_k < a.vocab) {
            const row_range range = read_row(r, a.keep);
            if (range.bad) { // the same in all threads of the cluster
                if (r->rank == 0 && threadIdx.x == 0) put_token(at, ROW_BAD);
                return;
            }
            if (p.top_k <= ROW_LIST) {
                row_top(r, (uint32_t)p.top_k, range.max, range.min);
                if (r->rank == 0) draw_from_list(*r, at, p, p.top_k, range.max);
                return;
            }
            f.max = range.max;
            set_limit(&f, row_radix(*r, (uint32_t)p.top_k) + 1);
        }
        key = draw_and_check(r, p, &f, d, random, a.keep);
    } else {
        key = draw_pass<false>(r, d, f, random, 0).a;
    }
    if (r->rank != 0 || threadIdx.x != 0) return;
    if (FILTERS || a.keys == NULL) {
        put_token(at, key);
    } else {
        // A score of +0 as -0, which is no other: the upper word's bits are those of a word that
        // is not sent between ranks.
        const bool zero = (uint32_t)(key >> 32) == ordered(0.0f);
        a.keys[(int)blockIdx.x / cluster_size()] = key - ((uint64_t)zero << 32);
    }
}

// The rows' parameters, and where their tokens go, are inputs of the step: no kernel that may still
// run writes them, so they are read ahead of the wait.
template <bool FILTERS>
static __global__ void __launch_bounds__(ROW_THREADS)
    sample_kernel(const __grid_constant__ sample_args a)
{
    extern __shared__ float4 slice[];
    __shared__ row_shared shared;
    msgl__pdl_trigger();
    const int row = (int)blockIdx.x / cluster_size();
    row_search r;
    row_begin(&r, &shared, slice, a.logits + (size_t)row * a.ld, a.vocab);
    const bool mine = a.replay == NULL || row < a.replay->num_rows;
    if (!mine) { // the same in all threads of the cluster
        msgl__pdl_wait();
        return;
    }
    const msgl_sample_row p = a.rows[row];
    const token_place at = find_place(a, row);
    msgl__pdl_wait();
    if (p.adjusts) adjust_row(&a);
    choose<FILTERS>(&r, a, p, at);
    if (p.adjusts) restore_row(&a);
}

// A thread per row: the largest of the keys [ranks, rows], all of which have one.
static __global__ void pick_kernel(const __grid_constant__ sample_args a, int rows, int ranks)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (row >= (a.replay == NULL ? rows : a.replay->num_rows)) return;
    uint64_t best = 0;
    for (int rank = 0; rank < ranks; rank++) {
        const uint64_t key = __ldcg(a.keys + (size_t)rank * rows + row);
        best = key > best ? key : best;
    }
    put_token(find_place(a, row), best);
}

// A thread per row: the larger one of this rank's key and the other's. Also of rows whose token
// nobody wants: the other rank's slots count on it (peer_sum.cuh).
static __global__ void pick_of_two_kernel(const __grid_constant__ sample_args a, int rows,
                                          const __grid_constant__ msgl_peer_sum sum)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const msgl_peer_slot slot = msgl__peer_open(sum);
    uint2 own = {}, other = {};
    if (row < rows) {
        own = msgl__peer_sent(__ldcg((const uint2 *)a.keys + row));
        msgl__peer_push(slot.theirs + (size_t)row * sizeof own, own);
    }
    __syncthreads();
    if (threadIdx.x == 0) msgl__peer_count(sum.count, sum.ticket, slot.call, gridDim.x);
    if (row >= rows) return;
    char *const from = slot.own + (size_t)row * sizeof other;
    msgl__peer_look(from, &other);
    msgl__peer_take(from, sum.over, &other);
    if (row >= (a.replay == NULL ? rows : a.replay->num_rows)) return;
    const uint64_t mine = (uint64_t)own.y << 32 | own.x, its = (uint64_t)other.y << 32 | other.x;
    put_token(find_place(a, row), mine > its ? mine : its);
}

static __global__ void __launch_bounds__(ROW_THREADS)
    logprobs_kernel(const float *logits, size_t ld, int vocab, msgl_token_logprobs *rows, int keep)
{
    extern __shared__ float4 slice[];
    __shared__ row_shared shared;
    msgl__pdl_trigger();
    const int row = (int)blockIdx.x / cluster_size();
    row_search r;
    row_begin(&r, &shared, slice, logits + (size_t)row * ld, vocab);
    msgl__pdl_wait();
    msgl_token_logprobs *const out = rows + row;
    const int token = out->token, asked = out->num_top < vocab ? out->num_top : vocab;
    const int num_top = asked < MSGL_MAX_LOGPROBS ? asked : MSGL_MAX_LOGPROBS;
    const bool writes = r.rank == 0 && threadIdx.x == 0;
    const row_range range = read_row(&r, keep);
    if (range.bad) {
        if (writes) {
            out->logprob = CUDART_NAN_F;
            out->log_sum = CUDART_NAN;
            out->rank = out->num_top = 0;
        }
        return;
    }
    const row_filter all = {false, ROW_ALL, -CUDART_INF_F, range.max, LOG2_E, 0};
    const bool known = token >= 0 && token < vocab;
    const uint64_t own = known ? row_key(r.logits[token], token) : 0;
    const row_pair sums = mass_pass<true>(&r, all, own, ROW_ALL);
    const double lse = (double)range.max + log((double)sums.b / (double)ROW_ONE);
    if (writes) {
        out->logprob = known ? (float)((double)r.logits[token] - lse) : CUDART_NAN_F;
        out->log_sum = lse;
        out->rank = known ? (int)sums.a + 1 : 0;
        out->num_top = num_top > 0 ? num_top : 0;
    }
    if (num_top <= 0) return;
    row_top(&r, (uint32_t)num_top, range.max, range.min);
    if (r.rank != 0 || (int)threadIdx.x >= num_top) return;
    const uint64_t key = shared.list[threadIdx.x];
    out->top_ids[threadIdx.x] = (int32_t)(key & ((1u << ROW_ID_BITS) - 1));
    out->top_logprobs[threadIdx.x] =
        (float)((double)from_ordered(~(uint32_t)(key >> ROW_ID_BITS)) - lse);
}

// A row is shared by a cluster of blocks while rows alone do not fill the GPU, and so that it fits
// in their shared memory when it is kept there. No result depends on how many they are.
struct row_launch {
    unsigned cluster, threads;
    int keep; // steps per thread
};

static row_launch plan_rows(const msgl_cuda_device *d, int rows, int vocab, bool keeps)
{
    const bool clusters = d->base.capability >= 90;
    const size_t groups = ((size_t)vocab + 3) / 4;
    row_launch l = {1, ROW_THREADS, 0};
    while (clusters && l.cluster < ROW_MAX_CLUSTER &&
           (rows * (int)l.cluster <= d->sm_count ||
            (keeps && groups * sizeof(float4) > l.cluster * (size_t)ROW_SLICE_BYTES))) {
        l.cluster *= 2;
    }
    // Where blocks share an SM, smaller ones leave it less idle at their barriers. The fewest rows
    // without filters are bound by what each SM has to read and compare: twice as many of them.
    if (rows * (int)l.cluster > d->sm_count) l.threads /= 2;
    if (!keeps && 4 * rows * (int)l.cluster <= d->sm_count && l.cluster == ROW_MAX_CLUSTER) {
        l.cluster *= 2;
        l.threads /= 2;
    }
    const size_t stride = (size_t)l.cluster * l.threads;
    const size_t steps = (groups + stride - 1) / stride;
    int most = 0; // shared memory of a block
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, d->ordinal);
    most -= ROW_OTHER_BYTES;
    most = most < ROW_SLICE_BYTES ? most : ROW_SLICE_BYTES;
    const size_t room = most > 0 ? (size_t)most / (l.threads * sizeof(float4)) : 0;
    if (keeps) l.keep = (int)(steps < room ? steps : room);
    return l;
}

// More than ROW_MAX_CLUSTER blocks is not what every GPU can do. Asked once per device: all such
// launches of a kernel are alike but for their rows.
template <auto KERNEL> static bool may_launch(const cudaLaunchConfig_t &config)
{
    static std::atomic<int> known[MSGL_MAX_GPUS]; // 0: not yet, 1: no, 2: yes
    msgl_gpu gpu;
    if (msgl__current_gpu(&gpu) != cudaSuccess || gpu.ordinal >= MSGL_MAX_GPUS) return false;
    int answer = known[gpu.ordinal].load(std::memory_order_relaxed);
    if (answer != 0) return answer == 2;
    int clusters = 0;
    const bool may = cudaFuncSetAttribute(KERNEL, cudaFuncAttributeNonPortableClusterSizeAllowed,
                                          1) == cudaSuccess &&
                     cudaOccupancyMaxActiveClusters(&clusters, KERNEL, &config) == cudaSuccess &&
                     clusters > 0;
    if (!may) (void)cudaGetLastError();
    known[gpu.ordinal].store(may ? 2 : 1, std::memory_order_relaxed);
    return may;
}

// args: of the kernel's own types.
template <auto KERNEL, typename... Args>
static void launch_rows(msgl_exec *x, const row_launch &l, int rows, Args... args)
{
    const msgl_cuda_device *const d = msgl__cuda_device(x);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = l.cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)rows * l.cluster);
    config.blockDim = dim3(l.threads);
    config.dynamicSmemBytes = (size_t)l.keep * l.threads * sizeof(float4);
    config.stream = d->stream;
    config.attrs = attributes;
    config.numAttrs = d->base.capability >= 90 ? 2 : 0;
    if (l.cluster > ROW_MAX_CLUSTER && !may_launch<KERNEL>(config)) {
        attributes[1].val.clusterDim.x = ROW_MAX_CLUSTER;
        config.gridDim = dim3((unsigned)rows * ROW_MAX_CLUSTER);
    }
    if (l.keep > 0) MSGL_CUDA_TRY(x, msgl__allow_shared<KERNEL>(config.dynamicSmemBytes));
    MSGL_CUDA_TRY(x, cudaLaunchKernelEx(&config, KERNEL, args...));
}

static sample_args args_of(const msgl_sample_call *c, int keep)
{
    return {.logits = c->logits,
            .ld = c->ld,
            .vocab = c->vocab,
            .rows = c->rows,
            .replay = c->replay,
            .tokens = c->tokens,
            .status = c->status,
            .pool = c->pool,
            .pool_index = c->pool_index,
            .bias = c->bias,
            .saved = c->saved,
            .bias_saved = c->bias_saved,
            .keep = keep,
            .first = 0,
            .keys = NULL};
}

// To start beside the product that makes the logits.
static void launch_unfiltered(msgl_exec *x, const row_launch &l, int rows, const sample_args &a)
{
    MSGL_CUDA_TRY(x, msgl__allow_shared<sample_kernel<false>>(1, true));
    launch_rows<sample_kernel<false>>(x, l, rows, a);
}

extern "C" void msgl__cuda_draw(msgl_exec *x, const msgl_sample_call *c)
{
    if (c->num_rows <= 0) return;
    const row_launch l = plan_rows(msgl__cuda_device(x), c->num_rows, c->vocab, false);
    sample_args a = args_of(c, 0);
    a.first = c->first;
    a.keys = c->keys;
    launch_unfiltered(x, l, c->num_rows, a);
}

extern "C" void msgl__cuda_pick(msgl_exec *x, const msgl_sample_call *c, int ranks)
{
    if (c->num_rows <= 0) return;
    sample_args a = args_of(c, 0);
    a.keys = c->keys;
    const dim3 grid((unsigned)(c->num_rows + 127) / 128), block(128);
    if (c->sum != NULL) {
        MSGL_CUDA_TRY(x, msgl__launch(pick_of_two_kernel, grid, block, 0, msgl__cuda_stream(x), a,
                                      c->num_rows, *c->sum));
        return;
    }
    MSGL_CUDA_TRY(
        x, msgl__launch(pick_kernel, grid, block, 0, msgl__cuda_stream(x), a, c->num_rows, ranks));
}

extern "C" void msgl__cuda_sample(msgl_exec *x, const msgl_sample_call *c)
{
    if (c->num_rows <= 0) return;
    const row_launch l = plan_rows(msgl__cuda_device(x), c->num_rows, c->vocab, c->any_filter);
    const sample_args a = args_of(c, l.keep);
    if (c->any_filter) {
        launch_rows<sample_kernel<true>>(x, l, c->num_rows, a);
        return;
    }
    launch_unfiltered(x, l, c->num_rows, a);
}

extern "C" void msgl__cuda_logprobs(msgl_exec *x, const float *logits, size_t ld, int num_rows,
                                    int vocab, msgl_token_logprobs *out)
{
    if (num_rows <= 0) return;
    const row_launch l = plan_rows(msgl__cuda_device(x), num_rows, vocab, true);
    launch_rows<logprobs_kernel>(x, l, num_rows, logits, ld, vocab, out, l.keep);
}

// One thread an id; a row is blockIdx.y.
static __global__ void listed_kernel(const float *logits, size_t ld,
                                     const msgl_token_logprobs *records, const int32_t *ids, int n,
                                     float *out, size_t out_ld)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const size_t row = blockIdx.y;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    if (i >= n) return;
    out[row * out_ld + i] = (float)((double)logits[row * ld + ids[i]] - records[row].log_sum);
}

extern "C" void msgl__cuda_listed(msgl_exec *x, const float *logits, size_t ld,
                                  const msgl_token_logprobs *records, int num_rows,
                                  const int32_t *ids, int n, float *out, size_t out_ld)
{
    if (num_rows <= 0 || n <= 0) return;
    const dim3 grid((unsigned)(n + 127) / 128, (unsigned)num_rows), block(128);
    MSGL_CUDA_TRY(x, msgl__launch(listed_kernel, grid, block, 0, msgl__cuda_stream(x), logits, ld,
                                  records, ids, n, out, out_ld));
}

// One thread a logit; masks NULL: a copy.
static __global__ void mask_kernel(const float *logits, size_t ld, const uint32_t *masks, int vocab,
                                   float *out)
{
    const int t = (int)(blockIdx.x * blockDim.x + threadIdx.x), row = (int)blockIdx.y;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    if (t >= vocab) return;
    const uint32_t word = masks == NULL ? ~0u : masks[(size_t)row * ((vocab + 31) / 32) + t / 32];
    out[(size_t)row * vocab + t] =
        word >> (t % 32) & 1 ? logits[(size_t)row * ld + t] : -CUDART_INF_F;
}

extern "C" void msgl__cuda_mask(msgl_exec *x, const float *logits, size_t ld, const uint32_t *masks,
                                int num_rows, int vocab, float *out)
{
    if (num_rows <= 0) return;
    const dim3 grid((unsigned)(vocab + 255) / 256, (unsigned)num_rows);
    mask_kernel<<<grid, 256, 0, msgl__cuda_device(x)->stream>>>(logits, ld, masks, vocab, out);
    MSGL_CUDA_TRY(x, cudaGetLastError());
}

// Clusters share their partial results in shared memory: nothing is taken from the arena.
extern "C" size_t msgl__cuda_sample_scratch(int num_rows, int vocab)
{
    (void)num_rows;
    (void)vocab;
    return 0;
}
