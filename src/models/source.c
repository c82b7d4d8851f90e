// SPDX-License-Identifier: Apache-2.0
#include "models/source.h"

#include <string.h>

#include "core/round.h"

enum { TASK_ROWS = 16 };

// 32 elements: an f16 scale, then as many i8.
static void expand_q8_0(const uint8_t *block, float *values)
{
    const float scale = msgl__f16_to_f32((uint16_t)(block[0] | block[1] << 8));
    for (int i = 0; i < 32; i++) values[i] = scale * (float)(int8_t)block[2 + i];
}

const msgl_blocks msgl__blocks_q8_0 = {.elements = 32, .bytes = 34, .expand = expand_q8_0};

const void *msgl__source_direct(const msgl_source *s)
{
    if (s->t->blocks != NULL || s->pairs > 0 || s->transposed) return NULL;
    const size_t size = msgl__dtype_size(s->t->dtype);
    const uint8_t *rows = s->t->data + s->first * s->cols * size;
    // Formats align little, but everyone writes aligned files; the others are copied.
    return (uintptr_t)rows % size == 0 ? rows : NULL;
}

msgl_dtype msgl__source_dtype(const msgl_source *s)
{
    return s->t->blocks != NULL ? s->want : s->t->dtype;
}

size_t msgl__source_row_bytes(const msgl_source *s)
{
    return s->cols * msgl__dtype_size(msgl__source_dtype(s));
}

// Where the model's row (or element) i is in the file.
static size_t stored_at(const msgl_source *s, size_t i)
{
    const size_t pairs = (size_t)s->pairs, unpaired = (size_t)s->unpaired;
    const size_t in_head = pairs > 0 ? i % (size_t)s->head : 0;
    const size_t at = s->first + i, j = in_head - unpaired;
    if (in_head < unpaired || j >= 2 * pairs) return at;
    return at - j + (j < pairs ? 2 * j : 2 * (j - pairs) + 1);
}

typedef struct filling {
    const msgl_source *s;
    int32_t first, rows;
    char *out;
} filling;

static void expand_row(const msgl_source *s, const uint8_t *src, char *out)
{
    const msgl_blocks *b = s->t->blocks;
    const size_t n = (size_t)b->elements;
    for (size_t at = 0; at < s->cols; at += n, src += b->bytes) {
        float values[MSGL_MAX_BLOCK];
        b->expand(src, values);
        for (size_t i = 0; i < n; i++) msgl__store_f32(out, s->want, at + i, values[i]);
    }
}

// Elements [first, first + rows) of the tensor's row that is column `col` of the model's rows.
static void scatter(const filling *f, size_t col)
{
    const msgl_source *s = f->s;
    const msgl_blocks *b = s->t->blocks;
    const size_t n = b != NULL ? (size_t)b->elements : 1, end = (size_t)(f->first + f->rows);
    const size_t bytes = b != NULL ? (size_t)b->bytes : msgl__dtype_size(s->t->dtype);
    const size_t size = msgl__dtype_size(msgl__source_dtype(s));
    const size_t row_blocks = (size_t)s->t->dims[1] / n;
    const uint8_t *row = s->t->data + (s->first + col) * row_blocks * bytes;
    for (size_t at = (size_t)f->first / n * n; at < end; at += n) {
        float values[MSGL_MAX_BLOCK];
        const uint8_t *src = row + at / n * bytes;
        if (b != NULL) b->expand(src, values);
        for (size_t i = 0; i < n && at + i < end; i++) {
            if (at + i < (size_t)f->first) continue;
            char *out = f->out + ((at + i - (size_t)f->first) * s->cols + col) * size;
            if (b != NULL) {
                msgl__store_f32(out, s->want, 0, values[i]);
            } else {
                memcpy(out, src, size);
            }
        }
    }
}

static void transpose_task(void *arg, int task, int worker)
{
    (void)worker;
    const filling *f = arg;
    scatter(f, (size_t)task);
}

static void fill_task(void *arg, int task, int worker)
{
    (void)worker;
    const filling *f = arg;
    const msgl_source *s = f->s;
    const msgl_blocks *b = s->t->blocks;
    const size_t out_bytes = msgl__source_row_bytes(s);
    const size_t src_bytes =
        b != NULL ? s->cols / (size_t)b->elements * (size_t)b->bytes : out_bytes;
    const int32_t begin = task * TASK_ROWS;
    for (int32_t r = begin; r < f->rows && r < begin + TASK_ROWS; r++) {
        const uint8_t *src = s->t->data + stored_at(s, (size_t)f->first + (size_t)r) * src_bytes;
        char *out = f->out + (size_t)r * out_bytes;
        if (b != NULL) {
            expand_row(s, src, out);
        } else {
            memcpy(out, src, out_bytes);
        }
    }
}

void msgl__source_rows(msgl_pool *pool, const msgl_source *s, int32_t first, int32_t rows,
                       void *out)
{
    filling f = {.s = s, .first = first, .rows = rows, .out = out};
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
