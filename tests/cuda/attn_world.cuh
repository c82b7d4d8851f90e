// SPDX-License-Identifier: Apache-2.0
//
// A random paged batch on the GPU and what exact attention (f64, on the host) makes of it. dtype is
// that of the pool; with E4M3 queries and outputs are bf16. Slots
// that no request owns hold NaN, and so do the outputs before each launch; table entries behind a
// request's pages are pages of such slots.
#ifndef MSGL_TESTS_CUDA_ATTN_WORLD_CUH
#define MSGL_TESTS_CUDA_ATTN_WORLD_CUH

#include <math.h>
#include <string.h>

extern "C" {
#include "core/dtype.h"
}
#include "cuda/attn/call.h"
#include "tests/cuda/cuda_check.cuh"

enum { ATTN_MAX_DIM = 512 }; // of a head here

typedef struct attn_rng {
    uint64_t state;
} attn_rng;

static inline uint64_t attn_next(attn_rng *r)
{
    return splitmix64(&r->state);
}

static inline int attn_range(attn_rng *r, int lo, int hi) // inclusive
{
    return lo + (int)(attn_next(r) % (uint64_t)(hi - lo + 1));
}

static inline float attn_uniform(attn_rng *r) // [-1, 1)
{
    return (float)(int32_t)(attn_next(r) >> 32) * 4.656612873077393e-10f;
}

static inline uint16_t attn_encode(msgl_dtype t, float f)
{
    if (t == MSGL_BF16) return msgl__f32_to_bf16(f);
    return msgl__f32_to_f16(f);
}

static inline void attn_put(msgl_dtype t, void *p, size_t i, float f)
{
    if (t == MSGL_F32) {
        ((float *)p)[i] = f;
    } else if (t == MSGL_E4M3) {
        ((uint8_t *)p)[i] = msgl__f32_to_e4m3(f);
    } else {
        ((uint16_t *)p)[i] = attn_encode(t, f);
    }
}

static inline msgl_dtype attn_act(msgl_dtype t) // of q and out
{
    return t == MSGL_E4M3 ? MSGL_BF16 : t;
}

static inline float attn_get(msgl_dtype t, const void *p, size_t i)
{
    if (t == MSGL_F32) return ((const float *)p)[i];
    if (t == MSGL_E4M3) return msgl__e4m3_to_f32(((const uint8_t *)p)[i]);
    const uint16_t h = ((const uint16_t *)p)[i];
    return t == MSGL_BF16 ? msgl__bf16_to_f32(h) : msgl__f16_to_f32(h);
}

typedef struct attn_world {
    msgl_cuda_attn_call call; // device pointers
    int32_t *q_lens, *k_lens, *cu_q, *rows;
    int32_t *slots;      // of token p of row r: slots[r * table_stride + p]
    void *q, *k, *v;     // host copies
    float *qf, *kf, *vf; // the same as f32, for the oracle: attn_decode
    void *q_dev, *k_dev, *v_dev, *out_dev;
    float *sinks, *sinks_dev; // attn_sinks, else NULL
    float *lse_dev;
    int32_t *cu_dev, *lens_dev, *rows_dev, *table_dev;
    size_t q_bytes, kv_bytes, v_bytes, out_bytes; // kv_bytes: of K, and of V with K's dimension
    int32_t max_len;
} attn_world;

