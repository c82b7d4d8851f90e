// SPDX-License-Identifier: Apache-2.0
//
// Which kernel of the table does a call fastest, and which of its algorithms the library's product.
// A step reads every weight of the model between two uses of one, so that a product must be timed
// with its weights outside the L2: before each run something else is read through it. Kernels are
// timed as a step runs them: in a captured graph, several calls one behind the other, each with
// another layer's weights, so that early launches count; the call with all that belongs to it, and
// where it can leave half of a norm for the product behind, that one too, as it is chosen.
#include <math.h>
#include <string.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" {
#include "core/mem.h"
}
#include "cuda/gemm/fp8.h"
#include "cuda/gemm/fp8_rows.h"
#include "cuda/gemm/fused_norm.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/table.cuh"
#include "cuda/peer_sum.h"

enum {
    CANDIDATES = 12,
    LONG_CANDIDATES = 5,
    MORE_RUNS = 4, // of those near the best
    WARM_RUNS = 1200,
    MAX_CALLS = 8,      // of a graph
    STATS_COLUMNS = 64, // of a tile of the sums of squares, as mid_sm90 and tall_sm90 leave them
};

static_assert(MSGL_PRODUCT_KERNELS <= (int)CANDIDATES, "a run has room for all kernels");

static const float LONG_US = 400.0f; // longer runs are not repeated more: there is little noise
static const float DROP = 1.5f;      // of the best time: no second run
static const float NEAR = 1.15f;     // of the best time
// Who is taken without a measurement stays unless another one is this much faster.
static const float CLEARLY = 0.97f;
// What a sum over ranks costs more behind a product than in its end, where there is nobody to sum
// with while kernels are measured: 6.7 us between products of 64 rows beside 4 to 5
// (docs/internals/ranks.md).
static const float SUM_US = 2.0f;
static const int SUM_TILES = 5; // of the norm_stats that it leaves, about

// Values in [-1, 1): products of zeros run faster than real ones.
template <typename T> __global__ void fill_noise(T *out, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 0x9e3779b9u;
        h = (h ^ (h >> 15)) * 0x85ebca6bu;
        h ^= h >> 13;
        out[i] = T((float)(int32_t)h * 0x1p-31f);
    }
}

__global__ void count_up(int32_t *out, int32_t n)
{
    const int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = i;
}

__global__ void read_through(const uint4 *p, size_t n, uint32_t *sink)
{
    uint32_t sum = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint4 v = p[i];
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x12345678u) *sink = sum;
}

typedef struct tuner {
    msgl_exec *x;
    msgl_arena *memory;
    const msgl_tune_product *p;
    const uint4 *other; // read to push the weights out of the L2
    size_t other_bytes;
    uint32_t *sink;
    int library;                        // the kernel of the table
    cudaEvent_t events[2 * CANDIDATES]; // NULL until something is measured
} tuner;

static tuner tuner_of(msgl_exec *x, msgl_arena *memory, const msgl_tune_product *p)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const msgl_arena *scratch = x->scratch;
    tuner t = {x, memory, p};
    t.sink = (uint32_t *)d->blas->workspace;
    t.library = msgl__cuda_library_kernel();
    t.other = (const uint4 *)d->blas->workspace;
    t.other_bytes = d->blas->workspace_bytes;
    if (scratch->size > t.other_bytes) {
        t.other = (const uint4 *)scratch->base;
        t.other_bytes = scratch->size < 2 * d->l2_bytes ? scratch->size : 2 * d->l2_bytes;
    }
    return t;
}

static void open_events(tuner *t)
{
    for (int i = 0; i < 2 * CANDIDATES && t->events[i] == NULL; i++) {
        MSGL_CUDA_TRY(t->x, cudaEventCreate(&t->events[i]));
    }
}

static void close_events(tuner *t)
{
    for (int i = 0; i < 2 * CANDIDATES; i++) {
        if (t->events[i] != NULL) (void)cudaEventDestroy(t->events[i]);
    }
}

// --- a contest ---------------------------------------------------------------------------------

typedef struct contest {
    int num;
    bool in[CANDIDATES];
    float us[CANDIDATES];   // best run so far; 0: failed
    float more[CANDIDATES]; // us that belong to a run and are not measured
    // What the kernel in front has just made, in the L2 where a step finds it.
    const void *warm[2];
    size_t warm_bytes;
} contest;

