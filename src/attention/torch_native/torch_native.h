// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_TORCH_NATIVE_TORCH_NATIVE_H
#define MSGL_ATTENTION_TORCH_NATIVE_TORCH_NATIVE_H

#include "attention/attention.h"

extern const msgl_attn_desc msgl__attn_torch_native;

#endif
