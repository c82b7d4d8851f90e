// SPDX-License-Identifier: Apache-2.0
//
// Weights that are discarded and loaded again, and memory that is given back, for every
// architecture and form of weights: the log-probabilities behind it are those before, in bits.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <glob.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "engine/parity.h"
#include "core/mem.h"
#include "models/folder.h"
#include "utils/file.h"

enum { TOKENS = 24 };

static int call(harness *h, msgl_admin a, msgl_err *err)
{
    const msgl_admin_calls c = msgl__engine_admin_calls(h->e);
    return c.admin(c.ctx, &a, err);
}

static void expect(harness *h, msgl_admin a)
{
    msgl_err err;
    if (call(h, a, &err) != 0) fail_msg("%s", err.text);
}

static int release(harness *h, int32_t tags, bool discard, msgl_err *err)
{
    return call(h, (msgl_admin){.kind = MSGL_ADMIN_RELEASE, .tags = tags, .discard = discard}, err);
}

static void expect_released(harness *h, int32_t tags, bool discard)
{
    msgl_err err;
    assert_int_equal(release(h, tags, discard, &err), 0);
}

static void resume(harness *h, int32_t tags)
{
    expect(h, (msgl_admin){.kind = MSGL_ADMIN_RESUME, .tags = tags});
}

static msgl_admin_state state_of(harness *h)
{
    const msgl_admin_calls c = msgl__engine_admin_calls(h->e);
    msgl_admin_state s = {0};
    c.state(c.ctx, &s);
    return s;
}

static const char *unusable(harness *h)
{
    return state_of(h).unusable;
}

static float *prompt(harness *h)
{
    int32_t ids[TOKENS];
    assert_null(unusable(h));
    for (int32_t i = 0; i < TOKENS; i++) ids[i] = (i * 7 + 3) % h->info->vocab_size;
    return harness_prompt_of(h, ids, TOKENS);
}

static void expect_same(harness *h, const float *before)
{
    float *now = prompt(h);
    const size_t size = TOKENS * (size_t)h->info->vocab_size * sizeof *now;
    assert_memory_equal(now, before, size);
    free(now);
}

// All tensors of the folder's only file. False: the weights take none.
static bool load_tensors(harness *h, const char *dir)
{
    char path[600];
    void *map;
    size_t size;
    msgl_err err;
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (msgl__file_map(path, &map, &size, &err) != 0) return false; // it has several
    const int code =
        call(h, (msgl_admin){.kind = MSGL_ADMIN_TENSORS, .bytes = map, .total = size}, &err);
    munmap(map, size);
    if (code == MSGL_EUNSUPPORTED) {
        assert_non_null(strstr(err.text, "quantized"));
        return false;
    }
    if (code != 0) fail_msg("%s: %s", dir, err.text);
    return true;
}

// Of the model in `dir`. Returns whether tensors by themselves were loaded.
static bool round_trip_of(const char *dir, const char *dtype, int32_t ranks)
{
    harness h;
    const harness_target t = {.ranks = ranks};
    const msgl_options cfg = harness_config_for(dir, dtype, &t);
    msgl_err err;
    if (harness_try_open(&h, &cfg, &err) != 0) {
        print_message("%s on %d ranks: %s\n", dir, (int)ranks, err.text);
        return false;
    }
    float *before = prompt(&h);
    expect_released(&h, MSGL_MEMORY_ALL, false);
    assert_non_null(strstr(unusable(&h), "given back"));
    resume(&h, MSGL_MEMORY_CACHE);
    resume(&h, MSGL_MEMORY_WEIGHTS);
    expect_same(&h, before);
    expect_released(&h, MSGL_MEMORY_WEIGHTS, true);
    resume(&h, MSGL_MEMORY_ALL);
    assert_non_null(strstr(unusable(&h), "discarded"));
    expect(&h, (msgl_admin){.kind = MSGL_ADMIN_DISK, .path = dir});
    expect_same(&h, before);
    expect(&h, (msgl_admin){.kind = MSGL_ADMIN_DISK, .path = dir}); // beside whole ones
    expect_same(&h, before);
    expect_released(&h, MSGL_MEMORY_WEIGHTS, true);
    resume(&h, MSGL_MEMORY_WEIGHTS);
    const bool tensors = load_tensors(&h, dir);
    if (tensors) expect_same(&h, before);
    free(before);
    harness_close(&h);
    return tensors;
}

static bool round_trip(const char *model, const char *dtype, int32_t ranks)
{
    char dir[512];
    parity_path(dir, model, "");
    return round_trip_of(dir, dtype, ranks);
}

// Files of blocks, which stay as they are.
static void test_gguf(void **state)
{
    (void)state;
    glob_t files;
    assert_int_equal(glob(MSGL_SOURCE_DIR "/tests/vectors/gguf/*.gguf", 0, NULL, &files), 0);
    const char *more = MSGL_SOURCE_DIR "/tests/vectors/gguf/converted/*.gguf";
    assert_int_equal(glob(more, GLOB_APPEND, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        assert_false(round_trip_of(files.gl_pathv[i], "auto", 0));
    }
    globfree(&files);
}

static void test_architectures(void **state)
{
    (void)state;
    int with_tensors = 0;
    for (size_t i = 0; parity_models[i] != NULL; i++) {
        with_tensors += round_trip(parity_models[i], "auto", 0);
    }
    print_message("%d of them took tensors\n", with_tensors);
    assert_true(with_tensors >= 40);
}

static void test_ranks(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen3", "qwen3_moe", "deepseek_v3", "gemma2", "llama4"};
    int with_tensors = 0;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        with_tensors += round_trip(models[i], "float32", 2);
    }
    assert_int_equal(with_tensors, 5);
}

