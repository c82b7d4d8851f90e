// SPDX-License-Identifier: Apache-2.0
//
// What config.json's quantization_config asks of weights that are made up: which modules are
// packed, and in which form. Readers of files need not know that (models/quantization.h), as the
// files' tensors say it.
#ifndef MSGL_MODELS_DUMMY_SCHEME_H
#define MSGL_MODELS_DUMMY_SCHEME_H

#include <jansson.h>

#include "models/quantization.h"
#include "quant/blocks.h"
#include "quant/number.h"

// How a module's tensors are called and laid out.
typedef enum msgl_dummy_layout {
    MSGL_DUMMY_PLAIN, // nothing is packed
    MSGL_DUMMY_AWQ,
    MSGL_DUMMY_GPTQ,
    MSGL_DUMMY_PACKED,   // compressed-tensors' integers in words
    MSGL_DUMMY_NUMERIC,  // E4M3 or I8, one by one, with scales
    MSGL_DUMMY_MXFP8,    // E4M3 with exponents
    MSGL_DUMMY_MXFP4,    // e2m1 with exponents
    MSGL_DUMMY_NVFP4,    // e2m1 with scales of E4M3 and one of all, which divides, ...
    MSGL_DUMMY_MODELOPT, // ... or multiplies
    MSGL_DUMMY_EXPERTS,  // gpt-oss's experts in MXFP4, and nothing else
    MSGL_DUMMY_GGML,     // blocks of a GGUF file
} msgl_dummy_layout;

typedef struct msgl_dummy_scheme {
    msgl_dummy_layout layout;
    msgl_quantization quantization; // what readers are told
    int32_t bits;                   // 4 or 8
    int64_t group; // columns that share a scale; -1: all. Of NUMERIC also 0: all of the matrix
    int64_t rows;  // that share one, of NUMERIC
    bool zeros;    // there are zero points, which differ
    bool ordered;  // columns say their group
    bool head;     // lm_head is packed, unless it is left out
    msgl_number number, scale; // of what is scaled and of scales
    const char *scale_name;    // of NUMERIC, behind the module
    const char *file_type;     // of GGML: "Q4_K_M"
    json_t *root;              // config.json
    const json_t *given;       // its quantization_config
} msgl_dummy_scheme;

// Of DIR's config.json; PLAIN without a quantization_config, or without such a file.
// MSGL_EUNSUPPORTED: a form that no weights are made up in. Freed by msgl__dummy_scheme_free.
int msgl__dummy_scheme_load(const char *dir, msgl_dummy_scheme *s, msgl_err *err);
void msgl__dummy_scheme_free(msgl_dummy_scheme *s);

// Whether the lists of modules that are not packed leave this one out ("model.layers.0.mlp.gate"),
// or those that are have another.
bool msgl__dummy_scheme_skips(const msgl_dummy_scheme *s, const char *module);

// The blocks of a GGUF file that llama.cpp calls file_type, for a module of layer `layer` of
// `layers` (llama_tensor_get_type of its src/llama-quant.cpp, 2025). NULL: no such type is made up.
const msgl_blocks *msgl__dummy_ggml_blocks(const char *file_type, const char *module, int32_t layer,
                                           int32_t layers);

#endif
