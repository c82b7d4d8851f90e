// SPDX-License-Identifier: Apache-2.0
//
// Codes that a device keeps or makes while loading, from rows to products: what the packer makes of
// them, linear calls with every flag against f64 of the values, also of parts and of more than a
// slab; products made of the codes themselves, of every form that has a kernel, and norm_stats
// between two; products a head; and that such calls run in a captured graph, are the same on a
// deterministic device whatever the number of rows, and are left alone by what takes plain weights
// only. cuda_codes [--seed N] [--quick].
#include "cuda/device_api.h"
#include "cuda/gemm/codes_sm90.h"
#include "cuda/gemm/table.cuh"
#include "cuda/peer_sum.h"
#include "tests/cuda/codes_case.cuh"

enum { SCRATCH = 1 << 30 };

struct gpu {
    msgl_device *device;
    msgl_arena scratch;
    msgl_exec x;
};

static void gpu_open(gpu *g, bool deterministic)
{
    msgl_err err;
    memset(g, 0, sizeof *g);
    if (msgl__cuda_device_open(0, deterministic, NULL, &g->device, NULL, &err) != 0) {
        printf("%s\n", err.text);
        exit(1);
    }
    void *p;
    CUDA_OK(cudaMalloc(&p, SCRATCH));
    msgl__arena_init(&g->scratch, p, SCRATCH);
    g->x.device = g->device;
    g->x.scratch = &g->scratch;
}

static void gpu_close(gpu *g)
{
    CUDA_OK(cudaFree(g->scratch.base));
    g->device->ops->destroy(g->device);
}

static void gpu_sync(gpu *g, const char *what)
{
    CUDA_OK(cudaStreamSynchronize(msgl__cuda_stream(&g->x)));
    CUDA_OK(cudaGetLastError());
    if (g->x.status == 0 && g->device->fault.code == 0) return;
    printf("%s: status %d: %s\n", what, g->x.status, g->device->fault.text);
    exit(1);
}

// A weight in device memory of its own.
static void weight_make(test_weight *t, const std::vector<const msgl_wformat *> &formats,
                        const std::vector<int> &ns, int k, uint64_t *seed)
{
    uint8_t *memory;
    t->parts.clear();
    for (size_t i = 0; i < ns.size(); i++) {
        t->parts.push_back(draw_rows(formats[i], ns[i], k, seed));
    }
    CUDA_OK(cudaMalloc(&memory, padded_bytes(t)));
    put_weight(t, memory);
}

static void weight_free(test_weight *t)
{
    CUDA_OK(cudaFree(t->list[0].data));
}

// --- the packer ---------------------------------------------------------------------------------

// Rows of parts in memory, a little apart.
struct rows_of_parts {
    const uint8_t *rows;
    size_t ld;
};

static void read_parts(const void *rows, const msgl_part_tile *t, msgl_code_part *out, size_t ld)
{
    const rows_of_parts *p = (const rows_of_parts *)rows;
    for (size_t r = 0; r < t->rows; r++) {
        memcpy(out + r * ld, p->rows + (t->row + r) * p->ld + t->col / 32 * sizeof *out,
               t->cols / 32 * sizeof *out);
    }
}

