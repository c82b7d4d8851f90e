// SPDX-License-Identifier: Apache-2.0
//
// Kernel family ssm: the recurrence of Mamba-2 (Dao & Gu 2024, "Transformers are SSMs") behind its
// convolution (conv.h), with the gate and the norm behind it. Per head h, which has the group
// h / (heads / groups):
//
//   dt = min(max(softplus(dt_scale dt_raw + dt_bias), dt_min), dt_max)
//   S = S e^(-dt e^a_log) + b (dt x)^T                    S [state_dim, head_dim], the state
//   y = S^T c + d x
//   out = norm(y silu(z_scale z)), or norm(y) silu(z_scale z), or y silu(z_scale z)
//   norm(v) = v / sqrt(mean v^2 + norm_eps) weight, the mean over heads head_dim / norm_groups
//
// A state of one request in one layer is f32 S [heads, state_dim, head_dim].
#ifndef MSGL_KERNEL_SSM_H
#define MSGL_KERNEL_SSM_H

#include "core/dtype.h"
#include "kernel/exec.h"
#include "kernel/states.h"

enum { MSGL_SSM_MAX_DIM = 256 };

typedef enum msgl_ssm_norm {
    MSGL_SSM_NORM_NONE,
    MSGL_SSM_NORM_GATED, // of what is gated
    MSGL_SSM_NORM_FIRST, // before the gate
} msgl_ssm_norm;

typedef struct msgl_ssm_call {
    msgl_states io;
    // heads a multiple of groups, head_dim a multiple of 16 up to MSGL_SSM_MAX_DIM
    int32_t heads, groups, head_dim, state_dim;
    // Rows of exec->act, the first one that of seqs' first token; ld in elements.
    const void *x;     // [tokens, heads, head_dim]
    const void *b, *c; // [tokens, groups, state_dim]
    size_t ld_x;       // of x, b and c
    const void *z;     // [tokens, heads, head_dim]
    const void *dt;    // [tokens, heads]
    size_t ld_z;       // of z and dt
    void *out;         // [tokens, heads, head_dim]
    size_t ld_out;
    const float *a_log, *d, *dt_bias; // [heads]
    float dt_min, dt_max, dt_scale, z_scale;
    msgl_ssm_norm norm;
    const float *norm_weight; // [heads, head_dim]; of norm NONE not looked at
    float norm_eps;
    int32_t norm_groups; // a divisor of heads, or a multiple that leaves multiples of 16
} msgl_ssm_call;

static inline size_t msgl__ssm_state_bytes(int32_t heads, int32_t head_dim, int32_t state_dim)
{
    return (size_t)heads * (size_t)head_dim * (size_t)state_dim * sizeof(float);
}

typedef struct msgl_ssm_kernels {
    // NULL: this device has none. On a GPU states are at multiples of 16 bytes, and `from` states
    // may be read before the kernel ahead of this call has ended: their last writer is of an
    // earlier step.
    void (*run)(msgl_exec *x, const msgl_ssm_call *c);
    int32_t max_state_dim; // of a call; 0: any
} msgl_ssm_kernels;

#endif
