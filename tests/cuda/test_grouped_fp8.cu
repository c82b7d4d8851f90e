// SPDX-License-Identifier: Apache-2.0
//
// Grouped products of FP8 experts by FP8 activations, on Hopper: against f64 of the exact weights
// times the rows as this program quantises them, of every kind of scale, with rows by index and
// results by index, gates, experts without rows and with all of them, and the shapes of models; and
// who takes them. cuda_grouped_fp8 [--seed N] [--quick].
#include "tests/cuda/fp8_case.cuh"
#include "tests/cuda/routing_case.cuh"
extern "C" {
#include "cuda/gemm/gemm.h"
}
#include "cuda/gemm/grouped_fp8_sm90.cuh"

struct grouped_case {
    msgl_dtype act;
    msgl_number number;
    scale_kind scales; // BY_BLOCK or BY_ROW
    int experts, rows, n, k, top_k;
    bool gated, to;
    int all; // one expert has all rows
};

struct expert_list {
    std::vector<fp8_weight> all;
    std::vector<msgl_weight> list;
    uint8_t *memory;
};

// With NaN between them.
static void experts_make(expert_list *out, const fp8_format *format, const grouped_case *c,
                         uint64_t *seed)
{
    for (int i = 0; i < c->experts; i++) {
        out->all.push_back(weight_draw(format, c->n, c->k, seed));
    }
    const size_t bytes = (out->all[0].bytes.size() + 63) / 64 * 64 + 64;
    CUDA_OK(cudaMalloc(&out->memory, bytes * (size_t)c->experts));
    poison(out->memory, bytes * (size_t)c->experts);
    for (int i = 0; i < c->experts; i++) {
        fp8_weight *w = &out->all[(size_t)i];
        w->w.data = out->memory + (size_t)i * bytes;
        device_write(w->w.data, w->bytes.data(), w->bytes.size());
        out->list.push_back(w->w);
    }
}

static bool takes(const bench_exec *e, const msgl_grouped_call *c)
{
    codes_matrix m;
    return msgl__cuda_grouped_fp8_takes(&e->x, c, &m);
}

// A row as fp8_rows.h has it, in f32 step by step: its values.
static std::vector<double> quantise(const float *row, int k)
{
    std::vector<double> values((size_t)k);
    for (int at = 0; at < k; at += GROUP_COLUMNS) {
        float largest = 0;
        for (int i = 0; i < GROUP_COLUMNS; i++) largest = fmaxf(largest, fabsf(row[at + i]));
        const float scale = largest < 0x1p-100f ? 0 : largest / 448.0f;
        const float by = largest < 0x1p-100f ? 0 : 448.0f / largest;
        for (int i = at; i < at + GROUP_COLUMNS; i++) {
            values[(size_t)i] =
                (double)msgl__e4m3_to_f32(msgl__f32_to_e4m3(row[i] * by)) * (double)scale;
        }
    }
    return values;
}

// A row times feature j of an expert; *off: what it may be off. The tensor cores add 32 products
// to a sum with 13 bits behind the first of the largest one, cutting off what is behind: 33 errors
// evenly between 0 and its last bit, of either sign. What is allowed is four deviations of their
// sum.
static double dot(const std::vector<double> &x, const double *w, double *off)
{
    double sum = 0, size = 0, squares = 0;
    for (size_t t = 0; t < x.size(); t += 32) {
        double most = 0, of_group = 0;
        for (size_t u = t; u < t + 32; u++) {
            const double p = x[u] * w[u];
            of_group += p;
            size += fabs(p);
            most = fmax(most, fabs(p));
        }
        sum += of_group;
        most = fmax(most, 2 * fabs(of_group)) * 0x1p-13;
        squares += 33 * most * most / 3;
    }
    *off = size * 0x1p-20 + 4 * sqrt(squares);
    return sum;
}

