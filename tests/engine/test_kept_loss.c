// SPDX-License-Identifier: Apache-2.0
//
// What products of kept blocks cost: models in blocks of each type, on 1,024 positions, from the
// same models in exact arithmetic (--dtype float32, which gguf_blocks compares with matrices of f32
// to the bit, and those with transformers in parity). In full, all types at the levels that differ,
// whose figures are printed for bench/kept_forms.py. With TEST_DEVICE, which tests/cuda sets, a
// device's answers to the same prompt from the CPU's exact ones.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "engine/harness.h"
#include "engine/loss.h"
#include "kernel/cpu.h"
#include "utils/gguf_writer.h"
#include "utils/random.h"
#include "utils/random_blocks.h"

#ifndef TEST_DEVICE
#define TEST_DEVICE "cpu"
#endif
#define ON_CPU (strcmp(TEST_DEVICE, "cpu") == 0)

// The layout of Qwen3, with rows of 512 and of 1,024.
enum { POSITIONS = 1024, VOCAB = 256, WIDTH = 512, INNER = 1024, LAYERS = 2, HEADS = 8 };
enum { KV_HEADS = 4, HEAD = WIDTH / HEADS };
enum { EXPERTS = 8, CHOSEN = 2, EXPERT_INNER = 512 }; // of a mixture
// KL of a position, in nats, that no rounding of activations alone makes.
static const double ELSEWHERE = 0.02;

// The architecture's name is in front of its keys.
static void put_size(gguf_writer *w, const char *arch, const char *key, uint32_t value)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", arch, key);
    gguf_put_int(w, name, MSGL_GGUF_U32, value);
}

static void put_values(gguf_writer *w, bool mixture)
{
    static const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"block_count", LAYERS},         {"context_length", 2 * POSITIONS},
                 {"embedding_length", WIDTH},     {"feed_forward_length", INNER},
                 {"attention.head_count", HEADS}, {"attention.head_count_kv", KV_HEADS},
                 {"attention.key_length", HEAD},  {"attention.value_length", HEAD}};
    const char *words[VOCAB], *arch = mixture ? "qwen3moe" : "qwen3";
    char name[64];
    for (int i = 0; i < VOCAB; i++) words[i] = "a";
    gguf_put_string(w, "general.architecture", arch);
    snprintf(name, sizeof name, "%s.attention.layer_norm_rms_epsilon", arch);
    gguf_put_f32(w, name, 1e-6f);
    snprintf(name, sizeof name, "%s.rope.freq_base", arch);
    gguf_put_f32(w, name, 1e6f);
    for (size_t i = 0; i < MSGL_COUNT(sizes); i++) put_size(w, arch, sizes[i].key, sizes[i].value);
    if (mixture) {
        put_size(w, arch, "expert_count", EXPERTS);
        put_size(w, arch, "expert_used_count", CHOSEN);
        put_size(w, arch, "expert_feed_forward_length", EXPERT_INNER);
    }
    gguf_put_strings(w, "tokenizer.ggml.tokens", words, VOCAB);
}

// [matrices, rows, k]; of one matrix the first dimension is left out.
static void put_matrix(gguf_writer *w, const ggml_type *type, uint64_t *seed, const char *name,
                       int64_t matrices, int64_t rows, int64_t k)
{
    const int64_t dims[] = {k, rows, matrices};
    const random_matrix m = random_matrix_of(seed, msgl__blocks_of_ggml(type->name),
                                             (size_t)(matrices * rows), (size_t)k, 0.02f, 0.08f);
    gguf_put_tensor(w, name, type->id, matrices > 1 ? 3 : 2, dims, m.blocks, m.bytes);
    free(m.blocks);
    free(m.values);
}

// In f32, as in every file.
static void put_router(gguf_writer *w, uint64_t *seed, int layer)
{
    static float rows[EXPERTS * WIDTH];
    const int64_t dims[] = {WIDTH, EXPERTS};
    char name[64];
    for (int i = 0; i < EXPERTS * WIDTH; i++) {
        rows[i] = 0.1f * (msgl__random_unit(seed) - 0.5f);
    }
    snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", layer);
    gguf_put_tensor(w, name, 0, 2, dims, rows, sizeof rows);
}

static void put_norm(gguf_writer *w, const char *name, int64_t n, float v)
{
    float norm[WIDTH];
    for (int i = 0; i < WIDTH; i++) norm[i] = v;
    gguf_put_tensor(w, name, 0, 1, &n, norm, (size_t)n * sizeof *norm);
}

