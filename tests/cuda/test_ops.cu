// SPDX-License-Identifier: Apache-2.0
//
// Families norm, rope and act on a GPU, and the device's token and random-weight kernels, against
// f64 on the host.
#include "cuda/device_api.h"
#include "tests/cuda/gate_case.cuh"
#include "tests/cuda/ops_check.cuh"

static const msgl_dtype DTYPES[] = {MSGL_BF16, MSGL_F16, MSGL_F32};

static void check_norm(bench_exec *e, family *f, msgl_dtype dtype, int rows, int dim, int pad,
                       uint64_t *seed)
{
    e->x.act = dtype;
    const size_t ld_in = (size_t)(dim + pad), ld_out = (size_t)(dim + 2 * pad);
    array in = array_new(dtype, (size_t)rows * ld_in, 2, seed);
    array out = array_new(dtype, (size_t)rows * ld_out, 0, seed);
    array w = array_new(MSGL_F32, (size_t)dim, 1, seed);
    msgl__cuda_rms_norm(&e->x, in.dev, ld_in, (const float *)w.dev, 1e-6f, out.dev, ld_out, rows,
                        dim);
    exec_sync(e);
    array_download(&out);
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (int i = 0; i < dim; i++) sum += pow(in.host[(size_t)r * ld_in + i], 2);
        const double inv = 1 / sqrt(sum / dim + 1e-6f);
        for (int i = 0; i < (int)ld_out && (size_t)r * ld_out + i < out.n; i++) {
            const float got = out.host[(size_t)r * ld_out + i];
            if (i >= dim) {
                expect(f, isnan(got), "writes beyond a row");
                continue;
            }
            const double want = in.host[(size_t)r * ld_in + i] * inv * w.host[i];
            expect_near(f, got, want, fabs(want) * dtype_error(dtype) * 1.01 + 1e-7, "rms_norm");
        }
    }
    array_free(&in), array_free(&out), array_free(&w);
}

static void check_layer_norm(bench_exec *e, family *f, msgl_dtype dtype, int rows, int dim, int pad,
                             bool biased, uint64_t *seed)
{
    e->x.act = dtype;
    const size_t ld = (size_t)(dim + pad);
    array in = array_new(dtype, (size_t)rows * ld, 2, seed);
    array out = array_new(dtype, (size_t)rows * ld, 0, seed);
    array w = array_new(MSGL_F32, (size_t)dim, 1, seed), b = array_new(MSGL_F32, dim, 1, seed);
    msgl__cuda_layer_norm(&e->x, in.dev, ld, (const float *)w.dev,
                          biased ? (const float *)b.dev : NULL, 1e-5f, out.dev, ld, rows, dim);
    exec_sync(e);
    array_download(&out);
    for (int r = 0; r < rows; r++) {
        const float *row = in.host + (size_t)r * ld;
        double mean = 0, squares = 0;
        for (int i = 0; i < dim; i++) mean += (double)row[i] / dim;
        for (int i = 0; i < dim; i++) squares += pow(row[i] - mean, 2);
        const double inv = 1 / sqrt(squares / dim + 1e-5f);
        for (int i = 0; i < (int)ld; i++) {
            const float got = out.host[(size_t)r * ld + i];
            if (i >= dim) {
                expect(f, isnan(got), "writes beyond a row");
                continue;
            }
            const double scaled = (row[i] - mean) * inv * w.host[i];
            const double want = scaled + (biased ? b.host[i] : 0);
            expect_near(f, got, want, fabs(want) * dtype_error(dtype) * 1.01 + 4e-6, "layer_norm");
        }
    }
    array_free(&in), array_free(&out), array_free(&w), array_free(&b);
}

