// SPDX-License-Identifier: Apache-2.0
//
// The MLA kernel against exact attention.
#include "tests/cuda/family.cuh"
#include "tests/cuda/mla_world.cuh"

#include <time.h>

static const double TOLERANCE = 1e-2;       // |v| < 1, bf16
static const double LSE_TOLERANCE = 5e-4;   // scores are f32
static const double NOISE_TOLERANCE = 1e-5; // squares of bf16's errors to those of the values

static int failures, checks;
static double worst, worst_noise, worst_lse;

// Times of day at which each kind of test was through.
static void through(const char *what)
{
    static double last = 0;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const double now = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    printf("%-8s %4d checks, %d failures, error %.2e, noise %.2e, lse %.2e, %.1f s\n", what, checks,
           failures, worst, worst_noise, worst_lse, last > 0 ? now - last : 0.);
    fflush(stdout);
    last = now;
}

static void plan(const mla_world *w, const msgl_mla_tune *tune, cudaStream_t stream)
{
    CUDA_OK(tune ? msgl__cuda_mla_plan_tuned(&w->call, tune, stream)
                 : msgl__cuda_mla_plan(&w->call, stream));
}

static void check(mla_world *w, const int32_t *lens, const char *what)
{
    double work = 0; // of the host's oracle; about 1e9 a second
    for (int i = 0; i < w->batch; i++)
        work += (double)lens[i] * (w->cu_q[i + 1] - w->cu_q[i]) * w->call.num_heads * 1088;
    const int every = work > 4e7 ? (int)(work / 4e7) * 2 + 1 : 1;
    mla_fetch(w);
    const mla_error e = mla_compare(w, lens, every);
    const double noise = e.all > 0 ? e.squares / e.all : 0;
    checks++;
    if (!(e.out <= worst)) worst = e.out;
    if (!(e.lse <= worst_lse)) worst_lse = e.lse;
    if (!(noise <= worst_noise)) worst_noise = noise;
    if (!(e.out <= TOLERANCE) || !(e.lse <= LSE_TOLERANCE) || !(noise <= NOISE_TOLERANCE)) {
        failures++;
        printf(
            "FAIL %s%s: heads %d q_len %d page %d batch %d length %d: error %g, noise %g, lse %g\n",
            what, w->call.e4m3 ? " e4m3" : "", w->call.num_heads, w->call.q_len, w->call.page_size,
            w->batch, (int)lens[0], e.out, noise, e.lse);
        if (failures > 20) exit(1);
    }
}

static void one(attn_rng *rng, const mla_shape *t, int batch, const int32_t *lens,
                const msgl_mla_tune *tune, const char *what)
{
    mla_world w;
    mla_world_make(&w, rng, t, batch, lens);
    plan(&w, tune, 0);
    uint16_t *first = (uint16_t *)malloc(w.out_bytes);
    for (int repeat = 0; repeat < 2; repeat++) { // the second one finds the counters zero again
        mla_poison(&w);
        CUDA_OK(msgl__cuda_mla(&w.call, 0));
        CUDA_OK(cudaDeviceSynchronize());
        check(&w, lens, what);
        if (repeat == 0) {
            memcpy(first, w.out, w.out_bytes);
        } else if (memcmp(first, w.out, w.out_bytes) != 0) {
            failures++;
            printf("FAIL %s: two launches differ\n", what);
        }
    }
    free(first);
    mla_world_free(&w);
}

static const int32_t EDGES[] = {65, 0, 1, 64, 63, 130, 2, 128, 127, 129, 300, 192, 5, 700};

// Lengths of requests that have that many query tokens.
static void at_least(int32_t *to, const int32_t *from, int n, int q_len)
{
    for (int i = 0; i < n; i++) to[i] = from[i] > 0 && from[i] < q_len ? q_len : from[i];
}

