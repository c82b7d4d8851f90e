// SPDX-License-Identifier: Apache-2.0
#include "models/source.h"

#include <math.h>
#include <string.h>

#include "core/round.h"
#include "quant/blocks.h"

enum { TASK_ROWS = 16 };

// 2^(b - 127), of 255 NaN (OCP Microscaling Formats v1.0, 5.4.1).
static float e8m0_to_f32(uint8_t b)
{
    return b == 255 ? NAN : ldexpf(1, b - 127);
}

static size_t tensor_cols(const msgl_source *s)
{
    return s->all_cols > 0 ? s->all_cols : s->cols;
}

static bool expands(const msgl_tensor *t)
{
    return t->blocks != NULL || t->scales != NULL;
}

const void *msgl__source_direct(const msgl_source *s, size_t skip)
{
    if (expands(s->t) || s->pairs > 0 || s->transposed) return NULL;
    const size_t size = msgl__dtype_size(s->t->dtype);
    const uint8_t *rows = s->t->data + ((s->first + skip) * tensor_cols(s) + s->first_col) * size;
    // Formats align little, but everyone writes aligned files; the others are copied.
    return (uintptr_t)rows % size == 0 ? rows : NULL;
}

msgl_dtype msgl__source_dtype(const msgl_source *s)
{
    return expands(s->t) ? s->want : s->t->dtype;
}

size_t msgl__source_row_bytes(const msgl_source *s)
{
    return s->cols * msgl__dtype_size(msgl__source_dtype(s));
}

// Where the model's row (or element) i is in the file, behind the first.
static size_t stored_behind(const msgl_source *s, size_t i)
{
    const size_t pairs = (size_t)s->pairs, unpaired = (size_t)s->unpaired;
    const size_t in_head = pairs > 0 ? i % (size_t)s->head : 0;
    const size_t j = in_head - unpaired;
    if (in_head < unpaired || j >= 2 * pairs) return i;
    return i - j + (j < pairs ? 2 * j : 2 * (j - pairs) + 1);
}

static size_t stored_at(const msgl_source *s, size_t i)
{
    return s->first + stored_behind(s, i);
}

// Bytes of the first n elements of a tensor whose rows are whole blocks.
static size_t bytes_of(const msgl_tensor *t, size_t n)
{
    if (t->blocks == NULL) return n * (t->scales != NULL ? 1 : msgl__dtype_size(t->dtype));
    const size_t elements = (size_t)t->blocks->elements;
    return (n + elements - 1) / elements * (size_t)t->blocks->bytes;
}

void msgl__source_span(const msgl_source *s, size_t skip, size_t rows, size_t *from, size_t *bytes)
{
    size_t cols = s->cols == 0 ? 1 : tensor_cols(s), begin = skip, end = skip + rows;
    if (s->transposed) {
        cols = (size_t)s->t->dims[s->t->ndim - 1];
        begin = s->first_col;
        end = begin + s->cols;
    } else if (s->pairs > 0) { // rows change their places within a head
        const size_t head = (size_t)s->head;
        begin = begin / head * head;
        end = (end + head - 1) / head * head;
    }
    begin = (s->first + begin) * cols;
    end = (s->first + end) * cols;
    const size_t unit = s->t->blocks != NULL ? (size_t)s->t->blocks->elements : 1;
    *from = bytes_of(s->t, begin / unit * unit);
    *bytes = bytes_of(s->t, end) - *from;
}

typedef struct filling {
    const msgl_source *s;
    int32_t first, rows;
    char *out;
    float e4m3[256]; // the codes' values, where there are scales
} filling;

// Elements of a row that are expanded at a time: a block, or what shares a scale.
static size_t unit_of(const msgl_tensor *t)
{
    return t->blocks != NULL ? (size_t)t->blocks->elements : MSGL_SCALED;
}

// Those from `at` on of the tensor's row `row`, which has `cols` of them.
static void expand_unit(const filling *f, size_t row, size_t cols, size_t at, float *values)
{
    const msgl_tensor *t = f->s->t;
    const size_t n = unit_of(t), units = (cols + n - 1) / n;
    float scale;
    if (t->blocks != NULL) {
        const size_t block = row * units + at / n;
        t->blocks->expand(t->data + block * (size_t)t->blocks->bytes, values);
        if (t->scales == NULL) return;
        scale = e8m0_to_f32(t->scales->data[block]);
        for (size_t i = 0; i < n; i++) values[i] *= scale;
        return;
    }
    memcpy(&scale, t->scales->data + (row / n * units + at / n) * sizeof scale, sizeof scale);
    const uint8_t *codes = t->data + row * cols;
    for (size_t i = at; i < at + n && i < cols; i++) values[i - at] = f->e4m3[codes[i]] * scale;
}

