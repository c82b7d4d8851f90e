// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_FA_FA_CUDA_H
#define MSGL_ATTENTION_FA_FA_CUDA_H

#include "attention/cuda_call.h"

extern const msgl_attn_desc msgl__attn_fa_cuda; // metadata: msgl_cuda_batch

#endif
