// SPDX-License-Identifier: Apache-2.0
//
// config.json and generation_config.json as one typed, range-checked struct. Both spellings are
// read: the one of most published folders (rope_theta, rope_scaling, torch_dtype) and the one that
// transformers 5 writes (rope_parameters, dtype). After a successful load every number here is safe
// to multiply and to allocate by.
#ifndef MSGL_MODELS_CONFIG_H
#define MSGL_MODELS_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/err.h"
#include "core/sampling_params.h"
#include "layers/rotary.h"

#define MSGL_MAX_LAYERS 1024
#define MSGL_MAX_HEADS 1024
#define MSGL_MAX_HEAD_DIM 1024
#define MSGL_MAX_HIDDEN (1 << 17)
#define MSGL_MAX_INTERMEDIATE (1 << 20)
#define MSGL_MAX_VOCAB (1 << 24)
#define MSGL_MAX_EXPERTS 1024
#define MSGL_MAX_TOP_K 64
#define MSGL_MAX_EOS 8

typedef struct msgl_arch msgl_arch;

enum { MSGL_LAYER_SLIDING = 1, MSGL_LAYER_SPARSE = 2 }; // bits of layer_flags

typedef struct msgl_model_config {
    const msgl_arch *arch; // registry.c
    msgl_dtype dtype;      // that the file says the weights have
    int32_t vocab_size, hidden_size, num_layers, intermediate_size, max_position;
    int32_t num_heads, num_kv_heads, head_dim;
    float rms_eps;
    bool tie_embeddings, qkv_bias, o_bias, mlp_bias, qk_norm;
    int32_t sliding_window; // keys that a query of a sliding layer sees, itself included; 0: none
    uint8_t layer_flags[MSGL_MAX_LAYERS];
    msgl_rope_config rope;
    // Mixture of experts, in layers with MSGL_LAYER_SPARSE.
    int32_t num_experts, top_k, moe_intermediate_size;
    bool norm_topk;
    int32_t num_eos; // generation_config.json's where it has them
    int32_t eos_ids[MSGL_MAX_EOS];
    // Of a request that leaves these fields out: generation_config.json's, else plain sampling.
    msgl_sampling_params sampling;
} msgl_model_config;

// Reads DIR/config.json and, when there, DIR/generation_config.json. Errors are one line with file,
// field, what was found and what is allowed.
int msgl__model_config_load(const char *dir, msgl_model_config *out, msgl_err *err);

// Tokens of context that the model is made for: max_position_embeddings, or what its rope scaling
// stretches that to.
int32_t msgl__model_config_context(const msgl_model_config *c);

#endif
