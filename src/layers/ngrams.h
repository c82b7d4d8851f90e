// SPDX-License-Identifier: Apache-2.0
//
// Embeddings of hashed n-grams (kernel/ngrams.h) that a layer adds to a token's residual streams:
// a value, gated for each stream by how its key agrees with that, and a convolution of what
// all tokens have got so.
#ifndef MSGL_LAYERS_NGRAMS_H
#define MSGL_LAYERS_NGRAMS_H

#include "layers/linear.h"

typedef struct msgl_ngrams {
    int32_t num, hidden; // num: streams; 0: the layer has no n-grams
    msgl_ngram_hash hash;
    int32_t rows;      // of the table
    msgl_weight embed; // [rows, elements of a head]; several ranks share its rows
    msgl_linear kv;    // [num * hidden + hidden, heads of all orders * elements]: keys, value
    float *key_norm, *query_norm, *conv_norm; // [num, hidden]
    float eps;
    float *conv; // [num * hidden, taps]
    int32_t taps, skip;
    int32_t group, layer; // of layers with this state
} msgl_ngrams;

// Heads of all orders.
static inline int32_t msgl__ngrams_heads(const msgl_ngrams *n)
{
    return (n->hash.size - 1) * n->hash.heads;
}

// Bytes of a request's state: inputs of the convolution.
size_t msgl__ngrams_state_bytes(const msgl_ngrams *n, msgl_dtype act);
// Step arena bytes of msgl__ngrams for up to max_tokens tokens.
size_t msgl__ngrams_workspace(const msgl_ngrams *n, msgl_dtype act, int32_t max_tokens);
// streams [num_tokens, num, hidden] += what the step's tokens get. States go on as f->states says.
void msgl__ngrams(msgl_forward *f, const msgl_ngrams *n, void *streams);

#endif
