// SPDX-License-Identifier: Apache-2.0
//
// flex attention's kernels: the block masks against the rules pair by pair, the results against
// exact attention. --bench: times beside the prefill kernel for every GPU, which knows one rule.
#include "tests/cuda/attn_world.cuh"

#include "cuda/attn/flex.h"
#include "cuda/attn/prefill_sm80.h"

enum { B = MSGL_FLEX_BLOCK, RADIUS = 20 };

// |v| < 1; probabilities and output are rounded to the dtype.
static const double TOLERANCE[MSGL_DTYPE_COUNT] = {0, 1.5e-3, 1e-2};
static const double LSE_TOLERANCE = 2e-4;

static int failures, checks;
static double worst[MSGL_DTYPE_COUNT];

typedef struct flex_world {
    attn_world w;
    msgl_cuda_flex_call call;
    int32_t *documents, *prefixes; // host
    float *slopes, *bias;
    uint64_t *tree;
    size_t rows, lists;
    int32_t *documents_dev, *prefixes_dev;
    float *slopes_dev, *bias_dev;
    uint64_t *tree_dev;
} flex_world;

static void make_mods(flex_world *f, attn_rng *rng)
{
    const msgl_cuda_attn_call *a = &f->w.call;
    const size_t n = f->rows * a->table_stride;
    f->documents = (int32_t *)malloc(n * 4);
    f->prefixes = (int32_t *)malloc(f->rows * 4);
    f->slopes = (float *)malloc((size_t)a->num_q_heads * 4);
    f->bias = (float *)malloc((size_t)a->num_q_heads * (2 * RADIUS + 1) * 4);
    for (size_t i = 0, left = 0; i < n; i++, left--) {
        if (i == 0 || left == 0) left = (size_t)attn_range(rng, 1, 200);
        f->documents[i] =
            (int32_t)(i > 0 && left > 1 ? f->documents[i - 1] : attn_range(rng, 0, 2));
    }
    for (size_t i = 0; i < f->rows; i++) f->prefixes[i] = attn_range(rng, 0, 500);
    for (int i = 0; i < a->num_q_heads; i++) f->slopes[i] = (float)attn_range(rng, 0, 100) / 200;
    for (int i = 0; i < a->num_q_heads * (2 * RADIUS + 1); i++) f->bias[i] = attn_uniform(rng);
    f->documents_dev = (int32_t *)device_copy(f->documents, n * 4);
    f->prefixes_dev = (int32_t *)device_copy(f->prefixes, f->rows * 4);
    f->slopes_dev = (float *)device_copy(f->slopes, (size_t)a->num_q_heads * 4);
    f->bias_dev = (float *)device_copy(f->bias, (size_t)a->num_q_heads * (2 * RADIUS + 1) * 4);
    msgl_attn_mods *m = &f->call.mods;
    m->documents = f->documents_dev;
    m->documents_ld = a->table_stride;
    m->prefixes = f->prefixes_dev;
    m->slopes = f->slopes_dev;
    m->bias = f->bias_dev;
    m->radius = RADIUS;
}

static void make_tree(flex_world *f, attn_rng *rng)
{
    f->tree = (uint64_t *)malloc((size_t)f->w.call.total_q * 8);
    for (int i = 0; i < f->w.call.batch; i++) {
        uint64_t *first = f->tree + f->w.cu_q[i];
        for (int j = 0; j < f->w.q_lens[i]; j++) {
            const int parent = attn_range(rng, 0, 1) ? j - 1 : attn_range(rng, -1, j - 1);
            first[j] = (parent >= 0 ? first[parent] : 0) | (uint64_t)1 << j;
        }
    }
    f->tree_dev = (uint64_t *)device_copy(f->tree, (size_t)f->w.call.total_q * 8);
    f->call.tree = f->tree_dev;
}

static void flex_free(flex_world *f)
{
    free(f->documents), free(f->prefixes), free(f->slopes), free(f->bias), free(f->tree);
    cudaFree(f->documents_dev), cudaFree(f->prefixes_dev), cudaFree(f->slopes_dev);
    cudaFree(f->bias_dev), cudaFree(f->tree_dev), cudaFree(f->call.lists);
    attn_world_free(&f->w);
}