// Rows in pieces, the last ones first, each a little apart in the file. Parts are asked for every
// other time.
static void check_keep(gpu *g, family *f, const msgl_blocks *b, uint64_t *seed)
{
    enum { ROWS = 50 };
    const int k = b->elements * (1 + (int)(rng_next(seed) % 12));
    msgl_wformat format = {};
    expect(f, msgl__cuda_keep(b, k, rng_next(seed) % 2, &format), b->name);
    expect(f, format.id == MSGL_W_CODES && format.repack != NULL && format.pack == NULL,
           "a kept one");
    expect(f, (format.repack_parts != NULL) == (b->codes->split == NULL), "parts are asked for");
    msgl_weight w = {};
    w.format = &format;
    w.n = ROWS;
    w.k = k;
    const size_t bytes = msgl__weight_bytes(&w), file = (size_t)(k / b->elements) * b->bytes;
    const size_t ld = file + 7;
    std::vector<uint8_t> src(ROWS * ld);
    std::vector<float> values((size_t)ROWS * k);
    for (int r = 0; r < ROWS; r++) {
        code_row_draw(seed, b, k, &src[(size_t)r * ld], &values[(size_t)r * k]);
    }
    CUDA_OK(cudaMalloc(&w.data, bytes + 64));
    poison(w.data, bytes + 64);
    for (int end = ROWS; end > 0;) {
        const int rows = 1 + (int)(rng_next(seed) % (uint64_t)end);
        end -= rows;
        const rows_of_parts from = {&src[(size_t)end * ld], ld};
        const msgl_part_rows parts = {read_parts, &from};
        if (format.repack_parts != NULL && rows % 2 == 0) {
            format.repack_parts(&g->x, &w, end, rows, &parts);
        } else {
            format.repack(&g->x, &w, end, rows, from.rows, ld);
        }
    }
    array out = array_new(MSGL_F32, (size_t)ROWS * k, 0, seed);
    int32_t ids[ROWS];
    for (int i = 0; i < ROWS; i++) ids[i] = ROWS - 1 - i;
    int32_t *dev = ints_upload(ids, ROWS);
    g->x.act = MSGL_F32;
    format.gather(&g->x, &w, dev, ROWS, out.dev);
    gpu_sync(g, "keep");
    array_download(&out);
    long differ = 0;
    for (int i = 0; i < ROWS; i++) {
        differ += memcmp(&out.host[(size_t)i * k], &values[(size_t)ids[i] * k], k * sizeof(float));
    }
    expect(f, differ == 0, b->name);
    uint8_t guard[64];
    CUDA_OK(cudaMemcpy(guard, (char *)w.data + bytes, sizeof guard, cudaMemcpyDeviceToHost));
    for (uint8_t v : guard) expect(f, v == 0xff, "nothing is written behind the weight");
    CUDA_OK(cudaFree(dev));
    CUDA_OK(cudaFree(w.data));
    array_free(&out);
}

static void check_kept_forms(gpu *g, family *f, uint64_t *seed)
{
    const msgl_blocks *blocks[MAX_CODE_BLOCKS];
    const int num = code_blocks_all(blocks);
    msgl_wformat format;
    for (int i = 0; i < num; i++) check_keep(g, f, blocks[i], seed);
    for (int i = 0; i < code_forms_count(); i++) {
        code_form form;
        code_forms_get(i, &form);
        check_keep(g, f, &form.blocks, seed);
    }
    expect(f, !msgl__cuda_keep(msgl__blocks_of_ggml("IQ1_S"), 256, false, &format),
           "blocks without codes are not kept");
    expect(f, !msgl__cuda_keep(msgl__blocks_of_ggml("Q4_K"), 128, false, &format),
           "nor half a block");
}

// What is quantised while loading, from rows that are a little apart, the last ones first.
static void check_planned(gpu *g, family *f, const msgl_wformat *format, msgl_dtype from, int n,
                          int k, uint64_t *seed)
{
    const size_t ld = (size_t)k + 5, size = msgl__dtype_size(from);
    std::vector<char> src((size_t)n * ld * size);
    std::vector<float> want((size_t)n * k);
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < k; i++) {
            msgl__store_f32(src.data(), from, (size_t)r * ld + i, rng_normal(seed));
            want[(size_t)r * k + i] = msgl__load_f32(src.data(), from, (size_t)r * ld + i);
        }
        round_row(format, &want[(size_t)r * k], k);
    }
    msgl_weight w = {};
    w.format = format;
    w.n = n;
    w.k = k;
    const size_t bytes = msgl__weight_bytes(&w);
    CUDA_OK(cudaMalloc(&w.data, bytes));
    CUDA_OK(cudaMemset(w.data, 0, bytes));
    expect(f, format->pack != NULL && format->repack == NULL, "a planned one");
    for (int end = n; end > 0;) {
        const int rows = 1 + (int)(rng_next(seed) % (uint64_t)end);
        end -= rows;
        format->pack(&g->x, &w, end, rows, &src[(size_t)end * ld * size], from, ld);
    }
    array out = array_new(MSGL_F32, want.size(), 0, seed);
    std::vector<int32_t> ids;
    for (int i = 0; i < n; i++) ids.push_back(i);
    int32_t *dev = ints_upload(ids.data(), (size_t)n);
    g->x.act = MSGL_F32;
    format->gather(&g->x, &w, dev, n, out.dev);
    gpu_sync(g, "planned");
    array_download(&out);
    long differ = 0;
    for (size_t i = 0; i < want.size(); i++) differ += out.host[i] != want[i];
    expect(f, differ == 0, format->name);
    CUDA_OK(cudaFree(dev));
    CUDA_OK(cudaFree(w.data));
    array_free(&out);
}

