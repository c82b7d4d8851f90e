// SPDX-License-Identifier: Apache-2.0
//
// Adapters beside the model, against peft (tests/vectors/lora): of every kind of product, alone and
// any of them in one step, in chunks and as answers, over several forms of weights; what rows
// without one get is what they get from an engine without any, bit by bit. And files that cannot be
// used, with what is said of them. With TEST_DEVICE, which tests/cuda sets, on a GPU, whose answers
// are also captured steps. With BY_TILES on a CPU that computes adapters as GPUs do (lora_tiles.c).
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
#include "lora_tiles.h"
#include "utils/file.h"

#ifndef TEST_DEVICE
#define TEST_DEVICE "cpu"
#endif
#define ON_CPU (strcmp(TEST_DEVICE, "cpu") == 0)
#ifdef BY_TILES
#define ON_HOST false
#else
#define ON_HOST ON_CPU
#endif

enum { PROMPT = 64, POSITIONS = 32, PATH = 512, PLACES = 4 };

static void lora_path(char *out, const char *name, const char *file)
{
    snprintf(out, PATH, MSGL_SOURCE_DIR "/tests/vectors/lora/%s%s%s", name,
             file[0] != '\0' ? "/" : "", file);
}

static msgl_options config(const char *dir, const char *dtype, bool adapters)
{
    // On a GPU bits are promised for a deterministic device alone.
    const harness_target target = {.device = TEST_DEVICE,
                                   .attention = "auto",
                                   .page_size = ON_CPU ? 0 : 16,
                                   .deterministic = !ON_CPU};
    msgl_options o = harness_config_for(dir, dtype, &target);
    o.enable_lora = adapters;
    o.max_loaded_loras = PLACES;
    return o;
}

static void load(harness *h, int32_t slot, const char *name)
{
    char dir[PATH];
    msgl_err err = {0};
    lora_path(dir, name, "");
    const int rc = msgl__runner_load_adapter(h->r, slot, dir, &err);
    if (rc != 0) fail_msg("%s: %s", name, err.text);
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
    bool on_host; // a device that computes by tiles refuses it
} ADAPTERS[] = {
    {"attention", "qwen3_f32", false},
    {"all", "qwen3_f32", false},
    {"few", "qwen3_f32", false},
    {"patterns", "qwen3_f32", false},
    {"ends", "qwen3_f32", false},
    {"head", "llama", false},
    {"biased", "qwen2_gqa7", false},
    {"fused", "phi3_swa", false},
    {"pairs", "glm4", false},
    {"norms", "gemma3", false},
    {"gated", "qwen3_next", false},
    {"latent", "deepseek_v2", false},
    {"beside_experts", "qwen3_moe", false},
    {"shared_expert", "qwen2_moe", false},
    {"channels", "kimi_linear", false},
    {"convolved", "lfm2", false},
    {"recurrent", "falcon_h1", false},
    {"side_by_side", "cohere2", false},
    {"no_gate", "starcoder2", false},
    {"per_layer", "gemma4_ple", false},
    {"gate_names", "kimi_linear", false},
    {"latent_kv", "deepseek_v2", true},
    {"experts", "qwen3_moe", true},
    {"experts_apart", "qwen3_moe", true},
    {"experts_alternate", "gpt_oss", true},
    {"experts_down", "gpt_oss", true},
    {"experts_plain", "nemotron_h_moe", true},
    {"saved", "llama", false},
    {"saved_tied", "qwen3_f32", false},
    {"saved_biased", "qwen2_gqa7", false},
    {"tokens", "llama", false},
    {"tokens_tied", "qwen3_f32", false},
};

