// SPDX-License-Identifier: Apache-2.0
//
// Models whose matrices are stored in blocks of every type that GGUF files have: the
// log-probabilities of the same models in f32, to the bit, on one rank and on two, which cut blocks
// of 256 in halves.
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
#include "quant/blocks.h"
#include "utils/gguf_writer.h"
#include "utils/random.h"

enum { TOKENS = 12, VOCAB = 40, WIDTH = 256, HEADS = 4, KV_HEADS = 2, HEAD = WIDTH / HEADS };

// Types by ggml's numbers.
static const struct {
    const char *name;
    uint32_t id;
} TYPES[] = {
    {"Q4_0", 2},     {"Q4_1", 3},   {"Q5_0", 6},    {"Q5_1", 7},   {"Q8_0", 8},     {"Q2_K", 10},
    {"Q3_K", 11},    {"Q4_K", 12},  {"Q5_K", 13},   {"Q6_K", 14},  {"IQ2_XXS", 16}, {"IQ2_XS", 17},
    {"IQ3_XXS", 18}, {"IQ1_S", 19}, {"IQ4_NL", 20}, {"IQ3_S", 21}, {"IQ2_S", 22},   {"IQ4_XS", 23},
    {"F64", 28},     {"IQ1_M", 29}, {"TQ1_0", 34},  {"TQ2_0", 35}, {"MXFP4", 39},   {"NVFP4", 40},
    {"Q1_0", 41},    {"Q2_0", 42},
};

// The same model in both forms.
typedef struct forms {
    gguf_writer blocks, floats;
    uint64_t seed;
} forms;

// Random bytes whose values are numbers up to 1, and not all next to nothing.
static void draw_block(uint64_t *seed, const msgl_blocks *b, uint8_t *block, float *values)
{
    for (float most = 2; !(most <= 1) || (b->elements > 1 && most < 0.02f);) {
        for (int32_t i = 0; i < b->bytes; i++) block[i] = (uint8_t)msgl__random(seed);
        msgl__blocks_expand(b, block, values);
        most = 0;
        for (int32_t i = 0; i < b->elements; i++) {
            most = isfinite(values[i]) ? fmaxf(most, fabsf(values[i])) : INFINITY;
        }
    }
}

static void put_matrix(forms *f, const char *name, int64_t rows, size_t type)
{
    const msgl_blocks *b = msgl__blocks_of_ggml(TYPES[type].name);
    const size_t count = (size_t)rows * WIDTH / (size_t)b->elements, bytes = (size_t)b->bytes;
    uint8_t *blocks = malloc(count * bytes);
    float *floats = malloc((size_t)rows * WIDTH * sizeof *floats);
    assert_true(blocks != NULL && floats != NULL);
    for (size_t i = 0; i < count; i++) {
        draw_block(&f->seed, b, blocks + i * bytes, floats + i * (size_t)b->elements);
    }
    const int64_t dims[] = {WIDTH, rows};
    gguf_put_tensor(&f->blocks, name, TYPES[type].id, 2, dims, blocks, count * bytes);
    gguf_put_tensor(&f->floats, name, 0, 2, dims, floats, (size_t)rows * WIDTH * sizeof *floats);
    free(blocks);
    free(floats);
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
        put_matrix(f, matrices[i].name, matrices[i].rows, (first + i) % MSGL_COUNT(TYPES));
    }
    put_norm(f, "blk.0.attn_norm.weight");
    put_norm(f, "blk.0.ffn_norm.weight");
    put_norm(f, "output_norm.weight");
}

// Log-probabilities [TOKENS, VOCAB] of a prompt; the writer is empty again.
static float *run(const gguf_bytes *file, int32_t ranks)
{
    char path[] = "/tmp/minisgl-blocks-XXXXXX";
    int32_t ids[TOKENS];
    FILE *f = fdopen(mkstemp(path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(file->p, 1, file->n, f), file->n);
    fclose(f);
    for (int32_t i = 0; i < TOKENS; i++) ids[i] = i * 37 % VOCAB;
    const harness_target target = {.ranks = ranks, .weights = "float32"};
    const msgl_options cfg = harness_config_for(path, "float32", &target);
    float *out = harness_prompt(&cfg, ids, TOKENS);
    remove(path);
    return out;
}

static void compare(size_t first)
{
    forms f = {.seed = first + 1};
    put_model(&f, first);
    const gguf_bytes blocks = gguf_finish(&f.blocks), floats = gguf_finish(&f.floats);
    for (int32_t ranks = 2; ranks >= 1; ranks--) {
        float *want = run(&floats, ranks), *got = run(&blocks, ranks);
        float width = 0;
        for (int i = 0; i < TOKENS * VOCAB; i++) {
            width = fmaxf(width, fabsf(want[i]));
            if (got[i] == want[i]) continue;
            fail_msg("types from %s on, %d ranks: %g, not %g", TYPES[first].name, ranks, got[i],
                     want[i]);
        }
        assert_true(width > 1); // these are log-probabilities that differ
        free(want);
        free(got);
    }
    free(blocks.p);
    free(floats.p);
}

static void test_equal(void **state)
{
    (void)state;
    for (size_t first = 0; first < MSGL_COUNT(TYPES); first += 2) compare(first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
