// SPDX-License-Identifier: Apache-2.0
//
// What a checkpoint's bytes are: a row for each type that its files hold weights in, as `minisgl
// info` shows them. A packed weight is one tensor with the scales, zero points and whatever else
// stands beside it, whether that is read or not.
#ifndef MSGL_MODELS_CONTENTS_H
#define MSGL_MODELS_CONTENTS_H

#include "models/checkpoint.h"

typedef struct msgl_type_row {
    char name[40]; // "Q4_K", "BF16", "GPTQ 4-bit"
    size_t tensors, bytes;
} msgl_type_row;

typedef struct msgl_type_rows {
    msgl_type_row *at; // [count], the largest first, equal ones by name
    size_t count;
    size_t bytes; // of all rows, which is all of the files' tensors but GGUF's factors of rotary
                  // embedding: those are settings, and the checkpoint has no such tensor
} msgl_type_rows;

// The rows of all tensors, those too that the model ignores. MSGL_ENOMEM. Freed with
// msgl__type_rows_free, also after a failure.
int msgl__checkpoint_types(const msgl_checkpoint *c, msgl_type_rows *out, msgl_err *err);
void msgl__type_rows_free(msgl_type_rows *r);

#endif
