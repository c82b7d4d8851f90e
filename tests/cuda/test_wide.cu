// SPDX-License-Identifier: Apache-2.0
//
// The kernel of wide heads and of V narrower than K, and the reference kernel on the same, against
// exact attention: answers, chunks and trees, whole and split, causal and both ways. And both ways
// by the prefill kernel of all GPUs.
#include "tests/cuda/attn_world.cuh"
#include "tests/cuda/family.cuh"

#include "cuda/attn/prefill_sm80.h"
#include "cuda/attn/reference.h"
#include "cuda/attn/wide_sm80.h"

// |v| < 1. The reference kernel rounds its output only, the others probabilities too.
static const double TOLERANCE[2][MSGL_DTYPE_COUNT] = {{3e-6, 6e-4, 5e-3, 5e-3},
                                                      {0, 1.5e-3, 1e-2, 5e-3}};
static const double LSE_TOLERANCE[2] = {3e-5, 3e-4};

static family f = {"wide", 0, 0, 0};

enum kernel { REFERENCE, PREFILL, WIDE, WIDE_WHOLE, WIDE_FIXED };
static const char *const NAMES[] = {"reference", "prefill", "wide", "wide, keys whole",
                                    "wide, deterministic"};

// What a step has; answers where q_lens is NULL.
typedef struct step_case {
    msgl_dtype dtype; // of the pool
    int batch;
    const int32_t *q_lens, *k_lens;
    int q_heads, kv_heads, dim, v_dim, page, window;
    float softcap;
    bool sinks, tree, both_ways;
} step_case;

static bool has(const step_case *t, kernel k)
{
    switch (k) {
    case REFERENCE: return true;
    case PREFILL:
        return !t->tree && t->dim == t->v_dim && msgl__fa_prefill_sm80_fits(t->dtype, t->dim);
    default: return msgl__fa_wide_fits(t->dtype, t->dim, t->v_dim);
    }
}

static int run(kernel k, msgl_cuda_attn_call *c, const uint64_t *tree, bool answers, void *room)
{
    c->deterministic = k == WIDE_FIXED;
    c->workspace = k == WIDE_WHOLE ? NULL : room;
    if (k == PREFILL) return msgl__cuda_fa_prefill_sm80(c, 0);
    return k == REFERENCE ? msgl__cuda_attn_reference_tree(c, tree, 0)
                          : msgl__cuda_fa_wide(c, answers, tree, 0);
}

static void one(attn_rng *rng, const step_case *t)
{
    int32_t ones[64];
    for (int i = 0; i < 64; i++) ones[i] = 1;
    const int32_t *q_lens = t->q_lens != NULL ? t->q_lens : ones;
    attn_world w;
    attn_world_make_apart(&w, rng, t->dtype, t->batch, q_lens, t->k_lens, t->q_heads, t->kv_heads,
                          t->dim, t->v_dim, t->page);
    w.call.window = t->window;
    w.call.softcap = t->softcap;
    w.call.out_scale = 0.75f;
    w.call.both_ways = t->both_ways;
    if (t->sinks) attn_sinks(&w, rng);
    uint64_t *tree = t->tree ? attn_trees(&w, rng) : NULL;
    const size_t tree_bytes = (size_t)w.call.total_q * sizeof *tree;
    uint64_t *tree_dev = t->tree ? (uint64_t *)device_copy(tree, tree_bytes) : NULL;
    // Of a deterministic step every answer has partials of its own.
    size_t room = msgl__fa_wide_workspace(t->q_heads, t->dim, t->v_dim, t->batch, true);
    const size_t plain = msgl__fa_wide_workspace(t->q_heads, t->dim, t->v_dim, t->batch, false);
    if (room < plain) room = plain;
    void *workspace = device_copy(NULL, room);
    for (int k = REFERENCE; k <= WIDE_FIXED; k++) {
        if (!has(t, (kernel)k)) continue;
        attn_poison(&w);
        CUDA_OK(cudaMemset(workspace, 0xff, room));
        CUDA_OK(run((kernel)k, &w.call, tree_dev, t->q_lens == NULL, workspace));
        CUDA_OK(cudaDeviceSynchronize());
        double e, l;
        attn_compare_in(&w, tree, t->k_lens, w.call.total_q * t->q_heads > 400 ? 7 : 1, &e, &l);
        char what[192];
        snprintf(what, sizeof what,
                 "%s: dtype %d heads %d/%d dims %d, %d page %d window %d cap %g%s%s%s%s", NAMES[k],
                 (int)t->dtype, t->q_heads, t->kv_heads, t->dim, t->v_dim, t->page, t->window,
                 (double)t->softcap, t->q_lens == NULL ? ", answers" : "",
                 t->sinks ? ", sinks" : "", t->tree ? ", trees" : "",
                 t->both_ways ? ", both ways" : "");
        expect_near(&f, e, 0, TOLERANCE[k != REFERENCE][t->dtype], what);
        expect_near(&f, l, 0, LSE_TOLERANCE[k != REFERENCE], what);
    }
    cudaFree(workspace), cudaFree(tree_dev);
    free(tree);
    attn_world_free(&w);
}