static void read_all(const tuner *t, const void *p, size_t bytes)
{
    const msgl_cuda_device *d = msgl__cuda_device(t->x);
    read_through<<<2 * d->sm_count, 512, 0, d->stream>>>((const uint4 *)p, bytes / sizeof(uint4),
                                                         t->sink);
}

static void prepare(const tuner *t, const contest *c)
{
    read_all(t, t->other, t->other_bytes);
    for (const void *p : c->warm) {
        if (p != NULL && c->warm_bytes < msgl__cuda_device(t->x)->l2_bytes / 4) {
            read_all(t, p, c->warm_bytes);
        }
    }
}

// Runs every candidate that is not slower than limit once, and keeps its best time.
template <typename RUN> static void run_round(tuner *t, contest *c, float limit, RUN run)
{
    const msgl_cuda_device *d = msgl__cuda_device(t->x);
    bool ran[CANDIDATES] = {false};
    for (int i = 0; i < c->num; i++) {
        if (!c->in[i] || c->us[i] > limit) continue;
        prepare(t, c);
        MSGL_CUDA_TRY(t->x, cudaEventRecord(t->events[2 * i], d->stream));
        ran[i] = run(i);
        MSGL_CUDA_TRY(t->x, cudaEventRecord(t->events[2 * i + 1], d->stream));
    }
    MSGL_CUDA_TRY(t->x, cudaStreamSynchronize(d->stream));
    for (int i = 0; i < c->num; i++) {
        float ms = 0;
        if (!ran[i]) continue;
        MSGL_CUDA_TRY(t->x, cudaEventElapsedTime(&ms, t->events[2 * i], t->events[2 * i + 1]));
        const float us = 1000 * ms + c->more[i];
        if (c->us[i] == 0 || us < c->us[i]) c->us[i] = us;
    }
}

static int best_of(const contest *c)
{
    int best = -1;
    for (int i = 0; i < c->num; i++) {
        if (c->us[i] > 0 && (best < 0 || c->us[i] < c->us[best])) best = i;
    }
    return best;
}

// The winner, `first` unless another one is clearly faster; -1: none ran. run(i) queues one run.
template <typename RUN> static int run_contest(tuner *t, contest *c, int first, RUN run)
{
    msgl_cuda_device *d = msgl__cuda_device(t->x);
    open_events(t);
    // The clocks rise with the first work after a pause.
    for (int i = 0; i < WARM_RUNS && !d->blas->warm; i++) prepare(t, c);
    d->blas->warm = true;
    run_round(t, c, INFINITY, run); // loads the kernels, which these times contain
    memset(c->us, 0, sizeof c->us);
    run_round(t, c, INFINITY, run);
    int best = best_of(c);
    for (int i = 0; i <= MORE_RUNS && best >= 0; i++) {
        if (i > 0 && c->us[best] >= LONG_US) break;
        run_round(t, c, (i == 0 ? DROP : NEAR) * c->us[best], run);
        best = best_of(c);
    }
    if (best < 0 || t->x->status != 0) return -1;
    return c->us[first] > 0 && c->us[best] > CLEARLY * c->us[first] ? first : best;
}

// --- activations -------------------------------------------------------------------------------

// What a product's calls are measured with.
typedef enum tune_state { PLAIN, NORM_STATS, ROPE, NORM_STATS_ROPE, STATES } tune_state;

typedef struct buffers { // all NULL: for keys, which look at the alignment only
    void *in, *out, *scaled, *behind, *cos_sin, *k_pool, *v_pool; // behind: its output
    float *sums;
    int32_t *slots;
} buffers;

typedef struct tuned_calls {
    int num;
    msgl_linear_call call[MAX_CALLS];
    msgl_norm_stats norm_stats[MAX_CALLS];
    bool pairs; // with the calls behind them
    msgl_linear_call behind[MAX_CALLS];
    msgl_rope_call rope_call;
    const msgl_rope_call *rope; // NULL or &rope_call
} tuned_calls;

static size_t columns_of(const msgl_linear_call *c)
{
    return (size_t)(c->gated ? c->w->n / 2 : c->w->n);
}

// The call with activations and norm_stats, which may be empty.
static msgl_linear_call call_of(const msgl_linear_call *shape, int32_t m, const void *in, void *out,
                                msgl_norm_stats *norm_stats)
{
    msgl_linear_call c = *shape;
    c.m = m;
    c.in = in;
    c.ld_in = (size_t)c.w->k;
    c.out = out;
    c.ld_out = columns_of(&c);
    c.norm_stats = norm_stats;
    return c;
}

