// SPDX-License-Identifier: Apache-2.0
//
// New tokens among themselves, causal, on tensor cores: K and V lie in rows, one request behind the
// other, as queries do.
#include "cuda/fi/tensor_cores.cuh"

template <typename T, typename KV, uint32_t DIM, typename VARIANT>
static int msgl_fi_ragged_run(const msgl_fi_run_call *c, cudaStream_t stream)
{
    using namespace flashinfer;
    BatchPrefillRaggedParams<T, KV, T, int32_t> p;
    const auto l = msgl_fi_fill<T, DIM>(c, &p);
    p.k = (KV *)c->k;
    p.v = (KV *)c->v;
    p.kv_indptr = (int32_t *)c->qo_indptr;
    p.num_kv_heads = c->shape.num_kv_heads;
    p.k_stride_n = p.v_stride_n = c->shape.num_kv_heads * DIM;
    p.k_stride_h = p.v_stride_h = DIM;
    cudaError_t code = cudaErrorNotSupported;
    DISPATCH_CTA_TILE_Q(l.plan.cta_tile_q, CTA_TILE_Q, {
        code = BatchPrefillWithRaggedKVCacheDispatched<CTA_TILE_Q, DIM, DIM, PosEncodingMode::kNone,
                                                       false, MaskMode::kCausal, VARIANT>(
            p, l.tmp_v, l.sums, MSGL_FI_EARLY, stream);
    });
    return code;
}
