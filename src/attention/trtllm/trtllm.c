// SPDX-License-Identifier: Apache-2.0
//
// trtllm: the interface of TensorRT-LLM's paged kernels on the CPU: a block table of whole pages of
// 16, 32 or 64 tokens, and two scales, bmm1_scale of q k^T (the layer's) and bmm2_scale of the
// product with V (1: what a quantised pool has on top is the table's affair). The page rule is the
// real kernels' and is kept so that a configuration behaves alike on every device.
//
// Tolerance against exact attention (tests/attention/world.c), over the largest |v|: bf16 and E4M3
// KV 4e-3 (levels from AVX-512-BF16 on round q and probabilities to bf16), f16 and f32 2e-6.
#include "attention/trtllm/trtllm.h"

static const float BMM2_SCALE = 1;

static void trtllm_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                           const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const float bmm1_scale = layer->scale;
    msgl__table_attend(base, x, layer, seqs, in, bmm1_scale, BMM2_SCALE, out);
}

#define TRTLLM                                                                                     \
    .aliases = {NULL}, .page_rule = MSGL_PAGE_SET, .page_override = 64,                            \
    .max_dim = MSGL_ATTN_MAX_DIM, .own_v_dim = true,                                               \
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16 | 1u << MSGL_E4M3,              \
    .sliding_window = true, .softcap = true, .sinks = true, .tree = true, .ragged = true,          \
    .create = msgl__table_create, .destroy = msgl__table_destroy, .prepare = msgl__table_prepare,  \
    .forward = trtllm_forward

const msgl_attn_desc msgl__attn_trtllm = {
    TRTLLM,
    .name = "trtllm",
    .summary = "TensorRT-LLM: page-granular block table, pages of 16, 32 or 64",
    .page_sizes = {16, 32, 64},
};

const msgl_attn_desc msgl__attn_trtllm_mha = {
    TRTLLM,
    .name = "trtllm_mha",
    .summary = "trtllm with pages of 128 too",
    .page_sizes = {16, 32, 64, 128},
};
