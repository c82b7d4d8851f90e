// SPDX-License-Identifier: Apache-2.0
//
// Adapters' files: what their digest is of, and those that cannot be used, with what is said of
// them.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../models/folder.h"
#include "core/mem.h"
#include "engine/parity.h"
#include "lora_case.h"
#include "utils/file.h"

static uint64_t digest_of(harness *h, const char *dir)
{
    uint64_t digest = 0;
    msgl_err err = {0};
    assert_int_equal(h->r->load_adapter(h->r->ctx, 0, dir, &err), 0);
    if (h->r->adapter_loaded(h->r->ctx, -1, &digest, &err) != 1) fail_msg("%s", err.text);
    return digest;
}

// The files of adapter `name` in f.
static void copy_adapter(folder *f, const char *name)
{
    static const char *const FILES[] = {"adapter_model.safetensors", "adapter_config.json"};
    for (size_t i = 0; i < 2; i++) {
        char from[PATH], *data;
        size_t len;
        msgl_err err;
        lora_path(from, name, FILES[i]);
        assert_int_equal(msgl__file_read(from, 1 << 20, &data, &len, &err), 0);
        folder_write(f, FILES[i], data, len);
        msgl__free(data);
    }
}

// The digest is the files', wherever they are: of other weights or another config it is another.
static void test_digest(void **state)
{
    (void)state;
    static const char CONFIG[] = "{\"peft_type\": \"LORA\"}";
    char dir[PATH], all[PATH];
    folder f;
    harness h;
    parity_path(dir, "qwen3_f32", "");
    const msgl_options o = config(dir, "float32", true);
    harness_open(&h, &o);
    lora_path(dir, "attention", "");
    lora_path(all, "all", "");
    const uint64_t digest = digest_of(&h, dir);
    assert_true(digest_of(&h, all) != digest);
    folder_make(&f);
    copy_adapter(&f, "attention");
    assert_true(digest_of(&h, f.dir) == digest);
    folder_write(&f, "adapter_config.json", CONFIG, sizeof CONFIG - 1);
    assert_true(digest_of(&h, f.dir) != digest);
    folder_remove(&f);
    harness_close(&h);
}

// --- files that cannot be used -------------------------------------------------------------------

static void refuse(harness *h, const char *dir, int code, const char *says)
{
    msgl_err err = {0};
    const int rc = msgl__runner_load_adapter(h->r, 0, dir, &err);
    if (rc != code || strstr(err.text, says) == NULL) {
        fail_msg("found %d, %s; expected %d, %s", rc, err.text, code, says);
    }
}

static void refuse_named(harness *h, const char *name, const char *says)
{
    char dir[PATH];
    lora_path(dir, name, "");
    refuse(h, dir, MSGL_EUNSUPPORTED, says);
}

// The adapter "attention" with another config.
static void refuse_config(harness *h, const char *text, int code, const char *says)
{
    folder f;
    folder_make(&f);
    copy_adapter(&f, "attention");
    folder_write(&f, "adapter_config.json", text, strlen(text));
    refuse(h, f.dir, code, says);
    folder_remove(&f);
}

// One module by two names, each with its A and B of rank 1.
static void refuse_twice(harness *h)
{
    static const char HEADER[] =
        "{\"base_model.model.lm_head.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[1,32],"
        "\"data_offsets\":[0,128]},"
        "\"base_model.model.lm_head.lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[260,1],"
        "\"data_offsets\":[128,1168]},"
        "\"base_model.model.model.lm_head.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[1,32],"
        "\"data_offsets\":[1168,1296]},"
        "\"base_model.model.model.lm_head.lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[260,1],"
        "\"data_offsets\":[1296,2336]}}";
    static const char CONFIG[] = "{\"peft_type\": \"LORA\"}";
    const char data[2336] = {0};
    folder f;
    folder_make(&f);
    write_safetensors(&f, "adapter_model.safetensors", HEADER, data, sizeof data);
    folder_write(&f, "adapter_config.json", CONFIG, sizeof CONFIG - 1);
    refuse(h, f.dir, MSGL_EFORMAT, "its module is there twice");
    folder_remove(&f);
}

// A head in the place of the model's by two names.
static void refuse_saved_twice(harness *h)
{
    static const char HEADER[] =
        "{\"base_model.model.lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[260,32],"
        "\"data_offsets\":[0,33280]},"
        "\"base_model.model.model.lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[260,32],"
        "\"data_offsets\":[33280,66560]}}";
    static const char CONFIG[] = "{\"peft_type\": \"LORA\"}";
    static const char data[66560];
    folder f;
    folder_make(&f);
    write_safetensors(&f, "adapter_model.safetensors", HEADER, data, sizeof data);
    folder_write(&f, "adapter_config.json", CONFIG, sizeof CONFIG - 1);
    refuse(h, f.dir, MSGL_EFORMAT, "model.lm_head.weight: its module is there twice");
    folder_remove(&f);
}

