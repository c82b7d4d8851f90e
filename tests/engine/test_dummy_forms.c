// SPDX-License-Identifier: Apache-2.0
//
// Models without weights whose config.json has a quantization_config: their random weights are kept
// in that form, take as many bytes as a file's would, give finite answers, and are the same every
// time; layers have equal ones at addresses of their own. tests/cuda runs the same on a GPU.
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
#include "models/decoder.h"
#include "models/folder.h"

#ifndef TEST_DEVICE
#define TEST_DEVICE "cpu"
#endif
#define ON_CPU (strcmp(TEST_DEVICE, "cpu") == 0)

enum { TOKENS = 12, VOCAB = 64, WIDTH = 512, LAYERS = 4, EXPERTS = 4 };

#define COMPRESSED(format, weights)                                                                \
    "{\"quant_method\": \"compressed-tensors\", \"format\": \"" format                             \
    "\", \"ignore\": [\"lm_head\"], \"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], " \
    "\"weights\": {" weights "}}}}"
#define FLOATS "\"num_bits\": 8, \"type\": \"float\", "
#define GPTQ(more) "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128" more "}"
#define GGUF(type) "{\"quant_method\": \"gguf\", \"file_type\": \"" type "\"}"

// bits of a weight in memory, by hand: codes, and what 16 rows of 512 columns have beside them,
// which is filled up to 64 bytes in front of all rows or of each 256 columns of them. Example: AWQ
// has 2 scales of 2 bytes and 2 zero points of a byte for 256 columns, 16 rows of which take 96
// bytes, which become 128: 128 * 8 / (16 * 256) = 0.25. ends: embedding and head are packed too.
static const struct {
    const char *architecture, *config;
    double bits;
    bool ends;
} FORMS[] = {
    {"LlamaForCausalLM", "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 128}",
     4 + 1 / 4.0, false},
    {"LlamaForCausalLM", GPTQ(""), 4 + 16 / 128.0, false},
    {"LlamaForCausalLM", GPTQ(", \"sym\": false, \"desc_act\": true"), 4 + 1 / 4.0, false},
    {"LlamaForCausalLM",
     COMPRESSED("pack-quantized", "\"num_bits\": 4, \"strategy\": \"group\", \"group_size\": 32"),
     4 + 16 / 32.0, false},
    {"LlamaForCausalLM", COMPRESSED("int-quantized", "\"num_bits\": 8, \"strategy\": \"channel\""),
     8 + 32 / 512.0, false},
    {"LlamaForCausalLM", COMPRESSED("float-quantized", FLOATS "\"strategy\": \"channel\""),
     8 + 32 / 512.0, false},
    {"LlamaForCausalLM", "{\"quant_method\": \"fp8\"}", 8 + 32 / 512.0, false},
    {"LlamaForCausalLM", "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}",
     8 + 16 / 128.0, false},
    {"MixtralForCausalLM", "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}",
     8 + 16 / 128.0, false},
    {"MixtralForCausalLM", GPTQ(""), 4 + 16 / 128.0, false},
    {"LlamaForCausalLM",
     COMPRESSED("nvfp4-pack-quantized", "\"num_bits\": 4, \"type\": \"float\", \"strategy\": "
                                        "\"tensor_group\", \"group_size\": 16"),
     4 + 8 / 16.0, false},
    {"LlamaForCausalLM",
     COMPRESSED("mxfp4-pack-quantized", "\"num_bits\": 4, \"type\": \"float\", \"strategy\": "
                                        "\"group\", \"group_size\": 32"),
     4 + 8 / 32.0, false},
    {"GptOssForCausalLM", "{\"quant_method\": \"mxfp4\"}", 4 + 8 / 32.0, false},
    // The head's 64 rows of 4 x 6 x 512 + 2 x 64 have Q6_K.
    {"LlamaForCausalLM", GGUF("Q4_0"), 4.5 + (6 + 320 * 8 / 4096.0 - 4.5) * 64 / 12416, true},
    {"LlamaForCausalLM", GGUF("Q8_0"), 8.5, true},
    {"LlamaForCausalLM", GGUF("Q6_K"), 6 + 320 * 8 / 4096.0, true},
};

