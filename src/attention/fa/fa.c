// SPDX-License-Identifier: Apache-2.0
//
// fa: FlashAttention's interface on the CPU. One kernel call serves prefill and decode: varlen
// queries (cu_seqlens_q), a 2-D page table of any page size, key lengths. Work is split over the
// keys by a fixed rule (tiles at absolute positions, see kernel/attn.h), so a request's output is
// the same bits alone or in a batch, chunked or not, decoded or prefilled, or as a path of a tree.
//
// Tolerance against exact attention (tests/attention/world.c), over the largest |v|: bf16 and E4M3
// KV 4e-3 (levels from AVX-512-BF16 on round q and probabilities to bf16), f16 and f32 2e-6.
#include "attention/fa/fa.h"

#include "attention/expand.h"

const msgl_attn_desc msgl__attn_fa = {
    .name = "fa",
    .aliases = {"fa3", NULL},
    .summary = "FlashAttention: paged varlen kernel, results independent of the batch",
    .page_rule = MSGL_PAGE_ANY,
    .caches = 1u << MSGL_CACHE_KV | 1u << MSGL_CACHE_LATENT,
    .expand = &msgl__expand_cpu,
    .max_dim = MSGL_ATTN_MAX_DIM,
    .own_v_dim = true,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16 | 1u << MSGL_E4M3,
    .sliding_window = true,
    .local_chunks = true,
    .softcap = true,
    .sinks = true,
    .bidirectional = true,
    .tree = true,
    .ragged = true,
    .create = msgl__table_create,
    .destroy = msgl__table_destroy,
    .prepare = msgl__table_prepare,
    .forward = msgl__table_forward,
};