// The same with heads of dim and v_dim <= dim elements of K and V.
static inline void attn_world_make_apart(attn_world *w, attn_rng *rng, msgl_dtype dtype, int batch,
                                         const int32_t *q_lens, const int32_t *k_lens, int q_heads,
                                         int kv_heads, int dim, int v_dim, int page)
{
    memset(w, 0, sizeof *w);
    const size_t n = (size_t)batch;
    int pages = 1, max_len = 1, total_q = 0, max_q = 0;
    w->q_lens = (int32_t *)calloc(n, 4);
    w->k_lens = (int32_t *)calloc(n, 4);
    w->cu_q = (int32_t *)calloc(n + 1, 4);
    w->rows = (int32_t *)calloc(n, 4);
    for (int i = 0; i < batch; i++) {
        w->q_lens[i] = q_lens[i];
        w->k_lens[i] = k_lens[i];
        total_q += q_lens[i];
        w->cu_q[i + 1] = total_q;
        pages += (k_lens[i] + page - 1) / page;
        if (k_lens[i] > max_len) max_len = k_lens[i];
        if (q_lens[i] > max_q) max_q = q_lens[i];
    }
    w->max_len = max_len;
    const int spare = pages / 8 + 2;
    const int total_pages = pages + spare;
    const size_t all = (size_t)total_pages * page, es = msgl__dtype_size(dtype);
    const msgl_dtype act = attn_act(dtype);
    const size_t act_size = msgl__dtype_size(act);
    const size_t slot = (size_t)kv_heads * dim, v_slot = (size_t)kv_heads * v_dim;
    const size_t stride = ((size_t)max_len / page + 3) * page;
    int32_t *perm = (int32_t *)malloc((size_t)total_pages * 4);
    for (int i = 0; i < total_pages; i++) perm[i] = i;
    for (int i = total_pages - 1; i > 0; i--) {
        const int j = attn_range(rng, 0, i), t = perm[i];
        perm[i] = perm[j];
        perm[j] = t;
    }
    w->kv_bytes = all * slot * es;
    w->k = malloc(w->kv_bytes);
    w->v_bytes = all * v_slot * es;
    w->v = malloc(w->v_bytes);
    for (size_t i = 0; i < all * slot; i++) attn_put(dtype, w->k, i, NAN);
    for (size_t i = 0; i < all * v_slot; i++) attn_put(dtype, w->v, i, NAN);
    const size_t entries = (n + 2) * stride / page;
    int32_t *table = (int32_t *)malloc(entries * 4);
    for (size_t i = 0; i < entries; i++) table[i] = perm[total_pages - 1];
    for (int i = 0; i < batch; i++) w->rows[i] = i + 1;
    for (int i = batch - 1; i > 0; i--) {
        const int j = attn_range(rng, 0, i), t = w->rows[i];
        w->rows[i] = w->rows[j];
        w->rows[j] = t;
    }
    int next = 0;
    for (int i = 0; i < batch; i++) {
        for (int p = 0; p < k_lens[i]; p += page) {
            table[(w->rows[i] * stride + p) / page] = perm[next + p / page];
        }
        for (int p = 0; p < k_lens[i]; p++) {
            const int32_t s = perm[next + p / page] * page + p % page;
            for (size_t e = 0; e < slot; e++) {
                attn_put(dtype, w->k, (size_t)s * slot + e, 2.f * attn_uniform(rng));
                if (e >= v_slot) continue;
                attn_put(dtype, w->v, (size_t)s * v_slot + e, attn_uniform(rng));
            }
        }
        next += (k_lens[i] + page - 1) / page;
    }
    free(perm);
    w->slots = (int32_t *)malloc((n + 2) * stride * 4);
    for (size_t i = 0; i < (n + 2) * stride; i++) {
        w->slots[i] = table[i / page] * page + (int32_t)(i % page);
    }
    const size_t width_q = (size_t)q_heads * dim, ld_q = width_q + slot + v_slot;
    const size_t ld_out = (size_t)q_heads * v_dim;
    w->q_bytes = (size_t)total_q * ld_q * act_size;
    w->out_bytes = (size_t)total_q * ld_out * act_size;
    w->q = malloc(w->q_bytes);
    for (size_t i = 0; i < (size_t)total_q * ld_q; i++) {
        attn_put(act, w->q, i, i % ld_q < width_q ? 2.f * attn_uniform(rng) : NAN);
    }
    w->q_dev = device_copy(w->q, w->q_bytes);
    w->k_dev = device_copy(w->k, w->kv_bytes);
    w->v_dev = device_copy(w->v, w->v_bytes);
    w->out_dev = device_copy(NULL, w->out_bytes);
    w->lse_dev = (float *)device_copy(NULL, (size_t)total_q * q_heads * 4);
    w->cu_dev = (int32_t *)device_copy(w->cu_q, (n + 1) * 4);
    w->lens_dev = (int32_t *)device_copy(w->k_lens, n * 4);
    w->rows_dev = (int32_t *)device_copy(w->rows, n * 4);
    w->table_dev = (int32_t *)device_copy(table, entries * 4);
    free(table);
    msgl_cuda_attn_call *c = &w->call;
    c->dtype = act;
    c->e4m3 = dtype == MSGL_E4M3;
    c->num_q_heads = q_heads;
    c->num_kv_heads = kv_heads;
    c->head_dim = dim;
    c->q = w->q_dev;
    c->ld_q = ld_q;
    c->out = w->out_dev;
    c->ld_out = ld_out;
    c->k = w->k_dev;
    c->v = w->v_dev;
    c->v_dim = v_dim;
    c->num_slots = (int64_t)all;
    c->scale = 1.f / sqrtf((float)dim);
    c->out_scale = 1;
    c->window = -1;
    c->batch = batch;
    c->cu_seqlens_q = w->cu_dev;
    c->seqlens_k = w->lens_dev;
    c->table = w->table_dev;
    c->table_stride = stride;
    c->paging = msgl__paging_of(page);
    c->table_rows = w->rows_dev;
    c->page_size = page;
    c->total_q = total_q;
    c->max_seqlen_q = max_q;
    c->max_seqlen_k = max_len;
    c->lse = w->lse_dev;
}

