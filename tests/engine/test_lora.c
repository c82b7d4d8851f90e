// SPDX-License-Identifier: Apache-2.0
//
// Adapters beside the model, against peft (tests/vectors/lora): of every kind of product, alone and
// any of them in one step, in chunks and as answers, over several forms of weights; what rows
// without one get is what they get from an engine without any, bit by bit. With TEST_DEVICE, which
// tests/cuda sets, on a GPU, whose answers are also captured steps. With BY_TILES on a CPU that
// computes adapters as GPUs do (lora_tiles.c).
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../models/folder.h"
#include "core/mem.h"
#include "device/devices.h"
#include "engine/parity.h"
#include "kernel/cpu.h"
#include "lora_case.h"
#include "lora_tiles.h"
#include "utils/file.h"

enum { PROMPT = 64, POSITIONS = 32 };

// False: a GPU has no kernels for the model.
static bool computed(const msgl_options *o)
{
    harness h;
    msgl_err err = {0};
    const int code = harness_try_open(&h, o, &err);
    if (code == MSGL_EUNSUPPORTED && !ON_CPU) {
        print_message("%s, skipped: %s\n", o->dtype, err.text);
        return false;
    }
    if (code != 0) fail_msg("%s", err.text);
    harness_close(&h);
    return true;
}

static void prompt_of(const char *model, int32_t ids[PROMPT])
{
    char path[PATH];
    parity_path(path, model, "prompt.json");
    assert_int_equal(load_ids(path, "ids", ids, PROMPT), PROMPT);
}

// Mean difference of n values.
static double mean_difference(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += fabs((double)a[i] - (double)b[i]);
    return sum / (double)n;
}

// Largest difference of rows [0, n) from the file's rows from `first` on.
static double difference(const harness *h, int32_t at, const float *expected, int32_t first,
                         int32_t n)
{
    const size_t vocab = (size_t)h->info->vocab_size;
    double most = 0;
    for (size_t i = 0; i < (size_t)n * vocab; i++) {
        const double d =
            fabs((double)harness_row(h, at)[i] - (double)expected[(size_t)first * vocab + i]);
        most = d > most || isnan(d) ? d : most;
    }
    return most;
}

static float *expected_of(const harness *h, const char *name)
{
    char path[PATH];
    lora_path(path, name, "expected_f32.bin");
    return load_floats(path, (size_t)POSITIONS * (size_t)h->info->vocab_size);
}

static const struct {
    const char *name, *model;
} ADAPTERS[] = {
    {"attention", "qwen3_f32"},
    {"all", "qwen3_f32"},
    {"few", "qwen3_f32"},
    {"wide", "qwen3_f32"},
    {"patterns", "qwen3_f32"},
    {"ends", "qwen3_f32"},
    {"head", "llama"},
    {"biased", "qwen2_gqa7"},
    {"fused", "phi3_swa"},
    {"pairs", "glm4"},
    {"norms", "gemma3"},
    {"gated", "qwen3_next"},
    {"latent", "deepseek_v2"},
    {"beside_experts", "qwen3_moe"},
    {"shared_expert", "qwen2_moe"},
    {"channels", "kimi_linear"},
    {"convolved", "lfm2"},
    {"recurrent", "falcon_h1"},
    {"side_by_side", "cohere2"},
    {"no_gate", "starcoder2"},
    {"per_layer", "gemma4_ple"},
    {"gate_names", "kimi_linear"},
    {"latent_kv", "deepseek_v2"},
    {"experts", "qwen3_moe"},
    {"experts_apart", "qwen3_moe"},
    {"experts_alternate", "gpt_oss"},
    {"experts_down", "gpt_oss"},
    {"experts_plain", "nemotron_h_moe"},
    {"saved", "llama"},
    {"saved_tied", "qwen3_f32"},
    {"saved_biased", "qwen2_gqa7"},
    {"tokens", "llama"},
    {"tokens_tied", "qwen3_f32"},
};

#define GGUF "../gguf/"