// The whole prompt at once, then in a chunk and answers. level NULL: the CPU's best.
// False: a GPU has no kernels for the model.
static bool check_alone(const char *name, const char *model, const char *level, int ranks)
{
    char dir[PATH];
    int32_t ids[PROMPT];
    harness h;
    msgl_err err = {0};
    parity_path(dir, model, "");
    prompt_of(model, ids);
    msgl_options o = config(dir, "float32", true);
    o.cpu_level = level;
    o.tp_size = ranks;
    const int code = harness_try_open(&h, &o, &err);
    if (code == MSGL_EUNSUPPORTED && !ON_CPU) {
        print_message("%-16s over %-12s skipped: %s\n", name, model, err.text);
        return false;
    }
    if (code != 0) fail_msg("%s", err.text);
    load(&h, 2, name);
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

static void refuse_adapter(const char *name, const char *model)
{
    char dir[PATH];
    harness h;
    msgl_err err = {0};
    parity_path(dir, model, "");
    const msgl_options o = config(dir, "float32", true);
    if (harness_try_open(&h, &o, &err) != 0) return; // the device has no kernels for the model
    lora_path(dir, name, "");
    assert_int_equal(msgl__runner_load_adapter(h.r, 0, dir, &err), MSGL_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "not computed on this device"));
    harness_close(&h);
}

static void test_against_peft(void **state)
{
    (void)state;
    const size_t num = sizeof ADAPTERS / sizeof ADAPTERS[0];
    size_t ran = 0;
    for (size_t i = 0; i < num; i++) {
        if (ADAPTERS[i].on_host && !ON_HOST) {
            refuse_adapter(ADAPTERS[i].name, ADAPTERS[i].model);
        } else {
            ran += check_alone(ADAPTERS[i].name, ADAPTERS[i].model, NULL, 1);
        }
    }
    assert_true(ON_HOST ? ran == num : ran >= num / 3);
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
        if (ADAPTERS[a].on_host && !ON_HOST) continue;
        check_alone(ADAPTERS[a].name, ADAPTERS[a].model, NULL, 2);
    }
}

