// SPDX-License-Identifier: Apache-2.0
//
// Models whose matrices are packed in every form that safetensors have: the log-probabilities of
// the same models in f32, to the bit, expanded and as they are in the file, on one rank and on two,
// which cut groups of 128 columns in halves. In bf16, what is kept is near them. Products are of
// members in different forms: k is never packed. tests/cuda runs the same on a GPU, which keeps
// nothing yet.
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
#include "engine/loss.h"
#include "engine/packers.h"
#include "models/folder.h"
#include "utils/random.h"

#ifndef TEST_DEVICE
#define TEST_DEVICE "cpu"
#endif
#define ON_CPU (strcmp(TEST_DEVICE, "cpu") == 0)

enum { TOKENS = 12, VOCAB = 40, WIDTH = 256, HEADS = 4, KV_HEADS = 2, HEAD = WIDTH / HEADS };

// The same model in both forms.
typedef struct forms {
    tensors_out packed, floats;
    uint64_t seed;
} forms;

static void put_plain(forms *f, const char *name, int32_t rows, float from, float width)
{
    const size_t n = (size_t)rows * (width > 0.5f ? 1 : WIDTH);
    float *values = malloc(n * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < n; i++) values[i] = from + width * msgl__random_unit(&f->seed);
    const int64_t dims[] = {rows, WIDTH};
    const int32_t ndim = width > 0.5f ? 1 : 2;
    out_put(&f->packed, name, ".weight", "F32", ndim, dims, values, n * sizeof *values);
    out_put(&f->floats, name, ".weight", "F32", ndim, dims, values, n * sizeof *values);
    free(values);
}

static void put_packed(forms *f, const packer *k, const char *name, int32_t rows)
{
    const size_t bytes = (size_t)rows * WIDTH * sizeof(float);
    float *values = malloc(bytes);
    assert_non_null(values);
    k->pack(k, &f->packed, name, rows, WIDTH, &f->seed, values);
    out_put(&f->floats, name, ".weight", "F32", 2, (int64_t[]){rows, WIDTH}, values, bytes);
    free(values);
}

static void put_model(forms *f, const packer *k)
{
    static const struct {
        const char *name;
        int32_t rows;
    } matrices[] = {
        {"self_attn.q_proj", WIDTH}, {"self_attn.v_proj", KV_HEADS * HEAD},
        {"self_attn.o_proj", WIDTH}, {"mlp.gate_proj", WIDTH},
        {"mlp.up_proj", WIDTH},      {"mlp.down_proj", WIDTH},
    };
    for (size_t i = 0; i < MSGL_COUNT(matrices); i++) {
        char name[100];
        snprintf(name, sizeof name, "model.layers.0.%s", matrices[i].name);
        put_packed(f, k, name, matrices[i].rows);
    }
    put_plain(f, "model.layers.0.self_attn.k_proj", KV_HEADS * HEAD, -0.1f, 0.2f);
    put_plain(f, "model.embed_tokens", VOCAB, -0.2f, 0.4f);
    put_plain(f, "lm_head", VOCAB, -0.2f, 0.4f);
    put_plain(f, "model.norm", WIDTH, 0.5f, 1);
    put_plain(f, "model.layers.0.input_layernorm", WIDTH, 0.5f, 1);
    put_plain(f, "model.layers.0.post_attention_layernorm", WIDTH, 0.5f, 1);
}

static void write_model(const folder *f, const tensors_out *o, const char *quantization)
{
    static const char *const fields[][2] = {{"vocab_size", "40"},
                                            {"hidden_size", "256"},
                                            {"head_dim", "64"},
                                            {"num_hidden_layers", "1"},
                                            {"intermediate_size", "256"},
                                            {"tie_word_embeddings", "false"},
                                            {"torch_dtype", "\"float32\""}};
    json_t *config = small_config("LlamaForCausalLM");
    for (size_t i = 0; i < MSGL_COUNT(fields); i++) set_field(config, fields[i][0], fields[i][1]);
    if (quantization != NULL) set_field(config, "quantization_config", quantization);
    folder_write_json(f, "config.json", config);
    char *header = json_dumps(o->header, 0);
    assert_non_null(header);
    write_safetensors(f, "model.safetensors", header, o->data, o->n);
    free(header);
    json_decref(config);
}

