// SPDX-License-Identifier: Apache-2.0
//
// Absorbed latent attention: persistent blocks, in pairs where requests have more than 64 query
// rows, walk lists of (query rows, keys) and merge partials at the end of the same launch.
#ifndef MSGL_CUDA_FI_LATENT_CUH
#define MSGL_CUDA_FI_LATENT_CUH

#include <string.h>

#include "cuda/fi/wrap.cuh"

#include <flashinfer/attention/mla.cuh>

#include <flashinfer/attention/mla_params.cuh>

#define cudaMemcpyAsync msgl_fi_note_copy
#include <flashinfer/attention/scheduler.cuh>
#undef cudaMemcpyAsync

// What both kernels take. T: of q, the cache and out.
template <typename T, uint32_t ROW>
static flashinfer::MLAParams<T, T, T, int32_t> msgl_fi_latent_params(const msgl_fi_run_call *c,
                                                                     flashinfer::MLAPlanInfo *info)
{
    const uint32_t latent = (uint32_t)c->shape.v_dim;
    const void *at = c->plan_arrays;
    memcpy(info, c->plan->info, sizeof *info);
    flashinfer::MLAParams<T, T, T, int32_t> p = {};
    p.q_nope = (T *)c->q;
    p.q_pe = p.q_nope + latent;
    p.ckv = (T *)c->k;
    p.kpe = p.ckv + latent;
    p.partial_o = msgl_fi_at<T>(c->float_workspace, info->partial_o_offset);
    p.partial_lse = msgl_fi_at<float>(c->float_workspace, info->partial_lse_offset);
    p.final_o = (T *)c->out;
    p.final_lse = c->lse;
    p.q_indptr = msgl_fi_at<int32_t>(at, info->q_indptr_offset);
    p.kv_indptr = msgl_fi_at<int32_t>(at, info->kv_indptr_offset);
    p.partial_indptr = msgl_fi_at<int32_t>(at, info->partial_indptr_offset);
    p.merge_packed_offset_start = msgl_fi_at<int32_t>(at, info->merge_packed_offset_start_offset);
    p.merge_packed_offset_end = msgl_fi_at<int32_t>(at, info->merge_packed_offset_end_offset);
    p.merge_partial_packed_offset_start =
        msgl_fi_at<int32_t>(at, info->merge_partial_packed_offset_start_offset);
    p.merge_partial_packed_offset_end =
        msgl_fi_at<int32_t>(at, info->merge_partial_packed_offset_end_offset);
    p.merge_partial_stride = msgl_fi_at<int32_t>(at, info->merge_partial_stride_offset);
    p.kv_indices = (int32_t *)c->pages;
    p.q_len = msgl_fi_at<int32_t>(at, info->q_len_offset);
    p.kv_len = msgl_fi_at<int32_t>(at, info->kv_len_offset);
    p.q_start = msgl_fi_at<int32_t>(at, info->q_start_offset);
    p.kv_start = msgl_fi_at<int32_t>(at, info->kv_start_offset);
    p.kv_end = msgl_fi_at<int32_t>(at, info->kv_end_offset);
    p.work_indptr = msgl_fi_at<int32_t>(at, info->work_indptr_offset);
    p.block_size = flashinfer::uint_fastdiv(c->shape.page_size);
    p.num_heads = flashinfer::uint_fastdiv(c->shape.num_q_heads);
    p.q_nope_stride_n = p.q_pe_stride_n = (uint32_t)c->ld_q;
    p.q_nope_stride_h = p.q_pe_stride_h = ROW;
    p.ckv_stride_page = p.kpe_stride_page = ROW * (uint32_t)c->shape.page_size;
    p.ckv_stride_n = p.kpe_stride_n = ROW;
    p.o_stride_n = latent * (uint32_t)c->shape.num_q_heads;
    p.o_stride_h = latent;
    p.sm_scale = c->scale;
    return p;
}

template <typename T, uint32_t ROW, typename>
static int msgl_fi_latent_run(const msgl_fi_run_call *c, cudaStream_t stream)
{
    using namespace flashinfer;
    MLAPlanInfo info;
    const auto p = msgl_fi_latent_params<T, ROW>(c, &info);
    return mla::BatchMLAPagedAttention<MaskMode::kCausal, MSGL_FI_LATENT_DIM,
                                       ROW - MSGL_FI_LATENT_DIM>(p, (uint32_t)info.num_blks_x,
                                                                 (uint32_t)info.num_blks_y, stream);
}

#endif