// Of each head with its own weights, in place, as one head alone gets it.
static void check_layer_norm_heads(bench_exec *e, family *f, msgl_dtype dtype, int rows, int heads,
                                   int dim, uint64_t *seed)
{
    e->x.act = dtype;
    const size_t ld = (size_t)heads * dim + 8;
    array p = array_new(dtype, (size_t)rows * ld, 2, seed), got = p;
    array w = array_new(MSGL_F32, (size_t)heads * dim, 1, seed);
    got.host = (float *)malloc(p.n * sizeof(float));
    msgl__cuda_layer_norm_heads(&e->x, p.dev, ld, (const float *)w.dev, 1e-5f, rows, heads, dim);
    exec_sync(e);
    array_download(&got);
    for (int r = 0; r < rows; r++) {
        for (int h = 0; h < heads; h++) {
            const float *row = p.host + (size_t)r * ld + (size_t)h * dim;
            double mean = 0, squares = 0;
            for (int i = 0; i < dim; i++) mean += (double)row[i] / dim;
            for (int i = 0; i < dim; i++) squares += pow(row[i] - mean, 2);
            for (int i = 0; i < dim; i++) {
                const double want =
                    (row[i] - mean) / sqrt(squares / dim + 1e-5f) * w.host[h * dim + i];
                expect_near(f, got.host[(size_t)r * ld + (size_t)h * dim + i], want,
                            fabs(want) * dtype_error(dtype) * 1.01 + 4e-6, "layer_norm_heads");
            }
        }
        for (size_t i = (size_t)heads * dim; i < ld; i++) {
            expect(f, got.host[r * ld + i] == p.host[r * ld + i], "writes beyond the heads");
        }
    }
    free(got.host);
    array_free(&p), array_free(&w);
}

// weights: of a norm of what is added.
static void check_add(bench_exec *e, family *f, msgl_dtype dtype, int rows, int dim, bool norm,
                      uint64_t *seed)
{
    const size_t n = (size_t)rows * dim;
    const float scale = norm ? 0.5f : 1;
    e->x.act = dtype;
    array dst = array_new(dtype, n, 1, seed), src = array_new(dtype, n, 1, seed);
    array w = array_new(MSGL_F32, (size_t)dim, 1, seed);
    msgl__cuda_add(&e->x, dst.dev, src.dev, norm ? (const float *)w.dev : NULL, 1e-6f, scale, rows,
                   dim);
    exec_sync(e);
    array got = dst;
    got.host = (float *)malloc(n * sizeof(float));
    array_download(&got);
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        const float *row = src.host + (size_t)r * dim, *before = dst.host + (size_t)r * dim;
        for (int i = 0; i < dim; i++) sum += (double)row[i] * row[i];
        const double inv = norm ? scale / sqrt(sum / dim + 1e-6) : scale;
        for (int i = 0; i < dim; i++) {
            const double by = norm ? inv * w.host[i] : inv, want = before[i] + by * row[i];
            expect_near(f, got.host[(size_t)r * dim + i], want,
                        fabs(want) * dtype_error(dtype) * 1.01 + 1e-6, norm ? "add norm" : "add");
        }
    }
    msgl__cuda_scale(&e->x, dst.dev, 0.25f, n);
    exec_sync(e);
    float *added = got.host;
    got.host = (float *)malloc(n * sizeof(float));
    array_download(&got);
    for (size_t i = 0; i < n; i++) {
        // Exact, but for f16 numbers so small that their last bits are lost.
        expect_near(f, got.host[i], 0.25 * added[i],
                    fabs(added[i]) * 1e-7 + (dtype == MSGL_F16 ? 0x1p-25 : 1e-37), "scale");
    }
    free(added), free(got.host);
    array_free(&dst), array_free(&src), array_free(&w);
}

static void check_cap(bench_exec *e, family *f, size_t n, float cap, uint64_t *seed)
{
    array l = array_new(MSGL_F32, n, 90, seed);
    float *before = (float *)malloc(n * sizeof(float));
    memcpy(before, l.host, n * sizeof(float));
    msgl__cuda_cap(&e->x, (float *)l.dev, n, 0.5f, cap);
    exec_sync(e);
    array_download(&l);
    for (size_t i = 0; i < n; i++) {
        const double v = 0.5 * before[i], want = cap > 0 ? cap * tanh(v / cap) : v;
        expect_near(f, l.host[i], want, fabs(want) * 3e-7 + 1e-7, "cap");
    }
    free(before);
    array_free(&l);
}

static void check_gate(bench_exec *e, family *f, msgl_dtype dtype, int rows, int dim,
                       msgl_activation activation, uint64_t *seed)
{
    char what[32];
    snprintf(what, sizeof what, "gate%s", GATES[activation]);
    e->x.act = dtype;
    array in = array_new(dtype, (size_t)rows * 2 * dim, 5, seed);
    array out = array_new(dtype, (size_t)rows * dim, 0, seed);
    msgl__cuda_gate(&e->x, activation, in.dev, out.dev, rows, dim);
    exec_sync(e);
    array_download(&out);
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < dim; i++) {
            const double g = in.host[(size_t)r * 2 * dim + i];
            const double u = in.host[(size_t)r * 2 * dim + dim + i];
            const double want = gate_of(activation, g, u);
            expect_near(f, out.host[(size_t)r * dim + i], want,
                        fabs(want) * (dtype_error(dtype) * 1.01 + 4e-6) + 1e-7, what);
        }
    }
    array_free(&in), array_free(&out);
}

