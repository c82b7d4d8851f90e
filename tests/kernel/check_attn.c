// SPDX-License-Identifier: Apache-2.0
//
// Family attn: paged attention against sums in f64, and the stores of K and V against exact
// rounding. The conformance of whole backends is in tests/attention.
#include "kernel/checkkern.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/round.h"
#include "kernel/attn_internal.h"
#include "utils/rounded.h"

void msgl__check_attn(checkkern *ck);

typedef struct problem {
    msgl_dtype dtype;
    int group, kv_heads, dim, page, window;
    int v_dim; // not 0: V is so much of K
    float softcap;
    int tokens, keys; // one request: its last `tokens` of `keys`
    int rows;         // of a work item
    bool split;       // every tile a partial of its own
    int heads_per_task;
} problem;

typedef struct memory {
    msgl_attn_call call;
    float *q;
    ck_buf out;
    double *want;
    double vmax;
    int layers; // copies of K and V that timing walks through
    size_t layer_bytes;
} memory;

static int v_dim_of(const problem *p)
{
    return p->v_dim > 0 ? p->v_dim : p->dim;
}

// Pages in reverse order, everything else of the pool NaN.
static void make_pool(checkkern *ck, const problem *p, memory *m, float **k, float **v)
{
    const size_t row = (size_t)p->kv_heads * (size_t)p->dim, size = msgl__dtype_size(p->dtype);
    const int pages = msgl__ceil_div(p->keys, p->page);
    int32_t *table = msgl__ck_alloc(ck, (size_t)(pages + 1) * sizeof *table);
    m->layer_bytes = (size_t)(pages + 1) * (size_t)p->page * row * size;
    const int v_from = p->v_dim > 0 ? 0 : 1; // V lies in K
    char *pool[2];
    float *source[2];
    for (int i = 0; i < 2; i++) {
        pool[i] = msgl__ck_alloc(ck, m->layer_bytes * (size_t)m->layers);
        source[i] = msgl__ck_alloc(ck, (size_t)p->keys * row * sizeof(float));
        memset(pool[i], 0xff, m->layer_bytes);
    }
    for (int i = 0; i < pages; i++) table[i] = pages - i;
    table[pages] = -1;
    for (int i = 0; i < p->keys; i++) {
        const size_t slot = (size_t)(table[i / p->page] * p->page + i % p->page);
        for (size_t d = 0; d < row; d++) {
            for (int kv = 0; kv < 2; kv++) {
                const float x = rounded(msgl__ck_normal(ck), p->dtype);
                source[kv][(size_t)i * row + d] = x;
                msgl__store_f32(pool[kv], p->dtype, slot * row + d, x);
                if (kv == v_from) m->vmax = fmax(m->vmax, fabs((double)x));
            }
        }
    }
    for (int i = 1; i < m->layers; i++) {
        memcpy(pool[0] + (size_t)i * m->layer_bytes, pool[0], m->layer_bytes);
        memcpy(pool[1] + (size_t)i * m->layer_bytes, pool[1], m->layer_bytes);
    }
    m->call.k = pool[0];
    m->call.v = pool[v_from];
    m->call.pages = table;
    *k = source[0];
    *v = source[v_from];
}

