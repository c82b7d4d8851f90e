// SPDX-License-Identifier: Apache-2.0
//
// What surrounds latent attention on a GPU, against f64: products a head, and the kernel that
// rotates and stores. cuda_latent [--seed N] [--quick].
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/lt.cuh"
#include "tests/cuda/ops_check.cuh"

enum { MAX_HEADS = 128 };

struct heads_case {
    int heads, m, n, k, gap; // gap: elements between heads of in and out
};

static void check_heads(bench_exec *e, family *f, const msgl_wformat *format, const heads_case *k,
                        uint64_t *seed)
{
    const msgl_dtype dtype = format->dtype;
    const size_t heads = (size_t)k->heads, head_in = (size_t)(k->k + k->gap);
    const size_t head_out = (size_t)(k->n + k->gap), one = (size_t)k->n * (size_t)k->k;
    const size_t ld_in = heads * head_in + 8, ld_out = heads * head_out + 8, m = (size_t)k->m;
    const size_t spread = one + 32; // as the loader's: to the next multiple of 64 bytes and further
    array in = array_new(dtype, m * ld_in, 1, seed), w = array_new(dtype, heads * spread, 1, seed);
    array out = array_new(dtype, m * ld_out, 0, seed);
    msgl_weight weights[MAX_HEADS];
    for (size_t h = 0; h < heads; h++) {
        weights[h] = (msgl_weight){};
        weights[h].format = format;
        weights[h].n = k->n;
        weights[h].k = k->k;
        weights[h].data = (char *)w.dev + h * spread * msgl__dtype_size(dtype);
    }
    const msgl_heads_call c = {weights, k->heads, k->m,   in.dev,  ld_in,
                               head_in, out.dev,  ld_out, head_out};
    e->x.act = dtype;
    msgl__cuda_heads(&e->x, &c);
    exec_sync(e);
    array_download(&out);
    for (size_t t = 0; t < m; t++) {
        for (size_t h = 0; h < heads; h++) {
            for (int n = 0; n < k->n; n++) {
                double sum = 0, size = 0;
                for (int i = 0; i < k->k; i++) {
                    const double p =
                        (double)in.host[t * ld_in + h * head_in + (size_t)i] *
                        (double)w.host[h * spread + (size_t)n * (size_t)k->k + (size_t)i];
                    sum += p;
                    size += fabs(p);
                }
                const float got = out.host[t * ld_out + h * head_out + (size_t)n];
                expect_near(f, got, sum, fabs(sum) * dtype_error(dtype) + size * 0x1p-21, "head");
            }
            for (int i = 0; i < k->gap; i++) { // nothing beyond a head's columns is written
                const float got = out.host[t * ld_out + h * head_out + (size_t)(k->n + i)];
                expect(f, isnan(got), "written beside the result");
            }
        }
    }
    array_free(&in);
    array_free(&w);
    array_free(&out);
}

struct rope_case {
    int tokens, heads, rank, half;
};

static double rotated(const float *v, const float *cos_sin, int half, int i)
{
    const int pair = i % half;
    const double other = i < half ? -(double)v[i + half] : (double)v[i - half];
    return (double)v[i] * (double)cos_sin[pair] + other * (double)cos_sin[half + pair];
}

