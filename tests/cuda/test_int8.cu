// SPDX-License-Identifier: Apache-2.0
//
// int8 weights on the GPU: what the packer and gathers round_to_int8, by the format's rule; both
// products against sums in f64 of the expanded weights, with every flag; and that a row's bits do
// not depend on the rows beside it.
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/int8.h"
#include "tests/cuda/ops_check.cuh"

enum { GROUP = 64 };

// What MSGL_WFORMAT_INT8 says that is left of a row.
static void round_to_int8(float *v, int n)
{
    for (int at = 0; at < n; at += GROUP) {
        const int end = at + GROUP < n ? at + GROUP : n;
        float largest = 0;
        bool finite = true;
        for (int i = at; i < end; i++) {
            finite = finite && isfinite(v[i]);
            largest = fmaxf(largest, fabsf(v[i]));
        }
        const float inverse = largest < 1e-30f ? 0 : 127 / largest, scale = largest / 127;
        for (int i = at; i < end; i++) v[i] = finite ? nearbyintf(v[i] * inverse) * scale : NAN;
    }
}

struct weight {
    msgl_weight w;
    float *rows; // [n, k], what the format holds
};

// Packed in two pieces from values of `from`.
static weight weight_new(bench_exec *e, int n, int k, msgl_dtype from, uint64_t *seed)
{
    array src = array_new(from, (size_t)n * k, 2 / sqrtf((float)k), seed);
    if (n > 3 && k > 3) { // groups without values, with tiny, and with no finite ones
        for (int i = 0; i < k; i++) src.host[k + i] = 0;
        for (int i = 0; i < k; i++) src.host[2 * (size_t)k + i] = i % 2 ? 1e-38f : -1e-39f;
    }
    array_upload(&src);
    array_download(&src);
    weight out = {{&msgl__cuda_formats[MSGL_W_INT8], n, k, NULL}, src.host};
    const size_t bytes = msgl__weight_bytes(&out.w);
    CUDA_OK(cudaMalloc(&out.w.data, bytes));
    CUDA_OK(cudaMemset(out.w.data, 0, bytes));
    const size_t first = (size_t)n / 3, size = msgl__dtype_size(from);
    const char *rest = (const char *)src.dev + first * (size_t)k * size;
    msgl__cuda_int8_quantize(&e->x, &out.w, first, (size_t)n - first, 0, (size_t)k, rest, from);
    if (first > 0) msgl__cuda_int8_quantize(&e->x, &out.w, 0, first, 0, (size_t)k, src.dev, from);
    exec_sync(e);
    CUDA_OK(cudaFree(src.dev));
    for (int r = 0; r < n; r++) round_to_int8(out.rows + (size_t)r * k, k);
    return out;
}

static void weight_free(weight *w)
{
    CUDA_OK(cudaFree(w->w.data));
    free(w->rows);
}

static void check_pack(bench_exec *e, family *f, int n, int k, msgl_dtype from, msgl_dtype act,
                       uint64_t *seed)
{
    enum { ROWS = 40 };
    weight w = weight_new(e, n, k, from, seed);
    int32_t ids[ROWS];
    for (int i = 0; i < ROWS; i++) ids[i] = (int32_t)(rng_next(seed) % (uint64_t)n);
    int32_t *dev = ints_upload(ids, ROWS);
    array out = array_new(act, (size_t)ROWS * k, 0, seed);
    e->x.act = act;
    msgl__cuda_int8_gather(&e->x, &w.w, dev, ROWS, out.dev);
    exec_sync(e);
    array_download(&out);
    long differ = 0;
    for (size_t i = 0; i < out.n; i++) {
        uint32_t bits = 0;
        msgl__store_f32(&bits, act, 0, w.rows[(size_t)ids[i / k] * k + i % k]);
        differ += out.host[i] != msgl__load_f32(&bits, act, 0);
    }
    expect(f, differ == 0, "rows are what the rule leaves of them");
    CUDA_OK(cudaFree(dev));
    array_free(&out);
    weight_free(&w);
}

// An infinity or a NaN makes its group NaN, and no other.
static void check_not_finite(bench_exec *e, family *f)
{
    uint64_t seed = 5;
    array src = array_new(MSGL_F32, 3 * 200, 1, &seed),
          out = array_new(MSGL_F32, 3 * 200, 0, &seed);
    src.host[70] = INFINITY;
    src.host[400 + 199] = NAN;
    array_upload(&src);
    msgl_weight w = {&msgl__cuda_formats[MSGL_W_INT8], 3, 200, NULL};
    CUDA_OK(cudaMalloc(&w.data, msgl__weight_bytes(&w)));
    msgl__cuda_int8_quantize(&e->x, &w, 0, 3, 0, 200, src.dev, MSGL_F32);
    const int32_t ids[] = {0, 1, 2};
    int32_t *dev = ints_upload(ids, 3);
    e->x.act = MSGL_F32;
    msgl__cuda_int8_gather(&e->x, &w, dev, 3, out.dev);
    exec_sync(e);
    array_download(&out);
    for (int i = 0; i < 600; i++) {
        const bool bad = (i >= 64 && i < 128) || i >= 400 + 192;
        expect(f, isnan(out.host[i]) == bad, "a group with a value that is not finite is NaN");
    }
    CUDA_OK(cudaFree(dev));
    CUDA_OK(cudaFree(w.data));
    array_free(&src);
    array_free(&out);
}

