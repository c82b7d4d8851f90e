// SPDX-License-Identifier: Apache-2.0
//
// A call of the kernels that take and leave what a norm needs (msgl_norm_stats), checked against
// sums in f64 on the host, outputs poisoned with NaN beforehand; and what it leaves for the norm
// behind.
#ifndef MSGL_TESTS_CUDA_FUSED_NORM_CASE_CUH
#define MSGL_TESTS_CUDA_FUSED_NORM_CASE_CUH

#include "cuda/gemm/fused_norm.cuh"
#include "cuda/gemm/gemm.h"
#include "tests/cuda/ops_check.cuh"

typedef struct fused_norm_case {
    int m, n, k; // n: rows of W
    bool norm, bias, gated, accumulate, norm_stats;
    int pad_in, pad_out; // beyond the rows
} fused_norm_case;

typedef struct operands {
    array in, w, norm, bias, out, next;
    array scaled, sums;         // of in, as the kernel in front leaves them
    array scaled_out, sums_out; // of out
    float *before;              // out's
    size_t ld_in, ld_out;
    int columns, parts;
} operands;

static int below(uint64_t *seed, int n)
{
    return (int)(rng_next(seed) % (uint64_t)n);
}

static operands make_operands(const fused_norm_case *c, uint64_t *seed)
{
    operands o = {};
    o.columns = c->gated ? c->n / 2 : c->n;
    o.ld_in = (size_t)(c->k + c->pad_in), o.ld_out = (size_t)(o.columns + c->pad_out);
    o.in = array_new(MSGL_BF16, c->m * o.ld_in, 1, seed);
    o.w = array_new(MSGL_BF16, (size_t)c->n * c->k, 1 / sqrtf((float)c->k), seed);
    o.norm = array_new(MSGL_F32, c->k, 1, seed);
    o.bias = array_new(MSGL_F32, c->n, 1, seed);
    o.out = array_new(MSGL_BF16, c->m * o.ld_out, c->accumulate ? 1 : 0, seed);
    o.next = array_new(MSGL_F32, o.columns, 1, seed);
    o.parts = 1 + below(seed, 40);
    o.scaled = array_new(MSGL_BF16, (size_t)c->m * c->k, 1, seed);
    o.sums = array_new(MSGL_F32, (size_t)o.parts * c->m, 1, seed);
    memset(o.sums.host, 0, o.sums.n * sizeof(float));
    for (int i = 0; i < c->m; i++) {
        for (int p = 0; p < c->k; p++) {
            const float v = o.in.host[i * o.ld_in + p];
            o.scaled.host[(size_t)i * c->k + p] = v * o.norm.host[p];
            o.sums.host[(size_t)(p % o.parts) * c->m + i] += v * v;
        }
    }
    array_upload(&o.scaled);
    array_upload(&o.sums);
    o.scaled_out = array_new(MSGL_BF16, (size_t)c->m * o.columns, 0, seed);
    o.sums_out = array_new(MSGL_F32, (size_t)(o.columns / 32 + 1) * c->m, 0, seed);
    o.before = (float *)malloc(o.out.n * sizeof(float) + 1);
    memcpy(o.before, o.out.host, o.out.n * sizeof(float));
    return o;
}

static void free_operands(operands *o)
{
    array *const all[] = {&o->in,   &o->w,      &o->norm, &o->bias,       &o->out,
                          &o->next, &o->scaled, &o->sums, &o->scaled_out, &o->sums_out};
    for (array *a : all) array_free(a);
    free(o->before);
}

// Row i of in, normed, with weight row j.
static double dot(const fused_norm_case *c, const operands *o, int i, int j, double scale)
{
    const float *row = o->in.host + i * o->ld_in, *w = o->w.host + (size_t)j * c->k;
    double sum = 0;
    for (int p = 0; p < c->k; p++) {
        const double v = c->norm ? row[p] * scale * (double)o->norm.host[p] : (double)row[p];
        sum += v * (double)w[p];
    }
    return sum + (c->bias ? (double)o->bias.host[j] : 0);
}

