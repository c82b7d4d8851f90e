// SPDX-License-Identifier: Apache-2.0
//
// Family moe on a GPU against the host, but what test_route.cu has: sorting exactly, gathering to
// the bit, combining in f64.
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/lt.cuh"
#include "tests/cuda/gate_case.cuh"
#include "tests/cuda/router_case.cuh"

// skew: most assignments go to few experts.
static int32_t *make_ids(int rows, int top_k, int experts, bool skew, uint64_t *seed)
{
    int32_t *ids = (int32_t *)malloc(sizeof(int32_t) * rows * top_k);
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < top_k; c++) {
            int id;
            bool again;
            do {
                id = (int)(rng_next(seed) % experts);
                if (skew && rng_next(seed) % 4 != 0) id %= top_k + 1;
                again = false;
                for (int p = 0; p < c; p++) again |= ids[r * top_k + p] == id;
            } while (again);
            ids[r * top_k + c] = id;
        }
    }
    return ids;
}

static void check_sort(bench_exec *e, family *f, int rows, int top_k, int experts, bool skew,
                       uint64_t *seed)
{
    const int n = rows * top_k;
    int32_t *ids = make_ids(rows, top_k, experts, skew, seed);
    int32_t *got = (int32_t *)malloc(sizeof(int32_t) * (n + experts + 1));
    memset(got, 0x7f, sizeof(int32_t) * (n + experts + 1));
    int32_t *d_ids = ints_upload(ids, n), *d_out = ints_upload(got, n + experts + 1);
    msgl__cuda_moe_sort(&e->x, d_ids, rows, top_k, experts, d_out, d_out + experts + 1);
    exec_sync(e);
    CUDA_OK(cudaMemcpy(got, d_out, sizeof(int32_t) * (n + experts + 1), cudaMemcpyDeviceToHost));
    int at = 0;
    for (int x = 0; x < experts; x++) {
        expect(f, got[x] == at, "offset");
        for (int i = 0; i < n; i++) {
            if (ids[i] == x) expect(f, got[experts + 1 + at++] == i, "source");
        }
    }
    expect(f, got[experts] == n, "last offset");
    cudaFree(d_ids), cudaFree(d_out), free(ids), free(got);
}

static void check_move(bench_exec *e, family *f, msgl_dtype dtype, int rows, int top_k, int dim,
                       bool accumulate, uint64_t *seed)
{
    e->x.act = dtype;
    const int n = rows * top_k;
    int32_t *source = (int32_t *)malloc(sizeof(int32_t) * n);
    for (int i = 0; i < n; i++) source[i] = i;
    for (int i = n - 1; i > 0; i--) {
        const int j = (int)(rng_next(seed) % (i + 1)), t = source[i];
        source[i] = source[j], source[j] = t;
    }
    int32_t *d_source = ints_upload(source, n);
    array in = array_new(dtype, (size_t)rows * dim, 1, seed);
    array sorted = array_new(dtype, (size_t)n * dim, 0, seed);
    msgl__cuda_moe_gather(&e->x, in.dev, d_source, rows, top_k, dim, sorted.dev);
    exec_sync(e);
    array_download(&sorted);
    for (int j = 0; j < n; j++) {
        const float *want = in.host + (size_t)(source[j] / top_k) * dim;
        expect(f, memcmp(sorted.host + (size_t)j * dim, want, sizeof(float) * dim) == 0, "gather");
    }
    array w = array_new(MSGL_F32, n, 1, seed);
    array res = array_new(dtype, (size_t)n * dim, 1, seed);
    array out = array_new(dtype, (size_t)rows * dim, accumulate ? 1 : 0, seed);
    array got = out;
    got.host = (float *)malloc(out.n * sizeof(float));
    msgl__cuda_moe_combine(&e->x, res.dev, d_source, (float *)w.dev, rows, top_k, dim, accumulate,
                           out.dev);
    exec_sync(e);
    array_download(&got);
    int32_t *place = (int32_t *)malloc(sizeof(int32_t) * n);
    for (int j = 0; j < n; j++) place[source[j]] = j;
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < dim; i++) {
            double want = accumulate ? out.host[(size_t)r * dim + i] : 0, size = fabs(want);
            for (int c = 0; c < top_k; c++) {
                const int a = r * top_k + c;
                const double v = (double)w.host[a] * res.host[(size_t)place[a] * dim + i];
                want += v, size += fabs(v);
            }
            expect_near(f, got.host[(size_t)r * dim + i], want,
                        fabs(want) * dtype_error(dtype) * 1.01 + size * 1e-6 + 3e-8, "combine");
        }
    }
    // The same in the order of the choices.
    array ordered = array_new(dtype, res.n, 0, seed), second = got;
    second.host = (float *)malloc(out.n * sizeof(float));
    for (int a = 0; a < n; a++) {
        memcpy(ordered.host + (size_t)a * dim, res.host + (size_t)place[a] * dim,
               sizeof(float) * dim);
    }
    array_upload(&ordered);
    array_upload(&out);
    msgl__cuda_moe_combine(&e->x, ordered.dev, NULL, (float *)w.dev, rows, top_k, dim, accumulate,
                           out.dev);
    exec_sync(e);
    array_download(&second);
    expect(f, memcmp(second.host, got.host, out.n * sizeof(float)) == 0, "combine in order");
    // A row's bits do not depend on how many there are.
    const int few = rows < 3 ? rows : 3;
    array_upload(&out);
    msgl__cuda_moe_combine(&e->x, ordered.dev, NULL, (float *)w.dev, few, top_k, dim, accumulate,
                           out.dev);
    exec_sync(e);
    array_download(&second);
    expect(f, memcmp(second.host, got.host, (size_t)few * dim * sizeof(float)) == 0, "few rows");
    array_free(&ordered), free(second.host);
    free(place), free(got.host), free(source), cudaFree(d_source);
    array_free(&in), array_free(&sorted), array_free(&w), array_free(&res), array_free(&out);
}