static void make_list(checkkern *ck, const problem *p, memory *m)
{
    const int packed = p->tokens * p->group, first_pos = p->keys - p->tokens;
    const int tiles = msgl__ceil_div(p->keys, MSGL_ATTN_TILE);
    const int items = msgl__ceil_div(packed, p->rows);
    msgl_attn_work *w = msgl__ck_alloc(ck, (size_t)items * (size_t)tiles * sizeof *w);
    msgl_attn_group *g = msgl__ck_alloc(ck, (size_t)items * sizeof *g);
    int n = 0;
    for (int i = 0; i < items; i++) {
        const int row = i * p->rows, rows = packed - row < p->rows ? packed - row : p->rows;
        const int end = first_pos + (row + rows - 1) / p->group + 1;
        if (!p->split) {
            w[n++] = (msgl_attn_work){.row = row, .rows = rows, .kv_end = end, .partial = -1};
            continue;
        }
        g[i] = (msgl_attn_group){.row = row, .rows = rows, .partial = n};
        for (int at = 0; at < end;
             at += MSGL_ATTN_TILE, g[i].num_partials++, g[i].num_works++, n++) {
            const int to = at + MSGL_ATTN_TILE < end ? at + MSGL_ATTN_TILE : end;
            w[n] = (msgl_attn_work){
                .row = row, .rows = rows, .kv_begin = at, .kv_end = to, .partial = n, .group = i};
        }
    }
    m->call.works = w;
    m->call.groups = g;
    m->call.num_works = n;
    m->call.partial_rows = p->rows;
    m->call.partials =
        msgl__ck_alloc(ck, (size_t)n * (size_t)p->kv_heads *
                               msgl__attn_partial_floats(p->rows, v_dim_of(p)) * sizeof(float));
    m->call.pending = msgl__ck_alloc(ck, (size_t)items * (size_t)p->kv_heads * sizeof(atomic_int));
}

static void exact(const problem *p, const memory *m, const float *k, const float *v)
{
    const size_t row = (size_t)p->kv_heads * (size_t)p->dim;
    const int heads = p->kv_heads * p->group;
    double *s = msgl__calloc((size_t)p->keys, sizeof *s);
    for (int t = 0; t < p->tokens; t++) {
        const int pos = p->keys - p->tokens + t;
        const int from = p->window >= 0 && pos > p->window ? pos - p->window : 0;
        for (int h = 0; h < heads; h++) {
            const float *q = m->q + (size_t)t * m->call.ld_q + (size_t)h * (size_t)p->dim;
            const size_t at = (size_t)(h / p->group) * (size_t)p->dim;
            double top = -INFINITY, sum = 0;
            for (int i = from; i <= pos; i++) {
                double dot = 0;
                for (int d = 0; d < p->dim; d++) {
                    dot += (double)q[d] * (double)k[(size_t)i * row + at + (size_t)d];
                }
                s[i] = dot * (double)m->call.scale;
                if (p->softcap > 0) s[i] = (double)p->softcap * tanh(s[i] / (double)p->softcap);
                top = fmax(top, s[i]);
            }
            const int v_dim = v_dim_of(p);
            double *o = m->want + ((size_t)t * (size_t)heads + (size_t)h) * (size_t)v_dim;
            for (int i = from; i <= pos; i++) {
                const double e = exp(s[i] - top);
                sum += e;
                for (int d = 0; d < v_dim; d++) {
                    o[d] += e * (double)v[(size_t)i * row + at + (size_t)d];
                }
            }
            for (int d = 0; d < v_dim; d++) o[d] /= sum;
        }
    }
    msgl__free(s);
}

static memory make(checkkern *ck, const problem *p, int layers)
{
    const int heads = p->kv_heads * p->group, width = heads * p->dim;
    const int out_width = heads * v_dim_of(p);
    memory m = {.layers = layers};
    float *k, *v;
    const size_t ld_q = (size_t)width + 24;
    m.q = msgl__ck_alloc(ck, (size_t)p->tokens * ld_q * sizeof(float));
    for (size_t i = 0; i < (size_t)p->tokens * ld_q; i++) {
        m.q[i] = i % ld_q < (size_t)width ? msgl__ck_normal(ck) : NAN;
    }
    m.out = msgl__ck_buf(ck, p->tokens, out_width, (size_t)out_width + 8);
    m.want = msgl__ck_alloc(ck, (size_t)p->tokens * (size_t)out_width * sizeof *m.want);
    int32_t *lens = msgl__ck_alloc(ck, 3 * sizeof *lens);
    lens[1] = p->tokens;
    lens[2] = p->keys;
    const msgl_attn_kernels *kernels = &ck->cur->attn;
    const size_t stride = kernels->scratch_size(kernels, p->dtype, p->dim, p->v_dim > 0);
    const size_t threads = (size_t)msgl__pool_threads(ck->exec->pool);
    m.call = (msgl_attn_call){.dtype = p->dtype,
                              .num_q_heads = heads,
                              .num_kv_heads = p->kv_heads,
                              .head_dim = p->dim,
                              .v_dim = v_dim_of(p),
                              .latent = p->v_dim > 0,
                              .q = m.q,
                              .ld_q = ld_q,
                              .out = m.out.data,
                              .ld_out = m.out.ld,
                              .scale = 1 / sqrtf((float)p->dim),
                              .softcap = p->softcap,
                              .out_scale = 1,
                              .window = p->window,
                              .page_size = p->page,
                              .cu_seqlens_q = lens,
                              .seqlens_k = lens + 2,
                              .heads_per_task = p->heads_per_task,
                              .scratch = msgl__ck_alloc(ck, threads * stride),
                              .scratch_stride = stride};
    make_pool(ck, p, &m, &k, &v);
    make_list(ck, p, &m);
    exact(p, &m, k, v);
    return m;
}

