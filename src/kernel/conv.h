// SPDX-License-Identifier: Apache-2.0
//
// Kernel family conv: causal depthwise convolution over the last tokens, as recurrent mixers have
// it (LFM2 by itself; Mamba-2 in front of its recurrence). Per channel c, of position p:
//
//   x(p) = in(p) before(p)
//   y(p) = bias + sum over i of weight[i] x(p - taps + 1 + i)      x is 0 in front of the request
//   out(p) = f(y(p)) behind(p)                                     f: silu, or nothing
//
// A state holds the last inputs x, [taps, channels] of exec->act, that of position p in row
// p % taps: a token reads taps - 1 rows and writes the other one.
#ifndef MSGL_KERNEL_CONV_H
#define MSGL_KERNEL_CONV_H

#include <stdbool.h>

#include "core/dtype.h"
#include "kernel/exec.h"
#include "kernel/states.h"

enum { MSGL_CONV_MAX_TAPS = 4 };

typedef struct msgl_conv_call {
    msgl_states io;
    int32_t channels, taps; // channels a multiple of 16, taps in [2, MSGL_CONV_MAX_TAPS]
    // Rows of exec->act, the first one that of seqs' first token; ld in elements.
    const void *in;              // [tokens, channels]
    const void *before, *behind; // NULL: 1; rows as far apart as in's
    size_t ld_in;
    const float *weight; // [channels, taps], the token's own tap last
    const float *bias;   // [channels], or NULL
    bool silu;
    void *out; // [tokens, channels]
    size_t ld_out;
} msgl_conv_call;

static inline size_t msgl__conv_state_bytes(int32_t channels, int32_t taps, msgl_dtype act)
{
    return (size_t)channels * (size_t)taps * msgl__dtype_size(act);
}

typedef struct msgl_conv_kernels {
    // NULL: this device has none. On a GPU states are at multiples of an element, and `from` states
    // may be read before the kernel ahead of this call has ended: their last writer is of an
    // earlier step.
    void (*run)(msgl_exec *x, const msgl_conv_call *c);
} msgl_conv_kernels;

#endif
