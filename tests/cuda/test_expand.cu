// SPDX-License-Identifier: Apache-2.0
//
// Weights that are expanded before products: values to the bit of every form of codes, and
// of parts; rows that are looked up; and products of experts in them, some of which have kernels
// that expand nothing, against f64. What is not to be written or read is NaN before. cuda_expand
// [--seed N] [--quick].
#include "cuda/gemm/experts_codes.cuh"
#include "tests/cuda/codes_case.cuh"
#include "tests/cuda/routing_case.cuh"

enum { MAX_WEIGHTS = 4 };

// `num` weights in the same formats, at distances that differ if `uneven`.
struct weights {
    std::vector<test_weight> all;
    std::vector<msgl_weight> list;
    uint8_t *memory;
};

static void weights_make(weights *out, const std::vector<const msgl_wformat *> &formats,
                         const std::vector<int> &ns, int k, int num, bool uneven, uint64_t *seed)
{
    size_t bytes = 0;
    out->all.resize((size_t)num);
    for (test_weight &t : out->all) {
        for (size_t i = 0; i < ns.size(); i++) {
            t.parts.push_back(draw_rows(formats[i], ns[i], k, seed));
        }
        bytes += padded_bytes(&t) + 128;
    }
    CUDA_OK(cudaMalloc(&out->memory, bytes));
    poison(out->memory, bytes);
    size_t at = 0;
    for (int i = 0; i < num; i++) {
        put_weight(&out->all[(size_t)i], out->memory + at);
        out->list.push_back(out->all[(size_t)i].w);
        at += padded_bytes(&out->all[(size_t)i]) + (uneven && i % 2 == 0 ? 128 : 64);
    }
}

static void weights_free(weights *w)
{
    CUDA_OK(cudaFree(w->memory));
}

// Rows [row, row + rows) of all, some left out; nothing else is written.
static void check_expand(bench_exec *e, family *f, const weights *w, msgl_dtype act, uint64_t *seed)
{
    const int num = (int)w->list.size(), n = w->list[0].n, k = w->list[0].k;
    const int row = (int)(rng_next(seed) % (uint64_t)n);
    const int rows = 1 + (int)(rng_next(seed) % (uint64_t)(n - row));
    const size_t stride = ((size_t)rows * k + 8) / 8 * 8; // of out
    int32_t offsets[MAX_WEIGHTS + 1] = {5};
    for (int i = 0; i < num; i++) offsets[i + 1] = offsets[i] + (int)(rng_next(seed) % 2);
    int32_t *dev = rng_next(seed) % 2 ? ints_upload(offsets, (size_t)num + 1) : NULL;
    array out = array_new(act, (size_t)num * stride, 0, seed);
    const msgl_expand_call c = {w->list.data(), num, row, rows, dev, out.dev, stride};
    e->x.act = act;
    msgl__cuda_expand(&e->x, &c);
    exec_sync(e);
    array_download(&out);
    long differ = 0, beside = 0;
    for (int i = 0; i < num; i++) {
        const bool idle = dev != NULL && offsets[i] == offsets[i + 1];
        for (size_t j = 0; j < stride; j++) {
            const float got = out.host[(size_t)i * stride + j];
            if (j >= (size_t)rows * k) {
                beside += !isnan(got);
                continue;
            }
            const float want = rounded(w->all[(size_t)i].row(row + (int)(j / k))[j % k], act);
            if (idle) {
                beside += !isnan(got);
            } else {
                differ += memcmp(&got, &want, sizeof got) != 0;
            }
        }
    }
    const char *name = w->list[0].format->name;
    char what[120];
    snprintf(what, sizeof what, "%s, k %d, dtype %d: %ld values differ, %ld are written beside",
             name != NULL ? name : "-", k, (int)act, differ, beside);
    expect(f, differ == 0 && beside == 0, what);
    if (dev != NULL) CUDA_OK(cudaFree(dev));
    array_free(&out);
}