static void check_shared(bench_exec *e, family *f, msgl_dtype dtype, int rows, int dim, bool gated,
                         uint64_t *seed)
{
    e->x.act = dtype;
    const size_t n = (size_t)rows * dim;
    array in = array_new(dtype, n, 1, seed), out = array_new(dtype, n, 1, seed), got = out;
    array gate = array_new(MSGL_F32, (size_t)rows, 5, seed);
    got.host = (float *)malloc(n * sizeof(float));
    msgl__cuda_moe_add_shared(&e->x, in.dev, gated ? (const float *)gate.dev : NULL, rows, dim,
                              out.dev);
    exec_sync(e);
    array_download(&got);
    for (size_t i = 0; i < n; i++) {
        const double by = gated ? 1 / (1 + exp(-(double)gate.host[i / dim])) : 1;
        const double want = out.host[i] + by * in.host[i];
        expect_near(f, got.host[i], want, fabs(want) * dtype_error(dtype) * 1.01 + 2e-6, "shared");
    }
    free(got.host);
    array_free(&in), array_free(&out), array_free(&gate);
}

// Norm, router, choice and sort in one kernel. in f64: the logits; what is chosen by them, exactly.
static void check_choose(bench_exec *e, family *f, int rows, int dim, int experts, int top_k,
                         int num_groups, int kind, uint64_t *seed)
{
    e->x.act = MSGL_BF16;
    const int n = rows * top_k;
    array in = array_new(MSGL_BF16, (size_t)rows * dim, 2, seed);
    array router = array_new(MSGL_BF16, (size_t)experts * dim, 0.1f, seed);
    array norm = array_new(MSGL_F32, (size_t)dim, 1, seed);
    array correction = array_new(MSGL_F32, (size_t)experts, 0.5f, seed);
    const msgl_router how =
        router_of(top_k, kind, num_groups, (num_groups + 1) / 2, (float *)correction.dev);
    array normed = array_new(MSGL_BF16, (size_t)rows * dim, 0, seed);
    array logits = array_new(MSGL_F32, (size_t)rows * experts, 0, seed);
    array weights = array_new(MSGL_F32, (size_t)n, 0, seed), want = weights;
    want.host = (float *)malloc((size_t)n * sizeof(float));
    const int ints = 2 * n + experts + 1;
    int32_t *got = (int32_t *)malloc(sizeof(int32_t) * ints * 2), *plain = got + ints;
    memset(got, 0x7f, sizeof(int32_t) * ints * 2);
    int32_t *d_got = ints_upload(got, ints), *d_plain = ints_upload(plain, ints);
    const msgl_weight w = {&msgl__cuda_formats[MSGL_W_BF16], experts, dim, router.dev};
    msgl_choose_call c = {};
    c.in = in.dev;
    c.rows = rows;
    c.norm = (float *)norm.dev;
    c.norm_eps = 1e-6f;
    c.router = &w;
    c.choice = &how;
    c.normed = normed.dev;
    c.logits = (float *)logits.dev;
    c.weights = (float *)weights.dev;
    c.ids = d_got;
    c.source = d_got + n;
    c.offsets = d_got + 2 * n;
    for (int again = 0; again < 3; again++) { // its counters are zero again
        expect(f, msgl__cuda_moe_choose(&e->x, &c), "taken");
    }
    exec_sync(e);
    CUDA_OK(cudaMemcpy(got, d_got, sizeof(int32_t) * ints, cudaMemcpyDeviceToHost));
    array_download(&normed);
    array_download(&logits);
    array_download(&weights);
    // The kernels that it is made of, from its logits.
    msgl__cuda_moe_route(&e->x, &how, (float *)logits.dev, rows, experts, d_plain,
                         (float *)weights.dev);
    msgl__cuda_moe_sort(&e->x, d_plain, rows, top_k, experts, d_plain + 2 * n, d_plain + n);
    exec_sync(e);
    CUDA_OK(cudaMemcpy(plain, d_plain, sizeof(int32_t) * ints, cudaMemcpyDeviceToHost));
    array_download(&want);
    expect(f, memcmp(got, plain, sizeof(int32_t) * ints) == 0, "choice and order");
    expect(f, memcmp(weights.host, want.host, sizeof(float) * n) == 0, "weights");
    for (int r = 0; r < rows; r++) {
        const float *row = in.host + (size_t)r * dim;
        double squares = 0;
        for (int i = 0; i < dim; i++) squares += (double)row[i] * row[i];
        const double scale = 1 / sqrt(squares / dim + 1e-6);
        for (int i = 0; i < dim; i++) {
            const double v = row[i] * scale * norm.host[i];
            expect_near(f, normed.host[(size_t)r * dim + i], v,
                        fabs(v) * dtype_error(MSGL_BF16) * 1.01 + 1e-9, "normed");
        }
        for (int x = 0; x < experts; x++) {
            double sum = 0, size = 0; // every product has one rounding
            for (int i = 0; i < dim; i++) {
                const double v =
                    row[i] * scale * norm.host[i] * (double)router.host[(size_t)x * dim + i];
                sum += v, size += v * v;
            }
            expect_near(f, logits.host[(size_t)r * experts + x], sum,
                        6 * dtype_error(MSGL_BF16) * sqrt(size) + fabs(sum) * 1e-5, "logit");
        }
    }
    free(got), free(want.host), cudaFree(d_got), cudaFree(d_plain);
    array_free(&in), array_free(&router), array_free(&norm), array_free(&normed);
    array_free(&logits), array_free(&weights), array_free(&correction);
}

