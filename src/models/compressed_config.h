// SPDX-License-Identifier: Apache-2.0
//
// For `configure` of architectures with compressed attention (layers/compressed_attention.h): its
// fields as DeepSeek-V4's files spell them, by hubs and by transformers 5.
#ifndef MSGL_MODELS_COMPRESSED_CONFIG_H
#define MSGL_MODELS_COMPRESSED_CONFIG_H

#include "models/decoder.h"

// Fills c->decoder.compressed, the window, the flags of layers and both ropes: ropes[0] is that of
// layers with compressed keys and ropes[1] of the others, which have MSGL_LAYER_SECOND_ROPE.
// Failures go to the reader.
void msgl__decoder_read_compressed(msgl_json_reader *r, msgl_model_config *c);

#endif
