// SPDX-License-Identifier: Apache-2.0
//
// Dual chunk attention on a GPU against f64: rotation and store, prompts, and answers as the
// backend makes them (parts, the decode kernel, the merge); equal bits of prompts in one piece and
// in two. cuda_dual [--seed N] [--quick] [--bench]
#include "tests/cuda/attn_world.cuh"
#include "tests/cuda/ops_check.cuh"

#include "kernel/cuda/attn/decode.h"
#include "kernel/cuda/attn/dual.h"
#include "kernel/cuda/attn/dual_sparse.h"
#include "kernel/cuda/attn/prefill_sm80.h"

static const msgl_dual_sparse NONE = {INT32_MAX, INT32_MAX};

// A batch whose tokens have three queries each: attn_world has them as three times the heads.
typedef struct dual_world {
    attn_world w;
    int32_t len;               // of a chunk
    msgl_dual_parts to;        // for answers, as `parts`
    float *lse;                // of the parts
    void *results;             //
    msgl_cuda_attn_call parts; // all parts as requests
} dual_world;

static void dual_open(dual_world *d, attn_rng *rng, msgl_dtype dtype, int batch, const int32_t *q,
                      const int32_t *k, int q_heads, int kv_heads, int dim, int page, int32_t len)
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
    const size_t parts = (size_t)batch * MSGL_DUAL_QUERIES, rows = parts * (size_t)q_heads;
    d->to.seqlens_k = (int32_t *)device_copy(NULL, parts * 4);
    d->to.firsts = (int32_t *)device_copy(NULL, parts * 4);
    d->lse = (float *)device_copy(NULL, rows * 4);
    d->results = device_copy(NULL, rows * (size_t)dim * 2);
    const size_t bytes =
        msgl__fa_decode_workspace(q_heads, kv_heads, dim, (int32_t)parts, c->deterministic);
    CUDA_OK(cudaMalloc(&c->workspace, bytes));
    CUDA_OK(cudaMemset(c->workspace, 0, bytes));
    d->parts = *c;
    d->parts.ld_q = (size_t)q_heads * (size_t)dim;
    d->parts.out = d->results;
    d->parts.ld_out = d->parts.ld_q;
    d->parts.out_scale = 1;
    d->parts.batch = d->parts.total_q = (int32_t)parts;
    d->parts.seqlens_k = d->to.seqlens_k;
    d->parts.table_rows = d->to.firsts;
    d->parts.table_stride = 1;
    d->parts.lse = d->lse;
}

static void dual_close(dual_world *d)
{
    CUDA_OK(cudaFree(d->w.call.workspace));
    CUDA_OK(cudaFree(d->to.seqlens_k));
    CUDA_OK(cudaFree(d->to.firsts));
    CUDA_OK(cudaFree(d->lse));
    CUDA_OK(cudaFree(d->results));
    attn_world_free(&d->w);
}

static void answers(const dual_world *d, cudaStream_t stream)
{
    msgl_cuda_attn_call merge = d->w.call;
    merge.lse = d->lse;
    CUDA_OK(msgl__cuda_dual_parts(&d->w.call, d->len, &d->to, stream));
    CUDA_OK(msgl__cuda_fa_decode(&d->parts, stream));
    CUDA_OK(msgl__cuda_dual_merge(&merge, d->len, d->results, stream));
}

