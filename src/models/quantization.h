// SPDX-License-Identifier: Apache-2.0
//
// What config.json's quantization_config says that tensors do not say by themselves. Which modules
// are packed the tensors' names say: lists of modules that are not need no reader.
#ifndef MSGL_MODELS_QUANTIZATION_H
#define MSGL_MODELS_QUANTIZATION_H

#include "models/json_read.h"

enum { MSGL_MAX_SCHEMES = 16 };

// What decides between tensors of the same names.
typedef enum msgl_quant_method {
    MSGL_QUANT_OTHER,
    MSGL_QUANT_AWQ,
    MSGL_QUANT_GPTQ,
    MSGL_QUANT_MLX,
} msgl_quant_method;

typedef struct msgl_quantization {
    msgl_quant_method method;
    int64_t block[2]; // fp8: rows and columns that share a scale where a grid of scales is given
    int32_t bits;     // gptq
    int32_t group;    // gptq, awq, mlx: columns of a group; -1: all
    bool v2;          // gptq: zero points are stored as they are
    bool symmetric;   // gptq
    bool ordered;     // gptq: columns say their group
    bool by_rows;     // awq: gemv
    // compressed-tensors: bits of the integers of each of the config_groups, and the release that
    // wrote them, 1000 major + minor; 0: unknown.
    int32_t schemes[MSGL_MAX_SCHEMES], num_schemes, release;
} msgl_quantization;

// Of the object of r, config.json. Without a quantization_config: what is usual.
void msgl__quantization_read(msgl_json_reader *r, msgl_quantization *q);
// Of the folder's config.json; without one, what is usual.
int msgl__quantization_load(const char *dir, msgl_quantization *q, msgl_err *err);

#endif
