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
#include "kernel/cuda/device.cuh"
#include "kernel/cuda/launch.cuh"
#include "kernel/cuda/ops/ops.h"
#include "kernel/cuda/ops/philox.cuh"
#include "kernel/cuda/ops/row_search.cuh"
#include "kernel/cuda/ops/vec8.cuh"

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
#ifndef ROW_THREADS
#define ROW_THREADS 1024
#endif
#define ROW_SLICE_BYTES (80 << 10) // of a row per block: two blocks fit an SM of sm_90
#define ROW_OTHER_BYTES (36 << 10) // row_shared and what else the kernels declare
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
};

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
    const float top = from_ordered(mine);
    d->low = fmaxf(d->low, top - fabsf(top) * 0x1p-20f - d->noise * 1e-4f);
}

struct sample_args {
    const float *logits;
    size_t ld;
    int vocab;
    const msgl_sample_row *rows;
    int32_t *tokens, *status, *pool;
    const int32_t *pool_index;
    int keep; // steps of a row that a block's shared memory takes
};

#define ROW_BAD ROW_ALL // in a maximum over keys: a logit is NaN or infinite

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
    const row_bin all =
        row_max2(r, row_bin{bad ? ROW_BAD : (uint64_t)ordered(max), (uint64_t)~ordered(min)});
    return row_range{all.count == ROW_BAD || all.count <= ordered(-CUDART_INF_F),
                     from_ordered((uint32_t)all.count), from_ordered(~(uint32_t)all.mass)};
}

static __device__ void put_token(const row_search &r, const sample_args &a, int row, uint64_t key)
{
    if (r.rank != 0 || threadIdx.x != 0) return;
    const bool bad = key == ROW_BAD || (uint32_t)(key >> 32) <= ordered(-CUDART_INF_F);
    a.tokens[row] = bad ? -1 : (int32_t) ~(uint32_t)key;
    a.status[row] = bad ? MSGL_ENUMERIC : 0;
    if (a.pool != NULL) a.pool[a.pool_index[row]] = bad ? 0 : (int32_t) ~(uint32_t)key;
}

// What the filters leave of a row: tokens up to key `last` with at least `min_weight`.
struct kept {
    uint64_t last;
    float max, scale, min_weight;
};

static __device__ bool has_filter(const msgl_sample_row &p, int vocab)
{
    return p.temperature >= GREEDY_BELOW && p.top_k != 1 &&
           ((p.top_k > 0 && p.top_k < vocab) || p.top_p < 1 || p.min_p > 0);
}

static __device__ kept apply_filters(row_search *r, const msgl_sample_row &p,
                                     const row_range &range)
{
    const float scale = LOG2_E / p.temperature;
    row_goal goal = {.by_mass = false,
                     .count = (uint64_t)p.top_k,
                     .fraction = 0,
                     .limit = ROW_ALL,
                     .max = range.max,
                     .min = range.min,
                     .scale = scale};
    if (p.top_k > 0 && p.top_k < r->vocab) goal.limit = row_select(r, goal);
    if (p.top_p < 1) {
        goal.by_mass = true;
        goal.fraction = (double)p.top_p;
        goal.limit = row_select(r, goal);
    }
    return kept{goal.limit, range.max, scale, p.min_p};
}

// Sets the logits of tokens that the filters drop to -inf; returns whether any is left.
static __device__ __forceinline__ bool filter_group(const kept &keep, float v[4], int id)
{
    bool any = false;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float l = v[j];
        const bool in = row_key(l, id + j) <= keep.last &&
                        (l == keep.max || row_weight(l, keep.max, keep.scale) >= keep.min_weight);
        v[j] = in ? l : -CUDART_INF_F;
        any |= in;
    }
    return any;
}

template <bool FILTERS>
static __global__ void __launch_bounds__(ROW_THREADS) sample_kernel(const sample_args a)
{
    extern __shared__ float4 slice[];
    __shared__ row_shared shared;
    msgl__pdl_trigger();
    const int row = (int)blockIdx.x / cluster_size();
    row_search r;
    row_begin(&r, &shared, slice, a.logits + (size_t)row * a.ld, a.vocab);
    msgl__pdl_wait();
    const msgl_sample_row p = a.rows[row];
    const bool random = p.temperature >= GREEDY_BELOW && p.top_k != 1;
    const bool filter = FILTERS && has_filter(p, a.vocab);
    kept keep = {ROW_ALL, 0, 0, 0};
    if (filter) {
        const row_range range = read_row(&r, a.keep);
        if (range.bad) { // the same in all threads of the cluster
            put_token(r, a, row, ROW_BAD);
            return;
        }
        keep = apply_filters(&r, p, range);
    }
    draw d = {random ? fminf(p.temperature, HOTTEST) * LN_2 : 0,
              p.seed,
              (uint32_t)p.position,
              -CUDART_INF_F,
              0,
              -CUDART_INF_F};
    bool bad = false;
    for (int k = 0; k < r.steps; k += ROW_BATCH) {
        float v[ROW_BATCH][4];
        row_load(r, k, v);
        const float top = from_ordered(*(volatile uint32_t *)&shared.best);
        if (top > d.low) d.low = top - fabsf(top) * 0x1p-20f - d.noise * 1e-4f;
#pragma unroll
        for (int u = 0; u < ROW_BATCH; u++) {
            const int id = row_group(r, k + u) * 4;
            if (!filter) {
#pragma unroll
                for (int j = 0; j < 4; j++) bad |= !(v[u][j] < CUDART_INF_F);
            } else if (!__any_sync(MSGL_FULL_MASK, filter_group(keep, v[u], id))) {
                continue;
            }
            if (k + u >= r.steps) break;
            if (random) {
                draw_group(&d, v[u], id, &shared.best);
            } else {
                take_best(&d, v[u], id);
            }
        }
    }
    const uint64_t key = (uint64_t)ordered(d.score) << 32 | (uint32_t)~d.id;
    put_token(r, a, row, row_max2(&r, row_bin{bad ? ROW_BAD : key, 0}).count);
}

