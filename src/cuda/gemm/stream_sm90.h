// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_GEMM_STREAM_SM90_H
#define MSGL_CUDA_GEMM_STREAM_SM90_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/calls.h"
#include "kernel/exec.h"

// A gated product of up to 256 rows with large weights, one kernel. No norm, no bias.
bool msgl__cuda_stream_sm90_can(const msgl_exec *x, const msgl_linear_call *c);
// False, and nothing queued, where it cannot do the call. Takes the device's workspace of products,
// as the library does.
bool msgl__cuda_stream_sm90(msgl_exec *x, const msgl_linear_call *c);

#ifdef __cplusplus
}
#endif

#endif
