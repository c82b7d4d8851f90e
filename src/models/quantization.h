// SPDX-License-Identifier: Apache-2.0
//
// What config.json's quantization_config says that tensors do not say by themselves. Which modules
// are packed the tensors' names say: lists of modules that are not need no reader.
#ifndef MSGL_MODELS_QUANTIZATION_H
#define MSGL_MODELS_QUANTIZATION_H

#include "models/json_read.h"

enum { MSGL_MAX_SCHEMES = 16 };

#define MSGL_BITS_2_TO_8 0x1fcu // as a set

// What decides between tensors of the same names.
typedef enum msgl_quant_method {
    MSGL_QUANT_OTHER,
    MSGL_QUANT_AWQ,
    MSGL_QUANT_GPTQ,
    MSGL_QUANT_MLX,
} msgl_quant_method;

// What zero points of GPTQ's layout are stored as.
typedef enum msgl_stored_zeros {
    MSGL_ZEROS_WORDS_LESS, // less 1 each, taken from whole words, so that 0 borrows: gptq
    MSGL_ZEROS_EACH_LESS,  // less 1 each, within its bits: auto_round:auto_gptq
    MSGL_ZEROS_PLAIN,      // as they are: gptq_v2, auto_round, auto_round:gptqmodel
} msgl_stored_zeros;

typedef struct msgl_quantization {
    msgl_quant_method method;
    int64_t block[2];  // fp8: rows and columns that share a scale where a grid of scales is given
    int32_t bits;      // gptq
    int32_t group;     // gptq, awq, mlx: columns of a group; -1: all
    uint32_t may_have; // gptq: bits of a module, as a set: 1 << 4 | 1 << 8 is 4 or 8
    bool mixed;        // gptq, awq: modules differ in bits and group, which their shapes say
    msgl_stored_zeros zeros; // gptq
    bool symmetric;          // gptq: all modules are
    bool ordered;            // gptq: columns say their group
    bool by_rows;            // awq: gemv
    // compressed-tensors: bits of the integers of each of the config_groups, and the release that
    // wrote them, 1000 major + minor; 0: unknown.
    int32_t schemes[MSGL_MAX_SCHEMES], num_schemes, release;
} msgl_quantization;

// What the object of r, config.json, has of it, under any of its names; NULL.
const json_t *msgl__quantization_given(msgl_json_reader *r);
// Of the object of r, config.json. Without a quantization_config: what is usual.
void msgl__quantization_read(msgl_json_reader *r, msgl_quantization *q);
// Of the folder's config.json; without one, what is usual.
int msgl__quantization_load(const char *dir, msgl_quantization *q, msgl_err *err);

#endif
