// SPDX-License-Identifier: Apache-2.0
//
// What minisgl-cuda.so offers. The main binary never links CUDA: it opens the plug-in, asks for
// this table, and checks its version. The attention plug-ins (fi, trtllm) offer tables of their
// own.
#ifndef MSGL_KERNEL_CUDA_PLUGIN_H
#define MSGL_KERNEL_CUDA_PLUGIN_H

#include "kernel/cuda/attn/call.h"
#include "kernel/cuda/attn/double_sparsity.h"
#include "kernel/cuda/attn/dual.h"
#include "kernel/cuda/attn/dual_sparse.h"
#include "kernel/cuda/attn/mla.h"
#include "kernel/cuda/attn/native.h"
#include "kernel/cuda/attn/sink.h"
#include "kernel/cuda/attn/triton.h"
#include "kernel/cuda/ranks.h"
#include "kernel/device.h"
#include "kernel/expanded.h"

struct msgl_kernels;        // kernel/kernel.h
struct msgl_cuda_flex_call; // kernel/cuda/attn/flex.h

#define MSGL_CUDA_ABI 30 // changes with any struct that crosses the boundary

typedef struct msgl_cuda_props {
    char name[128];
    int32_t capability; // x 10
    int32_t sm_count;
    size_t total_bytes, free_bytes, l2_bytes;
    int32_t driver, runtime; // CUDA versions, 13000 for 13.0
} msgl_cuda_props;

// The attention backends' kernels; each returns a cudaError_t. stream: cudaStream_t.
typedef struct msgl_cuda_attn {
    int (*prefill)(const msgl_cuda_attn_call *c, void *stream);
    int (*decode)(const msgl_cuda_attn_call *c, void *stream);
    int (*reference)(const msgl_cuda_attn_call *c, void *stream); // any dtype and head_dim, slow
    // Where new tokens form trees: attn/prefill.h.
    int (*tree)(const msgl_cuda_attn_call *c, const uint64_t *tree, void *stream);
    int (*sink)(const msgl_sink_call *c, void *stream);    // fi's: attn/sink.h
    int (*mla_plan)(const msgl_mla_call *c, void *stream); // once a step: attn/mla.h
    int (*mla)(const msgl_mla_call *c, void *stream);
    int (*gather)(const msgl_gather_call *c, void *stream); // attn/expanded.h
    int (*expanded)(const msgl_expanded_call *c, void *stream);
    int (*flex_lists)(const struct msgl_cuda_flex_call *c, void *stream); // attn/flex.h
    int (*flex_attend)(const struct msgl_cuda_flex_call *c, void *stream);
    // triton's: kernel/cuda/attn/triton.h
    int (*triton_lists)(const msgl_triton_lists_call *c, void *stream);
    int (*triton_decode)(const msgl_triton_call *c, void *stream);
    int (*triton_extend)(const msgl_triton_call *c, void *stream);
    // dual_chunk_flash_attn's: attn/dual.h
    int (*dual_prefill)(const msgl_cuda_attn_call *c, int32_t dual_len, msgl_dual_sparse sparse,
                        void *stream);
    int (*dual_ranges)(const msgl_cuda_attn_call *c, int32_t dual_len, const msgl_dual_ranges *to,
                       void *stream);
    int (*dual_merge)(const msgl_cuda_attn_call *c, int32_t dual_len, const void *results,
                      void *stream);
    // torch_native's: attn/native.h
    int (*native_gather)(const msgl_native_gather *g, void *stream);
    int (*native_copy)(const msgl_native_copy *c, void *stream);
    int (*native_softmax)(const msgl_native_softmax *s, void *stream);
    void (*native_product)(msgl_exec *x, const msgl_native_product *p);
    // attn/dual_sparse.h
    size_t (*dual_sparse_workspace)(int32_t num_q_heads, int32_t head_dim, int32_t max_seq_len);
    int (*dual_sparse_prompt)(const msgl_cuda_attn_call *c, const msgl_sparse_piece *p,
                              void *stream);
    // double_sparsity's: kernel/cuda/attn/double_sparsity.h
    int (*sparse_begin)(const msgl_sparse_call *c, void *stream);
    int (*sparse_labels)(const msgl_sparse_call *c, void *stream);
    int (*sparse_decode)(const msgl_sparse_call *c, void *stream);
} msgl_cuda_attn;

typedef struct msgl_cuda_api {
    uint32_t abi;
    const char *build; // "CUDA 13.0; sm_80 sm_89 sm_90a sm_100 sm_120"
    // Number of GPUs; 0 with a reason when there are none or no driver.
    int (*device_count)(msgl_err *reason);
    int (*props)(int ordinal, msgl_cuda_props *out, msgl_err *err);
    // Opens a GPU: context, stream, libraries. cache_dir: where chosen algorithms are kept, or
    // NULL. props: NULL, or takes what it was before anything of it was taken.
    int (*open)(int ordinal, bool deterministic, const char *cache_dir, msgl_device **out,
                msgl_cuda_props *props, msgl_err *err);
    void *(*stream)(msgl_device *d);
    size_t (*l2_bytes)(const msgl_device *d);
    void (*kernels)(struct msgl_kernels *k); // fills gemm, norm, rope, act, moe and sample
    const msgl_cuda_attn *attn;
    // kernel/cuda/ranks.h
    int (*comm)(msgl_device *d, const msgl_cuda_ranks *ranks, struct msgl_comm **out, char *note,
                size_t note_size, msgl_err *err);
    int (*broadcast_choices)(msgl_device *d, const msgl_cuda_ranks *ranks, msgl_err *err);
} msgl_cuda_api;

// The only exported symbol: "msgl_cuda_plugin".
typedef const msgl_cuda_api *(*msgl_cuda_plugin_fn)(void);

#endif
