// SPDX-License-Identifier: Apache-2.0
//
// A random paged batch of latent rows on the GPU and what exact attention (f64, on the host) makes
// of it. Slots that no request owns hold NaN, and so do the outputs before each launch; table
// entries behind a request's pages point to such slots, and those that are no page's first hold
// what is no slot at all.
#ifndef MSGL_TESTS_CUDA_MLA_WORLD_CUH
#define MSGL_TESTS_CUDA_MLA_WORLD_CUH

#include "tests/cuda/attn_world.cuh"

#include "cuda/attn/mla.h"

typedef struct mla_shape {
    int heads, q_len, page;
    bool in_order;         // slots follow one another
    int pad;               // elements between tokens of q and of out
    const int32_t *q_lens; // ragged: query tokens of each request, q_len the most; or NULL
    bool e4m3;             // the pool
    bool tree;             // query tokens form random trees: at most 64 of a request
} mla_shape;

typedef struct mla_world {
    msgl_mla_call call;
    int batch;
    int32_t *rows, *table; // host; table: pages
    int32_t *cu_q;         // host, [batch + 1], ragged or not
    uint64_t *tree;        // host, of tokens that form trees; or NULL
    float *q, *kv;         // host, as the device's bf16 or E4M3
    uint16_t *out;         // host, of the last mla_fetch
    float *lse;
    size_t out_bytes, lse_bytes;
} mla_world;

static inline float mla_round(float x)
{
    return msgl__bf16_to_f32(msgl__f32_to_bf16(x));
}

static inline void *mla_upload(const float *p, size_t n)
{
    uint16_t *h = (uint16_t *)malloc(n * 2);
    for (size_t i = 0; i < n; i++) h[i] = msgl__f32_to_bf16(p[i]);
    void *d = device_copy(h, n * 2);
    free(h);
    return d;
}

static inline void *mla_upload_codes(const float *p, size_t n)
{
    uint8_t *h = (uint8_t *)malloc(n);
    for (size_t i = 0; i < n; i++) h[i] = msgl__f32_to_e4m3(p[i]);
    void *d = device_copy(h, n);
    free(h);
    return d;
}

static inline float mla_value(attn_rng *rng, bool e4m3)
{
    const float x = attn_uniform(rng);
    return e4m3 ? msgl__e4m3_to_f32(msgl__f32_to_e4m3(x)) : mla_round(x);
}

// Each token's parent is one of the few before it.
static inline uint64_t *mla_make_tree(attn_rng *rng, int batch, const int32_t *cu_q)
{
    uint64_t *tree = (uint64_t *)malloc((size_t)cu_q[batch] * sizeof *tree);
    for (int i = 0; i < batch; i++) {
        uint64_t *words = tree + cu_q[i];
        for (int t = 0; t < cu_q[i + 1] - cu_q[i]; t++) {
            const int parent = attn_range(rng, t < 3 ? -1 : t - 3, t - 1);
            words[t] = (parent >= 0 ? words[parent] : 0) | (uint64_t)1 << t;
        }
    }
    return tree;
}