// A row's bits are those that it gets alone, whatever else is in the batch: here a row of NaN,
// which gets experts all the same, each once.
static void check_alone(bench_exec *e, family *f, int rows, int dim, int experts, int top_k,
                        int num_groups, int kind, uint64_t *seed)
{
    e->x.act = MSGL_BF16;
    const int n = rows * top_k;
    array in = array_new(MSGL_BF16, (size_t)rows * dim, 2, seed);
    in.host[1] = NAN;
    array_upload(&in);
    array router = array_new(MSGL_BF16, (size_t)experts * dim, 0.1f, seed);
    array norm = array_new(MSGL_F32, (size_t)dim, 1, seed);
    const msgl_weight w = {&msgl__cuda_formats[MSGL_W_BF16], experts, dim, router.dev};
    msgl_choose_call c = {};
    c.rows = rows, c.in = in.dev;
    c.norm = (float *)norm.dev, c.norm_eps = 1e-6f;
    const msgl_router how = router_of(top_k, kind, num_groups, (num_groups + 1) / 2, NULL);
    c.router = &w, c.choice = &how;
    array normed[2], logits[2], weights[2];
    int32_t *ints[2], *host[2];
    const size_t num_ints = (size_t)2 * n + experts + 1;
    for (int alone = 0; alone < 2; alone++) {
        normed[alone] = array_new(MSGL_BF16, (size_t)rows * dim, 0, seed);
        logits[alone] = array_new(MSGL_F32, (size_t)rows * experts, 0, seed);
        weights[alone] = array_new(MSGL_F32, (size_t)n, 0, seed);
        host[alone] = (int32_t *)calloc(num_ints, sizeof(int32_t));
        ints[alone] = ints_upload(host[alone], num_ints);
        for (int r = 0; r < (alone ? rows : 1); r++) {
            c.rows = alone ? 1 : rows;
            c.in = (const char *)in.dev + (size_t)r * dim * 2;
            c.normed = (char *)normed[alone].dev + (size_t)r * dim * 2;
            c.logits = (float *)logits[alone].dev + (size_t)r * experts;
            c.weights = (float *)weights[alone].dev + (size_t)r * top_k;
            c.ids = ints[alone] + r * top_k;
            c.source = ints[alone] + n, c.offsets = ints[alone] + 2 * n;
            expect(f, msgl__cuda_moe_choose(&e->x, &c), "taken");
        }
        exec_sync(e);
        array_download(&normed[alone]);
        array_download(&logits[alone]);
        array_download(&weights[alone]);
        CUDA_OK(cudaMemcpy(host[alone], ints[alone], num_ints * 4, cudaMemcpyDeviceToHost));
    }
    const size_t rest = (size_t)rows - 1;
    expect(f, memcmp(normed[0].host + dim, normed[1].host + dim, rest * dim * 4) == 0, "normed");
    expect(f, memcmp(logits[0].host + experts, logits[1].host + experts, rest * experts * 4) == 0,
           "logits");
    expect(f, memcmp(weights[0].host + top_k, weights[1].host + top_k, rest * top_k * 4) == 0,
           "weights");
    expect(f, memcmp(host[0], host[1], (size_t)n * 4) == 0, "ids");
    expect(f, isnan(logits[0].host[0]) && isnan(weights[0].host[0]), "NaN stays NaN");
    const int32_t *ids = host[0], *source = ids + n, *offsets = source + n;
    for (int i = 0; i < top_k; i++) {
        expect(f, ids[i] >= 0 && ids[i] < experts, "an expert");
        for (int j = 0; j < i; j++) expect(f, ids[i] != ids[j], "another expert");
    }
    expect(f, offsets[0] == 0 && offsets[experts] == n, "offsets");
    for (int x = 0; x < experts; x++) {
        for (int j = offsets[x]; j < offsets[x + 1]; j++) {
            expect(f, j >= 0 && j < n && source[j] >= 0 && source[j] < n && ids[source[j]] == x,
                   "sorted");
        }
    }
    for (int alone = 0; alone < 2; alone++) {
        array_free(&normed[alone]), array_free(&logits[alone]), array_free(&weights[alone]);
        cudaFree(ints[alone]), free(host[alone]);
    }
    array_free(&in), array_free(&router), array_free(&norm);
}

