// SPDX-License-Identifier: Apache-2.0
//
// Products of experts that are made of their codes, in every form that has a kernel, against f64 of
// the values: gate, up, down and the combination of a few rows, and grouped products, where experts
// have no rows or all of them, with biases and all gates but a GELU's, which are refused. What is
// not to be written or read is NaN before. cuda_experts [--seed N] [--quick].
#include "cuda/gemm/experts_codes.cuh"
#include "tests/cuda/codes_case.cuh"
#include "tests/cuda/routing_case.cuh"
extern "C" {
#include "quant/stored.h"
}

// --- forms --------------------------------------------------------------------------------------

struct form {
    char name[64];
    msgl_codes codes;
    msgl_blocks blocks;
};

enum { FORMS = 14 };

static void form_get(int i, form *f)
{
    static const int8_t E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    static const struct {
        int bits, span;
        msgl_number number;
        msgl_offset offset;
        codes_values values;
    } ALL[FORMS] = {
        {4, 128, MSGL_NUMBER_F16, MSGL_OFFSET_ZERO, CODES_INTEGERS},  // AWQ
        {4, 32, MSGL_NUMBER_E8M0, MSGL_OFFSET_NONE, CODES_E2M1},      // MXFP4
        {8, 128, MSGL_NUMBER_F32, MSGL_OFFSET_NONE, CODES_E4M3},      // FP8 in blocks
        {4, 32, MSGL_NUMBER_BF16, MSGL_OFFSET_NONE, CODES_INTEGERS},  //
        {4, 128, MSGL_NUMBER_BF16, MSGL_OFFSET_NONE, CODES_INTEGERS}, //
        {8, 0, MSGL_NUMBER_F32, MSGL_OFFSET_NONE, CODES_E4M3},        // a scale for each row
        {8, 32, MSGL_NUMBER_F16, MSGL_OFFSET_NONE, CODES_INTEGERS},   // Q8_0
        {4, 64, MSGL_NUMBER_F16, MSGL_OFFSET_ZERO, CODES_INTEGERS},   //
        {8, 128, MSGL_NUMBER_F32, MSGL_OFFSET_NONE, CODES_INTEGERS},  //
        {8, 128, MSGL_NUMBER_BF16, MSGL_OFFSET_NONE, CODES_E4M3},     //
        {4, 32, MSGL_NUMBER_BF16, MSGL_OFFSET_ZERO, CODES_INTEGERS},  //
        {8, 256, MSGL_NUMBER_BF16, MSGL_OFFSET_NONE, CODES_INTEGERS}, //
        {4, 0, MSGL_NUMBER_F16, MSGL_OFFSET_NONE, CODES_INTEGERS},    //
        {4, 32, MSGL_NUMBER_E8M0_HALF, MSGL_OFFSET_NONE, CODES_E2M1}, // of GGUF
    };
    const auto &how = ALL[i];
    *f = {};
    snprintf(f->name, sizeof f->name, "%d bits, span %d, number %d, offset %d, values %d", how.bits,
             how.span, (int)how.number, (int)how.offset, (int)how.values);
    f->codes.bits = how.bits;
    f->codes.group = 32;
    f->codes.zero = how.values == CODES_INTEGERS ? 1 << (how.bits - 1) : 0;
    f->codes.values = how.values == CODES_E2M1 ? E2M1 : NULL;
    f->codes.floats = how.values == CODES_E4M3;
    f->codes.factor = how.number == MSGL_NUMBER_E8M0 ? 0.5f : 0;
    f->codes.offset = how.offset;
    f->codes.span = how.span;
    f->codes.number = how.number;
    f->blocks.name = f->name;
    f->blocks.elements = 32;
    f->blocks.bytes = sizeof(msgl_code_part);
    f->blocks.codes = &f->codes;
}

// --- experts ------------------------------------------------------------------------------------

struct matrices {
    std::vector<test_weight> all;
    std::vector<msgl_weight> list;
    uint8_t *memory;
};

