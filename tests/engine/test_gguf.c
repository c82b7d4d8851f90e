// SPDX-License-Identifier: Apache-2.0
//
// A model in a GGUF file gives the log-probabilities of the folder that it was made from, to the
// bit: the file's weights are the same numbers (tests/vectors/gguf), Q8_0 ones once expanded.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "engine/harness.h"

enum { TOKENS = 64, VOCAB = 260 };

// Log-probabilities [TOKENS, VOCAB] of a prompt.
static float *run(const char *model, const char *weights, const char *level, int32_t ranks)
{
    char path[512];
    int32_t ids[TOKENS];
    const harness_target target = {
        .level = level, .threads = 2, .weights = weights, .ranks = ranks};
    snprintf(path, sizeof path, MSGL_SOURCE_DIR "/tests/vectors/gguf/%s", model);
    for (int32_t i = 0; i < TOKENS; i++) ids[i] = i * 37 % VOCAB;
    const bool int8 = strcmp(weights, "int8") == 0;
    const msgl_options cfg = harness_config_for(path, int8 ? "float32" : weights, &target);
    return harness_prompt(&cfg, ids, TOKENS);
}

// The largest difference; 0 only when all bits are the same.
static double compare_ranks(const char *folder, const char *file, const char *weights,
                            const char *level, int32_t ranks)
{
    float *want = run(folder, weights, level, ranks), *got = run(file, weights, level, ranks);
    double most = 0, width = 0;
    for (size_t i = 0; i < (size_t)TOKENS * VOCAB; i++) {
        most = fmax(most, fabs((double)want[i] - got[i]));
        width = fmax(width, fabs((double)want[i]));
    }
    if (most == 0) assert_memory_equal(want, got, (size_t)TOKENS * VOCAB * sizeof *want);
    assert_true(width > 1); // these are log-probabilities that differ
    free(want);
    free(got);
    return most;
}

static double compare(const char *folder, const char *file, const char *weights, const char *level)
{
    return compare_ranks(folder, file, weights, level, 1);
}

static void test_equal(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"llama", "llama-f32.gguf"},
                                           {"llama", "llama-q8_0.gguf"},
                                           {"qwen2", "qwen2-bf16.gguf"},
                                           {"qwen3", "qwen3-f16.gguf"},
                                           {"qwen3", "split/qwen3-f16-00001-of-00002.gguf"},
                                           {"llama", "split/llama-q8_0-00002-of-00003.gguf"},
                                           {"arcee", "arcee-f32.gguf"},
                                           {"starcoder2", "starcoder2-f32.gguf"},
                                           {"command-r", "command-r-f32.gguf"},
                                           {"cohere2", "cohere2-f32.gguf"},
                                           {"internlm3", "internlm3-f32.gguf"}};
    static const char *const formats[] = {"float32", "bfloat16", "float16", "int8"};
    for (int l = 0; l <= msgl__cpu_level_detect(); l++) {
        const char *level = msgl__cpu_level_name(l);
        for (size_t i = 0; i < MSGL_COUNT(pairs); i++) {
            for (size_t d = 0; d < MSGL_COUNT(formats); d++) {
                const double diff = compare(pairs[i][0], pairs[i][1], formats[d], level);
                if (diff != 0) fail_msg("%s, %s: off by %g", pairs[i][1], formats[d], diff);
            }
        }
    }
}

// On up to so many ranks, of which each has some rows and columns.
static void check_on(int32_t most_ranks, const char *folder, const char *file, double most)
{
    for (int32_t ranks = 1; ranks <= most_ranks; ranks++) {
        const double diff = compare_ranks(folder, file, "float32", NULL, ranks);
        if (diff > most) fail_msg("%s, %d ranks: off by %g", file, ranks, diff);
    }
}

static void check_converted(const char *folder, const char *file, double most)
{
    check_on(2, folder, file, most);
}

