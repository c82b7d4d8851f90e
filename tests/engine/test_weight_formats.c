// SPDX-License-Identifier: Apache-2.0
//
// Weight formats and the cache's dtype as settings: what int8 and q4 weights and an E4M3 cache cost
// in quality on the model that ships, teacher-forced, and in memory; that weights, activations and
// cache are chosen apart; what a bad choice is told. tests/cuda runs the same on a GPU.
#include <jansson.h>
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
#include "core/settings.h"
#include "engine/harness.h"

#define DEMO MSGL_SOURCE_DIR "/models/demo"
#ifndef TEST_DEVICE
#define TEST_DEVICE "cpu"
#endif
#define DIALOGUES MSGL_SOURCE_DIR "/tests/vectors/demo/dialogues.json"

enum { LONGEST = 1024, POSITIONS = 4096 };

static msgl_options config(const char *dtype)
{
    msgl_options o = harness_config(DEMO, dtype);
    o.device = TEST_DEVICE;
    o.attention = "auto";
    return o;
}

static void open_demo(harness *h, const char *dtype, const char *weights, const char *kv)
{
    msgl_options o = config(dtype);
    o.weight_dtype = weights;
    o.kv_cache_dtype = kv;
    o.max_seq_len = LONGEST + 1;
    o.max_prefill_tokens = LONGEST;
    o.max_running = 2;
    o.num_pages = 2 * LONGEST;
    o.threads = 2;
    harness_open(h, &o);
}

// Log-probabilities of a text's tokens are then in h's rows.
static void force(harness *h, const int32_t *ids, int32_t n)
{
    harness_pages(h, 0, n + 1);
    harness_tokens(h, 0, ids, n);
    msgl_batch_req r = harness_req(0, 0, n);
    harness_step(h, MSGL_PREFILL, &r, 1);
}

static int32_t argmax(const float *v, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) best = v[i] > v[best] ? i : best;
    return best;
}

typedef struct difference {
    int32_t positions, same_choice;
    double sum; // of |log-probability of the text's next token, minus the other's|
} difference;

static void add_rows(difference *d, const harness *a, const harness *b, const int32_t *ids,
                     int32_t n)
{
    for (int32_t t = 0; t + 1 < n && d->positions < POSITIONS; t++, d->positions++) {
        const float *x = harness_row(a, t), *y = harness_row(b, t);
        const int32_t vocab = a->info->vocab_size;
        d->sum += fabs((double)x[ids[t + 1]] - y[ids[t + 1]]);
        d->same_choice += argmax(x, vocab) == argmax(y, vocab);
    }
}

// Both on the first POSITIONS of the dialogues.
static difference compare(harness *plain, harness *other)
{
    json_t *root = json_load_file(DIALOGUES, 0, NULL);
    assert_non_null(root);
    const json_t *texts = json_object_get(root, "ids");
    static int32_t ids[LONGEST];
    difference d = {0};
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        const int32_t n = (int32_t)json_array_size(text);
        assert_in_range(n, 2, LONGEST);
        for (int32_t t = 0; t < n; t++) {
            ids[t] = (int32_t)json_integer_value(json_array_get(text, (size_t)t));
        }
        force(plain, ids, n);
        force(other, ids, n);
        add_rows(&d, plain, other, ids, n);
    }
    json_decref(root);
    assert_int_equal(d.positions, POSITIONS);
    return d;
}

static double mean_of(const difference *d)
{
    return d->sum / d->positions;
}

static double percent_same(const difference *d)
{
    return 100.0 * d->same_choice / d->positions;
}

// The most that a format may cost. bytes: of bf16's.
typedef struct cost {
    const char *format;
    double mean, same, bytes;
} cost;

static void check_quality(const char *dtype, const cost *most)
{
    harness plain, other;
    open_demo(&plain, dtype, "auto", "auto");
    open_demo(&other, dtype, most->format, "auto");
    const difference d = compare(&plain, &other);
    const double mean = mean_of(&d), same = percent_same(&d);
    const double bytes = (double)other.info->weight_bytes / (double)plain.info->weight_bytes;
    print_message("%s against %s: mean difference %.5f, same choice %.2f %%, %.3f of the bytes\n",
                  most->format, dtype, mean, same, bytes);
    assert_true(mean > 0 && mean < most->mean);
    assert_true(same > most->same);
    assert_true(bytes <= most->bytes / (strcmp(dtype, "float32") == 0 ? 2 : 1));
    harness_close(&plain);
    harness_close(&other);
}

static void test_quality(void **state)
{
    (void)state;
    static const cost INT8 = {"int8", 0.03, 98, 0.55};
    check_quality("bfloat16", &INT8);
    check_quality("float32", &INT8);
    static const cost Q4 = {"q4", 0.05, 93, 0.30};
    check_quality("bfloat16", &Q4);
    check_quality("float32", &Q4);
}

static void test_quality_of_cache(void **state)
{
    (void)state;
    harness plain, e4m3;
    open_demo(&plain, "bfloat16", "auto", "auto");
    open_demo(&e4m3, "bfloat16", "auto", "fp8_e4m3");
    const difference d = compare(&plain, &e4m3);
    const double mean = mean_of(&d), same = percent_same(&d);
    print_message("E4M3 cache against bfloat16: mean difference %.5f, same choice %.2f %%\n", mean,
                  same);
    assert_true(mean > 0 && mean < 0.05);
    assert_true(same > 97);
    assert_true(2 * e4m3.info->kv_bytes == plain.info->kv_bytes);
    harness_close(&plain);
    harness_close(&e4m3);
}