// What a call with a rank's part of a sum is like in a step; here nobody is there to add it to.
static msgl_gemm_key key_of(const tuner *t, const msgl_linear_call *c, const msgl_rope_call *rope)
{
    static const msgl_peer_sum nobody = {};
    msgl_linear_call as_run = *c;
    if (t->p->summed) as_run.sum = &nobody;
    return msgl__cuda_call_key(t->x, &as_run, rope);
}

// Whether some kernel can do the call with the norm_stats of its input.
static bool takes_norm_stats(const tuner *t, const msgl_linear_call *shape, int32_t m)
{
    if (shape->norm == NULL || m > MSGL_FUSED_NORM_ROWS) return false;
    msgl_norm_stats norm_stats = {NULL, NULL, 1, NULL, shape->norm, m};
    const msgl_linear_call c = call_of(shape, m, NULL, NULL, &norm_stats);
    for (int i = 0; i < MSGL_PRODUCT_KERNELS; i++) {
        const msgl_product_kernel *k = &msgl__cuda_product_kernels[i];
        if (k->fuses_norm && k->can(t->x, &c, NULL)) return true;
    }
    return false;
}

// Calls of m rows; false where there are none of this state. Without a kernel that takes norm_stats
// the choice is that of calls without it.
static bool set_calls(const tuner *t, int32_t m, tune_state state, const buffers *b, tuned_calls *s)
{
    const msgl_tune_product *p = t->p, *behind = p->behind;
    const bool has_stats = state == NORM_STATS || state == NORM_STATS_ROPE, rope = state >= ROPE;
    memset(s, 0, sizeof *s);
    if ((has_stats && !takes_norm_stats(t, p->calls, m)) || (rope && p->rope == NULL)) return false;
    s->num = p->num_calls < MAX_CALLS ? p->num_calls : MAX_CALLS;
    s->pairs =
        p->calls->next_norm != NULL && behind != NULL && takes_norm_stats(t, behind->calls, m);
    for (int i = 0; i < s->num; i++) {
        msgl_linear_call *c = &s->call[i];
        msgl_norm_stats *norm_stats = &s->norm_stats[i];
        *c = call_of(&p->calls[i], m, b->in, b->out, NULL);
        *norm_stats = {b->scaled, b->sums, has_stats ? c->w->k / STATS_COLUMNS : 0,
                       c->in,     c->norm, m};
        if (m > MSGL_FUSED_NORM_ROWS)
            c->next_norm = NULL; // a step of so many rows has no norm_stats
        if (has_stats || c->next_norm != NULL) c->norm_stats = norm_stats;
        if (!s->pairs) continue;
        s->behind[i] =
            call_of(&behind->calls[i % behind->num_calls], m, b->out, b->behind, norm_stats);
        s->behind[i].norm = c->next_norm;
    }
    if (rope) {
        s->rope_call = *p->rope;
        s->rope_call.qkv = b->out;
        s->rope_call.ld = columns_of(p->calls);
        s->rope_call.tokens = m;
        s->rope_call.cos_sin = (const float *)b->cos_sin;
        s->rope_call.k_pool = b->k_pool;
        s->rope_call.v_pool = b->v_pool;
        s->rope_call.slots = b->slots;
        s->rope = &s->rope_call;
    }
    return true;
}

static void fill(const tuner *t, msgl_dtype type, void *p, size_t n)
{
    const msgl_cuda_device *d = msgl__cuda_device(t->x);
    const int blocks = 4 * d->sm_count;
    if (type == MSGL_F32) fill_noise<<<blocks, 512, 0, d->stream>>>((float *)p, n);
    if (type == MSGL_F16) fill_noise<<<blocks, 512, 0, d->stream>>>((__half *)p, n);
    if (type == MSGL_BF16) fill_noise<<<blocks, 512, 0, d->stream>>>((__nv_bfloat16 *)p, n);
    MSGL_CUDA_LAUNCHED(t->x);
}

