// SPDX-License-Identifier: Apache-2.0
//
// From a checkpoint to weights: which surplus tensors are let pass, how far ahead of the packing
// the disk is asked, and elements that are not stored one by one in the model's order, or not as
// floats.
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
#include "kernel/device.h"
#include "models/folder.h"
#include "models/source.h"
#include "models/weights.h"
#include "quant/blocks.h"

// The status of a model that wants norm.weight [2] and finds one more tensor in the file.
static int check_surplus(const char *name, msgl_err *err)
{
    char header[256];
    const int n =
        snprintf(header, sizeof header,
                 "{\"norm.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                 "\"%s\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[8,16]}}",
                 name);
    assert_true(n > 0 && (size_t)n < sizeof header);
    const uint8_t data[16] = {0};
    folder f;
    folder_make(&f);
    write_safetensors(&f, "model.safetensors", header, data, sizeof data);
    msgl_checkpoint *c = NULL;
    if (msgl__checkpoint_open(f.dir, &c, err) != 0) fail_msg("%s", err->text);
    float *norm;
    msgl_weight_plan p;
    msgl__weight_plan_init(&p, NULL, err);
    msgl__plan_vector(&p, &norm, 2);
    msgl__plan_elements(&p, &norm, 0, 2, 1, "norm.weight");
    assert_int_equal(p.status, 0);
    const int rc = msgl__weights_check(&p, c, err);
    msgl__weight_plan_free(&p);
    msgl__checkpoint_close(c);
    folder_remove(&f);
    return rc;
}

static void test_surplus(void **state)
{
    (void)state;
    msgl_err err = {0};
    // The head of a tied model, stored beside the embedding that it is a copy of, and buffers.
    static const char *const harmless[] = {"lm_head.weight",
                                           "model.layers.0.self_attn.rotary_emb.inv_freq",
                                           "h.0.attn.masked_bias", "h.0.attn.bias"};
    for (size_t i = 0; i < MSGL_COUNT(harmless); i++) {
        if (check_surplus(harmless[i], &err) != 0) fail_msg("%s: %s", harmless[i], err.text);
    }
    static const char *const unknown[] = {"lm_head.bias", "lm_head.weight2", "a.lm_head.weight",
                                          "norm.bias", "zz"};
    for (size_t i = 0; i < MSGL_COUNT(unknown); i++) {
        assert_int_equal(check_surplus(unknown[i], &err), MSGL_EFORMAT);
        assert_non_null(strstr(err.text, unknown[i]));
        assert_non_null(strstr(err.text, "the model has no such"));
    }
}

// Loads items of these sizes as msgl__weights_load does: what is asked for stays MSGL_READ_AHEAD
// ahead, by one item at most more, and everything is asked for once, in order.
static void check_read_ahead(const size_t *sizes, size_t n)
{
    msgl_load_item *items = calloc(n, sizeof *items);
    assert_non_null(items);
    uint64_t total = 0, done = 0, asked = 0;
    for (size_t i = 0; i < n; i++) {
        items[i].bytes = sizes[i];
        total += sizes[i];
    }
    size_t ahead = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t end = msgl__read_ahead(items, n, ahead, done, &asked);
        assert_true(end >= ahead && end <= n);
        assert_true(end > i || sizes[i] == 0); // asked for before it is packed
        const uint64_t want = done + MSGL_READ_AHEAD < total ? done + MSGL_READ_AHEAD : total;
        assert_true(asked >= want);
        if (end > ahead) assert_true(asked - sizes[end - 1] < done + MSGL_READ_AHEAD);
        ahead = end;
        done += sizes[i];
    }
    assert_int_equal(ahead, n);
    assert_int_equal(asked, total);
    free(items);
}

static void test_read_ahead(void **state)
{
    (void)state;
    enum { MB = 1 << 20, MANY = 300 };
    static const size_t one[] = {5}, large[] = {200 * MB, 200 * MB, 200 * MB},
                        mixed[] = {1, 63 * MB, 2 * MB, 300 * MB, 7, 64 * MB, 64 * MB, 3 * MB};
    check_read_ahead(one, 1);
    check_read_ahead(large, MSGL_COUNT(large));
    check_read_ahead(mixed, MSGL_COUNT(mixed));
    size_t many[MANY];
    for (size_t i = 0; i < MANY; i++) many[i] = (i % 7 + 1) * MB / 2;
    check_read_ahead(many, MANY);
}

#define IN_Q8_0                                                                                    \
    {                                                                                              \
        .form = &msgl__stored_blocks, .blocks = &msgl__blocks_q8_0                                 \
    }

