// SPDX-License-Identifier: Apache-2.0
//
// The plug-in's table.
#include "kernel/cuda/attn/decode.h"
#include "kernel/cuda/attn/dual.h"
#include "kernel/cuda/attn/expanded.h"
#include "kernel/cuda/attn/flex.h"
#include "kernel/cuda/attn/native.h"
#include "kernel/cuda/attn/sink.h"
#include "kernel/cuda/attn/prefill.h"
#include "kernel/cuda/attn/reference.h"
#include "kernel/cuda/delta/delta.h"
#include "kernel/cuda/device_api.h"
#include "kernel/cuda/gemm/gemm.h"
#include "kernel/cuda/ops/ops.h"
#include "kernel/kernel.h"

static const msgl_cuda_attn ATTN = {
    .prefill = msgl__cuda_fa_prefill,
    .decode = msgl__cuda_fa_decode,
    .reference = msgl__cuda_attn_reference,
    .tree = msgl__cuda_attn_tree,
    .gather = msgl__cuda_gather,
    .expanded = msgl__cuda_expanded,
    .flex_lists = msgl__cuda_flex_lists,
    .flex_attend = msgl__cuda_flex_attend,
    .mla_plan = msgl__cuda_mla_plan,
    .mla = msgl__cuda_mla,
    .triton_lists = msgl__cuda_triton_lists,
    .triton_decode = msgl__cuda_triton_decode,
    .triton_extend = msgl__cuda_triton_extend,
    .dual_prefill = msgl__cuda_dual_prefill,
    .dual_ranges = msgl__cuda_dual_ranges,
    .dual_merge = msgl__cuda_dual_merge,
    .sink = msgl__cuda_sink,
    .native_gather = msgl__cuda_native_gather,
    .native_copy = msgl__cuda_native_copy,
    .native_softmax = msgl__cuda_native_softmax,
    .native_product = msgl__cuda_native_product,
    .dual_sparse_workspace = msgl__cuda_dual_sparse_workspace,
    .dual_sparse_prompt = msgl__cuda_dual_sparse_prompt,
    .sparse_begin = msgl__cuda_sparse_begin,
    .sparse_labels = msgl__cuda_sparse_labels,
    .sparse_decode = msgl__cuda_sparse_decode,
};

static void fill_kernels(msgl_kernels *k)
{
    k->gemm = (msgl_gemm_kernels){
        .name = "cuda",
        .formats = msgl__cuda_formats,
        .keep = msgl__cuda_keep,
        .embed = msgl__cuda_embed,
        .linear = msgl__cuda_linear,
        .linear_rope = msgl__cuda_linear_rope,
        .linear_sum = msgl__cuda_linear_sum,
        .grouped = msgl__cuda_grouped,
        .heads = msgl__cuda_heads,
        .linear_scratch = msgl__cuda_linear_scratch,
        .grouped_scratch = msgl__cuda_grouped_scratch,
        .heads_scratch = msgl__cuda_heads_scratch,
        .block_rows = 8192,
        .indexed = true,
        .norm_stats_rows = 256,
        .tune = msgl__cuda_gemm_tune,
    };
    k->norm = (msgl_norm_kernels){
        .rms_norm = msgl__cuda_rms_norm,
        .sum_squares = msgl__cuda_sum_squares,
        .norm_by_sums = msgl__cuda_norm_by_sums,
        .add = msgl__cuda_add,
        .scale = msgl__cuda_scale,
    };
    k->rope = (msgl_rope_kernels){
        .table = msgl__cuda_rope_table,
        .qk_norm_rope_store = msgl__cuda_qk_norm_rope_store,
        .latent_rope_store = msgl__cuda_latent_rope_store,
        .dual_table = msgl__cuda_dual_table,
        .dual_rope_store = msgl__cuda_dual_rope_store,
    };
    k->act = (msgl_act_kernels){
        .gate = msgl__cuda_gate,
        .times_sigmoid = msgl__cuda_times_sigmoid,
        .temper = msgl__cuda_temper,
        .join_columns = msgl__cuda_join_columns,
        .cap = msgl__cuda_cap,
    };
    k->moe = (msgl_moe_kernels){
        .route = msgl__cuda_moe_route,
        .sort = msgl__cuda_moe_sort,
        .gather = msgl__cuda_moe_gather,
        .keep_own = msgl__cuda_moe_keep_own,
        .combine = msgl__cuda_moe_combine,
        .weigh_input = msgl__cuda_moe_weigh_input,
        .add_shared = msgl__cuda_moe_add_shared,
        .choose = msgl__cuda_moe_choose,
        .experts = msgl__cuda_experts,
    };
    k->sample = (msgl_sample_kernels){
        .sample = msgl__cuda_sample,
        .draw = msgl__cuda_draw,
        .pick = msgl__cuda_pick,
        .logprobs = msgl__cuda_logprobs,
        .mask = msgl__cuda_mask,
        .chain = msgl__cuda_chain,
        .scratch_size = msgl__cuda_sample_scratch,
    };
    k->delta = (msgl_delta_kernels){
        .run = msgl__cuda_delta,
        .supports = msgl__cuda_delta_supports,
        .scratch_size = msgl__cuda_delta_scratch,
    };
}

static const msgl_cuda_api API = {
    .abi = MSGL_CUDA_ABI,
    .build = MSGL_CUDA_BUILD,
    .device_count = msgl__cuda_device_count,
    .props = msgl__cuda_props,
    .open = msgl__cuda_device_open,
    .stream = msgl__cuda_device_stream,
    .l2_bytes = msgl__cuda_device_l2_bytes,
    .kernels = fill_kernels,
    .comm = msgl__cuda_comm_create,
    .broadcast_choices = msgl__cuda_gemm_broadcast,
    .attn = &ATTN,
};

__attribute__((visibility("default"))) const msgl_cuda_api *msgl_cuda_plugin(void);
const msgl_cuda_api *msgl_cuda_plugin(void)
{
    return &API;
}
