// SPDX-License-Identifier: Apache-2.0
//
// Kernel family index: which keys a query attends to (DeepSeek sparse attention; DeepSeek-V3.2,
// arXiv 2512.02556, section 2.1). Beside its latent vector every token keeps an index key k; a new
// token has some index queries q_h and a weight w_h for each. Of the keys t up to its own it
// attends to the top_k with the largest
//
//     score(t) = sum_h w_h max(q_h . k_t, 0)
//
// and to all of them where there are no more than top_k. The published code multiplies q and k by a
// Hadamard matrix and rounds them to FP8 first: the one changes no dot product, and the other is
// left out.
//
// Or whole blocks of keys, chosen by each KV head for itself (MiniMax-M3): block b is the positions
// [b size, (b + 1) size), a token has one index query q_h for each KV head, and
//
//     score_h(b) = max over the keys t of b up to its own of q_h . k_t
//
// It attends to the keys of the top_k best blocks up to its own; the last `local` ones are always
// among them.
//
// Or whole blocks by one key each (Qwen4-Exp's QSA): block b's key k_b is rotate(norm(mean of the
// block's raw index keys)), rotated as position b size, and
//
//     score(b) = sum_h max(q_h . k_b, 0)
//
// A token attends, with all heads alike, to the top_k best of the blocks that end at or before it,
// and to those behind the last of these: the token at position 9 sees with size 4 two blocks and
// positions 8 and 9, and that at position 11 three blocks and nothing else. The pool keeps a
// token's raw key, but in the place of a block's last one the block's key: the raw one is of no
// use any more.
//
// Or keys that stand for windows of tokens (kernel/compress.h), which lie where the last token of
// their window does: of those that are there the top_k best, as above; and a token attends to the
// keys of the last tokens besides.
#ifndef MSGL_KERNEL_INDEX_H
#define MSGL_KERNEL_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "core/batch.h"
#include "core/dtype.h"
#include "kernel/exec.h"

// Of the LayerNorm of index keys, whatever rms_norm_eps says.
#define MSGL_INDEX_EPS 1e-6f

enum {
    MSGL_INDEX_MAX_DIM = 256,
    MSGL_INDEX_MAX_TOP_K = 1 << 16,
    MSGL_INDEX_ROWS = 32, // whose scores the CPU holds at a time
};

// The index keys of new tokens: norm, rotation, to the pool; and their queries, rotated where they
// are. The first 2 half elements rotate, as pairs (i, half + i).
typedef struct msgl_index_store_call {
    int32_t tokens, heads, dim, half; // 2 half <= dim <= MSGL_INDEX_MAX_DIM
    void *q;                          // [tokens, heads, dim] of exec->act
    size_t ld_q;
    const void *k; // [tokens, dim] of exec->act
    size_t ld_k;
    // [dim] of the norm of k: with a bias it is a LayerNorm, else an RMS norm.
    const float *k_weight, *k_bias;
    const float *q_weight; // [dim] of an RMS norm of each query; NULL: none
    float eps;
    const float *cos_sin; // [tokens, 2 half]
    msgl_dtype dtype;     // of the pool, not MSGL_E4M3
    void *pool;           // [slots, dim]
    const int32_t *slots; // [tokens]
} msgl_index_store_call;

typedef struct msgl_index_choose_call {
    const msgl_seqs *seqs; // chains: token i of a request sees those before it
    int32_t heads, dim, top_k;
    int32_t every; // keys are those of positions every - 1, 2 every - 1, ...; 0: of all
    const void *q; // [tokens, heads, dim] of exec->act, rotated; row 0 is seqs' first token
    size_t ld_q;
    const float *weights; // [tokens, heads]
    msgl_dtype dtype;
    const void *pool; // [slots, dim]
    // Position p of table row r is in slot pages[r * page_stride + p / page_size] * page_size + p %
    // page_size.
    const int32_t *pages;
    size_t page_stride;
    int32_t page_size;
    // [score_rows, max_keys]; of keys that are chosen from, seqs' requests have no more.
    float *scores;
    int32_t score_rows, max_keys; // score_rows: MSGL_INDEX_ROWS or more
    // [tokens, top_k] the slots of the keys that a token attends to, in the order of their
    // positions, and [tokens] how many. Of equal scores the earlier position wins; a NaN is below
    // all others.
    int32_t *slots, *counts;
} msgl_index_choose_call;

