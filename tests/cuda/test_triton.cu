// SPDX-License-Identifier: Apache-2.0
//
// triton's kernels: a step's lists against what the host makes of the same lengths, answers and
// chunks against exact attention.
#include "tests/cuda/family.cuh"
#include "tests/cuda/mla_world.cuh"

extern "C" {
#include "cuda/attn/prefill.h"
}
#include "attention/triton/splits.h"
#include "cuda/attn/tree_sm80.h"
#include "cuda/attn/reference.h"
#include "cuda/attn/triton.h"
#include "cuda/launch.cuh"

static const double TOLERANCE[MSGL_DTYPE_COUNT] = {0, 1.5e-3, 1e-2}; // |v| < 1; f16, bf16

static int failures, checks;
static double worst;

typedef struct variant {
    float softcap, out_scale;
    int32_t window;
    bool deterministic, sinks, tree;
} variant;

static const variant PLAIN = {0, 1, -1, false, false, false};

// A world with the step's metadata and stage buffers beside it, filled with NaN and -1.
typedef struct step {
    attn_world w;
    msgl_triton_lists_call lists;
    msgl_triton_call call;
    uint64_t *tree; // of requests with at most 64 new tokens, or NULL; host copy
    size_t logits_bytes;
} step;

static void step_make(step *s, attn_rng *rng, msgl_dtype dtype, int batch, const int32_t *q_lens,
                      const int32_t *k_lens, int q_heads, int kv_heads, int dim, int page,
                      const variant *o)
{
    memset(s, 0, sizeof *s);
    attn_world_make(&s->w, rng, dtype, batch, q_lens, k_lens, q_heads, kv_heads, dim, page);
    msgl_cuda_attn_call *c = &s->w.call;
    c->softcap = o->softcap;
    c->out_scale = o->out_scale;
    c->window = o->window;
    const size_t slots = (size_t)batch * s->w.max_len;
    msgl_triton_lists_call *l = &s->lists;
    l->lists.kv_indptr = (int32_t *)device_copy(NULL, (batch + 1) * 4);
    l->lists.kv_indices = (int32_t *)device_copy(NULL, slots * 4);
    l->lists.num_kv_splits = (int32_t *)device_copy(NULL, batch * 8);
    l->lists.splits_stride = batch;
    l->batch = batch, l->num_q_heads = q_heads, l->num_kv_heads = kv_heads;
    l->seqlens_k = c->seqlens_k, l->table = c->table, l->table_rows = c->table_rows;
    l->table_stride = c->table_stride, l->paging = c->paging, l->max_seqlen_k = c->max_seqlen_k;
    l->num_windows = 2, l->windows[0] = 17, l->windows[1] = o->window;
    l->deterministic = o->deterministic;
    const size_t rows = (size_t)batch * q_heads * MSGL_TRITON_MAX_SPLITS;
    s->logits_bytes = rows * dim * 4;
    s->call.kv_indptr = l->lists.kv_indptr;
    s->call.kv_indices = l->lists.kv_indices;
    s->call.num_kv_splits = l->lists.num_kv_splits + batch;
    s->call.attn_logits = (float *)device_copy(NULL, s->logits_bytes);
    s->call.attn_lse = (float *)device_copy(NULL, rows * 4);
    if (o->sinks) attn_sinks(&s->w, rng);
    if (o->tree) {
        s->tree = attn_trees(&s->w, rng);
        s->call.tree = (const uint64_t *)device_copy(s->tree, c->total_q * sizeof *s->tree);
    }
    s->call.attn = *c;
}

static void step_poison(step *s)
{
    attn_poison(&s->w);
    CUDA_OK(cudaMemset(s->call.attn_logits, 0xff, s->logits_bytes));
    CUDA_OK(cudaMemset(s->call.attn_lse, 0xff, s->logits_bytes / s->call.attn.head_dim));
    CUDA_OK(cudaMemset(s->lists.lists.kv_indices, 0xff, (size_t)s->w.max_len * s->lists.batch * 4));
    CUDA_OK(cudaDeviceSynchronize());
}

static void step_free(step *s)
{
    cudaFree(s->lists.lists.kv_indptr), cudaFree(s->lists.lists.kv_indices);
    cudaFree(s->lists.lists.num_kv_splits), cudaFree(s->call.attn_logits);
    cudaFree(s->call.attn_lse);
    cudaFree((void *)s->call.tree);
    free(s->tree);
    attn_world_free(&s->w);
}