static void shapes(attn_rng *rng, bool e4m3, bool quick)
{
    static const int heads[] = {1, 16, 20, 128}, pages[] = {1, 16, 64, 128};
    int turn = 0;
    for (int h = 0; h < 4; h++) {
        for (int g = 0; g < 4; g++, turn++) {
            if (quick && turn % 5 != 0) continue;
            const mla_shape t = {heads[h], 1, pages[g], false, g % 2 ? 8 : 0, NULL, e4m3};
            one(rng, &t, 1, EDGES, NULL, "one");
            one(rng, &t, 14, EDGES, NULL, "shape");
            const mla_shape verify = {heads[h], 2 + turn % 3, pages[g], turn % 2 == 0,
                                      16,       NULL,         e4m3};
            int32_t lens[14];
            at_least(lens, EDGES, 14, verify.q_len);
            one(rng, &verify, 14, lens, NULL, "verify");
        }
    }
    for (int page = 2; page <= 32; page *= 2) {
        const mla_shape t = {e4m3 ? 30 : 40, 1, page, page % 4 == 0, 0, NULL, e4m3};
        one(rng, &t, quick ? 4 : 14, EDGES, NULL, "page");
        const mla_shape few = {14, 1, page, page % 4 == 0, 0, NULL, e4m3};
        one(rng, &few, quick ? 4 : 14, EDGES, NULL, "page, few heads");
    }
    const mla_shape most = {128, 8, 64, false, 0, NULL, e4m3};
    const int32_t lens[] = {8, 200, 71};
    one(rng, &most, quick ? 1 : 3, lens, NULL, "most");
}

// Long requests in few and many parts.
static void splits(attn_rng *rng, bool e4m3, bool quick)
{
    static const int heads[] = {16, 128, 8, 64};
    for (int i = 0; i < (quick ? 3 : 16); i++) {
        const int batch = attn_range(rng, 1, 6);
        int32_t lens[6];
        for (int k = 0; k < batch; k++) lens[k] = attn_range(rng, 1, quick ? 1200 : 6000);
        const mla_shape t = {heads[i % 4], i % 5 == 4 ? 2 : 1, i % 3 ? 64 : 1, i % 2 == 0, 0, NULL,
                             e4m3};
        const msgl_mla_tune tune = {attn_range(rng, 1, 5), attn_range(rng, 1, 9),
                                    attn_range(rng, 1, 4), attn_range(rng, 0, 12)};
        at_least(lens, lens, batch, t.q_len);
        one(rng, &t, batch, lens, &tune, "split");
    }
}

// Answers of at most 16 query rows each, in every size of cluster: keys that are no whole eights,
// one cluster's and several ones'; trees.
static void few(attn_rng *rng, bool quick)
{
    static const int heads[] = {16, 8, 5, 1, 16, 3}, q_lens[] = {1, 2, 3, 8, 1, 5};
    static const int pages[] = {64, 1, 16, 128, 32, 4}, edges[] = {0, 1, 7, 8, 9, 512, 513, 1025};
    static const int batches[] = {1, 3, 8, 20, 50, 70, 150},
                     most[] = {5000, 5000, 3000, 900, 300, 200, 90};
    for (int i = 0; i < (quick ? 7 : 49); i++) {
        const mla_shape t = {heads[i % 6], q_lens[i % 6], pages[(i + i / 6) % 6],
                             i % 4 == 0,   i % 3 * 8,     NULL,
                             false,        i % 5 == 1};
        const int batch = batches[i % 7];
        int32_t lens[150];
        for (int k = 0; k < batch; k++) {
            const bool edge = attn_range(rng, 0, 1) == 0;
            lens[k] = edge ? edges[attn_range(rng, 0, 7)] : attn_range(rng, 1, most[i % 7]);
            if (t.tree && lens[k] == 0) lens[k] = t.q_len;
        }
        at_least(lens, lens, batch, t.q_len);
        const msgl_mla_tune tune = {attn_range(rng, 0, 4), attn_range(rng, 1, 9),
                                    attn_range(rng, 1, 4), attn_range(rng, 0, 16)};
        one(rng, &t, batch, lens, i % 2 ? &tune : NULL, "few");
    }
}

