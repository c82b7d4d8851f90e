// SPDX-License-Identifier: Apache-2.0
#include "utils/gguf_writer.h"

#include <stdlib.h>
#include <string.h>

static void put(gguf_bytes *b, const void *p, size_t n)
{
    b->p = realloc(b->p, b->n + n + 1);
    if (b->p == NULL) abort();
    if (n > 0) memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void put_int(gguf_bytes *b, uint64_t v, size_t n)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(v >> (8 * i));
    put(b, bytes, n);
}

static void put_string(gguf_bytes *b, const char *s)
{
    put_int(b, strlen(s), 8);
    put(b, s, strlen(s));
}

static void begin(gguf_writer *w, const char *key, msgl_gguf_type type)
{
    w->num_values++;
    put_string(&w->values, key);
    put_int(&w->values, type, 4);
}

void gguf_put_int(gguf_writer *w, const char *key, msgl_gguf_type type, uint64_t v)
{
    static const uint8_t sizes[MSGL_GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    begin(w, key, type);
    put_int(&w->values, v, sizes[type]);
}

void gguf_put_f32(gguf_writer *w, const char *key, float v)
{
    begin(w, key, MSGL_GGUF_F32);
    put(&w->values, &v, sizeof v);
}

void gguf_put_string(gguf_writer *w, const char *key, const char *text)
{
    begin(w, key, MSGL_GGUF_STRING);
    put_string(&w->values, text);
}

static void begin_array(gguf_writer *w, const char *key, msgl_gguf_type type, size_t n)
{
    begin(w, key, MSGL_GGUF_ARRAY);
    put_int(&w->values, type, 4);
    put_int(&w->values, n, 8);
}

void gguf_put_strings(gguf_writer *w, const char *key, const char *const *texts, size_t n)
{
    begin_array(w, key, MSGL_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) put_string(&w->values, texts[i]);
}

void gguf_put_array(gguf_writer *w, const char *key, msgl_gguf_type type, const void *elements,
                    size_t n)
{
    begin_array(w, key, type, n);
    put(&w->values, elements, 4 * n);
}

void gguf_put_tensor(gguf_writer *w, const char *name, uint32_t type, int ndim, const int64_t *dims,
                     const void *data, size_t bytes)
{
    static const uint8_t zeros[32];
    w->num_tensors++;
    put_string(&w->tensors, name);
    put_int(&w->tensors, (uint64_t)ndim, 4);
    for (int i = 0; i < ndim; i++) put_int(&w->tensors, (uint64_t)dims[i], 8);
    put_int(&w->tensors, type, 4);
    put_int(&w->tensors, w->data.n, 8);
    put(&w->data, data, bytes);
    put(&w->data, zeros, -w->data.n % 32);
}

gguf_bytes gguf_finish(gguf_writer *w)
{
    static const uint8_t zeros[32];
    gguf_bytes all = {0};
    put(&all, "GGUF", 4);
    put_int(&all, 3, 4);
    put_int(&all, w->num_tensors, 8);
    put_int(&all, w->num_values, 8);
    put(&all, w->values.p, w->values.n);
    put(&all, w->tensors.p, w->tensors.n);
    if (w->data.n > 0) put(&all, zeros, -all.n % 32);
    put(&all, w->data.p, w->data.n);
    free(w->values.p);
    free(w->tensors.p);
    free(w->data.p);
    *w = (gguf_writer){0};
    return all;
}
