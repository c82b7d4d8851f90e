// SPDX-License-Identifier: Apache-2.0
//
// Attention to chosen keys (kernel/index.h): every new token has a list of slots of its own, as a
// request of one token whose page table has pages of one. The kernel is that of the paged backends,
// which reads K once for all heads of a token. Tiles are of a list's places: where all keys are
// chosen they are those of their positions, and on the CPU a token's bits those of fa.
//
// Over latent vectors a token has one list. Over K and V each KV head has one, whose slots are
// places of [slots * heads, head_dim]: head 1 of 4 has slot 5's key at 21.
//
// Or a list has the keys of a token's window, and others behind them that stand for windows of
// tokens (kernel/compress.h), in the same pool.
#ifndef MSGL_ATTENTION_CHOSEN_H
#define MSGL_ATTENTION_CHOSEN_H

#include "attention/attention.h"

typedef struct msgl_attn_chosen msgl_attn_chosen; // of one group of layers

// The backend of a device with memory of its own that attends to such lists, whatever the user has
// named: one that reads lengths and page table on the device alone. needs: of a call, so where
// blocks are chosen of one KV head. MSGL_EUNSUPPORTED: none can.
int msgl__chosen_select(const msgl_attn_needs *needs, const msgl_attn_desc **out, msgl_err *err);

// What is chosen: the top_k best keys, or with block_size > 0 blocks of so many keys (those of
// msgl_index_blocks_call). top_k 0: nothing, as no layer of the group chooses; keys have no scores.
typedef struct msgl_attn_choosing {
    int32_t top_k, block_size, local_blocks;
    // Single keys stand for so many positions each, the least of the group's calls of choose: with
    // 4 a request of 10 tokens has 2 keys to choose from. 0 or 1: for one.
    int32_t every;
    // Not 0: blocks are chosen by the means of their keys with so many index queries, for all heads
    // alike (choose_means of kernel/index.h).
    int32_t mean_queries;
    int32_t list_keys; // most of a list with windows; 0: there are none
} msgl_attn_choosing;

// Takes all memory for steps of cfg, whose group is LATENT, or KV where blocks are chosen. desc:
// what select has chosen; NULL: the CPU. MSGL_ENOMEM, MSGL_ELIMIT, MSGL_EINVAL. *out is owned by
// the caller (destroy).
int msgl__chosen_create(const msgl_attn_config *cfg, const msgl_attn_desc *desc,
                        const msgl_attn_choosing *what, msgl_attn_chosen **out, msgl_err *err);
void msgl__chosen_destroy(msgl_attn_chosen *c); // NULL allowed

// Calls the kernel with *call completed by what is here: top_k, page table and scores. Its `every`
// is that of what is chosen, or more.
void msgl__chosen_choose(const msgl_attn_chosen *c, msgl_exec *x,
                         const msgl_index_choose_call *call);

// Of `tokens` tokens: slots [tokens, top_k] and counts [tokens] as msgl_index_choose_call leaves
// them, q [tokens, ld] absorbed -> out [tokens, num_q_heads * v_dim].
void msgl__chosen_attend(const msgl_attn_chosen *c, msgl_exec *x, const msgl_attn_layer *layer,
                         int32_t tokens, const int32_t *slots, const int32_t *counts, const void *q,
                         size_t ld, void *out);

// Completes *call by the page table and calls the kernel.
void msgl__chosen_store_means(const msgl_attn_chosen *c, msgl_exec *x,
                              const msgl_index_means_store_call *call);

// Index queries and where their keys are; heads is that of the group, or mean_queries.
typedef struct msgl_attn_block_index {
    int32_t dim;
    const void *q; // [seqs' tokens, heads, dim]
    size_t ld_q;
    msgl_dtype dtype;
    const void *pool; // [slots, dim]
} msgl_attn_block_index;

// What a list with windows has (msgl_index_list_call).
typedef struct msgl_attn_listing {
    int32_t window, every, shift;
    const int32_t *chosen, *counts; // [seqs' tokens, top_k], [seqs' tokens]; NULL: all
} msgl_attn_listing;

// Of the tokens of seqs, each of which chooses blocks: q [tokens, ld] as a backend wants it -> out
// [tokens, num_q_heads * v_dim].
void msgl__chosen_attend_blocks(const msgl_attn_chosen *c, msgl_exec *x,
                                const msgl_attn_layer *layer, const msgl_seqs *seqs,
                                const msgl_attn_block_index *index, const void *q, size_t ld,
                                void *out);

// The same with such lists: q [tokens, ld] -> out [tokens, num_q_heads * v_dim].
void msgl__chosen_attend_window(const msgl_attn_chosen *c, msgl_exec *x,
                                const msgl_attn_layer *layer, const msgl_seqs *seqs,
                                const msgl_attn_listing *what, const void *q, size_t ld, void *out);

#endif
