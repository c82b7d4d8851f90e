// SPDX-License-Identifier: Apache-2.0
//
// Speed of the MLA kernel: microseconds of one launch inside a captured graph, and by events around
// one launch (launch cost included); TFLOP/s and TB/s of the first, with their shares of what the
// GPU can do at most. Several sets of pages, so that L2 holds none of them. Then prompts. --e4m3:
// of a pool of E4M3 instead of bf16.
#include <algorithm>
#include <string.h>

#include "bench/cuda/median.cuh"
#include "bench/cuda/noise.cuh"
#include "tests/cuda/attn_world.cuh"

#include "cuda/attn/mla.h"

enum { REPEATS = 15, GRAPH_LAUNCHES = 24 };
static const double PEAK_FLOPS = 990e12, PEAK_BYTES = 4.8e12; // per second, nominal

typedef struct shape {
    int batch, len, heads;
    double flashmla_us; // in a graph, on an H200
} shape;

static const shape SHAPES[] = {
    {1, 8192, 128, 31.1},   {16, 4096, 128, 49.8}, {64, 4096, 128, 123.8}, {128, 8192, 128, 547.0},
    {1, 8192, 16, 32.4},    {16, 4096, 16, 41.9},  {64, 4096, 16, 99.4},   {256, 1024, 16, 93.9},
    {128, 8192, 16, 289.2}, {1, 200, 16, 0},       {1, 500, 16, 0},        {1, 1000, 16, 0},
    {1, 2000, 16, 0},       {8, 1000, 16, 0},      {32, 500, 16, 0},       {64, 256, 16, 0},
    {256, 256, 16, 0},
};

typedef struct pool {
    size_t slots;
    void *kv, *q, *out;
    float *lse;
    void *workspace;
    bool e4m3;
} pool;

// Codes of magnitudes below 2.
static __global__ void noise_codes(uint8_t *codes, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint32_t h = ((uint32_t)i ^ 0x9e3779b9u) * 2246822519u;
        codes[i] = (uint8_t)((h ^ h >> 15) & 0xbf);
    }
}

static void run(const pool *p, const shape *s, int page, bool in_order, const msgl_mla_tune *tune)
{
    const size_t need = (size_t)s->batch * s->len, bytes = need * MSGL_MLA_ROW * (p->e4m3 ? 1 : 2);
    const size_t sets = std::max((size_t)1, std::min((size_t)8, p->slots / need));
    const size_t pages = p->slots / page;
    int32_t *perm = (int32_t *)malloc(pages * 4); // place x is in page perm[x / page]
    attn_rng rng = {7};
    for (size_t i = 0; i < pages; i++) perm[i] = (int32_t)i;
    for (size_t i = pages - 1; i > 0 && !in_order; i--)
        std::swap(perm[i], perm[attn_next(&rng) % (i + 1)]);
    int32_t *lens = (int32_t *)malloc(s->batch * 4), *rows = (int32_t *)malloc(s->batch * 4);
    for (int i = 0; i < s->batch; i++) lens[i] = s->len, rows[i] = i;
    msgl_mla_call c = {};
    c.num_heads = s->heads;
    c.q = p->q, c.ld_q = (size_t)s->heads * MSGL_MLA_ROW;
    c.out = p->out, c.ld_out = (size_t)s->heads * MSGL_MLA_LATENT;
    c.kv = p->kv, c.num_slots = (int64_t)p->slots;
    c.e4m3 = p->e4m3;
    c.scale = 0.0722f, c.out_scale = 1;
    c.batch = s->batch, c.q_len = 1;
    c.seqlens_k = (int32_t *)device_copy(lens, s->batch * 4);
    c.table_rows = (int32_t *)device_copy(rows, s->batch * 4);
    int32_t *tables = (int32_t *)device_copy(perm, pages * 4);
    c.table_stride = (size_t)s->len, c.page_size = page, c.paging = msgl__paging_of(page);
    c.plan = device_copy(NULL, msgl__mla_plan_bytes(s->heads, s->batch, 0));
    c.workspace = p->workspace;
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    const auto plan = [&] {
        CUDA_OK(tune ? msgl__cuda_mla_plan_tuned(&c, tune, stream)
                     : msgl__cuda_mla_plan(&c, stream));
    };
    const double plan_us = median_ms(stream, 2, 5, plan) * 1e3;
    size_t turn = 0;
    const auto launch = [&] {
        c.table = tables + turn++ % sets * need / page;
        CUDA_OK(msgl__cuda_mla(&c, stream));
    };
    const double alone = median_ms(stream, 2, REPEATS, launch) * 1e3;
    const cudaGraphExec_t exec = cuda_capture(stream, [&] {
        for (int i = 0; i < GRAPH_LAUNCHES; i++) launch();
    });
    const double us = median_graph_ms(stream, exec, 1, 5) * 1e3 / GRAPH_LAUNCHES;
    const double flops = 2. * (MSGL_MLA_ROW + MSGL_MLA_LATENT) * s->heads * (double)need;
    printf("%3dx%-5d %3d heads page %-3d%s %8.1f us (FlashMLA %5.1f: %4.2fx) %6.1f TFLOP/s %3.0f%% "
           "%5.2f TB/s %3.0f%% | alone %6.1f us, plan %4.1f us",
           s->batch, s->len, s->heads, page, in_order ? " in order" : "", us, s->flashmla_us,
           s->flashmla_us / us, flops / us * 1e-6, flops / us * 1e8 / PEAK_FLOPS,
           (double)bytes / us * 1e-6, (double)bytes / us * 1e8 / PEAK_BYTES, alone, plan_us);
    if (tune)
        printf(" | tune %d %d %d %d", tune->overhead, tune->min_tiles, tune->snap, tune->whole);
    printf("\n");
    fflush(stdout);
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaStreamDestroy(stream));
    const void *device[] = {c.seqlens_k, c.table_rows, tables, c.plan};
    for (const void *d : device) CUDA_OK(cudaFree((void *)d));
    free(perm), free(lens), free(rows);
}