// Room for m rows, inputs filled; false where it does not fit.
static bool place(const tuner *t, int32_t m, buffers *b)
{
    const msgl_linear_call *c = t->p->calls;
    const msgl_rope_call *r = t->p->rope;
    const cudaStream_t stream = msgl__cuda_stream(t->x);
    const size_t rows = (size_t)m, element = msgl__dtype_size(t->x->act), k = (size_t)c->w->k;
    const size_t out = rows * columns_of(c) * (c->f32_out ? sizeof(float) : element);
    // norm_stats are of the input, or of what is added to.
    const size_t stats_columns = m > MSGL_FUSED_NORM_ROWS ? 0 : c->norm != NULL ? k : columns_of(c);
    const size_t sums = (stats_columns / MSGL_NORM_STATS_COLUMNS + 1) * rows * sizeof(float);
    msgl__arena_reset(t->memory);
    b->in = msgl__arena_alloc(t->memory, rows * k * element);
    b->out = msgl__arena_alloc(t->memory, out);
    b->scaled = msgl__arena_alloc(t->memory, rows * stats_columns * element);
    b->sums = (float *)msgl__arena_alloc(t->memory, sums);
    if (b->in == NULL || b->out == NULL || b->scaled == NULL || b->sums == NULL) return false;
    fill(t, t->x->act, b->in, rows * k);
    fill(t, t->x->act, b->scaled, rows * stats_columns);
    MSGL_CUDA_TRY(t->x, cudaMemsetAsync(b->out, 0, out, stream));
    MSGL_CUDA_TRY(t->x, cudaMemsetAsync(b->sums, 0, sums, stream));
    if (t->p->behind != NULL && m <= MSGL_FUSED_NORM_ROWS) {
        const size_t columns = columns_of(t->p->behind->calls);
        b->behind = msgl__arena_alloc(t->memory, rows * columns * element);
        if (b->behind == NULL) return false;
    }
    if (r == NULL) return true;
    const size_t angles = rows * (size_t)r->half * 2;
    const size_t kv = rows * (size_t)r->num_kv_heads * (size_t)r->head_dim;
    b->cos_sin = msgl__arena_alloc(t->memory, angles * sizeof(float));
    b->slots = (int32_t *)msgl__arena_alloc(t->memory, rows * sizeof(int32_t));
    b->k_pool = msgl__arena_alloc(t->memory, kv * msgl__dtype_size(r->kv_dtype));
    b->v_pool = msgl__arena_alloc(t->memory, kv * msgl__dtype_size(r->kv_dtype));
    if (b->cos_sin == NULL || b->slots == NULL || b->k_pool == NULL || b->v_pool == NULL) {
        return false;
    }
    fill(t, MSGL_F32, b->cos_sin, angles);
    count_up<<<((unsigned)m + 255) / 256, 256, 0, stream>>>(b->slots, m);
    MSGL_CUDA_LAUNCHED(t->x);
    // Kernels may read a step's inputs, as these are, before they wait for those in front.
    MSGL_CUDA_TRY(t->x, cudaStreamSynchronize(stream));
    return true;
}

// --- the library's algorithms ------------------------------------------------------------------

static bool is_measured(const tuner *t, const msgl_gemm_key *key)
{
    const msgl_gemm_choice *c = msgl__choices_find(&msgl__cuda_device(t->x)->blas->choices, key);
    return c != NULL && c->source == MSGL_GEMM_MEASURED;
}

static void keep(const tuner *t, const msgl_gemm_choice *c)
{
    if (!msgl__choices_put(&msgl__cuda_device(t->x)->blas->choices, c)) t->x->status = MSGL_ENOMEM;
}

// The library's part of a call; any memory serves as its bias.
static msgl_gemm_product product_of(const tuner *t, const msgl_linear_call *c)
{
    msgl_gemm_product p = msgl__cuda_library_product(t->x, c);
    if (c->bias != NULL) p.bias = msgl__cuda_device(t->x)->blas->workspace;
    return p;
}

// p: the call's product.
static void measure_library(tuner *t, const msgl_linear_call *call, msgl_gemm_product p)
{
    const msgl_cuda_device *d = msgl__cuda_device(t->x);
    const bool large = (double)call->m * call->w->n * call->w->k > 1e11;
    cublasLtMatmulHeuristicResult_t proposed[CANDIDATES];
    msgl_gemm_desc desc;
    const size_t used = t->x->scratch->used, element = msgl__dtype_size(t->x->act);
    if (call->gated) {
        p.out = msgl__arena_alloc(t->x->scratch, (size_t)p.m * p.ld_out * element);
    }
    t->x->scratch->used = used;
    if (p.out == NULL || msgl__cuda_gemm_describe(&p, &desc) != CUBLAS_STATUS_SUCCESS) return;
    msgl_gemm_choice choice = {msgl__cuda_gemm_key(d, &p)};
    contest c = {};
    c.num = msgl__cuda_gemm_propose(d, &choice.key, &desc, large ? LONG_CANDIDATES : CANDIDATES,
                                    proposed);
    for (int i = 0; i < c.num; i++) c.in[i] = true;
    c.warm[0] = p.in;
    c.warm_bytes = (size_t)p.m * p.ld_in * (p.scaling != MSGL_GEMM_UNSCALED ? 1 : element);
    const int best = run_contest(t, &c, 0, [&](int i) {
        return msgl__cuda_gemm_launch(d, &p, &desc, &proposed[i].algo) == CUBLAS_STATUS_SUCCESS;
    });
    if (best < 0) return;
    memcpy(choice.algo, proposed[best].algo.data, sizeof choice.algo);
    choice.us = c.us[best];
    choice.source = MSGL_GEMM_MEASURED;
    keep(t, &choice);
}

