// SPDX-License-Identifier: Apache-2.0
//
// Launchers of the kernel families norm, rope, act, moe, sample, index, compress and hyper on GPUs,
// as they stand in the kernel table (kernel/ops.h says what each computes). They only queue work on
// the exec's stream.
//
// A result row depends on its own input row alone: how a sum is split is decided by the row's
// length, never by the number of rows.
#ifndef MSGL_CUDA_OPS_OPS_H
#define MSGL_CUDA_OPS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "core/batch.h"
#include "kernel/calls.h"
#include "kernel/compress.h"
#include "kernel/dual_chunk.h"
#include "kernel/exec.h"
#include "kernel/hyper.h"
#include "kernel/index.h"
#include "kernel/ngrams.h"
#include "kernel/temper.h"

void msgl__cuda_rms_norm(msgl_exec *x, const void *in, size_t ld_in, const float *weight, float eps,
                         void *out, size_t ld_out, int rows, int dim);
void msgl__cuda_layer_norm(msgl_exec *x, const void *in, size_t ld_in, const float *weight,
                           const float *bias, float eps, void *out, size_t ld_out, int rows,
                           int dim);
void msgl__cuda_layer_norm_heads(msgl_exec *x, void *p, size_t ld, const float *weight, float eps,
                                 int rows, int heads, int dim);
void msgl__cuda_sum_squares(msgl_exec *x, const void *in, size_t ld_in, int rows, int dim,
                            float *sums, size_t ld_sums);
void msgl__cuda_norm_by_sums(msgl_exec *x, void *p, size_t ld, const float *weight, float eps,
                             const float *sums, size_t ld_sums, int all, int rows, int dim);
void msgl__cuda_add(msgl_exec *x, void *dst, const void *src, const float *weight, float eps,
                    float scale, int rows, int dim);
void msgl__cuda_scale(msgl_exec *x, void *p, float factor, size_t n);

// kernel/gemm.h: embed.
bool msgl__cuda_embed(msgl_exec *x, const msgl_embed_call *c);

void msgl__cuda_rope_table(msgl_exec *x, const int32_t *positions, int tokens,
                           const float *inv_freq, int half, float scale, float *cos_sin);
void msgl__cuda_qk_norm_rope_store(msgl_exec *x, const msgl_rope_call *c);
void msgl__cuda_latent_rope_store(msgl_exec *x, const msgl_latent_rope_call *c);
void msgl__cuda_dual_table(msgl_exec *x, const msgl_dual_table_call *c);
void msgl__cuda_dual_rope_store(msgl_exec *x, const msgl_dual_rope_call *c);
void msgl__cuda_move_kv(msgl_exec *x, const msgl_kv_move_call *c);

void msgl__cuda_gate_by(msgl_exec *x, msgl_activation f, const void *by, size_t ld_by, void *p,
                        int rows, int dim);
void msgl__cuda_gate(msgl_exec *x, msgl_activation f, const void *gate_up, void *out, int rows,
                     int dim);
void msgl__cuda_apply(msgl_exec *x, msgl_pointwise f, const float *params, void *p, size_t n);
void msgl__cuda_times_sigmoid(msgl_exec *x, const void *gate, size_t ld_gate, void *p, int rows,
                              int dim);
void msgl__cuda_temper(msgl_exec *x, const msgl_temper *how, const int32_t *positions, void *p,
                       size_t ld, int rows, int dim);
// What is left of a grouped call whose product, without bias and gate, is there (its rows where
// `to` says): [rows, n], or c->out itself when it is not gated.
void msgl__cuda_finish_experts(msgl_exec *x, const msgl_grouped_call *c, const void *product,
                               size_t ld_product);
void msgl__cuda_mean_rows(msgl_exec *x, const void *in, const int32_t *first, const int32_t *last,
                          int groups, int dim, void *out);
void msgl__cuda_join_columns(msgl_exec *x, msgl_dtype dtype, const void *shards, int shard_columns,
                             int rows, int dim, void *out);
void msgl__cuda_cap(msgl_exec *x, float *logits, size_t n, float scale, float cap);

// Pools are of the activations' dtype. choose: bf16 and f16, dim a multiple of 8. choose_blocks
// and choose_means: any number of tokens.
void msgl__cuda_index_store(msgl_exec *x, const msgl_index_store_call *c);
void msgl__cuda_index_choose(msgl_exec *x, const msgl_index_choose_call *c);
void msgl__cuda_index_choose_blocks(msgl_exec *x, const msgl_index_blocks_call *c);
void msgl__cuda_index_store_means(msgl_exec *x, const msgl_index_means_store_call *c);
void msgl__cuda_index_choose_means(msgl_exec *x, const msgl_index_blocks_call *c);
void msgl__cuda_index_list(msgl_exec *x, const msgl_index_list_call *c);

