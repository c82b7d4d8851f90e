// SPDX-License-Identifier: Apache-2.0
//
// The engine on this machine's GPU: log-probabilities of every architecture's vectors with every
// attention backend against transformers, and with `deterministic` the same bits in any batch, in
// any chunks, with any pages, with graphs and without. Exit code 77 without a GPU.
//
//     cuda_engine [--quick]
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "engine/determinism.h"
#include "engine/parity.h"
#include "kernel/cuda_loader.h"

static bool quick; // cmocka's tests take no argument

static bool is_cuda(const msgl_attn_desc *d)
{
    return (d->devices & 1u << MSGL_DEVICE_CUDA) != 0;
}

static int32_t page_size(const msgl_attn_desc *d)
{
    return d->page_rule == MSGL_PAGE_SET ? d->page_override : 16;
}

static void test_parity_f32(void **state)
{
    (void)state;
    int count;
    const msgl_attn_desc *const *all = msgl__attn_backends(&count);
    const harness_target usual = {.device = "cuda", .attention = "auto", .page_size = 16};
    for (int m = 0; parity_models[m] != NULL && (!quick || m < 2); m++) {
        if (!parity_f32(parity_models[m], &usual)) fail_msg("%s cannot run", parity_models[m]);
        for (int b = 0; b < count && !quick; b++) {
            if (!is_cuda(all[b])) continue;
            const harness_target t = {
                .device = "cuda", .attention = all[b]->name, .page_size = page_size(all[b])};
            (void)parity_f32(parity_models[m], &t);
        }
    }
}

static void test_parity_half(void **state)
{
    (void)state;
    int count;
    const msgl_attn_desc *const *all = msgl__attn_backends(&count);
    const harness_target usual = {.device = "cuda", .attention = "auto", .page_size = 16};
    for (int m = 0; parity_models[m] != NULL && !quick; m++) {
        if (!parity_half(parity_models[m], "bfloat16", "expected_bf16.bin", &usual)) {
            fail_msg("%s cannot run", parity_models[m]);
        }
    }
    if (!parity_half("llama_f16", "auto", "expected_f16.bin", &usual)) fail_msg("cannot run");
    for (int b = 0; b < count; b++) {
        if (!is_cuda(all[b])) continue;
        const harness_target t = {
            .device = "cuda", .attention = all[b]->name, .page_size = page_size(all[b])};
        const bool ran = parity_half("qwen3", "bfloat16", "expected_bf16.bin", &t);
        if (!ran) print_message("%s: cannot run qwen3\n", all[b]->name);
        (void)parity_half("llama_hd256", "bfloat16", "expected_bf16.bin", &t);
    }
}

// Decode steps are launched kernel by kernel at first and compared with those in graphs.
static void test_deterministic(void **state)
{
    (void)state;
    const char *const models[] = {"qwen3",     "qwen3_f32",   "qwen2_gqa7",
                                  "llama_f16", "mistral_swa", "qwen3_moe_mixed"};
    int count;
    const msgl_attn_desc *const *all = msgl__attn_backends(&count);
    for (int b = 0; b < count; b++) {
        if (!is_cuda(all[b])) continue;
        const char *name = all[b]->name;
        const bool set = all[b]->page_rule == MSGL_PAGE_SET;
        const harness_target base = {
            .device = "cuda", .attention = name, .page_size = 16, .deterministic = true};
        const harness_target others[] = {
            {.device = "cuda",
             .attention = name,
             .page_size = set ? 32 : 1,
             .deterministic = true,
             .graph_max_bs = 40},
            {.device = "cuda", .attention = name, .page_size = 64, .deterministic = true}};
        for (size_t m = 0; m < (quick ? 1 : MSGL_COUNT(models)); m++) {
            check_determinism(models[m], &base, false, others, MSGL_COUNT(others));
        }
    }
}

int main(int argc, char **argv)
{
    msgl_device_choice choice;
    msgl_err err = {0};
    for (int i = 1; i < argc; i++) quick |= strcmp(argv[i], "--quick") == 0;
    if (msgl__device_choose("cuda", &choice, &err) != 0) {
        fprintf(stderr, "skipped: %s\n", err.text);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parity_f32),
        cmocka_unit_test(test_parity_half),
        cmocka_unit_test(test_deterministic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