struct product {
    msgl_dtype act;
    int m, n, k, pad;
    bool tiles, norm, bias, gated, gelu, accumulate, f32_out;
};

// What a rounding of t loses of a value, at most.
static double rounding(msgl_dtype t)
{
    return t == MSGL_F32 ? 2e-6 : t == MSGL_F16 ? 4e-4 : 3.2e-3;
}

// Feature j of row i; *off: by how much it may be off because its normed input is rounded, and it
// itself when a gate follows.
static double dot(const product *p, const array *in, const weight *w, const array *norm,
                  const array *bias, int i, int j, double *off)
{
    const float *x = in->host + (size_t)i * (p->k + p->pad);
    double sum = p->bias ? bias->host[j] : 0, squares = 0, terms = 0;
    for (int c = 0; p->norm && c < p->k; c++) squares += (double)x[c] * x[c];
    const double scale = p->norm ? 1 / sqrt(squares / p->k + 1e-6) : 1;
    for (int c = 0; c < p->k; c++) {
        const double v = p->norm ? x[c] * scale * norm->host[c] : x[c];
        const double term = v * w->rows[(size_t)j * p->k + c];
        sum += term;
        terms += term * term;
    }
    // Roundings of k terms add up as their squares do.
    *off = rounding(p->act) * ((p->norm ? 2 * sqrt(terms) : 0) + (p->gated ? fabs(sum) : 0));
    return sum;
}

static double gate(const product *p, double v)
{
    if (!p->gelu) return v / (1 + exp(-v));
    return v / 2 * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
}

static msgl_linear_call call_of(const product *p, const weight *w, const array *in,
                                const array *norm, const array *bias, const array *out)
{
    msgl_linear_call c = {};
    c.w = &w->w;
    c.bias = p->bias ? (const float *)bias->dev : NULL;
    c.in = in->dev;
    c.ld_in = (size_t)(p->k + p->pad);
    c.m = p->m;
    c.norm = p->norm ? (const float *)norm->dev : NULL;
    c.norm_eps = 1e-6f;
    c.gated = p->gated;
    c.activation = p->gelu ? MSGL_GELU_TANH : MSGL_SILU;
    c.accumulate = p->accumulate;
    c.f32_out = p->f32_out;
    c.out = out->dev;
    c.ld_out = (size_t)((p->gated ? p->n / 2 : p->n) + p->pad);
    return c;
}

static bool run(bench_exec *e, const product *p, const msgl_linear_call *c)
{
    e->x.act = p->act;
    e->scratch.used = 0;
    e->scratch.size = msgl__cuda_linear_scratch(c, p->act); // enough
    const bool ran = p->tiles
                         ? msgl__cuda_int8_tiles_can(&e->x, c) && msgl__cuda_int8_tiles(&e->x, c)
                         : msgl__cuda_int8_rows_can(&e->x, c) && msgl__cuda_int8_rows(&e->x, c);
    exec_sync(e);
    return ran;
}

// What the call has to write for feature j of row i; *off as above.
static double wanted(const product *p, const array *in, const weight *w, const array *norm,
                     const array *bias, int i, int j, double *off)
{
    const double g = dot(p, in, w, norm, bias, i, j, off), h = 1e-4;
    if (!p->gated) return g;
    double off_up;
    const double up = dot(p, in, w, norm, bias, i, j + p->n / 2, &off_up), gated = gate(p, g);
    const double slope = (gate(p, g + h) - gate(p, g - h)) / (2 * h);
    *off = fabs(slope * up) * *off + fabs(gated) * off_up;
    return gated * up;
}

