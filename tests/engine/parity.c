// SPDX-License-Identifier: Apache-2.0
#include "engine/parity.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// Positions whose first choice is clear are what the half-precision runs are compared at: 44 or
// more in every model, so fewer than MIN_CLEAR means broken vectors.
enum { POSITIONS = 64, PATH = 512, MIN_CLEAR = 32 };

const char *const parity_models[] = {
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
    "qwen2_dual_chunk",
    "qwen3",
    "qwen3_tf5",
    "qwen3_f32",
    "qwen3_fp8",
    "qwen3_moe",
    "qwen3_moe_mixed",
    "qwen2_moe",
    "mixtral",
    "phi3_swa",
    "phi3_longrope_short",
    "phi3_longrope_long",
    "olmo2",
    "smollm3",
    "arcee",
    "starcoder2",
    "stablelm",
    "stablelm_parallel",
    "cohere",
    "cohere2",
    "apertus",
    "phimoe",
    "phimoe_tf5",
    "internlm3",
    "internlm3_plain",
    "bailing_moe",
    "bailing_moe_v2",
    "granite",
    "gemma2",
    "gemma3",
    "gemma3_conditional",
    "gemma4",
    "gemma4_hd512",
    "gemma4_ple",
    "gemma4_conditional",
    "gemma4_kv",
    "gemma4_moe",
    "glm4",
    "deepseek_v2",
    "deepseek_v2_lite",
    "deepseek_v2_wide",
    "deepseek_v3",
    "deepseek_v32",
    "glm_moe_dsa",
    "glm4_moe_lite",
    "qwen3_next",
    "qwen3_next_hd128",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_conditional",
    "qwen3_5_moe_conditional",
    "qwen4_exp",
    "qwen4_exp_ngrams",
    "qwen4_exp_full",
    "qwen4_exp_conditional",
    "lfm2",
    "lfm2_bias",
    "lfm2_moe",
    "granite_hybrid",
    "granite_hybrid_moe",
    "bamba",
    "falcon_h1",
    "falcon_h1_norm",
    "kimi_linear",
    "nemotron_h",
    "nemotron_h_moe",
    "nemotron_h_latent",
    "zamba2",
    "zamba2_rope",
    "gpt_oss",
    "gpt_oss_mxfp4",
    "llama4",
    "llama4_conditional",
    "mimo_v2",
    "mimo_v2_hd192",
    "gemma",
    "ministral3",
    "mistral3",
    "mistral3_ministral",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen3_vl_moe_tf5",
    "glm4_moe",
    "glm4_moe_air",
    "minimax_m2",
    "deepseek_v4",
    "deepseek_v4_tf5",
    "minimax_m3",
    "minimax_m3_hd128",
    "minimax_m3_conditional",
    "seed_oss",
    "olmo3",
    "olmoe",
    "ernie4_5",
    "ernie4_5_moe",
    "dots1",
    "hunyuan",
    "hunyuan_moe",
    "exaone4",
    "exaone4_full",
    "kimi_k25",
    NULL,
};

void parity_path(char *out, const char *model, const char *file)
{
    snprintf(out, PATH, MSGL_SOURCE_DIR "/tests/vectors/models/%s%s%s", model,
             file[0] != '\0' ? "/" : "", file);
}

// Positions [from, to) in steps of up to n; their rows go to where a single prefill leaves them.
static void run_steps(harness *h, msgl_phase phase, int32_t from, int32_t to, int32_t n,
                      const int32_t *ids)
{
    const size_t vocab = (size_t)h->info->vocab_size;
    float *rows = malloc(POSITIONS * vocab * sizeof *rows);
    assert_non_null(rows);
    memcpy(rows, h->logprobs, (size_t)from * vocab * sizeof *rows);
    harness_tokens(h, 3, ids, POSITIONS); // the sampled token is not the one to go on with
    for (int32_t t = from; t < to; t += n) {
        const int32_t end = to - t < n ? to : t + n;
        msgl_batch_req req = harness_req(3, t, end);
        req.sample = false;
        harness_step(h, phase, &req, 1);
        memcpy(rows + (size_t)t * vocab, harness_row(h, 0),
               (size_t)(end - t) * vocab * sizeof *rows);
    }
    memcpy(h->logprobs, rows, POSITIONS * vocab * sizeof *rows);
    free(rows);
}