// kernel/streams.h.
void msgl__cuda_streams_spread(msgl_exec *x, const void *in, int rows, int n, int dim, void *out);
void msgl__cuda_streams_squash(msgl_exec *x, void *p, size_t ld, int rows, int n, int dim);
void msgl__cuda_streams_mix(msgl_exec *x, const void *gates, const void *in, int rows, int n,
                            int dim, void *out);
void msgl__cuda_streams_inject(msgl_exec *x, const void *weights, size_t ld, const void *block,
                               int rows, int n, int dim, void *streams);
void msgl__cuda_streams_clear(msgl_exec *x, void *p, int rows, int dim);

// kernel/ngrams.h.
void msgl__cuda_ngram_ids(msgl_exec *x, const msgl_ngram_hash *h, const msgl_step_tokens *tokens,
                          const int32_t *positions, int32_t *ids);
void msgl__cuda_ngram_gate(msgl_exec *x, const msgl_ngram_gate_call *c);

// Family compress, of pools of any dtype.
void msgl__cuda_rotate_pairs(msgl_exec *x, const msgl_pair_rope_call *c);
void msgl__cuda_store_rows(msgl_exec *x, const msgl_store_rows_call *c);
void msgl__cuda_compress(msgl_exec *x, const msgl_compress_call *c);

void msgl__cuda_hyper_open(msgl_exec *x, const msgl_hyper *h, const void *in, int32_t rows,
                           float *mix, void *out, void *result);
void msgl__cuda_hyper_close(msgl_exec *x, const msgl_hyper *h, const float *mix, const void *block,
                            int32_t rows, void *streams);
void msgl__cuda_hyper_head(msgl_exec *x, const msgl_hyper *h, const void *in, int32_t rows,
                           void *out);

void msgl__cuda_moe_route(msgl_exec *x, const msgl_router *how, const float *logits, int rows,
                          int experts, int32_t *ids, float *weights);
void msgl__cuda_moe_look_up(msgl_exec *x, const msgl_router *how, const float *logits,
                            const int32_t *tokens, int rows, int experts, int32_t *ids,
                            float *weights);
void msgl__cuda_moe_sort(msgl_exec *x, const int32_t *ids, int rows, int top_k, int experts,
                         int32_t *offsets, int32_t *source);
bool msgl__cuda_moe_choose(msgl_exec *x, const msgl_choose_call *c);
void msgl__cuda_moe_gather(msgl_exec *x, const void *in, const int32_t *source, int rows, int top_k,
                           int dim, void *out);
void msgl__cuda_moe_scale_choices(msgl_exec *x, const int32_t *ids, int n, const float *by,
                                  float *weights);
void msgl__cuda_moe_keep_own(msgl_exec *x, const int32_t *ids, int n, int first, int own,
                             float *weights);
void msgl__cuda_moe_combine(msgl_exec *x, const void *in, const int32_t *source,
                            const float *weights, int rows, int top_k, int dim, bool accumulate,
                            void *out);
void msgl__cuda_moe_weigh_input(msgl_exec *x, void *p, float *weights, int rows, int dim);
void msgl__cuda_moe_add_shared(msgl_exec *x, const void *in, const float *gate, int rows, int dim,
                               void *out);

void msgl__cuda_sample(msgl_exec *x, const msgl_sample_call *c);
void msgl__cuda_chain(msgl_exec *x, const msgl_sample_call *c);
void msgl__cuda_draw(msgl_exec *x, const msgl_sample_call *c);
void msgl__cuda_pick(msgl_exec *x, const msgl_sample_call *c, int ranks);
void msgl__cuda_mask(msgl_exec *x, const float *logits, size_t ld, const uint32_t *masks,
                     int num_rows, int vocab, float *out);
void msgl__cuda_logprobs(msgl_exec *x, const float *logits, size_t ld, int num_rows, int vocab,
                         msgl_token_logprobs *out);
void msgl__cuda_listed(msgl_exec *x, const float *logits, size_t ld,
                       const msgl_token_logprobs *records, int num_rows, const int32_t *ids, int n,
                       float *out, size_t out_ld);
size_t msgl__cuda_sample_scratch(int num_rows, int vocab);

#ifdef __cplusplus
}
#endif

#endif