static void check_planned_formats(gpu *g, family *f, uint64_t *seed)
{
    const int longest = MSGL_GEMM_STAGE_BYTES / 4 + 100; // columns of a row that comes in parts
    for (int i = 0; i < 2 * 9; i++) {
        const msgl_wformat *format = &msgl__cuda_formats[i % 2 ? MSGL_W_CODES : MSGL_W_INT8];
        const int n = 1 + (int)(rng_next(seed) % 50), k = 1 + (int)(rng_next(seed) % 700);
        check_planned(g, f, format, (msgl_dtype)(i / 2 % 3), n, i / 6 % 3 == 2 ? 128 : k, seed);
        if (i / 2 == 2) check_planned(g, f, format, MSGL_BF16, 2, longest, seed);
    }
    msgl_weight none = {&msgl__cuda_formats[MSGL_W_INT8], 1, INT32_MAX, NULL};
    expect(f, msgl__weight_bytes(&none) == 0, "too many columns");
}

// --- linear -------------------------------------------------------------------------------------

struct linear_case {
    msgl_dtype act;
    int m, pad;
    bool norm, bias, gated, gelu, accumulate, f32_out;
    bool exact; // products are made of the codes and not of values that are rounded before
};

static double gate_of(const linear_case *c, double v)
{
    if (!c->gelu) return silu_of(v);
    return v / 2 * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
}

// Row i times feature j, by values as the activations' dtype has them; *off: what it may be off.
static double product_of(const linear_case *c, const array *in, const test_weight *w,
                         const array *norm, const array *bias, int i, int j, double *off)
{
    const int k = w->w.k;
    const float *x = in->host + (size_t)i * (k + c->pad), *row = w->row(j);
    double sum = c->bias ? bias->host[j] : 0, size = fabs(sum), squares = 0;
    for (int t = 0; c->norm && t < k; t++) squares += (double)x[t] * x[t];
    const double scale = c->norm ? 1 / sqrt(squares / k + 1e-6) : 1;
    double terms = 0;
    for (int t = 0; t < k; t++) {
        const double v = c->norm ? x[t] * scale * norm->host[t] : x[t];
        const double p = v * (c->exact ? row[t] : rounded(row[t], c->act));
        sum += p;
        size += fabs(p);
        terms += p * p;
    }
    // Of a normed input every value is rounded, and roundings add up as their squares do. cuBLASLt
    // may round a product to the output's type before it adds a bias, which has that type too, or
    // what the output has.
    const double step = dtype_error(c->act), added = c->bias ? bias->host[j] : 0;
    *off = size * 0x1p-19 + (c->norm ? 6 * step * sqrt(terms) : 0);
    if (!c->f32_out && (c->bias || c->accumulate)) {
        *off += step * (fabs(added) + fabs(sum - added));
    }
    return sum;
}