static void write_config(const folder *f, const char *architecture, const char *quantization)
{
    static const char *const fields[][2] = {
        {"vocab_size", "64"},         {"hidden_size", "512"},
        {"intermediate_size", "512"}, {"num_attention_heads", "8"},
        {"num_key_value_heads", "4"}, {"head_dim", "64"},
        {"num_hidden_layers", "4"},   {"tie_word_embeddings", "false"},
        {"num_local_experts", "4"},   {"num_experts_per_tok", "2"},
        {"attention_bias", "false"},  {"moe_intermediate_size", "512"},
    };
    json_t *c = small_config(architecture);
    for (size_t i = 0; i < MSGL_COUNT(fields); i++) set_field(c, fields[i][0], fields[i][1]);
    set_field(c, "num_experts", NULL);
    set_field(c, "quantization_config", quantization);
    folder_write_json(f, "config.json", c);
    json_decref(c);
}

static msgl_options options_of(const folder *f, const char *dtype, int32_t ranks)
{
    const harness_target target = {.device = TEST_DEVICE, .ranks = ranks, .deterministic = !ON_CPU};
    msgl_options o = harness_config_for(f->dir, dtype, &target);
    o.dummy_weight = true;
    return o;
}

// Log-probabilities [TOKENS, VOCAB] of a prompt.
static float *answers(const folder *f, const char *dtype, int32_t ranks)
{
    int32_t ids[TOKENS];
    for (int32_t i = 0; i < TOKENS; i++) ids[i] = i * 37 % VOCAB;
    const msgl_options o = options_of(f, dtype, ranks);
    float *rows = harness_prompt(&o, ids, TOKENS);
    for (int i = 0; i < TOKENS * VOCAB; i++) assert_true(rows[i] < 0 && rows[i] > -15);
    return rows;
}

// Weights that a config packs: of layers, of experts alone, or of layers and the two ends.
static double packed_weights(size_t form)
{
    const bool experts = strstr(FORMS[form].architecture, "Llama") == NULL;
    const bool oss = strstr(FORMS[form].architecture, "GptOss") != NULL;
    const double matrix = WIDTH * WIDTH, attention = oss ? 0 : 3 * matrix;
    const double layer = attention + 3 * matrix * (experts ? EXPERTS : 1);
    return layer * LAYERS + (FORMS[form].ends ? 2.0 * VOCAB * WIDTH : 0);
}

static size_t weight_bytes(const folder *f, size_t form, const char *quantization)
{
    harness h;
    write_config(f, FORMS[form].architecture, quantization);
    const msgl_options o = options_of(f, "bfloat16", 1);
    harness_open(&h, &o);
    const size_t bytes = h.info->weight_bytes;
    assert_true(h.e->model.kept == (quantization != NULL));
    // Which no product reads.
    if (quantization == NULL || !FORMS[form].ends) {
        assert_int_equal(h.info->embed_bytes, VOCAB * WIDTH * 2);
    } else {
        assert_true(h.info->embed_bytes < VOCAB * WIDTH * 2);
    }
    harness_close(&h);
    return bytes;
}

// On a GPU rows are filled up to 16 bytes.
static void check_bits(size_t form, double bits)
{
    print_message("%s, %s: %.4f bits a weight\n", FORMS[form].architecture, FORMS[form].config,
                  bits);
    if (ON_CPU) {
        assert_true(fabs(bits - FORMS[form].bits) < 0.005);
    } else {
        assert_true(bits >= floor(FORMS[form].bits) && bits < floor(FORMS[form].bits) + 1);
    }
}

// What the device's memory has there.
static uint8_t *bytes_of(const harness *h, const msgl_weight *w)
{
    msgl_device *d = h->e->device;
    const int32_t event = MSGL_DEVICE_MAX_EVENTS - 1;
    const size_t bytes = msgl__weight_bytes(w);
    uint8_t *out = malloc(bytes);
    assert_non_null(out);
    d->ops->arm(d, event);
    d->ops->copy_out(d, out, w->data, bytes);
    d->ops->record(d, event);
    assert_int_equal(d->ops->wait(d, event), 0);
    return out;
}

static void test_forms(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(FORMS); i++) {
        folder f;
        folder_make(&f);
        const size_t plain = weight_bytes(&f, i, NULL);
        const size_t bytes = weight_bytes(&f, i, FORMS[i].config);
        const double bits = 16 - 8 * (double)(plain - bytes) / packed_weights(i);
        check_bits(i, bits);
        float *first = answers(&f, "bfloat16", 1), *second = answers(&f, "bfloat16", 1);
        assert_memory_equal(first, second, TOKENS * VOCAB * sizeof *first);
        float least = 0, most = -15;
        for (int k = 0; k < VOCAB; k++)
            least = fminf(least, first[k]), most = fmaxf(most, first[k]);
        assert_true(most - least > 0.5f); // not all the same
        free(first);
        free(second);
        folder_remove(&f);
    }
}

