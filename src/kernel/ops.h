// SPDX-License-Identifier: Apache-2.0
//
// Kernel families norm, rope, act, moe and sample: everything of a transformer step that is neither
// a matrix product nor attention. All pointers are device memory; activations (void) are rows of
// elements of exec->act, row-major; weights, logits, cosines and sines are f32. Every result row
// depends only on its own input row.
#ifndef MSGL_KERNEL_OPS_H
#define MSGL_KERNEL_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/batch.h"
#include "kernel/calls.h"
#include "kernel/dual_chunk.h"
#include "kernel/exec.h"
#include "kernel/temper.h"

typedef struct msgl_norm_kernels {
    // out = in / sqrt(mean(in^2) + eps) * weight over the last dimension (Zhang & Sennrich 2019,
    // eq. 4). in, out [rows, dim] with strides; weight [dim].
    void (*rms_norm)(msgl_exec *x, const void *in, size_t ld_in, const float *weight, float eps,
                     void *out, size_t ld_out, int rows, int dim);
    // out = (in - mean) / sqrt(mean((in - mean)^2) + eps) * weight + bias over the last dimension
    // (Ba et al. 2016, eq. 4), statistics in f32. in, out [rows, dim] with strides, out may be in;
    // weight [dim]; bias [dim], or NULL: 0.
    void (*layer_norm)(msgl_exec *x, const void *in, size_t ld_in, const float *weight,
                       const float *bias, float eps, void *out, size_t ld_out, int rows, int dim);
    // The same without bias for each head of a row, in place: p[r, h * dim + i] with weight[h * dim
    // + i] and head h's own statistics. p [rows, heads * dim] with stride ld.
    void (*layer_norm_heads)(msgl_exec *x, void *p, size_t ld, const float *weight, float eps,
                             int rows, int heads, int dim);
    // rms_norm where ranks share the dimension: sums[r * ld_sums] becomes in[r]'s sum of squares,
    // and with those added up over the ranks, of `all` elements, the rows are normed in place.
    void (*sum_squares)(msgl_exec *x, const void *in, size_t ld_in, int rows, int dim, float *sums,
                        size_t ld_sums);
    void (*norm_by_sums)(msgl_exec *x, void *p, size_t ld, const float *weight, float eps,
                         const float *sums, size_t ld_sums, int all, int rows, int dim);
    // dst += scale * src; with a weight [dim] dst += scale * norm(src). [rows, dim], dense.
    void (*add)(msgl_exec *x, void *dst, const void *src, const float *weight, float eps,
                float scale, int rows, int dim);
    // p *= factor, n elements.
    void (*scale)(msgl_exec *x, void *p, float factor, size_t n);
} msgl_norm_kernels;

// Rotary embedding in the "half" layout of Hugging Face: pairs (i, i + rotary_dim / 2).
typedef struct msgl_rope_kernels {
    // cos_sin[t, 0..half) = cos(pos * inv_freq[i]) * scale, [t, half..2 half) = sin(...) * scale,
    // with pos = positions[t] and inv_freq [half]. Angles are formed in f32 like transformers does.
    void (*table)(msgl_exec *x, const int32_t *positions, int tokens, const float *inv_freq,
                  int half, float scale, float *cos_sin);
    // See msgl_rope_call. The norms of q and k are per head, before the rotation.
    void (*qk_norm_rope_store)(msgl_exec *x, const msgl_rope_call *c);
    // See msgl_latent_rope_call.
    void (*latent_rope_store)(msgl_exec *x, const msgl_latent_rope_call *c);
    // See msgl_dual_table_call and msgl_dual_rope_call.
    void (*dual_table)(msgl_exec *x, const msgl_dual_table_call *c);
    void (*dual_rope_store)(msgl_exec *x, const msgl_dual_rope_call *c);
    // What the calls above have stored: see msgl_kv_move_call.
    void (*move_kv)(msgl_exec *x, const msgl_kv_move_call *c);
} msgl_rope_kernels;

typedef struct msgl_act_kernels {
    // out[r, i] = f(gate_up[r, i]) * gate_up[r, dim + i]; gate_up [rows, 2 dim], out [rows, dim].
    void (*gate)(msgl_exec *x, msgl_activation f, const void *gate_up, void *out, int rows,
                 int dim);
    // p[r, i] = f(p[r, i]) * by[r, i]; p [rows, dim], dense, `by` with stride ld_by.
    void (*gate_by)(msgl_exec *x, msgl_activation f, const void *by, size_t ld_by, void *p,
                    int rows, int dim);
    // p[i] = f(p[i]), n elements. params: what pointwise.h says of f, on the device.
    void (*apply)(msgl_exec *x, msgl_pointwise f, const float *params, void *p, size_t n);
    // p[r, i] *= sigmoid(gate[r, i]); p [rows, dim], dense, gate with stride ld_gate.
    void (*times_sigmoid)(msgl_exec *x, const void *gate, size_t ld_gate, void *p, int rows,
                          int dim);
    // p[r, i] *= msgl_temper's factor at positions[r]; p [rows, dim] with stride ld.
    void (*temper)(msgl_exec *x, const msgl_temper *how, const int32_t *positions, void *p,
                   size_t ld, int rows, int dim);
    // Puts the shards of all ranks side by side: out[i, r * shard_columns + j] = shard r's [i, j].
    // Shard r is [rows, its columns], dense, at shards + r * rows * shard_columns. Each has
    // shard_columns columns, the last ones fewer, `dim` in all: dim 10 over 4 ranks are 3, 3, 3, 1.
    // dtype: of the elements.
    void (*join_columns)(msgl_exec *x, msgl_dtype dtype, const void *shards, int shard_columns,
                         int rows, int dim, void *out);
    // out[g, :] = the mean of in[r, :] over rows first[g] to last[g], both included: 3 and 5 are
    // three rows. in [more than any last[g], dim] and out [groups, dim], dense; out is not in. Sums
    // are f32.
    void (*mean_rows)(msgl_exec *x, const void *in, const int32_t *first, const int32_t *last,
                      int groups, int dim, void *out);
    // l = scale * l, then, with a cap, cap * tanh(l / cap); n values of f32.
    void (*cap)(msgl_exec *x, float *logits, size_t n, float scale, float cap);
} msgl_act_kernels;

