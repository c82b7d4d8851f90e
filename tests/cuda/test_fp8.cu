// SPDX-License-Identifier: Apache-2.0
//
// Products of FP8 weights by FP8 activations: the quantiser of rows, to the bit where there is
// nothing in front of it; products against f64 of the exact weights times the rows that this
// program quantises itself, of every kind of scale, number of rows and flag; rows that a product
// leaves for the one behind it, norm_stats and behind a gate; and who takes them.
// cuda_fp8 [--seed N] [--quick].
#include "cuda/device_api.h"
#include "cuda/gemm/fp8.h"
#include "cuda/gemm/fp8_rows.h"
#include "tests/cuda/fp8_case.cuh"

enum { SCRATCH = 1 << 29 };

struct gpu {
    msgl_device *device;
    msgl_arena scratch;
    msgl_exec x;
};

static void gpu_open(gpu *g)
{
    msgl_err err;
    void *p;
    memset(g, 0, sizeof *g);
    if (msgl__cuda_device_open(0, false, NULL, &g->device, NULL, &err) != 0) {
        printf("%s\n", err.text);
        exit(1);
    }
    CUDA_OK(cudaMalloc(&p, SCRATCH));
    msgl__arena_init(&g->scratch, p, SCRATCH);
    g->x.device = g->device;
    g->x.scratch = &g->scratch;
}

static void gpu_sync(gpu *g, const char *what)
{
    CUDA_OK(cudaStreamSynchronize(msgl__cuda_stream(&g->x)));
    CUDA_OK(cudaGetLastError());
    if (g->x.status == 0 && g->device->fault.code == 0) return;
    printf("%s: status %d: %s\n", what, g->x.status, g->device->fault.text);
    exit(1);
}

// --- rows ---------------------------------------------------------------------------------------

// Rows as a product takes them: q and scales, and their products.
struct coded_rows {
    int m, k;
    std::vector<double> values;
    std::vector<uint8_t> codes; // in the columns' own order
    std::vector<float> scales;  // [m, k / span]
};

// In f32, step by step as fp8_rows.h says.
static coded_rows quantise(const std::vector<double> &v, int m, int k, int span)
{
    coded_rows r = {m, k};
    r.values.resize(v.size());
    r.codes.resize(v.size());
    for (size_t at = 0; at < v.size(); at += (size_t)span) {
        float largest = 0;
        for (int i = 0; i < span; i++) largest = fmaxf(largest, fabsf((float)v[at + (size_t)i]));
        const float scale = largest < 0x1p-100f ? 0 : largest / 448.0f;
        const float by = largest < 0x1p-100f ? 0 : 448.0f / largest;
        r.scales.push_back(scale);
        for (size_t i = at; i < at + (size_t)span; i++) {
            r.codes[i] = msgl__f32_to_e4m3((float)v[i] * by);
            r.values[i] = (double)msgl__e4m3_to_f32(r.codes[i]) * (double)scale;
        }
    }
    return r;
}

// Where column c of a row's 32 is (codes_row.h): c = 8 q + 2 t + odd.
static size_t place_of(size_t c)
{
    const size_t q = c % 32 / 8, t = c % 8 / 2, odd = c % 2;
    return c / 32 * 32 + 8 * t + 4 * (q / 2) + q % 2 + 2 * odd;
}