static void fail(const step *s, const char *what, double error)
{
    const msgl_cuda_attn_call *c = &s->call.attn;
    failures++;
    printf("FAIL %s: dtype %d heads %d/%d dim %d page %d batch %d window %d cap %g%s: error %g\n",
           what, (int)c->dtype, c->num_q_heads, c->num_kv_heads, c->head_dim, c->page_size,
           c->batch, c->window, (double)c->softcap, c->sinks != NULL ? " sinks" : "", error);
}

static void check(step *s, const int32_t *k_lens, int every, const char *what)
{
    attn_world *w = &s->w;
    const msgl_cuda_attn_call *c = &w->call;
    double most = 0, o[ATTN_MAX_DIM];
    void *out = malloc(w->out_bytes);
    if (w->qf == NULL) {
        w->qf = attn_decode(c->dtype, w->q, w->q_bytes);
        w->kf = attn_decode(c->dtype, w->k, w->kv_bytes);
        w->vf = attn_decode(c->dtype, w->v, w->v_bytes);
    }
    CUDA_OK(cudaMemcpy(out, w->out_dev, w->out_bytes, cudaMemcpyDeviceToHost));
    int count = 0;
    for (int i = 0; i < c->batch; i++) {
        for (int t = 0; t < w->q_lens[i]; t++) {
            for (int h = 0; h < c->num_q_heads; h++) {
                if (count++ % every != 0) continue;
                attn_exact_in(w, s->tree, i, t, k_lens[i], h, o);
                for (int d = 0; d < c->head_dim; d++) {
                    const size_t at = ((size_t)w->cu_q[i] + t) * c->ld_out + h * c->head_dim + d;
                    const double e = fabs(attn_get(c->dtype, out, at) - o[d]);
                    if (!(e <= most)) most = e; // NaN too
                }
            }
        }
    }
    free(out);
    checks++;
    if (!(most <= worst)) worst = most;
    if (!(most <= TOLERANCE[c->dtype])) fail(s, what, most);
}

