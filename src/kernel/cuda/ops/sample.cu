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

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
#define GREEDY_BELOW 1e-6f // temperatures whose inverse overflows soon

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

struct best {
    float score;
    int id;
};

// Scores of one group of four tokens; ids only ever rise, so > keeps the lowest at ties.
static __device__ __forceinline__ void score_group(const float v[4], int id, bool random,
                                                   float noise, uint64_t seed, uint32_t position,
                                                   best *top)
{
    float s[4] = {v[0], v[1], v[2], v[3]};
    if (random) {
        const uint4 w = philox(seed, (uint32_t)id / 4, position, 0, 0);
        s[0] = fmaf(noise, gumbel2(w.x), s[0]);
        s[1] = fmaf(noise, gumbel2(w.y), s[1]);
        s[2] = fmaf(noise, gumbel2(w.z), s[2]);
        s[3] = fmaf(noise, gumbel2(w.w), s[3]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (s[j] > top->score) *top = best{s[j], id + j};
    }
}

struct sample_args {
    const float *logits;
    size_t ld;
    int vocab;
    const msgl_sample_row *rows;
    int32_t *tokens, *status;
};

#define ROW_BAD ROW_ALL // in a maximum over keys: a logit is NaN or infinite

// The largest logit as ordered(), or ROW_BAD when a logit is NaN or +inf, or all are -inf.
static __device__ uint64_t row_max(row_search *r)
{
    float max = -CUDART_INF_F;
    bool bad = false;
    for (int g = r->first; g < r->groups; g += ROW_BATCH * r->stride) {
        float v[ROW_BATCH][4];
        row_load(*r, g, v);
#pragma unroll
        for (int i = 0; i < ROW_BATCH * 4; i++) {
            const float l = v[i / 4][i % 4];
            bad |= !(l < CUDART_INF_F);
            max = fmaxf(max, l);
        }
    }
    const uint64_t m = row_max64(r, bad ? ROW_BAD : ordered(max));
    return m == ordered(-CUDART_INF_F) ? ROW_BAD : m;
}

static __device__ void put_token(const row_search &r, const sample_args &a, int row, uint64_t key)
{
    if (r.rank != 0 || threadIdx.x != 0) return;
    const bool bad = key == ROW_BAD || (uint32_t)(key >> 32) <= ordered(-CUDART_INF_F);
    a.tokens[row] = bad ? -1 : (int32_t) ~(uint32_t)key;
    a.status[row] = bad ? MSGL_ENUMERIC : 0;
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

static __device__ kept apply_filters(row_search *r, const msgl_sample_row &p, float max)
{
    const float scale = LOG2_E / p.temperature;
    row_goal goal = {.by_mass = false,
                     .count = (uint64_t)p.top_k,
                     .fraction = 0,
                     .limit = ROW_ALL,
                     .max = max,
                     .scale = scale};
    if (p.top_k > 0 && p.top_k < r->vocab) goal.limit = row_select(r, goal);
    if (p.top_p < 1) {
        goal.by_mass = true;
        goal.fraction = (double)p.top_p;
        goal.limit = row_select(r, goal);
    }
    return kept{goal.limit, max, scale, p.min_p};
}

template <bool FILTERS>
static __global__ void __launch_bounds__(1024) sample_kernel(const sample_args a)
{
    __shared__ row_shared shared;
    msgl__pdl_trigger();
    const int row = (int)blockIdx.x / cluster_size();
    row_search r;
    row_begin(&r, &shared, a.logits + (size_t)row * a.ld, a.vocab);
    msgl__pdl_wait();
    const msgl_sample_row p = a.rows[row];
    const bool random = p.temperature >= GREEDY_BELOW && p.top_k != 1;
    const bool filter = FILTERS && has_filter(p, a.vocab);
    kept keep = {ROW_ALL, 0, 0, 0};
    if (filter) {
        const uint64_t max = row_max(&r);
        if (max == ROW_BAD) { // the same in all threads of the cluster
            put_token(r, a, row, max);
            return;
        }
        keep = apply_filters(&r, p, from_ordered((uint32_t)max));
    }
    best top = {-CUDART_INF_F, 0};
    bool bad = false;
    const float noise = p.temperature * LN_2;
    for (int g = r.first; g < r.groups; g += ROW_BATCH * r.stride) {
        float v[ROW_BATCH][4];
        row_load(r, g, v);
#pragma unroll
        for (int u = 0; u < ROW_BATCH; u++) {
            const int id = (g + u * r.stride) * 4;
            bool any = true;
            if (filter) {
                any = false;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float l = v[u][j], w = row_weight(l, keep.max, keep.scale);
                    const bool in =
                        row_key(l, id + j) <= keep.last && (w >= keep.min_weight || l == keep.max);
                    v[u][j] = in ? l : -CUDART_INF_F;
                    any |= in;
                }
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++) bad |= !(v[u][j] < CUDART_INF_F);
            }
            if (any) score_group(v[u], id, random, noise, p.seed, (uint32_t)p.position, &top);
        }
    }
    const uint64_t key = (uint64_t)ordered(top.score) << 32 | (uint32_t)~top.id;
    put_token(r, a, row, row_max64(&r, bad ? ROW_BAD : key));
}

