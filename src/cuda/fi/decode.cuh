// SPDX-License-Identifier: Apache-2.0
//
// Paged decode on CUDA cores. Groups of 1, 2, 3, 4 and 8 query heads per KV head.
#include <stddef.h>
#include <string.h>

#include "cuda/fi/wrap.cuh"

#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>

#define cudaMemcpyAsync msgl_fi_note_copy
#include <flashinfer/attention/scheduler.cuh>
#undef cudaMemcpyAsync

#include "cuda/fi/variant.cuh"

template <typename T, uint32_t DIM, typename VARIANT>
static int msgl_fi_decode_plan(const msgl_fi_plan_call *c, msgl_fi_planned *out)
{
    using namespace flashinfer;
    typedef BatchDecodeParams<T, T, T, int32_t> params;
    static_assert(sizeof(DecodePlanInfo) <= sizeof out->info, "plan info");
    DecodePlanInfo info;
    cudaError_t code = cudaErrorNotSupported;
    DISPATCH_GQA_GROUP_SIZE(c->shape.num_q_heads / c->shape.num_kv_heads, GROUP, {
        code = DecodePlan<DIM, PosEncodingMode::kNone, VARIANT, params>(
            c->staging, c->float_bytes, c->staging, c->staging, c->staging_bytes, info,
            (int32_t *)c->page_indptr, c->batch, c->shape.num_q_heads, c->shape.page_size, c->graph,
            0,
            BatchDecodeWithPagedKVCacheWorkEstimationDispatched<GROUP, DIM, PosEncodingMode::kNone,
                                                                VARIANT, params>);
    });
    // Without the padding behind the last member: plans are compared. out is all zeros.
    memcpy(out->info, &info, offsetof(DecodePlanInfo, split_kv) + sizeof info.split_kv);
    return code;
}

template <typename T, uint32_t DIM, typename VARIANT>
static int msgl_fi_decode_run(const msgl_fi_run_call *c, cudaStream_t stream)
{
    using namespace flashinfer;
    DecodePlanInfo info;
    memcpy(&info, c->plan->info, sizeof info);
    BatchDecodeParams<T, T, T, int32_t> p;
    p.q = (T *)c->q;
    p.paged_kv = paged_kv_t<T, int32_t>(c->shape.num_kv_heads, c->shape.page_size, DIM, c->batch,
                                        QKVLayout::kNHD, (T *)c->k, (T *)c->v, (int32_t *)c->pages,
                                        (int32_t *)c->page_indptr, (int32_t *)c->last_page_len);
    p.o = (T *)c->out;
    p.lse = c->lse;
    p.num_qo_heads = c->shape.num_q_heads;
    p.q_stride_n = (int32_t)c->ld_q;
    p.q_stride_h = DIM;
    p.window_left = c->window;
    p.logits_soft_cap = c->softcap;
    p.sm_scale = c->scale;
    p.padded_batch_size = (uint32_t)info.padded_batch_size;
    p.request_indices = msgl_fi_at<int32_t>(c->plan_arrays, info.request_indices_offset);
    p.kv_tile_indices = msgl_fi_at<int32_t>(c->plan_arrays, info.kv_tile_indices_offset);
    p.o_indptr = msgl_fi_at<int32_t>(c->plan_arrays, info.o_indptr_offset);
    p.kv_chunk_size_ptr = msgl_fi_at<int32_t>(c->plan_arrays, info.kv_chunk_size_ptr_offset);
    T *tmp_v = NULL;
    float *sums = NULL;
    if (info.split_kv) {
        tmp_v = msgl_fi_at<T>(c->float_workspace, info.v_offset);
        sums = msgl_fi_at<float>(c->float_workspace, info.s_offset);
        if (info.enable_cuda_graph) {
            p.block_valid_mask = msgl_fi_at<bool>(c->plan_arrays, info.block_valid_mask_offset);
        }
    }
    return BatchDecodeWithPagedKVCacheDispatched<DIM, PosEncodingMode::kNone, VARIANT>(
        p, tmp_v, sums, MSGL_FI_EARLY, stream);
}
