// SPDX-License-Identifier: Apache-2.0
//
// Kernel family delta: linear attention by the gated delta rule (Yang, Kautz & Hatamizadeh 2024,
// "Gated Delta Networks"), as Qwen3-Next has it. A token's channels q, k and v go through a causal
// convolution over four tokens, by channel, and silu; then per v head, which has the k head
// v_head / (v_heads / k_heads):
//
//   q = q / sqrt(sum q^2 + 1e-6) / sqrt(k_dim), k = k / sqrt(sum k^2 + 1e-6)
//   S = S e^g, g = -e^a_log softplus(a + dt_bias)           S [k_dim, v_dim], the state
//   u = sigmoid(b) (v - S^T k), S = S + k u^T, o = S^T q
//   out = o / sqrt(mean o^2 + norm_eps) norm silu(z)
//
// A state of one request in one layer is f32 S [v_heads, k_dim, v_dim], then the convolution's last
// inputs [4, channels] of exec->act, that of position p in row p % 4: a token reads three rows and
// writes the fourth, so that nothing of a step has to wait for another reader.
#ifndef MSGL_KERNEL_DELTA_H
#define MSGL_KERNEL_DELTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/batch.h"
#include "core/dtype.h"
#include "kernel/exec.h"

enum {
    MSGL_DELTA_TAPS = 4,   // of the convolution
    MSGL_DELTA_CHUNK = 64, // tokens that a GPU takes at a time
    MSGL_DELTA_MAX_DIM = 256,
};

// The state behind token `len` of a request, into state `state`.
typedef struct msgl_delta_save {
    int32_t len, state;
} msgl_delta_save;

// Arrays of two names are in host memory and, with dev_, on the device (on the CPU not looked at).
typedef struct msgl_delta_call {
    // Requests and their lengths. Phase decode: one token each.
    const msgl_seqs *seqs;
    int32_t k_heads, v_heads, k_dim, v_dim; // v_heads a multiple of k_heads, dims of 16
    // Rows of exec->act, the first one that of seqs' first token; ld in elements.
    const void *qkv; // [tokens, channels]: q heads, k heads, v heads
    size_t ld_qkv;
    const void *z; // [tokens, v_heads, v_dim]
    size_t ld_z;
    const void *a, *b; // [tokens, v_heads]
    size_t ld_ab;
    void *out; // [tokens, v_heads, v_dim]
    size_t ld_out;
    const float *conv;            // [channels, 4], the token's own tap last
    const float *a_log, *dt_bias; // [v_heads]
    const float *norm;            // [v_dim]
    float norm_eps;
    // State i begins at states + i * state_stride bytes. Request r begins with state from[r], -1:
    // zeros, and leaves its own in to[r]; -1: the request is padding, nothing of it is read or
    // written but its rows of out, which become zeros. from[r] is to[r], or a state that nobody in
    // this call writes.
    void *states;
    size_t state_stride;
    const int32_t *from, *to, *dev_from, *dev_to; // [seqs->size]
    // Of phase prefill: so many requests in front are answers, with drafts. A GPU computes their
    // rows as phase decode does.
    int32_t num_answers;
    // NULL, or: saves[save_start[r], save_start[r + 1]) are request r's, len ascending, in
    // (tokens before the step, tokens behind it], and on a GPU, of what is no answer, a multiple of
    // MSGL_DELTA_CHUNK or the last.
    const msgl_delta_save *saves, *dev_saves;
    const int32_t *save_start, *dev_save_start; // [seqs->size + 1]
} msgl_delta_call;

static inline int32_t msgl__delta_channels(const msgl_delta_call *c)
{
    return 2 * c->k_heads * c->k_dim + c->v_heads * c->v_dim;
}

// Bytes of S in a state, behind which the convolution's inputs are, and of a state.
static inline size_t msgl__delta_matrix_bytes(const msgl_delta_call *c)
{
    return (size_t)c->v_heads * (size_t)c->k_dim * (size_t)c->v_dim * sizeof(float);
}
static inline size_t msgl__delta_state_bytes(const msgl_delta_call *c, msgl_dtype act)
{
    return msgl__delta_matrix_bytes(c) +
           (size_t)msgl__delta_channels(c) * MSGL_DELTA_TAPS * msgl__dtype_size(act);
}

// A request's results and states depend on its own tokens alone. On the CPU they do not depend
// either on how these were cut into steps, to the bit. On a GPU they do not if every cut between
// two steps of phase prefill is at a multiple of MSGL_DELTA_CHUNK tokens; other cuts are right
// within rounding. A GPU's states are within 1e-2 of the recurrence in exact arithmetic, by the
// norm of a head's S.
typedef struct msgl_delta_kernels {
    // On a GPU, of compute capability 9.0: bf16, dims of 128, rows and states at multiples of 16
    // bytes (fast: states at multiples of 128); MSGL_EUNSUPPORTED in x->status otherwise. A GPU may
    // read `from` states before the kernel ahead of this call has ended: their last writer is of an
    // earlier step.
    void (*run)(msgl_exec *x, const msgl_delta_call *c);
    // Whether calls of these dimensions run with activations of act on this device (capability: a
    // GPU's).
    bool (*supports)(int32_t capability, msgl_dtype act, const msgl_delta_call *dims);
    // Most scratch of a call with at most c->seqs->num_tokens rows of at most c->seqs->size
    // requests; only these, phase and dimensions are looked at.
    size_t (*scratch_size)(const msgl_delta_call *c);
} msgl_delta_kernels;

#endif
