// SPDX-License-Identifier: Apache-2.0
//
// Mamba-2 up to its output projection: one product to gate z, x, b, c and dt, a convolution over x,
// b and c (kernel/conv.h), the recurrence, and norm and gate (kernel/ssm.h). A state is that of the
// recurrence, then that of the convolution.
#ifndef MSGL_LAYERS_MAMBA_H
#define MSGL_LAYERS_MAMBA_H

#include "layers/linear.h"

typedef struct msgl_mamba {
    // [rows, hidden]: z and x [heads, head_dim], b and c [groups, state_dim], dt [heads].
    msgl_linear in;
    float *conv, *conv_bias; // of the channels of x, b and c: [channels, taps]; [channels], or NULL
    float *a_log, *d, *dt_bias; // [heads]
    float *norm_weight;         // [heads, head_dim], or NULL with norm NONE
    int32_t heads, groups, head_dim, state_dim, taps;
    float dt_min, dt_max, dt_scale, z_scale;
    msgl_ssm_norm norm;
    int32_t norm_groups;
    float eps;
    int32_t group, layer; // of layers with states: msgl_forward.groups; its place there
} msgl_mamba;

static inline int32_t msgl__mamba_channels(const msgl_mamba *m)
{
    return m->heads * m->head_dim + 2 * m->groups * m->state_dim;
}

// Of one request in the layer, with activations of act.
size_t msgl__mamba_state_bytes(const msgl_mamba *m, msgl_dtype act);
// Step arena bytes of msgl__mamba for up to max_tokens tokens with activations of act.
size_t msgl__mamba_workspace(const msgl_mamba *m, msgl_dtype act, int32_t max_tokens);
// in [num_tokens, hidden], before `norm` -> out [num_tokens, heads * head_dim], before the output
// projection. States go on as f->states says.
void msgl__mamba(msgl_forward *f, const msgl_mamba *m, const msgl_norm *norm, const void *in,
                 void *out);

#endif