// Pairs of neighbours become halves of what rotates in a head; what does not rotate stays. A tensor
// that is not aligned is read all the same.
static void test_elements(void **state)
{
    (void)state;
    uint8_t bytes[4 * 12 + 1];
    for (int i = 0; i < 12; i++) {
        const float f = (float)i;
        memcpy(bytes + 1 + 4 * i, &f, 4);
    }
    const msgl_tensor t = {.data = bytes + 1, .dtype = MSGL_F32, .loadable = true};
    const msgl_source s = {.t = &t, .head = 6, .pairs = 2};
    static const float want[] = {0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11};
    for (size_t i = 0; i < 12; i++) assert_true(msgl__source_element(&s, i) == want[i]);
    assert_null(msgl__source_direct(&s, 0));
    // Q8_0: scale 0.5 and an i8 in each block.
    uint8_t blocks[68] = {0};
    blocks[1] = blocks[35] = 0x38;
    blocks[2 + 31] = 0x80;
    blocks[36] = 3;
    const msgl_tensor q = {
        .data = blocks, .packing = IN_Q8_0, .ndim = 1, .dims = {64}, .loadable = true};
    const msgl_source e = {.t = &q};
    assert_true(msgl__source_element(&e, 31) == -64.0f);
    assert_true(msgl__source_element(&e, 32) == 1.5f);
}

// What rows and elements are made of is inside of the span and nothing outside: with its bytes
// alone the result is the same.
static void check_span(const msgl_source *s, msgl_pool *pool, int32_t skip, int32_t rows,
                       size_t expected_from, size_t expected_bytes)
{
    float whole[512], part[512];
    size_t from, bytes;
    assert_true((size_t)rows * (s->cols > 0 ? s->cols : 1) <= MSGL_COUNT(whole));
    msgl__source_span(s, (size_t)skip, (size_t)rows, &from, &bytes);
    assert_int_equal(from, expected_from);
    assert_int_equal(bytes, expected_bytes);
    assert_true(from + bytes <= s->t->bytes);
    uint8_t *copy = malloc(s->t->bytes);
    assert_non_null(copy);
    memset(copy, 0x31, s->t->bytes);
    memcpy(copy + from, s->t->data + from, bytes);
    msgl_tensor t = *s->t;
    t.data = copy;
    msgl_source other = *s;
    other.t = &t;
    if (s->cols > 0) {
        msgl__source_rows(pool, s, skip, rows, whole);
        msgl__source_rows(pool, &other, skip, rows, part);
    }
    for (int32_t i = 0; s->cols == 0 && i < rows; i++) {
        whole[i] = msgl__source_element(s, (size_t)(skip + i));
        part[i] = msgl__source_element(&other, (size_t)(skip + i));
    }
    assert_memory_equal(whole, part, (size_t)rows * (s->cols > 0 ? s->cols : 1) * sizeof *whole);
    free(copy);
}

static void test_spans(void **state)
{
    (void)state;
    enum { R = 12, C = 64 };
    msgl_err err;
    msgl_pool *pool;
    assert_int_equal(msgl__pool_create(2, &pool, &err), 0);
    float plain[R * C];
    uint8_t coded[R * C], blocks[R * C / 32 * 34];
    for (int i = 0; i < R * C; i++) plain[i] = (float)i;
    for (int i = 0; i < R * C; i++) coded[i] = (uint8_t)(i % 97);
    for (size_t i = 0; i < sizeof blocks; i++) blocks[i] = (uint8_t)(i % 34 < 2 ? 0x3c : i % 120);
    const float scale = 0.5f;
    const msgl_tensor t = {.data = (const uint8_t *)plain,
                           .bytes = sizeof plain,
                           .dtype = MSGL_F32,
                           .ndim = 2,
                           .dims = {R, C}};
    const msgl_tensor e4m3 = {.data = coded,
                              .bytes = sizeof coded,
                              .ndim = 2,
                              .dims = {R, C},
                              .packing = {.form = &msgl__stored_numbers,
                                          .number = MSGL_NUMBER_E4M3,
                                          .group_rows = 128,
                                          .group = 128,
                                          .sides[MSGL_SCALES] = {(const uint8_t *)&scale,
                                                                 sizeof scale, MSGL_NUMBER_F32}}};
    const msgl_tensor q8 = {
        .data = blocks, .bytes = sizeof blocks, .packing = IN_Q8_0, .ndim = 2, .dims = {R, C}};
    const size_t row = C * sizeof(float);
    msgl_source s = {.t = &t, .want = MSGL_F32, .cols = C, .first = 2};
    check_span(&s, pool, 3, 4, 5 * row, 4 * row);
    s.first = 0, s.all_cols = C, s.cols = 16, s.first_col = 32; // columns: of all rows
    check_span(&s, pool, 2, 5, 2 * row, 5 * row);
    s = (msgl_source){.t = &t, .want = MSGL_F32, .cols = C, .head = 6, .pairs = 2};
    check_span(&s, pool, 7, 2, 6 * row, 6 * row); // pairs: of whole heads
    s = (msgl_source){.t = &t, .want = MSGL_F32, .cols = 4, .first = 3, .transposed = true};
    check_span(&s, pool, 10, 20, 3 * row, 4 * row); // the model's columns: whatever rows it takes
    s = (msgl_source){.t = &e4m3, .want = MSGL_F32, .cols = C, .first = 1};
    check_span(&s, pool, 2, 3, 3 * C, 3 * C);
    s = (msgl_source){.t = &q8, .want = MSGL_F32, .cols = C, .first = 1};
    check_span(&s, pool, 2, 3, 3 * 2 * 34, 3 * 2 * 34);
    s = (msgl_source){.t = &t, .want = MSGL_F32};
    check_span(&s, pool, 5, 9, 5 * sizeof(float), 9 * sizeof(float));
    s = (msgl_source){.t = &q8, .want = MSGL_F32}; // elements of blocks: whole blocks
    check_span(&s, pool, 33, 40, 34, 2 * 34);
    msgl__pool_destroy(pool);
}