// Query token t of request req, head h: o [dim]. seen [keys]: which it sees of those up to its own;
// NULL: all.
static void dual_exact(const dual_world *d, int req, int t, int h, const bool *seen, double *o)
{
    const attn_world *w = &d->w;
    const msgl_cuda_attn_call *c = &w->call;
    const int dim = c->head_dim, kv_head = h / (c->num_q_heads / c->num_kv_heads);
    const int pos = w->k_lens[req] - w->q_lens[req] + t;
    const float *q = w->qf + ((size_t)w->cu_q[req] + (size_t)t) * c->ld_q + (size_t)(h * dim);
    const int32_t *table = w->table + (size_t)w->rows[req] * c->table_stride;
    double *s = (double *)malloc((size_t)(pos + 1) * sizeof *s), m = -INFINITY, sum = 0;
    for (int i = 0; i < dim; i++) o[i] = 0;
    for (int p = 0; p <= pos; p++) {
        const int apart = pos / d->len - p / d->len, query = apart < 2 ? apart : 2;
        const float *k = w->kf + (size_t)((table[p] * c->num_kv_heads + kv_head) * dim);
        s[p] = 0;
        for (int i = 0; i < dim; i++) {
            s[p] += (double)q[query * c->num_q_heads * dim + i] * (double)k[i];
        }
        s[p] = seen == NULL || seen[p] ? s[p] * (double)c->scale : -INFINITY;
        m = fmax(m, s[p]);
    }
    for (int p = 0; p <= pos; p++) {
        const float *v = w->vf + (size_t)((table[p] * c->num_kv_heads + kv_head) * dim);
        s[p] = exp(s[p] - m);
        sum += s[p];
        for (int i = 0; i < dim; i++) o[i] += s[p] * (double)v[i];
    }
    for (int i = 0; i < dim; i++) o[i] /= sum;
    free(s);
}

static void decode_world(attn_world *w)
{
    if (w->qf != NULL) return;
    w->qf = attn_decode(w->call.dtype, w->q, w->q_bytes);
    w->kf = attn_decode(w->call.dtype, w->k, w->kv_bytes);
    w->vf = attn_decode(w->call.dtype, w->v, w->kv_bytes);
}

static double allowed_error(msgl_dtype dtype)
{
    return dtype == MSGL_BF16 ? 1e-2 : 1.5e-3;
}

static void compare(dual_world *d, family *f, const char *what)
{
    attn_world *w = &d->w;
    const msgl_cuda_attn_call *c = &w->call;
    const double allowed = allowed_error(c->dtype);
    void *out = malloc(w->out_bytes);
    double o[256];
    decode_world(w);
    CUDA_OK(cudaMemcpy(out, w->out_dev, w->out_bytes, cudaMemcpyDeviceToHost));
    int count = 0;
    for (int r = 0; r < c->batch; r++) {
        for (int t = 0; t < w->q_lens[r]; t++) {
            for (int h = 0; h < c->num_q_heads; h++) {
                if (count++ % 3 != 0) continue;
                const size_t at = ((size_t)w->cu_q[r] + (size_t)t) * c->ld_out;
                dual_exact(d, r, t, h, NULL, o);
                for (int i = 0; i < c->head_dim; i++) {
                    const float got = attn_get(c->dtype, out, at + (size_t)(h * c->head_dim + i));
                    expect_near(f, got, o[i], allowed, what);
                }
            }
        }
    }
    free(out);
}

enum { BATCH = 6 };
static const int GROUPS[] = {1, 2, 7, 4, 16}, PAGES[] = {1, 16, 64, 7};

static void check_prompts(attn_rng *rng, family *f, int i, bool quick)
{
    static const int dims[] = {128, 64, 8, 80, 256, 200};
    int32_t q[BATCH], k[BATCH];
    for (int r = 0; r < BATCH; r++) {
        q[r] = r == 0 ? 1 : attn_range(rng, 1, quick ? 60 : 300);
        k[r] = q[r] + (r % 2 ? 0 : attn_range(rng, 0, quick ? 60 : 500));
    }
    dual_world d;
    dual_open(&d, rng, i % 2 ? MSGL_F16 : MSGL_BF16, BATCH, q, k, GROUPS[i % 5] * 2, 2, dims[i % 6],
              PAGES[i % 4], attn_range(rng, 20, 200));
    d.w.call.lse = NULL;
    attn_poison(&d.w);
    CUDA_OK(msgl__cuda_dual_prefill(&d.w.call, d.len, NONE, 0));
    CUDA_OK(cudaDeviceSynchronize());
    compare(&d, f, "prompts");
    dual_close(&d);
}

