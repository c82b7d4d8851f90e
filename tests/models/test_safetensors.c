// SPDX-License-Identifier: Apache-2.0
//
// Hostile checkpoints: every header that does not add up is refused before a tensor can be seen.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "models/checkpoint.h"
#include "models/folder.h"

static int open_file(const char *header, size_t data_size, msgl_err *err)
{
    folder f;
    folder_make(&f);
    uint8_t *data = calloc(1, data_size + 1);
    write_safetensors(&f, "model.safetensors", header, data, data_size);
    free(data);
    msgl_checkpoint *c = NULL;
    const int code = msgl__checkpoint_open(f.dir, &c, err);
    msgl__checkpoint_close(c);
    folder_remove(&f);
    return code;
}

typedef struct bad_header {
    const char *header;
    size_t data_size;
    const char *expect;
} bad_header;

#define ENTRY(name, dtype, shape, from, to)                                                        \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to   \
    "]}"

static const bad_header BAD[] = {
    {"", 8, "header"},
    {"[]", 8, "not a JSON object"},
    {"{\"a\":1}", 8, "tensor a: entry: found 1"},
    {"{" ENTRY("a", "F32", "[2]", 0, 8) "}", 4, "[0, 8]"},
    {"{" ENTRY("a", "F32", "[2]", 8, 0) "}", 8, "[8, 0]"},
    {"{" ENTRY("a", "F32", "[2]", -8, 0) "}", 8, "[-8, 0]"},
    {"{" ENTRY("a", "F32", "[3]", 0, 8) "}", 8, "8 bytes"},
    {"{" ENTRY("a", "F32", "[1]", 0, 4) "}", 8, "found 8 bytes of data"},
    {"{" ENTRY("a", "F32", "[1]", 4, 8) "}", 8, "a gap at byte 0"},
    {"{" ENTRY("a", "F32", "[2]", 0, 8) "," ENTRY("b", "F32", "[1]", 4, 8) "}", 8, "an overlap"},
    {"{" ENTRY("a", "F32", "[1]", 0, 4) "," ENTRY("b", "F32", "[1]", 8, 12) "}", 12, "a gap"},
    {"{" ENTRY("a", "F32", "[1]", 0, 4) "," ENTRY("a", "F32", "[1]", 4, 8) "}", 8, "duplicate"},
    {"{" ENTRY("a", "F33", "[2]", 0, 8) "}", 8, "dtype: found \"F33\""},
    {"{" ENTRY("a", "F32", "[-2]", 0, 8) "}", 8, "shape: found -2"},
    {"{" ENTRY("a", "F32", "[2.0]", 0, 8) "}", 8, "shape: found 2"},
    {"{" ENTRY("a", "F32", "[100000000000000000000]", 0, 8) "}", 8, "shape: found 1e+20"},
    {"{" ENTRY("a", "F32", "[NaN]", 0, 8) "}", 8, "shape: found NaN"},
    {"{" ENTRY("a", "F32", "2", 0, 8) "}", 8, "shape"},
    {"{" ENTRY("a", "F32", "[1,1,1,1,1,1,1,1,2]", 0, 8) "}", 8, "a list of 9"},
    {"{" ENTRY("a", "F32", "[4294967296,4294967296]", 0, 8) "}", 8, "below 2^64"},
    {"{" ENTRY("a", "F32", "[4611686018427387905]", 0, 4) "}", 4, "tensor a"},
    {"{" ENTRY("a", "F32", "[9223372036854775807,9223372036854775807,4]", 0, 8) "}", 8, "2^64"},
    {"{" ENTRY("a", "F32", "[2]", 0, 9223372036854775807) "}", 8, "9223372036854775807"},
    {"{" ENTRY("a", "F32", "[2]", 0, 18446744073709551616) "}", 8,
     "data_offsets: found 1.844674407e+19"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "two integers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8, "two integers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0.0,8]}}", 8, "two integers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "data_offsets"},
    {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype: found nothing"},
    {"{\"x\\ny\":7}", 8, "tensor x?y"},
};