// The list of a row's most likely tokens, in block 0 of its cluster.
struct top_list {
    uint32_t count;
    uint64_t keys[MSGL_MAX_LOGPROBS];
};

static __device__ void put_top(row_search *r, top_list *list, int num_top, float max, double lse,
                               msgl_token_logprobs *out)
{
    const row_goal goal = {.by_mass = false,
                           .count = (uint64_t)num_top,
                           .fraction = 0,
                           .limit = ROW_ALL,
                           .max = max,
                           .scale = LOG2_E};
    if (threadIdx.x == 0) list->count = 0;
    const uint64_t last = row_select(r, goal); // num_top tokens have a key up to this
    top_list *const dst = cluster_at(list, 0);
    for (int g = r->first; g < r->groups; g += ROW_BATCH * r->stride) {
        float v[ROW_BATCH][4];
        row_load(*r, g, v);
#pragma unroll
        for (int i = 0; i < ROW_BATCH * 4; i++) {
            const int id = (g + i / 4 * r->stride) * 4 + i % 4;
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

static __global__ void __launch_bounds__(1024)
    logprobs_kernel(const float *logits, size_t ld, int vocab, msgl_token_logprobs *rows)
{
    __shared__ row_shared shared;
    __shared__ top_list list;
    msgl__pdl_trigger();
    const int row = (int)blockIdx.x / cluster_size();
    row_search r;
    row_begin(&r, &shared, logits + (size_t)row * ld, vocab);
    msgl__pdl_wait();
    msgl_token_logprobs *const out = rows + row;
    const int token = out->token, asked = out->num_top < vocab ? out->num_top : vocab;
    const int num_top = asked < MSGL_MAX_LOGPROBS ? asked : MSGL_MAX_LOGPROBS;
    const bool writes = r.rank == 0 && threadIdx.x == 0;
    const uint64_t max_key = row_max(&r);
    if (max_key == ROW_BAD) {
        if (writes) {
            out->logprob = CUDART_NAN_F;
            out->num_top = 0;
        }
        return;
    }
    const float max = from_ordered((uint32_t)max_key);
    row_bin mine = {0, 0}, total;
    for (int g = r.first; g < r.groups; g += ROW_BATCH * r.stride) {
        float v[ROW_BATCH][4];
        row_load(r, g, v);
#pragma unroll
        for (int i = 0; i < ROW_BATCH * 4; i++) {
            mine.mass += row_fixed(r, row_weight(v[i / 4][i % 4], max, LOG2_E));
        }
    }
    row_scan(&r, mine, &total);
    const double lse = (double)max + log((double)total.mass) - (3 * r.digit - 1) * (double)LN_2;
    if (writes) {
        out->logprob =
            token >= 0 && token < vocab ? (float)((double)r.logits[token] - lse) : CUDART_NAN_F;
        out->num_top = num_top > 0 ? num_top : 0;
    }
    if (num_top > 0) put_top(&r, &list, num_top, max, lse, out);
}

// A row is shared by a cluster of blocks while rows alone do not fill the GPU. No result depends on
// how many.
template <typename... Params, typename... Args>
static void launch_rows(msgl_exec *x, void (*kernel)(Params...), int rows, Args... args)
{
    const msgl_cuda_device *const d = msgl__cuda_device(x);
    unsigned size = 1;
    if (d->base.capability >= 90) {
        while (size < ROW_MAX_CLUSTER && rows * (int)size <= d->sm_count) size *= 2;
    }
    const bool alone = rows * (int)size <= d->sm_count; // a block has an SM to itself
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = size;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)rows * size);
    config.blockDim = dim3(alone ? 1024 : 512);
    config.stream = d->stream;
    config.attrs = attributes;
    config.numAttrs = d->base.capability >= 90 ? 2 : 0;
    MSGL_CUDA_TRY(x, cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

extern "C" void msgl__cuda_sample(msgl_exec *x, const msgl_sample_call *c)
{
    if (c->num_rows <= 0) return;
    const sample_args a = {.logits = c->logits,
                           .ld = c->ld,
                           .vocab = c->vocab,
                           .rows = c->rows,
                           .tokens = c->tokens,
                           .status = c->status};
    launch_rows(x, c->any_filter ? sample_kernel<true> : sample_kernel<false>, c->num_rows, a);
}

extern "C" void msgl__cuda_logprobs(msgl_exec *x, const float *logits, size_t ld, int num_rows,
                                    int vocab, msgl_token_logprobs *out)
{
    if (num_rows > 0) launch_rows(x, logprobs_kernel, num_rows, logits, ld, vocab, out);
}

// Clusters share their partial results in shared memory: nothing is taken from the arena.
extern "C" size_t msgl__cuda_sample_scratch(int num_rows, int vocab)
{
    (void)num_rows;
    (void)vocab;
    return 0;
}