// The whole prompt at once, then in a chunk and answers. level NULL: the CPU's best. Of models in
// GGUF's folder the adapter is a GGUF file, and the prompt llama's.
// False: a GPU has no kernels for the model.
static bool check_alone(const char *name, const char *model, const char *level, int ranks)
{
    const bool gguf = strncmp(model, GGUF, sizeof GGUF - 1) == 0;
    char dir[PATH], adapter[128];
    int32_t ids[PROMPT];
    harness h;
    msgl_err err = {0};
    parity_path(dir, model, "");
    prompt_of(gguf ? "llama" : model, ids);
    (void)snprintf(adapter, sizeof adapter, "%s%s", name, gguf ? "/adapter.gguf" : "");
    msgl_options o = config(dir, "float32", true);
    o.cpu_level = level;
    o.tp_size = ranks;
    const int code = harness_try_open(&h, &o, &err);
    if (code == MSGL_EUNSUPPORTED && !ON_CPU) {
        print_message("%-16s over %-12s skipped: %s\n", name, model, err.text);
        return false;
    }
    if (code != 0) fail_msg("%s", err.text);
    load(&h, 2, adapter);
    float *expected = expected_of(&h, name);
    harness_pages(&h, 3, POSITIONS + 1);
    harness_tokens(&h, 3, ids, POSITIONS);
    msgl_batch_req req = harness_req(3, 0, POSITIONS);
    req.adapter = 3;
    harness_step(&h, MSGL_PREFILL, &req, 1);
    double most = difference(&h, 0, expected, 0, POSITIONS);
    print_message("%-16s over %-12s %.2g", name, model, most);
    print_message(", %s, ranks %d\n", level != NULL ? level : "best level", ranks);
    assert_true(most < 1e-3);
    harness_tokens(&h, 3, ids, POSITIONS);
    req = harness_req(3, 0, 20);
    req.adapter = 3;
    req.sample = false;
    req.logits_from = 17; // other rows than the step's
    harness_step(&h, MSGL_PREFILL, &req, 1);
    most = difference(&h, 17, expected, 17, 3);
    for (int32_t t = 20; t < POSITIONS; t++) {
        req = harness_req(3, t, t + 1);
        req.adapter = 3;
        req.sample = false;
        harness_step(&h, MSGL_DECODE, &req, 1);
        const double d = difference(&h, 0, expected, t, 1);
        most = d > most ? d : most;
    }
    assert_true(most < 1e-3);
    free(expected);
    harness_close(&h);
    return true;
}

static void test_against_peft(void **state)
{
    (void)state;
    const size_t num = sizeof ADAPTERS / sizeof ADAPTERS[0];
    size_t ran = 0;
    for (size_t i = 0; i < num; i++) {
        ran += check_alone(ADAPTERS[i].name, ADAPTERS[i].model, NULL, 1);
    }
    assert_true(ON_CPU ? ran == num : ran >= num / 3);
}

// Of prompts whose last tokens alone have logits, the last layer works on these rows: with experts
// whose adapters the first prompt's row has and the second one's has not.
static void test_last_rows(void **state)
{
    (void)state;
    enum { TOKENS = 24 };
    char dir[PATH], base[PATH];
    int32_t ids[PROMPT];
    harness h;
    parity_path(dir, "qwen3_moe", "");
    parity_path(base, "qwen3_moe", "expected_f32.bin");
    prompt_of("qwen3_moe", ids);
    const msgl_options o = config(dir, "float32", true);
    if (!computed(&o)) return;
    harness_open(&h, &o);
    load(&h, 0, "experts");
    msgl_batch_req reqs[2];
    for (int32_t i = 0; i < 2; i++) {
        harness_pages(&h, i, TOKENS);
        harness_tokens(&h, i, ids, TOKENS);
        reqs[i] = harness_req(i, 0, TOKENS);
        reqs[i].sample = false;
        reqs[i].logits_from = TOKENS - 1;
        reqs[i].adapter = i == 0 ? 1 : 0;
    }
    harness_step(&h, MSGL_PREFILL, reqs, 2);
    float *expected[2] = {expected_of(&h, "experts"),
                          load_floats(base, (size_t)PROMPT * (size_t)h.info->vocab_size)};
    for (int32_t i = 0; i < 2; i++) {
        assert_true(difference(&h, (i + 1) * TOKENS - 1, expected[i], TOKENS - 1, 1) < 1e-3);
        free(expected[i]);
    }
    harness_close(&h);
}

static void test_levels(void **state)
{
    (void)state;
    for (msgl_cpu_level l = 0; l <= msgl__cpu_level_detect(); l++) {
        check_alone("all", "qwen3_f32", msgl__cpu_level_name(l), 1);
    }
}

static int gpus(void)
{
    msgl_device_choice choice;
    msgl_err err = {0};
    return msgl__device_choose(TEST_DEVICE, 0, 1, &choice, &err) == 0 ? choice.plugin->count(&err)
                                                                      : 0;
}

