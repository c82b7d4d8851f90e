// SPDX-License-Identifier: Apache-2.0
//
// Rows of codes for tests: every combination of bits, scales, offsets and spans that packed
// safetensors may have, and random rows of these and of GGUF's blocks.
#ifndef MSGL_TESTS_UTILS_CODE_FORMS_H
#define MSGL_TESTS_UTILS_CODE_FORMS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "quant/blocks.h"

// Blocks of 32 columns that are a msgl_code_part.
typedef struct code_form {
    char name[40];
    msgl_codes codes;
    msgl_blocks blocks; // of name and codes above
} code_form;

// How many there are, and number i of them; `out` must stay where it is.
int code_forms_count(void);
void code_forms_get(int i, code_form *out);
// All of GGUF's blocks that have codes; how many.
enum { MAX_CODE_BLOCKS = 32 };
int code_blocks_all(const msgl_blocks *out[MAX_CODE_BLOCKS]);

// A row of k random elements, and their values; k is whole blocks. Scales are the same in all of a
// span. Values are finite, those of GGUF's blocks up to 1.
void code_row_draw(uint64_t *seed, const msgl_blocks *b, int k, uint8_t *row, float *values);

#ifdef __cplusplus
}
#endif

#endif