static void expand_row(const filling *f, size_t row, char *out)
{
    const msgl_source *s = f->s;
    const size_t n = unit_of(s->t), begin = s->first_col, end = begin + s->cols;
    for (size_t at = begin / n * n; at < end; at += n) {
        float values[MSGL_MAX_BLOCK];
        expand_unit(f, row, tensor_cols(s), at, values);
        for (size_t i = at < begin ? begin - at : 0; i < n && at + i < end; i++) {
            msgl__store_f32(out, s->want, at + i - begin, values[i]);
        }
    }
}

// Elements [first, first + rows) of the tensor's row that is column `col` of the model's rows.
static void scatter(const filling *f, size_t col)
{
    const msgl_source *s = f->s;
    const bool expanded = expands(s->t);
    const size_t n = expanded ? unit_of(s->t) : 1, end = (size_t)(f->first + f->rows);
    const size_t size = msgl__dtype_size(msgl__source_dtype(s));
    const size_t row = s->first + s->first_col + col, cols = (size_t)s->t->dims[s->t->ndim - 1];
    for (size_t at = (size_t)f->first / n * n; at < end; at += n) {
        float values[MSGL_MAX_BLOCK];
        if (expanded) expand_unit(f, row, cols, at, values);
        for (size_t i = 0; i < n && at + i < end; i++) {
            if (at + i < (size_t)f->first) continue;
            char *out = f->out + ((at + i - (size_t)f->first) * s->cols + col) * size;
            if (expanded) {
                msgl__store_f32(out, s->want, 0, values[i]);
            } else {
                memcpy(out, s->t->data + (row * cols + at) * size, size);
            }
        }
    }
}

// The same of rows in pairs. Of what is expanded a unit is kept as long as elements are in it: with
// heads of 64 and blocks of 32 elements 0, 2, ... 62 need two, and 1, 3, ... 63 the same two again.
static void scatter_pairs(const filling *f, size_t col)
{
    const msgl_source *s = f->s;
    const bool expanded = expands(s->t);
    const size_t size = msgl__dtype_size(msgl__source_dtype(s)), n = unit_of(s->t);
    const size_t row = s->first + s->first_col + col, cols = (size_t)s->t->dims[s->t->ndim - 1];
    float values[MSGL_MAX_BLOCK];
    size_t held = SIZE_MAX; // the unit in values
    for (int32_t r = 0; r < f->rows; r++) {
        const size_t at = stored_behind(s, (size_t)(f->first + r));
        char *out = f->out + ((size_t)r * s->cols + col) * size;
        if (!expanded) {
            memcpy(out, s->t->data + (row * cols + at) * size, size);
            continue;
        }
        if (at / n != held) {
            held = at / n;
            expand_unit(f, row, cols, held * n, values);
        }
        msgl__store_f32(out, s->want, 0, values[at % n]);
    }
}

static void transpose_task(void *arg, int task, int worker)
{
    (void)worker;
    const filling *f = arg;
    if (f->s->pairs > 0) {
        scatter_pairs(f, (size_t)task);
    } else {
        scatter(f, (size_t)task);
    }
}

static void fill_task(void *arg, int task, int worker)
{
    (void)worker;
    const filling *f = arg;
    const msgl_source *s = f->s;
    const size_t bytes = msgl__source_row_bytes(s), element = msgl__dtype_size(s->t->dtype);
    const int32_t begin = task * TASK_ROWS;
    for (int32_t r = begin; r < f->rows && r < begin + TASK_ROWS; r++) {
        const size_t row = stored_at(s, (size_t)f->first + (size_t)r);
        char *out = f->out + (size_t)r * bytes;
        if (expands(s->t)) {
            expand_row(f, row, out);
        } else {
            memcpy(out, s->t->data + (row * tensor_cols(s) + s->first_col) * element, bytes);
        }
    }
}

void msgl__source_rows(msgl_pool *pool, const msgl_source *s, int32_t first, int32_t rows,
                       void *out)
{
    filling f = {.s = s, .first = first, .rows = rows, .out = out};
    for (int i = 0; i < 256 && s->t->scales != NULL && s->t->blocks == NULL; i++) {
        f.e4m3[i] = msgl__e4m3_to_f32((uint8_t)i);
    }
    if (s->transposed) {
        msgl__pool_run(pool, (int)s->cols, transpose_task, &f);
    } else {
        msgl__pool_run(pool, msgl__ceil_div(rows, TASK_ROWS), fill_task, &f);
    }
}

float msgl__source_element(const msgl_source *s, size_t i)
{
    const msgl_tensor *t = s->t;
    const size_t at = stored_at(s, i);
    if (t->blocks != NULL) {
        const size_t n = (size_t)t->blocks->elements;
        float values[MSGL_MAX_BLOCK];
        t->blocks->expand(t->data + at / n * (size_t)t->blocks->bytes, values);
        return values[at % n];
    }
    const size_t size = msgl__dtype_size(t->dtype);
    uint32_t aligned = 0;
    memcpy(&aligned, t->data + at * size, size);
    return msgl__load_f32(&aligned, t->dtype, 0);
}
