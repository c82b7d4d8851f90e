// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_BACKENDS_DUAL_CHUNK_H
#define MSGL_CUDA_BACKENDS_DUAL_CHUNK_H

#include "attention/attention.h"

extern const msgl_attn_desc msgl__attn_dual_chunk_cuda;

#endif
