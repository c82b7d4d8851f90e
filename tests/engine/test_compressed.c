// SPDX-License-Identifier: Apache-2.0
//
// Attention to compressed keys (DeepSeek-V4) against transformers, however a prompt is cut: windows
// end inside of chunks, at their ends, and with tokens of an answer; at every level, and on several
// ranks.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "engine/harness.h"
#include "engine/parity.h"
#include "models/folder.h"

static const char *const MODELS[] = {"deepseek_v4", "deepseek_v4_tf5"};

static void test_cuts(void **state)
{
    (void)state;
    static const harness_target targets[] = {{.chunk = 1},
                                             {.chunk = 7, .page_size = 16},
                                             {.chunk = 8, .threads = 2},
                                             {.chunk = 27, .page_size = 5},
                                             {.answers_from = 1},
                                             {.answers_from = 30, .page_size = 3},
                                             {.level = "ref"},
                                             {.page_size = 64, .threads = 2}};
    for (size_t m = 0; m < MSGL_COUNT(MODELS); m++) {
        for (size_t t = 0; t < MSGL_COUNT(targets); t++) {
            assert_true(parity_f32(MODELS[m], &targets[t]));
        }
    }
}

// A request of all tokens that there is room for: each of its compressed keys has a score, and the
// memory of scores has no more of them. The token behind the prompt makes none.
static void test_longest(void **state)
{
    (void)state;
    static const harness_target targets[] = {{.max_seq_len = 65},
                                             {.max_seq_len = 65, .chunk = 11, .threads = 2},
                                             {.max_seq_len = 65, .answers_from = 40},
                                             {.max_seq_len = 65, .level = "ref"}};
    for (size_t m = 0; m < MSGL_COUNT(MODELS); m++) {
        for (size_t t = 0; t < MSGL_COUNT(targets); t++) {
            assert_true(parity_f32(MODELS[m], &targets[t]));
        }
    }
}

// Experts that are looked up by token ids have none where a prompt is rows.
static void test_no_rows_for_prompts(void **state)
{
    (void)state;
    for (size_t m = 0; m < MSGL_COUNT(MODELS); m++) {
        harness h;
        char dir[512];
        (void)snprintf(dir, sizeof dir, "%s/tests/vectors/models/%s", MSGL_SOURCE_DIR, MODELS[m]);
        const msgl_options cfg = harness_config(dir, "auto");
        harness_open(&h, &cfg);
        assert_int_equal(msgl__engine_runner(h.e)->embed_size, 0);
        harness_close(&h);
    }
}

static void test_levels(void **state)
{
    (void)state;
    for (size_t m = 0; m < MSGL_COUNT(MODELS); m++) {
        for (int l = 0; l <= msgl__cpu_level_detect(); l++) {
            const harness_target t = {.level = msgl__cpu_level_name(l), .chunk = 13};
            assert_true(parity_f32(MODELS[m], &t));
            assert_true(parity_half(MODELS[m], "bfloat16", "expected_bf16.bin", &t));
        }
    }
}

// Heads, groups of the product behind them, and experts on several ranks; more ranks than groups
// are refused.
static void test_ranks(void **state)
{
    (void)state;
    static const harness_target two[] = {{.ranks = 2}, {.ranks = 2, .expert_ranks = 2, .chunk = 9}};
    for (size_t t = 0; t < MSGL_COUNT(two); t++) assert_true(parity_f32(MODELS[0], &two[t]));
    assert_false(parity_f32(MODELS[1], &two[0])); // o_groups 1
}

enum { MOST_BYTES = 1 << 20 };

// The name that hubs' files have for what transformers 5 calls `name`.
static void hub_name(const char *name, char *out, size_t size)
{
    static const char *const BEGINNINGS[][2] = {{"model.hc_head.hc_", "hc_head_"},
                                                {"model.embed_tokens.", "embed."},
                                                {"model.", ""},
                                                {"", ""}};
    size_t i = 0;
    while (strncmp(name, BEGINNINGS[i][0], strlen(BEGINNINGS[i][0])) != 0) i++;
    const char *rest = name + strlen(BEGINNINGS[i][0]), *norm = strstr(rest, ".attn.norm.");
    if (norm == NULL) {
        snprintf(out, size, "%s%s", BEGINNINGS[i][1], rest);
    } else {
        snprintf(out, size, "%.*s.attn.kv_norm.%s", (int)(norm - rest), rest, norm + 11);
    }
}