static double pointwise(msgl_pointwise fn, const float *params, double x)
{
    switch (fn) {
    case MSGL_POINTWISE_SILU: return x / (1 + exp(-x));
    case MSGL_POINTWISE_GELU: return x / 2 * erfc(-x / sqrt(2.0));
    case MSGL_POINTWISE_GELU_TANH:
        return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case MSGL_POINTWISE_RELU2: return x > 0 ? x * x : 0;
    case MSGL_POINTWISE_TANH: return tanh(x);
    case MSGL_POINTWISE_XIELU: break;
    }
    if (x > 0) return log1p(exp(params[0])) * x * x + params[2] * x;
    const double bent = expm1(x < params[3] ? x : params[3]) - x;
    return (params[2] + log1p(exp(params[1]))) * bent + params[2] * x;
}

static void check_apply(bench_exec *e, family *f, msgl_dtype dtype, size_t n, uint64_t *seed)
{
    static const float values[] = {0.3f, -0.2f, 0.5f, -1e-6f};
    array params = array_new(MSGL_F32, 4, 1, seed);
    memcpy(params.host, values, sizeof values);
    array_upload(&params);
    e->x.act = dtype;
    for (int fn = 0; fn <= MSGL_POINTWISE_TANH; fn++) {
        array p = array_new(dtype, n, 5, seed), got = p;
        got.host = (float *)malloc(n * sizeof(float));
        msgl__cuda_apply(&e->x, (msgl_pointwise)fn, (const float *)params.dev, p.dev, n);
        exec_sync(e);
        array_download(&got);
        for (size_t i = 0; i < n; i++) {
            const double want = pointwise((msgl_pointwise)fn, values, p.host[i]);
            expect_near(f, got.host[i], want,
                        fabs(want) * (dtype_error(dtype) * 1.01 + 4e-6) + 2e-6, "apply");
        }
        free(got.host);
        array_free(&p);
    }
    array_free(&params);
}

// Means of groups of 1, 2, 3, ... rows, the first of each third group left out.
static void check_mean(bench_exec *e, family *f, msgl_dtype dtype, int groups, int dim,
                       uint64_t *seed)
{
    e->x.act = dtype;
    const size_t bytes = (size_t)groups * sizeof(int32_t);
    int32_t *first = (int32_t *)malloc(bytes), *last = (int32_t *)malloc(bytes), rows = 0;
    for (int g = 0; g < groups; g++) {
        first[g] = rows + (g % 3 == 2);
        rows += g + 1;
        last[g] = rows - 1;
    }
    int32_t *first_dev = (int32_t *)device_copy(first, bytes);
    int32_t *last_dev = (int32_t *)device_copy(last, bytes);
    array in = array_new(dtype, (size_t)rows * dim, 5, seed);
    array out = array_new(dtype, (size_t)groups * dim, 0, seed);
    msgl__cuda_mean_rows(&e->x, in.dev, first_dev, last_dev, groups, dim, out.dev);
    exec_sync(e);
    array_download(&out);
    for (int g = 0; g < groups; g++) {
        for (int i = 0; i < dim; i++) {
            double sum = 0;
            for (int r = first[g]; r <= last[g]; r++) sum += in.host[(size_t)r * dim + i];
            const double want = sum / (last[g] - first[g] + 1);
            expect_near(f, out.host[(size_t)g * dim + i], want,
                        fabs(want) * dtype_error(dtype) * 1.01 + 1e-5, "mean");
        }
    }
    free(first), free(last), cudaFree(first_dev), cudaFree(last_dev);
    array_free(&in), array_free(&out);
}

// Shards side by side, the last one perhaps with fewer columns.
static void check_join(bench_exec *e, family *f, msgl_dtype dtype, int shard_columns, int rows,
                       int dim, uint64_t *seed)
{
    e->x.act = MSGL_BF16; // the elements' dtype is the call's
    const size_t n = (size_t)rows * dim;
    array in = array_new(dtype, n, 5, seed), out = array_new(dtype, n + 1, 0, seed);
    msgl__cuda_join_columns(&e->x, dtype, in.dev, shard_columns, rows, dim, out.dev);
    exec_sync(e);
    array_download(&out);
    for (size_t i = 0; i < n; i++) {
        const int row = (int)(i / dim), column = (int)(i % dim);
        const int from = column / shard_columns * shard_columns;
        const int columns = dim - from < shard_columns ? dim - from : shard_columns;
        const size_t at = (size_t)rows * from + (size_t)row * columns + (column - from);
        expect(f, out.host[i] == in.host[at], "joined columns");
    }
    expect(f, isnan(out.host[n]), "what is behind the joined columns");
    array_free(&in), array_free(&out);
}

