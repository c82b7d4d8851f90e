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
// With by_channel (Kimi Delta Attention: Kimi Linear, 2025) row d of S decays by itself, by
// g[d] = -e^a_log softplus(a[d] + dt_bias[d]); with sigmoid_gate the last factor is sigmoid(z).
//
// A state of one request in one layer is f32 S [v_heads, k_dim, v_dim], then the convolution's last
// inputs [4, channels] of exec->act, that of position p in row p % 4: a token reads three rows and
// writes the fourth, so that nothing of a step has to wait for another reader.
#ifndef MSGL_KERNEL_DELTA_H
#define MSGL_KERNEL_DELTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "kernel/exec.h"
#include "kernel/states.h"

enum {
    MSGL_DELTA_TAPS = 4,   // of the convolution
    MSGL_DELTA_CHUNK = 64, // tokens that a GPU takes at a time
    MSGL_DELTA_MAX_DIM = 256,
};

typedef struct msgl_delta_call {
    msgl_states io;
    int32_t k_heads, v_heads, k_dim, v_dim; // v_heads a multiple of k_heads, dims of 16
    // Rows of exec->act, the first one that of seqs' first token; ld in elements.
    const void *qkv; // [tokens, channels]: q heads, k heads, v heads
    size_t ld_qkv;
    const void *z; // [tokens, v_heads, v_dim]
    size_t ld_z;
    const void *a; // [tokens, v_heads], by_channel: [tokens, v_heads, k_dim]
    size_t ld_a;
    const void *b; // [tokens, v_heads]
    size_t ld_b;
    void *out; // [tokens, v_heads, v_dim]
    size_t ld_out;
    bool by_channel, sigmoid_gate;
    const float *conv;    // [channels, 4], the token's own tap last
    const float *a_log;   // [v_heads]
    const float *dt_bias; // [v_heads], by_channel: [v_heads, k_dim]
    const float *norm;    // [v_dim]
    float norm_eps;
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

// Beside what states.h says, of Hopper's kernels for bf16 and dims of 128 without by_channel:
// results and states do not depend on cuts if every one between two steps of phase prefill is at a
// multiple of MSGL_DELTA_CHUNK tokens; other cuts are right within rounding. A GPU's states are
// within 1e-2 of the recurrence in exact arithmetic, by the norm of a head's S.
// NULL: this device has none.
typedef struct msgl_delta_kernels {
    // On a GPU states at multiples of 16 bytes; of what is above also ld_a = ld_b and rows at
    // multiples of 16 bytes (fast: states at multiples of 128); MSGL_EUNSUPPORTED in x->status
    // otherwise. A GPU may read `from` states before the kernel ahead of this call has ended: their
    // last writer is of an earlier step.
    void (*run)(msgl_exec *x, const msgl_delta_call *c);
    // Whether calls of these dimensions run with activations of act on this device (capability: a
    // GPU's).
    bool (*supports)(int32_t capability, msgl_dtype act, const msgl_delta_call *dims);
    // Most scratch of a call with at most c->io.seqs->num_tokens rows of at most c->io.seqs->size
    // requests; only these, phase and dimensions are looked at.
    size_t (*scratch_size)(const msgl_delta_call *c);
} msgl_delta_kernels;

#endif
