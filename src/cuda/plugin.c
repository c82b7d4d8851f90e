// SPDX-License-Identifier: Apache-2.0
//
// The plug-in's table.
#include <stdio.h>
#include <string.h>

#include "cuda/backends/registry.h"
#include "cuda/delta/delta.h"
#include "cuda/gemm/gemm.h"
#include "cuda/host.h"
#include "cuda/ops/ops.h"
#include "cuda/ranks/ranks.h"
#include "cuda/states/states.h"
#include "kernel/kernel.h"
#include "kernel/plugin.h"

static int fill_kernels(const msgl_device_options *o, msgl_kernels *k, msgl_err *err)
{
    (void)err;
    k->gemm = (msgl_gemm_kernels){
        .name = "cuda",
        .formats = msgl__cuda_formats,
        .keep = msgl__cuda_keep,
        .keeps_order = true,
        .embed = msgl__cuda_embed,
        .gather_own = msgl__cuda_gather_own,
        .linear = msgl__cuda_linear,
        .linear_rope = msgl__cuda_linear_rope,
        .linear_sum = msgl__cuda_linear_sum,
        .grouped = msgl__cuda_grouped,
        .heads = msgl__cuda_heads,
        .lora_tiles = msgl__cuda_lora_tiles,
        .lora_members = msgl__cuda_lora_members,
        .lora_gate = msgl__cuda_lora_gate,
        .lora_scratch = msgl__cuda_lora_scratch,
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
        .layer_norm = msgl__cuda_layer_norm,
        .layer_norm_heads = msgl__cuda_layer_norm_heads,
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
        .move_kv = msgl__cuda_move_kv,
    };
    k->act = (msgl_act_kernels){
        .gate = msgl__cuda_gate,
        .gate_by = msgl__cuda_gate_by,
        .apply = msgl__cuda_apply,
        .times_sigmoid = msgl__cuda_times_sigmoid,
        .temper = msgl__cuda_temper,
        .join_columns = msgl__cuda_join_columns,
        .mean_rows = msgl__cuda_mean_rows,
        .cap = msgl__cuda_cap,
    };
    k->moe = (msgl_moe_kernels){
        .route = msgl__cuda_moe_route,
        .look_up = msgl__cuda_moe_look_up,
        .sort = msgl__cuda_moe_sort,
        .gather = msgl__cuda_moe_gather,
        .keep_own = msgl__cuda_moe_keep_own,
        .scale_choices = msgl__cuda_moe_scale_choices,
        .combine = msgl__cuda_moe_combine,
        .weigh_input = msgl__cuda_moe_weigh_input,
        .add_shared = msgl__cuda_moe_add_shared,
        .choose = msgl__cuda_moe_choose,
        .experts = msgl__cuda_experts,
        .gate_in_product = o->deterministic,
    };
    k->sample = (msgl_sample_kernels){
        .sample = msgl__cuda_sample,
        .draw = msgl__cuda_draw,
        .pick = msgl__cuda_pick,
        .logprobs = msgl__cuda_logprobs,
        .listed = msgl__cuda_listed,
        .mask = msgl__cuda_mask,
        .chain = msgl__cuda_chain,
        .scratch_size = msgl__cuda_sample_scratch,
    };
    k->delta = (msgl_delta_kernels){
        .run = msgl__cuda_delta,
        .supports = msgl__cuda_delta_supports,
        .scratch_size = msgl__cuda_delta_scratch,
    };
    k->conv = (msgl_conv_kernels){.run = msgl__cuda_conv};
    k->ssm = (msgl_ssm_kernels){.run = msgl__cuda_ssm, .max_state_dim = MSGL_CUDA_MAX_STATE};
    k->index = (msgl_index_kernels){
        .store = msgl__cuda_index_store,
        .choose = msgl__cuda_index_choose,
        .choose_blocks = msgl__cuda_index_choose_blocks,
        .store_means = msgl__cuda_index_store_means,
        .choose_means = msgl__cuda_index_choose_means,
        .list = msgl__cuda_index_list,
    };
    k->compress = (msgl_compress_kernels){
        .rotate = msgl__cuda_rotate_pairs,
        .store = msgl__cuda_store_rows,
        .make = msgl__cuda_compress,
    };
    k->hyper = (msgl_hyper_kernels){
        .open = msgl__cuda_hyper_open,
        .close = msgl__cuda_hyper_close,
        .head = msgl__cuda_hyper_head,
    };
    k->streams = (msgl_streams_kernels){
        .spread = msgl__cuda_streams_spread,
        .squash = msgl__cuda_streams_squash,
        .mix = msgl__cuda_streams_mix,
        .inject = msgl__cuda_streams_inject,
        .clear = msgl__cuda_streams_clear,
    };
    k->ngrams = (msgl_ngrams_kernels){.ids = msgl__cuda_ngram_ids, .gate = msgl__cuda_ngram_gate};
    return 0;
}

static void describe(const msgl_cuda_props *p, msgl_device_props *out)
{
    *out = (msgl_device_props){
        .capability = p->capability, .total_bytes = p->total_bytes, .free_bytes = p->free_bytes};
    memcpy(out->name, p->name, sizeof out->name);
    snprintf(out->details, sizeof out->details, "compute capability %d.%d, %d SMs",
             (int)p->capability / 10, (int)p->capability % 10, (int)p->sm_count);
    snprintf(out->driver, sizeof out->driver, "driver for CUDA %d.%d", (int)p->driver / 1000,
             (int)p->driver % 1000 / 10);
}

static int props(int ordinal, msgl_device_props *out, msgl_err *err)
{
    msgl_cuda_props p;
    const int code = msgl__cuda_props(ordinal, &p, err);
    if (code == 0) describe(&p, out);
    return code;
}

static int open_gpu(const msgl_device_options *o, msgl_device **out, msgl_device_props *of,
                    msgl_err *err)
{
    msgl_cuda_props p;
    const int code =
        msgl__cuda_device_open(o->ordinal, o->deterministic, o->cache_dir, out, &p, err);
    if (code == 0 && of != NULL) describe(&p, of);
    return code;
}

static const msgl_plugin PLUGIN = {
    .abi = MSGL_PLUGIN_ABI,
    .name = "cuda",
    .build = MSGL_CUDA_BUILD,
    .count = msgl__cuda_device_count,
    .props = props,
    .open = open_gpu,
    .kernels = fill_kernels,
    .backends = &msgl__attn_cuda,
    .communicator = msgl__cuda_comm_create,
    .share_choices = msgl__cuda_gemm_broadcast,
    .groups = &msgl__cuda_groups,
};

__attribute__((visibility("default"))) const msgl_plugin *msgl_device_plugin(void);
const msgl_plugin *msgl_device_plugin(void)
{
    return &PLUGIN;
}
