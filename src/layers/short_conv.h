// SPDX-License-Identifier: Apache-2.0
//
// A short convolution between two gates (LFM2: Liquid AI 2025) up to its output projection: b, c
// and x are one product of the stream, and the result is c conv(b x), by channel (kernel/conv.h).
#ifndef MSGL_LAYERS_SHORT_CONV_H
#define MSGL_LAYERS_SHORT_CONV_H

#include "layers/linear.h"

typedef struct msgl_short_conv {
    msgl_linear in;       // [3 channels, hidden]: b, c, x
    float *weight, *bias; // [channels, taps]; [channels], or NULL
    int32_t channels, taps;
    int32_t group, layer; // of layers with states: msgl_forward.groups; its place there
} msgl_short_conv;

// Step arena bytes of msgl__short_conv for up to max_tokens tokens with activations of act.
size_t msgl__short_conv_workspace(const msgl_short_conv *l, msgl_dtype act, int32_t max_tokens);
// in [num_tokens, hidden], before `norm` -> out [num_tokens, channels], before the output
// projection. States go on as f->states says.
void msgl__short_conv(msgl_forward *f, const msgl_short_conv *l, const msgl_norm *norm,
                      const void *in, void *out);

#endif