// With NaN between them.
static void matrices_make(matrices *out, const msgl_wformat *format, int num, int n, int k,
                          uint64_t *seed)
{
    out->all.resize((size_t)num);
    size_t bytes = 0;
    for (test_weight &t : out->all) {
        t.parts.push_back(draw_rows(format, n, k, seed));
        bytes = padded_bytes(&t) + 64;
    }
    CUDA_OK(cudaMalloc(&out->memory, bytes * (size_t)num));
    poison(out->memory, bytes * (size_t)num);
    for (int i = 0; i < num; i++) {
        put_weight(&out->all[(size_t)i], out->memory + (size_t)i * bytes);
        out->list.push_back(out->all[(size_t)i].w);
    }
}

static void matrices_free(matrices *m)
{
    CUDA_OK(cudaFree(m->memory));
}

// A row of activations times a row of W, and the sum of the terms' sizes.
static double dot(const float *in, const float *w, int k, double *size)
{
    double sum = 0;
    *size = 0;
    for (int i = 0; i < k; i++) {
        const double p = (double)in[i] * w[i];
        sum += p;
        *size += fabs(p);
    }
    return sum;
}

// Which these kernels leave to one behind the products.
static const msgl_activation GELUS[] = {MSGL_GELU_TANH, MSGL_GELU_ERF};

struct gate_case {
    msgl_dtype act;
    bool gated;
    msgl_activation activation;
    const array *bias; // [experts, n], or NULL
};

// Output j of a row by an expert, and what it may be off: sums in f32, and a rounding at the end.
static double output_of(const gate_case *c, const float *in, const matrices *m, int expert, int j,
                        double *off)
{
    const test_weight *w = &m->all[(size_t)expert];
    const int n = w->w.n, k = w->w.k;
    const float *bias = c->bias != NULL ? c->bias->host + (size_t)expert * n : NULL;
    double size, size_up;
    double v = dot(in, w->row(j), k, &size) + (bias != NULL ? bias[j] : 0);
    const double step = dtype_error(c->act) * 1.01, least = c->act == MSGL_F16 ? 0x1p-25 : 0;
    *off = size * 0x1p-19;
    if (!c->gated) {
        *off += fabs(v) * step + least;
        return v;
    }
    double up = dot(in, w->row(n / 2 + j), k, &size_up) + (bias != NULL ? bias[n / 2 + j] : 0);
    double sigmoid = 1 / (1 + exp(-v));
    if (c->activation != MSGL_SILU) {
        const bool silu = c->activation == MSGL_SILU_CLAMPED;
        const double limit = silu ? 10 : 7;
        v = v < limit ? v : limit;
        up = up < -limit ? -limit : up > limit ? limit : up;
        sigmoid = 1 / (1 + exp(silu ? -v : -1.702 * v));
        if (!silu) up += 1;
    }
    // The gate's slope is at most 1.2; exponentials are the GPU's fast ones.
    *off = 1.2 * fabs(up) * *off + fabs(v * sigmoid) * size_up * 0x1p-19;
    *off += fabs(v * sigmoid * up) * (step + 1e-5 + 1e-6 * fabs(v)) + least;
    return v * sigmoid * up;
}

// --- few assignments ----------------------------------------------------------------------------

struct few_case {
    msgl_dtype act;
    int rows, top_k, experts, hidden, inter;
    msgl_activation activation;
    bool bias, accumulate;
};