bool parity_prompt(harness *h, const char *dir, const char *model, const char *dtype,
                   const harness_target *target)
{
    char prompt[PATH];
    int32_t ids[POSITIONS];
    parity_path(prompt, model, "prompt.json");
    assert_int_equal(load_ids(prompt, "ids", ids, POSITIONS), POSITIONS);
    msgl_options cfg = harness_config_for(dir, dtype, target);
    if (target->attention == NULL && strcmp(model, "qwen2_dual_chunk") == 0) cfg.attention = "auto";
    msgl_err err = {0};
    const int code = harness_try_open(h, &cfg, &err);
    if (code == MSGL_EUNSUPPORTED) {
        print_message("%-20s did not run: %s\n", model, err.text);
        return false;
    }
    if (code != 0) fail_msg("%s: %s", model, err.text);
    harness_pages(h, 3, POSITIONS + 1);
    harness_tokens(h, 3, ids, POSITIONS);
    const int32_t first = target->answers_from > 0 ? target->answers_from : POSITIONS;
    const int32_t at_once = target->chunk > 0 && target->chunk < first ? target->chunk : first;
    msgl_batch_req req = harness_req(3, 0, at_once);
    harness_step(h, MSGL_PREFILL, &req, 1);
    if (at_once < first) run_steps(h, MSGL_PREFILL, at_once, first, at_once, ids);
    if (first < POSITIONS) run_steps(h, MSGL_DECODE, first, POSITIONS, 1, ids);
    return true;
}

static int32_t argmax(const float *v, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) best = v[i] > v[best] ? i : best;
    return best;
}

bool parity_f32(const char *model, const harness_target *target)
{
    char dir[PATH];
    parity_path(dir, model, "");
    return parity_f32_in(dir, model, target);
}

bool parity_f32_in(const char *dir, const char *model, const harness_target *target)
{
    harness h;
    char path[PATH];
    if (!parity_prompt(&h, dir, model, "float32", target)) return false;
    const size_t n = (size_t)POSITIONS * (size_t)h.info->vocab_size;
    parity_path(path, model, "expected_f32.bin");
    float *want = load_floats(path, n);
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        const double diff = fabs((double)h.logprobs[i] - want[i]);
        if (!(diff < 1e-3)) fail_msg("%s: value %zu is off by %g", model, i, diff); // NaN too
        worst = fmax(worst, diff);
    }
    print_message("%-20s %s, %s: f32 max difference %.2e\n", model, h.info->device,
                  h.info->attention, worst);
    free(want);
    harness_close(&h);
    return true;
}

// The best two log-probabilities of a row.
static float margin(const float *v, int32_t n)
{
    const int32_t best = argmax(v, n);
    float second = -INFINITY;
    for (int32_t i = 0; i < n; i++) second = i != best && v[i] > second ? v[i] : second;
    return v[best] - second;
}

// "Safely": its margin is above twice its largest error in the row. On a GPU products of FP8
// weights are those of values in bf16, as transformers' here were: test_stored has their divergence
// by activations in E4M3.
bool parity_half(const char *model, const char *dtype, const char *file,
                 const harness_target *target)
{
    harness h;
    char dir[PATH], path[PATH];
    harness_target t = *target;
    t.deterministic |= t.device != NULL && strcmp(model, "qwen3_fp8") == 0;
    parity_path(dir, model, "");
    if (!parity_prompt(&h, dir, model, dtype, &t)) return false;
    const int32_t vocab = h.info->vocab_size;
    const size_t n = (size_t)POSITIONS * (size_t)vocab;
    parity_path(path, model, "expected_f32.bin");
    float *exact = load_floats(path, n);
    parity_path(path, model, file);
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
    assert_true(clear >= MIN_CLEAR);
    free(exact);
    free(rounded);
    harness_close(&h);
    return true;
}