// The device's lists against the host's.
static void check_lists(step *s, const int32_t *lens)
{
    const msgl_triton_lists_call *l = &s->lists;
    const size_t n = (size_t)l->batch, slots = n * s->w.max_len;
    msgl_gpu gpu;
    CUDA_OK(msgl__current_gpu(&gpu));
    int32_t *indptr = (int32_t *)malloc((n + 1) * 4), *splits = (int32_t *)malloc(n * 8);
    int32_t *indices = (int32_t *)malloc(slots * 4), min = INT32_MAX, max = 0, at = 0;
    CUDA_OK(cudaMemcpy(indptr, l->lists.kv_indptr, (n + 1) * 4, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(splits, l->lists.num_kv_splits, n * 8, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(indices, l->lists.kv_indices, slots * 4, cudaMemcpyDeviceToHost));
    bool good = indptr[0] == 0;
    for (int i = 0; i < l->batch; i++) {
        const int32_t *row = s->w.slots + (size_t)s->w.rows[i] * l->table_stride;
        good = good && memcmp(indices + at, row, (size_t)lens[i] * 4) == 0;
        at += lens[i];
        good = good && indptr[i + 1] == at;
        min = lens[i] < min ? lens[i] : min;
        max = lens[i] > max ? lens[i] : max;
    }
    for (size_t i = (size_t)at; i < slots; i++) good = good && indices[i] == -1;
    for (int k = 0; k < l->num_windows; k++) {
        const int32_t window = l->windows[k];
        const msgl_triton_chunks c = msgl__triton_chunks(
            l->batch, msgl__triton_seen(min, window), msgl__triton_seen(max, window),
            l->num_q_heads, l->num_q_heads / l->num_kv_heads, gpu.sms);
        for (int i = 0; i < l->batch; i++) {
            const int32_t seen = msgl__triton_seen(lens[i], window);
            const int32_t want = l->deterministic ? msgl__triton_fixed_splits(seen)
                                                  : msgl__triton_num_splits(c, seen);
            good = good && splits[k * l->batch + i] == want;
        }
    }
    checks++;
    if (!good) fail(s, "lists", 0);
    free(indptr), free(splits), free(indices);
}

static void answers(attn_rng *rng, msgl_dtype dtype, int batch, const int32_t *lens, int q_heads,
                    int kv_heads, int dim, int page, const variant *o, const char *what)
{
    int32_t ones[512];
    for (int i = 0; i < batch; i++) ones[i] = 1;
    step s;
    step_make(&s, rng, dtype, batch, ones, lens, q_heads, kv_heads, dim, page, o);
    step_poison(&s);
    CUDA_OK(msgl__cuda_triton_lists(&s.lists, 0));
    CUDA_OK(msgl__cuda_triton_decode(&s.call, 0));
    CUDA_OK(cudaDeviceSynchronize());
    check_lists(&s, lens);
    check(&s, lens, 1, what);
    step_free(&s);
}

static void chunks(attn_rng *rng, msgl_dtype dtype, int batch, const int32_t *q_lens,
                   const int32_t *k_lens, int q_heads, int kv_heads, int dim, int page,
                   const variant *o, const char *what)
{
    step s;
    step_make(&s, rng, dtype, batch, q_lens, k_lens, q_heads, kv_heads, dim, page, o);
    s.lists.num_windows = 0;
    step_poison(&s);
    CUDA_OK(msgl__cuda_triton_lists(&s.lists, 0));
    CUDA_OK(msgl__cuda_triton_extend(&s.call, 0));
    CUDA_OK(cudaDeviceSynchronize());
    check(&s, k_lens, s.w.call.total_q > 300 ? 13 : 1, what);
    step_free(&s);
}

static void shapes(attn_rng *rng, bool quick)
{
    static const int groups[] = {1, 2, 4, 5, 8, 16, 20, 32};
    static const int dims[] = {128, 64, 96, 256, 72}, pages[] = {1, 16, 64, 7};
    const int32_t lens[] = {1, 2, 15, 16, 17, 31, 33, 64, 129, 257, 700, 1500};
    const int32_t q_lens[] = {1, 2, 3, 16, 17, 30, 1, 64, 65, 100, 130, 7};
    int page = 0;
    for (int d = 0; d < 5; d++) {
        for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
            if (quick && (g + d) % 4 != 0) continue;
            variant o = PLAIN;
            o.deterministic = g % 3 == 2;
            o.sinks = g % 2 == 1;
            const msgl_dtype dtype = g % 2 ? MSGL_F16 : MSGL_BF16;
            const int from = quick ? 5 : 0, n = quick ? 4 : 12;
            answers(rng, dtype, n, lens + from, groups[g] * 2, 2, dims[d], pages[page % 4], &o,
                    "answers");
            chunks(rng, dtype, n, q_lens + from, lens + from, groups[g] * 2, 2, dims[d],
                   pages[page % 4], &o, "chunks");
            page++;
        }
    }
}

static void masks(attn_rng *rng, bool quick)
{
    static const int windows[] = {0, 1, 31, 100, 511, 4096}, groups[] = {1, 4, 6};
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        if (quick && i % 3 != 1) continue;
        for (int g = 0; g < 3; g++) {
            int32_t lens[5], q_lens[5];
            for (int k = 0; k < 5; k++) {
                lens[k] = attn_range(rng, 1, quick ? 300 : 2500);
                q_lens[k] = attn_range(rng, 1, lens[k] < 150 ? lens[k] : 150);
            }
            variant o = PLAIN;
            o.window = windows[i];
            o.softcap = i % 2 ? 0.f : 3.f;
            o.out_scale = i % 3 ? 1.f : 0.5f;
            o.sinks = g == 1;
            answers(rng, MSGL_BF16, 5, lens, 2 * groups[g], 2, 128, 16, &o, "window");
            chunks(rng, MSGL_BF16, 5, q_lens, lens, 2 * groups[g], 2, 128, 16, &o, "window");
        }
    }
}

