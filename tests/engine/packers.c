// SPDX-License-Identifier: Apache-2.0
#include "engine/packers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/dtype.h"
#include "utils/random.h"

void out_open(tensors_out *o)
{
    *o = (tensors_out){.header = json_object()};
    assert_non_null(o->header);
}

void out_close(tensors_out *o)
{
    json_decref(o->header);
    free(o->data);
}

void out_put(tensors_out *o, const char *module, const char *suffix, const char *dtype,
             int32_t ndim, const int64_t *dims, const void *bytes, size_t n)
{
    char name[200];
    snprintf(name, sizeof name, "%s%s", module, suffix);
    json_t *shape = json_array();
    for (int32_t i = 0; i < ndim; i++) json_array_append_new(shape, json_integer(dims[i]));
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape,
                              "data_offsets", (json_int_t)o->n, (json_int_t)(o->n + n));
    assert_int_equal(json_object_set_new(o->header, name, entry), 0);
    o->data = realloc(o->data, o->n + n);
    assert_non_null(o->data);
    memcpy(o->data + o->n, bytes, n);
    o->n += n;
}

void out_note(tensors_out *o, const char *module, const char *text)
{
    char name[200];
    json_t *metadata = json_object_get(o->header, "__metadata__");
    if (metadata == NULL) {
        metadata = json_object();
        assert_int_equal(json_object_set_new(o->header, "__metadata__", metadata), 0);
    }
    snprintf(name, sizeof name, "%s.weight", module);
    assert_int_equal(json_object_set_new(metadata, name, json_string(text)), 0);
}

// torchao's: the class, and the elements that share a scale.
static void note_class(tensors_out *o, const char *module, const char *type, int rows, int cols)
{
    char text[200];
    snprintf(text, sizeof text, "{\"_type\": \"%s\", \"_data\": {\"block_size\": [%d, %d]}}", type,
             rows, cols);
    out_note(o, module, text);
}

static void put_matrix(tensors_out *o, const char *module, const char *suffix, const char *dtype,
                       int rows, int cols, const void *bytes, size_t n)
{
    out_put(o, module, suffix, dtype, 2, (int64_t[]){rows, cols}, bytes, n);
}

static void *room(size_t n)
{
    void *p = calloc(n > 0 ? n : 1, 1);
    assert_non_null(p);
    return p;
}

static int draw(uint64_t *seed, int n)
{
    return (int)(msgl__random(seed) % (uint64_t)n);
}

// Writes a random scale of this type as element i and returns it. Weights then are about 0.1.
static float put_scale(void *to, const char *dtype, size_t i, float about, uint64_t *seed)
{
    const float v = about * (0.5f + msgl__random_unit(seed));
    if (strcmp(dtype, "F8_E8M0") == 0 || strcmp(dtype, "U8") == 0) {
        int e;
        frexpf(v, &e);
        ((uint8_t *)to)[i] = (uint8_t)(126 + e);
        return ldexpf(1, e - 1);
    }
    if (strcmp(dtype, "F8_E4M3") == 0) {
        ((uint8_t *)to)[i] = msgl__f32_to_e4m3(v);
        return msgl__e4m3_to_f32(((uint8_t *)to)[i]);
    }
    msgl_dtype t;
    assert_int_equal(msgl__dtype_parse(dtype, &t), 0);
    msgl__store_f32(to, t, i, v);
    return msgl__load_f32(to, t, i);
}

static size_t scale_size(const char *dtype)
{
    return strcmp(dtype, "F32") == 0 ? 4 : strchr("8U", dtype[1]) != NULL ? 1 : 2;
}

// ---- numbers ----

