// SPDX-License-Identifier: Apache-2.0
//
// Every architecture against transformers: log-probabilities of 64 positions of small random
// models (tests/vectors/models), in float32 and in the dtype of the weights.
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
#include "core/settings.h"
#include "engine/dual_models.h"
#include "engine/parity.h"
#include "engine/stacked.h"
#include "models/folder.h"

static void test_parity_f32(void **state)
{
    (void)state;
    for (size_t i = 0; parity_models[i] != NULL; i++) {
        for (int l = 0; l <= msgl__cpu_level_detect(); l++) {
            const harness_target t = {.level = msgl__cpu_level_name(l)};
            assert_true(parity_f32(parity_models[i], &t));
        }
    }
}

// Answers go on from the states, or inside the chunk, of a prompt.
static void test_parity_answers(void **state)
{
    (void)state;
    static const char *const models[] = {
        "qwen3_next",         "qwen3_5",           "llama4",     "deepseek_v32", "glm_moe_dsa",
        "gemma4_conditional", "mimo_v2",           "lfm2",       "bamba",        "falcon_h1",
        "nemotron_h",         "nemotron_h_latent", "minimax_m3", "zamba2",       "zamba2_rope",
        "qwen4_exp",          "qwen4_exp_ngrams"};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        for (int32_t from = 1; from < 64; from += 31) {
            const harness_target t = {.answers_from = from};
            assert_true(parity_f32(models[i], &t));
        }
    }
}

// Experts that have a tensor each in the vectors are the same in one, whatever the architecture,
// and a language model beside eyes is the same by its newer name.
static void test_parity_stacked(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen3_moe",
                                         "qwen3_moe_mixed",
                                         "mixtral",
                                         "qwen2_moe",
                                         "deepseek_v2",
                                         "deepseek_v3",
                                         "glm4_moe_lite",
                                         "qwen3_next",
                                         "qwen3_5_moe",
                                         "qwen3_5_moe_conditional",
                                         "qwen4_exp_conditional",
                                         "gemma3_conditional",
                                         "minimax_m2",
                                         "ernie4_5_moe",
                                         "kimi_k25",
                                         "nemotron_h_moe",
                                         "nemotron_h_latent",
                                         "glm4_moe"};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        folder f;
        stacked_make(&f, models[i]);
        const harness_target t = {.device = "cpu"};
        assert_true(parity_f32_in(f.dir, models[i], &t));
        folder_remove(&f);
    }
}

// Prompts over latent caches with K and V of every head expanded: at once, in chunks (whose last
// have most of their keys in the cache), and before answers, which are absorbed; from f32 and from
// bf16 pools.
static void test_parity_expanded(void **state)
{
    (void)state;
    static const char *const models[] = {"deepseek_v2", "deepseek_v2_lite", "deepseek_v2_wide",
                                         "deepseek_v3", "glm4_moe_lite"};
    static const harness_target targets[] = {
        {.device = "cpu"}, {.chunk = 27}, {.chunk = 1, .threads = 2}, {.answers_from = 33}};
    assert_int_equal(setenv("MINISGL_LATENT_PROMPTS", "expanded", 1), 0);
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        for (size_t t = 0; t < MSGL_COUNT(targets); t++) {
            assert_true(parity_f32(models[i], &targets[t]));
        }
        assert_true(parity_half(models[i], "bfloat16", "expected_bf16.bin", &targets[1]));
    }
    const harness_target none = {.attention = "flashmla"};
    assert_false(parity_f32("deepseek_v2", &none)); // it offers no expansion on a CPU
    assert_int_equal(unsetenv("MINISGL_LATENT_PROMPTS"), 0);
}

static void test_parity_bf16(void **state)
{
    (void)state;
    for (size_t i = 0; parity_models[i] != NULL; i++) {
        for (int l = 0; l <= msgl__cpu_level_detect(); l++) {
            const harness_target t = {.level = msgl__cpu_level_name(l)};
            assert_true(parity_half(parity_models[i], "bfloat16", "expected_bf16.bin", &t));
        }
    }
}

static void test_parity_f16(void **state)
{
    (void)state;
    const harness_target t = {.device = "cpu"};
    assert_true(parity_half("llama_f16", "auto", "expected_f16.bin", &t));
}

// Every attention backend of the registry gives the same log-probabilities. All of them can run
// these models on a CPU, OpenBLAS being a package that the build needs.
static void test_parity_backends(void **state)
{
    (void)state;
    const char *const models[] = {
        "qwen3",           "mistral_swa", "qwen2_gqa7", "llama_hd256", "llama_rope_linear",
        "llama_rope_yarn", "gemma2",      "gemma3",     "qwen3_next",  "gemma4",
        "gemma4_kv"};
    const msgl_attn_desc *const *backends = msgl__attn_cpu.all;
    for (int b = 0; backends[b] != NULL; b++) {
        const harness_target t = {.attention = backends[b]->name};
        const bool dual = backends[b]->dual_chunk;
        if (backends[b]->labels) continue; // test_double_sparsity.c
        const bool kv = backends[b]->caches != 1u << MSGL_CACHE_LATENT && !dual;
        for (size_t i = 0; kv && i < MSGL_COUNT(models); i++) {
            if (!parity_f32(models[i], &t)) fail_msg("%s: %s did not run", models[i], t.attention);
        }
        if (kv) assert_int_equal(parity_f32("gpt_oss", &t), backends[b]->sinks);
        if (kv) assert_int_equal(parity_f32("llama4", &t), backends[b]->local_chunks);
        if (kv) assert_int_equal(parity_f32("mimo_v2", &t), backends[b]->own_v_dim);
        const bool latent = (backends[b]->caches & 1u << MSGL_CACHE_LATENT) != 0;
        assert_int_equal(parity_f32("deepseek_v2", &t), latent);
        assert_int_equal(parity_f32("deepseek_v2_lite", &t), latent);
        assert_int_equal(parity_f32("qwen2_dual_chunk", &t), dual);
    }
}

