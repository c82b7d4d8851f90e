// SPDX-License-Identifier: Apache-2.0
//
// Which of the library's proposals is fastest. A decode step reads every weight of the model
// between two uses of one, so that a product must be timed with its weights outside the L2: before
// each run something else is read through it.
#include <math.h>
#include <string.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernel/cuda/gemm/gemm.h"
#include "kernel/cuda/gemm/lt.cuh"
#include "kernel/cuda/gemm/wide_sm90.h"

enum {
    CANDIDATES = 12,
    LONG_CANDIDATES = 5,
    ALL_RUNS = 2,  // of every candidate
    MORE_RUNS = 4, // of those near the best
    WARM_RUNS = 1200,
};

static const float LONG_US = 400.0f; // longer runs are not repeated more: there is little noise
static const float NEAR = 1.15f;     // of the best time
// The library's first proposal stays unless another one is this much faster.
static const float CLEARLY = 0.97f;

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
    const uint4 *other; // read to push the weights out of the L2
    size_t other_bytes;
    uint32_t *sink;
    cudaEvent_t events[2 * CANDIDATES];
    cublasLtMatmulHeuristicResult_t proposed[CANDIDATES];
    float us[CANDIDATES]; // best run so far; 0: failed
    int num;
} tuner;

static bool open_tuner(tuner *t, msgl_exec *x)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const msgl_arena *scratch = x->scratch;
    memset(t, 0, sizeof *t);
    t->x = x;
    t->sink = (uint32_t *)d->blas->workspace;
    t->other = (const uint4 *)d->blas->workspace;
    t->other_bytes = d->blas->workspace_bytes;
    if (scratch->size > t->other_bytes) {
        t->other = (const uint4 *)scratch->base;
        t->other_bytes = scratch->size < 2 * d->l2_bytes ? scratch->size : 2 * d->l2_bytes;
    }
    for (int i = 0; i < 2 * CANDIDATES; i++) {
        MSGL_CUDA_TRY(x, cudaEventCreate(&t->events[i]));
    }
    return x->status == 0;
}

static void close_tuner(tuner *t)
{
    for (int i = 0; i < 2 * CANDIDATES; i++) {
        if (t->events[i] != NULL) (void)cudaEventDestroy(t->events[i]);
    }
}

static void read_all(const tuner *t, const void *p, size_t bytes)
{
    const msgl_cuda_device *d = msgl__cuda_device(t->x);
    read_through<<<2 * d->sm_count, 512, 0, d->stream>>>((const uint4 *)p, bytes / sizeof(uint4),
                                                         t->sink);
}

// As a step finds it: the weights in memory, what the kernel in front has just made in the L2.
static void prepare(const tuner *t, const msgl_gemm_product *p)
{
    const msgl_dtype type = p->w->dtype;
    const size_t in = (size_t)p->m * p->ld_in * msgl__dtype_size(type);
    read_all(t, t->other, t->other_bytes);
    if (in < msgl__cuda_device(t->x)->l2_bytes / 4) read_all(t, p->in, in);
}

// Runs every candidate that is not slower than limit once, and keeps its best time.
static void run_candidates(tuner *t, const msgl_gemm_product *p, msgl_gemm_desc *desc, float limit)
{
    const msgl_cuda_device *d = msgl__cuda_device(t->x);
    bool ran[CANDIDATES] = {false};
    for (int i = 0; i < t->num; i++) {
        if (t->us[i] > limit) continue;
        prepare(t, p);
        MSGL_CUDA_TRY(t->x, cudaEventRecord(t->events[2 * i], d->stream));
        ran[i] = msgl__cuda_gemm_launch(d, p, desc, &t->proposed[i].algo) == CUBLAS_STATUS_SUCCESS;
        MSGL_CUDA_TRY(t->x, cudaEventRecord(t->events[2 * i + 1], d->stream));
    }
    MSGL_CUDA_TRY(t->x, cudaStreamSynchronize(d->stream));
    for (int i = 0; i < t->num; i++) {
        float ms = 0;
        if (!ran[i]) continue;
        MSGL_CUDA_TRY(t->x, cudaEventElapsedTime(&ms, t->events[2 * i], t->events[2 * i + 1]));
        if (t->us[i] == 0 || 1000 * ms < t->us[i]) t->us[i] = 1000 * ms;
    }
}

static int best_of(const tuner *t)
{
    int best = -1;
    for (int i = 0; i < t->num; i++) {
        if (t->us[i] > 0 && (best < 0 || t->us[i] < t->us[best])) best = i;
    }
    return best;
}