static void compare_linear(family *f, const linear_case *c, const array *in, const test_weight *w,
                           const array *norm, const array *bias, const array *out,
                           const float *before, const char *what, uint64_t *seed)
{
    const int cols = c->gated ? w->w.n / 2 : w->w.n;
    const size_t ld = (size_t)(cols + c->pad);
    const double step = dtype_error(c->f32_out ? MSGL_F32 : c->act);
    expect_rows(f, out, before, c->m, cols, ld, what);
    for (int s = 0; s < 800; s++) {
        const int i = (int)(rng_next(seed) % (uint64_t)c->m);
        const int j = (int)(rng_next(seed) % (uint64_t)cols);
        const size_t at = (size_t)i * ld + (size_t)j;
        double off, off_up = 0, want = product_of(c, in, w, norm, bias, i, j, &off);
        if (c->gated) { // the product is rounded before
            const double up = product_of(c, in, w, norm, bias, i, cols + j, &off_up), g = want;
            want = gate_of(c, g) * up;
            off = (off + 2 * step * fabs(g)) * 1.2 * fabs(up) +
                  (off_up + 2 * step * fabs(up)) * (fabs(g) + 1);
        }
        if (c->accumulate) want += before[at];
        // It may also round what it has added to an output before it adds the bias: of sums near 0
        // it gave multiples of 2^-7 (bf16), the unit of the larger sums in front.
        if (c->accumulate && c->bias && !c->f32_out) off += step * fabs(want - bias->host[j]);
        expect_near(f, out->host[at], want, off + 2 * step * fabs(want) + 1e-6, what);
    }
}

static msgl_linear_call call_of(const linear_case *c, const test_weight *w, const array *in,
                                const array *norm, const array *bias, const array *out)
{
    msgl_linear_call call = {};
    call.w = &w->w;
    call.bias = c->bias ? (const float *)bias->dev : NULL;
    call.in = in->dev;
    call.ld_in = (size_t)(w->w.k + c->pad);
    call.m = c->m;
    call.norm = c->norm ? (const float *)norm->dev : NULL;
    call.norm_eps = 1e-6f;
    call.gated = c->gated;
    call.activation = c->gelu ? MSGL_GELU_TANH : MSGL_SILU;
    call.accumulate = c->accumulate;
    call.f32_out = c->f32_out;
    call.out = out->dev;
    call.ld_out = (size_t)((c->gated ? w->w.n / 2 : w->w.n) + c->pad);
    return call;
}

// In a graph too, whose capture follows a first run: the same bits, from poisoned scratch.
static void run_captured(gpu *g, family *f, const msgl_linear_call *call, const array *out,
                         const float *before)
{
    array again = *out;
    std::vector<float> plain(out->host, out->host + out->n), replayed(out->n);
    const cudaStream_t stream = msgl__cuda_stream(&g->x);
    const cudaGraphExec_t graph = cuda_capture(stream, [&] { msgl__cuda_linear(&g->x, call); });
    again.host = replayed.data();
    memcpy(again.host, before, out->n * sizeof(float));
    array_upload(&again);
    poison(g->scratch.base, 1 << 20);
    CUDA_OK(cudaGraphLaunch(graph, stream));
    gpu_sync(g, "graph");
    array_download(&again);
    expect(f, memcmp(plain.data(), again.host, out->n * sizeof(float)) == 0,
           "a graph does what the call does");
    CUDA_OK(cudaGraphExecDestroy(graph));
}

static void check_linear(gpu *g, family *f, const linear_case *made, const test_weight *w,
                         uint64_t *seed)
{
    linear_case own = *made;
    const linear_case *const c = &own;
    const int n = w->w.n, k = w->w.k, cols = c->gated ? n / 2 : n;
    array in = array_new(c->act, (size_t)c->m * (k + c->pad), 1, seed);
    array norm = array_new(MSGL_F32, (size_t)k, 1, seed);
    array bias = array_new(MSGL_F32, (size_t)n, 1, seed);
    array out = array_new(c->f32_out ? MSGL_F32 : c->act, (size_t)c->m * (cols + c->pad),
                          c->accumulate ? 1 : 0, seed);
    std::vector<float> before(out.host, out.host + out.n);
    const msgl_linear_call call = call_of(c, w, &in, &norm, &bias, &out);
    char what[160];
    snprintf(what, sizeof what, "%s dtype %d, m %d n %d k %d%s%s%s%s%s%s",
             w->list[0].format->name != NULL ? w->list[0].format->name : "plain", (int)c->act, c->m,
             n, k, c->norm ? " norm" : "", c->bias ? " bias" : "", c->gated ? " gated" : "",
             c->gelu ? " gelu" : "", c->accumulate ? " accumulate" : "", c->f32_out ? " f32" : "");
    g->x.act = c->act;
    own.exact = msgl__cuda_codes_sm90_can(&g->x, &call);
    g->scratch.used = 0;
    g->scratch.size = msgl__cuda_linear_scratch(&call, c->act); // enough
    expect(f, g->scratch.size <= SCRATCH, "scratch of the test");
    msgl__cuda_linear(&g->x, &call);
    gpu_sync(g, what);
    expect(f, g->scratch.used == 0, "scratch is given back");
    array_download(&out);
    compare_linear(f, c, &in, w, &norm, &bias, &out, before.data(), what, seed);
    run_captured(g, f, &call, &out, before.data());
    g->scratch.size = SCRATCH;
    array_free(&in);
    array_free(&norm);
    array_free(&bias);
    array_free(&out);
}

