// SPDX-License-Identifier: Apache-2.0
//
// torch_native: attention as a textbook writes it. Per request and KV head: gather K and V into
// rows, scores by one matrix product, softmax, one more product with V. f32 throughout, through
// OpenBLAS, kept to one thread; our pool runs requests and heads side by side. Slow, and easy to
// read: the baseline that the others are compared with.
//
// OpenBLAS is opened when this backend is created, not linked: loading it starts threads, which no
// other user of the program should pay for.
//
// Tolerance against exact attention (tests/attention/world.c), over the largest |v|: 2e-6 for every
// KV dtype, whose rounding both sides see.
#include "attention/torch_native/torch_native.h"

#include <cblas.h>
#include <dlfcn.h>
#include <math.h>
#include <string.h>

#include "attention/expand.h"
#include "attention/paged.h"
#include "core/mem.h"

#define LIBRARY "libopenblas.so.0"

enum { ROWS = 64 }; // packed query rows per product

typedef struct openblas {
    void *library;
    __typeof__(&cblas_sgemm) sgemm;
    __typeof__(&openblas_set_num_threads) set_threads;
} openblas;

typedef struct torch_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    void *scratch; // [threads] of scratch_floats
    size_t scratch_bytes, scratch_floats;
    openblas blas;
} torch_backend;

typedef struct torch_call {
    const torch_backend *b;
    const msgl_attn_layer *layer;
    const msgl_seqs *seqs;
    const float *q;
    size_t ld;
    float *out;
} torch_call;

static void torch_destroy(msgl_attn_backend *base)
{
    torch_backend *b = (torch_backend *)base;
    if (b == NULL) return;
    if (b->blas.library != NULL) dlclose(b->blas.library);
    msgl__pages_free(b->scratch, b->scratch_bytes);
    msgl__free(b);
}

// Per thread: K and V [max_seq_len, head_dim] (V not where it lies in K), q and o [ROWS, head_dim],
// scores [ROWS, max_seq_len].
static int torch_memory(torch_backend *b, msgl_err *err)
{
    const msgl_attn_config *cfg = &b->cfg;
    const size_t dim = (size_t)cfg->head_dim, len = (size_t)cfg->max_seq_len;
    b->scratch_floats = len * (2 * dim + ROWS) + 2 * ROWS * dim;
    if (msgl__size_mul(b->scratch_floats * sizeof(float), (size_t)cfg->num_threads,
                       &b->scratch_bytes) != 0) {
        return msgl__err_set(err, MSGL_ELIMIT, "torch_native: workspace too large");
    }
    b->scratch = msgl__pages_alloc(b->scratch_bytes);
    if (b->scratch == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "torch_native: no memory for %zu bytes",
                             b->scratch_bytes);
    }
    return 0;
}

static int open_library(openblas *o, msgl_err *err)
{
    o->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (o->library == NULL) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend torch_native needs " LIBRARY
                             ": install the package libopenblas0");
    }
    // POSIX lets dlsym's result be stored through a pointer of object type.
    *(void **)&o->sgemm = dlsym(o->library, "cblas_sgemm");
    *(void **)&o->set_threads = dlsym(o->library, "openblas_set_num_threads");
    if (o->sgemm != NULL && o->set_threads != NULL) return 0;
    dlclose(o->library);
    o->library = NULL;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "attention backend torch_native: " LIBRARY
                         " lacks cblas_sgemm or openblas_set_num_threads");
}

static int torch_supports(const msgl_attn_needs *needs, msgl_err *err)
{
    (void)needs;
    openblas o;
    const int rc = open_library(&o, err);
    if (rc == 0) dlclose(o.library);
    return rc;
}

static int torch_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                        msgl_attn_backend **out, msgl_err *err)
{
    int rc = msgl__attn_config_check(desc, cfg, err);
    if (rc != 0) return rc;
    torch_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "torch_native: out of memory");
    b->base.desc = desc;
    b->cfg = *cfg;
    rc = torch_memory(b, err);
    if (rc == 0) rc = open_library(&b->blas, err);
    if (rc != 0) {
        torch_destroy(&b->base);
        return rc;
    }
    b->blas.set_threads(1);
    *out = &b->base;
    return 0;
}

// Rows of one KV head, of keys [first, first + len) of a row of the page table, as f32.
static void gather(const torch_call *c, int kv, int32_t row, int first, int len, int kv_head,
                   float *to)
{
    const msgl_kv_pool *pool = c->b->cfg.pool;
    const msgl_page_table *table = c->b->cfg.page_table;
    const void *from = msgl__kv_layer(pool, kv, c->layer->layer);
    const size_t dim = (size_t)(kv == 0 ? pool->spec.k_dim : pool->spec.v_dim);
    const size_t stride = (size_t)pool->spec.num_heads * dim;
    for (int p = 0; p < len; p++) {
        const size_t slot = (size_t)msgl__page_table_slot(table, row, first + p);
        const size_t at = slot * stride + (size_t)kv_head * dim;
        for (size_t d = 0; d < dim; d++) *to++ = msgl__load_f32(from, pool->spec.dtype, at + d);
    }
}