// q_lens, k_lens [batch]. Table rows are shuffled among batch + 2; pages too.
static inline void attn_world_make(attn_world *w, attn_rng *rng, msgl_dtype dtype, int batch,
                                   const int32_t *q_lens, const int32_t *k_lens, int q_heads,
                                   int kv_heads, int dim, int page)
{
    attn_world_make_apart(w, rng, dtype, batch, q_lens, k_lens, q_heads, kv_heads, dim, dim, page);
}

// Sinks around the largest scores, a few far above or below them.
static inline void attn_sinks(attn_world *w, attn_rng *rng)
{
    static const float far[] = {-300.f, 300.f, -INFINITY};
    const int heads = w->call.num_q_heads;
    w->sinks = (float *)malloc((size_t)heads * sizeof(float));
    for (int h = 0; h < heads; h++) {
        const int i = attn_range(rng, 0, 20);
        w->sinks[h] = i < 3 ? far[i] : 4.f + 4.f * attn_uniform(rng);
    }
    w->sinks_dev = (float *)device_copy(w->sinks, (size_t)heads * sizeof(float));
    w->call.sinks = w->sinks_dev;
}

static inline void attn_world_free(attn_world *w)
{
    free(w->sinks), cudaFree(w->sinks_dev);
    free(w->q_lens), free(w->k_lens), free(w->cu_q), free(w->rows), free(w->slots);
    free(w->q), free(w->k), free(w->v), free(w->qf), free(w->kf), free(w->vf);
    cudaFree(w->q_dev), cudaFree(w->k_dev), cudaFree(w->v_dev), cudaFree(w->out_dev);
    cudaFree(w->lse_dev), cudaFree(w->cu_dev), cudaFree(w->lens_dev), cudaFree(w->rows_dev);
    cudaFree(w->table_dev);
}

static inline float *attn_decode(msgl_dtype t, const void *p, size_t bytes)
{
    const size_t n = bytes / msgl__dtype_size(t);
    float *f = (float *)malloc(n * sizeof *f);
    for (size_t i = 0; i < n; i++) f[i] = attn_get(t, p, i);
    return f;
}

static inline void attn_poison(attn_world *w)
{
    CUDA_OK(cudaMemset(w->out_dev, 0xff, w->out_bytes));
    CUDA_OK(cudaMemset(w->lse_dev, 0xff, (size_t)w->call.total_q * w->call.num_q_heads * 4));
}

// Exact attention of request req's query token t (of k_len keys), head h: o [v_dim], returns the
// LSE of the keys alone.
static inline double attn_exact(const attn_world *w, int req, int t, int k_len, int h, double *o)
{
    const msgl_cuda_attn_call *c = &w->call;
    const int dim = c->head_dim, kvh = h / (c->num_q_heads / c->num_kv_heads);
    const int v_dim = c->v_dim;
    const size_t slot = (size_t)c->num_kv_heads * dim, v_slot = (size_t)c->num_kv_heads * v_dim;
    const size_t q = ((size_t)w->cu_q[req] + t) * c->ld_q + (size_t)h * dim;
    const int pos = k_len - w->q_lens[req] + t;
    const int lo = c->window >= 0 && pos > c->window ? pos - c->window : 0;
    int hi = pos; // last key
    if (c->both_ways)
        hi = c->window >= 0 && c->window < k_len - 1 - pos ? pos + c->window : k_len - 1;
    const int32_t *slots = w->slots + (size_t)w->rows[req] * c->table_stride;
    double *s = (double *)malloc((size_t)(hi + 1) * sizeof *s), m = -INFINITY, l = 0;
    for (int p = lo; p <= hi; p++) {
        const size_t at = (size_t)slots[p] * slot + (size_t)kvh * dim;
        double x = 0;
        for (int d = 0; d < dim; d++) x += (double)w->qf[q + (size_t)d] * w->kf[at + (size_t)d];
        x *= c->scale;
        if (c->softcap > 0) x = c->softcap * tanh(x / c->softcap);
        s[p] = x;
        if (x > m) m = x;
    }
    for (int d = 0; d < v_dim; d++) o[d] = 0;
    for (int p = lo; p <= hi; p++) {
        const size_t at = (size_t)slots[p] * v_slot + (size_t)kvh * v_dim;
        const double e = exp(s[p] - m);
        l += e;
        for (int d = 0; d < v_dim; d++) o[d] += e * w->vf[at + (size_t)d];
    }
    const double sink = w->sinks != NULL ? exp(w->sinks[h] - m) : 0;
    for (int d = 0; d < v_dim; d++) o[d] *= c->out_scale / (l + sink);
    free(s);
    return m + log(l);
}

