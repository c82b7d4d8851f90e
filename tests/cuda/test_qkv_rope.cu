// SPDX-License-Identifier: Apache-2.0
//
// The projection to q, K and V with norm, rotation and store in one kernel, against f64 on the
// host: which rows go where, what stays untouched, and the values.
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/wide_sm90.h"
#include "tests/cuda/ops_check.cuh"

struct qkv_case {
    int tokens, k, q, kv, head_dim;
    bool norm, bias;
    int pad_in, pad_out; // elements beyond the rows
};

struct qkv_data {
    int heads, num_slots;
    size_t ld_in, ld;
    array in, w, bias, qkv, table, q_weight, k_weight, pool[2];
    int32_t *slots, *device_slots;
};

static void make_data(qkv_data *d, const qkv_case *c, msgl_dtype dtype, uint64_t *seed)
{
    const int hd = c->head_dim;
    d->heads = c->q + 2 * c->kv;
    d->num_slots = 2 * c->tokens + 3;
    d->ld_in = (size_t)(c->k + c->pad_in);
    d->ld = (size_t)(d->heads * hd + c->pad_out);
    d->in = array_new(dtype, (size_t)c->tokens * d->ld_in, 1, seed);
    d->w = array_new(dtype, (size_t)d->heads * hd * c->k, 1 / sqrtf((float)c->k), seed);
    d->bias = array_new(MSGL_F32, (size_t)d->heads * hd, 1, seed);
    d->qkv = array_new(dtype, (size_t)c->tokens * d->ld, 0, seed);
    d->table = array_new(MSGL_F32, (size_t)c->tokens * hd, 1, seed);
    d->q_weight = array_new(MSGL_F32, (size_t)hd, 1, seed);
    d->k_weight = array_new(MSGL_F32, (size_t)hd, 1, seed);
    for (int i = 0; i < 2; i++) {
        d->pool[i] = array_new(dtype, (size_t)d->num_slots * c->kv * hd, 0, seed);
    }
    for (int t = 0; t < c->tokens; t++) {
        for (int i = 0; i < hd / 2; i++) {
            const double angle = 100 * rng_uniform(seed);
            d->table.host[(size_t)t * hd + i] = (float)cos(angle);
            d->table.host[(size_t)t * hd + hd / 2 + i] = (float)sin(angle);
        }
    }
    array_upload(&d->table);
    d->slots = (int32_t *)malloc(sizeof(int32_t) * c->tokens);
    for (int t = 0; t < c->tokens; t++) d->slots[t] = 2 * (c->tokens - 1 - t) + 1;
    d->device_slots = ints_upload(d->slots, c->tokens);
}

static void free_data(qkv_data *d)
{
    array *all[] = {&d->in,       &d->w,        &d->bias,    &d->qkv,    &d->table,
                    &d->q_weight, &d->k_weight, &d->pool[0], &d->pool[1]};
    for (array *a : all) array_free(a);
    CUDA_OK(cudaFree(d->device_slots));
    free(d->slots);
}

// Head h of token t as it has to come out; out [head_dim].
static void oracle(const qkv_case *c, const qkv_data *d, int t, int h, double *out)
{
    const int hd = c->head_dim, half = hd / 2;
    const float *row = d->in.host + (size_t)t * d->ld_in;
    double sum = 0;
    for (int i = 0; i < hd; i++) {
        const float *w = d->w.host + (size_t)(h * hd + i) * c->k;
        out[i] = c->bias ? d->bias.host[h * hd + i] : 0;
        for (int p = 0; p < c->k; p++) out[i] += (double)row[p] * w[p];
        sum += out[i] * out[i];
    }
    if (h >= c->q + c->kv) return;
    const float *weight = h < c->q ? d->q_weight.host : d->k_weight.host;
    const double inv = 1 / sqrt(sum / hd + 1e-6f);
    for (int i = 0; c->norm && i < hd; i++) out[i] *= inv * weight[i];
    const float *cosines = d->table.host + (size_t)t * hd, *sines = cosines + half;
    for (int i = 0; i < half; i++) {
        const double a = out[i], b = out[half + i];
        out[i] = a * cosines[i] - b * sines[i];
        out[half + i] = b * cosines[i] + a * sines[i];
    }
}

// Of one token: q in its row, K and V in its slot.
static void check_values(family *f, const qkv_case *c, const qkv_data *d, int t)
{
    const int hd = c->head_dim;
    double *want = (double *)malloc(sizeof(double) * hd);
    // The matrix units cut sums off once per 16 products; values are a few units large.
    const double slack = 6 * (2e-6 + c->k / 16 * 0x1p-24);
    for (int h = 0; h < d->heads; h++) {
        const bool is_v = h >= c->q + c->kv;
        const size_t slot = (size_t)d->slots[t] * c->kv;
        const float *got = h < c->q
                               ? d->qkv.host + (size_t)t * d->ld + (size_t)h * hd
                               : d->pool[is_v].host + (slot + (size_t)((h - c->q) % c->kv)) * hd;
        oracle(c, d, t, h, want);
        for (int i = 0; i < hd; i++) {
            const double allowed = fabs(want[i]) * dtype_error(d->qkv.dtype) * 1.01 + slack;
            expect_near(f, got[i], want[i], allowed, h < c->q ? "q" : is_v ? "v" : "k");
        }
    }
    free(want);
}

