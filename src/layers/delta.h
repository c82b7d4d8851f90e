// SPDX-License-Identifier: Apache-2.0
//
// Linear attention by the gated delta rule up to its output projection (kernel/delta.h): one
// product to what the kernels take, then convolution, recurrence, norm and gate as one call.
#ifndef MSGL_LAYERS_DELTA_H
#define MSGL_LAYERS_DELTA_H

#include "layers/linear.h"

typedef struct msgl_delta {
    // [rows, hidden]: q, k and v heads, z as many as v, b and a one a v head, and a few without
    // use.
    msgl_linear in;
    float *conv;            // [channels of q, k and v, MSGL_DELTA_TAPS]
    float *a_log, *dt_bias; // [v_heads]
    float *norm;            // [v_dim]
    float eps;
    int32_t k_heads, v_heads, k_dim, v_dim;
    bool sigmoid_gate;    // of results: sigmoid(z), not silu(z)
    int32_t group, layer; // of layers with states: msgl_forward.groups; its place there
} msgl_delta;

// The call's part that depends on the layer alone.
msgl_delta_call msgl__delta_call_of(const msgl_delta *d);
// Rows of `in`.
int32_t msgl__delta_rows(const msgl_delta *d);
// Step arena bytes of msgl__delta for up to max_tokens tokens with activations of act.
size_t msgl__delta_workspace(const msgl_delta *d, msgl_dtype act, int32_t max_tokens);
// Scratch of its call at most, for up to max_tokens tokens of up to max_requests requests.
size_t msgl__delta_scratch(const msgl_delta *d, const msgl_kernels *k, int32_t max_tokens,
                           int32_t max_requests);
// in [num_tokens, hidden], before `norm` -> out [num_tokens, v_heads * v_dim], before the output
// projection. States go on as f->states says.
void msgl__delta(msgl_forward *f, const msgl_delta *d, const msgl_norm *norm, const void *in,
                 void *out);

#endif
