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

static bool expands(const msgl_tensor *t)
{
    return t->blocks != NULL || t->scales != NULL;
}

const void *msgl__source_direct(const msgl_source *s)
{
    if (expands(s->t) || s->pairs > 0 || s->transposed) return NULL;
    const size_t size = msgl__dtype_size(s->t->dtype);
    const uint8_t *rows = s->t->data + s->first * s->cols * size;
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

static void expand_blocks(const msgl_source *s, const uint8_t *src, char *out)
{
    const msgl_blocks *b = s->t->blocks;
    const size_t n = (size_t)b->elements;
    for (size_t at = 0; at < s->cols; at += n, src += b->bytes) {
        float values[MSGL_MAX_BLOCK];
        b->expand(src, values);
        for (size_t i = 0; i < n; i++) msgl__store_f32(out, s->want, at + i, values[i]);
    }
}

// values: of the 256 codes. The scales of a row are those of all rows of its blocks.
static void expand_e4m3(const msgl_source *s, const float *values, size_t row, const uint8_t *codes,
                        char *out)
{
    const size_t across = (s->cols + MSGL_SCALED - 1) / MSGL_SCALED;
    const uint8_t *scales = s->t->scales->data + row / MSGL_SCALED * across * sizeof(float);
    for (size_t b = 0; b < across; b++) {
        const size_t begin = b * MSGL_SCALED, end = begin + MSGL_SCALED;
        float scale;
        memcpy(&scale, scales + b * sizeof scale, sizeof scale);
        for (size_t i = begin; i < end && i < s->cols; i++) {
            msgl__store_f32(out, s->want, i, values[codes[i]] * scale);
        }
    }
}

static void values_of_codes(float values[256])
{
    for (int i = 0; i < 256; i++) values[i] = msgl__e4m3_to_f32((uint8_t)i);
}

// Of n columns.
static size_t stored_bytes(const msgl_tensor *t, size_t n)
{
    if (t->scales != NULL) return n;
    if (t->blocks == NULL) return n * msgl__dtype_size(t->dtype);
    return n / (size_t)t->blocks->elements * (size_t)t->blocks->bytes;
}

// Columns [first, end) of the tensor's row, `stride` bytes apart.
static void expand_part(const msgl_source *s, const float *values, size_t row, size_t first,
                        size_t end, char *out, size_t stride)
{
    const msgl_tensor *t = s->t;
    const size_t width = (size_t)t->dims[1], across = (width + MSGL_SCALED - 1) / MSGL_SCALED;
    const uint8_t *src = t->data + row * stored_bytes(t, width);
    float block[MSGL_MAX_BLOCK];
    size_t held = SIZE_MAX; // number of the block in `block`
    for (size_t i = first; i < end; i++, out += stride) {
        float v;
        if (t->scales != NULL) {
            const size_t at = row / MSGL_SCALED * across + i / MSGL_SCALED;
            memcpy(&v, t->scales->data + at * sizeof v, sizeof v);
            v *= values[src[i]];
        } else {
            const size_t n = (size_t)t->blocks->elements;
            if (held != i / n) t->blocks->expand(src + i / n * (size_t)t->blocks->bytes, block);
            held = i / n;
            v = block[i % n];
        }
        msgl__store_f32(out, s->want, 0, v);
    }
}

// A row of the tensor is a column of the model's rows.
static void transpose_task(void *arg, int task, int worker)
{
    (void)worker;
    const filling *f = arg;
    const msgl_source *s = f->s;
    const msgl_tensor *t = s->t;
    const size_t col = (size_t)task, row = s->first + col,
                 size = msgl__dtype_size(msgl__source_dtype(s));
    const size_t first = (size_t)f->first, end = first + (size_t)f->rows;
    char *out = f->out + col * size;
    if (expands(t)) {
        float values[256];
        values_of_codes(values);
        expand_part(s, values, row, first, end, out, s->cols * size);
        return;
    }
    const uint8_t *src = t->data + (row * (size_t)t->dims[1] + first) * size;
    for (size_t i = first; i < end; i++, src += size, out += s->cols * size) memcpy(out, src, size);
}

static void fill_task(void *arg, int task, int worker)
{
    (void)worker;
    const filling *f = arg;
    const msgl_source *s = f->s;
    const size_t out_bytes = msgl__source_row_bytes(s), src_bytes = stored_bytes(s->t, s->cols);
    const bool scaled = s->t->scales != NULL;
    float values[256];
    if (scaled) values_of_codes(values);
    const int32_t begin = task * TASK_ROWS;
    for (int32_t r = begin; r < f->rows && r < begin + TASK_ROWS; r++) {
        const size_t row = stored_at(s, (size_t)f->first + (size_t)r);
        const uint8_t *src = s->t->data + row * src_bytes;
        char *out = f->out + (size_t)r * out_bytes;
        if (scaled) {
            expand_e4m3(s, values, row, src, out);
        } else if (s->t->blocks != NULL) {
            expand_blocks(s, src, out);
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
