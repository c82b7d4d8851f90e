// SPDX-License-Identifier: Apache-2.0
//
// trtllm_mla: the interface of TensorRT-LLM's decode kernel for latent attention on the CPU. q is
// [latent | rotary] in one piece, the block table has whole pages of 32 or 64 tokens and -1 behind
// a request's last one, and the scores' scale is bmm1_scale = q_scale * k_scale * softmax_scale.
// Prompts are flashinfer's, as they are in SGLang.
//
// Tolerance against exact attention as of trtllm.
#include "attention/trtllm_mla/trtllm_mla.h"

#include "attention/table.h"

// Of quantised q, of which there is none here, and of K, which the table knows.
static const float Q_SCALE = 1, K_SCALE = 1, BMM2_SCALE = 1;

static void forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                    const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const float bmm1_scale = Q_SCALE * K_SCALE * layer->scale;
    msgl__table_attend(base, x, layer, seqs, in, bmm1_scale, BMM2_SCALE, out);
}

const msgl_attn_desc msgl__attn_trtllm_mla = {
    .name = "trtllm_mla",
    .aliases = {NULL},
    .summary = "TensorRT-LLM's latent attention: block table, pages of 32 or 64; prompts by fi",
    .devices = 1u << MSGL_DEVICE_CPU,
    .prefill_by = "fi",
    .page_rule = MSGL_PAGE_SET,
    .page_sizes = {32, 64},
    .page_override = 64,
    .caches = 1u << MSGL_CACHE_LATENT,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16 | 1u << MSGL_E4M3,
    .tree = true,
    .create = msgl__table_create,
    .destroy = msgl__table_destroy,
    .prepare = msgl__table_prepare,
    .forward = forward,
};