static void test_refused(void **state)
{
    (void)state;
    char dir[PATH];
    harness h;
    parity_path(dir, "qwen3_f32", "");
    msgl_options o = config(dir, "float32", true);
    harness_open(&h, &o);
    refuse(&h, "/nowhere", MSGL_ENOENT, "adapter_config.json");
    refuse_named(&h, "dora", "use_dora");
    refuse_named(&h, "saved_module", "layernorm.weight: the model has no such module");
    refuse(&h, "/nowhere.gguf", MSGL_ENOENT, "nowhere.gguf");
    refuse(&h, MSGL_SOURCE_DIR "/tests/vectors/gguf/llama-f32.gguf", MSGL_EUNSUPPORTED,
           "general.type: found model, allowed adapter");
    refuse_named(&h, "experts", "the model has no such experts");
    refuse_named(&h, "latent_kv", "kv_b_proj.lora_A.weight: the model has no such module");
    refuse_config(&h, "{\"peft_type\": \"LORA\", \"trainable_token_indices\": [1, -1]}",
                  MSGL_EFORMAT, "trainable_token_indices");
    refuse_config(&h,
                  "{\"peft_type\": \"LORA\", \"trainable_token_indices\": {\"a\": [], \"b\": [],"
                  " \"c\": [], \"d\": [], \"e\": [], \"f\": [], \"g\": [], \"h\": [], \"i\": [],"
                  " \"j\": [], \"k\": [], \"l\": [], \"m\": [], \"n\": [], \"o\": [], \"p\": [],"
                  " \"q\": []}}",
                  MSGL_ELIMIT, "trainable_token_indices: found 17 modules, allowed 16");
    char head[PATH];
    lora_path(head, "head", ""); // of another model
    refuse(&h, head, MSGL_EFORMAT,
           "lm_head.lora_A.weight: shape: found [4, 128], expected [4, 32]");
    harness_close(&h);
    o.max_lora_rank = 4;
    harness_open(&h, &o);
    load(&h, 0, "attention");
    char all[PATH];
    lora_path(all, "all", "");
    refuse(&h, all, MSGL_ELIMIT, "rank: found 8, allowed 1 to 4");
    refuse_config(&h, "{}", MSGL_EUNSUPPORTED, "peft_type");
    refuse_config(&h, "{\"peft_type\": \"IA3\"}", MSGL_EUNSUPPORTED, "peft_type: found \"IA3\"");
    refuse_config(&h, "{\"peft_type\": \"LORA\", \"use_magic\": 3}", MSGL_EUNSUPPORTED,
                  "use_magic");
    refuse_config(&h, "{\"peft_type\": \"LORA\", \"bias\": \"all\"}", MSGL_EUNSUPPORTED, "bias");
    refuse_config(&h, "{\"peft_type\": \"LORA\", \"alpha_pattern\": {\"(\": 3}}", MSGL_EFORMAT,
                  "alpha_pattern");
    refuse_config(&h, "{\"peft_type\": \"LORA\", \"alpha_pattern\": {\"q\": \"x\"}}", MSGL_EFORMAT,
                  "alpha_pattern");
    refuse_config(&h, "{\"peft_type\": \"LORA\", \"lora_alpha\": 1e30}", MSGL_EFORMAT,
                  "lora_alpha");
    refuse_twice(&h);
    refuse_saved_twice(&h);
    refuse_config(&h, "[", MSGL_EFORMAT, "adapter_config.json");
    harness_close(&h);
}

// A of [1, k] and B of [n, 1] for one module.
static void one_module(folder *f, const char *name, int k, int n)
{
    static const char CONFIG[] = "{\"peft_type\": \"LORA\"}";
    const char data[512] = {0};
    char header[512];
    folder_make(f);
    snprintf(header, sizeof header,
             "{\"base_model.model.model.%s.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[1,%d],"
             "\"data_offsets\":[0,%d]},"
             "\"base_model.model.model.%s.lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[%d,1],"
             "\"data_offsets\":[%d,%d]}}",
             name, k, 4 * k, name, n, 4 * k, 4 * (k + n));
    write_safetensors(f, "adapter_model.safetensors", header, data, (size_t)(4 * (k + n)));
    folder_write(f, "adapter_config.json", CONFIG, sizeof CONFIG - 1);
}

// Layers 0 and 3 have one block: an adapter of one of them would change the other. What a layer has
// of its own may have one.
static void test_shared_modules(void **state)
{
    (void)state;
    static const char *const SHARED[][2] = {
        {"layers.0.shared_transformer.self_attn.q_proj", "no adapter can change this module here"},
        {"layers.0.shared_transformer.feed_forward.down_proj",
         "no adapter can change this module here"},
        {"layers.3.shared_transformer.self_attn.q_proj", "the model has no such module"}};
    char dir[PATH];
    harness h;
    folder f;
    msgl_err err = {0};
    parity_path(dir, "zamba2_rope", "");
    const msgl_options o = config(dir, "float32", true);
    harness_open(&h, &o);
    for (size_t i = 0; i < sizeof SHARED / sizeof SHARED[0]; i++) {
        one_module(&f, SHARED[i][0], 64, 64);
        refuse(&h, f.dir, MSGL_EUNSUPPORTED, SHARED[i][1]);
        folder_remove(&f);
    }
    one_module(&f, "layers.0.linear", 32, 32);
    if (msgl__runner_load_adapter(h.r, 0, f.dir, &err) != 0) fail_msg("%s", err.text);
    folder_remove(&f);
    harness_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_shared_modules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
