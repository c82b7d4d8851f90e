// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_DUAL_CHUNK_DUAL_CHUNK_CUDA_H
#define MSGL_ATTENTION_DUAL_CHUNK_DUAL_CHUNK_CUDA_H

#include "attention/attention.h"

extern const msgl_attn_desc msgl__attn_dual_chunk_cuda;

#endif