// Another model is refused by the field that tells, and changes nothing.
static void test_other_models(void **state)
{
    (void)state;
    static const struct {
        const char *field, *value, *says;
    } fields[] = {{"num_hidden_layers", "1", "num_hidden_layers: found 1, allowed 2"},
                  {"rope_theta", "5000.0", "rope_theta: found 5000"},
                  {"rms_norm_eps", "0.25", "rms_norm_eps: found 0.25"},
                  {"vocab_size", "1024", "vocab_size: found 1024"}};
    char dir[512], other[512], path[512];
    harness h;
    msgl_err err;
    parity_path(dir, "qwen3", "");
    parity_path(other, "llama", "");
    const msgl_options cfg = harness_config(dir, "float32");
    harness_open(&h, &cfg);
    float *before = prompt(&h);
    assert_int_equal(call(&h, (msgl_admin){.kind = MSGL_ADMIN_DISK, .path = other}, &err),
                     MSGL_EINVAL);
    assert_non_null(strstr(err.text, "architectures: found LlamaForCausalLM"));
    assert_int_equal(call(&h, (msgl_admin){.kind = MSGL_ADMIN_DISK, .path = "/none"}, &err),
                     MSGL_ENOENT);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        folder f;
        folder_make(&f);
        parity_path(path, "qwen3", "/config.json");
        json_t *config = json_load_file(path, 0, NULL);
        set_field(config, fields[i].field, fields[i].value);
        folder_write_json(&f, "config.json", config);
        json_decref(config);
        assert_true(call(&h, (msgl_admin){.kind = MSGL_ADMIN_DISK, .path = f.dir}, &err) < 0);
        if (strstr(err.text, fields[i].says) == NULL) fail_msg("%s: %s", fields[i].says, err.text);
        folder_remove(&f);
    }
    expect_same(&h, before);
    free(before);
    harness_close(&h);
}

// What is no file of tensors, and what the model has not.
static void test_bad_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *header, *says;
    } cases[] = {
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "has no such"},
        {"{\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         "shape"},
        {"{\"model.norm.weight\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         "dtype"},
        {"{\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}",
         "bytes"},
        {"[1]", "not a JSON object"},
    };
    char dir[512];
    harness h;
    msgl_err err;
    parity_path(dir, "qwen3", "");
    const msgl_options cfg = harness_config(dir, "float32");
    harness_open(&h, &cfg);
    float *before = prompt(&h);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char file[256] = {0};
        const size_t n = strlen(cases[i].header);
        file[0] = (char)n;
        memcpy(file + 8, cases[i].header, n);
        const msgl_admin a = {.kind = MSGL_ADMIN_TENSORS, .bytes = file, .total = 8 + n + 4};
        assert_true(call(&h, a, &err) < 0);
        if (strstr(err.text, cases[i].says) == NULL) fail_msg("%s: %s", cases[i].says, err.text);
    }
    const msgl_admin none = {.kind = MSGL_ADMIN_TENSORS, .bytes = "", .total = 0};
    assert_true(call(&h, none, &err) < 0);
    expect_same(&h, before);
    free(before);
    harness_close(&h);
}

// A checkpoint that has changed since is not what the released weights were.
static void test_changed_file(void **state)
{
    (void)state;
    char dir[512], path[600], *text;
    size_t n;
    folder f;
    harness h;
    msgl_err err;
    parity_path(dir, "qwen3", "");
    folder_make(&f);
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        assert_int_equal(msgl__file_read(path, 1 << 20, &text, &n, &err), 0);
        folder_write(&f, files[i], text, n);
        if (i == 0) msgl__free(text);
    }
    const msgl_options cfg = harness_config(f.dir, "float32");
    harness_open(&h, &cfg);
    float *before = prompt(&h);
    expect_released(&h, MSGL_MEMORY_WEIGHTS, false);
    text[n - 1] ^= 1;
    folder_write(&f, "model.safetensors", text, n);
    assert_true(
        call(&h, (msgl_admin){.kind = MSGL_ADMIN_RESUME, .tags = MSGL_MEMORY_WEIGHTS}, &err) < 0);
    assert_non_null(strstr(err.text, "no longer what it was"));
    assert_non_null(strstr(unusable(&h), "not whole"));
    assert_int_equal(state_of(&h).released, 0); // their memory is there again
    text[n - 1] ^= 1;
    folder_write(&f, "model.safetensors", text, n);
    expect(&h, (msgl_admin){.kind = MSGL_ADMIN_DISK, .path = f.dir});
    expect_same(&h, before);
    msgl__free(text);
    free(before);
    harness_close(&h);
    folder_remove(&f);
}

// Without memory an update changes nothing, or says that the weights are not whole; it never
// half succeeds.
static void test_no_memory(void **state)
{
    (void)state;
    char dir[512];
    harness h;
    msgl_err err;
    parity_path(dir, "qwen3", "");
    const msgl_options cfg = harness_config(dir, "float32");
    harness_open(&h, &cfg);
    float *before = prompt(&h);
    int failed = 0;
    for (uint64_t nth = 1; nth < 4000; nth = nth * 5 / 4 + 1) {
        msgl__mem_fail_from(nth);
        const int code = call(&h, (msgl_admin){.kind = MSGL_ADMIN_DISK, .path = dir}, &err);
        msgl__mem_fail_from(0);
        failed += code != 0;
        if (code != 0) assert_true(err.text[0] != '\0');
        if (unusable(&h) != NULL) expect(&h, (msgl_admin){.kind = MSGL_ADMIN_DISK, .path = dir});
        expect_same(&h, before);
    }
    assert_true(failed > 5);
    free(before);
    harness_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_architectures), cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_other_models),  cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_bad_tensors),   cmocka_unit_test(test_changed_file),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