static void check(bench_exec *e, family *f, msgl_dtype dtype, const qkv_case *c, int rows,
                  uint64_t *seed)
{
    qkv_data d;
    make_data(&d, c, dtype, seed);
    e->x.act = dtype;
    const msgl_weight w = {&msgl__cuda_formats[dtype], d.heads * c->head_dim, c->k, d.w.dev};
    msgl_linear_call call = {};
    call.w = &w;
    call.bias = c->bias ? (const float *)d.bias.dev : NULL;
    call.in = d.in.dev, call.ld_in = d.ld_in;
    call.m = c->tokens;
    call.out = d.qkv.dev, call.ld_out = d.ld;
    msgl_rope_call r = {};
    r.qkv = d.qkv.dev, r.ld = d.ld;
    r.tokens = c->tokens, r.num_q_heads = c->q, r.num_kv_heads = c->kv, r.head_dim = c->head_dim;
    r.q_weight = c->norm ? (const float *)d.q_weight.dev : NULL;
    r.k_weight = c->norm ? (const float *)d.k_weight.dev : NULL;
    r.eps = 1e-6f, r.cos_sin = (const float *)d.table.dev, r.half = c->head_dim / 2;
    r.kv_dtype = dtype, r.k_pool = d.pool[0].dev, r.v_pool = d.pool[1].dev;
    r.slots = d.device_slots;
    expect(f, msgl__cuda_wide_sm90(&e->x, &call, &r), "the kernel takes the call");
    exec_sync(e);
    array_download(&d.qkv), array_download(&d.pool[0]), array_download(&d.pool[1]);
    for (int t = 0; t < c->tokens; t++) {
        for (size_t i = 0; i < d.ld; i++) {
            const bool is_q = i < (size_t)(c->q * c->head_dim);
            const bool number = isfinite(d.qkv.host[(size_t)t * d.ld + i]);
            expect(f, number == is_q, "columns of q are written, others are not");
        }
    }
    const size_t row = (size_t)c->kv * c->head_dim;
    for (int s = 0; s < d.num_slots; s++) {
        const bool used = s % 2 == 1 && s < 2 * c->tokens;
        for (size_t i = 0; i < 2 * row; i++) {
            const float v = d.pool[i / row].host[(size_t)s * row + i % row];
            expect(f, isfinite(v) == used, "slots of these tokens are written, others are not");
        }
    }
    for (int i = 0; i < rows; i++) {
        check_values(f, c, &d, i == 0 ? c->tokens - 1 : (int)(rng_next(seed) % c->tokens));
    }
    free_data(&d);
}

// What it must leave to the kernels that take everything.
static void check_refusals(bench_exec *e, family *f, uint64_t *seed)
{
    static const qkv_case base = {16, 64, 2, 2, 128, true, false, 0, 0};
    qkv_data d;
    make_data(&d, &base, MSGL_BF16, seed);
    e->x.act = MSGL_BF16;
    for (int i = 0; i < 6; i++) {
        const msgl_weight w = {&msgl__cuda_formats[MSGL_W_BF16], 6 * 128, 64, d.w.dev};
        msgl_linear_call call = {};
        call.w = &w, call.in = d.in.dev, call.ld_in = 64, call.m = 16, call.out = d.qkv.dev;
        call.ld_out = d.ld;
        msgl_rope_call r = {};
        r.qkv = d.qkv.dev, r.ld = d.ld, r.tokens = 16, r.num_q_heads = 2, r.num_kv_heads = 2;
        r.head_dim = 128, r.half = 64, r.kv_dtype = MSGL_BF16;
        if (i == 1) r.half = 32;
        if (i == 2) r.kv_dtype = MSGL_F16;
        if (i == 3) r.num_q_heads = 4, r.num_kv_heads = 1; // a tile of K and V
        if (i == 4) r.head_dim = 96;
        if (i == 5) r.qkv = d.in.dev;
        r.cos_sin = (const float *)d.table.dev, r.slots = d.device_slots;
        r.k_pool = d.pool[0].dev, r.v_pool = d.pool[1].dev;
        expect(f, msgl__cuda_wide_sm90(&e->x, &call, &r) == (i == 0), "which calls it takes");
    }
    exec_sync(e);
    free_data(&d);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 1 << 20);
    family f = {"qkv_rope"};
    static const qkv_case CASES[] = {
        {1, 64, 2, 2, 128, true, false, 0, 0},       {100, 72, 4, 2, 128, true, true, 8, 0},
        {129, 256, 16, 8, 128, true, false, 0, 8},   {77, 1024, 8, 4, 64, false, true, 0, 0},
        {300, 128, 4, 4, 64, true, false, 0, 0},     {257, 8, 2, 2, 128, false, false, 0, 16},
        {1000, 1024, 16, 8, 128, true, false, 0, 0}, {3001, 192, 40, 8, 128, true, false, 0, 0},
        {2500, 320, 32, 8, 64, false, true, 0, 0},   {513, 5120, 8, 2, 128, true, false, 0, 0},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        if (o.quick && CASES[i].tokens > 300) continue;
        check(&e, &f, MSGL_BF16, &CASES[i], o.quick ? 3 : 12, &seed);
        check(&e, &f, MSGL_F16, &CASES[i], 3, &seed);
    }
    check_refusals(&e, &f, &seed);
    return family_end(&f);
}
