// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_FI_CUDA_ROWS_CUH
#define MSGL_ATTENTION_FI_CUDA_ROWS_CUH

#include <cuda_runtime.h>

extern "C" {
#include "attention/fi/cuda/api.h"

int msgl__fi_rows(const msgl_fi_rows_call *c, void *stream);
int msgl__fi_merge(const msgl_fi_merge_call *c, void *stream);
}

#endif
