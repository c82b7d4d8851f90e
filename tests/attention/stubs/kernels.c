// SPDX-License-Identifier: Apache-2.0
//
// The launchers that the host halves of GPUs' attention backends call, for programs without
// kernels. They do nothing; a test that wants to see its calls has launchers of its own, which are
// linked in place of these.
#include "cuda/attn/decode.h"
#include "cuda/attn/double_sparsity.h"
#include "cuda/attn/dual.h"
#include "cuda/attn/dual_sparse.h"
#include "cuda/attn/expanded.h"
#include "cuda/attn/flex.h"
#include "cuda/attn/mla.h"
#include "cuda/attn/native.h"
#include "cuda/attn/prefill.h"
#include "cuda/attn/prefill_sm80.h"
#include "cuda/attn/reference.h"
#include "cuda/attn/sink.h"
#include "cuda/attn/triton.h"
#include "cuda/attn/wide_sm80.h"
#include "cuda/host.h"

#define NOTHING(name, call)                                                                        \
    __attribute__((weak)) int name(const call *c, void *stream)                                    \
    {                                                                                              \
        (void)c, (void)stream;                                                                     \
        return 0;                                                                                  \
    }

NOTHING(msgl__cuda_fa_prefill, msgl_cuda_attn_call)
NOTHING(msgl__cuda_fa_prefill_sm80, msgl_cuda_attn_call)
NOTHING(msgl__cuda_fa_decode, msgl_cuda_attn_call)
NOTHING(msgl__cuda_attn_reference, msgl_cuda_attn_call)
NOTHING(msgl__cuda_sink, msgl_sink_call)
NOTHING(msgl__cuda_mla_plan, msgl_mla_call)
NOTHING(msgl__cuda_mla, msgl_mla_call)
NOTHING(msgl__cuda_gather, msgl_gather_call)
NOTHING(msgl__cuda_expanded, msgl_expanded_call)
NOTHING(msgl__cuda_flex_lists, msgl_cuda_flex_call)
NOTHING(msgl__cuda_flex_attend, msgl_cuda_flex_call)
NOTHING(msgl__cuda_triton_lists, msgl_triton_lists_call)
NOTHING(msgl__cuda_triton_decode, msgl_triton_call)
NOTHING(msgl__cuda_triton_extend, msgl_triton_call)
NOTHING(msgl__cuda_native_gather, msgl_native_gather)
NOTHING(msgl__cuda_native_copy, msgl_native_copy)
NOTHING(msgl__cuda_native_softmax, msgl_native_softmax)
NOTHING(msgl__cuda_sparse_begin, msgl_sparse_call)
NOTHING(msgl__cuda_sparse_labels, msgl_sparse_call)
NOTHING(msgl__cuda_sparse_decode, msgl_sparse_call)

__attribute__((weak)) int msgl__cuda_attn_tree(const msgl_cuda_attn_call *c, const uint64_t *tree,
                                               void *stream)
{
    (void)c, (void)tree, (void)stream;
    return 0;
}

__attribute__((weak)) int msgl__cuda_fa_wide(const msgl_cuda_attn_call *c, bool answers,
                                             const uint64_t *tree, void *stream)
{
    (void)c, (void)answers, (void)tree, (void)stream;
    return 0;
}

__attribute__((weak)) size_t msgl__fa_wide_workspace(int32_t num_q_heads, int32_t head_dim,
                                                     int32_t v_dim, int32_t max_running,
                                                     bool deterministic)
{
    (void)num_q_heads, (void)head_dim, (void)v_dim, (void)max_running, (void)deterministic;
    return 64;
}

__attribute__((weak)) void msgl__cuda_native_product(msgl_exec *x, const msgl_native_product *p)
{
    (void)x, (void)p;
}

__attribute__((weak)) int msgl__cuda_dual_prefill(const msgl_cuda_attn_call *c, int32_t dual_len,
                                                  msgl_dual_sparse sparse, void *stream)
{
    (void)c, (void)dual_len, (void)sparse, (void)stream;
    return 0;
}

__attribute__((weak)) int msgl__cuda_dual_ranges(const msgl_cuda_attn_call *c, int32_t dual_len,
                                                 const msgl_dual_ranges *to, void *stream)
{
    (void)c, (void)dual_len, (void)to, (void)stream;
    return 0;
}

__attribute__((weak)) int msgl__cuda_dual_merge(const msgl_cuda_attn_call *c, int32_t dual_len,
                                                const void *results, void *stream)
{
    (void)c, (void)dual_len, (void)results, (void)stream;
    return 0;
}

__attribute__((weak)) size_t msgl__cuda_dual_sparse_workspace(int32_t num_q_heads, int32_t head_dim,
                                                              int32_t max_seq_len)
{
    (void)num_q_heads, (void)head_dim, (void)max_seq_len;
    return 64;
}

__attribute__((weak)) int msgl__cuda_dual_sparse_prompt(const msgl_cuda_attn_call *c,
                                                        const msgl_sparse_piece *p, void *stream)
{
    (void)c, (void)p, (void)stream;
    return 0;
}

__attribute__((weak)) void *msgl__cuda_device_stream(msgl_device *d)
{
    return d;
}

__attribute__((weak)) size_t msgl__cuda_device_l2_bytes(const msgl_device *d)
{
    (void)d;
    return 50 << 20;
}
