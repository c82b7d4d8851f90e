// SPDX-License-Identifier: Apache-2.0
//
// cutlass_mla: the interface of CUTLASS's latent attention on the CPU: pages of 128, a block table
// of ceil(len / 128) columns, and one partial for all keys of a request (num_kv_splits 1): a long
// request is one worker's. Prompts are flashinfer's, as they are in SGLang.
//
// Tolerance against exact attention as of fa, whose bits it has.
#include "attention/cutlass_mla/cutlass_mla.h"

#include "attention/table.h"

static void limits(const msgl_attn_config *cfg, msgl_attn_workspace *w)
{
    msgl__attn_workspace_limits(cfg, w);
    w->max_works -= w->max_partials;
    w->max_partials = w->max_groups = 0;
}

static const msgl_table_rule WHOLE = {
    .limits = limits, .plan = msgl__attn_plan_tiles, .partial_kind = MSGL_ATTN_PARTIAL_TILE};

static int create(const msgl_attn_desc *desc, const msgl_attn_config *cfg, msgl_attn_backend **out,
                  msgl_err *err)
{
    return msgl__table_create_by(&WHOLE, desc, cfg, out, err);
}

const msgl_attn_desc msgl__attn_cutlass_mla = {
    .name = "cutlass_mla",
    .aliases = {NULL},
    .summary = "CUTLASS's latent attention: pages of 128, keys not split; prompts by fi",
    .devices = 1u << MSGL_DEVICE_CPU,
    .prefill_by = "fi",
    .page_rule = MSGL_PAGE_SET,
    .page_sizes = {128},
    .page_override = 128,
    .caches = 1u << MSGL_CACHE_LATENT,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16 | 1u << MSGL_E4M3,
    .tree = true,
    .create = create,
    .destroy = msgl__table_destroy,
    .prepare = msgl__table_prepare,
    .forward = msgl__table_forward,
};