static coded_rows rows_download(const void *memory, int m, int k, bool by_row)
{
    const int groups = by_row ? 1 : k / GROUP_COLUMNS;
    const int pitch = m <= MSGL_FP8_FEW_ROWS ? (m + 3) / 4 * 4 : m / 4 * 4;
    std::vector<uint8_t> codes((size_t)m * k);
    std::vector<float> scales((size_t)groups * (by_row ? m : pitch + (m > pitch ? 4 : 0)));
    CUDA_OK(cudaMemcpy(codes.data(), memory, codes.size(), cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(scales.data(), (const char *)memory + codes.size(),
                       scales.size() * sizeof(float), cudaMemcpyDeviceToHost));
    // Of many rows the last m % 4 are apart.
    auto scale_at = [&](int group, int i) {
        return (size_t)(i < pitch ? group * pitch + i : groups * pitch + group * 4 + i - pitch);
    };
    coded_rows r = {m, k};
    r.values.resize(codes.size());
    r.codes.resize(codes.size());
    for (int i = 0; i < m; i++) {
        for (int c = 0; c < k; c++) {
            const size_t at = (size_t)i * k + c;
            const float s = by_row ? scales[(size_t)i] : scales[scale_at(c / GROUP_COLUMNS, i)];
            r.codes[at] = codes[(size_t)i * k + place_of((size_t)c)];
            r.values[at] = (double)msgl__e4m3_to_f32(r.codes[at]) * (double)s;
        }
        for (int g = 0; g < groups; g++) {
            r.scales.push_back(by_row ? scales[(size_t)i] : scales[scale_at(g, i)]);
        }
    }
    return r;
}

// Values that have been rounded on their way: within half a step of E4M3, and scales near theirs.
static void compare_rows(family *f, const coded_rows &got, const std::vector<double> &want,
                         int span, double slack, const char *what)
{
    for (size_t at = 0, g = 0; at < want.size(); at += (size_t)span, g++) {
        double largest = 0;
        for (int i = 0; i < span; i++) largest = fmax(largest, fabs(want[at + (size_t)i]));
        expect_near(f, got.scales[g], largest / 448, largest / 448 * (slack + 1e-6) + 1e-30, what);
        for (size_t i = at; i < at + (size_t)span; i++) {
            const double off = fabs(want[i]) * (0x1p-4 + slack) +
                               largest / 448 * (0x1p-10 * 1.01 + 448 * slack) + 1e-30;
            expect_near(f, got.values[i], want[i], off, what);
        }
    }
}

static void check_quantise(gpu *g, family *f, msgl_dtype act, int m, int k, int how, uint64_t *seed)
{
    const bool gated = how % 4 >= 2, norm = how % 4 == 1, by_row = how >= 4;
    const msgl_activation a = (msgl_activation)(how % 2 + (by_row ? 1 : 0));
    const int columns = gated ? 2 * k : k, ld = columns + 8;
    array in = array_new(act, (size_t)m * ld, 1, seed);
    array weight = array_new(MSGL_F32, (size_t)k, 1, seed);
    for (int i = 0; i < m; i++) {
        for (int c = 0; c < ld; c++) {
            float *v = &in.host[(size_t)i * ld + c];
            if (c >= columns) *v = NAN;
            if (c < columns && !gated && i == 0 && c < GROUP_COLUMNS) *v = 0;
        }
    }
    array_upload(&in);
    array_download(&in);
    void *memory;
    const size_t bytes = msgl__fp8_rows_bytes(m, k);
    CUDA_OK(cudaMalloc(&memory, bytes));
    poison(memory, bytes);
    const msgl_fp8_rows to = msgl__fp8_rows_at(memory, m, k, by_row);
    const msgl_fp8_source from = {in.dev, (size_t)ld, norm ? (const float *)weight.dev : NULL,
                                  1e-6f,  gated,      a};
    g->x.act = act;
    msgl__cuda_quantise_rows(&g->x, &from, &to);
    gpu_sync(g, "quantise");
    std::vector<double> want;
    for (int i = 0; i < m; i++) {
        const float *row = in.host + (size_t)i * ld;
        double squares = 0;
        for (int c = 0; c < k; c++) squares += (double)row[c] * row[c];
        const double scale = norm ? 1 / sqrt(squares / k + 1e-6) : 1;
        for (int c = 0; c < k; c++) {
            want.push_back(gated  ? gate_of(a, row[c], row[k + c])
                           : norm ? row[c] * scale * weight.host[c]
                                  : row[c]);
        }
    }
    const coded_rows got = rows_download(memory, m, k, by_row);
    const int span = by_row ? k : GROUP_COLUMNS;
    compare_rows(f, got, want, span, norm || gated ? 4e-6 : 0, "rows");
    if (!norm && !gated) {
        const coded_rows exact = quantise(want, m, k, span);
        expect(f, got.codes == exact.codes && got.scales == exact.scales, "rows to the bit");
    }
    CUDA_OK(cudaFree(memory));
    array_free(&in);
    array_free(&weight);
}

// --- products -----------------------------------------------------------------------------------

struct linear_case {
    msgl_dtype act;
    int m, pad;
    bool norm, bias, gated, accumulate, f32_out;
    msgl_activation activation;
};

// Row i times feature j; *off: what it may be off. The tensor cores add 32 products to a sum with
// 13 bits behind the first of the largest one, cutting off what is behind: 33 errors evenly between
// 0 and its last bit, of either sign. What is allowed is four deviations of their sum.
static double product_of(const linear_case *c, const coded_rows &in, const fp8_weight *w,
                         const array *bias, int i, int j, double *off)
{
    const double *x = &in.values[(size_t)i * in.k], *row = &w->values[(size_t)j * w->k];
    const double added = c->bias ? bias->host[j] : 0, step = dtype_error(c->act);
    double sum = added, size = fabs(added), largest = 0, squares = 0;
    for (int t = 0; t < in.k; t += 32) {
        double most = 0, of_group = 0;
        for (int u = t; u < t + 32; u++) {
            const double p = x[u] * row[u];
            sum += p;
            of_group += p;
            size += fabs(p);
            most = fmax(most, fabs(p));
        }
        largest = fmax(largest, most);
        most = fmax(most, 2 * fabs(of_group)) * 0x1p-13;
        squares += 33 * most * most / 3;
    }
    // Of a normed input some values are on the other side of a rounding of E4M3.
    *off = size * 0x1p-20 + 4 * sqrt(squares) + (c->norm ? largest / 4 : 0);
    if (!c->f32_out && (c->bias || c->accumulate || c->gated)) {
        *off += step * (fabs(added) + fabs(sum - added));
    }
    return sum;
}

static void compare_linear(family *f, const linear_case *c, const coded_rows &in,
                           const fp8_weight *w, const array *bias, const array *out,
                           const float *before, const char *what, uint64_t *seed)
{
    const int cols = c->gated ? w->n / 2 : w->n;
    const size_t ld = (size_t)(cols + c->pad);
    const double step = dtype_error(c->f32_out ? MSGL_F32 : c->act);
    expect_rows(f, out, before, c->m, cols, ld, what);
    for (int s = 0; s < 1000; s++) {
        const int i = (int)(rng_next(seed) % (uint64_t)c->m);
        const int j = (int)(rng_next(seed) % (uint64_t)cols);
        const size_t at = (size_t)i * ld + (size_t)j;
        double off, off_up = 0, want = product_of(c, in, w, bias, i, j, &off);
        if (c->gated) { // the library's product is rounded before
            const double up = product_of(c, in, w, bias, i, cols + j, &off_up), gate = want;
            want = gate_of(c->activation, gate, up);
            off = (off + step * fabs(gate)) * 1.2 * (fabs(up) + 1) +
                  (off_up + step * fabs(up)) * (fabs(gate) + 1);
        }
        if (c->accumulate) want += before[at];
        expect_near(f, out->host[at], want, off + step * fabs(want) + 1e-6, what);
    }
}

static msgl_linear_call call_of(const linear_case *c, const fp8_weight *w, const array *in,
                                const array *norm, const array *bias, const array *out)
{
    msgl_linear_call call = {};
    call.w = &w->w;
    call.bias = c->bias ? (const float *)bias->dev : NULL;
    call.in = in->dev;
    call.ld_in = (size_t)(w->k + c->pad);
    call.m = c->m;
    call.norm = c->norm ? (const float *)norm->dev : NULL;
    call.norm_eps = 1e-6f;
    call.gated = c->gated;
    call.activation = c->activation;
    call.accumulate = c->accumulate;
    call.f32_out = c->f32_out;
    call.out = out->dev;
    call.ld_out = (size_t)((c->gated ? w->n / 2 : w->n) + c->pad);
    return call;
}

// The call's input as the product takes it.
static coded_rows input_of(const linear_case *c, const fp8_weight *w, const array *in,
                           const array *norm)
{
    std::vector<double> v;
    for (int i = 0; i < c->m; i++) {
        const float *row = in->host + (size_t)i * (w->k + c->pad);
        double squares = 0;
        for (int t = 0; t < w->k; t++) squares += (double)row[t] * row[t];
        const double scale = c->norm ? 1 / sqrt(squares / w->k + 1e-6) : 1;
        for (int t = 0; t < w->k; t++)
            v.push_back(c->norm ? row[t] * scale * norm->host[t] : row[t]);
    }
    const bool by_row = c->m > MSGL_FP8_FEW_ROWS && w->f->codes.span == 0;
    return quantise(v, c->m, w->k, by_row ? w->k : GROUP_COLUMNS);
}

static void check_linear(gpu *g, family *f, const linear_case *c, const fp8_weight *w,
                         uint64_t *seed)
{
    const int cols = c->gated ? w->n / 2 : w->n;
    array in = array_new(c->act, (size_t)c->m * (w->k + c->pad), 1, seed);
    array norm = array_new(MSGL_F32, (size_t)w->k, 1, seed);
    array bias = array_new(MSGL_F32, (size_t)w->n, 1, seed);
    array out = array_new(c->f32_out ? MSGL_F32 : c->act, (size_t)c->m * (cols + c->pad),
                          c->accumulate ? 1 : 0, seed);
    for (int i = 0; i < c->m; i++) {
        for (int t = w->k; t < w->k + c->pad; t++) in.host[(size_t)i * (w->k + c->pad) + t] = NAN;
    }
    array_upload(&in);
    std::vector<float> before(out.host, out.host + out.n);
    const msgl_linear_call call = call_of(c, w, &in, &norm, &bias, &out);
    char what[160];
    snprintf(what, sizeof what, "%s number %d dtype %d, m %d n %d k %d%s%s%s%s%s",
             w->f->blocks.name, (int)w->f->codes.number, (int)c->act, c->m, w->n, w->k,
             c->norm ? " norm" : "", c->bias ? " bias" : "", c->gated ? " gated" : "",
             c->accumulate ? " accumulate" : "", c->f32_out ? " f32" : "");
    g->x.act = c->act;
    expect(f, msgl__cuda_fp8_can(&g->x, &call), what);
    poison(g->scratch.base, SCRATCH / 4);
    g->scratch.used = 0;
    g->scratch.size = msgl__cuda_linear_scratch(&call, c->act); // enough
    msgl__cuda_linear(&g->x, &call);
    gpu_sync(g, what);
    expect(f, g->scratch.used == 0, "scratch is given back");
    g->scratch.size = SCRATCH;
    array_download(&out);
    compare_linear(f, c, input_of(c, w, &in, &norm), w, &bias, &out, before.data(), what, seed);
    // In a graph the same bits, from poisoned scratch and workspace flags that were given back.
    const cudaStream_t stream = msgl__cuda_stream(&g->x);
    array again = out;
    std::vector<float> replayed(before);
    again.host = replayed.data();
    const cudaGraphExec_t graph = cuda_capture(stream, [&] { msgl__cuda_linear(&g->x, &call); });
    array_upload(&again);
    poison(g->scratch.base, 1 << 20);
    CUDA_OK(cudaGraphLaunch(graph, stream));
    gpu_sync(g, "graph");
    array_download(&again);
    expect(f, memcmp(out.host, again.host, out.n * sizeof(float)) == 0,
           "a graph does what the call does");
    CUDA_OK(cudaGraphExecDestroy(graph));
    for (array *a : {&in, &norm, &bias, &out}) array_free(a);
}

static void check_products(gpu *g, family *few, family *many, bool quick, uint64_t *seed)
{
    static const int MS[] = {1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 100, 128, 129, 200, 256};
    static const int MANY[] = {257, 300, 511, 1000};
    for (int i = 0; i < (quick ? 9 : 36); i++) {
        fp8_format form;
        make_format(&form, (scale_kind)(i % KINDS),
                    i / 3 % 3 == 0   ? MSGL_NUMBER_F32
                    : i / 3 % 3 == 1 ? MSGL_NUMBER_BF16
                                     : MSGL_NUMBER_F16);
        const int n = 16 * (1 + (int)(rng_next(seed) % (i % 5 == 4 ? 150 : 30)));
        const int k = 128 * (1 + (int)(rng_next(seed) % (i % 4 == 3 ? 40 : 9)));
        fp8_weight w = weight_make(&form, n, k, seed);
        for (int j = 0; j < 10; j++) {
            linear_case c = {};
            const int flags = (int)(rng_next(seed) % 20), kind = flags / 4;
            c.act = i % 3 == 2 && i % 2 == 1 ? MSGL_F16 : MSGL_BF16;
            c.m = j >= 8 ? MANY[rng_next(seed) % 4] : MS[rng_next(seed) % 16];
            const bool large = c.m > MSGL_FP8_FEW_ROWS;
            c.norm = flags % 2 == 1;
            c.bias = flags / 2 % 2 == 1;
            c.gated = kind == 1 || kind == 2;
            c.activation = kind == 2 ? MSGL_GELU_TANH : MSGL_SILU;
            c.accumulate = kind == 3;
            c.f32_out = kind == 4;
            // Expanded before products (fp8.cu), which cuda_codes compares.
            if (large && (i % KINDS == BY_GROUP || (c.bias && c.f32_out))) continue;
            if (c.act == MSGL_F16) c.gated = false; // gate times up may leave its range
            c.pad = rng_next(seed) % 3 == 0 && !c.gated ? 8 : 0;
            check_linear(g, large ? many : few, &c, &w, seed);
        }
        weight_free(&w);
    }
}

// Parts of one weight: two of these kinds, which beyond few rows have to be the same one.
static void check_parts(gpu *g, family *f, scale_kind kind, scale_kind other_kind, uint64_t *seed)
{
    fp8_format form, other, all;
    make_format(&form, kind, MSGL_NUMBER_F32);
    make_format(&other, other_kind, MSGL_NUMBER_BF16);
    make_format(&all, kind == other_kind ? kind : BY_GROUP, MSGL_NUMBER_F32);
    for (int m : {3, 64, 100, 300}) {
        if (m > MSGL_FP8_FEW_ROWS && kind != other_kind) continue;
        fp8_weight a = weight_make(&form, 256, 384, seed), b = weight_make(&other, 128, 384, seed);
        const msgl_weight parts[2] = {a.w, b.w};
        fp8_weight both = {{}, &all, 384, 384, a.values};
        both.values.insert(both.values.end(), b.values.begin(), b.values.end());
        both.w = a.w;
        both.w.n = 384;
        both.w.parts = parts;
        both.w.num_parts = 2;
        linear_case c = {MSGL_BF16, m};
        c.bias = c.norm = true;
        check_linear(g, f, &c, &both, seed);
        c.bias = false;
        c.gated = true;
        check_linear(g, f, &c, &both, seed);
        weight_free(&a);
        weight_free(&b);
    }
}

// --- from product to product --------------------------------------------------------------------

// A product that adds leaves coded rows and squares for the norm behind, whose product takes them.
static void check_norm_stats(gpu *g, family *f, int m, int n, int k, uint64_t *seed)
{
    fp8_format form;
    make_format(&form, m % 2 == 0 ? BY_BLOCK : BY_ROW, MSGL_NUMBER_F32);
    fp8_weight down = weight_make(&form, n, k, seed), up = weight_make(&form, 768, n, seed);
    linear_case first = {MSGL_BF16, m}, second = {MSGL_BF16, m};
    first.accumulate = second.norm = second.gated = true;
    array in = array_new(MSGL_BF16, (size_t)m * k, 1, seed), none = {};
    array norm = array_new(MSGL_F32, (size_t)n, 1, seed);
    array x = array_new(MSGL_BF16, (size_t)m * n, 1, seed);
    array out = array_new(MSGL_BF16, (size_t)m * 384, 0, seed);
    array scaled = array_new(MSGL_BF16, (size_t)m * n, 0, seed);
    array sums = array_new(MSGL_F32, (size_t)m * (n / MSGL_NORM_STATS_COLUMNS + 1), 0, seed);
    std::vector<float> before(x.host, x.host + x.n), nothing(out.host, out.host + out.n);
    msgl_norm_stats stats = {};
    stats.scaled = scaled.dev;
    stats.sums = (float *)sums.dev;
    msgl_linear_call a = call_of(&first, &down, &in, &none, &none, &x);
    msgl_linear_call b = call_of(&second, &up, &x, &norm, &none, &out);
    a.norm_stats = b.norm_stats = &stats;
    a.next_norm = (const float *)norm.dev;
    g->x.act = MSGL_BF16;
    msgl__cuda_linear(&g->x, &a);
    expect(f, stats.coded && stats.num_tiles == n / 128 && stats.x == x.dev, "norm_stats are left");
    g->scratch.size = 0; // the norm needs nothing more
    msgl__cuda_linear(&g->x, &b);
    g->scratch.size = SCRATCH;
    gpu_sync(g, "norm_stats");
    array_download(&x);
    array_download(&out);
    compare_linear(f, &first, input_of(&first, &down, &in, &none), &down, &none, &x, before.data(),
                   "leaves norm_stats", seed);
    std::vector<double> times;
    for (size_t i = 0; i < x.n; i++) times.push_back(x.host[i] * norm.host[i % (size_t)n]);
    const coded_rows left = rows_download(scaled.dev, m, n, false);
    const coded_rows exact = quantise(times, m, n, GROUP_COLUMNS);
    expect(f, left.codes == exact.codes && left.scales == exact.scales, "coded rows to the bit");
    // The rows' factor comes later, so that what is quantised is x * weight.
    coded_rows taken = exact;
    for (int i = 0; i < m; i++) {
        double squares = 0;
        for (int t = 0; t < n; t++) {
            squares += (double)x.host[(size_t)i * n + t] * x.host[(size_t)i * n + t];
        }
        for (int t = 0; t < n; t++) {
            taken.values[(size_t)i * n + t] /= sqrt(squares / n + 1e-6);
        }
    }
    second.norm = false;
    compare_linear(f, &second, taken, &up, &none, &out, nothing.data(), "takes norm_stats", seed);
    for (array *p : {&in, &norm, &x, &out, &scaled, &sums}) array_free(p);
    weight_free(&down);
    weight_free(&up);
}

// A gate hands coded rows over to the product behind.
static void check_handover(gpu *g, family *f, int m, int inner, int k, msgl_activation act,
                           uint64_t *seed)
{
    fp8_format form;
    make_format(&form, m % 2 == 0 ? BY_BLOCK : BY_ROW, MSGL_NUMBER_F32);
    fp8_weight up = weight_make(&form, 2 * inner, k, seed);
    fp8_weight down = weight_make(&form, 384, inner, seed);
    linear_case first = {MSGL_BF16, m}, second = {MSGL_BF16, m};
    first.gated = second.accumulate = true;
    first.activation = act;
    array in = array_new(MSGL_BF16, (size_t)m * k, 1, seed), none = {};
    array between = array_new(MSGL_BF16, (size_t)m * inner, 0, seed);
    array out = array_new(MSGL_BF16, (size_t)m * 384, 1, seed);
    std::vector<float> before(out.host, out.host + out.n);
    msgl_handover h = {&down.w, false};
    msgl_linear_call a = call_of(&first, &up, &in, &none, &none, &between);
    msgl_linear_call b = call_of(&second, &down, &between, &none, &none, &out);
    a.handover = b.handover = &h;
    g->x.act = MSGL_BF16;
    msgl__cuda_linear(&g->x, &a);
    expect(f, h.left, "rows are handed over");
    msgl__cuda_linear(&g->x, &b);
    gpu_sync(g, "handover");
    array_download(&out);
    const bool by_row = m > MSGL_FP8_FEW_ROWS && form.codes.span == 0;
    const coded_rows left = rows_download(between.dev, m, inner, by_row);
    const coded_rows source = input_of(&first, &up, &in, &none);
    std::vector<double> want((size_t)m * inner);
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < inner; j++) {
            double off;
            const double gate = product_of(&first, source, &up, &none, i, j, &off);
            want[(size_t)i * inner + j] =
                gate_of(act, gate, product_of(&first, source, &up, &none, i, inner + j, &off));
        }
    }
    // Of the library and of other gates than silu the product is rounded to bf16 before.
    const double slack = m > MSGL_FP8_FEW_ROWS || act != MSGL_SILU ? 0x1p-6 : 0x1p-9;
    compare_rows(f, left, want, by_row ? inner : GROUP_COLUMNS, slack, "handed over");
    compare_linear(f, &second, left, &down, &none, &out, before.data(), "takes them", seed);
    for (array *p : {&in, &between, &out}) array_free(p);
    weight_free(&up);
    weight_free(&down);
}