// Of choose_blocks, each of whose KV heads has an index query, and of choose_means.
typedef struct msgl_index_blocks_call {
    const msgl_seqs *seqs; // chains: token i of a request sees those before it
    int32_t first, tokens; // of theirs; on the CPU at most MSGL_INDEX_ROWS
    int32_t heads, dim;    // heads: KV heads
    int32_t queries;       // of choose_means, for all heads
    int32_t size, top_k;   // of blocks; a list's keys <= MSGL_INDEX_MAX_TOP_K
    int32_t local;         // 0..top_k; of choose_means not read
    const void *q;         // [seqs' tokens, heads or queries, dim] of exec->act, rotated
    size_t ld_q;
    msgl_dtype dtype;
    const void *pool;     // [slots, dim]
    const int32_t *pages; // as above
    size_t page_stride;
    int32_t page_size;
    // [tokens, heads, max_blocks], of which no request has more; of choose_means [tokens,
    // max_blocks].
    float *scores;
    int32_t max_blocks;
    // [heads, tokens, list] the keys that a head of a token attends to, in the order of their
    // positions, and [heads, tokens] how many; list is top_k * size, and with those behind the last
    // whole block, of choose_means, top_k * size + size - 1. A key is slot * heads + head: its
    // place in K [slots, heads, head_dim] taken as [slots * heads, head_dim]. Of blocks with equal
    // scores the earlier one wins; a NaN is below all others.
    int32_t *keys, *counts;
} msgl_index_blocks_call;

// The raw index keys of new tokens to the pool, and over those that end a block its key; their
// queries, normed and rotated where they are.
typedef struct msgl_index_means_store_call {
    const msgl_seqs *seqs;    // chains
    int32_t heads, dim, half; // as in msgl_index_store_call
    int32_t size;             // of blocks
    void *q;                  // [seqs' tokens, heads, dim] of exec->act
    const void *k;            // [seqs' tokens, dim]
    size_t ld;                // of both
    const float *q_weight;    // [dim] of RMS norms
    const float *k_weight;    // of the mean
    float eps;
    const float *cos_sin;  // [seqs' tokens, 2 half]
    const float *inv_freq; // [half] of the same rotation, for blocks' first positions
    float scale;           // of cos and sin
    msgl_dtype dtype;      // of the pool, not MSGL_E4M3
    void *pool;            // [slots, dim]
    const int32_t *pages;  // as above; with those of the new tokens
    size_t page_stride;
    int32_t page_size;
} msgl_index_means_store_call;

typedef struct msgl_index_list_call {
    const msgl_seqs *seqs; // chains: token i of a request sees those before it
    int32_t first, tokens; // of theirs
    int32_t window;        // keys of the last tokens, its own included
    // Behind these, keys that stand for windows of `every` tokens, at their slots + shift: those
    // that are chosen, [seqs' tokens, ld_chosen] slots and [seqs' tokens] how many; or with chosen
    // NULL all that are there. every 0: none.
    int32_t every, shift;
    const int32_t *chosen, *chosen_counts;
    size_t ld_chosen;
    const int32_t *pages; // as above
    size_t page_stride;
    int32_t page_size;
    int32_t *keys, *counts; // [tokens, ld_keys], of which none has more, and [tokens] how many
    size_t ld_keys;
} msgl_index_list_call;

// What a token gets depends on its own request alone, to the bit, and not on how that was cut into
// steps. NULL: not on this device.
typedef struct msgl_index_kernels {
    void (*store)(msgl_exec *x, const msgl_index_store_call *c);
    void (*choose)(msgl_exec *x, const msgl_index_choose_call *c);
    void (*choose_blocks)(msgl_exec *x, const msgl_index_blocks_call *c);
    void (*store_means)(msgl_exec *x, const msgl_index_means_store_call *c);
    void (*choose_means)(msgl_exec *x, const msgl_index_blocks_call *c);
    void (*list)(msgl_exec *x, const msgl_index_list_call *c);
} msgl_index_kernels;

#endif
