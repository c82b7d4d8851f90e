// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_BACKENDS_TORCH_NATIVE_H
#define MSGL_CUDA_BACKENDS_TORCH_NATIVE_H

#include "cuda/backends/call.h"

extern const msgl_attn_desc msgl__attn_torch_native_cuda; // metadata: msgl_cuda_batch

#endif