static void check_times_sigmoid(bench_exec *e, family *f, msgl_dtype dtype, int rows, int dim,
                                int pad, uint64_t *seed)
{
    e->x.act = dtype;
    const size_t ld = (size_t)dim + pad, n = (size_t)rows * dim;
    array gate = array_new(dtype, (size_t)rows * ld, 5, seed);
    array p = array_new(dtype, n, 5, seed);
    float *before = (float *)malloc(n * sizeof(float));
    memcpy(before, p.host, n * sizeof(float));
    msgl__cuda_times_sigmoid(&e->x, gate.dev, ld, p.dev, rows, dim);
    exec_sync(e);
    array_download(&p);
    for (size_t i = 0; i < n; i++) {
        const double want = before[i] / (1 + exp(-(double)gate.host[i / dim * ld + i % dim]));
        expect_near(f, p.host[i], want, fabs(want) * (dtype_error(dtype) * 1.01 + 4e-6) + 1e-7,
                    "times sigmoid");
    }
    free(before);
    array_free(&gate), array_free(&p);
}

// As positions of a step, and weights of a router: one value a row.
static void check_rows(bench_exec *e, family *f, msgl_dtype dtype, int rows, int dim, int pad,
                       uint64_t *seed)
{
    e->x.act = dtype;
    const msgl_temper how = {16, 0.3f, 1};
    const size_t ld = (size_t)dim + pad, n = (size_t)rows * ld;
    array p = array_new(dtype, n, 5, seed), weights = array_new(MSGL_F32, rows, 1, seed);
    int32_t *positions;
    CUDA_OK(cudaMalloc(&positions, (size_t)rows * sizeof *positions));
    int32_t *at = (int32_t *)malloc((size_t)rows * sizeof *at);
    float *before = (float *)malloc(n * sizeof(float));
    float *by = (float *)malloc((size_t)rows * sizeof(float));
    for (int r = 0; r < rows; r++) at[r] = r < 40 ? r : 97 * r;
    CUDA_OK(cudaMemcpy(positions, at, (size_t)rows * sizeof *at, cudaMemcpyHostToDevice));
    memcpy(before, p.host, n * sizeof(float));
    memcpy(by, weights.host, (size_t)rows * sizeof(float));
    msgl__cuda_temper(&e->x, &how, positions, p.dev, ld, rows, dim);
    exec_sync(e);
    array_download(&p);
    for (size_t i = 0; i < n; i++) {
        const double factor = 1 + 0.3f * log(1 + floor((at[i / ld] + 1.0) / 16));
        const double want = before[i] * (i % ld < (size_t)dim ? factor : 1);
        expect_near(f, p.host[i], want, fabs(want) * (dtype_error(dtype) * 1.01 + 1e-6) + 1e-7,
                    "temper");
    }
    if (pad == 0) {
        memcpy(before, p.host, n * sizeof(float));
        msgl__cuda_moe_weigh_input(&e->x, p.dev, (float *)weights.dev, rows, dim);
        exec_sync(e);
        array_download(&p);
        array_download(&weights);
        for (size_t i = 0; i < n; i++) {
            const double want = (double)before[i] * by[i / dim];
            expect_near(f, p.host[i], want, fabs(want) * (dtype_error(dtype) * 1.01 + 1e-6) + 1e-7,
                        "weigh input");
        }
        for (int r = 0; r < rows; r++) expect_near(f, weights.host[r], 1, 1e-9, "weight");
    }
    cudaFree(positions);
    free(at), free(before), free(by);
    array_free(&p), array_free(&weights);
}

struct rope_case {
    int tokens, q, kv, head_dim, half, pad;
    bool norm;
};

// The normed and rotated head, from the row before; out [head_dim].
static void rope_oracle(const float *in, const float *weight, const float *cos_sin, int head_dim,
                        int half, double *out)
{
    double sum = 0;
    for (int i = 0; i < head_dim; i++) sum += (double)in[i] * in[i];
    const double inv = weight == NULL ? 1 : 1 / sqrt(sum / head_dim + 1e-6f);
    for (int i = 0; i < head_dim; i++) out[i] = in[i] * inv * (weight == NULL ? 1 : weight[i]);
    for (int i = 0; cos_sin != NULL && i < half; i++) {
        const double a = out[i], b = out[half + i], c = cos_sin[i], s = cos_sin[half + i];
        out[i] = a * c - b * s;
        out[half + i] = b * c + a * s;
    }
}