typedef struct prompts {
    int batch, len, before, heads; // each of `len` tokens behind `before`
} prompts;

static const prompts PROMPTS[] = {
    {16, 1024, 0, 16}, {1, 128, 0, 16}, {1, 4096, 0, 16}, {1, 1024, 15360, 16}, {4, 1024, 0, 128},
};

// Absorbed attention of a step of prompts.
static void run_prompts(const pool *p, const prompts *s, int page, const msgl_mla_tune *tune)
{
    const int all = s->len + s->before, tokens = s->batch * s->len;
    const int entries = s->batch * all / page;
    int32_t *table = (int32_t *)malloc((size_t)entries * 4), lens[64], rows[64], cu[65];
    for (int i = 0; i < entries; i++) table[i] = i;
    for (int i = 0; i <= s->batch; i++) cu[i] = i * s->len;
    for (int i = 0; i < s->batch; i++) lens[i] = all, rows[i] = i;
    msgl_mla_call c = {};
    c.num_heads = s->heads;
    c.q = p->q, c.ld_q = (size_t)s->heads * MSGL_MLA_ROW;
    c.out = p->out, c.ld_out = (size_t)s->heads * MSGL_MLA_LATENT;
    c.kv = p->kv, c.num_slots = (int64_t)p->slots;
    c.e4m3 = p->e4m3;
    c.scale = 0.0722f, c.out_scale = 1;
    c.batch = s->batch, c.q_len = s->len, c.total_q = tokens;
    c.seqlens_k = (int32_t *)device_copy(lens, s->batch * 4);
    c.table_rows = (int32_t *)device_copy(rows, s->batch * 4);
    c.cu_seqlens_q = (int32_t *)device_copy(cu, (s->batch + 1) * 4);
    c.table = (int32_t *)device_copy(table, (size_t)entries * 4);
    c.table_stride = (size_t)all, c.page_size = page, c.paging = msgl__paging_of(page);
    c.plan = device_copy(NULL, msgl__mla_plan_bytes(s->heads, s->batch, tokens));
    c.workspace = p->workspace;
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    const auto plan = [&] {
        CUDA_OK(tune ? msgl__cuda_mla_plan_tuned(&c, tune, stream)
                     : msgl__cuda_mla_plan(&c, stream));
    };
    const double plan_us = median_ms(stream, 2, 5, plan) * 1e3;
    const auto launch = [&] { CUDA_OK(msgl__cuda_mla(&c, stream)); };
    const cudaGraphExec_t exec = cuda_capture(stream, [&] {
        for (int i = 0; i < GRAPH_LAUNCHES; i++) launch();
    });
    const double us = median_graph_ms(stream, exec, 1, 5) * 1e3 / GRAPH_LAUNCHES;
    const double pairs = (double)tokens * (s->before + (s->len + 1) / 2.);
    const double flops = 2. * (MSGL_MLA_ROW + MSGL_MLA_LATENT) * s->heads * pairs;
    printf("%2dx%-4d after %-5d %3d heads page %-3d %8.1f us %6.1f TFLOP/s %3.0f%% | plan %4.1f us",
           s->batch, s->len, s->before, s->heads, page, us, flops / us * 1e-6,
           flops / us * 1e8 / PEAK_FLOPS, plan_us);
    if (tune)
        printf(" | tune %d %d %d %d", tune->overhead, tune->min_tiles, tune->snap, tune->whole);
    printf("\n");
    fflush(stdout);
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaStreamDestroy(stream));
    const void *device[] = {c.seqlens_k, c.table_rows, c.cu_seqlens_q, c.table, c.plan};
    for (const void *d : device) CUDA_OK(cudaFree((void *)d));
    free(table);
}

