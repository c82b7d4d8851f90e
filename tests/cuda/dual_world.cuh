// SPDX-License-Identifier: Apache-2.0
//
// A random batch of dual chunk attention on the GPU, and what it is exactly.
#ifndef MSGL_TESTS_CUDA_DUAL_WORLD_CUH
#define MSGL_TESTS_CUDA_DUAL_WORLD_CUH

#include "tests/cuda/attn_world.cuh"
#include "tests/cuda/family.cuh"

#include "cuda/attn/decode.h"
#include "cuda/attn/dual.h"

// A batch whose tokens have three queries each: attn_world has them as three times the heads.
typedef struct dual_world {
    attn_world w;
    int32_t len;                // of a chunk
    msgl_dual_ranges to;        // for answers, as `ranges`
    float *lse;                 // of the ranges
    void *results;              //
    msgl_cuda_attn_call ranges; // all ranges as requests
} dual_world;

static inline void dual_open(dual_world *d, attn_rng *rng, msgl_dtype dtype, int batch,
                             const int32_t *q, const int32_t *k, int q_heads, int kv_heads, int dim,
                             int page, int32_t len)
{
    memset(d, 0, sizeof *d);
    attn_world_make(&d->w, rng, dtype, batch, q, k, MSGL_DUAL_QUERIES * q_heads, kv_heads, dim,
                    page);
    d->len = len;
    msgl_cuda_attn_call *c = &d->w.call;
    c->num_q_heads = q_heads;
    // Nothing between tokens.
    const size_t row = MSGL_DUAL_QUERIES * (size_t)(q_heads * dim) * 2, gap_row = c->ld_q * 2;
    d->w.q_bytes = (size_t)c->total_q * row;
    for (int t = 0; t < c->total_q; t++) {
        memmove((char *)d->w.q + (size_t)t * row, (char *)d->w.q + (size_t)t * gap_row, row);
    }
    device_write(d->w.q_dev, d->w.q, d->w.q_bytes);
    c->ld_q = row / 2;
    const size_t ranges = (size_t)batch * MSGL_DUAL_QUERIES, rows = ranges * (size_t)q_heads;
    d->to.seqlens_k = (int32_t *)device_copy(NULL, ranges * 4);
    d->to.firsts = (int32_t *)device_copy(NULL, ranges * 4);
    d->lse = (float *)device_copy(NULL, rows * 4);
    d->results = device_copy(NULL, rows * (size_t)dim * 2);
    const size_t bytes =
        msgl__fa_decode_workspace(q_heads, kv_heads, dim, (int32_t)ranges, c->deterministic);
    CUDA_OK(cudaMalloc(&c->workspace, bytes));
    CUDA_OK(cudaMemset(c->workspace, 0, bytes));
    d->ranges = *c;
    d->ranges.ld_q = (size_t)q_heads * (size_t)dim;
    d->ranges.out = d->results;
    d->ranges.ld_out = d->ranges.ld_q;
    d->ranges.out_scale = 1;
    d->ranges.batch = d->ranges.total_q = (int32_t)ranges;
    d->ranges.seqlens_k = d->to.seqlens_k;
    d->ranges.table_rows = d->to.firsts;
    d->ranges.table_stride = 1;
    d->ranges.lse = d->lse;
}

static inline void dual_close(dual_world *d)
{
    CUDA_OK(cudaFree(d->w.call.workspace));
    CUDA_OK(cudaFree(d->to.seqlens_k));
    CUDA_OK(cudaFree(d->to.firsts));
    CUDA_OK(cudaFree(d->lse));
    CUDA_OK(cudaFree(d->results));
    attn_world_free(&d->w);
}