// Drafts: up to 64 new tokens of a request that form trees, by triton's kernel, fa's with keys
// whole and split, and the reference.
static void trees(attn_rng *rng, bool quick)
{
    static const int windows[] = {-1, 2, 40, 300};
    for (int i = 0; i < (quick ? 2 : 8); i++) {
        int32_t lens[5], q_lens[5];
        for (int k = 0; k < 5; k++) {
            q_lens[k] = attn_range(rng, 1, 64);
            lens[k] = q_lens[k] + attn_range(rng, 0, i % 3 ? 1500 : 20);
        }
        variant o = PLAIN;
        o.tree = true;
        o.window = windows[i % 4];
        o.sinks = i % 3 == 0;
        const msgl_dtype dtype = i % 2 ? MSGL_F16 : MSGL_BF16;
        const int32_t heads = i % 4 == 3 ? 10 : 8; // of 2 KV heads
        step s;
        step_make(&s, rng, dtype, 5, q_lens, lens, heads, 2, i % 5 ? 128 : 64, 16, &o);
        s.lists.num_windows = 0;
        const size_t room = msgl__attn_tree_workspace(heads, 128);
        void *workspace = device_copy(NULL, room);
        CUDA_OK(cudaMemset(workspace, 0xff, room));
        for (int kernel = 0; kernel < 4; kernel++) {
            static const char *const names[] = {"trees", "trees by fa", "trees by fa, split",
                                                "trees by the reference"};
            s.call.attn.workspace = kernel == 2 ? workspace : NULL;
            step_poison(&s);
            CUDA_OK(msgl__cuda_triton_lists(&s.lists, 0));
            CUDA_OK(kernel == 0   ? msgl__cuda_triton_extend(&s.call, 0)
                    : kernel <= 2 ? msgl__cuda_attn_tree(&s.call.attn, s.call.tree, 0)
                                  : msgl__cuda_attn_reference_tree(&s.call.attn, s.call.tree, 0));
            CUDA_OK(cudaDeviceSynchronize());
            check(&s, lens, 3, names[kernel]);
        }
        cudaFree(workspace);
        step_free(&s);
    }
}

// A latent cache: answers if q_lens is NULL, else chunks.
static void latent(attn_rng *rng, int heads, int batch, const int32_t *q_lens, const int32_t *lens,
                   bool tree, bool deterministic)
{
    mla_world w;
    int32_t most = 1, longest = 1;
    for (int i = 0; i < batch; i++) {
        if (q_lens != NULL && q_lens[i] > most) most = q_lens[i];
        if (lens[i] > longest) longest = lens[i];
    }
    const mla_shape t = {heads, most, 1, false, 0, q_lens, false, tree};
    mla_world_make(&w, rng, &t, batch, lens);
    const msgl_mla_call *m = &w.call;
    const size_t rows = (size_t)batch * heads * MSGL_TRITON_MAX_SPLITS;
    msgl_triton_lists_call l = {};
    l.lists.kv_indptr = (int32_t *)device_copy(NULL, (batch + 1) * 4);
    l.lists.kv_indices = (int32_t *)device_copy(NULL, (size_t)batch * longest * 4);
    l.lists.num_kv_splits = (int32_t *)device_copy(NULL, batch * 4);
    l.lists.splits_stride = batch;
    l.batch = batch, l.num_q_heads = heads, l.num_kv_heads = 1;
    l.seqlens_k = m->seqlens_k, l.table = m->table, l.table_rows = m->table_rows;
    l.table_stride = m->table_stride, l.paging = m->paging, l.max_seqlen_k = longest;
    l.num_windows = q_lens == NULL, l.windows[0] = -1;
    l.deterministic = deterministic;
    msgl_triton_call c = {};
    msgl_cuda_attn_call *a = &c.attn;
    a->dtype = MSGL_BF16;
    a->num_q_heads = heads, a->num_kv_heads = 1;
    a->head_dim = MSGL_MLA_ROW, a->v_dim = MSGL_MLA_LATENT;
    a->q = m->q, a->ld_q = m->ld_q, a->out = m->out, a->ld_out = m->ld_out;
    a->k = a->v = m->kv;
    a->scale = m->scale, a->out_scale = 1, a->window = -1;
    a->batch = batch, a->seqlens_k = m->seqlens_k, a->cu_seqlens_q = m->cu_seqlens_q;
    a->total_q = m->total_q, a->max_seqlen_q = most, a->max_seqlen_k = longest;
    c.kv_indptr = l.lists.kv_indptr, c.kv_indices = l.lists.kv_indices;
    c.num_kv_splits = l.lists.num_kv_splits;
    c.attn_logits = (float *)device_copy(NULL, rows * MSGL_MLA_LATENT * 4);
    c.attn_lse = (float *)device_copy(NULL, rows * 4);
    c.tree = m->tree;
    CUDA_OK(cudaMemset(c.attn_logits, 0xff, rows * MSGL_MLA_LATENT * 4));
    mla_poison(&w);
    CUDA_OK(msgl__cuda_triton_lists(&l, 0));
    CUDA_OK(q_lens == NULL ? msgl__cuda_triton_decode(&c, 0) : msgl__cuda_triton_extend(&c, 0));
    CUDA_OK(cudaDeviceSynchronize());
    mla_fetch(&w);
    const double error = mla_compare(&w, lens, m->total_q * heads > 1500 ? 13 : 1).out;
    checks++;
    if (!(error <= worst)) worst = error;
    if (!(error <= TOLERANCE[MSGL_BF16])) {
        failures++;
        printf("FAIL latent: %d heads, batch %d%s%s: error %g\n", heads, batch,
               q_lens != NULL ? ", chunks" : "", tree ? ", tree" : "", error);
    }
    cudaFree(l.lists.kv_indptr), cudaFree(l.lists.kv_indices), cudaFree(l.lists.num_kv_splits);
    cudaFree(c.attn_logits), cudaFree(c.attn_lse);
    mla_world_free(&w);
}