static void put_layer(gguf_writer *w, const ggml_type *type, uint64_t *seed, int layer,
                      bool mixture)
{
    static const struct {
        const char *name;
        int64_t matrices, rows, k; // 0 matrices: one, which a mixture does not have
    } matrices[] = {
        {"attn_q", 1, WIDTH, WIDTH},
        {"attn_k", 1, KV_HEADS * HEAD, WIDTH},
        {"attn_v", 1, KV_HEADS * HEAD, WIDTH},
        {"attn_output", 1, WIDTH, WIDTH},
        {"ffn_gate", 0, INNER, WIDTH},
        {"ffn_up", 0, INNER, WIDTH},
        {"ffn_down", 0, WIDTH, INNER},
        {"ffn_gate_exps", EXPERTS, EXPERT_INNER, WIDTH},
        {"ffn_up_exps", EXPERTS, EXPERT_INNER, WIDTH},
        {"ffn_down_exps", EXPERTS, WIDTH, EXPERT_INNER},
    };
    static const struct {
        const char *name;
        int64_t n;
    } norms[] = {
        {"attn_norm", WIDTH}, {"ffn_norm", WIDTH}, {"attn_q_norm", HEAD}, {"attn_k_norm", HEAD}};
    char name[64];
    for (size_t i = 0; i < MSGL_COUNT(matrices); i++) {
        const int64_t n = matrices[i].matrices;
        if (n != 1 && mixture != (n > 1)) continue;
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, matrices[i].name);
        put_matrix(w, type, seed, name, n > 1 ? n : 1, matrices[i].rows, matrices[i].k);
    }
    if (mixture) put_router(w, seed, layer);
    for (size_t i = 0; i < MSGL_COUNT(norms); i++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, norms[i].name);
        put_norm(w, name, norms[i].n, 1);
    }
}

// A model's file, whose last norm is `scale`.
static void write_model(const char *path, const ggml_type *type, float scale, bool mixture)
{
    gguf_writer w = {0};
    uint64_t seed = type->id;
    put_values(&w, mixture);
    put_matrix(&w, type, &seed, "token_embd.weight", 1, VOCAB, WIDTH);
    put_matrix(&w, type, &seed, "output.weight", 1, VOCAB, WIDTH);
    put_norm(&w, "output_norm.weight", WIDTH, scale);
    for (int i = 0; i < LAYERS; i++) put_layer(&w, type, &seed, i, mixture);
    const gguf_bytes bytes = gguf_finish(&w);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes.p, 1, bytes.n, f), bytes.n);
    fclose(f);
    free(bytes.p);
}

// Log-probabilities [POSITIONS, VOCAB]; level: of the CPU, NULL: the best one.
static float *run(const char *path, const char *dtype, const char *level, const char *device)
{
    const harness_target target = {.threads = 2,
                                   .level = level,
                                   .device = device,
                                   .attention = strcmp(device, "cpu") == 0 ? NULL : "auto"};
    msgl_options cfg = harness_config_for(path, dtype, &target);
    int32_t ids[POSITIONS];
    uint64_t seed = 1;
    for (int i = 0; i < POSITIONS; i++) ids[i] = (int32_t)msgl__random_below(&seed, VOCAB);
    cfg.max_seq_len = POSITIONS + 1;
    return harness_prompt(&cfg, ids, POSITIONS);
}

// In nats, of the distributions with logarithms scale * logprobs and a constant.
static double entropy_of(const float *logprobs, double scale)
{
    double all = 0;
    for (int t = 0; t < POSITIONS; t++, logprobs += VOCAB) {
        double sum = 0, of = 0;
        for (int i = 0; i < VOCAB; i++) {
            const double v = scale * (double)logprobs[i];
            sum += exp(v);
            of += exp(v) * v;
        }
        all += log(sum) - of / sum;
    }
    return all / POSITIONS;
}

// What the last norm has to be for an entropy of 2 nats where it is 1.
static float scale_of(const float *logprobs)
{
    double low = 0, high = 1000;
    for (int i = 0; i < 40; i++) {
        const double middle = (low + high) / 2;
        *(entropy_of(logprobs, middle) > 2 ? &low : &high) = middle;
    }
    return (float)low;
}

static bool in_full(void)
{
    const char *tests = getenv("MINISGL_TESTS");
    return tests != NULL && strcmp(tests, "full") == 0;
}