static void test_headers(void **state)
{
    (void)state;
    msgl_err err = {0};
    for (size_t i = 0; i < MSGL_COUNT(BAD); i++) {
        const int code = open_file(BAD[i].header, BAD[i].data_size, &err);
        if (code != MSGL_EFORMAT || strstr(err.text, BAD[i].expect) == NULL ||
            strstr(err.text, "model.safetensors") == NULL || strchr(err.text, '\n') != NULL) {
            fail_msg("%s: %d \"%s\"", BAD[i].header, code, err.text);
        }
    }
    // What the format allows: metadata, tensors without elements, scalars, dtypes of no use to us.
    assert_int_equal(
        open_file(
            "{\"__metadata__\":{\"format\":\"pt\"}," ENTRY("a", "F32", "[0,4]", 0, 0) "," ENTRY(
                "b", "I64", "[]", 0, 8) "," ENTRY("c", "F4", "[2]", 8, 9) "}",
            9, &err),
        0);
}

// Lengths in the first eight bytes that the file cannot hold.
static void test_header_length(void **state)
{
    (void)state;
    const uint64_t lengths[] = {
        1, 9, 255, 1u << 20, UINT64_C(1) << 62, UINT64_C(1) << 63, UINT64_MAX, UINT64_MAX - 7};
    folder f;
    folder_make(&f);
    msgl_err err = {0};
    msgl_checkpoint *c = NULL;
    for (size_t i = 0; i < MSGL_COUNT(lengths); i++) {
        uint8_t bytes[16] = {0};
        for (int b = 0; b < 8; b++) bytes[b] = (uint8_t)(lengths[i] >> (8 * b));
        folder_write(&f, "model.safetensors", bytes, 8 + (lengths[i] == 1));
        assert_int_equal(msgl__checkpoint_open(f.dir, &c, &err), MSGL_EFORMAT);
        assert_non_null(strstr(err.text, "model.safetensors"));
    }
    // Of a file of 64 bytes a header of up to 56: of more, the last would be behind the end.
    for (uint8_t n = 56; n <= 65; n++) {
        uint8_t bytes[64] = {n};
        memset(bytes + 8, ' ', 56);
        memcpy(bytes + 8, "{}", 2);
        folder_write(&f, "model.safetensors", bytes, sizeof bytes);
        const int code = msgl__checkpoint_open(f.dir, &c, &err);
        assert_int_equal(code, n == 56 ? 0 : MSGL_EFORMAT);
        if (code == 0) {
            msgl__checkpoint_close(c);
            continue;
        }
        char expected[64];
        snprintf(expected, sizeof expected, "header length: found %d, the file has 64 bytes", n);
        assert_non_null(strstr(err.text, expected));
    }
    for (size_t n = 0; n < 8; n++) {
        folder_write(&f, "model.safetensors", "\0\0\0\0\0\0\0\0", n);
        assert_int_equal(msgl__checkpoint_open(f.dir, &c, &err), MSGL_EFORMAT);
    }
    folder_remove(&f);
    folder_make(&f);
    assert_int_equal(msgl__checkpoint_open(f.dir, &c, &err), MSGL_ENOENT);
    assert_non_null(strstr(err.text, "model.safetensors"));
    folder_remove(&f);
}

static int open_index(const char *index, msgl_err *err)
{
    folder f;
    folder_make(&f);
    const uint8_t data[4] = {0};
    write_safetensors(&f, "a.safetensors", "{" ENTRY("x", "F32", "[1]", 0, 4) "}", data, 4);
    write_safetensors(&f, "b.safetensors", "{" ENTRY("y", "F32", "[1]", 0, 4) "}", data, 4);
    write_safetensors(&f, "c.safetensors", "{" ENTRY("x", "F32", "[1]", 0, 4) "}", data, 4);
    folder_write(&f, "model.safetensors.index.json", index, strlen(index));
    msgl_checkpoint *c = NULL;
    const int code = msgl__checkpoint_open(f.dir, &c, err);
    if (code == 0) {
        assert_int_equal(msgl__checkpoint_count(c), 2);
        assert_string_equal(msgl__checkpoint_at(c, 0)->name, "x");
        assert_non_null(msgl__checkpoint_find(c, "y"));
        assert_null(msgl__checkpoint_find(c, "z"));
    }
    msgl__checkpoint_close(c);
    folder_remove(&f);
    return code;
}

