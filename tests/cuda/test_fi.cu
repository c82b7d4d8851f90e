// SPDX-License-Identifier: Apache-2.0
//
// FlashInfer's kernels through our plug-in against exact attention: shapes, masks, decode on both
// kinds of cores, captured graphs whose lengths change, plans written over poisoned memory, and
// results under `fixed` that do not depend on the batch.
#include "tests/cuda/fi_case.cuh"

static const double TOLERANCE[MSGL_DTYPE_COUNT] = {0, 2e-3, 1.2e-2}; // |v| < 1; f16, bf16
static const double LSE_TOLERANCE = 4e-3; // base 2, by approximate instructions

static const char *const KERNEL[] = {"CUDA cores", "tensor cores", "Hopper"};

static const msgl_fi_api *api;
static int failures, checks, capability;
static double worst;

// FlashInfer's LSE is base 2: compared after conversion.
static void check(attn_world *w, const int32_t *lens, int every, const char *what, int kernel)
{
    const msgl_cuda_attn_call *c = &w->call;
    const size_t n = (size_t)c->total_q * c->num_q_heads;
    float *lse = (float *)malloc(n * 4);
    CUDA_OK(cudaMemcpy(lse, c->lse, n * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++) lse[i] *= 0.6931471805599453f;
    device_write(c->lse, lse, n * 4);
    free(lse);
    double e, l;
    attn_compare(w, lens, every, &e, &l);
    checks++;
    if (!(e <= worst)) worst = e;
    if (!(e <= TOLERANCE[c->dtype]) || !(l <= LSE_TOLERANCE)) {
        failures++;
        printf("FAIL %s, %s: dtype %d heads %d/%d dim %d page %d batch %d window %d cap %g: "
               "error %g, lse %g\n",
               what, KERNEL[kernel], (int)c->dtype, c->num_q_heads, c->num_kv_heads, c->head_dim,
               c->page_size, c->batch, c->window, c->softcap, e, l);
    }
}

typedef struct options {
    int window;
    float softcap;
    bool fixed;
    int every;
} options;

static void one(attn_rng *rng, msgl_dtype dtype, int batch, const int32_t *q_lens,
                const int32_t *k_lens, int q_heads, int kv_heads, int dim, int page,
                msgl_fi_kernel kernel, const options *o, const char *what)
{
    attn_world w;
    fi_case f;
    attn_world_make(&w, rng, dtype, batch, q_lens, k_lens, q_heads, kv_heads, dim, page);
    w.call.window = o->window;
    w.call.softcap = o->softcap;
    if (dtype == MSGL_E4M3) w.call.out_scale = 0.75f;
    fi_case_make(&f, api, &w);
    if (api->has(&f.shape, kernel, capability)) {
        attn_poison(&w);
        fi_case_pages(&f, 0);
        if (fi_case_plan(&f, k_lens, kernel, false, o->fixed) == 0) {
            fi_case_run(&f, 0);
            CUDA_OK(cudaDeviceSynchronize());
            check(&w, k_lens, o->every ? o->every : 1, what, kernel);
        } else {
            failures++;
        }
    }
    fi_case_free(&f);
    attn_world_free(&w);
}

static void decode(attn_rng *rng, bool quick)
{
    static const int groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 16};
    static const int dims[] = {128, 64, 256};
    static const int pages[] = {1, 16, 64};
    int32_t ones[16], lens[16];
    int turn = 0;
    for (int i = 0; i < 16; i++) ones[i] = 1;
    for (int d = 0; d < 3; d++) {
        for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
            for (int t = 0; t < 2; t++) {
                if (quick && (d + g + t) % 5 != 0) continue;
                const int batch = attn_range(rng, 1, quick ? 4 : 16);
                for (int i = 0; i < batch; i++) {
                    lens[i] = attn_range(rng, 1, attn_range(rng, 0, 3) ? 300 : 2500);
                }
                const options o = {-1, 0, false, 0};
                const int page = pages[turn++ % 3];
                for (int kernel = 0; kernel < 2; kernel++) {
                    one(rng, t ? MSGL_F16 : MSGL_BF16, batch, ones, lens, groups[g] * 2, 2, dims[d],
                        page, (msgl_fi_kernel)kernel, &o, "decode");
                }
                if (t == 0)
                    one(rng, MSGL_E4M3, batch, ones, lens, groups[g] * 2, 2, dims[d], page,
                        MSGL_FI_TENSOR_CORES, &o, "decode");
            }
        }
    }
}