// Ranks that share a matrix by rows ask for halves of it, and for all of what both need.
static void test_items_of_ranks(void **state)
{
    (void)state;
    enum { N = 8, K = 16, BYTES = N * K * 4 + N * 4 };
    const char *header = "{\"w\":{\"dtype\":\"F32\",\"shape\":[8,16],\"data_offsets\":[0,512]},"
                         "\"v\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[512,544]}}";
    const uint8_t data[BYTES] = {0};
    folder f;
    folder_make(&f);
    write_safetensors(&f, "model.safetensors", header, data, sizeof data);
    msgl_err err;
    msgl_checkpoint *c = NULL;
    msgl_kernels kernels;
    msgl__kernels_init_cpu(&kernels, MSGL_CPU_REF);
    const msgl_weight_formats formats = {.kernels = &kernels.gemm,
                                         .converted = &kernels.gemm.formats[MSGL_W_F32]};
    assert_int_equal(msgl__checkpoint_open(f.dir, &c, &err), 0);
    for (int32_t rank = 0; rank < 2; rank++) {
        msgl_weight w;
        float *v;
        msgl_weight_plan p;
        msgl_load_item items[2];
        const msgl_range half = {.from = rank * N / 2, .count = N / 2};
        msgl__weight_plan_init(&p, &formats, &err);
        msgl__plan_weight(&p, &w, N / 2, K);
        msgl__plan_keep(&p, &w, &(msgl_kept){.rows = {half}, .num_rows = 1});
        msgl__plan_rows(&p, &w, 0, N, "w");
        msgl__plan_vector(&p, &v, N);
        msgl__plan_elements(&p, &v, 0, N, 1, "v");
        assert_int_equal(p.status, 0);
        assert_int_equal(msgl__weights_check(&p, c, &err), 0);
        assert_int_equal(msgl__load_items(&p, c, items), N * K * 4 / 2 + N * 4);
        assert_int_equal(items[0].from, (size_t)rank * N * K * 4 / 2);
        assert_int_equal(items[0].bytes, N * K * 4 / 2);
        assert_int_equal(items[1].from, 0);
        assert_int_equal(items[1].bytes, N * 4);
        msgl__weight_plan_free(&p);
    }
    msgl__checkpoint_close(c);
    folder_remove(&f);
}

// Some rows of a tensor, as rows and as columns: of a matrix whose element (r, c) is 100 r + c.
static void check_slice(const msgl_source *s, msgl_pool *pool)
{
    enum { FIRST = 1, ROWS = 3 };
    float out[ROWS * 64];
    assert_true(s->cols <= 64);
    msgl__source_rows(pool, s, FIRST, ROWS, out);
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t c = 0; c < s->cols; c++) {
            const size_t row = s->first + (s->transposed ? c : r + FIRST);
            const size_t col = s->transposed ? r + FIRST : c;
            assert_true(out[r * s->cols + c] == (float)(row * 100 + col));
        }
    }
}