static void pack_numbers(const packer *k, tensors_out *o, const char *module, int rows, int cols,
                         uint64_t *seed, float *values)
{
    const bool integers = k->bits == 8, bnb = strcmp(k->scale, ".SCB") == 0;
    const int gr = k->group_rows > 0 ? k->group_rows : rows, g = k->group > 0 ? k->group : cols;
    const int across = (cols + g - 1) / g, down = (rows + gr - 1) / gr, n = across * down;
    uint8_t *codes = room((size_t)(rows * cols)), *scales = room((size_t)n * 4);
    int8_t *zeros = room((size_t)n);
    float *scale = room((size_t)n * sizeof *scale);
    const float about = bnb ? 0.3f : integers ? 0.002f : 0.0005f;
    for (int i = 0; i < n; i++) {
        scale[i] = put_scale(scales, k->dtype, (size_t)i, about, seed);
        zeros[i] = (k->with & WITH_ZEROS) ? (int8_t)(draw(seed, 60) - 30) : 0;
    }
    for (int i = 0; i < rows * cols; i++) {
        do codes[i] = (uint8_t)draw(seed, 256);
        while ((codes[i] & 0x7f) == 0x7f);
        const int at = i / cols / gr * across + i % cols / g;
        if (bnb) {
            values[i] = (float)(int8_t)codes[i] * scale[at] * (1 / 127.0f);
        } else if (integers) {
            values[i] = (float)((int8_t)codes[i] - zeros[at]) * scale[at];
        } else {
            values[i] = msgl__e4m3_to_f32(codes[i]) * scale[at];
        }
    }
    const bool torchao = strcmp(k->scale, "._weight_scale") == 0;
    put_matrix(o, module, torchao ? "._weight_qdata" : ".weight", integers ? "I8" : "F8_E4M3", rows,
               cols, codes, (size_t)(rows * cols));
    if (torchao) note_class(o, module, integers ? "Int8Tensor" : "Float8Tensor", gr, g);
    const int64_t dims[2] = {down, across};
    const int32_t ndim = bnb || n == 1 ? 1 : 2;
    out_put(o, module, k->scale, k->dtype, n == 1 && (k->with & WITH_OTHER) ? 0 : ndim, dims,
            scales, (size_t)n * scale_size(k->dtype));
    if ((k->with & WITH_ZEROS))
        out_put(o, module, torchao ? "._weight_zero_point" : ".weight_zero_point", "I8", ndim, dims,
                zeros, (size_t)n);
    if ((k->with & WITH_OTHER)) out_put(o, module, ".input_scale", "F32", 0, NULL, "\0\0\200?", 4);
    if (bnb) out_put(o, module, ".weight_format", "U8", 0, NULL, "", 1);
    free(codes);
    free(scales);
    free(zeros);
    free(scale);
}

// ---- integers in words ----

// A code at `bit` of words that are `stride` apart.
static void put_code(uint32_t *words, int stride, int bit, int bits, uint32_t code)
{
    for (int i = 0; i < bits; i++) {
        words[(bit + i) / 32 * stride] |= (code >> i & 1u) << (bit + i) % 32;
    }
}

// Codes, zero points and scales of a matrix; groups of columns by `order`.
typedef struct grouped {
    int groups, *order, *zeros;
    uint8_t *codes;
    float *scale;
    void *scales; // [rows, groups], or by_group [groups, rows]
} grouped;

static grouped draw_grouped(const packer *k, int rows, int cols, bool by_group, int zero,
                            uint64_t *seed, float *values)
{
    const int group = k->group > 0 ? k->group : cols, n = cols / group;
    grouped g = {.groups = n,
                 .order = room((size_t)cols * sizeof *g.order),
                 .codes = room((size_t)(rows * cols)),
                 .zeros = room((size_t)(rows * n) * sizeof *g.zeros),
                 .scale = room((size_t)(rows * n) * sizeof *g.scale),
                 .scales = room((size_t)(rows * n) * 4)};
    for (int c = 0; c < cols; c++)
        g.order[c] = (k->with & WITH_ORDERED) ? draw(seed, n) : c / group;
    uint64_t same = (uint64_t)cols; // for all matrices, as they are of those that have one input
    for (int c = cols - 1; c > 0 && (k->with & WITH_SHUFFLED); c--) {
        const int other = draw(&same, c + 1), had = g.order[c];
        g.order[c] = g.order[other];
        g.order[other] = had;
    }
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < n; i++) {
            const size_t at = (size_t)(r * n + i);
            const size_t to = by_group ? (size_t)(i * rows + r) : at;
            g.scale[at] = put_scale(g.scales, k->dtype, to, 0.3f / (float)(1 << k->bits), seed);
            const int least = (k->with & WITH_THIRD) ? 1 : 0;
            g.zeros[at] =
                (k->with & WITH_ZEROS) ? least + draw(seed, (1 << k->bits) - least) : zero;
        }
        for (int c = 0; c < cols; c++) {
            const int at = r * n + g.order[c], i = r * cols + c;
            g.codes[i] = (uint8_t)draw(seed, 1 << k->bits);
            values[i] = (float)(g.codes[i] - g.zeros[at]) * g.scale[at];
        }
    }
    return g;
}

static void free_grouped(grouped *g)
{
    free(g->order);
    free(g->codes);
    free(g->zeros);
    free(g->scale);
    free(g->scales);
}