// Scores [len] of a query of one head whose keys are [from, pos] to probabilities; masked keys get
// 0.
static void softmax(const msgl_attn_layer *layer, size_t head, int from, int pos, int len, float *s)
{
    float m = -INFINITY, l = 0;
    for (int p = from; p <= pos; p++) {
        if (layer->softcap > 0) s[p] = layer->softcap * tanhf(s[p] / layer->softcap);
        m = s[p] > m || isnan(s[p]) ? s[p] : m;
    }
    for (int p = from; p <= pos; p++) {
        s[p] = expf(s[p] - m);
        l += s[p];
    }
    if (layer->sinks != NULL) l += expf(layer->sinks[head] - m);
    memset(s, 0, (size_t)from * sizeof *s);
    for (int p = from; p <= pos; p++) s[p] /= l;
    memset(s + pos + 1, 0, (size_t)(len - pos - 1) * sizeof *s);
}

// One request, one KV head. Keys are counted from the first one that the first query sees: what the
// pool holds before it is no longer the request's.
static void torch_task(void *arg, int task, int worker)
{
    const torch_call *c = arg;
    const msgl_attn_config *cfg = &c->b->cfg;
    const msgl_seqs *seqs = c->seqs;
    const int kv_head = task % cfg->num_kv_heads, req = task / cfg->num_kv_heads;
    const int group = cfg->num_q_heads / cfg->num_kv_heads, dim = cfg->head_dim;
    const int v_dim = cfg->pool->spec.v_dim;
    const int first = seqs->cu_seqlens_q[req], tokens = seqs->cu_seqlens_q[req + 1] - first;
    const int rows = tokens * group, first_pos = seqs->seqlens_k[req] - tokens;
    const int skip = msgl__torch_first_key(c->layer, first_pos), len = seqs->seqlens_k[req] - skip;
    float *k = (float *)c->b->scratch + (size_t)worker * c->b->scratch_floats;
    float *v = msgl__attn_latent(cfg) ? k : k + (size_t)len * (size_t)dim;
    const int ld_v = v == k ? dim : v_dim;
    float *q = v + (size_t)len * (size_t)ld_v;
    float *o = q + ROWS * (size_t)dim, *s = o + ROWS * (size_t)dim;
    const size_t head = (size_t)kv_head * (size_t)group, row_bytes = (size_t)dim * sizeof(float);
    const size_t ld_out = (size_t)cfg->num_q_heads * (size_t)v_dim;
    gather(c, 0, seqs->table_rows[req], skip, len, kv_head, k);
    if (v != k) gather(c, 1, seqs->table_rows[req], skip, len, kv_head, v);
    for (int row = 0; row < rows; row += ROWS) {
        const int n = rows - row < ROWS ? rows - row : ROWS;
        for (int i = 0; i < n; i++) {
            const size_t token = (size_t)(first + (row + i) / group);
            memcpy(q + (size_t)i * (size_t)dim,
                   c->q + token * c->ld + (head + (size_t)((row + i) % group)) * (size_t)dim,
                   row_bytes);
        }
        c->b->blas.sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, len, dim, c->layer->scale, q,
                         dim, k, dim, 0, s, len);
        for (int i = 0; i < n; i++) {
            const int pos = first_pos + (row + i) / group;
            softmax(c->layer, head + (size_t)((row + i) % group),
                    msgl__torch_first_key(c->layer, pos) - skip, pos - skip, len,
                    s + (size_t)i * (size_t)len);
        }
        c->b->blas.sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, v_dim, len, 1, s, len, v,
                         ld_v, 0, o, v_dim);
        for (int i = 0; i < n; i++) {
            const size_t token = (size_t)(first + (row + i) / group);
            memcpy(c->out + token * ld_out + (head + (size_t)((row + i) % group)) * (size_t)v_dim,
                   o + (size_t)i * (size_t)v_dim, (size_t)v_dim * sizeof(float));
        }
    }
}

static void torch_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                          const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const torch_backend *b = (const torch_backend *)base;
    torch_call c = {.b = b, .layer = layer, .seqs = seqs, .q = in->q, .ld = in->ld, .out = out};
    msgl__pool_run(x->pool, seqs->size * b->cfg.num_kv_heads, torch_task, &c);
}

const msgl_attn_desc msgl__attn_torch_native = {
    .name = "torch_native",
    .aliases = {NULL},
    .summary = "gather, matrix product, softmax, matrix product: the readable baseline",
    .page_rule = MSGL_PAGE_ANY,
    .caches = 1u << MSGL_CACHE_KV | 1u << MSGL_CACHE_LATENT,
    .expand = &msgl__expand_cpu,
    .max_dim = MSGL_ATTN_MAX_DIM,
    .own_v_dim = true,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16,
    .sliding_window = true,
    .local_chunks = true,
    .softcap = true,
    .sinks = true,
    .ragged = true,
    .supports = torch_supports,
    .create = torch_create,
    .destroy = torch_destroy,
    .forward = torch_forward,
};
