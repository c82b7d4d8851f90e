// SPDX-License-Identifier: Apache-2.0
//
// trtllm_mla on Hopper, where TensorRT-LLM has no such kernel: own kernel, pages of 32 or 64,
// bmm1_scale = q_scale * k_scale * softmax_scale. Prompts are fa's.
#include "attention/trtllm_mla/trtllm_mla_cuda.h"

#include "attention/mla_cuda.h"

const msgl_attn_desc msgl__attn_trtllm_mla_cuda = {
    .name = "trtllm_mla",
    .aliases = {NULL},
    .summary = "own latent attention with TensorRT-LLM's pages of 32 or 64; prompts by fa",
    .devices = 1u << MSGL_DEVICE_CUDA,
    .prefill_by = "fa",
    .min_capability = 90,
    .page_rule = MSGL_PAGE_SET,
    .page_sizes = {32, 64},
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
