// SPDX-License-Identifier: Apache-2.0
//
// Kernel families norm, rope, act, moe and sample: everything of a transformer step that is neither
// a matrix product nor attention. All pointers are device memory, activations f32, row-major.
// Every result row depends only on its own input row.
#ifndef MSGL_KERNEL_OPS_H
#define MSGL_KERNEL_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "core/batch.h"
#include "kernel/calls.h"
#include "kernel/exec.h"

typedef struct msgl_norm_kernels {
    // out = in / sqrt(mean(in^2) + eps) * weight over the last dimension (Zhang & Sennrich 2019,
    // eq. 4). in, out [rows, dim] with strides; weight [dim].
    void (*rms_norm)(msgl_exec *x, const float *in, size_t ld_in, const float *weight, float eps,
                     float *out, size_t ld_out, int rows, int dim);
    // residual += delta, then out = rms_norm(residual). All [rows, dim], dense.
    void (*add_rms_norm)(msgl_exec *x, float *residual, const float *delta, const float *weight,
                         float eps, float *out, int rows, int dim);
    // dst += src, n elements.
    void (*add)(msgl_exec *x, float *dst, const float *src, size_t n);
} msgl_norm_kernels;

// Rotary embedding in the "half" layout of Hugging Face: pairs (i, i + rotary_dim / 2).
typedef struct msgl_rope_kernels {
    // cos_sin[t, 0..half) = cos(pos * inv_freq[i]) * scale, [t, half..2 half) = sin(...) * scale,
    // with pos = positions[t] and inv_freq [half]. Angles are formed in f32 like transformers does.
    void (*table)(msgl_exec *x, const int32_t *positions, int tokens, const float *inv_freq,
                  int half, float scale, float *cos_sin);
    // In place on one row per token: q_weight/k_weight (or NULL) are qk-norm weights [head_dim],
    // applied per head before the rotation. qkv [tokens, ld]: q heads, then k heads, then v heads.
    void (*qk_norm_rope)(msgl_exec *x, float *qkv, size_t ld, int tokens, int num_q_heads,
                         int num_kv_heads, int head_dim, const float *q_weight,
                         const float *k_weight, float eps, const float *cos_sin, int half);
} msgl_rope_kernels;

typedef struct msgl_act_kernels {
    // out[r, i] = silu(gate_up[r, i]) * gate_up[r, dim + i]; gate_up [rows, 2 dim], out [rows,
    // dim].
    void (*silu_mul)(msgl_exec *x, const float *gate_up, float *out, int rows, int dim);
} msgl_act_kernels;

typedef struct msgl_moe_kernels {
    // Softmax over the experts, then the top_k largest (ties: lowest index); renormalised to sum 1
    // when norm_topk. logits [rows, experts] -> ids, weights [rows, top_k].
    void (*route)(msgl_exec *x, const float *logits, int rows, int experts, int top_k,
                  int norm_topk, int32_t *ids, float *weights);
    // Sorts the rows * top_k assignments by expert (stable): offsets [experts + 1], source[j] =
    // index of the assignment (row * top_k + choice) at sorted place j.
    void (*sort)(msgl_exec *x, const int32_t *ids, int rows, int top_k, int experts,
                 int32_t *offsets, int32_t *source);
    // out[j, :] = in[source[j] / top_k, :] for j < rows * top_k.
    void (*gather)(msgl_exec *x, const float *in, const int32_t *source, int rows, int top_k,
                   int dim, float *out);
    // out[r, :] = sum over c < top_k, in that order, of weights[r, c] * in[place of (r, c), :].
    void (*combine)(msgl_exec *x, const float *in, const int32_t *source, const float *weights,
                    int rows, int top_k, int dim, float *out);
} msgl_moe_kernels;

typedef struct msgl_sample_kernels {
    // tokens[r] = token chosen from logits[r, 0..vocab) by rows[r]; status[r] = 0, or MSGL_ENUMERIC
    // and token -1 when a logit is NaN or all are -inf. Filters apply in the order temperature,
    // top_k, top_p, min_p; ties at argmax: lowest id. rows is host memory read before returning.
    void (*sample)(msgl_exec *x, const float *logits, size_t ld, int num_rows, int vocab,
                   const msgl_sample_row *rows, int32_t *tokens, int32_t *status);
    // out[r].logprob of out[r].token and the out[r].num_top most likely (ties: lowest id first),
    // from the raw logits; req and position are left alone. A NaN row gives NaN and num_top 0.
    void (*logprobs)(msgl_exec *x, const float *logits, size_t ld, int num_rows, int vocab,
                     msgl_token_logprobs *out);
    // Bytes that sample and logprobs take from exec->scratch with a pool of num_threads.
    size_t (*scratch_size)(int num_threads, int vocab);
} msgl_sample_kernels;

#endif