// A folder with model 0's tensors by hubs' names; table: what the first entry of the first layer's
// table of experts is, and its dtype.
static void make_hub_folder(folder *f, int64_t table, const char *dtype)
{
    char path[512], name[128];
    uint8_t *bytes = malloc(MOST_BYTES);
    assert_non_null(bytes);
    parity_path(path, MODELS[0], "model.safetensors");
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    const size_t size = fread(bytes, 1, MOST_BYTES, in);
    fclose(in);
    uint64_t length;
    memcpy(&length, bytes, sizeof length);
    json_t *all = json_loadb((char *)bytes + 8, length, 0, NULL), *hub = json_object(), *t;
    const char *key;
    json_object_foreach(all, key, t)
    {
        hub_name(key, name, sizeof name);
        json_object_set(hub, name, t);
    }
    t = json_object_get(hub, "layers.0.ffn.gate.tid2eid");
    assert_non_null(t);
    json_object_set_new(t, "dtype", json_string(dtype));
    const json_t *at = json_array_get(json_object_get(t, "data_offsets"), 0);
    memcpy(bytes + 8 + length + json_integer_value(at), &table, sizeof table);
    char *header = json_dumps(hub, JSON_COMPACT);
    folder_make(f);
    write_safetensors(f, "model.safetensors", header, bytes + 8 + length, size - 8 - length);
    parity_path(path, MODELS[0], "config.json");
    json_t *config = json_load_file(path, 0, NULL);
    folder_write_json(f, "config.json", config);
    json_decref(config);
    json_decref(all);
    json_decref(hub);
    free(header);
    free(bytes);
}

static void expect_error(int64_t table, const char *dtype, const char *text)
{
    folder f;
    harness h;
    msgl_err err = {0};
    make_hub_folder(&f, table, dtype);
    const msgl_options cfg = harness_config(f.dir, "float32");
    assert_int_not_equal(harness_try_open(&h, &cfg, &err), 0);
    if (strstr(err.text, text) == NULL) fail_msg("%s", err.text);
    folder_remove(&f);
}

static void test_hub_names(void **state)
{
    (void)state;
    const harness_target t = {.chunk = 20};
    folder f;
    make_hub_folder(&f, 0, "I64"); // of an id that is in no prompt
    assert_true(parity_f32_in(f.dir, MODELS[0], &t));
    folder_remove(&f);
    expect_error(4, "I64", "tensor layers.0.ffn.gate.tid2eid: element 0: found 4, allowed 0..3");
    expect_error(-1, "I64", "element 0: found -1, allowed 0..3");
    expect_error(0, "F64", "tid2eid: dtype: found F64, expected I64, I32");
}

// --- files in FP8 and FP4 ------------------------------------------------------------------------

typedef struct packed_file {
    json_t *header;
    uint8_t *data;
    size_t size;
} packed_file;

static void add_tensor(packed_file *out, const char *name, const char *dtype, int64_t rows,
                       int64_t cols, const void *data, size_t size)
{
    const json_int_t begin = (json_int_t)out->size;
    assert_true(out->size + size <= MOST_BYTES);
    memcpy(out->data + out->size, data, size);
    out->size += size;
    json_t *t = json_pack("{s:s, s:[I, I], s:[I, I]}", "dtype", dtype, "shape", (json_int_t)rows,
                          (json_int_t)cols, "data_offsets", begin, (json_int_t)out->size);
    assert_int_equal(json_object_set_new(out->header, name, t), 0);
}

enum { MOST_ELEMENTS = 1 << 14, FP4_GROUP = 32 };

