// SPDX-License-Identifier: Apache-2.0
//
// Kernel family ngrams: embeddings of hashed n-grams (Qwen4-Exp's per-layer embeddings; the idea is
// that of Cheng et al. 2026, "Conditional Memory via Scalable Lookup"). With t_0 a token's id and
// t_i that of the one i before it, or the id `end` where between the two, t_i included, an `end` or
// the beginning of the request lies, the n-gram of order k (2 <= k <= size) has the hash
//
//   h_k = t_0 f_0 xor t_1 f_1 xor ... xor t_(k - 1) f_(k - 1)       all below 2^63
//
// and each of the `heads` heads of this order reads row offset + h_k mod m of one table, m being
// its own prime. Ids of earlier tokens are in the token pool, so that nothing has to be kept of
// them. Example: size 3, ids 7 8 end 9 4; 4 has t_1 = 9 and t_2 = end, 9 has t_1 = t_2 = end.
#ifndef MSGL_KERNEL_NGRAMS_H
#define MSGL_KERNEL_NGRAMS_H

#include <stddef.h>
#include <stdint.h>

#include "kernel/exec.h"
#include "kernel/step_tokens.h"

enum {
    MSGL_MAX_NGRAM = 8,        // tokens of an n-gram
    MSGL_NGRAM_MAX_HEADS = 64, // of all orders of a layer
};

typedef struct msgl_ngram_hash {
    int32_t size, heads; // heads: of each order
    int32_t end;
    uint64_t factors[MSGL_MAX_NGRAM];
    int32_t moduli[MSGL_NGRAM_MAX_HEADS], offsets[MSGL_NGRAM_MAX_HEADS]; // by order, then head
} msgl_ngram_hash;

typedef struct msgl_ngram_gate_call {
    int32_t rows, num, dim;
    // Rows ld apart: [rows, num, dim] normed keys and [rows, dim] values.
    const void *keys, *values;
    size_t ld;
    const void *queries; // [rows, num, dim] normed streams
    void *out;           // [rows, num, dim]
} msgl_ngram_gate_call;

// NULL: this device has none.
typedef struct msgl_ngrams_kernels {
    // ids [tokens->count, (size - 1) * heads]: rows of the table. positions [tokens->count]. Ids
    // out of the vocabulary give rows of the table, too.
    void (*ids)(msgl_exec *x, const msgl_ngram_hash *h, const msgl_step_tokens *tokens,
                const int32_t *positions, int32_t *ids);
    // out[r, s, :] = sigmoid(sign(g) sqrt(max(|g|, 1e-6))) values[r, :] with
    // g = keys[r, s, :] . queries[r, s, :] / sqrt(dim); sign(0) is 0.
    void (*gate)(msgl_exec *x, const msgl_ngram_gate_call *c);
} msgl_ngrams_kernels;

#endif