// sum and size [hidden] += what an expert gives for x, by `weight`: the values and their squares.
static void add_expert(const float *gate, const float *down, int inter, int hidden, const float *x,
                       double weight, double *sum, double *size)
{
    double *a = (double *)malloc(sizeof(double) * inter);
    for (int o = 0; o < inter; o++) {
        double g = 0, u = 0;
        for (int k = 0; k < hidden; k++) {
            g += (double)gate[(size_t)o * hidden + k] * x[k];
            u += (double)gate[(size_t)(inter + o) * hidden + k] * x[k];
        }
        a[o] = g / (1 + exp(-g)) * u * weight;
    }
    for (int o = 0; o < hidden; o++) {
        for (int k = 0; k < inter; k++) {
            const double v = a[k] * down[(size_t)o * inter + k];
            sum[o] += v, size[o] += v * v;
        }
    }
    free(a);
}

// Both products and the combination of a few rows, in f64; shared: the intermediate size of an
// expert of all tokens, or 0. Two inputs take turns, so that each kernel has to wait for the one
// before it.
static void check_experts(bench_exec *e, family *f, msgl_dtype dtype, int rows, int hidden,
                          int inter, int experts, int top_k, int shared, bool accumulate,
                          uint64_t *seed)
{
    enum { SETS = 2, TURNS = 5 };
    e->x.act = dtype;
    const int n = rows * top_k;
    const size_t shared_size = (size_t)hidden * (shared > 0 ? shared : 8);
    array shared_up = array_new(dtype, 2 * shared_size, 1 / sqrtf((float)hidden), seed);
    array shared_down = array_new(dtype, shared_size, 1 / sqrtf((float)inter), seed);
    array shared_act = array_new(dtype, (size_t)rows * (shared > 0 ? shared : 8), 0, seed);
    const size_t up_size = (size_t)2 * inter * hidden, down_size = (size_t)hidden * inter;
    array up = array_new(dtype, experts * up_size, 1 / sqrtf((float)hidden), seed);
    array down = array_new(dtype, experts * down_size, 1 / sqrtf((float)inter), seed);
    array act = array_new(dtype, (size_t)n * inter, 0, seed);
    const msgl_wformat *format = &msgl__cuda_formats[dtype == MSGL_BF16 ? MSGL_W_BF16 : MSGL_W_F16];
    msgl_weight *w = (msgl_weight *)calloc((size_t)experts * 2, sizeof *w);
    for (int i = 0; i < experts; i++) {
        w[i] = {format, 2 * inter, hidden, (char *)up.dev + i * up_size * 2};
        w[experts + i] = {format, hidden, inter, (char *)down.dev + i * down_size * 2};
    }
    const msgl_weight both[] = {{format, 2 * shared, hidden, shared_up.dev},
                                {format, hidden, shared, shared_down.dev}};
    array in[SETS], weights[SETS], out[SETS];
    float *old[SETS];
    int32_t *ids[SETS], *ints[SETS];
    msgl_experts_call c[SETS];
    for (int s = 0; s < SETS; s++) {
        in[s] = array_new(dtype, (size_t)rows * hidden, 1, seed);
        weights[s] = array_new(MSGL_F32, (size_t)n, 0.3f, seed);
        out[s] = array_new(dtype, (size_t)rows * hidden, accumulate, seed);
        old[s] = (float *)malloc(sizeof(float) * rows * hidden);
        memcpy(old[s], out[s].host, sizeof(float) * rows * hidden);
        ids[s] = (int32_t *)realloc(make_ids(rows, top_k, experts, false, seed), 8 * n);
        int at = 0;
        for (int x = 0; x < experts; x++) {
            for (int i = 0; i < n; i++) {
                if (ids[s][i] == x) ids[s][n + at++] = i;
            }
        }
        ints[s] = ints_upload(ids[s], 2 * (size_t)n);
        c[s] = {};
        c[s].gate_up = w;
        c[s].down = w + experts;
        c[s].activation = MSGL_SILU;
        c[s].num_experts = experts;
        c[s].top_k = top_k;
        c[s].rows = rows;
        c[s].in = in[s].dev;
        c[s].ids = ints[s];
        c[s].weights = (float *)weights[s].dev;
        c[s].source = ints[s] + n;
        c[s].act = act.dev;
        c[s].accumulate = accumulate;
        c[s].out = out[s].dev;
        c[s].shared_up = shared > 0 ? &both[0] : NULL;
        c[s].shared_down = shared > 0 ? &both[1] : NULL;
        c[s].shared_act = shared_act.dev;
    }
    for (int i = 0; i < (accumulate ? SETS : TURNS * SETS); i++) {
        expect(f, msgl__cuda_experts(&e->x, &c[i % SETS]), "taken");
    }
    exec_sync(e);
    for (int s = 0; s < SETS; s++) {
        array_download(&out[s]);
        for (int r = 0; r < rows; r++) {
            double *sum = (double *)calloc((size_t)hidden * 2, sizeof *sum), *size = sum + hidden;
            const float *x = in[s].host + (size_t)r * hidden;
            for (int t = 0; t < top_k; t++) {
                const int expert = ids[s][r * top_k + t];
                add_expert(up.host + expert * up_size, down.host + expert * down_size, inter,
                           hidden, x, weights[s].host[r * top_k + t], sum, size);
            }
            add_expert(shared_up.host, shared_down.host, shared, hidden, x, 1, sum, size);
            for (int o = 0; o < hidden; o++) {
                const size_t at = (size_t)r * hidden + o;
                const double want = sum[o] + (accumulate ? old[s][at] : 0);
                expect_near(f, out[s].host[at], want,
                            dtype_error(dtype) * (fabs(want) * 1.01 + 6 * sqrt(size[o])) + 1e-6,
                            "experts");
            }
            free(sum);
        }
    }
    free(w), array_free(&up), array_free(&down), array_free(&act);
    array_free(&shared_up), array_free(&shared_down), array_free(&shared_act);
    for (int s = 0; s < SETS; s++) {
        array_free(&in[s]), array_free(&weights[s]), array_free(&out[s]);
        free(old[s]), free(ids[s]), cudaFree(ints[s]);
    }
}

