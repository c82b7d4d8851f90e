// SPDX-License-Identifier: Apache-2.0
//
// What minisgl-attn-trtllm.so offers: XQA, TensorRT-LLM's decode kernel, as FlashInfer publishes
// it, over a block table. Nothing here allocates or synchronises; results are a cudaError_t.
#ifndef MSGL_CUDA_TRTLLM_API_H
#define MSGL_CUDA_TRTLLM_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"

#define MSGL_TRTLLM_ABI 4

typedef struct msgl_xqa_shape {
    msgl_dtype dtype; // bf16 or f16, of q, k, v and out; or E4M3, of k and v: q and out are bf16
    int32_t num_q_heads, num_kv_heads, head_dim;
    int32_t page_size; // of the pool: 16, 32, 64 or 128
} msgl_xqa_shape;

typedef struct msgl_xqa_device { // what launches of a shape's kernel need to know
    uint32_t shared_bytes;
    int32_t sm_count;
} msgl_xqa_device;

// One query token per request, at position seqlens_k[i] - 1. Device memory, except numbers.
typedef struct msgl_xqa_call {
    msgl_xqa_shape shape;
    int32_t batch, max_seqlen_k; // an upper bound of seqlens_k decides the split
    const void *q;               // [batch, num_q_heads, head_dim], token stride ld_q elements
    size_t ld_q;
    void *out;                // [batch, num_q_heads, head_dim]
    const void *k, *v;        // one layer's pool [slots, num_kv_heads, head_dim]
    float bmm1_scale;         // of q.k
    float bmm2_scale;         // of the result; 1 unless KV is E4M3
    int32_t window;           // W: keys in [p - W, p]; -1: all
    const float *sinks;       // [num_q_heads] attention/attention.h has the formula; NULL: none
    const int32_t *seqlens_k; // [batch]
    const int32_t *pages;     // [batch, pages_stride] page numbers in units of kernel_page_size
    int32_t pages_stride;
    uint32_t *semaphores;   // [batch, num_kv_heads], 0 at first; launches leave them 0
    void *scratch;          // of scratch_bytes
    msgl_xqa_device device; // prepare's
    bool pdl;               // programmatic dependent launch
    bool deterministic;     // keys are never split
    int32_t splits;         // KV splits per request; 0: by the grid
} msgl_xqa_call;

// pages[i * pages_stride + j] = parts * table[table_rows[i] * table_stride + j / parts] + j %
// parts, for pages that hold keys: a page of the pool is `parts` of the kernel's. Device memory,
// except the bound.
typedef struct msgl_xqa_pages_call {
    int32_t batch, page_size; // of the kernel
    int32_t parts;
    const int32_t *table; // the pool's pages
    size_t table_stride;
    const int32_t *table_rows, *seqlens_k;
    int32_t *pages;
    int32_t pages_stride, max_pages;
} msgl_xqa_pages_call;

typedef struct msgl_trtllm_api {
    uint32_t abi;
    const char *build;
    // Page size that the kernel for the shape works with (it divides the pool's), or 0: no kernel.
    int32_t (*kernel_page_size)(const msgl_xqa_shape *shape);
    // Loads the kernel of the shape on the current device, before the first launch there.
    int (*prepare)(const msgl_xqa_shape *shape, msgl_xqa_device *out);
    size_t (*scratch_bytes)(const msgl_xqa_shape *shape, const msgl_xqa_device *device,
                            int32_t max_batch);
    int (*decode)(const msgl_xqa_call *c, void *stream);
    int (*pages)(const msgl_xqa_pages_call *c, void *stream);
} msgl_trtllm_api;

// The only exported symbol: "msgl_trtllm_plugin".
typedef const msgl_trtllm_api *(*msgl_trtllm_plugin_fn)(void);

#endif