static void check_rope(bench_exec *e, family *f, msgl_dtype dtype, msgl_dtype kv,
                       const rope_case *k, uint64_t *seed)
{
    enum { NOPE = 16, GAP = 8 };
    const size_t rotary = 2 * (size_t)k->half, row = (size_t)k->rank + rotary, ld = row + GAP;
    const size_t head_q = NOPE + rotary, head_out = (size_t)k->rank + rotary,
                 tokens = (size_t)k->tokens;
    const size_t heads = (size_t)k->heads, slots = tokens + 3;
    const float scale = 0.7f, by = kv == MSGL_E4M3 ? scale : 1;
    array latent = array_new(dtype, tokens * ld, 1, seed),
          q = array_new(dtype, tokens * heads * head_q, 1, seed);
    array cs = array_new(MSGL_F32, tokens * rotary, 1, seed),
          weight = array_new(MSGL_F32, (size_t)k->rank, 1, seed);
    array out = array_new(dtype, tokens * heads * head_out, 0, seed),
          pool = array_new(kv, slots * row, 0, seed);
    int32_t *to = (int32_t *)malloc(tokens * sizeof *to);
    for (size_t t = 0; t < tokens; t++) to[t] = (int32_t)(slots - 1 - t);
    int32_t *dev_to = ints_upload(to, tokens);
    msgl_latent_rope_call c = {};
    c.tokens = k->tokens;
    c.num_heads = k->heads;
    c.rank = k->rank;
    c.half = k->half;
    c.latent = latent.dev;
    c.ld_latent = ld;
    c.weight = (const float *)weight.dev;
    c.eps = 1e-6f;
    c.cos_sin = (const float *)cs.dev;
    c.q = (const char *)q.dev + NOPE * msgl__dtype_size(dtype);
    c.ld_q = heads * head_q;
    c.head_q = head_q;
    c.out = (char *)out.dev + (size_t)k->rank * msgl__dtype_size(dtype);
    c.ld_out = heads * head_out;
    c.head_out = head_out;
    c.dtype = kv;
    c.scale = scale;
    c.pool = pool.dev;
    c.slots = dev_to;
    e->x.act = dtype;
    msgl__cuda_latent_rope_store(&e->x, &c);
    exec_sync(e);
    array_download(&out);
    array_download(&pool);
    for (size_t t = 0; t < tokens; t++) {
        const float *from = latent.host + t * ld, *angles = cs.host + t * rotary;
        const float *got = pool.host + (size_t)to[t] * row;
        double squares = 0;
        for (int i = 0; i < k->rank; i++) squares += (double)from[i] * (double)from[i];
        for (int i = 0; i < k->rank; i++) {
            const double want =
                (double)from[i] / sqrt(squares / k->rank + 1e-6) * (double)weight.host[i] / by;
            expect_near(f, got[i], want, fabs(want) * dtype_error(kv) + dtype_floor(kv), "latent");
        }
        for (int i = 0; i < 2 * k->half; i++) {
            const double want = rotated(from + k->rank, angles, k->half, i) / by;
            expect_near(f, got[k->rank + i], want, fabs(want) * dtype_error(kv) + dtype_floor(kv),
                        "key");
            for (size_t h = 0; h < heads; h++) {
                const float *head = q.host + (t * heads + h) * head_q + NOPE;
                const double turned = rotated(head, angles, k->half, i);
                const size_t at = (t * heads + h) * head_out + (size_t)(k->rank + i);
                expect_near(f, out.host[at], turned, fabs(turned) * dtype_error(dtype) + 4e-6,
                            "query");
            }
        }
    }
    CUDA_OK(cudaFree(dev_to));
    free(to);
    array_free(&latent);
    array_free(&q);
    array_free(&cs);
    array_free(&weight);
    array_free(&out);
    array_free(&pool);
}

int main(int argc, char **argv)
{
    const options args = parse_options(argc, argv);
    uint64_t seed = args.seed;
    static const heads_case heads[] = {
        {16, 1, 512, 128, 64}, {16, 1, 128, 512, 0},   {16, 33, 512, 128, 64},
        {3, 70, 128, 512, 0},  {128, 7, 512, 128, 64}, {4, 32, 40, 24, 8},
        {5, 65, 36, 200, 8},   {4, 9, 12, 32, 0},      {4, 9, 32, 12, 0},
        {1, 3, 33, 31, 1},     {2, 130, 66, 264, 2},   {4, 600, 512, 128, 64},
        {3, 513, 128, 512, 0}, {8, 3, 96, 4096, 0},    {2, 40, 96, 4096, 0}};
    static const rope_case ropes[] = {
        {1, 16, 512, 32}, {5, 128, 512, 32}, {9, 4, 32, 4}, {3, 3, 24, 5}, {200, 20, 512, 32}};
    family products = {"heads"}, rotations = {"rotation"};
    static bench_exec e;
    exec_open(&e, 1 << 20);
    static msgl_cuda_blas blas; // the library and its memory, for many rows
    blas.workspace_bytes = 32 << 20;
    CUDA_OK(cudaMalloc(&blas.workspace, blas.workspace_bytes));
    if (cublasLtCreate(&blas.lt) != CUBLAS_STATUS_SUCCESS) {
        printf("no cuBLASLt\n");
        return 1;
    }
    e.device.blas = &blas;
    for (int d = 0; d < 3; d++) {
        const msgl_wformat *format = &msgl__cuda_formats[d == 0   ? MSGL_W_BF16
                                                         : d == 1 ? MSGL_W_F16
                                                                  : MSGL_W_F32];
        for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
            if (args.quick && heads[i].heads * heads[i].m > 64) continue;
            check_heads(&e, &products, format, &heads[i], &seed);
        }
        for (size_t i = 0; i < sizeof ropes / sizeof ropes[0]; i++) {
            if (args.quick && ropes[i].tokens > 10) continue;
            check_rope(&e, &rotations, format->dtype, format->dtype, &ropes[i], &seed);
        }
    }
    check_rope(&e, &rotations, MSGL_BF16, MSGL_F32, &ropes[2], &seed);
    for (int i = 0; i < 4; i++) check_rope(&e, &rotations, MSGL_BF16, MSGL_E4M3, &ropes[i], &seed);
    const int failed = family_end(&products);
    return failed | family_end(&rotations);
}