// Rows in any order, and ids that are no rows of this weight: zeros.
static void check_gather(bench_exec *e, family *f, const weights *w, msgl_dtype act, uint64_t *seed)
{
    enum { IDS = 9, FIRST = 3 };
    msgl_weight part = w->list[0];
    const size_t k = (size_t)part.k;
    int32_t ids[IDS];
    part.first = FIRST;
    for (int i = 0; i < IDS; i++) {
        ids[i] = FIRST + (int32_t)(rng_next(seed) % (uint64_t)(part.n + 2)) - 1;
    }
    int32_t *dev = ints_upload(ids, IDS);
    array out = array_new(act, IDS * k, 0, seed);
    e->x.act = act;
    msgl__cuda_codes_gather(&e->x, &part, dev, IDS, out.dev);
    exec_sync(e);
    array_download(&out);
    long differ = 0;
    for (size_t i = 0; i < IDS * k; i++) {
        const int row = ids[i / k] - FIRST;
        const bool there = row >= 0 && row < part.n;
        const float want = there ? rounded(w->all[0].row(row)[i % k], act) : 0;
        differ += memcmp(&out.host[i], &want, sizeof want) != 0;
    }
    expect(f, differ == 0, "rows that are looked up");
    CUDA_OK(cudaFree(dev));
    array_free(&out);
}

// One form of codes, in all dtypes and several lengths.
static void check_form(bench_exec *e, family *expand, family *gather, const msgl_blocks *b,
                       uint64_t *seed)
{
    static const int BLOCKS[] = {1, 3, 9, 40};
    const msgl_wformat format = format_of_codes(b);
    for (int i = 0; i < 4; i++) {
        const int k = b->elements * (b->elements > 32 && i == 3 ? 17 : BLOCKS[i]);
        weights w = {};
        weights_make(&w, {&format}, {1 + (int)(rng_next(seed) % 37)}, k, 1 + i % MAX_WEIGHTS,
                     i % 2 == 1, seed);
        for (int act = 0; act < 3; act++) {
            check_expand(e, expand, &w, (msgl_dtype)act, seed);
            check_gather(e, gather, &w, (msgl_dtype)act, seed);
        }
        weights_free(&w);
    }
}

// Columns in an order of their own, of any number.
static void check_ordered(bench_exec *e, family *expand, family *gather, const msgl_blocks *b,
                          uint64_t *seed)
{
    static const int KS[] = {1, 77, 384, 1000};
    if (b->elements != 32) return;
    for (int k : KS) {
        msgl_wformat format = format_of_codes(b);
        msgl_column_order *order = draw_order(k, seed);
        format.order = order;
        weights w = {};
        weights_make(&w, {&format}, {1 + (int)(rng_next(seed) % 37)}, k, 1 + k % MAX_WEIGHTS,
                     k % 2 == 1, seed);
        for (int act = 0; act < 3; act++) {
            check_expand(e, expand, &w, (msgl_dtype)act, seed);
            check_gather(e, gather, &w, (msgl_dtype)act, seed);
        }
        weights_free(&w);
        free(order);
    }
}

// Weights with rows of several formats, in every dtype; plain ones and what is quantised while
// loading, of any length.
static void check_others(bench_exec *e, family *f, uint64_t *seed)
{
    const msgl_wformat q4 = format_of_codes(msgl__blocks_of_ggml("Q4_K"));
    const msgl_wformat q6 = format_of_codes(msgl__blocks_of_ggml("Q6_K"));
    const msgl_wformat int8 = format_of_codes(&msgl__int8_blocks);
    const msgl_wformat q4_0 = format_of_codes(&msgl__blocks_q4_0);
    static const int KS[] = {8, 64, 77, 200, 1, 1024};
    for (int act = 0; act < 3; act++) {
        const msgl_wformat plain = format_of_dtype((msgl_dtype)act);
        for (int i = 0; i < 6; i++) {
            weights parts = {}, bytes = {}, both = {};
            weights_make(&parts, {&q4, &plain, &int8, &q6}, {3 + i, 5, 1 + i, 20}, 512, 1 + i % 3,
                         i == 2, seed);
            weights_make(&bytes, {i % 2 ? &q4_0 : &int8}, {9 + i}, KS[i], 1 + i % 4, i == 3, seed);
            for (int j = 0; j < 4; j++) check_expand(e, f, &parts, (msgl_dtype)act, seed);
            weights_make(&both, {&plain, &int8}, {7, 2 + i}, KS[i], 1 + i % 4, i == 4, seed);
            check_expand(e, f, &bytes, (msgl_dtype)act, seed);
            check_gather(e, f, &bytes, (msgl_dtype)act, seed);
            check_expand(e, f, &both, (msgl_dtype)act, seed);
            weights_free(&parts);
            weights_free(&bytes);
            weights_free(&both);
        }
    }
}

