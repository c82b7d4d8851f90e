// SPDX-License-Identifier: Apache-2.0
//
// The engine on this machine's GPU: log-probabilities of every architecture's vectors with every
// attention backend against transformers, and with `deterministic` the same bits in any batch, in
// any chunks, with any pages, with graphs and without. Exit code 77 without a GPU.
//
//     cuda_engine [--quick] [--only PATTERN]     of names, with * and ?
#include <assert.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "device/devices.h"
#include "engine/determinism.h"
#include "engine/dual_models.h"
#include "engine/parity.h"
#include "utils/plugin.h"

static bool quick; // cmocka's tests take no argument

// One test: what it checks is in its name too.
typedef struct test_case {
    const char *model, *dtype, *expected; // dtype NULL: float32
    const msgl_attn_desc *desc;           // NULL: auto
    const char *weights, *kv;             // NULL: as dtype
    int32_t answers_from, graph_max_bs;   // of harness_target
    int32_t chunk;                        // the same
    const char *prompts;                  // MINISGL_LATENT_PROMPTS, or NULL
    char name[96];
} test_case;

enum { MAX_CASES = 640 };

static harness_target target_of(const test_case *c)
{
    harness_target t = {.device = "cuda", .attention = "auto", .page_size = 16};
    if (c->desc == NULL) return t;
    t.attention = c->desc->name;
    if (c->desc->page_rule == MSGL_PAGE_SET) t.page_size = c->desc->page_override;
    return t;
}

// Whether GPUs have kernels for what the layers keep: an index over latent vectors chooses keys in
// 16 bits alone.
static bool has_kernels_for_caches(const msgl_model_config *c, const char *dtype)
{
    msgl_cache_specs specs;
    msgl__model_caches(c, 1, MSGL_BF16, MSGL_BF16, &specs);
    bool latent = false, index = false;
    for (int32_t i = 0; i < specs.count; i++) {
        latent |= specs.all[i].kind == MSGL_CACHE_LATENT;
        index |= specs.all[i].kind == MSGL_CACHE_INDEX;
    }
    return dtype != NULL || !latent || !index;
}

// Whether GPUs have kernels for the model: dual chunk attention wants 16 bits.
static bool has_kernels(const char *model, const char *dtype)
{
    char dir[512];
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    parity_path(dir, model, "");
    if (msgl__model_config_load(dir, c, &err) != 0) fail_msg("%s", err.text);
    const bool dual = c->ropes[0].dual.len > 0, keeps = has_kernels_for_caches(c, dtype);
    free(c);
    return keeps && (!dual || dtype != NULL);
}

static void test_parity(void **state)
{
    const test_case *c = *state;
    harness_target t = target_of(c);
    t.answers_from = c->answers_from;
    t.graph_max_bs = c->graph_max_bs;
    t.chunk = c->chunk;
    if (c->prompts != NULL) setenv("MINISGL_LATENT_PROMPTS", c->prompts, 1);
    const bool ran = c->dtype == NULL ? parity_f32(c->model, &t)
                                      : parity_half(c->model, c->dtype, c->expected, &t);
    unsetenv("MINISGL_LATENT_PROMPTS");
    if (ran != has_kernels(c->model, c->dtype)) fail_msg("%s", ran ? "ran" : "did not run");
}

// Mean difference of log-probabilities of the positions behind the first chunk of 24.
static double apart(const harness *a, const harness *b)
{
    const int32_t vocab = a->info->vocab_size;
    double sum = 0;
    for (int32_t p = 24; p < 64; p++) {
        const float *x = harness_row(a, p), *y = harness_row(b, p);
        for (int32_t i = 0; i < vocab; i++) sum += fabs((double)x[i] - (double)y[i]);
    }
    return sum / (40.0 * vocab);
}