// Per dtype, of the largest |v|: products of f32 (f32, f16 pools) err by a few 2^-24 per key summed
// like a random walk; with a bf16 pool, and E4M3, which becomes that, levels from AVX-512-BF16 on
// round q and probabilities to 8 bits.
static ck_tol tolerance(msgl_dtype dtype, double vmax)
{
    return dtype == MSGL_BF16 || dtype == MSGL_E4M3 ? (ck_tol){.abs = 8e-3 * vmax, .nmse = 4e-5}
                                                    : (ck_tol){.abs = 2e-6 * vmax, .nmse = 1e-11};
}

static void check_one(checkkern *ck, const problem *p)
{
    memory m = make(ck, p, 1);
    const msgl_attn_kernels *k = &ck->cur->attn;
    k->paged(k, ck->exec, &m.call);
    msgl__ck_near(ck, "out", &m.out, m.want, tolerance(p->dtype, m.vmax));
    // The same bits with one thread, other items, and partials instead of one walk.
    problem other = *p;
    other.rows = p->rows == 16 ? 7 : 16;
    other.split = !p->split;
    other.heads_per_task = p->heads_per_task == 1 && p->kv_heads % 2 == 0 ? 2 : 1;
    memory n = m;
    n.out = msgl__ck_buf(ck, p->tokens, m.out.cols, m.out.ld);
    n.call.out = n.out.data;
    n.call.heads_per_task = other.heads_per_task;
    make_list(ck, &other, &n);
    k->paged(k, ck->exec1, &n.call);
    for (int r = 0; r < p->tokens; r++) {
        msgl__ck_same(ck, "other items", m.out.data + (size_t)r * m.out.ld,
                      n.out.data + (size_t)r * n.out.ld, (size_t)m.out.cols);
    }
}

typedef struct timing {
    checkkern *ck;
    memory m;
    const char *k, *v;
} timing;

static void run_timing(void *arg, int i)
{
    timing *t = arg;
    const msgl_attn_kernels *k = &t->ck->cur->attn;
    const size_t at = (size_t)(i % t->m.layers) * t->m.layer_bytes;
    t->m.call.k = t->k + at;
    t->m.call.v = t->v + at;
    k->paged(k, t->ck->exec, &t->m.call);
}

static void time_one(checkkern *ck, const problem *p, ck_limit limit)
{
    const double elem = (double)msgl__dtype_size(p->dtype);
    const double bytes = 2.0 * p->keys * p->kv_heads * p->dim * elem;
    timing t = {.ck = ck, .m = make(ck, p, limit == CK_LIMIT_READ ? 1 + (int)(512e6 / bytes) : 1)};
    t.k = t.m.call.k;
    t.v = t.m.call.v;
    double pairs = 0;
    for (int i = 0; i < p->tokens; i++) pairs += p->keys - p->tokens + i + 1;
    msgl__ck_time(ck, run_timing, &t, bytes, 4 * pairs * p->kv_heads * p->group * p->dim, limit);
}