// Answers whose V is all of K, with sinks, over lists of places: pages of one.
static void keys_as_values(attn_rng *rng, msgl_dtype dtype, int heads, int dim, bool deterministic)
{
    const int32_t lens[] = {1, 31, 33, 640, 200}, ones[] = {1, 1, 1, 1, 1};
    const variant o = {0, 1, -1, deterministic, true, false};
    step s;
    step_make(&s, rng, dtype, 5, ones, lens, heads, 1, dim, 1, &o);
    s.call.attn.v = s.call.attn.k;
    memcpy(s.w.v, s.w.k, s.w.kv_bytes);
    step_poison(&s);
    CUDA_OK(msgl__cuda_triton_lists(&s.lists, 0));
    CUDA_OK(msgl__cuda_triton_decode(&s.call, 0));
    CUDA_OK(cudaDeviceSynchronize());
    check(&s, lens, 1, "keys as values");
    step_free(&s);
}

static void latents(attn_rng *rng, bool quick)
{
    keys_as_values(rng, MSGL_BF16, 64, 512, false);
    keys_as_values(rng, MSGL_F16, 20, 512, true);
    keys_as_values(rng, MSGL_BF16, 4, 16, false);
    keys_as_values(rng, MSGL_F16, 8, 104, false);

    static const int heads[] = {16, 128, 1, 20, 33, 64};
    const int32_t lens[] = {1, 31, 33, 64, 300, 1500, 700}, q_lens[] = {1, 30, 7, 64, 3, 70, 2};
    for (int i = 0; i < (quick ? 2 : 6); i++) {
        const int n = quick ? 5 : 7;
        latent(rng, heads[i], n, NULL, lens, false, i % 2 != 0);
        latent(rng, heads[i], n, q_lens, lens, false, false);
        latent(rng, heads[i], 5, q_lens, lens, true, false);
    }
}

// A captured step follows the lengths in device memory.
static void graph(attn_rng *rng, int group)
{
    int32_t lens[7], ones[7];
    for (int i = 0; i < 7; i++) {
        lens[i] = 2600 - 100 * i;
        ones[i] = 1;
    }
    step s;
    step_make(&s, rng, MSGL_BF16, 7, ones, lens, 4 * group, 4, 128, 16, &PLAIN);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    const cudaGraphExec_t exec = cuda_capture(stream, [&] {
        CUDA_OK(msgl__cuda_triton_lists(&s.lists, stream));
        CUDA_OK(msgl__cuda_triton_decode(&s.call, stream));
    });
    for (int round = 0; round < 6; round++) {
        int32_t now[7];
        for (int i = 0; i < 7; i++) now[i] = round == 0 ? 1 : attn_range(rng, 1, lens[i]);
        device_write(s.w.lens_dev, now, sizeof now);
        step_poison(&s);
        CUDA_OK(cudaGraphLaunch(exec, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        check_lists(&s, now);
        check(&s, now, 1, "graph");
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaStreamDestroy(stream));
    step_free(&s);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv, 1);
    const bool quick = o.quick;
    attn_rng rng = {o.seed};
    shapes(&rng, quick);
    masks(&rng, quick);
    trees(&rng, quick);
    latents(&rng, quick);
    if (!quick) {
        int32_t many[300]; // more requests than threads in a block
        for (int i = 0; i < 300; i++) many[i] = i % 3 ? 1 : attn_range(&rng, 1, 60);
        answers(&rng, MSGL_BF16, 300, many, 4, 2, 64, 1, &PLAIN, "many");
    }
    graph(&rng, 1);
    graph(&rng, 4);
    printf("triton: %d checks, worst err %.2e%s\n", checks, worst, failures ? ", FAILED" : "");
    return failures ? 1 : 0;
}