// Within one chunk, and up to the original length, dual chunk attention is plain attention: the
// model of qwen2_gqa7 gives transformers' values with it too.
static void test_parity_one_dual_chunk(void **state)
{
    (void)state;
    folder f;
    dual_make(&f, "qwen2_gqa7",
              json_pack("{s:i, s:i, s:i}", "chunk_size", 80, "local_size", 16,
                        "original_max_position_embeddings", 64));
    const harness_target t = {.attention = "auto"};
    assert_true(parity_f32_in(f.dir, "qwen2_gqa7", &t));
    folder_remove(&f);
}

// Sparse prompts that keep every distance are dense ones; those that keep one, each row's to
// itself, are the same in the first chunk, which a block holds, and not behind it.
static void test_parity_sparse_prompt(void **state)
{
    (void)state;
    const harness_target t = {.attention = "auto"};
    folder f;
    harness dense, sparse;
    dual_make_sparse(&f, 64, 64);
    assert_true(parity_f32_in(f.dir, "qwen2_dual_chunk", &t));
    assert_true(parity_prompt(&dense, f.dir, "qwen2_dual_chunk", "float32", &t));
    folder_remove(&f);
    dual_make_sparse(&f, 1, 1);
    assert_true(parity_prompt(&sparse, f.dir, "qwen2_dual_chunk", "float32", &t));
    folder_remove(&f);
    const int32_t vocab = dense.info->vocab_size;
    for (int32_t p = 0; p < 64; p++) {
        const float *a = harness_row(&dense, p), *b = harness_row(&sparse, p);
        double most = 0;
        for (int32_t i = 0; i < vocab; i++) most = fmax(most, fabs((double)a[i] - (double)b[i]));
        assert_int_equal(most < 1e-3, p < 24);
    }
    harness_close(&dense);
    harness_close(&sparse);
}

// An architecture that is registered has vectors here.
static void test_all_covered(void **state)
{
    (void)state;
    for (int a = 0; a < msgl__arch_count(); a++) {
        bool covered = msgl__arch_at(a)->family->encodes; // test_encoders.c has these
        for (size_t i = 0; parity_models[i] != NULL && !covered; i++) {
            char dir[512];
            msgl_err err = {0};
            msgl_model_config *c = malloc(sizeof *c);
            parity_path(dir, parity_models[i], "");
            if (msgl__model_config_load(dir, c, &err) != 0) fail_msg("%s", err.text);
            covered = c->arch == msgl__arch_at(a);
            free(c);
        }
        if (!covered) fail_msg("no vectors for %s", msgl__arch_at(a)->name);
    }
}

// config.alt.json says the same in the other spelling (rope_theta and rope_parameters, ...).
static void test_spellings(void **state)
{
    (void)state;
    int pairs = 0;
    msgl_model_config *a = malloc(sizeof *a), *b = malloc(sizeof *b);
    for (size_t i = 0; parity_models[i] != NULL; i++) {
        char dir[512], alt[512], generation[512];
        msgl_err err = {0};
        folder f;
        parity_path(dir, parity_models[i], "");
        parity_path(alt, parity_models[i], "config.alt.json");
        parity_path(generation, parity_models[i], "generation_config.json");
        json_t *c = json_load_file(alt, 0, NULL), *g = json_load_file(generation, 0, NULL);
        if (c == NULL) continue;
        folder_make(&f);
        folder_write_json(&f, "config.json", c);
        if (g != NULL) folder_write_json(&f, "generation_config.json", g);
        json_decref(c);
        json_decref(g);
        if (msgl__model_config_load(dir, a, &err) != 0) fail_msg("%s", err.text);
        if (msgl__model_config_load(f.dir, b, &err) != 0) fail_msg("%s", err.text);
        folder_remove(&f);
        bool same = true; // of the samplings the settings: there are gaps between their members
        for (int k = 0; k < msgl__sampling_settings.count; k++) {
            const msgl_setting *row = &msgl__sampling_settings.rows[k];
            same = same && msgl__setting_number(row, &a->sampling) ==
                               msgl__setting_number(row, &b->sampling);
        }
        memcpy(&a->sampling, &b->sampling, sizeof a->sampling);
        if (!same || memcmp(a, b, sizeof *a) != 0) {
            fail_msg("%s: spellings differ", parity_models[i]);
        }
        pairs++;
    }
    assert_true(pairs >= 24);
    free(a);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_covered),
        cmocka_unit_test(test_parity_f32),
        cmocka_unit_test(test_parity_answers),
        cmocka_unit_test(test_parity_stacked),
        cmocka_unit_test(test_parity_expanded),
        cmocka_unit_test(test_parity_bf16),
        cmocka_unit_test(test_parity_f16),
        cmocka_unit_test(test_parity_backends),
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_parity_one_dual_chunk),
        cmocka_unit_test(test_parity_sparse_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
