// SPDX-License-Identifier: Apache-2.0
//
// FP8 weights and their exact values, for tests of products of E4M3 by E4M3.
#ifndef MSGL_TESTS_CUDA_FP8_CASE_CUH
#define MSGL_TESTS_CUDA_FP8_CASE_CUH

#include "tests/cuda/codes_case.cuh"
extern "C" {
#include "quant/stored.h"
}

enum { GROUP_COLUMNS = 128 };

// Scales of a row, of 128 columns of a row, or of 128 x 128.
typedef enum scale_kind { BY_ROW, BY_GROUP, BY_BLOCK, KINDS } scale_kind;

struct fp8_format {
    msgl_codes codes;
    msgl_blocks blocks;
    msgl_wformat format;
};

static inline void make_format(fp8_format *f, scale_kind kind, msgl_number number)
{
    static const char *const NAMES[KINDS] = {"rows", "groups", "blocks"};
    memset(f, 0, sizeof *f);
    f->codes.bits = 8;
    f->codes.group = 32;
    f->codes.floats = true;
    f->codes.span = kind == BY_ROW ? 0 : GROUP_COLUMNS;
    f->codes.rows = kind == BY_BLOCK ? 128 : 0;
    f->codes.number = number;
    f->blocks.name = NAMES[kind];
    f->blocks.elements = 32;
    f->blocks.bytes = sizeof(msgl_code_part);
    f->blocks.codes = &f->codes;
    f->format = format_of_codes(&f->blocks);
}

// All rows are drawn, and rows of a block have its scales.
struct fp8_weight {
    msgl_weight w;
    const fp8_format *f;
    int n, k;
    std::vector<double> values; // [n, k], exact
    std::vector<uint8_t> bytes; // as a GPU has them
};

// Without memory of the device.
static inline fp8_weight weight_draw(const fp8_format *f, int n, int k, uint64_t *seed)
{
    fp8_weight t = {{}, f, n, k};
    msgl_codes_row l;
    const int parts = k / 32;
    if (!msgl__codes_row_of(&f->blocks, k, &l)) exit(1);
    std::vector<msgl_code_part> file((size_t)parts), above;
    std::vector<float> values((size_t)k);
    std::vector<uint8_t> row(l.bytes);
    t.bytes.resize(msgl__codes_rows_bytes(&l, (size_t)n));
    t.values.resize((size_t)n * k);
    for (int r = 0; r < n; r++) {
        code_row_draw(seed, &f->blocks, k, (uint8_t *)file.data(), values.data());
        if (f->codes.rows > 0 && r % f->codes.rows != 0) {
            for (int i = 0; i < parts; i++) file[(size_t)i].d = above[(size_t)i].d;
        } else {
            above = file;
        }
        for (int i = 0; i < k; i++) {
            const msgl_code_part *p = &file[(size_t)(i / 32)];
            const float scale = msgl__codes_row_number(f->codes.number, (const uint8_t *)&p->d, 0);
            t.values[(size_t)r * k + i] =
                (double)msgl__e4m3_to_f32(p->codes[i % 32]) * (double)scale;
        }
        msgl__codes_row_put(&l, &f->blocks, (const uint8_t *)file.data(), row.data());
        memcpy(&t.bytes[(size_t)r * l.codes], row.data(), l.codes);
        for (uint32_t i = 0; i < l.scales; i++) {
            t.bytes[(size_t)n * l.codes + msgl__codes_row_place(&l, (size_t)n, (size_t)r, i)] =
                row[l.codes + i];
        }
    }
    t.w.format = &f->format;
    t.w.n = n;
    t.w.k = k;
    return t;
}

static inline fp8_weight weight_make(const fp8_format *f, int n, int k, uint64_t *seed)
{
    fp8_weight t = weight_draw(f, n, k, seed);
    t.w.data = device_copy(t.bytes.data(), t.bytes.size());
    return t;
}

static inline void weight_free(fp8_weight *t)
{
    CUDA_OK(cudaFree(t->w.data));
}

#endif
