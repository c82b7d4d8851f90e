// SPDX-License-Identifier: Apache-2.0
//
// Small-batch products: each shape of Qwen3-0.6B and 14B over weights that no cache holds, launched
// early, launched in order, and by cuBLASLt's best proposal (without norm, gate and residual, which
// it cannot fuse); then a decode step's chain of them in a captured graph. Limit: the bytes of the
// weights over 4.2 TB/s.
#include <algorithm>
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/cuda/median.cuh"
#include "cuda/device.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemv.h"
#include "cuda/launch.cuh"

// tests/cuda/gemv_plain.cu
extern "C" bool msgl__cuda_gemv_plain(msgl_exec *x, const msgl_linear_call *c);

typedef bool (*gemv_fn)(msgl_exec *x, const msgl_linear_call *c);

static const double BYTES_PER_US = 4.2e6;

void msgl__cuda_fault(msgl_device *d, cudaError_t code, const char *what, const char *file,
                      int line)
{
    (void)d;
    fprintf(stderr, "%s (%s:%d): %s\n", what, file, line, cudaGetErrorString(code));
    exit(1);
}

static __global__ void fill(uint16_t *p, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 32) ^ seed;
        h = (h ^ (h >> 15)) * 2246822519u;
        h = (h ^ (h >> 13)) * 3266489917u;
        const float v = ((float)(h & 0xffff) - 32767.5f) / 32768 / 32;
        ((__nv_bfloat16 *)p)[i] = __float2bfloat16(v);
    }
}

static uint16_t *random_bf16(size_t n)
{
    static uint32_t seed = 1;
    uint16_t *p;
    CUDA_OK(cudaMalloc(&p, n * 2 + 256));
    fill<<<2048, 256>>>(p, n, seed++ * 77777);
    CUDA_OK(cudaGetLastError());
    return p;
}

typedef struct bench {
    msgl_cuda_device device;
    msgl_exec x;
    cublasLtHandle_t lt;
    void *workspace;
    uint16_t *in, *out; // 16 rows of 38912
    float *logits, *norm;
} bench;

static const size_t WIDE = 38912, WORKSPACE = 64 << 20;

typedef struct shape {
    const char *name;
    int n, k;
    bool norm, gated, accumulate, f32_out;
} shape;

static msgl_linear_call call_of(bench *b, const shape *s, const msgl_weight *w, int m)
{
    msgl_linear_call c = {};
    c.w = w;
    c.in = b->in;
    c.ld_in = s->k;
    c.m = m;
    c.norm = s->norm ? b->norm : NULL;
    c.norm_eps = 1e-6f;
    c.gated = s->gated;
    c.accumulate = s->accumulate;
    c.f32_out = s->f32_out;
    c.out = s->f32_out ? (void *)b->logits : (void *)b->out;
    c.ld_out = s->gated ? s->n / 2 : s->n;
    return c;
}

static double replay_us(bench *b, cudaGraphExec_t exec, int rounds)
{
    return median_graph_ms(b->device.stream, exec, 3, rounds) * 1e3;
}

static double time_gemv(bench *b, gemv_fn gemv, const shape *s, uint16_t **w, int copies, int m)
{
    bool taken = true;
    const cudaGraphExec_t exec = cuda_capture(b->device.stream, [&] {
        for (int i = 0; i < copies; i++) {
            const msgl_weight weight = {&msgl__cuda_formats[MSGL_W_BF16], s->n, s->k, w[i]};
            const msgl_linear_call c = call_of(b, s, &weight, m);
            taken = gemv(&b->x, &c) && taken;
        }
    });
    const double us = taken ? replay_us(b, exec, 15) / copies : 0;
    CUDA_OK(cudaGraphExecDestroy(exec));
    return us;
}

static double time_library(bench *b, const shape *s, uint16_t **w, int copies, int m)
{
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t lw, lin, lout;
    cublasLtMatmulPreference_t pref;
    const cublasOperation_t trans = CUBLAS_OP_T;
    cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &trans, sizeof trans);
    const cudaDataType_t out_type = s->f32_out ? CUDA_R_32F : CUDA_R_16BF;
    cublasLtMatrixLayoutCreate(&lw, CUDA_R_16BF, s->k, s->n, s->k);
    cublasLtMatrixLayoutCreate(&lin, CUDA_R_16BF, s->k, m, s->k);
    cublasLtMatrixLayoutCreate(&lout, out_type, s->n, m, s->n);
    cublasLtMatmulPreferenceCreate(&pref);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE,
                                         sizeof WORKSPACE);
    cublasLtMatmulHeuristicResult_t found[5];
    int count = 0;
    cublasLtMatmulAlgoGetHeuristic(b->lt, op, lw, lin, lout, lout, pref, 5, found, &count);
    const float one = 1, zero = 0;
    double best = 0;
    void *out = s->f32_out ? (void *)b->logits : (void *)b->out;
    for (int a = 0; a < count; a++) {
        const cudaGraphExec_t exec = cuda_capture(b->device.stream, [&] {
            for (int i = 0; i < copies; i++) {
                cublasLtMatmul(b->lt, op, &one, w[i], lw, b->in, lin, &zero, out, lout, out, lout,
                               &found[a].algo, b->workspace, WORKSPACE, b->device.stream);
            }
        });
        const double us = replay_us(b, exec, 7) / copies;
        if (best == 0 || us < best) best = us;
        CUDA_OK(cudaGraphExecDestroy(exec));
    }
    cublasLtMatmulPreferenceDestroy(pref);
    cublasLtMatrixLayoutDestroy(lw), cublasLtMatrixLayoutDestroy(lin);
    cublasLtMatrixLayoutDestroy(lout), cublasLtMatmulDescDestroy(op);
    return best;
}

