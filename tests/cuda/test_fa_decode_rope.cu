// SPDX-License-Identifier: Apache-2.0
//
// The decode kernel of fa with norm, rotation and store inside, against exact attention over
// exactly rotated heads, and bit for bit against the rope kernel followed by the same decode
// kernel. The newest tokens' slots hold NaN before each launch; the projection's output arrives
// late, from a kernel that lets its successor start early.
#include "attn_world.cuh"
#include "ops_check.cuh"

#include "cuda/attn/decode.h"
#include "cuda/launch.cuh"

static const double TOLERANCE[MSGL_DTYPE_COUNT] = {0, 1.5e-3, 1e-2, 5e-3}; // |v| < 1
static const double LSE_TOLERANCE = 2e-4;
static const float EPS = 1e-6f;
static const float K_SCALE = 0.75f, V_SCALE = 1.5f; // of E4M3

typedef struct rope_case {
    msgl_dtype dtype; // of the pool; the others' with E4M3: bf16
    int q_heads, kv_heads, dim, half, page;
    bool norm, deterministic;
    int32_t window;
    float softcap;
    int ctas, min_units;
    int dummies; // at the end: one key, one slot, the same row
    bool many;   // the kernel for many requests, also for few
} rope_case;

typedef struct fixture {
    attn_world w;
    msgl_rope_call rope;
    float *q_weight, *k_weight, *cos_sin; // host
    int32_t *slots;
    void *raw; // the projection's output, host
    void *raw_dev, *poison;
    size_t slot_bytes;
} fixture;

static family RESULTS = {"fa decode rope"};

// Writes to what the decode kernel reads, long after that has started.
__global__ void arrive_late(uint4 *dst, const uint4 *src, size_t n)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const long long from = clock64();
    while (clock64() - from < 20000) continue;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        dst[i] = src[i];
    }
}

static float *random_floats(attn_rng *rng, size_t n, float offset)
{
    float *f = (float *)malloc(n * sizeof *f);
    for (size_t i = 0; i < n; i++) f[i] = offset + attn_uniform(rng);
    return f;
}

static void make_rows(fixture *x, const rope_case *k, attn_rng *rng)
{
    attn_world *w = &x->w;
    const size_t ld = w->call.ld_q;
    const msgl_dtype act = attn_act(k->dtype);
    const int batch = w->call.batch, real = batch - k->dummies;
    x->raw = malloc(w->q_bytes);
    x->cos_sin = (float *)malloc((size_t)batch * 2 * k->half * sizeof(float) + 16);
    for (int t = 0; t < batch; t++) {
        const bool again = t > real; // dummies are alike
        for (size_t i = 0; i < ld; i++) {
            const float old = again ? attn_get(act, x->raw, (size_t)(t - 1) * ld + i) : 0;
            attn_put(act, x->raw, (size_t)t * ld + i, again ? old : 2.f * attn_uniform(rng));
        }
        const double at = again ? 7 : attn_range(rng, 0, 100000);
        for (int i = 0; i < k->half; i++) {
            const double angle = (t >= real ? 7 : at) * pow(1e6, -(double)i / k->half);
            x->cos_sin[(size_t)t * 2 * k->half + i] = (float)cos(angle);
            x->cos_sin[(size_t)t * 2 * k->half + k->half + i] = (float)sin(angle);
        }
    }
}

static void fixture_make(fixture *x, const rope_case *k, attn_rng *rng, int batch,
                         const int32_t *lens)
{
    memset(x, 0, sizeof *x);
    attn_world *w = &x->w;
    int32_t *ones = (int32_t *)malloc(batch * sizeof *ones);
    for (int i = 0; i < batch; i++) ones[i] = 1;
    attn_world_make(w, rng, k->dtype, batch, ones, lens, k->q_heads, k->kv_heads, k->dim, k->page);
    free(ones);
    w->call.window = k->window;
    w->call.softcap = k->softcap;
    w->call.deterministic = k->deterministic;
    const size_t bytes =
        msgl__fa_decode_workspace(k->q_heads, k->kv_heads, k->dim, batch, k->deterministic);
    if (k->many) w->call.max_seqlen_k = MSGL_FA_FEW_LEN + 1; // as in a graph for long requests
    w->call.workspace = device_copy(NULL, bytes);
    CUDA_OK(cudaMemset(w->call.workspace, 0, bytes));
    x->slot_bytes = (size_t)k->kv_heads * k->dim * msgl__dtype_size(k->dtype);
    x->slots = (int32_t *)malloc(batch * sizeof *x->slots);
    for (int i = 0; i < batch; i++) {
        if (i >= batch - k->dummies) w->rows[i] = w->rows[batch - k->dummies];
        x->slots[i] = w->slots[(size_t)w->rows[i] * w->call.table_stride + lens[i] - 1];
    }
    device_write(w->rows_dev, w->rows, batch * 4);
    make_rows(x, k, rng);
    x->raw_dev = device_copy(x->raw, w->q_bytes);
    x->q_weight = random_floats(rng, k->dim, 1.5f);
    x->k_weight = random_floats(rng, k->dim, 1.5f);
    x->poison = malloc(x->slot_bytes);
    memset(x->poison, 0xff, x->slot_bytes);
    msgl_rope_call *r = &x->rope;
    r->qkv = w->q_dev;
    r->ld = w->call.ld_q;
    r->tokens = batch;
    r->num_q_heads = k->q_heads, r->num_kv_heads = k->kv_heads, r->head_dim = k->dim;
    r->q_weight = k->norm ? (float *)device_copy(x->q_weight, k->dim * 4) : NULL;
    r->k_weight = k->norm ? (float *)device_copy(x->k_weight, k->dim * 4) : NULL;
    r->eps = EPS;
    r->cos_sin = (float *)device_copy(x->cos_sin, (size_t)batch * 2 * k->half * 4);
    r->half = k->half;
    r->kv_dtype = k->dtype;
    r->k_scale = K_SCALE, r->v_scale = V_SCALE;
    r->k_pool = w->k_dev, r->v_pool = w->v_dev;
    r->slots = (int32_t *)device_copy(x->slots, batch * 4);
}

