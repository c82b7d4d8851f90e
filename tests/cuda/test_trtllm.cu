// SPDX-License-Identifier: Apache-2.0
//
// The XQA kernels through our plug-in against exact attention: groups, dtypes, head dimensions,
// page sizes, windows, splits (twice, as the second launch finds the semaphores that the first
// left), and a captured graph whose lengths change.
#include "tests/cuda/fi_case.cuh"

extern "C" {
#include "cuda/trtllm/api.h"
}

// |v| < 1
static double tolerance(msgl_dtype dtype)
{
    return dtype == MSGL_F16 ? 2e-3 : 1.2e-2;
}

static const msgl_trtllm_api *api;
static int failures, checks;
static double worst;

typedef struct xqa_case {
    attn_world w;
    msgl_xqa_call call;
    msgl_xqa_pages_call pages;
} xqa_case;

static bool make(xqa_case *x, attn_rng *rng, msgl_dtype dtype, int batch, const int32_t *lens,
                 int q_heads, int kv_heads, int dim, int page)
{
    memset(x, 0, sizeof *x);
    int32_t ones[256];
    for (int i = 0; i < batch; i++) ones[i] = 1;
    attn_world_make(&x->w, rng, dtype, batch, ones, lens, q_heads, kv_heads, dim, page);
    const msgl_cuda_attn_call *w = &x->w.call;
    msgl_xqa_call *c = &x->call;
    c->shape.dtype = dtype;
    c->shape.num_q_heads = q_heads;
    c->shape.num_kv_heads = kv_heads;
    c->shape.head_dim = dim;
    c->shape.page_size = page;
    const int kernel_page = api->kernel_page_size(&c->shape);
    if (kernel_page == 0) {
        failures++;
        printf("FAIL no kernel: dtype %d heads %d/%d dim %d page %d\n", (int)dtype, q_heads,
               kv_heads, dim, page);
        attn_world_free(&x->w);
        return false;
    }
    CUDA_OK(api->prepare(&c->shape, &c->device));
    const int pages = (x->w.max_len + kernel_page - 1) / kernel_page;
    c->batch = batch;
    c->max_seqlen_k = x->w.max_len;
    // Rows at any distance that keeps them aligned.
    c->ld_q = w->ld_q + 8;
    c->q = device_copy(NULL, (size_t)batch * c->ld_q * 2);
    CUDA_OK(cudaMemcpy2D((void *)c->q, c->ld_q * 2, w->q, w->ld_q * 2, w->ld_q * 2, batch,
                         cudaMemcpyDeviceToDevice));
    c->out = w->out;
    c->k = w->k;
    c->v = w->v;
    c->bmm1_scale = w->scale;
    c->bmm2_scale = x->w.call.out_scale = dtype == MSGL_E4M3 ? 0.8f : 1.f;
    c->window = -1;
    c->seqlens_k = w->seqlens_k;
    c->pages_stride = pages;
    int32_t *table = (int32_t *)device_copy(NULL, (size_t)batch * pages * 4);
    CUDA_OK(cudaMemset(table, 0x7f, (size_t)batch * pages * 4));
    c->pages = table;
    c->semaphores = (uint32_t *)device_copy(NULL, (size_t)batch * kv_heads * 4);
    CUDA_OK(cudaMemset(c->semaphores, 0, (size_t)batch * kv_heads * 4));
    const size_t scratch = api->scratch_bytes(&c->shape, &c->device, batch);
    c->scratch = device_copy(NULL, scratch);
    CUDA_OK(cudaMemset(c->scratch, 0xff, scratch));
    x->pages.batch = batch;
    x->pages.page_size = kernel_page;
    x->pages.parts = w->page_size / kernel_page;
    x->pages.table = w->table;
    x->pages.table_stride = w->table_stride / (size_t)w->page_size;
    x->pages.table_rows = w->table_rows;
    x->pages.seqlens_k = w->seqlens_k;
    x->pages.pages = table;
    x->pages.pages_stride = x->pages.max_pages = pages;
    x->w.call.lse = NULL; // XQA has none
    return true;
}

static void destroy(xqa_case *x)
{
    cudaFree((void *)x->call.q), cudaFree((void *)x->call.pages), cudaFree(x->call.semaphores);
    cudaFree(x->call.scratch);
    attn_world_free(&x->w);
}

static void check(xqa_case *x, const int32_t *lens, int every, const char *what)
{
    const msgl_xqa_call *c = &x->call;
    double e, l;
    attn_compare(&x->w, lens, every, &e, &l);
    checks++;
    if (!(e <= worst)) worst = e;
    if (!(e <= tolerance(c->shape.dtype))) {
        failures++;
        printf("FAIL %s: dtype %d heads %d/%d dim %d page %d batch %d window %d splits %d%s: %g\n",
               what, (int)c->shape.dtype, c->shape.num_q_heads, c->shape.num_kv_heads,
               c->shape.head_dim, c->shape.page_size, c->batch, c->window, c->splits,
               c->sinks != NULL ? " sinks" : "", e);
    }
}