static void check_few(bench_exec *e, family *f, const few_case *c, const form *codes,
                      uint64_t *seed)
{
    const msgl_wformat format = format_of_codes(&codes->blocks);
    const int n = c->rows * c->top_k;
    matrices up = {}, down = {};
    matrices_make(&up, &format, c->experts, 2 * c->inter, c->hidden, seed);
    matrices_make(&down, &format, c->experts, c->hidden, c->inter, seed);
    array in =
        array_new(c->act, (size_t)c->rows * c->hidden, codes->codes.bits == 8 ? 0.004f : 1, seed);
    array act = array_new(c->act, (size_t)n * c->inter, 0, seed);
    array out = array_new(c->act, (size_t)c->rows * c->hidden, c->accumulate ? 1 : 0, seed);
    array weights = array_new(MSGL_F32, (size_t)n, 0.5f, seed);
    array up_bias = array_new(MSGL_F32, (size_t)c->experts * 2 * c->inter, 0.3f, seed);
    array down_bias = array_new(MSGL_F32, (size_t)c->experts * c->hidden, 0.3f, seed);
    std::vector<float> before(out.host, out.host + out.n);
    std::vector<int32_t> ids, source;
    for (int r = 0; r < c->rows; r++) { // experts are a row's own, and shared between some rows
        std::vector<int32_t> some;
        for (int i = 0; i < c->experts; i++) some.push_back(i);
        for (int i = 0; i < c->top_k; i++) {
            std::swap(some[(size_t)i],
                      some[(size_t)(i + (int)(rng_next(seed) % (uint64_t)(c->experts - i)))]);
            ids.push_back(some[(size_t)i]);
        }
    }
    for (int i = 0; i < n; i++) source.push_back(i);
    std::stable_sort(source.begin(), source.end(),
                     [&](int32_t a, int32_t b) { return ids[(size_t)a] < ids[(size_t)b]; });
    int32_t *dev[2] = {ints_upload(ids.data(), ids.size()),
                       ints_upload(source.data(), source.size())};
    msgl_experts_call call = {};
    call.gate_up = up.list.data();
    call.down = down.list.data();
    call.activation = c->activation;
    call.gate_up_bias = c->bias ? (const float *)up_bias.dev : NULL;
    call.down_bias = c->bias ? (const float *)down_bias.dev : NULL;
    call.num_experts = c->experts;
    call.top_k = c->top_k;
    call.rows = c->rows;
    call.in = in.dev;
    call.ids = dev[0];
    call.weights = (const float *)weights.dev;
    call.source = dev[1];
    call.act = act.dev;
    call.accumulate = c->accumulate;
    call.out = out.dev;
    e->x.act = c->act;
    for (msgl_activation gelu : GELUS) {
        call.activation = gelu;
        expect(f, !msgl__cuda_experts_codes(&e->x, &call), "no GELU of a few rows");
    }
    call.activation = c->activation;
    expect(f, msgl__cuda_experts_codes(&e->x, &call), codes->name);
    exec_sync(e);
    array_download(&act);
    array_download(&out);
    char what[160];
    snprintf(what, sizeof what, "%s, dtype %d, %d x %d of %d, %d x %d%s%s", codes->name,
             (int)c->act, c->rows, c->top_k, c->experts, c->hidden, c->inter, GATES[c->activation],
             c->bias ? " bias" : "");
    const gate_case gate = {c->act, true, c->activation, c->bias ? &up_bias : NULL};
    const gate_case plain = {MSGL_F32, false, MSGL_SILU, c->bias ? &down_bias : NULL};
    for (size_t i = 0; i < act.n; i++) expect(f, isfinite(act.host[i]), what);
    for (size_t i = 0; i < out.n; i++) expect(f, isfinite(out.host[i]), what);
    for (int s = 0; s < 800; s++) {
        const int a = (int)(rng_next(seed) % (uint64_t)n);
        const int j = (int)(rng_next(seed) % (uint64_t)c->inter);
        double off;
        const double want = output_of(&gate, in.host + (size_t)(a / c->top_k) * c->hidden, &up,
                                      ids[(size_t)a], j, &off);
        expect_near(f, act.host[(size_t)a * c->inter + j], want, off + 1e-30, what);
    }
    // By what the first kernel has made.
    for (int s = 0; s < 400; s++) {
        const int r = (int)(rng_next(seed) % (uint64_t)c->rows);
        const int j = (int)(rng_next(seed) % (uint64_t)c->hidden);
        const size_t at = (size_t)r * c->hidden + j;
        double sum = c->accumulate ? before[at] : 0, all = 0;
        for (int i = 0; i < c->top_k; i++) {
            const size_t a = (size_t)(r * c->top_k + i);
            double off;
            const double v = output_of(&plain, act.host + a * c->inter, &down, ids[a], j, &off);
            sum += v * weights.host[a];
            all += (off + fabs(v) * 0x1p-20) * fabs(weights.host[a]);
        }
        expect_near(f, out.host[at], sum, all + fabs(sum) * dtype_error(c->act) * 1.01 + 1e-30,
                    what);
    }
    for (int32_t *p : dev) CUDA_OK(cudaFree(p));
    for (array *p : {&in, &act, &out, &weights, &up_bias, &down_bias}) array_free(p);
    matrices_free(&up);
    matrices_free(&down);
}

