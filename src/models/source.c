// SPDX-License-Identifier: Apache-2.0
#include "models/source.h"

#include <string.h>

#include "core/round.h"
#include "quant/stored.h"

enum {
    TASK_ROWS = 16,
    CHUNK = 256, // columns that are expanded at a time
    PART = 32,   // columns
};

static size_t tensor_cols(const msgl_source *s)
{
    return s->all_cols > 0 ? s->all_cols : s->cols;
}

msgl_packed msgl__packed_of(const msgl_tensor *t)
{
    msgl_packed p = {.how = &t->packing, .data = t->data, .rows = 1, .cols = 1};
    for (int32_t i = 0; i + 1 < t->ndim; i++) p.rows *= (size_t)t->dims[i];
    if (t->ndim > 0) p.cols = (size_t)t->dims[t->ndim - 1];
    return p;
}

static bool packed(const msgl_tensor *t)
{
    return t->packing.form != NULL;
}

static bool expands(const msgl_source *s)
{
    return packed(s->t) && s->blocks == NULL;
}

bool msgl__source_splits(const msgl_source *s)
{
    return s->blocks != NULL && s->blocks != s->t->packing.blocks;
}

// Columns of a row as msgl__source_rows writes it.
static size_t places_of(const msgl_source *s)
{
    return s->order != NULL ? (size_t)s->order->num : s->cols;
}

// Of columns as the file has them, which are not expanded.
static size_t bytes_of(const msgl_source *s, size_t cols)
{
    const msgl_blocks *b = s->blocks;
    return b != NULL ? cols / (size_t)b->elements * (size_t)b->bytes
                     : cols * msgl__dtype_size(s->t->dtype);
}

size_t msgl__source_tensor_row_bytes(const msgl_source *s)
{
    return bytes_of(s, tensor_cols(s));
}

static const uint8_t *row_at(const msgl_source *s, size_t row)
{
    return s->t->data + row * msgl__source_tensor_row_bytes(s) + bytes_of(s, s->first_col);
}

const void *msgl__source_direct(const msgl_source *s, size_t skip)
{
    if (expands(s) || msgl__source_splits(s) || s->pairs > 0 || s->transposed || s->head_cols > 0)
        return NULL;
    const uint8_t *rows = row_at(s, s->first + skip);
    // Formats align little, but everyone writes aligned files; the others are copied.
    const size_t aligned = s->blocks != NULL ? 1 : msgl__dtype_size(s->t->dtype);
    return (uintptr_t)rows % aligned == 0 ? rows : NULL;
}

msgl_dtype msgl__source_dtype(const msgl_source *s)
{
    return expands(s) ? s->want : s->t->dtype;
}

size_t msgl__source_row_bytes(const msgl_source *s)
{
    if (expands(s)) return s->cols * msgl__dtype_size(s->want);
    return bytes_of(s, places_of(s));
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
    const msgl_packed p = msgl__packed_of(s->t);
    if (!packed(s->t)) {
        const size_t size = msgl__dtype_size(s->t->dtype);
        *from = begin * size;
        *bytes = (end - begin) * size;
    } else if (p.how->form->span != NULL) {
        p.how->form->span(&p, begin, end, from, bytes);
    } else {
        *from = 0;
        *bytes = s->t->bytes;
    }
}

typedef struct filling {
    const msgl_source *s;
    int32_t first, rows;
    char *out;
    msgl_packed p; // of a packed tensor
} filling;

// Columns [at, at + CHUNK) of the tensor's row, those of them that it has; how many.
static size_t expand_chunk(const filling *f, size_t row, size_t at, size_t end, float *values)
{
    const size_t n = end - at < CHUNK ? end - at : CHUNK;
    f->p.how->form->expand(&f->p, row, at, n, values);
    return n;
}

// Columns [begin, end) of the tensor's row.
static void expand_columns(const filling *f, size_t row, size_t begin, size_t end, char *out)
{
    float values[CHUNK];
    for (size_t at = begin, n; at < end; at += n) {
        n = expand_chunk(f, row, at, end, values);
        for (size_t i = 0; i < n; i++) {
            msgl__store_f32(out, f->s->want, at + i - begin, values[i]);
        }
    }
}

static void expand_row(const filling *f, size_t row, char *out)
{
    expand_columns(f, row, f->s->first_col, f->s->first_col + f->s->cols, out);
}

// A row head by head, from where the file has them.
static void gather_heads(const filling *f, size_t row, char *out)
{
    const msgl_source *s = f->s;
    const size_t cols = (size_t)s->head_cols, each = (size_t)s->group_heads;
    const size_t size = msgl__dtype_size(msgl__source_dtype(s));
    for (size_t col = 0; col < s->cols; col += cols, out += cols * size) {
        const size_t head = (s->first_col + col) / cols;
        const size_t at = (head % each * (size_t)s->head_groups + head / each) * cols;
        if (expands(s)) {
            expand_columns(f, row, at, at + cols, out);
        } else {
            memcpy(out, s->t->data + (row * tensor_cols(s) + at) * size, cols * size);
        }
    }
}

