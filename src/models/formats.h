// SPDX-License-Identifier: Apache-2.0
//
// The descriptors that checkpoint.c lists, one per format's file.
#ifndef MSGL_MODELS_FORMATS_H
#define MSGL_MODELS_FORMATS_H

#include "models/checkpoint.h"

extern const msgl_checkpoint_format msgl__format_gguf, msgl__format_safetensors;

#endif