// Drafts: 2 to 8 tokens behind a long context, whose heads a task takes one by one or up to eight
// together.
static void check_few(checkkern *ck, msgl_dtype dtype, int group, int dim)
{
    for (int round = 0; round < 4; round++) {
        problem p = {.dtype = dtype, .group = group, .dim = dim, .kv_heads = 8, .rows = 16};
        p.page = msgl__ck_int(ck, 1, 40);
        p.window = round == 3 ? msgl__ck_int(ck, 0, 300) : -1;
        p.softcap = round == 2 ? 15 : 0;
        p.keys = msgl__ck_int(ck, 700, 1800);
        p.tokens = msgl__ck_int(ck, 2, 8);
        p.split = round % 2;
        p.heads_per_task = 1 << msgl__ck_int(ck, 0, 3);
        check_one(ck, &p);
        msgl__ck_reset(ck);
    }
}

static void check_paged(checkkern *ck, msgl_dtype dtype)
{
    static const struct {
        int group, dim;
    } shapes[] = {{1, 64}, {2, 128}, {3, 80}, {4, 96}, {5, 64}, {7, 128}, {8, 256}, {16, 72}};
    const ck_fn cur = CK_FN(ck->cur->attn.ops[dtype]->tile);
    const ck_fn prev = ck->prev == NULL ? NULL : CK_FN(ck->prev->attn.ops[dtype]->tile);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (!msgl__ck_func(ck, cur, prev, "attn_paged_%s_g%d_d%d", msgl__dtype_name(dtype),
                           shapes[i].group, shapes[i].dim)) {
            continue;
        }
        for (int round = 0; round < 6; round++) {
            problem p = {.dtype = dtype, .group = shapes[i].group, .dim = shapes[i].dim};
            p.kv_heads = msgl__ck_int(ck, 1, 2);
            p.page = msgl__ck_int(ck, 1, 40);
            p.window = round % 3 == 2 ? msgl__ck_int(ck, 0, 300) : -1;
            p.softcap = round % 4 == 3 ? 15 : 0;
            p.keys = msgl__ck_int(ck, 1, 600);
            p.tokens = round % 2 == 0 ? 1 : msgl__ck_int(ck, 1, p.keys < 50 ? p.keys : 50);
            p.rows = round % 2 == 0 ? 16 : msgl__ck_int(ck, 1, 128);
            p.split = msgl__ck_int(ck, 0, 1);
            p.heads_per_task = p.rows <= 16 && p.kv_heads == 2 ? msgl__ck_int(ck, 1, 2) : 1;
            check_one(ck, &p);
            msgl__ck_reset(ck);
        }
        if (i < 4) check_few(ck, dtype, shapes[i].group, shapes[i].dim);
        if (!ck->bench || shapes[i].dim != 128) continue;
        problem p = {.dtype = dtype,
                     .group = shapes[i].group,
                     .kv_heads = 8,
                     .dim = 128,
                     .page = 16,
                     .window = -1,
                     .keys = 2048,
                     .tokens = 1,
                     .rows = 16,
                     .split = true,
                     .heads_per_task = 8};
        time_one(ck, &p, CK_LIMIT_READ);
        msgl__ck_reset(ck);
        p.tokens = p.keys = 512;
        p.rows = 128;
        p.split = false;
        p.heads_per_task = 1;
        time_one(ck, &p, dtype >= MSGL_BF16 ? CK_LIMIT_BF16 : CK_LIMIT_F32);
        msgl__ck_reset(ck);
    }
}

// V as the beginning of K, and dimensions beyond those of K and V apart.
static void check_latent(checkkern *ck, msgl_dtype dtype)
{
    static const struct {
        int heads, dim, v_dim;
    } shapes[] = {{1, 40, 32}, {16, 576, 512}, {20, 72, 64}, {7, 200, 104}};
    const ck_fn cur = CK_FN(ck->cur->attn.latent_ops[dtype]->tile);
    const ck_fn prev = ck->prev == NULL ? NULL : CK_FN(ck->prev->attn.latent_ops[dtype]->tile);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (!msgl__ck_func(ck, cur, prev, "attn_latent_%s_h%d_d%d", msgl__dtype_name(dtype),
                           shapes[i].heads, shapes[i].dim)) {
            continue;
        }
        for (int round = 0; round < 4; round++) {
            problem p = {.dtype = dtype,
                         .group = shapes[i].heads,
                         .kv_heads = 1,
                         .dim = shapes[i].dim,
                         .v_dim = shapes[i].v_dim,
                         .page = msgl__ck_int(ck, 1, 40),
                         .window = -1,
                         .keys = msgl__ck_int(ck, 1, 600),
                         .rows = round % 2 == 0 ? 16 : msgl__ck_int(ck, 1, 128),
                         .split = msgl__ck_int(ck, 0, 1),
                         .heads_per_task = 1};
            const int most = shapes[i].dim > 100 ? 4 : 30; // the sums in f64 take longest
            p.tokens = round % 2 == 0 ? 1 : msgl__ck_int(ck, 1, p.keys < most ? p.keys : most);
            check_one(ck, &p);
            msgl__ck_reset(ck);
        }
    }
}

