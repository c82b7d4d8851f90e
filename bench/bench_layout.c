// SPDX-License-Identifier: Apache-2.0
//
// ns of one thread for 32 weights of packed files on their way to a GPU's rows of codes, medians of
// five: through a stage, as packers that take rows have it, and tile by tile. Matrices are those of
// Qwen3-14B's gate; both ways' rows are compared.
//   bench_layout
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/err.h"
#include "cuda/gemm/codes_row.h"
#include "models/source.h"
#include "utils/random.h"

enum { ROWS = 17408, COLS = 5120, STEP = 1024, TIMES = 5 };

typedef struct form {
    const char *name;
    const msgl_stored *stored;
    int bits; // of an element in the file
    size_t group_rows, group;
    msgl_number scales;
    bool zeros;
    uint8_t zero; // that all bytes of zero points have; 0: random
} form;

static const form FORMS[] = {
    {"AWQ", &msgl__stored_awq, 4, 1, 128, MSGL_NUMBER_F16, true, 0},
    {"GPTQ", &msgl__stored_gptq, 4, 1, 128, MSGL_NUMBER_F16, true, 0},
    {"GPTQ, symmetric", &msgl__stored_gptq, 4, 1, 128, MSGL_NUMBER_F16, true, 0x77},
    {"GPTQ, 8 bits", &msgl__stored_gptq, 8, 1, 128, MSGL_NUMBER_F16, true, 0},
    {"compressed-tensors, groups of 128", &msgl__stored_rows, 4, 1, 128, MSGL_NUMBER_BF16, false,
     0},
    {"the same, of 32", &msgl__stored_rows, 4, 1, 32, MSGL_NUMBER_BF16, false, 0},
    {"FP8, 128 x 128", &msgl__stored_numbers, 8, 128, 128, MSGL_NUMBER_F32, false, 0},
    {"int8 by row", &msgl__stored_numbers, 8, 1, COLS, MSGL_NUMBER_F32, false, 0},
};

static uint8_t *memory(size_t bytes)
{
    uint8_t *p = malloc(bytes);
    if (p == NULL) {
        fprintf(stderr, "bench_layout: no memory\n");
        exit(1);
    }
    return p;
}

static uint8_t *noise(size_t bytes)
{
    uint64_t seed = bytes;
    uint8_t *p = memory(bytes + 8);
    for (size_t i = 0; i < bytes; i += 8) {
        const uint64_t v = msgl__random(&seed);
        memcpy(p + i, &v, sizeof v);
    }
    return p;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v)
{
    qsort(v, TIMES, sizeof *v, by_size);
    return v[TIMES / 2];
}

static void read_parts(const void *rows, const msgl_part_tile *t, msgl_code_part *out, size_t ld)
{
    msgl__source_parts(rows, t, out, ld);
}

// Both ways in turns, STEP rows at a time.
static void measure(const form *f, const msgl_tensor *t, const msgl_codes *codes, msgl_pool *pool)
{
    const msgl_blocks blocks = {f->name, 32, sizeof(msgl_code_part), codes, NULL};
    const msgl_source s = {.t = t, .blocks = &blocks, .cols = COLS, .all_cols = COLS};
    const size_t row = msgl__source_row_bytes(&s);
    msgl_codes_row l;
    if (!msgl__codes_row_of(&blocks, COLS, &l)) return;
    uint8_t *stage = memory(STEP * row), *staged = memory(STEP * l.bytes);
    uint8_t *tiled = memory(STEP * l.bytes);
    const msgl_part_rows src = {read_parts, &s};
    double through[TIMES], tiles[TIMES];
    bool same = true;
    for (int i = 0; i < TIMES; i++) {
        through[i] = tiles[i] = 0;
        for (int r = 0; r < ROWS; r += STEP) {
            double from = now();
            msgl__source_rows(pool, &s, r, STEP, stage);
            for (size_t j = 0; j < STEP; j++) {
                msgl__codes_row_put(&l, &blocks, stage + j * row, staged + j * l.bytes);
            }
            through[i] += now() - from;
            from = now();
            for (int task = 0; task < msgl__stored_tasks(STEP, COLS); task++) {
                msgl__codes_rows_put(&l, &src, (size_t)r, STEP, task, tiled);
            }
            tiles[i] += now() - from;
            same = same && memcmp(staged, tiled, STEP * l.bytes) == 0;
        }
    }
    const double parts = (double)ROWS * COLS / 32;
    printf("| %s | %.1f | %.1f |%s\n", f->name, median(through) / parts, median(tiles) / parts,
           same ? "" : " DIFFERENT");
    free(stage);
    free(staged);
    free(tiled);
}

int main(void)
{
    msgl_pool *pool;
    if (msgl__pool_create(1, &pool, NULL) != 0) return 1;
    printf("| ns for 32 weights | through a stage | tile by tile |\n|---|---|---|\n");
    for (size_t i = 0; i < sizeof FORMS / sizeof FORMS[0]; i++) {
        const form *f = &FORMS[i];
        const size_t all = (size_t)ROWS * COLS, groups = (size_t)ROWS * (COLS / f->group);
        uint8_t *data = noise(all * (size_t)f->bits / 8), *scales = noise(groups * 4);
        uint8_t *zeros = noise(groups * (size_t)f->bits / 8);
        if (f->zero != 0) memset(zeros, f->zero, groups * (size_t)f->bits / 8);
        msgl_tensor t = {.data = data,
                         .bytes = all * (size_t)f->bits / 8,
                         .ndim = 2,
                         .dims = {ROWS, COLS},
                         .packing = {.form = f->stored,
                                     .number = f->group == COLS ? MSGL_NUMBER_I8 : MSGL_NUMBER_E4M3,
                                     .group_rows = f->group_rows,
                                     .group = f->group,
                                     .bits = f->bits,
                                     .zero = 1 << (f->bits - 1),
                                     .zeros_plus = f->zero != 0 ? 0x11111111 : 0,
                                     .sides[MSGL_SCALES] = {scales, groups * 4, f->scales}}};
        if (f->zeros) {
            t.packing.sides[MSGL_ZEROS] =
                (msgl_side){zeros, groups * (size_t)f->bits / 8, MSGL_NUMBER_I32};
        }
        const msgl_packed p = msgl__packed_of(&t);
        msgl_codes codes;
        if (msgl__stored_codes(&p, 0, COLS, NULL, &codes)) measure(f, &t, &codes, pool);
        free(data);
        free(scales);
        free(zeros);
    }
    msgl__pool_destroy(pool);
    return 0;
}