// Chunks of any length behind what a request has already, whole prompts and single tokens, with and
// without gaps between tokens.
static void ragged(attn_rng *rng, bool e4m3, bool quick)
{
    static const int heads[] = {16, 128, 20, 1, 64, 7}, pages[] = {64, 1, 16, 128, 32, 4};
    for (int i = 0; i < (quick ? 4 : 18); i++) {
        int32_t lens[9], q_lens[9], most = 1;
        const int batch = attn_range(rng, 1, 9), scale = heads[i % 6] > 20 ? 40 : 300;
        for (int k = 0; k < batch; k++) {
            const bool single = attn_range(rng, 0, 3) == 0, after = attn_range(rng, 0, 1) == 0;
            q_lens[k] = single ? 1 : attn_range(rng, 1, scale);
            lens[k] = q_lens[k] + (after ? attn_range(rng, 0, 900) : 0);
            if (q_lens[k] > most) most = q_lens[k];
        }
        mla_shape t = {heads[i % 6], most, pages[(i + i / 6) % 6], i % 4 == 0, i % 3 == 1 ? 16 : 0};
        t.q_lens = q_lens;
        t.e4m3 = e4m3;
        one(rng, &t, batch, lens, NULL, "ragged");
    }
}

// Drafts to be verified, in every way that rows arrive: pairs of tiles, boxes, rows.
static void trees(attn_rng *rng, bool e4m3, bool quick)
{
    static const int heads[] = {16, 128, 20, 64, 5}, pages[] = {64, 64, 1, 16, 128};
    for (int i = 0; i < (quick ? 3 : 15); i++) {
        int32_t lens[6], q_lens[6], most = 1;
        for (int k = 0; k < 6; k++) {
            q_lens[k] = attn_range(rng, 1, k == 0 ? 64 : 12);
            lens[k] = q_lens[k] + attn_range(rng, 0, k % 3 == 0 ? 3 : 700);
            if (q_lens[k] > most) most = q_lens[k];
        }
        mla_shape t = {heads[i % 5], most, pages[(i + i / 5) % 5], i % 4 == 0, 0, q_lens,
                       e4m3,         true};
        one(rng, &t, 6, lens, NULL, "tree");
        t.q_len = 1 + i % 8, t.q_lens = NULL;
        at_least(lens, lens, 6, t.q_len);
        one(rng, &t, 6, lens, NULL, "tree, not ragged");
    }
}

// The n rows from `at` on of request 0 of *w in every form that they may come in (pairs of tiles,
// tiles, an answer), compared with `want`.
static void forms(mla_world *w, int32_t at, int32_t n, const uint16_t *want, const msgl_mla_call *c)
{
    const int32_t to = at + n, cu[] = {0, n};
    device_write((void *)c->seqlens_k, &to, 4);
    device_write((void *)c->cu_seqlens_q, cu, 8);
    for (int form = 0; form < (n == 1 ? 3 : 2); form++) {
        w->call.batch = 1, w->call.total_q = n, w->call.q_len = n;
        w->call.q = (const uint16_t *)c->q + at * c->ld_q;
        w->call.page_size = form == 1 ? 8 : c->page_size;
        w->call.cu_seqlens_q = form == 2 ? NULL : c->cu_seqlens_q;
        mla_poison(w);
        plan(w, NULL, 0);
        CUDA_OK(msgl__cuda_mla(&w->call, 0));
        mla_fetch(w);
        checks++;
        if (memcmp(w->out, want, n * c->ld_out * 2) == 0) continue;
        failures++;
        printf("FAIL whole: heads %d, %d tokens at %d, form %d\n", c->num_heads, n, at, form);
    }
}

