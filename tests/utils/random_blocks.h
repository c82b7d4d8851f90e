// SPDX-License-Identifier: Apache-2.0
//
// Blocks of every type that GGUF files have, with random bytes.
#ifndef MSGL_TESTS_UTILS_RANDOM_BLOCKS_H
#define MSGL_TESTS_UTILS_RANDOM_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "quant/blocks.h"

typedef struct ggml_type {
    const char *name;
    uint32_t id; // ggml's number
} ggml_type;

enum { NUM_GGML_TYPES = 26 };
extern const ggml_type GGML_TYPES[NUM_GGML_TYPES];

// A block whose largest |value| is from `least` to `most`, and its values.
void random_block(uint64_t *seed, const msgl_blocks *b, float least, float most, uint8_t *block,
                  float *values);

// rows * k values in blocks, and as numbers. The caller frees both.
typedef struct random_matrix {
    uint8_t *blocks;
    size_t bytes;
    float *values;
} random_matrix;
random_matrix random_matrix_of(uint64_t *seed, const msgl_blocks *b, size_t rows, size_t k,
                               float least, float most);

#endif
