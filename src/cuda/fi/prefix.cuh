// SPDX-License-Identifier: Apache-2.0
//
// Queries over a prefix in pages, which every one of them sees whole, on tensor cores. A request
// without a prefix has no pages: zeros, and an LSE of -50,000, FlashInfer's infinity.
#include "cuda/fi/tensor_cores.cuh"

template <typename T, typename KV, uint32_t DIM, typename VARIANT>
static int msgl_fi_prefix_run(const msgl_fi_run_call *c, cudaStream_t stream)
{
    using namespace flashinfer;
    BatchPrefillPagedParams<T, KV, T, int32_t> p;
    const auto l = msgl_fi_fill<T, DIM>(c, &p);
    p.paged_kv = msgl_fi_paged<KV, DIM>(c);
    cudaError_t code = cudaErrorNotSupported;
    DISPATCH_CTA_TILE_Q(l.plan.cta_tile_q, CTA_TILE_Q, {
        code = BatchPrefillWithPagedKVCacheDispatched<CTA_TILE_Q, DIM, DIM, PosEncodingMode::kNone,
                                                      false, MaskMode::kNone, VARIANT>(
            p, l.tmp_v, l.sums, MSGL_FI_EARLY, stream);
    });
    return code;
}
