// SPDX-License-Identifier: Apache-2.0
//
// The attention plug-ins' kernels at the shapes of the published tables: FlashInfer's decode on
// CUDA cores and on tensor cores, XQA's decode, FlashInfer's prefill. One launch by events (launch
// cost included), and per launch within a captured graph of many; several input sets, so that L2
// holds none of them. bench_fi [--decode] [--prefill]: one table only.
#include "bench/cuda/median.cuh"
#include "tests/cuda/fi_case.cuh"

extern "C" {
#include "cuda/trtllm/api.h"
}

static const double READ_LIMIT = 4.2e12, FLOP_LIMIT = 700e12;
enum { MAX_SETS = 8, RUNS = 20, IN_GRAPH = 16 };

static const msgl_fi_api *fi;
static const msgl_trtllm_api *xqa; // NULL: no plug-in
static int capability;
static cudaStream_t stream;

static __global__ void fill(uint16_t *p, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u ^ seed;
        h ^= h >> 15;
        h *= 2246822519u;
        h ^= h >> 13;
        // bf16 in +-[0.25, 2)
        p[i] = (uint16_t)((h & 0x8000) | (0x3e80 + (h >> 16) % 0x180));
    }
}

typedef struct inputs {
    int batch, new_len, len, q_heads, kv_heads, dim, page, sets;
    attn_world w[MAX_SETS]; // device pointers and host lengths only
} inputs;

static void *device_alloc(size_t bytes)
{
    void *p;
    CUDA_OK(cudaMalloc(&p, bytes + 256));
    return p;
}

static void inputs_make(inputs *in, int batch, int new_len, int len, int q_heads, int kv_heads,
                        int page)
{
    memset(in, 0, sizeof *in);
    in->batch = batch;
    in->new_len = new_len;
    in->len = len;
    in->q_heads = q_heads;
    in->kv_heads = kv_heads;
    in->dim = 128;
    in->page = page;
    const size_t slot = (size_t)kv_heads * in->dim, pages = (size_t)(len + page - 1) / page;
    const size_t slots = (size_t)batch * pages * page, stride = pages * page;
    const size_t kv = slots * slot * 4;
    in->sets = (int)(((size_t)400 << 20) / kv + 1);
    if (in->sets > MAX_SETS) in->sets = MAX_SETS;
    int32_t *perm = (int32_t *)malloc(batch * pages * 4);
    attn_rng rng = {5};
    for (int s = 0; s < in->sets; s++) {
        attn_world *w = &in->w[s];
        msgl_cuda_attn_call *c = &w->call;
        const size_t n = (size_t)batch * pages;
        for (size_t i = 0; i < n; i++) perm[i] = (int32_t)i;
        for (size_t i = n - 1; i > 0; i--) {
            const size_t j = attn_next(&rng) % (i + 1);
            const int32_t t = perm[i];
            perm[i] = perm[j];
            perm[j] = t;
        }
        w->cu_q = (int32_t *)calloc((size_t)batch + 1, 4);
        w->k_lens = (int32_t *)calloc((size_t)batch, 4);
        w->rows = (int32_t *)calloc((size_t)batch, 4);
        for (int i = 0; i < batch; i++) {
            w->cu_q[i + 1] = (i + 1) * new_len;
            w->k_lens[i] = len;
            w->rows[i] = i;
        }
        const size_t tokens = (size_t)batch * new_len;
        c->dtype = MSGL_BF16;
        c->num_q_heads = q_heads;
        c->num_kv_heads = kv_heads;
        c->head_dim = in->dim;
        c->ld_q = (size_t)q_heads * in->dim + 2 * slot;
        c->ld_out = (size_t)q_heads * in->dim;
        c->q = device_alloc(tokens * c->ld_q * 2);
        c->out = device_alloc(tokens * c->ld_out * 2);
        c->k = device_alloc(slots * slot * 2);
        c->v = device_alloc(slots * slot * 2);
        fill<<<1024, 256>>>((uint16_t *)c->q, tokens * c->ld_q, 1 + s);
        fill<<<1024, 256>>>((uint16_t *)c->k, slots * slot, 2 + s);
        fill<<<1024, 256>>>((uint16_t *)c->v, slots * slot, 3 + s);
        c->num_slots = (int64_t)slots;
        c->scale = 1.f / sqrtf((float)in->dim);
        c->out_scale = 1;
        c->window = -1;
        c->batch = batch;
        c->cu_seqlens_q = (const int32_t *)device_copy(w->cu_q, ((size_t)batch + 1) * 4);
        c->seqlens_k = (const int32_t *)device_copy(w->k_lens, (size_t)batch * 4);
        c->table = (const int32_t *)device_copy(perm, n * 4);
        c->table_stride = stride;
        c->paging = msgl__paging_of(page);
        c->table_rows = (const int32_t *)device_copy(w->rows, (size_t)batch * 4);
        c->page_size = page;
        c->total_q = (int32_t)tokens;
        c->max_seqlen_q = new_len;
        c->max_seqlen_k = len;
    }
    free(perm);
    CUDA_OK(cudaDeviceSynchronize());
}