// Ranks that have rows or columns of a layer each have those of the adapter.
static void test_ranks(void **state)
{
    (void)state;
    if (!ON_CPU && gpus() < 2) {
        print_message("ranks: skipped: one GPU\n");
        return;
    }
    static const char *const NAMES[] = {
        "all",          "ends",     "fused",       "pairs",   "gated",         "shared_expert",
        "saved",        "tokens",   "tokens_tied", "experts", "experts_apart", "experts_alternate",
        "experts_down", "latent_kv"};
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
        size_t a = 0;
        while (strcmp(ADAPTERS[a].name, NAMES[i]) != 0) a++;
        check_alone(ADAPTERS[a].name, ADAPTERS[a].model, NULL, 2);
    }
}

// A GGUF file's adapter, whose q and k are permuted, over the model's folder and over its GGUF
// file; the second one's tensors are blocks, of which a rank's columns are halves.
static void test_gguf(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= (ON_CPU ? 2 : 1); ranks++) {
        check_alone("gguf_llama", GGUF "llama", NULL, ranks);
        check_alone("gguf_llama", GGUF "llama-f32.gguf", NULL, ranks);
        check_alone("gguf_llama_blocks", GGUF "llama", NULL, ranks);
        check_alone("gguf_llama_blocks", GGUF "llama-f32.gguf", NULL, ranks);
    }
}

// A folder that only rank 0 can read is refused, and the slot is as it was.
static void test_other_rank(void **state)
{
    (void)state;
    char dir[PATH], path[2 * PATH];
    harness h;
    msgl_err err = {0};
    parity_path(dir, "qwen3_f32", "");
    msgl_options o = config(dir, "float32", true);
    o.tp_size = 2;
    harness_open(&h, &o);
    load(&h, 1, "attention");
    lora_path(dir, "all", "");
    (void)snprintf(path, sizeof path, "/proc/self/task/%d/root%s", (int)getpid(), dir);
    assert_int_equal(msgl__runner_load_adapter(h.r, 1, path, &err), MSGL_ENOENT);
    assert_non_null(strstr(err.text, "rank 1"));
    load(&h, 0, "all");
    harness_pages(&h, 0, POSITIONS + 1);
    msgl_batch_req req = harness_req(0, 0, POSITIONS);
    req.adapter = 2;
    harness_step(&h, MSGL_PREFILL, &req, 1);
    harness_close(&h);
}

// Of a ranker, whose prompts' logits are computed in blocks: the last of more prompts than a block
// has is the only one with an adapter, and has the scores that it has alone.
static void test_scores(void **state)
{
    (void)state;
    enum { PROMPTS = 70, LENGTH = 4 };
    char dir[PATH];
    int32_t ids[PROMPT];
    harness h;
    parity_path(dir, "llama", "");
    prompt_of("llama", ids);
    msgl_options o = config(dir, "float32", true);
    o.max_running = PROMPTS;
    o.is_reranker = 1;
    o.score_token_ids[0] = 3, o.score_token_ids[1] = 5;
    harness_open(&h, &o);
    load(&h, 0, "head");
    msgl_batch_req reqs[PROMPTS];
    for (int32_t i = 0; i < PROMPTS; i++) {
        harness_pages(&h, i, LENGTH + 1);
        harness_tokens(&h, i, ids, LENGTH);
        reqs[i] = harness_req(i, 0, LENGTH);
        reqs[i].logits_from = LENGTH - 1;
    }
    reqs[PROMPTS - 1].adapter = 1;
    harness_step(&h, MSGL_PREFILL, reqs, PROMPTS);
    float plain[2], with[2];
    memcpy(plain, h.result.pooled, sizeof plain);
    memcpy(with, h.result.pooled + 2 * (PROMPTS - 1), sizeof with);
    harness_step(&h, MSGL_PREFILL, &reqs[PROMPTS - 1], 1);
    assert_memory_equal(with, h.result.pooled, sizeof with);
    assert_memory_not_equal(with, plain, sizeof with);
    harness_close(&h);
}

enum { MIXED = 4, FIRST = 24 };