// compressed-tensors; other: whole codes in each word.
static void pack_rows(const packer *k, tensors_out *o, const char *module, int rows, int cols,
                      uint64_t *seed, float *values)
{
    grouped g = draw_grouped(k, rows, cols, false, 1 << (k->bits - 1), seed, values);
    const int per_word = 32 / k->bits, b = k->bits;
    const int words =
        (k->with & WITH_OTHER) ? (cols + per_word - 1) / per_word : (cols * b + 31) / 32;
    const int down =
        (k->with & WITH_OTHER) ? (rows + per_word - 1) / per_word : (rows * b + 31) / 32;
    uint32_t *packed = room((size_t)(rows * words) * 4);
    uint32_t *zeros = room((size_t)(down * g.groups) * 4);
    for (int i = 0; i < rows * cols; i++) {
        const int c = i % cols,
                  bit = (k->with & WITH_OTHER) ? c / per_word * 32 + c % per_word * b : c * b;
        put_code(packed + i / cols * words, 1, bit, b, g.codes[i]);
    }
    for (int i = 0; i < rows * g.groups; i++) {
        const int r = i / g.groups,
                  bit = (k->with & WITH_OTHER) ? r / per_word * 32 + r % per_word * b : r * b;
        put_code(zeros + i % g.groups, g.groups, bit, b, (uint32_t)g.zeros[i]);
    }
    put_matrix(o, module, ".weight_packed", "I32", rows, words, packed, (size_t)(rows * words) * 4);
    put_matrix(o, module, ".weight_scale", k->dtype, rows, g.groups, g.scales,
               (size_t)(rows * g.groups) * scale_size(k->dtype));
    const int64_t shape[2] = {rows, cols}, two = 2, n = cols;
    out_put(o, module, ".weight_shape", "I64", 1, &two, shape, sizeof shape);
    if ((k->with & WITH_ZEROS)) {
        put_matrix(o, module, ".weight_zero_point", "I32", down, g.groups, zeros,
                   (size_t)(down * g.groups) * 4);
    }
    if ((k->with & (WITH_ORDERED | WITH_SHUFFLED))) {
        out_put(o, module, ".weight_g_idx", "I32", 1, &n, g.order, (size_t)cols * 4);
    }
    free(packed);
    free(zeros);
    free_grouped(&g);
}

// other: of version 2; third: each zero point is stored less 1, and none is 0.
static void pack_gptq(const packer *k, tensors_out *o, const char *module, int rows, int cols,
                      uint64_t *seed, float *values)
{
    static const uint32_t ones[9] = {[2] = 0x55555555, [4] = 0x11111111, [8] = 0x01010101};
    grouped g = draw_grouped(k, rows, cols, true, 1 << (k->bits - 1), seed, values);
    const int b = k->bits, down = cols * b / 32, across = rows * b / 32;
    uint32_t *packed = room((size_t)(down * rows) * 4);
    uint32_t *zeros = room((size_t)(g.groups * across) * 4);
    for (int i = 0; i < rows * cols; i++) {
        put_code(packed + i / cols, rows, i % cols * b, b, g.codes[i]);
    }
    for (int i = 0; i < rows * g.groups; i++) {
        const int less = (k->with & WITH_THIRD) ? 1 : 0;
        put_code(zeros + i % g.groups * across, 1, i / g.groups * b, b,
                 (uint32_t)(g.zeros[i] - less));
    }
    const bool plain = (k->with & (WITH_OTHER | WITH_THIRD)) != 0;
    for (int i = 0; i < g.groups * across && !plain; i++) zeros[i] -= ones[b];
    const int64_t n = cols;
    put_matrix(o, module, ".qweight", "I32", down, rows, packed, (size_t)(down * rows) * 4);
    put_matrix(o, module, ".qzeros", "I32", g.groups, across, zeros,
               (size_t)(g.groups * across) * 4);
    put_matrix(o, module, ".scales", k->dtype, g.groups, rows, g.scales,
               (size_t)(rows * g.groups) * scale_size(k->dtype));
    out_put(o, module, ".g_idx", "I32", 1, &n, g.order, (size_t)cols * 4);
    free(packed);
    free(zeros);
    free_grouped(&g);
}

// torchao's Int4Tensor; a zero point is what number 0 stands for.
static void pack_int4(const packer *k, tensors_out *o, const char *module, int rows, int cols,
                      uint64_t *seed, float *values)
{
    const int groups = cols / k->group, n = rows * groups;
    uint8_t *codes = room((size_t)(rows * cols / 2));
    void *scales = room((size_t)n * 4), *zeros = room((size_t)n * 4);
    for (int i = 0; i < n; i++) { // [groups, rows]
        const int r = i % rows, first = i / rows * k->group;
        const float scale = put_scale(scales, k->dtype, (size_t)i, 0.02f, seed);
        const float zero = put_scale(zeros, k->dtype, (size_t)i, 0.01f, seed);
        const float least = zero - 8 * scale;
        for (int c = first; c < first + k->group; c++) {
            const int number = draw(seed, 16) - 8, at = r * cols + c;
            codes[at / 2] |= (uint8_t)((number & 15) << at % 2 * 4);
            values[at] = (float)(number + 8) * scale + least;
        }
    }
    put_matrix(o, module, "._weight_qdata", "I8", rows, cols / 2, codes, (size_t)(rows * cols / 2));
    put_matrix(o, module, "._weight_scale", k->dtype, groups, rows, scales,
               (size_t)n * scale_size(k->dtype));
    put_matrix(o, module, "._weight_zero_point", k->dtype, groups, rows, zeros,
               (size_t)n * scale_size(k->dtype));
    note_class(o, module, "Int4Tensor", 1, k->group);
    free(codes);
    free(scales);
    free(zeros);
}

