// SPDX-License-Identifier: Apache-2.0
#include "utils/random_blocks.h"

#include <math.h>
#include <stdlib.h>

#include "utils/random.h"

const ggml_type GGML_TYPES[NUM_GGML_TYPES] = {
    {"Q4_0", 2},     {"Q4_1", 3},   {"Q5_0", 6},    {"Q5_1", 7},   {"Q8_0", 8},     {"Q2_K", 10},
    {"Q3_K", 11},    {"Q4_K", 12},  {"Q5_K", 13},   {"Q6_K", 14},  {"IQ2_XXS", 16}, {"IQ2_XS", 17},
    {"IQ3_XXS", 18}, {"IQ1_S", 19}, {"IQ4_NL", 20}, {"IQ3_S", 21}, {"IQ2_S", 22},   {"IQ4_XS", 23},
    {"F64", 28},     {"IQ1_M", 29}, {"TQ1_0", 34},  {"TQ2_0", 35}, {"MXFP4", 39},   {"NVFP4", 40},
    {"Q1_0", 41},    {"Q2_0", 42},
};

void random_block(uint64_t *seed, const msgl_blocks *b, float least, float most, uint8_t *block,
                  float *values)
{
    for (float found = -1; !(found >= least && found <= most);) {
        for (int32_t i = 0; i < b->bytes; i++) block[i] = (uint8_t)msgl__random(seed);
        // Four random scales of NVFP4 are all so small one time in 100,000: these are up to 7 /
        // 512.
        for (int i = 0; b == &msgl__blocks_nvfp4 && most < 0.1f && i < 4; i++) block[i] &= 0x87;
        msgl__blocks_expand(b, block, values);
        found = 0;
        for (int32_t i = 0; i < b->elements; i++) {
            found = isfinite(values[i]) ? fmaxf(found, fabsf(values[i])) : INFINITY;
        }
    }
}

random_matrix random_matrix_of(uint64_t *seed, const msgl_blocks *b, size_t rows, size_t k,
                               float least, float most)
{
    const size_t elements = (size_t)b->elements, num = rows * k / elements;
    random_matrix m = {.bytes = num * (size_t)b->bytes};
    m.blocks = malloc(m.bytes);
    m.values = malloc(rows * k * sizeof *m.values);
    if (m.blocks == NULL || m.values == NULL) abort();
    for (size_t i = 0; i < num; i++) {
        random_block(seed, b, least, most, m.blocks + i * (size_t)b->bytes,
                     m.values + i * elements);
    }
    return m;
}
