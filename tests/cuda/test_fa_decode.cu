// SPDX-License-Identifier: Apache-2.0
//
// The decode kernel of fa against exact attention.
#include "tests/cuda/attn_world.cuh"

#include "cuda/attn/decode.h"

static const double TOLERANCE[MSGL_DTYPE_COUNT] = {0, 1.5e-3, 1e-2, 5e-3}; // |v| < 1
static const double LSE_TOLERANCE = 2e-4;                                  // scores are f32

static int failures, checks;
static bool clusters_of_two; // racecheck takes seconds for larger ones
static double worst;

static void *workspace(const msgl_cuda_attn_call *c)
{
    const size_t bytes = msgl__fa_decode_workspace(c->num_q_heads, c->num_kv_heads, c->head_dim,
                                                   c->batch, c->deterministic);
    void *p;
    CUDA_OK(cudaMalloc(&p, bytes));
    CUDA_OK(cudaMemset(p, 0, bytes));
    return p;
}

typedef struct options {
    float softcap, out_scale;
    int32_t window;
    bool deterministic;
    int ctas, min_units; // 0: the launcher's choice
    bool many;           // the kernel for many requests, also for few
    bool sinks;
} options;

static void launch(const msgl_cuda_attn_call *c, const options *o, cudaStream_t stream)
{
    const int items = c->batch * c->num_kv_heads;
    const int ctas = clusters_of_two && items <= 66 ? 2 * items : 132;
    const msgl_fa_decode_tune t = {o->min_units ? o->min_units : 21, o->ctas ? o->ctas : ctas};
    CUDA_OK(msgl__cuda_fa_decode_tuned(c, &t, stream));
}

static void set(attn_world *w, const options *o)
{
    w->call.softcap = o->softcap;
    w->call.out_scale = o->out_scale;
    w->call.window = o->window;
    w->call.deterministic = o->deterministic;
    if (o->many) w->call.max_seqlen_k = MSGL_FA_FEW_LEN + 1; // as in a graph for long requests
    w->call.workspace = workspace(&w->call);
}

static void check(attn_world *w, const int32_t *lens, const char *what)
{
    double e, l;
    attn_compare(w, lens, 1, &e, &l);
    checks++;
    if (e > worst || e != e) worst = e;
    const double tolerance = TOLERANCE[w->call.e4m3 ? MSGL_E4M3 : w->call.dtype];
    if (!(e <= tolerance) || (w->call.lse != NULL && !(l <= LSE_TOLERANCE))) {
        failures++;
        printf("FAIL %s: dtype %d%s heads %d/%d dim %d page %d batch %d window %d%s: error %g, "
               "lse %g\n",
               what, (int)w->call.dtype, w->call.e4m3 ? ", e4m3" : "", w->call.num_q_heads,
               w->call.num_kv_heads, w->call.head_dim, w->call.page_size, w->call.batch,
               w->call.window, w->sinks != NULL ? " sinks" : "", e, l);
    }
}

static void one(attn_rng *rng, msgl_dtype dtype, int batch, const int32_t *lens, int q_heads,
                int kv_heads, int dim, int page, const options *o, const char *what)
{
    int32_t ones[512];
    for (int i = 0; i < batch; i++) ones[i] = 1;
    attn_world w;
    attn_world_make(&w, rng, dtype, batch, ones, lens, q_heads, kv_heads, dim, page);
    set(&w, o);
    if (o->sinks) attn_sinks(&w, rng);
    void *outs[2]; // the second launch finds the counters zero again
    for (int repeat = 0; repeat < 2; repeat++) {
        attn_poison(&w);
        launch(&w.call, o, 0);
        CUDA_OK(cudaDeviceSynchronize());
        outs[repeat] = malloc(w.out_bytes);
        CUDA_OK(cudaMemcpy(outs[repeat], w.out_dev, w.out_bytes, cudaMemcpyDeviceToHost));
    }
    check(&w, lens, what);
    if (memcmp(outs[0], outs[1], w.out_bytes) != 0) {
        failures++;
        printf("FAIL %s: two launches differ\n", what);
    }
    free(outs[0]), free(outs[1]);
    CUDA_OK(cudaFree(w.call.workspace));
    attn_world_free(&w);
}

