// SPDX-License-Identifier: Apache-2.0
//
// What minisgl-attn-fi.so offers: FlashInfer's kernels and planners as plain functions. The backend
// (fi_cuda.c) decides which kernel runs, owns all memory and all copies; nothing here allocates or
// synchronises, and planning is host work only. Function results are a cudaError_t unless said
// otherwise.
#ifndef MSGL_CUDA_FI_API_H
#define MSGL_CUDA_FI_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/paging.h"

struct msgl_err; // core/err.h; the kernels, slow to compile, are not made to depend on it

#define MSGL_FI_ABI 6

typedef enum msgl_fi_kernel {
    MSGL_FI_CUDA_CORES,    // decode: one warp group per KV head and chunk
    MSGL_FI_TENSOR_CORES,  // prefill, and decode with the query heads of a KV head as rows
    MSGL_FI_HOPPER,        // prefill with WGMMA
    MSGL_FI_LATENT,        // latent caches, tensor cores
    MSGL_FI_LATENT_HOPPER, // the same with WGMMA
    // The two sides of a chunk behind a prefix, each with its LSE: new tokens among themselves,
    // causal, K and V in rows of their own; and the prefix in pages, all of which every query sees.
    MSGL_FI_RAGGED,        // tensor cores
    MSGL_FI_RAGGED_HOPPER, // WGMMA
    MSGL_FI_PREFIX,
    MSGL_FI_PREFIX_HOPPER,
    MSGL_FI_NUM_KERNELS,
} msgl_fi_kernel;

typedef struct msgl_fi_shape {
    msgl_dtype dtype; // bf16 or f16, of q, k, v and out; or E4M3, of k and v: q and out are bf16
    int32_t num_q_heads, num_kv_heads, head_dim;
    int32_t v_dim;     // head_dim, or less in latent caches, whose V lies in K
    int32_t page_size; // of the kernel's view: it divides the pool's
} msgl_fi_shape;

// A request has qo_indptr[i + 1] - qo_indptr[i] new tokens and kv_len[i] keys in
// page_indptr[i + 1] - page_indptr[i] pages; ragged kernels: page_indptr is qo_indptr, kv_len the
// numbers of new tokens and the page size 1. All host memory.
typedef struct msgl_fi_plan_call {
    msgl_fi_shape shape;
    msgl_fi_kernel kernel;
    int32_t batch;
    const int32_t *qo_indptr, *page_indptr, *kv_len;
    int32_t window; // that the plan is for; any, where kernels do not skip keys (CUDA cores)
    bool graph;     // decode whose grid and layout must not depend on the lengths
    bool fixed;     // tensor cores, latent: tiles and splits that do not depend on the batch
    bool whole;     // tensor cores: keys are never split
    size_t float_bytes;
    void *staging; // takes the plan, 64-byte aligned
    size_t staging_bytes;
} msgl_fi_plan_call;

// A plan's shape; its arrays are in the staging memory and have to be copied to the device as they
// are, to 64-byte aligned memory.
typedef struct msgl_fi_planned {
    msgl_fi_kernel kernel;
    bool fixed;
    size_t bytes; // used of the staging memory
    int64_t info[18];
} msgl_fi_planned;

typedef struct msgl_fi_run_call {
    msgl_fi_shape shape;
    const msgl_fi_planned *plan;
    int32_t batch, total_q;
    const void *q; // [total_q, num_q_heads, head_dim], token stride ld_q elements
    size_t ld_q;
    // One layer's pool [slots, num_kv_heads, head_dim]; ragged kernels: of the new tokens [total_q,
    // num_kv_heads, head_dim], and there are no pages.
    const void *k, *v;
    void *out;  // [total_q, num_q_heads, v_dim]
    float *lse; // [total_q, num_q_heads] base 2, or NULL
    float scale, softcap;
    float out_scale; // of the result; 1 unless KV is E4M3
    int32_t window;
    const int32_t *qo_indptr, *page_indptr, *last_page_len; // device
    const int32_t *pages;                                   // device, ragged page numbers
    const void *plan_arrays;                                // device copy of the plan
    void *float_workspace;
} msgl_fi_run_call;

// The ragged page list: pages[page_indptr[i] + j] = table[table_rows[i] * table_stride + j]. Device
// memory, except the bound.
typedef struct msgl_fi_pages_call {
    int32_t batch;
    const int32_t *table;
    size_t table_stride;
    const int32_t *table_rows, *page_indptr;
    int32_t max_pages; // of a request, an upper bound
    int32_t *pages;
} msgl_fi_pages_call;

// K and V of the new tokens out of one layer's pool: k_rows[t] = k[slot of position
// kv_len[i] - n + j] for token t = qo_indptr[i] + j of the n of request i; position p is place x =
// table_rows[i] * table_stride + p, in page table[x / paging.size]. Device memory.
typedef struct msgl_fi_rows_call {
    int32_t batch, total_q;
    size_t row_bytes; // of a token's K, and of its V; a multiple of 16
    const int32_t *table;
    size_t table_stride;
    msgl_paging paging;
    const int32_t *table_rows, *qo_indptr, *kv_len;
    const void *k, *v;
    void *k_rows, *v_rows;
} msgl_fi_rows_call;

// Two results of the same queries over different keys become the one over all of them:
//     L = log2(2^l + 2^m),  out = out 2^(l - L) + other 2^(m - L),  lse = L
// Device memory; rows of bf16 or f16.
typedef struct msgl_fi_merge_call {
    msgl_dtype dtype;
    int64_t rows;     // tokens times query heads
    int32_t head_dim; // a multiple of 8
    void *out;        // [rows, head_dim]
    float *lse;       // [rows]
    const void *other;
    const float *other_lse;
} msgl_fi_merge_call;

typedef struct msgl_fi_api {
    uint32_t abi;
    const char *build; // version of FlashInfer and architectures
    // Whether there is a kernel for the shape (softcap and window: every kernel but Hopper's) on a
    // GPU of this capability.
    bool (*has)(const msgl_fi_shape *shape, msgl_fi_kernel kernel, int32_t capability);
    // Bytes of staging memory that any plan of up to max_batch requests and max_tokens new tokens
    // needs, and of the float workspace beyond which a plan does not split.
    void (*sizes)(const msgl_fi_shape *shape, int32_t max_batch, int32_t max_tokens,
                  size_t *staging_bytes, size_t *float_bytes);
    // A MSGL_E code.
    int (*plan)(const msgl_fi_plan_call *c, msgl_fi_planned *out, struct msgl_err *err);
    int (*run)(const msgl_fi_run_call *c, void *stream);
    int (*pages)(const msgl_fi_pages_call *c, void *stream);
    int (*rows)(const msgl_fi_rows_call *c, void *stream);
    int (*merge)(const msgl_fi_merge_call *c, void *stream);
} msgl_fi_api;

// The only exported symbol: "msgl_fi_plugin".
typedef const msgl_fi_api *(*msgl_fi_plugin_fn)(void);

#endif