// The nearest of e2m1's values, and its code.
static float round_fp4(float x, uint8_t *code)
{
    static const float VALUES[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    int best = 0;
    for (int i = 1; i < 8; i++) {
        if (fabsf(fabsf(x) - VALUES[i]) < fabsf(fabsf(x) - VALUES[best])) best = i;
    }
    *code = (uint8_t)(best | (x < 0 ? 8 : 0));
    return x < 0 ? -VALUES[best] : VALUES[best];
}

// A matrix as DeepSeek-V4's files have it, or with `plain` the same values in bfloat16: experts'
// first products as e2m1 with a power of two for each 32 of a row, others as E4M3 with one for each
// 128 x 128, of which these have one.
static void add_matrix(packed_file *out, const char *name, const uint16_t *from, int64_t rows,
                       int64_t cols, bool plain)
{
    static uint16_t values[MOST_ELEMENTS];
    static uint8_t codes[MOST_ELEMENTS], exponents[MOST_ELEMENTS / FP4_GROUP];
    const bool fp4 = strstr(name, ".experts.") != NULL && strstr(name, ".w2.") == NULL;
    const int64_t n = rows * cols, group = fp4 ? FP4_GROUP : n;
    assert_true(n <= MOST_ELEMENTS && rows <= 128 && cols <= 128 && n % group == 0);
    for (int64_t g = 0; g < n / group; g++) {
        float most = 0;
        for (int64_t i = g * group; i < (g + 1) * group; i++) {
            most = fmaxf(most, fabsf(msgl__bf16_to_f32(from[i])));
        }
        const int e = (int)ceilf(log2f(most / (fp4 ? 6 : 448)));
        exponents[g] = (uint8_t)(e + 127);
        for (int64_t i = g * group; i < (g + 1) * group; i++) {
            const float x = ldexpf(msgl__bf16_to_f32(from[i]), -e);
            uint8_t code;
            float value = round_fp4(x, &code);
            if (!fp4) {
                msgl__store_f32(codes, MSGL_E4M3, (size_t)i, x);
                value = msgl__load_f32(codes, MSGL_E4M3, (size_t)i);
            } else {
                codes[i / 2] = (uint8_t)(i % 2 == 0 ? code : codes[i / 2] | code << 4);
            }
            values[i] = msgl__f32_to_bf16(ldexpf(value, e));
        }
    }
    if (plain) {
        add_tensor(out, name, "BF16", rows, cols, values, (size_t)n * sizeof *values);
        return;
    }
    char scale[128];
    snprintf(scale, sizeof scale, "%.*s.scale", (int)(strlen(name) - strlen(".weight")), name);
    add_tensor(out, name, fp4 ? "I8" : "F8_E4M3", rows, fp4 ? cols / 2 : cols, codes,
               (size_t)(fp4 ? n / 2 : n));
    add_tensor(out, scale, "F8_E8M0", fp4 ? rows : 1, fp4 ? cols / group : 1, exponents,
               (size_t)(n / group));
}

// Attention's and the experts' products are packed, but for what compresses and chooses.
static bool is_packed(const char *name)
{
    if (strstr(name, "compressor") != NULL || strstr(name, "weights_proj") != NULL) return false;
    return strstr(name, ".attn.w") != NULL || strstr(name, "indexer.wq_b") != NULL ||
           strstr(name, "experts.") != NULL;
}

static void make_packed_folder(folder *f, bool plain)
{
    char path[512];
    uint8_t *bytes = malloc(MOST_BYTES);
    packed_file out = {.header = json_object(), .data = malloc(MOST_BYTES)};
    uint64_t length;
    const char *key;
    json_t *t;
    assert_true(bytes != NULL && out.data != NULL);
    parity_path(path, MODELS[0], "model.safetensors");
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    assert_true(fread(bytes, 1, MOST_BYTES, in) > 8);
    fclose(in);
    memcpy(&length, bytes, sizeof length);
    json_t *all = json_loadb((char *)bytes + 8, length, 0, NULL);
    json_object_del(all, "__metadata__");
    json_object_foreach(all, key, t)
    {
        const json_t *shape = json_object_get(t, "shape"), *at = json_object_get(t, "data_offsets");
        const json_int_t begin = json_integer_value(json_array_get(at, 0));
        const size_t size = (size_t)(json_integer_value(json_array_get(at, 1)) - begin);
        const uint8_t *data = bytes + 8 + length + begin;
        if (is_packed(key)) {
            add_matrix(&out, key, (const uint16_t *)(const void *)data,
                       json_integer_value(json_array_get(shape, 0)),
                       json_integer_value(json_array_get(shape, 1)), plain);
            continue;
        }
        add_tensor(&out, key, json_string_value(json_object_get(t, "dtype")), 1, 1, data, size);
        json_object_set(json_object_get(out.header, key), "shape", (json_t *)shape);
    }
    char *header = json_dumps(out.header, JSON_COMPACT);
    folder_make(f);
    write_safetensors(f, "model.safetensors", header, out.data, out.size);
    parity_path(path, MODELS[0], "config.json");
    json_t *config = json_load_file(path, 0, NULL);
    if (!plain) {
        json_object_set_new(config, "expert_dtype", json_string("fp4"));
        json_object_set_new(config, "quantization_config",
                            json_pack("{s:s, s:s, s:s, s:[i, i], s:s}", "quant_method", "fp8",
                                      "fmt", "e4m3", "scale_fmt", "ue8m0", "weight_block_size", 128,
                                      128, "activation_scheme", "dynamic"));
    }
    folder_write_json(f, "config.json", config);
    json_decref(config);
    json_decref(all);
    json_decref(out.header);
    free(header);
    free(bytes);
    free(out.data);
}

// The values of such a file are those that it stands for, on one rank and on two.
static void test_packed(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= 2; ranks++) {
        const harness_target target = {.ranks = ranks};
        harness h[2];
        folder f[2];
        for (int i = 0; i < 2; i++) {
            make_packed_folder(&f[i], i == 1);
            assert_true(parity_prompt(&h[i], f[i].dir, MODELS[0], "float32", &target));
            folder_remove(&f[i]);
        }
        double worst = 0;
        for (int32_t p = 0; p < 64; p++) {
            const float *a = harness_row(&h[0], p), *b = harness_row(&h[1], p);
            for (int32_t i = 0; i < h[0].info->vocab_size; i++) {
                worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
            }
        }
        print_message("%d ranks: packed against plain, max difference %.2e\n", (int)ranks, worst);
        assert_true(worst < 1e-4);
        for (int i = 0; i < 2; i++) harness_close(&h[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cuts),
                                       cmocka_unit_test(test_longest),
                                       cmocka_unit_test(test_no_rows_for_prompts),
                                       cmocka_unit_test(test_levels),
                                       cmocka_unit_test(test_ranks),
                                       cmocka_unit_test(test_hub_names),
                                       cmocka_unit_test(test_packed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