static double reference(const fused_norm_case *c, const operands *o, int i, int j)
{
    double scale = 1;
    if (c->norm) {
        double sum = 0;
        const float *row = o->in.host + i * o->ld_in;
        for (int p = 0; p < c->k; p++) sum += (double)row[p] * row[p];
        scale = 1 / sqrt(sum / c->k + 1e-6);
    }
    const double v = dot(c, o, i, j, scale);
    if (c->accumulate) return v + (double)o->before[i * o->ld_out + j];
    return c->gated ? v / (1 + exp(-v)) * dot(c, o, i, j + c->n / 2, scale) : v;
}

// Of the values as they were stored.
static void check_norm_stats(family *f, const fused_norm_case *c, operands *o, int parts,
                             const char *what)
{
    array_download(&o->scaled_out);
    array_download(&o->sums_out);
    for (int i = 0; i < c->m; i++) {
        double want = 0, got = 0, worst = 0;
        for (int j = 0; j < o->columns; j++) {
            const double v = (double)o->out.host[i * o->ld_out + j];
            const double scaled = v * (double)o->next.host[j];
            const double error =
                fabs((double)o->scaled_out.host[(size_t)i * o->columns + j] - scaled);
            want += v * v;
            const double share = error / (dtype_error(MSGL_BF16) * fabs(scaled) + 1e-30);
            if (!(share <= worst)) worst = share;
        }
        for (int p = 0; p < parts; p++) got += (double)o->sums_out.host[(size_t)p * c->m + i];
        expect_near(f, worst, 0, 1, what);
        expect_near(f, got, want, 1e-6 * want, what);
    }
}

// run(call): queues all of it, by the plan that `plan` names.
template <typename RUN>
static void check_fused_norm(bench_exec *e, family *f, const fused_norm_case *c, uint64_t *seed,
                             const char *plan, RUN run)
{
    enum { SAMPLES = 400 };
    operands o = make_operands(c, seed);
    const msgl_weight weight = {&msgl__cuda_formats[MSGL_W_BF16], c->n, c->k, o.w.dev};
    msgl_linear_call call = {};
    call.w = &weight;
    call.bias = c->bias ? (const float *)o.bias.dev : NULL;
    call.in = o.in.dev;
    call.ld_in = o.ld_in;
    call.m = c->m;
    call.norm = c->norm ? (const float *)o.norm.dev : NULL;
    call.norm_eps = 1e-6f;
    call.gated = c->gated;
    call.accumulate = c->accumulate;
    call.out = o.out.dev;
    call.ld_out = o.ld_out;
    msgl_norm_stats stats = {};
    if (c->norm) {
        stats = {o.scaled.dev, (float *)o.sums.dev, o.parts, call.in, call.norm, c->m};
    }
    if (c->norm_stats) {
        stats.scaled = o.scaled_out.dev, stats.sums = (float *)o.sums_out.dev;
        call.next_norm = (const float *)o.next.dev;
    }
    call.norm_stats = c->norm || c->norm_stats ? &stats : NULL;
    char what[300];
    snprintf(what, sizeof what, "%s: m %d n %d k %d%s%s%s%s%s pad %d %d", plan, c->m, c->n, c->k,
             c->norm ? " norm" : "", c->bias ? " bias" : "", c->gated ? " gated" : "",
             c->accumulate ? " accumulate" : "", c->norm_stats ? " norm_stats" : "", c->pad_in,
             c->pad_out);
    expect(f, run(&call), what);
    exec_sync(e);
    array_download(&o.out);
    for (int i = 0; i < c->m; i++) {
        bool finite = true, kept = true;
        for (size_t j = 0; j < o.ld_out; j++) {
            const size_t at = i * o.ld_out + j;
            if ((int)j < o.columns)
                finite &= isfinite(o.out.host[at]);
            else
                kept &= memcmp(&o.out.host[at], &o.before[at], sizeof(float)) == 0;
        }
        expect(f, finite, what);
        expect(f, kept, what);
    }
    for (int s = 0; s < SAMPLES; s++) {
        const int i = below(seed, c->m), j = below(seed, o.columns);
        const double want = reference(c, &o, i, j), got = (double)o.out.host[i * o.ld_out + j];
        // Of the result, and of k scaled inputs, each of them rounded, with weights of 1 / sqrt(k).
        const double size = c->gated ? 4 + fabs(want) : 1;
        const double inputs = c->norm ? 5 * dtype_error(MSGL_BF16) * size : 2e-5 * size;
        expect_near(f, got, want, dtype_error(MSGL_BF16) * fabs(want) + inputs, what);
    }
    if (c->norm_stats) {
        expect(f, stats.x == call.out && stats.weight == call.next_norm && stats.m == c->m, what);
        check_norm_stats(f, c, &o, stats.num_tiles, what);
    }
    free_operands(&o);
}