void msgl__source_parts(const msgl_source *s, const msgl_part_tile *t, msgl_code_part *out,
                        size_t ld)
{
    const msgl_packed p = msgl__packed_of(s->t);
    const msgl_stored *form = p.how->form;
    if (s->order == NULL && s->pairs == 0) {
        const msgl_part_tile at = {stored_at(s, t->row), t->rows, s->first_col + t->col, t->cols};
        msgl__stored_split(&p, &at, out, ld);
        return;
    }
    for (size_t r = 0; r < t->rows; r++, out += ld) {
        const msgl_part_tile at = {stored_at(s, t->row + r), 1, s->first_col + t->col, t->cols};
        if (s->order == NULL) {
            msgl__stored_split(&p, &at, out, ld);
            continue;
        }
        for (size_t i = 0; i < t->cols / PART; i++) {
            out[i] = (msgl_code_part){0};
            form->pick(&p, at.row, s->first_col, s->order->columns + t->col + PART * i, &out[i]);
        }
    }
}

static void split_task(void *arg, int task, int worker)
{
    (void)worker;
    const filling *f = arg;
    const size_t places = places_of(f->s), ld = places / PART;
    msgl_code_part *const out = (msgl_code_part *)(void *)f->out;
    msgl_part_tile left = msgl__stored_task((size_t)f->rows, places, task), t;
    while (msgl__stored_tile(&left, &t)) {
        msgl_code_part *const to = out + t.row * ld + t.col / PART;
        t.row += (size_t)f->first;
        msgl__source_parts(f->s, &t, to, ld);
    }
}

// Elements [first, first + rows) of the tensor's row that is column `col` of the model's rows.
static void scatter(const filling *f, size_t col)
{
    const msgl_source *s = f->s;
    const size_t first = (size_t)f->first, end = first + (size_t)f->rows;
    const size_t size = msgl__dtype_size(msgl__source_dtype(s));
    const size_t row = s->first + s->first_col + col, cols = f->p.cols;
    float values[CHUNK];
    for (size_t at = first, n; at < end; at += n) {
        n = expands(s) ? expand_chunk(f, row, at, end, values) : end - at;
        for (size_t i = 0; i < n; i++) {
            char *out = f->out + ((at + i - first) * s->cols + col) * size;
            if (expands(s)) {
                msgl__store_f32(out, s->want, 0, values[i]);
            } else {
                memcpy(out, s->t->data + (row * cols + at + i) * size, size);
            }
        }
    }
}

// The same of rows in pairs. Of what is expanded a chunk is kept as long as elements are in it:
// with heads of 512, elements 0, 2, ... 510 need two, and 1, 3, ... 511 the same two again.
static void scatter_pairs(const filling *f, size_t col)
{
    const msgl_source *s = f->s;
    const size_t size = msgl__dtype_size(msgl__source_dtype(s));
    const size_t row = s->first + s->first_col + col, cols = f->p.cols;
    float values[CHUNK];
    size_t chunk = SIZE_MAX; // which one is in values
    for (int32_t r = 0; r < f->rows; r++) {
        const size_t at = stored_behind(s, (size_t)(f->first + r));
        char *out = f->out + ((size_t)r * s->cols + col) * size;
        if (!expands(s)) {
            memcpy(out, s->t->data + (row * cols + at) * size, size);
            continue;
        }
        if (at / CHUNK != chunk) {
            chunk = at / CHUNK;
            expand_chunk(f, row, chunk * CHUNK, cols, values);
        }
        msgl__store_f32(out, s->want, 0, values[at % CHUNK]);
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
    const size_t bytes = msgl__source_row_bytes(s);
    const int32_t begin = task * TASK_ROWS;
    const int32_t end = f->rows - begin < TASK_ROWS ? f->rows : begin + TASK_ROWS;
    for (int32_t r = begin; r < end; r++) {
        const size_t row = stored_at(s, (size_t)f->first + (size_t)r);
        char *out = f->out + (size_t)r * bytes;
        if (s->head_cols > 0) {
            gather_heads(f, row, out);
        } else if (expands(s)) {
            expand_row(f, row, out);
        } else {
            memcpy(out, row_at(s, row), bytes);
        }
    }
}

void msgl__source_rows(msgl_pool *pool, const msgl_source *s, int32_t first, int32_t rows,
                       void *out)
{
    filling f = {.s = s, .first = first, .rows = rows, .out = out, .p = msgl__packed_of(s->t)};
    if (s->transposed) {
        msgl__pool_run(pool, (int)s->cols, transpose_task, &f);
    } else if (msgl__source_splits(s)) {
        msgl__pool_run(pool, msgl__stored_tasks((size_t)rows, places_of(s)), split_task, &f);
    } else {
        msgl__pool_run(pool, msgl__ceil_div(rows, TASK_ROWS), fill_task, &f);
    }
}

float msgl__source_element(const msgl_source *s, size_t i)
{
    const msgl_tensor *t = s->t;
    const size_t at = stored_at(s, i);
    if (packed(t)) {
        const msgl_packed p = msgl__packed_of(t);
        float value;
        p.how->form->expand(&p, at / p.cols, at % p.cols, 1, &value);
        return value;
    }
    const size_t size = msgl__dtype_size(t->dtype);
    uint32_t aligned = 0;
    memcpy(&aligned, t->data + at * size, size);
    return msgl__load_f32(&aligned, t->dtype, 0);
}