static void masks(attn_rng *rng, bool quick)
{
    static const int windows[] = {0, 1, 15, 100, 511, 4096, -1};
    int32_t ones[5] = {1, 1, 1, 1, 1}, news[5], lens[5];
    for (int i = 0; i < (quick ? 2 : 14); i++) {
        options o = {windows[i % 7], i % 2 ? 0.f : 3.f, i % 3 == 2, 0};
        for (int k = 0; k < 5; k++) {
            lens[k] = attn_range(rng, 1, 1500);
            news[k] = attn_range(rng, 1, lens[k] < 150 ? lens[k] : 150);
        }
        const msgl_dtype dtype = i % 4 < 2 ? MSGL_BF16 : i % 4 == 2 ? MSGL_F16 : MSGL_E4M3;
        for (int kernel = 0; kernel < 2; kernel++) {
            if (kernel == 0 && o.fixed) continue;
            one(rng, dtype, 5, ones, lens, 8, 2, 128, 16, (msgl_fi_kernel)kernel, &o,
                "masked decode");
        }
        one(rng, dtype, 5, news, lens, 8, 2, i % 5 ? 128 : 64, 16, MSGL_FI_TENSOR_CORES, &o,
            "masked prefill");
    }
}

static void prefill(attn_rng *rng, bool quick)
{
    static const int groups[] = {1, 2, 4, 5, 8};
    static const int dims[] = {128, 64, 256};
    static const int pages[] = {1, 16, 64, 128};
    int32_t news[8], lens[8];
    for (int i = 0; i < (quick ? 4 : 30); i++) {
        const int batch = attn_range(rng, 1, 6);
        const int most = i % 3 == 0 ? 40 : 700;
        for (int k = 0; k < batch; k++) {
            news[k] = attn_range(rng, 1, quick ? 130 : most);
            lens[k] =
                news[k] + (attn_range(rng, 0, 1) ? 0 : attn_range(rng, 0, quick ? 200 : 1500));
        }
        const options o = {-1, 0, i % 4 == 3, 3};
        const int group = groups[i % 5], dim = dims[i % 3], page = pages[attn_range(rng, 0, 3)];
        static const msgl_dtype dtypes[] = {MSGL_F16, MSGL_BF16, MSGL_E4M3};
        const msgl_dtype dtype = dtypes[attn_range(rng, 0, 2)];
        one(rng, dtype, batch, news, lens, group * 2, 2, dim, page, MSGL_FI_TENSOR_CORES, &o,
            "prefill");
        if (!o.fixed) {
            one(rng, dtype, batch, news, lens, group * 2, 2, dim, page, MSGL_FI_HOPPER, &o,
                "prefill");
        }
    }
}

// One graph per batch size and kernel, replayed for other lengths after planning again.
static void graphs(attn_rng *rng, bool quick)
{
    static const int batches[] = {1, 2, 3, 8, 17, 40, 72, 200};
    const int max_len = quick ? 200 : 900;
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    for (int i = 0; i < (quick ? 3 : 16); i++) {
        const int batch = batches[i % 8], kernel = i / 8;
        int32_t ones[200], lens[200];
        for (int k = 0; k < batch; k++) {
            ones[k] = 1;
            lens[k] = max_len;
        }
        attn_world w;
        fi_case f;
        attn_world_make(&w, rng, MSGL_BF16, batch, ones, lens, kernel ? 8 : 4, 2, 128, 16);
        fi_case_make(&f, api, &w);
        for (int k = 0; k < batch; k++) lens[k] = 1;
        if (fi_case_plan(&f, lens, (msgl_fi_kernel)kernel, true, false) != 0) exit(2);
        const cudaGraphExec_t exec = cuda_capture(stream, [&] {
            fi_case_pages(&f, stream);
            fi_case_run(&f, stream);
        });
        const msgl_fi_planned captured = f.plan;
        for (int replay = 0; replay < 3; replay++) {
            for (int k = 0; k < batch; k++) {
                lens[k] = attn_range(rng, 1, replay == 2 ? 20 : max_len);
            }
            if (fi_case_plan(&f, lens, (msgl_fi_kernel)kernel, true, false) != 0) exit(2);
            // What the graph has baked in must not have moved.
            if (memcmp(captured.info, f.plan.info, sizeof captured.info) != 0) {
                failures++;
                printf("FAIL graph: layout of batch %d, %s depends on the lengths\n", batch,
                       KERNEL[kernel]);
            }
            CUDA_OK(cudaMemset(f.pages_dev, 0x7f, (size_t)batch * f.max_pages * 4));
            attn_poison(&w);
            CUDA_OK(cudaGraphLaunch(exec, stream));
            CUDA_OK(cudaStreamSynchronize(stream));
            check(&w, lens, batch > 16 ? 5 : 1, "graph", kernel);
            // Eager, with the same plan: the same bits.
            void *a = malloc(w.out_bytes), *b = malloc(w.out_bytes);
            CUDA_OK(cudaMemcpy(a, w.out_dev, w.out_bytes, cudaMemcpyDeviceToHost));
            attn_poison(&w);
            fi_case_run(&f, stream);
            CUDA_OK(cudaStreamSynchronize(stream));
            CUDA_OK(cudaMemcpy(b, w.out_dev, w.out_bytes, cudaMemcpyDeviceToHost));
            checks++;
            if (memcmp(a, b, w.out_bytes) != 0) {
                failures++;
                printf("FAIL graph: batch %d, %s: replay and eager differ\n", batch,
                       KERNEL[kernel]);
            }
            free(a), free(b);
        }
        CUDA_OK(cudaGraphExecDestroy(exec));
        fi_case_free(&f);
        attn_world_free(&w);
    }
    CUDA_OK(cudaStreamDestroy(stream));
}