static const options PLAIN = {0, 1, -1, false, 0, 0, false, false};

static void shapes(attn_rng *rng, bool quick)
{
    static const int groups[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 20, 32};
    static const int dims[] = {128, 64, 96, 256};
    static const int pages[] = {1, 16, 64, 128};
    const int32_t lens[] = {1, 2, 15, 16, 17, 33, 127, 128, 129, 700, 1, 1500};
    int page = 0;
    for (int d = 0; d < 4; d++) {
        for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
            if (quick && g % 4 != 1) continue;
            for (int t = 0; t < 5; t++) {
                options o = PLAIN;
                o.min_units = attn_range(rng, 1, 40);
                o.many = t >= 2;
                one(rng,
                    t == 4  ? MSGL_E4M3
                    : t % 2 ? MSGL_F16
                            : MSGL_BF16,
                    quick ? 6 : 12, lens + (quick ? 4 : 0), groups[g] * 2, 2, dims[d],
                    pages[page++ % 4], &o, "shape");
            }
        }
    }
}

static void masks(attn_rng *rng, bool quick)
{
    static const int windows[] = {0, 1, 15, 16, 100, 511, 4096};
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        if (quick && i % 3 != 1) continue;
        for (int t = 0; t < 3; t++) {
            int32_t lens[5];
            for (int k = 0; k < 5; k++) lens[k] = attn_range(rng, 1, quick ? 300 : 2500);
            options o = PLAIN;
            o.window = windows[i];
            o.softcap = i % 2 ? 0.f : 3.f;
            o.out_scale = i % 3 ? 1.f : 0.5f;
            o.deterministic = t == 1;
            o.many = t == 2;
            o.sinks = i % 2;
            one(rng, MSGL_BF16, 5, lens, 8, 2, 128, 16, &o, "window");
            one(rng, MSGL_E4M3, 5, lens, 8, 2, 128, 16, &o, "window");
        }
    }
}

// Long requests, all grids: splits of every kind.
static void splits(attn_rng *rng, bool quick)
{
    for (int i = 0; i < (quick ? 3 : 24); i++) {
        const int batch = attn_range(rng, 1, 6);
        int32_t lens[6];
        for (int k = 0; k < batch; k++) lens[k] = attn_range(rng, 1, quick ? 1200 : 6000);
        options o = PLAIN;
        o.ctas = attn_range(rng, 1, 200);
        o.min_units = attn_range(rng, 1, 30);
        o.deterministic = i % 3 == 2;
        o.sinks = i % 2;
        one(rng, i / 2 % 2 ? MSGL_E4M3 : MSGL_BF16, batch, lens, 16, 4, 128, 1, &o, "split");
    }
}

// Few requests, for which there is a kernel of its own: one, long and short ones, one long one.
static void few(attn_rng *rng, bool quick)
{
    static const int dims[] = {128, 64, 96}, groups[] = {2, 8, 5};
    const int32_t lens[][8] = {{700, 1, 2, 33, 16, 200, 384, 17},
                               {2100, 2090, 2048, 2101, 2070, 2099, 2100, 2100},
                               {2100, 1, 17, 300, 16, 48, 5, 129}};
    for (int i = 0; i < (quick ? 3 : 9); i++) {
        const int dim = dims[i % 3], group = groups[(i + i / 3) % 3];
        const msgl_dtype dtype = i % 2 ? MSGL_F16 : MSGL_BF16;
        for (int k = 0; k < 3; k++) {
            if (quick && k == 1) continue;
            options o = PLAIN;
            o.sinks = k == 2;
            one(rng, dtype, 8, lens[k], 8 * group, 8, dim, i % 2 ? 16 : 1, &o, "few");
        }
        if (quick && i > 0) continue;
        options o = PLAIN;
        o.ctas = 132;
        for (int many = 0; many < 2; many++) {
            o.many = many;
            one(rng, dtype, 1, lens[1], 8 * group, 8, dim, 1, &o, "one");
        }
    }
}