// MLX: scales of both signs.
static void pack_affine(const packer *k, tensors_out *o, const char *module, int rows, int cols,
                        uint64_t *seed, float *values)
{
    const int b = k->bits, words = cols * b / 32, n = cols / k->group;
    uint32_t *packed = room((size_t)(rows * words) * 4);
    uint16_t *scales = room((size_t)(rows * n) * 2), *biases = room((size_t)(rows * n) * 2);
    for (int i = 0; i < rows * n; i++) {
        const float sign = draw(seed, 2) != 0 ? -1 : 1;
        const float scale =
            sign * put_scale(scales, k->dtype, (size_t)i, 0.3f / (float)(1 << b), seed);
        const float bias = -sign * put_scale(biases, k->dtype, (size_t)i, 0.15f, seed);
        scales[i] |= sign < 0 ? 0x8000 : 0;
        biases[i] |= sign > 0 ? 0x8000 : 0;
        for (int c = i % n * k->group; c < (i % n + 1) * k->group; c++) {
            const int code = draw(seed, 1 << b);
            put_code(packed + i / n * words, 1, c * b, b, (uint32_t)code);
            values[i / n * cols + c] = (float)code * scale + bias;
        }
    }
    put_matrix(o, module, ".weight", "U32", rows, words, packed, (size_t)(rows * words) * 4);
    put_matrix(o, module, ".scales", k->dtype, rows, n, scales, (size_t)(rows * n) * 2);
    put_matrix(o, module, ".biases", k->dtype, rows, n, biases, (size_t)(rows * n) * 2);
    free(packed);
    free(scales);
    free(biases);
}

// HQQ; ordered: groups of elements that are apart, not neighbours. Codes are cut into bands of
// rows.
static void pack_bands(const packer *k, tensors_out *o, const char *module, int rows, int cols,
                       uint64_t *seed, float *values)
{
    static const char *const texts[9] = {
        [1] = "1bit_u8", [2] = "2bit_u8", [3] = "3bit_32", [4] = "4bit_u8", [8] = "8bit_u8"};
    const bool apart = (k->with & WITH_APART) != 0;
    const int all = rows * cols, b = k->bits, num = b == 3 ? 10 : 8 / b;
    const int n = all / k->group, across = apart ? n : k->group, down = all / across;
    const int steps = (down + num - 1) / num;
    const size_t size = b == 3 ? 4 : 1;
    uint8_t *packed = room((size_t)(steps * across) * size);
    void *scales = room((size_t)n * 4), *zeros = room((size_t)n * 4);
    float *scale = room((size_t)n * sizeof *scale), *zero = room((size_t)n * sizeof *zero);
    for (int i = 0; i < n; i++) {
        scale[i] = put_scale(scales, k->dtype, (size_t)i, 0.2f / (float)(1 << b), seed);
        zero[i] = put_scale(zeros, k->dtype, (size_t)i, 0.5f * (float)(1 << b), seed);
    }
    for (int i = 0; i < all; i++) {
        const int j = i / across, c = i % across, g = apart ? c : j;
        const int code = draw(seed, 1 << b), at = j % steps * across + c;
        const uint32_t bits = (uint32_t)code << b * (num - 1 - j / steps);
        for (size_t byte = 0; byte < size; byte++) {
            packed[(size_t)at * size + byte] |= (uint8_t)(bits >> 8 * byte);
        }
        values[i] = ((float)code - zero[g]) * scale[g];
    }
    put_matrix(o, module, ".W_q", b == 3 ? "I32" : "U8", steps, across, packed,
               (size_t)(steps * across) * size);
    put_matrix(o, module, ".scale", k->dtype, apart ? 1 : n, apart ? n : 1, scales,
               (size_t)n * scale_size(k->dtype));
    put_matrix(o, module, ".zero", k->dtype, apart ? 1 : n, apart ? n : 1, zeros,
               (size_t)n * scale_size(k->dtype));
    const int64_t shape[2] = {rows, cols}, two = 2, seven = 7;
    const int32_t axis = apart ? 0 : 1;
    out_put(o, module, ".shape", "I64", 1, &two, shape, sizeof shape);
    out_put(o, module, ".axis", "I32", 0, NULL, &axis, sizeof axis);
    out_put(o, module, ".packing", "U8", 1, &seven, texts[b], 7);
    out_put(o, module, ".nbits", "I32", 0, NULL, &k->bits, sizeof k->bits);
    free(packed);
    free(scales);
    free(zeros);
    free(scale);
    free(zero);
}