static double output_of(const grouped_case *c, const std::vector<double> &x,
                        const fp8_weight *expert, int j, double *off)
{
    const double *const row = &expert->values[(size_t)j * c->k];
    const double step = dtype_error(c->act);
    double off_up, v = dot(x, row, off);
    if (c->gated) {
        const double up = dot(x, row + (size_t)(c->n / 2) * c->k, &off_up), gate = v;
        v = gate / (1 + exp(-gate)) * up;
        *off = *off * 1.2 * fabs(up) + off_up * fabs(gate) + 1e-6 * fabs(v);
    }
    *off += step * fabs(v) * 1.01 + 1e-6;
    return v;
}

static void check(bench_exec *e, family *f, const grouped_case *c, uint64_t *seed)
{
    fp8_format format;
    expert_list w = {};
    make_format(&format, c->scales, c->number);
    experts_make(&w, &format, c, seed);
    routing r = routing_new(c->experts, c->rows, c->all, seed);
    const int per = c->top_k > 0 ? c->top_k : 1, cols = c->gated ? c->n / 2 : c->n;
    array in = array_new(c->act, (size_t)(c->rows / per) * c->k, 0.004f, seed);
    array out = array_new(c->act, (size_t)c->rows * cols, 0, seed);
    msgl_grouped_call call = routing_call(&r, c->top_k, c->to, w.list.data(), &in, &out, c->gated);
    e->x.act = c->act;
    char what[160];
    snprintf(what, sizeof what, "%s, number %d, dtype %d, %d experts, %d rows, n %d, k %d%s%s%s%s",
             format.blocks.name, (int)c->number, (int)c->act, c->experts, c->rows, c->n, c->k,
             c->gated ? " gated" : "", c->to ? " to" : "", c->top_k > 0 ? " from" : "",
             c->all ? " all" : "");
    expect(f, takes(e, &call), what);
    // As much as an engine asks for, which knows no more of a call.
    msgl_grouped_call asked = {};
    asked.experts = call.experts;
    asked.num_experts = call.num_experts;
    asked.rows = call.rows;
    asked.from_per = c->top_k;
    asked.gated = call.gated;
    asked.activation = call.activation;
    const size_t all = e->scratch.size;
    e->scratch.size = msgl__cuda_grouped_scratch(&asked, c->act);
    expect(f, e->scratch.size <= all, what);
    msgl__cuda_grouped(&e->x, &call);
    exec_sync(e);
    e->scratch.size = all;
    array_download(&out);
    bool written = true;
    for (size_t i = 0; i < out.n; i++) written = written && isfinite(out.host[i]);
    expect(f, written, what);
    for (int s = 0; s < 300; s++) {
        const size_t i = rng_next(seed) % (uint64_t)c->rows;
        const int row = c->top_k > 0 ? r.from[i] / per : (int)i;
        const std::vector<double> x = quantise(in.host + (size_t)row * c->k, c->k);
        for (int t = 0; t < 4; t++) {
            const int j = (int)(rng_next(seed) % (uint64_t)cols);
            double off;
            const double want = output_of(c, x, &w.all[(size_t)r.expert_of[i]], j, &off);
            expect_near(f, out.host[(size_t)(c->to ? r.to[i] : (int32_t)i) * cols + j], want, off,
                        what);
        }
    }
    routing_free(&r);
    for (array *p : {&in, &out}) array_free(p);
    CUDA_OK(cudaFree(w.memory));
}

