// SPDX-License-Identifier: Apache-2.0
//
// Paged causal prefill on tensor cores, for any group size; with one new token per request it is
// decode with the query heads of a KV head packed into rows.
#include <string.h>

#include <type_traits>

#include "attention/fi/cuda/wrap.cuh"

#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/default_prefill_params.cuh>

#define cudaMemcpyAsync msgl_fi_note_copy
#include <flashinfer/attention/scheduler.cuh>
#undef cudaMemcpyAsync

#include "attention/fi/cuda/variant.cuh"

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
    PrefillPlanInfo info;
    memcpy(&info, c->plan->info, sizeof info);
    constexpr bool SCALED = !std::is_same<T, KV>::value;
    std::conditional_t<SCALED, msgl_fi_scaled_params<T, KV>,
                       BatchPrefillPagedParams<T, KV, T, int32_t>>
        p;
    if constexpr (SCALED) p.v_scale = c->out_scale;
    p.q = (T *)c->q;
    p.paged_kv = paged_kv_t<KV, int32_t>(
        c->shape.num_kv_heads, c->shape.page_size, DIM, c->batch, QKVLayout::kNHD, (KV *)c->k,
        (KV *)c->v, (int32_t *)c->pages, (int32_t *)c->page_indptr, (int32_t *)c->last_page_len);
    p.q_indptr = (int32_t *)c->qo_indptr;
    p.o = (T *)c->out;
    p.lse = c->lse;
    p.num_qo_heads = c->shape.num_q_heads;
    p.group_size = uint_fastdiv(c->shape.num_q_heads / c->shape.num_kv_heads);
    p.q_stride_n = (int32_t)c->ld_q;
    p.q_stride_h = DIM;
    p.window_left = c->window;
    p.logits_soft_cap = c->softcap;
    p.sm_scale = c->scale;
    p.request_indices = msgl_fi_at<int32_t>(c->plan_arrays, info.request_indices_offset);
    p.qo_tile_indices = msgl_fi_at<int32_t>(c->plan_arrays, info.qo_tile_indices_offset);
    p.kv_tile_indices = msgl_fi_at<int32_t>(c->plan_arrays, info.kv_tile_indices_offset);
    p.o_indptr = msgl_fi_at<int32_t>(c->plan_arrays, info.o_indptr_offset);
    p.kv_chunk_size_ptr = msgl_fi_at<int32_t>(c->plan_arrays, info.kv_chunk_size_ptr_offset);
    p.padded_batch_size = (uint32_t)info.padded_batch_size;
    p.max_total_num_rows = (uint32_t)info.total_num_rows;
    if (info.enable_cuda_graph) {
        p.total_num_rows = msgl_fi_at<uint32_t>(c->plan_arrays, info.total_num_rows_offset);
    }
    T *parts = NULL;
    float *sums = NULL;
    if (info.split_kv) {
        p.merge_indptr = msgl_fi_at<int32_t>(c->plan_arrays, info.merge_indptr_offset);
        parts = msgl_fi_at<T>(c->float_workspace, info.v_offset);
        sums = msgl_fi_at<float>(c->float_workspace, info.s_offset);
        if (info.enable_cuda_graph) {
            p.block_valid_mask = msgl_fi_at<bool>(c->plan_arrays, info.block_valid_mask_offset);
        }
    }
    cudaError_t code = cudaErrorNotSupported;
    if constexpr (std::is_same<VARIANT, msgl_fi_general>::value) {
        if (c->plan->fixed && c->window >= 0) {
            return BatchPrefillWithPagedKVCacheDispatched<MSGL_FI_FIXED_TILE, DIM, DIM,
                                                          PosEncodingMode::kNone, false,
                                                          MaskMode::kCustom, msgl_fi_masked>(
                p, NULL, NULL, MSGL_FI_EARLY, stream);
        }
    }
    DISPATCH_CTA_TILE_Q(info.cta_tile_q, CTA_TILE_Q, {
        code = BatchPrefillWithPagedKVCacheDispatched<CTA_TILE_Q, DIM, DIM, PosEncodingMode::kNone,
                                                      false, MaskMode::kCausal, VARIANT>(
            p, parts, sums, MSGL_FI_EARLY, stream);
    });
    return code;
}