// The first `first` tokens of a prompt, then the others, give the bits of all at once.
static void check_pieces(attn_rng *rng, family *f, int i)
{
    const int32_t n[1] = {700}, first[2] = {0, attn_range(rng, 1, 699)};
    dual_world d;
    dual_open(&d, rng, MSGL_BF16, 1, n, n, 4, 2, i % 2 ? 64 : 128, 16, attn_range(rng, 30, 300));
    attn_world *w = &d.w;
    void *whole = malloc(w->out_bytes), *pieces = malloc(w->out_bytes);
    CUDA_OK(msgl__cuda_dual_prefill(&w->call, d.len, NONE, 0));
    CUDA_OK(cudaMemcpy(whole, w->out_dev, w->out_bytes, cudaMemcpyDeviceToHost));
    attn_poison(w);
    const size_t skip_q = (size_t)first[1] * w->call.ld_q * 2;
    const size_t skip_out = (size_t)first[1] * w->call.ld_out * 2;
    for (int piece = 0; piece < 2; piece++) {
        const int32_t cu[2] = {0, piece == 0 ? first[1] : n[0] - first[1]};
        const int32_t len[1] = {piece == 0 ? first[1] : n[0]};
        msgl_cuda_attn_call c = w->call;
        device_write(w->cu_dev, cu, sizeof cu);
        device_write(w->lens_dev, len, sizeof len);
        c.total_q = c.max_seqlen_q = cu[1];
        c.max_seqlen_k = len[0];
        c.lse = NULL;
        c.q = (const char *)c.q + (piece == 0 ? 0 : skip_q);
        c.out = (char *)c.out + (piece == 0 ? 0 : skip_out);
        CUDA_OK(msgl__cuda_dual_prefill(&c, d.len, NONE, 0));
        CUDA_OK(cudaDeviceSynchronize());
    }
    CUDA_OK(cudaMemcpy(pieces, w->out_dev, w->out_bytes, cudaMemcpyDeviceToHost));
    for (int32_t t = 0; t < n[0]; t++) {
        const size_t at = (size_t)t * w->call.ld_out * 2, bytes = d.parts.ld_q * 2;
        expect(f, memcmp((char *)whole + at, (char *)pieces + at, bytes) == 0, "other bits");
    }
    free(whole), free(pieces);
    dual_close(&d);
}

// A piece of request 0, and what each of its heads is to choose.
typedef struct sparse_world {
    dual_world d;
    msgl_sparse_piece piece;
    int32_t counts[16][2];
    float freq[128];
    uint32_t *bits; // of the piece, on the host
} sparse_world;

static bool has_bit(const sparse_world *s, int head, int which, int i)
{
    const int words = (s->piece.end + 31) / 32;
    return (s->bits[(head * 2 + which) * words + i / 32] >> i % 32 & 1) != 0;
}

static int chunks_apart(const sparse_world *s, int key)
{
    const int n = s->piece.begin / s->d.len - key / s->d.len;
    return n < 2 ? n : 2;
}

// Exact sums of what the last rows give to each key and distance.
static void exact_sums(const sparse_world *s, int head, double *columns, double *distances)
{
    const attn_world *w = &s->d.w;
    const msgl_cuda_attn_call *c = &w->call;
    const int dim = c->head_dim, half = s->piece.half, end = s->piece.end;
    const int kv_head = head / (c->num_q_heads / c->num_kv_heads);
    const int turns[] = {0, s->d.len, s->d.len + 20};
    const int32_t *table = w->table + (size_t)w->rows[0] * c->table_stride;
    double *p = (double *)malloc((size_t)end * sizeof *p), q[3][256];
    for (int i = 0; i < end; i++) columns[i] = distances[i] = 0;
    for (int pos = end - s->piece.last; pos < end; pos++) {
        const size_t row = (size_t)(s->piece.row + pos - s->piece.begin);
        const float *from = w->qf + row * c->ld_q + (size_t)(head * dim);
        for (int t = 0; t < 3; t++) {
            for (int i = 0; i < dim; i++) {
                const double a = (double)((float)turns[t] * s->freq[i % half]);
                const double other = i >= 2 * half ? 0
                                     : i < half    ? -from[i + half]
                                                   : from[i - half];
                q[t][i] = i < 2 * half ? from[i] * cos(a) + other * sin(a) : from[i];
            }
        }
        double sum = 0;
        for (int key = 0; key <= pos; key++) {
            const float *k = w->kf + (size_t)((table[key] * c->num_kv_heads + kv_head) * dim);
            double x = 0;
            for (int i = 0; i < dim; i++) x += q[chunks_apart(s, key)][i] * (double)k[i];
            sum += p[key] = exp(x * (double)c->scale);
        }
        for (int key = 0; key <= pos; key++) {
            columns[key] += p[key] / sum;
            distances[pos - key] += p[key] / sum;
        }
    }
    free(p);
}