// The first request's rows by an engine that has no adapters, where it is alone: [POSITIONS, vocab]
// of its prompt and then its answers, as run_mixed has them.
static float *without(const char *dir, const char *dtype, const char *weights, const int32_t *ids)
{
    harness h;
    msgl_options o = config(dir, dtype, false);
    o.weight_dtype = weights;
    harness_open(&h, &o);
    const size_t vocab = (size_t)h.info->vocab_size;
    float *rows = malloc(POSITIONS * vocab * sizeof *rows);
    assert_non_null(rows);
    harness_pages(&h, 0, POSITIONS + 1);
    harness_tokens(&h, 0, ids, POSITIONS);
    for (int32_t t = 0; t < POSITIONS; t = t == 0 ? FIRST : t + 1) {
        const int32_t n = t == 0 ? FIRST : 1;
        msgl_batch_req req = harness_req(0, t, t + n);
        req.sample = false;
        harness_step(&h, t == 0 ? MSGL_PREFILL : MSGL_DECODE, &req, 1);
        memcpy(rows + (size_t)t * vocab, harness_row(&h, 0), (size_t)n * vocab * sizeof *rows);
    }
    harness_close(&h);
    return rows;
}

// Of request i the i-th adapter, of which the first has none.
typedef struct mix {
    const char *model, *names[MIXED];
    // Experts are chosen: with rounded weights another one may be the best, and all is different.
    bool chooses;
} mix;

static const mix DENSE = {"qwen3_f32", {NULL, "attention", "all", "ends"}, false};
static const mix REPLACED = {"qwen3_f32", {NULL, "tokens_tied", "saved_tied", "all"}, false};
static const mix LATENT = {"deepseek_v2", {NULL, "latent_kv", "latent", "latent_kv"}, true};
static const mix SPARSE = {"qwen3_moe", {NULL, "experts", "beside_experts", "experts_apart"}, true};

// Rows of four requests, three of which have adapters: the prompts in one step, in which the one
// that has none stands between two that have one, then answers. Puts them to rows[i], [POSITIONS,
// vocab] of request i.
static void run_mixed(harness *h, float *rows[MIXED])
{
    static const int32_t ORDER[MIXED] = {1, 0, 2, 3};
    const size_t vocab = (size_t)h->info->vocab_size;
    msgl_batch_req reqs[MIXED];
    for (int32_t t = 0; t < POSITIONS; t = t == 0 ? FIRST : t + 1) {
        const int32_t n = t == 0 ? FIRST : 1;
        for (int32_t i = 0; i < MIXED; i++) {
            reqs[i] = harness_req(ORDER[i], t, t + n);
            reqs[i].adapter = ORDER[i];
            reqs[i].sample = false;
        }
        harness_step(h, t == 0 ? MSGL_PREFILL : MSGL_DECODE, reqs, MIXED);
        for (int32_t i = 0; i < MIXED; i++) {
            memcpy(rows[ORDER[i]] + (size_t)t * vocab, harness_row(h, i * n),
                   (size_t)n * vocab * sizeof(float));
        }
    }
}

// In other forms than f32 the base is itself not what peft computes: what adapters add makes it no
// worse than twice as far from that.
static void check_mix(const mix *m, const char *dtype, const char *weights)
{
    char dir[PATH], base[PATH];
    int32_t ids[PROMPT];
    harness h;
    parity_path(dir, m->model, "");
    parity_path(base, m->model, "expected_f32.bin");
    prompt_of(m->model, ids);
    msgl_options o = config(dir, dtype, true);
    o.weight_dtype = weights;
    if (!computed(&o)) return;
    float *plain = without(dir, dtype, weights, ids);
    harness_open(&h, &o);
    const size_t vocab = (size_t)h.info->vocab_size, n = POSITIONS * vocab;
    float *rows[MIXED];
    for (int32_t i = 0; i < MIXED; i++) {
        if (i > 0) load(&h, i - 1, m->names[i]);
        harness_pages(&h, i, POSITIONS + 1);
        harness_tokens(&h, i, ids, POSITIONS);
        rows[i] = malloc(n * sizeof(float));
        assert_non_null(rows[i]);
    }
    run_mixed(&h, rows);
    assert_memory_equal(rows[0], plain, n * sizeof(float));
    float *expected = load_floats(base, PROMPT * vocab);
    const double own = mean_difference(plain, expected, n);
    print_message("mixed, %s, %s, weights %s: base %.2g", m->model, dtype, weights, own);
    free(expected);
    for (int32_t i = 1; i < MIXED; i++) {
        expected = expected_of(&h, m->names[i]);
        const double d = mean_difference(rows[i], expected, n);
        print_message(", %s %.2g", m->names[i], d);
        assert_true(d < 2 * own + 1e-5 || (m->chooses && own > 1e-5));
        free(expected);
    }
    print_message("\n");
    for (int32_t i = 0; i < MIXED; i++) free(rows[i]);
    free(plain);
    harness_close(&h);
}