// A GGUF file's adapter, whose q and k are permuted, over the model's folder and over its GGUF
// file.
static void test_gguf(void **state)
{
    (void)state;
    static const char *const BASES[] = {"llama", "llama-f32.gguf"};
    int32_t ids[PROMPT];
    prompt_of("llama", ids);
    for (size_t i = 0; i < sizeof BASES / sizeof BASES[0]; i++) {
        char dir[PATH];
        harness h;
        (void)snprintf(dir, sizeof dir, MSGL_SOURCE_DIR "/tests/vectors/gguf/%s", BASES[i]);
        const msgl_options o = config(dir, "float32", true);
        harness_open(&h, &o);
        load(&h, 0, "gguf_llama/adapter.gguf");
        float *expected = expected_of(&h, "gguf_llama");
        harness_pages(&h, 0, POSITIONS + 1);
        harness_tokens(&h, 0, ids, POSITIONS);
        msgl_batch_req req = harness_req(0, 0, POSITIONS);
        req.adapter = 1;
        harness_step(&h, MSGL_PREFILL, &req, 1);
        const double most = difference(&h, 0, expected, 0, POSITIONS);
        print_message("gguf_llama over %s %.2g\n", BASES[i], most);
        assert_true(most < 1e-3);
        free(expected);
        harness_close(&h);
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
    float *plain = without(dir, dtype, weights, ids);
    msgl_options o = config(dir, dtype, true);
    o.weight_dtype = weights;
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
#ifdef BY_TILES
    return; // lora_tiles.c knows f32 alone
#endif
    check_mix(&DENSE, "bfloat16", "auto");
    check_mix(&DENSE, ON_CPU ? "float32" : "bfloat16", "int8");
    check_mix(&REPLACED, "bfloat16", "auto");
    check_mix(&REPLACED, "bfloat16", "int8");
    if (!ON_CPU) return;
    check_mix(&DENSE, "bfloat16", "q4");
    check_mix(&SPARSE, "float32", "auto");
    check_mix(&SPARSE, "bfloat16", "auto");
    check_mix(&SPARSE, "float32", "int8");
    check_mix(&LATENT, "float32", "auto");
    check_mix(&LATENT, "bfloat16", "auto");
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
// with more of them that change more layers, and with one of the embedding, of tokens or of whole
// modules, which is not captured.
// graphs: how many are there with adapters by then.
static const struct {
    const char *names[ANSWERS];
    int graphs;
} MIXES[] = {
    {{NULL, "few", NULL}, 1},         {{NULL, NULL, NULL}, 1},
    {{NULL, "all", "patterns"}, 1},   {{"few", NULL, "attention"}, 1},
    {{"ends", NULL, "attention"}, 0}, {{"tokens_tied", NULL, "all"}, 0},
    {{"all", "saved_tied", NULL}, 0},
};

static void check_captured(const char *dtype)
{
    char dir[PATH];
    int32_t ids[PROMPT];
    harness h[2]; // without graphs, and with
    parity_path(dir, "qwen3_f32", "");
    prompt_of("qwen3_f32", ids);
    msgl_options o = config(dir, dtype, true);
    for (int g = 0; g < 2; g++) {
        o.graph_max_bs = g == 1 ? ANSWERS + 1 : 0;
        harness_open(&h[g], &o);
    }
#ifdef BY_TILES
    assert_true(lora_tiles_capture(h[1].e, ANSWERS + 1));
#endif
    const bool graphs = h[1].e->num_graphs > 0; // f32 may have no kernels for them
    assert_true(graphs || strcmp(dtype, "float32") == 0);
    const size_t vocab = (size_t)h[0].info->vocab_size;
    const size_t n = (size_t)(POSITIONS - FIRST) * ANSWERS * vocab;
    float *rows[2] = {malloc(n * sizeof(float)), malloc(n * sizeof(float))};
    assert_true(rows[0] != NULL && rows[1] != NULL);
    for (size_t m = 0; m < sizeof MIXES / sizeof MIXES[0]; m++) {
        for (int g = 0; g < 2; g++) run_answers(&h[g], MIXES[m].names, ids, rows[g]);
        assert_memory_equal(rows[1], rows[0], n * sizeof(float));
        assert_int_equal(captured(h[1].e), graphs ? MIXES[m].graphs : 0);
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
    check_captured("float32");
#ifndef BY_TILES
    check_captured("bfloat16");
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
        check_mix(&LATENT, "float32", "auto");
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

static uint64_t digest_of(harness *h, const char *dir)
{
    uint64_t digest = 0;
    msgl_err err = {0};
    assert_int_equal(h->r->load_adapter(h->r->ctx, 0, dir, &err), 0);
    if (h->r->adapter_loaded(h->r->ctx, -1, &digest, &err) != 1) fail_msg("%s", err.text);
    return digest;
}

// The files of adapter `name` in f.
static void copy_adapter(folder *f, const char *name)
{
    static const char *const FILES[] = {"adapter_model.safetensors", "adapter_config.json"};
    for (size_t i = 0; i < 2; i++) {
        char from[PATH], *data;
        size_t len;
        msgl_err err;
        lora_path(from, name, FILES[i]);
        assert_int_equal(msgl__file_read(from, 1 << 20, &data, &len, &err), 0);
        folder_write(f, FILES[i], data, len);
        msgl__free(data);
    }
}

// The digest is the files', wherever they are: of other weights or another config it is another.
static void test_digest(void **state)
{
    (void)state;
    static const char CONFIG[] = "{\"peft_type\": \"LORA\"}";
    char dir[PATH], all[PATH];
    folder f;
    harness h;
    parity_path(dir, "qwen3_f32", "");
    const msgl_options o = config(dir, "float32", true);
    harness_open(&h, &o);
    lora_path(dir, "attention", "");
    lora_path(all, "all", "");
    const uint64_t digest = digest_of(&h, dir);
    assert_true(digest_of(&h, all) != digest);
    folder_make(&f);
    copy_adapter(&f, "attention");
    assert_true(digest_of(&h, f.dir) == digest);
    folder_write(&f, "adapter_config.json", CONFIG, sizeof CONFIG - 1);
    assert_true(digest_of(&h, f.dir) != digest);
    folder_remove(&f);
    harness_close(&h);
}

// --- files that cannot be used -------------------------------------------------------------------

static void refuse(harness *h, const char *dir, int code, const char *says)
{
    msgl_err err = {0};
    const int rc = msgl__runner_load_adapter(h->r, 0, dir, &err);
    if (rc != code || strstr(err.text, says) == NULL) {
        fail_msg("found %d, %s; expected %d, %s", rc, err.text, code, says);
    }
}

static void refuse_named(harness *h, const char *name, const char *says)
{
    char dir[PATH];
    lora_path(dir, name, "");
    refuse(h, dir, MSGL_EUNSUPPORTED, says);
}

// The adapter "attention" with another config.
static void refuse_config(harness *h, const char *text, int code, const char *says)
{
    folder f;
    folder_make(&f);
    copy_adapter(&f, "attention");
    folder_write(&f, "adapter_config.json", text, strlen(text));
    refuse(h, f.dir, code, says);
    folder_remove(&f);
}

// One module by two names, each with its A and B of rank 1.
static void refuse_twice(harness *h)
{
    static const char HEADER[] =
        "{\"base_model.model.lm_head.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[1,32],"
        "\"data_offsets\":[0,128]},"
        "\"base_model.model.lm_head.lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[260,1],"
        "\"data_offsets\":[128,1168]},"
        "\"base_model.model.model.lm_head.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[1,32],"
        "\"data_offsets\":[1168,1296]},"
        "\"base_model.model.model.lm_head.lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[260,1],"
        "\"data_offsets\":[1296,2336]}}";
    static const char CONFIG[] = "{\"peft_type\": \"LORA\"}";
    const char data[2336] = {0};
    folder f;
    folder_make(&f);
    write_safetensors(&f, "adapter_model.safetensors", HEADER, data, sizeof data);
    folder_write(&f, "adapter_config.json", CONFIG, sizeof CONFIG - 1);
    refuse(h, f.dir, MSGL_EFORMAT, "its module is there twice");
    folder_remove(&f);
}

// A head in the place of the model's by two names.
static void refuse_saved_twice(harness *h)
{
    static const char HEADER[] =
        "{\"base_model.model.lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[260,32],"
        "\"data_offsets\":[0,33280]},"
        "\"base_model.model.model.lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[260,32],"
        "\"data_offsets\":[33280,66560]}}";
    static const char CONFIG[] = "{\"peft_type\": \"LORA\"}";
    static const char data[66560];
    folder f;
    folder_make(&f);
    write_safetensors(&f, "adapter_model.safetensors", HEADER, data, sizeof data);
    folder_write(&f, "adapter_config.json", CONFIG, sizeof CONFIG - 1);
    refuse(h, f.dir, MSGL_EFORMAT, "model.lm_head.weight: its module is there twice");
    folder_remove(&f);
}

static void test_refused(void **state)
{
    (void)state;
    char dir[PATH];
    harness h;
    parity_path(dir, "qwen3_f32", "");
    msgl_options o = config(dir, "float32", true);
    harness_open(&h, &o);
    refuse(&h, "/nowhere", MSGL_ENOENT, "adapter_config.json");
    refuse_named(&h, "dora", "use_dora");
    refuse_named(&h, "saved_module", "layernorm.weight: the model has no such module");
    refuse(&h, "/nowhere.gguf", MSGL_ENOENT, "nowhere.gguf");
    refuse(&h, MSGL_SOURCE_DIR "/tests/vectors/gguf/llama-f32.gguf", MSGL_EUNSUPPORTED,
           "general.type: found model, allowed adapter");
    refuse_named(&h, "experts", "the model has no such experts");
    refuse_named(&h, "latent_kv", "kv_b_proj.lora_A.weight: the model has no such module");
    refuse_config(&h, "{\"peft_type\": \"LORA\", \"trainable_token_indices\": [1, -1]}",
                  MSGL_EFORMAT, "trainable_token_indices");
    refuse_config(&h,
                  "{\"peft_type\": \"LORA\", \"trainable_token_indices\": {\"a\": [], \"b\": [],"
                  " \"c\": [], \"d\": [], \"e\": [], \"f\": [], \"g\": [], \"h\": [], \"i\": [],"
                  " \"j\": [], \"k\": [], \"l\": [], \"m\": [], \"n\": [], \"o\": [], \"p\": [],"
                  " \"q\": []}}",
                  MSGL_ELIMIT, "trainable_token_indices: found 17 modules, allowed 16");
    char head[PATH];
    lora_path(head, "head", ""); // of another model
    refuse(&h, head, MSGL_EFORMAT,
           "lm_head.lora_A.weight: shape: found [4, 128], expected [4, 32]");
    harness_close(&h);
    o.max_lora_rank = 4;
    harness_open(&h, &o);
    load(&h, 0, "attention");
    char all[PATH];
    lora_path(all, "all", "");
    refuse(&h, all, MSGL_ELIMIT, "rank: found 8, allowed 1 to 4");
    refuse_config(&h, "{}", MSGL_EUNSUPPORTED, "peft_type");
    refuse_config(&h, "{\"peft_type\": \"IA3\"}", MSGL_EUNSUPPORTED, "peft_type: found \"IA3\"");
    refuse_config(&h, "{\"peft_type\": \"LORA\", \"use_magic\": 3}", MSGL_EUNSUPPORTED,
                  "use_magic");
    refuse_config(&h, "{\"peft_type\": \"LORA\", \"bias\": \"all\"}", MSGL_EUNSUPPORTED, "bias");
    refuse_config(&h, "{\"peft_type\": \"LORA\", \"alpha_pattern\": {\"(\": 3}}", MSGL_EFORMAT,
                  "alpha_pattern");
    refuse_config(&h, "{\"peft_type\": \"LORA\", \"alpha_pattern\": {\"q\": \"x\"}}", MSGL_EFORMAT,
                  "alpha_pattern");
    refuse_config(&h, "{\"peft_type\": \"LORA\", \"lora_alpha\": 1e30}", MSGL_EFORMAT,
                  "lora_alpha");
    refuse_twice(&h);
    refuse_saved_twice(&h);
    refuse_config(&h, "[", MSGL_EFORMAT, "adapter_config.json");
    harness_close(&h);
}

// A of [1, k] and B of [n, 1] for one module.
static void one_module(folder *f, const char *name, int k, int n)
{
    static const char CONFIG[] = "{\"peft_type\": \"LORA\"}";
    const char data[512] = {0};
    char header[512];
    folder_make(f);
    snprintf(header, sizeof header,
             "{\"base_model.model.model.%s.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[1,%d],"
             "\"data_offsets\":[0,%d]},"
             "\"base_model.model.model.%s.lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[%d,1],"
             "\"data_offsets\":[%d,%d]}}",
             name, k, 4 * k, name, n, 4 * k, 4 * (k + n));
    write_safetensors(f, "adapter_model.safetensors", header, data, (size_t)(4 * (k + n)));
    folder_write(f, "adapter_config.json", CONFIG, sizeof CONFIG - 1);
}

// Layers 0 and 3 have one block: an adapter of one of them would change the other. What a layer has
// of its own may have one.
static void test_shared_modules(void **state)
{
    (void)state;
    static const char *const SHARED[][2] = {
        {"layers.0.shared_transformer.self_attn.q_proj", "no adapter can change this module here"},
        {"layers.0.shared_transformer.feed_forward.down_proj",
         "no adapter can change this module here"},
        {"layers.3.shared_transformer.self_attn.q_proj", "the model has no such module"}};
    char dir[PATH];
    harness h;
    folder f;
    msgl_err err = {0};
    parity_path(dir, "zamba2_rope", "");
    const msgl_options o = config(dir, "float32", true);
    harness_open(&h, &o);
    for (size_t i = 0; i < sizeof SHARED / sizeof SHARED[0]; i++) {
        one_module(&f, SHARED[i][0], 64, 64);
        refuse(&h, f.dir, MSGL_EUNSUPPORTED, SHARED[i][1]);
        folder_remove(&f);
    }
    one_module(&f, "layers.0.linear", 32, 32);
    if (msgl__runner_load_adapter(h.r, 0, f.dir, &err) != 0) fail_msg("%s", err.text);
    folder_remove(&f);
    harness_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_peft),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_other_rank),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_latent_prompts),
        cmocka_unit_test(test_same_bits_in_any_company),
        cmocka_unit_test(test_encoder),
        cmocka_unit_test(test_saved_classifier),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_shared_modules),
    };
    const struct CMUnitTest by_tiles[] = {
        cmocka_unit_test(test_against_peft), cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_scores),       cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_encoder),      cmocka_unit_test(test_slots),
        cmocka_unit_test(test_captured),
    };
    const struct CMUnitTest on_gpu[] = {
        cmocka_unit_test(test_against_peft), cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_scores),       cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_captured),     cmocka_unit_test(test_same_bits_in_any_company),
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
