// SPDX-License-Identifier: Apache-2.0
//
// GGUF files: what is read from a good one, and that a damaged one is refused with one line,
// whichever byte of it is wrong.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "utils/gguf_writer.h"
#include "utils/json.h"

enum { F32 = 0, Q4_K = 12, Q8_0 = 8, GONE = 4 };

// A file with a value of every type and two tensors.
static gguf_bytes good(void)
{
    static const char *const words[] = {"a", "", "\xc3\xa9"};
    static const int32_t ints[] = {1, -2, 3};
    static const float floats[] = {0.5f, -1.0f};
    static const float data[6] = {1, 2, 3, 4, 5, 6};
    static const uint8_t block[34] = {0, 0x3c, 1, 2};
    gguf_writer w = {0};
    gguf_put_int(&w, "z.u8", MSGL_GGUF_U8, 200);
    gguf_put_int(&w, "z.i8", MSGL_GGUF_I8, 0xff);
    gguf_put_int(&w, "z.u16", MSGL_GGUF_U16, 60000);
    gguf_put_int(&w, "z.i16", MSGL_GGUF_I16, 0xfffe);
    gguf_put_int(&w, "a.u32", MSGL_GGUF_U32, 4000000000u);
    gguf_put_int(&w, "a.i32", MSGL_GGUF_I32, 0xfffffffdu);
    gguf_put_int(&w, "a.u64", MSGL_GGUF_U64, UINT64_MAX);
    gguf_put_int(&w, "a.i64", MSGL_GGUF_I64, UINT64_MAX - 3);
    gguf_put_int(&w, "a.f64", MSGL_GGUF_F64, 0x3fe0000000000000u);
    gguf_put_int(&w, "a.bool", MSGL_GGUF_BOOL, 1);
    gguf_put_f32(&w, "a.f32", 0.25f);
    gguf_put_f32(&w, "a.inf", -INFINITY);
    gguf_put_string(&w, "general.name", "caf\xc3\xa9");
    gguf_put_strings(&w, "words", words, 3);
    gguf_put_array(&w, "ints", MSGL_GGUF_I32, ints, 3);
    gguf_put_array(&w, "floats", MSGL_GGUF_F32, floats, 2);
    gguf_put_tensor(&w, "one", F32, 2, (int64_t[]){3, 2}, data, sizeof data);
    gguf_put_tensor(&w, "two", Q8_0, 1, (int64_t[]){32}, block, sizeof block);
    return gguf_finish(&w);
}

static void check_json(const json_t *all, const char *key, const char *want)
{
    char *got = json_dumps(json_object_get(all, key), JSON_ENCODE_ANY | JSON_COMPACT);
    if (got == NULL || strcmp(got, want) != 0) fail_msg("%s: %s, not %s", key, got, want);
    free(got);
}

