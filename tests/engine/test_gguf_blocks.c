// SPDX-License-Identifier: Apache-2.0
//
// Models whose matrices are stored in blocks of every type that GGUF files have: the
// log-probabilities of the same models in f32, to the bit, expanded and as they are in the file, on
// one rank and on two, which cut blocks of 256 in halves. tests/cuda runs the same on a GPU,
// deterministic, so that products of codes and of their values go the same way, on one rank.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "engine/harness.h"
#include "utils/gguf_writer.h"
#include "utils/random.h"
#include "utils/random_blocks.h"

#ifndef TEST_DEVICE
#define TEST_DEVICE "cpu"
#endif
#define ON_CPU (strcmp(TEST_DEVICE, "cpu") == 0)

enum { TOKENS = 12, VOCAB = 40, WIDTH = 256, HEADS = 4, KV_HEADS = 2, HEAD = WIDTH / HEADS };

// The same model in both forms.
typedef struct forms {
    gguf_writer blocks, floats;
    uint64_t seed;
} forms;

static void put_matrix(forms *f, const char *name, int64_t rows, size_t type)
{
    const msgl_blocks *b = msgl__blocks_of_ggml(GGML_TYPES[type].name);
    const random_matrix m =
        random_matrix_of(&f->seed, b, (size_t)rows, WIDTH, b->elements > 1 ? 0.02f : 0, 1);
    const int64_t dims[] = {WIDTH, rows};
    gguf_put_tensor(&f->blocks, name, GGML_TYPES[type].id, 2, dims, m.blocks, m.bytes);
    gguf_put_tensor(&f->floats, name, 0, 2, dims, m.values, (size_t)rows * WIDTH * sizeof(float));
    free(m.blocks);
    free(m.values);
}

static void put_norm(forms *f, const char *name)
{
    float norm[WIDTH];
    for (int i = 0; i < WIDTH; i++) norm[i] = 0.5f + msgl__random_unit(&f->seed);
    gguf_put_tensor(&f->blocks, name, 0, 1, (int64_t[]){WIDTH}, norm, sizeof norm);
    gguf_put_tensor(&f->floats, name, 0, 1, (int64_t[]){WIDTH}, norm, sizeof norm);
}

static void put_values(gguf_writer *w)
{
    static const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"llama.block_count", 1},
                 {"llama.context_length", 128},
                 {"llama.embedding_length", WIDTH},
                 {"llama.feed_forward_length", WIDTH},
                 {"llama.attention.head_count", HEADS},
                 {"llama.attention.head_count_kv", KV_HEADS}};
    static const char *const tokens[VOCAB] = {"a"};
    const char *words[VOCAB];
    for (int i = 0; i < VOCAB; i++) words[i] = tokens[0];
    gguf_put_string(w, "general.architecture", "llama");
    gguf_put_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    for (size_t i = 0; i < MSGL_COUNT(sizes); i++) {
        gguf_put_int(w, sizes[i].key, MSGL_GGUF_U32, sizes[i].value);
    }
    gguf_put_strings(w, "tokenizer.ggml.tokens", words, VOCAB);
}

// The tensors in turn have the types from `first` on, two apart.
static void put_model(forms *f, size_t first)
{
    static const struct {
        const char *name;
        int64_t rows;
    } matrices[] = {
        // The two whose columns are shared come first: each type is one of them in some model.
        {"blk.0.attn_output.weight", WIDTH},
        {"blk.0.ffn_down.weight", WIDTH},
        {"blk.0.attn_q.weight", WIDTH},
        {"blk.0.attn_k.weight", KV_HEADS * HEAD},
        {"blk.0.attn_v.weight", KV_HEADS * HEAD},
        {"blk.0.ffn_gate.weight", WIDTH},
        {"blk.0.ffn_up.weight", WIDTH},
        {"token_embd.weight", VOCAB},
        {"output.weight", VOCAB},
    };
    put_values(&f->blocks);
    put_values(&f->floats);
    for (size_t i = 0; i < MSGL_COUNT(matrices); i++) {
        put_matrix(f, matrices[i].name, matrices[i].rows, (first + i) % NUM_GGML_TYPES);
    }
    put_norm(f, "blk.0.attn_norm.weight");
    put_norm(f, "blk.0.ffn_norm.weight");
    put_norm(f, "output_norm.weight");
}

// Log-probabilities [TOKENS, VOCAB] of a prompt; weights "auto": blocks as they are.
static float *run(const gguf_bytes *file, int32_t ranks, const char *weights)
{
    char path[] = "/tmp/minisgl-blocks-XXXXXX";
    int32_t ids[TOKENS];
    FILE *f = fdopen(mkstemp(path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(file->p, 1, file->n, f), file->n);
    fclose(f);
    for (int32_t i = 0; i < TOKENS; i++) ids[i] = i * 37 % VOCAB;
    const harness_target target = {
        .device = TEST_DEVICE, .ranks = ranks, .weights = weights, .deterministic = !ON_CPU};
    const msgl_options cfg = harness_config_for(path, "float32", &target);
    float *out = harness_prompt(&cfg, ids, TOKENS);
    remove(path);
    return out;
}

static void check_same(size_t first, int32_t ranks, const char *weights, const float *got,
                       const float *want)
{
    for (int i = 0; i < TOKENS * VOCAB; i++) {
        if (got[i] == want[i]) continue;
        fail_msg("types from %s on, %s, %d ranks: %g, not %g", GGML_TYPES[first].name, weights,
                 ranks, got[i], want[i]);
    }
}

static void compare(size_t first)
{
    static const char *const weights[] = {"float32", "auto"};
    forms f = {.seed = first + 1};
    put_model(&f, first);
    const gguf_bytes blocks = gguf_finish(&f.blocks), floats = gguf_finish(&f.floats);
    for (int32_t ranks = ON_CPU ? 2 : 1; ranks >= 1; ranks--) {
        float *want = run(&floats, ranks, "float32"), width = 0;
        for (int i = 0; i < TOKENS * VOCAB; i++) width = fmaxf(width, fabsf(want[i]));
        assert_true(width > 1); // these are log-probabilities that differ
        for (size_t i = 0; i < MSGL_COUNT(weights); i++) {
            float *got = run(&blocks, ranks, weights[i]);
            check_same(first, ranks, weights[i], got, want);
            free(got);
        }
        free(want);
    }
    free(blocks.p);
    free(floats.p);
}

static void test_equal(void **state)
{
    (void)state;
    for (size_t first = 0; first < NUM_GGML_TYPES; first += 2) compare(first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