static void check_rope(bench_exec *e, family *f, msgl_dtype dtype, msgl_dtype kv_dtype,
                       const rope_case *k, uint64_t *seed)
{
    e->x.act = dtype;
    const int heads = k->q + 2 * k->kv, hd = k->head_dim;
    const size_t ld = (size_t)(heads * hd + k->pad);
    const int num_slots = 2 * k->tokens + 3;
    array qkv = array_new(dtype, (size_t)k->tokens * ld, 1, seed);
    array table = array_new(MSGL_F32, (size_t)k->tokens * 2 * k->half, 0, seed);
    array qw = array_new(MSGL_F32, (size_t)hd, 1, seed), kw = array_new(MSGL_F32, hd, 1, seed);
    array freq = array_new(MSGL_F32, (size_t)k->half, 1, seed);
    array pool[2];
    for (int i = 0; i < 2; i++) {
        pool[i] = array_new(kv_dtype, (size_t)num_slots * k->kv * hd, 0, seed);
    }
    int32_t *slots = (int32_t *)malloc(sizeof(int32_t) * k->tokens);
    int32_t *positions = (int32_t *)malloc(sizeof(int32_t) * k->tokens);
    for (int t = 0; t < k->tokens; t++) {
        slots[t] = 2 * (k->tokens - 1 - t) + 1;
        positions[t] = (int32_t)(rng_next(seed) % 131072);
    }
    for (int i = 0; i < k->half; i++) freq.host[i] = powf(1e6f, -(float)i / (float)k->half);
    array_upload(&freq);
    int32_t *d_slots = ints_upload(slots, k->tokens), *d_pos = ints_upload(positions, k->tokens);
    msgl__cuda_rope_table(&e->x, d_pos, k->tokens, (const float *)freq.dev, k->half, 1.25f,
                          (float *)table.dev);
    exec_sync(e);
    array_download(&table);
    for (int t = 0; t < k->tokens; t++) {
        for (int i = 0; i < k->half; i++) {
            const float angle = (float)positions[t] * freq.host[i];
            const float *row = table.host + (size_t)t * 2 * k->half;
            expect_near(f, row[i], cos((double)angle) * 1.25, 4e-7, "table cos");
            expect_near(f, row[k->half + i], sin((double)angle) * 1.25, 4e-7, "table sin");
        }
    }
    msgl_rope_call c = {};
    c.qkv = qkv.dev, c.ld = ld, c.tokens = k->tokens;
    c.num_q_heads = k->q, c.num_kv_heads = k->kv, c.head_dim = hd, c.half = k->half;
    c.q_weight = k->norm ? (const float *)qw.dev : NULL;
    c.k_weight = k->norm ? (const float *)kw.dev : NULL;
    c.eps = 1e-6f, c.cos_sin = (const float *)table.dev, c.kv_dtype = kv_dtype;
    c.k_pool = pool[0].dev, c.v_pool = pool[1].dev, c.slots = d_slots;
    const bool scaled = kv_dtype == MSGL_E4M3;
    c.k_scale = scaled ? 0.75f : NAN, c.v_scale = scaled ? 1.5f : NAN;
    msgl__cuda_qk_norm_rope_store(&e->x, &c);
    exec_sync(e);
    array got = qkv;
    got.host = (float *)malloc(qkv.n * sizeof(float));
    array_download(&got), array_download(&pool[0]), array_download(&pool[1]);
    double *want = (double *)malloc(sizeof(double) * hd);
    const double err = dtype_error(dtype) * 1.01, kv_err = dtype_error(kv_dtype) * 1.01;
    for (int t = 0; t < k->tokens; t++) {
        const float *cs = table.host + (size_t)t * 2 * k->half;
        for (int h = 0; h < heads; h++) {
            const bool is_v = h >= k->q + k->kv;
            const float *w = is_v || !k->norm ? NULL : h < k->q ? qw.host : kw.host;
            const size_t at = (size_t)t * ld + (size_t)h * hd;
            rope_oracle(qkv.host + at, w, is_v ? NULL : cs, hd, k->half, want);
            const int pool_head = h - k->q - (is_v ? k->kv : 0);
            const float *stored = pool[is_v].host + ((size_t)slots[t] * k->kv + pool_head) * hd;
            for (int i = 0; i < hd; i++) {
                expect_near(f, got.host[at + i], want[i], fabs(want[i]) * err + 4e-6, "rope head");
                if (h < k->q) continue;
                const double x = want[i] / (!scaled ? 1 : is_v ? 1.5 : 0.75);
                expect_near(f, stored[i], x, fabs(x) * kv_err + dtype_floor(kv_dtype), "stored");
            }
        }
        for (size_t i = (size_t)heads * hd; i < ld; i++) {
            expect(f, got.host[(size_t)t * ld + i] == qkv.host[(size_t)t * ld + i], "padding kept");
        }
    }
    for (int s = 0; s < num_slots; s++) {
        bool used = false;
        for (int t = 0; t < k->tokens; t++) used |= slots[t] == s;
        expect(f, used == !isnan(pool[0].host[(size_t)s * k->kv * hd]), "slots of others");
    }
    free(want), free(got.host), free(slots), free(positions);
    cudaFree(d_slots), cudaFree(d_pos);
    array_free(&qkv), array_free(&table), array_free(&qw), array_free(&kw), array_free(&freq);
    array_free(&pool[0]), array_free(&pool[1]);
}

