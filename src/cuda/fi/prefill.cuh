// SPDX-License-Identifier: Apache-2.0
//
// Paged causal prefill on tensor cores, for any group size; with one new token per request it is
// decode with the query heads of a KV head packed into rows.
#include <type_traits>

#include "cuda/fi/tensor_cores.cuh"

// FlashInfer multiplies results by v_scale where parameters have one.
template <typename T, typename KV>
struct msgl_fi_scaled_params : flashinfer::BatchPrefillPagedParams<T, KV, T, int32_t> {
    float v_scale;
};

// T: of q and out, and of K and V unless KV is E4M3.
template <typename T, typename KV, uint32_t DIM, typename VARIANT>
static int msgl_fi_prefill_run(const msgl_fi_run_call *c, cudaStream_t stream)
{
    using namespace flashinfer;
    constexpr bool SCALED = !std::is_same<T, KV>::value;
    std::conditional_t<SCALED, msgl_fi_scaled_params<T, KV>,
                       BatchPrefillPagedParams<T, KV, T, int32_t>>
        p;
    if constexpr (SCALED) p.v_scale = c->out_scale;
    const auto l = msgl_fi_fill<T, DIM>(c, &p);
    p.paged_kv = msgl_fi_paged<KV, DIM>(c);
    cudaError_t code = cudaErrorNotSupported;
    if constexpr (std::is_same<VARIANT, msgl_fi_general>::value) {
        if (c->plan->fixed && c->window >= 0) {
            return BatchPrefillWithPagedKVCacheDispatched<MSGL_FI_FIXED_TILE, DIM, DIM,
                                                          PosEncodingMode::kNone, false,
                                                          MaskMode::kCustom, msgl_fi_masked>(
                p, NULL, NULL, MSGL_FI_EARLY, stream);
        }
    }
    DISPATCH_CTA_TILE_Q(l.plan.cta_tile_q, CTA_TILE_Q, {
        code = BatchPrefillWithPagedKVCacheDispatched<CTA_TILE_Q, DIM, DIM, PosEncodingMode::kNone,
                                                      false, MaskMode::kCausal, VARIANT>(
            p, l.tmp_v, l.sums, MSGL_FI_EARLY, stream);
    });
    return code;
}
