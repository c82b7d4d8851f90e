// SPDX-License-Identifier: Apache-2.0
#include "cuda/attn/prefill_sm90/inst.cuh"

template cudaError_t msgl__fa_prefill_launch_dual<__half, 128>(const msgl_fa_prefill_params &, bool,
                                                               int, cudaStream_t);