// A row's bits alone and among many.
static void check_invariance(bench_exec *e, family *f, uint64_t *seed)
{
    e->x.act = MSGL_BF16;
    const int dims[] = {128, 1024, 5120};
    for (int d = 0; d < 3; d++) {
        const int dim = dims[d], rows = 600;
        array in = array_new(MSGL_BF16, (size_t)rows * dim, 1, seed);
        array w = array_new(MSGL_F32, (size_t)dim, 1, seed);
        array all = array_new(MSGL_BF16, (size_t)rows * dim, 0, seed);
        array one = array_new(MSGL_BF16, (size_t)rows * dim, 0, seed);
        msgl__cuda_rms_norm(&e->x, in.dev, dim, (float *)w.dev, 1e-6f, all.dev, dim, rows, dim);
        for (int r = 0; r < rows; r += 37) {
            const size_t at = (size_t)r * dim * 2;
            msgl__cuda_rms_norm(&e->x, (char *)in.dev + at, dim, (float *)w.dev, 1e-6f,
                                (char *)one.dev + at, dim, 1, dim);
        }
        exec_sync(e);
        array_download(&all), array_download(&one);
        for (int r = 0; r < rows; r += 37) {
            expect(f, memcmp(all.host + (size_t)r * dim, one.host + (size_t)r * dim, 4 * dim) == 0,
                   "rms_norm of a row alone");
        }
        array_free(&in), array_free(&w), array_free(&all), array_free(&one);
    }
}