// The list of a row's most likely tokens, in block 0 of its cluster.
struct top_list {
    uint32_t count;
    uint64_t keys[MSGL_MAX_LOGPROBS];
};

static __device__ void put_top(row_search *r, top_list *list, int num_top, const row_range &range,
                               double lse, msgl_token_logprobs *out)
{
    const row_goal goal = {.by_mass = false,
                           .count = (uint64_t)num_top,
                           .fraction = 0,
                           .limit = ROW_ALL,
                           .max = range.max,
                           .min = range.min,
                           .scale = LOG2_E};
    if (threadIdx.x == 0) list->count = 0;
    const uint64_t last = row_select(r, goal); // num_top tokens have a key up to this
    top_list *const dst = cluster_at(list, 0);
    for (int k = 0; k < r->steps; k += ROW_BATCH) {
        float v[ROW_BATCH][4];
        row_load(*r, k, v);
#pragma unroll
        for (int i = 0; i < ROW_BATCH * 4; i++) {
            const int id = row_group(*r, k + i / 4) * 4 + i % 4;
            const uint64_t key = row_key(v[i / 4][i % 4], id);
            if (id < r->vocab && key <= last) dst->keys[atomicAdd(&dst->count, 1)] = key;
        }
    }
    cluster_sync(r->size);
    if (r->rank != 0 || (int)threadIdx.x >= num_top) return;
    const uint64_t key = list->keys[threadIdx.x];
    int place = 0;
    for (int i = 0; i < num_top; i++) place += list->keys[i] < key;
    const double logit = from_ordered(~(uint32_t)(key >> ROW_ID_BITS));
    out->top_ids[place] = (int32_t)(key & ((1u << ROW_ID_BITS) - 1));
    out->top_logprobs[place] = (float)(logit - lse);
}

static __global__ void __launch_bounds__(ROW_THREADS)
    logprobs_kernel(const float *logits, size_t ld, int vocab, msgl_token_logprobs *rows, int keep)
{
    extern __shared__ float4 slice[];
    __shared__ row_shared shared;
    __shared__ top_list list;
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
            out->num_top = 0;
        }
        return;
    }
    row_bin mine = {0, 0}, total;
    for (int k = 0; k < r.steps; k += ROW_BATCH) {
        float v[ROW_BATCH][4];
        row_load(r, k, v);
#pragma unroll
        for (int i = 0; i < ROW_BATCH * 4; i++) {
            mine.mass += row_fixed(r, row_weight(v[i / 4][i % 4], range.max, LOG2_E));
        }
    }
    row_scan(&r, mine, &total);
    const double lse =
        (double)range.max + log((double)total.mass) - (3 * r.digit - 1) * (double)LN_2;
    if (writes) {
        out->logprob =
            token >= 0 && token < vocab ? (float)((double)r.logits[token] - lse) : CUDART_NAN_F;
        out->num_top = num_top > 0 ? num_top : 0;
    }
    if (num_top > 0) put_top(&r, &list, num_top, range, lse, out);
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
    // Where blocks share an SM, smaller ones leave it less idle at their barriers.
    if (rows * (int)l.cluster > d->sm_count) l.threads /= 2;
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

template <typename... Params, typename... Args>
static void launch_rows(msgl_exec *x, const row_launch &l, void (*kernel)(Params...), int rows,
                        Args... args)
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
    if (l.keep > 0) {
        MSGL_CUDA_TRY(x, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              (int)config.dynamicSmemBytes));
    }
    MSGL_CUDA_TRY(x, cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

extern "C" void msgl__cuda_sample(msgl_exec *x, const msgl_sample_call *c)
{
    if (c->num_rows <= 0) return;
    const row_launch l = plan_rows(msgl__cuda_device(x), c->num_rows, c->vocab, c->any_filter);
    const sample_args a = {.logits = c->logits,
                           .ld = c->ld,
                           .vocab = c->vocab,
                           .rows = c->rows,
                           .tokens = c->tokens,
                           .status = c->status,
                           .pool = c->pool,
                           .pool_index = c->pool_index,
                           .keep = l.keep};
    launch_rows(x, l, c->any_filter ? sample_kernel<true> : sample_kernel<false>, c->num_rows, a);
}

extern "C" void msgl__cuda_logprobs(msgl_exec *x, const float *logits, size_t ld, int num_rows,
                                    int vocab, msgl_token_logprobs *out)
{
    if (num_rows <= 0) return;
    const row_launch l = plan_rows(msgl__cuda_device(x), num_rows, vocab, true);
    launch_rows(x, l, logprobs_kernel, num_rows, logits, ld, vocab, out, l.keep);
}

// Clusters share their partial results in shared memory: nothing is taken from the arena.
extern "C" size_t msgl__cuda_sample_scratch(int num_rows, int vocab)
{
    (void)num_rows;
    (void)vocab;
    return 0;
}
