// SPDX-License-Identifier: Apache-2.0
//
// Attention backends of GPUs, in the order shown to users. A new one adds its line to ALL.
#include "cuda/backends/registry.h"

#include "cuda/backends/auto.h"
#include "cuda/backends/double_sparsity.h"
#include "cuda/backends/dual_chunk.h"
#include "cuda/backends/fa.h"
#include "cuda/backends/fi.h"
#include "cuda/backends/flex.h"
#include "cuda/backends/latent.h"
#include "cuda/backends/torch_native.h"
#include "cuda/backends/triton.h"
#include "cuda/backends/trtllm.h"
#include "kernel/dual_chunk.h"

static const msgl_attn_desc *const ALL[] = {
    &msgl__attn_fa_cuda,          &msgl__attn_fi_cuda,         &msgl__attn_flashinfer_cuda,
    &msgl__attn_trtllm_cuda,      &msgl__attn_trtllm_mha_cuda, &msgl__attn_torch_native_cuda,
    &msgl__attn_triton_cuda,      &msgl__attn_flashmla_cuda,   &msgl__attn_trtllm_mla_cuda,
    &msgl__attn_cutlass_mla_cuda, &msgl__attn_flex_cuda,       &msgl__attn_fa4_cuda,
    &msgl__attn_dual_chunk_cuda,  &msgl__attn_sparse_cuda,     NULL,
};

static const msgl_attn_pair PAIRS[] = {
    {.prefill = "fa", .decode = "fa", .e4m3 = true},
    {.min_capability = 90, .prefill = "fa", .decode = "fa", .latent = true},
    {.min_capability = 100, .prefill = "fi", .decode = "fi"},
    {.min_capability = 90, .prefill = "fa", .decode = "fi"},
    {.prefill = "fi", .decode = "fi"},
    {.prefill = "fa", .decode = "fa"},
    {.prefill = "triton", .decode = "triton"},
    {.prefill = "torch_native", .decode = "torch_native"},
    {.prefill = "dual_chunk_flash_attn", .decode = "dual_chunk_flash_attn"},
    {.prefill = NULL},
};

const msgl_attn_set msgl__attn_cuda = {.device = "CUDA",
                                       .all = ALL,
                                       .pairs = PAIRS,
                                       .measured = msgl__attn_measured,
                                       .max_sparse_keys = MSGL_SPARSE_KEYS,
                                       .max_sparse_last = MSGL_SPARSE_LAST};