// Under `fixed` the last token's bits are the same as decode, as part of a chunk and of a whole
// prompt, alone or beside others.
static void same_bits(attn_rng *rng)
{
    const attn_rng start = *rng;
    const int len = 777;
    uint16_t *first = NULL;
    const size_t row = 8 * 128;
    for (int i = 0; i < 8; i++) {
        attn_rng r = start;
        static const int chunk[] = {1, 777, 100, 64, 1, 777, 100, 64};
        int32_t news[7], lens[7];
        const int batch = i % 2 ? 7 : 1;
        for (int k = 0; k < batch; k++) {
            lens[k] = k == 0 ? len : 50 * k;
            news[k] = k == 0 ? chunk[i] : 1;
        }
        attn_world w;
        fi_case f;
        attn_world_make(&w, &r, MSGL_BF16, batch, news, lens, 8, 2, 128, 1);
        attn_rng own = {7}; // request 0 has the same K, V and last query everywhere
        const size_t slot = 2 * 128, last = (size_t)(chunk[i] - 1) * w.call.ld_q;
        for (int p = 0; p < len; p++) {
            const size_t s = (size_t)w.slots[(size_t)w.rows[0] * w.call.table_stride + p] * slot;
            for (size_t e = 0; e < slot; e++) {
                attn_put(MSGL_BF16, w.k, s + e, attn_uniform(&own));
                attn_put(MSGL_BF16, w.v, s + e, attn_uniform(&own));
            }
        }
        for (size_t e = 0; e < row; e++) attn_put(MSGL_BF16, w.q, last + e, attn_uniform(&own));
        device_write(w.k_dev, w.k, w.kv_bytes);
        device_write(w.v_dev, w.v, w.kv_bytes);
        device_write(w.q_dev, w.q, w.q_bytes);
        w.call.window = i < 4 ? -1 : 300;
        fi_case_make(&f, api, &w);
        attn_poison(&w);
        fi_case_pages(&f, 0);
        if (fi_case_plan(&f, lens, MSGL_FI_TENSOR_CORES, false, true) != 0) exit(2);
        fi_case_run(&f, 0);
        CUDA_OK(cudaDeviceSynchronize());
        check(&w, lens, 7, "fixed", MSGL_FI_TENSOR_CORES);
        uint16_t *out = (uint16_t *)malloc(row * 2);
        CUDA_OK(cudaMemcpy(out, (uint16_t *)w.out_dev + (chunk[i] - 1) * row, row * 2,
                           cudaMemcpyDeviceToHost));
        checks++;
        if (i % 4 == 0) {
            free(first);
            first = out;
        } else {
            if (memcmp(first, out, row * 2) != 0) {
                failures++;
                printf("FAIL fixed: bits of the last of %d new tokens differ\n", chunk[i]);
            }
            free(out);
        }
        fi_case_free(&f);
        attn_world_free(&w);
    }
    free(first);
}

int main(int argc, char **argv)
{
    attn_rng rng = {1};
    bool quick = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) quick = true;
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            rng.state = strtoull(argv[++i], NULL, 0);
    }
    cudaDeviceProp prop;
    CUDA_OK(cudaGetDeviceProperties(&prop, 0));
    capability = prop.major * 10 + prop.minor;
    setvbuf(stdout, NULL, _IOLBF, 0);
    api = (const msgl_fi_api *)open_plugin("minisgl-attn-fi.so", "msgl_fi_plugin");
    if (api->abi != MSGL_FI_ABI) return 2;
    decode(&rng, quick);
    masks(&rng, quick);
    prefill(&rng, quick);
    graphs(&rng, quick);
    same_bits(&rng);
    printf("fi: %d checks, worst %.2g%s\n", checks, worst, failures ? ", FAILED" : "");
    return failures != 0;
}
