// SPDX-License-Identifier: Apache-2.0
//
// Whole models against transformers with emulated kernels in the CPU's places, in float32: what
// layers give GPUs' kernels for DeepSeek-V4 and Qwen4-Exp is what these take. Linked with
// --wrap=msgl__kernels_init_cpu.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "cuda/ops/ops.h"
#include "engine/parity.h"
#include "kernel/device.h"
#include "kernel/kernel.h"

void msgl__cuda_conv(msgl_exec *x, const msgl_conv_call *c);
void __real_msgl__kernels_init_cpu(msgl_kernels *k, msgl_cpu_level level);
void __wrap_msgl__kernels_init_cpu(msgl_kernels *k, msgl_cpu_level level);

static size_t calls; // of emulated kernels

// Calls a kernel with a device that has room for what kernels find behind it.
#define EMULATE(x, kernel, ...)                                                                    \
    do {                                                                                           \
        static _Alignas(64) char device[4096];                                                     \
        msgl_exec on = *(x);                                                                       \
        *(msgl_device *)device = *(x)->device;                                                     \
        on.device = (msgl_device *)device;                                                         \
        kernel(&on, __VA_ARGS__);                                                                  \
        (x)->status = on.status;                                                                   \
        calls++;                                                                                   \
    } while (0)

static void rotate(msgl_exec *x, const msgl_pair_rope_call *c)
{
    EMULATE(x, msgl__cuda_rotate_pairs, c);
}
static void store(msgl_exec *x, const msgl_store_rows_call *c)
{
    EMULATE(x, msgl__cuda_store_rows, c);
}
static void make(msgl_exec *x, const msgl_compress_call *c)
{
    EMULATE(x, msgl__cuda_compress, c);
}
static void hyper_open(msgl_exec *x, const msgl_hyper *h, const void *in, int32_t rows, float *mix,
                       void *out, void *result)
{
    EMULATE(x, msgl__cuda_hyper_open, h, in, rows, mix, out, result);
}
static void hyper_close(msgl_exec *x, const msgl_hyper *h, const float *mix, const void *block,
                        int32_t rows, void *streams)
{
    EMULATE(x, msgl__cuda_hyper_close, h, mix, block, rows, streams);
}
static void hyper_head(msgl_exec *x, const msgl_hyper *h, const void *in, int32_t rows, void *out)
{
    EMULATE(x, msgl__cuda_hyper_head, h, in, rows, out);
}
static void spread(msgl_exec *x, const void *in, int rows, int n, int dim, void *out)
{
    EMULATE(x, msgl__cuda_streams_spread, in, rows, n, dim, out);
}
static void squash(msgl_exec *x, void *p, size_t ld, int rows, int n, int dim)
{
    EMULATE(x, msgl__cuda_streams_squash, p, ld, rows, n, dim);
}
static void mix(msgl_exec *x, const void *gates, const void *in, int rows, int n, int dim,
                void *out)
{
    EMULATE(x, msgl__cuda_streams_mix, gates, in, rows, n, dim, out);
}
static void inject(msgl_exec *x, const void *weights, size_t ld, const void *block, int rows, int n,
                   int dim, void *streams)
{
    EMULATE(x, msgl__cuda_streams_inject, weights, ld, block, rows, n, dim, streams);
}
static void clear(msgl_exec *x, void *p, int rows, int dim)
{
    EMULATE(x, msgl__cuda_streams_clear, p, rows, dim);
}
static void ngram_ids(msgl_exec *x, const msgl_ngram_hash *h, const msgl_step_tokens *tokens,
                      const int32_t *positions, int32_t *ids)
{
    EMULATE(x, msgl__cuda_ngram_ids, h, tokens, positions, ids);
}
static void ngram_gate(msgl_exec *x, const msgl_ngram_gate_call *c)
{
    EMULATE(x, msgl__cuda_ngram_gate, c);
}
static void store_means(msgl_exec *x, const msgl_index_means_store_call *c)
{
    EMULATE(x, msgl__cuda_index_store_means, c);
}
static void choose_means(msgl_exec *x, const msgl_index_blocks_call *c)
{
    EMULATE(x, msgl__cuda_index_choose_means, c);
}
static void list(msgl_exec *x, const msgl_index_list_call *c)
{
    EMULATE(x, msgl__cuda_index_list, c);
}
static void look_up(msgl_exec *x, const msgl_router *how, const float *logits,
                    const int32_t *tokens, int rows, int experts, int32_t *ids, float *weights)
{
    EMULATE(x, msgl__cuda_moe_look_up, how, logits, tokens, rows, experts, ids, weights);
}
static void conv(msgl_exec *x, const msgl_conv_call *c)
{
    EMULATE(x, msgl__cuda_conv, c);
}

void __wrap_msgl__kernels_init_cpu(msgl_kernels *k, msgl_cpu_level level)
{
    __real_msgl__kernels_init_cpu(k, level);
    k->compress = (msgl_compress_kernels){.rotate = rotate, .store = store, .make = make};
    k->hyper = (msgl_hyper_kernels){.open = hyper_open, .close = hyper_close, .head = hyper_head};
    k->streams = (msgl_streams_kernels){
        .spread = spread, .squash = squash, .mix = mix, .inject = inject, .clear = clear};
    k->ngrams = (msgl_ngrams_kernels){.ids = ngram_ids, .gate = ngram_gate};
    k->index.store_means = store_means;
    k->index.choose_means = choose_means;
    k->index.list = list;
    k->moe.look_up = look_up;
    k->conv.run = conv;
}

// A prompt at once or in chunks, and answers behind some of it.
static void test_models(void **state)
{
    (void)state;
    static const char *const models[] = {"deepseek_v4", "deepseek_v4_tf5", "qwen4_exp",
                                         "qwen4_exp_ngrams"};
    const harness_target targets[] = {{.chunk = 0}, {.chunk = 13}, {.answers_from = 31}};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        for (size_t t = 0; t < MSGL_COUNT(targets); t++) {
            calls = 0;
            assert_true(parity_f32(models[i], &targets[t]));
            assert_true(calls > 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
