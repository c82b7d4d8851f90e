// SPDX-License-Identifier: Apache-2.0
//
// dual_chunk_flash_attn: dual chunk attention on the CPU (docs/internals/dual-chunk.md). The paged
// kernel takes the three queries of a row in turn, each for its range of keys, so one call and one
// online softmax do what the original merges from three, and results are independent of the batch
// as fa's are.
//
// Tolerance against exact attention as of fa.
#include "attention/dual_chunk/dual_chunk.h"

#include "attention/table.h"

static void forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                    const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    msgl__table_attend(base, x, layer, seqs, in, layer->scale, 1, out);
}

const msgl_attn_desc msgl__attn_dual_chunk = {
    .name = "dual_chunk_flash_attn",
    .aliases = {NULL},
    .summary = "dual chunk attention of Qwen2.5-1M: three queries a token, by the distance of keys",
    .devices = 1u << MSGL_DEVICE_CPU,
    .page_rule = MSGL_PAGE_ANY,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16,
    .dual_chunk = true,
    .ragged = true,
    .create = msgl__table_create,
    .destroy = msgl__table_destroy,
    .prepare = msgl__table_prepare,
    .forward = forward,
};
