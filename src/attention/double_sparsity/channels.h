// SPDX-License-Identifier: Apache-2.0
//
// Which channels of K a label is made of, and what decides when answers are sparse
// (docs/internals/double-sparsity.md). The channels come from a file that `minisgl calibrate`
// writes and SGLang reads: a JSON object whose member "model.layers.L.self_attn.TYPE_proj" (L: the
// layer; TYPE: q, k or qk) is a list with a row for each head, its channels, heaviest first.
#ifndef MSGL_ATTENTION_DOUBLE_SPARSITY_CHANNELS_H
#define MSGL_ATTENTION_DOUBLE_SPARSITY_CHANNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "attention/attention.h"
#include "core/err.h"

// Heads of the layers that channels are of.
typedef struct msgl_channel_dims {
    int32_t num_layers, num_q_heads, num_kv_heads, head_dim;
} msgl_channel_dims;

// Sums over the tokens of a calibration.
typedef struct msgl_channel_sums {
    double *q; // [layers, num_q_heads, head_dim] of |q_c|
    double *k; // [layers, num_kv_heads, head_dim] of |k_c|
} msgl_channel_sums;

struct msgl_attn_sparse {
    msgl_channel_dims dims;
    // SGLang's --ds-heavy-channel-num (of a label, a multiple of 8), --ds-heavy-token-num (that a
    // head attends to) and --ds-sparse-decode-threshold (tokens; shorter requests are dense).
    int32_t heavy_channels, heavy_tokens, threshold;
    uint16_t *channels; // [layers, num_kv_heads, heavy_channels]; NULL: a calibration
    msgl_channel_sums sums;
};

// Whether an answer of a request of len tokens is sparse.
static inline bool msgl__attn_is_sparse(const msgl_attn_sparse *s, int32_t len)
{
    return s->channels != NULL && len >= s->heavy_tokens && len >= s->threshold;
}

// Channels of a layer, counted in its group as in msgl_attn_layer: [num_kv_heads, heavy_channels].
static inline const uint16_t *msgl__attn_channels(const msgl_attn_sparse *s, int32_t layer)
{
    return s->channels + (size_t)layer * (size_t)s->dims.num_kv_heads * (size_t)s->heavy_channels;
}

// Reads s->channels, for s's dims and heavy_channels, from the members of `type` ("q", "k", "qk").
// A KV head's row in the file may also be one for each of its query heads: then its channels are
// those with the smallest sums of ranks. Errors, MSGL_EFORMAT most of them, name the file and the
// member. msgl__attn_sparse_free frees.
int msgl__attn_channels_load(const char *path, const char *type, msgl_attn_sparse *s,
                             msgl_err *err);
// Makes s->sums for a calibration with s->dims, all zeros. MSGL_ENOMEM.
int msgl__attn_sums_create(msgl_attn_sparse *s, msgl_err *err);
// Writes the file from s->sums, of all three types. MSGL_EIO, MSGL_ENOMEM.
int msgl__attn_channels_write(const char *path, const msgl_attn_sparse *s, msgl_err *err);
void msgl__attn_sparse_free(msgl_attn_sparse *s);

#endif