// Sparse prompts are the CPU's, not the same model's dense ones.
static void test_sparse_prompt(void **state)
{
    (void)state;
    const char *model = "qwen2_dual_chunk";
    const harness_target cpu = {.attention = "auto"};
    const harness_target gpu = {.device = "cuda", .attention = "auto", .page_size = 16};
    char dir[512];
    folder f;
    harness dense, want, got;
    parity_path(dir, model, "");
    dual_make_sparse(&f, 1, 1);
    assert_true(parity_prompt(&dense, dir, model, "float32", &cpu));
    assert_true(parity_prompt(&want, f.dir, model, "float32", &cpu));
    assert_true(parity_prompt(&got, f.dir, model, "bfloat16", &gpu));
    folder_remove(&f);
    const double near = apart(&got, &want), far = apart(&got, &dense);
    print_message("mean difference from the CPU's %.4f, from dense %.4f\n", near, far);
    assert_true(near < 0.05);
    assert_true(far > 3 * near);
    harness_close(&dense);
    harness_close(&want);
    harness_close(&got);
}

// Decode steps are launched kernel by kernel at first and compared with those in graphs.
static void test_deterministic(void **state)
{
    const test_case *c = *state;
    const char *name = c->desc->name;
    const bool set = c->desc->page_rule == MSGL_PAGE_SET;
    const harness_target base = {.device = "cuda",
                                 .attention = name,
                                 .weights = c->weights,
                                 .kv = c->kv,
                                 .page_size = 16,
                                 .deterministic = true};
    harness_target others[] = {base, base};
    others[0].page_size = set ? 32 : 1;
    others[0].graph_max_bs = 40;
    others[1].page_size = 64;
    check_determinism(c->model, &base, false, others, MSGL_COUNT(others));
}

static void add(struct CMUnitTest *tests, int *n, CMUnitTestFunction fn, test_case c)
{
    static test_case cases[MAX_CASES];
    assert(*n < MAX_CASES);
    snprintf(c.name, sizeof c.name, "%s %s, %s %s%s%s%s%s%s%s%s%s%s",
             fn == test_deterministic ? "deterministic" : "parity",
             c.desc != NULL ? c.desc->name : "auto", c.model, c.dtype != NULL ? c.dtype : "float32",
             c.weights != NULL ? ", weights " : "", c.weights != NULL ? c.weights : "",
             c.kv != NULL ? ", cache " : "", c.kv != NULL ? c.kv : "",
             c.answers_from > 0 ? ", answers" : "", c.graph_max_bs > 0 ? " in graphs" : "",
             c.prompts != NULL ? ", " : "", c.prompts != NULL ? c.prompts : "",
             c.chunk > 0 ? " in chunks" : "");
    cases[*n] = c;
    tests[*n] = (struct CMUnitTest){cases[*n].name, fn, NULL, NULL, &cases[*n]};
    (*n)++;
}

static void add_e4m3(struct CMUnitTest *tests, int *n, const char *model, const msgl_attn_desc *d)
{
    if ((d->kv_dtypes & 1u << MSGL_E4M3) == 0) return;
    add(tests, n, test_deterministic,
        (test_case){.model = model, .dtype = "auto", .desc = d, .kv = "fp8_e4m3"});
}

// Of one for latent caches: the model with vectors of 512 + 64, which fast kernels are made for.
static void add_latent(struct CMUnitTest *tests, int *n, const msgl_attn_desc *d)
{
    const char *model = "deepseek_v2_wide";
    add(tests, n, test_parity, (test_case){model, "bfloat16", "expected_bf16.bin", .desc = d});
    add(tests, n, test_deterministic, (test_case){.model = model, .dtype = "auto", .desc = d});
    const bool fi = strcmp(d->name, "fi") == 0 || strcmp(d->name, "flashinfer") == 0;
    if (!fi) add_e4m3(tests, n, model, d); // it has no such kernel
    if (d->expand == NULL) return;
    const test_case expanded = {model, "bfloat16", "expected_bf16.bin", .desc = d,
                                .prompts = "expanded"};
    test_case others[] = {expanded, expanded, expanded, expanded};
    others[0].prompts = "absorbed";
    others[2].chunk = 27; // most keys of the last chunk are older
    others[3].answers_from = 33;
    for (size_t i = 0; i < MSGL_COUNT(others); i++) add(tests, n, test_parity, others[i]);
}

