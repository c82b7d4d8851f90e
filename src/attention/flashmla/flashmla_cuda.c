// SPDX-License-Identifier: Apache-2.0
//
// flashmla on Hopper: own kernel, pages of 64. What FlashMLA's scheduler metadata says, who has
// which blocks of keys, is the plan of that kernel, made on the device. Prompts are fa's.
#include "attention/flashmla/flashmla_cuda.h"

#include "attention/mla_cuda.h"

const msgl_attn_desc msgl__attn_flashmla_cuda = {
    .name = "flashmla",
    .aliases = {NULL},
    .summary = "own latent attention with FlashMLA's pages of 64; prompts by fa",
    .devices = 1u << MSGL_DEVICE_CUDA,
    .prefill_by = "fa",
    .min_capability = 90,
    .page_rule = MSGL_PAGE_SET,
    .page_sizes = {64},
    .page_override = 64,
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
