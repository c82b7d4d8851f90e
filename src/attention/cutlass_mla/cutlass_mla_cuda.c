// SPDX-License-Identifier: Apache-2.0
//
// cutlass_mla on Hopper, where CUTLASS has no such kernel: own kernel, pages of 128. Prompts are
// fa's.
#include "attention/cutlass_mla/cutlass_mla_cuda.h"

#include "attention/mla_cuda.h"

const msgl_attn_desc msgl__attn_cutlass_mla_cuda = {
    .name = "cutlass_mla",
    .aliases = {NULL},
    .summary = "own latent attention with CUTLASS's pages of 128; prompts by fa",
    .devices = 1u << MSGL_DEVICE_CUDA,
    .prefill_by = "fa",
    .min_capability = 90,
    .page_rule = MSGL_PAGE_SET,
    .page_sizes = {128},
    .page_override = 128,
    .caches = 1u << MSGL_CACHE_LATENT,
    .expands = true,
    .kv_dtypes = 1u << MSGL_BF16 | 1u << MSGL_E4M3,
    .tree = true,
    .graph = true,
    .supports = msgl__mla_cuda_supports,
    .create = msgl__mla_cuda_create,
    .destroy = msgl__mla_cuda_destroy,
    .begin = msgl__mla_cuda_backend_begin,
    .forward = msgl__mla_cuda_forward,
};