// Log-probabilities [TOKENS, VOCAB] of a prompt; weights "auto": packed ones as they are. *bytes:
// of the weights.
static float *run(const folder *f, int32_t ranks, const char *dtype, const char *weights,
                  const char *level, size_t *bytes)
{
    int32_t ids[TOKENS];
    for (int32_t i = 0; i < TOKENS; i++) ids[i] = i * 37 % VOCAB;
    const harness_target target = {
        .device = TEST_DEVICE, .ranks = ranks, .weights = weights, .level = level};
    const msgl_options cfg = harness_config_for(f->dir, dtype, &target);
    harness h;
    harness_open(&h, &cfg);
    *bytes = h.info->weight_bytes;
    harness_close(&h);
    return harness_prompt(&cfg, ids, TOKENS);
}

static void check_same(const packer *k, int32_t ranks, const char *weights, const float *got,
                       const float *want)
{
    for (int i = 0; i < TOKENS * VOCAB; i++) {
        if (got[i] == want[i]) continue;
        fail_msg("%s, %s, %d ranks: %g, not %g", k->name, weights, ranks, got[i], want[i]);
    }
}

// Bits that a packed weight takes, if so many bytes are less than with f32.
static double bits_of(size_t bytes, size_t expanded)
{
    const double weights = (5 * WIDTH + KV_HEADS * HEAD) * WIDTH;
    return 32 - 8 * ((double)expanded - (double)bytes) / weights;
}

// Codes with scales and zero points, and what fills them up.
static void check_bits(const packer *k, size_t bytes, size_t expanded)
{
    const double bits = bits_of(bytes, expanded), codes = k->bits == 0 ? 8 : k->bits; // 0: e4m3
    if ((k->with & WITH_ORDERED) == 0) print_message("%s: %.3f bits a weight\n", k->name, bits);
    assert_true((k->with & WITH_ORDERED) != 0 || !ON_CPU ? bytes == expanded
                                                         : bits > codes && bits < codes + 2.1);
}

// Activations are rounded to bf16 with AMX, else to 8 bits.
static void check_near(const packer *k, const folder *packed, const float *want)
{
    static const char *const levels[] = {NULL, "avx2"};
    for (size_t i = 0; i < (ON_CPU ? MSGL_COUNT(levels) : 1); i++) {
        size_t bytes;
        float *got = run(packed, 1, "bfloat16", "auto", levels[i], &bytes);
        const double kl = loss_of(want, got, TOKENS, VOCAB).kl;
        print_message("%s: divergence %.2e\n", k->name, kl);
        assert_true(kl > 0 && kl < 0.005);
        free(got);
    }
}

static void compare(const packer *k, uint64_t seed)
{
    forms f = {.seed = seed};
    folder packed, floats;
    out_open(&f.packed);
    out_open(&f.floats);
    put_model(&f, k);
    folder_make(&packed);
    folder_make(&floats);
    write_model(&packed, &f.packed, k->config);
    write_model(&floats, &f.floats, NULL);
    for (int32_t ranks = ON_CPU ? 2 : 1; ranks >= 1; ranks--) {
        size_t expanded, bytes;
        float *want = run(&floats, ranks, "float32", "float32", NULL, &expanded), width = 0;
        for (int i = 0; i < TOKENS * VOCAB; i++) width = fmaxf(width, fabsf(want[i]));
        assert_true(width > 1); // these are log-probabilities that differ
        static const char *const weights[] = {"float32", "auto"};
        for (size_t i = 0; i < MSGL_COUNT(weights); i++) {
            float *got = run(&packed, ranks, "float32", weights[i], NULL, &bytes);
            check_same(k, ranks, weights[i], got, want);
            free(got);
        }
        if (ranks == 1) check_bits(k, bytes, expanded);
        if (ranks == 1 && (k->with & WITH_ORDERED) == 0) check_near(k, &packed, want);
        free(want);
    }
    folder_remove(&packed);
    folder_remove(&floats);
    out_close(&f.packed);
    out_close(&f.floats);
}

static void test_equal(void **state)
{
    (void)state;
    for (size_t i = 0; packers[i].name != NULL; i++) compare(&packers[i], i + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
