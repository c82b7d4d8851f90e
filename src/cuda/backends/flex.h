// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_BACKENDS_FLEX_H
#define MSGL_CUDA_BACKENDS_FLEX_H

#include "attention/attention.h"

extern const msgl_attn_desc msgl__attn_flex_cuda, msgl__attn_fa4_cuda;

#endif