// --- kernels -----------------------------------------------------------------------------------

// A graph has as many calls as a measurement needs: weights beyond the L2, or some time.
static int calls_of_graph(const tuner *t, const tuned_calls *s)
{
    const msgl_weight *w = s->call[0].w;
    const msgl_weight *behind = s->pairs ? s->behind[0].w : NULL;
    const double l2 = (double)msgl__cuda_device(t->x)->l2_bytes;
    const double elements =
        (double)w->n * w->k + (behind != NULL ? (double)behind->n * behind->k : 0);
    const double by_bytes = 4 * l2 / (elements * (double)msgl__dtype_size(w->format->dtype));
    const double by_work = 2e10 / (elements * s->call[0].m);
    const double least = by_bytes < by_work ? by_bytes : by_work;
    const int num = least < 2 ? 2 : least < MAX_CALLS ? (int)least : MAX_CALLS;
    return num < s->num ? num : s->num;
}

// Whether a kernel can do the calls at all. Of those that do not add ranks' parts the library's
// stands for all.
static bool can_do(const tuner *t, const tuned_calls *s, int kernel)
{
    const msgl_product_kernel *k = &msgl__cuda_product_kernels[kernel];
    if (t->p->summed && !k->sums && kernel != t->library) return false;
    return k->can(t->x, &s->call[0], s->rope);
}

static bool issue(const tuner *t, tuned_calls *s, int i, int kernel)
{
    msgl_linear_call c = s->call[i];
    if (c.next_norm != NULL) s->norm_stats[i].num_tiles = 0;
    if (t->p->summed && kernel == t->library) {
        // The sum behind it adds to the residual stream, and leaves norm_stats.
        c.accumulate = false;
        if (c.next_norm != NULL) msgl__note_norm_stats(&c, SUM_TILES);
        c.next_norm = NULL;
    }
    const bool done = msgl__cuda_run_product(t->x, kernel, &c, s->rope);
    if (done && s->pairs) msgl__cuda_linear(t->x, &s->behind[i]);
    return done;
}

// The calls by one kernel, or NULL where it cannot do them. The first one by itself loads the
// kernel, which a capture may not.
static msgl_graph *record(const tuner *t, tuned_calls *s, int num, int kernel)
{
    msgl_device *d = t->x->device;
    msgl_err err;
    if (!can_do(t, s, kernel) || !issue(t, s, 0, kernel) || t->x->status != 0) return NULL;
    d->ops->graph_begin(d);
    bool done = true;
    for (int i = 0; i < num; i++) done = issue(t, s, i, kernel) && done;
    msgl_graph *g = d->ops->graph_end(d, &err);
    if (g == NULL) t->x->status = MSGL_EDEVICE;
    if (g == NULL && d->fault.code == 0) d->fault = err;
    if (done || g == NULL) return g;
    d->ops->graph_destroy(d, g);
    return NULL;
}