static void test_index(void **state)
{
    (void)state;
    msgl_err err = {0};
    assert_int_equal(
        open_index("{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}", &err), 0);
    const char *const bad[][2] = {
        {"{}", "weight_map"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{\"weight_map\":{}}", "weight_map"},
        {"{\"weight_map\":{\"x\":7}}", "plain name"},
        {"{\"weight_map\":{\"x\":\"../a.safetensors\"}}", "plain name"},
        {"{\"weight_map\":{\"x\":\"/etc/a.safetensors\"}}", "plain name"},
        {"{\"weight_map\":{\"x\":\"d/a.safetensors\"}}", "plain name"},
        {"{\"weight_map\":{\"x\":\".safetensors\"}}", "plain name"},
        {"{\"weight_map\":{\"x\":\"\"}}", "plain name"},
        {"{\"weight_map\":{\"x\":\"passwd\"}}", "plain name"},
        {"{\"weight_map\":{\"x\":\"b.safetensors\"}}", "tensor x: expected in b.safetensors"},
        {"{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"a.safetensors\"}}", "tensor y"},
        {"{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"c.safetensors\"}}", "also in"},
    };
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        const int code = open_index(bad[i][0], &err);
        if (code != MSGL_EFORMAT || strstr(err.text, bad[i][1]) == NULL) {
            fail_msg("%s: %d \"%s\"", bad[i][0], code, err.text);
        }
    }
    assert_int_equal(open_index("{\"weight_map\":{\"x\":\"gone.safetensors\"}}", &err),
                     MSGL_ENOENT);
    assert_non_null(strstr(err.text, "gone.safetensors"));
}

// Shards and indexes that are no files are refused without waiting for a writer.
// The model without its head has names without "model.": found under those of the whole one.
static void test_without_head(void **state)
{
    (void)state;
    static const char *const names[] = {"model.embed_tokens.weight", "model.layers.0.a.weight",
                                        "model.norm.weight", "other.weight"};
    folder f;
    folder_make(&f);
    write_safetensors(&f, "model.safetensors",
                      "{" ENTRY("embed_tokens.weight", "F32", "[1]", 0, 4) "," //
                      ENTRY("layers.0.a.weight", "F32", "[1]", 4, 8) ","       //
                      ENTRY("norm.weight", "F32", "[1]", 8, 12) ","            //
                      ENTRY("other.weight", "F32", "[1]", 12, 16) "}",
                      "abcdefghijklmnop", 16);
    msgl_checkpoint *c = NULL;
    assert_int_equal(msgl__checkpoint_open(f.dir, &c, NULL), 0);
    for (size_t i = 0; i < MSGL_COUNT(names); i++) {
        const msgl_tensor *t = msgl__checkpoint_find(c, names[i]);
        assert_non_null(t);
        assert_int_equal(t->data[0], 'a' + 4 * (int)i);
        const char *label = i < 3 ? names[i] + strlen("model.") : names[i];
        assert_string_equal(msgl__tensor_label(t), label);
    }
    assert_int_equal(msgl__checkpoint_count(c), 4);
    msgl__checkpoint_close(c);
    folder_remove(&f);
}

static void test_fifo(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors.index.json", "model.safetensors"};
    for (size_t i = 0; i < MSGL_COUNT(files); i++) {
        folder f;
        char path[512];
        msgl_err err = {0};
        msgl_checkpoint *c = NULL;
        folder_make(&f);
        folder_path(&f, files[i], path, sizeof path);
        assert_int_equal(mkfifo(path, 0600), 0);
        alarm(60);
        assert_int_equal(msgl__checkpoint_open(f.dir, &c, &err), MSGL_EIO);
        alarm(0);
        assert_non_null(strstr(err.text, files[i]));
        folder_remove(&f);
    }
}

// Numbers of any kind in what the format does not define.
static void test_odd_numbers(void **state)
{
    (void)state;
    msgl_err err = {0};
    const char *header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],"
                         "\"x\":[NaN,1e999,100000000000000000000]}}";
    if (open_file(header, 8, &err) != 0) fail_msg("%s", err.text);
    const char *index = "{\"metadata\":{\"total_size\":1000000000000000019884624838656,\"n\":NaN},"
                        "\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}";
    if (open_index(index, &err) != 0) fail_msg("%s", err.text);
}

// A memory failure at any point leaves nothing behind (the sanitizer's leak check looks on).
static void test_out_of_memory(void **state)
{
    (void)state;
    msgl_err err = {0};
    int code = MSGL_ENOMEM;
    for (uint64_t nth = 1; code != 0 && nth < 100; nth++) {
        msgl__mem_fail_from(nth);
        code =
            open_index("{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}", &err);
        msgl__mem_fail_from(0);
        assert_true(code == 0 || code == MSGL_ENOMEM);
    }
    assert_int_equal(code, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers),       cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_index),         cmocka_unit_test(test_fifo),
        cmocka_unit_test(test_without_head),  cmocka_unit_test(test_odd_numbers),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