static void test_good(void **state)
{
    (void)state;
    const gguf_bytes b = good();
    msgl_gguf g;
    msgl_err err = {0};
    json_t *all;
    if (msgl__gguf_parse(b.p, b.n, "f", &g, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(msgl__gguf_metadata(&g, &all, &err), 0);
    static const char *const values[][2] = {
        {"z.u8", "200"},
        {"z.i8", "-1"},
        {"z.u16", "60000"},
        {"z.i16", "-2"},
        {"a.u32", "4000000000"},
        {"a.i32", "-3"},
        {"a.i64", "-4"},
        {"a.f64", "0.5"},
        {"a.f32", "0.25"},
        {"a.bool", "true"},
        {"ints", "[1,-2,3]"},
        {"floats", "[0.5,-1.0]"},
        {"general.name", "\"caf\xc3\xa9\""},
    };
    for (size_t i = 0; i < MSGL_COUNT(values); i++) check_json(all, values[i][0], values[i][1]);
    assert_true(json_real_value(json_object_get(all, "a.u64")) == 0x1p64);
    assert_true(json_real_value(json_object_get(all, "a.inf")) == -MSGL_JSON_BEYOND);
    assert_null(json_object_get(all, "words"));
    json_decref(all);

    const msgl_gguf_value *v;
    assert_int_equal(msgl__gguf_array(&g, "words", MSGL_GGUF_STRING, &v, &err), 0);
    assert_int_equal(v->count, 3);
    size_t at = 0;
    assert_int_equal(msgl__gguf_next(v, &at).n, 1);
    assert_int_equal(msgl__gguf_next(v, &at).n, 0);
    assert_memory_equal(msgl__gguf_next(v, &at).p, "\xc3\xa9", 2);
    assert_int_equal(msgl__gguf_array(&g, "ints", MSGL_GGUF_I32, &v, &err), 0);
    assert_int_equal(msgl__gguf_i32(v, 1), -2);
    assert_int_equal(msgl__gguf_array(&g, "floats", MSGL_GGUF_F32, &v, &err), 0);
    assert_true(msgl__gguf_f32(v, 1) == -1.0f);
    assert_int_equal(msgl__gguf_array(&g, "none", MSGL_GGUF_F32, &v, &err), 0);
    assert_null(v);
    assert_int_equal(msgl__gguf_array(&g, "ints", MSGL_GGUF_F32, &v, &err), MSGL_EFORMAT);
    assert_string_equal(err.text, "ints: found a list of i32, allowed a list of f32");
    assert_int_equal(msgl__gguf_array(&g, "a.u32", MSGL_GGUF_F32, &v, &err), MSGL_EFORMAT);

    const msgl_gguf_tensor *t = msgl__gguf_tensor_named(&g, "two");
    assert_int_equal(t->bytes, 34);
    assert_int_equal(t->dims[0], 32);
    assert_string_equal(t->storage->name, "Q8_0");
    assert_int_equal(t->data[3], 2);
    t = msgl__gguf_tensor_named(&g, "one");
    assert_int_equal(t->ndim, 2);
    assert_int_equal(t->dims[1], 2);
    float six;
    memcpy(&six, t->data + 20, 4);
    assert_true(six == 6);
    assert_null(msgl__gguf_tensor_named(&g, "three"));
    msgl__gguf_close(&g);
    free(b.p);
}

// Parses a copy of exactly this size, so that a sanitizer sees any read past the end.
static int parse_copy(const uint8_t *bytes, size_t n, msgl_err *err)
{
    uint8_t *copy = malloc(n > 0 ? n : 1);
    assert_non_null(copy);
    if (n > 0) memcpy(copy, bytes, n);
    msgl_gguf g;
    json_t *all = NULL;
    int code = msgl__gguf_parse(copy, n, "f", &g, err);
    if (code == 0) code = msgl__gguf_metadata(&g, &all, err);
    if (code != 0 && (strncmp(err->text, "f: ", 3) != 0 || strchr(err->text, '\n') != NULL)) {
        fail_msg("%d \"%s\"", code, err->text);
    }
    json_decref(all);
    msgl__gguf_close(&g);
    free(copy);
    return code;
}

// Cut anywhere, and with every byte of the structure set to values that break things.
static void test_damage(void **state)
{
    (void)state;
    const gguf_bytes b = good();
    msgl_err err = {0};
    for (size_t n = 0; n < b.n - 30; n++) { // the last tensor's padding may be missing
        if (parse_copy(b.p, n, &err) == 0) fail_msg("%zu of %zu bytes are enough", n, b.n);
    }
    int refused = 0;
    for (size_t i = 0; i < b.n; i++) {
        static const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};
        const uint8_t was = b.p[i];
        for (size_t k = 0; k < MSGL_COUNT(values); k++) {
            b.p[i] = values[k];
            refused += parse_copy(b.p, b.n, &err) != 0;
        }
        b.p[i] = was;
    }
    assert_true(refused > 1000);
    free(b.p);
}

static void refuse(gguf_writer *w, int code, const char *what)
{
    const gguf_bytes b = gguf_finish(w);
    msgl_err err = {0};
    const int got = parse_copy(b.p, b.n, &err);
    if (got != code || strstr(err.text, what) == NULL) {
        fail_msg("%d \"%s\", not %d \"%s\"", got, err.text, code, what);
    }
    free(b.p);
}

static void refuse_tensor(const char *name, uint32_t type, int ndim, const int64_t *dims,
                          size_t bytes, int code, const char *what)
{
    gguf_writer w = {0};
    uint8_t *data = calloc(1, bytes + 1);
    gguf_put_tensor(&w, name, type, ndim, dims, data, bytes);
    refuse(&w, code, what);
    free(data);
}

static void test_values(void **state)
{
    (void)state;
    gguf_writer w = {0};
    gguf_put_int(&w, "k", MSGL_GGUF_U8, 1);
    gguf_put_int(&w, "k", MSGL_GGUF_U8, 1);
    refuse(&w, MSGL_EFORMAT, "k: found twice");
    gguf_put_string(&w, "k", "\xff");
    refuse(&w, MSGL_EFORMAT, "k: not valid UTF-8");
    gguf_put_int(&w, "", MSGL_GGUF_U8, 1);
    refuse(&w, MSGL_EFORMAT, "key: found 0 bytes");
    gguf_put_int(&w, "a b", MSGL_GGUF_U8, 1);
    refuse(&w, MSGL_EFORMAT, "printable ASCII");
    gguf_put_array(&w, "k", MSGL_GGUF_ARRAY, NULL, 0);
    refuse(&w, MSGL_EUNSUPPORTED, "k: arrays inside the array");
    gguf_put_array(&w, "k", MSGL_GGUF_TYPES, NULL, 0);
    refuse(&w, MSGL_EFORMAT, "k: type: found 13");
    gguf_put_array(&w, "k", MSGL_GGUF_U64, "12345678", 2);
    refuse(&w, MSGL_EFORMAT, "k: elements: found 2, allowed up to 1");
    gguf_put_int(&w, "general.alignment", MSGL_GGUF_U32, 48);
    refuse(&w, MSGL_EFORMAT, "general.alignment: found 48");
    gguf_put_int(&w, "general.alignment", MSGL_GGUF_U32, 0);
    refuse(&w, MSGL_EFORMAT, "general.alignment: found 0");
    gguf_put_int(&w, "general.alignment", MSGL_GGUF_U64, 32);
    refuse(&w, MSGL_EFORMAT, "a power of 2 as u32");
    gguf_put_int(&w, "split.count", MSGL_GGUF_U16, 3);
    refuse(&w, MSGL_EFORMAT, "split.no: found none, allowed 0 to 2");
    gguf_put_int(&w, "split.count", MSGL_GGUF_I32, UINT32_MAX);
    refuse(&w, MSGL_EFORMAT, "split.count: found another number, allowed 0 to 65535");
    gguf_put_string(&w, "split.count", "3");
    refuse(&w, MSGL_EFORMAT, "split.count: found no whole number");
    gguf_put_int(&w, "split.count", MSGL_GGUF_U16, 3);
    gguf_put_int(&w, "split.no", MSGL_GGUF_U16, 3);
    refuse(&w, MSGL_EFORMAT, "split.no: found another number, allowed 0 to 2");
    gguf_put_int(&w, "split.count", MSGL_GGUF_U16, 3);
    gguf_put_int(&w, "split.no", MSGL_GGUF_U16, 2);
    refuse(&w, MSGL_EFORMAT, "split.tensors.count: found none");
}

static void test_tensors(void **state)
{
    (void)state;
    const int64_t one[] = {32}, two[] = {3, 2}, large[] = {INT64_MAX, 3}, negative[] = {-1};
    const int64_t square[] = {INT64_C(1) << 31, INT64_C(1) << 31};
    refuse_tensor("t", F32, 1, one, 96, MSGL_EFORMAT, "t: bytes: found 128, allowed what");
    refuse_tensor("t", F32, 2, large, 4, MSGL_EFORMAT, "t: dimension: found 3");
    refuse_tensor("t", F32, 1, negative, 4, MSGL_EFORMAT,
                  "t: dimension: found 18446744073709551615");
    refuse_tensor("t", F32, 2, square, 4, MSGL_EFORMAT, "t: elements: found 4611686018427387904");
    refuse_tensor("t", F32, 5, (int64_t[]){1, 1, 1, 1, 1}, 4, MSGL_EFORMAT,
                  "t: dimensions: found 5");
    refuse_tensor("t", Q8_0, 2, two, 34, MSGL_EFORMAT, "t: first dimension: found 3");
    refuse_tensor("t", GONE, 1, one, 34, MSGL_EUNSUPPORTED, "t: type: found 4 (Q4_2)");
    refuse_tensor("t", 1000, 1, one, 34, MSGL_EUNSUPPORTED, "t: type: found 1000");
    refuse_tensor("", F32, 1, one, 128, MSGL_EFORMAT, "tensor name: found 0 bytes");
    gguf_writer w = {0};
    const float data[32] = {0};
    gguf_put_tensor(&w, "t", F32, 1, one, data, sizeof data);
    gguf_put_tensor(&w, "u", F32, 1, one, data, sizeof data);
    // The offset of u, the last eight bytes of the list, on top of t; or not aligned.
    w.tensors.p[w.tensors.n - 8] = 0;
    refuse(&w, MSGL_EFORMAT, "u: offset: found 0, allowed 128");
}

static void put_u64(uint8_t *at, uint64_t v)
{
    for (int i = 0; i < 8; i++) at[i] = (uint8_t)(v >> (8 * i));
}

// The bytes of a file with this value at `at`, instead of its own of n bytes.
static void refuse_at(const gguf_bytes *b, size_t at, size_t n, uint64_t v)
{
    uint8_t was[8], with[8];
    msgl_err err = {0};
    put_u64(with, v);
    memcpy(was, b->p + at, n);
    memcpy(b->p + at, with, n);
    const uint64_t allocs = msgl__mem_allocs();
    const int code = parse_copy(b->p, b->n, &err);
    if (code != MSGL_EFORMAT && code != MSGL_ELIMIT) {
        fail_msg("%llx at byte %zu: \"%s\"", (unsigned long long)v, at, err.text);
    }
    assert_true(msgl__mem_allocs() - allocs < 64);
    memcpy(b->p + at, was, n);
}

// Counts, lengths, sizes and offsets whose sums or products do not fit 64 bits, or the file.
static void test_overflows(void **state)
{
    (void)state;
    static const uint64_t many[] = {UINT64_C(1) << 31, UINT64_C(1) << 32, UINT64_C(1) << 61,
                                    UINT64_MAX / 8,    UINT64_C(1) << 63, UINT64_MAX - 7,
                                    UINT64_MAX,        UINT64_MAX / 4 + 1};
    static const float data[64] = {0};
    gguf_writer w = {0};
    gguf_put_array(&w, "k", MSGL_GGUF_F32, data, 2);
    gguf_put_tensor(&w, "t", F32, 2, (int64_t[]){8, 4}, data, 128);
    gguf_put_tensor(&w, "u", F32, 1, (int64_t[]){32}, data, 128);
    const gguf_bytes b = gguf_finish(&w);
    // Header: 4 magic, 4 version, 8 tensors, 8 values; key 8 + 1, type 4, element 4, count 8.
    enum { TENSORS = 8, VALUES = 16, KEY = 24, COUNT = 41, LIST = COUNT + 8 + 8 };
    // Tensor: name 8 + 1, dimensions 4, each 8, type 4, offset 8.
    enum { NDIM = LIST + 9, DIM = NDIM + 4, OFFSET = DIM + 16 + 4, SECOND = OFFSET + 8 };
    for (size_t i = 0; i < MSGL_COUNT(many); i++) {
        refuse_at(&b, TENSORS, 8, many[i]);
        refuse_at(&b, VALUES, 8, many[i]);
        refuse_at(&b, KEY, 8, many[i]);
        refuse_at(&b, COUNT, 8, many[i]);
        refuse_at(&b, LIST, 8, many[i]);
        refuse_at(&b, DIM, 8, many[i]);
        refuse_at(&b, DIM + 8, 8, many[i]);
        refuse_at(&b, OFFSET, 8, many[i]);
        refuse_at(&b, SECOND + 9 + 4 + 8 + 4, 8, many[i]);
    }
    refuse_at(&b, NDIM, 4, UINT32_MAX);
    refuse_at(&b, NDIM, 4, 0x80000000u);
    for (size_t at = b.n - 200; at < b.n; at++) {
        refuse_at(&b, OFFSET, 8, at); // the second's place, or beyond the end
    }
    free(b.p);
    // Sizes that fit alone, and not together: the second's offset is not the first's end.
    static const int64_t huge[] = {INT64_C(1) << 30, INT64_C(1) << 30};
    gguf_put_tensor(&w, "t", F32, 2, huge, data, 128);
    gguf_put_tensor(&w, "u", F32, 2, huge, data, 128);
    refuse(&w, MSGL_EFORMAT, "t: ");
    static const uint32_t alignments[] = {0, 3, 7, 48, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < MSGL_COUNT(alignments); i++) {
        gguf_put_int(&w, "general.alignment", MSGL_GGUF_U32, alignments[i]);
        gguf_put_tensor(&w, "t", F32, 1, (int64_t[]){32}, data, 128);
        refuse(&w, MSGL_EFORMAT, "");
    }
}

static void test_header(void **state)
{
    (void)state;
    const gguf_bytes b = good();
    msgl_err err = {0};
    b.p[4] = 2;
    assert_int_equal(parse_copy(b.p, b.n, &err), 0); // version 2 is the same
    b.p[4] = 1;
    assert_int_equal(parse_copy(b.p, b.n, &err), MSGL_EUNSUPPORTED);
    assert_string_equal(err.text, "f: version: found 1, allowed 2 or 3");
    b.p[4] = 0;
    b.p[7] = 3;
    assert_int_equal(parse_copy(b.p, b.n, &err), MSGL_EUNSUPPORTED);
    assert_string_equal(err.text, "f: version: found 3 in big-endian, allowed 2 or 3");
    b.p[0] = 'g';
    assert_int_equal(parse_copy(b.p, b.n, &err), MSGL_EFORMAT);
    assert_non_null(strstr(err.text, "not a GGUF file"));
    free(b.p);
}

// Which paths are a GGUF file.
static void test_find(void **state)
{
    (void)state;
    char dir[] = "/tmp/minisgl-gguf-XXXXXX", path[128], found[128];
    static const char *const names[] = {"a.gguf", "b.gguf", "model.safetensors"};
    msgl_err err = {0};
    assert_non_null(mkdtemp(dir));
    assert_int_equal(msgl__gguf_find(dir, found, sizeof found, &err), 0);
    assert_int_equal(msgl__gguf_find("/nonexistent", found, sizeof found, &err), 0);
    for (size_t i = 0; i < MSGL_COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        fclose(f);
        const int got = msgl__gguf_find(dir, found, sizeof found, &err);
        assert_int_equal(got, i == 0 ? 1 : i == 1 ? MSGL_EINVAL : 0);
        if (i == 0) assert_string_equal(found, path);
        if (i == 1) assert_non_null(strstr(err.text, "found 2 .gguf files, allowed one"));
        assert_int_equal(msgl__gguf_find(path, found, sizeof found, &err), 1);
        assert_string_equal(found, path);
    }
    assert_int_equal(msgl__gguf_find(path, found, 5, &err), MSGL_EINVAL);
    msgl_gguf g;
    assert_int_equal(msgl__gguf_open(path, &g, &err), MSGL_EFORMAT); // empty
    msgl__gguf_close(&g);
    for (size_t i = 0; i < MSGL_COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    assert_int_equal(msgl__gguf_open(path, &g, &err), MSGL_ENOENT);
    rmdir(dir);
}

// A memory failure at any point leaves nothing behind (the sanitizer's leak check looks on).
static void test_out_of_memory(void **state)
{
    (void)state;
    const gguf_bytes b = good();
    msgl_gguf g;
    msgl_err err = {0};
    int code = MSGL_ENOMEM;
    for (uint64_t nth = 1; code != 0 && nth < 100; nth++) {
        msgl__mem_fail_from(nth);
        code = msgl__gguf_parse(b.p, b.n, "f", &g, &err);
        msgl__mem_fail_from(0);
        assert_true(code == 0 || code == MSGL_ENOMEM);
        msgl__gguf_close(&g);
    }
    assert_int_equal(code, 0);
    free(b.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),      cmocka_unit_test(test_damage),
        cmocka_unit_test(test_values),    cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_overflows), cmocka_unit_test(test_header),
        cmocka_unit_test(test_find),      cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