static void poison(xqa_case *x)
{
    CUDA_OK(cudaMemset(x->w.out_dev, 0xff, x->w.out_bytes));
}

static void one(attn_rng *rng, msgl_dtype dtype, int batch, const int32_t *lens, int q_heads,
                int kv_heads, int dim, int page, int window, int splits, bool deterministic,
                bool sinks, const char *what)
{
    xqa_case x;
    if (!make(&x, rng, dtype, batch, lens, q_heads, kv_heads, dim, page)) return;
    x.call.window = x.w.call.window = window;
    if (sinks) attn_sinks(&x.w, rng);
    x.call.sinks = x.w.call.sinks;
    x.call.splits = splits;
    x.call.deterministic = deterministic;
    CUDA_OK(api->pages(&x.pages, 0));
    for (int repeat = 0; repeat < 2; repeat++) {
        poison(&x);
        x.call.pdl = repeat;
        CUDA_OK(api->decode(&x.call, 0));
        CUDA_OK(cudaDeviceSynchronize());
        check(&x, lens, 1, what);
    }
    destroy(&x);
}

static void shapes(attn_rng *rng, bool quick)
{
    static const int groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 16};
    static const int pages[] = {16, 32, 64};
    int turn = 0;
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
        const bool power = (groups[g] & (groups[g] - 1)) == 0 && groups[g] <= 8;
        for (int i = 0; i < (power ? 6 : 4); i++) { // 256: these groups only
            if (quick && (g + i) % 4 != 0) continue;
            static const int dims[] = {128, 64, 256};
            const int batch = attn_range(rng, 1, 6);
            int32_t lens[6];
            for (int k = 0; k < batch; k++) {
                lens[k] = attn_range(rng, 1, attn_range(rng, 0, 2) ? 400 : 3000);
            }
            one(rng, i % 2 ? MSGL_F16 : MSGL_BF16, batch, lens, groups[g] * 2, 2, dims[i / 2],
                pages[turn % 3], -1, 0, turn % 5 == 0, turn % 3 == 1, "shape");
            if (i < 4)
                one(rng, MSGL_E4M3, batch, lens, groups[g] * 2, 2, dims[i / 2],
                    pages[(turn + i) % 3], i == 3 ? 300 : -1, 0, turn % 5 == 0, turn % 3 == 1,
                    "e4m3");
            turn++;
        }
    }
}

static void windows(attn_rng *rng, bool quick)
{
    static const int sizes[] = {0, 1, 15, 100, 255, 256, 511, 1000, 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (quick && i % 3 != 0) continue;
        int32_t lens[4];
        for (int k = 0; k < 4; k++) lens[k] = attn_range(rng, 1, 2500);
        one(rng, MSGL_BF16, 4, lens, 8, 2, 128, 16, sizes[i], (int)i % 3 * 2, false, i % 2,
            "window");
    }
}

static void graph(attn_rng *rng)
{
    const int batch = 5, max_len = 1500;
    int32_t lens[5];
    for (int k = 0; k < batch; k++) lens[k] = max_len;
    xqa_case x;
    if (!make(&x, rng, MSGL_BF16, batch, lens, 8, 2, 128, 64)) return;
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    const cudaGraphExec_t exec = cuda_capture(stream, [&] {
        CUDA_OK(api->pages(&x.pages, stream));
        CUDA_OK(api->decode(&x.call, stream));
    });
    for (int replay = 0; replay < 4; replay++) {
        for (int k = 0; k < batch; k++) lens[k] = attn_range(rng, 1, replay % 2 ? 20 : max_len);
        device_write(x.w.lens_dev, lens, sizeof lens);
        poison(&x);
        CUDA_OK(cudaGraphLaunch(exec, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        check(&x, lens, 1, "graph");
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaStreamDestroy(stream));
    destroy(&x);
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
    if (prop.major != 9) {
        printf("trtllm: skipped, XQA is compiled for Hopper only\n");
        return 0;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    api = (const msgl_trtllm_api *)open_plugin("minisgl-attn-trtllm.so", "msgl_trtllm_plugin");
    if (api->abi != MSGL_TRTLLM_ABI) return 2;
    shapes(&rng, quick);
    windows(&rng, quick);
    graph(&rng);
    printf("trtllm: %d checks, worst %.2g%s\n", checks, worst, failures ? ", FAILED" : "");
    return failures != 0;
}