static void test_slices(void **state)
{
    (void)state;
    enum { R = 7, C = 64 };
    msgl_err err;
    msgl_pool *pool;
    assert_int_equal(msgl__pool_create(2, &pool, &err), 0);
    float plain[R * C];
    uint8_t blocks[R * C / 32 * 34];
    for (int i = 0; i < R * C; i++) plain[i] = (float)(i / C * 100 + i % C);
    const msgl_tensor t = {
        .data = (const uint8_t *)plain, .dtype = MSGL_F32, .ndim = 2, .dims = {R, C}};
    msgl_source s = {.t = &t, .want = MSGL_F32, .cols = C, .first = 2};
    assert_ptr_equal(msgl__source_direct(&s, 0), plain + 2 * C);
    check_slice(&s, pool);
    s = (msgl_source){.t = &t, .want = MSGL_F32, .cols = 4, .first = 3, .transposed = true};
    assert_null(msgl__source_direct(&s, 0));
    check_slice(&s, pool);
    // In blocks: element (r, c) is 10 r + c % 32 % 7.
    for (int b = 0; b < R * C / 32; b++) {
        blocks[b * 34] = 0;
        blocks[b * 34 + 1] = 0x3c; // a scale of 1
        for (int i = 0; i < 32; i++) blocks[b * 34 + 2 + i] = (uint8_t)(b / 2 * 10 + i % 7);
    }
    const msgl_tensor q = {.data = blocks, .packing = IN_Q8_0, .ndim = 2, .dims = {R, C}};
    s = (msgl_source){.t = &q, .want = MSGL_F32, .cols = 4, .first = 3, .transposed = true};
    float out[5 * 4];
    msgl__source_rows(pool, &s, 30, 5, out); // over the end of a block
    for (int r = 0; r < 5; r++) {
        for (int c = 0; c < 4; c++) {
            assert_true(out[r * 4 + c] == (float)((c + 3) * 10 + (r + 30) % 32 % 7));
        }
    }
    // In pairs, too: the model's rows 30, 31, 32 ... of a head are elements 60, 62, 1 ... of it.
    static const int paired[5] = {60, 62, 1, 3, 5};
    s.head = C, s.pairs = C / 2;
    msgl__source_rows(pool, &s, 30, 5, out);
    for (int r = 0; r < 5; r++) {
        for (int c = 0; c < 4; c++) {
            assert_true(out[r * 4 + c] == (float)((c + 3) * 10 + paired[r] % 32 % 7));
        }
    }
    msgl__pool_destroy(pool);
}

// Pairs that lie behind other rows of a head: of 7 rows the last 4.
static void test_pairs_behind(void **state)
{
    (void)state;
    float stored[14];
    for (int i = 0; i < 14; i++) stored[i] = (float)i;
    const msgl_tensor t = {.data = (const uint8_t *)stored, .dtype = MSGL_F32, .dims = {14}};
    const msgl_source s = {.t = &t, .head = 7, .unpaired = 3, .pairs = 2};
    static const float want[] = {0, 1, 2, 3, 5, 4, 6, 7, 8, 9, 10, 12, 11, 13};
    for (size_t i = 0; i < 14; i++) assert_true(msgl__source_element(&s, i) == want[i]);
}

// Loads a model that wants norm.weight [2] and may have a scale, from a file whose scale is of this
// type, shape and bytes; *scale is 1 before.
static int load_scale(const char *type, const char *shape, const void *bytes, int size,
                      float *scale, msgl_err *err)
{
    char header[256];
    snprintf(header, sizeof header,
             "{\"norm.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
             "\"a.k_scale\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[8,%d]}}",
             type, shape, 8 + size);
    uint8_t data[16] = {0};
    memcpy(data + 8, bytes, (size_t)size);
    folder f;
    folder_make(&f);
    write_safetensors(&f, "model.safetensors", header, data, 8 + (size_t)size);
    msgl_checkpoint *c = NULL;
    if (msgl__checkpoint_open(f.dir, &c, err) != 0) fail_msg("%s", err->text);
    float *norm, place[16];
    msgl_weight_plan p;
    msgl__weight_plan_init(&p, NULL, err);
    msgl__plan_vector(&p, &norm, 2);
    msgl__plan_elements(&p, &norm, 0, 2, 1, "norm.weight");
    *scale = 1;
    float other = 1;
    msgl__plan_scale(&p, scale, "%s.%c_scale", "a", 'k');
    msgl__plan_scale(&p, &other, "a.v_scale"); // the file has none
    msgl__weight_plan_place(&p, place);
    msgl_exec x = {.act = MSGL_F32};
    assert_int_equal(msgl__device_cpu_create(&x.device, err), 0);
    int rc = msgl__weights_check(&p, c, err);
    if (rc == 0) rc = msgl__weights_load(&p, c, &x, NULL, NULL, err);
    x.device->ops->destroy(x.device);
    assert_true(other == 1);
    msgl__weight_plan_free(&p);
    msgl__checkpoint_close(c);
    folder_remove(&f);
    return rc;
}

// Numbers that a file may have, and that have to be 3 and -7 then.
static int check_numbers(const char *type, const char *shape, const void *data, size_t size,
                         msgl_err *err)
{
    static const int64_t KNOWN[] = {3, -7};
    char header[256];
    folder f;
    folder_make(&f);
    snprintf(header, sizeof header,
             "{\"a.numbers\": {\"dtype\": \"%s\", \"shape\": %s, \"data_offsets\": [0, %d]}}", type,
             shape, (int)size);
    write_safetensors(&f, "model.safetensors", header, data, size);
    msgl_checkpoint *c = NULL;
    if (msgl__checkpoint_open(f.dir, &c, err) != 0) fail_msg("%s", err->text);
    msgl_weight_plan p;
    msgl__weight_plan_init(&p, NULL, err);
    msgl__plan_numbers(&p, KNOWN, 2, "%s.numbers", "a");
    msgl__plan_numbers(&p, KNOWN, 1, "b.numbers"); // the file has none
    const int rc = msgl__weights_check(&p, c, err);
    msgl__weight_plan_free(&p);
    msgl__checkpoint_close(c);
    folder_remove(&f);
    return rc;
}