typedef struct msgl_moe_kernels {
    // See msgl_router. logits [rows, experts] -> ids [rows, top_k], the one chosen first in front,
    // and their weights. Takes up to 4 * experts + 64 bytes of exec->scratch.
    void (*route)(msgl_exec *x, const msgl_router *how, const float *logits, int rows, int experts,
                  int32_t *ids, float *weights);
    // The same with the experts that how->table has for the tokens [rows]; ids below 0 have the
    // first one's, those beyond it the last one's. NULL: not on this device.
    void (*look_up)(msgl_exec *x, const msgl_router *how, const float *logits,
                    const int32_t *tokens, int rows, int experts, int32_t *ids, float *weights);
    // Sorts the rows * top_k assignments by expert (stable): offsets [experts + 1], source[j] =
    // index of the assignment (row * top_k + choice) at sorted place j.
    void (*sort)(msgl_exec *x, const int32_t *ids, int rows, int top_k, int experts,
                 int32_t *offsets, int32_t *source);
    // out[j, :] = in[source[j] / top_k, :] for j < rows * top_k.
    void (*gather)(msgl_exec *x, const void *in, const int32_t *source, int rows, int top_k,
                   int dim, void *out);
    // The weights of the n choices ids that are not of experts [first, first + own) become 0.
    void (*keep_own)(msgl_exec *x, const int32_t *ids, int n, int first, int own, float *weights);
    // The weights of the n choices ids are multiplied by their experts' `by` [experts].
    void (*scale_choices)(msgl_exec *x, const int32_t *ids, int n, const float *by, float *weights);
    // out[r, :] = (or, with accumulate, +=) sum over c < top_k, in that order and in f32, of
    // weights[r, c] * in[place of (r, c), :]. source NULL: (r, c) is at r * top_k + c. What has
    // weight 0 need not be there.
    void (*combine)(msgl_exec *x, const void *in, const int32_t *source, const float *weights,
                    int rows, int top_k, int dim, bool accumulate, void *out);
    // p[r, :] *= weights[r], which becomes 1; p [rows, dim].
    void (*weigh_input)(msgl_exec *x, void *p, float *weights, int rows, int dim);
    // out[r, :] += sigmoid(gate[r]) * in[r, :]; gate f32 [rows], or NULL: 1; in and out [rows,
    // dim].
    void (*add_shared)(msgl_exec *x, const void *in, const float *gate, int rows, int dim,
                       void *out);
    // Norm, router, route and sort as one kernel, where that is the fastest way; false, and nothing
    // done, elsewhere. NULL: never.
    bool (*choose)(msgl_exec *x, const msgl_choose_call *c);
    // Both products and the combination, where another way than by experts is faster: for a few
    // rows. false, and nothing done, elsewhere. NULL: never.
    bool (*experts)(msgl_exec *x, const msgl_experts_call *c);
    bool ids_on_host; // what route has chosen can be looked at as soon as it returns
    // Bits are promised, and a gate's are others in the grouped product's kernel than behind it.
    bool gate_in_product;
} msgl_moe_kernels;

typedef struct msgl_sample_kernels {
    void (*sample)(msgl_exec *x, const msgl_sample_call *c); // see msgl_sample_call
    // The same in two halves, for ranks that have a shard of each row: draw leaves keys, and pick
    // finishes a call whose keys are [ranks, num_rows], from all of them, or with `sum` [num_rows],
    // this rank's. NULL: not on this device.
    void (*draw)(msgl_exec *x, const msgl_sample_call *c);
    void (*pick)(msgl_exec *x, const msgl_sample_call *c, int ranks);
    // out[r].logprob and rank of out[r].token and the out[r].num_top most likely (ties: lowest id
    // first), from the raw logits, and their log_sum; req and position are left alone. A NaN row
    // gives NaN, rank 0 and num_top 0.
    void (*logprobs)(msgl_exec *x, const float *logits, size_t ld, int num_rows, int vocab,
                     msgl_token_logprobs *out);
    // out[r, i] (stride out_ld) = the log-probability of token ids[i] in row r, whose record
    // records[r] is of the call above; n ids, each in the vocabulary. ids and out may be the host's
    // memory that the device reads and writes.
    void (*listed)(msgl_exec *x, const float *logits, size_t ld, const msgl_token_logprobs *records,
                   int num_rows, const int32_t *ids, int n, float *out, size_t out_ld);
    // out[r, t] = logits[r, t] (stride ld) where bit t of masks[r, 0..ceil(vocab / 32)) is set,
    // else -inf; masks NULL: all are. out: [num_rows, vocab].
    void (*mask)(msgl_exec *x, const float *logits, size_t ld, const uint32_t *masks, int num_rows,
                 int vocab, float *out);
    // sample, where every row has a chain; the logits are a copy, which is changed. The
    // call has no replay inputs.
    void (*chain)(msgl_exec *x, const msgl_sample_call *c);
    // Bytes that sample, chain and logprobs take from exec->scratch for num_rows rows.
    size_t (*scratch_size)(int num_rows, int vocab);
} msgl_sample_kernels;

#endif