static void check_all_few(bench_exec *e, family *f, bool quick, uint64_t *seed)
{
    static const int SHAPES[][5] = {
        {1, 4, 6, 160, 96},    {2, 3, 5, 96, 224},    {5, 3, 4, 288, 32},    {1, 8, 9, 2048, 768},
        {16, 1, 3, 256, 1024}, {2, 8, 40, 2048, 768}, {1, 4, 8, 2880, 2880}, {4, 4, 5, 2880, 704}};
    for (int i = 0; i < FORMS; i++) {
        form codes;
        form_get(i, &codes);
        for (int s = 0; s < (quick ? 3 : i < 4 ? 8 : 5); s++) {
            few_case c = {};
            c.act = (i + s) % 2 ? MSGL_F16 : MSGL_BF16;
            c.rows = SHAPES[s][0], c.top_k = SHAPES[s][1], c.experts = SHAPES[s][2];
            c.hidden = SHAPES[s][3], c.inter = SHAPES[s][4];
            c.activation = (i + s) % 3 == 1   ? MSGL_SWIGLU_CLAMPED
                           : (i + s) % 3 == 2 ? MSGL_SILU_CLAMPED
                                              : MSGL_SILU;
            c.bias = (i + s) % 3 == 1 || (i + s) % 5 == 0;
            c.accumulate = rng_next(seed) % 2;
            check_few(e, f, &c, &codes, seed);
        }
    }
}

// --- grouped ------------------------------------------------------------------------------------

struct grouped_case {
    msgl_dtype act;
    int experts, rows, n, k, top_k; // top_k > 0: rows by index
    bool gated, to, bias;
    msgl_activation activation;
    int all; // one expert has all rows
};

static void check_grouped(bench_exec *e, family *f, const grouped_case *c, const form *codes,
                          uint64_t *seed)
{
    const msgl_wformat format = format_of_codes(&codes->blocks);
    matrices w = {};
    matrices_make(&w, &format, c->experts, c->n, c->k, seed);
    routing r = routing_new(c->experts, c->rows, c->all, seed);
    const int per = c->top_k > 0 ? c->top_k : 1, cols = c->gated ? c->n / 2 : c->n;
    array in = array_new(c->act, (size_t)(c->rows / per) * c->k,
                         codes->codes.bits == 8 ? 0.004f : 1, seed);
    array bias = array_new(MSGL_F32, (size_t)c->experts * c->n, 0.3f, seed);
    array out = array_new(c->act, (size_t)c->rows * cols, 0, seed);
    msgl_grouped_call call = routing_call(&r, c->top_k, c->to, w.list.data(), &in, &out, c->gated);
    call.activation = c->activation;
    call.bias = c->bias ? (const float *)bias.dev : NULL;
    e->x.act = c->act;
    for (msgl_activation gelu : GELUS) {
        call.activation = gelu;
        if (c->gated) expect(f, !msgl__cuda_grouped_codes(&e->x, &call), "no GELU");
    }
    call.activation = c->activation;
    expect(f, msgl__cuda_grouped_codes(&e->x, &call), codes->name);
    exec_sync(e);
    array_download(&out);
    char what[160];
    snprintf(what, sizeof what, "%s, dtype %d, %d experts, %d rows, n %d, k %d%s%s%s%s%s",
             codes->name, (int)c->act, c->experts, c->rows, c->n, c->k, c->gated ? " gated" : "",
             c->to ? " to" : "", c->top_k > 0 ? " from" : "", GATES[c->activation],
             c->bias ? " bias" : "");
    bool written = true;
    for (size_t i = 0; i < out.n; i++) written = written && isfinite(out.host[i]);
    expect(f, written, what);
    const gate_case gate = {c->act, c->gated, c->activation, c->bias ? &bias : NULL};
    for (int s = 0; s < 1000; s++) {
        const size_t i = rng_next(seed) % (uint64_t)c->rows;
        const int j = (int)(rng_next(seed) % (uint64_t)cols);
        const int row = c->top_k > 0 ? r.from[i] / per : (int)i;
        double off;
        const double want =
            output_of(&gate, in.host + (size_t)row * c->k, &w, r.expert_of[i], j, &off);
        expect_near(f, out.host[(size_t)(c->to ? r.to[i] : (int32_t)i) * cols + j], want,
                    off + 1e-30, what);
    }
    routing_free(&r);
    for (array *p : {&in, &bias, &out}) array_free(p);
    matrices_free(&w);
}