// As many as wanted, the first ones among them, and none that is clearly smaller than one that was
// left out: turned queries are rounded.
static void check_chosen(const sparse_world *s, int head, int which, const double *sums, family *f)
{
    const int end = s->piece.end, kept = which == 0 ? 30 : 100, wanted = s->counts[head][which];
    double least = INFINITY, most = 0;
    int count = 0;
    for (int i = 0; i < end; i++) {
        const bool chosen = has_bit(s, head, which, i);
        count += chosen;
        if (i < kept) {
            expect(f, chosen || wanted < kept, "one of the first is missing");
        } else if (chosen) {
            least = fmin(least, sums[i]);
        } else {
            most = fmax(most, sums[i]);
        }
    }
    expect(f, count == (wanted < end ? wanted : end), "number chosen");
    expect(f, least > most * 0.97, "a smaller one was chosen");
}

static void seen_keys(const sparse_world *s, int head, int pos, bool *seen)
{
    const int first = s->piece.begin + (pos - s->piece.begin) / 64 * 64;
    for (int key = 0; key <= pos; key++) {
        seen[key] = has_bit(s, head, 0, key);
        for (int i = 0; i < 64 && !seen[key]; i++) {
            const int distance = first - key + i;
            if (distance < 0 || distance >= s->piece.end) continue;
            seen[key] = has_bit(s, head, 1, distance) &&
                        chunks_apart(s, key) >= chunks_apart(s, s->piece.end - 1 - distance);
        }
    }
}

