// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_FI_FI_CUDA_H
#define MSGL_ATTENTION_FI_FI_CUDA_H

#include "attention/cuda_call.h"

extern const msgl_attn_desc msgl__attn_fi_cuda; // metadata: msgl_cuda_batch

#endif
