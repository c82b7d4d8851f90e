// SPDX-License-Identifier: Apache-2.0
//
// For `configure` of architectures with Mamba-2: its fields, by whatever names they have there.
#ifndef MSGL_MODELS_MAMBA_CONFIG_H
#define MSGL_MODELS_MAMBA_CONFIG_H

#include "models/config.h"
#include "models/json_read.h"

typedef struct msgl_mamba_field {
    const char *key;
    int32_t usual; // where the field is missing
} msgl_mamba_field;

typedef struct msgl_mamba_keys {
    // head_dim: usual 0: expand hidden_size / heads, as for "auto".
    msgl_mamba_field heads, groups, head_dim, state_dim, taps, expand;
    const char *conv_bias, *proj_bias; // true, false where they are missing
    bool own_silu;                     // whatever hidden_act says of other blocks
    const char *width;                 // of all heads, in place of expand hidden_size; or NULL
} msgl_mamba_keys;

// As Granite 4, Bamba and Falcon-H1 call them.
#define MSGL_MAMBA_KEYS                                                                            \
    {                                                                                              \
        .heads = {"mamba_n_heads", 128}, .groups = {"mamba_n_groups", 1},                          \
        .head_dim = {"mamba_d_head", 0}, .state_dim = {"mamba_d_state", 256},                      \
        .taps = {"mamba_d_conv", 4}, .expand = {"mamba_expand", 2},                                \
        .conv_bias = "mamba_conv_bias", .proj_bias = "mamba_proj_bias",                            \
    }

// Fills c->decoder.mamba: a norm by group behind the gate, no factors; failures go to the reader.
void msgl__mamba_read(msgl_json_reader *r, msgl_model_config *c, const msgl_mamba_keys *k);

#endif