static void test_mixed(void **state)
{
    (void)state;
    check_mix(&DENSE, "float32", "auto");
    check_mix(&REPLACED, "float32", "auto");
    check_mix(&SPARSE, "float32", "auto");
    check_mix(&LATENT, "float32", "auto");
#ifdef BY_TILES
    return; // lora_tiles.c knows f32 alone
#endif
    check_mix(&DENSE, "bfloat16", "auto");
    check_mix(&DENSE, ON_CPU ? "float32" : "bfloat16", "int8");
    check_mix(&REPLACED, "bfloat16", "auto");
    check_mix(&REPLACED, "bfloat16", "int8");
    check_mix(&SPARSE, "bfloat16", "auto");
    check_mix(&LATENT, "bfloat16", "auto");
    if (!ON_CPU) return;
    check_mix(&DENSE, "bfloat16", "q4");
    check_mix(&SPARSE, "float32", "int8");
}

// How many graphs were captured with adapters.
static int captured(const msgl_engine *e)
{
    int n = 0;
    for (int32_t i = 0; i < e->num_graphs; i++) n += e->graphs[i].with_adapters != NULL;
    return n;
}

enum { ANSWERS = 3 }; // of graphs of four: a row is padding

// Answers of requests whose adapters come into their slots now. rows [POSITIONS - FIRST, ANSWERS,
// vocab].
static void run_answers(harness *h, const char *const names[ANSWERS], const int32_t *ids,
                        float *rows)
{
    const size_t vocab = (size_t)h->info->vocab_size;
    msgl_batch_req reqs[ANSWERS];
    for (int32_t i = 0; i < ANSWERS; i++) {
        if (names[i] != NULL) load(h, i, names[i]);
        harness_pages(h, i, POSITIONS + 1);
        harness_tokens(h, i, ids, POSITIONS);
        reqs[i] = harness_req(i, 0, FIRST);
        reqs[i].adapter = names[i] != NULL ? i + 1 : 0;
        reqs[i].sample = false;
    }
    harness_step(h, MSGL_PREFILL, reqs, ANSWERS);
    for (int32_t t = FIRST; t < POSITIONS; t++) {
        for (int32_t i = 0; i < ANSWERS; i++) {
            reqs[i].cached_len = t;
            reqs[i].device_len = t + 1;
        }
        harness_step(h, MSGL_DECODE, reqs, ANSWERS);
        for (int32_t i = 0; i < ANSWERS; i++) {
            memcpy(rows + ((size_t)(t - FIRST) * ANSWERS + (size_t)i) * vocab, harness_row(h, i),
                   vocab * sizeof *rows);
        }
    }
}

// Captured steps have the bits of those launched kernel by kernel: with one adapter, with none,
// with one of a larger rank, with more of them that change more layers, and with one of the
// embedding, of tokens or of whole modules, which is not captured. graphs: how many are there with
// adapters by then.
typedef struct answers {
    const char *names[ANSWERS];
    int graphs;
} answers;

static const answers DENSE_ANSWERS[] = {
    {{NULL, "few", NULL}, 1},
    {{NULL, NULL, NULL}, 1},
    {{"few", "wide", NULL}, 1},
    {{NULL, "all", "patterns"}, 1},
    {{"few", NULL, "attention"}, 1},
    {{"ends", NULL, "attention"}, 0},
    {{"tokens_tied", NULL, "all"}, 0},
    {{"all", "saved_tied", NULL}, 0},
    {{NULL}, 0},
};
static const answers SPARSE_ANSWERS[] = {{{NULL, "beside_experts", NULL}, 1},
                                         {{"experts", NULL, "experts_apart"}, 1},
                                         {{NULL, NULL, "experts"}, 1},
                                         {{NULL}, 0}};
static const answers LATENT_ANSWERS[] = {{{"latent", NULL, NULL}, 1},
                                         {{NULL, "latent_kv", "latent"}, 1},
                                         {{"latent_kv", NULL, NULL}, 1},
                                         {{NULL}, 0}};