// The rows of a prompt in one chunk have, if deterministic, the bits that they have in other
// chunks, alone, as an answer, and with other pages.
static void whole(attn_rng *rng, int heads, bool e4m3)
{
    enum { LEN = 150 };
    static const int32_t q_lens[] = {LEN, 200, 70}, lens[] = {LEN, 333, 70};
    static const int32_t cuts[] = {97, 1, 8, 30, 14};
    mla_world w;
    const mla_shape t = {heads, 200, 64, false, 0, q_lens, e4m3};
    mla_world_make(&w, rng, &t, 3, lens);
    w.call.deterministic = true;
    mla_poison(&w);
    plan(&w, NULL, 0);
    CUDA_OK(msgl__cuda_mla(&w.call, 0));
    check(&w, lens, "whole");
    const msgl_mla_call c = w.call;
    uint16_t *want = (uint16_t *)malloc(LEN * c.ld_out * 2);
    memcpy(want, w.out, LEN * c.ld_out * 2);
    for (int at = 0, i = 0; at < LEN; at += cuts[i++])
        forms(&w, at, cuts[i] < LEN - at ? cuts[i] : LEN - at, want + at * c.ld_out, &c);
    w.call = c;
    free(want);
    mla_world_free(&w);
}

// A captured plan and launch follow the lengths in device memory.
static void graph(attn_rng *rng, int heads, int page, bool e4m3, int rounds)
{
    int32_t room[7];
    for (int i = 0; i < 7; i++) room[i] = 2600 - 100 * i;
    const mla_shape t = {heads, 1, page, false, 0, NULL, e4m3};
    mla_world w;
    mla_world_make(&w, rng, &t, 7, room);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    const cudaGraphExec_t exec = cuda_capture(stream, [&] {
        plan(&w, NULL, stream);
        for (int layer = 0; layer < 3; layer++) CUDA_OK(msgl__cuda_mla(&w.call, stream));
    });
    for (int round = 0; round < rounds; round++) {
        int32_t now[7];
        for (int i = 0; i < 7; i++) now[i] = round == 0 ? i % 2 : attn_range(rng, 0, room[i]);
        device_write((void *)w.call.seqlens_k, now, sizeof now);
        mla_poison(&w);
        CUDA_OK(cudaGraphLaunch(exec, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        check(&w, now, "graph");
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaStreamDestroy(stream));
    mla_world_free(&w);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv, 1);
    const bool quick = o.quick;
    attn_rng rng = {o.seed};
    through("start");
    for (int e4m3 = 0; e4m3 < 2; e4m3++) {
        shapes(&rng, e4m3, quick);
        through(e4m3 ? "shapes 8" : "shapes");
        splits(&rng, e4m3, quick);
        through(e4m3 ? "splits 8" : "splits");
        if (!e4m3) {
            few(&rng, quick);
            through("few");
        }
        ragged(&rng, e4m3, quick);
        through(e4m3 ? "ragged 8" : "ragged");
        trees(&rng, e4m3, quick);
        through(e4m3 ? "trees 8" : "trees");
        whole(&rng, 16, e4m3);
        whole(&rng, 20, e4m3);
        if (!quick) whole(&rng, 128, e4m3);
        through(e4m3 ? "whole 8" : "whole");
    }
    for (int e4m3 = 0; e4m3 < 2 && !quick; e4m3++) {
        int32_t many[700]; // more requests than threads of the planner, and than KV ranges
        for (int i = 0; i < 700; i++) many[i] = i % 3 ? i % 2 : attn_range(&rng, 1, 90);
        const mla_shape t = {4, 1, e4m3 ? 64 : 16, false, 0, NULL, e4m3 != 0};
        one(&rng, &t, 700, many, NULL, "many");
        through(e4m3 ? "many 8" : "many");
    }
    graph(&rng, 16, 1, false, quick ? 2 : 6);
    graph(&rng, 128, 64, false, quick ? 2 : 6);
    graph(&rng, 16, 64, true, quick ? 2 : 6);
    through("graph");
    printf("mla: %d checks, worst err %.2e%s\n", checks, worst, failures ? ", FAILED" : "");
    return failures ? 1 : 0;
}