// Of one for heads of 512, and V of fewer elements than K.
static void add_wide(struct CMUnitTest *tests, int *n, const msgl_attn_desc *d)
{
    const char *const models[] = {"gemma4_hd512", "mimo_v2_hd192"};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        add(tests, n, test_deterministic,
            (test_case){.model = models[i], .dtype = "auto", .desc = d});
        add_e4m3(tests, n, models[i], d);
    }
}

// Of one backend: a few models; all of them run on auto.
static void add_backend(struct CMUnitTest *tests, int *n, const msgl_attn_desc *d)
{
    if ((d->caches & 1u << MSGL_CACHE_LATENT) != 0) add_latent(tests, n, d);
    if (d->caches == 1u << MSGL_CACHE_LATENT || d->labels) return; // labels: test_double_sparsity.c
    if (d->dual_chunk) {
        add(tests, n, test_deterministic,
            (test_case){.model = "qwen2_dual_chunk", .dtype = "auto", .desc = d});
        tests[(*n)++] = (struct CMUnitTest)cmocka_unit_test(test_sparse_prompt);
        return;
    }
    const char *const models[] = {"qwen3", "mistral_swa", "qwen2_gqa7", "llama_hd256"};
    const char *const fixed[] = {"qwen3",     "qwen3_f32",   "qwen2_gqa7",
                                 "llama_f16", "mistral_swa", "qwen3_moe_mixed"};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        if ((d->kv_dtypes & 1u << MSGL_F32) != 0) {
            add(tests, n, test_parity, (test_case){.model = models[i], .desc = d});
        }
        add(tests, n, test_parity,
            (test_case){models[i], "bfloat16", "expected_bf16.bin", .desc = d});
    }
    for (size_t i = 0; i < MSGL_COUNT(fixed); i++) {
        if (strcmp(fixed[i], "qwen3_f32") == 0 && (d->kv_dtypes & 1u << MSGL_F32) == 0) continue;
        add(tests, n, test_deterministic,
            (test_case){.model = fixed[i], .dtype = "auto", .desc = d});
    }
    add(tests, n, test_deterministic,
        (test_case){.model = "qwen3", .dtype = "auto", .desc = d, .weights = "int8"});
    add_e4m3(tests, n, "qwen3", d);
    if (d->own_v_dim) add_wide(tests, n, d);
    if (!d->sinks) return;
    if ((d->kv_dtypes & 1u << MSGL_F32) != 0) {
        add(tests, n, test_parity, (test_case){.model = "gpt_oss", .desc = d});
    }
    add(tests, n, test_parity, (test_case){"gpt_oss", "bfloat16", "expected_bf16.bin", .desc = d});
    add(tests, n, test_deterministic, (test_case){.model = "gpt_oss", .dtype = "auto", .desc = d});
}

// Models whose states go on token by token, so that no cut of a prompt changes a bit.
static void add_recurrent(struct CMUnitTest *tests, int *n, const msgl_attn_desc *d)
{
    const char *const models[] = {"lfm2",   "granite_hybrid", "nemotron_h_latent", "qwen3_next",
                                  "zamba2", "qwen4_exp",      "qwen4_exp_ngrams"};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        add(tests, n, test_deterministic,
            (test_case){.model = models[i], .dtype = "auto", .desc = d});
    }
}

// Layers that choose blocks, whose lists are computed by fa whatever attends in the others.
static void add_blocks(struct CMUnitTest *tests, int *n, const msgl_attn_desc *d)
{
    const char *const models[] = {"minimax_m3", "minimax_m3_hd128"};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        add(tests, n, test_deterministic,
            (test_case){.model = models[i], .dtype = "auto", .desc = d});
        add_e4m3(tests, n, models[i], d);
    }
}