// Of mixes up to one that has neither adapters nor graphs.
static void check_captured(const char *model, const char *dtype, const answers *mixes)
{
    char dir[PATH];
    int32_t ids[PROMPT];
    harness h[2]; // without graphs, and with
    parity_path(dir, model, "");
    prompt_of(model, ids);
    msgl_options o = config(dir, dtype, true);
    if (!computed(&o)) return;
    for (int g = 0; g < 2; g++) {
        o.graph_max_bs = g == 1 ? ANSWERS + 1 : 0;
        harness_open(&h[g], &o);
    }
#ifdef BY_TILES
    assert_true(lora_tiles_capture(h[1].e, ANSWERS + 1));
#endif
    const bool graphs = h[1].e->num_graphs > 0; // f32, and latents this small, may have none
    assert_true(graphs || strcmp(dtype, "float32") == 0 || mixes == LATENT_ANSWERS);
    const size_t vocab = (size_t)h[0].info->vocab_size;
    const size_t n = (size_t)(POSITIONS - FIRST) * ANSWERS * vocab;
    float *rows[2] = {malloc(n * sizeof(float)), malloc(n * sizeof(float))};
    assert_true(rows[0] != NULL && rows[1] != NULL);
    for (const answers *m = mixes; m == mixes || m->graphs > 0 || m->names[0] != NULL; m++) {
        for (int g = 0; g < 2; g++) run_answers(&h[g], m->names, ids, rows[g]);
        assert_memory_equal(rows[1], rows[0], n * sizeof(float));
        assert_int_equal(captured(h[1].e), graphs ? m->graphs : 0);
        assert_int_equal(captured(h[0].e), 0);
    }
#ifdef BY_TILES
    assert_true(graphs);
    lora_tiles_release();
#endif
    for (int g = 0; g < 2; g++) {
        free(rows[g]);
        harness_close(&h[g]);
    }
}

static void test_captured(void **state)
{
    (void)state;
    check_captured("qwen3_f32", "float32", DENSE_ANSWERS);
    check_captured("qwen3_moe", "float32", SPARSE_ANSWERS);
    check_captured("deepseek_v2", "float32", LATENT_ANSWERS);
#ifndef BY_TILES
    check_captured("qwen3_f32", "bfloat16", DENSE_ANSWERS);
    check_captured("qwen3_moe", "bfloat16", SPARSE_ANSWERS);
    check_captured("deepseek_v2", "bfloat16", LATENT_ANSWERS);
#endif
}

// Of kv_b_proj, whose parts are absorbed, or multiplied with each request's own keys where chunks
// of prompts are expanded.
static void test_latent_prompts(void **state)
{
    (void)state;
    static const char *const WAYS[] = {"absorbed", "expanded"};
    for (size_t i = 0; i < sizeof WAYS / sizeof WAYS[0]; i++) {
        assert_int_equal(setenv("MINISGL_LATENT_PROMPTS", WAYS[i], 1), 0);
        check_alone("latent_kv", "deepseek_v2", NULL, 1);
        // On a GPU an expanded prompt's bits depend on what else is expanded.
        if (ON_CPU) check_mix(&LATENT, "float32", "auto");
    }
    assert_int_equal(unsetenv("MINISGL_LATENT_PROMPTS"), 0);
}

// A row's bits do not depend on who else is in the step, or on how it came to be there.
static void test_same_bits_in_any_company(void **state)
{
    (void)state;
    char dir[PATH];
    int32_t ids[PROMPT];
    harness h;
    parity_path(dir, "qwen3_f32", "");
    prompt_of("qwen3_f32", ids);
    const msgl_options o = config(dir, "bfloat16", true);
    harness_open(&h, &o);
    const size_t row = (size_t)h.info->vocab_size;
    load(&h, 0, "all");
    load(&h, 1, "attention");
    msgl_batch_req reqs[3];
    for (int32_t i = 0; i < 3; i++) {
        harness_pages(&h, i, POSITIONS + 1);
        harness_tokens(&h, i, ids, POSITIONS);
        reqs[i] = harness_req(i, 0, POSITIONS);
        reqs[i].sample = false;
    }
    reqs[0].adapter = 1;
    harness_step(&h, MSGL_PREFILL, reqs, 1);
    float *alone = malloc(POSITIONS * row * sizeof *alone);
    assert_non_null(alone);
    memcpy(alone, harness_row(&h, 0), POSITIONS * row * sizeof *alone);
    const msgl_batch_req mine = reqs[0];
    reqs[0] = reqs[2];
    reqs[0].adapter = 2;
    reqs[2] = mine;
    harness_step(&h, MSGL_PREFILL, reqs, 3);
    assert_memory_equal(harness_row(&h, 2 * POSITIONS), alone, POSITIONS * row * sizeof *alone);
    free(alone);
    harness_close(&h);
}

