// SPDX-License-Identifier: Apache-2.0
//
// A backend over a 2-D page table: a step's sequences in the form that FlashAttention's varlen
// kernels and TensorRT-LLM's paged kernels take, one kernel call for prompts and answers. fa and
// trtllm are descriptors over it.
#ifndef MSGL_ATTENTION_TABLE_H
#define MSGL_ATTENTION_TABLE_H

#include "attention/paged.h"

typedef struct msgl_table_metadata {
    int32_t *page_table; // [seqs->size, table_width] page numbers; row i is valid for
                         // ceil(seqlens_k[i] / page_size) entries, the rest is -1 up to
                         // ceil(max_seqlen_k / page_size) and undefined beyond
    int32_t table_width; // ceil(max_seq_len / page_size): a floor would lose the last page
    int32_t *ints;       // of the rule
    msgl_attn_plan plan;
} msgl_table_metadata;

// How a backend cuts a batch into work items.
typedef struct msgl_table_rule {
    void (*limits)(const msgl_attn_config *cfg, msgl_attn_workspace *w); // that hold every batch
    size_t (*ints)(const msgl_attn_config *cfg); // that plan writes beside its list; NULL: none
    void (*plan)(const msgl_attn_config *cfg, const msgl_attn_workspace *w, int32_t bs,
                 const int32_t *cu_seqlens_q, const int32_t *seqlens_k, int32_t *ints,
                 msgl_attn_plan *p);
    msgl_attn_partial_kind partial_kind;
} msgl_table_rule;

// The descriptor's functions, create by whole tiles, each a partial of its own (paged.h), or by a
// rule.
int msgl__table_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                       msgl_attn_backend **out, msgl_err *err);
int msgl__table_create_by(const msgl_table_rule *rule, const msgl_attn_desc *desc,
                          const msgl_attn_config *cfg, msgl_attn_backend **out, msgl_err *err);
void msgl__table_destroy(msgl_attn_backend *base);
int msgl__table_prepare(msgl_attn_backend *base, const msgl_seqs *seqs);
// forward by the layer's scale alone.
void msgl__table_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                         const msgl_seqs *seqs, const msgl_attn_input *in, void *out);
// forward, with q k^T times bmm1_scale before the softmax and its product with V times bmm2_scale,
// both without the scales of an E4M3 pool, which come on top.
void msgl__table_attend(const msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                        const msgl_seqs *seqs, const msgl_attn_input *in, float bmm1_scale,
                        float bmm2_scale, void *out);
// What prepare made for the step in step_slot, for tests.
const msgl_table_metadata *msgl__table_metadata(const msgl_attn_backend *base, int32_t step_slot);

#endif
