// SPDX-License-Identifier: Apache-2.0
//
// The input is a safetensors file. Whatever is accepted has every tensor inside the file, and their
// bytes are read; and those of packed tensors, of every quantization_config that tells forms apart.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "models/adapters.h"
#include "models/formats.h"
#include "models/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(int code, const msgl_err *err)
{
    if (code != 0 && (err->text[0] == '\0' || strchr(err->text, '\n') != NULL)) __builtin_trap();
}

// All parts of its codes in an order of columns; without memory for the order none.
static void pick_all(const msgl_packed *p)
{
    msgl_codes codes;
    msgl_column_order *order = msgl__stored_order(p, 0, p->cols);
    const bool has = order != NULL && msgl__stored_codes(p, 0, p->cols, order, &codes);
    for (size_t r = 0; r < p->rows && has; r++) {
        for (int32_t i = 0; i < order->num; i += 32) {
            msgl_code_part part = {0};
            p->how->form->pick(p, r, 0, order->columns + i, &part);
        }
    }
    msgl__free(order);
}

// All parts of its codes, if it has any.
static void split_all(const msgl_packed *p)
{
    msgl_codes codes;
    if (p->how->sides[MSGL_ORDER].data != NULL) {
        pick_all(p);
        return;
    }
    if (!msgl__stored_codes(p, 0, p->cols, NULL, &codes)) return;
    for (size_t r = 0; r < p->rows; r++) {
        for (size_t c = 0; c < p->cols; c += 32) {
            msgl_code_part part = {0};
            p->how->form->split(p, r, c, &part);
        }
    }
}

// Every value of a packed tensor.
static void expand_all(const msgl_tensor *t)
{
    float values[64];
    msgl_packed p = {.how = &t->packing, .data = t->data, .rows = 1, .cols = 1};
    for (int32_t i = 0; i + 1 < t->ndim; i++) p.rows *= (size_t)t->dims[i];
    if (t->ndim > 0) p.cols = (size_t)t->dims[t->ndim - 1];
    for (size_t r = 0; r < p.rows; r++) {
        for (size_t c = 0; c < p.cols; c += MSGL_COUNT(values)) {
            const size_t left = p.cols - c;
            const size_t n = left < MSGL_COUNT(values) ? left : MSGL_COUNT(values);
            t->packing.form->expand(&p, r, c, n, values);
        }
    }
    split_all(&p);
    if (t->packing.form->span == NULL) return;
    size_t from, bytes;
    t->packing.form->span(&p, 0, p.rows * p.cols, &from, &bytes);
    if (from > t->bytes || bytes > t->bytes - from) __builtin_trap();
}

static void adapt(const uint8_t *data, size_t size, const msgl_quantization *q)
{
    msgl_checkpoint_file file = {.shown = "fuzz"};
    msgl_checkpoint c = {.format = &msgl__format_safetensors, .files = &file, .num_files = 1};
    msgl_err err = {0};
    int code = msgl__safetensors_parse(data, size, "fuzz", 0, &c.tensors, &err);
    if (code == 0) code = msgl__checkpoint_sort(&c, &err);
    if (code == 0) code = msgl__adapt(&c, q, &err);
    check_text(code, &err);
    for (size_t i = 0; i < c.tensors.count && code == 0; i++) {
        if (c.tensors.at[i].packing.form != NULL) expand_all(&c.tensors.at[i]);
    }
    msgl__tensor_list_free(&c.tensors);
}

static void adapt_all(const uint8_t *data, size_t size)
{
    static const msgl_quantization all[] = {
        {.block = {128, 128}},
        {.block = {3, 5}, .schemes = {3, 5, 2}, .num_schemes = 3, .release = 12},
        {.method = MSGL_QUANT_AWQ, .block = {1, 1}, .group = 32},
        {.method = MSGL_QUANT_AWQ, .block = {1, 1}, .group = -1, .by_rows = true},
        {.method = MSGL_QUANT_GPTQ, .block = {1, 1}, .bits = 4, .group = 32, .ordered = true},
        {.method = MSGL_QUANT_GPTQ,
         .block = {1, 1},
         .bits = 3,
         .group = -1,
         .zeros = MSGL_ZEROS_PLAIN},
        {.method = MSGL_QUANT_GPTQ,
         .block = {1, 1},
         .bits = 8,
         .group = 64,
         .may_have = MSGL_BITS_2_TO_8,
         .mixed = true,
         .zeros = MSGL_ZEROS_EACH_LESS},
        {.method = MSGL_QUANT_GPTQ, .block = {1, 1}, .bits = 2, .group = 16},
        {.method = MSGL_QUANT_MLX, .block = {1, 1}, .group = 32},
    };
    for (size_t i = 0; i < MSGL_COUNT(all); i++) adapt(data, size, &all[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size); // of exactly its size, so that a read past it is found
    if (copy == NULL) return 0;
    if (size > 0) memcpy(copy, data, size);
    msgl_tensor_list list = {0};
    msgl_err err = {0};
    const int code = msgl__safetensors_parse(copy, size, "fuzz", 0, &list, &err);
    uint32_t sum = 0;
    for (size_t i = 0; i < list.count && code == 0; i++) {
        const msgl_tensor *t = &list.at[i];
        if (t->data < copy || t->bytes > (size_t)(copy + size - t->data)) __builtin_trap();
        for (size_t b = 0; b < t->bytes; b++) sum += t->data[b];
    }
    check_text(code, &err);
    if (code == 0) adapt_all(copy, size);
    msgl__tensor_list_free(&list);
    free(copy);
    return sum == 0xffffffffu;
}