static void inputs_free(inputs *in)
{
    for (int s = 0; s < in->sets; s++) {
        msgl_cuda_attn_call *c = &in->w[s].call;
        cudaFree((void *)c->q), cudaFree(c->out), cudaFree((void *)c->k), cudaFree((void *)c->v);
        cudaFree((void *)c->cu_seqlens_q), cudaFree((void *)c->seqlens_k);
        cudaFree((void *)c->table), cudaFree((void *)c->table_rows);
        free(in->w[s].cu_q), free(in->w[s].k_lens), free(in->w[s].rows);
    }
}

typedef void (*launch_fn)(void *ctx, int set);

// Microseconds of one launch: median by events, and in a graph.
static void measure(launch_fn fn, void *ctx, int sets, double *event_us, double *graph_us)
{
    int turn = 0;
    *event_us = median_ms(stream, 3, RUNS, [&] { fn(ctx, turn++ % sets); }) * 1e3;
    const cudaGraphExec_t exec = cuda_capture(stream, [&] {
        for (int i = 0; i < IN_GRAPH; i++) fn(ctx, i % sets);
    });
    *graph_us = median_graph_ms(stream, exec, 0, 5) * 1e3 / IN_GRAPH;
    CUDA_OK(cudaGraphExecDestroy(exec));
}

typedef struct fi_bench {
    fi_case f[MAX_SETS];
} fi_bench;

static void launch_fi(void *ctx, int set)
{
    const fi_bench *b = (const fi_bench *)ctx;
    fi_case_run(&b->f[set], stream);
}

// False: no such kernel.
static bool bench_fi(inputs *in, msgl_fi_kernel kernel, bool graph, bool whole, double *event_us,
                     double *graph_us)
{
    fi_bench b;
    bool ok = true;
    for (int s = 0; s < in->sets; s++) {
        fi_case_make(&b.f[s], fi, &in->w[s]);
        b.f[s].whole = whole;
        ok = ok && fi->has(&b.f[s].shape, kernel, capability);
        if (!ok) continue;
        ok = fi_case_plan(&b.f[s], in->w[s].k_lens, kernel, graph, false) == 0;
        fi_case_pages(&b.f[s], stream);
    }
    if (ok) measure(launch_fi, &b, in->sets, event_us, graph_us);
    for (int s = 0; s < in->sets; s++) fi_case_free(&b.f[s]);
    return ok;
}

typedef struct xqa_bench {
    msgl_xqa_call c[MAX_SETS];
} xqa_bench;

static void launch_xqa(void *ctx, int set)
{
    CUDA_OK(xqa->decode(&((const xqa_bench *)ctx)->c[set], stream));
}