int main(int argc, char **argv)
{
    bool sweep = false, pages = false;
    pool p = {};
    const char *only = NULL; // BATCHxLEN or "prompts"
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--sweep") == 0) sweep = true;
        if (strcmp(argv[i], "--pages") == 0) pages = true;
        if (strcmp(argv[i], "--e4m3") == 0) p.e4m3 = true;
        if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) only = argv[++i];
    }
    p.slots = (size_t)1 << 21;
    const size_t values = p.slots * MSGL_MLA_ROW, heads = 4096 * 128; // or 32768 tokens of 16
    p.kv = device_copy(NULL, values * 2);
    p.q = device_copy(NULL, heads * MSGL_MLA_ROW * 2);
    p.out = device_copy(NULL, heads * MSGL_MLA_LATENT * 2);
    p.workspace = device_copy(NULL, msgl__mla_workspace_bytes(128, 1)); // of any
    CUDA_OK(cudaMemset(p.workspace, 0, msgl__mla_workspace_bytes(128, 1)));
    if (p.e4m3)
        noise_codes<<<1024, 256>>>((uint8_t *)p.kv, values);
    else
        noise<<<1024, 256>>>((__nv_bfloat16 *)p.kv, values, 1.f);
    noise<<<1024, 256>>>((__nv_bfloat16 *)p.q, heads * MSGL_MLA_ROW, 1.f);
    CUDA_OK(cudaDeviceSynchronize());
    for (const shape &s : SHAPES) {
        char name[32];
        snprintf(name, sizeof name, "%dx%d", s.batch, s.len);
        if (only != NULL && strcmp(only, name) != 0) continue;
        run(&p, &s, 64, false, NULL);
        for (int page = 1; pages && page <= 16; page *= 16) {
            run(&p, &s, page, false, NULL);
            if (page == 1) run(&p, &s, page, true, NULL);
        }
        for (int overhead = 0; sweep && overhead <= 4; overhead += overhead + !overhead) {
            for (int least = 2; least <= 8; least *= 2) {
                for (int whole = 0; whole <= 16; whole += 8) {
                    const msgl_mla_tune t = {overhead, least, 2, whole};
                    run(&p, &s, 64, false, &t);
                }
            }
        }
    }
    for (const prompts &s : PROMPTS) {
        if (only != NULL && strcmp(only, "prompts") != 0) continue;
        run_prompts(&p, &s, 64, NULL);
        for (int page = 1; pages && page <= 16; page *= 16) run_prompts(&p, &s, page, NULL);
        for (int overhead = 2; sweep && overhead <= 8; overhead *= 2) {
            for (int whole = 0; whole <= 32; whole += 8) {
                const msgl_mla_tune t = {overhead, 4, 4, whole};
                run_prompts(&p, &s, 64, &t);
            }
        }
    }
    return 0;
}