// Every combination of flags that is allowed, in turn.
static linear_case flags_of(int i)
{
    linear_case c = {};
    c.norm = i % 2 == 1;
    c.bias = i / 2 % 2 == 1;
    const int kind = i / 4 % 5;
    c.gated = kind == 1 || kind == 2;
    c.gelu = kind == 2;
    c.accumulate = kind == 3;
    c.f32_out = kind == 4;
    return c;
}

static void check_flags(gpu *g, family *f, const test_weight *w, msgl_dtype act, int flags,
                        uint64_t *seed)
{
    static const int MS[] = {1, 5, 33, 200};
    for (int m : MS) {
        linear_case c = flags_of(flags);
        c.act = act;
        c.m = m;
        c.pad = flags % 3 == 0 && !c.gated ? 8 : 0;
        if (c.gated && w->w.n % 2 != 0) continue;
        check_linear(g, f, &c, w, seed);
    }
}

static void check_products(gpu *g, family *f, bool quick, uint64_t *seed)
{
    static const char *const FORMS[] = {"Q4_0", "Q4_K", "Q6_K", "Q8_0",  "IQ4_XS",
                                        "Q5_1", "Q2_K", "Q3_K", "MXFP4", "Q5_K"};
    for (int i = 0; i < (quick ? 10 : 60); i++) {
        const msgl_blocks *b = msgl__blocks_of_ggml(FORMS[i % 10]);
        const msgl_wformat format = format_of_codes(b);
        test_weight w = {};
        weight_make(&w, {&format}, {2 * (1 + (int)(rng_next(seed) % 200))},
                    256 * (1 + (int)(rng_next(seed) % 6)), seed);
        check_flags(g, f, &w, (msgl_dtype)(2 - i % 3), i % 20, seed);
        weight_free(&w);
    }
    // q, k and v of three formats, one of them plain; gate and up of two.
    for (int i = 0; i < 20; i++) {
        const msgl_wformat q4 = format_of_codes(msgl__blocks_of_ggml("Q4_K"));
        const msgl_wformat q6 = format_of_codes(msgl__blocks_of_ggml("Q6_K"));
        const msgl_wformat plain = format_of_dtype((msgl_dtype)(i % 3));
        test_weight w = {};
        if (i % 2 == 0) {
            weight_make(&w, {&plain, &q4, &q6}, {96, 150, 90}, 512, seed);
        } else {
            weight_make(&w, {&q6, &plain, &q4}, {77, 40, 61}, 768, seed);
        }
        check_flags(g, f, &w, (msgl_dtype)(i % 3), i, seed);
        weight_free(&w);
    }
    // What is quantised while loading, of any number of columns.
    for (int i = 0; i < 20; i++) {
        static const int KS[] = {77, 200, 96, 1, 328};
        const msgl_wformat *format = &msgl__cuda_formats[i % 2 ? MSGL_W_CODES : MSGL_W_INT8];
        test_weight w = {};
        weight_make(&w, {format}, {2 * (1 + (int)(rng_next(seed) % 60))}, KS[i / 2 % 5], seed);
        check_flags(g, f, &w, (msgl_dtype)(i % 3), i, seed);
        weight_free(&w);
    }
    // More than a slab, and a part across its end.
    for (int i = 0; i < (quick ? 1 : 4); i++) {
        const msgl_wformat q4 = format_of_codes(msgl__blocks_of_ggml("Q4_K"));
        const msgl_wformat q8 = format_of_codes(msgl__blocks_of_ggml("Q8_0"));
        const msgl_dtype act = i == 1 ? MSGL_F32 : i == 2 ? MSGL_F16 : MSGL_BF16;
        test_weight w = {};
        weight_make(&w, {&q4, &q8}, {16000 + i, 20000 + i}, 2048, seed);
        expect(f, msgl__cuda_slab_rows(2048, act) < 36000, "several slabs");
        check_flags(g, f, &w, act, i == 0 ? 4 : i == 1 ? 17 : i == 2 ? 12 : 7, seed);
        weight_free(&w);
    }
}

