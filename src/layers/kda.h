// SPDX-License-Identifier: Apache-2.0
//
// Kimi Delta Attention (Kimi Linear, 2025) up to its output projection: the delta rule with a decay
// for each channel of the keys and a sigmoid as gate (kernel/delta.h, by_channel). Decays and gates
// come from the stream by way of `rank` channels.
#ifndef MSGL_LAYERS_KDA_H
#define MSGL_LAYERS_KDA_H

#include "layers/linear.h"

typedef struct msgl_kda {
    // [rows, hidden]: q, k and v [heads, dim], what decays and what gates are made of [rank] each,
    // b [heads].
    msgl_linear in;
    msgl_linear decays, gates; // [heads * dim, rank]
    float *conv;               // [channels of q, k and v, MSGL_DELTA_TAPS]
    float *a_log, *dt_bias;    // [heads]; [heads, dim]
    float *norm;               // [dim]
    float eps;
    int32_t heads, dim, rank;
    int32_t group, layer; // of layers with states: msgl_forward.groups; its place there
} msgl_kda;

// The call's part that depends on the layer alone.
msgl_delta_call msgl__kda_call_of(const msgl_kda *l);
// Step arena bytes of msgl__kda for up to max_tokens tokens with activations of act.
size_t msgl__kda_workspace(const msgl_kda *l, msgl_dtype act, int32_t max_tokens);
// in [num_tokens, hidden], before `norm` -> out [num_tokens, heads * dim], before the output
// projection. States go on as f->states says.
void msgl__kda(msgl_forward *f, const msgl_kda *l, const msgl_norm *norm, const void *in,
               void *out);

#endif