// Whether token t of a request sees a key, and how many positions the key lies before it.
static bool sees(const flex_world *f, int req, int t, int key, int *distance)
{
    const msgl_attn_mods *m = &f->call.mods;
    const int first_new = f->w.k_lens[req] - f->w.q_lens[req], at = first_new + t;
    const int32_t *documents = f->documents + (size_t)f->w.rows[req] * f->w.call.table_stride;
    *distance = at - key;
    if (f->tree != NULL) {
        const uint64_t path = f->tree[f->w.cu_q[req] + t];
        int n = 0; // of the path's new tokens, those behind the key
        for (int j = 0; j <= t; j++) n += first_new + j > key && (path >> j & 1) != 0;
        *distance = key < first_new ? first_new - 1 - key + n : n;
        if (key > at || (key >= first_new && (path >> (key - first_new) & 1) == 0)) return false;
    }
    if ((m->masks & 1u << MSGL_MASK_CAUSAL) != 0 && key > at) return false;
    if ((m->masks & 1u << MSGL_MASK_WINDOW) != 0 && *distance > m->window) return false;
    if ((m->masks & 1u << MSGL_MASK_DOCUMENT) != 0 && documents[key] != documents[at]) return false;
    const bool prefix = (m->masks & 1u << MSGL_MASK_PREFIX) != 0;
    return !prefix || key <= at || key < f->prefixes[f->w.rows[req]];
}

static double exact(const flex_world *f, int req, int t, int h, double *o)
{
    const attn_world *w = &f->w;
    const msgl_cuda_attn_call *c = &w->call;
    const msgl_attn_mods *m = &f->call.mods;
    const int dim = c->head_dim, kvh = h / (c->num_q_heads / c->num_kv_heads);
    const size_t slot = (size_t)c->num_kv_heads * dim;
    const float *q = w->qf + ((size_t)w->cu_q[req] + t) * c->ld_q + (size_t)h * dim;
    const int32_t *slots = w->slots + (size_t)w->rows[req] * c->table_stride;
    double top = -INFINITY, l = 0;
    for (int d = 0; d < dim; d++) o[d] = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int p = 0; p < w->k_lens[req]; p++) {
            int distance;
            if (!sees(f, req, t, p, &distance)) continue;
            const size_t at = (size_t)slots[p] * slot + (size_t)kvh * dim;
            double x = 0;
            for (int d = 0; d < dim; d++) x += (double)q[d] * w->kf[at + d];
            x *= c->scale;
            if ((m->scores & 1u << MSGL_SCORE_SOFTCAP) != 0) x = m->softcap * tanh(x / m->softcap);
            if ((m->scores & 1u << MSGL_SCORE_ALIBI) != 0) x -= (double)f->slopes[h] * distance;
            if ((m->scores & 1u << MSGL_SCORE_BIAS) != 0) {
                const int d = distance < -RADIUS ? -RADIUS : distance > RADIUS ? RADIUS : distance;
                x += f->bias[h * (2 * RADIUS + 1) + d + RADIUS];
            }
            if (pass == 0) {
                if (x > top) top = x;
                continue;
            }
            const double e = exp(x - top);
            l += e;
            for (int d = 0; d < dim; d++) o[d] += e * w->vf[at + d];
        }
    }
    for (int d = 0; d < dim && l > 0; d++) o[d] *= c->out_scale / l;
    return top + log(l);
}

static void fail(const flex_world *f, const char *what, double error)
{
    const msgl_cuda_attn_call *a = &f->w.call;
    failures++;
    printf("FAIL %s: dtype %d heads %d/%d dim %d page %d masks %x window %d scores %x tree %d: "
           "%g\n",
           what, (int)a->dtype, a->num_q_heads, a->num_kv_heads, a->head_dim, a->page_size,
           f->call.mods.masks, f->call.mods.window, f->call.mods.scores, f->tree != NULL, error);
}

// Every list against the rules.
static void check_lists(const flex_world *f)
{
    int32_t *lists = (int32_t *)malloc(f->lists * 4);
    CUDA_OK(cudaMemcpy(lists, f->call.lists, f->lists * 4, cudaMemcpyDeviceToHost));
    const int32_t *list = lists;
    int wrong = 0;
    for (int i = 0; i < f->w.call.batch; i++) {
        for (int t0 = 0; t0 < f->w.q_lens[i]; t0 += B, list += f->call.lists_ld) {
            int n = 0;
            for (int k0 = 0; k0 < f->w.k_lens[i]; k0 += B) {
                bool any = false, all = true;
                int distance;
                for (int t = t0; t < t0 + B && t < f->w.q_lens[i]; t++) {
                    for (int k = k0; k < k0 + B && k < f->w.k_lens[i]; k++) {
                        const bool seen = sees(f, i, t, k, &distance);
                        any |= seen;
                        all &= seen;
                    }
                }
                if (any) wrong += list[++n] != k0 / B * 2 + !all;
            }
            wrong += list[0] != n;
        }
    }
    if (wrong != 0) fail(f, "lists", wrong);
    free(lists);
}

