// SPDX-License-Identifier: Apache-2.0
//
// What products of kept blocks cost: models in blocks of each type, on 1,024 positions, from the
// same models in exact arithmetic (--dtype float32, which gguf_blocks compares with matrices of f32
// to the bit, and those with transformers in parity). In full, all types at the levels that differ,
// whose figures are printed for bench/kept_forms.py.
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

// The layout of Qwen3, with rows of 512 and of 1,024.
enum { POSITIONS = 1024, VOCAB = 256, WIDTH = 512, INNER = 1024, LAYERS = 2, HEADS = 8 };
enum { KV_HEADS = 4, HEAD = WIDTH / HEADS };

static void put_values(gguf_writer *w)
{
    static const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"qwen3.block_count", LAYERS},         {"qwen3.context_length", 2 * POSITIONS},
                 {"qwen3.embedding_length", WIDTH},     {"qwen3.feed_forward_length", INNER},
                 {"qwen3.attention.head_count", HEADS}, {"qwen3.attention.head_count_kv", KV_HEADS},
                 {"qwen3.attention.key_length", HEAD},  {"qwen3.attention.value_length", HEAD}};
    const char *words[VOCAB];
    for (int i = 0; i < VOCAB; i++) words[i] = "a";
    gguf_put_string(w, "general.architecture", "qwen3");
    gguf_put_f32(w, "qwen3.attention.layer_norm_rms_epsilon", 1e-6f);
    gguf_put_f32(w, "qwen3.rope.freq_base", 1e6f);
    for (size_t i = 0; i < MSGL_COUNT(sizes); i++) {
        gguf_put_int(w, sizes[i].key, MSGL_GGUF_U32, sizes[i].value);
    }
    gguf_put_strings(w, "tokenizer.ggml.tokens", words, VOCAB);
}

static void put_matrix(gguf_writer *w, const ggml_type *type, uint64_t *seed, const char *name,
                       int64_t rows, int64_t k)
{
    const int64_t dims[] = {k, rows};
    const random_matrix m = random_matrix_of(seed, msgl__blocks_of_ggml(type->name), (size_t)rows,
                                             (size_t)k, 0.02f, 0.08f);
    gguf_put_tensor(w, name, type->id, 2, dims, m.blocks, m.bytes);
    free(m.blocks);
    free(m.values);
}

static void put_norm(gguf_writer *w, const char *name, int64_t n, float v)
{
    float norm[WIDTH];
    for (int i = 0; i < WIDTH; i++) norm[i] = v;
    gguf_put_tensor(w, name, 0, 1, &n, norm, (size_t)n * sizeof *norm);
}

static void put_layer(gguf_writer *w, const ggml_type *type, uint64_t *seed, int layer)
{
    static const struct {
        const char *name;
        int64_t rows, k;
    } matrices[] = {
        {"attn_q", WIDTH, WIDTH},           {"attn_k", KV_HEADS * HEAD, WIDTH},
        {"attn_v", KV_HEADS * HEAD, WIDTH}, {"attn_output", WIDTH, WIDTH},
        {"ffn_gate", INNER, WIDTH},         {"ffn_up", INNER, WIDTH},
        {"ffn_down", WIDTH, INNER},
    };
    static const struct {
        const char *name;
        int64_t n;
    } norms[] = {
        {"attn_norm", WIDTH}, {"ffn_norm", WIDTH}, {"attn_q_norm", HEAD}, {"attn_k_norm", HEAD}};
    char name[64];
    for (size_t i = 0; i < MSGL_COUNT(matrices); i++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, matrices[i].name);
        put_matrix(w, type, seed, name, matrices[i].rows, matrices[i].k);
    }
    for (size_t i = 0; i < MSGL_COUNT(norms); i++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, norms[i].name);
        put_norm(w, name, norms[i].n, 1);
    }
}

// A model's file, whose last norm is `scale`.
static void write_model(const char *path, const ggml_type *type, float scale)
{
    gguf_writer w = {0};
    uint64_t seed = type->id;
    put_values(&w);
    put_matrix(&w, type, &seed, "token_embd.weight", VOCAB, WIDTH);
    put_matrix(&w, type, &seed, "output.weight", VOCAB, WIDTH);
    put_norm(&w, "output_norm.weight", WIDTH, scale);
    for (int i = 0; i < LAYERS; i++) put_layer(&w, type, &seed, i);
    const gguf_bytes bytes = gguf_finish(&w);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes.p, 1, bytes.n, f), bytes.n);
    fclose(f);
    free(bytes.p);
}

// Log-probabilities [POSITIONS, VOCAB]; level: NULL, the best one.
static float *run(const char *path, const char *dtype, const char *level)
{
    const harness_target target = {.threads = 2, .level = level};
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
                        msgl_cpu_level level)
{
    const char *name = msgl__cpu_level_name(level);
    float *got = run(path, "bfloat16", name);
    const loss l = loss_of(want, got, POSITIONS, VOCAB);
    free(got);
    if (in_full()) printf("%s,%s,%.3g,%.3g,%.4f\n", type->name, name, l.kl, l.worst, l.same_choice);
    if (l.kl > 1e-3) fail_msg("%s, %s: KL %g", type->name, name, l.kl);
}

static void check_type(const ggml_type *type)
{
    char path[] = "/tmp/minisgl-kept-XXXXXX";
    const msgl_cpu_level best = msgl__cpu_level_detect();
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    write_model(path, type, 1);
    float *first = run(path, "float32", NULL);
    write_model(path, type, scale_of(first));
    float *want = run(path, "float32", NULL);
    assert_true(fabs(entropy_of(want, 1) - 2) < 0.01);
    for (int level = 0; level <= (int)best; level++) {
        const bool differs = level == MSGL_CPU_AVX2 || level == MSGL_CPU_AVX512VNNI;
        if (level != (int)best && !(differs && in_full())) continue;
        check_level(path, type, want, (msgl_cpu_level)level);
    }
    free(first);
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
        if (chosen && strcmp(type->name, "F64") != 0) check_type(type);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_types)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
