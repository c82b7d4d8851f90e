// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_BACKENDS_FI_H
#define MSGL_CUDA_BACKENDS_FI_H

#include "cuda/backends/call.h"
#include "cuda/fi/api.h"

// New tokens per request, on average, from which FlashInfer's Hopper kernels win.
enum { MSGL_FI_HOPPER_TOKENS = 512 };

static inline bool msgl__fi_hopper_wins(const msgl_seqs *seqs)
{
    return seqs->num_tokens >= (int64_t)MSGL_FI_HOPPER_TOKENS * seqs->size;
}

// The plug-in's table; NULL sets *err.
const msgl_fi_api *msgl__fi_open(msgl_err *err);
msgl_fi_shape msgl__fi_shape(const msgl_attn_config *cfg);
// Lengths lens [n] in pages: indptr [n + 1], and tokens of each one's last page, 0 where there are
// no pages.
void msgl__fi_count_pages(const int32_t *lens, int32_t n, int32_t page, int32_t *indptr,
                          int32_t *last);
// Queues the making of those pages' ragged list from the device's page table; indptr, pages:
// device.
void msgl__fi_list_pages(const msgl_fi_api *api, const msgl_attn_backend *b,
                         const msgl_attn_config *cfg, msgl_exec *x, const msgl_seqs *seqs,
                         const int32_t *indptr, int32_t *pages);
// The layer's sinks behind FlashInfer's kernels, which know none but tell the LSE of their rows,
// base 2. A cudaError_t.
int msgl__fi_add_sinks(const msgl_attn_config *cfg, const msgl_attn_layer *layer,
                       const msgl_seqs *seqs, const float *lse, void *out, void *stream);

// What both descriptors say.
#define MSGL_FI_CUDA                                                                               \
    .aliases = {NULL}, .min_capability = 80, .page_rule = MSGL_PAGE_ANY,                           \
    .head_dims = {64, 128, 256, 576}, .caches = 1u << MSGL_CACHE_KV | 1u << MSGL_CACHE_LATENT,     \
    .kv_dtypes = 1u << MSGL_F16 | 1u << MSGL_BF16 | 1u << MSGL_E4M3, .sliding_window = true,       \
    .reads_behind_window = true, .softcap = true, .sinks = true, .tree = true, .graph = true,      \
    .plugin = "minisgl-attn-fi.so",                                                                \
    .plugin_hint = "make builds it where nvcc is found and FlashInfer's wheel can be downloaded"

extern const msgl_attn_desc msgl__attn_fi_cuda, msgl__attn_flashinfer_cuda;

#endif