static const struct {
    int dim, v_dim;
} HEADS[] = {{512, 512}, {192, 128}, {24, 16}, {512, 256}, {320, 320}, {128, 64}};
static const int GROUPS[] = {8, 1, 16, 5, 4};
static const int PAGES[] = {1, 16, 64, 7};
static const int WINDOWS[] = {-1, 127, 0, -1, 40};

static step_case draw(attn_rng *rng, int i)
{
    step_case t = {};
    t.dtype = (msgl_dtype)(i % 4);
    t.dim = HEADS[(i + i / 4) % 6].dim;
    t.v_dim = HEADS[(i + i / 4) % 6].v_dim;
    if (t.dtype == MSGL_E4M3 && t.dim == 24) t.dim = 48; // of 24 the reference kernel's alone
    t.q_heads = GROUPS[i % 5] * 2;
    t.kv_heads = 2;
    t.page = PAGES[i / 2 % 4];
    t.window = WINDOWS[i / 3 % 5];
    t.softcap = i % 3 == 1 ? 5.f : 0.f;
    t.sinks = attn_range(rng, 0, 1) == 1;
    return t;
}

static void chunks(attn_rng *rng, int i, bool quick)
{
    step_case t = draw(rng, i);
    int32_t q[4], k[4];
    t.batch = quick ? 3 : 4;
    t.tree = i % 5 == 3;
    const int most = t.tree ? 64 : quick ? 40 : 200, prefix = quick ? 100 : 700;
    for (int r = 0; r < t.batch; r++) {
        q[r] = attn_range(rng, 1, r == 0 ? 3 : most);
        k[r] = q[r] + (r % 2 ? 0 : attn_range(rng, 0, prefix));
    }
    t.q_lens = q;
    t.k_lens = k;
    one(rng, &t);
}

static void answers(attn_rng *rng, int i, bool quick)
{
    step_case t = draw(rng, i);
    int32_t k[6] = {1, 31, 32, 33};
    t.batch = quick ? 5 : 6;
    for (int r = 4; r < t.batch; r++) k[r] = attn_range(rng, 100, quick ? 400 : 3000);
    t.k_lens = k;
    one(rng, &t);
}

// Encoders: a text is a chunk with nothing before it.
static void texts(attn_rng *rng, int i, bool quick)
{
    static const int dims[] = {64, 32, 128, 256};
    step_case t = draw(rng, i);
    if (i % 2 == 0) t.dim = t.v_dim = dims[i / 2 % 4];
    int32_t q[4];
    t.batch = 4;
    t.both_ways = true;
    for (int r = 0; r < t.batch; r++) q[r] = r == 0 ? 1 : attn_range(rng, 1, quick ? 90 : 300);
    t.q_lens = t.k_lens = q;
    one(rng, &t);
}

// A captured step follows the lengths in device memory.
static void graph(attn_rng *rng, int dim, int v_dim)
{
    int32_t lens[5], ones[5] = {1, 1, 1, 1, 1};
    for (int i = 0; i < 5; i++) lens[i] = 900 - 100 * i;
    attn_world w;
    attn_world_make_apart(&w, rng, MSGL_BF16, 5, ones, lens, 16, 2, dim, v_dim, 16);
    const size_t room = msgl__fa_wide_workspace(16, dim, v_dim, 5, false);
    w.call.workspace = device_copy(NULL, room);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    CUDA_OK(msgl__cuda_fa_wide(&w.call, true, NULL, stream)); // loaded before it is captured
    const cudaGraphExec_t exec =
        cuda_capture(stream, [&] { CUDA_OK(msgl__cuda_fa_wide(&w.call, true, NULL, stream)); });
    for (int round = 0; round < 4; round++) {
        int32_t now[5];
        for (int i = 0; i < 5; i++) now[i] = round == 0 ? 1 : attn_range(rng, 1, lens[i]);
        device_write(w.lens_dev, now, sizeof now);
        attn_poison(&w);
        CUDA_OK(cudaMemset(w.call.workspace, 0xff, room));
        CUDA_OK(cudaDeviceSynchronize());
        CUDA_OK(cudaGraphLaunch(exec, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        double e, l;
        attn_compare(&w, now, 1, &e, &l);
        expect_near(&f, e, 0, TOLERANCE[1][MSGL_BF16], "graph");
        expect_near(&f, l, 0, LSE_TOLERANCE[1], "graph, LSE");
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaStreamDestroy(stream));
    cudaFree(w.call.workspace);
    attn_world_free(&w);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv, 1);
    attn_rng rng = {o.seed};
    for (int i = 0; i < (o.quick ? 12 : 120); i++) {
        chunks(&rng, i, o.quick);
        answers(&rng, i, o.quick);
        if (i % 2 == 0) texts(&rng, i / 2, o.quick);
    }
    graph(&rng, 512, 512);
    graph(&rng, 192, 128);
    return family_end(&f);
}
