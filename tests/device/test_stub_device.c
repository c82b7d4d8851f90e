// SPDX-License-Identifier: Apache-2.0
//
// A model runs through the door (kernel/plugin.h) on a device that the core has never heard of,
// with a backend and a form of weights that the plug-in brings; and what is said of plug-ins that
// are missing, of another build, or asked for what they do not have.
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
#include "device/devices.h"
#include "device/stub.h"
#include "engine/harness.h"
#include "utils/plugin.h"

enum { TOKENS = 48 };

static stub_counts *counts(void)
{
    msgl_err err = {0};
    stub_counts *c = msgl__plugin_open("minisgl-stub.so", "stub", &err);
    if (c == NULL) fail_msg("%s", err.text);
    return c;
}

static msgl_options options_of(const char *folder, const char *device, const char *weights)
{
    // On the stub attention is its own; the CPU's exact one is the reference.
    const harness_target t = {.device = device,
                              .attention = strcmp(device, "cpu") == 0 ? "torch_native" : "auto",
                              .weights = weights,
                              .page_size = 16};
    return harness_config_for(folder, "float32", &t);
}

// Largest difference of log-probabilities from the CPU's, of a prompt.
static double difference(const char *folder, int32_t vocab, const char *device, const char *weights)
{
    int32_t ids[TOKENS];
    for (int32_t i = 0; i < TOKENS; i++) ids[i] = 1 + i * 37 % (vocab - 1);
    const msgl_options cpu = options_of(folder, "cpu", "float32");
    const msgl_options stub = options_of(folder, device, weights);
    float *want = harness_prompt(&cpu, ids, TOKENS), *got = harness_prompt(&stub, ids, TOKENS);
    double most = 0, width = 0;
    for (size_t i = 0; i < (size_t)TOKENS * (size_t)vocab; i++) {
        most = fmax(most, fabs((double)want[i] - (double)got[i]));
        width = fmax(width, fabs((double)want[i]));
        if (isnan(got[i])) most = INFINITY;
    }
    assert_true(width > 1); // these are log-probabilities that differ
    free(want);
    free(got);
    return most;
}

// The weights of llama-f32 are no bf16 numbers, so the form of the stub shows; those of the model
// that ships are, so it does not.
static void test_end_to_end(void **state)
{
    (void)state;
    static const char LLAMA[] = MSGL_SOURCE_DIR "/tests/vectors/gguf/llama";
    static const char DEMO[] = MSGL_SOURCE_DIR "/models/demo";
    stub_counts *c = counts();
    assert_true(difference(LLAMA, 260, "stub", "float32") < 1e-4);
    assert_int_equal(c->packed, 0);
    assert_int_equal(c->opened, 1);
    assert_true(c->attended > 0);
    const double rounded = difference(LLAMA, 260, "stub:1", "rounded");
    assert_true(rounded > 1e-4 && rounded < 0.2);
    assert_true(c->packed > 0);
    assert_true(difference(DEMO, 6144, "stub:0", "rounded") < 1e-3);
    assert_int_equal(c->opened, 3);
}

static void expect(const msgl_options *o, const char *text)
{
    harness h;
    msgl_err err = {0};
    if (harness_try_open(&h, o, &err) == 0) fail_msg("no error, but %s", text);
    if (strstr(err.text, text) == NULL) fail_msg("\"%s\" is not in \"%s\"", text, err.text);
}

static void test_refused(void **state)
{
    (void)state;
    static const char LLAMA[] = MSGL_SOURCE_DIR "/tests/vectors/gguf/llama";
    msgl_options o = options_of(LLAMA, "stub:2", "float32");
    expect(&o, "--device: found \"stub:2\", allowed stub:0..1");
    o = options_of(LLAMA, "stub", "float32");
    o.attention = "fa";
    expect(&o, "unknown attention backend \"fa\"; allowed: auto, plain, or a pair");
    o = options_of(LLAMA, "stub", "int4");
    expect(&o, "--weight-dtype int4: not on this device with --dtype float32; allowed: auto, "
               "float32, int8, q4, rounded");
    o = options_of(LLAMA, "stub", "float32");
    o.kv_cache_dtype = "bfloat16";
    expect(&o, "--kv-cache-dtype bfloat16: not on this device with --dtype float32");
    o = options_of(LLAMA, "nobodys", "float32");
    expect(&o, "--device: found \"nobodys\", allowed auto, cpu, cuda");
    o = options_of(LLAMA, "Stub!", "float32");
    expect(&o, "--device: found \"Stub!\", allowed auto, cpu, cuda");
    o = options_of(LLAMA, "old", "float32");
    expect(&o, "--device old: minisgl-old.so is of another build: interface 1, this program has");
}

// Its memory is the device's, not the host's.
static void test_full(void **state)
{
    (void)state;
    msgl_options o = options_of(MSGL_SOURCE_DIR "/models/demo", "stub", "float32");
    o.num_pages = 1 << 20;
    expect(&o, "need");
    o.num_pages = 0;
    harness h;
    harness_open(&h, &o); // nothing of the failed one is left
    assert_string_equal(h.info->device, "stub:0 stub of a device");
    harness_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_end_to_end),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_full),
    };
    setenv("MINISGL_PLUGIN_DIR", MSGL_BINARY_DIR "/tests/device", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