static void bench_shape(bench *b, const shape *s, bool library)
{
    const size_t bytes = (size_t)s->n * s->k * 2;
    const int copies = (int)std::max((size_t)2, std::min((size_t)64, ((size_t)500 << 20) / bytes));
    uint16_t *w[64];
    for (int i = 0; i < copies; i++) w[i] = random_bf16((size_t)s->n * s->k);
    static const int ms[] = {1, 2, 4, 8, 16};
    const double limit = bytes / BYTES_PER_US;
    printf("%-12s %6dx%-5d %6.1f |", s->name, s->n, s->k, limit);
    for (int m : ms) {
        const double early = time_gemv(b, msgl__cuda_gemv, s, w, copies, m);
        const double plain = time_gemv(b, msgl__cuda_gemv_plain, s, w, copies, m);
        const double lt = library ? time_library(b, s, w, copies, m) : 0;
        printf(" %6.1f %6.1f %6.1f %3.0f%% |", early, plain, lt,
               early > 0 ? 100 * limit / early : 0);
    }
    printf("\n");
    fflush(stdout);
    for (int i = 0; i < copies; i++) CUDA_OK(cudaFree(w[i]));
}

typedef struct model {
    const char *name;
    int layers, hidden, inner, q, kv, vocab; // q, kv: heads times their dimension
} model;

// Stands in for rope and attention: reads all of qkv, depends on it, takes next to no time.
static __global__ void stand_in(const __nv_bfloat16 *in, size_t ld_in, __nv_bfloat16 *out,
                                size_t ld_out, int n)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const size_t row = blockIdx.y;
    if (i < n) out[row * ld_out + i] = __hadd(in[row * ld_in + i], in[row * ld_in]);
}

static void launch_stand_in(bench *b, bool early, const uint16_t *in, size_t ld_in, uint16_t *out,
                            size_t ld_out, int n, int m)
{
    const dim3 grid((n + 255) / 256, m);
    if (early) {
        CUDA_OK(msgl__launch(stand_in, grid, dim3(256), 0, b->device.stream,
                             (const __nv_bfloat16 *)in, ld_in, (__nv_bfloat16 *)out, ld_out, n));
    } else {
        stand_in<<<grid, 256, 0, b->device.stream>>>((const __nv_bfloat16 *)in, ld_in,
                                                     (__nv_bfloat16 *)out, ld_out, n);
    }
}

