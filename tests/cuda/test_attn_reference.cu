// SPDX-License-Identifier: Apache-2.0
//
// The reference attention kernel, and the tensor-core prefill kernel for every architecture,
// against exact attention.
#include "tests/cuda/attn_world.cuh"
#include "tests/cuda/family.cuh"

#include "cuda/attn/prefill_sm80.h"
#include "cuda/attn/reference.h"

// |v| < 1. The reference kernel rounds its output only, the other one probabilities too.
static const double TOLERANCE[2][MSGL_DTYPE_COUNT] = {{3e-6, 6e-4, 5e-3, 5e-3},
                                                      {0, 1.5e-3, 1e-2, 5e-3}};
static const double LSE_TOLERANCE[2] = {2e-5, 2e-4};
static const char *const NAMES[2] = {"reference", "sm80 prefill"};

static int failures, checks;
static double worst[2][MSGL_DTYPE_COUNT];

static void one(attn_rng *rng, msgl_dtype dtype, int batch, const int32_t *q_lens,
                const int32_t *k_lens, int q_heads, int kv_heads, int dim, int page, int window,
                float softcap, bool sinks)
{
    attn_world w;
    attn_world_make(&w, rng, dtype, batch, q_lens, k_lens, q_heads, kv_heads, dim, page);
    w.call.window = window;
    w.call.softcap = softcap;
    w.call.out_scale = 0.75f;
    if (sinks) attn_sinks(&w, rng);
    const bool has_both = dtype == MSGL_E4M3 ? dim % 16 == 0 : dtype != MSGL_F32;
    for (int kernel = 0; kernel < (has_both ? 2 : 1); kernel++) {
        attn_poison(&w);
        CUDA_OK(kernel == 0 ? msgl__cuda_attn_reference(&w.call, 0)
                            : msgl__cuda_fa_prefill_sm80(&w.call, 0));
        CUDA_OK(cudaDeviceSynchronize());
        double e, l;
        attn_compare(&w, k_lens, 3, &e, &l);
        checks++;
        if (!(e <= worst[kernel][dtype])) worst[kernel][dtype] = e;
        if (!(e <= TOLERANCE[kernel][dtype]) || !(l <= LSE_TOLERANCE[kernel])) {
            failures++;
            printf("FAIL %s: dtype %d heads %d/%d dim %d page %d batch %d window %d: error %g, "
                   "lse %g\n",
                   NAMES[kernel], (int)dtype, q_heads, kv_heads, dim, page, batch, window, e, l);
        }
    }
    attn_world_free(&w);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv, 1);
    const bool quick = o.quick;
    attn_rng rng = {o.seed};
    static const int dims[] = {8, 64, 80, 96, 128, 200, 256};
    static const int groups[] = {1, 2, 5, 7, 16};
    static const int pages[] = {1, 16, 64, 128};
    static const int windows[] = {-1, -1, 0, 17, 100};
    for (int i = 0; i < (quick ? 11 : 80); i++) {
        const msgl_dtype dtype = (msgl_dtype)(i % 4);
        int32_t q[6], k[6];
        for (int r = 0; r < 6; r++) {
            q[r] = r == 0 ? 1 : attn_range(&rng, 1, quick ? 40 : 200);
            k[r] = q[r] + (r % 2 ? 0 : attn_range(&rng, 0, quick ? 60 : 400));
        }
        one(&rng, dtype, 6, q, k, groups[i % 5] * 2, 2, dims[i % 7], pages[i / 3 % 4],
            windows[i / 2 % 5], i / 3 % 4 == 1 ? 5.f : 0.f, i % 8 > 3);
    }
    printf("attention reference: %d checks, worst err f32 %.2e f16 %.2e bf16 %.2e e4m3 %.2e; sm80 "
           "prefill f16 %.2e bf16 %.2e e4m3 %.2e%s\n",
           checks, worst[0][MSGL_F32], worst[0][MSGL_F16], worst[0][MSGL_BF16], worst[0][MSGL_E4M3],
           worst[1][MSGL_F16], worst[1][MSGL_BF16], worst[1][MSGL_E4M3],
           failures ? ", FAILED" : "");
    return failures ? 1 : 0;
}