static bool equal_bytes(const harness *h, const msgl_weight *a, const msgl_weight *b)
{
    const size_t bytes = msgl__weight_bytes(a);
    uint8_t *first = bytes_of(h, a), *second = bytes_of(h, b);
    assert_true(memcmp(first, first + 1, bytes - 1) != 0); // there are any
    const bool equal = memcmp(first, second, bytes) == 0;
    free(first);
    free(second);
    return equal;
}

// Experts of one tensor differ, and are the next layer's.
static void test_experts(void **state)
{
    (void)state;
    folder f;
    harness h;
    folder_make(&f);
    write_config(&f, "GptOssForCausalLM", "{\"quant_method\": \"mxfp4\"}");
    const msgl_options o = options_of(&f, "bfloat16", 1);
    harness_open(&h, &o);
    const msgl_decoder_layer *layers = ((const msgl_decoder *)h.e->model.layers)->layers;
    const msgl_moe_experts *first = &layers[0].moe.experts, *second = &layers[1].moe.experts;
    for (int32_t e = 0; e < EXPERTS; e++) {
        assert_true(equal_bytes(&h, &first->gate_up[e], &second->gate_up[e]));
        assert_true(equal_bytes(&h, &first->down[e], &second->down[e]));
        if (e == 0) continue;
        assert_false(equal_bytes(&h, &first->gate_up[0], &first->gate_up[e]));
        assert_false(equal_bytes(&h, &first->down[0], &first->down[e]));
    }
    harness_close(&h);
    folder_remove(&f);
}

// Layers have equal weights, each at an address of its own.
static void test_copies(void **state)
{
    (void)state;
    folder f;
    harness h;
    folder_make(&f);
    write_config(&f, "LlamaForCausalLM", GGUF("Q4_K_M"));
    const msgl_options o = options_of(&f, "bfloat16", 1);
    harness_open(&h, &o);
    const msgl_decoder_layer *layers = ((const msgl_decoder *)h.e->model.layers)->layers;
    for (int32_t l = 0; l + 1 < LAYERS; l++) {
        const msgl_weight *a = &layers[l].out.w, *b = &layers[l + 1].out.w;
        assert_string_equal(a->format->blocks->name, "Q4_K");
        assert_ptr_equal(a->format, b->format);
        assert_ptr_not_equal(a->data, b->data);
        assert_true(equal_bytes(&h, a, b));
    }
    // Of four layers, 3 is in the last eighth of them, and 2 the third behind the first eighth.
    for (int32_t l = 0; l < LAYERS; l++) {
        const msgl_weight *qkv = &layers[l].attn.qkv.w;
        assert_int_equal(qkv->num_parts, l >= 2 ? 2 : 0);
        assert_string_equal(layers[l].mlp.down.w.format->blocks->name, l >= 2 ? "Q6_K" : "Q4_K");
    }
    harness_close(&h);
    folder_remove(&f);
}

// What two ranks have of a model is one model, all of whose matrices are packed here.
static void test_ranks(void **state)
{
    (void)state;
    folder f;
    if (!ON_CPU) skip(); // there may be one
    folder_make(&f);
    write_config(&f, "LlamaForCausalLM", GGUF("Q8_0"));
    float *one = answers(&f, "float32", 1), *two = answers(&f, "float32", 2);
    for (int i = 0; i < TOKENS * VOCAB; i++) assert_true(fabsf(one[i] - two[i]) < 1e-3f);
    free(one);
    free(two);
    folder_remove(&f);
}

// --weight-dtype converts, as it does with a file: nothing is packed then.
static void test_converted(void **state)
{
    (void)state;
    folder f;
    harness h;
    folder_make(&f);
    const size_t plain = weight_bytes(&f, 0, NULL);
    write_config(&f, "LlamaForCausalLM", "{\"quant_method\": \"hqq\"}");
    msgl_options o = options_of(&f, "bfloat16", 1);
    msgl_err err = {0};
    assert_int_equal(harness_try_open(&h, &o, &err), MSGL_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "found \"hqq\""));
    o.weight_dtype = "bfloat16";
    harness_open(&h, &o);
    assert_int_equal(h.info->weight_bytes, plain);
    assert_false(h.e->model.kept);
    harness_close(&h);
    folder_remove(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),     cmocka_unit_test(test_copies),
        cmocka_unit_test(test_experts),   cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_converted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