// Calls that are others' business.
static void check_refused(bench_exec *e, family *f, uint64_t *seed)
{
    const grouped_case c = {MSGL_BF16, MSGL_NUMBER_F32, BY_BLOCK, 2, 64, 256, 256, 0};
    fp8_format blocks, groups;
    expert_list w = {}, others = {};
    make_format(&blocks, BY_BLOCK, c.number);
    make_format(&groups, BY_GROUP, c.number);
    experts_make(&w, &blocks, &c, seed);
    experts_make(&others, &groups, &c, seed);
    array in = array_new(c.act, (size_t)c.rows * c.k, 1, seed);
    msgl_grouped_call good = {};
    good.experts = w.list.data();
    good.num_experts = c.experts;
    good.rows = c.rows;
    good.in = good.out = in.dev;
    good.ld_in = (size_t)c.k;
    good.ld_out = (size_t)c.n;
    e->x.act = c.act;
    expect(f, takes(e, &good), "good");
    msgl_grouped_call bad = good;
    bad.rows = 2;
    expect(f, !takes(e, &bad), "few rows");
    bad = good;
    bad.ld_in = (size_t)c.k + 4;
    expect(f, !takes(e, &bad), "rows of 8 bytes");
    bad = good;
    bad.experts = others.list.data();
    expect(f, !takes(e, &bad), "scales by group");
    expect(f, msgl__cuda_grouped_fp8_scratch(&bad) == 0, "scratch of scales by group");
    std::vector<msgl_weight> apart = w.list;
    apart.push_back(apart[0]); // behind two others, not at their distance
    bad = good;
    bad.experts = apart.data();
    bad.num_experts = 3;
    expect(f, !takes(e, &bad), "distances");
    e->x.act = MSGL_F32;
    expect(f, !takes(e, &good), "f32");
    e->x.act = c.act;
    e->device.deterministic = true;
    expect(f, !takes(e, &good), "deterministic");
    e->device.deterministic = false;
    array_free(&in);
    CUDA_OK(cudaFree(w.memory));
    CUDA_OK(cudaFree(others.memory));
}

static void check_drawn(bench_exec *e, family *f, int times, uint64_t *seed)
{
    static const msgl_number NUMBERS[] = {MSGL_NUMBER_F32, MSGL_NUMBER_BF16, MSGL_NUMBER_F16};
    for (int i = 0; i < times; i++) {
        grouped_case c = {};
        c.act = rng_next(seed) % 2 ? MSGL_F16 : MSGL_BF16;
        c.number = NUMBERS[i % 3];
        c.scales = i / 3 % 2 == 0 ? BY_BLOCK : BY_ROW;
        c.experts = 1 + (int)(rng_next(seed) % 6);
        c.top_k = rng_next(seed) % 2 ? 2 + (int)(rng_next(seed) % 3) : 0;
        const int per = c.top_k > 0 ? c.top_k : 1, least = 12 * c.experts / per + 1;
        c.rows = (least + (int)(rng_next(seed) % 900)) * per;
        c.n = c.scales == BY_ROW ? 32 * (1 + (int)(rng_next(seed) % 20))
                                 : 128 * (1 + (int)(rng_next(seed) % 6));
        c.k = GROUP_COLUMNS * (1 + (int)(rng_next(seed) % 12));
        c.gated = rng_next(seed) % 2;
        c.to = !c.gated && rng_next(seed) % 2;
        c.all = rng_next(seed) % 5 == 0;
        check(e, f, &c, seed);
    }
}

static void check_models(bench_exec *e, family *f, uint64_t *seed)
{
    static const int SHAPES[][5] = {
        {16, 16 * 200, 1536, 2048, 8},
        {16, 16 * 200, 2048, 768, 0}, // of Qwen3-30B-A3B's
        {8, 8 * 600, 4096, 7168, 8},
        {8, 8 * 600, 7168, 2048, 0}, // of DeepSeek-V3's
    };
    for (const int(&s)[5] : SHAPES) {
        grouped_case c = {MSGL_BF16, MSGL_NUMBER_F32, BY_BLOCK, s[0], s[1], s[2], s[3], s[4]};
        c.gated = s[4] > 0;
        c.to = !c.gated;
        check(e, f, &c, seed);
    }
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, (size_t)1 << 29);
    family drawn = {"drawn"}, models = {"models"};
    if (e.device.base.capability != 90) {
        printf("grouped products of FP8 are Hopper's\n");
        return 0;
    }
    check_refused(&e, &drawn, &seed);
    check_drawn(&e, &drawn, o.quick ? 12 : 60, &seed);
    if (!o.quick) check_models(&e, &models, &seed);
    int failed = family_end(&drawn);
    if (!o.quick) failed |= family_end(&models);
    return failed;
}