static void test_numbers(void **state)
{
    (void)state;
    static const int64_t SAME[] = {3, -7}, OTHER[] = {3, 7};
    static const int32_t NARROW[] = {3, -7};
    msgl_err err = {0};
    assert_int_equal(check_numbers("I64", "[2]", SAME, sizeof SAME, &err), 0);
    assert_int_equal(check_numbers("I64", "[2]", OTHER, sizeof OTHER, &err), MSGL_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "tensor a.numbers: other numbers; allowed: the 2 that follow "
                                     "from config.json, as I64"));
    assert_int_equal(check_numbers("I64", "[1]", SAME, 8, &err), MSGL_EUNSUPPORTED);
    assert_int_equal(check_numbers("I64", "[2, 1]", SAME, sizeof SAME, &err), MSGL_EUNSUPPORTED);
    assert_int_equal(check_numbers("I32", "[2]", NARROW, sizeof NARROW, &err), MSGL_EUNSUPPORTED);
}

static void test_scales(void **state)
{
    (void)state;
    msgl_err err = {0};
    float scale, numbers[2] = {0.25f, 1}, none = 0;
    const uint16_t bf16 = 0x4000; // 2
    assert_int_equal(load_scale("F32", "[]", numbers, 4, &scale, &err), 0);
    assert_true(scale == 0.25f);
    assert_int_equal(load_scale("F32", "[1]", numbers, 4, &scale, &err), 0);
    assert_true(scale == 0.25f);
    assert_int_equal(load_scale("BF16", "[1]", &bf16, 2, &scale, &err), 0);
    assert_true(scale == 2);
    assert_int_equal(load_scale("F32", "[2]", numbers, 8, &scale, &err), MSGL_EFORMAT);
    assert_non_null(strstr(err.text, "tensor a.k_scale: expected one number above 0"));
    assert_int_equal(load_scale("F32", "[1]", &none, 4, &scale, &err), MSGL_EFORMAT);
    assert_int_equal(load_scale("I8", "[1]", numbers, 1, &scale, &err), MSGL_EFORMAT);
}

// A matrix of e4m3 of 131 x 200, all codes in it, and its scales.
enum { N = 131, K = 200, CODES = N * K };

#define MATRIX "\"m\":{\"dtype\":\"F8_E4M3\",\"shape\":[131,200],\"data_offsets\":[0,26200]}"
#define GRID(dtype, shape, end)                                                                    \
    "{" MATRIX ",\"m_scale_inv\":{\"dtype\":\"" dtype "\",\"shape\":" shape                        \
    ",\"data_offsets\":[26200," end "]}}"

// Opens the folder of such a file and checks it for a model that wants m; *c is open if that is 0.
static int open_fp8(folder *f, const char *header, size_t bytes, msgl_checkpoint **c, msgl_err *err)
{
    static const float scales[4] = {0.5f, 3, -1e-3f, 1};
    static uint8_t data[CODES + 2 * sizeof scales];
    for (int i = 0; i < CODES; i++) data[i] = (uint8_t)(i + i / 256);
    memcpy(data + CODES, scales, sizeof scales);
    folder_make(f);
    write_safetensors(f, "model.safetensors", header, data, bytes);
    *c = NULL;
    int rc = msgl__checkpoint_open(f->dir, c, err);
    if (rc != 0) return rc;
    msgl_kernels k;
    msgl_weight m;
    msgl_weight_plan p;
    msgl__kernels_init_cpu(&k, MSGL_CPU_REF);
    const msgl_weight_formats formats = {.kernels = &k.gemm,
                                         .converted = &k.gemm.formats[MSGL_W_BF16]};
    msgl__weight_plan_init(&p, &formats, err);
    msgl__plan_weight(&p, &m, N, K);
    msgl__plan_rows(&p, &m, 0, N, "m");
    assert_int_equal(p.status, 0);
    rc = msgl__weights_check(&p, *c, err);
    msgl__weight_plan_free(&p);
    return rc;
}

// The value of the file's element, by the definition of e4m3.
static double value(int row, int col)
{
    static const double scales[4] = {0.5, 3, (double)-1e-3f, 1};
    const int i = row * K + col, code = (i + i / 256) & 255, steps = code & 127;
    if (steps == 127) return NAN;
    const double v = steps < 8 ? ldexp(steps, -9) : ldexp(1 + (steps & 7) / 8.0, steps / 8 - 7);
    return (code < 128 ? v : -v) * scales[row / 128 * 2 + col / 128];
}

// The matrix of a file, and who reads it.
typedef struct fp8_matrix {
    folder f;
    msgl_checkpoint *c;
    const msgl_tensor *t;
    msgl_pool *pool;
} fp8_matrix;