static fused_norm_case random_case(uint64_t *seed)
{
    fused_norm_case c = {};
    c.gated = below(seed, 3) == 0;
    c.m = 1 + below(seed, 256);
    c.n = 16 * (1 + below(seed, below(seed, 6) == 0 ? 100 : 30));
    c.k = 8 * (1 + below(seed, below(seed, 6) == 0 ? 250 : 80));
    c.norm = below(seed, 2) == 0;
    c.pad_in = c.norm ? 0 : 8 * below(seed, 3); // the scaled input has no gaps
    c.pad_out = 8 * below(seed, 3);
    c.bias = below(seed, 3) == 0;
    c.accumulate = !c.gated && below(seed, 2) == 0;
    c.norm_stats = !c.gated && !c.norm && below(seed, 2) == 0;
    return c;
}

typedef struct fused_norm_shape {
    int n, k;
    bool norm, gated, accumulate;
} fused_norm_shape;

// Products of decoders' layers that both kernels take, in turn with ms[0..5] rows; then two more.
// check(c): by the plan that the engine gets.
template <typename CHECK>
static void check_chosen(const options *opt, const int ms[6], const fused_norm_shape more[2],
                         CHECK check)
{
    static const fused_norm_shape BOTH[] = {
        {1152, 896, true, false, false},  {896, 896, false, false, true},
        {7936, 896, true, true, false},   {896, 4864, false, false, true},
        {4096, 1024, true, false, false}, {1024, 2048, false, false, true},
        {6144, 1024, true, true, false},  {1024, 3072, false, false, true},
        {264, 136, false, false, false},  {3072, 2048, true, false, false}};
    enum { NUM = sizeof BOTH / sizeof BOTH[0] };
    for (int i = 0; i < NUM + 2; i++) {
        const fused_norm_shape s = i < NUM ? BOTH[i] : more[i - NUM];
        fused_norm_case c = {};
        c.m = ms[i % 6];
        c.n = s.n, c.k = s.k;
        c.norm = s.norm, c.gated = s.gated, c.accumulate = s.accumulate;
        c.norm_stats = c.accumulate;
        c.bias = i % 4 == 1;
        if (!opt->quick || c.n < 1000) check(&c);
    }
}

// Values of another x, weight or number of rows, or none, are not taken. run: as in
// check_fused_norm.
template <typename RUN> static void check_other_norm_stats(family *f, int m, RUN run)
{
    alignas(16) const float x[8] = {}, weight[8] = {};
    const msgl_weight w = {&msgl__cuda_formats[MSGL_W_BF16], 64, 64, (void *)x};
    for (int i = 0; i < 4; i++) {
        msgl_norm_stats stats = {(void *)x, (float *)x, 1, x, weight, m};
        msgl_linear_call call = {};
        call.w = &w, call.in = x, call.m = m, call.norm = weight, call.norm_stats = &stats;
        call.ld_in = call.ld_out = 64, call.out = (void *)x;
        expect(f, msgl__has_norm_stats(&call), "norm_stats of its own");
        if (i == 0) call.in = x + 4;
        if (i == 1) call.norm = weight + 4;
        if (i == 2) call.m = m + 1;
        if (i == 3) stats.num_tiles = 0;
        expect(f, !msgl__has_norm_stats(&call) && !run(&call), "norm_stats of something else");
    }
}

#endif