// A slab has whole 128 rows, and takes what is said.
static void check_slabs(family *f)
{
    for (int i = 0; i < 3 * 20; i++) {
        const msgl_dtype act = (msgl_dtype)(i % 3);
        const int k = 32 << i / 3 % 15;
        const size_t rows = (size_t)msgl__cuda_slab_rows(k, act), row = k * msgl__dtype_size(act);
        expect(f, rows >= 128 && rows % 128 == 0, "whole 128 rows");
        expect(f, rows == 128 || rows * row <= (size_t)64 << 20, "64 MiB");
        expect(f,
               msgl__cuda_slab_bytes(rows + 1, k, act) >= rows * row &&
                   msgl__cuda_slab_bytes(5, k, act) >= 5 * row,
               "scratch for it");
    }
}

// What a weight in the wrong dtype is told.
static void check_refused(bench_exec *e, family *f, uint64_t *seed)
{
    const msgl_wformat f16 = format_of_dtype(MSGL_F16);
    weights w = {};
    weights_make(&w, {&f16}, {3}, 32, 1, false, seed);
    array out = array_new(MSGL_BF16, 96, 0, seed);
    const msgl_expand_call c = {w.list.data(), 1, 0, 3, NULL, out.dev, 96};
    e->x.act = MSGL_BF16;
    msgl__cuda_expand(&e->x, &c);
    expect(f, e->x.status == MSGL_EUNSUPPORTED, "plain weights of another dtype are refused");
    e->x.status = 0;
    array_free(&out);
    weights_free(&w);
}

// --- experts ------------------------------------------------------------------------------------

struct grouped_case {
    msgl_dtype act;
    int experts, rows, n, k, top_k; // top_k > 0: rows by index
    bool gated, to, bias, uneven;
    msgl_activation activation;
    int kind;   // of weights: see formats_of
    bool exact; // products are made of the codes, and no value is rounded
};

// Formats of an expert and how its rows are divided.
static void formats_of(const grouped_case *c, const msgl_wformat *codes, const msgl_wformat *int8,
                       const msgl_wformat *plain, std::vector<const msgl_wformat *> *formats,
                       std::vector<int> *ns)
{
    if (c->kind == 0) {
        *formats = {codes};
        *ns = {c->n};
    } else if (c->kind == 1) {
        *formats = {int8};
        *ns = {c->n};
    } else { // gate and up in different forms
        *formats = {codes, c->kind == 2 ? int8 : plain};
        *ns = {c->n / 2, c->n - c->n / 2};
    }
}

// The product of row i with feature j, and the sum of its terms' sizes. act: of the values.
static double dot(const array *in, int row, const float *w, int k, msgl_dtype act, double *size)
{
    double sum = 0;
    *size = 0;
    for (int i = 0; i < k; i++) {
        const double p = (double)in->host[(size_t)row * k + i] * rounded(w[i], act);
        sum += p;
        *size += fabs(p);
    }
    return sum;
}