// --- products of codes --------------------------------------------------------------------------

// Products of a form, of shapes that codes_sm90 takes; whether it takes the form.
static bool check_form(gpu *g, family *f, const msgl_blocks *b, bool quick, uint64_t *seed)
{
    static const int MS[] = {1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 192, 256, 300, 600};
    const msgl_wformat format = format_of_codes(b);
    bool taken = true;
    for (int i = 0; i < (quick ? 3 : 8) && taken; i++) {
        const int unit = b->elements == MSGL_MAX_BLOCK ? 256 : 128;
        const int k = unit * (1 + (int)(rng_next(seed) % (i % 4 == 3 ? 40 : 9)));
        const int n = 16 * (1 + (int)(rng_next(seed) % (i % 4 == 2 ? 200 : 30)));
        test_weight w = {};
        weight_make(&w, {&format}, {n}, k, seed);
        const linear_case one = {MSGL_BF16, 1};
        array in = array_new(one.act, (size_t)k, 1, seed), none = {};
        array out = array_new(one.act, (size_t)n, 0, seed);
        const msgl_linear_call call = call_of(&one, &w, &in, &none, &none, &out);
        g->x.act = one.act;
        taken = msgl__cuda_codes_sm90_can(&g->x, &call);
        array_free(&in);
        array_free(&out);
        for (int j = 0; j < 4 && taken; j++) {
            linear_case c = flags_of((int)(rng_next(seed) % 20));
            c.act = i % 3 == 2 ? MSGL_F16 : MSGL_BF16;
            c.m = MS[rng_next(seed) % (sizeof MS / sizeof MS[0])];
            if (c.act == MSGL_F16) c.gated = c.gelu = false; // gate times up may leave its range
            c.pad = rng_next(seed) % 3 == 0 && !c.gated ? 8 : 0;
            check_linear(g, f, &c, &w, seed);
        }
        weight_free(&w);
    }
    return taken;
}

static void check_codes(gpu *g, family *f, bool quick, uint64_t *seed)
{
    static const char *const FORMS[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
                                        "Q4_K", "Q5_K", "Q6_K", "MXFP4"};
    enum { PACKED = 21 }; // of code_forms
    int packed = 0;
    if (g->device->capability != 90) return;
    for (const char *name : FORMS) {
        expect(f, check_form(g, f, msgl__blocks_of_ggml(name), quick, seed), name);
    }
    for (int i = 0; i < code_forms_count(); i++) {
        code_form form;
        code_forms_get(i, &form);
        packed += check_form(g, f, &form.blocks, quick, seed);
    }
    expect(f, packed == PACKED, "packed forms with a kernel");
    expect(f, check_form(g, f, msgl__blocks_of_ggml("MXFP4"), quick, seed), "MXFP4");
}

