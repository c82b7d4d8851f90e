// SPDX-License-Identifier: Apache-2.0
//
// Kernel family conv: causal depthwise convolution over the last tokens, as recurrent mixers have
// it (LFM2 by itself; Mamba-2 in front of its recurrence). Per channel c, of position p:
//
//   x(p) = in(p) before(p)
//   y(p) = bias + sum over i of weight[i] x(p - (taps - 1 - i) (skip + 1))
//                                                                  x is 0 in front of the request
//   out(p) = f(y(p)) behind(p)                                     f: silu, or nothing
//
// With skip = 2, taps 4 (a dilation of 3), position 20 reads those of 11, 14, 17 and itself.
//
// A state holds the last inputs x, [rows, channels] of exec->act with rows = (taps - 1) (skip + 1)
// + 1, that of position p in row p % rows: a token reads some of the others and writes its own.
#ifndef MSGL_KERNEL_CONV_H
#define MSGL_KERNEL_CONV_H

#include <stdbool.h>

#include "core/dtype.h"
#include "kernel/exec.h"
#include "kernel/states.h"

enum { MSGL_CONV_MAX_TAPS = 4, MSGL_CONV_MAX_SKIP = 7 };

typedef struct msgl_conv_call {
    msgl_states io;
    int32_t channels, taps; // channels a multiple of 16, taps in [2, MSGL_CONV_MAX_TAPS]
    int32_t skip;           // tokens between two taps' inputs, up to MSGL_CONV_MAX_SKIP
    // Rows of exec->act, the first one that of seqs' first token; ld in elements.
    const void *in;              // [tokens, channels]
    const void *before, *behind; // NULL: 1; rows as far apart as in's
    size_t ld_in;
    const float *weight; // [channels, taps], the token's own tap last
    const float *bias;   // [channels], or NULL
    bool silu;
    void *out; // [tokens, channels]; apart from what is read
    size_t ld_out;
} msgl_conv_call;

// Rows of a state.
static inline int32_t msgl__conv_rows(int32_t taps, int32_t skip)
{
    return (taps - 1) * (skip + 1) + 1;
}

static inline size_t msgl__conv_state_bytes(int32_t channels, int32_t rows, msgl_dtype act)
{
    return (size_t)channels * (size_t)rows * msgl__dtype_size(act);
}

typedef struct msgl_conv_kernels {
    // NULL: this device has none. On a GPU states are at multiples of an element, and `from` states
    // may be read before the kernel ahead of this call has ended: their last writer is of an
    // earlier step.
    void (*run)(msgl_exec *x, const msgl_conv_call *c);
} msgl_conv_kernels;

#endif
