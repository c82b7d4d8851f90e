// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_FI_PLAN_CUH
#define MSGL_CUDA_FI_PLAN_CUH

#include <string.h>

#include "cuda/fi/wrap.cuh"

#define cudaMemcpyAsync msgl_fi_note_copy
#include <flashinfer/attention/scheduler.cuh>
#undef cudaMemcpyAsync

int msgl__fi_plan_tensor_cores(const msgl_fi_plan_call *c, msgl_fi_planned *out);
int msgl__fi_plan_hopper(const msgl_fi_plan_call *c, msgl_fi_planned *out);
int msgl__fi_plan_latent(const msgl_fi_plan_call *c, msgl_fi_planned *out);
extern "C" void msgl__fi_sizes(const msgl_fi_shape *shape, int32_t max_batch, int32_t max_tokens,
                               size_t *staging_bytes, size_t *float_bytes);

#endif