// A type's model at a level, from the exact one. Blocks that are no codes are multiplied by
// activations as they are, and at level AMX codes by bf16 ones; elsewhere those have 8 bits.
static void check_level(const char *path, const ggml_type *type, const float *want,
                        const char *name)
{
    float *got = run(path, "bfloat16", name, "cpu");
    const loss l = loss_of(want, got, POSITIONS, VOCAB);
    free(got);
    if (in_full()) printf("%s,%s,%.3g,%.3g,%.4f\n", type->name, name, l.kl, l.worst, l.same_choice);
    if (l.kl > 1e-3) fail_msg("%s, %s: KL %g", type->name, name, l.kl);
}

// Writes the model with an entropy of 2 nats, and gives its log-probabilities in exact arithmetic.
static float *make_model(const char *path, const ggml_type *type, bool mixture)
{
    write_model(path, type, 1, mixture);
    float *first = run(path, "float32", NULL, "cpu");
    write_model(path, type, scale_of(first), mixture);
    free(first);
    float *want = run(path, "float32", NULL, "cpu");
    assert_true(fabs(entropy_of(want, 1) - 2) < 0.01);
    return want;
}

// Whether a level is measured: the machine's best one, and in full those that round otherwise.
static bool measured(msgl_cpu_level level)
{
    const char *name = msgl__cpu_level_name(level);
    const bool differs = strcmp(name, "avx2") == 0 || strcmp(name, "avx512vnni") == 0;
    return level == msgl__cpu_level_detect() || (differs && in_full());
}

// In a mixture of experts a rounded activation may choose another expert where two are nearly as
// good, which no precision below exact arithmetic's avoids: such positions are counted, and the
// mean is that of the others.
static void check_mixture(const char *path, const ggml_type *type, const float *want,
                          const char *name, const char *device)
{
    float *got = run(path, "bfloat16", ON_CPU ? name : NULL, device);
    int elsewhere = 0;
    double kl = 0;
    for (int t = 0; t < POSITIONS; t++) {
        const double one = loss_of(want + t * VOCAB, got + t * VOCAB, 1, VOCAB).kl;
        elsewhere += one > ELSEWHERE;
        kl += one > ELSEWHERE ? 0 : one;
    }
    free(got);
    kl /= POSITIONS - elsewhere;
    printf("experts in %s, %s: KL %.3g, and other experts at %.1f %% of the positions\n",
           type->name, name, kl, 100.0 * elsewhere / POSITIONS);
    if (elsewhere > POSITIONS / 10 || kl > 2e-3) fail_msg("experts in %s, %s", type->name, name);
}

// On a device activations have 16 bits between all layers too.
static void check_device(const char *path, const ggml_type *type, const float *want, bool mixture)
{
    if (mixture) {
        check_mixture(path, type, want, TEST_DEVICE, TEST_DEVICE);
        return;
    }
    float *got = run(path, "bfloat16", NULL, TEST_DEVICE);
    const loss l = loss_of(want, got, POSITIONS, VOCAB);
    free(got);
    printf("%s,%s,%.3g,%.3g,%.4f\n", type->name, TEST_DEVICE, l.kl, l.worst, l.same_choice);
    if (l.kl > 2e-3) fail_msg("%s: KL %g", type->name, l.kl);
}

static void check_type(const ggml_type *type, bool mixture)
{
    char path[] = "/tmp/minisgl-kept-XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    float *want = make_model(path, type, mixture);
    for (int level = 0; ON_CPU && level <= msgl__cpu_level_detect(); level++) {
        if (!measured(level)) continue;
        const char *name = msgl__cpu_level_name(level);
        if (mixture) check_mixture(path, type, want, name, "cpu");
        if (!mixture) check_level(path, type, want, name);
    }
    if (!ON_CPU) check_device(path, type, want, mixture);
    free(want);
    remove(path);
}

static void test_types(void **state)
{
    static const char *const some[] = {"Q8_0", "Q4_K", "IQ2_XS"};
    (void)state;
    for (int i = 0; i < NUM_GGML_TYPES; i++) {
        const ggml_type *type = &GGML_TYPES[i];
        bool chosen = in_full();
        for (size_t s = 0; s < MSGL_COUNT(some); s++) {
            chosen = chosen || strcmp(type->name, some[s]) == 0;
        }
        if (chosen && strcmp(type->name, "F64") != 0) check_type(type, false);
    }
}

static void test_mixtures(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_GGML_TYPES; i++) {
        const ggml_type *type = &GGML_TYPES[i];
        const bool q8 = strcmp(type->name, "Q8_0") == 0;
        if (!q8 && !(in_full() && strcmp(type->name, "Q4_K") == 0)) continue;
        check_type(type, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_types),
                                       cmocka_unit_test(test_mixtures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
