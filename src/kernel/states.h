// SPDX-License-Identifier: Apache-2.0
//
// Where kernels that carry a state from token to token find the states of a call's requests, and
// where they leave them: families delta, conv and ssm. A state is a block of bytes; what it holds
// is the family's, and a layer's may hold those of two (a convolution's inputs behind a matrix).
//
// A request's results and states depend on its own tokens alone. On the CPU they do not depend
// either on how these were cut into steps, to the bit.
#ifndef MSGL_KERNEL_STATES_H
#define MSGL_KERNEL_STATES_H

#include <stddef.h>
#include <stdint.h>

#include "core/batch.h"

// The state behind token `len` of a request, into state `state`.
typedef struct msgl_kept_state {
    int32_t len, state;
} msgl_kept_state;

// By number, of the requests of one msgl_seqs. Arrays of two names are in host memory and, with
// dev_, on the device (on the CPU not looked at).
typedef struct msgl_seq_states {
    // Request r begins with state from[r], -1: zeros, and leaves its own in to[r]; -1: the request
    // is padding, nothing of it is read or written but its rows of the result, which become zeros.
    // from[r] is to[r], or a state that nobody in this call writes.
    const int32_t *from, *to, *dev_from, *dev_to; // [seqs->size]
    // NULL, or: saves[save_start[r], save_start[r + 1]) are request r's, len ascending, in
    // (tokens before the step, tokens behind it], and on a GPU, of what is no answer, a multiple of
    // MSGL_DELTA_CHUNK or the last.
    const msgl_kept_state *saves, *dev_saves;
    const int32_t *save_start, *dev_save_start; // [seqs->size + 1]
    // Of phase prefill: so many requests in front are answers, with drafts. A GPU computes their
    // rows as phase decode does.
    int32_t num_answers;
} msgl_seq_states;

typedef struct msgl_states {
    // Requests and their lengths. Phase decode: one token each.
    const msgl_seqs *seqs;
    // State i begins at base + i * stride bytes.
    void *base;
    size_t stride;
    msgl_seq_states at;
} msgl_states;

#endif