static void check_piece(sparse_world *s, family *f)
{
    attn_world *w = &s->d.w;
    const msgl_cuda_attn_call *c = &w->call;
    const msgl_sparse_piece *p = &s->piece;
    const size_t bytes = (size_t)c->num_q_heads * 2 * ((p->end + 31) / 32) * 4;
    const bool chooses = p->end - p->begin > p->last;
    void *out = malloc(w->out_bytes);
    double *columns = (double *)malloc((size_t)p->end * 16), *distances = columns + p->end, o[256];
    bool *seen = (bool *)malloc((size_t)p->end);
    s->bits = (uint32_t *)malloc(bytes);
    CUDA_OK(cudaMemcpy(s->bits, p->workspace, bytes, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(out, w->out_dev, w->out_bytes, cudaMemcpyDeviceToHost));
    for (int h = 0; h < c->num_q_heads; h++) {
        if (chooses) {
            exact_sums(s, h, columns, distances);
            check_chosen(s, h, 0, columns, f);
            check_chosen(s, h, 1, distances, f);
        }
        for (int pos = p->begin + h % 5; pos < p->end; pos += 5) {
            const int row = p->row + pos - p->begin;
            seen_keys(s, h, pos, seen);
            dual_exact(&s->d, 0, row - w->cu_q[0], h, chooses ? seen : NULL, o);
            for (int i = 0; i < c->head_dim; i++) {
                const size_t at = (size_t)row * c->ld_out + (size_t)(h * c->head_dim + i);
                expect_near(f, attn_get(c->dtype, out, at), o[i], allowed_error(c->dtype),
                            "sparse prompt");
            }
        }
    }
    free(out), free(columns), free(seen), free(s->bits);
}

// Request 0 is sparse, piece by piece; the others are not, and nobody writes what is another's.
static void check_sparse(attn_rng *rng, family *f, int i, bool quick)
{
    static const int dims[] = {128, 64, 80, 256};
    sparse_world s = {};
    // Far: more keys than a block scores, and than it looks for at a time.
    const bool far = i % 4 == 2;
    const int32_t most = quick || far ? 200 : 900;
    int32_t q[3] = {attn_range(rng, 100, most), 1, attn_range(rng, 1, 60)};
    int32_t k[3] = {q[0] + (i % 2 ? 0 : attn_range(rng, 0, 500)), 700, 100};
    int32_t len = attn_range(rng, 90, 300);
    if (far) {
        k[0] += attn_range(rng, 9000, 12000);
        len = attn_range(rng, 3000, 5500);
    }
    dual_open(&s.d, rng, i % 2 ? MSGL_F16 : MSGL_BF16, 3, q, k, GROUPS[i % 3] * 2, 2, dims[i % 4],
              PAGES[i % 4], len);
    attn_world *w = &s.d.w;
    msgl_cuda_attn_call *c = &w->call;
    c->lse = NULL;
    msgl_sparse_piece *p = &s.piece;
    p->dual_len = len;
    p->last = attn_range(rng, 1, 64);
    p->half = c->head_dim / 2;
    float turns[2][256];
    for (int j = 0; j < p->half; j++) {
        s.freq[j] = attn_uniform(rng);
        for (int t = 0; t < 2; t++) {
            const double a = (double)((float)(len + 20 * t) * s.freq[j]);
            (&turns[0][0])[t * 2 * p->half + j] = (float)cos(a);
            (&turns[0][0])[t * 2 * p->half + p->half + j] = (float)sin(a);
        }
    }
    for (int h = 0; h < c->num_q_heads; h++) {
        s.counts[h][0] = attn_range(rng, 0, h == 1 ? 2000 : far ? 900 : 90);
        s.counts[h][1] = attn_range(rng, 1, h == 0 ? 2000 : 160);
    }
    p->counts = (const int32_t *)device_copy(s.counts, sizeof s.counts);
    p->turns = (const float *)device_copy(turns, sizeof turns);
    CUDA_OK(cudaMalloc(&p->workspace,
                       msgl__cuda_dual_sparse_workspace(c->num_q_heads, c->head_dim, k[0])));
    decode_world(w);
    attn_poison(w);
    const msgl_dual_sparse left_out = {p->last, q[0] > p->last ? k[0] - 1 : INT32_MAX};
    CUDA_OK(msgl__cuda_dual_prefill(c, len, left_out, 0));
    for (int at = k[0] - q[0]; at < k[0] && q[0] > p->last; at = p->end) {
        p->row = at - (k[0] - q[0]);
        p->begin = at;
        p->end = (at / len + 1) * len < k[0] ? (at / len + 1) * len : k[0];
        CUDA_OK(msgl__cuda_dual_sparse_prompt(c, p, 0));
        CUDA_OK(cudaDeviceSynchronize());
        check_piece(&s, f);
    }
    CUDA_OK(cudaFree((void *)p->counts));
    CUDA_OK(cudaFree((void *)p->turns));
    CUDA_OK(cudaFree(p->workspace));
    dual_close(&s.d);
}

// Launched, launched again, and as a graph.
static void check_answers(attn_rng *rng, family *f, int i)
{
    static const int dims[] = {128, 64, 96, 256};
    int32_t q[BATCH], k[BATCH];
    const int32_t len = attn_range(rng, 20, 200);
    for (int r = 0; r < BATCH; r++) {
        q[r] = 1;
        k[r] = attn_range(rng, 1, r < 2 ? len : 2000);
        if (r == 5) k[r] = len * attn_range(rng, 1, 4);
    }
    dual_world d;
    dual_open(&d, rng, i % 2 ? MSGL_F16 : MSGL_BF16, BATCH, q, k, GROUPS[i % 5] * 2, 2, dims[i % 4],
              PAGES[i % 4], len);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    attn_poison(&d.w);
    CUDA_OK(cudaDeviceSynchronize());
    answers(&d, stream);
    CUDA_OK(cudaDeviceSynchronize());
    compare(&d, f, "answers");
    const cudaGraphExec_t graph = cuda_capture(stream, [&] { answers(&d, stream); });
    attn_poison(&d.w);
    CUDA_OK(cudaMemset(d.to.seqlens_k, 0, BATCH * MSGL_DUAL_QUERIES * 4));
    CUDA_OK(cudaDeviceSynchronize());
    for (int n = 0; n < 3; n++) CUDA_OK(cudaGraphLaunch(graph, stream));
    CUDA_OK(cudaDeviceSynchronize());
    compare(&d, f, "answers in a graph");
    CUDA_OK(cudaGraphExecDestroy(graph));
    CUDA_OK(cudaStreamDestroy(stream));
    dual_close(&d);
}

static double rotated(const float *v, const float *cos_sin, int half, int i)
{
    if (i >= 2 * half) return v[i];
    const int pair = i % half;
    const double other = i < half ? -(double)v[i + half] : (double)v[i - half];
    return (double)v[i] * (double)cos_sin[pair] + other * (double)cos_sin[half + pair];
}

static void check_rope(bench_exec *e, family *f, msgl_dtype dtype, int dim, int half, int gap,
                       bool scaled_keys, uint64_t *seed)
{
    enum { TOKENS = 9, Q = 6, KV = 2, SLOTS = TOKENS + 3 };
    const size_t width = Q * (size_t)dim, ld = (Q + 2 * KV) * (size_t)dim + (size_t)gap;
    const size_t set = 2 * (size_t)half, slot = KV * (size_t)dim;
    const msgl_dual_chunk dual = {24, 32, 50, scaled_keys};
    int32_t positions[TOKENS], prompt_lens[TOKENS], slots[TOKENS];
    array qkv = array_new(dtype, TOKENS * ld, 1, seed), freq = array_new(MSGL_F32, half, 1, seed);
    array table = array_new(MSGL_F32, TOKENS * MSGL_DUAL_SETS * set, 0, seed);
    array queries = array_new(dtype, TOKENS * MSGL_DUAL_QUERIES * width, 0, seed);
    array k = array_new(dtype, SLOTS * slot, 0, seed), v = array_new(dtype, SLOTS * slot, 0, seed);
    for (int t = 0; t < TOKENS; t++) {
        positions[t] = t * 11, prompt_lens[t] = t % 2 ? 200 : 50, slots[t] = SLOTS - 1 - t;
    }
    int32_t *dev_positions = ints_upload(positions, TOKENS);
    int32_t *dev_prompt_lens = ints_upload(prompt_lens, TOKENS),
            *dev_slots = ints_upload(slots, TOKENS);
    msgl_dual_table_call angles = {};
    angles.positions = dev_positions, angles.prompt_lens = dev_prompt_lens, angles.tokens = TOKENS;
    angles.inv_freq = (const float *)freq.dev, angles.half = half, angles.scale = 0.5f;
    angles.dual = dual, angles.cos_sin = (float *)table.dev;
    msgl_dual_rope_call c = {};
    c.rope.qkv = qkv.dev, c.rope.ld = ld, c.rope.tokens = TOKENS, c.rope.num_q_heads = Q;
    c.rope.num_kv_heads = KV, c.rope.head_dim = dim, c.rope.half = half, c.rope.kv_dtype = dtype;
    c.rope.cos_sin = (const float *)table.dev, c.rope.slots = dev_slots;
    c.rope.k_pool = k.dev, c.rope.v_pool = v.dev, c.queries = queries.dev;
    e->x.act = dtype;
    msgl__cuda_dual_table(&e->x, &angles);
    msgl__cuda_dual_rope_store(&e->x, &c);
    exec_sync(e);
    array_download(&table);
    array_download(&queries);
    array_download(&k);
    array_download(&v);
    for (size_t t = 0; t < TOKENS; t++) {
        const int own = positions[t] % 24, at[] = {own, own, own < 8 ? own + 24 : 32, 32};
        const bool answer = positions[t] >= prompt_lens[t];
        const double n = answer ? positions[t] + 1 : prompt_lens[t];
        const double factor = 1 + 0.1 * log(n / 50), key = scaled_keys && !answer ? factor : 1;
        const float *sets = table.host + t * MSGL_DUAL_SETS * set, *row = qkv.host + t * ld;
        for (size_t s = 0; s < MSGL_DUAL_SETS; s++) {
            for (int i = 0; i < half; i++) {
                const double angle = (double)((float)at[s] * freq.host[i]);
                const double query = scaled_keys ? factor : factor * factor;
                const double scale = 0.5 * (s == 0 ? key : query);
                expect_near(f, sets[s * set + i], scale * cos(angle), 1e-5, "cosine");
                expect_near(f, sets[s * set + half + i], scale * sin(angle), 1e-5, "sine");
            }
        }
        for (size_t i = 0; i < (Q + 2 * KV) * (size_t)dim; i++) {
            const float *head = row + i / dim * dim;
            const int at_dim = (int)(i % dim);
            for (size_t q = 0; q < MSGL_DUAL_QUERIES && i < width; q++) {
                const double want = rotated(head, sets + (q + 1) * set, half, at_dim);
                const float got = queries.host[(t * MSGL_DUAL_QUERIES + q) * width + i];
                expect_near(f, got, want, fabs(want) * dtype_error(dtype) + 4e-6, "query");
            }
            const size_t to = (size_t)slots[t] * slot;
            if (i >= width && i < width + slot) {
                const double want = rotated(head, sets, half, at_dim);
                expect_near(f, k.host[to + i - width], want, fabs(want) * dtype_error(dtype) + 4e-6,
                            "key");
            } else if (i >= width) {
                expect(f, v.host[to + i - width - slot] == head[at_dim], "value");
            }
        }
    }
    CUDA_OK(cudaFree(dev_positions));
    CUDA_OK(cudaFree(dev_prompt_lens));
    CUDA_OK(cudaFree(dev_slots));
    array *const all[] = {&qkv, &freq, &table, &queries, &k, &v};
    for (array *a : all) array_free(a);
}

template <typename QUEUE> static double time_us(int times, QUEUE queue)
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

// Makes a world of one answer a prompt of all its tokens, with the same queries.
static void make_prompt(dual_world *d)
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

// All of a prompt, chunk by chunk.
static void sparse_prompt(const dual_world *d, msgl_sparse_piece *s)
{
    const int32_t n = d->w.call.total_q;
    for (s->begin = s->row = 0; s->begin < n; s->begin = s->row = s->end) {
        s->end = s->begin + s->dual_len < n ? s->begin + s->dual_len : n;
        CUDA_OK(msgl__cuda_dual_sparse_prompt(&d->w.call, s, 0));
    }
}

// Qwen2.5-7B-Instruct-1M's shape: 28 heads over 4, chunks of 7168 tokens.
static void bench(attn_rng *rng)
{
    enum { HEADS = 28, KV = 4, DIM = 128, CHUNK = 7168 };
    printf("bf16, %d heads over %d, head_dim %d, chunks of %d, us\n", HEADS, KV, DIM, CHUNK);
    printf("| prompt | dual | TFLOP/s | plain, prefill for sm_80 | TFLOP/s | sparse |\n");
    msgl_sparse_piece s = {};
    int32_t counts[HEADS][2]; // as MInference has them for most heads
    float turns[2 * DIM] = {};
    for (int h = 0; h < HEADS; h++) counts[h][0] = 1000, counts[h][1] = 6096;
    for (int j = 0; j < DIM / 2; j++) turns[j] = turns[DIM + j] = 1;
    s.dual_len = CHUNK;
    s.last = 64;
    s.half = DIM / 2;
    s.counts = (const int32_t *)device_copy(counts, sizeof counts);
    s.turns = (const float *)device_copy(turns, sizeof turns);
    CUDA_OK(cudaMalloc(&s.workspace, msgl__cuda_dual_sparse_workspace(HEADS, DIM, 65536)));
    for (int i = 0; i < 3; i++) {
        const int32_t one[1] = {1}, n[1] = {i == 0 ? 4096 : i == 1 ? 16384 : 65536};
        const double flops = 2.0 * HEADS * DIM * (double)n[0] * (double)n[0];
        dual_world d;
        dual_open(&d, rng, MSGL_BF16, 1, one, n, HEADS, KV, DIM, 64, CHUNK);
        make_prompt(&d);
        const int times = i == 2 ? 2 : 5;
        const double dual =
            time_us(times, [&] { CUDA_OK(msgl__cuda_dual_prefill(&d.w.call, CHUNK, NONE, 0)); });
        const double plain =
            time_us(times, [&] { CUDA_OK(msgl__cuda_fa_prefill_sm80(&d.w.call, 0)); });
        const double sparse = time_us(times, [&] { sparse_prompt(&d, &s); });
        printf("| 1x%d | %.0f | %.0f | %.0f | %.0f | %.0f |\n", (int)n[0], dual,
               flops / dual * 1e-6, plain, flops / plain * 1e-6, sparse);
        dual_close(&d);
    }
    CUDA_OK(cudaFree((void *)s.counts));
    CUDA_OK(cudaFree((void *)s.turns));
    CUDA_OK(cudaFree(s.workspace));
    printf("| answers | dual | GB/s | plain | GB/s |\n");
    for (int i = 0; i < 4; i++) {
        const int batch = i < 2 ? 1 : i == 2 ? 16 : 64;
        const int32_t len = i == 0 ? 16384 : i == 1 ? 65536 : i == 2 ? 16384 : 8192;
        int32_t q[64], k[64];
        for (int r = 0; r < batch; r++) q[r] = 1, k[r] = len;
        dual_world d;
        dual_open(&d, rng, MSGL_BF16, batch, q, k, HEADS, KV, DIM, 64, CHUNK);
        const double bytes = (double)batch * len * KV * DIM * 4;
        d.parts.max_seqlen_k = len - CHUNK > CHUNK ? len - CHUNK : CHUNK;
        msgl_cuda_attn_call plain_call = d.w.call;
        plain_call.lse = NULL;
        const double dual = time_us(50, [&] { answers(&d, 0); });
        const double plain = time_us(50, [&] { CUDA_OK(msgl__cuda_fa_decode(&plain_call, 0)); });
        printf("| %dx%d | %.1f | %.0f | %.1f | %.0f |\n", batch, (int)len, dual,
               bytes / dual * 1e-3, plain, bytes / plain * 1e-3);
        dual_close(&d);
    }
}

int main(int argc, char **argv)
{
    const options args = parse_options(argc, argv);
    uint64_t seed = args.seed;
    attn_rng rng = {args.seed};
    family rope = {"dual rope"}, prompts = {"dual prompts"}, pieces = {"dual pieces"};
    family decode = {"dual answers"}, sparse = {"sparse prompts"};
    static bench_exec e;
    exec_open(&e, 1 << 20);
    for (int d = 0; d < 3; d++) {
        const msgl_dtype dtype = d == 0 ? MSGL_BF16 : d == 1 ? MSGL_F16 : MSGL_F32;
        check_rope(&e, &rope, dtype, 128, 64, 8, false, &seed);
        check_rope(&e, &rope, dtype, 80, 32, 0, true, &seed);
        check_rope(&e, &rope, dtype, 40, 10, 3, false, &seed);
    }
    for (int i = 0; i < (args.quick ? 6 : 30); i++) check_prompts(&rng, &prompts, i, args.quick);
    for (int i = 0; i < (args.quick ? 1 : 6); i++) check_pieces(&rng, &pieces, i);
    for (int i = 0; i < (args.quick ? 4 : 24); i++) check_sparse(&rng, &sparse, i, args.quick);
    for (int i = 0; i < (args.quick ? 2 : 20); i++) check_answers(&rng, &decode, i);
    int failed = family_end(&rope);
    failed |= family_end(&prompts);
    failed |= family_end(&pieces);
    failed |= family_end(&decode);
    failed |= family_end(&sparse);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0) bench(&rng);
    }
    return failed;
}