// Sizes of weights and cache of the demo model.
static void sizes(const char *dtype, const char *weights, const char *kv, double out[2])
{
    harness h;
    msgl_options o = harness_config(DEMO, dtype);
    o.weight_dtype = weights;
    o.kv_cache_dtype = kv;
    harness_open(&h, &o);
    out[0] = (double)h.info->weight_bytes;
    out[1] = (double)h.info->kv_bytes;
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8};
    force(&h, ids, MSGL_COUNT(ids));
    for (int32_t i = 0; i < h.info->vocab_size; i++) assert_true(harness_row(&h, 7)[i] < 0);
    harness_close(&h);
}

// Experts in int8 give nearly the log-probabilities that they give in bf16.
static void test_experts(void **state)
{
    (void)state;
    enum { TOKENS = 24 };
    const char *dir = MSGL_SOURCE_DIR "/tests/vectors/models/qwen3_moe";
    float *rows[2];
    int32_t ids[TOKENS], vocab = 0;
    for (int32_t i = 0; i < TOKENS; i++) ids[i] = i * 37 % 90;
    for (int i = 0; i < 2; i++) {
        const harness_target target = {.device = TEST_DEVICE,
                                       .weights = i == 0 ? "bfloat16" : "int8"};
        const msgl_options o = harness_config_for(dir, "bfloat16", &target);
        harness h;
        harness_open(&h, &o);
        vocab = h.info->vocab_size;
        harness_close(&h);
        rows[i] = harness_prompt(&o, ids, TOKENS);
    }
    double divergence = 0;
    for (int32_t i = 0; i < TOKENS * vocab; i++) {
        divergence += exp((double)rows[0][i]) * ((double)rows[0][i] - (double)rows[1][i]) / TOKENS;
    }
    print_message("experts in int8: divergence %.2e\n", divergence);
    assert_true(divergence > 0 && divergence < 5e-3);
    free(rows[0]);
    free(rows[1]);
}

static void refuses(const char *model, const char *weights, const char *kv, const char *line)
{
    harness h;
    msgl_err err;
    msgl_options o = config("bfloat16");
    o.model_dir = model;
    o.weight_dtype = weights;
    o.kv_cache_dtype = kv;
    assert_int_equal(harness_try_open(&h, &o, &err), MSGL_EUNSUPPORTED);
    assert_string_equal(err.text, line);
}

// A GPU has fewer choices, and says which.
static void test_chosen_together(void **state)
{
    (void)state;
    refuses(DEMO, "float16", "auto",
            "--weight-dtype float16: not on this device with --dtype bfloat16; allowed: auto, "
            "bfloat16, int8, q4");
    refuses(DEMO, "int8", "float16",
            "--kv-cache-dtype float16: not on this device with --dtype bfloat16; allowed: "
            "bfloat16 or fp8_e4m3");
}

static void test_chosen_apart(void **state)
{
    (void)state;
    static const char *const names[] = {"float32", "float16", "bfloat16", "int8"};
    static const double per_weight[] = {4, 2, 2, 1.0625}, per_cached[] = {4, 2, 2, 1, 1};
    static const char *const caches[] = {"float32", "float16", "bfloat16", "fp8_e4m3", "fp8"};
    double want[2], got[2];
    sizes("bfloat16", "auto", "auto", want);
    for (int w = 0; w < 4; w++) {
        for (size_t kv = 0; kv < MSGL_COUNT(caches); kv++) {
            sizes("bfloat16", names[w], caches[kv], got);
            // Norms' weights are f32 in all of them, so that the ratio is not quite the values'.
            assert_true(fabs(got[0] / want[0] / (per_weight[w] / 2) - 1) < 0.01);
            assert_true(got[1] == want[1] * per_cached[kv] / 2);
        }
    }
    sizes("float32", "auto", "auto", got);
    assert_true(got[1] == 2 * want[1] && got[0] > 1.9 * want[0]);
}

static void test_bad_spellings(void **state)
{
    (void)state;
    // A name may be a device's own form, which the engine knows; what is none is refused at once.
    static const char *const bad[] = {"int4", "INT8", "q8_0", "", "int8 ", "fp8"};
    static const bool name[] = {true, false, true, false, false, true};
    msgl_err err;
    char line[MSGL_ERR_TEXT_SIZE];
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        msgl_options o = harness_config(DEMO, "auto");
        harness h;
        o.weight_dtype = bad[i];
        const int code = name[i] ? harness_try_open(&h, &o, &err) : msgl__options_check(&o, &err);
        assert_int_equal(code, name[i] ? MSGL_EUNSUPPORTED : MSGL_EINVAL);
        snprintf(line, sizeof line,
                 name[i] ? "--weight-dtype %s: not on this device with --dtype bfloat16; allowed: "
                           "auto, float32, float16, bfloat16, int8, q4"
                         : "weight_dtype is \"%s\"; allowed: "
                           "auto|bfloat16|float16|float32|int8|q4",
                 bad[i]);
        assert_string_equal(err.text, line);
        o = harness_config(DEMO, "auto");
        o.kv_cache_dtype = i == 0 ? "int8" : strcmp(bad[i], "fp8") == 0 ? "fp8_e5m2" : bad[i];
        assert_int_equal(msgl__options_check(&o, &err), MSGL_EINVAL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quality),      cmocka_unit_test(test_quality_of_cache),
        cmocka_unit_test(test_experts),      cmocka_unit_test(test_bad_spellings),
        cmocka_unit_test(test_chosen_apart),
    };
    const struct CMUnitTest on_gpu[] = {
        cmocka_unit_test(test_quality),
        cmocka_unit_test(test_quality_of_cache),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_chosen_together),
    };
    if (strcmp(TEST_DEVICE, "cpu") == 0) return cmocka_run_group_tests(tests, NULL, NULL);
    if (!harness_has_device(TEST_DEVICE)) return 77;
    return cmocka_run_group_tests(on_gpu, NULL, NULL);
}
