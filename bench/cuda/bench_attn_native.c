// SPDX-License-Identifier: Apache-2.0
//
// torch_native on a GPU beside the reference kernel, which needs no gathering and no memory: one
// layer of bf16, milliseconds with the launches. `minisgl bench attn` has the other backends.
//
//     bench_attn_native [SHAPE]    the shape of that number alone
#include <stdio.h>
#include <stdlib.h>

#include "attention/bench.h"
#include "core/attributes.h"
#include "cuda/attn/reference.h"
#include "cuda/backends/call.h"
#include "cuda/backends/registry.h"

typedef struct reference_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
} reference_backend;

static int reference_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                            msgl_attn_backend **out, msgl_err *err)
{
    static reference_backend only;
    (void)err;
    only.base.desc = desc;
    only.cfg = *cfg;
    *out = &only.base;
    return 0;
}

static void reference_destroy(msgl_attn_backend *b)
{
    (void)b;
}

static void reference_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                              const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const msgl_attn_config *cfg = &((const reference_backend *)base)->cfg;
    msgl_cuda_attn_call c;
    msgl__cuda_attn_call(cfg, layer, seqs, in, out, &c);
    void *stream = msgl__cuda_device_stream(x->device);
    msgl__cuda_attn_result(x, "reference", msgl__cuda_attn_reference(&c, stream));
}

static const msgl_attn_desc REFERENCE = {
    .name = "reference",
    .min_capability = 80,
    .caches = 1u << MSGL_CACHE_KV | 1u << MSGL_CACHE_LATENT,
    .kv_dtypes = 1u << MSGL_BF16,
    .create = reference_create,
    .destroy = reference_destroy,
    .forward = reference_forward,
};

static const struct {
    msgl_phase phase;
    int batch, cached, extend, q, kv; // kv 0: a latent cache of 512 + 64
} SHAPES[] = {
    {MSGL_PREFILL, 1, 0, 1024, 32, 8}, {MSGL_PREFILL, 1, 0, 4096, 32, 8},
    {MSGL_PREFILL, 16, 0, 256, 16, 8}, {MSGL_PREFILL, 1, 7168, 1024, 32, 8},
    {MSGL_PREFILL, 1, 0, 1024, 16, 0}, {MSGL_DECODE, 1, 1023, 1, 32, 8},
    {MSGL_DECODE, 1, 8191, 1, 32, 8},  {MSGL_DECODE, 16, 1023, 1, 32, 8},
    {MSGL_DECODE, 64, 1023, 1, 16, 8}, {MSGL_DECODE, 1, 8191, 1, 128, 0},
    {MSGL_DECODE, 16, 4095, 1, 16, 0},
};

static double measure(const msgl_attn_desc *d, size_t i, const msgl_attn_bench_env *env)
{
    const bool latent = SHAPES[i].kv == 0;
    const msgl_attn_bench_shape shape = {.phase = SHAPES[i].phase,
                                         .batch = SHAPES[i].batch,
                                         .cached_len = SHAPES[i].cached,
                                         .extend_len = SHAPES[i].extend,
                                         .num_q_heads = SHAPES[i].q,
                                         .num_kv_heads = latent ? 1 : SHAPES[i].kv,
                                         .head_dim = latent ? 576 : 128,
                                         .v_dim = latent ? 512 : 0,
                                         .page_size = 16,
                                         .kv_dtype = MSGL_BF16,
                                         .window = -1,
                                         .shuffled = true};
    msgl_attn_bench_result r;
    msgl_err err = {0};
    if (msgl__attn_bench(d, &shape, env, 0.01, &r, &err) == 0) return r.forward_ms;
    printf("%s: %s\n", d->name, err.text);
    exit(1);
}

int main(int argc, char **argv)
{
    msgl_err err = {0};
    msgl_kernels kernels = {0};
    msgl_attn_bench_env env = {.backends = &msgl__attn_cuda, .kernels = &kernels};
    if (msgl__cuda_device_open(0, false, NULL, &env.device, NULL, &err) != 0) {
        fprintf(stderr, "skipped: %s\n", err.text);
        return 77;
    }
    const msgl_attn_desc *d = msgl__attn_find(&msgl__attn_cuda, "torch_native");
    const size_t first = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
    const size_t end = argc > 1 ? first + 1 : MSGL_COUNT(SHAPES);
    for (size_t i = first; i < end && i < MSGL_COUNT(SHAPES); i++) {
        const double native = measure(d, i, &env), reference = measure(&REFERENCE, i, &env);
        printf("%s %3d x (%5d + %4d), heads %3d/%d: torch_native %8.3f ms, reference %8.3f ms\n",
               SHAPES[i].phase == MSGL_DECODE ? "decode " : "prefill", SHAPES[i].batch,
               SHAPES[i].cached, SHAPES[i].extend, SHAPES[i].q, SHAPES[i].kv, native, reference);
        fflush(stdout);
    }
    env.device->ops->destroy(env.device);
    return 0;
}
