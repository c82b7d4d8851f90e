// SPDX-License-Identifier: Apache-2.0
//
// For `configure` of architectures with experts in DeepSeek's form (DeepSeek-AI 2024,
// "DeepSeek-V3", section 2.1.2): some that every token has, and others of which a token's are
// chosen.
#ifndef MSGL_MODELS_DECODER_EXPERTS_H
#define MSGL_MODELS_DECODER_EXPERTS_H

#include "models/decoder.h"

// n_routed_experts and the fields of msgl__decoder_read_experts, n_shared_experts,
// routed_scaling_factor. All layers are sparse, but for mlp_only_layers.
void msgl__decoder_read_routed_experts(msgl_json_reader *r, msgl_model_config *c);
// Sigmoids, corrected for the choice, and groups by their best two; norm_topk_prob, n_group,
// topk_group. Behind the experts. norms: what it means that norm_topk_prob is missing.
void msgl__decoder_read_sigmoids(msgl_json_reader *r, msgl_model_config *c, bool norms);
// The field `key`, mostly n_group, and topk_group: groups of experts, of which a token's come from
// some only.
void msgl__decoder_read_groups(msgl_json_reader *r, msgl_model_config *c, const char *key);
// Layers that have no experts: the first first_k_dense_replace, `usual` where it is missing, and
// those that moe_layer_freq does not divide.
void msgl__decoder_read_dense_layers(msgl_json_reader *r, msgl_model_config *c, int32_t usual);

#endif