// An adapter of rank 1 of a block's first product, of the head's, whose rows are texts, and of the
// embedding, beside which PEFT saves the matrix itself.
static void make_encoder_adapter(folder *f)
{
    static const char HEADER[] =
        "{\"base_model.model.bert.encoder.layer.0.intermediate.dense.lora_A.weight\":{\"dtype\":"
        "\"F32\",\"shape\":[1,32],\"data_offsets\":[0,128]},"
        "\"base_model.model.bert.encoder.layer.0.intermediate.dense.lora_B.weight\":{\"dtype\":"
        "\"F32\",\"shape\":[48,1],\"data_offsets\":[128,320]},"
        "\"base_model.model.bert.pooler.dense.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[1,32],"
        "\"data_offsets\":[320,448]},"
        "\"base_model.model.bert.pooler.dense.lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[32,1],"
        "\"data_offsets\":[448,576]},"
        "\"base_model.model.bert.embeddings.word_embeddings.lora_embedding_A\":{\"dtype\":\"F32\","
        "\"shape\":[1,884],\"data_offsets\":[576,4112]},"
        "\"base_model.model.bert.embeddings.word_embeddings.lora_embedding_B\":{\"dtype\":\"F32\","
        "\"shape\":[32,1],\"data_offsets\":[4112,4240]},"
        "\"base_model.model.bert.embeddings.word_embeddings.base_layer.weight\":{\"dtype\":\"F32\","
        "\"shape\":[1,1],\"data_offsets\":[4240,4244]}}";
    static const char CONFIG[] = "{\"peft_type\": \"LORA\"}";
    float data[1061];
    for (int i = 0; i < 1061; i++) data[i] = 0.05f * (float)(i % 7 - 3);
    folder_make(f);
    write_safetensors(f, "adapter_model.safetensors", HEADER, data, sizeof data);
    folder_write(f, "adapter_config.json", CONFIG, sizeof CONFIG - 1);
}

// More texts than a block of rows has (msgl_gemm_kernels.block_rows), of which the last one has an
// adapter.
static void test_encoder(void **state)
{
    (void)state;
    enum { TEXTS = 9, TOKENS = 128, LABELS = 3 };
    int32_t ids[TOKENS];
    float plain[LABELS], alone[LABELS];
    msgl_batch_req reqs[TEXTS];
    msgl_err err = {0};
    folder f;
    harness h;
    const msgl_options o =
        config(MSGL_SOURCE_DIR "/tests/vectors/encoders/bert_classifier", "float32", true);
    make_encoder_adapter(&f);
    harness_open(&h, &o);
    if (msgl__runner_load_adapter(h.r, 0, f.dir, &err) != 0) fail_msg("%s", err.text);
    for (int32_t i = 0; i < TEXTS; i++) {
        for (int32_t t = 0; t < TOKENS; t++) ids[t] = 5 + (31 * t + 17 * i) % 800;
        harness_pages(&h, i, TOKENS);
        harness_tokens(&h, i, ids, TOKENS);
        reqs[i] = harness_req(i, 0, TOKENS);
        reqs[i].logits_from = TOKENS - 1;
    }
    msgl_batch_req *last = &reqs[TEXTS - 1];
    harness_step(&h, MSGL_PREFILL, last, 1);
    memcpy(plain, h.result.pooled, sizeof plain);
    last->adapter = 1;
    harness_step(&h, MSGL_PREFILL, last, 1);
    memcpy(alone, h.result.pooled, sizeof alone);
    assert_true(memcmp(alone, plain, sizeof alone) != 0);
    harness_step(&h, MSGL_PREFILL, reqs, TEXTS);
    assert_memory_equal(h.result.pooled + (TEXTS - 1) * LABELS, alone, sizeof alone);
    harness_close(&h);
    folder_remove(&f);
}

