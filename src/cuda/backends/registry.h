// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_BACKENDS_REGISTRY_H
#define MSGL_CUDA_BACKENDS_REGISTRY_H

#include "attention/attention.h"

extern const msgl_attn_set msgl__attn_cuda; // of GPUs

#endif
