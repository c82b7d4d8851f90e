// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_BACKENDS_DOUBLE_SPARSITY_H
#define MSGL_CUDA_BACKENDS_DOUBLE_SPARSITY_H

#include "attention/attention.h"

extern const msgl_attn_desc msgl__attn_sparse_cuda;

#endif
