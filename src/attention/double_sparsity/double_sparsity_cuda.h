// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_DOUBLE_SPARSITY_DOUBLE_SPARSITY_CUDA_H
#define MSGL_ATTENTION_DOUBLE_SPARSITY_DOUBLE_SPARSITY_CUDA_H

#include "attention/attention.h"

extern const msgl_attn_desc msgl__attn_sparse_cuda;

#endif
