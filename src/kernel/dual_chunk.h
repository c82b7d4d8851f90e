// SPDX-License-Identifier: Apache-2.0
//
// Dual chunk attention (An et al. 2024, arXiv 2402.17463, section 3; docs/internals/dual-chunk.md).
#ifndef MSGL_KERNEL_DUAL_CHUNK_H
#define MSGL_KERNEL_DUAL_CHUNK_H

#include "kernel/calls.h"

// A sequence is cut into chunks of len tokens. The key at position p rotates by p mod len, and a
// token has a query for each distance between its chunk and the key's: 0, 1, or more.
typedef struct msgl_dual_chunk {
    int32_t len;  // 0: none
    int32_t size; // no query is rotated further, len <= size
    // Scores of a sequence of n tokens are multiplied by max(1, 0.1 ln(n / original) + 1)^2 (Peng
    // et al. 2023, eq. 21 and 22, whose t is its inverse); 0: they are not.
    int32_t original;
    // A prompt's keys are multiplied by the square root of that factor and all queries by the same,
    // instead of queries by the factor (docs/internals/dual-chunk.md says who does that).
    bool scaled_keys;
} msgl_dual_chunk;

// When a model with a pattern for it (attention/dual_chunk/pattern.h) has sparse prompts.
typedef struct msgl_sparse_prompts {
    bool enabled;
    int32_t threshold; // tokens; shorter prompts are dense
    int32_t last;      // rows of a piece of a prompt that choose for all, the last ones
} msgl_sparse_prompts;

enum { MSGL_DUAL_QUERIES = 3, MSGL_DUAL_SETS = 1 + MSGL_DUAL_QUERIES };

// Their cosines and sines: of a token at position p, with r = p mod len, at
//   r for its key, and r, min(r + len, size), min(2 len - 1, size) for its queries,
// those of queries multiplied by the factor of scores (or as scaled_keys says).
typedef struct msgl_dual_table_call {
    const int32_t *positions; // [tokens]
    // [tokens] length of the token's prompt: n, or where the token is of the answer the tokens up
    // to this one. NULL: original is 0.
    const int32_t *prompt_lens;
    int32_t tokens;
    const float *inv_freq; // [half]
    int32_t half;
    float scale;
    msgl_dual_chunk dual;
    float *cos_sin; // [tokens, MSGL_DUAL_SETS, 2 half]
} msgl_dual_table_call;

// As msgl_rope_call, without norms: k is rotated in place by its set of the table, k and v are
// stored, and each head of q, which stays as it is, goes to `queries` once rotated by each set.
typedef struct msgl_dual_rope_call {
    msgl_rope_call rope; // cos_sin [tokens, MSGL_DUAL_SETS, 2 half]
    void *queries;       // [tokens, MSGL_DUAL_QUERIES, num_q_heads, head_dim]
} msgl_dual_rope_call;

#endif
