// SPDX-License-Identifier: Apache-2.0
//
// Attention to the keys of a window and to compressed keys (DeepSeek-V4), up to its output
// projection. A token keeps one key for all heads, which is their value, too: normed, its last
// elements rotated. A result is rotated back by the token's own angles, so that what a value adds
// depends on the distance to it. Then the heads' results pass through a product by groups.
//
// Beside the window a layer may see compressed keys of the whole text before it, all of them or
// those that an index chooses, in the same softmax with a sink for each head. They lie in the same
// pool as the window's, in a layer of their own behind it: place slot + shift of the layer in front
// is slot of this one, so that one list of places has both.
#ifndef MSGL_LAYERS_COMPRESSED_ATTENTION_H
#define MSGL_LAYERS_COMPRESSED_ATTENTION_H

#include "layers/compressed_keys.h"
#include "layers/grouped_linear.h"
#include "layers/linear.h"

// Which of the compressed keys a token attends to (kernel/index.h), by keys of the same windows.
typedef struct msgl_window_index {
    int32_t top_k, heads; // heads 0: all
    msgl_linear q;        // [heads * keys.dim, q_rank]
    msgl_linear weights;  // [heads, hidden], results in f32
    msgl_compressed_keys keys;
} msgl_window_index;

typedef struct msgl_compressed_attention {
    int32_t num_heads, dim, half; // heads of this rank
    int32_t q_rank, window;       // window: keys that a token sees there, its own included
    int32_t rope;                 // which of the step's
    // [q_rank + dim + rows.width, hidden]: to q's latent vector, the key and the raw row.
    msgl_linear down;
    float *q_norm;    // [q_rank]
    msgl_linear q_up; // [num_heads * dim, q_rank]
    float *k_norm;    // [dim]
    float eps;        // of all norms
    int32_t group;    // of keys
    msgl_attn_layer geometry;
    msgl_raw_rows rows;        // where there are compressed keys
    msgl_compressed_keys keys; // in the layer of the pool behind geometry.layer
    msgl_window_index index;
    msgl_grouped_linear out; // of heads' results, as many groups as this rank has
} msgl_compressed_attention;

// Step arena bytes of msgl__compressed_attention for up to max_tokens tokens with activations of
// act.
size_t msgl__compressed_workspace(const msgl_compressed_attention *a, msgl_dtype act,
                                  int32_t max_tokens);
// in [num_tokens, hidden], before `norm` -> out [num_tokens, out.groups * rank of the product by
// groups]. Stores what is kept of the tokens. cos_sin [num_tokens, 2 half] of its rope.
void msgl__compressed_attention(msgl_forward *f, const msgl_compressed_attention *a,
                                const msgl_norm *norm, const void *in, const float *cos_sin,
                                void *out);

#endif
