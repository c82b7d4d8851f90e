// SPDX-License-Identifier: Apache-2.0
//
// Launchers of the kernel families conv and ssm on GPUs (kernel/conv.h and kernel/ssm.h say what
// they compute), and what family delta shares with them. They only queue work on the exec's stream.
//
// A request's tokens are taken one after the other everywhere, so that results and states do not
// depend on how they were cut into steps, to the bit.
#ifndef MSGL_CUDA_STATES_STATES_H
#define MSGL_CUDA_STATES_STATES_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/conv.h"
#include "kernel/ssm.h"

enum { MSGL_CUDA_MAX_STATE = 256 }; // of msgl_ssm_call.state_dim

void msgl__cuda_conv(msgl_exec *x, const msgl_conv_call *c);
void msgl__cuda_ssm(msgl_exec *x, const msgl_ssm_call *c);

// The inputs of a call's tokens into the states that they leave, of which `out` is no part.
void msgl__cuda_conv_keep(msgl_exec *x, const msgl_conv_call *c);

// Rows of a recurrence's results, in place, with a gate and maybe a norm: of each of `groups`
// neighbouring parts of a row.
typedef struct msgl_cuda_gate_norm {
    void *y; // [tokens, dim]
    size_t ld_y;
    const void *z; // [tokens, dim]
    size_t ld_z;
    int32_t dim, groups;
    msgl_ssm_norm norm;
    const float *weight; // [dim], or with same_weight [dim / groups], the same for each part
    bool same_weight;    //
    float eps, z_scale;  //
    bool sigmoid;        // y sigmoid(z_scale z), not y silu(z_scale z)
} msgl_cuda_gate_norm;

// Rows of requests that are padding stay what they are.
void msgl__cuda_gate_norm_rows(msgl_exec *x, const msgl_states *io, const msgl_cuda_gate_norm *c);

#ifdef __cplusplus
}
#endif

#endif