static void pack_awq(const packer *k, tensors_out *o, const char *module, int rows, int cols,
                     uint64_t *seed, float *values)
{
    // Which column is in a word's nibble 0, 1, ... 7.
    static const int columns[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    grouped g = draw_grouped(k, rows, cols, true, 8, seed, values);
    uint32_t *packed = room((size_t)(cols * rows / 2));
    uint32_t *zeros = room((size_t)(g.groups * rows / 2));
    for (int r = 0; r < rows; r += 8) {
        for (int j = 0; j < 8; j++) {
            const int row = r + columns[j];
            for (int c = 0; c < cols; c++) {
                const uint32_t code = g.codes[row * cols + c];
                packed[(c * rows + r) / 8] |= code << 4 * j;
            }
            for (int i = 0; i < g.groups; i++) {
                zeros[(i * rows + r) / 8] |= (uint32_t)g.zeros[row * g.groups + i] << 4 * j;
            }
        }
    }
    put_matrix(o, module, ".qweight", "I32", cols, rows / 8, packed, (size_t)(cols * rows / 2));
    put_matrix(o, module, ".qzeros", "I32", g.groups, rows / 8, zeros,
               (size_t)(g.groups * rows / 2));
    put_matrix(o, module, ".scales", k->dtype, g.groups, rows, g.scales,
               (size_t)(rows * g.groups) * scale_size(k->dtype));
    free(packed);
    free(zeros);
    free_grouped(&g);
}

// gemv: zero points of 8 groups in a word, padded to two words here.
static void pack_awq_rows(const packer *k, tensors_out *o, const char *module, int rows, int cols,
                          uint64_t *seed, float *values)
{
    grouped g = draw_grouped(k, rows, cols, false, 8, seed, values);
    const int words = 2;
    uint32_t *packed = room((size_t)(rows * cols / 2)), *zeros = room((size_t)(rows * words) * 4);
    uint16_t *scales = room((size_t)(rows * words) * 16);
    for (int i = 0; i < rows * cols; i++) {
        packed[i / 8] |= (uint32_t)g.codes[i] << 4 * (i % 8);
    }
    for (int i = 0; i < rows * g.groups; i++) {
        const int r = i / g.groups, at = i % g.groups;
        zeros[r * words + at / 8] |= (uint32_t)g.zeros[i] << 4 * (at % 8);
        scales[r * words * 8 + at] = ((const uint16_t *)g.scales)[i];
    }
    put_matrix(o, module, ".qweight", "I32", rows, cols / 8, packed, (size_t)(rows * cols / 2));
    put_matrix(o, module, ".qzeros", "I32", rows, words, zeros, (size_t)(rows * words) * 4);
    put_matrix(o, module, ".scales", "F16", rows, words * 8, scales, (size_t)(rows * words) * 16);
    free(packed);
    free(zeros);
    free(scales);
    free_grouped(&g);
}

// ---- four bits that are no integers ----

static const float E2M1[16] = {0,     0.5f,  1,     1.5f,  2,     3,     4,     6,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// NVFP4, or with a scale's type U8 MXFP4; other: of ModelOpt.
static void pack_fp4(const packer *k, tensors_out *o, const char *module, int rows, int cols,
                     uint64_t *seed, float *values)
{
    const bool mx = strcmp(k->dtype, "U8") == 0;
    const int n = rows * cols / k->group;
    const float global = (k->with & WITH_OTHER) ? 0.03f : 29.0f;
    uint8_t *codes = room((size_t)(rows * cols / 2)), *scales = room((size_t)n);
    for (int i = 0; i < n; i++) {
        float scale = put_scale(scales, k->dtype, (size_t)i, mx ? 0.03f : 1, seed);
        if (!mx) scale = (k->with & WITH_OTHER) ? scale * global : scale / global;
        for (int j = i * k->group; j < (i + 1) * k->group; j++) {
            const int code = draw(seed, 16);
            codes[j / 2] |= (uint8_t)(code << (j % 2 * 4));
            values[j] = E2M1[code] * scale;
        }
    }
    put_matrix(o, module, (k->with & WITH_OTHER) ? ".weight" : ".weight_packed", "U8", rows,
               cols / 2, codes, (size_t)(rows * cols / 2));
    put_matrix(o, module, ".weight_scale", k->dtype, rows, cols / k->group, scales, (size_t)n);
    const int64_t one = 1;
    if (!mx) {
        out_put(o, module, (k->with & WITH_OTHER) ? ".weight_scale_2" : ".weight_global_scale",
                "F32", (k->with & WITH_OTHER) ? 0 : 1, &one, &global, 4);
        out_put(o, module, (k->with & WITH_OTHER) ? ".input_scale" : ".input_global_scale", "F32",
                (k->with & WITH_OTHER) ? 0 : 1, &one, &global, 4);
    }
    free(codes);
    free(scales);
}

// bitsandbytes; other: scales have scales.
static void pack_codebook(const packer *k, tensors_out *o, const char *module, int rows, int cols,
                          uint64_t *seed, float *values)
{
    const int all = rows * cols, n = (all + k->group - 1) / k->group, outer = (n + 255) / 256;
    const float plus = 0.0625f;
    float book[16], inner[256], *nested = room((size_t)outer * 4), *absmax = room((size_t)n * 4);
    uint8_t *codes = room((size_t)(all / 2)), *scales = room((size_t)n);
    for (int i = 0; i < 16; i++) book[i] = msgl__random_unit(seed) * 2 - 1;
    for (int i = 0; i < 256; i++) inner[i] = msgl__random_unit(seed);
    for (int i = 0; i < outer; i++) nested[i] = 0.1f * msgl__random_unit(seed);
    for (int i = 0; i < n; i++) {
        scales[i] = (uint8_t)draw(seed, 256);
        absmax[i] = inner[scales[i]] * nested[i / 256];
        absmax[i] += plus;
    }
    for (int i = 0; i < all; i++) {
        const int code = draw(seed, 16);
        codes[i / 2] |= (uint8_t)(code << (i % 2 == 0 ? 4 : 0));
        values[i] = book[code] * absmax[i / k->group];
    }
    char state[400];
    snprintf(
        state, sizeof state,
        "{\"quant_type\": \"nf4\", \"blocksize\": %d, \"dtype\": \"bfloat16\", \"shape\": [%d, "
        "%d], \"nested_blocksize\": 256, \"nested_dtype\": \"float32\", \"nested_offset\": %g}",
        k->group, rows, cols, (double)plus);
    const int64_t sixteen = 16, many = 256, dims[2] = {n, outer}, text = (int64_t)strlen(state);
    put_matrix(o, module, ".weight", "U8", all / 2, 1, codes, (size_t)(all / 2));
    out_put(o, module, ".weight.quant_map", "F32", 1, &sixteen, book, sizeof book);
    out_put(o, module, k->scale, "U8", 1, &text, state, (size_t)text);
    if ((k->with & WITH_OTHER)) {
        out_put(o, module, ".weight.absmax", "U8", 1, dims, scales, (size_t)n);
        out_put(o, module, ".weight.nested_absmax", "F32", 1, dims + 1, nested, (size_t)outer * 4);
        out_put(o, module, ".weight.nested_quant_map", "F32", 1, &many, inner, sizeof inner);
    } else {
        out_put(o, module, ".weight.absmax", "F32", 1, dims, absmax, (size_t)n * 4);
    }
    free(codes);
    free(scales);
    free(nested);
    free(absmax);
}

// ---- the list ----

#define FP8 "{\"quant_method\": \"fp8\", \"activation_scheme\": \"static\"}"
#define FP8_IN(size) "{\"quant_method\": \"fp8\", \"weight_block_size\": " size "}"
#define AWQ(version, group)                                                                        \
    "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": " group ", \"version\": \"" version  \
    "\"}"
#define GPTQ(bits, group, more)                                                                    \
    "{\"quant_method\": \"gptq\", \"bits\": " bits ", \"group_size\": " group more "}"
#define PACKED_OF(bits) "{\"weights\": {\"num_bits\": " bits ", \"type\": \"int\"}}"
#define PACKED(version, bits)                                                                      \
    "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"version\": "     \
    "\"" version                                                                                   \
    "\", \"config_groups\": {\"group_0\": " PACKED_OF(bits) ", \"group_1\": " PACKED_OF("4") "}}"
#define MLX(group, bits) "{\"group_size\": " group ", \"bits\": " bits "}"
#define BNB "{\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true}"
#define AUTO(format, bits, group, more)                                                            \
    "{\"quant_method\": \"auto-round\", \"packing_format\": \"" format "\", \"bits\": " bits       \
    ", \"group_size\": " group more "}"
#define DYNAMIC ", \"dynamic\": {\"+:.*\": {\"bits\": 8}, \"-:.*k_proj\": {}}"
#define EXTRA ", \"extra_config\": {\".*_proj\": {\"bits\": 5, \"group_size\": 32}}"
#define HQQ "{\"quant_method\": \"hqq\", \"skip_modules\": [\"lm_head\"]}"
#define TORCHAO "{\"quant_method\": \"torchao\", \"quant_type\": {}}"
#define V2 ", \"checkpoint_format\": \"gptq_v2\""
#define ANY ", \"sym\": false"
#define ORDERED ", \"desc_act\": true"

const packer packers[] = {
    {"FP8, a scale for all", FP8, pack_numbers, 0, 0, 0, ".weight_scale", "F32", WITH_OTHER},
    {"FP8, one for each row", NULL, pack_numbers, 0, 1, 0, ".weight_scale", "BF16", 0},
    {"FP8, of 128 x 128", NULL, pack_numbers, 0, 128, 128, ".weight_scale_inv", "F32", 0},
    {"FP8, of 64 x 32", FP8_IN("[64, 32]"), pack_numbers, 0, 64, 32, ".weight_scale_inv", "F8_E8M0",
     0},
    {"FP8, of 96 x 96", FP8_IN("[96, 96]"), pack_numbers, 0, 96, 96, ".weight_scale_inv", "F16", 0},
    {"MXFP8", NULL, pack_numbers, 0, 1, 32, ".weight_scale", "U8", 0},
    {"INT8, one for each row", NULL, pack_numbers, 8, 1, 0, ".weight_scale", "BF16", 0},
    {"INT8, groups, zero points", NULL, pack_numbers, 8, 1, 64, ".weight_scale", "F32", WITH_ZEROS},
    {"INT8, a scale for all", NULL, pack_numbers, 8, 0, 0, ".weight_scale", "F32", 0},
    {"INT8 of bitsandbytes", BNB, pack_numbers, 8, 1, 0, ".SCB", "F32", 0},
    {"AWQ 32", AWQ("gemm", "32"), pack_awq, 4, 1, 32, NULL, "F16", WITH_ZEROS},
    {"AWQ 128", AWQ("GEMM", "128"), pack_awq, 4, 1, 128, NULL, "BF16", WITH_ZEROS},
    {"AWQ rows", AWQ("gemm", "-1"), pack_awq, 4, 1, 0, NULL, "F16", WITH_ZEROS},
    {"AWQ gemv 64", AWQ("gemv", "64"), pack_awq_rows, 4, 1, 64, NULL, "F16", WITH_ZEROS},
    {"AWQ gemv 128", AWQ("gemv", "128"), pack_awq_rows, 4, 1, 128, NULL, "F16", WITH_ZEROS},
    {"GPTQ 2", GPTQ("2", "64", ANY), pack_gptq, 2, 1, 64, NULL, "F16", WITH_ZEROS},
    {"GPTQ 4", GPTQ("4", "128", ANY), pack_gptq, 4, 1, 128, NULL, "F16", WITH_ZEROS},
    {"GPTQ 4, symmetric", GPTQ("4", "32", ""), pack_gptq, 4, 1, 32, NULL, "F16", 0},
    {"GPTQ 8", GPTQ("8", "-1", ANY), pack_gptq, 8, 1, 0, NULL, "F16", WITH_ZEROS},
    {"GPTQ 3", GPTQ("3", "128", ""), pack_gptq, 3, 1, 128, NULL, "F16", 0},
    {"GPTQ 3 v2", GPTQ("3", "128", ANY V2), pack_gptq, 3, 1, 128, NULL, "F16",
     WITH_ZEROS | WITH_OTHER},
    {"GPTQ 4 v2, by order", GPTQ("4", "32", ANY V2 ORDERED), pack_gptq, 4, 1, 32, NULL, "BF16",
     WITH_ZEROS | WITH_ORDERED | WITH_OTHER},
    {"GPTQ 4, by order", GPTQ("4", "64", ANY ORDERED), pack_gptq, 4, 1, 64, NULL, "F16",
     WITH_ZEROS | WITH_ORDERED},
    {"GPTQ 4, shuffled", GPTQ("4", "128", ORDERED), pack_gptq, 4, 1, 128, NULL, "F16",
     WITH_SHUFFLED},
    {"GPTQ 4, in order", GPTQ("4", "64", ANY ORDERED), pack_gptq, 4, 1, 64, NULL, "F16",
     WITH_ZEROS},
    {"GPTQ 8 among 4", GPTQ("4", "128", DYNAMIC), pack_gptq, 8, 1, 64, NULL, "F16", WITH_ZEROS},
    {"AutoRound 4", AUTO("auto_round:auto_gptq", "4", "128", ""), pack_gptq, 4, 1, 128, NULL, "F16",
     WITH_THIRD},
    {"AutoRound 3, zero points", AUTO("auto_round:auto_gptq", "3", "64", ANY), pack_gptq, 3, 1, 64,
     NULL, "F16", WITH_ZEROS | WITH_THIRD},
    {"AutoRound 7, zero points", AUTO("auto_round:gptq", "7", "32", ANY), pack_gptq, 7, 1, 32, NULL,
     "F16", WITH_ZEROS | WITH_THIRD},
    {"AutoRound 8, zero points", AUTO("auto_round:auto_gptq", "8", "-1", ANY), pack_gptq, 8, 1, 0,
     NULL, "F16", WITH_ZEROS | WITH_THIRD},
    {"AutoRound 5 among 2", AUTO("auto_round", "2", "128", EXTRA), pack_gptq, 5, 1, 32, NULL, "F16",
     WITH_ZEROS | WITH_OTHER},
    {"AutoRound AWQ", AUTO("auto_round:auto_awq", "4", "64", ANY), pack_awq, 4, 1, 64, NULL, "F16",
     WITH_ZEROS},
    {"AutoRound MXFP4",
     "{\"quant_method\": \"auto-round\", \"packing_format\": \"auto_round:llm_compressor\", "
     "\"data_type\": \"mx_fp\", \"bits\": 4}",
     pack_fp4, 4, 1, 32, NULL, "U8", 0},
    {"packed 4", PACKED("0.9.1", "4"), pack_rows, 4, 1, 128, NULL, "BF16", 0},
    {"packed 4, zero points", PACKED("0.9.1", "8"), pack_rows, 4, 1, 32, NULL, "F16", WITH_ZEROS},
    {"packed 8, by order", PACKED("0.20.0", "8"), pack_rows, 8, 1, 64, NULL, "F32",
     WITH_ZEROS | WITH_ORDERED},
    {"packed 4, shuffled", PACKED("0.20.0", "4"), pack_rows, 4, 1, 32, NULL, "BF16",
     WITH_ZEROS | WITH_SHUFFLED},
    {"packed 3", PACKED("0.18.0", "3"), pack_rows, 3, 1, 0, NULL, "BF16", WITH_ZEROS},
    {"packed 3, whole codes", PACKED("0.12.2", "3"), pack_rows, 3, 1, 64, NULL, "BF16",
     WITH_ZEROS | WITH_OTHER},
    {"packed 5", PACKED("0.20.0", "5"), pack_rows, 5, 1, 64, NULL, "BF16", WITH_ZEROS},
    {"packed 6, whole codes", PACKED("0.17.1", "6"), pack_rows, 6, 1, 64, NULL, "BF16", WITH_OTHER},
    {"packed 7", PACKED("1.0", "7"), pack_rows, 7, 1, 64, NULL, "BF16", 0},
    {"NVFP4", NULL, pack_fp4, 4, 1, 16, NULL, "F8_E4M3", 0},
    {"MXFP8 of ModelOpt", "{\"quant_method\": \"modelopt\", \"quant_algo\": \"mxfp8\"}",
     pack_numbers, 0, 1, 32, ".weight_scale", "U8", 0},
    {"NVFP4 of ModelOpt", "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}", pack_fp4,
     4, 1, 16, NULL, "F8_E4M3", WITH_OTHER},
    {"MXFP4", NULL, pack_fp4, 4, 1, 32, NULL, "U8", 0},
    {"NF4", BNB, pack_codebook, 4, 0, 64, ".weight.quant_state.bitsandbytes__nf4", NULL, 0},
    {"FP4, nested", BNB, pack_codebook, 4, 0, 4096, ".weight.quant_state.bitsandbytes__fp4", NULL,
     WITH_OTHER},
    {"MLX 3", MLX("32", "3"), pack_affine, 3, 1, 32, NULL, "F16", 0},
    {"MLX 4", MLX("64", "4"), pack_affine, 4, 1, 64, NULL, "BF16", 0},
    {"MLX 6, said to be 4", MLX("128", "4"), pack_affine, 6, 1, 128, NULL, "BF16", 0},
    {"MLX 8", MLX("64", "8"), pack_affine, 8, 1, 64, NULL, "F16", 0},
    {"torchao INT4", TORCHAO, pack_int4, 4, 1, 128, NULL, "BF16", 0},
    {"torchao INT4, groups of 32", TORCHAO, pack_int4, 4, 1, 32, NULL, "F32", 0},
    {"torchao INT8", TORCHAO, pack_numbers, 8, 1, 0, "._weight_scale", "F32", 0},
    {"torchao INT8, zero points", TORCHAO, pack_numbers, 8, 1, 32, "._weight_scale", "BF16",
     WITH_ZEROS},
    {"torchao FP8", TORCHAO, pack_numbers, 0, 1, 0, "._weight_scale", "F32", 0},
    {"HQQ 4", HQQ, pack_bands, 4, 1, 64, NULL, "BF16", 0},
    {"HQQ 4, groups of 128", HQQ, pack_bands, 4, 1, 128, NULL, "F16", 0},
    {"HQQ 4, rows", HQQ, pack_bands, 4, 1, 256, NULL, "F32", 0},
    {"HQQ 4, axis 0", HQQ, pack_bands, 4, 1, 64, NULL, "BF16", WITH_APART},
    {"HQQ 8", HQQ, pack_bands, 8, 1, 64, NULL, "BF16", 0},
    {"HQQ 3", NULL, pack_bands, 3, 1, 32, NULL, "F16", 0},
    {"HQQ 2", HQQ, pack_bands, 2, 1, 32, NULL, "BF16", 0},
    {"HQQ 1", HQQ, pack_bands, 1, 1, 64, NULL, "BF16", 0},
    {0},
};
