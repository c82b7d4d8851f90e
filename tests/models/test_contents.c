// SPDX-License-Identifier: Apache-2.0
//
// The rows of types that `minisgl info` shows: every byte of a checkpoint's tensors is in one of
// them. test_adapters.c has those of each packed form.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "models/contents.h"
#include "utils/gguf_writer.h"

#define VECTORS MSGL_SOURCE_DIR "/tests/vectors/"

typedef struct row {
    const char *name;
    size_t tensors, bytes;
} row;

static void check(const char *path, const row *want, size_t count)
{
    msgl_checkpoint *c;
    msgl_type_rows rows;
    size_t sum = 0;
    assert_int_equal(msgl__checkpoint_open(path, &c, NULL), 0);
    assert_int_equal(msgl__checkpoint_types(c, &rows, NULL), 0);
    assert_int_equal(rows.count, count);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(rows.at[i].name, want[i].name);
        assert_int_equal(rows.at[i].tensors, want[i].tensors);
        assert_int_equal(rows.at[i].bytes, want[i].bytes);
        sum += rows.at[i].bytes;
    }
    assert_int_equal(rows.bytes, sum);
    msgl__type_rows_free(&rows);
    msgl__checkpoint_close(c);
}

// What gguf-py and the safetensors' own headers say of these files; the scales of FP8 (7 of F32)
// and of MXFP4 (4 of U8) are added to what they scale.
static void test_files(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        row rows[2];
        size_t count;
    } CASES[] = {
        {VECTORS "gguf/llama-q8_0.gguf", {{"Q8_0", 15, 21896}, {"F32", 5, 640}}, 2},
        {VECTORS "gguf/split/llama-q8_0-00002-of-00003.gguf",
         {{"Q8_0", 15, 21896}, {"F32", 5, 640}},
         2},
        {VECTORS "models/llama_gqa5_sharded", {{"BF16", 20, 364960}}, 1},
        {VECTORS "models/qwen3_fp8", {{"FP8", 7, 147456 + 40}, {"BF16", 6, 67584}}, 2},
        {VECTORS "models/gpt_oss_mxfp4", {{"BF16", 33, 269216}, {"MXFP4", 4, 26112}}, 2},
    };
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        check(CASES[i].path, CASES[i].rows, CASES[i].count);
    }
}

// A mixture whose types have the same size in the end, a tensor that no model has, one of integers,
// and the factors of rotary embedding, which are no tensor of the checkpoint.
static void test_mixture(void **state)
{
    (void)state;
    static const uint8_t data[4096];
    static const struct {
        const char *name;
        uint32_t type;
        int64_t cols;
        size_t bytes;
    } TENSORS[] = {
        {"blk.0.attn_q.weight", 12, 256, 144},
        {"blk.0.attn_k.weight", 12, 512, 288},
        {"blk.0.attn_v.weight", 14, 256, 210},
        {"token_embd.weight", 1, 216, 432},
        {"unknown", 26, 5, 20},
        {"rope_freqs.weight", 0, 64, 256},
        {"blk.0.attn_norm.weight", 0, 4, 16},
    };
    gguf_writer w = {0};
    gguf_put_string(&w, "general.architecture", "llama");
    for (size_t i = 0; i < MSGL_COUNT(TENSORS); i++) {
        gguf_put_tensor(&w, TENSORS[i].name, TENSORS[i].type, 1, &TENSORS[i].cols, data,
                        TENSORS[i].bytes);
    }
    const gguf_bytes b = gguf_finish(&w);
    char path[] = "/tmp/minisgl-contents-XXXXXX";
    FILE *f = fdopen(mkstemp(path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b.p, 1, b.n, f), b.n);
    fclose(f);
    free(b.p);
    static const row want[] = {
        {"F16", 1, 432}, {"Q4_K", 2, 432}, {"Q6_K", 1, 210}, {"I32", 1, 20}, {"F32", 1, 16}};
    check(path, want, MSGL_COUNT(want));
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files),
                                       cmocka_unit_test(test_mixture)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