// A product that adds leaves the norm's half for the one behind, which takes it.
static void check_norm_stats(gpu *g, family *f, int m, int n, int k, uint64_t *seed)
{
    const msgl_wformat q4 = format_of_codes(msgl__blocks_of_ggml("Q4_0"));
    const msgl_wformat q6 = format_of_codes(msgl__blocks_of_ggml("Q6_K"));
    const int behind = 768;
    test_weight down = {}, up = {};
    weight_make(&down, {&q4}, {n}, k, seed);
    weight_make(&up, {&q6}, {behind}, n, seed);
    linear_case first = {MSGL_BF16, m}, second = {MSGL_BF16, m};
    first.accumulate = first.exact = second.norm = second.gated = second.exact = true;
    array in = array_new(MSGL_BF16, (size_t)m * k, 1, seed), none = {};
    array norm = array_new(MSGL_F32, (size_t)n, 1, seed);
    array x = array_new(MSGL_BF16, (size_t)m * n, 1, seed);
    array out = array_new(MSGL_BF16, (size_t)m * behind / 2, 0, seed);
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
    expect(f, stats.num_tiles == n / 64 && stats.x == x.dev, "norm_stats are left");
    g->scratch.size = 0; // the norm needs nothing more
    msgl__cuda_linear(&g->x, &b);
    g->scratch.size = SCRATCH;
    gpu_sync(g, "norm_stats");
    array_download(&x);
    array_download(&out);
    compare_linear(f, &first, &in, &down, &none, &none, &x, before.data(), "leaves norm_stats",
                   seed);
    compare_linear(f, &second, &x, &up, &norm, &none, &out, nothing.data(), "takes norm_stats",
                   seed);
    for (array *p : {&in, &norm, &x, &out, &scaled, &sums}) array_free(p);
    weight_free(&down);
    weight_free(&up);
}

// On a deterministic device a row has the bits that it has alone.
static void check_deterministic(family *f, uint64_t *seed)
{
    gpu g;
    gpu_open(&g, true);
    const msgl_wformat q4 = format_of_codes(msgl__blocks_of_ggml("Q4_K"));
    const msgl_wformat q6 = format_of_codes(msgl__blocks_of_ggml("Q6_K"));
    test_weight w = {};
    weight_make(&w, {&q4, &q6, &msgl__cuda_formats[MSGL_W_INT8]}, {300, 200, 100}, 1024, seed);
    linear_case c = {MSGL_BF16, 130};
    array in = array_new(c.act, (size_t)c.m * w.w.k, 1, seed), none = {};
    array all = array_new(c.act, (size_t)c.m * w.w.n, 0, seed);
    array some = array_new(c.act, (size_t)c.m * w.w.n, 0, seed);
    g.x.act = c.act;
    msgl_linear_call call = call_of(&c, &w, &in, &none, &none, &all);
    msgl__cuda_linear(&g.x, &call);
    gpu_sync(&g, "deterministic");
    array_download(&all);
    call.out = some.dev;
    for (int m = 1; m < c.m; m += m < 9 ? 1 : 40) {
        call.m = m;
        msgl__cuda_linear(&g.x, &call);
        gpu_sync(&g, "deterministic");
        array_download(&some);
        expect(f, memcmp(all.host, some.host, (size_t)m * w.w.n * sizeof(float)) == 0,
               "a row's bits do not depend on the rows beside it");
    }
    weight_free(&w);
    array_free(&in);
    array_free(&all);
    array_free(&some);
    gpu_close(&g);
}

// What is for plain weights says no, and does nothing; tune measures nothing.
static void check_left_alone(gpu *g, family *f, uint64_t *seed)
{
    static const msgl_peer_sum nobody = {};
    const msgl_wformat q4 = format_of_codes(msgl__blocks_of_ggml("Q4_K"));
    const msgl_wformat plain = format_of_dtype(MSGL_BF16);
    for (int i = 0; i < 2; i++) { // parts begin with a plain one
        test_weight w = {};
        if (i == 0) weight_make(&w, {&q4}, {256}, 512, seed);
        if (i == 1) weight_make(&w, {&plain, &q4}, {128, 128}, 512, seed);
        linear_case c = {MSGL_BF16, 4};
        array in = array_new(c.act, 4 * 512, 1, seed), none = {};
        array out = array_new(c.act, 4 * 256, 0, seed);
        msgl_linear_call call = call_of(&c, &w, &in, &none, &none, &out);
        msgl_rope_call rope = {};
        g->x.act = MSGL_BF16;
        expect(f, !msgl__cuda_linear_rope(&g->x, &call, &rope), "linear_rope says no");
        call.accumulate = true;
        call.sum = &nobody;
        expect(f, !msgl__cuda_linear_sum(&g->x, &call), "linear_sum says no");
        call.accumulate = false;
        call.sum = NULL;
        const msgl_gemm_choices *choices = &((msgl_cuda_device *)g->device)->blas->choices;
        const size_t known = choices->count;
        msgl_tune_product product = {};
        const int32_t ms[] = {1, 16};
        msgl_arena memory;
        void *p;
        CUDA_OK(cudaMalloc(&p, 1 << 20));
        msgl__arena_init(&memory, p, 1 << 20);
        product.calls = &call;
        product.num_calls = 1;
        msgl__cuda_gemm_tune(&g->x, &memory, &product, ms, 2);
        gpu_sync(g, "tune");
        expect(f, choices->count == known, "tune leaves codes alone");
        array_download(&out);
        for (size_t j = 0; j < out.n; j++) expect(f, isnan(out.host[j]), "nothing is written");
        CUDA_OK(cudaFree(p));
        weight_free(&w);
        array_free(&in);
        array_free(&out);
    }
}

