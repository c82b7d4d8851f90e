// SPDX-License-Identifier: Apache-2.0
//
// The promise of determinism.h on the CPU: with fa, at every level that this machine has.
// MINISGL_TESTS=full takes every model at every level with every page size; else the highest level
// takes every model, with one other page size and number of threads, and each lower level some of
// them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "engine/determinism.h"

static void test_bit_equal(void **state)
{
    (void)state;
    const char *const models[] = {"qwen3",
                                  "qwen2_gqa7",
                                  "mistral_swa",
                                  "qwen3_moe_mixed",
                                  "llama_rope_dynamic",
                                  "llama_f16",
                                  "qwen3_f32",
                                  "deepseek_v3",
                                  "qwen3_next",
                                  "qwen3_5",
                                  "llama4",
                                  "gemma4_kv",
                                  "gemma4_conditional",
                                  "gemma4_moe",
                                  "mimo_v2",
                                  "deepseek_v32",
                                  "minimax_m3",
                                  "ministral3",
                                  "hunyuan",
                                  "olmoe",
                                  "ernie4_5_moe",
                                  "lfm2",
                                  "granite_hybrid",
                                  "nemotron_h_latent",
                                  "zamba2",
                                  "qwen4_exp",
                                  "qwen4_exp_ngrams",
                                  "deepseek_v4",
                                  "deepseek_v4_tf5"};
    const char *tests = getenv("MINISGL_TESTS");
    const bool full = tests != NULL && strcmp(tests, "full") == 0;
    const int highest = msgl__cpu_level_detect();
    for (int l = 0; l <= highest; l++) {
        const char *level = msgl__cpu_level_name(l);
        const harness_target base = {.level = level};
        const harness_target others[] = {{.level = level, .page_size = 16, .threads = 2},
                                         {.level = level, .page_size = 16},
                                         {.level = level, .page_size = 64},
                                         {.level = level, .threads = 2}};
        for (size_t i = 0; i < MSGL_COUNT(models); i++) {
            if (!full && l != highest && (int)i % (highest + 1) != l) continue;
            check_determinism(models[i], &base, true, others, full ? MSGL_COUNT(others) : 1);
        }
        if (!full && l != highest) continue;
        const char *const dual = "dual_chunk_flash_attn";
        const harness_target dual_base = {.level = level, .attention = dual};
        const harness_target dual_others[] = {
            {.level = level, .attention = dual, .page_size = 16, .threads = 2}};
        check_determinism("qwen2_dual_chunk", &dual_base, true, dual_others,
                          MSGL_COUNT(dual_others));
        const harness_target int8 = {.level = level, .weights = "int8"};
        const harness_target int8_others[] = {
            {.level = level, .weights = "int8", .page_size = 16, .threads = 2}};
        check_determinism("qwen3", &int8, true, int8_others, MSGL_COUNT(int8_others));
        check_determinism("qwen3_moe_mixed", &int8, true, int8_others, MSGL_COUNT(int8_others));
    }
}

// At a given number of ranks, too.
static void test_ranks_bit_equal(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int32_t ranks;
    } cases[] = {{"qwen3_next_hd128", 2}, {"deepseek_v3", 4}, {"glm_moe_dsa", 2}, {"lfm2_moe", 2},
                 {"minimax_m3", 2},       {"zamba2_rope", 2}, {"qwen4_exp", 2}};
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        const int32_t ranks = cases[i].ranks;
        const harness_target base = {.ranks = ranks, .deterministic = true};
        const harness_target others[] = {
            {.ranks = ranks, .deterministic = true},
            {.ranks = ranks, .deterministic = true, .page_size = 16, .threads = 2}};
        check_determinism(cases[i].model, &base, true, others, MSGL_COUNT(others));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bit_equal),
                                       cmocka_unit_test(test_ranks_bit_equal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