// Random trees of the requests' new tokens, up to 64 of each: words [total_q] as msgl_seqs'
// dev_tree, to be freed.
static inline uint64_t *attn_trees(const attn_world *w, attn_rng *rng)
{
    uint64_t *tree = (uint64_t *)malloc((size_t)w->call.total_q * sizeof *tree);
    for (int i = 0; i < w->call.batch; i++) {
        uint64_t *words = tree + w->cu_q[i];
        for (int t = 0; t < w->q_lens[i]; t++) {
            const int parent = attn_range(rng, t < 3 ? -1 : t - 3, t - 1);
            words[t] = (parent >= 0 ? words[parent] : 0) | (uint64_t)1 << t;
        }
    }
    return tree;
}

// The same in a tree (or NULL): the request's list has its path's slots, end to end, while the row
// before it is asked about.
static inline double attn_exact_in(attn_world *w, const uint64_t *tree, int req, int t, int k_len,
                                   int h, double *o)
{
    if (tree == NULL) return attn_exact(w, req, t, k_len, h, o);
    const int queries = w->q_lens[req], prefix = k_len - queries;
    int32_t *slots = w->slots + (size_t)w->rows[req] * w->call.table_stride + prefix, kept[64];
    const uint64_t path = tree[w->cu_q[req] + t];
    memcpy(kept, slots, (size_t)queries * sizeof *kept);
    int n = 0;
    for (int j = 0; j <= t; j++) {
        if (path >> j & 1) slots[n++] = kept[j];
    }
    // Token t at position prefix + n - 1.
    const double lse = attn_exact(w, req, t, prefix + n - 1 - t + queries, h, o);
    memcpy(slots, kept, (size_t)queries * sizeof *kept);
    return lse;
}

// Compares the device's outputs with exact attention for lengths k_lens; the largest error of the
// outputs (|v| < 1) and of the LSE. `every`: only each so many-th query row is compared.
static inline void attn_compare_in(attn_world *w, const uint64_t *tree, const int32_t *k_lens,
                                   int every, double *worst_out, double *worst_lse)
{
    const msgl_cuda_attn_call *c = &w->call;
    void *out = malloc(w->out_bytes);
    float *lse = (float *)malloc((size_t)c->total_q * c->num_q_heads * 4);
    double o[ATTN_MAX_DIM];
    if (w->qf == NULL) {
        w->qf = attn_decode(c->dtype, w->q, w->q_bytes);
        const msgl_dtype kv = c->e4m3 ? MSGL_E4M3 : c->dtype;
        w->kf = attn_decode(kv, w->k, w->kv_bytes);
        w->vf = attn_decode(kv, w->v, w->v_bytes);
    }
    CUDA_OK(cudaMemcpy(out, w->out_dev, w->out_bytes, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(lse, w->lse_dev, (size_t)c->total_q * c->num_q_heads * 4,
                       cudaMemcpyDeviceToHost));
    *worst_out = *worst_lse = 0;
    int count = 0;
    for (int i = 0; i < c->batch; i++) {
        for (int t = 0; t < w->q_lens[i]; t++) {
            for (int h = 0; h < c->num_q_heads; h++) {
                if (count++ % every != 0) continue;
                const double l = attn_exact_in(w, tree, i, t, k_lens[i], h, o);
                const size_t row = (size_t)w->cu_q[i] + t;
                for (int d = 0; d < c->v_dim; d++) {
                    const double got =
                        attn_get(c->dtype, out, row * c->ld_out + (size_t)h * c->v_dim + d);
                    const double e = fabs(got - o[d]);
                    if (!(e <= *worst_out)) *worst_out = e; // NaN too
                }
                if (c->lse != NULL) {
                    const double e = fabs(lse[row * c->num_q_heads + h] - l);
                    if (!(e <= *worst_lse)) *worst_lse = e;
                }
            }
        }
    }
    free(out), free(lse);
}

static inline void attn_compare(attn_world *w, const int32_t *k_lens, int every, double *worst_out,
                                double *worst_lse)
{
    attn_compare_in(w, NULL, k_lens, every, worst_out, worst_lse);
}

#endif