static void fixture_free(fixture *x)
{
    CUDA_OK(cudaFree((void *)x->rope.q_weight));
    CUDA_OK(cudaFree((void *)x->rope.k_weight));
    CUDA_OK(cudaFree((void *)x->rope.cos_sin));
    CUDA_OK(cudaFree((void *)x->rope.slots));
    CUDA_OK(cudaFree(x->raw_dev));
    CUDA_OK(cudaFree(x->w.call.workspace));
    free(x->q_weight), free(x->k_weight), free(x->cos_sin), free(x->slots);
    free(x->raw), free(x->poison);
    attn_world_free(&x->w);
}

// What one launch leaves behind.
typedef struct outcome {
    void *out, *k, *v, *rows;
    float *lse;
} outcome;

static void *download(const void *dev, size_t bytes)
{
    void *p = malloc(bytes);
    CUDA_OK(cudaMemcpy(p, dev, bytes, cudaMemcpyDeviceToHost));
    return p;
}

static bool clusters_of_two; // racecheck takes seconds for larger ones

static outcome run(fixture *x, bench_exec *e, const rope_case *k, bool inside)
{
    attn_world *w = &x->w;
    device_write(w->k_dev, w->k, w->kv_bytes);
    device_write(w->v_dev, w->v, w->kv_bytes);
    for (int i = 0; i < w->call.batch; i++) {
        const size_t at = (size_t)x->slots[i] * x->slot_bytes;
        CUDA_OK(cudaMemset((char *)w->k_dev + at, 0xff, x->slot_bytes));
        CUDA_OK(cudaMemset((char *)w->v_dev + at, 0xff, x->slot_bytes));
    }
    CUDA_OK(cudaMemset(w->q_dev, 0xff, w->q_bytes));
    attn_poison(w);
    CUDA_OK(cudaDeviceSynchronize());
    const cudaStream_t stream = e->device.stream;
    CUDA_OK(msgl__launch(arrive_late, 4, 256, 0, stream, (uint4 *)w->q_dev,
                         (const uint4 *)x->raw_dev, w->q_bytes / 16));
    e->x.act = attn_act(k->dtype);
    if (!inside) msgl__cuda_qk_norm_rope_store(&e->x, &x->rope);
    msgl_cuda_attn_call c = w->call;
    c.rope = inside ? &x->rope : NULL;
    const int items = k->kv_heads * c.batch;
    const int ctas = clusters_of_two && items <= 66 ? 2 * items : 132;
    const msgl_fa_decode_tune t = {k->min_units ? k->min_units : 24, k->ctas ? k->ctas : ctas};
    CUDA_OK(msgl__cuda_fa_decode_tuned(&c, &t, stream));
    exec_sync(e);
    const size_t lse_bytes = (size_t)c.total_q * c.num_q_heads * 4;
    return outcome{download(w->out_dev, w->out_bytes), download(w->k_dev, w->kv_bytes),
                   download(w->v_dev, w->kv_bytes), download(w->q_dev, w->q_bytes),
                   (float *)download(w->lse_dev, lse_bytes)};
}

static void outcome_free(outcome *o)
{
    free(o->out), free(o->k), free(o->v), free(o->rows), free(o->lse);
}

