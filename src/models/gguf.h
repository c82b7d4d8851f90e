// SPDX-License-Identifier: Apache-2.0
//
// What the metadata of a GGUF file says about the model, as llama.cpp's convert_hf_to_gguf.py
// writes it.
#ifndef MSGL_MODELS_GGUF_H
#define MSGL_MODELS_GGUF_H

#include "models/config.h"
#include "utils/gguf.h"

// gguf_config.c: the config of a checked file. MSGL_EUNSUPPORTED for another architecture; errors
// name the file's own keys.
int msgl__gguf_config(const msgl_gguf *g, msgl_model_config *out, msgl_err *err);

#endif