static void fp8_matrix_open(fp8_matrix *m)
{
    msgl_err err = {0};
    if (open_fp8(&m->f, GRID("F32", "[2,2]", "26216"), CODES + 16, &m->c, &err) != 0) {
        fail_msg("%s", err.text);
    }
    m->t = msgl__checkpoint_find(m->c, "m");
    assert_int_equal(msgl__pool_create(2, &m->pool, NULL), 0);
}

static void fp8_matrix_close(fp8_matrix *m)
{
    msgl__pool_destroy(m->pool);
    msgl__checkpoint_close(m->c);
    folder_remove(&m->f);
}

static void test_fp8(void **state)
{
    (void)state;
    fp8_matrix m;
    fp8_matrix_open(&m);
    static uint8_t out[4 * CODES];
    // In the file's order, and with heads of which the last one is in rows of other scales.
    for (int i = 0; i < 2 * (MSGL_BF16 + 1); i++) {
        const msgl_dtype want = (msgl_dtype)(i / 2);
        const int32_t head = 131, pairs = i % 2 != 0 ? 65 : 0;
        const msgl_source s = {.t = m.t, .want = want, .cols = K, .head = head, .pairs = pairs};
        assert_null(msgl__source_direct(&s, 0));
        assert_int_equal(msgl__source_dtype(&s), want);
        assert_int_equal(msgl__source_row_bytes(&s), K * msgl__dtype_size(want));
        const int first = 3;
        msgl__source_rows(m.pool, &s, first, N - first, out);
        for (int r = first; r < N; r++) {
            const int row = r >= 2 * pairs ? r : r < pairs ? 2 * r : 2 * (r - pairs) + 1;
            for (int col = 0; col < K; col++) {
                const size_t at = (size_t)((r - first) * K + col);
                const float got = msgl__load_f32(out, want, at);
                uint32_t rounded = 0;
                msgl__store_f32(&rounded, want, 0, (float)value(row, col));
                const float exact = msgl__load_f32(&rounded, want, 0);
                assert_true(isnan(exact) ? isnan(got) : got == exact);
            }
        }
    }
    fp8_matrix_close(&m);
}

// Rows from 100 on as columns, over the ends of blocks.
static void test_fp8_columns(void **state)
{
    (void)state;
    enum { FROM = 100, COLS = N - FROM, FIRST = 120, ROWS = 70 };
    fp8_matrix m;
    fp8_matrix_open(&m);
    const msgl_source s = {
        .t = m.t, .want = MSGL_F32, .cols = COLS, .first = FROM, .transposed = true};
    float out[ROWS * COLS];
    msgl__source_rows(m.pool, &s, FIRST, ROWS, out);
    for (int i = 0; i < ROWS * COLS; i++) {
        const float want = (float)value(FROM + i % COLS, FIRST + i / COLS);
        assert_true(isnan(want) ? isnan(out[i]) : out[i] == want);
    }
    fp8_matrix_close(&m);
}

enum { ROWS8 = 10, COLS8 = 192, PARTS8 = COLS8 / 32 };

static struct {
    msgl_code_part parts[ROWS8][PARTS8];
    int row, rows;
} asked;

static void ask_for_parts(msgl_exec *x, msgl_weight *w, int row, int rows,
                          const msgl_part_rows *src)
{
    (void)x, (void)w;
    asked.row = row;
    asked.rows = rows;
    for (size_t r = 0; r < (size_t)rows; r++) { // tiles of a row and of a part
        src->read(src->rows, &(msgl_part_tile){r, 1, 0, 32}, &asked.parts[r][0], 1);
        src->read(src->rows, &(msgl_part_tile){r, 1, 32, COLS8 - 32}, &asked.parts[r][1], 1);
    }
}

static void never(msgl_exec *x, msgl_weight *w, int row, int rows, const uint8_t *src,
                  size_t ld_src)
{
    (void)x, (void)w, (void)row, (void)rows, (void)src, (void)ld_src;
    fail();
}

// A packer that asks for parts gets those that others find in a stage, from the rows that are its.
static void test_fp8_parts(void **state)
{
    (void)state;
    fp8_matrix m;
    fp8_matrix_open(&m);
    const msgl_blocks parts = {"parts", 32, sizeof(msgl_code_part), NULL, NULL};
    const msgl_wformat format = {.blocks = &parts, .repack = never, .repack_parts = ask_for_parts};
    msgl_weight w = {.format = &format, .n = 20, .k = COLS8};
    msgl_arena scratch = {0};
    msgl_exec x = {.pool = m.pool, .scratch = &scratch};
    for (int pairs = 0; pairs < 2; pairs++) {
        const msgl_wanted want = {.weight = &w,
                                  .row = 3,
                                  .rows = ROWS8,
                                  .cols = COLS8,
                                  .all_cols = K,
                                  .skip = 121,
                                  .head = 131,
                                  .pairs = pairs > 0 ? 65 : 0};
        msgl__load_weight(&(msgl_load_item){.want = &want, .tensor = m.t}, 1, &x);
        assert_int_equal(x.status, 0);
        assert_true(asked.row == 3 && asked.rows == ROWS8);
        const msgl_source s = {.t = m.t,
                               .blocks = &parts,
                               .cols = COLS8,
                               .all_cols = K,
                               .head = want.head,
                               .pairs = want.pairs};
        static msgl_code_part staged[ROWS8][PARTS8];
        assert_true(msgl__source_splits(&s));
        msgl__source_rows(m.pool, &s, want.skip, ROWS8, staged);
        assert_memory_equal(asked.parts, staged, sizeof staged);
    }
    fp8_matrix_close(&m);
}