// What comes behind a grouped product: bias and gate, or a bias alone, in rows by index.
static void check_biased(bench_exec *e, family *f, msgl_dtype dtype, int rows, int n, int experts,
                         bool gated, msgl_activation activation, uint64_t *seed)
{
    e->x.act = dtype;
    const bool clamped = activation == MSGL_SWIGLU_CLAMPED || activation == MSGL_SILU_CLAMPED;
    const double gate_error = gated && !clamped ? 4e-6 : 0; // of results of any size
    const int columns = gated ? n / 2 : n;
    array product = array_new(dtype, (size_t)rows * n, 6, seed);
    array bias = array_new(MSGL_F32, (size_t)experts * n, 3, seed);
    array out = array_new(dtype, (size_t)rows * columns, 0, seed);
    int32_t *ints = (int32_t *)calloc((size_t)experts + 1 + rows, sizeof *ints);
    int32_t *to = ints + experts + 1;
    for (int x = 1; x < experts; x++)
        ints[x] = x % 3 ? (int)((int64_t)rows * x / experts) : ints[x - 1];
    ints[experts] = rows;
    for (int r = 0; r < rows; r++) to[r] = rows - 1 - r;
    int32_t *device = ints_upload(ints, (size_t)experts + 1 + rows);
    const msgl_weight w = {NULL, n, 8, NULL};
    msgl_grouped_call c = {};
    c.experts = &w;
    c.num_experts = experts;
    c.offsets = device;
    c.rows = rows;
    c.gated = gated;
    c.activation = activation;
    c.bias = (float *)bias.dev;
    c.out = gated ? out.dev : product.dev;
    c.ld_out = (size_t)columns;
    c.to = gated ? NULL : device + experts + 1;
    msgl__cuda_finish_experts(&e->x, &c, product.dev, (size_t)n);
    exec_sync(e);
    float *before = (float *)malloc(sizeof(float) * rows * n);
    memcpy(before, product.host, sizeof(float) * rows * n);
    array *result = gated ? &out : &product;
    array_download(result);
    for (int r = 0, x = 0; r < rows; r++) {
        while (ints[x + 1] <= r) x++;
        const size_t row = (size_t)(gated ? r : to[r]);
        for (int i = 0; i < columns; i++) {
            double want = (double)before[row * n + i] + bias.host[(size_t)x * n + i];
            if (gated) {
                const int j = columns + i;
                const double u = (double)before[row * n + j] + bias.host[(size_t)x * n + j];
                want = gate_of(activation, want, u);
            }
            expect_near(f, result->host[row * columns + i], want,
                        (dtype_error(dtype) * 1.01 + gate_error) * fabs(want) + 2e-5, "biased");
        }
    }
    free(before), free(ints), cudaFree(device);
    array_free(&product), array_free(&bias), array_free(&out);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 16 << 20);
    static msgl_cuda_blas blas; // its flags
    e.device.blas = &blas;
    CUDA_OK(cudaMalloc(&blas.flags, MSGL_GEMM_FLAGS * sizeof(int32_t)));
    CUDA_OK(cudaMemset(blas.flags, 0, MSGL_GEMM_FLAGS * sizeof(int32_t)));
    family sort = {"sort"}, move = {"move"}, choose = {"choose"};
    family few = {"experts"}, biased = {"biased"};
    const int shapes[][2] = {{8, 2},   {32, 8},   {60, 4},   {64, 6},   {128, 8},  {200, 8},
                             {256, 8}, {384, 16}, {512, 10}, {1000, 7}, {1024, 64}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int v = 0; v < 4; v++) {
            const int rows[] = {1, 9, 64, 256, 1500};
            const int r = rows[(i + v) % (o.quick ? 3 : 5)];
            check_sort(&e, &sort, r, shapes[i][1], shapes[i][0], v & 1, &seed);
        }
    }
    if (!o.quick) {
        check_sort(&e, &sort, 16384, 8, 128, false, &seed);
        check_sort(&e, &sort, 16383, 8, 128, true, &seed);
        check_sort(&e, &sort, 3000, 64, 1024, false, &seed);
    }
    const int chosen[][4] = {{1, 2048, 128, 8},    {8, 2048, 128, 8},   {16, 256, 8, 2},
                             {37, 512, 60, 4},     {17, 4096, 128, 8},  {64, 2048, 128, 8},
                             {256, 2048, 128, 8},  {3, 4096, 384, 16},  {200, 1024, 512, 10},
                             {200, 4096, 512, 10}, {31, 2048, 129, 33}, {5, 768, 16, 16},
                             {20, 1024, 256, 8}};
    for (int i = 0; i < (o.quick ? 4 : 13); i++) {
        for (int norm = 0; norm < 2; norm++) {
            check_choose(&e, &choose, chosen[i][0], chosen[i][1], chosen[i][2], chosen[i][3], 0,
                         norm, &seed);
        }
    }
    for (int kind = 0; kind < KINDS; kind++) {
        check_choose(&e, &choose, 19, 2048, 64, 4, 1, kind, &seed);
        check_choose(&e, &choose, o.quick ? 3 : 70, 1024, 160, 6, 8, kind, &seed);
        if (!o.quick) check_choose(&e, &choose, 33, 512, 512, 9, 16, kind, &seed);
    }
    check_alone(&e, &choose, 37, 2048, 128, 8, 0, NORMED, &seed);
    check_alone(&e, &choose, 20, 2048, 256, 8, 8, NORMED | SIGMOID | PAIRS, &seed);
    if (!o.quick) check_alone(&e, &choose, 5, 4096, 384, 16, 0, NORMED, &seed);
    const msgl_dtype dtypes[] = {MSGL_BF16, MSGL_F16, MSGL_F32};
    for (int d = 0; d < 3; d++) {
        for (int acc = 0; acc < 2; acc++) {
            check_move(&e, &move, dtypes[d], 1, 8, 2048, acc, &seed);
            check_move(&e, &move, dtypes[d], o.quick ? 3 : 65, 3, 136, acc, &seed);
            check_move(&e, &move, dtypes[d], 7, 1, 33, acc, &seed);
            check_move(&e, &move, dtypes[d], 5, 10, 1032, acc, &seed);
            check_move(&e, &move, dtypes[d], 65, 9, 264, acc, &seed);
            check_move(&e, &move, dtypes[d], 2, 64, 24, acc, &seed);
        }
        for (int gated = 0; gated < 2; gated++) {
            check_shared(&e, &move, dtypes[d], 1, 2048, gated, &seed);
            check_shared(&e, &move, dtypes[d], 37, 33, gated, &seed);
        }
    }
    for (int d = 0; d < 3; d++) {
        for (int gated = 0; gated < 2; gated++) {
            const msgl_activation f = MSGL_SWIGLU_CLAMPED;
            check_biased(&e, &biased, dtypes[d], 1, 64, 4, gated, f, &seed);
            check_biased(&e, &biased, dtypes[d], 37, 5760, 32, gated, f, &seed);
            check_biased(&e, &biased, dtypes[d], 300, 70, 128, gated, f, &seed);
            for (int a = 0; a < (gated ? MSGL_ACTIVATIONS : 1); a++) {
                check_biased(&e, &biased, dtypes[d], 37, 640, 32, gated, (msgl_activation)a, &seed);
            }
        }
    }
    const int mixtures[][6] = {
        {2, 264, 328, 9, 5, 88},     {1, 2048, 1408, 7, 6, 2816}, {2, 520, 256, 12, 8, 0},
        {2, 264, 328, 9, 5, 0},      {1, 2048, 1408, 7, 6, 0},    {1, 2048, 768, 9, 8, 0},
        {2, 2048, 1408, 7, 6, 2816}, {1, 2056, 512, 11, 10, 512}, {3, 4104, 256, 4, 1, 264},
        {4, 256, 1536, 8, 4, 0},     {1, 40, 1280, 20, 16, 8}};
    for (int i = 0; i < (o.quick ? 3 : (int)(sizeof mixtures / sizeof mixtures[0])); i++) {
        const int *m = mixtures[i];
        for (int d = 0; d < 2; d++) {
            check_experts(&e, &few, dtypes[d], m[0], m[1], m[2], m[3], m[4], m[5], (i + d) & 1,
                          &seed);
        }
    }
    int failed = family_end(&sort);
    failed |= family_end(&move);
    failed |= family_end(&choose);
    failed |= family_end(&few);
    failed |= family_end(&biased);
    return failed;
}
