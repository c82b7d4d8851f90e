// SPDX-License-Identifier: Apache-2.0
//
// For `configure` of models that are DeepSeek-V3 and something else.
#ifndef MSGL_MODELS_DEEPSEEK_H
#define MSGL_MODELS_DEEPSEEK_H

#include "models/decoder.h"

// Fields of every descriptor.
#define MSGL_DEEPSEEK                                                                              \
    .family = &msgl__decoder_family, .head_dim_key = "qk_rope_head_dim",                           \
    .ignores_layers_behind = true, .mtp = msgl__mtp_of_deepseek

// V3's fields: latent attention, and experts chosen by sigmoids, corrected for the choice, and
// groups by their best two. False: there are no experts, or a field was rejected.
bool msgl__deepseek_configure_sigmoids(msgl_json_reader *r, msgl_model_config *c);

// mlp_layer_types names each layer's block, whatever first_k_dense_replace says beside it: what
// transformers has read since it writes the list. Hubs' older configs have the number alone; usual:
// where that is missing, too.
void msgl__deepseek_read_mlp_layer_types(msgl_json_reader *r, msgl_model_config *c, int32_t usual);

#endif