static void check_all_grouped(bench_exec *e, family *f, bool quick, uint64_t *seed)
{
    for (int i = 0; i < FORMS * (quick ? 3 : 12); i++) {
        form codes;
        form_get(i % FORMS, &codes);
        grouped_case c = {};
        c.act = rng_next(seed) % 2 ? MSGL_F16 : MSGL_BF16;
        c.experts = 1 + (int)(rng_next(seed) % (quick ? 6 : 60));
        c.top_k = rng_next(seed) % 2 ? 2 + (int)(rng_next(seed) % 3) : 0;
        // Up to 128 rows an expert, beyond which the call is not for this kernel.
        const int per = c.top_k > 0 ? c.top_k : 1, most = quick ? 24 : 128 * c.experts / per;
        c.rows = (1 + (int)(rng_next(seed) % (most < 200 ? most : 200))) * per;
        c.n = 32 * (1 + (int)(rng_next(seed) % (quick ? 7 : 40)));
        c.k = 32 * (1 + (int)(rng_next(seed) % (quick ? 20 : 90)));
        c.gated = rng_next(seed) % 2;
        const int gate = (int)(rng_next(seed) % 4);
        c.activation = gate == 0 ? MSGL_SWIGLU_CLAMPED : gate == 1 ? MSGL_SILU_CLAMPED : MSGL_SILU;
        c.bias = rng_next(seed) % 2;
        c.to = !c.gated && rng_next(seed) % 2;
        c.all = rng_next(seed) % 5 == 0;
        check_grouped(e, f, &c, &codes, seed);
    }
    if (quick) return;
    static const int SHAPES[][5] = {{128, 512, 1536, 2048, 8}, {128, 512, 2048, 768, 0},
                                    {32, 256, 5760, 2880, 4},  {32, 256, 2880, 2880, 0},
                                    {128, 64, 1536, 2048, 8},  {16, 700, 1536, 2048, 0}};
    for (int i = 0; i < 6; i++) { // of models
        static const int OF[] = {0, 2, 1, 1, 2, 0};
        form codes;
        form_get(OF[i], &codes);
        const int *s = SHAPES[i];
        grouped_case c = {MSGL_BF16, s[0], s[1], s[2], s[3], s[4]};
        c.gated = s[4] > 0;
        c.to = !c.gated;
        c.activation = c.gated && s[0] == 32 ? MSGL_SWIGLU_CLAMPED : MSGL_SILU;
        c.bias = s[0] == 32;
        check_grouped(e, f, &c, &codes, seed);
    }
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 16 << 20);
    family few = {"few"}, grouped = {"grouped"};
    check_all_few(&e, &few, o.quick, &seed);
    check_all_grouped(&e, &grouped, o.quick, &seed);
    int failed = family_end(&few);
    failed |= family_end(&grouped);
    return failed;
}