static void check_product(bench_exec *e, family *f, const product *p, uint64_t *seed)
{
    const int cols = p->gated ? p->n / 2 : p->n;
    const size_t ld = (size_t)(cols + p->pad);
    const msgl_dtype out_type = p->f32_out ? MSGL_F32 : p->act;
    weight w = weight_new(e, p->n, p->k, MSGL_BF16, seed);
    array in = array_new(p->act, (size_t)p->m * (p->k + p->pad), 1, seed);
    array norm = array_new(MSGL_F32, (size_t)p->k, 1, seed);
    array bias = array_new(MSGL_F32, (size_t)p->n, 1, seed);
    array out = array_new(out_type, (size_t)p->m * ld, p->accumulate ? 1 : 0, seed);
    float *before = (float *)malloc(out.n * sizeof(float));
    memcpy(before, out.host, out.n * sizeof(float));
    const msgl_linear_call c = call_of(p, &w, &in, &norm, &bias, &out);
    const bool ran = run(e, p, &c);
    const bool can =
        !p->tiles || (p->act != MSGL_F32 && p->k % 8 == 0 && (p->norm || p->pad % 8 == 0));
    expect(f, ran == can, "takes what it should");
    array_download(&out);
    double error = 0, size = 0, spread = 0;
    bool kept = true;
    for (int i = 0; ran && i < p->m; i++) {
        for (int j = 0; j < (int)ld; j++) {
            const size_t at = (size_t)i * ld + j;
            if (j >= cols) {
                kept = kept && memcmp(&out.host[at], &before[at], sizeof(float)) == 0;
                continue;
            }
            double off, want = wanted(p, &in, &w, &norm, &bias, i, j, &off);
            if (p->accumulate) want += before[at];
            spread += off * off;
            error += (out.host[at] - want) * (out.host[at] - want); // NaN where it was not written
            size += want * want;
        }
    }
    expect(f, kept, "nothing beyond the rows is written");
    if (ran) {
        const double steps = rounding(out_type) + p->k / 16 * 0x1p-24;
        expect_near(f, sqrt(error), 0, steps * sqrt(size) + sqrt(spread), "product");
    }
    free(before);
    weight_free(&w);
    array_free(&in);
    array_free(&norm);
    array_free(&bias);
    array_free(&out);
}

// Rows [0, m) alone have the bits that they have among all.
static void check_rows(bench_exec *e, family *f, product p, uint64_t *seed)
{
    weight w = weight_new(e, p.n, p.k, MSGL_BF16, seed);
    array in = array_new(p.act, (size_t)p.m * p.k, 1, seed), none = {};
    array all = array_new(p.act, (size_t)p.m * p.n, 0, seed);
    array some = array_new(p.act, (size_t)p.m * p.n, 0, seed);
    msgl_linear_call c = call_of(&p, &w, &in, &none, &none, &all);
    expect(f, run(e, &p, &c), "runs");
    array_download(&all);
    c.out = some.dev;
    for (int m = 1; m < p.m; m += m < 9 ? 1 : 13) {
        c.m = m;
        expect(f, run(e, &p, &c), "runs");
        array_download(&some);
        expect(f, memcmp(all.host, some.host, (size_t)m * p.n * sizeof(float)) == 0,
               "a row's bits do not depend on the rows beside it");
    }
    weight_free(&w);
    array_free(&in);
    array_free(&all);
    array_free(&some);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 64 << 20);
    family pack = {"pack"}, rows = {"rows"}, tiles = {"tiles"}, alone = {"alone"};
    static const int SHAPES[][2] = {{1, 1}, {5, 8}, {37, 64}, {100, 1016}, {64, 300}, {33, 2048}};
    for (int i = 0; i < 6 * 9; i++) {
        check_pack(&e, &pack, SHAPES[i / 9][0], SHAPES[i / 9][1], (msgl_dtype)(i % 3),
                   (msgl_dtype)(i / 3 % 3), &seed);
    }
    check_not_finite(&e, &pack);
    static const int MS[] = {1, 2, 3, 4, 5, 8, 9, 17, 33, 63, 64, 65, 130};
    for (int i = 0; i < (o.quick ? 26 : 260); i++) {
        product p = {};
        p.tiles = i % 2 == 1;
        p.act = i % 5 == 0 ? MSGL_F32 : i % 5 < 3 ? MSGL_BF16 : MSGL_F16;
        p.m = MS[i / 2 % 13];
        p.n = 2 * (int)(1 + rng_next(&seed) % 150);
        const uint64_t kind = rng_next(&seed) % 8;
        p.k = kind == 0 ? 1 + (int)(rng_next(&seed) % 200) : 8 * (int)(1 + rng_next(&seed) % 160);
        p.pad = kind == 1 ? 3 : 8 * (int)(rng_next(&seed) % 3);
        p.norm = p.pad != 3 && rng_next(&seed) % 3 == 0;
        p.bias = rng_next(&seed) % 3 == 0;
        p.gated = rng_next(&seed) % 4 == 0;
        p.gelu = p.gated && rng_next(&seed) % 2 == 0;
        p.accumulate = !p.gated && rng_next(&seed) % 3 == 0;
        p.f32_out = !p.gated && !p.accumulate && rng_next(&seed) % 3 == 0;
        check_product(&e, p.tiles ? &tiles : &rows, &p, &seed);
    }
    for (int i = 0; i < 4; i++) {
        product p = {};
        p.tiles = i % 2 == 1;
        p.act = i < 2 ? MSGL_BF16 : MSGL_F16;
        p.m = p.tiles ? 140 : 21;
        p.n = 96 + 34 * i;
        p.k = 1024 + 72 * i;
        check_rows(&e, &alone, p, &seed);
    }
    int failed = family_end(&pack);
    failed |= family_end(&rows);
    failed |= family_end(&tiles);
    failed |= family_end(&alone);
    return failed;
}