// room [batch]: keys that each request may have.
static inline void mla_world_make(mla_world *w, attn_rng *rng, const mla_shape *t, int batch,
                                  const int32_t *room)
{
    memset(w, 0, sizeof *w);
    w->batch = batch;
    int pages = 0, longest = 1;
    for (int i = 0; i < batch; i++) {
        pages += (room[i] + t->page - 1) / t->page;
        if (room[i] > longest) longest = room[i];
    }
    const int all = pages + pages / 8 + 2;
    int32_t *perm = (int32_t *)malloc((size_t)all * 4);
    for (int i = 0; i < all; i++) perm[i] = i;
    for (int i = all - 1; i > 0 && !t->in_order; i--) {
        const int j = attn_range(rng, 0, i), x = perm[i];
        perm[i] = perm[j];
        perm[j] = x;
    }
    const size_t stride = ((size_t)longest / t->page + 3) * (size_t)t->page, n = (size_t)batch + 2;
    const size_t slots = (size_t)all * (size_t)t->page;
    const size_t entries = n * stride / (size_t)t->page;
    w->table = (int32_t *)malloc(entries * 4);
    for (size_t i = 0; i < entries; i++) w->table[i] = perm[all - 1];
    w->rows = (int32_t *)malloc((size_t)batch * 4);
    for (int i = 0; i < batch; i++) w->rows[i] = (i * 7 + 3) % batch + 1;
    if (batch % 7 == 0)
        for (int i = 0; i < batch; i++) w->rows[i] = batch - i;
    w->kv = (float *)malloc(slots * MSGL_MLA_ROW * 4);
    for (size_t i = 0; i < slots * MSGL_MLA_ROW; i++) w->kv[i] = NAN;
    int next = 0;
    for (int i = 0; i < batch; i++) {
        for (int k = 0; k < room[i]; k++) {
            const int32_t page = perm[next + k / t->page];
            w->table[(w->rows[i] * stride + k) / t->page] = page;
            float *row = w->kv + (size_t)(page * t->page + k % t->page) * MSGL_MLA_ROW;
            for (int e = 0; e < MSGL_MLA_ROW; e++) row[e] = mla_value(rng, t->e4m3);
        }
        next += (room[i] + t->page - 1) / t->page;
    }
    free(perm);
    w->cu_q = (int32_t *)malloc(((size_t)batch + 1) * 4);
    w->cu_q[0] = 0;
    for (int i = 0; i < batch; i++)
        w->cu_q[i + 1] = w->cu_q[i] + (t->q_lens != NULL ? t->q_lens[i] : t->q_len);
    const size_t tokens = (size_t)w->cu_q[batch];
    const size_t ld_q = (size_t)t->heads * MSGL_MLA_ROW + (size_t)t->pad;
    const size_t ld_out = (size_t)t->heads * MSGL_MLA_LATENT + (size_t)t->pad;
    w->q = (float *)malloc(tokens * ld_q * 4);
    for (size_t i = 0; i < tokens * ld_q; i++)
        w->q[i] = i % ld_q < ld_q - (size_t)t->pad ? mla_round(4.f * attn_uniform(rng)) : NAN;
    w->out_bytes = tokens * ld_out * 2;
    w->lse_bytes = tokens * (size_t)t->heads * 4;
    w->out = (uint16_t *)malloc(w->out_bytes);
    w->lse = (float *)malloc(w->lse_bytes);
    msgl_mla_call *c = &w->call;
    c->num_heads = t->heads;
    c->q = mla_upload(w->q, tokens * ld_q);
    c->ld_q = ld_q;
    c->out = device_copy(NULL, w->out_bytes);
    c->ld_out = ld_out;
    c->lse = (float *)device_copy(NULL, w->lse_bytes);
    c->kv = t->e4m3 ? mla_upload_codes(w->kv, slots * MSGL_MLA_ROW)
                    : mla_upload(w->kv, slots * MSGL_MLA_ROW);
    c->e4m3 = t->e4m3;
    c->num_slots = (int64_t)slots;
    c->scale = 0.07216878f;
    c->out_scale = t->e4m3 ? 0.75f : 1.f;
    c->batch = batch;
    c->q_len = t->q_len;
    c->seqlens_k = (int32_t *)device_copy(room, (size_t)batch * 4);
    c->table = (int32_t *)device_copy(w->table, entries * 4);
    c->table_stride = stride;
    c->paging = msgl__paging_of(t->page);
    c->table_rows = (int32_t *)device_copy(w->rows, (size_t)batch * 4);
    c->page_size = t->page;
    c->total_q = (int32_t)tokens;
    if (t->q_lens != NULL)
        c->cu_seqlens_q = (int32_t *)device_copy(w->cu_q, ((size_t)batch + 1) * 4);
    if (t->tree) {
        w->tree = mla_make_tree(rng, batch, w->cu_q);
        c->tree = (const uint64_t *)device_copy(w->tree, tokens * sizeof *w->tree);
    }
    const int32_t ragged = t->q_lens != NULL ? (int32_t)tokens : 0;
    c->plan = device_copy(NULL, msgl__mla_plan_bytes(t->heads, batch, ragged));
    const size_t bytes = msgl__mla_workspace_bytes(t->heads, t->q_len);
    c->workspace = device_copy(NULL, bytes);
    CUDA_OK(cudaMemset(c->workspace, 0, bytes));
}

static inline void mla_world_free(mla_world *w)
{
    free(w->rows), free(w->table), free(w->cu_q), free(w->tree);
    free(w->q), free(w->kv), free(w->out), free(w->lse);
    const msgl_mla_call *c = &w->call;
    const void *device[] = {c->q,         c->out,          c->lse,   c->kv,
                            c->seqlens_k, c->cu_seqlens_q, c->table, c->table_rows,
                            c->plan,      c->workspace,    c->tree};
    for (const void *p : device) CUDA_OK(cudaFree((void *)p));
}