// --- products a head ----------------------------------------------------------------------------

static void check_heads(gpu *g, family *f, msgl_dtype act, int m, int n, int k, uint64_t *seed)
{
    enum { HEADS = 6 };
    const msgl_wformat format = format_of_codes(msgl__blocks_of_ggml(k % 256 ? "Q4_0" : "Q6_K"));
    std::vector<test_weight> w(HEADS);
    std::vector<msgl_weight> list;
    for (test_weight &t : w) {
        weight_make(&t, {&format}, {n}, k, seed);
        list.push_back(t.w);
    }
    const size_t ld_in = (size_t)HEADS * k, ld_out = (size_t)HEADS * n;
    array in = array_new(act, (size_t)m * ld_in, 1, seed);
    array out = array_new(act, (size_t)m * ld_out, 0, seed);
    const msgl_heads_call c = {list.data(), HEADS,   m,      in.dev,   ld_in,
                               (size_t)k,   out.dev, ld_out, (size_t)n};
    g->x.act = act;
    poison(g->scratch.base, 16 << 20);
    g->scratch.used = 0;
    g->scratch.size = msgl__cuda_heads_scratch(&c, act);
    msgl__cuda_heads(&g->x, &c);
    g->scratch.size = SCRATCH;
    gpu_sync(g, "heads");
    array_download(&out);
    for (size_t i = 0; i < out.n; i++) expect(f, isfinite(out.host[i]), "head");
    for (int s = 0; s < 1000; s++) {
        const int i = (int)(rng_next(seed) % (uint64_t)m), h = (int)(rng_next(seed) % HEADS);
        const int j = (int)(rng_next(seed) % (uint64_t)n);
        double sum = 0, size = 0;
        for (int t = 0; t < k; t++) {
            const double p = (double)in.host[(size_t)i * ld_in + (size_t)h * k + t] *
                             rounded(w[(size_t)h].row(j)[t], act);
            sum += p;
            size += fabs(p);
        }
        expect_near(f, out.host[(size_t)i * ld_out + (size_t)h * n + j], sum,
                    fabs(sum) * dtype_error(act) + size * 0x1p-20, "head");
    }
    for (test_weight &t : w) weight_free(&t);
    array_free(&in);
    array_free(&out);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static gpu g;
    gpu_open(&g, false);
    family keep = {"keep"}, linear = {"linear"}, codes = {"codes"}, alone = {"alone"},
           heads = {"heads"};
    check_kept_forms(&g, &keep, &seed);
    check_planned_formats(&g, &keep, &seed);
    check_products(&g, &linear, o.quick, &seed);
    check_codes(&g, &codes, o.quick, &seed);
    for (int m : {1, 8, 21, 64, 130, 256}) {
        if (g.device->capability == 90) check_norm_stats(&g, &codes, m, 1024, 1280, &seed);
    }
    check_left_alone(&g, &alone, &seed);
    check_deterministic(&alone, &seed);
    static const int MS[] = {1, 20, 33, 600};
    for (int i = 0; i < 24; i++) {
        check_heads(&g, &heads, (msgl_dtype)(i % 3), MS[i / 3 % 4], i < 12 ? 128 : 96,
                    i < 12 ? 512 : 160, &seed);
    }
    gpu_close(&g);
    int failed = family_end(&keep);
    failed |= family_end(&linear);
    failed |= family_end(&codes);
    failed |= family_end(&alone);
    failed |= family_end(&heads);
    return failed;
}