// A classifier's own head, saved whole with its bias: of weights 0 the labels' logits are the bias.
static void test_saved_classifier(void **state)
{
    (void)state;
    enum { TOKENS = 20, LABELS = 3, WIDTH = 32 };
    static const char HEADER[] =
        "{\"base_model.model.classifier.bias\":{\"dtype\":\"F32\",\"shape\":[3],"
        "\"data_offsets\":[0,12]},\"base_model.model.classifier.weight\":{\"dtype\":\"F32\","
        "\"shape\":[3,32],\"data_offsets\":[12,396]}}";
    static const char CONFIG[] = "{\"peft_type\": \"LORA\", \"modules_to_save\": [\"classifier\"]}";
    static const float BIAS[LABELS + LABELS * WIDTH] = {1, -2, 3};
    const msgl_options o =
        config(MSGL_SOURCE_DIR "/tests/vectors/encoders/bert_classifier", "float32", true);
    int32_t ids[TOKENS];
    msgl_err err = {0};
    folder f;
    harness h;
    folder_make(&f);
    write_safetensors(&f, "adapter_model.safetensors", HEADER, BIAS, sizeof BIAS);
    folder_write(&f, "adapter_config.json", CONFIG, sizeof CONFIG - 1);
    harness_open(&h, &o);
    if (msgl__runner_load_adapter(h.r, 0, f.dir, &err) != 0) fail_msg("%s", err.text);
    for (int32_t t = 0; t < TOKENS; t++) ids[t] = 5 + 31 * t;
    harness_pages(&h, 0, TOKENS);
    harness_tokens(&h, 0, ids, TOKENS);
    msgl_batch_req req = harness_req(0, 0, TOKENS);
    req.logits_from = TOKENS - 1;
    req.adapter = 1;
    harness_step(&h, MSGL_PREFILL, &req, 1);
    assert_memory_equal(h.result.pooled, BIAS, LABELS * sizeof(float));
    harness_close(&h);
    folder_remove(&f);
}

// Of an emptied slot nothing is left, and another adapter may come into it.
static void test_slots(void **state)
{
    (void)state;
    char dir[PATH];
    int32_t ids[PROMPT];
    harness h;
    msgl_err err = {0};
    parity_path(dir, "qwen3_f32", "");
    prompt_of("qwen3_f32", ids);
    const msgl_options o = config(dir, "float32", true);
    harness_open(&h, &o);
    assert_int_equal(h.r->max_adapters, PLACES);
    float *expected = expected_of(&h, "attention");
    harness_pages(&h, 0, POSITIONS + 1);
    harness_tokens(&h, 0, ids, POSITIONS);
    msgl_batch_req req = harness_req(0, 0, POSITIONS);
    msgl_batch b = {.size = 1, .num_tokens = POSITIONS, .reqs = &req};
    req.adapter = 1;
    assert_int_equal(h.r->submit(h.r->ctx, &b), MSGL_EINVAL); // nothing is there
    load(&h, 0, "all");
    load(&h, 0, "attention");
    harness_step(&h, MSGL_PREFILL, &req, 1);
    assert_true(difference(&h, 0, expected, 0, POSITIONS) < 1e-3);
    assert_int_equal(msgl__runner_load_adapter(h.r, 0, NULL, &err), 0);
    assert_int_equal(h.r->submit(h.r->ctx, &b), MSGL_EINVAL);
    assert_int_equal(msgl__runner_load_adapter(h.r, PLACES, dir, &err), MSGL_EINVAL);
    free(expected);
    harness_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_peft),   cmocka_unit_test(test_last_rows),
        cmocka_unit_test(test_levels),         cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_other_rank),     cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_scores),         cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_latent_prompts), cmocka_unit_test(test_same_bits_in_any_company),
        cmocka_unit_test(test_encoder),        cmocka_unit_test(test_saved_classifier),
        cmocka_unit_test(test_slots),
    };
    const struct CMUnitTest by_tiles[] = {
        cmocka_unit_test(test_against_peft),   cmocka_unit_test(test_last_rows),
        cmocka_unit_test(test_latent_prompts), cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_scores),         cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_encoder),        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_captured),       cmocka_unit_test(test_saved_classifier),
    };
    const struct CMUnitTest on_gpu[] = {
        cmocka_unit_test(test_against_peft),   cmocka_unit_test(test_last_rows),
        cmocka_unit_test(test_latent_prompts), cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_scores),         cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_captured),       cmocka_unit_test(test_same_bits_in_any_company),
        cmocka_unit_test(test_slots),
    };
#ifdef BY_TILES
    (void)tests;
    return cmocka_run_group_tests(by_tiles, NULL, NULL);
#endif
    (void)by_tiles;
    if (ON_CPU) return cmocka_run_group_tests(tests, NULL, NULL);
    if (!harness_has_device(TEST_DEVICE)) return 77;
    return cmocka_run_group_tests(on_gpu, NULL, NULL);
}
