// SPDX-License-Identifier: Apache-2.0
//
// A call of the kernels that take and leave what a norm needs (msgl_norm_feed), checked against
// sums in f64 on the host, outputs poisoned with NaN beforehand; and what it leaves for the norm
// behind.
#ifndef MSGL_TESTS_CUDA_FED_CASE_CUH
#define MSGL_TESTS_CUDA_FED_CASE_CUH

#include "kernel/cuda/gemm/fed.cuh"
#include "tests/cuda/ops_check.cuh"

typedef struct fed_case {
    int m, n, k; // n: rows of W
    bool norm, bias, gated, accumulate, feed;
    int pad_in, pad_out; // beyond the rows
} fed_case;

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

static operands make_operands(const fed_case *c, uint64_t *seed)
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
static double dot(const fed_case *c, const operands *o, int i, int j, double scale)
{
    const float *row = o->in.host + i * o->ld_in, *w = o->w.host + (size_t)j * c->k;
    double sum = 0;
    for (int p = 0; p < c->k; p++) {
        const double v = c->norm ? row[p] * scale * (double)o->norm.host[p] : (double)row[p];
        sum += v * (double)w[p];
    }
    return sum + (c->bias ? (double)o->bias.host[j] : 0);
}

static double reference(const fed_case *c, const operands *o, int i, int j)
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
static void check_feed(family *f, const fed_case *c, operands *o, int parts, const char *what)
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
static void check_fed(bench_exec *e, family *f, const fed_case *c, uint64_t *seed, const char *plan,
                      RUN run)
{
    enum { SAMPLES = 400 };
    operands o = make_operands(c, seed);
    const msgl_weight weight = {MSGL_BF16, c->n, c->k, o.w.dev};
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
    msgl_norm_feed fed = {};
    if (c->norm) {
        fed = {o.scaled.dev, (float *)o.sums.dev, o.parts, call.in, call.norm, c->m};
    }
    if (c->feed) {
        fed.scaled = o.scaled_out.dev, fed.sums = (float *)o.sums_out.dev;
        call.next_norm = (const float *)o.next.dev;
    }
    call.feed = c->norm || c->feed ? &fed : NULL;
    char what[300];
    snprintf(what, sizeof what, "%s: m %d n %d k %d%s%s%s%s%s pad %d %d", plan, c->m, c->n, c->k,
             c->norm ? " norm" : "", c->bias ? " bias" : "", c->gated ? " gated" : "",
             c->accumulate ? " accumulate" : "", c->feed ? " feed" : "", c->pad_in, c->pad_out);
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
    if (c->feed) {
        expect(f, fed.x == call.out && fed.weight == call.next_norm && fed.m == c->m, what);
        check_feed(f, c, &o, fed.parts, what);
    }
    free_operands(&o);
}

#endif
