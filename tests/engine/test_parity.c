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
#include "engine/harness.h"

enum { POSITIONS = 64, PATH = 512 };

static const char *const MODELS[] = {
    "llama",
    "llama_tf5",
    "llama_rope_llama3",
    "llama_rope_linear",
    "llama_rope_dynamic",
    "llama_rope_yarn",
    "llama_gqa5_sharded",
    "llama_hd256",
    "llama_f16",
    "mistral_swa",
    "qwen2_gqa7",
    "qwen3",
    "qwen3_tf5",
    "qwen3_f32",
    "qwen3_moe",
    "qwen3_moe_mixed",
};

static void vector_path(char *out, const char *model, const char *file)
{
    snprintf(out, PATH, MSGL_SOURCE_DIR "/tests/vectors/models/%s%s%s", model,
             file[0] != '\0' ? "/" : "", file);
}

// Prefills the whole prompt and leaves its 64 rows of log-probabilities in the harness. False when
// the backend cannot run the model.
static bool run_prompt(harness *h, const char *model, const char *dtype, const char *level,
                       const msgl_attn_desc *backend)
{
    char dir[PATH], prompt[PATH];
    int32_t ids[POSITIONS];
    vector_path(dir, model, "");
    vector_path(prompt, model, "prompt.json");
    assert_int_equal(load_ids(prompt, "ids", ids, POSITIONS), POSITIONS);
    msgl_engine_config cfg = harness_config(dir, dtype);
    cfg.cpu_level = level;
    cfg.attention = backend->name;
    msgl_engine *e = NULL;
    msgl_err err;
    if (msgl__engine_create(&cfg, &e, &err) == MSGL_EUNSUPPORTED) return false;
    msgl__engine_destroy(e);
    harness_open(h, &cfg);
    harness_pages(h, 3, POSITIONS + 1);
    harness_tokens(h, 3, ids, POSITIONS);
    msgl_batch_req req = harness_req(3, 0, POSITIONS);
    harness_step(h, MSGL_PREFILL, &req, 1);
    return true;
}

static int32_t argmax(const float *v, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) best = v[i] > v[best] ? i : best;
    return best;
}

static void check_f32(const char *model, const char *level, const msgl_attn_desc *backend)
{
    harness h;
    char path[PATH];
    if (!run_prompt(&h, model, "float32", level, backend)) return;
    const size_t n = (size_t)POSITIONS * (size_t)h.info->vocab_size;
    vector_path(path, model, "expected_f32.bin");
    float *want = load_floats(path, n);
    double worst = 0;
    for (size_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)h.logprobs[i] - want[i]));
    print_message("%-20s %s, %s: f32 max difference %.2e\n", model, h.info->device,
                  h.info->attention, worst);
    assert_true(worst < 1e-3);
    free(want);
    harness_close(&h);
}

// The best two log-probabilities of a row.
static float margin(const float *v, int32_t n)
{
    const int32_t best = argmax(v, n);
    float second = -INFINITY;
    for (int32_t i = 0; i < n; i++) second = i != best && v[i] > second ? v[i] : second;
    return v[best] - second;
}

// Against f32, like transformers' own half-precision run: the mean difference, and the same first
// choice wherever that run keeps it safely, its margin above twice its largest error in the row.
static void check_half(const char *model, const char *dtype, const char *file, const char *level)
{
    harness h;
    char path[PATH];
    assert_true(run_prompt(&h, model, dtype, level, msgl__attn_find("fa", MSGL_DEVICE_CPU)));
    const int32_t vocab = h.info->vocab_size;
    const size_t n = (size_t)POSITIONS * (size_t)vocab;
    vector_path(path, model, "expected_f32.bin");
    float *exact = load_floats(path, n);
    vector_path(path, model, file);
    float *rounded = load_floats(path, n);
    double sum = 0;
    int clear = 0;
    for (int32_t p = 0; p < POSITIONS; p++) {
        const float *got = harness_row(&h, p), *want = exact + (size_t)p * (size_t)vocab;
        const float *theirs = rounded + (size_t)p * (size_t)vocab;
        float rounding = 0;
        for (int32_t i = 0; i < vocab; i++) {
            sum += fabs((double)got[i] - want[i]);
            rounding = fmaxf(rounding, fabsf(theirs[i] - want[i]));
        }
        if (margin(want, vocab) <= 2 * rounding) continue;
        clear++;
        assert_int_equal(argmax(got, vocab), argmax(want, vocab));
    }
    print_message("%-20s %s: %s mean difference %.4f, %d clear of %d\n", model, h.info->device,
                  dtype, sum / (double)n, clear, POSITIONS);
    assert_true(sum / (double)n < 0.05);
    free(exact);
    free(rounded);
    harness_close(&h);
}

static void test_parity_f32(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(MODELS); i++) {
        for (int l = 0; l <= (int)msgl__cpu_level_detect(); l++) {
            check_f32(MODELS[i], msgl__cpu_level_name((msgl_cpu_level)l),
                      msgl__attn_find("fa", MSGL_DEVICE_CPU));
        }
    }
}

static void test_parity_bf16(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(MODELS); i++) {
        for (int l = 0; l <= (int)msgl__cpu_level_detect(); l++) {
            check_half(MODELS[i], "bfloat16", "expected_bf16.bin",
                       msgl__cpu_level_name((msgl_cpu_level)l));
        }
    }
}

static void test_parity_f16(void **state)
{
    (void)state;
    check_half("llama_f16", "auto", "expected_f16.bin", NULL);
}

// Every attention backend of the registry gives the same log-probabilities, where it can run.
static void test_parity_backends(void **state)
{
    (void)state;
    const char *const models[] = {"qwen3",       "mistral_swa",       "qwen2_gqa7",
                                  "llama_hd256", "llama_rope_linear", "llama_rope_yarn"};
    int count;
    const msgl_attn_desc *const *backends = msgl__attn_backends(&count);
    for (int b = 0; b < count; b++) {
        if ((backends[b]->devices & 1u << MSGL_DEVICE_CPU) == 0) continue;
        for (size_t i = 0; i < MSGL_COUNT(models); i++) check_f32(models[i], NULL, backends[b]);
    }
}

// An architecture that is registered has vectors here.
static void test_all_covered(void **state)
{
    (void)state;
    for (int a = 0; a < msgl__arch_count(); a++) {
        bool covered = false;
        for (size_t i = 0; i < MSGL_COUNT(MODELS) && !covered; i++) {
            char dir[PATH];
            msgl_err err = {0};
            msgl_model_config *c = malloc(sizeof *c);
            vector_path(dir, MODELS[i], "");
            if (msgl__model_config_load(dir, c, &err) != 0) fail_msg("%s", err.text);
            covered = c->arch == msgl__arch_at(a);
            free(c);
        }
        if (!covered) fail_msg("no vectors for %s", msgl__arch_at(a)->name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_covered),     cmocka_unit_test(test_parity_f32),
        cmocka_unit_test(test_parity_bf16),     cmocka_unit_test(test_parity_f16),
        cmocka_unit_test(test_parity_backends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