static void measure_kernels(tuner *t, const buffers *b, tuned_calls *s)
{
    const msgl_linear_call *call = &s->call[0];
    const msgl_cuda_device *d = msgl__cuda_device(t->x);
    const int num = calls_of_graph(t, s);
    msgl_graph *graphs[MSGL_PRODUCT_KERNELS] = {};
    msgl_gemm_choice choice = {key_of(t, call, s->rope)};
    contest c = {};
    int candidates = 0;
    c.num = MSGL_PRODUCT_KERNELS;
    for (int i = 0; i < c.num; i++) {
        if (!can_do(t, s, i)) continue;
        candidates++;
        choice.kernel = i;
    }
    if (candidates > 1) {
        const int first =
            t->p->summed ? t->library : msgl__cuda_default_product(t->x, call, s->rope, 0);
        for (int i = 0; i < c.num && t->x->status == 0; i++) {
            graphs[i] = record(t, s, num, i);
            c.in[i] = graphs[i] != NULL;
        }
        if (t->p->summed) c.more[t->library] = SUM_US * (float)num;
        c.warm[0] = b->in;
        c.warm[1] = call->norm != NULL && call->norm_stats != NULL ? b->scaled : NULL;
        c.warm_bytes = (size_t)call->m * (size_t)call->w->k * msgl__dtype_size(t->x->act);
        const int best = t->x->status != 0 ? -1 : run_contest(t, &c, first, [&](int i) {
            d->base.ops->graph_launch(t->x->device, graphs[i]);
            return true;
        });
        for (msgl_graph *g : graphs) d->base.ops->graph_destroy(t->x->device, g);
        if (best < 0) return;
        for (float &us : c.us) us /= (float)num;
        choice.kernel = best;
        choice.us = c.us[best];
        const msgl_tune_result r = {choice.key, call->m, c.us, s->pairs, first, best};
        if (d->blas->report != NULL) d->blas->report(d->blas->report_ctx, &r);
    }
    choice.source = MSGL_GEMM_MEASURED;
    keep(t, &choice);
}

// --- tune --------------------------------------------------------------------------------------

// What is not known of calls of m rows. Says so before anything is placed: mostly there is nothing.
static bool find_missing(const tuner *t, int32_t m, bool *library, bool missing[STATES])
{
    const msgl_cuda_device *d = msgl__cuda_device(t->x);
    const buffers none = {};
    bool any = false;
    for (int state = PLAIN; state < STATES; state++) {
        tuned_calls s;
        missing[state] = false;
        if (!set_calls(t, m, (tune_state)state, &none, &s)) continue;
        msgl_gemm_key key = key_of(t, &s.call[0], s.rope);
        missing[state] = !is_measured(t, &key);
        any |= missing[state];
        if (state != PLAIN || t->p->summed) continue;
        const msgl_gemm_product p = product_of(t, &s.call[0]);
        key = msgl__cuda_gemm_key(d, &p);
        *library = !is_measured(t, &key);
        any |= *library;
    }
    return any;
}

// Of FP8 many rows go to the library, whose algorithms alone are measured.
static bool tune_fp8(tuner *t, int32_t m)
{
    const size_t used = t->x->scratch->used;
    buffers b = {};
    tuned_calls s;
    if (!set_calls(t, m, PLAIN, &b, &s)) return false;
    msgl_gemm_product p = product_of(t, &s.call[0]);
    if (!msgl__cuda_fp8_product(t->x, &s.call[0], true, &p)) return false;
    const msgl_gemm_key key = msgl__cuda_gemm_key(msgl__cuda_device(t->x), &p);
    if (is_measured(t, &key) || !place(t, m, &b) || !set_calls(t, m, PLAIN, &b, &s)) return false;
    p = product_of(t, &s.call[0]);
    const bool placed = msgl__cuda_fp8_product(t->x, &s.call[0], false, &p);
    if (placed) measure_library(t, &s.call[0], p);
    t->x->scratch->used = used;
    return placed;
}

void msgl__cuda_gemm_tune(msgl_exec *x, msgl_arena *memory, const msgl_tune_product *p,
                          const int32_t *ms, int32_t num)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    // One algorithm for every m; or one way, whose weights are expanded.
    msgl_codes_row l;
    const bool coded = p->calls->w->num_parts == 0 && msgl__fp8_weight(p->calls->w, &l);
    if (d->deterministic || !(coded || msgl__weight_is(p->calls->w, x->act))) return;
    tuner t = tuner_of(x, memory, p);
    bool measured = false;
    for (int32_t i = 0; i < num && coded && x->status == 0; i++) measured |= tune_fp8(&t, ms[i]);
    if (coded) num = 0;
    for (int32_t i = 0; i < num && x->status == 0; i++) {
        bool library = false, missing[STATES];
        buffers b = {};
        tuned_calls s;
        if (!find_missing(&t, ms[i], &library, missing) || !place(&t, ms[i], &b)) continue;
        measured = true;
        if (set_calls(&t, ms[i], PLAIN, &b, &s) && library) {
            measure_library(&t, &s.call[0], product_of(&t, &s.call[0]));
        }
        for (int state = PLAIN; state < STATES && x->status == 0; state++) {
            if (missing[state] && set_calls(&t, ms[i], (tune_state)state, &b, &s)) {
                measure_kernels(&t, &b, &s);
            }
        }
    }
    close_events(&t);
    if (measured) msgl__cuda_gemm_save(d);
}