static void check_results(flex_world *f)
{
    attn_world *w = &f->w;
    const msgl_cuda_attn_call *c = &w->call;
    const size_t lses = (size_t)c->total_q * c->num_q_heads;
    void *out = malloc(w->out_bytes);
    float *lse = (float *)malloc(lses * 4);
    double o[256], off = 0, lse_off = 0;
    w->qf = attn_decode(c->dtype, w->q, w->q_bytes);
    w->kf = attn_decode(c->dtype, w->k, w->kv_bytes);
    w->vf = attn_decode(c->dtype, w->v, w->kv_bytes);
    CUDA_OK(cudaMemcpy(out, w->out_dev, w->out_bytes, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(lse, w->lse_dev, lses * 4, cudaMemcpyDeviceToHost));
    int count = 0;
    for (int i = 0; i < c->batch; i++) {
        for (int t = 0; t < w->q_lens[i]; t++) {
            for (int h = 0; h < c->num_q_heads; h++) {
                if (count++ % 5 != 0) continue;
                const double l = exact(f, i, t, h, o);
                const size_t row = (size_t)w->cu_q[i] + t;
                for (int d = 0; d < c->head_dim; d++) {
                    const size_t at = row * c->ld_out + (size_t)h * c->head_dim + d;
                    const double e = fabs(attn_get(c->dtype, out, at) - o[d]);
                    if (!(e <= off)) off = e; // NaN too
                }
                const double e = fabs(lse[row * c->num_q_heads + h] - l);
                if (l > -INFINITY && !(e <= lse_off)) lse_off = e;
            }
        }
    }
    checks++;
    if (!(off <= worst[c->dtype])) worst[c->dtype] = off;
    if (!(off <= TOLERANCE[c->dtype])) fail(f, "result", off);
    if (!(lse_off <= LSE_TOLERANCE)) fail(f, "lse", lse_off);
    free(out), free(lse);
}

static void run(flex_world *f)
{
    f->call.attn = f->w.call;
    f->call.lists_ld = (size_t)(f->w.max_len + B - 1) / B + 1;
    f->lists = (size_t)(f->w.call.total_q / B + f->w.call.batch) * f->call.lists_ld;
    f->call.lists = (int32_t *)device_copy(NULL, f->lists * 4);
    CUDA_OK(msgl__cuda_flex_lists(&f->call, 0));
    CUDA_OK(msgl__cuda_flex_attend(&f->call, 0));
    CUDA_OK(cudaDeviceSynchronize());
}

// Case i of a random batch.
static void one(attn_rng *rng, int i, bool quick)
{
    static const int dims[] = {8, 64, 80, 96, 128, 200, 256}, groups[] = {1, 2, 5, 7, 16};
    static const int pages[] = {1, 16, 64, 128}, windows[] = {-1, 0, 17, 100, 300};
    const bool tree = i % 4 == 3;
    const int most = quick ? 70 : 300;
    int32_t q[6], k[6];
    for (int r = 0; r < 6; r++) {
        q[r] = r == 0 ? 1 : attn_range(rng, 1, tree ? MSGL_FLEX_BLOCK / 2 : most);
        k[r] = q[r] + (r % 2 ? 0 : attn_range(rng, 0, quick ? 150 : 600));
    }
    flex_world f = {};
    attn_world_make(&f.w, rng, i % 2 ? MSGL_F16 : MSGL_BF16, 6, q, k, groups[i % 5] * 2, 2,
                    dims[i % 7], pages[i % 4]);
    f.w.call.out_scale = 0.75f;
    f.rows = 8;
    make_mods(&f, rng);
    if (tree) make_tree(&f, rng);
    msgl_attn_mods *m = &f.call.mods;
    m->masks = tree ? 1u << MSGL_MASK_TREE : 0;
    m->masks |= 1u << (attn_range(rng, 0, 1) ? MSGL_MASK_CAUSAL : MSGL_MASK_PREFIX);
    if (attn_range(rng, 0, 1)) m->masks |= 1u << MSGL_MASK_DOCUMENT;
    if (attn_range(rng, 0, 1)) m->masks |= 1u << MSGL_MASK_WINDOW;
    m->window = windows[attn_range(rng, 0, 4)];
    m->scores = (uint32_t)attn_range(rng, 0, 7);
    m->softcap = 5;
    attn_poison(&f.w);
    run(&f);
    check_lists(&f);
    check_results(&f);
    flex_free(&f);
}

typedef int (*launch_fn)(const msgl_cuda_flex_call *c, void *stream);

static int sm80(const msgl_cuda_flex_call *c, void *stream)
{
    return msgl__cuda_fa_prefill_sm80(&c->attn, stream);
}

static double time_us(launch_fn launch, const msgl_cuda_flex_call *c)
{
    cudaEvent_t from, to;
    float ms;
    cudaEventCreate(&from), cudaEventCreate(&to);
    for (int i = 0; i < 2; i++) CUDA_OK(launch(c, 0));
    cudaEventRecord(from);
    for (int i = 0; i < 10; i++) CUDA_OK(launch(c, 0));
    cudaEventRecord(to);
    CUDA_OK(cudaDeviceSynchronize());
    cudaEventElapsedTime(&ms, from, to);
    cudaEventDestroy(from), cudaEventDestroy(to);
    return (double)ms * 100;
}

static void bench(attn_rng *rng)
{
    static const struct {
        const char *name;
        int q, k;
        uint32_t masks, scores;
    } cases[] = {
        {"causal", 4096, 4096, 1u << MSGL_MASK_CAUSAL, 0},
        {"window 1000", 4096, 4096, 1u << MSGL_MASK_CAUSAL | 1u << MSGL_MASK_WINDOW, 0},
        {"documents", 4096, 4096, 1u << MSGL_MASK_CAUSAL | 1u << MSGL_MASK_DOCUMENT, 0},
        {"prefix", 4096, 4096, 1u << MSGL_MASK_PREFIX, 0},
        {"causal, ALiBi", 4096, 4096, 1u << MSGL_MASK_CAUSAL, 1u << MSGL_SCORE_ALIBI},
        {"causal, soft cap", 4096, 4096, 1u << MSGL_MASK_CAUSAL, 1u << MSGL_SCORE_SOFTCAP},
        {"causal, relative bias", 4096, 4096, 1u << MSGL_MASK_CAUSAL, 1u << MSGL_SCORE_BIAS},
        {"causal, 512 at 16k", 512, 16384, 1u << MSGL_MASK_CAUSAL, 0},
        {"causal, decode at 16k", 1, 16384, 1u << MSGL_MASK_CAUSAL, 0},
    };
    printf("bf16, 32 heads over 8, head_dim 128, one request, us\n");
    printf("| rule | new | keys | lists | flex | prefill for sm_80, causal |\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int32_t q[1] = {cases[i].q}, k[1] = {cases[i].k};
        flex_world f = {};
        attn_world_make(&f.w, rng, MSGL_BF16, 1, q, k, 32, 8, 128, 64);
        f.rows = 3;
        make_mods(&f, rng);
        f.call.mods.masks = cases[i].masks;
        f.call.mods.scores = cases[i].scores;
        f.call.mods.window = 1000;
        f.call.mods.softcap = 30;
        run(&f);
        f.call.attn.lse = NULL;
        printf("| %s | %d | %d | %.1f | %.1f | %.1f |\n", cases[i].name, (int)q[0], (int)k[0],
               time_us(msgl__cuda_flex_lists, &f.call), time_us(msgl__cuda_flex_attend, &f.call),
               time_us(sm80, &f.call));
        flex_free(&f);
    }
}

int main(int argc, char **argv)
{
    bool quick = false, timed = false;
    attn_rng rng = {1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) quick = true;
        if (strcmp(argv[i], "--bench") == 0) timed = true;
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            rng.state = strtoull(argv[++i], NULL, 10);
        }
    }
    for (int i = 0; i < (quick ? 8 : 84); i++) one(&rng, i, quick);
    printf("flex attention: %d checks, worst err f16 %.2e bf16 %.2e%s\n", checks, worst[MSGL_F16],
           worst[MSGL_BF16], failures ? ", FAILED" : "");
    if (timed) bench(&rng);
    return failures ? 1 : 0;
}
