// SPDX-License-Identifier: Apache-2.0
#include "cuda/attn/mla_sm90/kernel.cuh"

template cudaError_t msgl__mla_launch<true>(const msgl_mla_params &, msgl_mla_mode, int,
                                            cudaStream_t);
