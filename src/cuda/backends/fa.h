// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_BACKENDS_FA_H
#define MSGL_CUDA_BACKENDS_FA_H

#include "cuda/backends/call.h"

extern const msgl_attn_desc msgl__attn_fa_cuda; // metadata: msgl_cuda_batch

#endif