static void bench_model(bench *b, const model *md)
{
    enum { KINDS = 4, MOST = 40 };
    const int n[KINDS] = {md->q + 2 * md->kv, md->hidden, 2 * md->inner, md->hidden};
    const int k[KINDS] = {md->hidden, md->q, md->hidden, md->inner};
    uint16_t *w[MOST][KINDS], *head = random_bf16((size_t)md->vocab * md->hidden);
    double bytes = (double)md->vocab * md->hidden * 2;
    for (int l = 0; l < md->layers; l++) {
        for (int i = 0; i < KINDS; i++) {
            w[l][i] = random_bf16((size_t)n[i] * k[i]);
            bytes += (double)n[i] * k[i] * 2;
        }
    }
    uint16_t *x = random_bf16(16 * WIDE), *qkv = random_bf16(16 * WIDE);
    uint16_t *att = random_bf16(16 * WIDE), *mid = random_bf16(16 * WIDE);
    const double limit = bytes / BYTES_PER_US;
    static const int ms[] = {1, 2, 4, 8, 16};
    for (int m : ms) {
        double us[2];
        bool taken = true;
        for (int plain = 0; plain < 2; plain++) {
            const gemv_fn gemv = plain ? msgl__cuda_gemv_plain : msgl__cuda_gemv;
            const cudaGraphExec_t exec = cuda_capture(b->device.stream, [&] {
                for (int l = 0; l <= md->layers; l++) {
                    msgl_weight wt = {&msgl__cuda_formats[MSGL_W_BF16], md->vocab, md->hidden,
                                      head};
                    msgl_linear_call c = {};
                    c.w = &wt, c.m = m, c.norm_eps = 1e-6f;
                    if (l == md->layers) {
                        c.in = x, c.ld_in = md->hidden, c.norm = b->norm, c.f32_out = true;
                        c.out = b->logits, c.ld_out = md->vocab;
                        taken = gemv(&b->x, &c) && taken;
                        break;
                    }
                    wt.n = n[0], wt.k = k[0], wt.data = w[l][0];
                    c.in = x, c.ld_in = k[0], c.norm = b->norm, c.out = qkv, c.ld_out = n[0];
                    taken = gemv(&b->x, &c) && taken;
                    launch_stand_in(b, !plain, qkv, n[0], qkv, n[0], md->q + md->kv, m);
                    launch_stand_in(b, !plain, qkv, n[0], att, md->q, md->q, m);
                    wt.n = n[1], wt.k = k[1], wt.data = w[l][1];
                    c.in = att, c.ld_in = k[1], c.norm = NULL, c.out = x, c.ld_out = n[1];
                    c.accumulate = true;
                    taken = gemv(&b->x, &c) && taken;
                    wt.n = n[2], wt.k = k[2], wt.data = w[l][2];
                    c.in = x, c.ld_in = k[2], c.norm = b->norm, c.out = mid, c.ld_out = n[2] / 2;
                    c.accumulate = false, c.gated = true;
                    taken = gemv(&b->x, &c) && taken;
                    wt.n = n[3], wt.k = k[3], wt.data = w[l][3];
                    c.in = mid, c.ld_in = k[3], c.norm = NULL, c.out = x, c.ld_out = n[3];
                    c.accumulate = true, c.gated = false;
                    taken = gemv(&b->x, &c) && taken;
                }
            });
            us[plain] = replay_us(b, exec, 15);
            CUDA_OK(cudaGraphExecDestroy(exec));
        }
        printf("%-6s step m=%-2d %8.1f us early, %8.1f us in order, limit %7.1f, share %3.0f%%%s\n",
               md->name, m, us[0], us[1], limit, 100 * limit / us[0],
               taken ? "" : " (some not taken)");
        fflush(stdout);
    }
    for (int l = 0; l < md->layers; l++) {
        for (int i = 0; i < KINDS; i++) CUDA_OK(cudaFree(w[l][i]));
    }
    uint16_t *const rest[] = {head, x, qkv, att, mid};
    for (uint16_t *p : rest) CUDA_OK(cudaFree(p));
}

int main(int argc, char **argv)
{
    bool library = true, shapes = true, models = true, large_too = true;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--no-library") == 0) library = false;
        if (strcmp(argv[i], "--small") == 0) large_too = false;
        if (strcmp(argv[i], "--models") == 0) shapes = false;
        if (strcmp(argv[i], "--shapes") == 0) models = false;
    }
    bench b;
    memset(&b, 0, sizeof b);
    cudaDeviceProp prop;
    CUDA_OK(cudaGetDeviceProperties(&prop, 0));
    b.device.sm_count = prop.multiProcessorCount;
    b.device.base.capability = prop.major * 10 + prop.minor;
    CUDA_OK(cudaStreamCreateWithFlags(&b.device.stream, cudaStreamNonBlocking));
    b.x.device = &b.device.base;
    b.x.act = MSGL_BF16;
    if (library) cublasLtCreate(&b.lt);
    CUDA_OK(cudaMalloc(&b.workspace, WORKSPACE));
    b.in = random_bf16(16 * WIDE), b.out = random_bf16(16 * WIDE);
    CUDA_OK(cudaMalloc(&b.logits, 16 * 152064 * sizeof(float)));
    float norm[8192];
    for (int i = 0; i < 8192; i++) norm[i] = 1;
    CUDA_OK(cudaMalloc(&b.norm, sizeof norm));
    CUDA_OK(cudaMemcpy(b.norm, norm, sizeof norm, cudaMemcpyHostToDevice));
    static const shape list[] = {
        {"0.6B qkv", 4096, 1024, true},
        {"0.6B o", 1024, 2048, false, false, true},
        {"0.6B gate_up", 6144, 1024, true, true},
        {"0.6B down", 1024, 3072, false, false, true},
        {"0.6B head", 151936, 1024, true, false, false, true},
        {"14B qkv", 7168, 5120, true},
        {"14B o", 5120, 5120, false, false, true},
        {"14B gate_up", 34816, 5120, true, true},
        {"14B down", 5120, 17408, false, false, true},
        {"14B head", 151936, 5120, true, false, false, true},
    };
    if (models) {
        const model small = {"0.6B", 28, 1024, 3072, 2048, 1024, 151936};
        const model large = {"14B", 40, 5120, 17408, 5120, 1024, 151936};
        bench_model(&b, &small);
        if (large_too) bench_model(&b, &large);
    }
    if (shapes) {
        printf("us per product, m = 1, 2, 4, 8, 16: launched early, in order, cuBLASLt; share of "
               "the limit\n");
        for (const shape &s : list) bench_shape(&b, &s, library);
    }
    CUDA_OK(cudaDeviceSynchronize());
    return 0;
}
