// SPDX-License-Identifier: Apache-2.0
//
// ragged.cuh's with WGMMA; K and V come by TMA, as they lie in rows.
#include "cuda/fi/hopper_fill.cuh"

template <typename T, uint32_t DIM, typename VARIANT>
static int msgl_fi_hopper_ragged_run(const msgl_fi_run_call *c, cudaStream_t stream)
{
    flashinfer::BatchPrefillRaggedParams<T, T, T, int32_t> p = {};
    msgl_fi_hopper_fill<T, DIM>(c, true, &p);
    p.nnz_kv = c->total_q;
    return flashinfer::BatchPrefillWithRaggedKVCacheDispatched<
        DIM, DIM, flashinfer::MaskMode::kCausal, false, false, VARIANT>(p, MSGL_FI_EARLY, stream);
}
