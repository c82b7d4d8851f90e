// SPDX-License-Identifier: Apache-2.0
//
// A block of attention and feed-forward whose weights several layers share (Zamba2, arXiv
// 2411.15242, section 2). It reads the stream x and the embeddings x_0 of the step's tokens side by
// side, has no residual connection, and its result is no part of the stream: the recurrent mixer
// behind it reads x + W_out F(norm(W_o A(norm([x, x_0])))). What a layer has of its own are W_out
// and low-rank parts of the products of q, K, V and of gate and up.
#ifndef MSGL_LAYERS_SHARED_BLOCK_H
#define MSGL_LAYERS_SHARED_BLOCK_H

#include "layers/attention.h"
#include "layers/mlp.h"

typedef struct msgl_shared_block {
    msgl_attention attn;  // of [2 hidden] columns; its results are of W_o below
    msgl_norm norm;       // [2 hidden]
    msgl_linear attn_out; // W_o [hidden, width of attention's results]
    msgl_norm ffn_norm;   // [hidden]
    msgl_mlp mlp;
    msgl_linear out;            // W_out [hidden, hidden]
    msgl_low_rank qkv_low_rank; // rank 0: there is none
    msgl_low_rank mlp_low_rank;
} msgl_shared_block;

// Step arena bytes of msgl__shared_block for up to max_tokens tokens.
size_t msgl__shared_block_workspace(const msgl_shared_block *b, msgl_dtype act, int32_t max_tokens);
// out [num_tokens, hidden] = stream + the block's result. stream: [num_tokens, hidden]; the
// embeddings are f->embeds'. cos_sin: of attention's rope.
void msgl__shared_block(msgl_forward *f, const msgl_shared_block *b, const void *stream,
                        const float *cos_sin, void *out);

#endif