// Head h of a row, normed and rotated in f64; out [dim].
static void exact_head(const fixture *x, const rope_case *k, int t, int h, double *out)
{
    const bool is_v = h >= k->q_heads + k->kv_heads;
    const float *weight = h < k->q_heads ? x->q_weight : x->k_weight;
    const size_t at = (size_t)t * x->w.call.ld_q + (size_t)h * k->dim;
    double sum = 0;
    for (int i = 0; i < k->dim; i++) {
        out[i] = attn_get(attn_act(k->dtype), x->raw, at + i);
        sum += out[i] * out[i];
    }
    if (is_v) return;
    for (int i = 0; k->norm && i < k->dim; i++) out[i] *= weight[i] / sqrt(sum / k->dim + EPS);
    for (int i = 0; i < k->half; i++) {
        const double a = out[i], b = out[k->half + i];
        const double c = x->cos_sin[(size_t)t * 2 * k->half + i];
        const double s = x->cos_sin[(size_t)t * 2 * k->half + k->half + i];
        out[i] = a * c - b * s;
        out[k->half + i] = b * c + a * s;
    }
}

// Compares every head with the exact one, then puts what the device made of it into the world: half
// a unit of rounding apart, the attention over either would differ by more than its own error.
static void take_heads(fixture *x, const rope_case *k, const outcome *o)
{
    attn_world *w = &x->w;
    double head[256];
    for (int t = 0; t < w->call.batch; t++) {
        for (int h = 0; h < k->q_heads + 2 * k->kv_heads; h++) {
            exact_head(x, k, t, h, head);
            const bool is_q = h < k->q_heads, is_k = !is_q && h < k->q_heads + k->kv_heads;
            const int kv = (h - k->q_heads) % k->kv_heads;
            const void *made = is_q ? o->rows : is_k ? o->k : o->v;
            void *dst = is_q ? w->q : is_k ? w->k : w->v;
            const size_t at = is_q ? (size_t)t * w->call.ld_q + (size_t)h * k->dim
                                   : ((size_t)x->slots[t] * k->kv_heads + kv) * k->dim;
            const msgl_dtype dtype = is_q ? attn_act(k->dtype) : k->dtype;
            const double error = dtype_error(dtype) * 1.01;
            const double scale = dtype != MSGL_E4M3 ? 1 : is_k ? K_SCALE : V_SCALE;
            for (int i = 0; i < k->dim; i++) {
                const float got = attn_get(dtype, made, at + i);
                const double x = head[i] / scale;
                expect_near(&RESULTS, got, x, fabs(x) * error + dtype_floor(dtype), "head");
                attn_put(dtype, dst, at + i, got);
            }
        }
    }
}

static void check(attn_rng *rng, bench_exec *e, const rope_case *k, int batch, const int32_t *lens)
{
    fixture x;
    char what[256];
    fixture_make(&x, k, rng, batch, lens);
    attn_world *w = &x.w;
    snprintf(what, sizeof what,
             "dtype %d heads %d/%d dim %d half %d page %d norm %d det %d window %d ctas %d min %d",
             (int)k->dtype, k->q_heads, k->kv_heads, k->dim, k->half, k->page, k->norm,
             k->deterministic, k->window, k->ctas, k->min_units);
    outcome apart = run(&x, e, k, false), inside = run(&x, e, k, true);
    const size_t lse_bytes = (size_t)batch * k->q_heads * 4;
    const bool same_out = memcmp(inside.out, apart.out, w->out_bytes) == 0 &&
                          memcmp(inside.lse, apart.lse, lse_bytes) == 0;
    const bool same_pool =
        memcmp(inside.k, apart.k, w->kv_bytes) == 0 && memcmp(inside.v, apart.v, w->kv_bytes) == 0;
    const bool same_rows = memcmp(inside.rows, x.raw, w->q_bytes) == 0;
    expect(&RESULTS, same_out, "other bits than rope kernel and decode");
    expect(&RESULTS, same_pool, "another pool than the rope kernel's");
    expect(&RESULTS, same_rows, "the projection's output changed");
    take_heads(&x, k, &apart);
    double error, lse; // of the outputs that the device still has: the fused ones
    attn_compare(w, lens, 1, &error, &lse);
    const double allowed = TOLERANCE[k->dtype];
    expect_near(&RESULTS, error, 0, allowed, "exact attention");
    expect_near(&RESULTS, lse, 0, LSE_TOLERANCE, "exact log-sum-exp");
    const bool good = same_out && same_pool && same_rows && error <= allowed;
    if (!good) printf("  (%s, batch %d, error %g)\n", what, batch, error);
    outcome_free(&apart), outcome_free(&inside);
    fixture_free(&x);
}

static const rope_case PLAIN = {MSGL_BF16, 16, 8, 128, 64, 16, true, false, -1, 0, 0, 0, 0, false};

