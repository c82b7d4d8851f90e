// SPDX-License-Identifier: Apache-2.0
//
// Paged causal prefill with WGMMA.
#include "cuda/fi/hopper_fill.cuh"

template <typename T, uint32_t DIM, typename VARIANT>
static int msgl_fi_hopper_run(const msgl_fi_run_call *c, cudaStream_t stream)
{
    return msgl_fi_hopper_paged<T, DIM, VARIANT, flashinfer::MaskMode::kCausal>(c, stream);
}