static bool bench_xqa(inputs *in, int splits, bool pdl, double *event_us, double *graph_us)
{
    xqa_bench b;
    memset(&b, 0, sizeof b);
    const msgl_xqa_shape shape = {MSGL_BF16, in->q_heads, in->kv_heads, in->dim, in->page};
    const int page = xqa != NULL ? xqa->kernel_page_size(&shape) : 0;
    msgl_xqa_device device;
    if (page == 0) return false;
    CUDA_OK(xqa->prepare(&shape, &device));
    const int pages = (in->len + page - 1) / page;
    const size_t scratch = xqa->scratch_bytes(&shape, &device, in->batch);
    void *memory = device_alloc(scratch);
    void *semaphores = device_alloc((size_t)in->batch * in->kv_heads * 4);
    CUDA_OK(cudaMemset(semaphores, 0, (size_t)in->batch * in->kv_heads * 4));
    for (int s = 0; s < in->sets; s++) {
        const msgl_cuda_attn_call *w = &in->w[s].call;
        int32_t *table = (int32_t *)device_alloc((size_t)in->batch * pages * 4);
        msgl_xqa_pages_call p = {};
        p.batch = in->batch;
        p.page_size = page;
        p.parts = w->page_size / page;
        p.table = w->table;
        p.table_stride = w->table_stride / w->page_size;
        p.table_rows = w->table_rows;
        p.seqlens_k = w->seqlens_k;
        p.pages = table;
        p.pages_stride = p.max_pages = pages;
        CUDA_OK(xqa->pages(&p, stream));
        msgl_xqa_call *c = &b.c[s];
        c->shape = shape;
        c->batch = in->batch;
        c->max_seqlen_k = in->len;
        c->q = w->q;
        c->ld_q = w->ld_q;
        c->out = w->out;
        c->k = w->k;
        c->v = w->v;
        c->bmm1_scale = w->scale;
        c->bmm2_scale = 1;
        c->window = -1;
        c->seqlens_k = w->seqlens_k;
        c->pages = table;
        c->pages_stride = pages;
        c->semaphores = (uint32_t *)semaphores;
        c->scratch = memory;
        c->device = device;
        c->splits = splits;
        c->pdl = pdl;
    }
    measure(launch_xqa, &b, in->sets, event_us, graph_us);
    for (int s = 0; s < in->sets; s++) cudaFree((void *)b.c[s].pages);
    cudaFree(memory), cudaFree(semaphores);
    return true;
}

static void print_decode(const inputs *in, const char *kernel, bool ok, double e, double g)
{
    const double bytes = 4.0 * in->batch * in->len * in->kv_heads * in->dim;
    if (!ok) return;
    printf("%4d x %-6d %2d/%d page %-3d %-22s %8.1f us %5.2f TB/s %3.0f%% | %8.1f us %5.2f TB/s\n",
           in->batch, in->len, in->q_heads, in->kv_heads, in->page, kernel, e, bytes / e * 1e-6,
           100 * bytes / e * 1e6 / READ_LIMIT, g, bytes / g * 1e-6);
    fflush(stdout);
}

