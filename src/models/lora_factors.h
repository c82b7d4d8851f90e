// SPDX-License-Identifier: Apache-2.0
//
// The two factors of a module's adapter, A and B, in a file whose tensors come in the order of
// their names.
#ifndef MSGL_MODELS_LORA_FACTORS_H
#define MSGL_MODELS_LORA_FACTORS_H

#include "models/checkpoint.h"
#include "models/weights.h"

typedef struct msgl_lora_factors {
    char name[2 * MSGL_TENSOR_NAME]; // of the module, as PEFT matches it
    const msgl_tensor *a, *b;        // [rank, in], [out, rank]
    int32_t rank;
    float scale;
} msgl_lora_factors;

// One line of an adapter's file c and its tensor; returns the code.
int msgl__lora_fail(const msgl_checkpoint *c, const msgl_tensor *t, int code, const char *what,
                    msgl_err *err);

// Whether they are of the module called by the name's first `len` bytes.
bool msgl__lora_factors_are(const msgl_lora_factors *f, const char *name, size_t len);
// Empty ones of that module, for the tensor t. MSGL_ELIMIT: the name is too long.
int msgl__lora_factors_begin(const msgl_checkpoint *c, const msgl_tensor *t, const char *name,
                             size_t len, msgl_lora_factors *f, msgl_err *err);
// t is A or B. MSGL_EFORMAT: it is no matrix of floats, or of blocks (GGUF).
int msgl__lora_factors_take(const msgl_checkpoint *c, const msgl_tensor *t, bool is_a,
                            msgl_lora_factors *f, msgl_err *err);
// Behind the last tensor. MSGL_EFORMAT: one is missing.
int msgl__lora_factors_check(const msgl_checkpoint *c, const msgl_lora_factors *f, msgl_err *err);
// MSGL_ELIMIT: the rank of A is 0 or above the most.
int msgl__lora_check_rank(const msgl_checkpoint *c, const msgl_tensor *a, int64_t rank,
                          int32_t most, msgl_err *err);

// Behind "layers.N" of a module's name: "" or from the dot on; NULL: there is no such part.
const char *msgl__lora_behind_layer(const char *name, int32_t *layer);

#endif