static void test_fp8_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t bytes;
        const char *expect;
    } bad[] = {
        {"{" MATRIX "}", CODES,
         "model.safetensors: tensor m: dtype: found F8_E4M3, expected F32, F16 or BF16, "},
        {GRID("F32", "[1,4]", "26216"), CODES + 16,
         "model.safetensors: tensor m_scale_inv: found F32 [1, 4], allowed F32, F16, BF16, F8_E8M0 "
         "or U8 [1], [131, 1], [131, groups] or [2, 2]: a scale for all, for each row, or for each "
         "128 x 128 elements"},
        {GRID("F32", "[4]", "26216"), CODES + 16, "found F32 [4], allowed"},
        {GRID("F32", "[2,1]", "26208"), CODES + 8, "found F32 [2, 1], allowed"},
        {GRID("I16", "[2,2]", "26208"), CODES + 8, "found I16 [2, 2], allowed F32"},
        {GRID("F32", "[2,2,2]", "26232"), CODES + 32, "found F32 [2, 2, 2], allowed F32"},
    };
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        folder f;
        msgl_checkpoint *c;
        msgl_err err = {0};
        assert_int_equal(open_fp8(&f, bad[i].header, bad[i].bytes, &c, &err), MSGL_EUNSUPPORTED);
        if (strstr(err.text, bad[i].expect) == NULL) fail_msg("%s", err.text);
        msgl__checkpoint_close(c);
        folder_remove(&f);
    }
}

// MXFP4 of 2 experts of 3 x 64: blocks of all codes, exponents from the least to NaN.
enum { EXPERTS = 2, ROWS4 = 3, COLS4 = 64, BLOCKS4 = EXPERTS * ROWS4 * COLS4 / 32 };

#define BLOCKS4_OF(type, shape, end)                                                               \
    "{\"m_blocks\":{\"dtype\":\"U8\",\"shape\":[2,3,2,16],\"data_offsets\":[0,192]}"               \
    ",\"m_scales\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[192," end "]}}"

static uint8_t exponent_of(int block)
{
    static const uint8_t some[BLOCKS4] = {127, 0, 1, 20, 126, 128, 130, 119, 135, 200, 252, 255};
    return some[block];
}

static int open_mxfp4(folder *f, const char *header, size_t bytes, msgl_checkpoint **c,
                      msgl_err *err)
{
    static uint8_t data[BLOCKS4 * 17 + 16];
    for (int i = 0; i < BLOCKS4 * 16; i++) data[i] = (uint8_t)(i * 37 + i / 16);
    for (int b = 0; b < BLOCKS4; b++) data[BLOCKS4 * 16 + b] = exponent_of(b);
    folder_make(f);
    write_safetensors(f, "model.safetensors", header, data, bytes);
    *c = NULL;
    return msgl__checkpoint_open(f->dir, c, err);
}

// By the definition of e2m1: one bit of mantissa, exponents from 1 on with a bias of 1.
static double value4(int element)
{
    const int byte = element / 2, code = (byte * 37 + byte / 16) >> element % 2 * 4 & 15;
    const int exponent = code >> 1 & 3, mantissa = code & 1, e8m0 = exponent_of(element / 32);
    const double v = exponent == 0 ? mantissa * 0.5 : ldexp(1 + mantissa / 2.0, exponent - 1);
    return e8m0 == 255 ? NAN : ldexp(code < 8 ? v : -v, e8m0 - 127);
}

