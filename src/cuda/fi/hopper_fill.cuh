// SPDX-License-Identifier: Apache-2.0
//
// What all launches of FlashInfer's prefill kernels with WGMMA have in common: one work list per
// CTA, neither window nor soft cap (those layers take the tensor-core kernels).
#ifndef MSGL_CUDA_FI_HOPPER_FILL_CUH
#define MSGL_CUDA_FI_HOPPER_FILL_CUH

#include <string.h>

#include "cuda/fi/wrap.cuh"

#include <flashinfer/attention/hopper/prefill_sm90.cuh>

#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/variants.cuh>

#define cudaMemcpyAsync msgl_fi_note_copy
#include <flashinfer/attention/scheduler.cuh>
#undef cudaMemcpyAsync

// Fills everything in p but what tells pages from rows.
template <typename T, uint32_t DIM, typename P>
static void msgl_fi_hopper_fill(const msgl_fi_run_call *c, bool causal, P *p)
{
    flashinfer::PrefillPlanSM90Info info;
    memcpy(&info, c->plan->info, sizeof info);
    p->q_ptr = (T *)c->q;
    p->k_ptr = (T *)c->k;
    p->v_ptr = (T *)c->v;
    p->o_ptr = (T *)c->out;
    p->lse_ptr = c->lse;
    p->q_stride_n = (int64_t)c->ld_q;
    p->q_stride_h = p->k_stride_h = p->v_stride_h = p->o_stride_h = DIM;
    p->o_stride_n = (int64_t)c->shape.num_q_heads * DIM;
    p->k_stride_n = p->v_stride_n = (int64_t)c->shape.num_kv_heads * DIM;
    p->nnz_qo = c->total_q;
    p->num_qo_heads = c->shape.num_q_heads;
    p->num_kv_heads = c->shape.num_kv_heads;
    p->group_size = c->shape.num_q_heads / c->shape.num_kv_heads;
    p->window_left = -1;
    p->causal = causal;
    p->additional_params.sm_scale = c->scale;
    p->qo_tile_indices = msgl_fi_at<int32_t>(c->plan_arrays, info.qo_tile_indices_offset);
    p->qo_indptr = msgl_fi_at<int32_t>(c->plan_arrays, info.qo_indptr_offset);
    p->kv_indptr = msgl_fi_at<int32_t>(c->plan_arrays, info.kv_indptr_offset);
    p->qo_lens = msgl_fi_at<int32_t>(c->plan_arrays, info.qo_len_offset);
    p->kv_lens = msgl_fi_at<int32_t>(c->plan_arrays, info.kv_len_offset);
    p->head_indices = msgl_fi_at<int32_t>(c->plan_arrays, info.head_indices_offset);
    p->work_indptr = msgl_fi_at<int32_t>(c->plan_arrays, info.work_indptr_offset);
    p->batch_indices = msgl_fi_at<int32_t>(c->plan_arrays, info.batch_indices_offset);
}

// The pool's pages, causal or seen whole by every query.
template <typename T, uint32_t DIM, typename VARIANT, flashinfer::MaskMode MASK>
static int msgl_fi_hopper_paged(const msgl_fi_run_call *c, cudaStream_t stream)
{
    flashinfer::BatchPrefillPagedParams<T, T, T, int32_t> p = {};
    msgl_fi_hopper_fill<T, DIM>(c, MASK == flashinfer::MaskMode::kCausal, &p);
    p.k_page_stride = p.v_page_stride = p.k_stride_n * c->shape.page_size;
    p.page_size = c->shape.page_size;
    p.kv_indices = (int32_t *)c->pages;
    return flashinfer::BatchPrefillWithPagedKVCacheDispatched<DIM, DIM, MASK, false, false,
                                                              VARIANT>(p, MSGL_FI_EARLY, stream);
}

#endif
