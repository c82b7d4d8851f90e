// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_BACKENDS_EXPAND_H
#define MSGL_CUDA_BACKENDS_EXPAND_H

#include "attention/expand.h"

extern const msgl_expand_kernels msgl__expand_cuda; // of heads of 128 + 64 and 128, bf16, on Hopper

#endif