// Query token t of request req, head h: o [dim]. seen [keys]: which it sees of those up to its own;
// NULL: all.
static inline void dual_exact(const dual_world *d, int req, int t, int h, const bool *seen,
                              double *o)
{
    const attn_world *w = &d->w;
    const msgl_cuda_attn_call *c = &w->call;
    const int dim = c->head_dim, kv_head = h / (c->num_q_heads / c->num_kv_heads);
    const int pos = w->k_lens[req] - w->q_lens[req] + t;
    const float *q = w->qf + ((size_t)w->cu_q[req] + (size_t)t) * c->ld_q + (size_t)(h * dim);
    const int32_t *slots = w->slots + (size_t)w->rows[req] * c->table_stride;
    double *s = (double *)malloc((size_t)(pos + 1) * sizeof *s), m = -INFINITY, sum = 0;
    for (int i = 0; i < dim; i++) o[i] = 0;
    for (int p = 0; p <= pos; p++) {
        const int apart = pos / d->len - p / d->len, query = apart < 2 ? apart : 2;
        const float *k = w->kf + (size_t)((slots[p] * c->num_kv_heads + kv_head) * dim);
        s[p] = 0;
        for (int i = 0; i < dim; i++) {
            s[p] += (double)q[query * c->num_q_heads * dim + i] * (double)k[i];
        }
        s[p] = seen == NULL || seen[p] ? s[p] * (double)c->scale : -INFINITY;
        m = fmax(m, s[p]);
    }
    for (int p = 0; p <= pos; p++) {
        const float *v = w->vf + (size_t)((slots[p] * c->num_kv_heads + kv_head) * dim);
        s[p] = exp(s[p] - m);
        sum += s[p];
        for (int i = 0; i < dim; i++) o[i] += s[p] * (double)v[i];
    }
    for (int i = 0; i < dim; i++) o[i] /= sum;
    free(s);
}

static inline void decode_world(attn_world *w)
{
    if (w->qf != NULL) return;
    w->qf = attn_decode(w->call.dtype, w->q, w->q_bytes);
    w->kf = attn_decode(w->call.dtype, w->k, w->kv_bytes);
    w->vf = attn_decode(w->call.dtype, w->v, w->kv_bytes);
}

static inline double allowed_error(msgl_dtype dtype)
{
    return dtype == MSGL_BF16 ? 1e-2 : 1.5e-3;
}

// Makes a world of one answer a prompt of all its tokens, with the same queries.
static inline void make_prompt(dual_world *d)
{
    attn_world *w = &d->w;
    const int32_t cu[2] = {0, w->k_lens[0]};
    const size_t rows = (size_t)cu[1], q_row = w->q_bytes, out_row = w->out_bytes;
    char *q = (char *)device_copy(NULL, rows * q_row);
    CUDA_OK(cudaMemcpy(q, w->q_dev, q_row, cudaMemcpyDeviceToDevice));
    for (size_t n = 1; n < rows; n *= 2) {
        const size_t more = n < rows - n ? n : rows - n;
        CUDA_OK(cudaMemcpy(q + n * q_row, q, more * q_row, cudaMemcpyDeviceToDevice));
    }
    CUDA_OK(cudaFree(w->q_dev));
    CUDA_OK(cudaFree(w->out_dev));
    w->call.q = w->q_dev = q;
    w->call.out = w->out_dev = device_copy(NULL, rows * out_row);
    w->call.lse = NULL;
    w->call.total_q = w->call.max_seqlen_q = cu[1];
    device_write(w->cu_dev, cu, sizeof cu);
}

template <typename QUEUE> static inline double time_us(int times, QUEUE queue)
{
    cudaEvent_t from, to;
    float ms;
    CUDA_OK(cudaEventCreate(&from));
    CUDA_OK(cudaEventCreate(&to));
    queue();
    CUDA_OK(cudaEventRecord(from));
    for (int i = 0; i < times; i++) queue();
    CUDA_OK(cudaEventRecord(to));
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaEventElapsedTime(&ms, from, to));
    CUDA_OK(cudaEventDestroy(from));
    CUDA_OK(cudaEventDestroy(to));
    return (double)ms * 1000 / times;
}

#endif