// Answers, one in each of the first rows, then a chunk in the middle of a row; pages of `page`.
static void check_tokens(bench_exec *e, family *f, uint64_t *seed, int page)
{
    enum { ANSWERS = 70, N = 300, ROWS = 80, ROW = 280, CHUNK_ROW = 75, FROM = 11 };
    enum { POOL = ROWS * ROW };
    static int32_t pool[POOL], table[POOL], index[N], slots[N], out[N * 3], ids[N], pages[N];
    const int row_pages = ROW / page;
    int32_t first[ROWS] = {0};
    for (int i = 0; i < POOL; i++) pool[i] = (int32_t)(rng_next(seed) % 100000);
    for (int i = 0; i < N; i++) pages[i] = (int32_t)(rng_next(seed) % 1000);
    for (int i = 0; i < N; i++) {
        index[i] = i < ANSWERS ? i * ROW + i * 3 : CHUNK_ROW * ROW + FROM + i - ANSWERS;
    }
    first[CHUNK_ROW] = ANSWERS - FROM / page;
    for (int i = 0; i < POOL; i++) table[i] = -5;
    for (int i = 0; i < N * 3; i++) out[i] = -7;
    int32_t *d_pool = ints_upload(pool, POOL), *d_index = ints_upload(index, N);
    int32_t *d_table = ints_upload(table, POOL), *d_slots = ints_upload(out, N);
    int32_t *d_pages = ints_upload(pages, N), *d_first = ints_upload(first, ROWS);
    int32_t *d_out = ints_upload(out, N * 3), *d_ids = ints_upload(out, N);
    msgl__cuda_gather_tokens(e->device.stream, d_pool, d_index, N, d_out, 3);
    msgl_step_tokens s = {};
    s.count = N - 1, s.pool = d_pool, s.index = d_index;
    s.num_answers = ANSWERS, s.row_places = ROW, s.paging = msgl__paging_of(page);
    s.first = d_first, s.num_tables = 1, s.pages[0] = d_pages;
    s.tables[0] = d_table, s.slots[0] = d_slots;
    msgl__cuda_take_tokens(e->device.stream, &s, d_ids);
    exec_sync(e);
    CUDA_OK(cudaMemcpy(out, d_out, sizeof out, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(ids, d_ids, sizeof ids, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(slots, d_slots, sizeof slots, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N * 3; i++) {
        expect(f, out[i] == (i % 3 == 0 ? pool[index[i / 3]] : -7), "gather_tokens");
    }
    for (int i = 0; i < N; i++) {
        expect(f, ids[i] == (i < N - 1 ? pool[index[i]] : -7), "take_tokens: ids");
        const int position = index[i] % ROW;
        const int at = i < ANSWERS ? i : ANSWERS + position / page - FROM / page;
        expect(f, slots[i] == (i < N - 1 ? pages[at] * page + position % page : -7),
               "take_tokens: slots");
        if (i < N - 1) table[index[i] / ROW * row_pages + position / page] = pages[at];
    }
    static int32_t after[POOL];
    CUDA_OK(cudaMemcpy(after, d_table, sizeof after, cudaMemcpyDeviceToHost));
    expect(f, memcmp(after, table, sizeof table) == 0, "take_tokens: pages");
    s.count = N, s.tables[0] = NULL;
    msgl__cuda_take_tokens(e->device.stream, &s, d_ids);
    exec_sync(e);
    CUDA_OK(cudaMemcpy(ids, d_ids, sizeof ids, cudaMemcpyDeviceToHost));
    expect(f, ids[N - 1] == pool[index[N - 1]], "take_tokens without a table");
    msgl__cuda_map_tokens(e->device.stream, d_pool, d_index, N - 1, d_table, POOL);
    exec_sync(e);
    for (int i = 0; i < N - 1; i++) {
        int32_t *token = &pool[index[i]];
        if (*token < POOL) *token = table[*token];
    }
    CUDA_OK(cudaMemcpy(after, d_pool, sizeof after, cudaMemcpyDeviceToHost));
    expect(f, memcmp(after, pool, sizeof pool) == 0, "map_tokens");
    cudaFree(d_pool), cudaFree(d_index), cudaFree(d_table), cudaFree(d_slots);
    cudaFree(d_out), cudaFree(d_ids), cudaFree(d_pages), cudaFree(d_first);
}

static void check_fill(bench_exec *e, family *f, uint64_t *seed)
{
    const size_t n = 1000003;
    for (int d = 0; d < 3; d++) {
        array a = array_new(DTYPES[d], n, 0, seed), b = array_new(DTYPES[d], n, 0, seed);
        msgl__cuda_fill_normal(e->device.stream, a.dev, DTYPES[d], n, 42, 0.02f);
        msgl__cuda_fill_normal(e->device.stream, b.dev, DTYPES[d], 777, 42, 0.02f);
        exec_sync(e);
        array_download(&a), array_download(&b);
        expect(f, memcmp(a.host, b.host, 777 * sizeof(float)) == 0, "depends on place alone");
        expect(f, isnan(b.host[777]), "writes beyond n");
        double m1 = 0, m2 = 0, m4 = 0, lag = 0;
        for (size_t i = 0; i < n; i++) {
            const double v = a.host[i] / 0.02;
            m1 += v, m2 += v * v, m4 += v * v * v * v;
            if (i > 0) lag += v * a.host[i - 1] / 0.02;
        }
        const double s = sqrt((double)n);
        expect_near(f, m1 / n, 0, 5 / s, "mean");
        expect_near(f, m2 / n, 1, 5 * sqrt(2.0) / s + 1e-4, "variance");
        expect_near(f, m4 / n, 3, 5 * sqrt(96.0) / s + 1e-3, "fourth moment");
        expect_near(f, lag / n, 0, 5 / s, "neighbours");
        array_free(&a), array_free(&b);
    }
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 1 << 20);
    family norm = {"norm"}, act = {"act"}, rope = {"rope"}, device = {"device"};
    const int dims[] = {8,    64,   128,   200,   1024,  2048, 2560,
                        5120, 8192, 16384, 20480, 32768, 33,   1001};
    for (int d = 0; d < 3; d++) {
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
            check_norm(&e, &norm, DTYPES[d], o.quick ? 2 : 9, dims[i], i % 2 ? 8 : 0, &seed);
        }
        check_norm(&e, &norm, DTYPES[d], 5, 64, 3, &seed);
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
            const int rows = o.quick ? 2 : 9, pad = i % 2 ? 8 : 0;
            check_layer_norm(&e, &norm, DTYPES[d], rows, dims[i], pad, i % 3 != 0, &seed);
        }
        check_norm(&e, &norm, DTYPES[d], o.quick ? 3 : 700, 1024, 0, &seed);
        check_layer_norm_heads(&e, &norm, DTYPES[d], o.quick ? 3 : 70, 5, 80, &seed);
        check_layer_norm_heads(&e, &norm, DTYPES[d], 2, 3, 47, &seed);
        check_add(&e, &norm, DTYPES[d], 1, 1, false, &seed);
        check_add(&e, &norm, DTYPES[d], 1, 100003, false, &seed);
        check_add(&e, &norm, DTYPES[d], 5, 1000, true, &seed);
        check_add(&e, &norm, DTYPES[d], 70, 64, true, &seed);
        if (!o.quick) check_add(&e, &norm, DTYPES[d], 1 << 10, 1 << 10, false, &seed);
        check_gate(&e, &act, DTYPES[d], 1, 3072, MSGL_SILU, &seed);
        check_gate(&e, &act, DTYPES[d], o.quick ? 2 : 77, 8 * 13, MSGL_SILU, &seed);
        for (int f = 0; f < MSGL_ACTIVATIONS; f++) {
            check_gate(&e, &act, DTYPES[d], 3, 17, (msgl_activation)f, &seed);
            check_gate(&e, &act, DTYPES[d], 9, 1024, (msgl_activation)f, &seed);
        }
        if (!o.quick) check_gate(&e, &act, DTYPES[d], 70000, 8, MSGL_SILU, &seed);
        check_mean(&e, &act, DTYPES[d], 40, 100, &seed);
        check_mean(&e, &act, DTYPES[d], 1, 1024, &seed);
        check_join(&e, &act, DTYPES[d], 2560, 3, 2 * 2560, &seed);
        check_join(&e, &act, DTYPES[d], 3, 5, 10, &seed);
        check_join(&e, &act, DTYPES[d], 320, 2, 1000, &seed);
        if (!o.quick) check_join(&e, &act, DTYPES[d], 8, 70000, 16, &seed);
        check_apply(&e, &act, DTYPES[d], 5 * 2048, &seed);
        check_apply(&e, &act, DTYPES[d], 3 * 17, &seed);
        check_times_sigmoid(&e, &act, DTYPES[d], 5, 2048, 512, &seed);
        check_times_sigmoid(&e, &act, DTYPES[d], 3, 96, 3, &seed);
        check_times_sigmoid(&e, &act, DTYPES[d], 70000, 8, 8, &seed);
        check_rows(&e, &act, DTYPES[d], 60, 5120, 0, &seed);
        check_rows(&e, &act, DTYPES[d], 3, 97, 13, &seed);
    }
    const rope_case cases[] = {
        {1, 16, 8, 128, 64, 0, true},   {3, 40, 8, 128, 64, 8, true},  {5, 32, 8, 64, 32, 0, false},
        {4, 6, 2, 256, 64, 0, true},    {2, 3, 1, 80, 40, 0, true},    {3, 4, 2, 96, 16, 0, true},
        {2, 4, 4, 24, 12, 0, false},    {2, 5, 1, 8, 4, 0, true},      {4, 4, 2, 64, 24, 5, true},
        {9, 32, 8, 128, 64, 0, false},  {3, 2, 2, 192, 96, 0, true},   {2, 2, 1, 112, 8, 0, true},
        {300, 16, 8, 128, 64, 0, true}, {150, 40, 8, 128, 64, 0, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (o.quick && cases[i].tokens > 10) continue;
        for (int d = 0; d < 3; d++) check_rope(&e, &rope, DTYPES[d], DTYPES[d], &cases[i], &seed);
        check_rope(&e, &rope, MSGL_F32, MSGL_BF16, &cases[i], &seed);
        check_rope(&e, &rope, MSGL_BF16, MSGL_F16, &cases[i], &seed);
        check_rope(&e, &rope, MSGL_BF16, MSGL_E4M3, &cases[i], &seed);
    }
    check_cap(&e, &act, 5003, 30, &seed);
    check_cap(&e, &act, 300, 0, &seed);
    check_invariance(&e, &norm, &seed);
    for (int page : {1, 7, 8, 56}) check_tokens(&e, &device, &seed, page);
    if (!o.quick) check_fill(&e, &device, &seed);
    int failed = family_end(&norm);
    failed |= family_end(&act);
    failed |= family_end(&rope);
    failed |= family_end(&device);
    return failed;
}
