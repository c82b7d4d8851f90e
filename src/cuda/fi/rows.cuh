// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_FI_ROWS_CUH
#define MSGL_CUDA_FI_ROWS_CUH

#include <cuda_runtime.h>

extern "C" {
#include "cuda/fi/api.h"

int msgl__fi_rows(const msgl_fi_rows_call *c, void *stream);
int msgl__fi_merge(const msgl_fi_merge_call *c, void *stream);
}

#endif
