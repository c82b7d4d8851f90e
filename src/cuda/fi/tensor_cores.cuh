// SPDX-License-Identifier: Apache-2.0
//
// What all launches of FlashInfer's prefill kernels on tensor cores have in common.
#ifndef MSGL_CUDA_FI_TENSOR_CORES_CUH
#define MSGL_CUDA_FI_TENSOR_CORES_CUH

#include <string.h>

#include "cuda/fi/wrap.cuh"

#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/default_prefill_params.cuh>

#define cudaMemcpyAsync msgl_fi_note_copy
#include <flashinfer/attention/scheduler.cuh>
#undef cudaMemcpyAsync

#include "cuda/fi/variant.cuh"

// A launch: the plan, and where partial results go if it splits keys.
template <typename T> struct msgl_fi_launch {
    flashinfer::PrefillPlanInfo plan;
    T *tmp_v;
    float *sums;
};

// Fills everything in p but K, V and what belongs to them.
template <typename T, uint32_t DIM, typename P>
static msgl_fi_launch<T> msgl_fi_fill(const msgl_fi_run_call *c, P *p)
{
    msgl_fi_launch<T> l = {};
    flashinfer::PrefillPlanInfo &info = l.plan;
    memcpy(&info, c->plan->info, sizeof info);
    p->q = (T *)c->q;
    p->q_indptr = (int32_t *)c->qo_indptr;
    p->o = (T *)c->out;
    p->lse = c->lse;
    p->num_qo_heads = c->shape.num_q_heads;
    p->group_size = flashinfer::uint_fastdiv(c->shape.num_q_heads / c->shape.num_kv_heads);
    p->q_stride_n = (int32_t)c->ld_q;
    p->q_stride_h = DIM;
    p->window_left = c->window;
    p->logits_soft_cap = c->softcap;
    p->sm_scale = c->scale;
    p->request_indices = msgl_fi_at<int32_t>(c->plan_arrays, info.request_indices_offset);
    p->qo_tile_indices = msgl_fi_at<int32_t>(c->plan_arrays, info.qo_tile_indices_offset);
    p->kv_tile_indices = msgl_fi_at<int32_t>(c->plan_arrays, info.kv_tile_indices_offset);
    p->o_indptr = msgl_fi_at<int32_t>(c->plan_arrays, info.o_indptr_offset);
    p->kv_chunk_size_ptr = msgl_fi_at<int32_t>(c->plan_arrays, info.kv_chunk_size_ptr_offset);
    p->padded_batch_size = (uint32_t)info.padded_batch_size;
    p->max_total_num_rows = (uint32_t)info.total_num_rows;
    if (info.enable_cuda_graph) {
        p->total_num_rows = msgl_fi_at<uint32_t>(c->plan_arrays, info.total_num_rows_offset);
    }
    if (info.split_kv) {
        p->merge_indptr = msgl_fi_at<int32_t>(c->plan_arrays, info.merge_indptr_offset);
        l.tmp_v = msgl_fi_at<T>(c->float_workspace, info.v_offset);
        l.sums = msgl_fi_at<float>(c->float_workspace, info.s_offset);
        if (info.enable_cuda_graph) {
            p->block_valid_mask = msgl_fi_at<bool>(c->plan_arrays, info.block_valid_mask_offset);
        }
    }
    return l;
}

// The pool as FlashInfer's pages.
template <typename KV, uint32_t DIM>
static flashinfer::paged_kv_t<KV, int32_t> msgl_fi_paged(const msgl_fi_run_call *c)
{
    return flashinfer::paged_kv_t<KV, int32_t>(
        c->shape.num_kv_heads, c->shape.page_size, DIM, c->batch, flashinfer::QKVLayout::kNHD,
        (KV *)c->k, (KV *)c->v, (int32_t *)c->pages, (int32_t *)c->page_indptr,
        (int32_t *)c->last_page_len);
}

#endif