// Files that llama.cpp's converter has written, of all other architectures: the same bits, whatever
// the order of their rows and tensors, and whether their norms have the 1 added.
static void test_converted(void **state)
{
    (void)state;
    static const char *const models[] = {
        "gemma2",     "gemma3",       "qwen3moe",     "qwen2moe",      "mixtral",     "phi3",
        "phi3-long",  "granite",      "smollm3",      "olmo2",         "glm4",        "gpt-oss",
        "llama4",     "deepseek2",    "deepseek2-v3", "qwen3next",     "gemma",       "mistral3",
        "qwen3vl",    "glm4moe",      "minimax-m2",   "seed_oss",      "olmo3",       "olmoe",
        "ernie4_5",   "ernie4_5-moe", "dots1",        "hunyuan-dense", "hunyuan-moe", "exaone4",
        "qwen3vlmoe",

    };
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        char folder[64], file[64];
        snprintf(folder, sizeof folder, "converted/%s", models[i]);
        snprintf(file, sizeof file, "converted/%s.gguf", models[i]);
        // A_log, which the file has as -exp of it, is rounded twice.
        check_converted(folder, file, strcmp(models[i], "qwen3next") == 0 ? 1e-4 : 0);
    }
}

// The same of models of tests/vectors/models, and of those whose A is stored as -exp(A_log), which
// is rounded twice.
static void test_converted_models(void **state)
{
    (void)state;
    static const struct {
        const char *folder, *file;
        double most;
        bool one_rank; // its Mamba-2 has one group
    } models[] = {
        {"../models/gemma4_conditional", "gemma4", 0, false},
        {"../models/gemma4_kv", "gemma4-kv", 0, false},
        {"../models/gemma4_moe", "gemma4-moe", 0, false},
        {"../models/lfm2", "lfm2", 0, false},
        {"../models/lfm2_moe", "lfm2moe", 0, false},
        {"../models/granite_hybrid", "granitehybrid", 1e-4, true},
        {"converted/granitehybrid-moe", "granitehybrid-moe", 1e-4, false},
        {"converted/bamba", "bamba", 1e-4, false},
        {"converted/falcon-h1", "falcon-h1", 1e-4, true},
        {"converted/falcon-h1-norm", "falcon-h1-norm", 1e-4, false},
        {"converted/nemotron_h", "nemotron_h", 1e-4, false},
        {"converted/nemotron_h_moe", "nemotron_h_moe", 1e-4, false},
        {"converted/nemotron_h_latent", "nemotron_h_latent", 1e-4, false},
        {"../models/mimo_v2", "mimo2", 0, false},
        {"../models/deepseek_v32", "deepseek32", 0, false},
        {"../models/glm_moe_dsa", "glm-dsa", 0, false},
        {"../models/stablelm", "stablelm", 0, false},
        {"../models/stablelm_parallel", "stablelm-parallel", 0, false},
        {"converted/bailingmoe", "bailingmoe", 0, false},
        {"../models/bailing_moe_v2", "bailingmoe2", 0, false},
        {"converted/phimoe", "phimoe", 0, false},
        {"../models/apertus", "apertus", 1e-4, false}, // factors of rotation are rounded to f32
        {"converted/kimi-linear", "kimi-linear", 1e-4, false},
    };
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        char file[64];
        snprintf(file, sizeof file, "converted/%s.gguf", models[i].file);
        check_on(models[i].one_rank ? 1 : 2, models[i].folder, file, models[i].most);
    }
}

// Qwen3.5, whose value heads a file has in another order; by tools/make_qwen35_gguf.py, which does
// what the converter does.
static void test_reordered_heads(void **state)
{
    (void)state;
    check_converted("../models/qwen3_5", "converted/qwen35.gguf", 1e-4);
    check_converted("../models/qwen3_5_moe", "converted/qwen35moe.gguf", 1e-4);
}

// Latent attention with all of kv_b_proj, of which the file has K's rows as columns.
static void test_expanded(void **state)
{
    (void)state;
    assert_int_equal(setenv("MINISGL_LATENT_PROMPTS", "expanded", 1), 0);
    for (int32_t ranks = 1; ranks < 3; ranks++) {
        assert_true(compare_ranks("converted/deepseek2", "converted/deepseek2.gguf", "float32",
                                  NULL, ranks) == 0);
    }
    assert_int_equal(unsetenv("MINISGL_LATENT_PROMPTS"), 0);
}

// Llama 3's scaled frequencies come from a tensor that was rounded to f32.
static void test_rope_factors(void **state)
{
    (void)state;
    assert_true(compare("llama3", "llama3-bf16.gguf", "float32", NULL) < 1e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_converted),
        cmocka_unit_test(test_converted_models),
        cmocka_unit_test(test_reordered_heads),
        cmocka_unit_test(test_expanded),
        cmocka_unit_test(test_rope_factors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