// Whoever multiplies values does not take coded norm_stats, nor is handed rows.
static void check_left_alone(gpu *g, family *f, uint64_t *seed)
{
    fp8_format form;
    make_format(&form, BY_GROUP, MSGL_NUMBER_F32);
    fp8_weight up = weight_make(&form, 512, 256, seed);
    linear_case c = {MSGL_BF16, 4};
    c.gated = true;
    array in = array_new(MSGL_BF16, 4 * 256, 1, seed), none = {};
    array out = array_new(MSGL_BF16, 4 * 256, 0, seed);
    const msgl_wformat plain = format_of_dtype(MSGL_BF16);
    msgl_weight reader = {};
    reader.format = &plain;
    reader.n = 64;
    reader.k = 256;
    reader.data = out.dev;
    msgl_handover h = {&reader, false};
    msgl_linear_call call = call_of(&c, &up, &in, &none, &none, &out);
    call.handover = &h;
    g->x.act = MSGL_BF16;
    msgl__cuda_linear(&g->x, &call);
    gpu_sync(g, "alone");
    array_download(&out);
    expect(f, !h.left && isfinite(out.host[0]), "a plain weight gets values");
    g->x.act = MSGL_F32;
    expect(f, !msgl__cuda_fp8_can(&g->x, &call), "not in f32");
    msgl_weight wide = up.w; // only its shape counts
    msgl_codes_row l;
    wide.k = MSGL_FP8_MOST_COLUMNS;
    expect(f, msgl__fp8_weight(&wide, &l), "rows as long as a block quantises");
    wide.k += MSGL_FP8_GROUP;
    expect(f, !msgl__fp8_weight(&wide, &l), "no longer rows");
    array_free(&in);
    array_free(&out);
    weight_free(&up);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static gpu g;
    gpu_open(&g);
    family rows = {"rows"}, few = {"few"}, many = {"many"}, chain = {"chain"};
    if (g.device->capability != 90) {
        printf("fp8: not on this GPU\n");
        return 0;
    }
    for (int how = 0; how < 8; how++) {
        check_quantise(&g, &rows, how % 3 == 0 ? MSGL_F16 : MSGL_BF16, 5, 384, how, &seed);
        check_quantise(&g, &rows, MSGL_BF16, 3, 17408, how, &seed);
        if (!o.quick) check_quantise(&g, &rows, MSGL_BF16, 258, 5120, how, &seed);
    }
    check_products(&g, &few, &many, o.quick, &seed);
    check_parts(&g, &few, BY_BLOCK, BY_BLOCK, &seed);
    check_parts(&g, &few, BY_GROUP, BY_BLOCK, &seed);
    check_parts(&g, &few, BY_BLOCK, BY_ROW, &seed);
    for (int m : {1, 8, 21, 33, 64}) check_norm_stats(&g, &chain, m, 1024, 1280, &seed);
    check_norm_stats(&g, &chain, 5, 5120, 2048, &seed);
    for (int m : {1, 8, 16, 21, 64, 100, 130, 256, 300, 301}) {
        check_handover(&g, &chain, m, 384, 256, MSGL_SILU, &seed);
    }
    check_handover(&g, &chain, 6, 512, 1280, MSGL_SILU, &seed);
    check_handover(&g, &chain, 7, 256, 256, MSGL_GELU_TANH, &seed);
    check_left_alone(&g, &chain, &seed);
    g.device->ops->destroy(g.device);
    int failed = family_end(&rows);
    failed |= family_end(&few);
    failed |= family_end(&many);
    failed |= family_end(&chain);
    return failed;
}