static void test_mxfp4(void **state)
{
    (void)state;
    folder f;
    msgl_checkpoint *c;
    msgl_err err = {0};
    if (open_mxfp4(&f, BLOCKS4_OF("U8", "[2,3,2]", "204"), BLOCKS4 * 17, &c, &err) != 0) {
        fail_msg("%s", err.text);
    }
    msgl_kernels k;
    msgl_weight m[EXPERTS];
    msgl_weight_plan p;
    msgl__kernels_init_cpu(&k, MSGL_CPU_REF);
    const msgl_weight_formats formats = {.kernels = &k.gemm,
                                         .converted = &k.gemm.formats[MSGL_W_F32]};
    msgl__weight_plan_init(&p, &formats, &err);
    for (int e = 0; e < EXPERTS; e++) {
        msgl__plan_weight(&p, &m[e], ROWS4, COLS4);
        msgl__plan_rows(&p, &m[e], 0, ROWS4, "m");
        msgl__plan_pairs(&p, ROWS4, 0, 1);
        msgl__plan_expert(&p, EXPERTS, e, true);
    }
    if (msgl__weights_check(&p, c, &err) != 0) fail_msg("%s", err.text);
    msgl__weight_plan_free(&p);
    msgl_pool *pool;
    assert_int_equal(msgl__pool_create(2, &pool, NULL), 0);
    for (int e = 0; e < EXPERTS; e++) {
        const msgl_source src = {.t = msgl__checkpoint_find(c, "m"),
                                 .want = MSGL_F32,
                                 .cols = COLS4,
                                 .first = (size_t)(e * ROWS4)};
        float out[ROWS4 * COLS4];
        msgl__source_rows(pool, &src, 0, ROWS4, out);
        for (int i = 0; i < ROWS4 * COLS4; i++) {
            const float want = (float)value4(e * ROWS4 * COLS4 + i);
            assert_true(isnan(want) ? isnan(out[i]) : out[i] == want);
        }
    }
    msgl__pool_destroy(pool);
    msgl__checkpoint_close(c);
    folder_remove(&f);
}

static void test_mxfp4_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t bytes;
        const char *expect;
    } bad[] = {
        {"{\"m_blocks\":{\"dtype\":\"U8\",\"shape\":[2,3,2,16],\"data_offsets\":[0,192]}}", 192,
         "tensor m_blocks: found nothing beside it that ends in _scales, allowed U8"},
        {BLOCKS4_OF("U8", "[2,3,1]", "198"), 198,
         "tensor m_scales: found U8 [2, 3, 1], allowed U8 [2, 3, 2]"},
        {BLOCKS4_OF("F8_E4M3", "[2,3,2]", "204"), 204, "found F8_E4M3 [2, 3, 2], allowed U8"},
    };
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        folder f;
        msgl_checkpoint *c;
        msgl_err err = {0};
        assert_int_equal(open_mxfp4(&f, bad[i].header, bad[i].bytes, &c, &err), MSGL_EUNSUPPORTED);
        if (strstr(err.text, bad[i].expect) == NULL) fail_msg("%s", err.text);
        msgl__checkpoint_close(c);
        folder_remove(&f);
    }
}

// float32 of 2 experts of [columns, rows], rows in pairs; and a vector of both.
static void test_experts(void **state)
{
    (void)state;
    enum { R = 6, C = 5, ALL = EXPERTS * R * C, N2 = EXPERTS * R };
    static const int stored[R] = {0, 2, 4, 1, 3, 5};
    static const char header[] =
        "{\"m\":{\"dtype\":\"F32\",\"shape\":[2,5,6],\"data_offsets\":[0,240]},"
        "\"v\":{\"dtype\":\"F32\",\"shape\":[2,6],\"data_offsets\":[240,288]}}";
    float data[ALL + N2];
    for (int i = 0; i < ALL + N2; i++) data[i] = (float)i;
    folder f;
    msgl_checkpoint *c = NULL;
    msgl_err err = {0};
    folder_make(&f);
    write_safetensors(&f, "model.safetensors", header, data, sizeof data);
    if (msgl__checkpoint_open(f.dir, &c, &err) != 0) fail_msg("%s", err.text);
    msgl_pool *pool;
    assert_int_equal(msgl__pool_create(2, &pool, NULL), 0);
    for (int first = 0; first < 4; first += 3) {
        const msgl_source s = {.t = msgl__checkpoint_find(c, "m"),
                               .want = MSGL_F32,
                               .cols = C,
                               .first = C, // of expert 1
                               .head = R,
                               .pairs = R / 2,
                               .transposed = true};
        float out[3 * C];
        assert_null(msgl__source_direct(&s, 0));
        msgl__source_rows(pool, &s, first, 3, out);
        for (int i = 0; i < 3 * C; i++) {
            assert_true(out[i] == data[(C + i % C) * R + stored[first + i / C]]);
        }
    }
    const msgl_source v = {
        .t = msgl__checkpoint_find(c, "v"), .want = MSGL_F32, .head = R, .pairs = R / 2};
    for (int i = 0; i < N2; i++) {
        const float want = data[ALL + i / R * R + stored[i % R]];
        assert_true(msgl__source_element(&v, (size_t)i) == want);
    }
    msgl__pool_destroy(pool);
    msgl__checkpoint_close(c);
    folder_remove(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_surplus),        cmocka_unit_test(test_read_ahead),
        cmocka_unit_test(test_spans),          cmocka_unit_test(test_items_of_ranks),
        cmocka_unit_test(test_numbers),        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_elements),       cmocka_unit_test(test_slices),
        cmocka_unit_test(test_pairs_behind),   cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_fp8_columns),    cmocka_unit_test(test_fp8_parts),
        cmocka_unit_test(test_fp8_refusals),   cmocka_unit_test(test_mxfp4),
        cmocka_unit_test(test_mxfp4_refusals), cmocka_unit_test(test_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