// Row i's output j; *off: by how much it may be off.
static double wanted(const grouped_case *c, const array *in, int row, const test_weight *w,
                     const float *bias, int j, double *off)
{
    const double step = dtype_error(c->act), sums = c->exact ? 0x1p-19 : 0x1p-20;
    const msgl_dtype values = c->exact ? MSGL_F32 : c->act;
    double size, size_up;
    double v = dot(in, row, w->row(j), c->k, values, &size) + (bias != NULL ? bias[j] : 0);
    if (!c->gated) {
        *off = fabs(v) * step + size * (sums + (bias != NULL ? step : 0));
        return v;
    }
    const int half = c->n / 2;
    const double up = dot(in, row, w->row(half + j), c->k, values, &size_up) +
                      (bias != NULL ? bias[half + j] : 0);
    const bool apart =
        c->activation != MSGL_SILU || bias != NULL; // products are rounded before the gate
    const double more = apart ? 2 * step : 0, slope = 1.2;
    const double off_gate = size * (sums + more), off_up = size_up * (sums + more);
    const double out = gate_of(c->activation, v, up);
    *off = fabs(out) * 2 * step + slope * (fabs(up) + 1) * off_gate + (fabs(v) + 1) * off_up + 1e-6;
    return out;
}

static void check_grouped(bench_exec *e, family *f, grouped_case *c, const msgl_wformat *codes,
                          uint64_t *seed)
{
    const msgl_wformat int8 = format_of_codes(&msgl__int8_blocks), plain = format_of_dtype(c->act);
    std::vector<const msgl_wformat *> formats;
    std::vector<int> ns;
    weights w = {};
    formats_of(c, codes, &int8, &plain, &formats, &ns);
    weights_make(&w, formats, ns, c->k, c->experts, c->uneven, seed);
    codes_matrix m;
    c->exact = c->act != MSGL_F32 && msgl__codes_matrix_of(w.list.data(), c->experts, &m) &&
               (!c->gated || (c->n % 32 == 0 && c->activation != MSGL_GELU_TANH &&
                              c->activation != MSGL_GELU_ERF));
    routing r = routing_new(c->experts, c->rows, false, seed);
    const int per = c->top_k > 0 ? c->top_k : 1, cols = c->gated ? c->n / 2 : c->n;
    // A gate times an up row is within f16's range, also by 8 bits, whose values are larger.
    const float in_size = c->kind == 1 ? 0.1f : 1;
    array in = array_new(c->act, (size_t)(c->rows / per) * c->k, in_size, seed);
    array gathered = array_new(c->act, (size_t)c->rows * c->k, 0, seed);
    array bias = array_new(MSGL_F32, (size_t)c->experts * c->n, 0.3f, seed);
    array out = array_new(c->act, (size_t)c->rows * cols, 0, seed);
    msgl_grouped_call call = routing_call(&r, c->top_k, c->to, w.list.data(), &in, &out, c->gated);
    call.activation = c->activation;
    call.bias = c->bias ? (const float *)bias.dev : NULL;
    call.gathered = gathered.dev;
    e->x.act = c->act;
    const size_t room = e->scratch.size;
    poison(e->scratch.base, room);
    e->scratch.used = 0;
    e->scratch.size = msgl__cuda_grouped_scratch(&call, c->act); // enough
    expect(f, e->scratch.size <= room, "scratch of the test");
    msgl__cuda_grouped(&e->x, &call);
    e->scratch.size = room;
    exec_sync(e);
    array_download(&out);
    char what[160];
    snprintf(what, sizeof what, "dtype %d, %d experts, %d rows, n %d, k %d%s%s%s%s kind %d",
             (int)c->act, c->experts, c->rows, c->n, c->k, c->gated ? " gated" : "",
             c->to ? " to" : "", c->top_k > 0 ? " from" : "", GATES[c->activation], c->kind);
    bool written = true;
    for (size_t i = 0; i < out.n; i++) written = written && isfinite(out.host[i]);
    expect(f, written, what);
    for (int s = 0; s < 1500; s++) {
        const size_t i = rng_next(seed) % (uint64_t)c->rows;
        const int j = (int)(rng_next(seed) % (uint64_t)cols), x = r.expert_of[i];
        const int row = c->top_k > 0 ? r.from[i] / per : (int)i;
        double off;
        const double want = wanted(c, &in, row, &w.all[(size_t)x],
                                   c->bias ? bias.host + (size_t)x * c->n : NULL, j, &off);
        const size_t at = (size_t)(c->to ? r.to[i] : (int32_t)i) * cols + j;
        expect_near(f, out.host[at], want, off + 1e-30, what);
    }
    routing_free(&r);
    array_free(&in);
    array_free(&gathered);
    array_free(&bias);
    array_free(&out);
    weights_free(&w);
}