// Every 16-bit pattern's neighbourhood: values, halfway cases, subnormals, infinities. Nothing is
// rotated.
static void check_store(checkkern *ck, msgl_dtype dtype)
{
    if (!msgl__ck_func(ck, CK_FN(ck->cur->rope.qk_norm_rope_store),
                       CK_PREV(ck, rope.qk_norm_rope_store), "kv_store_%s",
                       msgl__dtype_name(dtype))) {
        return;
    }
    enum { ROW = 64, TOKENS = 1024 };
    static const float K_SCALE = 0.75f; // of E4M3
    const size_t n = (size_t)ROW * TOKENS, size = msgl__dtype_size(dtype);
    float *in = msgl__ck_alloc(ck, 2 * n * sizeof *in);
    int32_t *slots = msgl__ck_alloc(ck, TOKENS * sizeof *slots);
    char *pool = msgl__ck_alloc(ck, 2 * n * size), *want = msgl__ck_alloc(ck, 2 * n * size);
    for (size_t i = 0; i < 2 * n; i++) {
        const uint32_t low = (uint32_t)(msgl__ck_rand(ck) % 4) * 0x7fff + (uint32_t)(i & 1);
        const uint32_t bits = (uint32_t)(i % 65536) << 16 | (low & 0xffff);
        memcpy(&in[i], &bits, 4);
        if (isnan(in[i])) in[i] = dtype == MSGL_E4M3 ? NAN : INFINITY;
        if (dtype == MSGL_E4M3 && i % 2 == 0) in[i] = msgl__ck_normal(ck) * (i % 4 ? 0.01f : 200);
        if (dtype == MSGL_F16 && i % 2 == 0) in[i] = msgl__ck_normal(ck) * 1e-5f;
    }
    for (int t = 0; t < TOKENS; t++) slots[t] = TOKENS - 1 - t;
    for (size_t t = 0; t < TOKENS; t++) {
        for (size_t i = 0; i < ROW; i++) {
            const size_t to = (size_t)slots[t] * ROW + i;
            const float k = in[2 * t * ROW + i], v = in[(2 * t + 1) * ROW + i];
            msgl__store_f32(want, dtype, to, dtype == MSGL_E4M3 ? k * (1 / K_SCALE) : k);
            msgl__store_f32(want + n * size, dtype, to, v);
        }
    }
    const msgl_rope_call c = {.qkv = in,
                              .ld = 2 * ROW,
                              .tokens = TOKENS,
                              .num_kv_heads = 2,
                              .head_dim = ROW / 2,
                              .kv_dtype = dtype,
                              .k_scale = K_SCALE,
                              .v_scale = 1,
                              .k_pool = pool,
                              .v_pool = pool + n * size,
                              .slots = slots};
    ck->cur->rope.qk_norm_rope_store(ck->exec, &c);
    msgl__ck_true(ck, memcmp(pool, want, 2 * n * size) == 0, "stored bits differ");
}

void msgl__check_attn(checkkern *ck)
{
    for (int dtype = 0; dtype < MSGL_DTYPE_COUNT; dtype++) {
        check_paged(ck, (msgl_dtype)dtype);
        check_latent(ck, (msgl_dtype)dtype);
        check_store(ck, (msgl_dtype)dtype);
    }
}