static void decode(void)
{
    static const int shapes[][4] = {{1, 1024, 16, 8},   {1, 8192, 32, 8},   {16, 1024, 32, 8},
                                    {64, 1024, 16, 8},  {256, 1024, 16, 8}, {256, 1024, 32, 8},
                                    {256, 1024, 40, 8}, {64, 8192, 32, 8}};
    static const int pages[] = {1, 16, 64};
    printf("decode, bf16, head_dim 128: one launch by events | in a graph\n");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const int *s = shapes[i];
        for (int p = 0; p < 3; p++) {
            inputs in;
            double e, g;
            inputs_make(&in, s[0], 1, s[1], s[2], s[3], pages[p]);
            bool ok = bench_fi(&in, MSGL_FI_CUDA_CORES, false, false, &e, &g);
            print_decode(&in, "fi CUDA cores", ok, e, g);
            ok = bench_fi(&in, MSGL_FI_TENSOR_CORES, false, false, &e, &g);
            print_decode(&in, "fi tensor cores", ok, e, g);
            if (in.page == 16) {
                ok = bench_fi(&in, MSGL_FI_CUDA_CORES, true, false, &e, &g);
                print_decode(&in, "fi CUDA graph plan", ok, e, g);
                ok = bench_fi(&in, MSGL_FI_TENSOR_CORES, true, false, &e, &g);
                print_decode(&in, "fi tensor graph plan", ok, e, g);
                ok = bench_fi(&in, MSGL_FI_TENSOR_CORES, false, true, &e, &g);
                print_decode(&in, "fi tensor whole", ok, e, g);
            }
            if (in.page > 1) {
                ok = bench_xqa(&in, 0, false, &e, &g);
                print_decode(&in, "xqa", ok, e, g);
            }
            if (in.page == 64) {
                ok = bench_xqa(&in, 0, true, &e, &g);
                print_decode(&in, "xqa pdl", ok, e, g);
            }
            inputs_free(&in);
        }
    }
}

static void prefill(void)
{
    static const int shapes[][5] = {{1, 4096, 4096, 32, 8}, {1, 16384, 16384, 32, 8},
                                    {4, 4096, 4096, 16, 8}, {16, 1024, 1024, 16, 8},
                                    {64, 256, 256, 16, 8},  {1, 1024, 16384, 32, 8}};
    static const int pages[] = {1, 16, 128};
    printf("causal prefill, bf16, head_dim 128: one launch by events | in a graph\n");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const int *s = shapes[i];
        const double pairs = (double)s[1] * (s[2] - s[1]) + 0.5 * s[1] * (double)s[1];
        const double flops = 4.0 * s[0] * pairs * s[3] * 128;
        for (int p = 0; p < 3; p++) {
            inputs in;
            inputs_make(&in, s[0], s[1], s[2], s[3], s[4], pages[p]);
            if (in.sets > 2) in.sets = 2;
            for (int k = MSGL_FI_TENSOR_CORES; k <= MSGL_FI_HOPPER; k++) {
                double e, g;
                if (!bench_fi(&in, (msgl_fi_kernel)k, false, false, &e, &g)) {
                    continue;
                }
                printf("%3d x %5d after %-5d %2d/%d page %-3d %-10s %8.1f us %4.0f TFLOP/s %3.0f%% "
                       "| %8.1f us %4.0f TFLOP/s\n",
                       s[0], s[1], s[2] - s[1], s[3], s[4], in.page,
                       k == MSGL_FI_HOPPER ? "fi hopper" : "fi tensor", e, flops / e * 1e-6,
                       100 * flops / e * 1e6 / FLOP_LIMIT, g, flops / g * 1e-6);
                fflush(stdout);
            }
            inputs_free(&in);
        }
    }
}

int main(int argc, char **argv)
{
    bool all = true, want_decode = false, want_prefill = false;
    for (int i = 1; i < argc; i++) {
        want_decode |= strcmp(argv[i], "--decode") == 0;
        want_prefill |= strcmp(argv[i], "--prefill") == 0;
        all = false;
    }
    cudaDeviceProp prop;
    CUDA_OK(cudaGetDeviceProperties(&prop, 0));
    capability = prop.major * 10 + prop.minor;
    CUDA_OK(cudaStreamCreate(&stream));
    fi = (const msgl_fi_api *)open_plugin("minisgl-attn-fi.so", "msgl_fi_plugin");
    if (capability == 90) {
        xqa = (const msgl_trtllm_api *)open_plugin("minisgl-attn-trtllm.so", "msgl_trtllm_plugin");
    }
    if (all || want_decode) decode();
    if (all || want_prefill) prefill();
    return 0;
}
