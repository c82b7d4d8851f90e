// SPDX-License-Identifier: Apache-2.0
//
// Tensors of every type of ggml in GGUF files: those that can be weights give their rows, whole, in
// pairs, as columns and as a part that cuts blocks; the others are named.
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
#include "models/checkpoint.h"
#include "models/source.h"
#include "quant/blocks.h"
#include "utils/gguf_writer.h"
#include "utils/random.h"

enum { ROWS = 8, COLS = 512, F32 = 0, F16 = 1, Q8_1 = 9, Q8_K = 15, I8 = 24, I64 = 27, BF16 = 30 };
enum { TYPES = 43 }; // numbers, some of which ggml has no longer

// A file with a tensor [ROWS, COLS] of random bytes, `bytes` in all; NULL: it is refused.
static msgl_checkpoint *open_one(uint32_t type, const uint8_t *data, size_t bytes, msgl_err *err)
{
    char path[] = "/tmp/minisgl-types-XXXXXX";
    gguf_writer w = {0};
    gguf_put_string(&w, "general.architecture", "llama");
    gguf_put_tensor(&w, "t", type, 2, (int64_t[]){COLS, ROWS}, data, bytes);
    const gguf_bytes b = gguf_finish(&w);
    FILE *f = fdopen(mkstemp(path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b.p, 1, b.n, f), b.n);
    fclose(f);
    free(b.p);
    msgl_checkpoint *c = NULL;
    if (msgl__checkpoint_open(path, &c, err) != 0) c = NULL;
    remove(path);
    return c;
}

// The model's rows [first, first + rows) of the source against elements of the tensor, [ROWS,
// COLS]: the model's (r, c) is where `at` says.
static void check_rows(msgl_pool *pool, const msgl_source *s, int32_t first, int32_t rows,
                       const float *elements, size_t (*at)(size_t r, size_t c))
{
    float *out = malloc((size_t)rows * s->cols * sizeof *out);
    assert_non_null(out);
    msgl__source_rows(pool, s, first, rows, out);
    for (size_t r = 0; r < (size_t)rows; r++) {
        for (size_t c = 0; c < s->cols; c++) {
            const float *want = &elements[at(r + (size_t)first, c)];
            if (memcmp(&out[r * s->cols + c], want, sizeof *want) == 0) continue;
            fail_msg("%s: row %zu, column %zu: %g, not %g", s->t->type, r, c, out[r * s->cols + c],
                     *want);
        }
    }
    free(out);
}

static size_t plain(size_t r, size_t c)
{
    return r * COLS + c;
}

static size_t paired(size_t r, size_t c) // heads of 4 rows: 0 2 1 3
{
    static const size_t order[4] = {0, 2, 1, 3};
    return (r / 4 * 4 + order[r % 4]) * COLS + c;
}

static size_t part(size_t r, size_t c)
{
    return r * COLS + c + 100;
}

static size_t transposed(size_t r, size_t c)
{
    return (c + 3) * COLS + r;
}

// The model's rows 0, 1 ... 255, 256, 257 ... are columns 0, 2 ... 510, 1, 3 ... of the tensor.
static size_t transposed_pairs(size_t r, size_t c)
{
    return transposed(r < COLS / 2 ? 2 * r : 2 * (r - COLS / 2) + 1, c);
}

static void check_type(msgl_pool *pool, uint32_t type, const msgl_tensor *t)
{
    float *elements = malloc(sizeof(float[ROWS * COLS]));
    assert_non_null(elements);
    const size_t n = (size_t)t->packing.blocks->elements;
    assert_int_equal(t->bytes, ROWS * COLS / n * (size_t)t->packing.blocks->bytes);
    for (size_t i = 0; i < ROWS * COLS / n; i++) {
        msgl__blocks_expand(t->packing.blocks, t->data + i * (size_t)t->packing.blocks->bytes,
                            elements + i * n);
    }
    msgl_source s = {.t = t, .want = MSGL_F32, .cols = COLS};
    assert_null(msgl__source_direct(&s, 0));
    check_rows(pool, &s, 1, ROWS - 1, elements, plain);
    s.head = 4, s.pairs = 2;
    check_rows(pool, &s, 1, ROWS - 1, elements, paired);
    // As the second of some ranks has it: columns 100 to 299, which begin and end inside of blocks.
    s = (msgl_source){.t = t, .want = MSGL_F32, .cols = 200, .all_cols = COLS, .first_col = 100};
    check_rows(pool, &s, 2, 5, elements, part);
    s = (msgl_source){.t = t, .want = MSGL_F32, .cols = 4, .first = 3, .transposed = true};
    check_rows(pool, &s, 200, 120, elements, transposed);
    s.head = COLS, s.pairs = COLS / 2;
    check_rows(pool, &s, 100, 300, elements, transposed_pairs);
    for (size_t i = 0; i < ROWS * COLS; i += 37) {
        const float got = msgl__source_element(&(msgl_source){.t = t}, i);
        if (memcmp(&got, &elements[i], sizeof got) != 0) fail_msg("%u: element %zu", type, i);
    }
    free(elements);
}

static void test_types(void **state)
{
    (void)state;
    msgl_pool *pool = NULL;
    msgl_err err = {0};
    uint64_t seed = 1;
    int in_blocks = 0, removed = 0;
    const size_t most = ROWS * COLS * 8;
    uint8_t *data = malloc(most);
    assert_non_null(data);
    for (size_t i = 0; i < most; i++) data[i] = (uint8_t)msgl__random(&seed) & 0x3f; // no NaN
    assert_int_equal(msgl__pool_create(2, &pool, &err), 0);
    for (uint32_t type = 0; type < TYPES; type++) {
        msgl_checkpoint *c = open_one(type, data, most, &err);
        if (c == NULL) {
            assert_non_null(strstr(err.text, "which ggml has removed"));
            removed++;
            continue;
        }
        const msgl_tensor *t = msgl__checkpoint_at(c, 0);
        const bool alone = type == F32 || type == F16 || type == BF16;
        const bool weight = type != Q8_1 && type != Q8_K && (type < I8 || type > I64);
        assert_int_equal(t->loadable, weight);
        assert_int_equal(t->packing.form != NULL, weight && !alone);
        if (alone)
            assert_int_equal(t->dtype, type == F32 ? MSGL_F32 : type == F16 ? MSGL_F16 : MSGL_BF16);
        if (t->packing.blocks != NULL) {
            assert_string_equal(t->type, t->packing.blocks->name);
            check_type(pool, type, t);
            in_blocks++;
        }
        msgl__checkpoint_close(c);
    }
    int listed; // in docs/packed-weights.md
    (void)msgl__blocks_all(&listed);
    assert_int_equal(in_blocks, 26);
    assert_int_equal(listed, 26);
    assert_int_equal(removed, 8);
    assert_null(open_one(TYPES, data, most, &err));
    assert_non_null(strstr(err.text, "t: type: found 43, allowed a type of ggml"));
    msgl__pool_destroy(pool);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_types)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
