// SPDX-License-Identifier: Apache-2.0
//
// The forms in which files hold weights as blocks: so many elements in so many bytes, that share
// scales. A form is one const msgl_blocks at the end of its functions, in the file of its family;
// nothing else in the program knows a form by its name.
//
// Every form's comment has its block as a table, byte by byte, and the value of element i. Numbers
// of several bytes are little-endian; an f16 is IEEE binary16. "b >> 4j & 3" is C: a shift before
// the mask. What a block's bytes mean is from ggml (github.com/ggml-org/ggml, the structs of
// src/ggml-common.h and the functions dequantize_row_* of src/ggml-quants.c) unless it says
// otherwise; tests/quant compares each with that library's own results.
#ifndef MSGL_QUANT_BLOCKS_H
#define MSGL_QUANT_BLOCKS_H

#include <stdint.h>

#include "quant/codes.h"

typedef struct msgl_blocks {
    const char *name; // as files call the type
    int32_t elements,
        bytes; // of a block; up to MSGL_MAX_BLOCK elements, next to each other in a row
    const msgl_codes *codes; // of a form whose elements are integers with scales
    // What writes the values of others, and, before they are scaled, of codes whose scale is a
    // number beside the block. That is c then, which their split leaves as it is.
    void (*expand)(const uint8_t *block, float *values);
} msgl_blocks;

// The block's elements. Exact: no two roundings of one value, so that any other way to the same
// number gives the same bits. Scales that are infinite or NaN do as in arithmetic.
void msgl__blocks_expand(const msgl_blocks *b, const uint8_t *block, float *values);

// The blocks that GGUF files call by this name of ggml's types ("Q4_K"). NULL: it has none that
// weights are stored in (plain f32, f16 and bf16, integers, types of activations).
const msgl_blocks *msgl__blocks_of_ggml(const char *type_name);
// All of those.
const msgl_blocks *const *msgl__blocks_all(int *count);

// blocks_legacy.c
extern const msgl_blocks msgl__blocks_q4_0, msgl__blocks_q4_1, msgl__blocks_q5_0, msgl__blocks_q5_1,
    msgl__blocks_q8_0, msgl__blocks_iq4_nl, msgl__blocks_f64;
// blocks_k.c
extern const msgl_blocks msgl__blocks_q2_k, msgl__blocks_q3_k, msgl__blocks_q4_k, msgl__blocks_q5_k,
    msgl__blocks_q6_k;
// blocks_iq.c
extern const msgl_blocks msgl__blocks_iq1_s, msgl__blocks_iq1_m, msgl__blocks_iq2_xxs,
    msgl__blocks_iq2_xs, msgl__blocks_iq2_s, msgl__blocks_iq3_xxs, msgl__blocks_iq3_s,
    msgl__blocks_iq4_xs;
// blocks_fp4.c: MXFP4 as GGUF has it, and as safetensors do, whose exponents are another tensor.
extern const msgl_blocks msgl__blocks_ggml_mxfp4, msgl__blocks_ocp_mxfp4, msgl__blocks_nvfp4;
// blocks_ternary.c
extern const msgl_blocks msgl__blocks_tq1_0, msgl__blocks_tq2_0, msgl__blocks_q1_0,
    msgl__blocks_q2_0;

#endif