static bool measure(tuner *t, const msgl_gemm_product *p, msgl_gemm_choice *c)
{
    const msgl_cuda_device *d = msgl__cuda_device(t->x);
    const msgl_gemm_key key = msgl__cuda_gemm_key(d, p);
    const bool large = (double)p->m * p->w->n * p->w->k > 1e11;
    msgl_gemm_desc desc;
    if (msgl__cuda_gemm_describe(p, &desc) != CUBLAS_STATUS_SUCCESS) return false;
    t->num =
        msgl__cuda_gemm_propose(d, &key, &desc, large ? LONG_CANDIDATES : CANDIDATES, t->proposed);
    // The clocks rise with the first work after a pause.
    for (int i = 0; i < WARM_RUNS && !d->blas->warm; i++) prepare(t, p);
    d->blas->warm = true;
    memset(t->us, 0, sizeof t->us);
    run_candidates(t, p, &desc, 0); // loads the kernels, which these times contain
    memset(t->us, 0, sizeof t->us);
    for (int run = 0; run < ALL_RUNS; run++) run_candidates(t, p, &desc, INFINITY);
    int best = best_of(t);
    for (int run = 0; run < MORE_RUNS && best >= 0 && t->us[best] < LONG_US; run++) {
        run_candidates(t, p, &desc, NEAR * t->us[best]);
        best = best_of(t);
    }
    if (best < 0 || t->x->status != 0) return false;
    if (t->us[0] > 0 && t->us[best] > CLEARLY * t->us[0]) best = 0;
    if (c->source == MSGL_GEMM_NONE) d->blas->count++;
    c->key = key;
    c->algo = t->proposed[best].algo;
    c->us = t->us[best];
    c->source = MSGL_GEMM_MEASURED;
    return true;
}

// An input of m rows and an output in scratch; false where they do not fit.
static bool place(msgl_exec *x, const msgl_linear_call *shape, int32_t m, msgl_gemm_product *p)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const msgl_dtype type = shape->w->dtype;
    memset(p, 0, sizeof *p);
    p->w = shape->w;
    p->m = m;
    p->ld_in = (size_t)shape->w->k;
    p->ld_out = (size_t)shape->w->n;
    p->out_type = shape->f32_out ? MSGL_F32 : x->act;
    p->accumulate = shape->accumulate;
    const size_t in = (size_t)m * p->ld_in, out = (size_t)m * p->ld_out;
    void *data = msgl__arena_alloc(x->scratch, in * msgl__dtype_size(type));
    p->out = msgl__arena_alloc(x->scratch, out * msgl__dtype_size(p->out_type));
    p->in = data;
    if (shape->bias != NULL) p->bias = d->blas->workspace;
    if (data == NULL || p->out == NULL) return false;
    const int blocks = 4 * d->sm_count;
    if (type == MSGL_F32) fill_noise<<<blocks, 512, 0, d->stream>>>((float *)data, in);
    if (type == MSGL_F16) fill_noise<<<blocks, 512, 0, d->stream>>>((__half *)data, in);
    if (type == MSGL_BF16) fill_noise<<<blocks, 512, 0, d->stream>>>((__nv_bfloat16 *)data, in);
    MSGL_CUDA_LAUNCHED(x);
    MSGL_CUDA_TRY(x, cudaMemsetAsync(p->out, 0, out * msgl__dtype_size(p->out_type), d->stream));
    return true;
}

void msgl__cuda_gemm_tune(msgl_exec *x, const msgl_linear_call *shape, const int32_t *ms,
                          int32_t num)
{
    msgl_cuda_device *d = msgl__cuda_device(x);
    if (d->deterministic) return; // its algorithm is the same for every m
    tuner t;
    bool measured = false;
    if (open_tuner(&t, x)) {
        for (int32_t i = 0; i < num && x->status == 0; i++) {
            const size_t used = x->scratch->used;
            msgl_gemm_product p;
            const bool other = msgl__cuda_wide_sm90_wins(x, shape, NULL, ms[i]);
            if (!other && place(x, shape, ms[i], &p)) {
                const msgl_gemm_key key = msgl__cuda_gemm_key(d, &p);
                msgl_gemm_choice *c = msgl__cuda_gemm_slot(d->blas, &key);
                if (c != NULL && c->source != MSGL_GEMM_MEASURED && measure(&t, &p, c)) {
                    measured = true;
                }
            }
            x->scratch->used = used;
        }
    }
    close_tuner(&t);
    if (measured) msgl__cuda_gemm_cache_save(d->blas);
}