// A request's bits under `deterministic`, alone and in batches.
static void same_bits(attn_rng *rng, bool quick)
{
    const int32_t first = quick ? 1100 : 9000;
    int32_t lens[20], ones[20];
    attn_rng start = *rng;
    uint16_t *alone = NULL;
    for (int batch = 1; batch <= 20; batch += 19) {
        *rng = start;
        lens[0] = first;
        for (int i = 0; i < batch; i++) {
            ones[i] = 1;
            if (i > 0) lens[i] = (i * 397) % 2000 + 1;
        }
        attn_world w;
        attn_world_make(&w, rng, MSGL_BF16, batch, ones, lens, 8, 2, 128, 1);
        options o = PLAIN;
        o.deterministic = true;
        set(&w, &o);
        // The same request in both worlds, wherever its slots are.
        attn_rng own = {42};
        const size_t slot = 2 * 128;
        for (int p = 0; p < first; p++) {
            const size_t s = (size_t)w.slots[(size_t)w.rows[0] * w.call.table_stride + p];
            for (size_t e = 0; e < slot; e++) {
                attn_put(MSGL_BF16, w.k, s * slot + e, attn_uniform(&own));
                attn_put(MSGL_BF16, w.v, s * slot + e, attn_uniform(&own));
            }
        }
        for (size_t e = 0; e < 8 * 128; e++) attn_put(MSGL_BF16, w.q, e, attn_uniform(&own));
        device_write(w.k_dev, w.k, w.kv_bytes);
        device_write(w.v_dev, w.v, w.kv_bytes);
        device_write(w.q_dev, w.q, w.q_bytes);
        attn_poison(&w);
        CUDA_OK(msgl__cuda_fa_decode(&w.call, 0));
        CUDA_OK(cudaDeviceSynchronize());
        check(&w, lens, "deterministic");
        uint16_t *out = (uint16_t *)malloc(8 * 128 * 2);
        CUDA_OK(cudaMemcpy(out, w.out_dev, 8 * 128 * 2, cudaMemcpyDeviceToHost));
        if (alone == NULL) {
            alone = out;
        } else {
            checks++;
            if (memcmp(alone, out, 8 * 128 * 2) != 0) {
                failures++;
                printf("FAIL same bits: a request's result depends on the batch\n");
            }
            free(out);
        }
        CUDA_OK(cudaFree(w.call.workspace));
        attn_world_free(&w);
    }
    free(alone);
}

// A captured launch follows the lengths in device memory.
static void graph(attn_rng *rng, msgl_dtype dtype, bool many)
{
    int32_t lens[7], ones[7];
    for (int i = 0; i < 7; i++) {
        lens[i] = 2600 - 100 * i;
        ones[i] = 1;
    }
    attn_world w;
    attn_world_make(&w, rng, dtype, 7, ones, lens, 16, 8, 128, 16);
    options o = PLAIN;
    o.many = many;
    set(&w, &o);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    const cudaGraphExec_t exec =
        cuda_capture(stream, [&] { CUDA_OK(msgl__cuda_fa_decode(&w.call, stream)); });
    for (int round = 0; round < 6; round++) {
        int32_t now[7];
        for (int i = 0; i < 7; i++) now[i] = round == 0 ? 1 : attn_range(rng, 1, lens[i]);
        device_write(w.lens_dev, now, sizeof now);
        attn_poison(&w);
        CUDA_OK(cudaGraphLaunch(exec, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        check(&w, now, "graph");
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaStreamDestroy(stream));
    CUDA_OK(cudaFree(w.call.workspace));
    attn_world_free(&w);
}

int main(int argc, char **argv)
{
    bool quick = false;
    attn_rng rng = {1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) quick = clusters_of_two = true;
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            rng.state = strtoull(argv[++i], NULL, 10);
        }
    }
    shapes(&rng, quick);
    masks(&rng, quick);
    splits(&rng, quick);
    few(&rng, quick);
    same_bits(&rng, quick);
    if (!quick) {
        int32_t many[300]; // more requests than threads in a CTA
        for (int i = 0; i < 300; i++) many[i] = i % 3 ? 1 : attn_range(&rng, 1, 60);
        one(&rng, MSGL_BF16, 300, many, 4, 2, 64, 1, &PLAIN, "many");
    }
    graph(&rng, MSGL_BF16, false);
    graph(&rng, MSGL_BF16, true);
    graph(&rng, MSGL_E4M3, true);
    printf("fa decode: %d checks, worst err %.2e%s\n", checks, worst, failures ? ", FAILED" : "");
    return failures ? 1 : 0;
}