// Every head dimension, group, norm, rotation of a part of the head.
static void shapes(attn_rng *rng, bench_exec *e, bool quick)
{
    static const int groups[] = {1, 2, 4, 5, 8, 9, 16, 20};
    static const int dims[] = {128, 64, 96, 256};
    static const int pages[] = {1, 16, 64};
    const int32_t lens[] = {1, 2, 15, 16, 17, 33, 128, 129, 300, 1};
    int n = 0;
    for (int d = 0; d < 4; d++) {
        for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
            if (quick && (g + d) % 4 != 1) continue;
            for (int v = 0; v < 5; v++, n++) {
                rope_case k = PLAIN;
                k.dtype = v == 4 ? MSGL_E4M3 : v % 2 ? MSGL_F16 : MSGL_BF16;
                k.q_heads = groups[g] * 2, k.kv_heads = 2, k.dim = dims[d];
                k.half = v == 3 ? dims[d] / 4 : v == 2 && n % 3 == 0 ? 0 : dims[d] / 2;
                k.norm = v != 1;
                k.page = pages[n % 3];
                k.min_units = attn_range(rng, 1, 40);
                for (int many = 0; many < 2; many++) {
                    k.many = many;
                    check(rng, e, &k, quick ? 6 : 10, lens);
                }
            }
        }
    }
}

// The newest token at every place of a tile, and around chunks.
static void places(attn_rng *rng, bench_exec *e, bool quick)
{
    int32_t lens[48];
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        for (int page = 1; page <= 64; page = page == 1 ? 16 : page * 4) {
            rope_case k = PLAIN;
            k.deterministic = deterministic;
            k.page = page;
            for (int i = 0; i < 48; i++) lens[i] = i + 1;
            check(rng, e, &k, quick ? 20 : 48, lens);
            for (int i = 0; i < 8; i++) lens[i] = 509 + i, lens[8 + i] = 1021 + i;
            k.ctas = attn_range(rng, 5, 132);
            k.min_units = 3;
            check(rng, e, &k, quick ? 6 : 16, lens);
        }
    }
}

static void splits(attn_rng *rng, bench_exec *e, bool quick)
{
    for (int i = 0; i < (quick ? 3 : 24); i++) {
        const int batch = attn_range(rng, 1, 6);
        int32_t lens[6];
        for (int r = 0; r < batch; r++) lens[r] = attn_range(rng, 1, quick ? 900 : 4000);
        rope_case k = PLAIN;
        k.kv_heads = 2, k.q_heads = i % 2 ? 10 : 4;
        k.ctas = attn_range(rng, 1, 200);
        k.min_units = attn_range(rng, 1, 30);
        k.deterministic = i % 3 == 2;
        k.window = i % 4 == 3 ? attn_range(rng, 0, 600) : -1;
        k.softcap = i % 5 == 4 ? 3.f : 0.f;
        k.page = 1;
        check(rng, e, &k, batch, lens);
        k.dtype = MSGL_E4M3;
        check(rng, e, &k, batch, lens);
    }
}

// Few requests, for which there is a kernel of its own.
static void few(attn_rng *rng, bench_exec *e, bool quick)
{
    static const int dims[] = {128, 64, 96}, groups[] = {2, 8, 5};
    const int32_t lens[][8] = {{700, 1, 2, 33, 16, 200, 384, 17},
                               {2100, 1, 17, 300, 16, 48, 5, 129}};
    for (int i = 0; i < (quick ? 3 : 9); i++) {
        rope_case k = PLAIN;
        k.dtype = i % 2 ? MSGL_F16 : MSGL_BF16;
        k.dim = dims[i % 3], k.half = k.dim / 2;
        k.q_heads = 8 * groups[(i + i / 3) % 3];
        k.page = i % 2 ? 16 : 1;
        check(rng, e, &k, 8, lens[0]);
        if (quick && i > 0) continue;
        check(rng, e, &k, 8, lens[1]);
        check(rng, e, &k, 3, lens[0]);
        k.ctas = 132;
        check(rng, e, &k, 1, lens[1]);
    }
}

// Requests that only pad a graph: all in one slot.
static void padding(attn_rng *rng, bench_exec *e)
{
    int32_t lens[9] = {40, 1, 300, 77, 16, 1, 1, 1, 1};
    rope_case k = PLAIN;
    k.dummies = 4;
    check(rng, e, &k, 9, lens);
    int32_t many[300]; // more requests than threads in a CTA
    for (int i = 0; i < 300; i++) many[i] = i % 3 ? 1 : attn_range(rng, 1, 60);
    k.dummies = 0;
    check(rng, e, &k, 300, many);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    attn_rng rng = {o.seed};
    bench_exec e;
    exec_open(&e, 1 << 20);
    clusters_of_two = o.quick;
    shapes(&rng, &e, o.quick);
    places(&rng, &e, o.quick);
    splits(&rng, &e, o.quick);
    few(&rng, &e, o.quick);
    padding(&rng, &e);
    return family_end(&RESULTS);
}