// Lists of windows' keys, which triton's kernel attends to.
static void add_windows(struct CMUnitTest *tests, int *n, const msgl_attn_desc *d)
{
    const char *const models[] = {"deepseek_v4", "deepseek_v4_tf5"};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) {
        add(tests, n, test_deterministic,
            (test_case){.model = models[i], .dtype = "auto", .desc = d});
    }
}

// Whether the backend was built and made for this GPU. All that is has kernels for the models here.
static bool is_there(const msgl_attn_desc *d, int32_t capability)
{
    msgl_err err = {0};
    const bool latent = d->caches == 1u << MSGL_CACHE_LATENT;
    if ((latent || strncmp(d->name, "trtllm", 6) == 0) && capability / 10 != 9) {
        msgl__err_set(&err, MSGL_EUNSUPPORTED, "it is for Hopper");
    } else if (d->plugin == NULL || msgl__plugin_open(d->plugin, NULL, &err) != NULL) {
        return true;
    }
    printf("%s: skipped: %s\n", d->name, err.text);
    return false;
}

static int add_all(struct CMUnitTest *tests, const msgl_attn_set *set, int32_t capability)
{
    int n = 0;
    for (int m = 0; parity_models[m] != NULL && (!quick || m < 1); m++) {
        add(tests, &n, test_parity, (test_case){.model = parity_models[m]});
        add(tests, &n, test_parity,
            (test_case){parity_models[m], "bfloat16", "expected_bf16.bin", .desc = NULL});
    }
    for (int graphs = 0; graphs < 2 && !quick; graphs++) {
        const char *const models[] = {"qwen3_next_hd128", "llama4",           "lfm2",
                                      "granite_hybrid",   "falcon_h1",        "nemotron_h_latent",
                                      "kimi_linear",      "gemma4_hd512",     "mimo_v2_hd192",
                                      "deepseek_v32",     "zamba2",           "zamba2_rope",
                                      "minimax_m3",       "minimax_m3_hd128", "qwen4_exp",
                                      "qwen4_exp_ngrams", "deepseek_v4"};
        for (size_t m = 0; m < MSGL_COUNT(models); m++) {
            add(tests, &n, test_parity,
                (test_case){models[m], "bfloat16", "expected_bf16.bin", .desc = NULL,
                            .answers_from = 20, .graph_max_bs = graphs ? 4 : 0});
        }
    }
    add(tests, &n, test_parity, (test_case){"llama_f16", "auto", "expected_f16.bin", .desc = NULL});
    for (const msgl_attn_desc *const *d = set->all; *d != NULL && !quick; d++) {
        if (!is_there(*d, capability)) continue;
        add_backend(tests, &n, *d);
        if (strcmp((*d)->name, "triton") == 0) add_windows(tests, &n, *d);
        if (strcmp((*d)->name, "fa") != 0) continue;
        add_recurrent(tests, &n, *d);
        add_blocks(tests, &n, *d);
    }
    return n;
}

int main(int argc, char **argv)
{
    msgl_device_choice choice;
    msgl_err err = {0};
    for (int i = 1; i < argc; i++) {
        quick |= strcmp(argv[i], "--quick") == 0;
        if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) cmocka_set_test_filter(argv[++i]);
    }
    if (msgl__device_choose("cuda", 0, 1, &choice, &err) != 0) {
        fprintf(stderr, "skipped: %s\n", err.text);
        return 77;
    }
    msgl_device_props props;
    if (choice.plugin->props(choice.ordinal, &props, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    static struct CMUnitTest tests[MAX_CASES];
    const int n = add_all(tests, choice.plugin->backends, props.capability);
    return _cmocka_run_group_tests("engine", tests, (size_t)n, NULL, NULL);
}