static inline void mla_poison(mla_world *w)
{
    CUDA_OK(cudaMemset(w->call.out, 0xff, w->out_bytes));
    CUDA_OK(cudaMemset(w->call.lse, 0xff, w->lse_bytes));
    CUDA_OK(cudaDeviceSynchronize());
}

static inline void mla_fetch(mla_world *w)
{
    CUDA_OK(cudaMemcpy(w->out, w->call.out, w->out_bytes, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(w->lse, w->call.lse, w->lse_bytes, cudaMemcpyDeviceToHost));
}

// Exact attention of one head of query token t of request i, which sees `keys` keys, or of them its
// path: o [512], returns the LSE.
static inline double mla_exact(const mla_world *w, int i, int t, int head, int keys, double *o)
{
    const msgl_mla_call *c = &w->call;
    const float *q = w->q + ((size_t)w->cu_q[i] + t) * c->ld_q + (size_t)head * MSGL_MLA_ROW;
    const int32_t place = w->rows[i] * (int32_t)c->table_stride;
    memset(o, 0, MSGL_MLA_LATENT * sizeof *o);
    if (keys <= 0) return -INFINITY;
    double *s = (double *)malloc((size_t)keys * sizeof *s), max = -INFINITY, sum = 0;
    const uint64_t path = w->tree != NULL ? w->tree[w->cu_q[i] + t] : 0;
    for (int k = 0; k < keys; k++) {
        const int token = k - (keys - 1 - t);
        const float *row =
            w->kv + (size_t)msgl__paging_slot(c->paging, w->table, place + k) * MSGL_MLA_ROW;
        s[k] = -INFINITY;
        if (w->tree != NULL && token >= 0 && (path >> token & 1) == 0) continue;
        double x[4] = {0, 0, 0, 0};
        for (int e = 0; e < MSGL_MLA_ROW; e += 4)
            for (int j = 0; j < 4; j++) x[j] += (double)q[e + j] * row[e + j];
        s[k] = (x[0] + x[1] + x[2] + x[3]) * c->scale;
        if (s[k] > max) max = s[k];
    }
    for (int k = 0; k < keys; k++) {
        const float *row =
            w->kv + (size_t)msgl__paging_slot(c->paging, w->table, place + k) * MSGL_MLA_ROW;
        const double p = exp(s[k] - max);
        sum += p;
        for (int e = 0; e < MSGL_MLA_LATENT; e++) o[e] += p * row[e];
    }
    for (int e = 0; e < MSGL_MLA_LATENT; e++) o[e] *= c->out_scale / sum;
    free(s);
    return max + log(sum);
}

typedef struct mla_error {
    double out, lse;     // largest
    double squares, all; // sums of squares of errors and of values
} mla_error;

// Of each `every`-th row (token, head) of what mla_fetch brought, for these lengths.
static inline mla_error mla_compare(const mla_world *w, const int32_t *lens, int every)
{
    const msgl_mla_call *c = &w->call;
    mla_error worst = {0, 0, 0, 0};
    double o[MSGL_MLA_LATENT];
    int count = 0;
    for (int i = 0; i < w->batch; i++) {
        const int q_len = w->cu_q[i + 1] - w->cu_q[i];
        for (int t = 0; t < q_len; t++) {
            for (int h = 0; h < c->num_heads; h++) {
                if (count++ % every != 0) continue;
                const size_t token = (size_t)w->cu_q[i] + t;
                const double lse = mla_exact(w, i, t, h, lens[i] - q_len + 1 + t, o);
                const uint16_t *got = w->out + token * c->ld_out + (size_t)h * MSGL_MLA_LATENT;
                for (int e = 0; e < MSGL_MLA_LATENT; e++) {
                    const double d = fabs(msgl__bf16_to_f32(got[e]) - o[e]);
                    if (!(d <= worst.out)) worst.out = d; // NaN too
                    worst.squares += d * d;
                    worst.all += o[e] * o[e];
                }
                const double l = w->lse[token * c->num_heads + h];
                const double d = lse == -INFINITY ? (l == lse ? 0 : INFINITY) : fabs(l - lse);
                if (!(d <= worst.lse)) worst.lse = d;
            }
        }
    }
    return worst;
}

#endif