static void check_experts(bench_exec *e, family *f, bool quick, uint64_t *seed)
{
    enum { OTHERS = MSGL_ACTIVATIONS - 1 }; // than silu
    static const char *const FORMS[] = {"Q4_K", "Q6_K", "Q8_0", "IQ4_XS", "MXFP4", "Q2_K"};
    for (int i = 0; i < (quick ? 24 : 96); i++) {
        const msgl_wformat codes = format_of_codes(msgl__blocks_of_ggml(FORMS[i % 6]));
        grouped_case c = {};
        c.act = (msgl_dtype)(i % 3);
        c.kind = i / 3 % 4;
        c.experts = 1 + (int)(rng_next(seed) % (quick ? 5 : 40));
        c.gated = i / 12 % 2 == 1;
        if (c.gated && i % 2 == 0) c.activation = (msgl_activation)(1 + i / 2 % OTHERS);
        c.top_k = rng_next(seed) % 2 ? 2 + (int)(rng_next(seed) % 3) : 0;
        c.rows = (1 + (int)(rng_next(seed) % (quick ? 20 : 120))) * (c.top_k > 0 ? c.top_k : 1);
        c.n = 16 * (1 + (int)(rng_next(seed) % (quick ? 8 : 30)));
        c.k = 256 * (1 + (int)(rng_next(seed) % (quick ? 2 : 8)));
        c.to = !c.gated && rng_next(seed) % 2;
        c.bias = rng_next(seed) % 3 == 0;
        c.uneven = rng_next(seed) % 4 == 0;
        check_grouped(e, f, &c, &codes, seed);
    }
    if (quick) return;
    // More than a slab: several ranges of experts; columns of one expert.
    const msgl_wformat q4 = format_of_codes(msgl__blocks_of_ggml("Q4_K"));
    for (int i = 0; i < 12; i++) {
        grouped_case c = {(msgl_dtype)(i % 3), i < 6 ? 40 : 3, i % 2 ? 300 : 37, 1536, 2048};
        if (i >= 6) c.n = 17000 - 16 * i, c.k = 4096;
        c.gated = i / 3 % 2 == 0;
        c.kind = i / 6 == 0 ? i % 4 : i % 2;
        check_grouped(e, f, &c, &q4, seed);
    }
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, o.quick ? 16 << 20 : 512 << 20);
    family expand = {"expand"}, gather = {"gather"}, others = {"others"}, experts = {"experts"};
    const msgl_blocks *blocks[MAX_CODE_BLOCKS];
    const int num = code_blocks_all(blocks);
    for (int i = 0; i < num; i++) {
        check_form(&e, &expand, &gather, blocks[i], &seed);
        check_ordered(&e, &expand, &gather, blocks[i], &seed);
    }
    for (int i = 0; i < code_forms_count(); i++) {
        code_form form;
        code_forms_get(i, &form);
        check_form(&e, &expand, &gather, &form.blocks, &seed);
        check_ordered(&e, &expand, &gather, &form.blocks, &seed);
    }
    check_others(&e, &others, &seed);
    check_slabs(&others);
    check_refused(&e, &others, &seed);
    check_experts(&e, &experts, o.quick, &seed);
    int failed = family_end(&expand);
    failed |= family_end(&gather);
    failed |= family_end(&others);
    failed |= family_end(&experts);
    return failed;
}
